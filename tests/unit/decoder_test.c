/* link: qr_model */
/* decoder_test.c - the paged decoder: values against the contiguous one in every format, bits over tiles, pages, threads, company and
 * forks.
 *
 * Bounds of the values, fixed beforehand. Pages hold fp16 (2^-11 relative) and quantised formats see int8 activations: one block's rounding
 * error is at most 1/254 of its largest value, about 0.4 % of a product's spread; two layers and a head add a few of them. Measured by the
 * spread of the logits (their standard deviation): F32 and F16 weights (fp32 activations) within 0.02 of it, quantised ones within 0.15,
 * and the mean square within a quarter of that. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "actors/plan.h"
#include "base/sha256.h"
#include "model/oracle.h"
#include "tests/unit/driver.h"
#include "tests/unit/model_file.h"

enum { LONG = 150, VOCABULARY = 320 };

static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};

static void tokens_draw(uint32_t *tokens, uint32_t count, uint64_t seed)
{
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    for (uint32_t i = 0; i < count; i++) tokens[i] = (uint32_t)qr_prng_below(&prng, VOCABULARY);
}

/* All logits of a sequence alone, in tiles of `tile`. */
static void run_alone(driver_t *d, const uint32_t *tokens, uint32_t count, uint32_t tile, float *ret_logits)
{
    sequence_t s;
    sequence_init(d, &s, tokens);
    while (s.done < count) {
        span_t span = {&s, qr_min_u32(tile, count - s.done)};
        float *place = ret_logits + (size_t)s.done * VOCABULARY;
        driver_step(d, &span, 1, &place, NULL, NULL);
    }
    sequence_done(d, &s);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------ */

static void compare_with_oracle(const qr_tiny_config_t *config, double bound)
{
    qr_device_t *device = device_new(QR_ISA_AUTO, 2);
    model_file_t file = model_file_tiny(config);
    qr_model_t *model = model_load(file.path, device);
    qr_oracle_t *oracle;
    char message[256] = "";
    driver_t driver;
    uint32_t tokens[LONG];
    float *logits = malloc(sizeof(float) * LONG * VOCABULARY), want[VOCABULARY];
    tokens_draw(tokens, LONG, config->seed);
    driver_init(&driver, model, 16, 512, 1, 64, 64, true, 3);
    run_alone(&driver, tokens, LONG, 64, logits);
    assert_int_equal(qr_oracle_new(model, LONG, &oracle, message, sizeof message), 0);
    double worst = 0, square = 0, spread = 0;
    for (uint32_t t = 0; t < LONG; t++) {
        assert_int_equal(qr_oracle_step(oracle, &tokens[t], 1, want), 0);
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            double difference = fabs((double)logits[t * VOCABULARY + i] - (double)want[i]);
            worst = fmax(worst, difference), square += difference * difference, spread += (double)want[i] * (double)want[i];
        }
    }
    spread = sqrt(spread / (LONG * VOCABULARY)), square = sqrt(square / (LONG * VOCABULARY));
    print_message("format %2u: worst %.5f, mean square %.5f of the spread\n", config->format, worst / spread, square / spread);
    assert_true(spread > 0.1);
    assert_true(worst < bound * spread && square < bound / 4 * spread);
    qr_oracle_destroy(&oracle);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(logits);
}

static void test_values_in_every_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < QR_COUNT(formats); i++) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.seed = 10 + i;
        config.format = config.head_format = formats[i];
        config.tied = i % 2 == 0;
        qr_tiny_config_fit(&config);
        compare_with_oracle(&config, formats[i] <= QR_FORMAT_F16 ? 0.02 : 0.15);
    }
}

