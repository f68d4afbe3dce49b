/* facts.c - the io actor `facts`: owns the catalog's log and the facts made of it (given->params.store), on a host thread of its own, so
 * that no fsync stands before a lookup.
 *
 *   catalog_writer              facts
 *     append -------------------> |  fsync, then
 *     <- appended, append_failed- |  then the facts on LevelDB, in `work`
 *     log_read -----------------> |
 *     <- log_batch, log_failed -- |
 *   http, prompt
 *     facts_query --------------> |
 *     <- facts_page, facts_refused|
 *   scheduler
 *     policy_read --------------> |
 *     <- policy_snapshot -------- |
 *     decisions_note -----------> |  into the ring, not synced
 *     <- decisions_kept --------- |
 *   http
 *     metrics_read -------------> |
 *     <- metrics ---------------- |
 *     continuation_save, _read, _list, _drop -> | fsync, then
 *     <- continuation_saved, _found, _listed, _dropped
 *   storage                     facts
 *     holds_read ---------------> | what is pinned, one by one
 *     <- holds_found -----------  |
 *     <- chunk_hold, chunk_unhold | for a save that is pinned, for what was pinned and is dropped
 *   checkpoint_writer
 *     <- capture (wanted) ------- | the full chunks of what was saved
 *
 * Every question is answered in its handler, but for saves and drops that wait for storage or a checkpoint writer of this node (errand_t,
 * at most ERRANDS; more: BUSY). What the log has and the facts have not yet is read from the log.
 *
 * K1. appended follows the log's own durability; the facts follow one record a piece. A question sees every transaction that was answered.
 * K2. An append is taken if its number is the next and no later writer wrote; the same number and epoch again is answered the same.
 * K3. Damage never answers: the facts are made again from the log (facts_book.h), or the question is refused and a line says why.
 *
 * Saved continuations (store/continuations.h) are files of their own beside the log.
 * K4. A save is answered when its file is durable, its chunks are held if it is pinned, and its full chunks are durable too, or cannot be:
 *     then it is saved all the same and says why. A pin that storage has no room for leaves nothing. A kill in between may leave the file.
 * K5. What the continuations of a tenant take together (state_bytes, forks as if they shared nothing) never passes the bound that comes
 *     with a save. */
#include "actors/io/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "actors/io/facts_book.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"
#include "store/continuations.h"

enum { ERRANDS = QR_HOLDS_ENDING, WRITERS_MAX = 16 };
enum { HOLDING = 1, CAPTURING, LETTING };
enum { ITEMS_MAX = 512, MESSAGE_BYTES = 1200, RETRY_US = 60000000 /* making all facts again may take seconds */ };

typedef struct facts_columns {
    uint8_t chains[32 * ITEMS_MAX], digests[32 * ITEMS_MAX];
    uint32_t layouts[ITEMS_MAX], groups[ITEMS_MAX], tiers[ITEMS_MAX], owners[ITEMS_MAX], starts[ITEMS_MAX], counts[ITEMS_MAX],
        reuses[ITEMS_MAX];
    uint64_t sizes[ITEMS_MAX], txs[ITEMS_MAX], times_us[ITEMS_MAX], publishers[ITEMS_MAX];
} facts_columns_t;

typedef struct continuation_list {
    uint8_t ids[QR_CONTINUATION_ID_BYTES * QR_CONTINUATIONS_MAX], names[QR_CONTINUATION_NAME_BYTES_MAX * QR_CONTINUATIONS_MAX],
        owners[QR_CONTINUATION_NAME_BYTES_MAX * QR_CONTINUATIONS_MAX];
    uint64_t created_us[QR_CONTINUATIONS_MAX], expires_us[QR_CONTINUATIONS_MAX];
    uint32_t name_lengths[QR_CONTINUATIONS_MAX], owner_lengths[QR_CONTINUATIONS_MAX], pins[QR_CONTINUATIONS_MAX],
        token_counts[QR_CONTINUATIONS_MAX], text_lengths[QR_CONTINUATIONS_MAX];
} continuation_list_t;

/* A save or drop that waits. */
typedef struct errand {
    uint64_t from, key; /* from 0: free */
    uint32_t state, generation, writer, durable_rows, short_reason;
    uint8_t id[QR_CONTINUATION_ID_BYTES];
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1];
} errand_t;

typedef struct facts_actor {
    uint64_t address, epoch;
    uint64_t storage, writers[WRITERS_MAX]; /* of this node; storage 0: there is none */
    uint32_t writer_count;
    errand_t errands[ERRANDS];
    qr_facts_book_t *book;
    qr_continuations_t *continuations;
    continuation_list_t *list; /* what a list is put together in */
    uint64_t saves, saves_failed, saves_short, resumes;
    uint64_t appends, appends_failed, reads, reads_failed, queries, queries_refused;
    uint64_t decisions_kept, decisions_lost, chunks_reused;
    uint64_t rebuilt, snapshots_failed, poisoned; /* of the book, as said last */
    uint64_t retry_us;                            /* catching up failed: not before; 0: it did not */
    qr_fact_item_t items[ITEMS_MAX];
    facts_columns_t columns;
} facts_actor_t;

