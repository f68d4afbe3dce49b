/* link: qr_actor_catalog_replica qr_actor_catalog_batch qr_schema */
/* The catalog's index by hand, then 200,000 random operations against the plain model of catalog_model.h. */
#include "tests/unit/stand.h"

#include "actors/catalog_replica.h"
#include "base/error.h"
#include "tests/unit/catalog_model.h"

enum { NODE = 1, LOG = 900, OPERATIONS = 200000 };

static uint64_t replica(void) { return qr_address(NODE, 0, QR_ROLE_catalog_replica, 0); }
static uint64_t writer(void) { return qr_address(2, 0, QR_ROLE_catalog_writer, 0); }
static uint64_t router(void) { return qr_address(NODE, 0, QR_ROLE_router, 0); }
static uint64_t mesh(void) { return qr_address(NODE, 0, QR_ROLE_mesh, 0); }
static uint64_t publisher(uint32_t node) { return qr_address(node, 1, QR_ROLE_checkpoint_writer, 0); }

static qr_given_t *given;
static stand_t *stand;
static columns_t columns;

static void boot(uint64_t nodes_max)
{
    given = stand_given();
    given->layout.group_count = 0; /* routes for any model */
    given->params.catalog_nodes_max = nodes_max;
    stand = stand_new(&qr_catalog_replica_class, given, replica());
    stand->outbox.alarm_us = QR_NEVER_US;
    SAY(stand, mesh(), start, .epoch = 5, .seed = 3, .partners = COLUMN64(writer()));
    assert_int_equal(HEARD(stand, ready)->reason, 0);
    assert_int_equal(HEARD(stand, tail)->from_tx, 1);
    columns_clear(&columns);
}
static int begin(void **unused)
{
    (void)unused;
    boot(64);
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    free(given);
    return 0;
}