static void test_values_of_shapes(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config); /* wide heads, one kv head, scaled rotation, another base, mixed formats */
    config.layers = 3, config.heads = 4, config.kv_heads = 1, config.dim = 64, config.hidden = 96, config.feed_forward = 160;
    config.rope_theta = 500000, config.rope_scale = 4, config.format = QR_FORMAT_Q4_0, config.head_format = QR_FORMAT_F16;
    compare_with_oracle(&config, 0.15);
    qr_tiny_config_init(&config); /* windows, one shorter and one longer than a page */
    config.layers = 4, config.window[1] = 9, config.window[3] = 70, config.format = config.head_format = QR_FORMAT_F32;
    compare_with_oracle(&config, 0.02);
    qr_tiny_config_init(&config); /* heads of 8 */
    config.heads = 8, config.kv_heads = 8, config.dim = 8, config.format = QR_FORMAT_Q8_0;
    compare_with_oracle(&config, 0.15);
}

/* A layer whose q, k, v and gate, up have different formats is not stacked; results are judged as any other's. */
static void test_values_of_mixed_layers(void **state)
{
    (void)state;
    qr_tiny_config_t config, other;
    qr_gguf_writer_t *writer, *donor;
    qr_tiny_config_init(&config);
    other = config;
    other.format = QR_FORMAT_F16;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    assert_int_equal(qr_tiny_build(&other, &donor), 0);
    uint8_t *bytes;
    size_t count;
    qr_gguf_t *from;
    char message[256];
    assert_int_equal(qr_gguf_writer_encode(donor, &bytes, &count), 0);
    assert_int_equal(qr_gguf_open_memory(bytes, count, "x", &from, message, sizeof message), 0);
    static const char *const moved[] = {"blk.0.attn_v.weight", "blk.0.ffn_up.weight", "blk.1.attn_q.weight", "blk.1.ffn_down.weight"};
    for (size_t i = 0; i < QR_COUNT(moved); i++) {
        const qr_gguf_tensor_t *t = qr_gguf_tensor_find(from, moved[i]);
        qr_gguf_writer_tensor(writer, moved[i], t->format, t->dim_count, t->dims, bytes + t->offset, t->bytes);
    }
    model_file_t file = model_file_save(&writer), plain = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_AUTO, 1);
    qr_model_t *mixed = model_load(file.path, device), *same = model_load(plain.path, device);
    assert_int_equal(mixed->layers[0].qkv_count, 3);
    assert_int_equal(mixed->layers[0].gate_up_count, 2);
    assert_int_equal(same->layers[0].qkv_count, 1);
    uint32_t tokens[40];
    float *a = malloc(sizeof(float) * 40 * VOCABULARY), *b = malloc(sizeof(float) * 40 * VOCABULARY);
    tokens_draw(tokens, 40, 5);
    driver_t driver;
    driver_init(&driver, mixed, 8, 64, 1, 40, 40, true, 1);
    run_alone(&driver, tokens, 40, 40, a);
    driver_done(&driver);
    driver_init(&driver, same, 8, 64, 1, 40, 40, true, 1);
    run_alone(&driver, tokens, 40, 40, b);
    driver_done(&driver);
    double difference = 0, spread = 0; /* the weights are the same numbers, coded more finely in places */
    for (uint32_t i = 0; i < 40 * VOCABULARY; i++) difference += (double)((a[i] - b[i]) * (a[i] - b[i])), spread += (double)(b[i] * b[i]);
    assert_true(sqrt(difference / spread) < 0.05 && difference > 0);
    qr_model_destroy(&mixed);
    qr_model_destroy(&same);
    qr_device_destroy(&device);
    qr_gguf_close(&from);
    qr_gguf_writer_destroy(&donor);
    unlink(file.path), unlink(plain.path);
    free(bytes), free(a), free(b);
}

