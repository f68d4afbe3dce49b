/* clients.h - who asks: a fake http that submits what a crowd of users would (shared prefixes, conversations that grow, bursts,
 * cancels, deadlines, sampled and greedy) and judges every answer, and a fake text whose tokens are the bytes of the text.
 *
 * K1. Every submit is answered exactly once, by request_finished or request_refused.
 * K2. Every token is the one the device of the mind draws after the known ones; none comes twice, out of order or after the end. The
 *     text is that of the tokens.
 * K3. A finish is right: STOP after the end token, LENGTH at the most tokens, CANCELLED only if the client left; usage adds up.
 * K4. A failure has a reason that what went wrong in this world explains.
 * K6. A request that has a deadline ends by it; what a salt that nobody used asks reuses nothing.
 * K5. In the last phase every request is answered in full within a deadline, then no worker holds a request and every pool is full after
 *     cache_drop. */
#ifndef QR_SIM_CLIENTS_H
#define QR_SIM_CLIENTS_H

#include "actors/actor.h"

#include <stdio.h>

typedef struct qr_sim_workload {
    uint64_t seed;
    uint64_t gap_us;        /* mean time between two submits of one edge */
    uint64_t busy_until_us; /* nothing new after it */
    uint64_t last_us;       /* most time the last phase may take */
    uint32_t requests;      /* most of one edge */
    uint32_t last_requests; /* of the last phase, of each edge */
    uint32_t prompt_most, answer_most;
    uint32_t prefixes, prefix_tokens;                                                           /* shared beginnings */
    uint32_t cancel_one_in, budget_one_in, burst_one_in, grow_one_in, text_one_in, salt_one_in; /* 0 = never */
    uint32_t faults;    /* bit 1 << QR_FAULT_*: what may happen in this world (K4) */
    uint32_t fail_over; /* 1: there is always another worker, so no request may fail for a lost one */
} qr_sim_workload_t;

typedef struct qr_sim_answers {
    uint64_t submitted, finished, cancelled, refused, failed, tokens, cached, drops;
    uint64_t reasons[64]; /* of refusals and failures by QR_E_* */
} qr_sim_answers_t;

extern const qr_actor_class_t qr_sim_http_class, qr_sim_text_class;

/* Begins the last phase of an edge's client; between runs only. */
void qr_sim_client_last(void *http_state, uint64_t now_us);
/* Whether nothing is open and the last phase is over. */
bool qr_sim_client_is_done(const void *http_state);
/* Whether nothing is open. */
bool qr_sim_client_is_quiet(const void *http_state);
/* What it saw; adds to *answers. */
void qr_sim_client_count(const void *http_state, qr_sim_answers_t *answers);

#endif
