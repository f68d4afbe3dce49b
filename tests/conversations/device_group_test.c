/* link: qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_roles qr_messages qr_actor_decisions */
/* Worker, scheduler and page_manager together, over a device that computes tokens from the words of its pages. */
#include "tests/conversations/device_group.h"

enum { METRIC_PROMPT = 7, METRIC_CACHED = 8, METRIC_COMPUTED = 9, METRIC_LANES = 21, METRIC_QUEUE = 22 };

/* count tokens of a family: families share prefixes with themselves only. */
static void family(uint32_t *tokens, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) tokens[i] = (uint32_t)(qr_mix_u64((uint64_t)seed << 32 | i) % (VOCABULARY - 1));
}

static void test_one_request(void **state)
{
    (void)state;
    group_t *g = group_new(2, 64, 4, 128, 8, 0);
    uint32_t tokens[21];
    family(tokens, 21, 1);
    group_start(g, 1);
    place_t *p = group_offer(g, ROUTER_A, tokens, 21, 12, 0);
    group_run(g);
    assert_true(p->finished);
    assert_true(p->finish == QR_FINISH_LENGTH || p->finish == QR_FINISH_STOP);
    assert_int_equal(p->cached, 0);
    place_t *again = group_offer(g, ROUTER_B, tokens, 21, 12, 0);
    group_run(g);
    assert_int_equal(again->cached, 20); /* all but the pending token, its page taken over or copied */
    assert_memory_equal(again->tokens, p->tokens, p->known * 4);
    group_all_over(g);
    group_destroy(g);
}

static void random_offers(group_t *g, qr_prng_t *prng, uint32_t count)
{
    uint32_t tokens[PLACE_TOKENS];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)qr_prng_between(prng, 1, 60);
        uint32_t shared = (uint32_t)qr_prng_below(prng, length + 1);
        family(tokens, length, (uint32_t)qr_prng_below(prng, 3));
        if (qr_prng_one_in(prng, 2))
            for (uint32_t k = shared; k < length; k++) tokens[k] = (uint32_t)qr_prng_below(prng, VOCABULARY - 1);
        uint64_t router = qr_prng_one_in(prng, 2) ? ROUTER_A : ROUTER_B; /* drawn one by one: compilers order arguments as they like */
        uint32_t max_tokens = (uint32_t)qr_prng_between(prng, 1, 40), priority = (uint32_t)qr_prng_below(prng, 3);
        group_offer(g, router, tokens, length, max_tokens, priority);
        for (uint64_t turns = qr_prng_below(prng, 60); turns > 0; turns--) {
            group_turn(g);
            if (qr_prng_one_in(prng, 150)) {
                place_t *p = &g->places[qr_prng_below(prng, g->place_count)];
                if (!p->finished) group_cancel(g, p);
            }
        }
    }
}

/* Random worlds: shared and private prefixes, cancels, failing batches and lanes, small pools, windows of several widths. */
static void run_world(uint64_t seed, bool windowed)
{
    static const uint32_t pages[] = {4, 8, 16}, windows[] = {10, 1, 3, 24, 64}, waits[] = {4, 0, 1, 16};
    qr_prng_t prng;
    qr_prng_init(&prng, seed * 77 + windowed);
    uint32_t page = pages[qr_prng_below(&prng, 3)], tile = (uint32_t)qr_prng_between(&prng, 1, 24);
    uint32_t pool = (uint32_t)qr_prng_between(&prng, 112 / page + 2, 600 / page), lanes = (uint32_t)qr_prng_between(&prng, 1, 8);
    group_t *g = group_new(lanes, pool, page, 112, tile, windowed ? windows[seed % 5] : 0);
    g->given->params.wait_rows = waits[seed % 4];
    if (seed % 3 == 1) g->fail_one_in = (uint32_t)qr_prng_between(&prng, 3, 30);
    if (seed % 4 == 1) g->lane_fail_one_in = 60;
    group_start(g, seed);
    random_offers(g, &prng, 120);
    group_run(g);
    if (group_metric(g, SCHEDULER, METRIC_LANES) || group_metric(g, SCHEDULER, METRIC_QUEUE))
        fail_msg("world %u: something never ended", (unsigned)seed);
    group_all_over(g);
    group_destroy(g);
}

