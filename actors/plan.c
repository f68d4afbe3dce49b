/* plan.c - see plan.h. */
#include "actors/plan.h"

#include "base/mutant.h"

/* Prompt rows this batch may hold besides its decode rows. */
static uint32_t prefill_budget(const qr_plan_input_t *input, uint32_t decode_rows, uint32_t prompts)
{
    uint32_t rows = qr_min_u32(input->tile, QR_BATCH_ROWS_MAX - decode_rows);
    if (decode_rows == 0) return rows;
    uint32_t least = QR_MUTANT(151) ? 0 : qr_min_u32(rows, qr_max_u32(input->rows_min, prompts));
    if (input->calibration.row_ns == 0) return least; /* unknown cost: a small step teaches it */
    uint64_t base_ns = qr_calibration_step_ns(&input->calibration, decode_rows), budget_ns = input->budget_us * 1000;
    uint64_t fit = budget_ns > base_ns ? (budget_ns - base_ns) / input->calibration.row_ns : 0;
    if (QR_MUTANT(152)) fit = rows;
    return qr_max_u32(least, (uint32_t)qr_min_u64(rows, fit));
}

/* Sorts prompts in place by (rows_left, order), or by order alone: at most QR_LANES_MAX of them. */
static void sort_prompts(qr_plan_lane_t *prompts, uint32_t count, bool by_rows)
{
    for (uint32_t i = 1; i < count; i++) {
        qr_plan_lane_t moved = prompts[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            const qr_plan_lane_t *before = &prompts[at - 1];
            bool later =
                by_rows && before->rows_left != moved.rows_left ? before->rows_left > moved.rows_left : before->order > moved.order;
            if (!later) break;
            prompts[at] = *before;
        }
        prompts[at] = moved;
    }
}

static void take(qr_plan_t *plan, uint32_t lane, uint32_t rows)
{
    plan->lanes[plan->count] = lane;
    plan->rows[plan->count++] = rows;
}

void qr_plan(const qr_plan_input_t *input, qr_plan_t *ret_plan)
{
    qr_assert(input->lane_count <= QR_LANES_MAX);
    qr_assert(input->tile >= 1);
    qr_plan_lane_t prompts[QR_LANES_MAX];
    uint32_t count = 0;
    memset(ret_plan, 0, sizeof *ret_plan);
    for (uint32_t i = 0; i < input->lane_count; i++) {
        const qr_plan_lane_t *lane = &input->lanes[i];
        if (lane->rows_left == 1)
            take(ret_plan, lane->lane, 1);
        else if (lane->rows_left > 1)
            prompts[count++] = *lane;
    }
    ret_plan->decode_rows = ret_plan->count;
    if (count == 0) return;
    uint32_t rows = prefill_budget(input, ret_plan->decode_rows, count);
    sort_prompts(prompts, count, rows >= count);
    for (uint32_t i = 0; i < count && rows > 0; i++) {
        uint32_t share = QR_MUTANT(153) ? rows : qr_max_u32(1, rows / (count - i));
        uint32_t given = qr_min_u32(prompts[i].rows_left, share);
        take(ret_plan, prompts[i].lane, given);
        ret_plan->prefill_rows += given;
        rows -= given;
    }
}
