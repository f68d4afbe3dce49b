/* catalog_replica.c - owns one node's index of the catalog: which chunks of which chains stand where, as of one transaction.
 *
 *   router, scheduler           catalog_replica                       catalog_writer (one per mesh)
 *                                 | -- tail(applied + 1) -------------> |  stays open until there is something
 *                                 | <-- tail_batch -------------------- |  transactions, or a page of a snapshot
 *     lookup -------------------> |
 *     <---------------- matches - |
 *   host: link_up, link_down; heartbeat: peer_down
 *
 * Matching is by hash alone: tokens are not here. A chunk file carries its tokens, and whoever has them at hand (restore, the worker's
 * re-plan) compares them. What the parts are called on disk (content ids) is not here either: storage finds a part by chain and group.
 *
 * The index is bounded: catalog_nodes_max nodes of 64 bytes, at most 12 of hash table and heap, and a part of 16 bytes per group. At the
 * bound the least valuable node that nothing continues leaves: key = level + lookups it served (at most VALUE_MAX), and the level rises to
 * each key that left, so no clock is needed. A new node enters with level + 1, or not at all if it is the least valuable itself; nor does
 * one whose parent is not here. A miss means recompute; the log keeps everything.
 *
 * C1. Transactions are applied strictly in order: tx == applied + 1. A repeat changes nothing; a gap changes nothing and is asked for.
 * C2. The index is a function of the log up to `applied` (and of what the bound made leave): links and silence only hide.
 * C3. A node's parent is here, of the same layout and one chunk less deep; whatever has no child here is in the heap, nothing else.
 * C4. A copy in RAM lives with its node's epoch: a publish of another epoch of that node takes all of them away. Copies on a node whose
 *     link is down or that is silent are hidden until it is heard again, in RAM until it is heard under the same epoch.
 * C5. A lookup's boundary is the longest whose parts all stand somewhere that is not hidden: of groups that keep the whole prefix every
 *     chunk, of a window of w tokens the chunks that end after the boundary - w + 1.
 * C6. While a snapshot is taken in, every lookup is a miss. Another log, a shorter log or a snapshot begins with an empty index.
 * C8. A probe is answered BUSY until the tail has caught up, or has not for catalog_wait_ms since the start (a log that cannot be read).
 * C7. At most one tail is open. Without progress the next one waits RETRY_US. */
#include "actors/catalog_replica.h"

#include "actors/catalog_batch.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/prng.h"

enum {
    OWNERS_MAX = 32, /* bits of a mask */
    VALUE_MAX = 64,
    PARTS_MAX = QR_LOOKUP_NODES_MAX * QR_GROUPS_MAX, /* of one answer */
    RETRY_US = 1000000
};
#define NONE UINT32_MAX

_Static_assert(OWNERS_MAX >= (int)QR_NODES_MAX, "every node has a bit");

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct node {
    uint8_t chain[32];
    uint64_t key;                  /* value when last touched (C3: of those in the heap the least leaves) */
    uint32_t parent, next;         /* NONE = begins at token 0; next of its bucket, or of the free list */
    uint32_t depth, layout;        /* begins at token depth * chunk_tokens; layout NONE = free */
    uint32_t children, heap_place; /* heap_place NONE: has children */
} node_t;

typedef struct part {
    uint32_t bytes;            /* 0 = not known */
    uint32_t ram, ssd, object; /* bit k: on the node of owners[k] */
} part_t;

typedef struct owner {
    uint64_t node_epoch;  /* of its newest publish: its copies in RAM are of that one */
    uint64_t link_epoch;  /* of its link, 0 = never heard */
    uint64_t silent_from; /* silent: newest transaction known then; a later one of it ends the silence */
    uint32_t node, used, down, silent;
} owner_t;

typedef struct layout {
    uint8_t fingerprint[32];
    uint32_t chunk_tokens, group_count;
    uint32_t windows[QR_GROUPS_MAX];
} layout_t;

/* Columns of an answer. Scratch: nothing in it outlives a call. */
typedef struct columns {
    uint64_t sizes[PARTS_MAX];
    uint32_t node_indexes[PARTS_MAX], groups[PARTS_MAX], ram[PARTS_MAX], ssd[PARTS_MAX], object[PARTS_MAX];
    uint32_t path[QR_LOOKUP_NODES_MAX]; /* nodes of the chain asked for */
} columns_t;

