/* catalog_writer.c - owns the order of the catalog's transactions: one writer, one log. Facts become visible when the log has them.
 *
 *   checkpoint_writer        catalog_writer               facts (this node)        catalog_replica (every node)
 *     publish ----------------> | -- append(tx) ------------> |
 *                               | <-- appended / failed ----- |
 *     <-- committed / refused - | -- tail_batch ------------------------------------> |   those who wait for tx
 *                               | <------------------------------------------ tail -- |   stays open until there is something
 *                               | -- log_read --------------> |                           for start-up, and for replicas that are behind
 *                               | <-- log_batch / failed ---- |
 *
 * Life. START -> READING (the log, to its end) -> CLAIMING (an empty transaction under our epoch: whoever wrote before us finds its next
 * number taken) -> OPEN. link_down of this node means that facts is gone: LOST, until link_up; then READING again, which finds out
 * whether the append in flight is in the log; if it is not, it is asked again. CLOSED for ever: fenced by a later writer, failed at
 * start, or stopped. Mesh does not tell it of facts' restarts yet.
 *
 * Group commit. Publishes that arrive while an append is in flight wait in one block and become the next transaction together.
 *
 * At the bounds: a publish without room in the waiting block is refused BUSY; one of more than QR_CATALOG_CHANGES_MAX changes LIMIT; of
 * publishers the one that committed longest ago is forgotten; a replica beyond REPLICAS_MAX is refused LIMIT; a fingerprint beyond
 * QR_CATALOG_LAYOUTS is refused LIMIT.
 *
 * W1. At most one append is open; its transaction is last_tx + 1. Exactly one block takes what waits.
 * W2. A publish is answered committed, and a replica told, only after facts said appended or the log was read.
 * W3. A failed append leaves nothing: its publishes are refused, its number is used again. STALE closes this writer.
 * W4. A publish is known by (publisher, epoch, sequence): one that waits is not taken twice, one that was committed is answered the same.
 *     Of each publisher's epoch the last KNOWN_SEQUENCES numbers are known; an older one is refused STALE.
 * W5. A fingerprint has one layout for ever; another one is refused INVALID.
 * W6. Every open tail waits for something that will come: the next transaction, a read of the log, or the end of READING.
 * W7. One log_read is open at a time: ours first, then the replicas' in turn.
 * W8. CLOSED: nothing waits, no tail is open. Publishes wait only while OPEN or while facts is LOST or read again. */
#include "actors/catalog_writer.h"

#include "actors/catalog_batch.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"

enum {
    BLOCKS = 6,         /* one waits, one is in flight, the others hold the newest transactions for replicas that are up to date */
    ROWS_MAX = 64,      /* publishes of one transaction */
    CHANGES_MAX = 2048, /* changes of one transaction */
    PUBLISHERS_MAX = QR_PARTNERS_MAX,
    REPLICAS_MAX = QR_NODES_MAX,
    KNOWN_SEQUENCES = 16, /* above QR_CATALOG_PUBLISHES: whatever a publisher may ask again is known */
    RETRY_AFTER_MS = 100, /* told to who is refused BUSY or PEER_DOWN */
    READ_RETRY_US = 1000000
};
#define NONE UINT32_MAX

_Static_assert(KNOWN_SEQUENCES >= 2 * QR_CATALOG_PUBLISHES, "what is open is known");
_Static_assert(CHANGES_MAX >= (int)QR_CATALOG_CHANGES_MAX, "every publish fits an empty block");

enum { START, READING, CLAIMING, OPEN, LOST, CLOSED };
enum { FREE, WAITING, FLYING, RECENT };
static const char *const state_names[] = {"start", "reading", "claiming", "open", "lost", "closed"};

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
/* Columns of one transaction, as they are sent. */
typedef struct block {
    uint64_t tx; /* FLYING, RECENT */
    uint32_t state, row_count, change_count, window_count;
    uint64_t txs[ROWS_MAX], writer_epochs[ROWS_MAX], publishers[ROWS_MAX], publisher_epochs[ROWS_MAX], node_epochs[ROWS_MAX],
        sequences[ROWS_MAX], sizes[CHANGES_MAX];
    uint32_t chunk_tokens[ROWS_MAX], group_counts[ROWS_MAX], change_counts[ROWS_MAX], windows[ROWS_MAX * QR_GROUPS_MAX];
    uint32_t owed[ROWS_MAX]; /* answers the publisher is owed: its questions that are open */
    uint32_t groups[CHANGES_MAX], starts[CHANGES_MAX], counts[CHANGES_MAX];
    uint8_t fingerprints[32 * ROWS_MAX], chains[32 * CHANGES_MAX], digests[32 * CHANGES_MAX], kinds[CHANGES_MAX], tiers[CHANGES_MAX];
} block_t;

typedef struct publisher {
    uint64_t address, epoch;                                   /* address 0 = free */
    uint64_t last_tx;                                          /* its newest transaction */
    uint64_t greatest;                                         /* greatest sequence committed */
    uint64_t sequences[KNOWN_SEQUENCES], txs[KNOWN_SEQUENCES]; /* place sequence % KNOWN_SEQUENCES; sequence 0 = none */
} publisher_t;

typedef struct layout {
    uint8_t fingerprint[32];
    uint32_t chunk_tokens, group_count; /* chunk_tokens 0 = free */
    uint32_t windows[QR_GROUPS_MAX];
} layout_t;

typedef struct replica {
    uint64_t address; /* 0 = free */
    uint64_t log_id, from_tx, snapshot_tx, cursor;
    uint32_t open, unused;
} replica_t;

