/* worker.c - owns the requests one device has accepted and the tokens that no router has acknowledged yet.
 *
 *   router  -- offer -->         worker  -- offer_accepted | offer_refused -->   at once, from its own bounds
 *   worker  -- submit -->        scheduler  -- step_tokens ..., ended -->
 *   worker  -- tokens -->        router     -- tokens_taken -->                  one question per router; everything since the last answer
 *   router  -- offer_cancel -->  worker  -- offer_cancelled -->, submit_cancel --> scheduler
 *   worker  -- observation -->   heartbeat                                       on change at most every beat, else now and then
 *
 * W1. A request is in the table from its acceptance until its end has been acknowledged, its router is gone, or a newer attempt
 *     replaced it and the scheduler has ended it. A repeated offer changes nothing and is answered the same.
 * W2. Tokens [acked, head) of a request are kept; head - acked <= QR_WORKER_UNACKED_MAX. Nothing is forgotten before it is acked.
 * W3. At most one `tokens` is open per router. `sent` and `finish_sent` say what the open one holds.
 *     Requests of a router whose answer is overdue end with PEER_DOWN, which it is told when it answers; until then it is refused. Its
 *     answer may move nothing (it has no room): then the same is told again after TOKENS_AGAIN_US, not at once.
 * W4. Each submit is answered by one `ended`; at most one submit_cancel is sent for it.
 * W5. `open` lists exactly the records that are not free; the counters are sums over them. */
#include "actors/worker.h"

#include "actors/calibration.h"
#include "actors/note.h"
#include "actors/plan.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mutant.h"
#include "base/text.h"

enum { NONE = 0xffffffffu };
enum { ASK_OFFER_TIMEOUTS = 4 }; /* offer_timeout_ms until an answer to `tokens` is overdue */
enum { TOKENS_AGAIN_US = 2000 }; /* after an answer that moved nothing */
enum { CANCELS_PER_CALL = 64, MAX_OUT = CANCELS_PER_CALL + QR_WORKER_ROUTERS_MAX + 8 };

enum record_state { RECORD_FREE, RECORD_RUNNING, RECORD_ENDED };
enum { CANCEL_NONE, CANCEL_DUE, CANCEL_SENT };

typedef struct record {
    uint64_t request_id, queue_us, prefill_us;
    uint32_t attempt, state, router; /* router: index into routers */
    uint32_t dropped;                /* 1: nobody wants to hear of it any more */
    uint32_t cancel, cancel_finish;
    uint32_t first, head, acked, sent; /* generated indexes: of the attempt's first token, one past the newest, acked, in the open ask */
    uint32_t in_ask, finish_sent;      /* named in the open ask; its end too */
    uint32_t finish, error, cached_tokens;
    uint32_t prompt, pages; /* tokens that wait for a first token; pages it may need */
    uint32_t place;         /* in `open` */
    uint32_t cut, unused;   /* cut: a token found no room; nothing more is kept */
} record_t;

typedef struct router {
    uint64_t address;   /* 0 = free */
    uint64_t ask_by_us; /* ask_open: when its answer is overdue */
    uint64_t again_us;  /* nothing is told before */
    uint32_t requests;  /* records that name it */
    uint32_t ask_open;
} router_t;

typedef struct probe {
    uint64_t router, probe_id;
    uint32_t open, gone; /* gone: the asker's node went away */
} probe_t;

typedef struct worker {
    uint64_t address, epoch, scheduler, heartbeat;
    uint64_t records_at, open_at, map_at, tokens_at, logprobs_at; /* offsets of the tables behind this struct */
    uint64_t drain_by, stop_by, drain_until_us, stop_until_us;
    uint64_t observed_us, sequence;
    uint64_t tokens_queued, pages_promised, pages_pool;
    uint32_t records_max, open_count, running_count, cancels_due;
    uint32_t state, changed, ended_next, context;
    uint64_t ended_ids[QR_WORKER_ENDED_MAX];
    uint32_t ended_attempts[QR_WORKER_ENDED_MAX];
    qr_calibration_t calibration;
    router_t routers[QR_WORKER_ROUTERS_MAX];
    probe_t probes[QR_WORKER_PROBES_MAX];
    uint32_t scratch_tokens[QR_WORKER_TOKENS_PER_MESSAGE], scratch_logprobs[QR_WORKER_TOKENS_PER_MESSAGE];
} worker_t;

/* What one handler call carries around. */
typedef struct call {
    worker_t *self;
    const qr_given_t *given;
    qr_outbox_t *outbox;
    uint64_t now_us;
} call_t;

static void *at(const worker_t *self, uint64_t offset) { return (uint8_t *)(uintptr_t)self + offset; }
static record_t *record_of(const worker_t *self, uint32_t i) { return (record_t *)at(self, self->records_at) + i; }
static uint32_t *open_of(const worker_t *self) { return at(self, self->open_at); }
static qr_map_t *map_of(const worker_t *self) { return at(self, self->map_at); }
static uint32_t record_index(const worker_t *self, const record_t *r) { return (uint32_t)(r - record_of(self, 0)); }
static uint32_t *ring_of(const worker_t *self, const record_t *r, uint64_t table)
{
    return (uint32_t *)at(self, table) + (uint64_t)record_index(self, r) * QR_WORKER_UNACKED_MAX;
}