static void row(uint64_t tx, uint32_t node, uint64_t node_epoch, uint32_t model)
{
    columns_row(&columns, tx, 1, publisher(node), 1, node_epoch, tx, model);
}
/* Tells the columns as transactions first .. last and begins new ones. */
static void tell(uint64_t first, uint64_t last)
{
    SAY(stand, writer(), tail_batch, .log_id = LOG, .newest_tx = last, .first_tx = first, .last_tx = last, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
}
static void page(uint64_t snapshot, uint64_t from, uint64_t cursor, bool last)
{
    SAY(stand, writer(), tail_batch, .log_id = LOG, .newest_tx = snapshot, .first_tx = from, .snapshot_tx = snapshot, .cursor = cursor,
        .last = last, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
}
static const qr_matches_t *look(uint32_t id)
{
    uint32_t path[PATH_MAX_NODES], n = id_path(id, path);
    uint8_t chains[32 * PATH_MAX_NODES];
    qr_lookup_t body = {.lookup_id = 7 + id, .chains = {chains, 32ull * n}};
    for (uint32_t i = 0; i < n; i++) id_chain(path[i], chains + 32 * (size_t)i);
    model_fingerprint(id % MODELS, body.fingerprint.bytes);
    stand_say(stand, router(), QR_MESSAGE_lookup, &body);
    assert_int_equal(HEARD(stand, matches)->lookup_id, 7 + id);
    return HEARD(stand, matches);
}
/* Model 0: 0 stands alone; 3, 9, 15, ... continue each other; 6 and so on hang beside them. */
static void chunk(uint64_t tx, uint32_t node, uint32_t id, uint8_t tier)
{
    row(tx, node, 1, id % MODELS);
    columns_chunk(&columns, id, tier);
}

static uint32_t probed(uint64_t id)
{
    SAY(stand, qr_address(NODE, 1, QR_ROLE_scheduler, 0), probe, .probe_id = id);
    assert_int_equal(HEARD(stand, probe_done)->probe_id, id);
    return HEARD(stand, probe_done)->reason;
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------ */

static void test_a_chain_is_found_up_to_where_it_stands(void **unused)
{
    (void)unused;
    assert_int_equal(look(15)->depth, 0);
    chunk(1, 2, 3, QR_TIER_SSD);
    chunk(2, 3, 9, QR_TIER_RAM);
    tell(1, 2);
    assert_int_equal(HEARD(stand, tail)->from_tx, 3);
    assert_int_equal(HEARD(stand, tail)->log_id, LOG);
    const qr_matches_t *m = look(15);
    assert_int_equal(m->depth, 2);
    assert_int_equal(m->tokens, 2 * CHUNK);
    assert_int_equal(m->tx, 2);
    assert_int_equal(m->node_indexes.count, 2);
    assert_int_equal(m->sizes.data[0], 103);
    assert_int_equal(m->sizes.data[1], 109);
    assert_int_equal(mask_of_nodes(m, m->ssd_masks.data[0]), 1u << 2);
    assert_int_equal(m->ram_masks.data[0] | m->object_flags.data[0] | m->ssd_masks.data[1], 0);
    assert_int_equal(mask_of_nodes(m, m->ram_masks.data[1]), 1u << 3);
    assert_int_equal(look(16)->depth, 0); /* another model */
}

static void test_ready_is_who_has_read_the_log(void **unused)
{
    (void)unused;
    assert_int_equal(probed(1), QR_E_BUSY);
    chunk(1, 2, 3, QR_TIER_SSD);
    SAY(stand, writer(), tail_batch, .log_id = LOG, .newest_tx = 2, .first_tx = 1, .last_tx = 1, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
    assert_int_equal(probed(2), QR_E_BUSY);
    chunk(2, 2, 9, QR_TIER_SSD);
    tell(2, 2);
    assert_int_equal(probed(3), 0);
    chunk(3, 2, 15, QR_TIER_SSD);
    SAY(stand, writer(), tail_batch, .log_id = LOG, .newest_tx = 4, .first_tx = 3, .last_tx = 3, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
    assert_int_equal(probed(4), 0); /* once is enough */
}

static void test_a_log_that_cannot_be_read_is_not_waited_for(void **unused)
{
    (void)unused;
    stand->now_us += given->params.catalog_wait_ms * 1000 - 1;
    assert_int_equal(probed(1), QR_E_BUSY);
    stand->now_us++;
    assert_int_equal(probed(2), 0);
}

static void test_another_fingerprint_or_a_gap_ends_the_match(void **unused)
{
    (void)unused;
    chunk(1, 2, 3, QR_TIER_SSD);
    row(2, 2, 1, 0); /* the second chunk is there, its copy is not */
    columns_node(&columns, 9, 1, -1);
    columns_part(&columns, 9, 0, 50);
    chunk(3, 2, 15, QR_TIER_SSD);
    tell(1, 3);
    assert_int_equal(look(15)->depth, 1);
    row(4, 2, 1, 0);
    columns_copy(&columns, QR_CATALOG_REPLICA, 9, 0, QR_TIER_OBJECT);
    tell(4, 4);
    assert_int_equal(look(15)->depth, 3);
    assert_int_equal(look(15)->object_flags.data[1], 1);
    row(5, 2, 1, 0);
    columns_copy(&columns, QR_CATALOG_WITHDRAW, 9, 0, QR_TIER_OBJECT);
    tell(5, 5);
    assert_int_equal(look(15)->depth, 1);
    row(6, 2, 1, 0);
    columns_change(&columns, QR_CATALOG_DROP, 3);
    tell(6, 6);
    assert_int_equal(look(15)->depth, 0);
    chunk(7, 2, 3, QR_TIER_SSD); /* what continued it went with it */
    tell(7, 7);
    assert_int_equal(look(15)->depth, 1);
}

/* Model 1 has a group of the whole prefix and one of 20 tokens: boundary 5 (40 tokens) needs its chunks from row 21 on: 2, 3, 4. */
static void test_a_window_needs_only_the_last_chunks(void **unused)
{
    (void)unused;
    static const uint32_t spine[] = {4, 10, 16, 22, 28}; /* places 1, 3, 5, 7, 9 of model 1 */
    for (uint32_t i = 0; i < 5; i++) {
        row(i + 1, 2, 1, 1);
        columns_node(&columns, spine[i], i, -1);
        columns_part(&columns, spine[i], 0, 10);
        columns_copy(&columns, QR_CATALOG_REPLICA, spine[i], 0, QR_TIER_SSD);
        if (i < 2) continue;
        columns_part(&columns, spine[i], 1, 20);
        columns_copy(&columns, QR_CATALOG_REPLICA, spine[i], 1, QR_TIER_SSD);
    }
    tell(1, 5);
    const qr_matches_t *m = look(28);
    assert_int_equal(m->depth, 5);
    assert_int_equal(m->node_indexes.count, 5 + 3);
    assert_int_equal(look(22)->depth, 0); /* boundary 4 (32 tokens) needs row 13: chunk 1, which has no part of the window */
    row(6, 2, 1, 1);
    columns_copy(&columns, QR_CATALOG_WITHDRAW, 16, 1, QR_TIER_SSD);
    tell(6, 6);
    assert_int_equal(look(28)->depth, 0);
}

static void test_transactions_in_order_only(void **unused)
{
    (void)unused;
    chunk(1, 2, 3, QR_TIER_SSD);
    tell(1, 1);
    chunk(3, 2, 9, QR_TIER_SSD);
    tell(3, 3); /* a gap: nothing changes, and it is asked for later */
    assert_int_equal(look(9)->depth, 1);
    assert_int_equal(look(9)->tx, 1);
    assert_true(stand_alarm(stand, stand->now_us + 2000000));
    assert_int_equal(HEARD(stand, tail)->from_tx, 2);
    row(2, 2, 1, 0);
    columns_copy(&columns, QR_CATALOG_WITHDRAW, 3, 0, QR_TIER_SSD);
    chunk(3, 2, 3, QR_TIER_RAM);
    tell(2, 3);
    assert_int_equal(look(3)->ssd_masks.data[0], 0);
    chunk(1, 2, 3, QR_TIER_SSD); /* a repeat, and one new transaction behind it */
    chunk(2, 2, 3, QR_TIER_SSD);
    chunk(3, 2, 3, QR_TIER_SSD);
    chunk(4, 2, 9, QR_TIER_SSD);
    tell(1, 4);
    assert_int_equal(look(9)->tx, 4);
    assert_int_equal(look(9)->depth, 2);
    assert_int_equal(look(9)->ssd_masks.data[0], 0);
}

static void test_dead_nodes_are_hidden_and_their_memory_forgotten(void **unused)
{
    (void)unused;
    chunk(1, 2, 3, QR_TIER_RAM);
    chunk(2, 3, 0, QR_TIER_SSD);
    tell(1, 2);
    SAY(stand, mesh(), link_up, .node = 2, .node_epoch = 1);
    assert_int_equal(look(3)->depth, 1);
    SAY(stand, mesh(), link_down, .node = 3, .reason = 1);
    assert_int_equal(look(0)->depth, 0);
    SAY(stand, mesh(), link_up, .node = 3, .node_epoch = 9); /* it began anew: its disk is there */
    assert_int_equal(look(0)->depth, 1);
    SAY(stand, qr_address(NODE, 0, QR_ROLE_heartbeat, 0), peer_down, .node = 3, .node_epoch = 9, .silence_us = 5);
    assert_int_equal(look(0)->depth, 0);
    SAY(stand, mesh(), link_down, .node = 2, .reason = 1);
    assert_int_equal(look(3)->depth, 0);
    SAY(stand, mesh(), link_up, .node = 2, .node_epoch = 1); /* only the link was lost */
    assert_int_equal(HEARD(stand, tail)->from_tx, 3);
    assert_int_equal(look(3)->depth, 1);
    SAY(stand, mesh(), link_down, .node = 2, .reason = 1);
    SAY(stand, mesh(), link_up, .node = 2, .node_epoch = 4); /* it began anew: its memory is gone */
    assert_int_equal(look(3)->depth, 0);
    row(3, 2, 4, 0);
    columns_change(&columns, QR_CATALOG_DROP, 60);
    row(3, 3, 9, 0); /* the silent one speaks */
    tell(3, 3);
    assert_int_equal(look(3)->depth, 0); /* for good */
    assert_int_equal(look(0)->depth, 1);
}

static void test_the_least_valuable_leave(void **unused)
{
    (void)unused;
    end(NULL);
    boot(16);
    for (uint32_t i = 0; i < 8; i++) chunk(i + 1, 2, 6 * i + 3, QR_TIER_SSD); /* a spine of eight */
    tell(1, 8);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(look(45)->depth, 8);
    for (uint32_t i = 0; i < 20; i++) chunk(9 + i, 2, (i < 10 ? 6 * i + 4 : 6 * (i - 10) + 5), QR_TIER_SSD); /* two more, deeper ones */
    tell(9, 28);
    assert_int_equal(look(45)->depth, 8); /* it has served; the others have not */
    assert_true(look(58)->depth + look(59)->depth <= 8);
    char text[512];
    qr_text_t out;
    qr_text_init(&out, text, sizeof text);
    qr_catalog_replica_class.print(stand->state, given, &out);
    assert_non_null(strstr(text, "nodes 16 of 16"));
}

static void test_snapshots(void **unused)
{
    (void)unused;
    chunk(1, 2, 0, QR_TIER_SSD);
    tell(1, 1);
    chunk(1, 2, 3, QR_TIER_SSD);
    page(40, 0, 1, false);
    assert_int_equal(HEARD(stand, tail)->snapshot_tx, 40);
    assert_int_equal(HEARD(stand, tail)->cursor, 1);
    assert_int_equal(look(3)->depth, 0); /* not whole yet */
    chunk(1, 2, 15, QR_TIER_SSD);
    page(40, 0, 2, false); /* not the page that was asked for */
    assert_int_equal(HEARD_COUNT(stand, tail), 0);
    assert_true(stand_alarm(stand, stand->now_us + 2000000));
    assert_int_equal(HEARD(stand, tail)->cursor, 1);
    chunk(40, 2, 9, QR_TIER_SSD);
    page(40, 1, 2, true);
    assert_int_equal(HEARD(stand, tail)->from_tx, 41);
    assert_int_equal(HEARD(stand, tail)->snapshot_tx, 0);
    assert_int_equal(look(15)->depth, 2);
    assert_int_equal(look(0)->depth, 0); /* of before */
    assert_int_equal(look(0)->tx, 40);
    page(90, 0, 3, false);
    SAY(stand, writer(), tail_refused, .reason = QR_E_STALE);
    assert_true(stand_alarm(stand, stand->now_us + 2000000));
    assert_int_equal(HEARD(stand, tail)->snapshot_tx, 0);
    assert_int_equal(HEARD(stand, tail)->from_tx, 1);
}

static void test_another_log_and_a_shorter_one(void **unused)
{
    (void)unused;
    chunk(1, 2, 3, QR_TIER_SSD);
    chunk(2, 2, 9, QR_TIER_SSD);
    tell(1, 2);
    chunk(1, 2, 0, QR_TIER_SSD);
    SAY(stand, writer(), tail_batch, .log_id = LOG + 1, .newest_tx = 1, .first_tx = 1, .last_tx = 1, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
    assert_int_equal(HEARD(stand, tail)->from_tx, 2);
    assert_int_equal(HEARD(stand, tail)->log_id, LOG + 1);
    assert_int_equal(look(9)->depth, 0);
    assert_int_equal(look(0)->depth, 1);
    for (uint64_t tx = 1; tx <= 3; tx++) chunk(tx, 2, 3, QR_TIER_SSD);
    SAY(stand, writer(), tail_batch, .log_id = LOG + 2, .newest_tx = 3, .first_tx = 1, .last_tx = 3, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
    assert_int_equal(look(3)->depth, 1);
    assert_int_equal(look(3)->tx, 3);
    assert_int_equal(look(0)->depth, 0); /* of another, shorter one */
    tell(1, 0);                          /* LOG again, with nothing in it */
    assert_int_equal(look(3)->depth, 0);
    assert_int_equal(look(3)->tx, 0);
}

static void test_what_does_not_fit_changes_nothing(void **unused)
{
    (void)unused;
    chunk(1, 2, 3, QR_TIER_SSD);
    tell(1, 1);
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.group_counts[0] = 2; /* more windows than there are */
    tell(2, 2);
    assert_int_equal(HEARD_COUNT(stand, tail), 0);
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.kinds[1] = 99;
    tell(2, 2);
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.starts[0] = 3;
    tell(2, 2);
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.txs[0] = 5; /* of another transaction than it says */
    tell(2, 2);
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.groups[1] = 1;
    tell(2, 2);
    assert_int_equal(look(9)->tx, 1);
    assert_int_equal(look(9)->depth, 1);
    assert_true(stand_alarm(stand, stand->now_us + 2000000));
    chunk(2, 2, 9, QR_TIER_SSD);
    columns.windows[0] = 5; /* the same fingerprint with another layout: applied, not indexed */
    tell(2, 2);
    assert_int_equal(look(9)->tx, 2);
    assert_int_equal(look(9)->depth, 1);
}

static void test_links_drain_and_stop(void **unused)
{
    (void)unused;
    SAY(stand, mesh(), link_down, .node = 2, .reason = 0);
    SAY(stand, mesh(), link_up, .node = 2, .node_epoch = 1);
    assert_int_equal(HEARD(stand, tail)->from_tx, 1);
    SAY(stand, mesh(), link_up, .node = 2, .node_epoch = 1);
    assert_int_equal(HEARD_COUNT(stand, tail), 0); /* one at a time */
    SAY(stand, mesh(), drain, .budget_us = 5);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    SAY(stand, mesh(), stop, .budget_us = 5);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
}

/* ---- 200,000 random operations ------------------------------------------------------------------------------------------------- */

typedef struct run {
    qr_prng_t prng;
    plain_t plain;                   /* the log up to `applied` */
    columns_t log;                   /* every transaction */
    uint64_t newest, applied, known; /* known: newest the replica was told of */
    uint64_t link_epochs[OWNER_NODES], node_epochs[OWNER_NODES], silent_from[OWNER_NODES];
    bool down[OWNER_NODES], silent[OWNER_NODES], bounded;
    uint64_t lookups, hits;
} run_t;

/* One more transaction of one to three rows. */
static void run_write(run_t *r)
{
    uint64_t rows = qr_prng_between(&r->prng, 1, 3);
    r->newest++;
    for (uint64_t k = 0; k < rows; k++) {
        uint32_t node = (uint32_t)qr_prng_between(&r->prng, 1, 4), model = (uint32_t)qr_prng_below(&r->prng, MODELS);
        if (qr_prng_one_in(&r->prng, 40)) r->node_epochs[node]++;
        if (qr_prng_one_in(&r->prng, 30)) {
            columns_row(&r->log, r->newest, 1, 0, 0, 0, 0, MODELS);
            continue;
        }
        columns_row(&r->log, r->newest, 1, publisher(node), 1, r->node_epochs[node], r->newest, model);
        for (uint64_t i = qr_prng_below(&r->prng, 5); i > 0; i--) columns_random(&r->log, &r->prng, model, !r->bounded);
    }
}

/* Rows that count: their node is not silent any more. */
static void run_apply(run_t *r, const qr_catalog_batch_t *batch, const qr_catalog_row_t *row)
{
    uint32_t node = qr_address_node(row->publisher);
    plain_row(&r->plain, batch, row);
    if (row->group_count && row->tx > r->silent_from[node]) r->silent[node] = false;
}

/* Tells transactions first .. last of what is kept, whatever the replica expects. */
static void run_tell(run_t *r, uint64_t first, uint64_t last)
{
    const qr_append_t log = {COLUMNS_BATCH(&r->log)};
    const qr_catalog_batch_t all = QR_CATALOG_BATCH(&log);
    static columns_t some;
    columns_clear(&some);
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&all, &row);) {
        if (row.tx < first || row.tx > last) continue;
        columns_add_row(&some, &all, &row);
        if (row.tx > r->applied && first <= r->applied + 1) run_apply(r, &all, &row);
    }
    r->known = qr_max_u64(r->newest, last);
    if (first <= r->applied + 1 && last > r->applied) r->applied = last;
    SAY(stand, writer(), tail_batch, .log_id = LOG, .newest_tx = r->newest, .first_tx = first, .last_tx = last, COLUMNS_BATCH(&some));
}

static void run_look(run_t *r)
{
    uint32_t id = (uint32_t)qr_prng_below(&r->prng, IDS), ram = 0, ssd = 0, path[PATH_MAX_NODES];
    for (uint32_t k = 0; k < OWNER_NODES; k++) {
        if (r->down[k] || r->silent[k]) continue;
        ssd |= 1u << k;
        if (r->link_epochs[k] == 0 || r->link_epochs[k] == r->plain.node_epochs[k]) ram |= 1u << k;
    }
    const qr_matches_t *m = look(id);
    uint32_t depth = plain_lookup(&r->plain, id, ram, ssd);
    r->lookups++;
    r->hits += m->depth > 0;
    assert_int_equal(m->tx, r->applied);
    if (r->bounded)
        assert_true(m->depth <= depth);
    else
        assert_int_equal(m->depth, depth);
    id_path(id, path);
    uint32_t needed = 0;
    for (uint32_t g = 0; g < model_groups[id % MODELS]; g++)
        for (uint32_t j = 0; j < m->depth; j++) needed += plain_needed(model_windows[id % MODELS][g], m->depth, j);
    assert_int_equal(m->node_indexes.count, needed);
    for (uint64_t i = 0; i < m->node_indexes.count; i++) {
        const plain_part_t *p = &r->plain.nodes[path[m->node_indexes.data[i]]].parts[m->groups.data[i]];
        uint32_t said_ram = mask_of_nodes(m, m->ram_masks.data[i]), said_ssd = mask_of_nodes(m, m->ssd_masks.data[i]);
        assert_int_equal(m->sizes.data[i], p->bytes);
        if (r->bounded) { /* a chunk that left and came again has forgotten copies */
            assert_true((said_ram & ~(p->ram & ram)) == 0 && (said_ssd & ~(p->ssd & ssd)) == 0 && m->object_flags.data[i] <= p->object);
        } else {
            assert_int_equal(said_ram, p->ram & ram);
            assert_int_equal(said_ssd, p->ssd & ssd);
            assert_int_equal(m->object_flags.data[i], p->object);
        }
    }
}

static void run_link(run_t *r)
{
    uint32_t node = (uint32_t)qr_prng_between(&r->prng, 3, 4); /* node 2 has the writer: its link is left alone here */
    if (!r->down[node] && !r->silent[node]) {
        if (qr_prng_one_in(&r->prng, 2)) {
            r->down[node] = true;
            SAY(stand, mesh(), link_down, .node = node, .reason = 1);
        } else {
            r->silent[node] = true;
            r->silent_from[node] = qr_max_u64(r->known, r->applied);
            SAY(stand, qr_address(NODE, 0, QR_ROLE_heartbeat, 0), peer_down, .node = node, .node_epoch = 1, .silence_us = 9);
        }
        return;
    }
    r->down[node] = r->silent[node] = false;
    r->link_epochs[node] = r->node_epochs[node] + qr_prng_below(&r->prng, 2);
    SAY(stand, mesh(), link_up, .node = node, .node_epoch = r->link_epochs[node]);
}

/* The whole log so far as pages: what a replica is told that was too far behind. */
static void run_snapshot(run_t *r)
{
    uint32_t rows = r->log.row_count, per_page = 1 + rows / 3;
    memset(&r->plain, 0, sizeof r->plain);
    const qr_append_t log = {COLUMNS_BATCH(&r->log)};
    const qr_catalog_batch_t all = QR_CATALOG_BATCH(&log);
    for (qr_catalog_row_t each = {0}; qr_catalog_row_next(&all, &each);) run_apply(r, &all, &each);
    r->applied = r->known = r->newest;
    qr_catalog_row_t row = {0};
    for (uint32_t at = 0; at < rows; at += per_page) {
        uint32_t windows = 0, first_window = row.next_window, first_change = row.first_change + row.change_count, changes = 0;
        uint32_t count = qr_min_u32(per_page, rows - at);
        for (uint32_t k = 0; k < count; k++) {
            assert_true(qr_catalog_row_next(&all, &row));
            windows += row.group_count;
            changes += row.change_count;
        }
        qr_tail_batch_t b = {
            .log_id = LOG,
            .newest_tx = r->newest,
            .first_tx = at,
            .snapshot_tx = r->newest,
            .cursor = at + count,
            .last = at + count == rows,
            .txs = {r->log.txs + at, count},
            .writer_epochs = {r->log.writer_epochs + at, count},
            .publishers = {r->log.publishers + at, count},
            .publisher_epochs = {r->log.publisher_epochs + at, count},
            .node_epochs = {r->log.node_epochs + at, count},
            .sequences = {r->log.sequences + at, count},
            .fingerprints = {r->log.fingerprints + 32 * (size_t)at, 32ull * count},
            .chunk_tokens = {r->log.chunk_tokens + at, count},
            .group_counts = {r->log.group_counts + at, count},
            .windows = {r->log.windows + first_window, windows},
            .change_counts = {r->log.change_counts + at, count},
            .kinds = {r->log.kinds + first_change, changes},
            .tiers = {r->log.tiers + first_change, changes},
            .groups = {r->log.groups + first_change, changes},
            .chains = {r->log.chains + 32 * (size_t)first_change, 32ull * changes},
            .digests = {r->log.digests + 32 * (size_t)first_change, 32ull * changes},
            .starts = {r->log.starts + first_change, changes},
            .counts = {r->log.counts + first_change, changes},
            .sizes = {r->log.sizes + first_change, changes},
        };
        stand_say(stand, writer(), QR_MESSAGE_tail_batch, &b);
    }
}

/* Begins another log, so that what is kept stays small. */
static void run_renew(run_t *r)
{
    columns_clear(&r->log);
    memset(&r->plain, 0, sizeof r->plain);
    r->newest = r->applied = r->known = 0;
    SAY(stand, writer(), tail_batch, .log_id = LOG + 1, .newest_tx = 0, .first_tx = 1, .last_tx = 0);
}

static void run(uint64_t nodes_max, uint64_t seed, uint64_t operations)
{
    end(NULL);
    boot(nodes_max);
    run_t *r = calloc(1, sizeof *r);
    qr_prng_init(&r->prng, seed);
    r->bounded = nodes_max < IDS;
    for (uint32_t k = 0; k < OWNER_NODES; k++) r->node_epochs[k] = 1;
    for (uint64_t i = 0; i < operations; i++) {
        uint64_t what = qr_prng_below(&r->prng, 100);
        if (r->log.row_count + 4 > 600) {
            run_renew(r);
        } else if (what < 20) {
            run_write(r);
        } else if (what < 40) {
            uint64_t last = qr_prng_between(&r->prng, r->applied, r->newest);
            if (last > r->applied) run_tell(r, r->applied + 1 - qr_prng_below(&r->prng, qr_min_u64(r->applied, 4) + 1), last);
        } else if (what < 44) {
            if (r->newest > r->applied + 1) run_tell(r, r->applied + 2, r->newest); /* a gap */
            if (r->applied > 2) run_tell(r, r->applied - 1, r->applied);            /* a repeat */
        } else if (what < 48) {
            run_link(r);
        } else if (what == 48 && qr_prng_one_in(&r->prng, 20)) {
            if (r->newest) run_snapshot(r);
        } else {
            run_look(r);
        }
    }
    assert_true(r->hits > operations / 20);
    print_message("%llu lookups, %llu with a match\n", (unsigned long long)r->lookups, (unsigned long long)r->hits);
    free(r);
}

static void test_random_against_the_plain_model(void **unused)
{
    (void)unused;
    run(128, 11, OPERATIONS);
}

static void test_random_within_a_small_bound(void **unused)
{
    (void)unused;
    run(24, 12, OPERATIONS / 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_a_chain_is_found_up_to_where_it_stands),
        TEST(test_ready_is_who_has_read_the_log),
        TEST(test_a_log_that_cannot_be_read_is_not_waited_for),
        TEST(test_another_fingerprint_or_a_gap_ends_the_match),
        TEST(test_a_window_needs_only_the_last_chunks),
        TEST(test_transactions_in_order_only),
        TEST(test_dead_nodes_are_hidden_and_their_memory_forgotten),
        TEST(test_the_least_valuable_leave),
        TEST(test_snapshots),
        TEST(test_another_log_and_a_shorter_one),
        TEST(test_what_does_not_fit_changes_nothing),
        TEST(test_links_drain_and_stop),
        TEST(test_random_against_the_plain_model),
        TEST(test_random_within_a_small_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