typedef struct catalog_replica {
    uint64_t address, writer, epoch, seed;
    uint64_t log_id, applied, newest; /* C1 */
    uint64_t snapshot_tx, cursor;     /* being taken in; 0 = none */
    uint64_t retry_us, level;
    uint64_t wait_until_us; /* C8 */
    uint64_t lookups, hits, left, skipped;
    uint64_t nodes_at, parts_at, buckets_at, heap_at, columns_at; /* offsets of what follows this struct */
    uint32_t nodes_max, groups_max, bucket_count;                 /* buckets: a power of two */
    uint32_t node_count, heap_count, free_node, used_high;        /* used_high: nodes from there on were never used */
    uint32_t asking, layout_count;
    uint32_t caught_up; /* 1: once it had all; 2: it was not waited for */
    owner_t owners[OWNERS_MAX];
    layout_t layouts[QR_CATALOG_LAYOUTS];
} catalog_replica_t;
#pragma GCC diagnostic pop

_Static_assert(sizeof(node_t) == 64 && sizeof(part_t) == 16, "what the head of this file promises");
_Static_assert(sizeof(columns_t) < QR_MESSAGE_BYTES_MAX, "an answer fits one message");

static node_t *node_at(const catalog_replica_t *self, uint32_t i) { return (node_t *)((uintptr_t)self + self->nodes_at) + i; }
static part_t *part_at(const catalog_replica_t *self, uint32_t i, uint32_t group)
{
    return (part_t *)((uintptr_t)self + self->parts_at) + (size_t)i * self->groups_max + group;
}
static uint32_t *buckets_of(const catalog_replica_t *self) { return (uint32_t *)((uintptr_t)self + self->buckets_at); }
static uint32_t *heap_of(const catalog_replica_t *self) { return (uint32_t *)((uintptr_t)self + self->heap_at); }
static columns_t *columns_of(const catalog_replica_t *self) { return (columns_t *)((uintptr_t)self + self->columns_at); }

/* ---- the heap of nodes that nothing continues: the least key first ------------------------------------------------------- */

static bool less(const catalog_replica_t *self, uint32_t a, uint32_t b)
{
    uint64_t x = node_at(self, a)->key, y = node_at(self, b)->key;
    return x < y || (x == y && a < b);
}

static void heap_set(catalog_replica_t *self, uint32_t place, uint32_t i)
{
    heap_of(self)[place] = i;
    node_at(self, i)->heap_place = place;
}

/* Puts node i, whose key may have changed, where it belongs from `place`. */
static void heap_settle(catalog_replica_t *self, uint32_t place, uint32_t i)
{
    uint32_t *heap = heap_of(self);
    for (; place && less(self, i, heap[(place - 1) / 2]); place = (place - 1) / 2) heap_set(self, place, heap[(place - 1) / 2]);
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= self->heap_count) break;
        if (child + 1 < self->heap_count && less(self, heap[child + 1], heap[child])) child++;
        if (!less(self, heap[child], i)) break;
        heap_set(self, place, heap[child]);
        place = child;
    }
    heap_set(self, place, i);
}

static void heap_add(catalog_replica_t *self, uint32_t i) { heap_settle(self, self->heap_count++, i); }

static void heap_remove(catalog_replica_t *self, uint32_t i)
{
    uint32_t place = node_at(self, i)->heap_place, last = heap_of(self)[--self->heap_count];
    if (last != i) heap_settle(self, place, last);
    node_at(self, i)->heap_place = NONE;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const catalog_replica_t *self, const uint8_t chain[32])
{
    uint64_t word;
    memcpy(&word, chain, 8);
    return &buckets_of(self)[qr_mix_u64(word ^ self->seed) & (self->bucket_count - 1)];
}

static uint32_t find(const catalog_replica_t *self, const uint8_t chain[32])
{
    uint32_t i = *bucket_of(self, chain);
    while (i != NONE && memcmp(node_at(self, i)->chain, chain, QR_MUTANT(508) ? 1 : 32) != 0) i = node_at(self, i)->next;
    return i;
}

/* Takes away a node that nothing continues. */
static void remove_leaf(catalog_replica_t *self, uint32_t i)
{
    node_t *n = node_at(self, i);
    uint32_t *link = bucket_of(self, n->chain), parent = n->parent;
    qr_assert(n->children == 0);
    while (*link != i) link = &node_at(self, *link)->next;
    *link = n->next;
    heap_remove(self, i);
    if (parent != NONE && --node_at(self, parent)->children == 0) heap_add(self, parent);
    memset(part_at(self, i, 0), 0, self->groups_max * sizeof(part_t));
    *n = (node_t){.next = self->free_node, .layout = NONE, .heap_place = NONE};
    self->free_node = i;
    self->node_count--;
}