/* ---- bits -------------------------------------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 4 };
static const uint32_t lengths[SEQUENCES] = {LONG, 33, 64, 97};

/* Four sequences in one company: steps of random width, lanes in random order, joining at different times. */
static void run_company(driver_t *d, uint32_t tokens[SEQUENCES][LONG], uint32_t tile, uint64_t seed, float *ret_logits[SEQUENCES])
{
    sequence_t s[SEQUENCES];
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    for (uint32_t i = 0; i < SEQUENCES; i++) sequence_init(d, &s[i], tokens[i]);
    for (;;) {
        span_t spans[SEQUENCES];
        float *places[SEQUENCES];
        uint32_t lanes = 0, left = d->rows_max, first = (uint32_t)qr_prng_below(&prng, SEQUENCES), unfinished = 0;
        for (uint32_t k = 0; k < SEQUENCES; k++) {
            uint32_t i = (first + k) % SEQUENCES, want = lengths[i] - s[i].done;
            unfinished += want > 0;
            if (want == 0 || left == 0 || qr_prng_one_in(&prng, 3)) continue;
            uint32_t rows = qr_min_u32(qr_min_u32(want, left), qr_prng_one_in(&prng, 2) ? 1 : tile);
            spans[lanes] = (span_t){&s[i], rows};
            places[lanes++] = ret_logits[i] + (size_t)s[i].done * VOCABULARY;
            left -= rows;
        }
        if (!unfinished) break;
        if (lanes) driver_step(d, spans, lanes, places, NULL, NULL);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) sequence_done(d, &s[i]);
}

static void hash_rows(const float *logits, uint32_t rows, uint8_t ret_digest[32])
{
    qr_sha256(logits, sizeof(float) * VOCABULARY * rows, ret_digest);
}

static void bits_matrix(qr_tiny_config_t *config)
{
    static const struct {
        uint32_t isa, threads, page_tokens, tile;
    } runs[] = {
        {QR_ISA_SCALAR, 1, 16, 1}, {QR_ISA_SCALAR, 2, 8, 7},  {QR_ISA_AUTO, 1, 8, 1},     {QR_ISA_AUTO, 2, 16, 7},
        {QR_ISA_AUTO, 4, 32, 64},  {QR_ISA_AUTO, 1, 64, 100}, {QR_ISA_AUTO, 2, 128, 150}, {QR_ISA_AVX2, 2, 16, 33},
    };
    uint32_t tokens[SEQUENCES][LONG];
    float *logits[SEQUENCES];
    uint8_t want[SEQUENCES][32], got[32];
    for (uint32_t i = 0; i < SEQUENCES; i++) tokens_draw(tokens[i], LONG, 100 + i), logits[i] = malloc(sizeof(float) * LONG * VOCABULARY);
    model_file_t file = model_file_tiny(config);
    for (size_t r = 0; r < QR_COUNT(runs); r++) {
        qr_device_t *device = device_new(runs[r].isa, runs[r].threads);
        if (!device) continue; /* an instruction set this machine lacks */
        qr_model_t *model = model_load(file.path, device);
        driver_t driver;
        driver_init(&driver, model, runs[r].page_tokens, 256, SEQUENCES, 160, 160, true, 7 + r);
        for (uint32_t i = 0; i < SEQUENCES; i++) { /* alone */
            run_alone(&driver, tokens[i], lengths[i], runs[r].tile, logits[i]);
            hash_rows(logits[i], lengths[i], got);
            if (r == 0) memcpy(want[i], got, 32);
            assert_memory_equal(got, want[i], 32);
        }
        run_company(&driver, tokens, runs[r].tile, 1000 + r, logits); /* with strangers, on pages others used */
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            hash_rows(logits[i], lengths[i], got);
            assert_memory_equal(got, want[i], 32);
        }
        driver_done(&driver);
        qr_model_destroy(&model);
        qr_device_destroy(&device);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) free(logits[i]);
    unlink(file.path);
}

static void test_bits_over_everything(void **state)
{
    (void)state;
    for (size_t i = 0; i < QR_COUNT(formats); i++) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.seed = 50 + i;
        config.format = config.head_format = formats[i];
        qr_tiny_config_fit(&config);
        bits_matrix(&config);
    }
}
static void test_bits_with_windows(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 3, config.window[0] = 20, config.window[2] = 70;
    bits_matrix(&config);
}

