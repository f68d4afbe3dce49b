/* link: qr_actor_page_manager qr_actor_residents qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_messages */
/* page_manager_test.c - the conversations of page_manager, one message at a time. Its check runs after every message. */
#include "page_stand.h"

static const uint32_t ramp[64] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                  23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44,
                                  45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64};

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

/* ---- cases of the reference systems ------------------------------------------------------------------------------ */

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

static void test_PI_07(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 32; size *= 2) { /* what is reused does not depend on the page size */
        geometry_t geometry = {size, 64, 2, 1, {{0, 64 / size * 2, 0, 64}}};
        stand_t *stand = pages_new(geometry);
        answer_t a = reserve(stand, ramp, 17, 17);
        assert_int_equal(a.boundary, 0);
        commit(stand, a.route, 17, NULL, 0);
        release(stand, a.route, 1);
        for (uint32_t i = 0; i < 4; i++) {
            a = reserve(stand, ramp, 17, 17);
            assert_int_equal(a.boundary, 16);
            commit(stand, a.route, 17, NULL, 0);
            release(stand, a.route, 1);
        }
        assert_int_equal(drop(stand), geometry.pools[0].pages);
        pages_destroy(stand);
    }
}
/* (a) both completions late, (b) one never comes, (c) replayed after the fence: pages are free when `fenced` arrives, not before. */
static void test_PM_05(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    uint64_t fence_before = 0;
    for (uint32_t round = 0; round < 20; round++) {
        answer_t r = reserve(stand, ramp, 17, 17);
        SAY(stand, SCHEDULER, pages_load, r.route, 0, 16);
        assert_int_equal(HEARD(stand, pages_loading)->reason, 0);
        assert_int_equal(HEARD(stand, pages_loading)->pages.count, 4);
        assert_int_equal(metric(stand, METRIC_pages_loading), 4);
        SAY(stand, SCHEDULER, route_release, r.route, 1);
        assert_int_equal(HEARD(stand, route_released)->reason, 0);
        const qr_fence_t *fence = HEARD(stand, fence);
        uint64_t id = fence->fence_id;
        assert_int_equal(fence->pages.count, 4);
        assert_true(stand->messages[0].type != QR_MESSAGE_fence || stand->messages[0].to == TRANSFER);
        assert_int_equal(metric(stand, METRIC_pages_fenced), 4);
        assert_int_equal(metric(stand, METRIC_pages_free), 4);
        SAY(stand, SCHEDULER, load_ended, r.route, 8, 0); /* a late completion names a route that is gone */
        assert_int_equal(HEARD(stand, load_closed)->reason, QR_E_STALE);
        if (fence_before) SAY(stand, TRANSFER, fenced, fence_before);
        assert_int_equal(metric(stand, METRIC_pages_free), 4);
        if (round % 2) { /* time alone frees nothing, it is only said aloud */
            SAY(stand, ADMIN, metrics_read, 1);
            assert_true(stand_alarm(stand, stand->now_us + 600000));
            assert_int_equal(stand->outbox.note_count, 1);
            assert_int_equal(stand->outbox.notes[0].code, QR_NOTE_fence_late);
            assert_int_equal(stand->outbox.notes[0].level, QR_LEVEL_ERROR);
            assert_int_equal(metric(stand, METRIC_pages_free), 4);
        }
        SAY(stand, TRANSFER, fenced, id);
        assert_int_equal(metric(stand, METRIC_pages_free), 8);
        SAY(stand, TRANSFER, fenced, id); /* replayed */
        assert_int_equal(stand->outbox.notes[0].code, QR_NOTE_stale);
        assert_int_equal(metric(stand, METRIC_pages_free), 8);
        fence_before = id;
    }
    assert_int_equal(run(stand, ramp, 5, 4), 0);
    pages_destroy(stand);
}
/* RT-01's fault where it could happen here: a parent goes before its children, or a child is found without its parent. */
static void test_RT_01(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 16, 1);                        /* chain A-B-C-D */
    answer_t q = reserve(stand, ramp + 30, 13, 18); /* 5 of 8 pages: one must go, and it is the leaf D */
    assert_int_equal(q.type, QR_MESSAGE_pages_granted);
    release(stand, q.route, 0);
    assert_int_equal(run(stand, ramp, 13, 1), 12);
    q = reserve(stand, ramp + 30, 13, 28); /* 7 of 8: only A stays */
    assert_int_equal(q.type, QR_MESSAGE_pages_granted);
    release(stand, q.route, 0);
    answer_t a = reserve(stand, ramp, 13, 13);
    assert_int_equal(a.boundary, 4);
    release(stand, a.route, 0);
    q = reserve(stand, ramp + 30, 13, 32); /* all 8: A goes as well */
    assert_int_equal(q.type, QR_MESSAGE_pages_granted);
    release(stand, q.route, 0);
    a = reserve(stand, ramp, 9, 9);
    assert_int_equal(a.boundary, 0);
    commit(stand, a.route, 8, NULL, 0);
    release(stand, a.route, 1);
    assert_int_equal(run(stand, ramp, 9, 1), 8); /* stored again: A-B */
    pages_destroy(stand);
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

static const geometry_t WIDE = {4, 64, 8, 1, {{0, 64, 0, 64}}};

