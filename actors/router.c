/* router.c - owns where each request runs: ranks workers by predicted time to first token, offers, fences what is late, passes tokens
 * on, and offers a request again with all its tokens when its worker is lost.
 *
 *   gateway                    router                       worker (this node or another)
 *     place ------------------> | -- offer(attempt) --------> |
 *                               | <-- offer_accepted -------- |      refused or silent: offer_cancel, then the next candidate
 *     <------------- tokens --- | <-------------- tokens ---- |      all that is new since the last tokens_taken, window 1 each
 *     tokens_taken -----------> | -- tokens_taken ----------> |
 *     place_cancel -----------> | -- offer_cancel ----------> |
 *     <-- place_ended/refused - |
 *   heartbeat: observation, peer_down -> router;  host: link_down -> router
 *
 * A lost worker. A request is taken from its worker when the node is silent (fenced first: the worker may only be slow), its link is
 * down, the worker began anew or stopped, or it ends the request with an error that is its own failing:
 *     MEMORY IO BUSY SHORTFALL PEER_DOWN STALE DRAINING DEVICE IN_USE UNKNOWN NO_WORKER      offered again
 *     every other error (DEADLINE, NUMERIC, CONTEXT, NEVER_FITS, SLOW_CLIENT, PROTOCOL ...)   ends it: another worker would say the same
 * BUSY and SHORTFALL before the first token are no loss but a refusal that came late: the next candidate is asked, or the caller is told.
 * The next offer carries attempt + 1, the prompt and every token received so far, generated_from = the prompt's length, the first
 * max_tokens and what is left of the budget: sampling and stop positions go on where they were. It goes to the best other worker; to
 * the lost one only after something new was heard of it. Without a candidate it waits RETRY_WAIT_US, or until its budget is over. After
 * RETRIES_MAX losses, or when nobody was found, it ends with the error of the last loss. The gateway notices nothing of it. Usage
 * (cached_tokens, queue_us, prefill_us) is that of the attempt which began without generated tokens; a worker tells it with the end, so
 * it is 0 when that attempt did not live to tell it.
 *
 * R1. Every place is answered exactly once: place_refused while no token was received, else (or when it is cancelled) place_ended, and
 *     place_ended only after the gateway took every token.
 * R2. Tokens count only from the worker of the current attempt, under that attempt, at index == next; a gap or a repeat changes
 *     nothing and is answered with the index that is expected; a request left out of the answer is one the router does not want.
 * R3. A candidate is offered each request once; of a request that runs or has been lost, once more after each time that something new
 *     is heard of it.
 * R4. Open offers and cancels per worker stay below the window: cancels + requests that may still be cancelled < window holds at
 *     every offer, and only an offer raises it.
 * R5. The record of a request is its prompt and all its tokens [0, next), kept in blocks while it lives and nobody cancelled it. A
 *     prompt without room is refused BUSY; a running request whose next token has no room loses its record: it goes on, is noted, and
 *     ends with its worker. What is offered or waits has a record.
 * R6. The low 16 bits of a request id are its place in the gateway's table, and here too.
 * R7. Of workers only this node's heartbeat tells; probes come from this edge's gateway only.
 * R8. Only workers of one fingerprint are offered requests: this node's own if it computes, else the first one's, until none of the
 *     workers that are known has it any more.
 * R9. A request whose end is known (its last token ends it, or max_tokens are there) is never offered again: it ends so. */
#include "actors/router.h"

#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"

enum {
    WORKERS_MAX = QR_PARTNERS_MAX,
    PROBES_MAX = 16,
    UNDELIVERED_MAX = 64,        /* tokens of one request kept for the gateway; a worker keeps the rest */
    TOKENS_PER_MESSAGE = 8192,   /* tokens one message to the gateway carries at most */
    NO_WORKER_WAIT_US = 1000000, /* most time a request waits for a worker to be seen */
    FRESH_SILENCES = 2,          /* an observation older than so many times peer_down_ms does not count */
    RETRY_AFTER_MS = 1000,
    ARENA_TOKENS = 1 << 20,   /* tokens of all records kept at once; R5 says what happens at the bound */
    BLOCK_TOKENS = 64,        /* tokens of one block of a record */
    RETRIES_MAX = 4,          /* losses after which a request is offered again; the next one ends it */
    RETRY_WAIT_US = 2000000,  /* most time it waits for a worker after a loss: below the seconds in which a client must hear */
    PREFILL_ROW_NS = 1000000, /* assumed while a worker has measured nothing */
    STEP_US = 20000
};
#define NONE UINT32_MAX

/* A lost node re-offers every request at once: each record is copied at most once into one outbox. */
_Static_assert(4 * ARENA_TOKENS + QR_REQUESTS_MAX * 1024 <= QR_OUTBOX_BYTES, "all records fit one outbox");
_Static_assert(ARENA_TOKENS >= 2 * (QR_CONTEXT_MAX + BLOCK_TOKENS), "two whole contexts can be kept");

/* WAITING: no worker was ready, or the last one was lost. OFFERED: one has been asked. RUNNING: one has accepted. ENDING: nothing more
 * comes from a worker; tokens may still have to reach the gateway. */
enum { FREE, WAITING, OFFERED, RUNNING, ENDING, STATES };
static const uint8_t may_become[STATES] = {
    [FREE] = 1u << WAITING,
    [WAITING] = 1u << OFFERED | 1u << ENDING | 1u << FREE,
    [OFFERED] = 1u << WAITING | 1u << RUNNING | 1u << ENDING | 1u << FREE,
    [RUNNING] = 1u << WAITING | 1u << ENDING | 1u << FREE,
    [ENDING] = 1u << FREE,
};
static const char *const state_names[STATES] = {"free", "waiting", "offered", "running", "ending"};

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct worker {
    uint64_t address;         /* 0 = free entry */
    uint64_t epoch, sequence; /* of the newest observation */
    uint64_t observed_us;     /* when it was true, on this clock */
    uint64_t tokens_queued, prefill_row_ns, prefill_samples, step_us, step_samples;
    uint64_t rows_since; /* prompt rows offered since that observation */
    uint32_t known;      /* 1: an observation counts; 0: none yet, or its node went down */
    uint32_t state, requests_open, context_tokens;
    uint32_t offers_open, cancels_open, probes_open; /* credit */
    uint32_t live;                                   /* requests here that may still be cancelled */
    uint8_t fingerprint[32];                         /* of its model and numbers */
} worker_t;

typedef struct request {
    uint64_t id;           /* 0 = free */
    uint64_t tried;        /* bit w: worker w has been offered this request, and nothing new was heard of it (R3) */
    uint64_t by_us;        /* WAITING, OFFERED, cancelled while RUNNING: when to give up */
    uint64_t wait_by_us;   /* until when it may wait for a worker */
    uint64_t budget_by_us; /* deadline of the whole request; QR_NEVER_US = none */
    uint64_t seed, queue_us, prefill_us;
    uint32_t state, attempt, worker;
    uint32_t next;                         /* generated index expected from the worker */
    uint32_t count, sent;                  /* tokens kept for the gateway; of these on their way to it */
    uint32_t queued;                       /* 1: in the queue of requests with something for the gateway */
    uint32_t cancel_finish;                /* not 0: the gateway wants it ended so */
    uint32_t cancel_sent;                  /* 1: offer_cancel of this attempt is on its way */
    uint32_t finish, error, cached_tokens; /* of the end, once it is known */
    uint32_t reason, retry_after_ms;       /* the most telling refusal so far */
    uint32_t lost, retries;                /* error of the last loss, 0 = none; losses so far */
    uint32_t began_at;                     /* next when the current attempt was offered */
    uint32_t prompt_count;
    uint32_t kept_count, first_block, last_block; /* record; 0 tokens = none */
    uint32_t last_token, unused;                  /* last_token: of next tokens */
    uint32_t max_tokens, temperature_bits, top_p_bits, min_p_bits, top_k, priority;
    uint8_t logprobs, ignore_eos, tenant_salt_bytes, cache_salt_bytes;
    uint8_t tenant_salt[QR_SALT_BYTES_MAX], cache_salt[QR_SALT_BYTES_MAX];
    uint32_t tokens[UNDELIVERED_MAX], logprob_bits[UNDELIVERED_MAX];
} request_t;

