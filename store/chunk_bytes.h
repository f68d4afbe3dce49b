/* chunk_bytes.h - XXH3-128 in pieces, for this room's own files: the digest that stands in a chunk's header. */
#ifndef QR_CHUNK_BYTES_H
#define QR_CHUNK_BYTES_H

#include "base/base.h"

typedef struct qr_chunk_fast qr_chunk_fast_t;

/* NULL without memory. */
qr_chunk_fast_t *qr_chunk_fast_new(void);
void qr_chunk_fast_add(qr_chunk_fast_t *fast, const void *bytes, size_t count);
/* The digest so far, canonical (big-endian). */
void qr_chunk_fast_end(const qr_chunk_fast_t *fast, uint8_t ret_digest[16]);
void qr_chunk_fast_destroy(qr_chunk_fast_t **fast);

#endif
