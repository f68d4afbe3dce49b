/* link: qr_model */
/* model_test.c - what a model is once opened and loaded: vocabulary, end tokens, fingerprint, frequencies. Cases MF-07, MF-13, PI-09.
 *
 * Digests of the fingerprint test come from tests/oracle/fingerprint.py (hashlib over what the gguf package reads). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/rope.h"
#include "model/sampler.h"
#include "model/sha256_bulk.h"
#include "model/vocabulary.h"
#include "tests/unit/driver.h"
#include "tests/unit/model_file.h"

static qr_model_t *opened(const char *path)
{
    qr_model_t *model;
    char message[512] = "";
    int status = qr_model_open(path, &model, message, sizeof message);
    if (status) print_error("%s\n", message);
    assert_int_equal(status, 0);
    return model;
}
static bool token_is(const qr_model_t *m, uint32_t token, const char *bytes, size_t count)
{
    const qr_vocabulary_t *v = &m->vocabulary;
    return v->offsets[token + 1] - v->offsets[token] == count && memcmp(v->bytes + v->offsets[token], bytes, count) == 0;
}

static void test_vocabulary(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_model_t *m = opened(file.path);
    assert_int_equal(m->vocabulary.count, 320);
    assert_true(token_is(m, 0, "<|endoftext|>", 13) && token_is(m, 2, "<|im_end|>", 10));
    for (uint32_t b = 0; b < 256; b++) assert_true(token_is(m, 3 + b, (const char[]){(char)b}, 1));
    assert_true(token_is(m, 259, "he", 2));
    uint32_t spaces = 0; /* merged pairs with a space keep it as a space */
    for (uint32_t t = 259; t < 320; t++) spaces += m->vocabulary.bytes[m->vocabulary.offsets[t]] == ' ';
    assert_true(spaces > 10);
    assert_int_equal(m->vocabulary.flags[0], QR_TOKEN_SPECIAL | QR_TOKEN_END);
    assert_int_equal(m->vocabulary.flags[1], QR_TOKEN_SPECIAL);
    assert_int_equal(m->vocabulary.flags[2], QR_TOKEN_SPECIAL | QR_TOKEN_END);
    assert_int_equal(m->vocabulary.flags[3], 0);
    assert_int_equal(m->end_token_count, 2);
    assert_int_equal(m->bos_token, 1);
    assert_false(m->add_bos);
    assert_non_null(strstr(m->chat_template, "<|im_start|>"));
    assert_string_equal(m->name, "tiny");
    assert_int_equal(m->layout.context_tokens, 512);
    qr_model_destroy(&m);
    unlink(file.path);
}

static void test_byte_alphabet(void **state)
{
    (void)state;
    bool seen[512] = {false};
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = qr_character_of_byte((uint8_t)b);
        assert_true(c < 324 && !seen[c]);
        seen[c] = true;
        assert_int_equal(qr_byte_of_character(c), b);
    }
    assert_int_equal(qr_character_of_byte(' '), 0x120); /* the well-known ones */
    assert_int_equal(qr_character_of_byte('\n'), 0x10a);
    assert_int_equal(qr_character_of_byte(0), 0x100);
    assert_int_equal(qr_character_of_byte(0xad), 0x143);
    assert_int_equal(qr_character_of_byte('A'), 'A');
    assert_int_equal(qr_byte_of_character(324), -1);
    assert_int_equal(qr_byte_of_character(' '), -1);
}

static void test_token_kinds(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config);
    config.vocabulary = 8;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    static const char *const texts[] = {"<unk>", "<|eot_id|>", "\xc4\xa0hi", "  user ", "\xe2\x82\xac", "x\xc4\x8a", "", "<0x0A>"};
    const uint32_t kinds[] = {2, 3, 1, 4, 1, 1, 1, 5};
    qr_gguf_writer_strings(writer, "tokenizer.ggml.tokens", texts, 8);
    qr_gguf_writer_u32s(writer, "tokenizer.ggml.token_type", QR_GGUF_I32, kinds, 8);
    qr_gguf_writer_strings(writer, "tokenizer.ggml.merges", NULL, 0);
    qr_gguf_writer_drop(writer, "tokenizer.chat_template");
    qr_gguf_writer_drop(writer, "general.name");
    model_file_t file = model_file_save(&writer);
    qr_model_t *m = opened(file.path);
    assert_true(token_is(m, 2, " hi", 3) && token_is(m, 5, "x\n", 2) && token_is(m, 6, "", 0));
    assert_true(token_is(m, 3, "  user ", 7));      /* literal */
    assert_true(token_is(m, 4, "\xe2\x82\xac", 3)); /* outside the alphabet: as it stands */
    /* The file's end token is " hi", of type normal: an answer ends with it and does not show it. */
    const uint8_t ends = QR_TOKEN_SPECIAL | QR_TOKEN_END, flags[] = {QR_TOKEN_SPECIAL, ends, ends, 0, 0, 0, 0, QR_TOKEN_SPECIAL};
    assert_memory_equal(m->vocabulary.flags, flags, 8);
    assert_string_equal(m->chat_template, "");
    assert_string_equal(m->name, strrchr(file.path, '/') + 1);
    qr_model_destroy(&m);
    unlink(file.path);
}

