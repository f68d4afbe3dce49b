#include "actors/residents.h"
#include "base/mutant.h"

/* ---- layout of the block ----------------------------------------------------------------------------------------- */

static uint64_t place(qr_residents_t *r, const qr_layout_t *layout)
{
    uint32_t nodes = layout->groups[0].pages; /* every node has a page of group 0 to itself: named, or its promiser's */
    uint64_t at = sizeof(qr_residents_t);
    r->table_at = at;
    at += qr_page_table_bytes(layout);
    r->tree_at = at;
    at += qr_prefix_tree_bytes(nodes, layout->page_tokens);
    r->leaves_at = at;
    at += qr_order_bytes(nodes);
    for (uint32_t g = 0; g < layout->group_count; g++) {
        if (!layout->groups[g].window) continue;
        r->windows_at[g] = at;
        at += qr_order_bytes(layout->groups[g].pages);
    }
    return at;
}
uint64_t qr_residents_bytes(const qr_layout_t *layout)
{
    qr_residents_t r = {0};
    return place(&r, layout);
}
void qr_residents_init(qr_residents_t *r, const qr_layout_t *layout)
{
    qr_assert(layout->groups[0].window == 0);
    r->group_count = layout->group_count;
    r->page_tokens = layout->page_tokens;
    place(r, layout);
    qr_page_table_init(qr_residents_table(r), layout);
    qr_prefix_tree_init(qr_residents_tree(r), layout->groups[0].pages, layout->page_tokens);
    qr_order_init(qr_residents_leaves(r), layout->groups[0].pages);
    for (uint32_t g = 0; g < layout->group_count; g++)
        if (layout->groups[g].window) qr_order_init(qr_residents_window(r, g), layout->groups[g].pages);
}

static qr_node_t *node_at(const qr_residents_t *r, uint32_t n) { return qr_node_at(qr_residents_tree(r), n); }
static qr_page_t *page_at(const qr_residents_t *r, uint32_t g, uint32_t p) { return qr_page_at(qr_residents_table(r), g, p); }
static qr_pool_t *pool_at(const qr_residents_t *r, uint32_t g) { return &qr_residents_table(r)->pools[g]; }

/* ---- what can leave ---------------------------------------------------------------------------------------------- */

static bool evictable(const qr_residents_t *r, uint32_t g, const qr_page_t *page)
{
    return page->state == QR_PAGE_RETAINED && (pool_at(r, g)->window || !node_at(r, page->node)->holders);
}
static bool leaf_may_leave(const qr_residents_t *r, const qr_node_t *node)
{
    if (node->children || (node->holders && !QR_MUTANT(113)) || !node->rows) return false;
    for (uint32_t g = 0; g < r->group_count; g++)
        if (!pool_at(r, g)->window && page_at(r, g, node->pages[g])->state != QR_PAGE_RETAINED) return false;
    return true;
}
static uint64_t value_of(const qr_residents_t *r, const qr_node_t *node)
{
    return qr_residency_value(node->rows, node->block * r->page_tokens, node->hits);
}
/* Puts a node into the order of leaves, or takes it out, as R5 says. */
static void put_in_order(qr_residents_t *r, uint32_t n)
{
    qr_order_t *leaves = qr_residents_leaves(r);
    const qr_node_t *node = node_at(r, n);
    bool wanted = leaf_may_leave(r, node);
    if (wanted == qr_order_has(leaves, n)) return;
    if (wanted)
        qr_order_insert(leaves, n, node->key);
    else
        qr_order_remove(leaves, n);
}
/* A step of a page that has or had rows, with the counts and orders of R4 and R5. The page still has its node. */
static void move(qr_residents_t *r, uint32_t g, uint32_t p, uint32_t state)
{
    qr_page_t *page = page_at(r, g, p);
    qr_pool_t *pool = pool_at(r, g);
    uint32_t n = page->node;
    if (evictable(r, g, page)) {
        pool->evictable--;
        if (pool->window) qr_order_remove(qr_residents_window(r, g), p);
    }
    qr_page_move(qr_residents_table(r), g, p, state);
    if (evictable(r, g, page)) {
        pool->evictable++;
        qr_order_t *order = pool->window ? qr_residents_window(r, g) : NULL;
        if (order) qr_order_insert(order, p, order->level + value_of(r, node_at(r, n)));
    }
    if (n != QR_NODE_NONE && state != QR_PAGE_FREE) put_in_order(r, n);
}