typedef struct catalog_writer {
    uint64_t address, facts, epoch, log_id, last_tx;
    uint64_t snapshot_tx, cursor; /* of our own reading */
    uint64_t mesh, drain_asker, stop_asker, drain_by_us, stop_by_us, read_at_us;
    uint64_t committed, refused, transactions, failures;
    uint32_t state, claimed, draining;
    uint32_t waiting, flying; /* blocks; flying NONE */
    uint32_t append_open;     /* 1: asked and not answered; 0 with a flying block: its outcome is looked for in the log */
    uint32_t read_open;       /* log_read: 0 none, 1 ours, 2 + i of replica i, NONE: of a replica that is gone */
    uint32_t next_reader;     /* replica whose turn it is */
    uint32_t close_reason, layout_count;
    replica_t replicas[REPLICAS_MAX];
    layout_t layouts[QR_CATALOG_LAYOUTS];
    publisher_t publishers[PUBLISHERS_MAX];
    block_t blocks[BLOCKS];
} catalog_writer_t;
#pragma GCC diagnostic pop

_Static_assert((REPLICAS_MAX + 1) * sizeof(block_t) + 65536 <= QR_OUTBOX_BYTES, "every replica can be told at once");
_Static_assert(sizeof(block_t) < QR_MESSAGE_BYTES_MAX, "a transaction fits one message");

/* ---- blocks ----------------------------------------------------------------------------------------------------------- */

/* The columns of a block as message fields: usable inside the braces of a body. */
#define BLOCK_COLUMNS(b)                                                                                                                   \
    .txs = {(b)->txs, (b)->row_count}, .writer_epochs = {(b)->writer_epochs, (b)->row_count},                                              \
    .publishers = {(b)->publishers, (b)->row_count}, .publisher_epochs = {(b)->publisher_epochs, (b)->row_count},                          \
    .node_epochs = {(b)->node_epochs, (b)->row_count}, .sequences = {(b)->sequences, (b)->row_count},                                      \
    .fingerprints = {(b)->fingerprints, 32ull * (b)->row_count}, .chunk_tokens = {(b)->chunk_tokens, (b)->row_count},                      \
    .group_counts = {(b)->group_counts, (b)->row_count}, .windows = {(b)->windows, (b)->window_count},                                     \
    .change_counts = {(b)->change_counts, (b)->row_count}, .kinds = {(b)->kinds, (b)->change_count},                                       \
    .tiers = {(b)->tiers, (b)->change_count}, .groups = {(b)->groups, (b)->change_count},                                                  \
    .chains = {(b)->chains, 32ull * (b)->change_count}, .digests = {(b)->digests, 32ull * (b)->change_count},                              \
    .starts = {(b)->starts, (b)->change_count}, .counts = {(b)->counts, (b)->change_count}, .sizes = {(b)->sizes, (b)->change_count}

static void empty(block_t *b, uint32_t state)
{
    b->state = state;
    b->tx = 0;
    b->row_count = b->change_count = b->window_count = 0;
}

/* A block for what waits next: a free one, else that of the oldest transaction. */
static uint32_t take_block(catalog_writer_t *self)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const block_t *b = &self->blocks[i];
        if (b->state == FREE) best = best == NONE || self->blocks[best].state != FREE ? i : best;
        if (b->state == RECENT && (best == NONE || (self->blocks[best].state == RECENT && b->tx < self->blocks[best].tx))) best = i;
    }
    qr_assert(best != NONE);
    empty(&self->blocks[best], WAITING);
    return best;
}

static void add_changes(block_t *b, const qr_catalog_changes_t *c)
{
    size_t at = b->change_count, n = c->kinds.count;
    qr_copy(b->kinds + at, c->kinds.data, n);
    qr_copy(b->tiers + at, c->tiers.data, n);
    qr_copy(b->groups + at, c->groups.data, 4 * n);
    qr_copy(b->chains + 32 * at, c->chains.data, 32 * n);
    qr_copy(b->digests + 32 * at, c->digests.data, 32 * n);
    qr_copy(b->starts + at, c->starts.data, 4 * n);
    qr_copy(b->counts + at, c->counts.data, 4 * n);
    qr_copy(b->sizes + at, c->sizes.data, 8 * n);
    b->change_count += (uint32_t)n;
}

static void add_publish(block_t *b, const qr_message_t *message)
{
    const qr_publish_t *p = &message->body.publish;
    const qr_catalog_changes_t changes = QR_CATALOG_CHANGES(p);
    uint32_t i = b->row_count++;
    b->publishers[i] = message->from;
    b->publisher_epochs[i] = message->epoch;
    b->node_epochs[i] = p->node_epoch;
    b->sequences[i] = p->sequence;
    memcpy(b->fingerprints + 32 * (size_t)i, p->fingerprint.bytes, 32);
    b->chunk_tokens[i] = p->chunk_tokens;
    b->group_counts[i] = (uint32_t)p->windows.count;
    memcpy(b->windows + b->window_count, p->windows.data, 4 * p->windows.count);
    b->window_count += (uint32_t)p->windows.count;
    b->change_counts[i] = (uint32_t)p->kinds.count;
    b->owed[i] = 1;
    add_changes(b, &changes);
}

/* ---- what the log has said ------------------------------------------------------------------------------------------------ */

static publisher_t *find_publisher(catalog_writer_t *self, uint64_t address)
{
    for (uint32_t i = 0; i < PUBLISHERS_MAX; i++)
        if (self->publishers[i].address == address) return &self->publishers[i];
    return NULL;
}

/* The entry of a publisher that committed, made in the place of whoever committed longest ago. */
static publisher_t *keep_publisher(catalog_writer_t *self, uint64_t address, uint64_t epoch)
{
    publisher_t *p = find_publisher(self, address);
    if (p && p->epoch == epoch) return p;
    for (uint32_t i = 0; !p && i < PUBLISHERS_MAX; i++)
        if (self->publishers[i].address == 0) p = &self->publishers[i];
    if (!p) {
        p = &self->publishers[0];
        for (uint32_t i = 1; i < PUBLISHERS_MAX; i++)
            if (self->publishers[i].last_tx < p->last_tx) p = &self->publishers[i];
    }
    memset(p, 0, sizeof *p);
    p->address = address;
    p->epoch = epoch;
    return p;
}

