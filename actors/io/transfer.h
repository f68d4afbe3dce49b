/* transfer.h - moves rows between chunk files, staging slots and page pools, and vouches for what it put into pages. io actor, on a host
 * thread of its own. Partners: restore_streamer (page_upload), checkpoint_writer (page_download), scheduler (page_spill,
 * page_unspill, spill_drop), page_manager (fence). Needs given->decoder with memory that the host reaches (cpu device); for files
 * given->staging and given->store, for the RAM tier given->ram; for spills params.over_commit and spill_bytes; given->activity if it should
 * step aside for batches. */
#ifndef QR_TRANSFER_H
#define QR_TRANSFER_H

#include "actors/actor.h"

enum {
    QR_TRANSFER_SLICE_US = 1000,         /* one piece of work */
    QR_TRANSFER_PIECE_BYTES = 128 << 10, /* read, digested and copied at once: lies in L2 */
    QR_TRANSFER_PAGES_MAX = 4096 / 8 + 2 /* pages of one chunk */
};

extern const qr_actor_class_t qr_transfer_class;

/* Tests: where block `block` of what was spilled under a key lies, so that it can be damaged; NULL without it. */
uint8_t *qr_transfer_spilled(const void *transfer, uint64_t key, uint32_t block);

/* Tests: pieces that were given to the digest beside the mover. */
uint64_t qr_transfer_offered(const void *transfer);

/* Tests: from now on this clock is asked for the time, and for how long was worked. NULL: the machine's. */
void qr_transfer_clock(void *transfer, uint64_t (*clock)(void));

#endif
