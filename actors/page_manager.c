/* page_manager.c - owns the pages of one device: pools, states, generations, the prefix tree by token, routes, copies at a fork,
 * loads, fences and leases. Nobody else frees a page, and none is freed because of time.
 *
 *   scheduler -- pages_reserve -->  me        -- pages_granted | pages_wait | pages_refused --> scheduler
 *   scheduler -- pages_more -->     me        -- pages_added --> scheduler      (over-commit: the next tranche of a route)
 *   scheduler -- route_pages --> me           -- route_pages_named --> scheduler   (where the rows of a route lie, before it is released)
 *   scheduler -- rows_committed --> me        -- window_pages (new pages of windowed groups) --> scheduler
 *   scheduler -- pages_load, load_ended --> me -- pages_loading, load_closed --> scheduler
 *   scheduler -- route_release --> me         -- route_released --> scheduler
 *   me -- fence --> transfer                  transfer -- fenced --> me
 *   any holder -- pages_pin, pages_unpin --> me;  admin -- cache_drop, metrics_read --> me
 *   me -- capture --> checkpoint_writer       checkpoint_writer -- captured --> me       (only on a node with a store)
 *
 * A reserve is planned in one handler against the state as it is: match, what the match pins, what is short, what must leave. The
 * check half writes nothing but its own scratch; the commit half cannot fail because the check half counted.
 *
 * I1. A route walks nodes walk[0 .. walked) from the root down and uses pages [first, end) of each group; whole-prefix groups
 *     have first 0 and every page to rows_max. Its rows are in its pages: page of block j has min(page_tokens, rows - j *
 *     page_tokens) of them.
 * I2. Per group after every message: free + set aside + reserved + loading + used + retained + fenced = pool (idle pages are
 *     reserved ones that are still on the free list).
 * I3. References of a page = routes that use it + copy sources + leases. Holders of a node = routes and leases whose walk passes.
 * I4. Only whole pages of nodes with page_tokens rows are shared in place; a page with fewer rows has one writer, its route.
 * I5. A copy's sources are held until the route has committed rows beyond its boundary; until then its rows are whole pages.
 * I6. A page of a windowed group that is referenced is charged to exactly one of its holders: a route, or the captures. A route's
 *     charges and its idle pages make its reservation (one more while it copies), so a charge can always change hands.
 * I7. The writer of a node is an open route that walks it; a node has rows or a writer that promised them.
 * I8. A load covers whole blocks from the route's rows on; pages are loading or have rows, never both. While a load is open or
 *     fenced, the route commits nothing else. Loads and fences open together are at most QR_FENCES_MAX.
 * I9. A load beside a pending copy reaches beyond the copied rows and leaves the source held: whichever happens is right.
 * I10. Windowed groups load what their window holds: a load ends within every group's pages, so a long one goes in steps.
 * I11. A match that is short of pages falls back to whole pages before it is refused: alone on the device, every request that
 *      can ever fit is admitted.
 * I12. Every chunk whose last row was computed here is offered for capture once; while params.captures offers are open, further ones are
 *      skipped and counted (who captures a later chunk of the chain captures what it continues). */
#include "actors/page_manager.h"

#include "actors/note.h"
#include "actors/residents.h"
#include "base/error.h"
#include "base/mutant.h"

#define NONE UINT32_MAX
enum { ROUTE_FREE = 0, ROUTE_OPEN = 1, ROUTE_LOADING = 2, ROUTE_FENCING = 3 };

/* Blocks [first, end) of one group have a page; limit is the route's reservation, idle what of it is not in use. */
typedef struct window {
    uint32_t first, end, limit, idle;
} window_t;

typedef struct route {
    uint64_t request_id;
    uint32_t attempt, generation, state, link;
    uint32_t rows;      /* committed rows, whole pages until the copy's batch is committed */
    uint32_t boundary;  /* rows that stood at grant, copies included */
    uint32_t rows_max;  /* most it may ever hold */
    uint32_t tokens;    /* known tokens: prompt and what was committed since */
    uint32_t walked;    /* nodes of its walk */
    uint32_t copy_rows; /* 0 = no copy pending */
    uint32_t load_end;  /* while loading or fencing: its load's end in rows */
    uint32_t fence;     /* while fencing */
    uint32_t copy_pages[QR_GROUPS_MAX];
    window_t windows[QR_GROUPS_MAX];
} route_t;
_Static_assert(sizeof(route_t) == 8 + 12 * 4 + 16 + 64, "no padding");

typedef struct fence {
    uint64_t deadline_us; /* QR_NEVER_US once it has been complained about */
    uint32_t generation, open;
    uint32_t route; /* whose reservation the pages return to, or NONE: they become free */
    uint32_t pages; /* list by link: place of the first */
} fence_t;
_Static_assert(sizeof(fence_t) == 24, "no padding");

typedef struct lease {
    uint64_t holder_key, holder, epoch;
    uint32_t generation, open;
    uint32_t node; /* deepest of its walk */
    uint32_t reserved;
    uint32_t first[QR_GROUPS_MAX], count[QR_GROUPS_MAX]; /* blocks leased per group */
} lease_t;
_Static_assert(sizeof(lease_t) == 72, "no padding");

typedef struct page_manager {
    uint64_t address, epoch;
    uint64_t routes_at, walks_at, pages_at, leases_at, lease_pages_at, fences_at, scratch_at, residents_at;
    uint64_t drainer, drain_by_us; /* 0 = not draining */
    uint64_t copies_total, captures_asked, captures_skipped;
    uint64_t tokens_at; /* scratch: ids of one chain */
    uint32_t group_count, page_tokens, blocks_max, route_capacity, lease_blocks, scratch_count;
    uint32_t chunk_tokens; /* 0: nothing is captured here */
    uint32_t captures_open, captures_max, unused;
    uint32_t free_route, routes_open;
    uint32_t loads_open; /* routes loading + fences open */
    uint32_t draining;
    uint32_t leased[QR_GROUPS_MAX]; /* windowed groups: pages of all leases */
} page_manager_t;

typedef struct call {
    page_manager_t *self;
    const qr_given_t *given;
    const qr_message_t *message;
    qr_outbox_t *outbox;
} call_t;

/* ---- where things are -------------------------------------------------------------------------------------------- */

static uintptr_t at(const page_manager_t *s, uint64_t offset) { return (uintptr_t)s + offset; }
static route_t *route_at(const page_manager_t *s, uint32_t r) { return (route_t *)at(s, s->routes_at) + r; }
static lease_t *lease_at(const page_manager_t *s, uint32_t l) { return (lease_t *)at(s, s->leases_at) + l; }
static fence_t *fence_at(const page_manager_t *s, uint32_t f) { return (fence_t *)at(s, s->fences_at) + f; }
/* [blocks_max] nodes a route walks. Row route_capacity is the planner's scratch. */
static uint32_t *walk_of(const page_manager_t *s, uint32_t r) { return (uint32_t *)at(s, s->walks_at) + (uint64_t)r * s->blocks_max; }
/* [blocks_max] pages a route uses in a group, by block. */
static uint32_t *pages_of(const page_manager_t *s, uint32_t r, uint32_t g)
{
    return (uint32_t *)at(s, s->pages_at) + ((uint64_t)r * s->group_count + g) * s->blocks_max;
}
static uint32_t *lease_pages_of(const page_manager_t *s, uint32_t l, uint32_t g)
{
    return (uint32_t *)at(s, s->lease_pages_at) + ((uint64_t)l * s->group_count + g) * s->lease_blocks;
}
/* Columns under construction: handles, routes, then two of numbers, each [scratch_count]. */
static uint64_t *scratch_handles(const page_manager_t *s) { return (uint64_t *)at(s, s->scratch_at); }
static uint64_t *scratch_routes(const page_manager_t *s) { return scratch_handles(s) + s->scratch_count; }
static uint32_t *scratch_groups(const page_manager_t *s) { return (uint32_t *)(scratch_routes(s) + s->scratch_count); }
static uint32_t *scratch_blocks(const page_manager_t *s) { return scratch_groups(s) + s->scratch_count; }

static qr_residents_t *residents(const page_manager_t *s) { return (qr_residents_t *)at(s, s->residents_at); }
static qr_page_table_t *table(const page_manager_t *s) { return qr_residents_table(residents(s)); }
static qr_prefix_tree_t *tree(const page_manager_t *s) { return qr_residents_tree(residents(s)); }
static qr_pool_t *pool_at(const page_manager_t *s, uint32_t g) { return &table(s)->pools[g]; }
static qr_page_t *page_at(const page_manager_t *s, uint32_t g, uint32_t p) { return qr_page_at(table(s), g, p); }
static qr_node_t *node_at(const page_manager_t *s, uint32_t n) { return qr_node_at(tree(s), n); }
static uint32_t index_of(const page_manager_t *s, const route_t *route) { return (uint32_t)(route - route_at(s, 0)); }
static uint64_t handle_of(const page_manager_t *s, const route_t *route) { return qr_handle(index_of(s, route), route->generation); }

/* The open route of a handle, or NULL. */
static route_t *route_find(const page_manager_t *s, uint64_t handle)
{
    uint32_t r = qr_handle_index(handle);
    if (r >= s->route_capacity) return NULL;
    route_t *route = route_at(s, r);
    if (route->state == ROUTE_FREE) return NULL;
    return route->generation == qr_handle_generation(handle) || QR_MUTANT(103) ? route : NULL;
}
static bool is_open(const route_t *route) { return route->state != ROUTE_FREE; }
static uint32_t raised(uint32_t generation) { return generation == UINT32_MAX ? 1 : generation + 1; }

/* First row the token at position n attends in a group (n when nothing is before it). */
static uint32_t first_attended(uint32_t window, uint32_t n)
{
    if (QR_MUTANT(115) && window) window--;
    return window && n > window - 1 ? n - (window - 1) : 0;
}
static uint32_t blocks_for(const page_manager_t *s, uint32_t rows) { return (uint32_t)qr_div_up(rows, s->page_tokens); }
/* Rows of `rows` that lie in block j. */
static uint32_t rows_in_block(const page_manager_t *s, uint32_t rows, uint32_t j)
{
    uint32_t before = j * s->page_tokens;
    return rows <= before ? 0 : qr_min_u32(rows - before, s->page_tokens);
}

/* ---- charges of windowed groups (I6) ----------------------------------------------------------------------------- */

