/* link: qr_actor_checkpoint_writer qr_actor_capture_value qr_actor_catalog_batch qr_actor_decisions qr_schema */
/* The checkpoint writer by hand, then twice 200,000 messages with a storage, transfer, page_manager and catalog writer that are slow, fail,
 * lose links and answer in any order. */
#include "tests/unit/stand.h"

#include "actors/catalog_batch.h"
#include "actors/checkpoint_writer.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};
enum { NODE = 1, OTHER = 2, CHUNK = 8, PAGE = 4, EPOCH = 5, TOKENS_MAX = 64 };

static uint64_t writer(void) { return qr_address(NODE, 1, QR_ROLE_checkpoint_writer, 0); }
static uint64_t page_manager(void) { return qr_address(NODE, 1, QR_ROLE_page_manager, 0); }
static uint64_t transfer(void) { return qr_address(NODE, 1, QR_ROLE_transfer, 0); }
static uint64_t storage(void) { return qr_address(NODE, 0, QR_ROLE_storage, 0); }
static uint64_t catalog(void) { return qr_address(OTHER, 0, QR_ROLE_catalog_writer, 0); }
static uint64_t mesh(void) { return qr_address(NODE, 0, QR_ROLE_mesh, 0); }
static uint64_t uplink(void) { return qr_address(NODE, 0, QR_ROLE_uplink, 0); }
static uint64_t http(void) { return qr_address(NODE, 0, QR_ROLE_http, 0); }

static qr_given_t *given;
static stand_t *stand;

static void boot(void)
{
    stand = stand_new(&qr_checkpoint_writer_class, given, writer());
    stand->outbox.alarm_us = QR_NEVER_US;
    SAY(stand, mesh(), start, .epoch = EPOCH, .seed = 1, .partners = COLUMN64(storage(), catalog()));
    assert_int_equal(HEARD(stand, ready)->reason, 0);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 0);
    SAY(stand, uplink(), link_up, .node = OTHER, .node_epoch = 1);
    assert_int_equal(stand->outbox.count, 0);
}
static int begin(void **unused)
{
    (void)unused;
    given = stand_given();
    given->params.capture_max_ms = 500;
    memset(given->layout.fingerprint.bytes, 9, 32);
    boot();
    return 0;
}
static int begin_two_groups(void **unused)
{
    (void)unused;
    given = stand_given();
    given->params.capture_max_ms = 500;
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

static void capture(uint64_t id, uint32_t start, uint32_t rows)
{
    static uint32_t tokens[1 << 17];
    for (uint32_t i = 0; i < rows; i++) tokens[i] = token(id, i);
    qr_capture_t body = {.capture_id = id, .start_rows = start, .tokens = {tokens, rows}};
    root_of(id, body.scope.bytes);
    stand_say(stand, page_manager(), QR_MESSAGE_capture, &body);
}
static uint64_t facts(void) { return qr_address(NODE, 0, QR_ROLE_facts, 0); }
/* A save wants these rows. */
static void want(uint64_t id, uint32_t rows)
{
    uint32_t tokens[TOKENS_MAX];
    for (uint32_t i = 0; i < rows; i++) tokens[i] = token(id, i);
    qr_capture_t body = {.capture_id = id, .tokens = {tokens, rows}, .wanted = 1};
    root_of(id, body.scope.bytes);
    stand_say(stand, facts(), QR_MESSAGE_capture, &body);
}
static void found(uint32_t depth) { SAY(stand, storage(), chunk_found, .key = HEARD(stand, chunk_find)->key, .depth = depth); }
/* Pages of the chunk at row `start` in every group: block b of group g is page 100 * g + b + 1. Group `gone` lacks its first block. */
static void pinned_without(uint64_t key, uint64_t lease, uint32_t start, uint32_t gone)
{
    uint32_t counts[QR_GROUPS_MAX], firsts[QR_GROUPS_MAX], n = 0, size = given->layout.page_tokens;
    uint64_t pages[64];
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t first = start / size + (g == gone), last = (uint32_t)qr_div_up(start + given->layout.chunk_tokens, size);
        firsts[g] = first;
        counts[g] = last - first;
        for (uint32_t b = first; b < last; b++) pages[n++] = 100 * g + b + 1;
    }
    SAY(stand, page_manager(), pages_pinned, .holder_key = key, .lease = lease, .group_counts = {counts, given->layout.group_count},
        .first_blocks = {firsts, given->layout.group_count}, .pages = {pages, n});
}
static void pinned(uint64_t key, uint64_t lease, uint32_t start) { pinned_without(key, lease, start, QR_GROUPS_MAX); }
static void not_pinned(uint64_t key, uint32_t reason) { SAY(stand, page_manager(), pages_pinned, .holder_key = key, .reason = reason); }
static void unpinned(uint64_t lease) { SAY(stand, page_manager(), pages_unpinned, .lease = lease); }
static void downloaded(uint64_t key) { SAY(stand, transfer(), page_downloaded, .key = key, .bytes = 2048, .move_us = 1); }
static void written(uint64_t key, uint8_t content)
{
    SAY(stand, storage(), chunk_written, .key = key, .content = {{content}}, .bytes = 6000, .write_us = 5);
}
static void not_written(uint64_t key, uint32_t reason, uint64_t shortfall)
{
    SAY(stand, storage(), chunk_written, .key = key, .reason = reason, .shortfall_bytes = shortfall);
}
static void committed(uint64_t sequence) { SAY(stand, catalog(), publish_committed, .sequence = sequence, .tx = 70 + sequence); }
static void refused(uint64_t sequence, uint32_t reason, uint32_t after_ms)
{
    SAY(stand, catalog(), publish_refused, .sequence = sequence, .reason = reason, .retry_after_ms = after_ms);
}
static void dropped(uint64_t key) { SAY(stand, storage(), chunk_dropped, .key = key, .bytes = 6000); }
static uint64_t metric(uint32_t id)
{
    SAY(stand, http(), metrics_read, .version = 1);
    const qr_metrics_t *m = HEARD(stand, metrics);
    for (uint64_t i = 0; i < m->ids.count; i++)
        if (m->ids.data[i] == id) return m->values.data[i];
    fail_msg("no metric %u", id);
    return 0;
}
static void expect_captured(uint64_t id, uint32_t reason, uint32_t durable_rows)
{
    assert_int_equal(HEARD_COUNT(stand, captured), 1);
    assert_int_equal(HEARD(stand, captured)->capture_id, id);
    assert_int_equal(HEARD(stand, captured)->reason, reason);
    assert_int_equal(HEARD(stand, captured)->durable_rows, durable_rows);
}
/* From the pin that was just asked for to the write that is asked for (one group). Returns its key. */
static uint64_t to_write(uint32_t start)
{
    pinned(HEARD(stand, pages_pin)->holder_key, 900 + start, start);
    downloaded(HEARD(stand, page_download)->key);
    uint64_t key = HEARD(stand, chunk_write)->key;
    unpinned(900 + start);
    return key;
}
/* A capture of one chunk up to its write. */
static uint64_t capture_to_write(uint64_t id)
{
    capture(id, 0, 8);
    found(0);
    return to_write(0);
}
/* The publish that was just said; the catalog would take it. */
static const qr_publish_t *heard_publish(uint64_t sequence, uint32_t changes)
{
    const qr_publish_t *p = HEARD(stand, publish);
    qr_catalog_changes_t c = QR_CATALOG_CHANGES(p);
    uint32_t count;
    assert_int_equal(p->sequence, sequence);
    assert_int_equal(p->node_epoch, EPOCH);
    assert_memory_equal(p->fingerprint.bytes, given->layout.fingerprint.bytes, 32);
    assert_int_equal(p->chunk_tokens, CHUNK);
    assert_int_equal(p->windows.count, given->layout.group_count);
    assert_true(qr_catalog_changes_even(&c, &count));
    assert_int_equal(count, changes);
    assert_true(qr_catalog_changes_valid(&c, 0, count, p->chunk_tokens, (uint32_t)p->windows.count));
    return p;
}

/* ---- rules ----------------------------------------------------------------------------------------------------------------------- */