/* A fork at any boundary, whole pages shared and the rest copied in its first batch, continues like a sequence of its own. */
static void test_bits_of_forks(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 3, config.window[1] = 24;
    model_file_t file = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_AUTO, 2);
    qr_model_t *model = model_load(file.path, device);
    static const uint32_t page_tokens[] = {8, 16, 32, 64}, boundaries[] = {1, 8, 15, 16, 17, 63, 64, 65};
    float *want = malloc(sizeof(float) * LONG * VOCABULARY), *got = malloc(sizeof(float) * LONG * VOCABULARY),
          *parent_logits = malloc(sizeof(float) * LONG * VOCABULARY);
    for (size_t p = 0; p < QR_COUNT(page_tokens); p++) {
        driver_t driver;
        driver_init(&driver, model, page_tokens[p], 256, 3, 160, 160, true, p);
        for (size_t b = 0; b < QR_COUNT(boundaries); b++) {
            uint32_t parent_tokens[LONG], fork_tokens[LONG], at = boundaries[b];
            tokens_draw(parent_tokens, LONG, 7);
            tokens_draw(fork_tokens, LONG, 8 + b);
            memcpy(fork_tokens, parent_tokens, at * sizeof(uint32_t));
            run_alone(&driver, fork_tokens, 90, 31, want);
            sequence_t parent, fork;
            sequence_init(&driver, &parent, parent_tokens);
            sequence_init(&driver, &fork, fork_tokens);
            span_t first = {&parent, at + 3}; /* the parent has gone on beyond the boundary */
            driver_step(&driver, &first, 1, NULL, NULL, NULL);
            uint32_t *own[QR_GROUPS_MAX]; /* pages of the fork come back at the end */
            for (uint32_t g = 0; g < model->layout.group_count; g++)
                own[g] = malloc(driver.blocks * 4), memcpy(own[g], fork.pages[g], driver.blocks * 4);
            fork.done = at;
            span_t both[2] = {{&parent, 5}, {&fork, 90 - at}};
            float *places[2] = {parent_logits, got + (size_t)at * VOCABULARY};
            driver_step(&driver, both, 2, places, (sequence_t *[]){NULL, &parent}, NULL);
            assert_memory_equal(got + (size_t)at * VOCABULARY, want + (size_t)at * VOCABULARY, sizeof(float) * VOCABULARY * (90 - at));
            run_alone(&driver, parent_tokens, at + 8, 160, want); /* and the parent is untouched */
            assert_memory_equal(parent_logits, want + (size_t)(at + 3) * VOCABULARY, sizeof(float) * VOCABULARY * 5);
            for (uint32_t g = 0; g < model->layout.group_count; g++) memcpy(fork.pages[g], own[g], driver.blocks * 4), free(own[g]);
            sequence_done(&driver, &fork);
            sequence_done(&driver, &parent);
        }
        driver_done(&driver);
    }
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(want), free(got), free(parent_logits);
}

/* ---- what goes wrong -------------------------------------------------------------------------------------------------------------- */

/* One resident row is damaged: its lane fails alone, a neighbour's bits do not move. */
static void test_failing_lane(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_AUTO, 2);
    qr_model_t *model = model_load(file.path, device);
    driver_t driver;
    driver_init(&driver, model, 16, 128, 2, 64, 64, true, 1);
    uint32_t tokens[2][64], status[2];
    tokens_draw(tokens[0], 64, 1), tokens_draw(tokens[1], 64, 2);
    float *want = malloc(sizeof(float) * 64 * VOCABULARY), got[2][VOCABULARY];
    run_alone(&driver, tokens[1], 31, 31, want);
    sequence_t s[2];
    for (int i = 0; i < 2; i++) {
        sequence_init(&driver, &s[i], tokens[i]);
        span_t span = {&s[i], 30};
        driver_step(&driver, &span, 1, NULL, NULL, NULL);
    }
    uint16_t *row = qr_decoder_page_row(driver.decoder, 1, 1, s[0].pages[0][0], 5);
    uint16_t saved = row[3];
    row[3] = 0x7c00; /* infinity */
    span_t spans[2] = {{&s[0], 1}, {&s[1], 1}};
    float *places[2] = {got[0], got[1]};
    driver_step(&driver, spans, 2, places, NULL, status);
    assert_int_equal(status[0], QR_E_NUMERIC);
    assert_int_equal(status[1], 0);
    assert_memory_equal(got[1], want + 30 * VOCABULARY, sizeof got[1]);
    row[3] = saved;
    span_t again = {&s[0], 1};
    driver_step(&driver, &again, 1, places, NULL, status);
    for (int i = 0; i < 2; i++) sequence_done(&driver, &s[i]);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(want);
}

