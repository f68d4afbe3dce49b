/* link: qr_actor_worker qr_actor_plan qr_actor_calibration qr_schema */
/* Conversations with scripted routers and a scripted scheduler: offers, tokens until acknowledged, lost nodes. */
#include "actors/note.h"
#include "actors/worker.h"
#include "base/error.h"
#include "base/prng.h"
#include "tests/unit/stand.h"

#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define ROUTER_A qr_address(1, 0, QR_ROLE_router, 0)
#define ROUTER_B qr_address(2, 0, QR_ROLE_router, 0)
#define HEARTBEAT qr_address(1, 0, QR_ROLE_heartbeat, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)

enum { ONE = 0x3f800000 }; /* 1.0f */

typedef struct fixture {
    qr_given_t *given;
    stand_t *w;
} fixture_t;

static fixture_t set_up(uint32_t requests)
{
    fixture_t f = {.given = stand_given()};
    f.given->params.max_requests = requests;
    f.given->params.max_lanes = 4;
    f.given->layout.groups[0].pages = 16;
    f.given->vocabulary.count = 100;
    f.w = stand_new(&qr_worker_class, f.given, WORKER);
    SAY(f.w, MESH, start, .epoch = 3, .seed = 1, .partners = COLUMN64(qr_address(2, 0, QR_ROLE_heartbeat, 0), HEARTBEAT, ROUTER_A));
    assert_int_equal(HEARD(f.w, ready)->reason, 0);
    return f;
}

static void tear_down(fixture_t *f)
{
    stand_destroy(f->w);
    free(f->given);
}

static void offer(fixture_t *f, uint64_t from, uint64_t id, uint32_t attempt)
{
    SAY(f->w, from, offer, .request_id = id, .attempt = attempt, .generated_from = 3, .tokens = COLUMN32(1, 2, 3), .max_tokens = 20,
        .top_p_bits = ONE, .budget_us = 77, .priority = 2, .seed = 9);
}

static void accept(fixture_t *f, uint64_t from, uint64_t id)
{
    offer(f, from, id, 1);
    assert_int_equal(HEARD(f->w, offer_accepted)->request_id, id);
    assert_int_equal(HEARD(f->w, submit)->request_id, id);
}

static void step(fixture_t *f, uint64_t id, uint32_t token)
{
    SAY(f->w, SCHEDULER, step_tokens, .request_ids = COLUMN64(id), .attempts = COLUMN32(1), .tokens = COLUMN32(token),
        .logprob_bits = COLUMN32(token + 1), .step_us = 1000, .decode_rows = 1);
}

static void take(fixture_t *f, uint64_t from, uint64_t id, uint32_t index)
{
    SAY(f->w, from, tokens_taken, .request_ids = COLUMN64(id), .attempts = COLUMN32(1), .indexes = COLUMN32(index));
}

static void end(fixture_t *f, uint64_t id, uint32_t finish, uint32_t error)
{
    SAY(f->w, SCHEDULER, ended, .request_id = id, .attempt = 1, .finish = finish, .error = error, .cached_tokens = 2, .computed_tokens = 1,
        .queue_us = 5, .prefill_us = 6);
}

static uint32_t open_requests(fixture_t *f)
{
    SAY(f->w, qr_address(1, 0, QR_ROLE_http, 0), metrics_read, .version = 1);
    return (uint32_t)HEARD(f->w, metrics)->values.data[0];
}

static void test_an_offer_is_answered_at_once_and_submitted_whole(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    const qr_submit_t *submit = HEARD(f.w, submit);
    assert_int_equal(submit->tokens.count, 3);
    assert_int_equal(submit->max_tokens, 20);
    assert_int_equal(submit->budget_us, 77);
    assert_int_equal(submit->priority, 2);
    assert_int_equal(submit->seed, 9);
    tear_down(&f);
}

static void test_a_repeated_offer_is_answered_the_same_and_starts_nothing(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    offer(&f, ROUTER_A, 7, 1);
    assert_int_equal(HEARD_COUNT(f.w, offer_accepted), 1);
    assert_int_equal(HEARD_COUNT(f.w, submit), 0);
    end(&f, 7, QR_FINISH_STOP, 0);
    take(&f, ROUTER_A, 7, 0);
    assert_int_equal(open_requests(&f), 0);
    offer(&f, ROUTER_A, 7, 1); /* it came late: the request has ended */
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_STALE);
    assert_int_equal(HEARD_COUNT(f.w, submit), 0);
    tear_down(&f);
}

