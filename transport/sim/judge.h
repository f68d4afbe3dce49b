/* judge.h - what no actor of a simulated world can judge alone: it hears every message that an actor hears or says, in the order in
 * which it happens, and what the devices compute.
 *
 * J1. A request waits at most a second for a worker to be seen: then its router offers or answers it.
 * J2. An offer is open for at most offer_timeout_ms: then it is answered or cancelled.
 * J3. What was told to be down is offered nothing before something was heard of it again.
 * J4. Where nothing goes wrong no row is computed for a request long after its client was answered or its gateway let it go.
 * J5. A row is attended by requests of the scope (tenant's salt and cache's salt) that wrote it, and by no other.
 * What is kept is bounded: a request is forgotten when its place is needed, and then it is not judged. */
#ifndef QR_SIM_JUDGE_H
#define QR_SIM_JUDGE_H

#include "transport/sim/world.h"

typedef struct qr_sim_judge qr_sim_judge_t;

typedef struct qr_sim_judge_config {
    uint32_t nodes;               /* of all meshes */
    uint32_t devices;             /* most device groups of one node */
    uint64_t link_us, local_us;   /* most delay of a message (world.h) */
    uint64_t batch_us;            /* most that the largest batch takes */
    const qr_sim_fault_t *faults; /* [fault_count] outlives the judge: nodes that pause are late (J1, J2) */
    uint32_t fault_count;
} qr_sim_judge_config_t;

/* NULL: not enough memory. */
qr_sim_judge_t *qr_sim_judge_new(const qr_sim_judge_config_t *config);
void qr_sim_judge_destroy(qr_sim_judge_t **judge);
/* Nothing goes wrong from this time on (J4); never before it is called. */
void qr_sim_judge_calm(qr_sim_judge_t *judge, uint64_t from_us);

/* qr_sim_config_t.see. */
void qr_sim_judge_see(const qr_given_t *given, uint64_t actor, const qr_message_t *message, uint64_t now_us);
/* A device computes rows of this request (J4). */
void qr_sim_judge_computes(const qr_given_t *given, uint64_t request_id);
/* How often the router of the request that a client names so was told that the worker which had it is gone (link_down, peer_down, it began
 * anew or stopped); 0 when the request is not known. */
uint32_t qr_sim_judge_losses(const qr_given_t *given, uint64_t key);
/* The scope of a request, 0 when it is not known (J5). */
uint32_t qr_sim_judge_scope(const qr_given_t *given, uint64_t request_id);

#endif
