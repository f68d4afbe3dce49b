/* link: qr_actor_cost qr_actor_calibration qr_schema */
/* What restoring costs against computing, in integers. */
#include "actors/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_configured_until_the_first_sample(void **state)
{
    (void)state;
    qr_cost_t cost = {0};
    qr_calibration_t calibration = {0};
    assert_int_equal(qr_cost_restore_ns(&cost, 10, 2000), 1000000 + 10 * 2000); /* a byte takes 1 ns */
    assert_int_equal(qr_cost_recompute_ns(&calibration, 10), 10000000);
    qr_cost_restore_add(&cost, 0, 99); /* nothing was restored: nothing is learned */
    assert_int_equal(cost.restore_samples, 0);
    qr_cost_restore_add(&cost, 10, 80);
    assert_int_equal(qr_cost_restore_ns(&cost, 10, 2000), 1000000 + 10 * 8000);
    qr_cost_restore_add(&cost, 10, 160);
    assert_int_equal(qr_cost_restore_ns(&cost, 1, 2000), 1000000 + 9000);
    assert_int_equal(cost.restore_samples, 2);
    qr_cost_restore_add(&cost, 100, 0); /* faster than the clock tells: still a cost */
    assert_true(cost.restore_row_ns >= 1);
}

static void test_restore_pays_only_if_it_is_faster(void **state)
{
    (void)state;
    qr_cost_t cost = {.restore_row_ns = 1000, .restore_samples = 1};
    qr_calibration_t calibration = {.row_ns = 2000, .row_samples = 1};
    assert_false(qr_cost_restore_pays(&cost, &calibration, 1000, 64)); /* 1 ms + 1 ms against 2 ms: a tie is computed */
    assert_true(qr_cost_restore_pays(&cost, &calibration, 1001, 64));
    calibration.row_ns = 1000;
    assert_false(qr_cost_restore_pays(&cost, &calibration, UINT32_MAX, 64)); /* a device as fast as the disk */
}

static void test_what_was_slow_once_is_tried_again(void **state)
{
    (void)state;
    qr_cost_t cost = {0};
    qr_calibration_t calibration = {.row_ns = 20000, .row_samples = 1};
    qr_cost_restore_declined(&cost, &calibration); /* nothing was measured: the configured cost stands */
    assert_int_equal(cost.restore_row_ns, 0);
    qr_cost_restore_add(&cost, 100, 1000000); /* 10 ms a row: the disk hung */
    uint32_t declined = 0;
    for (; declined < 1000 && !qr_cost_restore_pays(&cost, &calibration, 1000, 64); declined++) qr_cost_restore_declined(&cost, &calibration);
    assert_true(declined >= 10 && declined <= 13); /* 40 us x (15/16)^n + 1 us of the fixed cost < 20 us */
    cost.restore_row_ns = 1;
    qr_cost_restore_declined(&cost, &calibration);
    assert_int_equal(cost.restore_row_ns, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configured_until_the_first_sample),
        cmocka_unit_test(test_restore_pays_only_if_it_is_faster),
        cmocka_unit_test(test_what_was_slow_once_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
