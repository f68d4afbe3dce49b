/* link: qr_model */
/* opencl_model_test.c - whole seeded tiny models on the opencl device, in tiles and token by token, against the scalar cpu device.
 * Stated bound: none. The portable kernels follow the order of arithmetic.md, so every logit has the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/params.h"
#include "model/decoder.h"
#include "model/tiny.h"

enum { TOKENS = 150, PAGE = 16, BLOCKS = (TOKENS + PAGE - 1) / PAGE };

typedef struct {
    qr_device_t *device;
    qr_model_t *model;
    qr_decoder_t *decoder;
} side_t;

static void side_open(side_t *side, const char *path, uint32_t kind, uint32_t isa)
{
    char message[1024] = "";
    qr_device_config_t device = {.kind = kind, .isa = isa, .threads = 1};
    assert_int_equal(qr_device_new(&device, &side->device, message, sizeof message), 0);
    assert_int_equal(qr_model_open(path, &side->model, message, sizeof message), 0);
    assert_int_equal(qr_model_load(side->model, side->device, NULL, NULL, message, sizeof message), 0);
    qr_decoder_config_t config = {.page_tokens = PAGE, .rows_max = 256, .lanes_max = 4, .context_tokens = 512, .poison = true};
    for (int g = 0; g < QR_GROUPS_MAX; g++) config.pages[g] = BLOCKS;
    assert_int_equal(qr_decoder_new(side->model, &config, &side->decoder, message, sizeof message), 0);
}
static void side_close(side_t *side)
{
    qr_decoder_destroy(&side->decoder);
    qr_model_destroy(&side->model);
    qr_device_destroy(&side->device);
}
/* Rows [start, start + count) of the one sequence; logits of the last row are copied to ret. */
static void run(side_t *side, uint32_t start, uint32_t count, float *ret)
{
    uint32_t tokens[TOKENS], positions[TOKENS], offsets[2] = {0, count}, first[1] = {0}, last = count - 1, page_offsets[2] = {0, BLOCKS}, pages[BLOCKS];
    int32_t slots[TOKENS];
    for (uint32_t i = 0; i < BLOCKS; i++) pages[i] = (i * 7) % BLOCKS;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t p = start + i;
        tokens[i] = 3 + (p * 7919) % 250;
        positions[i] = p;
        slots[i] = (int32_t)(pages[p / PAGE] * PAGE + p % PAGE);
    }
    qr_batch_t batch = {.row_count = count, .lane_count = 1, .tokens = tokens, .positions = positions, .row_offsets = offsets, .logit_count = 1, .logit_rows = &last};
    for (uint32_t g = 0; g < side->model->layout.group_count; g++) {
        batch.groups[g].page_offsets = page_offsets, batch.groups[g].first_blocks = first;
        batch.groups[g].pages = pages, batch.groups[g].slots = slots;
    }
    assert_int_equal(qr_decoder_submit(side->decoder, &batch), 0);
    int status;
    while ((status = qr_decoder_advance(side->decoder, 1000)) == 1) {}
    assert_int_equal(status, 0);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(qr_decoder_row_status(side->decoder, i), 0);
    memcpy(ret, qr_decoder_logits(side->decoder, 0), side->model->arch.vocabulary * sizeof *ret);
}
static void compare(const qr_tiny_config_t *config)
{
    char path[] = "/tmp/quire-opencl-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(qr_tiny_write(config, path), 0);
    side_t judge, opencl;
    side_open(&judge, path, QR_DEVICE_CPU, QR_ISA_SCALAR);
    side_open(&opencl, path, QR_DEVICE_OPENCL, 0);
    unlink(path);
    uint32_t vocabulary = judge.model->arch.vocabulary;
    float *a = malloc(vocabulary * sizeof *a), *b = malloc(vocabulary * sizeof *b);
    const uint32_t tiles[] = {100, 33, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t start = 0;
    for (size_t t = 0; t < QR_COUNT(tiles); start += tiles[t++]) {
        run(&judge, start, tiles[t], a);
        run(&opencl, start, tiles[t], b);
        assert_memory_equal(a, b, vocabulary * sizeof *a);
    }
    free(a);
    free(b);
    side_close(&judge);
    side_close(&opencl);
}
static void test_every_format(void **unused)
{
    (void)unused;
    const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q8_0, QR_FORMAT_Q6_K};
    for (size_t f = 0; f < QR_COUNT(formats); f++) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.format = formats[f];
        config.seed = 11 + f;
        qr_tiny_config_fit(&config);
        compare(&config);
    }
}
static void test_windows(void **unused)
{
    (void)unused;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.window[0] = 20;
    compare(&config);
}
/* Widths of an odd number of blocks. */
static void test_odd_widths(void **unused)
{
    (void)unused;
    const uint32_t formats[] = {QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q8_0};
    for (size_t f = 0; f < QR_COUNT(formats); f++) {
        qr_tiny_config_t config;
        qr_tiny_config_init(&config);
        config.format = config.head_format = formats[f];
        config.hidden = 96, config.heads = 3, config.kv_heads = 1, config.dim = 32, config.feed_forward = 160;
        compare(&config);
    }
}
int main(void)
{
    char message[1024];
    qr_device_t *device;
    qr_device_config_t config = {.kind = QR_DEVICE_OPENCL};
    if (qr_device_new(&config, &device, message, sizeof message)) return fprintf(stderr, "skipped: %s\n", message), 77;
    qr_device_destroy(&device);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_format), cmocka_unit_test(test_windows), cmocka_unit_test(test_odd_widths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