static uint64_t bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(facts_actor_t);
}

static void init(void *block, const qr_given_t *given, uint64_t address)
{
    (void)given;
    ((facts_actor_t *)block)->address = address;
}

static void close_store(facts_actor_t *self)
{
    qr_facts_book_close(&self->book);
    qr_continuations_close(&self->continuations);
    free(self->list);
    self->list = NULL;
}

static void done(void *block) { close_store(block); }

static uint64_t wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void print_lines(const char *line)
{
    for (const char *end; (end = strchr(line, '\n')); line = end + 1) fprintf(stderr, "quire: %.*s\n", (int)(end - line), line);
}

/* Lines of the book for the operator, and notes of what changed. */
static void tell(facts_actor_t *self, qr_outbox_t *outbox)
{
    if (self->continuations) print_lines(qr_continuations_report(self->continuations));
    if (!self->book) return;
    print_lines(qr_facts_book_report(self->book));
    qr_facts_book_state_t state;
    qr_facts_book_state(self->book, &state);
    if (state.rebuilt > self->rebuilt)
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_facts_rebuilt, 0, state.facts.tx, state.facts.fact_count, state.rebuilt);
    if (state.snapshots_failed > self->snapshots_failed)
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_snapshot_failed, 0, state.snapshots_failed, state.facts.tx, state.log.bytes);
    if (state.log.poisoned > self->poisoned)
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_log_record_lost, 0, state.log.newest + 1, state.log.poisoned, 0);
    self->rebuilt = state.rebuilt;
    self->snapshots_failed = state.snapshots_failed;
    self->poisoned = state.log.poisoned;
}

static void on_start(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    char sentence[MESSAGE_BYTES] = "no store was given (--store FOLDER)";
    qr_ready_t body = {.reason = QR_E_INVALID};
    self->epoch = message->body.start.epoch;
    self->writer_count = 0;
    for (uint64_t i = 0; i < message->body.start.partners.count; i++) {
        uint64_t partner = message->body.start.partners.data[i];
        if (qr_address_node(partner) != qr_address_node(self->address)) continue;
        if (qr_address_role(partner) == QR_ROLE_storage) self->storage = partner;
        if (qr_address_role(partner) == QR_ROLE_checkpoint_writer && self->writer_count < WRITERS_MAX)
            self->writers[self->writer_count++] = partner;
    }
    if (given->params.store[0]) {
        const qr_facts_book_config_t config = {.store = given->params.store, .history_bytes = given->params.history_bytes};
        int code = self->book ? 0 : qr_facts_book_open(&config, &self->book, sentence, sizeof sentence);
        if (!code && !self->continuations)
            code = qr_continuations_open(given->params.store, (uint32_t)given->params.continuations_max, &self->continuations, sentence,
                                         sizeof sentence);
        if (!self->list) self->list = malloc(sizeof *self->list);
        body.reason = self->list || code ? (uint32_t)-code : QR_E_MEMORY;
    }
    if (body.reason) body.text = (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)};
    tell(self, outbox);
    qr_send(outbox, message->from, ready, &body);
}

static void on_append(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_append_t *b = &message->body.append;
    uint32_t reason = self->book ? qr_facts_book_append(self->book, b, wall_us()) : QR_E_PEER_DOWN;
    self->appends++;
    if (reason == 0) {
        qr_send(outbox, message->from, appended, &(qr_appended_t){.tx = b->tx});
        return;
    }
    self->appends_failed++;
    tell(self, outbox);
    qr_send(outbox, message->from, append_failed, (&(qr_append_failed_t){.tx = b->tx, .reason = reason}));
}

static void on_log_read(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_log_batch_t body;
    uint32_t reason = self->book ? qr_facts_book_read(self->book, &message->body.log_read, &body) : QR_E_PEER_DOWN;
    self->reads++;
    if (reason == 0) {
        qr_send(outbox, message->from, log_batch, &body);
    } else {
        self->reads_failed++;
        qr_send(outbox, message->from, log_failed, &(qr_log_failed_t){.reason = reason});
    }
    tell(self, outbox);
}

