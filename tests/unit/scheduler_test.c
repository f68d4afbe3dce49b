/* link: qr_actor_scheduler qr_actor_cost qr_actor_plan qr_actor_calibration qr_actor_decisions qr_schema */
/* Conversations with a scripted page_manager and executor: admission, batches, failures, ends. */
#include "actors/note.h"
#include "actors/scheduler.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/sha256.h"
#include "tests/unit/stand.h"

#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define PAGES qr_address(1, 1, QR_ROLE_page_manager, 0)
#define EXECUTOR qr_address(1, 1, QR_ROLE_executor, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define TRANSFER qr_address(1, 1, QR_ROLE_transfer, 0)

static uint8_t end_flags[100];

typedef struct fixture {
    qr_given_t *given;
    stand_t *s;
    uint64_t route; /* last granted */
} fixture_t;

static fixture_t set_up(uint32_t lanes, uint32_t tile)
{
    fixture_t f = {.given = stand_given()};
    f.given->params.max_lanes = lanes;
    f.given->params.prefill_tile = tile;
    f.given->params.max_requests = 16;
    f.given->vocabulary.count = 100;
    f.given->vocabulary.flags = end_flags;
    end_flags[99] = QR_TOKEN_END;
    f.s = stand_new(&qr_scheduler_class, f.given, SCHEDULER);
    SAY(f.s, MESH, start, .epoch = 1, .seed = 1);
    assert_int_equal(HEARD(f.s, ready)->reason, 0);
    return f;
}

static void tear_down(fixture_t *f)
{
    stand_destroy(f->s);
    free(f->given);
}

/* Prompt of `count` tokens: base, base + 1, ... */
static void submit(fixture_t *f, uint64_t id, uint32_t base, uint32_t count, uint32_t max_tokens)
{
    uint32_t tokens[64];
    for (uint32_t i = 0; i < count; i++) tokens[i] = base + i;
    SAY(f->s, WORKER, submit, .request_id = id, .attempt = 1, .generated_from = count, .tokens = {tokens, count}, .max_tokens = max_tokens);
}

/* Grants the open question with pages for all it may need. Three handles suffice for these sizes: 4 rows each. */
static void grant(fixture_t *f, uint64_t id, uint32_t boundary)
{
    uint64_t pages[16];
    for (uint32_t i = 0; i < 16; i++) pages[i] = qr_handle(i, 1);
    f->route = qr_handle((uint32_t)id, 7);
    SAY(f->s, PAGES, pages_granted, .request_id = id, .attempt = 1, .route = f->route, .boundary = boundary, .group_counts = COLUMN32(16),
        .first_blocks = COLUMN32(0), .pages = {pages, 16});
}

static uint64_t open_lane(fixture_t *f)
{
    uint64_t lane = HEARD(f->s, lane_open)->lane;
    SAY(f->s, EXECUTOR, lane_opened, .lane = lane);
    return lane;
}

/* Submits and brings to its first batches; returns the lane. The batches are in the outbox. */
static uint64_t run_one(fixture_t *f, uint64_t id, uint32_t base, uint32_t count, uint32_t max_tokens)
{
    submit(f, id, base, count, max_tokens);
    (void)HEARD(f->s, pages_reserve);
    grant(f, id, 0);
    return open_lane(f);
}

static void done_one(fixture_t *f, uint64_t batch, uint64_t lane, uint32_t token)
{
    SAY(f->s, EXECUTOR, batch_done, .batch = batch, .lanes = COLUMN64(lane), .statuses = COLUMN32(0), .tokens = COLUMN32(token),
        .logprob_bits = COLUMN32(0), .step_us = 1000);
}

static void test_one_request_end_to_end(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    submit(&f, 5, 10, 10, 3);
    const qr_pages_reserve_t *ask = HEARD(f.s, pages_reserve);
    assert_int_equal(ask->rows_max, 12);
    assert_int_equal(ask->first_rows, 12);
    assert_int_equal(ask->tokens.count, 10);
    assert_int_equal(ask->wait_rows, f.given->params.wait_rows);
    f.s->now_us += 30;
    grant(&f, 5, 4);
    assert_int_equal(HEARD(f.s, lane_open)->generated_from, 10);
    uint64_t lane = open_lane(&f);
    /* rows 4..9: the last tile holds the pending token's row and samples it; the next batch is prepared with `previous` */
    const qr_batch_run_t *first = HEARD_NTH(f.s, batch_run, 0), *second = HEARD_NTH(f.s, batch_run, 1);
    assert_int_equal(first->starts.data[0], 4);
    assert_int_equal(first->row_counts.data[0], 6);
    assert_int_equal(first->flags.data[0], QR_ROW_SAMPLE);
    assert_int_equal(first->tokens.data[0], 14);
    assert_int_equal(first->tokens.data[5], 19);
    assert_int_equal(second->starts.data[0], 10);
    assert_int_equal(second->tokens.data[0], QR_TOKEN_PREVIOUS);
    assert_int_equal(second->flags.data[0], QR_ROW_SAMPLE);
    uint64_t b1 = first->batch, b2 = second->batch;
    f.s->now_us += 500;
    done_one(&f, b1, lane, 71);
    const qr_rows_committed_t *rows = HEARD(f.s, rows_committed);
    assert_int_equal(rows->routes.data[0], f.route);
    assert_int_equal(rows->rows.data[0], 10);
    assert_int_equal(rows->token_counts.data[0], 6);
    assert_int_equal(rows->tokens.data[0], 14);
    assert_int_equal(HEARD(f.s, step_tokens)->tokens.data[0], 71);
    assert_int_equal(HEARD(f.s, step_tokens)->prefill_rows, 6);
    const qr_batch_run_t *third = HEARD(f.s, batch_run);
    assert_int_equal(third->starts.data[0], 11);
    uint64_t b3 = third->batch;
    done_one(&f, b2, lane, 72);
    assert_int_equal(HEARD(f.s, rows_committed)->rows.data[0], 11);
    assert_int_equal(HEARD(f.s, rows_committed)->tokens.data[0], 71); /* the row holds the token drawn before */
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0);                 /* the third token is known to be the last */
    done_one(&f, b3, lane, 73);
    const qr_ended_t *ended = HEARD(f.s, ended);
    assert_int_equal(ended->finish, QR_FINISH_LENGTH);
    assert_int_equal(ended->cached_tokens, 4);
    assert_int_equal(ended->computed_tokens, 6);
    assert_int_equal(ended->queue_us, 30);
    assert_int_equal(ended->prefill_us, 500);
    assert_int_equal(HEARD(f.s, lane_close)->lane, lane);
    assert_int_equal(HEARD(f.s, route_release)->route, f.route);
    assert_int_equal(HEARD(f.s, route_release)->keep, 1);
    tear_down(&f);
}

static void test_end_token_ends_it_and_the_prepared_batch_is_void(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    uint64_t lane = run_one(&f, 5, 10, 3, 10);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    done_one(&f, b1, lane, 99);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_STOP);
    assert_int_equal(HEARD(f.s, step_tokens)->tokens.data[0], 99); /* counted, the gateway does not show it */
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);          /* b2 still names the lane */
    assert_int_equal(HEARD_COUNT(f.s, lane_close), 0);
    done_one(&f, b2, lane, 50);
    assert_int_equal(HEARD_COUNT(f.s, rows_committed), 0);
    assert_int_equal(HEARD_COUNT(f.s, step_tokens), 0);
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 1);
    tear_down(&f);
}

static void test_ignore_eos_goes_on(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    SAY(f.s, WORKER, submit, .request_id = 5, .attempt = 1, .generated_from = 2, .tokens = COLUMN32(1, 2), .max_tokens = 4,
        .ignore_eos = 1);
    grant(&f, 5, 0);
    uint64_t lane = open_lane(&f);
    done_one(&f, HEARD_NTH(f.s, batch_run, 0)->batch, lane, 99);
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    tear_down(&f);
}

static void test_a_long_prompt_goes_in_tiles_and_samples_only_at_its_end(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 4);
    uint64_t lane = run_one(&f, 5, 10, 10, 2);
    const qr_batch_run_t *first = HEARD_NTH(f.s, batch_run, 0), *second = HEARD_NTH(f.s, batch_run, 1);
    assert_int_equal(first->row_counts.data[0], 4);
    assert_int_equal(first->flags.data[0], 0);
    assert_int_equal(second->starts.data[0], 4);
    assert_int_equal(second->flags.data[0], 0);
    uint64_t b2 = second->batch;
    done_one(&f, first->batch, lane, QR_TOKEN_NONE);
    assert_int_equal(HEARD(f.s, step_tokens)->request_ids.count, 0); /* one per step all the same */
    assert_int_equal(HEARD(f.s, batch_run)->row_counts.data[0], 2);
    assert_int_equal(HEARD(f.s, batch_run)->flags.data[0], QR_ROW_SAMPLE);
    uint64_t b3 = HEARD(f.s, batch_run)->batch;
    done_one(&f, b2, lane, QR_TOKEN_NONE);
    done_one(&f, b3, lane, 60);
    assert_int_equal(HEARD(f.s, rows_committed)->rows.data[0], 10);
    tear_down(&f);
}

static void test_requests_join_one_batch_and_speak_once_per_step(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    uint64_t a = run_one(&f, 1, 10, 3, 20), b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    uint64_t b = run_one(&f, 2, 30, 3, 20);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0); /* two are in flight */
    done_one(&f, b1, a, 50);
    const qr_batch_run_t *both = HEARD(f.s, batch_run);
    assert_int_equal(both->lanes.count, 2);
    assert_int_equal(both->lanes.data[0], a);
    assert_int_equal(both->row_counts.data[0], 1);
    assert_int_equal(both->row_counts.data[1], 3);
    assert_int_equal(both->tokens.count, 4);
    uint64_t b3 = both->batch;
    done_one(&f, b2, a, 51);
    SAY(f.s, EXECUTOR, batch_done, .batch = b3, .lanes = COLUMN64(a, b), .statuses = COLUMN32(0, 0), .tokens = COLUMN32(52, 60),
        .logprob_bits = COLUMN32(7, 8), .step_us = 1000);
    assert_int_equal(HEARD_COUNT(f.s, rows_committed), 1);
    assert_int_equal(HEARD(f.s, rows_committed)->routes.count, 2);
    assert_int_equal(HEARD(f.s, rows_committed)->tokens.count, 4);
    assert_int_equal(HEARD_COUNT(f.s, step_tokens), 1);
    assert_int_equal(HEARD(f.s, step_tokens)->request_ids.data[1], 2);
    assert_int_equal(HEARD(f.s, step_tokens)->logprob_bits.data[1], 8);
    tear_down(&f);
}

static void test_copies_ride_in_the_first_batch_and_again_after_a_failure(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    uint64_t pages[16] = {0};
    submit(&f, 5, 10, 7, 4);
    for (uint32_t i = 0; i < 16; i++) pages[i] = qr_handle(i, 1);
    SAY(f.s, PAGES, pages_granted, .request_id = 5, .attempt = 1, .route = 9, .boundary = 6, .group_counts = COLUMN32(16),
        .first_blocks = COLUMN32(0), .pages = {pages, 16}, .copy_sources = COLUMN64(40), .copy_targets = COLUMN64(41),
        .copy_rows = COLUMN32(2), .copy_groups = COLUMN32(0));
    open_lane(&f);
    const qr_batch_run_t *first = HEARD_NTH(f.s, batch_run, 0), *second = HEARD_NTH(f.s, batch_run, 1);
    assert_int_equal(first->copy_sources.data[0], 40);
    assert_int_equal(first->copy_rows.data[0], 2);
    assert_int_equal(second->copy_sources.count, 0);
    uint64_t b1 = first->batch, b2 = second->batch;
    SAY(f.s, EXECUTOR, batch_failed, .batch = b1, .reason = QR_E_DEVICE);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0); /* void in b2: planned again when no batch names it */
    assert_int_equal(HEARD_COUNT(f.s, rows_committed), 0);
    SAY(f.s, EXECUTOR, batch_failed, .batch = b2, .reason = QR_E_DEVICE);
    first = HEARD_NTH(f.s, batch_run, 0);
    assert_int_equal(first->copy_sources.count, 1);
    assert_int_equal(first->starts.data[0], 6);
    assert_int_equal(first->tokens.data[0], 16);
    tear_down(&f);
}

