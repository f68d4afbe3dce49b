/* segment.h - reads record segments (record.h writes them). A file is bytes from outside: everything is checked before it is used.
 *
 * G1. A segment may still be growing or may end in the middle of an entry (a kill, a full disk): the last whole entry is its end.
 * G2. A state is handed out only if the head's check holds, an entry only if both of its checks do. */
#ifndef QR_SEGMENT_H
#define QR_SEGMENT_H

#include "transport/record.h"

#include <stdio.h>

typedef struct qr_segment {
    FILE *file;
    qr_record_header_t header;
    qr_record_snapshot_t snapshot;
    char *config;                  /* [header.config_bytes + 1] */
    qr_record_partner_t *partners; /* [snapshot.partner_count] */
    uint8_t *state;                /* [snapshot.state_bytes], if asked for */
    uint8_t *message;              /* [QR_MESSAGE_BYTES_MAX] of the entry read last */
    long at;                       /* where the next entry begins */
    bool cut;                      /* what was read last ends in the middle of an entry */
} qr_segment_t;

typedef struct qr_segment_entry {
    qr_record_entry_t head;
    const uint8_t *message; /* [head.bytes], until the next call */
} qr_segment_entry_t;

/* Opens a segment file. 0; -QR_E_IO; -QR_E_FORMAT (no segment); -QR_E_TRUNCATED (its head is not complete, or not yet);
 * -QR_E_UNSUPPORTED (another version); -QR_E_MEMORY. */
int qr_segment_open(const char *path, bool with_state, qr_segment_t *ret_segment);
/* The next entry: 0; -QR_E_NOT_FOUND at the end as it stands now; -QR_E_FORMAT when the bytes are no entry. */
int qr_segment_next(qr_segment_t *segment, qr_segment_entry_t *ret_entry);
/* Closes and frees; accepts a zeroed segment. */
void qr_segment_close(qr_segment_t *segment);

#endif
