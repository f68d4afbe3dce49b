/* kernels.h - ids and argument places of every kernel, generated from kernels.def. Included through device.h. */
#ifndef QR_KERNELS_H
#define QR_KERNELS_H

enum {
#define KERNEL(name, sentence) QR_KERNEL_##name,
#include "kernels/kernels.def"
    QR_KERNELS_COUNT
};

enum { QR_LAUNCH_BUFFERS_MAX = 10, QR_LAUNCH_SIZES_MAX = 8, QR_LAUNCH_SCALARS_MAX = 2 };

/* Buffers, sizes and scalars in the places kernels.def gives them. offsets: bytes into the buffer. */
typedef struct qr_launch {
    uint32_t kernel;
    uint32_t sizes[QR_LAUNCH_SIZES_MAX];
    float scalars[QR_LAUNCH_SCALARS_MAX];
    const qr_buffer_t *buffers[QR_LAUNCH_BUFFERS_MAX];
    uint64_t offsets[QR_LAUNCH_BUFFERS_MAX];
} qr_launch_t;

#endif