typedef struct probe {
    uint64_t used, probe_id, tried; /* used: worker + 1; tried: bit w: worker w was asked */
} probe_t;

typedef struct router {
    uint64_t address, gateway;
    uint64_t requests_at, columns_at, links_at, blocks_at, scratch_at; /* offsets of what follows this struct */
    uint64_t epoch, drain_asker, drain_by_us;
    uint64_t offers, offers_refused, retries;
    probe_t probes[PROBES_MAX];
    worker_t workers[WORKERS_MAX];
    uint16_t queue[QR_REQUESTS_MAX];     /* ring of requests with something for the gateway */
    uint16_t in_flight[QR_REQUESTS_MAX]; /* requests of the open `tokens` question to the gateway */
    uint32_t worker_count, capacity, open, queue_head, queue_count, in_flight_count, asking; /* asking: that question is open */
    uint32_t block_count, blocks_free, free_block;                                           /* blocks of records; the first free one */
    uint32_t record_max; /* tokens of one record: a context and the last token, which needs no slot */
    uint32_t draining, unused;
    uint32_t pinned;         /* 1: this node computes; only its own fingerprint counts */
    uint8_t fingerprint[32]; /* R8 */
} router_t;

/* Columns of messages that are put together. Scratch: nothing in it outlives a call. */
typedef struct columns {
    uint64_t ids[QR_REQUESTS_MAX], queue_us[QR_REQUESTS_MAX], prefill_us[QR_REQUESTS_MAX];
    uint32_t attempts[QR_REQUESTS_MAX], indexes[QR_REQUESTS_MAX], counts[QR_REQUESTS_MAX], finishes[QR_REQUESTS_MAX];
    uint32_t errors[QR_REQUESTS_MAX], cached[QR_REQUESTS_MAX];
    uint32_t tokens[TOKENS_PER_MESSAGE], logprob_bits[TOKENS_PER_MESSAGE];
} columns_t;
#pragma GCC diagnostic pop

static request_t *request_at(const router_t *self, uint32_t index) { return (request_t *)((uintptr_t)self + self->requests_at) + index; }
static columns_t *columns_of(const router_t *self) { return (columns_t *)((uintptr_t)self + self->columns_at); }
static uint32_t *links_of(const router_t *self) { return (uint32_t *)((uintptr_t)self + self->links_at); }
static uint32_t *block_of(const router_t *self, uint32_t b) { return (uint32_t *)((uintptr_t)self + self->blocks_at) + b * BLOCK_TOKENS; }
static uint32_t *scratch_of(const router_t *self) { return (uint32_t *)((uintptr_t)self + self->scratch_at); }
static uint32_t index_of(const router_t *self, const request_t *r) { return (uint32_t)(r - request_at(self, 0)); }

static request_t *find(const router_t *self, uint64_t id)
{
    uint32_t index = (uint32_t)(id & 0xffff);
    if (id == 0 || index >= self->capacity || (request_at(self, index)->id != id && !QR_MUTANT(462))) return NULL;
    return request_at(self, index);
}

static uint32_t find_worker(const router_t *self, uint64_t address)
{
    for (uint32_t w = 0; w < self->worker_count; w++)
        if (self->workers[w].address == address) return w;
    return NONE;
}

static void turn(request_t *r, uint32_t state)
{
    qr_assert(may_become[r->state] >> state & 1u);
    r->state = state;
}

/* ---- records: prompt and tokens of a request, in a chain of blocks ------------------------------------------------------ */

static uint32_t blocks_for(uint64_t tokens) { return (uint32_t)qr_div_up(tokens, BLOCK_TOKENS); }

static bool record_fits(const router_t *self, const request_t *r, uint64_t count)
{
    uint64_t all = r->kept_count + count;
    return all <= self->record_max && blocks_for(all) - blocks_for(r->kept_count) <= self->blocks_free;
}

static void record_drop(router_t *self, request_t *r)
{
    if (r->kept_count == 0) return;
    links_of(self)[r->last_block] = self->free_block;
    self->free_block = r->first_block;
    self->blocks_free += blocks_for(r->kept_count);
    r->kept_count = r->first_block = r->last_block = 0;
}

/* Appends tokens; they fit. */
static void record_add(router_t *self, request_t *r, const uint32_t *tokens, uint64_t count)
{
    for (uint64_t done = 0; done < count;) {
        uint32_t at = r->kept_count % BLOCK_TOKENS, part = (uint32_t)qr_min_u64(count - done, BLOCK_TOKENS - at);
        if (at == 0) {
            uint32_t block = self->free_block;
            self->free_block = links_of(self)[block];
            self->blocks_free--;
            if (r->kept_count)
                links_of(self)[r->last_block] = block;
            else
                r->first_block = block;
            r->last_block = block;
        }
        memcpy(block_of(self, r->last_block) + at, tokens + done, 4 * (size_t)part);
        r->kept_count += part;
        done += part;
    }
}

/* The whole record side by side, in scratch. */
static qr_u32s_t record_read(const router_t *self, const request_t *r)
{
    uint32_t *to = scratch_of(self), block = r->first_block;
    for (uint32_t at = 0; at < r->kept_count; at += BLOCK_TOKENS, block = links_of(self)[block])
        memcpy(to + at, block_of(self, block), 4 * (size_t)qr_min_u32(BLOCK_TOKENS, r->kept_count - at));
    return (qr_u32s_t){to, r->kept_count};
}

/* Newly received tokens; without room for them the record is given up (R5). */
static void record_grow(router_t *self, request_t *r, const uint32_t *tokens, uint32_t count, qr_outbox_t *outbox)
{
    if (r->kept_count == 0) return;
    if (record_fits(self, r, count)) {
        record_add(self, r, tokens, count);
        return;
    }
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_not_kept, r->id, r->kept_count, count, self->blocks_free);
    record_drop(self, r);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static uint32_t capacity_of(const qr_given_t *given) { return (uint32_t)qr_min_u64(given->params.max_requests, QR_REQUESTS_MAX); }

static uint32_t record_max_of(const qr_given_t *given) { return given->layout.context_tokens + 1; }

static uint32_t block_count_of(const qr_given_t *given)
{
    return (uint32_t)qr_min_u64((uint64_t)capacity_of(given) * blocks_for(record_max_of(given)), ARENA_TOKENS / BLOCK_TOKENS);
}

/* Offsets of what follows the struct; returns the bytes of the whole block. `self` may be NULL. */
static uint64_t lay_out(router_t *self, const qr_given_t *given)
{
    uint64_t blocks = block_count_of(given);
    uint64_t requests = qr_round_up(sizeof(router_t), 64);
    uint64_t columns = requests + qr_round_up(capacity_of(given) * sizeof(request_t), 64);
    uint64_t links = columns + qr_round_up(sizeof(columns_t), 64);
    uint64_t tokens = links + qr_round_up(4 * blocks, 64);
    uint64_t scratch = tokens + 4 * blocks * BLOCK_TOKENS;
    if (self) {
        self->requests_at = requests;
        self->columns_at = columns;
        self->links_at = links;
        self->blocks_at = tokens;
        self->scratch_at = scratch;
    }
    return scratch + qr_round_up(4 * (uint64_t)record_max_of(given), 64);
}