/* The record of this attempt, NULL without one. The map knows the newest attempt; a replaced one is looked for. */
static record_t *record_find(const worker_t *self, uint64_t request_id, uint32_t attempt)
{
    uint32_t i;
    if (!qr_map_get(map_of(self), request_id, &i)) return NULL;
    if (record_of(self, i)->attempt == attempt) return record_of(self, i);
    for (i = 0; i < self->open_count; i++) {
        record_t *r = record_of(self, open_of(self)[i]);
        if (r->request_id == request_id && r->attempt == attempt) return r;
    }
    return NULL;
}

static bool ended_before(const worker_t *self, uint64_t request_id, uint32_t attempt)
{
    for (uint32_t i = 0; i < QR_WORKER_ENDED_MAX; i++)
        if (self->ended_ids[i] == request_id && self->ended_attempts[i] == attempt) return true;
    return false;
}

/* ---- records -------------------------------------------------------------------------------------------------------------- */

static void prompt_over(worker_t *self, record_t *r)
{
    self->tokens_queued -= r->prompt;
    r->prompt = 0;
}

/* Forgets a record whose submit is answered. */
static void record_free(worker_t *self, record_t *r)
{
    uint32_t *open = open_of(self), index = record_index(self, r), mapped;
    if (qr_map_get(map_of(self), r->request_id, &mapped) && mapped == index) qr_map_remove(map_of(self), r->request_id);
    self->ended_ids[self->ended_next] = r->request_id;
    self->ended_attempts[self->ended_next] = r->attempt;
    self->ended_next = (self->ended_next + 1) % QR_WORKER_ENDED_MAX;
    prompt_over(self, r);
    self->pages_promised -= r->pages;
    router_t *router = &self->routers[r->router];
    if (--router->requests == 0 && !router->ask_open) router->address = 0;
    uint32_t last = open[--self->open_count];
    open[r->place] = last;
    record_of(self, last)->place = r->place;
    memset(r, 0, sizeof *r);
    self->changed = 1;
}

/* Its end was seen by whoever wants it, or nobody does. */
static void record_try_free(worker_t *self, record_t *r)
{
    if (r->state == RECORD_ENDED && !r->in_ask && (r->dropped || ((r->finish_sent || QR_MUTANT(425)) && r->acked == r->head)))
        record_free(self, r);
}

/* Wants the scheduler to end it (W4); sent by sweep_cancels. */
static void record_cancel(worker_t *self, record_t *r, uint32_t finish)
{
    if (r->state != RECORD_RUNNING || r->cancel != CANCEL_NONE) return;
    r->cancel = CANCEL_DUE;
    r->cancel_finish = finish;
    self->cancels_due++;
}

static void record_drop(worker_t *self, record_t *r)
{
    r->dropped = 1;
    record_cancel(self, r, QR_FINISH_CANCELLED);
    record_try_free(self, r);
}

/* Sends the cancel of one record if it is due. */
static bool cancel_send(const call_t *call, record_t *r)
{
    if (r->cancel != CANCEL_DUE) return false;
    r->cancel = CANCEL_SENT;
    call->self->cancels_due--;
    qr_submit_cancel_t cancel = {.request_id = r->request_id, .attempt = r->attempt, .finish = r->cancel_finish};
    qr_send(call->outbox, call->self->scheduler, submit_cancel, &cancel);
    return true;
}

static void sweep_cancels(const call_t *call)
{
    worker_t *self = call->self;
    uint32_t sent = 0;
    for (uint32_t i = 0; i < self->open_count && self->cancels_due && sent < CANCELS_PER_CALL; i++)
        sent += cancel_send(call, record_of(self, open_of(self)[i]));
    if (self->cancels_due) qr_outbox_alarm(call->outbox, call->now_us);
}

static bool is_overdue(const router_t *router, uint64_t now_us) { return router->ask_open && now_us >= router->ask_by_us; }

static router_t *router_find(worker_t *self, uint64_t address)
{
    for (uint32_t i = 0; i < QR_WORKER_ROUTERS_MAX; i++)
        if (self->routers[i].address == address) return &self->routers[i];
    return NULL;
}

/* ---- offers ---------------------------------------------------------------------------------------------------------------- */

/* Pages of one group a route of rows_max rows may hold at once (design: admission). */
static uint64_t group_pages(const qr_given_t *given, const qr_group_t *group, uint64_t rows_max)
{
    uint64_t page = given->layout.page_tokens, blocks = qr_div_up(rows_max, page);
    if (group->window == 0) return blocks;
    uint64_t in_flight = qr_min_u64(rows_max, qr_plan_rows_in_flight(given->params.prefill_tile));
    return qr_min_u64(qr_div_up(group->window - 1 + in_flight, page) + 1, blocks);
}

