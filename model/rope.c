/* rope.c - frequencies without a math library: a root by Newton's iteration, then repeated division. */
#include "model/rope.h"

#include "base/mutant.h"

/* The n-th root of theta > 1. Newton for x^n = theta from above falls strictly until rounding stops it; the start is above the root
 * because (1 + a)^n >= 1 + n a. Hundreds of steps are normal for large theta: there is no cap. */
static double root(double theta, uint32_t n)
{
    double x = 1.0 + (theta - 1.0) / (double)n;
    for (uint32_t step = 0;; step++) {
        if (QR_MUTANT(404) && step == 20) return x;
        double power = 1.0; /* x^(n-1); may become infinite, then theta / power is 0 and x shrinks by (n-1)/n */
        for (uint32_t i = 1; i < n; i++) power = power * x;
        double next = (x * (double)(n - 1) + theta / power) / (double)n;
        if (!(next < x)) return x;
        x = next;
    }
}

void qr_rope_steps(double theta, double scale, uint32_t dim, uint64_t *ret_steps)
{
    const double turn = 0x1.921fb54442d18p+2; /* 2 pi */
    uint32_t pairs = dim / 2;
    qr_assert(theta > 1.0 && scale >= 1.0 && pairs >= 1 && dim % 2 == 0);
    double r = root(theta, pairs), frequency = 1.0;
    for (uint32_t i = 0; i < pairs; i++) {
        ret_steps[i] = (uint64_t)(frequency / scale / turn * 0x1p+64 + 0.5);
        frequency = frequency / r;
    }
}
