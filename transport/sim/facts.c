/* facts.c - see facts.h. */
#include "transport/sim/facts.h"

#include "actors/catalog_batch.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"
#include "transport/sim/catalog.h"
#include "transport/sim/storage.h"
#include "transport/sim/world.h"

#include <stdlib.h>

enum {
    PAGE_ROWS = 512,
    PAGE_CHANGES = 8192,
    PAGE_STOP = 4000,
    LOG_ID = 900,
    FENCE_US = 1500000,
    COLD = 10 /* times slower is a read that the disk has to look for */
};

enum { IDLE, HOLDING, CAPTURING, LETTING };

/* What is asked for one of the saved continuations (storage.h), by its place. */
typedef struct errand {
    uint32_t state, writer, durable_rows, generation; /* writer: device that is asked; generation: of the errand, part of its key */
} errand_t;

typedef struct facts {
    uint64_t address, asker; /* asker: the writer */
    uint64_t append_tx, append_due_us, read_due_us;
    qr_log_read_t read;
    uint32_t append_open, append_fails, read_open, node;
    uint64_t save_due_us; /* when the next continuation is saved or dropped */
    errand_t errands[QR_SIM_SAVES];
} facts_t;

/* ---- the disk --------------------------------------------------------------------------------------------------------------- */

static qr_sim_log_t *log_of(const qr_given_t *given) { return qr_sim_catalog_log(qr_sim_given(given)->catalog); }

void qr_sim_log_done(qr_sim_log_t *log)
{
    free(log->rows);
    free(log->changes);
    *log = (qr_sim_log_t){0};
}

static void make_room(qr_sim_log_t *log, uint32_t rows, uint32_t changes)
{
    if (log->row_end + rows >= log->row_capacity) {
        log->row_capacity = qr_max_u32(256, 2 * (log->row_end + rows));
        log->rows = realloc(log->rows, log->row_capacity * sizeof *log->rows);
    }
    if (log->change_end + changes >= log->change_capacity) {
        log->change_capacity = qr_max_u32(1024, 2 * (log->change_end + changes));
        log->changes = realloc(log->changes, log->change_capacity * sizeof *log->changes);
    }
    if (!log->rows || !log->changes) qr_sim_finding("not enough memory for the log");
}

static void write_change(qr_sim_log_t *log, const qr_catalog_changes_t *c, uint32_t i)
{
    qr_sim_change_t *to = &log->changes[log->change_end++];
    *to = (qr_sim_change_t){.size = c->sizes.data[i],
                            .group = c->groups.data[i],
                            .start = c->starts.data[i],
                            .count = c->counts.data[i],
                            .kind = c->kinds.data[i],
                            .tier = c->tiers.data[i]};
    memcpy(to->chain, c->chains.data + 32 * (size_t)i, 32);
    memcpy(to->digest, c->digests.data + 32 * (size_t)i, 32);
    to->id = log->id_of(log->context, to->chain);
}

/* A record behind the log's end. */
static void write_record(qr_sim_log_t *log, const qr_catalog_batch_t *batch, uint64_t tx)
{
    make_room(log, (uint32_t)batch->txs.count, (uint32_t)batch->changes.kinds.count);
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(batch, &row);) {
        qr_sim_row_t *to = &log->rows[log->row_end++];
        *to = (qr_sim_row_t){.tx = row.tx,
                             .writer_epoch = row.writer_epoch,
                             .publisher = row.publisher,
                             .publisher_epoch = row.publisher_epoch,
                             .node_epoch = row.node_epoch,
                             .sequence = row.sequence,
                             .chunk_tokens = row.chunk_tokens,
                             .group_count = row.group_count,
                             .first_change = log->change_end,
                             .change_count = row.change_count};
        memcpy(to->fingerprint, row.fingerprint, 32);
        qr_copy(to->windows, row.windows, 4 * (size_t)row.group_count);
        for (uint32_t i = row.first_change; i < row.first_change + row.change_count; i++) write_change(log, &batch->changes, i);
    }
    log->writing_tx = tx;
}

static void forget_record(qr_sim_log_t *log)
{
    log->row_end = log->row_count;
    log->change_end = log->change_count;
    log->writing_tx = 0;
}