static void test_a_capture_from_its_question_to_its_publication(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    capture(3, 8, 24);
    const qr_chunk_find_t *f = HEARD(stand, chunk_find);
    assert_int_equal(f->chains.count, 3 * 32);
    for (uint32_t c = 0; c < 3; c++) {
        chain_of(3, c, parent, chain);
        assert_memory_equal(f->chains.data + 32ull * c, chain, 32);
    }
    found(1);
    const qr_pages_pin_t *p = HEARD(stand, pages_pin);
    root_of(3, parent);
    assert_memory_equal(p->scope.bytes, parent, 32);
    assert_int_equal(p->tokens.count, 16);
    assert_int_equal(p->tokens.data[15], token(3, 15));
    assert_int_equal(p->start_rows, 8);
    pinned(p->holder_key, 41, 8);
    const qr_page_download_t *d = HEARD(stand, page_download);
    assert_int_equal(d->slot, 0);
    assert_int_equal(d->start, 8);
    assert_int_equal(d->rows, 8);
    assert_int_equal(d->first_block, 2);
    assert_int_equal(d->pages.count, 2);
    assert_int_equal(d->pages.data[0], 3);
    downloaded(d->key);
    assert_int_equal(HEARD(stand, pages_unpin)->lease, 41); /* as soon as the bytes are ours */
    const qr_chunk_write_t *w = HEARD(stand, chunk_write);
    chain_of(3, 1, parent, chain);
    assert_memory_equal(w->parent.bytes, parent, 32);
    assert_memory_equal(w->chain.bytes, chain, 32);
    assert_int_equal(w->start, 8);
    assert_int_equal(w->tokens.count, 8);
    assert_int_equal(w->tokens.data[0], token(3, 8));
    uint64_t key = w->key;
    unpinned(41);
    assert_int_equal(stand->outbox.count, 0);
    written(key, 77);
    const qr_publish_t *u = heard_publish(1, 3);
    assert_int_equal(u->kinds.data[0], QR_CATALOG_NODE);
    assert_int_equal(u->kinds.data[1], QR_CATALOG_PART);
    assert_int_equal(u->kinds.data[2], QR_CATALOG_REPLICA);
    assert_int_equal(u->tiers.data[2], QR_TIER_SSD);
    assert_memory_equal(u->chains.data, chain, 32);
    assert_memory_equal(u->digests.data, parent, 32);
    assert_int_equal(u->digests.data[32], 77);
    assert_int_equal(u->sizes.data[1], 6000);
    assert_int_equal(u->starts.data[0], 8);
    assert_int_equal(u->counts.data[0], 8);
    assert_int_equal(stand->outbox.count, 1);
    committed(1);
    assert_int_equal(HEARD_COUNT(stand, captured), 0);
    assert_memory_equal(HEARD(stand, chunk_find)->published.bytes, chain, 32);
    chain_of(3, 2, parent, chain);
    assert_int_equal(HEARD(stand, chunk_find)->chains.count, 32);
    assert_memory_equal(HEARD(stand, chunk_find)->chains.data, chain, 32);
    found(0);
    assert_int_equal(HEARD(stand, pages_pin)->start_rows, 16);
    written(to_write(16), 78);
    (void)heard_publish(2, 3);
    committed(2);
    expect_captured(3, 0, 24);
    assert_int_equal(metric(METRIC_captures_total), 1);
    assert_int_equal(metric(METRIC_captures_done_total), 1);
    assert_int_equal(metric(METRIC_captured_rows_total), 16);
    assert_int_equal(metric(METRIC_captured_bytes_total), 12000);
    assert_int_equal(metric(METRIC_captures_open), 0);
    assert_int_equal(metric(METRIC_capture_download_kib_ns), 500);
    assert_int_equal(metric(METRIC_capture_write_kib_ns), 1000);
}

static void test_what_is_durable_is_not_written_again(void **unused)
{
    (void)unused;
    capture(3, 0, 24);
    found(3);
    expect_captured(3, 0, 24);
    assert_int_equal(stand->outbox.count, 1);
    capture(3, 0, 16);
    found(99); /* more than was asked */
    expect_captured(3, 0, 16);
}

/* A chunk that is gone before others of its chain that are still there: they are not moved again. */
static void test_a_gap_is_filled_and_no_more(void **unused)
{
    (void)unused;
    capture(3, 0, 32);
    found(1);
    written(to_write(8), 1);
    committed(1);
    found(1);
    assert_int_equal(HEARD(stand, pages_pin)->start_rows, 24);
    written(to_write(24), 1);
    committed(2);
    expect_captured(3, 0, 32);
    assert_int_equal(metric(METRIC_captured_rows_total), 16);
}

static void test_a_first_node_begins_at_token_0(void **unused)
{
    (void)unused;
    static const uint8_t zero[32];
    written(capture_to_write(1), 7);
    assert_memory_equal(heard_publish(1, 3)->digests.data, zero, 32);
}

static void refuses(const qr_capture_t *body, uint32_t reason)
{
    stand_say(stand, page_manager(), QR_MESSAGE_capture, body);
    expect_captured(body->capture_id, reason, 0);
    assert_int_equal(stand->outbox.count, 1);
}

static void test_PI_05_a_partial_chunk_and_other_refusals(void **unused)
{
    (void)unused;
    static const uint32_t tokens[128] = {1, 2, 3};
    qr_capture_t fine = {.capture_id = 9, .tokens = {tokens, 16}}, body;
    body = fine, body.tokens.count = 10; /* rows 8 and 9 are no chunk */
    refuses(&body, QR_E_INVALID);
    body = fine, body.tokens.count = 0;
    refuses(&body, QR_E_INVALID);
    body = fine, body.start_rows = 4;
    refuses(&body, QR_E_INVALID);
    body = fine, body.start_rows = 16;
    refuses(&body, QR_E_INVALID);
    body = fine, body.tokens.count = 72;
    refuses(&body, QR_E_LIMIT);
    for (uint64_t i = 0; i < QR_CAPTURES_MAX; i++) {
        body = fine, body.capture_id = i;
        stand_say(stand, page_manager(), QR_MESSAGE_capture, &body);
        assert_int_equal(HEARD_COUNT(stand, captured), 0);
    }
    refuses(&fine, QR_E_BUSY);
    assert_int_equal(metric(METRIC_captures_busy_total), 1);
    assert_int_equal(metric(METRIC_captures_other_total), 5);
    again();
    SAY(stand, uplink(), link_down, .node = OTHER, .reason = 1);
    refuses(&fine, QR_E_PEER_DOWN);
    SAY(stand, uplink(), link_up, .node = OTHER, .node_epoch = 2);
    SAY(stand, mesh(), drain, .budget_us = 1000);
    refuses(&fine, QR_E_DRAINING);
    stand_destroy(stand);
    stand = stand_new(&qr_checkpoint_writer_class, given, writer());
    SAY(stand, mesh(), start, .epoch = EPOCH, .seed = 1); /* no catalog writer in the mesh */
    refuses(&fine, QR_E_UNSUPPORTED);
}

static void test_captures_are_served_in_order(void **unused)
{
    (void)unused;
    for (uint64_t id = 1; id <= 8; id++) capture(id, 0, 8);
    SAY(stand, storage(), chunk_found, .key = qr_handle(0, 1), .depth = 1);
    for (uint64_t id = 1; id <= 8; id++) {
        expect_captured(id, 0, 8);
        if (id < 8) found(1);
    }
}

static void test_what_costs_more_than_it_saves_is_skipped(void **unused)
{
    (void)unused;
    given->params.reuse_permille = 0;
    capture(1, 0, 16);
    found(1);
    expect_captured(1, QR_E_WORTHLESS, 8);
    given->params.reuse_permille = 1000;
    given->params.recompute_row_ns = 1000; /* 8 rows of 512 bytes in all: 8,000 against 2,000 */
    uint64_t key = capture_to_write(2);
    SAY(stand, storage(), chunk_written, .key = key, .content = {{1}}, .bytes = 6000, .write_us = 500); /* 100,000 ns a KiB */
    committed(1);
    expect_captured(2, 0, 8);
    capture(3, 0, 64); /* 4 KiB */
    found(0);
    expect_captured(3, QR_E_WORTHLESS, 0);
    assert_int_equal(metric(METRIC_captures_worthless_total), 2);
}

static void test_what_is_wanted_is_not_judged(void **unused)
{
    (void)unused;
    given->params.reuse_permille = 0;
    want(1, 8);
    found(0);
    assert_int_equal(HEARD_COUNT(stand, captured), 0);
    written(to_write(0), 1);
    committed(1);
    expect_captured(1, 0, 8);
    assert_int_equal(stand->messages[0].to, facts());
}

static void test_what_is_wanted_goes_first_and_has_places_of_its_own(void **unused)
{
    (void)unused;
    for (uint64_t id = 1; id <= 8; id++) capture(id, 0, 8); /* 1 is under way, the others wait: no place is left */
    for (uint64_t id = 101; id <= 100 + QR_CONTINUATION_ASKS; id++) {
        want(id, 8);
        assert_int_equal(HEARD_COUNT(stand, captured), 0);
    }
    want(99, 8);
    expect_captured(99, QR_E_BUSY, 0);
    capture(98, 0, 8);
    expect_captured(98, QR_E_BUSY, 0);
    SAY(stand, storage(), chunk_found, .key = qr_handle(0, 1), .depth = 1);
    expect_captured(1, 0, 8);
    for (uint64_t id = 101; id <= 100 + QR_CONTINUATION_ASKS; id++) {
        found(1);
        expect_captured(id, 0, 8);
    }
    for (uint64_t id = 2; id <= 8; id++) {
        found(1);
        expect_captured(id, 0, 8);
    }
}

static void test_pages_that_are_gone_end_it(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t reason, answer, metric;
    } cases[] = {{QR_E_NOT_FOUND, QR_E_NOT_FOUND, METRIC_captures_gone_total},
                 {QR_E_BUSY, QR_E_BUSY, METRIC_captures_busy_total},
                 {QR_E_SHORTFALL, QR_E_BUSY, METRIC_captures_busy_total},
                 {QR_E_LIMIT, QR_E_LIMIT, METRIC_captures_other_total}};
    for (size_t i = 0; i < QR_COUNT(cases); i++) {
        again();
        capture(1, 0, 24);
        found(1);
        not_pinned(HEARD(stand, pages_pin)->holder_key, cases[i].reason);
        expect_captured(1, cases[i].answer, 8);
        assert_int_equal(stand->outbox.count, 1);
        assert_int_equal(metric(cases[i].metric), 1);
    }
}

static void test_a_window_that_moved_on_ends_it(void **unused)
{
    (void)unused;
    capture(1, 0, 16);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 1, 0); /* group 0 */
    downloaded(HEARD(stand, page_download)->key);
    uint64_t key = HEARD(stand, chunk_write)->key;
    pinned_without(HEARD(stand, pages_pin)->holder_key, 2, 0, 1); /* of group 1 the first page has left */
    expect_captured(1, QR_E_NOT_FOUND, 0);
    assert_int_equal(HEARD(stand, pages_unpin)->lease, 2);
    assert_int_equal(HEARD_COUNT(stand, page_download), 0);
    capture(2, 0, 8); /* waits until the write has ended: its slot is storage's */
    assert_int_equal(stand->outbox.count, 0);
    unpinned(1), unpinned(2);
    written(key, 1);
    assert_int_equal(HEARD_COUNT(stand, publish), 0); /* half a node */
    assert_int_equal(HEARD_COUNT(stand, chunk_find), 1);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 3, 0);
    SAY(stand, page_manager(), pages_pinned, .holder_key = 12345, .lease = 4); /* of nobody */
    assert_int_equal(stand->outbox.count, 0);
}

