/* layout.c - row-major GGUF blocks: their sizes, their values, and the packed form of the cpu device (layout.h).
 * Formats after ggml's quants documentation: Q8_0 {f16 d, i8 q[32]}, Q4_0 {f16 d, u8 q[16]}, Q4_1 {f16 d, f16 m, u8 q[16]},
 * Q6_K {u8 low[128], u8 high[64], i8 scales[16], f16 d} of 256 values. In Q4 byte j holds values j (low) and j + 16 (high). */
#include "kernels/layout.h"

#include "kernels/half.h"

enum { Q8_0_BYTES = 34, Q4_0_BYTES = 18, Q4_1_BYTES = 20, Q6_K_BYTES = 210, Q6_K_COLUMNS = 256 };

uint64_t qr_format_row_bytes(uint32_t format, uint64_t columns)
{
    if (!columns || columns % (format == QR_FORMAT_Q6_K ? Q6_K_COLUMNS : QR_BLOCK)) return 0;
    switch (format) {
    case QR_FORMAT_F32: return columns * 4;
    case QR_FORMAT_F16: return columns * 2;
    case QR_FORMAT_Q8_0: return columns / QR_BLOCK * Q8_0_BYTES;
    case QR_FORMAT_Q4_0: return columns / QR_BLOCK * Q4_0_BYTES;
    case QR_FORMAT_Q4_1: return columns / QR_BLOCK * Q4_1_BYTES;
    case QR_FORMAT_Q6_K: return columns / Q6_K_COLUMNS * Q6_K_BYTES;
    default: return 0;
    }
}

bool qr_format_quantised(uint32_t format) { return format != QR_FORMAT_F32 && format != QR_FORMAT_F16; }

uint64_t qr_activation_row_bytes(bool quantised, uint32_t n)
{
    return quantised ? (uint64_t)n / QR_BLOCK * sizeof(qr_activation_t) : (uint64_t)n * 4;
}

static float half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, 2);
    return qr_half_to_float(half);
}

/* Value i of a Q6_K super-block as an integer in -32..31, and its sub-scale. */
static int q6_quant(const uint8_t *block, uint32_t i)
{
    uint32_t half = i / 128, within = i % 128, quarter = within / 32, place = within % 32;
    uint32_t low = block[half * 64 + (quarter & 1) * 32 + place] >> (quarter >= 2 ? 4 : 0) & 15u;
    uint32_t high = (uint32_t)block[128 + half * 32 + place] >> (2 * quarter) & 3u;
    return (int)(low | high << 4) - 32;
}

static int q6_scale(const uint8_t *block, uint32_t i) { return (int8_t)block[192 + i / 16]; }

void qr_format_row_decode(uint32_t format, const void *row, uint64_t columns, float *ret_values)
{
    const uint8_t *bytes = row;
    for (uint64_t i = 0; i < columns; i++) {
        uint64_t block = i / QR_BLOCK, in = i % QR_BLOCK;
        const uint8_t *b;
        switch (format) {
        case QR_FORMAT_F32: memcpy(ret_values + i, bytes + 4 * i, 4); break;
        case QR_FORMAT_F16: ret_values[i] = half_at(bytes + 2 * i); break;
        case QR_FORMAT_Q8_0:
            b = bytes + block * Q8_0_BYTES;
            ret_values[i] = half_at(b) * (float)(int8_t)b[2 + in];
            break;
        case QR_FORMAT_Q4_0:
            b = bytes + block * Q4_0_BYTES;
            ret_values[i] = half_at(b) * (float)((int)(b[2 + in % 16] >> (in / 16 * 4) & 15) - 8);
            break;
        case QR_FORMAT_Q4_1: { /* the product is exact: 15 bits */
            b = bytes + block * Q4_1_BYTES;
            float scaled = half_at(b) * (float)(b[4 + in % 16] >> (in / 16 * 4) & 15);
            ret_values[i] = scaled + half_at(b + 2);
            break;
        }
        case QR_FORMAT_Q6_K:
            b = bytes + i / Q6_K_COLUMNS * Q6_K_BYTES;
            ret_values[i] = half_at(b + 208) * (float)(q6_scale(b, (uint32_t)(i % 256)) * q6_quant(b, (uint32_t)(i % 256)));
            break;
        default: qr_unreachable("format");
        }
    }
}

