/* gateway.c - owns every request of this node from its submission to its one answer: checks it, has its text encoded, applies the
 * rules of the context, draws its seed, places it, turns tokens into text, finds stop strings, keeps deadlines.
 *
 *   asker (http, prompt)          gateway                    text            router
 *     request_submit ---------------> | -- text_encode -------> |               |
 *                                     | <-- text_encoded ------ |               |
 *                                     | -- place ---------------------------->  |
 *     request_deltas <--------------- | <------------------------- tokens ----- |   (one request_deltas per tokens)
 *                                     | -- tokens_taken -------------------->   |
 *     request_cancel ---------------> | -- place_cancel --------------------->  |   (also: stop string, deadline)
 *     request_finished / _refused <-- | <------------------------- place_ended / place_refused
 *
 * Documented choices: prompt + max_tokens beyond the context is clamped to context - prompt; a prompt that fills the context gets one
 * token, because the last token drawn needs no slot. An unfinished character at the end becomes one U+FFFD.
 *
 * G1. Every request_submit is answered exactly once: by request_finished when a token was shown or nothing is wrong, else by
 *     request_refused.
 * G2. A request keeps its place in the table until every question asked for it (text_encode, place) is answered, so open questions
 *     never pass the table's size, which is at most the window.
 * G3. A request id is 24 bits of this gateway's epoch and a counter of 40 bits, whose low 16 are its place in the table. Never 0.
 * G4. Tokens are taken in order, each once: only index == taken is new. Nothing is shown after a stop string or an answer.
 * G5. free + open = capacity; encodes and places are the numbers of requests in the states that wait for them.
 * G6. What a tenant's quota counts as open (requests, pages) is the sum over its requests in the table. A request holds its place
 *     in `lanes` from its submission, its pages and tokens from its placing, all until G2 lets it go. */
#include "actors/gateway.h"

#include "actors/detokenize.h"
#include "actors/note.h"
#include "actors/quota.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/prng.h"

enum {
    PROBES_MAX = 16,
    TEXT_SCRATCH_MIN = 65536,  /* bytes of text one request_deltas carries at most, unless one token has more */
    TOKENS_SCRATCH = 8192,     /* tokens one request_deltas carries at most */
    MAX_TOKENS_DEFAULT = 1024, /* without max_tokens, if the context has so many left */
    USAGE_WAIT_US = 1000000,   /* after a stop string: most time to wait for the usage the router reports */
    RETRY_AFTER_MS = 1000
};

/* CLOSING: answered; waits for the router's answer. CLOSING_TEXT: answered; waits for text's. STOPPING: all text is out, the
 * finish is known, the router's answer brings the usage. */
enum { FREE, ENCODING, PLACED, STOPPING, CLOSING, CLOSING_TEXT, STATES };
static const uint8_t may_become[STATES] = {
    /* bit s: may become s */
    [FREE] = 1u << ENCODING | 1u << PLACED | 1u << FREE, /* FREE: refused before anything was asked */
    [ENCODING] = 1u << PLACED | 1u << CLOSING_TEXT | 1u << FREE,
    [PLACED] = 1u << STOPPING | 1u << CLOSING | 1u << FREE,
    [STOPPING] = 1u << CLOSING | 1u << FREE,
    [CLOSING] = 1u << FREE,
    [CLOSING_TEXT] = 1u << FREE,
};
static const char *const state_names[STATES] = {"free", "encoding", "placed", "stopping", "closing", "closing_text"};

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct request {
    uint64_t id;         /* 0 = free */
    uint64_t asker, key; /* who asked, under which name */
    uint64_t submitted_us, deadline_us;
    uint64_t usage_by_us;       /* STOPPING: when to answer without the router's numbers */
    uint64_t first_us, last_us; /* first and last token taken */
    uint64_t queue_us, prefill_us;
    uint64_t seed;
    uint32_t state, kind;
    uint32_t finish; /* STOPPING: what to answer */
    uint32_t prompt_tokens, max_tokens, taken, cached_tokens;
    uint32_t temperature_bits, top_p_bits, min_p_bits, top_k, priority;
    uint32_t next_free;               /* free list */
    uint32_t tenant;                  /* 0 = the one without quotas */
    uint32_t pages_held, tokens_held; /* taken of the tenant's quota */
    uint8_t logprobs, ignore_eos, echo, tenant_salt_bytes, cache_salt_bytes, unused[3];
    uint8_t tenant_salt[QR_SALT_BYTES_MAX], cache_salt[QR_SALT_BYTES_MAX];
    qr_detokenize_t detokenize;
} request_t;

typedef struct probe {
    uint64_t asker, probe_id; /* asker 0 = free */
} probe_t;

typedef struct gateway {
    uint64_t address, text, router;
    uint64_t requests_at, deltas_at, text_at, echo_at; /* offsets of what follows this struct */
    uint64_t text_capacity;
    uint64_t epoch, serial;
    uint64_t drain_asker, drain_by_us;
    uint64_t submitted, finished, refused, cancelled, failed, slow_clients, over_quota;
    qr_prng_t prng;
    probe_t probes[PROBES_MAX];
    uint32_t capacity, open, free_head, encodes, places;
    uint32_t draining, stopped;
    uint32_t echo_owner, echo_count; /* index + 1 of the request whose prompt ids are kept; 0 = none */
    uint32_t unused;
    qr_quota_t quotas[QR_TENANTS_MAX]; /* of tenant i + 1 */
} gateway_t;

/* What one request_deltas is put together in, and the answer to `tokens`. Scratch: empty between calls. */
typedef struct deltas {
    uint64_t keys[QR_REQUESTS_MAX];
    uint64_t taken_ids[QR_REQUESTS_MAX];
    uint32_t text_lengths[QR_REQUESTS_MAX], token_counts[QR_REQUESTS_MAX];
    uint32_t taken_attempts[QR_REQUESTS_MAX], taken_indexes[QR_REQUESTS_MAX];
    uint32_t tokens[TOKENS_SCRATCH], logprob_bits[TOKENS_SCRATCH];
    uint64_t asker, text_count;
    uint32_t count, token_count;
} deltas_t;
#pragma GCC diagnostic pop

