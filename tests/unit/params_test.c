/* link: qr_base */
/* params_test.c - the configuration table: defaults, every row's bounds, errors that name the option and the nearest one. */
#include "base/error.h"
#include "base/params.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { ALL = QR_AUDIENCE_SERVE | QR_AUDIENCE_GENERATE | QR_AUDIENCE_BENCH | QR_AUDIENCE_NODE };

/* Sets and compares the code; on failure params must be untouched and the sentence must say `part`. */
static void check_set(qr_params_t *params, const char *name, const char *value, uint32_t audience, int code, const char *part)
{
    qr_params_t before = *params;
    char message[200] = "?";
    int rc = qr_params_set(params, name, value, audience, message, sizeof message);
    if (rc != -code || (part && !strstr(message, part))) print_error("%s=%s: %d %s\n", name, value, rc, message);
    assert_int_equal(rc, -code);
    if (code) assert_memory_equal(params, &before, sizeof before);
    if (part) assert_non_null(strstr(message, part));
    if (!code) assert_string_equal(message, "");
}

static void test_defaults(void **state)
{
    (void)state;
    qr_params_t params;
    memset(&params, 0xff, sizeof params);
    qr_params_init(&params);
    assert_string_equal(params.listen, "127.0.0.1:8080");
    assert_string_equal(params.model, "");
    assert_int_equal(params.page_tokens, 16);
    assert_int_equal(params.chunk_tokens, 256);
    assert_int_equal(params.step_budget_us, 25000);
    assert_int_equal(params.device, QR_DEVICE_CPU);
    assert_int_equal(params.isa, QR_ISA_AUTO);
}

static void test_values(void **state)
{
    (void)state;
    qr_params_t params;
    qr_params_init(&params);
    check_set(&params, "max-lanes", "8", ALL, 0, NULL);
    check_set(&params, "max_lanes", "9", ALL, 0, NULL);
    assert_int_equal(params.max_lanes, 9);
    check_set(&params, "isa", "avx512", ALL, 0, NULL);
    assert_int_equal(params.isa, QR_ISA_AVX512);
    check_set(&params, "device", "opencl", ALL, 0, NULL);
    assert_int_equal(params.device, QR_DEVICE_OPENCL);
    check_set(&params, "model", "a/b.gguf", ALL, 0, NULL);
    assert_string_equal(params.model, "a/b.gguf");
    check_set(&params, "model", "", ALL, 0, NULL);
    assert_string_equal(params.model, "");
    check_set(&params, "seed", "18446744073709551615", ALL, 0, NULL);
    assert_true(params.seed == UINT64_MAX);
}

static void test_errors(void **state)
{
    (void)state;
    qr_params_t params;
    char longest[QR_PARAM_TEXT_BYTES + 1];
    qr_params_init(&params);
    check_set(&params, "max-lane", "8", ALL, QR_E_NOT_FOUND, "did you mean --max-lanes?");
    check_set(&params, "pagetokens", "8", ALL, QR_E_NOT_FOUND, "did you mean --page-tokens?");
    check_set(&params, "modle", "x", ALL, QR_E_NOT_FOUND, "did you mean --model?");
    check_set(&params, "thread", "1", ALL, QR_E_NOT_FOUND, "--threads?");
    check_set(&params, "colour", "red", ALL, QR_E_NOT_FOUND, "--colour is not an option");
    check_set(&params, "", "red", ALL, QR_E_NOT_FOUND, "is not an option");
    check_set(&params, "an-option-name-that-is-longer-than-anything-in-the-table-and-goes-on", "1", ALL, QR_E_NOT_FOUND,
              "is not an option");
    check_set(&params, "record", "d", QR_AUDIENCE_GENERATE, QR_E_NOT_FOUND, "not an option of this command");
    check_set(&params, "recrd", "d", QR_AUDIENCE_GENERATE, QR_E_NOT_FOUND, "--recrd is not an option");
    check_set(&params, "max-lanes", "0", ALL, QR_E_LIMIT, "--max-lanes is out of range: \"0\"; allowed: 1 to 64 lanes");
    check_set(&params, "max-lanes", "65", ALL, QR_E_LIMIT, "1 to 64");
    check_set(&params, "max-lanes", "99999999999999999999999", ALL, QR_E_LIMIT, "1 to 64");
    check_set(&params, "seed", "18446744073709551616", ALL, QR_E_LIMIT, "out of range");
    check_set(&params, "max-lanes", "eight", ALL, QR_E_INVALID, "needs a whole number");
    check_set(&params, "max-lanes", "", ALL, QR_E_INVALID, "needs a whole number");
    check_set(&params, "max-lanes", "-1", ALL, QR_E_INVALID, "needs a whole number");
    check_set(&params, "max-lanes", " 8", ALL, QR_E_INVALID, "needs a whole number");
    check_set(&params, "max-lanes", "8x", ALL, QR_E_INVALID, "needs a whole number");
    check_set(&params, "page-tokens", "24", ALL, QR_E_INVALID, "8, 16, 32, 64 or a multiple of 64");
    check_set(&params, "isa", "avx", ALL, QR_E_INVALID, "choose one of auto|scalar|avx2|avx512");
    check_set(&params, "isa", "", ALL, QR_E_INVALID, "choose one of");
    check_set(&params, "isa", "auto|scalar", ALL, QR_E_INVALID, "choose one of");
    memset(longest, 'm', sizeof longest);
    longest[QR_PARAM_TEXT_BYTES] = 0;
    check_set(&params, "model", longest, ALL, QR_E_LIMIT, "longer than 511 bytes");
    longest[QR_PARAM_TEXT_BYTES - 1] = 0;
    check_set(&params, "model", longest, ALL, 0, NULL);
    for (const char *ok = "8\0"
                          "16\0"
                          "32\0"
                          "64\0"
                          "128\0"
                          "1024\0";
         *ok; ok += strlen(ok) + 1)
        check_set(&params, "page-tokens", ok, ALL, 0, NULL);
}

