/* tiny.c - seeded tiny models (tiny.h says what is in them). The same config gives the same bytes on every machine: integers from the
 * generator, exact divisions by powers of two, one rounding per quantised value. */
#include "model/tiny.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/prng.h"
#include "kernels/half.h"
#include "model/vocabulary.h"

/* ---- block formats (row-major GGUF) --------------------------------------------------------------------------------------------- */

static void put_half(uint8_t *place, float value)
{
    uint16_t half = qr_float_to_half(value);
    memcpy(place, &half, 2);
}
static float half_of(const uint8_t *place)
{
    uint16_t half;
    memcpy(&half, place, 2);
    return qr_half_to_float(half);
}
/* Nearest integer within [low, high]; halves away from zero. */
static int rounded(float value, int low, int high)
{
    int n = (int)(value < 0 ? value - 0.5f : value + 0.5f);
    return n < low ? low : n > high ? high : n;
}
static float largest(const float *values, uint32_t count)
{
    float most = 0;
    for (uint32_t i = 0; i < count; i++) {
        float a = values[i] < 0 ? -values[i] : values[i];
        most = a > most ? a : most;
    }
    return most;
}

static void encode_q8_0(const float *x, uint8_t *block)
{
    put_half(block, largest(x, 32) / 127.0f);
    float d = half_of(block);
    for (uint32_t i = 0; i < 32; i++) block[2 + i] = (uint8_t)(int8_t)(d > 0 ? rounded(x[i] / d, -127, 127) : 0);
}
static void encode_q4_0(const float *x, uint8_t *block)
{
    put_half(block, largest(x, 32) / 7.0f);
    float d = half_of(block);
    for (uint32_t i = 0; i < 16; i++) {
        int low = d > 0 ? rounded(x[i] / d, -8, 7) : 0, high = d > 0 ? rounded(x[i + 16] / d, -8, 7) : 0;
        block[2 + i] = (uint8_t)((low + 8) | (high + 8) << 4);
    }
}
static void encode_q4_1(const float *x, uint8_t *block)
{
    float low = x[0], high = x[0];
    for (uint32_t i = 1; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    put_half(block, (high - low) / 15.0f);
    put_half(block + 2, low);
    float d = half_of(block), m = half_of(block + 2);
    for (uint32_t i = 0; i < 16; i++) {
        int a = d > 0 ? rounded((x[i] - m) / d, 0, 15) : 0, b = d > 0 ? rounded((x[i + 16] - m) / d, 0, 15) : 0;
        block[4 + i] = (uint8_t)(a | b << 4);
    }
}
/* 256 values: low nibbles [128], high pairs of bits [64], 16 sub-scales i8, scale f16. */
static void encode_q6_k(const float *x, uint8_t *block)
{
    memset(block, 0, 210);
    put_half(block + 208, largest(x, 256) / 31.0f / 127.0f);
    float d = half_of(block + 208);
    for (uint32_t sub = 0; sub < 16; sub++) {
        int scale = d > 0 ? rounded(largest(x + 16 * sub, 16) / 31.0f / d, 1, 127) : 1;
        block[192 + sub] = (uint8_t)(int8_t)scale;
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t i = 16 * sub + k, half = i / 128, r = i % 128, quarter = r / 32, l = r % 32;
            uint32_t q = (uint32_t)(32 + (d > 0 ? rounded(x[i] / (d * (float)scale), -32, 31) : 0));
            block[64 * half + l + 32 * (quarter % 2)] |= (uint8_t)((q & 15) << (quarter / 2 * 4));
            block[128 + 32 * half + l] |= (uint8_t)(q >> 4 << (2 * quarter));
        }
    }
}

void qr_tiny_row_encode(uint32_t format, const float *values, uint32_t count, uint8_t *ret_row)
{
    qr_assert(qr_format_row_bytes(format, count) > 0);
    switch (format) {
    case QR_FORMAT_F32: memcpy(ret_row, values, count * sizeof *values); return;
    case QR_FORMAT_F16:
        for (uint32_t i = 0; i < count; i++) put_half(ret_row + 2 * i, values[i]);
        return;
    case QR_FORMAT_Q8_0:
        for (uint32_t b = 0; b < count / 32; b++) encode_q8_0(values + 32 * b, ret_row + 34 * b);
        return;
    case QR_FORMAT_Q4_0:
        for (uint32_t b = 0; b < count / 32; b++) encode_q4_0(values + 32 * b, ret_row + 18 * b);
        return;
    case QR_FORMAT_Q4_1:
        for (uint32_t b = 0; b < count / 32; b++) encode_q4_1(values + 32 * b, ret_row + 20 * b);
        return;
    case QR_FORMAT_Q6_K:
        for (uint32_t b = 0; b < count / 256; b++) encode_q6_k(values + 256 * b, ret_row + 210 * b);
        return;
    default: qr_unreachable("a format without an encoder");
    }
}