static request_t *request_at(const gateway_t *self, uint32_t index) { return (request_t *)((uintptr_t)self + self->requests_at) + index; }
static deltas_t *deltas_of(const gateway_t *self) { return (deltas_t *)((uintptr_t)self + self->deltas_at); }
static uint8_t *text_of(const gateway_t *self) { return (uint8_t *)((uintptr_t)self + self->text_at); }
static uint32_t *echo_of(const gateway_t *self) { return (uint32_t *)((uintptr_t)self + self->echo_at); }

static uint32_t index_of(const gateway_t *self, const request_t *r) { return (uint32_t)(r - request_at(self, 0)); }

static bool answered(const request_t *r) { return r->state == FREE || r->state == CLOSING || r->state == CLOSING_TEXT; }

/* The request with this id, NULL when there is none any more. */
static request_t *find(const gateway_t *self, uint64_t id)
{
    uint32_t index = (uint32_t)(id & 0xffff);
    if (id == 0 || index >= self->capacity || request_at(self, index)->id != id) return NULL;
    return request_at(self, index);
}

/* The unanswered request of an asker by its key. */
static request_t *find_key(const gateway_t *self, uint64_t asker, uint64_t key)
{
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (r->asker == asker && r->key == key && !answered(r)) return r;
    }
    return NULL;
}

static void turn(gateway_t *self, request_t *r, uint32_t state)
{
    qr_assert(may_become[r->state] >> state & 1u);
    if (r->state == ENCODING || r->state == CLOSING_TEXT) self->encodes--;
    if (r->state == PLACED || r->state == STOPPING || r->state == CLOSING) self->places--;
    if (state == ENCODING || state == CLOSING_TEXT) self->encodes++;
    if (state == PLACED || state == STOPPING || state == CLOSING) self->places++;
    r->state = state;
}

static qr_quota_t *quota_of(gateway_t *self, const request_t *r) { return r->tenant ? &self->quotas[r->tenant - 1] : NULL; }

/* What it did not use of its tenant's tokens goes back with the rest. */
static void leave_quota(gateway_t *self, request_t *r)
{
    qr_quota_t *quota = quota_of(self, r);
    if (!quota) return;
    uint32_t used = qr_min_u32(r->prompt_tokens + r->taken, r->tokens_held);
    qr_quota_close(quota, QR_MUTANT(664) ? 0 : r->pages_held, QR_MUTANT(663) ? 0 : r->tokens_held - used);
    r->tenant = 0;
}

static void release(gateway_t *self, request_t *r)
{
    uint32_t index = index_of(self, r);
    leave_quota(self, r);
    turn(self, r, FREE);
    if (self->echo_owner == index + 1) self->echo_owner = self->echo_count = 0;
    memset(r, 0, sizeof *r);
    r->next_free = self->free_head;
    self->free_head = index;
    self->open--;
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static uint32_t longest_token(const qr_vocabulary_t *vocabulary)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) longest = qr_max_u32(longest, vocabulary->offsets[i + 1] - vocabulary->offsets[i]);
    return longest;
}

static uint64_t text_capacity(const qr_given_t *given)
{
    uint64_t need = QR_DETOKENIZE_ROOM(longest_token(&given->vocabulary)) + QR_DETOKENIZE_ROOM(0);
    return qr_round_up(qr_max_u64(need, TEXT_SCRATCH_MIN), 64);
}

static uint32_t capacity_of(const qr_given_t *given) { return (uint32_t)qr_min_u64(given->params.max_requests, QR_REQUESTS_MAX); }

static uint64_t gateway_bytes(const qr_given_t *given)
{
    return qr_round_up(sizeof(gateway_t), 64) + qr_round_up(capacity_of(given) * sizeof(request_t), 64) +
           qr_round_up(sizeof(deltas_t), 64) + text_capacity(given) + qr_round_up(4 * (uint64_t)given->layout.context_tokens, 64);
}

static void gateway_init(void *block, const qr_given_t *given, uint64_t address)
{
    gateway_t *self = block;
    self->address = address;
    self->text = qr_address_partner(address, QR_ROLE_text);
    self->router = qr_address_partner(address, QR_ROLE_router);
    self->capacity = capacity_of(given);
    self->text_capacity = text_capacity(given);
    self->requests_at = qr_round_up(sizeof *self, 64);
    self->deltas_at = self->requests_at + qr_round_up(self->capacity * sizeof(request_t), 64);
    self->text_at = self->deltas_at + qr_round_up(sizeof(deltas_t), 64);
    self->echo_at = self->text_at + self->text_capacity;
    self->drain_by_us = QR_NEVER_US;
    for (uint32_t i = 0; i < self->capacity; i++) request_at(self, i)->next_free = i + 1;
    qr_prng_init(&self->prng, given->params.seed);
}

static void on_start(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->epoch = message->body.start.epoch;
    qr_prng_init(&self->prng, message->body.start.seed);
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->capacity, 0);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

/* ---- answers --------------------------------------------------------------------------------------------------------- */

/* Sends the request_deltas that was put together, if there is one. */
static void flush_deltas(gateway_t *self, qr_outbox_t *outbox)
{
    deltas_t *d = deltas_of(self);
    if (d->count) {
        qr_request_deltas_t body = {
            .keys = {d->keys, d->count},
            .text_lengths = {d->text_lengths, d->count},
            .text = {text_of(self), d->text_count},
            .token_counts = {d->token_counts, d->count},
            .tokens = {d->tokens, d->token_count},
            .logprob_bits = {d->logprob_bits, d->token_count},
        };
        qr_send(outbox, d->asker, request_deltas, &body);
    }
    d->count = d->token_count = 0;
    d->text_count = d->asker = 0;
}

