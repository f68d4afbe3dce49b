/* plan.h - cuts one attention launch into pieces.
 *
 * A1. Lanes with few rows (decode) are cut by row, segment and, if there is too little work otherwise, kv head; the states of the
 *     segments of a row are merged afterwards in ascending order. Lanes with many rows (prefill) are cut by tile of rows and kv
 *     head, and walk their segments in order, some segments per round, so that no piece is long at any context.
 * A2. The rounds of a launch run one after the other; the pieces of a round run in any order on any thread. */
#ifndef QR_PLAN_H
#define QR_PLAN_H

#include "kernels/cpu/cpu.h"

typedef struct qr_plan qr_plan_t;

/* threads: for the size of the scratch and the wish for pieces. 0 or -QR_E_MEMORY. */
int qr_plan_new(const qr_cpu_isa_t *isa, uint32_t threads, qr_plan_t **ret_plan);
void qr_plan_destroy(qr_plan_t **plan);
/* Takes one launch of the kernel `attention`. 0 or -QR_E_MEMORY. */
int qr_plan_begin(qr_plan_t *plan, const qr_cpu_args_t *args);
/* Cuts the next round. Number of its pieces; 0: the launch is done. small: the round is too little work to share. */
uint32_t qr_plan_round(qr_plan_t *plan, bool *ret_small);
/* Runs one piece of the current round; a qr_piece_f. */
void qr_plan_run(void *plan, uint32_t piece, uint32_t thread);

#endif
