/* link: qr_model */
/* arch_test.c - keys against tensors: what is missing, contradictory or not understood is refused by name. Cases MF-11, MF-05 (g). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/oracle.h"
#include "tests/unit/model_file.h"

static qr_gguf_writer_t *tiny(void)
{
    qr_tiny_config_t config;
    qr_gguf_writer_t *writer;
    qr_tiny_config_init(&config);
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    return writer;
}

/* The file must be refused with one line that names each of the words ("" for none). */
static void refused(qr_gguf_writer_t *writer, int code, const char *first, const char *second)
{
    qr_model_t *model = NULL;
    char message[512] = "";
    model_file_t file = model_file_save(&writer);
    int status = qr_model_open(file.path, &model, message, sizeof message);
    if (status != -code || !strstr(message, first) || !strstr(message, second))
        print_error("%s: %s (wanted %s, %s)\n", qr_error_name(status), message, first, second);
    assert_int_equal(status, -code);
    assert_null(model);
    assert_ptr_equal(strstr(message, file.path), message);
    assert_null(strchr(message, '\n'));
    assert_non_null(strstr(message, first));
    assert_non_null(strstr(message, second));
    unlink(file.path);
}

/* Logits of a few tokens through the contiguous decoder. */
static void logits_of(qr_gguf_writer_t *writer, float *ret_logits)
{
    qr_model_t *model;
    qr_oracle_t *oracle;
    char message[512] = "";
    const uint32_t tokens[] = {10, 20, 30, 40, 50};
    model_file_t file = model_file_save(&writer);
    int status = qr_model_open(file.path, &model, message, sizeof message);
    if (status) print_error("%s\n", message);
    assert_int_equal(status, 0);
    assert_int_equal(qr_oracle_new(model, 8, &oracle, message, sizeof message), 0);
    assert_int_equal(qr_oracle_step(oracle, tokens, 5, ret_logits), 0);
    qr_oracle_destroy(&oracle);
    qr_model_destroy(&model);
    unlink(file.path);
}

static void add_tensor(qr_gguf_writer_t *writer, const char *name, uint64_t columns, uint64_t rows)
{
    float *zeros = calloc(columns * rows, sizeof(float));
    qr_gguf_writer_tensor(writer, name, QR_FORMAT_F32, rows > 1 ? 2 : 1, (uint64_t[]){columns, rows}, zeros,
                          columns * rows * sizeof(float));
    free(zeros);
}

static void test_MF_11(void **state)
{
    (void)state;
    float a[320], b[320];
    qr_gguf_writer_t *writer;

    logits_of(tiny(), a); /* states rope.freq_base 10000 */
    writer = tiny();
    qr_gguf_writer_drop(writer, "llama.rope.freq_base");
    logits_of(writer, b);
    assert_memory_equal(a, b, sizeof a);
    writer = tiny();
    qr_gguf_writer_f32(writer, "llama.rope.freq_base", 20000);
    logits_of(writer, b);
    assert_memory_not_equal(a, b, sizeof a);

    qr_tiny_config_t config; /* tied: the same logits as an explicit copy */
    qr_tiny_config_init(&config);
    config.head_format = QR_FORMAT_F32;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    logits_of(writer, a);
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    uint8_t *bytes;
    size_t count;
    qr_gguf_t *file;
    char message[256];
    assert_int_equal(qr_gguf_writer_encode(writer, &bytes, &count), 0);
    assert_int_equal(qr_gguf_open_memory(bytes, count, "x", &file, message, sizeof message), 0);
    const qr_gguf_tensor_t *embedding = qr_gguf_tensor_find(file, "token_embd.weight");
    qr_gguf_writer_tensor(writer, "output.weight", QR_FORMAT_F32, 2, embedding->dims, bytes + embedding->offset, embedding->bytes);
    qr_gguf_close(&file);
    free(bytes);
    logits_of(writer, b);
    assert_memory_equal(a, b, sizeof a);

    writer = tiny();
    add_tensor(writer, "rope_freqs.weight", 8, 1);
    refused(writer, QR_E_UNSUPPORTED, "rope_freqs.weight", "not used");
    writer = tiny();
    qr_gguf_writer_u32s(writer, "llama.attention.head_count_kv", QR_GGUF_U32, (uint32_t[]){2, 2, 2}, 3);
    refused(writer, QR_E_FORMAT, "llama.attention.head_count_kv has 3 elements", "llama.block_count");
    writer = tiny();
    qr_gguf_writer_u32s(writer, "llama.attention.head_count_kv", QR_GGUF_U32, (uint32_t[]){2, 4}, 2);
    refused(writer, QR_E_UNSUPPORTED, "llama.attention.head_count_kv", "layer 1");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.attention.head_count_kv", 3);
    refused(writer, QR_E_FORMAT, "llama.attention.head_count_kv 3", "llama.attention.head_count 4");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.attention.head_count", 128);
    qr_gguf_writer_u32(writer, "llama.attention.head_count_kv", 1);
    refused(writer, QR_E_UNSUPPORTED, "llama.attention.head_count 128", "at most 64 query heads");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.attention.head_count_kv", 1); /* divides, but the tensors say 2 */
    refused(writer, QR_E_FORMAT, "blk.0.attn_k.weight", "llama.embedding_length with attention.head_count_kv");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.embedding_length", 128);
    qr_gguf_writer_drop(writer, "llama.rope.dimension_count");
    refused(writer, QR_E_FORMAT, "token_embd.weight is [64, 320]", "llama.embedding_length");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.block_count", 3);
    refused(writer, QR_E_FORMAT, "blk.2.attn_norm.weight is missing", "llama.block_count is 3");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.block_count", 1);
    refused(writer, QR_E_UNSUPPORTED, "blk.1.", "llama.block_count 1");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.vocab_size", 321);
    refused(writer, QR_E_FORMAT, "llama.vocab_size is 321", "token_embd.weight has 320 rows");
    writer = tiny();
    qr_gguf_writer_u32(writer, "llama.attention.key_length", 32);
    qr_gguf_writer_drop(writer, "llama.rope.dimension_count");
    refused(writer, QR_E_FORMAT, "blk.0.attn_q.weight", "heads of 32 values");
    writer = tiny();
    qr_gguf_writer_f32(writer, "llama.rope.freq_base", NAN);
    refused(writer, QR_E_UNSUPPORTED, "llama.rope.freq_base is", "nan");
    writer = tiny();
    qr_gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 0);
    refused(writer, QR_E_UNSUPPORTED, "llama.attention.layer_norm_rms_epsilon is 0", "");
}