/* Opens the entry of a request; the caller adds tokens and text behind what stands. */
static void begin_entry(gateway_t *self, const request_t *r, qr_outbox_t *outbox)
{
    deltas_t *d = deltas_of(self);
    if (d->count && d->asker != r->asker) flush_deltas(self, outbox);
    d->asker = r->asker;
    d->keys[d->count] = r->key;
    d->text_lengths[d->count] = d->token_counts[d->count] = 0;
    d->count++;
}

static void add_text(gateway_t *self, uint64_t bytes)
{
    deltas_t *d = deltas_of(self);
    d->text_lengths[d->count - 1] += (uint32_t)bytes;
    d->text_count += bytes;
}

static uint8_t *text_end(gateway_t *self) { return text_of(self) + deltas_of(self)->text_count; }
static uint64_t text_room(gateway_t *self) { return self->text_capacity - deltas_of(self)->text_count; }

/* Gives out what the detokenizer held back, as a request_deltas of its own. */
static void flush_text(gateway_t *self, request_t *r, qr_outbox_t *outbox)
{
    begin_entry(self, r, outbox);
    uint64_t bytes = qr_detokenize_finish(&r->detokenize, text_end(self), text_room(self));
    add_text(self, bytes);
    if (bytes == 0) deltas_of(self)->count = 0;
    flush_deltas(self, outbox);
}

static void note_end(qr_outbox_t *outbox, const request_t *r, uint32_t finish, uint32_t error)
{
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_ended, r->id, finish, error, r->taken);
}

/* The one request_finished. The caller turns the state. */
static void answer_finished(gateway_t *self, request_t *r, uint32_t finish, uint32_t error, qr_outbox_t *outbox)
{
    qr_request_finished_t body = {
        .key = r->key,
        .finish = finish,
        .error = error,
        .prompt_tokens = r->prompt_tokens,
        .completion_tokens = r->taken,
        .cached_tokens = r->cached_tokens,
        .seed = r->seed,
        .queue_us = r->queue_us,
        .prefill_us = r->prefill_us,
        .decode_us = r->last_us - r->first_us,
    };
    if (self->echo_owner == index_of(self, r) + 1) body.prompt_ids = (qr_u32s_t){echo_of(self), self->echo_count};
    qr_send(outbox, r->asker, request_finished, &body);
    if (finish == QR_FINISH_CANCELLED)
        self->cancelled++;
    else if (finish == QR_FINISH_ERROR)
        self->failed++;
    else
        self->finished++;
    note_end(outbox, r, finish, error);
}

static void refuse(gateway_t *self, uint64_t asker, uint64_t key, uint32_t reason, const char *param, qr_bytes_t text,
                   uint32_t retry_after_ms, qr_outbox_t *outbox)
{
    qr_request_refused_t body = {
        .key = key,
        .reason = reason,
        .param = {(const uint8_t *)param, strlen(param)},
        .text = text,
        .retry_after_ms = retry_after_ms,
    };
    qr_send(outbox, asker, request_refused, &body);
    if (QR_MUTANT(521)) self->failed++;
    self->refused += !QR_MUTANT(521);
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_refused, key, reason, retry_after_ms, 0);
}

static void refuse_with(gateway_t *self, uint64_t asker, uint64_t key, uint32_t reason, const char *param, const char *sentence,
                        qr_outbox_t *outbox)
{
    uint32_t retry =
        reason == QR_E_QUOTA || reason == QR_E_BUSY || reason == QR_E_SHORTFALL || reason == QR_E_NO_WORKER || reason == QR_E_DRAINING
            ? RETRY_AFTER_MS
            : 0;
    refuse(self, asker, key, reason, param, (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)}, retry, outbox);
}

/* Ends an unanswered request with an error: finished if something was shown, refused otherwise. */
static void answer_error(gateway_t *self, request_t *r, uint32_t error, uint32_t retry_after_ms, qr_outbox_t *outbox)
{
    if (r->taken && !QR_MUTANT(429)) {
        flush_text(self, r, outbox);
        answer_finished(self, r, QR_FINISH_ERROR, error, outbox);
        return;
    }
    const char *sentence = qr_error_sentence((int)error);
    refuse(self, r->asker, r->key, error, "", (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)}, retry_after_ms, outbox);
    note_end(outbox, r, QR_FINISH_REFUSED, error);
}

/* After an answer that did not come from the router: lets go of the work. */
static void abandon(gateway_t *self, request_t *r, uint32_t finish, qr_outbox_t *outbox)
{
    if (r->state == ENCODING) {
        turn(self, r, CLOSING_TEXT);
        return;
    }
    if (r->state == PLACED && !QR_MUTANT(210))
        qr_send(outbox, self->router, place_cancel, &(qr_place_cancel_t){.request_id = r->id, .finish = finish});
    turn(self, r, CLOSING);
}

static void settle_drain(gateway_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->drain_asker || (self->open && now_us < self->drain_by_us)) return;
    qr_send(outbox, self->drain_asker, drained, &(qr_drained_t){.open_count = self->open});
    self->drain_asker = 0;
    self->drain_by_us = QR_NEVER_US;
}

/* ---- request_submit ---------------------------------------------------------------------------------------------------- */

/* A float's bits: not negative, and at most `most_bits` (0x7f7fffff: any finite one). Order of bits is order of values. */
static bool bits_within(uint32_t bits, uint32_t most_bits) { return bits <= most_bits; }

static uint64_t sum(qr_u32s_t column)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < column.count; i++) total += column.data[i];
    return total;
}

typedef struct fault {
    uint32_t reason;
    uint32_t unused;
    const char *param, *sentence;
} fault_t;

static fault_t fault(uint32_t reason, const char *param, const char *sentence) { return (fault_t){reason, 0, param, sentence}; }