static void send_page(facts_actor_t *self, uint64_t to, uint64_t query_id, uint64_t tx, const qr_facts_cursor_t *cursor, uint32_t count,
                      qr_outbox_t *outbox)
{
    facts_columns_t *c = &self->columns;
    for (uint32_t i = 0; i < count; i++) {
        const qr_fact_item_t *item = &self->items[i];
        memcpy(c->chains + 32 * (size_t)i, item->chain, 32);
        memcpy(c->digests + 32 * (size_t)i, item->digest, 32);
        c->layouts[i] = item->layout, c->groups[i] = item->group, c->tiers[i] = item->tier, c->owners[i] = item->owner;
        c->starts[i] = item->start, c->counts[i] = item->count, c->reuses[i] = item->reuse;
        c->sizes[i] = item->bytes, c->txs[i] = item->tx, c->times_us[i] = item->time_us, c->publishers[i] = item->publisher;
    }
    qr_facts_page_t body = {.query_id = query_id,
                            .tx = tx,
                            .cursor = {cursor->key, cursor->bytes},
                            .chains = {c->chains, 32ull * count},
                            .digests = {c->digests, 32ull * count},
                            .layouts = {c->layouts, count},
                            .groups = {c->groups, count},
                            .tiers = {c->tiers, count},
                            .owners = {c->owners, count},
                            .starts = {c->starts, count},
                            .counts = {c->counts, count},
                            .reuses = {c->reuses, count},
                            .sizes = {c->sizes, count},
                            .txs = {c->txs, count},
                            .times_us = {c->times_us, count},
                            .publishers = {c->publishers, count}};
    qr_send(outbox, to, facts_page, &body);
}

static void on_facts_query(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_facts_query_t *b = &message->body.facts_query;
    qr_facts_cursor_t cursor = {.bytes = (uint32_t)qr_min_u64(b->cursor.count, QR_FACTS_KEY_BYTES_MAX)};
    const qr_facts_filter_t filter = {.kind = b->kind,
                                      .tier = b->tier,
                                      .owner = b->owner,
                                      .token_from = b->token_from,
                                      .token_to = b->token_to,
                                      .reuse_least = b->reuse_least,
                                      .time_from_us = b->time_from_us,
                                      .time_to_us = b->time_to_us,
                                      .fingerprint = b->fingerprint.count ? b->fingerprint.data : NULL,
                                      .chain = b->chain.count ? b->chain.data : NULL};
    bool fits = (b->fingerprint.count == 0 || b->fingerprint.count == 32) && (b->chain.count == 0 || b->chain.count == 32) &&
                b->cursor.count <= QR_FACTS_KEY_BYTES_MAX && b->count_max > 0;
    qr_copy(cursor.key, b->cursor.data, cursor.bytes);
    uint32_t count = 0, most = qr_min_u32(b->count_max, ITEMS_MAX);
    uint64_t tx = 0;
    uint32_t reason = !fits         ? QR_E_INVALID
                      : !self->book ? QR_E_PEER_DOWN
                                    : qr_facts_book_query(self->book, b->as_of_tx, &filter, &cursor, self->items, most, &count, &tx);
    self->queries++;
    tell(self, outbox);
    if (reason == 0) {
        send_page(self, message->from, b->query_id, tx, &cursor, count, outbox);
        return;
    }
    self->queries_refused++;
    qr_facts_book_state_t state = {0};
    if (self->book) qr_facts_book_state(self->book, &state);
    qr_send(outbox, message->from, facts_refused,
            (&(qr_facts_refused_t){.query_id = b->query_id, .reason = reason, .oldest_tx = state.oldest_tx}));
}

/* ---- policy, decisions, numbers ------------------------------------------------------------------------------------------------ */

/* The newest policy that was stated, else the built-in one: also while the facts cannot be read. */
static void on_policy_read(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_policy_snapshot_t own = QR_POLICY_BUILT_IN;
    qr_facts_t *facts = self->book ? qr_facts_book_view(self->book) : NULL;
    qr_fact_policy_t p = {own.version, 0, own.restore_ns, own.restore_byte_ps, own.ram_ns, own.ram_byte_ps, own.recompute_row_ns};
    if (facts) (void)qr_facts_policy_get(facts, 0, &p);
    qr_send(outbox, message->from, policy_snapshot,
            (&(qr_policy_snapshot_t){p.version, p.restore_ns, p.restore_byte_ps, p.ram_ns, p.ram_byte_ps, p.recompute_row_ns}));
}

/* Whether every column has an entry for each decision. */
static bool is_whole(const qr_decisions_note_t *b)
{
    uint64_t n = b->request_ids.count;
    const uint64_t counts[] = {b->policy_versions.count,
                               b->kinds.count,
                               b->choices.count,
                               b->resident_rows.count,
                               b->ram_rows.count,
                               b->ssd_rows.count,
                               b->predicted_ram_ns.count,
                               b->predicted_ssd_ns.count,
                               b->predicted_recompute_ns.count,
                               b->ram_row_ns.count,
                               b->ssd_row_ns.count,
                               b->recompute_row_ns.count,
                               b->ram_samples.count,
                               b->ssd_samples.count,
                               b->recompute_samples.count,
                               b->outcome_rows.count,
                               b->reasons.count,
                               b->outcome_ns.count,
                               b->queue_ns.count,
                               b->elapsed_ns.count,
                               b->ages_us.count};
    for (size_t i = 0; i < QR_COUNT(counts); i++)
        if (counts[i] != n) return false;
    return n <= QR_DECISIONS_MAX && b->chains.count == 32 * n;
}

