/* link: qr_io_storage qr_io_storage_parts qr_io_storage_holds qr_io_storage_ram qr_io_storage_errand qr_io_transfer qr_io_transfer_spill qr_io_transfer_digest qr_actor_roles qr_store_faults qr_model qr_messages */
/* Rows of preempted requests over real page pools: out of pages and back, bit for bit, into other pages, from the middle on; no room, a bit
 * that flipped, fences, drops, a stop, wrong questions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/conversations/moves.h"
#include "tests/conversations/spill_conversation.h"

enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
};
#define COLUMN(...)                                                                                                                        \
    {                                                                                                                                      \
        .data = (const uint32_t[]){__VA_ARGS__}, .count = sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                      \
    }
#define COLUMN64_OF(...)                                                                                                                   \
    {                                                                                                                                      \
        .data = (const uint64_t[]){__VA_ARGS__}, .count = sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                      \
    }
enum { PAGE = 16, PAGES = 24, LAYERS = 3, BLOCKS_MAX = 12 };

typedef struct place {
    moves_t *m;
    uint64_t out[BLOCKS_MAX], in[BLOCKS_MAX]; /* pages 0 .., and others, in another order */
    uint64_t slot_bytes;
} place_t;

/* Room for `slots` pages of rows. */
static place_t place_new(uint32_t slots)
{
    place_t p = {0};
    moves_config_t config = {.page_tokens = PAGE, .chunk_tokens = 32, .pages = PAGES, .layers = LAYERS, .spill_bytes = 1 << 20};
    p.m = moves_new(&config);
    p.slot_bytes = (uint64_t)qr_decoder_member_count(p.m->given->decoder, 0) * PAGE * qr_decoder_row_bytes(p.m->given->decoder);
    moves_halt(p.m, false);
    p.m->given->params.spill_bytes = slots * p.slot_bytes + p.slot_bytes / 2;
    moves_boot(p.m, 2);
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) p.out[i] = qr_handle(i, 1), p.in[i] = qr_handle(PAGES - 1 - i, 1);
    return p;
}

static uint64_t metric(moves_t *m, uint32_t id)
{
    qr_message_t message = {.type = QR_MESSAGE_metrics_read, .from = at_role(QR_ROLE_mesh), .epoch = 1};
    qr_outbox_reset(&m->pump.outbox, 8);
    m->transfer->actor->handle(m->transfer->state, m->given, &message, &m->pump.outbox);
    const qr_metrics_t *metrics = &m->pump.messages[0].body.metrics;
    for (uint64_t i = 0; i < metrics->ids.count; i++)
        if (metrics->ids.data[i] == id) return metrics->values.data[i];
    fail_msg("no metric %u", id);
    return 0;
}

static void spill_say(place_t *p, uint64_t key, uint32_t rows)
{
    moves_fill(p->m, 0, 0, rows, 0, p->out, key);
    MOVES_SAY(p->m, scheduler, transfer, page_spill, .key = key, .rows = rows, .pages = {p->out, qr_div_up(rows, PAGE)});
}
static qr_page_spilled_t spilled(place_t *p)
{
    qr_message_t answer;
    assert_true(moves_late(p->m, QR_ROLE_scheduler, QR_MESSAGE_page_spilled, &answer));
    return answer.body.page_spilled;
}
static uint32_t spill(place_t *p, uint64_t key, uint32_t rows)
{
    spill_say(p, key, rows);
    return spilled(p).reason;
}
static void unspill_say(place_t *p, uint64_t key, uint32_t start, uint32_t end)
{
    moves_fill(p->m, 0, 0, BLOCKS_MAX * PAGE, 0, p->in, 99);
    MOVES_SAY(p->m, scheduler, transfer, page_unspill, .key = key, .start_rows = start, .end_rows = end,
              .pages = {p->in + start / PAGE, qr_div_up(end, PAGE) - start / PAGE});
}
static qr_page_unspilled_t unspilled(place_t *p)
{
    qr_message_t answer;
    assert_true(moves_late(p->m, QR_ROLE_scheduler, QR_MESSAGE_page_unspilled, &answer));
    return answer.body.page_unspilled;
}
static uint32_t drop(place_t *p, uint64_t key)
{
    qr_message_t answer;
    MOVES_ASK(p->m, scheduler, transfer, spill_drop, &answer, .key = key);
    assert_int_equal(answer.body.spill_dropped.key, key);
    return answer.body.spill_dropped.reason;
}
static void deliver(moves_t *m)
{
    while (pump_deliver(&m->pump)) {
    }
}

