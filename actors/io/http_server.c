/* http_server.c - see http_server.h.
 *
 * libmicrohttpd runs one epoll thread. Its faults that matter here, and what is done about them:
 * - it accepts several Content-Length headers, Content-Length with Transfer-Encoding, and unknown encodings: counted and refused
 *   in check_framing, with the connection closed, before a byte of the body is looked at;
 * - it takes any bytes for a header's name and puts a folded line behind the name, not behind the value: refused there too;
 * - it does not see that the client of a suspended connection left: those are in an epoll set of ours;
 * - it cannot answer in the middle of a body: send_raw writes the answer itself, and the socket lingers so that the client can
 *   read it;
 * - a header that trickles in keeps its connection alive for ever: connections have a deadline of ours while they send;
 * - it takes a short read for the last one, so an end that came together with bytes is not seen until the deadline: sweep looks. */
#include "actors/io/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/mutant.h"
#include "model/model.h"

enum { LINGERS_MAX = 32, LINGER_BYTES_MAX = 16 << 20, EVENTS = 64, BLOCK_BYTES = 4096, SWEEP_US = 250000, LINGER_US = 2000000 };
enum { SEND_BYTES_LEAST = 4096, SEND_BYTES_MOST = 131072 }; /* asked for one client; the system takes twice as much */
enum { BODY_BYTES_PER_S_LEAST = 1024 }; /* a body or an answer may take client_timeout and a second more for each of these */
static const uint64_t KEY_WAKE = UINT64_MAX, KEY_LINGER = 1ull << 63;

/* One TCP connection. */
typedef struct connection {
    struct connection *previous, *next;
    int fd;
    bool in_body;         /* a request has begun and its body is not whole */
    uint64_t deadline_us; /* for the bytes it sends, or reads of a finished answer; QR_NEVER_US while that is made */
} connection_t;

typedef struct farewell {
    int fd; /* 0: free */
    uint64_t deadline_us, bytes;
} farewell_t;

typedef struct route route_t;

/* One HTTP request on libmicrohttpd's side. */
typedef struct call {
    const route_t *route;
    uint32_t tenant; /* index + 1, 0: there are none */
    connection_t *connection;
    qr_http_buffer_t body;
    qr_http_exchange_t *exchange;
    uint64_t body_since_us;
    bool refused; /* answered before the body */
    qr_http_continuation_t continuation;
} call_t;

