/* link: qr_transport */
/* segment.c - record segments are bytes from outside: opening and reading them to the end must do no harm. */
#define _GNU_SOURCE
#include "transport/segment.h"

#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char path[64];
    int file = memfd_create("segment", MFD_CLOEXEC);
    if (file < 0 || write(file, bytes, count) != (ssize_t)count) return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (int with_state = 0; with_state < 2; with_state++) {
        qr_segment_t segment;
        qr_segment_entry_t entry;
        if (qr_segment_open(path, with_state, &segment) != 0) continue;
        while (qr_segment_next(&segment, &entry) == 0) continue;
        qr_segment_close(&segment);
    }
    (void)close(file);
    return 0;
}
