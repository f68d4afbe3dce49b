/* cost.h - what it costs to bring rows back from durable chunks, as smoothed integers with their sample count, and whether that beats
 * computing them. Evaluator of the scheduler. Pure.
 *
 * CO1. Only integers. Until the first sample the configured cost stands; the first sample is the value, each later one moves it by an
 *      eighth of the difference.
 * CO2. Restore is chosen only if it is predicted to take less time than computing the same rows; a tie is computed.
 * CO3. What a bad hour taught is forgotten: a restore that was not chosen makes the next look a sixteenth cheaper, from no more than twice
 *      what computing costs. So it is tried again after a dozen, and where it stays too slow that dozen pays for it. */
#ifndef QR_COST_H
#define QR_COST_H

#include "actors/calibration.h"

enum {
    QR_COST_RESTORE_NS = 1000000, /* of one restore whatever its rows: messages, leases, headers */
    QR_COST_ROW_NS = 1000000,     /* configured: computing one prompt row of a model nothing is known of */
    QR_COST_BYTE_PS = 1000        /* configured: reading, checking and copying one byte, in ps */
};

typedef struct qr_cost {
    uint64_t restore_row_ns; /* beyond QR_COST_RESTORE_NS; 0 without a sample */
    uint64_t restore_samples;
} qr_cost_t;

/* Takes in a restore of so many rows that took move_us of transfer's time (its queue apart). rows 0: nothing is learned. */
void qr_cost_restore_add(qr_cost_t *cost, uint32_t rows, uint64_t move_us);
/* A restore was not chosen (CO3). */
void qr_cost_restore_declined(qr_cost_t *cost, const qr_calibration_t *calibration);
/* Predicted ns of restoring `rows` rows of row_bytes each (over all groups). */
uint64_t qr_cost_restore_ns(const qr_cost_t *cost, uint32_t rows, uint32_t row_bytes);
/* Predicted ns of computing `rows` prompt rows. */
uint64_t qr_cost_recompute_ns(const qr_calibration_t *calibration, uint32_t rows);
/* CO2. */
bool qr_cost_restore_pays(const qr_cost_t *cost, const qr_calibration_t *calibration, uint32_t rows, uint32_t row_bytes);

#endif
