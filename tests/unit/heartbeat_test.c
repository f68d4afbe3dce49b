/* link: qr_actor_heartbeat qr_schema */
/* Heartbeats by hand and two of them on scripted clocks: ages, silence, sleep, leaving. */
#include "tests/unit/edge_harness.h"

#include "actors/heartbeat.h"

static uint64_t heartbeat(uint32_t node) { return qr_address(node, 0, QR_ROLE_heartbeat, 0); }
static uint64_t router(uint32_t node) { return qr_address(node, 0, QR_ROLE_router, 0); }
static uint64_t worker(uint32_t node) { return qr_address(node, 1, QR_ROLE_worker, 0); }
static uint64_t mesh(uint32_t node) { return qr_address(node, 0, QR_ROLE_mesh, 0); }

static qr_given_t given;
static rig_t rig;

static void boot(rig_t *r, uint32_t node, uint64_t now_us, uint64_t epoch)
{
    rig_init(r, &qr_heartbeat_class, &given, heartbeat(node));
    r->now_us = now_us;
    SAY(r, mesh(node), start, .epoch = epoch,
        .partners = U64_COLUMN(heartbeat(1), heartbeat(2), router(1), router(2), worker(1), worker(2)));
    (void)NEXT(r, mesh(node), ready);
    rig_quiet(r);
}

static int begin(void **unused)
{
    (void)unused;
    memset(&given, 0, sizeof given);
    qr_params_init(&given.params);
    given.params.beat_ms = 100;
    given.params.peer_down_ms = 500;
    boot(&rig, 1, 1000000, 3);
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    rig_done(&rig);
    return 0;
}

static void seen(rig_t *r, uint64_t from, uint32_t node, uint64_t epoch, uint64_t sequence, uint64_t age_us)
{
    SAY(r, from, observation, .worker = worker(node), .worker_epoch = epoch, .sequence = sequence, .age_us = age_us,
        .state = QR_STATE_READY, .tokens_queued = 7, .fingerprint = {{1, 2, 3}}, .prefill_row_ns = 8, .step_us = 9, .pages_free = 10);
}
static void assert_seen(rig_t *r, uint64_t to, uint32_t node, uint64_t sequence, uint64_t age_us)
{
    const qr_observation_t *o = NEXT(r, to, observation);
    assert_int_equal(o->worker, worker(node));
    assert_int_equal(o->sequence, sequence);
    assert_int_equal(o->age_us, age_us);
    assert_int_equal(o->tokens_queued, 7);
    assert_int_equal(o->prefill_row_ns, 8);
    assert_int_equal(o->step_us, 9);
    assert_int_equal(o->pages_free, 10);
    assert_int_equal(o->fingerprint.bytes[2], 3);
}
static void beat(uint64_t epoch, uint64_t sequence, uint8_t state)
{
    SAY(&rig, heartbeat(2), beat, .node = 2, .node_epoch = epoch, .sequence = sequence, .state = state);
}

/* ---- conversations ------------------------------------------------------------------------------------------------------ */

static void test_observations_go_to_routers_here_and_heartbeats_elsewhere(void **unused)
{
    (void)unused;
    seen(&rig, worker(1), 1, 5, 1, 20);
    assert_seen(&rig, router(1), 1, 1, 20);
    assert_seen(&rig, heartbeat(2), 1, 1, 20);
    rig_quiet(&rig);
    seen(&rig, heartbeat(2), 2, 5, 4, 300); /* of the other node: to our router only */
    assert_seen(&rig, router(1), 2, 4, 300);
    rig_quiet(&rig);
    rig_pass(&rig, 50000); /* the first beat is due at once; what is repeated is older */
    const qr_beat_t *b = NEXT(&rig, heartbeat(2), beat);
    assert_int_equal(b->node, 1);
    assert_int_equal(b->node_epoch, 3);
    assert_int_equal(b->sequence, 1);
    assert_int_equal(b->state, QR_STATE_READY);
    assert_seen(&rig, heartbeat(2), 1, 1, 50020);
    rig_quiet(&rig);
    rig_pass(&rig, 100000);
    assert_int_equal(NEXT(&rig, heartbeat(2), beat)->sequence, 2);
    assert_seen(&rig, heartbeat(2), 1, 1, 150020);
    rig_quiet(&rig);
}

