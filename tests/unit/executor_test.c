/* link: qr_io_executor qr_schema */
/* Lanes, batches and slices over a scripted decoder and sampler (their symbols are this file's): what the executor builds, when it
 * computes, and that a lane fails alone. */
#include "actors/io/executor.h"
#include "actors/note.h"
#include "base/error.h"
#include "model/decoder.h"
#include "model/sampler.h"
#include "tests/unit/stand.h"

#include <math.h>

#define EXECUTOR qr_address(1, 1, QR_ROLE_executor, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)

enum { VOCABULARY = 50 };

/* ---- the scripted decoder: remembers the batch, is done after `pieces` calls -------------------------------------------------- */

static struct {
    uint32_t submits, pieces, advances, submit_code, advance_code;
    uint32_t row_count, lane_count, logit_count, tokens[64], positions[64], row_offsets[9], logit_rows[8];
    uint32_t page_offsets[2][9], first_blocks[2][8], pages[2][64], copy_count[2], copies[2][3];
    int32_t slots[2][64];
    uint32_t status[64];
    float logits[8][VOCABULARY];
    bool working;
} d;

int qr_decoder_submit(qr_decoder_t *decoder, const qr_batch_t *b)
{
    (void)decoder;
    assert_false(d.working);
    d.submits++;
    d.row_count = b->row_count;
    d.lane_count = b->lane_count;
    d.logit_count = b->logit_count;
    memcpy(d.tokens, b->tokens, b->row_count * 4);
    memcpy(d.positions, b->positions, b->row_count * 4);
    memcpy(d.row_offsets, b->row_offsets, (b->lane_count + 1) * 4);
    memcpy(d.logit_rows, b->logit_rows, b->logit_count * 4);
    for (uint32_t g = 0; g < 2; g++) {
        memcpy(d.page_offsets[g], b->groups[g].page_offsets, (b->lane_count + 1) * 4);
        memcpy(d.first_blocks[g], b->groups[g].first_blocks, b->lane_count * 4);
        memcpy(d.pages[g], b->groups[g].pages, d.page_offsets[g][b->lane_count] * 4);
        memcpy(d.slots[g], b->groups[g].slots, b->row_count * 4);
        d.copy_count[g] = b->groups[g].copy_count;
        if (d.copy_count[g]) {
            d.copies[g][0] = b->groups[g].copy_from[0];
            d.copies[g][1] = b->groups[g].copy_to[0];
            d.copies[g][2] = b->groups[g].copy_rows[0];
        }
    }
    memset(d.status, 0, sizeof d.status);
    d.advances = 0;
    d.working = d.submit_code == 0;
    return -(int)d.submit_code;
}

int qr_decoder_advance(qr_decoder_t *decoder, uint64_t budget_us)
{
    (void)decoder;
    assert_true(d.working);
    assert_in_range(budget_us, 1, QR_EXECUTOR_SLICE_US);
    if (++d.advances < d.pieces) return 1;
    d.working = false;
    return -(int)d.advance_code;
}

void qr_decoder_abandon(qr_decoder_t *decoder)
{
    (void)decoder;
    d.working = false;
}

const float *qr_decoder_logits(const qr_decoder_t *decoder, uint32_t index)
{
    (void)decoder;
    assert_true(index < d.logit_count);
    return d.logits[index];
}

uint32_t qr_decoder_row_status(const qr_decoder_t *decoder, uint32_t row)
{
    (void)decoder;
    assert_true(row < d.row_count);
    return d.status[row];
}

size_t qr_sampler_scratch_bytes(uint32_t vocabulary) { return vocabulary; }

/* Draws seed + position, so that a test sees both; writes a log probability if asked. */
uint32_t qr_sampler_draw(const qr_sampling_t *sampling, const float *logits, uint32_t vocabulary, uint32_t position, uint32_t choice,
                         void *scratch, float *ret_logprob)
{
    (void)logits, (void)scratch;
    assert_int_equal(vocabulary, VOCABULARY);
    assert_int_equal(choice, 0);
    if (ret_logprob) *ret_logprob = -2.0f;
    return (uint32_t)(sampling->seed + position) % VOCABULARY;
}

