/* device_group.h - the device group with a device of the mind: real worker, scheduler and page_manager; an executor whose "rows" are
 * words that depend on token and position, and whose drawn token depends on every word a row attends. A row that is missing, stale
 * or somebody else's changes the token. Unwritten words are poison. */
#ifndef QR_DEVICE_GROUP_H
#define QR_DEVICE_GROUP_H

#include "actors/page_manager.h"
#include "actors/scheduler.h"
#include "actors/worker.h"
#include "base/error.h"
#include "tests/conversations/pump.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { VOCABULARY = 60, END_TOKEN = VOCABULARY - 1, FAKE_PAGES = 1024, FAKE_BLOCKS = 512, ASKS_MAX = 512, PLACE_TOKENS = 1024 };
#define POISON 0xdeadbeefdeadbeefull

#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define HTTP qr_address(1, 0, QR_ROLE_http, 0)
#define ROUTER_A qr_address(1, 0, QR_ROLE_router, 0)
#define ROUTER_B qr_address(2, 0, QR_ROLE_router, 0)
#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define PAGES qr_address(1, 1, QR_ROLE_page_manager, 0)
#define EXECUTOR qr_address(1, 1, QR_ROLE_executor, 0)

typedef struct fake_lane {
    uint64_t handle;
    uint32_t last_token;
    uint32_t table[QR_GROUPS_MAX][FAKE_BLOCKS];
} fake_lane_t;

/* A batch as asked, and what it will be answered. */
typedef struct fake_batch {
    uint64_t id, lanes[QR_LANES_MAX];
    uint32_t lane_count, starts[QR_LANES_MAX], counts[QR_LANES_MAX], flags[QR_LANES_MAX], tokens[QR_BATCH_ROWS_MAX];
    uint32_t copy_count, copy_rows[512], copy_groups[512], window_count, window_groups[512], window_blocks[512];
    uint64_t copy_sources[512], copy_targets[512], window_lanes[512], window_pages[512];
} fake_batch_t;

typedef struct place {
    uint64_t request_id, router;
    uint32_t prompt_count, known, max_tokens, generated, finished, finish, error, cached, cancelled, accepted, refused, poisoned;
    uint32_t tokens[PLACE_TOKENS]; /* prompt and what came */
    uint64_t ended_at;             /* deliveries before its end was heard */
} place_t;

typedef struct group {
    pump_t pump;
    qr_given_t *given;
    uint64_t words[QR_GROUPS_MAX][FAKE_PAGES][64];
    fake_lane_t lanes[QR_LANES_MAX];
    fake_batch_t queue[QR_BATCHES_IN_FLIGHT];
    uint32_t queued, fail_one_in, lane_fail_one_in, window[QR_GROUPS_MAX];
    uint64_t batches, failed, released, step_us;
    place_t *places;
    uint32_t place_count, place_capacity;
    uint64_t metrics[512];
    qr_cache_dropped_t dropped;
    uint32_t routes_open;
    void (*batch_seen)(struct group *group, const fake_batch_t *batch);
    uint8_t flags[VOCABULARY];
    const qr_actor_class_t *executor; /* NULL: the device of the mind; else a real executor, whose tokens the test compares itself */
    uint32_t temperature_bits;        /* of every offer; the seed is a number of the prompt */
    bool hold_batches;                /* the executor sits on what it has */
    uint32_t alarms;                  /* in a row; an alarm armed in the past would starve everybody */
} group_t;

/* ---- the device ------------------------------------------------------------------------------------------------------------ */

static inline uint64_t word_of(uint32_t token, uint32_t position, uint32_t group)
{
    return qr_mix_u64((uint64_t)token << 40 | (uint64_t)position << 8 | (group + 1));
}

/* The token after `count` known tokens, computed from the tokens alone: what every answer must be. */
static inline uint32_t token_after(const group_t *g, const uint32_t *tokens, uint32_t count)
{
    uint64_t sum = count;
    for (uint32_t k = 0; k < g->given->layout.group_count; k++) {
        uint32_t w = g->window[k], first = w && count > w ? count - w : 0;
        for (uint32_t p = first; p < count; p++) sum = qr_mix_u64(sum ^ word_of(tokens[p], p, k));
    }
    return (uint32_t)(sum % VOCABULARY);
}