static bool lease_has(const page_manager_t *s, uint32_t l, uint32_t g, uint32_t p)
{
    for (uint32_t i = 0; i < lease_at(s, l)->count[g]; i++)
        if (lease_pages_of(s, l, g)[i] == p) return true;
    return false;
}
/* Somebody other than route `except` who references page p, block j, of group g: a route, QR_CHARGE_CAPTURES, or NONE. */
static uint32_t other_holder(const page_manager_t *s, uint32_t g, uint32_t p, uint32_t j, uint32_t except)
{
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        if (!is_open(route) || r == except) continue;
        if (route->copy_rows && route->copy_pages[g] == p) return r;
        if (j >= route->windows[g].first && j < route->windows[g].end && pages_of(s, r, g)[j] == p) return r;
    }
    for (uint32_t l = 0; l < QR_LEASES_MAX; l++)
        if (lease_at(s, l)->open && lease_has(s, l, g, p)) return QR_CHARGE_CAPTURES;
    return NONE;
}
static void idle_add(page_manager_t *s, route_t *route, uint32_t g)
{
    route->windows[g].idle++;
    pool_at(s, g)->idle++;
}
static void idle_take(page_manager_t *s, route_t *route, uint32_t g)
{
    qr_assert(route->windows[g].idle && pool_at(s, g)->idle);
    route->windows[g].idle--;
    pool_at(s, g)->idle--;
}
/* Another holder takes over what `from` paid for page p, with a page of its own reservation. */
static void charge_pass(page_manager_t *s, uint32_t g, uint32_t p, uint32_t j, uint32_t from)
{
    uint32_t to = other_holder(s, g, p, j, from);
    qr_assert(to != NONE);
    page_at(s, g, p)->charge = to;
    if (QR_MUTANT(116)) return;
    if (to != QR_CHARGE_CAPTURES)
        idle_take(s, route_at(s, to), g);
    else
        pool_at(s, g)->aside--;
}
/* Who references a page of a windowed group that nobody has paid for pays now; true if so. */
static bool charge_take(page_manager_t *s, uint32_t g, uint32_t p, uint32_t who)
{
    qr_page_t *page = page_at(s, g, p);
    if (page->charge != NONE) return false;
    page->charge = who;
    return true;
}
/* The route no longer uses page p, block j, of any group. leaving: nor will it need another in its place. */
static void route_unref(page_manager_t *s, route_t *route, uint32_t g, uint32_t p, uint32_t j, bool leaving)
{
    qr_page_t *page = page_at(s, g, p);
    qr_pool_t *pool = pool_at(s, g);
    if (pool->window && page->charge == index_of(s, route)) {
        if (page->refs > 1)
            charge_pass(s, g, p, j, index_of(s, route));
        else if (!leaving && page->node != NONE && !qr_pool_spare(pool))
            qr_residents_unname(residents(s), g, p); /* reused */
        if (!leaving) {
            qr_residents_unref(residents(s), g, p);
            idle_add(s, route, g);
            return;
        }
    }
    qr_residents_unref(residents(s), g, p);
}

/* ---- planning a reserve: reads, and writes only the planner's scratch -------------------------------------------- */

typedef struct plan {
    uint32_t root;      /* of the scope, or NONE */
    uint32_t found;     /* nodes with the asked tokens, whole pages, in the scratch walk */
    uint32_t shared;    /* of these used in place */
    uint32_t whole;     /* the same for the longest boundary of whole pages */
    uint32_t copy_rows; /* rows of block `shared` to copy from, or take over with, source */
    uint32_t source;    /* node, or NONE */
    uint32_t take_over; /* 1: the source is this route's from now on */
    uint32_t boundary;
    uint32_t blocks;             /* of rows_max */
    uint32_t producer, promised; /* route that has promised rows up to `promised`, or NONE */
    uint32_t first[QR_GROUPS_MAX], limit[QR_GROUPS_MAX];
    uint32_t need[QR_GROUPS_MAX]; /* pages to come from free ones */
    uint32_t shortage;            /* in the worst group */
} plan_t;

static uint32_t equal_tokens(const uint32_t *a, const uint32_t *b, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && a[n] == b[n]) n++;
    return n;
}
/* The most pages a route of so many blocks uses of a group at once (design §7, Windows). */
static uint32_t window_limit(const page_manager_t *s, uint32_t g, uint32_t blocks, uint32_t rows_in_flight)
{
    uint32_t window = pool_at(s, g)->window;
    if (!window) return blocks;
    uint64_t most = qr_div_up((uint64_t)window - 1 + qr_max_u32(rows_in_flight, 1), s->page_tokens) + 1;
    return (uint32_t)qr_min_u64(most, blocks);
}
static bool names_all(const page_manager_t *s, const qr_node_t *node)
{
    for (uint32_t g = 0; g < s->group_count; g++)
        if (node->pages[g] == QR_PAGE_NONE) return false;
    return true;
}
/* Whether every windowed group has its rows for boundary b, if its pages stand without a gap from block since[g] on. */
static bool window_stands(const page_manager_t *s, const uint32_t *since, uint32_t b)
{
    for (uint32_t g = 0; g < s->group_count; g++)
        if (!QR_MUTANT(443) && since[g] * s->page_tokens > first_attended(pool_at(s, g)->window, b)) return false;
    return true;
}
/* Looks among the children of `parent` for rows equal to the `want` tokens of the next block. A leaf that can be taken over
 * wins among equals. */
static void match_partial(const page_manager_t *s, uint32_t parent, const uint32_t *tokens, uint32_t want, uint32_t likely, plan_t *plan)
{
    uint32_t steps = 0, n = likely != NONE ? likely : qr_prefix_tree_next(tree(s), parent, tokens[0], NONE, &steps);
    bool first = likely != NONE;
    for (; n != NONE; n = qr_prefix_tree_next(tree(s), parent, tokens[0], first ? NONE : n, &steps), first = false) {
        const qr_node_t *node = node_at(s, n);
        uint32_t rows = equal_tokens(qr_node_tokens(tree(s), n), tokens, qr_min_u32(want, QR_MUTANT(119) ? node->token_count : node->rows));
        if (QR_MUTANT(444) && rows && rows < qr_min_u32(want, node->rows)) rows++;
        bool whole = node->rows == rows && (QR_MUTANT(448) || qr_order_has(qr_residents_leaves(residents(s)), n));
        if (!rows || rows < plan->copy_rows || (rows == plan->copy_rows && (plan->take_over || !whole)) || !names_all(s, node)) continue;
        plan->copy_rows = rows;
        plan->source = n;
        plan->take_over = whole;
        if (rows == want && (whole || first)) return;
    }
}
/* The deepest rows of the asked tokens that an open route has promised and not yet committed. */
static void match_promise(const page_manager_t *s, const qr_pages_reserve_t *ask, plan_t *plan)
{
    const uint32_t *tokens = ask->tokens.data, *walk = walk_of(s, s->route_capacity);
    uint32_t most = (uint32_t)ask->tokens.count - 1, from = plan->found * s->page_tokens, steps = 0;
    uint32_t parent = plan->found ? walk[plan->found - 1] : plan->root;
    plan->producer = NONE;
    plan->promised = 0;
    if (from < most) {
        for (uint32_t n = NONE; (n = qr_prefix_tree_next(tree(s), parent, tokens[from], n, &steps)) != NONE;) {
            const qr_node_t *node = node_at(s, n);
            uint32_t equal = equal_tokens(qr_node_tokens(tree(s), n), tokens + from, qr_min_u32(most - from, node->token_count));
            if (node->writer == NONE || node->rows >= equal || from + equal <= plan->promised) continue;
            plan->promised = from + equal;
            plan->producer = node->writer;
        }
        if (plan->producer != NONE) return;
    }
    for (uint32_t j = plan->found; j-- > plan->shared;) {
        const qr_node_t *node = node_at(s, walk[j]);
        if (node->writer == NONE || node->rows >= rows_in_block(s, most, j)) continue;
        plan->promised = qr_min_u32(most, (j + 1) * s->page_tokens);
        plan->producer = node->writer;
        return;
    }
}
/* The longest boundary below the last token whose rows stand in every group. */
static void match(const page_manager_t *s, const qr_pages_reserve_t *ask, plan_t *plan)
{
    const uint32_t *tokens = ask->tokens.data;
    uint32_t count = (uint32_t)ask->tokens.count, size = s->page_tokens, stands = 0, since[QR_GROUPS_MAX] = {0};
    uint32_t *walk = walk_of(s, s->route_capacity);
    *plan = (plan_t){.root = qr_prefix_tree_scope(tree(s), &ask->scope), .source = NONE, .producer = NONE};
    plan->blocks = blocks_for(s, ask->rows_max);
    if (plan->root == NONE) return;
    for (uint32_t parent = plan->root; (plan->found + 1) * size <= count; plan->found++) {
        uint32_t n = qr_prefix_tree_find(tree(s), parent, tokens + plan->found * size);
        if (n == NONE) break;
        walk[plan->found] = parent = n;
    }
    uint32_t last = count - (QR_MUTANT(104) ? 0 : 1); /* the last token's row is always computed: its logits are wanted */
    while (stands < plan->found && (stands + 1) * size <= last && node_at(s, walk[stands])->rows == size) {
        for (uint32_t g = 1; g < s->group_count; g++)
            if (node_at(s, walk[stands])->pages[g] == QR_PAGE_NONE) since[g] = stands + 1;
        stands++;
        if (window_stands(s, since, stands * size)) plan->shared = stands;
    }
    plan->whole = plan->shared;
    uint32_t want = qr_min_u32(last - stands * size, size);
    if (want) {
        uint32_t likely = stands < plan->found && node_at(s, walk[stands])->rows ? walk[stands] : NONE;
        match_partial(s, stands ? walk[stands - 1] : plan->root, tokens + stands * size, want, likely, plan);
        if (plan->source != NONE && window_stands(s, since, stands * size + plan->copy_rows))
            plan->shared = stands;
        else
            plan->source = NONE, plan->copy_rows = plan->take_over = 0;
    }
    plan->boundary = plan->shared * size + plan->copy_rows;
    match_promise(s, ask, plan);
}

