/* prompt.h - the io actor that stands where http stands when there is no server: `quire generate` and `quire bench` give it a list
 * of asks, it puts them to the gateway, collects what comes back, and ends the node.
 *
 * The list and the results live in the asker's memory (main), named by given->prompt; the actor writes results only while the mesh
 * runs, main reads them after. */
#ifndef QR_PROMPT_H
#define QR_PROMPT_H

#include "actors/actor.h"

#include <stdio.h>

/* One request, as request_submit has it. Memory is the caller's and outlives the mesh. */
typedef struct qr_prompt_ask {
    uint8_t kind; /* QR_INPUT_TEXT, _TOKENS or _CHAT (then text is one user message, after `system` if that is not NULL) */
    const char *text;
    uint64_t text_bytes;
    const char *system; /* chat only; NULL = none */
    uint64_t system_bytes;
    const uint32_t *tokens; /* [token_count], kind TOKENS */
    uint32_t token_count;
    uint32_t max_tokens;             /* 0: the gateway's default */
    float temperature, top_p, min_p; /* top_p: 1 = all */
    uint32_t top_k;                  /* 0 = all */
    bool seed_given, ignore_eos, logprobs;
    bool keep_prompt; /* the result has the prompt's token ids; asks of one round must not share this */
    uint64_t seed;
    const char *const *stops; /* [stop_count] strings, at most QR_STOPS_MAX */
    uint32_t stop_count;
    const char *cache_salt; /* NULL = none; at most QR_SALT_BYTES_MAX bytes */
    uint32_t round;         /* asks of one round run together; the next round begins when all of it ended. Not decreasing */
} qr_prompt_ask_t;

/* What became of one ask. Buffers belong to the actor's allocation and are freed by qr_prompt_result_done. Times are microseconds since
 * the ask was sent. */
typedef struct qr_prompt_result {
    uint32_t finish; /* QR_FINISH_*; NONE = no answer came */
    uint32_t error;  /* QR_E_* of a refusal or an error */
    char *text;      /* [text_bytes], NUL behind it */
    uint64_t text_bytes;
    uint32_t *tokens;       /* [token_count] drawn */
    uint32_t *logprob_bits; /* [token_count] */
    uint64_t *token_us;     /* [token_count] when each came, since `asked_us` of this ask */
    uint32_t token_count;
    uint32_t *prompt_ids; /* [prompt_id_count] with keep_prompt */
    uint32_t prompt_id_count;
    char *refusal, *param; /* sentence and field of a refusal; NULL otherwise */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t seed, queue_us, prefill_us, decode_us;
    uint64_t asked_us; /* on the host's clock */
    uint64_t first_us, ended_us;
} qr_prompt_result_t;

/* What given->prompt points at. */
typedef struct qr_prompt_given {
    const qr_prompt_ask_t *asks; /* [ask_count] */
    qr_prompt_result_t *results; /* [ask_count] zeroed */
    uint32_t ask_count;
    bool drop_cache;      /* before every round */
    FILE *stream;         /* text is written here as it comes; NULL = not. Meant for one ask */
    uint32_t ready_ms;    /* most time to wait until the path to the executor answers; 0 = 20000 */
    uint32_t *ret_reason; /* NULL or: 0, or why nothing was asked (QR_E_*) */
} qr_prompt_given_t;

extern const qr_actor_class_t qr_prompt_class;

/* Frees what a result holds; zeroes it. */
void qr_prompt_result_done(qr_prompt_result_t *result);

#endif
