/* link: qr_io_facts qr_io_facts_book qr_store_faults qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_roles qr_messages qr_schema */
/* The catalog over two nodes: one writer, two replicas, two publishers, and facts: played here, with a log that survives, and then the real
 * one over a folder, which has to answer every append as the played one would. Links break, nodes
 * and facts die between append and answer, appends fail, another writer takes the log. Whatever is answered meanwhile is in the log;
 * when it is over, both replicas are what the log says and every publish that was taken is in it once. */
#include "tests/conversations/pump.h"

#include "actors/catalog_replica.h"
#include "actors/catalog_writer.h"
#include "actors/io/facts.h"
#include "base/error.h"
#include "store/fail.h"
#include "tests/unit/catalog_model.h"
#include "tests/unit/store_folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SEEDS = 300, REAL_SEEDS = 40, STEPS = 800, LOG = 900, TXS_MAX = 2000, OPEN = 4, ROWS_STOP = 1500 };

typedef struct slot {
    uint64_t sequence, seed; /* sequence 0 = free */
    bool asked;
} slot_t;

typedef struct source {
    member_t *member;
    uint64_t next;
    slot_t slots[OPEN];
} source_t;

typedef struct world {
    pump_t pump;
    qr_given_t *given;
    member_t *mesh, *writer, *facts, *replicas[2];
    source_t sources[2];
    uint64_t node_epochs[3]; /* of nodes 1 and 2 */
    bool linked, faults, must_restart, fenced;
    columns_t log;
    uint64_t newest, last_epoch, epochs_of[TXS_MAX], cut;
    uint64_t lives, held_in[TXS_MAX]; /* of facts; which of them began the snapshot of a transaction */
    void *real;                       /* state of the real facts, NULL: it is played here */
    char folder[STORE_PATH];
    qr_outbox_t outbox;
    uint64_t commits, refusals, restarts, losses, snapshots, looks, hits;
} world_t;

static uint64_t at(uint32_t node, uint8_t role) { return qr_address(node, role == QR_ROLE_checkpoint_writer, role, 0); }

static qr_catalog_batch_t whole_log(const world_t *w)
{
    const qr_append_t body = {COLUMNS_BATCH(&w->log)};
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&body);
    return batch;
}

/* ---- facts -------------------------------------------------------------------------------------------------------------- */

static bool fails(world_t *w, uint64_t one_in) { return w->faults && qr_prng_one_in(&w->pump.prng, one_in); }

/* What an append is answered: 0 or the reason of append_failed; *ret_repeat: it is in the log already. */
static uint32_t judge_append(const world_t *w, const qr_append_t *a, bool *ret_repeat)
{
    *ret_repeat = a->tx <= w->newest && w->epochs_of[a->tx] == a->writer_epoch;
    return *ret_repeat || (a->tx == w->newest + 1 && a->writer_epoch >= w->last_epoch) ? 0 : QR_E_STALE;
}

static void keep_append(world_t *w, const qr_append_t *a)
{
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(a);
    assert_true(qr_catalog_batch_valid(&batch, true, a->tx, a->tx));
    w->newest = a->tx;
    w->last_epoch = w->epochs_of[a->tx] = a->writer_epoch;
    columns_add(&w->log, &batch);
}

static void on_append(world_t *w, const qr_message_t *message)
{
    const qr_append_t *a = &message->body.append;
    bool repeat;
    uint32_t reason = judge_append(w, a, &repeat);
    if (!repeat && !reason && fails(w, 8)) reason = QR_E_IO;
    if (reason) {
        PUMP_SEND(&w->pump, message->to, message->from, append_failed, .tx = a->tx, .reason = reason);
        return;
    }
    if (!repeat) keep_append(w, a);
    PUMP_SEND(&w->pump, message->to, message->from, appended, .tx = a->tx);
}

