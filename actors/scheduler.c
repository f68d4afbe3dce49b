/* scheduler.c - owns the order of requests, the lanes of one device and the batches in flight.
 *
 *   worker       -- submit -->  scheduler  -- ended -->                     every submit ends once
 *   scheduler    -- pages_reserve -->  page_manager  -- granted | wait | refused -->     one question at a time, first of the order first
 *   scheduler    -- lane_open, batch_run -->  executor  -- lane_opened, batch_done | batch_failed -->
 *   scheduler    -- rows_committed -->  page_manager,   -- step_tokens -->  worker       one of each per step
 *   scheduler    -- lane_close -->  executor,           -- route_release -->  page_manager
 *   scheduler    -- lookup -->  catalog_replica  -- matches -->        on a node with a store: what of a prompt is durable here
 *   scheduler    -- route_pages -->  page_manager,  -- page_spill, page_unspill, spill_drop -->  transfer      rows of preempted requests
 *   scheduler    -- policy_read, decisions_note -->  facts  -- policy_snapshot, decisions_kept -->      on a node with a store
 *   scheduler    -- pages_load, load_ended -->  page_manager,  -- restore -->  restore_streamer  -- restored -->
 *
 * I1. The queue holds exactly the requests without a route, sorted by order; no two orders are equal.
 * I2. At most one pages_reserve is open; the lane it will need is set aside for it.
 * I3. While the first request that is not waiting for a producer lacks pages, no later one is asked for.
 * I4. A lane's in_flight counts the batches in flight that name it, voids those of them whose result will be dropped. A lane with
 *     voids is not planned; with none, the rows in flight are exactly [rows_done, rows_sent).
 * I5. A route is released, and its lane closed, only when no batch in flight names it. The executor hears the close first.
 * I6. rows_done <= rows_sent <= rows_total = known tokens + tokens still to draw - 1. Row p draws iff p >= known tokens - 1.
 * I7. Token storage: regions of the requests lie in the order of the list, do not overlap, and sum to tokens_used.
 * I8. A producer stands where the earliest request that waits for it stands, so that a wait never inverts the order.
 * I9. cached_tokens is the boundary of the grant and nothing else; computed prompt rows are counted when they are committed, those
 *     that an ended request did not come to when it ends: prompt = cached + computed + uncomputed while nothing is open. Restored rows
 *     count as cached. What a request is told in the end leaves out what it found and had to compute after all, placed again.
 * I10. While a lane loads (pages_load .. load_closed) no batch names it, and it is closed only afterwards: what is restored into its pages
 *     is over before they are released. A restore that stops early costs a recompute of the rest, nothing else.
 * I11. A request waits for the catalog, and for storage to say what of it lies in memory, at most LOOK_US before pages are asked for; at
 *     most QR_CATALOG_LOOKUPS lookups are open.
 * I12. Over-commit: a lane has pages for `room` rows and asks for the next tranche two pages ahead. A lane that gets none is short: it
 *      waits, no later request is admitted, and at most one later lane at a time makes room: its rows in flight become void, its
 *      request goes back to the queue with the tokens it has, under the same order. Never the first of the order; a resumed one not
 *      before it has produced preempt_quantum tokens, unless it is short itself. It is asked for again only when a request has ended
 *      since, or nothing else has a lane: its pages were needed, and only an end gives pages back for good.
 * I13. Spills: before a preempted lane is closed, and when no batch in flight names it, its rows are copied into transfer's memory
 *      under a key of their own (at most one copy at a time, since at most one lane makes room). They count from page_spilled on; the
 *      next grant loads what of them does not stand, like a restore, and gives them up. Without room, or when a move fails, they are
 *      computed again.
 * I14. A placed prompt of which rows are to be had has one decision (cost.h), under the policy of that moment, which is over once: with
 *      the load, when the rows are computed, or with its lane. */
#include "actors/scheduler.h"

#include "actors/cost.h"
#include "actors/decisions.h"
#include "actors/note.h"
#include "actors/plan.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mutant.h"
#include "base/text.h"

enum { NONE = 0xffffffffu };
enum { ENDS_PER_CALL = 64, MAX_OUT = 4 * QR_LANES_MAX + 2 }; /* deadlines and stops end at most so many requests per call */
enum { LOOK_US = 20000 };
enum { TOKENS_PER_REQUEST = 1024, CONTEXTS = 4 }; /* token storage: the larger of both bounds */

enum {
    METRICS =
#define METRIC(name, number, kind, help) +1
#include "messages/metric.def"
};

enum request_state { REQUEST_FREE, REQUEST_QUEUED, REQUEST_SHORT, REQUEST_WAITING, REQUEST_PLACED };
enum lane_state { LANE_FREE, LANE_RESERVED, LANE_OPENING, LANE_RUNNING, LANE_ENDING, LANE_CLOSING };
enum { AWAIT_OPENED = 1, AWAIT_CLOSED = 2, AWAIT_RELEASED = 4 };
enum { MORE_NONE, MORE_ASKED, MORE_SHORT };
enum { COPIES_NONE, COPIES_TO_SEND, COPIES_IN_FLIGHT };
enum { LOAD_NONE, LOAD_ASKED, LOAD_RUNNING, LOAD_CLOSING }; /* pages_load, restore or page_unspill, load_ended is open */
enum { SPILL_NONE, SPILL_DUE, SPILL_ASKED, SPILL_RUNNING }; /* not yet, route_pages, page_spill is open */

typedef struct request {
    uint64_t request_id, order, seed;
    uint64_t submitted_us, granted_us, first_token_us, deadline_us;
    uint64_t token_at;                 /* first of token_count ids in the storage, which has room for token_room */
    uint64_t releases_seen, retry_us;  /* SHORT: ask again when a release came since, or then */
    uint64_t producer, wait_until_us;  /* WAITING */
    uint64_t lookup_id, look_until_us; /* 0 = no lookup is waited for (I11) */
    uint64_t ram_id;                   /* 0 = no ram_find is waited for (I11) */
    uint64_t spill_id;                 /* I13: key of its rows, 0 without any; also while they are being copied */
    uint64_t ends_seen;                /* preempted: requests with a lane that had ended then */
    qr_hash_t scope;
    uint32_t attempt, state, token_count, generated_from;
    uint32_t draws_max;                 /* tokens still to draw */
    uint32_t boundary;                  /* rows granted, or restored since */
    uint32_t cached, computed, counted; /* prompt rows: found, computed, and up to where they are counted (I9) */
    uint32_t rows_high;                 /* most rows it ever had */
    uint32_t computed_from;             /* first prompt row that was computed for it */
    uint32_t found_later, found_end;    /* rows of `cached` found after that, and their end */
    uint32_t placements, quantum;       /* how often it was placed; tokens until it may make room (I12) */
    uint32_t token_room;
    uint32_t wait_boundary, waits, wait_over;
    uint32_t temperature_bits, top_p_bits, min_p_bits, top_k, logprobs, ignore_eos;
    uint32_t lane;          /* NONE without one */
    uint32_t before, after; /* storage order; free list through `after` */
    uint32_t durable_rows;  /* rows that durable chunks of this node hold, a chunk's end */
    uint32_t spilled_rows;  /* I13: rows kept under spill_id, 0 until they are */
    uint32_t preempted;     /* 1: it made room and has not been placed since */
    uint32_t ram_rows;      /* of its prompt, from the first on, what storage last said to lie in memory */
} request_t;

typedef struct lane {
    uint64_t spill_id;     /* I13: of the rows that are spilled or that it loads */
    uint64_t route, order; /* order: its request's, or that of the earliest request that waits for its rows */
    uint32_t generation, state, request, awaiting;
    uint32_t prompt, rows_total; /* known tokens at grant; I6 */
    uint32_t rows_done, rows_sent;
    uint32_t draws, pending; /* tokens drawn and committed; the newest of them */
    uint32_t in_flight, voids, failures, keep;
    uint32_t copy_state, copy_count;
    uint32_t load, load_start, load_end; /* I10; rows [load_start, load_end) */
    uint32_t spill, spill_rows;          /* I13: SPILL_*; rows [0, spill_rows) */
    uint32_t unspills, reserved;         /* 1: what it loads was spilled */
    /* I12: rows it has pages for; MORE_*; 1: it makes room; 1: it got no pages when it last asked; rows it asked for */
    uint32_t room, more, preempted, starved, more_rows;
    uint32_t covered[QR_GROUPS_MAX]; /* rows the pages at hand have room for */
    uint64_t more_releases, more_retry_us;
    qr_decision_t decision; /* I14 */
    uint64_t deciding;      /* 1: it is not over */
    uint64_t copy_sources[QR_SCHEDULER_COPIES_MAX], copy_targets[QR_SCHEDULER_COPIES_MAX];
    uint32_t copy_rows[QR_SCHEDULER_COPIES_MAX], copy_groups[QR_SCHEDULER_COPIES_MAX];
} lane_t;

typedef struct entry {
    uint32_t lane, start, rows, dropped; /* dropped 1: void, its result does not count */
} entry_t;

typedef struct batch {
    uint64_t id; /* 0 = none */
    uint32_t lane_count, prefill_rows, decode_rows, reserved;
    entry_t entries[QR_LANES_MAX];
} batch_t;

typedef struct scheduler {
    uint64_t address, epoch, worker, page_manager, executor;
    uint64_t requests_at, lanes_at, queue_at, tokens_at, map_at;                   /* offsets of the tables behind this struct */
    uint64_t window_lanes_at, window_pages_at, window_groups_at, window_blocks_at; /* columns of pages for the next batch */
    uint64_t tokens_max, tokens_end, tokens_used, batches_made, arrivals, releases;
    uint64_t drain_by, stop_by; /* who asked; 0 = nobody */
    uint64_t drain_until_us, stop_until_us;
    uint64_t asked_id;                  /* the open pages_reserve */
    uint32_t asked_attempt, asked_lane; /* lane NONE: no question is open */
    uint32_t requests_max, lanes_max, context, page_tokens, group_count, windows_max;
    uint32_t request_count, queue_count, window_count, free_request, token_head, token_tail;
    uint32_t lanes_used, draining;
    uint32_t windowed[QR_GROUPS_MAX];
    uint64_t prompt_tokens, cached_tokens, computed_tokens, uncomputed_tokens, generated_tokens;
    uint64_t batches_done, batches_failed, lanes_failed, decode_rows, prefill_rows, void_rows, asks;
    uint64_t restore_streamer, replica, storage; /* replica 0: nothing durable is looked for; storage 0: it has no RAM tier */
    uint64_t chains_at;                          /* scratch: [chains_max] chain hashes */
    uint64_t lookups, lookups_late, restores, restores_failed, restored_tokens;
    uint32_t lookups_open, chains_max, chunk_tokens, row_bytes;
    uint64_t preemptions, recomputed_rows;
    uint64_t transfer, spills_made, ends;
    uint32_t answer_tokens, preempting; /* learned median; lanes that make room (I12: at most 1) */
    uint32_t preempted, catalog_read;   /* the request whose lane does; 1: the replica is not asked any more when probes come */
    uint32_t probes_out;                /* bit i: the worker's probe i is at the replica */
    uint32_t ram_finds_open;            /* at most QR_CATALOG_LOOKUPS */
    qr_calibration_t calibration;
    qr_cost_t cost;
    qr_policy_t policy;
    uint64_t chosen[QR_SOURCE_RECOMPUTE + 1]; /* decisions by choice */
    uint32_t policy_asked, policy_known;
    qr_decisions_t decisions;
    batch_t batches[QR_BATCHES_IN_FLIGHT]; /* oldest first */
} scheduler_t;

/* What one handler call carries around. */
typedef struct call {
    scheduler_t *self;
    const qr_given_t *given;
    qr_outbox_t *outbox;
    uint64_t now_us;
} call_t;

static void *at(const scheduler_t *self, uint64_t offset) { return (uint8_t *)(uintptr_t)self + offset; }
static request_t *request_of(const scheduler_t *self, uint32_t i) { return (request_t *)at(self, self->requests_at) + i; }
static lane_t *lane_of(const scheduler_t *self, uint32_t i) { return (lane_t *)at(self, self->lanes_at) + i; }
static uint32_t *queue_of(const scheduler_t *self) { return at(self, self->queue_at); }
static uint32_t *tokens_of(const scheduler_t *self) { return at(self, self->tokens_at); }
static qr_map_t *map_of(const scheduler_t *self) { return at(self, self->map_at); }
static uint32_t request_index(const scheduler_t *self, const request_t *r) { return (uint32_t)(r - request_of(self, 0)); }
static uint32_t lane_index(const scheduler_t *self, const lane_t *l) { return (uint32_t)(l - lane_of(self, 0)); }
static uint64_t lane_handle(const scheduler_t *self, const lane_t *l) { return qr_handle(lane_index(self, l), l->generation); }

/* The lane a handle names, NULL if it is not (or no longer) one. */
static lane_t *lane_find(const scheduler_t *self, uint64_t handle)
{
    uint32_t i = qr_handle_index(handle);
    if (i >= self->lanes_max) return NULL;
    lane_t *lane = lane_of(self, i);
    return lane->state != LANE_FREE && lane->generation == qr_handle_generation(handle) ? lane : NULL;
}

