/* facts.h - the fake facts: the catalog's log on a disk that takes its time, fails, tears and forgets. The disk outlives the actor, as a
 * disk does; what the real one keeps in files is rows and changes here.
 *
 * F1. An append is answered appended only after its write and its fsync, each as long as drawn. One that fails is not in the log.
 * F2. Whoever dies between write and fsync finds the last record whole, torn or not at all; torn ones are dropped.
 * F3. Operations happen one after the other: a read that comes during an append is answered with what became of it.
 * F4. A number is given once, and only to a writer of the latest epoch. A writer that was told so and goes on is a finding, and so is
 *     one that skips a number, writes behind a claim that it has read, or asks something else under a number that it had.
 * F5. Snapshots are the rows up to a transaction, in pages, held by this life of facts only.
 * F6. The policy it names is any; a decision that contradicts its own numbers is a finding.
 * F7. Where it lives beside a store, continuations are saved now and then, of what was lately computed there, and dropped: each is on its
 *     disk first, held if it is pinned (storage.h G8; refused at the bound, then nothing of it stays), and its full chunks are wanted of the
 *     checkpoint writers of its node, one after the other. A wanted capture is never worthless, and what is answered as durable is what the
 *     log says stands there. Questions whose unit ended are forgotten; what stayed of their saves is held again when storage asks. When the
 *     busy time is over all are dropped. */
#ifndef QR_SIM_FACTS_H
#define QR_SIM_FACTS_H

#include "actors/actor.h"

typedef struct qr_sim_change {
    uint64_t size;
    uint32_t group, start, count, id; /* id: as `id_of` says, UINT32_MAX = none */
    uint8_t kind, tier, chain[32], digest[32];
} qr_sim_change_t;

typedef struct qr_sim_row {
    uint64_t tx, writer_epoch, publisher, publisher_epoch, node_epoch, sequence;
    uint8_t fingerprint[32];
    uint32_t chunk_tokens, group_count, windows[QR_GROUPS_MAX];
    uint32_t first_change, change_count;
} qr_sim_row_t;

/* The disk. Rows [0, row_count) are in the log; behind them lies what is being written. */
typedef struct qr_sim_log {
    qr_sim_row_t *rows;
    qr_sim_change_t *changes;
    uint32_t row_count, change_count, row_end, change_end, row_capacity, change_capacity;
    uint64_t newest, cut, last_epoch, writing_tx, write_us;
    uint64_t stale_epoch;         /* of the writer that was last told STALE */
    uint64_t fenced_epoch;        /* of the writer that was last fenced here */
    uint64_t held[8], held_count; /* snapshots of this life */
    uint64_t torn, lost, failed, cuts, snapshots, claims;
    /* What whoever knows the truth is told and asked: a row came into the log; what a chain hash is called. */
    void (*judge)(void *context, const qr_sim_row_t *row, const qr_sim_change_t *changes);
    uint32_t (*id_of)(void *context, const uint8_t chain[32]);
    void *context;
} qr_sim_log_t;

/* Gives back its memory. */
void qr_sim_log_done(qr_sim_log_t *log);

/* Its disk is that of qr_sim_given(given)->catalog. */
extern const qr_actor_class_t qr_sim_facts_class;

#endif
