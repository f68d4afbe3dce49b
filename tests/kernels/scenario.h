/* scenario.h - one launch with its inputs, run on any device: what the kernel tests are made of. Included by the tests only. */
#ifndef QR_TESTS_SCENARIO_H
#define QR_TESTS_SCENARIO_H

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/params.h"
#include "kernels/half.h"
#include "kernels/layout.h"
#include "kernels/table.h"

/* Inputs in host memory; weights stay row-major and are packed per device. Buffers a scenario only reads back are in it too. */
typedef struct scenario {
    char what[128];
    qr_launch_t launch;
    uint8_t *data[QR_LAUNCH_BUFFERS_MAX];
    uint64_t bytes[QR_LAUNCH_BUFFERS_MAX];
    int weight_index; /* buffer that is a weight, -1: none */
    uint32_t weight_format, weight_columns, weight_rows;
} scenario_t;

static uint64_t random_state = 1;
static inline uint64_t random_u64(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static inline uint32_t random_below(uint32_t n) { return (uint32_t)(random_u64() % n); }
/* About normal: twelve uniforms. */
static inline float random_float(float scale)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(random_u64() >> 11) * 0x1p-53;
    return (float)sum * scale;
}

static inline void *scenario_buffer(scenario_t *s, int index, uint64_t bytes)
{
    s->data[index] = calloc(1, bytes + 1);
    assert_non_null(s->data[index]);
    s->bytes[index] = bytes;
    return s->data[index];
}

static inline float *scenario_floats(scenario_t *s, int index, uint64_t count, float scale)
{
    float *x = scenario_buffer(s, index, count * 4);
    for (uint64_t i = 0; i < count; i++) x[i] = random_float(scale);
    return x;
}

/* Random weight of a format: scales near 1/16, every quant possible. */
static inline void scenario_weight(scenario_t *s, int index, uint32_t format, uint32_t rows, uint32_t columns)
{
    uint64_t row_bytes = qr_format_row_bytes(format, columns);
    assert_true(row_bytes != 0);
    uint8_t *w = scenario_buffer(s, index, row_bytes * rows);
    for (uint64_t i = 0; i < row_bytes * rows; i++) w[i] = (uint8_t)random_u64();
    uint64_t block = format == QR_FORMAT_Q8_0   ? 34
                     : format == QR_FORMAT_Q4_0 ? 18
                     : format == QR_FORMAT_Q4_1 ? 20
                     : format == QR_FORMAT_Q6_K ? 210
                                                : 0;
    for (uint64_t i = 0; block && i < row_bytes * rows; i += block) {
        uint16_t d = qr_float_to_half(random_float(0.0625f)), m = qr_float_to_half(random_float(0.5f));
        memcpy(w + i + (format == QR_FORMAT_Q6_K ? 208 : 0), &d, 2);
        if (format == QR_FORMAT_Q4_1) memcpy(w + i + 2, &m, 2);
    }
    for (uint64_t i = 0; format == QR_FORMAT_F32 && i < row_bytes * rows / 4; i++) ((float *)w)[i] = random_float(1);
    for (uint64_t i = 0; format == QR_FORMAT_F16 && i < row_bytes * rows / 2; i++) ((uint16_t *)w)[i] = qr_float_to_half(random_float(1));
    s->weight_index = index;
    s->weight_format = format;
    s->weight_rows = rows;
    s->weight_columns = columns;
}

static inline scenario_t scenario_new(uint32_t kernel)
{
    scenario_t s = {.weight_index = -1};
    s.launch.kernel = kernel;
    return s;
}

static inline void scenario_done(scenario_t *s)
{
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++) free(s->data[i]);
}