static void test_scopes_share_nothing(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve_more(stand, 1, ramp, 9, 9, 1, 0);
    commit(stand, a.route, 9, NULL, 0);
    assert_int_equal(reserve_more(stand, 2, ramp, 9, 9, 1, 0).boundary, 0);
    assert_int_equal(reserve_more(stand, 1, ramp, 9, 9, 1, 0).boundary, 8);
    assert_int_equal(reserve_more(stand, 2, ramp, 9, 9, 1, 4).type, QR_MESSAGE_pages_wait); /* on scope 2's own route */
    pages_destroy(stand);
}
static void test_leaf_taken_over_without_copy(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    run(stand, ramp, 6, 1);
    answer_t a = reserve(stand, ramp, 10, 10); /* goes on exactly where the leaf ends */
    assert_int_equal(a.boundary, 6);
    assert_int_equal(a.copy_count, 0);
    assert_int_equal(a.page_count, 3);
    commit(stand, a.route, 10, NULL, 0);
    answer_t b = reserve(stand, ramp, 11, 11); /* the leaf is held now: a copy */
    assert_int_equal(b.boundary, 10);
    assert_int_equal(b.copy_count, 1);
    assert_int_equal(b.copy_rows[0], 2);
    release(stand, a.route, 1);
    uint32_t other[8] = {1, 2, 3, 4, 5, 6, 7, 99};
    answer_t c = reserve(stand, other, 8, 8); /* ends inside the full page of others: a copy of 3 rows */
    assert_int_equal(c.boundary, 7);
    assert_int_equal(c.copy_rows[0], 3);
    pages_destroy(stand);
}
static void test_copy_source_is_held_until_its_batch_is_committed(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 6, 1);
    uint32_t other[7] = {1, 2, 3, 4, 5, 98, 99};
    answer_t b = reserve(stand, other, 7, 7); /* row 4 of the leaf is equal, row 5 is not */
    assert_int_equal(b.boundary, 5);
    assert_int_equal(b.copy_count, 1);
    assert_int_equal(metric(stand, METRIC_pages_used), 2); /* page 0 and the source */
    assert_int_equal(metric(stand, METRIC_pages_reserved), 1);
    drop(stand);
    assert_int_equal(metric(stand, METRIC_pages_used), 2);                      /* not even a drop takes it */
    assert_int_equal(reserve(stand, ramp + 30, 21, 21).reason, QR_E_SHORTFALL); /* 6 pages, 5 free */
    commit(stand, b.route, 7, NULL, 0);
    assert_int_equal(metric(stand, METRIC_pages_used), 2);     /* page 0 and the copy */
    assert_int_equal(metric(stand, METRIC_pages_retained), 1); /* the source, let go */
    release(stand, b.route, 1);

    /* Cancelled before its batch: the source is let go, the copy never was. */
    drop(stand);
    run(stand, ramp, 6, 1);
    b = reserve(stand, other, 7, 7);
    assert_int_equal(b.copy_count, 1);
    release(stand, b.route, 1);
    assert_int_equal(metric(stand, METRIC_pages_used), 0);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2);
    pages_destroy(stand);
}
static void test_generated_leaf_merges_with_an_equal_full_node(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 6, 12), b = reserve(stand, ramp, 5, 12);
    assert_int_equal(b.boundary, 0);
    commit(stand, a.route, 6, NULL, 0);
    commit(stand, a.route, 8, ramp + 6, 2); /* a generates 7 8 */
    commit(stand, b.route, 5, NULL, 0);
    commit(stand, b.route, 8, ramp + 5, 3); /* b generates the same: it walks a's node on its own page */
    commit(stand, b.route, 10, ramp + 8, 2);
    release(stand, a.route, 1);
    release(stand, b.route, 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 3); /* one page per node, b's second is free */
    assert_int_equal(run(stand, ramp, 11, 1), 10);             /* through a's nodes into b's leaf */
    pages_destroy(stand);
}
static void test_equal_leaves_are_kept_once(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t routes[6];
    for (uint32_t i = 0; i < 6; i++) routes[i] = reserve(stand, ramp, 6 + i % 2, 7);
    for (uint32_t i = 0; i < 6; i++) commit(stand, routes[i].route, 6 + i % 2, NULL, 0);
    for (uint32_t i = 0; i < 6; i++) release(stand, routes[i].route, 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2);
    assert_int_equal(run(stand, ramp, 8, 1), 7);
    pages_destroy(stand);
}
static void test_release_without_keep_forgets(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    run(stand, ramp, 8, 1);
    answer_t a = reserve(stand, ramp, 15, 20);
    assert_int_equal(a.boundary, 8);
    commit(stand, a.route, 15, NULL, 0);
    release(stand, a.route, 0);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2); /* what was there before */
    assert_int_equal(reserve(stand, ramp, 15, 20).boundary, 8);
    pages_destroy(stand);
}
static void test_cancelled_prompt_leaves_only_its_rows(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 30, 40);
    commit(stand, a.route, 10, NULL, 0);
    release(stand, a.route, 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 3);
    assert_int_equal(metric(stand, METRIC_pages_free), 61);
    answer_t b = reserve_more(stand, 0, ramp, 30, 30, 1, 1); /* nobody promises the rest any more */
    assert_int_equal(b.type, QR_MESSAGE_pages_granted);
    assert_int_equal(b.boundary, 10);
    pages_destroy(stand);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void test_waits_for_a_running_producer(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve_more(stand, 0, ramp, 22, 30, 1, 8);
    assert_int_equal(a.type, QR_MESSAGE_pages_granted);
    answer_t b = reserve_more(stand, 0, ramp, 22, 30, 1, 8); /* the same prompt */
    assert_int_equal(b.type, QR_MESSAGE_pages_wait);
    assert_true(b.producer == a.route);
    assert_int_equal(b.boundary, 21); /* its own last row is computed anyway */
    uint32_t other[24];
    memcpy(other, ramp, sizeof other);
    other[14] = 999;
    b = reserve_more(stand, 0, other, 24, 30, 1, 8); /* equal up to row 14 */
    assert_int_equal(b.type, QR_MESSAGE_pages_wait);
    assert_int_equal(b.boundary, 14);                /* the last two are copied from a's page */
    b = reserve_more(stand, 0, ramp, 22, 30, 1, 22); /* too little to wait for */
    assert_int_equal(b.type, QR_MESSAGE_pages_granted);
    release(stand, b.route, 1);
    commit(stand, a.route, 16, NULL, 0);
    b = reserve_more(stand, 0, ramp, 22, 30, 1, 6); /* 5 rows more than stand */
    assert_int_equal(b.type, QR_MESSAGE_pages_granted);
    assert_int_equal(b.boundary, 16);
    release(stand, b.route, 1);
    b = reserve_more(stand, 0, ramp, 22, 30, 1, 5);
    assert_int_equal(b.type, QR_MESSAGE_pages_wait);
    commit(stand, a.route, 22, NULL, 0);
    b = reserve_more(stand, 0, ramp, 22, 30, 1, 1);
    assert_int_equal(b.type, QR_MESSAGE_pages_granted);
    assert_int_equal(b.boundary, 21);
    pages_destroy(stand);
}
static void test_another_walker_becomes_producer(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 20, 20), b = reserve(stand, ramp, 20, 20);
    assert_true(reserve_more(stand, 0, ramp, 20, 20, 1, 4).producer == a.route);
    release(stand, a.route, 1);
    assert_true(reserve_more(stand, 0, ramp, 20, 20, 1, 4).producer == b.route);
    release(stand, b.route, 1);
    assert_int_equal(reserve_more(stand, 0, ramp, 20, 20, 1, 4).type, QR_MESSAGE_pages_granted);
    pages_destroy(stand);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static void test_refusals_change_nothing(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 10, 4);
    answer_t a = reserve(stand, ramp, 10, 16);
    uint64_t bytes = qr_page_manager_class.bytes(stand->given);
    uint8_t *before = malloc(bytes);
    memcpy(before, stand->state, bytes);
    answer_t b = reserve(stand, ramp + 30, 20, 20);
    assert_int_equal(b.reason, QR_E_SHORTFALL);
    assert_int_equal(b.pages_short, 2);                                    /* 5 needed; a holds 4 and the source of its copy */
    assert_int_equal(reserve(stand, ramp, 12, 32).reason, QR_E_SHORTFALL); /* with a match */
    assert_int_equal(reserve(stand, ramp, 20, 33).reason, QR_E_NEVER_FITS);
    assert_int_equal(reserve(stand, ramp, 20, 65).reason, QR_E_CONTEXT);
    assert_int_equal(reserve(stand, ramp, 20, 19).reason, QR_E_INVALID);
    assert_int_equal(reserve(stand, ramp, 0, 19).reason, QR_E_INVALID);
    assert_memory_equal(before, stand->state, bytes);
    free(before);
    (void)a;
    pages_destroy(stand);
}
static void test_evicts_exactly_what_is_short_and_least_valuable(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    uint32_t first[4] = {101, 102, 103, 104}, second[4] = {201, 202, 203, 204}, third[4] = {301, 302, 303, 304};
    run(stand, first, 4, 1);
    run(stand, first, 4, 1);
    run(stand, first, 4, 1); /* used again: worth more than the younger ones */
    run(stand, second, 4, 1);
    run(stand, third, 4, 1);
    answer_t a = reserve(stand, ramp, 21, 21); /* 6 pages, 5 free */
    assert_int_equal(a.type, QR_MESSAGE_pages_granted);
    assert_int_equal(metric(stand, METRIC_page_evictions_total), 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2);
    release(stand, a.route, 0);
    assert_int_equal(run(stand, second, 4, 1), 0); /* the oldest of the least used is gone */
    assert_int_equal(run(stand, third, 4, 1), 3);
    assert_int_equal(run(stand, first, 4, 1), 3);
    pages_destroy(stand);
}
static void test_whole_pool_cached_still_admits(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 32, 1); /* all 8 pages */
    assert_int_equal(metric(stand, METRIC_pages_retained), 8);
    answer_t a = reserve(stand, ramp, 32, 32); /* a copy of the last page would need a ninth */
    assert_int_equal(a.type, QR_MESSAGE_pages_granted);
    assert_int_equal(a.boundary, 28);
    assert_int_equal(a.copy_count, 0);
    pages_destroy(stand);
}
static void test_held_pages_are_never_evicted(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 9, 9);
    commit(stand, a.route, 9, NULL, 0);
    answer_t b = reserve(stand, ramp, 8, 12); /* shares page 0, copies page 1 */
    commit(stand, b.route, 8, NULL, 0);
    release(stand, a.route, 1);
    assert_int_equal(reserve(stand, ramp + 30, 24, 24).reason, QR_E_SHORTFALL); /* 6 */
    answer_t c = reserve(stand, ramp + 30, 16, 16);
    assert_int_equal(c.type, QR_MESSAGE_pages_granted);
    for (uint32_t i = 0; i < c.page_count; i++)
        for (uint32_t j = 0; j < b.page_count; j++) assert_true(qr_handle_index(c.pages[i]) != qr_handle_index(b.pages[j]));
    pages_destroy(stand);
}
static void test_route_table_full_is_busy(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1); /* 2 lanes: 4 routes */
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(reserve(stand, ramp + i, 1, 1).type, QR_MESSAGE_pages_granted);
    assert_int_equal(reserve(stand, ramp + 5, 1, 1).reason, QR_E_BUSY);
    pages_destroy(stand);
}
static void test_repeated_ask_gets_the_same_grant(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    run(stand, ramp, 6, 1);
    answer_t a = reserve(stand, ramp, 11, 20);
    next_request--;
    answer_t b = reserve(stand, ramp, 11, 20);
    assert_int_equal(a.boundary, 6);
    assert_memory_equal(&a, &b, sizeof a);
    commit(stand, a.route, 11, NULL, 0);
    next_request--;
    assert_int_equal(reserve(stand, ramp, 11, 20).reason, QR_E_IN_USE);
    pages_destroy(stand);
}

