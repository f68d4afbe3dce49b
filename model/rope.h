/* rope.h - the rotation's frequencies as integers. Private to model/. */
#ifndef QR_ROPE_H
#define QR_ROPE_H

#include "base/base.h"

/* ret_steps[dim / 2]: the frequency of pair i, theta^(-2i / dim) / scale radians per position, in units of 2^-64 turn (arithmetic.md 3).
 * Only + - * / in double, so that every machine gets the same bits. theta > 1, scale >= 1, dim even. */
void qr_rope_steps(double theta, double scale, uint32_t dim, uint64_t *ret_steps);

#endif
