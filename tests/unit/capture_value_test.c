/* link: qr_actor_capture_value */
/* What a capture is worth: the rule, its edges, and costs that are learned. Values are worked out by hand. */
#include "actors/capture_value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static bool worth(const qr_capture_costs_t *costs, qr_capture_case_t c, uint64_t gain_ns, uint64_t cost_ns)
{
    uint64_t gain, cost;
    bool yes = qr_capture_worth(costs, &c, &gain, &cost);
    assert_int_equal(gain, gain_ns);
    assert_int_equal(cost, cost_ns);
    return yes;
}

static void test_gain_against_cost(void **state)
{
    (void)state;
    qr_capture_costs_t none = {0};
    /* Two reuses that save 80 against a cost of 100: 60 over. */
    qr_capture_case_t c = {
        .rows = 1, .bytes = 1024, .reuse_permille = 2000, .recompute_row_ns = 90, .reload_kib_ns = 10, .capture_kib_ns = 100};
    assert_true(worth(&none, c, 160, 100));
    c.capture_kib_ns = 160; /* equal is not worth it */
    assert_false(worth(&none, c, 160, 160));
    c.capture_kib_ns = 159;
    assert_true(worth(&none, c, 160, 159));
    c.reuse_permille = 0; /* never used again */
    assert_false(worth(&none, c, 0, 159));
    c.reuse_permille = 2000, c.reload_kib_ns = 90; /* reloading costs as much as computing */
    c.capture_kib_ns = 0;
    assert_false(worth(&none, c, 0, 0));
    c.reload_kib_ns = 1000;
    assert_false(worth(&none, c, 0, 0));
    c = (qr_capture_case_t){
        .rows = 256, .bytes = 6 << 20, .reuse_permille = 200, .recompute_row_ns = 1000000, .reload_kib_ns = 1000, .capture_kib_ns = 4000};
    assert_true(worth(&none, c, (256000000ull - 6144000) / 5, 6144ull * 4000));
}

static void test_what_is_measured_counts(void **state)
{
    (void)state;
    qr_capture_costs_t costs = {0};
    qr_capture_case_t c = {
        .rows = 10, .bytes = 4096, .reuse_permille = 1000, .recompute_row_ns = 1000, .reload_kib_ns = 0, .capture_kib_ns = 3000};
    assert_false(worth(&costs, c, 10000, 12000));
    qr_capture_written(&costs, 4096, 4); /* 1,000 ns a KiB */
    assert_int_equal(costs.write_kib_ns, 1000);
    assert_true(worth(&costs, c, 10000, 4000));
    qr_capture_downloaded(&costs, 2048, 4); /* 2,000 */
    assert_int_equal(costs.download_kib_ns, 2000);
    assert_false(worth(&costs, c, 10000, 12000));
    qr_capture_written(&costs, 1024, 9); /* an eighth of the way from 1,000 to 9,000 */
    assert_int_equal(costs.write_kib_ns, 2000);
    qr_capture_written(&costs, 1024, 1);
    assert_int_equal(costs.write_kib_ns, 1875);
    assert_int_equal(costs.write_samples, 3);
    qr_capture_written(&costs, 1023, 1000); /* says nothing */
    assert_int_equal(costs.write_samples, 3);
}

static void test_nothing_wraps(void **state)
{
    (void)state;
    qr_capture_costs_t costs = {0};
    qr_capture_downloaded(&costs, 1024, UINT64_MAX);
    assert_int_equal(costs.download_kib_ns, 1000000000);
    qr_capture_case_t c = {
        .rows = UINT32_MAX, .bytes = 1ull << 52, .reuse_permille = 10000, .recompute_row_ns = UINT32_MAX, .capture_kib_ns = UINT64_MAX};
    assert_false(worth(&costs, c, UINT64_MAX, UINT64_MAX));
    c.bytes = 1024, c.capture_kib_ns = 1;
    assert_true(worth(&costs, c, UINT64_MAX, 1000000001));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gain_against_cost),
        cmocka_unit_test(test_what_is_measured_counts),
        cmocka_unit_test(test_nothing_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
