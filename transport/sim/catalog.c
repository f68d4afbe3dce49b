/* catalog.c - see catalog.h. */
#include "transport/sim/catalog.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"
#include "transport/sim/clients.h"
#include "transport/sim/storage.h"

#include <stdlib.h>

enum {
    CHAINS_MAX = 8,
    DEPTH_MAX = 8,
    CHUNKS_MAX = CHAINS_MAX * DEPTH_MAX,
    SLOTS = QR_CATALOG_PUBLISHES,
    CHANGES_MAX = 64,
    NODES_OF_STORE = 1024, /* more than are ever published */
    LOOKS = 4,
    RETRY_US = 60000,
    LAST_LOOK_US = 20000,
    HEARD_US = 20000 /* a link that ended so long ago is known to whoever runs */
};
#define NONE UINT32_MAX
enum { FILE_ABSENT, FILE_WRITING, FILE_DURABLE };

typedef struct chunk {
    uint8_t chain[32];
    uint32_t parent, depth; /* parent NONE: begins at token 0 */
} chunk_t;

typedef struct file {
    uint32_t state, unused; /* of a chunk's parts on one node */
    uint64_t due_us;        /* FILE_WRITING: when it is durable */
    uint64_t ram_epoch;     /* of the process that has it in RAM, 0 = none */
} file_t;

/* A publish that was ever asked. */
typedef struct record {
    uint64_t publisher, epoch, sequence, hash, tx, acked_tx; /* tx: in the log, 0 = not */
    uint32_t refused, wrong;                                 /* wrong: it must never be taken */
} record_t;

struct qr_sim_catalog {
    qr_sim_catalog_work_t work;
    qr_sim_log_t log;
    qr_sim_catalog_counts_t counts;
    const qr_given_t *given;
    uint32_t node_count, chunk_count, chunk_tokens, group_count, last;
    uint32_t paths[CHAINS_MAX][DEPTH_MAX];
    chunk_t chunks[CHUNKS_MAX];
    file_t *files;     /* [node_count][CHUNKS_MAX] */
    record_t *records; /* [record_capacity] */
    uint32_t record_count, record_capacity;
};

static qr_sim_store_t *store_of(const qr_sim_catalog_t *c) { return qr_sim_given(c->given)->store; }
static qr_sim_catalog_t *catalog_of(const qr_given_t *given) { return qr_sim_given(given)->catalog; }
static file_t *file_at(const qr_sim_catalog_t *c, uint32_t node, uint32_t chunk) { return &c->files[(size_t)node * CHUNKS_MAX + chunk]; }
qr_sim_log_t *qr_sim_catalog_log(qr_sim_catalog_t *c) { return &c->log; }

/* ---- chains -------------------------------------------------------------------------------------------------------------------- */

static uint32_t id_of(void *context, const uint8_t chain[32])
{
    const qr_sim_catalog_t *c = context;
    for (uint32_t i = 0; i < c->chunk_count; i++)
        if (memcmp(c->chunks[i].chain, chain, 32) == 0) return i;
    return NONE;
}

/* The prompts' shared beginnings (clients.c); every second chain shares half of its chunks with the one before. */
static void make_chains(qr_sim_catalog_t *c)
{
    uint8_t root[32];
    static uint32_t tokens[QR_CONTEXT_MAX];
    qr_chain_root(c->given->layout.fingerprint.bytes, "", 0, "", 0, root);
    for (uint32_t w = 0; w < c->work.chains; w++)
        for (uint32_t d = 0, parent = NONE; d < c->work.depth; d++) {
            bool shared = (w & 1) && d < c->work.depth / 2;
            for (uint32_t i = 0; i < c->chunk_tokens; i++) {
                uint64_t at = (uint64_t)d * c->chunk_tokens + i;
                tokens[i] = (uint32_t)(qr_mix_u64(c->work.seed ^ (uint64_t)(shared ? w - 1 : w) << 32 ^ at) % QR_SIM_END_TOKEN);
            }
            chunk_t chunk = {.parent = parent, .depth = d};
            qr_chain_node(parent == NONE ? root : c->chunks[parent].chain, tokens, c->chunk_tokens, chunk.chain);
            uint32_t id = id_of(c, chunk.chain);
            if (id == NONE) c->chunks[id = c->chunk_count++] = chunk;
            c->paths[w][d] = parent = id;
        }
}

static void judge_row(void *context, const qr_sim_row_t *row, const qr_sim_change_t *changes);

qr_sim_catalog_t *qr_sim_catalog_new(const qr_sim_catalog_work_t *work, const qr_given_t *given, uint32_t node_count)
{
    qr_sim_catalog_t *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->work = *work;
    c->work.chains = qr_min_u32(work->chains, CHAINS_MAX);
    c->work.depth = qr_min_u32(qr_max_u32(1, work->depth), DEPTH_MAX);
    c->given = given;
    c->node_count = node_count;
    c->chunk_tokens = given->layout.chunk_tokens;
    c->group_count = given->layout.group_count;
    c->files = calloc((size_t)node_count * CHUNKS_MAX, sizeof *c->files);
    c->log.write_us = qr_max_u64(1, work->write_us);
    c->log.judge = judge_row;
    c->log.id_of = id_of;
    c->log.context = c;
    make_chains(c);
    if (!c->files) qr_sim_catalog_destroy(&c);
    return c;
}

void qr_sim_catalog_destroy(qr_sim_catalog_t **self)
{
    qr_sim_catalog_t *c = *self;
    if (!c) return;
    *self = NULL;
    qr_sim_log_done(&c->log);
    free(c->files);
    free(c->records);
    free(c);
}

void qr_sim_catalog_last(qr_sim_catalog_t *c) { c->last = 1; }

void qr_sim_catalog_count(const qr_sim_catalog_t *c, qr_sim_catalog_counts_t *ret_counts)
{
    *ret_counts = c->counts;
    ret_counts->transactions = c->log.newest;
    ret_counts->snapshots = c->log.snapshots;
    ret_counts->claims = c->log.claims;
    ret_counts->failed = c->log.failed;
    ret_counts->lost = c->log.lost + c->log.torn;
}