static qr_fact_decision_t decision_at(const qr_message_t *message, uint64_t i, uint64_t tx, uint64_t now_us)
{
    const qr_decisions_note_t *b = &message->body.decisions_note;
    qr_fact_decision_t d = {.tx = tx,
                            .time_us = now_us - qr_min_u64(b->ages_us.data[i], now_us),
                            .sender = message->from,
                            .epoch = message->epoch,
                            .request_id = b->request_ids.data[i],
                            .policy_version = b->policy_versions.data[i],
                            .predicted_ram_ns = b->predicted_ram_ns.data[i],
                            .predicted_ssd_ns = b->predicted_ssd_ns.data[i],
                            .predicted_recompute_ns = b->predicted_recompute_ns.data[i],
                            .ram_row_ns = b->ram_row_ns.data[i],
                            .ssd_row_ns = b->ssd_row_ns.data[i],
                            .recompute_row_ns = b->recompute_row_ns.data[i],
                            .ram_samples = b->ram_samples.data[i],
                            .ssd_samples = b->ssd_samples.data[i],
                            .recompute_samples = b->recompute_samples.data[i],
                            .outcome_ns = b->outcome_ns.data[i],
                            .queue_ns = b->queue_ns.data[i],
                            .elapsed_ns = b->elapsed_ns.data[i],
                            .kind = b->kinds.data[i],
                            .choice = b->choices.data[i],
                            .resident_rows = b->resident_rows.data[i],
                            .ram_rows = b->ram_rows.data[i],
                            .ssd_rows = b->ssd_rows.data[i],
                            .outcome_rows = b->outcome_rows.data[i],
                            .reason = b->reasons.data[i]};
    memcpy(d.chain, b->chains.data + 32 * i, 32);
    return d;
}

static void on_decisions_note(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    static const uint8_t none[32];
    const qr_decisions_note_t *b = &message->body.decisions_note;
    qr_facts_t *facts = self->book ? qr_facts_book_view(self->book) : NULL;
    uint32_t reason = !is_whole(b) ? QR_E_INVALID : !self->book ? QR_E_PEER_DOWN : !facts ? QR_E_BUSY : 0;
    uint64_t now_us = wall_us(), kept = 0;
    for (uint64_t i = 0; !reason && i < b->request_ids.count; i++) {
        qr_facts_state_t state;
        uint32_t reused = 0;
        qr_facts_state(facts, &state);
        qr_fact_decision_t d = decision_at(message, i, state.tx, now_us);
        reason = (uint32_t)-qr_facts_decision_add(facts, &d, (uint32_t)given->params.decisions_max);
        if (!reason && memcmp(d.chain, none, 32) != 0)
            reason = (uint32_t)-qr_facts_reuse_chain(facts, d.chain, d.resident_rows, d.time_us, &reused);
        self->chunks_reused += reused;
        kept += reason == 0;
    }
    self->decisions_kept += kept;
    self->decisions_lost += b->request_ids.count - kept;
    tell(self, outbox);
    qr_send(outbox, message->from, decisions_kept, (&(qr_decisions_kept_t){.sequence = b->sequence, .reason = reason}));
}

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_facts_book_state_t s = {.oldest_tx = 0};
    if (self->book) qr_facts_book_state(self->book, &s);
    const uint64_t pairs[][2] = {
        {METRIC_facts_transactions, s.log.newest},
        {METRIC_facts_nodes, s.facts.node_count},
        {METRIC_facts_log_bytes, s.log.bytes},
        {METRIC_facts_behind, s.log.newest - qr_min_u64(s.facts.tx, s.log.newest)},
        {METRIC_facts_appends_total, self->appends},
        {METRIC_facts_append_failures_total, self->appends_failed},
        {METRIC_facts_queries_total, self->queries},
        {METRIC_facts_queries_refused_total, self->queries_refused},
        {METRIC_facts_rebuilt_total, s.rebuilt},
        {METRIC_facts_snapshot_failures_total, s.snapshots_failed},
        {METRIC_facts_demands, s.demand_count},
        {METRIC_decisions_kept_total, self->decisions_kept},
        {METRIC_decisions_lost_total, self->decisions_lost},
        {METRIC_chunks_reused_total, self->chunks_reused},
    };
    uint32_t ids[QR_COUNT(pairs)];
    uint64_t values[QR_COUNT(pairs)];
    for (size_t i = 0; i < QR_COUNT(pairs); i++) ids[i] = (uint32_t)pairs[i][0], values[i] = pairs[i][1];
    qr_send(outbox, message->from, metrics, (&(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}}));
}

/* ---- continuations ------------------------------------------------------------------------------------------------------------ */

/* Copies a name of a message. false: too long, or not one string. */
static bool take_name(char *to, size_t most, qr_bytes_t from)
{
    if (from.count > most || (from.count && memchr(from.data, 0, from.count))) return false;
    qr_copy(to, from.data, from.count);
    to[from.count] = 0;
    return true;
}
static qr_bytes_t bytes_of(const char *text) { return (qr_bytes_t){(const uint8_t *)text, strlen(text)}; }

