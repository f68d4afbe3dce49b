/* page_stand.h - a page_manager in a test's hands: its geometry in one line, its conversations as calls. */
#ifndef QR_PAGE_STAND_H
#define QR_PAGE_STAND_H

#include "actors/note.h"
#include "actors/page_manager.h"
#include "base/error.h"
#include "stand.h"

#define PAGE_MANAGER qr_address(1, 1, QR_ROLE_page_manager, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define TRANSFER qr_address(1, 1, QR_ROLE_transfer, 0)
#define WRITER qr_address(1, 1, QR_ROLE_checkpoint_writer, 0)
#define ADMIN qr_address(1, 0, QR_ROLE_http, 0)

/* One group per pool; window 0 = whole prefix. */
typedef struct geometry {
    uint32_t page_tokens, context, lanes, groups;
    qr_group_t pools[QR_GROUPS_MAX];
} geometry_t;

/* G1 of the cases: page 4 tokens, pool 8 pages, chunk 8 tokens. */
static const geometry_t G1 = {4, 64, 2, 1, {{0, 8, 0, 64}}};

static inline qr_given_t *given_new(geometry_t geometry)
{
    qr_given_t *given = calloc(1, sizeof *given);
    given->params.max_lanes = geometry.lanes;
    given->params.fence_max_ms = 500;
    given->layout.group_count = geometry.groups;
    given->layout.page_tokens = geometry.page_tokens;
    given->layout.chunk_tokens = 8;
    given->layout.context_tokens = geometry.context;
    memcpy(given->layout.groups, geometry.pools, sizeof geometry.pools);
    return given;
}
static inline stand_t *pages_start(qr_given_t *given)
{
    stand_t *stand = stand_new(&qr_page_manager_class, given, PAGE_MANAGER);
    SAY(stand, qr_address(1, 0, QR_ROLE_mesh, 0), start, .epoch = 1, .seed = 0x5eed);
    assert_int_equal(stand->messages[0].type, QR_MESSAGE_ready);
    return stand;
}
static inline stand_t *pages_new(geometry_t geometry) { return pages_start(given_new(geometry)); }
static inline void pages_destroy(stand_t *stand)
{
    free((void *)(uintptr_t)stand->given);
    stand_destroy(stand);
}

/* ---- what it says, as copies that stay valid --------------------------------------------------------------------- */

enum { PAGES_SHOWN = 4096 };
typedef struct answer {
    uint16_t type;
    uint64_t route, producer;
    uint32_t boundary, reason, pages_short;
    uint32_t group_counts[QR_GROUPS_MAX], first_blocks[QR_GROUPS_MAX];
    uint32_t page_count, copy_count;
    uint64_t pages[PAGES_SHOWN];
    uint64_t copy_sources[QR_GROUPS_MAX], copy_targets[QR_GROUPS_MAX];
    uint32_t copy_rows[QR_GROUPS_MAX], copy_groups[QR_GROUPS_MAX];
} answer_t;

static uint64_t next_request = 1;

static inline void scope_of(qr_hash_t *ret_scope, uint8_t salt) { memset(ret_scope, salt, sizeof *ret_scope); }

/* Asks for pages; what is not asked for is 0. */
static inline answer_t reserve_more(stand_t *stand, uint8_t salt, const uint32_t *tokens, uint32_t count, uint32_t rows_max,
                                    uint32_t first_rows, uint32_t wait_rows)
{
    qr_pages_reserve_t ask = {.request_id = next_request++,
                              .attempt = 1,
                              .tokens = {tokens, count},
                              .rows_max = rows_max,
                              .first_rows = first_rows,
                              .wait_rows = wait_rows};
    scope_of(&ask.scope, salt);
    stand_say(stand, SCHEDULER, QR_MESSAGE_pages_reserve, &ask);
    assert_int_equal(stand->outbox.count, 1);
    const qr_message_t *m = &stand->messages[0];
    assert_true(m->to == SCHEDULER);
    answer_t answer = {.type = m->type};
    if (m->type == QR_MESSAGE_pages_wait) {
        answer.producer = m->body.pages_wait.producer;
        answer.boundary = m->body.pages_wait.boundary;
    } else if (m->type == QR_MESSAGE_pages_refused) {
        answer.reason = m->body.pages_refused.reason;
        answer.pages_short = m->body.pages_refused.pages_short;
    } else {
        const qr_pages_granted_t *g = &m->body.pages_granted;
        assert_int_equal(m->type, QR_MESSAGE_pages_granted);
        assert_true(g->request_id == ask.request_id && g->pages.count <= PAGES_SHOWN);
        answer.route = g->route;
        answer.boundary = g->boundary;
        answer.page_count = (uint32_t)g->pages.count;
        answer.copy_count = (uint32_t)g->copy_sources.count;
        qr_copy(answer.group_counts, g->group_counts.data, g->group_counts.count * 4);
        qr_copy(answer.first_blocks, g->first_blocks.data, g->first_blocks.count * 4);
        qr_copy(answer.pages, g->pages.data, g->pages.count * 8);
        qr_copy(answer.copy_sources, g->copy_sources.data, g->copy_sources.count * 8);
        qr_copy(answer.copy_targets, g->copy_targets.data, g->copy_targets.count * 8);
        qr_copy(answer.copy_rows, g->copy_rows.data, g->copy_rows.count * 4);
        qr_copy(answer.copy_groups, g->copy_groups.data, g->copy_groups.count * 4);
    }
    return answer;
}
static inline answer_t reserve(stand_t *stand, const uint32_t *tokens, uint32_t count, uint32_t rows_max)
{
    return reserve_more(stand, 0, tokens, count, rows_max, 1, 0);
}
/* The route now has `rows` rows; the last `count` of them are of these tokens. */
static inline void commit(stand_t *stand, uint64_t route, uint32_t rows, const uint32_t *tokens, uint32_t count)
{
    SAY(stand, SCHEDULER, rows_committed, {&route, 1}, {&rows, 1}, {&count, 1}, {tokens, count});
}
static inline uint32_t release(stand_t *stand, uint64_t route, uint8_t keep)
{
    SAY(stand, SCHEDULER, route_release, route, keep);
    const qr_message_t *m = stand_heard(stand, QR_MESSAGE_route_released, 0);
    assert_non_null(m);
    assert_true(m->body.route_released.route == route);
    return m->body.route_released.reason;
}
/* Drops the cache; free pages after it. */
static inline uint32_t drop(stand_t *stand)
{
    SAY(stand, ADMIN, cache_drop, 1);
    assert_int_equal(stand->outbox.count, 1);
    const qr_cache_dropped_t *m = &stand->messages[0].body.cache_dropped;
    assert_int_equal(m->pages_free + m->pages_held, m->pages_pool);
    return m->pages_free;
}
/* One value of metrics_read. */
static inline uint64_t metric(stand_t *stand, uint32_t id)
{
    SAY(stand, ADMIN, metrics_read, 1);
    const qr_metrics_t *m = &stand->messages[0].body.metrics;
    for (uint64_t i = 0; i < m->ids.count; i++)
        if (m->ids.data[i] == id) return m->values.data[i];
    fail_msg("no metric %u", id);
    return 0;
}
enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};
/* Free pages and those that eviction would give. */
static inline uint64_t available(stand_t *stand) { return metric(stand, METRIC_pages_free) + metric(stand, METRIC_pages_retained); }

#endif
