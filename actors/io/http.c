/* http.c - the io actor `http`: the edge that clients of the OpenAI API talk to.
 *
 *     GET  /v1/models  /v1/models/NAME             answered at once
 *     POST /v1/completions  /v1/chat/completions   request_submit -> gateway -> request_deltas*, request_finished | _refused
 *     /v1/continuations...                         continuation_save, _read, _list, _drop -> facts; a save first text_encode -> text;
 *                                                  a completion that continues one reads it first
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
 * - What stood behind a finished response is remembered for params.save_window_s (recall.h), if there are facts that could keep it.
 *
 * I1. At most QR_REQUESTS_MAX submits, one probe and one metrics_read per source, and QR_CONTINUATION_ASKS of each kind of question about
 *     continuations are open; who comes later waits here, its exchange being its place in the queue.
 * I2. Every exchange that this actor takes is answered once and released once; one whose submit is open is released by its answer only. */
#include "actors/io/http.h"

#include <stdio.h>
#include <stdlib.h>

#include "actors/io/http_metrics.h"
#include "actors/io/http_server.h"
#include "actors/note.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/render.h"
#include "model/model.h"

enum {
    MAX_OUT = 256,
    OUT_BYTES_MAX = QR_OUTBOX_BYTES / 2,
    TICK_US = 250000,          /* deadlines and comments are looked at so often */
    STREAM_WAIT_US = 10000000, /* a stream that has nothing to say sends a comment after so long */
    PROBE_WAIT_US = 1000000,   /* silence on the path of a request: not ready */
    METRICS_WAIT_US = 500000,
    DROP_WAIT_US = 5000000,
    ASK_WAIT_US = 30000000, /* facts are silent */
    GRACE_US = 5000000,     /* the gateway's own deadline comes first */
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

/* What an exchange asks before it goes on. A save has its text rendered first, and holds one place for both. */
enum { ASK_NOTHING, ASK_READ, ASK_SAVE, ASK_LIST, ASK_DROP, ASKS };

typedef struct http {
    uint64_t address, mesh, gateway, facts, text; /* facts 0: there are none */
    uint32_t asks_open[ASKS], asks_waiting;
    qr_recalls_t recalls;
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
    for (uint32_t i = 0; self->server && i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (x) qr_recall_drop(&self->recalls, &x->recall);
    }
    qr_recalls_done(&self->recalls);
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
    self->asks_waiting -= x->ask && !x->asked;
    qr_recall_drop(&self->recalls, &x->recall);
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

/* prefix: the continuation it goes on from, NULL without one. */
static void submit(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, const qr_continuation_found_t *prefix, uint64_t now_us,
                   qr_outbox_t *outbox)
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
        .prefix_text = prefix ? prefix->text : (qr_bytes_t){0},
        .prefix_tokens = prefix ? prefix->tokens : (qr_u32s_t){0},
    };
    qr_send(outbox, self->gateway, request_submit, &body);
    x->submitted = true;
    x->started_us = x->quiet_since_us = now_us;
    self->submits_open++;
    self->local_open--;
    if (self->facts) x->recall = qr_recall_new(&self->recalls, x->request, body.prefix_text, body.prefix_tokens);
    if (x->recall) {
        x->recall->answer_id = x->answer.id;
        x->recall->chat = x->answer.chat;
        x->recall->tenant = x->tenant;
    }
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
            if (x->recall)
                qr_recall_add(&self->recalls, x->recall, (qr_bytes_t){text_bytes ? b->text.data + text_at : NULL, text_bytes},
                              tokens ? b->tokens.data + token_at : NULL, tokens);
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
        if (x->recall) qr_recall_keep(&self->recalls, &x->recall, &given->vocabulary, message->now_us);
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

/* ---- continuations ------------------------------------------------------------------------------------------------------------------ */

static void refuse(http_t *self, qr_http_exchange_t *x, uint32_t reason, const char *param, const char *sentence)
{
    qr_http_error_t error;
    qr_http_error_reason(&error, reason, (qr_bytes_t){(const uint8_t *)param, strlen(param)},
                         (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)}, 1000);
    qr_http_exchange_refuse(self->server, x, &error);
    release(self, x);
}