static void refused(qr_gguf_writer_t *writer, int code, const char *word)
{
    qr_model_t *model = NULL;
    char message[512] = "";
    model_file_t file = model_file_save(&writer);
    int status = qr_model_open(file.path, &model, message, sizeof message);
    if (status != -code || !strstr(message, word)) print_error("%s: %s\n", qr_error_name(status), message);
    assert_int_equal(status, -code);
    assert_non_null(strstr(message, word));
    unlink(file.path);
}

static void test_vocabulary_lies(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config);
    static const char *const many[] = {"a", "b", "c", "d"};
    const uint32_t kinds[] = {1, 1, 1};
    config.vocabulary = 3;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_strings(writer, "tokenizer.ggml.tokens", many, 4);
    refused(writer, QR_E_FORMAT, "tokenizer.ggml.tokens has 4 elements, but tensor token_embd.weight has 3 rows");
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_u32s(writer, "tokenizer.ggml.token_type", QR_GGUF_I32, kinds, 2);
    refused(writer, QR_E_FORMAT, "tokenizer.ggml.token_type has 2");
    /* a token whose text no message could carry */
    static char huge[QR_TOKEN_BYTES_MAX + 2];
    memset(huge, 'A', sizeof huge - 1);
    const char *const with_huge[] = {"a", "b", huge};
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_strings(writer, "tokenizer.ggml.tokens", with_huge, 3);
    refused(writer, QR_E_LIMIT, "token 2 has 65537 bytes; up to 65536");
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", 3);
    refused(writer, QR_E_FORMAT, "tokenizer.ggml.eos_token_id is 3");
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", true);
    qr_gguf_writer_drop(writer, "tokenizer.ggml.bos_token_id");
    refused(writer, QR_E_FORMAT, "tokenizer.ggml.bos_token_id is missing");
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    qr_gguf_writer_raw(writer, "tokenizer.chat_template", QR_GGUF_STRING, "\3\0\0\0\0\0\0\0a\0b", 11);
    refused(writer, QR_E_FORMAT, "tokenizer.chat_template contains a NUL");
}

/* ---- identity --------------------------------------------------------------------------------------------------------------------- */

static void fingerprint_of(qr_gguf_writer_t *writer, char ret_hex[65], char *ret_lines)
{
    model_file_t file = model_file_save(&writer);
    qr_device_t *device = device_new(QR_ISA_SCALAR, 1);
    qr_model_t *model = model_load(file.path, device);
    for (int i = 0; i < 32; i++) (void)snprintf(ret_hex + 2 * i, 3, "%02x", model->layout.fingerprint.bytes[i]);
    if (ret_lines) memcpy(ret_lines, model->fingerprint_lines, sizeof model->fingerprint_lines);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}
static qr_gguf_writer_t *tiny(uint64_t seed)
{
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config);
    config.seed = seed;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    return writer;
}

static void test_fingerprint(void **state)
{
    (void)state;
    char hex[65], lines[4096];
    fingerprint_of(tiny(1), hex, lines);
    assert_non_null(strstr(lines, "\nweights=sha256:0bbef782baa2ba87e45ea7b37993887643c5e9f660b1bfffbfdd3c131aa7b26e\n"));
    assert_string_equal(hex, "cbba08907b406dd099ee4589cdcfeb37b20d8ccde77c1e54d7643bedd3c624a4");
    char previous[4096] = ""; /* sorted, one key=value a line */
    for (char *line = lines; *line;) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        assert_non_null(strchr(line, '='));
        assert_true(strcmp(previous, line) < 0);
        (void)snprintf(previous, sizeof previous, "%s", line);
        line = end + 1;
    }
}

