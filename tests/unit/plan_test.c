/* link: qr_actor_plan qr_actor_calibration qr_schema */
/* What goes into a batch: decode first, a bounded share of prompt rows, the same plan for the same input. */
#include "actors/plan.h"
#include "base/prng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static qr_plan_input_t input_of(uint32_t tile)
{
    qr_plan_input_t input;
    memset(&input, 0, sizeof input);
    input.tile = tile;
    input.rows_min = 8;
    input.budget_us = 25000;
    return input;
}

static void add(qr_plan_input_t *input, uint32_t lane, uint32_t rows_left)
{
    input->lanes[input->lane_count++] = (qr_plan_lane_t){.order = lane, .lane = lane, .rows_left = rows_left};
}

static uint32_t rows_of(const qr_plan_t *plan, uint32_t lane)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->lanes[i] == lane) return plan->rows[i];
    return 0;
}

/* Costs: 2 ms a step, 100 us a prompt row. */
static void cost(qr_plan_input_t *input, uint64_t step_us, uint64_t row_us)
{
    for (int i = 0; i < 64; i++) qr_calibration_add(&input->calibration, 1, 0, step_us);
    input->calibration.row_ns = row_us * 1000;
    input->calibration.row_samples = 1;
}

static void test_nothing_to_do_is_an_empty_plan(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(8);
    qr_plan_t plan;
    add(&input, 3, 0);
    qr_plan(&input, &plan);
    assert_int_equal(plan.count, 0);
}

static void test_a_prompt_alone_gets_the_whole_tile(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(512);
    qr_plan_t plan;
    add(&input, 5, 2000);
    cost(&input, 2000, 100000); /* however slow: nobody decodes */
    qr_plan(&input, &plan);
    assert_int_equal(plan.count, 1);
    assert_int_equal(rows_of(&plan, 5), 512);
    assert_int_equal(plan.prefill_rows, 512);
}

static void test_decode_rows_come_first_and_prompts_fill_the_budget(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(512);
    qr_plan_t plan;
    add(&input, 0, 900);
    add(&input, 1, 1);
    add(&input, 2, 1);
    cost(&input, 5000, 100);
    qr_plan(&input, &plan);
    assert_int_equal(plan.lanes[0], 1);
    assert_int_equal(plan.lanes[1], 2);
    assert_int_equal(plan.decode_rows, 2);
    assert_int_equal(rows_of(&plan, 0), 200); /* (25 - 5) ms / 0.1 ms */
    assert_true(qr_calibration_step_us(&input.calibration, plan.decode_rows, plan.prefill_rows) <= input.budget_us);
}

static void test_a_slow_device_still_computes_a_few_prompt_rows(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(512);
    qr_plan_t plan;
    add(&input, 0, 900);
    add(&input, 1, 1);
    cost(&input, 60000, 5000);
    qr_plan(&input, &plan);
    assert_int_equal(rows_of(&plan, 0), 8);
    assert_int_equal(rows_of(&plan, 1), 1);
}

static void test_unknown_costs_start_small_when_somebody_decodes(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(512);
    qr_plan_t plan;
    add(&input, 0, 900);
    add(&input, 1, 1);
    qr_plan(&input, &plan);
    assert_int_equal(rows_of(&plan, 0), 8);
}

static void test_rows_are_shared_equally_shortest_first_rest_to_the_longest(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(100);
    qr_plan_t plan;
    add(&input, 0, 500);
    add(&input, 1, 10);
    add(&input, 2, 40);
    qr_plan(&input, &plan);
    assert_int_equal(plan.lanes[0], 1);
    assert_int_equal(rows_of(&plan, 1), 10);
    assert_int_equal(rows_of(&plan, 2), 40);
    assert_int_equal(rows_of(&plan, 0), 50);
}

static void test_fewer_rows_than_prompts_go_by_order_so_that_nobody_starves(void **state)
{
    (void)state;
    qr_plan_input_t input = input_of(2);
    qr_plan_t plan;
    add(&input, 0, 500); /* long, but first of the order */
    add(&input, 1, 2);
    add(&input, 2, 2);
    qr_plan(&input, &plan);
    assert_int_equal(rows_of(&plan, 0), 1);
    assert_int_equal(rows_of(&plan, 1), 1);
    assert_int_equal(rows_of(&plan, 2), 0);
}