/* Room for one more node of the least value; false: it is itself the least valuable, or everything here is continued. */
static bool make_room(catalog_replica_t *self)
{
    if (self->node_count < self->nodes_max) return true;
    if (self->heap_count == 0) return false;
    uint32_t least = heap_of(self)[0];
    if (node_at(self, least)->key > self->level + 1) {
        self->level++; /* as if it had come and left */
        return false;
    }
    self->level = qr_max_u64(self->level, node_at(self, least)->key);
    self->left++;
    remove_leaf(self, least);
    return true;
}

static uint32_t take_node(catalog_replica_t *self)
{
    uint32_t i = self->free_node;
    if (i == NONE) return self->used_high++;
    self->free_node = node_at(self, i)->next;
    return i;
}

static void insert(catalog_replica_t *self, const uint8_t chain[32], uint32_t parent, uint32_t depth, uint32_t layout)
{
    if (parent != NONE && node_at(self, parent)->children++ == 0) heap_remove(self, parent); /* it must not make room for its child */
    if (!make_room(self)) {
        if (parent != NONE && --node_at(self, parent)->children == 0) heap_add(self, parent);
        self->skipped++;
        return;
    }
    uint32_t i = take_node(self), *bucket = bucket_of(self, chain);
    node_t *n = node_at(self, i);
    *n = (node_t){.key = self->level + 1, .parent = parent, .next = *bucket, .depth = depth, .layout = layout};
    memcpy(n->chain, chain, 32);
    *bucket = i;
    self->node_count++;
    heap_add(self, i);
}

static bool continues(const catalog_replica_t *self, uint32_t i, uint32_t ancestor)
{
    uint32_t depth = node_at(self, ancestor)->depth;
    while (i != NONE && node_at(self, i)->depth > depth) i = node_at(self, i)->parent;
    return i == ancestor;
}

/* Takes away a node and everything that continues it. Usually nothing does: files go leaves first. */
static void drop(catalog_replica_t *self, uint32_t root)
{
    for (uint32_t k = 0; k < self->used_high && node_at(self, root)->children; k++) {
        uint32_t i = k;
        if (node_at(self, i)->layout == NONE || node_at(self, i)->children || i == root || !continues(self, i, root)) continue;
        while (i != root && node_at(self, i)->children == 0) {
            uint32_t parent = node_at(self, i)->parent;
            remove_leaf(self, i);
            i = parent;
        }
    }
    remove_leaf(self, root);
}

/* Forgets everything the log said (C6). */
static void clear(catalog_replica_t *self, uint32_t why, qr_outbox_t *outbox)
{
    if (self->applied || self->node_count)
        qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_index_cleared, 0, why, self->applied, self->newest);
    memset(node_at(self, 0), 0, (size_t)self->nodes_max * sizeof(node_t));
    memset(part_at(self, 0, 0), 0, (size_t)self->nodes_max * self->groups_max * sizeof(part_t));
    memset(buckets_of(self), 0xff, 4 * (size_t)self->bucket_count);
    self->node_count = self->heap_count = self->used_high = self->layout_count = 0;
    self->free_node = NONE;
    self->applied = self->snapshot_tx = self->cursor = self->level = 0;
    for (uint32_t k = 0; k < OWNERS_MAX; k++) self->owners[k].node_epoch = 0;
}

/* ---- owners ------------------------------------------------------------------------------------------------------------------ */

static uint32_t keep_owner(catalog_replica_t *self, uint32_t node)
{
    for (uint32_t k = 0; k < OWNERS_MAX; k++) {
        owner_t *o = &self->owners[k];
        if (o->used && o->node == node) return k;
        if (o->used) continue;
        *o = (owner_t){.node = node, .used = 1};
        return k;
    }
    return NONE;
}

/* A publish of that node: of another epoch, its RAM of before is gone (C4). */
static uint32_t heard_owner(catalog_replica_t *self, const qr_catalog_row_t *row)
{
    uint32_t k = keep_owner(self, qr_address_node(row->publisher));
    if (k == NONE) return NONE;
    owner_t *o = &self->owners[k];
    if (o->silent && row->tx > o->silent_from) o->silent = 0;
    if (o->node_epoch == row->node_epoch || QR_MUTANT(509)) return k;
    for (uint32_t i = 0; o->node_epoch && i < self->used_high; i++)
        for (uint32_t g = 0; g < self->groups_max; g++) part_at(self, i, g)->ram &= ~(1u << k);
    o->node_epoch = row->node_epoch;
    return k;
}