static fault_t check_input(const qr_given_t *given, const qr_request_submit_t *b)
{
    if (b->kind == QR_INPUT_TOKENS) {
        if (b->tokens.count == 0) return fault(QR_E_INVALID, "prompt", "the prompt has no tokens");
        for (uint64_t i = 0; i < b->tokens.count; i++)
            if (b->tokens.data[i] >= given->vocabulary.count && !QR_MUTANT(211))
                return fault(QR_E_INVALID, "prompt", "a token id of the prompt is outside the vocabulary");
        return fault(0, "", "");
    }
    if (b->kind != QR_INPUT_TEXT && b->kind != QR_INPUT_CHAT) return fault(QR_E_INVALID, "prompt", "the kind of input is unknown");
    const char *param = b->kind == QR_INPUT_CHAT ? "messages" : "prompt";
    if (b->text.count > QR_TEXT_BYTES_MAX) return fault(QR_E_LIMIT, param, "the text is longer than this server takes");
    if (b->kind == QR_INPUT_TEXT) return fault(0, "", "");
    if (b->roles.count == 0) return fault(QR_E_INVALID, param, "there are no messages");
    if (b->roles.count > QR_CHAT_MESSAGES_MAX) return fault(QR_E_LIMIT, param, "there are more messages than this server takes");
    if (b->roles.count != b->lengths.count || sum(b->lengths) != b->text.count)
        return fault(QR_E_INVALID, param, "the messages do not add up");
    return fault(0, "", "");
}

/* A continuation goes with the input it must begin. */
static fault_t check_prefix(const qr_given_t *given, const qr_request_submit_t *b)
{
    if (b->prefix_tokens.count == 0)
        return fault(b->prefix_text.count ? QR_E_INVALID : 0, "continuation", "a text came without its tokens");
    if (b->prefix_tokens.count > given->layout.context_tokens) return fault(QR_E_CONTEXT, "continuation", qr_error_sentence(QR_E_CONTEXT));
    for (uint64_t i = 0; i < b->prefix_tokens.count; i++)
        if (b->prefix_tokens.data[i] >= given->vocabulary.count)
            return fault(QR_E_MISMATCH, "continuation", "a token id of the continuation is outside the vocabulary");
    if (b->kind != QR_INPUT_TOKENS) return fault(0, "", "");
    if (b->tokens.count < b->prefix_tokens.count ||
        (memcmp(b->tokens.data, b->prefix_tokens.data, 4 * b->prefix_tokens.count) != 0 && !QR_MUTANT(688)))
        return fault(QR_E_MISMATCH, "continuation", "the prompt does not begin with the token ids that the continuation holds");
    return fault(0, "", "");
}

static fault_t check_sampling(const qr_request_submit_t *b)
{
    const uint32_t one = 0x3f800000u, largest = 0x7f7fffffu;
    if (!bits_within(b->temperature_bits, largest))
        return fault(QR_E_INVALID, "temperature", "temperature must be a finite number, not below 0");
    if (!bits_within(b->top_p_bits, one)) return fault(QR_E_INVALID, "top_p", "top_p must be between 0 and 1");
    if (!bits_within(b->min_p_bits, one)) return fault(QR_E_INVALID, "min_p", "min_p must be between 0 and 1");
    if (b->tenant_salt.count > QR_SALT_BYTES_MAX) return fault(QR_E_LIMIT, "tenant_salt", "the salt is too long");
    if (b->cache_salt.count > QR_SALT_BYTES_MAX) return fault(QR_E_LIMIT, "cache_salt", "cache_salt is too long");
    return fault(0, "", "");
}

static qr_quota_limits_t limits_of(const qr_request_submit_t *b)
{
    return (qr_quota_limits_t){.lanes = b->tenant_lanes, .pages = b->tenant_pages, .tokens_per_s = b->tenant_tokens_per_s};
}

static fault_t check_tenant(const gateway_t *self, const qr_request_submit_t *b)
{
    qr_quota_limits_t limits = limits_of(b);
    if (b->tenant > QR_TENANTS_MAX) return fault(QR_E_INVALID, "tenant", "there is no such tenant");
    if (b->tenant && !qr_quota_may_open(&self->quotas[b->tenant - 1], &limits))
        return fault(QR_E_QUOTA, "", "as many requests run now as this key's tenant may have at once; ask again when one has ended");
    return fault(0, "", "");
}

static fault_t check_submit(const gateway_t *self, const qr_given_t *given, uint64_t asker, const qr_request_submit_t *b)
{
    if (self->draining) return fault(QR_E_DRAINING, "", qr_error_sentence(QR_E_DRAINING));
    if (self->open == self->capacity) return fault(QR_E_BUSY, "", qr_error_sentence(QR_E_BUSY));
    if (find_key(self, asker, b->key)) return fault(QR_E_IN_USE, "", "a request with this key is open");
    if (b->echo_prompt && qr_address_role(asker) != QR_ROLE_prompt) return fault(QR_E_INVALID, "echo", "prompt ids are not given out here");
    if (b->echo_prompt && self->echo_owner) return fault(QR_E_BUSY, "", qr_error_sentence(QR_E_BUSY));
    fault_t f = check_input(given, b);
    if (f.reason == 0) f = check_prefix(given, b);
    if (f.reason == 0) f = check_sampling(b);
    if (f.reason == 0) f = check_tenant(self, b);
    return f;
}