static void test_a_decode_row_is_planned_again_with_its_token(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    uint64_t lane = run_one(&f, 5, 10, 3, 10);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    done_one(&f, b1, lane, 50);
    uint64_t b3 = HEARD(f.s, batch_run)->batch;
    SAY(f.s, EXECUTOR, batch_failed, .batch = b2, .reason = QR_E_DEVICE);
    done_one(&f, b3, lane, 77); /* void: computed behind a row that is not there */
    assert_int_equal(HEARD_COUNT(f.s, step_tokens), 0);
    const qr_batch_run_t *again = HEARD_NTH(f.s, batch_run, 0);
    assert_int_equal(again->starts.data[0], 3);
    assert_int_equal(again->tokens.data[0], 50);
    assert_int_equal(HEARD_NTH(f.s, batch_run, 1)->tokens.data[0], QR_TOKEN_PREVIOUS);
    tear_down(&f);
}

static void test_three_failed_batches_end_the_request(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    run_one(&f, 5, 10, 3, 1);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t batch = HEARD(f.s, batch_run)->batch;
        SAY(f.s, EXECUTOR, batch_failed, .batch = batch, .reason = QR_E_DEVICE);
        assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    }
    SAY(f.s, EXECUTOR, batch_failed, .batch = HEARD(f.s, batch_run)->batch, .reason = QR_E_DEVICE);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_ERROR);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_DEVICE);
    assert_int_equal(HEARD_COUNT(f.s, lane_close), 1);
    tear_down(&f);
}

static void test_a_failing_lane_fails_alone(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    uint64_t a = run_one(&f, 1, 10, 3, 20), b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    uint64_t b = run_one(&f, 2, 30, 3, 20), route_b = f.route;
    done_one(&f, b1, a, 50);
    uint64_t b3 = HEARD(f.s, batch_run)->batch;
    done_one(&f, b2, a, 51);
    uint64_t b4 = HEARD(f.s, batch_run)->batch;
    SAY(f.s, EXECUTOR, batch_done, .batch = b3, .lanes = COLUMN64(a, b), .statuses = COLUMN32(0, QR_E_NUMERIC),
        .tokens = COLUMN32(52, QR_TOKEN_NONE), .logprob_bits = COLUMN32(0, 0), .step_us = 1000);
    assert_int_equal(HEARD_COUNT(f.s, ended), 1);
    assert_int_equal(HEARD(f.s, ended)->request_id, 2);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_NUMERIC);
    assert_int_equal(HEARD(f.s, step_tokens)->request_ids.count, 1);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);
    SAY(f.s, EXECUTOR, batch_done, .batch = b4, .lanes = COLUMN64(a, b), .statuses = COLUMN32(0, 0), .tokens = COLUMN32(53, 60),
        .logprob_bits = COLUMN32(0, 0), .step_us = 1000);
    assert_int_equal(HEARD(f.s, step_tokens)->request_ids.count, 1);
    assert_int_equal(HEARD(f.s, route_release)->route, route_b);
    assert_int_equal(HEARD(f.s, route_release)->keep, 0); /* what made a NaN is not kept for others */
    tear_down(&f);
}

static void test_cancel_in_the_queue_while_asking_and_while_running(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    submit(&f, 1, 10, 3, 4);
    submit(&f, 2, 20, 3, 4);
    SAY(f.s, WORKER, submit_cancel, .request_id = 2, .attempt = 1, .finish = QR_FINISH_CANCELLED); /* queued */
    assert_int_equal(HEARD(f.s, ended)->request_id, 2);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_CANCELLED);
    SAY(f.s, WORKER, submit_cancel, .request_id = 1, .attempt = 1, .finish = QR_FINISH_STOP); /* its question is open */
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_STOP);
    grant(&f, 1, 0);
    assert_int_equal(HEARD(f.s, route_release)->route, f.route); /* given back at once */
    assert_int_equal(HEARD_COUNT(f.s, lane_open), 0);
    SAY(f.s, PAGES, route_released, .route = f.route);
    uint64_t lane = run_one(&f, 3, 30, 3, 4);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    SAY(f.s, WORKER, submit_cancel, .request_id = 3, .attempt = 2, .finish = QR_FINISH_CANCELLED); /* another attempt: nothing */
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    SAY(f.s, WORKER, submit_cancel, .request_id = 3, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD_COUNT(f.s, ended), 1);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);
    done_one(&f, b1, lane, 50);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);
    done_one(&f, b2, lane, 51);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 1);
    tear_down(&f);
}

static void test_the_first_of_the_order_is_asked_first_and_blocks_later_ones_while_short(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    run_one(&f, 1, 10, 3, 4);
    uint64_t lane = HEARD(f.s, batch_run)->lanes.data[0], b1 = HEARD_NTH(f.s, batch_run, 0)->batch,
             b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    submit(&f, 2, 20, 20, 4);
    submit(&f, 3, 30, 3, 4);
    SAY(f.s, PAGES, pages_refused, .request_id = 2, .attempt = 1, .reason = QR_E_SHORTFALL, .pages_short = 3);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* request 3 would fit, but is later */
    done_one(&f, b1, lane, 99);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0);
    done_one(&f, b2, lane, 50); /* release */
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    SAY(f.s, PAGES, pages_refused, .request_id = 2, .attempt = 1, .reason = QR_E_NEVER_FITS, .pages_short = 3);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_REFUSED);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_NEVER_FITS);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 3);
    tear_down(&f);
}

static void test_a_shortfall_is_asked_again_after_a_while_without_a_release(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    submit(&f, 2, 20, 20, 4);
    SAY(f.s, PAGES, pages_refused, .request_id = 2, .attempt = 1, .reason = QR_E_SHORTFALL, .pages_short = 3);
    assert_true(stand_alarm(f.s, f.s->now_us + QR_SCHEDULER_RETRY_US));
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    tear_down(&f);
}

static void test_a_waiting_request_blocks_nobody_and_asks_again_on_progress(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    uint64_t lane = run_one(&f, 1, 10, 16, 4), producer = f.route;
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch;
    submit(&f, 2, 10, 16, 4);
    SAY(f.s, PAGES, pages_wait, .request_id = 2, .attempt = 1, .producer = producer, .boundary = 15);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0);
    submit(&f, 3, 40, 3, 4);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 3);
    grant(&f, 3, 0);
    open_lane(&f);
    done_one(&f, b1, lane, QR_TOKEN_NONE); /* 8 of 15 rows */
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0);
    uint64_t b2 = b1 + 1;
    done_one(&f, b2, lane, 60); /* 16 rows */
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    tear_down(&f);
}

/* Two prompts share two rows a batch; an earlier request waits for the later one's rows, so that one goes first. */
static void test_a_producer_inherits_the_place_of_its_earliest_waiter(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 1);
    uint32_t tokens[16] = {0};
    uint64_t a = run_one(&f, 1, 10, 16, 4), b1 = HEARD_NTH(f.s, batch_run, 0)->batch;
    uint64_t b = run_one(&f, 2, 40, 16, 4), producer = f.route;
    done_one(&f, b1, a, QR_TOKEN_NONE);
    assert_int_equal(HEARD(f.s, batch_run)->lanes.data[0], a); /* one row a batch: it is the first's */
    SAY(f.s, WORKER, submit, .request_id = 3, .attempt = 1, .generated_from = 16, .tokens = {tokens, 16}, .max_tokens = 4, .priority = 9);
    SAY(f.s, PAGES, pages_wait, .request_id = 3, .attempt = 1, .producer = producer, .boundary = 15);
    done_one(&f, b1 + 1, a, QR_TOKEN_NONE);
    assert_int_equal(HEARD(f.s, batch_run)->lanes.data[0], b);
    tear_down(&f);
}

static void test_waiting_ends_with_its_producer_and_with_its_time(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    uint64_t lane = run_one(&f, 1, 10, 16, 4), producer = f.route;
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    submit(&f, 2, 10, 16, 4);
    SAY(f.s, PAGES, pages_wait, .request_id = 2, .attempt = 1, .producer = producer, .boundary = 15);
    SAY(f.s, WORKER, submit_cancel, .request_id = 1, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* the route still stands */
    done_one(&f, b1, lane, QR_TOKEN_NONE);
    done_one(&f, b2, lane, 60);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 1);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    assert_int_equal(HEARD(f.s, pages_reserve)->wait_rows, f.given->params.wait_rows);
    grant(&f, 2, 0);
    open_lane(&f);
    submit(&f, 3, 10, 16, 4);
    SAY(f.s, PAGES, pages_wait, .request_id = 3, .attempt = 1, .producer = f.route, .boundary = 15);
    uint64_t start_us = f.s->now_us;
    while (HEARD_COUNT(f.s, pages_reserve) == 0) assert_true(stand_alarm(f.s, start_us + 10000000));
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 3);
    assert_int_equal(HEARD(f.s, pages_reserve)->wait_rows, 0); /* now it computes them itself */
    tear_down(&f);
}

/* The time of one waiter is over while the only lane is another's: the alarm must not fire again and again. */
static void test_an_overdue_wait_does_not_rearm_the_alarm_in_the_past(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    run_one(&f, 1, 10, 16, 4);
    uint64_t producer = f.route;
    submit(&f, 2, 10, 16, 4);
    SAY(f.s, PAGES, pages_wait, .request_id = 2, .attempt = 1, .producer = producer, .boundary = 15);
    submit(&f, 3, 40, 3, 4); /* its question stays open and holds the other lane */
    for (uint32_t i = 0; i < 5 && f.s->now_us < 100000000; i++) assert_true(stand_alarm(f.s, QR_NEVER_US - 1));
    assert_true(f.s->now_us > 100000000); /* on to the deadlines, not round in circles */
    tear_down(&f);
}

static void test_a_wait_for_an_unknown_producer_asks_again_without_waiting(void **state)
{
    (void)state;
    fixture_t f = set_up(4, 8);
    submit(&f, 3, 10, 16, 4);
    SAY(f.s, PAGES, pages_wait, .request_id = 3, .attempt = 1, .producer = 12345, .boundary = 15);
    assert_int_equal(HEARD(f.s, pages_reserve)->wait_rows, 0);
    tear_down(&f);
}

static void test_priority_goes_first_and_ageing_bounds_it(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    uint32_t tokens[2] = {1, 2};
    run_one(&f, 1, 10, 3, 9); /* the only lane */
    uint64_t lane = HEARD(f.s, batch_run)->lanes.data[0], b1 = HEARD_NTH(f.s, batch_run, 0)->batch,
             b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    submit(&f, 2, 20, 3, 4);
    f.s->now_us += 100000;
    SAY(f.s, WORKER, submit, .request_id = 3, .attempt = 1, .generated_from = 2, .tokens = {tokens, 2}, .max_tokens = 4, .priority = 1);
    f.s->now_us += 5 * QR_SCHEDULER_PRIORITY_US;
    SAY(f.s, WORKER, submit, .request_id = 4, .attempt = 1, .generated_from = 2, .tokens = {tokens, 2}, .max_tokens = 4, .priority = 2);
    static const uint64_t expect[] = {3, 2, 4}; /* 3 overtakes 2; 4 came too late to overtake anybody */
    for (uint32_t i = 0; i < 3; i++) {
        done_one(&f, b1, lane, 99);
        done_one(&f, b2, lane, 50);
        SAY(f.s, PAGES, route_released, .route = f.route);
        SAY(f.s, EXECUTOR, lane_closed, .lane = lane);
        assert_int_equal(HEARD(f.s, pages_reserve)->request_id, expect[i]);
        grant(&f, expect[i], 0);
        lane = open_lane(&f);
        b1 = HEARD_NTH(f.s, batch_run, 0)->batch;
        b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    }
    tear_down(&f);
}

