/* link: qr_io_http_json qr_io_http_continuation qr_io_http_answer qr_schema qr_base */
/* http_json.c - any bytes as the body of a request: no crash; a request that keeps its limits, or one small error in valid JSON.
 * The rest of the input is what a model said: every event and body written of it is valid JSON. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "actors/io/http_answer.h"
#include "base/error.h"

enum { VOCABULARY = 256 };

static void expect(bool fact, const char *what)
{
    if (fact) return;
    fprintf(stderr, "http_json fuzz: %s\n", what);
    abort();
}

static void check_json(const char *text, size_t bytes)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    expect(root != NULL, error.text);
    json_decref(root);
}

static void check_request(const qr_http_request_t *r, bool chat)
{
    const uint32_t most = 0x7f7fffffu;
    uint64_t sum = 0, stops = 0;
    expect(r->kind == QR_INPUT_TEXT || r->kind == QR_INPUT_TOKENS || r->kind == QR_INPUT_CHAT, "no kind");
    expect((r->kind == QR_INPUT_CHAT) == chat, "the wrong kind");
    expect(r->temperature_bits <= most && r->top_p_bits <= 0x3f800000u && r->min_p_bits <= 0x3f800000u, "a number out of range");
    expect(r->max_tokens <= QR_CONTEXT_MAX && r->stop_count <= QR_STOPS_MAX && r->cache_salt_bytes <= QR_SALT_BYTES_MAX, "a limit");
    for (size_t i = 0; i < r->token_count; i++) expect(r->tokens[i] < VOCABULARY, "a token id");
    for (uint32_t i = 0; i < r->message_count; i++) sum += r->lengths[i];
    expect(!chat || (sum == r->text_bytes && r->message_count > 0 && r->message_count <= QR_CHAT_MESSAGES_MAX),
           "the messages do not add up");
    for (uint32_t i = 0; i < r->stop_count; i++) {
        expect(r->stop_lengths[i] > 0 && r->stop_lengths[i] <= QR_STOP_BYTES_MAX, "a stop string");
        stops += r->stop_lengths[i];
    }
    expect(stops <= sizeof r->stop, "the stop strings");
}

static void check_answer(const qr_http_request_t *request, const uint8_t *said, size_t count)
{
    static uint32_t offsets[VOCABULARY + 1], tokens[4096], bits[4096];
    static uint8_t bytes[VOCABULARY], flags[VOCABULARY];
    qr_http_answer_t a;
    qr_hash_t fingerprint = {{1}};
    qr_http_buffer_t out = {0};
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        offsets[i + 1] = i + 1;
        bytes[i] = (uint8_t)i;
    }
    const qr_vocabulary_t v = {VOCABULARY, 0, offsets, bytes, flags};
    count = qr_min_u64(count, QR_COUNT(tokens));
    for (size_t i = 0; i < count; i++) {
        tokens[i] = said[i] == 255 ? VOCABULARY : said[i]; /* one outside the vocabulary too */
        bits[i] = (uint32_t)said[i] * 0x01010101u;
    }
    qr_http_answer_init(&a, request, "m\"\\", &fingerprint, 1, 2);
    qr_http_answer_delta(&a, &v, (qr_bytes_t){said, count / 2}, tokens, bits, count / 2, &out);
    qr_http_answer_delta(&a, &v, (qr_bytes_t){said + count / 2, count - count / 2}, tokens + count / 2, bits + count / 2, count - count / 2,
                         &out);
    qr_request_finished_t finished = {.finish = QR_FINISH_LENGTH};
    qr_http_answer_finish(&a, &v, &finished, &out);
    expect(!out.failed, "memory");
    if (request->stream) {
        qr_http_put_bytes(&out, "", 1);
        for (char *at = out.data; *at;) {
            char *end = strstr(at, "\n\n");
            expect(!strncmp(at, "data: ", 6) && end, "an event's shape");
            if (strncmp(at + 6, "[DONE]", 6) != 0) check_json(at + 6, (size_t)(end - at - 6));
            at = end + 2;
        }
    } else {
        check_json(out.data, out.count);
    }
    qr_http_buffer_done(&out);
    qr_http_answer_done(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    bool chat = data[0] & 1;
    size_t body = (size_t)data[1] * (size - 2) / 255;
    const qr_http_limits_t limits = {"tiny", VOCABULARY, data[0] & 2 ? 32 : 0};
    qr_http_request_t request;
    qr_http_error_t error;
    if (qr_http_request_parse((const char *)data + 2, body, chat, &limits, &request, &error)) {
        qr_http_buffer_t out = {0};
        qr_http_put_error(&out, &error);
        expect(out.count <= QR_HTTP_ERROR_BYTES_MAX && error.status >= 400, "an error");
        check_json(out.data, out.count);
        qr_http_buffer_done(&out);
        memset(&request, 0, sizeof request);
        request.chat = chat;
        request.stream = data[0] & 4;
        request.logprobs = data[0] & 8;
        request.token_ids = data[0] & 16;
    } else {
        check_request(&request, chat);
    }
    check_answer(&request, data + 2 + body, size - 2 - body);
    qr_http_request_done(&request);
    return 0;
}