/* What a windowed group needs and what the match pins of it. Shared pages charged to another are not credited (design §7). */
static uint32_t count_window(const page_manager_t *s, uint32_t g, plan_t *plan)
{
    const uint32_t *walk = walk_of(s, s->route_capacity);
    uint32_t pinned = 0;
    plan->need[g] = plan->limit[g];
    for (uint32_t j = plan->first[g]; j < plan->shared; j++)
        if (page_at(s, g, node_at(s, walk[j])->pages[g])->charge == NONE) pinned++;
    if (plan->take_over) pinned++;
    plan->need[g] -= pinned;
    if (plan->source == NONE || plan->take_over) return pinned;
    if (page_at(s, g, node_at(s, plan->source)->pages[g])->charge == NONE) return pinned + 1;
    plan->need[g]++;
    return pinned;
}
static uint32_t count_whole(const page_manager_t *s, uint32_t g, plan_t *plan)
{
    const uint32_t *walk = walk_of(s, s->route_capacity);
    uint32_t pinned = 0;
    plan->need[g] = plan->blocks - plan->shared - plan->take_over;
    for (uint32_t j = plan->shared; j-- > 0;) {
        const qr_node_t *node = node_at(s, walk[j]);
        if (node->holders) break; /* and so are all above it */
        pinned += page_at(s, g, node->pages[g])->state == QR_PAGE_RETAINED;
    }
    if (plan->source == NONE) return pinned;
    const qr_node_t *source = node_at(s, plan->source);
    return pinned + (!source->holders && page_at(s, g, source->pages[g])->state == QR_PAGE_RETAINED);
}
/* Fills first, limit, need and shortage of a matched plan. */
static void count(const page_manager_t *s, uint32_t rows_in_flight, plan_t *plan)
{
    plan->shortage = 0;
    for (uint32_t g = 0; g < s->group_count; g++) {
        const qr_pool_t *pool = pool_at(s, g);
        plan->first[g] = pool->window ? (first_attended(pool->window, plan->boundary) + QR_MUTANT(446)) / s->page_tokens : 0;
        plan->limit[g] = window_limit(s, g, plan->blocks - plan->first[g], rows_in_flight);
        uint32_t pinned = pool->window ? count_window(s, g, plan) : count_whole(s, g, plan);
        uint32_t supply = qr_pool_spare(pool) + pool->evictable - (QR_MUTANT(447) ? 0 : pinned);
        if (plan->need[g] > supply) plan->shortage = qr_max_u32(plan->shortage, plan->need[g] - supply);
    }
}
/* Matches and counts; falls back to whole pages when the copied part costs what is short (I11). */
static void plan_reserve(const page_manager_t *s, const qr_pages_reserve_t *ask, plan_t *plan)
{
    match(s, ask, plan);
    count(s, ask->first_rows, plan);
    if (!plan->shortage || plan->source == NONE) return;
    plan->source = NONE;
    plan->copy_rows = plan->take_over = 0;
    plan->shared = plan->whole;
    plan->boundary = plan->shared * s->page_tokens;
    count(s, ask->first_rows, plan);
}

/* ---- tokens enter the tree --------------------------------------------------------------------------------------- */

/* The route's leaf has become full of tokens beside an equal node: leases that held the leaf go over with it. */
static void leaf_merge(page_manager_t *s, uint32_t from, uint32_t into)
{
    for (uint32_t l = 0; l < QR_LEASES_MAX; l++)
        if (lease_at(s, l)->open && lease_at(s, l)->node == from && !QR_MUTANT(118)) lease_at(s, l)->node = into;
    qr_residents_merge(residents(s), from, into);
}
/* The next tokens of a route's walk: its leaf grows, whole pages walk equal nodes where they exist, others are added. */
static void walk_extend(page_manager_t *s, route_t *route, uint32_t root, const uint32_t *tokens, uint32_t count)
{
    uint32_t *walk = walk_of(s, index_of(s, route)), size = s->page_tokens;
    while (count) {
        uint32_t j = route->tokens / size, had = route->tokens % size, more = qr_min_u32(size - had, count);
        uint32_t parent = j ? walk[j - 1] : root, equal = NONE;
        if (had) qr_prefix_tree_append(tree(s), walk[j], tokens, more);
        bool alone = j && node_at(s, parent)->children == (had ? 1u : 0u); /* no other child to be equal to */
        if (had + more == size && !alone) equal = qr_prefix_tree_find(tree(s), parent, had ? qr_node_tokens(tree(s), walk[j]) : tokens);
        if (equal != NONE && had) {
            leaf_merge(s, walk[j], equal);
            walk[j] = equal;
        } else if (equal != NONE) {
            qr_residents_hold(residents(s), equal);
            walk[j] = equal;
        } else if (!had) {
            walk[j] = qr_prefix_tree_add(tree(s), parent, tokens, more);
            node_at(s, walk[j])->writer = index_of(s, route);
            qr_residents_hold(residents(s), walk[j]);
        }
        if (had + more == size && equal == NONE) qr_prefix_tree_fill(tree(s), walk[j]);
        if (node_at(s, walk[j])->writer == NONE && node_at(s, walk[j])->rows < size) node_at(s, walk[j])->writer = index_of(s, route);
        route->tokens += more;
        route->walked = j + 1;
        tokens += more;
        count -= more;
    }
}
static uint32_t root_of(const page_manager_t *s, const route_t *route)
{
    return QR_NODE_ROOT | node_at(s, walk_of(s, index_of(s, route))[0])->scope;
}

/* ---- rows are committed ------------------------------------------------------------------------------------------ */

/* The copy's batch is committed, or will never run: its sources are let go. */
static void copy_end(page_manager_t *s, route_t *route)
{
    uint32_t j = route->boundary / s->page_tokens;
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t p = route->copy_pages[g];
        if (pool_at(s, g)->window && page_at(s, g, p)->charge != index_of(s, route)) idle_take(s, route, g); /* nothing had to be paid */
        route_unref(s, route, g, p, j, true);
        route->copy_pages[g] = QR_PAGE_NONE;
    }
    route->copy_rows = 0;
}
/* The page a route uses for block j of a group, or QR_PAGE_NONE. */
static uint32_t page_of(const page_manager_t *s, const route_t *route, uint32_t g, uint32_t j)
{
    const window_t *window = &route->windows[g];
    return j >= window->first && j < window->end ? pages_of(s, index_of(s, route), g)[j] : QR_PAGE_NONE;
}
/* Block j of a route now has `rows` rows: its node names the pages of whoever has most. */
static void block_commit(page_manager_t *s, route_t *route, uint32_t j, uint32_t rows)
{
    uint32_t n = walk_of(s, index_of(s, route))[j];
    qr_node_t *node = node_at(s, n);
    bool most = rows > node->rows;
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t p = page_of(s, route, g, j);
        if (p == QR_PAGE_NONE) {
            if (most && node->pages[g] != QR_PAGE_NONE) qr_residents_unname(residents(s), g, node->pages[g]);
            continue;
        }
        if (page_at(s, g, p)->state != QR_PAGE_USED) qr_page_move(table(s), g, p, QR_PAGE_USED);
        bool replaces = rows == s->page_tokens && node->pages[g] == QR_PAGE_NONE; /* the window's page was evicted meanwhile */
        if (most || replaces) qr_residents_name(residents(s), n, g, p);
    }
    if (!most) return;
    node->rows = rows;
    node->writer = index_of(s, route);
}
/* Rows [route->rows, rows) have been computed or verified; their tokens are known. */
static void rows_commit(page_manager_t *s, route_t *route, uint32_t rows)
{
    for (uint32_t j = route->rows / s->page_tokens; j * s->page_tokens < rows; j++) block_commit(s, route, j, rows_in_block(s, rows, j));
    route->rows = rows;
    if (route->copy_rows && rows > route->boundary && !QR_MUTANT(114)) copy_end(s, route);
}
/* What leaves the window of a group is let go; pages for later blocks are taken from the reservation and listed as news. */
static uint32_t window_advance(page_manager_t *s, route_t *route, uint32_t g, uint32_t news)
{
    window_t *window = &route->windows[g];
    qr_pool_t *pool = pool_at(s, g);
    uint32_t *pages = pages_of(s, index_of(s, route), g), blocks = blocks_for(s, route->rows_max);
    uint32_t first = first_attended(pool->window, route->rows + QR_MUTANT(468)) / s->page_tokens;
    for (; window->first < first; window->first++) {
        uint32_t p = pages[window->first];
        bool leaving = window->limit >= blocks - window->first; /* no more than the blocks left need to stay reserved */
        if (leaving) {
            if (page_at(s, g, p)->charge != index_of(s, route)) idle_take(s, route, g);
            window->limit--;
        }
        route_unref(s, route, g, p, window->first, leaving);
        pages[window->first] = QR_PAGE_NONE;
    }
    for (; window->end < blocks && window->end - window->first < window->limit; window->end++) {
        idle_take(s, route, g);
        uint32_t p = qr_page_take(table(s), g);
        page_at(s, g, p)->charge = index_of(s, route);
        pages[window->end] = p;
        scratch_handles(s)[news] = qr_page_handle(table(s), g, p);
        scratch_routes(s)[news] = handle_of(s, route);
        scratch_groups(s)[news] = g;
        scratch_blocks(s)[news++] = window->end;
    }
    return news;
}
static void window_news_send(const call_t *call, uint32_t news)
{
    page_manager_t *s = call->self;
    if (!news) return;
    qr_window_pages_t body = {{scratch_routes(s), news}, {scratch_groups(s), news}, {scratch_blocks(s), news}, {scratch_handles(s), news}};
    qr_send(call->outbox, qr_address_partner(s->address, QR_ROLE_scheduler), window_pages, &body);
}
static uint32_t windows_advance(page_manager_t *s, route_t *route, uint32_t news)
{
    for (uint32_t g = 1; g < s->group_count; g++)
        if (pool_at(s, g)->window) news = window_advance(s, route, g, news);
    return news;
}

/* Whether rows and the ids of the last `count` of them continue what is known of the route. */
static bool commit_fits(const page_manager_t *s, const route_t *route, uint32_t rows, const uint32_t *tokens, uint32_t count)
{
    if (route->state != ROUTE_OPEN || rows < route->rows || rows > route->rows_max || count > rows) return false;
    uint32_t from = rows - count, known = qr_min_u32(route->tokens, rows);
    if (from > route->tokens || (!count && rows > route->tokens)) return false;
    for (uint32_t g = 0; g < s->group_count; g++)
        if (rows > route->windows[g].end * s->page_tokens) return false;
    const uint32_t *walk = walk_of(s, index_of(s, route));
    for (uint32_t i = from; i < known && !QR_MUTANT(121); i++)
        if (qr_node_tokens(tree(s), walk[i / s->page_tokens])[i % s->page_tokens] != tokens[i - from]) return false;
    return true;
}
/* Offers the chunks that were completed by rows [before, route->rows) (I12). */
static void capture_offer(const call_t *call, const route_t *route, uint32_t before)
{
    page_manager_t *s = call->self;
    uint32_t from = s->chunk_tokens ? before / s->chunk_tokens : 0, to = s->chunk_tokens ? route->rows / s->chunk_tokens : 0;
    if (to == from) return;
    if (s->captures_open >= s->captures_max && !QR_MUTANT(486)) {
        s->captures_skipped += to - from;
        return;
    }
    const uint32_t *walk = walk_of(s, index_of(s, route));
    uint32_t *tokens = (uint32_t *)at(s, s->tokens_at), count = to * s->chunk_tokens;
    for (uint32_t row = 0; row < count; row += s->page_tokens)
        qr_copy(tokens + row, qr_node_tokens(tree(s), walk[row / s->page_tokens]),
                qr_min_u32(s->page_tokens, count - row) * sizeof *tokens);
    s->captures_open++;
    qr_send(call->outbox, qr_address_partner(s->address, QR_ROLE_checkpoint_writer), capture,
            (&(qr_capture_t){.capture_id = ++s->captures_asked,
                             .scope = *qr_prefix_tree_scope_hash(tree(s), root_of(s, route)),
                             .start_rows = from * s->chunk_tokens,
                             .tokens = {tokens, count}}));
}
static void on_captured(const call_t *call)
{
    qr_assert(call->self->captures_open);
    call->self->captures_open--;
}
static void on_rows_committed(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_rows_committed_t *body = &call->message->body.rows_committed;
    uint64_t total = 0, offset = 0;
    uint32_t news = 0;
    if (body->rows.count != body->routes.count || body->token_counts.count != body->routes.count) goto broken;
    for (uint64_t i = 0; i < body->routes.count; i++) total += body->token_counts.data[i];
    if (total != body->tokens.count) goto broken;
    for (uint64_t i = 0; i < body->routes.count; i++) {
        uint32_t rows = body->rows.data[i], given = body->token_counts.data[i];
        const uint32_t *tokens = given ? body->tokens.data + offset : NULL;
        offset += given;
        route_t *route = route_find(s, body->routes.data[i]);
        if (!route) {
            qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, QR_MESSAGE_rows_committed, body->routes.data[i], 0);
        } else if (!commit_fits(s, route, rows, tokens, given)) {
            qr_outbox_note(call->outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, route->request_id, QR_MESSAGE_rows_committed, rows, route->rows);
        } else if (rows > route->rows) {
            if (rows > route->tokens)
                walk_extend(s, route, root_of(s, route), tokens + (given - (rows - route->tokens)), rows - route->tokens);
            uint32_t before = route->rows;
            rows_commit(s, route, rows);
            capture_offer(call, route, before);
            news = windows_advance(s, route, news);
        }
    }
    window_news_send(call, news);
    return;
