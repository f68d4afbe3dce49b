/* capture_value.h - whether rows are worth keeping: expected saving against measured cost, in integers. Evaluator of checkpoint_writer.
 * Pure.
 *
 * V1. A capture is worth it when reuses x (recompute - reload) > cost: gain and cost are of the same rows, in ns. Reloading that costs
 *     more than computing saves nothing, however often it happens.
 * V2. Only measured numbers count once there are any; the first sample is the value, each later one moves it by an eighth of the
 *     difference. The configured cost stands for the write's until the first write. */
#ifndef QR_CAPTURE_VALUE_H
#define QR_CAPTURE_VALUE_H

#include "base/base.h"

/* Smoothed costs of 1 KiB; 0 without a sample. */
typedef struct qr_capture_costs {
    uint64_t download_kib_ns, download_samples;
    uint64_t write_kib_ns, write_samples;
} qr_capture_costs_t;

typedef struct qr_capture_case {
    uint64_t rows, bytes; /* of all groups; at most 2^32 rows, 2^52 bytes */
    uint64_t reuse_permille, recompute_row_ns, reload_kib_ns, capture_kib_ns;
} qr_capture_case_t;

/* Takes in one finished move or write; fewer than 1,024 bytes say nothing. */
void qr_capture_downloaded(qr_capture_costs_t *costs, uint64_t bytes, uint64_t us);
void qr_capture_written(qr_capture_costs_t *costs, uint64_t bytes, uint64_t us);
/* V1. *ret_gain_ns and *ret_cost_ns are what was compared (saturated at UINT64_MAX). */
bool qr_capture_worth(const qr_capture_costs_t *costs, const qr_capture_case_t *c, uint64_t *ret_gain_ns, uint64_t *ret_cost_ns);

#endif
