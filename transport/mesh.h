/* mesh.h - one node: builds the host threads of a topology, boots their actors in order, waits, stops them in order.
 * mesh is role 1 and lives on the thread that calls these functions (main); it has an inbox of its own.
 *
 * Boot order: uplink, facts, storage, catalog_writer, catalog_replica, transfer, executor, page_manager, restore_streamer,
 * checkpoint_writer, scheduler, worker, heartbeat, router, text, gateway, http (or prompt). Each is asked `start` and has to
 * answer `ready` in time. End: http, gateway and heartbeat are asked to `drain`, then all are asked to `stop`, edge first.
 *
 * A run ends by SIGINT or SIGTERM (if `signals`; a second one ends the process at once with status 130), by qr_mesh_end, or when
 * an actor (prompt, http) sends the notice `node_stop` to the address qr_address(node, 0, QR_ROLE_mesh, 0). */
#ifndef QR_MESH_H
#define QR_MESH_H

#include "actors/actor.h"
#include "actors/note.h"
#include "transport/topology.h"

typedef struct qr_mesh qr_mesh_t;

typedef struct qr_mesh_config {
    const qr_topology_t *topology; /* NULL: the built-in default. Copied */
    const char *node;              /* name of this node; NULL or "": the only one */
    /* Every actor this program has. An actor that the built-in default names and that is missing here is left out; one that a
     * topology file names is an error. Without `http` but with `prompt`, prompt takes http's place. */
    const qr_actor_class_t *const *classes;
    uint32_t class_count;
    const qr_given_t *given; /* lives longer than the mesh; params.record, record_bytes, peer_down_ms, stop_budget_ms, seed are used */
    bool signals;            /* handle SIGINT and SIGTERM; blocks them in this thread before others are made */
    bool scramble;           /* tests: structs overwritten after encode, each decoded message at a fresh address, unmapped after */
    bool check;              /* tests: every actor's check after every call */
    uint32_t log_level;      /* QR_LEVEL_*: notes above it are not printed (stderr) */
    uint32_t boot_ms;        /* most time for one actor's `ready`; 0 = 60000 */
    uint64_t epoch;          /* 0: made from the clock and random bits */
} qr_mesh_config_t;

/* Builds, starts and boots everything; returns when every actor is ready. 0, or a negative code with one sentence that names the
 * actor or socket in `error` (everything is taken down again; -QR_E_CANCELLED: a signal came). */
int qr_mesh_new(const qr_mesh_config_t *config, qr_mesh_t **ret_mesh, qr_text_t *error);
/* Waits for the end of the run, then drains and stops every actor and joins their threads. Returns the reason of node_stop as a
 * negative code, or 0 (signal, qr_mesh_end, reason 0). */
int qr_mesh_run(qr_mesh_t *mesh);
/* From any thread: makes qr_mesh_run end. */
void qr_mesh_end(qr_mesh_t *mesh);
/* Stops if still running, then frees. Accepts NULL, leaves NULL. */
void qr_mesh_destroy(qr_mesh_t **mesh);
/* Actor's state block after qr_mesh_run (tests); NULL if this node has none at that address. */
void *qr_mesh_state(qr_mesh_t *mesh, uint64_t address);

/* Times and counts over all hosts since boot; may be read while running (each value is its own atomic). */
typedef struct qr_mesh_counts {
    uint64_t messages, alarms, pieces; /* handled */
    uint64_t sent, sleeps, self_in_flight_most;
    uint64_t dropped_malformed, dropped_role, dropped_stale, dropped_answer; /* from other nodes */
    uint64_t sockets_open;                                                   /* 0 after the run */
    /* of the uplink: messages from and to other nodes, bytes that were none, messages refused, of an ended session, with handles,
     * keys not on the allow-list, sessions begun, messages dropped because their node was down */
    uint64_t link_received, link_sent, link_malformed, link_refused, link_stale, link_local_refused, link_keys_refused, link_sessions,
        link_lost, link_down_dropped;
} qr_mesh_counts_t;
void qr_mesh_counts(const qr_mesh_t *mesh, qr_mesh_counts_t *ret_counts);

#endif
