/* http.c - the io actor `http`: the edge that clients of the OpenAI API talk to.
 *
 *     GET  /v1/models  /v1/models/NAME             answered at once
 *     POST /v1/completions  /v1/chat/completions   request_submit -> gateway -> request_deltas*, request_finished | _refused
 *     GET  /healthz                                this actor answers
 *     GET  /readyz  /health                        probe -> gateway (and the whole path of a request) -> probe_done
 *     GET  /metrics                                metrics_read -> everybody -> metrics
 *     POST /admin/cache/drop                       cache_drop -> page_manager -> cache_dropped; loopback only, or an admin's key
 *
 * Choices a client may ask about:
 * - A streamed answer sends its status with the first delta (or after 10 s of waiting), so a refusal has its own status.
 * - A client that closes, or half-closes, its connection cancels its request.
 * - A stream that is not read up to params.stream_bytes ends with an error event of code slow_client.
 * - With a keys file every path but the signs of life needs a key. The key stays in http_server; what travels to the gateway is its
 *   tenant's number, salt and limits.
 * - logprobs are those of the drawn token, for every token drawn, the one that ends the answer included.
 *
 * Invariants: I1. at most QR_REQUESTS_MAX submits, one probe and one metrics_read per source are open. I2. Every exchange that
 * this actor takes is answered once and released once; one whose submit is open is released by its answer only. */
#include "actors/io/http.h"

#include <stdio.h>
#include <stdlib.h>

#include "actors/io/http_metrics.h"
#include "actors/io/http_server.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"

enum {
    MAX_OUT = 256,
    OUT_BYTES_MAX = QR_OUTBOX_BYTES / 2,
    TICK_US = 250000,          /* deadlines and comments are looked at so often */
    STREAM_WAIT_US = 10000000, /* a stream that has nothing to say sends a comment after so long */
    PROBE_WAIT_US = 1000000,   /* silence on the path of a request: not ready */
    METRICS_WAIT_US = 500000,
    DROP_WAIT_US = 5000000,
    GRACE_US = 5000000, /* the gateway's own deadline comes first */
    STOP_WAIT_US = 300000,
    FINAL_BYTES = 8192 /* room above the bound of a stream for its last events */
};

/* One question to many sources, shared by every client that asks meanwhile. Clients that come later wait for the next round. */
typedef struct round_state {
    bool open, asked[QR_HTTP_SOURCES_MAX]; /* asked: the question is still open, even if the round is over */
    bool member[QR_HTTP_SOURCES_MAX];
    uint32_t number, remaining;
    uint64_t started_us;
} round_state_t;

typedef struct http {
    uint64_t address, mesh, gateway;
    qr_http_server_t *server;
    qr_http_source_t *sources; /* [source_count] */
    uint32_t source_count;
    uint32_t submits_open, local_open; /* exchanges of this actor */
    round_state_t metrics, drop, probe;
    uint64_t probe_id;
    qr_cache_dropped_t dropped;
    bool draining, stopping, drain_asked;
    uint64_t drain_by_us, stop_by_us, tick_us;
    qr_http_buffer_t scratch;
} http_t;

static uint64_t bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(http_t);
}

static void init(void *block, const qr_given_t *given, uint64_t address)
{
    (void)given;
    http_t *self = block;
    self->address = address;
    self->gateway = qr_address_partner(address, QR_ROLE_gateway);
}

static void done(void *block)
{
    http_t *self = block;
    qr_http_server_destroy(&self->server);
    qr_http_buffer_done(&self->scratch);
    free(self->sources);
    self->sources = NULL;
}

int qr_http_check(const qr_params_t *params, char *message, size_t message_bytes)
{
    return qr_http_server_check(params, message, message_bytes);
}

uint16_t qr_http_port(const void *block)
{
    const http_t *self = block;
    return self->server ? qr_http_server_port(self->server) : 0;
}

/* ---- ends of exchanges ---------------------------------------------------------------------------------------------------------- */

static void release(http_t *self, qr_http_exchange_t *x)
{
    if (x->submitted)
        self->submits_open--;
    else
        self->local_open--;
    qr_http_exchange_free_request(self->server, x);
    qr_http_exchange_release(self->server, x);
}