/* ---- fixture ------------------------------------------------------------------------------------------------------------------------ */

typedef struct fixture {
    qr_given_t *given;
    qr_model_t *model;
    stand_t *e;
} fixture_t;

static fixture_t set_up(void)
{
    memset(&d, 0, sizeof d);
    fixture_t f = {.given = stand_given(), .model = calloc(1, sizeof *f.model)};
    f.given->params.max_lanes = 4;
    f.given->params.prefill_tile = 20;
    f.given->layout.group_count = 2;
    f.given->layout.groups[0].pages = 40;
    f.given->layout.groups[1] = (qr_group_t){.window = 6, .pages = 40};
    f.model->arch.vocabulary = VOCABULARY + 6; /* rows of the matrix behind the last token are never drawn */
    f.model->vocabulary.count = VOCABULARY;
    f.given->model = f.model;
    f.e = stand_new(&qr_executor_class, f.given, EXECUTOR);
    SAY(f.e, MESH, start, .epoch = 1, .seed = 1);
    assert_int_equal(f.e->outbox.count, 0);
    while (!HEARD_COUNT(f.e, ready)) assert_int_equal(stand_work(f.e), 0);
    assert_int_equal(HEARD(f.e, ready)->reason, 0);
    return f;
}

static void tear_down(fixture_t *f)
{
    stand_destroy(f->e);
    free(f->model);
    free(f->given);
}

/* Lane `index` with pages index * 10 + block in both groups; of the second only blocks 1 and 2 on lane 2. */
static uint64_t open_lane(fixture_t *f, uint32_t index, uint64_t seed)
{
    uint64_t pages[8], lane = qr_handle(index, 1);
    for (uint32_t i = 0; i < 4; i++) pages[i] = pages[4 + i] = qr_handle(index * 10 + i, 3);
    SAY(f->e, SCHEDULER, lane_open, .lane = lane, .request_id = index, .attempt = 1, .generated_from = 3, .seed = seed,
        .logprobs = index & 1, .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(0, 0), .pages = {pages, 8});
    assert_int_equal(HEARD(f->e, lane_opened)->reason, 0);
    return lane;
}

static void work_until_said(fixture_t *f)
{
    for (uint32_t i = 0; i < 50; i++) {
        stand_work(f->e);
        if (f->e->outbox.count) return;
    }
    fail_msg("it never said anything");
}

static void test_the_warm_up_leaves_the_pool_alone(void **state)
{
    (void)state;
    fixture_t f = set_up();
    assert_int_equal(d.submits, 1);
    for (uint32_t i = 0; i < d.row_count; i++)
        for (uint32_t g = 0; g < 2; g++) assert_int_equal(d.slots[g][i], -1);
    assert_int_equal(d.copy_count[0], 1); /* every kernel runs: the copy too, of a page nobody has written */
    assert_true(d.row_count > 1 && d.lane_count == 2 && d.logit_count == 2);
    tear_down(&f);
}

static void test_a_failed_warm_up_is_not_ready(void **state)
{
    (void)state;
    fixture_t f = set_up();
    stand_t *e = stand_new(&qr_executor_class, f.given, EXECUTOR);
    d.advance_code = QR_E_DEVICE;
    SAY(e, MESH, start, .epoch = 1, .seed = 1);
    stand_work(e);
    assert_int_equal(HEARD(e, ready)->reason, QR_E_DEVICE);
    assert_true(HEARD(e, ready)->text.count > 0);
    stand_destroy(e);
    tear_down(&f);
}

