/* port.h - one thread's way to all threads of its node: one bound PULL inbox and one PUSH per destination, its own included.
 * The only file that sends or receives local messages; a byte ring could replace it.
 *
 * P1. Every socket of a port belongs to the thread that opened the port, until mesh has joined that thread. A PUSH has exactly one
 *     connection.
 * P2. High-water marks are 0: credit (host.c) is the bound. A send never waits; a refused one is a fault.
 * P3. An inproc name carries node and boot number and is used once. */
#ifndef QR_PORT_H
#define QR_PORT_H

#include "base/base.h"
#include "base/limits.h"

#include <stdatomic.h>
#include <zmq.h>

enum {
    QR_PORTS_MAX = QR_ACTORS_MAX,   /* threads of one node */
    QR_PORT_MESH = 0,               /* index of mesh */
    QR_PORT_IN_FLIGHT_MAX = 1 << 20 /* messages to itself not yet received; more: fault */
};

/* Memory handed over by message: what the sender wrote before the send is seen after the receive. libzmq's own synchronisation is
 * invisible to ThreadSanitizer (tests/tsan.supp hides its inside), so each receiving port is the meeting point. */
#if defined(__SANITIZE_THREAD__)
#define QR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QR_TSAN 1
#endif
#endif
#ifdef QR_TSAN
void __tsan_acquire(void *at);
void __tsan_release(void *at);
#define QR_HAND_OVER(at) __tsan_release(at)
#define QR_TAKE_OVER(at) __tsan_acquire(at)
#else
#define QR_HAND_OVER(at) ((void)(at))
#define QR_TAKE_OVER(at) ((void)(at))
#endif

/* Who lives where in this node. Built by mesh before any thread, then constant (marks and sockets_open apart). */
typedef struct qr_directory_actor {
    uint64_t address;
    const char *name;
    uint32_t port;
} qr_directory_actor_t;

typedef struct qr_directory {
    void *context; /* zmq context */
    uint32_t node; /* id of this node */
    uint32_t port_count;
    uint32_t uplink; /* port of the uplink, UINT32_MAX without one */
    uint32_t record; /* port of the recorder, UINT32_MAX without one */
    uint32_t actor_count;
    qr_directory_actor_t actors[QR_ACTORS_MAX + 8];
    char endpoints[QR_PORTS_MAX][64];
    char marks[QR_PORTS_MAX]; /* only their addresses are used: meeting points for QR_HAND_OVER */
    atomic_int sockets_open;  /* 0 when every thread has closed its port */
} qr_directory_t;

typedef struct qr_port {
    qr_directory_t *directory;
    uint32_t index;
    uint64_t self_in_flight, self_in_flight_most;
    void *inbox;
    void *pushes[QR_PORTS_MAX]; /* opened at the first send */
} qr_port_t;

/* Port of an address: the actor's own, the uplink's for other nodes, or UINT32_MAX. */
uint32_t qr_directory_port(const qr_directory_t *directory, uint64_t address);
/* Name of an actor of this node, "?" if unknown. */
const char *qr_directory_name(const qr_directory_t *directory, uint64_t address);

/* Binds the inbox of port `index`. 0 or -QR_E_IO. Close also a port that failed to open. */
int qr_port_open(qr_port_t *port, qr_directory_t *directory, uint32_t index);
void qr_port_close(qr_port_t *port);
/* Sends a copy of bytes[count] (0 bytes: the close frame). Never waits. -QR_E_BUSY: refused even after one look at the
 * events; -QR_E_IO: no socket. */
int qr_port_send(qr_port_t *port, uint32_t to, const void *bytes, size_t count);
/* Hands over a block without copying; `release(block, hint)` runs in whatever thread closes the frame,
 * also when the send is refused. -QR_E_IO or -QR_E_MEMORY (the caller keeps the block): no socket or frame could be made. */
int qr_port_send_block(qr_port_t *port, uint32_t to, void *bytes, size_t count, void (*release)(void *bytes, void *hint), void *hint);
/* Receives one frame into an initialised zmq_msg_t without waiting. true if there was one. */
bool qr_port_receive(qr_port_t *port, zmq_msg_t *frame);

#endif