/* Bits of the owners whose copies in RAM, or on disk, can be reached. */
static uint32_t reachable(const catalog_replica_t *self, bool ram)
{
    uint32_t mask = 0;
    for (uint32_t k = 0; k < OWNERS_MAX; k++) {
        const owner_t *o = &self->owners[k];
        bool hidden = (o->down || o->silent) && !QR_MUTANT(510);
        bool same = o->link_epoch == 0 || o->link_epoch == o->node_epoch;
        if (o->used && !hidden && (!ram || same)) mask |= 1u << k;
    }
    return mask;
}

/* ---- changes -------------------------------------------------------------------------------------------------------------------- */

static uint32_t find_layout(const catalog_replica_t *self, const uint8_t fingerprint[32])
{
    for (uint32_t i = 0; i < self->layout_count; i++)
        if (memcmp(self->layouts[i].fingerprint, fingerprint, 32) == 0) return i;
    return NONE;
}

/* The layout of a row, made when new; NONE if it cannot be indexed here. */
static uint32_t keep_layout(catalog_replica_t *self, const qr_catalog_row_t *row)
{
    uint32_t i = find_layout(self, row->fingerprint);
    if (i != NONE) {
        const layout_t *l = &self->layouts[i];
        bool same = l->chunk_tokens == row->chunk_tokens && l->group_count == row->group_count &&
                    memcmp(l->windows, row->windows, 4 * (size_t)row->group_count) == 0;
        return same ? i : NONE;
    }
    if (self->layout_count == QR_CATALOG_LAYOUTS || row->group_count > self->groups_max || row->group_count == 0) return NONE;
    layout_t *l = &self->layouts[self->layout_count];
    *l = (layout_t){.chunk_tokens = row->chunk_tokens, .group_count = row->group_count};
    memcpy(l->fingerprint, row->fingerprint, 32);
    memcpy(l->windows, row->windows, 4 * (size_t)row->group_count);
    return self->layout_count++;
}

static void change_node(catalog_replica_t *self, const qr_catalog_changes_t *c, uint32_t i, uint32_t layout)
{
    const uint8_t *chain = c->chains.data + 32 * (size_t)i;
    uint32_t depth = c->starts.data[i] / self->layouts[layout].chunk_tokens, parent = NONE;
    if (find(self, chain) != NONE) return; /* the same bytes said again */
    if (depth) {
        parent = find(self, c->digests.data + 32 * (size_t)i);
        bool fits =
            parent != NONE && ((node_at(self, parent)->depth + 1 == depth && node_at(self, parent)->layout == layout) || QR_MUTANT(511));
        if (!fits) {
            self->skipped++;
            return;
        }
    }
    insert(self, chain, parent, depth, layout);
}

static void change_replica(part_t *p, uint8_t tier, uint32_t owner, bool here)
{
    uint32_t bit = tier == QR_TIER_OBJECT ? 1 : owner == NONE ? 0 : 1u << owner;
    uint32_t *mask = tier == QR_TIER_RAM ? &p->ram : tier == QR_TIER_SSD ? &p->ssd : &p->object;
    *mask = here ? *mask | bit : *mask & ~bit;
}

static void apply_change(catalog_replica_t *self, const qr_catalog_changes_t *c, uint32_t i, uint32_t layout, uint32_t owner)
{
    if (c->kinds.data[i] == QR_CATALOG_NODE) {
        change_node(self, c, i, layout);
        return;
    }
    uint32_t at = find(self, c->chains.data + 32 * (size_t)i);
    if (at == NONE || node_at(self, at)->layout != layout) {
        self->skipped++;
        return;
    }
    part_t *p = part_at(self, at, qr_min_u32(c->groups.data[i], self->groups_max - 1));
    switch (c->kinds.data[i]) {
    case QR_CATALOG_PART:
        if (p->bytes == 0) p->bytes = (uint32_t)c->sizes.data[i];
        break;
    case QR_CATALOG_REPLICA:
        if (p->bytes) change_replica(p, c->tiers.data[i], owner, true);
        break;
    case QR_CATALOG_WITHDRAW:
        if (!QR_MUTANT(512)) change_replica(p, c->tiers.data[i], owner, false);
        break;
    default: drop(self, at); break;
    }
}

