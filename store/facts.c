/* facts.c - the facts on LevelDB (facts.h).
 *
 * Keys, numbers big-endian so that they sort:
 *   M                               the state: log, transaction, counts, sum
 *   L layout                        layout                      O owner            epoch of a node's newest publish
 *   N chain                         node                        U publisher        its newest epoch's last sequences
 *   C parent chain                  what continues a node       D layout start chain   nodes, parents first
 *   P chain group                   part                        R chain group tier owner   copy
 *   A owner tier chain group        copies by place
 * Local: t content id (trust), x chain (reuse), jd number (decision), jn (its counter), p version (policy), q chain tier owner (demand). */
#define _GNU_SOURCE
#include "store/facts.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/prng.h"
#include "store/crc32c.h"
#include "store/fail.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <leveldb/c.h>

enum { KEY_MAX = QR_FACTS_KEY_BYTES_MAX, VALUE_MAX = 312, CACHE_BYTES = 8 << 20, GROUPS = QR_GROUPS_MAX, VERSION = 1 };

typedef struct key {
    uint32_t bytes;
    uint8_t data[KEY_MAX];
} facts_key_t;

/* A fact touched by the open transaction. */
typedef struct entry {
    facts_key_t key;
    uint32_t next, value_bytes;
    bool present, was; /* now; before this transaction */
    uint64_t old_hash;
    uint8_t value[VALUE_MAX];
} entry_t;

struct qr_facts {
    leveldb_t *db;
    leveldb_options_t *options;
    leveldb_readoptions_t *read, *scan;
    leveldb_writeoptions_t *write, *write_sync;
    leveldb_cache_t *cache;
    leveldb_filterpolicy_t *filter;
    qr_facts_state_t state;
    qr_facts_state_t next; /* of the open transaction */
    uint64_t time_us, owed_sync;
    uint32_t entry_count, entry_capacity, bucket_count, demand_count;
    entry_t *entries;
    uint32_t *buckets; /* [bucket_count] UINT32_MAX = empty */
};

struct qr_facts_dump {
    qr_facts_t *facts;
    leveldb_iterator_t *iterator;
    bool began;
    uint8_t page[QR_FACTS_PAGE_BYTES + 2 * (KEY_MAX + VALUE_MAX + 16)];
};

/* ---- values as bytes ------------------------------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct value_state {
    uint32_t version, layout_count;
    uint64_t log_id, tx, writer_epoch, fact_count, sum, node_count;
} value_state_t;
typedef struct value_layout {
    uint8_t fingerprint[32];
    uint32_t chunk_tokens, group_count, windows[QR_GROUPS_MAX];
    uint64_t tx, time_us;
} value_layout_t;
typedef struct value_node {
    uint8_t parent[32];
    uint32_t start, count, layout, unused;
    uint64_t tx, time_us;
} value_node_t;
typedef struct value_part {
    uint8_t content[32];
    uint64_t bytes, tx, time_us;
} value_part_t;
typedef struct value_copy {
    uint64_t publisher, tx, time_us;
} value_copy_t;
typedef struct value_owner {
    uint64_t node_epoch, tx, publisher, time_us;
} value_owner_t;
typedef struct value_publisher {
    uint64_t epoch, greatest, last_tx, node_epoch;
    uint64_t sequences[QR_FACTS_SEQUENCES], txs[QR_FACTS_SEQUENCES];
} value_publisher_t;
typedef struct value_reuse {
    uint64_t times, last_us;
} value_reuse_t;
#pragma GCC diagnostic pop
_Static_assert(sizeof(value_publisher_t) <= VALUE_MAX, "every value fits an entry");

static void key_byte(facts_key_t *key, uint32_t value) { key->data[key->bytes++] = (uint8_t)value; }
static void key_u32(facts_key_t *key, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8) key_byte(key, value >> shift & 255);
}
static void key_u64(facts_key_t *key, uint64_t value)
{
    key_u32(key, (uint32_t)(value >> 32));
    key_u32(key, (uint32_t)value);
}
static void key_hash(facts_key_t *key, const uint8_t hash[32])
{
    memcpy(key->data + key->bytes, hash, 32);
    key->bytes += 32;
}
static uint32_t at_u32(const uint8_t *at) { return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]; }

static facts_key_t key_of(char letter)
{
    facts_key_t key = {1, {(uint8_t)letter}};
    return key;
}
static facts_key_t key_of_hash(char letter, const uint8_t hash[32])
{
    facts_key_t key = key_of(letter);
    key_hash(&key, hash);
    return key;
}
static facts_key_t key_of_u32(char letter, uint32_t value)
{
    facts_key_t key = key_of(letter);
    key_u32(&key, value);
    return key;
}
static facts_key_t key_part(const uint8_t chain[32], uint32_t group)
{
    facts_key_t key = key_of_hash('P', chain);
    key_byte(&key, group);
    return key;
}
static facts_key_t key_copy(const uint8_t chain[32], uint32_t group, uint32_t tier, uint32_t owner)
{
    facts_key_t key = key_of_hash('R', chain);
    key_byte(&key, group);
    key_byte(&key, tier);
    key_u32(&key, owner);
    return key;
}
static facts_key_t key_place(const uint8_t chain[32], uint32_t group, uint32_t tier, uint32_t owner)
{
    facts_key_t key = key_of_u32('A', owner);
    key_byte(&key, tier);
    key_hash(&key, chain);
    key_byte(&key, group);
    return key;
}
static facts_key_t key_child(const uint8_t parent[32], const uint8_t chain[32])
{
    facts_key_t key = key_of_hash('C', parent);
    key_hash(&key, chain);
    return key;
}
static facts_key_t key_order(uint32_t layout, uint32_t start, const uint8_t chain[32])
{
    facts_key_t key = key_of('D');
    key_byte(&key, layout);
    key_u32(&key, start);
    key_hash(&key, chain);
    return key;
}
/* Facts of the log begin with a capital letter; the state itself is not summed. */
static bool summed(const uint8_t *key, size_t bytes) { return bytes && key[0] >= 'A' && key[0] <= 'Z' && key[0] != 'M'; }

static uint64_t pair_hash(const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    uint64_t hash = qr_mix_u64(key_bytes << 32 | value_bytes);
    const void *parts[2] = {key, value};
    size_t counts[2] = {key_bytes, value_bytes};
    for (uint32_t k = 0; k < 2; k++)
        for (size_t i = 0; i < counts[k]; i += 8) {
            uint64_t word = 0;
            memcpy(&word, (const uint8_t *)parts[k] + i, qr_min_u64(8, counts[k] - i));
            hash = qr_mix_u64(hash ^ word) + 0x9e3779b97f4a7c15u;
        }
    return hash;
}

static uint32_t pair_crc(const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    return qr_crc32c(qr_crc32c(0, key, key_bytes), value, value_bytes);
}

/* A stored value without its check; NULL if the check fails. */
static const uint8_t *opened(const void *key, size_t key_bytes, const char *stored, size_t stored_bytes, size_t *ret_bytes)
{
    uint32_t crc;
    if (stored_bytes < 4) return NULL;
    memcpy(&crc, stored, 4);
    *ret_bytes = stored_bytes - 4;
    if (crc != pair_crc(key, key_bytes, stored + 4, stored_bytes - 4) && !QR_MUTANT(575)) return NULL;
    return (const uint8_t *)stored + 4;
}

/* ---- LevelDB ------------------------------------------------------------------------------------------------------------------ */

static int damaged(qr_facts_t *facts)
{
    facts->state.damaged = true;
    return -QR_E_FORMAT;
}

/* Turns an error of LevelDB into a code. Whatever it is, the view is not to be trusted any more (F3). */
static int failed(qr_facts_t *facts, char *error)
{
    if (!error) return 0;
    leveldb_free(error);
    return damaged(facts);
}

