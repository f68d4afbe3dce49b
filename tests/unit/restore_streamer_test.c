/* link: qr_actor_restore_streamer qr_schema */
/* The restore streamer by hand, then twice 200,000 messages with a storage and a transfer that are slow, fail and answer in any order. */
#include "tests/unit/stand.h"

#include "actors/restore_streamer.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};
enum { NODE = 1, CHUNK = 8, PAGE = 4, TOKENS_MAX = 64, LANES = 4 };

static uint64_t streamer(void) { return qr_address(NODE, 1, QR_ROLE_restore_streamer, 0); }
static uint64_t scheduler(void) { return qr_address(NODE, 1, QR_ROLE_scheduler, 0); }
static uint64_t transfer(void) { return qr_address(NODE, 1, QR_ROLE_transfer, 0); }
static uint64_t storage(void) { return qr_address(NODE, 0, QR_ROLE_storage, 0); }
static uint64_t mesh(void) { return qr_address(NODE, 0, QR_ROLE_mesh, 0); }
static uint64_t http(void) { return qr_address(NODE, 0, QR_ROLE_http, 0); }

static qr_given_t *given;
static stand_t *stand;

static void boot(void)
{
    stand = stand_new(&qr_restore_streamer_class, given, streamer());
    stand->outbox.alarm_us = QR_NEVER_US;
    SAY(stand, mesh(), start, .epoch = 5, .seed = 1, .partners = COLUMN64(storage()));
    assert_int_equal(HEARD(stand, ready)->reason, 0);
}
static int begin(void **unused)
{
    (void)unused;
    given = stand_given();
    given->params.max_lanes = LANES;
    given->params.restore_max_ms = 500;
    boot();
    return 0;
}
static int begin_two_groups(void **unused)
{
    (void)unused;
    given = stand_given();
    given->params.max_lanes = LANES;
    given->params.restore_max_ms = 500;
    given->layout.group_count = 2;
    given->layout.groups[1] = (qr_group_t){.window = 8, .pages = 8, .row_bytes = 64};
    boot();
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    free(given);
    return 0;
}
static void again(void)
{
    stand_destroy(stand);
    boot();
}

/* ---- what everybody says --------------------------------------------------------------------------------------------------------- */

/* Conversation `id`: its tokens, its root, its chunks' hashes and its pages. */
static uint32_t token(uint64_t id, uint32_t row) { return (uint32_t)(id * 1000 + row); }
static void root_of(uint64_t id, uint8_t root[32]) { memset(root, (int)(id * 7 + 1), 32); }
static void chain_of(uint64_t id, uint32_t chunk, uint8_t parent[32], uint8_t chain[32])
{
    uint32_t tokens[4096];
    root_of(id, chain);
    for (uint32_t c = 0; c <= chunk; c++) {
        for (uint32_t i = 0; i < given->layout.chunk_tokens; i++) tokens[i] = token(id, c * given->layout.chunk_tokens + i);
        memcpy(parent, chain, 32);
        qr_chain_node(parent, tokens, given->layout.chunk_tokens, chain);
    }
}
static uint64_t page(uint64_t id, uint32_t group, uint32_t block) { return id << 32 | (uint64_t)group << 24 | block; }

static void ask(uint64_t id, uint32_t start, uint32_t end_rows)
{
    static uint32_t tokens[1 << 17];
    static uint64_t pages[1 << 15];
    uint32_t size = given->layout.page_tokens, count = 0;
    for (uint32_t i = 0; i < end_rows; i++) tokens[i] = token(id, i);
    for (uint32_t g = 0; g < given->layout.group_count; g++)
        for (uint32_t b = start / size; b < qr_div_up(end_rows, size); b++) pages[count++] = page(id, g, b);
    qr_restore_t body = {.restore_id = id,
                         .request_id = 100 + id,
                         .tokens = {tokens, end_rows},
                         .start_rows = start,
                         .end_rows = end_rows,
                         .pages = {pages, count}};
    root_of(id, body.root.bytes);
    stand_say(stand, scheduler(), QR_MESSAGE_restore, &body);
}
static void cancel(uint64_t id) { SAY(stand, scheduler(), restore_cancel, .restore_id = id); }
static void leased(uint64_t key, uint64_t lease)
{
    SAY(stand, storage(), chunk_leased, .key = key, .lease = lease, .bytes = 5000 + lease, .trusted = 1);
}
static void not_leased(uint64_t key, uint32_t reason) { SAY(stand, storage(), chunk_leased, .key = key, .reason = reason); }
static void released(uint64_t lease) { SAY(stand, storage(), chunk_released, .lease = lease); }
static void uploaded(uint64_t key) { SAY(stand, transfer(), page_uploaded, .key = key, .bytes = 100, .queue_us = 3, .move_us = 10); }
static void not_uploaded(uint64_t key, uint32_t reason, uint8_t damage)
{
    SAY(stand, transfer(), page_uploaded, .key = key, .reason = reason, .damage = damage);
}
static uint64_t metric(uint32_t id)
{
    SAY(stand, http(), metrics_read, .version = 1);
    const qr_metrics_t *m = HEARD(stand, metrics);
    for (uint64_t i = 0; i < m->ids.count; i++)
        if (m->ids.data[i] == id) return m->values.data[i];
    fail_msg("no metric %u", id);
    return 0;
}
static void expect_restored(uint64_t id, uint32_t boundary, uint32_t reason)
{
    assert_int_equal(HEARD_COUNT(stand, restored), 1);
    assert_int_equal(HEARD(stand, restored)->restore_id, id);
    assert_int_equal(HEARD(stand, restored)->boundary, boundary);
    assert_int_equal(HEARD(stand, restored)->reason, reason);
    static const uint8_t none[32];
    assert_int_equal(memcmp(HEARD(stand, restored)->chain.bytes, none, 32) == 0, reason != 0); /* of the last chunk, if all are there */
}
/* Keys of the leases that the last message asked for. */
static uint32_t keys_asked(uint64_t keys[16])
{
    uint32_t count = HEARD_COUNT(stand, chunk_lease);
    for (uint32_t i = 0; i < count; i++) keys[i] = HEARD_NTH(stand, chunk_lease, i)->key;
    return count;
}

