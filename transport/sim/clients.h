/* clients.h - who asks: a fake http that submits what a crowd of users would (shared prefixes, conversations and chats that grow, bursts,
 * cancels, deadlines, stop strings, readers that are slow, sampled and greedy), asks for probes and numbers meanwhile, and judges every
 * answer. tests/conversations/contract_http_test.c keeps it honest.
 *
 * K1. Every submit is answered exactly once, by request_finished or request_refused.
 * K2. Every token is the one the device of the mind draws after the known ones; none comes twice, out of order or after the end. The
 *     text is that of the tokens.
 * K3. A finish is right: STOP after the end token or a stop string, LENGTH at the most tokens, CANCELLED only if the client left; usage
 *     adds up.
 * K4. A failure has a reason that what went wrong in this world explains; NEVER_FITS is said only of what no pool can hold.
 * K6. A request that has a deadline ends by it; what a salt that nobody used asks reuses nothing.
 * K7. The text ends exactly where the first stop string begins, no token comes after it, and what is held back could begin one.
 * K8. Whoever does not read is cancelled as a slow client at its bound, and everybody else is served.
 * K9. At most one probe and one question for numbers per source is open. A probe is answered under its number; where nothing goes
 *     wrong in time, and ready once somebody was served. The gateway's numbers are what this client saw.
 * K10. With a store, a prompt that is asked again after all caches were dropped is restored in the end.
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
    /* All 0 = never, not at all. */
    uint32_t stop_one_in, chat_one_in, tenant_one_in, slow_one_in;
    uint32_t slow_bytes;        /* bytes of text a slow reader may be behind (K8) */
    uint32_t slow_us;           /* it reads everything so often */
    uint32_t probe_us, read_us; /* time between probes, and between questions for numbers */
    uint32_t drop_us;           /* time between cache drops while clients ask */
    uint32_t again_rows;        /* not 0: K10, with a prompt of so many tokens */
    uint32_t again_tries;
    uint64_t again_us;  /* by then what was computed is durable */
    uint64_t cancel_us; /* most of the time until a cancel; 0: 400 ms */
    uint32_t rows_most; /* rows that the largest pool of this mesh holds (K4) */
} qr_sim_workload_t;

typedef struct qr_sim_answers {
    uint64_t submitted, finished, cancelled, refused, failed, tokens, cached, drops, again;
    uint64_t stopped, slow, cut_off; /* ended by a stop string; cancelled as slow clients, and tried to */
    uint64_t chats, probes, reads;   /* chats asked; answers to probes and to questions for numbers */
    uint64_t reasons[64];            /* of refusals and failures by QR_E_* */
} qr_sim_answers_t;

extern const qr_actor_class_t qr_sim_http_class;

/* Begins the last phase of an edge's client; between runs only. */
void qr_sim_client_last(void *http_state, uint64_t now_us);
/* Whether nothing is open and the last phase is over. */
bool qr_sim_client_is_done(const void *http_state);
/* Whether nothing is open. */
bool qr_sim_client_is_quiet(const void *http_state);
/* What it saw; adds to *answers. */
void qr_sim_client_count(const void *http_state, qr_sim_answers_t *answers);

#endif
