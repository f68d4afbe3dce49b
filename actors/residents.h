/* residents.h - nodes and pages together: which node names which page, who holds what, and what leaves first. Pure evaluator over
 * one block that holds the page table, the prefix tree and the orders of eviction.
 *
 * R1. node.pages[g] = p exactly when page(g, p).node = that node; a named page has rows (used or retained).
 * R2. A node with rows names a page in every whole-prefix group; a node without rows names none. rows > 0 under a parent means
 *     the parent has page_tokens rows.
 * R3. An unreferenced page with rows is retained if it is named, free otherwise.
 * R4. evictable of a whole-prefix group counts retained pages whose node nobody holds; of a windowed group, all retained pages.
 * R5. In the order of leaves: nodes with rows, without children or holders, whose pages of whole-prefix groups are retained (a
 *     page of a windowed group may still be a copy's source: it stays with who references it). In the order of a windowed group:
 *     its retained pages. */
#ifndef QR_RESIDENTS_H
#define QR_RESIDENTS_H

#include "actors/page_table.h"
#include "actors/prefix_tree.h"
#include "actors/residency.h"

typedef struct qr_residents {
    uint32_t group_count, page_tokens;
    uint64_t table_at, tree_at, leaves_at; /* offsets from this header */
    uint64_t windows_at[QR_GROUPS_MAX];    /* orders of windowed groups; 0 for whole-prefix groups */
    uint64_t evictions;                    /* pages evicted since the start */
} qr_residents_t;

uint64_t qr_residents_bytes(const qr_layout_t *layout);
/* Fills a zeroed block. */
void qr_residents_init(qr_residents_t *residents, const qr_layout_t *layout);

static inline qr_page_table_t *qr_residents_table(const qr_residents_t *r) { return (qr_page_table_t *)((uintptr_t)r + r->table_at); }
static inline qr_prefix_tree_t *qr_residents_tree(const qr_residents_t *r) { return (qr_prefix_tree_t *)((uintptr_t)r + r->tree_at); }
static inline qr_order_t *qr_residents_leaves(const qr_residents_t *r) { return (qr_order_t *)((uintptr_t)r + r->leaves_at); }
static inline qr_order_t *qr_residents_window(const qr_residents_t *r, uint32_t g)
{
    return (qr_order_t *)((uintptr_t)r + r->windows_at[g]);
}

/* One more holder of a node; its ancestors are held by the same holder (one call each). */
void qr_residents_hold(qr_residents_t *residents, uint32_t node);
/* One holder less. A node nobody holds any more keeps its rows as cache, or goes: without rows, or with `drop` if it has no
 * children. Deepest node first. Referenced pages of a dropped node become their holders' alone. */
void qr_residents_unhold(qr_residents_t *residents, uint32_t node, bool drop);
/* One reference more to a page with rows, or one less to any page that is not loading or fenced. */
void qr_residents_ref(qr_residents_t *residents, uint32_t group, uint32_t page);
void qr_residents_unref(qr_residents_t *residents, uint32_t group, uint32_t page);
/* The node names this used page instead of what it named in the group. */
void qr_residents_name(qr_residents_t *residents, uint32_t node, uint32_t group, uint32_t page);
/* The page loses its name; free at once if nobody references it. */
void qr_residents_unname(qr_residents_t *residents, uint32_t group, uint32_t page);
/* All that holds or names `from` goes over to `into`, which has equal tokens; whoever has more rows gives pages, rows and writer.
 * `from` has no children and is removed. */
void qr_residents_merge(qr_residents_t *residents, uint32_t from, uint32_t into);
/* Removes a node without holders or children; what it names is free, or stays with who still references it. */
void qr_residents_forget(qr_residents_t *residents, uint32_t node);
/* Frees the least valuable leaf with all it names; false if there is none. */
bool qr_residents_evict_leaf(qr_residents_t *residents);
/* Frees the least valuable retained page of a windowed group; its node stays. */
bool qr_residents_evict_page(qr_residents_t *residents, uint32_t group);
/* Asserts R1 to R5 and what the parts assert. */
void qr_residents_check(const qr_residents_t *residents);

#endif