/* Reads a stored value. 0, -QR_E_NOT_FOUND, -QR_E_FORMAT. */
static int stored_get(qr_facts_t *facts, const facts_key_t *key, uint8_t *value, uint32_t capacity, uint32_t *ret_bytes)
{
    char *error = NULL;
    size_t stored_bytes = 0, bytes;
    char *stored = leveldb_get(facts->db, facts->read, (const char *)key->data, key->bytes, &stored_bytes, &error);
    if (error) return failed(facts, error);
    if (!stored) return -QR_E_NOT_FOUND;
    const uint8_t *data = opened(key->data, key->bytes, stored, stored_bytes, &bytes);
    if (!data || bytes > capacity) {
        leveldb_free(stored);
        return damaged(facts);
    }
    memcpy(value, data, bytes);
    *ret_bytes = (uint32_t)bytes;
    leveldb_free(stored);
    return 0;
}

static void batch_put(leveldb_writebatch_t *batch, const facts_key_t *key, const void *value, size_t bytes)
{
    uint8_t stored[4 + VALUE_MAX];
    uint32_t crc = pair_crc(key->data, key->bytes, value, bytes);
    memcpy(stored, &crc, 4);
    qr_copy(stored + 4, value, bytes);
    leveldb_writebatch_put(batch, (const char *)key->data, key->bytes, (const char *)stored, 4 + bytes);
}

/* 0 or -QR_E_IO: this view is void (F3), but what is written into it is not to blame. */
static int batch_write(qr_facts_t *facts, leveldb_writebatch_t *batch, bool sync)
{
    char *error = NULL;
    leveldb_write(facts->db, sync ? facts->write_sync : facts->write, batch, &error);
    int code = failed(facts, error);
    return code && !QR_MUTANT(588) ? -QR_E_IO : code;
}

static void batch_state(leveldb_writebatch_t *batch, const qr_facts_state_t *s)
{
    value_state_t value = {VERSION, s->layout_count, s->log_id, s->tx, s->writer_epoch, s->fact_count, s->sum, s->node_count};
    facts_key_t key = key_of('M');
    batch_put(batch, &key, &value, sizeof value);
}

/* ---- the open transaction ------------------------------------------------------------------------------------------------------ */

static uint32_t bucket(const qr_facts_t *facts, const facts_key_t *key)
{
    return (uint32_t)pair_hash(key->data, key->bytes, NULL, 0) & (facts->bucket_count - 1);
}

static int grow(qr_facts_t *facts)
{
    uint32_t capacity = facts->entry_capacity ? 2 * facts->entry_capacity : 256;
    entry_t *entries = realloc(facts->entries, capacity * sizeof *entries);
    if (!entries) return -QR_E_MEMORY;
    facts->entries = entries;
    uint32_t *buckets = realloc(facts->buckets, 2 * capacity * sizeof *buckets);
    if (!buckets) return -QR_E_MEMORY;
    facts->buckets = buckets;
    facts->entry_capacity = capacity;
    facts->bucket_count = 2 * capacity;
    memset(buckets, 0xff, 2 * capacity * sizeof *buckets);
    for (uint32_t i = 0; i < facts->entry_count; i++) {
        uint32_t b = bucket(facts, &entries[i].key);
        entries[i].next = buckets[b];
        buckets[b] = i;
    }
    return 0;
}

static entry_t *entry_find(const qr_facts_t *facts, const facts_key_t *key)
{
    if (!facts->bucket_count) return NULL;
    for (uint32_t i = facts->buckets[bucket(facts, key)]; i != UINT32_MAX; i = facts->entries[i].next) {
        entry_t *e = &facts->entries[i];
        if (e->key.bytes == key->bytes && memcmp(e->key.data, key->data, key->bytes) == 0) return e;
    }
    return NULL;
}

/* The entry of a key, read in when it is new. Valid until the next touch. */
static int touch(qr_facts_t *facts, const facts_key_t *key, entry_t **ret_entry)
{
    *ret_entry = entry_find(facts, key);
    if (*ret_entry) return 0;
    if (facts->entry_count == facts->entry_capacity) {
        int code = grow(facts);
        if (code) return code;
    }
    entry_t *e = &facts->entries[facts->entry_count];
    memset(e, 0, offsetof(entry_t, value));
    int code = stored_get(facts, key, e->value, VALUE_MAX, &e->value_bytes);
    if (code && code != -QR_E_NOT_FOUND) return code;
    e->key = *key;
    e->present = e->was = code == 0;
    e->old_hash = e->was ? pair_hash(key->data, key->bytes, e->value, e->value_bytes) : 0;
    uint32_t b = bucket(facts, key);
    e->next = facts->buckets[b];
    facts->buckets[b] = facts->entry_count++;
    *ret_entry = e;
    return 0;
}

/* Reads a fact of exactly `bytes`: 0, -QR_E_NOT_FOUND, -QR_E_FORMAT. */
static int get(qr_facts_t *facts, facts_key_t key, void *value, uint32_t bytes)
{
    uint8_t stored[VALUE_MAX];
    uint32_t count;
    const entry_t *e = entry_find(facts, &key);
    if (e && !e->present) return -QR_E_NOT_FOUND;
    int code = e ? 0 : stored_get(facts, &key, stored, sizeof stored, &count);
    if (code) return code;
    if ((e ? e->value_bytes : count) != bytes) return damaged(facts);
    qr_copy(value, e ? e->value : stored, bytes);
    return 0;
}

static int put(qr_facts_t *facts, facts_key_t key, const void *value, uint32_t bytes)
{
    entry_t *e;
    int code = touch(facts, &key, &e);
    if (code) return code;
    e->present = true;
    e->value_bytes = bytes;
    qr_copy(e->value, value, bytes);
    return 0;
}

static int erase(qr_facts_t *facts, facts_key_t key)
{
    entry_t *e;
    int code = touch(facts, &key, &e);
    if (!code) e->present = false;
    return code;
}

static bool begins(const uint8_t *key, size_t bytes, const facts_key_t *prefix)
{
    return bytes >= prefix->bytes && bytes <= KEY_MAX && memcmp(key, prefix->data, prefix->bytes) == 0;
}

typedef struct keys {
    facts_key_t *data;
    uint32_t count, capacity;
} keys_t;

static int keys_add(keys_t *keys, const uint8_t *data, size_t bytes)
{
    if (keys->count == keys->capacity) {
        uint32_t capacity = keys->capacity ? 2 * keys->capacity : 64;
        facts_key_t *grown = realloc(keys->data, capacity * sizeof *grown);
        if (!grown) return -QR_E_MEMORY;
        keys->data = grown;
        keys->capacity = capacity;
    }
    keys->data[keys->count].bytes = (uint32_t)bytes;
    memcpy(keys->data[keys->count++].data, data, bytes);
    return 0;
}

/* An iterator's own word about how it ended: a list that is short because of damage looks like the end otherwise. */
static int scan_end(qr_facts_t *facts, leveldb_iterator_t *iterator)
{
    char *error = NULL;
    leveldb_iter_get_error(iterator, &error);
    leveldb_iter_destroy(iterator);
    return failed(facts, error);
}

/* Keys that begin so, as the open transaction sees them, are added. */
static int collect(qr_facts_t *facts, const facts_key_t *prefix, keys_t *keys)
{
    leveldb_iterator_t *it = leveldb_create_iterator(facts->db, facts->read);
    int code = 0;
    for (leveldb_iter_seek(it, (const char *)prefix->data, prefix->bytes); !code && leveldb_iter_valid(it); leveldb_iter_next(it)) {
        facts_key_t key;
        size_t bytes;
        const uint8_t *data = (const uint8_t *)leveldb_iter_key(it, &bytes);
        if (!begins(data, bytes, prefix)) break;
        key.bytes = (uint32_t)bytes;
        memcpy(key.data, data, bytes);
        const entry_t *e = entry_find(facts, &key);
        if (!e || e->present) code = keys_add(keys, data, bytes);
    }
    int end = scan_end(facts, it);
    for (uint32_t i = 0; !code && i < facts->entry_count; i++) {
        const entry_t *e = &facts->entries[i];
        if (e->present && !e->was && begins(e->key.data, e->key.bytes, prefix)) code = keys_add(keys, e->key.data, e->key.bytes);
    }
    return code ? code : end;
}