static void settle_drain(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->drain_asked || (self->submits_open && now_us < self->drain_by_us) || outbox->count == outbox->capacity) return;
    self->drain_asked = false;
    qr_send(outbox, self->mesh, drained, (&(qr_drained_t){.open_count = self->submits_open}));
}

/* The request ends with an error: its own status before the first event, an error event after. */
static void fail(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, const qr_http_error_t *error)
{
    if (!qr_http_exchange_streaming(self->server, x)) {
        qr_http_exchange_refuse(self->server, x, error);
        return;
    }
    qr_http_buffer_clear(&self->scratch);
    if (!QR_MUTANT(251)) qr_http_answer_error(&x->answer, error, &self->scratch);
    (void)qr_http_exchange_stream(self->server, x, &self->scratch, given->params.stream_bytes + FINAL_BYTES, true);
}
static void fail_reason(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, uint32_t reason, const char *sentence)
{
    qr_http_error_t error;
    qr_http_error_reason(&error, reason, (qr_bytes_t){0}, (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)}, 1000);
    fail(self, given, x, &error);
}

/* Asks the gateway to stop; it still answers. */
static void cancel(http_t *self, qr_http_exchange_t *x, uint32_t reason, qr_outbox_t *outbox)
{
    if (!x->submitted || x->cancelled) return;
    x->cancelled = true;
    qr_send(outbox, self->gateway, request_cancel, (&(qr_request_cancel_t){.key = qr_http_key(x), .reason = reason}));
}

static void answer_text(http_t *self, qr_http_exchange_t *x, uint32_t status, uint32_t retry_after_s, const char *text)
{
    qr_http_buffer_t body = {0};
    qr_http_put(&body, text);
    qr_http_exchange_answer(self->server, x, status, retry_after_s, &body);
    release(self, x);
}

/* ---- requests --------------------------------------------------------------------------------------------------------------------- */

static qr_http_exchange_t *find_request(http_t *self, uint64_t key)
{
    qr_http_exchange_t *x = self->server ? qr_http_server_find(self->server, key) : NULL;
    return x && x->kind == QR_HTTP_COMPLETION && x->submitted ? x : NULL;
}

static uint64_t submit_bytes(const qr_http_request_t *r)
{
    return r->text_bytes + r->token_count * 4 + r->message_count * 8 + sizeof *r + 256;
}

static void submit(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, uint64_t now_us, qr_outbox_t *outbox)
{
    static const qr_tenant_t only = {0}; /* without a keys file: no salt, no bounds */
    const qr_http_request_t *r = x->request;
    const qr_tenant_t *tenant = x->tenant ? qr_http_server_tenant(self->server, x) : &only;
    uint64_t budget_us = given->params.request_timeout_ms * 1000;
    if (r->deadline_ms && !QR_MUTANT(672)) budget_us = qr_min_u64(budget_us, r->deadline_ms * 1000);
    uint32_t stop_bytes = 0;
    for (uint32_t i = 0; i < r->stop_count; i++) stop_bytes += r->stop_lengths[i];
    qr_request_submit_t body = {
        .key = qr_http_key(x),
        .kind = r->kind,
        .text = {r->text, r->text_bytes},
        .tokens = {r->tokens, r->token_count},
        .max_tokens = r->max_tokens,
        .temperature_bits = r->temperature_bits,
        .top_p_bits = r->top_p_bits,
        .min_p_bits = r->min_p_bits,
        .top_k = r->top_k,
        .seed_given = r->seed_given,
        .seed = r->seed,
        .logprobs = r->logprobs,
        .ignore_eos = r->ignore_eos,
        .roles = {r->roles, r->message_count},
        .lengths = {r->lengths, r->message_count},
        .stop = {r->stop, stop_bytes},
        .stop_lengths = {r->stop_lengths, r->stop_count},
        .tenant_salt = {tenant->salt, x->tenant && !QR_MUTANT(673) ? sizeof tenant->salt : 0},
        .cache_salt = {r->cache_salt, r->cache_salt_bytes},
        .priority = r->priority,
        .budget_us = budget_us,
        .tenant = x->tenant,
        .tenant_lanes = tenant->lanes,
        .tenant_pages = tenant->pages,
        .tenant_tokens_per_s = tenant->tokens_per_s,
    };
    qr_send(outbox, self->gateway, request_submit, &body);
    x->submitted = true;
    x->started_us = x->quiet_since_us = now_us;
    self->submits_open++;
    self->local_open--;
    qr_http_exchange_free_request(self->server, x);
}

