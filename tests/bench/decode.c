/* link: qr_model */
/* decode.c - the decoder alone, without actors: prefill of 512, decode at context 16 and 2,048, eight lanes at once.
 *
 *   bench_decode [--tiny] [--model FILE] [--isa N] [--threads N] [--page-tokens N] [--seconds S]
 * Prints medians over repeats, one figure a line, with its context. --tiny: a seeded model, a few steps (for the test suite). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/prng.h"
#include "model/decoder.h"
#include "model/sampler.h"
#include "model/tiny.h"

enum { LANES = 8, TILE = 512 };

typedef struct bench {
    qr_model_t *model;
    qr_device_t *device;
    qr_decoder_t *decoder;
    uint32_t page_tokens, blocks, context, *tokens, *positions, *logit_rows, *page_offsets, *pages;
    int32_t *slots;
    double seconds; /* spent on each figure at least */
} bench_t;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void must(int status, const char *message)
{
    if (!status) return;
    fprintf(stderr, "%s (%s)\n", message, qr_error_name(status));
    exit(2);
}

/* One batch of `lanes` lanes with `rows` rows each from position `start`; lane i has its own pages. Returns seconds. */
static double step(bench_t *b, uint32_t lanes, uint32_t rows, uint32_t start)
{
    uint32_t row_offsets[LANES + 1], first_blocks[LANES] = {0}, used = 0;
    uint32_t blocks = (uint32_t)qr_div_up(start + rows, b->page_tokens);
    for (uint32_t lane = 0; lane <= lanes; lane++) row_offsets[lane] = lane * rows;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        b->page_offsets[lane] = used;
        for (uint32_t i = 0; i < blocks; i++) b->pages[used++] = lane * b->blocks + i;
        for (uint32_t r = 0; r < rows; r++) {
            uint32_t p = start + r, at = lane * rows + r;
            b->tokens[at] = (p * 7919 + lane * 31) % b->model->vocabulary.count;
            b->positions[at] = p;
            b->slots[at] = (int32_t)((lane * b->blocks + p / b->page_tokens) * b->page_tokens + p % b->page_tokens);
        }
        b->logit_rows[lane] = lane * rows + rows - 1;
    }
    b->page_offsets[lanes] = used;
    qr_batch_t batch = {.row_count = lanes * rows,
                        .lane_count = lanes,
                        .tokens = b->tokens,
                        .positions = b->positions,
                        .row_offsets = row_offsets,
                        .logit_count = lanes,
                        .logit_rows = b->logit_rows};
    for (uint32_t g = 0; g < b->model->layout.group_count; g++) {
        batch.groups[g].page_offsets = b->page_offsets, batch.groups[g].first_blocks = first_blocks;
        batch.groups[g].pages = b->pages, batch.groups[g].slots = b->slots;
    }
    double start_s = now();
    must(qr_decoder_submit(b->decoder, &batch), "submit");
    int status = qr_decoder_advance(b->decoder, 0);
    must(status, "advance");
    return now() - start_s;
}

static int order(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static void figure(bench_t *b, const char *name, uint32_t lanes, uint32_t rows, uint32_t start)
{
    enum { MOST = 4096 };
    static double times[MOST];
    uint32_t count = 0;
    double spent = 0;
    (void)step(b, lanes, rows, start);
    while (count < MOST && (count < 3 || spent < b->seconds)) spent += times[count++] = step(b, lanes, rows, start);
    qsort(times, count, sizeof(double), order);
    printf("%-28s %10.1f tokens/s  (median of %u; %.3f ms a step)\n", name, (double)(lanes * rows) / times[count / 2], count,
           1e3 * times[count / 2]);
}

/* Draws from logits with the spread of a language model: greedy, free, and with filters. */
static void draws(bench_t *b)
{
    static const struct {
        const char *name;
        qr_sampling_t sampling;
    } kinds[] = {
        {"draw, greedy", {0, 1, 0, 0, 1}},       {"draw, temperature 1", {1, 1, 0, 0, 1}},  {"draw, top_p 0.95", {0.8f, 0.95f, 0, 0, 1}},
        {"draw, top_k 40", {0.8f, 1, 0, 40, 1}}, {"draw, min_p 0.05", {1, 1, 0.05f, 0, 1}},
    };
    uint32_t count = b->model->vocabulary.count;
    float *logits = malloc(count * sizeof *logits), logprob;
    void *scratch = malloc(qr_sampler_scratch_bytes(count));
    qr_prng_t prng;
    qr_prng_init(&prng, 1);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sum = 0; /* of uniform numbers: nearly normal, standard deviation 3 */
        for (int k = 0; k < 12; k++) sum += qr_prng_below(&prng, 1 << 16);
        logits[i] = 3.0f * ((float)sum / 65536 - 6);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int with = 0; with < 2; with++) {
            uint32_t runs = 0, sum = 0;
            double start = now(), spent = 0;
            while (runs < 3 || spent < b->seconds / 4) {
                sum += qr_sampler_draw(&kinds[k].sampling, logits, count, runs++, 0, scratch, with ? &logprob : NULL);
                spent = now() - start;
            }
            printf("%-20s %-8s %9.1f us   (mean of %u, %u tokens; %u)\n", kinds[k].name, with ? "logprob" : "", 1e6 * spent / runs, runs,
                   count, sum % 10);
        }
    free(logits), free(scratch);
}