/* ---- weights -------------------------------------------------------------------------------------------------------------------- */

static float uniform(qr_prng_t *prng) { return (float)(int32_t)((uint32_t)(qr_prng_next(prng) >> 40)) * 0x1p-23f - 1.0f; } /* [-1, 1) */

/* A spread that keeps the variance of a product near that of its input, without a root: 1.75 / 2^ceil(log2 sqrt(columns)). */
static float spread(uint32_t columns)
{
    float root = 1.0f;
    while (root * root < (float)columns) root *= 2.0f;
    return 1.75f / root;
}

/* A matrix [rows][columns]; the first `small` rows are a sixteenth of the others. */
static int matrix_add(qr_gguf_writer_t *writer, qr_prng_t *prng, const char *name, uint32_t format, uint32_t rows, uint32_t columns,
                      uint32_t small)
{
    uint64_t row_bytes = qr_format_row_bytes(format, columns), dims[2] = {columns, rows};
    if (!row_bytes || columns % 32) return -QR_E_INVALID;
    float *values = malloc(columns * sizeof *values), scale = spread(columns);
    uint8_t *bytes = malloc(row_bytes * rows);
    for (uint32_t r = 0; values && bytes && r < rows; r++) {
        for (uint32_t c = 0; c < columns; c++) values[c] = uniform(prng) * scale * (r < small ? 0.0625f : 1.0f);
        qr_tiny_row_encode(format, values, columns, bytes + row_bytes * r);
    }
    if (values && bytes) qr_gguf_writer_tensor(writer, name, format, 2, dims, bytes, row_bytes * rows);
    int status = values && bytes ? 0 : -QR_E_MEMORY;
    free(values);
    free(bytes);
    return status;
}

static int norm_add(qr_gguf_writer_t *writer, qr_prng_t *prng, const char *name, uint32_t count)
{
    uint64_t dims[1] = {count};
    float *values = malloc(count * sizeof *values);
    if (!values) return -QR_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) values[i] = 1.0f + 0.25f * uniform(prng);
    qr_gguf_writer_tensor(writer, name, QR_FORMAT_F32, 1, dims, values, count * sizeof *values);
    free(values);
    return 0;
}

static int layer_add(qr_gguf_writer_t *writer, qr_prng_t *prng, const qr_tiny_config_t *c, uint32_t layer)
{
    uint32_t query = c->heads * c->dim, key = c->kv_heads * c->dim;
    const struct {
        const char *name;
        uint32_t rows, columns; /* columns 0: a norm */
    } tensors[] = {
        {"attn_norm", c->hidden, 0},
        {"attn_q", query, c->hidden},
        {"attn_k", key, c->hidden},
        {"attn_v", key, c->hidden},
        {"attn_output", c->hidden, query},
        {"ffn_norm", c->hidden, 0},
        {"ffn_gate", c->feed_forward, c->hidden},
        {"ffn_up", c->feed_forward, c->hidden},
        {"ffn_down", c->hidden, c->feed_forward},
    };
    int status = 0;
    for (size_t i = 0; i < QR_COUNT(tensors) && !status; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s.weight", layer, tensors[i].name);
        if (tensors[i].columns)
            status = matrix_add(writer, prng, name, c->format, tensors[i].rows, tensors[i].columns, 0);
        else
            status = norm_add(writer, prng, name, tensors[i].rows);
    }
    return status;
}

static int weights_add(qr_gguf_writer_t *writer, const qr_tiny_config_t *c)
{
    qr_prng_t prng;
    qr_prng_init(&prng, c->seed);
    int status = matrix_add(writer, &prng, "token_embd.weight", c->head_format, c->vocabulary, c->hidden, 3);
    for (uint32_t layer = 0; layer < c->layers && !status; layer++) status = layer_add(writer, &prng, c, layer);
    if (!status) status = norm_add(writer, &prng, "output_norm.weight", c->hidden);
    if (!status && !c->tied) status = matrix_add(writer, &prng, "output.weight", c->head_format, c->vocabulary, c->hidden, 3);
    return status;
}