/* The record is in the log from now on, for ever. */
static void keep_record(qr_sim_log_t *log)
{
    const qr_sim_row_t *rows = log->rows + log->row_count;
    log->newest = log->writing_tx;
    log->last_epoch = rows[0].writer_epoch;
    for (uint32_t i = log->row_count; i < log->row_end; i++) log->judge(log->context, &log->rows[i], log->changes);
    log->row_count = log->row_end;
    log->change_count = log->change_end;
    log->writing_tx = 0;
}

static uint64_t epoch_of(const qr_sim_log_t *log, uint64_t tx)
{
    for (uint32_t i = log->row_count; i-- > 0;)
        if (log->rows[i].tx == tx) return log->rows[i].writer_epoch;
    return 0;
}

/* Another writer's first record. */
static void claim_by_another(facts_t *self, qr_sim_log_t *log)
{
    uint64_t epoch = qr_world_new_epoch(qr_sim_world());
    make_room(log, 1, 0);
    log->fenced_epoch = log->last_epoch;
    log->claims++;
    log->rows[log->row_end++] = (qr_sim_row_t){.tx = log->newest + 1, .writer_epoch = epoch, .first_change = log->change_end};
    log->writing_tx = log->newest + 1;
    keep_record(log);
    qr_world_restart_unit(qr_sim_world(), self->asker, 1000 + qr_sim_draw(FENCE_US));
}

/* ---- appends ------------------------------------------------------------------------------------------------------------------- */

static uint32_t fault(const facts_t *self, uint32_t kind) { return qr_world_fault(qr_sim_world(), self->node, kind); }
static bool happens(const facts_t *self, uint32_t kind)
{
    uint32_t one_in = fault(self, kind);
    return one_in && qr_sim_draw(one_in) == 0;
}

static uint64_t disk_us(const facts_t *self, uint64_t most) { return (1 + qr_sim_draw(most)) * qr_max_u32(1, fault(self, QR_FAULT_DISK)); }

static void answer_append(facts_t *self, uint32_t reason, qr_outbox_t *outbox)
{
    if (!self->append_open) return;
    self->append_open = 0;
    if (reason)
        qr_send(outbox, self->asker, append_failed, &(qr_append_failed_t){.tx = self->append_tx, .reason = reason});
    else
        qr_send(outbox, self->asker, appended, &(qr_appended_t){.tx = self->append_tx});
}

/* What was written under this number must be what is asked now. */
static void check_repeat(const qr_sim_log_t *log, const qr_catalog_batch_t *batch, uint64_t tx)
{
    uint32_t at = 0;
    while (at < log->row_count && log->rows[at].tx != tx) at++;
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(batch, &row); at++)
        if (at >= log->row_count || log->rows[at].publisher != row.publisher || log->rows[at].sequence != row.sequence ||
            log->rows[at].change_count != row.change_count)
            qr_sim_finding("transaction %llu was asked again and is another", (unsigned long long)tx);
}

/* F4. 0: it may be written; STALE: another writer was here. */
static uint32_t judge_append(const facts_t *self, qr_sim_log_t *log, const qr_append_t *a)
{
    unsigned long long tx = a->tx, newest = log->newest;
    (void)self;
    if (log->writing_tx) qr_sim_finding("append %llu while %llu is being written", tx, (unsigned long long)log->writing_tx);
    if (a->writer_epoch == log->stale_epoch) qr_sim_finding("append %llu of a writer that a later one has closed", tx);
    if (a->tx > log->newest + 1) qr_sim_finding("append %llu, but the log ends at %llu", tx, newest);
    if (a->tx == log->newest + 1 && a->writer_epoch < log->last_epoch && a->publishers.data[0]) /* a claim may be too late */
        qr_sim_finding("append %llu of a writer that has read a later one's claim", tx);
    return a->tx == log->newest + 1 && a->writer_epoch >= log->last_epoch ? 0 : QR_E_STALE;
}