static request_t *take(gateway_t *self, const qr_given_t *given, const qr_message_t *message)
{
    const qr_request_submit_t *b = &message->body.request_submit;
    uint32_t index = self->free_head;
    request_t *r = request_at(self, index);
    self->free_head = r->next_free;
    self->open++;
    self->serial++;
    r->id = (self->epoch & 0xffffff) << 40 | (QR_MUTANT(415) ? 1 : self->serial % 0xffffff + 1) << 16 | index;
    r->asker = message->from;
    r->key = b->key;
    r->submitted_us = message->now_us;
    uint64_t budget_us = given->params.request_timeout_ms * 1000;
    if (b->budget_us && !QR_MUTANT(416)) budget_us = qr_min_u64(budget_us, b->budget_us);
    r->deadline_us = message->now_us + budget_us;
    r->usage_by_us = QR_NEVER_US;
    r->seed = b->seed_given ? b->seed : qr_prng_next(&self->prng);
    r->kind = b->kind;
    r->max_tokens = b->max_tokens;
    r->temperature_bits = b->temperature_bits;
    r->top_p_bits = b->top_p_bits;
    r->min_p_bits = b->min_p_bits;
    r->top_k = b->top_k;
    r->priority = b->priority;
    r->logprobs = b->logprobs;
    r->ignore_eos = b->ignore_eos;
    r->echo = b->echo_prompt;
    r->tenant_salt_bytes = (uint8_t)b->tenant_salt.count;
    r->cache_salt_bytes = (uint8_t)b->cache_salt.count;
    qr_copy(r->tenant_salt, b->tenant_salt.data, b->tenant_salt.count);
    qr_copy(r->cache_salt, b->cache_salt.data, b->cache_salt.count);
    if (r->echo) self->echo_owner = index + 1;
    r->tenant = b->tenant;
    qr_quota_limits_t limits = limits_of(b);
    if (r->tenant) qr_quota_open(quota_of(self, r), &limits);
    return r;
}

/* Refuses a request whose prompt cannot be placed; nothing was asked of the router. */
static void refuse_prompt(gateway_t *self, request_t *r, uint32_t reason, const char *sentence, qr_outbox_t *outbox)
{
    refuse_with(self, r->asker, r->key, reason, r->kind == QR_INPUT_CHAT ? "messages" : "prompt", sentence, outbox);
}

/* The most tokens to draw after a prompt of `prompt` tokens in a context of `context`, prompt <= context. */
static uint32_t tokens_allowed(uint32_t context, uint32_t prompt, uint32_t asked)
{
    uint32_t left = qr_max_u32(context - prompt + QR_MUTANT(413), 1); /* the last token drawn needs no slot */
    return qr_min_u32(left, asked ? asked : MAX_TOKENS_DEFAULT);
}

/* Takes what the request may need of its tenant's quota. false: it was refused. */
static bool take_quota(gateway_t *self, const qr_given_t *given, request_t *r, uint32_t prompt, uint64_t now_us, qr_outbox_t *outbox)
{
    static const char *const sentences[] = {
        [QR_QUOTA_PAGES] = "the open requests of this key's tenant may need all the pages it may have; ask again when one has ended",
        [QR_QUOTA_NEVER] = "this request may need more pages than this key's tenant may have; ask for fewer tokens",
        [QR_QUOTA_TOKENS] = "this key's tenant has used the tokens it may use a second; ask again later",
    };
    qr_quota_t *quota = quota_of(self, r);
    if (!quota) return true;
    uint32_t tokens = prompt + r->max_tokens, retry_ms;
    uint32_t pages = qr_quota_pages(&given->layout, tokens - 1, given->params.prefill_tile * QR_BATCHES_IN_FLIGHT);
    uint32_t verdict = qr_quota_take(quota, now_us, tokens, pages, &retry_ms);
    if (verdict == QR_QUOTA_FINE) {
        r->pages_held = pages;
        r->tokens_held = tokens;
        return true;
    }
    uint32_t reason = verdict == QR_QUOTA_NEVER ? QR_E_NEVER_FITS : QR_E_QUOTA;
    if (reason == QR_E_QUOTA) {
        self->over_quota++;
        if (!retry_ms) retry_ms = RETRY_AFTER_MS;
    }
    qr_bytes_t sentence = {(const uint8_t *)sentences[verdict], strlen(sentences[verdict])};
    refuse(self, r->asker, r->key, reason, "", sentence, retry_ms, outbox);
    return false;
}

static void place(gateway_t *self, request_t *r, qr_u32s_t tokens, uint64_t now_us, qr_outbox_t *outbox)
{
    r->prompt_tokens = (uint32_t)tokens.count;
    if (r->echo) {
        memcpy(echo_of(self), tokens.data, tokens.count * 4);
        self->echo_count = (uint32_t)tokens.count;
    }
    turn(self, r, PLACED);
    qr_place_t body = {
        .request_id = r->id,
        .tokens = tokens,
        .max_tokens = r->max_tokens,
        .temperature_bits = r->temperature_bits,
        .top_p_bits = r->top_p_bits,
        .min_p_bits = r->min_p_bits,
        .top_k = r->top_k,
        .seed = r->seed,
        .logprobs = r->logprobs,
        .ignore_eos = r->ignore_eos,
        .tenant_salt = {r->tenant_salt, r->tenant_salt_bytes},
        .cache_salt = {r->cache_salt, r->cache_salt_bytes},
        .priority = r->priority,
        .budget_us = r->deadline_us - qr_min_u64(now_us, r->deadline_us - 1),
    };
    qr_send(outbox, self->router, place, &body);
}

/* The prompt's ids are known: context rules, then place. Releases the request when it is refused. */
static void on_prompt(gateway_t *self, const qr_given_t *given, request_t *r, qr_u32s_t tokens, uint64_t now_us, qr_outbox_t *outbox)
{
    uint32_t context = given->layout.context_tokens;
    if (tokens.count == 0) {
        refuse_prompt(self, r, QR_E_INVALID, "the prompt has no tokens", outbox);
        release(self, r);
        return;
    }
    if (tokens.count > context) {
        char sentence[160];
        qr_text_t text;
        qr_text_init(&text, sentence, sizeof sentence);
        qr_text_put(&text, "the prompt has ");
        qr_text_put_u64(&text, tokens.count);
        qr_text_put(&text, " tokens, the context holds ");
        qr_text_put_u64(&text, context);
        refuse_prompt(self, r, QR_E_CONTEXT, sentence, outbox);
        release(self, r);
        return;
    }
    r->max_tokens = QR_MUTANT(212) && r->max_tokens ? r->max_tokens : tokens_allowed(context, (uint32_t)tokens.count, r->max_tokens);
    if (take_quota(self, given, r, (uint32_t)tokens.count, now_us, outbox))
        place(self, r, tokens, now_us, outbox);
    else
        release(self, r);
}

