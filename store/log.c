/* log.c - the log in a local folder (log.h). */
#define _GNU_SOURCE
#include "store/log.h"

#include "base/error.h"
#include "base/mutant.h"
#include "store/crc32c.h"
#include "store/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 24, NAME_BYTES = 64, PATH_BYTES = 1024, BLOCK = 4096, END_TAIL_BYTES = 16, ID_BYTES = 24 };
static const char id_magic[8] = {'Q', 'R', 'L', 'O', 'G', 'I', 'D', 1}, snapshot_magic[8] = {'Q', 'R', 'S', 'N', 'A', 'P', 'S', 1};

typedef struct folder_log {
    char path[PATH_BYTES];
    int folder;       /* descriptor */
    bool owner, dead; /* dead: L3, takes no more */
    qr_log_tail_t tail;
    uint64_t next_temporary;
    uint8_t *frame;   /* [HEAD_BYTES + QR_LOG_RECORD_BYTES_MAX] what was read last */
    uint64_t *places; /* of the pages of snapshot `indexed` */
    uint64_t indexed, page_count;
} folder_log_t;

/* ---- frames --------------------------------------------------------------------------------------------------------------- */

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}
static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

void qr_log_record_head(uint64_t sequence, uint64_t writer_epoch, const uint8_t *payload, uint32_t bytes, uint8_t ret_head[24])
{
    memcpy(ret_head, &bytes, 4);
    memcpy(ret_head + 8, &sequence, 8);
    memcpy(ret_head + 16, &writer_epoch, 8);
    uint32_t crc = qr_crc32c(qr_crc32c(0, ret_head + 8, 16), payload, bytes);
    memcpy(ret_head + 4, &crc, 4);
}

