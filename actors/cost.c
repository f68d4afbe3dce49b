/* cost.c - see cost.h. */
#include "actors/cost.h"

#include "base/mutant.h"

void qr_cost_add(qr_cost_source_t *source, uint32_t rows, uint64_t move_us)
{
    if (rows == 0) return;
    uint64_t sample = qr_max_u64(move_us * 1000 / rows, 1);
    if (source->samples++ == 0)
        source->row_ns = sample;
    else
        source->row_ns = qr_max_u64(source->row_ns - source->row_ns / 8 + sample / 8, 1);
}

static uint64_t row_of(const qr_cost_source_t *source, uint32_t row_bytes, uint64_t byte_ps)
{
    return source->samples && !QR_MUTANT(742) ? source->row_ns : qr_max_u64(row_bytes * byte_ps / 1000, 1);
}

/* Predicted ns until `most` rows stand when the first `rows` of them are to be had, those up to in_ram from memory and the others from
 * disk. */
static uint64_t way(const qr_cost_case_t *c, uint32_t rows, uint32_t in_ram, const qr_cost_choice_t *x, uint64_t once_ns)
{
    uint32_t most = qr_max_u32(c->resident_rows, qr_max_u32(c->ram_rows, c->ssd_rows));
    if (rows <= c->resident_rows) return QR_COST_NONE;
    in_ram = qr_min_u32(qr_max_u32(in_ram, c->resident_rows), rows);
    return once_ns + x->ram_row_ns * (in_ram - c->resident_rows) + x->ssd_row_ns * (rows - in_ram) + x->recompute_row_ns * (most - rows);
}

/* CO3 */
static void declined(qr_cost_source_t *source, uint64_t recompute_row_ns)
{
    if (source->samples == 0 || QR_MUTANT(692)) return;
    source->row_ns = qr_min_u64(source->row_ns, 2 * recompute_row_ns);
    source->row_ns = qr_max_u64(source->row_ns - source->row_ns / 16, 1);
}

void qr_cost_choose(const qr_policy_t *policy, qr_cost_t *cost, const qr_calibration_t *calibration, const qr_cost_case_t *c,
                    qr_cost_choice_t *ret_choice)
{
    uint32_t most = qr_max_u32(c->resident_rows, qr_max_u32(c->ram_rows, c->ssd_rows));
    qr_cost_choice_t x = {.ram_row_ns = row_of(QR_MUTANT(773) ? &cost->ssd : &cost->ram, c->row_bytes, policy->ram_byte_ps),
                          .ssd_row_ns = row_of(&cost->ssd, c->row_bytes, policy->restore_byte_ps),
                          .recompute_row_ns = calibration->row_samples ? calibration->row_ns : policy->recompute_row_ns,
                          .ram_samples = cost->ram.samples,
                          .ssd_samples = cost->ssd.samples,
                          .recompute_samples = calibration->row_samples,
                          .source = QR_SOURCE_RECOMPUTE,
                          .rows = c->resident_rows};
    x.recompute_ns = x.recompute_row_ns * (most - c->resident_rows);
    uint64_t bar_ns = c->always && !QR_MUTANT(831) ? QR_COST_NONE : x.recompute_ns;
    x.ram_ns = way(c, c->ram_rows, c->ram_rows, &x, policy->ram_ns);
    x.ssd_ns = way(c, c->ssd_rows, c->own ? 0 : c->ram_rows, &x, QR_MUTANT(743) ? 0 : policy->restore_ns);
    bool shallow = c->always && c->ram_rows < c->ssd_rows && !QR_MUTANT(830);
    if (c->resident_rows == most) {
        x.source = QR_SOURCE_RESIDENT;
    } else if (c->own || (!shallow && x.ram_ns < bar_ns && x.ram_ns <= x.ssd_ns)) {
        x.source = QR_SOURCE_RAM;
        x.rows = c->ram_rows;
    } else if (x.ssd_ns < bar_ns || QR_MUTANT(481)) {
        x.source = QR_SOURCE_SSD;
        x.rows = c->ssd_rows;
    }
    if (!c->own && x.ram_ns != QR_COST_NONE && x.source == QR_SOURCE_RECOMPUTE) declined(&cost->ram, x.recompute_row_ns);
    if (!c->own && x.source != QR_SOURCE_SSD && c->ssd_rows > x.rows) declined(&cost->ssd, x.recompute_row_ns);
    *ret_choice = x;
}
