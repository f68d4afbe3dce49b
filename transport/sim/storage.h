/* storage.h - the disks of a simulated world and the fake storage that keeps chunk files on them. A disk outlives the actor and its node,
 * as a disk does. What a file holds is the words of the rows it was made of (device.h) and a header of its own, so that bytes that went
 * astray are seen: by the digest, by the identity, or as a wrong token.
 *
 * G1. A write is answered when its bytes are durable, or as failed, and then the file is not there. Whoever dies between write and rename
 *     finds the file whole or not at all.
 * G2. What is written are the rows that its tokens mean; a slot that changes while it is written is a finding.
 * G3. A file is deleted only when the catalog's log does not say any more that it stands here, and after its last lease.
 * G4. Silent damage happens to leased and unleased files alike; whoever was told so by transfer tells storage.
 * G5. The files of a disk never hold more than bytes_max.
 * G6. In the end the log says of no file that was found damaged that it stands there.
 * G7. The RAM tier: at most ram_slots parts in memory of storage's process, whose file was published here. A part comes in with its write
 *     or with the upload of a leased file; who says that it is in (chunk_release) has verified it: what lies there is held against that.
 *     Slots leave when somebody needs one, for no reason, and with a chunk_drop, never while one is read. Memory fails in silence, like
 *     files (G4); memory that is called damaged is, and the file is not to blame for it.
 * G8. Chunks of a hold (storage_holds.h) are nobody's victims, and at most as many are held as the disk has room for; none is named before the
 *     holds of before are known. A held file is dropped only by who was told to, lost it, or wrote it in vain.
 * G9. Only what the log is known to name is counted as found (storage.c, SO7).
 * G10. The chunk that a device's writer last wrote is no other device's victim or loss until the writer asks for something new, and
 *     another's drop of it is refused, then and later: its publish may be on its way (storage.c, SO11). Until every device of the node has
 *     been heard nothing is named (SO12). */
#ifndef QR_SIM_STORAGE_H
#define QR_SIM_STORAGE_H

#include "transport/sim/device.h"
#include "transport/sim/world.h"

/* `bytes_max` 0: this world has no store. */
typedef struct qr_sim_store_work {
    uint64_t bytes_max;                                        /* of one disk */
    uint64_t write_us, move_ns;                                /* most of one write and of its sync; most of one row moved */
    uint32_t slots, restore_max_ms, capture_max_ms, ram_slots; /* ram_slots 0: no RAM tier */
    uint64_t saves_us, saves_until_us; /* mean time between two saves of continuations, 0: none (facts.h); then all are dropped */
} qr_sim_store_work_t;

typedef struct qr_sim_store_counts {
    uint64_t written, failed, torn, adopted, shortfalls, dropped, leases, uploads, uploads_failed, damage_done, damage_found, fenced,
        downloads, restores, restores_whole, restored_rows, ram_leases, ram_entered, ram_left, ram_damage_done, ram_damage_found, saves,
        saves_short, saves_refused, saves_dropped, held;
} qr_sim_store_counts_t;

enum { QR_SIM_FILE_ROWS = 64 }; /* most rows of a chunk in these worlds */
enum { QR_SIM_RAM_SLOTS = 32 }; /* most of one node */
enum { QR_SIM_SAVES = 8, QR_SIM_SAVE_TOKENS = 1024, QR_SIM_HEARD = 4 };

/* Tokens of a chain from its root on. */
typedef struct qr_sim_chain {
    uint8_t scope[32];
    uint32_t count, unused;
    uint32_t tokens[QR_SIM_SAVE_TOKENS];
} qr_sim_chain_t;

/* Saved continuations of the node that has the log, on its disk, and what was lately computed there. */
typedef struct qr_sim_saves {
    uint64_t last_id;
    struct {
        uint64_t id; /* 0: none */
        uint32_t pin, leaving;
        qr_sim_chain_t chain; /* full chunks */
    } kept[QR_SIM_SAVES];
    qr_sim_chain_t heard[QR_SIM_HEARD];
    uint32_t heard_count, unused;
} qr_sim_saves_t;

/* What is on the disk under a file's name. */
typedef struct qr_sim_bytes {
    uint8_t chain[32], parent[32];
    uint32_t group, start, count, whole; /* whole 0: its end is missing */
    uint64_t scope;                      /* of its rows (device.h); not part of what a file holds */
    uint64_t tokens, digest;             /* hash of its tokens; over tokens and words, as it was written */
    uint64_t words[QR_SIM_FILE_ROWS];
} qr_sim_bytes_t;