/* ---- tokens ----------------------------------------------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 24 };

/* UTF-8 of a character below 512. */
static size_t character_put(char *place, uint32_t character)
{
    if (character < 128) {
        place[0] = (char)character;
        return 1;
    }
    place[0] = (char)(0xc0 | character >> 6);
    place[1] = (char)(0x80 | (character & 63));
    return 2;
}

/* The n-th merged pair: common English pairs first ('_' is the space before a word), then all pairs of small letters. */
static bool pair_of(uint32_t n, char pair[2])
{
    static const char common[] = "heinreeronatenesoredisittingouar_t_a_o_s_w_i_h_b_f_c_m_d_p_n_l_e_r_g";
    uint32_t given = (sizeof common - 1) / 2;
    if (n < given) {
        memcpy(pair, common + 2 * n, 2);
        return true;
    }
    for (uint32_t i = 0, at = given; i < 26 * 26; i++) {
        char a = (char)('a' + i / 26), b = (char)('a' + i % 26);
        bool known = false;
        for (uint32_t k = 0; k < given; k++) known |= common[2 * k] == a && common[2 * k + 1] == b;
        if (known || at++ != n) continue;
        pair[0] = a, pair[1] = b;
        return true;
    }
    return false;
}

typedef struct tokens {
    char (*texts)[TEXT_BYTES], (*merges)[TEXT_BYTES];
    const char **text_places, **merge_places;
    uint32_t *types;
    uint32_t count, merge_count;
} tokens_t;

static void pair_add(tokens_t *t, uint32_t token, const char pair[2])
{
    size_t at = 0, merge_at = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t character = qr_character_of_byte((uint8_t)(pair[i] == '_' ? ' ' : pair[i]));
        at += character_put(t->texts[token] + at, character);
        merge_at += character_put(t->merges[t->merge_count] + merge_at, character);
        if (i == 0) t->merges[t->merge_count][merge_at++] = ' ';
    }
    t->merge_count++;
}

static void tokens_fill(tokens_t *t)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (uint32_t token = 0; token < t->count; token++) {
        char pair[2];
        t->types[token] = token < 3 ? 3 : 1;
        if (token < 3) {
            memcpy(t->texts[token], specials[token], strlen(specials[token]));
        } else if (token < QR_TINY_TOKENS_MIN) {
            (void)character_put(t->texts[token], qr_character_of_byte((uint8_t)(token - 3)));
        } else if (pair_of(token - QR_TINY_TOKENS_MIN, pair)) {
            pair_add(t, token, pair);
        } else {
            (void)snprintf(t->texts[token], TEXT_BYTES, "<|reserved_%u|>", token);
            t->types[token] = 3;
        }
        t->text_places[token] = t->texts[token];
    }
    for (uint32_t m = 0; m < t->merge_count; m++) t->merge_places[m] = t->merges[m];
}