static layout_t *find_layout(catalog_writer_t *self, const uint8_t fingerprint[32])
{
    for (uint32_t i = 0; i < self->layout_count; i++)
        if (memcmp(self->layouts[i].fingerprint, fingerprint, 32) == 0) return &self->layouts[i];
    return NULL;
}

/* A row of the log: its publisher's number is known from now on (W4), its layout too (W5). */
static void learn(catalog_writer_t *self, const qr_catalog_row_t *row)
{
    if (row->group_count && !find_layout(self, row->fingerprint) && self->layout_count < QR_CATALOG_LAYOUTS) {
        layout_t *l = &self->layouts[self->layout_count++];
        memcpy(l->fingerprint, row->fingerprint, 32);
        l->chunk_tokens = row->chunk_tokens;
        l->group_count = row->group_count;
        memcpy(l->windows, row->windows, 4 * (size_t)row->group_count);
    }
    if (row->publisher == 0 || row->sequence == 0) return;
    publisher_t *p = keep_publisher(self, row->publisher, row->publisher_epoch);
    uint32_t place = (uint32_t)(row->sequence % KNOWN_SEQUENCES);
    p->last_tx = qr_max_u64(p->last_tx, row->tx);
    p->greatest = qr_max_u64(p->greatest, row->sequence);
    if (row->sequence < p->sequences[place]) return;
    p->sequences[place] = row->sequence;
    p->txs[place] = row->tx;
}

static void learn_block(catalog_writer_t *self, const block_t *b)
{
    const qr_append_t body = {BLOCK_COLUMNS(b)};
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&body);
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&batch, &row);) learn(self, &row);
}

/* ---- tails ------------------------------------------------------------------------------------------------------------------- */

/* Where a replica really stands: 1 when it knows another log, or more than this one has. */
static uint64_t wanted(const catalog_writer_t *self, const replica_t *r)
{
    uint64_t coming = self->last_tx + (self->flying != NONE) + 1; /* it may have read an append whose answer is still on its way */
    if ((r->log_id && r->log_id != self->log_id) || r->from_tx == 0 || r->from_tx > coming) return 1;
    return r->from_tx;
}

static const block_t *find_recent(const catalog_writer_t *self, uint64_t tx)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (self->blocks[i].state == RECENT && self->blocks[i].tx == tx) return &self->blocks[i];
    return NULL;
}

static bool up_to_date(const catalog_writer_t *self, const replica_t *r)
{
    return r->snapshot_tx == 0 && wanted(self, r) > self->last_tx && r->from_tx > self->last_tx;
}

static bool needs_read(const catalog_writer_t *self, const replica_t *r)
{
    return r->address && r->open && !up_to_date(self, r) && (r->snapshot_tx || !find_recent(self, wanted(self, r)));
}

/* Answers a replica that waits, if what it wants is at hand. */
static void serve(catalog_writer_t *self, replica_t *r, qr_outbox_t *outbox)
{
    if (!r->address || !r->open || !self->claimed) return;
    if (r->snapshot_tx || up_to_date(self, r)) return;
    const block_t *b = find_recent(self, wanted(self, r));
    if (!b) return;
    qr_tail_batch_t body = {.log_id = self->log_id, .newest_tx = self->last_tx, .first_tx = b->tx, .last_tx = b->tx, BLOCK_COLUMNS(b)};
    qr_send(outbox, r->address, tail_batch, &body);
    r->open = 0;
}

/* Reads the log for the next replica that is behind (W7). */
static void read_next(catalog_writer_t *self, qr_outbox_t *outbox)
{
    if (self->read_open || self->state != OPEN) return;
    for (uint32_t k = 0; k < REPLICAS_MAX; k++) {
        uint32_t i = (self->next_reader + k) % REPLICAS_MAX;
        replica_t *r = &self->replicas[i];
        if (!needs_read(self, r)) continue;
        self->read_open = 2 + i;
        self->next_reader = (i + 1) % REPLICAS_MAX;
        qr_send(outbox, self->facts, log_read,
                &(qr_log_read_t){.from_tx = wanted(self, r), .snapshot_tx = r->snapshot_tx, .cursor = r->cursor});
        return;
    }
}

static void serve_all(catalog_writer_t *self, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) serve(self, &self->replicas[i], outbox);
    read_next(self, outbox);
}

static void refuse_tail(replica_t *r, uint32_t reason, qr_outbox_t *outbox)
{
    if (!r->open) return;
    qr_send(outbox, r->address, tail_refused, &(qr_tail_refused_t){.reason = reason});
    r->open = 0;
}

/* ---- ends -------------------------------------------------------------------------------------------------------------------- */

static void refuse_block(catalog_writer_t *self, block_t *b, uint32_t reason, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < b->row_count; i++) {
        qr_publish_refused_t body = {.sequence = b->sequences[i], .reason = reason};
        self->refused += b->owed[i];
        for (; b->owed[i]; b->owed[i]--) qr_send(outbox, b->publishers[i], publish_refused, &body);
    }
}

static void settle_stop(catalog_writer_t *self, uint64_t now_us, qr_outbox_t *outbox);

static uint32_t pending(const catalog_writer_t *self)
{
    return self->blocks[self->waiting].row_count + (self->flying == NONE ? 0 : self->blocks[self->flying].row_count);
}

static void settle_drain(catalog_writer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->drain_asker || (pending(self) && now_us < self->drain_by_us)) return;
    qr_send(outbox, self->drain_asker, drained, &(qr_drained_t){.open_count = pending(self)});
    self->drain_asker = 0;
    self->drain_by_us = QR_NEVER_US;
}