static void on_append(facts_t *self, qr_sim_log_t *log, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_append_t *a = &message->body.append;
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(a);
    self->append_open = 1;
    self->append_tx = a->tx;
    if (!qr_catalog_batch_valid(&batch, true, a->tx, a->tx)) qr_sim_finding("append %llu is not valid", (unsigned long long)a->tx);
    if (log->newest && log->fenced_epoch != a->writer_epoch && a->writer_epoch == log->last_epoch && happens(self, QR_FAULT_FENCE))
        claim_by_another(self, log);
    bool repeat = a->tx <= log->newest && epoch_of(log, a->tx) == a->writer_epoch;
    uint32_t reason = repeat ? 0 : judge_append(self, log, a);
    if (reason) {
        log->stale_epoch = a->writer_epoch;
        answer_append(self, reason, outbox);
        return;
    }
    self->append_fails = !repeat && happens(self, QR_FAULT_APPEND);
    self->append_due_us = message->now_us + disk_us(self, log->write_us) + disk_us(self, log->write_us);
    qr_outbox_alarm(outbox, self->append_due_us);
    if (repeat)
        check_repeat(log, &batch, a->tx);
    else
        write_record(log, &batch, a->tx);
}

static void append_done(facts_t *self, qr_sim_log_t *log, qr_outbox_t *outbox)
{
    self->append_due_us = QR_NEVER_US;
    if (log->writing_tx && self->append_fails) {
        log->failed++;
        forget_record(log);
        answer_append(self, QR_E_IO, outbox);
        return;
    }
    if (log->writing_tx) keep_record(log);
    answer_append(self, 0, outbox);
    if (log->newest > 1 && happens(self, QR_FAULT_LOG)) {
        log->cut = qr_max_u64(log->cut, 1 + qr_sim_draw(log->newest));
        log->cuts++;
    }
}

/* ---- reads --------------------------------------------------------------------------------------------------------------------- */

typedef struct page {
    uint32_t row_count, change_count, window_count;
    uint64_t txs[PAGE_ROWS], writer_epochs[PAGE_ROWS], publishers[PAGE_ROWS], publisher_epochs[PAGE_ROWS], node_epochs[PAGE_ROWS],
        sequences[PAGE_ROWS], sizes[PAGE_CHANGES];
    uint32_t chunk_tokens[PAGE_ROWS], group_counts[PAGE_ROWS], change_counts[PAGE_ROWS], windows[PAGE_ROWS * QR_GROUPS_MAX];
    uint32_t groups[PAGE_CHANGES], starts[PAGE_CHANGES], counts[PAGE_CHANGES];
    uint8_t fingerprints[32 * PAGE_ROWS], chains[32 * PAGE_CHANGES], digests[32 * PAGE_CHANGES], kinds[PAGE_CHANGES], tiers[PAGE_CHANGES];
} page_t;
static page_t page; /* scratch: nothing in it outlives a call */

static void page_row(const qr_sim_log_t *log, const qr_sim_row_t *row)
{
    uint32_t i = page.row_count++;
    page.txs[i] = row->tx;
    page.writer_epochs[i] = row->writer_epoch;
    page.publishers[i] = row->publisher;
    page.publisher_epochs[i] = row->publisher_epoch;
    page.node_epochs[i] = row->node_epoch;
    page.sequences[i] = row->sequence;
    page.chunk_tokens[i] = row->chunk_tokens;
    page.group_counts[i] = row->group_count;
    page.change_counts[i] = row->change_count;
    memcpy(page.fingerprints + 32 * (size_t)i, row->fingerprint, 32);
    memcpy(page.windows + page.window_count, row->windows, 4 * (size_t)row->group_count);
    page.window_count += row->group_count;
    for (uint32_t k = row->first_change; k < row->first_change + row->change_count; k++) {
        const qr_sim_change_t *c = &log->changes[k];
        uint32_t to = page.change_count++;
        page.sizes[to] = c->size;
        page.groups[to] = c->group;
        page.starts[to] = c->start;
        page.counts[to] = c->count;
        page.kinds[to] = c->kind;
        page.tiers[to] = c->tier;
        memcpy(page.chains + 32 * (size_t)to, c->chain, 32);
        memcpy(page.digests + 32 * (size_t)to, c->digest, 32);
    }
}