/* ---- rules ----------------------------------------------------------------------------------------------------------------------- */

static void test_a_restore_from_its_first_lease_to_its_last_release(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    uint64_t keys[16];
    ask(3, 0, 16);
    assert_int_equal(keys_asked(keys), 2); /* ahead of the uploads */
    stand->now_us += 7;                     /* both leases come so late */
    for (uint32_t c = 0; c < 2; c++) {
        chain_of(3, c, parent, chain);
        assert_memory_equal(HEARD_NTH(stand, chunk_lease, c)->chain.bytes, chain, 32);
        assert_int_equal(HEARD_NTH(stand, chunk_lease, c)->group, 0);
    }
    leased(keys[1], 71);
    const qr_page_upload_t *u = HEARD(stand, page_upload);
    assert_memory_equal(u->parent.bytes, parent, 32);
    assert_memory_equal(u->chain.bytes, chain, 32);
    assert_int_equal(u->bytes, 5071);
    assert_int_equal(u->start, 8);
    assert_int_equal(u->from_row, 8);
    assert_int_equal(u->tokens.count, CHUNK);
    assert_int_equal(u->tokens.data[0], token(3, 8));
    assert_int_equal(u->first_block, 2);
    assert_int_equal(u->pages.count, 2);
    assert_int_equal(u->pages.data[1], page(3, 0, 3));
    leased(keys[0], 70);
    assert_int_equal(HEARD(stand, page_upload)->start, 0);
    uploaded(keys[1]);
    assert_int_equal(HEARD(stand, chunk_release)->lease, 71);
    assert_int_equal(HEARD(stand, chunk_release)->damage, 0);
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    uploaded(keys[0]);
    expect_restored(3, 16, 0);
    assert_int_equal(HEARD(stand, restored)->bytes, 200);
    assert_int_equal(HEARD(stand, restored)->move_us, 20);
    assert_int_equal(HEARD(stand, restored)->queue_us, 6);
    released(71);
    released(70);
    assert_int_equal(metric(METRIC_restores_begun_total), 1);
    assert_int_equal(metric(METRIC_restored_rows_total), 16);
    assert_int_equal(metric(METRIC_restored_bytes_total), 200);
    assert_int_equal(metric(METRIC_restore_us_total), 20);
    assert_int_equal(metric(METRIC_restore_localise_us_total), 2 * 7);
    assert_int_equal(metric(METRIC_restores_open), 0);
}

static void test_at_most_two_uploads_and_eight_leases(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    given->layout.context_tokens = 128;
    again();
    ask(1, 0, 128);
    assert_int_equal(keys_asked(keys), QR_RESTORE_LEASES);
    for (uint32_t i = 0; i < 8; i++) {
        leased(keys[i], 10 + i);
        assert_int_equal(HEARD_COUNT(stand, page_upload), i < QR_RESTORE_UPLOADS);
        assert_int_equal(HEARD_COUNT(stand, chunk_lease), 0);
    }
    uploaded(keys[0]);
    assert_int_equal(HEARD(stand, page_upload)->start, 16);
    assert_int_equal(HEARD_COUNT(stand, chunk_lease), 0);
    released(10);
    assert_int_equal(HEARD_COUNT(stand, chunk_lease), 1); /* the place is free when the release is answered */
}

static void test_a_start_inside_a_chunk_and_large_pages(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 12, 24);
    assert_int_equal(keys_asked(keys), 2);
    leased(keys[0], 5);
    const qr_page_upload_t *u = HEARD(stand, page_upload);
    assert_int_equal(u->start, 8);
    assert_int_equal(u->from_row, 12);
    assert_int_equal(u->first_block, 3);
    assert_int_equal(u->pages.count, 1);
    assert_int_equal(u->pages.data[0], page(1, 0, 3));
    given->layout.page_tokens = 16; /* two chunks of a page */
    again();
    ask(1, 0, 24);
    assert_int_equal(keys_asked(keys), 3);
    leased(keys[1], 5);
    u = HEARD(stand, page_upload);
    assert_int_equal(u->from_row, 8);
    assert_int_equal(u->first_block, 0);
    assert_int_equal(u->pages.count, 1);
    leased(keys[2], 6);
    u = HEARD(stand, page_upload);
    assert_int_equal(u->first_block, 1);
    assert_int_equal(u->pages.count, 1);
    assert_int_equal(u->pages.data[0], page(1, 0, 1));
}