/* Same name, shapes and tokenizer, other weights: another identity. A template edit keeps it, a rotation change does not. */
static void test_PI_09(void **state)
{
    (void)state;
    char first[65], other[65];
    fingerprint_of(tiny(1), first, NULL);
    fingerprint_of(tiny(1), other, NULL);
    assert_string_equal(first, other);
    fingerprint_of(tiny(2), other, NULL);
    assert_string_not_equal(first, other);
    qr_gguf_writer_t *writer = tiny(1);
    qr_gguf_writer_string(writer, "tokenizer.chat_template", "{{ messages }}");
    qr_gguf_writer_string(writer, "general.name", "renamed");
    fingerprint_of(writer, other, NULL);
    assert_string_equal(first, other);
    writer = tiny(1);
    qr_gguf_writer_f32(writer, "llama.rope.freq_base", 10001);
    fingerprint_of(writer, other, NULL);
    assert_string_not_equal(first, other);
    writer = tiny(1);
    qr_gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 2e-5f);
    fingerprint_of(writer, other, NULL);
    assert_string_not_equal(first, other);
    writer = tiny(1);
    qr_gguf_writer_f32(writer, "llama.rope.scaling.factor", 2);
    fingerprint_of(writer, other, NULL);
    assert_string_not_equal(first, other);
    writer = tiny(1);
    qr_gguf_writer_u32s(writer, "llama.attention.sliding_window", QR_GGUF_U32, (uint32_t[]){0, 64}, 2);
    fingerprint_of(writer, other, NULL);
    assert_string_not_equal(first, other);
}

static void test_bulk_digest(void **state)
{
    (void)state;
    static uint8_t data[100003];
    qr_prng_t prng;
    qr_prng_init(&prng, 3);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)qr_prng_next(&prng);
    for (uint32_t run = 0; run < 200; run++) { /* the same digest as base's plain one, whatever the pieces */
        qr_sha256_t plain, bulk;
        uint8_t want[32], got[32];
        size_t count = run < 4 ? run * 64 : (size_t)qr_prng_below(&prng, run < 100 ? 2000 : sizeof data), at = 0;
        qr_sha256_init(&plain), qr_sha256_init(&bulk);
        qr_sha256_add(&plain, data, count);
        while (at < count) {
            size_t piece = 1 + (size_t)qr_prng_below(&prng, count - at);
            qr_sha256_add_bulk(&bulk, data + at, piece);
            at += piece;
        }
        qr_sha256_end(&plain, want), qr_sha256_end(&bulk, got);
        assert_memory_equal(want, got, 32);
    }
}

/* Phases against the C library's cosines in long double: 3.0e-8 is the rounding to float that arithmetic 3 measured, the steps add less. */
static void test_rope_steps(void **state)
{
    (void)state;
    static const struct {
        double theta, scale;
        uint32_t dim;
    } cases[] = {{1e4, 1, 64}, {1e4, 1, 128}, {5e5, 1, 64}, {5e5, 8, 128}, {1e5, 1, 64}, {1e4, 2.5, 8}, {1e6, 1, 256}, {1e12, 1, 16}};
    static const uint32_t positions[] = {0, 1, 2, 100, 4095, 8191, 65537, 131071};
    for (size_t c = 0; c < QR_COUNT(cases); c++) {
        uint64_t steps[128];
        qr_rope_steps(cases[c].theta, cases[c].scale, cases[c].dim, steps);
        for (uint32_t i = 0; i < cases[c].dim / 2; i++)
            for (size_t p = 0; p < QR_COUNT(positions); p++) {
                long double turn = 2 * acosl(-1), angle = positions[p] * powl((long double)cases[c].theta, -2.0L * i / cases[c].dim) /
                                                          (long double)cases[c].scale;
                long double phase = (long double)(positions[p] * steps[i]) * 0x1p-64L * turn;
                assert_true(fabsl(cosl(phase) - cosl(angle)) < 1e-9L && fabsl(sinl(phase) - sinl(angle)) < 1e-9L);
            }
    }
}

/* ---- files that end early, rows beyond the tokens ------------------------------------------------------------------------------------ */

static void test_MF_07(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model = opened(file.path);
    qr_device_t *device = device_new(QR_ISA_SCALAR, 1);
    char message[512] = "";
    assert_int_equal(truncate(file.path, (off_t)qr_gguf_bytes(model->file) - 40), 0); /* by another process, between open and load */
    assert_int_equal(qr_model_load(model, device, NULL, NULL, message, sizeof message), -QR_E_TRUNCATED);
    assert_non_null(strstr(message, "output_norm.weight"));
    qr_model_destroy(&model);
    assert_int_equal(qr_model_open(file.path, &model, message, sizeof message), -QR_E_TRUNCATED);
    unlink(file.path);

    file = model_file_tiny(&config); /* and after load: the weights are ours already */
    model = model_load(file.path, device);
    driver_t driver;
    sequence_t s;
    uint32_t tokens[20] = {5, 6, 7, 8};
    float *before = malloc(sizeof(float) * 320 * 20), *after = malloc(sizeof(float) * 320 * 20);
    driver_init(&driver, model, 16, 32, 1, 32, 32, false, 1);
    sequence_init(&driver, &s, tokens);
    driver_step(&driver, &(span_t){&s, 20}, 1, &before, NULL, NULL);
    assert_int_equal(truncate(file.path, 10), 0);
    s.done = 0;
    driver_step(&driver, &(span_t){&s, 20}, 1, &after, NULL, NULL);
    assert_memory_equal(before, after, sizeof(float) * 320 * 20);
    sequence_done(&driver, &s);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(before), free(after);
}