static void on_request_deltas(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_deltas_t *b = &message->body.request_deltas;
    uint64_t text_at = 0, token_at = 0;
    for (uint64_t i = 0; i < b->keys.count; i++) {
        if (i >= b->text_lengths.count || i >= b->token_counts.count) break;
        uint64_t text_bytes = b->text_lengths.data[i], tokens = b->token_counts.data[i];
        if (text_bytes > b->text.count - text_at || tokens > b->tokens.count - token_at) break;
        qr_http_exchange_t *x = find_request(self, b->keys.data[i]);
        if (x && !x->cancelled) {
            const uint32_t *bits = b->logprob_bits.count == b->tokens.count && tokens ? b->logprob_bits.data + token_at : NULL;
            qr_http_buffer_clear(&self->scratch);
            qr_http_answer_delta(&x->answer, &given->vocabulary, (qr_bytes_t){text_bytes ? b->text.data + text_at : NULL, text_bytes},
                                 tokens ? b->tokens.data + token_at : NULL, bits, tokens, &self->scratch);
            x->quiet_since_us = message->now_us;
            if (self->scratch.count && qr_http_exchange_stream(self->server, x, &self->scratch, given->params.stream_bytes, false)) {
                cancel(self, x, QR_E_SLOW_CLIENT, outbox);
                qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_slow_client, x->index, qr_http_key(x), given->params.stream_bytes, 0);
                fail_reason(self, given, x, QR_E_SLOW_CLIENT, "");
            }
        }
        text_at += text_bytes;
        token_at += tokens;
    }
}

static void on_request_finished(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_finished_t *b = &message->body.request_finished;
    qr_http_exchange_t *x = find_request(self, b->key);
    if (!x) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, b->key, 0);
        return;
    }
    if (b->finish == QR_FINISH_STOP || b->finish == QR_FINISH_LENGTH) {
        qr_http_buffer_clear(&self->scratch);
        qr_http_answer_finish(&x->answer, &given->vocabulary, b, &self->scratch);
        if (x->answer.stream) {
            (void)qr_http_exchange_stream(self->server, x, &self->scratch, SIZE_MAX, true);
        } else {
            qr_http_exchange_answer(self->server, x, 200, 0, &self->scratch); /* the buffer goes with it */
        }
    } else {
        uint32_t reason = b->error ? b->error : b->finish == QR_FINISH_CANCELLED ? QR_E_CANCELLED : QR_E_DEVICE;
        fail_reason(self, given, x, reason, "");
    }
    release(self, x);
    settle_drain(self, message->now_us, outbox);
}

static void on_request_refused(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_refused_t *b = &message->body.request_refused;
    qr_http_exchange_t *x = find_request(self, b->key);
    if (!x) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, b->key, 0);
        return;
    }
    qr_http_error_t error;
    qr_http_error_reason(&error, b->reason, b->param, b->text, b->retry_after_ms);
    fail(self, given, x, &error);
    release(self, x);
    settle_drain(self, message->now_us, outbox);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------------------------ */

/* Calls end for every exchange of a kind that waits for a round up to this number. */
typedef void (*end_fn)(http_t *self, qr_http_exchange_t *x, uint32_t reason);
static void end_waiting(http_t *self, uint8_t kind, uint32_t number, uint32_t reason, end_fn end)
{
    for (uint32_t i = 0; self->local_open && i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (x && x->kind == kind && x->round <= number) end(self, x, reason);
    }
}
static bool anyone_waits(http_t *self, uint8_t kind)
{
    for (uint32_t i = 0; self->local_open && i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (x && x->kind == kind) return true;
    }
    return false;
}

