/* calibration.h - measured costs of a device as smoothed integers with their sample counts. Evaluator of scheduler and worker. Pure.
 *
 * CB1. Only integers; the first sample is the value, each later one moves it by an eighth of the difference.
 * CB2. A step without a real share of prompt rows teaches the cost of a step by its number of rows (classes by powers of two);
 *      a step with at least QR_CALIBRATION_ROWS_MIN prompt rows teaches the cost of one prompt row. */
#ifndef QR_CALIBRATION_H
#define QR_CALIBRATION_H

#include "base/base.h"
#include "base/limits.h"

enum {
    QR_CALIBRATION_CLASSES = 8,  /* 1, 2, 3-4, 5-8, ... 65-128 rows */
    QR_CALIBRATION_ROWS_MIN = 16 /* fewer prompt rows say nothing about the cost of one */
};

typedef struct qr_calibration {
    uint64_t step_ns[QR_CALIBRATION_CLASSES]; /* cost of a step of so many rows; 0 without a sample */
    uint64_t step_samples[QR_CALIBRATION_CLASSES];
    uint64_t row_ns; /* cost of one prompt row beyond the step's own; 0 without a sample */
    uint64_t row_samples;
} qr_calibration_t;

/* Takes in one finished step. */
void qr_calibration_add(qr_calibration_t *calibration, uint32_t decode_rows, uint32_t prefill_rows, uint64_t step_us);
/* Predicted cost in ns of a step of `rows` decode rows: of its class, else of the nearest smaller one, else of the nearest larger
 * one; 0 when nothing is known (and for 0 rows). */
uint64_t qr_calibration_step_ns(const qr_calibration_t *calibration, uint32_t rows);
/* Predicted time of a step with both kinds of rows. */
uint64_t qr_calibration_step_us(const qr_calibration_t *calibration, uint32_t decode_rows, uint32_t prefill_rows);
/* Samples of all step classes together. */
uint64_t qr_calibration_samples(const qr_calibration_t *calibration);

#endif
