/* staging.c - slots between page pools and chunk files (staging.h). */
#include "store/staging.h"

#include "base/error.h"
#include "store/chunk.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20, QR_MADV_POPULATE_WRITE = 23 }; /* Linux 5.14; older C libraries do not name it */

static bool config_valid(const qr_staging_config_t *c)
{
    if (!c->slots || c->slots > (c->kept ? QR_RAM_SLOTS_MAX : QR_STAGING_SLOTS_MAX) || !c->group_count || c->group_count > QR_GROUPS_MAX)
        return false;
    if (!c->chunk_tokens || c->chunk_tokens > QR_CHUNK_TOKENS_MAX) return false;
    for (uint32_t g = 0; g < c->group_count; g++) {
        if (!c->groups[g].members || c->groups[g].members > QR_CHUNK_MEMBERS_MAX) return false;
        if (c->groups[g].row_bytes < 2 || c->groups[g].row_bytes > QR_CHUNK_ROW_BYTES_MAX || c->groups[g].row_bytes % 2) return false;
    }
    return true;
}

static uint64_t slot_bytes(const qr_staging_config_t *c)
{
    uint64_t most = 0;
    for (uint32_t g = 0; g < c->group_count; g++)
        most = qr_max_u64(most, qr_round_up((uint64_t)c->groups[g].members * c->groups[g].row_bytes * c->chunk_tokens, 4096));
    return most;
}

uint32_t qr_staging_slots_in(const qr_staging_config_t *config, uint64_t bytes)
{
    uint64_t one = slot_bytes(config);
    return one ? (uint32_t)qr_min_u64(bytes / one, QR_RAM_SLOTS_MAX) : 0;
}

int qr_staging_new(const qr_staging_config_t *config, qr_staging_t **ret_staging)
{
    if (!config_valid(config)) return -QR_E_INVALID;
    qr_staging_t *s = calloc(1, sizeof *s);
    if (!s) return -QR_E_MEMORY;
    s->config = *config;
    s->slot_bytes = slot_bytes(config);
    s->mapped_bytes = qr_round_up(s->slot_bytes * config->slots, HUGE_BYTES);
    void *memory = MAP_FAILED;
    bool fits = config->kept || s->mapped_bytes <= QR_STAGING_BYTES_MAX;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (config->kept ? MAP_NORESERVE : 0);
    if (config->kept) s->headers = calloc(config->slots, sizeof *s->headers);
    if (fits && (s->headers || !config->kept)) memory = mmap(NULL, s->mapped_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        free(s->headers);
        free(s);
        return fits ? -QR_E_MEMORY : -QR_E_LIMIT;
    }
    (void)madvise(memory, s->mapped_bytes, MADV_HUGEPAGE); /* a wish */
    if (!config->kept) memset(memory, 0, s->mapped_bytes);
    s->memory = memory;
    *ret_staging = s;
    return 0;
}

bool qr_staging_touch(const qr_staging_t *s, uint64_t at, uint64_t bytes)
{
    uint64_t from = qr_min_u64(at, s->mapped_bytes) / 4096 * 4096, to = qr_min_u64(qr_round_up(at + bytes, 4096), s->mapped_bytes);
    return from >= to || madvise(s->memory + from, to - from, QR_MADV_POPULATE_WRITE) == 0;
}

void qr_staging_destroy(qr_staging_t **staging)
{
    qr_staging_t *s = *staging;
    if (!s) return;
    (void)munmap(s->memory, s->mapped_bytes);
    free(s->headers);
    free(s);
    *staging = NULL;
}

uint8_t *qr_staging_slot(const qr_staging_t *staging, uint32_t slot)
{
    qr_assert(slot < staging->config.slots);
    return staging->memory + slot * staging->slot_bytes;
}

uint64_t qr_staging_payload_bytes(const qr_staging_t *staging, uint32_t group, uint32_t tokens)
{
    return (uint64_t)staging->config.groups[group].members * staging->config.groups[group].row_bytes * tokens;
}
