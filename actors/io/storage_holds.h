/* storage_holds.h - which chunks must not leave: the chains that somebody (a pinned continuation) holds, and by how many.
 *
 * HO1. A hold is an id and the chain hashes of its chunks. The same id again changes nothing. A chain is held while any hold names it.
 * HO2. At most `most` different chains are held; a hold that would pass it is refused whole and changes nothing. */
#ifndef QR_STORAGE_HOLDS_H
#define QR_STORAGE_HOLDS_H

#include "base/base.h"

enum { QR_HOLD_ID_BYTES = 16 };

typedef struct qr_hold {
    uint8_t id[QR_HOLD_ID_BYTES];
    uint32_t count, *nodes; /* [count], of the table below */
    struct qr_hold *next;
} qr_hold_t;

typedef struct qr_held_chain {
    uint8_t chain[32];
    uint32_t holds, next; /* holds 0: free; next in its bucket, or in the list of free ones */
} qr_held_chain_t;

typedef struct qr_holds {
    uint32_t most, count, bucket_count, free; /* chains */
    uint32_t *buckets;                        /* [bucket_count] */
    qr_held_chain_t *nodes;                   /* [most] */
    qr_hold_t *holds;                         /* newest first */
} qr_holds_t;

/* 0 or -QR_E_MEMORY. */
int qr_holds_init(qr_holds_t *holds, uint32_t most);
void qr_holds_done(qr_holds_t *holds);
bool qr_holds_has(const qr_holds_t *holds, const uint8_t chain[32]);
/* chains: 32 bytes each, different ones. 0; -QR_E_NO_SPACE (HO2); -QR_E_MEMORY. */
int qr_holds_add(qr_holds_t *holds, const uint8_t id[QR_HOLD_ID_BYTES], const uint8_t *chains, uint32_t count);
/* Ends a hold; `freed` hears of every chain that nobody holds any more. An id that is not there changes nothing. */
void qr_holds_end(qr_holds_t *holds, const uint8_t id[QR_HOLD_ID_BYTES], void (*freed)(void *context, const uint8_t chain[32]),
                  void *context);
void qr_holds_check(const qr_holds_t *holds);

#endif
