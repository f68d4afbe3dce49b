/* world.h - nodes of actors under one seeded clock: the same actor code, every message encoded and decoded on every hop, a network
 * that delays, cuts, duplicates and breaks, nodes that die, begin anew and pause. No thread, no socket, no clock.
 *
 * W1. Everything that happens is an event in one queue, ordered by time and then by when it was made; every draw comes from one
 *     generator. So a plan has one history, and its hash names it.
 * W2. Order is kept from one actor to another, and of what one node's uplink hands to one actor. Nothing else is ordered.
 * W3. What a host judges is judged here by the same table (pair.h): a wrong message of this node is a finding, one of another node
 *     is dropped and counted.
 * W4. A link session that ends loses what is on the way; both ends hear link_down before anything of the next session.
 * W5. After every `check_every` messages the actor that handled the message asserts its invariants.
 * W7. Time goes on: more than so many events at one instant are a finding (an alarm that is due for ever).
 * W6. The first finding ends the run; it is kept as a sentence, with the last messages before it.
 * W8. A unit of a node (facts, catalog_writer, catalog_replica, heartbeat, storage) may end alone and begin anew under an epoch of its
 *     own. The actors of its node that talk about catalog and store across units are one circle: when one of them ends, all questions
 * inside the circle are closed, the others hear link_down of their own node, nothing passes between them until it runs again, and then they
 * hear link_up. When the catalog's writer or a replica comes back, the sessions of its node end: nobody waits for an answer of the old one,
 * and no answer to the old one's question is taken for an answer to the new one's. Any other unit hears which links are up. */
#ifndef QR_SIM_WORLD_H
#define QR_SIM_WORLD_H

#include "actors/actor.h"
#include "base/prng.h"

#include <stdio.h>

enum { QR_SIM_FINDING_BYTES = 512, QR_SIM_HISTORY = 512, QR_SIM_CELLS_MAX = 32, QR_SIM_FAULTS_MAX = 256, QR_SIM_STOP_EVENTS = 16 };

/* What goes wrong. `node` and `other` are indexes of nodes (0 .. node_count - 1). */
enum qr_sim_fault_kind {
    QR_FAULT_KILL = 1, /* the process of `node` ends; it begins anew after for_us */
    QR_FAULT_PAUSE,    /* the process of `node` does not run for for_us */
    QR_FAULT_CUT,      /* nothing gets from `node` to `other` for for_us; longer than the silence that counts as down ends the session */
    QR_FAULT_BREAK,    /* the session between the two ends */
    QR_FAULT_TWICE,    /* messages between the two arrive twice for for_us */
    QR_FAULT_SLOW,     /* the device of `node` takes `amount` times as long for for_us */
    QR_FAULT_BATCHES,  /* one batch in `amount` of the device of `node` fails for for_us */
    QR_FAULT_LANES,    /* one lane in `amount` fails alone for for_us */
    QR_FAULT_LEAVE,    /* the process of `node` drains for at most for_us, stops actor by actor, ends, and begins anew */
    QR_FAULT_STUCK,    /* the heartbeat of `node` does not run for for_us: its node falls silent while its links stay up */
    QR_FAULT_UNIT,     /* unit `amount` % QR_SIM_UNITS ends after `other` % 8 more messages and begins anew after for_us; of the node that
                          has the log if `node` has no such unit */
    QR_FAULT_APPEND,   /* one append in `amount` fails for for_us at the facts of every node; 1: the disk is full */
    QR_FAULT_DISK,     /* the disks of every node take `amount` times as long for for_us */
    QR_FAULT_LOG,      /* one append in `amount` cuts the log below a snapshot for for_us */
    QR_FAULT_FENCE,    /* within for_us another writer claims the log; after a while it is gone and ours begins anew */
    QR_FAULT_STORAGE,  /* storage of `node` ends after `other` % 8 more messages and begins anew after for_us */
    QR_FAULT_FULL,     /* the disk of `node` takes nothing more for for_us */
    QR_FAULT_ROT,      /* one file in `amount` that is leased at `node` is damaged in silence for for_us */
    QR_FAULT_MOVES,    /* one move in `amount` of the devices of `node` fails for for_us, and half as many pieces hang */
    QR_FAULT_KINDS
};
typedef struct qr_sim_fault {
    uint64_t at_us, for_us;
    uint32_t kind, node, other, amount;
} qr_sim_fault_t;
/* "kill", "pause", ... */
const char *qr_sim_fault_name(uint32_t kind);
enum { QR_SIM_UNITS = 4 }; /* of QR_FAULT_UNIT: facts, catalog_writer, catalog_replica, heartbeat */

/* Which actors a node has. */
enum { QR_SIM_EDGE = 1, QR_SIM_DEVICE = 2 };

typedef struct qr_sim_node_plan {
    uint32_t parts;   /* QR_SIM_* */
    uint32_t devices; /* device groups, if it has any */
} qr_sim_node_plan_t;