static void test_pins_that_do_not_add_up_are_given_back(void **unused)
{
    (void)unused;
    for (uint32_t how = 0; how < 4; how++) {
        again();
        capture(1, 0, 8);
        found(0);
        uint64_t key = HEARD(stand, pages_pin)->holder_key;
        if (how == 0) SAY(stand, page_manager(), pages_pinned, .holder_key = key, .lease = 6);
        if (how == 1)
            SAY(stand, page_manager(), pages_pinned, .holder_key = key, .lease = 6, .group_counts = COLUMN32(3),
                .first_blocks = COLUMN32(0), .pages = COLUMN64(1, 2));
        if (how == 2)
            SAY(stand, page_manager(), pages_pinned, .holder_key = key, .lease = 6, .group_counts = COLUMN32(1),
                .first_blocks = COLUMN32(0), .pages = COLUMN64(1));
        if (how == 3)
            SAY(stand, page_manager(), pages_pinned, .holder_key = key, .lease = 6, .group_counts = COLUMN32(2),
                .first_blocks = COLUMN32(1), .pages = COLUMN64(1, 2));
        expect_captured(1, how < 2 ? QR_E_INVALID : QR_E_NOT_FOUND, 0);
        assert_int_equal(HEARD(stand, pages_unpin)->lease, 6);
        assert_int_equal(stand->outbox.count, 2);
    }
}

static void test_a_download_that_fails_gives_its_pin_back(void **unused)
{
    (void)unused;
    capture(1, 0, 8);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 1, 0);
    SAY(stand, transfer(), page_downloaded, .key = HEARD(stand, page_download)->key, .reason = QR_E_DEVICE);
    expect_captured(1, QR_E_DEVICE, 0);
    assert_int_equal(HEARD(stand, pages_unpin)->lease, 1);
    assert_int_equal(stand->outbox.count, 2);
    unpinned(1);
    (void)capture_to_write(2);
}

/* What storage did not write is not published, nor is anything that continues it. */
static void test_RS_03_a_failed_write_is_not_published(void **unused)
{
    (void)unused;
    static const uint32_t reasons[] = {QR_E_IO, QR_E_NO_SPACE, QR_E_FORMAT};
    for (uint32_t i = 0; i < 4; i++) {
        again();
        capture(1, 0, 24);
        found(1);
        uint64_t key = to_write(8);
        if (i < 3)
            not_written(key, reasons[i], 0);
        else
            SAY(stand, storage(), chunk_written, .key = key); /* a file of no bytes */
        expect_captured(1, i < 3 ? reasons[i] : QR_E_IO, 8);
        assert_int_equal(stand->outbox.count, 1);
        assert_int_equal(metric(METRIC_captures_io_total), i == 0 || i == 3);
        assert_int_equal(metric(METRIC_captures_full_total), i == 1);
        written(capture_to_write(2), 5); /* the next one goes its way */
        (void)heard_publish(1, 3);
    }
}

/* Storage has no room; three parts are named, of which one is of the chain itself. */
static uint64_t capture_to_victims(void)
{
    uint8_t parent[32], chains[3 * 32];
    capture(1, 0, 16);
    found(1);
    uint64_t key = to_write(8);
    not_written(key, QR_E_SHORTFALL, 9000);
    assert_int_equal(HEARD(stand, chunk_victims)->bytes, 9000);
    assert_int_equal(stand->outbox.count, 1);
    key = HEARD(stand, chunk_victims)->key;
    chain_of(7, 0, parent, chains);
    chain_of(1, 0, parent, chains + 32);
    chain_of(8, 2, parent, chains + 64);
    SAY(stand, storage(), chunk_victims_named, .key = key, .chains = {chains, 96}, .groups = COLUMN32(0, 0, 0),
        .sizes = COLUMN64(5000, 5000, 5000));
    return key;
}

static void test_RS_07_withdrawn_before_dropped_before_written(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    (void)capture_to_victims();
    const qr_publish_t *u = heard_publish(1, 2);
    chain_of(8, 2, parent, chain);
    assert_int_equal(u->kinds.data[0], QR_CATALOG_WITHDRAW);
    assert_int_equal(u->kinds.data[1], QR_CATALOG_WITHDRAW);
    assert_int_equal(u->tiers.data[1], QR_TIER_SSD);
    assert_memory_equal(u->chains.data + 32, chain, 32);
    assert_int_equal(stand->outbox.count, 1); /* nothing is dropped yet */
    committed(1);
    assert_int_equal(HEARD_COUNT(stand, chunk_drop), 2);
    assert_int_equal(stand->outbox.count, 2);
    assert_memory_equal(HEARD_NTH(stand, chunk_drop, 1)->chain.bytes, chain, 32);
    uint64_t first = HEARD_NTH(stand, chunk_drop, 0)->key, second = HEARD_NTH(stand, chunk_drop, 1)->key;
    dropped(second);
    assert_int_equal(stand->outbox.count, 0); /* one is still leased by somebody */
    dropped(first);
    const qr_chunk_write_t *w = HEARD(stand, chunk_write); /* the same bytes, still in their slot */
    assert_int_equal(w->start, 8);
    written(w->key, 4);
    (void)heard_publish(2, 3);
    committed(2);
    expect_captured(1, 0, 16);
    assert_int_equal(metric(METRIC_chunks_dropped_total), 2);
}

static void test_room_that_cannot_be_made(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    for (uint32_t how = 0; how < 3; how++) { /* nobody may leave; only the chain itself; columns that do not add up */
        again();
        capture(1, 0, 16);
        found(1);
        not_written(to_write(8), QR_E_SHORTFALL, 0);
        assert_int_equal(HEARD(stand, chunk_victims)->bytes, 1);
        chain_of(1, how == 1 ? 0 : 5, parent, chain);
        SAY(stand, storage(), chunk_victims_named, .key = HEARD(stand, chunk_victims)->key, .chains = {chain, how ? 32 : 0},
            .groups = {(const uint32_t[]){0, 0}, how}, .sizes = {(const uint64_t[]){1, 1}, how});
        expect_captured(1, QR_E_NO_SPACE, 8);
        assert_int_equal(stand->outbox.count, 1);
        assert_int_equal(metric(METRIC_captures_full_total), 1);
    }
    again(); /* a withdrawal that is refused drops nothing */
    (void)capture_to_victims();
    refused(1, QR_E_INVALID, 0);
    expect_captured(1, QR_E_INVALID, 8);
    assert_int_equal(stand->outbox.count, 1);
    assert_int_equal(metric(METRIC_chunks_orphaned_total), 0);
    again(); /* and room that is never enough ends after a few times */
    (void)capture_to_victims();
    for (uint64_t sequence = 1; sequence <= 3; sequence++) {
        committed(sequence);
        uint64_t first = HEARD_NTH(stand, chunk_drop, 0)->key, second = HEARD_NTH(stand, chunk_drop, 1)->key;
        dropped(first), dropped(second);
        not_written(HEARD(stand, chunk_write)->key, QR_E_SHORTFALL, 9000);
        if (sequence == 3) break;
        uint8_t chains[64];
        chain_of(7, 0, parent, chains);
        chain_of(8, 0, parent, chains + 32);
        SAY(stand, storage(), chunk_victims_named, .key = HEARD(stand, chunk_victims)->key, .chains = {chains, 64},
            .groups = COLUMN32(0, 0), .sizes = COLUMN64(1, 1));
    }
    expect_captured(1, QR_E_NO_SPACE, 8);
}

static void test_a_publish_in_doubt_keeps_its_sequence(void **unused)
{
    (void)unused;
    written(capture_to_write(1), 5);
    (void)heard_publish(1, 3);
    refused(1, QR_E_PEER_DOWN, 20);
    assert_int_equal(stand->outbox.count, 0);
    assert_int_equal(stand->outbox.alarm_us, stand->now_us + 20000);
    assert_true(stand_alarm(stand, stand->now_us + 20000));
    (void)heard_publish(1, 3);
    refused(1, QR_E_PEER_DOWN, 0);
    assert_int_equal(stand->outbox.alarm_us, stand->now_us + 100000);
    assert_true(stand_alarm(stand, stand->now_us + 100000));
    (void)heard_publish(1, 3);
    committed(1);
    expect_captured(1, 0, 8);
    written(capture_to_write(2), 5);
    (void)heard_publish(2, 3);
}

static void test_a_link_that_ends_ends_captures_but_not_the_publish(void **unused)
{
    (void)unused;
    written(capture_to_write(1), 5);
    capture(2, 0, 8);
    SAY(stand, uplink(), link_down, .node = 3, .reason = 1); /* somebody else's */
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, uplink(), link_down, .node = OTHER, .reason = 1);
    assert_int_equal(HEARD_COUNT(stand, captured), 2);
    assert_int_equal(HEARD(stand, captured)->reason, QR_E_PEER_DOWN);
    assert_int_equal(stand->outbox.count, 2);
    committed(1); /* from before: that question is closed */
    assert_int_equal(stand->outbox.notes[0].code, 1 /* stale */);
    capture(3, 0, 8);
    expect_captured(3, QR_E_PEER_DOWN, 0);
    SAY(stand, uplink(), link_up, .node = OTHER, .node_epoch = 1);
    (void)heard_publish(1, 3); /* the same sequence */
    capture(4, 0, 8);
    assert_int_equal(stand->outbox.count, 0);
    committed(1);
    assert_int_equal(HEARD_COUNT(stand, chunk_find), 1);
    assert_int_equal(metric(METRIC_captured_rows_total), 8);
    assert_int_equal(metric(METRIC_captures_unpublished_total), 3);
}