/* Runs the launch; ret_data[i] (calloc'ed here) receives every OUT or INOUT buffer. budget_us: as advance, repeated until done. */
static inline void scenario_run(const scenario_t *s, qr_device_t *device, uint64_t budget_us, uint8_t *ret_data[QR_LAUNCH_BUFFERS_MAX])
{
    const qr_kernel_row_t *row = qr_kernel_row(s->launch.kernel);
    qr_launch_t launch = s->launch;
    qr_buffer_t buffers[QR_LAUNCH_BUFFERS_MAX] = {0};
    qr_weight_t weight = {0};
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++) ret_data[i] = NULL;
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
        if (i == s->weight_index) {
            const void *part = s->data[i];
            assert_int_equal(qr_weight_new(device, s->weight_format, s->weight_columns, 1, &part, &s->weight_rows, &weight), 0);
            launch.buffers[i] = &weight.buffer;
            continue;
        }
        assert_int_equal(qr_buffer_new(device, s->bytes[i], &buffers[i]), 0);
        assert_int_equal(qr_buffer_write(device, &buffers[i], 0, s->data[i], s->bytes[i]), 0);
        launch.buffers[i] = &buffers[i];
    }
    assert_int_equal(qr_device_enqueue(device, &launch), 0);
    int more;
    do more = qr_device_advance(device, budget_us);
    while (more == 1);
    assert_int_equal(more, 0);
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
        if (i != s->weight_index && row->buffers[i].direction != QR_IN) {
            ret_data[i] = calloc(1, s->bytes[i] + 1);
            assert_int_equal(qr_buffer_read(device, &buffers[i], 0, ret_data[i], s->bytes[i]), 0);
        }
        qr_buffer_done(device, &buffers[i]);
    }
    qr_weight_done(device, &weight);
}

static inline void results_done(uint8_t *data[QR_LAUNCH_BUFFERS_MAX])
{
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++) free(data[i]);
}

static inline qr_device_t *open_device(uint32_t isa, uint32_t threads)
{
    qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = isa, .threads = threads};
    qr_device_t *device = NULL;
    char message[256];
    int error = qr_device_new(&config, &device, message, sizeof message);
    if (error == -QR_E_UNSUPPORTED) return NULL;
    assert_int_equal(error, 0);
    return device;
}

/* ---- scenarios ------------------------------------------------------------------------------------------------------ */

static inline scenario_t make_product(uint32_t format, uint32_t rows, uint32_t columns, uint32_t outputs, uint32_t pad, bool accumulate)
{
    scenario_t s = scenario_new(QR_KERNEL_product);
    bool quantised = qr_format_quantised(format);
    uint64_t row_bytes = qr_activation_row_bytes(quantised, columns);
    scenario_buffer(&s, 0, rows * row_bytes);
    if (quantised) { /* activations of its own making: the kernel must not depend on who made them */
        qr_activation_t *blocks = (qr_activation_t *)s.data[0];
        for (uint64_t b = 0; b < (uint64_t)rows * columns / QR_BLOCK; b++) {
            int32_t sums[2] = {0, 0};
            for (int i = 0; i < QR_BLOCK; i++) {
                blocks[b].q[i] = (int8_t)((int)random_below(255) - 127);
                sums[i / 16] += blocks[b].q[i];
            }
            blocks[b].d = fabsf(random_float(0.02f));
            blocks[b].ds = blocks[b].d * (float)(sums[0] + sums[1]);
            blocks[b].minus_128 = -128 * (sums[0] + sums[1]);
            blocks[b].minus_8 = -8 * (sums[0] + sums[1]);
            blocks[b].minus_32[0] = -32 * sums[0];
            blocks[b].minus_32[1] = -32 * sums[1];
        }
    } else
        for (uint64_t i = 0; i < (uint64_t)rows * columns; i++) ((float *)s.data[0])[i] = random_float(1);
    scenario_weight(&s, 1, format, outputs, columns);
    uint32_t stride = outputs + pad, sizes[7] = {rows, columns, outputs, format, stride, pad / 2, accumulate};
    scenario_floats(&s, 2, (uint64_t)rows * stride, 1);
    memcpy(s.launch.sizes, sizes, sizeof sizes);
    snprintf(s.what, sizeof s.what, "product format %u rows %u columns %u outputs %u pad %u accumulate %d", format, rows, columns, outputs,
             pad, accumulate);
    return s;
}

