/* link: qr_actor_catalog_writer qr_actor_catalog_batch qr_schema */
/* The catalog's writer by hand, then 200,000 random operations against a plain log: facts, publishers and replicas are played here. */
#include "tests/unit/stand.h"

#include "actors/catalog_writer.h"
#include "base/error.h"
#include "tests/unit/catalog_model.h"

enum { NODE = 1, LOG = 900, EPOCH = 5, OPERATIONS = 200000 };

static uint64_t writer(void) { return qr_address(NODE, 0, QR_ROLE_catalog_writer, 0); }
static uint64_t facts(void) { return qr_address(NODE, 0, QR_ROLE_facts, 0); }
static uint64_t mesh(void) { return qr_address(NODE, 0, QR_ROLE_mesh, 0); }
static uint64_t publisher(uint32_t node) { return qr_address(node, 1, QR_ROLE_checkpoint_writer, 0); }
static uint64_t replica(uint32_t node) { return qr_address(node, 0, QR_ROLE_catalog_replica, 0); }

static qr_given_t *given;
static stand_t *stand;
static columns_t columns;

static void say(uint64_t from, uint64_t epoch, uint16_t type, const void *body)
{
    qr_message_t message = {.type = type, .version = 1, .from = from, .to = writer(), .epoch = epoch, .now_us = stand->now_us};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    qr_outbox_reset(&stand->outbox, stand->actor->max_out);
    stand->actor->handle(stand->state, given, &message, &stand->outbox);
    stand->actor->check(stand->state, given);
}

static void new_stand(void)
{
    stand = stand_new(&qr_catalog_writer_class, given, writer());
    stand->outbox.alarm_us = QR_NEVER_US;
    columns_clear(&columns);
}

/* Answers a log_read with the columns as transactions first .. last. */
static void tell_log(uint64_t first, uint64_t last, uint64_t newest)
{
    SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = newest, .first_tx = first, .last_tx = last, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
}
static void appended(uint64_t tx) { SAY(stand, facts(), appended, .tx = tx); }

static int begin(void **unused)
{
    (void)unused;
    given = stand_given();
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH, .seed = 3);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 1);
    assert_int_equal(HEARD_COUNT(stand, ready), 0);
    tell_log(1, 0, 0);
    assert_int_equal(HEARD(stand, append)->tx, 1); /* the claim */
    assert_int_equal(HEARD(stand, append)->writer_epoch, EPOCH);
    assert_int_equal(HEARD(stand, append)->kinds.count, 0);
    assert_int_equal(HEARD_COUNT(stand, ready), 0);
    appended(1);
    assert_int_equal(HEARD(stand, ready)->reason, 0);
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    free(given);
    return 0;
}

