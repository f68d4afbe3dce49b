/* link: qr_model */
/* oracle_test.c - the contiguous decoder against numpy over weights that the gguf package dequantised (tests/oracle/tiny.py), and its
 * manners.
 *
 *   test_oracle_test --write DIR    writes the models whose numbers oracle_vectors.h holds */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/oracle.h"
#include "tests/unit/model_file.h"
#include "tests/unit/oracle_vectors.h"

enum { SHAPES = 8, TOKENS = 60 };

static void shape_make(uint32_t index, qr_tiny_config_t *c)
{
    static const uint32_t formats[6] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};
    qr_tiny_config_init(c);
    c->seed = 900 + index;
    c->format = c->head_format = formats[index % 6];
    c->tied = index % 2 == 0;
    if (index == 6) c->layers = 4, c->window[1] = 7, c->window[2] = 33;                      /* sliding windows */
    if (index == 7) c->kv_heads = 1, c->dim = 32, c->rope_scale = 3, c->rope_theta = 250000; /* other heads and rotation */
    qr_tiny_config_fit(c);
}
static uint32_t token_at(uint32_t i) { return (i * 37 + 11 + i * i) % 320; }

static double nll_of(const float *logits, uint32_t token)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < 320; i++) most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < 320; i++) sum += exp((double)logits[i] - most);
    return most + log(sum) - (double)logits[token];
}

static qr_model_t *opened(const model_file_t *file)
{
    qr_model_t *model;
    char message[512] = "";
    int status = qr_model_open(file->path, &model, message, sizeof message);
    if (status) print_error("%s\n", message);
    assert_int_equal(status, 0);
    return model;
}

/* numpy computes in float32: 1e-4 nats is some tens of its roundings in a logit. */
static void test_values(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < SHAPES; s++) {
        qr_tiny_config_t config;
        qr_oracle_t *oracle;
        char message[256] = "";
        float logits[320];
        shape_make(s, &config);
        model_file_t file = model_file_tiny(&config);
        qr_model_t *model = opened(&file);
        assert_int_equal(qr_oracle_new(model, TOKENS, &oracle, message, sizeof message), 0);
        double worst = 0;
        for (uint32_t i = 0; i + 1 < TOKENS; i++) {
            uint32_t token = token_at(i);
            assert_int_equal(qr_oracle_step(oracle, &token, 1, logits), 0);
            worst = fmax(worst, fabs(nll_of(logits, token_at(i + 1)) - oracle_nll[s][i]));
        }
        print_message("shape %u: worst difference %.6f nats\n", s, worst);
        assert_true(worst < 1e-4);
        qr_oracle_destroy(&oracle);
        qr_model_destroy(&model);
        unlink(file.path);
    }
}

static void test_manners(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_oracle_t *oracle;
    char message[256] = "";
    float one[320], many[320];
    uint32_t tokens[10], bad = 320;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model = opened(&file);
    for (uint32_t i = 0; i < 10; i++) tokens[i] = token_at(i);
    assert_int_equal(qr_oracle_new(model, 10, &oracle, message, sizeof message), 0);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(qr_oracle_step(oracle, &tokens[i], 1, one), 0);
    assert_int_equal(qr_oracle_step(oracle, tokens, 1, one), -QR_E_CONTEXT);
    qr_oracle_reset(oracle);
    assert_int_equal(qr_oracle_step(oracle, &bad, 1, many), -QR_E_INVALID);
    assert_int_equal(qr_oracle_step(oracle, tokens, 10, many), 0); /* at once as one by one */
    assert_memory_equal(one, many, sizeof one);
    qr_oracle_destroy(&oracle);
    assert_null(oracle);
    qr_oracle_destroy(&oracle);
    assert_int_equal(truncate(file.path, 4096), 0); /* cut since: an error value */
    assert_int_equal(qr_oracle_new(model, 10, &oracle, message, sizeof message), -QR_E_TRUNCATED);
    assert_non_null(strstr(message, file.path));
    qr_model_destroy(&model);
    unlink(file.path);
}

int main(int argc, char **argv)
{
    for (uint32_t s = 0; argc == 3 && !strcmp(argv[1], "--write") && s < SHAPES; s++) {
        qr_tiny_config_t config;
        char path[512];
        shape_make(s, &config);
        (void)snprintf(path, sizeof path, "%s/shape%u.gguf", argv[2], s);
        if (qr_tiny_write(&config, path)) return 1;
    }
    if (argc == 3) return 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_manners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