static qr_bytes_t tenant_name(const http_t *self, const qr_http_exchange_t *x)
{
    const qr_tenant_t *tenant = x->tenant ? qr_http_server_tenant(self->server, x) : NULL;
    return tenant ? (qr_bytes_t){(const uint8_t *)tenant->name, strlen(tenant->name)} : (qr_bytes_t){0};
}

static uint64_t bytes_most(const http_t *self, const qr_http_exchange_t *x)
{
    const qr_tenant_t *tenant = x->tenant ? qr_http_server_tenant(self->server, x) : NULL;
    return tenant ? tenant->bytes : 0;
}

/* Root of the chain that the state behind a response is of, as the scheduler makes it (submit). */
static void put_scope(const http_t *self, const qr_given_t *given, const qr_http_exchange_t *x, const qr_recall_t *r, qr_hash_t *ret_scope)
{
    const qr_tenant_t *tenant = x->tenant ? qr_http_server_tenant(self->server, x) : NULL;
    qr_chain_root(given->layout.fingerprint.bytes, tenant ? tenant->salt : NULL, tenant ? sizeof tenant->salt : 0, r->cache_salt,
                  r->cache_salt_bytes, ret_scope->bytes);
}

static qr_bytes_t name_of(const char *name) { return (qr_bytes_t){(const uint8_t *)name, strlen(name)}; }

/* Sends the save of a response. rendered: its prompt as text; the ids of prompt and answer are put together in scratch. */
static void send_save(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, const qr_recall_t *r, qr_bytes_t rendered,
                      qr_u32s_t prompt, qr_outbox_t *outbox)
{
    const qr_http_continuation_t *ask = &x->continuation;
    qr_http_buffer_t *text = &self->scratch, ids = {0};
    qr_http_buffer_clear(text);
    /* The answer stands where the client will send it: inside the content that the end of the render opens, or left open. */
    if (rendered.count) {
        bool chat = r->kind == QR_INPUT_CHAT;
        static const uint8_t content = QR_RENDER_CONTENT;
        qr_http_put_bytes(text, rendered.data, rendered.count - !chat);
        if (chat) qr_http_put_bytes(text, &content, 1);
        qr_http_put_bytes(text, r->shown.data, r->shown.count);
    }
    qr_http_put_bytes(&ids, prompt.data, 4 * prompt.count);
    qr_http_put_bytes(&ids, r->drawn.data, r->drawn.count);
    qr_continuation_save_t body = {.key = qr_http_key(x),
                                   .id = {ask->made, sizeof ask->made},
                                   .tenant = tenant_name(self, x),
                                   .name = name_of(ask->name),
                                   .owner = name_of(ask->owner),
                                   .ttl_us = ask->ttl_us,
                                   .pin = ask->pin,
                                   .fingerprint = given->layout.fingerprint,
                                   .cache_salt = {r->cache_salt, r->cache_salt_bytes},
                                   .bytes_most = bytes_most(self, x),
                                   .text = {(const uint8_t *)text->data, text->count},
                                   .tokens = {(const uint32_t *)(const void *)ids.data, ids.count / 4}};
    put_scope(self, given, x, r, &body.scope);
    if (text->failed || ids.failed || text->count > QR_RENDER_BYTES_MAX || ids.count / 4 > QR_CONTEXT_MAX) {
        self->asks_open[ASK_SAVE]--;
        refuse(self, x, ids.failed || text->failed ? QR_E_MEMORY : QR_E_LIMIT, "response", "");
    } else {
        qr_send(outbox, self->facts, continuation_save, &body);
    }
    qr_http_buffer_done(&ids);
}

