/* link: qr_io_executor qr_sim qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* contract_test.c - the simulated device and its real twin hold the same conversations, so that the fake cannot drift: the same
 * messages in, the same answers out in the same order, with the same statuses and draws in the same places. Which token is drawn is
 * each one's own affair; that it depends on nothing but the rows a lane attends is both's. */
#include "actors/io/executor.h"
#include "base/error.h"
#include "model/decoder.h"
#include "tests/unit/model_file.h"
#include "tests/unit/stand.h"
#include "transport/sim/device.h"

enum { PAGE = 8, PAGES = 16, CONTEXT = 64, LANES = 4, LINES = 64, LINE = 200, TURNS = 20000 };
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define HTTP qr_address(1, 0, QR_ROLE_http, 0)
#define EXECUTOR qr_address(1, 1, QR_ROLE_executor, 0)
#define HANDLE(generation, index) ((uint64_t)(generation) << 32 | (index))

/* One twin and what it said. */
typedef struct twin {
    stand_t *stand;
    qr_given_t given;
    char lines[LINES][LINE];
    uint32_t count;
    uint32_t drawn[LINES][LANES]; /* of the batch_done in that line */
} twin_t;

static void hear(twin_t *t)
{
    for (uint32_t i = 0; i < t->stand->outbox.count; i++) {
        const qr_message_t *m = &t->stand->messages[i];
        char *line = t->lines[t->count];
        int n = snprintf(line, LINE, "%s to %u", qr_schema_find(m->type)->name, qr_address_role(m->to));
        if (m->type == QR_MESSAGE_lane_opened)
            n += snprintf(line + n, LINE - (size_t)n, " lane %llx reason %u", (unsigned long long)m->body.lane_opened.lane,
                          m->body.lane_opened.reason);
        if (m->type == QR_MESSAGE_lane_closed)
            n += snprintf(line + n, LINE - (size_t)n, " lane %llx reason %u", (unsigned long long)m->body.lane_closed.lane,
                          m->body.lane_closed.reason);
        if (m->type == QR_MESSAGE_probe_done)
            n += snprintf(line + n, LINE - (size_t)n, " %llu reason %u", (unsigned long long)m->body.probe_done.probe_id,
                          m->body.probe_done.reason);
        if (m->type == QR_MESSAGE_batch_failed)
            n += snprintf(line + n, LINE - (size_t)n, " batch %llu reason %u", (unsigned long long)m->body.batch_failed.batch,
                          m->body.batch_failed.reason);
        if (m->type == QR_MESSAGE_batch_done) {
            const qr_batch_done_t *b = &m->body.batch_done;
            n += snprintf(line + n, LINE - (size_t)n, " batch %llu timed %d", (unsigned long long)b->batch, b->step_us > 0);
            assert_true(b->statuses.count == b->lanes.count && b->tokens.count == b->lanes.count &&
                        b->logprob_bits.count == b->lanes.count);
            for (uint64_t k = 0; k < b->lanes.count; k++) {
                t->drawn[t->count][k] = b->tokens.data[k];
                n += snprintf(line + n, LINE - (size_t)n, ", lane %llx status %u %s", (unsigned long long)b->lanes.data[k],
                              b->statuses.data[k], b->tokens.data[k] == QR_TOKEN_NONE ? "no token" : "a token");
            }
        }
        assert_true(++t->count < LINES);
    }
    t->stand->outbox.count = 0;
}

static void say(twin_t *t, uint64_t from, uint16_t type, const void *body)
{
    uint64_t alarm_us = t->stand->outbox.alarm_us;
    stand_say(t->stand, from, type, body);
    t->stand->outbox.alarm_us = qr_min_u64(alarm_us, t->stand->outbox.alarm_us);
    hear(t);
}
#define TELL(t, from, name, ...) say((t), (from), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* Lets it work until it has said `lines` lines in all; an io actor by pieces, the fake by alarms. */
static void until(twin_t *t, uint32_t lines)
{
    for (uint32_t i = 0; t->count < lines; i++) {
        assert_true(i < TURNS);
        stand_t *s = t->stand;
        if (s->actor->work) {
            qr_outbox_reset(&s->outbox, s->actor->max_out);
            (void)s->actor->work(s->state, s->given, s->now_us, &s->outbox);
            hear(t);
            continue;
        }
        assert_true(s->outbox.alarm_us != QR_NEVER_US);
        s->now_us = qr_max_u64(s->now_us, s->outbox.alarm_us);
        s->outbox.alarm_us = QR_NEVER_US;
        say(t, EXECUTOR, QR_MESSAGE_alarm, &(qr_alarm_t){.due_us = s->now_us});
    }
}

