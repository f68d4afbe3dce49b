/* clock.h - the one place that reads time. Monotonic microseconds of this process; never compared between machines. */
#ifndef QR_CLOCK_H
#define QR_CLOCK_H

#include "base/base.h"

#include <time.h>

static inline uint64_t qr_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline uint64_t qr_clock_us(void) { return qr_clock_ns() / 1000u; }

#endif
