/* link: qr_kernels qr_model */
/* cpu_test.c - every kernel of kernels.def on every instruction set and 1, 2, 4 threads against the scalar kernel on one thread:
 * identical bits. Shapes are ragged: one row, tails, page boundaries, shared tails, no lanes, several segments, windows. */
#include "tests/kernels/scenario.h"

enum { DEVICES_MAX = 9 };
static qr_device_t *devices[DEVICES_MAX];
static uint32_t device_count, scenario_count, comparison_count;

static int open_devices(void **state)
{
    (void)state;
    static const uint32_t isas[] = {QR_ISA_SCALAR, QR_ISA_AVX2, QR_ISA_AVX512}, threads[] = {1, 2, 4};
    for (uint32_t i = 0; i < QR_COUNT(isas); i++)
        for (uint32_t t = 0; t < QR_COUNT(threads); t++) {
            qr_device_t *device = open_device(isas[i], threads[t]);
            if (!device && t == 0) print_message("isa %u is not on this machine: its rows are not run\n", isas[i]);
            if (device) devices[device_count++] = device;
        }
    return device_count == 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) qr_device_destroy(&devices[i]);
    print_message("%u scenarios, %u comparisons\n", scenario_count, comparison_count);
    return 0;
}

static void compare(const scenario_t *s, const qr_device_t *device, uint8_t *expected[], uint8_t *got[])
{
    const qr_kernel_row_t *row = qr_kernel_row(s->launch.kernel);
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
        if (!expected[i]) continue;
        comparison_count++;
        if (!memcmp(expected[i], got[i], s->bytes[i])) continue;
        uint64_t at = 0;
        while (expected[i][at] == got[i][at]) at++;
        fail_msg("%s: %s differs from scalar in buffer %s at byte %llu of %llu", s->what, qr_device_name(device), row->buffers[i].name,
                 (unsigned long long)at, (unsigned long long)s->bytes[i]);
    }
}

/* Runs on every device; the first is the judge. Devices of the scalar kernel itself are asked only where it is cheap. */
static void check(scenario_t s, bool scalar_threads)
{
    uint8_t *expected[QR_LAUNCH_BUFFERS_MAX] = {0};
    scenario_run(&s, devices[0], 0, expected);
    for (uint32_t i = 1; i < device_count; i++) {
        if (!scalar_threads && !strncmp(qr_device_name(devices[i]), "cpu scalar", 10)) continue;
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX] = {0};
        scenario_run(&s, devices[i], i % 2 ? 0 : 50, got);
        compare(&s, devices[i], expected, got);
        results_done(got);
    }
    scenario_count++;
    results_done(expected);
    scenario_done(&s);
}

static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};

static void test_product(void **state)
{
    (void)state;
    static const uint32_t row_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 33};
    for (uint32_t f = 0; f < QR_COUNT(formats); f++) {
        uint32_t unit = formats[f] == QR_FORMAT_Q6_K ? 256 : 32;
        for (uint32_t i = 0; i < QR_COUNT(row_counts); i++) {
            check(make_product(formats[f], row_counts[i], unit, 33, 3, i & 1), true);
            check(make_product(formats[f], row_counts[i], 3 * unit, 64, 0, false), true);
        }
        check(make_product(formats[f], 1, 768, 1, 0, true), true);
        check(make_product(formats[f], 1, 1536, 400, 0, true), true);
        check(make_product(formats[f], 300, 256, 50, 6, true), true);
    }
}

static void test_norm_quantise_gate(void **state)
{
    (void)state;
    static const uint32_t widths[] = {32, 64, 96, 160, 576, 1536}, row_counts[] = {0, 1, 2, 5, 70};
    for (uint32_t w = 0; w < QR_COUNT(widths); w++)
        for (uint32_t r = 0; r < QR_COUNT(row_counts); r++)
            for (uint32_t quantised = 0; quantised < 2; quantised++) {
                check(make_norm(row_counts[r], widths[w], quantised), true);
                check(make_quantise(row_counts[r], widths[w], quantised), true);
                check(make_gate(row_counts[r], widths[w], quantised, r == 2 ? 40.0f : 3.0f), true);
            }
}