struct qr_http_server {
    const qr_given_t *given;
    qr_keys_t *keys; /* NULL: nobody needs one */
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    int listen_fd, wake_fd, watch_fd;
    uint16_t port;
    char name[300];
    uint32_t refuse_reason;
    bool refuse_all;               /* every exchange, not completions alone */
    bool closing;                  /* nothing may be suspended any more: libmicrohttpd does not stop over a suspended connection */
    qr_http_exchange_t *exchanges; /* [QR_HTTP_EXCHANGES_MAX] */
    uint32_t free_list[QR_HTTP_EXCHANGES_MAX], free_count;
    uint32_t queue[QR_HTTP_EXCHANGES_MAX], queue_head, queue_count;
    uint32_t left_count, left_from; /* exchanges with left_queued; where to look for the next */
    connection_t *connections;
    uint64_t connection_count, answers, errors, open;
    size_t held_bytes; /* bodies and parsed requests */
    uint64_t next_id, created_s, sweep_us;
    farewell_t lingers[LINGERS_MAX];
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static void lock(qr_http_server_t *s) { qr_assert(pthread_mutex_lock(&s->lock) == 0); }
static void unlock(qr_http_server_t *s) { qr_assert(pthread_mutex_unlock(&s->lock) == 0); }

static void wake(const qr_http_server_t *s)
{
    uint64_t one = 1;
    ssize_t written = write(s->wake_fd, &one, sizeof one);
    (void)written; /* EAGAIN: it is awake already */
}

/* ---- exchanges, under the lock ------------------------------------------------------------------------------------------------- */

static qr_http_exchange_t *exchange_take(qr_http_server_t *s)
{
    if (s->free_count == 0) return NULL;
    qr_http_exchange_t *x = &s->exchanges[s->free_list[--s->free_count]];
    uint32_t index = x->index, generation = x->generation;
    memset(x, 0, sizeof *x);
    x->index = index;
    x->generation = generation;
    x->fd = -1;
    s->open++;
    return x;
}

static void exchange_free_if_done(qr_http_server_t *s, qr_http_exchange_t *x)
{
    if (x->mhd_holds || x->actor_holds) return;
    if (x->request) qr_http_request_done(x->request);
    free(x->request);
    x->request = NULL;
    s->held_bytes -= x->held_bytes;
    x->held_bytes = 0;
    qr_http_answer_done(&x->answer);
    qr_http_buffer_done(&x->out);
    if (++x->generation == 0) x->generation = 1;
    s->free_list[s->free_count++] = x->index;
}

static void resume(qr_http_exchange_t *x)
{
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* The answer is complete: from here on its client has a time to read what waits. */
static void expect_reading(qr_http_server_t *s, qr_http_exchange_t *x)
{
    connection_t *c = x->peer;
    if (c && !QR_MUTANT(255))
        c->deadline_us =
            now_us() + s->given->params.client_timeout_ms * 1000 + (x->out.count - x->out_at) * 1000000 / BODY_BYTES_PER_S_LEAST;
}

/* Tells the actor that nobody waits for this exchange any more. */
static void push_left(qr_http_server_t *s, qr_http_exchange_t *x)
{
    if (x->left || !x->actor_holds) return;
    x->left = true;
    x->left_queued = true;
    s->left_count++;
    wake(s);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------- */

static const char *content_type(const qr_http_exchange_t *x)
{
    return x && x->kind == QR_HTTP_METRICS && x->status == 200 ? "text/plain; version=0.0.4; charset=utf-8" : "application/json";
}

static void count_answer(qr_http_server_t *s, uint32_t status)
{
    lock(s);
    s->answers++;
    s->errors += status >= 400;
    unlock(s);
}

static const char challenge[] = "Bearer realm=\"quire\""; /* goes with every 401 (RFC 9110, 11.6.1) */

/* Queues a whole answer; takes the body. */
static enum MHD_Result answer(qr_http_server_t *s, struct MHD_Connection *c, uint32_t status, uint32_t retry_after_s, const char *type,
                              const char *allow, bool close_after, qr_http_buffer_t *body)
{
    struct MHD_Response *r = body->failed ? NULL : MHD_create_response_from_buffer(body->count, body->data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        qr_http_buffer_done(body);
        return MHD_NO;
    }
    *body = (qr_http_buffer_t){0};
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    if (allow) MHD_add_response_header(r, "Allow", allow);
    if (close_after) MHD_add_response_header(r, "Connection", "close");
    if (status == 401 && !QR_MUTANT(668)) MHD_add_response_header(r, "WWW-Authenticate", challenge);
    if (retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", retry_after_s);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    enum MHD_Result result = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    count_answer(s, status);
    return result;
}

static enum MHD_Result answer_error(qr_http_server_t *s, struct MHD_Connection *c, const qr_http_error_t *error, const char *allow,
                                    bool close_after)
{
    qr_http_buffer_t body = {0};
    qr_http_put_error(&body, error);
    return answer(s, c, error->status, error->retry_after_s, "application/json", allow, close_after, &body);
}

static void linger(qr_http_server_t *s, int fd)
{
    lock(s);
    for (uint32_t i = 0; i < LINGERS_MAX; i++) {
        if (s->lingers[i].fd) continue;
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = KEY_LINGER | i};
        if (copy >= 0 && epoll_ctl(s->watch_fd, EPOLL_CTL_ADD, copy, &event) == 0)
            s->lingers[i] = (farewell_t){copy, now_us() + LINGER_US, 0};
        else if (copy >= 0)
            close(copy);
        break;
    }
    unlock(s);
}

/* Answers in the middle of a request, past libmicrohttpd, and ends our half of the connection. */
static void send_raw(int fd, const qr_http_error_t *error)
{
    static const struct {
        uint32_t status;
        const char *phrase;
    } phrases[] = {
        {401, "Unauthorized"}, {403, "Forbidden"}, {408, "Request Timeout"}, {413, "Content Too Large"}, {503, "Service Unavailable"}};
    const char *phrase = "Bad Request";
    for (size_t i = 0; i < QR_COUNT(phrases); i++)
        if (phrases[i].status == error->status) phrase = phrases[i].phrase;
    qr_http_buffer_t body = {0}, whole = {0};
    qr_http_put_error(&body, error);
    char head[256];
    snprintf(head, sizeof head,
             "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n%s%s%s%s\r\n", error->status,
             phrase, body.count, error->retry_after_s ? "Retry-After: 1\r\n" : "", error->status == 401 ? "WWW-Authenticate: " : "",
             error->status == 401 && !QR_MUTANT(668) ? challenge : "", error->status == 401 ? "\r\n" : "");
    qr_http_put(&whole, head);
    qr_http_put_bytes(&whole, body.data, body.count);
    ssize_t sent = whole.failed ? -1 : send(fd, whole.data, whole.count, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* a client that does not read gets the close alone */
    shutdown(fd, SHUT_WR);
    qr_http_buffer_done(&body);
    qr_http_buffer_done(&whole);
}

static int fd_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static enum MHD_Result refuse_body(qr_http_server_t *s, struct MHD_Connection *c, const qr_http_error_t *error)
{
    int fd = fd_of(c);
    send_raw(fd, error);
    linger(s, fd);
    count_answer(s, error->status);
    return MHD_NO;
}

static void too_large(const qr_http_server_t *s, qr_http_error_t *error)
{
    qr_http_error_invalid(error, "", "the body is larger than %llu bytes", (unsigned long long)s->given->params.body_bytes);
    error->status = 413;
    error->code = "body_too_large";
}

/* ---- streams ------------------------------------------------------------------------------------------------------------------------ */

/* Gives libmicrohttpd what is queued; suspends the connection when nothing is. */
static ssize_t read_stream(void *context, uint64_t position, char *to, size_t most)
{
    (void)position;
    qr_http_exchange_t *x = ((void **)context)[0];
    qr_http_server_t *s = ((void **)context)[1];
    ssize_t result = 0;
    lock(s);
    size_t count = qr_min_u64(x->out.count - x->out_at, most);
    if (x->aborted) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (count) {
        memcpy(to, x->out.data + x->out_at, count);
        x->out_at += count;
        if (x->out_at == x->out.count) x->out_at = x->out.count = 0;
        result = (ssize_t)count;
    } else if (x->answered) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    unlock(s);
    return result;
}

static enum MHD_Result begin_stream(qr_http_server_t *s, struct MHD_Connection *c, qr_http_exchange_t *x)
{
    void **context = malloc(2 * sizeof *context);
    if (!context) return MHD_NO;
    context[0] = x;
    context[1] = s;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, context, free);
    if (!r) {
        free(context);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    enum MHD_Result result = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    count_answer(s, 200);
    return result;
}

/* ---- routes -------------------------------------------------------------------------------------------------------------------------- */

/* Whose key a route takes when there is a keys file. */
enum { ANYBODY, TENANT, ADMIN };
typedef enum MHD_Result (*route_fn)(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url);
struct route {
    const char *path;
    const char *method; /* GET also serves HEAD */
    bool prefix;        /* anything may follow */
    uint8_t access;
    route_fn serve;
};

static enum MHD_Result hand_over(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, uint8_t kind, qr_http_request_t *request,
                                 size_t held)
{
    qr_http_error_t error;
    lock(s);
    uint32_t refuse = kind == QR_HTTP_COMPLETION || s->refuse_all ? s->refuse_reason : 0;
    bool closing = s->closing;
    qr_http_exchange_t *x = refuse || closing ? NULL : exchange_take(s);
    if (!x) {
        unlock(s);
        if (request) qr_http_request_done(request);
        free(request);
        if (closing) return MHD_NO;
        qr_http_error_reason(&error, refuse ? refuse : QR_E_BUSY, (qr_bytes_t){0}, (qr_bytes_t){0}, 1000);
        return answer_error(s, c, &error, NULL, false);
    }
    x->kind = kind;
    x->continuation = call->continuation;
    x->tenant = call->tenant;
    x->mhd_holds = x->actor_holds = true;
    x->connection = c;
    x->peer = call->connection;
    x->fd = fd_of(c);
    x->request = request;
    x->held_bytes = held;
    s->held_bytes += held;
    if (request) {
        uint64_t id = ++s->next_id * 0x9e3779b97f4a7c15u;
        qr_http_answer_init(&x->answer, request, s->given->model ? s->given->model->name : "default", &s->given->layout.fingerprint,
                            id ^ id >> 32, (uint64_t)time(NULL));
    }
    call->exchange = x;
    x->queued = true;
    s->queue[(s->queue_head + s->queue_count++) % QR_HTTP_EXCHANGES_MAX] = x->index;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = qr_http_key(x)};
    (void)epoll_ctl(s->watch_fd, EPOLL_CTL_ADD, x->fd, &event);
    x->suspended = true;
    MHD_suspend_connection(c);
    unlock(s);
    wake(s);
    return MHD_YES;
}

static enum MHD_Result serve_request(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, bool chat)
{
    const qr_given_t *given = s->given;
    qr_http_limits_t limits = {given->model ? given->model->name : "default", given->vocabulary.count, given->layout.context_tokens};
    qr_http_error_t error;
    qr_http_request_t *request = malloc(sizeof *request);
    if (!request) return MHD_NO;
    size_t held = call->body.count;
    int refused = qr_http_request_parse(call->body.data ? call->body.data : "", call->body.count, chat, &limits, request, &error);
    lock(s);
    s->held_bytes -= call->body.count;
    unlock(s);
    qr_http_buffer_done(&call->body);
    if (!refused) return hand_over(s, c, call, QR_HTTP_COMPLETION, request, held);
    free(request);
    return answer_error(s, c, &error, NULL, false);
}
static enum MHD_Result serve_completions(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return serve_request(s, c, call, false);
}
static enum MHD_Result serve_chat(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return serve_request(s, c, call, true);
}

static void put_model(const qr_http_server_t *s, qr_http_buffer_t *out)
{
    const char *name = s->given->model ? s->given->model->name : "default";
    qr_http_put(out, "{\"id\":\"");
    qr_http_put_escaped(out, name, strlen(name));
    qr_http_put(out, "\",\"object\":\"model\",\"created\":");
    qr_http_put_u64(out, s->created_s);
    qr_http_put(out, ",\"owned_by\":\"quire\",\"max_model_len\":");
    qr_http_put_u64(out, s->given->layout.context_tokens);
    qr_http_put(out, "}");
}
static enum MHD_Result serve_models(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)call, (void)url;
    qr_http_buffer_t body = {0};
    qr_http_put(&body, "{\"object\":\"list\",\"data\":[");
    put_model(s, &body);
    qr_http_put(&body, "]}");
    return answer(s, c, 200, 0, "application/json", NULL, false, &body);
}
static enum MHD_Result serve_model(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)call;
    const char *asked = url + strlen("/v1/models/"), *name = s->given->model ? s->given->model->name : "default";
    if (strcmp(asked, name) != 0 && strcmp(asked, "default") != 0) {
        qr_http_error_t error;
        char why[300];
        snprintf(why, sizeof why, "no such model is served here; this server has '%.200s'", name);
        qr_http_error_reason(&error, QR_E_MODEL, (qr_bytes_t){(const uint8_t *)"model", 5}, (qr_bytes_t){(const uint8_t *)why, strlen(why)},
                             0);
        return answer_error(s, c, &error, NULL, false);
    }
    qr_http_buffer_t body = {0};
    put_model(s, &body);
    return answer(s, c, 200, 0, "application/json", NULL, false, &body);
}
static enum MHD_Result serve_health(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return hand_over(s, c, call, QR_HTTP_HEALTH, NULL, 0);
}
static enum MHD_Result serve_ready(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return hand_over(s, c, call, QR_HTTP_READY, NULL, 0);
}
static enum MHD_Result serve_metrics(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return hand_over(s, c, call, QR_HTTP_METRICS, NULL, 0);
}

static bool is_loopback_address(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, address, sizeof four);
        return (ntohl(four.sin_addr.s_addr) >> 24) == 127;
    }
    if (address->sa_family != AF_INET6) return false;
    struct sockaddr_in6 six;
    memcpy(&six, address, sizeof six);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return six.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