/* Answers with rows [from, to), or as many whole transactions of them as fit. */
static void send_page(facts_t *self, const qr_sim_log_t *log, qr_log_batch_t head, uint32_t from, uint32_t to, qr_outbox_t *outbox)
{
    page.row_count = page.change_count = page.window_count = 0;
    for (uint32_t i = from; i < to; i++) {
        if (page.row_count == PAGE_ROWS || page.change_count + log->rows[i].change_count > PAGE_CHANGES)
            qr_sim_finding("a page of the log has no room for its rows");
        page_row(log, &log->rows[i]);
    }
    head.log_id = LOG_ID;
    head.newest_tx = log->newest;
#define X(kind, name) head.name = (kind){page.name, page.row_count};
    X(qr_u64s_t, txs)
    X(qr_u64s_t, writer_epochs)
    X(qr_u64s_t, publishers)
    X(qr_u64s_t, publisher_epochs)
    X(qr_u64s_t, node_epochs)
    X(qr_u64s_t, sequences)
    X(qr_u32s_t, chunk_tokens)
    X(qr_u32s_t, group_counts)
    X(qr_u32s_t, change_counts)
#undef X
#define X(kind, name) head.name = (kind){page.name, page.change_count};
        X(qr_bytes_t, kinds) X(qr_bytes_t, tiers) X(qr_u32s_t, groups) X(qr_u32s_t, starts) X(qr_u32s_t, counts) X(qr_u64s_t, sizes)
#undef X
            head.fingerprints = (qr_bytes_t){page.fingerprints, 32ull * page.row_count};
    head.windows = (qr_u32s_t){page.windows, page.window_count};
    head.chains = (qr_bytes_t){page.chains, 32ull * page.change_count};
    head.digests = (qr_bytes_t){page.digests, 32ull * page.change_count};
    qr_send(outbox, self->asker, log_batch, &head);
}

/* Rows of transactions up to tx. */
static uint32_t rows_to(const qr_sim_log_t *log, uint64_t tx)
{
    uint32_t i = log->row_count;
    while (i && log->rows[i - 1].tx > tx) i--;
    return i;
}

static bool is_held(const qr_sim_log_t *log, uint64_t tx)
{
    for (uint64_t i = 0; i < QR_COUNT(log->held); i++)
        if (log->held[i] == tx) return true;
    return false;
}

static void send_snapshot(facts_t *self, qr_sim_log_t *log, qr_outbox_t *outbox)
{
    const qr_log_read_t *q = &self->read;
    qr_log_batch_t head = {.snapshot_tx = q->snapshot_tx ? q->snapshot_tx : log->newest, .first_tx = q->cursor};
    uint32_t rows = rows_to(log, head.snapshot_tx), to = (uint32_t)q->cursor, changes = 0;
    for (uint32_t most = 1 + (uint32_t)qr_sim_draw(rows / 2 + 1); most && to < rows; most--, to++) {
        changes += log->rows[to].change_count;
        if (changes > PAGE_STOP) break;
    }
    if (q->snapshot_tx == 0 && !is_held(log, head.snapshot_tx)) log->held[log->held_count++ % QR_COUNT(log->held)] = head.snapshot_tx;
    log->snapshots += q->snapshot_tx == 0;
    head.cursor = to;
    head.last = to == rows;
    send_page(self, log, head, (uint32_t)q->cursor, to, outbox);
}

static void send_transactions(facts_t *self, const qr_sim_log_t *log, qr_outbox_t *outbox)
{
    qr_log_batch_t head = {.first_tx = self->read.from_tx, .last_tx = self->read.from_tx - 1};
    uint32_t from = rows_to(log, self->read.from_tx - 1), to = from, changes = 0;
    for (uint64_t most = 1 + qr_sim_draw(5); most && head.last_tx < log->newest && changes < PAGE_STOP / 2; most--) {
        head.last_tx++;
        for (; to < log->row_count && log->rows[to].tx == head.last_tx; to++) changes += log->rows[to].change_count;
    }
    send_page(self, log, head, from, to, outbox);
}

