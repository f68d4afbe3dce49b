/* link: qr_io_http_json qr_io_http_continuation qr_io_http_answer qr_io_http_metrics qr_schema qr_base */
/* http_json_test.c - the writer against jansson's reader, and the parser's corners that need no socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include <jansson.h>

#include "actors/io/http_answer.h"
#include "base/error.h"

static const qr_http_limits_t limits = {"tiny", 1000, 64};

static char *text_of(qr_http_buffer_t *b)
{
    qr_http_put_bytes(b, "", 1);
    assert_false(b->failed);
    return b->data;
}

/* Whatever bytes: a valid JSON string comes out, and it reads back as they were where they were UTF-8. */
static void test_escape(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        uint8_t bytes[40];
        size_t count = (size_t)round % 40;
        for (size_t i = 0; i < count; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = round % 2 ? (uint8_t)(seed >> 56) : (uint8_t)(seed >> 57);
        }
        qr_http_buffer_t b = {0};
        qr_http_put(&b, "[\"");
        qr_http_put_escaped(&b, bytes, count);
        qr_http_put(&b, "\"]");
        json_error_t error;
        json_t *root = json_loads(text_of(&b), JSON_ALLOW_NUL, &error);
        if (!root) fail_msg("%s: %s", error.text, b.data);
        const json_t *string = json_array_get(root, 0);
        if (round % 2 == 0) { /* ASCII: the same bytes */
            assert_int_equal(json_string_length(string), count);
            if (count) assert_memory_equal(json_string_value(string), bytes, count);
        }
        json_decref(root);
        qr_http_buffer_done(&b);
    }
    static const char mixed[] = "a\"\\\b\f\n\r\t\x01\x7f/\xC3\xA9\xF0\x9F\x98\x80\xED\xA0\x80\xC0\xAF";
    qr_http_buffer_t b = {0};
    qr_http_put_escaped(&b, mixed, sizeof mixed - 1);
    assert_string_equal(text_of(&b), "a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u007f/\xC3\xA9\xF0\x9F\x98\x80"
                                     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    qr_http_buffer_done(&b);
}

/* Every float survives: nine digits are enough for binary32. */
static void test_floats(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value, back;
        memcpy(&value, &seed, 4);
        qr_http_buffer_t b = {0};
        qr_http_put_float(&b, seed);
        if ((seed & 0x7f800000u) == 0x7f800000u) {
            assert_string_equal(text_of(&b), "null");
        } else {
            back = strtof(text_of(&b), NULL);
            assert_memory_equal(&back, &value, 4);
        }
        qr_http_buffer_done(&b);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        uint32_t reason, status;
        const char *type, *code;
    } map[] = {
        {QR_E_INVALID, 400, "invalid_request_error", NULL},
        {QR_E_CONTEXT, 400, "invalid_request_error", "context_length_exceeded"},
        {QR_E_MODEL, 404, "invalid_request_error", "model_not_found"},
        {QR_E_BUSY, 429, "rate_limit_error", "rate_limit_exceeded"},
        {QR_E_NO_WORKER, 503, "server_error", "no_worker"},
        {QR_E_DRAINING, 503, "server_error", "draining"},
        {QR_E_PEER_DOWN, 503, "server_error", "peer_down"},
        {QR_E_DEADLINE, 504, "server_error", "deadline"},
        {QR_E_NUMERIC, 500, "server_error", "numeric"},
        {9999, 500, "server_error", "internal_error"},
    };
    for (size_t i = 0; i < QR_COUNT(map); i++) {
        qr_http_error_t error;
        qr_http_error_reason(&error, map[i].reason, (qr_bytes_t){0}, (qr_bytes_t){0}, 2500);
        assert_int_equal(error.status, map[i].status);
        assert_string_equal(error.type, map[i].type);
        if (map[i].code)
            assert_string_equal(error.code, map[i].code);
        else
            assert_null(error.code);
        assert_int_equal(error.retry_after_s, map[i].status == 429 || map[i].status == 503 ? 3 : 0);
    }
    uint8_t long_text[5000];
    memset(long_text, 1, sizeof long_text);
    qr_http_error_t error;
    qr_http_error_reason(&error, QR_E_INVALID, (qr_bytes_t){long_text, sizeof long_text}, (qr_bytes_t){long_text, sizeof long_text}, 0);
    qr_http_buffer_t b = {0};
    qr_http_put_error(&b, &error);
    assert_true(b.count <= QR_HTTP_ERROR_BYTES_MAX);
    json_t *root = json_loads(text_of(&b), 0, NULL);
    assert_non_null(root);
    json_decref(root);
    qr_http_buffer_done(&b);
}