/* Whether a lane waits for pages (I12). */
static bool is_short(const lane_t *lane) { return lane->state >= LANE_OPENING && lane->request != NONE && lane->starved; }

static lane_t *lane_find_route(const scheduler_t *self, uint64_t route)
{
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        lane_t *lane = lane_of(self, i);
        if (lane->state >= LANE_OPENING && lane->route == route) return lane;
    }
    return NULL;
}

static request_t *request_find(const scheduler_t *self, uint64_t request_id)
{
    uint32_t i;
    return qr_map_get(map_of(self), request_id, &i) ? request_of(self, i) : NULL;
}

/* ---- token storage (I7) --------------------------------------------------------------------------------------------- */

static void tokens_compact(scheduler_t *self)
{
    uint64_t end = 0;
    for (uint32_t i = self->token_head; i != NONE; i = request_of(self, i)->after) {
        request_t *r = request_of(self, i);
        memmove(tokens_of(self) + end, tokens_of(self) + r->token_at, (size_t)r->token_room * sizeof(uint32_t));
        r->token_at = end;
        end += r->token_room;
    }
    self->tokens_end = end;
}

/* Stores the ids of a request at the end of the list; the caller has seen that they fit. */
static void tokens_store(scheduler_t *self, request_t *r, const qr_u32s_t *tokens, uint32_t room)
{
    if (self->tokens_max - self->tokens_end < room) tokens_compact(self);
    qr_assert(self->tokens_max - self->tokens_end >= room);
    r->token_at = self->tokens_end;
    r->token_count = (uint32_t)tokens->count;
    r->token_room = room;
    qr_copy(tokens_of(self) + r->token_at, tokens->data, tokens->count * sizeof(uint32_t));
    memset(tokens_of(self) + r->token_at + r->token_count, 0, (size_t)(room - r->token_count) * sizeof(uint32_t));
    self->tokens_end += room;
    self->tokens_used += room;
    r->before = self->token_tail;
    r->after = NONE;
    if (self->token_tail == NONE)
        self->token_head = request_index(self, r);
    else
        request_of(self, self->token_tail)->after = request_index(self, r);
    self->token_tail = request_index(self, r);
}

static void tokens_forget(scheduler_t *self, request_t *r)
{
    self->tokens_used -= r->token_room;
    if (r->before == NONE)
        self->token_head = r->after;
    else
        request_of(self, r->before)->after = r->after;
    if (r->after == NONE)
        self->token_tail = r->before;
    else
        request_of(self, r->after)->before = r->before;
    if (self->token_tail == NONE) self->tokens_end = 0;
}

/* ---- queue (I1) ------------------------------------------------------------------------------------------------------- */

static void queue_insert(scheduler_t *self, request_t *r)
{
    uint32_t *queue = queue_of(self), place = self->queue_count++;
    for (; place > 0 && request_of(self, queue[place - 1])->order > r->order; place--) queue[place] = queue[place - 1];
    queue[place] = request_index(self, r);
}

static void queue_remove(scheduler_t *self, const request_t *r)
{
    uint32_t *queue = queue_of(self), place = 0, index = request_index(self, r);
    while (queue[place] != index) place++;
    self->queue_count--;
    memmove(queue + place, queue + place + 1, (self->queue_count - place) * sizeof *queue);
}

/* ---- the end of lanes and requests ------------------------------------------------------------------------------------ */

/* New pages of windowed groups that the executor has not been told of, as the columns they travel in. */
typedef struct windows {
    uint64_t *lanes, *pages;
    uint32_t *groups, *blocks;
} windows_t;

static windows_t windows_of(const scheduler_t *self)
{
    return (windows_t){at(self, self->window_lanes_at), at(self, self->window_pages_at), at(self, self->window_groups_at),
                       at(self, self->window_blocks_at)};
}

static void window_add(scheduler_t *self, const lane_t *lane, uint32_t group, uint32_t block, uint64_t page)
{
    windows_t w = windows_of(self);
    qr_assert(group < self->group_count && self->window_count < self->windows_max);
    w.lanes[self->window_count] = lane_handle(self, lane);
    w.pages[self->window_count] = page;
    w.groups[self->window_count] = group;
    w.blocks[self->window_count++] = block;
}

static void windows_forget(scheduler_t *self, uint64_t lane)
{
    windows_t w = windows_of(self);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < self->window_count; i++) {
        if (w.lanes[i] == lane) continue;
        w.lanes[kept] = w.lanes[i];
        w.pages[kept] = w.pages[i];
        w.groups[kept] = w.groups[i];
        w.blocks[kept++] = w.blocks[i];
    }
    self->window_count = kept;
}

/* Over-commit needs every group to keep the whole prefix. */
static bool over_commits(const call_t *call)
{
    for (uint32_t g = 0; g < call->self->group_count; g++)
        if (call->self->windowed[g]) return false;
    return call->given->params.over_commit != 0;
}

/* ---- rows of a request that makes room (I13) ---------------------------------------------------------------------------- */

static void spill_drop(const call_t *call, uint64_t spill_id)
{
    qr_send(call->outbox, call->self->transfer, spill_drop, (&(qr_spill_drop_t){.key = spill_id}));
}

/* The spilled rows of a request are not wanted any more. */
static void spill_forget(const call_t *call, request_t *r)
{
    if (r->spilled_rows && !QR_MUTANT(706)) spill_drop(call, r->spill_id);
    r->spilled_rows = 0;
    r->spill_id = 0;
}

/* The request whose rows a lane spills, NULL if it has ended meanwhile. */
static request_t *spill_request(const scheduler_t *self, const lane_t *lane)
{
    request_t *r = request_of(self, self->preempted);
    return r->state != REQUEST_FREE && r->spill_id == lane->spill_id ? r : NULL;
}

/* The rows of a lane that are its route's own: those of a copy count when its batch is committed. */
static uint32_t rows_standing(const scheduler_t *self, const lane_t *lane)
{
    return lane->copy_state == COPIES_NONE || QR_MUTANT(716) ? lane->rows_done : lane->rows_done - lane->rows_done % self->page_tokens;
}

/* Whether a lane that ends has to wait for the copy of its rows; begins it when it is due. */
static bool spill_waits(const call_t *call, lane_t *lane)
{
    if (lane->spill == SPILL_DUE) {
        lane->spill_rows = rows_standing(call->self, lane);
        lane->spill = SPILL_NONE;
        if (lane->spill_rows == 0 || !spill_request(call->self, lane) || call->self->stop_by) return false;
        lane->spill = SPILL_ASKED;
        qr_send(call->outbox, call->self->page_manager, route_pages, (&(qr_route_pages_t){.route = lane->route, .rows = lane->spill_rows}));
    }
    return lane->spill != SPILL_NONE;
}

static void release_route(const call_t *call, lane_t *lane)
{
    lane->awaiting |= AWAIT_RELEASED;
    lane->state = LANE_CLOSING;
    call->self->releases++;
    qr_send(call->outbox, call->self->page_manager, route_release,
            (&(qr_route_release_t){.route = lane->route, .keep = (uint8_t)lane->keep}));
}

/* Closes an ending lane as soon as no batch in flight names it (I5). */
static void lane_try_close(const call_t *call, lane_t *lane)
{
    if (lane->state != LANE_ENDING || (lane->in_flight > 0 && !QR_MUTANT(154) && !(QR_MUTANT(711) && lane->spill)) ||
        (lane->load && !QR_MUTANT(482)))
        return;
    if (spill_waits(call, lane)) return;
    windows_forget(call->self, lane_handle(call->self, lane));
    lane->awaiting |= AWAIT_CLOSED;
    qr_send(call->outbox, call->self->executor, lane_close, (&(qr_lane_close_t){.lane = lane_handle(call->self, lane)}));
    release_route(call, lane);
}

static void lane_answered(scheduler_t *self, lane_t *lane, uint32_t what)
{
    lane->awaiting &= ~what;
    if (lane->state != LANE_CLOSING || lane->awaiting != 0) return;
    self->preempting -= lane->preempted;
    lane->preempted = 0;
    lane->state = LANE_FREE;
    self->lanes_used--;
}

/* The results of a lane's rows in flight will be dropped; it is planned again, or closed, when they are through. */
static void lane_void(scheduler_t *self, lane_t *lane)
{
    uint32_t index = lane_index(self, lane);
    for (uint32_t b = 0; b < QR_BATCHES_IN_FLIGHT; b++)
        for (uint32_t i = 0; self->batches[b].id && i < self->batches[b].lane_count; i++) {
            entry_t *entry = &self->batches[b].entries[i];
            if (entry->lane != index || entry->dropped) continue;
            entry->dropped = 1;
            lane->voids++;
        }
    lane->rows_sent = lane->rows_done;
    if (lane->copy_state == COPIES_IN_FLIGHT && !QR_MUTANT(158)) lane->copy_state = COPIES_TO_SEND;
}

/* I9: rows that were never computed for the request. */
static uint32_t honest_cached(const request_t *r)
{
    if (QR_MUTANT(691)) return r->cached;
    return qr_min_u32(r->cached - r->found_later, r->computed_from) + r->found_later;
}

static void send_ended(const call_t *call, const request_t *r, uint32_t finish, uint32_t error)
{
    uint64_t granted_us = r->granted_us ? r->granted_us : call->now_us, first_us = r->first_token_us ? r->first_token_us : call->now_us;
    qr_ended_t ended = {.request_id = r->request_id, .attempt = r->attempt, .finish = finish, .error = error};
    ended.cached_tokens = QR_MUTANT(165) ? r->boundary : honest_cached(r);
    ended.computed_tokens = r->computed + r->cached - honest_cached(r);
    ended.queue_us = granted_us - r->submitted_us;
    ended.prefill_us = r->granted_us ? first_us - granted_us : 0;
    qr_send(call->outbox, call->self->worker, ended, &ended);
}

/* The median answer, as tokens: each answer moves it a step towards itself. */
static void learn_answer(scheduler_t *self, uint32_t tokens)
{
    uint32_t step = qr_max_u32(self->answer_tokens / 16, 1);
    if (tokens > self->answer_tokens)
        self->answer_tokens += step;
    else if (tokens < self->answer_tokens)
        self->answer_tokens -= qr_min_u32(step, self->answer_tokens - 1);
}

/* A lane's decision is over (I14): rows stand; us: the device's own time for them, and what they waited for it. */
static void decision_over(const call_t *call, lane_t *lane, uint32_t rows, uint32_t reason, uint64_t device_us, uint64_t queue_us)
{
    qr_decision_t *d = &lane->decision;
    if (!lane->deciding) return;
    lane->deciding = 0;
    d->outcome_rows = rows;
    d->reason = reason;
    d->outcome_ns += device_us * 1000;
    d->queue_ns = queue_us * 1000;
    d->elapsed_ns = (call->now_us - d->made_us) * 1000;
    qr_decisions_add(&call->self->decisions, d, call->now_us);
}

/* Its request has left it; what is in flight is void. */
static void lane_end(const call_t *call, lane_t *lane)
{
    scheduler_t *self = call->self;
    lane_void(self, lane);
    if (lane->decision.choice == QR_SOURCE_RECOMPUTE) decision_over(call, lane, lane->rows_done, QR_E_CANCELLED, 0, 0);
    lane->state = LANE_ENDING;
    if (lane->load == LOAD_RUNNING && !lane->unspills)
        qr_send(call->outbox, self->restore_streamer, restore_cancel, (&(qr_restore_cancel_t){.restore_id = lane_handle(self, lane)}));
    lane_try_close(call, lane);
}

/* Ends a request: the one place where a submit is answered. Its lane goes on until no batch names it. */
static void request_end(const call_t *call, request_t *r, uint32_t finish, uint32_t error)
{
    scheduler_t *self = call->self;
    send_ended(call, r, finish, error);
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_ended, r->request_id, finish, error, r->computed);
    lane_t *lane = r->lane == NONE ? NULL : lane_of(self, r->lane);
    if (r->state != REQUEST_PLACED) queue_remove(self, r);
    if (r->placements) self->uncomputed_tokens += r->generated_from - r->counted; /* I9 */
    if (lane && (finish == QR_FINISH_STOP || finish == QR_FINISH_LENGTH))
        learn_answer(self, r->token_count - r->generated_from + lane->draws);
    spill_forget(call, r);
    self->ends += lane && lane->state != LANE_RESERVED;
    tokens_forget(self, r);
    qr_assert(qr_map_remove(map_of(self), r->request_id));
    memset(r, 0, sizeof *r);
    r->lane = NONE;
    r->after = self->free_request;
    self->free_request = request_index(self, r);
    self->request_count--;
    if (lane == NULL) return;
    lane->request = NONE;
    if (lane->state == LANE_RESERVED) return; /* its grant is given back when it comes */
    lane_end(call, lane);
}

/* ---- admission ---------------------------------------------------------------------------------------------------------- */

/* Whether a waiting request should ask again. A producer that ends is over for us once its release has been sent. */
static bool wait_is_over(const call_t *call, request_t *r)
{
    const lane_t *producer = lane_find_route(call->self, r->producer);
    if (call->now_us >= r->wait_until_us && !QR_MUTANT(166)) r->wait_over = 1;
    if (QR_MUTANT(435)) return false;
    return r->wait_over || producer == NULL || producer->state == LANE_CLOSING || producer->rows_done >= r->wait_boundary;
}

