/* link: qr_messages */
/* print_test.c - the one line of a message. */
#include "base/error.h"
#include "messages/print.h"
#include "messages/random.h"
#include "messages/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static char line[4096];

static const char *print(const qr_message_t *message)
{
    qr_text_t text;
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
    return line;
}

static void test_lines(void **state)
{
    (void)state;
    uint32_t tokens[12] = {5, 9, QR_TOKEN_PREVIOUS, QR_TOKEN_NONE, 1, 2, 3, 4, 5, 6, 7, 8}, statuses[2] = {0, QR_E_NUMERIC};
    uint64_t lanes[2] = {qr_handle(1, 2), 7}, partners[1] = {qr_address(3, 1, QR_ROLE_heartbeat, 2)};
    qr_message_t m = {.type = QR_MESSAGE_text_encoded,
                      .from = qr_address(1, 0, QR_ROLE_text, 0),
                      .to = qr_address(1, 0, QR_ROLE_gateway, 0),
                      .body.text_encoded = {.request_id = 7, .tokens = {tokens, 12}}};
    assert_string_equal(print(&m), "text_encoded 1.0.text.0 > 1.0.gateway.0 request_id=7 tokens[12]=5,9,previous,none,1,2,3,4,...");
    m = (qr_message_t){
        .type = QR_MESSAGE_batch_done,
        .from = qr_address(2, 1, QR_ROLE_executor, 0),
        .to = qr_address(2, 1, QR_ROLE_scheduler, 0),
        .body.batch_done = {.batch = 9, .lanes = {lanes, 2}, .statuses = {statuses, 2}, .tokens = {tokens, 2}, .step_us = 5}};
    assert_string_equal(print(&m), "batch_done 2.1.executor.0 > 2.1.scheduler.0 batch=9 lanes[2]=8589934593,7 statuses[2]=0,NUMERIC "
                                   "tokens[2]=5,9 logprob_bits[0]= step_us=5");
    m = (qr_message_t){
        .type = QR_MESSAGE_request_refused,
        .body.request_refused = {
            .key = 1, .reason = QR_E_CONTEXT, .param = {(const uint8_t *)"max_tokens", 10}, .text = {(const uint8_t *)"no\n", 3}}};
    assert_string_equal(print(&m), "request_refused 0.0.0.0 > 0.0.0.0 key=1 reason=CONTEXT param[10]=\"max_tokens\" text[3]=\"no\\x0a\"");
    m = (qr_message_t){.type = QR_MESSAGE_start, .body.start = {.epoch = 3, .seed = 4, .partners = {partners, 1}}};
    assert_string_equal(print(&m), "start 0.0.0.0 > 0.0.0.0 epoch=3 seed=4 partners[1]=3.1.heartbeat.2");
    m = (qr_message_t){.type = QR_MESSAGE_place_refused, .body.place_refused = {.request_id = 3, .reason = 4711}};
    assert_string_equal(print(&m), "place_refused 0.0.0.0 > 0.0.0.0 request_id=3 reason=4711");
    m = (qr_message_t){.type = QR_MESSAGE_cache_dropped, .body.cache_dropped = {1, 2, 3}};
    assert_string_equal(print(&m), "cache_dropped 0.0.0.0 > 0.0.0.0 pages_free=1 pages_held=2 pages_pool=3");
    m = (qr_message_t){.type = QR_MESSAGE_lane_open, .body.lane_open = {.temperature_bits = 0x3f800000}};
    assert_non_null(strstr(print(&m), " temperature_bits=0x3f800000 top_p_bits=0x00000000 "));
    m = (qr_message_t){.type = QR_MESSAGE_pages_reserve, .body.pages_reserve.scope = {{0xab, 0xcd}}};
    assert_non_null(strstr(print(&m), " scope=abcd000000000000 "));
    m = (qr_message_t){.type = 127};
    assert_string_equal(print(&m), "type 127 0.0.0.0 > 0.0.0.0");
    m = (qr_message_t){.type = QR_MESSAGE_ended, .body.ended = {.error = QR_E_DEVICE, .cached_tokens = UINT32_MAX}};
    assert_non_null(strstr(print(&m), " error=DEVICE cached_tokens=4294967295 "));
}

/* Any message prints, names itself, and is cut without overflow in a small buffer. */
static void test_any(void **state)
{
    (void)state;
    static uint64_t memory[1 << 20];
    qr_prng_t prng;
    qr_message_t message;
    qr_arena_t arena;
    qr_prng_init(&prng, 3);
    for (int round = 0; round < 400; round++) {
        qr_arena_init(&arena, memory, sizeof memory);
        qr_random_message(&prng, (uint32_t)round % QR_RANDOM_MODES, qr_random_type(&prng), &arena, &message);
        const char *name = qr_schema_find(message.type)->name;
        assert_memory_equal(print(&message), name, strlen(name));
        char *small = malloc(40);
        qr_text_t text;
        qr_text_init(&text, small, 40);
        qr_print_message(&text, &message);
        assert_true(strlen(small) < 40);
        free(small);
    }
}

static void test_role_names(void **state)
{
    (void)state;
    assert_string_equal(qr_role_name(QR_ROLE_page_manager), "page_manager");
    assert_string_equal(qr_role_name(0), "unknown");
    assert_string_equal(qr_role_name(255), "unknown");
    assert_int_equal(qr_role_find("prompt"), QR_ROLE_prompt);
    assert_int_equal(qr_role_find("page_manage"), 0);
    assert_int_equal(qr_role_find("unknown"), 0);
    for (uint8_t role = 1; role <= QR_ROLE_prompt; role++) assert_int_equal(qr_role_find(qr_role_name(role)), role);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_any), cmocka_unit_test(test_role_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
