/* link: qr_kernels */
/* opencl_test.c - every kernel of kernels.def on the opencl device against the scalar cpu device: the portable kernels follow the
 * same arithmetic, so on a device with IEEE fma, division and fp64 the bits are equal. Without a platform: skipped (77). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/params.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "kernels/layout.h"

enum { DEVICES = 2, BUFFERS = QR_LAUNCH_BUFFERS_MAX };
static qr_device_t *devices[DEVICES]; /* 0 cpu scalar, the judge; 1 opencl */
static uint64_t state = 1;

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static float draw_float(void) { return (float)(draw() & 0xffff) / 32768.0f - 1.0f; }

/* The same launch on both devices over the same bytes. */
typedef struct {
    qr_launch_t launch;
    qr_buffer_t buffers[DEVICES][BUFFERS];
    qr_weight_t weight[DEVICES];
    uint64_t bytes[BUFFERS];
} pair_t;

static void give(pair_t *pair, uint32_t index, const void *from, uint64_t bytes)
{
    pair->bytes[index] = bytes;
    for (int d = 0; d < DEVICES; d++) {
        assert_int_equal(qr_buffer_new(devices[d], bytes, &pair->buffers[d][index]), 0);
        if (from) assert_int_equal(qr_buffer_write(devices[d], &pair->buffers[d][index], 0, from, bytes), 0);
    }
}
static float *give_floats(pair_t *pair, uint32_t index, uint64_t count)
{
    float *values = malloc(count * 4);
    for (uint64_t i = 0; i < count; i++) values[i] = draw_float();
    give(pair, index, values, count * 4);
    return values;
}
static void give_weight(pair_t *pair, uint32_t index, uint32_t format, uint32_t rows, uint32_t columns)
{
    uint64_t row_bytes = qr_format_row_bytes(format, columns), bytes = row_bytes * rows;
    uint8_t *raw = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++) raw[i] = (uint8_t)draw();
    if (format == QR_FORMAT_F32) for (uint64_t i = 0; i < bytes / 4; i++) { float f = draw_float(); memcpy(raw + 4 * i, &f, 4); }
    uint32_t block = format == QR_FORMAT_Q6_K ? 210 : format == QR_FORMAT_Q8_0 ? 34 : format == QR_FORMAT_Q4_0 ? 18 : format == QR_FORMAT_Q4_1 ? 20 : 2;
    uint32_t half_at = format == QR_FORMAT_Q6_K ? 208 : 0, halves = format == QR_FORMAT_Q4_1 ? 2 : 1;
    if (format != QR_FORMAT_F32)
        for (uint64_t at = 0; at + block <= bytes; at += block)
            for (uint32_t h = 0; h < halves; h++) {
                uint16_t scale = qr_float_to_half(draw_float() / 16);
                memcpy(raw + at + half_at + 2 * h, &scale, 2);
            }
    const void *parts[1] = {raw};
    for (int d = 0; d < DEVICES; d++) {
        assert_int_equal(qr_weight_new(devices[d], format, columns, 1, parts, &rows, &pair->weight[d]), 0);
        pair->buffers[d][index] = pair->weight[d].buffer;
    }
    free(raw);
}
/* Runs and compares the buffers `outs`. */
static void compare(pair_t *pair, uint32_t buffers, const uint32_t *outs, uint32_t out_count)
{
    for (int d = 0; d < DEVICES; d++) {
        for (uint32_t i = 0; i < buffers; i++) pair->launch.buffers[i] = &pair->buffers[d][i];
        assert_int_equal(qr_device_enqueue(devices[d], &pair->launch), 0);
        assert_int_equal(qr_device_advance(devices[d], 0), 0);
    }
    for (uint32_t o = 0; o < out_count; o++) {
        uint64_t bytes = pair->bytes[outs[o]];
        uint8_t *a = malloc(bytes), *b = malloc(bytes);
        assert_int_equal(qr_buffer_read(devices[0], &pair->buffers[0][outs[o]], 0, a, bytes), 0);
        assert_int_equal(qr_buffer_read(devices[1], &pair->buffers[1][outs[o]], 0, b, bytes), 0);
        assert_memory_equal(a, b, bytes);
        uint8_t any = 0;
        for (uint64_t i = 0; i < bytes; i++) any |= a[i];
        if (o == 0) assert_true(any != 0); /* something was written */
        free(a);
        free(b);
    }
    for (int d = 0; d < DEVICES; d++)
        for (uint32_t i = 0; i < buffers; i++)
            if (pair->bytes[i]) qr_buffer_done(devices[d], &pair->buffers[d][i]);
            else qr_weight_done(devices[d], &pair->weight[d]);
}

