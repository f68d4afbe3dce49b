/* catalog_model.h - for tests of the catalog: columns by hand, and the plainest model of what a log of them means. */
#ifndef QR_CATALOG_MODEL_H
#define QR_CATALOG_MODEL_H

#include "actors/catalog_batch.h"
#include "base/prng.h"

#include <stdlib.h>

enum { IDS = 63, MODELS = 3, CHUNK = 8, PATH_MAX_NODES = 24, COLUMN_ROWS = 4096, COLUMN_CHANGES = 32768, OWNER_NODES = 6 };

/* ---- a small world of chains: id % 3 is its model; per model a spine of odd places with even leaves beside it ---------- */

static const uint32_t model_groups[MODELS] = {1, 2, 2};
static const uint32_t model_windows[MODELS][QR_GROUPS_MAX] = {{0}, {0, 20}, {20, 9}};

static inline int id_parent(uint32_t id)
{
    int place = (int)(id / MODELS), parent = place - 1 - (place & 1);
    return place == 0 || parent < 0 ? -1 : parent * MODELS + (int)(id % MODELS);
}
static inline uint32_t id_depth(uint32_t id) { return id_parent(id) < 0 ? 0 : 1 + id_depth((uint32_t)id_parent(id)); }
/* Chains of four ids begin alike, so that a compare that stops early is seen. */
static inline void id_chain(uint32_t id, uint8_t chain[32])
{
    uint64_t words[4] = {qr_mix_u64(id / 4 + 77), qr_mix_u64(id + 1000), qr_mix_u64(id + 2000), (uint64_t)id << 32 | 0x77777777u};
    memcpy(chain, words, 32);
}
static inline uint32_t chain_id(const uint8_t chain[32])
{
    uint32_t id;
    memcpy(&id, chain + 28, 4);
    return id;
}
static inline uint32_t id_path(uint32_t id, uint32_t path[PATH_MAX_NODES])
{
    uint32_t depth = id_depth(id);
    for (int at = (int)id, k = (int)depth; at >= 0; at = id_parent((uint32_t)at)) path[k--] = (uint32_t)at;
    return depth + 1;
}
static inline void model_fingerprint(uint32_t model, uint8_t fingerprint[32]) { memset(fingerprint, (int)(17 * (model + 1)), 32); }

/* ---- columns ------------------------------------------------------------------------------------------------------------- */

typedef struct columns {
    uint32_t row_count, change_count, window_count;
    uint64_t txs[COLUMN_ROWS], writer_epochs[COLUMN_ROWS], publishers[COLUMN_ROWS], publisher_epochs[COLUMN_ROWS], node_epochs[COLUMN_ROWS],
        sequences[COLUMN_ROWS], sizes[COLUMN_CHANGES];
    uint32_t chunk_tokens[COLUMN_ROWS], group_counts[COLUMN_ROWS], change_counts[COLUMN_ROWS], windows[COLUMN_ROWS * QR_GROUPS_MAX];
    uint32_t groups[COLUMN_CHANGES], starts[COLUMN_CHANGES], counts[COLUMN_CHANGES];
    uint8_t fingerprints[32 * COLUMN_ROWS], chains[32 * COLUMN_CHANGES], digests[32 * COLUMN_CHANGES], kinds[COLUMN_CHANGES],
        tiers[COLUMN_CHANGES];
} columns_t;

static inline void columns_clear(columns_t *c) { c->row_count = c->change_count = c->window_count = 0; }

/* One more row; model MODELS: a claim. */
static inline void columns_row(columns_t *c, uint64_t tx, uint64_t writer_epoch, uint64_t publisher, uint64_t epoch, uint64_t node_epoch,
                               uint64_t sequence, uint32_t model)
{
    uint32_t i = c->row_count++;
    qr_assert(i < COLUMN_ROWS);
    c->txs[i] = tx;
    c->writer_epochs[i] = writer_epoch;
    c->publishers[i] = publisher;
    c->publisher_epochs[i] = epoch;
    c->node_epochs[i] = node_epoch;
    c->sequences[i] = sequence;
    c->chunk_tokens[i] = model < MODELS ? CHUNK : 0;
    c->group_counts[i] = model < MODELS ? model_groups[model] : 0;
    c->change_counts[i] = 0;
    memset(c->fingerprints + 32 * (size_t)i, 0, 32);
    if (model >= MODELS) return;
    model_fingerprint(model, c->fingerprints + 32 * (size_t)i);
    memcpy(c->windows + c->window_count, model_windows[model], 4 * model_groups[model]);
    c->window_count += model_groups[model];
}

