/* storage_ram.h - the RAM tier: which chunk parts lie in memory (given->ram), who reads them, and what they are worth. Part of storage;
 * transfer reads and fills the slots that storage's messages name.
 *
 * RA1. A slot is free; FILLING, of exactly one lease of a file or of the write under way, and nobody else hears of it; KEPT, found and
 *      leased; or LEAVING, found by nobody and free with its last reader. A part has one slot at most. Slots that are not free are
 *      never more than the bound.
 * RA2. A KEPT slot holds the payload, verified when it came in, and in headers[slot] what its file's header says. It is not changed
 *      until it is free. Whoever reads it compares identity and XXH3-128 again: memory may fail too.
 * RA3. Slots leave by value (storage_parts.h PA2), never while they are read. A part that is worth less than every other one stays out;
 *      each time the level rises by an eighth of what it lacks, so that what nobody asks for any more does not stay for ever.
 * RA4. The system gives memory when it is first used, which takes longer than a restore. Slots that chunks of the store could fill are
 *      touched ahead, the first ones first, a piece at a time, while nothing else is to be done; no more than the store holds parts. */
#ifndef QR_STORAGE_RAM_H
#define QR_STORAGE_RAM_H

#include "actors/io/storage_parts.h"
#include "store/staging.h"

enum { QR_RAM_NONE = QR_PART_NONE, QR_RAM_TOUCH_BYTES = 256 << 10 };

typedef struct qr_ram {
    const qr_staging_t *memory; /* NULL: there is no RAM tier */
    qr_parts_t parts;           /* place i is slot i; READY: kept, LEAVING: filling or leaving */
    uint32_t *readers;          /* [slots] leases, or 1 who fills */
    uint64_t touched;           /* bytes of memory (RA4) */
    uint64_t hits, misses, entered, refused, evictions, damaged;
} qr_ram_t;

/* memory NULL: none. 0 or -QR_E_MEMORY. */
int qr_ram_init(qr_ram_t *ram, const qr_staging_t *memory);
void qr_ram_done(qr_ram_t *ram);
/* Whether a part is KEPT. */
bool qr_ram_has(const qr_ram_t *ram, const uint8_t chain[32], uint32_t group);
/* The slot of a part, one reader more; QR_RAM_NONE: it is not kept. */
uint32_t qr_ram_lease(qr_ram_t *ram, const uint8_t chain[32], uint32_t group);
/* A slot to fill for a part that has none, which was leased `hits` times before; makes room. QR_RAM_NONE: it stays out. */
uint32_t qr_ram_reserve(qr_ram_t *ram, const uint8_t chain[32], uint32_t group, uint32_t start, uint32_t hits);
/* What is FILLING is there: KEPT, without a reader. */
void qr_ram_keep(qr_ram_t *ram, uint32_t slot);
/* One reader less, or what is FILLING is given up. */
void qr_ram_release(qr_ram_t *ram, uint32_t slot);
/* A slot that is read is not what it should be, or a part is to be forgotten: it leaves. */
void qr_ram_damage(qr_ram_t *ram, uint32_t slot);
void qr_ram_forget(qr_ram_t *ram, const uint8_t chain[32], uint32_t group);
/* Touches the next piece (RA4) for a store of so many parts. false: there is none, or the system cannot. */
bool qr_ram_touch(qr_ram_t *ram, uint32_t parts);
/* Memory of slots that are not free, and the most there may be. */
uint64_t qr_ram_bytes(const qr_ram_t *ram);
uint64_t qr_ram_bytes_bound(const qr_ram_t *ram);
/* RA1; leases and fills are how many of them storage has open. */
void qr_ram_check(const qr_ram_t *ram, uint32_t leases, uint32_t fills);

#endif