static void test_parse(void **state)
{
    (void)state;
    qr_http_request_t r;
    qr_http_error_t error;
    static const char body[] =
        "{\"prompt\":\"\\u00e9\\ud83d\\ude00\",\"max_tokens\":99999999999,\"max_completion_tokens\":7,\"top_k\":-1,\"temperature\":-0.0,"
        "\"seed\":-1,\"stop\":[\"ab\",\"c\"]}";
    assert_int_equal(qr_http_request_parse(body, sizeof body - 1, false, &limits, &r, &error), 0);
    assert_int_equal(r.text_bytes, 6);
    assert_memory_equal(r.text, "\xC3\xA9\xF0\x9F\x98\x80", 6);
    assert_true(r.max_tokens == 7 && r.top_k == 0 && r.temperature_bits == 0 && r.seed_given && r.seed == UINT64_MAX);
    assert_true(r.stop_count == 2 && r.stop_lengths[0] == 2 && r.stop_lengths[1] == 1 && !memcmp(r.stop, "abc", 3));
    qr_http_request_done(&r);
    static const char swapped[] = "{\"max_completion_tokens\":7,\"max_tokens\":9,\"prompt\":\"x\"}";
    assert_int_equal(qr_http_request_parse(swapped, sizeof swapped - 1, false, &limits, &r, &error), 0);
    assert_int_equal(r.max_tokens, 7); /* the newer name wins in either order */
    qr_http_request_done(&r);
    char many[600] = "{\"prompt\":[1";
    for (int i = 0; i < 64; i++) strcat(many, ",1");
    strcat(many, "]}");
    assert_int_equal(qr_http_request_parse(many, strlen(many), false, &limits, &r, &error), -QR_E_CONTEXT);
    assert_string_equal(error.code, "context_length_exceeded");
    assert_null(r.tokens);
    static const char null_text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}";
    assert_int_equal(qr_http_request_parse(null_text, sizeof null_text - 1, true, &limits, &r, &error), 0);
    assert_int_equal(r.lengths[0], 3);
    qr_http_request_done(&r);
    /* a NUL ends no name */
    static const char role[] = "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"a\"}]}";
    assert_int_equal(qr_http_request_parse(role, sizeof role - 1, true, &limits, &r, &error), -QR_E_INVALID);
    assert_string_equal(error.param, "messages[0].role");
    static const char model[] = "{\"prompt\":\"a\",\"model\":\"default\\u0000x\"}";
    assert_int_equal(qr_http_request_parse(model, sizeof model - 1, false, &limits, &r, &error), -QR_E_MODEL);
    /* numbers that fit nothing: what is said about them is true of them */
    static const char real[] = "{\"prompt\":\"a\",\"temperature\":1e999}", whole[] = "{\"prompt\":\"a\",\"seed\":9223372036854775808}";
    assert_int_equal(qr_http_request_parse(real, sizeof real - 1, false, &limits, &r, &error), -QR_E_INVALID);
    assert_null(strstr(error.message, "whole"));
    assert_non_null(strstr(error.message, "1.8e308"));
    assert_int_equal(qr_http_request_parse(whole, sizeof whole - 1, false, &limits, &r, &error), -QR_E_INVALID);
    assert_non_null(strstr(error.message, "whole"));
    char deep[5000] = "{\"user\":";
    for (int i = 0; i < 2100; i++) strcat(deep, "[");
    assert_true(qr_http_request_parse(deep, strlen(deep), false, &limits, &r, &error) < 0);
}

/* A character cut over tokens: the pieces name their bytes, offsets count characters, the whole text is right. */
static void test_split_character(void **state)
{
    (void)state;
    static const uint32_t offsets[] = {0, 1, 4, 5, 7, 10};
    static const uint8_t bytes[] = "I\xF0\x9F\x98\x81<>\xED\xA0\x80", flags[] = {0, 0, 0, QR_TOKEN_SPECIAL, 0};
    const qr_vocabulary_t v = {5, 0, offsets, bytes, flags};
    const uint32_t tokens[] = {0, 1, 2, 3, 4}, bits[] = {0, 0xbf800000u, 0x80000000u, 0x7f800000u, 0};
    qr_http_request_t request = {.logprobs = true};
    qr_http_answer_t a;
    qr_hash_t none = {0};
    qr_http_buffer_t out = {0};
    qr_http_answer_init(&a, &request, "m", &none, 1, 2);
    qr_http_answer_delta(&a, &v, (qr_bytes_t){bytes, 1}, tokens, bits, 2, &out);
    qr_http_answer_delta(&a, &v, (qr_bytes_t){bytes + 1, 4}, tokens + 2, bits + 2, 3, &out);
    assert_int_equal(out.count, 0);
    qr_request_finished_t finished = {.finish = QR_FINISH_STOP, .completion_tokens = 5};
    qr_http_answer_finish(&a, &v, &finished, &out);
    json_t *root = json_loads(text_of(&out), 0, NULL);
    assert_non_null(root);
    const json_t *one = json_array_get(json_object_get(root, "choices"), 0), *l = json_object_get(one, "logprobs");
    assert_string_equal(json_string_value(json_object_get(one, "text")), "I\xF0\x9F\x98\x81");
    assert_string_equal(json_string_value(json_array_get(json_object_get(l, "tokens"), 1)), "bytes:\\xf0\\x9f\\x98");
    assert_string_equal(json_string_value(json_array_get(json_object_get(l, "tokens"), 4)), "bytes:\\xed\\xa0\\x80"); /* a surrogate */
    assert_true(json_is_null(json_array_get(json_object_get(l, "token_logprobs"), 3)));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 1)), 1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 3)), 2);
    assert_true(json_is_null(json_object_get(root, "system_fingerprint")));
    json_decref(root);
    qr_http_buffer_done(&out);
    qr_http_answer_done(&a);
}

static void test_cleared_buffer(void **state)
{
    (void)state;
    qr_http_buffer_t out = {0};
    qr_http_put(&out, "old");
    out.failed = true; /* as when memory ran out once */
    qr_http_put(&out, "lost");
    qr_http_buffer_clear(&out);
    qr_http_put(&out, "new");
    assert_true(!out.failed && out.count == 3 && !memcmp(out.data, "new", 3));
    qr_http_buffer_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_escape), cmocka_unit_test(test_floats), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_parse), cmocka_unit_test(test_cleared_buffer), cmocka_unit_test(test_split_character)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