static void test_a_batch_is_built_from_tables_and_computed_only_in_work(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), b = open_lane(&f, 1, 9);
    d.pieces = 3;
    uint32_t submits = d.submits;
    SAY(f.e, SCHEDULER, batch_run, .batch = 5, .lanes = COLUMN64(a, b), .starts = COLUMN32(2, 9), .row_counts = COLUMN32(3, 1),
        .flags = COLUMN32(0, QR_ROW_SAMPLE), .tokens = COLUMN32(11, 12, 13, 21), .copy_sources = COLUMN64(qr_handle(30, 2)),
        .copy_targets = COLUMN64(qr_handle(10, 4)), .copy_rows = COLUMN32(2), .copy_groups = COLUMN32(1));
    assert_int_equal(d.submits, submits);
    assert_int_equal(f.e->outbox.count, 0);
    assert_int_equal(stand_work(f.e), 0);
    assert_int_equal(stand_work(f.e), 0);
    assert_int_equal(f.e->outbox.count, 0);
    assert_int_equal(stand_work(f.e), QR_NEVER_US);
    static const uint32_t positions[] = {2, 3, 4, 9}, rows[] = {0, 3, 4};
    static const int32_t slots[] = {2, 3, 4, 49}; /* page 0 rows 2, 3; page 1 row 0; page 12 row 1 */
    assert_memory_equal(d.positions, positions, sizeof positions);
    assert_memory_equal(d.row_offsets, rows, sizeof rows);
    assert_memory_equal(d.slots[0], slots, sizeof slots);
    assert_int_equal(d.logit_count, 1);
    assert_int_equal(d.logit_rows[0], 3);
    assert_int_equal(d.page_offsets[0][1], 2);
    assert_int_equal(d.page_offsets[0][2], 5);
    assert_int_equal(d.pages[0][4], 12);
    assert_int_equal(d.first_blocks[1][1], 1); /* window 6: position 9 attends 4..9, blocks 1 and 2 */
    assert_int_equal(d.page_offsets[1][2] - d.page_offsets[1][1], 2);
    assert_int_equal(d.copy_count[0], 0);
    assert_int_equal(d.copies[1][0], 30);
    assert_int_equal(d.copies[1][1], 10);
    assert_int_equal(d.copies[1][2], 2);
    const qr_batch_done_t *done = HEARD(f.e, batch_done);
    assert_int_equal(done->batch, 5);
    assert_int_equal(done->lanes.data[1], b);
    assert_int_equal(done->tokens.data[0], QR_TOKEN_NONE);
    assert_int_equal(done->tokens.data[1], 9 + 10); /* the drawn token's position is 10 */
    float logprob;
    memcpy(&logprob, &done->logprob_bits.data[1], 4);
    assert_true(logprob == -2.0f);
    tear_down(&f);
}

static void run(fixture_t *f, uint64_t batch, uint64_t lane, uint32_t start, uint32_t token)
{
    SAY(f->e, SCHEDULER, batch_run, .batch = batch, .lanes = COLUMN64(lane), .starts = COLUMN32(start), .row_counts = COLUMN32(1),
        .flags = COLUMN32(QR_ROW_SAMPLE), .tokens = COLUMN32(token));
}

static void test_previous_is_looked_up_when_the_batch_starts(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    run(&f, 1, a, 3, 11);
    run(&f, 2, a, 4, QR_TOKEN_PREVIOUS);
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->tokens.data[0], 7 + 4);
    run(&f, 3, a, 5, QR_TOKEN_PREVIOUS);
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->batch, 2);
    assert_int_equal(d.tokens[0], 7 + 4);
    work_until_said(&f);
    assert_int_equal(d.tokens[0], 7 + 5);
    tear_down(&f);
}

static void test_a_third_batch_is_refused(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    run(&f, 1, a, 3, 11);
    run(&f, 2, a, 4, QR_TOKEN_PREVIOUS);
    run(&f, 3, a, 5, QR_TOKEN_PREVIOUS);
    assert_int_equal(HEARD(f.e, batch_failed)->batch, 3);
    tear_down(&f);
}