static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q8_0, QR_FORMAT_Q6_K};
/* Of weights: even and odd numbers of blocks, because groups of 16 rows are padded to cache lines. */
static const uint32_t widths[] = {512, 256, 96, 32};

static void test_embed(void **unused)
{
    (void)unused;
    for (size_t f = 0; f < QR_COUNT(formats); f++)
        for (size_t w = 0; w < QR_COUNT(widths); w++) {
            uint32_t width = widths[w], tokens[3] = {0, 39, 17};
            if (formats[f] == QR_FORMAT_Q6_K && width % 256) continue;
            pair_t p = {.launch = {.kernel = QR_KERNEL_embed, .sizes = {3, width, 40, formats[f]}}};
            give(&p, 0, tokens, sizeof tokens);
            give_weight(&p, 1, formats[f], 40, width);
            give(&p, 2, NULL, 3 * width * 4);
            compare(&p, 3, (uint32_t[]){2}, 1);
        }
}
static void test_rope_table(void **unused)
{
    (void)unused;
    pair_t p = {.launch = {.kernel = QR_KERNEL_rope_table, .sizes = {64, 32}}};
    uint32_t positions[64];
    uint64_t steps[32];
    for (int i = 0; i < 64; i++) positions[i] = (uint32_t)(i * i * 31);
    for (int i = 0; i < 32; i++) steps[i] = (uint64_t)draw() << 30 | draw();
    give(&p, 0, positions, sizeof positions);
    give(&p, 1, steps, sizeof steps);
    give(&p, 2, NULL, 64 * 32 * 8);
    compare(&p, 3, (uint32_t[]){2}, 1);
}
static void test_norm(void **unused)
{
    (void)unused;
    for (uint32_t quantised = 0; quantised < 2; quantised++) {
        pair_t p = {.launch = {.kernel = QR_KERNEL_norm, .sizes = {5, 96, quantised}, .scalars = {1e-5f}}};
        float *x = give_floats(&p, 0, 5 * 96);
        free(x);
        for (int d = 0; d < DEVICES; d++) { /* finite values whose squares overflow: row 3 fails, the others do not */
            float huge = 3e19f;
            assert_int_equal(qr_buffer_write(devices[d], &p.buffers[d][0], 3 * 96 * 4, &huge, 4), 0);
        }
        free(give_floats(&p, 1, 96));
        give(&p, 2, NULL, 5 * qr_activation_row_bytes(quantised, 96));
        give(&p, 3, NULL, 5 * 4);
        compare(&p, 4, (uint32_t[]){2, 3}, 2);
    }
}
static void test_quantise_and_gate(void **unused)
{
    (void)unused;
    for (uint32_t quantised = 0; quantised < 2; quantised++) {
        pair_t p = {.launch = {.kernel = QR_KERNEL_quantise, .sizes = {3, 64, quantised}}};
        free(give_floats(&p, 0, 3 * 64));
        give(&p, 1, NULL, 3 * qr_activation_row_bytes(quantised, 64));
        give(&p, 2, NULL, 3 * 4);
        compare(&p, 3, (uint32_t[]){1, 2}, 2);
        pair_t g = {.launch = {.kernel = QR_KERNEL_gate, .sizes = {3, 64, quantised}}};
        free(give_floats(&g, 0, 3 * 128));
        give(&g, 1, NULL, 3 * qr_activation_row_bytes(quantised, 64));
        give(&g, 2, NULL, 3 * 4);
        compare(&g, 3, (uint32_t[]){1, 2}, 2);
    }
}
static void product_of(uint32_t format, uint32_t columns, uint32_t accumulate)
{
    enum { ROWS = 3, COLUMNS_MAX = 512, OUTPUTS = 37, STRIDE = 41, OFFSET = 2 };
    bool quantised = qr_format_quantised(format);
    /* Activations made by the judge's own quantise, so both read the same records. */
    float values[ROWS * COLUMNS_MAX];
    for (size_t i = 0; i < QR_COUNT(values); i++) values[i] = draw_float();
    uint64_t bytes = ROWS * qr_activation_row_bytes(quantised, columns), value_bytes = (uint64_t)ROWS * columns * 4;
    uint8_t *rows = malloc(bytes);
    qr_buffer_t x, y, status;
    assert_int_equal(qr_buffer_new(devices[0], value_bytes, &x), 0);
    assert_int_equal(qr_buffer_new(devices[0], bytes, &y), 0);
    assert_int_equal(qr_buffer_new(devices[0], ROWS * 4, &status), 0);
    assert_int_equal(qr_buffer_write(devices[0], &x, 0, values, value_bytes), 0);
    qr_launch_t quantise = {.kernel = QR_KERNEL_quantise, .sizes = {ROWS, columns, quantised}, .buffers = {&x, &y, &status}};
    assert_int_equal(qr_device_enqueue(devices[0], &quantise), 0);
    assert_int_equal(qr_device_advance(devices[0], 0), 0);
    assert_int_equal(qr_buffer_read(devices[0], &y, 0, rows, bytes), 0);
    qr_buffer_done(devices[0], &x);
    qr_buffer_done(devices[0], &y);
    qr_buffer_done(devices[0], &status);

    pair_t p = {.launch = {.kernel = QR_KERNEL_product, .sizes = {ROWS, columns, OUTPUTS, format, STRIDE, OFFSET, accumulate}}};
    give(&p, 0, rows, bytes);
    give_weight(&p, 1, format, OUTPUTS, columns);
    free(give_floats(&p, 2, ROWS * STRIDE));
    compare(&p, 3, (uint32_t[]){2}, 1);
    free(rows);
}
static void test_product(void **unused)
{
    (void)unused;
    for (size_t f = 0; f < QR_COUNT(formats); f++)
        for (size_t w = 0; w < QR_COUNT(widths); w++)
            for (uint32_t accumulate = 0; accumulate < 2; accumulate++)
                if (formats[f] != QR_FORMAT_Q6_K || widths[w] % 256 == 0) product_of(formats[f], widths[w], accumulate);
}