static void begin_save(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_http_continuation_t *ask = &x->continuation;
    if (ask->operation == QR_HTTP_FORK) {
        qr_continuation_save_t body = {.key = qr_http_key(x),
                                       .id = {ask->made, sizeof ask->made},
                                       .tenant = tenant_name(self, x),
                                       .name = name_of(ask->name),
                                       .owner = name_of(ask->owner),
                                       .ttl_us = ask->ttl_us,
                                       .pin = ask->pin,
                                       .bytes_most = bytes_most(self, x),
                                       .source = {ask->id, sizeof ask->id}};
        qr_send(outbox, self->facts, continuation_save, &body);
        return;
    }
    const qr_recall_t *r = qr_recall_find(&self->recalls, ask->response, ask->chat, x->tenant, now_us);
    if (!r) {
        self->asks_open[ASK_SAVE]--;
        refuse(self, x, QR_E_NOT_FOUND, "response",
               "there is no such response to save: it is unknown, of another key, or ended longer ago than this server remembers");
    } else if (r->kind == QR_INPUT_TOKENS) {
        send_save(self, given, x, r, (qr_bytes_t){0}, (qr_u32s_t){r->tokens, r->token_count}, outbox);
    } else {
        qr_text_encode_t body = {
            .request_id = qr_http_key(x),
            .kind = r->kind,
            .text = {r->text, r->text_bytes},
            .roles = {r->roles, r->message_count},
            .lengths = {r->lengths, r->message_count},
            .prefix_text = {(const uint8_t *)r->prefix_text.data, r->prefix_text.count},
            .prefix_tokens = {(const uint32_t *)(const void *)r->prefix_tokens.data, r->prefix_tokens.count / 4},
            .render = 1,
        };
        qr_send(outbox, self->text, text_encode, &body);
    }
}

static void begin_ask(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, uint64_t now_us, qr_outbox_t *outbox)
{
    const uint8_t *id = x->request ? x->request->continuation : x->continuation.id;
    uint64_t key = qr_http_key(x);
    x->asked = true;
    self->asks_open[x->ask]++;
    switch (x->ask) {
    case ASK_READ:
        qr_send(outbox, self->facts, continuation_read,
                (&(qr_continuation_read_t){.key = key, .id = {id, 16}, .tenant = tenant_name(self, x)}));
        break;
    case ASK_LIST:
        qr_send(outbox, self->facts, continuation_list, (&(qr_continuation_list_t){.key = key, .tenant = tenant_name(self, x)}));
        break;
    case ASK_DROP:
        qr_send(outbox, self->facts, continuation_drop,
                (&(qr_continuation_drop_t){.key = key, .id = {id, 16}, .tenant = tenant_name(self, x)}));
        break;
    default: begin_save(self, given, x, now_us, outbox);
    }
}

static void take_ask(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, uint8_t ask, uint64_t now_us, qr_outbox_t *outbox)
{
    x->started_us = now_us;
    if (!self->facts) {
        refuse(self, x, QR_E_UNSUPPORTED, "", "this server keeps no store, so it has no continuations; start it with --store FOLDER");
        return;
    }
    x->ask = ask;
    if (self->asks_open[ask] < QR_CONTINUATION_ASKS)
        begin_ask(self, given, x, now_us, outbox);
    else
        self->asks_waiting++;
}

/* A place is free: the next exchanges that wait for one. */
static void go_on_asking(http_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; self->asks_waiting && i < QR_HTTP_EXCHANGES_MAX && outbox->bytes_used < OUT_BYTES_MAX; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (!x || !x->ask || x->asked || self->asks_open[x->ask] >= QR_CONTINUATION_ASKS) continue;
        self->asks_waiting--;
        begin_ask(self, given, x, now_us, outbox);
    }
}

/* The exchange that an answer is for, which has asked it no more; NULL: it is gone. */
static qr_http_exchange_t *end_ask(http_t *self, uint8_t ask, uint64_t key)
{
    qr_http_exchange_t *x = self->server ? qr_http_server_find(self->server, key) : NULL;
    self->asks_open[ask]--;
    if (!x || x->ask != ask || !x->asked) return NULL;
    x->ask = ASK_NOTHING;
    x->asked = false;
    return x;
}