static void test_a_lane_fails_alone(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), b = open_lane(&f, 1, 9), c = open_lane(&f, 2, 11);
    d.pieces = 2;
    SAY(f.e, SCHEDULER, batch_run, .batch = 5, .lanes = COLUMN64(a, b, c), .starts = COLUMN32(2, 9, 3), .row_counts = COLUMN32(2, 1, 1),
        .flags = COLUMN32(QR_ROW_SAMPLE, QR_ROW_SAMPLE, QR_ROW_SAMPLE), .tokens = COLUMN32(11, 12, 21, VOCABULARY));
    stand_work(f.e);
    d.status[0] = QR_E_NUMERIC;            /* lane a, its first row */
    assert_true(d.tokens[3] < VOCABULARY); /* an id the vocabulary has not is never looked up */
    work_until_said(&f);
    const qr_batch_done_t *done = HEARD(f.e, batch_done);
    assert_int_equal(done->statuses.data[0], QR_E_NUMERIC);
    assert_int_equal(done->tokens.data[0], QR_TOKEN_NONE);
    assert_int_equal(done->statuses.data[1], 0);
    assert_int_equal(done->tokens.data[1], 9 + 10);
    assert_int_equal(done->statuses.data[2], QR_E_INVALID);
    assert_int_equal(done->tokens.data[2], QR_TOKEN_NONE);
    run(&f, 6, a, 4, QR_TOKEN_PREVIOUS); /* there is no previous one any more */
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], QR_E_INVALID);
    tear_down(&f);
}

static void test_a_drawn_value_that_is_not_finite_fails_the_lane(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    d.logits[0][7 + 4] = INFINITY;
    run(&f, 1, a, 3, 11);
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], QR_E_NUMERIC);
    tear_down(&f);
}

static void test_a_lane_without_its_pages_is_not_run_past_its_table(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), b = open_lane(&f, 1, 9);
    SAY(f.e, SCHEDULER, batch_run, .batch = 5, .lanes = COLUMN64(a, b), .starts = COLUMN32(16, 9), .row_counts = COLUMN32(1, 1),
        .flags = COLUMN32(QR_ROW_SAMPLE, QR_ROW_SAMPLE), .tokens = COLUMN32(1, 2));
    work_until_said(&f);
    assert_int_equal(d.slots[0][0], -1);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], QR_E_PROTOCOL);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[1], 0);
    tear_down(&f);
}

static void test_window_pages_hold_from_their_batch_on(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), pages[8];
    SAY(f.e, SCHEDULER, lane_close, .lane = a);
    for (uint32_t i = 0; i < 8; i++) pages[i] = qr_handle(i, 1);
    a = qr_handle(0, 2);
    SAY(f.e, SCHEDULER, lane_open, .lane = a, .group_counts = COLUMN32(6, 2), .first_blocks = COLUMN32(0, 2), .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, 0);
    run(&f, 1, a, 16, 3); /* block 4 of group 1 is not there */
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], QR_E_PROTOCOL);
    SAY(f.e, SCHEDULER, batch_run, .batch = 2, .lanes = COLUMN64(a), .starts = COLUMN32(16), .row_counts = COLUMN32(1),
        .flags = COLUMN32(0), .tokens = COLUMN32(3), .window_lanes = COLUMN64(a, 99), .window_groups = COLUMN32(1, 1),
        .window_blocks = COLUMN32(4, 4), .window_pages = COLUMN64(qr_handle(33, 5), qr_handle(34, 5)));
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], 0);
    assert_int_equal(d.slots[1][0], 33 * 4);
    tear_down(&f);
}