static void read_done(facts_t *self, qr_sim_log_t *log, qr_outbox_t *outbox)
{
    const qr_log_read_t *q = &self->read;
    bool stale = q->snapshot_tx && !is_held(log, q->snapshot_tx), fails = fault(self, QR_FAULT_APPEND) && qr_sim_draw(4) == 0;
    self->read_due_us = QR_NEVER_US;
    if (!self->read_open) return;
    self->read_open = 0;
    if (stale || fails)
        qr_send(outbox, self->asker, log_failed, &(qr_log_failed_t){.reason = stale ? QR_E_STALE : QR_E_IO});
    else if (q->snapshot_tx || q->from_tx <= log->cut || q->from_tx > log->newest + 1)
        send_snapshot(self, log, outbox);
    else
        send_transactions(self, log, outbox);
}

/* ---- saved continuations (F7) ---------------------------------------------------------------------------------------------------- */

static qr_sim_saves_t *saves_of(const facts_t *self, const qr_given_t *given)
{
    qr_sim_store_t *store = qr_sim_given(given)->store;
    bool beside = store && qr_sim_store_work(store)->saves_us && qr_world_devices(qr_sim_world(), self->node);
    return beside ? qr_sim_store_saves(store) : NULL;
}
static qr_sim_store_counts_t *save_counts(const qr_given_t *given) { return qr_sim_store_counts(qr_sim_given(given)->store); }

static uint64_t save_key(const facts_t *self, uint32_t place) { return qr_handle(place, self->errands[place].generation); }

/* The errand of a key in that state; QR_SIM_SAVES: it is forgotten. */
static uint32_t save_find(const facts_t *self, uint64_t key, uint32_t state)
{
    uint32_t place = qr_handle_index(key);
    bool its = place < QR_SIM_SAVES && self->errands[place].state == state && save_key(self, place) == key;
    return its ? place : QR_SIM_SAVES;
}

static void save_begin(facts_t *self, uint32_t place, uint32_t state)
{
    uint32_t generation = self->errands[place].generation + 1;
    self->errands[place] = (errand_t){.state = state, .generation = generation};
}

/* Wants the chunks of the next checkpoint writer, or that was the end of it. */
static void save_capture(facts_t *self, const qr_given_t *given, uint32_t place, qr_outbox_t *outbox)
{
    const qr_sim_chain_t *chain = &saves_of(self, given)->kept[place].chain;
    errand_t *e = &self->errands[place];
    if (e->durable_rows >= chain->count || e->writer == qr_world_devices(qr_sim_world(), self->node)) {
        save_counts(given)->saves++;
        save_counts(given)->saves_short += e->durable_rows < chain->count;
        e->state = IDLE;
        return;
    }
    e->state = CAPTURING;
    qr_capture_t body = {.capture_id = save_key(self, place), .tokens = {chain->tokens, chain->count}, .wanted = 1};
    memcpy(body.scope.bytes, chain->scope, 32);
    qr_send(outbox, qr_sim_address(self->node, ++e->writer, QR_ROLE_checkpoint_writer), capture, &body);
}

/* One of those that were lately computed, if it has a full chunk. */
static void save_one(facts_t *self, const qr_given_t *given, uint32_t place, qr_outbox_t *outbox)
{
    qr_sim_saves_t *saves = saves_of(self, given);
    uint32_t size = given->layout.chunk_tokens;
    if (!saves->heard_count) return;
    saves->kept[place].chain = saves->heard[qr_sim_draw(qr_min_u32(saves->heard_count, QR_SIM_HEARD))];
    qr_sim_chain_t *chain = &saves->kept[place].chain;
    chain->count -= chain->count % size;
    if (chain->count < size) return;
    saves->kept[place].id = ++saves->last_id;
    saves->kept[place].pin = (uint32_t)qr_sim_draw(2);
    saves->kept[place].leaving = 0;
    save_begin(self, place, HOLDING);
    if (!saves->kept[place].pin) {
        save_capture(self, given, place, outbox);
        return;
    }
    qr_chunk_hold_t body = {.key = save_key(self, place),
                            .id = {(const uint8_t *)&saves->kept[place].id, sizeof saves->kept[place].id},
                            .tokens = {chain->tokens, chain->count}};
    memcpy(body.scope.bytes, chain->scope, 32);
    qr_send(outbox, qr_sim_address(self->node, 0, QR_ROLE_storage), chunk_hold, &body);
}