static inline uint64_t *word_at(group_t *g, const fake_lane_t *lane, uint32_t group, uint32_t position)
{
    uint32_t pt = g->given->layout.page_tokens, page = lane->table[group][position / pt];
    return page == UINT32_MAX ? NULL : &g->words[group][page][position % pt];
}

static inline fake_lane_t *fake_lane(group_t *g, uint64_t handle)
{
    fake_lane_t *lane = &g->lanes[qr_handle_index(handle)];
    qr_assert(lane->handle == handle); /* a batch or close names an open lane */
    return lane;
}

/* What a lane draws from its pages after the row at `position`; QR_TOKEN_NONE if a word is missing. */
static inline uint32_t fake_draw(group_t *g, const fake_lane_t *lane, uint32_t position)
{
    uint64_t sum = position + 1;
    for (uint32_t k = 0; k < g->given->layout.group_count; k++) {
        uint32_t w = g->window[k], first = w && position + 1 > w ? position + 1 - w : 0;
        for (uint32_t p = first; p <= position; p++) {
            const uint64_t *word = word_at(g, lane, k, p);
            if (word == NULL || *word == POISON) return QR_TOKEN_NONE;
            sum = qr_mix_u64(sum ^ *word);
        }
    }
    return (uint32_t)(sum % VOCABULARY);
}

static inline void fake_rows(group_t *g, const fake_batch_t *b, uint32_t i, uint32_t row, bool garbage, uint32_t *ret_status,
                             uint32_t *ret_token)
{
    fake_lane_t *lane = fake_lane(g, b->lanes[i]);
    *ret_status = 0;
    *ret_token = QR_TOKEN_NONE;
    for (uint32_t r = 0; r < b->counts[i]; r++) {
        uint32_t token = b->tokens[row + r], position = b->starts[i] + r;
        if (token == QR_TOKEN_PREVIOUS) token = lane->last_token;
        for (uint32_t k = 0; k < g->given->layout.group_count; k++) {
            uint64_t *word = word_at(g, lane, k, position);
            if (word == NULL)
                *ret_status = QR_E_PROTOCOL;
            else
                *word = garbage ? qr_prng_next(&g->pump.prng) : word_of(token, position, k);
        }
    }
    if (garbage) return;
    uint32_t token = fake_draw(g, lane, b->starts[i] + b->counts[i] - 1);
    if (token == QR_TOKEN_NONE) *ret_status = QR_E_NUMERIC;
    if (b->flags[i] & QR_ROW_SAMPLE) lane->last_token = *ret_token = *ret_status ? QR_TOKEN_NONE : token;
}

/* Runs the oldest batch: windows, copies, rows, draws; a failing batch leaves garbage where it would have appended. */
static inline void fake_run(group_t *g)
{
    fake_batch_t *b = &g->queue[0];
    uint32_t statuses[QR_LANES_MAX], tokens[QR_LANES_MAX], logprobs[QR_LANES_MAX] = {0}, row = 0;
    bool fails = g->fail_one_in && qr_prng_one_in(&g->pump.prng, g->fail_one_in);
    if (g->batch_seen) g->batch_seen(g, b);
    for (uint32_t i = 0; i < b->window_count; i++)
        if (g->lanes[qr_handle_index(b->window_lanes[i])].handle == b->window_lanes[i]) /* else it closed since, and another may be there */
            g->lanes[qr_handle_index(b->window_lanes[i])].table[b->window_groups[i]][b->window_blocks[i]] =
                qr_handle_index(b->window_pages[i]);
    for (uint32_t i = 0; i < b->copy_count; i++)
        for (uint32_t r = 0; r < b->copy_rows[i]; r++)
            g->words[b->copy_groups[i]][qr_handle_index(b->copy_targets[i])][r] =
                g->words[b->copy_groups[i]][qr_handle_index(b->copy_sources[i])][r];
    for (uint32_t i = 0; i < b->lane_count; row += b->counts[i++]) {
        fake_rows(g, b, i, row, fails, &statuses[i], &tokens[i]);
        if (!fails && g->lane_fail_one_in && qr_prng_one_in(&g->pump.prng, g->lane_fail_one_in)) {
            statuses[i] = QR_E_NUMERIC;
            tokens[i] = QR_TOKEN_NONE;
        }
    }
    g->batches++;
    g->failed += fails;
    if (fails)
        PUMP_SEND(&g->pump, EXECUTOR, SCHEDULER, batch_failed, .batch = b->id, .reason = QR_E_DEVICE);
    else
        PUMP_SEND(&g->pump, EXECUTOR, SCHEDULER, batch_done, .batch = b->id, .lanes = {b->lanes, b->lane_count},
                  .statuses = {statuses, b->lane_count}, .tokens = {tokens, b->lane_count}, .logprob_bits = {logprobs, b->lane_count},
                  .step_us = g->step_us);
    g->queue[0] = g->queue[1];
    g->queued--;
}