static uint64_t router_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void router_init(void *block, const qr_given_t *given, uint64_t address)
{
    router_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->gateway = qr_address_partner(address, QR_ROLE_gateway);
    self->capacity = capacity_of(given);
    self->record_max = record_max_of(given);
    self->block_count = self->blocks_free = block_count_of(given);
    for (uint32_t b = 0; b < self->block_count; b++) links_of(self)[b] = b + 1;
    self->drain_by_us = QR_NEVER_US;
    memcpy(self->fingerprint, given->layout.fingerprint.bytes, sizeof self->fingerprint);
    for (size_t i = 0; i < sizeof self->fingerprint; i++) self->pinned |= self->fingerprint[i] != 0;
}

/* The entry of a worker, made if there is room; NONE otherwise. */
static uint32_t add_worker(router_t *self, uint64_t address)
{
    uint32_t w = find_worker(self, address);
    if (w != NONE || self->worker_count == WORKERS_MAX) return w;
    self->workers[self->worker_count] = (worker_t){.address = address};
    return self->worker_count++;
}

static void on_start(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->epoch = b->epoch;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_worker) (void)add_worker(self, b->partners.data[i]);
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->worker_count, 0);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

static void settle_drain(router_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->drain_asker || (self->open && now_us < self->drain_by_us)) return;
    qr_send(outbox, self->drain_asker, drained, &(qr_drained_t){.open_count = self->open});
    self->drain_asker = 0;
    self->drain_by_us = QR_NEVER_US;
}

/* ---- ends ---------------------------------------------------------------------------------------------------------------- */

/* The request is no longer at its worker in the sense of R4 (ended, refused, or its cancel is on its way). */
static void leave_worker(router_t *self, request_t *r)
{
    if (r->worker != NONE && !r->cancel_sent) self->workers[r->worker].live--;
    r->worker = NONE;
}

static void release(router_t *self, request_t *r)
{
    qr_assert(r->worker == NONE && !r->queued);
    turn(r, FREE);
    record_drop(self, r);
    memset(r, 0, sizeof *r);
    self->open--;
}

static void answer_ended(router_t *self, request_t *r, uint32_t finish, uint32_t error, qr_outbox_t *outbox)
{
    qr_place_ended_t body = {
        .request_id = r->id,
        .finish = finish,
        .error = error,
        .completion_tokens = r->next,
        .cached_tokens = r->cached_tokens,
        .queue_us = r->queue_us,
        .prefill_us = r->prefill_us,
    };
    qr_send(outbox, self->gateway, place_ended, &body);
    release(self, r);
}

static void answer_refused(router_t *self, request_t *r, uint32_t reason, uint32_t retry_after_ms, qr_outbox_t *outbox)
{
    qr_send(outbox, self->gateway, place_refused,
            &(qr_place_refused_t){.request_id = r->id, .reason = reason, .retry_after_ms = retry_after_ms});
    release(self, r);
}

/* Puts a request into the queue of those with something for the gateway. */
static void enqueue(router_t *self, request_t *r)
{
    if (r->queued || r->sent) return; /* after the answer it is looked at again */
    r->queued = 1;
    self->queue[(self->queue_head + self->queue_count++) % QR_REQUESTS_MAX] = (uint16_t)index_of(self, r);
}

/* Nothing is left for the gateway: the place is answered. */
static void settle_end(router_t *self, request_t *r, qr_outbox_t *outbox)
{
    if (r->state != ENDING || ((r->count || r->queued) && !QR_MUTANT(421))) return;
    if (r->finish == QR_FINISH_REFUSED && r->next == 0)
        answer_refused(self, r, r->error, r->error == QR_E_BUSY || r->error == QR_E_NO_WORKER ? RETRY_AFTER_MS : 0, outbox);
    else
        answer_ended(self, r, r->finish, r->error, outbox);
}

/* The worker's part is over. */
static void end(router_t *self, request_t *r, uint32_t finish, uint32_t error, qr_outbox_t *outbox)
{
    leave_worker(self, r);
    record_drop(self, r);
    turn(r, ENDING);
    r->finish = finish;
    r->error = error;
    settle_end(self, r, outbox);
}

/* ---- offers ---------------------------------------------------------------------------------------------------------------- */

static uint64_t multiply(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return product >> 64 ? UINT64_MAX : (uint64_t)product;
}
static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

/* Predicted time to first token in microseconds: the rows waiting there, the prompt's rows, one step. Saturates: observations come from
 * outside. */
static uint64_t score_us(const worker_t *w, uint64_t rows)
{
    uint64_t row_ns = w->prefill_samples ? w->prefill_row_ns : PREFILL_ROW_NS;
    uint64_t step_us = w->step_samples ? w->step_us : STEP_US;
    uint64_t all = add(add(w->tokens_queued, w->rows_since), rows);
    return add(multiply(all, row_ns) / 1000, step_us);
}

static bool is_alike(const router_t *self, const worker_t *w)
{
    return memcmp(w->fingerprint, self->fingerprint, sizeof self->fingerprint) == 0; /* R8 */
}

/* The fingerprint that counts, when a worker has just been seen. */
static void agree_on_fingerprint(router_t *self, const worker_t *seen)
{
    for (uint32_t i = 0; i < self->worker_count; i++)
        if (self->workers[i].known && is_alike(self, &self->workers[i])) return;
    if (!self->pinned) memcpy(self->fingerprint, seen->fingerprint, sizeof self->fingerprint);
}

/* Whether a worker may be asked at all: of the same fingerprint, and what is known of it is recent enough to act on. */
static bool is_fresh(const router_t *self, const qr_given_t *given, const worker_t *w, uint64_t now_us)
{
    return w->known && is_alike(self, w) &&
           now_us - qr_min_u64(w->observed_us, now_us) <= FRESH_SILENCES * given->params.peer_down_ms * 1000;
}

static bool may_offer(const worker_t *w, const request_t *r)
{
    return w->state == QR_STATE_READY && w->offers_open < QR_REQUESTS_MAX && w->cancels_open + w->live < QR_REQUESTS_MAX &&
           (w->context_tokens == 0 || r->kept_count <= w->context_tokens);
}

/* Smallest score, then fewest open requests, then smallest address; NONE without a candidate. */
static uint32_t choose(const router_t *self, const qr_given_t *given, const request_t *r, uint64_t now_us, uint64_t *ret_score_us)
{
    uint32_t best = NONE;
    uint64_t best_us = 0;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const worker_t *w = &self->workers[i];
        if ((r->tried >> i & 1u) || !is_fresh(self, given, w, now_us) || !may_offer(w, r)) continue;
        uint64_t us = score_us(w, r->kept_count);
        if (best != NONE) {
            const worker_t *b = &self->workers[best];
            if (us > best_us || (us == best_us && w->requests_open > b->requests_open)) continue;
            if (us == best_us && w->requests_open == b->requests_open && w->address > b->address) continue;
        }
        best = i;
        best_us = us;
    }
    *ret_score_us = best_us;
    return best;
}