static void apply_row(catalog_replica_t *self, const qr_catalog_batch_t *batch, const qr_catalog_row_t *row)
{
    if (row->group_count == 0) return; /* a claim */
    uint32_t owner = heard_owner(self, row), layout = keep_layout(self, row);
    if (layout == NONE) {
        self->skipped += row->change_count;
        return;
    }
    for (uint32_t i = row->first_change; i < row->first_change + row->change_count; i++)
        apply_change(self, &batch->changes, i, layout, owner);
}

/* ---- tail ------------------------------------------------------------------------------------------------------------------------- */

static void ask(catalog_replica_t *self, qr_outbox_t *outbox)
{
    self->asking = 1;
    self->retry_us = QR_NEVER_US;
    qr_tail_t body = {.log_id = self->log_id, .from_tx = self->applied + 1, .snapshot_tx = self->snapshot_tx, .cursor = self->cursor};
    qr_send(outbox, self->writer, tail, &body);
}

static void ask_later(catalog_replica_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    self->retry_us = now_us + RETRY_US;
    qr_outbox_alarm(outbox, self->retry_us);
}

/* Whole transactions (C1); whether anything new was among them. */
static bool apply_transactions(catalog_replica_t *self, const qr_catalog_batch_t *batch, uint64_t first_tx, qr_outbox_t *outbox)
{
    uint64_t before = self->applied, next = before + 1;
    if (first_tx > next) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_tail_gap, 0, first_tx, before, self->newest);
        if (!QR_MUTANT(513)) return false;
        next = first_tx;
    }
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(batch, &row);) {
        if (row.tx < next && !QR_MUTANT(514)) continue;
        apply_row(self, batch, &row);
        self->applied = row.tx; /* the batch holds whole transactions, in order */
    }
    return self->applied > before;
}

/* One page of a snapshot. */
static bool apply_page(catalog_replica_t *self, const qr_catalog_batch_t *batch, const qr_tail_batch_t *b, qr_outbox_t *outbox)
{
    if (b->snapshot_tx != self->snapshot_tx) { /* it begins */
        if (b->first_tx != 0) return false;
        clear(self, 3, outbox);
        self->snapshot_tx = b->snapshot_tx;
    } else if (b->first_tx != self->cursor) {
        return false;
    }
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(batch, &row);) apply_row(self, batch, &row);
    bool moved = b->last || b->cursor > self->cursor;
    self->cursor = b->cursor;
    if (!b->last) return moved;
    self->applied = b->snapshot_tx;
    self->snapshot_tx = self->cursor = 0;
    return true;
}

static void on_tail_batch(catalog_replica_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_tail_batch_t *b = &message->body.tail_batch;
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(b);
    bool whole = b->snapshot_tx == 0;
    self->asking = 0;
    if (b->log_id == 0 || !qr_catalog_batch_valid(&batch, whole, b->first_tx, b->last_tx) || message->from != self->writer) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_protocol, 0, message->type, b->first_tx, self->applied);
        ask_later(self, message->now_us, outbox);
        return;
    }
    self->newest = qr_max_u64(b->newest_tx, whole ? b->last_tx : b->snapshot_tx);
    bool other = self->log_id != b->log_id && !QR_MUTANT(515), shorter = self->newest < self->applied;
    if (other || shorter) clear(self, other ? 1 : 2, outbox);
    self->log_id = b->log_id;
    if (whole && self->snapshot_tx) clear(self, 3, outbox); /* the snapshot under way has been given up */
    bool moved = whole ? apply_transactions(self, &batch, b->first_tx, outbox) : apply_page(self, &batch, b, outbox);
    if (moved || other || shorter)
        ask(self, outbox);
    else
        ask_later(self, message->now_us, outbox);
}

static void on_tail_refused(catalog_replica_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->asking = 0;
    if (self->snapshot_tx && message->body.tail_refused.reason == QR_E_STALE) clear(self, 3, outbox);
    ask_later(self, message->now_us, outbox);
}

/* ---- lookups --------------------------------------------------------------------------------------------------------------------------
 */

/* The nodes of the chain asked for that are here, from the root on; columns.path has them. */
static uint32_t walk(const catalog_replica_t *self, const qr_lookup_t *b, uint32_t layout)
{
    uint32_t *path = columns_of(self)->path, n = (uint32_t)qr_min_u64(b->chains.count / 32, QR_LOOKUP_NODES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = find(self, b->chains.data + 32 * (size_t)i);
        if (at == NONE) return i;
        const node_t *node = node_at(self, at);
        if (node->depth != i || node->layout != layout || node->parent != (i ? path[i - 1] : NONE)) return i;
        path[i] = at;
    }
    return n;
}