static void test_a_lane_waits_for_all_its_answers_before_it_is_used_again(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    uint64_t lane = run_one(&f, 1, 10, 3, 1), batch = HEARD(f.s, batch_run)->batch;
    submit(&f, 2, 20, 3, 1);
    done_one(&f, batch, lane, 50);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0);
    SAY(f.s, EXECUTOR, lane_closed, .lane = lane);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0);
    SAY(f.s, PAGES, route_released, .route = f.route);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    grant(&f, 2, 0);
    assert_true(HEARD(f.s, lane_open)->lane != lane); /* another generation */
    tear_down(&f);
}

static void test_submit_is_checked(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    uint32_t tokens[80] = {0};
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 0, .tokens = {tokens, 0}, .max_tokens = 4);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_INVALID);
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 65, .tokens = {tokens, 65}, .max_tokens = 1);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_CONTEXT);
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 60, .tokens = {tokens, 60}, .max_tokens = 6);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_CONTEXT);
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 64, .tokens = {tokens, 64},
        .max_tokens = 1); /* its token needs no row */
    assert_int_equal(HEARD(f.s, pages_reserve)->rows_max, 64);
    SAY(f.s, WORKER, submit, .request_id = 2, .attempt = 2, .generated_from = 4, .tokens = {tokens, 8}, .max_tokens = 4);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_LENGTH); /* an earlier attempt delivered them all */
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 64, .tokens = {tokens, 64}, .max_tokens = 1); /* a repeat */
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    for (uint64_t id = 10; id < 10 + 15; id++) submit(&f, id, 1, 3, 4);
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);
    submit(&f, 40, 1, 3, 4);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_REFUSED);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_BUSY);
    tear_down(&f);
}

static void test_a_resumed_attempt_counts_what_was_drawn_before(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 2, .generated_from = 3, .tokens = COLUMN32(1, 2, 3, 50, 51), .max_tokens = 4);
    assert_int_equal(HEARD(f.s, pages_reserve)->rows_max, 6); /* 5 known + 2 to draw - 1 */
    uint64_t pages[16] = {0};
    SAY(f.s, PAGES, pages_granted, .request_id = 1, .attempt = 2, .route = 77, .boundary = 4, .group_counts = COLUMN32(16),
        .first_blocks = COLUMN32(0), .pages = {pages, 16});
    assert_int_equal(HEARD(f.s, lane_open)->generated_from, 3);
    uint64_t lane = open_lane(&f), b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    done_one(&f, b1, lane, 52);
    done_one(&f, b2, lane, 53);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_LENGTH);
    assert_int_equal(HEARD(f.s, ended)->cached_tokens, 3); /* of the prompt */
    assert_int_equal(HEARD(f.s, ended)->computed_tokens, 0);
    tear_down(&f);
}

/* formats.md, Chain: what is shared commits to the model and to both salts, each behind its length. */
static void test_the_scope_is_the_chains_root(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    memset(f.given->layout.fingerprint.bytes, 7, 32);
    uint8_t plain[13 + 32 + 11] = "quire.root.1", digest[32];
    memset(plain + 13, 7, 32);
    memcpy(plain + 45, (const uint8_t[]){2, 0, 0, 0, 'a', 'b', 1, 0, 0, 0, 'c'}, 11);
    qr_sha256(plain, sizeof plain, digest);
    SAY(f.s, WORKER, submit, .request_id = 1, .attempt = 1, .generated_from = 1, .tokens = COLUMN32(1), .max_tokens = 4,
        .tenant_salt = {(const uint8_t *)"ab", 2}, .cache_salt = {(const uint8_t *)"c", 1});
    assert_memory_equal(HEARD(f.s, pages_reserve)->scope.bytes, digest, 32);
    tear_down(&f);
}

/* ---- what is durable is restored ------------------------------------------------------------------------------------ */

#define REPLICA qr_address(1, 0, QR_ROLE_catalog_replica, 0)
#define STREAMER qr_address(1, 1, QR_ROLE_restore_streamer, 0)
#define FACTS qr_address(1, 0, QR_ROLE_facts, 0)

/* Pages of 4 rows, chunks of 8; a store is here. */
static fixture_t set_up_store(void)
{
    fixture_t f = {.given = stand_given()};
    memcpy(f.given->params.store, "store", 6);
    f.given->params.captures = QR_CAPTURES_MAX;
    f.given->params.max_lanes = 2;
    f.given->params.prefill_tile = 8;
    f.given->params.max_requests = 16;
    f.given->vocabulary.count = 100;
    f.given->vocabulary.flags = end_flags;
    f.s = stand_new(&qr_scheduler_class, f.given, SCHEDULER);
    SAY(f.s, MESH, start, .epoch = 1, .seed = 1, .partners = COLUMN64(qr_address(2, 0, QR_ROLE_catalog_replica, 0), REPLICA));
    return f;
}

/* The catalog knows `depth` chunks, on the disks of the nodes of `ssd` (bit 0: node 7, bit 1: this one). */
static void match(fixture_t *f, uint64_t lookup_id, uint32_t depth, uint32_t ssd)
{
    uint32_t nodes[4] = {0, 1, 2, 3}, groups[4] = {0}, masks[4] = {ssd, ssd, ssd, ssd}, none[4] = {0};
    uint64_t sizes[4] = {9, 9, 9, 9};
    SAY(f->s, REPLICA, matches, .lookup_id = lookup_id, .tx = 1, .depth = depth, .tokens = depth * 8, .owners = COLUMN32(7, 1),
        .node_indexes = {nodes, depth}, .groups = {groups, depth}, .sizes = {sizes, depth}, .ram_masks = {none, depth},
        .ssd_masks = {masks, depth}, .object_flags = {none, depth});
}

/* A prompt of 20 tokens is looked up, found durable up to row 16, granted from `boundary` on, and loading; the lane is open. */
static uint64_t load_one(fixture_t *f, uint64_t id, uint32_t boundary)
{
    submit(f, id, 10, 20, 3);
    match(f, HEARD(f->s, lookup)->lookup_id, 2, 2);
    grant(f, id, boundary);
    assert_int_equal(HEARD(f->s, pages_load)->start_rows, boundary);
    assert_int_equal(HEARD(f->s, pages_load)->end_rows, 16);
    uint64_t lane = open_lane(f);
    assert_int_equal(HEARD_COUNT(f->s, batch_run), 0);
    return lane;
}

static void test_durable_rows_are_restored_and_the_rest_is_computed(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    submit(&f, 5, 10, 20, 3);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* the catalog is asked first */
    const qr_lookup_t *ask = HEARD(f.s, lookup);
    assert_int_equal(ask->chains.count, 64); /* (20 - 1) / 8 chunks: the pending token's row is never restored */
    uint8_t root[32], first[32], second[32];
    uint32_t tokens[20];
    for (uint32_t i = 0; i < 20; i++) tokens[i] = 10 + i;
    qr_chain_root(f.given->layout.fingerprint.bytes, NULL, 0, NULL, 0, root);
    qr_chain_node(root, tokens, 8, first);
    qr_chain_node(first, tokens + 8, 8, second);
    assert_memory_equal(ask->chains.data, first, 32);
    assert_memory_equal(ask->chains.data + 32, second, 32);
    match(&f, ask->lookup_id, 2, 2);
    (void)HEARD(f.s, pages_reserve);
    grant(&f, 5, 4); /* a page stands already */
    assert_int_equal(HEARD(f.s, pages_load)->route, f.route);
    uint64_t lane = HEARD(f.s, lane_open)->lane;
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(qr_handle(1, 1), qr_handle(2, 1), qr_handle(3, 1)));
    const qr_restore_t *restore = HEARD(f.s, restore);
    assert_memory_equal(restore->root.bytes, root, 32);
    assert_int_equal(restore->start_rows, 4);
    assert_int_equal(restore->end_rows, 16);
    assert_int_equal(restore->tokens.count, 16);
    assert_int_equal(restore->tokens.data[15], 25);
    assert_int_equal(restore->pages.count, 3);
    uint64_t restore_id = restore->restore_id;
    SAY(f.s, EXECUTOR, lane_opened, .lane = lane);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0); /* I10 */
    SAY(f.s, STREAMER, restored, .restore_id = restore_id, .boundary = 16, .bytes = 100, .move_us = 12);
    assert_int_equal(HEARD(f.s, load_ended)->end_rows, 16);
    assert_int_equal(HEARD(f.s, load_ended)->quiet, 1);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0);
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 16);
    const qr_batch_run_t *run = HEARD(f.s, batch_run);
    assert_int_equal(run->starts.data[0], 16);
    assert_int_equal(run->row_counts.data[0], 4);
    uint64_t b1 = run->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    done_one(&f, b1, lane, 51);
    uint64_t b3 = HEARD(f.s, batch_run)->batch;
    done_one(&f, b2, lane, 52);
    done_one(&f, b3, lane, 53);
    assert_int_equal(HEARD(f.s, ended)->cached_tokens, 16);
    assert_int_equal(HEARD(f.s, ended)->computed_tokens, 4);
    tear_down(&f);
}

/* With facts: their policy is asked for, and goes from then on. */
static fixture_t set_up_facts(uint64_t restore_ns)
{
    fixture_t f = set_up_store();
    SAY(f.s, MESH, start, .epoch = 1, .seed = 1, .partners = COLUMN64(REPLICA, qr_address(2, 0, QR_ROLE_facts, 0), FACTS));
    assert_int_equal(HEARD(f.s, policy_read)->have_version, 1);
    SAY(f.s, FACTS, policy_snapshot, .version = 5, .restore_ns = restore_ns, .restore_byte_ps = 1000, .ram_ns = 1, .ram_byte_ps = 1,
        .recompute_row_ns = 2000000);
    return f;
}

/* The alarm that is due for what waits; the message that goes then. */
static const qr_decisions_note_t *told(fixture_t *f)
{
    assert_int_equal(HEARD_COUNT(f->s, decisions_note), 0);
    f->s->now_us += 200000;
    SAY(f->s, SCHEDULER, alarm, .due_us = f->s->now_us);
    const qr_decisions_note_t *note = HEARD(f->s, decisions_note);
    assert_int_equal(note->kinds.count, 1);
    assert_int_equal(note->kinds.data[0], QR_DECISION_LOAD);
    assert_int_equal(note->policy_versions.data[0], 5);
    return note;
}