/* ---- commits that do not fit are said aloud and change nothing --------------------------------------------------- */

static void refused_commit(stand_t *stand, uint64_t route, uint32_t rows, const uint32_t *tokens, uint32_t count, uint32_t note)
{
    uint64_t bytes = qr_page_manager_class.bytes(stand->given);
    uint8_t *before = malloc(bytes);
    memcpy(before, stand->state, bytes);
    commit(stand, route, rows, tokens, count);
    assert_int_equal(stand->outbox.note_count, 1);
    assert_int_equal(stand->outbox.notes[0].code, note);
    assert_memory_equal(before, stand->state, bytes);
    free(before);
}
static void test_commits_that_do_not_fit(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 6, 10);
    refused_commit(stand, a.route, 7, NULL, 0, QR_NOTE_protocol);      /* row 6 has no token */
    refused_commit(stand, a.route, 8, ramp + 7, 1, QR_NOTE_protocol);  /* a gap at row 6 */
    refused_commit(stand, a.route, 11, ramp + 6, 5, QR_NOTE_protocol); /* beyond rows_max */
    refused_commit(stand, a.route, 6, ramp + 9, 2, QR_NOTE_protocol);  /* not the prompt's tokens */
    refused_commit(stand, a.route + 1, 6, NULL, 0, QR_NOTE_stale);
    refused_commit(stand, a.route + (1ull << 32), 6, NULL, 0, QR_NOTE_stale);
    commit(stand, a.route, 6, ramp, 6);
    refused_commit(stand, a.route, 5, NULL, 0, QR_NOTE_protocol); /* rows never become fewer */
    commit(stand, a.route, 8, ramp + 5, 3);                       /* known ids may be told again */
    release(stand, a.route, 1);
    refused_commit(stand, a.route, 9, ramp + 8, 1, QR_NOTE_stale);
    assert_int_equal(run(stand, ramp, 9, 1), 8);
    pages_destroy(stand);
}

