/* bench.h - what `quire bench` asks and prints: prefill, decode at a short and a long context, several streams; medians over repeats. */
#ifndef QR_BENCH_H
#define QR_BENCH_H

#include "actors/io/prompt.h"

typedef struct qr_bench_options {
    uint32_t prefill_tokens; /* 0 = 512 */
    uint32_t decode_tokens;  /* tokens drawn per request; 0 = 64 */
    uint32_t context_short;  /* prompt of the first decode row and of the streams; 0 = 16 */
    uint32_t context_long;   /* prompt of the second decode row; 0 = 2048 */
    uint32_t streams;        /* 0 = 8 */
    uint32_t repeats;        /* measured ones; one more goes before. 0 = 5 */
} qr_bench_options_t;

typedef struct qr_bench qr_bench_t;

/* Prepares asks and results. Prompts are seeded random ids of the vocabulary without special ones; default sizes are cut to what the
 * context, the lanes and the requests allow, sizes that were asked for are not. given->vocabulary, layout and params are read, now only.
 * 0; -QR_E_INVALID with a sentence in message that names the option; -QR_E_MEMORY. */
int qr_bench_new(const qr_bench_options_t *options, const qr_given_t *given, qr_bench_t **ret_bench, char *message, size_t message_bytes);
/* What given->prompt must point at while the mesh runs. */
const qr_prompt_given_t *qr_bench_given(const qr_bench_t *bench);
/* Writes the rows as a table or one JSON object. 0; -QR_E_CANCELLED when a request did not finish or the streams never ran together (said
 * on stderr); -QR_E_IO. */
int qr_bench_print(const qr_bench_t *bench, bool json, uint64_t load_us, FILE *out);
/* Frees bench and results. Accepts NULL, leaves NULL. */
void qr_bench_destroy(qr_bench_t **bench);

#endif
