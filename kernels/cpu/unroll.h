/* unroll.h - full unrolling of short constant loops, in each compiler's own words: with the other's words the tiles stay in memory
 * and run at a quarter of their rate (the rate rows of tests/bench/kernels.c guard it). */
#ifndef QR_UNROLL_H
#define QR_UNROLL_H

/* QR_UNROLL (int i = 0; i < 4; i++) body - a loop that must be unrolled; QR_ROLLED - one that must not. */
#if defined(__clang__)
#define QR_UNROLL(...) _Pragma("clang loop unroll(full)") for (__VA_ARGS__)
#define QR_ROLLED(...) _Pragma("clang loop unroll(disable)") for (__VA_ARGS__)
#else
#define QR_UNROLL(...) _Pragma("GCC unroll 32") for (__VA_ARGS__)
#define QR_ROLLED(...) _Pragma("GCC unroll 1") for (__VA_ARGS__)
#endif
#define QR_INLINE static inline __attribute__((always_inline))

#endif
