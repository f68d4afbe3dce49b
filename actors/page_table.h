/* page_table.h - physical pages: one pool per retention group, a state, a generation and a count of references each. Pure
 * evaluator; knows nothing of tokens or routes.
 *
 *   free -> reserved -> (loading ->) used -> retained -> free        loading -> fenced -> free or reserved
 *
 * T1. counts[state] are the pages in that state; over all states they make the pool.
 * T2. Every return to free, or to a reservation, raises the generation; it is never 0.
 * T3. A free page has no references, no node and no charge, and is on its pool's list exactly once.
 * T4. idle + aside <= free pages: what is promised to routes and captures without being in use is always there. */
#ifndef QR_PAGE_TABLE_H
#define QR_PAGE_TABLE_H

#include "actors/given.h"

enum {
    QR_PAGE_FREE = 0,
    QR_PAGE_RESERVED = 1, /* a route's, without rows */
    QR_PAGE_LOADING = 2,  /* a transfer writes it */
    QR_PAGE_USED = 3,     /* has rows; referenced by routes, copies or leases */
    QR_PAGE_RETAINED = 4, /* has rows; unreferenced and named by a node */
    QR_PAGE_FENCED = 5,   /* leaving, but a transfer may still touch it */
    QR_PAGE_STATES = 6
};
#define QR_PAGE_NONE UINT32_MAX             /* no page, no node, no route */
#define QR_CHARGE_CAPTURES (UINT32_MAX - 1) /* `charge` of a page that leases pay for */

typedef struct qr_page {
    uint32_t generation;
    uint32_t node;   /* the node that names it, or QR_PAGE_NONE */
    uint32_t link;   /* next free page; next page of the same fence (qr_page_place) */
    uint32_t charge; /* windowed groups: route index, QR_CHARGE_CAPTURES or QR_PAGE_NONE */
    uint16_t refs;   /* routes + copy sources + leases */
    uint8_t state;
    uint8_t reserved;
} qr_page_t;
_Static_assert(sizeof(qr_page_t) == 20, "no padding");

typedef struct qr_pool {
    uint32_t pages;
    uint32_t first;     /* index of its page 0 in the table */
    uint32_t window;    /* 0 = whole prefix */
    uint32_t free_head; /* list of free pages, last in first out */
    uint32_t counts[QR_PAGE_STATES];
    uint32_t evictable; /* retained pages that eviction can reach now */
    uint32_t idle;      /* windowed: pages promised to routes, still on the free list */
    uint32_t aside;     /* windowed: pages kept for captures, still on the free list */
    uint32_t set_aside; /* of these at most so many are promised in all */
} qr_pool_t;
_Static_assert(sizeof(qr_pool_t) == 56, "no padding");

/* Header of a block of qr_page_table_bytes() bytes; the pages follow it. */
typedef struct qr_page_table {
    uint32_t group_count;
    uint32_t page_count;
    qr_pool_t pools[QR_GROUPS_MAX];
} qr_page_table_t;

uint64_t qr_page_table_bytes(const qr_layout_t *layout);
/* Fills a zeroed block: every page free, page 0 of each pool first in line. */
void qr_page_table_init(qr_page_table_t *table, const qr_layout_t *layout);

static inline qr_page_t *qr_page_at(const qr_page_table_t *table, uint32_t group, uint32_t page)
{
    return (qr_page_t *)((uintptr_t)table + sizeof(qr_page_table_t)) + (table->pools[group].first + page);
}
static inline uint64_t qr_page_handle(const qr_page_table_t *table, uint32_t group, uint32_t page)
{
    return qr_handle(page, qr_page_at(table, group, page)->generation);
}
/* A page of any group in one number, for links. */
static inline uint32_t qr_page_place(uint32_t group, uint32_t page) { return group << 28 | page; }
static inline uint32_t qr_place_group(uint32_t place) { return place >> 28; }
static inline uint32_t qr_place_page(uint32_t place) { return place & 0xfffffffu; }

/* Free pages promised to nobody. */
static inline uint32_t qr_pool_spare(const qr_pool_t *pool) { return pool->counts[QR_PAGE_FREE] - pool->idle - pool->aside; }

/* Takes a free page (there must be one): reserved, one reference. */
uint32_t qr_page_take(qr_page_table_t *table, uint32_t group);
/* One legal step of the picture above; to free also unlinks node, charge and references. */
void qr_page_move(qr_page_table_t *table, uint32_t group, uint32_t page, uint32_t state);
/* Asserts T1 to T4. */
void qr_page_table_check(const qr_page_table_t *table);

#endif