static inline uint32_t columns_change(columns_t *c, uint8_t kind, uint32_t id)
{
    uint32_t i = c->change_count++;
    qr_assert(i < COLUMN_CHANGES);
    c->kinds[i] = kind;
    c->tiers[i] = 0;
    c->groups[i] = c->starts[i] = c->counts[i] = 0;
    c->sizes[i] = 0;
    id_chain(id, c->chains + 32 * (size_t)i);
    memset(c->digests + 32 * (size_t)i, 0, 32);
    if (c->row_count) c->change_counts[c->row_count - 1]++;
    return i;
}
/* parent -1: the chain's own. */
static inline void columns_node(columns_t *c, uint32_t id, uint32_t depth, int parent)
{
    uint32_t i = columns_change(c, QR_CATALOG_NODE, id);
    c->starts[i] = depth * CHUNK;
    c->counts[i] = CHUNK;
    if (depth) id_chain((uint32_t)(parent < 0 ? id_parent(id) : parent), c->digests + 32 * (size_t)i);
}
static inline void columns_part(columns_t *c, uint32_t id, uint32_t group, uint64_t bytes)
{
    uint32_t i = columns_change(c, QR_CATALOG_PART, id);
    c->groups[i] = group;
    c->sizes[i] = bytes;
}
static inline void columns_copy(columns_t *c, uint8_t kind, uint32_t id, uint32_t group, uint8_t tier)
{
    uint32_t i = columns_change(c, kind, id);
    c->groups[i] = group;
    c->tiers[i] = tier;
}
/* A whole chunk: node, a part of every group, a copy of each in `tier`. */
static inline void columns_chunk(columns_t *c, uint32_t id, uint8_t tier)
{
    columns_node(c, id, id_depth(id), -1);
    for (uint32_t g = 0; g < model_groups[id % MODELS]; g++) {
        columns_part(c, id, g, 100 + id);
        columns_copy(c, QR_CATALOG_REPLICA, id, g, tier);
    }
}
/* A random change, mostly sensible. wild: also nodes under wrong parents, which no chain hash would allow. */
static inline void columns_random(columns_t *c, qr_prng_t *prng, uint32_t model, bool wild)
{
    uint32_t id = (uint32_t)qr_prng_below(prng, IDS / MODELS) * MODELS + model;
    uint32_t group = (uint32_t)qr_prng_below(prng, model_groups[model]);
    uint8_t tier = (uint8_t)qr_prng_between(prng, QR_TIER_RAM, QR_TIER_OBJECT);
    switch (qr_prng_below(prng, 12)) {
    case 0:
    case 1:
    case 2:
    case 3: columns_chunk(c, id, tier); break;
    case 4: columns_node(c, id, id_depth(id), -1); break;
    case 5:
        if (wild) columns_node(c, id, (uint32_t)qr_prng_below(prng, 4), (int)qr_prng_below(prng, IDS));
        break;
    case 6: columns_part(c, id, group, 100 + id); break;
    case 7:
    case 8: columns_copy(c, QR_CATALOG_REPLICA, id, group, tier); break;
    case 9:
    case 10: columns_copy(c, QR_CATALOG_WITHDRAW, id, group, tier); break;
    default:
        if (qr_prng_one_in(prng, 3)) columns_change(c, QR_CATALOG_DROP, id);
        break;
    }
}

/* The columns as message fields, inside the braces of a body. */
#define COLUMNS_CHANGES(c)                                                                                                                 \
    .kinds = {(c)->kinds, (c)->change_count}, .tiers = {(c)->tiers, (c)->change_count}, .groups = {(c)->groups, (c)->change_count},        \
    .chains = {(c)->chains, 32ull * (c)->change_count}, .digests = {(c)->digests, 32ull * (c)->change_count},                              \
    .starts = {(c)->starts, (c)->change_count}, .counts = {(c)->counts, (c)->change_count}, .sizes = {(c)->sizes, (c)->change_count}
