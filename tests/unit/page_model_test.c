/* link: qr_actor_page_manager qr_actor_residents qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_messages */
/* page_model_test.c - page_manager against a simple world of its own: a memory in which every row of every page holds a digest of
 * the token prefix it was computed from. A random scheduler, transfer and checkpoint writer ask, compute, copy, load, fail, lease
 * and leave; after each message the actor's own check runs and the world compares:
 *   - every granted row below the boundary holds exactly the asked prefix, in every group, also after its copy ran late;
 *   - a page given to a route to write is held by nobody else, touched by no transfer, and has a new generation;
 *   - rows that were committed never change while anybody holds them;
 *   - used, reserved, loading and fenced pages are those that somebody holds, and all states make the pool;
 *   - a refused or waiting ask changed nothing; a wait names an open route that will compute these rows;
 *   - alone on the device everything that can ever fit is granted; after a cache drop every page is free.
 * Nothing here looks into the actor. Arguments: --full (1,000,000 operations instead of 100,000), --seed N, --operations N. */
#include "base/prng.h"
#include "page_stand.h"

#include <signal.h>

#undef assert
#define CHECK(x) ((x) ? (void)0 : failed(#x, __LINE__))

enum { ROUTES = 16, TOKENS = 512, LEASES = 4, FENCES = 64, HISTORY = 24, PAGES = 700, ROWS = 16 };

typedef struct held {
    uint32_t routes, copies, leases, transfers, has_rows;
} held_t; /* who holds a page, counted afresh */

typedef struct model_route {
    bool open, loading, fencing;
    uint64_t handle;
    uint8_t salt;
    uint32_t tokens[TOKENS];
    uint64_t digests[TOKENS]; /* of the prefix that ends with token i */
    uint32_t known, prompt, rows_max, in_flight;
    uint32_t rows;                         /* committed */
    uint32_t run;                          /* written by batches, at least rows */
    uint32_t boundary, copy_count, copied; /* copied: the copy ran in this attempt */
    uint64_t copy_sources[QR_GROUPS_MAX];
    uint32_t copy_rows, load_start, load_end, loaded;
    uint32_t first[QR_GROUPS_MAX], end[QR_GROUPS_MAX];
    uint64_t pages[QR_GROUPS_MAX][TOKENS];
} model_route_t;

typedef struct model_lease {
    bool open;
    uint64_t handle;
    uint32_t count[QR_GROUPS_MAX], first[QR_GROUPS_MAX], rows; /* rows: end of the leased range */
    uint64_t pages[QR_GROUPS_MAX][8];
    uint64_t digests[TOKENS];
} model_lease_t;

typedef struct model_fence {
    bool open;
    uint64_t id;
    uint32_t count;
    uint32_t groups[64];
    uint64_t pages[64];
} model_fence_t;

static struct {
    stand_t *stand;
    geometry_t geometry;
    qr_prng_t prng;
    uint64_t seed, operation;
    uint64_t memory[QR_GROUPS_MAX][PAGES][ROWS];
    uint32_t generations[QR_GROUPS_MAX][PAGES]; /* of the last time a page was given to be written */
    model_route_t routes[ROUTES];
    model_lease_t leases[LEASES];
    model_fence_t fences[FENCES];
    uint64_t stale_routes[4], stale_leases[4], stale_fences[4];
    uint32_t history[HISTORY][TOKENS], history_count[HISTORY];
    uint8_t history_salt[HISTORY];
    uint64_t before_bytes;
    uint8_t *before;
    uint64_t granted, refused, waited, copied, reused, taken_over, evicted, merged_tokens, loads, fenced, leased;
} w;

static void on_abort(int number)
{
    fprintf(stderr, "signal %d at seed %llu operation %llu\n", number, (unsigned long long)w.seed, (unsigned long long)w.operation);
    signal(number, SIG_DFL);
    raise(number);
}
_Noreturn static void failed(const char *what, int line)
{
    static char data[8192];
    qr_text_t text;
    qr_text_init(&text, data, sizeof data);
    qr_page_manager_class.print(w.stand->state, w.stand->given, &text);
    fprintf(stderr, "page_model_test.c:%d: %s\nseed %llu operation %llu\n%s", line, what, (unsigned long long)w.seed,
            (unsigned long long)w.operation, data);
    exit(1);
}
static uint32_t below(uint32_t bound) { return (uint32_t)(qr_prng_next(&w.prng) % bound); }
static bool chance(uint32_t percent) { return below(100) < percent; }
static uint32_t window_of(uint32_t g) { return w.geometry.pools[g].window; }
static uint32_t attended(uint32_t g, uint32_t n) { return window_of(g) && n + 1 > window_of(g) ? n + 1 - window_of(g) : 0; }

