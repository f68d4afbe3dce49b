/* sha256_bulk.h - SHA-256 of tensors while they are packed: base's state, fed by the processor's SHA instructions where it has them. */
#ifndef QR_SHA256_BULK_H
#define QR_SHA256_BULK_H

#include "base/sha256.h"

/* As qr_sha256_add, faster for long runs. The digest is the same. */
void qr_sha256_add_bulk(qr_sha256_t *sha, const void *bytes, size_t count);

#endif
