/* calibration.c - see calibration.h. */
#include "actors/calibration.h"

#include "base/mutant.h"

enum { STEP_NS_MAX = 1000000000 }; /* a slower step was a stopped process, not a cost */

/* Class of a number of rows: 0 for 1, k for 2^(k-1) < rows <= 2^k. */
static uint32_t class_of(uint32_t rows)
{
    uint32_t kind = 0;
    while (kind + 1 < QR_CALIBRATION_CLASSES && (1u << kind) < rows) kind++;
    return kind;
}

static void smooth(uint64_t *value, uint64_t *samples, uint64_t sample)
{
    if (*samples == 0)
        *value = sample;
    else if (sample >= *value)
        *value += (sample - *value) / 8;
    else
        *value -= (*value - sample) / 8;
    (*samples)++;
}

void qr_calibration_add(qr_calibration_t *calibration, uint32_t decode_rows, uint32_t prefill_rows, uint64_t step_us)
{
    uint64_t rows = (uint64_t)decode_rows + prefill_rows;
    if (rows == 0) return;
    if (prefill_rows < QR_CALIBRATION_ROWS_MIN) {
        uint32_t kind = class_of((uint32_t)rows);
        smooth(&calibration->step_ns[kind], &calibration->step_samples[kind], qr_min_u64(step_us, STEP_NS_MAX / 1000) * 1000);
        return;
    }
    uint64_t whole_ns = qr_min_u64(step_us, 1000 * (uint64_t)STEP_NS_MAX) * 1000;
    uint64_t base_ns = QR_MUTANT(150) ? 0 : qr_calibration_step_ns(calibration, decode_rows);
    uint64_t sample = whole_ns > base_ns ? (whole_ns - base_ns) / prefill_rows : 0;
    smooth(&calibration->row_ns, &calibration->row_samples, sample);
}

uint64_t qr_calibration_step_ns(const qr_calibration_t *calibration, uint32_t rows)
{
    if (rows == 0) return 0;
    uint32_t kind = class_of(rows);
    for (uint32_t i = kind + 1; i-- > 0;)
        if (calibration->step_samples[i]) return calibration->step_ns[i];
    for (uint32_t i = kind + 1; i < QR_CALIBRATION_CLASSES; i++)
        if (calibration->step_samples[i]) return calibration->step_ns[i];
    return 0;
}

uint64_t qr_calibration_step_us(const qr_calibration_t *calibration, uint32_t decode_rows, uint32_t prefill_rows)
{
    return (qr_calibration_step_ns(calibration, decode_rows) + calibration->row_ns * prefill_rows) / 1000;
}

uint64_t qr_calibration_samples(const qr_calibration_t *calibration)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < QR_CALIBRATION_CLASSES; i++) sum += calibration->step_samples[i];
    return sum;
}