/* ---- what was asked, and what became of it (T1, T2) ------------------------------------------------------------------------------ */

static record_t *find_record(const qr_sim_catalog_t *c, uint64_t publisher, uint64_t epoch, uint64_t sequence)
{
    for (uint32_t i = c->record_count; i-- > 0;) {
        record_t *r = &c->records[i];
        if (r->publisher == publisher && r->epoch == epoch && r->sequence == sequence) return r;
    }
    return NULL;
}

static record_t *keep_record(qr_sim_catalog_t *c, uint64_t publisher, uint64_t epoch, uint64_t sequence)
{
    record_t *r = find_record(c, publisher, epoch, sequence);
    if (r) return r;
    if (c->record_count == c->record_capacity) {
        c->record_capacity = qr_max_u32(256, 2 * c->record_capacity);
        c->records = realloc(c->records, c->record_capacity * sizeof *c->records);
        if (!c->records) qr_sim_finding("not enough memory for what was published");
    }
    r = &c->records[c->record_count++];
    *r = (record_t){.publisher = publisher, .epoch = epoch, .sequence = sequence};
    return r;
}

static uint64_t hash_change(uint64_t hash, uint8_t kind, uint8_t tier, uint32_t group, const uint8_t chain[32], const uint8_t digest[32],
                            uint32_t start, uint64_t size)
{
    uint64_t a, b;
    memcpy(&a, chain, 8);
    memcpy(&b, digest, 8);
    return qr_mix_u64(hash ^ a ^ qr_rotate_u64(b, 17) ^ (uint64_t)kind << 56 ^ (uint64_t)tier << 48 ^ (uint64_t)group << 40 ^
                      (uint64_t)start << 20 ^ size);
}

/* Whether a disk has all of a chunk (or, with a store, one part of it). */
static bool is_durable(const qr_sim_catalog_t *c, uint32_t node, uint32_t id, const uint8_t chain[32], uint32_t group)
{
    return store_of(c) ? qr_sim_store_has(store_of(c), node, chain, group) : id == NONE || file_at(c, node, id)->state == FILE_DURABLE;
}

/* A row is in the log from now on. */
static void judge_row(void *context, const qr_sim_row_t *row, const qr_sim_change_t *changes)
{
    qr_sim_catalog_t *c = context;
    if (row->publisher == 0) return;
    uint32_t node = qr_address_node(row->publisher) - 1;
    unsigned long long sequence = row->sequence, tx = row->tx;
    record_t *r = find_record(c, row->publisher, row->publisher_epoch, row->sequence);
    if (!r) qr_sim_finding("transaction %llu has publish %llu of node %u, which nobody asked", tx, sequence, node + 1);
    if (r->tx)
        qr_sim_finding("publish %llu of node %u is in the log twice: %llu and %llu", sequence, node + 1, (unsigned long long)r->tx, tx);
    if (r->refused) qr_sim_finding("publish %llu of node %u was refused and is in the log as %llu", sequence, node + 1, tx);
    if (r->wrong) qr_sim_finding("publish %llu of node %u gives its model a second layout", sequence, node + 1);
    r->tx = row->tx;
    uint64_t hash = row->node_epoch;
    for (uint32_t i = row->first_change; i < row->first_change + row->change_count; i++) {
        const qr_sim_change_t *ch = &changes[i];
        hash = hash_change(hash, ch->kind, ch->tier, ch->group, ch->chain, ch->digest, ch->start, ch->size);
        bool copy = ch->kind == QR_CATALOG_REPLICA && ch->tier == QR_TIER_SSD;
        bool ram = ch->kind == QR_CATALOG_REPLICA && ch->tier == QR_TIER_RAM && ch->id != NONE;
        if (ram && qr_world_epoch(qr_sim_world(), node) == row->node_epoch && file_at(c, node, ch->id)->ram_epoch != row->node_epoch)
            qr_sim_finding("transaction %llu says that chunk %u is in the RAM of node %u, where it is not", tx, ch->id, node + 1);
        if (copy && !is_durable(c, node, ch->id, ch->chain, ch->group)) /* T1 */
            qr_sim_finding("transaction %llu says that chunk %u stands on node %u, whose disk does not have it", tx, ch->id, node + 1);
    }
    if (hash != r->hash) qr_sim_finding("publish %llu of node %u is in the log as something else", sequence, node + 1);
}

/* ---- publisher ------------------------------------------------------------------------------------------------------------------- */

typedef struct slot {
    uint64_t sequence, retry_us; /* sequence 0 = free */
    uint32_t chunk, tiers;       /* tiers: bits 1 << QR_TIER_* */
    uint32_t withdraw, repeat, wrong, wild, asked, unused;
} slot_t;

typedef struct publisher {
    uint64_t address, writer, epoch, next_us, sequence;
    uint32_t node, device, devices, count, linked, settled, knows_layout, unused;
    slot_t slots[SLOTS], past;                /* past: one that was committed */
    uint8_t ssd[CHUNKS_MAX], ram[CHUNKS_MAX]; /* 1: published, as far as it knows */
} publisher_t;

/* Columns of one publish; scratch. */
typedef struct changes {
    uint32_t count;
    uint8_t kinds[CHANGES_MAX], tiers[CHANGES_MAX], chains[32 * CHANGES_MAX], digests[32 * CHANGES_MAX];
    uint32_t groups[CHANGES_MAX], starts[CHANGES_MAX], counts[CHANGES_MAX];
    uint64_t sizes[CHANGES_MAX];
} changes_t;
static changes_t columns;

static uint32_t add(uint8_t kind, const uint8_t chain[32])
{
    uint32_t i = columns.count++;
    qr_assert(i < CHANGES_MAX);
    columns.kinds[i] = kind;
    columns.tiers[i] = 0;
    columns.groups[i] = columns.starts[i] = columns.counts[i] = 0;
    columns.sizes[i] = 0;
    memcpy(columns.chains + 32 * (size_t)i, chain, 32);
    memset(columns.digests + 32 * (size_t)i, 0, 32);
    return i;
}

