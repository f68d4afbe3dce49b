/* link: qr_io_facts_book qr_store_faults qr_actor_catalog_batch qr_messages qr_schema qr_base */
/* facts_test.c - the catalog's log and facts against the plain model: transactions drawn from seeds, restarts, snapshots, cuts, pages of
 * snapshots, questions with filters and about the past, local tables. */
#include "tests/unit/facts_stand.h"

#include "store/fail.h"

#include <errno.h>
#include <leveldb/c.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SEEDS = 30, TXS = 120 };

/* The snapshot as whoever begins reads it: its rows. */
static uint64_t read_snapshot(qr_facts_book_t *book, uint64_t from_tx, columns_t *rows, uint32_t *ret_pages)
{
    qr_log_read_t q = {.from_tx = from_tx};
    qr_log_batch_t b;
    columns_clear(rows);
    *ret_pages = 0;
    do {
        assert_int_equal(qr_facts_book_read(book, &q, &b), 0);
        assert_int_equal(b.log_id, 900);
        const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&b);
        assert_true(qr_catalog_batch_valid(&batch, false, b.first_tx, b.last_tx));
        assert_int_equal(b.first_tx, q.cursor);
        assert_true(b.snapshot_tx && (b.last || b.cursor > q.cursor));
        columns_add(rows, &batch);
        q.snapshot_tx = b.snapshot_tx;
        q.cursor = b.cursor;
        ++*ret_pages;
    } while (!b.last);
    assert_int_equal(qr_facts_book_read(book, &q, &b), QR_E_STALE); /* behind its last page */
    return b.snapshot_tx ? q.snapshot_tx : 0;
}

static void check_snapshot(const stand_t *s, qr_facts_book_t *book)
{
    static columns_t rows;
    static plain_t wanted, said;
    uint32_t pages;
    uint64_t tx = read_snapshot(book, stand_state(book).log.newest + 2, &rows, &pages);
    stand_plain(s, tx, &wanted);
    const qr_append_t body = {COLUMNS_BATCH(&rows)};
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&body);
    memset(&said, 0, sizeof said);
    plain_batch(&said, &batch, UINT64_MAX);
    assert_true(stand_same(&wanted, &said));
    /* Of every publisher's newest epoch the last 16 sequences have a row each, with the transaction that held it. */
    for (uint32_t node = 1; node <= STAND_NODES; node++) {
        uint64_t epoch = 0, known[2][64] = {{0}};
        for (uint32_t i = 0; i < s->all.row_count; i++) {
            if (s->all.txs[i] > tx || s->all.publishers[i] != stand_publisher(node)) continue;
            if (s->all.publisher_epochs[i] != epoch) memset(known, 0, sizeof known);
            epoch = s->all.publisher_epochs[i];
            known[0][s->all.sequences[i] % 16] = s->all.sequences[i];
            known[1][s->all.sequences[i] % 16] = s->all.txs[i];
        }
        uint64_t said_known[2][64] = {{0}};
        for (uint32_t i = 0; i < rows.row_count; i++) {
            if (rows.publishers[i] != stand_publisher(node) || rows.sequences[i] == 0) continue;
            assert_int_equal(rows.publisher_epochs[i], epoch);
            said_known[0][rows.sequences[i] % 16] = rows.sequences[i];
            said_known[1][rows.sequences[i] % 16] = rows.txs[i];
        }
        assert_memory_equal(known, said_known, sizeof known);
    }
}

/* Whole transactions from a number on are those of the log. */
static void check_records(const stand_t *s, qr_facts_book_t *book, uint64_t from)
{
    while (from <= s->txs) {
        qr_log_batch_t b;
        const qr_log_read_t q = {.from_tx = from};
        assert_int_equal(qr_facts_book_read(book, &q, &b), 0);
        if (b.snapshot_tx) {
            assert_true(from < stand_state(book).log.oldest);
            return;
        }
        const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&b);
        assert_true(qr_catalog_batch_valid(&batch, true, b.first_tx, b.last_tx));
        assert_true(b.first_tx == from && b.last_tx >= from && b.newest_tx == s->txs);
        uint32_t at = 0;
        while (s->all.txs[at] < from) at++;
        for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&batch, &row); at++) {
            assert_int_equal(row.tx, s->all.txs[at]);
            assert_int_equal(row.sequence, s->all.sequences[at]);
            assert_int_equal(row.change_count, s->all.change_counts[at]);
        }
        from = b.last_tx + 1;
    }
}