static bool never_fits(const qr_given_t *given, uint64_t rows_max)
{
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        const qr_group_t *group = &given->layout.groups[g];
        if (group_pages(given, group, rows_max) > group->pages - qr_min_u32(group->pages, group->set_aside)) return true;
    }
    return false;
}

static uint64_t offer_rows_max(const qr_offer_t *offer)
{
    uint64_t drawn = offer->tokens.count - offer->generated_from;
    return offer->tokens.count + (offer->max_tokens > drawn ? offer->max_tokens - drawn : 1) - 1;
}

/* A finite number >= 0, as its bits. */
static bool is_plain(uint32_t bits) { return bits < 0x7f800000u; }

/* Bytes of an offer may come from another machine: everything that sizes, indexes or computes is looked at here. */
static bool offer_is_valid(const qr_given_t *given, const qr_offer_t *offer)
{
    if (offer->tokens.count == 0 || offer->generated_from == 0 || offer->generated_from > offer->tokens.count) return false;
    if (offer->max_tokens == 0 || offer->tenant_salt.count > QR_SALT_BYTES_MAX || offer->cache_salt.count > QR_SALT_BYTES_MAX) return false;
    if (!is_plain(offer->temperature_bits) || !is_plain(offer->top_p_bits) || !is_plain(offer->min_p_bits)) return false;
    if (given->vocabulary.count == 0) return true;
    for (uint64_t i = 0; i < offer->tokens.count; i++)
        if (offer->tokens.data[i] >= given->vocabulary.count) return false;
    return true;
}

/* 0, or why the offer cannot be taken. */
static uint32_t offer_reason(const call_t *call, const qr_offer_t *offer, uint64_t from)
{
    worker_t *self = call->self;
    if (!offer_is_valid(call->given, offer)) return QR_E_INVALID;
    if (offer->tokens.count > self->context || offer_rows_max(offer) > self->context) return QR_E_CONTEXT;
    if (never_fits(call->given, offer_rows_max(offer))) return QR_E_NEVER_FITS;
    if (self->state != QR_STATE_READY) return QR_E_DRAINING;
    if (self->open_count == self->records_max) return QR_E_BUSY;
    const router_t *router = router_find(self, from);
    if (router ? is_overdue(router, call->now_us) : !router_find(self, 0)) return QR_E_BUSY;
    return 0;
}

static uint32_t demand_pages(const qr_given_t *given, uint64_t rows_max)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++) sum += group_pages(given, &given->layout.groups[g], rows_max);
    return (uint32_t)qr_min_u64(sum, UINT32_MAX);
}

static record_t *record_take(const call_t *call, const qr_offer_t *offer, uint64_t from)
{
    worker_t *self = call->self;
    uint32_t i = 0;
    while (record_of(self, i)->state != RECORD_FREE) i++;
    record_t *r = record_of(self, i);
    router_t *router = router_find(self, from);
    if (router == NULL) router = router_find(self, 0);
    if (router->address == 0) router->again_us = 0;
    router->address = from;
    router->requests++;
    r->request_id = offer->request_id;
    r->attempt = offer->attempt;
    r->state = RECORD_RUNNING;
    r->router = (uint32_t)(router - self->routers);
    r->first = r->head = r->acked = r->sent = QR_MUTANT(427) ? 0 : (uint32_t)offer->tokens.count - offer->generated_from;
    r->prompt = (uint32_t)offer->tokens.count;
    r->pages = demand_pages(call->given, offer_rows_max(offer));
    r->place = self->open_count;
    open_of(self)[self->open_count++] = i;
    self->tokens_queued += r->prompt;
    self->pages_promised += r->pages;
    self->running_count++;
    self->changed = 1;
    qr_assert(qr_map_put(map_of(self), r->request_id, i));
    return r;
}

static void send_submit(const call_t *call, const qr_offer_t *offer)
{
    qr_submit_t submit = {.request_id = offer->request_id, .attempt = offer->attempt, .generated_from = offer->generated_from};
    submit.tokens = offer->tokens;
    submit.max_tokens = offer->max_tokens;
    submit.temperature_bits = offer->temperature_bits;
    submit.top_p_bits = offer->top_p_bits;
    submit.min_p_bits = offer->min_p_bits;
    submit.top_k = offer->top_k;
    submit.seed = offer->seed;
    submit.logprobs = offer->logprobs;
    submit.ignore_eos = offer->ignore_eos;
    submit.tenant_salt = offer->tenant_salt;
    submit.cache_salt = offer->cache_salt;
    submit.priority = offer->priority;
    submit.budget_us = offer->budget_us;
    qr_send(call->outbox, call->self->scheduler, submit, &submit);
}

