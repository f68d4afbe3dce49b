/* sha256_bulk.c - the block function of SHA-256 (FIPS 180-4 §6.2.2) on the SHA extensions; chosen at run time.
 *
 * The instructions keep the state as ABEF and CDGH and do two rounds at a time; four rounds take one vector of four message words. */
#include "model/sha256_bulk.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4 §4.2.2). */
static const uint32_t round_words[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_add(uint32_t state[8], const uint8_t *bytes, size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203); /* words of the message are big-endian */
    __m128i dcba = _mm_loadu_si128((const __m128i *)&state[0]), hgfe = _mm_loadu_si128((const __m128i *)&state[4]);
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; blocks; blocks--, bytes += 64) {
        __m128i w[4], abef_start = abef, cdgh_start = cdgh;
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(bytes + 16 * i)), swap);
        for (int quad = 0; quad < 16; quad++) {
            __m128i words = w[0];
            __m128i sum = _mm_add_epi32(words, _mm_load_si128((const __m128i *)&round_words[4 * quad]));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            /* w[t] = s1(w[t-2]) + w[t-7] + s0(w[t-15]) + w[t-16]; past round 48 the words are not used */
            __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), _mm_alignr_epi8(w[3], w[2], 4));
            next = _mm_sha256msg2_epu32(next, w[3]);
            w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
        }
        abef = _mm_add_epi32(abef, abef_start);
        cdgh = _mm_add_epi32(cdgh, cdgh_start);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)&state[0], _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)&state[4], _mm_alignr_epi8(dchg, feba, 8));
}

static bool sha_present(void)
{
    uint32_t a, b = 0, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    return (b & 1u << 29) && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

void qr_sha256_add_bulk(qr_sha256_t *sha, const void *bytes, size_t count)
{
    const uint8_t *b = bytes;
    if (count < 256 || !sha_present()) {
        qr_sha256_add(sha, bytes, count);
        return;
    }
    size_t lead = (size_t)((64 - sha->bytes % 64) % 64); /* to a block's edge */
    qr_sha256_add(sha, b, lead);
    size_t blocks = (count - lead) / 64;
    blocks_add(sha->state, b + lead, blocks);
    sha->bytes += blocks * 64;
    qr_sha256_add(sha, b + lead + blocks * 64, count - lead - blocks * 64);
}
#else
void qr_sha256_add_bulk(qr_sha256_t *sha, const void *bytes, size_t count) { qr_sha256_add(sha, bytes, count); }
#endif
