/* link: qr_kernels qr_model */
/* values_test.c - the values of the kernels on every instruction set against kernels/reference (double) and exact vectors.
 * Every bound below was derived from the arithmetic before the first run: u = 2^-24 is one rounding, a chain of n operations on
 * terms t errs by at most n u sum|t|. Worst observed share of each bound is printed. */
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/exp2n.h"
#include "kernels/reference/reference.h"
#include "model/rope.h"
#include "tests/kernels/scenario.h"

static qr_device_t *devices[3];
static uint32_t device_count;
static const double u = 0x1p-24;

static int open_devices(void **state)
{
    (void)state;
    for (uint32_t isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++)
        if ((devices[device_count] = open_device(isa, 2))) device_count++;
    return device_count == 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) qr_device_destroy(&devices[i]);
    return 0;
}

static double worst;
static void within(double value, double expected, double bound, const char *what)
{
    double error = fabs(value - expected);
    if (!(error <= bound)) fail_msg("%s: %.9g instead of %.9g, off by %.3g, bound %.3g", what, value, expected, error, bound);
    if (bound > 0 && error / bound > worst) worst = error / bound;
}
static void worst_of(const char *what)
{
    print_message("%-48s worst %4.1f %% of its bound\n", what, 100 * worst);
    worst = 0;
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

/* Chain of B blocks, two roundings each for the scale and the fma (three with minima), terms |w||x| at most 4 times as large as
 * they cancel to inside a Q4_1 block (nibble x scale against minimum). */
static void check_product(uint32_t format, qr_device_t *device)
{
    enum { ROWS = 3, COLUMNS = 768, OUTPUTS = 40 };
    scenario_t s = make_product(format, ROWS, COLUMNS, OUTPUTS, 0, false);
    uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
    scenario_run(&s, device, 0, got);
    static double x[COLUMNS], y[OUTPUTS];
    static float w[COLUMNS];
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < COLUMNS; i++) {
            const qr_activation_t *block = (const qr_activation_t *)s.data[0] + ((uint64_t)r * COLUMNS + i) / 32;
            x[i] = qr_format_quantised(format) ? (double)block->d * block->q[i % 32] : (double)((const float *)s.data[0])[r * COLUMNS + i];
        }
        assert_int_equal(qr_reference_product(format, s.data[1], OUTPUTS, COLUMNS, x, y), 0);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            double terms = 0;
            qr_format_row_decode(format, s.data[1] + o * qr_format_row_bytes(format, COLUMNS), COLUMNS, w);
            for (uint32_t i = 0; i < COLUMNS; i++) terms += fabs((double)w[i] * x[i]);
            double operations = format == QR_FORMAT_Q4_1 ? 4 * 3 * 24 : qr_format_quantised(format) ? 2 * 24 + 2 : 32 + 24;
            within((double)((const float *)got[2])[r * OUTPUTS + o], y[o], operations * u * terms, s.what);
        }
    }
    results_done(got);
    scenario_done(&s);
}

static void test_product_values(void **state)
{
    (void)state;
    static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};
    for (uint32_t i = 0; i < device_count; i++)
        for (uint32_t f = 0; f < QR_COUNT(formats); f++) check_product(formats[f], devices[i]);
    worst_of("product, (2 B + 2) u sum|wx|");
}

