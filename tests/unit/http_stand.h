/* http_stand.h - the real http actor on a thread of its own, with a scripted gateway and scripted sources behind it, and raw
 * sockets in front of it. The stand-in gateway counts one token per byte of text and draws letters. */
#ifndef QR_HTTP_STAND_H
#define QR_HTTP_STAND_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "actors/io/http.h"
#include "actors/io/http_metrics.h"
#include "base/error.h"
#include "messages/schema.h"
#include "model/model.h"

enum { STAND_WAIT_S = 60 /* long enough for any machine; what is waited for comes soon */ };
enum { STAND_PENDING = 4096, STAND_OPEN = 1100, STAND_VOCABULARY = 300, STAND_REPLY_BYTES = 1 << 20 };

typedef struct pending {
    uint64_t due_us;
    uint64_t order;
    qr_outbox_t box;
    qr_message_t message;
    uint8_t *bytes;
} pending_t;

/* A request at the stand-in gateway. */
typedef struct stand_request {
    bool open, forever, failing, hanging;
    uint64_t key;
    uint32_t prompt, left, drawn;
    uint32_t finish;
} stand_request_t;

typedef struct stand {
    qr_given_t given;
    qr_model_t model;
    uint32_t offsets[STAND_VOCABULARY + 1];
    uint8_t vocabulary_bytes[STAND_VOCABULARY], flags[STAND_VOCABULARY];
    void *actor;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock; /* over what tests read and set while it runs */
    qr_outbox_t outbox;
    qr_message_t *messages;
    uint8_t *outbox_bytes;
    pending_t *pending[STAND_PENDING];
    uint32_t pending_count;
    uint64_t order;
    stand_request_t requests[STAND_OPEN];
    /* what the test asks of the script */
    bool ending, stopping, draining, probe_late;
    uint32_t probe_reason, step_us, batch_tokens, busy_over;
    bool probe_silent, metrics_silent;
    uint64_t metrics_add;
    uint32_t client_timeout_ms; /* taken over in the next turn, 0 again one turn later */
    /* what the script saw */
    uint32_t submits, cancels, open_most, open_now, drops, probes;
    uint32_t last_cancel_reason;
    qr_request_submit_t last; /* numbers only */
    char last_text[4096], last_stop[512], last_salt[80];
    uint8_t last_tenant_salt[64];
    uint32_t last_text_bytes;
    uint32_t last_roles[64], last_role_count, last_tokens[64], last_token_count;
    uint32_t ready_reason;
    char ready_text[400];
    uint32_t stopped, drained;
    /* facts, if the test says that there are some before it starts: one continuation, of tenant "" and this model unless told otherwise */
    bool facts, other_model;
    uint32_t reads, saves, renders, last_prefix_count, last_saved_count;
    char last_saved[256];
} stand_t;

static inline uint64_t stand_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

#define STAND_HTTP qr_address(1, 0, QR_ROLE_http, 0)
#define STAND_GATEWAY qr_address(1, 0, QR_ROLE_gateway, 0)
#define STAND_MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define STAND_PAGES qr_address(1, 1, QR_ROLE_page_manager, 0)

#define stand_set(s, field, value)                                                                                                         \
    do {                                                                                                                                   \
        pthread_mutex_lock(&(s)->lock);                                                                                                    \
        (s)->field = (value);                                                                                                              \
        pthread_mutex_unlock(&(s)->lock);                                                                                                  \
    } while (0)

/* Queues a message to the actor, delivered at due_us. */
static void stand_post(stand_t *s, uint64_t due_us, uint64_t from, uint16_t type, const void *body)
{
    assert_true(s->pending_count < STAND_PENDING);
    pending_t *p = calloc(1, sizeof *p);
    p->bytes = malloc(STAND_REPLY_BYTES);
    qr_outbox_init(&p->box, &p->message, 1, p->bytes, STAND_REPLY_BYTES);
    qr_outbox_send(&p->box, STAND_HTTP, type, body);
    p->message.from = from;
    p->due_us = due_us;
    p->order = s->order++;
    s->pending[s->pending_count++] = p;
}
#define stand_say(s, due, from, name, ...) stand_post(s, due, from, QR_MESSAGE_##name, (1 ? (__VA_ARGS__) : (const qr_##name##_t *)0))

