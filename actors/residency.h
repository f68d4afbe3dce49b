/* residency.h - what resident rows are worth, in integers, and the order in which unheld ones leave. Pure evaluator.
 *
 * The order is a heap over small ids. A key is level + value when last touched; the level rises to each key taken, so what is
 * not touched ages without a clock. Equal keys leave in the order they entered.
 * Y1. An id is in the heap at most once; places[id] says where. The heap property holds over (key, turn). */
#ifndef QR_RESIDENCY_H
#define QR_RESIDENCY_H

#include "base/base.h"

enum { QR_RESIDENCY_ROW_COST = 1024, QR_RESIDENCY_HITS_MAX = 15 };
#define QR_ORDER_NONE UINT32_MAX

/* Value of `rows` rows whose first is at position `first_row`, matched `hits` times since they were computed: what is lost,
 * their recompute cost (a row's products plus attention over what is before it), times the reuse seen so far. Without a durable
 * copy min(recompute, reload) is recompute. Never 0 for rows > 0. Less than 2^40. */
uint64_t qr_residency_value(uint32_t rows, uint32_t first_row, uint32_t hits);

typedef struct qr_order_entry {
    uint64_t key;
    uint64_t turn; /* of entry; breaks ties */
    uint32_t id;
    uint32_t reserved;
} qr_order_entry_t;

/* Header of a block of qr_order_bytes() bytes; the arrays follow it. */
typedef struct qr_order {
    uint64_t level;
    uint64_t turn;
    uint32_t count, capacity;
} qr_order_t;

uint64_t qr_order_bytes(uint32_t capacity);
/* Prepares a zeroed block for ids 0 .. capacity - 1. */
void qr_order_init(qr_order_t *order, uint32_t capacity);
bool qr_order_has(const qr_order_t *order, uint32_t id);
/* id must not be inside. */
void qr_order_insert(qr_order_t *order, uint32_t id, uint64_t key);
/* id must be inside. */
void qr_order_remove(qr_order_t *order, uint32_t id);
/* The id with the least key, or QR_ORDER_NONE. */
uint32_t qr_order_least(const qr_order_t *order);
/* Removes and returns the least; the level rises to its key. The order must not be empty. */
uint32_t qr_order_take(qr_order_t *order);
void qr_order_check(const qr_order_t *order);

#endif