#define COLUMNS_BATCH(c)                                                                                                                   \
    .txs = {(c)->txs, (c)->row_count}, .writer_epochs = {(c)->writer_epochs, (c)->row_count},                                              \
    .publishers = {(c)->publishers, (c)->row_count}, .publisher_epochs = {(c)->publisher_epochs, (c)->row_count},                          \
    .node_epochs = {(c)->node_epochs, (c)->row_count}, .sequences = {(c)->sequences, (c)->row_count},                                      \
    .fingerprints = {(c)->fingerprints, 32ull * (c)->row_count}, .chunk_tokens = {(c)->chunk_tokens, (c)->row_count},                      \
    .group_counts = {(c)->group_counts, (c)->row_count}, .windows = {(c)->windows, (c)->window_count},                                     \
    .change_counts = {(c)->change_counts, (c)->row_count}, COLUMNS_CHANGES(c)

/* Appends one row of a batch. */
static inline void columns_add_row(columns_t *c, const qr_catalog_batch_t *b, const qr_catalog_row_t *row)
{
    uint32_t r = c->row_count, at = c->change_count;
    columns_row(c, row->tx, row->writer_epoch, row->publisher, row->publisher_epoch, row->node_epoch, row->sequence, MODELS);
    memcpy(c->fingerprints + 32 * (size_t)r, row->fingerprint, 32);
    c->chunk_tokens[r] = row->chunk_tokens;
    c->group_counts[r] = row->group_count;
    qr_copy(c->windows + c->window_count, row->windows, 4 * (size_t)row->group_count);
    c->window_count += row->group_count;
    size_t from = row->first_change, n = row->change_count;
    qr_assert(at + n <= COLUMN_CHANGES);
    c->change_counts[r] = row->change_count;
    c->change_count += row->change_count;
    if (n == 0) return;
    memcpy(c->kinds + at, b->changes.kinds.data + from, n);
    memcpy(c->tiers + at, b->changes.tiers.data + from, n);
    memcpy(c->groups + at, b->changes.groups.data + from, 4 * n);
    memcpy(c->chains + 32 * (size_t)at, b->changes.chains.data + 32 * from, 32 * n);
    memcpy(c->digests + 32 * (size_t)at, b->changes.digests.data + 32 * from, 32 * n);
    memcpy(c->starts + at, b->changes.starts.data + from, 4 * n);
    memcpy(c->counts + at, b->changes.counts.data + from, 4 * n);
    memcpy(c->sizes + at, b->changes.sizes.data + from, 8 * n);
}

static inline void columns_add(columns_t *c, const qr_catalog_batch_t *b)
{
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(b, &row);) columns_add_row(c, b, &row);
}

/* ---- the plain model ------------------------------------------------------------------------------------------------------ */

typedef struct plain_part {
    uint32_t bytes, ram, ssd, object; /* bit: number of the owner's node */
} plain_part_t;
typedef struct plain {
    struct {
        int here, parent;
        uint32_t depth, model;
        plain_part_t parts[QR_GROUPS_MAX];
    } nodes[IDS];
    uint64_t node_epochs[OWNER_NODES];
} plain_t;

static inline uint32_t row_model(const qr_catalog_row_t *row) { return row->fingerprint[0] / 17u - 1; }

static inline void plain_drop(plain_t *p, uint32_t id)
{
    for (uint32_t k = 0; k < IDS; k++)
        if (p->nodes[k].here && p->nodes[k].parent == (int)id) plain_drop(p, k);
    memset(&p->nodes[id], 0, sizeof p->nodes[id]);
}

static inline void plain_node(plain_t *p, const qr_catalog_changes_t *c, uint32_t i, uint32_t id, uint32_t model)
{
    uint32_t depth = c->starts.data[i] / CHUNK, parent = depth ? chain_id(c->digests.data + 32 * (size_t)i) : 0;
    if (p->nodes[id].here) return;
    if (depth && (!p->nodes[parent].here || p->nodes[parent].depth + 1 != depth || p->nodes[parent].model != model)) return;
    memset(&p->nodes[id], 0, sizeof p->nodes[id]);
    p->nodes[id].here = 1;
    p->nodes[id].parent = depth ? (int)parent : -1;
    p->nodes[id].depth = depth;
    p->nodes[id].model = model;
}