static stand_request_t *stand_find(stand_t *s, uint64_t key)
{
    for (uint32_t i = 0; i < STAND_OPEN; i++)
        if (s->requests[i].open && s->requests[i].key == key) return &s->requests[i];
    return NULL;
}

static void stand_refuse(stand_t *s, uint64_t now, uint64_t key, uint32_t reason, const char *param, const char *text, uint32_t retry_ms)
{
    stand_say(s, now, STAND_GATEWAY, request_refused,
              &(qr_request_refused_t){.key = key,
                                      .reason = reason,
                                      .param = {(const uint8_t *)param, strlen(param)},
                                      .text = {(const uint8_t *)text, strlen(text)},
                                      .retry_after_ms = retry_ms});
}

static void stand_remember(stand_t *s, const qr_request_submit_t *b)
{
    s->last = *b;
    s->last_text_bytes = (uint32_t)b->text.count;
    size_t n = qr_min_u64(b->text.count, sizeof s->last_text - 1);
    qr_copy(s->last_text, b->text.data, n);
    s->last_text[n] = 0;
    n = qr_min_u64(b->stop.count, sizeof s->last_stop - 1);
    qr_copy(s->last_stop, b->stop.data, n);
    s->last_stop[n] = 0;
    n = qr_min_u64(b->cache_salt.count, sizeof s->last_salt - 1);
    qr_copy(s->last_salt, b->cache_salt.data, n);
    s->last_salt[n] = 0;
    memset(s->last_tenant_salt, 0, sizeof s->last_tenant_salt);
    qr_copy(s->last_tenant_salt, b->tenant_salt.data, qr_min_u64(b->tenant_salt.count, sizeof s->last_tenant_salt));
    s->last_role_count = (uint32_t)qr_min_u64(b->roles.count, 64);
    qr_copy(s->last_roles, b->roles.data, s->last_role_count * 4);
    s->last_prefix_count = (uint32_t)b->prefix_tokens.count;
    s->last_token_count = (uint32_t)qr_min_u64(b->tokens.count, 64);
    qr_copy(s->last_tokens, b->tokens.data, s->last_token_count * 4);
}

/* The stand-in gateway: context rule and drawing as the real one documents them. */
static void stand_submit(stand_t *s, const qr_request_submit_t *b, uint64_t now)
{
    s->submits++;
    stand_remember(s, b);
    uint32_t prompt = b->kind == QR_INPUT_TOKENS ? (uint32_t)b->tokens.count : (uint32_t)b->text.count;
    if (b->kind == QR_INPUT_CHAT) prompt += 4 * (uint32_t)b->roles.count;
    uint32_t context = s->given.layout.context_tokens;
    const char *param = b->kind == QR_INPUT_CHAT ? "messages" : "prompt";
    char sentence[128];
    snprintf(sentence, sizeof sentence, "the prompt has %u tokens, the context holds %u", prompt, context);
    if (s->busy_over && s->open_now >= s->busy_over)
        stand_refuse(s, now, b->key, QR_E_BUSY, "", "", 1500);
    else if (prompt == 0)
        stand_refuse(s, now, b->key, QR_E_INVALID, param, "the prompt has no tokens", 0);
    else if (prompt > context)
        stand_refuse(s, now, b->key, QR_E_CONTEXT, param, sentence, 0);
    else if (!strcmp(s->last_text, "NOWORKER"))
        stand_refuse(s, now, b->key, QR_E_NO_WORKER, "", "", 0);
    else {
        stand_request_t *r = NULL;
        for (uint32_t i = 0; i < STAND_OPEN && !r; i++)
            if (!s->requests[i].open) r = &s->requests[i];
        uint32_t room = context > prompt ? context - prompt : 1;
        *r = (stand_request_t){
            .open = true, .key = b->key, .prompt = prompt, .left = qr_min_u32(b->max_tokens ? b->max_tokens : 1024, room)};
        r->finish = QR_FINISH_LENGTH;
        r->forever = !strcmp(s->last_text, "FLOOD");
        r->failing = !strcmp(s->last_text, "FAIL");
        r->hanging = !strcmp(s->last_text, "HANG");
        s->open_now++;
        s->open_most = qr_max_u32(s->open_most, s->open_now);
    }
}