/* Puts block `block` of one row-major row into lane `lane` of its group. */
static void pack_block(uint32_t format, const uint8_t *row, uint32_t block, uint32_t lane, uint8_t *quants, uint8_t *scales)
{
    const uint8_t *b;
    switch (format) {
    case QR_FORMAT_F32:
        for (uint32_t i = 0; i < QR_BLOCK; i++) memcpy(quants + (i * 16 + lane) * 4, row + (block * QR_BLOCK + i) * 4ull, 4);
        break;
    case QR_FORMAT_F16:
        for (uint32_t i = 0; i < QR_BLOCK; i++) memcpy(quants + (i * 16 + lane) * 2, row + (block * QR_BLOCK + i) * 2ull, 2);
        break;
    case QR_FORMAT_Q8_0:
        b = row + (uint64_t)block * Q8_0_BYTES;
        memcpy(scales + 2 * lane, b, 2);
        for (uint32_t i = 0; i < QR_BLOCK; i++) quants[i / 4 * 64 + lane * 4 + i % 4] = (uint8_t)(b[2 + i] ^ 0x80u);
        break;
    case QR_FORMAT_Q4_0:
        b = row + (uint64_t)block * Q4_0_BYTES;
        memcpy(scales + 2 * lane, b, 2);
        for (uint32_t i = 0; i < 16; i++) quants[i / 4 * 64 + lane * 4 + i % 4] = b[2 + i];
        break;
    case QR_FORMAT_Q4_1:
        b = row + (uint64_t)block * Q4_1_BYTES;
        memcpy(scales + 2 * lane, b, 2);
        memcpy(scales + 32 + 2 * lane, b + 2, 2);
        for (uint32_t i = 0; i < 16; i++) quants[i / 4 * 64 + lane * 4 + i % 4] = b[4 + i];
        break;
    case QR_FORMAT_Q6_K: {
        uint32_t first = block % 8 * QR_BLOCK;
        b = row + (uint64_t)(block / 8) * Q6_K_BYTES;
        memcpy(scales + 2 * lane, b + 208, 2);
        scales[32 + lane] = (uint8_t)q6_scale(b, first);
        scales[48 + lane] = (uint8_t)q6_scale(b, first + 16);
        for (uint32_t i = 0; i < QR_BLOCK; i++) quants[i / 4 * 64 + lane * 4 + i % 4] = (uint8_t)(q6_quant(b, first + i) + 32);
        break;
    }
    default: qr_unreachable("format");
    }
}

void qr_pack(uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts, const uint32_t *part_rows, uint8_t *packed)
{
    uint64_t row_bytes = qr_format_row_bytes(format, columns), group_bytes = qr_group_bytes(format, columns), row = 0;
    uint32_t blocks = columns / QR_BLOCK, quant = qr_quant_bytes(format), scale = qr_scale_bytes(format);
    for (uint32_t part = 0; part < part_count; part++)
        for (uint32_t r = 0; r < part_rows[part]; r++, row++) {
            uint8_t *group = packed + row / QR_GROUP_ROWS * group_bytes, *scales = group + (uint64_t)blocks * quant;
            const uint8_t *from = (const uint8_t *)parts[part] + r * row_bytes;
            for (uint32_t b = 0; b < blocks; b++)
                pack_block(format, from, b, (uint32_t)(row % QR_GROUP_ROWS), group + (uint64_t)b * quant, scales + (uint64_t)b * scale);
        }
}

static float packed_value(uint32_t format, const uint8_t *quants, const uint8_t *scales, uint32_t lane, uint32_t i)
{
    float value;
    switch (format) {
    case QR_FORMAT_F32: memcpy(&value, quants + (i * 16 + lane) * 4, 4); return value;
    case QR_FORMAT_F16: return half_at(quants + (i * 16 + lane) * 2);
    case QR_FORMAT_Q8_0: return half_at(scales + 2 * lane) * (float)((int)quants[i / 4 * 64 + lane * 4 + i % 4] - 128);
    case QR_FORMAT_Q6_K:
        return half_at(scales + 2 * lane) *
               (float)((int8_t)scales[32 + i / 16 * 16 + lane] * ((int)quants[i / 4 * 64 + lane * 4 + i % 4] - 32));
    default: break;
    }
    uint32_t nibble = (uint32_t)quants[i % 16 / 4 * 64 + lane * 4 + i % 4] >> (i / 16 * 4) & 15;
    if (format == QR_FORMAT_Q4_0) return half_at(scales + 2 * lane) * (float)((int)nibble - 8);
    value = half_at(scales + 2 * lane) * (float)nibble;
    return value + half_at(scales + 32 + 2 * lane);
}

void qr_packed_row_decode(uint32_t format, uint32_t columns, const uint8_t *packed, uint64_t row, float *ret_values)
{
    uint32_t blocks = columns / QR_BLOCK, quant = qr_quant_bytes(format), scale = qr_scale_bytes(format);
    const uint8_t *group = packed + row / QR_GROUP_ROWS * qr_group_bytes(format, columns), *scales = group + (uint64_t)blocks * quant;
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t i = 0; i < QR_BLOCK; i++)
            ret_values[b * QR_BLOCK + i] =
                packed_value(format, group + (uint64_t)b * quant, scales + (uint64_t)b * scale, (uint32_t)(row % QR_GROUP_ROWS), i);
}