static void offer(router_t *self, const qr_given_t *given, request_t *r, uint32_t index, uint64_t us, uint64_t now_us, qr_outbox_t *outbox)
{
    worker_t *w = &self->workers[index];
    turn(r, OFFERED);
    r->attempt += !(r->lost && QR_MUTANT(226));
    r->worker = index;
    r->tried |= 1ull << index;
    r->began_at = r->next;
    r->cancel_sent = 0;
    r->by_us = now_us + given->params.offer_timeout_ms * 1000;
    w->offers_open++;
    w->live++;
    w->rows_since = add(w->rows_since, r->kept_count);
    self->offers++;
    qr_offer_t body = {
        .request_id = r->id,
        .attempt = r->attempt,
        .generated_from = QR_MUTANT(224) ? r->kept_count : r->prompt_count,
        .tokens = record_read(self, r),
        .max_tokens = r->max_tokens,
        .temperature_bits = r->temperature_bits,
        .top_p_bits = r->top_p_bits,
        .min_p_bits = r->min_p_bits,
        .top_k = r->top_k,
        .seed = r->seed + (QR_MUTANT(418) ? r->retries : 0),
        .logprobs = r->logprobs,
        .ignore_eos = r->ignore_eos && !(QR_MUTANT(419) && r->lost),
        .tenant_salt = {r->tenant_salt, r->tenant_salt_bytes},
        .cache_salt = {r->cache_salt, r->cache_salt_bytes},
        .priority = r->priority,
        .budget_us = r->budget_by_us == QR_NEVER_US ? 0
                     : r->budget_by_us > now_us     ? r->budget_by_us - now_us
                                                    : 1,
    };
    if (r->next && QR_MUTANT(225)) body.tokens.count--;
    if (r->lost && QR_MUTANT(234)) body.budget_us = 0;
    qr_send(outbox, w->address, offer, &body);
    if (!QR_MUTANT(469)) qr_outbox_alarm(outbox, r->by_us);
    qr_outbox_note(outbox, QR_LEVEL_TRACE, QR_NOTE_offered, r->id, w->address, r->attempt, us);
}

/* Why no worker that was not tried yet can be offered this request; 0: waiting for one may help. */
static uint32_t why_none(const router_t *self, const qr_given_t *given, const request_t *r, uint64_t now_us)
{
    uint32_t draining = 0, reason = 0;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const worker_t *w = &self->workers[i];
        if (!is_fresh(self, given, w, now_us) || (r->tried >> i & 1u)) continue;
        draining += w->state == QR_STATE_DRAINING;
        if (w->state != QR_STATE_READY) continue;
        bool short_context = w->context_tokens && r->kept_count > w->context_tokens;
        if (reason != QR_E_BUSY) reason = short_context ? QR_E_CONTEXT : QR_E_BUSY;
    }
    return reason || draining == 0 || draining < self->worker_count ? reason : QR_E_DRAINING;
}

/* Ends a request that no worker took or will take again. */
static void give_up(router_t *self, request_t *r, uint32_t error, qr_outbox_t *outbox)
{
    bool later = error == QR_E_BUSY || error == QR_E_SHORTFALL || error == QR_E_NO_WORKER || error == QR_E_DRAINING;
    end(self, r, later && r->next == 0 ? QR_FINISH_REFUSED : QR_FINISH_ERROR, error, outbox);
}

/* No candidate: waits for one to be seen, if that may help and there is time. */
static bool wait_for_worker(request_t *r, uint32_t reason, uint64_t now_us, qr_outbox_t *outbox)
{
    bool may_help = r->lost || (reason == 0 && r->tried == 0);
    if (!may_help || now_us >= r->wait_by_us) return false;
    r->by_us = r->wait_by_us;
    if (!QR_MUTANT(465)) qr_outbox_alarm(outbox, r->by_us);
    return true;
}

/* The best candidate that was not asked yet, or the answer that there is none. WAITING before and, if it goes on waiting, after. */
static void offer_next(router_t *self, const qr_given_t *given, request_t *r, uint64_t now_us, qr_outbox_t *outbox)
{
    if (r->cancel_finish) {
        end(self, r, r->cancel_finish, 0, outbox);
        return;
    }
    if (r->lost && now_us >= r->budget_by_us) {
        give_up(self, r, QR_E_DEADLINE, outbox);
        return;
    }
    uint64_t us = 0;
    uint32_t index = choose(self, given, r, now_us, &us);
    if (index != NONE) {
        offer(self, given, r, index, us, now_us, outbox);
        return;
    }
    uint32_t reason = r->reason ? r->reason : why_none(self, given, r, now_us);
    if (wait_for_worker(r, reason, now_us, outbox)) return;
    if (reason == 0) reason = QR_E_NO_WORKER;
    if (r->lost) reason = r->lost;
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_refused, r->id, reason, r->attempt, 0);
    if (r->lost) {
        give_up(self, r, reason, outbox);
        return;
    }
    uint32_t retry = r->retry_after_ms ? r->retry_after_ms : reason == QR_E_BUSY || reason == QR_E_NO_WORKER ? RETRY_AFTER_MS : 0;
    answer_refused(self, r, reason, retry, outbox);
}

/* Remembers why a worker would not take it: BUSY tells most, then any reason but a worker that is leaving or gone. */
static void remember_refusal(request_t *r, uint32_t reason, uint32_t retry_after_ms)
{
    if (reason == QR_E_BUSY) r->retry_after_ms = r->retry_after_ms ? qr_min_u32(r->retry_after_ms, retry_after_ms) : retry_after_ms;
    bool weak = r->reason == 0 || r->reason == QR_E_NO_WORKER || r->reason == QR_E_DRAINING;
    if (reason == QR_E_BUSY || weak) r->reason = reason;
}

/* The open offer came to nothing. */
static void offer_lost(router_t *self, const qr_given_t *given, request_t *r, uint32_t reason, uint32_t retry_after_ms, uint64_t now_us,
                       qr_outbox_t *outbox)
{
    self->offers_refused++;
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_offer_lost, r->id, reason, self->workers[r->worker].address, r->attempt);
    leave_worker(self, r);
    remember_refusal(r, reason, retry_after_ms);
    if (reason == QR_E_NEVER_FITS && QR_MUTANT(523)) r->tried = UINT64_MAX;
    turn(r, WAITING);
    offer_next(self, given, r, now_us, outbox);
}

/* Asks the worker to end the current attempt; once per attempt. */
static void send_cancel(router_t *self, request_t *r, uint32_t finish, qr_outbox_t *outbox)
{
    if (r->cancel_sent || r->worker == NONE) return;
    worker_t *w = &self->workers[r->worker];
    qr_send(outbox, w->address, offer_cancel, &(qr_offer_cancel_t){.request_id = r->id, .attempt = r->attempt, .finish = finish});
    r->cancel_sent = 1;
    w->live--;
    w->cancels_open++;
}

/* ---- losses: see the head of this file --------------------------------------------------------------------------------------- */

/* Whether an error is the failing of the worker that tells it, so that another may do better. */
static bool is_workers_failing(uint32_t error)
{
    switch (error) {
    case QR_E_MEMORY:
    case QR_E_IO:
    case QR_E_BUSY:
    case QR_E_SHORTFALL:
    case QR_E_PEER_DOWN:
    case QR_E_STALE:
    case QR_E_DRAINING:
    case QR_E_DEVICE:
    case QR_E_IN_USE:
    case QR_E_UNKNOWN:
    case QR_E_NO_WORKER: return true;
    default: return QR_MUTANT(233);
    }
}

/* How the tokens received so far end a request; 0: they do not. The rule of the scheduler, which may not have lived to tell it. */
static uint32_t known_finish(const qr_given_t *given, const request_t *r)
{
    const qr_vocabulary_t *v = &given->vocabulary;
    if (r->next == 0) return 0;
    if (!r->ignore_eos && r->last_token < v->count && v->flags && (v->flags[r->last_token] & QR_TOKEN_END)) return QR_FINISH_STOP;
    return r->next == r->max_tokens ? QR_FINISH_LENGTH : 0;
}

/* Takes a request from its worker, which was fenced if it may still run it, and offers it to the next. */
static void lose(router_t *self, const qr_given_t *given, request_t *r, uint32_t error, uint64_t now_us, qr_outbox_t *outbox)
{
    uint32_t finish = QR_MUTANT(227) ? 0 : known_finish(given, r), worker = r->worker;
    if (r->cancel_finish || finish) {
        end(self, r, r->cancel_finish ? r->cancel_finish : finish, 0, outbox);
        return;
    }
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_worker_lost, r->id, error, self->workers[worker].address, r->attempt);
    if (r->kept_count == 0 || (r->retries == RETRIES_MAX && !QR_MUTANT(229))) {
        give_up(self, r, error, outbox);
        return;
    }
    self->retries++;
    r->retries++;
    r->lost = error;
    if (QR_MUTANT(228)) r->tried = 0;
    if (QR_MUTANT(237)) r->count = r->sent;
    r->wait_by_us = qr_min_u64(now_us + RETRY_WAIT_US, r->budget_by_us);
    leave_worker(self, r);
    turn(r, WAITING);
    offer_next(self, given, r, now_us, outbox);
}

