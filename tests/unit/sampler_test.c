/* link: qr_model */
/* sampler_test.c - draws against exact rational arithmetic (sampler_vectors.h), against a full sort, and case NU-05. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/params.h"
#include "base/philox.h"
#include "base/prng.h"
#include "model/sampler.h"
#include "tests/unit/sampler_vectors.h"

static uint32_t draw(const qr_sampling_t *s, const float *logits, uint32_t count, uint32_t position, uint32_t choice, float *logprob)
{
    void *scratch = malloc(qr_sampler_scratch_bytes(count)); /* exact size: the sanitizer sees a step outside */
    uint32_t token = qr_sampler_draw(s, logits, count, position, choice, scratch, logprob);
    for (uint32_t isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        float other = 0;
        assert_int_equal(qr_sampler_draw_as(isa, s, logits, count, position, choice, scratch, logprob ? &other : NULL), token);
        assert_true(!logprob || memcmp(&other, logprob, sizeof other) == 0);
    }
    free(scratch);
    return token;
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof vectors[0]; v++) {
        float logits[256];
        memcpy(logits, vectors[v].logits, vectors[v].count * sizeof(float));
        qr_sampling_t s = {vectors[v].temperature, vectors[v].top_p, vectors[v].min_p, vectors[v].top_k, vectors[v].seed};
        assert_int_equal(draw(&s, logits, vectors[v].count, vectors[v].position, vectors[v].choice, NULL), vectors[v].token);
    }
}

/* ---- a plain sampler: sorts everything ----------------------------------------------------------------------------------------- */

static float plain_exp2n(float x)
{
    static const float c[] = {0x1.41fbbap-13f, 0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
    if (!(x >= -64)) return 0;
    volatile float t = x + 12582912.0f, n = t - 12582912.0f, f = x - n;
    float p = c[0];
    for (int i = 1; i < 7; i++) p = fmaf(p, f, c[i]);
    return ldexpf(p, (int)n);
}
typedef struct plain {
    float value;
    uint32_t id;
    uint64_t weight;
} plain_t;
static int plain_order(const void *a, const void *b)
{
    const plain_t *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : x->id < y->id ? -1 : 1;
}
static uint32_t plain_draw(const qr_sampling_t *s, const float *logits, uint32_t count, uint32_t position, uint32_t choice)
{
    static plain_t c[8192];
    for (uint32_t i = 0; i < count; i++) {
        volatile float value = logits[i] / s->temperature;
        c[i] = (plain_t){value, i, 0};
    }
    qsort(c, count, sizeof *c, plain_order);
    uint32_t kept = s->top_k && s->top_k < count ? s->top_k : count;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        volatile float below = c[i].value - c[0].value, exponent = below * 0x1.715476p+0f;
        c[i].weight = (uint64_t)(plain_exp2n(exponent) * 0x1p40f);
        if (i < kept) total += c[i].weight;
    }
    if (s->top_p < 1) {
        long double exact = (long double)s->top_p * (long double)total; /* 24 + 54 bits may not fit 64: vectors cover the edge */
        uint64_t target = (uint64_t)ceill(exact), sum = 0;
        uint32_t head = 0;
        while (head < kept && (head == 0 || sum < target)) sum += c[head++].weight;
        kept = head;
    }
    total = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (s->min_p > 0 && (double)c[i].weight < (double)s->min_p * 0x1p40) c[i].weight = 0;
        total += c[i].weight;
    }
    uint64_t r = (uint64_t)((unsigned __int128)qr_philox_draw(s->seed, position, choice) * total >> 64), sum = 0;
    for (uint32_t i = 0; i < kept; i++)
        if ((sum += c[i].weight) > r) return c[i].id;
    abort();
}

static void test_against_full_sort(void **state)
{
    (void)state;
    static float logits[8192];
    qr_prng_t prng;
    qr_prng_init(&prng, 4711);
    for (uint32_t run = 0; run < 3000; run++) {
        static const float temperatures[] = {0.05f, 0.5f, 1.0f, 1.0f, 2.0f, 10.0f}, heads[] = {1, 1, 0.3f, 0.95f, 0.9999f},
                           floors[] = {0, 0, 0.0001f, 0.1f, 1};
        uint32_t count = 1 + (uint32_t)qr_prng_below(&prng, run % 50 ? 300 : 8000);
        float wide = (float)(1 << qr_prng_below(&prng, 7)) / 2; /* flat to steep: flat ones fall behind the head */
        for (uint32_t i = 0; i < count; i++) {
            logits[i] = ((float)qr_prng_below(&prng, 1 << 20) / (1 << 19) - 1) * wide;
            if (qr_prng_one_in(&prng, 5)) logits[i] = logits[qr_prng_below(&prng, i + 1)]; /* ties */
            if (qr_prng_one_in(&prng, 40)) logits[i] = qr_prng_one_in(&prng, 2) ? -0.0f : 0.0f;
        }
        qr_sampling_t s = {temperatures[qr_prng_below(&prng, 6)], heads[qr_prng_below(&prng, 5)], floors[qr_prng_below(&prng, 5)],
                           qr_prng_one_in(&prng, 2) ? 0 : (uint32_t)qr_prng_below(&prng, count + 5), qr_prng_next(&prng)};
        uint32_t position = (uint32_t)qr_prng_below(&prng, 100000);
        for (uint32_t choice = 0; choice < 3; choice++)
            assert_int_equal(draw(&s, logits, count, position, choice, NULL), plain_draw(&s, logits, count, position, choice));
    }
}

