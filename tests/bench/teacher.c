/* link: qr_model */
/* teacher.c - teacher-forced logits of given tokens, for judges outside this program (tests/oracle).
 *
 *   bench_teacher [--tiny] [--model FILE] [--tokens FILE] [--logits FILE] [--tile N] [--isa N] [--threads N] [--oracle]
 * --tokens: ids in decimal, separated by commas or white space. --logits: raw little-endian f32[tokens][vocabulary] ("-": standard output).
 * --oracle: through the contiguous decoder instead of pages. Without --logits it prints the mean negative log likelihood. */
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/driver.h"
#include "model/oracle.h"
#include "model/tiny.h"

static uint32_t *tokens_read(const char *path, uint32_t *ret_count)
{
    FILE *file = fopen(path, "r");
    uint32_t count = 0, *tokens = calloc(QR_CONTEXT_MAX, sizeof *tokens);
    driver_must(file && tokens ? 0 : -QR_E_NOT_FOUND, path);
    while (count < QR_CONTEXT_MAX && fscanf(file, "%u%*[, \n\t]", &tokens[count]) == 1) count++;
    fclose(file);
    *ret_count = count;
    return tokens;
}

static double nll(const float *logits, uint32_t vocabulary, uint32_t token)
{
    double most = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < vocabulary; i++) most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - most);
    return most + log(sum) - (double)logits[token];
}

static void rows_take(const float *logits, uint32_t rows, uint32_t vocabulary, const uint32_t *next, uint32_t next_count, FILE *out,
                      double *sum)
{
    if (out && fwrite(logits, sizeof(float) * vocabulary, rows, out) != rows) driver_must(-QR_E_IO, "writing logits");
    for (uint32_t r = 0; !out && r < rows && r < next_count; r++) *sum += nll(logits + (size_t)r * vocabulary, vocabulary, next[r]);
}

static double paged(qr_model_t *model, uint32_t tile, const uint32_t *tokens, uint32_t count, FILE *out)
{
    driver_t driver;
    sequence_t sequence;
    uint32_t vocabulary = model->arch.vocabulary;
    float *logits = malloc(sizeof(float) * vocabulary * tile);
    double sum = 0;
    driver_init(&driver, model, 16, count, 1, tile, tile, false, 1);
    sequence_init(&driver, &sequence, tokens);
    while (sequence.done < count) {
        uint32_t at = sequence.done;
        span_t span = {&sequence, qr_min_u32(tile, count - at)};
        driver_step(&driver, &span, 1, &logits, NULL, NULL);
        rows_take(logits, span.rows, vocabulary, tokens + at + 1, count - at - 1, out, &sum);
    }
    sequence_done(&driver, &sequence);
    driver_done(&driver);
    free(logits);
    return sum;
}

static double contiguous(qr_model_t *model, const uint32_t *tokens, uint32_t count, FILE *out)
{
    qr_oracle_t *oracle;
    char message[512] = "";
    double sum = 0;
    float *logits = malloc(sizeof(float) * model->arch.vocabulary);
    driver_must(qr_oracle_new(model, count, &oracle, message, sizeof message), message);
    for (uint32_t i = 0; i < count; i++) {
        driver_must(qr_oracle_step(oracle, &tokens[i], 1, logits), "the contiguous decoder");
        rows_take(logits, 1, model->arch.vocabulary, tokens + i + 1, count - i - 1, out, &sum);
    }
    qr_oracle_destroy(&oracle);
    free(logits);
    return sum;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *tokens_path = NULL, *out_path = NULL;
    char tiny_path[] = "/tmp/quire-teacher-XXXXXX", message[512] = "";
    uint32_t tile = 64, count = 0, *tokens = NULL;
    qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = QR_ISA_AUTO, .threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    bool tiny = false, oracle = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tiny"))
            tiny = true;
        else if (!strcmp(argv[i], "--oracle"))
            oracle = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--model"))
            path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--tokens"))
            tokens_path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--logits"))
            out_path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--tile"))
            tile = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--isa"))
            config.isa = (uint32_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            config.threads = (uint32_t)atoi(argv[++i]);
        else
            driver_must(-QR_E_INVALID, "usage: bench_teacher [--tiny] [--model FILE] [--tokens FILE] [--logits FILE] [--tile N] [--isa N] "
                                       "[--threads N] [--oracle]");
    }
    if (tokens_path) tokens = tokens_read(tokens_path, &count);
    if (tiny) {
        qr_tiny_config_t shape;
        qr_tiny_config_init(&shape);
        int descriptor = mkstemp(tiny_path);
        driver_must(descriptor < 0 ? -QR_E_IO : qr_tiny_write(&shape, tiny_path), "writing the tiny model");
        (void)close(descriptor);
        path = tiny_path;
        if (!tokens) tokens = calloc(100, 4);
        for (uint32_t i = 0; !tokens_path && i < 100; i++) tokens[count++] = 3 + i * 37 % 256;
    }
    if (!path || !tokens) driver_must(-QR_E_INVALID, "needs --tiny, or --model FILE and --tokens FILE");
    qr_model_t *model;
    qr_device_t *device = NULL;
    FILE *out = out_path ? (strcmp(out_path, "-") ? fopen(out_path, "wb") : stdout) : NULL;
    driver_must(out_path && !out ? -QR_E_IO : 0, "opening --logits");
    driver_must(qr_model_open(path, &model, message, sizeof message), message);
    if (!oracle) driver_must(qr_device_new(&config, &device, message, sizeof message), message);
    if (!oracle) driver_must(qr_model_load(model, device, NULL, NULL, message, sizeof message), message);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    double sum = oracle ? contiguous(model, tokens, count, out) : paged(model, tile, tokens, count, out);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    fprintf(stderr, "%s: %u tokens in %.2f s", oracle ? "contiguous decoder" : qr_device_name(device), count, seconds);
    if (!out) fprintf(stderr, ", mean negative log likelihood %.6f", sum / (count - 1));
    fprintf(stderr, "\n");
    if (out && fflush(out)) driver_must(-QR_E_IO, "writing logits");
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    if (tiny) (void)unlink(tiny_path);
    free(tokens);
    return 0;
}