static bool is_loopback(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info && info->client_addr && is_loopback_address(info->client_addr);
}
static enum MHD_Result serve_drop(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    /* Without keys, this machine's programs. A page in a browser reaches loopback too, but always says where it came from. */
    if (s->keys) return hand_over(s, c, call, QR_HTTP_DROP, NULL, 0);
    if (is_loopback(c) && (QR_MUTANT(246) || !MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin")))
        return hand_over(s, c, call, QR_HTTP_DROP, NULL, 0);
    qr_http_error_t error;
    static const char why[] = "admin calls are served to programs on this machine only";
    qr_http_error_reason(&error, QR_E_PERMISSION, (qr_bytes_t){0}, (qr_bytes_t){(const uint8_t *)why, sizeof why - 1}, 0);
    return answer_error(s, c, &error, NULL, false);
}

static enum MHD_Result hand_over_continuation(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, uint8_t operation,
                                              const char *id, size_t id_bytes)
{
    qr_http_continuation_t *ask = &call->continuation;
    qr_http_error_t error;
    ask->operation = operation;
    if (id && !qr_http_continuation_id(id, id_bytes, ask->id)) {
        qr_http_error_reason(&error, QR_E_NOT_FOUND, (qr_bytes_t){0}, (qr_bytes_t){0}, 0);
        return answer_error(s, c, &error, NULL, false);
    }
    bool makes = operation == QR_HTTP_SAVE || operation == QR_HTTP_FORK;
    if (makes && qr_http_continuation_parse(call->body.data ? call->body.data : "", call->body.count, ask, &error))
        return answer_error(s, c, &error, NULL, false);
    if (makes && getrandom(ask->made, sizeof ask->made, 0) != sizeof ask->made) return MHD_NO;
    return hand_over(s, c, call, QR_HTTP_CONTINUATION, NULL, 0);
}
static const char continuations_path[] = "/v1/continuations/", fork_path[] = "/fork";
static enum MHD_Result serve_list(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return hand_over_continuation(s, c, call, QR_HTTP_LIST, NULL, 0);
}
static enum MHD_Result serve_save(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    (void)url;
    return hand_over_continuation(s, c, call, QR_HTTP_SAVE, NULL, 0);
}
static enum MHD_Result serve_show(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    const char *id = url + sizeof continuations_path - 1;
    return hand_over_continuation(s, c, call, QR_HTTP_SHOW, id, strlen(id));
}
static enum MHD_Result serve_forget(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    const char *id = url + sizeof continuations_path - 1;
    return hand_over_continuation(s, c, call, QR_HTTP_FORGET, id, strlen(id));
}
static enum MHD_Result serve_fork(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *url)
{
    const char *id = url + sizeof continuations_path - 1;
    size_t bytes = strlen(id), suffix = sizeof fork_path - 1;
    bool fork = bytes > suffix && !strcmp(id + bytes - suffix, fork_path);
    return hand_over_continuation(s, c, call, QR_HTTP_FORK, id, fork ? bytes - suffix : 0);
}

static const route_t routes[] = {
    {"/v1/completions", "POST", false, TENANT, serve_completions},
    {"/v1/chat/completions", "POST", false, TENANT, serve_chat},
    {"/v1/models", "GET", false, TENANT, serve_models},
    {"/v1/models/", "GET", true, TENANT, serve_model},
    {"/v1/continuations", "GET", false, TENANT, serve_list},
    {"/v1/continuations", "POST", false, TENANT, serve_save},
    {continuations_path, "GET", true, TENANT, serve_show},
    {continuations_path, "POST", true, TENANT, serve_fork},
    {continuations_path, "DELETE", true, TENANT, serve_forget},
    {"/healthz", "GET", false, ANYBODY, serve_health},
    {"/readyz", "GET", false, ANYBODY, serve_ready},
    {"/health", "GET", false, ANYBODY, serve_ready},
    {"/metrics", "GET", false, ADMIN, serve_metrics},
    {"/admin/cache/drop", "POST", false, ADMIN, serve_drop},
};

static bool serves(const route_t *route, const char *method)
{
    return !strcmp(route->method, method) || (!strcmp(route->method, "GET") && !strcmp(method, "HEAD"));
}

/* The route of a path for a method; of the path alone when no route of it has the method; NULL: nothing is there. allow: what is served. */
static const route_t *find_route(const char *url, const char *method, char allow[64])
{
    const route_t *found = NULL;
    allow[0] = 0;
    for (size_t i = 0; i < QR_COUNT(routes); i++) {
        const route_t *route = &routes[i];
        if (route->prefix ? strncmp(url, route->path, strlen(route->path)) != 0 || !url[strlen(route->path)]
                          : strcmp(url, route->path) != 0)
            continue;
        snprintf(allow + strlen(allow), 64 - strlen(allow), "%s, ", strcmp(route->method, "GET") != 0 ? route->method : "GET, HEAD");
        if (!found || serves(route, method)) found = route;
    }
    if (found) snprintf(allow + strlen(allow), 64 - strlen(allow), "OPTIONS");
    return found;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------------
 */

typedef struct credentials {
    uint32_t count;    /* of Authorization headers */
    const char *value; /* of the last */
} credentials_t;

static enum MHD_Result find_credentials(void *context, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind;
    credentials_t *found = context;
    if (strcasecmp(key, "Authorization") != 0) return MHD_YES;
    found->count++;
    found->value = value;
    return MHD_YES;
}

/* The token of `Bearer TOKEN` (RFC 6750, 2.1), in the header's own memory. NULL: there is none. */
static const char *bearer_of(const char *value, size_t *ret_bytes)
{
    static const char scheme[] = "Bearer";
    size_t bytes = sizeof scheme - 1;
    if (!value || strncasecmp(value, scheme, bytes) != 0 || value[bytes] != ' ') return NULL;
    value += bytes;
    value += strspn(value, " ");
    *ret_bytes = strcspn(value, " \t");
    return *ret_bytes && !value[*ret_bytes + strspn(value + *ret_bytes, " \t")] ? value : NULL;
}

/* Sets the call's tenant. true: *error says why the key, or its absence, does not do. */
static bool check_key(const qr_http_server_t *s, struct MHD_Connection *c, call_t *call, qr_http_error_t *error)
{
    if (!s->keys || call->route->access == ANYBODY) return false;
    credentials_t found = {0};
    size_t bytes = 0;
    uint32_t tenant = 0;
    bool admin = false;
    MHD_get_connection_values(c, MHD_HEADER_KIND, find_credentials, &found);
    const char *bearer = found.count == 1 || QR_MUTANT(669) ? bearer_of(found.value, &bytes) : NULL;
    if (!bearer || !qr_keys_find(s->keys, bearer, bytes, &tenant, &admin)) {
        qr_http_error_invalid(error, "", "%s",
                              bearer ? "this server does not know the API key"
                                     : "this server needs an API key, in one header: Authorization: Bearer KEY");
        error->status = 401;
        error->code = "invalid_api_key";
        return true;
    }
    call->tenant = tenant + 1;
    if (admin || call->route->access != ADMIN || QR_MUTANT(670)) return false;
    static const char why[] = "this path needs a key that is marked admin";
    qr_http_error_reason(error, QR_E_PERMISSION, (qr_bytes_t){0}, (qr_bytes_t){(const uint8_t *)why, sizeof why - 1}, 0);
    return true;
}

const qr_tenant_t *qr_http_server_tenant(const qr_http_server_t *s, const qr_http_exchange_t *x)
{
    return x->tenant ? &s->keys->tenants[x->tenant - 1] : NULL;
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------------------------------------------------
 */

typedef struct framing {
    uint32_t lengths, encodings, hosts;
    bool malformed, old_chunks, bad_length, bad_encoding, coded;
    uint64_t length;
} framing_t;

/* A name of token characters (RFC 9110, 5.6.2), with its value behind it. A folded line makes a new name, elsewhere in memory. */
static bool is_plain_header(const char *key, const char *value)
{
    static const char letters[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t bytes = strspn(key, letters);
    return bytes && !key[bytes] && (uintptr_t)value - (uintptr_t)(key + bytes) <= QR_HTTP_CONNECTION_BYTES;
}
/* The two names that say where a body ends, with something behind them. */
static bool is_almost(const char *key, const char *name)
{
    size_t bytes = strlen(name);
    return !strncasecmp(key, name, bytes) && key[bytes];
}

static enum MHD_Result count_header(void *context, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind;
    framing_t *f = context;
    if (!value) value = key + strlen(key);
    if (!QR_MUTANT(253) && !is_plain_header(key, value)) f->malformed = true;
    if (!QR_MUTANT(253) && (is_almost(key, "Content-Length") || is_almost(key, "Transfer-Encoding"))) f->malformed = true;
    if (!strcasecmp(key, "Content-Length")) {
        f->lengths++;
        size_t digits = strspn(value, "0123456789");
        if (!digits || value[digits] || digits > 18)
            f->bad_length = true;
        else
            f->length = strtoull(value, NULL, 10);
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        f->encodings++;
        if (strcasecmp(value, "chunked") != 0) f->bad_encoding = true;
    } else if (!strcasecmp(key, "Content-Encoding")) {
        if (strcasecmp(value, "identity") != 0) f->coded = true;
    } else if (!strcasecmp(key, "Host")) {
        f->hosts++;
    }
    return MHD_YES;
}

/* The shapes that two servers in a row may read differently are refused, whatever they mean. true: *error says why. */
static bool check_framing(const qr_http_server_t *s, struct MHD_Connection *c, const char *version, qr_http_error_t *error, bool *ret_raw)
{
    framing_t f = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, count_header, &f);
    f.old_chunks = f.encodings && strcmp(version, MHD_HTTP_VERSION_1_1) != 0 && !QR_MUTANT(254);
    const char *why = f.lengths > 1 && !QR_MUTANT(241)              ? "more than one Content-Length"
                      : f.lengths && f.encodings && !QR_MUTANT(240) ? "Content-Length together with Transfer-Encoding"
                      : f.encodings > 1 || f.bad_encoding           ? "a Transfer-Encoding other than chunked"
                      : f.bad_length                                ? "a Content-Length that is not a number"
                      : f.malformed                                 ? "a malformed or folded header line"
                      : f.old_chunks                                ? "a Transfer-Encoding before HTTP/1.1"
                      : f.hosts > 1                                 ? "more than one Host"
                                                                    : NULL;
    *ret_raw = false;
    if (why) {
        qr_http_error_invalid(error, "", "the request has %s", why);
        return true;
    }
    if (f.length > s->given->params.body_bytes) {
        too_large(s, error);
        *ret_raw = true;
        return true;
    }
    if (f.coded) {
        qr_http_error_invalid(error, "", "bodies with a Content-Encoding are not supported");
        error->status = 415;
    }
    return f.coded;
}

/* Whether the client owes us bytes: while it does its connection has a deadline of ours, else libmicrohttpd's. */
static void expect_body(qr_http_server_t *s, call_t *call, bool expected)
{
    connection_t *c = call->connection;
    if (!c) return;
    lock(s);
    c->in_body = expected;
    c->deadline_us = QR_NEVER_US;
    if (expected)
        c->deadline_us =
            call->body_since_us + s->given->params.client_timeout_ms * 1000 + call->body.count * 1000000 / BODY_BYTES_PER_S_LEAST;
    unlock(s);
}

static enum MHD_Result begin_call(qr_http_server_t *s, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  void **con_cls)
{
    call_t *call = calloc(1, sizeof *call);
    if (!call) return MHD_NO;
    *con_cls = call;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    call->connection = info ? info->socket_context : NULL;
    call->body_since_us = now_us();
    expect_body(s, call, false);
    qr_http_error_t error;
    bool raw;
    call->refused = true;
    if (check_framing(s, c, version, &error, &raw)) return raw ? refuse_body(s, c, &error) : answer_error(s, c, &error, NULL, true);
    char allow[64];
    call->route = find_route(url, method, allow);
    if (!call->route) {
        qr_http_error_invalid(&error, "",
                              "there is nothing at this path; this server has /v1/chat/completions, /v1/completions, /v1/models and "
                              "/v1/continuations");
        error.status = 404;
        error.code = "not_found";
        return answer_error(s, c, &error, NULL, true);
    }
    bool get = !strcmp(call->route->method, "GET");
    if (!strcmp(method, "OPTIONS")) {
        qr_http_buffer_t empty = {0};
        return answer(s, c, 204, 0, "text/plain", allow, false, &empty);
    }
    if (!serves(call->route, method)) {
        qr_http_error_invalid(&error, "", "this path is served by %s", allow);
        error.status = 405;
        error.code = "method_not_allowed";
        return answer_error(s, c, &error, allow, true);
    }
    /* A body may be on its way already: that answer goes around libmicrohttpd, so that the client can read it. */
    if (check_key(s, c, call, &error)) return get ? answer_error(s, c, &error, NULL, false) : refuse_body(s, c, &error);
    call->refused = false;
    expect_body(s, call, true);
    return MHD_YES;
}

static enum MHD_Result take_body(qr_http_server_t *s, struct MHD_Connection *c, call_t *call, const char *data, size_t *bytes)
{
    qr_http_error_t error;
    lock(s);
    bool full = s->held_bytes + *bytes > QR_HTTP_HELD_BYTES_MAX;
    bool large = call->body.count + *bytes > s->given->params.body_bytes && !QR_MUTANT(242);
    if (!full && !large) s->held_bytes += *bytes;
    unlock(s);
    if (large)
        too_large(s, &error);
    else if (full)
        qr_http_error_reason(&error, QR_E_MEMORY, (qr_bytes_t){0}, (qr_bytes_t){0}, 1000);
    if (large || full) return refuse_body(s, c, &error);
    qr_http_put_bytes(&call->body, data, *bytes);
    if (call->body.failed) {
        lock(s);
        s->held_bytes -= *bytes; /* what the body has already is given back at its end */
        unlock(s);
        return MHD_NO;
    }
    *bytes = 0;
    expect_body(s, call, true);
    return MHD_YES;
}

/* The connection was resumed: say what the actor decided. */
static enum MHD_Result continue_call(qr_http_server_t *s, struct MHD_Connection *c, qr_http_exchange_t *x)
{
    qr_http_buffer_t body = {0};
    lock(s);
    bool aborted = x->aborted, streaming = x->streaming, answered = x->answered;
    uint32_t status = x->status, retry_after_s = x->retry_after_s;
    if (!aborted && !streaming && answered) {
        body = x->out;
        x->out = (qr_http_buffer_t){0};
    } else if (!aborted && !streaming) { /* resumed for nothing */
        x->suspended = true;
        MHD_suspend_connection(c);
    }
    unlock(s);
    if (aborted) return MHD_NO;
    if (streaming) return begin_stream(s, c, x);
    return answered ? answer(s, c, status, retry_after_s, content_type(x), NULL, false, &body) : MHD_YES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *data, size_t *bytes, void **con_cls)
{
    qr_http_server_t *s = context;
    call_t *call = *con_cls;
    if (!call) return begin_call(s, c, url, method, version, con_cls);
    if (call->refused) {
        *bytes = 0;
        return MHD_YES;
    }
    if (call->exchange) return continue_call(s, c, call->exchange);
    if (*bytes) return take_body(s, c, call, data, bytes);
    expect_body(s, call, false);
    return call->route->serve(s, c, call, url);
}

static void on_completed(void *context, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode code)
{
    (void)c, (void)code;
    qr_http_server_t *s = context;
    call_t *call = *con_cls;
    if (!call) return;
    *con_cls = NULL;
    lock(s);
    s->held_bytes -= call->body.count;
    if (call->connection) { /* it may be used again, or is idle until its end */
        call->connection->deadline_us = now_us() + s->given->params.client_timeout_ms * 1000;
        call->connection->in_body = false;
    }
    qr_http_exchange_t *x = call->exchange;
    if (x) {
        (void)epoll_ctl(s->watch_fd, EPOLL_CTL_DEL, x->fd, NULL);
        x->mhd_holds = false;
        x->connection = x->peer = NULL;
        x->fd = -1;
        s->open--;
        push_left(s, x);
        exchange_free_if_done(s, x);
    }
    unlock(s);
    qr_http_buffer_done(&call->body);
    free(call);
}

static void on_connection(void *context, struct MHD_Connection *c, void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    qr_http_server_t *s = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_t *made = calloc(1, sizeof *made);
        *socket_context = made;
        if (!made) return;
        made->fd = fd_of(c);
        made->deadline_us = now_us() + s->given->params.client_timeout_ms * 1000;
        lock(s);
        made->next = s->connections;
        if (made->next) made->next->previous = made;
        s->connections = made;
        bool first = s->connection_count++ == 0;
        unlock(s);
        if (first) wake(s); /* deadlines need somebody to look */
        return;
    }
    connection_t *gone = *socket_context;
    if (!gone) return;
    *socket_context = NULL;
    lock(s);
    if (gone->previous)
        gone->previous->next = gone->next;
    else
        s->connections = gone->next;
    if (gone->next) gone->next->previous = gone->previous;
    s->connection_count--;
    unlock(s);
    free(gone);
}

/* ---- start and end --------------------------------------------------------------------------------------------------------------------
 */

/* "host:port", "[::1]:port" or ":port" into its parts. */
static bool split_listen(const char *listen, char host[256], char port[8])
{
    const char *colon = strrchr(listen, ':');
    if (!colon || strlen(colon + 1) == 0 || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1)) return false;
    const char *from = listen, *to = colon;
    if (*from == '[') {
        if (to == from || to[-1] != ']') return false;
        from++;
        to--;
    }
    if (to < from || (size_t)(to - from) > 255) return false;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = 0;
    strcpy(port, colon + 1);
    return atoi(port) <= 65535;
}

/* The address to listen on, freeaddrinfo() it. Without keys it must be one that only this machine reaches. */
static int find_address(const qr_params_t *params, char host[256], struct addrinfo **ret_found, char *message, size_t message_bytes)
{
    const char *listen_on = params->listen;
    char port[8];
    if (!split_listen(listen_on, host, port)) {
        snprintf(message, message_bytes, "--listen %.200s: not an address and port; write for example 127.0.0.1:8080", listen_on);
        return -QR_E_INVALID;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    if (getaddrinfo(host[0] ? host : NULL, port, &hints, &found) != 0 || !found) {
        snprintf(message, message_bytes, "--listen %.200s: the address is not known on this machine; use 127.0.0.1 or 0.0.0.0", listen_on);
        return -QR_E_INVALID;
    }
    if (!params->keys[0] && !is_loopback_address(found->ai_addr) && !QR_MUTANT(671)) {
        freeaddrinfo(found);
        snprintf(message, message_bytes,
                 "--listen %.200s: others can reach this address, so clients must show keys: add --keys FILE (`quire keys --bearer NAME` "
                 "makes its lines), or listen on 127.0.0.1",
                 listen_on);
        return -QR_E_PERMISSION;
    }
    *ret_found = found;
    return 0;
}

static int open_socket(qr_http_server_t *s, const qr_params_t *params, char *message, size_t message_bytes)
{
    const char *listen_on = params->listen;
    char host[256];
    struct addrinfo *found;
    int status = find_address(params, host, &found, message, message_bytes);
    if (status) return status;
    /* What the system keeps for one client is bounded as our own queue is; the accepted sockets inherit it. */
    int one = 1, error = 0, send_bytes = (int)qr_min_u64(qr_max_u64(s->given->params.stream_bytes / 2, SEND_BYTES_LEAST), SEND_BYTES_MOST);
    s->listen_fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listen_fd < 0 || setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        setsockopt(s->listen_fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes) ||
        bind(s->listen_fd, found->ai_addr, found->ai_addrlen) || listen(s->listen_fd, 1024))
        error = errno ? errno : EIO;
    freeaddrinfo(found);
    if (error == EADDRINUSE) {
        snprintf(message, message_bytes, "%.200s is in use; stop the program that listens there or choose another port with --listen",
                 listen_on);
        return -QR_E_IN_USE;
    }
    if (error == EACCES) {
        snprintf(message, message_bytes, "%.200s: not permitted; choose a port of 1024 or more with --listen", listen_on);
        return -QR_E_PERMISSION;
    }
    if (error) {
        snprintf(message, message_bytes, "--listen %.200s: %s", listen_on, strerror(error));
        return -QR_E_IO;
    }
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } bound;
    socklen_t bound_bytes = sizeof bound;
    if (getsockname(s->listen_fd, &bound.any, &bound_bytes) == 0)
        s->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.six.sin6_port : bound.four.sin_port);
    snprintf(s->name, sizeof s->name, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host[0] ? host : "0.0.0.0", s->port);
    return 0;
}