/* One chunk of `id` under a sequence. */
static void publish_as(uint32_t node, uint64_t epoch, uint64_t sequence, uint32_t id)
{
    columns_t *c = &columns;
    columns_clear(c);
    columns_chunk(c, id, QR_TIER_SSD);
    qr_publish_t body = {.sequence = sequence,
                         .node_epoch = epoch,
                         .chunk_tokens = CHUNK,
                         .windows = {model_windows[id % MODELS], model_groups[id % MODELS]},
                         COLUMNS_CHANGES(c)};
    model_fingerprint(id % MODELS, body.fingerprint.bytes);
    say(publisher(node), epoch, QR_MESSAGE_publish, &body);
    columns_clear(c);
}
static void publish(uint32_t node, uint64_t sequence, uint32_t id) { publish_as(node, 1, sequence, id); }
static void ask_tail(uint32_t node, uint64_t log_id, uint64_t from_tx)
{
    SAY(stand, replica(node), tail, .log_id = log_id, .from_tx = from_tx);
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------- */

static void test_answers_only_after_the_log_has_it(void **unused)
{
    (void)unused;
    ask_tail(2, LOG, 2);
    assert_int_equal(stand->outbox.count, 0); /* it waits */
    publish(2, 1, 3);
    assert_int_equal(HEARD(stand, append)->tx, 2);
    assert_int_equal(stand->outbox.count, 1);
    appended(2);
    const qr_publish_committed_t *c = HEARD(stand, publish_committed);
    assert_int_equal(c->sequence, 1);
    assert_int_equal(c->tx, 2);
    const qr_tail_batch_t *b = HEARD(stand, tail_batch);
    assert_int_equal(b->log_id, LOG);
    assert_int_equal(b->first_tx, 2);
    assert_int_equal(b->last_tx, 2);
    assert_int_equal(b->newest_tx, 2);
    assert_int_equal(b->publishers.data[0], publisher(2));
    assert_int_equal(b->kinds.count, 3);
    assert_int_equal(b->sizes.data[1], 103);
    assert_int_equal(stand->outbox.count, 2);
}

static void test_what_waits_becomes_one_transaction(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    publish(2, 2, 9);
    assert_int_equal(stand->outbox.count, 0);
    publish(3, 1, 4);
    assert_int_equal(stand->outbox.count, 0); /* one append at a time */
    appended(2);
    const qr_append_t *a = HEARD(stand, append);
    assert_int_equal(a->tx, 3);
    assert_int_equal(a->txs.count, 2);
    assert_int_equal(a->publishers.data[1], publisher(3));
    assert_int_equal(a->group_counts.data[1], 2);
    assert_int_equal(a->kinds.count, 3 + 5);
    assert_int_equal(HEARD_COUNT(stand, publish_committed), 1);
    appended(3);
    assert_int_equal(HEARD_COUNT(stand, publish_committed), 2);
    assert_int_equal(HEARD_NTH(stand, publish_committed, 1)->tx, 3);
}

static void test_a_failed_append_leaves_nothing(void **unused)
{
    (void)unused;
    ask_tail(2, LOG, 2);
    publish(2, 1, 3);
    publish(2, 2, 9);
    SAY(stand, facts(), append_failed, .tx = 2, .reason = QR_E_IO);
    assert_int_equal(HEARD(stand, publish_refused)->sequence, 1);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_IO);
    assert_int_equal(HEARD_COUNT(stand, tail_batch), 0);
    assert_int_equal(HEARD(stand, append)->tx, 2); /* the number is used again */
    assert_int_equal(HEARD(stand, append)->sequences.data[0], 2);
    appended(2);
    assert_int_equal(HEARD(stand, tail_batch)->sequences.data[0], 2);
    publish(2, 1, 3); /* asked again it is new */
    assert_int_equal(HEARD(stand, append)->tx, 3);
}

static void test_a_later_writer_closes_this_one(void **unused)
{
    (void)unused;
    ask_tail(2, LOG, 2);
    publish(2, 1, 3);
    publish(2, 2, 9);
    SAY(stand, facts(), append_failed, .tx = 2, .reason = QR_E_STALE);
    assert_int_equal(HEARD_COUNT(stand, publish_refused), 2);
    assert_int_equal(HEARD_NTH(stand, publish_refused, 1)->reason, QR_E_STALE);
    assert_int_equal(HEARD(stand, tail_refused)->reason, QR_E_STALE);
    assert_int_equal(stand->outbox.count, 3);
    publish(3, 1, 4);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
    ask_tail(3, LOG, 2);
    assert_int_equal(HEARD(stand, tail_refused)->reason, QR_E_STALE);
    assert_int_equal(stand->outbox.count, 1);
    SAY(stand, mesh(), stop, .budget_us = 1000);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
}

static void test_a_repeat_is_answered_the_same(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    publish(2, 2, 9);
    publish(2, 2, 9); /* while it waits: one row, two answers */
    publish(2, 1, 3); /* while it flies */
    assert_int_equal(stand->outbox.count, 0);
    appended(2);
    assert_int_equal(HEARD_COUNT(stand, publish_committed), 2);
    assert_int_equal(HEARD(stand, append)->txs.count, 1);
    appended(3);
    assert_int_equal(HEARD_COUNT(stand, publish_committed), 2);
    publish(2, 1, 3);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 2);
    assert_int_equal(stand->outbox.count, 1);
    for (uint64_t s = 3; s < 20; s++) {
        publish(2, s, 3);
        appended(s + 1);
    }
    publish(2, 5, 3);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 6);
    publish(2, 2, 9); /* too old to be known */
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
    publish_as(2, 8, 1, 3); /* it began anew */
    assert_int_equal(HEARD(stand, append)->tx, 21);
}

