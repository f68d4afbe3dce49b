/* oracle.h - the contiguous decoder: one sequence, keys and values in one array, sums in double. The judge of values for kernels, pages and
 * batches; it shares no arithmetic with kernels/ (own dequantisation, own rotation from the C library, own attention).
 * Slow, but usable for small models: weights are widened to fp32 once. Also reachable as `generate --contiguous`. */
#ifndef QR_ORACLE_H
#define QR_ORACLE_H

#include "model/model.h"

typedef struct qr_oracle qr_oracle_t;

/* Widens the weights of an opened model (qr_model_load is not needed). context: most positions. 0, -QR_E_MEMORY or an error of the file. */
int qr_oracle_new(const qr_model_t *model, uint32_t context, qr_oracle_t **ret_oracle, char *message, size_t message_bytes);
void qr_oracle_destroy(qr_oracle_t **oracle);
/* Back to position 0. */
void qr_oracle_reset(qr_oracle_t *oracle);
/* Appends tokens[count]; ret_logits (may be NULL): f32[vocabulary] of the last one. 0; -QR_E_CONTEXT when they do not fit, -QR_E_INVALID
 * for an id outside the matrix; nothing is appended then. */
int qr_oracle_step(qr_oracle_t *oracle, const uint32_t *tokens, uint32_t count, float *ret_logits);

#endif