/* ---- the next tranche ---------------------------------------------------------------------------------------------- */

static void test_a_route_gets_more_pages_or_nothing(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1); /* 8 pages of 4 rows */
    answer_t a = reserve(stand, ramp, 6, 8);
    commit(stand, a.route, 6, NULL, 0);
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 8);
    assert_int_equal(HEARD(stand, pages_added)->reason, QR_E_INVALID);
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 18);
    assert_int_equal(HEARD(stand, pages_added)->reason, 0);
    assert_int_equal(HEARD(stand, pages_added)->first_block, 2);
    assert_int_equal(HEARD(stand, pages_added)->pages.count, 3);
    assert_int_equal(metric(stand, METRIC_pages_free), 3);
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 20); /* the same pages */
    assert_int_equal(HEARD(stand, pages_added)->reason, 0);
    assert_int_equal(HEARD(stand, pages_added)->pages.count, 0);
    run(stand, ramp + 30, 8, 1); /* leaves two retained pages */
    assert_int_equal(metric(stand, METRIC_pages_free), 1);
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 36);
    assert_int_equal(HEARD(stand, pages_added)->reason, QR_E_SHORTFALL);
    assert_int_equal(HEARD(stand, pages_added)->pages_short, 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2); /* nothing changed */
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 32);
    assert_int_equal(HEARD(stand, pages_added)->reason, 0); /* exactly what is short leaves */
    assert_int_equal(metric(stand, METRIC_pages_retained) + metric(stand, METRIC_pages_free), 0);
    assert_int_equal(release(stand, a.route, 1), 0);
    SAY(stand, SCHEDULER, pages_more, .route = a.route, .rows_max = 36);
    assert_int_equal(HEARD(stand, pages_added)->reason, QR_E_UNKNOWN);
    assert_int_equal(drop(stand), 8);
    pages_destroy(stand);
}

/* What stands of an open route is named, in the order of its blocks; nothing changes by it. */
static void test_the_pages_of_a_route_are_named(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 6, 8);
    SAY(stand, SCHEDULER, route_pages, .route = a.route, .rows = 1);
    assert_int_equal(HEARD(stand, route_pages_named)->reason, QR_E_INVALID);
    commit(stand, a.route, 6, NULL, 0);
    SAY(stand, SCHEDULER, route_pages, .route = a.route, .rows = 7);
    assert_int_equal(HEARD(stand, route_pages_named)->reason, QR_E_INVALID);
    assert_int_equal(HEARD(stand, route_pages_named)->pages.count, 0);
    for (uint32_t rows = 4; rows <= 6; rows += 2) {
        SAY(stand, SCHEDULER, route_pages, .route = a.route, .rows = rows);
        assert_int_equal(HEARD(stand, route_pages_named)->reason, 0);
        assert_int_equal(HEARD(stand, route_pages_named)->pages.count, rows / 4 + (rows % 4 != 0));
        assert_memory_equal(HEARD(stand, route_pages_named)->pages.data, a.pages, rows > 4 ? 16 : 8);
    }
    assert_int_equal(release(stand, a.route, 1), 0);
    SAY(stand, SCHEDULER, route_pages, .route = a.route, .rows = 6);
    assert_int_equal(HEARD(stand, route_pages_named)->reason, QR_E_UNKNOWN);
    pages_destroy(stand);
}