/* The end of this writer (W8). in_doubt: why those are refused whose append was not answered. */
static void close_writer(catalog_writer_t *self, uint32_t reason, uint32_t in_doubt, uint64_t now_us, qr_outbox_t *outbox)
{
    if (self->flying != NONE) {
        refuse_block(self, &self->blocks[self->flying], in_doubt, outbox);
        empty(&self->blocks[self->flying], FREE);
        self->flying = NONE;
    }
    refuse_block(self, &self->blocks[self->waiting], reason, outbox);
    empty(&self->blocks[self->waiting], WAITING);
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) refuse_tail(&self->replicas[i], reason, outbox);
    self->state = CLOSED;
    self->append_open = 0;
    self->close_reason = reason;
    self->read_at_us = QR_NEVER_US;
    if (self->mesh) qr_send(outbox, self->mesh, ready, &(qr_ready_t){.reason = reason});
    self->mesh = 0;
    settle_drain(self, now_us, outbox);
    settle_stop(self, now_us, outbox);
}

static void settle_stop(catalog_writer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->stop_asker) return;
    if (self->state != CLOSED) {
        if (self->flying != NONE && self->append_open && now_us < self->stop_by_us) return;
        close_writer(self, QR_E_DRAINING, QR_E_PEER_DOWN, now_us, outbox); /* comes back here */
        return;
    }
    uint64_t asker = self->stop_asker;
    self->stop_asker = 0;
    self->stop_by_us = QR_NEVER_US;
    qr_send(outbox, asker, stopped, &(qr_stopped_t){0});
}

/* ---- appends ------------------------------------------------------------------------------------------------------------------- */

static void send_append(catalog_writer_t *self, qr_outbox_t *outbox)
{
    const block_t *b = &self->blocks[self->flying];
    qr_append_t body = {.tx = b->tx, .writer_epoch = self->epoch, BLOCK_COLUMNS(b)};
    qr_send(outbox, self->facts, append, &body);
    self->append_open = 1;
}

/* Makes what waits the next transaction, if none is in flight. */
static void fly(catalog_writer_t *self, qr_outbox_t *outbox)
{
    bool may = self->state == OPEN || self->state == CLAIMING;
    block_t *b = &self->blocks[self->waiting];
    if (!may || (self->flying != NONE && !QR_MUTANT(500)) || b->row_count == 0) return;
    b->state = FLYING;
    b->tx = self->last_tx + 1;
    for (uint32_t i = 0; i < b->row_count; i++) {
        b->txs[i] = b->tx;
        b->writer_epochs[i] = self->epoch;
    }
    self->flying = self->waiting;
    self->waiting = take_block(self);
    send_append(self, outbox);
    if (QR_MUTANT(501)) { /* answers before the log has it */
        for (uint32_t i = 0; i < b->row_count; i++)
            for (; b->owed[i]; b->owed[i]--)
                qr_send(outbox, b->publishers[i], publish_committed, &(qr_publish_committed_t){b->sequences[i], b->tx});
    }
}

static void claim(catalog_writer_t *self, qr_outbox_t *outbox)
{
    block_t *b = &self->blocks[self->waiting];
    qr_assert(b->row_count == 0 && self->flying == NONE);
    self->state = CLAIMING;
    b->row_count = 1;
    b->publishers[0] = b->publisher_epochs[0] = b->node_epochs[0] = b->sequences[0] = 0;
    b->chunk_tokens[0] = b->group_counts[0] = b->change_counts[0] = b->owed[0] = 0;
    memset(b->fingerprints, 0, 32);
    fly(self, outbox);
}

static void open_writer(catalog_writer_t *self, qr_outbox_t *outbox)
{
    self->state = OPEN;
    self->claimed = 1;
    if (self->mesh) qr_send(outbox, self->mesh, ready, &(qr_ready_t){0});
    self->mesh = 0;
    fly(self, outbox);
    serve_all(self, outbox);
}

/* The log has the transaction in flight. */
static void commit(catalog_writer_t *self, qr_outbox_t *outbox)
{
    block_t *b = &self->blocks[self->flying];
    self->last_tx = b->tx;
    self->transactions++;
    self->committed += b->publishers[0] ? b->row_count : 0;
    learn_block(self, b);
    for (uint32_t i = 0; i < b->row_count; i++) {
        qr_publish_committed_t body = {.sequence = b->sequences[i], .tx = b->tx};
        for (; b->owed[i]; b->owed[i]--) qr_send(outbox, b->publishers[i], publish_committed, &body);
    }
    b->state = RECENT;
    self->flying = NONE;
    self->append_open = 0;
}

static void on_appended(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (self->flying == NONE || !self->append_open || message->body.appended.tx != self->blocks[self->flying].tx) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, message->type, message->body.appended.tx, self->last_tx);
        return;
    }
    bool claims = self->state == CLAIMING;
    commit(self, outbox);
    if (claims)
        open_writer(self, outbox);
    else
        serve_all(self, outbox);
    fly(self, outbox);
    settle_drain(self, message->now_us, outbox);
    settle_stop(self, message->now_us, outbox);
}

/* A later writer has the log. */
static void fence(catalog_writer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_writer_fenced, 0, self->epoch, self->last_tx, 0);
    self->append_open = 0;
    close_writer(self, QR_E_STALE, QR_E_STALE, now_us, outbox);
}