/* Rows of many sizes: ordinary, tiny (below 2^-100), zero, with subnormals. */
static inline void fill_rows(float *x, uint32_t rows, uint32_t width)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < width; i++) {
            float v = random_float(1);
            if (i / 32 % 5 == 3) v *= 0x1p-110f;
            if (i / 32 % 7 == 5) v = r % 2 ? 0 : v * 0x1p-135f;
            if (i / 32 % 11 == 4) v *= 1e20f * (r % 3 == 0 ? 1e-20f : 1e-12f);
            x[(uint64_t)r * width + i] = v;
        }
}

static inline scenario_t make_norm(uint32_t rows, uint32_t width, bool quantised)
{
    scenario_t s = scenario_new(QR_KERNEL_norm);
    fill_rows(scenario_floats(&s, 0, (uint64_t)rows * width, 1), rows, width);
    scenario_floats(&s, 1, width, 1);
    scenario_buffer(&s, 2, rows * qr_activation_row_bytes(quantised, width));
    scenario_buffer(&s, 3, rows * 4);
    s.launch.sizes[0] = rows;
    s.launch.sizes[1] = width;
    s.launch.sizes[2] = quantised;
    s.launch.scalars[0] = 1e-5f;
    snprintf(s.what, sizeof s.what, "norm rows %u width %u quantised %d", rows, width, quantised);
    return s;
}

static inline scenario_t make_quantise(uint32_t rows, uint32_t width, bool quantised)
{
    scenario_t s = scenario_new(QR_KERNEL_quantise);
    fill_rows(scenario_floats(&s, 0, (uint64_t)rows * width, 1), rows, width);
    scenario_buffer(&s, 1, rows * qr_activation_row_bytes(quantised, width));
    scenario_buffer(&s, 2, rows * 4);
    s.launch.sizes[0] = rows;
    s.launch.sizes[1] = width;
    s.launch.sizes[2] = quantised;
    snprintf(s.what, sizeof s.what, "quantise rows %u width %u quantised %d", rows, width, quantised);
    return s;
}

static inline scenario_t make_gate(uint32_t rows, uint32_t width, bool quantised, float scale)
{
    scenario_t s = scenario_new(QR_KERNEL_gate);
    scenario_floats(&s, 0, (uint64_t)rows * 2 * width, scale);
    scenario_buffer(&s, 1, rows * qr_activation_row_bytes(quantised, width));
    scenario_buffer(&s, 2, rows * 4);
    s.launch.sizes[0] = rows;
    s.launch.sizes[1] = width;
    s.launch.sizes[2] = quantised;
    snprintf(s.what, sizeof s.what, "gate rows %u width %u quantised %d scale %g", rows, width, quantised, (double)scale);
    return s;
}

static inline scenario_t make_embed(uint32_t format, uint32_t rows, uint32_t width, uint32_t vocabulary)
{
    scenario_t s = scenario_new(QR_KERNEL_embed);
    uint32_t *tokens = scenario_buffer(&s, 0, rows * 4);
    for (uint32_t r = 0; r < rows; r++) tokens[r] = r ? random_below(vocabulary) : vocabulary - 1;
    scenario_weight(&s, 1, format, vocabulary, width);
    scenario_buffer(&s, 2, (uint64_t)rows * width * 4);
    uint32_t sizes[4] = {rows, width, vocabulary, format};
    memcpy(s.launch.sizes, sizes, sizeof sizes);
    snprintf(s.what, sizeof s.what, "embed format %u rows %u width %u", format, rows, width);
    return s;
}