/* What is to be saved: given whole, or the source under new names. 0 or a reason. */
static uint32_t gather(facts_actor_t *self, const qr_continuation_save_t *b, uint64_t now_us, qr_continuation_t *x)
{
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1], name[QR_CONTINUATION_NAME_BYTES_MAX + 1], owner[QR_CONTINUATION_NAME_BYTES_MAX + 1];
    if (b->id.count != QR_CONTINUATION_ID_BYTES || (b->source.count && b->source.count != QR_CONTINUATION_ID_BYTES) ||
        !take_name(tenant, QR_CONTINUATION_TENANT_BYTES_MAX, b->tenant) || !take_name(name, QR_CONTINUATION_NAME_BYTES_MAX, b->name) ||
        !take_name(owner, QR_CONTINUATION_NAME_BYTES_MAX, b->owner))
        return QR_E_INVALID;
    if (b->source.count) {
        int status = qr_continuations_get(self->continuations, b->source.data, tenant, now_us, x);
        if (status) return (uint32_t)-status;
    } else {
        if (b->tokens.count > QR_CONTEXT_MAX || b->text.count > QR_RENDER_BYTES_MAX || b->cache_salt.count > QR_SALT_BYTES_MAX)
            return QR_E_LIMIT;
        memcpy(x->fingerprint, b->fingerprint.bytes, 32);
        memcpy(x->scope, b->scope.bytes, 32);
        x->salt_bytes = (uint32_t)b->cache_salt.count;
        qr_copy(x->salt, b->cache_salt.data, b->cache_salt.count);
        x->tokens = b->tokens.data;
        x->text = b->text.data;
        x->head.token_count = (uint32_t)b->tokens.count;
        x->head.text_bytes = (uint32_t)b->text.count;
    }
    strcpy(x->head.tenant, tenant);
    if (name[0]) strcpy(x->head.name, name);
    if (owner[0]) strcpy(x->head.owner, owner);
    memcpy(x->head.id, b->id.data, sizeof x->head.id);
    x->head.created_us = now_us;
    x->head.expires_us = b->ttl_us ? now_us + qr_min_u64(b->ttl_us, UINT64_MAX / 2) : 0;
    x->head.pin = b->pin != 0;
    return 0;
}

/* K5: what one takes, the rows of all its tokens included, shared or not. */
static uint64_t state_bytes(const qr_given_t *given, const qr_continuation_head_t *h)
{
    uint64_t row_bytes = 4;
    for (uint32_t g = 0; g < given->layout.group_count; g++) row_bytes += given->layout.groups[g].row_bytes;
    return h->token_count * row_bytes + h->text_bytes;
}

static uint64_t tenant_bytes(const facts_actor_t *self, const qr_given_t *given, const char *tenant, uint64_t now_us)
{
    uint64_t sum = 0;
    uint32_t at = 0;
    const qr_continuation_head_t *h;
    while ((h = qr_continuations_next(self->continuations, tenant, now_us, &at))) sum += state_bytes(given, h);
    return sum;
}

/* Of its full chunks: so many rows. The last token may have been drawn and not computed, so its row is never counted on. */
static uint32_t full_rows(const qr_given_t *given, const qr_continuation_head_t *h)
{
    uint32_t size = given->layout.chunk_tokens;
    return size ? (h->token_count - 1) / size * size : 0;
}

static bool scope_known(const qr_continuation_t *x)
{
    static const uint8_t none[32];
    return memcmp(x->scope, none, sizeof none) != 0;
}

static errand_t *errand_new(facts_actor_t *self, uint64_t from, uint64_t key, const uint8_t *id, const char *tenant)
{
    for (uint32_t i = 0; i < ERRANDS; i++) {
        errand_t *e = &self->errands[i];
        if (e->from) continue;
        *e = (errand_t){.from = from, .key = key, .generation = e->generation == UINT32_MAX ? 1 : e->generation + 1};
        memcpy(e->id, id, sizeof e->id);
        strcpy(e->tenant, tenant);
        return e;
    }
    return NULL;
}
static uint64_t errand_key(const facts_actor_t *self, const errand_t *e) { return qr_handle((uint32_t)(e - self->errands), e->generation); }
static errand_t *errand_find(facts_actor_t *self, uint64_t key, uint32_t state)
{
    uint32_t i = qr_handle_index(key);
    if (i >= ERRANDS || !self->errands[i].from || self->errands[i].state != state) return NULL;
    return self->errands[i].generation == qr_handle_generation(key) ? &self->errands[i] : NULL;
}

static void save_answer(facts_actor_t *self, uint64_t to, uint64_t key, uint32_t reason, const qr_continuation_head_t *h, const errand_t *e,
                        qr_outbox_t *outbox)
{
    qr_continuation_saved_t body = {.key = key, .reason = reason};
    if (reason == 0) {
        body.name = bytes_of(h->name);
        body.owner = bytes_of(h->owner);
        body.created_us = h->created_us;
        body.expires_us = h->expires_us;
        body.token_count = h->token_count;
        body.text_bytes = h->text_bytes;
        body.durable_rows = e->durable_rows;
        body.short_reason = e->short_reason;
    }
    self->saves++;
    self->saves_failed += reason != 0;
    self->saves_short += body.short_reason != 0;
    tell(self, outbox);
    qr_send(outbox, to, continuation_saved, &body);
}