static inline void fake_batch_asked(group_t *g, const qr_batch_run_t *run)
{
    qr_assert(g->queued < QR_BATCHES_IN_FLIGHT);
    fake_batch_t *b = &g->queue[g->queued++];
    b->id = run->batch;
    b->lane_count = (uint32_t)run->lanes.count;
    b->copy_count = (uint32_t)run->copy_sources.count;
    b->window_count = (uint32_t)run->window_lanes.count;
    qr_assert(b->copy_count <= 512 && b->window_count <= 512);
    for (uint32_t i = 0; i < b->lane_count; i++) (void)fake_lane(g, run->lanes.data[i]);
    qr_copy(b->lanes, run->lanes.data, b->lane_count * 8);
    qr_copy(b->starts, run->starts.data, b->lane_count * 4);
    qr_copy(b->counts, run->row_counts.data, b->lane_count * 4);
    qr_copy(b->flags, run->flags.data, b->lane_count * 4);
    qr_copy(b->tokens, run->tokens.data, run->tokens.count * 4);
    qr_copy(b->copy_sources, run->copy_sources.data, b->copy_count * 8);
    qr_copy(b->copy_targets, run->copy_targets.data, b->copy_count * 8);
    qr_copy(b->copy_rows, run->copy_rows.data, b->copy_count * 4);
    qr_copy(b->copy_groups, run->copy_groups.data, b->copy_count * 4);
    qr_copy(b->window_lanes, run->window_lanes.data, b->window_count * 8);
    qr_copy(b->window_groups, run->window_groups.data, b->window_count * 4);
    qr_copy(b->window_blocks, run->window_blocks.data, b->window_count * 4);
    qr_copy(b->window_pages, run->window_pages.data, b->window_count * 8);
}

static inline void fake_executor(pump_t *pump, void *context, const qr_message_t *m)
{
    group_t *g = context;
    switch (m->type) {
    case QR_MESSAGE_lane_open: {
        const qr_lane_open_t *open = &m->body.lane_open;
        fake_lane_t *lane = &g->lanes[qr_handle_index(open->lane)];
        uint64_t at = 0;
        qr_assert(lane->handle == 0);
        memset(lane, 0xff, sizeof *lane);
        lane->handle = open->lane;
        lane->last_token = 0;
        for (uint32_t k = 0; k < open->group_counts.count; k++)
            for (uint32_t i = 0; i < open->group_counts.data[k]; i++)
                lane->table[k][open->first_blocks.data[k] + i] = qr_handle_index(open->pages.data[at++]);
        PUMP_SEND(pump, EXECUTOR, SCHEDULER, lane_opened, .lane = open->lane);
        break;
    }
    case QR_MESSAGE_lane_close:
        fake_lane(g, m->body.lane_close.lane)->handle = 0;
        for (uint32_t b = 0; b < g->queued; b++)
            for (uint32_t i = 0; i < g->queue[b].lane_count; i++) qr_assert(g->queue[b].lanes[i] != m->body.lane_close.lane);
        PUMP_SEND(pump, EXECUTOR, SCHEDULER, lane_closed, .lane = m->body.lane_close.lane);
        break;
    case QR_MESSAGE_batch_run: fake_batch_asked(g, &m->body.batch_run); break;
    case QR_MESSAGE_probe: PUMP_SEND(pump, EXECUTOR, SCHEDULER, probe_done, .probe_id = m->body.probe.probe_id); break;
    default: qr_unreachable("a message the executor does not take");
    }
}