/* ---- changes ---------------------------------------------------------------------------------------------------------------------- */

static int keep_layout(qr_facts_t *facts, const qr_fact_row_t *row, uint32_t *ret_layout)
{
    value_layout_t value;
    for (uint32_t i = 0; i < facts->next.layout_count; i++) {
        facts_key_t key = key_of('L');
        key_byte(&key, i);
        int code = get(facts, key, &value, sizeof value);
        if (code) return code == -QR_E_NOT_FOUND ? damaged(facts) : code;
        if (memcmp(value.fingerprint, row->fingerprint, 32) != 0) continue;
        bool same = value.chunk_tokens == row->chunk_tokens && value.group_count == row->group_count &&
                    memcmp(value.windows, row->windows, 4 * (size_t)row->group_count) == 0;
        *ret_layout = same ? i : UINT32_MAX;
        return 0;
    }
    *ret_layout = UINT32_MAX;
    if (facts->next.layout_count == QR_FACTS_LAYOUTS_MAX || row->group_count == 0 || row->group_count > GROUPS) return 0;
    value = (value_layout_t){
        .chunk_tokens = row->chunk_tokens, .group_count = row->group_count, .tx = facts->next.tx, .time_us = facts->time_us};
    memcpy(value.fingerprint, row->fingerprint, 32);
    memcpy(value.windows, row->windows, 4 * (size_t)row->group_count);
    *ret_layout = facts->next.layout_count++;
    facts_key_t key = key_of('L');
    key_byte(&key, *ret_layout);
    return put(facts, key, &value, sizeof value);
}

static int copy_erase(qr_facts_t *facts, const uint8_t chain[32], uint32_t group, uint32_t tier, uint32_t owner)
{
    int code = erase(facts, key_copy(chain, group, tier, owner));
    return code ? code : erase(facts, key_place(chain, group, tier, owner));
}

/* A publish of that node under another epoch: its memory of before is gone. */
static int heard_owner(qr_facts_t *facts, const qr_fact_row_t *row)
{
    value_owner_t value = {0};
    int code = get(facts, key_of_u32('O', row->owner), &value, sizeof value);
    if (code && code != -QR_E_NOT_FOUND) return code;
    bool other = code == 0 && value.node_epoch != row->node_epoch && !QR_MUTANT(577);
    value = (value_owner_t){row->node_epoch, facts->next.tx, row->publisher, facts->time_us};
    code = put(facts, key_of_u32('O', row->owner), &value, sizeof value);
    if (code || !other) return code;
    keys_t keys = {0};
    facts_key_t prefix = key_of_u32('A', row->owner);
    key_byte(&prefix, QR_FACT_RAM);
    code = collect(facts, &prefix, &keys);
    for (uint32_t i = 0; !code && i < keys.count; i++)
        code = copy_erase(facts, keys.data[i].data + 6, keys.data[i].data[38], QR_FACT_RAM, row->owner);
    free(keys.data);
    return code;
}

static int learn_publisher(qr_facts_t *facts, const qr_fact_row_t *row)
{
    value_publisher_t value = {0};
    facts_key_t key = key_of('U');
    if (row->publisher == 0 || row->sequence == 0) return 0;
    key_u64(&key, row->publisher);
    int code = get(facts, key, &value, sizeof value);
    if (code && code != -QR_E_NOT_FOUND) return code;
    if (code || value.epoch != row->publisher_epoch) value = (value_publisher_t){.epoch = row->publisher_epoch};
    uint32_t place = (uint32_t)(row->sequence % QR_FACTS_SEQUENCES);
    value.last_tx = qr_max_u64(value.last_tx, facts->next.tx);
    value.greatest = qr_max_u64(value.greatest, row->sequence);
    value.node_epoch = row->node_epoch;
    if (row->sequence >= value.sequences[place]) {
        value.sequences[place] = row->sequence;
        value.txs[place] = facts->next.tx;
    }
    return put(facts, key, &value, sizeof value);
}

static int change_node(qr_facts_t *facts, const qr_fact_row_t *row, uint32_t i, uint32_t layout)
{
    const uint8_t *chain = row->chains + 32 * (size_t)i, *parent = row->digests + 32 * (size_t)i;
    value_node_t value, above;
    int code = get(facts, key_of_hash('N', chain), &value, sizeof value);
    if (code != -QR_E_NOT_FOUND) return code; /* the same bytes said again */
    if (row->starts[i]) {
        code = get(facts, key_of_hash('N', parent), &above, sizeof above);
        if (code == -QR_E_NOT_FOUND) return QR_MUTANT(578) ? put(facts, key_of_hash('N', chain), &value, sizeof value) : 0;
        if (code) return code;
        if (above.start + above.count != row->starts[i] || above.layout != layout) return 0;
    }
    value =
        (value_node_t){.start = row->starts[i], .count = row->counts[i], .layout = layout, .tx = facts->next.tx, .time_us = facts->time_us};
    memcpy(value.parent, parent, 32);
    code = put(facts, key_of_hash('N', chain), &value, sizeof value);
    if (!code) code = put(facts, key_child(parent, chain), NULL, 0);
    if (!code) code = put(facts, key_order(layout, value.start, chain), NULL, 0);
    facts->next.node_count += code == 0;
    return code;
}

static int remove_node(qr_facts_t *facts, const uint8_t chain[32], const value_node_t *node)
{
    keys_t keys = {0};
    facts_key_t copies = key_of_hash('R', chain);
    int code = collect(facts, &copies, &keys);
    for (uint32_t i = 0; !code && i < keys.count; i++)
        code = copy_erase(facts, chain, keys.data[i].data[33], keys.data[i].data[34], at_u32(keys.data[i].data + 35));
    free(keys.data);
    for (uint32_t g = 0; !code && g < GROUPS; g++) code = erase(facts, key_part(chain, g));
    if (!code) code = erase(facts, key_of_hash('N', chain));
    if (!code) code = erase(facts, key_child(node->parent, chain));
    if (!code) code = erase(facts, key_order(node->layout, node->start, chain));
    facts->next.node_count -= code == 0;
    return code;
}

/* A node and everything that continues it. */
static int change_drop(qr_facts_t *facts, const uint8_t root[32])
{
    keys_t waiting = {0};
    facts_key_t key = key_of_hash('N', root);
    int code = keys_add(&waiting, key.data, key.bytes);
    while (!code && waiting.count) {
        facts_key_t at = waiting.data[--waiting.count];
        uint8_t chain[32];
        value_node_t node;
        memcpy(chain, at.data + at.bytes - 32, 32); /* N chain, or C parent chain */
        code = get(facts, key_of_hash('N', chain), &node, sizeof node);
        if (code == -QR_E_NOT_FOUND) code = damaged(facts);
        facts_key_t children = key_of_hash('C', chain);
        if (!code && !QR_MUTANT(579)) code = collect(facts, &children, &waiting);
        if (!code) code = remove_node(facts, chain, &node);
    }
    free(waiting.data);
    return code;
}

static int change_copy(qr_facts_t *facts, const qr_fact_row_t *row, uint32_t i)
{
    const uint8_t *chain = row->chains + 32 * (size_t)i;
    uint32_t group = row->groups[i], tier = row->tiers[i], owner = tier == QR_FACT_OBJECT ? 0 : row->owner;
    value_part_t part;
    if (row->kinds[i] == QR_FACT_WITHDRAW) return copy_erase(facts, chain, group, tier, owner);
    int code = get(facts, key_part(chain, group), &part, sizeof part);
    if (code) return code == -QR_E_NOT_FOUND ? 0 : code;
    value_copy_t value = {row->publisher, facts->next.tx, facts->time_us};
    code = put(facts, key_copy(chain, group, tier, owner), &value, sizeof value);
    return code ? code : put(facts, key_place(chain, group, tier, owner), NULL, 0);
}

