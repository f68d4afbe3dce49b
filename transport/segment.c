/* segment.c - see segment.h. */
#include "transport/segment.h"

#include "base/error.h"
#include "base/mutant.h"
#include "transport/pair.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* Reads exactly `count` bytes into fresh memory, with a NUL behind them. */
static void *take(FILE *file, uint64_t count, int *ret_code)
{
    uint8_t *bytes = malloc(count + 1);
    if (!bytes)
        *ret_code = -QR_E_MEMORY;
    else if (fread(bytes, 1, count, file) != count)
        *ret_code = -QR_E_TRUNCATED;
    else {
        bytes[count] = 0;
        return bytes;
    }
    free(bytes);
    return NULL;
}

/* The state's runs into the state block, or past them. `hash` goes on over them when they are read. */
static int read_runs(qr_segment_t *segment, uint64_t *hash)
{
    uint64_t left = segment->snapshot.run_bytes, all = segment->snapshot.state_bytes;
    for (;;) {
        qr_record_run_t run;
        if (left < sizeof run) return -QR_E_FORMAT;
        if (fread(&run, sizeof run, 1, segment->file) != 1) return -QR_E_TRUNCATED;
        left -= sizeof run;
        if (run.offset > all || run.bytes > all - run.offset || run.bytes > left) return -QR_E_FORMAT;
        left -= run.bytes;
        uint8_t *to = segment->state ? segment->state + run.offset : NULL;
        if (to && fread(to, 1, run.bytes, segment->file) != run.bytes) return -QR_E_TRUNCATED;
        if (!to && fseek(segment->file, (long)run.bytes, SEEK_CUR) != 0) return -QR_E_IO;
        if (to) *hash = qr_record_run_hash(*hash, &run, to);
        if (run.bytes == 0) return left ? -QR_E_FORMAT : 0;
    }
}

static int read_head(qr_segment_t *segment, bool with_state)
{
    qr_record_header_t *header = &segment->header;
    if (fread(header, sizeof *header, 1, segment->file) != 1) return -QR_E_TRUNCATED;
    if (memcmp(header->magic, QR_RECORD_MAGIC, 8) != 0) return -QR_E_FORMAT;
    if (header->version != QR_RECORD_VERSION || header->header_bytes != sizeof *header) return -QR_E_UNSUPPORTED;
    if (header->check != qr_record_header_check(header) || header->config_bytes > CONFIG_BYTES_MAX) return -QR_E_FORMAT;
    int code = 0;
    segment->config = take(segment->file, header->config_bytes, &code);
    if (code) return code;
    qr_record_snapshot_t *snapshot = &segment->snapshot;
    if (fread(snapshot, sizeof *snapshot, 1, segment->file) != 1) return -QR_E_TRUNCATED;
    if (snapshot->own_check != qr_record_snapshot_check(snapshot) || snapshot->partner_count > QR_PAIRS_MAX) return -QR_E_FORMAT;
    segment->partners = take(segment->file, snapshot->partner_count * sizeof *segment->partners, &code);
    if (code) return code;
    if (snapshot->state_bytes > QR_RECORD_STATE_MAX) return -QR_E_FORMAT;
    if (snapshot->state_bytes && with_state && !(segment->state = calloc(1, snapshot->state_bytes))) return -QR_E_MEMORY;
    uint64_t hash = qr_record_head_hash(header, segment->config, snapshot, segment->partners);
    code = snapshot->state_bytes ? read_runs(segment, &hash) : 0;
    if (code) return code;
    bool hashed = segment->state || !snapshot->state_bytes;
    if (hashed && qr_record_fold(hash) != snapshot->check && !QR_MUTANT(317)) return -QR_E_FORMAT;
    header->actor[sizeof header->actor - 1] = 0;
    segment->at = ftell(segment->file);
    return segment->at < 0 ? -QR_E_IO : 0;
}

/* A file of that name and nothing else: who opens a pipe would wait for its writer. */
static FILE *open_file(const char *path)
{
    struct stat stat;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *file = descriptor >= 0 && !fstat(descriptor, &stat) && S_ISREG(stat.st_mode) ? fdopen(descriptor, "rb") : NULL;
    if (!file && descriptor >= 0) (void)close(descriptor);
    return file;
}

int qr_segment_open(const char *path, bool with_state, qr_segment_t *ret_segment)
{
    qr_segment_t segment = {.file = open_file(path)};
    if (!segment.file) return -QR_E_IO;
    segment.message = malloc(QR_MESSAGE_BYTES_MAX);
    int code = segment.message ? read_head(&segment, with_state) : -QR_E_MEMORY;
    if (code)
        qr_segment_close(&segment);
    else
        *ret_segment = segment;
    return code;
}

int qr_segment_next(qr_segment_t *segment, qr_segment_entry_t *ret_entry)
{
    qr_segment_entry_t entry = {.message = segment->message};
    clearerr(segment->file);
    if (fseek(segment->file, segment->at, SEEK_SET) != 0) return -QR_E_IO;
    size_t got = fread(&entry.head, 1, sizeof entry.head, segment->file);
    segment->cut = got > 0;
    if (got != sizeof entry.head) return -QR_E_NOT_FOUND;
    uint32_t kind = qr_entry_kind(entry.head.kind);
    bool whole = entry.head.head_check == qr_record_entry_check(&entry.head) || QR_MUTANT(315);
    if (!whole || entry.head.bytes > QR_MESSAGE_BYTES_MAX || kind < QR_ENTRY_MESSAGE || kind > QR_ENTRY_PIECE) return -QR_E_FORMAT;
    if (fread(segment->message, 1, entry.head.bytes, segment->file) != entry.head.bytes) return -QR_E_NOT_FOUND;
    whole = entry.head.message_check == qr_record_fold(qr_record_hash(0, segment->message, entry.head.bytes)) || QR_MUTANT(316);
    if (!whole) return -QR_E_FORMAT;
    segment->cut = false;
    segment->at = ftell(segment->file);
    *ret_entry = entry;
    return 0;
}

void qr_segment_close(qr_segment_t *segment)
{
    if (segment->file) (void)fclose(segment->file);
    free(segment->config);
    free(segment->partners);
    free(segment->state);
    free(segment->message);
    memset(segment, 0, sizeof *segment);
}