static void test_rows_come_back_bit_for_bit(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 15, 16, 17, 40, 11 * PAGE + 3};
    place_t p = place_new(BLOCKS_MAX);
    for (uint32_t i = 0; i < QR_COUNT(counts); i++)
        for (uint32_t start = 0; start < counts[i]; start += 2 * PAGE) {
            uint32_t rows = counts[i];
            uint64_t key = 100 * i + start + 1, bytes = rows * p.slot_bytes / PAGE;
            spill_say(&p, key, rows);
            qr_page_spilled_t s = spilled(&p);
            assert_true(s.key == key && s.reason == 0 && s.bytes == bytes);
            assert_int_equal(metric(p.m, ID_spill_bytes), qr_div_up(rows, PAGE) * p.slot_bytes);
            moves_fill(p.m, 0, 0, rows, 0, p.out, 98); /* the pages go to somebody else */
            unspill_say(&p, key, start, rows);
            qr_page_unspilled_t u = unspilled(&p);
            assert_true(u.key == key && u.reason == 0 && u.boundary == rows);
            assert_true(moves_holds(p.m, 0, start, rows - start, 0, p.in, key));
            assert_true(moves_holds(p.m, 0, 0, start, 0, p.in, 99));                       /* what stood is not touched, */
            assert_true(moves_holds(p.m, 0, rows, BLOCKS_MAX * PAGE - rows, 0, p.in, 99)); /* nor what follows */
            assert_int_equal(metric(p.m, ID_spill_bytes), 0);                              /* and its room is free */
            unspill_say(&p, key, 0, rows);
            assert_int_equal(unspilled(&p).reason, QR_E_NOT_FOUND);
        }
    assert_int_equal(metric(p.m, ID_spills_refused_total), 0);
    moves_destroy(p.m);
}

static void test_room_is_bounded(void **state)
{
    (void)state;
    place_t p = place_new(5);
    assert_int_equal(metric(p.m, ID_spill_bytes_bound), 5 * p.slot_bytes);
    assert_int_equal(spill(&p, 1, 6 * PAGE), QR_E_SHORTFALL);
    assert_int_equal(spill(&p, 1, 3 * PAGE), 0);
    assert_int_equal(spill(&p, 2, 2 * PAGE + 1), QR_E_SHORTFALL);
    assert_int_equal(spill(&p, 2, PAGE + 1), 0);
    assert_int_equal(spill(&p, 3, 1), QR_E_SHORTFALL);
    assert_int_equal(metric(p.m, ID_spill_bytes), 5 * p.slot_bytes);
    assert_int_equal(drop(&p, 3), QR_E_NOT_FOUND); /* what was refused is not kept */
    assert_int_equal(drop(&p, 1), 0);
    assert_int_equal(drop(&p, 1), QR_E_NOT_FOUND);
    assert_int_equal(metric(p.m, ID_spill_bytes), 2 * p.slot_bytes);
    assert_int_equal(spill(&p, 3, 3 * PAGE), 0); /* other slots, another order */
    unspill_say(&p, 2, 0, PAGE + 1);
    assert_int_equal(unspilled(&p).reason, 0);
    assert_true(moves_holds(p.m, 0, 0, PAGE + 1, 0, p.in, 2));
    unspill_say(&p, 3, 0, 3 * PAGE);
    assert_int_equal(unspilled(&p).reason, 0);
    assert_true(moves_holds(p.m, 0, 0, 3 * PAGE, 0, p.in, 3));
    assert_int_equal(metric(p.m, ID_spills_refused_total), 3);
    for (uint64_t key = 1; key <= 4; key++) assert_int_equal(spill(&p, key, 1), 0);
    assert_int_equal(spill(&p, 5, 1), QR_E_SHORTFALL); /* not more than requests */
    moves_destroy(p.m);
}

