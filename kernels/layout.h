/* layout.h - how the cpu device lays out weights and activations. One layout for every instruction set.
 *
 * Y1. A weight is cut into groups of 16 rows. A group holds its quants, block after block, then its scales, block after block:
 *     quants [blocks][quant bytes], scales [blocks][scale bytes]; a block is 32 columns. Groups are padded
 *     to 64 bytes, so that quants lie on cache lines.
 *       F32   quants f32[32][16]                                        no scales
 *       F16   quants f16[32][16]                                        no scales
 *       Q8_0  quants u8[8][16][4]: w + 128, columns 4j..4j+3            scales f16[16]
 *       Q4_0  quants u8[4][16][4]: columns 4j.. low, 16 + 4j.. high     scales f16[16]
 *       Q4_1  as Q4_0                                                   scales f16[16], minimum f16[16]
 *       Q6_K  quants u8[8][16][4]: w + 32, columns 4j..4j+3             scales f16[16], sub-scales i8[2][16] of the two halves
 * Y2. Rows past the last one are zero weights; nothing reads their results.
 * Y3. A quantised activation row is one 64-byte record per block of 32 values. */
#ifndef QR_LAYOUT_H
#define QR_LAYOUT_H

#include "kernels/device.h"

enum { QR_GROUP_ROWS = 16, QR_BLOCK = 32 };

/* One block of a quantised activation (arithmetic 2). The products of the sums are what unsigned weights need taken off. */
typedef struct qr_activation {
    int8_t q[QR_BLOCK];
    float d, ds;         /* scale; scale * float(sum of q) */
    int32_t minus_128;   /* -128 * sum of q: Q8_0 */
    int32_t minus_8;     /* -8 * sum of q: Q4_0 */
    int32_t minus_32[2]; /* -32 * sum of q[0..15], of q[16..31]: Q6_K */
    uint32_t zero[2];
} qr_activation_t;
_Static_assert(sizeof(qr_activation_t) == 64, "one cache line");

/* Bytes of one block of one group; 0: unknown format. */
static inline uint32_t qr_quant_bytes(uint32_t format)
{
    switch (format) {
    case QR_FORMAT_F32: return 2048;
    case QR_FORMAT_F16: return 1024;
    case QR_FORMAT_Q8_0:
    case QR_FORMAT_Q6_K: return 512;
    case QR_FORMAT_Q4_0:
    case QR_FORMAT_Q4_1: return 256;
    default: return 0;
    }
}

static inline uint32_t qr_scale_bytes(uint32_t format)
{
    switch (format) {
    case QR_FORMAT_Q8_0:
    case QR_FORMAT_Q4_0: return 32;
    case QR_FORMAT_Q4_1:
    case QR_FORMAT_Q6_K: return 64;
    default: return 0;
    }
}

/* Bytes of one group of 16 rows, and of a whole packed weight. columns: a multiple of 32. */
static inline uint64_t qr_group_bytes(uint32_t format, uint32_t columns)
{
    return qr_round_up((uint64_t)(qr_quant_bytes(format) + qr_scale_bytes(format)) * (columns / QR_BLOCK), 64);
}

static inline uint64_t qr_packed_bytes(uint32_t format, uint64_t rows, uint32_t columns)
{
    return qr_div_up(rows, QR_GROUP_ROWS) * qr_group_bytes(format, columns);
}

/* Packs row-major GGUF blocks of part_count stacked matrices into `packed` (zeroed, qr_packed_bytes). */
void qr_pack(uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts, const uint32_t *part_rows, uint8_t *packed);

/* One row of a packed weight to fp32, exactly as qr_format_row_decode of the row it came from. */
void qr_packed_row_decode(uint32_t format, uint32_t columns, const uint8_t *packed, uint64_t row, float *ret_values);

#endif