#define U32S(...)                                                                                                                          \
    {                                                                                                                                      \
        (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                                       \
    }
#define U64S(...)                                                                                                                          \
    {                                                                                                                                      \
        (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                                       \
    }
#define LANE_A HANDLE(1, 0)
#define LANE_B HANDLE(1, 1)
#define LANE_C HANDLE(1, 2)

static void open_lane(twin_t *t, uint64_t lane, uint64_t first_page, uint64_t second_page)
{
    TELL(t, SCHEDULER, lane_open, .lane = lane, .request_id = lane, .attempt = 1, .generated_from = 5, .top_p_bits = 0x3f800000,
         .group_counts = U32S(2), .first_blocks = U32S(0), .pages = U64S(first_page, second_page));
}

/* The script. Lines are counted, so that both are asked the next thing at the same place. */
static void converse(twin_t *t)
{
    TELL(t, MESH, start, .epoch = 1, .seed = 1);
    until(t, 1);
    open_lane(t, LANE_A, HANDLE(1, 0), HANDLE(1, 1));
    open_lane(t, LANE_B, HANDLE(1, 2), HANDLE(1, 3));
    TELL(t, SCHEDULER, probe, .probe_id = 7);
    /* two batches in flight: a prompt and part of one, then a drawn token that is not known yet beside the rest */
    TELL(t, SCHEDULER, batch_run, .batch = 1, .lanes = U64S(LANE_A, LANE_B), .starts = U32S(0, 0), .row_counts = U32S(5, 3),
         .flags = U32S(QR_ROW_SAMPLE, 0), .tokens = U32S(10, 11, 12, 13, 14, 10, 11, 12));
    TELL(t, SCHEDULER, batch_run, .batch = 2, .lanes = U64S(LANE_A, LANE_B), .starts = U32S(5, 3), .row_counts = U32S(1, 2),
         .flags = U32S(QR_ROW_SAMPLE, QR_ROW_SAMPLE), .tokens = U32S(QR_TOKEN_PREVIOUS, 13, 14));
    until(t, 6);
    assert_int_equal(t->drawn[4][0], t->drawn[5][1]); /* the same rows, other pages, other tiles: the same draw */
    /* a fork: C takes five rows of A's page and draws what A drew after its prompt; what it never drew fails it alone */
    open_lane(t, LANE_C, HANDLE(1, 4), HANDLE(1, 5));
    TELL(t, SCHEDULER, batch_run, .batch = 3, .lanes = U64S(LANE_C), .starts = U32S(4), .row_counts = U32S(1), .flags = U32S(QR_ROW_SAMPLE),
         .tokens = U32S(14), .copy_sources = U64S(HANDLE(1, 0)), .copy_targets = U64S(HANDLE(1, 4)), .copy_rows = U32S(4),
         .copy_groups = U32S(0));
    until(t, 8);
    assert_int_equal(t->drawn[7][0], t->drawn[4][0]);
    TELL(t, SCHEDULER, lane_close, .lane = LANE_C);
    open_lane(t, HANDLE(2, 2), HANDLE(2, 4), HANDLE(2, 5));
    TELL(t, SCHEDULER, batch_run, .batch = 4, .lanes = U64S(HANDLE(2, 2), LANE_A), .starts = U32S(0, 6), .row_counts = U32S(1, 1),
         .flags = U32S(QR_ROW_SAMPLE, QR_ROW_SAMPLE), .tokens = U32S(QR_TOKEN_PREVIOUS, QR_TOKEN_PREVIOUS));
    until(t, 11);
    TELL(t, SCHEDULER, lane_close, .lane = LANE_B);
    TELL(t, SCHEDULER, lane_close, .lane = HANDLE(2, 2));
    /* stop gives up what is in hand, in order */
    TELL(t, SCHEDULER, batch_run, .batch = 5, .lanes = U64S(LANE_A), .starts = U32S(7), .row_counts = U32S(1), .flags = U32S(0),
         .tokens = U32S(20));
    TELL(t, SCHEDULER, batch_run, .batch = 6, .lanes = U64S(LANE_A), .starts = U32S(8), .row_counts = U32S(1), .flags = U32S(0),
         .tokens = U32S(21));
    TELL(t, MESH, stop, .budget_us = 1000);
}

static void test_device_and_its_twin(void **state)
{
    (void)state;
    static twin_t real, fake;
    static const char *const expected[] = {
        "ready to 1", "lane_opened to 7 lane 100000000 reason 0", "lane_opened to 7 lane 100000001 reason 0", "probe_done to 7 7 reason 0",
        "batch_done to 7 batch 1 timed 1, lane 100000000 status 0 a token, lane 100000001 status 0 no token"};
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.seed = 3;
    qr_device_t *device = device_new(QR_ISA_AUTO, 1);
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model = model_load(file.path, device);
    char message[256];
    qr_decoder_config_t shape = {
        .page_tokens = PAGE, .rows_max = 16 + LANES, .lanes_max = LANES, .context_tokens = CONTEXT, .poison = true};
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) shape.pages[g] = PAGES;
    qr_params_init(&real.given.params);
    real.given.params.max_lanes = LANES;
    real.given.params.prefill_tile = 16;
    assert_int_equal(qr_decoder_new(model, &shape, &real.given.decoder, message, sizeof message), 0);
    real.given.model = model;
    real.given.layout = *qr_decoder_layout(real.given.decoder);
    real.given.layout.context_tokens = CONTEXT;
    real.given.vocabulary = model->vocabulary;
    qr_sim_world_given_t world = {.cost = {1000, 1000, 1}};
    fake.given = real.given;
    fake.given.decoder = (struct qr_decoder *)(void *)&world;
    real.stand = stand_new(&qr_executor_class, &real.given, EXECUTOR);
    fake.stand = stand_new(&qr_sim_executor_class, &fake.given, EXECUTOR);
    converse(&real);
    converse(&fake);
    for (size_t i = 0; i < QR_COUNT(expected); i++) assert_string_equal(real.lines[i], expected[i]);
    assert_int_equal(real.count, fake.count);
    for (uint32_t i = 0; i < real.count; i++) assert_string_equal(real.lines[i], fake.lines[i]);
    assert_string_equal(real.lines[real.count - 1], "stopped to 1");
    stand_destroy(real.stand);
    stand_destroy(fake.stand);
    qr_decoder_destroy(&real.given.decoder);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_device_and_its_twin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
