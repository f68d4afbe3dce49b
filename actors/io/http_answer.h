/* http_answer.h - writes answers: one JSON object, or server-sent events that begin with the first delta.
 *
 * W1. A streamed answer is events, each one line of valid JSON after "data: ", and ends with a finish event (then the usage event
 *     if it was asked for, then [DONE]) or with one error event.
 * W2. An answer that is not streamed is gathered here and written once, at its end. */
#ifndef QR_HTTP_ANSWER_H
#define QR_HTTP_ANSWER_H

#include "actors/io/http_json.h"

typedef struct qr_http_answer {
    bool chat, stream, include_usage, logprobs, token_ids, begun;
    uint64_t id, created_s;
    const char *model;                     /* alive as long as the answer */
    char fingerprint[24];                  /* "fp_..." or "" */
    uint64_t text_offset;                  /* characters of the tokens shown so far */
    qr_http_buffer_t head;                 /* what every event begins with */
    qr_http_buffer_t text;                 /* gathered text */
    qr_http_buffer_t tokens, logprob_bits; /* gathered, u32 each */
} qr_http_answer_t;

/* Takes what the request says about its answer. fingerprint: of the model; all zero = unknown. */
void qr_http_answer_init(qr_http_answer_t *answer, const qr_http_request_t *request, const char *model, const qr_hash_t *fingerprint,
                         uint64_t id, uint64_t created_s);
void qr_http_answer_done(qr_http_answer_t *answer);
/* "chatcmpl-..." or "cmpl-..." into to[40]. */
void qr_http_answer_name(const qr_http_answer_t *answer, char *to);
/* New text and tokens. Streamed: appends events to out; else gathers. logprob_bits: [token_count] or NULL. */
void qr_http_answer_delta(qr_http_answer_t *answer, const qr_vocabulary_t *vocabulary, qr_bytes_t text, const uint32_t *tokens,
                          const uint32_t *logprob_bits, size_t token_count, qr_http_buffer_t *out);
/* The end, finish STOP or LENGTH. Streamed: the last events; else the whole body. */
void qr_http_answer_finish(qr_http_answer_t *answer, const qr_vocabulary_t *vocabulary, const qr_request_finished_t *finished,
                           qr_http_buffer_t *out);
/* A streamed answer that fails: one error event. */
void qr_http_answer_error(qr_http_answer_t *answer, const qr_http_error_t *error, qr_http_buffer_t *out);

#endif