broken:
    qr_outbox_note(call->outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, QR_MESSAGE_rows_committed, body->routes.count, body->tokens.count);
}

/* ---- a reserve is granted: the half that cannot fail ------------------------------------------------------------- */

/* The match is held before anything leaves. */
static void grant_shared(page_manager_t *s, route_t *route, const plan_t *plan)
{
    uint32_t r = index_of(s, route), *walk = walk_of(s, r);
    const uint32_t *found = walk_of(s, s->route_capacity);
    for (uint32_t j = 0; j < plan->shared; j++) {
        qr_node_t *node = node_at(s, walk[j] = found[j]);
        node->hits++;
        qr_residents_hold(residents(s), walk[j]);
        for (uint32_t g = 0; g < s->group_count; g++) {
            if (j < plan->first[g]) continue;
            uint32_t p = node->pages[g];
            qr_residents_ref(residents(s), g, p);
            pages_of(s, r, g)[j] = p;
            if (pool_at(s, g)->window && !charge_take(s, g, p, r)) idle_add(s, route, g);
        }
    }
    route->walked = plan->shared;
    route->rows = route->tokens = plan->shared * s->page_tokens;
}
static void grant_source(page_manager_t *s, route_t *route, const plan_t *plan)
{
    if (plan->source == NONE) return;
    uint32_t r = index_of(s, route), j = plan->shared;
    qr_node_t *node = node_at(s, plan->source);
    node->hits++;
    if (plan->take_over) {
        qr_residents_hold(residents(s), plan->source);
        walk_of(s, r)[j] = plan->source;
        node->writer = r;
        route->walked = j + 1;
        route->rows = route->tokens = plan->boundary;
    }
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t p = node->pages[g];
        if (!QR_MUTANT(105)) qr_residents_ref(residents(s), g, p);
        bool charged = pool_at(s, g)->window && charge_take(s, g, p, r);
        if (plan->take_over)
            pages_of(s, r, g)[j] = p;
        else {
            route->copy_pages[g] = p;
            if (pool_at(s, g)->window && !charged) idle_add(s, route, g);
        }
    }
    if (!plan->take_over) route->copy_rows = plan->copy_rows;
}
/* Exactly what is short leaves. What the match holds is safe; nodes it only walks are not. */
static void grant_room(page_manager_t *s, const route_t *route, const plan_t *plan)
{
    for (uint32_t g = 0; g < s->group_count; g++)
        while (!pool_at(s, g)->window && pool_at(s, g)->counts[QR_PAGE_FREE] < plan->need[g])
            qr_assert(qr_residents_evict_leaf(residents(s)));
    for (uint32_t g = 0; g < s->group_count; g++) {
        const qr_pool_t *pool = pool_at(s, g);
        uint32_t taken = plan->need[g] - route->windows[g].idle; /* the rest of the need is promised already */
        while (pool->window && pool->counts[QR_PAGE_FREE] < pool->idle + pool->aside + taken)
            qr_assert(qr_residents_evict_page(residents(s), g));
    }
}
static void grant_private(page_manager_t *s, route_t *route, const plan_t *plan)
{
    uint32_t r = index_of(s, route);
    for (uint32_t g = 0; g < s->group_count; g++) {
        window_t *window = &route->windows[g];
        window->first = plan->first[g];
        window->limit = plan->limit[g];
        window->end = qr_max_u32(plan->shared + plan->take_over, plan->first[g]);
        for (; window->end < plan->blocks && window->end - window->first < window->limit; window->end++) {
            uint32_t p = qr_page_take(table(s), g);
            if (pool_at(s, g)->window) page_at(s, g, p)->charge = r;
            pages_of(s, r, g)[window->end] = p;
        }
    }
}
static void granted_send(const call_t *call, const route_t *route)
{
    page_manager_t *s = call->self;
    uint32_t counts[QR_GROUPS_MAX], firsts[QR_GROUPS_MAX], copy_rows[QR_GROUPS_MAX], copy_groups[QR_GROUPS_MAX];
    uint64_t sources[QR_GROUPS_MAX], targets[QR_GROUPS_MAX], *handles = scratch_handles(s), pages = 0;
    qr_pages_granted_t body = {.request_id = route->request_id, .attempt = route->attempt, .route = handle_of(s, route)};
    for (uint32_t g = 0; g < s->group_count; g++) {
        const uint32_t *own = pages_of(s, index_of(s, route), g);
        firsts[g] = route->windows[g].first;
        counts[g] = route->windows[g].end - firsts[g];
        for (uint32_t i = 0; i < counts[g]; i++) handles[pages++] = qr_page_handle(table(s), g, own[firsts[g] + i]);
        if (!route->copy_rows) continue;
        sources[g] = qr_page_handle(table(s), g, route->copy_pages[g]);
        targets[g] = qr_page_handle(table(s), g, own[route->boundary / s->page_tokens]);
        copy_rows[g] = route->copy_rows - (QR_MUTANT(112) ? 1 : 0);
        copy_groups[g] = g;
    }
    uint32_t copies = route->copy_rows ? (QR_MUTANT(445) ? 1 : s->group_count) : 0;
    body.boundary = route->boundary;
    body.group_counts = (qr_u32s_t){counts, s->group_count};
    body.first_blocks = (qr_u32s_t){firsts, s->group_count};
    body.pages = (qr_u64s_t){handles, pages};
    body.copy_sources = (qr_u64s_t){sources, copies};
    body.copy_targets = (qr_u64s_t){targets, copies};
    body.copy_rows = (qr_u32s_t){copy_rows, copies};
    body.copy_groups = (qr_u32s_t){copy_groups, copies};
    qr_send(call->outbox, call->message->from, pages_granted, &body);
}
static route_t *route_open(page_manager_t *s, const qr_pages_reserve_t *ask, const plan_t *plan)
{
    route_t *route = route_at(s, s->free_route);
    s->free_route = route->link;
    s->routes_open++;
    uint32_t generation = route->generation;
    *route = (route_t){.request_id = ask->request_id,
                       .attempt = ask->attempt,
                       .generation = generation,
                       .state = ROUTE_OPEN,
                       .link = NONE,
                       .boundary = plan->boundary,
                       .rows_max = ask->rows_max,
                       .fence = NONE};
    memset(route->copy_pages, 0xff, sizeof(route->copy_pages));
    return route;
}
static void grant(const call_t *call, const qr_pages_reserve_t *ask, const plan_t *plan)
{
    page_manager_t *s = call->self;
    route_t *route = route_open(s, ask, plan);
    uint64_t evictions = residents(s)->evictions;
    if (QR_MUTANT(449)) grant_room(s, route, plan);
    grant_shared(s, route, plan);
    grant_source(s, route, plan);
    grant_room(s, route, plan);
    grant_private(s, route, plan);
    uint32_t root = qr_prefix_tree_scope_make(tree(s), &ask->scope);
    walk_extend(s, route, root, ask->tokens.data + route->tokens, (uint32_t)ask->tokens.count - route->tokens);
    if (route->copy_rows) s->copies_total += s->group_count;
    evictions = residents(s)->evictions - evictions;
    if (evictions)
        qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_evicted, ask->request_id, evictions, 0,
                       qr_residents_leaves(residents(s))->level);
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_admitted, ask->request_id, ask->tokens.count, plan->boundary, plan->need[0]);
    granted_send(call, route);
}

static void refuse(const call_t *call, const qr_pages_reserve_t *ask, uint32_t reason, uint32_t pages_short)
{
    qr_pages_refused_t body = {.request_id = ask->request_id, .attempt = ask->attempt, .reason = reason, .pages_short = pages_short};
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_refused, ask->request_id, reason, pages_short, ask->rows_max);
    qr_send(call->outbox, call->message->from, pages_refused, &body);
}
/* Pages missing in the worst group even if the device did nothing else; 0 = it fits some day. */
static uint32_t never_short(const page_manager_t *s, const qr_pages_reserve_t *ask)
{
    uint32_t worst = 0, rows = qr_max_u32(ask->rows_max, ask->rows_whole);
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t least = window_limit(s, g, blocks_for(s, rows), ask->first_rows);
        uint32_t most = pool_at(s, g)->pages - (QR_MUTANT(120) ? 0 : pool_at(s, g)->set_aside);
        if (least > most) worst = qr_max_u32(worst, least - most);
    }
    return worst;
}
/* The open route of this very ask, or NULL. */
static const route_t *granted_before(const page_manager_t *s, const qr_pages_reserve_t *ask)
{
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        if (is_open(route) && route->request_id == ask->request_id && route->attempt == ask->attempt) return route;
    }
    return NULL;
}
static void answer_reserve(const call_t *call, const qr_pages_reserve_t *ask)
{
    page_manager_t *s = call->self;
    plan_t plan;
    plan_reserve(s, ask, &plan);
    if (ask->wait_rows && plan.producer != NONE && plan.promised >= plan.boundary + ask->wait_rows) {
        qr_pages_wait_t body = {.request_id = ask->request_id, .attempt = ask->attempt, .boundary = plan.promised};
        if (!QR_MUTANT(106)) body.producer = handle_of(s, route_at(s, plan.producer));
        qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_waiting, ask->request_id, plan.producer, plan.promised, plan.boundary);
        qr_send(call->outbox, call->message->from, pages_wait, &body);
    } else if (plan.shortage) {
        if (QR_MUTANT(111) && plan.found) qr_residents_hold(residents(s), walk_of(s, s->route_capacity)[0]);
        refuse(call, ask, QR_E_SHORTFALL, plan.shortage);
    } else {
        grant(call, ask, &plan);
    }
    memset(walk_of(s, s->route_capacity), 0, plan.found * sizeof(uint32_t)); /* a refused plan changes nothing at all */
}
static void on_pages_reserve(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_pages_reserve_t *ask = &call->message->body.pages_reserve;
    uint32_t missing = 0, reason = 0;
    const route_t *before = granted_before(s, ask);
    if (!ask->tokens.count || ask->tokens.count > ask->rows_max)
        reason = QR_E_INVALID;
    else if (qr_max_u32(ask->rows_max, ask->rows_whole) > call->given->layout.context_tokens)
        reason = QR_E_CONTEXT;
    else if (before && (before->rows > before->boundary || before->state != ROUTE_OPEN))
        reason = QR_E_IN_USE;
    else if (before)
        granted_send(call, before); /* a repeat: the same answer */
    else if (s->draining)
        reason = QR_E_DRAINING;
    else if ((missing = never_short(s, ask)) != 0)
        reason = QR_E_NEVER_FITS;
    else if (s->free_route == NONE)
        reason = QR_E_BUSY;
    else
        answer_reserve(call, ask);
    if (reason) refuse(call, ask, reason, missing);
}

