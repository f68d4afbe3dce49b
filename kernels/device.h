/* device.h - what computes: buffers and one in-order queue of launches. The cpu and opencl devices hide behind it.
 *
 * D1. Launches run in the order they were queued; a launch sees everything that earlier ones wrote.
 * D2. Nothing computes inside enqueue: advance does, in pieces, and returns when its budget is over. On cpu the calling thread is
 *     compute thread 0; the others help between pieces and never outlive the launch they work on.
 * D3. A kernel that is not in kernels.def cannot be launched; arguments are checked against its row (assert: they are ours).
 * D4. The bits of every result on `cpu` are those of arithmetic `cpu-1`, whatever the instruction set, threads and batch. */
#ifndef QR_DEVICE_H
#define QR_DEVICE_H

#include "base/base.h"

typedef struct qr_device qr_device_t;

enum { QR_HEADS_PER_KV_MAX = 64 }; /* query heads of one kv head; a model with more is refused at load */

/* Memory of the device. host: where the cpu may read and write it (cpu device: the memory itself; opencl: NULL, use read/write). */
typedef struct qr_buffer {
    uint8_t *host;
    void *handle;
    uint64_t bytes;
} qr_buffer_t;

typedef enum qr_format { /* numbers of GGUF */
                         QR_FORMAT_F32 = 0,
                         QR_FORMAT_F16 = 1,
                         QR_FORMAT_Q4_0 = 2,
                         QR_FORMAT_Q4_1 = 3,
                         QR_FORMAT_Q8_0 = 8,
                         QR_FORMAT_Q6_K = 14
} qr_format_t;

/* A weight matrix [rows][columns] packed for the device. Several matrices of one format and width may be stacked by rows (q|k|v, gate|up).
 */
typedef struct qr_weight {
    uint32_t format, rows, columns; /* columns: multiple of 32 (of 256 for Q6_K); rows: as given, padded inside to 16 */
    qr_buffer_t buffer;
} qr_weight_t;

#include "kernels/kernels.h" /* QR_KERNEL_*, qr_launch_t: generated from kernels.def */

typedef struct qr_device_config {
    uint32_t kind;    /* QR_DEVICE_CPU, QR_DEVICE_OPENCL */
    uint32_t isa;     /* QR_ISA_* (cpu) */
    uint32_t threads; /* >= 1 (cpu) */
} qr_device_config_t;

/* Opens a device. 0, -QR_E_UNSUPPORTED (isa not on this machine, no OpenCL platform) or -QR_E_MEMORY; message: one sentence and the next
 * step. */
int qr_device_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes);
void qr_device_destroy(qr_device_t **device);
/* "cpu avx512, 2 threads" and the execution variant ("cpu-1") that goes into the fingerprint. */
const char *qr_device_name(const qr_device_t *device);
const char *qr_device_variant(const qr_device_t *device);
/* Whether moving state may run beside launches without taking from them: "eligible" where a launch needs no thread of ours and copies have
 * a queue of their own, else "interference-only". A fact of the device, no promise of speed. */
const char *qr_device_overlap(const qr_device_t *device);

/* Zeroed, 4,096-byte aligned, touched; huge pages where the system gives them. */
int qr_buffer_new(qr_device_t *device, uint64_t bytes, qr_buffer_t *ret_buffer);
void qr_buffer_done(qr_device_t *device, qr_buffer_t *buffer);
/* Blocking copies between host memory and a buffer; only while the queue is empty. */
int qr_buffer_write(qr_device_t *device, qr_buffer_t *buffer, uint64_t offset, const void *from, uint64_t bytes);
int qr_buffer_read(qr_device_t *device, const qr_buffer_t *buffer, uint64_t offset, void *to, uint64_t bytes);

/* Packs row-major GGUF blocks. parts: [part_count] pointers to matrices of part_rows[i] rows each, stacked. */
int qr_weight_new(qr_device_t *device, uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts,
                  const uint32_t *part_rows, qr_weight_t *ret_weight);
void qr_weight_done(qr_device_t *device, qr_weight_t *weight);
/* Bytes of one row-major GGUF row of `columns` values; 0 if the format is unknown or columns do not fit its block. */
uint64_t qr_format_row_bytes(uint32_t format, uint64_t columns);
/* One row-major GGUF row to fp32 (exact). For judges, embeddings of oracles and tests. */
void qr_format_row_decode(uint32_t format, const void *row, uint64_t columns, float *ret_values);
/* Whether products with this format take quantised activations (true) or fp32 rows (false). */
bool qr_format_quantised(uint32_t format);
/* Bytes of one row of activations of n values, quantised or fp32. */
uint64_t qr_activation_row_bytes(bool quantised, uint32_t n);

/* Queues one launch. 0 or -QR_E_LIMIT when the queue (QR_LAUNCHES_MAX) is full. */
enum { QR_LAUNCHES_MAX = 4096 };
int qr_device_enqueue(qr_device_t *device, const qr_launch_t *launch);
/* Works for about budget_us (0: until the queue is empty). 1: more to do, 0: the queue is empty, -QR_E_DEVICE: failed and emptied. */
int qr_device_advance(qr_device_t *device, uint64_t budget_us);
/* Empties the queue: what has not begun never runs, what runs is waited for (a piece on cpu, what was queued on opencl). The launches
 * leave what they wrote. */
void qr_device_abandon(qr_device_t *device);

#endif
