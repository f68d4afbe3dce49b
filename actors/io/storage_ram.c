/* storage_ram.c - the RAM tier (storage_ram.h). */
#include "actors/io/storage_ram.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/mutant.h"

#include <stdlib.h>

int qr_ram_init(qr_ram_t *ram, const qr_staging_t *memory)
{
    *ram = (qr_ram_t){.memory = memory};
    if (!memory) return 0;
    ram->readers = calloc(memory->config.slots, sizeof *ram->readers);
    int status = ram->readers ? qr_parts_init(&ram->parts, memory->config.slots) : -QR_E_MEMORY;
    if (status) qr_ram_done(ram);
    return status;
}

void qr_ram_done(qr_ram_t *ram)
{
    if (ram->memory) qr_parts_done(&ram->parts);
    free(ram->readers);
    *ram = (qr_ram_t){0};
}

static uint32_t find(const qr_ram_t *ram, const uint8_t chain[32], uint32_t group)
{
    return ram->memory ? qr_parts_find(&ram->parts, chain, group) : QR_RAM_NONE;
}

static bool kept(const qr_ram_t *ram, uint32_t slot) { return slot != QR_RAM_NONE && ram->parts.parts[slot].state == QR_PART_READY; }

bool qr_ram_has(const qr_ram_t *ram, const uint8_t chain[32], uint32_t group) { return kept(ram, find(ram, chain, group)); }

uint32_t qr_ram_lease(qr_ram_t *ram, const uint8_t chain[32], uint32_t group)
{
    uint32_t slot = find(ram, chain, group);
    if (!ram->memory) return QR_RAM_NONE;
    if (!kept(ram, slot) && !(QR_MUTANT(761) && slot != QR_RAM_NONE)) {
        ram->misses++;
        return QR_RAM_NONE;
    }
    ram->hits++;
    ram->readers[slot]++;
    (void)qr_parts_touch(&ram->parts, slot);
    return slot;
}

/* The least valuable slot that nobody reads or fills. */
static uint32_t victim(const qr_ram_t *ram)
{
    uint32_t least = QR_RAM_NONE;
    for (uint32_t i = 0; i < ram->parts.capacity; i++) {
        const qr_part_t *part = &ram->parts.parts[i];
        if (part->state != QR_PART_READY || (ram->readers[i] && !QR_MUTANT(762))) continue;
        if (least == QR_RAM_NONE || part->key < ram->parts.parts[least].key) least = i;
    }
    return least;
}

/* Room for a part of this gain (RA3). */
static bool make_room(qr_ram_t *ram, uint64_t gain)
{
    if (ram->parts.count < ram->parts.capacity) return true;
    uint32_t least = victim(ram);
    if (least == QR_RAM_NONE) return false;
    uint64_t key = ram->parts.parts[least].key, mine = ram->parts.level + gain;
    if (key > mine && !QR_MUTANT(763)) {
        if (!QR_MUTANT(764)) ram->parts.level += (key - mine) / 8 + 1;
        return false;
    }
    qr_parts_leave(&ram->parts, least);
    qr_parts_remove(&ram->parts, least);
    ram->readers[least] = 0;
    ram->evictions++;
    return true;
}

uint32_t qr_ram_reserve(qr_ram_t *ram, const uint8_t chain[32], uint32_t group, uint32_t start, uint32_t hits)
{
    qr_chunk_header_t header = {.start = start, .group = (uint16_t)group};
    qr_chunk_name_t name = {0};
    if (!ram->memory || find(ram, chain, group) != QR_RAM_NONE) return QR_RAM_NONE;
    if (!make_room(ram, qr_parts_gain(hits, start))) {
        ram->refused++;
        return QR_RAM_NONE;
    }
    memcpy(header.chain, chain, 32);
    memcpy(name.id, chain, 32);
    name.id[31] ^= (uint8_t)group;
    uint32_t slot = qr_parts_add(&ram->parts, &header, &name, ram->memory->slot_bytes);
    qr_part_t *part = &ram->parts.parts[slot];
    part->state = QR_PART_LEAVING;
    part->hits = qr_min_u32(hits, QR_PART_HITS_MAX);
    part->key = ram->parts.level + qr_parts_gain(hits, start);
    ram->readers[slot] = 1;
    return slot;
}

void qr_ram_keep(qr_ram_t *ram, uint32_t slot)
{
    ram->parts.parts[slot].state = QR_PART_READY;
    ram->readers[slot] = 0;
    ram->entered++;
}

void qr_ram_release(qr_ram_t *ram, uint32_t slot)
{
    ram->readers[slot]--;
    if (ram->readers[slot] == 0 && ram->parts.parts[slot].state == QR_PART_LEAVING) qr_parts_remove(&ram->parts, slot);
}

/* A reader keeps its memory until it lets go. */
static void leave(qr_ram_t *ram, uint32_t slot)
{
    ram->parts.parts[slot].state = QR_PART_LEAVING;
    if (ram->readers[slot] == 0) qr_parts_remove(&ram->parts, slot);
}

void qr_ram_damage(qr_ram_t *ram, uint32_t slot)
{
    ram->damaged++;
    if (!QR_MUTANT(765) && ram->parts.parts[slot].state == QR_PART_READY) leave(ram, slot);
}

void qr_ram_forget(qr_ram_t *ram, const uint8_t chain[32], uint32_t group)
{
    uint32_t slot = find(ram, chain, group);
    if (kept(ram, slot) && !QR_MUTANT(766)) leave(ram, slot);
}

bool qr_ram_touch(qr_ram_t *ram, uint32_t parts)
{
    uint64_t most = ram->memory ? qr_min_u64(parts, ram->parts.capacity) * ram->memory->slot_bytes : 0;
    if (ram->touched >= most) return false;
    uint64_t bytes = qr_min_u64(most - ram->touched, QR_RAM_TOUCH_BYTES);
    bool given = qr_staging_touch(ram->memory, ram->touched, bytes);
    ram->touched = given ? ram->touched + bytes : UINT64_MAX;
    return given;
}

uint64_t qr_ram_bytes(const qr_ram_t *ram) { return ram->memory ? ram->parts.count * ram->memory->slot_bytes : 0; }
uint64_t qr_ram_bytes_bound(const qr_ram_t *ram) { return ram->memory ? ram->parts.capacity * ram->memory->slot_bytes : 0; }

void qr_ram_check(const qr_ram_t *ram, uint32_t leases, uint32_t fills)
{
    uint32_t readers = 0;
    if (!ram->memory) return;
    qr_parts_check(&ram->parts);
    qr_assert(ram->parts.count <= ram->parts.capacity);
    for (uint32_t i = 0; i < ram->parts.capacity; i++) {
        const qr_part_t *part = &ram->parts.parts[i];
        readers += ram->readers[i];
        if (part->state == QR_PART_FREE) qr_assert(ram->readers[i] == 0);
        if (part->state == QR_PART_LEAVING) qr_assert(ram->readers[i] > 0);
        if (part->state == QR_PART_READY) qr_assert(memcmp(ram->memory->headers[i].chain, part->chain, 32) == 0); /* RA2 */
    }
    qr_assert(readers == leases + fills);
}