static void run(uint64_t seed)
{
    stand_t *s = stand_new(seed);
    qr_facts_book_t *book = stand_open(s);
    while (s->txs < TXS) {
        assert_int_equal(stand_step(s, book), 0);
        switch (qr_prng_below(&s->prng, 24)) {
        case 0:
            qr_facts_book_close(&book);
            book = stand_open(s);
            assert_int_equal(stand_state(book).rebuilt, 0);
            break;
        case 1:
            assert_true(qr_facts_book_catch_up(book, UINT32_MAX) == 0);
            assert_int_equal(qr_facts_book_snapshot(book), 0);
            break;
        case 2: assert_true(qr_facts_book_catch_up(book, 1) >= 0); break;
        case 3: assert_true(stand_equal(s, book, 0, s->txs)); break;
        case 4: check_snapshot(s, book); break;
        case 5: check_records(s, book, qr_prng_between(&s->prng, 1, s->txs)); break;
        case 6: {
            uint64_t tx = qr_prng_between(&s->prng, 1, s->txs);
            assert_true(stand_equal(s, book, tx, tx));
            break;
        }
        default: break;
        }
    }
    assert_true(stand_equal(s, book, 0, s->txs));
    assert_int_equal(qr_facts_book_verify(book), 0);
    /* The facts made again from the log alone are the same, and say so by their sum. */
    qr_facts_state_t before = stand_state(book).facts;
    qr_facts_book_close(&book);
    char message[512];
    qr_facts_book_config_t config = stand_config(s);
    config.rebuild = true;
    assert_int_equal(qr_facts_book_open(&config, &book, message, sizeof message), 0);
    qr_facts_state_t after = stand_state(book).facts;
    assert_memory_equal(&before, &after, sizeof before);
    qr_facts_book_close(&book);
    stand_destroy(s);
}

static void test_facts_are_what_the_log_says(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) run(seed);
}

/* Repeats are answered the same; another's number, a gap and an earlier epoch are not. */
static void test_a_number_belongs_to_one_writer(void **unused)
{
    (void)unused;
    static columns_t one;
    stand_t *s = stand_new(5);
    qr_facts_book_t *book = stand_open(s);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(stand_step(s, book), 0);
    stand_draw(s, &one);
    s->epochs[s->txs] = 50;
    qr_append_t body = stand_append_body(s, &one, s->txs);
    for (uint32_t i = 0; i < one.row_count; i++) one.writer_epochs[i] = 50;
    assert_int_equal(qr_facts_book_append(book, &body, 1), 0);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(qr_facts_book_append(book, &body, 2), 0);
        body.writer_epoch = 51;
        assert_int_equal(qr_facts_book_append(book, &body, 2), QR_E_INVALID); /* its rows say another epoch */
        for (uint32_t i = 0; i < one.row_count; i++) one.writer_epochs[i] = 51;
        assert_int_equal(qr_facts_book_append(book, &body, 2), QR_E_STALE);
        for (uint32_t i = 0; i < one.row_count; i++) one.writer_epochs[i] = 49, one.txs[i] = 12;
        body.writer_epoch = 49, body.tx = 12;
        assert_int_equal(qr_facts_book_append(book, &body, 2), QR_E_STALE);
        for (uint32_t i = 0; i < one.row_count; i++) one.writer_epochs[i] = 50, one.txs[i] = 13;
        body.writer_epoch = 50, body.tx = 13;
        assert_int_equal(qr_facts_book_append(book, &body, 2), QR_E_STALE);
        for (uint32_t i = 0; i < one.row_count; i++) one.txs[i] = 11;
        body.tx = 11;
        qr_facts_book_close(&book); /* a restart knows it too, also from a snapshot alone */
        book = stand_open(s);
        if (turn == 0) continue;
        assert_int_equal(qr_facts_book_snapshot(book), 0);
        qr_facts_book_close(&book);
        book = stand_open(s);
        assert_int_equal(stand_state(book).log.newest_epoch, 50);
    }
    qr_facts_book_close(&book);
    stand_destroy(s);
}

