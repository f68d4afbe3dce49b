/* generate.h - what `quire generate` prints: one result of the prompt actor as text or as one JSON object. */
#ifndef QR_GENERATE_H
#define QR_GENERATE_H

#include "actors/io/prompt.h"

/* "stop", "length", "cancelled", "error" or "refused"; "none" when no answer came. Static memory. */
const char *qr_finish_name(uint32_t finish);

/* Whether there is an answer to print (also one that was cut off by an error after it began). */
bool qr_generate_answered(const qr_prompt_result_t *result);

/* Whether it was refused for what was asked, so that asking again is no use. */
bool qr_generate_is_bad_input(const qr_prompt_result_t *result);

/* Writes one line that says why there is no answer, or why it ends early ("field: sentence"). */
void qr_generate_explain(const qr_prompt_result_t *result, FILE *out);

/* The object {text, prompt_tokens, completion_tokens, finish_reason, cached_tokens, timings {load_ms, ttft_ms, prefill_tokens_per_s,
 * decode_tokens_per_s}} and a newline. Needs keep_prompt in the ask. Invalid UTF-8 never occurs in text. Rates are 0 when nothing was
 * computed. 0 or -QR_E_MEMORY, -QR_E_IO. */
int qr_generate_print_json(const qr_prompt_result_t *result, uint64_t load_us, FILE *out);

/* Rows of the prompt that were computed, per second until the first token. */
double qr_generate_prefill_rate(const qr_prompt_result_t *result);
/* Tokens after the first, per second between the first and the last. */
double qr_generate_decode_rate(const qr_prompt_result_t *result);

#endif
