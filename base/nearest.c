/* nearest.c - see nearest.h. */
#include "base/nearest.h"

static char plain(char c) { return c == '-' ? '_' : c; }

size_t qr_nearest_edits(const char *a, const char *b)
{
    size_t row[QR_NEAREST_BYTES_MAX + 1], count = strlen(b);
    if (count > QR_NEAREST_BYTES_MAX) return SIZE_MAX;
    for (size_t j = 0; j <= count; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= count; j++) {
            size_t replace = corner + (plain(a[i - 1]) != plain(b[j - 1]));
            corner = row[j];
            row[j] = qr_min_u64(replace, qr_min_u64(row[j], row[j - 1]) + 1);
        }
    }
    return row[count];
}