/* 0, or why a route cannot have more rows. */
static uint32_t more_refusal(const page_manager_t *s, const route_t *route, const qr_pages_more_t *ask)
{
    if (!route) return QR_E_UNKNOWN;
    if (route->state != ROUTE_OPEN) return QR_E_IN_USE;
    if (ask->rows_max <= route->rows_max || blocks_for(s, ask->rows_max) > s->blocks_max) return QR_E_INVALID;
    for (uint32_t g = 0; g < s->group_count; g++)
        if (pool_at(s, g)->window) return QR_E_UNSUPPORTED;
    return 0;
}
/* Whole blocks that a route computed on pages of its own beside those that the node names: once nobody else uses these, the node names the
 * route's and they are free. Nobody could evict them, because the route holds the node. */
static void duplicates_leave(page_manager_t *s)
{
    if (QR_MUTANT(690)) return;
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        if (!is_open(route)) continue;
        for (uint32_t j = 0; j < route->rows / s->page_tokens; j++)
            for (uint32_t g = 0; g < s->group_count; g++) {
                uint32_t n = walk_of(s, r)[j], p = page_of(s, route, g, j), q = node_at(s, n)->pages[g];
                bool own = p != q && p != QR_PAGE_NONE && page_at(s, g, p)->node == QR_NODE_NONE && !pool_at(s, g)->window;
                if (own && q != QR_PAGE_NONE && page_at(s, g, q)->state == QR_PAGE_RETAINED) qr_residents_name(residents(s), n, g, p);
            }
    }
}
/* Pages that are missing for so many blocks of a route. */
static uint32_t more_short(const page_manager_t *s, const route_t *route, uint32_t blocks)
{
    uint32_t worst = 0;
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t need = blocks - route->windows[g].end, supply = qr_pool_spare(pool_at(s, g)) + pool_at(s, g)->evictable;
        if (need > supply) worst = qr_max_u32(worst, need - supply);
    }
    return worst;
}
/* The next tranche of a route, or nothing of it. What nobody holds makes room, exactly what is short. */
static void on_pages_more(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_pages_more_t *ask = &call->message->body.pages_more;
    route_t *route = route_find(s, ask->route);
    qr_pages_added_t body = {.route = ask->route, .reason = more_refusal(s, route, ask)};
    uint32_t count = 0, blocks = blocks_for(s, ask->rows_max);
    if (!body.reason && more_short(s, route, blocks)) {
        duplicates_leave(s);
        body.pages_short = more_short(s, route, blocks);
    }
    if (body.pages_short) body.reason = QR_E_SHORTFALL;
    if (!body.reason) {
        body.first_block = route->windows[0].end;
        for (uint32_t g = 0; g < s->group_count; g++) {
            window_t *window = &route->windows[g];
            while (pool_at(s, g)->counts[QR_PAGE_FREE] < blocks - window->end) qr_assert(qr_residents_evict_leaf(residents(s)));
        }
        for (uint32_t g = 0; g < s->group_count; g++) {
            window_t *window = &route->windows[g];
            window->limit += blocks - window->end;
            for (; window->end < blocks; window->end++) {
                uint32_t p = pages_of(s, index_of(s, route), g)[window->end] = qr_page_take(table(s), g);
                scratch_handles(s)[count++] = qr_page_handle(table(s), g, p);
            }
        }
        route->rows_max = ask->rows_max;
    }
    body.pages = (qr_u64s_t){scratch_handles(s), count};
    qr_send(call->outbox, call->message->from, pages_added, &body);
}

/* ---- a route ends ------------------------------------------------------------------------------------------------ */

/* The walker of a node without all rows that has most of them on pages of its own, now that its writer has left. */
static uint32_t next_writer(const page_manager_t *s, uint32_t n)
{
    uint32_t best = NONE, best_rows = 0, j = node_at(s, n)->block;
    if (node_at(s, n)->rows == s->page_tokens) return NONE;
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        if (!is_open(route) || j >= route->walked || walk_of(s, r)[j] != n) continue;
        uint32_t rows = rows_in_block(s, route->rows, j);
        if (best == NONE || rows > best_rows) best = r, best_rows = rows;
    }
    return best;
}
/* Of two leaves where one begins with all the rows of the other, one is enough: the shorter one goes. n has just been let go. */
static void leaf_tidy(page_manager_t *s, uint32_t n)
{
    const qr_node_t *node = node_at(s, n);
    const uint32_t *tokens = qr_node_tokens(tree(s), n);
    uint32_t steps = 0, next;
    if (node->rows == s->page_tokens || node->children) return;
    for (uint32_t m = qr_prefix_tree_next(tree(s), node->parent, tokens[0], NONE, &steps); m != NONE; m = next) {
        const qr_node_t *other = node_at(s, m);
        next = qr_prefix_tree_next(tree(s), node->parent, tokens[0], m, &steps);
        uint32_t less = qr_min_u32(node->rows, other->rows);
        if (m == n || !less || equal_tokens(qr_node_tokens(tree(s), m), tokens, less) < less) continue;
        if (other->rows >= node->rows && names_all(s, other)) {
            qr_residents_forget(residents(s), n);
            return;
        }
        if (other->rows < node->rows && names_all(s, node) && qr_order_has(qr_residents_leaves(residents(s)), m))
            qr_residents_forget(residents(s), m);
    }
}
/* Lets go of every page and node, deepest first. */
static void walk_end(page_manager_t *s, route_t *route, bool keep)
{
    uint32_t r = index_of(s, route), *walk = walk_of(s, r);
    uint32_t leaf = route->walked - 1;
    for (uint32_t j = blocks_for(s, route->rows_max); j-- > 0;) {
        for (uint32_t g = 0; g < s->group_count; g++) {
            uint32_t p = page_of(s, route, g, j);
            if (p != QR_PAGE_NONE) route_unref(s, route, g, p, j, true);
        }
        if (j >= route->walked) continue;
        const qr_node_t *node = node_at(s, walk[j]);
        bool mine = node->writer == r, last = node->holders == 1;
        qr_residents_unhold(residents(s), walk[j], mine && !keep && !QR_MUTANT(117));
        route->walked = j; /* no longer a walker when the next writer is looked for */
        if (mine && !last) node_at(s, walk[j])->writer = next_writer(s, walk[j]);
        if (last && j == leaf && node->token_count) leaf_tidy(s, walk[j]);
    }
}

/* ---- loads and fences -------------------------------------------------------------------------------------------- */

static uint64_t fence_handle(uint32_t f, const fence_t *fence) { return qr_handle(f, fence->generation); }
static void alarm_set(const call_t *call)
{
    const page_manager_t *s = call->self;
    if (s->drain_by_us) qr_outbox_alarm(call->outbox, s->drain_by_us);
    for (uint32_t f = 0; f < QR_FENCES_MAX; f++)
        if (fence_at(s, f)->open) qr_outbox_alarm(call->outbox, fence_at(s, f)->deadline_us);
}
/* Loading pages of blocks from `block` on become fenced, on one list; transfer is asked to let go of them. orphans: they belong
 * to no route any more. */
