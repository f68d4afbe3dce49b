/* link: qr_actor_calibration qr_schema */
/* Costs are smoothed integers; classes and shares of a step are told apart. */
#include "actors/calibration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_first_sample_is_the_value_later_ones_an_eighth(void **state)
{
    (void)state;
    qr_calibration_t c = {0};
    qr_calibration_add(&c, 1, 0, 1000);
    assert_int_equal(qr_calibration_step_ns(&c, 1), 1000000);
    qr_calibration_add(&c, 1, 0, 1800);
    assert_int_equal(qr_calibration_step_ns(&c, 1), 1100000);
    qr_calibration_add(&c, 1, 0, 300);
    assert_int_equal(qr_calibration_step_ns(&c, 1), 1000000);
    assert_int_equal(qr_calibration_samples(&c), 3);
}

static void test_a_prompt_row_costs_what_the_step_took_beyond_its_decode_rows(void **state)
{
    (void)state;
    qr_calibration_t c = {0};
    for (int i = 0; i < 4; i++) qr_calibration_add(&c, 4, 0, 2000);
    qr_calibration_add(&c, 4, 100, 12000); /* 10 ms for 100 rows */
    assert_int_equal(c.row_ns, 100000);
    assert_int_equal(qr_calibration_step_us(&c, 4, 50), 2000 + 5000);
    assert_int_equal(qr_calibration_step_us(&c, 0, 50), 5000);
}

static void test_few_prompt_rows_teach_the_step_and_not_the_row(void **state)
{
    (void)state;
    qr_calibration_t c = {0};
    qr_calibration_add(&c, 0, 3, 900);
    assert_int_equal(c.row_samples, 0);
    assert_int_equal(qr_calibration_step_ns(&c, 4), 900000);
}

static void test_an_unknown_class_takes_the_nearest_smaller_then_larger(void **state)
{
    (void)state;
    qr_calibration_t c = {0};
    assert_int_equal(qr_calibration_step_ns(&c, 8), 0);
    qr_calibration_add(&c, 16, 0, 1600);
    assert_int_equal(qr_calibration_step_ns(&c, 64), 1600000);
    assert_int_equal(qr_calibration_step_ns(&c, 1), 1600000);
    qr_calibration_add(&c, 2, 0, 500);
    assert_int_equal(qr_calibration_step_ns(&c, 8), 500000);
    assert_int_equal(qr_calibration_step_ns(&c, 0), 0);
}

static void test_no_step_overflows(void **state)
{
    (void)state;
    qr_calibration_t c = {0};
    qr_calibration_add(&c, 1, 0, UINT64_MAX);
    qr_calibration_add(&c, 64, 4096, UINT64_MAX);
    assert_true(qr_calibration_step_ns(&c, 1) <= 1000000000u);
    assert_true(c.row_ns <= 1000000000000u);
    qr_calibration_add(&c, 0, 0, 5);
    assert_int_equal(qr_calibration_samples(&c), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_sample_is_the_value_later_ones_an_eighth),
        cmocka_unit_test(test_a_prompt_row_costs_what_the_step_took_beyond_its_decode_rows),
        cmocka_unit_test(test_few_prompt_rows_teach_the_step_and_not_the_row),
        cmocka_unit_test(test_an_unknown_class_takes_the_nearest_smaller_then_larger),
        cmocka_unit_test(test_no_step_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
