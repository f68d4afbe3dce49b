#include "actors/residency.h"
#include "base/mutant.h"

uint64_t qr_residency_value(uint32_t rows, uint32_t first_row, uint32_t hits)
{
    if (QR_MUTANT(123)) hits = 0;
    uint64_t row_cost = QR_RESIDENCY_ROW_COST + first_row / 16u;
    return rows * row_cost * (1u + (hits < QR_RESIDENCY_HITS_MAX ? hits : QR_RESIDENCY_HITS_MAX));
}

/* The block: header, entries[capacity], places[capacity] (position + 1; 0 = outside). */
static qr_order_entry_t *entries(const qr_order_t *order)
{
    return (qr_order_entry_t *)(uintptr_t)((const uint8_t *)order + sizeof(qr_order_t));
}
static uint32_t *places(const qr_order_t *order)
{
    return (uint32_t *)(uintptr_t)((const uint8_t *)order + sizeof(qr_order_t) + (uint64_t)order->capacity * sizeof(qr_order_entry_t));
}

uint64_t qr_order_bytes(uint32_t capacity)
{
    return qr_round_up(sizeof(qr_order_t) + (uint64_t)capacity * (sizeof(qr_order_entry_t) + sizeof(uint32_t)), 8);
}
void qr_order_init(qr_order_t *order, uint32_t capacity) { order->capacity = capacity; }
bool qr_order_has(const qr_order_t *order, uint32_t id)
{
    qr_assert(id < order->capacity);
    return places(order)[id] != 0;
}

static bool before(const qr_order_entry_t *a, const qr_order_entry_t *b) { return a->key != b->key ? a->key < b->key : a->turn < b->turn; }
static void put(qr_order_t *order, uint32_t at, const qr_order_entry_t *entry)
{
    entries(order)[at] = *entry;
    places(order)[entry->id] = at + 1;
}
/* Moves `entry` up from the hole at `at`. */
static void rise(qr_order_t *order, uint32_t at, qr_order_entry_t entry)
{
    while (at) {
        uint32_t up = (at - 1) / 2;
        if (!before(&entry, &entries(order)[up])) break;
        put(order, at, &entries(order)[up]);
        at = up;
    }
    put(order, at, &entry);
}
/* Moves `entry` down from the hole at `at`, then up if it has not moved. */
static void sink(qr_order_t *order, uint32_t at, qr_order_entry_t entry)
{
    uint32_t from = at;
    for (;;) {
        uint32_t down = 2 * at + 1;
        if (down >= order->count) break;
        if (down + 1 < order->count && before(&entries(order)[down + 1], &entries(order)[down])) down++;
        if (!before(&entries(order)[down], &entry)) break;
        put(order, at, &entries(order)[down]);
        at = down;
    }
    if (at == from)
        rise(order, at, entry);
    else
        put(order, at, &entry);
}

void qr_order_insert(qr_order_t *order, uint32_t id, uint64_t key)
{
    qr_assert(!qr_order_has(order, id));
    qr_order_entry_t entry = {.key = key, .turn = order->turn++, .id = id};
    rise(order, order->count++, entry);
}
void qr_order_remove(qr_order_t *order, uint32_t id)
{
    qr_assert(qr_order_has(order, id));
    uint32_t at = places(order)[id] - 1;
    qr_order_entry_t last = entries(order)[--order->count];
    places(order)[id] = 0;
    memset(&entries(order)[order->count], 0, sizeof(last));
    if (at != order->count) sink(order, at, last);
}
uint32_t qr_order_least(const qr_order_t *order) { return order->count ? entries(order)[0].id : QR_ORDER_NONE; }
uint32_t qr_order_take(qr_order_t *order)
{
    qr_assert(order->count);
    uint32_t id = entries(order)[0].id;
    if (entries(order)[0].key > order->level && !QR_MUTANT(122)) order->level = entries(order)[0].key;
    qr_order_remove(order, id);
    return id;
}
void qr_order_check(const qr_order_t *order)
{
    uint32_t inside = 0;
    for (uint32_t id = 0; id < order->capacity; id++) {
        uint32_t place = places(order)[id];
        if (!place) continue;
        inside++;
        qr_assert(place <= order->count && entries(order)[place - 1].id == id); /* Y1 */
        if (place > 1) qr_assert(!before(&entries(order)[place - 1], &entries(order)[place / 2 - 1]));
    }
    qr_assert(inside == order->count);
}