static void on_append_failed(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_append_failed_t *f = &message->body.append_failed;
    if (self->flying == NONE || !self->append_open || f->tx != self->blocks[self->flying].tx) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, message->type, f->tx, self->last_tx);
        return;
    }
    self->failures++;
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_append_failed, 0, f->reason, f->tx, self->blocks[self->flying].row_count);
    if (f->reason == QR_E_STALE && !QR_MUTANT(502)) {
        fence(self, message->now_us, outbox);
        return;
    }
    bool claims = self->state == CLAIMING;
    uint32_t reason = f->reason ? f->reason : QR_E_IO;
    refuse_block(self, &self->blocks[self->flying], reason, outbox);
    empty(&self->blocks[self->flying], FREE);
    self->flying = NONE;
    self->append_open = 0;
    if (QR_MUTANT(503)) self->last_tx++;
    if (claims) {
        close_writer(self, reason, reason, message->now_us, outbox);
        return;
    }
    fly(self, outbox);
    serve_all(self, outbox);
    settle_drain(self, message->now_us, outbox);
    settle_stop(self, message->now_us, outbox);
}

/* ---- reading the log ----------------------------------------------------------------------------------------------------------- */

static void read_on(catalog_writer_t *self, qr_outbox_t *outbox)
{
    self->state = READING;
    self->read_at_us = QR_NEVER_US;
    if (self->read_open) return; /* a replica's: ours follows its answer */
    self->read_open = 1;
    qr_send(outbox, self->facts, log_read,
            &(qr_log_read_t){.from_tx = self->last_tx + 1, .snapshot_tx = self->snapshot_tx, .cursor = self->cursor});
}

/* The log's end was reached: what it does not have is asked (again). */
static void read_through(catalog_writer_t *self, qr_outbox_t *outbox)
{
    if (!self->claimed) {
        if (self->flying != NONE) { /* the claim itself was in doubt */
            self->state = CLAIMING;
            send_append(self, outbox);
            return;
        }
        claim(self, outbox);
        return;
    }
    if (self->flying != NONE) send_append(self, outbox);
    open_writer(self, outbox);
}

/* One whole transaction's first row while reading; false: this writer is over. */
static bool read_row(catalog_writer_t *self, const qr_catalog_row_t *row, uint64_t now_us, qr_outbox_t *outbox)
{
    if (row->tx <= self->last_tx) { /* a further row of the same one */
        learn(self, row);
        return true;
    }
    bool ours = row->writer_epoch == self->epoch;
    bool in_doubt = self->flying != NONE && self->blocks[self->flying].tx == row->tx;
    if ((self->claimed || in_doubt) && !ours && !QR_MUTANT(504)) {
        fence(self, now_us, outbox);
        return false;
    }
    if (in_doubt && ours) {
        bool claims = self->blocks[self->flying].publishers[0] == 0;
        commit(self, outbox);
        if (claims) self->claimed = 1;
        return true;
    }
    learn(self, row);
    self->last_tx = row->tx;
    return true;
}

/* Whether the log has said that it holds this publish, and in which transaction; 0: it has not. */
static uint64_t known_tx(catalog_writer_t *self, uint64_t address, uint64_t epoch, uint64_t sequence)
{
    const publisher_t *p = find_publisher(self, address);
    uint32_t place = (uint32_t)(sequence % KNOWN_SEQUENCES);
    return p && p->epoch == epoch && p->sequences[place] == sequence ? p->txs[place] : 0;
}

/* The state at snapshot_tx has been read; false: this writer is over. What was in flight is in it, or its number is another's. */
static bool read_snapshot(catalog_writer_t *self, uint64_t snapshot_tx, uint64_t now_us, qr_outbox_t *outbox)
{
    block_t *b = self->flying == NONE ? NULL : &self->blocks[self->flying];
    if (b && b->tx <= snapshot_tx) {
        if (b->publishers[0] == 0) { /* a claim leaves no trace in a snapshot: another one is made */
            empty(b, FREE);
            self->flying = NONE;
        } else if (known_tx(self, b->publishers[0], b->publisher_epochs[0], b->sequences[0]) == b->tx) {
            commit(self, outbox);
        }
        if (self->flying != NONE || (self->claimed && self->last_tx < snapshot_tx)) {
            fence(self, now_us, outbox);
            return false;
        }
    } else if (self->claimed && snapshot_tx > self->last_tx) {
        fence(self, now_us, outbox); /* nothing of ours was under way: it is another's */
        return false;
    }
    self->last_tx = snapshot_tx;
    return true;
}

static void on_own_batch(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_log_batch_t *b = &message->body.log_batch;
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(b);
    bool whole = b->snapshot_tx == 0;
    bool fits = whole ? b->first_tx == self->last_tx + 1 : b->snapshot_tx > self->last_tx && b->first_tx == self->cursor;
    if (!fits || !qr_catalog_batch_valid(&batch, whole, b->first_tx, b->last_tx) || (self->log_id && b->log_id != self->log_id)) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, message->type, b->first_tx, self->last_tx);
        close_writer(self, QR_E_FORMAT, QR_E_PEER_DOWN, message->now_us, outbox);
        return;
    }
    self->log_id = b->log_id;
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&batch, &row);) {
        if (!whole)
            learn(self, &row);
        else if (!read_row(self, &row, message->now_us, outbox))
            return;
    }
    self->snapshot_tx = whole || b->last ? 0 : b->snapshot_tx;
    self->cursor = whole || b->last ? 0 : b->cursor;
    if (!whole && b->last && !read_snapshot(self, b->snapshot_tx, message->now_us, outbox)) return;
    if (self->snapshot_tx || self->last_tx < b->newest_tx)
        read_on(self, outbox);
    else
        read_through(self, outbox);
    settle_drain(self, message->now_us, outbox);
    settle_stop(self, message->now_us, outbox);
}

static void pass_batch(replica_t *r, const qr_log_batch_t *b, qr_outbox_t *outbox)
{
    if (!r->address || !r->open) return;
    qr_tail_batch_t body = {.log_id = b->log_id,
                            .newest_tx = b->newest_tx,
                            .first_tx = b->first_tx,
                            .last_tx = b->last_tx,
                            .snapshot_tx = b->snapshot_tx,
                            .cursor = b->cursor,
                            .last = b->last,
#define X(kind, name) .name = b->name,
                            QR_CATALOG_ROW_COLUMNS(X) QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    };
    qr_send(outbox, r->address, tail_batch, &body);
    r->open = 0;
}