static uint32_t request_rows_max(const request_t *r) { return r->token_count + r->draws_max - 1; }

/* Rows that pages are asked for at first. */
static uint32_t request_room(const call_t *call, const request_t *r)
{
    uint32_t most = request_rows_max(r);
    return over_commits(call) ? qr_min_u32(most, r->token_count + call->self->answer_tokens - 1) : most;
}

static lane_t *lane_take(scheduler_t *self)
{
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        lane_t *lane = lane_of(self, i);
        if (lane->state != LANE_FREE) continue;
        uint32_t generation = lane->generation + 1;
        memset(lane, 0, sizeof *lane);
        lane->generation = generation ? generation : 1;
        lane->state = LANE_RESERVED;
        lane->request = NONE;
        lane->keep = 1;
        self->lanes_used++;
        return lane;
    }
    return NULL;
}

/* Whether a request that made room has to wait on (I12). Lanes that make room will be none. */
static bool stays_away(const scheduler_t *self, const request_t *r)
{
    return r->preempted && r->ends_seen == self->ends && self->lanes_used > self->preempting && !QR_MUTANT(715);
}

static void ask_pages(const call_t *call, request_t *r)
{
    scheduler_t *self = call->self;
    lane_t *lane = lane_take(self);
    if (lane == NULL) return;
    lane->request = request_index(self, r);
    r->lane = lane_index(self, lane);
    self->asked_id = r->request_id;
    self->asked_attempt = r->attempt;
    self->asked_lane = r->lane;
    self->asks++;
    qr_pages_reserve_t ask = {.request_id = r->request_id, .attempt = r->attempt, .scope = r->scope};
    ask.tokens = (qr_u32s_t){tokens_of(self) + r->token_at, r->token_count};
    ask.rows_max = lane->room = request_room(call, r);
    ask.rows_whole = over_commits(call) ? request_rows_max(r) : 0;
    ask.first_rows = qr_min_u32(ask.rows_max, qr_plan_rows_in_flight(call->given->params.prefill_tile));
    ask.wait_rows = r->wait_over ? 0 : (uint32_t)call->given->params.wait_rows;
    qr_send(call->outbox, self->page_manager, pages_reserve, &ask);
}

/* Whether the catalog may still say what of the prompt is durable, and storage what of that lies in memory (I11). */
static bool is_looking(const call_t *call, request_t *r)
{
    if (r->lookup_id == 0 && r->ram_id == 0) return false;
    if (call->now_us < r->look_until_us) return true;
    call->self->lookups_late += r->lookup_id != 0;
    r->lookup_id = r->ram_id = 0; /* what is durable is taken to be on disk */
    return false;
}

/* Asks the catalog's replica of this node for the chunks of a prompt; the row of the pending token is never one. */
static void lookup_ask(const call_t *call, request_t *r)
{
    scheduler_t *self = call->self;
    if (!self->replica || self->lookups_open == QR_CATALOG_LOOKUPS) return;
    uint32_t count = qr_min_u32((r->token_count - 1) / self->chunk_tokens, self->chains_max);
    if (count == 0) return;
    uint8_t *chains = at(self, self->chains_at);
    const uint8_t *parent = r->scope.bytes;
    for (uint32_t i = 0; i < count; parent = chains + 32 * (size_t)i++)
        qr_chain_node(parent, tokens_of(self) + r->token_at + (size_t)i * self->chunk_tokens, self->chunk_tokens, chains + 32 * (size_t)i);
    r->lookup_id = ++self->lookups;
    r->look_until_us = call->now_us + LOOK_US;
    self->lookups_open++;
    qr_outbox_alarm(call->outbox, r->look_until_us);
    qr_send(call->outbox, self->replica, lookup,
            (&(qr_lookup_t){.lookup_id = r->lookup_id, .fingerprint = call->given->layout.fingerprint, .chains = {chains, 32ull * count}}));
    if (!self->storage || self->ram_finds_open == QR_CATALOG_LOOKUPS) return;
    r->ram_id = r->lookup_id;
    self->ram_finds_open++;
    qr_send(call->outbox, self->storage, ram_find, (&(qr_ram_find_t){.key = r->ram_id, .chains = {chains, 32ull * count}}));
}

/* Nodes of a match, from the first on, all of whose parts stand on this node's disk. */
static uint32_t local_depth(const scheduler_t *self, const qr_matches_t *matches)
{
    uint32_t own = 0, depth = matches->depth;
    for (uint64_t k = 0; k < matches->owners.count && k < 32; k++)
        if (matches->owners.data[k] == qr_address_node(self->address)) own |= 1u << k;
    uint64_t parts = qr_min_u64(matches->node_indexes.count, matches->ssd_masks.count);
    for (uint64_t i = 0; i < parts; i++)
        if (!(matches->ssd_masks.data[i] & own) && !QR_MUTANT(484)) depth = qr_min_u32(depth, matches->node_indexes.data[i]);
    /* Another boundary needs other parts of a windowed group than the answer lists. */
    for (uint32_t g = 0; g < self->group_count; g++)
        if (self->windowed[g] && depth < matches->depth) return 0;
    return depth;
}

static void on_matches(const call_t *call, const qr_matches_t *matches)
{
    scheduler_t *self = call->self;
    if (self->lookups_open == 0) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, matches->lookup_id, QR_MESSAGE_matches, matches->depth, 0);
        return;
    }
    self->lookups_open--;
    for (uint32_t i = 0; i < self->requests_max; i++) {
        request_t *r = request_of(self, i);
        if (r->state == REQUEST_FREE || r->lookup_id != matches->lookup_id) continue;
        r->lookup_id = 0;
        uint32_t most = (r->token_count - 1) / self->chunk_tokens;
        r->durable_rows = qr_min_u32(local_depth(self, matches), most) * self->chunk_tokens;
        if (r->durable_rows == 0) r->ram_id = 0; /* whatever lies there */
        return;
    }
}

static void on_ram_found(scheduler_t *self, const qr_ram_found_t *found)
{
    self->ram_finds_open -= self->ram_finds_open > 0;
    for (uint32_t i = 0; i < self->requests_max; i++) {
        request_t *r = request_of(self, i);
        if (r->state == REQUEST_FREE || r->ram_id == 0 || r->ram_id != found->key) continue;
        r->ram_id = 0;
        r->ram_rows = qr_min_u32(found->depth, r->token_count / self->chunk_tokens) * self->chunk_tokens;
    }
}

/* The earliest order of a lane that waits for pages, else the greatest number. */
static uint64_t first_short(const scheduler_t *self)
{
    uint64_t order = UINT64_MAX;
    for (uint32_t i = 0; i < self->lanes_max; i++)
        if (is_short(lane_of(self, i))) order = qr_min_u64(order, lane_of(self, i)->order);
    return order;
}

/* Asks for the first request that may be asked for (I2, I3). */
static void admit(const call_t *call)
{
    scheduler_t *self = call->self;
    if (self->asked_lane != NONE || self->stop_by) return;
    uint64_t short_order = first_short(self);
    for (uint32_t i = 0; i < self->queue_count; i++) {
        request_t *r = request_of(self, queue_of(self)[i]);
        if (r->order > short_order && !QR_MUTANT(700)) return; /* I12 */
        if (stays_away(self, r)) return;
        if (r->state == REQUEST_WAITING && !wait_is_over(call, r)) continue;
        if (is_looking(call, r) || (self->preempting && self->preempted == queue_of(self)[i])) continue; /* its route is still open */
        if (r->state == REQUEST_SHORT && r->releases_seen == self->releases && call->now_us < r->retry_us) {
            if (QR_MUTANT(159)) continue;
            return;
        }
        ask_pages(call, r);
        return;
    }
}

/* Closes the open question; the request that asked, NULL if it has ended meanwhile or the answer is not for it. */
static bool answer_fits(const call_t *call, uint64_t request_id, uint32_t attempt, uint16_t type)
{
    const scheduler_t *self = call->self;
    if (self->asked_lane != NONE && self->asked_id == request_id && self->asked_attempt == attempt) return true;
    qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, request_id, type, attempt, 0);
    return false;
}

static lane_t *answer_close(scheduler_t *self, request_t **ret_request)
{
    lane_t *lane = lane_of(self, self->asked_lane);
    self->asked_lane = NONE;
    *ret_request = lane->request == NONE ? NULL : request_of(self, lane->request);
    return lane;
}

static void lane_give_back(scheduler_t *self, lane_t *lane, request_t *r)
{
    lane->state = LANE_FREE;
    lane->request = NONE;
    self->lanes_used--;
    if (r) r->lane = NONE;
}

/* Whether a grant is one this request can run on; anything else is page_manager's mistake and ends the request. */
static bool grant_fits(const scheduler_t *self, const request_t *r, const lane_t *lane, const qr_pages_granted_t *grant)
{
    if (grant->boundary >= r->token_count || grant->group_counts.count != self->group_count ||
        grant->first_blocks.count != self->group_count || grant->copy_sources.count > QR_SCHEDULER_COPIES_MAX ||
        grant->copy_targets.count != grant->copy_sources.count || grant->copy_rows.count != grant->copy_sources.count ||
        grant->copy_groups.count != grant->copy_sources.count)
        return false;
    uint64_t pages = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        pages += grant->group_counts.data[g];
        uint64_t rows = ((uint64_t)grant->first_blocks.data[g] + grant->group_counts.data[g]) * self->page_tokens;
        if (rows <= grant->boundary || (!self->windowed[g] && rows < lane->room)) return false;
    }
    return pages == grant->pages.count;
}

static void lane_fill(const call_t *call, lane_t *lane, const request_t *r, const qr_pages_granted_t *grant)
{
    const scheduler_t *self = call->self;
    lane->order = r->order;
    lane->prompt = r->token_count;
    lane->rows_total = request_rows_max(r) - QR_MUTANT(439);
    lane->rows_done = lane->rows_sent = grant->boundary;
    for (uint32_t g = 0; g < self->group_count; g++)
        lane->covered[g] = self->windowed[g] ? (grant->first_blocks.data[g] + grant->group_counts.data[g]) * self->page_tokens
                                             : lane->room - QR_MUTANT(439);
    lane->copy_count = (uint32_t)grant->copy_sources.count;
    lane->copy_state = lane->copy_count ? COPIES_TO_SEND : COPIES_NONE;
    for (uint32_t i = 0; i < lane->copy_count; i++) {
        lane->copy_sources[i] = grant->copy_sources.data[i];
        lane->copy_targets[i] = grant->copy_targets.data[i];
        lane->copy_rows[i] = grant->copy_rows.data[i];
        lane->copy_groups[i] = grant->copy_groups.data[i];
    }
}

static void open_lane(const call_t *call, lane_t *lane, const request_t *r, const qr_pages_granted_t *grant)
{
    qr_lane_open_t open = {.lane = lane_handle(call->self, lane), .request_id = r->request_id, .attempt = r->attempt};
    open.generated_from = r->generated_from;
    open.temperature_bits = r->temperature_bits;
    open.top_p_bits = r->top_p_bits;
    open.min_p_bits = r->min_p_bits;
    open.top_k = r->top_k;
    open.seed = r->seed;
    open.logprobs = (uint8_t)r->logprobs;
    open.group_counts = grant->group_counts;
    open.first_blocks = grant->first_blocks;
    open.pages = grant->pages;
    lane->state = LANE_OPENING;
    lane->awaiting = AWAIT_OPENED;
    qr_send(call->outbox, call->self->executor, lane_open, &open);
}

/* Rows up to boundary stand without computing; returns the prompt rows among them that were not counted yet (I9). */
static uint32_t count_cached(scheduler_t *self, request_t *r, uint32_t boundary)
{
    uint32_t end = qr_min_u32(boundary, r->generated_from), more = end > r->counted ? end - r->counted : 0;
    r->boundary = boundary;
    r->rows_high = qr_max_u32(r->rows_high, boundary);
    r->cached += more;
    r->counted += more;
    if (r->computed_from < end && more) r->found_later += more, r->found_end = end;
    self->cached_tokens += more;
    return more;
}

/* ---- loads (I10) ---------------------------------------------------------------------------------------------------------- */

/* The route's own rows at its grant: a copy's rows count only when its batch is committed. */
static uint32_t rows_at_grant(const scheduler_t *self, const qr_pages_granted_t *grant)
{
    return grant->copy_sources.count ? grant->boundary - grant->boundary % self->page_tokens : grant->boundary;
}