static void test_the_newest_observation_counts(void **unused)
{
    (void)unused;
    seen(&rig, worker(1), 1, 5, 7, 0);
    seen(&rig, worker(1), 1, 5, 6, 0);
    rig_quiet(&rig);
    seen(&rig, worker(1), 1, 0, 99, 0); /* no epoch */
    rig_quiet(&rig);
    seen(&rig, worker(1), 1, 5, 7, 900); /* said again, older: passed on */
    assert_seen(&rig, router(1), 1, 7, 900);
    (void)NEXT(&rig, heartbeat(2), observation);
    seen(&rig, worker(1), 1, 6, 1, 0); /* it began anew */
    assert_seen(&rig, router(1), 1, 1, 0);
    seen(&rig, worker(1), 1, 2, 1, 0); /* and again, after its clock was set back: epochs have no order */
    assert_seen(&rig, router(1), 1, 1, 0);
}

static uint64_t peers_up(void)
{
    SAY(&rig, router(1), metrics_read, .version = 1);
    return NEXT(&rig, router(1), metrics)->values.data[0];
}

static void test_epochs_have_no_order(void **unused)
{
    (void)unused;
    beat(0, 1, QR_STATE_READY); /* none */
    assert_int_equal(peers_up(), 0);
    beat(9, 50, QR_STATE_READY);
    assert_int_equal(peers_up(), 1);
    SAY(&rig, mesh(1), link_down, .node = 2, .reason = 0);
    assert_int_equal(peers_up(), 0);
    beat(4, 1, QR_STATE_READY); /* its clock was set back before it began anew */
    assert_int_equal(peers_up(), 1);
    SAY(&rig, mesh(1), link_down, .node = 2, .reason = 0);
    beat(4, 1, QR_STATE_READY); /* the same node after a lost link: nothing of the old session counts */
    assert_int_equal(peers_up(), 1);
    seen(&rig, heartbeat(2), 2, 9, 50, 0);
    assert_seen(&rig, router(1), 2, 50, 0);
    SAY(&rig, mesh(1), link_down, .node = 2, .reason = 0);
    seen(&rig, heartbeat(2), 2, 9, 3, 0);
    assert_seen(&rig, router(1), 2, 3, 0);
}

static void test_a_node_speaks_for_its_own_workers_only(void **unused)
{
    (void)unused;
    seen(&rig, heartbeat(2), 1, 5, 1, 0);
    rig_quiet(&rig);
    SAY(&rig, heartbeat(2), observation, .worker = router(2));
    rig_quiet(&rig);
    SAY(&rig, heartbeat(2), observation, .worker = worker(2), .age_us = UINT64_MAX);
    rig_quiet(&rig);
    SAY(&rig, heartbeat(2), beat, .node = 7, .node_epoch = 1, .sequence = 1, .state = QR_STATE_READY);
    SAY(&rig, heartbeat(9), beat, .node = 9, .node_epoch = 1, .sequence = 1, .state = QR_STATE_READY);
    SAY(&rig, router(1), metrics_read, .version = 1);
    assert_int_equal(NEXT(&rig, router(1), metrics)->values.data[0], 0); /* nobody is up */
}

static void assert_down(uint32_t node, uint64_t epoch, uint64_t silence_us)
{
    const qr_peer_down_t *d = NEXT(&rig, router(1), peer_down);
    assert_int_equal(d->node, node);
    assert_int_equal(d->node_epoch, epoch);
    assert_int_equal(d->silence_us, silence_us);
    assert_int_equal(NEXT(&rig, worker(1), peer_down)->node, node);
}

static void test_silence(void **unused)
{
    (void)unused;
    rig_pass(&rig, 0);
    beat(9, 1, QR_STATE_READY);
    rig_quiet(&rig);
    for (int i = 1; i <= 5; i++) {
        rig_pass(&rig, 100000);
        (void)NEXT(&rig, heartbeat(2), beat);
        rig_quiet(&rig); /* 500 ms of silence are not more than 500 ms */
    }
    rig_pass(&rig, 100000);
    assert_down(2, 9, 600000);
    (void)NEXT(&rig, heartbeat(2), beat);
    rig_quiet(&rig);
    rig_pass(&rig, 100000); /* said once */
    (void)NEXT(&rig, heartbeat(2), beat);
    rig_quiet(&rig);
    beat(9, 1, QR_STATE_READY); /* a repeat of an old beat is no sign of life */
    SAY(&rig, router(1), metrics_read, .version = 1);
    assert_int_equal(NEXT(&rig, router(1), metrics)->values.data[0], 0);
    beat(9, 2, QR_STATE_READY);
    SAY(&rig, router(1), metrics_read, .version = 1);
    const qr_metrics_t *m = NEXT(&rig, router(1), metrics);
    assert_int_equal(m->values.data[0], 1);
    assert_int_equal(m->values.data[1], 1);
    beat(10, 1, QR_STATE_READY); /* began anew: sequence from the start */
    for (int i = 0; i < 5; i++) rig_pass(&rig, 100000);
    SAY(&rig, router(1), metrics_read, .version = 1);
    assert_int_equal(NEXT(&rig, router(1), metrics)->values.data[0], 1);
}