/* Every NUMBER row takes its ends and its default, and nothing beyond; the default lies inside. */
static void test_every_number(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t least, most, standard;
        size_t offset;
    } numbers[] = {
#define NUMBER(name, least, most, default_value, unit, audience, sentence) {#name, least, most, default_value, offsetof(qr_params_t, name)},
#include "base/params.def"
    };
    qr_params_t params;
    qr_params_init(&params);
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        char value[32];
        uint64_t stored, ends[2] = {numbers[i].least, numbers[i].most};
        memcpy(&stored, (uint8_t *)&params + numbers[i].offset, sizeof stored);
        assert_true(stored == numbers[i].standard);
        assert_true(stored >= ends[0] && stored <= ends[1]);
        for (int end = 0; end < 2; end++) {
            snprintf(value, sizeof value, "%llu", (unsigned long long)ends[end]);
            check_set(&params, numbers[i].name, value, ALL, 0, NULL);
            memcpy(&stored, (uint8_t *)&params + numbers[i].offset, sizeof stored);
            assert_true(stored == ends[end]);
        }
        if (ends[0] > 0) {
            snprintf(value, sizeof value, "%llu", (unsigned long long)ends[0] - 1);
            check_set(&params, numbers[i].name, value, ALL, QR_E_LIMIT, "out of range");
        }
        if (ends[1] < UINT64_MAX) {
            snprintf(value, sizeof value, "%llu", (unsigned long long)ends[1] + 1);
            check_set(&params, numbers[i].name, value, ALL, QR_E_LIMIT, "out of range");
        }
    }
}

static void test_help_and_print(void **state)
{
    (void)state;
    static char memory[16384];
    qr_params_t params, again;
    qr_text_t text;
    qr_params_init(&params);
    qr_text_init(&text, memory, sizeof memory);
    qr_params_help(QR_AUDIENCE_GENERATE, &text);
    assert_false(text.cut);
    assert_non_null(strstr(memory, "  --model TEXT "));
    assert_non_null(strstr(memory, "  --max-lanes N "));
    assert_non_null(strstr(memory, "(default 32; 1 to 64 lanes)"));
    assert_non_null(strstr(memory, "(default auto; auto|scalar|avx2|avx512)"));
    assert_null(strstr(memory, "--record"));
    qr_text_init(&text, memory, sizeof memory);
    qr_params_help(QR_AUDIENCE_SERVE, &text);
    assert_non_null(strstr(memory, "--record "));
    assert_non_null(strstr(memory, "(default 127.0.0.1:8080)"));

    /* What is printed sets the same values again. */
    char message[200];
    assert_int_equal(qr_params_set(&params, "isa", "avx2", ALL, message, sizeof message), 0);
    assert_int_equal(qr_params_set(&params, "model", "a model.gguf", ALL, message, sizeof message), 0);
    qr_text_init(&text, memory, sizeof memory);
    qr_params_print(&params, ALL, &text);
    assert_false(text.cut);
    qr_params_init(&again);
    for (char *line = strtok(memory, "\n"); line; line = strtok(NULL, "\n")) {
        char *value = strstr(line, " = ");
        assert_non_null(value);
        *value = 0;
        value += 3;
        if (*value == '"') value++, value[strlen(value) - 1] = 0;
        assert_int_equal(qr_params_set(&again, line, value, ALL, message, sizeof message), 0);
    }
    assert_memory_equal(&again, &params, sizeof params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_values),         cmocka_unit_test(test_errors),
        cmocka_unit_test(test_every_number), cmocka_unit_test(test_help_and_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
