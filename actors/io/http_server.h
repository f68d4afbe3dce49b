/* http_server.h - the listening socket and its connections: libmicrohttpd's thread on one side, the http actor on the other, one
 * lock between them (the one lock of the house).
 *
 * H1. An exchange is one HTTP request that needs the actor. It belongs to libmicrohttpd's side until its completion callback, to
 *     the actor until qr_http_exchange_release; it is freed when both have let go.
 * H2. `connection`, `out`, the flags and the lists are touched under the lock only; `request` and `answer` belong to whoever has
 *     the exchange next: the MHD side before it is queued, the actor from qr_http_server_next to release.
 * H3. Every table is bounded: exchanges (429 beyond), connections (not accepted beyond), bytes of bodies (503 beyond), bytes of a
 *     stream (slow_client beyond).
 * H4. With a keys file, whoever asks for more than a sign of life has shown a key of it before a byte of the body is taken: 401, or
 *     403 where the key must be an admin's. Without one the address is a loopback one and everybody is the one tenant. A key is looked
 *     at where libmicrohttpd has it and kept nowhere.
 * H5. A suspended connection is watched for its client's end (EPOLLRDHUP), because libmicrohttpd does not look at it. */
#ifndef QR_HTTP_SERVER_H
#define QR_HTTP_SERVER_H

#include "actors/io/http_answer.h"
#include "actors/io/http_continuation.h"
#include "actors/io/keys.h"
#include "actors/io/recall.h"
#include "base/error.h"

enum {
    QR_HTTP_EXCHANGES_MAX = QR_REQUESTS_MAX + 128,
    QR_HTTP_CONNECTIONS_MAX = 4000,   /* above the exchanges, so that one more is answered and not left hanging */
    QR_HTTP_CONNECTION_BYTES = 16384, /* request line and headers; more: 414, 431 */
    QR_HTTP_HELD_BYTES_MAX = 64 << 20 /* bodies and parsed requests waiting for the actor */
};
enum { QR_HTTP_COMPLETION = 1, QR_HTTP_HEALTH, QR_HTTP_READY, QR_HTTP_METRICS, QR_HTTP_DROP, QR_HTTP_CONTINUATION };

typedef struct qr_http_server qr_http_server_t;

typedef struct qr_http_exchange {
    uint32_t index, generation;
    uint8_t kind;    /* QR_HTTP_* */
    uint32_t tenant; /* index + 1 in the keys file, 0: there is none */
    /* under the lock */
    bool mhd_holds, actor_holds, suspended;
    bool streaming; /* status 200 and events; decided once */
    bool answered;  /* nothing more will be put into out */
    bool aborted;   /* close the connection without another byte */
    bool left;      /* the client is gone */
    bool queued, left_queued;
    uint32_t status, retry_after_s;
    void *connection; /* struct MHD_Connection */
    void *peer;       /* its deadlines */
    int fd;
    qr_http_buffer_t out; /* body, or events not yet sent from out_at on */
    size_t out_at;
    size_t held_bytes;
    /* the actor's */
    qr_http_request_t *request; /* until it is submitted */
    qr_http_answer_t answer;
    qr_http_continuation_t continuation; /* of a QR_HTTP_CONTINUATION */
    qr_recall_t *recall;                 /* of a submitted one that may be saved */
    uint8_t ask;                         /* what it has to ask before it goes on, 0: nothing */
    bool asked;                          /* and whether that is under way */
    uint64_t started_us, quiet_since_us;
    uint32_t round;
    bool submitted, cancelled;
} qr_http_exchange_t;

/* Looks at params.listen and params.keys as the start will, and listens nowhere. 0, or as qr_http_server_new. */
int qr_http_server_check(const qr_params_t *params, char *message, size_t message_bytes);
/* Reads params.keys and listens on params.listen. 0; -QR_E_IN_USE, _PERMISSION, _INVALID, _MEMORY, _IO with one sentence and the next step.
 */
int qr_http_server_new(const qr_given_t *given, qr_http_server_t **ret_server, char *message, size_t message_bytes);
/* Ends every connection and the thread. */
void qr_http_server_destroy(qr_http_server_t **server);
/* "127.0.0.1:8080", with the port that was taken. */
const char *qr_http_server_name(const qr_http_server_t *server);
uint16_t qr_http_server_port(const qr_http_server_t *server);
/* Readable when there is something for the actor. */
int qr_http_server_wake_descriptor(const qr_http_server_t *server);
/* While refusing, completions are answered 503 with this reason; all: whatever else needs the actor too. 0: accept. */
void qr_http_server_refuse(qr_http_server_t *server, uint32_t reason, bool all);

/* Looks at clients that left, lingering sockets and, every 250 ms, at deadlines of slow senders. */
void qr_http_server_watch(qr_http_server_t *server);
/* Next exchange for the actor, NULL if there is none. *ret_left: its client is gone already. */
qr_http_exchange_t *qr_http_server_next(qr_http_server_t *server, bool *ret_left);
/* Next exchange that the actor has and whose client left, NULL if there is none. */
qr_http_exchange_t *qr_http_server_next_left(qr_http_server_t *server);
/* The exchange of a key, NULL if the actor does not have it. */
qr_http_exchange_t *qr_http_server_find(qr_http_server_t *server, uint64_t key);
/* The index-th exchange if the actor has it, else NULL. */
qr_http_exchange_t *qr_http_server_at(qr_http_server_t *server, uint32_t index);
static inline uint64_t qr_http_key(const qr_http_exchange_t *x) { return qr_handle(x->index, x->generation); }

/* Whose exchange this is; NULL without a keys file. Never changes while the server lives. */
const qr_tenant_t *qr_http_server_tenant(const qr_http_server_t *server, const qr_http_exchange_t *exchange);

/* Connections open, answers and errors so far, exchanges that libmicrohttpd's side still has. */
void qr_http_server_count(qr_http_server_t *server, uint64_t *ret_connections, uint64_t *ret_answers, uint64_t *ret_errors,
                          uint64_t *ret_open);

/* The request's memory is the actor's no more. */
void qr_http_exchange_free_request(qr_http_server_t *server, qr_http_exchange_t *exchange);
/* Whole answer; body is taken over. Ignored when one was given already. */
void qr_http_exchange_answer(qr_http_server_t *server, qr_http_exchange_t *exchange, uint32_t status, uint32_t retry_after_s,
                             qr_http_buffer_t *body);
void qr_http_exchange_refuse(qr_http_server_t *server, qr_http_exchange_t *exchange, const qr_http_error_t *error);
/* Events: the first call decides status 200. `most` unsent bytes stay allowed; beyond them nothing is put and -QR_E_SLOW_CLIENT.
 * end: nothing follows. */
int qr_http_exchange_stream(qr_http_server_t *server, qr_http_exchange_t *exchange, const qr_http_buffer_t *events, size_t most, bool end);
/* Ends whatever is left of the connection without an answer. */
void qr_http_exchange_abort(qr_http_server_t *server, qr_http_exchange_t *exchange);
/* The actor lets go. */
void qr_http_exchange_release(qr_http_server_t *server, qr_http_exchange_t *exchange);
/* Whether events have been begun. */
bool qr_http_exchange_streaming(qr_http_server_t *server, qr_http_exchange_t *exchange);

#endif