static void test_a_newer_attempt_replaces_the_older(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    offer(&f, ROUTER_A, 7, 2);
    assert_int_equal(HEARD(f.w, submit_cancel)->attempt, 1);
    assert_int_equal(HEARD(f.w, submit)->attempt, 2);
    assert_int_equal(HEARD_COUNT(f.w, offer_accepted), 1);
    offer(&f, ROUTER_A, 7, 1);
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_STALE);
    step(&f, 7, 50); /* of attempt 1: nobody hears of it */
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    end(&f, 7, QR_FINISH_CANCELLED, 0); /* of attempt 1 */
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    assert_int_equal(open_requests(&f), 1);
    tear_down(&f);
}

static uint32_t refusal(fixture_t *f, const qr_offer_t *body)
{
    stand_say(f->w, ROUTER_A, QR_MESSAGE_offer, body);
    assert_int_equal(HEARD_COUNT(f->w, submit), 0);
    return HEARD(f->w, offer_refused)->reason;
}

static void test_offers_are_checked(void **state)
{
    (void)state;
    fixture_t f = set_up(2);
    uint32_t tokens[65] = {0}, strange[] = {1, 100};
    uint8_t salt[QR_SALT_BYTES_MAX + 1] = {0};
    const qr_offer_t good = {.request_id = 9, .attempt = 1, .generated_from = 4, .tokens = {tokens, 4}, .max_tokens = 4, .top_p_bits = ONE};
    qr_offer_t o = good;
    o.tokens.count = 0;
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.generated_from = 5;
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.max_tokens = 0;
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.tokens = (qr_u32s_t){strange, 2}, o.generated_from = 2; /* an id the vocabulary has not */
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.temperature_bits = 0x7fc00000; /* NaN */
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.temperature_bits = 0xbf800000; /* -1 */
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.cache_salt = (qr_bytes_t){salt, sizeof salt};
    assert_int_equal(refusal(&f, &o), QR_E_INVALID);
    o = good, o.tokens.count = o.generated_from = 65;
    assert_int_equal(refusal(&f, &o), QR_E_CONTEXT);
    o = good, o.max_tokens = 62;
    assert_int_equal(refusal(&f, &o), QR_E_CONTEXT);
    o = good, o.max_tokens = UINT32_MAX;
    assert_int_equal(refusal(&f, &o), QR_E_CONTEXT);
    f.given->layout.groups[0].pages = 2;
    o = good, o.max_tokens = 6; /* 9 rows, 3 pages */
    assert_int_equal(refusal(&f, &o), QR_E_NEVER_FITS);
    o = good, o.max_tokens = 5; /* 8 rows, 2 pages: fits */
    stand_say(f.w, ROUTER_A, QR_MESSAGE_offer, &o);
    assert_int_equal(HEARD_COUNT(f.w, offer_accepted), 1);
    f.given->layout.groups[0].pages = 16;
    accept(&f, ROUTER_A, 10);
    o = good, o.request_id = 11;
    assert_int_equal(refusal(&f, &o), QR_E_BUSY);
    assert_true(HEARD(f.w, offer_refused)->retry_after_ms > 0);
    SAY(f.w, MESH, drain, .budget_us = 1000);
    assert_int_equal(refusal(&f, &o), QR_E_DRAINING);
    tear_down(&f);
}

static void test_windowed_groups_count_what_one_route_may_hold(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    f.given->params.prefill_tile = 4; /* 8 rows in flight: ceil((8 - 1 + 8) / 4) + 1 = 5 pages */
    f.given->layout.group_count = 2;
    f.given->layout.groups[1] = (qr_group_t){.window = 8, .pages = 6, .set_aside = 2};
    uint32_t tokens[40] = {0};
    qr_offer_t o = {.request_id = 9, .attempt = 1, .generated_from = 40, .tokens = {tokens, 40}, .max_tokens = 4, .top_p_bits = ONE};
    assert_int_equal(refusal(&f, &o), QR_E_NEVER_FITS);
    f.given->layout.groups[1].set_aside = 1;
    stand_say(f.w, ROUTER_A, QR_MESSAGE_offer, &o);
    assert_int_equal(HEARD_COUNT(f.w, offer_accepted), 1);
    tear_down(&f);
}