/* Which way the rows take that are to be had (QR_SOURCE_*). A load begins at a page's start. */
static uint32_t decide(const call_t *call, lane_t *lane, const request_t *r, const qr_pages_granted_t *grant)
{
    scheduler_t *self = call->self;
    bool loadable = rows_at_grant(self, grant) % self->page_tokens == 0;
    bool own = r->spilled_rows > grant->boundary;
    uint32_t tier_rows = QR_MUTANT(774) ? 0 : qr_min_u32(r->ram_rows, r->durable_rows);
    uint32_t ram_rows = own ? r->spilled_rows : qr_max_u32(r->spilled_rows, tier_rows);
    qr_cost_case_t c = {.resident_rows = grant->boundary,
                        .row_bytes = self->row_bytes,
                        .own = own,
                        .always = call->given->params.restore_always != 0};
    qr_cost_choice_t x;
    if (loadable || ram_rows <= grant->boundary) c.ram_rows = ram_rows;
    if (loadable || r->durable_rows <= grant->boundary) c.ssd_rows = r->durable_rows;
    if (!c.ram_rows && !c.ssd_rows) return QR_SOURCE_RECOMPUTE; /* nothing to decide */
    qr_cost_choose(&self->policy, &self->cost, &self->calibration, &c, &x);
    self->chosen[x.source]++;
    lane->deciding = 1;
    lane->decision = (qr_decision_t){.request_id = r->request_id,
                                     .policy_version = self->policy.version,
                                     .made_us = call->now_us,
                                     .predicted_ram_ns = x.ram_ns,
                                     .predicted_ssd_ns = x.ssd_ns,
                                     .predicted_recompute_ns = x.recompute_ns,
                                     .ram_row_ns = x.ram_row_ns,
                                     .ssd_row_ns = x.ssd_row_ns,
                                     .recompute_row_ns = x.recompute_row_ns,
                                     .ram_samples = x.ram_samples,
                                     .ssd_samples = x.ssd_samples,
                                     .recompute_samples = x.recompute_samples,
                                     .resident_rows = c.resident_rows,
                                     .ram_rows = c.ram_rows,
                                     .ssd_rows = c.ssd_rows,
                                     .kind = QR_DECISION_LOAD,
                                     .choice = (uint8_t)x.source};
    if (x.source == QR_SOURCE_RESIDENT) decision_over(call, lane, grant->boundary, 0, 0, 0);
    return x.source;
}

/* So many more rows of it are computed, in a batch of that time. */
static void decision_computed(const call_t *call, lane_t *lane, uint32_t rows, const batch_t *batch, uint64_t step_us)
{
    qr_decision_t *d = &lane->decision;
    if (!lane->deciding || d->choice != QR_SOURCE_RECOMPUTE) return;
    d->outcome_ns += step_us * 1000 * rows / qr_max_u32(batch->prefill_rows + batch->decode_rows, 1);
    if (lane->rows_done >= qr_max_u32(d->ram_rows, d->ssd_rows)) decision_over(call, lane, lane->rows_done, 0, 0, 0);
}

static void load_start(const call_t *call, lane_t *lane, const request_t *r, const qr_pages_granted_t *grant)
{
    lane->load = LOAD_ASKED;
    lane->load_start = rows_at_grant(call->self, grant);
    lane->unspills = r->spilled_rows != 0;
    lane->spill_id = r->spill_id;
    lane->load_end = lane->decision.choice == QR_SOURCE_RAM ? lane->decision.ram_rows : lane->decision.ssd_rows;
    qr_send(call->outbox, call->self->page_manager, pages_load,
            (&(qr_pages_load_t){.route = lane->route, .start_rows = lane->load_start, .end_rows = lane->load_end}));
}

/* The switch of tests: whether so many prompt rows may not be computed. */
static bool is_over(const call_t *call, uint32_t rows)
{
    return call->given->params.fail_over_rows && rows > call->given->params.fail_over_rows;
}

/* The load is over, whatever came of it: the lane goes on with what stands, or is closed. */
static void load_over(const call_t *call, lane_t *lane)
{
    lane->load = LOAD_NONE;
    if (lane->request == NONE) return lane_try_close(call, lane);
    request_t *r = request_of(call->self, lane->request);
    if (is_over(call, r->token_count - lane->rows_done)) request_end(call, r, QR_FINISH_ERROR, QR_E_SWITCH_ROWS);
}

static void load_end(const call_t *call, lane_t *lane, uint32_t rows)
{
    lane->load = LOAD_CLOSING;
    qr_send(call->outbox, call->self->page_manager, load_ended, (&(qr_load_ended_t){.route = lane->route, .end_rows = rows, .quiet = 1}));
}

/* From now on the rows are transfer's to give up: with its answer. */
static void unspill(const call_t *call, lane_t *lane, request_t *r, const qr_u64s_t *pages)
{
    qr_page_unspill_t ask = {.key = lane->spill_id, .start_rows = lane->load_start, .end_rows = lane->load_end, .pages = *pages};
    r->spilled_rows = 0;
    r->spill_id = 0;
    lane->load = LOAD_RUNNING;
    qr_send(call->outbox, call->self->transfer, page_unspill, &ask);
}

static lane_t *lane_find_spill(const scheduler_t *self, uint64_t spill_id)
{
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        lane_t *lane = lane_of(self, i);
        if (lane->state >= LANE_OPENING && lane->spill_id == spill_id && (lane->spill == SPILL_RUNNING || lane->load == LOAD_RUNNING))
            return lane;
    }
    return NULL;
}

static void on_page_unspilled(const call_t *call, const qr_page_unspilled_t *back)
{
    lane_t *lane = lane_find_spill(call->self, back->key);
    if (lane == NULL || lane->load != LOAD_RUNNING || !lane->unspills) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_page_unspilled, back->key, back->reason);
        return;
    }
    qr_assert(back->boundary >= lane->load_start && back->boundary <= lane->load_end);
    if (back->reason && lane->request != NONE)
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_restore_stopped, request_of(call->self, lane->request)->request_id,
                       back->reason, back->boundary, lane->load_end);
    qr_cost_add(&call->self->cost.ram, back->boundary - lane->load_start, back->move_us);
    decision_over(call, lane, back->boundary, back->reason, back->move_us, 0);
    load_end(call, lane, QR_MUTANT(712) ? lane->load_end : back->boundary);
}

static void on_route_pages_named(const call_t *call, const qr_route_pages_named_t *named)
{
    lane_t *lane = lane_find_route(call->self, named->route);
    if (lane == NULL || lane->spill != SPILL_ASKED) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_route_pages_named, named->route, named->reason);
        return;
    }
    lane->spill = SPILL_NONE;
    if (named->reason == 0 && spill_request(call->self, lane)) {
        lane->spill = SPILL_RUNNING;
        qr_send(call->outbox, call->self->transfer, page_spill,
                (&(qr_page_spill_t){.key = lane->spill_id, .rows = lane->spill_rows, .pages = named->pages}));
    }
    lane_try_close(call, lane);
}

static void on_page_spilled(const call_t *call, const qr_page_spilled_t *spilled)
{
    lane_t *lane = lane_find_spill(call->self, spilled->key);
    if (lane == NULL || lane->spill != SPILL_RUNNING) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_page_spilled, spilled->key, spilled->reason);
        return;
    }
    request_t *r = spill_request(call->self, lane);
    if (r && (spilled->reason == 0 || QR_MUTANT(713)))
        r->spilled_rows = lane->spill_rows;
    else if (r)
        r->spill_id = 0;
    else if (spilled->reason == 0 && !QR_MUTANT(705))
        spill_drop(call, spilled->key); /* it ended meanwhile */
    lane->spill = SPILL_NONE;
    lane_try_close(call, lane);
}

static void on_pages_loading(const call_t *call, const qr_pages_loading_t *loading)
{
    scheduler_t *self = call->self;
    lane_t *lane = lane_find_route(self, loading->route);
    if (lane == NULL || lane->load != LOAD_ASKED) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_pages_loading, loading->route, 0);
        return;
    }
    request_t *r = lane->request == NONE ? NULL : request_of(self, lane->request);
    if (loading->reason && r) spill_forget(call, r);
    if (loading->reason || r == NULL)
        decision_over(call, lane, lane->decision.resident_rows, loading->reason ? loading->reason : QR_E_CANCELLED, 0, 0);
    if (loading->reason) return load_over(call, lane);
    if (r == NULL) return load_end(call, lane, lane->load_start); /* it ended while we asked */
    if (lane->unspills) return unspill(call, lane, r, &loading->pages);
    qr_restore_t ask = {.restore_id = lane_handle(self, lane), .request_id = r->request_id, .root = r->scope};
    ask.tokens = (qr_u32s_t){tokens_of(self) + r->token_at, lane->load_end};
    ask.start_rows = lane->load_start;
    ask.end_rows = lane->load_end;
    ask.pages = loading->pages;
    lane->load = LOAD_RUNNING;
    self->restores++;
    qr_send(call->outbox, self->restore_streamer, restore, &ask);
}

static void on_restored(const call_t *call, const qr_restored_t *restored)
{
    scheduler_t *self = call->self;
    lane_t *lane = lane_find(self, restored->restore_id);
    if (lane == NULL || lane->load != LOAD_RUNNING) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_restored, restored->restore_id, restored->reason);
        return;
    }
    qr_assert(restored->boundary >= lane->load_start && restored->boundary <= lane->load_end);
    uint32_t rows = restored->boundary - lane->load_start, ram_rows = (uint32_t)qr_min_u64(restored->ram_rows, rows);
    uint64_t ram_us = qr_min_u64(restored->ram_us, restored->move_us);
    qr_cost_add(&self->cost.ram, ram_rows, ram_us);
    qr_cost_add(&self->cost.ssd, rows - ram_rows, restored->move_us - ram_us);
    memcpy(lane->decision.chain, restored->chain.bytes, 32);
    decision_over(call, lane, restored->boundary, restored->reason, restored->move_us, QR_MUTANT(746) ? 0 : restored->queue_us);
    self->restores_failed += restored->boundary < lane->load_end;
    if (restored->reason && lane->request != NONE)
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_restore_stopped, request_of(self, lane->request)->request_id, restored->reason,
                       restored->boundary, lane->load_end);
    load_end(call, lane, restored->boundary);
}

/* The pages that were loaded in vain are the route's again under new handles: the executor hears of them with the next batch, and so does a
 * copy that is still to come, whose targets are the first of the load. */
static void load_pages(scheduler_t *self, lane_t *lane, const qr_u64s_t *pages)
{
    uint32_t blocks = (uint32_t)(pages->count / self->group_count), end = (uint32_t)qr_div_up(lane->load_end, self->page_tokens);
    qr_assert(pages->count == (uint64_t)blocks * self->group_count && blocks <= end);
    for (uint32_t i = 0; i < pages->count && !QR_MUTANT(487); i++)
        window_add(self, lane, i / blocks, end - blocks + i % blocks, pages->data[i]);
    if (end - blocks != lane->load_start / self->page_tokens) return;
    for (uint32_t c = 0; c < lane->copy_count; c++) lane->copy_targets[c] = pages->data[(uint64_t)lane->copy_groups[c] * blocks];
}

static void on_load_closed(const call_t *call, const qr_load_closed_t *closed)
{
    scheduler_t *self = call->self;
    lane_t *lane = lane_find_route(self, closed->route);
    if (lane == NULL || lane->load != LOAD_CLOSING) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_load_closed, closed->route, closed->reason);
        return;
    }
    if (lane->request != NONE && closed->reason == 0 && closed->boundary > lane->rows_done) {
        request_t *r = request_of(self, lane->request);
        uint32_t cached = count_cached(self, r, closed->boundary);
        self->restored_tokens += lane->unspills ? 0 : cached;
        lane->rows_done = lane->rows_sent = closed->boundary;
        if (!QR_MUTANT(483)) lane->copy_state = COPIES_NONE; /* page_manager let its sources go: the verified rows are the copied ones */
    }
    if (lane->request != NONE && closed->pages.count) load_pages(self, lane, &closed->pages);
    load_over(call, lane);
}

/* ---- admission, continued ------------------------------------------------------------------------------------------------ */

static void on_pages_granted(const call_t *call, const qr_pages_granted_t *grant)
{
    scheduler_t *self = call->self;
    request_t *r;
    if (!answer_fits(call, grant->request_id, grant->attempt, QR_MESSAGE_pages_granted)) return;
    lane_t *lane = answer_close(self, &r);
    lane->route = grant->route;
    if (r == NULL) { /* it ended while we asked */
        QR_MUTANT(436) ? lane_give_back(self, lane, r) : release_route(call, lane);
        return;
    }
    queue_remove(self, r);
    r->state = REQUEST_PLACED;
    if (r->granted_us == 0) r->granted_us = call->now_us;
    uint32_t rows = r->token_count - grant->boundary;
    bool fits = grant_fits(self, r, lane, grant);
    uint32_t source = fits ? decide(call, lane, r, grant) : QR_SOURCE_RECOMPUTE;
    bool loads = source == QR_SOURCE_RAM || source == QR_SOURCE_SSD;
    if (source != QR_SOURCE_RAM || r->spilled_rows <= grant->boundary) spill_forget(call, r);
    r->preempted = 0;
    if (!fits || (!loads && is_over(call, rows))) {
        r->lane = NONE;
        decision_over(call, lane, grant->boundary, QR_E_SWITCH_ROWS, 0, 0);
        request_end(call, r, QR_FINISH_ERROR, fits ? QR_E_SWITCH_ROWS : QR_E_PROTOCOL);
        lane->request = NONE;
        release_route(call, lane);
        return;
    }
    if (r->placements++ == 0) self->prompt_tokens += r->generated_from;
    (void)count_cached(self, r, grant->boundary);
    lane_fill(call, lane, r, grant);
    open_lane(call, lane, r, grant);
    if (loads) load_start(call, lane, r, grant);
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_admitted, r->request_id, r->token_count, r->boundary, grant->pages.count);
}

