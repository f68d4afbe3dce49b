/* arena.h - a bump allocator over memory of its owner: what lives until the next reset. Pure.
 *
 * AR1. Every piece is 8-byte aligned.
 * AR2. used <= capacity; a piece that does not fit is NULL and takes nothing. */
#ifndef QR_ARENA_H
#define QR_ARENA_H

#include "base/base.h"

typedef struct qr_arena {
    uint8_t *memory; /* [capacity] 8-byte aligned */
    uint64_t capacity, used;
} qr_arena_t;

static inline void qr_arena_init(qr_arena_t *arena, void *memory, uint64_t capacity)
{
    qr_assert(((uintptr_t)memory & 7u) == 0);
    *arena = (qr_arena_t){memory, capacity & ~(uint64_t)7, 0};
}
static inline void qr_arena_reset(qr_arena_t *arena) { arena->used = 0; }
/* bytes of memory, not zeroed; NULL if they do not fit. */
static inline void *qr_arena_take(qr_arena_t *arena, uint64_t bytes)
{
    uint64_t room = arena->capacity - arena->used;
    if (bytes > room) return NULL;
    void *piece = arena->memory + arena->used;
    arena->used += qr_round_up(bytes, 8);
    return piece;
}

#endif