/* A quantised value is off by at most half a step d / 2 = amax / 254, and a little more where id was rounded. */
static void test_quantise_values(void **state)
{
    (void)state;
    enum { ROWS = 4, WIDTH = 352 };
    for (uint32_t i = 0; i < device_count; i++) {
        scenario_t s = make_quantise(ROWS, WIDTH, true);
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
        scenario_run(&s, devices[i], 0, got);
        for (uint32_t b = 0; b < ROWS * WIDTH / 32; b++) {
            const float *x = (const float *)s.data[0] + b * 32;
            const qr_activation_t *block = (const qr_activation_t *)got[1] + b;
            double amax = 0;
            int32_t sums[2] = {0, 0};
            for (int k = 0; k < 32; k++) {
                amax = fmax(amax, fabs((double)x[k]));
                sums[k / 16] += block->q[k];
            }
            bool tiny = amax < 0x1p-100;
            for (int k = 0; k < 32; k++)
                within((double)block->d * block->q[k], tiny ? 0 : (double)x[k], tiny ? 0 : amax / 254 * (1 + 300 * u), s.what);
            assert_int_equal(block->minus_128, -128 * (sums[0] + sums[1]));
            assert_int_equal(block->minus_8, -8 * (sums[0] + sums[1]));
            assert_int_equal(block->minus_32[0], -32 * sums[0]);
            assert_int_equal(block->minus_32[1], -32 * sums[1]);
            assert_true(block->ds == block->d * (float)(sums[0] + sums[1]));
            if (!tiny) assert_true(block->d == (float)amax / 127.0f);
        }
        for (uint32_t r = 0; r < ROWS; r++) assert_int_equal(((const uint32_t *)got[2])[r], 0);
        results_done(got);
        scenario_done(&s);
    }
    worst_of("quantise, half a step");
}

/* ---- elementwise ------------------------------------------------------------------------------------------------------ */

/* Sum of squares: n / 64 + 6 roundings of positive terms, halved by the root; then five more. */
static void test_norm_values(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++)
        for (uint32_t width = 32; width <= 1600; width += 32 * 7) {
            scenario_t s = make_norm(2, width, false);
            float *x0 = (float *)s.data[0];
            for (uint32_t k = 0; k < 2 * width; k++) x0[k] = random_float(1);
            uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
            scenario_run(&s, devices[i], 0, got);
            static double x[1600], y[1600];
            for (uint32_t r = 0; r < 2; r++) {
                for (uint32_t k = 0; k < width; k++) x[k] = (double)x0[r * width + k];
                qr_reference_norm(x, (const float *)s.data[1], width, (double)s.launch.scalars[0], y);
                for (uint32_t k = 0; k < width; k++)
                    within((double)((const float *)got[2])[r * width + k], y[k], ((width / 64 + 7) / 2.0 + 5) * u * fabs(y[k]), s.what);
            }
            results_done(got);
            scenario_done(&s);
        }
    worst_of("norm, ((n/64 + 7)/2 + 5) u");
}

/* e errs by |g| log2(e) u ln 2 twice (product and constant) and by exp2n's 7.7e-8; below the cut at 2^-64 the rest is lost. */
static void test_gate_values(void **state)
{
    (void)state;
    enum { WIDTH = 2048 };
    static double g[WIDTH], up[WIDTH], y[WIDTH];
    for (uint32_t i = 0; i < device_count; i++) {
        scenario_t s = make_gate(1, WIDTH, false, 1);
        float *x = (float *)s.data[0];
        for (uint32_t k = 0; k < WIDTH; k++) {
            x[k] = -60 + 120.0f * (float)k / WIDTH;
            g[k] = (double)x[k];
            up[k] = (double)x[WIDTH + k];
        }
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
        scenario_run(&s, devices[i], 0, got);
        qr_reference_gate(g, up, WIDTH, y);
        for (uint32_t k = 0; k < WIDTH; k++)
            within((double)((const float *)got[1])[k], y[k],
                   fabs(y[k]) * (2 * fabs(g[k]) * u + 7.7e-8 + 6 * u) + fabs(g[k] * up[k]) * 0x1p-64, s.what);
        results_done(got);
        scenario_done(&s);
    }
    worst_of("gate, (2|g| + 6) u + 7.7e-8");
}

/* The exponential, over its whole range: the document's 7.7e-8. */
static void test_exp2n_error(void **state)
{
    (void)state;
    double most = 0;
    for (uint32_t k = 0; k < 640000; k++) {
        float x = -64.0f + (float)k * 1e-4f;
        if (x > 0) break;
        most = fmax(most, fabs((double)qr_exp2n(x) / exp2((double)x) - 1));
    }
    print_message("exp2n: largest relative error %.3g (bound 7.8e-8)\n", most);
    assert_true(most < 7.8e-8);
    assert_true(qr_exp2n(0.0f) == 1.0f && qr_exp2n(-0.0f) == 1.0f);
    assert_true(qr_exp2n(-64.5f) == 0 && qr_exp2n(-INFINITY) == 0 && qr_exp2n(NAN) == 0);
    assert_true(!signbit(qr_exp2n(NAN)) && !signbit(qr_exp2n(-1e30f)));
}

