/* uplink.h - the thread that owns every TCP socket of a node: one control link and, if both ends name one, one bulk link per
 * linked node, CURVE keys, the allow-list (a ZAP handler inside), and the sessions over them. Has no actor.
 *
 * U1. Bytes from another node reach an inbox only if they decode, their type may cross nodes, roles.h lets those two roles say it
 *     across nodes, `from` is an actor the topology gives the node whose key opened the connection, `to` is an actor of this node. Anything else is counted and
 *     dropped; QR_UPLINK_STRIKES of them within one session end that session for a while.
 * U2. A message that carries handles (scope LOCAL) is never exported.
 * U3. A peer is up only after its hello on the control link echoed our session for it. Its end is told (`link_down`) to every local actor
 * that may talk with an actor of that node; so is its beginning (`link_up`). A question for a node that is down is answered by link_down.
 *     Until chunks travel the bulk link carries hellos only.
 * U4. No send waits. A refusal by TCP after one look at the events ends the session. */
#ifndef QR_UPLINK_H
#define QR_UPLINK_H

#include "actors/given.h"
#include "base/text.h"
#include "transport/port.h"
#include "transport/topology.h"

#include <stdatomic.h>

enum { QR_UPLINK_STRIKES = 16, QR_UPLINK_MARK = 4096, QR_UPLINK_HELLO_US = 200000 };

typedef struct qr_uplink_counts {
    _Atomic uint64_t received, sent, malformed, refused, stale, local_refused, keys_refused, sessions, lost, dropped_down;
} qr_uplink_counts_t;

typedef struct qr_uplink_config {
    qr_directory_t *directory;
    uint32_t port;
    const qr_topology_t *topology;
    uint32_t node; /* index of this node */
    uint64_t epoch;
    uint32_t chunk_tokens;
    const qr_vocabulary_t *vocabulary;
    uint64_t peer_down_us; /* silence that ends a session */
    uint32_t log_level;
} qr_uplink_config_t;

typedef struct qr_uplink qr_uplink_t;

/* Whether this node has links at all. */
bool qr_uplink_needed(const qr_topology_t *topology, uint32_t node);
/* Checks what can be checked before anything is opened: keys present and readable, no bind outside loopback without CURVE, a libzmq
 * that is safe with CURVE. One sentence in `error`. */
int qr_uplink_check(const qr_topology_t *topology, uint32_t node, qr_text_t *error);
/* The same for a given libzmq version (tests). */
int qr_uplink_check_version(int major, int minor, int patch, bool curve, qr_text_t *error);
/* NULL: not enough memory. */
qr_uplink_t *qr_uplink_new(const qr_uplink_config_t *config);
/* Body of its thread. */
void qr_uplink_run(qr_uplink_t *uplink, void (*opened)(void *context, int code), void *context);
/* Closes its local port, as qr_host_close. */
void qr_uplink_close(qr_uplink_t *uplink);
const qr_uplink_counts_t *qr_uplink_counts(const qr_uplink_t *uplink);
/* Only after its thread has ended. Accepts NULL, leaves NULL. */
void qr_uplink_destroy(qr_uplink_t **uplink);

#endif
