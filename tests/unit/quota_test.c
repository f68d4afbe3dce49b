/* link: qr_actor_quota qr_schema */
/* Quotas of one tenant: requests, pages, and tokens a second, alone and by chance against a plain ledger. */
#include "actors/quota.h"
#include "base/prng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SECOND = 1000000 };

static qr_quota_t quota;
static uint32_t retry_ms;

static void begin(uint32_t lanes, uint32_t pages, uint32_t tokens_per_s, uint32_t open)
{
    qr_quota_limits_t limits = {.lanes = lanes, .pages = pages, .tokens_per_s = tokens_per_s};
    memset(&quota, 0, sizeof quota);
    for (uint32_t i = 0; i < open; i++) qr_quota_open(&quota, &limits);
}
static uint32_t take(uint64_t now_us, uint32_t tokens, uint32_t pages) { return qr_quota_take(&quota, now_us, tokens, pages, &retry_ms); }

static void test_lanes(void **unused)
{
    (void)unused;
    const qr_quota_limits_t two = {.lanes = 2}, none = {.lanes = 0};
    begin(2, 0, 0, 1);
    assert_true(qr_quota_may_open(&quota, &two));
    qr_quota_open(&quota, &two);
    assert_false(qr_quota_may_open(&quota, &two));
    assert_true(qr_quota_may_open(&quota, &none));
    qr_quota_close(&quota, 0, 0);
    assert_true(qr_quota_may_open(&quota, &two));
}

static void test_pages(void **unused)
{
    (void)unused;
    begin(0, 10, 0, 3);
    assert_int_equal(take(0, 1, 11), QR_QUOTA_NEVER);
    assert_int_equal(take(0, 1, 10), QR_QUOTA_FINE);
    assert_int_equal(take(0, 1, 1), QR_QUOTA_PAGES);
    assert_int_equal(retry_ms, 0);
    assert_int_equal(quota.pages, 10);
    qr_quota_close(&quota, 10, 0);
    assert_int_equal(take(0, 1, 6), QR_QUOTA_FINE);
    assert_int_equal(take(0, 1, 5), QR_QUOTA_PAGES);
    assert_int_equal(take(0, 1, 4), QR_QUOTA_FINE);
    begin(0, 0, 0, 1);
    assert_int_equal(take(0, UINT32_MAX, UINT32_MAX), QR_QUOTA_FINE); /* no bound */
}

static void test_tokens(void **unused)
{
    (void)unused;
    begin(0, 0, 5, 8); /* holds 50 */
    uint64_t now = 7 * SECOND;
    assert_int_equal(take(now, 30, 0), QR_QUOTA_FINE);
    assert_int_equal(take(now, 21, 0), QR_QUOTA_TOKENS);
    assert_int_equal(retry_ms, 200); /* one token is missing */
    assert_int_equal(take(now, 20, 0), QR_QUOTA_FINE);
    assert_int_equal(take(now, 1, 0), QR_QUOTA_TOKENS);
    assert_int_equal(take(now + 199999, 1, 0), QR_QUOTA_TOKENS);
    assert_int_equal(retry_ms, 1); /* rounded up */
    assert_int_equal(take(now + 200000, 1, 0), QR_QUOTA_FINE);
    assert_int_equal(take(now, 1, 0), QR_QUOTA_TOKENS);                         /* a clock that goes back gives nothing */
    assert_int_equal(take(now + 100 * (uint64_t)SECOND, 50, 0), QR_QUOTA_FINE); /* and it never holds more than 50 */
    assert_int_equal(take(now + 100 * (uint64_t)SECOND, 1, 0), QR_QUOTA_TOKENS);
}