static inline scenario_t make_rope_table(uint32_t rows, uint32_t pairs)
{
    scenario_t s = scenario_new(QR_KERNEL_rope_table);
    uint32_t *positions = scenario_buffer(&s, 0, rows * 4);
    uint64_t *steps = scenario_buffer(&s, 1, pairs * 8);
    for (uint32_t r = 0; r < rows; r++) positions[r] = random_below(131072);
    for (uint32_t i = 0; i < pairs; i++) steps[i] = random_u64() >> (3 + i % 20);
    scenario_buffer(&s, 2, (uint64_t)rows * pairs * 8);
    s.launch.sizes[0] = rows;
    s.launch.sizes[1] = pairs;
    snprintf(s.what, sizeof s.what, "rope_table rows %u pairs %u", rows, pairs);
    return s;
}

static inline scenario_t make_rope_append(uint32_t rows, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t pairing)
{
    scenario_t s = scenario_new(QR_KERNEL_rope_append);
    uint32_t width = (heads + 2 * kv_heads) * dim, slots = rows * 2 + 3;
    scenario_floats(&s, 0, (uint64_t)rows * width, 3);
    float *table = scenario_buffer(&s, 1, (uint64_t)rows * dim * 4);
    for (uint32_t i = 0; i < rows * dim / 2; i++) {
        float angle = random_float(3);
        table[2 * i] = cosf(angle);
        table[2 * i + 1] = sinf(angle);
    }
    int32_t *slot = scenario_buffer(&s, 2, rows * 4);
    for (uint32_t r = 0; r < rows; r++) slot[r] = r % 7 == 6 ? -1 : (int32_t)(slots - 1 - 2 * r);
    scenario_buffer(&s, 3, (uint64_t)slots * kv_heads * dim * 2);
    scenario_buffer(&s, 4, (uint64_t)slots * kv_heads * dim * 2);
    memset(s.data[3], 0xff, s.bytes[3]);
    memset(s.data[4], 0xff, s.bytes[4]);
    scenario_buffer(&s, 5, rows * 4);
    uint32_t sizes[5] = {rows, heads, kv_heads, dim, pairing};
    memcpy(s.launch.sizes, sizes, sizeof sizes);
    s.launch.scalars[0] = 1.44269504f / sqrtf((float)dim);
    snprintf(s.what, sizeof s.what, "rope_append rows %u heads %u/%u dim %u pairing %u", rows, heads, kv_heads, dim, pairing);
    return s;
}

static inline scenario_t make_gather(uint32_t rows, uint32_t width)
{
    scenario_t s = scenario_new(QR_KERNEL_gather);
    scenario_floats(&s, 0, (uint64_t)rows * 2 * width, 1);
    uint32_t *indexes = scenario_buffer(&s, 1, rows * 4);
    for (uint32_t r = 0; r < rows; r++) indexes[r] = random_below(rows * 2);
    scenario_buffer(&s, 2, (uint64_t)rows * width * 4);
    s.launch.sizes[0] = rows;
    s.launch.sizes[1] = width;
    snprintf(s.what, sizeof s.what, "gather rows %u width %u", rows, width);
    return s;
}

static inline scenario_t make_page_copy(uint32_t copies, uint32_t page_tokens, uint32_t row)
{
    scenario_t s = scenario_new(QR_KERNEL_page_copy);
    uint16_t *pages = scenario_buffer(&s, 0, (copies * 2ull + 1) * page_tokens * row * 2);
    for (uint64_t i = 0; i < s.bytes[0] / 2; i++) pages[i] = (uint16_t)random_u64();
    uint32_t *from = scenario_buffer(&s, 1, copies * 4), *to = scenario_buffer(&s, 2, copies * 4),
             *counts = scenario_buffer(&s, 3, copies * 4);
    for (uint32_t i = 0; i < copies; i++) {
        from[i] = 2 * i;
        to[i] = 2 * i + 1;
        counts[i] = random_below(page_tokens + 1);
    }
    uint32_t sizes[3] = {copies, page_tokens, row};
    memcpy(s.launch.sizes, sizes, sizeof sizes);
    snprintf(s.what, sizeof s.what, "page_copy copies %u page %u row %u", copies, page_tokens, row);
    return s;
}