static void run_worlds(uint32_t worlds, bool windowed)
{
    const char *first = getenv("WORLD"); /* one world, or more of them: WORLD=17 or WORLD=1-5000 */
    const char *most = first ? strchr(first, '-') : NULL;
    uint64_t begin = first ? strtoull(first, NULL, 10) : 1, end = most ? strtoull(most + 1, NULL, 10) : first ? begin : worlds;
    for (uint64_t seed = begin; seed <= end; seed++) {
        printf("world %u\n", (unsigned)seed); /* the last one printed is the one that failed */
        run_world(seed, windowed);
    }
}

static void test_random_worlds(void **state)
{
    (void)state;
    run_worlds(60, false);
}

static void test_random_worlds_with_a_window(void **state)
{
    (void)state;
    run_worlds(60, true);
}

/* PM-07 Two requests each hold part of the pool and wait for the other: whole projections are reserved or nothing. */
static void pm_07(uint32_t first_rows, uint32_t second_rows, uint32_t first_pages)
{
    group_t *g = group_new(4, 7, 4, 64, 64, 0);
    uint32_t a[20], b[20];
    family(a, 20, 1);
    family(b, 20, 2);
    group_start(g, 3);
    g->hold_batches = true;
    place_t *first = group_offer(g, ROUTER_A, a, first_rows, 4, 0);
    place_t *second = group_offer(g, ROUTER_A, b, second_rows, 4, 0);
    for (uint32_t i = 0; i < 200; i++) group_turn(g);
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_LANES), 1); /* the second holds nothing */
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_QUEUE), 1);
    assert_int_equal(group_metric(g, PAGES, 48), 1); /* one route */
    assert_int_equal(group_metric(g, PAGES, 41), 7 - first_pages);
    g->hold_batches = false;
    group_run(g);
    assert_true(first->finished && second->finished);
    assert_true(first->ended_at < second->ended_at);
    group_all_over(g);
    group_destroy(g);
}

static void test_PM_07(void **state)
{
    (void)state;
    pm_07(16, 12, 5); /* 16 + 4 - 1 rows: five pages; then four */
    pm_07(12, 16, 4);
}

/* PM-09 Hit length remembered from the first look at the queue, used after eviction. */
static void test_PM_09(void **state)
{
    (void)state;
    group_t *g = group_new(1, 8, 4, 64, 64, 0);
    uint32_t prefix[9], other[28], third[3];
    family(prefix, 9, 1);
    family(other, 28, 2);
    family(third, 3, 3);
    group_start(g, 5);
    group_offer(g, ROUTER_A, prefix, 8, 1, 0);
    group_run(g);
    place_t *x = group_offer(g, ROUTER_A, third, 3, 2, 0); /* takes the only lane */
    g->hold_batches = true;
    for (uint32_t i = 0; i < 100; i++) group_turn(g);
    place_t *r = group_offer(g, ROUTER_A, prefix, 9, 4, 0); /* would hit 8 rows now */
    for (uint32_t i = 0; i < 100; i++) group_turn(g);
    place_t *q = group_offer(g, ROUTER_A, other, 28, 5, 5); /* overtakes it and needs all pages */
    for (uint32_t i = 0; i < 100; i++) group_turn(g);
    g->hold_batches = false;
    group_run(g);
    assert_true(x->finished && r->finished && q->finished && q->ended_at < r->ended_at);
    assert_int_equal(r->cached, 0);
    assert_true(r->generated > 0); /* and every token of it was compared with the answer computed without pages */
    group_all_over(g);
    group_destroy(g);
}

static uint64_t asks_seen;
static void count_asks(pump_t *pump, const qr_message_t *m)
{
    (void)pump;
    asks_seen += m->type == QR_MESSAGE_pages_reserve;
}