/* A save that waited is over. */
static void save_end(facts_actor_t *self, errand_t *e, uint32_t reason, const qr_continuation_head_t *h, qr_outbox_t *outbox)
{
    save_answer(self, e->from, e->key, reason, h, e, outbox);
    e->from = 0;
}

/* Asks the next checkpoint writer for the chunks of what was saved; the end when there is nothing to ask or nobody else. */
static void save_capture(facts_actor_t *self, const qr_given_t *given, errand_t *e, const qr_continuation_t *x, qr_outbox_t *outbox)
{
    uint32_t rows = full_rows(given, &x->head);
    bool ask = e->durable_rows < rows && e->writer < self->writer_count && scope_known(x) && !QR_MUTANT(809);
    if (e->durable_rows >= rows)
        e->short_reason = 0;
    else if (!ask && !e->short_reason)
        e->short_reason = QR_E_UNSUPPORTED;
    if (!ask) {
        save_end(self, e, 0, &x->head, outbox);
        return;
    }
    e->state = CAPTURING;
    qr_capture_t body = {.capture_id = errand_key(self, e), .tokens = {x->tokens, rows}, .wanted = 1};
    memcpy(body.scope.bytes, x->scope, 32);
    qr_send(outbox, self->writers[e->writer++], capture, &body);
}

static void on_continuation_save(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_save_t *b = &message->body.continuation_save;
    qr_continuation_t x = {0};
    errand_t *e = NULL;
    uint64_t now_us = wall_us();
    uint32_t reason = self->continuations ? gather(self, b, now_us, &x) : QR_E_PEER_DOWN;
    if (reason == 0 && b->bytes_most && !QR_MUTANT(810) &&
        tenant_bytes(self, given, x.head.tenant, now_us) + state_bytes(given, &x.head) > b->bytes_most)
        reason = QR_E_QUOTA;
    if (reason == 0 && !(e = errand_new(self, message->from, b->key, x.head.id, x.head.tenant))) reason = QR_E_BUSY;
    if (reason == 0) reason = (uint32_t)-qr_continuations_put(self->continuations, &x, now_us);
    if (reason) {
        save_answer(self, message->from, b->key, reason, NULL, NULL, outbox);
        if (e) e->from = 0;
    } else if (x.head.pin && self->storage && scope_known(&x)) {
        e->state = HOLDING;
        qr_chunk_hold_t body = {.key = errand_key(self, e), .id = b->id, .tokens = {x.tokens, full_rows(given, &x.head)}};
        memcpy(body.scope.bytes, x.scope, 32);
        qr_send(outbox, self->storage, chunk_hold, &body);
    } else {
        save_capture(self, given, e, &x, outbox);
    }
}

/* What was saved, read again; gone when somebody dropped it meanwhile: then the save is answered so. */
static bool save_read(facts_actor_t *self, errand_t *e, qr_continuation_t *x, qr_outbox_t *outbox)
{
    int status = qr_continuations_get(self->continuations, e->id, e->tenant, wall_us(), x);
    if (status) save_end(self, e, (uint32_t)-status, NULL, outbox);
    return status == 0;
}

/* K4 */
static void on_chunk_held(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_held_t *b = &message->body.chunk_held;
    errand_t *e = errand_find(self, b->key, HOLDING);
    qr_continuation_t x;
    if (!e) return;
    if (b->reason && !QR_MUTANT(811)) {
        (void)qr_continuations_drop(self->continuations, e->id, e->tenant, wall_us());
        save_end(self, e, b->reason == QR_E_NO_SPACE ? QR_E_SHORTFALL : b->reason, NULL, outbox);
    } else if (save_read(self, e, &x, outbox)) {
        save_capture(self, given, e, &x, outbox);
    }
}

static void on_captured(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_captured_t *b = &message->body.captured;
    errand_t *e = errand_find(self, b->capture_id, CAPTURING);
    qr_continuation_t x;
    if (!e) return;
    if (b->durable_rows >= e->durable_rows) e->durable_rows = b->durable_rows, e->short_reason = b->reason;
    if (save_read(self, e, &x, outbox)) save_capture(self, given, e, &x, outbox);
}

/* The next pinned one behind `after`; the first one when that one is gone. */
static const qr_continuation_head_t *next_pinned(const facts_actor_t *self, qr_bytes_t after, uint64_t now_us)
{
    const qr_continuation_head_t *h;
    uint32_t at = 0, behind = 0;
    while (after.count == QR_CONTINUATION_ID_BYTES && (h = qr_continuations_next(self->continuations, NULL, now_us, &at)))
        if (!memcmp(h->id, after.data, sizeof h->id)) behind = at;
    while ((h = qr_continuations_next(self->continuations, NULL, now_us, &behind)) && !h->pin) {
    }
    return h;
}