static void test_a_boundary_needs_every_group(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 16);
    assert_int_equal(keys_asked(keys), 4); /* both groups of both chunks: a committed load names every page of it */
    assert_int_equal(HEARD_NTH(stand, chunk_lease, 1)->group, 1);
    leased(keys[0], 1);
    leased(keys[1], 2);
    const qr_page_upload_t *u = HEARD(stand, page_upload);
    assert_int_equal(u->group, 1);
    assert_int_equal(u->pages.data[0], page(1, 1, 0));
    uploaded(keys[0]);
    not_leased(keys[3], QR_E_NOT_FOUND); /* the second chunk's window part: its first part is not wanted any more */
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    leased(keys[2], 3);
    assert_int_equal(HEARD(stand, chunk_release)->lease, 3);
    uploaded(keys[1]);
    expect_restored(1, 8, QR_E_NOT_FOUND);
    assert_int_equal(metric(METRIC_restores_missing_total), 1);
    again();
    ask(1, 0, 8); /* one group of two is no boundary */
    leased(keys_asked(keys) ? keys[0] : 0, 1);
    uploaded(keys[0]);
    not_leased(keys[1], QR_E_NOT_FOUND);
    expect_restored(1, 0, QR_E_NOT_FOUND);
}

static void test_what_goes_wrong_ends_it_there(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t reason, metric, damage;
    } cases[] = {{QR_E_IO, METRIC_restores_io_total, 0},          {QR_E_STALE, METRIC_restores_other_total, 0},
                 {QR_E_DIGEST, METRIC_restores_damaged_total, 1}, {QR_E_TRUNCATED, METRIC_restores_damaged_total, 1},
                 {QR_E_FORMAT, METRIC_restores_damaged_total, 1}, {QR_E_NOT_FOUND, METRIC_restores_missing_total, 0}};
    for (size_t i = 0; i < QR_COUNT(cases); i++) {
        uint64_t keys[16];
        again();
        ask(1, 0, 24);
        assert_int_equal(keys_asked(keys), 3);
        leased(keys[0], 1);
        leased(keys[1], 2);
        leased(keys[2], 3);
        not_uploaded(keys[1], cases[i].reason, (uint8_t)cases[i].damage);
        assert_int_equal(HEARD_COUNT(stand, restored), 0); /* the first still moves */
        assert_int_equal(HEARD_COUNT(stand, page_upload), 0);
        assert_int_equal(HEARD_COUNT(stand, chunk_release), 2); /* the failed one, and the third, which nobody wants */
        assert_int_equal(HEARD(stand, chunk_release)->lease, 2);
        assert_int_equal(HEARD(stand, chunk_release)->damage, cases[i].damage ? cases[i].reason : 0);
        uploaded(keys[0]);
        expect_restored(1, 8, cases[i].reason);
        assert_int_equal(metric(cases[i].metric), 1);
        assert_int_equal(metric(METRIC_restore_verify_failures_total), cases[i].damage);
    }
}

static void test_a_wrong_question_is_no_damage_and_damage_without_a_reason_no_success(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    leased(keys[0], 1);
    not_uploaded(keys[0], QR_E_IDENTITY, 0);
    assert_int_equal(HEARD(stand, chunk_release)->damage, 0); /* the file is another chunk's, and fine */
    expect_restored(1, 0, QR_E_IDENTITY);
    ask(2, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    leased(keys[0], 2);
    not_uploaded(keys[0], 0, 1);
    assert_int_equal(HEARD(stand, chunk_release)->damage, QR_E_DIGEST);
    expect_restored(2, 0, QR_E_DIGEST);
    assert_int_equal(metric(METRIC_restore_verify_failures_total), 1);
}

static void test_what_lies_in_memory(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 4, 24);
    assert_int_equal(keys_asked(keys), 3);
    SAY(stand, storage(), chunk_leased, .key = keys[0], .lease = 1, .bytes = 10, .trusted = 1, .kept = 9);
    assert_int_equal(HEARD(stand, page_upload)->kept, 9);
    assert_int_equal(HEARD(stand, page_upload)->keep, 0);
    uploaded(keys[0]);
    assert_int_equal(HEARD(stand, chunk_release)->kept, 0);
    SAY(stand, storage(), chunk_leased, .key = keys[1], .lease = 2, .bytes = 10, .trusted = 1, .keep = 5);
    assert_int_equal(HEARD(stand, page_upload)->keep, 5);
    uploaded(keys[1]);
    assert_int_equal(HEARD(stand, chunk_release)->kept, 1); /* it is there now */
    SAY(stand, storage(), chunk_leased, .key = keys[2], .lease = 3, .bytes = 10, .trusted = 1, .keep = 6);
    not_uploaded(keys[2], QR_E_IO, 0);
    assert_int_equal(HEARD(stand, chunk_release)->kept, 0);
    assert_int_equal(HEARD(stand, restored)->ram_rows, 4); /* rows 4 to 7 */
    assert_int_equal(HEARD(stand, restored)->ram_us, 10);
    assert_int_equal(HEARD(stand, restored)->move_us, 20);
    expect_restored(1, 16, QR_E_IO);
    assert_int_equal(metric(METRIC_restored_ram_rows_total), 4);
    ask(2, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    SAY(stand, storage(), chunk_leased, .key = keys[0], .lease = 4, .bytes = 10, .trusted = 1, .kept = 9);
    not_uploaded(keys[0], QR_E_DIGEST, 1);
    assert_int_equal(HEARD(stand, chunk_release)->damage, QR_E_DIGEST);
    assert_int_equal(metric(METRIC_restore_verify_failures_total), 0); /* of files; storage counts those of memory */
}

static void test_a_file_that_was_not_seen_whole_is(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 24);
    assert_int_equal(keys_asked(keys), 3);
    SAY(stand, storage(), chunk_leased, .key = keys[0], .lease = 1, .bytes = 10, .trusted = 0, .stamp.bytes[7] = 9);
    assert_int_equal(HEARD(stand, page_upload)->whole, 1);
    assert_int_equal(HEARD(stand, page_upload)->stamp.bytes[7], 9); /* for transfer, which opens it */
    uploaded(keys[0]);
    assert_int_equal(HEARD(stand, chunk_release)->trust, 1);
    leased(keys[1], 2);
    assert_int_equal(HEARD(stand, page_upload)->whole, 0);
    uploaded(keys[1]);
    assert_int_equal(HEARD(stand, chunk_release)->trust, 0); /* it is trusted already */
    SAY(stand, storage(), chunk_leased, .key = keys[2], .lease = 3, .bytes = 10, .trusted = 0);
    not_uploaded(keys[2], QR_E_IO, 0);
    assert_int_equal(HEARD(stand, chunk_release)->trust, 0);
    expect_restored(1, 16, QR_E_IO);
}