static void add_node(const qr_sim_catalog_t *c, uint32_t id)
{
    const chunk_t *chunk = &c->chunks[id];
    if (chunk->parent != NONE) add_node(c, chunk->parent);
    uint32_t i = add(QR_CATALOG_NODE, chunk->chain);
    columns.starts[i] = chunk->depth * c->chunk_tokens;
    columns.counts[i] = c->chunk_tokens;
    if (chunk->parent != NONE) memcpy(columns.digests + 32 * (size_t)i, c->chunks[chunk->parent].chain, 32);
}

static uint64_t size_of(uint32_t id, uint32_t group) { return 1000 + 10ull * id + group; }

static void fill_columns(const qr_sim_catalog_t *c, const slot_t *s)
{
    columns.count = 0;
    if (!s->withdraw) add_node(c, s->chunk);
    for (uint32_t g = 0; g < c->group_count; g++) {
        uint32_t i = s->withdraw ? 0 : add(QR_CATALOG_PART, c->chunks[s->chunk].chain);
        if (!s->withdraw) {
            columns.groups[i] = g;
            columns.sizes[i] = size_of(s->chunk, g);
            memset(columns.digests + 32 * (size_t)i, (int)(1 + s->chunk), 32);
        }
        for (uint8_t tier = QR_TIER_RAM; tier <= QR_TIER_SSD; tier++) {
            if (!(s->tiers >> tier & 1)) continue;
            i = add(s->withdraw ? QR_CATALOG_WITHDRAW : QR_CATALOG_REPLICA, c->chunks[s->chunk].chain);
            columns.groups[i] = g;
            columns.tiers[i] = tier;
        }
    }
    if (!s->wild) return;
    uint8_t chain[32]; /* a node that hangs where no chain hash would put it; replicas leave it out */
    memset(chain, 0xee, 32);
    memcpy(chain, &s->sequence, 8);
    uint32_t i = add(QR_CATALOG_NODE, chain);
    columns.starts[i] = 2 * c->chunk_tokens;
    columns.counts[i] = c->chunk_tokens;
    memcpy(columns.digests + 32 * (size_t)i, c->chunks[c->paths[0][0]].chain, 32);
}

static void ask_publish(publisher_t *self, qr_sim_catalog_t *c, slot_t *s, qr_outbox_t *outbox)
{
    uint32_t windows[QR_GROUPS_MAX] = {0};
    fill_columns(c, s);
    for (uint32_t g = 0; g < c->group_count; g++) windows[g] = c->given->layout.groups[g].window + s->wrong;
    qr_publish_t body = {.sequence = s->sequence,
                         .node_epoch = self->epoch,
                         .chunk_tokens = c->chunk_tokens,
                         .windows = {windows, c->group_count},
                         .kinds = {columns.kinds, columns.count},
                         .tiers = {columns.tiers, columns.count},
                         .groups = {columns.groups, columns.count},
                         .chains = {columns.chains, 32ull * columns.count},
                         .digests = {columns.digests, 32ull * columns.count},
                         .starts = {columns.starts, columns.count},
                         .counts = {columns.counts, columns.count},
                         .sizes = {columns.sizes, columns.count}};
    body.fingerprint = c->given->layout.fingerprint;
    record_t *r = keep_record(c, self->address, self->epoch, s->sequence);
    r->refused = 0;
    r->wrong = s->wrong;
    r->hash = self->epoch;
    for (uint32_t i = 0; i < columns.count; i++)
        r->hash = hash_change(r->hash, columns.kinds[i], columns.tiers[i], columns.groups[i], columns.chains + 32 * (size_t)i,
                              columns.digests + 32 * (size_t)i, columns.starts[i], columns.sizes[i]);
    s->asked = 1;
    s->retry_us = QR_NEVER_US;
    c->counts.publishes++;
    qr_send(outbox, self->writer, publish, &body);
}

static bool is_busy(const publisher_t *self, uint32_t chunk)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (self->slots[i].sequence && self->slots[i].chunk == chunk && !self->slots[i].repeat) return true;
    return false;
}

static void open_slot(publisher_t *self, qr_sim_catalog_t *c, uint32_t chunk, uint32_t tiers, bool withdraw, qr_outbox_t *outbox)
{
    slot_t *s = NULL;
    for (uint32_t i = 0; i < SLOTS && !s; i++)
        if (!self->slots[i].sequence) s = &self->slots[i];
    if (!s) return;
    *s = (slot_t){.sequence = ++self->sequence, .chunk = chunk, .tiers = tiers, .withdraw = withdraw};
    s->wild = !withdraw && qr_sim_draw(12) == 0;
    s->wrong = !withdraw && self->knows_layout && !c->last && qr_sim_draw(20) == 0;
    ask_publish(self, c, s, outbox);
}

/* Asks again what was answered already: the answer is the same. */
static void ask_again(publisher_t *self, qr_sim_catalog_t *c, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        slot_t *s = &self->slots[i];
        if (s->sequence) continue;
        *s = self->past;
        s->repeat = 1;
        c->counts.repeats++;
        ask_publish(self, c, s, outbox);
        return;
    }
}

/* Bytes become durable, or are lost with a failed fsync. */
static void settle_files(publisher_t *self, qr_sim_catalog_t *c, uint64_t now_us)
{
    uint32_t one_in = qr_world_fault(qr_sim_world(), self->node, QR_FAULT_APPEND);
    for (uint32_t id = self->device - 1; id < c->chunk_count; id += self->devices) {
        file_t *f = file_at(c, self->node, id);
        if (f->state != FILE_WRITING || f->due_us > now_us) continue;
        f->state = one_in && qr_sim_draw(one_in) == 0 ? FILE_ABSENT : FILE_DURABLE;
        c->counts.files += f->state == FILE_DURABLE;
    }
}