/* ---- NU-05 ------------------------------------------------------------------------------------------------------------------------ */

enum { DRAWS = 20000 };
static void frequencies(qr_sampling_t s, double ret[4])
{
    const float logits[4] = {logf(0.05f), logf(0.55f), logf(0.10f), logf(0.30f)};
    memset(ret, 0, 4 * sizeof *ret);
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t token = draw(&s, logits, 4, i, 0, NULL);
        assert_true(token < 4);
        ret[token] += 1.0 / DRAWS;
    }
}
static void near(const double f[4], double a, double b, double c, double d)
{
    const double want[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) assert_true(want[i] == 0 ? f[i] == 0 : fabs(f[i] - want[i]) < 0.02);
}

static void test_NU_05(void **state)
{
    (void)state;
    double f[4];
    const qr_sampling_t plain = {1, 1, 0, 0, 1};
    qr_sampling_t s = plain;
    frequencies(s, f); /* (a) top_k 0: off; (d) top_p 1: off */
    near(f, 0.05, 0.55, 0.10, 0.30);
    s.top_k = 1; /* (b) */
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
    s = plain, s.top_p = 0; /* (c) */
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
    s = plain, s.min_p = 0.5f; /* (e) */
    frequencies(s, f);
    near(f, 0, 0.647, 0, 0.353);
    s = plain, s.top_k = 2, s.top_p = 0.8f; /* (f): top_k first, then top_p of what is left */
    frequencies(s, f);
    near(f, 0, 0.647, 0, 0.353);
    s = plain, s.temperature = 0; /* (g) */
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
    s = plain, s.top_k = 100; /* (h) */
    frequencies(s, f);
    near(f, 0.05, 0.55, 0.10, 0.30);
    /* filters that would remove everything keep the best one; (i), logit_bias, is not part of this sampler's parameters */
    s = (qr_sampling_t){1, 0, 1, 1, 1};
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
    s = (qr_sampling_t){1e-42f, 1, 0, 0, 1}; /* so cold that the quotient overflows: greedy */
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
    s = (qr_sampling_t){NAN, NAN, NAN, 0, 1};
    frequencies(s, f);
    near(f, 0, 1, 0, 0);
}

static void test_greedy_ties(void **state)
{
    (void)state;
    qr_sampling_t s = {0, 1, 0, 0, 9};
    static float logits[1000];
    for (uint32_t i = 0; i < 1000; i++) logits[i] = -5;
    logits[130] = logits[700] = 3;
    assert_int_equal(draw(&s, logits, 1000, 0, 0, NULL), 130);
    logits[130] = -0.0f, logits[700] = 0.0f; /* equal values: the smaller id */
    assert_int_equal(draw(&s, logits, 1000, 0, 0, NULL), 130);
    logits[130] = -3e38f, logits[700] = -3e38f;
    assert_int_equal(draw(&s, logits, 1000, 0, 0, NULL), 0);
    assert_int_equal(draw(&s, logits, 1, 0, 0, NULL), 0);
    for (uint32_t i = 0; i < 1000; i++) logits[i] = -3.4e38f;
    assert_int_equal(draw(&s, logits, 1000, 0, 0, NULL), 0);
}

static void test_logprobs(void **state)
{
    (void)state;
    static float logits[5000];
    qr_prng_t prng;
    qr_prng_init(&prng, 99);
    for (uint32_t run = 0; run < 200; run++) {
        uint32_t count = 1 + (uint32_t)qr_prng_below(&prng, 5000);
        double most = -1e300, sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            logits[i] = ((float)qr_prng_below(&prng, 1 << 20) / (1 << 19) - 1) * 20;
            most = fmax(most, (double)logits[i]);
        }
        for (uint32_t i = 0; i < count; i++) sum += exp((double)logits[i] - most);
        qr_sampling_t s = {run % 2 ? 0.7f : 0, 0.9f, 0.01f, run % 3 ? 0 : 40, run};
        float logprob;
        uint32_t token = draw(&s, logits, count, run, 0, &logprob); /* of the raw softmax, whatever the filters */
        assert_true(fabs((double)logprob - ((double)logits[token] - most - log(sum))) < 1e-5);
        assert_true(logprob <= 1e-6f);
    }
}

/* The draw depends on seed, position and choice and on nothing else; another one of each gives another stream. */
static void test_counters(void **state)
{
    (void)state;
    float logits[64] = {0};
    uint32_t same[3] = {0};
    for (uint32_t i = 0; i < 256; i++) {
        qr_sampling_t s = {1, 1, 0, 0, 5}, other = {1, 1, 0, 0, 6};
        uint32_t token = draw(&s, logits, 64, i, 0, NULL);
        assert_int_equal(token, draw(&s, logits, 64, i, 0, NULL));
        same[0] += token == draw(&other, logits, 64, i, 0, NULL);
        same[1] += token == draw(&s, logits, 64, i + 1000, 0, NULL);
        same[2] += token == draw(&s, logits, 64, i, 1, NULL);
    }
    for (int i = 0; i < 3; i++) assert_in_range(same[i], 0, 20); /* 4 expected */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),     cmocka_unit_test(test_against_full_sort), cmocka_unit_test(test_NU_05),
        cmocka_unit_test(test_greedy_ties), cmocka_unit_test(test_logprobs),          cmocka_unit_test(test_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