static uint32_t fence_start(const call_t *call, route_t *route, uint32_t block, bool orphans)
{
    page_manager_t *s = call->self;
    uint32_t f = 0, r = index_of(s, route), count = 0, end = blocks_for(s, route->load_end);
    while (fence_at(s, f)->open) f++;
    qr_assert(f < QR_FENCES_MAX); /* I8: each load had room for one */
    fence_t *fence = fence_at(s, f);
    fence->generation = raised(fence->generation);
    fence->open = 1;
    fence->route = orphans ? NONE : r;
    fence->pages = NONE;
    fence->deadline_us = call->message->now_us + call->given->params.fence_max_ms * 1000;
    for (uint32_t g = 0; g < s->group_count; g++) {
        for (uint32_t j = block; j < end; j++) {
            uint32_t p = page_of(s, route, g, j);
            qr_page_t *page = page_at(s, g, p);
            qr_page_move(table(s), g, p, QR_PAGE_FENCED);
            page->link = fence->pages;
            fence->pages = qr_page_place(g, p);
            scratch_groups(s)[count] = g;
            scratch_handles(s)[count++] = qr_page_handle(table(s), g, p);
        }
    }
    qr_fence_t body = {fence_handle(f, fence), {scratch_groups(s), count}, {scratch_handles(s), count}};
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_fenced, route->request_id, count, body.fence_id, 0);
    qr_send(call->outbox, qr_address_partner(s->address, QR_ROLE_transfer), fence, &body);
    alarm_set(call);
    return f;
}
/* The pages of a fence belong to no route any more; they become free when transfer answers. */
static void fence_orphan(page_manager_t *s, route_t *route, uint32_t f)
{
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t *pages = pages_of(s, index_of(s, route), g);
        for (uint32_t j = blocks_for(s, route->rows); j < blocks_for(s, route->load_end); j++) pages[j] = QR_PAGE_NONE;
    }
    fence_at(s, f)->route = NONE;
    for (uint32_t place = fence_at(s, f)->pages; place != NONE;) {
        uint32_t g = qr_place_group(place), p = qr_place_page(place);
        qr_page_t *page = page_at(s, g, p);
        page->refs = 0;
        page->charge = NONE;
        place = page->link;
        if (QR_MUTANT(107)) qr_page_move(table(s), g, p, QR_PAGE_FREE); /* freed before fenced */
    }
    if (QR_MUTANT(107)) fence_at(s, f)->pages = NONE;
}
static void load_closed_send(const call_t *call, uint64_t handle, const route_t *route, uint32_t from_block, uint32_t reason)
{
    page_manager_t *s = call->self;
    qr_load_closed_t body = {.route = handle, .reason = reason};
    uint32_t count = 0;
    if (route) body.boundary = route->copy_rows ? qr_max_u32(route->rows, route->boundary) : route->rows;
    for (uint32_t g = 0; route && g < s->group_count; g++)
        for (uint32_t j = from_block; j < blocks_for(s, route->load_end); j++)
            scratch_handles(s)[count++] = qr_page_handle(table(s), g, page_of(s, route, g, j));
    body.pages = (qr_u64s_t){scratch_handles(s), count};
    qr_send(call->outbox, qr_address_partner(s->address, QR_ROLE_scheduler), load_closed, &body);
}
static uint32_t load_refusal(const page_manager_t *s, const route_t *route, const qr_pages_load_t *ask)
{
    if (!route) return QR_E_UNKNOWN;
    if (route->state != ROUTE_OPEN) return QR_E_IN_USE;
    if (ask->start_rows != route->rows || ask->start_rows % s->page_tokens || ask->end_rows <= ask->start_rows) return QR_E_INVALID;
    if (ask->end_rows > route->tokens || (route->copy_rows && ask->end_rows <= route->boundary)) return QR_E_INVALID; /* I9 */
    for (uint32_t g = 0; g < s->group_count; g++)
        if (ask->end_rows > route->windows[g].end * s->page_tokens) return QR_E_LIMIT; /* I10 */
    return s->loads_open >= QR_FENCES_MAX ? QR_E_BUSY : 0;
}
/* Reads only: the pages are the route's as long as it is open. */
static void on_route_pages(const call_t *call)
{
    const page_manager_t *s = call->self;
    const qr_route_pages_t *ask = &call->message->body.route_pages;
    const route_t *route = route_find(s, ask->route);
    qr_route_pages_named_t body = {.route = ask->route, .reason = route ? 0 : QR_E_UNKNOWN};
    uint32_t count = 0;
    if (!body.reason && ask->rows > route->rows && !QR_MUTANT(714)) body.reason = QR_E_INVALID;
    for (uint32_t g = 0; !body.reason && g < s->group_count; g++)
        if (pool_at(s, g)->window) body.reason = QR_E_UNSUPPORTED;
    for (uint32_t g = 0; !body.reason && g < s->group_count; g++)
        for (uint32_t j = 0; j < blocks_for(s, ask->rows); j++)
            scratch_handles(s)[count++] = qr_page_handle(table(s), g, page_of(s, route, g, j));
    body.pages = (qr_u64s_t){scratch_handles(s), count};
    qr_send(call->outbox, call->message->from, route_pages_named, &body);
}
static void on_pages_load(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_pages_load_t *ask = &call->message->body.pages_load;
    route_t *route = route_find(s, ask->route);
    qr_pages_loading_t body = {.route = ask->route, .reason = load_refusal(s, route, ask)};
    uint32_t count = 0;
    if (!body.reason) {
        route->state = ROUTE_LOADING;
        route->load_end = ask->end_rows;
        s->loads_open++;
        for (uint32_t g = 0; g < s->group_count; g++) {
            for (uint32_t j = ask->start_rows / s->page_tokens; j < blocks_for(s, ask->end_rows); j++) {
                uint32_t p = page_of(s, route, g, j);
                qr_page_move(table(s), g, p, QR_PAGE_LOADING);
                scratch_handles(s)[count++] = qr_page_handle(table(s), g, p);
            }
        }
    }
    body.pages = (qr_u64s_t){scratch_handles(s), count};
    qr_send(call->outbox, call->message->from, pages_loading, &body);
}
/* Blocks from `block` on of a load that stopped go back to the reservation at once: no transfer will touch them. */
static void load_quiet(page_manager_t *s, route_t *route, uint32_t block)
{
    for (uint32_t g = 0; g < s->group_count; g++)
        for (uint32_t j = block; j < blocks_for(s, route->load_end); j++)
            qr_page_move(table(s), g, page_of(s, route, g, j), QR_PAGE_RESERVED);
}
static void on_load_ended(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_load_ended_t *ask = &call->message->body.load_ended;
    route_t *route = route_find(s, ask->route);
    if (!route) return load_closed_send(call, ask->route, NULL, 0, QR_E_STALE);
    if (route->state != ROUTE_LOADING || ask->end_rows < route->rows || ask->end_rows > route->load_end)
        return load_closed_send(call, ask->route, NULL, 0, QR_E_INVALID);
    uint32_t end = ask->end_rows == route->load_end ? ask->end_rows : ask->end_rows - ask->end_rows % s->page_tokens;
    if (end > route->rows) rows_commit(s, route, end);
    uint32_t block = blocks_for(s, end);
    if (end == route->load_end || ask->quiet) {
        load_quiet(s, route, block);
        route->state = ROUTE_OPEN;
        s->loads_open--;
        load_closed_send(call, ask->route, route, block, 0);
        window_news_send(call, windows_advance(s, route, 0));
    } else {
        route->state = ROUTE_FENCING;
        route->fence = fence_start(call, route, block, false);
    }
}
static void on_fenced(const call_t *call)
{
    page_manager_t *s = call->self;
    uint64_t id = call->message->body.fenced.fence_id;
    uint32_t f = qr_handle_index(id);
    if (f >= QR_FENCES_MAX || !fence_at(s, f)->open || (fence_handle(f, fence_at(s, f)) != id && !QR_MUTANT(108))) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, QR_MESSAGE_fenced, id, 0);
        return;
    }
    fence_t *fence = fence_at(s, f);
    for (uint32_t place = fence->pages; place != NONE;) {
        uint32_t g = qr_place_group(place), p = qr_place_page(place);
        place = page_at(s, g, p)->link;
        qr_page_move(table(s), g, p, fence->route == NONE ? QR_PAGE_FREE : QR_PAGE_RESERVED);
    }
    fence->open = 0;
    s->loads_open--;
    if (fence->route == NONE) return;
    route_t *route = route_at(s, fence->route);
    route->state = ROUTE_OPEN;
    route->fence = NONE;
    load_closed_send(call, handle_of(s, route), route, blocks_for(s, route->rows), 0);
    window_news_send(call, windows_advance(s, route, 0));
}