/* The log's rows [from, to) as a message. */
static void send_rows(world_t *w, qr_log_batch_t *b, uint32_t from, uint32_t to)
{
    static columns_t part;
    const qr_catalog_batch_t all = whole_log(w);
    columns_clear(&part);
    uint32_t i = 0;
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&all, &row); i++)
        if (i >= from && i < to) columns_add_row(&part, &all, &row);
    qr_log_batch_t full = {COLUMNS_BATCH(&part)};
    full.log_id = LOG;
    full.newest_tx = w->newest;
    full.first_tx = b->first_tx;
    full.last_tx = b->last_tx;
    full.snapshot_tx = b->snapshot_tx;
    full.cursor = b->cursor;
    full.last = b->last;
    pump_send(&w->pump, w->facts->address, w->writer->address, QR_MESSAGE_log_batch, &full);
}

/* Rows of transactions up to tx. */
static uint32_t rows_to(const world_t *w, uint64_t tx)
{
    uint32_t i = 0;
    while (i < w->log.row_count && w->log.txs[i] <= tx) i++;
    return i;
}

static void on_log_read(world_t *w, const qr_message_t *message)
{
    const qr_log_read_t *q = &message->body.log_read;
    bool stale = q->snapshot_tx && (q->snapshot_tx > w->newest || w->held_in[q->snapshot_tx] != w->lives);
    if (stale || fails(w, 30)) {
        PUMP_SEND(&w->pump, message->to, message->from, log_failed, .reason = stale ? QR_E_STALE : QR_E_IO);
        return;
    }
    qr_log_batch_t b = {0};
    if (q->snapshot_tx || q->from_tx <= w->cut || q->from_tx > w->newest + 1) {
        w->snapshots += q->snapshot_tx == 0;
        b.snapshot_tx = q->snapshot_tx ? q->snapshot_tx : w->newest;
        uint32_t rows = rows_to(w, b.snapshot_tx), to = qr_min_u32(rows, (uint32_t)q->cursor + 1 + rows / 3);
        w->held_in[b.snapshot_tx] = w->lives;
        b.first_tx = q->cursor;
        b.cursor = to;
        b.last = to == rows;
        send_rows(w, &b, (uint32_t)q->cursor, to);
        return;
    }
    b.first_tx = q->from_tx;
    b.last_tx = qr_min_u64(w->newest, q->from_tx + qr_prng_below(&w->pump.prng, 4));
    send_rows(w, &b, rows_to(w, q->from_tx - 1), rows_to(w, b.last_tx));
}

static void facts_handle(pump_t *pump, void *context, const qr_message_t *message)
{
    (void)pump;
    if (message->type == QR_MESSAGE_append)
        on_append(context, message);
    else
        on_log_read(context, message);
}

/* ---- the real facts ---------------------------------------------------------------------------------------------------------- */

/* One message into it; its answer is in w->outbox. */
static const qr_message_t *real_handle(world_t *w, uint16_t type, uint64_t from, const void *body)
{
    qr_message_t message = {.type = type, .version = 1, .from = from, .to = w->facts->address, .epoch = 1, .now_us = w->pump.now_us};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    qr_outbox_reset(&w->outbox, qr_facts_class.max_out);
    w->outbox.alarm_us = QR_NEVER_US;
    qr_facts_class.handle(w->real, w->given, &message, &w->outbox);
    assert_int_equal(w->outbox.count, 1);
    return &w->outbox.messages[0];
}

static void real_start(world_t *w)
{
    w->real = calloc(1, qr_facts_class.bytes(w->given));
    qr_facts_class.init(w->real, w->given, w->facts->address);
    const qr_message_t *answer = real_handle(w, QR_MESSAGE_start, w->mesh->address, &(qr_start_t){.epoch = 1});
    assert_int_equal(answer->type, QR_MESSAGE_ready);
    assert_int_equal(answer->body.ready.reason, 0);
}

static void real_done(world_t *w)
{
    qr_facts_class.done(w->real);
    free(w->real);
    w->real = NULL;
}

/* Its pieces of work: some, so that its facts are behind its log now and then. */
static void real_work(world_t *w, uint32_t pieces)
{
    while (pieces--) {
        qr_outbox_reset(&w->outbox, qr_facts_class.max_out);
        uint64_t look_us = qr_facts_class.work(w->real, w->given, w->pump.now_us, &w->outbox);
        assert_int_equal(w->outbox.count, 0);
        if (look_us == QR_NEVER_US) return;
    }
}