static void step(publisher_t *self, qr_sim_catalog_t *c, uint64_t now_us, qr_outbox_t *outbox)
{
    uint32_t mine = (c->chunk_count + self->devices - self->device) / self->devices; /* of the node's devices each has its share */
    if (mine == 0) {                                                                 /* fewer chunks than devices */
        self->settled = c->last;
        return;
    }
    uint32_t id = self->device - 1 + self->devices * (uint32_t)qr_sim_draw(mine);
    file_t *f = file_at(c, self->node, id);
    if (is_busy(self, id)) return;
    if (self->past.sequence && !c->last && qr_sim_draw(8) == 0) {
        ask_again(self, c, outbox);
    } else if (f->state == FILE_ABSENT) {
        f->state = FILE_WRITING;
        f->due_us =
            now_us + (1 + qr_sim_draw(2 * c->work.write_us + 1)) * qr_max_u32(1, qr_world_fault(qr_sim_world(), self->node, QR_FAULT_DISK));
    } else if (f->state == FILE_DURABLE && (!self->ssd[id] || c->last)) {
        uint32_t tiers = 1u << QR_TIER_SSD;
        if (qr_sim_draw(2)) tiers |= 1u << QR_TIER_RAM;
        if (tiers >> QR_TIER_RAM & 1) f->ram_epoch = self->epoch;
        open_slot(self, c, id, tiers, false, outbox);
    } else if (self->ssd[id] && qr_sim_draw(3) == 0) {
        open_slot(self, c, id, 1u << QR_TIER_SSD | 1u << QR_TIER_RAM, true, outbox);
    } else if (self->ram[id] && qr_sim_draw(2)) {
        open_slot(self, c, id, 1u << QR_TIER_RAM, true, outbox);
    } else if (self->ssd[id] && !self->ram[id]) {
        f->ram_epoch = self->epoch;
        open_slot(self, c, id, 1u << QR_TIER_RAM, false, outbox);
    }
}

static bool publisher_is_quiet(const publisher_t *self)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (self->slots[i].sequence) return false;
    return true;
}

static void publisher_time(publisher_t *self, qr_sim_catalog_t *c, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    settle_files(self, c, now_us);
    for (uint32_t i = 0; i < SLOTS; i++) {
        slot_t *s = &self->slots[i];
        if (!s->sequence || s->asked) continue;
        if (now_us >= s->retry_us) ask_publish(self, c, s, outbox);
        if (s->retry_us != QR_NEVER_US) qr_outbox_alarm(outbox, s->retry_us);
    }
    bool goes_on = c->last ? !self->settled : self->count < c->work.publishes && now_us < c->work.busy_until_us;
    if (now_us >= self->next_us) {
        if (goes_on && (!c->last || publisher_is_quiet(self))) step(self, c, now_us, outbox);
        self->count += !c->last;
        self->next_us = now_us + 1 + qr_sim_draw(c->last ? LAST_LOOK_US : 2 * c->work.publish_us);
        if (!goes_on && !c->last) self->next_us = now_us + 200000; /* to hear of the last phase */
    }
    if (!c->last || !self->settled) qr_outbox_alarm(outbox, self->next_us);
}

static void publisher_start(publisher_t *self, qr_sim_catalog_t *c, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->epoch = b->epoch;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_catalog_writer) self->writer = b->partners.data[i];
    for (uint32_t id = self->device - 1; id < c->chunk_count; id += self->devices) { /* what it finds on its disk */
        file_t *f = file_at(c, self->node, id);
        f->ram_epoch = 0;
        if (f->state != FILE_WRITING) continue;
        bool whole = f->due_us < message->now_us && qr_sim_draw(2);
        f->state = whole ? FILE_DURABLE : FILE_ABSENT;
        c->counts.torn += !whole;
    }
    self->next_us = message->now_us + 1 + qr_sim_draw(2 * c->work.publish_us);
    qr_outbox_alarm(outbox, self->next_us);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

static slot_t *find_slot(publisher_t *self, uint64_t sequence)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (self->slots[i].sequence == sequence && self->slots[i].asked) return &self->slots[i];
    qr_sim_finding("node %u: an answer to publish %llu, which is not open", self->node + 1, (unsigned long long)sequence);
}

/* T2 */
static void judge_committed(qr_sim_catalog_t *c, uint64_t publisher, uint64_t epoch, const qr_publish_committed_t *b)
{
    record_t *r = find_record(c, publisher, epoch, b->sequence);
    unsigned long long sequence = b->sequence, tx = b->tx;
    uint32_t node = qr_address_node(publisher);
    if (!r || r->tx == 0) qr_sim_finding("node %u: publish %llu was answered committed and is not in the log", node, sequence);
    if (r->tx != b->tx || (r->acked_tx && r->acked_tx != b->tx))
        qr_sim_finding("node %u: publish %llu was answered as %llu and is %llu", node, sequence, tx, (unsigned long long)r->tx);
    r->acked_tx = b->tx;
    c->counts.committed++;
}

static void judge_refused(qr_sim_catalog_t *c, uint64_t publisher, uint64_t epoch, const qr_publish_refused_t *b)
{
    record_t *r = find_record(c, publisher, epoch, b->sequence);
    bool unknown = b->reason == QR_E_PEER_DOWN || b->reason == QR_E_STALE;
    unsigned long long sequence = b->sequence;
    uint32_t node = qr_address_node(publisher);
    if (!r) qr_sim_finding("node %u: publish %llu was refused and never asked", node, sequence);
    c->counts.refused++;
    if (!unknown && r->tx)
        qr_sim_finding("node %u: publish %llu was refused (%s) and is in the log as %llu", node, sequence, qr_error_name((int)b->reason),
                       (unsigned long long)r->tx);
    if (b->reason == QR_E_LIMIT || (b->reason == QR_E_INVALID && !r->wrong))
        qr_sim_finding("node %u: publish %llu was refused (%s), and nothing is wrong with it", node, sequence,
                       qr_error_name((int)b->reason));
    r->refused = !unknown;
}

