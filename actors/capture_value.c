/* capture_value.c - see capture_value.h. */
#include "actors/capture_value.h"

#include "base/mutant.h"

enum { KIB_NS_MAX = 1000000000 }; /* a second for 1 KiB was a stopped process, not a cost */

static uint64_t product(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static void smooth(uint64_t *value, uint64_t *samples, uint64_t bytes, uint64_t us)
{
    if (bytes < 1024) return;
    uint64_t sample = qr_min_u64(product(us, 1000) / (bytes / 1024), KIB_NS_MAX);
    if (*samples == 0)
        *value = sample;
    else if (sample >= *value)
        *value += (sample - *value) / 8;
    else
        *value -= (*value - sample) / 8;
    (*samples)++;
}

void qr_capture_downloaded(qr_capture_costs_t *costs, uint64_t bytes, uint64_t us)
{
    smooth(&costs->download_kib_ns, &costs->download_samples, bytes, us);
}

void qr_capture_written(qr_capture_costs_t *costs, uint64_t bytes, uint64_t us)
{
    smooth(&costs->write_kib_ns, &costs->write_samples, bytes, us);
}

bool qr_capture_worth(const qr_capture_costs_t *costs, const qr_capture_case_t *c, uint64_t *ret_gain_ns, uint64_t *ret_cost_ns)
{
    uint64_t kib = c->bytes / 1024, recompute_ns = product(c->rows, c->recompute_row_ns), reload_ns = product(kib, c->reload_kib_ns);
    uint64_t saved_ns = recompute_ns > reload_ns ? recompute_ns - reload_ns : 0;
    if (QR_MUTANT(615)) saved_ns = recompute_ns;
    uint64_t write_kib_ns = costs->write_samples && !QR_MUTANT(616) ? costs->write_kib_ns : c->capture_kib_ns;
    uint64_t gain_ns = saved_ns > UINT64_MAX / 10000 ? product(saved_ns / 1000, c->reuse_permille) : saved_ns * c->reuse_permille / 1000;
    *ret_gain_ns = gain_ns;
    *ret_cost_ns = product(kib, sum(costs->download_kib_ns, write_kib_ns));
    return gain_ns > *ret_cost_ns;
}