static void test_a_repeat_is_known_after_a_restart(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH + 1, .seed = 3);
    columns_row(&columns, 1, EPOCH, 0, 0, 0, 0, MODELS);
    columns_row(&columns, 2, EPOCH, publisher(2), 1, 1, 1, 0);
    columns_chunk(&columns, 3, QR_TIER_SSD);
    columns_row(&columns, 2, EPOCH, publisher(3), 1, 1, 7, 0);
    columns_chunk(&columns, 3, QR_TIER_SSD);
    tell_log(1, 2, 3);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 3);
    publish(2, 2, 9); /* the log may have it: not known yet */
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_PEER_DOWN);
    assert_true(HEARD(stand, publish_refused)->retry_after_ms > 0);
    columns_row(&columns, 3, EPOCH, publisher(2), 1, 1, 2, 0);
    tell_log(3, 3, 3);
    assert_int_equal(HEARD(stand, append)->tx, 4);
    appended(4);
    publish(2, 2, 9);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 3);
    publish(3, 7, 3);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 2);
    ask_tail(2, LOG, 4);
    assert_int_equal(HEARD(stand, tail_batch)->writer_epochs.data[0], EPOCH + 1); /* the claim */
    ask_tail(3, LOG, 2);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 2); /* older ones come from the log */
}

static void test_a_start_from_a_snapshot(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH + 1, .seed = 3);
    columns_row(&columns, 20, EPOCH, publisher(2), 1, 1, 6, 0);
    SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = 31, .snapshot_tx = 30, .cursor = 1, COLUMNS_BATCH(&columns));
    assert_int_equal(HEARD(stand, log_read)->snapshot_tx, 30);
    assert_int_equal(HEARD(stand, log_read)->cursor, 1);
    columns_clear(&columns);
    columns_row(&columns, 30, EPOCH, publisher(2), 1, 1, 7, 0);
    SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = 31, .snapshot_tx = 30, .first_tx = 1, .cursor = 2, .last = 1,
        COLUMNS_BATCH(&columns));
    assert_int_equal(HEARD(stand, log_read)->from_tx, 31);
    columns_clear(&columns);
    columns_row(&columns, 31, EPOCH, publisher(2), 1, 1, 8, 0);
    tell_log(31, 31, 31);
    assert_int_equal(HEARD(stand, append)->tx, 32);
    appended(32);
    publish(2, 6, 3);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 20);
    publish(2, 8, 3);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 31);
}

static void lose_facts(void)
{
    SAY(stand, mesh(), link_down, .node = NODE, .reason = 1);
    assert_int_equal(stand->outbox.count, 0);
    SAY(stand, mesh(), link_up, .node = NODE, .node_epoch = 1);
}

static void test_an_append_in_doubt_is_looked_for(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    publish(2, 2, 9);
    lose_facts();
    assert_int_equal(HEARD(stand, log_read)->from_tx, 2);
    columns_row(&columns, 2, EPOCH, publisher(2), 1, 1, 1, 0);
    columns_chunk(&columns, 3, QR_TIER_SSD);
    tell_log(2, 2, 2); /* it is there */
    assert_int_equal(HEARD(stand, publish_committed)->sequence, 1);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 2);
    assert_int_equal(HEARD(stand, append)->tx, 3);
    lose_facts();
    tell_log(3, 2, 2); /* it is not */
    assert_int_equal(HEARD(stand, append)->tx, 3);
    assert_int_equal(HEARD(stand, append)->sequences.data[0], 2);
    appended(3);
    assert_int_equal(HEARD(stand, publish_committed)->sequence, 2);
    publish(2, 3, 9);
    lose_facts();
    columns_row(&columns, 4, EPOCH + 1, 0, 0, 0, 0, MODELS); /* another writer's claim */
    tell_log(4, 4, 4);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
    publish(2, 4, 9);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
}

static void tell_snapshot(uint64_t tx)
{
    SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = tx, .snapshot_tx = tx, .cursor = 1, .last = 1, COLUMNS_BATCH(&columns));
    columns_clear(&columns);
}

/* The log was cut meanwhile: what was in flight is looked for in its snapshot. */
static void test_an_append_in_doubt_is_looked_for_in_a_snapshot(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    lose_facts();
    columns_row(&columns, 2, EPOCH, publisher(2), 1, 1, 1, 0);
    tell_snapshot(2);
    assert_int_equal(HEARD(stand, publish_committed)->tx, 2);
    publish(2, 2, 3);
    assert_int_equal(HEARD(stand, append)->tx, 3);
    lose_facts();
    columns_row(&columns, 2, EPOCH, publisher(2), 1, 1, 1, 0);
    tell_snapshot(3); /* the number is another's */
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
}

static void test_a_claim_in_doubt_is_made_again_after_a_snapshot(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH + 1, .seed = 3);
    tell_log(1, 0, 0);
    assert_int_equal(HEARD(stand, append)->tx, 1);
    lose_facts();
    tell_snapshot(1);
    assert_int_equal(HEARD(stand, append)->tx, 2);
    appended(2);
    assert_int_equal(HEARD(stand, ready)->reason, 0);
}