static void on_committed(publisher_t *self, qr_sim_catalog_t *c, const qr_publish_committed_t *b)
{
    slot_t *s = find_slot(self, b->sequence);
    judge_committed(c, self->address, self->epoch, b);
    self->knows_layout = 1;
    if (!s->repeat) {
        file_t *f = file_at(c, self->node, s->chunk);
        bool ssd = s->tiers >> QR_TIER_SSD & 1, ram = s->tiers >> QR_TIER_RAM & 1;
        if (ssd) self->ssd[s->chunk] = !s->withdraw;
        if (ram) self->ram[s->chunk] = !s->withdraw;
        if (ssd && s->withdraw) f->state = FILE_ABSENT; /* now it may go */
        if (ram && s->withdraw) f->ram_epoch = 0;
        self->past = *s;
        if (c->last && !s->withdraw) self->settled = 1;
    }
    s->sequence = 0;
}

static void on_publish_refused(publisher_t *self, qr_sim_catalog_t *c, const qr_publish_refused_t *b, uint64_t now_us, qr_outbox_t *outbox)
{
    slot_t *s = find_slot(self, b->sequence);
    s->asked = 0;
    judge_refused(c, self->address, self->epoch, b);
    bool again = b->reason != QR_E_STALE && !s->wrong && !s->repeat && (b->reason != QR_E_IO || qr_sim_draw(2));
    if (!again) { /* a withdrawal is still to be made, a copy still to be published: later, under a new number */
        s->sequence = 0;
        return;
    }
    s->retry_us = now_us + 1 + qr_sim_draw(RETRY_US);
    qr_outbox_alarm(outbox, s->retry_us);
}

/* Its questions to the writer are closed: they are asked again, the same, once it is there. */
static void publisher_link(publisher_t *self, qr_sim_catalog_t *c, uint32_t node, bool up, qr_outbox_t *outbox)
{
    if (node != qr_address_node(self->writer)) return;
    for (uint32_t i = 0; i < SLOTS; i++) {
        slot_t *s = &self->slots[i];
        if (!s->sequence) continue;
        if (up && !s->asked) ask_publish(self, c, s, outbox);
        if (!up) {
            s->asked = 0;
            s->retry_us = QR_NEVER_US;
        }
    }
}

static void publisher_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    publisher_t *self = block;
    qr_sim_catalog_t *c = catalog_of(given);
    switch (message->type) {
    case QR_MESSAGE_start: publisher_start(self, c, message, outbox); break;
    case QR_MESSAGE_alarm: publisher_time(self, c, message->now_us, outbox); break;
    case QR_MESSAGE_publish_committed: on_committed(self, c, &message->body.publish_committed); break;
    case QR_MESSAGE_publish_refused: on_publish_refused(self, c, &message->body.publish_refused, message->now_us, outbox); break;
    case QR_MESSAGE_link_up: publisher_link(self, c, message->body.link_up.node, true, outbox); break;
    case QR_MESSAGE_link_down: publisher_link(self, c, message->body.link_down.node, false, outbox); break;
    case QR_MESSAGE_capture: /* what it publishes comes from nowhere else */
        qr_send(outbox, message->from, captured, &(qr_captured_t){.capture_id = message->body.capture.capture_id, .reason = QR_E_BUSY});
        break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    default: break;
    }
}

static uint64_t publisher_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(publisher_t);
}

static void publisher_init(void *block, const qr_given_t *given, uint64_t address)
{
    publisher_t *self = block;
    (void)given;
    self->address = address;
    self->node = qr_address_node(address) - 1;
    self->device = qr_address_device(address);
    self->devices = qr_max_u32(self->device, qr_world_devices(qr_sim_world(), self->node));
}

static void publisher_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const publisher_t *self = block;
    (void)given;
    qr_text_put(text, "publisher: sequence ");
    qr_text_put_u64(text, self->sequence);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (!self->slots[i].sequence) continue;
        qr_text_put(text, self->slots[i].asked ? ", asked " : ", to be asked ");
        qr_text_put_u64(text, self->slots[i].sequence);
    }
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_sim_publisher_class = {
    .name = "publisher",
    .role = QR_ROLE_checkpoint_writer,
    .max_out = 2 * SLOTS + 2,
    .owns_world = true,
    .bytes = publisher_bytes,
    .init = publisher_init,
    .handle = publisher_handle,
    .print = publisher_print,
};

/* ---- the publishers of a world with a store: the actors that serve -------------------------------------------------------------- */

static void watch_publish(qr_sim_catalog_t *c, const qr_message_t *message)
{
    const qr_publish_t *b = &message->body.publish;
    record_t *r = keep_record(c, message->from, message->epoch, b->sequence);
    uint64_t hash = b->node_epoch;
    for (uint32_t i = 0; i < b->kinds.count; i++)
        hash = hash_change(hash, b->kinds.data[i], b->tiers.data[i], b->groups.data[i], b->chains.data + 32 * (size_t)i,
                           b->digests.data + 32 * (size_t)i, b->starts.data[i], b->sizes.data[i]);
    if (r->hash && r->hash != hash)
        qr_sim_finding("node %u asks something else under the number of publish %llu", qr_address_node(message->from),
                       (unsigned long long)b->sequence);
    r->hash = hash;
    r->refused = 0;
    c->counts.publishes++;
}

void qr_sim_catalog_watch(qr_sim_catalog_t *c, const qr_message_t *message, bool said)
{
    if (said && message->type == QR_MESSAGE_publish) watch_publish(c, message);
    uint64_t epoch = said ? 0 : qr_world_epoch(qr_sim_world(), qr_address_node(message->to) - 1);
    if (epoch && message->type == QR_MESSAGE_publish_committed) judge_committed(c, message->to, epoch, &message->body.publish_committed);
    if (epoch && message->type == QR_MESSAGE_publish_refused) judge_refused(c, message->to, epoch, &message->body.publish_refused);
}

bool qr_sim_catalog_says(const qr_sim_catalog_t *c, uint32_t node, const uint8_t chain[32], uint32_t group)
{
    for (uint32_t i = c->log.row_count; i-- > 0;) {
        const qr_sim_row_t *row = &c->log.rows[i];
        if (row->publisher == 0 || qr_address_node(row->publisher) - 1 != node) continue;
        for (uint32_t k = row->first_change + row->change_count; k-- > row->first_change;) {
            const qr_sim_change_t *ch = &c->log.changes[k];
            bool about = ch->kind == QR_CATALOG_REPLICA || ch->kind == QR_CATALOG_WITHDRAW;
            if (about && ch->tier == QR_TIER_SSD && ch->group == group && memcmp(ch->chain, chain, 32) == 0)
                return ch->kind == QR_CATALOG_REPLICA;
        }
    }
    return false;
}

