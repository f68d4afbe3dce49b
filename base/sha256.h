/* sha256.h - SHA-256 (FIPS 180-4) in plain C, incremental, for what actors compute themselves: chains, scopes, schema hash.
 * Pure. Bulk hashing of files is not this one's job. */
#ifndef QR_SHA256_H
#define QR_SHA256_H

#include "base/base.h"

typedef struct qr_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* taken in so far */
    uint8_t block[64]; /* the bytes % 64 that wait for a full block */
} qr_sha256_t;

void qr_sha256_init(qr_sha256_t *sha);
void qr_sha256_add(qr_sha256_t *sha, const void *bytes, size_t count);
/* count as 4 little-endian bytes, then the bytes: how salts enter a digest without running into each other. */
void qr_sha256_add_prefixed(qr_sha256_t *sha, const void *bytes, uint32_t count);
/* Writes the 32-byte digest; sha needs qr_sha256_init before its next use. */
void qr_sha256_end(qr_sha256_t *sha, uint8_t ret_digest[32]);
/* All three at once. */
void qr_sha256(const void *bytes, size_t count, uint8_t ret_digest[32]);

#endif