static void test_a_restore_is_told_with_its_prediction_and_outcome(void **state)
{
    (void)state;
    fixture_t f = set_up_facts(3000000);
    uint64_t lane = load_one(&f, 5, 4), row_bytes = 0;
    for (uint32_t g = 0; g < f.given->layout.group_count; g++) row_bytes += f.given->layout.groups[g].row_bytes;
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(qr_handle(1, 1), qr_handle(2, 1), qr_handle(3, 1)));
    uint64_t restore_id = HEARD(f.s, restore)->restore_id;
    f.s->now_us += 50;
    SAY(f.s, STREAMER, restored, .restore_id = restore_id, .boundary = 16, .bytes = 100, .move_us = 12, .queue_us = 8, .chain = {{7}});
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 16);
    const qr_decisions_note_t *note = told(&f);
    assert_int_equal(note->request_ids.data[0], 5);
    assert_int_equal(note->choices.data[0], QR_SOURCE_SSD);
    assert_int_equal(note->resident_rows.data[0], 4);
    assert_int_equal(note->ssd_rows.data[0], 16);
    assert_int_equal(note->ssd_row_ns.data[0], qr_max_u64(row_bytes, 1));
    assert_int_equal(note->predicted_ssd_ns.data[0], 3000000 + 12 * qr_max_u64(row_bytes, 1));
    assert_int_equal(note->predicted_recompute_ns.data[0], 12 * 2000000);
    assert_true(note->predicted_ram_ns.data[0] == UINT64_MAX);
    assert_int_equal(note->ssd_samples.data[0], 0);
    assert_int_equal(note->outcome_rows.data[0], 16);
    assert_int_equal(note->reasons.data[0], 0);
    assert_int_equal(note->outcome_ns.data[0], 12000);
    assert_int_equal(note->queue_ns.data[0], 8000);
    assert_int_equal(note->elapsed_ns.data[0], 50000);
    assert_int_equal(note->chains.data[0], 7);
    assert_int_not_equal(lane, 0);
    SAY(f.s, FACTS, decisions_kept, .sequence = 1);
    tear_down(&f);
}

static void test_what_is_computed_instead_is_told_with_what_it_took(void **state)
{
    (void)state;
    fixture_t f = set_up_facts(1000000000); /* restoring takes a second */
    submit(&f, 5, 10, 20, 3);
    match(&f, HEARD(f.s, lookup)->lookup_id, 2, 2);
    grant(&f, 5, 4);
    assert_int_equal(HEARD_COUNT(f.s, pages_load), 0);
    uint64_t lane = open_lane(&f), b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    done_one(&f, b1, lane, QR_TOKEN_NONE); /* rows 4 to 12 */
    done_one(&f, b2, lane, 51);            /* rows 12 to 20 */
    const qr_decisions_note_t *note = told(&f);
    assert_int_equal(note->choices.data[0], QR_SOURCE_RECOMPUTE);
    assert_int_equal(note->outcome_rows.data[0], 20);
    assert_int_equal(note->outcome_ns.data[0], 2000000); /* both batches, whole: nobody else was in them */
    assert_int_equal(note->reasons.data[0], 0);
    SAY(f.s, FACTS, decisions_kept, .sequence = 1);
    submit(&f, 6, 10, 20, 3); /* all of it stands, and then it is cancelled while it would be computed */
    match(&f, HEARD(f.s, lookup)->lookup_id, 2, 2);
    grant(&f, 6, 16);
    note = told(&f);
    assert_int_equal(note->choices.data[0], QR_SOURCE_RESIDENT);
    assert_int_equal(note->outcome_rows.data[0], 16);
    assert_int_equal(note->predicted_recompute_ns.data[0], 0);
    tear_down(&f);
}

static void test_a_request_that_leaves_ends_its_decision(void **state)
{
    (void)state;
    fixture_t f = set_up_facts(1000000000);
    submit(&f, 5, 10, 20, 3);
    match(&f, HEARD(f.s, lookup)->lookup_id, 2, 2);
    grant(&f, 5, 4);
    (void)open_lane(&f);
    SAY(f.s, WORKER, submit_cancel, .request_id = 5, .attempt = 1);
    const qr_decisions_note_t *note = told(&f);
    assert_int_equal(note->outcome_rows.data[0], 4);
    assert_int_equal(note->reasons.data[0], QR_E_CANCELLED);
    SAY(f.s, MESH, stop, .budget_us = 1000000);
    assert_int_equal(HEARD_COUNT(f.s, stopped), 0);
    SAY(f.s, FACTS, decisions_kept, .sequence = 1);
    tear_down(&f);
}

static void test_a_restore_that_stops_early_costs_a_recompute_of_the_rest(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    uint64_t lane = load_one(&f, 5, 0);
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3, 4));
    SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = 8, .reason = QR_E_DIGEST);
    assert_int_equal(HEARD(f.s, load_ended)->end_rows, 8);
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 8, .pages = COLUMN64(qr_handle(2, 9), qr_handle(3, 9)));
    assert_int_equal(HEARD(f.s, batch_run)->starts.data[0], 8);
    assert_int_equal(HEARD(f.s, batch_run)->window_pages.count, 2); /* their handles are new: generations rose */
    assert_int_equal(HEARD(f.s, batch_run)->window_pages.data[1], qr_handle(3, 9));
    assert_int_equal(HEARD(f.s, batch_run)->window_blocks.data[0], 2);
    assert_int_equal(HEARD(f.s, batch_run)->window_blocks.data[1], 3);
    assert_int_equal(HEARD(f.s, batch_run)->row_counts.data[0], 8);
    tear_down(&f);
}

static void test_nothing_is_loaded_when_pages_refuse_or_nothing_came(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    (void)load_one(&f, 5, 0);
    SAY(f.s, PAGES, pages_loading, .route = f.route, .reason = QR_E_LIMIT);
    assert_int_equal(HEARD(f.s, batch_run)->starts.data[0], 0);
    tear_down(&f);
    f = set_up_store();
    uint64_t lane = load_one(&f, 5, 4);
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(2, 3, 4));
    SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = 4, .reason = QR_E_NOT_FOUND);
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 4, .pages = COLUMN64(2, 3, 4));
    assert_int_equal(HEARD(f.s, batch_run)->starts.data[0], 4);
    tear_down(&f);
}

/* What is restored into a lane's pages is over before they are released, however the request ends. */
static void test_a_cancelled_load_is_over_before_its_pages_are_released(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    uint64_t lane = load_one(&f, 5, 0);
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3, 4));
    SAY(f.s, WORKER, submit_cancel, .request_id = 5, .attempt = 1);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_CANCELLED);
    assert_int_equal(HEARD(f.s, restore_cancel)->restore_id, lane);
    assert_int_equal(HEARD_COUNT(f.s, route_release) + HEARD_COUNT(f.s, lane_close), 0);
    SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = 8, .reason = QR_E_CANCELLED);
    assert_int_equal(HEARD(f.s, load_ended)->end_rows, 8); /* what was verified stays as cache */
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 8);
    assert_int_equal(HEARD(f.s, route_release)->route, f.route);
    assert_int_equal(HEARD(f.s, lane_close)->lane, lane);
    tear_down(&f);

    f = set_up_store(); /* it ends before the pages are loading */
    lane = load_one(&f, 6, 0);
    SAY(f.s, WORKER, submit_cancel, .request_id = 6, .attempt = 1);
    assert_int_equal(HEARD_COUNT(f.s, route_release) + HEARD_COUNT(f.s, restore_cancel), 0);
    SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3, 4));
    assert_int_equal(HEARD_COUNT(f.s, restore), 0);
    assert_int_equal(HEARD(f.s, load_ended)->end_rows, 0);
    SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 0);
    assert_int_equal(HEARD(f.s, route_release)->route, f.route);
    tear_down(&f);
}

static void test_a_copy_is_dropped_when_the_load_went_beyond_it(void **state)
{
    (void)state;
    for (uint32_t loaded = 0; loaded < 2; loaded++) {
        fixture_t f = set_up_store();
        submit(&f, 5, 10, 20, 3);
        match(&f, HEARD(f.s, lookup)->lookup_id, 2, 2);
        uint64_t pages[16];
        for (uint32_t i = 0; i < 16; i++) pages[i] = qr_handle(i, 1);
        f.route = qr_handle(5, 7);
        SAY(f.s, PAGES, pages_granted, .request_id = 5, .attempt = 1, .route = f.route, .boundary = 6, .group_counts = COLUMN32(16),
            .first_blocks = COLUMN32(0), .pages = {pages, 16}, .copy_sources = COLUMN64(qr_handle(30, 1)),
            .copy_targets = COLUMN64(qr_handle(1, 1)), .copy_rows = COLUMN32(2), .copy_groups = COLUMN32(0));
        assert_int_equal(HEARD(f.s, pages_load)->start_rows, 4); /* the copy's rows are not the route's yet */
        uint64_t lane = open_lane(&f);
        SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3));
        SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = loaded ? 16 : 4);
        if (loaded)
            SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 16);
        else
            SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 6,
                .pages = COLUMN64(qr_handle(1, 2), qr_handle(2, 2), qr_handle(3, 2)));
        assert_int_equal(HEARD(f.s, batch_run)->starts.data[0], loaded ? 16 : 6);
        assert_int_equal(HEARD(f.s, batch_run)->copy_sources.count, loaded ? 0 : 1); /* its source may be anybody's by now */
        if (!loaded) assert_int_equal(HEARD(f.s, batch_run)->copy_targets.data[0], qr_handle(1, 2)); /* raised by the load */
        tear_down(&f);
    }
}

/* Of prompts that are durable alike, what lies in memory is brought back and the rest computed, once files were slow. */
static void test_memory_is_another_source_than_files(void **state)
{
    (void)state;
    const uint64_t storage = qr_address(1, 0, QR_ROLE_storage, 0);
    for (uint32_t in_ram = 0; in_ram < 3; in_ram++) {
        fixture_t f = set_up_store();
        SAY(f.s, MESH, start, .epoch = 1, .seed = 1, .partners = COLUMN64(REPLICA, storage));
        submit(&f, 5, 10, 20, 3);
        const qr_ram_find_t *look = HEARD(f.s, ram_find);
        uint64_t lookup_id = HEARD(f.s, lookup)->lookup_id;
        assert_int_equal(look->chains.count, 64);
        SAY(f.s, storage, ram_found, .key = look->key, .depth = in_ram);
        match(&f, lookup_id, 2, 2);
        grant(&f, 5, 0);
        uint64_t lane = open_lane(&f);
        SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3, 4));
        SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = 16, .move_us = 16000000, .ram_rows = 8, .ram_us = 8);
        SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = 16); /* a row: 1 us out of memory, 2 s out of a file */
        submit(&f, 6, 50, 20, 3);
        lookup_id = HEARD(f.s, lookup)->lookup_id;
        uint64_t key = HEARD(f.s, ram_find)->key;
        match(&f, lookup_id, 2, 2);
        assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* both are waited for */
        SAY(f.s, storage, ram_found, .key = key, .depth = in_ram);
        grant(&f, 6, 0);
        assert_int_equal(HEARD_COUNT(f.s, pages_load), in_ram != 0);
        if (in_ram) assert_int_equal(HEARD(f.s, pages_load)->end_rows, 8 * in_ram);
        tear_down(&f);
    }
}

static void test_the_catalog_is_waited_for_a_moment_only(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    submit(&f, 5, 10, 20, 3);
    uint64_t lookup_id = HEARD(f.s, lookup)->lookup_id;
    submit(&f, 6, 50, 8, 3); /* has no whole chunk before its pending token */
    assert_int_equal(HEARD_COUNT(f.s, lookup), 0);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 6);
    grant(&f, 6, 0);
    assert_true(stand_alarm(f.s, f.s->now_us + 20000));
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 5);
    match(&f, lookup_id, 2, 2); /* too late */
    grant(&f, 5, 0);
    assert_int_equal(HEARD_COUNT(f.s, pages_load), 0);
    tear_down(&f);
}

static void test_what_other_nodes_have_is_not_restored_here(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    submit(&f, 5, 10, 20, 3);
    match(&f, HEARD(f.s, lookup)->lookup_id, 2, 1);
    grant(&f, 5, 0);
    assert_int_equal(HEARD_COUNT(f.s, pages_load), 0);
    submit(&f, 6, 10, 20, 3);
    match(&f, HEARD(f.s, lookup)->lookup_id, 0, 2); /* a miss */
    grant(&f, 6, 0);
    assert_int_equal(HEARD_COUNT(f.s, pages_load), 0);
    tear_down(&f);
}