/* SC-01 A retry loop that frees nothing usable this step: one question per shortage and release, nobody is set back. */
static void test_SC_01(void **state)
{
    (void)state;
    group_t *g = group_new(4, 8, 4, 64, 64, 0);
    uint32_t tokens[3][8];
    place_t *p[3];
    group_start(g, 7);
    g->pump.seen = count_asks;
    asks_seen = 0;
    g->hold_batches = true;
    for (uint32_t i = 0; i < 3; i++) {
        family(tokens[i], 8, 10 + i);
        p[i] = group_offer(g, ROUTER_A, tokens[i], 8, 5, 0); /* 12 rows, three pages each */
    }
    for (uint32_t i = 0; i < 500; i++) { /* nothing is released: time stands nearly still, nothing is asked again */
        pump_deliver(&g->pump);
        pump_alarms(&g->pump);
    }
    assert_int_equal(asks_seen, 3);
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_LANES), 2);
    g->hold_batches = false;
    group_run(g);
    for (uint32_t i = 0; i < 3; i++) assert_true(p[i]->finished && p[i]->generated > 0);
    assert_true(asks_seen <= 3 + 2); /* again at most once per release */
    assert_true(g->batches <= 50);
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_COMPUTED), 24); /* no prompt row twice */
    group_all_over(g);
    group_destroy(g);
}

/* SC-03 in the whole group: turns are batches. */
static struct {
    uint32_t turns, a_missing, c_offered, c_first, b_prefill_end;
    uint64_t a, b, c;
} sc_03;

static void sc_03_batch(group_t *g, const fake_batch_t *b)
{
    bool a_seen = false;
    (void)g;
    sc_03.turns++;
    for (uint32_t i = 0; i < b->lane_count; i++) {
        uint64_t lane = qr_handle_index(b->lanes[i]);
        if (lane == sc_03.a) a_seen = true;
        if (lane == sc_03.b && (b->flags[i] & QR_ROW_SAMPLE) && !sc_03.b_prefill_end) sc_03.b_prefill_end = sc_03.turns;
        if (lane == sc_03.c && (b->flags[i] & QR_ROW_SAMPLE) && !sc_03.c_first) sc_03.c_first = sc_03.turns;
    }
    sc_03.a_missing += !a_seen;
}

static void test_SC_03(void **state)
{
    (void)state;
    group_t *g = group_new(3, 640, 4, 1024, 8, 0);
    static uint32_t tokens[800];
    g->flags[END_TOKEN] = 0; /* nobody stops early */
    group_start(g, 9);
    family(tokens, 800, 1);
    memset(&sc_03, 0, sizeof sc_03);
    sc_03.b = 1;
    sc_03.c = 2;
    place_t *a = group_offer(g, ROUTER_A, tokens + 700, 4, 400, 0);
    while (a->generated < 2) group_turn(g);
    g->batch_seen = sc_03_batch;
    group_offer(g, ROUTER_A, tokens, 800, 1, 0);
    while (sc_03.turns < 4) group_turn(g);
    uint32_t offered = sc_03.turns;
    place_t *c = group_offer(g, ROUTER_A, tokens + 600, 4, 3, 0);
    while (!sc_03.b_prefill_end) group_turn(g);
    assert_int_equal(sc_03.a_missing, 0);
    assert_true(sc_03.c_first > offered && sc_03.c_first <= offered + 4);
    assert_true(sc_03.b_prefill_end <= 100 + 4);
    group_run(g);
    assert_true(c->finished && a->finished);
    group_all_over(g);
    group_destroy(g);
}

/* SC-05 A burst above capacity: refused or queued, in order, and the next ones are served. */
static void test_SC_05(void **state)
{
    (void)state;
    group_t *g = group_new(2, 16, 4, 64, 64, 0);
    g->given->params.max_requests = 34;
    uint32_t tokens[24], served = 0, refused = 0;
    group_start(g, 11);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t count = i % 2 ? 4 : 24;
        family(tokens, count, 100 + i);
        group_offer(g, ROUTER_A, tokens, count, 4, 0);
    }
    uint64_t start_us = g->pump.now_us, before = 0;
    group_run(g);
    for (uint32_t i = 0; i < 200; i++) {
        const place_t *p = &g->places[i];
        assert_true(p->finished);
        if (p->finish == QR_FINISH_REFUSED) {
            assert_int_equal(p->error, QR_E_BUSY);
            refused++;
            continue;
        }
        served++;
        assert_true(p->finish == QR_FINISH_LENGTH || p->finish == QR_FINISH_STOP);
        if (p->ended_at < before) assert_true(before - p->ended_at < 400); /* first come, first served, two lanes wide */
        before = qr_max_u64(before, p->ended_at);
    }
    assert_true(served >= 34);
    assert_int_equal(served + refused, 200);
    assert_true(g->pump.now_us - start_us < 60000000);
    for (uint32_t i = 0; i < 10; i++) {
        family(tokens, 4, 900 + i);
        group_offer(g, ROUTER_A, tokens, 4, 4, 0);
    }
    group_run(g);
    for (uint32_t i = 200; i < 210; i++) assert_true(g->places[i].finish == QR_FINISH_LENGTH || g->places[i].finish == QR_FINISH_STOP);
    group_all_over(g);
    group_destroy(g);
}