static void test_stale_is_published_anew_a_few_times(void **unused)
{
    (void)unused;
    written(capture_to_write(1), 5);
    for (uint64_t sequence = 1; sequence <= 3; sequence++) {
        refused(sequence, QR_E_STALE, 0);
        (void)heard_publish(sequence + 1, 3);
    }
    refused(4, QR_E_STALE, 0); /* that writer is closed for ever */
    expect_captured(1, QR_E_STALE, 0);
    assert_int_equal(HEARD_COUNT(stand, chunk_drop), 0);
    assert_int_equal(heard_publish(5, 1)->kinds.data[0], QR_CATALOG_WITHDRAW);
}

/* The log may name a file that was here before and was found damaged: what took its place is withdrawn first, or left. */
static void test_a_file_that_the_log_may_name_is_withdrawn_first(void **unused)
{
    (void)unused;
    for (uint32_t how = 0; how < 2; how++) {
        again();
        written(capture_to_write(1), 5);
        for (uint64_t sequence = 1; sequence <= 4; sequence++) refused(sequence, QR_E_STALE, 0);
        assert_int_equal(HEARD_COUNT(stand, chunk_drop), 0);
        assert_int_equal(heard_publish(5, 1)->kinds.data[0], QR_CATALOG_WITHDRAW);
        if (how == 0) {
            committed(5);
            assert_int_equal(HEARD_COUNT(stand, chunk_drop), 1);
            continue;
        }
        for (uint64_t sequence = 5; sequence <= 8; sequence++) refused(sequence, QR_E_STALE, 0);
        assert_int_equal(stand->outbox.count, 0);
        assert_int_equal(metric(METRIC_chunks_orphaned_total), 1);
    }
}

/* An asking that may have been committed, and refused for good since: the file is not dropped unless it is withdrawn. */
static void test_a_node_in_doubt_is_withdrawn_before_it_is_dropped(void **unused)
{
    (void)unused;
    for (uint32_t how = 0; how < 2; how++) {
        again();
        written(capture_to_write(1), 5);
        if (how == 0) {
            refused(1, QR_E_PEER_DOWN, 1);
            assert_true(stand_alarm(stand, stand->now_us + 1000));
        } else {
            SAY(stand, uplink(), link_down, .node = OTHER, .reason = 1);
            SAY(stand, uplink(), link_up, .node = OTHER, .node_epoch = 1);
        }
        refused(1, QR_E_LIMIT, 0);
        assert_int_equal(HEARD_COUNT(stand, chunk_drop), 0);
        assert_int_equal(heard_publish(2, 1)->kinds.data[0], QR_CATALOG_WITHDRAW);
        committed(2);
        assert_int_equal(HEARD_COUNT(stand, chunk_drop), 1);
    }
}

/* A store whose catalog knows this model with other chunks takes nothing: two nodes are enough to know. */
static void test_what_the_catalog_does_not_want_is_not_written_again_and_again(void **unused)
{
    (void)unused;
    for (uint64_t id = 1; id <= 2; id++) {
        written(capture_to_write(id), 5);
        refused(id, QR_E_INVALID, 0);
        expect_captured(id, QR_E_INVALID, 0);
        dropped(HEARD(stand, chunk_drop)->key);
    }
    capture(3, 0, 8);
    expect_captured(3, QR_E_UNSUPPORTED, 0);
    assert_int_equal(HEARD_COUNT(stand, chunk_find), 0);
}

static void test_refused_for_good_drops_the_file(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    written(capture_to_write(1), 5);
    refused(1, QR_E_LIMIT, 0);
    expect_captured(1, QR_E_LIMIT, 0);
    chain_of(1, 0, parent, chain);
    assert_memory_equal(HEARD(stand, chunk_drop)->chain.bytes, chain, 32);
    assert_int_equal(stand->outbox.count, 2);
    uint64_t key = HEARD(stand, chunk_drop)->key;
    capture(2, 0, 8);
    assert_int_equal(stand->outbox.count, 0);
    dropped(key);
    assert_int_equal(HEARD_COUNT(stand, chunk_find), 1);
    dropped(key); /* said again */
    assert_int_equal(stand->outbox.count, 0);
}

/* Of several groups some may have been published by an earlier capture: withdrawn first, left alone if that fails too. */
static void test_parts_of_several_groups_are_withdrawn_first(void **unused)
{
    (void)unused;
    for (uint32_t how = 0; how < 2; how++) {
        again();
        capture(1, 0, 8);
        found(0);
        pinned(HEARD(stand, pages_pin)->holder_key, 1, 0);
        downloaded(HEARD(stand, page_download)->key);
        uint64_t first = HEARD(stand, chunk_write)->key;
        assert_int_equal(HEARD(stand, chunk_write)->slot, 0);
        pinned(HEARD(stand, pages_pin)->holder_key, 2, 0); /* the second group moves while the first is written */
        assert_int_equal(HEARD(stand, page_download)->slot, 1);
        assert_int_equal(HEARD(stand, page_download)->pages.data[0], 101);
        downloaded(HEARD(stand, page_download)->key);
        assert_int_equal(HEARD_COUNT(stand, chunk_write), 0); /* one at a time */
        unpinned(1), unpinned(2);
        written(first, 3);
        assert_int_equal(HEARD(stand, chunk_write)->group, 1);
        assert_int_equal(HEARD_COUNT(stand, publish), 0);
        written(HEARD(stand, chunk_write)->key, 4);
        const qr_publish_t *u = heard_publish(1, 5);
        assert_int_equal(u->windows.data[1], 8);
        assert_int_equal(u->digests.data[32], 3);
        assert_int_equal(u->digests.data[3 * 32], 4);
        refused(1, QR_E_INVALID, 0);
        expect_captured(1, QR_E_INVALID, 0);
        u = heard_publish(2, 2);
        assert_int_equal(u->kinds.data[1], QR_CATALOG_WITHDRAW);
        assert_int_equal(HEARD_COUNT(stand, chunk_drop), 0);
        if (how == 0) {
            committed(2);
            assert_int_equal(HEARD_COUNT(stand, chunk_drop), 2);
        } else {
            refused(2, QR_E_INVALID, 0);
            assert_int_equal(stand->outbox.count, 0);
            assert_int_equal(metric(METRIC_chunks_orphaned_total), 2);
        }
    }
}

static void test_one_slot_takes_one_group_after_the_other(void **unused)
{
    (void)unused;
    given->params.staging_slots = 1;
    again();
    capture(1, 0, 8);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 1, 0);
    downloaded(HEARD(stand, page_download)->key);
    assert_int_equal(HEARD_COUNT(stand, pages_pin), 0);
    uint64_t first = HEARD(stand, chunk_write)->key;
    unpinned(1);
    assert_int_equal(stand->outbox.count, 0);
    written(first, 3);
    pinned(HEARD(stand, pages_pin)->holder_key, 2, 0);
    assert_int_equal(HEARD(stand, page_download)->slot, 0);
    assert_int_equal(HEARD(stand, page_download)->group, 1);
}

static void test_busy_is_asked_again_until_the_capture_is_late(void **unused)
{
    (void)unused;
    written(capture_to_write(1), 5);
    uint32_t tries = 0;
    for (; HEARD_COUNT(stand, captured) == 0 && tries < 100; tries++) {
        if (HEARD_COUNT(stand, publish)) refused(1, QR_E_BUSY, 60);
        assert_true(stand_alarm(stand, stand->now_us + 60000));
        if (HEARD_COUNT(stand, publish)) (void)heard_publish(1, 3);
    }
    expect_captured(1, QR_E_DEADLINE, 0);
    assert_in_range(tries, 8, 10);
    capture(2, 0, 8);
    expect_captured(2, QR_E_BUSY, 0); /* something is still open */
    if (stand->outbox.alarm_us != QR_NEVER_US) (void)stand_alarm(stand, stand->now_us + 100000);
    refused(1, QR_E_BUSY, 60); /* nobody waits for it any more */
    assert_int_equal(HEARD_COUNT(stand, chunk_drop), 0);
    assert_int_equal(heard_publish(2, 1)->kinds.data[0], QR_CATALOG_WITHDRAW);
    committed(2);
    assert_int_equal(HEARD_COUNT(stand, chunk_drop), 1);
    dropped(HEARD(stand, chunk_drop)->key);
    (void)capture_to_write(3);
}

static void test_a_download_that_never_ends_holds_its_slot_and_nothing_else(void **unused)
{
    (void)unused;
    capture(1, 0, 8);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 1, 0);
    uint64_t key = HEARD(stand, page_download)->key;
    capture(2, 0, 8);
    assert_true(stand_alarm(stand, stand->now_us + 500000));
    assert_int_equal(HEARD_COUNT(stand, captured), 2);
    assert_int_equal(HEARD_NTH(stand, captured, 0)->reason, QR_E_DEADLINE);
    assert_int_equal(HEARD_COUNT(stand, pages_unpin), 0); /* transfer reads those pages */
    assert_int_equal(stand->outbox.alarm_us, QR_NEVER_US);
    capture(3, 0, 8);
    expect_captured(3, QR_E_BUSY, 0);
    downloaded(key);
    assert_int_equal(HEARD(stand, pages_unpin)->lease, 1);
    assert_int_equal(stand->outbox.count, 1);
    unpinned(1);
    assert_int_equal(metric(METRIC_captures_late_total), 2);
    (void)capture_to_write(4);
}