typedef struct qr_sim_file {
    uint32_t state, group; /* state: of storage.c */
    /* word: G9, of storage.c; times: how often somebody rewrote it; damaged: by this world; was_aside: it is written again after that was
     * found; removed: by somebody else. */
    uint32_t leases, damaged, leaving, was_aside, removed, times, word;
    /* may_drop: bit d: device d was told so in its errand, as a victim or because its publish was refused. may_leave: the device that was
     * told last that it may leave, until another one writes it (kept). publisher: the device that last published or (withdraws) withdrew it, with
     * sequence. */
    uint32_t may_drop, may_leave, kept, publisher, withdraws;
    uint64_t sequence;
    uint8_t chain[32], content[32];
    uint64_t bytes, key, due_us, trusted_epoch, told; /* told: who withdraws it from the catalog, 0 nobody; key: least leaves first;
                                                         trusted_epoch: of the storage that has seen it whole */
    qr_sim_bytes_t on_disk;
} qr_sim_file_t;

typedef struct qr_sim_slot {
    uint32_t group, start, count, filled;
    uint64_t scope;
    uint64_t words[QR_SIM_FILE_ROWS];
} qr_sim_slot_t;

typedef struct qr_sim_store qr_sim_store_t;

/* NULL: not enough memory. */
qr_sim_store_t *qr_sim_store_new(const qr_sim_store_work_t *work, const qr_given_t *given, uint32_t node_count);
void qr_sim_store_destroy(qr_sim_store_t **store);
const qr_sim_store_work_t *qr_sim_store_work(const qr_sim_store_t *store);
qr_sim_store_counts_t *qr_sim_store_counts(qr_sim_store_t *store);
qr_sim_saves_t *qr_sim_store_saves(qr_sim_store_t *store);
/* Every message, when it is said or heard: what is computed where the log is, and what becomes of publishes. */
void qr_sim_store_watch(qr_sim_store_t *store, const qr_message_t *message, bool said);
/* Whether the disk of a node holds this part, or held it until somebody damaged it. */
bool qr_sim_store_has(const qr_sim_store_t *store, uint32_t node, const uint8_t chain[32], uint32_t group);
/* The file of that name, NULL without one. */
qr_sim_file_t *qr_sim_store_file(qr_sim_store_t *store, uint32_t node, const uint8_t content[32]);
/* The holder of a lease on this part, of its file or of its memory, was told that it is damaged (G4). */
void qr_sim_store_blame(const qr_world_t *world, uint32_t node, uint64_t holder, const uint8_t chain[32], uint32_t group, bool memory);
/* The memory of a RAM slot, whole 0: no header; *ret_life: of the storage that it belongs to, whose end makes it void. NULL: no such slot. */
qr_sim_bytes_t *qr_sim_store_memory(qr_sim_store_t *store, uint32_t node, uint32_t slot, uint64_t *ret_life);
/* Whether this holder has a lease of that part that is of this memory (kept: RAM slot + 1, 0: its file), and whose upload may fill that (keep). */
bool qr_sim_store_may(const qr_world_t *world, uint32_t node, uint64_t holder, const uint8_t chain[32], uint32_t group, uint32_t kept,
                      uint32_t keep);
/* Name and digest of these bytes. */
uint64_t qr_sim_store_digest(const qr_sim_bytes_t *bytes);
void qr_sim_store_name(const qr_sim_bytes_t *bytes, uint8_t ret_content[32]);
uint64_t qr_sim_store_tokens(const uint32_t *tokens, uint64_t count);
/* Staging slot of a device. */
qr_sim_slot_t *qr_sim_store_slot(qr_sim_store_t *store, uint32_t node, uint32_t device, uint32_t slot);
/* Whether no storage holds a lease, a write or a drop and G6 holds (catalog NULL: there
 * is none); else *text says what. */
struct qr_sim_catalog;
bool qr_sim_store_is_quiet(const qr_sim_store_t *store, const struct qr_sim_catalog *catalog, const qr_world_t *world, char *text,
                           size_t text_bytes);

extern const qr_actor_class_t qr_sim_storage_class;

#endif