/* ---- place --------------------------------------------------------------------------------------------------------------------- */

static uint32_t check_place(const router_t *self, const qr_given_t *given, const qr_place_t *b)
{
    uint32_t index = (uint32_t)(b->request_id & 0xffff);
    if (self->draining) return QR_E_DRAINING;
    if (b->request_id == 0 || index >= self->capacity) return QR_E_INVALID;
    if (request_at(self, index)->id) return QR_E_IN_USE;
    if (b->tokens.count == 0 || b->max_tokens == 0) return QR_E_INVALID;
    if (b->tokens.count > given->layout.context_tokens) return QR_E_CONTEXT;
    if (b->tenant_salt.count > QR_SALT_BYTES_MAX || b->cache_salt.count > QR_SALT_BYTES_MAX) return QR_E_LIMIT;
    return record_fits(self, request_at(self, index), b->tokens.count) ? 0 : QR_E_BUSY;
}

static void on_place(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_place_t *b = &message->body.place;
    uint32_t reason = check_place(self, given, b);
    if (reason) {
        qr_place_refused_t refused = {
            .request_id = b->request_id, .reason = reason, .retry_after_ms = reason == QR_E_BUSY ? RETRY_AFTER_MS : 0};
        qr_send(outbox, message->from, place_refused, &refused);
        return;
    }
    request_t *r = request_at(self, (uint32_t)(b->request_id & 0xffff));
    self->open++;
    r->id = b->request_id;
    r->worker = NONE;
    turn(r, WAITING);
    r->by_us = r->wait_by_us = message->now_us + NO_WORKER_WAIT_US;
    r->budget_by_us = b->budget_us ? add(message->now_us, b->budget_us) : QR_NEVER_US;
    r->seed = b->seed;
    r->max_tokens = b->max_tokens;
    r->temperature_bits = b->temperature_bits;
    r->top_p_bits = b->top_p_bits;
    r->min_p_bits = b->min_p_bits;
    r->top_k = b->top_k;
    r->priority = b->priority;
    r->logprobs = b->logprobs;
    r->ignore_eos = b->ignore_eos;
    r->tenant_salt_bytes = (uint8_t)b->tenant_salt.count;
    r->cache_salt_bytes = (uint8_t)b->cache_salt.count;
    qr_copy(r->tenant_salt, b->tenant_salt.data, b->tenant_salt.count);
    qr_copy(r->cache_salt, b->cache_salt.data, b->cache_salt.count);
    r->prompt_count = (uint32_t)b->tokens.count;
    record_add(self, r, b->tokens.data, b->tokens.count);
    offer_next(self, given, r, message->now_us, outbox);
}

static void on_place_cancel(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_place_cancel_t *b = &message->body.place_cancel;
    request_t *r = find(self, b->request_id);
    if (!r || r->cancel_finish) return; /* crossed its answer */
    r->cancel_finish = b->finish ? b->finish : QR_FINISH_CANCELLED;
    record_drop(self, r); /* it will not be offered again */
    if (r->state == RUNNING) {
        r->by_us = message->now_us + given->params.offer_timeout_ms * 1000;
        qr_outbox_alarm(outbox, r->by_us);
    }
    if (!r->sent && !r->queued) r->count = 0; /* nobody wants what is left */
    switch (r->state) {
    case WAITING: end(self, r, r->cancel_finish, 0, outbox); break;
    case OFFERED:
    case RUNNING:
        if (!QR_MUTANT(220)) send_cancel(self, r, r->cancel_finish, outbox);
        break;
    default: break;
    }
    settle_drain(self, message->now_us, outbox);
}

/* ---- answers of workers ------------------------------------------------------------------------------------------------------------ */

/* The request whose open offer a worker's answer names; NULL when it is late, and noted. */
static request_t *find_offered(router_t *self, uint64_t id, uint32_t attempt, uint32_t worker, uint16_t type, qr_outbox_t *outbox)
{
    request_t *r = find(self, id);
    if (r && r->attempt == attempt && r->worker == worker && r->state == OFFERED) return r;
    if (!r || r->attempt != attempt || r->worker != worker || r->state != RUNNING)
        qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_stale, id, type, attempt, r ? r->attempt : 0);
    return NULL;
}

static void accept(request_t *r)
{
    turn(r, RUNNING);
    if (!r->cancel_finish) r->by_us = QR_NEVER_US;
}

static void on_offer_accepted(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_offer_accepted_t *b = &message->body.offer_accepted;
    uint32_t w = find_worker(self, message->from);
    if (w == NONE) return;
    if (self->workers[w].offers_open) self->workers[w].offers_open--;
    request_t *r = find_offered(self, b->request_id, b->attempt, w, message->type, outbox);
    if (r) accept(r);
}

static void on_offer_refused(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_offer_refused_t *b = &message->body.offer_refused;
    uint32_t w = find_worker(self, message->from);
    if (w == NONE) return;
    if (self->workers[w].offers_open) self->workers[w].offers_open--;
    request_t *r = find_offered(self, b->request_id, b->attempt, w, message->type, outbox);
    if (r) offer_lost(self, given, r, b->reason ? b->reason : QR_E_BUSY, b->retry_after_ms, message->now_us, outbox);
    settle_drain(self, message->now_us, outbox);
}

static void on_offer_cancelled(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_offer_cancelled_t *b = &message->body.offer_cancelled;
    uint32_t w = find_worker(self, message->from);
    if (w == NONE) return;
    if (self->workers[w].cancels_open) self->workers[w].cancels_open--;
    request_t *r = find(self, b->request_id);
    if (!r || r->attempt != b->attempt || r->worker != w || b->reason == 0) return;         /* its end comes in `tokens` */
    if (r->state == RUNNING && r->cancel_finish) end(self, r, r->cancel_finish, 0, outbox); /* the worker knows nothing of it */
    settle_drain(self, message->now_us, outbox);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------------------
 */

static uint64_t sum(qr_u32s_t column)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < column.count; i++) total += column.data[i];
    return total;
}

static bool tokens_add_up(const qr_tokens_t *b)
{
    uint64_t n = b->request_ids.count;
    if (n > QR_REQUESTS_MAX || b->attempts.count != n || b->indexes.count != n || b->counts.count != n || b->finishes.count != n ||
        b->errors.count != n)
        return false;
    if ((b->cached_tokens.count && b->cached_tokens.count != n) || (b->queue_us.count && b->queue_us.count != n) ||
        (b->prefill_us.count && b->prefill_us.count != n))
        return false;
    return sum(b->counts) == b->tokens.count && b->tokens.count == b->logprob_bits.count && b->tokens.count <= UINT32_MAX;
}

/* New tokens of one entry into the request, as many as it has room for. */
static void keep_tokens(router_t *self, request_t *r, const uint32_t *tokens, const uint32_t *logprob_bits, uint32_t count,
                        qr_outbox_t *outbox)
{
    uint32_t fit = qr_min_u32(count, UNDELIVERED_MAX - r->count);
    if (r->cancel_finish)
        fit = count; /* counted, not kept */
    else {
        memcpy(r->tokens + r->count, tokens, 4 * (size_t)fit);
        memcpy(r->logprob_bits + r->count, logprob_bits, 4 * (size_t)fit);
        r->count += fit;
        record_grow(self, r, tokens, fit, outbox);
        if (fit) r->last_token = tokens[fit - 1];
    }
    r->next += fit;
}