static void refuse_offer(const call_t *call, const qr_offer_t *offer, uint64_t to, uint32_t reason)
{
    qr_offer_refused_t refused = {.request_id = offer->request_id, .attempt = offer->attempt, .reason = reason};
    if (reason == QR_E_BUSY || reason == QR_E_DRAINING) refused.retry_after_ms = 1000;
    qr_outbox_note(call->outbox, QR_LEVEL_TRACE, QR_NOTE_refused, offer->request_id, reason, offer->attempt, call->self->open_count);
    qr_send(call->outbox, to, offer_refused, &refused);
}

static void on_offer(const call_t *call, const qr_offer_t *offer, uint64_t from)
{
    worker_t *self = call->self;
    qr_offer_accepted_t accepted = {.request_id = offer->request_id, .attempt = offer->attempt};
    uint32_t known;
    record_t *newest = qr_map_get(map_of(self), offer->request_id, &known) ? record_of(self, known) : NULL;
    if (newest && newest->attempt == offer->attempt && self->routers[newest->router].address == from && !newest->dropped &&
        !QR_MUTANT(160)) {
        qr_send(call->outbox, from, offer_accepted, &accepted); /* a repeat (W1) */
        return;
    }
    uint32_t reason = 0;
    if (newest && self->routers[newest->router].address != from)
        reason = QR_E_IN_USE; /* only who began a request may begin it anew */
    else if ((newest && newest->attempt >= offer->attempt) || ended_before(self, offer->request_id, offer->attempt))
        reason = QR_E_STALE;
    else
        reason = offer_reason(call, offer, from);
    if (reason) {
        refuse_offer(call, offer, from, reason);
        return;
    }
    if (newest && !QR_MUTANT(173)) { /* replaced by the newer attempt; the scheduler hears the cancel before the new submit */
        record_drop(self, newest);
        (void)cancel_send(call, newest);
    }
    record_take(call, offer, from);
    qr_send(call->outbox, from, offer_accepted, &accepted);
    send_submit(call, offer);
}