static uint64_t digest_next(uint64_t digest, uint32_t token)
{
    digest = (digest + token + 1) * 0xd1342543de82ef95u;
    return digest ^ digest >> 29;
}
static uint64_t digest_begin(uint8_t salt) { return digest_next(0x1234567, salt); }
/* What a row holds of a prefix: each group something else. */
static uint64_t content(uint32_t g, uint64_t digest) { return digest * 2 + 1 + g * 0x100000001b3u; }

/* ---- who holds what, from what the actor said -------------------------------------------------------------------- */

static void each_holder(uint32_t g, uint32_t p, held_t *ret)
{
    *ret = (held_t){0};
    uint32_t size = w.geometry.page_tokens;
    for (uint32_t r = 0; r < ROUTES; r++) {
        const model_route_t *route = &w.routes[r];
        if (!route->open) continue;
        for (uint32_t j = route->first[g]; j < route->end[g]; j++) {
            if (qr_handle_index(route->pages[g][j]) != p) continue;
            bool transfer = (route->loading || route->fencing) && j * size >= route->load_start && j * size < route->load_end;
            ret->routes++;
            if (transfer && j * size >= route->rows) ret->transfers++;
            if (j * size < route->rows) ret->has_rows = 1;
        }
        if (route->copy_count && qr_handle_index(route->copy_sources[g]) == p) ret->copies++, ret->has_rows = 1;
    }
    for (uint32_t l = 0; l < LEASES; l++)
        for (uint32_t i = 0; w.leases[l].open && i < w.leases[l].count[g]; i++)
            if (qr_handle_index(w.leases[l].pages[g][i]) == p) ret->leases++, ret->has_rows = 1;
    for (uint32_t f = 0; f < FENCES; f++)
        for (uint32_t i = 0; w.fences[f].open && i < w.fences[f].count; i++)
            if (w.fences[f].groups[i] == g && qr_handle_index(w.fences[f].pages[i]) == p) ret->transfers++;
}
/* A page is given to one route to write: nobody else may have it, and its handle was never given before. */
static void given_to_write(uint32_t g, uint64_t handle)
{
    uint32_t p = qr_handle_index(handle);
    held_t held;
    CHECK(p < w.geometry.pools[g].pages);
    each_holder(g, p, &held);
    CHECK(held.routes == 1 && !held.copies && !held.leases && !held.transfers);
    CHECK(qr_handle_generation(handle) > w.generations[g][p]);
    w.generations[g][p] = qr_handle_generation(handle);
    for (uint32_t i = 0; i < ROWS; i++) w.memory[g][p][i] = qr_prng_next(&w.prng) & ~1u ? 0xbad : 0; /* unwritten rows are poison */
}
static void check_rows(const model_route_t *route, uint32_t to, bool copies_ran)
{
    uint32_t size = w.geometry.page_tokens;
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        uint32_t from = attended(g, to);
        CHECK(route->first[g] * size <= from && route->end[g] * size >= to);
        uint32_t last = !copies_ran && route->copy_count ? to - to % size : to;
        for (uint32_t q = from; q < last; q++)
            CHECK(w.memory[g][qr_handle_index(route->pages[g][q / size])][q % size] == content(g, route->digests[q]));
    }
}
static uint64_t metric_sum(const qr_metrics_t *m, uint32_t id)
{
    for (uint64_t i = 0; i < m->ids.count; i++)
        if (m->ids.data[i] == id) return m->values.data[i];
    failed("a metric is missing", __LINE__);
}
/* Conservation, against who holds what here. */
static void check_conservation(void)
{
    uint32_t used = 0, reserved = 0, moving = 0, pool = 0, windowed = 0;
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        pool += w.geometry.pools[g].pages;
        windowed += window_of(g) != 0;
        for (uint32_t p = 0; p < w.geometry.pools[g].pages; p++) {
            held_t held;
            each_holder(g, p, &held);
            if (held.transfers)
                moving++;
            else if (held.has_rows)
                used++;
            else if (held.routes)
                reserved++;
        }
    }
    SAY(w.stand, ADMIN, metrics_read, 1);
    const qr_metrics_t *m = HEARD(w.stand, metrics);
    CHECK(metric_sum(m, METRIC_pages_pool) == pool);
    CHECK(metric_sum(m, METRIC_pages_used) == used);
    CHECK(metric_sum(m, METRIC_pages_loading) + metric_sum(m, METRIC_pages_fenced) == moving);
    CHECK(windowed ? metric_sum(m, METRIC_pages_reserved) >= reserved : metric_sum(m, METRIC_pages_reserved) == reserved);
    CHECK(metric_sum(m, METRIC_pages_free) + metric_sum(m, METRIC_pages_reserved) + used + moving + metric_sum(m, METRIC_pages_retained) ==
          pool);
    w.evicted = metric_sum(m, METRIC_page_evictions_total);
}

