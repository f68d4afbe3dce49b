/* catalog.h - the catalog's surroundings in a simulated world: chunk files that are written, torn and deleted, a publisher on every
 * device (in the role of checkpoint_writer until the real one exists), an asker on every node, and who knows the truth about all of
 * them. catalog_writer and catalog_replica are the very actors that serve.
 *
 * T1. Bytes first: a copy on SSD in the log has a file that is durable, until a withdrawal is in the log; a copy in RAM was published
 *     under the epoch of the process that has it.
 * T2. What was answered committed is in the log, under that number, once, for ever. What was refused is not, unless it is asked again
 *     (but for PEER_DOWN and STALE, whose outcome nobody knows). What is in the log was asked exactly so.
 * T3. What a replica answers is what the log says up to the transaction it names, less what it hides; and it hides what stands on a node
 *     whose link is down, and what was in the RAM of a process that it knows to be gone.
 * T4. After healing every publisher commits once more, and then every replica answers every chain as the whole log says. */
#ifndef QR_SIM_CATALOG_H
#define QR_SIM_CATALOG_H

#include "transport/sim/device.h"
#include "transport/sim/facts.h"
#include "transport/sim/world.h"

/* What happens around the catalog of one world; `chains` 0: it has none. */
typedef struct qr_sim_catalog_work {
    uint32_t chains, depth;                 /* prompts that are kept, and chunks of each */
    uint32_t publishes;                     /* most of one publisher, but for the last phase */
    uint32_t nodes_max;                     /* of a replica's index */
    uint64_t publish_us, look_us, write_us; /* mean times between two publishes and two lookups; most of one write */
    uint64_t busy_until_us;
    uint64_t seed; /* of the prompts: clients.h */
} qr_sim_catalog_work_t;

typedef struct qr_sim_catalog_counts {
    uint64_t publishes, committed, refused, repeats, files, torn, lookups, hits, exact, transactions, snapshots, claims, failed, lost,
        restores;
} qr_sim_catalog_counts_t;

typedef struct qr_sim_catalog qr_sim_catalog_t;

/* NULL: not enough memory. `given` need not have params yet, but its layout. */
qr_sim_catalog_t *qr_sim_catalog_new(const qr_sim_catalog_work_t *work, const qr_given_t *given, uint32_t node_count);
void qr_sim_catalog_destroy(qr_sim_catalog_t **catalog);
qr_sim_log_t *qr_sim_catalog_log(qr_sim_catalog_t *catalog);
/* Begins the last phase (T4). */
void qr_sim_catalog_last(qr_sim_catalog_t *catalog);
/* Whether T4 holds for every node of this world; else *text says what is missing. */
bool qr_sim_catalog_is_done(const qr_sim_catalog_t *catalog, const qr_world_t *world, char *text, size_t text_bytes);
void qr_sim_catalog_count(const qr_sim_catalog_t *catalog, qr_sim_catalog_counts_t *ret_counts);

/* With a store (storage.h) its files are the truth of T1, and the publishers are the actors that serve: nobody is asked to commit once
 * more (T4). What they say and hear (said 0: it is heard): */
void qr_sim_catalog_watch(qr_sim_catalog_t *catalog, const qr_message_t *message, bool said);
/* Whether the log says that a part stands on the disk of a node. */
bool qr_sim_catalog_says(const qr_sim_catalog_t *catalog, uint32_t node, const uint8_t chain[32], uint32_t group);

/* The restorer never restores: what it is asked stops at once or after a while, and the rows are computed. */
extern const qr_actor_class_t qr_sim_publisher_class, qr_sim_restorer_class, qr_sim_asker_class;

#endif
