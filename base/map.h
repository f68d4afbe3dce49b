/* map.h - a bounded hash map u64 -> u32 inside memory of its owner: no pointer, so it may lie in an actor's state block.
 *
 * MP1. The map is one block of qr_map_bytes(entries): this header, then the slots. It never grows; `entries` is its bound.
 * MP2. Linear probing; a removal moves later entries back, so there are no tombstones and look-ups do not decay.
 * MP3. There is no iteration: order would depend on hashes. Owners walk their own tables. */
#ifndef QR_MAP_H
#define QR_MAP_H

#include "base/base.h"

typedef struct qr_map {
    uint32_t entries;  /* most keys */
    uint32_t count;    /* keys now */
    uint32_t slots;    /* a power of two, at least entries * 4 / 3 */
    uint32_t reserved;
    uint64_t seed;
} qr_map_t;

/* Bytes of a map for `entries` keys, a multiple of 8. */
uint64_t qr_map_bytes(uint32_t entries);
/* Makes an empty map in memory of qr_map_bytes(entries), 8-byte aligned. The seed only places keys. */
void qr_map_init(qr_map_t *map, uint32_t entries, uint64_t seed);
/* Whether the key is there; its value in *ret_value (untouched if not; may be NULL). */
bool qr_map_get(const qr_map_t *map, uint64_t key, uint32_t *ret_value);
/* Inserts or replaces. false, and nothing changed, when the key is new and the map holds `entries` keys. */
bool qr_map_put(qr_map_t *map, uint64_t key, uint32_t value);
/* Removes the key; false if it was not there. */
bool qr_map_remove(qr_map_t *map, uint64_t key);
/* Asserts the map's structure: every key is reachable, the count is right. */
void qr_map_check(const qr_map_t *map);

#endif