static void on_holds_read(facts_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_bytes_t after = message->body.holds_read.after;
    qr_holds_found_t body = {0};
    uint64_t now_us = wall_us();
    const qr_continuation_head_t *h;
    uint8_t id[QR_CONTINUATION_ID_BYTES];
    qr_continuation_t x;
    while (self->continuations && (h = next_pinned(self, after, now_us))) {
        char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1];
        memmove(id, h->id, sizeof id);
        strcpy(tenant, h->tenant);
        after = (qr_bytes_t){id, sizeof id};
        int status = qr_continuations_get(self->continuations, id, tenant, now_us, &x);
        if (status || !scope_known(&x)) continue;
        body.id = after;
        memcpy(body.scope.bytes, x.scope, 32);
        body.tokens = (qr_u32s_t){x.tokens, full_rows(given, &x.head)};
        break;
    }
    tell(self, outbox);
    qr_send(outbox, message->from, holds_found, &body);
}

static void on_continuation_read(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_read_t *b = &message->body.continuation_read;
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1];
    qr_continuation_t x;
    uint32_t reason = b->id.count != QR_CONTINUATION_ID_BYTES || !take_name(tenant, QR_CONTINUATION_TENANT_BYTES_MAX, b->tenant)
                          ? QR_E_INVALID
                      : !self->continuations ? QR_E_PEER_DOWN
                                             : 0;
    if (reason == 0) reason = (uint32_t)-qr_continuations_get(self->continuations, b->id.data, tenant, wall_us(), &x);
    tell(self, outbox);
    qr_continuation_found_t body = {.key = b->key, .reason = reason};
    if (reason == 0) {
        self->resumes++;
        body.id = (qr_bytes_t){x.head.id, sizeof x.head.id};
        body.name = bytes_of(x.head.name);
        body.owner = bytes_of(x.head.owner);
        body.created_us = x.head.created_us;
        body.expires_us = x.head.expires_us;
        body.pin = x.head.pin;
        memcpy(body.fingerprint.bytes, x.fingerprint, 32);
        body.cache_salt = (qr_bytes_t){x.salt, x.salt_bytes};
        body.text = (qr_bytes_t){x.text, x.head.text_bytes};
        body.tokens = (qr_u32s_t){x.tokens, x.head.token_count};
    }
    qr_send(outbox, message->from, continuation_found, &body);
}

static void on_continuation_list(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_list_t *b = &message->body.continuation_list;
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1];
    continuation_list_t *l = self->list;
    uint64_t now_us = wall_us(), count = 0, names = 0, owners = 0;
    uint32_t reason = !take_name(tenant, QR_CONTINUATION_TENANT_BYTES_MAX, b->tenant) ? QR_E_INVALID
                      : !self->continuations || !l                                    ? QR_E_PEER_DOWN
                                                                                      : 0,
             at = 0;
    const qr_continuation_head_t *h;
    while (reason == 0 && (h = qr_continuations_next(self->continuations, tenant, now_us, &at))) {
        memcpy(l->ids + sizeof h->id * count, h->id, sizeof h->id);
        l->name_lengths[count] = (uint32_t)strlen(h->name);
        l->owner_lengths[count] = (uint32_t)strlen(h->owner);
        memcpy(l->names + names, h->name, l->name_lengths[count]);
        memcpy(l->owners + owners, h->owner, l->owner_lengths[count]);
        names += l->name_lengths[count];
        owners += l->owner_lengths[count];
        l->created_us[count] = h->created_us;
        l->expires_us[count] = h->expires_us;
        l->pins[count] = h->pin;
        l->token_counts[count] = h->token_count;
        l->text_lengths[count++] = h->text_bytes;
    }
    qr_continuation_listed_t body = {.key = b->key, .reason = reason};
    if (count) {
        body.ids = (qr_bytes_t){l->ids, QR_CONTINUATION_ID_BYTES * count};
        body.name_lengths = (qr_u32s_t){l->name_lengths, count};
        body.names = (qr_bytes_t){l->names, names};
        body.owner_lengths = (qr_u32s_t){l->owner_lengths, count};
        body.owners = (qr_bytes_t){l->owners, owners};
        body.created_us = (qr_u64s_t){l->created_us, count};
        body.expires_us = (qr_u64s_t){l->expires_us, count};
        body.pins = (qr_u32s_t){l->pins, count};
        body.token_counts = (qr_u32s_t){l->token_counts, count};
        body.text_lengths = (qr_u32s_t){l->text_lengths, count};
    }
    qr_send(outbox, message->from, continuation_listed, &body);
}

static bool is_pinned(const facts_actor_t *self, const uint8_t *id, const char *tenant, uint64_t now_us)
{
    const qr_continuation_head_t *h;
    uint32_t at = 0;
    while ((h = qr_continuations_next(self->continuations, tenant, now_us, &at)))
        if (!memcmp(h->id, id, sizeof h->id)) return h->pin;
    return false;
}

