/* exp2n.h - the one exponential of the cpu device, in its scalar form (arithmetic 3). Largest relative error 7.7e-8. */
#ifndef QR_EXP2N_H
#define QR_EXP2N_H

#include <math.h>

#include "kernels/half.h"

#define QR_LOG2_E 0x1.715476p+0f /* log2(e), rounded to float */

/* 2^x for x <= 0: below -64, or not a number, +0. x - n is exact, |x - n| <= 1/2; n enters by the exponent's bits. */
static inline float qr_exp2n(float x)
{
    if (!(x >= (QR_MUTANT(78) ? -8.0f : -64.0f))) return 0.0f;
    float t = x + 12582912.0f, n = t - 12582912.0f, f = x - n;
    float p = 0x1.41fbbap-13f;
    p = fmaf(p, f, 0x1.5f3e54p-10f);
    p = fmaf(p, f, 0x1.3b2d4cp-7f);
    p = fmaf(p, f, 0x1.c6aee8p-5f);
    p = fmaf(p, f, 0x1.ebfbdcp-3f);
    p = fmaf(p, f, 0x1.62e43p-1f);
    p = fmaf(p, f, 1.0f);
    return qr_bits_float(qr_float_bits(p) + (qr_float_bits(t) << 23));
}

#endif
