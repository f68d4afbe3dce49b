/* transfer_spill.h - the room that transfer keeps rows of preempted requests in: one area of memory, bounded, cut into slots of one page of
 * every group, so that nothing in it is ever fragmented. Part of transfer; no other actor touches it.
 *
 * SP1. Each slot is free or of exactly one spill; free + used = slots. A spill has ceil(rows / page_tokens) slots, taken together or
 *      not at all, in the order of its blocks.
 * SP2. A slot's digest is of the bytes that were put into it; what comes out is held against it. */
#ifndef QR_TRANSFER_SPILL_H
#define QR_TRANSFER_SPILL_H

#include "base/base.h"

#define QR_SPILL_NONE UINT32_MAX

typedef struct qr_spill_slot {
    uint32_t next; /* of the same spill, or of the free ones; QR_SPILL_NONE at the end */
    uint8_t digest[16];
} qr_spill_slot_t;

typedef struct qr_spill {
    uint64_t key; /* 0: none */
    uint32_t rows, first;
} qr_spill_t;

typedef struct qr_spill_room {
    uint8_t *memory; /* [slots][slot_bytes], 4,096-byte aligned; the system gives it as it is first used */
    uint64_t slot_bytes, mapped_bytes;
    uint32_t slots, used, free, spill_count, page_tokens;
    qr_spill_slot_t *table; /* [slots] */
    qr_spill_t *spills;     /* [spill_count] */
} qr_spill_room_t;

/* As many slots of slot_bytes as `bytes` hold, for at most spill_count spills. 0 (also where not one slot fits: then nothing is ever kept),
 * -QR_E_LIMIT: 2^31 slots or more; -QR_E_MEMORY. A room that is all zero may be closed. */
int qr_spill_room_open(qr_spill_room_t *room, uint64_t bytes, uint64_t slot_bytes, uint32_t page_tokens, uint32_t spill_count);
void qr_spill_room_close(qr_spill_room_t *room);
/* Takes room for `rows` rows. 0, QR_E_IN_USE: the key has a spill; QR_E_SHORTFALL: no room. */
uint32_t qr_spill_take(qr_spill_room_t *room, uint64_t key, uint32_t rows);
/* The spill of a key, NULL without one. */
const qr_spill_t *qr_spill_find(const qr_spill_room_t *room, uint64_t key);
/* Gives the room of a key back; false without one. */
bool qr_spill_free(qr_spill_room_t *room, uint64_t key);
uint8_t *qr_spill_slot_memory(const qr_spill_room_t *room, uint32_t slot);
/* SP1. */
void qr_spill_room_check(const qr_spill_room_t *room);

#endif