static void on_request_submit(gateway_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_submit_t *b = &message->body.request_submit;
    self->submitted++;
    fault_t f = check_submit(self, given, message->from, b);
    if (f.reason) {
        self->over_quota += f.reason == QR_E_QUOTA;
        refuse_with(self, message->from, b->key, f.reason, f.param, f.sentence, outbox);
        return;
    }
    request_t *r = request_at(self, self->free_head);
    int code = qr_detokenize_init(&r->detokenize, b->stop, b->stop_lengths);
    if (code) {
        refuse_with(self, message->from, b->key, (uint32_t)-code, "stop", "stop must be at most 16 strings of 1 to 256 bytes", outbox);
        return;
    }
    r = take(self, given, message);
    qr_outbox_alarm(outbox, r->deadline_us);
    if (b->kind == QR_INPUT_TOKENS) {
        on_prompt(self, given, r, b->tokens, message->now_us, outbox);
        return;
    }
    turn(self, r, ENCODING);
    qr_text_encode_t ask = {
        .request_id = r->id, .kind = QR_MUTANT(527) ? QR_INPUT_TEXT : b->kind, .text = b->text, .roles = b->roles, .lengths = b->lengths};
    ask.prefix_text = b->prefix_text;
    ask.prefix_tokens = b->prefix_tokens;
    qr_send(outbox, self->text, text_encode, &ask);
}

static void on_text_encoded(gateway_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_encoded_t *b = &message->body.text_encoded;
    request_t *r = find(self, b->request_id);
    if (!r || (r->state != ENCODING && r->state != CLOSING_TEXT)) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, b->request_id, message->type, 0, 0);
        return;
    }
    if (r->state == CLOSING_TEXT)
        release(self, r);
    else
        on_prompt(self, given, r, b->tokens, message->now_us, outbox);
    settle_drain(self, message->now_us, outbox);
}

static void on_text_refused(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_refused_t *b = &message->body.text_refused;
    request_t *r = find(self, b->request_id);
    if (!r || (r->state != ENCODING && r->state != CLOSING_TEXT)) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, b->request_id, message->type, 0, 0);
        return;
    }
    if (r->state == ENCODING) {
        qr_request_refused_t body = {.key = r->key, .reason = b->reason, .param = b->param, .text = b->text};
        qr_send(outbox, r->asker, request_refused, &body);
        self->refused++;
        note_end(outbox, r, QR_FINISH_REFUSED, b->reason);
    }
    release(self, r);
    settle_drain(self, message->now_us, outbox);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------ */

/* Takes new tokens of one entry while scratch has room. true when a stop string ended the text. */
static bool take_tokens(gateway_t *self, const qr_given_t *given, request_t *r, const uint32_t *tokens, const uint32_t *logprob_bits,
                        uint32_t count, uint64_t now_us)
{
    deltas_t *d = deltas_of(self);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t room = QR_DETOKENIZE_ROOM(qr_detokenize_bytes(&given->vocabulary, tokens[i])) + QR_DETOKENIZE_ROOM(0);
        if (d->token_count == TOKENS_SCRATCH || text_room(self) < room) return false;
        d->tokens[d->token_count] = tokens[i];
        d->logprob_bits[d->token_count] = logprob_bits ? logprob_bits[i] : 0;
        d->token_count++;
        d->token_counts[d->count - 1]++;
        if (r->taken == 0) r->first_us = now_us;
        r->last_us = now_us;
        r->taken++;
        add_text(self, qr_detokenize_token(&r->detokenize, &given->vocabulary, tokens[i], text_end(self), text_room(self)));
        if (r->detokenize.stopped && !QR_MUTANT(213)) return true;
    }
    return false;
}

/* A stop string ended the text: the rest is the router's to end; its answer brings the usage. */
static void stop_text(gateway_t *self, request_t *r, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_send(outbox, self->router, place_cancel, &(qr_place_cancel_t){.request_id = r->id, .finish = QR_FINISH_STOP});
    r->finish = QR_FINISH_STOP;
    r->usage_by_us = now_us + USAGE_WAIT_US;
    qr_outbox_alarm(outbox, r->usage_by_us);
    turn(self, r, STOPPING);
}

/* One entry of `tokens`. Returns the index to acknowledge. */
static uint32_t take_entry(gateway_t *self, const qr_given_t *given, const qr_tokens_t *b, uint64_t i, uint64_t at, uint64_t now_us,
                           qr_outbox_t *outbox)
{
    uint32_t index = b->indexes.data[i], count = b->counts.data[i], end = index + count;
    request_t *r = find(self, b->request_ids.data[i]);
    if (!r || r->state != PLACED) return end; /* answered already, or unknown: nothing of it is wanted */
    if (index > r->taken && !QR_MUTANT(214)) return r->taken;
    uint32_t skip = QR_MUTANT(215) ? 0 : r->taken - index; /* shown already */
    if (skip < count) {
        begin_entry(self, r, outbox);
        const uint32_t *logprob_bits = b->logprob_bits.count ? b->logprob_bits.data + at + skip : NULL;
        if (take_tokens(self, given, r, b->tokens.data + at + skip, logprob_bits, count - skip, now_us)) {
            stop_text(self, r, now_us, outbox);
            return end;
        }
        if (r->taken == end && b->finishes.data[i]) add_text(self, qr_detokenize_finish(&r->detokenize, text_end(self), text_room(self)));
    }
    return qr_max_u32(r->taken, index);
}

static bool tokens_add_up(const qr_tokens_t *b)
{
    uint64_t n = b->request_ids.count;
    return n <= QR_REQUESTS_MAX && b->attempts.count == n && b->indexes.count == n && b->counts.count == n && b->finishes.count == n &&
           sum(b->counts) == b->tokens.count && (b->logprob_bits.count == 0 || b->logprob_bits.count == b->tokens.count);
}