/* Whose read was answered; then reads on for whoever is next. */
static uint32_t read_ended(catalog_writer_t *self)
{
    uint32_t reader = self->read_open;
    self->read_open = 0;
    return reader;
}

static void on_log_batch(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint32_t reader = read_ended(self);
    if (self->state == CLOSED || reader == 0) return;
    if (reader == 1) {
        on_own_batch(self, message, outbox);
        return;
    }
    if (reader != NONE) pass_batch(&self->replicas[reader - 2], &message->body.log_batch, outbox);
    if (self->state == READING) read_on(self, outbox);
    read_next(self, outbox);
}

static void on_log_failed(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint32_t reader = read_ended(self), reason = message->body.log_failed.reason;
    if (self->state == CLOSED || reader == 0) return;
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_log_failed, 0, reason, reader, self->last_tx);
    if (reader != 1) {
        if (reader != NONE) refuse_tail(&self->replicas[reader - 2], reason, outbox);
        if (self->state == READING) read_on(self, outbox);
        read_next(self, outbox);
        return;
    }
    if (!self->claimed && reason != QR_E_STALE) { /* at start: a failed step names itself */
        close_writer(self, reason, QR_E_PEER_DOWN, message->now_us, outbox);
        return;
    }
    self->snapshot_tx = self->cursor = 0;
    self->read_at_us = message->now_us + READ_RETRY_US;
    qr_outbox_alarm(outbox, self->read_at_us);
}

/* ---- publishes -------------------------------------------------------------------------------------------------------------------- */

static bool same_layout(uint32_t chunk_tokens, uint32_t group_count, const uint32_t *windows, const qr_publish_t *p)
{
    return chunk_tokens == p->chunk_tokens && group_count == p->windows.count &&
           memcmp(windows, p->windows.data, 4 * (size_t)group_count) == 0;
}

/* 0, or why this layout cannot be published (W5): against what is committed and what may be. */
static uint32_t judge_layout(catalog_writer_t *self, const qr_publish_t *p)
{
    const layout_t *l = find_layout(self, p->fingerprint.bytes);
    if (l) return same_layout(l->chunk_tokens, l->group_count, l->windows, p) || QR_MUTANT(505) ? 0 : QR_E_INVALID;
    uint32_t fresh = 0;
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t index = k ? self->waiting : self->flying;
        if (index == NONE) continue;
        const block_t *b = &self->blocks[index];
        for (uint32_t i = 0, at = 0; i < b->row_count; at += b->group_counts[i++]) {
            const uint8_t *fingerprint = b->fingerprints + 32 * (size_t)i;
            if (memcmp(fingerprint, p->fingerprint.bytes, 32) == 0) /* two first ones beside each other are not both taken */
                return same_layout(b->chunk_tokens[i], b->group_counts[i], b->windows + at, p) ? 0 : QR_E_BUSY;
            fresh += !find_layout(self, fingerprint) && b->group_counts[i];
        }
    }
    if (self->layout_count == QR_CATALOG_LAYOUTS) return QR_E_LIMIT;
    return self->layout_count + fresh >= QR_CATALOG_LAYOUTS ? QR_E_BUSY : 0;
}

static bool publish_valid(const qr_publish_t *p)
{
    const qr_catalog_changes_t changes = QR_CATALOG_CHANGES(p);
    uint32_t count;
    return p->sequence && p->windows.count <= QR_GROUPS_MAX && qr_catalog_changes_even(&changes, &count) &&
           qr_catalog_changes_valid(&changes, 0, count, p->chunk_tokens, (uint32_t)p->windows.count);
}

/* A row that waits or flies under this name, NULL without one; rows of other epochs of the publisher are owed nothing any more. */
static uint32_t *find_pending(catalog_writer_t *self, uint64_t publisher, uint64_t epoch, uint64_t sequence)
{
    uint32_t *found = NULL;
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t index = k ? self->waiting : self->flying;
        if (index == NONE) continue;
        block_t *b = &self->blocks[index];
        for (uint32_t i = 0; i < b->row_count; i++) {
            if (b->publishers[i] != publisher) continue;
            if (b->publisher_epochs[i] != epoch) b->owed[i] = 0;
            if (b->publisher_epochs[i] == epoch && b->sequences[i] == sequence) found = &b->owed[i];
        }
    }
    return found;
}

/* Why a new, valid publish cannot be taken now; 0: it can. */
static uint32_t judge(catalog_writer_t *self, const qr_publish_t *p)
{
    const block_t *b = &self->blocks[self->waiting];
    if (!self->claimed && self->close_reason != QR_E_STALE) return QR_E_PEER_DOWN; /* the log may have it: it was not read yet */
    if (self->state == CLOSED) return self->close_reason;
    if (self->draining || self->stop_asker) return QR_E_DRAINING;
    if (p->kinds.count > QR_CATALOG_CHANGES_MAX) return QR_E_LIMIT;
    if (b->row_count == ROWS_MAX || b->change_count + p->kinds.count > CHANGES_MAX) return QR_E_BUSY;
    return judge_layout(self, p);
}

static void refuse_publish(catalog_writer_t *self, const qr_message_t *message, uint32_t reason, qr_outbox_t *outbox)
{
    self->refused++;
    qr_publish_refused_t body = {.sequence = message->body.publish.sequence, .reason = reason};
    if (reason == QR_E_BUSY || reason == QR_E_PEER_DOWN) body.retry_after_ms = RETRY_AFTER_MS;
    qr_send(outbox, message->from, publish_refused, &body);
}