/* Connections need descriptors: takes what the system allows, returns how many connections that is. */
static unsigned connection_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return 512;
    rlim_t wanted = QR_HTTP_CONNECTIONS_MAX + 512;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur >= wanted ? QR_HTTP_CONNECTIONS_MAX : limit.rlim_cur > 300 ? (unsigned)limit.rlim_cur - 256 : 64;
}

static int start_daemon(qr_http_server_t *s)
{
    unsigned timeout_s = (unsigned)qr_max_u64(qr_div_up(s->given->params.client_timeout_ms, 1000), 1);
    s->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET,
                         s->listen_fd, MHD_OPTION_CONNECTION_LIMIT, connection_limit(), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)QR_HTTP_CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, timeout_s, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    return s->daemon ? 0 : -QR_E_IO;
}

int qr_http_server_check(const qr_params_t *params, char *message, size_t message_bytes)
{
    char host[256];
    struct addrinfo *found;
    qr_keys_t *keys = NULL;
    int error = params->keys[0] ? qr_keys_read(params->keys, &keys, message, message_bytes) : 0;
    free(keys);
    if (!error) error = find_address(params, host, &found, message, message_bytes);
    if (!error) freeaddrinfo(found);
    return error;
}

int qr_http_server_new(const qr_given_t *given, qr_http_server_t **ret_server, char *message, size_t message_bytes)
{
    qr_http_server_t *s = calloc(1, sizeof *s);
    if (s) s->exchanges = calloc(QR_HTTP_EXCHANGES_MAX, sizeof *s->exchanges);
    if (!s || !s->exchanges) {
        free(s);
        snprintf(message, message_bytes, "http: not enough memory");
        return -QR_E_MEMORY;
    }
    s->given = given;
    pthread_mutex_init(&s->lock, NULL);
    s->listen_fd = -1;
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    s->created_s = (uint64_t)time(NULL);
    if (getrandom(&s->next_id, sizeof s->next_id, GRND_NONBLOCK) != sizeof s->next_id) s->next_id = now_us() ^ s->created_s << 32;
    for (uint32_t i = 0; i < QR_HTTP_EXCHANGES_MAX; i++) {
        s->exchanges[i].index = i;
        s->exchanges[i].generation = 1;
        s->free_list[s->free_count++] = QR_HTTP_EXCHANGES_MAX - 1 - i;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = KEY_WAKE};
    int error = s->wake_fd < 0 || s->watch_fd < 0 || epoll_ctl(s->watch_fd, EPOLL_CTL_ADD, s->wake_fd, &event) ? -QR_E_IO : 0;
    if (error) snprintf(message, message_bytes, "http: %s", strerror(errno));
    if (!error && given->params.keys[0]) error = qr_keys_read(given->params.keys, &s->keys, message, message_bytes);
    if (!error) error = open_socket(s, &given->params, message, message_bytes);
    if (!error && (error = start_daemon(s))) snprintf(message, message_bytes, "http: the server thread did not start");
    if (error) {
        qr_http_server_destroy(&s);
        return error;
    }
    *ret_server = s;
    return 0;
}