static void on_tokens(gateway_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_tokens_t *b = &message->body.tokens;
    deltas_t *d = deltas_of(self);
    uint64_t n = b->request_ids.count;
    if (message->from != self->router || !tokens_add_up(b)) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, message->type, n, message->from);
        n = 0;
    }
    for (uint64_t i = 0, at = 0; i < n; i++) {
        d->taken_ids[i] = b->request_ids.data[i];
        d->taken_attempts[i] = b->attempts.data[i];
        d->taken_indexes[i] = take_entry(self, given, b, i, at, message->now_us, outbox);
        at += b->counts.data[i];
    }
    flush_deltas(self, outbox);
    qr_tokens_taken_t taken = {.request_ids = {d->taken_ids, n}, .attempts = {d->taken_attempts, n}, .indexes = {d->taken_indexes, n}};
    qr_send(outbox, message->from, tokens_taken, &taken);
}

/* ---- ends --------------------------------------------------------------------------------------------------------------- */

static void on_place_ended(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_place_ended_t *b = &message->body.place_ended;
    request_t *r = find(self, b->request_id);
    if (!r || (r->state != PLACED && r->state != STOPPING && r->state != CLOSING)) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, b->request_id, message->type, 0, 0);
        return;
    }
    r->cached_tokens = b->cached_tokens;
    r->queue_us = b->queue_us;
    r->prefill_us = b->prefill_us;
    if (r->state == STOPPING) answer_finished(self, r, r->finish, 0, outbox);
    if (r->state == PLACED || QR_MUTANT(414)) {
        if (b->finish == QR_FINISH_ERROR || b->finish == QR_FINISH_REFUSED)
            answer_error(self, r, b->error, 0, outbox);
        else {
            flush_text(self, r, outbox);
            uint32_t finish = r->detokenize.stopped ? QR_FINISH_STOP : b->finish;
            answer_finished(self, r, finish, 0, outbox);
        }
    }
    release(self, r);
    settle_drain(self, message->now_us, outbox);
}

static void on_place_refused(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_place_refused_t *b = &message->body.place_refused;
    request_t *r = find(self, b->request_id);
    if (!r || (r->state != PLACED && r->state != STOPPING && r->state != CLOSING)) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, b->request_id, message->type, 0, 0);
        return;
    }
    if (r->state == STOPPING) answer_finished(self, r, r->finish, 0, outbox);
    if (r->state == PLACED) {
        bool later = b->reason == QR_E_BUSY || b->reason == QR_E_SHORTFALL || b->reason == QR_E_NO_WORKER || b->reason == QR_E_DRAINING;
        answer_error(self, r, b->reason, b->retry_after_ms ? b->retry_after_ms : later ? RETRY_AFTER_MS : 0, outbox);
    }
    if (r->taken == 0) r->prompt_tokens = 0; /* nothing of it ran: its tenant used nothing */
    release(self, r);
    settle_drain(self, message->now_us, outbox);
}

static void on_request_cancel(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_cancel_t *b = &message->body.request_cancel;
    request_t *r = find_key(self, message->from, b->key);
    if (!r) return; /* crossed its answer */
    if (b->reason == QR_E_SLOW_CLIENT) {
        self->slow_clients++;
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_slow_client, r->id, r->key, 0, 0);
    }
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_cancelled, r->id, QR_FINISH_CANCELLED, r->state, r->taken);
    answer_finished(self, r, QR_FINISH_CANCELLED, QR_MUTANT(522) ? QR_E_CANCELLED : b->reason, outbox);
    abandon(self, r, QR_FINISH_CANCELLED, outbox);
}

/* ---- time, drain, stop --------------------------------------------------------------------------------------------------- */

static void on_alarm(gateway_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    uint64_t next_us = QR_NEVER_US;
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (answered(r)) continue;
        if (r->state == STOPPING) {
            if (now_us >= r->usage_by_us) {
                answer_finished(self, r, r->finish, 0, outbox);
                turn(self, r, CLOSING);
            } else
                next_us = qr_min_u64(next_us, r->usage_by_us);
        } else if (now_us >= r->deadline_us && !QR_MUTANT(216)) {
            answer_error(self, r, QR_E_DEADLINE, 0, outbox);
            abandon(self, r, QR_FINISH_CANCELLED, outbox);
        } else
            next_us = qr_min_u64(next_us, r->deadline_us);
    }
    settle_drain(self, now_us, outbox);
    outbox->alarm_us = qr_min_u64(next_us, self->drain_by_us);
}

static void on_drain(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = 1;
    self->drain_asker = message->from;
    self->drain_by_us = message->now_us + qr_min_u64(message->body.drain.budget_us, QR_NEVER_US / 2);
    qr_outbox_alarm(outbox, self->drain_by_us);
    settle_drain(self, message->now_us, outbox);
}