static void refuses(const qr_restore_t *body, uint32_t reason)
{
    stand_say(stand, scheduler(), QR_MESSAGE_restore, body);
    expect_restored(body->restore_id, body->start_rows, reason);
    assert_int_equal(stand->outbox.count, 1);
}

static void test_PI_05_a_partial_chunk_and_other_refusals(void **unused)
{
    (void)unused;
    static const uint32_t tokens[128] = {1, 2, 3};
    static const uint64_t pages[64] = {7};
    qr_restore_t fine = {.restore_id = 9, .tokens = {tokens, 16}, .end_rows = 16, .pages = {pages, 4}}, body;
    body = fine, body.end_rows = 10, body.tokens.count = 10, body.pages.count = 3;
    refuses(&body, QR_E_INVALID); /* rows 8 and 9 are no chunk */
    body = fine, body.start_rows = 16;
    refuses(&body, QR_E_INVALID);
    body = fine, body.start_rows = 2;
    refuses(&body, QR_E_INVALID);
    body = fine, body.tokens.count = 15;
    refuses(&body, QR_E_INVALID);
    body = fine, body.tokens.count = 24;
    refuses(&body, QR_E_INVALID);
    body = fine, body.pages.count = 3;
    refuses(&body, QR_E_INVALID);
    body = fine, body.pages.count = 5;
    refuses(&body, QR_E_INVALID);
    body = fine, body.end_rows = 72, body.tokens.count = 72, body.pages.count = 18;
    refuses(&body, QR_E_LIMIT);
    stand_say(stand, scheduler(), QR_MESSAGE_restore, &fine);
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    refuses(&fine, QR_E_IN_USE);
    for (uint64_t id = 1; id < LANES; id++) ask(id, 0, 8);
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    body = fine, body.restore_id = 99;
    refuses(&body, QR_E_BUSY);
    assert_int_equal(metric(METRIC_restores_refused_total), 10);
}

/* The client leaves while two chunks are on their way. */
static void test_PM_05_a_cancel_during_an_upload(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    for (uint32_t round = 0; round < 20; round++) { /* (a) both completions come late */
        ask(1, 0, 24);
        assert_int_equal(keys_asked(keys), 3);
        for (uint32_t i = 0; i < 3; i++) leased(keys[i], 10 + i);
        cancel(1);
        assert_int_equal(HEARD_COUNT(stand, restored), 0); /* two still move */
        assert_int_equal(HEARD(stand, chunk_release)->lease, 12);
        stand->now_us += 10000000; /* nor does time answer for them */
        stand->outbox.alarm_us = QR_NEVER_US;
        SAY(stand, streamer(), alarm, .due_us = stand->now_us);
        assert_int_equal(stand->outbox.count, 0);
        uploaded(keys[0]);
        assert_int_equal(HEARD_COUNT(stand, restored), 0);
        uploaded(keys[1]);
        expect_restored(1, 16, QR_E_CANCELLED);
        uploaded(keys[1]); /* (c) replayed */
        assert_int_equal(stand->outbox.count, 0);
        assert_int_equal(stand->outbox.notes[0].b, keys[1]);
        for (uint32_t i = 0; i < 3; i++) released(10 + i);
    }
    assert_int_equal(metric(METRIC_restores_cancelled_total), 20);
    ask(1, 0, 24); /* (b) one never completes: no answer, ever */
    assert_int_equal(keys_asked(keys), 3);
    leased(keys[0], 1);
    leased(keys[1], 2);
    cancel(1);
    uploaded(keys[0]);
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    assert_int_equal(stand->outbox.alarm_us, QR_NEVER_US);
    cancel(1); /* said again */
    assert_int_equal(stand->outbox.count, 0);
    uploaded(keys[1]);
    expect_restored(1, 16, QR_E_CANCELLED);
    leased(keys[2], 3); /* a lease that nobody wants any more */
    assert_int_equal(HEARD(stand, chunk_release)->lease, 3);
    released(1), released(2), released(3);
    cancel(1); /* of nobody */
    assert_int_equal(stand->outbox.count, 0);
}

static void test_a_cancel_before_anything_moves_is_answered_at_once(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 16);
    assert_int_equal(keys_asked(keys), 2);
    cancel(1);
    expect_restored(1, 0, QR_E_CANCELLED);
    not_leased(keys[1], QR_E_NOT_FOUND);
    leased(keys[0], 4);
    assert_int_equal(HEARD(stand, chunk_release)->lease, 4);
    assert_int_equal(HEARD_COUNT(stand, page_upload), 0);
}

