/* transfer_spill.c - slots of memory for rows of preempted requests (transfer_spill.h). */
#include "actors/io/transfer_spill.h"

#include "base/error.h"
#include "base/mutant.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20 };

int qr_spill_room_open(qr_spill_room_t *room, uint64_t bytes, uint64_t slot_bytes, uint32_t page_tokens, uint32_t spill_count)
{
    uint64_t slots = slot_bytes ? bytes / slot_bytes : 0;
    *room = (qr_spill_room_t){.slot_bytes = slot_bytes, .free = QR_SPILL_NONE, .page_tokens = page_tokens, .spill_count = spill_count};
    if (slots > INT32_MAX) return -QR_E_LIMIT;
    if (slots == 0) return 0;
    room->mapped_bytes = qr_round_up(slots * slot_bytes, HUGE_BYTES);
    void *memory = mmap(NULL, room->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    room->memory = memory == MAP_FAILED ? NULL : memory;
    room->table = calloc((size_t)slots, sizeof *room->table);
    room->spills = calloc(spill_count, sizeof *room->spills);
    if (!room->memory || !room->table || !room->spills) {
        qr_spill_room_close(room);
        return -QR_E_MEMORY;
    }
    (void)madvise(memory, room->mapped_bytes, MADV_HUGEPAGE); /* a wish */
    room->slots = (uint32_t)slots;
    for (uint32_t i = 0; i < room->slots; i++) room->table[i].next = i + 1 < room->slots ? i + 1 : QR_SPILL_NONE;
    room->free = 0;
    return 0;
}

void qr_spill_room_close(qr_spill_room_t *room)
{
    if (room->memory) (void)munmap(room->memory, room->mapped_bytes);
    free(room->table);
    free(room->spills);
    *room = (qr_spill_room_t){.free = QR_SPILL_NONE};
}

static qr_spill_t *spill_at(const qr_spill_room_t *room, uint64_t key)
{
    for (uint32_t i = 0; room->slots && i < room->spill_count; i++)
        if (room->spills[i].key == key) return &room->spills[i];
    return NULL;
}

const qr_spill_t *qr_spill_find(const qr_spill_room_t *room, uint64_t key) { return key ? spill_at(room, key) : NULL; }

uint32_t qr_spill_take(qr_spill_room_t *room, uint64_t key, uint32_t rows)
{
    uint32_t need = (uint32_t)qr_div_up(rows, room->page_tokens);
    if (qr_spill_find(room, key)) return QR_E_IN_USE;
    qr_spill_t *spill = spill_at(room, 0);
    if (!spill || need == 0 || need > room->slots - room->used) return QR_E_SHORTFALL;
    *spill = (qr_spill_t){.key = key, .rows = rows, .first = room->free};
    uint32_t last = room->free;
    for (uint32_t i = 1; i < need; i++) last = room->table[last].next;
    room->free = room->table[last].next;
    room->table[last].next = QR_SPILL_NONE;
    room->used += need;
    return 0;
}

bool qr_spill_free(qr_spill_room_t *room, uint64_t key)
{
    qr_spill_t *spill = key ? spill_at(room, key) : NULL;
    if (!spill) return false;
    uint32_t last = spill->first, count = 1;
    for (; room->table[last].next != QR_SPILL_NONE; count++) last = room->table[last].next;
    room->table[last].next = room->free;
    room->free = spill->first;
    room->used -= count;
    *spill = (qr_spill_t){0};
    return true;
}

uint8_t *qr_spill_slot_memory(const qr_spill_room_t *room, uint32_t slot)
{
    qr_assert(slot < room->slots);
    return room->memory + slot * room->slot_bytes;
}

void qr_spill_room_check(const qr_spill_room_t *room)
{
    uint32_t used = 0, unused = 0;
    for (uint32_t i = 0; room->slots && i < room->spill_count; i++) {
        const qr_spill_t *spill = &room->spills[i];
        uint32_t count = 0;
        for (uint32_t s = spill->key ? spill->first : QR_SPILL_NONE; s != QR_SPILL_NONE; s = room->table[s].next, count++)
            qr_assert(s < room->slots && count < room->slots);
        qr_assert(!spill->key || count == qr_div_up(spill->rows, room->page_tokens));
        used += count;
    }
    for (uint32_t s = room->slots ? room->free : QR_SPILL_NONE; s != QR_SPILL_NONE; s = room->table[s].next, unused++)
        qr_assert(unused < room->slots);
    qr_assert(used == room->used && used + unused == room->slots);
}
