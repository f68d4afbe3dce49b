/* philox.h - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11): a counter-based
 * generator, so a resumed request draws what it would have drawn. Pure. */
#ifndef QR_PHILOX_H
#define QR_PHILOX_H

#include "base/base.h"

#include "base/mutant.h"

/* Ten rounds over a 128-bit counter under a 64-bit key; words in the order of the published vectors. */
static inline void qr_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_words[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (unsigned round = 0; round < 10 - QR_MUTANT(18); round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u; /* golden ratio */
        k1 += 0xbb67ae85u; /* sqrt(3) - 1 */
    }
    ret_words[0] = c0, ret_words[1] = c1, ret_words[2] = c2, ret_words[3] = c3;
}

/* The 64 bits of one draw (sampling.md step 6): key = seed, counter = (position, choice), all low word first. */
static inline uint64_t qr_philox_draw(uint64_t seed, uint64_t position, uint64_t choice)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)choice, (uint32_t)(choice >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    qr_philox4x32(counter, key, words);
    return (uint64_t)words[1] << 32 | words[0];
}

#endif