void qr_http_server_destroy(qr_http_server_t **server)
{
    qr_http_server_t *s = *server;
    if (!s) return;
    if (s->daemon) {
        lock(s);
        s->closing = true;
        for (uint32_t i = 0; i < QR_HTTP_EXCHANGES_MAX; i++) {
            qr_http_exchange_t *x = &s->exchanges[i];
            if (!x->mhd_holds) continue;
            x->aborted = true;
            resume(x);
        }
        unlock(s);
        MHD_stop_daemon(s->daemon); /* closes the listening socket too */
    } else if (s->listen_fd >= 0) {
        close(s->listen_fd);
    }
    for (uint32_t i = 0; i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *x = &s->exchanges[i];
        if (x->request) qr_http_request_done(x->request);
        free(x->request);
        qr_http_answer_done(&x->answer);
        qr_http_buffer_done(&x->out);
    }
    for (uint32_t i = 0; i < LINGERS_MAX; i++)
        if (s->lingers[i].fd) close(s->lingers[i].fd);
    if (s->wake_fd >= 0) close(s->wake_fd);
    if (s->watch_fd >= 0) close(s->watch_fd);
    pthread_mutex_destroy(&s->lock);
    free(s->exchanges);
    free(s->keys);
    free(s);
    *server = NULL;
}