static void drop_one(facts_t *self, const qr_given_t *given, uint32_t place, qr_outbox_t *outbox)
{
    qr_sim_saves_t *saves = saves_of(self, given);
    if (!saves->kept[place].pin) {
        saves->kept[place].id = 0;
        save_counts(given)->saves_dropped++;
        return;
    }
    save_begin(self, place, LETTING);
    qr_send(outbox, qr_sim_address(self->node, 0, QR_ROLE_storage), chunk_unhold,
            (&(qr_chunk_unhold_t){.key = save_key(self, place),
                                  .id = {(const uint8_t *)&saves->kept[place].id, sizeof saves->kept[place].id}}));
}

static void on_save_time(facts_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_store_work_t *work = qr_sim_store_work(qr_sim_given(given)->store);
    const qr_sim_saves_t *saves = saves_of(self, given);
    uint32_t place = (uint32_t)qr_sim_draw(QR_SIM_SAVES);
    bool over = now_us >= work->saves_until_us;
    self->save_due_us = now_us + 1 + qr_sim_draw(2 * work->saves_us);
    for (uint32_t i = 0; over && i < QR_SIM_SAVES; i++) /* those that there are */
        if (saves->kept[i].id && self->errands[i].state == IDLE) place = i;
    if (self->errands[place].state != IDLE) return;
    if (saves->kept[place].id)
        drop_one(self, given, place, outbox);
    else if (!over)
        save_one(self, given, place, outbox);
    else
        self->save_due_us = QR_NEVER_US;
    for (uint32_t i = 0; i < QR_SIM_SAVES; i++) /* whose question was lost with a unit is let go again */
        if (self->errands[i].state != IDLE || saves->kept[i].id)
            self->save_due_us = qr_min_u64(self->save_due_us, now_us + work->saves_us + 1);
}

static void on_held(facts_t *self, const qr_given_t *given, const qr_chunk_held_t *b, qr_outbox_t *outbox)
{
    uint32_t place = save_find(self, b->key, HOLDING);
    if (place == QR_SIM_SAVES) return;
    if (b->reason) {
        saves_of(self, given)->kept[place].id = 0;
        save_counts(given)->saves_refused++;
        self->errands[place].state = IDLE;
    } else {
        save_capture(self, given, place, outbox);
    }
}

/* What is called durable is in the log. */
static void judge_durable(const facts_t *self, const qr_given_t *given, uint32_t place, const qr_captured_t *b)
{
    const qr_sim_chain_t *chain = &saves_of(self, given)->kept[place].chain;
    const qr_sim_catalog_t *catalog = qr_sim_given(given)->catalog;
    uint8_t node[32];
    uint32_t size = given->layout.chunk_tokens;
    if (b->reason == QR_E_WORTHLESS || b->reason == QR_E_INVALID) qr_sim_finding("a wanted capture is %s", qr_error_name((int)b->reason));
    if (b->durable_rows > chain->count || b->durable_rows % size || (!b->reason && b->durable_rows < chain->count))
        qr_sim_finding("of a wanted capture of %u rows %u are durable, reason %s", chain->count, b->durable_rows,
                       qr_error_name((int)b->reason));
    memcpy(node, chain->scope, 32);
    for (uint32_t row = 0; row < b->durable_rows; row += size) {
        uint8_t parent[32];
        memcpy(parent, node, 32);
        qr_chain_node(parent, chain->tokens + row, size, node);
        for (uint32_t g = 0; g < given->layout.group_count; g++)
            if (!qr_sim_catalog_says(catalog, self->node, node, g))
                qr_sim_finding("%u rows are called durable, and the log does not say that the chunk at %u stands here", b->durable_rows,
                               row);
    }
}

static void on_captured(facts_t *self, const qr_given_t *given, const qr_captured_t *b, qr_outbox_t *outbox)
{
    uint32_t place = save_find(self, b->capture_id, CAPTURING);
    if (place == QR_SIM_SAVES) return;
    judge_durable(self, given, place, b);
    self->errands[place].durable_rows = qr_max_u32(self->errands[place].durable_rows, b->durable_rows);
    save_capture(self, given, place, outbox);
}