static void test_one_layout_for_ever(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    columns_chunk(&columns, 9, QR_TIER_SSD);
    qr_publish_t body = {.sequence = 1, .node_epoch = 1, .chunk_tokens = CHUNK, .windows = COLUMN32(9), COLUMNS_CHANGES(&columns)};
    model_fingerprint(0, body.fingerprint.bytes);
    say(publisher(3), 1, QR_MESSAGE_publish, &body);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_BUSY); /* the first one may still fail */
    appended(2);
    say(publisher(3), 1, QR_MESSAGE_publish, &body);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_INVALID);
    for (uint64_t s = 2; s < 22; s++) { /* one fingerprint more than there is room for */
        memset(body.fingerprint.bytes, (int)(100 + s), 32);
        body.sequence = s;
        say(publisher(3), 1, QR_MESSAGE_publish, &body);
        if (s < 2 + QR_CATALOG_LAYOUTS - 1)
            appended(s + 1);
        else
            assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_LIMIT);
    }
}

static void test_bounds(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    for (uint64_t s = 0; s < 64; s++) publish((uint32_t)(3 + s / 4), 1 + s % 4, 3);
    assert_int_equal(stand->outbox.count, 0);
    publish(25, 1, 3);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_BUSY);
    appended(2);
    assert_int_equal(HEARD(stand, append)->txs.count, 64);
    appended(3);
    assert_int_equal(HEARD_COUNT(stand, publish_committed), 64);
    columns_clear(&columns);
    for (uint32_t i = 0; i <= QR_CATALOG_CHANGES_MAX; i++) columns_part(&columns, 3, 0, 5);
    qr_publish_t body = {.sequence = 9, .node_epoch = 1, .chunk_tokens = CHUNK, .windows = COLUMN32(0), COLUMNS_CHANGES(&columns)};
    model_fingerprint(0, body.fingerprint.bytes);
    say(publisher(2), 1, QR_MESSAGE_publish, &body);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_LIMIT);
    body.kinds.count = body.tiers.count = body.groups.count = body.starts.count = body.counts.count = body.sizes.count = 512;
    body.chains.count = body.digests.count = 32 * 512;
    say(publisher(2), 1, QR_MESSAGE_publish, &body);
    assert_int_equal(HEARD(stand, append)->kinds.count, 512);
    for (uint64_t s = 10; s < 14; s++) { /* four of them fill what waits */
        body.sequence = s;
        say(publisher(2), 1, QR_MESSAGE_publish, &body);
        assert_int_equal(stand->outbox.count, 0);
    }
    publish(3, 9, 3);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_BUSY);
    for (uint32_t node = 100; node < 132; node++) ask_tail(node, LOG, 4);
    assert_int_equal(stand->outbox.count, 0);
    ask_tail(132, LOG, 4);
    assert_int_equal(HEARD(stand, tail_refused)->reason, QR_E_LIMIT);
    appended(4);
    assert_int_equal(HEARD_COUNT(stand, tail_batch), 32);
}

static void refuses(qr_publish_t *body)
{
    say(publisher(2), 1, QR_MESSAGE_publish, body);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_INVALID);
    assert_int_equal(stand->outbox.count, 1);
}

static void test_what_is_not_valid_is_refused(void **unused)
{
    (void)unused;
    columns_chunk(&columns, 3, QR_TIER_SSD);
    qr_publish_t good = {.sequence = 1, .node_epoch = 1, .chunk_tokens = CHUNK, .windows = COLUMN32(0), COLUMNS_CHANGES(&columns)};
    qr_publish_t body = good;
    body.sequence = 0;
    refuses(&body);
    body = good;
    body.windows.count = 0;
    refuses(&body);
    body = good;
    body.windows = (qr_u32s_t)COLUMN32(0, 1, 2, 3, 4);
    refuses(&body);
    body = good;
    body.chunk_tokens = 0;
    refuses(&body);
    body = good;
    body.chunk_tokens = 16;
    refuses(&body);
    body = good;
    body.chains.count--;
    refuses(&body);
    body = good;
    body.sizes.count--;
    refuses(&body);
    columns.tiers[2] = 4;
    refuses(&good);
    columns.tiers[2] = QR_TIER_SSD;
    columns.groups[1] = 1;
    refuses(&good);
    columns.groups[1] = 0;
    columns.kinds[0] = 0;
    refuses(&good);
    columns.kinds[0] = QR_CATALOG_NODE;
    columns.digests[5] = 1; /* the first chunk has no parent */
    refuses(&good);
}

