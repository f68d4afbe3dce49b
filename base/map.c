#include "base/map.h"

#include "base/mutant.h"

#include "base/prng.h"

typedef struct {
    uint64_t key;
    uint32_t value;
    uint32_t used;
} slot_t;

static slot_t *slots_of(qr_map_t *map) { return (slot_t *)(void *)(map + 1); }
static const slot_t *slots_in(const qr_map_t *map) { return (const slot_t *)(const void *)(map + 1); }

static uint32_t slot_count(uint32_t entries)
{
    uint64_t need = qr_div_up((uint64_t)entries * 4, 3) + 1, slots = 4;
    while (slots < need) slots *= 2;
    qr_assert(slots <= UINT32_MAX);
    return (uint32_t)slots;
}

uint64_t qr_map_bytes(uint32_t entries) { return sizeof(qr_map_t) + (uint64_t)slot_count(entries) * sizeof(slot_t); }

void qr_map_init(qr_map_t *map, uint32_t entries, uint64_t seed)
{
    memset(map, 0, qr_map_bytes(entries));
    map->entries = entries;
    map->slots = slot_count(entries);
    map->seed = seed;
}

/* Where a key would like to be. */
static uint32_t home(const qr_map_t *map, uint64_t key) { return (uint32_t)qr_mix_u64(key ^ map->seed) & (map->slots - 1); }

/* The key's slot, or the free slot that ends its probe. */
static uint32_t probe(const qr_map_t *map, uint64_t key)
{
    const slot_t *slots = slots_in(map);
    uint32_t at = home(map, key);
    while (slots[at].used && slots[at].key != key) at = (at + 1) & (map->slots - 1);
    return at;
}

bool qr_map_get(const qr_map_t *map, uint64_t key, uint32_t *ret_value)
{
    const slot_t *slot = slots_in(map) + probe(map, key);
    if (!slot->used) return false;
    if (ret_value) *ret_value = slot->value;
    return true;
}

bool qr_map_put(qr_map_t *map, uint64_t key, uint32_t value)
{
    slot_t *slot = slots_of(map) + probe(map, key);
    if (!slot->used) {
        if (map->count == map->entries) return false;
        map->count++;
    }
    *slot = (slot_t){key, value, 1};
    return true;
}

bool qr_map_remove(qr_map_t *map, uint64_t key)
{
    slot_t *slots = slots_of(map);
    uint32_t hole = probe(map, key), mask = map->slots - 1;
    if (!slots[hole].used) return false;
    for (uint32_t at = (hole + 1) & mask; slots[at].used; at = (at + 1) & mask) {
        /* An entry may fill the hole if its home does not lie behind the hole on its way here. */
        if (((at - home(map, slots[at].key)) & mask) < ((at - hole) & mask) || QR_MUTANT(17)) continue;
        slots[hole] = slots[at];
        hole = at;
    }
    slots[hole] = (slot_t){0};
    map->count--;
    return true;
}

void qr_map_check(const qr_map_t *map)
{
    const slot_t *slots = slots_in(map);
    uint32_t used = 0;
    for (uint32_t at = 0; at < map->slots; at++) {
        if (!slots[at].used) continue;
        used++;
        qr_assert(probe(map, slots[at].key) == at);
    }
    qr_assert(used == map->count);
    qr_assert(map->count <= map->entries);
}