static void on_unheld(facts_t *self, const qr_given_t *given, const qr_chunk_unheld_t *b)
{
    uint32_t place = save_find(self, b->key, LETTING);
    if (place == QR_SIM_SAVES) return;
    saves_of(self, given)->kept[place].id = 0;
    save_counts(given)->saves_dropped++;
    self->errands[place].state = IDLE;
}

/* The pinned one after that of this id. */
static void on_holds_read(const facts_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_sim_saves_t *saves = saves_of(self, given);
    qr_holds_found_t body = {0};
    uint64_t after = 0, least = UINT64_MAX;
    memcpy(&after, message->body.holds_read.after.data ? message->body.holds_read.after.data : (const uint8_t *)&after,
           qr_min_u64(sizeof after, message->body.holds_read.after.count));
    for (uint32_t i = 0; saves && i < QR_SIM_SAVES; i++) {
        if (!saves->kept[i].pin || saves->kept[i].id <= after || saves->kept[i].id >= least) continue;
        least = saves->kept[i].id;
        body.id = (qr_bytes_t){(const uint8_t *)&saves->kept[i].id, sizeof saves->kept[i].id};
        memcpy(body.scope.bytes, saves->kept[i].chain.scope, 32);
        body.tokens = (qr_u32s_t){saves->kept[i].chain.tokens, saves->kept[i].chain.count};
    }
    qr_send(outbox, message->from, holds_found, &body);
}

/* ---- the actor ------------------------------------------------------------------------------------------------------------------ */