typedef struct qr_sim_config {
    uint64_t seed;
    uint32_t node_count, mesh_count; /* nodes of one mesh, meshes (0 counts as 1): node n is of mesh n / node_count */
    const qr_sim_node_plan_t *nodes; /* [node_count], the same for every mesh; in a mesh every edge is linked with every device node */
    const qr_given_t *given;         /* of every node; its opaque pointers are the fakes' business */
    const qr_given_t *givens;        /* NULL, or [node_count]: of each node its own, like `given` but for pools and costs */
    uint64_t link_us, local_us;      /* most delay of a message between nodes, inside one */
    uint32_t check_every;            /* W5; 0: never */
    const qr_sim_fault_t *faults;    /* [fault_count] by at_us */
    uint32_t fault_count;
    const qr_actor_class_t *http, *text, *executor; /* the fakes */
    /* Fakes of the catalog, NULL: this world has none. The first node of a mesh has the log and its writer and is linked with every other;
     * every node has a replica and an asker (role router, instance 1), every device a publisher (role checkpoint_writer) and a
     * restore_streamer. */
    const qr_actor_class_t *facts, *publisher, *restorer, *asker;
    /* Fakes of the store, NULL: this world has none. With storage publisher and restorer are the actors that serve, and every node with a
     * device has a storage; with transfer, which needs no store where it keeps rows of preempted requests, every device has one. */
    const qr_actor_class_t *storage, *transfer;
    const qr_actor_class_t *doctored; /* NULL, or takes the place of the class of its role: tests of the checkers */
    FILE *trace;                      /* NULL, or every message as a line */
    /* NULL, or told every message an actor hears (to == actor) and says (from == actor), in the order in which it happens. */
    void (*see)(const qr_given_t *given, uint64_t actor, const qr_message_t *message, uint64_t now_us);
} qr_sim_config_t;

typedef struct qr_sim_counts {
    uint64_t messages, remote, alarms, dropped_session, dropped_stale, dropped_answer, kills, sessions, queue_most, unit_kills, preemptions;
} qr_sim_counts_t;

typedef struct qr_world qr_world_t;

/* Boots every node at time 0. NULL: not enough memory. */
qr_world_t *qr_world_new(const qr_sim_config_t *config);
/* Runs events until until_us or a finding or `stop` (asked after every QR_SIM_STOP_EVENTS events; may be NULL) says so. true: no finding.
 */
bool qr_world_run(qr_world_t *world, uint64_t until_us, bool (*stop)(void *context), void *context);
/* Nothing goes wrong any more: cuts end, dead nodes begin anew; what is paused or stuck goes on in its time. */
void qr_world_heal(qr_world_t *world);
uint64_t qr_world_now_us(const qr_world_t *world);
/* Hash of everything that was delivered so far. */
uint64_t qr_world_hash(const qr_world_t *world);
const qr_sim_counts_t *qr_world_counts(const qr_world_t *world);
/* The finding, "" without one. */
const char *qr_world_finding(const qr_world_t *world);
/* Writes the last messages and the states of all actors. */
void qr_world_tell(const qr_world_t *world, FILE *out);
/* Whether no actor has an open question to another, and none owes an answer: with nobody asking, credit that did not come back is lost
 * for good. false: *ret_text says whose. */
bool qr_world_is_quiet(const qr_world_t *world, char *text, size_t text_bytes);
/* State of an actor, NULL if its node is dead or has none. */
void *qr_world_state(const qr_world_t *world, uint64_t address);
bool qr_world_alive(const qr_world_t *world, uint32_t node);
/* Whether the fault of a kind holds at a node now; its amount or 0 (also without a world). For fake devices. */
uint32_t qr_world_fault(const qr_world_t *world, uint32_t node, uint32_t kind);
/* Epoch of the process of a node; 0: it is dead. */
uint64_t qr_world_epoch(const qr_world_t *world, uint32_t node);
/* An epoch later than every one that was given so far. */
uint64_t qr_world_new_epoch(qr_world_t *world);
/* Since when a node's side of its link to another is down; 0: it is up, was never up in this life of the node, or there is none. */
uint64_t qr_world_unlinked_since_us(const qr_world_t *world, uint32_t node, uint32_t other);
/* Since when a node's side of its link to another is up, with the same session at the other end; 0: it is not. */
uint64_t qr_world_linked_since_us(const qr_world_t *world, uint32_t node, uint32_t other);
/* Device groups of a node. */
uint32_t qr_world_devices(const qr_world_t *world, uint32_t node);
/* When the newest incarnation of an actor was started; QR_NEVER_US: it is not running. */
uint64_t qr_world_started_us(const qr_world_t *world, uint64_t address);
/* The unit that is this actor ends after after_us and begins anew, unless its node is busy with another. */
void qr_world_restart_unit(qr_world_t *world, uint64_t address, uint64_t after_us);
/* How often the process of a node was killed so far. */
uint32_t qr_world_kills(const qr_world_t *world, uint32_t node);
void qr_world_destroy(qr_world_t **world);

/* Ends the current run with a finding; outside of one, the process. Fakes and checkers call it. */
_Noreturn void qr_sim_finding(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A number below bound (> 0) of the running world's generator, for fakes; 0 outside a run. */
uint64_t qr_sim_draw(uint64_t bound);
/* The running world; NULL outside a run. */
qr_world_t *qr_sim_world(void);

/* Addresses of the actors of a node (index) and device group. */
uint64_t qr_sim_address(uint32_t node, uint32_t device, uint8_t role);
/* The asker of a node. */
uint64_t qr_sim_asker(uint32_t node);

#endif