/* ---- what the actor says without being asked --------------------------------------------------------------------- */

static model_route_t *route_of(uint64_t handle)
{
    for (uint32_t r = 0; r < ROUTES; r++)
        if (w.routes[r].open && w.routes[r].handle == handle) return &w.routes[r];
    failed("a route that is not open", __LINE__);
}
static void take_window_pages(const qr_window_pages_t *m)
{
    for (uint64_t i = 0; i < m->routes.count; i++) {
        model_route_t *route = route_of(m->routes.data[i]);
        uint32_t g = m->groups.data[i], size = w.geometry.page_tokens;
        CHECK(window_of(g) && m->blocks.data[i] == route->end[g]);
        /* What is before the window is no longer this route's. */
        if (route->first[g] < attended(g, route->rows) / size) route->first[g] = attended(g, route->rows) / size;
        route->pages[g][route->end[g]++] = m->pages.data[i];
    }
    for (uint64_t i = 0; i < m->routes.count; i++) given_to_write(m->groups.data[i], m->pages.data[i]);
}
static void windows_leave(model_route_t *route)
{
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        uint32_t first = attended(g, route->rows) / w.geometry.page_tokens;
        if (window_of(g) && route->first[g] < first) route->first[g] = first < route->end[g] ? first : route->end[g];
    }
}
static void take_load_closed(const qr_load_closed_t *m, model_route_t *route, uint32_t boundary)
{
    uint32_t size = w.geometry.page_tokens, from = (boundary + size - 1) / size, to = (route->load_end + size - 1) / size;
    uint64_t at = 0;
    CHECK(m->reason == 0);
    CHECK(m->boundary == (route->copy_count ? qr_max_u32(route->rows, route->boundary) : route->rows));
    route->loading = route->fencing = false;
    for (uint32_t g = 0; g < w.geometry.groups; g++)
        for (uint32_t j = from; j < to; j++) route->pages[g][j] = m->pages.data[at++];
    CHECK(at == m->pages.count);
    for (uint32_t g = 0; g < w.geometry.groups; g++)
        for (uint32_t j = from; j < to; j++) given_to_write(g, route->pages[g][j]);
    route->run = route->rows;
    route->copied = 0;
}
static void take_fence(const qr_fence_t *m)
{
    uint32_t f = 0;
    while (f < FENCES && w.fences[f].open) f++;
    CHECK(f < FENCES && m->groups.count == m->pages.count && m->pages.count <= 64 && m->pages.count);
    w.fences[f] = (model_fence_t){.open = true, .id = m->fence_id, .count = (uint32_t)m->pages.count};
    memcpy(w.fences[f].groups, m->groups.data, m->pages.count * 4);
    memcpy(w.fences[f].pages, m->pages.data, m->pages.count * 8);
    w.fenced++;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void remember_state(void)
{
    uint64_t bytes = qr_page_manager_class.bytes(w.stand->given);
    if (bytes != w.before_bytes) w.before = realloc(w.before, bytes);
    w.before_bytes = bytes;
    memcpy(w.before, w.stand->state, bytes);
}
/* A prompt: often the beginning of an earlier conversation, then tokens of a small vocabulary. */
static void make_prompt(model_route_t *route)
{
    uint32_t context = w.geometry.context, from = below(HISTORY), keep = 0;
    route->salt = (uint8_t)below(2);
    if (w.history_count[from] && chance(80)) {
        route->salt = w.history_salt[from];
        keep = chance(40) ? w.history_count[from] : below(w.history_count[from] + 1);
        memcpy(route->tokens, w.history[from], keep * 4);
    }
    uint32_t longest = chance(60) ? context / 4 + 1 : context;
    uint32_t count = qr_min_u32(qr_max_u32(1, keep + below(chance(50) ? 3 : longest)), context);
    /* Some tokens differ above the low byte only. */
    for (uint32_t i = keep; i < count; i++) route->tokens[i] = below(chance(80) ? 2 : 50) + (chance(10) ? 256 : 0);
    route->prompt = route->known = count;
    uint64_t digest = digest_begin(route->salt);
    for (uint32_t i = 0; i < count; i++) route->digests[i] = digest = digest_next(digest, route->tokens[i]);
    route->rows_max = count + below(qr_min_u32(context - count, chance(70) ? 12 : context) + 1);
    route->in_flight = 1 + below(12);
}
static bool anybody(void)
{
    for (uint32_t r = 0; r < ROUTES; r++)
        if (w.routes[r].open) return true;
    for (uint32_t l = 0; l < LEASES; l++)
        if (w.leases[l].open) return true;
    for (uint32_t f = 0; f < FENCES; f++)
        if (w.fences[f].open) return true;
    return false;
}
static bool ever_fits(const model_route_t *route)
{
    uint32_t size = w.geometry.page_tokens, blocks = (route->rows_max + size - 1) / size;
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        uint32_t need = blocks, most = (window_of(g) - 1 + route->in_flight + size - 1) / size + 1;
        if (window_of(g) && need > most) need = most;
        if (need > w.geometry.pools[g].pages - w.geometry.pools[g].set_aside) return false;
    }
    return true;
}
static void check_wait(const model_route_t *asker, const answer_t *a, uint32_t wait_rows)
{
    const model_route_t *producer = route_of(a->producer);
    CHECK(wait_rows && a->boundary >= wait_rows && a->boundary < asker->prompt);
    CHECK(producer->salt == asker->salt && producer->rows < a->boundary && producer->known >= a->boundary);
    CHECK(!memcmp(producer->tokens, asker->tokens, a->boundary * 4));
    w.waited++;
}
static void check_grant(model_route_t *route, const answer_t *a)
{
    uint32_t size = w.geometry.page_tokens, blocks = (route->rows_max + size - 1) / size, at = 0, part = a->boundary / size;
    CHECK(a->boundary < route->prompt);
    route->open = true;
    route->handle = a->route;
    route->boundary = a->boundary;
    route->copy_count = a->copy_count;
    route->rows = route->run = a->copy_count ? a->boundary - a->boundary % size : a->boundary;
    CHECK(a->copy_count == 0 || (a->copy_count == w.geometry.groups && a->boundary % size == a->copy_rows[0]));
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        route->first[g] = a->first_blocks[g];
        route->end[g] = a->first_blocks[g] + a->group_counts[g];
        CHECK(window_of(g) || (route->first[g] == 0 && route->end[g] == blocks));
        CHECK(route->end[g] <= blocks && route->end[g] * size >= qr_min_u32(a->boundary + route->in_flight, route->rows_max));
        for (uint32_t j = route->first[g]; j < route->end[g]; j++) route->pages[g][j] = a->pages[at++];
        if (!a->copy_count) continue;
        CHECK(a->copy_groups[g] == g && a->copy_rows[g] == a->boundary % size && a->copy_targets[g] == route->pages[g][part]);
        route->copy_sources[g] = a->copy_sources[g];
        route->copy_rows = a->copy_rows[g];
        CHECK(qr_handle_generation(a->copy_sources[g]) == w.generations[g][qr_handle_index(a->copy_sources[g])]);
        for (uint32_t i = 0; i < a->copy_rows[g]; i++)
            CHECK(w.memory[g][qr_handle_index(a->copy_sources[g])][i] == content(g, route->digests[part * size + i]));
    }
    CHECK(at == a->page_count);
    bool taken_over = a->boundary % size && !a->copy_count;
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        for (uint32_t j = route->first[g]; j < route->end[g]; j++) {
            uint64_t handle = route->pages[g][j];
            held_t held;
            if (j < part || (j == part && taken_over))
                CHECK(qr_handle_generation(handle) == w.generations[g][qr_handle_index(handle)]);
            else
                given_to_write(g, handle);
            if (j != part || !taken_over) continue;
            each_holder(g, qr_handle_index(handle), &held);
            CHECK(held.routes == 1 && !held.copies && !held.leases && !held.transfers);
        }
    }
    check_rows(route, a->boundary, false);
    w.granted++;
    w.reused += a->boundary;
    w.copied += a->copy_count != 0;
    w.taken_over += taken_over;
}
static void operate_reserve(model_route_t *route)
{
    bool busy = anybody(), look = chance(10);
    *route = (model_route_t){0};
    make_prompt(route);
    if (look) remember_state();
    uint32_t wait_rows = chance(30) ? 1 + below(8) : 0;
    answer_t a = reserve_more(w.stand, route->salt, route->tokens, route->prompt, route->rows_max, route->in_flight, wait_rows);
    if (a.type == QR_MESSAGE_pages_granted) {
        check_grant(route, &a);
        return;
    }
    if (look) CHECK(!memcmp(w.before, w.stand->state, w.before_bytes));
    if (a.type == QR_MESSAGE_pages_wait) {
        check_wait(route, &a, wait_rows);
        return;
    }
    w.refused++;
    CHECK((a.reason == QR_E_NEVER_FITS) == !ever_fits(route));
    CHECK(busy || a.reason == QR_E_NEVER_FITS);
    CHECK(a.reason == QR_E_NEVER_FITS || a.reason == QR_E_SHORTFALL || a.reason == QR_E_BUSY);
    CHECK(a.pages_short || a.reason == QR_E_BUSY);
}
/* A batch computes rows of a route: what it attends is looked at, copies run first, rows are written. */
static void operate_run(model_route_t *route)
{
    if (route->loading || route->fencing) return;
    uint32_t size = w.geometry.page_tokens, from = qr_max_u32(route->run, route->boundary);
    if (route->run == route->rows && route->copy_count) route->copied = 0; /* the first batch, or again after a failed one */
    uint32_t base = qr_max_u32(route->rows, route->boundary);
    uint32_t most = qr_min_u32(base + route->in_flight, route->rows_max);
    if (from >= most) return;
    uint32_t to = from + 1 + below(most - from);
    if (from < route->prompt)
        to = qr_min_u32(to, route->prompt); /* the last prompt row samples the next token */
    else
        to = from + 1;
    if (route->copy_count && !route->copied) {
        for (uint32_t g = 0; g < w.geometry.groups; g++)
            memcpy(w.memory[g][qr_handle_index(route->pages[g][route->boundary / size])],
                   w.memory[g][qr_handle_index(route->copy_sources[g])], route->copy_rows * 8);
        route->copied = 1;
    }
    check_rows(route, from, true);
    for (uint32_t q = from; q < to; q++) {
        if (q >= route->known) {
            route->tokens[q] = below(2);
            route->digests[q] = digest_next(route->digests[q - 1], route->tokens[q]);
            route->known = q + 1;
        }
        for (uint32_t g = 0; g < w.geometry.groups; g++) {
            CHECK(q / size < route->end[g]);
            w.memory[g][qr_handle_index(route->pages[g][q / size])][q % size] = content(g, route->digests[q]);
        }
    }
    route->run = to;
}
/* All batches of several routes are done: one message. */
static void operate_commit(void)
{
    uint64_t routes[ROUTES + 1];
    uint32_t rows[ROUTES + 1], counts[ROUTES + 1], count = 0, tokens[TOKENS], token_count = 0;
    model_route_t *who[ROUTES + 1] = {0};
    for (uint32_t r = 0; r < ROUTES; r++) {
        model_route_t *route = &w.routes[r];
        uint32_t to = route->run, from = qr_max_u32(route->rows, route->boundary);
        if (!route->open || route->loading || route->fencing || to <= from || chance(40)) continue;
        if (to > route->prompt && from < route->prompt && chance(50)) to = route->prompt; /* the older of two batches */
        uint32_t ids = to > route->prompt ? to - qr_max_u32(from, route->prompt) : 0;
        if (chance(30)) ids = to - from; /* ids of prompt rows may be told again */
        if (token_count + ids > TOKENS) continue;
        routes[count] = route->handle;
        rows[count] = to;
        counts[count] = ids;
        who[count++] = route;
        memcpy(tokens + token_count, route->tokens + to - ids, ids * 4);
        token_count += ids;
    }
    if (chance(5)) {
        routes[count] = w.stale_routes[below(4)];
        rows[count] = 1;
        counts[count] = 0;
        who[count++] = NULL;
    }
    if (!count) return;
    for (uint32_t i = 0; i < count; i++) {
        if (!who[i]) continue;
        if (rows[i] > who[i]->boundary) who[i]->copy_count = 0;
        who[i]->rows = rows[i];
    }
    SAY(w.stand, SCHEDULER, rows_committed, {routes, count}, {rows, count}, {counts, count}, {tokens, token_count});
    for (uint32_t i = 0; i < w.stand->outbox.note_count; i++) CHECK(w.stand->outbox.notes[i].code == QR_NOTE_stale);
    for (uint32_t i = 0; i < count; i++)
        if (who[i]) windows_leave(who[i]);
    if (w.stand->outbox.count) take_window_pages(HEARD(w.stand, window_pages));
}
/* batch_failed: what batches wrote since the last commit is void and will be computed again; its rows are garbage now. */
static void operate_fail(model_route_t *route)
{
    uint32_t size = w.geometry.page_tokens, from = route->copy_count ? route->rows : qr_max_u32(route->rows, 0);
    if (route->loading || route->fencing) return;
    for (uint32_t q = from; q < route->run; q++)
        for (uint32_t g = 0; g < w.geometry.groups; g++) w.memory[g][qr_handle_index(route->pages[g][q / size])][q % size] = 0xbad;
    route->run = route->rows;
    route->copied = 0;
    /* tokens drawn from void rows are void as well */
    route->known = qr_max_u32(route->prompt, route->rows);
}
static void operate_release(model_route_t *route)
{
    uint8_t keep = chance(85);
    if (route->rows > route->boundary) check_rows(route, route->rows, true);
    uint32_t slot = below(HISTORY), count = qr_min_u32(route->known, w.geometry.context);
    memcpy(w.history[slot], route->tokens, count * 4);
    w.history_count[slot] = count;
    w.history_salt[slot] = route->salt;
    w.stale_routes[below(4)] = route->handle;
    route->open = false;
    bool loading = route->loading, fencing = route->fencing;
    SAY(w.stand, SCHEDULER, route_release, route->handle, keep);
    CHECK(HEARD(w.stand, route_released)->reason == 0);
    if (loading) take_fence(HEARD(w.stand, fence));
    if (fencing) CHECK(HEARD(w.stand, load_closed)->reason == QR_E_CANCELLED);
}
static void operate_load(model_route_t *route)
{
    uint32_t size = w.geometry.page_tokens;
    if (route->loading || route->fencing || route->run != route->rows) return;
    uint32_t end = route->prompt - below(qr_min_u32(route->prompt, 2 * size)), most = end;
    for (uint32_t g = 0; g < w.geometry.groups; g++) most = qr_min_u32(most, route->end[g] * size);
    bool legal = route->rows % size == 0 && end > route->rows && (!route->copy_count || end > route->boundary) && end <= most;
    SAY(w.stand, SCHEDULER, pages_load, route->handle, route->rows, end);
    const qr_pages_loading_t *m = HEARD(w.stand, pages_loading);
    CHECK((m->reason == 0) == legal || m->reason == QR_E_BUSY);
    if (m->reason) return;
    uint64_t at = 0;
    for (uint32_t g = 0; g < w.geometry.groups; g++)
        for (uint32_t j = route->rows / size; j * size < end; j++) CHECK(m->pages.data[at++] == route->pages[g][j]);
    CHECK(at == m->pages.count);
    route->loading = true;
    route->load_start = route->loaded = route->rows;
    route->load_end = end;
    w.loads++;
}
/* A transfer writes: into a loading page what belongs there, into a page that is being fenced anything. */
static void operate_transfer(void)
{
    uint32_t size = w.geometry.page_tokens;
    model_route_t *route = &w.routes[below(ROUTES)];
    if (route->open && route->loading && route->loaded < route->load_end) {
        uint32_t to = route->loaded + 1 + below(route->load_end - route->loaded);
        for (; route->loaded < to; route->loaded++)
            for (uint32_t g = 0; g < w.geometry.groups; g++)
                w.memory[g][qr_handle_index(route->pages[g][route->loaded / size])][route->loaded % size] =
                    content(g, route->digests[route->loaded]);
    }
    model_fence_t *fence = &w.fences[below(4)];
    if (!fence->open) return;
    uint32_t i = below(fence->count);
    w.memory[fence->groups[i]][qr_handle_index(fence->pages[i])][below(size)] = 0xbad;
}
static void operate_load_ended(model_route_t *route)
{
    uint32_t size = w.geometry.page_tokens;
    if (!route->loading) return;
    uint32_t end = route->loaded, boundary = end == route->load_end ? end : end - end % size;
    uint8_t quiet = chance(30);
    if (boundary > route->rows) {
        route->rows = boundary;
        if (boundary > route->boundary) route->copy_count = 0;
    }
    SAY(w.stand, SCHEDULER, load_ended, route->handle, end, quiet);
    if (quiet || end == route->load_end) {
        take_load_closed(HEARD(w.stand, load_closed), route, route->rows);
        windows_leave(route);
        if (HEARD_COUNT(w.stand, window_pages)) take_window_pages(HEARD(w.stand, window_pages));
        return;
    }
    CHECK(!HEARD_COUNT(w.stand, load_closed));
    route->loading = false;
    route->fencing = true;
    take_fence(HEARD(w.stand, fence));
}
static void operate_fenced(model_fence_t *fence)
{
    fence->open = false;
    model_route_t *route = NULL;
    for (uint32_t r = 0; r < ROUTES; r++)
        if (w.routes[r].open && w.routes[r].fencing &&
            w.routes[r].pages[fence->groups[0]][(w.routes[r].load_end - 1) / w.geometry.page_tokens] == fence->pages[0])
            route = &w.routes[r];
    for (uint32_t r = 0; r < ROUTES && !route; r++)
        for (uint32_t i = 0; i < fence->count && w.routes[r].open && w.routes[r].fencing; i++)
            for (uint32_t j = w.routes[r].rows / w.geometry.page_tokens; j * w.geometry.page_tokens < w.routes[r].load_end; j++)
                if (w.routes[r].pages[fence->groups[i]][j] == fence->pages[i]) route = &w.routes[r];
    w.stale_fences[below(4)] = fence->id;
    SAY(w.stand, TRANSFER, fenced, fence->id);
    CHECK((route != NULL) == (HEARD_COUNT(w.stand, load_closed) == 1));
    if (!route) return;
    take_load_closed(HEARD(w.stand, load_closed), route, route->rows);
    windows_leave(route);
    if (HEARD_COUNT(w.stand, window_pages)) take_window_pages(HEARD(w.stand, window_pages));
}
static void operate_pin(model_lease_t *lease)
{
    uint32_t slot = below(HISTORY), size = w.geometry.page_tokens;
    if (!w.history_count[slot]) return;
    uint32_t count = 1 + below(w.history_count[slot]), start = count > size ? count - 1 - below(size) : below(count);
    qr_pages_pin_t ask = {.holder_key = 7, .tokens = {w.history[slot], count}, .start_rows = start};
    scope_of(&ask.scope, w.history_salt[slot]);
    stand_say(w.stand, WRITER, QR_MESSAGE_pages_pin, &ask);
    const qr_pages_pinned_t *m = HEARD(w.stand, pages_pinned);
    if (m->reason) return;
    *lease = (model_lease_t){.open = true, .handle = m->lease, .rows = count};
    uint64_t digest = digest_begin(w.history_salt[slot]), at = 0;
    for (uint32_t i = 0; i < count; i++) lease->digests[i] = digest = digest_next(digest, w.history[slot][i]);
    for (uint32_t g = 0; g < w.geometry.groups; g++) {
        lease->count[g] = m->group_counts.data[g];
        lease->first[g] = m->first_blocks.data[g];
        CHECK(lease->count[g] <= 8 && lease->first[g] + lease->count[g] == (count + size - 1) / size);
        CHECK(window_of(g) || lease->first[g] == start / size);
        for (uint32_t i = 0; i < lease->count[g]; i++) lease->pages[g][i] = m->pages.data[at++];
    }
    CHECK(at == m->pages.count);
    w.leased++;
}
static void check_lease(const model_lease_t *lease)
{
    uint32_t size = w.geometry.page_tokens;
    for (uint32_t g = 0; g < w.geometry.groups; g++)
        for (uint32_t i = 0; i < lease->count[g]; i++)
            for (uint32_t q = (lease->first[g] + i) * size; q < qr_min_u32(lease->rows, (lease->first[g] + i + 1) * size); q++)
                CHECK(w.memory[g][qr_handle_index(lease->pages[g][i])][q % size] == content(g, lease->digests[q]));
}
static void operate_unpin(model_lease_t *lease)
{
    check_lease(lease);
    lease->open = false;
    w.stale_leases[below(4)] = lease->handle;
    SAY(w.stand, WRITER, pages_unpin, lease->handle);
    CHECK(HEARD(w.stand, pages_unpinned)->reason == 0);
}
/* What a route leaves behind is found again at once, to the last row. */
static void operate_again(model_route_t *route)
{
    static model_route_t again;
    uint32_t rows = route->rows;
    if (route->loading || route->fencing || rows <= route->boundary || rows + 1 > w.geometry.context) return;
    again = (model_route_t){.salt = route->salt, .known = rows + 1, .prompt = rows + 1, .rows_max = rows + 1, .in_flight = 1};
    memcpy(again.tokens, route->tokens, rows * 4);
    memcpy(again.digests, route->digests, rows * 8);
    again.tokens[rows] = 1000 + below(5);
    again.digests[rows] = digest_next(again.digests[rows - 1], again.tokens[rows]);
    route->open = false;
    SAY(w.stand, SCHEDULER, route_release, route->handle, 1);
    *route = again;
    answer_t a = reserve_more(w.stand, route->salt, route->tokens, route->prompt, route->rows_max, 1, 0);
    if (a.type != QR_MESSAGE_pages_granted) return;
    check_grant(route, &a);
    if (w.geometry.groups == 1) CHECK(a.boundary == rows || a.boundary == rows - rows % w.geometry.page_tokens);
}
/* Old handles change nothing. */
static void operate_stale(void)
{
    uint32_t which = below(4), i = below(4);
    if ((which == 2 && !w.stale_fences[i]) || (which == 3 && !w.stale_leases[i]) || (which < 2 && !w.stale_routes[i])) return;
    remember_state();
    if (which == 0) SAY(w.stand, SCHEDULER, route_release, w.stale_routes[i], 1);
    if (which == 1) SAY(w.stand, SCHEDULER, load_ended, w.stale_routes[i], 4, 1);
    if (which == 2) SAY(w.stand, TRANSFER, fenced, w.stale_fences[i]);
    if (which == 3) SAY(w.stand, WRITER, pages_unpin, w.stale_leases[i]);
    CHECK(!memcmp(w.before, w.stand->state, w.before_bytes));
}
static uint32_t pool_total(void)
{
    uint32_t pool = 0;
    for (uint32_t g = 0; g < w.geometry.groups; g++) pool += w.geometry.pools[g].pages;
    return pool;
}
static void operate_everybody_leaves(void)
{
    for (uint32_t r = 0; r < ROUTES; r++)
        if (w.routes[r].open) operate_release(&w.routes[r]);
    for (uint32_t l = 0; l < LEASES; l++)
        if (w.leases[l].open) operate_unpin(&w.leases[l]);
    for (uint32_t f = 0; f < FENCES; f++)
        if (w.fences[f].open) operate_fenced(&w.fences[f]);
    check_conservation();
    if (chance(50)) CHECK(drop(w.stand) == pool_total());
}