static void on_offer_cancel(const call_t *call, const qr_offer_cancel_t *cancel, uint64_t from)
{
    record_t *r = record_find(call->self, cancel->request_id, cancel->attempt);
    bool known = r && call->self->routers[r->router].address == from;
    if (known && !QR_MUTANT(467)) record_cancel(call->self, r, cancel->finish ? cancel->finish : QR_FINISH_CANCELLED);
    qr_offer_cancelled_t cancelled = {.request_id = cancel->request_id, .attempt = cancel->attempt, .reason = known ? 0 : QR_E_UNKNOWN};
    qr_send(call->outbox, from, offer_cancelled, &cancelled);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------- */

/* Columns of a `tokens` message; those of tokens are in the state's scratch. */
typedef struct columns {
    uint64_t request_ids[QR_REQUESTS_MAX], queue_us[QR_REQUESTS_MAX], prefill_us[QR_REQUESTS_MAX];
    uint32_t attempts[QR_REQUESTS_MAX], indexes[QR_REQUESTS_MAX], counts[QR_REQUESTS_MAX];
    uint32_t finishes[QR_REQUESTS_MAX], errors[QR_REQUESTS_MAX], cached[QR_REQUESTS_MAX];
    uint32_t count, token_count;
} columns_t;

static void add_record(worker_t *self, columns_t *c, record_t *r)
{
    const uint32_t *tokens = ring_of(self, r, self->tokens_at), *logprobs = ring_of(self, r, self->logprobs_at);
    uint32_t room = QR_WORKER_TOKENS_PER_MESSAGE - c->token_count, count = qr_min_u32(r->head - r->acked, room), i = c->count++;
    for (uint32_t k = 0; k < count; k++, c->token_count++) {
        self->scratch_tokens[c->token_count] = tokens[(r->acked + k) % QR_WORKER_UNACKED_MAX];
        self->scratch_logprobs[c->token_count] = logprobs[(r->acked + k) % QR_WORKER_UNACKED_MAX];
    }
    r->in_ask = 1;
    r->sent = r->acked + count;
    r->finish_sent = r->state == RECORD_ENDED && r->sent == r->head;
    c->request_ids[i] = r->request_id;
    c->attempts[i] = r->attempt;
    c->indexes[i] = r->acked;
    c->counts[i] = count;
    c->finishes[i] = r->finish_sent ? r->finish : QR_FINISH_NONE;
    c->errors[i] = r->finish_sent ? r->error : 0;
    c->cached[i] = r->cached_tokens;
    c->queue_us[i] = r->queue_us;
    c->prefill_us[i] = r->prefill_us;
}

static void send_columns(const call_t *call, uint64_t to, const columns_t *c)
{
    qr_tokens_t tokens = {.request_ids = {c->request_ids, c->count}, .attempts = {c->attempts, c->count}};
    tokens.indexes = (qr_u32s_t){c->indexes, c->count};
    tokens.counts = (qr_u32s_t){c->counts, c->count};
    tokens.tokens = (qr_u32s_t){call->self->scratch_tokens, c->token_count};
    tokens.logprob_bits = (qr_u32s_t){call->self->scratch_logprobs, c->token_count};
    tokens.finishes = (qr_u32s_t){c->finishes, c->count};
    tokens.errors = (qr_u32s_t){c->errors, c->count};
    tokens.cached_tokens = (qr_u32s_t){c->cached, c->count};
    tokens.queue_us = (qr_u64s_t){c->queue_us, c->count};
    tokens.prefill_us = (qr_u64s_t){c->prefill_us, c->count};
    qr_send(call->outbox, to, tokens, &tokens);
}

/* Tells a router everything it has not acknowledged, if it has nothing of ours to answer (W3). */
static void flush(const call_t *call, uint32_t index)
{
    worker_t *self = call->self;
    router_t *router = &self->routers[index];
    if (router->address == 0 || router->requests == 0 || (router->ask_open && !QR_MUTANT(161))) return;
    if (call->now_us < router->again_us) {
        qr_outbox_alarm(call->outbox, router->again_us);
        return;
    }
    columns_t columns;
    columns.count = columns.token_count = 0;
    for (uint32_t i = 0; i < self->open_count && columns.token_count < QR_WORKER_TOKENS_PER_MESSAGE; i++) {
        record_t *r = record_of(self, open_of(self)[i]);
        if (r->router == index && !r->dropped && (r->head > r->acked || r->state == RECORD_ENDED)) add_record(self, &columns, r);
    }
    if (columns.count == 0) return;
    router->ask_open = 1;
    router->ask_by_us = call->now_us + ASK_OFFER_TIMEOUTS * call->given->params.offer_timeout_ms * 1000;
    send_columns(call, router->address, &columns);
}

static void flush_all(const call_t *call)
{
    for (uint32_t i = 0; i < QR_WORKER_ROUTERS_MAX; i++) flush(call, i);
}

/* Its worker is as good as gone for this router: the request ends here, and the router hears so, which offers it to another. */
static void record_fail(worker_t *self, record_t *r)
{
    if (r->dropped || r->state != RECORD_RUNNING || r->cancel != CANCEL_NONE) return;
    r->finish = QR_FINISH_ERROR;
    r->error = QR_E_PEER_DOWN;
    record_cancel(self, r, QR_FINISH_CANCELLED);
}

/* A router answers `tokens` as soon as it reads them: with one that does not for so long nothing goes on. */
static void fail_overdue(const call_t *call)
{
    worker_t *self = call->self;
    for (uint32_t i = 0; i < QR_WORKER_ROUTERS_MAX; i++) {
        if (self->routers[i].ask_open && !is_overdue(&self->routers[i], call->now_us))
            qr_outbox_alarm(call->outbox, self->routers[i].ask_by_us);
        for (uint32_t k = self->open_count; k-- > 0 && is_overdue(&self->routers[i], call->now_us);) {
            record_t *r = record_of(self, open_of(self)[k]);
            if (r->router != i) continue;
            if (QR_MUTANT(471))
                record_drop(self, r);
            else
                record_fail(self, r);
        }
    }
}

/* The open ask is over; what it named and `taken` did not confirm is unknown to the router. */
static void ask_over(worker_t *self, uint32_t index, bool answered)
{
    router_t *router = &self->routers[index];
    router->ask_open = 0;
    for (uint32_t i = self->open_count; i-- > 0;) { /* backwards: freeing moves the last one here */
        record_t *r = record_of(self, open_of(self)[i]);
        if (r->router != index) continue;
        bool unknown = answered && r->in_ask == 1 && !QR_MUTANT(466);
        r->in_ask = 0;
        if (unknown)
            record_drop(self, r);
        else
            record_try_free(self, r);
    }
    if (router->requests == 0) router->address = 0;
}

static void on_tokens_taken(const call_t *call, const qr_tokens_taken_t *taken, uint64_t from)
{
    worker_t *self = call->self;
    router_t *router = router_find(self, from);
    if (from == 0 || router == NULL || !router->ask_open || taken->attempts.count != taken->request_ids.count ||
        taken->indexes.count != taken->request_ids.count) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_protocol, 0, QR_MESSAGE_tokens_taken, from, 0);
        if (router && from) ask_over(self, (uint32_t)(router - self->routers), false);
        return;
    }
    bool moved = false;
    for (uint64_t i = 0; i < taken->request_ids.count; i++) {
        record_t *r = record_find(self, taken->request_ids.data[i], taken->attempts.data[i]);
        if (r == NULL || !r->in_ask || &self->routers[r->router] != router) continue;
        uint32_t index = qr_min_u32(taken->indexes.data[i] + QR_MUTANT(424), QR_MUTANT(424) ? r->head : r->sent);
        r->in_ask = 2; /* confirmed */
        moved |= index > r->acked || (r->finish_sent && index == r->head);
        if (index > r->acked) r->acked = index;
        if (QR_MUTANT(162)) r->acked = r->head;
    }
    router->again_us = moved || QR_MUTANT(470) ? 0 : call->now_us + TOKENS_AGAIN_US;
    ask_over(self, (uint32_t)(router - self->routers), true);
}