/* A page that travels with somebody else's batch must not reach the lane that took the old one's place meanwhile. */
static void test_window_pages_of_a_closed_lane_reach_nobody(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), b = open_lane(&f, 1, 9), pages[8];
    run(&f, 1, a, 3, 1);
    SAY(f.e, SCHEDULER, batch_run, .batch = 2, .lanes = COLUMN64(a), .starts = COLUMN32(4), .row_counts = COLUMN32(1), .flags = COLUMN32(0),
        .tokens = COLUMN32(3), .window_lanes = COLUMN64(b), .window_groups = COLUMN32(1), .window_blocks = COLUMN32(2),
        .window_pages = COLUMN64(33));
    SAY(f.e, SCHEDULER, lane_close, .lane = b);
    assert_int_equal(HEARD(f.e, lane_closed)->reason, 0);
    for (uint32_t i = 0; i < 8; i++) pages[i] = i;
    uint64_t c = qr_handle(1, 2);
    SAY(f.e, SCHEDULER, lane_open, .lane = c, .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(0, 0), .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, 0);
    work_until_said(&f);
    work_until_said(&f);
    run(&f, 3, c, 8, 1);
    work_until_said(&f);
    assert_int_equal(d.slots[1][0], 6 * 4);
    tear_down(&f);
}

static void test_a_failed_batch_publishes_nothing_and_the_next_one_runs(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    run(&f, 1, a, 3, 11);
    run(&f, 2, a, 4, QR_TOKEN_PREVIOUS);
    d.advance_code = QR_E_DEVICE;
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_failed)->batch, 1);
    assert_int_equal(HEARD(f.e, batch_failed)->reason, QR_E_DEVICE);
    SAY(f.e, SCHEDULER, probe, .probe_id = 3);
    assert_int_equal(HEARD(f.e, probe_done)->reason, QR_E_DEVICE); /* not ready while the device fails */
    d.advance_code = 0;
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_done)->batch, 2);
    assert_int_equal(HEARD(f.e, batch_done)->statuses.data[0], QR_E_INVALID);
    SAY(f.e, SCHEDULER, probe, .probe_id = 4);
    assert_int_equal(HEARD(f.e, probe_done)->reason, 0);
    d.submit_code = QR_E_MEMORY;
    run(&f, 3, a, 3, 11);
    work_until_said(&f);
    assert_int_equal(HEARD(f.e, batch_failed)->reason, QR_E_MEMORY);
    tear_down(&f);
}

static void test_lanes_are_opened_and_closed_by_generation(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7), pages[8] = {0};
    SAY(f.e, SCHEDULER, lane_open, .lane = qr_handle(0, 2), .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(0, 0),
        .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, QR_E_IN_USE);
    SAY(f.e, SCHEDULER, lane_open, .lane = qr_handle(4, 1), .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(0, 0),
        .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, QR_E_LIMIT);
    pages[3] = qr_handle(40, 1); /* a page the pool has not */
    SAY(f.e, SCHEDULER, lane_open, .lane = qr_handle(1, 1), .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(0, 0),
        .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, QR_E_LIMIT);
    pages[3] = 0;
    SAY(f.e, SCHEDULER, lane_open, .lane = qr_handle(1, 1), .group_counts = COLUMN32(4, 4), .first_blocks = COLUMN32(14, 0),
        .pages = {pages, 8});
    assert_int_equal(HEARD(f.e, lane_opened)->reason, QR_E_LIMIT); /* behind the context's end */
    SAY(f.e, SCHEDULER, lane_close, .lane = qr_handle(0, 9));
    assert_int_equal(HEARD(f.e, lane_closed)->reason, QR_E_STALE);
    run(&f, 1, a, 3, 11);
    SAY(f.e, SCHEDULER, lane_close, .lane = a);
    assert_int_equal(HEARD(f.e, lane_closed)->reason, QR_E_IN_USE);
    work_until_said(&f);
    SAY(f.e, SCHEDULER, lane_close, .lane = a);
    assert_int_equal(HEARD(f.e, lane_closed)->reason, 0);
    run(&f, 2, a, 4, 11);
    assert_int_equal(HEARD(f.e, batch_failed)->batch, 2);
    tear_down(&f);
}

static void refused(fixture_t *f, const qr_batch_run_t *body)
{
    stand_say(f->e, SCHEDULER, QR_MESSAGE_batch_run, body);
    assert_int_equal(HEARD(f->e, batch_failed)->reason, QR_E_PROTOCOL);
    assert_int_equal(stand_work(f->e), QR_NEVER_US);
}