const char *qr_http_server_name(const qr_http_server_t *server) { return server->name; }
uint16_t qr_http_server_port(const qr_http_server_t *server) { return server->port; }
int qr_http_server_wake_descriptor(const qr_http_server_t *server) { return server->watch_fd; }

void qr_http_server_refuse(qr_http_server_t *s, uint32_t reason, bool all)
{
    lock(s);
    s->refuse_reason = reason;
    s->refuse_all = all;
    unlock(s);
}

/* ---- the actor's side -------------------------------------------------------------------------------------------------------------------
 */

static void client_left(qr_http_server_t *s, uint64_t key)
{
    uint32_t index = qr_handle_index(key);
    if (index >= QR_HTTP_EXCHANGES_MAX) return;
    qr_http_exchange_t *x = &s->exchanges[index];
    if (x->generation != qr_handle_generation(key) || !x->mhd_holds || QR_MUTANT(243)) return;
    x->aborted = true;
    push_left(s, x);
    resume(x);
}

static void drop_linger(farewell_t *l)
{
    close(l->fd);
    *l = (farewell_t){0};
}

/* Reads away what the client still sends, so that the close does not destroy the answer it has not read yet. */
static void drain_linger(farewell_t *l)
{
    char scratch[16384];
    for (int i = 0; i < 16; i++) {
        ssize_t got = recv(l->fd, scratch, sizeof scratch, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        l->bytes += got > 0 ? (uint64_t)got : 0;
        if (got <= 0 || l->bytes > LINGER_BYTES_MAX) {
            drop_linger(l);
            return;
        }
    }
}

/* Whether all that a client sent was read and no more will come. */
static bool has_ended(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 && !QR_MUTANT(895);
}

/* Connections that have sent for too long, or whose client left before it had sent a whole request, and lingering ones. */
static void sweep(qr_http_server_t *s, uint64_t now)
{
    for (connection_t *c = s->connections; c; c = c->next) {
        bool late = now >= c->deadline_us && !QR_MUTANT(245);
        if (!late && (c->deadline_us == QR_NEVER_US || !has_ended(c->fd))) continue;
        if (late && c->in_body) { /* an idle connection is closed without a word: it may be about to ask something else */
            qr_http_error_t error;
            qr_http_error_invalid(&error, "", "the request took too long to arrive");
            error.status = 408;
            error.code = "timeout";
            send_raw(c->fd, &error);
        }
        shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes it */
        c->deadline_us = QR_NEVER_US;
    }
    for (uint32_t i = 0; i < LINGERS_MAX; i++)
        if (s->lingers[i].fd && now >= s->lingers[i].deadline_us) drop_linger(&s->lingers[i]);
    s->sweep_us = now + SWEEP_US;
}

void qr_http_server_watch(qr_http_server_t *s)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(s->watch_fd, events, EVENTS, 0);
    uint64_t now = now_us();
    lock(s);
    for (int i = 0; i < count; i++) {
        uint64_t key = events[i].data.u64, ignored;
        if (key == KEY_WAKE) {
            ssize_t got = read(s->wake_fd, &ignored, sizeof ignored);
            (void)got;
        } else if (key & KEY_LINGER) {
            farewell_t *l = &s->lingers[key & ~KEY_LINGER];
            if (l->fd) drain_linger(l);
        } else {
            client_left(s, key);
        }
    }
    if (now >= s->sweep_us) sweep(s, now);
    unlock(s);
}