/* Tables against long double cosines: heads of 64 and 128, two thetas, positions below 131072. The rounding to float is 3.0e-8. */
static void test_rope_table_values(void **state)
{
    (void)state;
    static const double thetas[] = {1e4, 5e5};
    static const uint32_t dims[] = {64, 128};
    enum { ROWS = 64 };
    long double most = 0;
    for (uint32_t d = 0; d < 2; d++)
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t pairs = dims[d] / 2;
            scenario_t s = make_rope_table(ROWS, pairs);
            qr_rope_steps(thetas[t], 1, dims[d], (uint64_t *)s.data[1]);
            ((uint32_t *)s.data[0])[0] = 0;
            ((uint32_t *)s.data[0])[1] = 131071;
            uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
            scenario_run(&s, devices[0], 0, got);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t i = 0; i < pairs; i++) {
                    long double angle = ((const uint32_t *)s.data[0])[r] * powl((long double)thetas[t], -2.0L * i / dims[d]);
                    const float *entry = (const float *)got[2] + (r * pairs + i) * 2;
                    most = fmaxl(most, fmaxl(fabsl((long double)entry[0] - cosl(angle)), fabsl((long double)entry[1] - sinl(angle))));
                }
            results_done(got);
            scenario_done(&s);
        }
    print_message("rope_table: largest absolute error %.3Lg (bound 3.1e-8)\n", most);
    assert_true(most < 3.1e-8L);
}

/* Rotation: each value is one product, one fma: 2 u of |a| + |b|, then the scale's rounding and the table's 3.1e-8. */
static void test_rope_append_values(void **state)
{
    (void)state;
    enum { ROWS = 9, HEADS = 3, DIM = 64 };
    for (uint32_t i = 0; i < device_count; i++)
        for (uint32_t pairing = 0; pairing < 2; pairing++) {
            scenario_t s = make_rope_append(ROWS, HEADS, 1, DIM, pairing), table = make_rope_table(ROWS, DIM / 2);
            qr_rope_steps(1e4, 1, DIM, (uint64_t *)table.data[1]);
            uint8_t *cosines[QR_LAUNCH_BUFFERS_MAX], *got[QR_LAUNCH_BUFFERS_MAX];
            scenario_run(&table, devices[i], 0, cosines);
            memcpy(s.data[1], cosines[2], s.bytes[1]);
            scenario_run(&s, devices[i], 0, got);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t h = 0; h < HEADS + 1; h++) {
                    double head[DIM], scale = h < HEADS ? (double)s.launch.scalars[0] : 1;
                    const float *from = (const float *)s.data[0] + (r * (HEADS + 2) + h) * DIM;
                    for (uint32_t k = 0; k < DIM; k++) head[k] = (double)from[k];
                    qr_reference_rope(head, DIM, pairing, ((const uint32_t *)table.data[0])[r], 1e4, 1);
                    int32_t slot = ((const int32_t *)s.data[2])[r];
                    for (uint32_t k = 0; k < DIM; k++) {
                        uint32_t pair = pairing ? k % 32 : k / 2;
                        double size =
                            fabs((double)from[pairing ? pair : 2 * pair]) + fabs((double)from[pairing ? pair + 32 : 2 * pair + 1]);
                        double bound = (3 * u + 3.1e-8) * size * scale;
                        within((double)((const float *)got[0])[(r * (HEADS + 2) + h) * DIM + k], head[k] * scale, bound, s.what);
                        if (h < HEADS || slot < 0) continue;
                        double stored = (double)qr_half_to_float(((const uint16_t *)got[3])[(uint32_t)slot * DIM + k]);
                        within(stored, head[k], bound + fabs(head[k]) * 0x1p-11 + 0x1p-25, "key row, half a unit of fp16");
                    }
                }
            results_done(cosines);
            results_done(got);
            scenario_done(&s);
            scenario_done(&table);
        }
    worst_of("rope_append, (3 u + 3.1e-8)(|a| + |b|)");
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