static void test_tails_that_are_behind(void **unused)
{
    (void)unused;
    for (uint64_t s = 1; s < 9; s++) {
        publish(2, s, 3);
        appended(s + 1);
    }
    ask_tail(2, LOG, 8);
    assert_int_equal(HEARD(stand, tail_batch)->first_tx, 8); /* at hand */
    ask_tail(2, LOG, 2);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 2);
    ask_tail(3, LOG + 1, 9);                  /* knows another log */
    ask_tail(4, LOG, 70);                     /* knows more than there is */
    assert_int_equal(stand->outbox.count, 0); /* one read at a time */
    SAY(stand, mesh(), link_down, .node = 2, .reason = 1);
    ask_tail(5, LOG, 10); /* takes its place */
    tell_log(2, 1, 9);    /* for the one that is gone */
    assert_int_equal(HEARD_COUNT(stand, tail_batch), 0);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 1);
    columns_row(&columns, 1, EPOCH, 0, 0, 0, 0, MODELS);
    columns_row(&columns, 2, EPOCH, publisher(2), 1, 1, 1, 0);
    columns_chunk(&columns, 3, QR_TIER_SSD);
    tell_log(1, 2, 9);
    assert_int_equal(stand_must(stand, QR_MESSAGE_tail_batch, "tail_batch", __FILE__, __LINE__)->to, replica(3));
    assert_int_equal(HEARD(stand, tail_batch)->last_tx, 2);
    assert_int_equal(HEARD(stand, tail_batch)->newest_tx, 9);
    assert_int_equal(HEARD(stand, log_read)->from_tx, 1);
    SAY(stand, facts(), log_failed, .reason = QR_E_IO);
    assert_int_equal(HEARD(stand, tail_refused)->reason, QR_E_IO);
    SAY(stand, replica(3), tail, .log_id = LOG, .from_tx = 3, .snapshot_tx = 5, .cursor = 7);
    assert_int_equal(HEARD(stand, log_read)->snapshot_tx, 5);
    assert_int_equal(HEARD(stand, log_read)->cursor, 7);
}

static void test_a_start_that_fails_says_so(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH + 1, .seed = 3);
    SAY(stand, facts(), log_failed, .reason = QR_E_IO);
    assert_int_equal(HEARD(stand, ready)->reason, QR_E_IO);
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = EPOCH + 1, .seed = 3);
    tell_log(1, 0, 0);
    SAY(stand, facts(), append_failed, .tx = 1, .reason = QR_E_STALE);
    assert_int_equal(HEARD(stand, ready)->reason, QR_E_STALE);
    publish(2, 1, 3);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_STALE);
}

static void test_drain_and_stop(void **unused)
{
    (void)unused;
    ask_tail(2, LOG, 2);
    publish(2, 1, 3);
    publish(2, 2, 9);
    SAY(stand, mesh(), drain, .budget_us = 1000000);
    assert_int_equal(stand->outbox.count, 0);
    publish(3, 1, 4);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_DRAINING);
    appended(2);
    assert_int_equal(HEARD_COUNT(stand, drained), 0);
    appended(3);
    assert_int_equal(HEARD(stand, drained)->open_count, 0);
    ask_tail(2, LOG, 4);
    SAY(stand, mesh(), stop, .budget_us = 1000);
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    assert_int_equal(HEARD(stand, tail_refused)->reason, QR_E_DRAINING);
}

static void test_stop_within_its_budget(void **unused)
{
    (void)unused;
    publish(2, 1, 3);
    publish(2, 2, 9);
    SAY(stand, mesh(), stop, .budget_us = 1000);
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_DRAINING);
    assert_int_equal(HEARD(stand, publish_refused)->sequence, 2);
    assert_int_equal(HEARD_COUNT(stand, stopped), 0);
    assert_true(stand_alarm(stand, stand->now_us + 1000));
    assert_int_equal(HEARD(stand, publish_refused)->reason, QR_E_PEER_DOWN); /* not known */
    assert_int_equal(HEARD(stand, stopped)->reason, 0);
    char text[2048];
    qr_text_t out;
    qr_text_init(&out, text, sizeof text);
    qr_catalog_writer_class.print(stand->state, given, &out);
    assert_non_null(strstr(text, "catalog_writer: closed, epoch 5, tx 1"));
}

/* ---- 200,000 random operations ---------------------------------------------------------------------------------------------------- */

enum { PUBLISHERS = 4, REPLICAS = 3, SEQUENCES = 256, KEPT = 400 };