static void test_a_deadline_waits_for_what_still_moves(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 24);
    assert_int_equal(keys_asked(keys), 3);
    leased(keys[0], 1);
    leased(keys[1], 2);
    assert_int_equal(stand->outbox.alarm_us, stand->now_us + 500000);
    assert_false(stand_alarm(stand, stand->now_us + 400000));
    uploaded(keys[0]);
    assert_true(stand_alarm(stand, stand->now_us + 100000)); /* of the third lease and of the second upload */
    assert_int_equal(HEARD_COUNT(stand, restored), 0);
    assert_int_equal(stand->outbox.notes[0].b, 1); /* one moves */
    assert_int_equal(stand->outbox.alarm_us, QR_NEVER_US);
    uploaded(keys[1]);
    expect_restored(1, 16, QR_E_DEADLINE);
    leased(keys[2], 3);
    assert_int_equal(HEARD(stand, chunk_release)->lease, 3);
    assert_int_equal(metric(METRIC_restores_late_total), 1);
    again();
    ask(2, 0, 8); /* a lease alone: nothing moves, so it is answered on time */
    assert_true(stand_alarm(stand, stand->now_us + 500000));
    expect_restored(2, 0, QR_E_DEADLINE);
}

static void test_who_waits_behind_uploads_that_hang_ends_too(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 16);
    assert_int_equal(keys_asked(keys), 2);
    leased(keys[0], 1);
    leased(keys[1], 2);
    ask(2, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    leased(keys[0], 3);
    assert_int_equal(HEARD_COUNT(stand, page_upload), 0);
    assert_true(stand_alarm(stand, stand->now_us + 500000));
    expect_restored(2, 0, QR_E_DEADLINE); /* the first is still written to */
    assert_int_equal(HEARD(stand, chunk_release)->lease, 3);
}

/* A transfer that takes longer than any lease would live: the file is given back after it, never before. */
static void test_RS_05_a_lease_outlives_its_upload(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    for (uint32_t how = 0; how < 3; how++) {
        again();
        ask(1, 0, 16);
        assert_int_equal(keys_asked(keys), 2);
        leased(keys[0], 1);
        leased(keys[1], 2);
        stand->now_us += 700000;
        stand->outbox.alarm_us = QR_NEVER_US;
        SAY(stand, streamer(), alarm, .due_us = stand->now_us);
        if (how == 1) cancel(1);
        if (how == 2) SAY(stand, mesh(), stop, .budget_us = 1000);
        assert_int_equal(HEARD_COUNT(stand, chunk_release) + HEARD_COUNT(stand, restored), 0);
        not_uploaded(keys[1], QR_E_DIGEST, 1); /* and what came of it is looked at, not assumed */
        assert_int_equal(HEARD(stand, chunk_release)->lease, 2);
        uploaded(keys[0]);
        assert_int_equal(HEARD(stand, chunk_release)->lease, 1);
        assert_int_equal(HEARD(stand, restored)->boundary, 8);
        assert_int_not_equal(HEARD(stand, restored)->reason, 0);
    }
}

/* Two restores that could each take every lease: neither waits for the other to end. */
static void test_PM_07_two_restores_take_turns(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    given->layout.context_tokens = 128;
    again();
    ask(1, 0, 128);
    assert_int_equal(keys_asked(keys), 8);
    ask(2, 0, 128);
    assert_int_equal(HEARD_COUNT(stand, chunk_lease), 0); /* all are taken */
    uint32_t of[3] = {0};
    for (uint32_t i = 0; i < 5; i++) {
        leased(keys[i], 20 + i);
        uploaded(keys[i]);
        released(20 + i);
        assert_int_equal(HEARD_COUNT(stand, chunk_lease), 1);
        uint8_t parent[32], chain[32];
        chain_of(2, of[2], parent, chain);
        bool second = memcmp(HEARD(stand, chunk_lease)->chain.bytes, chain, 32) == 0;
        of[second ? 2 : 1]++;
    }
    assert_int_equal(of[2], 4); /* half of them, as soon as they come back, and no more */
    assert_int_equal(of[1], 1);
}

static void test_a_long_prefix_is_hashed_in_pieces(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    given->layout.context_tokens = 65536;
    given->layout.chunk_tokens = 256;
    given->layout.page_tokens = 16;
    again();
    ask(1, 40960, 41216);
    assert_int_equal(stand->outbox.count, 0);
    uint32_t pieces = 0;
    while (HEARD_COUNT(stand, chunk_lease) == 0) {
        assert_int_equal(stand->outbox.alarm_us, stand->now_us);
        assert_true(stand_alarm(stand, stand->now_us));
        pieces++;
    }
    assert_int_equal(pieces, 2);
    chain_of(1, 160, parent, chain);
    assert_memory_equal(HEARD(stand, chunk_lease)->chain.bytes, chain, 32);
}

static void test_storage_that_is_gone_took_its_leases_along(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 32);
    assert_int_equal(keys_asked(keys), 4);
    for (uint32_t i = 0; i < 3; i++) leased(keys[i], 1 + i);
    SAY(stand, qr_address(NODE, 0, QR_ROLE_uplink, 0), link_down, .node = NODE + 1, .reason = 1); /* another node's */
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, qr_address(NODE, 0, QR_ROLE_uplink, 0), link_down, .node = NODE, .reason = 1);
    assert_int_equal(stand->outbox.count, 0); /* two still move */
    uploaded(keys[1]);
    assert_int_equal(stand->outbox.count, 0); /* there is nothing to give back */
    uploaded(keys[0]);
    expect_restored(1, 16, QR_E_PEER_DOWN);
    assert_int_equal(stand->outbox.count, 1);
}

