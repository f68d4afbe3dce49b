/* common.c - kernels with one form for every instruction set: those that move bytes, and the rotation table, whose plain double
 * arithmetic is exact enough to be written once (arithmetic 3) and runs once per row and batch. */
#include "kernels/cpu/cpu.h"

void qr_cpu_embed(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    const uint32_t *tokens = (const uint32_t *)args->b[0];
    uint32_t width = args->s[1], vocabulary = args->s[2], format = args->s[3];
    float *x = (float *)args->b[2];
    for (uint32_t r = from; r < to; r++) {
        qr_assert(tokens[r] < vocabulary);
        qr_packed_row_decode(format, width, args->b[1], tokens[r], x + (uint64_t)r * width);
    }
}

/* cos and sin of rest * 2pi/2^64, |rest| <= 2^61: Taylor to x^16 and x^15, highest term first, plain double operations. */
static void turn(int64_t rest, double *ret_cos, double *ret_sin)
{
    static const double unit = 6.283185307179586476925286766559 / 18446744073709551616.0;
    static const double s[8] = {1.0,          -1.0 / 6,        1.0 / 120,          -1.0 / 5040,
                                1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
    static const double c[9] = {
        1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    double x = (double)rest * unit, x2 = x * x, sine = s[7], cosine = c[8];
    for (int i = 6; i >= 0; i--) sine = sine * x2 + s[i];
    for (int i = 7; i >= 0; i--) cosine = cosine * x2 + c[i];
    *ret_sin = sine * x;
    *ret_cos = cosine;
}

void qr_cpu_rope_table(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    const uint32_t *positions = (const uint32_t *)args->b[0];
    const uint64_t *steps = (const uint64_t *)args->b[1];
    float *table = (float *)args->b[2];
    uint32_t pairs = args->s[1];
    for (uint32_t r = from; r < to; r++)
        for (uint32_t i = 0; i < pairs; i++) {
            uint64_t phase = positions[r] * steps[i], quadrant = (phase + (1ull << 61)) >> 62;
            double c, s, t;
            turn((int64_t)(phase - (quadrant << 62)), &c, &s);
            if (quadrant & 1) {
                t = c;
                c = -s;
                s = t;
            }
            if (quadrant & 2) {
                c = -c;
                s = -s;
            }
            table[((uint64_t)r * pairs + i) * 2] = (float)c;
            table[((uint64_t)r * pairs + i) * 2 + 1] = (float)s;
        }
}

void qr_cpu_gather(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    const uint32_t *indexes = (const uint32_t *)args->b[1];
    uint64_t bytes = args->s[1] * 4ull;
    for (uint32_t r = from; r < to; r++) memcpy(args->b[2] + r * bytes, args->b[0] + indexes[r] * bytes, bytes);
}

void qr_cpu_page_copy(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    const uint32_t *sources = (const uint32_t *)args->b[1], *targets = (const uint32_t *)args->b[2], *counts = (const uint32_t *)args->b[3];
    uint64_t row_bytes = args->s[2] * 2ull, page_bytes = row_bytes * args->s[1];
    for (uint32_t i = from; i < to; i++) {
        qr_assert(counts[i] <= args->s[1]);
        memmove(args->b[0] + targets[i] * page_bytes, args->b[0] + sources[i] * page_bytes, counts[i] * row_bytes);
    }
}