static void test_a_write_that_comes_late_is_published(void **unused)
{
    (void)unused;
    uint64_t key = capture_to_write(1);
    assert_true(stand_alarm(stand, stand->now_us + 500000));
    expect_captured(1, QR_E_DEADLINE, 0);
    written(key, 4);
    (void)heard_publish(1, 3);
    committed(1);
    assert_int_equal(stand->outbox.count, 0);
    assert_int_equal(metric(METRIC_captured_rows_total), 8);
    key = capture_to_write(2);
    assert_true(stand_alarm(stand, stand->now_us + 500000));
    not_written(key, QR_E_SHORTFALL, 100); /* no room is made for nobody */
    assert_int_equal(stand->outbox.count, 0);
    (void)capture_to_write(3);
}

static void test_drain_finishes_the_chunk_under_way(void **unused)
{
    (void)unused;
    capture(1, 0, 24);
    capture(2, 0, 8);
    SAY(stand, storage(), chunk_found, .key = qr_handle(0, 1), .depth = 0);
    uint64_t key = to_write(0);
    SAY(stand, mesh(), drain, .budget_us = 1000000);
    expect_captured(2, QR_E_DRAINING, 0);
    written(key, 4);
    committed(1);
    expect_captured(1, QR_E_DRAINING, 8);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    again(); /* before the first chunk */
    capture(1, 0, 24);
    uint64_t find = HEARD(stand, chunk_find)->key;
    SAY(stand, mesh(), drain, .budget_us = 1000);
    assert_int_equal(stand->outbox.count, 0);
    assert_true(stand_alarm(stand, stand->now_us + 1000));
    assert_int_equal(HEARD(stand, drained)->open_count, 1); /* over its budget */
    SAY(stand, storage(), chunk_found, .key = find, .depth = 1);
    expect_captured(1, QR_E_DRAINING, 8);
    again();
    SAY(stand, mesh(), drain, .budget_us = 1000);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
}

static void test_stop_waits_for_slots_and_pins_only(void **unused)
{
    (void)unused;
    char text[2048];
    qr_text_t out;
    capture(1, 0, 8);
    found(0);
    pinned(HEARD(stand, pages_pin)->holder_key, 1, 0);
    uint64_t key = HEARD(stand, page_download)->key;
    SAY(stand, mesh(), stop, .budget_us = 9000);
    expect_captured(1, QR_E_DRAINING, 0);
    assert_int_equal(HEARD_COUNT(stand, stopped), 0);
    downloaded(key);
    assert_int_equal(HEARD(stand, pages_unpin)->lease, 1);
    assert_int_equal(HEARD_COUNT(stand, chunk_write) + HEARD_COUNT(stand, stopped), 0);
    unpinned(1);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    again(); /* storage does not answer */
    (void)capture_to_write(1);
    SAY(stand, mesh(), stop, .budget_us = 9000);
    qr_text_init(&out, text, sizeof text);
    qr_checkpoint_writer_class.print(stand->state, given, &out);
    assert_non_null(strstr(text, "checkpoint_writer: staging, given up, captures open 0"));
    assert_true(stand_alarm(stand, stand->now_us + 9000));
    assert_int_equal(HEARD(stand, stopped)->reason, QR_E_DEADLINE);
    again(); /* a write that ends meanwhile is left for the next start */
    key = capture_to_write(1);
    SAY(stand, mesh(), stop, .budget_us = 9000);
    written(key, 1);
    assert_int_equal(HEARD_COUNT(stand, publish), 0);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    again(); /* a publish that is open holds neither */
    written(capture_to_write(1), 1);
    SAY(stand, mesh(), stop, .budget_us = 9000);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
}

static void test_storage_that_is_gone_ends_it(void **unused)
{
    (void)unused;
    (void)capture_to_write(1);
    SAY(stand, uplink(), link_down, .node = NODE, .reason = 1);
    expect_captured(1, QR_E_PEER_DOWN, 0);
    capture(2, 0, 8);
    uint64_t old = HEARD(stand, chunk_find)->key;
    SAY(stand, uplink(), link_down, .node = NODE, .reason = 1);
    expect_captured(2, QR_E_PEER_DOWN, 0);
    capture(3, 0, 8);
    SAY(stand, storage(), chunk_found, .key = old, .depth = 1);
    assert_int_equal(stand->outbox.count, 0);
    again();
    (void)capture_to_victims();
    committed(1);
    SAY(stand, uplink(), link_down, .node = NODE, .reason = 1);
    expect_captured(1, QR_E_PEER_DOWN, 8);
    assert_int_equal(metric(METRIC_chunks_orphaned_total), 2); /* withdrawn, and perhaps not deleted */
}

static void test_old_answers_change_nothing(void **unused)
{
    (void)unused;
    capture(1, 0, 8);
    uint64_t find = HEARD(stand, chunk_find)->key;
    SAY(stand, storage(), chunk_found, .key = find + (1ull << 32), .depth = 1);
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, storage(), chunk_found, .key = find, .depth = 0);
    uint64_t pin = HEARD(stand, pages_pin)->holder_key;
    downloaded(pin), written(pin, 1), committed(1), refused(1, QR_E_IO, 0), unpinned(1), dropped(pin);
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, storage(), chunk_victims_named, .key = find);
    assert_int_equal(stand->outbox.count, 0);
    pinned(pin + (1ull << 32), 7, 0);
    assert_int_equal(stand->outbox.count, 0);
    pinned(pin, 7, 0);
    assert_int_equal(HEARD_COUNT(stand, page_download), 1);
    pinned(pin, 7, 0);
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, mesh(), tokens_taken, .request_ids = COLUMN64(1));
    assert_int_equal(stand->outbox.count, 0);
}

static void test_a_long_chain_is_hashed_in_pieces(void **unused)
{
    (void)unused;
    given->layout.context_tokens = 65536;
    given->layout.chunk_tokens = 256;
    given->layout.page_tokens = 16;
    again();
    capture(1, 0, 40960);
    uint32_t pieces = 0;
    for (; HEARD_COUNT(stand, chunk_find) == 0; pieces++) {
        assert_int_equal(stand->outbox.alarm_us, stand->now_us);
        assert_true(stand_alarm(stand, stand->now_us));
    }
    assert_int_equal(pieces, 2);
    uint8_t parent[32], chain[32];
    chain_of(1, 159, parent, chain);
    assert_memory_equal(HEARD(stand, chunk_find)->chains.data + 32 * 159, chain, 32);
    again();
    capture(1, 0, 40960); /* a drain ends it between two pieces */
    SAY(stand, mesh(), drain, .budget_us = 10);
    expect_captured(1, QR_E_DRAINING, 0);
    assert_int_equal(HEARD_COUNT(stand, drained), 1);
}

/* Storage hears of every chunk that was committed, once: with the next question, be it of another capture. */
static void test_storage_hears_what_was_published(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    static const uint8_t none[32];
    capture(1, 0, 16);
    assert_memory_equal(HEARD(stand, chunk_find)->published.bytes, none, 32);
    found(0);
    written(to_write(0), 1);
    committed(1);
    chain_of(1, 0, parent, chain);
    assert_memory_equal(HEARD(stand, chunk_find)->published.bytes, chain, 32);
    found(0);
    written(to_write(8), 1);
    committed(2);
    expect_captured(1, 0, 16);
    for (uint32_t i = 0; i < 3; i++) { /* the last one is heard of with the next capture; one that was refused is not */
        capture(2, 0, 8);
        chain_of(1, 1, parent, chain);
        assert_memory_equal(HEARD(stand, chunk_find)->published.bytes, i ? none : chain, 32);
        found(i == 2);
        if (i == 1) {
            written(to_write(0), 1);
            refused(3, QR_E_INVALID, 0);
            dropped(HEARD(stand, chunk_drop)->key);
        } else if (i == 0) {
            not_pinned(HEARD(stand, pages_pin)->holder_key, QR_E_NOT_FOUND);
        }
    }
}

/* ---- losses ---- */

static void lost(uint32_t count)
{
    uint8_t chains[64], parent[32];
    uint32_t groups[2] = {0};
    for (uint32_t i = 0; i < count; i++) chain_of(40 + i, 0, parent, chains + 32ull * i);
    SAY(stand, storage(), chunk_losses_named, .key = 0, .chains = {chains, 32ull * count}, .groups = {groups, count});
}
/* The names are asked for just now; they are told. */
static void named(uint32_t count)
{
    uint8_t chains[64], parent[32];
    uint32_t groups[2] = {0};
    const qr_chunk_losses_t *b = HEARD(stand, chunk_losses);
    assert_int_equal(b->now, 1);
    for (uint32_t i = 0; i < count; i++) chain_of(40 + i, 0, parent, chains + 32ull * i);
    SAY(stand, storage(), chunk_losses_named, .key = b->key, .chains = {chains, 32ull * count}, .groups = {groups, count});
}