static void drained_send(const call_t *call)
{
    page_manager_t *s = call->self;
    if (!s->drain_by_us || (s->routes_open && call->message->now_us < s->drain_by_us)) return;
    s->drain_by_us = 0;
    qr_send(call->outbox, s->drainer, drained, (&(qr_drained_t){.open_count = s->routes_open}));
}
static void on_route_release(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_route_release_t *ask = &call->message->body.route_release;
    route_t *route = route_find(s, ask->route);
    qr_route_released_t body = {.route = ask->route, .reason = route ? 0 : QR_E_UNKNOWN};
    if (!route) {
        qr_send(call->outbox, call->message->from, route_released, &body);
        return;
    }
    if (route->state == ROUTE_FENCING) { /* its load_ended is still unanswered */
        fence_orphan(s, route, route->fence);
        load_closed_send(call, ask->route, NULL, 0, QR_E_CANCELLED);
    }
    if (route->state == ROUTE_LOADING) fence_orphan(s, route, fence_start(call, route, blocks_for(s, route->rows), true));
    if (route->copy_rows && !QR_MUTANT(109)) copy_end(s, route);
    walk_end(s, route, ask->keep != 0);
    for (uint32_t g = 0; g < s->group_count; g++) pool_at(s, g)->idle -= route->windows[g].idle;
    *route = (route_t){.generation = raised(route->generation), .link = s->free_route};
    s->free_route = index_of(s, route);
    s->routes_open--;
    qr_send(call->outbox, call->message->from, route_released, &body);
    drained_send(call);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

/* The node that holds rows [.., count) of a chain of tokens, or NONE. */
static uint32_t chain_find(const page_manager_t *s, const qr_hash_t *scope, const uint32_t *tokens, uint32_t count)
{
    uint32_t n = qr_prefix_tree_scope(tree(s), scope), size = s->page_tokens, done = 0;
    for (; n != NONE && done + size <= count; done += size) n = qr_prefix_tree_find(tree(s), n, tokens + done);
    if (n == NONE || done == count) return n != NONE && node_at(s, n)->rows == size ? n : NONE;
    uint32_t steps = 0, child = NONE;
    while ((child = qr_prefix_tree_next(tree(s), n, tokens[done], child, &steps)) != NONE)
        if (node_at(s, child)->rows >= count - done &&
            equal_tokens(qr_node_tokens(tree(s), child), tokens + done, count - done) == count - done)
            return child;
    return NONE;
}
/* Lists the pages of blocks [from, ..] that a chain ending in node n names without a gap up to its end, in the lease. */
static void lease_fill(const page_manager_t *s, uint32_t l, uint32_t n, uint32_t from)
{
    lease_t *lease = lease_at(s, l);
    uint32_t last = node_at(s, n)->block;
    for (uint32_t g = 0; g < s->group_count; g++) {
        uint32_t node = n, count = 0;
        while (count <= last - from && node_at(s, node)->pages[g] != QR_PAGE_NONE) {
            lease_pages_of(s, l, g)[last - from - count] = node_at(s, node)->pages[g];
            node = node_at(s, node)->parent;
            count++;
        }
        memmove(lease_pages_of(s, l, g), lease_pages_of(s, l, g) + (last - from + 1 - count), count * sizeof(uint32_t));
        lease->count[g] = count;
        lease->first[g] = last + 1 - count;
    }
}
/* Finds and lists what a pin asks for in the free lease l; the reason if it cannot be. Nothing is held yet. */
static uint32_t lease_plan(const page_manager_t *s, uint32_t l, const qr_pages_pin_t *ask)
{
    if (!ask->tokens.count || ask->tokens.count > s->blocks_max * (uint64_t)s->page_tokens || ask->start_rows >= ask->tokens.count)
        return QR_E_INVALID;
    if (l == QR_LEASES_MAX) return QR_E_BUSY;
    uint32_t count = (uint32_t)ask->tokens.count, from = ask->start_rows / s->page_tokens;
    if (blocks_for(s, count) - from > s->lease_blocks) return QR_E_LIMIT;
    uint32_t n = chain_find(s, &ask->scope, ask->tokens.data, count);
    if (n == NONE) return QR_E_NOT_FOUND;
    lease_at(s, l)->node = n;
    lease_fill(s, l, n, from);
    for (uint32_t g = 0; g < s->group_count; g++)
        if (pool_at(s, g)->window && s->leased[g] + lease_at(s, l)->count[g] > pool_at(s, g)->set_aside) return QR_E_SHORTFALL;
    return 0;
}
static void pinned_send(const call_t *call, uint32_t l, uint32_t reason)
{
    page_manager_t *s = call->self;
    qr_pages_pinned_t body = {.holder_key = call->message->body.pages_pin.holder_key, .reason = reason};
    uint32_t count = 0;
    if (!reason) {
        const lease_t *lease = lease_at(s, l);
        for (uint32_t g = 0; g < s->group_count; g++)
            for (uint32_t i = 0; i < lease->count[g]; i++)
                scratch_handles(s)[count++] = qr_page_handle(table(s), g, lease_pages_of(s, l, g)[i]);
        body.lease = qr_handle(l, lease->generation);
        body.group_counts = (qr_u32s_t){lease->count, s->group_count};
        body.first_blocks = (qr_u32s_t){lease->first, s->group_count};
        body.pages = (qr_u64s_t){scratch_handles(s), count};
    }
    qr_send(call->outbox, call->message->from, pages_pinned, &body);
}
static void on_pages_pin(const call_t *call)
{
    page_manager_t *s = call->self;
    const qr_pages_pin_t *ask = &call->message->body.pages_pin;
    uint32_t l = 0;
    while (l < QR_LEASES_MAX && lease_at(s, l)->open) l++;
    uint32_t reason = lease_plan(s, l, ask);
    if (reason) return pinned_send(call, l, reason);
    lease_t *lease = lease_at(s, l);
    lease->open = 1;
    lease->generation = raised(lease->generation);
    lease->holder_key = ask->holder_key;
    lease->holder = call->message->from;
    lease->epoch = call->message->epoch;
    for (uint32_t n = lease->node; !(n & QR_NODE_ROOT); n = node_at(s, n)->parent) qr_residents_hold(residents(s), n);
    for (uint32_t g = 0; g < s->group_count; g++) {
        qr_pool_t *pool = pool_at(s, g);
        for (uint32_t i = 0; i < lease->count[g]; i++) {
            uint32_t p = lease_pages_of(s, l, g)[i];
            if (!QR_MUTANT(110)) qr_residents_ref(residents(s), g, p);
            if (pool->window && charge_take(s, g, p, QR_CHARGE_CAPTURES)) pool->aside--; /* paid: one more free page for others */
        }
        if (pool->window) s->leased[g] += lease->count[g];
    }
    pinned_send(call, l, 0);
}
/* A lease lets go of page p, block j, of a group. What captures paid comes back: from the next holder, or as a free page. */
static void lease_unref(page_manager_t *s, uint32_t g, uint32_t p, uint32_t j)
{
    qr_page_t *page = page_at(s, g, p);
    qr_pool_t *pool = pool_at(s, g);
    if (!pool->window || page->charge != QR_CHARGE_CAPTURES) {
        qr_residents_unref(residents(s), g, p);
        return;
    }
    if (page->refs > 1) {
        uint32_t to = other_holder(s, g, p, j, NONE);
        qr_assert(to != NONE);
        page->charge = to;
        qr_residents_unref(residents(s), g, p);
        if (to == QR_CHARGE_CAPTURES) return; /* another lease */
        idle_take(s, route_at(s, to), g);
    } else {
        if (!qr_pool_spare(pool) && page->node != NONE) qr_residents_unname(residents(s), g, p);
        qr_residents_unref(residents(s), g, p);
    }
    pool->aside++;
}
static void on_pages_unpin(const call_t *call)
{
    page_manager_t *s = call->self;
    uint64_t handle = call->message->body.pages_unpin.lease;
    uint32_t l = qr_handle_index(handle);
    qr_pages_unpinned_t body = {.lease = handle};
    lease_t *lease = l < QR_LEASES_MAX ? lease_at(s, l) : NULL;
    if (!lease || !lease->open || lease->generation != qr_handle_generation(handle) || lease->epoch != call->message->epoch) {
        body.reason = QR_E_STALE;
    } else {
        lease->open = 0;
        for (uint32_t g = 0; g < s->group_count; g++) {
            for (uint32_t i = 0; i < lease->count[g]; i++) lease_unref(s, g, lease_pages_of(s, l, g)[i], lease->first[g] + i);
            if (pool_at(s, g)->window) s->leased[g] -= lease->count[g];
            lease->count[g] = 0;
        }
        for (uint32_t n = lease->node, up; !(n & QR_NODE_ROOT); n = up) {
            up = node_at(s, n)->parent;
            qr_residents_unhold(residents(s), n, false);
        }
        lease->node = NONE;
    }
    qr_send(call->outbox, call->message->from, pages_unpinned, &body);
}

/* ---- life and questions from outside ----------------------------------------------------------------------------- */

static void on_start(const call_t *call)
{
    page_manager_t *s = call->self;
    s->epoch = call->message->body.start.epoch;
    if (!tree(s)->count) tree(s)->seed = call->message->body.start.seed;
    qr_send(call->outbox, call->message->from, ready, (&(qr_ready_t){.reason = 0}));
}
static void on_drain(const call_t *call)
{
    page_manager_t *s = call->self;
    s->draining = 1;
    s->drainer = call->message->from;
    s->drain_by_us = call->message->now_us + call->message->body.drain.budget_us;
    if (s->drain_by_us <= call->message->now_us) s->drain_by_us = call->message->now_us + 1;
    drained_send(call);
    alarm_set(call);
}
static void on_alarm(const call_t *call)
{
    page_manager_t *s = call->self;
    for (uint32_t f = 0; f < QR_FENCES_MAX; f++) {
        fence_t *fence = fence_at(s, f);
        if (!fence->open || fence->deadline_us > call->message->now_us) continue;
        fence->deadline_us = QR_NEVER_US; /* time alone frees nothing: whoever restarts the group reads this */
        qr_outbox_note(call->outbox, QR_LEVEL_ERROR, QR_NOTE_fence_late, 0, fence_handle(f, fence), fence->route, 0);
    }
    drained_send(call);
    alarm_set(call);
}
/* Pages of all groups in a state; free ones less what is promised to routes. */
static uint32_t pages_in(const page_manager_t *s, uint32_t state)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < s->group_count; g++) {
        const qr_pool_t *pool = pool_at(s, g);
        count += pool->counts[state];
        if (state == QR_PAGE_FREE) count -= pool->idle;
        if (state == QR_PAGE_RESERVED) count += pool->idle;
    }
    return count;
}
static uint32_t pages_total(const page_manager_t *s)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < s->group_count; g++) count += pool_at(s, g)->pages;
    return count;
}
static void on_cache_drop(const call_t *call)
{
    page_manager_t *s = call->self;
    while (qr_residents_evict_leaf(residents(s))) {
    }
    for (uint32_t g = 0; g < s->group_count; g++)
        while (pool_at(s, g)->window && qr_residents_evict_page(residents(s), g)) {
        }
    qr_cache_dropped_t body = {.pages_free = pages_in(s, QR_PAGE_FREE), .pages_pool = pages_total(s)};
    body.pages_held = body.pages_pool - body.pages_free;
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_dropped, 0, body.pages_free, body.pages_held, body.pages_pool);
    qr_send(call->outbox, call->message->from, cache_dropped, &body);
}
enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_MAX
};
static void on_metrics_read(const call_t *call)
{
    page_manager_t *s = call->self;
    static const uint32_t ids[] = {METRIC_pages_pool,        METRIC_pages_free,           METRIC_pages_reserved,
                                   METRIC_pages_used,        METRIC_pages_retained,       METRIC_pages_loading,
                                   METRIC_pages_fenced,      METRIC_page_evictions_total, METRIC_routes_open,
                                   METRIC_page_copies_total, METRIC_captures_asked_total, METRIC_captures_skipped_total};
    uint64_t values[QR_COUNT(ids)] = {pages_total(s),
                                      pages_in(s, QR_PAGE_FREE),
                                      pages_in(s, QR_PAGE_RESERVED),
                                      pages_in(s, QR_PAGE_USED),
                                      pages_in(s, QR_PAGE_RETAINED),
                                      pages_in(s, QR_PAGE_LOADING),
                                      pages_in(s, QR_PAGE_FENCED),
                                      residents(s)->evictions,
                                      s->routes_open,
                                      s->copies_total,
                                      s->captures_asked,
                                      s->captures_skipped};
    qr_metrics_t body = {{ids, QR_COUNT(ids)}, {values, QR_COUNT(ids)}};
    qr_send(call->outbox, call->message->from, metrics, &body);
}

static void check(const void *self, const qr_given_t *given);
static void on_stop(const call_t *call)
{
    check(call->self, call->given);
    qr_send(call->outbox, call->message->from, stopped, (&(qr_stopped_t){.reason = 0}));
}