static void test_MF_13(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config); /* 100 tokens, 128 rows; row 120 points where the stream points */
    config.vocabulary = 128, config.tokens = 100, config.head_format = QR_FORMAT_F32, config.tied = false;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    float *head = calloc(128 * 64, sizeof(float)), *norm = calloc(64, sizeof(float));
    qr_prng_t prng;
    qr_prng_init(&prng, 5);
    for (uint32_t i = 0; i < 128 * 64; i++) head[i] = ((float)qr_prng_below(&prng, 2000) / 1000 - 1) * 0.2f;
    for (uint32_t i = 0; i < 64; i++) norm[i] = 1, head[120 * 64 + i] = i == 0 ? 50.0f : 0, head[121 * 64 + i] = i == 0 ? -50.0f : 0;
    qr_gguf_writer_tensor(writer, "output.weight", QR_FORMAT_F32, 2, (uint64_t[]){64, 128}, head, 128 * 64 * sizeof(float));
    model_file_t file = model_file_save(&writer);
    qr_device_t *device = device_new(QR_ISA_AUTO, 1);
    qr_model_t *model = model_load(file.path, device);
    assert_int_equal(model->vocabulary.count, 100);
    assert_int_equal(model->arch.vocabulary, 128);
    driver_t driver;
    sequence_t s;
    uint32_t tokens[4] = {5, 6, 7, 8}, best = 0;
    float *logits = malloc(sizeof(float) * 128 * 4), *last = logits + 3 * 128;
    driver_init(&driver, model, 16, 32, 1, 32, 32, false, 1);
    sequence_init(&driver, &s, tokens);
    driver_step(&driver, &(span_t){&s, 4}, 1, &logits, NULL, NULL);
    for (uint32_t i = 1; i < 128; i++) best = last[i] > last[best] ? i : best;
    assert_true(best == 120 || best == 121); /* the trap is set */
    best = 0;
    for (uint32_t i = 1; i < 100; i++) best = last[i] > last[best] ? i : best;
    void *scratch = malloc(qr_sampler_scratch_bytes(model->vocabulary.count));
    float logprob;
    qr_sampling_t greedy = {0, 1, 0, 0, 1}, sampled = {1, 1, 0, 0, 1};
    assert_int_equal(qr_sampler_draw(&greedy, last, model->vocabulary.count, 4, 0, scratch, &logprob), best);
    double sum = 0;
    for (uint32_t i = 0; i < 100; i++) sum += exp((double)(last[i] - last[best]));
    assert_true(fabs((double)logprob + log(sum)) < 1e-5); /* rows beyond have no share of the softmax */
    for (uint32_t i = 0; i < 1000; i++) assert_true(qr_sampler_draw(&sampled, last, model->vocabulary.count, i, 0, scratch, NULL) < 100);
    sequence_done(&driver, &s);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(head), free(norm), free(logits), free(scratch);
}

/* ---- loading ---------------------------------------------------------------------------------------------------------------------- */

static void note(void *context, uint64_t done, uint64_t total)
{
    uint64_t *seen = context;
    assert_true(done > seen[0] && done <= total);
    seen[0] = done, seen[1] = total;
}
static void test_progress(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model = opened(file.path);
    qr_device_t *device = device_new(QR_ISA_SCALAR, 1);
    uint64_t seen[2] = {0, 0};
    char message[256];
    assert_int_equal(qr_model_load(model, device, note, seen, message, sizeof message), 0);
    assert_true(seen[0] == seen[1] && seen[0] > 10000);
    assert_ptr_equal(model->head.buffer.host, model->embedding.buffer.host);
    qr_model_destroy(&model);
    assert_null(model);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabulary),      cmocka_unit_test(test_byte_alphabet), cmocka_unit_test(test_token_kinds),
        cmocka_unit_test(test_vocabulary_lies), cmocka_unit_test(test_fingerprint),   cmocka_unit_test(test_PI_09),
        cmocka_unit_test(test_bulk_digest),     cmocka_unit_test(test_rope_steps),    cmocka_unit_test(test_MF_07),
        cmocka_unit_test(test_MF_13),           cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