/* A committed one is answered the same, one too old to be known is refused; false: neither. */
static bool answer_known(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint64_t sequence = message->body.publish.sequence;
    const publisher_t *p = find_publisher(self, message->from);
    if (!p || p->epoch != message->epoch || QR_MUTANT(506)) return false;
    uint64_t tx = known_tx(self, message->from, message->epoch, sequence);
    if (tx) {
        qr_send(outbox, message->from, publish_committed, &(qr_publish_committed_t){.sequence = sequence, .tx = tx});
        return true;
    }
    if (sequence + KNOWN_SEQUENCES > p->greatest) return false;
    refuse_publish(self, message, QR_E_STALE, outbox);
    return true;
}

static void on_publish(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_publish_t *p = &message->body.publish;
    if (!publish_valid(p)) {
        refuse_publish(self, message, QR_E_INVALID, outbox);
        return;
    }
    if (answer_known(self, message, outbox)) return;
    uint32_t *owed = find_pending(self, message->from, message->epoch, p->sequence);
    if (owed && *owed < QR_CATALOG_PUBLISHES) {
        ++*owed;
        return;
    }
    uint32_t reason = owed ? QR_E_BUSY : judge(self, p);
    if (reason) {
        refuse_publish(self, message, reason, outbox);
        return;
    }
    add_publish(&self->blocks[self->waiting], message);
    fly(self, outbox);
}

/* ---- replicas ---------------------------------------------------------------------------------------------------------------------- */

static replica_t *find_replica(catalog_writer_t *self, uint64_t address)
{
    replica_t *room = NULL;
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) {
        if (self->replicas[i].address == address) return &self->replicas[i];
        if (!room && self->replicas[i].address == 0) room = &self->replicas[i];
    }
    return room;
}

static void on_tail(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_tail_t *t = &message->body.tail;
    replica_t *r = find_replica(self, message->from);
    uint32_t reason = !r ? QR_E_LIMIT : self->state == CLOSED ? self->close_reason : self->stop_asker ? QR_E_DRAINING : 0;
    if (reason) {
        qr_send(outbox, message->from, tail_refused, &(qr_tail_refused_t){.reason = reason});
        return;
    }
    *r = (replica_t){.address = message->from,
                     .log_id = t->log_id,
                     .from_tx = t->from_tx,
                     .snapshot_tx = t->snapshot_tx,
                     .cursor = t->cursor,
                     .open = 1};
    serve(self, r, outbox);
    read_next(self, outbox);
}

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static uint64_t catalog_writer_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(catalog_writer_t);
}

static void catalog_writer_init(void *block, const qr_given_t *given, uint64_t address)
{
    (void)given;
    catalog_writer_t *self = block;
    self->address = address;
    self->facts = qr_address(qr_address_node(address), 0, QR_ROLE_facts, 0);
    self->flying = NONE;
    self->blocks[0].state = WAITING;
    self->drain_by_us = self->stop_by_us = self->read_at_us = QR_NEVER_US;
}

static void on_start(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->epoch = b->epoch;
    self->mesh = message->from;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_facts) self->facts = b->partners.data[i];
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, 0, 0);
    read_on(self, outbox);
}

/* Questions of a node that is gone need no answer; publishes that wait go on. */
static void forget_node(catalog_writer_t *self, uint32_t node)
{
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) {
        replica_t *r = &self->replicas[i];
        if (qr_address_node(r->address) != node || !r->address) continue;
        memset(r, 0, sizeof *r);
        if (self->read_open == 2 + i && !QR_MUTANT(507)) self->read_open = NONE;
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        for (uint32_t k = 0; k < self->blocks[i].row_count; k++)
            if (qr_address_node(self->blocks[i].publishers[k]) == node) self->blocks[i].owed[k] = 0;
}

static void on_link_down(catalog_writer_t *self, const qr_message_t *message)
{
    uint32_t node = message->body.link_down.node;
    forget_node(self, node);
    if (node != qr_address_node(self->facts) || self->state == START || self->state == CLOSED) return;
    self->state = LOST;
    self->append_open = self->read_open = 0;
    self->snapshot_tx = self->cursor = 0;
    self->read_at_us = QR_NEVER_US;
}

static void on_link_up(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (self->state == LOST && message->body.link_up.node == qr_address_node(self->facts)) read_on(self, outbox);
}

static void on_drain(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = 1;
    self->drain_asker = message->from;
    self->drain_by_us = message->now_us + message->body.drain.budget_us;
    settle_drain(self, message->now_us, outbox);
    if (self->drain_asker) qr_outbox_alarm(outbox, self->drain_by_us);
}

/* Waits for the append in flight, within the budget; the rest is refused. */
static void on_stop(catalog_writer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->stop_asker = message->from;
    self->stop_by_us = message->now_us + message->body.stop.budget_us;
    refuse_block(self, &self->blocks[self->waiting], QR_E_DRAINING, outbox);
    empty(&self->blocks[self->waiting], WAITING);
    settle_stop(self, message->now_us, outbox);
    if (self->stop_asker) qr_outbox_alarm(outbox, self->stop_by_us);
}

static void on_alarm(catalog_writer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    if (self->state == READING && now_us >= self->read_at_us) read_on(self, outbox);
    settle_drain(self, now_us, outbox);
    settle_stop(self, now_us, outbox);
    qr_outbox_alarm(outbox, qr_min_u64(self->read_at_us, qr_min_u64(self->drain_by_us, self->stop_by_us)));
}