/* The switch forbids computing, not restoring. */
static void test_the_switch_counts_what_the_restore_left(void **state)
{
    (void)state;
    for (uint32_t stopped = 0; stopped < 2; stopped++) {
        fixture_t f = set_up_store();
        f.given->params.fail_over_rows = 8;
        uint64_t lane = load_one(&f, 5, 0);
        SAY(f.s, PAGES, pages_loading, .route = f.route, .pages = COLUMN64(1, 2, 3, 4));
        SAY(f.s, STREAMER, restored, .restore_id = lane, .boundary = stopped ? 8 : 16);
        SAY(f.s, PAGES, load_closed, .route = f.route, .boundary = stopped ? 8 : 16);
        assert_int_equal(HEARD_COUNT(f.s, batch_run), stopped ? 0 : 2);
        if (stopped) assert_int_equal(HEARD(f.s, ended)->error, QR_E_SWITCH_ROWS);
        tear_down(&f);
    }
}

/* ---- over-commit: tranches, lanes that are short, room for earlier ones ------------------------------------------------- */

/* Tranches of 4 tokens, pages of 4 rows. */
static fixture_t set_up_tranches(void)
{
    fixture_t f = set_up(2, 8);
    tear_down(&f);
    f.given = stand_given();
    f.given->params.over_commit = 1;
    f.given->params.tranche_tokens = 4;
    f.given->params.preempt_quantum = 2;
    f.given->params.max_lanes = 3;
    f.given->params.prefill_tile = 8;
    f.given->params.max_requests = 16;
    f.given->vocabulary.count = 100;
    f.given->vocabulary.flags = end_flags;
    f.s = stand_new(&qr_scheduler_class, f.given, SCHEDULER);
    SAY(f.s, MESH, start, .epoch = 1, .seed = 1);
    return f;
}

/* Grants `blocks` pages of 4 rows to an open question. */
static uint64_t grant_blocks(fixture_t *f, uint64_t id, uint32_t boundary, uint32_t blocks)
{
    uint64_t pages[16];
    for (uint32_t i = 0; i < blocks; i++) pages[i] = qr_handle(i, 1);
    uint64_t route = qr_handle((uint32_t)id, 7 + boundary);
    SAY(f->s, PAGES, pages_granted, .request_id = id, .attempt = 1, .route = route, .boundary = boundary, .group_counts = COLUMN32(blocks),
        .first_blocks = COLUMN32(0), .pages = {pages, blocks});
    return route;
}

static void test_an_answer_grows_by_tranches_and_waits_when_short(void **state)
{
    (void)state;
    fixture_t f = set_up_tranches();
    submit(&f, 1, 10, 4, 20);
    assert_int_equal(HEARD(f.s, pages_reserve)->rows_max, 4 + 4 - 1);
    assert_int_equal(HEARD(f.s, pages_reserve)->rows_whole, 4 + 20 - 1);
    uint64_t route = grant_blocks(&f, 1, 0, 2);
    assert_int_equal(HEARD(f.s, pages_more)->rows_max, 11); /* two pages ahead is at once here */
    uint64_t lane = open_lane(&f);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    SAY(f.s, PAGES, pages_added, .route = route, .reason = QR_E_SHORTFALL, .pages_short = 1);
    done_one(&f, b1, lane, 50); /* rows 4, 5, 6 have pages; row 7 has none */
    uint64_t b3 = HEARD(f.s, batch_run)->batch;
    done_one(&f, b2, lane, 51);
    uint64_t b4 = HEARD(f.s, batch_run)->batch;
    done_one(&f, b3, lane, 52);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0);
    done_one(&f, b4, lane, 53);
    assert_int_equal(HEARD_COUNT(f.s, batch_run) + HEARD_COUNT(f.s, ended), 0); /* it waits, it does not fail */
    submit(&f, 2, 60, 4, 4);
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* I12: no later one is admitted meanwhile */
    assert_true(stand_alarm(f.s, f.s->now_us + QR_SCHEDULER_RETRY_US));
    assert_int_equal(HEARD(f.s, pages_more)->rows_max, 11);
    SAY(f.s, PAGES, pages_added, .route = route, .first_block = 2, .pages = COLUMN64(qr_handle(9, 3)));
    const qr_batch_run_t *run = HEARD(f.s, batch_run);
    assert_int_equal(run->starts.data[0], 7);
    assert_int_equal(run->tokens.data[0], 53);
    assert_int_equal(run->window_pages.count, 1); /* the executor hears of the new page with the batch that writes it */
    assert_int_equal(run->window_pages.data[0], qr_handle(9, 3));
    assert_int_equal(run->window_blocks.data[0], 2);
    assert_int_equal(HEARD(f.s, pages_reserve)->request_id, 2);
    tear_down(&f);
}

static void test_a_later_lane_makes_room_and_goes_on_where_it_was(void **state)
{
    (void)state;
    fixture_t f = set_up_tranches();
    submit(&f, 1, 10, 4, 20);
    uint64_t first = grant_blocks(&f, 1, 0, 2);
    uint64_t lane1 = open_lane(&f);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    submit(&f, 2, 60, 4, 6);
    uint64_t second = grant_blocks(&f, 2, 0, 2);
    uint64_t lane2 = open_lane(&f);
    done_one(&f, b1, lane1, 50);
    const qr_batch_run_t *run = HEARD(f.s, batch_run);
    assert_int_equal(run->lanes.count, 2);
    uint64_t b3 = run->batch;
    done_one(&f, b2, lane1, 51);
    SAY(f.s, EXECUTOR, batch_done, .batch = b3, .lanes = COLUMN64(lane1, lane2), .statuses = COLUMN32(0, 0), .tokens = COLUMN32(52, 70),
        .logprob_bits = COLUMN32(0, 0), .step_us = 1000);
    SAY(f.s, PAGES, pages_added, .route = second, .reason = QR_E_SHORTFALL, .pages_short = 1); /* nobody is later than the last */
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0);
    SAY(f.s, PAGES, pages_added, .route = first, .reason = QR_E_SHORTFALL, .pages_short = 1);
    assert_int_equal(HEARD_COUNT(f.s, ended), 0);         /* its client hears nothing of it */
    assert_int_equal(HEARD_COUNT(f.s, route_release), 0); /* a batch names it still */
    assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 0); /* nor is it asked for again before its route is gone */
    tear_down(&f);
}

/* ---- rows of a request that makes room: spilled, brought back, given up ------------------------------------------------ */

static uint64_t metric(fixture_t *f, uint32_t id);
enum { PREEMPTIONS = 36, RECOMPUTED = 37 };

/* Batches in flight, oldest first, as they were sent. */
typedef struct runs {
    fixture_t f;
    uint32_t count, token;
    uint64_t batches[8], lanes[8][4], routes[4], lane[4];
    uint32_t lane_counts[8], draws[8][4], starts[8][4];
    bool first_asks; /* request 1 waits for an answer to pages_more */
} runs_t;

static void note_runs(runs_t *r)
{
    for (uint32_t i = 0; i < HEARD_COUNT(r->f.s, batch_run); i++) {
        const qr_batch_run_t *run = HEARD_NTH(r->f.s, batch_run, i);
        assert_true(r->count < 8 && run->lanes.count <= 4);
        r->batches[r->count] = run->batch;
        r->lane_counts[r->count] = (uint32_t)run->lanes.count;
        for (uint32_t k = 0; k < run->lanes.count; k++) {
            r->lanes[r->count][k] = run->lanes.data[k];
            r->draws[r->count][k] = run->flags.data[k] & QR_ROW_SAMPLE;
            r->starts[r->count][k] = run->starts.data[k];
        }
        r->count++;
    }
    for (uint32_t i = 0; i < HEARD_COUNT(r->f.s, pages_more); i++) r->first_asks |= HEARD_NTH(r->f.s, pages_more, i)->route == r->routes[1];
}

/* The oldest batch is done; lanes that draw draw 50, 51, ... */
static void done_oldest(runs_t *r)
{
    uint32_t tokens[4], zeros[4] = {0};
    assert_true(r->count > 0);
    for (uint32_t k = 0; k < r->lane_counts[0]; k++) tokens[k] = r->draws[0][k] ? r->token++ : QR_TOKEN_NONE;
    uint32_t n = r->lane_counts[0];
    uint64_t lanes[4], batch = r->batches[0];
    memcpy(lanes, r->lanes[0], sizeof lanes);
    r->count--;
    for (uint32_t i = 0; i < r->count; i++) {
        r->batches[i] = r->batches[i + 1], r->lane_counts[i] = r->lane_counts[i + 1];
        memcpy(r->lanes[i], r->lanes[i + 1], sizeof r->lanes[i]);
        memcpy(r->draws[i], r->draws[i + 1], sizeof r->draws[i]);
        memcpy(r->starts[i], r->starts[i + 1], sizeof r->starts[i]);
    }
    SAY(r->f.s, EXECUTOR, batch_done, .batch = batch, .lanes = {lanes, n}, .statuses = {zeros, n}, .tokens = {tokens, n},
        .logprob_bits = {zeros, n}, .step_us = 1000);
    note_runs(r);
}

/* `requests` of them run (prompts of 4, the last one of 8 tokens); then the first is short of pages and the last one makes room. */
static runs_t run_and_preempt(uint32_t requests)
{
    runs_t r = {.f = set_up_tranches(), .token = 50};
    for (uint32_t id = 1; id <= requests; id++) {
        submit(&r.f, id, id * 10, id == requests ? 8 : 4, 20);
        note_runs(&r);
        r.routes[id] = grant_blocks(&r.f, id, 0, 3);
        note_runs(&r);
        r.lane[id] = open_lane(&r.f);
        note_runs(&r);
    }
    for (uint32_t i = 0; i < 3; i++) done_oldest(&r); /* all prompts are computed, and drawn from */
    SAY(r.f.s, PAGES, pages_added, .route = r.routes[requests], .reason = QR_E_SHORTFALL, .pages_short = 1);
    note_runs(&r);
    assert_int_equal(metric(&r.f, PREEMPTIONS), 0); /* nobody is later than the last */
    SAY(r.f.s, PAGES, pages_added, .route = r.routes[1], .reason = QR_E_SHORTFALL, .pages_short = 1);
    note_runs(&r);
    assert_int_equal(HEARD_COUNT(r.f.s, route_pages) + HEARD_COUNT(r.f.s, route_release), 0); /* a batch names it still */
    assert_int_equal(metric(&r.f, PREEMPTIONS), 1);
    return r;
}

/* Until no batch names the victim; returns the rows that are asked for. */
static uint32_t until_quiet(runs_t *r, uint32_t victim)
{
    for (uint32_t i = 0; i < 4; i++) {
        done_oldest(r);
        if (HEARD_COUNT(r->f.s, route_pages) == 0) continue;
        assert_int_equal(HEARD(r->f.s, route_pages)->route, r->routes[victim]);
        assert_int_equal(HEARD_COUNT(r->f.s, route_release) + HEARD_COUNT(r->f.s, lane_close), 0);
        for (uint32_t b = 0; b < r->count; b++)
            for (uint32_t k = 0; k < r->lane_counts[b]; k++) assert_int_not_equal(r->lanes[b][k], r->lane[victim]);
        return HEARD(r->f.s, route_pages)->rows;
    }
    fail_msg("it asks for no pages");
    return 0;
}

