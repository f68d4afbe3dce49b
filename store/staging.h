/* staging.h - slots of memory that rows pass through between page pools and chunk files, and, in an area of its own, the slots in which
 * chunks are kept (the RAM tier, actors/io/storage_ram.h). Made once at boot, before any actor; they outlive every restart of one.
 *
 * SL1. A slot belongs to whoever the last message named: nobody else reads or writes it. The memory has no lock and needs none.
 * SL2. A slot holds the payload of any chunk of the model: [member][token][row], as in a chunk file. Of a kept one headers[slot] is what
 * its file's header says: identity, and XXH3-128 over tokens and payload. */
#ifndef QR_STAGING_H
#define QR_STAGING_H

#include "base/base.h"
#include "base/limits.h"
#include "store/chunk.h"

#define QR_STAGING_BYTES_MAX (8ull << 30) /* of all slots */

typedef struct qr_staging_config {
    uint32_t slots, chunk_tokens, group_count;
    bool kept; /* slots of the RAM tier: many, and the system gives their memory as it is first used */
    struct {
        uint32_t members;   /* (slab, layer) pairs of the group */
        uint32_t row_bytes; /* of one row of one member */
    } groups[QR_GROUPS_MAX];
} qr_staging_config_t;

typedef struct qr_staging {
    qr_staging_config_t config;
    uint64_t slot_bytes; /* a multiple of 4,096 */
    uint8_t *memory;     /* [slots][slot_bytes], 4,096-byte aligned, in huge pages where the system gives them */
    uint64_t mapped_bytes;
    qr_chunk_header_t *headers; /* [slots] of kept ones, else NULL; they belong to whoever has the slot */
} qr_staging_t;

/* Maps the slots, and touches them unless they are kept ones. 0; -QR_E_INVALID: a count of zero or above its limit; -QR_E_LIMIT: above
 * QR_STAGING_BYTES_MAX and not kept; -QR_E_MEMORY.
 */
int qr_staging_new(const qr_staging_config_t *config, qr_staging_t **ret_staging);
/* How many kept slots for a model fit into so many bytes. */
uint32_t qr_staging_slots_in(const qr_staging_config_t *config, uint64_t bytes);
/* Has the system give memory [at, at + bytes) of the slots now instead of at its first use; what lies there stays as it is, whoever uses it
 * meanwhile. Rounded to whole pages and to what there is. false: the system cannot. */
bool qr_staging_touch(const qr_staging_t *staging, uint64_t at, uint64_t bytes);
/* Accepts NULL. */
void qr_staging_destroy(qr_staging_t **staging);
/* The slot's memory; slot < config.slots. */
uint8_t *qr_staging_slot(const qr_staging_t *staging, uint32_t slot);
/* Bytes of a chunk's payload of `tokens` tokens; group < config.group_count. */
uint64_t qr_staging_payload_bytes(const qr_staging_t *staging, uint32_t group, uint32_t tokens);

#endif