/* What can never fit is judged by the whole answer, not by its first tranche. */
static void test_a_tranche_does_not_hide_what_never_fits(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    qr_pages_reserve_t ask = {.request_id = 1, .attempt = 1, .tokens = {ramp, 6}, .rows_max = 8, .first_rows = 6, .rows_whole = 33};
    stand_say(stand, SCHEDULER, QR_MESSAGE_pages_reserve, &ask);
    assert_int_equal(HEARD(stand, pages_refused)->reason, QR_E_NEVER_FITS);
    ask.rows_whole = 32;
    stand_say(stand, SCHEDULER, QR_MESSAGE_pages_reserve, &ask);
    assert_int_equal(HEARD(stand, pages_granted)->pages.count, 2);
    pages_destroy(stand);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* On a node with a store every chunk (8 tokens) whose last row was computed here is offered once; loaded rows are not. */
static void test_completed_chunks_are_offered_for_capture(void **state)
{
    (void)state;
    geometry_t wide = G1;
    wide.pools[0].pages = 64;
    qr_given_t *given = given_new(wide);
    memcpy(given->params.store, "store", 6);
    given->params.captures = QR_CAPTURES_MAX;
    stand_t *stand = pages_start(given);
    qr_hash_t scope;
    scope_of(&scope, 3);
    answer_t a = reserve_more(stand, 3, ramp, 30, 33, 1, 0);
    commit(stand, a.route, 7, NULL, 0);
    assert_int_equal(HEARD_COUNT(stand, capture), 0);
    commit(stand, a.route, 17, NULL, 0); /* two chunks at once */
    const qr_capture_t *capture = HEARD(stand, capture);
    assert_memory_equal(capture->scope.bytes, scope.bytes, 32);
    assert_int_equal(capture->start_rows, 0);
    assert_int_equal(capture->tokens.count, 16);
    assert_memory_equal(capture->tokens.data, ramp, 16 * 4);
    commit(stand, a.route, 30, NULL, 0);
    assert_int_equal(HEARD(stand, capture)->start_rows, 16);
    assert_int_equal(HEARD(stand, capture)->tokens.count, 24);
    commit(stand, a.route, 31, (const uint32_t[]){101}, 1);
    commit(stand, a.route, 32, (const uint32_t[]){102}, 1); /* generated tokens complete one too */
    assert_int_equal(HEARD(stand, capture)->start_rows, 24);
    assert_int_equal(HEARD(stand, capture)->tokens.data[31], 102);
    uint64_t id = HEARD(stand, capture)->capture_id;
    assert_int_equal(release(stand, a.route, 1), 0);
    answer_t b = reserve_more(stand, 3, ramp, 30, 33, 1, 0); /* rows that stand are not offered again */
    commit(stand, b.route, 30, NULL, 0);
    assert_int_equal(HEARD_COUNT(stand, capture), 0);
    answer_t c = reserve_more(stand, 4, ramp, 20, 20, 1, 0);
    SAY(stand, SCHEDULER, pages_load, c.route, 0, 16);
    SAY(stand, SCHEDULER, load_ended, c.route, 16, 1); /* verified rows came from a chunk */
    assert_int_equal(HEARD_COUNT(stand, capture), 0);
    SAY(stand, WRITER, captured, .capture_id = id, .durable_rows = 32);
    pages_destroy(stand);
}

static void test_offers_for_capture_are_bounded(void **state)
{
    (void)state;
    geometry_t wide = G1;
    wide.pools[0].pages = 64;
    qr_given_t *given = given_new(wide);
    memcpy(given->params.store, "store", 6);
    given->params.captures = QR_CAPTURES_MAX;
    stand_t *stand = pages_start(given);
    for (uint32_t i = 0; i < QR_CAPTURES_MAX + 2; i++) {
        answer_t a = reserve_more(stand, (uint8_t)(i + 1), ramp, 9, 9, 1, 0);
        commit(stand, a.route, 8, NULL, 0);
        assert_int_equal(HEARD_COUNT(stand, capture), i < QR_CAPTURES_MAX);
        assert_int_equal(release(stand, a.route, 1), 0);
    }
    assert_int_equal(metric(stand, METRIC_captures_asked_total), QR_CAPTURES_MAX);
    assert_int_equal(metric(stand, METRIC_captures_skipped_total), 2);
    SAY(stand, WRITER, captured, .capture_id = 1, .reason = QR_E_BUSY);
    answer_t a = reserve_more(stand, 99, ramp, 9, 9, 1, 0);
    commit(stand, a.route, 8, NULL, 0);
    assert_int_equal(HEARD_COUNT(stand, capture), 1);
    pages_destroy(stand);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

static void test_load_commits_what_is_verified(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 20, 24);
    SAY(stand, SCHEDULER, pages_load, a.route, 2, 16);
    assert_int_equal(HEARD(stand, pages_loading)->reason, QR_E_INVALID); /* not a page start */
    SAY(stand, SCHEDULER, pages_load, a.route, 0, 21);
    assert_int_equal(HEARD(stand, pages_loading)->reason, QR_E_INVALID); /* tokens nobody knows */
    SAY(stand, SCHEDULER, pages_load, a.route, 0, 18);
    assert_int_equal(HEARD(stand, pages_loading)->pages.count, 5);
    assert_memory_equal(HEARD(stand, pages_loading)->pages.data, a.pages, 5 * 8);
    SAY(stand, SCHEDULER, pages_load, a.route, 0, 18);
    assert_int_equal(HEARD(stand, pages_loading)->reason, QR_E_IN_USE);
    commit(stand, a.route, 4, NULL, 0);
    assert_int_equal(stand->outbox.notes[0].code, QR_NOTE_protocol);                          /* nothing is computed meanwhile */
    assert_int_equal(reserve_more(stand, 0, ramp, 20, 24, 1, 4).type, QR_MESSAGE_pages_wait); /* a load is a promise */
    assert_int_equal(reserve(stand, ramp, 20, 24).boundary, 0);                               /* and no rows yet */
    SAY(stand, SCHEDULER, load_ended, a.route, 18, 0);
    assert_int_equal(HEARD(stand, load_closed)->boundary, 18);
    assert_int_equal(HEARD(stand, load_closed)->pages.count, 0);
    assert_int_equal(reserve(stand, ramp, 20, 24).boundary, 18);
    pages_destroy(stand);
}
static void test_load_that_stops_is_fenced(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 20, 24);
    SAY(stand, SCHEDULER, pages_load, a.route, 0, 18);
    SAY(stand, SCHEDULER, load_ended, a.route, 10, 0); /* 10 rows verified: two pages */
    assert_int_equal(HEARD_COUNT(stand, load_closed), 0);
    const qr_fence_t *fence = HEARD(stand, fence);
    uint64_t id = fence->fence_id;
    assert_int_equal(fence->pages.count, 3);
    for (uint32_t i = 0; i < 3; i++) assert_true(fence->pages.data[i] == a.pages[2 + i] && fence->groups.data[i] == 0);
    commit(stand, a.route, 12, NULL, 0);
    assert_int_equal(stand->outbox.notes[0].code, QR_NOTE_protocol); /* a transfer may still write there */
    SAY(stand, TRANSFER, fenced, id + (1ull << 32));
    assert_int_equal(stand->outbox.notes[0].code, QR_NOTE_stale);
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, TRANSFER, fenced, id);
    const qr_load_closed_t *closed = HEARD(stand, load_closed);
    assert_true(closed->route == a.route && closed->reason == 0 && closed->boundary == 8);
    assert_int_equal(closed->pages.count, 3);
    for (uint32_t i = 0; i < 3; i++) { /* the same pages, one generation later */
        assert_int_equal(qr_handle_index(closed->pages.data[i]), qr_handle_index(a.pages[2 + i]));
        assert_int_equal(qr_handle_generation(closed->pages.data[i]), qr_handle_generation(a.pages[2 + i]) + 1);
    }
    commit(stand, a.route, 20, NULL, 0);
    assert_int_equal(stand->outbox.note_count, 0);
    pages_destroy(stand);
}
static void test_quiet_load_goes_on_at_once(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    run(stand, ramp, 10, 1);
    uint32_t other[20];
    memcpy(other, ramp, sizeof other);
    other[9] = 777;
    answer_t a = reserve(stand, other, 20, 20); /* shares 8, copies one row */
    assert_int_equal(a.boundary, 9);
    assert_int_equal(a.copy_count, 1);
    SAY(stand, SCHEDULER, pages_load, a.route, 8, 9);
    assert_int_equal(HEARD(stand, pages_loading)->reason, QR_E_INVALID); /* not beyond what the copy gives */
    SAY(stand, SCHEDULER, pages_load, a.route, 8, 20);
    assert_int_equal(HEARD(stand, pages_loading)->reason, 0);
    SAY(stand, SCHEDULER, load_ended, a.route, 11, 1);
    const qr_load_closed_t *closed = HEARD(stand, load_closed);
    assert_int_equal(closed->boundary, 9); /* nothing loaded counts, the copy still does */
    assert_int_equal(closed->pages.count, 3);
    assert_int_equal(metric(stand, METRIC_pages_used), 3); /* its source is still held */
    commit(stand, a.route, 20, NULL, 0);
    assert_int_equal(metric(stand, METRIC_pages_used), 5);
    pages_destroy(stand);
}
static void test_release_while_fencing_answers_the_load(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 20, 20);
    SAY(stand, SCHEDULER, pages_load, a.route, 0, 20);
    SAY(stand, SCHEDULER, load_ended, a.route, 4, 0);
    uint64_t id = HEARD(stand, fence)->fence_id;
    SAY(stand, SCHEDULER, route_release, a.route, 1);
    assert_int_equal(HEARD(stand, load_closed)->reason, QR_E_CANCELLED);
    assert_int_equal(HEARD(stand, route_released)->reason, 0);
    assert_int_equal(metric(stand, METRIC_pages_retained), 1);
    assert_int_equal(metric(stand, METRIC_pages_fenced), 4);
    assert_int_equal(drop(stand), 4);
    assert_int_equal(reserve(stand, ramp + 30, 20, 20).reason, QR_E_SHORTFALL);
    SAY(stand, TRANSFER, fenced, id);
    assert_int_equal(stand->outbox.count, 0);
    assert_int_equal(metric(stand, METRIC_pages_free), 8);
    pages_destroy(stand);
}

