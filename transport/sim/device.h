/* device.h - the device of the mind: an executor whose rows are words of token and position, and whose drawn token depends on every
 * word a row attends, on the seed and on how many tokens were drawn before. A row that is missing, stale or somebody else's changes
 * the token, so wrong reuse shows as a wrong answer.
 *
 * V1. Pages hold words; a page whose handle has a newer generation than the last seen is unwritten again.
 * V2. A handle with an older generation than one that was seen of its page is a finding: its page has another owner. Where a lane is opened
 *     with it, that is one only when a batch names the lane.
 * V3. Batches end in the order asked, after their cost; a batch that fails leaves garbage where it would have appended.
 * V4. A row remembers the scope of the request that wrote it, through copies too; whoever attends it is of the same (judge.h: J5). */
#ifndef QR_SIM_DEVICE_H
#define QR_SIM_DEVICE_H

#include "actors/actor.h"

/* More than 256 tokens, so that some differ above their low byte only. One draw in QR_SIM_END_ONE_IN is the end token. */
enum { QR_SIM_VOCABULARY = 600, QR_SIM_END_TOKEN = QR_SIM_VOCABULARY - 1, QR_SIM_END_ONE_IN = 60 };

/* What batches cost. */
typedef struct qr_sim_cost {
    uint64_t base_us, row_ns, lane_us;
} qr_sim_cost_t;

/* Moves of rows that preempted requests leave in transfer (transfer.h): what they cost, how many fail, what came of them. */
typedef struct qr_sim_spills {
    uint64_t row_ns;      /* most of one row moved */
    uint32_t fail_one_in; /* 0: none */
    uint32_t unused;
    uint64_t spilled, refused, unspilled, unspills_failed, dropped; /* counts */
} qr_sim_spills_t;

/* What given->decoder points at in a simulated world. */
typedef struct qr_sim_world_given {
    qr_sim_cost_t cost;
    const void *clients;            /* clients.h: qr_sim_workload_t */
    struct qr_sim_catalog *catalog; /* catalog.h; NULL: there is none */
    struct qr_sim_judge *judge;     /* judge.h; NULL: nobody judges */
    struct qr_sim_store *store;     /* storage.h; NULL: there is none */
    qr_sim_spills_t *spills;        /* NULL: transfer keeps no rows of preempted requests */
    uint8_t *said;                  /* NULL, or [QR_SIM_TALKS]: simulate.h */
    void *executor;                 /* NULL, or the device's state for transfer where no world runs (contract tests) */
} qr_sim_world_given_t;
static inline const qr_sim_world_given_t *qr_sim_given(const qr_given_t *given)
{
    return (const qr_sim_world_given_t *)(const void *)given->decoder;
}

/* A sequence as the device sees it, for whoever wants to know what comes next. */
typedef struct qr_sim_sequence {
    uint64_t prefix; /* of the rows of whole-prefix groups so far */
    uint32_t count;  /* rows */
} qr_sim_sequence_t;

/* Appends one token of a sequence. */
void qr_sim_sequence_add(qr_sim_sequence_t *sequence, const qr_given_t *given, uint32_t token);
/* The token and the bits of its log probability drawn after tokens[0 .. count), by a request with this seed whose generated tokens
 * begin at generated_from; greedy answers depend on neither. sequence holds exactly these tokens. */
uint32_t qr_sim_token_after(const qr_sim_sequence_t *sequence, const qr_given_t *given, const uint32_t *tokens, bool greedy, uint64_t seed,
                            uint32_t generated_from, uint32_t *ret_logprob_bits);

/* What a row of this token holds. */
uint64_t qr_sim_word(uint32_t token, uint32_t position, uint32_t group);
/* A row as it lies in a page: what it holds, and of which scope it is (V4; 0: not known). */
typedef struct qr_sim_row_word {
    uint64_t word, scope;
} qr_sim_row_word_t;

/* Row `row` of the page with this handle (V1, V2), for whoever moves rows of the device with this state; valid until its next message. */
qr_sim_row_word_t *qr_sim_device_row(void *executor_state, const qr_given_t *given, uint32_t group, uint64_t page, uint32_t row);

extern const qr_actor_class_t qr_sim_executor_class;

#endif