static void keep_token(worker_t *self, record_t *r, uint32_t token, uint32_t logprob)
{
    prompt_over(self, r);
    if (r->cut) return;                                /* a gap would follow */
    if (r->head - r->acked == QR_WORKER_UNACKED_MAX) { /* W2: the router does not read */
        r->cut = 1;
        if (r->cancel == CANCEL_NONE) {
            r->finish = QR_FINISH_ERROR;
            r->error = QR_E_SLOW_CLIENT;
        }
        record_cancel(self, r, QR_FINISH_CANCELLED);
        return;
    }
    ring_of(self, r, self->tokens_at)[r->head % QR_WORKER_UNACKED_MAX] = token;
    ring_of(self, r, self->logprobs_at)[r->head % QR_WORKER_UNACKED_MAX] = logprob;
    r->head++;
}

static void on_step_tokens(const call_t *call, const qr_step_tokens_t *step)
{
    worker_t *self = call->self;
    qr_calibration_add(&self->calibration, step->decode_rows, step->prefill_rows, step->step_us);
    for (uint64_t i = 0; i < step->request_ids.count; i++) {
        record_t *r = record_find(self, step->request_ids.data[i], step->attempts.data[i]);
        if (r && r->state == RECORD_RUNNING) keep_token(self, r, step->tokens.data[i], step->logprob_bits.data[i]);
    }
    self->changed = 1;
}

static void on_ended(const call_t *call, const qr_ended_t *ended)
{
    worker_t *self = call->self;
    record_t *r = record_find(self, ended->request_id, ended->attempt);
    if (r == NULL || r->state != RECORD_RUNNING) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, ended->request_id, QR_MESSAGE_ended, ended->attempt, 0);
        return;
    }
    self->cancels_due -= r->cancel == CANCEL_DUE;
    r->cancel = CANCEL_SENT;
    r->state = RECORD_ENDED;
    self->running_count--;
    self->changed = 1;
    prompt_over(self, r);
    if (r->finish == QR_FINISH_NONE) {
        r->finish = ended->finish;
        r->error = ended->error;
    }
    r->cached_tokens = ended->cached_tokens;
    r->queue_us = ended->queue_us;
    r->prefill_us = ended->prefill_us;
    record_try_free(self, r);
}

/* ---- health --------------------------------------------------------------------------------------------------------------------- */

static void send_observation(const call_t *call)
{
    worker_t *self = call->self;
    qr_observation_t seen = {.worker = self->address, .worker_epoch = self->epoch, .sequence = ++self->sequence};
    seen.state = (uint8_t)self->state;
    seen.fingerprint = call->given->layout.fingerprint;
    seen.lanes_max = (uint32_t)call->given->params.max_lanes;
    seen.requests_open = self->open_count;
    seen.tokens_queued = self->tokens_queued;
    seen.context_tokens = self->context;
    seen.pages_pool = (uint32_t)self->pages_pool;
    seen.pages_free = (uint32_t)(self->pages_pool - qr_min_u64(self->pages_pool, self->pages_promised));
    seen.prefill_row_ns = self->calibration.row_ns;
    seen.prefill_samples = self->calibration.row_samples;
    seen.step_us = qr_calibration_step_ns(&self->calibration, qr_max_u32(1, qr_min_u32(self->running_count, seen.lanes_max))) / 1000;
    seen.step_samples = qr_calibration_samples(&self->calibration);
    self->changed = 0;
    self->observed_us = call->now_us;
    qr_send(call->outbox, self->heartbeat, observation, &seen);
}

/* On change at most every beat; without one a few times per silence that would count as down. */
static void observe(const call_t *call)
{
    worker_t *self = call->self;
    if (self->heartbeat == 0) return;
    uint64_t beat_us = call->given->params.beat_ms * 1000, quiet_us = qr_max_u64(beat_us, call->given->params.peer_down_ms * 250);
    uint64_t due_us = self->observed_us + (self->changed ? beat_us : QR_MUTANT(428) ? QR_NEVER_US / 2 : quiet_us);
    if (self->sequence == 0 || call->now_us >= due_us) {
        send_observation(call);
        due_us = call->now_us + quiet_us;
    }
    qr_outbox_alarm(call->outbox, due_us);
}

/* The node was silent but its link is up: its requests end, and their ends still travel in `tokens`. */
static void node_silent(const call_t *call, uint32_t node)
{
    worker_t *self = call->self;
    for (uint32_t i = 0; i < self->open_count; i++) {
        record_t *r = record_of(self, open_of(self)[i]);
        if (qr_address_node(self->routers[r->router].address) == node) record_fail(self, r);
    }
}