/* Waiting is never worth more than computing the rows: their cost, beside the other prompts that share the device. */
static uint64_t wait_worth_us(const scheduler_t *self, uint32_t rows)
{
    uint64_t row_ns = self->calibration.row_ns ? self->calibration.row_ns : 1000000;
    return row_ns * rows / 1000 * ((uint64_t)self->lanes_used + 1) + 1000;
}

static void on_pages_wait(const call_t *call, const qr_pages_wait_t *wait)
{
    scheduler_t *self = call->self;
    request_t *r;
    if (!answer_fits(call, wait->request_id, wait->attempt, QR_MESSAGE_pages_wait)) return;
    lane_t *lane = answer_close(self, &r);
    lane_give_back(self, lane, r);
    if (r == NULL) return;
    r->state = REQUEST_WAITING;
    r->producer = wait->producer;
    r->wait_boundary = wait->boundary;
    r->wait_until_us = call->now_us + wait_worth_us(self, wait->boundary);
    lane_t *producer = lane_find_route(self, wait->producer);
    if (++r->waits >= QR_SCHEDULER_WAITS_MAX || producer == NULL) r->wait_over = 1;
    if (producer) producer->order = qr_min_u64(producer->order, r->order);
    qr_outbox_alarm(call->outbox, r->wait_until_us);
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_waiting, r->request_id, wait->producer, wait->boundary, 0);
}

/* ---- over-commit and preemption (I12) ------------------------------------------------------------------------------------ */

/* The lane that makes room for a request of this order: the last of the order that is later and may; NULL without one. */
static lane_t *victim_of(const scheduler_t *self, uint64_t order)
{
    lane_t *victim = NULL;
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        lane_t *lane = lane_of(self, i);
        if ((lane->state != LANE_OPENING && lane->state != LANE_RUNNING) || lane->load || lane->more == MORE_ASKED) continue;
        const request_t *r = request_of(self, lane->request);
        if (r->quantum && !lane->starved && !QR_MUTANT(701)) continue;
        if ((lane->order > order || QR_MUTANT(702)) &&
            (victim == NULL || (QR_MUTANT(702) ? lane->order < victim->order : lane->order > victim->order)))
            victim = lane;
    }
    return victim;
}

/* Makes a later lane give its pages back: its request goes to the queue with the tokens it has. */
static void preempt_for(const call_t *call, uint64_t order)
{
    scheduler_t *self = call->self;
    if (!over_commits(call) || self->preempting) return;
    lane_t *lane = victim_of(self, order);
    if (lane == NULL) return;
    request_t *r = request_of(self, lane->request);
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_preempted, r->request_id, lane->rows_done, lane->draws, r->placements);
    if (!QR_MUTANT(704)) r->token_count += lane->draws;
    r->draws_max -= lane->draws;
    r->quantum = (uint32_t)call->given->params.preempt_quantum;
    r->state = REQUEST_QUEUED;
    r->lane = NONE;
    r->waits = r->wait_over = r->durable_rows = 0;
    lane->request = NONE;
    self->preempted = request_index(self, r);
    r->preempted = lane->preempted = 1;
    r->ends_seen = self->ends;
    qr_assert(r->spilled_rows == 0);
    if (call->given->params.spill_bytes) {
        lane->spill = SPILL_DUE;
        lane->spill_id = r->spill_id = ++self->spills_made;
    }
    self->preempting++;
    self->preemptions++;
    queue_insert(self, r);
    lookup_ask(call, r);
    lane_end(call, lane);
}

/* Asks for the next tranche of every lane that comes near its end. */
static void grow(const call_t *call)
{
    scheduler_t *self = call->self;
    if (!over_commits(call) || self->stop_by) return;
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        lane_t *lane = lane_of(self, i);
        if ((lane->state != LANE_OPENING && lane->state != LANE_RUNNING) || lane->load || lane->more == MORE_ASKED) continue;
        if (lane->room >= lane->rows_total || lane->rows_sent + 2 * self->page_tokens < lane->room) continue;
        if (lane->more == MORE_SHORT && lane->more_releases == self->releases && call->now_us < lane->more_retry_us) {
            qr_outbox_alarm(call->outbox, lane->more_retry_us);
            continue;
        }
        uint32_t rows = qr_min_u32(lane->rows_total, lane->room + self->answer_tokens);
        lane->more = MORE_ASKED;
        lane->more_rows = rows;
        qr_send(call->outbox, self->page_manager, pages_more, (&(qr_pages_more_t){.route = lane->route, .rows_max = rows}));
    }
}

static void on_pages_added(const call_t *call, const qr_pages_added_t *added)
{
    scheduler_t *self = call->self;
    lane_t *lane = lane_find_route(self, added->route);
    if (lane == NULL || lane->more != MORE_ASKED) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_pages_added, added->route, added->reason);
        return;
    }
    lane->more = MORE_NONE;
    if (lane->request == NONE) return; /* it ended meanwhile; its pages go back with its route */
    if (added->reason) {
        qr_assert(added->reason == QR_E_SHORTFALL);
        lane->more = MORE_SHORT;
        lane->starved = 1;
        lane->more_releases = self->releases;
        lane->more_retry_us = call->now_us + QR_SCHEDULER_RETRY_US;
        qr_outbox_alarm(call->outbox, lane->more_retry_us);
        preempt_for(call, lane->order);
        return;
    }
    lane->starved = 0;
    uint64_t blocks = added->pages.count / self->group_count;
    qr_assert(added->pages.count == blocks * self->group_count);
    for (uint64_t i = 0; i < added->pages.count && !QR_MUTANT(703); i++)
        window_add(self, lane, (uint32_t)(i / blocks), added->first_block + (uint32_t)(i % blocks), added->pages.data[i]);
    lane->room = lane->more_rows;
    for (uint32_t g = 0; g < self->group_count; g++) lane->covered[g] = lane->room;
}

static void on_pages_refused(const call_t *call, const qr_pages_refused_t *refused)
{
    scheduler_t *self = call->self;
    request_t *r;
    if (!answer_fits(call, refused->request_id, refused->attempt, QR_MESSAGE_pages_refused)) return;
    lane_t *lane = answer_close(self, &r);
    lane_give_back(self, lane, r);
    if (r == NULL) return;
    if ((refused->reason != QR_E_SHORTFALL || QR_MUTANT(434)) && refused->reason != QR_E_BUSY) {
        request_end(call, r, QR_FINISH_REFUSED, refused->reason);
        return;
    }
    r->state = REQUEST_SHORT;
    r->releases_seen = self->releases;
    r->retry_us = call->now_us + QR_SCHEDULER_RETRY_US;
    qr_outbox_alarm(call->outbox, r->retry_us);
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_queued, r->request_id, 0, refused->pages_short, 0);
    if (refused->reason == QR_E_SHORTFALL) preempt_for(call, r->order);
}

/* ---- batches ---------------------------------------------------------------------------------------------------------------- */

/* Rows a lane may compute now. */
static uint32_t lane_rows_left(const scheduler_t *self, const lane_t *lane)
{
    if (lane->state != LANE_RUNNING || (lane->load && !QR_MUTANT(485)) || (lane->voids && !QR_MUTANT(155))) return 0;
    uint32_t next = lane->rows_sent, left = next < lane->prompt ? lane->prompt - next : (next < lane->rows_total ? 1 : 0);
    for (uint32_t g = 0; g < self->group_count; g++) left = qr_min_u32(left, lane->covered[g] > next ? lane->covered[g] - next : 0);
    return left;
}

static void plan_input(const call_t *call, qr_plan_input_t *input)
{
    const scheduler_t *self = call->self;
    memset(input, 0, sizeof *input);
    input->tile = (uint32_t)call->given->params.prefill_tile;
    input->rows_min = QR_PLAN_ROWS_MIN;
    input->budget_us = call->given->params.step_budget_us;
    input->calibration = self->calibration;
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        uint32_t left = lane_rows_left(self, lane_of(self, i));
        if (left == 0) continue;
        input->lanes[input->lane_count++] = (qr_plan_lane_t){lane_of(self, i)->order, i, left};
    }
}

/* Columns of a batch_run while it is put together. */
typedef struct columns {
    uint64_t lanes[QR_LANES_MAX], copy_sources[QR_LANES_MAX * QR_SCHEDULER_COPIES_MAX],
        copy_targets[QR_LANES_MAX * QR_SCHEDULER_COPIES_MAX];
    uint32_t starts[QR_LANES_MAX], row_counts[QR_LANES_MAX], flags[QR_LANES_MAX];
    uint32_t copy_rows[QR_LANES_MAX * QR_SCHEDULER_COPIES_MAX], copy_groups[QR_LANES_MAX * QR_SCHEDULER_COPIES_MAX];
    uint32_t tokens[QR_BATCH_ROWS_MAX];
    uint32_t lane_count, row_count, copy_count, reserved;
} columns_t;

static void add_copies(columns_t *columns, lane_t *lane)
{
    if (lane->copy_state != COPIES_TO_SEND && !QR_MUTANT(442)) return;
    lane->copy_state = COPIES_IN_FLIGHT;
    for (uint32_t i = 0; i < lane->copy_count; i++) {
        columns->copy_sources[columns->copy_count] = lane->copy_sources[i];
        columns->copy_targets[columns->copy_count] = lane->copy_targets[i];
        columns->copy_rows[columns->copy_count] = lane->copy_rows[i];
        columns->copy_groups[columns->copy_count++] = lane->copy_groups[i];
    }
}

/* Adds rows [rows_sent, rows_sent + rows) of a lane (I6). */
static void add_rows(scheduler_t *self, columns_t *columns, entry_t *entry, lane_t *lane, uint32_t rows)
{
    const request_t *r = request_of(self, lane->request);
    uint32_t start = lane->rows_sent, i = columns->lane_count++;
    columns->lanes[i] = lane_handle(self, lane);
    columns->starts[i] = start;
    columns->row_counts[i] = rows;
    columns->flags[i] = start + rows >= lane->prompt ? QR_ROW_SAMPLE | (r->logprobs ? QR_ROW_LOGPROB : 0) : 0;
    if (start < lane->prompt)
        qr_copy(columns->tokens + columns->row_count, tokens_of(self) + r->token_at + start, rows * sizeof(uint32_t));
    else
        columns->tokens[columns->row_count] =
            (lane->rows_done < start && !QR_MUTANT(431)) || QR_MUTANT(156) ? QR_TOKEN_PREVIOUS : lane->pending;
    columns->row_count += rows;
    *entry = (entry_t){lane_index(self, lane), start, rows, 0};
    lane->rows_sent += rows;
    lane->in_flight++;
    add_copies(columns, lane);
}

/* New pages of windowed groups travel with the next batch, whoever is in it. */
static void send_batch(const call_t *call, const batch_t *batch, const columns_t *c)
{
    scheduler_t *self = call->self;
    windows_t w = windows_of(self);
    uint32_t count = self->window_count;
    qr_batch_run_t run = {.batch = batch->id, .lanes = {c->lanes, c->lane_count}, .starts = {c->starts, c->lane_count}};
    run.row_counts = (qr_u32s_t){c->row_counts, c->lane_count};
    run.flags = (qr_u32s_t){c->flags, c->lane_count};
    run.tokens = (qr_u32s_t){c->tokens, c->row_count};
    run.copy_sources = (qr_u64s_t){c->copy_sources, c->copy_count};
    run.copy_targets = (qr_u64s_t){c->copy_targets, c->copy_count};
    run.copy_rows = (qr_u32s_t){c->copy_rows, c->copy_count};
    run.copy_groups = (qr_u32s_t){c->copy_groups, c->copy_count};
    run.window_lanes = (qr_u64s_t){w.lanes, count};
    run.window_groups = (qr_u32s_t){w.groups, count};
    run.window_blocks = (qr_u32s_t){w.blocks, count};
    run.window_pages = (qr_u64s_t){w.pages, count};
    qr_send(call->outbox, self->executor, batch_run, &run);
    if (!QR_MUTANT(440)) self->window_count = 0;
}

/* Plans and sends one more batch; false when nothing may run. */
static bool batch_start(const call_t *call, batch_t *batch)
{
    scheduler_t *self = call->self;
    qr_plan_input_t input;
    qr_plan_t plan;
    columns_t columns;
    plan_input(call, &input);
    qr_plan(&input, &plan);
    if (plan.count == 0) return false;
    columns.lane_count = columns.row_count = columns.copy_count = 0;
    batch->id = ++self->batches_made;
    batch->lane_count = plan.count;
    batch->prefill_rows = plan.prefill_rows;
    batch->decode_rows = plan.decode_rows;
    for (uint32_t i = 0; i < plan.count; i++) add_rows(self, &columns, &batch->entries[i], lane_of(self, plan.lanes[i]), plan.rows[i]);
    send_batch(call, batch, &columns);
    return true;
}

static void batches_fill(const call_t *call)
{
    scheduler_t *self = call->self;
    for (uint32_t b = 0; b < QR_BATCHES_IN_FLIGHT; b++)
        if (self->batches[b].id == 0 && !batch_start(call, &self->batches[b])) return;
}

/* Takes the oldest batch out; batches end in the order they were sent. */
static batch_t batch_close(scheduler_t *self, uint64_t id)
{
    batch_t batch = self->batches[0];
    qr_assert(batch.id != 0 && batch.id == id);
    self->batches[0] = self->batches[1];
    memset(&self->batches[1], 0, sizeof self->batches[1]);
    for (uint32_t i = 0; i < batch.lane_count; i++) {
        lane_t *lane = lane_of(self, batch.entries[i].lane);
        lane->in_flight--;
        if (batch.entries[i].dropped) {
            lane->voids--;
            self->void_rows += batch.entries[i].rows;
        }
    }
    return batch;
}