static void test_losses_are_withdrawn_and_then_dropped(void **unused)
{
    (void)unused;
    uint8_t parent[32], chain[32];
    lost(0);
    named(2);
    const qr_publish_t *u = heard_publish(1, 2);
    assert_int_equal(u->kinds.data[0], QR_CATALOG_WITHDRAW);
    assert_int_equal(u->kinds.data[1], QR_CATALOG_WITHDRAW);
    assert_int_equal(u->tiers.data[1], QR_TIER_SSD);
    chain_of(41, 0, parent, chain);
    assert_memory_equal(u->chains.data + 32, chain, 32);
    assert_int_equal(stand->outbox.count, 1); /* nothing is dropped before it is committed */
    committed(1);
    assert_int_equal(HEARD_COUNT(stand, chunk_drop), 2);
    uint64_t keys[2] = {HEARD_NTH(stand, chunk_drop, 0)->key, HEARD_NTH(stand, chunk_drop, 1)->key};
    SAY(stand, storage(), chunk_dropped, .key = keys[0], .reason = QR_E_NOT_FOUND);
    assert_int_equal(HEARD_COUNT(stand, chunk_losses), 0);
    SAY(stand, storage(), chunk_dropped, .key = keys[1], .reason = QR_E_NOT_FOUND);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 0); /* for the next one */
    assert_int_equal(metric(METRIC_chunks_lost_total), 2);
    assert_int_equal(metric(METRIC_chunks_dropped_total), 0);
}

static void test_losses_wait_for_the_capture_under_way(void **unused)
{
    (void)unused;
    uint64_t key = capture_to_write(1);
    capture(2, 0, 8);
    lost(0);
    assert_int_equal(stand->outbox.count, 0);
    written(key, 1);
    committed(1);
    expect_captured(1, 0, 8);
    named(1); /* before the capture that waits */
    committed(heard_publish(2, 1)->sequence);
    dropped(HEARD(stand, chunk_drop)->key);
    uint64_t find = HEARD(stand, chunk_find)->key;
    lost(0);
    SAY(stand, storage(), chunk_found, .key = find, .depth = 1);
    expect_captured(2, 0, 8);
    named(0); /* written again meanwhile */
    assert_int_equal(HEARD_COUNT(stand, publish), 0);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 0);
}

/* What was published and is withdrawn before storage heard of it is not said to be published. */
static void test_a_loss_is_not_published(void **unused)
{
    (void)unused;
    static const uint8_t none[32];
    capture(40, 0, 8);
    found(0);
    written(to_write(0), 1);
    committed(1);
    expect_captured(40, 0, 8);
    lost(0);
    named(1); /* that one */
    committed(heard_publish(2, 1)->sequence);
    dropped(HEARD(stand, chunk_drop)->key);
    capture(40, 0, 8);
    assert_memory_equal(HEARD(stand, chunk_find)->published.bytes, none, 32);
}

static void test_a_withdrawal_of_losses_is_tried_again(void **unused)
{
    (void)unused;
    lost(0);
    for (uint32_t i = 0; i < 3; i++) {
        named(1);
        (void)heard_publish(1 + i, 1);
        refused(1 + i, QR_E_IO, 0);
        assert_int_equal(stand->outbox.count, 0);
        assert_int_equal(stand->outbox.alarm_us, stand->now_us + (1000000ull << i)); /* later and later */
        assert_true(stand_alarm(stand, QR_NEVER_US - 1));
    }
    named(1);
    refused(4, QR_E_INVALID, 0); /* the log never heard of it */
    dropped(HEARD(stand, chunk_drop)->key);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 0);
}

static void test_losses_when_storage_begins_anew(void **unused)
{
    (void)unused;
    SAY(stand, uplink(), link_down, .node = NODE);
    assert_int_equal(HEARD_COUNT(stand, chunk_losses), 0);
    SAY(stand, uplink(), link_up, .node = NODE, .node_epoch = 1);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 0);
    lost(0);
    assert_int_equal(HEARD(stand, chunk_losses)->now, 1);
    SAY(stand, uplink(), link_down, .node = NODE);
    SAY(stand, uplink(), link_up, .node = NODE, .node_epoch = 1);
    named(1);
    (void)heard_publish(1, 1);
}

/* ---- twice 200,000 messages: CK-07 --------------------------------------------------------------------------------------------------- */

enum { IDS = 5, CHUNKS = TOKENS_MAX / CHUNK, MESSAGES = 200000, OPEN_MAX = 128, SLOTS = 8, LEASES = 16, FILES_MAX = 24 };
enum { OURS, TRANSFERS, STORAGES }; /* whose a slot is; what we keep in it is seen when it is written */

typedef struct place {
    uint32_t id, chunk, group;
} place_t;

typedef struct question {
    uint64_t key;
    uint32_t kind; /* QR_MESSAGE_* of the ask; 0 = free */
    uint32_t slot, depth;
    place_t at;
} question_t;

typedef struct run {
    qr_prng_t prng;
    uint8_t chains[IDS][CHUNKS][32];
    bool file[IDS][CHUNKS][2], published[IDS][CHUNKS][2]; /* durable here; in the catalog */
    question_t questions[OPEN_MAX];
    uint64_t leases[LEASES]; /* held */
    bool read[LEASES];       /* a download reads its pages */
    uint32_t slot_state[SLOTS], captures_open;
    place_t slot_at[SLOTS];
    uint32_t capture_rows[QR_CAPTURES_MAX]; /* of capture_id = base + place; 0 = not open */
    uint64_t capture_ids[QR_CAPTURES_MAX], next_id, next_lease;
    bool link, publish_open, outcome; /* outcome: the catalog has the newest sequence */
    uint64_t sequence;
    uint8_t kinds[QR_CAPTURE_DROPS]; /* of the newest publish */
    place_t changes[QR_CAPTURE_DROPS];
    uint32_t change_count;
    uint64_t messages, done, drops, withdrawals, repeats, by_reason[QR_E_COUNT], nodes, storage_lost, links_lost;
} run_t;

static place_t find_chain(const run_t *r, const uint8_t chain[32], uint32_t group)
{
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t c = 0; c < CHUNKS; c++)
            if (memcmp(r->chains[id][c], chain, 32) == 0) return (place_t){id, c, group};
    fail_msg("a chain that nobody has");
    return (place_t){0};
}
static uint32_t files(const run_t *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < IDS * CHUNKS * 2; i++) count += (&r->file[0][0][0])[i];
    return count;
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

static void saw_find(run_t *r, const qr_chunk_find_t *b)
{
    place_t at = find_chain(r, b->chains.data, 0);
    uint32_t count = (uint32_t)b->chains.count / 32;
    for (uint32_t c = 0; c < count; c++) assert_memory_equal(b->chains.data + 32ull * c, r->chains[at.id][at.chunk + c], 32);
    static const uint8_t none[32];
    place_t said = memcmp(b->published.bytes, none, 32) ? find_chain(r, b->published.bytes, 0) : at;
    for (uint32_t g = 0; memcmp(b->published.bytes, none, 32) && g < given->layout.group_count; g++)
        assert_true(r->published[said.id][said.chunk][g]);
    put_question(r, (question_t){.key = b->key, .kind = QR_MESSAGE_chunk_find, .depth = count, .at = at});
    assert_int_equal(questions_of(r, QR_MESSAGE_chunk_find), 1);
}

static void saw_pin(run_t *r, const qr_pages_pin_t *b)
{
    uint32_t id = b->tokens.data[0] / 1000;
    assert_int_equal(b->tokens.count, b->start_rows + CHUNK);
    for (uint32_t i = 0; i < b->tokens.count; i++) assert_int_equal(b->tokens.data[i], token(id, i));
    put_question(r, (question_t){.key = b->holder_key, .kind = QR_MESSAGE_pages_pin, .at = {id, b->start_rows / CHUNK, 0}});
    assert_true(questions_of(r, QR_MESSAGE_pages_pin) <= 8);
}

static uint32_t lease_place(const run_t *r, uint64_t lease)
{
    for (uint32_t i = 0; i < LEASES; i++)
        if (r->leases[i] == lease) return i;
    fail_msg("a pin that nobody has");
    return 0;
}

/* Pages name their lease: page = lease << 20 | id << 16 | chunk << 8 | group << 4 | block of the chunk. */
static void saw_download(run_t *r, const qr_page_download_t *b)
{
    uint64_t page = b->pages.data[0];
    uint32_t lease = lease_place(r, page >> 20), size = given->layout.page_tokens;
    place_t at = {(uint32_t)(page >> 16) & 15, (uint32_t)(page >> 8) & 255, (uint32_t)(page >> 4) & 15};
    assert_int_equal(b->group, at.group);
    assert_int_equal(b->start, at.chunk * CHUNK);
    assert_int_equal(b->rows, CHUNK);
    assert_int_equal(b->first_block, b->start / size);
    assert_int_equal(b->pages.count, CHUNK / size);
    for (uint32_t i = 0; i < b->pages.count; i++) assert_int_equal(b->pages.data[i], page + i);
    assert_true(b->slot < given->params.staging_slots);
    assert_int_equal(r->slot_state[b->slot], OURS); /* K1 */
    r->slot_state[b->slot] = TRANSFERS;
    r->slot_at[b->slot] = at;
    r->read[lease] = true;
    put_question(r, (question_t){.key = b->key, .kind = QR_MESSAGE_page_download, .slot = b->slot, .depth = lease, .at = at});
    assert_int_equal(questions_of(r, QR_MESSAGE_page_download), 1);
}

static void saw_write(run_t *r, const qr_chunk_write_t *b)
{
    place_t at = find_chain(r, b->chain.bytes, b->group);
    uint8_t parent[32], chain[32];
    chain_of(at.id, at.chunk, parent, chain);
    assert_memory_equal(b->parent.bytes, parent, 32);
    assert_int_equal(r->slot_state[b->slot], OURS);
    assert_memory_equal(&r->slot_at[b->slot], &at, sizeof at); /* the bytes of this part and no other */
    assert_int_equal(b->start, at.chunk * CHUNK);
    for (uint32_t i = 0; i < CHUNK; i++) assert_int_equal(b->tokens.data[i], token(at.id, b->start + i));
    r->slot_state[b->slot] = STORAGES;
    put_question(r, (question_t){.key = b->key, .kind = QR_MESSAGE_chunk_write, .slot = b->slot, .at = at});
    assert_int_equal(questions_of(r, QR_MESSAGE_chunk_write), 1);
}