/* ---- restorer: stands for the way back until the real one is here ------------------------------------------------------------------ */

typedef struct restorer {
    uint64_t scheduler, due_us[QR_LANES_MAX], ids[QR_LANES_MAX]; /* due_us 0 = free */
    uint32_t starts[QR_LANES_MAX];
} restorer_t;

static void restorer_time(restorer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    for (uint32_t i = 0; i < QR_LANES_MAX; i++) {
        if (!self->due_us[i]) continue;
        if (self->due_us[i] > now_us) {
            qr_outbox_alarm(outbox, self->due_us[i]);
            continue;
        }
        self->due_us[i] = 0;
        qr_restored_t body = {.restore_id = self->ids[i], .boundary = self->starts[i], .reason = QR_E_IO};
        qr_send(outbox, self->scheduler, restored, &body);
    }
}

static void restorer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    restorer_t *self = block;
    uint32_t i = 0;
    switch (message->type) {
    case QR_MESSAGE_start: qr_send(outbox, message->from, ready, &(qr_ready_t){0}); break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    case QR_MESSAGE_alarm: restorer_time(self, message->now_us, outbox); break;
    case QR_MESSAGE_restore:
        while (i < QR_LANES_MAX && self->due_us[i]) i++;
        qr_assert(i < QR_LANES_MAX);
        self->ids[i] = message->body.restore.restore_id;
        self->starts[i] = message->body.restore.start_rows;
        self->due_us[i] = message->now_us + 1 + qr_sim_draw(catalog_of(given)->work.write_us);
        catalog_of(given)->counts.restores++;
        qr_outbox_alarm(outbox, self->due_us[i]);
        break;
    case QR_MESSAGE_restore_cancel:
        for (; i < QR_LANES_MAX; i++)
            if (self->due_us[i] && self->ids[i] == message->body.restore_cancel.restore_id) self->due_us[i] = message->now_us + 1;
        qr_outbox_alarm(outbox, message->now_us + 1);
        break;
    default: break;
    }
}

static uint64_t restorer_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(restorer_t);
}

static void restorer_init(void *block, const qr_given_t *given, uint64_t address)
{
    (void)given;
    ((restorer_t *)block)->scheduler = qr_address_partner(address, QR_ROLE_scheduler);
}

const qr_actor_class_t qr_sim_restorer_class = {
    .name = "restorer",
    .role = QR_ROLE_restore_streamer,
    .max_out = QR_LANES_MAX + 1,
    .owns_world = true,
    .bytes = restorer_bytes,
    .init = restorer_init,
    .handle = restorer_handle,
};

/* ---- what the log means ------------------------------------------------------------------------------------------------------------ */

typedef struct part {
    uint32_t bytes, ram, ssd; /* bit: index of the owner's node */
} part_t;
typedef struct meaning {
    uint8_t here[CHUNKS_MAX];
    part_t parts[CHUNKS_MAX][QR_GROUPS_MAX];
    uint64_t epochs[QR_NODES_MAX];
} meaning_t;

static void mean_change(const qr_sim_catalog_t *c, meaning_t *m, const qr_sim_change_t *ch, uint32_t owner)
{
    if (ch->id == NONE) return; /* wild ones are left out */
    if (ch->kind == QR_CATALOG_NODE) {
        uint32_t parent = c->chunks[ch->id].parent;
        m->here[ch->id] |= parent == NONE || m->here[parent];
        return;
    }
    part_t *p = &m->parts[ch->id][ch->group];
    uint32_t *mask = ch->tier == QR_TIER_RAM ? &p->ram : &p->ssd;
    if (!m->here[ch->id]) return;
    if (ch->kind == QR_CATALOG_PART && p->bytes == 0) p->bytes = (uint32_t)ch->size;
    if (ch->kind == QR_CATALOG_REPLICA && p->bytes) *mask |= 1u << owner;
    if (ch->kind == QR_CATALOG_WITHDRAW) *mask &= ~(1u << owner);
}

/* The state at tx, from the beginning. */
static void mean(const qr_sim_catalog_t *c, meaning_t *m, uint64_t tx)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < c->log.row_count && c->log.rows[i].tx <= tx; i++) {
        const qr_sim_row_t *row = &c->log.rows[i];
        if (row->publisher == 0) continue;
        uint32_t owner = qr_address_node(row->publisher) - 1;
        if (m->epochs[owner] != row->node_epoch) /* its RAM of before is gone */
            for (uint32_t k = 0; k < c->chunk_count; k++)
                for (uint32_t g = 0; g < c->group_count; g++) m->parts[k][g].ram &= ~(1u << owner);
        m->epochs[owner] = row->node_epoch;
        for (uint32_t k = row->first_change; k < row->first_change + row->change_count; k++) mean_change(c, m, &c->log.changes[k], owner);
    }
}

/* Whether boundary b needs chunk j of a group: it ends after the first row that the boundary's token attends. */
static bool is_needed(const qr_sim_catalog_t *c, uint32_t group, uint32_t b, uint32_t j)
{
    int64_t window = c->given->layout.groups[group].window, first = (int64_t)b * c->chunk_tokens - window + 1;
    return window == 0 || (int64_t)(j + 1) * c->chunk_tokens > (first < 0 ? 0 : first);
}

/* ram, ssd: nodes whose copies count. */
static uint32_t deepest(const qr_sim_catalog_t *c, const meaning_t *m, const uint32_t *path, uint32_t ram, uint32_t ssd)
{
    uint32_t have = 0;
    while (have < c->work.depth && m->here[path[have]]) have++;
    for (uint32_t b = have; b > 0; b--) {
        bool all = true;
        for (uint32_t g = 0; g < c->group_count && all; g++)
            for (uint32_t j = 0; j < b && all; j++) {
                const part_t *p = &m->parts[path[j]][g];
                all = !is_needed(c, g, b, j) || (p->bytes && ((p->ram & ram) || (p->ssd & ssd)));
            }
        if (all) return b;
    }
    return 0;
}