static void test_drain_and_stop(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    char text[2048];
    qr_text_t out;
    ask(1, 0, 16);
    assert_int_equal(keys_asked(keys), 2);
    SAY(stand, mesh(), drain, .budget_us = 1000);
    assert_int_equal(stand->outbox.count, 0);
    ask(2, 0, 8);
    expect_restored(2, 0, QR_E_DRAINING);
    leased(keys[0], 1);
    assert_true(stand_alarm(stand, stand->now_us + 1000)); /* over its budget */
    assert_int_equal(HEARD(stand, drained)->open_count, 1);
    qr_text_init(&out, text, sizeof text);
    qr_restore_streamer_class.print(stand->state, given, &out);
    assert_non_null(strstr(text, "restore 1 rows 0 to 16, verified to 0"));
    assert_non_null(strstr(text, "open 1, leases asked 1, files waiting 0, moving 1, releasing 0"));
    SAY(stand, mesh(), stop, .budget_us = 5000);
    assert_int_equal(stand->outbox.count, 0);
    uploaded(keys[0]);
    expect_restored(1, 8, QR_E_DRAINING);
    assert_int_equal(HEARD_COUNT(stand, stopped), 0); /* a lease is still asked for */
    not_leased(keys[1], QR_E_NOT_FOUND);
    released(1);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    again();
    SAY(stand, mesh(), drain, .budget_us = 1000);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    again();
    ask(1, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    leased(keys[0], 1);
    SAY(stand, mesh(), stop, .budget_us = 5000);
    assert_true(stand_alarm(stand, stand->now_us + 5000));
    assert_int_equal(HEARD(stand, stopped)->reason, QR_E_DEADLINE);
    assert_int_equal(HEARD_COUNT(stand, restored), 0); /* it is still written to */
}

static void test_old_and_unknown_answers_change_nothing(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 8);
    assert_int_equal(keys_asked(keys), 1);
    uploaded(keys[0]);                                                                 /* not yet */
    leased(keys[0] + 1, 1);                                                            /* another place */
    leased(qr_handle(qr_handle_index(keys[0]), qr_handle_generation(keys[0]) + 1), 1); /* another use of it */
    leased(qr_handle(77, 1), 1);
    released(5);
    assert_int_equal(stand->outbox.count, 0);
    leased(keys[0], 1);
    assert_int_equal(HEARD_COUNT(stand, page_upload), 1);
    leased(keys[0], 1);
    assert_int_equal(stand->outbox.count, 0);
    assert_int_equal(stand->outbox.notes[0].a, QR_MESSAGE_chunk_leased);
    SAY(stand, scheduler(), tokens_taken, .request_ids = COLUMN64(1));
    assert_int_equal(stand->outbox.count, 0);
}

static void test_a_lease_without_a_file_is_none(void **unused)
{
    (void)unused;
    uint64_t keys[16];
    ask(1, 0, 16);
    assert_int_equal(keys_asked(keys), 2);
    SAY(stand, storage(), chunk_leased, .key = keys[1], .lease = 9, .bytes = 0);
    assert_int_equal(HEARD(stand, chunk_release)->lease, 9);
    SAY(stand, storage(), chunk_leased, .key = keys[0], .lease = 0, .bytes = 10);
    expect_restored(1, 0, QR_E_NOT_FOUND);
}

/* ---- twice 200,000 messages: RS-01 --------------------------------------------------------------------------------------------------- */

enum { RESTORES = 3, MESSAGES = 200000, OPEN_MAX = 32, PARTS_MAX = 16 };

/* What the scheduler knows of a restore, and what really is in its pages. */
typedef struct subject {
    bool open, cancelled;
    uint64_t id;
    uint32_t start, end_rows, uploads; /* open ones */
    bool tried[PARTS_MAX], verified[PARTS_MAX];
} subject_t;

typedef struct question {
    uint64_t key, lease;
    uint32_t subject, part; /* subject of an upload */
    uint32_t kind;          /* QR_MESSAGE_* of the ask; 0 = free */
} question_t;

typedef struct run {
    qr_prng_t prng;
    subject_t subjects[RESTORES];
    question_t questions[OPEN_MAX];
    uint64_t leases[OPEN_MAX]; /* held */
    bool moving[OPEN_MAX];     /* transfer reads the file of that lease */
    uint64_t next_id, next_lease, messages;
    uint64_t whole, early, lost, late, restarts, by_reason[QR_E_COUNT];
} run_t;

static uint32_t lease_place(const run_t *r, uint64_t lease)
{
    for (uint32_t i = 0; i < OPEN_MAX; i++)
        if (r->leases[i] == lease) return i;
    fail_msg("a lease that nobody has");
    return 0;
}
static void put_question(run_t *r, question_t q)
{
    uint32_t i = 0;
    while (r->questions[i].kind) i++;
    assert_true(i < OPEN_MAX);
    r->questions[i] = q;
}
static uint32_t questions_of(const run_t *r, uint32_t kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < OPEN_MAX; i++) count += r->questions[i].kind == kind;
    return count;
}

/* Whose file it is, by its chain: the chunk of one open restore. */
static uint32_t subject_of(const run_t *r, const qr_page_upload_t *u)
{
    for (uint32_t s = 0; s < RESTORES; s++)
        if (r->subjects[s].open && r->subjects[s].id == u->pages.data[0] >> 32) return s;
    fail_msg("an upload into pages of a restore that was answered");
    return 0;
}