/* The first row of a lane's next batch, behind what is in flight. */
static uint32_t next_start(runs_t *r, uint32_t id)
{
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t b = 0; b < r->count; b++)
            for (uint32_t k = 0; k < r->lane_counts[b]; k++)
                if (r->lanes[b][k] == r->lane[id]) return r->starts[b][k];
        done_oldest(r);
    }
    fail_msg("request %u is not computed", id);
    return 0;
}

static const uint64_t victim_pages[] = {3ull << 32, 3ull << 32 | 1, 3ull << 32 | 2, 3ull << 32 | 3};

static uint64_t say_pages(runs_t *r, uint32_t victim, uint32_t rows)
{
    SAY(r->f.s, PAGES, route_pages_named, .route = r->routes[victim], .pages = {victim_pages, qr_div_up(rows, 4)});
    note_runs(r);
    const qr_page_spill_t *spill = HEARD(r->f.s, page_spill);
    assert_int_equal(spill->rows, rows);
    assert_int_equal(spill->pages.count, qr_div_up(rows, 4));
    assert_memory_equal(spill->pages.data, victim_pages, spill->pages.count * 8);
    assert_int_equal(HEARD_COUNT(r->f.s, route_release) + HEARD_COUNT(r->f.s, lane_close), 0);
    return spill->key;
}

static void say_closed(runs_t *r, uint32_t victim)
{
    assert_int_equal(HEARD(r->f.s, lane_close)->lane, r->lane[victim]);
    assert_int_equal(HEARD(r->f.s, route_release)->route, r->routes[victim]);
    assert_int_equal(HEARD(r->f.s, route_release)->keep, 1);
    SAY(r->f.s, EXECUTOR, lane_closed, .lane = r->lane[victim]);
    note_runs(r);
    SAY(r->f.s, PAGES, route_released, .route = r->routes[victim]);
    note_runs(r);
}

static void cancel(runs_t *r, uint64_t id)
{
    SAY(r->f.s, WORKER, submit_cancel, .request_id = id, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    note_runs(r);
}

/* Request 2 is preempted and spilled (reason 0) or not, and asked for again because request 1 has ended. Returns the key. */
static uint64_t spill_and_ask(runs_t *r, uint32_t reason)
{
    *r = run_and_preempt(2);
    uint32_t rows = until_quiet(r, 2);
    assert_in_range(rows, 8, 9);
    uint64_t key = say_pages(r, 2, rows);
    SAY(r->f.s, TRANSFER, page_spilled, .key = key, .reason = reason, .bytes = 9);
    note_runs(r);
    say_closed(r, 2);
    assert_int_equal(HEARD_COUNT(r->f.s, pages_reserve), 0); /* its pages were needed: it waits until somebody ends */
    SAY(r->f.s, PAGES, pages_added, .route = r->routes[1], .first_block = 3, .pages = COLUMN64(qr_handle(9, 3)));
    note_runs(r);
    assert_int_equal(HEARD_COUNT(r->f.s, pages_reserve), 0);
    cancel(r, 1);
    const qr_pages_reserve_t *ask = HEARD(r->f.s, pages_reserve);
    assert_int_equal(ask->request_id, 2);
    assert_true(ask->tokens.count > 8); /* what it drew is its own */
    for (uint32_t i = 8; i < ask->tokens.count; i++) assert_in_range(ask->tokens.data[i], 50, r->token - 1);
    return key;
}

static void test_spilled_rows_come_back(void **state)
{
    (void)state;
    runs_t r;
    uint64_t key = spill_and_ask(&r, 0);
    uint32_t known = (uint32_t)HEARD(r.f.s, pages_reserve)->tokens.count, rows = known - 1;
    r.routes[2] = grant_blocks(&r.f, 2, 0, 4);
    assert_int_equal(HEARD(r.f.s, pages_load)->start_rows, 0);
    assert_int_equal(HEARD(r.f.s, pages_load)->end_rows, rows);
    assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), 0);
    r.lane[2] = open_lane(&r.f);
    SAY(r.f.s, PAGES, pages_loading, .route = r.routes[2], .pages = {victim_pages, qr_div_up(rows, 4)});
    const qr_page_unspill_t *back = HEARD(r.f.s, page_unspill);
    assert_true(back->key == key && back->start_rows == 0 && back->end_rows == rows && back->pages.count == qr_div_up(rows, 4));
    SAY(r.f.s, TRANSFER, page_unspilled, .key = key, .boundary = rows, .bytes = 9);
    assert_int_equal(HEARD(r.f.s, load_ended)->end_rows, rows);
    SAY(r.f.s, PAGES, load_closed, .route = r.routes[2], .boundary = rows);
    note_runs(&r);
    assert_int_equal(next_start(&r, 2), rows);
    while (r.lanes[0][0] != r.lane[2]) done_oldest(&r);
    done_oldest(&r);
    assert_int_equal(metric(&r.f, RECOMPUTED), 0);
    cancel(&r, 2);
    assert_int_equal(HEARD(r.f.s, ended)->cached_tokens, 0);
    assert_int_equal(HEARD(r.f.s, ended)->computed_tokens, 8);
    assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), 0); /* they went with page_unspilled */
    tear_down(&r.f);
}

static void test_only_what_does_not_stand_is_brought_back(void **state)
{
    (void)state;
    runs_t r;
    uint64_t key = spill_and_ask(&r, 0);
    uint32_t rows = (uint32_t)HEARD(r.f.s, pages_reserve)->tokens.count - 1;
    r.routes[2] = grant_blocks(&r.f, 2, 4, 4);
    assert_int_equal(HEARD(r.f.s, pages_load)->start_rows, 4);
    assert_int_equal(HEARD(r.f.s, pages_load)->end_rows, rows);
    r.lane[2] = open_lane(&r.f);
    SAY(r.f.s, PAGES, pages_loading, .route = r.routes[2], .pages = {victim_pages, qr_div_up(rows, 4) - 1});
    assert_int_equal(HEARD(r.f.s, page_unspill)->key, key);
    assert_int_equal(HEARD(r.f.s, page_unspill)->start_rows, 4);
    tear_down(&r.f);
    key = spill_and_ask(&r, 0);
    rows = (uint32_t)HEARD(r.f.s, pages_reserve)->tokens.count - 1;
    grant_blocks(&r.f, 2, rows, 4); /* all of them stand */
    assert_int_equal(HEARD_COUNT(r.f.s, pages_load), 0);
    assert_int_equal(HEARD(r.f.s, spill_drop)->key, key);
    SAY(r.f.s, TRANSFER, spill_dropped, .key = key);
    cancel(&r, 2);
    assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), 0);
    tear_down(&r.f);
}

static void test_rows_without_room_are_computed_again(void **state)
{
    (void)state;
    runs_t r;
    (void)spill_and_ask(&r, QR_E_SHORTFALL);
    r.routes[2] = grant_blocks(&r.f, 2, 0, 4);
    assert_int_equal(HEARD_COUNT(r.f.s, pages_load), 0);
    r.lane[2] = open_lane(&r.f);
    note_runs(&r);
    assert_int_equal(next_start(&r, 2), 0);
    cancel(&r, 2);
    assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), 0);
    tear_down(&r.f);
}

static void test_rows_that_do_not_verify_are_computed_again(void **state)
{
    (void)state;
    for (uint32_t refused = 0; refused < 2; refused++) {
        runs_t r;
        uint64_t key = spill_and_ask(&r, 0);
        uint32_t start = refused ? 0 : 4, rows = (uint32_t)HEARD(r.f.s, pages_reserve)->tokens.count - 1;
        r.routes[2] = grant_blocks(&r.f, 2, 0, 4);
        r.lane[2] = open_lane(&r.f);
        SAY(r.f.s, PAGES, pages_loading, .route = r.routes[2], .reason = refused ? QR_E_BUSY : 0,
            .pages = {victim_pages, refused ? 0 : qr_div_up(rows, 4)});
        if (refused) {
            assert_int_equal(HEARD(r.f.s, spill_drop)->key, key);
        } else {
            SAY(r.f.s, TRANSFER, page_unspilled, .key = key, .boundary = 4, .reason = QR_E_DIGEST);
            assert_int_equal(HEARD(r.f.s, load_ended)->end_rows, 4);
            SAY(r.f.s, PAGES, load_closed, .route = r.routes[2], .boundary = 4, .pages = {victim_pages + 1, qr_div_up(rows, 4) - 1});
        }
        note_runs(&r);
        assert_int_equal(next_start(&r, 2), start);
        tear_down(&r.f);
    }
}

/* Wherever a cancel comes, the rows are given up exactly once and the route is released. */
static void test_cancelled_while_its_rows_are_away(void **state)
{
    (void)state;
    for (uint32_t when = 0; when < 3; when++) { /* before, while the pages are asked for, while they are copied */
        runs_t r = run_and_preempt(2);
        uint64_t key = 0;
        if (when == 0) {
            cancel(&r, 2);
            for (uint32_t i = 0; i < 2 && HEARD_COUNT(r.f.s, route_release) == 0; i++) done_oldest(&r);
        } else {
            uint32_t rows = until_quiet(&r, 2);
            if (when == 2) key = say_pages(&r, 2, rows);
            cancel(&r, 2);
            assert_int_equal(HEARD_COUNT(r.f.s, spill_drop) + HEARD_COUNT(r.f.s, route_release), 0);
            if (when == 1)
                SAY(r.f.s, PAGES, route_pages_named, .route = r.routes[2], .pages = {victim_pages, qr_div_up(rows, 4)});
            else
                SAY(r.f.s, TRANSFER, page_spilled, .key = key, .bytes = 9);
            note_runs(&r);
        }
        assert_int_equal(HEARD_COUNT(r.f.s, page_spill), 0);
        assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), when == 2);
        if (when == 2) assert_int_equal(HEARD(r.f.s, spill_drop)->key, key);
        say_closed(&r, 2);
        tear_down(&r.f);
    }
    for (uint32_t when = 3; when < 6; when++) { /* in the queue, while its pages turn to loading, while the rows come back */
        runs_t r;
        uint64_t key = spill_and_ask(&r, 0);
        uint32_t rows = (uint32_t)HEARD(r.f.s, pages_reserve)->tokens.count - 1;
        if (when > 3) r.routes[2] = grant_blocks(&r.f, 2, 0, 4), r.lane[2] = open_lane(&r.f);
        if (when > 4) SAY(r.f.s, PAGES, pages_loading, .route = r.routes[2], .pages = {victim_pages, qr_div_up(rows, 4)});
        cancel(&r, 2);
        assert_int_equal(HEARD_COUNT(r.f.s, spill_drop), when < 5);
        assert_int_equal(HEARD_COUNT(r.f.s, restore_cancel), 0);
        if (when < 5) assert_int_equal(HEARD(r.f.s, spill_drop)->key, key);
        if (when == 3) { /* the grant that comes late is given back */
            grant_blocks(&r.f, 2, 0, 4);
            assert_int_equal(HEARD_COUNT(r.f.s, route_release), 1);
        } else {
            if (when == 4)
                SAY(r.f.s, PAGES, pages_loading, .route = r.routes[2], .pages = {victim_pages, qr_div_up(rows, 4)});
            else
                SAY(r.f.s, TRANSFER, page_unspilled, .key = key, .boundary = rows, .bytes = 9);
            assert_int_equal(HEARD(r.f.s, load_ended)->end_rows, when == 4 ? 0 : rows);
            SAY(r.f.s, PAGES, load_closed, .route = r.routes[2], .boundary = 0);
            say_closed(&r, 2);
        }
        tear_down(&r.f);
    }
}