static void operate(void)
{
    model_route_t *route = &w.routes[below(2 * w.geometry.lanes < ROUTES ? 2 * w.geometry.lanes : ROUTES)];
    uint32_t dice = below(1000);
    if (!route->open && dice < 560) {
        operate_reserve(route);
        return;
    }
    if (dice < 80) {
        if (route->open) operate_release(route);
    } else if (dice < 520) {
        if (route->open) operate_run(route);
    } else if (dice < 720)
        operate_commit();
    else if (dice < 740) {
        if (route->open) operate_fail(route);
    } else if (dice < 790) {
        if (route->open) operate_release(route);
    } else if (dice < 820) {
        if (route->open) operate_load(route);
    } else if (dice < 870)
        operate_transfer();
    else if (dice < 890) {
        if (route->open) operate_load_ended(route);
    } else if (dice < 915) {
        if (w.fences[below(4)].open) {
            uint32_t f = below(4);
            if (w.fences[f].open) operate_fenced(&w.fences[f]);
        }
    } else if (dice < 930) {
        model_lease_t *lease = &w.leases[below(LEASES)];
        if (lease->open)
            operate_unpin(lease);
        else
            operate_pin(lease);
    } else if (dice < 945) {
        if (route->open) operate_again(route);
    } else if (dice < 960)
        operate_stale();
    else if (dice < 985)
        check_conservation();
    else if (dice < 987)
        (void)drop(w.stand);
    else if (dice < 989)
        operate_everybody_leaves();
}
static void world(uint64_t seed, geometry_t geometry, uint64_t operations)
{
    uint8_t *before = w.before;
    uint64_t bytes = w.before_bytes;
    memset(&w, 0, sizeof w);
    w.before = before;
    w.before_bytes = bytes;
    w.seed = seed;
    w.geometry = geometry;
    qr_prng_init(&w.prng, seed);
    w.stand = pages_new(geometry);
    printf("seed %llu: page %u, pools", (unsigned long long)seed, geometry.page_tokens);
    for (uint32_t g = 0; g < geometry.groups; g++) printf(" %u/%u", geometry.pools[g].pages, geometry.pools[g].window);
    fflush(stdout);
    for (w.operation = 0; w.operation < operations; w.operation++) operate();
    operate_everybody_leaves();
    CHECK(drop(w.stand) == pool_total());
    printf(": granted %llu (rows reused %llu, copies %llu, taken over %llu) refused %llu waited %llu evicted %llu loads %llu fences %llu "
           "leases %llu\n",
           (unsigned long long)w.granted, (unsigned long long)w.reused, (unsigned long long)w.copied, (unsigned long long)w.taken_over,
           (unsigned long long)w.refused, (unsigned long long)w.waited, (unsigned long long)w.evicted, (unsigned long long)w.loads,
           (unsigned long long)w.fenced, (unsigned long long)w.leased);
    pages_destroy(w.stand);
}