static void on_stop(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = self->stopped = 1;
    for (uint32_t i = 0; i < self->capacity; i++) {
        request_t *r = request_at(self, i);
        if (answered(r)) continue;
        if (r->state == STOPPING) {
            answer_finished(self, r, r->finish, 0, outbox);
            turn(self, r, CLOSING);
            continue;
        }
        answer_error(self, r, QR_E_DRAINING, 0, outbox);
        abandon(self, r, QR_FINISH_CANCELLED, outbox);
    }
    self->drain_by_us = message->now_us; /* a drain that is still open is over */
    settle_drain(self, message->now_us, outbox);
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

/* ---- probe, metrics -------------------------------------------------------------------------------------------------------- */

static void on_probe(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_t *b = &message->body.probe;
    for (uint32_t i = 0; i < PROBES_MAX && !self->draining; i++) {
        probe_t *probe = &self->probes[i];
        if (probe->asker) continue;
        *probe = (probe_t){message->from, b->probe_id};
        qr_send(outbox, self->router, probe, &(qr_probe_t){.probe_id = i});
        return;
    }
    uint32_t reason = self->draining ? QR_E_DRAINING : QR_E_BUSY;
    qr_send(outbox, message->from, probe_done, &(qr_probe_done_t){.probe_id = b->probe_id, .reason = reason});
}

static void on_probe_done(gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_done_t *b = &message->body.probe_done;
    if (b->probe_id >= PROBES_MAX || !self->probes[b->probe_id].asker) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, b->probe_id, 0);
        return;
    }
    probe_t *probe = &self->probes[b->probe_id];
    qr_send(outbox, probe->asker, probe_done,
            &(qr_probe_done_t){.probe_id = QR_MUTANT(520) ? b->probe_id : probe->probe_id, .reason = b->reason});
    *probe = (probe_t){0};
}

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const gateway_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const uint32_t ids[] = {METRIC_requests_submitted_total, METRIC_requests_finished_total,  METRIC_requests_refused_total,
                            METRIC_requests_cancelled_total, METRIC_requests_failed_total,    METRIC_requests_open,
                            METRIC_slow_clients_total,       METRIC_requests_over_quota_total};
    const uint64_t values[] = {self->submitted, self->finished, self->refused,      self->cancelled,
                               self->failed,    self->open,     self->slow_clients, self->over_quota};
    qr_metrics_t body = {.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}};
    qr_send(outbox, message->from, metrics, &body);
}

/* ---- class ------------------------------------------------------------------------------------------------------------------ */

static void gateway_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    gateway_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, message->now_us, outbox); break;
    case QR_MESSAGE_request_submit: on_request_submit(self, given, message, outbox); break;
    case QR_MESSAGE_request_cancel: on_request_cancel(self, message, outbox); break;
    case QR_MESSAGE_text_encoded: on_text_encoded(self, given, message, outbox); break;
    case QR_MESSAGE_text_refused: on_text_refused(self, message, outbox); break;
    case QR_MESSAGE_tokens: on_tokens(self, given, message, outbox); break;
    case QR_MESSAGE_place_ended: on_place_ended(self, message, outbox); break;
    case QR_MESSAGE_place_refused: on_place_refused(self, message, outbox); break;
    case QR_MESSAGE_probe: on_probe(self, message, outbox); break;
    case QR_MESSAGE_probe_done: on_probe_done(self, message, outbox); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break; /* its partners are on this node */
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

static void check_request(const qr_given_t *given, const request_t *r, uint32_t index)
{
    qr_assert(r->state < STATES && (r->id & 0xffff) == index); /* G3 */
    qr_assert(r->asker && r->detokenize.held_count <= QR_DETOKENIZE_HELD_MAX && r->detokenize.pending_count <= 3);
    if (r->state == PLACED || r->state == STOPPING)
        qr_assert(r->prompt_tokens && r->max_tokens && r->prompt_tokens + r->max_tokens <= given->layout.context_tokens + 1);
    qr_assert((r->state == STOPPING) == (r->usage_by_us != QR_NEVER_US) || r->state == CLOSING);
}

/* G6 */
static void check_quotas(const gateway_t *self)
{
    uint32_t open[QR_TENANTS_MAX + 1] = {0}, pages[QR_TENANTS_MAX + 1] = {0};
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        if (r->state == FREE) continue;
        qr_assert(r->tenant <= QR_TENANTS_MAX);
        open[r->tenant]++;
        pages[r->tenant] += r->pages_held;
    }
    for (uint32_t t = 1; t <= QR_TENANTS_MAX; t++)
        qr_assert(self->quotas[t - 1].open == open[t] && (self->quotas[t - 1].pages == pages[t] || QR_MUTANT(664)));
}

static void gateway_check(const void *block, const qr_given_t *given)
{
    const gateway_t *self = block;
    uint32_t open = 0, encodes = 0, places = 0, free_count = 0;
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        if (r->state == FREE) {
            qr_assert(r->id == 0);
            continue;
        }
        open++;
        encodes += r->state == ENCODING || r->state == CLOSING_TEXT;
        places += r->state == PLACED || r->state == STOPPING || r->state == CLOSING;
        check_request(given, r, i);
    }
    for (uint32_t i = self->free_head; i < self->capacity; i = request_at(self, i)->next_free) free_count++;
    qr_assert(open == self->open && encodes == self->encodes && places == self->places); /* G2, G5 */
    qr_assert(free_count + open == self->capacity && encodes + places == open);          /* G5 */
    check_quotas(self);
    const deltas_t *d = deltas_of(self);
    qr_assert(d->count == 0 && d->token_count == 0 && d->text_count == 0);
    qr_assert(self->echo_owner == 0 || request_at(self, self->echo_owner - 1)->echo);
}

static void gateway_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const gateway_t *self = block;
    qr_text_put(text, "gateway: ");
    qr_text_put_u64(text, self->open);
    qr_text_put(text, " of ");
    qr_text_put_u64(text, self->capacity);
    qr_text_put(text, self->draining ? " open, draining\n" : " open\n");
    for (uint32_t i = 0; i < self->capacity; i++) {
        const request_t *r = request_at(self, i);
        if (r->state == FREE) continue;
        qr_text_put(text, "  key ");
        qr_text_put_u64(text, r->key);
        qr_text_put(text, " ");
        qr_text_put(text, state_names[r->state]);
        qr_text_put(text, ", prompt ");
        qr_text_put_u64(text, r->prompt_tokens);
        qr_text_put(text, ", taken ");
        qr_text_put_u64(text, r->taken);
        qr_text_put(text, " of ");
        qr_text_put_u64(text, r->max_tokens);
        qr_text_put(text, "\n");
    }
}

const qr_actor_class_t qr_gateway_class = {
    .name = "gateway",
    .role = QR_ROLE_gateway,
    .max_out = 3 * QR_REQUESTS_MAX + 8, /* stop: text, answer and cancel of every request */
    .bytes = gateway_bytes,
    .init = gateway_init,
    .handle = gateway_handle,
    .check = gateway_check,
    .print = gateway_print,
};