/* One row and head in double. Score: dim / 8 + 3 roundings of sum|qk|, entering the exponent twice (weight and total), plus exp2n and
 * the merges; weights and values: a chain over at most 512 keys and its merges. */
static void judge_row(const scenario_t *s, const uint8_t *y, uint32_t lane, uint32_t row, uint32_t head)
{
    const uint32_t *sizes = s->launch.sizes, heads = sizes[1], kv_heads = sizes[2], dim = sizes[3], page = sizes[5], window = sizes[6];
    const uint32_t *positions = (const uint32_t *)s->data[3], *page_offsets = (const uint32_t *)s->data[5];
    const uint32_t *first_blocks = (const uint32_t *)s->data[6], *table = (const uint32_t *)s->data[7];
    uint32_t end = positions[row] + 1, first = window && end > window ? end - window : 0, keys = end - first,
             kv = head / (heads / kv_heads);
    double *k = calloc(keys * dim, 8), *v = calloc(keys * dim, 8), q[256], out[256], worst_score = 0, most_v = 0;
    for (uint32_t d = 0; d < dim; d++) q[d] = (double)((const float *)s->data[0])[(row * (heads + 2 * kv_heads) + head) * dim + d];
    for (uint32_t t = 0; t < keys; t++) {
        uint32_t token = first + t;
        uint64_t slot = (uint64_t)table[page_offsets[lane] + token / page - first_blocks[lane]] * page + token % page;
        double score = 0;
        for (uint32_t d = 0; d < dim; d++) {
            k[t * dim + d] = (double)qr_half_to_float(((const uint16_t *)s->data[1])[(slot * kv_heads + kv) * dim + d]);
            v[t * dim + d] = (double)qr_half_to_float(((const uint16_t *)s->data[2])[(slot * kv_heads + kv) * dim + d]);
            score += fabs(q[d] * k[t * dim + d]);
            most_v = fmax(most_v, fabs(v[t * dim + d]));
        }
        worst_score = fmax(worst_score, score);
    }
    assert_int_equal(qr_reference_attention(q, dim, keys, k, v, dim, log(2), out), 0);
    double bound = most_v * (2 * log(2) * (dim / 8 + 4) * u * worst_score + 8 * 7.7e-8 + 2 * (qr_min_u32(keys, 512) + 8 + keys / 64) * u);
    for (uint32_t d = 0; d < dim; d++) within((double)((const float *)y)[(row * heads + head) * dim + d], out[d], bound, s->what);
    free(k);
    free(v);
}

static void check_attention(scenario_t s)
{
    for (uint32_t i = 0; i < device_count; i++) {
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
        scenario_run(&s, devices[i], 0, got);
        const uint32_t *row_offsets = (const uint32_t *)s.data[4];
        for (uint32_t lane = 0; lane < s.launch.sizes[4]; lane++)
            for (uint32_t row = row_offsets[lane]; row < row_offsets[lane + 1]; row++) {
                assert_int_equal(((const uint32_t *)got[9])[row], 0);
                for (uint32_t head = 0; head < s.launch.sizes[1]; head++) judge_row(&s, got[8], lane, row, head);
            }
        results_done(got);
    }
    scenario_done(&s);
}

static void test_attention_values(void **state)
{
    (void)state;
    lanes_t lanes = {.count = 3, .rows = {1, 20, 2}, .keys = {700, 90, 66}};
    check_attention(make_attention(9, 3, 64, 16, 0, &lanes, 0.3f));
    check_attention(make_attention(2, 1, 128, 8, 0, &lanes, 0.3f));
    check_attention(make_attention(4, 1, 80, 32, 50, &lanes, 0.3f));
    check_attention(make_attention(2, 1, 64, 16, 600, &lanes, 1));
    lanes_t long_one = {.count = 1, .rows = {1}, .keys = {2085}};
    check_attention(make_attention(3, 1, 64, 64, 0, &long_one, 0.3f));
    worst_of("attention");
}

/* ---- cases ---------------------------------------------------------------------------------------------------------------- */