static void put_own_metrics(http_t *self)
{
    uint64_t values[3], open;
    static const uint32_t ids[] = {QR_METRIC_http_connections_open, QR_METRIC_http_answers_total, QR_METRIC_http_errors_total};
    qr_http_server_count(self->server, &values[0], &values[1], &values[2], &open);
    qr_http_source_take(&self->sources[0], (qr_u32s_t){ids, 3}, (qr_u64s_t){values, 3});
}
static void end_metrics(http_t *self, qr_http_exchange_t *x, uint32_t reason)
{
    (void)reason;
    qr_http_buffer_t body = {0};
    qr_http_put_metrics(&body, self->sources, self->source_count);
    qr_http_exchange_answer(self->server, x, 200, 0, &body);
    release(self, x);
}
static void end_drop(http_t *self, qr_http_exchange_t *x, uint32_t reason)
{
    if (reason) {
        qr_http_error_t error;
        qr_http_error_reason(&error, reason, (qr_bytes_t){0}, (qr_bytes_t){0}, 1000);
        qr_http_exchange_refuse(self->server, x, &error);
        release(self, x);
        return;
    }
    char text[160];
    snprintf(text, sizeof text, "{\"pages_free\":%u,\"pages_held\":%u,\"pages_pool\":%u}", self->dropped.pages_free,
             self->dropped.pages_held, self->dropped.pages_pool);
    answer_text(self, x, 200, 0, text);
}
static void end_ready(http_t *self, qr_http_exchange_t *x, uint32_t reason)
{
    if (!reason) {
        answer_text(self, x, 200, 0, "{\"status\":\"ready\"}");
        return;
    }
    char sentence[160];
    qr_http_error_t error;
    snprintf(sentence, sizeof sentence, reason == QR_E_DEADLINE ? "not ready: the path of a request is silent" : "not ready: %s",
             qr_error_sentence((int)reason));
    qr_http_error_reason(&error, reason, (qr_bytes_t){0}, (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)}, 1000);
    error.status = 503;
    error.type = "server_error";
    error.retry_after_s = 1;
    qr_http_exchange_refuse(self->server, x, &error);
    release(self, x);
}

static void begin_metrics(http_t *self, uint64_t now_us, qr_outbox_t *outbox);
static void begin_drop(http_t *self, uint64_t now_us, qr_outbox_t *outbox);
static void begin_probe(http_t *self, uint64_t now_us, qr_outbox_t *outbox);

static void end_metrics_round(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    self->metrics.open = false;
    put_own_metrics(self);
    end_waiting(self, QR_HTTP_METRICS, self->metrics.number, 0, end_metrics);
    if (anyone_waits(self, QR_HTTP_METRICS)) begin_metrics(self, now_us, outbox);
}
static void end_drop_round(http_t *self, uint32_t reason, uint64_t now_us, qr_outbox_t *outbox)
{
    self->drop.open = false;
    end_waiting(self, QR_HTTP_DROP, self->drop.number, reason, end_drop);
    if (anyone_waits(self, QR_HTTP_DROP)) begin_drop(self, now_us, outbox);
}

static void open_round(round_state_t *round, uint64_t now_us)
{
    round->open = true;
    round->number++;
    round->remaining = 0;
    round->started_us = now_us;
    memset(round->member, 0, sizeof round->member);
}

static void begin_metrics(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    open_round(&self->metrics, now_us);
    for (uint32_t i = 1; i < self->source_count; i++) {
        if (self->metrics.asked[i]) continue; /* still silent since an earlier round: its last values stand */
        qr_send(outbox, self->sources[i].address, metrics_read, (&(qr_metrics_read_t){.version = 1}));
        self->metrics.asked[i] = self->metrics.member[i] = true;
        self->metrics.remaining++;
    }
    if (self->metrics.remaining == 0) end_metrics_round(self, now_us, outbox);
}

static void begin_drop(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    open_round(&self->drop, now_us);
    self->dropped = (qr_cache_dropped_t){0};
    bool any = false;
    for (uint32_t i = 1; i < self->source_count; i++) {
        if (qr_address_role(self->sources[i].address) != QR_ROLE_page_manager) continue;
        any = true;
        if (self->drop.asked[i]) continue;
        qr_send(outbox, self->sources[i].address, cache_drop, (&(qr_cache_drop_t){.version = 1}));
        self->drop.asked[i] = self->drop.member[i] = true;
        self->drop.remaining++;
    }
    if (self->drop.remaining == 0) end_drop_round(self, any ? QR_E_DEADLINE : QR_E_NO_WORKER, now_us, outbox);
}