static uint64_t replica(uint32_t node) { return qr_address(node, 0, QR_ROLE_catalog_replica, 0); }

/* The replica of this node hides what stands on a silent node; that of another node hears it from its own heartbeat. */
static void test_silence_is_told_to_the_replica_here(void **unused)
{
    (void)unused;
    rig_t other;
    rig_init(&other, &qr_heartbeat_class, &given, heartbeat(1));
    other.now_us = 1000000;
    SAY(&other, mesh(1), start, .epoch = 3, .partners = U64_COLUMN(heartbeat(2), replica(2), replica(1)));
    (void)NEXT(&other, mesh(1), ready);
    SAY(&other, heartbeat(2), beat, .node = 2, .node_epoch = 9, .sequence = 1, .state = QR_STATE_READY);
    for (int i = 0; i < 6; i++) {
        rig_pass(&other, 100000);
        if (i < 5) (void)NEXT(&other, heartbeat(2), beat);
    }
    const qr_peer_down_t *d = NEXT(&other, replica(1), peer_down);
    assert_int_equal(d->node, 2);
    assert_int_equal(d->node_epoch, 9);
    (void)NEXT(&other, heartbeat(2), beat);
    rig_quiet(&other);
    rig_done(&other);
}

static void test_leaving(void **unused)
{
    (void)unused;
    beat(9, 1, QR_STATE_READY);
    beat(9, 2, QR_STATE_DOWN);
    assert_down(2, 9, 0);
    rig_quiet(&rig);
    seen(&rig, worker(1), 1, 5, 1, 0);
    SAY(&rig, mesh(1), drain, .budget_us = 1000);
    assert_int_equal(NEXT(&rig, router(1), observation)->state, QR_STATE_DRAINING);
    assert_int_equal(NEXT(&rig, heartbeat(2), observation)->state, QR_STATE_DRAINING);
    (void)NEXT(&rig, mesh(1), drained);
    rig_quiet(&rig);
    rig_pass(&rig, 100000); /* goes on beating */
    assert_int_equal(NEXT(&rig, heartbeat(2), beat)->state, QR_STATE_DRAINING);
    SAY(&rig, mesh(1), stop, .budget_us = 1000);
    assert_int_equal(NEXT(&rig, heartbeat(2), beat)->state, QR_STATE_DOWN);
    (void)NEXT(&rig, mesh(1), stopped);
    rig_quiet(&rig);
    assert_true(rig.outbox->alarm_us == QR_NEVER_US);
}

/* This actor did not run for five seconds: what others said meanwhile still lies in the inbox, so nobody is declared down at once. */
static void test_a_late_alarm_is_not_the_others_silence(void **unused)
{
    (void)unused;
    beat(9, 1, QR_STATE_READY);
    rig_pass(&rig, 100000);
    rig_pass(&rig, 5000000);
    (void)NEXT(&rig, heartbeat(2), beat);
    rig_quiet(&rig);
    for (int i = 0; i < 3; i++) { /* but if it stays silent now, its time goes on */
        rig_pass(&rig, 100000);
        (void)NEXT(&rig, heartbeat(2), beat);
        rig_quiet(&rig);
    }
    rig_pass(&rig, 100000);
    (void)NEXT(&rig, router(1), peer_down);
}

/* ---- RT-05: two nodes, scripted clocks --------------------------------------------------------------------------------------- */

/* What happened, by the time of an onlooker: enough of each message to tell two runs apart. */
typedef struct event {
    uint64_t at_us, to, value;
    uint32_t type, node;
} event_t;
typedef struct run {
    rig_t rigs[2];
    uint64_t skew_us[2]; /* a node's clock = the onlooker's + its skew */
    bool asleep[2];
    event_t events[2048];
    uint32_t count;
} run_t;

static void log_and_deliver(run_t *run, uint32_t from, uint64_t at_us);

