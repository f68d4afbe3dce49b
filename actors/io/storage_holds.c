/* storage_holds.c - see storage_holds.h. */
#include "actors/io/storage_holds.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/mutant.h"

#define NONE UINT32_MAX

int qr_holds_init(qr_holds_t *h, uint32_t most)
{
    memset(h, 0, sizeof *h);
    for (h->bucket_count = 16; h->bucket_count < most;) h->bucket_count *= 2;
    h->most = most;
    h->buckets = malloc(h->bucket_count * sizeof *h->buckets);
    h->nodes = calloc(most ? most : 1, sizeof *h->nodes);
    if (!h->buckets || !h->nodes) {
        qr_holds_done(h);
        return -QR_E_MEMORY;
    }
    memset(h->buckets, 0xff, h->bucket_count * sizeof *h->buckets);
    for (uint32_t i = 0; i < most; i++) h->nodes[i].next = i + 1 < most ? i + 1 : NONE;
    h->free = most ? 0 : NONE;
    return 0;
}

void qr_holds_done(qr_holds_t *h)
{
    for (qr_hold_t *hold = h->holds, *next; hold; hold = next) {
        next = hold->next;
        free(hold->nodes);
        free(hold);
    }
    free(h->buckets);
    free(h->nodes);
    memset(h, 0, sizeof *h);
}

/* They are SHA-256: their first bytes are as good as any hash. */
static uint32_t *bucket(const qr_holds_t *h, const uint8_t chain[32])
{
    uint32_t word;
    memcpy(&word, chain, sizeof word);
    return &h->buckets[word & (h->bucket_count - 1)];
}

static uint32_t find(const qr_holds_t *h, const uint8_t chain[32])
{
    uint32_t at = h->buckets ? *bucket(h, chain) : NONE;
    while (at != NONE && memcmp(h->nodes[at].chain, chain, 32) != 0) at = h->nodes[at].next;
    return at;
}

bool qr_holds_has(const qr_holds_t *h, const uint8_t chain[32]) { return find(h, chain) != NONE; }

static qr_hold_t **link_of(qr_holds_t *h, const uint8_t *id)
{
    qr_hold_t **link = &h->holds;
    while (*link && memcmp((*link)->id, id, QR_HOLD_ID_BYTES) != 0) link = &(*link)->next;
    return link;
}

/* One more hold of a chain: its node. There is a free one (HO2). */
static uint32_t take(qr_holds_t *h, const uint8_t chain[32])
{
    uint32_t at = find(h, chain);
    if (at == NONE) {
        uint32_t *first = bucket(h, chain);
        at = h->free;
        h->free = h->nodes[at].next;
        memcpy(h->nodes[at].chain, chain, 32);
        h->nodes[at].next = *first;
        *first = at;
        h->count++;
    }
    h->nodes[at].holds++;
    return at;
}

int qr_holds_add(qr_holds_t *h, const uint8_t id[QR_HOLD_ID_BYTES], const uint8_t *chains, uint32_t count)
{
    uint32_t more = 0;
    if (*link_of(h, id)) return 0;
    for (uint32_t i = 0; i < count; i++) more += find(h, chains + 32ull * i) == NONE;
    if (more > h->most - h->count) return -QR_E_NO_SPACE;
    qr_hold_t *hold = calloc(1, sizeof *hold);
    uint32_t *nodes = malloc((count ? count : 1) * sizeof *nodes);
    if (!hold || !nodes) {
        free(hold);
        free(nodes);
        return -QR_E_MEMORY;
    }
    memcpy(hold->id, id, sizeof hold->id);
    hold->count = count;
    hold->nodes = nodes;
    for (uint32_t i = 0; i < count; i++) nodes[i] = take(h, chains + 32ull * i);
    hold->next = h->holds;
    h->holds = hold;
    return 0;
}

void qr_holds_end(qr_holds_t *h, const uint8_t id[QR_HOLD_ID_BYTES], void (*freed)(void *context, const uint8_t chain[32]), void *context)
{
    qr_hold_t **link = link_of(h, id), *hold = *link;
    if (!hold) return;
    *link = hold->next;
    for (uint32_t i = 0; i < hold->count; i++) {
        qr_held_chain_t *node = &h->nodes[hold->nodes[i]];
        if (--node->holds && !QR_MUTANT(805)) continue;
        node->holds = 0;
        uint32_t *at = bucket(h, node->chain);
        while (*at != hold->nodes[i]) at = &h->nodes[*at].next;
        *at = node->next;
        node->next = h->free;
        h->free = hold->nodes[i];
        h->count--;
        freed(context, node->chain);
    }
    free(hold->nodes);
    free(hold);
}

void qr_holds_check(const qr_holds_t *h)
{
    uint64_t named = 0, held = 0;
    uint32_t count = 0;
    for (const qr_hold_t *hold = h->holds; hold; hold = hold->next) named += hold->count;
    for (uint32_t i = 0; i < h->most; i++) held += h->nodes[i].holds, count += h->nodes[i].holds != 0;
    qr_assert(named == held && count == h->count && count <= h->most); /* HO1, HO2 */
}