static void test_tokens_wait_for_the_answer_and_carry_everything_since(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    step(&f, 7, 50);
    const qr_tokens_t *t = HEARD(f.w, tokens);
    assert_int_equal(t->request_ids.data[0], 7);
    assert_int_equal(t->indexes.data[0], 0);
    assert_int_equal(t->counts.data[0], 1);
    assert_int_equal(t->tokens.data[0], 50);
    assert_int_equal(t->logprob_bits.data[0], 51);
    assert_int_equal(t->finishes.data[0], QR_FINISH_NONE);
    step(&f, 7, 60);
    step(&f, 7, 61);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0); /* one question per router */
    take(&f, ROUTER_A, 7, 1);
    t = HEARD(f.w, tokens);
    assert_int_equal(t->indexes.data[0], 1);
    assert_int_equal(t->counts.data[0], 2);
    assert_int_equal(t->tokens.data[1], 61);
    take(&f, ROUTER_A, 7, 2); /* it took one of the two: the other comes again */
    t = HEARD(f.w, tokens);
    assert_int_equal(t->indexes.data[0], 2);
    assert_int_equal(t->tokens.data[0], 61);
    end(&f, 7, QR_FINISH_LENGTH, 0);
    take(&f, ROUTER_A, 7, 3);
    t = HEARD(f.w, tokens);
    assert_int_equal(t->counts.data[0], 0);
    assert_int_equal(t->finishes.data[0], QR_FINISH_LENGTH);
    assert_int_equal(t->cached_tokens.data[0], 2);
    assert_int_equal(t->queue_us.data[0], 5);
    assert_int_equal(t->prefill_us.data[0], 6);
    assert_int_equal(open_requests(&f), 1); /* until that is acknowledged too */
    take(&f, ROUTER_A, 7, 3);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    assert_int_equal(open_requests(&f), 0);
    tear_down(&f);
}

static void test_each_router_has_its_own_question(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    accept(&f, ROUTER_B, 8);
    SAY(f.w, SCHEDULER, step_tokens, .request_ids = COLUMN64(7, 8), .attempts = COLUMN32(1, 1), .tokens = COLUMN32(50, 60),
        .logprob_bits = COLUMN32(0, 0), .step_us = 1000, .decode_rows = 2);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 2);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_tokens, 0)->to, ROUTER_A);
    assert_int_equal(HEARD_NTH(f.w, tokens, 0)->request_ids.count, 1);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_tokens, 1)->to, ROUTER_B);
    assert_int_equal(HEARD_NTH(f.w, tokens, 1)->tokens.data[0], 60);
    take(&f, ROUTER_B, 8, 1);
    step(&f, 8, 61);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_tokens, 0)->to, ROUTER_B); /* A has not answered; B does not wait for it */
    tear_down(&f);
}

static void test_a_refusal_of_the_scheduler_reaches_the_router_as_an_end(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    end(&f, 7, QR_FINISH_REFUSED, QR_E_BUSY);
    assert_int_equal(HEARD(f.w, tokens)->finishes.data[0], QR_FINISH_REFUSED);
    assert_int_equal(HEARD(f.w, tokens)->errors.data[0], QR_E_BUSY);
    tear_down(&f);
}

static void test_cancel_is_answered_passed_on_once_and_ends_in_tokens(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    SAY(f.w, ROUTER_A, offer_cancel, .request_id = 7, .attempt = 1, .finish = QR_FINISH_STOP);
    assert_int_equal(HEARD(f.w, offer_cancelled)->reason, 0);
    assert_int_equal(HEARD(f.w, submit_cancel)->finish, QR_FINISH_STOP);
    SAY(f.w, ROUTER_A, offer_cancel, .request_id = 7, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD(f.w, offer_cancelled)->reason, 0);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 0);
    SAY(f.w, ROUTER_A, offer_cancel, .request_id = 8, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD(f.w, offer_cancelled)->reason, QR_E_UNKNOWN);
    SAY(f.w, ROUTER_B, offer_cancel, .request_id = 7, .attempt = 1, .finish = QR_FINISH_CANCELLED); /* not its request */
    assert_int_equal(HEARD(f.w, offer_cancelled)->reason, QR_E_UNKNOWN);
    end(&f, 7, QR_FINISH_STOP, 0);
    assert_int_equal(HEARD(f.w, tokens)->finishes.data[0], QR_FINISH_STOP);
    tear_down(&f);
}