/* ---- asker (T3, T4) ------------------------------------------------------------------------------------------------------------------ */

typedef struct look {
    uint64_t id, asked_us; /* id 0 = free */
    uint32_t chain, unused;
} look_t;

typedef struct asker {
    uint64_t address, replica, next_us, last_id, settled_tx;
    uint32_t node, settled, settled_chains, wrong_chain;
    look_t looks[LOOKS];
} asker_t;

static uint32_t nodes_of_mask(const qr_matches_t *b, uint32_t mask)
{
    uint32_t nodes = 0;
    for (uint32_t k = 0; k < b->owners.count && k < 32; k++)
        if (mask >> k & 1) nodes |= 1u << (b->owners.data[k] - 1);
    return nodes;
}

/* A node that this one's replica must know to be gone, or whose process it must know to be another one. */
static void judge_hidden(const asker_t *self, const meaning_t *m, const look_t *look, uint32_t ram, uint32_t ssd)
{
    const qr_world_t *world = qr_sim_world();
    uint64_t started_us = qr_world_started_us(world, self->replica);
    for (uint32_t n = 0; n < QR_NODES_MAX; n++) {
        if (!((ram | ssd) >> n & 1)) continue;
        uint64_t down_us = qr_world_unlinked_since_us(world, self->node, n), up_us = qr_world_linked_since_us(world, self->node, n);
        if (down_us > started_us && down_us + HEARD_US < look->asked_us)
            qr_sim_finding("the replica of node %u offers what stands on node %u, whose link is down", self->node + 1, n + 1);
        if ((ram >> n & 1) && up_us > started_us && up_us + HEARD_US < look->asked_us && m->epochs[n] != qr_world_epoch(world, n) &&
            qr_world_epoch(world, n))
            qr_sim_finding("the replica of node %u offers what was in the RAM of node %u before it began anew", self->node + 1, n + 1);
    }
}

/* One part of an answer against what the log says up to the answer's transaction, and what the disks have now. */
static void judge_part(const asker_t *self, const qr_sim_catalog_t *c, const meaning_t *m, const meaning_t *now, const look_t *look,
                       const qr_matches_t *b, uint64_t i)
{
    uint32_t at = b->node_indexes.data[i], group = b->groups.data[i];
    if (at >= b->depth || group >= c->group_count) qr_sim_finding("a match names part %u of node %u of %u", group, at, b->depth);
    uint32_t id = c->paths[look->chain][at], ram = nodes_of_mask(b, b->ram_masks.data[i]), ssd = nodes_of_mask(b, b->ssd_masks.data[i]);
    const part_t *p = &m->parts[id][group];
    if (!(ram | ssd) || b->object_flags.data[i]) qr_sim_finding("a match names chunk %u, of which there is no copy", id);
    if (b->sizes.data[i] != p->bytes) qr_sim_finding("a match says that chunk %u has another size", id);
    if ((ram & ~p->ram) || (ssd & ~p->ssd))
        qr_sim_finding("the replica of node %u offers copies of chunk %u that the log does not have at %llu (RAM %x, SSD %x of %x, %x)",
                       self->node + 1, id, (unsigned long long)b->tx, ram, ssd, p->ram, p->ssd);
    for (uint32_t n = 0; n < c->node_count && n < 32; n++)
        if ((ssd >> n & 1) && !is_durable(c, n, id, c->chunks[id].chain, group) && (now->parts[id][group].ssd >> n & 1))
            qr_sim_finding("the replica of node %u offers chunk %u on node %u, whose disk does not have it", self->node + 1, id, n + 1);
    judge_hidden(self, m, look, ram, ssd);
}

/* Copies in RAM that a replica that has heard of everybody offers: of the processes that run. */
static uint32_t living(const asker_t *self, const meaning_t *m)
{
    uint32_t mask = 0;
    for (uint32_t n = 0; n < QR_NODES_MAX; n++) {
        bool linked = qr_world_linked_since_us(qr_sim_world(), self->node, n) > 0;
        if (!linked || m->epochs[n] == qr_world_epoch(qr_sim_world(), n)) mask |= 1u << n;
    }
    return mask;
}

/* With a store nobody publishes only to be seen again (README.md: after a silence copies are hidden until their node publishes): then a
 * replica must offer what its own node has. */
static bool may_hide(const qr_sim_catalog_t *c)
{
    const uint32_t silences = 1u << QR_FAULT_STUCK | 1u << QR_FAULT_PAUSE | 1u << QR_FAULT_CUT | 1u << QR_FAULT_UNIT;
    const qr_sim_workload_t *w = qr_sim_given(c->given)->clients;
    return store_of(c) && (w->faults & silences);
}

static bool is_exact(const asker_t *self, const qr_sim_catalog_t *c, const meaning_t *m, const look_t *look, const qr_matches_t *b)
{
    const uint32_t *path = c->paths[look->chain];
    uint32_t ram = living(self, m);
    if (b->tx != c->log.newest) return false;
    if (c->work.nodes_max < (store_of(c) ? NODES_OF_STORE : CHUNKS_MAX)) return true; /* some have left the index */
    if (may_hide(c)) return b->depth >= deepest(c, m, path, 0, 1u << self->node);
    if (b->depth != deepest(c, m, path, ram, UINT32_MAX)) return false;
    for (uint64_t i = 0; i < b->node_indexes.count; i++) {
        const part_t *p = &m->parts[path[b->node_indexes.data[i]]][b->groups.data[i]];
        if (nodes_of_mask(b, b->ram_masks.data[i]) != (p->ram & ram) || nodes_of_mask(b, b->ssd_masks.data[i]) != p->ssd) return false;
    }
    return true;
}