static int change_part(qr_facts_t *facts, const qr_fact_row_t *row, uint32_t i)
{
    const uint8_t *chain = row->chains + 32 * (size_t)i;
    value_part_t value;
    int code = get(facts, key_part(chain, row->groups[i]), &value, sizeof value);
    if (code != -QR_E_NOT_FOUND) return code;
    value = (value_part_t){.bytes = row->sizes[i], .tx = facts->next.tx, .time_us = facts->time_us};
    memcpy(value.content, row->digests + 32 * (size_t)i, 32);
    return put(facts, key_part(chain, row->groups[i]), &value, sizeof value);
}

int qr_facts_begin(qr_facts_t *facts, uint64_t log_id, uint64_t tx, uint64_t writer_epoch, uint64_t time_us)
{
    if (facts->state.damaged) return -QR_E_FORMAT;
    facts->entry_count = 0;
    if (facts->buckets) memset(facts->buckets, 0xff, facts->bucket_count * sizeof *facts->buckets);
    facts->next = facts->state;
    facts->next.log_id = log_id;
    facts->next.tx = tx;
    facts->next.writer_epoch = writer_epoch;
    facts->time_us = time_us;
    return 0;
}

int qr_facts_apply_row(qr_facts_t *facts, const qr_fact_row_t *row)
{
    uint32_t layout = UINT32_MAX;
    if (facts->state.damaged) return -QR_E_FORMAT;
    int code = learn_publisher(facts, row);
    if (code || row->group_count == 0) return code; /* a claim */
    code = heard_owner(facts, row);
    if (!code) code = keep_layout(facts, row, &layout);
    if (layout == UINT32_MAX) return code;
    for (uint32_t i = 0; !code && i < row->change_count; i++) {
        value_node_t node;
        if (row->kinds[i] == QR_FACT_NODE) {
            code = change_node(facts, row, i, layout);
            continue;
        }
        code = get(facts, key_of_hash('N', row->chains + 32 * (size_t)i), &node, sizeof node);
        if (code == -QR_E_NOT_FOUND || (!code && node.layout != layout)) {
            code = 0;
            continue;
        }
        if (code) break;
        switch (row->kinds[i]) {
        case QR_FACT_PART: code = change_part(facts, row, i); break;
        case QR_FACT_REPLICA:
        case QR_FACT_WITHDRAW: code = change_copy(facts, row, i); break;
        default: code = change_drop(facts, row->chains + 32 * (size_t)i); break;
        }
    }
    return code;
}

int qr_facts_commit(qr_facts_t *facts, bool sync)
{
    if (facts->state.damaged) return -QR_E_FORMAT;
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    for (uint32_t i = 0; i < facts->entry_count; i++) {
        const entry_t *e = &facts->entries[i];
        facts->next.fact_count += (uint64_t)e->present - e->was;
        facts->next.sum -= e->old_hash;
        if (e->present) {
            facts->next.sum += pair_hash(e->key.data, e->key.bytes, e->value, e->value_bytes);
            batch_put(batch, &e->key, e->value, e->value_bytes);
        } else if (e->was) {
            leveldb_writebatch_delete(batch, (const char *)e->key.data, e->key.bytes);
        }
    }
    batch_state(batch, &facts->next);
    int code = qr_store_fail(facts_write) ? -QR_E_IO : batch_write(facts, batch, sync);
    leveldb_writebatch_destroy(batch);
    facts->entry_count = 0;
    if (facts->buckets) memset(facts->buckets, 0xff, facts->bucket_count * sizeof *facts->buckets);
    if (!code) facts->state = facts->next;
    (void)qr_store_fail(facts_written);
    return code;
}

/* ---- verify ------------------------------------------------------------------------------------------------------------------------ */

static void wrong(char *message, size_t message_bytes, const char *what) { (void)snprintf(message, message_bytes, "%s", what); }

/* The state as it is stored, into facts->state; a view without facts has none. */
static int read_state(qr_facts_t *facts)
{
    value_state_t value;
    int code = get(facts, key_of('M'), &value, sizeof value);
    if (code == -QR_E_NOT_FOUND) {
        facts->state = (qr_facts_state_t){0};
        return 0;
    }
    if (code) return code;
    if (value.version != VERSION) return damaged(facts);
    facts->state = (qr_facts_state_t){value.log_id, value.tx,         value.writer_epoch, value.fact_count,
                                      value.sum,    value.node_count, value.layout_count, false};
    return 0;
}

int qr_facts_verify(qr_facts_t *facts, char *message, size_t message_bytes)
{
    uint64_t count = 0, sum = 0, nodes = 0;
    leveldb_iterator_t *it = leveldb_create_iterator(facts->db, facts->scan);
    bool bad = false;
    for (leveldb_iter_seek_to_first(it); leveldb_iter_valid(it); leveldb_iter_next(it)) {
        size_t key_bytes, stored_bytes, bytes;
        const char *key = leveldb_iter_key(it, &key_bytes), *stored = leveldb_iter_value(it, &stored_bytes);
        const uint8_t *value = opened(key, key_bytes, stored, stored_bytes, &bytes);
        bad = bad || !value;
        if (!value || !summed((const uint8_t *)key, key_bytes)) continue;
        count++;
        nodes += key[0] == 'N';
        sum += pair_hash(key, key_bytes, value, bytes);
    }
    int code = scan_end(facts, it);
    if (code) return wrong(message, message_bytes, "a table of the facts is damaged"), code;
    if (bad) return wrong(message, message_bytes, "a fact's checksum is wrong"), damaged(facts);
    bool same = count == facts->state.fact_count && sum == facts->state.sum && nodes == facts->state.node_count;
    if (same || QR_MUTANT(580)) return 0;
    (void)snprintf(message, message_bytes, "%llu facts were found where transaction %llu left %llu", (unsigned long long)count,
                   (unsigned long long)facts->state.tx, (unsigned long long)facts->state.fact_count);
    return damaged(facts);
}

/* ---- life ---------------------------------------------------------------------------------------------------------------------------- */

/* Whether a view lies in the folder: 0 none, 1 one that may be opened, -QR_E_FORMAT remains of one, -QR_E_IO. */
static int look(const char *folder)
{
    DIR *dir = opendir(folder);
    bool current = false, others = false;
    if (!dir) return errno == ENOENT ? 0 : -QR_E_IO;
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (strcmp(name, "CURRENT") == 0) current = true;
        if (name[0] != '.' && strcmp(name, "LOCK") != 0 && strncmp(name, "LOG", 3) != 0) others = true;
    }
    (void)closedir(dir);
    return current ? 1 : others ? -QR_E_FORMAT : 0; /* without CURRENT LevelDB would begin anew over what is left */
}

static void free_options(qr_facts_t *facts)
{
    leveldb_options_destroy(facts->options);
    leveldb_readoptions_destroy(facts->read);
    leveldb_readoptions_destroy(facts->scan);
    leveldb_writeoptions_destroy(facts->write);
    leveldb_writeoptions_destroy(facts->write_sync);
    leveldb_cache_destroy(facts->cache);
    leveldb_filterpolicy_destroy(facts->filter);
    free(facts->entries);
    free(facts->buckets);
    free(facts);
}

static void make_options(qr_facts_t *facts)
{
    facts->options = leveldb_options_create();
    facts->read = leveldb_readoptions_create();
    facts->scan = leveldb_readoptions_create();
    facts->write = leveldb_writeoptions_create();
    facts->write_sync = leveldb_writeoptions_create();
    facts->cache = leveldb_cache_create_lru(CACHE_BYTES);
    facts->filter = leveldb_filterpolicy_create_bloom(10);
    leveldb_options_set_paranoid_checks(facts->options, !QR_MUTANT(575));
    leveldb_options_set_cache(facts->options, facts->cache);
    leveldb_options_set_filter_policy(facts->options, facts->filter);
    leveldb_options_set_max_open_files(facts->options, 64);
    leveldb_readoptions_set_verify_checksums(facts->read, !QR_MUTANT(575));
    leveldb_readoptions_set_verify_checksums(facts->scan, !QR_MUTANT(575));
    leveldb_readoptions_set_fill_cache(facts->scan, 0);
    leveldb_writeoptions_set_sync(facts->write_sync, 1);
}