/* The link is down: its routers will not hear or answer any more, and their open questions are closed. */
static void node_gone(const call_t *call, uint32_t node)
{
    worker_t *self = call->self;
    for (uint32_t i = self->open_count; i-- > 0;) {
        record_t *r = record_of(self, open_of(self)[i]);
        if (qr_address_node(self->routers[r->router].address) == node) record_drop(self, r);
    }
    for (uint32_t i = 0; i < QR_WORKER_ROUTERS_MAX; i++)
        if (self->routers[i].address && qr_address_node(self->routers[i].address) == node) ask_over(self, i, false);
    for (uint32_t i = 0; i < QR_WORKER_PROBES_MAX; i++)
        if (self->probes[i].open && qr_address_node(self->probes[i].router) == node) self->probes[i].gone = 1;
}

static void on_probe(const call_t *call, const qr_probe_t *probe, uint64_t from)
{
    worker_t *self = call->self;
    for (uint32_t i = 0; i < QR_WORKER_PROBES_MAX; i++) {
        if (self->probes[i].open) continue;
        self->probes[i] = (probe_t){from, probe->probe_id, 1, 0};
        qr_send(call->outbox, self->scheduler, probe, (&(qr_probe_t){.probe_id = i}));
        return;
    }
    qr_send(call->outbox, from, probe_done, (&(qr_probe_done_t){.probe_id = probe->probe_id, .reason = QR_E_BUSY}));
}

static void on_probe_done(const call_t *call, const qr_probe_done_t *done)
{
    worker_t *self = call->self;
    if (done->probe_id >= QR_WORKER_PROBES_MAX || !self->probes[done->probe_id].open) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, QR_MESSAGE_probe_done, done->probe_id, 0);
        return;
    }
    probe_t *probe = &self->probes[done->probe_id];
    probe->open = 0;
    if (!probe->gone)
        qr_send(call->outbox, probe->router, probe_done, (&(qr_probe_done_t){.probe_id = probe->probe_id, .reason = done->reason}));
}

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static void on_start(const call_t *call, const qr_message_t *message)
{
    worker_t *self = call->self;
    const qr_start_t *start = &message->body.start;
    self->epoch = start->epoch;
    self->state = QR_STATE_READY;
    for (uint64_t i = 0; i < start->partners.count; i++) {
        uint64_t partner = start->partners.data[i];
        if (qr_address_role(partner) == QR_ROLE_heartbeat && qr_address_node(partner) == qr_address_node(self->address))
            self->heartbeat = partner;
    }
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->records_max, 0);
    qr_send(call->outbox, message->from, ready, (&(qr_ready_t){.reason = 0}));
}

static void on_drain(const call_t *call, const qr_message_t *message)
{
    worker_t *self = call->self;
    self->state = QR_STATE_DRAINING;
    self->changed = 1;
    self->drain_by = message->from;
    self->drain_until_us = call->now_us + message->body.drain.budget_us;
}

static void on_stop(const call_t *call, const qr_message_t *message)
{
    worker_t *self = call->self;
    self->state = QR_STATE_DOWN;
    self->changed = 1;
    self->stop_by = message->from;
    self->stop_until_us = call->now_us + message->body.stop.budget_us;
    for (uint32_t i = self->open_count; i-- > 0;) record_drop(self, record_of(self, open_of(self)[i]));
}

static void answer_life(const call_t *call)
{
    worker_t *self = call->self;
    if (self->drain_by) {
        if (self->open_count == 0 || call->now_us >= self->drain_until_us) {
            qr_send(call->outbox, self->drain_by, drained, (&(qr_drained_t){.open_count = self->open_count}));
            self->drain_by = 0;
        } else
            qr_outbox_alarm(call->outbox, self->drain_until_us);
    }
    if (self->stop_by) {
        if (self->running_count == 0 || call->now_us >= self->stop_until_us) {
            qr_send(call->outbox, self->stop_by, stopped, (&(qr_stopped_t){.reason = self->running_count ? QR_E_DEADLINE : 0}));
            self->stop_by = 0;
        } else
            qr_outbox_alarm(call->outbox, self->stop_until_us);
    }
}

static void on_metrics_read(const call_t *call, uint64_t from)
{
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    uint32_t id = ID_worker_requests_open;
    uint64_t value = call->self->open_count;
    qr_send(call->outbox, from, metrics, (&(qr_metrics_t){.ids = {&id, 1}, .values = {&value, 1}}));
}

/* ---- the actor ------------------------------------------------------------------------------------------------------------------------
 */

/* Offsets of the tables; returns the bytes of the whole block. `self` may be NULL. */
static uint64_t lay_out(worker_t *self, const qr_given_t *given)
{
    uint64_t count = given->params.max_requests, ring = count * QR_WORKER_UNACKED_MAX * sizeof(uint32_t);
    uint64_t records = qr_round_up(sizeof(worker_t), 64);
    uint64_t map = records + count * sizeof(record_t);
    uint64_t open = map + qr_map_bytes((uint32_t)count);
    uint64_t tokens = qr_round_up(open + count * sizeof(uint32_t), 64);
    if (self) {
        self->records_at = records;
        self->map_at = map;
        self->open_at = open;
        self->tokens_at = tokens;
        self->logprobs_at = tokens + ring;
    }
    return tokens + 2 * ring;
}