static void prepare(bench_t *b, uint32_t lanes_context)
{
    char message[512] = "";
    b->blocks = (uint32_t)qr_div_up(lanes_context, b->page_tokens);
    qr_decoder_config_t config = {.page_tokens = b->page_tokens, .rows_max = TILE, .lanes_max = LANES, .context_tokens = lanes_context};
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) config.pages[g] = LANES * b->blocks;
    must(qr_decoder_new(b->model, &config, &b->decoder, message, sizeof message), message);
    b->tokens = calloc(TILE, 4), b->positions = calloc(TILE, 4), b->slots = calloc(TILE, 4), b->logit_rows = calloc(TILE, 4);
    b->page_offsets = calloc(LANES + 1, 4), b->pages = calloc((size_t)LANES * b->blocks, 4);
    b->context = lanes_context; /* rows nobody wrote are zero: attention reads them at the same cost */
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    char tiny_path[] = "/tmp/quire-bench-XXXXXX", message[512] = "";
    bench_t b = {.page_tokens = 16, .seconds = 1.0};
    qr_device_config_t device = {.kind = QR_DEVICE_CPU, .isa = QR_ISA_AUTO, .threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    bool tiny = false;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tiny"))
            tiny = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--model"))
            path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--isa"))
            device.isa = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            device.threads = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--page-tokens"))
            b.page_tokens = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--seconds"))
            b.seconds = atof(argv[++i]);
        else
            must(-QR_E_INVALID, "usage: bench_decode [--tiny] [--model FILE] [--isa N] [--threads N] [--page-tokens N] [--seconds S]");
    }
    if (tiny) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.context = 2112;
        int descriptor = mkstemp(tiny_path);
        must(descriptor < 0 ? -QR_E_IO : 0, "a temporary file");
        (void)close(descriptor);
        must(qr_tiny_write(&config, tiny_path), "writing the tiny model");
        path = tiny_path;
        b.seconds = 0;
    }
    if (!path) must(-QR_E_INVALID, "name a model with --model FILE, or use --tiny");
    must(qr_device_new(&device, &b.device, message, sizeof message), message);
    must(qr_model_open(path, &b.model, message, sizeof message), message);
    double start = now();
    must(qr_model_load(b.model, b.device, NULL, NULL, message, sizeof message), message);
    printf("device %s; model %s; pages of %u; weights loaded, packed and hashed in %.0f ms\n", qr_device_name(b.device), b.model->name,
           b.page_tokens, 1e3 * (now() - start));
    prepare(&b, 2112);
    figure(&b, "prefill 512", 1, TILE, 0);
    figure(&b, "decode, context 16", 1, 1, 16);
    figure(&b, "decode, context 2048", 1, 1, 2048);
    figure(&b, "8 lanes, context 16", LANES, 1, 16);
    figure(&b, "8 lanes, context 2048", LANES, 1, 2048);
    draws(&b);
    qr_decoder_destroy(&b.decoder);
    qr_model_destroy(&b.model);
    qr_device_destroy(&b.device);
    if (tiny) (void)unlink(tiny_path);
    free(b.tokens), free(b.positions), free(b.slots), free(b.logit_rows), free(b.page_offsets), free(b.pages);
    return 0;
}