static void begin_probe(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    open_round(&self->probe, now_us);
    self->probe_id++;
    qr_send(outbox, self->gateway, probe, (&(qr_probe_t){.probe_id = self->probe_id}));
}

static uint32_t find_source(const http_t *self, uint64_t address)
{
    for (uint32_t i = 1; i < self->source_count; i++)
        if (self->sources[i].address == address) return i;
    return 0;
}

static void on_metrics(http_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint32_t i = find_source(self, message->from);
    if (!i || !self->metrics.asked[i]) return;
    qr_http_source_take(&self->sources[i], message->body.metrics.ids, message->body.metrics.values);
    self->metrics.asked[i] = false;
    if (self->metrics.open && self->metrics.member[i] && --self->metrics.remaining == 0) end_metrics_round(self, message->now_us, outbox);
}

static void on_cache_dropped(http_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_cache_dropped_t *b = &message->body.cache_dropped;
    uint32_t i = find_source(self, message->from);
    if (!i || !self->drop.asked[i]) return;
    self->drop.asked[i] = false;
    if (!self->drop.open || !self->drop.member[i]) return;
    self->dropped.pages_free += b->pages_free;
    self->dropped.pages_held += b->pages_held;
    self->dropped.pages_pool += b->pages_pool;
    if (--self->drop.remaining == 0) end_drop_round(self, 0, message->now_us, outbox);
}

static void on_probe_done(http_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_done_t *b = &message->body.probe_done;
    if (!self->probe.open || b->probe_id != self->probe_id) return;
    self->probe.open = false;
    end_waiting(self, QR_HTTP_READY, self->probe.number, b->reason, end_ready);
    if (anyone_waits(self, QR_HTTP_READY)) begin_probe(self, message->now_us, outbox);
}

/* The node is gone, and every question towards it. */
static void on_link_down(http_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    for (uint32_t i = 1; i < self->source_count; i++) {
        if (qr_address_node(self->sources[i].address) != message->body.link_down.node) continue;
        if (self->metrics.asked[i] && self->metrics.member[i] && self->metrics.open) self->metrics.remaining--;
        if (self->drop.asked[i] && self->drop.member[i] && self->drop.open) self->drop.remaining--;
        self->metrics.asked[i] = self->drop.asked[i] = false;
        self->metrics.member[i] = self->drop.member[i] = false;
    }
    if (self->metrics.open && self->metrics.remaining == 0) end_metrics_round(self, message->now_us, outbox);
    if (self->drop.open && self->drop.remaining == 0) end_drop_round(self, QR_E_PEER_DOWN, message->now_us, outbox);
}

/* ---- work --------------------------------------------------------------------------------------------------------------------------- */

static void take_ready(http_t *self, qr_http_exchange_t *x, uint64_t now_us, qr_outbox_t *outbox)
{
    if (self->draining) {
        end_ready(self, x, QR_E_DRAINING);
        return;
    }
    if (self->probe.open && now_us - self->probe.started_us > PROBE_WAIT_US && !QR_MUTANT(252)) {
        end_ready(self, x, QR_E_DEADLINE);
        return;
    }
    x->round = self->probe.number + 1;
    if (!self->probe.open) begin_probe(self, now_us, outbox);
}

static void take_exchange(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, bool left, uint64_t now_us, qr_outbox_t *outbox)
{
    self->local_open++;
    if (left) {
        release(self, x);
        return;
    }
    switch (x->kind) {
    case QR_HTTP_HEALTH: answer_text(self, x, 200, 0, "{\"status\":\"ok\"}"); break;
    case QR_HTTP_READY: take_ready(self, x, now_us, outbox); break;
    case QR_HTTP_METRICS:
        x->round = self->metrics.number + 1;
        if (!self->metrics.open) begin_metrics(self, now_us, outbox);
        break;
    case QR_HTTP_DROP:
        x->round = self->drop.number + 1;
        if (!self->drop.open) begin_drop(self, now_us, outbox);
        break;
    default:
        if (!self->draining && self->submits_open < QR_REQUESTS_MAX) {
            submit(self, given, x, now_us, outbox);
        } else {
            fail_reason(self, given, x, self->draining ? QR_E_DRAINING : QR_E_BUSY, "");
            release(self, x);
        }
    }
}