/* The worker's part in a request is over, says the worker: the end of the request, or a loss. */
static void worker_ended(router_t *self, const qr_given_t *given, request_t *r, uint32_t finish, uint32_t error, uint64_t now_us,
                         qr_outbox_t *outbox)
{
    bool failed = finish == QR_FINISH_ERROR || finish == QR_FINISH_REFUSED;
    if (failed && r->next == 0 && !r->cancel_finish && (error == QR_E_BUSY || error == QR_E_SHORTFALL))
        offer_lost(self, given, r, error, RETRY_AFTER_MS, now_us, outbox); /* accepted, and then found no room: a refusal, not a loss */
    else if (failed && is_workers_failing(error))
        lose(self, given, r, error, now_us, outbox);
    else
        end(self, r, finish, error, outbox);
}

/* What a worker tells of an attempt's cost; of the attempt that began without generated tokens it counts. */
static void keep_usage(request_t *r, const qr_tokens_t *b, uint64_t i)
{
    if (r->began_at && !QR_MUTANT(235)) return;
    if (b->cached_tokens.count) r->cached_tokens = qr_min_u32(b->cached_tokens.data[i], r->prompt_count); /* another node says so */
    if (b->queue_us.count) r->queue_us = b->queue_us.data[i];
    if (b->prefill_us.count) r->prefill_us = b->prefill_us.data[i];
}

/* One entry of a worker's `tokens`. Returns the index to acknowledge; NONE: nothing of it is wanted any more. */
static uint32_t take_entry(router_t *self, const qr_given_t *given, const qr_tokens_t *b, uint64_t i, uint64_t at, uint32_t worker,
                           uint64_t now_us, qr_outbox_t *outbox)
{
    uint32_t index = b->indexes.data[i], count = b->counts.data[i], last = index + count;
    request_t *r = find(self, b->request_ids.data[i]);
    bool current = r && (r->state == OFFERED || r->state == RUNNING) && r->worker == worker;
    if (!current || (r->attempt != b->attempts.data[i] && !QR_MUTANT(221))) { /* R2 */
        qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_stale, b->request_ids.data[i], QR_MESSAGE_tokens, b->attempts.data[i],
                       r ? r->attempt : 0);
        return NONE;
    }
    if (r->state == OFFERED) accept(r); /* who sends tokens has accepted */
    if (index > r->next || last < index) return r->next;
    if (count > r->max_tokens - index) { /* more than was asked for; index <= next <= max_tokens */
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_protocol, r->id, QR_MESSAGE_tokens, last, r->max_tokens);
        send_cancel(self, r, QR_FINISH_CANCELLED, outbox);
        end(self, r, QR_FINISH_ERROR, QR_E_PROTOCOL, outbox);
        return NONE;
    }
    keep_usage(r, b, i);
    uint32_t skip = QR_MUTANT(222) ? 0 : r->next - index;
    if (skip < count) keep_tokens(self, r, b->tokens.data + at + skip, b->logprob_bits.data + at + skip, count - skip, outbox);
    uint32_t next = r->next;
    if (r->count) enqueue(self, r);
    if (b->finishes.data[i] && (next == last || QR_MUTANT(223)))
        worker_ended(self, given, r, b->finishes.data[i], b->errors.data[i], now_us, outbox);
    return QR_MUTANT(463) ? last : next;
}

/* Adds one request to the message that is put together. */
static void put_entry(router_t *self, request_t *r, uint32_t n, uint32_t *tokens)
{
    columns_t *c = columns_of(self);
    c->ids[n] = r->id;
    c->attempts[n] = r->attempt;
    c->indexes[n] = r->next - r->count;
    c->counts[n] = r->count;
    c->finishes[n] = r->state == ENDING ? r->finish : 0;
    c->errors[n] = r->state == ENDING ? r->error : 0;
    c->cached[n] = r->cached_tokens;
    c->queue_us[n] = r->queue_us;
    c->prefill_us[n] = r->prefill_us;
    memcpy(c->tokens + *tokens, r->tokens, 4 * (size_t)r->count);
    memcpy(c->logprob_bits + *tokens, r->logprob_bits, 4 * (size_t)r->count);
    *tokens += r->count;
    r->sent = r->count;
    self->in_flight[n] = (uint16_t)index_of(self, r);
}

/* Passes on what is queued, if the gateway owes no answer. */
static void deliver(router_t *self, qr_outbox_t *outbox)
{
    if (self->asking || self->queue_count == 0) return;
    uint32_t n = 0, tokens = 0;
    while (self->queue_count && tokens + UNDELIVERED_MAX <= TOKENS_PER_MESSAGE) {
        request_t *r = request_at(self, self->queue[self->queue_head]);
        self->queue_head = (self->queue_head + 1) % QR_REQUESTS_MAX;
        self->queue_count--;
        r->queued = 0;
        put_entry(self, r, n++, &tokens);
    }
    columns_t *c = columns_of(self);
    qr_tokens_t body = {
        .request_ids = {c->ids, n},
        .attempts = {c->attempts, n},
        .indexes = {c->indexes, n},
        .counts = {c->counts, n},
        .tokens = {c->tokens, tokens},
        .logprob_bits = {c->logprob_bits, tokens},
        .finishes = {c->finishes, n},
        .errors = {c->errors, n},
        .cached_tokens = {c->cached, n},
        .queue_us = {c->queue_us, n},
        .prefill_us = {c->prefill_us, n},
    };
    qr_send(outbox, self->gateway, tokens, &body);
    self->in_flight_count = n;
    self->asking = 1;
}

static void on_tokens(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_tokens_t *b = &message->body.tokens;
    columns_t *c = columns_of(self);
    uint64_t n = b->request_ids.count;
    uint32_t worker = find_worker(self, message->from);
    if (worker == NONE || !tokens_add_up(b)) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, message->type, message->from, n);
        n = 0;
    }
    uint64_t named = 0; /* what is left out of the answer the worker drops */
    for (uint64_t i = 0, at = 0; i < n; i++) {
        c->ids[named] = b->request_ids.data[i];
        c->attempts[named] = b->attempts.data[i];
        c->indexes[named] = take_entry(self, given, b, i, at, worker, message->now_us, outbox);
        named += c->indexes[named] != NONE;
        at += b->counts.data[i];
    }
    qr_tokens_taken_t taken = {.request_ids = {c->ids, named}, .attempts = {c->attempts, named}, .indexes = {c->indexes, named}};
    qr_send(outbox, message->from, tokens_taken, &taken);
    deliver(self, outbox);
    settle_drain(self, message->now_us, outbox);
}

static void on_tokens_taken(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_tokens_taken_t *b = &message->body.tokens_taken;
    self->asking = 0;
    for (uint32_t k = 0; k < self->in_flight_count; k++) {
        request_t *r = request_at(self, self->in_flight[k]);
        uint32_t first = r->next - r->count, taken = 0;
        bool named = k < b->request_ids.count && k < b->indexes.count && b->request_ids.data[k] == r->id;
        if (named && b->indexes.data[k] > first) taken = qr_min_u32(b->indexes.data[k] - first, r->sent);
        if (r->cancel_finish || (QR_MUTANT(420) && taken)) taken = r->count;
        r->count -= taken;
        r->sent = 0;
        memmove(r->tokens, r->tokens + taken, 4 * (size_t)r->count);
        memmove(r->logprob_bits, r->logprob_bits + taken, 4 * (size_t)r->count);
        if (r->count && !QR_MUTANT(423)) enqueue(self, r);
        settle_end(self, r, outbox);
    }
    self->in_flight_count = 0;
    deliver(self, outbox);
    settle_drain(self, message->now_us, outbox);
}