/* Lanes of an attention launch: rows[i] query rows that end a context of keys[i] tokens. */
typedef struct lanes {
    uint32_t count, rows[16], keys[16];
    bool shared_tail; /* the second lane's first pages are the first lane's */
} lanes_t;

/* Pages in random order; rows never written hold NaN; a windowed launch names only the pages its rows can see. */
static inline scenario_t make_attention(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t page_tokens, uint32_t window,
                                        const lanes_t *lanes, float scale)
{
    scenario_t s = scenario_new(QR_KERNEL_attention);
    uint32_t rows = 0, pages = 0, longest = 0, width = kv_heads * dim;
    for (uint32_t i = 0; i < lanes->count; i++) {
        rows += lanes->rows[i];
        pages += (uint32_t)qr_div_up(lanes->keys[i], page_tokens);
        longest = qr_max_u32(longest, lanes->keys[i]);
    }
    float *qkv = scenario_floats(&s, 0, (uint64_t)rows * (heads + 2 * kv_heads) * dim, scale);
    (void)qkv;
    uint64_t pool = (uint64_t)(pages + 3) * page_tokens * width;
    uint16_t *k = scenario_buffer(&s, 1, pool * 2), *v = scenario_buffer(&s, 2, pool * 2);
    for (uint64_t i = 0; i < pool; i++) k[i] = v[i] = 0x7e55;
    uint32_t *positions = scenario_buffer(&s, 3, rows * 4), *row_offsets = scenario_buffer(&s, 4, (lanes->count + 1) * 4);
    uint32_t *page_offsets = scenario_buffer(&s, 5, (lanes->count + 1) * 4), *first_blocks = scenario_buffer(&s, 6, lanes->count * 4);
    uint32_t *table = scenario_buffer(&s, 7, (pages + 1) * 4), *order = calloc(pages + 3, 4), next = 0;
    for (uint32_t i = 0; i < pages + 3; i++) {
        uint32_t j = random_below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        uint32_t keys = lanes->keys[lane], count = lanes->rows[lane], row = row_offsets[lane];
        row_offsets[lane + 1] = row + count;
        for (uint32_t r = 0; r < count; r++) positions[row + r] = keys - count + r;
        uint32_t first = window && count && positions[row] + 1 > window ? (positions[row] + 1 - window) / page_tokens : 0;
        first_blocks[lane] = first;
        page_offsets[lane + 1] = page_offsets[lane];
        for (uint32_t block = first; block < qr_div_up(keys, page_tokens); block++) {
            bool shared = lanes->shared_tail && lane == 1 && !window && block < qr_div_up(lanes->keys[0], page_tokens);
            uint32_t page = shared ? table[block] : order[next++];
            table[page_offsets[lane + 1]++] = page;
            for (uint32_t t = 0; t < page_tokens && block * page_tokens + t < keys; t++)
                for (uint32_t i = 0; i < width; i++) {
                    uint64_t at = ((uint64_t)page * page_tokens + t) * width + i;
                    k[at] = qr_float_to_half(random_float(1));
                    v[at] = qr_float_to_half(random_float(1));
                }
        }
    }
    free(order);
    scenario_buffer(&s, 8, (uint64_t)rows * heads * dim * 4);
    scenario_buffer(&s, 9, rows * 4);
    uint32_t sizes[8] = {rows, heads, kv_heads, dim, lanes->count, page_tokens, window, longest};
    memcpy(s.launch.sizes, sizes, sizeof sizes);
    snprintf(s.what, sizeof s.what, "attention heads %u/%u dim %u page %u window %u lanes %u first %ux%u", heads, kv_heads, dim,
             page_tokens, window, lanes->count, lanes->count ? lanes->rows[0] : 0, lanes->count ? lanes->keys[0] : 0);
    return s;
}

#endif