static int count_demands(qr_facts_t *facts)
{
    keys_t keys = {0};
    facts_key_t prefix = key_of('q');
    int code = collect(facts, &prefix, &keys);
    facts->demand_count = keys.count;
    free(keys.data);
    return code;
}

int qr_facts_open(const char *folder, qr_facts_t **ret_facts, char *message, size_t message_bytes)
{
    int there = look(folder);
    if (there < 0)
        return wrong(message, message_bytes, there == -QR_E_IO ? "the folder cannot be read" : "its file CURRENT is missing"), there;
    qr_facts_t *facts = calloc(1, sizeof *facts);
    if (!facts) return wrong(message, message_bytes, "not enough memory"), -QR_E_MEMORY;
    make_options(facts);
    leveldb_options_set_create_if_missing(facts->options, there == 0);
    char *error = NULL;
    facts->db = leveldb_open(facts->options, folder, &error);
    if (error) {
        bool locked = strstr(error, "lock ") != NULL; /* "IO error: lock FOLDER/LOCK: ..." */
        bool full = strstr(error, strerror(ENOSPC)) != NULL && !QR_MUTANT(750);
        (void)snprintf(message, message_bytes, "%s", locked ? "another process has it open" : error);
        leveldb_free(error);
        free_options(facts);
        return locked ? -QR_E_IN_USE : full ? -QR_E_NO_SPACE : -QR_E_FORMAT;
    }
    wrong(message, message_bytes, "its state cannot be read");
    int code = read_state(facts);
    if (!code) code = qr_facts_verify(facts, message, message_bytes);
    if (!code) code = count_demands(facts);
    if (code) {
        qr_facts_close(&facts, false);
        return code;
    }
    *ret_facts = facts;
    return 0;
}

void qr_facts_close(qr_facts_t **self, bool sync)
{
    qr_facts_t *facts = *self;
    if (!facts) return;
    *self = NULL;
    if (sync && !facts->state.damaged && facts->state.tx) {
        leveldb_writebatch_t *batch = leveldb_writebatch_create();
        batch_state(batch, &facts->state);
        (void)batch_write(facts, batch, true);
        leveldb_writebatch_destroy(batch);
    }
    leveldb_close(facts->db);
    free_options(facts);
}

int qr_facts_remove(const char *folder)
{
    char path[1280];
    DIR *dir = opendir(folder);
    if (!dir) return errno == ENOENT ? 0 : -QR_E_IO;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path) (void)unlink(path);
    }
    (void)closedir(dir);
    return rmdir(folder) ? -QR_E_IO : 0;
}

int qr_facts_set_aside(const char *parent, const char *name, uint32_t kept, char *ret_name, size_t name_bytes)
{
    char from[1280], to[1280];
    uint32_t numbers[64], count = 0, greatest = 0;
    DIR *dir = opendir(parent);
    if (!dir) return -QR_E_IO;
    for (struct dirent *entry; (entry = readdir(dir));) {
        uint32_t number;
        if (sscanf(entry->d_name, "damaged-%9u", &number) != 1) continue;
        greatest = qr_max_u32(greatest, number);
        if (count < QR_COUNT(numbers)) numbers[count++] = number;
    }
    (void)closedir(dir);
    for (uint32_t i = 0; i < count; i++) {
        if (numbers[i] + kept > greatest + 1) continue;
        (void)snprintf(to, sizeof to, "%s/damaged-%u", parent, numbers[i]);
        (void)qr_facts_remove(to);
    }
    (void)snprintf(ret_name, name_bytes, "damaged-%u", greatest + 1);
    (void)snprintf(from, sizeof from, "%s/%s", parent, name);
    (void)snprintf(to, sizeof to, "%s/%s", parent, ret_name);
    if (qr_store_fail(facts_quarantine)) return -QR_E_IO;
    return rename(from, to) == 0 ? 0 : errno == ENOENT ? -QR_E_NOT_FOUND : -QR_E_IO;
}

void qr_facts_state(const qr_facts_t *facts, qr_facts_state_t *ret_state) { *ret_state = facts->state; }

/* ---- dump and load ------------------------------------------------------------------------------------------------------------------- */

/* A page is u32 key bytes, u32 value bytes, key, value, and so on; the state is the first of the first page. */
static uint32_t page_add(uint8_t *page, uint32_t used, const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes)
{
    memcpy(page + used, &key_bytes, 4);
    memcpy(page + used + 4, &value_bytes, 4);
    memcpy(page + used + 8, key, key_bytes);
    qr_copy(page + used + 8 + key_bytes, value, value_bytes);
    return used + 8 + key_bytes + value_bytes;
}

qr_facts_dump_t *qr_facts_dump_begin(qr_facts_t *facts)
{
    qr_facts_dump_t *dump = calloc(1, sizeof *dump);
    if (!dump) return NULL;
    dump->facts = facts;
    dump->iterator = leveldb_create_iterator(facts->db, facts->scan);
    leveldb_iter_seek_to_first(dump->iterator);
    return dump;
}

int qr_facts_dump_next(qr_facts_dump_t *dump, const uint8_t **ret_page, uint32_t *ret_bytes)
{
    uint32_t used = 0;
    if (dump->facts->state.damaged) return -QR_E_FORMAT;
    if (!dump->began) {
        const qr_facts_state_t *s = &dump->facts->state;
        value_state_t value = {VERSION, s->layout_count, s->log_id, s->tx, s->writer_epoch, s->fact_count, s->sum, s->node_count};
        used = page_add(dump->page, used, "M", 1, &value, sizeof value);
        dump->began = true;
    }
    for (; leveldb_iter_valid(dump->iterator) && used < QR_FACTS_PAGE_BYTES; leveldb_iter_next(dump->iterator)) {
        size_t key_bytes, stored_bytes, bytes;
        const char *key = leveldb_iter_key(dump->iterator, &key_bytes), *stored = leveldb_iter_value(dump->iterator, &stored_bytes);
        if (!summed((const uint8_t *)key, key_bytes)) continue;
        const uint8_t *value = opened(key, key_bytes, stored, stored_bytes, &bytes);
        if (!value || key_bytes > KEY_MAX || bytes > VALUE_MAX) return damaged(dump->facts);
        used = page_add(dump->page, used, key, (uint32_t)key_bytes, value, (uint32_t)bytes);
    }
    char *error = NULL;
    leveldb_iter_get_error(dump->iterator, &error);
    if (error) return failed(dump->facts, error);
    *ret_page = dump->page;
    *ret_bytes = used;
    return used != 0;
}

void qr_facts_dump_end(qr_facts_dump_t **dump)
{
    if (!*dump) return;
    leveldb_iter_destroy((*dump)->iterator);
    free(*dump);
    *dump = NULL;
}

int qr_facts_load(qr_facts_t *facts, const uint8_t *page, uint32_t bytes)
{
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    int code = 0;
    for (uint32_t at = 0; !code && at < bytes;) {
        uint32_t key_bytes = 0, value_bytes = 0;
        facts_key_t key = {0};
        if (bytes - at >= 8) {
            memcpy(&key_bytes, page + at, 4);
            memcpy(&value_bytes, page + at + 4, 4);
        }
        bool fits = key_bytes && key_bytes <= KEY_MAX && value_bytes <= VALUE_MAX && bytes - at - 8 >= key_bytes + value_bytes;
        if (!fits) {
            code = -QR_E_FORMAT;
            break;
        }
        key.bytes = key_bytes;
        memcpy(key.data, page + at + 8, key_bytes);
        batch_put(batch, &key, page + at + 8 + key_bytes, value_bytes);
        at += 8 + key_bytes + value_bytes;
    }
    if (!code) code = qr_store_fail(facts_load) ? -QR_E_IO : batch_write(facts, batch, false);
    leveldb_writebatch_destroy(batch);
    return code;
}