/* A bit flips while the rows are away: the blocks before it count, nothing from it on. */
static void test_a_flipped_bit_is_seen(void **state)
{
    (void)state;
    for (uint32_t block = 0; block < 4; block++) {
        place_t p = place_new(BLOCKS_MAX);
        uint32_t rows = 3 * PAGE + 5;
        assert_int_equal(spill(&p, 1, rows), 0);
        qr_transfer_spilled(p.m->transfer->state, 1, block)[p.slot_bytes / 32 + 1] ^= 0x20;
        unspill_say(&p, 1, 0, rows);
        qr_page_unspilled_t u = unspilled(&p);
        assert_int_equal(u.reason, QR_E_DIGEST);
        assert_int_equal(u.boundary, block * PAGE);
        if (block) assert_true(moves_holds(p.m, 0, 0, block * PAGE, 0, p.in, 1));
        assert_int_equal(metric(p.m, ID_unspills_failed_total), 1);
        assert_int_equal(metric(p.m, ID_spill_bytes), 0);
        moves_destroy(p.m);
    }
}

static void test_a_fence_ends_moves_of_spilled_rows(void **state)
{
    (void)state;
    place_t p = place_new(BLOCKS_MAX);
    qr_message_t answer;
    spill_say(&p, 1, 5 * PAGE);
    deliver(p.m);
    MOVES_SAY(p.m, page_manager, transfer, fence, .fence_id = 7, .groups = COLUMN(0), .pages = COLUMN64_OF(p.in[11])); /* another page */
    deliver(p.m);
    assert_true(moves_heard(p.m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
    assert_false(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_spilled, &answer));
    MOVES_SAY(p.m, page_manager, transfer, fence, .fence_id = 8, .groups = COLUMN(0), .pages = COLUMN64_OF(p.out[4]));
    deliver(p.m);
    assert_true(moves_heard(p.m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_spilled, &answer));
    assert_int_equal(answer.body.page_spilled.reason, QR_E_FENCED);
    assert_int_equal(metric(p.m, ID_spill_bytes), 0);
    assert_int_equal(spill(&p, 2, 5 * PAGE), QR_E_STALE);
    assert_int_equal(spill(&p, 2, 4 * PAGE), 0);
    unspill_say(&p, 2, 0, 4 * PAGE);
    deliver(p.m);
    MOVES_SAY(p.m, page_manager, transfer, fence, .fence_id = 9, .groups = COLUMN(0), .pages = COLUMN64_OF(p.in[3]));
    deliver(p.m);
    assert_true(moves_heard(p.m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_unspilled, &answer));
    assert_int_equal(answer.body.page_unspilled.reason, QR_E_FENCED);
    assert_int_equal(answer.body.page_unspilled.boundary, 0);
    moves_rest(p.m);
    assert_true(moves_holds(p.m, 0, 0, 4 * PAGE, 0, p.in, 99)); /* not a byte since */
    assert_int_equal(metric(p.m, ID_spill_bytes), 0);
    assert_int_equal(metric(p.m, ID_uploads_fenced_total), 2);
    moves_destroy(p.m);
}

static void test_moves_of_several_requests_mix_nothing_up(void **state)
{
    (void)state;
    place_t p = place_new(BLOCKS_MAX);
    assert_int_equal(spill(&p, 1, 3 * PAGE + 1), 0);
    assert_int_equal(spill(&p, 2, 2 * PAGE), 0);
    moves_fill(p.m, 0, 0, BLOCKS_MAX * PAGE, 0, p.in, 99);
    MOVES_SAY(p.m, scheduler, transfer, page_unspill, .key = 2, .start_rows = 0, .end_rows = 2 * PAGE, .pages = {p.in + 6, 2});
    MOVES_SAY(p.m, scheduler, transfer, page_unspill, .key = 1, .start_rows = PAGE, .end_rows = 3 * PAGE + 1, .pages = {p.in + 1, 3});
    spill_say(&p, 3, 4 * PAGE);
    assert_int_equal(spilled(&p).reason, 0);
    qr_page_unspilled_t a = unspilled(&p), b = unspilled(&p);
    assert_true(a.reason == 0 && b.reason == 0 && a.key + b.key == 3);
    assert_true(moves_holds(p.m, 0, 0, 2 * PAGE, 0, p.in + 6, 2));
    assert_true(moves_holds(p.m, 0, PAGE, 2 * PAGE + 1, 0, p.in, 1));
    unspill_say(&p, 3, 0, 4 * PAGE);
    assert_int_equal(unspilled(&p).reason, 0);
    assert_true(moves_holds(p.m, 0, 0, 4 * PAGE, 0, p.in, 3));
    moves_destroy(p.m);
}

static void test_wrong_questions_change_nothing(void **state)
{
    (void)state;
    place_t p = place_new(BLOCKS_MAX);
    qr_message_t answer;
#define REFUSED(expected, ...)                                                                                                             \
    MOVES_ASK(p.m, scheduler, transfer, page_spill, &answer, __VA_ARGS__);                                                                 \
    assert_int_equal(answer.body.page_spilled.reason, expected)
    REFUSED(QR_E_INVALID, .key = 0, .rows = 16, .pages = {p.out, 1});
    REFUSED(QR_E_INVALID, .key = 1, .rows = 0, .pages = {p.out, 0});
    REFUSED(QR_E_INVALID, .key = 1, .rows = 17, .pages = {p.out, 1});
    REFUSED(QR_E_INVALID, .key = 1, .rows = UINT32_MAX, .pages = {p.out, 1});
    REFUSED(QR_E_INVALID, .key = 1, .rows = 16, .pages = COLUMN64_OF(qr_handle(PAGES, 1)));
    REFUSED(QR_E_INVALID, .key = 1, .rows = 16, .pages = COLUMN64_OF(qr_handle(1, 0)));
    assert_int_equal(spill(&p, 1, 20), 0);
    REFUSED(QR_E_IN_USE, .key = 1, .rows = 16, .pages = {p.out, 1});
    assert_int_equal(drop(&p, 0), QR_E_NOT_FOUND);
    unspill_say(&p, 1, 0, 20); /* under way: nobody else has it */
    MOVES_SAY(p.m, scheduler, transfer, page_unspill, .key = 1, .start_rows = 0, .end_rows = 20, .pages = {p.out, 2});
    MOVES_SAY(p.m, scheduler, transfer, spill_drop, .key = 1);
    deliver(p.m);
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_unspilled, &answer));
    assert_int_equal(answer.body.page_unspilled.reason, QR_E_IN_USE);
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_spill_dropped, &answer));
    assert_int_equal(answer.body.spill_dropped.reason, QR_E_IN_USE);
    assert_int_equal(unspilled(&p).reason, 0);
    assert_true(moves_holds(p.m, 0, 0, 20, 0, p.in, 1));
    assert_int_equal(spill(&p, 1, 20), 0);
    unspill_say(&p, 1, 0, 19); /* not the rows that were spilled: given up, never half right */
    assert_int_equal(unspilled(&p).reason, QR_E_INVALID);
    assert_int_equal(metric(p.m, ID_spill_bytes), 0);
    moves_destroy(p.m);
}