static bool stands(const part_t *p, uint32_t ram, uint32_t ssd) { return p->bytes && ((p->ram & ram) || (p->ssd & ssd) || p->object); }

/* First chunk that a group needs for boundary `depth` (in chunks): C5. */
static uint32_t first_needed(const layout_t *l, uint32_t group, uint32_t depth)
{
    uint64_t tokens = (uint64_t)depth * l->chunk_tokens, window = l->windows[group];
    if (window == 0) return 0;
    uint64_t first_row = tokens + 1 > window ? tokens + 1 - window : 0;
    if (QR_MUTANT(516)) first_row = tokens > window ? tokens - window / 2 : 0;
    return (uint32_t)qr_min_u64(first_row / l->chunk_tokens, depth);
}

/* The deepest boundary among the first n chunks (C5). */
static uint32_t deepest(const catalog_replica_t *self, const layout_t *l, uint32_t n, uint32_t ram, uint32_t ssd)
{
    uint32_t best = 0, run[QR_GROUPS_MAX] = {0}; /* run: chunks that stand without a gap, up to this one */
    for (uint32_t i = 0; i < n; i++) {
        bool all = true;
        for (uint32_t g = 0; g < l->group_count; g++) {
            bool here = stands(part_at(self, columns_of(self)->path[i], g), ram, ssd);
            run[g] = here ? run[g] + 1 : 0;
            all = all && i + 1 - run[g] <= first_needed(l, g, i + 1);
        }
        if (all) best = i + 1;
    }
    return best;
}

static void touch(catalog_replica_t *self, uint32_t i)
{
    node_t *n = node_at(self, i);
    uint64_t value = n->key > self->level ? n->key - self->level : 0;
    n->key = self->level + qr_min_u64(value + 1, VALUE_MAX);
    if (n->heap_place != NONE) heap_settle(self, n->heap_place, i);
}

/* Fills the columns with the parts that boundary `depth` needs; how many. */
static uint32_t list_parts(const catalog_replica_t *self, const layout_t *l, uint32_t depth, uint32_t ram, uint32_t ssd)
{
    columns_t *c = columns_of(self);
    uint32_t count = 0;
    for (uint32_t i = 0; i < depth; i++)
        for (uint32_t g = 0; g < l->group_count; g++) {
            const part_t *p = part_at(self, c->path[i], g);
            if (i < first_needed(l, g, depth)) continue;
            c->node_indexes[count] = i;
            c->groups[count] = g;
            c->sizes[count] = p->bytes;
            c->ram[count] = p->ram & ram;
            c->ssd[count] = p->ssd & ssd;
            c->object[count++] = p->object;
        }
    return count;
}

static void on_lookup(catalog_replica_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_lookup_t *b = &message->body.lookup;
    qr_matches_t body = {.lookup_id = b->lookup_id, .tx = self->applied};
    uint32_t layout = self->snapshot_tx && !QR_MUTANT(517) ? NONE : find_layout(self, b->fingerprint.bytes); /* C6 */
    uint32_t owners[OWNERS_MAX];
    self->lookups++;
    if (layout != NONE) {
        const layout_t *l = &self->layouts[layout];
        columns_t *c = columns_of(self);
        uint32_t ram = reachable(self, true), ssd = reachable(self, false);
        body.depth = deepest(self, l, walk(self, b, layout), ram, ssd);
        body.tokens = body.depth * l->chunk_tokens;
        uint32_t count = list_parts(self, l, body.depth, ram, ssd);
        for (uint32_t k = 0; k < OWNERS_MAX; k++) owners[k] = self->owners[k].node;
        if (count) body.owners = (qr_u32s_t){owners, OWNERS_MAX};
        body.node_indexes = (qr_u32s_t){c->node_indexes, count};
        body.groups = (qr_u32s_t){c->groups, count};
        body.sizes = (qr_u64s_t){c->sizes, count};
        body.ram_masks = (qr_u32s_t){c->ram, count};
        body.ssd_masks = (qr_u32s_t){c->ssd, count};
        body.object_flags = (qr_u32s_t){c->object, count};
        self->hits += body.depth > 0;
        for (uint32_t i = 0; i < body.depth; i++) touch(self, c->path[i]);
    }
    qr_send(outbox, message->from, matches, &body);
}