static void real_facts_handle(pump_t *pump, void *context, const qr_message_t *message)
{
    world_t *w = context;
    bool append = message->type == QR_MESSAGE_append, repeat = false, failing = append && fails(w, 8);
    uint32_t expected = append ? judge_append(w, &message->body.append, &repeat) : 0;
    static const qr_store_point_t points[] = {QR_STORE_POINT_log_fsync, QR_STORE_POINT_log_folder_fsync, QR_STORE_POINT_log_write,
                                              QR_STORE_POINT_log_link};
    qr_store_fail_arm(points[qr_prng_below(&pump->prng, QR_COUNT(points))], failing, EIO, false);
    const qr_message_t *answer = real_handle(w, message->type, message->from, &message->body);
    qr_store_fail_arm(points[0], 0, 0, false);
    if (append) {
        bool took = answer->type == QR_MESSAGE_appended;
        if (failing && !repeat && !expected) expected = QR_E_IO;
        assert_int_equal(took, expected == 0);
        assert_int_equal(took ? answer->body.appended.tx : answer->body.append_failed.tx, message->body.append.tx);
        if (!took) assert_int_equal(answer->body.append_failed.reason, expected);
        if (took && !repeat) keep_append(w, &message->body.append);
    } else if (answer->type == QR_MESSAGE_log_batch) {
        w->snapshots += answer->body.log_batch.snapshot_tx && answer->body.log_batch.first_tx == 0;
        assert_int_equal(answer->body.log_batch.newest_tx, w->newest);
    } else {
        assert_int_equal(answer->body.log_failed.reason, QR_E_STALE); /* its snapshot was cut meanwhile */
        assert_true(message->body.log_read.snapshot_tx != 0);
    }
    pump_send(pump, message->to, message->from, answer->type, &answer->body);
    real_work(w, (uint32_t)qr_prng_below(&pump->prng, 4));
}

/* ---- publishers ------------------------------------------------------------------------------------------------------------ */

static bool reachable(const world_t *w, const source_t *s) { return s == &w->sources[0] || w->linked; }

/* What a slot publishes is a function of its seed: asked again it is the same. */
static void ask_publish(world_t *w, source_t *s, slot_t *slot)
{
    static columns_t c;
    qr_prng_t prng;
    qr_prng_init(&prng, slot->seed);
    uint32_t model = (uint32_t)qr_prng_below(&prng, MODELS);
    columns_clear(&c);
    for (uint64_t i = qr_prng_below(&prng, 4) + 1; i > 0; i--) columns_random(&c, &prng, model, true);
    qr_publish_t body = {.sequence = slot->sequence,
                         .node_epoch = w->node_epochs[qr_address_node(s->member->address)],
                         .chunk_tokens = CHUNK,
                         .windows = {model_windows[model], model_groups[model]},
                         COLUMNS_CHANGES(&c)};
    model_fingerprint(model, body.fingerprint.bytes);
    slot->asked = true;
    pump_send(&w->pump, s->member->address, w->writer->address, QR_MESSAGE_publish, &body);
}

static void source_step(world_t *w, source_t *s)
{
    slot_t *slot = &s->slots[qr_prng_below(&w->pump.prng, OPEN)];
    if (slot->asked || !reachable(w, s)) return;
    if (slot->sequence == 0) {
        if (!w->faults || w->log.row_count > ROWS_STOP) return;
        *slot = (slot_t){.sequence = s->next++, .seed = qr_prng_next(&w->pump.prng)};
    }
    ask_publish(w, s, slot);
}

/* How often the log has a publish, and where. */
static uint32_t in_log(const world_t *w, uint64_t publisher, uint64_t epoch, uint64_t sequence, uint64_t *ret_tx)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->log.row_count; i++) {
        if (w->log.publishers[i] != publisher || w->log.publisher_epochs[i] != epoch || w->log.sequences[i] != sequence) continue;
        *ret_tx = w->log.txs[i];
        count++;
    }
    return count;
}

