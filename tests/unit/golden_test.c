/* link: qr_model */
/* golden_test.c - SmolLM2 teacher-forced against the committed numbers of numpy (tests/oracle/smollm2.golden), on the file $QUIRE_MODEL
 * names.
 *
 * Bounds: perplexity within 0.5 % over the first 512 tokens (1.5 % over fewer: int8 noise of single tokens shows), the eight best log
 * probabilities within 0.1 nats in the mean, and another argmax only where the reference's two best are less than 0.5 apart.
 * $QUIRE_GOLDEN_TOKENS: how many (default 256, 48 in sanitizer builds). tests/oracle/reference.py judges the whole distribution. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/driver.h"
#include "tests/unit/model_file.h"

enum { TOKENS_MAX = 2048, TILE = 64, BEST = 8 };

typedef struct golden {
    float nll, logprobs[BEST];
    uint16_t best[BEST];
} golden_t;

static uint32_t tokens[TOKENS_MAX];
static golden_t golden[TOKENS_MAX];

static void numbers_read(void)
{
    char magic[8];
    uint32_t count;
    FILE *file = fopen("tests/oracle/smollm2.tokens", "r");
    assert_non_null(file);
    for (uint32_t i = 0; i < TOKENS_MAX; i++) assert_int_equal(fscanf(file, "%u", &tokens[i]), 1);
    fclose(file);
    file = fopen("tests/oracle/smollm2.golden", "rb");
    assert_non_null(file);
    assert_int_equal(fread(magic, 1, 8, file), 8);
    assert_memory_equal(magic, "QRGOLD1", 8);
    assert_int_equal(fread(&count, 4, 1, file), 1);
    assert_int_equal(count, TOKENS_MAX - 1);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(fread(&golden[i].nll, 4, 1, file), 1);
        assert_int_equal(fread(golden[i].best, 2, BEST, file), BEST);
        assert_int_equal(fread(golden[i].logprobs, 4, BEST, file), BEST);
    }
    fclose(file);
}

typedef struct sums {
    double nll, nll_golden, best;
    uint32_t count, differ;
} sums_t;

static void row_judge(const float *logits, uint32_t vocabulary, uint32_t at, sums_t *sums)
{
    uint32_t argmax = 0;
    for (uint32_t i = 1; i < vocabulary; i++) argmax = logits[i] > logits[argmax] ? i : argmax;
    double sum = 0, most = (double)logits[argmax];
    for (uint32_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - most);
    double scale = most + log(sum);
    const golden_t *g = &golden[at];
    if (argmax != g->best[0]) {
        if (g->logprobs[0] - g->logprobs[1] >= 0.5f) print_error("position %u: token %u, the reference has %u\n", at, argmax, g->best[0]);
        assert_true(g->logprobs[0] - g->logprobs[1] < 0.5f);
        sums->differ++;
    }
    for (int b = 0; b < BEST; b++) sums->best += fabs((double)logits[g->best[b]] - scale - (double)g->logprobs[b]) / BEST;
    sums->nll += scale - (double)logits[tokens[at + 1]];
    sums->nll_golden += (double)g->nll;
    sums->count++;
}

static void test_smollm2(void **state)
{
    (void)state;
#ifdef QR_SANITIZED
    uint32_t count = 48;
#else
    uint32_t count = 256;
#endif
    if (getenv("QUIRE_GOLDEN_TOKENS")) count = (uint32_t)qr_min_u64((uint64_t)atoi(getenv("QUIRE_GOLDEN_TOKENS")), TOKENS_MAX - 1);
    numbers_read();
    qr_device_t *device = device_new(QR_ISA_AUTO, 2);
    qr_model_t *model = model_load(getenv("QUIRE_MODEL"), device);
    driver_t driver;
    sequence_t s;
    sums_t sums = {0};
    float *logits = malloc(sizeof(float) * TILE * model->arch.vocabulary);
    assert_int_equal(model->arch.vocabulary, 49152); /* SmolLM2: examples/get-model.sh smollm2 */
    driver_init(&driver, model, 16, TOKENS_MAX, 1, TILE, TILE, true, 1);
    sequence_init(&driver, &s, tokens);
    while (s.done < count) {
        uint32_t at = s.done;
        span_t span = {&s, qr_min_u32(TILE, count - at)};
        driver_step(&driver, &span, 1, &logits, NULL, NULL);
        for (uint32_t r = 0; r < span.rows; r++)
            row_judge(logits + (size_t)r * model->arch.vocabulary, model->arch.vocabulary, at + r, &sums);
    }
    double ratio = exp((sums.nll - sums.nll_golden) / sums.count);
    print_message("%u tokens: perplexity %.4f against %.4f (%+.3f %%), best eight differ by %.4f nats, argmax differs %u times\n",
                  sums.count, exp(sums.nll / sums.count), exp(sums.nll_golden / sums.count), 100 * (ratio - 1), sums.best / sums.count,
                  sums.differ);
    assert_true(fabs(ratio - 1) < (count >= 512 ? 0.005 : 0.015));
    assert_true(sums.best / sums.count < 0.1);
    sequence_done(&driver, &s);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    free(logits);
}

int main(void)
{
    if (!getenv("QUIRE_MODEL")) {
        printf("QUIRE_MODEL names no file; examples/get-model.sh smollm2 prints one\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smollm2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