/* One that needs more than the bucket holds is not shut out for ever: it gets in when the bucket is full, and leaves a debt. */
static void test_more_than_the_bucket(void **unused)
{
    (void)unused;
    begin(0, 0, 5, 4);
    assert_int_equal(take(SECOND, 1, 0), QR_QUOTA_FINE);
    assert_int_equal(take(SECOND, 1000, 0), QR_QUOTA_TOKENS);
    assert_int_equal(retry_ms, 200);
    assert_int_equal(take(2 * SECOND, 1000, 0), QR_QUOTA_FINE);
    assert_int_equal(take(2 * SECOND, 1, 0), QR_QUOTA_TOKENS);
    assert_int_equal(retry_ms, (1000 - 50 + 1) * 200);
}

static void test_what_is_not_used_comes_back(void **unused)
{
    (void)unused;
    begin(0, 0, 5, 2);
    assert_int_equal(take(SECOND, 50, 0), QR_QUOTA_FINE);
    assert_int_equal(take(SECOND, 40, 0), QR_QUOTA_TOKENS);
    qr_quota_close(&quota, 0, 40);
    assert_int_equal(take(SECOND, 41, 0), QR_QUOTA_TOKENS);
    assert_int_equal(take(SECOND, 40, 0), QR_QUOTA_FINE);
    qr_quota_close(&quota, 0, 40);
    qr_quota_limits_t limits = quota.limits;
    qr_quota_open(&quota, &limits);
    qr_quota_close(&quota, 0, 4000); /* never above full */
    assert_int_equal(quota.spent, 0);
}

/* Q2 by chance: what is out never exceeds what the rate allows. */
static void test_many_by_chance(void **unused)
{
    (void)unused;
    enum { REQUESTS = 64, STEPS = 20000 };
    for (uint64_t seed = 1; seed <= 8; seed++) {
        qr_prng_t prng;
        qr_prng_init(&prng, seed);
        uint32_t rate = 1 + (uint32_t)(qr_prng_next(&prng) % 1000), most = rate * QR_QUOTA_BURST_S, held[REQUESTS] = {0}, in = 0;
        uint64_t now = 0, used = 0, pages = 0;
        begin(0, 100, rate, REQUESTS);
        for (uint32_t step = 0; step < STEPS; step++) {
            uint32_t i = (uint32_t)(qr_prng_next(&prng) % REQUESTS);
            now += qr_prng_next(&prng) % 100000;
            if (held[i]) {
                uint32_t spared = (uint32_t)(qr_prng_next(&prng) % (held[i] + 1));
                qr_quota_limits_t limits = quota.limits;
                qr_quota_close(&quota, 1 + i % 3, spared);
                qr_quota_open(&quota, &limits);
                used -= spared;
                pages -= 1 + i % 3;
                held[i] = 0;
            } else {
                uint32_t wanted = 1 + (uint32_t)(qr_prng_next(&prng) % (2 * rate));
                if (take(now, wanted, 1 + i % 3) != QR_QUOTA_FINE) continue;
                held[i] = wanted;
                used += wanted;
                pages += 1 + i % 3;
                in++;
            }
            assert_true(used <= most + now * rate / SECOND + 1);
            assert_true(pages == quota.pages && pages <= 100);
        }
        assert_true(in > 100);
    }
}

static void test_pages_of_a_route(void **unused)
{
    (void)unused;
    qr_layout_t layout = {.group_count = 1, .page_tokens = 16};
    assert_int_equal(qr_quota_pages(&layout, 0, 1024), 0);
    assert_int_equal(qr_quota_pages(&layout, 1, 1024), 1);
    assert_int_equal(qr_quota_pages(&layout, 16, 1024), 1);
    assert_int_equal(qr_quota_pages(&layout, 17, 1024), 2);
    layout.group_count = 2;
    layout.groups[1].window = 64;
    assert_int_equal(qr_quota_pages(&layout, 17, 32), 2 + 2);
    assert_int_equal(qr_quota_pages(&layout, 1600, 32), 100 + 7); /* 63 + 32 rows may begin in the middle of a page */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_more_than_the_bucket),
        cmocka_unit_test(test_what_is_not_used_comes_back),
        cmocka_unit_test(test_many_by_chance),
        cmocka_unit_test(test_pages_of_a_route),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