static void source_handle(pump_t *pump, void *context, const qr_message_t *message)
{
    world_t *w = pump->context;
    source_t *s = context;
    bool committed = message->type == QR_MESSAGE_publish_committed;
    uint64_t sequence = committed ? message->body.publish_committed.sequence : message->body.publish_refused.sequence, tx = 0;
    uint32_t reason = committed ? 0 : message->body.publish_refused.reason, found = 0;
    for (uint32_t i = 0; i < OPEN; i++) {
        slot_t *slot = &s->slots[i];
        if (slot->sequence != sequence) continue;
        assert_true(slot->asked);
        found = in_log(w, s->member->address, s->member->epoch, sequence, &tx);
        slot->asked = false;
        if (committed) {
            assert_int_equal(found, 1);
            assert_int_equal(tx, message->body.publish_committed.tx);
            slot->sequence = 0;
            w->commits++;
            return;
        }
        w->refusals++;
        if (reason != QR_E_PEER_DOWN && reason != QR_E_STALE) assert_int_equal(found, 0);
        assert_true(reason != QR_E_INVALID && reason != QR_E_LIMIT);
        if (reason == QR_E_STALE || (reason == QR_E_IO && qr_prng_one_in(&pump->prng, 2))) slot->sequence = 0; /* gives up */
        return;
    }
    fail_msg("an answer to nothing");
}

static void mesh_handle(pump_t *pump, void *context, const qr_message_t *message)
{
    world_t *w = context;
    (void)pump;
    if (message->type == QR_MESSAGE_ready && message->body.ready.reason) w->must_restart = true;
}

/* ---- links and lives --------------------------------------------------------------------------------------------------------- */

/* What a host tells at once: before anything of the new session, after everything of the old one. */
static void tell(world_t *w, member_t *member, uint16_t type, const void *body)
{
    qr_message_t message = {.type = type, .version = 1, .from = w->mesh->address, .to = member->address, .epoch = 1};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    pump_handle(&w->pump, member, &message);
}
#define TELL(w, member, name, ...) tell((w), (member), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* Drops what is under way between two members and closes their questions. */
static void cut(world_t *w, member_t *a, member_t *b)
{
    pump_t *pump = &w->pump;
    for (uint32_t side = 0; side < 2; side++) {
        member_t *to = side ? a : b, *from = side ? b : a;
        uint32_t s = (uint32_t)(from - pump->members);
        while (to->first[s]) {
            letter_t *letter = to->first[s];
            to->first[s] = letter->next;
            free(letter);
            pump->queued--;
        }
        to->last[s] = NULL;
        memset(to->open[s], 0, sizeof to->open[s]);
    }
}

static bool is_node(const member_t *m, uint32_t node)
{
    return qr_address_node(m->address) == node && qr_address_role(m->address) != QR_ROLE_mesh;
}

static void cut_nodes(world_t *w, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < w->pump.count; i++)
        for (uint32_t k = 0; k < w->pump.count; k++)
            if (is_node(&w->pump.members[i], a) && is_node(&w->pump.members[k], b)) cut(w, &w->pump.members[i], &w->pump.members[k]);
}

/* Questions of a publisher are closed: they are asked again. */
static void source_lost(source_t *s)
{
    for (uint32_t i = 0; i < OPEN; i++) s->slots[i].asked = false;
}

static void link_down(world_t *w)
{
    if (!w->linked) return;
    w->linked = false;
    cut_nodes(w, 1, 2);
    TELL(w, w->writer, link_down, .node = 2, .reason = 1);
    TELL(w, w->replicas[0], link_down, .node = 2, .reason = 1);
    TELL(w, w->replicas[1], link_down, .node = 1, .reason = 1);
    source_lost(&w->sources[1]);
}

static void link_up(world_t *w)
{
    if (w->linked) return;
    w->linked = true;
    TELL(w, w->writer, link_up, .node = 2, .node_epoch = w->node_epochs[2]);
    TELL(w, w->replicas[0], link_up, .node = 2, .node_epoch = w->node_epochs[2]);
    TELL(w, w->replicas[1], link_up, .node = 1, .node_epoch = w->node_epochs[1]);
}