static void saw_upload(run_t *r, const qr_page_upload_t *u)
{
    uint32_t index = subject_of(r, u), groups = given->layout.group_count, first;
    subject_t *s = &r->subjects[index];
    uint8_t parent[32], chain[32];
    chain_of(s->id, u->start / CHUNK, parent, chain);
    assert_memory_equal(u->parent.bytes, parent, 32);
    assert_memory_equal(u->chain.bytes, chain, 32);
    for (uint32_t i = 0; i < CHUNK; i++) assert_int_equal(u->tokens.data[i], token(s->id, u->start + i));
    first = u->start > s->start ? u->start : s->start;
    assert_int_equal(u->from_row, first);
    assert_int_equal(u->first_block, first / PAGE);
    assert_int_equal(u->pages.count, qr_div_up(u->start + CHUNK, PAGE) - first / PAGE);
    for (uint32_t i = 0; i < u->pages.count; i++) assert_int_equal(u->pages.data[i], page(s->id, u->group, first / PAGE + i));
    uint32_t part = (u->start / CHUNK) * groups + u->group, place = lease_place(r, u->bytes);
    assert_false(s->tried[part]);
    assert_false(s->cancelled);
    assert_false(r->moving[place]);
    s->tried[part] = true;
    s->uploads++;
    r->moving[place] = true;
    put_question(r, (question_t){u->key, u->bytes, index, part, QR_MESSAGE_page_upload});
    assert_true(questions_of(r, QR_MESSAGE_page_upload) <= QR_RESTORE_UPLOADS);
}

static void saw_restored(run_t *r, const qr_restored_t *b)
{
    subject_t *s = NULL;
    for (uint32_t i = 0; i < RESTORES; i++)
        if (r->subjects[i].open && r->subjects[i].id == b->restore_id) s = &r->subjects[i];
    assert_non_null(s); /* answered once */
    assert_int_equal(s->uploads, 0);
    assert_true(b->boundary >= s->start && b->boundary <= s->end_rows);
    assert_true(b->boundary == s->start || b->boundary % CHUNK == 0);
    assert_int_equal(b->reason == 0, b->boundary == s->end_rows);
    uint32_t groups = given->layout.group_count;
    for (uint32_t part = s->start / CHUNK * groups; part < b->boundary / CHUNK * groups && b->boundary > s->start; part++)
        assert_true(s->verified[part]);
    s->open = false;
    r->by_reason[b->reason]++;
    r->whole += b->reason == 0;
    r->early += b->reason != 0 && b->boundary > s->start;
}

static void look(run_t *r)
{
    r->messages += 1 + stand->outbox.count;
    for (uint32_t i = 0; i < stand->outbox.count; i++) {
        const qr_message_t *m = &stand->messages[i];
        switch (m->type) {
        case QR_MESSAGE_chunk_lease:
            put_question(r, (question_t){m->body.chunk_lease.key, 0, 0, 0, QR_MESSAGE_chunk_lease});
            assert_true(questions_of(r, QR_MESSAGE_chunk_lease) <= QR_RESTORE_LEASES);
            break;
        case QR_MESSAGE_chunk_release: {
            uint32_t place = lease_place(r, m->body.chunk_release.lease);
            assert_false(r->moving[place]); /* RS-05 */
            r->leases[place] = 0;
            put_question(r, (question_t){0, m->body.chunk_release.lease, 0, 0, QR_MESSAGE_chunk_release});
            break;
        }
        case QR_MESSAGE_page_upload: saw_upload(r, &m->body.page_upload); break;
        case QR_MESSAGE_restored: saw_restored(r, &m->body.restored); break;
        default: fail_msg("it said %s", qr_schema_find(m->type)->name);
        }
    }
}

static void run_ask(run_t *r)
{
    for (uint32_t i = 0; i < RESTORES; i++) {
        subject_t *s = &r->subjects[i];
        if (s->open) continue;
        uint32_t end_rows = CHUNK * (uint32_t)qr_prng_between(&r->prng, 1, TOKENS_MAX / CHUNK);
        *s = (subject_t){.open = true, .id = ++r->next_id, .end_rows = end_rows};
        s->start = PAGE * (uint32_t)qr_prng_below(&r->prng, end_rows / PAGE);
        ask(s->id, s->start, end_rows);
        look(r);
        return;
    }
}

static void answer_upload(run_t *r, question_t q)
{
    subject_t *s = &r->subjects[q.subject];
    static const uint32_t bad[] = {QR_E_IO, QR_E_DIGEST, QR_E_IDENTITY, QR_E_STALE, QR_E_TRUNCATED};
    uint32_t reason = qr_prng_one_in(&r->prng, 25) ? bad[qr_prng_below(&r->prng, QR_COUNT(bad))] : 0;
    s->uploads--;
    s->verified[q.part] = reason == 0;
    for (uint32_t i = 0; i < OPEN_MAX; i++)
        if (r->leases[i] == q.lease) r->moving[i] = false;
    SAY(stand, transfer(), page_uploaded, .key = q.key, .reason = reason, .damage = reason && qr_prng_one_in(&r->prng, 2), .bytes = 9);
}

/* Anyone who was asked answers, in any order. */
static void run_answer(run_t *r)
{
    uint32_t i = (uint32_t)qr_prng_below(&r->prng, OPEN_MAX);
    question_t q = r->questions[i];
    if (!q.kind) return;
    r->questions[i].kind = 0;
    if (q.kind == QR_MESSAGE_page_upload) {
        answer_upload(r, q);
    } else if (q.kind == QR_MESSAGE_chunk_release) {
        released(q.lease);
    } else if (qr_prng_one_in(&r->prng, 30)) {
        not_leased(q.key, qr_prng_one_in(&r->prng, 2) ? QR_E_NOT_FOUND : QR_E_IO);
    } else {
        uint32_t place = 0;
        while (r->leases[place]) place++;
        r->leases[place] = ++r->next_lease;
        SAY(stand, storage(), chunk_leased, .key = q.key, .lease = r->next_lease, .bytes = r->next_lease,
            .trusted = (uint8_t)qr_prng_below(&r->prng, 2));
    }
    look(r);
}

