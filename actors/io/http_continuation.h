/* http_continuation.h - saved continuations at the HTTP edge: their ids, the bodies that ask for them and the objects that answer. */
#ifndef QR_HTTP_CONTINUATION_H
#define QR_HTTP_CONTINUATION_H

#include "actors/io/http_json.h"

enum { QR_HTTP_CONTINUATION_NAME = 64, QR_HTTP_CONTINUATION_ID_TEXT = 5 + 32 };
enum { QR_HTTP_LIST = 1, QR_HTTP_SAVE, QR_HTTP_SHOW, QR_HTTP_FORK, QR_HTTP_FORGET };

/* What a call on /v1/continuations asks for. */
typedef struct qr_http_continuation {
    uint8_t operation; /* QR_HTTP_* above */
    bool pin, chat;    /* chat: of the response to save */
    uint8_t id[16];    /* of the path: what is shown, forked or forgotten */
    uint8_t made[16];  /* of the one to be made */
    uint64_t response, ttl_us;
    char name[QR_HTTP_CONTINUATION_NAME + 1], owner[QR_HTTP_CONTINUATION_NAME + 1];
} qr_http_continuation_t;

/* What an answer shows. text, tokens: shown when with_state. */
typedef struct qr_http_continuation_view {
    const uint8_t *id; /* [16] */
    qr_bytes_t name, owner, text;
    qr_u32s_t tokens;
    uint64_t created_us, expires_us, token_count, text_bytes;
    const char *model;
    uint64_t durable_tokens;
    const char *short_reason; /* why not all full chunks are durable; NULL: they are */
    bool pin, with_state, saved; /* saved: durable_tokens and short_reason are shown */
} qr_http_continuation_view_t;

/* "cont-" and 32 hex digits, `count` bytes. false: it is none. */
bool qr_http_continuation_id(const char *text, size_t count, uint8_t ret_id[16]);
void qr_http_put_continuation_id(qr_http_buffer_t *out, const uint8_t id[16]);
/* The body of a save or a fork into what is there already (operation). 0, or a negative code with error filled. */
int qr_http_continuation_parse(const char *body, size_t bytes, qr_http_continuation_t *ask, qr_http_error_t *error);
void qr_http_put_continuation(qr_http_buffer_t *out, const qr_http_continuation_view_t *view);
/* A text as a continuation keeps it, without its marks, as the inside of a JSON string. */
void qr_http_put_render(qr_http_buffer_t *out, qr_bytes_t render);

#endif