/* ---- probes
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Asks the best worker that was not asked yet; one whose credit is used up (by probes it has not answered since it was down) is passed
 * over. 0, or why none was asked. */
static uint32_t probe_next(router_t *self, const qr_given_t *given, uint32_t slot, uint64_t now_us, qr_outbox_t *outbox)
{
    probe_t *p = &self->probes[slot];
    request_t nobody = {.tried = p->tried};
    uint64_t us = 0;
    uint32_t index = choose(self, given, &nobody, now_us, &us), reason = QR_E_NO_WORKER;
    while (index != NONE && self->workers[index].probes_open == PROBES_MAX) {
        if (QR_MUTANT(833)) return QR_E_BUSY;
        reason = QR_E_BUSY;
        nobody.tried |= 1ull << index;
        index = choose(self, given, &nobody, now_us, &us);
    }
    if (index == NONE) return reason;
    p->used = (uint64_t)index + 1;
    p->tried = nobody.tried | 1ull << index;
    self->workers[index].probes_open++;
    qr_send(outbox, self->workers[index].address, probe, &(qr_probe_t){.probe_id = slot});
    return 0;
}

/* What this worker was asked goes to the next one: the edge is ready while one is. Its credit stays with the questions: link_down closes
 * them, or it answers after all. */
static void end_probes(router_t *self, const qr_given_t *given, uint32_t worker, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < PROBES_MAX; i++) {
        if (self->probes[i].used != (uint64_t)worker + 1 || QR_MUTANT(525)) continue;
        if (!QR_MUTANT(832) && probe_next(self, given, i, now_us, outbox) == 0) continue;
        qr_send(outbox, self->gateway, probe_done, &(qr_probe_done_t){.probe_id = self->probes[i].probe_id, .reason = QR_E_PEER_DOWN});
        self->probes[i] = (probe_t){0};
    }
}

static void on_probe(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_t *b = &message->body.probe;
    uint32_t slot = 0, reason = QR_E_BUSY;
    while (slot < PROBES_MAX && self->probes[slot].used) slot++;
    if (slot < PROBES_MAX && message->from == self->gateway) { /* what comes back goes to our gateway */
        self->probes[slot] = (probe_t){.probe_id = b->probe_id};
        reason = probe_next(self, given, slot, message->now_us, outbox);
    }
    if (reason) qr_send(outbox, message->from, probe_done, &(qr_probe_done_t){.probe_id = b->probe_id, .reason = reason});
}

/* This edge is ready while one of its workers is: a node that has just come, and is not, takes nobody's requests away. */
static void on_probe_done(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_done_t *b = &message->body.probe_done;
    uint32_t w = find_worker(self, message->from), slot = (uint32_t)qr_min_u64(b->probe_id, PROBES_MAX);
    if (w == NONE) return;
    if (self->workers[w].probes_open) self->workers[w].probes_open--;
    if (slot == PROBES_MAX || self->probes[slot].used != (uint64_t)w + 1) return; /* answered when the node went down */
    if (b->reason && !QR_MUTANT(818) && probe_next(self, given, slot, message->now_us, outbox) == 0) return;
    qr_send(outbox, self->gateway, probe_done, &(qr_probe_done_t){.probe_id = self->probes[slot].probe_id, .reason = b->reason});
    self->probes[slot] = (probe_t){0};
}

/* ---- health
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Everything at this worker is lost. `reachable`: it may still hear a cancel. */
static void lose_worker(router_t *self, const qr_given_t *given, uint32_t index, bool reachable, uint64_t now_us, qr_outbox_t *outbox)
{
    worker_t *w = &self->workers[index];
    w->known = 0;
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (r->state == FREE || r->worker != index) continue;
        if (reachable && !QR_MUTANT(236)) send_cancel(self, r, QR_FINISH_CANCELLED, outbox); /* first the fence, then the next */
        lose(self, given, r, r->state == OFFERED && r->next == 0 ? QR_E_NO_WORKER : QR_E_PEER_DOWN, now_us, outbox);
    }
}

/* Every worker of a node is lost: none of them is a candidate for what another one had. */
static void lose_node(router_t *self, const qr_given_t *given, uint32_t node, bool reachable, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t w = 0; w < self->worker_count; w++) {
            if (qr_address_node(self->workers[w].address) != node) continue;
            self->workers[w].known = 0;
            if (pass) lose_worker(self, given, w, reachable, now_us, outbox);
        }
}

static void on_observation(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_observation_t *b = &message->body.observation;
    if (qr_address_role(b->worker) != QR_ROLE_worker || qr_address_node(message->from) != qr_address_node(self->address)) { /* R7 */
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_protocol, 0, message->type, message->from, b->worker);
        return;
    }
    uint32_t index = add_worker(self, b->worker);
    if (index == NONE) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, QR_E_LIMIT, b->worker, WORKERS_MAX);
        return;
    }
    worker_t *w = &self->workers[index];
    if (b->worker_epoch == w->epoch && b->sequence < w->sequence) return; /* older than what is known */
    bool anew = b->worker_epoch != w->epoch, fresh = anew || b->sequence != w->sequence || !w->known;
    if (anew && w->epoch) lose_worker(self, given, index, false, message->now_us, outbox);                  /* it began anew */
    if (!anew && b->state == QR_STATE_DOWN) lose_worker(self, given, index, true, message->now_us, outbox); /* it stopped */
    if (anew || b->sequence != w->sequence) w->rows_since = 0;
    w->known = 1;
    w->epoch = b->worker_epoch;
    w->sequence = b->sequence;
    w->observed_us = message->now_us - qr_min_u64(b->age_us, message->now_us);
    w->state = b->state;
    w->requests_open = b->requests_open;
    w->tokens_queued = b->tokens_queued;
    w->context_tokens = b->context_tokens;
    w->prefill_row_ns = b->prefill_row_ns;
    w->prefill_samples = b->prefill_samples;
    w->step_us = b->step_us;
    w->step_samples = b->step_samples;
    memcpy(w->fingerprint, b->fingerprint.bytes, sizeof w->fingerprint);
    agree_on_fingerprint(self, w);
    if (!is_alike(self, w)) qr_outbox_note(outbox, QR_LEVEL_TRACE, QR_NOTE_other_model, 0, w->address, 0, 0);
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (fresh && !QR_MUTANT(238) && (r->lost || r->state == RUNNING) && r->worker != index) r->tried &= ~(1ull << index); /* R3 */
        if (r->state == WAITING) offer_next(self, given, r, message->now_us, outbox);
    }
    settle_drain(self, message->now_us, outbox);
}

static void on_peer_down(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_peer_down_t *b = &message->body.peer_down;
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_peer_down, 0, b->node, b->node_epoch, b->silence_us);
    if (!QR_MUTANT(464)) lose_node(self, given, b->node, true, message->now_us, outbox);
    for (uint32_t w = 0; w < self->worker_count; w++)
        if (qr_address_node(self->workers[w].address) == b->node) end_probes(self, given, w, message->now_us, outbox);
    deliver(self, outbox);
    settle_drain(self, message->now_us, outbox);
}

/* The host has closed every question towards that node. */
static void on_link_down(router_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (!QR_MUTANT(422)) lose_node(self, given, message->body.link_down.node, false, message->now_us, outbox);
    for (uint32_t i = 0; i < self->worker_count; i++) {
        worker_t *w = &self->workers[i];
        if (qr_address_node(w->address) != message->body.link_down.node) continue;
        end_probes(self, given, i, message->now_us, outbox);
        w->offers_open = w->cancels_open = w->probes_open = 0;
        w->epoch = w->sequence = 0;
    }
    deliver(self, outbox);
    settle_drain(self, message->now_us, outbox);
}

/* ---- time, drain, stop
 * -------------------------------------------------------------------------------------------------------------------- */