/* NU-01: fp32 to fp16 on the append path. The vectors are the case's own (checked there against an independent IEEE encoder). */
static void append_patterns(qr_device_t *device, const uint32_t *patterns, uint32_t count, uint16_t *ret_halves, uint32_t *ret_status)
{
    scenario_t s = make_rope_append(count, 1, 1, 8, 0);
    for (uint32_t r = 0; r < count; r++) { /* one pattern per row, in the value: it is stored as it is */
        float *row = (float *)s.data[0] + r * 3 * 8;
        memset(row, 0, 3 * 8 * 4);
        memcpy(row + 16 + 3, &patterns[r], 4);
        ((int32_t *)s.data[2])[r] = (int32_t)r;
    }
    uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
    scenario_run(&s, device, 0, got);
    for (uint32_t r = 0; r < count; r++) {
        ret_halves[r] = ((const uint16_t *)got[4])[r * 8 + 3];
        ret_status[r] = ((const uint32_t *)got[5])[r];
    }
    results_done(got);
    scenario_done(&s);
}

static void test_NU_01(void **state)
{
    (void)state;
    static const uint32_t from[] = {0x3f800000, 0x45001000, 0x45003000, 0x45002fff, 0x45001001, 0x477fe000,
                                    0x477fefff, 0x33000000, 0x33000001, 0x33c00000, 0x387fc000, 0x387fdfff,
                                    0x387fe000, 0x39586fff, 0x39587000, 0x80000000, 0xb3000001};
    static const uint16_t to[] = {0x3c00, 0x6800, 0x6802, 0x6801, 0x6801, 0x7bff, 0x7bff, 0x0000, 0x0001,
                                  0x0002, 0x03ff, 0x03ff, 0x0400, 0x0ac3, 0x0ac4, 0x8000, 0x8001};
    static const uint32_t unfit[] = {0x477ff000, 0x7f800000, 0xff800000, 0x7fc00000};
    static const uint16_t unfit_to[] = {0x7c00, 0x7c00, 0xfc00};
    uint16_t halves[QR_COUNT(from)];
    uint32_t statuses[QR_COUNT(from)];
    for (uint32_t i = 0; i < QR_COUNT(from); i++) assert_int_equal(qr_float_to_half(qr_bits_float(from[i])), to[i]);
    for (uint32_t i = 0; i < QR_COUNT(unfit_to); i++) assert_int_equal(qr_float_to_half(qr_bits_float(unfit[i])), unfit_to[i]);
    uint16_t nan = qr_float_to_half(NAN);
    assert_true((nan & 0x7c00) == 0x7c00 && (nan & 0x3ff));
    for (uint32_t h = 0; h < 65536; h++) { /* and back: every half that is a number */
        if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) continue;
        assert_int_equal(qr_float_to_half(qr_half_to_float((uint16_t)h)), h);
    }
    for (uint32_t flush = 0; flush < 2; flush++) /* also with flushing asked for in the host's control register */
        for (uint32_t i = 0; i < device_count; i++) {
#if defined(__x86_64__)
            uint32_t control = _mm_getcsr();
            if (flush) _mm_setcsr(control | 0x8040);
#endif
            append_patterns(devices[i], from, QR_COUNT(from), halves, statuses);
#if defined(__x86_64__)
            _mm_setcsr(control);
#endif
            for (uint32_t k = 0; k < QR_COUNT(from); k++) {
                assert_int_equal(halves[k], to[k]);
                assert_int_equal(statuses[k], 0);
            }
            append_patterns(devices[i], unfit, QR_COUNT(unfit), halves, statuses); /* not stored: the row fails, zeros stay */
            for (uint32_t k = 0; k < QR_COUNT(unfit); k++) {
                assert_int_equal(halves[k], 0);
                assert_int_equal(statuses[k], 1);
            }
        }
}

