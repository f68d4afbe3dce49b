/* link: qr_actor_page_manager qr_actor_residents qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_messages */
/* page_manager_test.c - the conversations of page_manager, one message at a time. Its check runs after every message. */
#include "page_stand.h"

static const uint32_t ramp[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64};

/* Runs a request whole: grant, prompt, one row per generated token, end. Generated token i is 100 + i. Returns the boundary. */
static uint32_t run(stand_t *stand, const uint32_t *tokens, uint32_t count, uint32_t max_tokens)
{
    answer_t a = reserve(stand, tokens, count, count + max_tokens - 1);
    assert_int_equal(a.type, QR_MESSAGE_pages_granted);
    assert_true(a.page_count <= (count + max_tokens + 3) / 4);
    commit(stand, a.route, count, NULL, 0);
    for (uint32_t i = 0; i + 1 < max_tokens; i++) commit(stand, a.route, count + i + 1, (const uint32_t[]){100 + i}, 1);
    assert_int_equal(release(stand, a.route, 1), 0);
    return a.boundary;
}

/* ---- cases of the reference systems ------------------------------------------------------------------------------------------ */

static void test_PM_01(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 6, 7);
    assert_int_equal(a.boundary, 0);
    assert_int_equal(a.page_count, 2);
    commit(stand, a.route, 6, NULL, 0);
    answer_t b = reserve(stand, ramp, 7, 7); /* the fork at row 6 */
    assert_int_equal(b.boundary, 6);
    assert_int_equal(b.page_count, 2);
    assert_true(b.pages[0] == a.pages[0] && b.pages[1] != a.pages[1]);
    assert_int_equal(b.copy_count, 1);
    assert_true(b.copy_sources[0] == a.pages[1] && b.copy_targets[0] == b.pages[1] && b.copy_rows[0] == 2);
    assert_int_equal(metric(stand, METRIC_pages_free), 5);
    commit(stand, a.route, 7, (const uint32_t[]){77}, 1);
    commit(stand, b.route, 7, NULL, 0);
    assert_int_equal(metric(stand, METRIC_pages_free), 5);
    assert_int_equal(metric(stand, METRIC_pages_used), 3);
    assert_int_equal(release(stand, a.route, 1), 0);
    assert_int_equal(metric(stand, METRIC_pages_used), 2);
    assert_int_equal(release(stand, a.route, 1), QR_E_UNKNOWN);
    assert_int_equal(metric(stand, METRIC_pages_used), 2);
    assert_int_equal(release(stand, b.route, 1), 0);
    assert_int_equal(metric(stand, METRIC_pages_used), 0);
    assert_int_equal(available(stand), 8);
    assert_int_equal(drop(stand), 8);
    pages_destroy(stand);
}
static void test_PM_03(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    static const uint32_t list[][2] = {{4, 1}, {4, 4}, {3, 1}, {3, 5}, {8, 8}, {7, 1}, {1, 1}};
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < QR_COUNT(list); i++) {
            run(stand, ramp, list[i][0], list[i][1]);
            assert_int_equal(available(stand), 8);
        }
    }
    assert_int_equal(drop(stand), 8);
    answer_t a = reserve(stand, ramp, 4, 4);
    assert_int_equal(a.page_count, 1); /* (4,1): one page written, none beyond */
    answer_t b = reserve(stand, ramp + 30, 4, 8);
    for (uint32_t i = 0; i < b.page_count; i++) assert_true(b.pages[i] != a.pages[0]);
    pages_destroy(stand);
}
static void test_PM_07(void **state)
{
    (void)state;
    for (uint32_t reversed = 0; reversed < 2; reversed++) {
        geometry_t seven = G1;
        seven.pools[0].pages = 7;
        stand_t *stand = pages_new(seven);
        uint32_t first = reversed ? 16 : 20, second = reversed ? 20 : 16;
        answer_t a = reserve(stand, ramp, first - 3, first);
        assert_int_equal(a.page_count, first / 4);
        SAY(stand, SCHEDULER, pages_load, a.route, 0, first - 4);
        assert_int_equal(HEARD(stand, pages_loading)->reason, 0);
        answer_t b = reserve(stand, ramp + 30, second - 3, second);
        assert_int_equal(b.type, QR_MESSAGE_pages_refused);
        assert_int_equal(b.reason, QR_E_SHORTFALL);
        assert_int_equal(b.pages_short, second / 4 - (7 - first / 4));
        assert_int_equal(metric(stand, METRIC_pages_loading), first / 4 - 1);
        assert_int_equal(metric(stand, METRIC_pages_free), 7 - first / 4);
        SAY(stand, SCHEDULER, load_ended, a.route, first - 4, 1);
        commit(stand, a.route, first - 3, NULL, 0);
        release(stand, a.route, 1);
        b = reserve(stand, ramp + 30, second - 3, second);
        assert_int_equal(b.type, QR_MESSAGE_pages_granted);
        pages_destroy(stand);
    }
}
static void test_PM_09(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 8, 1);
    uint32_t longer[9];
    memcpy(longer, ramp, sizeof longer);
    answer_t q = reserve(stand, ramp + 20, 20, 32); /* needs all 8 pages */
    assert_int_equal(q.type, QR_MESSAGE_pages_granted);
    assert_int_equal(reserve(stand, longer, 9, 9).reason, QR_E_SHORTFALL);
    commit(stand, q.route, 20, NULL, 0);
    release(stand, q.route, 1);
    answer_t r = reserve(stand, longer, 9, 9);
    assert_int_equal(r.boundary, 0); /* not the 8 of the first look */
    pages_destroy(stand);
}
static void test_PM_10(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    uint32_t nine[9];
    memcpy(nine, ramp, 8 * sizeof *nine);
    nine[8] = 7;
    assert_int_equal(run(stand, ramp, 8, 4), 0);
    assert_int_equal(run(stand, ramp, 8, 4), 7);
    assert_int_equal(run(stand, ramp, 8, 4), 7);
    assert_int_equal(run(stand, nine, 9, 4), 8);
    assert_int_equal(run(stand, ramp + 40, 1, 4), 0);
    assert_int_equal(run(stand, ramp + 40, 1, 4), 0);
    assert_int_equal(available(stand), 8);
    pages_destroy(stand);
}
static void test_PI_01(void **state)
{
    (void)state;
    geometry_t geometry = G1;
    geometry.pools[0].pages = 64;
    stand_t *stand = pages_new(geometry);
    uint32_t a[5] = {65, 66, 67, 68, 1}, b[5] = {321, 322, 323, 324, 1}, c[5] = {65601, 65602, 65603, 65604, 1};
    assert_int_equal(run(stand, a, 5, 1), 0);
    assert_int_equal(run(stand, b, 5, 1), 0);
    assert_int_equal(run(stand, c, 5, 1), 0);
    assert_int_equal(run(stand, a, 5, 1), 4);
    pages_destroy(stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_PM_01), cmocka_unit_test(test_PM_03), cmocka_unit_test(test_PM_07), cmocka_unit_test(test_PM_09),
        cmocka_unit_test(test_PM_10), cmocka_unit_test(test_PI_01),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