static void test_a_pending_copy_does_not_stand_yet(void **state)
{
    (void)state;
    runs_t r = {.f = set_up_tranches(), .token = 50};
    submit(&r.f, 1, 10, 4, 20);
    r.routes[1] = grant_blocks(&r.f, 1, 0, 2);
    r.lane[1] = open_lane(&r.f);
    submit(&r.f, 2, 20, 8, 20);
    r.routes[2] = 77;
    SAY(r.f.s, PAGES, pages_granted, .request_id = 2, .attempt = 1, .route = 77, .boundary = 6, .group_counts = COLUMN32(3),
        .first_blocks = COLUMN32(0), .pages = COLUMN64(1, 2, 3), .copy_sources = COLUMN64(9), .copy_targets = COLUMN64(2),
        .copy_rows = COLUMN32(2), .copy_groups = COLUMN32(0));
    if (HEARD_COUNT(r.f.s, pages_more)) SAY(r.f.s, PAGES, pages_added, .route = 77, .reason = QR_E_SHORTFALL, .pages_short = 1);
    SAY(r.f.s, PAGES, pages_added, .route = r.routes[1], .reason = QR_E_SHORTFALL, .pages_short = 1);
    assert_int_equal(HEARD(r.f.s, route_pages)->route, 77);
    assert_int_equal(HEARD(r.f.s, route_pages)->rows, 4);
    tear_down(&r.f);
}

/* The last of three makes room, comes back when the second ends, and is safe for a while. */
static void test_a_resumed_one_is_safe_for_its_quantum(void **state)
{
    (void)state;
    runs_t r = run_and_preempt(3);
    uint32_t rows = until_quiet(&r, 3);
    uint64_t key = say_pages(&r, 3, rows);
    SAY(r.f.s, TRANSFER, page_spilled, .key = key, .bytes = 9);
    note_runs(&r);
    say_closed(&r, 3);
    r.first_asks = false;
    SAY(r.f.s, PAGES, pages_added, .route = r.routes[1], .first_block = 3, .pages = COLUMN64(qr_handle(9, 3)));
    note_runs(&r);
    cancel(&r, 2);
    assert_int_equal(HEARD(r.f.s, pages_reserve)->request_id, 3);
    r.routes[3] = grant_blocks(&r.f, 3, rows, 4);
    r.lane[3] = open_lane(&r.f);
    note_runs(&r);
    for (uint32_t block = 4; block < 6; block++) { /* it has what it asks for: it waits for no answer */
        SAY(r.f.s, PAGES, pages_added, .route = r.routes[3], .first_block = block, .pages = COLUMN64(qr_handle(block, 4)));
        note_runs(&r);
    }
    while (!r.first_asks) done_oldest(&r);
    assert_int_equal(next_start(&r, 3), rows); /* not a token since */
    SAY(r.f.s, PAGES, pages_added, .route = r.routes[1], .reason = QR_E_SHORTFALL, .pages_short = 1);
    assert_int_equal(metric(&r.f, PREEMPTIONS), 1);
    tear_down(&r.f);
}

static void test_stale_spill_answers_change_nothing(void **state)
{
    (void)state;
    fixture_t f = set_up_tranches();
    SAY(f.s, PAGES, route_pages_named, .route = 9);
    assert_int_equal(f.s->outbox.notes[0].code, QR_NOTE_unexpected);
    SAY(f.s, TRANSFER, page_spilled, .key = 9);
    assert_int_equal(f.s->outbox.notes[0].code, QR_NOTE_unexpected);
    SAY(f.s, TRANSFER, page_unspilled, .key = 9);
    assert_int_equal(f.s->outbox.notes[0].code, QR_NOTE_unexpected);
    assert_int_equal(f.s->outbox.count, 0);
    tear_down(&f);
}

static void test_the_switch_fails_a_request_that_computes_more_rows(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    f.given->params.fail_over_rows = 8;
    submit(&f, 1, 10, 16, 4);
    grant(&f, 1, 7); /* 9 rows */
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_ERROR);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_SWITCH_ROWS);
    assert_int_equal(HEARD(f.s, route_release)->route, f.route);
    submit(&f, 2, 10, 16, 4);
    grant(&f, 2, 8);
    assert_int_equal(HEARD_COUNT(f.s, lane_open), 1);
    tear_down(&f);
}

static void test_a_deadline_ends_queued_and_running_requests(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    uint64_t start_us = f.s->now_us, lane = run_one(&f, 1, 10, 3, 20);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    SAY(f.s, WORKER, submit, .request_id = 2, .attempt = 1, .generated_from = 1, .tokens = COLUMN32(1), .max_tokens = 4, .budget_us = 5000);
    while (HEARD_COUNT(f.s, ended) == 0) assert_true(stand_alarm(f.s, start_us + 100000));
    assert_int_equal(f.s->now_us, start_us + 5000);
    assert_int_equal(HEARD(f.s, ended)->request_id, 2);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_REFUSED); /* it never ran */
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_DEADLINE);
    do assert_true(stand_alarm(f.s, QR_NEVER_US - 1));
    while (HEARD_COUNT(f.s, ended) == 0);
    assert_int_equal(f.s->now_us, start_us + f.given->params.request_timeout_ms * 1000);
    assert_int_equal(HEARD(f.s, ended)->finish, QR_FINISH_ERROR);
    done_one(&f, b1, lane, 50);
    done_one(&f, b2, lane, 51);
    assert_int_equal(HEARD_COUNT(f.s, route_release), 1);
    tear_down(&f);
}

static void test_windows_bound_the_rows_and_travel_with_the_next_batch(void **state)
{
    (void)state;
    fixture_t f = {.given = stand_given()};
    f.given->params.max_lanes = 2;
    f.given->params.prefill_tile = 8;
    f.given->layout.group_count = 2;
    f.given->layout.groups[1] = (qr_group_t){.window = 4, .pages = 8};
    f.s = stand_new(&qr_scheduler_class, f.given, SCHEDULER);
    submit(&f, 1, 10, 20, 2);
    uint64_t pages[19] = {0}, lane;
    SAY(f.s, PAGES, pages_granted, .request_id = 1, .attempt = 1, .route = 77, .boundary = 0, .group_counts = COLUMN32(16, 3),
        .first_blocks = COLUMN32(0, 0), .pages = {pages, 19});
    lane = open_lane(&f);
    const qr_batch_run_t *first = HEARD_NTH(f.s, batch_run, 0), *second = HEARD_NTH(f.s, batch_run, 1);
    assert_int_equal(first->row_counts.data[0], 8);
    assert_int_equal(second->row_counts.data[0], 4); /* three pages of four rows */
    uint64_t b1 = first->batch;
    done_one(&f, b1, lane, QR_TOKEN_NONE);
    assert_int_equal(HEARD_COUNT(f.s, batch_run), 0);
    SAY(f.s, PAGES, window_pages, .routes = COLUMN64(77, 78), .groups = COLUMN32(1, 1), .blocks = COLUMN32(3, 3), .pages = COLUMN64(5, 6));
    const qr_batch_run_t *third = HEARD(f.s, batch_run);
    assert_int_equal(third->starts.data[0], 12);
    assert_int_equal(third->row_counts.data[0], 4);
    assert_int_equal(third->window_lanes.count, 1); /* route 78 is nobody's */
    assert_int_equal(third->window_lanes.data[0], lane);
    assert_int_equal(third->window_blocks.data[0], 3);
    assert_int_equal(third->window_pages.data[0], 5);
    tear_down(&f);
}

static void test_probe_walks_through_and_back(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    SAY(f.s, WORKER, probe, .probe_id = 6);
    assert_int_equal(f.s->messages[0].to, EXECUTOR);
    SAY(f.s, EXECUTOR, probe_done, .probe_id = 6, .reason = 0);
    assert_int_equal(f.s->messages[0].to, WORKER);
    assert_int_equal(HEARD(f.s, probe_done)->probe_id, 6);
    tear_down(&f);
}

/* On a node with a store a probe passes the replica of this node first, until that has read the catalog. */
static void test_a_probe_waits_for_the_catalog(void **state)
{
    (void)state;
    fixture_t f = set_up_store();
    SAY(f.s, WORKER, probe, .probe_id = 6);
    assert_int_equal(f.s->messages[0].to, REPLICA);
    SAY(f.s, REPLICA, probe_done, .probe_id = 6, .reason = QR_E_BUSY);
    assert_int_equal(f.s->messages[0].to, WORKER);
    assert_int_equal(HEARD(f.s, probe_done)->reason, QR_E_BUSY);
    SAY(f.s, WORKER, probe, .probe_id = 7);
    SAY(f.s, MESH, link_down, .node = 1); /* a replica that is gone does not answer */
    assert_int_equal(f.s->messages[0].to, WORKER);
    assert_int_equal(HEARD(f.s, probe_done)->probe_id, 7);
    assert_int_equal(HEARD(f.s, probe_done)->reason, QR_E_BUSY);
    SAY(f.s, REPLICA, probe_done, .probe_id = 7);
    assert_int_equal(f.s->outbox.count, 0);
    SAY(f.s, WORKER, probe, .probe_id = 7);
    SAY(f.s, REPLICA, probe_done, .probe_id = 7);
    assert_int_equal(f.s->messages[0].to, EXECUTOR);
    assert_int_equal(HEARD(f.s, probe)->probe_id, 7);
    SAY(f.s, EXECUTOR, probe_done, .probe_id = 7);
    assert_int_equal(f.s->messages[0].to, WORKER);
    SAY(f.s, WORKER, probe, .probe_id = 8);
    assert_int_equal(f.s->messages[0].to, EXECUTOR);
    tear_down(&f);
}

static void test_a_stranger_probes_nothing(void **state)
{
    (void)state;
    const uint64_t stranger = qr_address(2, 1, QR_ROLE_worker, 0);
    fixture_t f = set_up(1, 8);
    SAY(f.s, stranger, probe, .probe_id = 6);
    assert_int_equal(f.s->outbox.count, 1);
    assert_int_equal(f.s->messages[0].to, stranger);
    assert_int_equal(HEARD(f.s, probe_done)->reason, QR_E_BUSY);
    tear_down(&f);
}

/* A budget from another machine neither outlives request_timeout_ms nor overflows. */
static void test_a_budget_is_at_most_the_timeout(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {UINT64_MAX, UINT64_MAX - 900000, 1ull << 50};
    for (size_t i = 0; i < QR_COUNT(budgets); i++) {
        fixture_t f = set_up(1, 8);
        uint64_t start_us = f.s->now_us, timeout_us = f.given->params.request_timeout_ms * 1000;
        SAY(f.s, WORKER, submit, .request_id = 2, .attempt = 1, .generated_from = 1, .tokens = COLUMN32(1), .max_tokens = 4,
            .budget_us = budgets[i]);
        assert_int_equal(HEARD_COUNT(f.s, pages_reserve), 1);
        assert_int_equal(HEARD_COUNT(f.s, ended), 0);
        while (HEARD_COUNT(f.s, ended) == 0) assert_true(stand_alarm(f.s, start_us + timeout_us));
        assert_int_equal(f.s->now_us, start_us + timeout_us);
        assert_int_equal(HEARD(f.s, ended)->error, QR_E_DEADLINE);
        tear_down(&f);
    }
}

static uint64_t metric(fixture_t *f, uint32_t id)
{
    SAY(f->s, qr_address(1, 0, QR_ROLE_http, 0), metrics_read, .version = 1);
    const qr_metrics_t *m = HEARD(f->s, metrics);
    for (uint64_t i = 0; i < m->ids.count; i++)
        if (m->ids.data[i] == id) return m->values.data[i];
    return UINT64_MAX;
}