static void answer_view(http_t *self, qr_http_exchange_t *x, const qr_http_continuation_view_t *view)
{
    qr_http_buffer_t body = {0};
    qr_http_put_continuation(&body, view);
    qr_http_exchange_answer(self->server, x, 200, 0, &body);
    release(self, x);
}

static const char *model_name(const qr_given_t *given) { return given->model ? given->model->name : "default"; }

static bool same_salt(const qr_http_request_t *r, qr_bytes_t salt)
{
    return r->cache_salt_bytes == salt.count && memcmp(r->cache_salt, salt.data ? salt.data : r->cache_salt, salt.count) == 0;
}

/* A completion goes on from what was found: under its salt, or its chunks would be nobody's. */
static void resume(http_t *self, const qr_given_t *given, qr_http_exchange_t *x, const qr_continuation_found_t *b, uint64_t now_us,
                   qr_outbox_t *outbox)
{
    qr_http_request_t *r = x->request;
    const char *why = memcmp(b->fingerprint.bytes, given->layout.fingerprint.bytes, 32) != 0 && !QR_MUTANT(693)
                          ? "the continuation was saved under another model"
                      : r->cache_salt_bytes && !same_salt(r, b->cache_salt) ? "the continuation was saved under another cache_salt"
                      : r->kind != QR_INPUT_TOKENS && !b->text.count ? "the continuation was saved from token ids; go on with token ids"
                                                                     : NULL;
    if (why) {
        refuse(self, x, QR_E_MISMATCH, "continuation", why);
        return;
    }
    if (self->draining || self->submits_open >= QR_REQUESTS_MAX) {
        refuse(self, x, self->draining ? QR_E_DRAINING : QR_E_BUSY, "", "");
        return;
    }
    r->cache_salt_bytes = (uint32_t)qr_min_u64(b->cache_salt.count, sizeof r->cache_salt);
    qr_copy(r->cache_salt, b->cache_salt.data, r->cache_salt_bytes);
    submit(self, given, x, QR_MUTANT(694) ? NULL : b, now_us, outbox);
}

static void on_continuation_found(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_found_t *b = &message->body.continuation_found;
    qr_http_exchange_t *x = end_ask(self, ASK_READ, b->key);
    if (x && b->reason)
        refuse(self, x, b->reason == QR_E_FORMAT ? QR_E_NOT_FOUND : b->reason, x->request ? "continuation" : "",
               b->reason == QR_E_FORMAT ? "what was saved is damaged and was set aside" : "there is no such continuation");
    else if (x && x->request)
        resume(self, given, x, b, message->now_us, outbox);
    else if (x)
        answer_view(self, x,
                    &(qr_http_continuation_view_t){
                        .id = x->continuation.id,
                        .name = b->name,
                        .owner = b->owner,
                        .text = b->text,
                        .tokens = b->tokens,
                        .created_us = b->created_us,
                        .expires_us = b->expires_us,
                        .token_count = b->tokens.count,
                        .model = memcmp(b->fingerprint.bytes, given->layout.fingerprint.bytes, 32) ? NULL : model_name(given),
                        .pin = b->pin,
                        .with_state = true});
    go_on_asking(self, given, message->now_us, outbox);
}

static void on_text_encoded(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_encoded_t *b = &message->body.text_encoded;
    qr_http_exchange_t *x = self->server ? qr_http_server_find(self->server, b->request_id) : NULL;
    if (!x || x->ask != ASK_SAVE || !x->asked) {
        self->asks_open[ASK_SAVE]--;
    } else {
        const qr_http_continuation_t *ask = &x->continuation;
        const qr_recall_t *r = qr_recall_find(&self->recalls, ask->response, ask->chat, x->tenant, message->now_us);
        if (r) {
            send_save(self, given, x, r, b->rendered, b->tokens, outbox);
        } else {
            self->asks_open[ASK_SAVE]--;
            refuse(self, x, QR_E_NOT_FOUND, "response", "the response was forgotten while it was saved");
        }
    }
    go_on_asking(self, given, message->now_us, outbox);
}