static void stand_end(stand_t *s, stand_request_t *r, uint32_t finish, uint32_t error, uint64_t now)
{
    stand_say(s, now, STAND_GATEWAY, request_finished,
              &(qr_request_finished_t){.key = r->key,
                                       .finish = finish,
                                       .error = error,
                                       .prompt_tokens = r->prompt,
                                       .completion_tokens = r->drawn,
                                       .cached_tokens = r->prompt / 2});
    r->open = false;
    s->open_now--;
}

/* One step of every open request, in one message. */
static void stand_step(stand_t *s, uint64_t now)
{
    static uint64_t keys[STAND_OPEN];
    static uint32_t lengths[STAND_OPEN], counts[STAND_OPEN], tokens[STAND_REPLY_BYTES / 16], bits[STAND_REPLY_BYTES / 16];
    static uint8_t text[STAND_REPLY_BYTES / 16];
    uint32_t n = 0, at = 0;
    for (uint32_t i = 0; i < STAND_OPEN; i++) {
        stand_request_t *r = &s->requests[i];
        if (!r->open || r->hanging || (!r->forever && r->left == 0)) continue;
        uint32_t count = r->forever ? 1000 : qr_min_u32(s->batch_tokens, r->left);
        if (at + count > STAND_REPLY_BYTES / 16) break;
        keys[n] = r->key;
        lengths[n] = counts[n] = count;
        n++;
        for (uint32_t j = 0; j < count; j++, at++) {
            tokens[at] = 'a' + (r->drawn + j) % 26;
            text[at] = (uint8_t)tokens[at];
            float value = -0.25f * (float)((r->drawn + j) % 4);
            memcpy(&bits[at], &value, 4);
        }
        r->drawn += count;
        r->left -= r->forever ? 0 : count;
    }
    if (n)
        stand_say(s, now, STAND_GATEWAY, request_deltas,
                  &(qr_request_deltas_t){.keys = {keys, n},
                                         .text_lengths = {lengths, n},
                                         .text = {text, at},
                                         .token_counts = {counts, n},
                                         .tokens = {tokens, at},
                                         .logprob_bits = {bits, at}});
    for (uint32_t i = 0; i < STAND_OPEN; i++) {
        stand_request_t *r = &s->requests[i];
        if (!r->open || r->hanging) continue;
        if (r->failing && r->drawn >= 2)
            stand_end(s, r, QR_FINISH_ERROR, QR_E_DEVICE, now);
        else if (!r->forever && r->left == 0)
            stand_end(s, r, r->finish, 0, now);
    }
}

#define STAND_FACTS qr_address(1, 1, QR_ROLE_facts, 0)

static void stand_found(stand_t *s, const qr_continuation_read_t *b, uint64_t now)
{
    static const uint32_t ids[] = {104, 105};
    qr_continuation_found_t body = {.key = b->key, .reason = b->id.data[0] == 1 ? 0 : QR_E_NOT_FOUND};
    if (!body.reason) {
        body.id = b->id;
        body.fingerprint = s->given.layout.fingerprint;
        if (s->other_model) body.fingerprint.bytes[1] ^= 1;
        body.cache_salt = (qr_bytes_t){(const uint8_t *)"pepper", 6};
        body.text = (qr_bytes_t){(const uint8_t *)"\xFEhi", 3};
        body.tokens = (qr_u32s_t){ids, 2};
    }
    s->reads++;
    stand_say(s, now, STAND_FACTS, continuation_found, &body);
}
static void stand_save(stand_t *s, const qr_continuation_save_t *b, uint64_t now)
{
    s->saves++;
    s->last_saved_count = (uint32_t)b->tokens.count;
    snprintf(s->last_saved, sizeof s->last_saved, "%.*s", (int)b->text.count, (const char *)b->text.data);
    stand_say(s, now, STAND_FACTS, continuation_saved,
              &(qr_continuation_saved_t){
                  .key = b->key, .name = b->name, .owner = b->owner, .created_us = 5000000, .token_count = s->last_saved_count});
}

