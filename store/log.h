/* log.h - the catalog's log: numbered records 1, 2, 3, ... that are durable when append_at returns, and snapshots that stand for all
 * records up to their number. Payloads are opaque here. An interface of four functions, so that a log in an object store with
 * conditional create can stand beside the local folder.
 *
 *   FOLDER/id                     which log this is; another one shares no record with it
 *   FOLDER/NUMBER.record          u32 bytes of the payload, u32 CRC-32C of all that follows, u64 sequence, u64 writer epoch, payload
 *   FOLDER/NUMBER.snapshot        pages, each framed like a record (sequence = NUMBER, epoch = its place), an end page with the places
 *                                 of all, then the end page's own place and a magic word
 *   FOLDER/quarantine/            damaged files, renamed aside, never deleted here
 *
 * L1. A record has its final name only when its bytes were made durable under another one (fsync, then link, which fails if the name
 *     exists, even against another process); it is acknowledged only when the folder was made durable too. So a torn file under a
 *     final name is damage, never an unacknowledged tail: what a kill leaves are files with names of work in progress, and open
 *     sweeps them.
 * L2. Numbers have no gap. A file that is missing between two others is damage like any other.
 * L3. A failed fsync means that the file is lost: it is deleted and counted, and never synced again. If the folder cannot be made
 *     durable even after the record was taken back, the log takes no more records until it is opened anew.
 * L4. cut removes records and older snapshots only below a snapshot that was read back whole.
 * L5. Damage is reported as -QR_E_FORMAT and stays where it is until quarantine is asked; nothing is skipped. */
#ifndef QR_LOG_H
#define QR_LOG_H

#include "base/base.h"

enum {
    QR_LOG_RECORD_BYTES_MAX = 4 << 20, /* of a payload or page; longer: LIMIT */
    QR_LOG_RECORDS_MAX = 1 << 20,      /* records between oldest and newest; more: append is refused LIMIT, open FORMAT */
    QR_LOG_SNAPSHOTS_MAX = 16,         /* kept at once; the next one needs a cut first */
    QR_LOG_PAGES_MAX = 1 << 20         /* of one snapshot */
};

typedef struct qr_log_record {
    uint64_t sequence, writer_epoch; /* of a snapshot's page: number of the snapshot, place of the page */
    const uint8_t *payload;          /* until the next call on this log */
    uint32_t bytes, reserved;
} qr_log_record_t;

typedef struct qr_log_tail {
    uint64_t log_id;
    uint64_t oldest, newest; /* records that are here; oldest = newest + 1: none */
    uint64_t newest_epoch;   /* of the newest record or, without one, of the newest snapshot; 0 = empty log */
    uint64_t bytes;          /* of all files, as a disk counts them (whole blocks of 4,096) */
    uint64_t poisoned;       /* files lost to a failed fsync since open */
    uint32_t snapshot_count, reserved;
    uint64_t snapshots[QR_LOG_SNAPSHOTS_MAX]; /* their numbers, ascending */
} qr_log_tail_t;

/* Gives a snapshot's next page: 1 and *ret_payload (valid until the next call), 0 at the end, or a negative code. */
typedef int (*qr_log_pages_fn)(void *context, const uint8_t **ret_payload, uint32_t *ret_bytes);

typedef struct qr_log_class {
    /* Makes record `sequence` durable. 0; -QR_E_IN_USE: the number is taken, here or by another process (the tail is then read again);
     * -QR_E_INVALID: not the next number; -QR_E_LIMIT; -QR_E_IO: nothing of it is in the log. */
    int (*append_at)(void *self, uint64_t sequence, uint64_t writer_epoch, const uint8_t *payload, uint32_t bytes);
    /* Record `sequence`. 0; -QR_E_NOT_FOUND: below oldest or above newest; -QR_E_FORMAT: damaged or missing; -QR_E_IO; -QR_E_MEMORY. */
    int (*read_from)(void *self, uint64_t sequence, qr_log_record_t *ret_record);
    void (*tail)(void *self, qr_log_tail_t *ret_tail);
    /* Writes a snapshot at `sequence` of the given pages, reads it back whole and only then gives it its name. One of the same number is
     * replaced. One above newest stands for records that were lost: the log goes on behind it. 0 or a negative code; nothing changed then.
     */
    int (*snapshot)(void *self, uint64_t sequence, uint64_t writer_epoch, qr_log_pages_fn pages, void *context);
    /* Page `page` of a snapshot: 0; -QR_E_NOT_FOUND: no such snapshot or behind its last page; -QR_E_FORMAT; -QR_E_IO. */
    int (*snapshot_page)(void *self, uint64_t sequence, uint64_t page, qr_log_record_t *ret_page, uint64_t *ret_pages);
    /* Removes records up to `sequence` and snapshots below it. -QR_E_INVALID: no snapshot stands at or above it. */
    int (*cut)(void *self, uint64_t sequence);
    /* Renames a damaged record or snapshot aside. */
    int (*quarantine)(void *self, uint64_t sequence, bool snapshot);
    /* Gives the log a new identity (after a loss): what others know of it is void. */
    int (*renew)(void *self, uint64_t log_id);
    void (*close)(void *self);
} qr_log_class_t;

typedef struct qr_log {
    const qr_log_class_t *class;
    void *self;
} qr_log_t;

/* Opens or makes a log in a local folder. `fresh_id`: its identity if it has none that can be read, not 0. `owner`: sweep what a kill left
 * behind; whoever passes true is the only process that has it open so. 0, or a negative code and one sentence that names the file. */
int qr_log_open_folder(const char *folder, uint64_t fresh_id, bool owner, qr_log_t *ret_log, char *message, size_t message_bytes);
/* Accepts a closed or zeroed log. */
void qr_log_close(qr_log_t *log);

/* Judges the bytes of one record or page: 0 and *ret_record into `bytes`, or -QR_E_TRUNCATED, -QR_E_FORMAT, -QR_E_LIMIT. ret_used: what it
 * takes. */
int qr_log_record_parse(const uint8_t *bytes, size_t count, qr_log_record_t *ret_record, size_t *ret_used);
/* The 24 bytes before a payload. */
void qr_log_record_head(uint64_t sequence, uint64_t writer_epoch, const uint8_t *payload, uint32_t bytes, uint8_t ret_head[24]);

#endif