/* The log stays within its bound, and what was cut is refused with the oldest transaction. */
static void test_history_is_bounded(void **unused)
{
    (void)unused;
    stand_t *s = stand_new(6);
    char message[512];
    qr_facts_book_t *book;
    qr_facts_book_config_t config = stand_config(s);
    config.history_bytes = 60 * 4096;
    config.snapshot_every = 20;
    assert_int_equal(qr_facts_book_open(&config, &book, message, sizeof message), 0);
    uint64_t most = 0;
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(stand_step(s, book), 0);
        assert_int_equal(qr_facts_book_catch_up(book, 100), 0);
        assert_int_equal(qr_facts_book_maintain(book), 0);
        most = qr_max_u64(most, stand_state(book).log.bytes);
    }
    qr_facts_book_state_t state = stand_state(book);
    assert_true(most <= config.history_bytes + 32 * 4096); /* and the newest snapshot with what followed it */
    assert_true(state.log.oldest > 100 && state.oldest_tx > 100 && state.oldest_tx < 200);
    for (uint64_t tx = state.oldest_tx; tx <= 200; tx += 9) assert_true(stand_equal(s, book, tx, tx));
    qr_fact_item_t item;
    qr_facts_cursor_t cursor = {.bytes = 0};
    const qr_facts_filter_t filter = {.kind = QR_FACTS_NODES};
    uint32_t count;
    uint64_t tx;
    assert_int_equal(qr_facts_book_query(book, state.oldest_tx - 1, &filter, &cursor, &item, 1, &count, &tx), QR_E_STALE);
    assert_int_equal(qr_facts_book_query(book, 201, &filter, &cursor, &item, 1, &count, &tx), QR_E_NOT_FOUND);
    static columns_t rows;
    uint32_t pages;
    assert_true(read_snapshot(book, 1, &rows, &pages) > 100);
    qr_facts_book_close(&book);
    assert_int_equal(qr_facts_book_open(&config, &book, message, sizeof message), 0);
    assert_true(stand_equal(s, book, 0, 200));
    check_snapshot(s, book);
    qr_facts_book_close(&book);
    stand_destroy(s);
}

/* Every filter alone against a walk over everything. */
static void test_filters(void **unused)
{
    (void)unused;
    static qr_fact_item_t all[4 * STAND_ITEMS], some[4 * STAND_ITEMS];
    stand_t *s = stand_new(7);
    qr_facts_book_t *book = stand_open(s);
    for (uint32_t i = 0; i < 150; i++) assert_int_equal(stand_step(s, book), 0);
    uint8_t fingerprint[32];
    model_fingerprint(1, fingerprint);
    const qr_facts_filter_t filters[] = {{.tier = QR_TIER_SSD},
                                         {.owner = 3},
                                         {.tier = QR_TIER_RAM, .owner = 2},
                                         {.token_from = CHUNK, .token_to = 3 * CHUNK},
                                         {.token_to = CHUNK},
                                         {.token_from = 2 * CHUNK},
                                         {.time_from_us = 60000, .time_to_us = 120000},
                                         {.fingerprint = fingerprint}};
    uint64_t passed = 0;
    for (uint32_t kind = QR_FACTS_NODES; kind <= QR_FACTS_REPLICAS; kind++) {
        const qr_facts_filter_t none = {.kind = kind};
        uint32_t count = stand_items(book, 0, &none, STAND_ITEMS, all, QR_COUNT(all));
        uint32_t layout = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++)
            if (chain_id(all[i].chain) % MODELS == 1) layout = all[i].layout;
        for (size_t f = 0; f < QR_COUNT(filters); f++) {
            qr_facts_filter_t filter = filters[f];
            filter.kind = kind;
            uint32_t found = stand_items(book, 0, &filter, 11, some, QR_COUNT(some)), at = 0;
            for (uint32_t i = 0; i < count; i++) {
                static plain_t plain;
                stand_plain(s, s->txs, &plain);
                uint32_t id = chain_id(all[i].chain), ram = 0, ssd = 0, object = 0;
                for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) {
                    if (kind == QR_FACTS_PARTS && g != all[i].group) continue;
                    ram |= plain.nodes[id].parts[g].ram, ssd |= plain.nodes[id].parts[g].ssd, object |= plain.nodes[id].parts[g].object;
                }
                uint32_t mask = filter.tier == QR_TIER_RAM ? ram : filter.tier == QR_TIER_SSD ? ssd : ram | ssd;
                bool copy = kind == QR_FACTS_REPLICAS
                                ? (!filter.tier || all[i].tier == filter.tier) && (!filter.owner || all[i].owner == filter.owner)
                            : filter.owner ? mask >> filter.owner & 1
                                           : mask || (!filter.tier && object);
                bool want = (!filter.tier && !filter.owner) || copy;
                want = want && all[i].start + all[i].count > filter.token_from && (!filter.token_to || all[i].start < filter.token_to);
                want = want && all[i].time_us >= filter.time_from_us && (!filter.time_to_us || all[i].time_us < filter.time_to_us);
                want = want && (!filter.fingerprint || all[i].layout == layout);
                if (!want) continue;
                assert_true(at < found);
                assert_memory_equal(&all[i], &some[at], sizeof all[i]);
                at++;
            }
            assert_int_equal(at, found);
            passed += found;
        }
    }
    assert_true(passed > 100);
    qr_facts_book_close(&book);
    stand_destroy(s);
}