static void on_text_refused(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_refused_t *b = &message->body.text_refused;
    qr_http_exchange_t *x = end_ask(self, ASK_SAVE, b->request_id);
    if (x) refuse(self, x, b->reason, "response", "");
    go_on_asking(self, given, message->now_us, outbox);
}

/* Why what was saved is not all durable. */
static const char *short_sentence(uint32_t reason)
{
    switch (reason) {
    case 0: return NULL;
    case QR_E_NOT_FOUND: return "its state has left the device's memory; what the store lacks is computed again when it is resumed";
    case QR_E_NO_SPACE: return "the store has no room for it; raise --store-bytes or --store-files, or remove pinned continuations";
    case QR_E_UNSUPPORTED: return "no device of this server writes to its store";
    default: return qr_error_sentence((int)reason);
    }
}

static void refuse_save(http_t *self, qr_http_exchange_t *x, uint32_t reason)
{
    switch (reason) {
    case QR_E_SHORTFALL:
        refuse(self, x, QR_E_NO_SPACE, "pin",
               "what is pinned may not take more than the store has; remove pinned continuations, raise --store-bytes or --store-files, or "
               "save it without pin");
        break;
    case QR_E_NO_SPACE:
        refuse(self, x, reason, "",
               "there is no room for another continuation; remove some, raise --continuations-max, or make room on the disk of the store");
        break;
    case QR_E_QUOTA:
        refuse(self, x, reason, "", "the saved continuations of this key's tenant take as many bytes as it may have; remove some");
        break;
    default: refuse(self, x, reason, "", reason == QR_E_NOT_FOUND ? "there is no such continuation" : "");
    }
}

static void on_continuation_saved(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_saved_t *b = &message->body.continuation_saved;
    qr_http_exchange_t *x = end_ask(self, ASK_SAVE, b->key);
    if (x && b->reason)
        refuse_save(self, x, b->reason);
    else if (x)
        answer_view(self, x,
                    &(qr_http_continuation_view_t){.id = x->continuation.made,
                                                   .name = b->name,
                                                   .owner = b->owner,
                                                   .created_us = b->created_us,
                                                   .expires_us = b->expires_us,
                                                   .token_count = b->token_count,
                                                   .pin = x->continuation.pin,
                                                   .saved = true,
                                                   .durable_tokens = b->durable_rows,
                                                   .short_reason = short_sentence(b->short_reason)});
    go_on_asking(self, given, message->now_us, outbox);
}

static void put_list(qr_http_buffer_t *out, const qr_continuation_listed_t *b)
{
    uint64_t count = b->ids.count / 16, name = 0, owner = 0;
    qr_http_put(out, "{\"object\":\"list\",\"data\":[");
    for (uint64_t i = 0; i < count; i++) {
        if (i >= b->name_lengths.count || i >= b->owner_lengths.count || i >= b->created_us.count || i >= b->expires_us.count ||
            i >= b->pins.count || i >= b->token_counts.count || b->name_lengths.data[i] > b->names.count - name ||
            b->owner_lengths.data[i] > b->owners.count - owner)
            break;
        if (i) qr_http_put(out, ",");
        qr_http_put_continuation(out, &(qr_http_continuation_view_t){.id = b->ids.data + 16 * i,
                                                                     .name = {b->names.data + name, b->name_lengths.data[i]},
                                                                     .owner = {b->owners.data + owner, b->owner_lengths.data[i]},
                                                                     .created_us = b->created_us.data[i],
                                                                     .expires_us = b->expires_us.data[i],
                                                                     .token_count = b->token_counts.data[i],
                                                                     .pin = b->pins.data[i] != 0});
        name += b->name_lengths.data[i];
        owner += b->owner_lengths.data[i];
    }
    qr_http_put(out, "]}");
}