static void test_what_a_router_does_not_know_is_cancelled(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    step(&f, 7, 50);
    SAY(f.w, ROUTER_A, tokens_taken, .request_ids = COLUMN64(99), .attempts = COLUMN32(1), .indexes = COLUMN32(1));
    assert_int_equal(HEARD(f.w, submit_cancel)->request_id, 7);
    end(&f, 7, QR_FINISH_CANCELLED, 0);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    assert_int_equal(open_requests(&f), 0);
    tear_down(&f);
}

static void test_a_router_that_does_not_read_ends_its_request(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    step(&f, 7, 50);
    for (uint32_t i = 1; i < QR_WORKER_UNACKED_MAX; i++) {
        step(&f, 7, i % 100);
        assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 0);
    }
    step(&f, 7, 51);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 1);
    step(&f, 7, 52);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 0);
    end(&f, 7, QR_FINISH_CANCELLED, 0);
    take(&f, ROUTER_A, 7, 1);
    const qr_tokens_t *t = HEARD(f.w, tokens);
    assert_int_equal(t->counts.data[0], QR_WORKER_UNACKED_MAX - 1);
    assert_int_equal(t->finishes.data[0], QR_FINISH_ERROR);
    assert_int_equal(t->errors.data[0], QR_E_SLOW_CLIENT);
    tear_down(&f);
}

static void test_a_lost_node_takes_its_requests_and_questions_with_it(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    accept(&f, ROUTER_B, 8);
    SAY(f.w, ROUTER_B, probe, .probe_id = 40);
    step(&f, 8, 50);
    SAY(f.w, f.w->address, link_down, .node = 2, .reason = 0);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 1);
    assert_int_equal(HEARD(f.w, submit_cancel)->request_id, 8);
    SAY(f.w, SCHEDULER, probe_done, .probe_id = 0, .reason = 0);
    assert_int_equal(f.w->outbox.count, 0); /* nobody is there to hear it */
    end(&f, 8, QR_FINISH_CANCELLED, 0);
    assert_int_equal(open_requests(&f), 1);
    offer(&f, ROUTER_B, 12, 1); /* the node is back */
    assert_int_equal(HEARD_COUNT(f.w, offer_accepted), 1);
    step(&f, 12, 60);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 1);
    SAY(f.w, HEARTBEAT, peer_down, .node = 2, .node_epoch = 1, .silence_us = 5);
    assert_int_equal(HEARD(f.w, submit_cancel)->request_id, 12);
    end(&f, 12, QR_FINISH_CANCELLED, 0);
    assert_int_equal(open_requests(&f), 2); /* its question is still open: the link is not down */
    take(&f, ROUTER_B, 12, 1);
    const qr_tokens_t *t = HEARD(f.w, tokens); /* a silent node that is back hears the end */
    assert_int_equal(t->finishes.data[0], QR_FINISH_ERROR);
    assert_int_equal(t->errors.data[0], QR_E_PEER_DOWN);
    take(&f, ROUTER_B, 12, 1);
    assert_int_equal(open_requests(&f), 1);
    tear_down(&f);
}

/* An offer under the id of someone else's request replaces nothing, whatever its attempt. */
static void test_a_request_belongs_to_its_router(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    offer(&f, ROUTER_B, 7, 9);
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_IN_USE);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel) + HEARD_COUNT(f.w, submit), 0);
    step(&f, 7, 50);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_tokens, 0)->to, ROUTER_A);
    offer(&f, ROUTER_B, 7, 1);
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_IN_USE);
    tear_down(&f);
}

/* A router that takes `tokens` and never answers keeps neither lanes nor pages; once it answers it hears how its requests ended, so that
 * it can go on elsewhere, and is served again. */
static void test_a_router_that_does_not_answer_loses_its_requests(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 6);
    accept(&f, ROUTER_B, 7);
    uint64_t asked_us = f.w->now_us, due_us = asked_us + 4 * f.given->params.offer_timeout_ms * 1000;
    step(&f, 7, 50);
    while (HEARD_COUNT(f.w, submit_cancel) == 0) assert_true(stand_alarm(f.w, due_us));
    assert_int_equal(f.w->now_us, due_us);
    assert_int_equal(HEARD(f.w, submit_cancel)->request_id, 7);
    end(&f, 7, QR_FINISH_CANCELLED, 0);
    assert_int_equal(open_requests(&f), 2); /* the other router's, and the end that has to be told */
    assert_true(f.w->outbox.alarm_us > f.w->now_us);
    offer(&f, ROUTER_B, 8, 1);
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_BUSY);
    take(&f, ROUTER_B, 7, 1);
    assert_int_equal(HEARD(f.w, tokens)->finishes.data[0], QR_FINISH_ERROR);
    assert_int_equal(HEARD(f.w, tokens)->errors.data[0], QR_E_PEER_DOWN);
    take(&f, ROUTER_B, 7, 1);
    assert_int_equal(open_requests(&f), 1);
    accept(&f, ROUTER_B, 9);
    tear_down(&f);
}