/* ---- links --------------------------------------------------------------------------------------------------------------------------- */

static void on_link_up(catalog_replica_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_link_up_t *b = &message->body.link_up;
    uint32_t k = b->node == qr_address_node(self->address) ? NONE : keep_owner(self, b->node);
    if (k != NONE) {
        self->owners[k].down = self->owners[k].silent = 0;
        self->owners[k].link_epoch = b->node_epoch;
    }
    if (self->writer && b->node == qr_address_node(self->writer) && !self->asking) ask(self, outbox);
}

static void on_link_down(catalog_replica_t *self, const qr_message_t *message)
{
    uint32_t node = message->body.link_down.node;
    uint32_t k = node == qr_address_node(self->address) ? NONE : keep_owner(self, node);
    if (k != NONE) self->owners[k].down = 1;
    if (!self->writer || node != qr_address_node(self->writer)) return;
    self->asking = 0; /* link_up asks again */
    self->retry_us = QR_NEVER_US;
}

static void on_peer_down(catalog_replica_t *self, const qr_message_t *message)
{
    uint32_t node = message->body.peer_down.node;
    uint32_t k = node == qr_address_node(self->address) ? NONE : keep_owner(self, node);
    if (k == NONE) return;
    self->owners[k].silent = 1;
    self->owners[k].silent_from = qr_max_u64(self->newest, self->applied);
}

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static uint32_t groups_max_of(const qr_given_t *given)
{
    return given->layout.group_count ? given->layout.group_count : QR_GROUPS_MAX; /* a node without a model routes for any */
}

/* Offsets of what follows the struct; returns the bytes of the whole block. `self` may be NULL. */
static uint64_t lay_out(catalog_replica_t *self, const qr_given_t *given)
{
    uint64_t nodes = given->params.catalog_nodes_max, buckets = 1;
    while (buckets < nodes) buckets *= 2;
    uint64_t nodes_at = qr_round_up(sizeof(catalog_replica_t), 64), parts_at = nodes_at + nodes * sizeof(node_t);
    uint64_t buckets_at = parts_at + qr_round_up(nodes * groups_max_of(given) * sizeof(part_t), 64);
    uint64_t heap_at = buckets_at + qr_round_up(4 * buckets, 64), columns_at = heap_at + qr_round_up(4 * nodes, 64);
    if (self) {
        self->nodes_max = (uint32_t)nodes;
        self->bucket_count = (uint32_t)buckets;
        self->nodes_at = nodes_at;
        self->parts_at = parts_at;
        self->buckets_at = buckets_at;
        self->heap_at = heap_at;
        self->columns_at = columns_at;
    }
    return columns_at + qr_round_up(sizeof(columns_t), 64);
}

static uint64_t catalog_replica_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void catalog_replica_init(void *block, const qr_given_t *given, uint64_t address)
{
    catalog_replica_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->groups_max = groups_max_of(given);
    self->free_node = NONE;
    self->retry_us = QR_NEVER_US;
    memset(buckets_of(self), 0xff, 4 * (size_t)self->bucket_count);
}

/* Ready at once: until the tail has caught up, a miss means recompute. */
static void on_start(catalog_replica_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->wait_until_us = message->now_us + given->params.catalog_wait_ms * 1000;
    self->epoch = b->epoch;
    self->seed = b->seed;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_catalog_writer && !self->writer) self->writer = b->partners.data[i];
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->nodes_max, self->writer);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
    if (self->writer) ask(self, outbox);
}

/* C8. */
static void on_probe(catalog_replica_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    bool all = self->log_id && !self->snapshot_tx && self->applied == self->newest;
    if (all || !self->writer) self->caught_up = 1;
    if (!self->caught_up && message->now_us >= self->wait_until_us && !QR_MUTANT(729)) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_catalog_late, 0, self->applied, self->newest, 0);
        self->caught_up = 2;
    }
    qr_send(outbox, message->from, probe_done,
            (&(qr_probe_done_t){.probe_id = message->body.probe.probe_id, .reason = self->caught_up || QR_MUTANT(728) ? 0 : QR_E_BUSY}));
}

static void on_alarm(catalog_replica_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    if (self->retry_us == QR_NEVER_US) return;
    if (now_us < self->retry_us)
        qr_outbox_alarm(outbox, self->retry_us);
    else
        ask(self, outbox);
}

