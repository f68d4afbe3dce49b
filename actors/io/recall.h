/* recall.h - what stood behind the responses of the last while, so that one can be saved as a continuation: the input as it came, the
 * continuation it went on from, the ids that were drawn and the text that was shown. No socket, no actor: testable alone.
 *
 * V1. Bounded by count, bytes and time: at QR_RECALLS_MAX finished responses, or QR_RECALL_BYTES_MAX of all, the oldest finished one is
 *     forgotten; when none is left to forget, the response under way that wanted more is (it runs on, and cannot be saved).
 * V2. What can be saved of an answer is the longest run of its ids from the first on whose text is a beginning of what was shown, ends with
 * a whole character and holds no special token. So what a client saw and sends again is what was saved. */
#ifndef QR_RECALL_H
#define QR_RECALL_H

#include "actors/io/http_json.h"

enum { QR_RECALLS_MAX = 1024, QR_RECALL_BYTES_MAX = 64 << 20 };

/* One response. Whoever made it keeps it until qr_recall_keep or qr_recall_drop. */
typedef struct qr_recall {
    uint64_t answer_id, until_us;
    uint32_t tenant, message_count, cache_salt_bytes;
    bool chat, lost; /* lost: V1, nothing is remembered any more */
    uint8_t kind;    /* QR_INPUT_* */
    uint8_t cache_salt[QR_SALT_BYTES_MAX];
    uint8_t *text;
    uint32_t *tokens, *roles, *lengths; /* tokens: of the input; [token_count] */
    size_t text_bytes, token_count;
    qr_http_buffer_t prefix_text, prefix_tokens; /* the continuation it went on from; u32 each */
    qr_http_buffer_t shown, drawn;               /* drawn: u32 each; kept: cut by V2 */
    size_t bytes;                                /* as counted */
    struct qr_recall *before, *after;            /* others of responses under way */
} qr_recall_t;

typedef struct qr_recalls {
    qr_recall_t *ring[QR_RECALLS_MAX]; /* finished ones, oldest at first */
    qr_recall_t *open;                 /* of responses under way */
    uint32_t first, count;
    size_t bytes;
    uint64_t window_us; /* 0: nothing is remembered */
} qr_recalls_t;

/* Forgets everything, also what is kept by who made it. */
void qr_recalls_done(qr_recalls_t *recalls);
/* Begins one: takes text, tokens, roles and lengths out of the request. prefix_*: copied. NULL: window 0 or no memory; nothing was taken.
 */
qr_recall_t *qr_recall_new(qr_recalls_t *recalls, qr_http_request_t *request, qr_bytes_t prefix_text, qr_u32s_t prefix_tokens);
void qr_recall_add(qr_recalls_t *recalls, qr_recall_t *recall, qr_bytes_t text, const uint32_t *tokens, uint64_t token_count);
/* The response is whole: it can be found for the window. */
void qr_recall_keep(qr_recalls_t *recalls, qr_recall_t **recall, const qr_vocabulary_t *vocabulary, uint64_t now_us);
void qr_recall_drop(qr_recalls_t *recalls, qr_recall_t **recall);
/* A finished response of a tenant, NULL if there is none (any more). */
const qr_recall_t *qr_recall_find(qr_recalls_t *recalls, uint64_t answer_id, bool chat, uint32_t tenant, uint64_t now_us);

#endif