static void handle(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const call_t call = {self, given, message, outbox};
    switch (message->type) {
    case QR_MESSAGE_rows_committed: on_rows_committed(&call); break;
    case QR_MESSAGE_pages_reserve: on_pages_reserve(&call); break;
    case QR_MESSAGE_pages_more: on_pages_more(&call); break;
    case QR_MESSAGE_route_release: on_route_release(&call); break;
    case QR_MESSAGE_route_pages: on_route_pages(&call); break;
    case QR_MESSAGE_pages_load: on_pages_load(&call); break;
    case QR_MESSAGE_load_ended: on_load_ended(&call); break;
    case QR_MESSAGE_fenced: on_fenced(&call); break;
    case QR_MESSAGE_captured: on_captured(&call); break;
    case QR_MESSAGE_pages_pin: on_pages_pin(&call); break;
    case QR_MESSAGE_pages_unpin: on_pages_unpin(&call); break;
    case QR_MESSAGE_cache_drop: on_cache_drop(&call); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(&call); break;
    case QR_MESSAGE_alarm: on_alarm(&call); break;
    case QR_MESSAGE_start: on_start(&call); break;
    case QR_MESSAGE_drain: on_drain(&call); break;
    case QR_MESSAGE_stop: on_stop(&call); break;
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break; /* pages know nothing of other nodes */
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

enum { CHECKED_AT_ONCE = 1024 };

/* Counts references to pages [from, from + CHECKED_AT_ONCE) of a group from who holds them. */
static void references(const page_manager_t *s, uint32_t g, uint32_t from, uint32_t *counts)
{
    memset(counts, 0, CHECKED_AT_ONCE * sizeof(uint32_t));
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        const uint32_t *pages = pages_of(s, r, g);
        if (!is_open(route)) continue;
        if (route->copy_rows && route->copy_pages[g] - from < CHECKED_AT_ONCE) counts[route->copy_pages[g] - from]++;
        for (uint32_t j = route->windows[g].first; j < route->windows[g].end; j++)
            if (pages[j] - from < CHECKED_AT_ONCE) counts[pages[j] - from]++;
    }
    for (uint32_t l = 0; l < QR_LEASES_MAX; l++)
        for (uint32_t i = 0; lease_at(s, l)->open && i < lease_at(s, l)->count[g]; i++)
            if (lease_pages_of(s, l, g)[i] - from < CHECKED_AT_ONCE) counts[lease_pages_of(s, l, g)[i] - from]++;
}
static uint32_t holders(const page_manager_t *s, uint32_t n)
{
    uint32_t count = 0, j = node_at(s, n)->block;
    for (uint32_t r = 0; r < s->route_capacity; r++)
        if (is_open(route_at(s, r)) && j < route_at(s, r)->walked) count += walk_of(s, r)[j] == n;
    for (uint32_t l = 0; l < QR_LEASES_MAX; l++) {
        if (!lease_at(s, l)->open) continue;
        for (uint32_t m = lease_at(s, l)->node; !(m & QR_NODE_ROOT); m = node_at(s, m)->parent) count += m == n;
    }
    return count;
}
static void check_route(const page_manager_t *s, uint32_t r)
{
    const route_t *route = route_at(s, r);
    const uint32_t *walk = walk_of(s, r);
    uint32_t size = s->page_tokens, blocks = blocks_for(s, route->rows_max), loaded = route->state == ROUTE_OPEN ? 0 : route->load_end;
    qr_assert(route->rows <= route->tokens && route->tokens <= route->rows_max && route->walked == blocks_for(s, route->tokens)); /* I1 */
    qr_assert(!route->copy_rows || (route->rows % size == 0 && route->rows <= route->boundary));                                  /* I5 */
    for (uint32_t j = 0; j < route->walked; j++) {
        const qr_node_t *node = node_at(s, walk[j]);
        qr_assert(node->block == j && node->token_count >= rows_in_block(s, route->tokens, j) &&
                  node->rows >= rows_in_block(s, route->rows, j));
        qr_assert(j ? node->parent == walk[j - 1] : (node->parent & QR_NODE_ROOT) != 0);
    }
    for (uint32_t g = 0; g < s->group_count; g++) {
        const window_t *window = &route->windows[g];
        uint32_t charged = 0, extra = 0;
        qr_assert(window->first <= window->end && window->end <= blocks && window->end - window->first <= window->limit);
        if (!pool_at(s, g)->window) qr_assert(window->first == 0 && window->end == blocks && !window->idle); /* I1 */
        for (uint32_t j = window->first; j < window->end; j++) {
            const qr_page_t *page = page_at(s, g, pages_of(s, r, g)[j]);
            uint32_t rows = rows_in_block(s, route->rows, j);
            uint32_t state = rows ? QR_PAGE_USED : QR_PAGE_RESERVED;
            if (loaded && !rows && j * size < loaded) state = route->state == ROUTE_LOADING ? QR_PAGE_LOADING : QR_PAGE_FENCED; /* I8 */
            qr_assert(page->state == state && (rows == size || page->node == QR_NODE_NONE || page->node == walk[j]));           /* I4 */
            if (page->node != QR_NODE_NONE && rows < size)
                qr_assert(node_at(s, page->node)->rows == rows && node_at(s, page->node)->writer == r);
            charged += page->charge == r;
        }
        if (!pool_at(s, g)->window) continue;
        if (route->copy_rows) {
            extra = 1;
            charged += page_at(s, g, route->copy_pages[g])->charge == r;
        }
        qr_assert(charged + window->idle == window->limit + extra); /* I6 */
    }
}
static void check_group(const page_manager_t *s, uint32_t g)
{
    const qr_pool_t *pool = pool_at(s, g);
    uint32_t idle = 0, captured = 0, counts[CHECKED_AT_ONCE];
    for (uint32_t r = 0; r < s->route_capacity; r++)
        if (is_open(route_at(s, r))) idle += route_at(s, r)->windows[g].idle;
    for (uint32_t p = 0; p < pool->pages; p++) {
        const qr_page_t *page = page_at(s, g, p);
        if (p % CHECKED_AT_ONCE == 0) references(s, g, p, counts);
        qr_assert(page->refs == counts[p % CHECKED_AT_ONCE]);              /* I3 */
        qr_assert((page->charge != NONE) == (pool->window && page->refs)); /* I6 */
        captured += page->charge == QR_CHARGE_CAPTURES;
    }
    qr_assert(idle == pool->idle && pool->aside + captured == pool->set_aside && captured <= s->leased[g]);
}
/* Asserts I1 to I8 over the whole state. */
static void check(const void *self, const qr_given_t *given)
{
    const page_manager_t *s = self;
    uint32_t open = 0, loads = 0;
    qr_residents_check(residents(s));               /* I2 */
    qr_assert(s->captures_open <= s->captures_max); /* I12 */
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        if (!is_open(route_at(s, r))) continue;
        open++;
        loads += route_at(s, r)->state == ROUTE_LOADING;
        check_route(s, r);
    }
    for (uint32_t f = 0; f < QR_FENCES_MAX; f++) loads += fence_at(s, f)->open;
    qr_assert(open == s->routes_open && loads == s->loads_open && loads <= QR_FENCES_MAX); /* I8 */
    for (uint32_t g = 0; g < given->layout.group_count; g++) check_group(s, g);
    for (uint32_t n = 0; n < tree(s)->capacity; n++) {
        const qr_node_t *node = node_at(s, n);
        if (!node->token_count) continue;
        qr_assert(node->holders == holders(s, n)); /* I3 */
        qr_assert(node->rows || node->writer != NONE);
        if (node->writer != NONE) {
            const route_t *route = route_at(s, node->writer);
            qr_assert(is_open(route) && node->block < route->walked && walk_of(s, node->writer)[node->block] == n); /* I7 */
        }
    }
}

/* ---- print, init ------------------------------------------------------------------------------------------------- */

static void put(qr_text_t *text, const char *name, uint64_t value)
{
    qr_text_put(text, name);
    qr_text_put_u64(text, value);
}
static void print(const void *self, const qr_given_t *given, qr_text_t *text)
{
    const page_manager_t *s = self;
    (void)given;
    for (uint32_t g = 0; g < s->group_count; g++) {
        const qr_pool_t *pool = pool_at(s, g);
        put(text, "group ", g);
        put(text, ": pages ", pool->pages);
        put(text, " free ", pool->counts[QR_PAGE_FREE] - pool->idle - pool->aside);
        put(text, " aside ", pool->aside);
        put(text, " reserved ", pool->counts[QR_PAGE_RESERVED] + pool->idle);
        put(text, " loading ", pool->counts[QR_PAGE_LOADING]);
        put(text, " used ", pool->counts[QR_PAGE_USED]);
        put(text, " retained ", pool->counts[QR_PAGE_RETAINED]);
        put(text, " fenced ", pool->counts[QR_PAGE_FENCED]);
        put(text, " evictable ", pool->evictable);
        qr_text_put(text, "\n");
    }
    put(text, "nodes ", tree(s)->count);
    put(text, " routes ", s->routes_open);
    put(text, " loads and fences ", s->loads_open);
    put(text, " evicted ", residents(s)->evictions);
    qr_text_put(text, "\n");
    for (uint32_t r = 0; r < s->route_capacity; r++) {
        const route_t *route = route_at(s, r);
        if (!is_open(route)) continue;
        put(text, "route ", r);
        put(text, " request ", route->request_id);
        put(text, " state ", route->state);
        put(text, " rows ", route->rows);
        put(text, " boundary ", route->boundary);
        put(text, " tokens ", route->tokens);
        put(text, " of ", route->rows_max);
        put(text, " copy ", route->copy_rows);
        qr_text_put(text, "\n");
    }
}

static uint64_t place(page_manager_t *s, const qr_given_t *given)
{
    const qr_layout_t *layout = &given->layout;
    uint64_t at_byte = sizeof(page_manager_t), rows;
    qr_assert(layout->page_tokens && layout->context_tokens && layout->context_tokens <= QR_CONTEXT_MAX && given->params.max_lanes);
    s->group_count = layout->group_count;
    s->page_tokens = layout->page_tokens;
    s->blocks_max = (uint32_t)qr_div_up(layout->context_tokens, layout->page_tokens);
    s->route_capacity = 2 * (uint32_t)given->params.max_lanes; /* a lane may be void and its successor admitted already */
    s->lease_blocks = (uint32_t)qr_div_up(layout->chunk_tokens, layout->page_tokens) + 1;
    s->scratch_count = s->blocks_max * s->group_count;
    for (uint32_t g = 0; g < s->group_count; g++)
        if (layout->groups[g].window) s->scratch_count = qr_max_u32(s->scratch_count, layout->groups[g].pages * s->group_count);
    s->scratch_count = (uint32_t)qr_round_up(qr_max_u32(s->scratch_count, s->lease_blocks * s->group_count), 2);
    rows = s->route_capacity + 1ull;
    s->routes_at = at_byte;
    at_byte += s->route_capacity * sizeof(route_t);
    s->leases_at = at_byte;
    at_byte += QR_LEASES_MAX * sizeof(lease_t);
    s->fences_at = at_byte;
    at_byte += QR_FENCES_MAX * sizeof(fence_t);
    s->scratch_at = at_byte;
    at_byte += s->scratch_count * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t));
    s->residents_at = at_byte;
    at_byte += qr_residents_bytes(layout);
    s->walks_at = at_byte;
    at_byte += rows * s->blocks_max * sizeof(uint32_t);
    s->pages_at = at_byte;
    at_byte += (uint64_t)s->route_capacity * s->group_count * s->blocks_max * sizeof(uint32_t);
    s->lease_pages_at = at_byte;
    at_byte += (uint64_t)QR_LEASES_MAX * s->group_count * s->lease_blocks * sizeof(uint32_t);
    s->tokens_at = at_byte;
    s->chunk_tokens = given->params.store[0] && given->params.captures ? layout->chunk_tokens : 0;
    s->captures_max = (uint32_t)given->params.captures;
    if (s->chunk_tokens) at_byte += (uint64_t)s->blocks_max * s->page_tokens * sizeof(uint32_t);
    return qr_round_up(at_byte, 8);
}
static uint64_t bytes(const qr_given_t *given)
{
    page_manager_t s = {0};
    return place(&s, given);
}
static void init(void *self, const qr_given_t *given, uint64_t address)
{
    page_manager_t *s = self;
    place(s, given);
    s->address = address;
    for (uint32_t r = 0; r < s->route_capacity; r++)
        *route_at(s, r) = (route_t){.generation = 1, .link = r + 1 < s->route_capacity ? r + 1 : NONE};
    for (uint32_t l = 0; l < QR_LEASES_MAX; l++) lease_at(s, l)->node = NONE;
    qr_residents_init(residents(s), &given->layout);
}

const qr_actor_class_t qr_page_manager_class = {
    .name = "page_manager",
    .role = QR_ROLE_page_manager,
    .max_out = 4 + QR_CAPTURES_MAX,
    .bytes = bytes,
    .init = init,
    .handle = handle,
    .check = check,
    .print = print,
};