/* What is drawn after the ring was full is never told, also when a cancel came first and room was made meanwhile. */
static void test_a_full_ring_ends_the_tokens_of_a_cancelled_request(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    for (uint32_t i = 0; i < QR_WORKER_UNACKED_MAX; i++) step(&f, 7, i % 100);
    SAY(f.w, ROUTER_A, offer_cancel, .request_id = 7, .attempt = 1, .finish = QR_FINISH_STOP);
    step(&f, 7, 98); /* no room */
    take(&f, ROUTER_A, 7, 1);
    step(&f, 7, 99); /* room, but a gap before it */
    end(&f, 7, QR_FINISH_STOP, 0);
    take(&f, ROUTER_A, 7, QR_WORKER_UNACKED_MAX);
    const qr_tokens_t *t = HEARD(f.w, tokens);
    assert_int_equal(t->counts.data[0], 0);
    assert_int_equal(t->finishes.data[0], QR_FINISH_STOP);
    tear_down(&f);
}

/* More cancels are due than one call sends: the one a newer attempt needs goes before its submit all the same. */
static void test_a_newer_attempt_while_many_cancels_wait(void **state)
{
    (void)state;
    fixture_t f = set_up(300);
    for (uint64_t id = 1; id <= 300; id++) accept(&f, ROUTER_B, id);
    SAY(f.w, f.w->address, link_down, .node = 2, .reason = 0);
    offer(&f, ROUTER_B, 300, 2);
    assert_int_equal(HEARD(f.w, offer_refused)->reason, QR_E_BUSY); /* the table is full */
    end(&f, 1, QR_FINISH_CANCELLED, 0);
    f.w->now_us -= 1; /* nothing fired meanwhile */
    offer(&f, ROUTER_B, 250, 2);
    assert_int_equal(f.w->messages[0].type, QR_MESSAGE_submit_cancel);
    assert_int_equal(f.w->messages[0].body.submit_cancel.request_id, 250);
    assert_int_equal(HEARD(f.w, submit)->attempt, 2);
    tear_down(&f);
}

static void test_many_cancels_at_once_go_out_in_parts(void **state)
{
    (void)state;
    fixture_t f = set_up(200);
    for (uint64_t id = 1; id <= 200; id++) accept(&f, ROUTER_B, id);
    SAY(f.w, f.w->address, link_down, .node = 2, .reason = 0);
    uint32_t cancels = HEARD_COUNT(f.w, submit_cancel);
    while (cancels < 200) {
        assert_true(stand_alarm(f.w, f.w->now_us));
        assert_true(HEARD_COUNT(f.w, submit_cancel) > 0);
        cancels += HEARD_COUNT(f.w, submit_cancel);
    }
    assert_int_equal(cancels, 200);
    tear_down(&f);
}

static void test_probes_of_several_routers_find_their_way_back(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    SAY(f.w, ROUTER_A, probe, .probe_id = 40);
    uint64_t first = HEARD(f.w, probe)->probe_id;
    SAY(f.w, ROUTER_B, probe, .probe_id = 40);
    uint64_t second = HEARD(f.w, probe)->probe_id;
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_probe, 0)->to, SCHEDULER);
    SAY(f.w, SCHEDULER, probe_done, .probe_id = second, .reason = 0);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_probe_done, 0)->to, ROUTER_B);
    assert_int_equal(HEARD(f.w, probe_done)->probe_id, 40);
    SAY(f.w, SCHEDULER, probe_done, .probe_id = first, .reason = 5);
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_probe_done, 0)->to, ROUTER_A);
    assert_int_equal(HEARD(f.w, probe_done)->reason, 5);
    SAY(f.w, SCHEDULER, probe_done, .probe_id = first, .reason = 0);
    assert_int_equal(f.w->outbox.count, 0);
    for (uint32_t i = 0; i < QR_WORKER_PROBES_MAX; i++) SAY(f.w, ROUTER_A, probe, .probe_id = i);
    SAY(f.w, ROUTER_A, probe, .probe_id = 99);
    assert_int_equal(HEARD(f.w, probe_done)->reason, QR_E_BUSY);
    tear_down(&f);
}