static void stand_hear(stand_t *s, const qr_message_t *m, uint64_t now)
{
    static const uint32_t ids[] = {1, 4, 6, 13}; /* three counters and a gauge of metric.def */
    uint64_t values[] = {s->submits + s->metrics_add, s->cancels, s->open_now, 0};
    switch (m->type) {
    case QR_MESSAGE_request_submit: stand_submit(s, &m->body.request_submit, now); break;
    case QR_MESSAGE_request_cancel: {
        s->cancels++;
        s->last_cancel_reason = m->body.request_cancel.reason;
        stand_request_t *r = stand_find(s, m->body.request_cancel.key);
        if (r) stand_end(s, r, QR_FINISH_CANCELLED, 0, now);
        break;
    }
    case QR_MESSAGE_probe:
        s->probes++;
        if (!s->probe_silent)
            stand_say(s, now, m->to, probe_done, &(qr_probe_done_t){.probe_id = m->body.probe.probe_id, .reason = s->probe_reason});
        break;
    case QR_MESSAGE_metrics_read:
        if (!s->metrics_silent || m->to == STAND_GATEWAY)
            stand_say(s, now, m->to, metrics, &(qr_metrics_t){.ids = {ids, 4}, .values = {values, 4}});
        break;
    case QR_MESSAGE_cache_drop:
        s->drops++;
        stand_say(s, now, m->to, cache_dropped, &(qr_cache_dropped_t){.pages_free = 7, .pages_held = 1, .pages_pool = 8});
        break;
    case QR_MESSAGE_ready:
        s->ready_reason = m->body.ready.reason;
        snprintf(s->ready_text, sizeof s->ready_text, "%.*s", (int)m->body.ready.text.count, (const char *)m->body.ready.text.data);
        break;
    case QR_MESSAGE_continuation_read: stand_found(s, &m->body.continuation_read, now); break;
    case QR_MESSAGE_continuation_save: stand_save(s, &m->body.continuation_save, now); break;
    case QR_MESSAGE_text_encode: { /* the text in its marks, an id for each of three bytes */
        static const uint32_t three[] = {1, 2, 3};
        s->renders++;
        stand_say(s, now, qr_address(1, 0, QR_ROLE_text, 0), text_encoded,
                  &(qr_text_encoded_t){.request_id = m->body.text_encode.request_id,
                                       .tokens = {three, 3},
                                       .rendered = {(const uint8_t *)"\xFE"
                                                                     "abc\xFF",
                                                    5}});
        break;
    }
    case QR_MESSAGE_drained: s->drained = 1; break;
    case QR_MESSAGE_stopped: s->stopped = 1; break;
    default: fail_msg("the actor sent a message of type %u", m->type);
    }
}

static void stand_flush(stand_t *s, uint64_t now)
{
    assert_true(s->outbox.count <= qr_http_class.max_out);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->outbox.count; i++) stand_hear(s, &s->outbox.messages[i], now);
    pthread_mutex_unlock(&s->lock);
}

static void stand_deliver(stand_t *s, uint64_t now)
{
    for (;;) {
        uint32_t best = s->pending_count;
        for (uint32_t i = 0; i < s->pending_count; i++)
            if (s->pending[i]->due_us <= now && (best == s->pending_count || s->pending[i]->order < s->pending[best]->order)) best = i;
        if (best == s->pending_count) return;
        pending_t *p = s->pending[best];
        s->pending[best] = s->pending[--s->pending_count];
        p->message.now_us = now;
        qr_outbox_reset(&s->outbox, qr_http_class.max_out);
        qr_http_class.handle(s->actor, &s->given, &p->message, &s->outbox);
        stand_flush(s, now);
        free(p->bytes);
        free(p);
    }
}