static void saw_publish(run_t *r, const qr_publish_t *b)
{
    qr_catalog_changes_t c = QR_CATALOG_CHANGES(b);
    uint32_t count;
    assert_true(r->link && !r->publish_open);
    assert_true(qr_catalog_changes_even(&c, &count) && qr_catalog_changes_valid(&c, 0, count, b->chunk_tokens, (uint32_t)b->windows.count));
    if (b->sequence == r->sequence) { /* a repeat says the same */
        r->repeats++;
        assert_int_equal(count, r->change_count);
        assert_memory_equal(b->kinds.data, r->kinds, count);
    } else {
        assert_int_equal(b->sequence, r->sequence + 1);
        r->outcome = false;
    }
    r->sequence = b->sequence;
    r->publish_open = true;
    r->change_count = count;
    memcpy(r->kinds, b->kinds.data, count);
    for (uint32_t i = 0; i < count; i++) {
        place_t at = r->changes[i] = find_chain(r, b->chains.data + 32ull * i, b->groups.data[i]);
        if (b->kinds.data[i] == QR_CATALOG_WITHDRAW) continue;
        for (uint32_t g = 0; g < given->layout.group_count; g++) assert_true(r->file[at.id][at.chunk][g]); /* durable before it is said */
    }
}

/* The catalog takes the newest publish, once. */
static void commit(run_t *r)
{
    if (r->outcome) return;
    r->outcome = true;
    r->nodes += r->kinds[0] == QR_CATALOG_NODE;
    r->withdrawals += r->kinds[0] == QR_CATALOG_WITHDRAW;
    for (uint32_t i = 0; i < r->change_count; i++) {
        place_t at = r->changes[i];
        if (r->kinds[i] == QR_CATALOG_REPLICA) {
            assert_true(r->file[at.id][at.chunk][at.group]);
            r->published[at.id][at.chunk][at.group] = true;
        } else if (r->kinds[i] == QR_CATALOG_WITHDRAW) {
            r->published[at.id][at.chunk][at.group] = false;
        }
    }
}

static void saw_drop(run_t *r, const qr_chunk_drop_t *b)
{
    place_t at = find_chain(r, b->chain.bytes, b->group);
    assert_false(r->published[at.id][at.chunk][at.group]); /* the catalog does not offer it any more */
    put_question(r, (question_t){.key = b->key, .kind = QR_MESSAGE_chunk_drop, .at = at});
    assert_true(questions_of(r, QR_MESSAGE_chunk_drop) <= QR_CAPTURE_DROPS);
}

static void saw_captured(run_t *r, const qr_captured_t *b)
{
    uint32_t i = 0;
    while (i < QR_CAPTURES_MAX && !(r->capture_rows[i] && r->capture_ids[i] == b->capture_id)) i++;
    assert_true(i < QR_CAPTURES_MAX); /* answered once */
    assert_true(b->durable_rows <= r->capture_rows[i] && b->durable_rows % CHUNK == 0);
    assert_true(b->reason || b->durable_rows == r->capture_rows[i]);
    for (uint32_t c = 0; c < b->durable_rows / CHUNK; c++)
        for (uint32_t g = 0; g < given->layout.group_count; g++) assert_true(r->file[b->capture_id % IDS][c][g]);
    r->capture_rows[i] = 0;
    r->captures_open--;
    r->by_reason[b->reason]++;
}

static void look(run_t *r)
{
    r->messages += 1 + stand->outbox.count;
    for (uint32_t i = 0; i < stand->outbox.count; i++) {
        const qr_message_t *m = &stand->messages[i];
        switch (m->type) {
        case QR_MESSAGE_chunk_find: saw_find(r, &m->body.chunk_find); break;
        case QR_MESSAGE_pages_pin: saw_pin(r, &m->body.pages_pin); break;
        case QR_MESSAGE_page_download: saw_download(r, &m->body.page_download); break;
        case QR_MESSAGE_chunk_write: saw_write(r, &m->body.chunk_write); break;
        case QR_MESSAGE_publish: saw_publish(r, &m->body.publish); break;
        case QR_MESSAGE_chunk_drop: saw_drop(r, &m->body.chunk_drop); break;
        case QR_MESSAGE_captured: saw_captured(r, &m->body.captured); break;
        case QR_MESSAGE_chunk_victims:
            put_question(r, (question_t){.key = m->body.chunk_victims.key, .kind = QR_MESSAGE_chunk_victims});
            assert_int_equal(questions_of(r, QR_MESSAGE_chunk_victims), 1);
            break;
        case QR_MESSAGE_pages_unpin: {
            uint32_t place = lease_place(r, m->body.pages_unpin.lease);
            assert_false(r->read[place]); /* nobody reads pages that are not pinned */
            put_question(r, (question_t){.key = r->leases[place], .kind = QR_MESSAGE_pages_unpin});
            assert_true(questions_of(r, QR_MESSAGE_pages_unpin) <= 8);
            r->leases[place] = 0;
            break;
        }
        default: fail_msg("it said %s", qr_schema_find(m->type)->name);
        }
    }
}

static void answer_pin(run_t *r, question_t q)
{
    static const uint32_t bad[] = {QR_E_NOT_FOUND, QR_E_BUSY, QR_E_SHORTFALL};
    uint32_t counts[2] = {0}, firsts[2] = {0}, n = 0, size = given->layout.page_tokens, place = 0;
    uint64_t pages[32];
    if (qr_prng_one_in(&r->prng, 30)) {
        not_pinned(q.key, bad[qr_prng_below(&r->prng, 3)]);
        return;
    }
    while (r->leases[place]) place++;
    r->leases[place] = ++r->next_lease;
    bool gone = qr_prng_one_in(&r->prng, 30); /* the window has moved on */
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t skip = g == 1 && gone;
        firsts[g] = q.at.chunk * CHUNK / size + skip;
        counts[g] = CHUNK / size - skip;
        for (uint32_t b = skip; b < CHUNK / size; b++) pages[n++] = r->next_lease << 20 | q.at.id << 16 | q.at.chunk << 8 | g << 4 | b;
    }
    SAY(stand, page_manager(), pages_pinned, .holder_key = q.key, .lease = r->next_lease,
        .group_counts = {counts, given->layout.group_count}, .first_blocks = {firsts, given->layout.group_count}, .pages = {pages, n});
}

static void answer_download(run_t *r, question_t q)
{
    bool fails = qr_prng_one_in(&r->prng, 40);
    r->read[q.depth] = false;
    r->slot_state[q.slot] = OURS;
    SAY(stand, transfer(), page_downloaded, .key = q.key, .reason = fails ? QR_E_STALE : 0, .bytes = 1024, .move_us = 1);
}

static void answer_write(run_t *r, question_t q)
{
    r->slot_state[q.slot] = OURS;
    if (files(r) >= FILES_MAX && !r->file[q.at.id][q.at.chunk][q.at.group]) {
        not_written(q.key, QR_E_SHORTFALL, 6000);
    } else if (qr_prng_one_in(&r->prng, 40)) {
        not_written(q.key, qr_prng_one_in(&r->prng, 2) ? QR_E_IO : QR_E_NO_SPACE, 0);
    } else {
        r->file[q.at.id][q.at.chunk][q.at.group] = true;
        SAY(stand, storage(), chunk_written, .key = q.key, .content = {{3}}, .bytes = 6000, .write_us = 2);
    }
}

static void answer_victims(run_t *r, question_t q)
{
    uint8_t chains[32 * QR_CAPTURE_DROPS];
    uint32_t groups[QR_CAPTURE_DROPS], n = 0, most = (uint32_t)qr_prng_below(&r->prng, 7);
    uint64_t sizes[QR_CAPTURE_DROPS] = {0};
    uint32_t from = (uint32_t)qr_prng_below(&r->prng, IDS * CHUNKS * 2);
    for (uint32_t i = 0; i < IDS * CHUNKS * 2 && n < most; i++) {
        uint32_t k = (from + i) % (IDS * CHUNKS * 2), id = k / (2 * CHUNKS), chunk = k / 2 % CHUNKS, group = k % 2;
        if (!r->file[id][chunk][group]) continue;
        memcpy(chains + 32ull * n, r->chains[id][chunk], 32);
        groups[n++] = group;
    }
    SAY(stand, storage(), chunk_victims_named, .key = q.key, .chains = {chains, 32ull * n}, .groups = {groups, n}, .sizes = {sizes, n});
}

static void answer_find(run_t *r, question_t q)
{
    uint32_t depth = 0;
    for (bool all = true; depth < q.depth; depth += all) {
        for (uint32_t g = 0; g < given->layout.group_count; g++) all = all && r->file[q.at.id][q.at.chunk + depth][g];
        if (!all) break;
    }
    SAY(stand, storage(), chunk_found, .key = q.key, .depth = depth);
}

