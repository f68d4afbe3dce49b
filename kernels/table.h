/* table.h - kernels.def as data: what a launch must bring, checked before it is queued.
 *
 * T1. A launch that passed names a kernel of the table, brings every buffer of its row, and every buffer is at least as long as
 *     its shape says. Dimensions the sizes do not tell (pages, "...") count as 1. */
#ifndef QR_TABLE_H
#define QR_TABLE_H

#include "kernels/device.h"

typedef enum qr_direction { QR_IN, QR_OUT, QR_INOUT } qr_direction_t;

typedef struct qr_buffer_row {
    const char *name, *shape;
    qr_direction_t direction;
} qr_buffer_row_t;

typedef struct qr_kernel_row {
    const char *name, *sentence;
    qr_buffer_row_t buffers[QR_LAUNCH_BUFFERS_MAX];
    const char *sizes[QR_LAUNCH_SIZES_MAX];
    const char *scalars[QR_LAUNCH_SCALARS_MAX];
} qr_kernel_row_t;

/* Shapes turned into a small program each, once per device. */
typedef struct qr_table qr_table_t;
int qr_table_new(qr_table_t **ret_table);
void qr_table_destroy(qr_table_t **table);

/* Row of one kernel; kernel < QR_KERNELS_COUNT. Static memory. */
const qr_kernel_row_t *qr_kernel_row(uint32_t kernel);
/* Bytes that buffer `index` of the launch must have from its offset on. */
uint64_t qr_table_bytes(const qr_table_t *table, const qr_launch_t *launch, uint32_t index);
/* NULL, or what is wrong with the launch (static text: the buffer's or the kernel's name). */
const char *qr_table_fault(const qr_table_t *table, const qr_launch_t *launch);

#endif