/* SD-05 in the whole group: cold, warm, and a sibling that waits for the rows of the one that runs. */
static void test_SD_05(void **state)
{
    (void)state;
    group_t *g = group_new(4, 64, 4, 128, 8, 0);
    uint32_t tokens[17], other[17], cached = 0;
    g->flags[END_TOKEN] = 0;
    family(tokens, 17, 1);
    family(other, 17, 2);
    group_start(g, 13);
    for (uint32_t i = 0; i < 2; i++) {
        place_t *p = group_offer(g, ROUTER_A, tokens, 17, 2, 0);
        group_run(g);
        assert_int_equal(p->cached, i == 0 ? 0 : 16);
        cached += p->cached;
        assert_int_equal(group_metric(g, SCHEDULER, METRIC_PROMPT), 17 * (i + 1));
        assert_int_equal(group_metric(g, SCHEDULER, METRIC_CACHED), cached);
        assert_int_equal(group_metric(g, SCHEDULER, METRIC_COMPUTED), 17 * (i + 1) - cached);
    }
    for (uint32_t i = 0; i < 3; i++) group_offer(g, ROUTER_A, other, 17, 2, 0); /* n = 3: siblings wait for the first */
    group_run(g);
    for (uint32_t i = 2; i < 5; i++) {
        assert_true(g->places[i].cached == 0 || g->places[i].cached == 16);
        cached += g->places[i].cached;
    }
    assert_int_equal(cached, 16 + 2 * 16);
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_CACHED), cached);
    assert_int_equal(group_metric(g, SCHEDULER, METRIC_COMPUTED), 17 * 5 - cached);
    group_all_over(g);
    group_destroy(g);
}

/* S11: with the switch on, a shared prompt still answers because it computes next to nothing. */
static void test_resident_prompts_pass_the_switch(void **state)
{
    (void)state;
    group_t *g = group_new(2, 600, 4, 1024, 128, 0);
    static uint32_t tokens[900];
    family(tokens, 900, 1);
    group_start(g, 15);
    group_offer(g, ROUTER_A, tokens, 896, 2, 0);
    group_run(g);
    g->given->params.fail_over_rows = 64;
    place_t *shared = group_offer(g, ROUTER_A, tokens, 900, 2, 0);
    group_run(g);
    assert_true(shared->finish == QR_FINISH_LENGTH || shared->finish == QR_FINISH_STOP);
    tokens[0]++;
    place_t *cold = group_offer(g, ROUTER_A, tokens, 900, 2, 0);
    group_run(g);
    assert_int_equal(cold->error, QR_E_SWITCH_ROWS);
    group_all_over(g);
    group_destroy(g);
}

static void test_the_same_seed_gives_the_same_world(void **state)
{
    (void)state;
    uint64_t delivered[2];
    for (uint32_t i = 0; i < 2; i++) {
        qr_prng_t prng;
        qr_prng_init(&prng, 5);
        group_t *g = group_new(4, 60, 4, 112, 8, 0);
        g->fail_one_in = 10;
        group_start(g, 5);
        random_offers(g, &prng, 60);
        group_run(g);
        delivered[i] = g->pump.delivered * 1000003 + g->pump.now_us;
        group_destroy(g);
    }
    assert_int_equal(delivered[0], delivered[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_random_worlds),
        cmocka_unit_test(test_random_worlds_with_a_window),
        cmocka_unit_test(test_PM_07),
        cmocka_unit_test(test_PM_09),
        cmocka_unit_test(test_SC_01),
        cmocka_unit_test(test_SC_03),
        cmocka_unit_test(test_SC_05),
        cmocka_unit_test(test_SD_05),
        cmocka_unit_test(test_resident_prompts_pass_the_switch),
        cmocka_unit_test(test_the_same_seed_gives_the_same_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