/* What a finished batch says to the others, put together lane by lane. */
typedef struct harvest {
    uint64_t routes[QR_LANES_MAX], request_ids[QR_LANES_MAX];
    uint32_t rows[QR_LANES_MAX], counts[QR_LANES_MAX], attempts[QR_LANES_MAX], drawn[QR_LANES_MAX], logprobs[QR_LANES_MAX];
    uint32_t finishes[QR_LANES_MAX], errors[QR_LANES_MAX]; /* by place in the batch; finish 0 = goes on */
    uint32_t tokens[QR_BATCH_ROWS_MAX];
    uint32_t route_count, token_count, draw_count, live;
} harvest_t;

static void commit_rows(scheduler_t *self, harvest_t *h, const entry_t *entry, lane_t *lane, request_t *r)
{
    uint32_t i = h->route_count++, end = entry->start + entry->rows;
    qr_assert(lane->rows_done == entry->start);
    if (entry->start < lane->prompt)
        qr_copy(h->tokens + h->token_count, tokens_of(self) + r->token_at + entry->start, entry->rows * sizeof(uint32_t));
    else
        h->tokens[h->token_count] = QR_MUTANT(164) ? 0 : lane->pending;
    h->routes[i] = lane->route;
    h->rows[i] = end + QR_MUTANT(430);
    h->counts[i] = entry->rows;
    h->token_count += entry->rows;
    lane->rows_done = end;
    lane->failures = 0;
    if (lane->copy_state == COPIES_IN_FLIGHT) lane->copy_state = COPIES_NONE;
    if (entry->start < r->rows_high) self->recomputed_rows += qr_min_u32(end, r->rows_high) - entry->start;
    r->rows_high = qr_max_u32(r->rows_high, end);
    if (entry->start < r->generated_from) r->computed_from = qr_min_u32(r->computed_from, entry->start);
    if (entry->start < r->found_end) { /* computed after all, or at least in part */
        r->cached -= r->found_later;
        r->computed += r->found_later;
        r->found_later = r->found_end = 0;
    }
    uint32_t counted = qr_max_u32(qr_min_u32(end, r->generated_from), r->counted);
    r->computed += counted - r->counted;
    self->computed_tokens += counted - r->counted;
    r->counted = counted;
}

static bool is_end_token(const qr_given_t *given, uint32_t token)
{
    return token < given->vocabulary.count && given->vocabulary.flags && (given->vocabulary.flags[token] & QR_TOKEN_END);
}

/* Takes in the token a lane drew; returns how the request ends with it, 0 if it goes on. */
static uint32_t take_draw(const call_t *call, harvest_t *h, lane_t *lane, request_t *r, uint32_t token, uint32_t logprob)
{
    h->request_ids[h->draw_count] = r->request_id;
    h->attempts[h->draw_count] = r->attempt;
    h->drawn[h->draw_count] = token;
    h->logprobs[h->draw_count++] = logprob;
    if (r->first_token_us == 0) r->first_token_us = call->now_us;
    if (lane->prompt + lane->draws < r->token_room) tokens_of(call->self)[r->token_at + lane->prompt + lane->draws] = token;
    lane->draws++;
    r->quantum -= r->quantum != 0;
    lane->pending = token;
    call->self->generated_tokens++;
    if (!r->ignore_eos && !QR_MUTANT(438) && is_end_token(call->given, token)) return QR_FINISH_STOP;
    return lane->draws >= r->draws_max + (QR_MUTANT(157) ? 1 : 0) ? QR_FINISH_LENGTH : QR_FINISH_NONE;
}

static void harvest_entry(const call_t *call, harvest_t *h, const batch_t *batch, uint32_t place, const qr_batch_done_t *done)
{
    scheduler_t *self = call->self;
    const entry_t *entry = &batch->entries[place];
    lane_t *lane = lane_of(self, entry->lane);
    h->finishes[place] = h->errors[place] = 0;
    if (entry->dropped && !QR_MUTANT(168)) return;
    request_t *r = request_of(self, lane->request);
    uint32_t token = done->tokens.data[place];
    bool draws = entry->start + entry->rows >= lane->prompt;
    h->live++;
    if ((done->statuses.data[place] && !QR_MUTANT(437)) || draws == (token == QR_TOKEN_NONE)) {
        self->lanes_failed++;
        lane->keep = QR_MUTANT(167);
        h->finishes[place] = QR_FINISH_ERROR;
        h->errors[place] = done->statuses.data[place] ? done->statuses.data[place] : QR_E_PROTOCOL;
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_lane_failed, r->request_id, h->errors[place], entry->lane, batch->id);
        return;
    }
    commit_rows(self, h, entry, lane, r);
    decision_computed(call, lane, entry->rows, batch, done->step_us);
    if (draws) h->finishes[place] = take_draw(call, h, lane, r, token, done->logprob_bits.data[place]);
}

static void send_harvest(const call_t *call, const harvest_t *h, const batch_t *batch, uint64_t step_us)
{
    scheduler_t *self = call->self;
    if (h->route_count) {
        qr_rows_committed_t rows = {.routes = {h->routes, h->route_count}, .rows = {h->rows, h->route_count}};
        rows.token_counts = (qr_u32s_t){h->counts, h->route_count};
        rows.tokens = (qr_u32s_t){h->tokens, h->token_count};
        qr_send(call->outbox, self->page_manager, rows_committed, &rows);
    }
    if (h->live == 0) return; /* no submit of this batch is open */
    qr_step_tokens_t step = {.request_ids = {h->request_ids, h->draw_count}, .attempts = {h->attempts, h->draw_count}};
    step.tokens = (qr_u32s_t){h->drawn, h->draw_count};
    step.logprob_bits = (qr_u32s_t){h->logprobs, h->draw_count};
    step.step_us = step_us;
    step.prefill_rows = batch->prefill_rows;
    step.decode_rows = batch->decode_rows;
    qr_send(call->outbox, self->worker, step_tokens, &step);
}

/* After a batch: lanes that ended are closed, those of requests that ended earlier may now be. */
static void batch_leave(const call_t *call, const batch_t *batch, const uint32_t *finishes, const uint32_t *errors)
{
    scheduler_t *self = call->self;
    for (uint32_t i = 0; i < batch->lane_count; i++) {
        lane_t *lane = lane_of(self, batch->entries[i].lane);
        if (finishes[i])
            request_end(call, request_of(self, lane->request), finishes[i], errors[i]);
        else
            lane_try_close(call, lane);
    }
}

static void on_batch_done(const call_t *call, const qr_batch_done_t *done)
{
    scheduler_t *self = call->self;
    harvest_t harvest;
    batch_t batch = batch_close(self, done->batch);
    qr_assert(done->lanes.count == batch.lane_count && done->statuses.count == batch.lane_count);
    qr_assert(done->tokens.count == batch.lane_count && done->logprob_bits.count == batch.lane_count);
    harvest.route_count = harvest.token_count = harvest.draw_count = harvest.live = 0;
    self->batches_done++;
    self->decode_rows += batch.decode_rows;
    self->prefill_rows += batch.prefill_rows;
    qr_calibration_add(&self->calibration, batch.decode_rows, batch.prefill_rows, done->step_us);
    for (uint32_t i = 0; i < batch.lane_count; i++) harvest_entry(call, &harvest, &batch, i, done);
    send_harvest(call, &harvest, &batch, done->step_us);
    batch_leave(call, &batch, harvest.finishes, harvest.errors);
}

static void on_batch_failed(const call_t *call, const qr_batch_failed_t *failed)
{
    scheduler_t *self = call->self;
    uint32_t finishes[QR_LANES_MAX], errors[QR_LANES_MAX];
    batch_t batch = batch_close(self, failed->batch);
    self->batches_failed++;
    qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_batch_failed, 0, failed->reason, batch.id, batch.lane_count);
    for (uint32_t i = 0; i < batch.lane_count; i++) {
        lane_t *lane = lane_of(self, batch.entries[i].lane);
        finishes[i] = errors[i] = 0;
        if (batch.entries[i].dropped) continue;
        lane_void(self, lane);
        if (++lane->failures < QR_SCHEDULER_FAILURES_MAX) continue;
        finishes[i] = QR_FINISH_ERROR;
        errors[i] = QR_E_DEVICE;
    }
    batch_leave(call, &batch, finishes, errors);
}

static void on_window_pages(const call_t *call, const qr_window_pages_t *pages)
{
    scheduler_t *self = call->self;
    qr_assert(pages->groups.count == pages->routes.count && pages->blocks.count == pages->routes.count &&
              pages->pages.count == pages->routes.count);
    for (uint64_t i = 0; i < pages->routes.count; i++) {
        lane_t *lane = lane_find_route(self, pages->routes.data[i]);
        uint32_t group = pages->groups.data[i], block = pages->blocks.data[i];
        if (lane == NULL || lane->state > LANE_RUNNING) continue; /* it ended meanwhile */
        qr_assert(group < self->group_count && self->windowed[group]);
        window_add(self, lane, group, block, pages->pages.data[i]);
        lane->covered[group] = qr_max_u32(lane->covered[group], (block + 1 + QR_MUTANT(433)) * self->page_tokens);
    }
}

static void on_lane_opened(const call_t *call, const qr_lane_opened_t *opened)
{
    lane_t *lane = lane_find(call->self, opened->lane);
    if (lane == NULL || !(lane->awaiting & AWAIT_OPENED)) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_lane_opened, opened->lane, 0);
        return;
    }
    if (lane->state == LANE_OPENING && opened->reason == 0)
        lane->state = LANE_RUNNING;
    else if (lane->state == LANE_OPENING)
        request_end(call, request_of(call->self, lane->request), QR_FINISH_ERROR, opened->reason);
    lane_answered(call->self, lane, AWAIT_OPENED);
}

static void on_lane_closed(const call_t *call, const qr_lane_closed_t *closed)
{
    lane_t *lane = lane_find(call->self, closed->lane);
    if (lane && (lane->awaiting & AWAIT_CLOSED))
        lane_answered(call->self, lane, AWAIT_CLOSED);
    else
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_lane_closed, closed->lane, 0);
}

static void on_route_released(const call_t *call, const qr_route_released_t *released)
{
    for (uint32_t i = 0; i < call->self->lanes_max; i++) {
        lane_t *lane = lane_of(call->self, i);
        if (lane->state != LANE_CLOSING || lane->route != released->route || !(lane->awaiting & AWAIT_RELEASED)) continue;
        lane_answered(call->self, lane, AWAIT_RELEASED);
        return;
    }
    qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_route_released, released->route, 0);
}

/* ---- submit and cancel ------------------------------------------------------------------------------------------------------ */

/* Ids that are kept for a request: over-commit may have to begin it again with what it drew. */
static uint64_t submit_room(const call_t *call, const qr_submit_t *submit)
{
    uint64_t known = submit->tokens.count, drawn = known - submit->generated_from;
    if (!over_commits(call)) return known;
    return known + (submit->max_tokens > drawn ? submit->max_tokens - drawn : 1);
}

/* 0, or why the request cannot be taken. */
static uint32_t submit_reason(const call_t *call, const qr_submit_t *submit)
{
    const scheduler_t *self = call->self;
    uint64_t known = submit->tokens.count, drawn = known - submit->generated_from;
    if (known == 0 || submit->generated_from == 0 || submit->generated_from > known || submit->max_tokens == 0) return QR_E_INVALID;
    if (submit->tenant_salt.count > QR_SALT_BYTES_MAX || submit->cache_salt.count > QR_SALT_BYTES_MAX) return QR_E_INVALID;
    uint64_t more = submit->max_tokens > drawn ? submit->max_tokens - drawn : 1;
    if (known + more - 1 > self->context) return QR_E_CONTEXT;
    if (self->draining || self->stop_by) return QR_E_DRAINING;
    if (self->free_request == NONE || self->tokens_max - self->tokens_used < submit_room(call, submit)) return QR_E_BUSY;
    return 0;
}

/* Priority with ageing: a level is worth a second of arrival, so the order never changes after arrival. */
static uint64_t order_of(scheduler_t *self, uint64_t now_us, uint32_t priority)
{
    uint64_t head_start_us = (uint64_t)qr_min_u32(priority, QR_SCHEDULER_PRIORITY_MAX) * QR_SCHEDULER_PRIORITY_US;
    uint64_t bias_us = (uint64_t)QR_SCHEDULER_PRIORITY_MAX * QR_SCHEDULER_PRIORITY_US;
    return (now_us + bias_us - head_start_us) << 12 | (self->arrivals++ & 0xfff);
}

/* The root of the request's chain: what shares nothing with another model, tenant or cache_salt. */
static qr_hash_t scope_of(const qr_given_t *given, const qr_submit_t *submit)
{
    qr_hash_t root;
    qr_chain_root(given->layout.fingerprint.bytes, submit->tenant_salt.data, QR_MUTANT(524) ? 0 : (uint32_t)submit->tenant_salt.count,
                  submit->cache_salt.data, QR_MUTANT(441) ? 0 : (uint32_t)submit->cache_salt.count, root.bytes);
    return root;
}