static void *stand_run(void *context)
{
    stand_t *s = context;
    uint64_t next_step = 0;
    for (bool ending = false; !ending;) {
        uint64_t now = stand_now_us();
        pthread_mutex_lock(&s->lock);
        ending = s->ending;
        if (s->stopping) stand_say(s, now, STAND_MESH, stop, &(qr_stop_t){.budget_us = 1000000});
        if (s->draining) stand_say(s, now, STAND_MESH, drain, &(qr_drain_t){.budget_us = 2000000});
        if (s->probe_late) stand_say(s, now, STAND_GATEWAY, probe_done, &(qr_probe_done_t){.probe_id = s->probes});
        s->stopping = s->draining = s->probe_late = false;
        if (s->client_timeout_ms == s->given.params.client_timeout_ms)
            s->client_timeout_ms = 0;
        else if (s->client_timeout_ms)
            s->given.params.client_timeout_ms = s->client_timeout_ms;
        if (now >= next_step) {
            stand_step(s, now);
            next_step = now + s->step_us;
        }
        pthread_mutex_unlock(&s->lock);
        stand_deliver(s, now);
        qr_outbox_reset(&s->outbox, qr_http_class.max_out);
        uint64_t look = qr_http_class.work(s->actor, &s->given, stand_now_us(), &s->outbox);
        stand_flush(s, now);
        stand_deliver(s, stand_now_us());
        struct pollfd fd = {.fd = qr_http_class.wake_descriptor(s->actor), .events = POLLIN};
        if (look > now) poll(&fd, 1, 1);
    }
    return NULL;
}

static stand_t *stand_new(uint32_t context)
{
    stand_t *s = calloc(1, sizeof *s);
    qr_params_init(&s->given.params);
    strcpy(s->given.params.listen, "127.0.0.1:0");
    strcpy(s->model.name, "tiny");
    s->given.model = &s->model;
    s->given.layout.context_tokens = context;
    s->given.layout.fingerprint.bytes[0] = 0xab;
    for (uint32_t i = 0; i < STAND_VOCABULARY; i++) {
        s->offsets[i + 1] = s->offsets[i] + 1;
        s->vocabulary_bytes[i] = (uint8_t)i;
    }
    s->given.vocabulary = (qr_vocabulary_t){STAND_VOCABULARY, 0, s->offsets, s->vocabulary_bytes, s->flags};
    s->step_us = 2000;
    s->batch_tokens = 1;
    pthread_mutex_init(&s->lock, NULL);
    s->messages = calloc(qr_http_class.max_out, sizeof *s->messages);
    s->outbox_bytes = malloc(QR_OUTBOX_BYTES);
    qr_outbox_init(&s->outbox, s->messages, qr_http_class.max_out, s->outbox_bytes, QR_OUTBOX_BYTES);
    s->actor = calloc(1, qr_http_class.bytes(&s->given));
    qr_http_class.init(s->actor, &s->given, STAND_HTTP);
    return s;
}

/* Says start and runs. false: the actor refused (ready_reason says why). */
static bool stand_start(stand_t *s)
{
    uint64_t partners[] = {STAND_PAGES, qr_address(1, 1, QR_ROLE_worker, 0), STAND_FACTS};
    stand_say(s, 0, STAND_MESH, start, &(qr_start_t){.epoch = 1, .seed = 1, .partners = {partners, s->facts ? 3 : 2}});
    stand_deliver(s, stand_now_us());
    s->port = qr_http_port(s->actor);
    if (s->ready_reason) return false;
    assert_int_equal(pthread_create(&s->thread, NULL, stand_run, s), 0);
    return true;
}

static void stand_destroy(stand_t *s)
{
    if (s->thread) {
        stand_set(s, ending, true);
        pthread_join(s->thread, NULL);
    }
    qr_http_class.done(s->actor);
    for (uint32_t i = 0; i < s->pending_count; i++) {
        free(s->pending[i]->bytes);
        free(s->pending[i]);
    }
    free(s->actor);
    free(s->messages);
    free(s->outbox_bytes);
    free(s);
}