/* ---- the routers ------------------------------------------------------------------------------------------------------------- */

static inline place_t *place_of(group_t *g, uint64_t request_id)
{
    qr_assert(request_id >= 1 && request_id <= g->place_count);
    return &g->places[request_id - 1];
}

/* What a finish must mean. */
static inline void place_ended(group_t *g, place_t *p)
{
    assert_false(p->finished);
    p->finished = 1;
    p->ended_at = g->pump.delivered;
    switch (p->finish) {
    case QR_FINISH_LENGTH: assert_int_equal(p->generated, p->max_tokens); break;
    case QR_FINISH_STOP: assert_int_equal(p->tokens[p->known - 1], END_TOKEN); break;
    case QR_FINISH_CANCELLED: assert_true(p->cancelled); break;
    case QR_FINISH_REFUSED: assert_true(p->error != 0 && p->generated == 0); break;
    case QR_FINISH_ERROR:
        if ((p->error == QR_E_NUMERIC && g->lane_fail_one_in) || (p->error == QR_E_DEVICE && g->fail_one_in) ||
            p->error == QR_E_SWITCH_ROWS)
            break;
        fail_msg("request %u ended with error %u after %u tokens", (unsigned)p->request_id, p->error, p->generated);
        break;
    default: fail_msg("finish %u", p->finish);
    }
}

static inline void router_tokens(group_t *g, const qr_message_t *m)
{
    const qr_tokens_t *t = &m->body.tokens;
    uint32_t indexes[ASKS_MAX];
    uint64_t at = 0;
    for (uint64_t i = 0; i < t->request_ids.count; i++) {
        place_t *p = place_of(g, t->request_ids.data[i]);
        assert_int_equal(p->router, m->to);
        for (uint32_t k = 0; k < t->counts.data[i]; k++, at++) {
            uint32_t index = t->indexes.data[i] + k;
            if (index < p->generated) continue; /* a repeat */
            assert_int_equal(index, p->generated);
            if (!g->executor) assert_int_equal(t->tokens.data[at], token_after(g, p->tokens, p->known));
            p->tokens[p->known++] = t->tokens.data[at];
            p->generated++;
        }
        indexes[i] = p->generated;
        if (t->finishes.data[i] == QR_FINISH_NONE || p->finished) continue;
        p->finish = t->finishes.data[i];
        p->error = t->errors.data[i];
        p->cached = t->cached_tokens.count ? t->cached_tokens.data[i] : 0;
        place_ended(g, p);
    }
    PUMP_SEND(&g->pump, m->to, m->from, tokens_taken, .request_ids = t->request_ids, .attempts = t->attempts,
              .indexes = {indexes, t->request_ids.count});
}

static inline void fake_router(pump_t *pump, void *context, const qr_message_t *m)
{
    group_t *g = context;
    (void)pump;
    switch (m->type) {
    case QR_MESSAGE_offer_accepted: place_of(g, m->body.offer_accepted.request_id)->accepted = 1; break;
    case QR_MESSAGE_offer_refused: {
        place_t *p = place_of(g, m->body.offer_refused.request_id);
        p->finish = QR_FINISH_REFUSED;
        p->error = m->body.offer_refused.reason;
        place_ended(g, p);
        break;
    }
    case QR_MESSAGE_tokens: router_tokens(g, m); break;
    case QR_MESSAGE_offer_cancelled: break;
    case QR_MESSAGE_probe_done: break;
    default: qr_unreachable("a message the router does not take");
    }
}