static inline void plain_row(plain_t *p, const qr_catalog_batch_t *b, const qr_catalog_row_t *row)
{
    if (row->group_count == 0) return;
    uint32_t owner = qr_address_node(row->publisher), model = row_model(row);
    if (p->node_epochs[owner] != row->node_epoch) {
        for (uint32_t k = 0; k < IDS; k++)
            for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) p->nodes[k].parts[g].ram &= ~(1u << owner);
        p->node_epochs[owner] = row->node_epoch;
    }
    for (uint32_t i = row->first_change; i < row->first_change + row->change_count; i++) {
        const qr_catalog_changes_t *c = &b->changes;
        uint32_t id = chain_id(c->chains.data + 32 * (size_t)i), group = c->groups.data[i];
        if (c->kinds.data[i] == QR_CATALOG_NODE) plain_node(p, c, i, id, model);
        if (c->kinds.data[i] == QR_CATALOG_NODE || !p->nodes[id].here || p->nodes[id].model != model) continue;
        plain_part_t *part = &p->nodes[id].parts[group];
        uint32_t bit = c->tiers.data[i] == QR_TIER_OBJECT ? 1 : 1u << owner;
        uint32_t *mask = c->tiers.data[i] == QR_TIER_OBJECT ? &part->object : c->tiers.data[i] == QR_TIER_SSD ? &part->ssd : &part->ram;
        if (c->kinds.data[i] == QR_CATALOG_DROP) plain_drop(p, id);
        if (c->kinds.data[i] == QR_CATALOG_PART && part->bytes == 0) part->bytes = (uint32_t)c->sizes.data[i];
        if (c->kinds.data[i] == QR_CATALOG_REPLICA && part->bytes) *mask |= bit;
        if (c->kinds.data[i] == QR_CATALOG_WITHDRAW) *mask &= ~bit;
    }
}

static inline void plain_batch(plain_t *p, const qr_catalog_batch_t *b, uint64_t up_to_tx)
{
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(b, &row);)
        if (row.tx <= up_to_tx) plain_row(p, b, &row);
}

static inline bool plain_stands(const plain_part_t *part, uint32_t ram, uint32_t ssd)
{
    return part->bytes && ((part->ram & ram) || (part->ssd & ssd) || part->object);
}
/* Whether boundary b needs chunk j of a group: it ends after the first row that the boundary's token attends. */
static inline bool plain_needed(uint32_t window, uint32_t b, uint32_t j)
{
    int64_t first = window ? (int64_t)b * CHUNK - window + 1 : 0;
    return window == 0 || (int64_t)(j + 1) * CHUNK > (first < 0 ? 0 : first);
}

/* Depth of the longest restorable boundary on the way to `id`. */
static inline uint32_t plain_lookup(const plain_t *p, uint32_t id, uint32_t ram, uint32_t ssd)
{
    uint32_t path[PATH_MAX_NODES], n = id_path(id, path), have = 0, model = id % MODELS;
    while (have < n && p->nodes[path[have]].here && p->nodes[path[have]].depth == have && p->nodes[path[have]].model == model &&
           p->nodes[path[have]].parent == (have ? (int)path[have - 1] : -1))
        have++;
    for (uint32_t b = have; b > 0; b--) {
        bool all = true;
        for (uint32_t g = 0; g < model_groups[model]; g++)
            for (uint32_t j = 0; j < b; j++)
                if (plain_needed(model_windows[model][g], b, j)) all = all && plain_stands(&p->nodes[path[j]].parts[g], ram, ssd);
        if (all) return b;
    }
    return 0;
}

/* Bits of nodes instead of the answer's own bits. */
static inline uint32_t mask_of_nodes(const qr_matches_t *m, uint32_t mask)
{
    uint32_t nodes = 0;
    for (uint32_t k = 0; k < m->owners.count; k++)
        if (mask >> k & 1) nodes |= 1u << m->owners.data[k];
    return nodes;
}

#endif