int qr_facts_load_end(qr_facts_t *facts, uint64_t log_id)
{
    char message[128];
    int code = read_state(facts);
    if (!code) code = qr_facts_verify(facts, message, sizeof message);
    if (code) return code;
    facts->state.log_id = log_id;
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    batch_state(batch, &facts->state);
    code = batch_write(facts, batch, true);
    leveldb_writebatch_destroy(batch);
    return code;
}

/* ---- questions
 * --------------------------------------------------------------------------------------------------------------------------- */

int qr_facts_layout(qr_facts_t *facts, uint32_t layout, qr_fact_layout_t *ret_layout)
{
    value_layout_t value;
    facts_key_t key = key_of('L');
    key_byte(&key, layout);
    if (layout >= facts->state.layout_count) return -QR_E_NOT_FOUND;
    int code = get(facts, key, &value, sizeof value);
    if (code) return code;
    *ret_layout =
        (qr_fact_layout_t){.chunk_tokens = value.chunk_tokens, .group_count = value.group_count, .tx = value.tx, .time_us = value.time_us};
    memcpy(ret_layout->fingerprint, value.fingerprint, 32);
    memcpy(ret_layout->windows, value.windows, sizeof value.windows);
    return value.group_count <= GROUPS && value.chunk_tokens ? 0 : damaged(facts);
}

int qr_facts_owner(qr_facts_t *facts, uint32_t owner, uint64_t *ret_node_epoch, uint64_t *ret_tx, uint64_t *ret_publisher)
{
    value_owner_t value = {0};
    int code = get(facts, key_of_u32('O', owner), &value, sizeof value);
    if (code) return code;
    *ret_node_epoch = value.node_epoch;
    *ret_tx = value.tx;
    *ret_publisher = value.publisher;
    return 0;
}

/* First key after `after` that begins so: 0 or -QR_E_NOT_FOUND. */
static int next_key(qr_facts_t *facts, const facts_key_t *prefix, const facts_key_t *after, facts_key_t *ret_key)
{
    leveldb_iterator_t *it = leveldb_create_iterator(facts->db, facts->read);
    bool found = false;
    for (leveldb_iter_seek(it, (const char *)after->data, after->bytes); leveldb_iter_valid(it) && !found; leveldb_iter_next(it)) {
        size_t bytes;
        const uint8_t *data = (const uint8_t *)leveldb_iter_key(it, &bytes);
        if (!begins(data, bytes, prefix)) break;
        if (bytes == after->bytes && memcmp(data, after->data, bytes) == 0) continue;
        ret_key->bytes = (uint32_t)bytes;
        memcpy(ret_key->data, data, bytes);
        found = true;
    }
    int code = scan_end(facts, it);
    return code ? code : found ? 0 : -QR_E_NOT_FOUND;
}

int qr_facts_publisher_next(qr_facts_t *facts, uint64_t address, qr_fact_publisher_t *ret_publisher)
{
    facts_key_t prefix = key_of('U'), after = prefix, key;
    value_publisher_t value;
    key_u64(&after, address);
    int code = next_key(facts, &prefix, &after, &key);
    if (!code && key.bytes != 9) code = damaged(facts);
    if (!code) code = get(facts, key, &value, sizeof value);
    if (code) return code;
    ret_publisher->address = (uint64_t)at_u32(key.data + 1) << 32 | at_u32(key.data + 5);
    ret_publisher->epoch = value.epoch;
    ret_publisher->greatest = value.greatest;
    ret_publisher->last_tx = value.last_tx;
    ret_publisher->node_epoch = value.node_epoch;
    memcpy(ret_publisher->sequences, value.sequences, sizeof value.sequences);
    memcpy(ret_publisher->txs, value.txs, sizeof value.txs);
    return 0;
}

static uint32_t reuse_of(qr_facts_t *facts, const uint8_t chain[32])
{
    value_reuse_t value;
    return get(facts, key_of_hash('x', chain), &value, sizeof value) ? 0 : (uint32_t)qr_min_u64(value.times, UINT32_MAX);
}

static int node_item(qr_facts_t *facts, const uint8_t chain[32], qr_fact_item_t *item)
{
    value_node_t node;
    int code = get(facts, key_of_hash('N', chain), &node, sizeof node);
    if (code) return code;
    *item = (qr_fact_item_t){
        .kind = QR_FACTS_NODES, .layout = node.layout, .start = node.start, .count = node.count, .tx = node.tx, .time_us = node.time_us};
    memcpy(item->chain, chain, 32);
    memcpy(item->digest, node.parent, 32);
    item->reuse = reuse_of(facts, chain);
    return 0;
}

/* A part or copy: its node's place and its own words. */
static int part_item(qr_facts_t *facts, const facts_key_t *key, qr_fact_item_t *item)
{
    value_part_t part;
    value_copy_t copy;
    bool is_copy = key->data[0] == 'R';
    int code = node_item(facts, key->data + 1, item);
    if (!code) code = get(facts, key_part(key->data + 1, key->data[33]), &part, sizeof part);
    if (!code && is_copy) code = get(facts, *key, &copy, sizeof copy);
    if (code) return code == -QR_E_NOT_FOUND ? damaged(facts) : code;
    item->kind = is_copy ? QR_FACTS_REPLICAS : QR_FACTS_PARTS;
    item->group = key->data[33];
    memcpy(item->digest, part.content, 32);
    item->bytes = part.bytes;
    item->tx = is_copy ? copy.tx : part.tx;
    item->time_us = is_copy ? copy.time_us : part.time_us;
    if (!is_copy) return 0;
    item->tier = key->data[34];
    item->owner = at_u32(key->data + 35);
    item->publisher = copy.publisher;
    return 0;
}

static int other_item(qr_facts_t *facts, const facts_key_t *key, qr_fact_item_t *item)
{
    *item = (qr_fact_item_t){0};
    if (key->data[0] == 'L') {
        qr_fact_layout_t layout;
        int code = qr_facts_layout(facts, key->data[1], &layout);
        *item = (qr_fact_item_t){.kind = QR_FACTS_LAYOUTS,
                                 .layout = key->data[1],
                                 .count = layout.chunk_tokens,
                                 .group = layout.group_count,
                                 .tx = layout.tx,
                                 .time_us = layout.time_us};
        memcpy(item->digest, layout.fingerprint, 32);
        return code;
    }
    if (key->data[0] == 'O') {
        value_owner_t owner;
        int code = get(facts, *key, &owner, sizeof owner);
        if (code) return code;
        *item = (qr_fact_item_t){.kind = QR_FACTS_OWNERS,
                                 .owner = at_u32(key->data + 1),
                                 .bytes = owner.node_epoch,
                                 .tx = owner.tx,
                                 .time_us = owner.time_us,
                                 .publisher = owner.publisher};
        return 0;
    }
    value_publisher_t publisher;
    int code = get(facts, *key, &publisher, sizeof publisher);
    if (code) return code;
    *item = (qr_fact_item_t){.kind = QR_FACTS_PUBLISHERS,
                             .publisher = (uint64_t)at_u32(key->data + 1) << 32 | at_u32(key->data + 5),
                             .owner = at_u32(key->data + 1),
                             .bytes = publisher.epoch,
                             .tx = publisher.last_tx};
    return 0;
}

static bool has_copy(qr_facts_t *facts, const qr_fact_item_t *item, const qr_facts_filter_t *f, int *code)
{
    keys_t keys = {0};
    facts_key_t prefix = key_of_hash('R', item->chain);
    bool found = false;
    if (item->kind == QR_FACTS_PARTS) key_byte(&prefix, item->group);
    *code = collect(facts, &prefix, &keys);
    for (uint32_t i = 0; i < keys.count; i++)
        found = found || ((!f->tier || keys.data[i].data[34] == f->tier) && (!f->owner || at_u32(keys.data[i].data + 35) == f->owner));
    free(keys.data);
    return found;
}

