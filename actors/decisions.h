/* decisions.h - decisions on their way to the facts of this node. Evaluator of the scheduler. Pure.
 *
 * DQ1. At most QR_DECISIONS_MAX wait; one more is dropped and counted: no work ever waits for what is said about it.
 * DQ2. They go in batches: when half of the room is taken, when the oldest has waited QR_DECISIONS_US, or when the actor stops; at most one
 *      question is open. What was sent is not kept.
 * DQ3. Without facts (facts 0) nothing waits and nothing is counted. */
#ifndef QR_DECISIONS_H
#define QR_DECISIONS_H

#include "actors/outbox.h"
#include "base/limits.h"

enum { QR_DECISIONS_US = 100000 };

/* One row of the message `decisions_note`, where it is explained. */
typedef struct qr_decision {
    uint64_t request_id, policy_version, made_us;
    uint64_t predicted_ram_ns, predicted_ssd_ns, predicted_recompute_ns;
    uint64_t ram_row_ns, ssd_row_ns, recompute_row_ns;
    uint64_t ram_samples, ssd_samples, recompute_samples;
    uint64_t outcome_ns, queue_ns, elapsed_ns;
    uint32_t resident_rows, ram_rows, ssd_rows;
    uint32_t outcome_rows, reason;
    uint8_t kind, choice, unused[2];
    uint8_t chain[32];
} qr_decision_t;

typedef struct qr_decisions {
    uint64_t facts; /* 0: there are none */
    uint64_t sequence, dropped, due_us;
    uint32_t count, open;
    qr_decision_t entries[QR_DECISIONS_MAX];
} qr_decisions_t;

/* One that is over (DQ1). */
void qr_decisions_add(qr_decisions_t *self, const qr_decision_t *decision, uint64_t now_us);
/* Sends what is due, or with `all` whatever waits, and arms the alarm for the rest (DQ2). To be called at the end of every handle. */
void qr_decisions_send(qr_decisions_t *self, uint64_t now_us, bool all, qr_outbox_t *outbox);
/* decisions_kept came, or its question was closed. */
void qr_decisions_answered(qr_decisions_t *self);

#endif