int qr_log_record_parse(const uint8_t *bytes, size_t count, qr_log_record_t *ret_record, size_t *ret_used)
{
    if (count < HEAD_BYTES) return -QR_E_TRUNCATED;
    uint32_t length = get_u32(bytes);
    if (length > QR_LOG_RECORD_BYTES_MAX) return -QR_E_LIMIT;
    if (length > count - HEAD_BYTES) return -QR_E_TRUNCATED;
    if (qr_crc32c(0, bytes + 8, HEAD_BYTES - 8 + length) != get_u32(bytes + 4) && !QR_MUTANT(570)) return -QR_E_FORMAT;
    *ret_record = (qr_log_record_t){get_u64(bytes + 8), get_u64(bytes + 16), bytes + HEAD_BYTES, length, 0};
    *ret_used = HEAD_BYTES + (size_t)length;
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------------------ */

static void name_of(char name[NAME_BYTES], uint64_t sequence, bool snapshot)
{
    (void)snprintf(name, NAME_BYTES, "%020" PRIu64 ".%s", sequence, snapshot ? "snapshot" : "record");
}

/* Whether this is the name of a record or snapshot: exactly as name_of writes it. */
static bool name_parse(const char *name, uint64_t *ret_sequence, bool *ret_snapshot)
{
    char again[NAME_BYTES];
    uint64_t sequence = 0;
    for (uint32_t i = 0; i < 20; i++) {
        if (name[i] < '0' || name[i] > '9' || sequence > (UINT64_MAX - 9) / 10) return false;
        sequence = sequence * 10 + (uint64_t)(name[i] - '0');
    }
    for (uint32_t k = 0; k < 2; k++) {
        name_of(again, sequence, k);
        if (strcmp(again, name) != 0) continue;
        *ret_sequence = sequence;
        *ret_snapshot = k;
        return true;
    }
    return false;
}

static int write_all(int file, const void *bytes, size_t count)
{
    for (const uint8_t *at = bytes; count;) {
        ssize_t n = write(file, at, count);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -QR_E_IO;
        at += n, count -= (size_t)n;
    }
    return 0;
}

/* Reads [at, at + count): 0, -QR_E_TRUNCATED when the file ends before, -QR_E_IO. */
static int read_all(int file, void *bytes, size_t count, uint64_t at)
{
    for (uint8_t *to = bytes; count;) {
        ssize_t n = pread(file, to, count, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -QR_E_IO;
        if (n == 0) return -QR_E_TRUNCATED;
        to += n, at += (uint64_t)n, count -= (size_t)n;
    }
    return 0;
}

static int sync_file(int file)
{
    int status;
    do status = fsync(file);
    while (status != 0 && errno == EINTR);
    return status ? -QR_E_IO : 0;
}

static uint64_t disk_bytes(uint64_t bytes) { return qr_round_up(bytes, BLOCK); }

/* A new temporary; its name. A descriptor or -1. */
static int temporary_open(folder_log_t *log, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "work-%ld-%" PRIu64, (long)getpid(), ++log->next_temporary);
    if (qr_store_fail(log_open)) return -1;
    return openat(log->folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/* Deletes what failed (L3). */
static int lost(folder_log_t *log, int file, const char *name, int code, bool poisoned)
{
    if (file >= 0) (void)close(file);
    (void)unlinkat(log->folder, name, 0);
    log->tail.poisoned += poisoned;
    return code;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------------- */

static uint64_t file_bytes(folder_log_t *log, const char *name)
{
    struct stat status;
    return fstatat(log->folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 ? disk_bytes((uint64_t)status.st_size) : 0;
}

/* Reads the head of a file for its epoch; damage is found when it is read whole. */
static uint64_t epoch_of(folder_log_t *log, uint64_t sequence, bool snapshot);

static void keep_snapshot(qr_log_tail_t *tail, uint64_t sequence)
{
    uint32_t i = 0;
    while (i < tail->snapshot_count && tail->snapshots[i] < sequence) i++;
    if (i < tail->snapshot_count && tail->snapshots[i] == sequence) return;
    if (tail->snapshot_count == QR_LOG_SNAPSHOTS_MAX) { /* more than this program ever keeps: the oldest is not used */
        if (i == 0) return;
        memmove(tail->snapshots, tail->snapshots + 1, (QR_LOG_SNAPSHOTS_MAX - 1) * sizeof tail->snapshots[0]);
        tail->snapshot_count--, i--;
    }
    memmove(tail->snapshots + i + 1, tail->snapshots + i, (tail->snapshot_count - i) * sizeof tail->snapshots[0]);
    tail->snapshots[i] = sequence;
    tail->snapshot_count++;
}

/* What is in the folder now. `sweep`: also deletes what a kill left. */
static int scan(folder_log_t *log, bool sweep, char *message, size_t message_bytes)
{
    DIR *dir = opendir(log->path);
    if (!dir) return snprintf(message, message_bytes, "cannot read the folder '%.500s'", log->path), -QR_E_IO;
    uint64_t least = UINT64_MAX, most = 0, poisoned = log->tail.poisoned, id = log->tail.log_id;
    log->tail = (qr_log_tail_t){.log_id = id, .poisoned = poisoned};
    for (struct dirent *entry; (entry = readdir(dir));) {
        uint64_t sequence;
        bool snapshot;
        if (strncmp(entry->d_name, "work-", 5) == 0) {
            if (sweep) (void)unlinkat(log->folder, entry->d_name, 0);
            continue;
        }
        if (!name_parse(entry->d_name, &sequence, &snapshot) || sequence == 0) continue;
        log->tail.bytes += file_bytes(log, entry->d_name);
        if (snapshot) {
            keep_snapshot(&log->tail, sequence);
            continue;
        }
        least = qr_min_u64(least, sequence);
        most = qr_max_u64(most, sequence);
    }
    (void)closedir(dir);
    uint64_t newest_snapshot = log->tail.snapshot_count ? log->tail.snapshots[log->tail.snapshot_count - 1] : 0;
    if (most == 0) {
        log->tail.oldest = newest_snapshot + 1;
        log->tail.newest = newest_snapshot;
    } else {
        log->tail.oldest = least;
        log->tail.newest = most;
        if (newest_snapshot > most) log->tail.newest = newest_snapshot; /* the records between are missing: damage (L2) */
        if (most - least >= QR_LOG_RECORDS_MAX)
            return snprintf(message, message_bytes, "'%.500s': the numbers of its records are too far apart", log->path), -QR_E_FORMAT;
    }
    if (log->tail.newest)
        log->tail.newest_epoch =
            epoch_of(log, most > newest_snapshot || most == log->tail.newest ? most : newest_snapshot, most != log->tail.newest);
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

static int read_from(void *self, uint64_t sequence, qr_log_record_t *ret_record)
{
    folder_log_t *log = self;
    char name[NAME_BYTES];
    struct stat status;
    if (sequence < log->tail.oldest || sequence > log->tail.newest) return -QR_E_NOT_FOUND;
    name_of(name, sequence, false);
    int file = openat(log->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return errno == ENOENT ? -QR_E_FORMAT : -QR_E_IO;
    int code = fstat(file, &status) ? -QR_E_IO : 0;
    size_t bytes = code ? 0 : (size_t)qr_min_u64((uint64_t)status.st_size, HEAD_BYTES + QR_LOG_RECORD_BYTES_MAX + 1), used;
    if (!code && (bytes < HEAD_BYTES || bytes > HEAD_BYTES + QR_LOG_RECORD_BYTES_MAX)) code = -QR_E_FORMAT;
    if (!code) code = read_all(file, log->frame, bytes, 0);
    (void)close(file);
    if (!code) code = qr_log_record_parse(log->frame, bytes, ret_record, &used);
    if (!code && (used != bytes || ret_record->sequence != sequence)) code = -QR_E_FORMAT;
    return code == -QR_E_TRUNCATED || code == -QR_E_LIMIT ? -QR_E_FORMAT : code;
}

static int index_snapshot(folder_log_t *log, int file, uint64_t sequence, uint64_t *ret_epoch);

static int snapshot_open(folder_log_t *log, uint64_t sequence, int *ret_file)
{
    char name[NAME_BYTES];
    name_of(name, sequence, true);
    *ret_file = openat(log->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*ret_file < 0) return errno == ENOENT ? -QR_E_NOT_FOUND : -QR_E_IO;
    return 0;
}

/* One frame at `at` of a snapshot; it must end by `limit`. */
static int read_frame(folder_log_t *log, int file, uint64_t at, uint64_t limit, qr_log_record_t *ret_record, uint64_t *ret_end)
{
    size_t used;
    if (at > limit || limit - at < HEAD_BYTES) return -QR_E_FORMAT;
    int code = read_all(file, log->frame, HEAD_BYTES, at);
    uint32_t bytes = code ? 0 : get_u32(log->frame);
    if (!code && (bytes > QR_LOG_RECORD_BYTES_MAX || bytes > limit - at - HEAD_BYTES)) code = -QR_E_FORMAT;
    if (!code) code = read_all(file, log->frame + HEAD_BYTES, bytes, at + HEAD_BYTES);
    if (!code) code = qr_log_record_parse(log->frame, HEAD_BYTES + (size_t)bytes, ret_record, &used);
    if (!code) *ret_end = at + used;
    return code == -QR_E_IO ? code : code ? -QR_E_FORMAT : 0;
}

/* Reads the end page: places of all pages into log->places. */
static int index_snapshot(folder_log_t *log, int file, uint64_t sequence, uint64_t *ret_epoch)
{
    struct stat status;
    uint8_t tail[END_TAIL_BYTES];
    qr_log_record_t end;
    uint64_t end_of_end;
    log->indexed = 0;
    if (fstat(file, &status)) return -QR_E_IO;
    uint64_t size = (uint64_t)status.st_size;
    if (size < END_TAIL_BYTES) return -QR_E_FORMAT;
    int code = read_all(file, tail, sizeof tail, size - sizeof tail);
    if (code) return code == -QR_E_IO ? code : -QR_E_FORMAT;
    if (memcmp(tail + 8, snapshot_magic, 8) != 0) return -QR_E_FORMAT;
    uint64_t limit = size - sizeof tail;
    code = read_frame(log, file, get_u64(tail), limit, &end, &end_of_end);
    if (code) return code;
    uint64_t pages = end.bytes / 8 - 1; /* the writer's epoch, then the places */
    if (end.bytes % 8 || end.bytes < 8 || end_of_end != limit || end.sequence != sequence || end.writer_epoch != UINT64_MAX ||
        pages > QR_LOG_PAGES_MAX)
        return -QR_E_FORMAT;
    uint64_t *places = realloc(log->places, (size_t)(pages + 1) * 8);
    if (!places) return -QR_E_MEMORY;
    log->places = places;
    *ret_epoch = get_u64(end.payload);
    memcpy(places, end.payload + 8, (size_t)pages * 8);
    places[pages] = get_u64(tail);
    for (uint64_t i = 0; i < pages; i++)
        if (places[i] >= places[i + 1] || (i == 0 && places[0] != 0)) return -QR_E_FORMAT;
    log->indexed = sequence;
    log->page_count = pages;
    return 0;
}

static int read_page(folder_log_t *log, int file, uint64_t sequence, uint64_t page, qr_log_record_t *ret_page)
{
    uint64_t end;
    int code = read_frame(log, file, log->places[page], log->places[page + 1], ret_page, &end);
    if (code) return code;
    return end == log->places[page + 1] && ret_page->sequence == sequence && ret_page->writer_epoch == page ? 0 : -QR_E_FORMAT;
}

static int snapshot_page(void *self, uint64_t sequence, uint64_t page, qr_log_record_t *ret_page, uint64_t *ret_pages)
{
    folder_log_t *log = self;
    uint64_t epoch;
    int file, code = snapshot_open(log, sequence, &file);
    if (code) return code;
    if (log->indexed != sequence) code = index_snapshot(log, file, sequence, &epoch);
    if (!code) *ret_pages = log->page_count;
    if (!code) code = page < log->page_count ? read_page(log, file, sequence, page, ret_page) : -QR_E_NOT_FOUND;
    (void)close(file);
    return code;
}

/* Every page of a snapshot as it lies in `file`. */
static int verify_snapshot(folder_log_t *log, int file, uint64_t sequence)
{
    uint64_t epoch;
    qr_log_record_t page;
    int code = index_snapshot(log, file, sequence, &epoch);
    for (uint64_t i = 0; !code && i < log->page_count; i++) code = read_page(log, file, sequence, i, &page);
    log->indexed = 0;
    return code;
}

static uint64_t epoch_of(folder_log_t *log, uint64_t sequence, bool snapshot)
{
    qr_log_record_t record;
    uint64_t epoch = 0;
    int file;
    if (!snapshot) return read_from(log, sequence, &record) ? 0 : record.writer_epoch;
    if (snapshot_open(log, sequence, &file)) return 0;
    if (index_snapshot(log, file, sequence, &epoch)) epoch = 0;
    (void)close(file);
    return epoch;
}

/* ---- writing -------------------------------------------------------------------------------------------------------------------- */

static int folder_sync(folder_log_t *log) { return sync_file(log->folder); }

/* Takes back a record whose folder could not be made durable (L3). */
static int take_back(folder_log_t *log, const char *name, const char *temporary)
{
    int code = unlinkat(log->folder, name, 0) ? -QR_E_IO : 0;
    if (!code) code = folder_sync(log);
    if (code) log->dead = true;
    return lost(log, -1, temporary, -QR_E_IO, true);
}

static int append_at(void *self, uint64_t sequence, uint64_t writer_epoch, const uint8_t *payload, uint32_t bytes)
{
    folder_log_t *log = self;
    char name[NAME_BYTES], temporary[NAME_BYTES], message[8];
    uint8_t head[HEAD_BYTES];
    if (log->dead) return -QR_E_IO;
    if (sequence <= log->tail.newest) return -QR_E_IN_USE;
    if (sequence != log->tail.newest + 1) return -QR_E_INVALID;
    if (bytes > QR_LOG_RECORD_BYTES_MAX || sequence - log->tail.oldest >= QR_LOG_RECORDS_MAX) return -QR_E_LIMIT;
    qr_log_record_head(sequence, writer_epoch, payload, bytes, head);
    name_of(name, sequence, false);
    int file = temporary_open(log, temporary);
    if (file < 0) return -QR_E_IO;
    int code = qr_store_fail(log_write) ? -QR_E_IO : write_all(file, head, sizeof head);
    if (!code) code = write_all(file, payload, bytes);
    if (code) return lost(log, file, temporary, code, false);
    code = qr_store_fail(log_fsync) ? -QR_E_IO : sync_file(file);
    if (code) return QR_MUTANT(572) ? (void)close(file), 0 : lost(log, file, temporary, code, true);
    (void)close(file);
    if (qr_store_fail(log_link)) return lost(log, -1, temporary, -QR_E_IO, false);
    int linked =
        QR_MUTANT(573) ? renameat(log->folder, temporary, log->folder, name) : linkat(log->folder, temporary, log->folder, name, 0);
    if (linked != 0) {
        bool taken = errno == EEXIST;
        (void)lost(log, -1, temporary, 0, false);
        if (taken) (void)scan(log, false, message, sizeof message);
        return taken ? -QR_E_IN_USE : -QR_E_IO;
    }
    code = qr_store_fail(log_folder_fsync) ? -QR_E_IO : folder_sync(log);
    if (code) return take_back(log, name, temporary);
    if (!qr_store_fail(log_unlink)) (void)unlinkat(log->folder, temporary, 0); /* what stays is swept at the next start */
    log->tail.newest = sequence;
    log->tail.newest_epoch = writer_epoch;
    log->tail.bytes += disk_bytes(HEAD_BYTES + (uint64_t)bytes);
    (void)qr_store_fail(log_done);
    return 0;
}

typedef struct builder {
    int file;
    uint64_t sequence, at, page_count, place_capacity;
    uint64_t *places; /* [0] is kept for the writer's epoch */
} builder_t;

static int build_frame(builder_t *b, uint64_t place, const uint8_t *payload, uint32_t bytes)
{
    uint8_t head[HEAD_BYTES];
    if (bytes > QR_LOG_RECORD_BYTES_MAX) return -QR_E_LIMIT;
    qr_log_record_head(b->sequence, place, payload, bytes, head);
    int code = write_all(b->file, head, sizeof head);
    if (!code) code = write_all(b->file, payload, bytes);
    b->at += HEAD_BYTES + (uint64_t)bytes;
    return code;
}

static int build_page(builder_t *b, const uint8_t *payload, uint32_t bytes)
{
    if (b->page_count + 2 > b->place_capacity) {
        uint64_t capacity = b->place_capacity ? 2 * b->place_capacity : 64;
        uint64_t *places = realloc(b->places, (size_t)capacity * 8);
        if (!places) return -QR_E_MEMORY;
        b->places = places;
        b->place_capacity = capacity;
    }
    if (b->page_count == QR_LOG_PAGES_MAX) return -QR_E_LIMIT;
    b->places[1 + b->page_count] = b->at;
    return qr_store_fail(snapshot_write) ? -QR_E_IO : build_frame(b, b->page_count++, payload, bytes);
}

static int build_end(builder_t *b, uint64_t writer_epoch)
{
    uint8_t tail[END_TAIL_BYTES];
    uint64_t none = writer_epoch, at = b->at;
    if (b->places) b->places[0] = writer_epoch;
    int code = qr_store_fail(snapshot_end)
                   ? -QR_E_IO
                   : build_frame(b, UINT64_MAX, (const uint8_t *)(b->places ? b->places : &none), (uint32_t)(8 * (1 + b->page_count)));
    memcpy(tail, &at, 8);
    memcpy(tail + 8, snapshot_magic, 8);
    return code ? code : write_all(b->file, tail, sizeof tail);
}

static int snapshot(void *self, uint64_t sequence, uint64_t writer_epoch, qr_log_pages_fn pages, void *context)
{
    folder_log_t *log = self;
    char name[NAME_BYTES], temporary[NAME_BYTES];
    const uint8_t *payload;
    uint32_t bytes;
    if (log->dead || sequence == 0) return log->dead ? -QR_E_IO : -QR_E_INVALID;
    builder_t b = {.file = temporary_open(log, temporary), .sequence = sequence};
    if (b.file < 0) return -QR_E_IO;
    int more, code = 0;
    while (!code && (more = pages(context, &payload, &bytes)) != 0) code = more < 0 ? more : build_page(&b, payload, bytes);
    if (!code) code = build_end(&b, writer_epoch);
    free(b.places);
    bool poisoned = false;
    if (!code && (qr_store_fail(snapshot_fsync) || sync_file(b.file))) code = -QR_E_IO, poisoned = true;
    if (!code) code = qr_store_fail(snapshot_verify) ? -QR_E_IO : verify_snapshot(log, b.file, sequence);
    name_of(name, sequence, true);
    if (!code && (qr_store_fail(snapshot_rename) || renameat(log->folder, temporary, log->folder, name))) code = -QR_E_IO;
    if (code) return lost(log, b.file, temporary, code, poisoned);
    (void)close(b.file);
    log->indexed = 0;
    if (qr_store_fail(snapshot_folder_fsync) || folder_sync(log)) { /* it may or may not be there after a crash: it is not relied on */
        (void)lost(log, -1, name, 0, true);
        return -QR_E_IO;
    }
    log->tail.bytes += file_bytes(log, name);
    keep_snapshot(&log->tail, sequence);
    if (sequence <= log->tail.newest) return 0;
    if (log->tail.oldest > log->tail.newest) log->tail.oldest = sequence + 1; /* no record is here */
    log->tail.newest = sequence;
    log->tail.newest_epoch = writer_epoch;
    return 0;
}

static int cut(void *self, uint64_t sequence)
{
    folder_log_t *log = self;
    char name[NAME_BYTES];
    qr_log_tail_t *tail = &log->tail;
    uint64_t newest = tail->snapshot_count ? tail->snapshots[tail->snapshot_count - 1] : 0;
    int file, code = newest < sequence || newest == 0 ? -QR_E_INVALID : snapshot_open(log, newest, &file);
    if (QR_MUTANT(574)) code = 0, file = -1;
    if (code) return code;
    if (!QR_MUTANT(574)) code = verify_snapshot(log, file, newest); /* L4: as it lies on the disk now */
    (void)close(file);
    if (code) return code;
    while (tail->snapshot_count && tail->snapshots[0] < sequence) {
        name_of(name, tail->snapshots[0], true);
        uint64_t bytes = file_bytes(log, name);
        if (qr_store_fail(cut_snapshot) || unlinkat(log->folder, name, 0)) return -QR_E_IO;
        tail->bytes -= qr_min_u64(bytes, tail->bytes);
        memmove(tail->snapshots, tail->snapshots + 1, --tail->snapshot_count * sizeof tail->snapshots[0]);
    }
    for (; tail->oldest <= sequence && tail->oldest <= tail->newest; tail->oldest++) { /* upwards: a kill leaves no gap */
        name_of(name, tail->oldest, false);
        uint64_t bytes = file_bytes(log, name);
        if (qr_store_fail(cut_record) || (unlinkat(log->folder, name, 0) && errno != ENOENT)) return -QR_E_IO;
        tail->bytes -= qr_min_u64(bytes, tail->bytes);
    }
    return qr_store_fail(cut_folder_fsync) || folder_sync(log) ? -QR_E_IO : 0;
}

static int quarantine(void *self, uint64_t sequence, bool is_snapshot)
{
    folder_log_t *log = self;
    char name[NAME_BYTES], to[NAME_BYTES * 2], message[8];
    name_of(name, sequence, is_snapshot);
    if (mkdirat(log->folder, "quarantine", 0700) != 0 && errno != EEXIST) return -QR_E_IO;
    for (uint32_t i = 0; i < 1000; i++) { /* a name that is free */
        (void)snprintf(to, sizeof to, "quarantine/%s.%u", name, i);
        if (faccessat(log->folder, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0) continue;
        if (qr_store_fail(log_quarantine) || (renameat(log->folder, name, log->folder, to) != 0 && errno != ENOENT)) return -QR_E_IO;
        log->indexed = 0;
        return folder_sync(log) ? -QR_E_IO : scan(log, false, message, sizeof message);
    }
    return -QR_E_LIMIT;
}

/* ---- identity -------------------------------------------------------------------------------------------------------------------- */

static int id_read(folder_log_t *log)
{
    uint8_t bytes[ID_BYTES];
    int file = openat(log->folder, "id", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return errno == ENOENT ? -QR_E_NOT_FOUND : -QR_E_IO;
    int code = read_all(file, bytes, sizeof bytes, 0);
    (void)close(file);
    if (code == -QR_E_IO) return code;
    if (code || memcmp(bytes, id_magic, 8) != 0 || get_u32(bytes + 16) != qr_crc32c(0, bytes, 16) || get_u64(bytes + 8) == 0)
        return -QR_E_FORMAT;
    log->tail.log_id = get_u64(bytes + 8);
    return 0;
}

static int renew(void *self, uint64_t log_id)
{
    folder_log_t *log = self;
    uint8_t bytes[ID_BYTES] = {0};
    char temporary[NAME_BYTES];
    memcpy(bytes, id_magic, 8);
    memcpy(bytes + 8, &log_id, 8);
    uint32_t crc = qr_crc32c(0, bytes, 16);
    memcpy(bytes + 16, &crc, 4);
    int file = temporary_open(log, temporary);
    if (file < 0) return -QR_E_IO;
    int code = qr_store_fail(log_id_write) ? -QR_E_IO : write_all(file, bytes, sizeof bytes);
    if (code) return lost(log, file, temporary, code, false);
    if (qr_store_fail(log_id_fsync) || sync_file(file)) return lost(log, file, temporary, -QR_E_IO, true);
    if (qr_store_fail(log_id_rename) || renameat(log->folder, temporary, log->folder, "id"))
        return lost(log, file, temporary, -QR_E_IO, false);
    (void)close(file);
    if (qr_store_fail(log_id_folder_fsync) || folder_sync(log)) return -QR_E_IO;
    log->tail.log_id = log_id;
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------------- */

static void tail(void *self, qr_log_tail_t *ret_tail) { *ret_tail = ((folder_log_t *)self)->tail; }

static void log_close(void *self)
{
    folder_log_t *log = self;
    if (log->folder >= 0) (void)close(log->folder);
    free(log->frame);
    free(log->places);
    free(log);
}

static const qr_log_class_t folder_class = {append_at, read_from, tail, snapshot, snapshot_page, cut, quarantine, renew, log_close};

static int open_parts(folder_log_t *log, uint64_t fresh_id, char *message, size_t message_bytes)
{
    if (mkdir(log->path, 0700) != 0 && errno != EEXIST)
        return snprintf(message, message_bytes, "cannot make the folder '%.500s': %s", log->path, strerror(errno)), -QR_E_IO;
    log->folder = open(log->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (log->folder < 0)
        return snprintf(message, message_bytes, "cannot open the folder '%.500s': %s", log->path, strerror(errno)), -QR_E_IO;
    log->frame = malloc(HEAD_BYTES + QR_LOG_RECORD_BYTES_MAX);
    if (!log->frame) return snprintf(message, message_bytes, "not enough memory"), -QR_E_MEMORY;
    int code = id_read(log);
    if (code == -QR_E_NOT_FOUND || code == -QR_E_FORMAT) code = renew(log, fresh_id); /* what others know of it can't be proved: void */
    if (code) return snprintf(message, message_bytes, "'%.500s/id' cannot be read or written", log->path), code;
    return scan(log, log->owner, message, message_bytes);
}

int qr_log_open_folder(const char *folder, uint64_t fresh_id, bool owner, qr_log_t *ret_log, char *message, size_t message_bytes)
{
    folder_log_t *log = calloc(1, sizeof *log);
    if (!log) return -QR_E_MEMORY;
    log->folder = -1;
    log->owner = owner;
    int code = snprintf(log->path, sizeof log->path, "%s", folder) < (int)sizeof log->path ? 0 : -QR_E_LIMIT;
    if (code) (void)snprintf(message, message_bytes, "the name of the log's folder is too long");
    if (!code) code = open_parts(log, fresh_id, message, message_bytes);
    if (code) {
        log_close(log);
        return code;
    }
    *ret_log = (qr_log_t){&folder_class, log};
    return 0;
}

void qr_log_close(qr_log_t *log)
{
    if (log->class) log->class->close(log->self);
    *log = (qr_log_t){0};
}