int main(int count, char **arguments)
{
    static const geometry_t geometries[] = {
        {4, 64, 2, 1, {{0, 8, 0, 64}}},
        {4, 64, 3, 1, {{0, 16, 0, 64}}},
        {4, 160, 6, 1, {{0, 60, 0, 64}}},
        {8, 160, 4, 1, {{0, 24, 0, 64}}},
        {16, 320, 6, 1, {{0, 48, 0, 64}}},
        {4, 64, 2, 2, {{0, 16, 0, 64}, {8, 12, 0, 64}}},
        {4, 96, 4, 2, {{0, 40, 0, 64}, {10, 24, 6, 64}}},
        {8, 160, 4, 2, {{0, 40, 0, 64}, {20, 20, 3, 64}}},
        {4, 96, 3, 3, {{0, 32, 0, 64}, {6, 18, 4, 64}, {17, 24, 0, 64}}},
        {16, 480, 8, 1, {{0, 640, 0, 64}}},
        {4, 128, 8, 2, {{0, 300, 0, 64}, {12, 60, 6, 64}}},
    };
    uint64_t operations = 100000, seed = 1;
    signal(SIGABRT, on_abort); /* an invariant of the actor */
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--full"))
            operations = 1100000;
        else if (!strcmp(arguments[i], "--operations") && i + 1 < count)
            operations = strtoull(arguments[++i], NULL, 10);
        else if (!strcmp(arguments[i], "--seed") && i + 1 < count)
            seed = strtoull(arguments[++i], NULL, 10);
        else
            return fprintf(stderr, "arguments: --full, --seed N, --operations N\n"), 2;
    }
    for (uint64_t i = 0; i < QR_COUNT(geometries); i++) world(seed * 100 + i, geometries[i], operations / QR_COUNT(geometries));
    free(w.before);
    return 0;
}
