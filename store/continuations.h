/* continuations.h - saved continuations: for each one a file of its own, written once, read whole, removed whole.
 *
 *   STORE/continuations/ID            32 hex digits: a header, then tenant, name, owner, salt, token ids, text (continuations.c)
 *   STORE/continuations/ID.new        being written; swept at the next open
 *   STORE/continuations/ID.damaged    set aside when its bytes were found damaged, never read again, never deleted here
 *
 * Files rather than records of the catalog's log: a record is read by every replica and kept for the history, while a continuation is of
 * one tenant, may hold a megabyte of its text and must be gone when it is dropped. What is computed for it is not here but in the chunks.
 *
 * C1. A file has its final name only when its bytes are durable (fsync, then rename), and nobody hears of it before the folder is durable
 *     too. So a kill leaves all of it or nothing; a final file that is not whole is damage: it is set aside and said, never answered.
 * C2. At most `most` of them. At the bound those that have expired leave; when none has, a save is refused (NO_SPACE): nobody's saved
 *     state, pinned or not, makes room for another's.
 * C3. Whoever asks names a tenant; one of another tenant is as if it were not there. An expired one is not there either.
 * C4. One that is pinned never expires. */
#ifndef QR_STORE_CONTINUATIONS_H
#define QR_STORE_CONTINUATIONS_H

#include "base/base.h"
#include "base/limits.h"
#include "base/render.h"

enum {
    QR_CONTINUATION_ID_BYTES = 16,
    QR_CONTINUATION_NAME_BYTES_MAX = 64, /* of name and owner; longer: refused */
    QR_CONTINUATION_TENANT_BYTES_MAX = 64,
    QR_CONTINUATIONS_MAX = 4096
};

/* What a list shows of one. Strings are NUL-terminated. */
typedef struct qr_continuation_head {
    uint8_t id[QR_CONTINUATION_ID_BYTES];
    uint64_t created_us, expires_us; /* of the wall clock; expires_us 0: never */
    uint32_t token_count, text_bytes;
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1], name[QR_CONTINUATION_NAME_BYTES_MAX + 1], owner[QR_CONTINUATION_NAME_BYTES_MAX + 1];
    bool pin;
} qr_continuation_head_t;

typedef struct qr_continuation {
    qr_continuation_head_t head;
    uint8_t fingerprint[32]; /* of the model */
    uint8_t scope[32];       /* root of its chain; all zero: unknown, saved by a version that did not keep it */
    uint32_t salt_bytes;
    uint8_t salt[QR_SALT_BYTES_MAX];
    const uint32_t *tokens; /* [head.token_count] */
    const uint8_t *text;    /* [head.text_bytes]; as base/render.h says */
} qr_continuation_t;

typedef struct qr_continuations qr_continuations_t;

/* Opens or makes STORE/continuations and reads what is there. `most` up to QR_CONTINUATIONS_MAX. 0, or -QR_E_IO, _MEMORY, _NO_SPACE with
 * one sentence. What was found damaged is in qr_continuations_report. */
int qr_continuations_open(const char *store, uint32_t most, qr_continuations_t **ret_continuations, char *message, size_t message_bytes);
void qr_continuations_close(qr_continuations_t **continuations);
/* Lines for a person, each ended by a newline, since the last call; "" if there are none. Until the next call. */
const char *qr_continuations_report(qr_continuations_t *continuations);
uint32_t qr_continuations_count(const qr_continuations_t *continuations);

/* Makes it durable. 0; -QR_E_NO_SPACE (C2, or the disk); -QR_E_IN_USE: that id is there; -QR_E_INVALID; -QR_E_LIMIT; -QR_E_IO: it is not
 * there. */
int qr_continuations_put(qr_continuations_t *continuations, const qr_continuation_t *continuation, uint64_t now_us);
/* Reads one. tokens and text hold until the next call. 0; -QR_E_NOT_FOUND; -QR_E_FORMAT: it was damaged and is set aside; -QR_E_IO. */
int qr_continuations_get(qr_continuations_t *continuations, const uint8_t id[QR_CONTINUATION_ID_BYTES], const char *tenant, uint64_t now_us,
                         qr_continuation_t *ret_continuation);
/* Removes one; 0 when its end is durable; -QR_E_NOT_FOUND; -QR_E_IO: it may be there again after a crash. */
int qr_continuations_drop(qr_continuations_t *continuations, const uint8_t id[QR_CONTINUATION_ID_BYTES], const char *tenant,
                          uint64_t now_us);
/* The next one of a tenant (NULL: of any) from place *at on, in the order of their saving; NULL: no more. Until the next put or drop. */
const qr_continuation_head_t *qr_continuations_next(const qr_continuations_t *continuations, const char *tenant, uint64_t now_us,
                                                    uint32_t *at);

#endif