static void test_observations_come_at_the_start_on_change_and_now_and_then(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    const qr_observation_t *seen = HEARD(f.w, observation); /* with `ready` */
    assert_int_equal(stand_heard(f.w, QR_MESSAGE_observation, 0)->to, HEARTBEAT);
    assert_int_equal(seen->state, QR_STATE_READY);
    assert_int_equal(seen->pages_pool, 16);
    assert_int_equal(seen->worker_epoch, 3);
    uint64_t start_us = f.w->now_us;
    offer(&f, ROUTER_A, 7, 1);
    assert_int_equal(HEARD_COUNT(f.w, observation), 0); /* not before a beat is over */
    assert_true(stand_alarm(f.w, QR_NEVER_US - 1));
    assert_int_equal(f.w->now_us, start_us + 100000);
    seen = HEARD(f.w, observation);
    assert_int_equal(seen->requests_open, 1);
    assert_int_equal(seen->tokens_queued, 3);
    assert_int_equal(seen->pages_free, 16 - 6);
    assert_int_equal(seen->sequence, 2);
    assert_true(stand_alarm(f.w, QR_NEVER_US - 1)); /* nothing changed: four times per peer_down_ms */
    assert_int_equal(f.w->now_us, start_us + 100000 + 250000);
    assert_int_equal(HEARD_COUNT(f.w, observation), 1);
    f.w->now_us += 100000;
    step(&f, 7, 50);
    assert_int_equal(HEARD(f.w, observation)->step_us, 1000);
    assert_int_equal(HEARD(f.w, observation)->step_samples, 1);
    assert_int_equal(HEARD(f.w, observation)->tokens_queued, 0);
    tear_down(&f);
}

static void test_drain_and_stop(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    SAY(f.w, MESH, drain, .budget_us = 1000000);
    assert_int_equal(HEARD_COUNT(f.w, drained), 0);
    end(&f, 7, QR_FINISH_STOP, 0);
    assert_int_equal(HEARD_COUNT(f.w, drained), 0);
    take(&f, ROUTER_A, 7, 0);
    assert_int_equal(HEARD(f.w, drained)->open_count, 0);
    SAY(f.w, MESH, stop, .budget_us = 1000);
    assert_int_equal(HEARD(f.w, stopped)->reason, 0);
    tear_down(&f);
    f = set_up(4);
    accept(&f, ROUTER_A, 7);
    SAY(f.w, MESH, stop, .budget_us = 1000000);
    assert_int_equal(HEARD_COUNT(f.w, submit_cancel), 1);
    assert_int_equal(HEARD_COUNT(f.w, stopped), 0);
    end(&f, 7, QR_FINISH_CANCELLED, 0);
    assert_int_equal(HEARD(f.w, stopped)->reason, 0);
    tear_down(&f);
}

/* An answer that moves nothing is not followed by the same question at once. */
static void test_no_progress_is_not_told_at_full_speed(void **state)
{
    (void)state;
    fixture_t f = set_up(4);
    accept(&f, ROUTER_A, 7);
    step(&f, 7, 50);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 1);
    take(&f, ROUTER_A, 7, 0);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    step(&f, 7, 51);
    assert_int_equal(HEARD_COUNT(f.w, tokens), 0);
    uint64_t answered_us = f.w->now_us;
    assert_true(stand_alarm(f.w, answered_us + 5000));
    assert_int_equal(f.w->now_us, answered_us + 2000);
    assert_int_equal(HEARD(f.w, tokens)->tokens.count, 2);
    take(&f, ROUTER_A, 7, 1);
    assert_int_equal(HEARD(f.w, tokens)->tokens.count, 1); /* it moved: at once */
    tear_down(&f);
}

/* Random steps, ends and answers; the taker sees every token of every request exactly once, in order, and then its end. */
typedef struct taker {
    uint32_t drawn, seen, finished, ended;
} taker_t;