static void test_moves(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < QR_COUNT(formats); f++) {
        check(make_embed(formats[f], 1, 256, 17), true);
        check(make_embed(formats[f], 40, 768, 100), true);
    }
    check(make_rope_table(1, 32), true);
    check(make_rope_table(77, 40), true);
    check(make_rope_table(0, 32), true);
    check(make_gather(1, 64), true);
    check(make_gather(90, 576), true);
    check(make_page_copy(1, 16, 192), true);
    check(make_page_copy(9, 8, 64), true);
    check(make_page_copy(0, 8, 64), true);
}

static void test_rope_append(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 128, 80, 256, 8, 24, 32};
    for (uint32_t d = 0; d < QR_COUNT(dims); d++)
        for (uint32_t pairing = 0; pairing < 2; pairing++) {
            check(make_rope_append(1, 9, 3, dims[d], pairing), true);
            check(make_rope_append(37, 4, 1, dims[d], pairing), true);
        }
    check(make_rope_append(0, 4, 1, 64, 0), true);
}

static void test_attention_decode(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{9, 3, 64}, {4, 1, 128}, {2, 2, 80}, {2, 1, 256}, {5, 1, 64}, {8, 2, 64}, {2, 1, 8}, {3, 1, 32}};
    static const uint32_t page_tokens[] = {8, 16, 32, 64, 128};
    for (uint32_t i = 0; i < QR_COUNT(shapes); i++) {
        lanes_t lanes = {.count = 5, .rows = {1, 1, 0, 2, 1}, .keys = {1, 16, 0, 65, 129}, .shared_tail = i & 1};
        check(make_attention(shapes[i][0], shapes[i][1], shapes[i][2], page_tokens[i % 5], 0, &lanes, 0.3f), i == 0);
        lanes_t longer = {.count = 2, .rows = {1, 1}, .keys = {517, 1031}};
        check(make_attention(shapes[i][0], shapes[i][1], shapes[i][2], page_tokens[(i + 2) % 5], 0, &longer, 0.3f), i == 0);
        check(make_attention(shapes[i][0], shapes[i][1], shapes[i][2], page_tokens[(i + 1) % 5], 100, &longer, 0.3f), i == 0);
    }
    lanes_t none = {.count = 0}, one = {.count = 1, .rows = {1}, .keys = {512}};
    check(make_attention(9, 3, 64, 16, 0, &none, 0.3f), true);
    check(make_attention(9, 3, 64, 16, 0, &one, 0.3f), true);
    for (uint32_t keys = 1; keys <= 70; keys += 3) {
        lanes_t tail = {.count = 2, .rows = {1, 2}, .keys = {keys, keys + 7}, .shared_tail = true};
        check(make_attention(3, 1, 64, 8, keys % 2 ? 0 : 13, &tail, 1), false);
    }
}

static void test_attention_prefill(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{9, 3, 64}, {4, 1, 128}, {2, 2, 80}, {2, 1, 256}, {5, 1, 64}, {2, 1, 8}, {3, 1, 48}};
    static const uint32_t page_tokens[] = {8, 16, 32, 64, 128};
    for (uint32_t i = 0; i < QR_COUNT(shapes); i++) {
        lanes_t lanes = {.count = 4, .rows = {70, 1, 33, 3}, .keys = {70, 40, 133, 520}};
        check(make_attention(shapes[i][0], shapes[i][1], shapes[i][2], page_tokens[i % 5], 0, &lanes, 0.3f), i == 0);
        check(make_attention(shapes[i][0], shapes[i][1], shapes[i][2], page_tokens[(i + 1) % 5], i % 2 ? 40 : 90, &lanes, 0.3f), i == 0);
    }
    lanes_t crossing = {.count = 2, .rows = {30, 1}, .keys = {1040, 600}};
    check(make_attention(3, 1, 64, 16, 0, &crossing, 0.3f), true);
    check(make_attention(3, 1, 64, 16, 520, &crossing, 0.3f), true);
    lanes_t rounds = {.count = 1, .rows = {5}, .keys = {2100}};
    check(make_attention(2, 1, 64, 64, 0, &rounds, 0.3f), true);
}