typedef struct record { /* one transaction, as its rows' names */
    uint64_t tx, writer_epoch;
    uint32_t row_count;
    uint64_t publishers[64], epochs[64], sequences[64];
} record_t;

typedef struct run {
    qr_prng_t prng;
    record_t log[KEPT]; /* of tx t: at t % KEPT; only the newest are kept */
    uint64_t newest, epoch;
    bool append_open, read_open;
    record_t flying;    /* what the open append holds */
    uint64_t read_from; /* of the open log_read */
    uint64_t epochs[PUBLISHERS], next[PUBLISHERS];
    uint64_t tx_of[PUBLISHERS][SEQUENCES]; /* of the current epoch; 0 = not in the log */
    uint32_t open[PUBLISHERS][SEQUENCES], open_count[PUBLISHERS];
    bool tail_open[REPLICAS];
    uint64_t tail_from[REPLICAS];
    uint64_t commits, repeats, failures, losses, restarts, told, read_told;
} run_t;

static record_t *record_of(run_t *r, uint64_t tx) { return &r->log[tx % KEPT]; }
static uint32_t publisher_index(uint64_t address) { return qr_address_node(address) - 2; }

/* The log takes what flies. */
static void run_take(run_t *r)
{
    assert_int_equal(r->flying.tx, r->newest + 1);
    r->newest++;
    *record_of(r, r->newest) = r->flying;
    for (uint32_t i = 0; i < r->flying.row_count; i++) {
        if (!r->flying.publishers[i]) continue;
        uint32_t p = publisher_index(r->flying.publishers[i]);
        if (r->flying.epochs[i] != r->epochs[p]) continue;
        assert_int_equal(r->tx_of[p][r->flying.sequences[i]], 0); /* nothing is in the log twice */
        r->tx_of[p][r->flying.sequences[i]] = r->newest;
    }
}

static void saw_append(run_t *r, const qr_append_t *a)
{
    assert_false(r->append_open);
    assert_int_equal(a->tx, r->newest + 1);
    assert_int_equal(a->writer_epoch, r->epoch);
    r->append_open = true;
    r->flying = (record_t){.tx = a->tx, .writer_epoch = a->writer_epoch, .row_count = (uint32_t)a->txs.count};
    for (uint32_t i = 0; i < a->txs.count; i++) {
        r->flying.publishers[i] = a->publishers.data[i];
        r->flying.epochs[i] = a->publisher_epochs.data[i];
        r->flying.sequences[i] = a->sequences.data[i];
    }
}

static void saw_answer(run_t *r, uint64_t to, uint64_t sequence, uint64_t tx, uint32_t reason)
{
    uint32_t p = publisher_index(to);
    assert_true(r->open[p][sequence] > 0);
    r->open[p][sequence]--;
    r->open_count[p]--;
    if (tx) {
        assert_int_equal(r->tx_of[p][sequence], tx); /* the log has it, exactly there */
        r->commits++;
    } else if (reason != QR_E_PEER_DOWN && reason != QR_E_STALE) {
        assert_int_equal(r->tx_of[p][sequence], 0);
    }
}

static void saw_tail(run_t *r, uint64_t to, const qr_tail_batch_t *b)
{
    uint32_t k = qr_address_node(to) - 20;
    assert_true(r->tail_open[k]);
    r->tail_open[k] = false;
    r->told++;
    if (b->snapshot_tx || b->first_tx > b->last_tx) return;
    assert_int_equal(b->first_tx, r->tail_from[k]);
    assert_true(b->last_tx <= r->newest);
    uint32_t i = 0;
    for (uint64_t tx = b->first_tx; tx <= b->last_tx; tx++) {
        const record_t *record = record_of(r, tx);
        assert_int_equal(record->tx, tx);
        for (uint32_t row = 0; row < record->row_count; row++, i++) {
            assert_int_equal(b->txs.data[i], tx);
            assert_int_equal(b->publishers.data[i], record->publishers[row]);
            assert_int_equal(b->sequences.data[i], record->sequences[row]);
        }
    }
    assert_int_equal(i, b->txs.count);
}