static void born(world_t *w, member_t *member)
{
    memset(member->state, 0, member->actor->bytes(w->given));
    member->actor->init(member->state, w->given, member->address);
    member->alarm_us = QR_NEVER_US;
    uint64_t partners[] = {w->writer->address, w->facts->address, w->replicas[0]->address, w->replicas[1]->address};
    TELL(w, member, start, .epoch = w->node_epochs[qr_address_node(member->address)], .seed = 7, .partners = {partners, 4});
}

/* A question for a node that is down is answered by link_down. */
static void refuse_unlinked(world_t *w)
{
    if (w->linked) return;
    uint32_t s = (uint32_t)(w->replicas[1] - w->pump.members);
    if (!w->writer->first[s]) return;
    cut_nodes(w, 1, 2);
    TELL(w, w->replicas[1], link_down, .node = 1, .reason = 1);
}

static void restart_node(world_t *w, uint32_t node)
{
    w->restarts++;
    link_down(w);
    cut_nodes(w, node, node);
    source_t *s = &w->sources[node - 1];
    w->node_epochs[node] = qr_max_u64(w->node_epochs[node], node == 1 ? w->last_epoch : 0) + 1;
    s->member->epoch = w->node_epochs[node];
    s->next = 1;
    memset(s->slots, 0, sizeof s->slots);
    if (node == 1) {
        w->lives++;
        w->must_restart = w->fenced = false;
        born(w, w->writer);
    }
    born(w, w->replicas[node - 1]);
    refuse_unlinked(w);
    link_up(w);
}

/* facts alone dies and comes back: everything of its node hears it as link_down and link_up. */
static void restart_facts(world_t *w)
{
    w->losses++;
    w->lives++;
    if (w->real) {
        real_done(w);
        real_start(w);
    }
    cut_nodes(w, 1, 1);
    source_lost(&w->sources[0]);
    TELL(w, w->writer, link_down, .node = 1, .reason = 1);
    TELL(w, w->replicas[0], link_down, .node = 1, .reason = 1);
    TELL(w, w->writer, link_up, .node = 1, .node_epoch = w->node_epochs[1]);
    TELL(w, w->replicas[0], link_up, .node = 1, .node_epoch = w->node_epochs[1]);
}

/* Another writer takes the log. */
static void other_writer(world_t *w)
{
    if (w->fenced) return;
    w->fenced = true;
    w->newest++;
    w->epochs_of[w->newest] = ++w->last_epoch;
    columns_row(&w->log, w->newest, w->last_epoch, 0, 0, 0, 0, MODELS);
    if (!w->real) return;
    static columns_t claim;
    columns_clear(&claim);
    columns_row(&claim, w->newest, w->last_epoch, 0, 0, 0, 0, MODELS);
    const qr_append_t body = {.tx = w->newest, .writer_epoch = w->last_epoch, COLUMNS_BATCH(&claim)};
    assert_int_equal(real_handle(w, QR_MESSAGE_append, w->writer->address, &body)->type, QR_MESSAGE_appended);
}

/* ---- what replicas answer ------------------------------------------------------------------------------------------------------ */

static const qr_matches_t *look(world_t *w, member_t *member, uint32_t id)
{
    uint32_t path[PATH_MAX_NODES], n = id_path(id, path);
    uint8_t chains[32 * PATH_MAX_NODES];
    qr_message_t message = {.type = QR_MESSAGE_lookup, .version = 1, .from = at(1, QR_ROLE_router), .to = member->address};
    message.now_us = w->pump.now_us;
    for (uint32_t i = 0; i < n; i++) id_chain(path[i], chains + 32 * (size_t)i);
    message.body.lookup = (qr_lookup_t){.lookup_id = 1, .chains = {chains, 32ull * n}};
    model_fingerprint(id % MODELS, message.body.lookup.fingerprint.bytes);
    qr_outbox_reset(&w->outbox, 4);
    w->outbox.alarm_us = member->alarm_us;
    member->actor->handle(member->state, w->given, &message, &w->outbox);
    assert_int_equal(w->outbox.count, 1);
    return &w->outbox.messages[0].body.matches;
}