/* Reads a number of the script under its lock. */
static inline uint32_t stand_get(stand_t *s, const uint32_t *number)
{
    pthread_mutex_lock(&s->lock);
    uint32_t value = *number;
    pthread_mutex_unlock(&s->lock);
    return value;
}
/* Waits until a number of the script is so large; false: it never was. */
static bool stand_wait(stand_t *s, const uint32_t *number, uint32_t least)
{
    for (uint32_t ms = 0; ms < STAND_WAIT_S * 1000; ms++) {
        if (stand_get(s, number) >= least) return true;
        usleep(1000);
    }
    return false;
}

/* ---- a client ----------------------------------------------------------------------------------------------------------------- */

static int client_connect(const stand_t *s)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    struct timeval limit = {.tv_sec = STAND_WAIT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}
/* false when the other side closed. */
static bool client_send(int fd, const void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t sent = send(fd, (const char *)bytes + at, count - at, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += (size_t)sent;
    }
    return true;
}

typedef struct reply {
    int status;  /* 0: nothing came */
    char *bytes; /* head and body as they came, NUL-terminated */
    size_t count;
    char *body; /* into bytes, chunks undone */
    bool whole; /* a chunked body had its end, or Content-Length bytes came */
    bool closed; /* the server closed; else it was silent to the end */
    uint64_t took_us;
} reply_t;

static void undo_chunks(reply_t *r)
{
    char *from = r->body, *to = r->body, *end = r->bytes + r->count;
    while (from < end) {
        char *after;
        unsigned long size = strtoul(from, &after, 16);
        if (after == from || after + 2 > end) break;
        from = after + 2;
        if (size == 0) {
            r->whole = true;
            break;
        }
        if (size > (size_t)(end - from)) size = (size_t)(end - from);
        memmove(to, from, size);
        to += size;
        from += size + 2;
    }
    *to = 0;
}

/* Reads until the server closes (or STAND_WAIT_S of silence). */
static reply_t client_read(int fd)
{
    reply_t r = {0};
    uint64_t start = stand_now_us();
    size_t capacity = 1 << 16;
    r.bytes = malloc(capacity);
    for (;;) {
        if (r.count + 65536 > capacity) r.bytes = realloc(r.bytes, capacity *= 2);
        ssize_t got = recv(fd, r.bytes + r.count, 65535, 0);
        r.closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
        if (got <= 0) break;
        r.count += (size_t)got;
    }
    r.bytes[r.count] = 0;
    r.took_us = stand_now_us() - start;
    if (sscanf(r.bytes, "HTTP/1.1 %d", &r.status) != 1) r.status = 0;
    r.body = strstr(r.bytes, "\r\n\r\n");
    r.body = r.body ? r.body + 4 : r.bytes + r.count;
    char *length = strcasestr(r.bytes, "Content-Length: ");
    if (length && length < r.body) r.whole = (size_t)(r.bytes + r.count - r.body) >= strtoul(length + 16, NULL, 10);
    char *chunked = strcasestr(r.bytes, "Transfer-Encoding: chunked");
    if (chunked && chunked < r.body) undo_chunks(&r);
    return r;
}

/* The reply, and after it everything the script wrote before it (a socket orders nothing for the reader of memory). */
static reply_t client_finish(stand_t *s, int fd)
{
    reply_t r = client_read(fd);
    close(fd);
    pthread_mutex_lock(&s->lock);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static reply_t client_ask_raw(stand_t *s, const void *bytes, size_t count)
{
    int fd = client_connect(s);
    (void)client_send(fd, bytes, count);
    return client_finish(s, fd);
}
static int client_open_post(const stand_t *s, const char *path, const char *body)
{
    int fd = client_connect(s);
    char head[512];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                     path, strlen(body));
    client_send(fd, head, (size_t)n);
    client_send(fd, body, strlen(body));
    return fd;
}
static reply_t client_post(stand_t *s, const char *path, const char *body) { return client_finish(s, client_open_post(s, path, body)); }
static reply_t client_get(stand_t *s, const char *path)
{
    char head[512];
    int n = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    return client_ask_raw(s, head, (size_t)n);
}

#endif