qr_http_exchange_t *qr_http_server_next(qr_http_server_t *s, bool *ret_left)
{
    qr_http_exchange_t *x = NULL;
    lock(s);
    if (s->queue_count) {
        x = &s->exchanges[s->queue[s->queue_head]];
        s->queue_head = (s->queue_head + 1) % QR_HTTP_EXCHANGES_MAX;
        s->queue_count--;
        x->queued = false;
        *ret_left = x->left;
    }
    unlock(s);
    return x;
}

qr_http_exchange_t *qr_http_server_next_left(qr_http_server_t *s)
{
    qr_http_exchange_t *x = NULL;
    lock(s);
    for (uint32_t i = 0; s->left_count && !x && i < QR_HTTP_EXCHANGES_MAX; i++) {
        qr_http_exchange_t *at = &s->exchanges[s->left_from];
        s->left_from = (s->left_from + 1) % QR_HTTP_EXCHANGES_MAX;
        if (!at->left_queued || at->queued) continue;
        at->left_queued = false;
        s->left_count--;
        x = at;
    }
    unlock(s);
    return x;
}

qr_http_exchange_t *qr_http_server_find(qr_http_server_t *s, uint64_t key)
{
    qr_http_exchange_t *x = qr_http_server_at(s, qr_handle_index(key));
    return x && x->generation == qr_handle_generation(key) ? x : NULL;
}

