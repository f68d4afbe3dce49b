/* link: qr_actor_decisions qr_schema */
/* Decisions on their way to facts: batches, one question, a bound. */
#include "actors/decisions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static qr_outbox_t *outbox;
static qr_message_t messages[4];
static uint8_t *bytes;
static qr_decisions_t queue;

static int set_up(void **state)
{
    (void)state;
    outbox = calloc(1, sizeof *outbox);
    bytes = aligned_alloc(64, 1 << 20);
    qr_outbox_init(outbox, messages, 4, bytes, 1 << 20);
    queue = (qr_decisions_t){.facts = 99};
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    free(outbox);
    free(bytes);
    return 0;
}

static void add(uint64_t id, uint64_t now_us)
{
    const qr_decision_t d = {
        .request_id = id, .made_us = now_us - 7, .predicted_ssd_ns = 5, .ssd_rows = 64, .choice = QR_SOURCE_SSD, .chain = {9}};
    qr_decisions_add(&queue, &d, now_us);
}
static void flush(uint64_t now_us, bool all)
{
    qr_outbox_reset(outbox, 4);
    outbox->alarm_us = QR_NEVER_US;
    qr_decisions_send(&queue, now_us, all, outbox);
}
static const qr_decisions_note_t *note(void)
{
    assert_int_equal(outbox->count, 1);
    assert_int_equal(messages[0].to, 99);
    assert_int_equal(messages[0].type, QR_MESSAGE_decisions_note);
    return &messages[0].body.decisions_note;
}

static void test_they_go_together_and_one_question_is_open(void **state)
{
    (void)state;
    flush(10, false);
    assert_int_equal(outbox->count, 0);
    assert_true(outbox->alarm_us == QR_NEVER_US);
    add(1, 1000);
    add(2, 2000);
    flush(2000, false);
    assert_int_equal(outbox->count, 0);
    assert_int_equal(outbox->alarm_us, 1000 + QR_DECISIONS_US);
    flush(1000 + QR_DECISIONS_US, false);
    assert_int_equal(note()->request_ids.count, 2);
    assert_int_equal(note()->request_ids.data[1], 2);
    assert_int_equal(note()->ages_us.data[0], QR_DECISIONS_US + 7);
    assert_int_equal(note()->chains.count, 64);
    assert_int_equal(note()->chains.data[32], 9);
    assert_int_equal(note()->choices.data[0], QR_SOURCE_SSD);
    assert_int_equal(note()->ssd_rows.data[1], 64);
    add(3, 300000);
    flush(900000, true);
    assert_int_equal(outbox->count, 0); /* the first is not answered */
    qr_decisions_answered(&queue);
    flush(300001, true); /* an actor that stops waits for nothing */
    assert_int_equal(note()->request_ids.data[0], 3);
    assert_int_equal(note()->sequence, 2);
}

static void test_half_of_the_room_is_reason_enough(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < QR_DECISIONS_MAX / 2; i++) add(i, 5000);
    flush(5000, false);
    assert_int_equal(outbox->count, 0);
    add(77, 5000);
    flush(5000, false);
    assert_int_equal(note()->request_ids.count, QR_DECISIONS_MAX / 2);
}

static void test_at_the_bound_the_new_one_is_dropped_and_counted(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < QR_DECISIONS_MAX + 3; i++) add(i, 5000);
    assert_int_equal(queue.count, QR_DECISIONS_MAX);
    flush(5000, false);
    assert_int_equal(note()->request_ids.count, QR_DECISIONS_MAX);
    assert_int_equal(note()->request_ids.data[QR_DECISIONS_MAX - 1], QR_DECISIONS_MAX - 1);
    assert_int_equal(note()->dropped, 3);
    queue = (qr_decisions_t){.facts = 0};
    add(1, 1);
    assert_int_equal(queue.count + queue.dropped, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_they_go_together_and_one_question_is_open, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_half_of_the_room_is_reason_enough, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_at_the_bound_the_new_one_is_dropped_and_counted, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