static inline void fake_outside(pump_t *pump, void *context, const qr_message_t *m)
{
    group_t *g = context;
    (void)pump;
    if (m->type == QR_MESSAGE_metrics)
        for (uint64_t i = 0; i < m->body.metrics.ids.count; i++) {
            assert_true(m->body.metrics.ids.data[i] < QR_COUNT(g->metrics));
            g->metrics[m->body.metrics.ids.data[i]] = m->body.metrics.values.data[i];
        }
    if (m->type == QR_MESSAGE_cache_dropped) g->dropped = m->body.cache_dropped;
}

/* ---- life of a group ------------------------------------------------------------------------------------------------------------ */

/* pages of group 0; a second group with a window when window > 0. */
static inline group_t *group_new(uint32_t lanes, uint32_t pages, uint32_t page_tokens, uint32_t context, uint32_t tile, uint32_t window)
{
    group_t *g = calloc(1, sizeof *g);
    g->given = calloc(1, sizeof *g->given);
    qr_params_init(&g->given->params);
    g->given->params.max_lanes = lanes;
    g->given->params.prefill_tile = tile;
    g->given->params.max_requests = 64;
    g->given->params.wait_rows = 4;
    g->given->params.page_tokens = page_tokens;
    g->given->layout.group_count = window ? 2 : 1;
    g->given->layout.page_tokens = page_tokens;
    g->given->layout.chunk_tokens = page_tokens * 2;
    g->given->layout.context_tokens = context;
    g->given->layout.groups[0] = (qr_group_t){.pages = pages, .row_bytes = 8};
    g->given->layout.groups[1] = (qr_group_t){.window = window, .pages = pages, .row_bytes = 8};
    g->window[1] = window;
    g->flags[END_TOKEN] = QR_TOKEN_END;
    g->given->vocabulary.count = VOCABULARY;
    g->given->vocabulary.flags = g->flags;
    g->step_us = 1000;
    g->place_capacity = 4096;
    g->places = calloc(g->place_capacity, sizeof *g->places);
    for (uint32_t k = 0; k < QR_GROUPS_MAX; k++)
        for (uint32_t p = 0; p < FAKE_PAGES; p++)
            for (uint32_t r = 0; r < 64; r++) g->words[k][p][r] = POISON;
    return g;
}

/* Lets a real executor work; false when it is idle. */
static inline bool group_work(group_t *g) { return pump_work(&g->pump, pump_find(&g->pump, EXECUTOR)) != QR_NEVER_US; }

static inline void group_start(group_t *g, uint64_t seed)
{
    pump_init(&g->pump, g->given, seed);
    pump_add(&g->pump, MESH, NULL, fake_outside, g);
    pump_add(&g->pump, HTTP, NULL, fake_outside, g);
    pump_add(&g->pump, ROUTER_A, NULL, fake_router, g);
    pump_add(&g->pump, ROUTER_B, NULL, fake_router, g);
    pump_add(&g->pump, EXECUTOR, g->executor, g->executor ? NULL : fake_executor, g);
    pump_add(&g->pump, WORKER, &qr_worker_class, NULL, NULL);
    pump_add(&g->pump, SCHEDULER, &qr_scheduler_class, NULL, NULL);
    pump_add(&g->pump, PAGES, &qr_page_manager_class, NULL, NULL);
    PUMP_SEND(&g->pump, MESH, PAGES, start, .epoch = 1, .seed = seed);
    PUMP_SEND(&g->pump, MESH, SCHEDULER, start, .epoch = 1, .seed = seed);
    PUMP_SEND(&g->pump, MESH, WORKER, start, .epoch = 1, .seed = seed);
    if (g->executor) PUMP_SEND(&g->pump, MESH, EXECUTOR, start, .epoch = 1, .seed = seed);
    while (pump_deliver(&g->pump)) continue;
    while (g->executor && group_work(g)) continue;
}

static inline void group_destroy(group_t *g)
{
    pump_done(&g->pump);
    free(g->places);
    free(g->given);
    free(g);
}

