/* sha256.c - FIPS 180-4 §5.3.3 and §6.2, word for word. */
#include "base/sha256.h"

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4 §4.2.2). */
static const uint32_t round_constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u, 0xd807aa98u, 0x12835b01u,
    0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu,
    0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u,
    0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u, 0x1e376c08u,
    0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u, 0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u,
    0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

static uint32_t rotate(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }
static uint32_t load_big(const uint8_t *at) { return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]; }
static void store_big(uint8_t *at, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++) at[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64], v[8];
    for (unsigned t = 0; t < 16; t++) w[t] = load_big(block + 4 * t);
    for (unsigned t = 16; t < 64; t++) {
        uint32_t small0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t small1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + small0 + w[t - 7] + small1;
    }
    memcpy(v, state, sizeof v);
    for (unsigned t = 0; t < 64; t++) {
        uint32_t big1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t one = v[7] + big1 + choose + round_constants[t] + w[t];
        uint32_t big0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + one;
        v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = one + big0 + majority;
    }
    for (unsigned i = 0; i < 8; i++) state[i] += v[i];
}

void qr_sha256_init(qr_sha256_t *sha)
{
    /* Fractional parts of the square roots of the first eight primes. */
    static const uint32_t start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memset(sha, 0, sizeof *sha);
    memcpy(sha->state, start, sizeof start);
}

void qr_sha256_add(qr_sha256_t *sha, const void *bytes, size_t count)
{
    const uint8_t *from = bytes;
    size_t held = sha->bytes % 64;
    sha->bytes += count;
    if (held) {
        size_t take = count < 64 - held ? count : 64 - held;
        qr_copy(sha->block + held, from, take);
        if (held + take < 64) return;
        compress(sha->state, sha->block);
        from += take;
        count -= take;
    }
    for (; count >= 64; from += 64, count -= 64) compress(sha->state, from);
    qr_copy(sha->block, from, count);
}

void qr_sha256_add_prefixed(qr_sha256_t *sha, const void *bytes, uint32_t count)
{
    uint8_t length[4] = {(uint8_t)count, (uint8_t)(count >> 8), (uint8_t)(count >> 16), (uint8_t)(count >> 24)};
    qr_sha256_add(sha, length, sizeof length);
    qr_sha256_add(sha, bytes, count);
}

void qr_sha256_end(qr_sha256_t *sha, uint8_t ret_digest[32])
{
    uint64_t bits = sha->bytes * 8;
    size_t held = sha->bytes % 64;
    sha->block[held++] = 0x80;
    if (held > 56) {
        memset(sha->block + held, 0, 64 - held);
        compress(sha->state, sha->block);
        held = 0;
    }
    memset(sha->block + held, 0, 56 - held);
    store_big(sha->block + 56, (uint32_t)(bits >> 32));
    store_big(sha->block + 60, (uint32_t)bits);
    compress(sha->state, sha->block);
    for (unsigned i = 0; i < 8; i++) store_big(ret_digest + 4 * i, sha->state[i]);
}

void qr_sha256(const void *bytes, size_t count, uint8_t ret_digest[32])
{
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    qr_sha256_add(&sha, bytes, count);
    qr_sha256_end(&sha, ret_digest);
}