static void catalog_writer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    (void)given;
    catalog_writer_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, message->now_us, outbox); break;
    case QR_MESSAGE_publish: on_publish(self, message, outbox); break;
    case QR_MESSAGE_appended: on_appended(self, message, outbox); break;
    case QR_MESSAGE_append_failed: on_append_failed(self, message, outbox); break;
    case QR_MESSAGE_log_batch: on_log_batch(self, message, outbox); break;
    case QR_MESSAGE_log_failed: on_log_failed(self, message, outbox); break;
    case QR_MESSAGE_tail: on_tail(self, message, outbox); break;
    case QR_MESSAGE_link_up: on_link_up(self, message, outbox); break;
    case QR_MESSAGE_link_down: on_link_down(self, message); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

/* ---- check and print ------------------------------------------------------------------------------------------------------------------
 */

static void check_blocks(const catalog_writer_t *self)
{
    uint32_t waiting = 0, flying = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const block_t *b = &self->blocks[i];
        waiting += b->state == WAITING;
        flying += b->state == FLYING;
        uint64_t windows = 0, changes = 0;
        for (uint32_t k = 0; k < b->row_count; k++) {
            windows += b->group_counts[k];
            changes += b->change_counts[k];
            qr_assert(b->owed[k] == 0 || b->state == WAITING || b->state == FLYING); /* W2 */
        }
        qr_assert(b->row_count <= ROWS_MAX && windows == b->window_count && changes == b->change_count && changes <= CHANGES_MAX);
        qr_assert(b->state != RECENT || (b->tx > 0 && b->tx <= self->last_tx));
        for (uint32_t k = 0; k < i; k++) qr_assert(b->state != RECENT || self->blocks[k].state != RECENT || b->tx != self->blocks[k].tx);
    }
    qr_assert(waiting == 1 && self->blocks[self->waiting].state == WAITING); /* W1 */
    qr_assert(flying == (self->flying != NONE));
    qr_assert(!flying || (self->blocks[self->flying].state == FLYING && self->blocks[self->flying].tx == self->last_tx + 1));
    qr_assert(flying || !self->append_open);
}

/* Rows that wait or fly under one name: never two (W4). */
static void check_pending(const catalog_writer_t *self)
{
    const block_t *both[2] = {&self->blocks[self->waiting], self->flying == NONE ? NULL : &self->blocks[self->flying]};
    for (uint32_t a = 0; a < 2; a++)
        for (uint32_t i = 0; both[a] && i < both[a]->row_count; i++)
            for (uint32_t b = 0; b <= a; b++)
                for (uint32_t k = 0; both[b] && k < (b == a ? i : both[b]->row_count); k++)
                    qr_assert(both[a]->publishers[i] != both[b]->publishers[k] ||
                              both[a]->publisher_epochs[i] != both[b]->publisher_epochs[k] ||
                              both[a]->sequences[i] != both[b]->sequences[k]);
}

static void catalog_writer_check(const void *block, const qr_given_t *given)
{
    (void)given;
    const catalog_writer_t *self = block;
    check_blocks(self);
    check_pending(self);
    for (uint32_t i = 0; i < PUBLISHERS_MAX; i++) {
        const publisher_t *p = &self->publishers[i];
        for (uint32_t k = 0; k < KNOWN_SEQUENCES; k++) /* W4 */
            qr_assert(p->sequences[k] == 0 ||
                      (p->sequences[k] % KNOWN_SEQUENCES == k && p->sequences[k] <= p->greatest && p->txs[k] <= p->last_tx));
        for (uint32_t k = 0; k < i; k++) qr_assert(p->address == 0 || p->address != self->publishers[k].address);
    }
    bool reads = false;
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) {
        const replica_t *r = &self->replicas[i];
        if (!r->address || !r->open) continue;
        qr_assert(self->state != CLOSED); /* W8 */
        if (self->state != OPEN) continue;
        reads = reads || needs_read(self, r);
        qr_assert(up_to_date(self, r) || needs_read(self, r)); /* W6: what is at hand has been told */
    }
    qr_assert(!reads || self->read_open);                                        /* W6, W7 */
    qr_assert(self->state != CLOSED || pending(self) == 0);                      /* W8 */
    qr_assert(self->state != OPEN || self->flying == NONE || self->append_open); /* W1 */
    qr_assert(self->claimed || pending(self) == 0 || self->blocks[self->flying == NONE ? self->waiting : self->flying].publishers[0] == 0);
    qr_assert(self->layout_count <= QR_CATALOG_LAYOUTS);
}

static void catalog_writer_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const catalog_writer_t *self = block;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{", epoch ", self->epoch},
                   {", tx ", self->last_tx},
                   {", publishes waiting ", self->blocks[self->waiting].row_count},
                   {", in flight ", self->flying == NONE ? 0 : self->blocks[self->flying].row_count},
                   {", committed ", self->committed},
                   {", refused ", self->refused},
                   {", failed appends ", self->failures}};
    qr_text_put(text, "catalog_writer: ");
    qr_text_put(text, state_names[self->state]);
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        qr_text_put(text, numbers[i].name);
        qr_text_put_u64(text, numbers[i].value);
    }
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < REPLICAS_MAX; i++) {
        const replica_t *r = &self->replicas[i];
        if (!r->address) continue;
        qr_text_put(text, "  replica of node ");
        qr_text_put_u64(text, qr_address_node(r->address));
        qr_text_put(text, r->open ? " waits for " : " was told of ");
        qr_text_put_u64(text, r->from_tx);
        qr_text_put(text, "\n");
    }
}

/* A commit answers every publish that is open and every replica; a closing writer too. */
enum { MAX_OUT = 2 * ROWS_MAX * QR_CATALOG_PUBLISHES + 2 * REPLICAS_MAX + 8 };

const qr_actor_class_t qr_catalog_writer_class = {
    .name = "catalog_writer",
    .role = QR_ROLE_catalog_writer,
    .max_out = MAX_OUT,
    .bytes = catalog_writer_bytes,
    .init = catalog_writer_init,
    .handle = catalog_writer_handle,
    .check = catalog_writer_check,
    .print = catalog_writer_print,
};