/* prompt = cached + computed + uncomputed, also for requests that are cancelled or fail in the middle of their prompt. */
static void test_prompt_rows_add_up_when_cancelled(void **state)
{
    (void)state;
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    fixture_t f = set_up(1, 4);
    submit(&f, 1, 10, 20, 4);
    grant(&f, 1, 3);
    uint64_t lane = open_lane(&f), b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    uint64_t computed = HEARD_NTH(f.s, batch_run, 0)->row_counts.data[0];
    done_one(&f, b1, lane, QR_TOKEN_NONE);
    SAY(f.s, WORKER, submit_cancel, .request_id = 1, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD(f.s, ended)->computed_tokens, computed);
    done_one(&f, b2, lane, QR_TOKEN_NONE);
    assert_int_equal(metric(&f, ID_cached_tokens_total), 3);
    assert_int_equal(metric(&f, ID_computed_tokens_total), computed);
    assert_int_equal(metric(&f, ID_prompt_tokens_total), 20);
    assert_int_equal(metric(&f, ID_uncomputed_tokens_total), 20 - 3 - computed);
    tear_down(&f);
}

static void test_stale_answers_change_nothing(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    grant(&f, 9, 0);
    assert_int_equal(f.s->outbox.count, 0);
    assert_int_equal(f.s->outbox.notes[0].code, QR_NOTE_unexpected);
    SAY(f.s, EXECUTOR, lane_closed, .lane = 99);
    SAY(f.s, EXECUTOR, lane_opened, .lane = 99);
    SAY(f.s, PAGES, route_released, .route = 99);
    assert_int_equal(f.s->outbox.count, 0);
    tear_down(&f);
}

static void test_a_grant_that_does_not_fit_ends_the_request_and_is_given_back(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    submit(&f, 1, 10, 16, 4);
    SAY(f.s, PAGES, pages_granted, .request_id = 1, .attempt = 1, .route = 7, .boundary = 16, .group_counts = COLUMN32(1),
        .first_blocks = COLUMN32(0), .pages = COLUMN64(1));
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_PROTOCOL);
    assert_int_equal(HEARD(f.s, route_release)->route, 7);
    tear_down(&f);
}

static void test_stop_ends_everything_and_answers_when_nothing_is_open(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    uint64_t lane = run_one(&f, 1, 10, 3, 20);
    uint64_t b1 = HEARD_NTH(f.s, batch_run, 0)->batch, b2 = HEARD_NTH(f.s, batch_run, 1)->batch;
    submit(&f, 2, 20, 3, 4);
    SAY(f.s, MESH, stop, .budget_us = 1000000);
    assert_int_equal(HEARD_COUNT(f.s, ended), 2);
    assert_int_equal(HEARD_COUNT(f.s, stopped), 0);
    grant(&f, 2, 0);
    SAY(f.s, PAGES, route_released, .route = f.route);
    done_one(&f, b1, lane, 50);
    done_one(&f, b2, lane, 51);
    SAY(f.s, EXECUTOR, lane_closed, .lane = lane);
    assert_int_equal(HEARD_COUNT(f.s, stopped), 0);
    SAY(f.s, PAGES, route_released, .route = qr_handle(1, 7));
    assert_int_equal(HEARD(f.s, stopped)->reason, 0);
    tear_down(&f);
}

static void test_drain_refuses_new_work_and_answers_when_the_old_is_done_or_its_time_over(void **state)
{
    (void)state;
    fixture_t f = set_up(2, 8);
    run_one(&f, 1, 10, 3, 20);
    SAY(f.s, MESH, drain, .budget_us = 1000);
    submit(&f, 2, 20, 3, 4);
    assert_int_equal(HEARD(f.s, ended)->error, QR_E_DRAINING);
    while (HEARD_COUNT(f.s, drained) == 0) assert_true(stand_alarm(f.s, QR_NEVER_US - 1));
    assert_int_equal(HEARD(f.s, drained)->open_count, 1);
    tear_down(&f);
}

/* SD-05 Counters that mislead: cold, warm, cancelled in prefill. (Restores and n > 1 come with later parts.) */
static void test_SD_05(void **state)
{
    (void)state;
    enum { PROMPT = 7, CACHED = 8, COMPUTED = 9, UNCOMPUTED = 31 };
    fixture_t f = set_up(4, 8);
    uint64_t lane, b1, cached_sum = 0;
    static const uint32_t boundary[] = {0, 16};
    for (uint32_t i = 0; i < 2; i++) {
        submit(&f, i + 1, 10, 17, 1);
        grant(&f, i + 1, boundary[i]);
        lane = open_lane(&f);
        b1 = HEARD_NTH(f.s, batch_run, 0)->batch;
        uint64_t batches = i == 0 ? 3 : 1;
        for (uint64_t b = 0; b < batches; b++) done_one(&f, b1 + b, lane, b + 1 == batches ? 50 : QR_TOKEN_NONE);
        cached_sum += HEARD(f.s, ended)->cached_tokens;
        assert_int_equal(HEARD(f.s, ended)->cached_tokens, boundary[i]);
        assert_int_equal(HEARD(f.s, ended)->cached_tokens + HEARD(f.s, ended)->computed_tokens, 17);
        assert_int_equal(metric(&f, PROMPT), 17 * (i + 1));
        assert_int_equal(metric(&f, CACHED), cached_sum);
        assert_int_equal(metric(&f, COMPUTED) + metric(&f, CACHED), 17 * (i + 1));
    }
    submit(&f, 3, 40, 17, 1); /* cancelled in prefill: nothing of it was cached */
    grant(&f, 3, 0);
    lane = open_lane(&f);
    b1 = HEARD_NTH(f.s, batch_run, 0)->batch;
    done_one(&f, b1, lane, QR_TOKEN_NONE);
    SAY(f.s, WORKER, submit_cancel, .request_id = 3, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(HEARD(f.s, ended)->cached_tokens, 0);
    assert_int_equal(HEARD(f.s, ended)->computed_tokens, 8);
    assert_int_equal(metric(&f, CACHED), cached_sum);
    assert_int_equal(metric(&f, PROMPT), 17 * 3);
    assert_int_equal(metric(&f, UNCOMPUTED), 17 - 8);
    tear_down(&f);
}

static void test_token_storage_is_bounded_and_compacts(void **state)
{
    (void)state;
    fixture_t f = set_up(1, 8);
    f.given->params.max_requests = 16;
    uint32_t tokens[60];
    for (uint32_t i = 0; i < 60; i++) tokens[i] = i;
    for (uint64_t round = 0; round < 600; round++) { /* 600 x 60 tokens through a storage of 16,384 */
        uint64_t id = round + 1;
        SAY(f.s, WORKER, submit, .request_id = id, .attempt = 1, .generated_from = 60, .tokens = {tokens, 60}, .max_tokens = 2);
        if (round == 0) continue;
        if (round % 7)
            SAY(f.s, WORKER, submit_cancel, .request_id = id, .attempt = 1, .finish = QR_FINISH_CANCELLED);
        else
            SAY(f.s, WORKER, submit_cancel, .request_id = id - 1, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    }
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request_end_to_end),
        cmocka_unit_test(test_end_token_ends_it_and_the_prepared_batch_is_void),
        cmocka_unit_test(test_ignore_eos_goes_on),
        cmocka_unit_test(test_a_long_prompt_goes_in_tiles_and_samples_only_at_its_end),
        cmocka_unit_test(test_requests_join_one_batch_and_speak_once_per_step),
        cmocka_unit_test(test_copies_ride_in_the_first_batch_and_again_after_a_failure),
        cmocka_unit_test(test_a_decode_row_is_planned_again_with_its_token),
        cmocka_unit_test(test_three_failed_batches_end_the_request),
        cmocka_unit_test(test_a_failing_lane_fails_alone),
        cmocka_unit_test(test_cancel_in_the_queue_while_asking_and_while_running),
        cmocka_unit_test(test_the_first_of_the_order_is_asked_first_and_blocks_later_ones_while_short),
        cmocka_unit_test(test_a_shortfall_is_asked_again_after_a_while_without_a_release),
        cmocka_unit_test(test_a_waiting_request_blocks_nobody_and_asks_again_on_progress),
        cmocka_unit_test(test_a_producer_inherits_the_place_of_its_earliest_waiter),
        cmocka_unit_test(test_waiting_ends_with_its_producer_and_with_its_time),
        cmocka_unit_test(test_an_overdue_wait_does_not_rearm_the_alarm_in_the_past),
        cmocka_unit_test(test_a_wait_for_an_unknown_producer_asks_again_without_waiting),
        cmocka_unit_test(test_priority_goes_first_and_ageing_bounds_it),
        cmocka_unit_test(test_a_lane_waits_for_all_its_answers_before_it_is_used_again),
        cmocka_unit_test(test_submit_is_checked),
        cmocka_unit_test(test_a_resumed_attempt_counts_what_was_drawn_before),
        cmocka_unit_test(test_the_scope_is_the_chains_root),
        cmocka_unit_test(test_durable_rows_are_restored_and_the_rest_is_computed),
        cmocka_unit_test(test_a_restore_is_told_with_its_prediction_and_outcome),
        cmocka_unit_test(test_what_is_computed_instead_is_told_with_what_it_took),
        cmocka_unit_test(test_a_request_that_leaves_ends_its_decision),
        cmocka_unit_test(test_a_restore_that_stops_early_costs_a_recompute_of_the_rest),
        cmocka_unit_test(test_nothing_is_loaded_when_pages_refuse_or_nothing_came),
        cmocka_unit_test(test_a_cancelled_load_is_over_before_its_pages_are_released),
        cmocka_unit_test(test_a_copy_is_dropped_when_the_load_went_beyond_it),
        cmocka_unit_test(test_the_catalog_is_waited_for_a_moment_only),
        cmocka_unit_test(test_memory_is_another_source_than_files),
        cmocka_unit_test(test_what_other_nodes_have_is_not_restored_here),
        cmocka_unit_test(test_the_switch_counts_what_the_restore_left),
        cmocka_unit_test(test_an_answer_grows_by_tranches_and_waits_when_short),
        cmocka_unit_test(test_a_later_lane_makes_room_and_goes_on_where_it_was),
        cmocka_unit_test(test_spilled_rows_come_back),
        cmocka_unit_test(test_only_what_does_not_stand_is_brought_back),
        cmocka_unit_test(test_rows_without_room_are_computed_again),
        cmocka_unit_test(test_rows_that_do_not_verify_are_computed_again),
        cmocka_unit_test(test_cancelled_while_its_rows_are_away),
        cmocka_unit_test(test_a_pending_copy_does_not_stand_yet),
        cmocka_unit_test(test_a_resumed_one_is_safe_for_its_quantum),
        cmocka_unit_test(test_stale_spill_answers_change_nothing),
        cmocka_unit_test(test_the_switch_fails_a_request_that_computes_more_rows),
        cmocka_unit_test(test_a_deadline_ends_queued_and_running_requests),
        cmocka_unit_test(test_windows_bound_the_rows_and_travel_with_the_next_batch),
        cmocka_unit_test(test_probe_walks_through_and_back),
        cmocka_unit_test(test_a_probe_waits_for_the_catalog),
        cmocka_unit_test(test_a_stranger_probes_nothing),
        cmocka_unit_test(test_a_budget_is_at_most_the_timeout),
        cmocka_unit_test(test_prompt_rows_add_up_when_cancelled),
        cmocka_unit_test(test_stale_answers_change_nothing),
        cmocka_unit_test(test_a_grant_that_does_not_fit_ends_the_request_and_is_given_back),
        cmocka_unit_test(test_stop_ends_everything_and_answers_when_nothing_is_open),
        cmocka_unit_test(test_drain_refuses_new_work_and_answers_when_the_old_is_done_or_its_time_over),
        cmocka_unit_test(test_SD_05),
        cmocka_unit_test(test_token_storage_is_bounded_and_compacts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
