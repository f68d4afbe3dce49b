/* worker.h - one device's face to the routers: takes offers, hands them to the scheduler, and keeps every drawn token until the
 * router that asked has acknowledged it. Pure. Partners: scheduler (asked); routers (they ask); heartbeat (told). */
#ifndef QR_WORKER_H
#define QR_WORKER_H

#include "actors/actor.h"

enum {
    QR_WORKER_ROUTERS_MAX = QR_NODES_MAX, /* routers that have offered; more: BUSY until one has nothing open */
    QR_WORKER_UNACKED_MAX = 1024,         /* tokens kept for one request; a router that leaves more unread ends it with SLOW_CLIENT */
    QR_WORKER_PROBES_MAX = 16,            /* probes on their way to the scheduler; more: BUSY */
    QR_WORKER_ENDED_MAX = 256,            /* ended (request, attempt) pairs remembered, so that a late repeat starts nothing */
    QR_WORKER_TOKENS_PER_MESSAGE = 16384  /* tokens of one `tokens` message; the rest goes with the next */
};

extern const qr_actor_class_t qr_worker_class;

#endif