static int tokenizer_add(qr_gguf_writer_t *writer, const qr_tiny_config_t *c)
{
    static const char chat[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    tokens_t t = {.count = c->tokens ? c->tokens : c->vocabulary};
    t.texts = calloc(t.count, sizeof *t.texts), t.merges = calloc(t.count, sizeof *t.merges);
    t.text_places = calloc(t.count, sizeof *t.text_places), t.merge_places = calloc(t.count, sizeof *t.merge_places);
    t.types = calloc(t.count, sizeof *t.types);
    bool ready = t.texts && t.merges && t.text_places && t.merge_places && t.types;
    if (ready) {
        tokens_fill(&t);
        qr_gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
        qr_gguf_writer_string(writer, "tokenizer.ggml.pre", "smollm");
        qr_gguf_writer_strings(writer, "tokenizer.ggml.tokens", t.text_places, t.count);
        qr_gguf_writer_u32s(writer, "tokenizer.ggml.token_type", QR_GGUF_I32, t.types, t.count);
        qr_gguf_writer_strings(writer, "tokenizer.ggml.merges", t.merge_places, t.merge_count);
        qr_gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", 1);
        qr_gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", 2);
        qr_gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", false);
        qr_gguf_writer_string(writer, "tokenizer.chat_template", chat);
    }
    free(t.texts), free(t.merges), free(t.text_places), free(t.merge_places), free(t.types);
    return ready ? 0 : -QR_E_MEMORY;
}

/* ---- the file --------------------------------------------------------------------------------------------------------------------- */

static void keys_add(qr_gguf_writer_t *writer, const qr_tiny_config_t *c)
{
    bool windowed = false;
    qr_gguf_writer_string(writer, "general.architecture", "llama");
    qr_gguf_writer_string(writer, "general.name", c->name);
    qr_gguf_writer_u32(writer, "general.quantization_version", 2);
    qr_gguf_writer_u32(writer, "llama.block_count", c->layers);
    qr_gguf_writer_u32(writer, "llama.context_length", c->context);
    qr_gguf_writer_u32(writer, "llama.embedding_length", c->hidden);
    qr_gguf_writer_u32(writer, "llama.feed_forward_length", c->feed_forward);
    qr_gguf_writer_u32(writer, "llama.attention.head_count", c->heads);
    qr_gguf_writer_u32(writer, "llama.attention.head_count_kv", c->kv_heads);
    if (c->heads * c->dim != c->hidden) {
        qr_gguf_writer_u32(writer, "llama.attention.key_length", c->dim);
        qr_gguf_writer_u32(writer, "llama.attention.value_length", c->dim);
    }
    qr_gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    qr_gguf_writer_f32(writer, "llama.rope.freq_base", c->rope_theta);
    qr_gguf_writer_u32(writer, "llama.rope.dimension_count", c->dim);
    if (c->rope_scale > 1) {
        qr_gguf_writer_string(writer, "llama.rope.scaling.type", "linear");
        qr_gguf_writer_f32(writer, "llama.rope.scaling.factor", c->rope_scale);
    }
    qr_gguf_writer_u32(writer, "llama.vocab_size", c->vocabulary);
    for (uint32_t layer = 0; layer < c->layers; layer++) windowed |= c->window[layer] != 0;
    if (windowed) qr_gguf_writer_u32s(writer, "llama.attention.sliding_window", QR_GGUF_U32, c->window, c->layers);
}

void qr_tiny_config_init(qr_tiny_config_t *config)
{
    *config = (qr_tiny_config_t){.seed = 1,
                                 .name = "tiny",
                                 .layers = 2,
                                 .hidden = 64,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 16,
                                 .feed_forward = 128,
                                 .vocabulary = 320,
                                 .context = 512,
                                 .format = QR_FORMAT_Q8_0,
                                 .head_format = QR_FORMAT_Q8_0,
                                 .tied = true,
                                 .rope_theta = 10000.0f,
                                 .rope_scale = 1.0f};
}

void qr_tiny_config_fit(qr_tiny_config_t *config)
{
    if (config->format != QR_FORMAT_Q6_K && config->head_format != QR_FORMAT_Q6_K) return;
    config->hidden = (uint32_t)qr_round_up(config->hidden, 256);
    config->feed_forward = (uint32_t)qr_round_up(config->feed_forward, 256);
    config->heads = config->heads / config->kv_heads * config->kv_heads;
    while (config->heads * config->dim % 256) config->dim *= 2;
}

int qr_tiny_build(const qr_tiny_config_t *config, qr_gguf_writer_t **ret_writer)
{
    qr_assert(config->layers >= 1 && config->layers <= QR_LAYERS_MAX && config->tokens <= config->vocabulary && config->kv_heads >= 1);
    qr_gguf_writer_t *writer = qr_gguf_writer_new(32);
    if (!writer) return -QR_E_MEMORY;
    keys_add(writer, config);
    int status = tokenizer_add(writer, config);
    if (!status) status = weights_add(writer, config);
    if (status) {
        qr_gguf_writer_destroy(&writer);
        return status;
    }
    *ret_writer = writer;
    return 0;
}

int qr_tiny_write(const qr_tiny_config_t *config, const char *path)
{
    qr_gguf_writer_t *writer;
    int status = qr_tiny_build(config, &writer);
    if (status) return status;
    status = qr_gguf_writer_save(writer, path);
    qr_gguf_writer_destroy(&writer);
    return status;
}
