/* link: qr_kernels */
/* rate_test.c - the tiles stay in registers: rates of the vector kernels as shares of what this processor issues, measured beside them
 * in processor time, so that other work on the machine matters little. A tile that its compiler keeps in memory computes the right
 * bits at a half or a quarter of the rate, and only this test sees it. */
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tests/kernels/scenario.h"

enum { REPEATS = 200, TURNS = 40000 }; /* short windows, many: on a busy machine some run undisturbed */

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ns of one run of a launch, the device having one thread; best of the repeats, the yardstick measured in turns. */
static double launch_ns(qr_device_t *device, const qr_launch_t *launch)
{
    double start = now_ns();
    assert_int_equal(qr_device_enqueue(device, launch), 0);
    assert_int_equal(qr_device_advance(device, 0), 0);
    return now_ns() - start;
}

#if defined(__x86_64__)
/* Multiply-adds a nanosecond of 12 independent chains of vpdpbusd, and of fp32 fma. */
__attribute__((target("avx512f,avx512vnni"))) static double peak_int8(void)
{
    __m512i x = _mm512_set1_epi32(0x01020304), a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x, a10 = x,
            a11 = x;
    double start = now_ns();
    for (int k = 0; k < TURNS; k++) /* named, not an array: an array would live in memory and time that */
        __asm__ volatile("vpdpbusd %12,%12,%0\n vpdpbusd %12,%12,%1\n vpdpbusd %12,%12,%2\n vpdpbusd %12,%12,%3\n"
                         "vpdpbusd %12,%12,%4\n vpdpbusd %12,%12,%5\n vpdpbusd %12,%12,%6\n vpdpbusd %12,%12,%7\n"
                         "vpdpbusd %12,%12,%8\n vpdpbusd %12,%12,%9\n vpdpbusd %12,%12,%10\n vpdpbusd %12,%12,%11\n"
                         : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9), "+v"(a10),
                           "+v"(a11)
                         : "v"(x));
    return (double)TURNS * 12 * 64 / (now_ns() - start);
}
#endif

/* Best rate of a launch and best of the yardstick. */
static void shares(qr_device_t *device, const qr_launch_t *launch, double work, double *ret_rate, double *ret_peak)
{
    *ret_rate = *ret_peak = 0;
    for (int i = 0; i < REPEATS; i++) {
#if defined(__x86_64__)
        *ret_peak = fmax(*ret_peak, peak_int8());
#endif
        *ret_rate = fmax(*ret_rate, work / launch_ns(device, launch));
    }
}

/* Block scales cap a tile at 73 % of the issue rate (8 products, 3 operations to close a block); spilled tiles reached 40 %, a
 * quarter in the worst case. fp32 tiles issue 16 multiply-adds where int8 issues 64. */
static void test_avx512_tiles(void **state)
{
    (void)state;
    qr_device_t *device = open_device(QR_ISA_AVX512, 1);
#ifdef QR_SANITIZED
    qr_device_destroy(&device);
    skip();
#endif
    if (!device) {
        print_message("no AVX-512 VNNI here\n");
        skip();
    }
    static const struct {
        uint32_t format;
        double least;
    } rows[] = {{QR_FORMAT_Q8_0, 0.42}, {QR_FORMAT_Q4_0, 0.38}, {QR_FORMAT_Q4_1, 0.36}, {QR_FORMAT_F16, 0.40 / 4}};
    for (uint32_t i = 0; i < QR_COUNT(rows); i++) {
        enum { ROWS = 48, COLUMNS = 576, OUTPUTS = 576 };
        scenario_t s = make_product(rows[i].format, ROWS, COLUMNS, OUTPUTS, 0, false);
        qr_buffer_t x, y;
        qr_weight_t w;
        assert_int_equal(qr_buffer_new(device, s.bytes[0], &x), 0);
        assert_int_equal(qr_buffer_new(device, s.bytes[2], &y), 0);
        assert_int_equal(qr_buffer_write(device, &x, 0, s.data[0], s.bytes[0]), 0);
        assert_int_equal(qr_weight_new(device, rows[i].format, COLUMNS, 1, &(const void *){s.data[1]}, &s.weight_rows, &w), 0);
        qr_launch_t launch = s.launch;
        launch.buffers[0] = &x;
        launch.buffers[1] = &w.buffer;
        launch.buffers[2] = &y;
        double rate, peak;
        shares(device, &launch, (double)ROWS * COLUMNS * OUTPUTS, &rate, &peak);
        print_message("product format %u: %.0f Gop/s, %.0f %% of the int8 issue rate (at least %.0f %%)\n", rows[i].format, 2 * rate,
                      100 * rate / peak, 100 * rows[i].least);
        assert_true(rate > rows[i].least * peak);
        qr_buffer_done(device, &x);
        qr_buffer_done(device, &y);
        qr_weight_done(device, &w);
        scenario_done(&s);
    }
    qr_device_destroy(&device);
}

/* Prefill attention, one tile of 32 rows and 3 heads at 512 keys, fp32. Additions, masks and exponentials leave some 75 % of the fma rate.
 */
static void test_avx512_attention(void **state)
{
    (void)state;
    qr_device_t *device = open_device(QR_ISA_AVX512, 1);
#ifdef QR_SANITIZED
    qr_device_destroy(&device);
    skip();
#endif
    if (!device) skip();
    lanes_t lanes = {.count = 1, .rows = {32}, .keys = {512}};
    scenario_t s = make_attention(3, 1, 64, 16, 0, &lanes, 0.3f);
    qr_buffer_t buffers[QR_LAUNCH_BUFFERS_MAX];
    qr_launch_t launch = s.launch;
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++) {
        assert_int_equal(qr_buffer_new(device, s.bytes[i], &buffers[i]), 0);
        assert_int_equal(qr_buffer_write(device, &buffers[i], 0, s.data[i], s.bytes[i]), 0);
        launch.buffers[i] = &buffers[i];
    }
    double rate, peak, work = 2.0 * 3 * 64 * 32 * (512 - 16);
    shares(device, &launch, work, &rate, &peak);
    print_message("attention: %.0f GFLOP/s, %.0f %% of the fma rate (at least 36 %%)\n", 2 * rate, 100 * rate / (peak / 4));
    assert_true(rate > 0.36 * peak / 4);
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++) qr_buffer_done(device, &buffers[i]);
    scenario_done(&s);
    qr_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_avx512_tiles), cmocka_unit_test(test_avx512_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