/* One event of the world: a message, a batch that ends, or time that passes. false when nothing is left to happen. */
static inline bool group_turn(group_t *g)
{
    g->pump.now_us += qr_prng_below(&g->pump.prng, 50);
    if (pump_alarms(&g->pump)) {
        assert_true(++g->alarms < 200);
        return true;
    }
    g->alarms = 0;
    if (g->executor && (g->pump.queued == 0 || qr_prng_one_in(&g->pump.prng, 8)) && group_work(g)) return true;
    bool batch = g->queued > 0 && !g->hold_batches;
    if (batch && (g->pump.queued == 0 || qr_prng_one_in(&g->pump.prng, 8))) {
        fake_run(g);
        return true;
    }
    return pump_deliver(&g->pump);
}

/* Runs until nothing happens any more: alarms of far deadlines are not waited for. */
static inline void group_run(group_t *g)
{
    uint64_t quiet_us = g->pump.now_us, begin_us = quiet_us;
    for (;;) {
        if (g->pump.now_us > begin_us + 60000000) { /* a minute: it goes round in circles */
            static char data[1 << 16];
            for (uint32_t i = 0; i < g->pump.count; i++) {
                qr_text_t text;
                if (!g->pump.members[i].actor) continue;
                qr_text_init(&text, data, sizeof data);
                g->pump.members[i].actor->print(g->pump.members[i].state, g->given, &text);
                print_error("%s", data);
            }
            fail_msg("queued batches %u", g->queued);
        }
        if (group_turn(g)) {
            quiet_us = g->pump.now_us;
            continue;
        }
        uint64_t due_us = QR_NEVER_US;
        for (uint32_t i = 0; i < g->pump.count; i++) due_us = qr_min_u64(due_us, g->pump.members[i].alarm_us);
        if (due_us > quiet_us + 5000000 || !pump_sleep(&g->pump)) return;
    }
}

/* Offers a request and returns its record. */
static inline place_t *group_offer(group_t *g, uint64_t router, const uint32_t *tokens, uint32_t count, uint32_t max_tokens,
                                   uint32_t priority)
{
    qr_assert(g->place_count < g->place_capacity && count + max_tokens <= PLACE_TOKENS);
    place_t *p = &g->places[g->place_count++];
    p->request_id = g->place_count;
    p->router = router;
    p->prompt_count = p->known = count;
    p->max_tokens = max_tokens;
    qr_copy(p->tokens, tokens, count * sizeof *tokens);
    PUMP_SEND(&g->pump, router, WORKER, offer, .request_id = p->request_id, .attempt = 1, .generated_from = count,
              .tokens = {tokens, count}, .max_tokens = max_tokens, .priority = priority, .temperature_bits = g->temperature_bits,
              .top_p_bits = 0x3f800000, .seed = tokens[0] * 1000003ull + count);
    return p;
}

static inline void group_cancel(group_t *g, place_t *p)
{
    if (p->cancelled) return;
    p->cancelled = 1;
    PUMP_SEND(&g->pump, p->router, WORKER, offer_cancel, .request_id = p->request_id, .attempt = 1, .finish = QR_FINISH_CANCELLED);
}

static inline uint64_t group_metric(group_t *g, uint64_t of, uint32_t id)
{
    PUMP_SEND(&g->pump, HTTP, of, metrics_read, .version = 1);
    while (g->pump.queued) pump_deliver(&g->pump);
    return g->metrics[id];
}

/* Every page is free once nothing runs and the cache is dropped; every request has ended once. */
static inline void group_all_over(group_t *g)
{
    for (uint32_t i = 0; i < g->place_count; i++) assert_true(g->places[i].finished);
    assert_int_equal(g->queued, 0);
    for (uint32_t i = 0; i < QR_LANES_MAX; i++) assert_int_equal(g->lanes[i].handle, 0);
    PUMP_SEND(&g->pump, HTTP, PAGES, cache_drop, .version = 1);
    group_run(g);
    assert_true(g->dropped.pages_pool > 0);
    assert_int_equal(g->dropped.pages_held, 0);
    assert_int_equal(g->dropped.pages_free, g->dropped.pages_pool);
}

#endif
