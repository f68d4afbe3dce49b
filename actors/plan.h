/* plan.h - what goes into the next batch: a pure function of its input. Evaluator of the scheduler (and of whoever sizes a batch).
 *
 * PL1. Every decode row is in every batch.
 * PL2. Prompt rows of a batch <= tile; rows of a batch <= qr_plan_rows_max. With a decode row in it the predicted step stays within
 *      the budget, but at least `rows_min` prompt rows (or one for each prompt, if that is more and the tile allows) go on, so
 *      that decode never starves a prompt.
 * PL3. Prompt rows are shared equally, shortest prompt first; what short ones leave goes to the longest. When there are fewer rows
 *      than prompts, the first of the order get one each, so that a long prompt is not starved by ever new short ones.
 * PL4. The same input gives the same plan, byte for byte: ties are broken by order, equal orders by place in the input. */
#ifndef QR_PLAN_H
#define QR_PLAN_H

#include "actors/calibration.h"

enum { QR_PLAN_ROWS_MIN = 16 }; /* least prompt rows of a batch that holds decode rows */

typedef struct qr_plan_lane {
    uint64_t order;     /* place in the total order; smaller is earlier */
    uint32_t lane;      /* the caller's name for it, handed back */
    uint32_t rows_left; /* rows it may compute now, the pending token's included; 1 = a decode row; 0 = none */
} qr_plan_lane_t;

typedef struct qr_plan_input {
    uint32_t lane_count;
    uint32_t tile;     /* most prompt rows of one batch, >= 1 */
    uint32_t rows_min; /* see PL2 */
    uint32_t reserved;
    uint64_t budget_us; /* for a batch with a decode row */
    qr_calibration_t calibration;
    qr_plan_lane_t lanes[QR_LANES_MAX];
} qr_plan_input_t;

typedef struct qr_plan {
    uint32_t count; /* entries below; 0 = nothing to run */
    uint32_t decode_rows, prefill_rows, reserved;
    uint32_t lanes[QR_LANES_MAX];
    uint32_t rows[QR_LANES_MAX]; /* >= 1 */
} qr_plan_t;

/* Fills *ret_plan completely: decode rows in input order, then prompts from the shortest on. */
void qr_plan(const qr_plan_input_t *input, qr_plan_t *ret_plan);

/* Most rows of one batch for a configuration: what executor and decoder must have room for. */
static inline uint32_t qr_plan_rows_max(uint64_t prefill_tile, uint64_t max_lanes)
{
    return (uint32_t)qr_min_u64(prefill_tile + max_lanes, QR_BATCH_ROWS_MAX);
}
/* Most rows of one lane that are not committed yet: a tile in each batch in flight (windowed groups size their pages by it). */
static inline uint32_t qr_plan_rows_in_flight(uint64_t prefill_tile) { return (uint32_t)prefill_tile * QR_BATCHES_IN_FLIGHT; }

#endif