static request_t *request_take(const call_t *call, const qr_submit_t *submit)
{
    scheduler_t *self = call->self;
    request_t *r = request_of(self, self->free_request);
    self->free_request = r->after;
    self->request_count++;
    memset(r, 0, sizeof *r);
    r->request_id = submit->request_id;
    r->attempt = submit->attempt;
    r->state = REQUEST_QUEUED;
    r->order = order_of(self, call->now_us, submit->priority);
    r->seed = submit->seed;
    r->submitted_us = call->now_us;
    uint64_t timeout_us = call->given->params.request_timeout_ms * 1000; /* a budget may come from another machine */
    r->deadline_us = call->now_us + (submit->budget_us ? qr_min_u64(submit->budget_us, timeout_us) : timeout_us);
    r->generated_from = submit->generated_from;
    r->computed_from = UINT32_MAX;
    r->draws_max = submit->max_tokens - (QR_MUTANT(432) ? 0 : (uint32_t)submit->tokens.count - submit->generated_from);
    r->temperature_bits = submit->temperature_bits;
    r->top_p_bits = submit->top_p_bits;
    r->min_p_bits = submit->min_p_bits;
    r->top_k = submit->top_k;
    r->logprobs = submit->logprobs;
    r->ignore_eos = submit->ignore_eos;
    r->lane = NONE;
    r->scope = scope_of(call->given, submit);
    return r;
}

static void on_submit(const call_t *call, const qr_submit_t *submit)
{
    scheduler_t *self = call->self;
    const request_t *open = request_find(self, submit->request_id);
    if (open && open->attempt == submit->attempt) { /* a repeat: the open one answers */
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, submit->request_id, QR_MESSAGE_submit, submit->attempt, 0);
        return;
    }
    uint32_t reason = open ? QR_E_IN_USE : submit_reason(call, submit);
    qr_ended_t ended = {.request_id = submit->request_id, .attempt = submit->attempt, .finish = QR_FINISH_REFUSED, .error = reason};
    if (reason) {
        qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_refused, submit->request_id, reason, submit->tokens.count,
                       self->request_count);
        qr_send(call->outbox, self->worker, ended, &ended);
        return;
    }
    if (submit->tokens.count - submit->generated_from >= submit->max_tokens) { /* an earlier attempt drew them all */
        ended.finish = QR_FINISH_LENGTH;
        qr_send(call->outbox, self->worker, ended, &ended);
        return;
    }
    request_t *r = request_take(call, submit);
    tokens_store(self, r, &submit->tokens, (uint32_t)submit_room(call, submit));
    qr_assert(qr_map_put(map_of(self), r->request_id, request_index(self, r)));
    queue_insert(self, r);
    lookup_ask(call, r);
    qr_outbox_alarm(call->outbox, r->deadline_us);
}

static void on_submit_cancel(const call_t *call, const qr_submit_cancel_t *cancel)
{
    request_t *r = request_find(call->self, cancel->request_id);
    if (r == NULL || r->attempt != cancel->attempt) return; /* it ended meanwhile */
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_cancelled, r->request_id, cancel->finish, r->state, r->computed);
    request_end(call, r, cancel->finish ? cancel->finish : QR_FINISH_CANCELLED, 0);
}

/* ---- policy and decisions ------------------------------------------------------------------------------------------------- */

static void policy_ask(const call_t *call)
{
    scheduler_t *self = call->self;
    if (!self->decisions.facts || self->policy_known || self->policy_asked) return;
    self->policy_asked = 1;
    qr_send(call->outbox, self->decisions.facts, policy_read, (&(qr_policy_read_t){.have_version = self->policy.version}));
}

static void on_policy_snapshot(scheduler_t *self, const qr_policy_snapshot_t *b)
{
    self->policy_asked = 0;
    self->policy_known = 1;
    if (QR_MUTANT(747)) return;
    self->policy = *b;
}

/* ---- life ----------------------------------------------------------------------------------------------------------------------- */

static void on_start(const call_t *call, const qr_message_t *message)
{
    const qr_u64s_t *partners = &message->body.start.partners;
    call->self->epoch = message->body.start.epoch;
    for (uint64_t i = 0; call->self->chains_max && i < partners->count; i++)
        if (qr_address_role(partners->data[i]) == QR_ROLE_catalog_replica &&
            qr_address_node(partners->data[i]) == qr_address_node(call->self->address))
            call->self->replica = partners->data[i];
        else if (qr_address_role(partners->data[i]) == QR_ROLE_facts &&
                 qr_address_node(partners->data[i]) == qr_address_node(call->self->address))
            call->self->decisions.facts = partners->data[i];
        else if (qr_address_role(partners->data[i]) == QR_ROLE_storage && call->given->params.ram_bytes &&
                 qr_address_node(partners->data[i]) == qr_address_node(call->self->address))
            call->self->storage = partners->data[i];
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, call->self->epoch, call->self->lanes_max, call->self->requests_max);
    qr_send(call->outbox, message->from, ready, (&(qr_ready_t){.reason = 0}));
    policy_ask(call);
}

static void on_drain(const call_t *call, const qr_message_t *message)
{
    scheduler_t *self = call->self;
    self->draining = 1;
    self->drain_by = message->from;
    self->drain_until_us = call->now_us + message->body.drain.budget_us;
    qr_outbox_alarm(call->outbox, self->drain_until_us);
}

static void on_stop(const call_t *call, const qr_message_t *message)
{
    scheduler_t *self = call->self;
    self->stop_by = message->from;
    self->stop_until_us = call->now_us + message->body.stop.budget_us;
    qr_outbox_alarm(call->outbox, self->stop_until_us);
}

/* Ends what a stop or a deadline ends, at most ENDS_PER_CALL of them, and arms the alarm for the rest. */
static void end_due(const call_t *call)
{
    scheduler_t *self = call->self;
    uint32_t ends = 0;
    for (uint32_t i = 0; i < self->requests_max; i++) {
        request_t *r = request_of(self, i);
        if (r->state == REQUEST_FREE) continue;
        if (!self->stop_by && call->now_us < r->deadline_us) {
            qr_outbox_alarm(call->outbox, r->deadline_us);
            if (r->state == REQUEST_WAITING && call->now_us < r->wait_until_us) qr_outbox_alarm(call->outbox, r->wait_until_us);
            if (r->state == REQUEST_SHORT && call->now_us < r->retry_us) qr_outbox_alarm(call->outbox, r->retry_us);
            if ((r->lookup_id || r->ram_id) && call->now_us < r->look_until_us) qr_outbox_alarm(call->outbox, r->look_until_us);
            continue;
        }
        if (ends++ == ENDS_PER_CALL) {
            qr_outbox_alarm(call->outbox, call->now_us);
            return;
        }
        request_end(call, r, r->state == REQUEST_PLACED ? QR_FINISH_ERROR : QR_FINISH_REFUSED,
                    self->stop_by ? QR_E_DRAINING : QR_E_DEADLINE);
    }
}

static void answer_life(const call_t *call)
{
    scheduler_t *self = call->self;
    bool idle = self->request_count == 0 && self->lanes_used == 0;
    if (self->drain_by && (idle || call->now_us >= self->drain_until_us)) {
        qr_send(call->outbox, self->drain_by, drained, (&(qr_drained_t){.open_count = self->request_count}));
        self->drain_by = 0;
    }
    bool told = self->decisions.count == 0 && !self->decisions.open;
    if (self->stop_by && self->stop_until_us != QR_NEVER_US && ((idle && told) || call->now_us >= self->stop_until_us)) {
        qr_send(call->outbox, self->stop_by, stopped, (&(qr_stopped_t){.reason = idle ? 0 : QR_E_DEADLINE}));
        self->stop_until_us = QR_NEVER_US; /* answered; stop_by stays: nothing starts any more */
    }
    if (self->drain_by) qr_outbox_alarm(call->outbox, self->drain_until_us);
    if (self->stop_by && self->stop_until_us != QR_NEVER_US) qr_outbox_alarm(call->outbox, self->stop_until_us);
}

static uint64_t count_short(const scheduler_t *self)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < self->lanes_max; i++) count += is_short(lane_of(self, i));
    return count;
}

static void on_metrics_read(const call_t *call, uint64_t from)
{
    const scheduler_t *self = call->self;
    uint32_t ids[METRICS], count = 0;
    uint64_t values[METRICS];
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    const uint64_t pairs[][2] = {
        {ID_prompt_tokens_total, self->prompt_tokens},
        {ID_cached_tokens_total, self->cached_tokens},
        {ID_computed_tokens_total, self->computed_tokens},
        {ID_uncomputed_tokens_total, self->uncomputed_tokens},
        {ID_generated_tokens_total, self->generated_tokens},
        {ID_lanes_open, self->lanes_used},
        {ID_queue_requests, self->queue_count},
        {ID_batches_total, self->batches_done},
        {ID_batches_failed_total, self->batches_failed},
        {ID_lanes_failed_total, self->lanes_failed},
        {ID_decode_rows_total, self->decode_rows},
        {ID_prefill_rows_total, self->prefill_rows},
        {ID_void_rows_total, self->void_rows},
        {ID_preemptions_total, self->preemptions},
        {ID_recomputed_rows_total, self->recomputed_rows},
        {ID_lanes_short, count_short(self)},
        {ID_restores_total, self->restores},
        {ID_restores_failed_total, self->restores_failed},
        {ID_restored_tokens_total, self->restored_tokens},
        {ID_lookups_late_total, self->lookups_late},
        {ID_decisions_resident_total, self->chosen[QR_SOURCE_RESIDENT]},
        {ID_decisions_ram_total, self->chosen[QR_SOURCE_RAM]},
        {ID_decisions_ssd_total, self->chosen[QR_SOURCE_SSD]},
        {ID_decisions_recompute_total, self->chosen[QR_SOURCE_RECOMPUTE]},
        {ID_decisions_waiting, self->decisions.count},
        {ID_decisions_dropped_total, self->decisions.dropped},
        {ID_policy_version, self->policy.version},
    };
    _Static_assert(QR_COUNT(pairs) <= METRICS, "room for every metric");
    for (; count < QR_COUNT(pairs); count++) {
        ids[count] = (uint32_t)pairs[count][0];
        values[count] = pairs[count][1];
    }
    qr_send(call->outbox, from, metrics, (&(qr_metrics_t){.ids = {ids, count}, .values = {values, count}}));
}

/* ---- the actor ------------------------------------------------------------------------------------------------------------------- */

static uint32_t context_of(const qr_given_t *given) { return given->layout.context_tokens ? given->layout.context_tokens : QR_CONTEXT_MAX; }

static uint64_t tokens_max_of(const qr_given_t *given)
{
    return qr_max_u64((uint64_t)CONTEXTS * context_of(given), given->params.max_requests * TOKENS_PER_REQUEST);
}

static uint64_t windows_max_of(const qr_given_t *given)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++)
        if (given->layout.groups[g].window || given->params.over_commit || given->params.store[0]) sum += given->layout.groups[g].pages;
    return sum;
}

/* Chunks of the longest prompt that are looked for; 0 on a node without a store. */
static uint64_t chains_max_of(const qr_given_t *given)
{
    if (!given->params.store[0] || !given->params.captures || !given->layout.chunk_tokens) return 0;
    return qr_min_u64(context_of(given) / given->layout.chunk_tokens, QR_LOOKUP_NODES_MAX);
}

/* Offsets of the tables; returns the bytes of the whole block. `self` may be NULL. */
static uint64_t lay_out(scheduler_t *self, const qr_given_t *given)
{
    uint64_t windows = windows_max_of(given);
    uint64_t requests = qr_round_up(sizeof(scheduler_t), 64);
    uint64_t lanes = requests + given->params.max_requests * sizeof(request_t);
    uint64_t map = lanes + given->params.max_lanes * sizeof(lane_t);
    uint64_t window_lanes = map + qr_map_bytes((uint32_t)given->params.max_requests);
    uint64_t window_groups = window_lanes + windows * 2 * sizeof(uint64_t);
    uint64_t queue = window_groups + windows * 2 * sizeof(uint32_t);
    uint64_t chains = qr_round_up(queue + given->params.max_requests * sizeof(uint32_t), 64), chain_count = chains_max_of(given);
    uint64_t tokens = chains + chain_count * 32;
    if (self) {
        self->chains_at = chains;
        self->chains_max = (uint32_t)chain_count;
        self->requests_at = requests;
        self->lanes_at = lanes;
        self->map_at = map;
        self->window_lanes_at = window_lanes;
        self->window_pages_at = window_lanes + windows * sizeof(uint64_t);
        self->window_groups_at = window_groups;
        self->window_blocks_at = window_groups + windows * sizeof(uint32_t);
        self->queue_at = queue;
        self->tokens_at = tokens;
    }
    return tokens + tokens_max_of(given) * sizeof(uint32_t);
}