static void on_continuation_drop(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_continuation_drop_t *b = &message->body.continuation_drop;
    char tenant[QR_CONTINUATION_TENANT_BYTES_MAX + 1];
    errand_t *e = NULL;
    uint32_t reason = b->id.count != QR_CONTINUATION_ID_BYTES || !take_name(tenant, QR_CONTINUATION_TENANT_BYTES_MAX, b->tenant)
                          ? QR_E_INVALID
                      : !self->continuations ? QR_E_PEER_DOWN
                                             : 0;
    bool held = reason == 0 && self->storage && is_pinned(self, b->id.data, tenant, wall_us());
    if (held && !(e = errand_new(self, message->from, b->key, b->id.data, tenant))) reason = QR_E_BUSY;
    if (reason == 0) reason = (uint32_t)-qr_continuations_drop(self->continuations, b->id.data, tenant, wall_us());
    if (reason == 0 && e && !QR_MUTANT(812)) {
        e->state = LETTING;
        qr_send(outbox, self->storage, chunk_unhold, (&(qr_chunk_unhold_t){.key = errand_key(self, e), .id = b->id}));
        return;
    }
    if (e) e->from = 0;
    qr_send(outbox, message->from, continuation_dropped, (&(qr_continuation_dropped_t){.key = b->key, .reason = reason}));
}

static void on_chunk_unheld(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    errand_t *e = errand_find(self, message->body.chunk_unheld.key, LETTING);
    if (!e) return;
    qr_send(outbox, e->from, continuation_dropped, (&(qr_continuation_dropped_t){.key = e->key}));
    e->from = 0;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------ */

static void on_stop(facts_actor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (self->book) (void)qr_facts_book_catch_up(self->book, UINT32_MAX);
    tell(self, outbox);
    close_store(self);
    qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = QR_E_OK}));
}

static void handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    facts_actor_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_append: on_append(self, message, outbox); break;
    case QR_MESSAGE_log_read: on_log_read(self, message, outbox); break;
    case QR_MESSAGE_facts_query: on_facts_query(self, message, outbox); break;
    case QR_MESSAGE_policy_read: on_policy_read(self, message, outbox); break;
    case QR_MESSAGE_decisions_note: on_decisions_note(self, given, message, outbox); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message, outbox); break;
    case QR_MESSAGE_continuation_save: on_continuation_save(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_held: on_chunk_held(self, given, message, outbox); break;
    case QR_MESSAGE_captured: on_captured(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_unheld: on_chunk_unheld(self, message, outbox); break;
    case QR_MESSAGE_holds_read: on_holds_read(self, given, message, outbox); break;
    case QR_MESSAGE_continuation_read: on_continuation_read(self, message, outbox); break;
    case QR_MESSAGE_continuation_list: on_continuation_list(self, message, outbox); break;
    case QR_MESSAGE_continuation_drop: on_continuation_drop(self, message, outbox); break;
    case QR_MESSAGE_drain: /* http has drained before: nothing is open */
        qr_send(outbox, message->from, drained, (&(qr_drained_t){.open_count = 0}));
        break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    case QR_MESSAGE_alarm:
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0);
    }
}

/* One record into the facts, or what keeps the log short. */
static uint64_t work(void *block, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    (void)given;
    facts_actor_t *self = block;
    if (!self->book) return QR_NEVER_US;
    if (now_us < self->retry_us) return self->retry_us;
    if (self->retry_us) qr_facts_book_mend(self->book);
    self->retry_us = 0;
    int more = qr_facts_book_catch_up(self->book, 1);
    if (more == 0) (void)qr_facts_book_maintain(self->book);
    tell(self, outbox);
    if (more < 0) { /* questions are refused, the log goes on */
        qr_facts_book_state_t state;
        qr_facts_book_state(self->book, &state);
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_facts_damaged, 0, (uint64_t)-more, state.facts.tx, state.log.newest);
        return self->retry_us = now_us + RETRY_US;
    }
    return more > 0 ? 0 : QR_NEVER_US;
}

static void print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const facts_actor_t *self = block;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"facts: appends ", self->appends}, {", failed ", self->appends_failed},
                   {", reads ", self->reads},          {", failed ", self->reads_failed},
                   {", questions ", self->queries},    {", refused ", self->queries_refused},
                   {", rebuilt ", self->rebuilt},      {", continuations saved ", self->saves},
                   {", failed ", self->saves_failed},  {", not all durable ", self->saves_short},
                   {", read ", self->resumes}};
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        qr_text_put(text, numbers[i].name);
        qr_text_put_u64(text, numbers[i].value);
    }
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_facts_class = {
    .name = "facts",
    .role = QR_ROLE_facts,
    .max_out = 1,
    .owns_world = true,
    .bytes = bytes,
    .init = init,
    .handle = handle,
    .work = work,
    .print = print,
    .done = done,
};
