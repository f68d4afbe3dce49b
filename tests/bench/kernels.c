/* link: qr_kernels */
/* kernels.c - rates of the cpu device, kernel by kernel: what the tiles reach of this machine, and what a hand-over costs.
 *
 *   bench_kernels [--tiny] [--isa scalar|avx2|avx512] [--threads N] [--only WORD] [--layers N] [--repeats N] [--cpu-time]
 * --cpu-time counts the calling thread's processor time instead of the clock: on a busy machine, with --threads 1, what the code costs.
 * Shapes are SmolLM2-135M's: hidden 576, feed-forward 1536, 9 query and 3 kv heads of 64, 30 layers, vocabulary 49152. Every line: best
 * and median of the repeats. Best is what the code can do; the distance to the median is the machine's other work. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/params.h"
#include "kernels/cpu/pool.h"
#include "kernels/half.h"
#include "kernels/layout.h"

enum { HIDDEN = 576, FORWARD = 1536, HEADS = 9, KV_HEADS = 3, DIM = 64, QKV = 960, VOCABULARY = 49152, PAGE = 16, REPEATS_MAX = 4096 };

typedef struct bench {
    qr_device_t *device;
    uint32_t layers, repeats, threads;
    bool tiny, cpu_time;
    const char *only;
    uint64_t seed;
} bench_t;

static uint64_t next_random(bench_t *b)
{
    b->seed ^= b->seed << 13;
    b->seed ^= b->seed >> 7;
    return b->seed ^= b->seed << 17;
}
static float random_value(bench_t *b) { return (float)((double)(next_random(b) & 0xffff) / 32768 - 1); }

static void must(int error)
{
    if (!error) return;
    fprintf(stderr, "error %d\n", error);
    exit(1);
}

static qr_buffer_t buffer_of(bench_t *b, uint64_t bytes)
{
    qr_buffer_t buffer;
    must(qr_buffer_new(b->device, bytes, &buffer));
    return buffer;
}

static qr_buffer_t floats_of(bench_t *b, uint64_t count)
{
    qr_buffer_t buffer = buffer_of(b, count * 4);
    for (uint64_t i = 0; i < count; i++) ((float *)buffer.host)[i] = random_value(b);
    return buffer;
}

/* A weight with ordinary scales; quants are random bytes. */
static qr_weight_t weight_of(bench_t *b, uint32_t format, uint32_t rows, uint32_t columns)
{
    uint64_t bytes = qr_format_row_bytes(format, columns) * rows;
    uint32_t block = format == QR_FORMAT_Q8_0 ? 34 : format == QR_FORMAT_Q4_0 ? 18 : format == QR_FORMAT_Q4_1 ? 20 : 210;
    uint8_t *data = malloc(bytes + 8);
    qr_weight_t weight;
    if (!data) must(-1);
    for (uint64_t i = 0; i < bytes; i += 8) memcpy(data + i, &(uint64_t){next_random(b)}, 8);
    uint16_t d = qr_float_to_half(0.01f);
    if (qr_format_quantised(format))
        for (uint64_t i = 0; i < bytes; i += block) {
            memcpy(data + i + (format == QR_FORMAT_Q6_K ? 208 : 0), &d, 2);
            if (format == QR_FORMAT_Q4_1) memcpy(data + i + 2, &d, 2);
        }
    else
        for (uint64_t i = 0; i < (uint64_t)rows * columns; i++)
            if (format == QR_FORMAT_F16)
                ((uint16_t *)data)[i] = d;
            else
                ((float *)data)[i] = 0.01f;
    must(qr_weight_new(b->device, format, columns, 1, &(const void *){data}, &rows, &weight));
    free(data);
    return weight;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_ns(const bench_t *b)
{
    struct timespec now;
    clock_gettime(b->cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Time of one run of the queued launches, repeated: best and median in ns. */
static void measure(bench_t *b, const qr_launch_t *launches, uint32_t count, double *ret_best, double *ret_median)
{
    static double ns[REPEATS_MAX];
    for (uint32_t r = 0; r < b->repeats + 1; r++) {
        for (uint32_t i = 0; i < count; i++) must(qr_device_enqueue(b->device, &launches[i]));
        double start = time_ns(b);
        must(qr_device_advance(b->device, 0));
        if (r) ns[r - 1] = time_ns(b) - start; /* the first one warms up */
    }
    qsort(ns, b->repeats, sizeof *ns, ascending);
    *ret_best = ns[0];
    *ret_median = ns[b->repeats / 2];
}

static bool wanted(const bench_t *b, const char *what) { return !b->only || strstr(what, b->only); }

static void line(const char *what, double best, double median, const char *unit)
{
    printf("%-58s best %10.4g  median %10.4g  %s\n", what, best, median, unit);
}

static const char *format_name(uint32_t format)
{
    switch (format) {
    case QR_FORMAT_F32: return "F32";
    case QR_FORMAT_F16: return "F16";
    case QR_FORMAT_Q8_0: return "Q8_0";
    case QR_FORMAT_Q4_0: return "Q4_0";
    case QR_FORMAT_Q4_1: return "Q4_1";
    default: return "Q6_K";
    }
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

static qr_buffer_t activations_of(bench_t *b, uint32_t format, uint32_t rows, uint32_t columns)
{
    bool quantised = qr_format_quantised(format);
    qr_buffer_t x = floats_of(b, (uint64_t)rows * columns), status = buffer_of(b, rows * 4), y;
    if (!quantised) return x;
    y = buffer_of(b, rows * qr_activation_row_bytes(true, columns));
    qr_launch_t launch = {.kernel = QR_KERNEL_quantise, .sizes = {rows, columns, 1}, .buffers = {&x, &y, &status}};
    must(qr_device_enqueue(b->device, &launch));
    must(qr_device_advance(b->device, 0));
    qr_buffer_done(b->device, &x);
    qr_buffer_done(b->device, &status);
    return y;
}

static const uint32_t shapes[4][2] = {{QKV, HIDDEN}, {HIDDEN, HIDDEN}, {2 * FORWARD, HIDDEN}, {HIDDEN, FORWARD}};

/* All products of one token pass, layer after layer, each with its own weights: what decode streams. */
static void bench_pass(bench_t *b, uint32_t format, uint32_t head_format)
{
    char what[96];
    snprintf(what, sizeof what, "product pass %s, head %s", format_name(format), format_name(head_format));
    if (!wanted(b, what)) return;
    uint32_t count = b->layers * 4, vocabulary = b->tiny ? 512 : VOCABULARY, rows_most = 16;
    qr_weight_t *weights = calloc(count + 1, sizeof *weights);
    qr_launch_t *launches = calloc(count + 1, sizeof *launches);
    uint64_t bytes = 0, macs = 0;
    for (uint32_t i = 0; i < count; i++) weights[i] = weight_of(b, format, shapes[i % 4][0], shapes[i % 4][1]);
    weights[count] = weight_of(b, head_format, vocabulary, HIDDEN);
    for (uint32_t i = 0; i <= count; i++) {
        bytes += weights[i].buffer.bytes;
        macs += (uint64_t)weights[i].rows * weights[i].columns;
    }
    qr_buffer_t narrow = activations_of(b, format, rows_most, HIDDEN), wide = activations_of(b, format, rows_most, FORWARD);
    qr_buffer_t narrow_head = activations_of(b, head_format, rows_most, HIDDEN),
                y = buffer_of(b, (uint64_t)rows_most * vocabulary * 4 + 3072 * rows_most * 4);
    for (uint32_t rows = 1; rows <= rows_most; rows *= 2) {
        for (uint32_t i = 0; i <= count; i++) {
            const qr_weight_t *w = &weights[i];
            launches[i] = (qr_launch_t){.kernel = QR_KERNEL_product,
                                        .sizes = {rows, w->columns, w->rows, w->format, w->rows, 0, i % 4 == 3},
                                        .buffers = {i == count             ? &narrow_head
                                                    : w->columns == HIDDEN ? &narrow
                                                                           : &wide,
                                                    &w->buffer, &y}};
        }
        double best, median;
        measure(b, launches, count + 1, &best, &median);
        snprintf(what, sizeof what, "product pass %s, head %s, %u rows", format_name(format), format_name(head_format), rows);
        line(what, best / 1e6, median / 1e6, "ms");
        printf("    = %.1f GB/s of weights, %.0f Gop/s, %.0f rows/s (best)\n", (double)bytes / best, 2.0 * (double)macs * rows / best,
               rows * 1e9 / best);
    }
    for (uint32_t i = 0; i <= count; i++) qr_weight_done(b->device, &weights[i]);
    qr_buffer_done(b->device, &narrow);
    qr_buffer_done(b->device, &wide);
    qr_buffer_done(b->device, &narrow_head);
    qr_buffer_done(b->device, &y);
    free(weights);
    free(launches);
}

/* The products of one layer at many rows: the tile's rate. A spilling compiler shows here first. */
static void bench_layer(bench_t *b, uint32_t format, uint32_t rows)
{
    char what[96];
    snprintf(what, sizeof what, "product layer %s, %u rows", format_name(format), rows);
    if (!wanted(b, what)) return;
    qr_weight_t weights[4];
    qr_launch_t launches[4];
    qr_buffer_t narrow = activations_of(b, format, rows, HIDDEN), wide = activations_of(b, format, rows, FORWARD),
                y = buffer_of(b, rows * 3072ull * 4);
    double macs = 0, best, median;
    for (uint32_t i = 0; i < 4; i++) {
        weights[i] = weight_of(b, format, shapes[i][0], shapes[i][1]);
        launches[i] = (qr_launch_t){.kernel = QR_KERNEL_product,
                                    .sizes = {rows, shapes[i][1], shapes[i][0], format, shapes[i][0], 0, 0},
                                    .buffers = {shapes[i][1] == HIDDEN ? &narrow : &wide, &weights[i].buffer, &y}};
        macs += (double)rows * shapes[i][0] * shapes[i][1];
    }
    measure(b, launches, 4, &best, &median);
    line(what, 2 * macs / best, 2 * macs / median, "Gop/s");
    for (uint32_t i = 0; i < 4; i++) qr_weight_done(b->device, &weights[i]);
    qr_buffer_done(b->device, &narrow);
    qr_buffer_done(b->device, &wide);
    qr_buffer_done(b->device, &y);
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

/* `rows` queries at the end of `keys` tokens in each lane and layer, layers with pools of their own. */
static void bench_attention(bench_t *b, uint32_t lanes, uint32_t rows, uint32_t keys, uint32_t layers)
{
    char what[96];
    snprintf(what, sizeof what, "attention %u lanes x %u rows at %u keys, %u layers", lanes, rows, keys, layers);
    if (!wanted(b, what)) return;
    uint32_t blocks = (uint32_t)qr_div_up(keys, PAGE), pages = blocks * lanes, total = lanes * rows;
    qr_buffer_t qkv = floats_of(b, (uint64_t)total * QKV), positions = buffer_of(b, total * 4), row_offsets = buffer_of(b, (lanes + 1) * 4);
    qr_buffer_t page_offsets = buffer_of(b, (lanes + 1) * 4), first = buffer_of(b, lanes * 4), table = buffer_of(b, pages * 4);
    qr_buffer_t y = buffer_of(b, (uint64_t)total * HEADS * DIM * 4), status = buffer_of(b, total * 4),
                *pools = calloc(2 * layers, sizeof *pools);
    uint64_t pool_bytes = (uint64_t)pages * PAGE * KV_HEADS * DIM * 2;
    for (uint32_t i = 0; i < 2 * layers; i++) {
        pools[i] = buffer_of(b, pool_bytes);
        for (uint64_t k = 0; k < pool_bytes / 2; k++)
            ((uint16_t *)pools[i].host)[k] = (uint16_t)(0x3000 | (k * 2654435761u >> 20 & 0x87ff));
    }
    uint32_t *order = (uint32_t *)table.host;
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t j = (uint32_t)(next_random(b) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t lane = 0; lane <= lanes; lane++) {
        ((uint32_t *)row_offsets.host)[lane] = lane * rows;
        ((uint32_t *)page_offsets.host)[lane] = lane * blocks;
    }
    for (uint32_t i = 0; i < total; i++) ((uint32_t *)positions.host)[i] = keys - rows + i % rows;
    qr_launch_t *launches = calloc(layers, sizeof *launches);
    for (uint32_t i = 0; i < layers; i++)
        launches[i] = (qr_launch_t){
            .kernel = QR_KERNEL_attention,
            .sizes = {total, HEADS, KV_HEADS, DIM, lanes, PAGE, 0, keys},
            .buffers = {&qkv, &pools[2 * i], &pools[2 * i + 1], &positions, &row_offsets, &page_offsets, &first, &table, &y, &status}};
    double best, median, work = 0;
    measure(b, launches, layers, &best, &median);
    if (rows <= 2) {
        work = 2.0 * (double)keys * KV_HEADS * DIM * 2 * lanes * rows * layers;
        line(what, work / best, work / median, "GB/s of keys and values");
        printf("    = %.2f us a layer (best)\n", best / layers / 1e3);
    } else {
        for (uint32_t r = 0; r < rows; r++) work += 4.0 * (keys - rows + r + 1) * HEADS * DIM * lanes * layers;
        line(what, work / best, work / median, "GFLOP/s");
    }
    for (uint32_t i = 0; i < 2 * layers; i++) qr_buffer_done(b->device, &pools[i]);
    qr_buffer_t *all[] = {&qkv, &positions, &row_offsets, &page_offsets, &first, &table, &y, &status};
    for (uint32_t i = 0; i < QR_COUNT(all); i++) qr_buffer_done(b->device, all[i]);
    free(pools);
    free(launches);
}

/* ---- small kernels and hand-overs ------------------------------------------------------------------------------------------- */

static void bench_small(bench_t *b, uint32_t rows)
{
    enum { TIMES = 64 };
    qr_buffer_t x = floats_of(b, rows * 3072ull), w = floats_of(b, 3072), y = buffer_of(b, rows * 4ull * 3072),
                status = buffer_of(b, rows * 4);
    qr_buffer_t table = floats_of(b, (uint64_t)rows * DIM), slots = buffer_of(b, rows * 4), k = buffer_of(b, rows * 384ull),
                v = buffer_of(b, rows * 384ull);
    qr_buffer_t steps = buffer_of(b, 32 * 8), tokens = buffer_of(b, rows * 4), positions = buffer_of(b, rows * 4);
    qr_weight_t embedding = weight_of(b, QR_FORMAT_Q8_0, 512, HIDDEN);
    for (uint32_t i = 0; i < rows; i++) ((int32_t *)slots.host)[i] = (int32_t)i;
    for (uint32_t i = 0; i < rows * DIM / 2; i++) { /* rotations, so that repeated ones keep the size of what they rotate */
        ((float *)table.host)[2 * i] = cosf((float)i);
        ((float *)table.host)[2 * i + 1] = sinf((float)i);
    }
    const struct {
        const char *what;
        qr_launch_t launch;
    } cases[] = {
        {"norm 576", {.kernel = QR_KERNEL_norm, .sizes = {rows, HIDDEN, 1}, .scalars = {1e-5f}, .buffers = {&x, &w, &y, &status}}},
        {"quantise 576", {.kernel = QR_KERNEL_quantise, .sizes = {rows, HIDDEN, 1}, .buffers = {&x, &y, &status}}},
        {"gate 1536", {.kernel = QR_KERNEL_gate, .sizes = {rows, FORWARD, 1}, .buffers = {&x, &y, &status}}},
        {"rope_append 9/3 heads of 64",
         {.kernel = QR_KERNEL_rope_append,
          .sizes = {rows, HEADS, KV_HEADS, DIM, 0},
          .scalars = {1},
          .buffers = {&x, &table, &slots, &k, &v, &status}}},
        {"rope_table 32 pairs", {.kernel = QR_KERNEL_rope_table, .sizes = {rows, 32}, .buffers = {&positions, &steps, &y}}},
        {"embed Q8_0 576",
         {.kernel = QR_KERNEL_embed, .sizes = {rows, HIDDEN, 512, QR_FORMAT_Q8_0}, .buffers = {&tokens, &embedding.buffer, &y}}},
        {"gather 576", {.kernel = QR_KERNEL_gather, .sizes = {rows, HIDDEN}, .buffers = {&x, &tokens, &y}}},
    };
    for (uint32_t i = 0; i < QR_COUNT(cases); i++) {
        qr_launch_t launches[TIMES];
        char what[96];
        double best, median;
        for (uint32_t t = 0; t < TIMES; t++) launches[t] = cases[i].launch;
        snprintf(what, sizeof what, "small %s, %u rows", cases[i].what, rows);
        if (!wanted(b, what)) continue;
        measure(b, launches, TIMES, &best, &median);
        line(what, best / TIMES / rows, median / TIMES / rows, "ns a row, launch included");
    }
    qr_weight_done(b->device, &embedding);
    qr_buffer_t *all[] = {&x, &w, &y, &status, &table, &slots, &k, &v, &steps, &tokens, &positions};
    for (uint32_t i = 0; i < QR_COUNT(all); i++) qr_buffer_done(b->device, all[i]);
}

/* About 2 us of dependent work that no other thread sees. */
static void spin_piece(void *context, uint32_t piece, uint32_t thread)
{
    volatile uint64_t *sink = (volatile uint64_t *)context + 16 * thread;
    uint64_t x = piece + 1;
    for (int i = 0; i < 1500; i++) x = x * 6364136223846793005ull + 1442695040888963407ull;
    *sink = x;
}

static double task_ns(qr_pool_t *pool, uint32_t pieces, uint32_t tasks)
{
    static uint64_t sinks[16 * QR_THREADS_MAX];
    uint64_t start = qr_pool_now_ns();
    for (uint32_t i = 0; i < tasks; i++) {
        qr_pool_start(pool, spin_piece, sinks, pieces);
        while (!qr_pool_work(pool, UINT64_MAX, false)) {
        }
    }
    return (double)(qr_pool_now_ns() - start) / tasks;
}

/* What sharing one piece per thread costs over running one piece alone: the hand-over there and the meeting after it. */
static void bench_handover(bench_t *b)
{
    if (!wanted(b, "handover") || b->threads < 2) return;
    qr_pool_t *pool, *alone;
    enum { SAMPLES = 2000, TASKS = 20 }; /* short samples: on a busy machine some run undisturbed */
    static double shared[SAMPLES], single[SAMPLES];
    uint32_t samples = b->tiny ? 20 : SAMPLES;
    must(qr_pool_new(b->threads, &pool));
    must(qr_pool_new(1, &alone));
    for (uint32_t r = 0; r < samples; r++) {
        shared[r] = task_ns(pool, b->threads, TASKS);
        single[r] = task_ns(alone, 1, TASKS);
    }
    qsort(shared, samples, sizeof *shared, ascending);
    qsort(single, samples, sizeof *single, ascending);
    line("handover: a piece of one thread alone", single[0], single[samples / 2], "ns");
    line("handover: one such piece for every thread", shared[0], shared[samples / 2], "ns");
    printf("    = %.0f ns of hand-over (best - best)\n", shared[0] - single[0]);
    qr_pool_destroy(&pool);
    qr_pool_destroy(&alone);
}

int main(int argc, char **argv)
{
    bench_t b = {.layers = 30, .repeats = 15, .threads = 2, .seed = 88172645463325252ull};
    qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = QR_ISA_AUTO};
    char message[256];
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--tiny"))
            b.tiny = true;
        else if (!strcmp(argv[i], "--cpu-time"))
            b.cpu_time = true;
        else if (!strcmp(argv[i], "--threads"))
            b.threads = (uint32_t)atoi(value), i++;
        else if (!strcmp(argv[i], "--layers"))
            b.layers = (uint32_t)qr_min_u64(qr_max_u64((uint64_t)atoi(value), 1), 200), i++;
        else if (!strcmp(argv[i], "--repeats"))
            b.repeats = (uint32_t)qr_min_u64(qr_max_u64((uint64_t)atoi(value), 1), REPEATS_MAX), i++;
        else if (!strcmp(argv[i], "--only"))
            b.only = value, i++;
        else if (!strcmp(argv[i], "--isa"))
            config.isa = !strcmp(value, "scalar") ? QR_ISA_SCALAR : !strcmp(value, "avx2") ? QR_ISA_AVX2 : QR_ISA_AVX512, i++;
        else
            return fprintf(stderr, "usage: bench_kernels [--tiny] [--isa scalar|avx2|avx512] [--threads N] [--only WORD] [--layers N] "
                                   "[--repeats N] [--cpu-time]\n"),
                   2;
    }
    config.threads = b.threads;
    if (b.tiny) b.layers = 1, b.repeats = 3;
    if (qr_device_new(&config, &b.device, message, sizeof message)) return fprintf(stderr, "%s\n", message), 1;
    printf("%s; %u layers, best and median of %u%s%s\n", qr_device_name(b.device), b.layers, b.repeats, b.tiny ? "; tiny" : "",
           b.cpu_time ? "; processor time" : "");
    bench_handover(&b);
    bench_small(&b, 1);
    bench_small(&b, b.tiny ? 8 : 512);
    bench_pass(&b, QR_FORMAT_Q4_1, QR_FORMAT_Q8_0);
    bench_pass(&b, QR_FORMAT_Q8_0, QR_FORMAT_Q8_0);
    bench_pass(&b, QR_FORMAT_Q4_0, QR_FORMAT_Q8_0);
    static const uint32_t formats[] = {QR_FORMAT_Q4_1, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_F16, QR_FORMAT_F32};
    for (uint32_t i = 0; i < QR_COUNT(formats); i++) bench_layer(&b, formats[i], b.tiny ? 12 : 512);
    bench_attention(&b, 1, 1, 16, b.layers);
    bench_attention(&b, 1, 1, b.tiny ? 100 : 512, b.layers);
    bench_attention(&b, 1, 1, b.tiny ? 600 : 2048, b.layers);
    bench_attention(&b, 8, 1, b.tiny ? 40 : 2048, b.tiny ? 1 : 4);
    bench_attention(&b, 1, b.tiny ? 20 : 512, b.tiny ? 40 : 512, 1);
    bench_attention(&b, 1, b.tiny ? 20 : 512, b.tiny ? 40 : 2048, 1);
    qr_device_destroy(&b.device);
    return 0;
}
