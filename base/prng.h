/* prng.h - seeded generators for actors and tests: splitmix64 (also a mixer of keys) and xoshiro256** (Blackman and Vigna, both
 * in the public domain). Never for tokens: those are drawn with philox.h. Never for secrets. */
#ifndef QR_PRNG_H
#define QR_PRNG_H

#include "base/base.h"

typedef struct qr_prng {
    uint64_t s[4];
} qr_prng_t;

/* The finaliser of splitmix64: a bijection that spreads every bit of x. */
static inline uint64_t qr_mix_u64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
/* Next number of the splitmix64 sequence in *state. */
static inline uint64_t qr_splitmix64(uint64_t *state) { return qr_mix_u64(*state += 0x9e3779b97f4a7c15u); }

/* Any seed is good, 0 included. */
static inline void qr_prng_init(qr_prng_t *prng, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++) prng->s[i] = qr_splitmix64(&seed);
}
static inline uint64_t qr_rotate_u64(uint64_t x, unsigned n) { return x << n | x >> (64 - n); }

static inline uint64_t qr_prng_next(qr_prng_t *prng)
{
    uint64_t *s = prng->s, result = qr_rotate_u64(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = qr_rotate_u64(s[3], 45);
    return result;
}
/* A number in [0, bound), bound > 0; every value within 2^-64 of equally likely for small bounds. */
static inline uint64_t qr_prng_below(qr_prng_t *prng, uint64_t bound)
{
    return (uint64_t)((unsigned __int128)qr_prng_next(prng) * bound >> 64);
}
/* A number in [least, most]. */
static inline uint64_t qr_prng_between(qr_prng_t *prng, uint64_t least, uint64_t most)
{
    return most - least == UINT64_MAX ? qr_prng_next(prng) : least + qr_prng_below(prng, most - least + 1);
}
/* True once in `n` calls on average. */
static inline bool qr_prng_one_in(qr_prng_t *prng, uint64_t n) { return qr_prng_below(prng, n) == 0; }

#endif
