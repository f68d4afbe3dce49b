/* http_json.h - bodies of the HTTP edge: checks and parses requests, writes JSON. No socket, no actor: testable and fuzzable alone.
 *
 * J1. Whatever bytes come in, the result is a request that keeps every limit of limits.h, or one error that names its field.
 * J2. Text of the user in an error is cut to ERROR_SHOWN_BYTES and escaped: no answer grows with the request.
 * J3. What is written is always valid UTF-8 JSON. */
#ifndef QR_HTTP_JSON_H
#define QR_HTTP_JSON_H

#include "actors/actor.h"

/* ---- bytes that grow ------------------------------------------------------------------------------------------------------ */

typedef struct qr_http_buffer {
    char *data;
    size_t count, capacity;
    bool failed; /* memory ran out: what follows was dropped */
} qr_http_buffer_t;

void qr_http_buffer_done(qr_http_buffer_t *buffer);
/* Empties it for another use; a failure is forgotten, the memory stays. */
void qr_http_buffer_clear(qr_http_buffer_t *buffer);
void qr_http_put_bytes(qr_http_buffer_t *buffer, const void *bytes, size_t count);
void qr_http_put(qr_http_buffer_t *buffer, const char *text);
void qr_http_put_u64(qr_http_buffer_t *buffer, uint64_t value);
/* A float that came as its bits, with 9 significant digits at most; not finite: null. */
void qr_http_put_float(qr_http_buffer_t *buffer, uint32_t bits);
/* The inside of a JSON string: quotes, backslashes and controls escaped, malformed UTF-8 as U+FFFD. */
void qr_http_put_escaped(qr_http_buffer_t *buffer, const void *bytes, size_t count);

/* ---- errors ----------------------------------------------------------------------------------------------------------------- */

enum { QR_HTTP_ERROR_BYTES_MAX = 4096 };

typedef struct qr_http_error {
    uint32_t status; /* of HTTP */
    uint32_t retry_after_s;
    const char *type, *code; /* static; code NULL = null */
    char param[80];          /* "" = null */
    char message[400];
} qr_http_error_t;

/* Sets an error of the caller's making: status 400, invalid_request_error. */
void qr_http_error_invalid(qr_http_error_t *error, const char *param, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The status, type and code of a QR_E_* reason. text: the sentence, or empty for the reason's own. */
void qr_http_error_reason(qr_http_error_t *error, uint32_t reason, qr_bytes_t param, qr_bytes_t text, uint32_t retry_after_ms);
/* Sets the error of a body that jansson did not take, with its place. The negative code to return. */
struct json_error_t;
int qr_http_error_json(qr_http_error_t *error, const struct json_error_t *where);
/* {"error":{"message","type","param","code"}}, at most QR_HTTP_ERROR_BYTES_MAX. */
void qr_http_put_error(qr_http_buffer_t *buffer, const qr_http_error_t *error);

/* ---- requests --------------------------------------------------------------------------------------------------------------- */

typedef struct qr_http_request {
    bool chat, stream, include_usage, logprobs, token_ids;
    uint8_t kind; /* QR_INPUT_* */
    bool ignore_eos, seed_given;
    uint32_t max_tokens, top_k, priority;
    uint32_t temperature_bits, top_p_bits, min_p_bits;
    uint32_t stop_count, message_count;
    uint64_t seed, deadline_ms; /* deadline 0: the server's own */
    uint32_t *tokens;           /* [token_count] */
    size_t token_count;
    uint8_t *text; /* [text_bytes] */
    size_t text_bytes;
    uint32_t *roles, *lengths; /* [message_count] */
    uint8_t stop[QR_STOPS_MAX * QR_STOP_BYTES_MAX];
    uint32_t stop_lengths[QR_STOPS_MAX];
    uint8_t cache_salt[QR_SALT_BYTES_MAX];
    uint32_t cache_salt_bytes;
    bool continues; /* what `continuation` holds must begin it */
    uint8_t continuation[16];
} qr_http_request_t;

/* What the served model allows. */
typedef struct qr_http_limits {
    const char *model;       /* its name; "default" and none are it too */
    uint32_t vocabulary;     /* ids below this are valid */
    uint32_t context_tokens; /* 0: unknown here */
} qr_http_limits_t;

/* Parses a body of /v1/completions or /v1/chat/completions. 0, or a negative code with error filled; *request is then empty. */
int qr_http_request_parse(const char *body, size_t bytes, bool chat, const qr_http_limits_t *limits, qr_http_request_t *request,
                          qr_http_error_t *error);
void qr_http_request_done(qr_http_request_t *request);

#endif