static uint64_t scheduler_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void scheduler_init(void *block, const qr_given_t *given, uint64_t address)
{
    scheduler_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->worker = qr_address_partner(address, QR_ROLE_worker);
    self->page_manager = qr_address_partner(address, QR_ROLE_page_manager);
    self->executor = qr_address_partner(address, QR_ROLE_executor);
    self->restore_streamer = qr_address_partner(address, QR_ROLE_restore_streamer);
    self->transfer = qr_address_partner(address, QR_ROLE_transfer);
    self->chunk_tokens = given->layout.chunk_tokens;
    self->answer_tokens = (uint32_t)given->params.tranche_tokens;
    self->requests_max = (uint32_t)given->params.max_requests;
    self->lanes_max = (uint32_t)given->params.max_lanes;
    self->context = context_of(given);
    self->page_tokens = given->layout.page_tokens;
    self->group_count = given->layout.group_count;
    self->tokens_max = tokens_max_of(given);
    self->windows_max = (uint32_t)windows_max_of(given);
    self->asked_lane = self->token_head = self->token_tail = NONE;
    self->stop_until_us = QR_NEVER_US;
    self->policy = QR_POLICY_BUILT_IN;
    for (uint32_t g = 0; g < self->group_count; g++) {
        self->windowed[g] = given->layout.groups[g].window != 0;
        self->row_bytes += given->layout.groups[g].row_bytes;
    }
    for (uint32_t i = 0; i < self->requests_max; i++) {
        request_of(self, i)->lane = NONE;
        request_of(self, i)->after = i + 1 < self->requests_max ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < self->lanes_max; i++) lane_of(self, i)->request = NONE;
    qr_map_init(map_of(self), self->requests_max, address);
}

/* Only the worker's are passed on: their window is the executor's, and what comes back goes to it. */
static void on_probe(const call_t *call, const qr_message_t *message)
{
    const qr_probe_t *b = &message->body.probe;
    if (message->from != call->self->worker)
        qr_send(call->outbox, message->from, probe_done, (&(qr_probe_done_t){.probe_id = b->probe_id, .reason = QR_E_BUSY}));
    else if (call->self->replica && !call->self->catalog_read && b->probe_id < 32 && !QR_MUTANT(733)) {
        call->self->probes_out |= 1u << b->probe_id;
        qr_send(call->outbox, call->self->replica, probe, b);
    } else {
        qr_send(call->outbox, call->self->executor, probe, b);
    }
}

/* Of the replica: once it has read the catalog, or will not wait any longer, it is not asked again. */
static void on_probe_done(const call_t *call, const qr_message_t *message)
{
    scheduler_t *self = call->self;
    const qr_probe_done_t *b = &message->body.probe_done;
    if (message->from == self->replica && (b->probe_id >= 32 || !(self->probes_out >> b->probe_id & 1))) return; /* answered when it went */
    if (message->from == self->replica) self->probes_out &= ~(1u << b->probe_id);
    if (message->from != self->replica || b->reason) {
        qr_send(call->outbox, self->worker, probe_done, b);
        return;
    }
    self->catalog_read = 1;
    qr_send(call->outbox, self->executor, probe, (&(qr_probe_t){.probe_id = b->probe_id}));
}

/* Of this node: the replica or facts are gone, and with them what they were asked. */
static void on_link_down(const call_t *call, uint32_t node)
{
    scheduler_t *self = call->self;
    if (node != qr_address_node(self->address)) return;
    for (uint32_t i = 0; i < 32 && !QR_MUTANT(734); i++)
        if (self->probes_out >> i & 1)
            qr_send(call->outbox, self->worker, probe_done, (&(qr_probe_done_t){.probe_id = i, .reason = QR_E_BUSY}));
    self->probes_out = 0;
    self->lookups_open = self->policy_asked = self->ram_finds_open = 0;
    qr_decisions_answered(&self->decisions);
    for (uint32_t i = 0; i < self->requests_max; i++) request_of(self, i)->lookup_id = request_of(self, i)->ram_id = 0;
}

static void scheduler_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    scheduler_t *self = block;
    const call_t call = {self, given, outbox, message->now_us};
    switch (message->type) {
    case QR_MESSAGE_start: on_start(&call, message); break;
    case QR_MESSAGE_drain: on_drain(&call, message); break;
    case QR_MESSAGE_stop: on_stop(&call, message); break;
    case QR_MESSAGE_alarm: break; /* what is due is looked for below */
    case QR_MESSAGE_submit: on_submit(&call, &message->body.submit); break;
    case QR_MESSAGE_submit_cancel: on_submit_cancel(&call, &message->body.submit_cancel); break;
    case QR_MESSAGE_pages_granted: on_pages_granted(&call, &message->body.pages_granted); break;
    case QR_MESSAGE_pages_wait: on_pages_wait(&call, &message->body.pages_wait); break;
    case QR_MESSAGE_pages_added: on_pages_added(&call, &message->body.pages_added); break;
    case QR_MESSAGE_pages_refused: on_pages_refused(&call, &message->body.pages_refused); break;
    case QR_MESSAGE_window_pages: on_window_pages(&call, &message->body.window_pages); break;
    case QR_MESSAGE_matches: on_matches(&call, &message->body.matches); break;
    case QR_MESSAGE_ram_found: on_ram_found(self, &message->body.ram_found); break;
    case QR_MESSAGE_pages_loading: on_pages_loading(&call, &message->body.pages_loading); break;
    case QR_MESSAGE_route_pages_named: on_route_pages_named(&call, &message->body.route_pages_named); break;
    case QR_MESSAGE_page_spilled: on_page_spilled(&call, &message->body.page_spilled); break;
    case QR_MESSAGE_page_unspilled: on_page_unspilled(&call, &message->body.page_unspilled); break;
    case QR_MESSAGE_spill_dropped: break;
    case QR_MESSAGE_restored: on_restored(&call, &message->body.restored); break;
    case QR_MESSAGE_load_closed: on_load_closed(&call, &message->body.load_closed); break;
    case QR_MESSAGE_route_released: on_route_released(&call, &message->body.route_released); break;
    case QR_MESSAGE_lane_opened: on_lane_opened(&call, &message->body.lane_opened); break;
    case QR_MESSAGE_lane_closed: on_lane_closed(&call, &message->body.lane_closed); break;
    case QR_MESSAGE_batch_done: on_batch_done(&call, &message->body.batch_done); break;
    case QR_MESSAGE_batch_failed: on_batch_failed(&call, &message->body.batch_failed); break;
    case QR_MESSAGE_probe: on_probe(&call, message); break;
    case QR_MESSAGE_probe_done: on_probe_done(&call, message); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(&call, message->from); break;
    case QR_MESSAGE_link_down: on_link_down(&call, message->body.link_down.node); break;
    case QR_MESSAGE_link_up:
        if (message->body.link_up.node == qr_address_node(self->address)) policy_ask(&call);
        break;
    case QR_MESSAGE_policy_snapshot: on_policy_snapshot(self, &message->body.policy_snapshot); break;
    case QR_MESSAGE_decisions_kept: qr_decisions_answered(&self->decisions); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
    if (message->type == QR_MESSAGE_alarm || message->type == QR_MESSAGE_stop) end_due(&call);
    grow(&call);
    admit(&call);
    batches_fill(&call);
    qr_decisions_send(&self->decisions, message->now_us, self->stop_by != 0, outbox);
    answer_life(&call);
}

/* ---- check and print --------------------------------------------------------------------------------------------------------------- */

static void check_requests(const scheduler_t *self)
{
    uint32_t open = 0, stored = 0, before = NONE;
    uint64_t tokens = 0, end = 0;
    for (uint32_t i = 0; i < self->requests_max; i++) open += request_of(self, i)->state != REQUEST_FREE;
    for (uint32_t i = self->token_head; i != NONE; before = i, i = request_of(self, i)->after, stored++) { /* I7 */
        const request_t *r = request_of(self, i);
        uint32_t mapped;
        qr_assert(r->state != REQUEST_FREE && r->before == before && r->token_at >= end);
        qr_assert(qr_map_get(map_of(self), r->request_id, &mapped) && mapped == i);
        qr_assert(r->token_count <= r->token_room);
        end = r->token_at + r->token_room;
        tokens += r->token_room;
    }
    qr_assert(open == self->request_count && stored == open && tokens == self->tokens_used && end <= self->tokens_end);
    qr_assert(self->tokens_end <= self->tokens_max && map_of(self)->count == open);
    uint32_t placed = 0;
    for (uint32_t i = 0; i < self->requests_max; i++) placed += request_of(self, i)->state == REQUEST_PLACED;
    qr_assert(placed + self->queue_count == open);
    for (uint32_t i = 0; i < self->queue_count; i++) { /* I1 */
        const request_t *r = request_of(self, queue_of(self)[i]);
        qr_assert(r->state >= REQUEST_QUEUED && r->state <= REQUEST_WAITING);
        qr_assert(i == 0 || request_of(self, queue_of(self)[i - 1])->order < r->order);
        qr_assert(r->spilled_rows < r->token_count && (r->spilled_rows == 0 || r->spill_id));           /* I13 */
        qr_assert(r->lane == NONE || (r->lane == self->asked_lane && r->request_id == self->asked_id)); /* I2 */
    }
}

static void check_lane(const scheduler_t *self, uint32_t index)
{
    const lane_t *lane = lane_of(self, index);
    uint32_t in_flight = 0, voids = 0, rows = 0;
    for (uint32_t b = 0; b < QR_BATCHES_IN_FLIGHT; b++)
        for (uint32_t i = 0; self->batches[b].id && i < self->batches[b].lane_count; i++) {
            const entry_t *entry = &self->batches[b].entries[i];
            if (entry->lane != index) continue;
            in_flight++;
            voids += entry->dropped;
            rows += entry->dropped ? 0 : entry->rows;
        }
    qr_assert(lane->in_flight == in_flight && lane->voids == voids);                                        /* I4 */
    qr_assert(in_flight == 0 || lane->state == LANE_RUNNING || lane->state == LANE_ENDING);                 /* I5 */
    qr_assert(!lane->deciding || lane->state == LANE_OPENING || lane->state == LANE_RUNNING || lane->load); /* I14 */
    qr_assert(lane->state != LANE_ENDING || in_flight > 0 || lane->load || lane->spill);
    qr_assert(!lane->spill || (lane->state == LANE_ENDING && lane->preempted && (lane->spill == SPILL_DUE || in_flight == 0))); /* I13 */
    qr_assert(!lane->load ||
              (in_flight == 0 && (lane->state == LANE_OPENING || lane->state == LANE_RUNNING || lane->state == LANE_ENDING)));
    if (lane->state == LANE_RUNNING || lane->state == LANE_OPENING) {
        const request_t *r = request_of(self, lane->request);
        qr_assert(r->state == REQUEST_PLACED && r->lane == index && r->token_count == lane->prompt);
        qr_assert(lane->rows_done <= lane->rows_sent && lane->rows_sent <= lane->rows_total); /* I6 */
        qr_assert(lane->rows_sent - lane->rows_done == rows);
        qr_assert(lane->draws == (lane->rows_done >= lane->prompt ? lane->rows_done - lane->prompt + 1 : 0));
    } else if (lane->state != LANE_RESERVED)
        qr_assert(lane->request == NONE);
    qr_assert((lane->state == LANE_RESERVED) == (self->asked_lane == index));
}

static void scheduler_check(const void *block, const qr_given_t *given)
{
    const scheduler_t *self = block;
    uint32_t used = 0;
    (void)given;
    check_requests(self);
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        check_lane(self, i);
        used += lane_of(self, i)->state != LANE_FREE;
    }
    uint32_t preempting = 0;
    for (uint32_t i = 0; i < self->lanes_max; i++) preempting += lane_of(self, i)->preempted;
    qr_assert(preempting == self->preempting && preempting <= 1); /* I12 */
    qr_assert(used == self->lanes_used && self->window_count <= self->windows_max);
    qr_assert(self->batches[0].id != 0 || self->batches[1].id == 0);
    qr_assert(self->decisions.count <= QR_DECISIONS_MAX);
}

static void print_number(qr_text_t *text, const char *name, uint64_t value)
{
    qr_text_put(text, name);
    qr_text_put_u64(text, value);
}

static void scheduler_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const scheduler_t *self = block;
    (void)given;
    print_number(text, "scheduler: requests ", self->request_count);
    print_number(text, " of ", self->requests_max);
    print_number(text, ", queued ", self->queue_count);
    print_number(text, ", tokens ", self->tokens_used);
    print_number(text, " of ", self->tokens_max);
    print_number(text, ", batches ", self->batches_done);
    print_number(text, ", failed ", self->batches_failed);
    print_number(text, ", row ns ", self->calibration.row_ns);
    print_number(text, ", step ns ", self->calibration.step_ns[0]);
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < self->lanes_max; i++) {
        const lane_t *lane = lane_of(self, i);
        if (lane->state == LANE_FREE) continue;
        print_number(text, "  lane ", i);
        print_number(text, ": state ", lane->state);
        print_number(text, ", route ", lane->route);
        print_number(text, ", rows ", lane->rows_done);
        print_number(text, " + ", lane->rows_sent - lane->rows_done);
        print_number(text, " of ", lane->rows_total);
        print_number(text, ", drawn ", lane->draws);
        qr_text_put(text, "\n");
    }
}

const qr_actor_class_t qr_scheduler_class = {
    .name = "scheduler",
    .role = QR_ROLE_scheduler,
    .max_out = MAX_OUT,
    .bytes = scheduler_bytes,
    .init = scheduler_init,
    .handle = scheduler_handle,
    .check = scheduler_check,
    .print = scheduler_print,
};