/* Logits that overflow fail their row; those of rows behind the last token are never looked at. */
static void test_infinite_logits(void **state)
{
    (void)state;
    for (uint32_t behind = 0; behind < 2; behind++) {
        qr_tiny_config_t config;
        qr_gguf_writer_t *writer;
        qr_tiny_config_init(&config);
        config.tokens = 300, config.head_format = QR_FORMAT_F32, config.tied = false;
        assert_int_equal(qr_tiny_build(&config, &writer), 0);
        float *head = calloc(VOCABULARY * 64, sizeof(float));
        for (uint32_t i = 0; i < VOCABULARY * 64; i++) head[i] = 0.01f * (float)(i % 7);
        for (uint32_t i = 0; i < 64; i++) head[(behind ? 310u : 100u) * 64 + i] = i % 2 ? 3e38f : -3e38f;
        qr_gguf_writer_tensor(writer, "output.weight", QR_FORMAT_F32, 2, (uint64_t[]){64, VOCABULARY}, head,
                              VOCABULARY * 64 * sizeof(float));
        free(head);
        model_file_t file = model_file_save(&writer);
        qr_device_t *device = device_new(QR_ISA_AUTO, 1);
        qr_model_t *model = model_load(file.path, device);
        driver_t driver;
        sequence_t s;
        uint32_t tokens[8], status[8];
        float *logits = malloc(sizeof(float) * 8 * VOCABULARY);
        tokens_draw(tokens, 8, 3);
        driver_init(&driver, model, 16, 32, 1, 8, 8, true, 1);
        sequence_init(&driver, &s, tokens);
        driver_step(&driver, &(span_t){&s, 8}, 1, &logits, NULL, status);
        for (uint32_t r = 0; r < 8; r++) assert_int_equal(status[r], behind ? 0 : QR_E_NUMERIC);
        sequence_done(&driver, &s);
        driver_done(&driver);
        qr_model_destroy(&model);
        qr_device_destroy(&device);
        unlink(file.path);
        free(logits);
    }
}

/* One bit of a resident key changes what a sharer computes (the rows are read, not recomputed). */
static void test_resident_rows_matter(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_AUTO, 1);
    qr_model_t *model = model_load(file.path, device);
    driver_t driver;
    driver_init(&driver, model, 16, 128, 2, 64, 64, true, 1);
    uint32_t tokens[64];
    tokens_draw(tokens, 64, 1);
    sequence_t s;
    float *want = malloc(sizeof(float) * 64 * VOCABULARY), got[VOCABULARY], *place = got;
    run_alone(&driver, tokens, 41, 41, want);
    for (uint32_t member = 0; member < 2; member++) {
        sequence_init(&driver, &s, tokens);
        span_t span = {&s, 40}, last = {&s, 1};
        driver_step(&driver, &span, 1, NULL, NULL, NULL);
        qr_decoder_page_row(driver.decoder, 0, member, s.pages[0][1], 4)[2] ^= 0x0200;
        driver_step(&driver, &last, 1, &place, NULL, NULL);
        assert_memory_not_equal(got, want + 40 * VOCABULARY, sizeof got);
        sequence_done(&driver, &s);
    }
    run_alone(&driver, tokens, 41, 41, want + 41); /* a cold one is computed as before */
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
    free(want);
}