static void test_MF_05_required_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"general.architecture",
                                       "llama.block_count",
                                       "llama.context_length",
                                       "llama.embedding_length",
                                       "llama.feed_forward_length",
                                       "llama.attention.head_count",
                                       "llama.attention.layer_norm_rms_epsilon",
                                       "tokenizer.ggml.model",
                                       "tokenizer.ggml.tokens"};
    for (size_t i = 0; i < QR_COUNT(keys); i++) {
        qr_gguf_writer_t *writer = tiny();
        qr_gguf_writer_drop(writer, keys[i]);
        refused(writer, QR_E_FORMAT, keys[i], "missing");
    }
    static const char *const tensors[] = {"token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight", "blk.0.attn_norm.weight"};
    for (size_t i = 0; i < QR_COUNT(tensors); i++) {
        qr_gguf_writer_t *writer = tiny();
        qr_gguf_writer_tensor_drop(writer, tensors[i]);
        refused(writer, QR_E_FORMAT, tensors[i], "missing");
    }
}

static void test_not_supported(void **state)
{
    (void)state;
    const struct {
        const char *key;
        uint32_t value;
        const char *word;
    } numbers[] = {
        {"llama.expert_count", 8, "llama.expert_count"},
        {"llama.block_count", 257, "1 to 256 are supported"},
        {"llama.block_count", 0, "1 to 256 are supported"},
        {"llama.attention.key_length", 12, "multiples of 8"},
        {"llama.rope.dimension_count", 8, "full rotation"},
        {"llama.attention.value_length", 8, "value_length 8 differs"},
        {"llama.attention.head_count", 6, "not a multiple of"},
        {"llama.attention.sliding_window", 64, "at least one layer"},
        {"llama.something.new", 1, "llama.something.new"},
        {"split.count", 3, "split.count is 3"},
        {"general.quantization_version", 1, "general.quantization_version"},
        {"llama.context_length", 0, "llama.context_length"},
    };
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        qr_gguf_writer_t *writer = tiny();
        qr_gguf_writer_u32(writer, numbers[i].key, numbers[i].value);
        refused(writer, strstr(numbers[i].word, "not a multiple") ? QR_E_FORMAT : QR_E_UNSUPPORTED, numbers[i].word, "");
    }
    const struct {
        const char *key, *value, *word;
    } texts[] = {
        {"general.architecture", "qwen3", "\"qwen3\"; llama is supported"},
        {"llama.rope.scaling.type", "yarn", "\"yarn\"; none and linear"},
        {"tokenizer.ggml.model", "llama", "\"llama\"; gpt2"},
        {"llama.block_count", "two", "an integer is needed"},
    };
    for (size_t i = 0; i < QR_COUNT(texts); i++) {
        qr_gguf_writer_t *writer = tiny();
        qr_gguf_writer_string(writer, texts[i].key, texts[i].value);
        refused(writer, i == 3 ? QR_E_FORMAT : QR_E_UNSUPPORTED, texts[i].key, texts[i].word);
    }
    qr_gguf_writer_t *writer = tiny();
    qr_gguf_writer_u32s(writer, "llama.attention.sliding_window", QR_GGUF_U32, (uint32_t[]){0, 1}, 2);
    refused(writer, QR_E_UNSUPPORTED, "llama.attention.sliding_window of layer 1 is 1", "");
    writer = tiny();
    add_tensor(writer, "blk.0.attn_q.bias", 64, 1);
    refused(writer, QR_E_UNSUPPORTED, "blk.0.attn_q.bias", "not used");
    uint8_t block[64 * 64 / 256 * 144] = {0}; /* a format that only inspect knows */
    writer = tiny();
    qr_gguf_writer_tensor(writer, "blk.0.attn_q.weight", 12, 2, (uint64_t[]){256, 16}, block, sizeof block);
    refused(writer, QR_E_FORMAT, "blk.0.attn_q.weight", "");
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 6, config.window[1] = 8, config.window[2] = 16, config.window[3] = 32, config.window[4] = 64;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    refused(writer, QR_E_UNSUPPORTED, "llama.attention.sliding_window has more than 4", "");
}

static void test_groups(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 5;
    config.window[0] = 64, config.window[2] = 16, config.window[4] = 64;
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model;
    char message[512];
    assert_int_equal(qr_model_open(file.path, &model, message, sizeof message), 0);
    assert_int_equal(model->layout.group_count, 3); /* the whole prefix first, then ascending windows */
    const uint32_t windows[] = {0, 16, 64}, layers[] = {2, 1, 2};
    for (int g = 0; g < 3; g++) {
        assert_int_equal(model->layout.groups[g].window, windows[g]);
        assert_int_equal(model->layout.groups[g].row_bytes, layers[g] * 2 * 2 * 16 * 2);
    }
    qr_model_destroy(&model);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_MF_11),
        cmocka_unit_test(test_MF_05_required_keys),
        cmocka_unit_test(test_not_supported),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