static void on_alarm(router_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        bool leaving = r->state == RUNNING && r->cancel_finish;
        if (r->state != WAITING && r->state != OFFERED && !leaving) continue;
        if (now_us < r->by_us) {
            qr_outbox_alarm(outbox, r->by_us);
            continue;
        }
        if (r->state == WAITING)
            offer_next(self, given, r, now_us, outbox);
        else if (leaving)
            end(self, r, r->cancel_finish, 0, outbox); /* the worker does not say so */
        else {
            send_cancel(self, r, QR_FINISH_CANCELLED, outbox); /* first the fence, then the next */
            offer_lost(self, given, r, QR_E_NO_WORKER, 0, now_us, outbox);
        }
    }
    settle_drain(self, now_us, outbox);
    qr_outbox_alarm(outbox, self->drain_by_us);
}

static void on_drain(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = 1;
    self->drain_asker = message->from;
    self->drain_by_us = message->now_us + qr_min_u64(message->body.drain.budget_us, QR_NEVER_US / 2);
    qr_outbox_alarm(outbox, self->drain_by_us);
    settle_drain(self, message->now_us, outbox);
}

static void on_stop(router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = 1;
    self->queue_count = self->in_flight_count = 0;
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (r->state == FREE) continue;
        send_cancel(self, r, QR_FINISH_CANCELLED, outbox);
        leave_worker(self, r);
        r->queued = r->sent = r->count = 0;
        answer_ended(self, r, r->cancel_finish ? r->cancel_finish : QR_FINISH_ERROR, r->cancel_finish ? 0 : QR_E_DRAINING, outbox);
    }
    settle_drain(self, message->now_us, outbox);
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

/* ---- metrics
 * ------------------------------------------------------------------------------------------------------------------------- */

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const router_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const uint32_t ids[] = {METRIC_offers_total, METRIC_offers_refused_total, METRIC_retries_total};
    const uint64_t values[] = {self->offers, self->offers_refused, self->retries};
    qr_send(outbox, message->from, metrics, &(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}});
}

/* ---- class
 * ------------------------------------------------------------------------------------------------------------------------------------ */

static void router_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    router_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, given, message->now_us, outbox); break;
    case QR_MESSAGE_place: on_place(self, given, message, outbox); break;
    case QR_MESSAGE_place_cancel: on_place_cancel(self, given, message, outbox); break;
    case QR_MESSAGE_offer_accepted: on_offer_accepted(self, message, outbox); break;
    case QR_MESSAGE_offer_refused: on_offer_refused(self, given, message, outbox); break;
    case QR_MESSAGE_offer_cancelled: on_offer_cancelled(self, message, outbox); break;
    case QR_MESSAGE_tokens: on_tokens(self, given, message, outbox); break;
    case QR_MESSAGE_tokens_taken: on_tokens_taken(self, message, outbox); break;
    case QR_MESSAGE_observation: on_observation(self, given, message, outbox); break;
    case QR_MESSAGE_peer_down: on_peer_down(self, given, message, outbox); break;
    case QR_MESSAGE_link_down: on_link_down(self, given, message, outbox); break;
    case QR_MESSAGE_link_up: break; /* the next observation says that it is of use */
    case QR_MESSAGE_probe: on_probe(self, given, message, outbox); break;
    case QR_MESSAGE_probe_done: on_probe_done(self, given, message, outbox); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

static void check_request(const router_t *self, const qr_given_t *given, const request_t *r, uint32_t index)
{
    qr_assert(r->state < STATES && (r->id & 0xffff) == index); /* R6 */
    qr_assert(r->count <= UNDELIVERED_MAX && r->sent <= r->count && r->count <= r->next && r->next <= r->max_tokens);
    qr_assert((r->state == OFFERED || r->state == RUNNING) == (r->worker != NONE));
    bool waits = r->state == WAITING || r->state == OFFERED;
    qr_assert(r->kept_count == 0 || r->kept_count == r->prompt_count + r->next);             /* R5 */
    qr_assert(r->kept_count == 0 || (r->state != ENDING && !r->cancel_finish));              /* R5 */
    qr_assert(!waits || r->cancel_finish || (r->kept_count && known_finish(given, r) == 0)); /* R5, R9 */
    qr_assert(r->retries <= RETRIES_MAX && (r->lost != 0) == (r->retries != 0) && r->began_at <= r->next);
    qr_assert(r->state != ENDING || r->count > 0); /* R1 */
    qr_assert(r->count == 0 || r->queued || r->sent || r->cancel_finish);
    qr_assert(r->worker == NONE || (self->workers[r->worker].address && (r->tried >> r->worker & 1u))); /* R3 */
}

static void check_records(const router_t *self)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        uint32_t block = r->first_block, last = block;
        for (uint32_t k = 0; k < blocks_for(r->kept_count); k++, block = links_of(self)[block]) {
            qr_assert(block < self->block_count);
            last = block;
        }
        qr_assert(last == r->last_block);
        used += blocks_for(r->kept_count);
    }
    qr_assert(used + self->blocks_free == self->block_count); /* R5 */
}

static void router_check(const void *block, const qr_given_t *given)
{
    const router_t *self = block;
    uint32_t open = 0, queued = 0, sent = 0, live[WORKERS_MAX] = {0};
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        if (r->state == FREE) {
            qr_assert(r->id == 0 && r->kept_count == 0 && !r->queued);
            continue;
        }
        open++;
        queued += r->queued;
        sent += r->sent > 0;
        if (r->worker != NONE && !r->cancel_sent) live[r->worker]++;
        check_request(self, given, r, i);
    }
    qr_assert(open == self->open && queued == self->queue_count);
    qr_assert(self->asking ? sent <= self->in_flight_count : sent == 0);
    for (uint32_t w = 0; w < self->worker_count; w++) {
        const worker_t *worker = &self->workers[w];
        qr_assert(worker->live == live[w] && worker->offers_open <= QR_REQUESTS_MAX &&
                  worker->cancels_open + worker->live <= QR_REQUESTS_MAX); /* R4 */
    }
    check_records(self);
}

static void router_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const router_t *self = block;
    qr_text_put(text, "router: ");
    qr_text_put_u64(text, self->open);
    qr_text_put(text, " open, ");
    qr_text_put_u64(text, self->worker_count);
    qr_text_put(text, " workers\n");
    for (uint32_t w = 0; w < self->worker_count; w++) {
        const worker_t *worker = &self->workers[w];
        qr_text_put(text, "  worker ");
        qr_text_put_u64(text, worker->address);
        qr_text_put(text, worker->known ? " seen, state " : " not seen, state ");
        qr_text_put_u64(text, worker->state);
        qr_text_put(text, ", live ");
        qr_text_put_u64(text, worker->live);
        qr_text_put(text, ", score us ");
        qr_text_put_u64(text, score_us(worker, 0));
        qr_text_put(text, "\n");
    }
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        if (r->state == FREE) continue;
        qr_text_put(text, "  request ");
        qr_text_put_u64(text, r->id);
        qr_text_put(text, " ");
        qr_text_put(text, state_names[r->state]);
        qr_text_put(text, ", attempt ");
        qr_text_put_u64(text, r->attempt);
        qr_text_put(text, ", next ");
        qr_text_put_u64(text, r->next);
        qr_text_put(text, ", losses ");
        qr_text_put_u64(text, r->retries);
        qr_text_put(text, "\n");
    }
}

const qr_actor_class_t qr_router_class = {
    .name = "router",
    .role = QR_ROLE_router,
    .max_out = 2 * QR_REQUESTS_MAX + PROBES_MAX + 8, /* peer_down: a cancel and an answer or offer for every request, and the probes */
    .bytes = router_bytes,
    .init = router_init,
    .handle = router_handle,
    .check = router_check,
    .print = router_print,
};