static void say_observation(run_t *run, uint32_t node, uint64_t sequence, uint64_t at_us)
{
    rig_t *r = &run->rigs[node];
    if (run->asleep[node]) return;
    r->now_us = at_us + run->skew_us[node];
    seen(r, worker(node + 1), node + 1, 1, sequence, 0);
    log_and_deliver(run, node, at_us);
}

/* Everything a node said goes to the log, and to the other node one message at a time. */
static void log_and_deliver(run_t *run, uint32_t from, uint64_t at_us)
{
    rig_t *r = &run->rigs[from], *other = &run->rigs[!from];
    for (uint32_t i = 0; i < r->outbox->count; i++) {
        const qr_message_t *m = &r->outbox->messages[i];
        uint64_t value = m->type == QR_MESSAGE_observation ? m->body.observation.age_us
                         : m->type == QR_MESSAGE_beat      ? m->body.beat.sequence
                         : m->type == QR_MESSAGE_peer_down ? m->body.peer_down.silence_us
                                                           : 0;
        assert_true(run->count < QR_COUNT(run->events));
        run->events[run->count++] = (event_t){at_us, m->to, value, m->type, from};
        if (m->to != other->address || run->asleep[!from]) continue;
        other->now_us = at_us + run->skew_us[!from];
        rig_say(other, r->address, m->type, &m->body, sizeof m->body);
        for (uint32_t k = 0; k < other->outbox->count; k++) {
            const qr_message_t *o = &other->outbox->messages[k];
            run->events[run->count++] =
                (event_t){at_us, o->to, o->type == QR_MESSAGE_observation ? o->body.observation.age_us : 0, o->type, !from};
        }
    }
}

/* Three seconds: a second of peace, then node 2 is stopped. */
static void play(run_t *run, uint64_t skew_a_us, uint64_t skew_b_us)
{
    memset(run, 0, sizeof *run);
    run->skew_us[0] = skew_a_us;
    run->skew_us[1] = skew_b_us;
    for (uint32_t n = 0; n < 2; n++) boot(&run->rigs[n], n + 1, 1000000 + run->skew_us[n], 1);
    for (uint64_t t = 1000000; t < 4000000; t += 10000) {
        if (t == 2000000) run->asleep[1] = true;
        if (t % 250000 == 0)
            for (uint32_t n = 0; n < 2; n++) say_observation(run, n, t / 250000, t);
        for (uint32_t n = 0; n < 2; n++) {
            rig_t *r = &run->rigs[n];
            if (run->asleep[n]) continue;
            r->now_us = t + run->skew_us[n];
            rig_pass(r, 0);
            log_and_deliver(run, n, t);
        }
    }
    for (uint32_t n = 0; n < 2; n++) rig_done(&run->rigs[n]);
}

static void test_RT_05(void **unused)
{
    (void)unused;
    static run_t plain, skewed;
    play(&plain, 0, 0);
    uint32_t downs = 0;
    for (uint32_t i = 0; i < plain.count; i++) {
        if (plain.events[i].type != QR_MESSAGE_peer_down) continue;
        downs++;
        assert_in_range(plain.events[i].at_us, 2000000 + 400000, 2000000 + 700000); /* last heard at most a beat before it stopped */
        assert_in_range(plain.events[i].value, 500001, 700000);
        assert_int_equal(plain.events[i].node, 0);
    }
    assert_int_equal(downs, 2); /* router and worker of node 1, once each */
    /* Clocks that differ by ten minutes, hours, or began long ago: to an onlooker the same messages at the same times. Wall clocks are no
     * input of an actor at all: stepping them cannot change anything. */
    static const uint64_t skews[][2] = {{600000000, 0}, {0, 600000000}, {7200000000, 3600000000}, {1ull << 60, 5}};
    for (size_t i = 0; i < QR_COUNT(skews); i++) {
        play(&skewed, skews[i][0], skews[i][1]);
        assert_int_equal(skewed.count, plain.count);
        assert_memory_equal(skewed.events, plain.events, plain.count * sizeof(event_t));
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        T(test_observations_go_to_routers_here_and_heartbeats_elsewhere),
        T(test_the_newest_observation_counts),
        T(test_a_node_speaks_for_its_own_workers_only),
        T(test_epochs_have_no_order),
        T(test_silence),
        T(test_silence_is_told_to_the_replica_here),
        T(test_leaving),
        T(test_a_late_alarm_is_not_the_others_silence),
        T(test_RT_05),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