static void run_time(run_t *r)
{
    uint64_t pass_us = qr_prng_one_in(&r->prng, 6) ? 400000 : qr_prng_below(&r->prng, 3000);
    if (stand_alarm(stand, stand->now_us + pass_us)) {
        r->late++;
        look(r);
    }
}

/* Storage dies: its questions are closed and its leases are gone; what transfer reads it still reads. */
static void run_lose_storage(run_t *r)
{
    r->lost++;
    for (uint32_t i = 0; i < OPEN_MAX; i++) {
        question_t *q = &r->questions[i];
        if (q->kind != QR_MESSAGE_page_upload) q->kind = 0;
        r->leases[i] = 0;
        r->moving[i] = false;
    }
    SAY(stand, mesh(), link_down, .node = NODE, .reason = 1);
    look(r);
}

static void run_cancel(run_t *r)
{
    subject_t *s = &r->subjects[qr_prng_below(&r->prng, RESTORES)];
    if (!s->open || s->cancelled) return;
    s->cancelled = true;
    cancel(s->id);
    look(r);
}

static void run_stale(run_t *r)
{
    uint64_t key = qr_handle((uint32_t)qr_prng_below(&r->prng, 10), 0x40000000); /* a generation that was never used */
    if (qr_prng_one_in(&r->prng, 2))
        uploaded(key);
    else
        leased(key, 1);
    assert_int_equal(stand->outbox.count, 0);
    r->messages++;
}

static void random_run(uint64_t seed)
{
    run_t *r = calloc(1, sizeof *r);
    qr_prng_init(&r->prng, seed);
    while (r->messages < MESSAGES) {
        uint64_t what = qr_prng_below(&r->prng, 1000);
        if (what < 150)
            run_ask(r);
        else if (what < 850)
            run_answer(r);
        else if (what < 870)
            run_time(r);
        else if (what < 880)
            run_cancel(r);
        else if (what < 900)
            run_stale(r);
        else if (what == 999 && qr_prng_one_in(&r->prng, 2))
            run_lose_storage(r);
    }
    for (uint32_t i = 0; i < 100000 && (questions_of(r, 0) < OPEN_MAX || r->subjects[0].open || r->subjects[1].open || r->subjects[2].open);
         i++)
        run_answer(r);
    for (uint32_t i = 0; i < RESTORES; i++) assert_false(r->subjects[i].open);
    for (uint32_t i = 0; i < OPEN_MAX; i++) assert_int_equal(r->leases[i], 0); /* every lease was given back */
    assert_int_equal(questions_of(r, 0), OPEN_MAX);
    assert_int_equal(metric(METRIC_restores_open), 0);
    assert_true(r->whole > 1000 && r->early > 500 && r->lost > 20 && r->late > 50);
    assert_true(r->by_reason[QR_E_CANCELLED] > 100 && r->by_reason[QR_E_DEADLINE] > 50 && r->by_reason[QR_E_NOT_FOUND] > 100 &&
                r->by_reason[QR_E_IDENTITY] > 50 && r->by_reason[QR_E_PEER_DOWN] > 10);
    print_message("%llu messages: %llu restores whole, %llu in part, %llu too late, %llu losses of storage\n",
                  (unsigned long long)r->messages, (unsigned long long)r->whole, (unsigned long long)r->early,
                  (unsigned long long)r->by_reason[QR_E_DEADLINE], (unsigned long long)r->lost);
    free(r);
}
static void test_RS_01_restores_at_once_do_not_mix(void **unused)
{
    (void)unused;
    random_run(31);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
#define TEST_TWO(name) cmocka_unit_test_setup_teardown(name, begin_two_groups, end)
    const struct CMUnitTest tests[] = {
        TEST(test_a_restore_from_its_first_lease_to_its_last_release),
        TEST(test_at_most_two_uploads_and_eight_leases),
        TEST(test_a_start_inside_a_chunk_and_large_pages),
        TEST_TWO(test_a_boundary_needs_every_group),
        TEST(test_what_goes_wrong_ends_it_there),
        TEST(test_a_wrong_question_is_no_damage_and_damage_without_a_reason_no_success),
        TEST(test_what_lies_in_memory),
        TEST(test_a_file_that_was_not_seen_whole_is),
        TEST(test_PI_05_a_partial_chunk_and_other_refusals),
        TEST(test_PM_05_a_cancel_during_an_upload),
        TEST(test_a_cancel_before_anything_moves_is_answered_at_once),
        TEST(test_a_deadline_waits_for_what_still_moves),
        TEST(test_who_waits_behind_uploads_that_hang_ends_too),
        TEST(test_RS_05_a_lease_outlives_its_upload),
        TEST(test_PM_07_two_restores_take_turns),
        TEST(test_a_long_prefix_is_hashed_in_pieces),
        TEST(test_storage_that_is_gone_took_its_leases_along),
        TEST(test_drain_and_stop),
        TEST(test_old_and_unknown_answers_change_nothing),
        TEST(test_a_lease_without_a_file_is_none),
        TEST(test_RS_01_restores_at_once_do_not_mix),
        TEST_TWO(test_RS_01_restores_at_once_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
