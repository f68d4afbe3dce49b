/* storage_parts.c - the table of parts (storage_parts.h). */
#include "actors/io/storage_parts.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/mutant.h"

#include <stdlib.h>

int qr_parts_init(qr_parts_t *parts, uint32_t capacity)
{
    memset(parts, 0, sizeof *parts);
    for (parts->bucket_count = 16; parts->bucket_count < capacity;) parts->bucket_count *= 2;
    parts->capacity = capacity, parts->free = 0;
    parts->chain_buckets = malloc(parts->bucket_count * sizeof(uint32_t));
    parts->name_buckets = malloc(parts->bucket_count * sizeof(uint32_t));
    parts->parts = calloc(capacity, sizeof *parts->parts);
    if (!parts->chain_buckets || !parts->name_buckets || !parts->parts) {
        qr_parts_done(parts);
        return -QR_E_MEMORY;
    }
    memset(parts->chain_buckets, 0xff, parts->bucket_count * sizeof(uint32_t));
    memset(parts->name_buckets, 0xff, parts->bucket_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < capacity; i++) parts->parts[i].next_chain = i + 1 < capacity ? i + 1 : QR_PART_NONE;
    return 0;
}

void qr_parts_done(qr_parts_t *parts)
{
    free(parts->chain_buckets), free(parts->name_buckets), free(parts->parts);
    memset(parts, 0, sizeof *parts);
}

/* Both are SHA-256: their first bytes are as good as any hash. */
static uint32_t *chain_bucket(const qr_parts_t *parts, const uint8_t chain[32], uint32_t group)
{
    uint32_t word;
    memcpy(&word, chain, sizeof word);
    return &parts->chain_buckets[(word + group) & (parts->bucket_count - 1)];
}
static uint32_t *name_bucket(const qr_parts_t *parts, const qr_chunk_name_t *name)
{
    uint32_t word;
    memcpy(&word, name->id, sizeof word);
    return &parts->name_buckets[word & (parts->bucket_count - 1)];
}

uint32_t qr_parts_find(const qr_parts_t *parts, const uint8_t chain[32], uint32_t group)
{
    uint32_t at = *chain_bucket(parts, chain, group);
    while (at != QR_PART_NONE && (parts->parts[at].group != group || memcmp(parts->parts[at].chain, chain, 32) != 0))
        at = parts->parts[at].next_chain;
    return at;
}

uint32_t qr_parts_find_name(const qr_parts_t *parts, const qr_chunk_name_t *name)
{
    uint32_t at = *name_bucket(parts, name);
    while (at != QR_PART_NONE && memcmp(&parts->parts[at].name, name, sizeof *name) != 0) at = parts->parts[at].next_name;
    return at;
}

uint64_t qr_parts_gain(uint32_t hits, uint32_t start)
{
    return ((uint64_t)qr_min_u32(hits, QR_PART_HITS_MAX) + 1) * QR_CONTEXT_MAX - start - 1;
}

uint32_t qr_parts_add(qr_parts_t *parts, const qr_chunk_header_t *header, const qr_chunk_name_t *name, uint64_t bytes)
{
    uint32_t at = parts->free, *chain = chain_bucket(parts, header->chain, header->group), *by_name = name_bucket(parts, name);
    if (parts->count == parts->capacity) return QR_PART_NONE;
    qr_part_t *part = &parts->parts[at];
    parts->free = part->next_chain;
    *part = (qr_part_t){.name = *name,
                        .bytes = bytes,
                        .group = header->group,
                        .start = header->start,
                        .next_chain = *chain,
                        .next_name = *by_name,
                        .state = QR_PART_READY};
    memcpy(part->chain, header->chain, 32);
    *chain = *by_name = at;
    part->key = parts->level + qr_parts_gain(0, part->start);
    parts->count++;
    return at;
}

void qr_parts_remove(qr_parts_t *parts, uint32_t place)
{
    qr_part_t *part = &parts->parts[place];
    uint32_t *link = chain_bucket(parts, part->chain, part->group);
    while (*link != place) link = &parts->parts[*link].next_chain;
    *link = part->next_chain;
    link = name_bucket(parts, &part->name);
    while (*link != place) link = &parts->parts[*link].next_name;
    *link = part->next_name;
    *part = (qr_part_t){.next_chain = parts->free};
    parts->free = place;
    parts->count--;
}

uint64_t qr_parts_touch(qr_parts_t *parts, uint32_t place)
{
    qr_part_t *part = &parts->parts[place];
    if (!QR_MUTANT(641)) part->hits = qr_min_u32(part->hits + 1, QR_PART_HITS_MAX);
    return part->key = parts->level + qr_parts_gain(part->hits, part->start);
}

void qr_parts_leave(qr_parts_t *parts, uint32_t place)
{
    if (!QR_MUTANT(642)) parts->level = qr_max_u64(parts->level, parts->parts[place].key);
}

void qr_parts_check(const qr_parts_t *parts)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < parts->capacity; i++) {
        const qr_part_t *part = &parts->parts[i];
        if (part->state == QR_PART_FREE) continue;
        count++;
        qr_assert(qr_parts_find(parts, part->chain, part->group) == i);
        qr_assert(qr_parts_find_name(parts, &part->name) == i);
    }
    qr_assert(count == parts->count);
}
