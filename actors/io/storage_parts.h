/* storage_parts.h - which parts storage has: (chain hash, group) -> the chunk file that holds it, what is known of the file and what it is
 * worth.
 *
 * PA1. A part is READY (may be found and leased) or LEAVING (withdrawn; its file goes with its last lease). Both are found by chain and by
 *      name; a part that left is in no list.
 * PA2. What a part is worth: key = level + gain when last touched; gain = (1 + times leased, at most 16) x 2^17 - first position - 1, so of
 * two parts touched alike the later one of a chain leaves first: without its ancestors it could not be restored. The level rises to each
 * key that leaves, so what is not touched ages without a clock. */
#ifndef QR_STORAGE_PARTS_H
#define QR_STORAGE_PARTS_H

#include "store/chunk_files.h"

enum { QR_PART_NONE = 0xffffffffu, QR_PART_HITS_MAX = 15 };
typedef enum qr_part_state { QR_PART_FREE, QR_PART_READY, QR_PART_LEAVING } qr_part_state_t;
/* What was heard of it since the start. UNHEARD: nothing; who leases it has it from the catalog, which makes it PUBLISHED. UNPUBLISHED:
 * somebody asked to write it or was told that it may leave, and no publish since is known; a lease may come of an older state of the catalog. */
typedef enum qr_part_word { QR_PART_UNHEARD, QR_PART_UNPUBLISHED, QR_PART_PUBLISHED } qr_part_word_t;

typedef struct qr_part {
    uint8_t chain[32];
    qr_chunk_name_t name;
    uint64_t bytes;
    uint64_t key; /* PA2 */
    uint32_t group, start, hits;
    uint32_t next_chain, next_name; /* of their buckets; next_chain of the free list too */
    qr_part_state_t state;
    bool trusted; /* the file's SHA-256 was seen to be its name while it was `trust` */
    qr_part_word_t word;
    uint64_t told; /* who was told last that it may leave, until another one asks to write it; 0: nobody */
    bool kept;     /* another one asked to write it: nobody drops it who was not told since */
    qr_chunk_trust_t trust;
} qr_part_t;

typedef struct qr_parts {
    uint32_t capacity, count, bucket_count, free;
    uint64_t level;
    uint32_t *chain_buckets, *name_buckets; /* [bucket_count] */
    qr_part_t *parts;                       /* [capacity] */
} qr_parts_t;

/* 0 or -QR_E_MEMORY. */
int qr_parts_init(qr_parts_t *parts, uint32_t capacity);
void qr_parts_done(qr_parts_t *parts);
/* The place of a part, or QR_PART_NONE. */
uint32_t qr_parts_find(const qr_parts_t *parts, const uint8_t chain[32], uint32_t group);
uint32_t qr_parts_find_name(const qr_parts_t *parts, const qr_chunk_name_t *name);
/* Adds a READY part that is not there yet, with its key of a first touch; QR_PART_NONE when the table is full. */
uint32_t qr_parts_add(qr_parts_t *parts, const qr_chunk_header_t *header, const qr_chunk_name_t *name, uint64_t bytes);
void qr_parts_remove(qr_parts_t *parts, uint32_t place);
/* Of PA2, for a part that was leased so many times. */
uint64_t qr_parts_gain(uint32_t hits, uint32_t start);
/* It was leased: its new key. */
uint64_t qr_parts_touch(qr_parts_t *parts, uint32_t place);
/* It leaves to make room: the level rises. */
void qr_parts_leave(qr_parts_t *parts, uint32_t place);
void qr_parts_check(const qr_parts_t *parts);

#endif