/* ---- windowed groups --------------------------------------------------------------------------------------------- */

/* Group 1 keeps 8 tokens: a route of a row at a time uses at most ceil((7 + 1) / 4) + 1 = 3 of its pages. */
static const geometry_t WINDOWED = {4, 64, 4, 2, {{0, 32, 0, 64}, {8, 12, 0, 64}}};

static void test_window_pages_come_as_the_window_moves(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WINDOWED);
    answer_t a = reserve_more(stand, 0, ramp, 4, 24, 1, 0);
    assert_int_equal(a.group_counts[0], 6);
    assert_int_equal(a.group_counts[1], 3);
    uint32_t blocks = 3;
    for (uint32_t rows = 4; rows <= 24; rows++) {
        commit(stand, a.route, rows, ramp + rows - 1, 1);
        uint32_t first = rows > 7 ? (rows - 7) / 4 : 0, end = first + 3 < 6 ? first + 3 : 6; /* row rows - 7 is still attended */
        if (end == blocks) {
            assert_int_equal(stand->outbox.count, 0);
            continue;
        }
        const qr_window_pages_t *m = HEARD(stand, window_pages);
        assert_int_equal(m->routes.count, 1);
        assert_true(m->routes.data[0] == a.route && m->groups.data[0] == 1 && m->blocks.data[0] == blocks);
        blocks++;
    }
    assert_int_equal(blocks, 6);
    /* What left the window stayed as cache: free pages could replace it. */
    assert_int_equal(metric(stand, METRIC_pages_retained), 4);
    release(stand, a.route, 1);
    answer_t b = reserve_more(stand, 0, ramp, 24, 24, 1, 0);
    assert_int_equal(b.boundary, 23);
    assert_int_equal(b.first_blocks[1], 4);
    assert_int_equal(b.copy_count, 2);
    release(stand, b.route, 1);
    b = reserve_more(stand, 0, ramp, 14, 14, 1, 0); /* in the middle: rows 6 .. 12 of the window still stand */
    assert_int_equal(b.boundary, 13);
    assert_int_equal(b.first_blocks[1], 1);
    release(stand, b.route, 1);
    assert_int_equal(drop(stand), 44);
    pages_destroy(stand);
}
static void test_window_page_is_reused_without_a_free_one(void **state)
{
    (void)state;
    geometry_t tight = WINDOWED;
    tight.pools[1].pages = 3;
    stand_t *stand = pages_new(tight);
    answer_t a = reserve_more(stand, 0, ramp, 20, 24, 4, 0);
    assert_int_equal(a.reason, QR_E_NEVER_FITS); /* ceil((7 + 4) / 4) + 1 = 4 */
    a = reserve_more(stand, 0, ramp, 20, 24, 1, 0);
    for (uint32_t rows = 1; rows <= 20; rows++) commit(stand, a.route, rows, NULL, 0);
    assert_int_equal(metric(stand, METRIC_pages_retained), 0);
    release(stand, a.route, 1);
    /* Rows 0 .. 12 of the window are gone: a prompt that ends there is computed again, one at the end is not. */
    assert_int_equal(reserve_more(stand, 0, ramp, 12, 12, 1, 0).reason, 0);
    pages_destroy(stand);
}
static void test_missing_window_shortens_the_match(void **state)
{
    (void)state;
    geometry_t tight = WINDOWED;
    tight.pools[1].pages = 4;
    stand_t *stand = pages_new(tight);
    answer_t a = reserve_more(stand, 0, ramp, 21, 24, 1, 0);
    for (uint32_t rows = 1; rows <= 21; rows++) commit(stand, a.route, rows, NULL, 0);
    release(stand, a.route, 1);
    answer_t b = reserve_more(stand, 0, ramp, 12, 12, 1, 0);
    assert_int_equal(b.type, QR_MESSAGE_pages_granted);
    assert_int_equal(b.boundary, 4); /* one page found a free one to replace it, those after it did not */
    commit(stand, b.route, 8, NULL, 0);
    commit(stand, b.route, 12, NULL, 0);
    release(stand, b.route, 1);
    assert_int_equal(metric(stand, METRIC_pages_retained), 6 + 4); /* the nodes name b's window pages now */
    b = reserve_more(stand, 0, ramp, 12, 12, 1, 0);
    assert_int_equal(b.boundary, 11);
    pages_destroy(stand);
}
static void test_charge_changes_hands(void **state)
{
    (void)state;
    geometry_t tight = WINDOWED;
    tight.pools[1].pages = 7;
    stand_t *stand = pages_new(tight);
    answer_t a = reserve_more(stand, 0, ramp, 9, 12, 1, 0);
    commit(stand, a.route, 4, NULL, 0);
    commit(stand, a.route, 8, NULL, 0);
    answer_t b = reserve_more(stand, 0, ramp, 9, 12, 1, 0); /* shares pages 0 and 1, pays for none of them yet */
    assert_int_equal(b.boundary, 8);
    assert_true(b.pages[3] == a.pages[3] && b.pages[4] == a.pages[4]);
    answer_t c = reserve_more(stand, 0, ramp + 30, 4, 4, 1, 0);
    assert_int_equal(c.type, QR_MESSAGE_pages_granted); /* 3 + 3 + 1 = 7 */
    assert_int_equal(reserve_more(stand, 0, ramp + 40, 4, 4, 1, 0).reason, QR_E_SHORTFALL);
    assert_int_equal(metric(stand, METRIC_pages_reserved), 2 + 2 + 2 + 2); /* block 2 of each in both groups, c, and what b has not used */
    release(stand, a.route, 1); /* b takes over the charge of two pages with the two it had not used */
    assert_int_equal(metric(stand, METRIC_pages_reserved), 1 + 1 + 2);
    answer_t d = reserve_more(stand, 0, ramp + 40, 4, 12, 1, 0);
    assert_int_equal(d.type, QR_MESSAGE_pages_granted);
    assert_int_equal(reserve_more(stand, 0, ramp + 50, 4, 4, 1, 0).reason, QR_E_SHORTFALL);
    pages_destroy(stand);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

static qr_pages_pinned_t pin(stand_t *stand, const uint32_t *tokens, uint32_t count, uint32_t start)
{
    qr_pages_pin_t ask = {.holder_key = 5, .tokens = {tokens, count}, .start_rows = start};
    scope_of(&ask.scope, 0);
    stand_say(stand, WRITER, QR_MESSAGE_pages_pin, &ask);
    assert_true(HEARD(stand, pages_pinned)->holder_key == 5);
    return *HEARD(stand, pages_pinned);
}
static uint32_t unpin(stand_t *stand, uint64_t lease)
{
    SAY(stand, WRITER, pages_unpin, lease);
    return HEARD(stand, pages_unpinned)->reason;
}
static void test_lease_holds_pages_beyond_their_route(void **state)
{
    (void)state;
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 14, 16);
    assert_int_equal(pin(stand, ramp, 12, 4).reason, QR_E_NOT_FOUND); /* promised is not there */
    commit(stand, a.route, 14, NULL, 0);
    qr_pages_pinned_t lease = pin(stand, ramp, 12, 4);
    assert_int_equal(lease.reason, 0);
    assert_int_equal(lease.group_counts.data[0], 2);
    assert_int_equal(lease.first_blocks.data[0], 1);
    assert_true(lease.pages.data[0] == a.pages[1] && lease.pages.data[1] == a.pages[2]);
    assert_int_equal(pin(stand, ramp, 13, 0).reason, QR_E_LIMIT); /* more than a chunk and a page */
    release(stand, a.route, 1);
    assert_int_equal(metric(stand, METRIC_pages_used), 2);
    assert_int_equal(drop(stand), 5); /* page 0 is named by an ancestor of what is leased */
    assert_int_equal(reserve(stand, ramp + 30, 24, 24).reason, QR_E_SHORTFALL);
    assert_int_equal(unpin(stand, lease.lease), 0);
    assert_int_equal(unpin(stand, lease.lease), QR_E_STALE);
    assert_int_equal(drop(stand), 8);
    uint32_t i;
    run(stand, ramp, 4, 1);
    for (i = 0; i < QR_LEASES_MAX; i++) assert_int_equal(pin(stand, ramp, 4, 0).reason, 0);
    assert_int_equal(pin(stand, ramp, 4, 0).reason, QR_E_BUSY);
    pages_destroy(stand);
}
static void test_lease_on_a_leaf_sees_it_grow_and_merge(void **state)
{
    (void)state;
    stand_t *stand = pages_new(WIDE);
    answer_t a = reserve(stand, ramp, 8, 8), b = reserve(stand, ramp, 6, 10);
    commit(stand, a.route, 8, NULL, 0);
    commit(stand, b.route, 6, NULL, 0);
    qr_pages_pinned_t lease = pin(stand, ramp, 6, 4); /* a's page or b's: both hold these rows */
    assert_int_equal(lease.reason, 0);
    commit(stand, b.route, 8, ramp + 6, 2); /* b's leaf is full and merges */
    release(stand, a.route, 1);
    release(stand, b.route, 1);
    assert_int_equal(unpin(stand, lease.lease), 0);
    assert_int_equal(metric(stand, METRIC_pages_retained), 2);
    assert_int_equal(drop(stand), 64);
    pages_destroy(stand);
}
static void test_captures_pay_from_what_is_set_aside(void **state)
{
    (void)state;
    geometry_t aside = WINDOWED;
    aside.pools[1] = (qr_group_t){8, 5, 2, 64};
    stand_t *stand = pages_new(aside);
    assert_int_equal(metric(stand, METRIC_pages_free), 32 + 5);
    assert_int_equal(reserve_more(stand, 0, ramp, 9, 16, 5, 0).reason, QR_E_NEVER_FITS); /* 4 of 5, but 2 are set aside */
    answer_t a = reserve_more(stand, 0, ramp, 9, 12, 1, 0);
    commit(stand, a.route, 4, NULL, 0);
    commit(stand, a.route, 8, NULL, 0);
    qr_pages_pinned_t lease = pin(stand, ramp, 8, 0);
    assert_int_equal(lease.reason, 0);
    assert_int_equal(lease.group_counts.data[1], 2);
    assert_int_equal(pin(stand, ramp, 4, 0).reason, QR_E_SHORTFALL); /* 3 pages of group 1 would be leased */
    release(stand, a.route, 1);
    /* The two leased pages are paid by captures now: the whole unset-aside pool is there for the next. */
    a = reserve_more(stand, 0, ramp + 30, 12, 12, 1, 0);
    assert_int_equal(a.type, QR_MESSAGE_pages_granted);
    assert_int_equal(unpin(stand, lease.lease), 0);
    release(stand, a.route, 1);
    assert_int_equal(drop(stand), 32 + 5);
    pages_destroy(stand);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void test_drain_and_stop(void **state)
{
    (void)state;
    uint64_t mesh = qr_address(1, 0, QR_ROLE_mesh, 0);
    stand_t *stand = pages_new(G1);
    answer_t a = reserve(stand, ramp, 5, 5);
    SAY(stand, mesh, drain, 50000);
    assert_int_equal(stand->outbox.count, 0);
    assert_int_equal(reserve(stand, ramp, 5, 5).reason, QR_E_DRAINING);
    assert_true(stand_alarm(stand, stand->now_us + 60000));
    assert_int_equal(HEARD(stand, drained)->open_count, 1);
    SAY(stand, mesh, drain, 50000);
    release(stand, a.route, 1);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    SAY(stand, mesh, drain, 50000);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    SAY(stand, mesh, stop, 1000);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    pages_destroy(stand);
}
static void test_print_shows_the_pools(void **state)
{
    (void)state;
    static char data[1024];
    qr_text_t text;
    stand_t *stand = pages_new(G1);
    run(stand, ramp, 5, 1);
    reserve(stand, ramp, 5, 6);
    qr_text_init(&text, data, sizeof data);
    qr_page_manager_class.print(stand->state, stand->given, &text);
    assert_non_null(strstr(data, "group 0: pages 8 free 5 aside 0 reserved 1 loading 0 used 1 retained 1 fenced 0"));
    assert_non_null(strstr(data, "rows 4 boundary 4 tokens 5 of 6"));
    pages_destroy(stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_PM_01),
        cmocka_unit_test(test_PM_03),
        cmocka_unit_test(test_PM_07),
        cmocka_unit_test(test_PM_09),
        cmocka_unit_test(test_PM_10),
        cmocka_unit_test(test_PI_01),
        cmocka_unit_test(test_PI_07),
        cmocka_unit_test(test_PM_05),
        cmocka_unit_test(test_RT_01),
        cmocka_unit_test(test_scopes_share_nothing),
        cmocka_unit_test(test_leaf_taken_over_without_copy),
        cmocka_unit_test(test_copy_source_is_held_until_its_batch_is_committed),
        cmocka_unit_test(test_generated_leaf_merges_with_an_equal_full_node),
        cmocka_unit_test(test_equal_leaves_are_kept_once),
        cmocka_unit_test(test_release_without_keep_forgets),
        cmocka_unit_test(test_cancelled_prompt_leaves_only_its_rows),
        cmocka_unit_test(test_waits_for_a_running_producer),
        cmocka_unit_test(test_another_walker_becomes_producer),
        cmocka_unit_test(test_refusals_change_nothing),
        cmocka_unit_test(test_evicts_exactly_what_is_short_and_least_valuable),
        cmocka_unit_test(test_whole_pool_cached_still_admits),
        cmocka_unit_test(test_held_pages_are_never_evicted),
        cmocka_unit_test(test_route_table_full_is_busy),
        cmocka_unit_test(test_repeated_ask_gets_the_same_grant),
        cmocka_unit_test(test_commits_that_do_not_fit),
        cmocka_unit_test(test_a_route_gets_more_pages_or_nothing),
        cmocka_unit_test(test_the_pages_of_a_route_are_named),
        cmocka_unit_test(test_a_tranche_does_not_hide_what_never_fits),
        cmocka_unit_test(test_completed_chunks_are_offered_for_capture),
        cmocka_unit_test(test_offers_for_capture_are_bounded),
        cmocka_unit_test(test_load_commits_what_is_verified),
        cmocka_unit_test(test_load_that_stops_is_fenced),
        cmocka_unit_test(test_quiet_load_goes_on_at_once),
        cmocka_unit_test(test_release_while_fencing_answers_the_load),
        cmocka_unit_test(test_window_pages_come_as_the_window_moves),
        cmocka_unit_test(test_window_page_is_reused_without_a_free_one),
        cmocka_unit_test(test_missing_window_shortens_the_match),
        cmocka_unit_test(test_charge_changes_hands),
        cmocka_unit_test(test_lease_holds_pages_beyond_their_route),
        cmocka_unit_test(test_lease_on_a_leaf_sees_it_grow_and_merge),
        cmocka_unit_test(test_captures_pay_from_what_is_set_aside),
        cmocka_unit_test(test_drain_and_stop),
        cmocka_unit_test(test_print_shows_the_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