static void look_at_tokens(fixture_t *f, taker_t *takers, qr_prng_t *prng, bool *asked)
{
    for (uint32_t m = 0; m < HEARD_COUNT(f->w, tokens); m++) {
        const qr_tokens_t *t = HEARD_NTH(f->w, tokens, m);
        uint64_t at = 0;
        assert_false(*asked);
        *asked = true;
        for (uint64_t i = 0; i < t->request_ids.count; i++) {
            taker_t *taker = &takers[t->request_ids.data[i]];
            assert_true(t->indexes.data[i] <= taker->seen);
            for (uint32_t k = 0; k < t->counts.data[i]; k++, at++)
                assert_int_equal(t->tokens.data[at], (t->request_ids.data[i] * 7 + t->indexes.data[i] + k) % 100);
            uint32_t upto = t->indexes.data[i] + t->counts.data[i];
            if (qr_prng_one_in(prng, 4) && upto > taker->seen)
                upto--; /* takes less than it was told */
            else if (t->finishes.data[i])
                taker->finished = 1;
            if (upto > taker->seen) taker->seen = upto;
        }
    }
}

static void test_random_answers_lose_and_repeat_nothing(void **state)
{
    (void)state;
    enum { COUNT = 30 };
    taker_t takers[COUNT] = {0};
    fixture_t f = set_up(COUNT);
    qr_prng_t prng;
    qr_prng_init(&prng, 11);
    bool asked = false;
    for (uint64_t id = 0; id < COUNT; id++) accept(&f, ROUTER_A, id);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        uint64_t id = qr_prng_below(&prng, COUNT);
        taker_t *t = &takers[id];
        if (qr_prng_one_in(&prng, 3) && asked) {
            uint64_t ids[COUNT];
            uint32_t attempts[COUNT], indexes[COUNT], count = 0;
            for (uint64_t k = 0; k < COUNT; k++) {
                ids[count] = k;
                attempts[count] = 1;
                indexes[count++] = takers[k].seen;
            }
            asked = false;
            SAY(f.w, ROUTER_A, tokens_taken, .request_ids = {ids, count}, .attempts = {attempts, count}, .indexes = {indexes, count});
        } else if (!t->ended && qr_prng_one_in(&prng, 30)) {
            t->ended = 1;
            end(&f, id, QR_FINISH_STOP, 0);
        } else if (!t->ended)
            step(&f, id, (uint32_t)((id * 7 + t->drawn++) % 100));
        else if (!stand_alarm(f.w, f.w->now_us + 5000))
            continue;
        look_at_tokens(&f, takers, &prng, &asked);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(takers[i].seen, takers[i].drawn);
        assert_true(takers[i].finished);
    }
    assert_int_equal(open_requests(&f), 0);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_offer_is_answered_at_once_and_submitted_whole),
        cmocka_unit_test(test_a_repeated_offer_is_answered_the_same_and_starts_nothing),
        cmocka_unit_test(test_a_newer_attempt_replaces_the_older),
        cmocka_unit_test(test_offers_are_checked),
        cmocka_unit_test(test_windowed_groups_count_what_one_route_may_hold),
        cmocka_unit_test(test_tokens_wait_for_the_answer_and_carry_everything_since),
        cmocka_unit_test(test_each_router_has_its_own_question),
        cmocka_unit_test(test_a_refusal_of_the_scheduler_reaches_the_router_as_an_end),
        cmocka_unit_test(test_cancel_is_answered_passed_on_once_and_ends_in_tokens),
        cmocka_unit_test(test_what_a_router_does_not_know_is_cancelled),
        cmocka_unit_test(test_a_router_that_does_not_read_ends_its_request),
        cmocka_unit_test(test_a_lost_node_takes_its_requests_and_questions_with_it),
        cmocka_unit_test(test_many_cancels_at_once_go_out_in_parts),
        cmocka_unit_test(test_a_request_belongs_to_its_router),
        cmocka_unit_test(test_a_router_that_does_not_answer_loses_its_requests),
        cmocka_unit_test(test_a_full_ring_ends_the_tokens_of_a_cancelled_request),
        cmocka_unit_test(test_a_newer_attempt_while_many_cancels_wait),
        cmocka_unit_test(test_probes_of_several_routers_find_their_way_back),
        cmocka_unit_test(test_observations_come_at_the_start_on_change_and_now_and_then),
        cmocka_unit_test(test_drain_and_stop),
        cmocka_unit_test(test_no_progress_is_not_told_at_full_speed),
        cmocka_unit_test(test_random_answers_lose_and_repeat_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