/* Anyone who was asked answers, in any order. */
static void run_answer(run_t *r)
{
    uint32_t i = (uint32_t)qr_prng_below(&r->prng, OPEN_MAX);
    for (uint32_t k = 0; k < 8 && !r->questions[i].kind; k++) i = (uint32_t)qr_prng_below(&r->prng, 12);
    question_t q = r->questions[i];
    if (!q.kind) return;
    r->questions[i].kind = 0;
    switch (q.kind) {
    case QR_MESSAGE_chunk_find: answer_find(r, q); break;
    case QR_MESSAGE_pages_pin: answer_pin(r, q); break;
    case QR_MESSAGE_pages_unpin: unpinned(q.key); break;
    case QR_MESSAGE_page_download: answer_download(r, q); break;
    case QR_MESSAGE_chunk_write: answer_write(r, q); break;
    case QR_MESSAGE_chunk_victims: answer_victims(r, q); break;
    default:
        r->file[q.at.id][q.at.chunk][q.at.group] = false;
        r->drops++;
        dropped(q.key);
        break;
    }
    look(r);
}
static void run_catalog(run_t *r)
{
    static const uint32_t bad[] = {QR_E_BUSY, QR_E_STALE, QR_E_IO, QR_E_LIMIT};
    if (!r->publish_open) return;
    r->publish_open = false;
    uint64_t what = qr_prng_below(&r->prng, 60);
    if (r->outcome && what >= 50) { /* it has it, and has forgotten the sequence */
        refused(r->sequence, QR_E_STALE, 0);
    } else if (what < 50) {
        commit(r);
        committed(r->sequence);
    } else if (what < 54) {
        if (what < 52) commit(r);
        refused(r->sequence, QR_E_PEER_DOWN, (uint32_t)qr_prng_below(&r->prng, 30));
    } else {
        refused(r->sequence, bad[qr_prng_below(&r->prng, QR_COUNT(bad))], 0);
    }
    look(r);
}

static void run_link(run_t *r)
{
    if (r->link) {
        if (!qr_prng_one_in(&r->prng, 10)) return;
        r->links_lost++;
        if (r->publish_open && qr_prng_one_in(&r->prng, 2)) commit(r);
        r->link = r->publish_open = false;
        SAY(stand, uplink(), link_down, .node = OTHER, .reason = 1);
    } else {
        r->link = true;
        SAY(stand, uplink(), link_up, .node = OTHER, .node_epoch = 1);
    }
    look(r);
}

/* Storage dies with what it was asked; a file that it was writing or dropping is there or is not. */
static void run_lose_storage(run_t *r)
{
    r->storage_lost++;
    for (uint32_t i = 0; i < OPEN_MAX; i++) {
        question_t *q = &r->questions[i];
        bool *file = &r->file[q->at.id][q->at.chunk][q->at.group];
        if (q->kind == QR_MESSAGE_chunk_write) {
            r->slot_state[q->slot] = OURS;
            *file = *file || qr_prng_one_in(&r->prng, 2);
        }
        if (q->kind == QR_MESSAGE_chunk_drop) *file = *file && qr_prng_one_in(&r->prng, 2);
        if (q->kind >= QR_MESSAGE_chunk_find && q->kind <= QR_MESSAGE_chunk_dropped) q->kind = 0;
    }
    SAY(stand, uplink(), link_down, .node = NODE, .reason = 1);
    look(r);
}

static void run_capture(run_t *r)
{
    uint32_t i = 0;
    while (i < QR_CAPTURES_MAX && r->capture_rows[i]) i++;
    if (i == QR_CAPTURES_MAX) return;
    uint64_t id = ++r->next_id;
    uint32_t rows = CHUNK * (uint32_t)qr_prng_between(&r->prng, 1, CHUNKS), tokens[TOKENS_MAX];
    for (uint32_t k = 0; k < rows; k++) tokens[k] = token(id % IDS, k);
    r->capture_rows[i] = rows;
    r->capture_ids[i] = id;
    r->captures_open++;
    qr_capture_t body = {.capture_id = id, .start_rows = CHUNK * (uint32_t)qr_prng_below(&r->prng, rows / CHUNK), .tokens = {tokens, rows}};
    root_of(id % IDS, body.scope.bytes);
    stand_say(stand, page_manager(), QR_MESSAGE_capture, &body);
    look(r);
}

static void run_time(run_t *r)
{
    uint64_t pass_us = qr_prng_one_in(&r->prng, 8) ? 500000 : qr_prng_below(&r->prng, 20000);
    if (stand_alarm(stand, stand->now_us + pass_us)) look(r);
}

static bool all_quiet(const run_t *r) { return questions_of(r, 0) == OPEN_MAX && r->captures_open == 0 && !r->publish_open && r->link; }

static void random_run(uint64_t seed)
{
    run_t *r = calloc(1, sizeof *r);
    uint8_t parent[32];
    qr_prng_init(&r->prng, seed);
    r->link = true;
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t c = 0; c < CHUNKS; c++) chain_of(id, c, parent, r->chains[id][c]);
    while (r->messages < MESSAGES) {
        uint64_t what = qr_prng_below(&r->prng, 1000);
        if (what < 60)
            run_capture(r);
        else if (what < 800)
            run_answer(r);
        else if (what < 950)
            run_catalog(r);
        else if (what < 980)
            run_time(r);
        else if (what < 998)
            run_link(r);
        else if (what == 999 && qr_prng_one_in(&r->prng, 3))
            run_lose_storage(r);
    }
    for (uint32_t i = 0; i < 200000 && !(all_quiet(r) && stand->outbox.alarm_us == QR_NEVER_US); i++) { /* it heals */
        run_answer(r);
        run_catalog(r);
        if (!r->link) run_link(r);
        if (qr_prng_one_in(&r->prng, 50)) run_time(r);
    }
    assert_true(all_quiet(r));
    for (uint32_t i = 0; i < LEASES; i++) assert_int_equal(r->leases[i], 0); /* every pin was given back */
    for (uint32_t s = 0; s < SLOTS; s++) assert_int_equal(r->slot_state[s], OURS);
    for (uint32_t i = 0; i < IDS * CHUNKS * 2; i++) assert_true(!(&r->published[0][0][0])[i] || (&r->file[0][0][0])[i]);
    assert_int_equal(metric(METRIC_captures_open), 0);
    r->done = r->by_reason[0];
    print_message("%llu messages: %llu captures done, %llu nodes, %llu withdrawals, %llu drops, %llu repeats, %llu late, %llu links lost, "
                  "%llu losses of storage\n",
                  (unsigned long long)r->messages, (unsigned long long)r->done, (unsigned long long)r->nodes,
                  (unsigned long long)r->withdrawals, (unsigned long long)r->drops, (unsigned long long)r->repeats,
                  (unsigned long long)r->by_reason[QR_E_DEADLINE], (unsigned long long)r->links_lost, (unsigned long long)r->storage_lost);
    assert_true(r->done > 500 && r->nodes > 1000 && r->withdrawals > 200 && r->drops > 500 && r->repeats > 100);
    assert_true(r->by_reason[QR_E_NO_SPACE] > 50 && r->by_reason[QR_E_IO] > 50 && r->by_reason[QR_E_NOT_FOUND] > 50 &&
                r->by_reason[QR_E_PEER_DOWN] > 50 && r->by_reason[QR_E_DEADLINE] > 50 && r->by_reason[QR_E_LIMIT] > 10);
    free(r);
}
/* Wherever it were killed: what the catalog says is durable, and what is deleted the catalog does not say. */
static void test_CK_07_published_is_durable_at_every_message(void **unused)
{
    (void)unused;
    random_run(47);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
#define TEST_TWO(name) cmocka_unit_test_setup_teardown(name, begin_two_groups, end)
    const struct CMUnitTest tests[] = {
        TEST(test_losses_are_withdrawn_and_then_dropped),
        TEST(test_losses_wait_for_the_capture_under_way),
        TEST(test_a_loss_is_not_published),
        TEST(test_storage_hears_what_was_published),
        TEST(test_a_withdrawal_of_losses_is_tried_again),
        TEST(test_losses_when_storage_begins_anew),
        TEST(test_a_capture_from_its_question_to_its_publication),
        TEST(test_what_is_durable_is_not_written_again),
        TEST(test_a_gap_is_filled_and_no_more),
        TEST(test_a_first_node_begins_at_token_0),
        TEST(test_PI_05_a_partial_chunk_and_other_refusals),
        TEST(test_captures_are_served_in_order),
        TEST(test_what_costs_more_than_it_saves_is_skipped),
        TEST(test_what_is_wanted_is_not_judged),
        TEST(test_what_is_wanted_goes_first_and_has_places_of_its_own),
        TEST(test_pages_that_are_gone_end_it),
        TEST_TWO(test_a_window_that_moved_on_ends_it),
        TEST(test_pins_that_do_not_add_up_are_given_back),
        TEST(test_a_download_that_fails_gives_its_pin_back),
        TEST(test_RS_03_a_failed_write_is_not_published),
        TEST(test_RS_07_withdrawn_before_dropped_before_written),
        TEST(test_room_that_cannot_be_made),
        TEST(test_a_publish_in_doubt_keeps_its_sequence),
        TEST(test_a_link_that_ends_ends_captures_but_not_the_publish),
        TEST(test_stale_is_published_anew_a_few_times),
        TEST(test_a_file_that_the_log_may_name_is_withdrawn_first),
        TEST(test_a_node_in_doubt_is_withdrawn_before_it_is_dropped),
        TEST(test_what_the_catalog_does_not_want_is_not_written_again_and_again),
        TEST(test_refused_for_good_drops_the_file),
        TEST_TWO(test_parts_of_several_groups_are_withdrawn_first),
        TEST_TWO(test_one_slot_takes_one_group_after_the_other),
        TEST(test_busy_is_asked_again_until_the_capture_is_late),
        TEST(test_a_download_that_never_ends_holds_its_slot_and_nothing_else),
        TEST(test_a_write_that_comes_late_is_published),
        TEST(test_drain_finishes_the_chunk_under_way),
        TEST(test_stop_waits_for_slots_and_pins_only),
        TEST(test_storage_that_is_gone_ends_it),
        TEST(test_old_answers_change_nothing),
        TEST(test_a_long_chain_is_hashed_in_pieces),
        TEST(test_CK_07_published_is_durable_at_every_message),
        TEST_TWO(test_CK_07_published_is_durable_at_every_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