static uint64_t worker_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void worker_init(void *block, const qr_given_t *given, uint64_t address)
{
    worker_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->scheduler = qr_address_partner(address, QR_ROLE_scheduler);
    self->records_max = (uint32_t)given->params.max_requests;
    self->context = given->layout.context_tokens ? given->layout.context_tokens : QR_CONTEXT_MAX;
    for (uint32_t g = 0; g < given->layout.group_count; g++) self->pages_pool += given->layout.groups[g].pages;
    qr_map_init(map_of(self), self->records_max, address);
}

static void worker_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    worker_t *self = block;
    const call_t call = {self, given, outbox, message->now_us};
    switch (message->type) {
    case QR_MESSAGE_start: on_start(&call, message); break;
    case QR_MESSAGE_drain: on_drain(&call, message); break;
    case QR_MESSAGE_stop: on_stop(&call, message); break;
    case QR_MESSAGE_alarm: break; /* what is due is looked for below */
    case QR_MESSAGE_offer: on_offer(&call, &message->body.offer, message->from); break;
    case QR_MESSAGE_offer_cancel: on_offer_cancel(&call, &message->body.offer_cancel, message->from); break;
    case QR_MESSAGE_step_tokens: on_step_tokens(&call, &message->body.step_tokens); break;
    case QR_MESSAGE_ended: on_ended(&call, &message->body.ended); break;
    case QR_MESSAGE_tokens_taken: on_tokens_taken(&call, &message->body.tokens_taken, message->from); break;
    case QR_MESSAGE_probe: on_probe(&call, &message->body.probe, message->from); break;
    case QR_MESSAGE_probe_done: on_probe_done(&call, &message->body.probe_done); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(&call, message->from); break;
    case QR_MESSAGE_peer_down: node_silent(&call, message->body.peer_down.node); break;
    case QR_MESSAGE_link_down:
        if (!QR_MUTANT(426)) node_gone(&call, message->body.link_down.node);
        break;
    case QR_MESSAGE_link_up: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
    fail_overdue(&call);
    sweep_cancels(&call);
    flush_all(&call);
    observe(&call);
    answer_life(&call);
}

/* ---- check and print
 * --------------------------------------------------------------------------------------------------------------------- */

static void worker_check(const void *block, const qr_given_t *given)
{
    const worker_t *self = block;
    uint32_t open = 0, running = 0, due = 0, requests[QR_WORKER_ROUTERS_MAX] = {0};
    uint64_t queued = 0, pages = 0;
    (void)given;
    for (uint32_t i = 0; i < self->records_max; i++) {
        const record_t *r = record_of(self, i);
        if (r->state == RECORD_FREE) continue;
        open++;
        running += r->state == RECORD_RUNNING;
        due += r->cancel == CANCEL_DUE;
        queued += r->prompt;
        pages += r->pages;
        requests[r->router]++;
        qr_assert(open_of(self)[r->place] == i);
        qr_assert(r->first <= r->acked && r->acked <= r->head && r->head - r->acked <= QR_WORKER_UNACKED_MAX); /* W2 */
        qr_assert(!r->in_ask || self->routers[r->router].ask_open);                                            /* W3 */
        qr_assert(r->cancel != CANCEL_DUE || r->state == RECORD_RUNNING);
    }
    qr_assert(open == self->open_count && running == self->running_count && due == self->cancels_due); /* W5 */
    qr_assert(queued == self->tokens_queued && pages == self->pages_promised);
    for (uint32_t i = 0; i < QR_WORKER_ROUTERS_MAX; i++) {
        qr_assert(self->routers[i].requests == requests[i]);
        qr_assert(self->routers[i].address || (!requests[i] && !self->routers[i].ask_open));
    }
}

static void print_number(qr_text_t *text, const char *name, uint64_t value)
{
    qr_text_put(text, name);
    qr_text_put_u64(text, value);
}

static void worker_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const worker_t *self = block;
    (void)given;
    print_number(text, "worker: state ", self->state);
    print_number(text, ", requests ", self->open_count);
    print_number(text, " of ", self->records_max);
    print_number(text, ", running ", self->running_count);
    print_number(text, ", tokens queued ", self->tokens_queued);
    print_number(text, ", pages promised ", self->pages_promised);
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < self->open_count; i++) {
        const record_t *r = record_of(self, open_of(self)[i]);
        print_number(text, "  request ", r->request_id);
        print_number(text, " attempt ", r->attempt);
        print_number(text, ": state ", r->state);
        print_number(text, ", acked ", r->acked);
        print_number(text, " of ", r->head);
        print_number(text, ", finish ", r->finish);
        qr_text_put(text, "\n");
    }
}

const qr_actor_class_t qr_worker_class = {
    .name = "worker",
    .role = QR_ROLE_worker,
    .max_out = MAX_OUT,
    .bytes = worker_bytes,
    .init = worker_init,
    .handle = worker_handle,
    .check = worker_check,
    .print = worker_print,
};
