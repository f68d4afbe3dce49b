/* link: qr_transport */
/* Sequences, epochs and credit of a pair of actors, by hand. */
#include "transport/pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static qr_pairs_t *scheduler, *worker, *router;
static uint64_t sequence;

static int setup(void **state)
{
    (void)state;
    scheduler = calloc(1, sizeof *scheduler);
    worker = calloc(1, sizeof *worker);
    router = calloc(1, sizeof *router);
    qr_pairs_init(scheduler, qr_address(1, 0, QR_ROLE_scheduler, 0));
    qr_pairs_init(worker, qr_address(1, 0, QR_ROLE_worker, 0));
    qr_pairs_init(router, qr_address(2, 0, QR_ROLE_router, 0));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(scheduler);
    free(worker);
    free(router);
    return 0;
}

static qr_pair_t *to(qr_pairs_t *pairs, const qr_pairs_t *other) { return qr_pairs_get(pairs, other->self); }
static qr_verdict_t say(qr_pairs_t *from, const qr_pairs_t *other, uint16_t type)
{
    return qr_pairs_send(from, to(from, other), type, &sequence);
}
static qr_verdict_t hear(qr_pairs_t *at, const qr_pairs_t *from, uint16_t type, uint64_t epoch, uint64_t number)
{
    return qr_pairs_receive(at, to(at, from), type, epoch, number);
}

static void test_roles_decide(void **state)
{
    (void)state;
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_submit), QR_VERDICT_OK);
    assert_int_equal(say(scheduler, worker, QR_MESSAGE_submit), QR_VERDICT_ROLE);
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_alarm), QR_VERDICT_ROLE);
    assert_int_equal(say(worker, scheduler, 99), QR_VERDICT_ROLE);
    assert_int_equal(hear(worker, scheduler, QR_MESSAGE_stop, 1, 1), QR_VERDICT_ROLE);
    assert_int_equal(qr_pair_window(QR_ROLE_mesh, QR_ROLE_worker, QR_MESSAGE_stop), 1);
    assert_int_equal(qr_pair_window(QR_ROLE_worker, QR_ROLE_mesh, QR_MESSAGE_stopped), 1);
    assert_int_equal(qr_pair_window(QR_ROLE_http, QR_ROLE_worker, QR_MESSAGE_stop), 0);
    assert_int_equal(qr_pair_window(QR_ROLE_scheduler, QR_ROLE_executor, QR_MESSAGE_batch_run), QR_BATCHES_IN_FLIGHT);
}

static void test_questions_have_a_window_and_one_answer(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= 16; i++) {
        assert_int_equal(say(worker, scheduler, QR_MESSAGE_probe), QR_VERDICT_OK);
        assert_int_equal(sequence, i);
        assert_int_equal(hear(scheduler, worker, QR_MESSAGE_probe, 5, i), QR_VERDICT_OK);
    }
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_probe), QR_VERDICT_CREDIT);
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_probe, 5, 17), QR_VERDICT_CREDIT);
    for (uint64_t i = 1; i <= 16; i++) {
        assert_int_equal(say(scheduler, worker, QR_MESSAGE_probe_done), QR_VERDICT_OK);
        assert_int_equal(hear(worker, scheduler, QR_MESSAGE_probe_done, 5, i), QR_VERDICT_OK);
    }
    assert_int_equal(say(scheduler, worker, QR_MESSAGE_probe_done), QR_VERDICT_QUESTION);
    assert_int_equal(hear(worker, scheduler, QR_MESSAGE_probe_done, 5, 17), QR_VERDICT_QUESTION);
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_probe), QR_VERDICT_OK);
}

static void test_order_inside_a_node_and_between_nodes(void **state)
{
    (void)state;
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_submit, 5, 1), QR_VERDICT_OK);
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_submit, 5, 1), QR_VERDICT_STALE);
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_submit, 5, 3), QR_VERDICT_GAP);
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_submit, 5, 2), QR_VERDICT_OK);
    assert_int_equal(hear(scheduler, worker, QR_MESSAGE_submit, 6, 1), QR_VERDICT_STALE); /* no second epoch inside a node */
    assert_int_equal(hear(worker, router, QR_MESSAGE_offer, 5, 4), QR_VERDICT_OK);
    assert_int_equal(hear(worker, router, QR_MESSAGE_offer, 5, 9), QR_VERDICT_OK); /* what a session's end lost */
    assert_int_equal(hear(worker, router, QR_MESSAGE_offer, 5, 9), QR_VERDICT_STALE);
    assert_int_equal(hear(worker, router, QR_MESSAGE_offer, 6, 1), QR_VERDICT_OK); /* restarted */
}

static void test_notices_within_a_question(void **state)
{
    (void)state;
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_submit_cancel), QR_VERDICT_CREDIT); /* nothing was submitted */
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_submit), QR_VERDICT_OK);
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_submit_cancel), QR_VERDICT_OK);
    assert_int_equal(say(worker, scheduler, QR_MESSAGE_submit_cancel), QR_VERDICT_CREDIT);
}

static void test_the_end_of_a_session_closes_questions(void **state)
{
    (void)state;
    assert_int_equal(say(router, worker, QR_MESSAGE_offer), QR_VERDICT_OK);
    assert_int_equal(hear(router, worker, QR_MESSAGE_tokens, 5, 1), QR_VERDICT_OK);
    qr_pairs_close_node(router, 7);
    assert_int_equal(to(router, worker)->asked[QR_MESSAGE_offer], 1);
    qr_pairs_close_node(router, 1);
    assert_int_equal(hear(router, worker, QR_MESSAGE_offer_accepted, 5, 2), QR_VERDICT_QUESTION);
    assert_int_equal(say(router, worker, QR_MESSAGE_tokens_taken), QR_VERDICT_QUESTION);
    assert_int_equal(hear(router, worker, QR_MESSAGE_tokens, 5, 3), QR_VERDICT_OK); /* its window of one is free again */
}

static void test_the_table_of_partners_is_bounded(void **state)
{
    (void)state;
    for (uint32_t node = 2; node < 2 + QR_PAIRS_MAX; node++) assert_non_null(qr_pairs_get(worker, qr_address(node, 0, QR_ROLE_router, 0)));
    assert_null(qr_pairs_get(worker, qr_address(9999, 0, QR_ROLE_router, 0)));
    assert_non_null(qr_pairs_get(worker, qr_address(2, 0, QR_ROLE_router, 0)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_roles_decide),
        TEST(test_questions_have_a_window_and_one_answer),
        TEST(test_order_inside_a_node_and_between_nodes),
        TEST(test_notices_within_a_question),
        TEST(test_the_end_of_a_session_closes_questions),
        TEST(test_the_table_of_partners_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