/* NU-03: the masks of attention, heads of 8. Scores are set through q = (score, 0...), k = (1, 0...) or its like. */
static void attend_scores(qr_device_t *device, const float *scores, uint32_t keys, uint32_t rows_after, uint32_t page_tokens,
                          float *ret_out, double *ret_mean)
{
    lanes_t lanes = {.count = 2, .rows = {1 + rows_after, 0}, .keys = {keys + rows_after, 0}};
    scenario_t s = make_attention(1, 1, 8, page_tokens, 0, &lanes, 1);
    float *q = (float *)s.data[0];
    memset(q, 0, s.bytes[0]);
    q[0] = 1024;
    const uint32_t *table = (const uint32_t *)s.data[7];
    for (int d = 0; d < 8; d++) ret_mean[d] = 0;
    for (uint32_t t = 0; t < keys; t++) {
        uint64_t slot = (uint64_t)table[t / page_tokens] * page_tokens + t % page_tokens;
        uint16_t *k = (uint16_t *)s.data[1] + slot * 8, *v = (uint16_t *)s.data[2] + slot * 8;
        memset(k, 0, 16);
        k[0] = qr_float_to_half(scores[t] / 1024);
        for (uint32_t d = 0; d < 8; d++) v[d] = qr_float_to_half((float)((t * 37 + d * 11) % 64) / 16 - 2);
        for (int d = 0; d < 8; d++) ret_mean[d] += (double)qr_half_to_float(v[d]) / keys;
    }
    uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
    scenario_run(&s, device, 0, got);
    memcpy(ret_out, got[8], 8 * 4);
    for (int d = 0; d < 8; d++) assert_true(isfinite(ret_out[d]));
    assert_int_equal(((const uint32_t *)got[9])[0], 0);
    results_done(got);
    scenario_done(&s);
}

static void test_NU_03(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++)
        for (uint32_t after = 0; after <= 3; after += 3) { /* one row (decode), or a tile whose later keys are masked (prefill) */
            float out[8];
            double mean[8];
            float low[3] = {-60000, -60000, -60000};
            attend_scores(devices[i], low, 3, after, 8, out, mean);
            for (int d = 0; d < 8; d++) within((double)out[d], mean[d], 1e-6 * 4, "NU-03 a: three keys at -60000, the fourth masked");
            float equal[80];
            for (int t = 0; t < 80; t++) equal[t] = 3;
            attend_scores(devices[i], equal, 80, after, 8, out, mean);
            for (int d = 0; d < 8; d++) within((double)out[d], mean[d], 1e-6 * 4, "NU-03 e: all scores equal");
            float unsplit[8]; /* the same keys in pages of 8, the last page holding one of them, and in one page of 128 */
            attend_scores(devices[i], equal, 73, after, 128, unsplit, mean);
            attend_scores(devices[i], equal, 73, after, 8, out, mean);
            for (int d = 0; d < 8; d++) within((double)out[d], mean[d], 4e-6, "NU-03 c: split over pages");
            assert_memory_equal(out, unsplit, sizeof out);
        }
    worst_of("NU-03, means");
}

/* NU-03 b and d: idle lanes beside a working one change and write nothing; a lone high score takes all. */
static void test_NU_03_idle_and_lone(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) {
        lanes_t idle = {.count = 3, .rows = {0, 1, 0}, .keys = {0, 66, 0}};
        scenario_t s = make_attention(1, 1, 8, 8, 0, &idle, 1);
        float *q = (float *)s.data[0];
        memset(q, 0, s.bytes[0]);
        q[0] = 1024;
        const uint32_t *table = (const uint32_t *)s.data[7];
        uint64_t lone = 0;
        for (uint32_t t = 0; t < 66; t++) {
            lone = (uint64_t)table[t / 8] * 8 + t % 8;
            uint16_t *k = (uint16_t *)s.data[1] + lone * 8;
            memset(k, 0, 16);
            k[0] = t == 65 ? qr_float_to_half(88.8f / 1024) : 0xfbff; /* -65504 x 1024 */
        }
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
        scenario_run(&s, devices[i], 0, got);
        for (uint32_t d = 0; d < 8; d++)
            assert_true(((const float *)got[8])[d] == qr_half_to_float(((const uint16_t *)s.data[2])[lone * 8 + d]));
        results_done(got);
        scenario_done(&s);
    }
}