static void look_at_outbox(run_t *r)
{
    for (uint32_t i = 0; i < stand->outbox.count; i++) {
        const qr_message_t *m = &stand->messages[i];
        switch (m->type) {
        case QR_MESSAGE_append: saw_append(r, &m->body.append); break;
        case QR_MESSAGE_log_read:
            assert_false(r->read_open);
            r->read_open = true;
            r->read_from = m->body.log_read.from_tx;
            break;
        case QR_MESSAGE_publish_committed: saw_answer(r, m->to, m->body.publish_committed.sequence, m->body.publish_committed.tx, 0); break;
        case QR_MESSAGE_publish_refused: saw_answer(r, m->to, m->body.publish_refused.sequence, 0, m->body.publish_refused.reason); break;
        case QR_MESSAGE_tail_batch: saw_tail(r, m->to, &m->body.tail_batch); break;
        case QR_MESSAGE_tail_refused: r->tail_open[qr_address_node(m->to) - 20] = false; break;
        case QR_MESSAGE_ready: assert_int_equal(m->body.ready.reason, 0); break;
        default: fail_msg("it said %s", qr_schema_find(m->type)->name);
        }
    }
}

static void run_publish(run_t *r)
{
    uint32_t p = (uint32_t)qr_prng_below(&r->prng, PUBLISHERS);
    if (r->open_count[p] == QR_CATALOG_PUBLISHES) return;
    if (r->next[p] + 2 >= SEQUENCES || qr_prng_one_in(&r->prng, 400)) { /* it begins anew */
        r->epochs[p]++;
        r->next[p] = 1;
        r->open_count[p] = 0;
        memset(r->tx_of[p], 0, sizeof r->tx_of[p]);
        memset(r->open[p], 0, sizeof r->open[p]);
        SAY(stand, mesh(), link_down, .node = p + 2, .reason = 1);
        look_at_outbox(r);
    }
    uint64_t sequence = r->next[p];
    if (qr_prng_one_in(&r->prng, 3) && sequence > 1) {
        sequence -= qr_prng_between(&r->prng, 1, qr_min_u64(sequence - 1, 9));
        r->repeats++;
    } else {
        r->next[p]++;
    }
    r->open[p][sequence]++;
    r->open_count[p]++;
    publish_as(p + 2, r->epochs[p], sequence, (uint32_t)(3 * p));
    look_at_outbox(r);
}

static void add_record(run_t *r, uint64_t tx)
{
    const record_t *record = record_of(r, tx);
    assert_int_equal(record->tx, tx);
    for (uint32_t i = 0; i < record->row_count; i++)
        columns_row(&columns, tx, record->writer_epoch, record->publishers[i], record->epochs[i], 1, record->sequences[i],
                    record->publishers[i] ? 0 : MODELS);
}

/* The newest sequences of every publisher, as a snapshot keeps them. */
static void answer_snapshot(run_t *r)
{
    uint64_t tx = r->newest > 20 ? r->newest - qr_prng_below(&r->prng, 20) : r->newest;
    for (uint32_t p = 0; p < PUBLISHERS; p++)
        for (uint64_t s = 1; s < SEQUENCES; s++)
            if (r->tx_of[p][s] && r->tx_of[p][s] <= tx) columns_row(&columns, r->tx_of[p][s], 1, publisher(p + 2), r->epochs[p], 1, s, 0);
    SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = r->newest, .snapshot_tx = tx, .cursor = 1, .last = 1,
        COLUMNS_BATCH(&columns));
}

static void run_read(run_t *r)
{
    if (!r->read_open) return;
    r->read_open = false;
    columns_clear(&columns);
    uint64_t kept_from = r->newest > KEPT - 50 ? r->newest - (KEPT - 50) : 1;
    if (r->read_from < kept_from || (r->read_from == 1 && r->newest > 1 && qr_prng_one_in(&r->prng, 2))) {
        answer_snapshot(r);
    } else {
        uint64_t last = qr_min_u64(r->newest, r->read_from + qr_prng_below(&r->prng, 40));
        for (uint64_t tx = r->read_from; tx <= last; tx++) add_record(r, tx);
        r->read_told++;
        SAY(stand, facts(), log_batch, .log_id = LOG, .newest_tx = r->newest, .first_tx = r->read_from, .last_tx = last,
            COLUMNS_BATCH(&columns));
    }
    columns_clear(&columns);
    look_at_outbox(r);
}

static void run_facts(run_t *r)
{
    if (!r->append_open) return;
    uint64_t what = qr_prng_below(&r->prng, 20);
    uint64_t tx = r->flying.tx;
    bool claim = r->flying.publishers[0] == 0;
    r->append_open = false;
    if (what < 15 || claim) {
        run_take(r);
        appended(tx);
    } else if (what < 18) {
        r->failures++;
        SAY(stand, facts(), append_failed, .tx = tx, .reason = QR_E_IO);
    } else { /* facts dies before it answers, having written it or not */
        r->losses++;
        if (what == 18) run_take(r);
        r->read_open = false;
        SAY(stand, mesh(), link_down, .node = NODE, .reason = 1);
        assert_int_equal(stand->outbox.count, 0);
        SAY(stand, mesh(), link_up, .node = NODE, .node_epoch = 1);
    }
    look_at_outbox(r);
}

