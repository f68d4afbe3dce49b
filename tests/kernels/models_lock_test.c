/* link: qr_model */
/* models_lock_test.c - the bits of whole seeded tiny models on `cpu-1`: digests of all logits and of every resident key and value row,
 * against tests/kernels/models.lock. Two compilers and all instruction sets must give the same; a change here needs a new variant name.
 * What is recorded was judged by others (decoder_test.c, oracle_test.c); QUIRE_NUMERICS_WRITE=1 records anew from the scalar kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "tests/unit/driver.h"
#include "tests/unit/model_file.h"

#define LOCK_FILE "tests/kernels/models.lock"
enum { SHAPES = 8, ROWS = 90, VOCABULARY = 320, HEX = 64 };

static void shape_make(uint32_t index, qr_tiny_config_t *c, char ret_name[96])
{
    static const struct {
        uint32_t format;
        const char *name;
    } formats[] = {{QR_FORMAT_F32, "F32"},   {QR_FORMAT_F16, "F16"},   {QR_FORMAT_Q8_0, "Q8_0"},
                   {QR_FORMAT_Q4_0, "Q4_0"}, {QR_FORMAT_Q4_1, "Q4_1"}, {QR_FORMAT_Q6_K, "Q6_K"}};
    qr_tiny_config_init(c);
    c->seed = 3000 + index;
    c->format = c->head_format = formats[index % 6].format;
    if (index == 6) c->layers = 4, c->window[1] = 20, c->window[2] = 70;
    if (index == 7) c->heads = 3, c->kv_heads = 1, c->dim = 64, c->hidden = 192, c->rope_scale = 2, c->tied = false;
    qr_tiny_config_fit(c);
    (void)snprintf(ret_name, 96, "%s layers %u hidden %u heads %u/%u dim %u%s", formats[index % 6].name, c->layers, c->hidden, c->heads,
                   c->kv_heads, c->dim, index == 6 ? " windows" : "");
}

/* One tile of 64, then one of 20, then single rows. */
static void digest_of(const char *path, uint32_t isa, char ret_hex[HEX + 1])
{
    qr_device_t *device = device_new(isa, 2);
    ret_hex[0] = 0;
    if (!device) return;
    qr_model_t *model = model_load(path, device);
    driver_t driver;
    sequence_t s;
    uint32_t tokens[ROWS];
    float *logits = malloc(sizeof(float) * ROWS * VOCABULARY);
    qr_sha256_t sha;
    uint8_t digest[32];
    for (uint32_t i = 0; i < ROWS; i++) tokens[i] = (i * 131 + 17) % VOCABULARY;
    driver_init(&driver, model, 16, 96, 1, 64, 64, true, 1);
    sequence_init(&driver, &s, tokens);
    while (s.done < ROWS) {
        span_t span = {&s, s.done == 0 ? 64 : s.done == 64 ? 20 : 1};
        float *place = logits + (size_t)s.done * VOCABULARY;
        driver_step(&driver, &span, 1, &place, NULL, NULL);
    }
    qr_sha256_init(&sha);
    qr_sha256_add(&sha, logits, sizeof(float) * ROWS * VOCABULARY);
    for (uint32_t layer = 0; layer < model->arch.layers; layer++)
        for (uint32_t member = 0; member < 2; member++)
            for (uint32_t r = 0; r < ROWS; r++) {
                uint32_t group = 0;
                while (model->layout.groups[group].window != model->arch.window[layer]) group++;
                qr_sha256_add(&sha, qr_decoder_page_row(driver.decoder, layer, member, s.pages[group][r / 16], r % 16),
                              2u * model->arch.kv_heads * model->arch.dim);
            }
    qr_sha256_end(&sha, digest);
    for (int i = 0; i < 32; i++) (void)snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
    sequence_done(&driver, &s);
    driver_done(&driver);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    free(logits);
}

static void test_models(void **state)
{
    (void)state;
    bool writing = getenv("QUIRE_NUMERICS_WRITE") != NULL;
    FILE *file = fopen(LOCK_FILE, writing ? "w" : "r");
    assert_non_null(file);
    for (uint32_t shape = 0; shape < SHAPES; shape++) {
        qr_tiny_config_t config;
        char name[96], line[256], want[256], hex[HEX + 1];
        shape_make(shape, &config, name);
        model_file_t model = model_file_tiny(&config);
        if (!writing) assert_non_null(fgets(want, sizeof want, file));
        for (uint32_t isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
            digest_of(model.path, isa, hex);
            if (!hex[0]) continue; /* an instruction set this machine lacks */
            (void)snprintf(line, sizeof line, "cpu-1 %s %s\n", hex, name);
            if (!writing)
                assert_string_equal(line, want);
            else if (isa == QR_ISA_SCALAR)
                assert_true(fputs(line, file) >= 0);
        }
        unlink(model.path);
    }
    assert_int_equal(fclose(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
