/* link: qr_actor_cost qr_actor_calibration qr_schema */
/* What each way to a prefix costs, and which one is chosen, in integers. */
#include "actors/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const qr_policy_t policy = {7, 1000000, 1000, 20000, 250, 1000000};

static qr_cost_choice_t choose(qr_cost_t *cost, const qr_calibration_t *calibration, uint32_t resident, uint32_t ram, uint32_t ssd,
                               uint32_t bytes)
{
    const qr_cost_case_t c = {resident, ram, ssd, bytes, 0, 0};
    qr_cost_choice_t choice;
    qr_cost_choose(&policy, cost, calibration, &c, &choice);
    return choice;
}

static void test_the_policy_until_the_first_sample(void **state)
{
    (void)state;
    qr_cost_t cost = {0};
    qr_calibration_t calibration = {0};
    qr_cost_choice_t x = choose(&cost, &calibration, 0, 0, 10, 2000);
    assert_int_equal(x.ssd_ns, 1000000 + 10 * 2000); /* a byte takes 1 ns */
    assert_int_equal(x.recompute_ns, 10000000);
    assert_true(x.ram_ns == QR_COST_NONE);
    assert_int_equal(x.ssd_samples + x.ram_samples + x.recompute_samples, 0);
    assert_int_equal(x.source, QR_SOURCE_SSD);
    assert_int_equal(x.rows, 10);
    qr_cost_add(&cost.ssd, 0, 99); /* nothing was restored: nothing is learned */
    assert_int_equal(cost.ssd.samples, 0);
    qr_cost_add(&cost.ssd, 10, 80);
    assert_int_equal(choose(&cost, &calibration, 0, 0, 10, 2000).ssd_ns, 1000000 + 10 * 8000);
    qr_cost_add(&cost.ssd, 10, 160);
    x = choose(&cost, &calibration, 4, 0, 5, 2000);
    assert_int_equal(x.ssd_ns, 1000000 + 9000);
    assert_int_equal(x.ssd_row_ns, 9000);
    assert_int_equal(x.ssd_samples, 2);
    qr_cost_add(&cost.ssd, 100, 0); /* faster than the clock tells: still a cost */
    assert_true(cost.ssd.row_ns >= 1);
}

static void test_restore_pays_only_if_it_is_faster(void **state)
{
    (void)state;
    qr_cost_t cost = {.ssd = {1000, 1}};
    qr_calibration_t calibration = {.row_ns = 2000, .row_samples = 1};
    assert_int_equal(choose(&cost, &calibration, 0, 0, 1001, 64).source, QR_SOURCE_SSD);
    assert_int_equal(choose(&cost, &calibration, 0, 0, 1000, 64).source,
                     QR_SOURCE_RECOMPUTE); /* 1 ms + 1 ms against 2 ms: a tie is computed */
    cost.ssd.row_ns = calibration.row_ns = 1000;
    assert_int_equal(choose(&cost, &calibration, 0, 0, UINT32_MAX, 64).source, QR_SOURCE_RECOMPUTE); /* a device as fast as the disk */
}

static void test_always_takes_the_cheaper_of_what_is_there(void **state)
{
    (void)state;
    qr_cost_t cost = {.ssd = {9000, 1}, .ram = {8000, 1}};
    qr_calibration_t calibration = {.row_ns = 1, .row_samples = 1};
    qr_cost_case_t c = {.ssd_rows = 10, .row_bytes = 64, .always = 1};
    qr_cost_choice_t x;
    qr_cost_choose(&policy, &cost, &calibration, &c, &x);
    assert_int_equal(x.source, QR_SOURCE_SSD);
    assert_int_equal(x.recompute_ns, 10); /* said as it is */
    c.ram_rows = 10;
    qr_cost_choose(&policy, &cost, &calibration, &c, &x);
    assert_int_equal(x.source, QR_SOURCE_RAM);
    c.ram_rows = 2; /* to fewer rows, though by far the cheapest way to all of them */
    cost.ram.row_ns = 1;
    qr_cost_choose(&policy, &cost, &calibration, &c, &x);
    assert_int_equal(x.source, QR_SOURCE_SSD);
    assert_int_equal(x.rows, 10);
    c.ram_rows = c.ssd_rows = 0; /* nothing is there */
    c.resident_rows = 10;
    qr_cost_choose(&policy, &cost, &calibration, &c, &x);
    assert_int_equal(x.source, QR_SOURCE_RESIDENT);
    c = (qr_cost_case_t){.ssd_rows = 10, .row_bytes = 64};
    qr_cost_choose(&policy, &cost, &calibration, &c, &x);
    assert_int_equal(x.source, QR_SOURCE_RECOMPUTE);
}