/* One infinite input row fails alone; its neighbours' bits do not move; a sharer of the launch does not see it. */
static void test_poisoned_row_fails_alone(void **state)
{
    (void)state;
    enum { ROWS = 5, BAD = 2 };
    static const float bad_values[] = {INFINITY, -INFINITY, NAN};
    for (uint32_t i = 0; i < device_count; i++)
        for (uint32_t b = 0; b < 3; b++)
            for (uint32_t kernel = 0; kernel < 8; kernel++) {
                lanes_t alone = {.count = ROWS, .rows = {1, 1, 1, 1, 1}, .keys = {10, 20, 30, 40, 50}},
                        tile = {.count = 1, .rows = {ROWS}, .keys = {77}};
                scenario_t s = kernel == 0   ? make_norm(ROWS, 576, true)
                               : kernel == 1 ? make_norm(ROWS, 576, false)
                               : kernel == 2 ? make_quantise(ROWS, 96, true)
                               : kernel == 3 ? make_gate(ROWS, 64, true, 1)
                               : kernel == 4 ? make_gate(ROWS, 64, false, 1)
                               : kernel == 5 ? make_rope_append(ROWS, 3, 1, 64, 1)
                               : kernel == 6 ? make_attention(3, 1, 64, 8, 0, &alone, 0.3f)
                                             : make_attention(3, 1, 64, 8, 0, &tile, 0.3f);
                int out = kernel <= 1   ? 2
                          : kernel <= 4 ? 1
                          : kernel == 5 ? 0
                                        : 8,
                    status = kernel <= 1   ? 3
                             : kernel <= 4 ? 2
                             : kernel == 5 ? 5
                                           : 9;
                uint64_t in_row = s.bytes[0] / ROWS, out_row = s.bytes[out] / ROWS;
                uint8_t *clean[QR_LAUNCH_BUFFERS_MAX], *got[QR_LAUNCH_BUFFERS_MAX];
                scenario_run(&s, devices[i], 0, clean);
                ((float *)(s.data[0] + BAD * in_row))[17] = bad_values[b];
                scenario_run(&s, devices[i], 0, got);
                for (uint32_t r = 0; r < ROWS; r++) {
                    assert_int_equal(((const uint32_t *)clean[status])[r], 0);
                    if (((const uint32_t *)got[status])[r] != (r == BAD))
                        fail_msg("%s: status of row %u with %g", s.what, r, (double)bad_values[b]);
                    if (r != BAD) assert_memory_equal(got[out] + r * out_row, clean[out] + r * out_row, out_row);
                }
                if (kernel == 5)
                    for (uint64_t k = 0; k < s.bytes[3] / 2; k++) { /* what is stored is finite, or was never written */
                        uint16_t half = ((const uint16_t *)got[3])[k];
                        assert_true((half & 0x7c00) != 0x7c00 || half == 0xffff);
                    }
                results_done(clean);
                results_done(got);
                scenario_done(&s);
            }
}

/* A sum of squares that overflows would hide as a row of zeros: it must fail. */
static void test_norm_overflow_is_seen(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) {
        scenario_t s = make_norm(2, 64, true);
        ((float *)s.data[0])[5] = 3e19f;
        uint8_t *got[QR_LAUNCH_BUFFERS_MAX];
        scenario_run(&s, devices[i], 0, got);
        assert_int_equal(((const uint32_t *)got[3])[0], 1);
        assert_int_equal(((const uint32_t *)got[3])[1], 0);
        results_done(got);
        scenario_done(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_NU_01),
        cmocka_unit_test(test_NU_03),
        cmocka_unit_test(test_NU_03_idle_and_lone),
        cmocka_unit_test(test_product_values),
        cmocka_unit_test(test_quantise_values),
        cmocka_unit_test(test_norm_values),
        cmocka_unit_test(test_gate_values),
        cmocka_unit_test(test_exp2n_error),
        cmocka_unit_test(test_rope_table_values),
        cmocka_unit_test(test_rope_append_values),
        cmocka_unit_test(test_attention_values),
        cmocka_unit_test(test_poisoned_row_fails_alone),
        cmocka_unit_test(test_norm_overflow_is_seen),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
