/* host.h - one thread with one inbox that runs one or more actors. It knows no role.
 *
 * Turn: drain the inbox (at most QR_TURN messages), fire due alarms, give each io actor that has work one piece, sleep only when
 * nothing of that did anything. now_us is read once per turn.
 *
 * H1. Messages are judged (pair.h) before they are handled; a wrong one from this node is a fault that ends the process with both
 *     names, one from another node is counted, noted and dropped.
 * H2. A handler has room for max_out messages before it is called; all it emitted is sent before the next call.
 * H3. What reaches an actor before `start` is held and delivered after it, in order; what comes after `stopped` is dropped. Of other
 *     nodes at most QR_HELD_MAX messages are held, the rest is dropped; this node's are bounded by its own credit and all kept.
 * H4. A host with work never sleeps: a piece is at most 1 ms, so an alarm is late by at most one piece and one turn.
 * H5. After the close frame the thread returns. Its port is closed only when every thread of the node has been joined, so that no
 *     send ever meets a closed inbox.
 * H6. What other nodes cause to be logged is at most one line a second: they must not be able to fill a disk. */
#ifndef QR_HOST_H
#define QR_HOST_H

#include "actors/actor.h"
#include "transport/port.h"
#include "transport/record.h"

#include <stdatomic.h>

enum { QR_TURN = 64, QR_HELD_MAX = 256 };

typedef struct qr_host_counts {
    _Atomic uint64_t messages, alarms, pieces, sent, sleeps, self_in_flight_most;
    _Atomic uint64_t dropped_malformed, dropped_role, dropped_stale, dropped_answer;
} qr_host_counts_t;

typedef struct qr_host_config {
    qr_directory_t *directory;
    uint32_t port; /* index of its inbox */
    const char *name;
    const qr_given_t *given;
    uint64_t epoch;
    bool scramble, check;
    uint32_t log_level;
    uint64_t segment_bytes; /* record: entries of one actor before a new segment begins; 0 = not recorded */
} qr_host_config_t;

typedef struct qr_host qr_host_t;

/* Makes a host with these actors; runs each class's init. classes[i] lives at addresses[i]. NULL: not enough memory. */
qr_host_t *qr_host_new(const qr_host_config_t *config, const qr_actor_class_t *const *classes, const uint64_t *addresses, uint32_t count);
/* Body of its thread: opens the port, posts opened(context, code), runs until the close frame. */
void qr_host_run(qr_host_t *host, void (*opened)(void *context, int code), void *context);
/* Closes the port, from the thread that joined all others (joining is the fence that lets sockets change hands). */
void qr_host_close(qr_host_t *host);
/* State block of an actor, NULL if it is not here. Only while the thread does not run. */
void *qr_host_state(qr_host_t *host, uint64_t address);
const qr_host_counts_t *qr_host_counts(const qr_host_t *host);
/* Calls every io actor's done, frees. Only after the thread has ended. Accepts NULL, leaves NULL. */
void qr_host_destroy(qr_host_t **host);

/* Prints one line to stderr and ends the process (abort): a rule of the house was broken by us. */
_Noreturn void qr_host_fault(const char *from, const char *to, const char *type, const char *sentence);

#endif