static void test_local_tables(void **unused)
{
    (void)unused;
    stand_t *s = stand_new(8);
    char path[2 * STORE_PATH], message[256];
    (void)snprintf(path, sizeof path, "%s/view", s->folder);
    qr_facts_t *facts;
    assert_int_equal(qr_facts_open(path, &facts, message, sizeof message), 0);
    qr_fact_trust_t trust = {.boot_id = "boot", .device = 1, .inode = 2, .bytes = 3, .mtime_ns = 4, .ctime_ns = 5}, got;
    uint8_t name[32] = {9};
    assert_int_equal(qr_facts_trust_get(facts, name, &got), -QR_E_NOT_FOUND);
    assert_int_equal(qr_facts_trust_put(facts, name, &trust), 0);
    for (uint64_t i = 1; i <= 3; i++) {
        qr_fact_decision_t d = {.request_id = 10 * i, .choice = QR_SOURCE_SSD};
        assert_int_equal(qr_facts_decision_add(facts, &d, 100), 0);
        assert_int_equal(d.number, i);
    }
    qr_facts_close(&facts, true);
    assert_int_equal(qr_facts_open(path, &facts, message, sizeof message), 0);
    assert_int_equal(qr_facts_trust_get(facts, name, &got), 0);
    assert_memory_equal(&got, &trust, sizeof got);
    assert_int_equal(qr_facts_trust_remove(facts, name), 0);
    assert_int_equal(qr_facts_trust_get(facts, name, &got), -QR_E_NOT_FOUND);
    uint32_t count;
    qr_fact_decision_t decision = {.number = 1};
    assert_int_equal(qr_facts_decision_next(facts, 1, &decision), 0);
    assert_int_equal(decision.number, 2);
    assert_int_equal(decision.request_id, 20);
    assert_int_equal(qr_facts_decision_next(facts, 3, &decision), -QR_E_NOT_FOUND);
    for (uint32_t i = 4; i <= 110; i++) assert_int_equal(qr_facts_decision_add(facts, &decision, 100), 0);
    assert_int_equal(qr_facts_decision_next(facts, 0, &decision), 0);
    assert_int_equal(decision.number, 11);                                                              /* the others left the ring */
    for (uint32_t i = 0; i < 90; i++) assert_int_equal(qr_facts_decision_add(facts, &decision, 20), 0); /* it is smaller now */
    assert_int_equal(decision.number, 200);
    assert_int_equal(qr_facts_decision_next(facts, 0, &decision), 0);
    assert_int_equal(decision.number, 181);
    qr_fact_policy_t policy = {.restore_ns = 5};
    assert_int_equal(qr_facts_policy_get(facts, 0, &policy), -QR_E_NOT_FOUND);
    assert_int_equal(qr_facts_policy_put(facts, &policy), 0);
    assert_int_equal(policy.version, 2); /* 1 is built in */
    policy.restore_ns = 6;
    assert_int_equal(qr_facts_policy_put(facts, &policy), 0);
    assert_int_equal(qr_facts_policy_get(facts, 2, &policy), 0);
    assert_int_equal(policy.restore_ns, 5);
    assert_int_equal(qr_facts_policy_get(facts, 0, &policy), 0);
    assert_int_equal(policy.version, 3);
    assert_int_equal(policy.restore_ns, 6);
    qr_fact_demand_t demand = {.tier = QR_TIER_SSD, .owner = 1, .priority = 3, .expires_us = 100}, demands[4];
    assert_int_equal(qr_facts_demand_put(facts, &demand), 0);
    demand.owner = 2, demand.expires_us = 200;
    assert_int_equal(qr_facts_demand_put(facts, &demand), 0);
    assert_int_equal(qr_facts_demands(facts, 50, demands, 4, &count), 0);
    assert_int_equal(count, 2);
    assert_int_equal(qr_facts_demands(facts, 150, demands, 4, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(demands[0].owner, 2);
    for (uint32_t i = 0; i < QR_FACTS_DEMANDS_MAX; i++) {
        demand.owner = 100 + i;
        assert_int_equal(qr_facts_demand_put(facts, &demand), i + 1 < QR_FACTS_DEMANDS_MAX ? 0 : -QR_E_LIMIT);
    }
    assert_int_equal(qr_facts_verify(facts, message, sizeof message), 0);
    qr_facts_close(&facts, true);
    stand_destroy(s);
}

/* A value that LevelDB vouches for and its own check does not: what repair would bring back. */
static void test_every_value_is_checked_by_itself(void **unused)
{
    (void)unused;
    stand_t *s = stand_new(12);
    char path[2 * STORE_PATH], message[256], *error = NULL, key[33] = "t";
    (void)snprintf(path, sizeof path, "%s/view", s->folder);
    qr_facts_t *facts = NULL;
    qr_fact_trust_t trust = {.inode = 2};
    assert_int_equal(qr_facts_open(path, &facts, message, sizeof message), 0);
    assert_int_equal(qr_facts_trust_put(facts, (const uint8_t *)key + 1, &trust), 0);
    qr_facts_close(&facts, true);
    leveldb_options_t *options = leveldb_options_create();
    leveldb_writeoptions_t *write = leveldb_writeoptions_create();
    leveldb_t *db = leveldb_open(options, path, &error);
    assert_null(error);
    char value[4 + sizeof trust] = {1, 2, 3, 4};
    leveldb_put(db, write, key, sizeof key, value, sizeof value, &error);
    assert_null(error);
    leveldb_close(db);
    leveldb_options_destroy(options);
    leveldb_writeoptions_destroy(write);
    assert_int_equal(qr_facts_open(path, &facts, message, sizeof message), -QR_E_FORMAT);
    assert_non_null(strstr(message, "checksum"));
    stand_destroy(s);
}

static void test_reuse_is_counted_and_asked_for(void **unused)
{
    (void)unused;
    static qr_fact_item_t items[4 * STAND_ITEMS];
    stand_t *s = stand_new(9);
    qr_facts_book_t *book = stand_open(s);
    for (uint32_t i = 0; i < 60; i++) assert_int_equal(stand_step(s, book), 0);
    const qr_facts_filter_t all = {.kind = QR_FACTS_NODES}, reused = {.kind = QR_FACTS_NODES, .reuse_least = 3};
    assert_true(stand_items(book, 0, &all, 100, items, QR_COUNT(items)) > 2);
    qr_fact_item_t one = items[1];
    qr_facts_book_close(&book);
    char path[2 * STORE_PATH], message[256];
    (void)snprintf(path, sizeof path, "%s/facts/view", s->folder);
    qr_facts_t *facts;
    assert_int_equal(qr_facts_open(path, &facts, message, sizeof message), 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(qr_facts_reuse_add(facts, one.chain, 1, 5), 0);
    assert_int_equal(qr_facts_reuse_add(facts, items[0].chain, 2, 5), 0);
    uint32_t walked = 0;
    const uint8_t nobody[32] = {1, 2, 3};
    assert_int_equal(qr_facts_reuse_chain(facts, nobody, 0, 5, &walked), 0);
    assert_int_equal(walked, 0); /* it has left the catalog meanwhile */
    qr_facts_close(&facts, true);
    book = stand_open(s);
    assert_int_equal(stand_items(book, 0, &reused, 100, items, QR_COUNT(items)), 1);
    assert_memory_equal(items[0].chain, one.chain, 32);
    assert_int_equal(items[0].reuse, 3);
    /* A chain: its last chunk, its parent, and so on, down to the row that stood already. */
    uint32_t count = stand_items(book, 0, &all, 100, items, QR_COUNT(items)), last = 0;
    while (last < count && items[last].start == 0) last++;
    assert_true(last < count);
    facts = qr_facts_book_view(book);
    assert_non_null(facts);
    assert_int_equal(qr_facts_reuse_chain(facts, items[last].chain, items[last].start, 5, &walked), 0);
    assert_int_equal(walked, 1);
    assert_int_equal(qr_facts_reuse_chain(facts, items[last].chain, 0, 5, &walked), 0);
    assert_int_equal(walked, 1 + items[last].start / items[last].count);
    qr_facts_book_close(&book);
    stand_destroy(s);
}

/* A failed sync of the log: the publish is refused, nothing of it is said by anybody, the number is used again. */
static void test_a_failed_sync_is_a_refusal(void **unused)
{
    (void)unused;
    static columns_t one;
    stand_t *s = stand_new(10);
    qr_facts_book_t *book = stand_open(s);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(stand_step(s, book), 0);
    stand_draw(s, &one);
    const qr_append_t body = stand_append_body(s, &one, s->txs);
    for (uint32_t k = 0; k < 2; k++) {
        qr_store_fail_arm(k ? QR_STORE_POINT_log_folder_fsync : QR_STORE_POINT_log_fsync, 1, EIO, false);
        assert_int_equal(qr_facts_book_append(book, &body, 1), QR_E_IO);
        assert_true(stand_equal(s, book, 0, 5));
        assert_int_equal(stand_state(book).log.poisoned, k + 1);
    }
    assert_int_equal(qr_facts_book_append(book, &body, 1), 0);
    assert_true(stand_equal(s, book, 0, 6));
    qr_facts_book_close(&book);
    book = stand_open(s);
    assert_true(stand_equal(s, book, 0, 6));
    qr_facts_book_close(&book);
    stand_destroy(s);
}

static void test_one_process_at_a_time(void **unused)
{
    (void)unused;
    stand_t *s = stand_new(11);
    qr_facts_book_t *book = stand_open(s), *other = NULL;
    char message[1200];
    qr_facts_book_config_t config = stand_config(s);
    assert_int_equal(qr_facts_book_open(&config, &other, message, sizeof message), -QR_E_IN_USE);
    assert_non_null(strstr(message, "stop the server"));
    qr_facts_book_close(&book);
    config.existing = true;
    assert_int_equal(qr_facts_book_open(&config, &other, message, sizeof message), 0);
    qr_facts_book_close(&other);
    config.store = "/nonexistent/quire";
    assert_int_equal(qr_facts_book_open(&config, &other, message, sizeof message), -QR_E_NOT_FOUND);
    stand_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_facts_are_what_the_log_says),
                                       cmocka_unit_test(test_a_number_belongs_to_one_writer),
                                       cmocka_unit_test(test_history_is_bounded),
                                       cmocka_unit_test(test_filters),
                                       cmocka_unit_test(test_local_tables),
                                       cmocka_unit_test(test_every_value_is_checked_by_itself),
                                       cmocka_unit_test(test_reuse_is_counted_and_asked_for),
                                       cmocka_unit_test(test_a_failed_sync_is_a_refusal),
                                       cmocka_unit_test(test_one_process_at_a_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