/* Everything said is in the log, as of the transaction that it names. exact: and everything that could be said is. */
static void judge(world_t *w, uint32_t k, uint32_t id, bool exact)
{
    static plain_t plain;
    uint32_t path[PATH_MAX_NODES], other = 2 - k, ram = UINT32_MAX;
    const qr_matches_t *m = look(w, w->replicas[k], id);
    const qr_catalog_batch_t all = whole_log(w);
    memset(&plain, 0, sizeof plain);
    plain_batch(&plain, &all, m->tx);
    w->looks++;
    w->hits += m->depth > 0;
    assert_true(m->tx <= w->newest);
    if (exact && plain.node_epochs[other] != w->node_epochs[other]) ram = ~(1u << other);
    uint32_t depth = plain_lookup(&plain, id, ram, UINT32_MAX);
    if (exact) {
        assert_int_equal(m->tx, w->newest);
        assert_int_equal(m->depth, depth);
    }
    assert_true(m->depth <= depth);
    id_path(id, path);
    for (uint32_t i = 0; i < m->node_indexes.count; i++) {
        const plain_part_t *p = &plain.nodes[path[m->node_indexes.data[i]]].parts[m->groups.data[i]];
        uint32_t said_ram = mask_of_nodes(m, m->ram_masks.data[i]), said_ssd = mask_of_nodes(m, m->ssd_masks.data[i]);
        assert_int_equal(m->sizes.data[i], p->bytes);
        assert_true((said_ram & ~p->ram) == 0 && (said_ssd & ~p->ssd) == 0 && m->object_flags.data[i] <= p->object);
        if (!exact) continue;
        assert_int_equal(said_ram, p->ram & ram);
        assert_int_equal(said_ssd, p->ssd);
        assert_int_equal(m->object_flags.data[i], p->object);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------------------------------------ */

static world_t *world_new(uint64_t seed, bool real)
{
    world_t *w = calloc(1, sizeof *w);
    w->given = calloc(1, sizeof *w->given);
    qr_params_init(&w->given->params);
    w->given->params.catalog_nodes_max = 128;
    pump_init(&w->pump, w->given, seed);
    w->pump.context = w;
    w->mesh = pump_add(&w->pump, at(1, QR_ROLE_mesh), NULL, mesh_handle, w);
    w->facts = pump_add(&w->pump, at(1, QR_ROLE_facts), NULL, real ? real_facts_handle : facts_handle, w);
    w->writer = pump_add(&w->pump, at(1, QR_ROLE_catalog_writer), &qr_catalog_writer_class, NULL, NULL);
    for (uint32_t k = 0; k < 2; k++) {
        w->replicas[k] = pump_add(&w->pump, at(k + 1, QR_ROLE_catalog_replica), &qr_catalog_replica_class, NULL, NULL);
        w->sources[k].member = pump_add(&w->pump, at(k + 1, QR_ROLE_checkpoint_writer), NULL, source_handle, &w->sources[k]);
        w->sources[k].next = 1;
        w->node_epochs[k + 1] = 1;
    }
    qr_outbox_init(&w->outbox, calloc(4, sizeof(qr_message_t)), 4, aligned_alloc(64, QR_OUTBOX_BYTES), QR_OUTBOX_BYTES);
    w->linked = w->faults = true;
    w->lives = 1;
    if (real) {
        store_folder(w->folder);
        memcpy(w->given->params.store, w->folder, STORE_PATH);
        w->given->params.history_bytes = 20 * 4096; /* a snapshot and a cut every ten transactions or so */
        real_start(w);
    }
    born(w, w->writer);
    born(w, w->replicas[0]);
    born(w, w->replicas[1]);
    return w;
}

static void world_destroy(world_t *w)
{
    if (w->real) {
        real_done(w);
        store_remove(w->folder);
    }
    pump_done(&w->pump);
    free(w->outbox.messages);
    free(w->outbox.bytes);
    free(w->given);
    free(w);
}

static void misbehave(world_t *w)
{
    qr_prng_t *prng = &w->pump.prng;
    uint64_t what = qr_prng_below(prng, 1000);
    if (w->must_restart || (w->fenced && qr_prng_one_in(prng, 30))) restart_node(w, 1);
    if (what < 4) restart_node(w, 1 + (uint32_t)qr_prng_below(prng, 2));
    if (what >= 4 && what < 12) restart_facts(w);
    if (what >= 12 && what < 24) link_down(w);
    if (what >= 24 && what < 54) link_up(w);
    if (what == 54) other_writer(w);
    if (what == 55 && w->newest) w->cut = qr_prng_below(prng, w->newest);
    if (what >= 56 && what < 66) (void)pump_sleep(&w->pump);
    if (what >= 66 && what < 300) source_step(w, &w->sources[what & 1]);
    if (what >= 300 && what < 340) judge(w, what & 1, (uint32_t)qr_prng_below(prng, IDS), false);
    refuse_unlinked(w);
}

static bool at_rest(const world_t *w)
{
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < OPEN; i++)
            if (w->sources[k].slots[i].sequence) return false;
    return w->pump.queued == 0;
}

static void heal(world_t *w)
{
    w->faults = false;
    if (w->fenced || w->must_restart) restart_node(w, 1);
    link_up(w);
    for (uint32_t i = 0; i < 20000; i++) {
        if (w->must_restart) restart_node(w, 1); /* its start had failed while faults were on */
        source_step(w, &w->sources[i & 1]);
        if (pump_deliver(&w->pump)) continue;
        if (at_rest(w) && look(w, w->replicas[0], 0)->tx == w->newest && look(w, w->replicas[1], 0)->tx == w->newest) return;
        (void)pump_sleep(&w->pump);
    }
    fail_msg("it did not come to rest");
}

static world_t totals;

static void run(uint64_t seed, bool real)
{
    world_t *w = world_new(seed, real);
    for (uint32_t i = 0; i < STEPS; i++) {
        misbehave(w);
        (void)pump_deliver(&w->pump);
        (void)pump_deliver(&w->pump);
    }
    heal(w);
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t k = 0; k < 2; k++) judge(w, k, id, true);
    for (uint32_t i = 0; i < w->log.row_count; i++) { /* nothing is in the log twice */
        uint64_t tx;
        if (w->log.publishers[i])
            assert_int_equal(in_log(w, w->log.publishers[i], w->log.publisher_epochs[i], w->log.sequences[i], &tx), 1);
    }
    totals.commits += w->commits;
    totals.refusals += w->refusals;
    totals.restarts += w->restarts;
    totals.losses += w->losses;
    totals.snapshots += w->snapshots;
    totals.looks += w->looks;
    totals.hits += w->hits;
    world_destroy(w);
}