/* F2, and whatever others did meanwhile. */
static void on_start(facts_t *self, qr_sim_log_t *log, const qr_message_t *message, qr_outbox_t *outbox)
{
    memset(log->held, 0, sizeof log->held);
    if (log->writing_tx) {
        uint64_t luck = qr_sim_draw(3);
        log->torn += luck == 0;
        log->lost += luck == 1;
        if (luck == 2)
            keep_record(log);
        else
            forget_record(log);
    }
    if (log->newest && log->fenced_epoch != log->last_epoch && happens(self, QR_FAULT_FENCE)) claim_by_another(self, log);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

static void on_time(facts_t *self, qr_sim_log_t *log, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    if (now_us >= self->save_due_us && saves_of(self, given)) on_save_time(self, given, now_us, outbox);
    if (now_us >= self->append_due_us) append_done(self, log, outbox);
    if (now_us >= self->read_due_us && !log->writing_tx) read_done(self, log, outbox); /* F3 */
    outbox->alarm_us = QR_NEVER_US;
    qr_outbox_alarm(outbox, qr_max_u64(self->append_due_us, now_us + 1));
    if (self->append_due_us == QR_NEVER_US) outbox->alarm_us = QR_NEVER_US;
    if (self->read_due_us != QR_NEVER_US && !log->writing_tx) qr_outbox_alarm(outbox, qr_max_u64(self->read_due_us, now_us + 1));
    qr_outbox_alarm(outbox, self->save_due_us);
}

/* F6. What is said of a decision makes sense: the choice is one that could be made, and no more rows came of it than could. */
static void judge_decisions(const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_decisions_note_t *b = &message->body.decisions_note;
    for (uint64_t i = 0; i < b->kinds.count; i++) {
        uint32_t most = qr_max_u32(b->resident_rows.data[i], qr_max_u32(b->ram_rows.data[i], b->ssd_rows.data[i]));
        if (b->kinds.data[i] != QR_DECISION_LOAD) continue;
        bool resident = b->choices.data[i] == QR_SOURCE_RESIDENT, ssd = b->choices.data[i] == QR_SOURCE_SSD;
        bool ram = b->choices.data[i] == QR_SOURCE_RAM;
        if (ram && (b->outcome_rows.data[i] > b->ram_rows.data[i] || b->predicted_ram_ns.data[i] == UINT64_MAX))
            qr_sim_finding("request %llu: more rows came out of memory than lay there", (unsigned long long)b->request_ids.data[i]);
        if (resident != (b->resident_rows.data[i] == most))
            qr_sim_finding("request %llu: %u of %u rows were resident, and it was decided to go by %u",
                           (unsigned long long)b->request_ids.data[i], b->resident_rows.data[i], most, b->choices.data[i]);
        if (ssd && b->predicted_ssd_ns.data[i] >= b->predicted_recompute_ns.data[i])
            qr_sim_finding("request %llu was restored although computing was predicted to be faster",
                           (unsigned long long)b->request_ids.data[i]);
        if (ssd && b->outcome_rows.data[i] > b->ssd_rows.data[i])
            qr_sim_finding("request %llu: more rows were restored than are durable", (unsigned long long)b->request_ids.data[i]);
    }
    qr_send(outbox, message->from, decisions_kept, (&(qr_decisions_kept_t){.sequence = b->sequence}));
}

static void facts_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    facts_t *self = block;
    qr_sim_log_t *log = log_of(given);
    switch (message->type) {
    case QR_MESSAGE_start:
        on_start(self, log, message, outbox);
        self->save_due_us =
            saves_of(self, given) ? message->now_us + qr_sim_draw(qr_sim_store_work(qr_sim_given(given)->store)->saves_us) : QR_NEVER_US;
        qr_outbox_alarm(outbox, self->save_due_us);
        break;
    case QR_MESSAGE_append: on_append(self, log, message, outbox); break;
    case QR_MESSAGE_log_read:
        self->read = message->body.log_read;
        self->read_open = 1;
        self->read_due_us = message->now_us + disk_us(self, log->write_us / 2 + 1) * (qr_sim_draw(8) ? 1 : COLD);
        if (!log->writing_tx) qr_outbox_alarm(outbox, self->read_due_us);
        break;
    case QR_MESSAGE_alarm: on_time(self, log, given, message->now_us, outbox); break;
    case QR_MESSAGE_link_down: /* of its own node: nobody waits any more */
        if (message->body.link_down.node != self->node + 1) break;
        self->append_open = self->read_open = 0;
        for (uint32_t i = 0; i < QR_SIM_SAVES; i++) self->errands[i].state = IDLE; /* what is on the disk stays, and is dropped later */
        break;
    case QR_MESSAGE_chunk_held: on_held(self, given, &message->body.chunk_held, outbox); break;
    case QR_MESSAGE_chunk_unheld: on_unheld(self, given, &message->body.chunk_unheld); break;
    case QR_MESSAGE_captured: on_captured(self, given, &message->body.captured, outbox); break;
    case QR_MESSAGE_holds_read: on_holds_read(self, given, message, outbox); break;
    case QR_MESSAGE_policy_read: { /* the scheduler goes by what it is told, whatever it is */
        uint64_t version = 1 + qr_sim_draw(3);
        qr_send(outbox, message->from, policy_snapshot,
                (&(qr_policy_snapshot_t){version, 1000000 / version, 1000, 20000, 250, 1000000 / version}));
        break;
    }
    case QR_MESSAGE_decisions_note: judge_decisions(message, outbox); break;
    case QR_MESSAGE_metrics_read: qr_send(outbox, message->from, metrics, &(qr_metrics_t){0}); break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    default: break;
    }
}

static uint64_t facts_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(facts_t);
}

static void facts_init(void *block, const qr_given_t *given, uint64_t address)
{
    facts_t *self = block;
    (void)given;
    self->address = address;
    self->node = qr_address_node(address) - 1;
    self->asker = qr_sim_address(self->node, 0, QR_ROLE_catalog_writer);
    self->append_due_us = self->read_due_us = self->save_due_us = QR_NEVER_US;
}

static void facts_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const facts_t *self = block;
    const qr_sim_log_t *log = log_of(given);
    qr_text_put(text, "facts: newest ");
    qr_text_put_u64(text, log->newest);
    qr_text_put(text, ", cut ");
    qr_text_put_u64(text, log->cut);
    qr_text_put(text, self->append_open ? ", an append is open" : "");
    qr_text_put(text, self->read_open ? ", a read is open\n" : "\n");
}

const qr_actor_class_t qr_sim_facts_class = {
    .name = "facts",
    .role = QR_ROLE_facts,
    .max_out = 4,
    .owns_world = true,
    .bytes = facts_bytes,
    .init = facts_init,
    .handle = facts_handle,
    .print = facts_print,
};