static qr_plan_input_t random_input(qr_prng_t *prng)
{
    static const uint32_t tiles[] = {1, 7, 64, 512, 4096};
    qr_plan_input_t input = input_of(tiles[qr_prng_below(prng, 5)]);
    uint32_t lanes = (uint32_t)qr_prng_below(prng, QR_LANES_MAX + 1);
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t kind = (uint32_t)qr_prng_below(prng, 4);
        add(&input, i, kind == 0 ? 0 : kind == 1 ? (uint32_t)qr_prng_between(prng, 2, 3000) : 1);
        input.lanes[i].order = qr_prng_next(prng);
    }
    if (qr_prng_one_in(prng, 2)) cost(&input, qr_prng_below(prng, 50000), qr_prng_between(prng, 1, 2000));
    return input;
}

static void test_every_plan_keeps_its_bounds_and_is_repeatable_byte_for_byte(void **state)
{
    (void)state;
    qr_prng_t prng;
    qr_prng_init(&prng, 7);
    for (int round = 0; round < 5000; round++) {
        qr_plan_input_t input = random_input(&prng);
        qr_plan_t plan, again;
        memset(&plan, 0x5a, sizeof plan);
        memset(&again, 0xa5, sizeof again);
        qr_plan(&input, &plan);
        qr_plan(&input, &again);
        assert_memory_equal(&plan, &again, sizeof plan);
        uint32_t decode = 0, prefill = 0, prompts = 0, planned = 0;
        for (uint32_t i = 0; i < input.lane_count; i++) {
            uint32_t left = input.lanes[i].rows_left, rows = rows_of(&plan, input.lanes[i].lane);
            assert_true(rows <= left);
            if (left == 1) assert_int_equal(rows, 1);
            decode += left == 1;
            prompts += left > 1;
            prefill += left > 1 ? rows : 0;
            planned += rows > 0;
        }
        assert_int_equal(plan.count, planned);
        assert_int_equal(plan.decode_rows, decode);
        assert_int_equal(plan.prefill_rows, prefill);
        assert_true(prefill <= input.tile);
        assert_true(decode + prefill <= qr_plan_rows_max(input.tile, QR_LANES_MAX));
        if (prompts) assert_true(prefill > 0);
        uint32_t least = qr_min_u32(input.tile, qr_max_u32(input.rows_min, prompts));
        if (decode && prefill > least) assert_true(qr_calibration_step_us(&input.calibration, decode, prefill) <= input.budget_us);
    }
}

/* SC-03 A long prompt freezes everybody's decoding: the turns as the scheduler would take them. */
static void test_SC_03(void **state)
{
    (void)state;
    uint32_t left[3] = {1, 800, 0}, c_first = 0, b_first = 0;
    for (uint32_t turn = 1; turn <= 200 && !(b_first && c_first); turn++) {
        qr_plan_input_t input = input_of(8);
        qr_plan_t plan;
        if (turn == 2) left[2] = 4;
        for (uint32_t i = 0; i < 3; i++) add(&input, i, left[i]);
        qr_plan(&input, &plan);
        assert_int_equal(rows_of(&plan, 0), 1); /* A advances in every turn */
        for (uint32_t i = 1; i < 3; i++) {
            uint32_t rows = rows_of(&plan, i);
            if (left[i] == 0 || rows == 0) continue;
            left[i] = left[i] > rows ? left[i] - rows : 1; /* then it decodes */
            if (left[i] == 1 && i == 1 && !b_first) b_first = turn;
            if (left[i] == 1 && i == 2 && !c_first) c_first = turn;
        }
    }
    assert_true(c_first >= 2 && c_first <= 1 + 4);
    assert_true(b_first > 0 && b_first <= 104);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_do_is_an_empty_plan),
        cmocka_unit_test(test_a_prompt_alone_gets_the_whole_tile),
        cmocka_unit_test(test_decode_rows_come_first_and_prompts_fill_the_budget),
        cmocka_unit_test(test_a_slow_device_still_computes_a_few_prompt_rows),
        cmocka_unit_test(test_unknown_costs_start_small_when_somebody_decodes),
        cmocka_unit_test(test_rows_are_shared_equally_shortest_first_rest_to_the_longest),
        cmocka_unit_test(test_fewer_rows_than_prompts_go_by_order_so_that_nobody_starves),
        cmocka_unit_test(test_every_plan_keeps_its_bounds_and_is_repeatable_byte_for_byte),
        cmocka_unit_test(test_SC_03),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