/* The same rows in one tile, in tiles of 7 and one by one, through different lanes and page sizes of one launch: same bits. */
static void test_attention_tiles_agree(void **state)
{
    (void)state;
    enum { ROWS = 24, KEYS = 1040 }; /* the last rows see three segments */
    lanes_t whole = {.count = 1, .rows = {ROWS}, .keys = {KEYS}};
    scenario_t s = make_attention(6, 2, 64, 16, 0, &whole, 0.5f);
    uint8_t *expected[QR_LAUNCH_BUFFERS_MAX] = {0};
    scenario_run(&s, devices[0], 0, expected);
    for (uint32_t tile = 1; tile <= 7; tile += 6)
        for (uint32_t i = 0; i < device_count; i++)
            for (uint32_t row = 0; row < ROWS; row += tile) {
                uint32_t count = qr_min_u32(tile, ROWS - row), offsets[2] = {0, count};
                scenario_t part = s;
                uint32_t keys = KEYS - ROWS + row + count;
                part.data[0] = s.data[0] + (uint64_t)row * 10 * 64 * 4;
                part.bytes[0] = (uint64_t)count * 10 * 64 * 4;
                part.data[3] = s.data[3] + row * 4;
                part.bytes[3] = count * 4;
                part.data[4] = (uint8_t *)offsets;
                part.bytes[8] = (uint64_t)count * 6 * 64 * 4;
                part.bytes[9] = count * 4;
                part.launch.sizes[0] = count;
                part.launch.sizes[7] = keys;
                uint8_t *got[QR_LAUNCH_BUFFERS_MAX] = {0};
                scenario_run(&part, devices[i], 0, got);
                assert_memory_equal(got[8], expected[8] + (uint64_t)row * 6 * 64 * 4, part.bytes[8]);
                results_done(got);
            }
    results_done(expected);
    scenario_done(&s);
}

/* Queue order, budget and the full queue: launches that depend on each other, advanced a microsecond at a time. */
static void test_queue(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) {
        qr_buffer_t x, y, indexes;
        enum { ROWS = 64, WIDTH = 64 };
        assert_int_equal(qr_buffer_new(devices[i], ROWS * WIDTH * 4, &x), 0);
        assert_int_equal(qr_buffer_new(devices[i], ROWS * WIDTH * 4, &y), 0);
        assert_int_equal(qr_buffer_new(devices[i], ROWS * 4, &indexes), 0);
        for (uint32_t r = 0; r < ROWS; r++) ((uint32_t *)indexes.host)[r] = (r + 1) % ROWS;
        for (uint32_t k = 0; k < ROWS * WIDTH; k++) ((uint32_t *)x.host)[k] = k / WIDTH;
        qr_launch_t there = {.kernel = QR_KERNEL_gather, .sizes = {ROWS, WIDTH}, .buffers = {&x, &indexes, &y}};
        qr_launch_t back = {.kernel = QR_KERNEL_gather, .sizes = {ROWS, WIDTH}, .buffers = {&y, &indexes, &x}};
        for (uint32_t k = 0; k < QR_LAUNCHES_MAX; k++) assert_int_equal(qr_device_enqueue(devices[i], k % 2 ? &back : &there), 0);
        assert_int_equal(qr_device_enqueue(devices[i], &there), -QR_E_LIMIT);
        uint32_t calls = 0;
        while (qr_device_advance(devices[i], 1) == 1) calls++;
        assert_true(calls > 1);
        for (uint32_t r = 0; r < ROWS; r++) assert_int_equal(((uint32_t *)x.host)[r * WIDTH], (r + QR_LAUNCHES_MAX) % ROWS);
        qr_buffer_done(devices[i], &x);
        qr_buffer_done(devices[i], &y);
        qr_buffer_done(devices[i], &indexes);
    }
}

/* A copy is done by a thread that could compute. */
static void test_overlap(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) assert_string_equal(qr_device_overlap(devices[i]), "interference-only");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_norm_quantise_gate),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_rope_append),
        cmocka_unit_test(test_attention_decode),
        cmocka_unit_test(test_attention_prefill),
        cmocka_unit_test(test_attention_tiles_agree),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_overlap),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