static void on_continuation_listed(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_listed_t *b = &message->body.continuation_listed;
    qr_http_exchange_t *x = end_ask(self, ASK_LIST, b->key);
    if (x && b->reason) refuse(self, x, b->reason, "", "");
    if (x && !b->reason) {
        qr_http_buffer_t body = {0};
        put_list(&body, b);
        qr_http_exchange_answer(self->server, x, 200, 0, &body);
        release(self, x);
    }
    go_on_asking(self, given, message->now_us, outbox);
}

static void on_continuation_dropped(http_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_dropped_t *b = &message->body.continuation_dropped;
    qr_http_exchange_t *x = end_ask(self, ASK_DROP, b->key);
    if (x && b->reason) refuse(self, x, b->reason, "", b->reason == QR_E_NOT_FOUND ? "there is no such continuation" : "");
    if (x && !b->reason) {
        qr_http_buffer_t body = {0};
        qr_http_put(&body, "{\"id\":\"");
        qr_http_put_continuation_id(&body, x->continuation.id);
        qr_http_put(&body, "\",\"object\":\"continuation.deleted\",\"deleted\":true}");
        qr_http_exchange_answer(self->server, x, 200, 0, &body);
        release(self, x);
    }
    go_on_asking(self, given, message->now_us, outbox);
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
    case QR_HTTP_CONTINUATION: {
        static const uint8_t asks[] = {[QR_HTTP_LIST] = ASK_LIST,
                                       [QR_HTTP_SAVE] = ASK_SAVE,
                                       [QR_HTTP_SHOW] = ASK_READ,
                                       [QR_HTTP_FORK] = ASK_SAVE,
                                       [QR_HTTP_FORGET] = ASK_DROP};
        take_ask(self, given, x, asks[x->continuation.operation], now_us, outbox);
        break;
    }
    default:
        if (!self->draining && self->submits_open < QR_REQUESTS_MAX) {
            if (x->request->continues)
                take_ask(self, given, x, ASK_READ, now_us, outbox);
            else
                submit(self, given, x, NULL, now_us, outbox);
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
    for (uint32_t i = 0; self->local_open && i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *x = qr_http_server_at(self->server, i);
        if (x && x->ask && now_us - x->started_us > ASK_WAIT_US) refuse(self, x, QR_E_DEADLINE, "", "");
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
        self->text = qr_address_partner(self->address, QR_ROLE_text);
        self->recalls.window_us = given->params.save_window_s * 1000000;
        for (uint64_t i = 0; i < b->partners.count; i++)
            if (qr_address_role(b->partners.data[i]) == QR_ROLE_facts) self->facts = b->partners.data[i];
        for (uint64_t i = 0; i < b->partners.count; i++) /* of a failure unit of its own, if it has one */
            if (qr_address_role(b->partners.data[i]) == QR_ROLE_text) self->text = b->partners.data[i];
        self->sources[0].address = self->address;
        self->sources[1].address = self->gateway;
        self->sources[2].address = qr_address_partner(self->address, QR_ROLE_router);
        self->source_count = 3;
        for (uint64_t i = 0; i < b->partners.count && self->source_count < QR_HTTP_SOURCES_MAX; i++)
            if (qr_address_role(b->partners.data[i]) != QR_ROLE_text) /* no numbers for http (roles.def) */
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
    case QR_MESSAGE_continuation_found: on_continuation_found(self, given, message, outbox); break;
    case QR_MESSAGE_continuation_saved: on_continuation_saved(self, given, message, outbox); break;
    case QR_MESSAGE_continuation_listed: on_continuation_listed(self, given, message, outbox); break;
    case QR_MESSAGE_continuation_dropped: on_continuation_dropped(self, given, message, outbox); break;
    case QR_MESSAGE_text_encoded: on_text_encoded(self, given, message, outbox); break;
    case QR_MESSAGE_text_refused: on_text_refused(self, given, message, outbox); break;
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