/* Appends and then attends: heads 4 over 2, pages of 8 in random order, two lanes, one crossing 512 positions. */
static void append_and_attend(uint32_t dim, uint32_t window, uint32_t pairing)
{
    enum { HEADS = 4, KV = 2, PAGE = 8, PAGES = 96, LANES = 2, ROWS = 5 };
    const uint32_t width = (HEADS + 2 * KV) * dim;
    uint64_t pool = (uint64_t)PAGES * PAGE * KV * dim;
    uint16_t *pages = malloc(pool * 2);
    for (uint64_t i = 0; i < pool; i++) pages[i] = qr_float_to_half(draw_float());
    uint32_t order[PAGES], positions[ROWS] = {600, 601, 602, 3, 4}, row_offsets[LANES + 1] = {0, 3, 5}, first_blocks[LANES] = {0, 0};
    uint32_t page_offsets[LANES + 1] = {0, 76, 77};
    int32_t slots[ROWS];
    for (uint32_t i = 0; i < PAGES; i++) order[i] = (i * 37) % PAGES;
    for (uint32_t r = 0; r < ROWS; r++) slots[r] = (int32_t)(order[(r < 3 ? 0u : 76u) + positions[r] / PAGE] * PAGE + positions[r] % PAGE);
    slots[2] = -1; /* idle row: nothing is appended */

    pair_t a = {.launch = {.kernel = QR_KERNEL_rope_append, .sizes = {ROWS, HEADS, KV, dim, pairing}, .scalars = {0.18f}}};
    free(give_floats(&a, 0, ROWS * width));
    float *table = malloc(ROWS * dim * 4);
    for (uint32_t i = 0; i < ROWS * dim; i++) table[i] = draw_float();
    give(&a, 1, table, ROWS * dim * 4);
    give(&a, 2, slots, sizeof slots);
    give(&a, 3, pages, pool * 2);
    give(&a, 4, pages, pool * 2);
    give(&a, 5, NULL, ROWS * 4);
    compare(&a, 6, (uint32_t[]){0, 3, 4, 5}, 4);

    pair_t p = {.launch = {.kernel = QR_KERNEL_attention, .sizes = {ROWS, HEADS, KV, dim, LANES, PAGE, window, 603}}};
    free(give_floats(&p, 0, ROWS * width));
    give(&p, 1, pages, pool * 2);
    give(&p, 2, pages, pool * 2);
    give(&p, 3, positions, sizeof positions);
    give(&p, 4, row_offsets, sizeof row_offsets);
    give(&p, 5, page_offsets, sizeof page_offsets);
    give(&p, 6, first_blocks, sizeof first_blocks);
    give(&p, 7, order, sizeof order);
    give(&p, 8, NULL, ROWS * HEADS * dim * 4);
    give(&p, 9, NULL, ROWS * 4);
    compare(&p, 10, (uint32_t[]){8, 9}, 2);
    free(table);
    free(pages);
}
static void test_rope_append_and_attention(void **unused)
{
    (void)unused;
    append_and_attend(64, 0, 0);
    append_and_attend(128, 0, 1);
    append_and_attend(32, 100, 0);
}
static void test_gather_and_page_copy(void **unused)
{
    (void)unused;
    pair_t p = {.launch = {.kernel = QR_KERNEL_gather, .sizes = {3, 33}}};
    uint32_t indexes[3] = {4, 0, 4};
    free(give_floats(&p, 0, 5 * 33));
    give(&p, 1, indexes, sizeof indexes);
    give(&p, 2, NULL, 3 * 33 * 4);
    compare(&p, 3, (uint32_t[]){2}, 1);

    pair_t c = {.launch = {.kernel = QR_KERNEL_page_copy, .sizes = {2, 8, 16}}};
    uint32_t from[2] = {0, 3}, to[2] = {5, 1}, counts[2] = {8, 3};
    free(give_floats(&c, 0, 6 * 8 * 8));
    give(&c, 1, from, sizeof from);
    give(&c, 2, to, sizeof to);
    give(&c, 3, counts, sizeof counts);
    compare(&c, 4, (uint32_t[]){0}, 1);
}
/* fp32 to fp16 by the append path (the vectors of the case). */
static void test_NU_01_append_rounds_to_nearest_even(void **unused)
{
    (void)unused;
    const uint32_t in[] = {0x3f800000, 0x45001000, 0x45003000, 0x45002fff, 0x45001001, 0x477fe000, 0x477fefff, 0x33000000, 0x33000001, 0x33c00000, 0x387fc000,
                           0x387fdfff, 0x387fe000, 0x39586fff, 0x39587000, 0x80000000, 0xb3000001};
    const uint16_t out[] = {0x3c00, 0x6800, 0x6802, 0x6801, 0x6801, 0x7bff, 0x7bff, 0x0000, 0x0001, 0x0002, 0x03ff, 0x03ff, 0x0400, 0x0ac3, 0x0ac4, 0x8000, 0x8001};
    enum { DIM = 32 };
    for (int d = 0; d < DEVICES; d++) {
        float qkv[3 * DIM] = {0}, table[DIM];
        for (int i = 0; i < DIM; i += 2) table[i] = 1, table[i + 1] = 0;
        for (size_t i = 0; i < QR_COUNT(in); i++) memcpy(&qkv[2 * DIM + i], &in[i], 4);
        int32_t slot = 1;
        qr_buffer_t b[6];
        const uint64_t bytes[6] = {sizeof qkv, sizeof table, 4, 8 * DIM * 2, 8 * DIM * 2, 4};
        const void *data[6] = {qkv, table, &slot, NULL, NULL, NULL};
        qr_launch_t launch = {.kernel = QR_KERNEL_rope_append, .sizes = {1, 1, 1, DIM, 0}, .scalars = {1}};
        for (int i = 0; i < 6; i++) {
            assert_int_equal(qr_buffer_new(devices[d], bytes[i], &b[i]), 0);
            if (data[i]) assert_int_equal(qr_buffer_write(devices[d], &b[i], 0, data[i], bytes[i]), 0);
            launch.buffers[i] = &b[i];
        }
        assert_int_equal(qr_device_enqueue(devices[d], &launch), 0);
        assert_int_equal(qr_device_advance(devices[d], 0), 0);
        uint16_t stored[DIM];
        assert_int_equal(qr_buffer_read(devices[d], &b[4], 2 * DIM, stored, sizeof stored), 0);
        assert_memory_equal(stored, out, sizeof out);
        for (int i = 0; i < 6; i++) qr_buffer_done(devices[d], &b[i]);
    }
}

int main(void)
{
    char message[1024];
    qr_device_config_t cpu = {.kind = QR_DEVICE_CPU, .isa = QR_ISA_SCALAR, .threads = 1}, opencl = {.kind = QR_DEVICE_OPENCL};
    if (qr_device_new(&cpu, &devices[0], message, sizeof message)) return fprintf(stderr, "%s\n", message), 1;
    if (qr_device_new(&opencl, &devices[1], message, sizeof message)) return fprintf(stderr, "skipped: %s\n", message), 77;
    printf("# %s\n", qr_device_name(devices[1]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),    cmocka_unit_test(test_rope_table), cmocka_unit_test(test_norm),
        cmocka_unit_test(test_quantise_and_gate), cmocka_unit_test(test_product), cmocka_unit_test(test_rope_append_and_attention),
        cmocka_unit_test(test_gather_and_page_copy), cmocka_unit_test(test_NU_01_append_rounds_to_nearest_even),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    qr_device_destroy(&devices[1]);
    qr_device_destroy(&devices[0]);
    return status;
}