static void on_matches(asker_t *self, qr_sim_catalog_t *c, const qr_matches_t *b)
{
    static meaning_t then, now;
    look_t *look = NULL;
    for (uint32_t i = 0; i < LOOKS; i++)
        if (self->looks[i].id && self->looks[i].id == b->lookup_id) look = &self->looks[i];
    if (!look) qr_sim_finding("node %u: an answer to a lookup that is not open", self->node + 1);
    if (b->tx > c->log.newest) qr_sim_finding("the replica of node %u is ahead of the log", self->node + 1);
    if (b->depth > c->work.depth || b->tokens != b->depth * c->chunk_tokens) qr_sim_finding("a match is deeper than its question");
    const uint32_t *path = c->paths[look->chain];
    mean(c, &then, b->tx);
    mean(c, &now, c->log.newest);
    uint32_t depth = deepest(c, &then, path, UINT32_MAX, UINT32_MAX), needed = 0;
    if (b->depth > depth)
        qr_sim_finding("the replica of node %u says that chain %u can be restored to %u, the log at %llu says %u", self->node + 1,
                       look->chain, b->depth, (unsigned long long)b->tx, depth);
    for (uint32_t j = 0; j < b->depth; j++)
        for (uint32_t g = 0; g < c->group_count; g++) needed += is_needed(c, g, b->depth, j);
    if (b->node_indexes.count != needed)
        qr_sim_finding("a match names %llu parts of %u", (unsigned long long)b->node_indexes.count, needed);
    for (uint64_t i = 0; i < b->node_indexes.count; i++) judge_part(self, c, &then, &now, look, b, i);
    c->counts.hits += b->depth > 0;
    bool exact = is_exact(self, c, &then, look, b);
    c->counts.exact += exact;
    if (c->last) {
        bool same = exact && (self->settled_tx == c->log.newest || self->settled_chains == 0);
        self->settled_tx = c->log.newest;
        self->settled_chains = same ? self->settled_chains + 1 : 0;
        if (!exact) self->wrong_chain = 1 + look->chain;
        self->settled = self->settled_chains >= c->work.chains;
    }
    look->id = 0;
}

static void asker_time(asker_t *self, qr_sim_catalog_t *c, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    bool done = c->last && self->settled && self->settled_tx == c->log.newest;
    if (now_us >= self->next_us) {
        uint32_t open = 0;
        for (uint32_t i = 0; i < LOOKS; i++) open += self->looks[i].id != 0;
        look_t *look = &self->looks[0];
        while (look < self->looks + LOOKS && look->id) look++;
        bool may = c->last ? !done && open == 0 : look < self->looks + LOOKS && now_us < c->work.busy_until_us;
        if (may) {
            uint32_t chain = c->last ? self->settled_chains % c->work.chains : (uint32_t)qr_sim_draw(c->work.chains);
            uint8_t chains[32 * DEPTH_MAX];
            *look = (look_t){.id = ++self->last_id, .asked_us = now_us, .chain = chain};
            for (uint32_t d = 0; d < c->work.depth; d++) memcpy(chains + 32 * (size_t)d, c->chunks[c->paths[chain][d]].chain, 32);
            qr_lookup_t body = {
                .lookup_id = look->id, .fingerprint = c->given->layout.fingerprint, .chains = {chains, 32ull * c->work.depth}};
            c->counts.lookups++;
            qr_send(outbox, self->replica, lookup, &body);
        }
        self->next_us = now_us + 1 + (c->last ? LAST_LOOK_US : qr_sim_draw(2 * c->work.look_us));
        if (!c->last && now_us >= c->work.busy_until_us) self->next_us = now_us + 200000;
        if (done) self->next_us = now_us + 500000;
    }
    qr_outbox_alarm(outbox, self->next_us);
}

static void asker_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    asker_t *self = block;
    qr_sim_catalog_t *c = catalog_of(given);
    switch (message->type) {
    case QR_MESSAGE_start:
        self->next_us = message->now_us + 1 + qr_sim_draw(2 * c->work.look_us);
        qr_outbox_alarm(outbox, self->next_us);
        qr_send(outbox, message->from, ready, &(qr_ready_t){0});
        break;
    case QR_MESSAGE_alarm: asker_time(self, c, message->now_us, outbox); break;
    case QR_MESSAGE_matches: on_matches(self, c, &message->body.matches); break;
    case QR_MESSAGE_link_down: /* of its own node: its lookups are closed */
        if (message->body.link_down.node == self->node + 1) memset(self->looks, 0, sizeof self->looks);
        break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    default: break;
    }
}

static uint64_t asker_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(asker_t);
}

static void asker_init(void *block, const qr_given_t *given, uint64_t address)
{
    asker_t *self = block;
    (void)given;
    self->address = address;
    self->node = qr_address_node(address) - 1;
    self->replica = qr_sim_address(self->node, 0, QR_ROLE_catalog_replica);
}

const qr_actor_class_t qr_sim_asker_class = {
    .name = "asker",
    .role = QR_ROLE_router,
    .max_out = 2,
    .owns_world = true,
    .bytes = asker_bytes,
    .init = asker_init,
    .handle = asker_handle,
};

bool qr_sim_catalog_is_done(const qr_sim_catalog_t *c, const qr_world_t *world, char *text, size_t text_bytes)
{
    for (uint32_t n = 0; n < c->node_count; n++) {
        for (uint32_t d = 1; !store_of(c) && d <= qr_world_devices(world, n); d++) {
            const publisher_t *p = qr_world_state(world, qr_sim_address(n, d, QR_ROLE_checkpoint_writer));
            if (p && p->settled && publisher_is_quiet(p)) continue;
            (void)snprintf(text, text_bytes, "after healing the publisher of device %u of node %u commits nothing", d, n + 1);
            return false;
        }
        const asker_t *a = qr_world_state(world, qr_sim_asker(n));
        if (a && a->settled && a->settled_tx == c->log.newest) continue;
        (void)snprintf(text, text_bytes, "after healing the replica of node %u is not what the log says (chain %u)", n + 1,
                       a ? a->wrong_chain : 0);
        return false;
    }
    return true;
}