static void run_tail(run_t *r)
{
    uint32_t k = (uint32_t)qr_prng_below(&r->prng, REPLICAS);
    if (r->tail_open[k]) {
        if (!qr_prng_one_in(&r->prng, 10)) return;
        r->tail_open[k] = false;
        SAY(stand, mesh(), link_down, .node = 20 + k, .reason = 1);
        look_at_outbox(r);
        return;
    }
    uint64_t from =
        qr_prng_one_in(&r->prng, 3) ? qr_prng_between(&r->prng, r->newest > 300 ? r->newest - 300 : 1, r->newest + 1) : r->newest + 1;
    uint64_t log = qr_prng_one_in(&r->prng, 20) ? LOG + 1 : LOG;
    r->tail_open[k] = true;
    r->tail_from[k] = log == LOG ? from : 1;
    ask_tail(20 + k, log, from);
    look_at_outbox(r);
}

/* The writer dies with what it held and begins anew, under a later epoch. */
static void run_restart(run_t *r)
{
    r->restarts++;
    r->epoch++;
    if (r->append_open && qr_prng_one_in(&r->prng, 2)) run_take(r);
    r->append_open = r->read_open = false;
    memset(r->open, 0, sizeof r->open);
    memset(r->open_count, 0, sizeof r->open_count);
    memset(r->tail_open, 0, sizeof r->tail_open);
    stand_destroy(stand);
    new_stand();
    SAY(stand, mesh(), start, .epoch = r->epoch, .seed = 3);
    look_at_outbox(r);
    while (r->read_open || r->append_open) { /* mesh gives nobody work before it is ready */
        run_read(r);
        run_facts(r);
    }
}

static void test_random_against_a_plain_log(void **unused)
{
    (void)unused;
    run_t *r = calloc(1, sizeof *r);
    qr_prng_init(&r->prng, 21);
    r->epoch = EPOCH;
    r->newest = 1;
    r->log[1] = (record_t){.tx = 1, .writer_epoch = EPOCH, .row_count = 1};
    for (uint32_t p = 0; p < PUBLISHERS; p++) r->epochs[p] = r->next[p] = 1;
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        uint64_t what = qr_prng_below(&r->prng, 1000);
        if (what < 400)
            run_publish(r);
        else if (what < 700)
            run_facts(r);
        else if (what < 850)
            run_tail(r);
        else if (what < 998)
            run_read(r);
        else if (what == 999)
            run_restart(r);
    }
    while (r->append_open || r->read_open) { /* after all that everything open is answered */
        run_read(r);
        run_facts(r);
    }
    for (uint32_t p = 0; p < PUBLISHERS; p++) assert_int_equal(r->open_count[p], 0);
    assert_true(r->commits > 10000 && r->failures > 1000 && r->losses > 1000 && r->restarts > 50 && r->told > 1000 && r->read_told > 100);
    print_message("%llu transactions, %llu commits, %llu repeats, %llu losses of facts, %llu restarts\n", (unsigned long long)r->newest,
                  (unsigned long long)r->commits, (unsigned long long)r->repeats, (unsigned long long)r->losses,
                  (unsigned long long)r->restarts);
    free(r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_answers_only_after_the_log_has_it),
        TEST(test_what_waits_becomes_one_transaction),
        TEST(test_a_failed_append_leaves_nothing),
        TEST(test_a_later_writer_closes_this_one),
        TEST(test_a_repeat_is_answered_the_same),
        TEST(test_a_repeat_is_known_after_a_restart),
        TEST(test_a_start_from_a_snapshot),
        TEST(test_an_append_in_doubt_is_looked_for),
        TEST(test_an_append_in_doubt_is_looked_for_in_a_snapshot),
        TEST(test_a_claim_in_doubt_is_made_again_after_a_snapshot),
        TEST(test_one_layout_for_ever),
        TEST(test_bounds),
        TEST(test_what_is_not_valid_is_refused),
        TEST(test_tails_that_are_behind),
        TEST(test_a_start_that_fails_says_so),
        TEST(test_drain_and_stop),
        TEST(test_stop_within_its_budget),
        TEST(test_random_against_a_plain_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