static bool passes(qr_facts_t *facts, const qr_fact_item_t *item, const qr_facts_filter_t *f, uint32_t layout, int *code)
{
    bool chunky = item->kind <= QR_FACTS_REPLICAS;
    if (item->time_us < f->time_from_us || (f->time_to_us && item->time_us >= f->time_to_us)) return false;
    if (f->fingerprint && (chunky || item->kind == QR_FACTS_LAYOUTS) && item->layout != layout) return false;
    if (chunky && (item->start + item->count <= f->token_from || (f->token_to && item->start >= f->token_to && !QR_MUTANT(581))))
        return false;
    if (chunky && item->reuse < f->reuse_least) return false;
    if (!f->tier && !f->owner) return true;
    if (item->kind == QR_FACTS_REPLICAS) return (!f->tier || item->tier == f->tier) && (!f->owner || item->owner == f->owner);
    if (item->kind >= QR_FACTS_LAYOUTS) return !f->owner || item->kind == QR_FACTS_LAYOUTS || item->owner == f->owner;
    return has_copy(facts, item, f, code);
}

static int find_layout(qr_facts_t *facts, const uint8_t *fingerprint, uint32_t *ret_layout)
{
    *ret_layout = UINT32_MAX;
    for (uint32_t i = 0; fingerprint && i < facts->state.layout_count; i++) {
        qr_fact_layout_t layout;
        int code = qr_facts_layout(facts, i, &layout);
        if (code) return code;
        if (memcmp(layout.fingerprint, fingerprint, 32) == 0) *ret_layout = i;
    }
    return 0;
}

static const char letters[QR_FACTS_KINDS] = {0, 'N', 'P', 'R', 'L', 'O', 'U'};
static const uint8_t lengths[QR_FACTS_KINDS] = {0, 33, 34, 39, 2, 5, 9};

int qr_facts_query(qr_facts_t *facts, const qr_facts_filter_t *filter, qr_facts_cursor_t *cursor, uint32_t looks, qr_fact_item_t *items,
                   uint32_t most, uint32_t *ret_count)
{
    uint32_t layout;
    *ret_count = 0;
    if (facts->state.damaged) return -QR_E_FORMAT;
    if (filter->kind == 0 || filter->kind >= QR_FACTS_KINDS || cursor->bytes > KEY_MAX) return -QR_E_INVALID;
    facts_key_t prefix = key_of(letters[filter->kind]);
    if (filter->chain && filter->kind <= QR_FACTS_REPLICAS) key_hash(&prefix, filter->chain);
    facts_key_t after = prefix;
    bool fresh = cursor->bytes == 0;
    if (!fresh) {
        after.bytes = cursor->bytes;
        memcpy(after.data, cursor->key, cursor->bytes);
        if (!begins(after.data, after.bytes, &prefix)) return -QR_E_INVALID;
    }
    int code = find_layout(facts, filter->fingerprint, &layout);
    if (code) return code;
    leveldb_iterator_t *it = leveldb_create_iterator(facts->db, facts->read);
    bool more = false;
    for (leveldb_iter_seek(it, (const char *)after.data, after.bytes); !code && leveldb_iter_valid(it); leveldb_iter_next(it)) {
        facts_key_t key;
        size_t bytes;
        const uint8_t *data = (const uint8_t *)leveldb_iter_key(it, &bytes);
        if (!begins(data, bytes, &prefix)) break;
        if (!fresh && bytes == after.bytes && memcmp(data, after.data, bytes) == 0) continue;
        if (looks-- == 0 || *ret_count == most) {
            more = true;
            break;
        }
        key.bytes = (uint32_t)bytes;
        memcpy(key.data, data, bytes);
        if (bytes != lengths[filter->kind]) {
            code = damaged(facts);
            break;
        }
        qr_fact_item_t *item = &items[*ret_count];
        code = filter->kind == QR_FACTS_NODES      ? node_item(facts, key.data + 1, item)
               : filter->kind <= QR_FACTS_REPLICAS ? part_item(facts, &key, item)
                                                   : other_item(facts, &key, item);
        if (code == -QR_E_NOT_FOUND) code = damaged(facts);
        if (!code && passes(facts, item, filter, layout, &code)) ++*ret_count;
        cursor->bytes = key.bytes;
        memcpy(cursor->key, key.data, key.bytes);
    }
    int end = scan_end(facts, it);
    if (!more) cursor->bytes = 0;
    return code ? code : end;
}

struct qr_facts_walk {
    qr_facts_t *facts;
    leveldb_iterator_t *iterator;
};

qr_facts_walk_t *qr_facts_walk_begin(qr_facts_t *facts)
{
    qr_facts_walk_t *walk = calloc(1, sizeof *walk);
    if (!walk) return NULL;
    walk->facts = facts;
    walk->iterator = leveldb_create_iterator(facts->db, facts->scan);
    leveldb_iter_seek(walk->iterator, "D", 1);
    return walk;
}

int qr_facts_walk_next(qr_facts_walk_t *walk, qr_fact_item_t *ret_node)
{
    size_t bytes = 0;
    char *error = NULL;
    if (walk->facts->state.damaged) return -QR_E_FORMAT;
    const uint8_t *data = leveldb_iter_valid(walk->iterator) ? (const uint8_t *)leveldb_iter_key(walk->iterator, &bytes) : NULL;
    if (!data || bytes == 0 || data[0] != 'D') {
        leveldb_iter_get_error(walk->iterator, &error);
        return failed(walk->facts, error);
    }
    int code = bytes == 38 ? node_item(walk->facts, data + 6, ret_node) : damaged(walk->facts);
    leveldb_iter_next(walk->iterator);
    return code == -QR_E_NOT_FOUND ? damaged(walk->facts) : code ? code : 1;
}

void qr_facts_walk_end(qr_facts_walk_t **walk)
{
    if (!*walk) return;
    leveldb_iter_destroy((*walk)->iterator);
    free(*walk);
    *walk = NULL;
}

int qr_facts_of_node(qr_facts_t *facts, const uint8_t chain[32], uint32_t kind, qr_fact_item_t *items, uint32_t most, uint32_t *ret_count)
{
    keys_t keys = {0};
    facts_key_t prefix = key_of_hash(kind == QR_FACTS_PARTS ? 'P' : 'R', chain);
    int code = collect(facts, &prefix, &keys);
    *ret_count = qr_min_u32(keys.count, most);
    for (uint32_t i = 0; !code && i < *ret_count; i++) code = part_item(facts, &keys.data[i], &items[i]);
    free(keys.data);
    return code;
}

/* ---- local tables
 * -------------------------------------------------------------------------------------------------------------------------- */

static int local_put(qr_facts_t *facts, const facts_key_t *key, const void *value, uint32_t bytes)
{
    if (facts->state.damaged) return -QR_E_FORMAT;
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    batch_put(batch, key, value, bytes);
    int code = batch_write(facts, batch, false);
    leveldb_writebatch_destroy(batch);
    return code;
}

static int local_remove(qr_facts_t *facts, const facts_key_t *key)
{
    char *error = NULL;
    if (facts->state.damaged) return -QR_E_FORMAT;
    leveldb_delete(facts->db, facts->write, (const char *)key->data, key->bytes, &error);
    return failed(facts, error);
}

int qr_facts_reuse_add(qr_facts_t *facts, const uint8_t chain[32], uint32_t times, uint64_t now_us)
{
    value_reuse_t value = {0};
    facts_key_t key = key_of_hash('x', chain);
    int code = get(facts, key, &value, sizeof value);
    if (code && code != -QR_E_NOT_FOUND) return code;
    value.times += times;
    value.last_us = now_us;
    return local_put(facts, &key, &value, sizeof value);
}

