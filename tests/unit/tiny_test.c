/* link: qr_model */
/* tiny_test.c - seeded tiny models: the same bytes for the same seed, encoders that lose no more than half a step, widths that fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/prng.h"
#include "tests/unit/model_file.h"

static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};

static void test_same_seed_same_bytes(void **state)
{
    (void)state;
    for (size_t f = 0; f < QR_COUNT(formats); f++) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.format = config.head_format = formats[f];
        qr_tiny_config_fit(&config);
        uint8_t *bytes[3];
        size_t counts[3];
        for (int i = 0; i < 3; i++) {
            qr_gguf_writer_t *writer;
            config.seed = i == 2 ? 8 : 7;
            assert_int_equal(qr_tiny_build(&config, &writer), 0);
            assert_int_equal(qr_gguf_writer_encode(writer, &bytes[i], &counts[i]), 0);
            qr_gguf_writer_destroy(&writer);
            assert_null(writer);
        }
        assert_true(counts[0] == counts[1] && counts[0] == counts[2]);
        assert_memory_equal(bytes[0], bytes[1], counts[0]);
        assert_memory_not_equal(bytes[0], bytes[2], counts[0]);
        for (int i = 0; i < 3; i++) free(bytes[i]);
    }
}

/* Half a quantisation step (plus the rounding of its fp16 scale), by format, as a share of the largest value. */
static void test_encoders(void **state)
{
    (void)state;
    static const double bounds[] = {0, 0x1p-11, 0.5 / 127 + 0.001, 0.5 / 7 + 0.001, 2 * 0.5 / 15 + 0.002, 0.5 / 31 + 0.006};
    float values[512], back[512];
    uint8_t row[512 * 4];
    qr_prng_t prng;
    qr_prng_init(&prng, 12);
    for (uint32_t run = 0; run < 200; run++)
        for (size_t f = 0; f < QR_COUNT(formats); f++) {
            for (uint32_t i = 0; i < 512; i++) values[i] = (float)qr_prng_below(&prng, 1 << 20) / (1 << 19) - 1;
            if (run == 0) memset(values, 0, sizeof values);
            qr_tiny_row_encode(formats[f], values, 512, row);
            qr_format_row_decode(formats[f], row, 512, back);
            for (uint32_t i = 0; i < 512; i++) {
                if (fabs((double)values[i] - (double)back[i]) > bounds[f])
                    print_error("format %u: %g became %g\n", formats[f], (double)values[i], (double)back[i]);
                assert_true(fabs((double)values[i] - (double)back[i]) <= bounds[f]);
            }
        }
}

static void test_widths(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config);
    config.format = QR_FORMAT_Q6_K;
    assert_int_equal(qr_tiny_build(&config, &writer), -QR_E_INVALID);
    qr_tiny_config_fit(&config);
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_destroy(&writer);
    qr_tiny_config_init(&config);
    assert_int_equal(qr_tiny_write(&config, "/nonexistent/x.gguf"), -QR_E_IO);
}

/* Merges are "left right" of two tokens that exist, and make the token that stands at their place. */
static void test_merges(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.vocabulary = 1000;
    model_file_t file = model_file_tiny(&config);
    qr_gguf_t *gguf;
    const qr_gguf_entry_t *tokens, *merges;
    char message[256];
    assert_int_equal(qr_gguf_open(file.path, &gguf, message, sizeof message), 0);
    assert_int_equal(qr_gguf_get_array(gguf, "tokenizer.ggml.tokens", QR_GGUF_STRING, &tokens, message, sizeof message), 0);
    assert_int_equal(qr_gguf_get_array(gguf, "tokenizer.ggml.merges", QR_GGUF_STRING, &merges, message, sizeof message), 0);
    assert_true(tokens->count == 1000 && merges->count > 600);
    uint64_t token_at = 0, merge_at = 0;
    qr_gguf_string_t token, merge, texts[1000];
    for (uint32_t t = 0; t < 1000; t++) assert_true(qr_gguf_string_next(tokens, &token_at, &texts[t]));
    for (uint32_t m = 0; m < merges->count; m++) {
        char joined[32];
        assert_true(qr_gguf_string_next(merges, &merge_at, &merge) && merge.bytes < sizeof joined);
        token = texts[QR_TINY_TOKENS_MIN + m];
        const char *space = memchr(merge.data, ' ', merge.bytes);
        assert_non_null(space);
        size_t left = (size_t)(space - merge.data), right = merge.bytes - left - 1;
        memcpy(joined, merge.data, left), memcpy(joined + left, space + 1, right);
        assert_true(token.bytes == left + right && memcmp(token.data, joined, token.bytes) == 0);
    }
    for (uint32_t a = 0; a < 1000; a++) /* no text stands twice */
        for (uint32_t b = a + 1; b < 1000; b++)
            assert_false(texts[a].bytes == texts[b].bytes && memcmp(texts[a].data, texts[b].data, texts[a].bytes) == 0);
    qr_gguf_close(&gguf);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_seed_same_bytes), cmocka_unit_test(test_encoders),
                                       cmocka_unit_test(test_widths), cmocka_unit_test(test_merges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