/* Everything that waits: comments to quiet streams, deadlines, silent sources. */
static void tick(http_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    static const char comment[] = ": ka\n\n";
    for (uint32_t i = 0; self->submits_open && i < QR_HTTP_EXCHANGES_MAX && outbox->count + 8 < outbox->capacity; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (!x || !x->submitted || x->cancelled) continue;
        if (now_us - x->started_us > given->params.request_timeout_ms * 1000 + GRACE_US) {
            cancel(self, x, QR_E_CANCELLED, outbox);
            fail_reason(self, given, x, QR_E_DEADLINE, "");
        } else if (x->answer.stream && now_us - x->quiet_since_us >= STREAM_WAIT_US) {
            x->quiet_since_us = now_us;
            qr_http_buffer_clear(&self->scratch);
            qr_http_put(&self->scratch, comment);
            (void)qr_http_exchange_stream(self->server, x, &self->scratch, given->params.stream_bytes, false);
        }
    }
    if (self->probe.open && now_us - self->probe.started_us > PROBE_WAIT_US)
        end_waiting(self, QR_HTTP_READY, UINT32_MAX, QR_E_DEADLINE, end_ready);
    if (self->metrics.open && now_us - self->metrics.started_us > METRICS_WAIT_US) end_metrics_round(self, now_us, outbox);
    if (self->drop.open && now_us - self->drop.started_us > DROP_WAIT_US) end_drop_round(self, QR_E_DEADLINE, now_us, outbox);
    settle_drain(self, now_us, outbox);
    self->tick_us = now_us + TICK_US;
}

/* Room that the rounds of one exchange may need. */
static bool has_room(const http_t *self, const qr_outbox_t *outbox)
{
    return outbox->count + 2 * self->source_count + 8 <= outbox->capacity && outbox->bytes_used < OUT_BYTES_MAX;
}

static uint64_t finish_stop(http_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    uint64_t connections, answers, errors, open;
    qr_http_server_count(self->server, &connections, &answers, &errors, &open);
    if (open && now_us < self->stop_by_us) return now_us + 2000;
    qr_http_server_destroy(&self->server);
    self->stopping = false;
    qr_send(outbox, self->mesh, stopped, (&(qr_stopped_t){.reason = QR_E_OK}));
    return QR_NEVER_US;
}

static uint64_t work(void *block, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    http_t *self = block;
    qr_http_exchange_t *x;
    if (!self->server) return QR_NEVER_US;
    qr_http_server_watch(self->server);
    if (self->stopping) return finish_stop(self, now_us, outbox);
    while (has_room(self, outbox) && (x = qr_http_server_next_left(self->server))) cancel(self, x, QR_E_CANCELLED, outbox);
    bool more = false, left = false;
    for (uint32_t taken = 0; !more; taken++) {
        more = taken == 32 || !has_room(self, outbox);
        if (more || !(x = qr_http_server_next(self->server, &left))) break;
        if (x->request && outbox->bytes_used + submit_bytes(x->request) > QR_OUTBOX_BYTES) { /* cannot be: OUT_BYTES_MAX leaves room */
            self->local_open++;
            fail_reason(self, given, x, QR_E_LIMIT, "");
            release(self, x);
            continue;
        }
        take_exchange(self, given, x, left, now_us, outbox);
    }
    if (now_us >= self->tick_us && has_room(self, outbox)) tick(self, given, now_us, outbox);
    if (more) return now_us;
    uint64_t connections, answers, errors, open;
    qr_http_server_count(self->server, &connections, &answers, &errors, &open);
    return connections || self->submits_open || self->local_open || self->drain_asked ? qr_max_u64(self->tick_us, now_us + 1000)
                                                                                      : QR_NEVER_US;
}

static int wake_descriptor(void *block)
{
    http_t *self = block;
    return self->server ? qr_http_server_wake_descriptor(self->server) : -1;
}

/* ---- life ---------------------------------------------------------------------------------------------------------------------------- */