/* Small budgets: advance returns in between and the result is the same. */
static void test_slices(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 6;
    model_file_t file = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_SCALAR, 2);
    qr_model_t *model = model_load(file.path, device);
    qr_decoder_config_t shape = {.pages = {16}, .page_tokens = 16, .rows_max = 64, .lanes_max = 2, .context_tokens = 64};
    qr_decoder_t *decoder;
    char message[256];
    assert_int_equal(qr_decoder_new(model, &shape, &decoder, message, sizeof message), 0);
    uint32_t tokens[64], positions[64], row_offsets[2] = {0, 64}, logit_rows[1] = {63}, page_offsets[2] = {0, 4}, first[1] = {0},
                                        pages[4] = {3, 1, 7, 2};
    int32_t slots[64];
    tokens_draw(tokens, 64, 1);
    for (uint32_t i = 0; i < 64; i++) positions[i] = i, slots[i] = (int32_t)(pages[i / 16] * 16 + i % 16);
    qr_batch_t batch = {64, 1, tokens, positions, row_offsets, 1, logit_rows, {{page_offsets, first, pages, slots, 0, NULL, NULL, NULL}}};
    float whole[VOCABULARY];
    assert_int_equal(qr_decoder_submit(decoder, &batch), 0);
    assert_int_equal(qr_decoder_advance(decoder, 0), 0);
    memcpy(whole, qr_decoder_logits(decoder, 0), sizeof whole);
    uint32_t turns = 0;
    int status;
    assert_int_equal(qr_decoder_submit(decoder, &batch), 0);
    while ((status = qr_decoder_advance(decoder, 200)) > 0) turns++;
    assert_int_equal(status, 0);
    assert_true(turns > 0);
    assert_memory_equal(whole, qr_decoder_logits(decoder, 0), sizeof whole);
    assert_int_equal(qr_decoder_advance(decoder, 200), 0);
    qr_decoder_destroy(&decoder);
    shape.page_tokens = 12;
    assert_int_equal(qr_decoder_new(model, &shape, &decoder, message, sizeof message), -QR_E_INVALID);
    assert_non_null(strstr(message, "--page-tokens 12"));
    shape.page_tokens = 16, shape.pages[0] = UINT32_MAX;
    assert_int_equal(qr_decoder_new(model, &shape, &decoder, message, sizeof message), -QR_E_MEMORY);
    assert_non_null(strstr(message, "--pages"));
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}

/* The default pool of a windowed group has what every lane may hold of it at once, so that a request that the other group has room for is
 * not refused for ever: with one lane too. */
static void test_default_pool_of_a_window(void **state)
{
    (void)state;
    enum { WINDOW = 64, TILE = 512, PAGE = 16, CONTEXT = 4096 };
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.context = CONTEXT, config.window[1] = WINDOW;
    model_file_t file = model_file_tiny(&config);
    qr_device_t *device = device_new(QR_ISA_SCALAR, 1);
    qr_model_t *model = model_load(file.path, device);
    for (uint32_t lanes = 1; lanes <= 8; lanes *= 2) {
        qr_decoder_config_t shape = {.page_tokens = PAGE, .rows_max = TILE + lanes, .lanes_max = lanes, .context_tokens = CONTEXT};
        qr_decoder_t *decoder;
        char message[256];
        assert_int_equal(qr_decoder_new(model, &shape, &decoder, message, sizeof message), 0);
        const qr_layout_t *layout = qr_decoder_layout(decoder);
        assert_int_equal(layout->groups[1].window, WINDOW);
        uint32_t each = (uint32_t)qr_div_up(WINDOW - 1 + qr_plan_rows_in_flight(TILE), PAGE) + 1; /* design 7 */
        assert_true(layout->groups[1].pages >= lanes * each);
        qr_decoder_destroy(&decoder);
    }
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_in_every_format), cmocka_unit_test(test_values_of_shapes),
        cmocka_unit_test(test_values_of_mixed_layers), cmocka_unit_test(test_bits_over_everything),
        cmocka_unit_test(test_bits_with_windows),      cmocka_unit_test(test_bits_of_forks),
        cmocka_unit_test(test_failing_lane),           cmocka_unit_test(test_infinite_logits),
        cmocka_unit_test(test_resident_rows_matter),   cmocka_unit_test(test_slices),
        cmocka_unit_test(test_default_pool_of_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