qr_http_exchange_t *qr_http_server_at(qr_http_server_t *s, uint32_t index)
{
    if (index >= QR_HTTP_EXCHANGES_MAX) return NULL;
    lock(s);
    qr_http_exchange_t *x = &s->exchanges[index];
    bool ours = x->actor_holds && !x->queued;
    unlock(s);
    return ours ? x : NULL;
}

void qr_http_server_count(qr_http_server_t *s, uint64_t *ret_connections, uint64_t *ret_answers, uint64_t *ret_errors, uint64_t *ret_open)
{
    lock(s);
    *ret_connections = s->connection_count;
    *ret_answers = s->answers;
    *ret_errors = s->errors;
    *ret_open = s->open;
    unlock(s);
}

void qr_http_exchange_free_request(qr_http_server_t *s, qr_http_exchange_t *x)
{
    if (x->request) qr_http_request_done(x->request);
    free(x->request);
    x->request = NULL;
    lock(s);
    s->held_bytes -= x->held_bytes;
    x->held_bytes = 0;
    unlock(s);
}

void qr_http_exchange_answer(qr_http_server_t *s, qr_http_exchange_t *x, uint32_t status, uint32_t retry_after_s, qr_http_buffer_t *body)
{
    lock(s);
    if (!x->answered && !x->streaming) {
        x->status = status;
        x->retry_after_s = retry_after_s;
        x->out = *body;
        *body = (qr_http_buffer_t){0};
        x->answered = true;
        expect_reading(s, x);
        resume(x);
    }
    unlock(s);
    qr_http_buffer_done(body);
}

void qr_http_exchange_refuse(qr_http_server_t *s, qr_http_exchange_t *x, const qr_http_error_t *error)
{
    qr_http_buffer_t body = {0};
    qr_http_put_error(&body, error);
    qr_http_exchange_answer(s, x, error->status, error->retry_after_s, &body);
}

int qr_http_exchange_stream(qr_http_server_t *s, qr_http_exchange_t *x, const qr_http_buffer_t *events, size_t most, bool end)
{
    int error = 0;
    lock(s);
    size_t waiting = x->out.count - x->out_at;
    if (x->answered) {
        error = 0;
    } else if (waiting + events->count > most && !QR_MUTANT(244)) {
        error = -QR_E_SLOW_CLIENT;
    } else {
        if (x->out_at && x->out_at >= x->out.count / 2) {
            memmove(x->out.data, x->out.data + x->out_at, waiting);
            x->out.count = waiting;
            x->out_at = 0;
        }
        qr_http_put_bytes(&x->out, events->data, events->count);
        if (x->out.failed || events->failed) x->aborted = true;
        x->streaming = true;
        x->answered |= end;
        if (end) expect_reading(s, x);
        resume(x);
    }
    unlock(s);
    return error;
}

void qr_http_exchange_abort(qr_http_server_t *s, qr_http_exchange_t *x)
{
    lock(s);
    x->aborted = true;
    resume(x);
    unlock(s);
}

void qr_http_exchange_release(qr_http_server_t *s, qr_http_exchange_t *x)
{
    lock(s);
    x->actor_holds = false;
    s->left_count -= x->left_queued;
    x->left_queued = false;
    exchange_free_if_done(s, x);
    unlock(s);
}

bool qr_http_exchange_streaming(qr_http_server_t *s, qr_http_exchange_t *x)
{
    lock(s);
    bool streaming = x->streaming;
    unlock(s);
    return streaming;
}
