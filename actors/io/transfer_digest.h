/* transfer_digest.h - SHA-256 of what transfer reads of one file, on a thread of its own: transfer reads and copies the pieces around the
 * one that is digested. Belongs to transfer's thread, which makes every call; one file at a time.
 *
 * TD1. Pieces are digested in the order they were added, each once, by one thread at a time: the helper, or the owner, who takes over when
 *      he would have to wait for a helper that has not begun. So a helper that gets no core costs nothing but its help.
 * TD2. A buffer is handed out again only after its piece was digested. At most QR_DIGEST_BUFFERS pieces are in memory, whatever the file
 *      says, and none is allocated.
 * TD3. qr_digest_end says true only when every piece that was added is in the digest. After qr_digest_drop nothing of the file is read or
 *      digested any more.
 * TD4. A helper without pieces sleeps in the kernel. */
#ifndef QR_TRANSFER_DIGEST_H
#define QR_TRANSFER_DIGEST_H

#include "base/base.h"

enum { QR_DIGEST_BUFFERS = 4 };

typedef struct qr_digest qr_digest_t;

/* Buffers of piece_bytes each, 4,096-byte aligned, and the helper, which is as urgent as the thread that calls. NULL without memory. */
qr_digest_t *qr_digest_new(size_t piece_bytes);
/* Accepts NULL. */
void qr_digest_destroy(qr_digest_t **digest);
/* The digest of another file begins; what is left of the one before is dropped. false without memory. */
bool qr_digest_begin(qr_digest_t *digest);
/* Digests bytes of the caller's before it returns. */
void qr_digest_head(qr_digest_t *digest, const void *bytes, size_t count);
/* A buffer for the next piece; the owner may read the one before until this is called. Waits for a piece where all buffers hold one. */
uint8_t *qr_digest_buffer(qr_digest_t *digest);
/* The first `count` bytes of that buffer come next. beside: by the helper; else before this returns. */
void qr_digest_add(qr_digest_t *digest, size_t count, bool beside);
/* Waits for all pieces. false: the digest could not be computed. */
bool qr_digest_end(qr_digest_t *digest, uint8_t ret_id[32]);
/* Forgets the file; waits for the piece that the helper has in hand. */
void qr_digest_drop(qr_digest_t *digest);
/* Processor time of the helper since this was asked last. */
uint64_t qr_digest_worked_us(qr_digest_t *digest);
/* Pieces added `beside`, of all files. */
uint64_t qr_digest_offered(qr_digest_t *digest);

#endif