static void catalog_replica_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    catalog_replica_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, message->now_us, outbox); break;
    case QR_MESSAGE_tail_batch: on_tail_batch(self, message, outbox); break;
    case QR_MESSAGE_tail_refused: on_tail_refused(self, message, outbox); break;
    case QR_MESSAGE_lookup: on_lookup(self, message, outbox); break;
    case QR_MESSAGE_probe: on_probe(self, message, outbox); break;
    case QR_MESSAGE_link_up: on_link_up(self, message, outbox); break;
    case QR_MESSAGE_link_down: on_link_down(self, message); break;
    case QR_MESSAGE_peer_down: on_peer_down(self, message); break;
    case QR_MESSAGE_drain: qr_send(outbox, message->from, drained, &(qr_drained_t){0}); break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

/* ---- check and print ------------------------------------------------------------------------------------------------------------------
 */

static void check_node(const catalog_replica_t *self, uint32_t i)
{
    const node_t *n = node_at(self, i);
    qr_assert(n->layout < self->layout_count && find(self, n->chain) == i);
    qr_assert((n->depth == 0) == (n->parent == NONE)); /* C3 */
    qr_assert((n->children == 0) == (n->heap_place != NONE));
    if (n->parent != NONE) {
        const node_t *parent = node_at(self, n->parent);
        qr_assert(parent->layout == n->layout && parent->depth + 1 == n->depth && parent->children);
    }
    if (n->heap_place == NONE) return;
    qr_assert(n->heap_place < self->heap_count && heap_of(self)[n->heap_place] == i);
    qr_assert(n->heap_place == 0 || !less(self, i, heap_of(self)[(n->heap_place - 1) / 2]));
}

static void catalog_replica_check(const void *block, const qr_given_t *given)
{
    (void)given;
    const catalog_replica_t *self = block;
    uint64_t used = 0, children = 0, leaves = 0, roots = 0, unused = 0;
    for (uint32_t i = 0; i < self->used_high; i++) {
        const node_t *n = node_at(self, i);
        if (n->layout == NONE) continue;
        check_node(self, i);
        used++;
        children += n->children;
        leaves += n->children == 0;
        roots += n->parent == NONE;
        for (uint32_t g = 0; g < self->groups_max; g++) {
            const part_t *p = part_at(self, i, g);
            qr_assert(p->bytes || (p->ram | p->ssd | p->object) == 0);
            qr_assert(p->bytes == 0 || g < self->layouts[n->layout].group_count);
        }
    }
    for (uint32_t i = self->free_node; i != NONE; i = node_at(self, i)->next, unused++) qr_assert(node_at(self, i)->layout == NONE);
    qr_assert(used == self->node_count && used <= self->nodes_max && leaves == self->heap_count && children + roots == used);
    qr_assert(unused + used == self->used_high);
    qr_assert(self->layout_count <= QR_CATALOG_LAYOUTS);
    qr_assert(!self->asking || self->retry_us == QR_NEVER_US); /* C7 */
    qr_assert(self->snapshot_tx == 0 || self->applied == 0);   /* C6 */
    qr_assert(self->applied <= self->newest);
}

static void catalog_replica_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const catalog_replica_t *self = block;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"catalog_replica: tx ", self->applied},
                   {" of ", self->newest},
                   {", nodes ", self->node_count},
                   {" of ", self->nodes_max},
                   {", left ", self->left},
                   {", not taken in ", self->skipped},
                   {", lookups ", self->lookups},
                   {", with a hit ", self->hits},
                   {", snapshot under way ", self->snapshot_tx}};
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        qr_text_put(text, numbers[i].name);
        qr_text_put_u64(text, numbers[i].value);
    }
    qr_text_put(text, "\n");
    for (uint32_t k = 0; k < OWNERS_MAX; k++) {
        const owner_t *o = &self->owners[k];
        if (!o->used) continue;
        qr_text_put(text, "  node ");
        qr_text_put_u64(text, o->node);
        qr_text_put(text, o->down ? " down, epoch " : o->silent ? " silent, epoch " : " heard, epoch ");
        qr_text_put_u64(text, o->node_epoch);
        qr_text_put(text, "\n");
    }
}

const qr_actor_class_t qr_catalog_replica_class = {
    .name = "catalog_replica",
    .role = QR_ROLE_catalog_replica,
    .max_out = 4,
    .bytes = catalog_replica_bytes,
    .init = catalog_replica_init,
    .handle = catalog_replica_handle,
    .check = catalog_replica_check,
    .print = catalog_replica_print,
};
