/* half.h - fp16 in integers: what the register of the host says about rounding or denormals does not matter here.
 *
 * H1. float to half rounds to nearest even, keeps subnormals, overflows to infinity, keeps NaN a NaN (arithmetic 4).
 * H2. half to float is exact. */
#ifndef QR_HALF_H
#define QR_HALF_H

#include "base/base.h"
#include "base/mutant.h"

static inline uint32_t qr_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float qr_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* IEEE: exponent and fraction both zero-extended; infinities and NaN included. */
static inline bool qr_float_finite(float value) { return (qr_float_bits(value) & 0x7fffffffu) < 0x7f800000u; }

static inline uint16_t qr_float_to_half(float value)
{
    uint32_t bits = qr_float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (QR_MUTANT(60)) return (uint16_t)(sign | (magnitude < 0x38800000u ? 0 : (magnitude - 0x38000000u) >> 13));
    if (magnitude >= 0x38800000u) { /* normal: rebias by 112, round the 13 bits that go */
        uint32_t rebiased = magnitude - 0x38000000u;
        return (uint16_t)(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1)) >> 13);
    }
    if (magnitude < 0x33000000u) return (uint16_t)sign; /* below half of the smallest subnormal */
    uint32_t exponent = magnitude >> 23, fraction = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - exponent, kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
}

static inline float qr_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 31) return qr_bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return qr_bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    if (!fraction) return qr_bits_float(sign);
    uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21; /* moves the first bit to place 10 */
    return qr_bits_float(sign | (113 - shift) << 23 | (fraction << shift & 0x3ffu) << 13);
}

#endif