/* ---- holders and references -------------------------------------------------------------------------------------- */

/* Adds by (1 or -1 as unsigned) to `evictable` for what a node names in whole-prefix groups. */
static void count_named(qr_residents_t *r, const qr_node_t *node, uint32_t by)
{
    for (uint32_t g = 0; g < r->group_count; g++)
        if (!pool_at(r, g)->window && node->pages[g] != QR_PAGE_NONE && page_at(r, g, node->pages[g])->state == QR_PAGE_RETAINED)
            pool_at(r, g)->evictable += by;
}
void qr_residents_hold(qr_residents_t *r, uint32_t n)
{
    qr_node_t *node = node_at(r, n);
    if (!node->holders++) {
        count_named(r, node, UINT32_MAX);
        if (!node->children) put_in_order(r, n);
    }
}
void qr_residents_forget(qr_residents_t *r, uint32_t n)
{
    qr_order_t *leaves = qr_residents_leaves(r);
    qr_node_t *node = node_at(r, n);
    if (qr_order_has(leaves, n)) qr_order_remove(leaves, n);
    for (uint32_t g = 0; g < r->group_count; g++)
        if (node->pages[g] != QR_PAGE_NONE) qr_residents_unname(r, g, node->pages[g]);
    uint32_t parent = qr_prefix_tree_remove(qr_residents_tree(r), n);
    if (!(parent & QR_NODE_ROOT)) put_in_order(r, parent);
}
void qr_residents_unhold(qr_residents_t *r, uint32_t n, bool drop)
{
    qr_node_t *node = node_at(r, n);
    qr_assert(node->holders);
    if (--node->holders) return;
    count_named(r, node, 1);
    if (!node->rows || (drop && !node->children)) {
        qr_residents_forget(r, n);
        return;
    }
    node->writer = QR_NODE_NONE;
    node->key = qr_residents_leaves(r)->level + value_of(r, node);
    if (node->children) return;
    qr_prefix_tree_cut(qr_residents_tree(r), n, node->rows);
    put_in_order(r, n);
}
void qr_residents_ref(qr_residents_t *r, uint32_t g, uint32_t p)
{
    qr_page_t *page = page_at(r, g, p);
    qr_assert(page->state == QR_PAGE_USED || page->state == QR_PAGE_RETAINED);
    if (page->state == QR_PAGE_RETAINED) move(r, g, p, QR_PAGE_USED);
    page->refs++;
    qr_assert(page->refs);
}
void qr_residents_unref(qr_residents_t *r, uint32_t g, uint32_t p)
{
    qr_page_t *page = page_at(r, g, p);
    qr_assert(page->refs && (page->state == QR_PAGE_USED || page->state == QR_PAGE_RESERVED));
    if (--page->refs) return;
    page->charge = QR_PAGE_NONE;
    if (page->node == QR_NODE_NONE)
        qr_page_move(qr_residents_table(r), g, p, QR_PAGE_FREE);
    else
        move(r, g, p, QR_PAGE_RETAINED);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

void qr_residents_name(qr_residents_t *r, uint32_t n, uint32_t g, uint32_t p)
{
    qr_node_t *node = node_at(r, n);
    qr_page_t *page = page_at(r, g, p);
    if (node->pages[g] == p) return;
    qr_assert(page->node == QR_NODE_NONE && page->state == QR_PAGE_USED);
    if (node->pages[g] != QR_PAGE_NONE) qr_residents_unname(r, g, node->pages[g]);
    node->pages[g] = p;
    page->node = n;
}
void qr_residents_unname(qr_residents_t *r, uint32_t g, uint32_t p)
{
    qr_page_t *page = page_at(r, g, p);
    uint32_t n = page->node;
    if (page->state == QR_PAGE_RETAINED)
        move(r, g, p, QR_PAGE_FREE);
    else
        page->node = QR_NODE_NONE;
    node_at(r, n)->pages[g] = QR_PAGE_NONE;
}
void qr_residents_merge(qr_residents_t *r, uint32_t from, uint32_t into)
{
    qr_node_t *leaf = node_at(r, from), *node = node_at(r, into);
    bool better = leaf->rows > node->rows;
    qr_assert(from != into && leaf->parent == node->parent && leaf->holders && !leaf->children);
    for (uint32_t i = leaf->holders; i; i--) qr_residents_hold(r, into);
    for (uint32_t g = 0; g < r->group_count; g++) {
        uint32_t p = leaf->pages[g];
        if (better && p == QR_PAGE_NONE && node->pages[g] != QR_PAGE_NONE) qr_residents_unname(r, g, node->pages[g]);
        if (p == QR_PAGE_NONE) continue;
        qr_residents_unname(r, g, p);
        if (better) qr_residents_name(r, into, g, p);
    }
    if (better) {
        node->rows = leaf->rows;
        node->writer = leaf->writer;
    }
    leaf->holders = 0;
    leaf->rows = 0;
    qr_residents_forget(r, from);
}

/* ---- eviction ---------------------------------------------------------------------------------------------------- */

bool qr_residents_evict_leaf(qr_residents_t *r)
{
    qr_order_t *leaves = qr_residents_leaves(r);
    if (!leaves->count) return false;
    uint32_t n = qr_order_take(leaves);
    for (uint32_t g = 0; g < r->group_count; g++) r->evictions += node_at(r, n)->pages[g] != QR_PAGE_NONE;
    qr_residents_forget(r, n);
    return true;
}
bool qr_residents_evict_page(qr_residents_t *r, uint32_t g)
{
    qr_order_t *order = qr_residents_window(r, g);
    uint32_t p = qr_order_least(order);
    if (p == QR_ORDER_NONE) return false;
    qr_order_take(order);
    qr_order_insert(order, p, 0); /* back for a moment: freeing takes it out as it takes out every other */
    uint32_t n = page_at(r, g, p)->node;
    qr_residents_unname(r, g, p);
    put_in_order(r, n);
    r->evictions++;
    return true;
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

static void check_node(const qr_residents_t *r, uint32_t n)
{
    const qr_node_t *node = node_at(r, n);
    for (uint32_t g = 0; g < r->group_count; g++) {
        uint32_t p = node->pages[g];
        if (p == QR_PAGE_NONE) {
            qr_assert(!node->rows || pool_at(r, g)->window); /* R2 */
            continue;
        }
        const qr_page_t *page = page_at(r, g, p);
        qr_assert(node->rows && page->node == n && (page->state == QR_PAGE_USED || page->state == QR_PAGE_RETAINED)); /* R1, R2 */
    }
    if (node->rows && !(node->parent & QR_NODE_ROOT)) qr_assert(node_at(r, node->parent)->rows == r->page_tokens); /* R2 */
    if (!node->holders) qr_assert(node->rows == node->token_count && node->writer == QR_NODE_NONE);
    qr_assert(qr_order_has(qr_residents_leaves(r), n) == leaf_may_leave(r, node)); /* R5 */
    /* A copy's source keeps its ancestors from leaving: they are held, or `evictable` would promise what eviction cannot reach. */
    if (!node->holders && page_at(r, 0, node->pages[0])->state != QR_PAGE_RETAINED)
        qr_assert((node->parent & QR_NODE_ROOT) || node_at(r, node->parent)->holders);
}
void qr_residents_check(const qr_residents_t *r)
{
    qr_page_table_check(qr_residents_table(r));
    qr_prefix_tree_check(qr_residents_tree(r));
    qr_order_check(qr_residents_leaves(r));
    for (uint32_t n = 0; n < qr_residents_tree(r)->capacity; n++)
        if (node_at(r, n)->token_count)
            check_node(r, n);
        else
            qr_assert(!qr_order_has(qr_residents_leaves(r), n));
    for (uint32_t g = 0; g < r->group_count; g++) {
        uint32_t found = 0;
        const qr_pool_t *pool = pool_at(r, g);
        if (pool->window) qr_order_check(qr_residents_window(r, g));
        for (uint32_t p = 0; p < pool->pages; p++) {
            const qr_page_t *page = page_at(r, g, p);
            if (page->node != QR_NODE_NONE) qr_assert(node_at(r, page->node)->pages[g] == p); /* R1 */
            if (page->state == QR_PAGE_USED || page->state == QR_PAGE_RESERVED || page->state == QR_PAGE_LOADING) qr_assert(page->refs);
            if (page->state == QR_PAGE_RETAINED) qr_assert(!page->refs && page->node != QR_NODE_NONE); /* R3 */
            found += evictable(r, g, page);
            if (pool->window) qr_assert(qr_order_has(qr_residents_window(r, g), p) == (page->state == QR_PAGE_RETAINED)); /* R5 */
        }
        qr_assert(found == pool->evictable); /* R4 */
    }
}
