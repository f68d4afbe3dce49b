/* cost.c - see cost.h. */
#include "actors/cost.h"

#include "base/mutant.h"

void qr_cost_restore_add(qr_cost_t *cost, uint32_t rows, uint64_t move_us)
{
    if (rows == 0) return;
    uint64_t ns = move_us * 1000, sample = qr_max_u64(ns / rows, 1);
    if (cost->restore_samples++ == 0)
        cost->restore_row_ns = sample;
    else
        cost->restore_row_ns = qr_max_u64(cost->restore_row_ns - cost->restore_row_ns / 8 + sample / 8, 1);
}

uint64_t qr_cost_restore_ns(const qr_cost_t *cost, uint32_t rows, uint32_t row_bytes)
{
    uint64_t row_ns = cost->restore_samples ? cost->restore_row_ns : qr_max_u64((uint64_t)row_bytes * QR_COST_BYTE_PS / 1000, 1);
    return QR_COST_RESTORE_NS + row_ns * rows;
}

uint64_t qr_cost_recompute_ns(const qr_calibration_t *calibration, uint32_t rows)
{
    return (calibration->row_samples ? calibration->row_ns : QR_COST_ROW_NS) * (uint64_t)rows;
}

void qr_cost_restore_declined(qr_cost_t *cost, const qr_calibration_t *calibration)
{
    if (cost->restore_samples == 0 || QR_MUTANT(692)) return;
    uint64_t most = 2 * qr_cost_recompute_ns(calibration, 1);
    cost->restore_row_ns = qr_min_u64(cost->restore_row_ns, most);
    cost->restore_row_ns = qr_max_u64(cost->restore_row_ns - cost->restore_row_ns / 16, 1);
}

bool qr_cost_restore_pays(const qr_cost_t *cost, const qr_calibration_t *calibration, uint32_t rows, uint32_t row_bytes)
{
    if (QR_MUTANT(481)) return true;
    return qr_cost_restore_ns(cost, rows, row_bytes) < qr_cost_recompute_ns(calibration, rows);
}