static void print_totals(void)
{
    print_message("%llu commits, %llu refusals, %llu restarts, %llu losses of facts, %llu snapshots, %llu lookups, %llu matched\n",
                  (unsigned long long)totals.commits, (unsigned long long)totals.refusals, (unsigned long long)totals.restarts,
                  (unsigned long long)totals.losses, (unsigned long long)totals.snapshots, (unsigned long long)totals.looks,
                  (unsigned long long)totals.hits);
}

static void run_all(uint64_t seeds, bool real)
{
    memset(&totals, 0, sizeof totals);
    for (uint64_t seed = 1; seed <= seeds; seed++)
        if (!getenv("CATALOG_SEED") || strtoull(getenv("CATALOG_SEED"), NULL, 10) == seed) run(seed, real);
    print_totals();
}

static void test_replicas_equal_the_log_after_faults(void **unused)
{
    (void)unused;
    run_all(SEEDS, false);
    if (getenv("CATALOG_SEED")) return;
    assert_true(totals.commits > 5000 && totals.refusals > 200 && totals.restarts > 500 && totals.losses > 500);
    assert_true(totals.snapshots > 100 && totals.hits > 2000);
}

static void test_contract_the_real_facts_hold_the_same_conversation(void **unused)
{
    (void)unused;
    run_all(REAL_SEEDS, true);
    if (getenv("CATALOG_SEED")) return;
    assert_true(totals.commits > 700 && totals.refusals > 30 && totals.restarts > 60 && totals.losses > 60);
    assert_true(totals.snapshots > 30 && totals.hits > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replicas_equal_the_log_after_faults),
                                       cmocka_unit_test(test_contract_the_real_facts_hold_the_same_conversation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