static void test_stop_ends_moves_of_spilled_rows(void **state)
{
    (void)state;
    place_t p = place_new(BLOCKS_MAX);
    qr_message_t answer;
    assert_int_equal(spill(&p, 1, 3 * PAGE), 0);
    unspill_say(&p, 1, 0, 3 * PAGE);
    spill_say(&p, 2, 3 * PAGE);
    deliver(p.m);
    MOVES_ASK(p.m, mesh, transfer, stop, &answer, .budget_us = 1);
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_spilled, &answer));
    assert_int_equal(answer.body.page_spilled.reason, QR_E_CANCELLED);
    assert_true(moves_heard(p.m, QR_ROLE_scheduler, QR_MESSAGE_page_unspilled, &answer));
    assert_int_equal(answer.body.page_unspilled.reason, QR_E_CANCELLED);
    assert_int_equal(pump_work(&p.m->pump, p.m->transfer), QR_NEVER_US);
    moves_destroy(p.m);
}

/* A group of its own for a windowed layer: the rows of both come back. */
static void test_two_groups(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = PAGE, .chunk_tokens = 32, .pages = PAGES, .layers = 2, .window = 40, .spill_bytes = 4 << 20};
    moves_t *m = moves_new(&config);
    qr_message_t answer;
    uint64_t pages[6], back[6];
    for (uint32_t i = 0; i < 6; i++) pages[i] = qr_handle(i, 1), back[i] = qr_handle(10 + (i * 5) % 6, 1);
    for (uint32_t g = 0; g < 2; g++) moves_fill(m, g, 0, 2 * PAGE + 7, 0, pages + 3ul * g, 5);
    MOVES_ASK(m, scheduler, transfer, page_spill, &answer, .key = 1, .rows = 2 * PAGE + 7, .pages = {pages, 6});
    assert_int_equal(answer.body.page_spilled.reason, 0);
    MOVES_ASK(m, scheduler, transfer, page_unspill, &answer, .key = 1, .end_rows = 2 * PAGE + 7, .pages = {back, 6});
    assert_int_equal(answer.body.page_unspilled.reason, 0);
    for (uint32_t g = 0; g < 2; g++) assert_true(moves_holds(m, g, 0, 2 * PAGE + 7, 0, back + 3ul * g, 5));
    moves_destroy(m);
}

