/* link: qr_messages */
/* outbox_test.c - what a handler sends is a deep copy that survives its sender. */
#include "actors/outbox.h"
#include "messages/random.h"
#include "messages/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void test_deep_copy(void **state)
{
    (void)state;
    static qr_outbox_t outbox;
    static qr_message_t messages[2], sent;
    static uint64_t bytes[QR_OUTBOX_BYTES / 8], memory[1 << 15];
    qr_arena_t arena;
    qr_prng_t prng;
    qr_prng_init(&prng, 1);
    qr_outbox_init(&outbox, messages, 2, bytes, sizeof bytes);
    assert_true(outbox.alarm_us == QR_NEVER_US && outbox.count == 0);
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
        const qr_schema_t *row = qr_schema_find(type);
        if (!row) continue;
        qr_arena_init(&arena, memory, sizeof memory);
        qr_random_message(&prng, QR_RANDOM_PLAIN, type, &arena, &sent);
        qr_outbox_reset(&outbox, 2);
        qr_outbox_send(&outbox, 42, type, &sent.body);
        qr_outbox_send(&outbox, 43, type, &sent.body);
        qr_message_t kept = sent;
        static uint64_t kept_memory[1 << 15];
        memcpy(kept_memory, memory, sizeof memory);
        memset(memory, 0xdd, sizeof memory); /* the sender's scratch is gone */
        assert_int_equal(outbox.count, 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(messages[i].type, type);
            assert_int_equal(messages[i].version, 1);
            assert_int_equal(messages[i].to, 42 + i);
            assert_int_equal(messages[i].from, 0);
            for (uint32_t f = 0; f < row->field_count; f++) {
                const qr_field_t *field = &row->fields[f];
                if (!qr_kind_is_column(field->kind)) {
                    assert_memory_equal((uint8_t *)&messages[i].body + field->offset, (uint8_t *)&kept.body + field->offset,
                                        qr_kind_bytes(field->kind));
                    continue;
                }
                qr_column_t was = qr_column_get(&kept.body, field), is = qr_column_get(&messages[i].body, field);
                assert_int_equal(is.count, was.count);
                assert_int_equal((uintptr_t)is.data & 7, 0);
                if (was.count == 0)
                    assert_null(is.data);
                else
                    assert_memory_equal(is.data, (const uint8_t *)kept_memory + ((const uint8_t *)was.data - (const uint8_t *)memory),
                                        was.count * qr_kind_bytes(field->kind));
            }
        }
    }
}

static void test_typed_send_and_alarm(void **state)
{
    (void)state;
    static qr_outbox_t outbox;
    qr_message_t messages[1];
    uint64_t bytes[4];
    uint32_t tokens[] = {1, 2, 3};
    qr_outbox_init(&outbox, messages, 1, bytes, sizeof bytes);
    qr_text_encoded_t body = {.request_id = 9, .tokens = {tokens, 3}};
    qr_send(&outbox, 5, text_encoded, &body);
    assert_int_equal(messages[0].body.text_encoded.tokens.data[2], 3);
    assert_int_equal(outbox.bytes_used, 16);
    qr_outbox_alarm(&outbox, 100);
    qr_outbox_alarm(&outbox, 200);
    assert_int_equal(outbox.alarm_us, 100);
    qr_outbox_reset(&outbox, 1);
    assert_int_equal(outbox.alarm_us, 100);
    assert_int_equal(outbox.count + outbox.bytes_used, 0);
}

static void test_notes_bounded(void **state)
{
    (void)state;
    static qr_outbox_t outbox;
    qr_outbox_init(&outbox, NULL, 0, NULL, 0);
    for (uint64_t i = 0; i < QR_NOTES_MAX + 5; i++) qr_outbox_note(&outbox, 2, 7, i, i + 1, i + 2, i + 3);
    assert_int_equal(outbox.note_count, QR_NOTES_MAX);
    assert_int_equal(outbox.notes_dropped, 5);
    assert_int_equal(outbox.notes[QR_NOTES_MAX - 1].request_id, QR_NOTES_MAX - 1);
    assert_int_equal(outbox.notes[3].c, 6);
    qr_outbox_reset(&outbox, 0);
    assert_int_equal(outbox.note_count + outbox.notes_dropped, 0);
}

/* Runs one send in a child; whether it ended in the assert hook. */
static bool send_aborts(uint32_t capacity, uint64_t bytes_capacity, uint16_t type, const void *body)
{
    static qr_outbox_t outbox;
    static qr_message_t messages[4];
    static uint64_t bytes[8];
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        qr_outbox_init(&outbox, messages, capacity, bytes, bytes_capacity);
        qr_outbox_send(&outbox, 1, type, body);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* O1: what does not fit is our own mistake and ends the process. */
static void test_bounds_are_asserted(void **state)
{
    (void)state;
    uint64_t words[4] = {0};
    qr_text_encoded_t small = {.tokens = {(const uint32_t *)(const void *)words, 4}},
                      wraps = {.tokens = {(const uint32_t *)(const void *)words, UINT64_MAX / 4 + 2}}, nowhere = {.tokens = {NULL, 1}};
    assert_false(send_aborts(1, 16, QR_MESSAGE_text_encoded, &small));
    assert_true(send_aborts(0, 16, QR_MESSAGE_text_encoded, &small));
    assert_true(send_aborts(1, 15, QR_MESSAGE_text_encoded, &small));
    assert_true(send_aborts(1, 16, QR_MESSAGE_text_encoded, &wraps));
    assert_true(send_aborts(1, 16, QR_MESSAGE_text_encoded, &nowhere));
    assert_true(send_aborts(1, 16, 127, &small));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deep_copy),
        cmocka_unit_test(test_typed_send_and_alarm),
        cmocka_unit_test(test_notes_bounded),
        cmocka_unit_test(test_bounds_are_asserted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