static void on_start(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    char sentence[400] = "";
    self->mesh = message->from;
    self->sources = calloc(b->partners.count + 3, sizeof *self->sources);
    int error = self->sources ? 0 : -QR_E_MEMORY;
    if (!error) {
        self->sources[0].address = self->address;
        self->sources[1].address = self->gateway;
        self->sources[2].address = qr_address_partner(self->address, QR_ROLE_router);
        self->source_count = 3;
        for (uint64_t i = 0; i < b->partners.count && self->source_count < QR_HTTP_SOURCES_MAX; i++)
            if (qr_address_role(b->partners.data[i]) != QR_ROLE_facts) /* it has no numbers for http (roles.def) */
                self->sources[self->source_count++].address = b->partners.data[i];
        error = qr_http_server_new(given, &self->server, sentence, sizeof sentence);
    }
    if (!error) snprintf(sentence, sizeof sentence, "listening on http://%s", qr_http_server_name(self->server));
    qr_ready_t body = {.reason = (uint32_t)-error, .text = {(const uint8_t *)sentence, strlen(sentence)}};
    qr_send(outbox, message->from, ready, &body);
}

static void on_drain(http_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = self->drain_asked = true;
    self->drain_by_us = message->now_us + message->body.drain.budget_us;
    if (self->server) qr_http_server_refuse(self->server, QR_E_DRAINING, false);
    qr_outbox_alarm(outbox, self->drain_by_us);
    settle_drain(self, message->now_us, outbox);
}

/* Every client gets a last word; work() ends the server when they have it. */
static void on_stop(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = true;
    if (!self->server) {
        qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = QR_E_OK}));
        return;
    }
    qr_http_server_refuse(self->server, QR_E_DRAINING, true);
    qr_http_exchange_t *x;
    bool left;
    while ((x = qr_http_server_next(self->server, &left))) self->local_open++;
    for (uint32_t i = 0; i < QR_HTTP_EXCHANGES_MAX; i++) {
        x = qr_http_server_at(self->server, i);
        if (x) fail_reason(self, given, x, QR_E_DRAINING, "");
    }
    self->stopping = true;
    self->stop_by_us = message->now_us + qr_min_u64(message->body.stop.budget_us, STOP_WAIT_US);
    qr_outbox_alarm(outbox, message->now_us);
}

static void handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    http_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_request_deltas: on_request_deltas(self, given, message, outbox); break;
    case QR_MESSAGE_request_finished: on_request_finished(self, given, message, outbox); break;
    case QR_MESSAGE_request_refused: on_request_refused(self, given, message, outbox); break;
    case QR_MESSAGE_probe_done: on_probe_done(self, message, outbox); break;
    case QR_MESSAGE_metrics: on_metrics(self, message, outbox); break;
    case QR_MESSAGE_cache_dropped: on_cache_dropped(self, message, outbox); break;
    case QR_MESSAGE_link_down: on_link_down(self, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, given, message, outbox); break;
    case QR_MESSAGE_alarm: settle_drain(self, message->now_us, outbox); break;
    case QR_MESSAGE_link_up: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0);
    }
}

static void print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const http_t *self = block;
    uint64_t connections = 0, answers = 0, errors = 0, open = 0;
    if (self->server) qr_http_server_count(self->server, &connections, &answers, &errors, &open);
    qr_text_put(text, "http: ");
    qr_text_put(text, self->server ? qr_http_server_name(self->server) : "not listening");
    static const char *const names[] = {", connections ", ", answers ", ", errors ", ", open ", ", submitted "};
    const uint64_t values[] = {connections, answers, errors, open, self->submits_open};
    for (size_t i = 0; i < QR_COUNT(names); i++) {
        qr_text_put(text, names[i]);
        qr_text_put_u64(text, values[i]);
    }
    qr_text_put(text, self->draining ? ", draining\n" : "\n");
}

const qr_actor_class_t qr_http_class = {
    .name = "http",
    .role = QR_ROLE_http,
    .max_out = MAX_OUT,
    .owns_world = true,
    .bytes = bytes,
    .init = init,
    .handle = handle,
    .print = print,
    .work = work,
    .wake_descriptor = wake_descriptor,
    .done = done,
};