static void test_what_was_slow_once_is_tried_again(void **state)
{
    (void)state;
    qr_cost_t cost = {0};
    qr_calibration_t calibration = {.row_ns = 20000, .row_samples = 1};
    assert_int_equal(choose(&cost, &calibration, 0, 0, 1, 64).source, QR_SOURCE_RECOMPUTE);
    assert_int_equal(cost.ssd.row_ns, 0); /* nothing was measured: the configured cost stands */
    qr_cost_add(&cost.ssd, 100, 1000000); /* 10 ms a row: the disk hung */
    uint32_t declined = 0;
    for (; declined < 1000 && choose(&cost, &calibration, 0, 0, 1000, 64).source == QR_SOURCE_RECOMPUTE;) declined++;
    assert_true(declined >= 10 && declined <= 13); /* 40 us x (15/16)^n + 1 us of the fixed cost < 20 us */
    cost.ssd.row_ns = 1;
    assert_int_equal(choose(&cost, &calibration, 0, 0, 1, 64).source, QR_SOURCE_RECOMPUTE);
    assert_int_equal(cost.ssd.row_ns, 1);
}

/* Each way ends with the same rows: what it does not bring is computed. */
static void test_every_way_to_the_same_rows(void **state)
{
    (void)state;
    qr_cost_t cost = {.ram = {100, 3}, .ssd = {1000, 5}};
    qr_calibration_t calibration = {.row_ns = 50000, .row_samples = 9};
    const qr_cost_case_t own = {10, 60, 100, 64, 1};
    qr_cost_choice_t x;
    qr_cost_choose(&policy, &cost, &calibration, &own, &x);
    assert_int_equal(x.ram_ns, 20000 + 50 * 100 + 40 * 50000);
    assert_int_equal(x.ssd_ns, 1000000 + 90 * 1000);
    assert_int_equal(x.recompute_ns, 90 * 50000);
    assert_int_equal(x.source, QR_SOURCE_RAM); /* CO2: its rows are nobody else's */
    assert_int_equal(x.rows, 60);
    assert_int_equal(x.ram_samples, 3);
    assert_int_equal(x.ssd_samples, 5);
    assert_int_equal(x.recompute_samples, 9);
    x = choose(&cost, &calibration, 100, 60, 100, 64);
    assert_int_equal(x.source, QR_SOURCE_RESIDENT);
    assert_int_equal(x.recompute_ns, 0);
    assert_true(x.ram_ns == QR_COST_NONE && x.ssd_ns == QR_COST_NONE);
    assert_int_equal(x.rows, 100);
}

/* What memory and disk both have costs what memory costs; each is measured for itself. */
static void test_memory_and_disk_together(void **state)
{
    (void)state;
    qr_cost_t cost = {.ram = {100, 3}, .ssd = {100000, 5}};
    qr_calibration_t calibration = {.row_ns = 50000, .row_samples = 9};
    qr_cost_choice_t x = choose(&cost, &calibration, 10, 60, 100, 64);
    assert_int_equal(x.ram_ns, 20000 + 50 * 100 + 40 * 50000);
    assert_int_equal(x.ssd_ns, 1000000 + 50 * 100 + 40 * 100000);
    assert_int_equal(x.source, QR_SOURCE_RAM); /* the rest is computed: disk is slower */
    assert_int_equal(x.rows, 60);
    assert_int_equal(cost.ssd.row_ns, 100000 - 100000 / 16); /* and was not chosen for it */
    cost.ssd.row_ns = 1000;
    x = choose(&cost, &calibration, 10, 60, 100, 64);
    assert_int_equal(x.source, QR_SOURCE_SSD);
    assert_int_equal(x.rows, 100);
    assert_int_equal(choose(&cost, &calibration, 10, 100, 100, 64).source, QR_SOURCE_RAM);
    assert_int_equal(choose(&cost, &calibration, 10, 10, 100, 64).source, QR_SOURCE_SSD);
    cost.ram.row_ns = cost.ssd.row_ns = 400000; /* memory, too, is forgotten */
    assert_int_equal(choose(&cost, &calibration, 10, 60, 100, 64).source, QR_SOURCE_RECOMPUTE);
    assert_int_equal(cost.ram.row_ns, 100000 - 100000 / 16);
    assert_int_equal(cost.ssd.row_ns, 100000 - 100000 / 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_policy_until_the_first_sample),
        cmocka_unit_test(test_restore_pays_only_if_it_is_faster),
        cmocka_unit_test(test_always_takes_the_cheaper_of_what_is_there),
        cmocka_unit_test(test_what_was_slow_once_is_tried_again),
        cmocka_unit_test(test_every_way_to_the_same_rows),
        cmocka_unit_test(test_memory_and_disk_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
