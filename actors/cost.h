/* cost.h - what it costs to have a prefix stand, by each way there is: it is resident, it comes from memory or from disk, it is computed.
 * Smoothed integers with their sample counts, and the choice between them under a policy. Evaluator of the scheduler. Pure.
 *
 * CO1. Only integers. Until the first sample the policy's cost stands; the first sample is the value, each later one moves it by an
 *      eighth of the difference.
 * CO2. A way is chosen only if it is predicted to take less time than computing the same rows, or `always` (then of two ways the one to
 *      more rows); a tie is computed, and of memory and disk a tie is memory's. Rows of disk that memory holds too cost what memory costs. Rows that memory keeps for a request that
 *      made room are nobody else's and are always taken; rows of disk are then all of disk.
 * CO3. What a bad hour taught is forgotten: a restore that was not chosen makes the next look a sixteenth cheaper, from no more than
 *      twice what computing costs. So it is tried again after a dozen, and where it stays too slow that dozen pays for it.
 * CO4. A choice says all it was made of: the same numbers under the same policy give it again. */
#ifndef QR_COST_H
#define QR_COST_H

#include "actors/calibration.h"
#include "messages/message.h"

#define QR_COST_NONE UINT64_MAX /* there is no such way */

/* The costs that stand until they are measured. */
typedef qr_policy_snapshot_t qr_policy_t;

typedef struct qr_cost_source {
    uint64_t row_ns; /* beyond what one restore costs; 0 without a sample */
    uint64_t samples;
} qr_cost_source_t;
typedef struct qr_cost {
    qr_cost_source_t ram, ssd;
} qr_cost_t;

/* Up to which row a prefix stands, and is to be had from memory or disk (0: not at all); bytes of one row over all groups. */
typedef struct qr_cost_case {
    uint32_t resident_rows, ram_rows, ssd_rows, row_bytes;
    uint32_t own;    /* 1: ram_rows are kept for this request alone; then there are such beyond the resident ones */
    uint32_t always; /* 1: what computing costs does not count */
} qr_cost_case_t;

/* Predicted time until rows [0, the most of them) stand, by each way; QR_COST_NONE: there is none. */
typedef struct qr_cost_choice {
    uint64_t ram_ns, ssd_ns, recompute_ns;
    uint64_t ram_row_ns, ssd_row_ns, recompute_row_ns;
    uint64_t ram_samples, ssd_samples, recompute_samples;
    uint32_t source, rows; /* QR_SOURCE_*; what then stands without computing */
} qr_cost_choice_t;

/* Takes in `rows` rows that came in move_us of transfer's time (its queue apart). rows 0: nothing is learned. */
void qr_cost_add(qr_cost_source_t *source, uint32_t rows, uint64_t move_us);
/* Fills *ret_choice and lets a restore that was not chosen be forgotten (CO3). */
void qr_cost_choose(const qr_policy_t *policy, qr_cost_t *cost, const qr_calibration_t *calibration, const qr_cost_case_t *c,
                    qr_cost_choice_t *ret_choice);

#endif