static void test_batches_are_checked_before_they_are_queued(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    const qr_batch_run_t good = {.batch = 1,
                                 .lanes = COLUMN64(a),
                                 .starts = COLUMN32(3),
                                 .row_counts = COLUMN32(1),
                                 .flags = COLUMN32(0),
                                 .tokens = COLUMN32(1),
                                 .copy_sources = COLUMN64(1),
                                 .copy_targets = COLUMN64(2),
                                 .copy_rows = COLUMN32(4),
                                 .copy_groups = COLUMN32(0)};
    qr_batch_run_t b = good;
    b.lanes.count = 0;
    refused(&f, &b);
    b = good, b.starts.count = 0;
    refused(&f, &b);
    b = good, b.row_counts = (qr_u32s_t)COLUMN32(2);
    refused(&f, &b);
    b = good, b.row_counts = (qr_u32s_t)COLUMN32(0);
    refused(&f, &b);
    b = good, b.row_counts = (qr_u32s_t)COLUMN32(UINT32_MAX);
    refused(&f, &b);
    b = good, b.starts = (qr_u32s_t)COLUMN32(64);
    refused(&f, &b);
    b = good, b.starts = (qr_u32s_t)COLUMN32(UINT32_MAX);
    refused(&f, &b);
    b = good, b.copy_rows = (qr_u32s_t)COLUMN32(5);
    refused(&f, &b);
    b = good, b.copy_groups = (qr_u32s_t)COLUMN32(2);
    refused(&f, &b);
    b = good, b.copy_targets = (qr_u64s_t)COLUMN64(40);
    refused(&f, &b);
    b = good, b.window_lanes = (qr_u64s_t)COLUMN64(a);
    refused(&f, &b);
    stand_say(f.e, SCHEDULER, QR_MESSAGE_batch_run, &good);
    work_until_said(&f);
    assert_int_equal(HEARD_COUNT(f.e, batch_done), 1);
    tear_down(&f);
}

static void test_stop_gives_up_what_runs(void **state)
{
    (void)state;
    fixture_t f = set_up();
    uint64_t a = open_lane(&f, 0, 7);
    run(&f, 1, a, 3, 11);
    d.pieces = 3;
    stand_work(f.e);
    assert_true(d.working);
    SAY(f.e, MESH, stop, .budget_us = 1000);
    assert_false(d.working);
    assert_int_equal(HEARD_COUNT(f.e, batch_done), 0);
    assert_int_equal(HEARD(f.e, batch_failed)->batch, 1);
    assert_int_equal(HEARD(f.e, batch_failed)->reason, QR_E_DRAINING);
    assert_int_equal(HEARD(f.e, stopped)->reason, 0);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_warm_up_leaves_the_pool_alone),
        cmocka_unit_test(test_a_failed_warm_up_is_not_ready),
        cmocka_unit_test(test_a_batch_is_built_from_tables_and_computed_only_in_work),
        cmocka_unit_test(test_previous_is_looked_up_when_the_batch_starts),
        cmocka_unit_test(test_a_third_batch_is_refused),
        cmocka_unit_test(test_a_lane_fails_alone),
        cmocka_unit_test(test_a_drawn_value_that_is_not_finite_fails_the_lane),
        cmocka_unit_test(test_a_lane_without_its_pages_is_not_run_past_its_table),
        cmocka_unit_test(test_window_pages_hold_from_their_batch_on),
        cmocka_unit_test(test_window_pages_of_a_closed_lane_reach_nobody),
        cmocka_unit_test(test_a_failed_batch_publishes_nothing_and_the_next_one_runs),
        cmocka_unit_test(test_lanes_are_opened_and_closed_by_generation),
        cmocka_unit_test(test_batches_are_checked_before_they_are_queued),
        cmocka_unit_test(test_stop_gives_up_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
