/* reference.h - the judge of values: plain double arithmetic from decoded weights, contiguous keys, library functions. It shares
 * nothing with the devices it judges but the decoding of formats, and says nothing about bits. */
#ifndef QR_REFERENCE_H
#define QR_REFERENCE_H

#include "kernels/device.h"

/* y[outputs] = W x. weight: row-major GGUF blocks [outputs][columns]. 0 or -QR_E_MEMORY. */
int qr_reference_product(uint32_t format, const void *weight, uint32_t outputs, uint32_t columns, const double *x, double *y);
/* y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; y may be x. */
void qr_reference_norm(const double *x, const float *weight, uint32_t n, double eps, double *y);
/* Rotates one head in place by position / scale at frequencies theta^(-2i/dim). pairing as kernel rope_append. */
void qr_reference_rope(double *head, uint32_t dim, uint32_t pairing, double position, double theta, double scale);
/* out[dim] = softmax(q . k[t] * scale) v[t] over `keys` rows, each `stride` values apart; zeros when there is none. 0 or -QR_E_MEMORY. */
int qr_reference_attention(const double *q, uint32_t dim, uint32_t keys, const double *k, const double *v, uint64_t stride, double scale,
                           double *out);
/* y[i] = gate / (1 + exp(-gate)) * up */
void qr_reference_gate(const double *gate, const double *up, uint32_t n, double *y);

#endif
