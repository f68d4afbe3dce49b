/* sampler.h - draws one token from raw logits, as sampling.md fixes it. Pure functions; no state between draws. */
#ifndef QR_SAMPLER_H
#define QR_SAMPLER_H

#include "base/base.h"

typedef struct qr_sampling {
    float temperature; /* 0 = greedy */
    float top_p;       /* 1 = off */
    float min_p;       /* 0 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;
} qr_sampling_t;

/* Scratch bytes for a vocabulary; the caller gives them aligned to 8. */
size_t qr_sampler_scratch_bytes(uint32_t vocabulary);
/* Draws for `position` (of the drawn token) and `choice` (index within n). logits: f32[vocabulary], finite. ret_logprob (may be
 * NULL): natural log of the raw softmax of the drawn token. Returns the token. */
uint32_t qr_sampler_draw(const qr_sampling_t *sampling, const float *logits, uint32_t vocabulary, uint32_t position, uint32_t choice,
                         void *scratch, float *ret_logprob);
/* The same with at most the instruction set QR_ISA_* (tests: every one draws the same). */
uint32_t qr_sampler_draw_as(uint32_t isa, const qr_sampling_t *sampling, const float *logits, uint32_t vocabulary, uint32_t position,
                            uint32_t choice, void *scratch, float *ret_logprob);

#endif