int qr_facts_reuse_chain(qr_facts_t *facts, const uint8_t chain[32], uint32_t from_row, uint64_t now_us, uint32_t *ret_count)
{
    uint8_t at[32];
    memcpy(at, chain, 32);
    for (*ret_count = 0; *ret_count < QR_FACTS_WALK_MAX; ++*ret_count) {
        value_node_t node;
        int code = get(facts, key_of_hash('N', at), &node, sizeof node);
        if (code) return code == -QR_E_NOT_FOUND ? 0 : code; /* the root, or it has left the catalog meanwhile */
        if (node.start + node.count <= from_row && !QR_MUTANT(748)) return 0;
        code = qr_facts_reuse_add(facts, at, 1, now_us);
        if (code) return code;
        memcpy(at, node.parent, 32);
    }
    return 0;
}

/* Keys of decisions are their numbers, so that the least one is found by seeking. */
static facts_key_t key_decision(uint64_t number)
{
    facts_key_t key = key_of('j');
    key_byte(&key, 'd');
    key_u64(&key, number);
    return key;
}

int qr_facts_decision_add(qr_facts_t *facts, qr_fact_decision_t *decision, uint32_t most)
{
    uint64_t number = 0;
    facts_key_t counter = key_of('j');
    key_byte(&counter, 'n');
    int code = get(facts, counter, &number, sizeof number);
    if (code && code != -QR_E_NOT_FOUND) return code;
    decision->number = ++number;
    leveldb_writebatch_t *batch = leveldb_writebatch_create();
    facts_key_t key = key_decision(number);
    batch_put(batch, &key, decision, sizeof *decision);
    batch_put(batch, &counter, &number, sizeof number);
    /* One that leaves for each that comes, and one more, so that a ring that was made smaller shrinks. */
    qr_fact_decision_t oldest = {.number = 0};
    for (int i = 0; i < 2 && number > most && !QR_MUTANT(582); i++) {
        if (qr_facts_decision_next(facts, oldest.number, &oldest) || oldest.number + most > number) break;
        key = key_decision(oldest.number);
        leveldb_writebatch_delete(batch, (const char *)key.data, key.bytes);
    }
    code = facts->state.damaged ? -QR_E_FORMAT : batch_write(facts, batch, false);
    leveldb_writebatch_destroy(batch);
    return code;
}

/* The first key that begins so and is not below `from`. 0, -QR_E_NOT_FOUND, -QR_E_FORMAT. */
static int seek(qr_facts_t *facts, const facts_key_t *from, const facts_key_t *prefix, bool last, facts_key_t *ret_key)
{
    leveldb_iterator_t *it = leveldb_create_iterator(facts->db, facts->read);
    leveldb_iter_seek(it, (const char *)from->data, from->bytes);
    if (last && leveldb_iter_valid(it))
        leveldb_iter_prev(it);
    else if (last)
        leveldb_iter_seek_to_last(it);
    size_t bytes = 0;
    const uint8_t *data = leveldb_iter_valid(it) ? (const uint8_t *)leveldb_iter_key(it, &bytes) : NULL;
    bool found = data && begins(data, bytes, prefix);
    if (found) {
        ret_key->bytes = (uint32_t)bytes;
        memcpy(ret_key->data, data, bytes);
    }
    int code = scan_end(facts, it);
    return code ? code : found ? 0 : -QR_E_NOT_FOUND;
}

int qr_facts_decision_next(qr_facts_t *facts, uint64_t number, qr_fact_decision_t *ret_decision)
{
    facts_key_t prefix = key_of('j'), from = key_decision(number + 1), key;
    key_byte(&prefix, 'd');
    int code = facts->state.damaged ? -QR_E_FORMAT : seek(facts, &from, &prefix, false, &key);
    return code ? code : get(facts, key, ret_decision, sizeof *ret_decision);
}

static facts_key_t key_policy(uint64_t version)
{
    facts_key_t key = key_of('p');
    key_u64(&key, version);
    return key;
}

int qr_facts_policy_get(qr_facts_t *facts, uint64_t version, qr_fact_policy_t *ret_policy)
{
    if (facts->state.damaged) return -QR_E_FORMAT;
    if (version) return get(facts, key_policy(version), ret_policy, sizeof *ret_policy);
    facts_key_t prefix = key_of('p'), end = key_policy(UINT64_MAX), key;
    int code = seek(facts, &end, &prefix, true, &key);
    return code ? code : get(facts, key, ret_policy, sizeof *ret_policy);
}

int qr_facts_policy_put(qr_facts_t *facts, qr_fact_policy_t *policy)
{
    qr_fact_policy_t newest = {.version = 1};
    int code = qr_facts_policy_get(facts, 0, &newest);
    if (code && code != -QR_E_NOT_FOUND) return code;
    if (newest.version > QR_FACTS_POLICIES_MAX) return -QR_E_LIMIT;
    policy->version = newest.version + 1 - QR_MUTANT(749);
    facts_key_t key = key_policy(policy->version);
    return local_put(facts, &key, policy, sizeof *policy);
}

int qr_facts_trust_put(qr_facts_t *facts, const uint8_t content_id[32], const qr_fact_trust_t *trust)
{
    facts_key_t key = key_of_hash('t', content_id);
    return local_put(facts, &key, trust, sizeof *trust);
}
int qr_facts_trust_get(qr_facts_t *facts, const uint8_t content_id[32], qr_fact_trust_t *ret_trust)
{
    return facts->state.damaged ? -QR_E_FORMAT : get(facts, key_of_hash('t', content_id), ret_trust, sizeof *ret_trust);
}
int qr_facts_trust_remove(qr_facts_t *facts, const uint8_t content_id[32])
{
    facts_key_t key = key_of_hash('t', content_id);
    return local_remove(facts, &key);
}

static facts_key_t key_demand(const uint8_t chain[32], uint32_t tier, uint32_t owner)
{
    facts_key_t key = key_of_hash('q', chain);
    key_byte(&key, tier);
    key_u32(&key, owner);
    return key;
}

int qr_facts_demand_put(qr_facts_t *facts, const qr_fact_demand_t *demand)
{
    qr_fact_demand_t before;
    facts_key_t key = key_demand(demand->chain, demand->tier, demand->owner);
    int code = get(facts, key, &before, sizeof before);
    bool fresh = code == -QR_E_NOT_FOUND;
    if (code && !fresh) return code;
    if (fresh && facts->demand_count >= QR_FACTS_DEMANDS_MAX) return -QR_E_LIMIT;
    code = local_put(facts, &key, demand, sizeof *demand);
    facts->demand_count += fresh && !code;
    return code;
}

int qr_facts_demand_remove(qr_facts_t *facts, const uint8_t chain[32], uint32_t tier, uint32_t owner)
{
    qr_fact_demand_t before;
    facts_key_t key = key_demand(chain, tier, owner);
    int code = get(facts, key, &before, sizeof before);
    if (!code) code = local_remove(facts, &key);
    facts->demand_count -= !code;
    return code;
}

uint32_t qr_facts_demand_count(const qr_facts_t *facts) { return facts->demand_count; }

int qr_facts_demands(qr_facts_t *facts, uint64_t now_us, qr_fact_demand_t *demands, uint32_t most, uint32_t *ret_count)
{
    keys_t keys = {0};
    facts_key_t prefix = key_of('q');
    int code = facts->state.damaged ? -QR_E_FORMAT : collect(facts, &prefix, &keys);
    *ret_count = 0;
    for (uint32_t i = 0; !code && i < keys.count && *ret_count < most; i++) {
        qr_fact_demand_t *d = &demands[*ret_count];
        code = get(facts, keys.data[i], d, sizeof *d);
        if (!code && d->expires_us <= now_us)
            code = qr_facts_demand_remove(facts, d->chain, d->tier, d->owner);
        else
            ++*ret_count;
    }
    free(keys.data);
    return code;
}