static void test_nothing_is_kept_where_nobody_is_preempted(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = PAGE, .chunk_tokens = 32, .pages = PAGES, .layers = 2};
    place_t p = {.m = moves_new(&config)};
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) p.out[i] = p.in[i] = qr_handle(i, 1);
    assert_int_equal(spill(&p, 1, PAGE), QR_E_SHORTFALL);
    unspill_say(&p, 1, 0, PAGE);
    assert_int_equal(unspilled(&p).reason, QR_E_NOT_FOUND);
    assert_int_equal(metric(p.m, ID_spill_bytes_bound), 0);
    moves_destroy(p.m);
}

/* The simulated transfer holds the same (contract_store_test.c). */
static void test_the_conversation(void **state)
{
    (void)state;
    place_t p = place_new(SPILL_BLOCKS);
    spill_world_t world = {.context = p.m, .page_tokens = PAGE, .groups = 1, .ask = moves_ask, .fill = moves_fill, .holds = moves_holds};
    memcpy(world.out, p.out, sizeof world.out);
    memcpy(world.in, p.in, sizeof world.in);
    spill_conversation_run(&world);
    assert_int_equal(metric(p.m, ID_spill_bytes), 0);
    moves_destroy(p.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_conversation),
        cmocka_unit_test(test_rows_come_back_bit_for_bit),
        cmocka_unit_test(test_room_is_bounded),
        cmocka_unit_test(test_a_flipped_bit_is_seen),
        cmocka_unit_test(test_a_fence_ends_moves_of_spilled_rows),
        cmocka_unit_test(test_moves_of_several_requests_mix_nothing_up),
        cmocka_unit_test(test_wrong_questions_change_nothing),
        cmocka_unit_test(test_stop_ends_moves_of_spilled_rows),
        cmocka_unit_test(test_two_groups),
        cmocka_unit_test(test_nothing_is_kept_where_nobody_is_preempted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
