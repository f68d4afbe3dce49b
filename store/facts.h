/* facts.h - the catalog's facts on LevelDB: what the log says, as of one transaction, in a form that can be asked. A materialised view:
 * whatever is damaged here is made again from the log and its snapshots.
 *
 * F1. Transactions are applied whole, in order, one write batch each; the batch carries the transaction's number. The meaning of a change
 *     is that of messages/schema.def, as catalog_replica applies it.
 * F2. Every value begins with a CRC-32C over its key and itself; LevelDB's own checks are all on. The view also carries the number of its
 *     facts and a sum over all of them, and opening compares both with what is found: a table that was lost without a word is seen.
 * F3. Damage is sticky: from the first sign every call answers -QR_E_FORMAT until the view is made again. Repair is never tried: it brings
 *     damaged values back as if they were good.
 * F4. No iterator or snapshot of LevelDB outlives a call (closing with a live one would end the process).
 * F5. Facts are bounded: QR_FACTS_NODES_MAX nodes (the caller refuses what would pass it), layouts, a ring of decisions,
 *     QR_FACTS_DEMANDS_MAX demands and QR_FACTS_POLICIES_MAX policies (one more is refused).
 * F6. Local tables (reuse, demands, policies, decisions, trust) are of this node, not of the log: they are not summed and are lost with a
 * damaged view; all of them can be learned again. */
#ifndef QR_STORE_FACTS_H
#define QR_STORE_FACTS_H

#include "base/base.h"
#include "base/limits.h"

typedef struct qr_facts qr_facts_t;

enum {
    QR_FACTS_NODES_MAX = 1 << 22,
    QR_FACTS_LAYOUTS_MAX = 16,
    QR_FACTS_SEQUENCES = 16, /* known of each publisher's epoch */
    QR_FACTS_DECISIONS_MAX = 65536,
    QR_FACTS_DEMANDS_MAX = 4096,
    QR_FACTS_POLICIES_MAX = 4096,
    QR_FACTS_WALK_MAX = 4096, /* chunks of one chain whose reuse is counted */
    QR_FACTS_KEY_BYTES_MAX = 80,
    QR_FACTS_PAGE_BYTES = 1 << 18 /* of a dump's page, about */
};

/* Kinds of a change and tiers, as in messages/message.h. */
enum { QR_FACT_NODE = 1, QR_FACT_PART = 2, QR_FACT_REPLICA = 3, QR_FACT_WITHDRAW = 4, QR_FACT_DROP = 5 };
enum { QR_FACT_RAM = 1, QR_FACT_SSD = 2, QR_FACT_OBJECT = 3 };

/* One publish: its columns over changes [0, change_count). Valid already (catalog_batch.h). */
typedef struct qr_fact_row {
    uint64_t publisher, publisher_epoch, node_epoch, sequence;
    const uint8_t *fingerprint;                              /* [32] */
    const uint32_t *windows;                                 /* [group_count] */
    uint32_t chunk_tokens, group_count, change_count, owner; /* owner: node of the publisher */
    const uint8_t *kinds, *tiers, *chains, *digests;
    const uint32_t *groups, *starts, *counts;
    const uint64_t *sizes;
} qr_fact_row_t;

/* ---- life ---------------------------------------------------------------------------------------------------------------------- */

/* Opens or makes the view in a folder and compares it with its own sum (F2). 0; -QR_E_FORMAT: damaged; -QR_E_IN_USE: another process has
 * it; -QR_E_NO_SPACE: there is no room on its disk, which says nothing about it; -QR_E_IO. One sentence in message on failure. */
int qr_facts_open(const char *folder, qr_facts_t **ret_facts, char *message, size_t message_bytes);
/* Accepts NULL, leaves NULL. sync: what was written is made durable first. */
void qr_facts_close(qr_facts_t **facts, bool sync);
/* Removes a view's folder and all in it. */
int qr_facts_remove(const char *folder);
/* Renames PARENT/NAME to PARENT/damaged-N, N one more than the greatest there; of these the newest `kept` stay. Its new name in ret_name.
 * -QR_E_NOT_FOUND: there is none. */
int qr_facts_set_aside(const char *parent, const char *name, uint32_t kept, char *ret_name, size_t name_bytes);

typedef struct qr_facts_state {
    uint64_t log_id, tx, writer_epoch; /* as of */
    uint64_t fact_count, sum;          /* equal sums and counts: equal facts */
    uint64_t node_count;
    uint32_t layout_count;
    bool damaged;
} qr_facts_state_t;
void qr_facts_state(const qr_facts_t *facts, qr_facts_state_t *ret_state);
/* Reads everything again and compares (F2). 0 or -QR_E_FORMAT. */
int qr_facts_verify(qr_facts_t *facts, char *message, size_t message_bytes);

/* ---- transactions ------------------------------------------------------------------------------------------------------------- */

/* begin(tx = last + 1), apply_row for each publish, commit; a failure before commit leaves the last state. time_us: when the log took it.
 * 0, -QR_E_FORMAT (F3), -QR_E_MEMORY, -QR_E_IO. */
int qr_facts_begin(qr_facts_t *facts, uint64_t log_id, uint64_t tx, uint64_t writer_epoch, uint64_t time_us);
int qr_facts_apply_row(qr_facts_t *facts, const qr_fact_row_t *row);
int qr_facts_commit(qr_facts_t *facts, bool sync);

/* ---- a snapshot's pages ----------------------------------------------------------------------------------------------------- */

typedef struct qr_facts_dump qr_facts_dump_t;
/* Walks all facts of the log in pages that load takes. Must be ended before anything is written or closed. */
qr_facts_dump_t *qr_facts_dump_begin(qr_facts_t *facts);
/* 1 and a page (until the next call), 0 at the end, or a negative code. */
int qr_facts_dump_next(qr_facts_dump_t *dump, const uint8_t **ret_page, uint32_t *ret_bytes);
void qr_facts_dump_end(qr_facts_dump_t **dump);
/* Pages into a view that was just made, in order; load_end compares with the sum. */
int qr_facts_load(qr_facts_t *facts, const uint8_t *page, uint32_t bytes);
int qr_facts_load_end(qr_facts_t *facts, uint64_t log_id);

/* ---- questions ------------------------------------------------------------------------------------------------------------------ */

enum { QR_FACTS_NODES = 1, QR_FACTS_PARTS, QR_FACTS_REPLICAS, QR_FACTS_LAYOUTS, QR_FACTS_OWNERS, QR_FACTS_PUBLISHERS, QR_FACTS_KINDS };

typedef struct qr_facts_filter {
    uint32_t kind;                 /* QR_FACTS_* */
    uint32_t tier, owner;          /* 0 = any; of nodes and parts: one that has such a copy */
    uint32_t token_from, token_to; /* chunks that overlap [from, to); to 0 = no end */
    uint32_t reuse_least;
    uint64_t time_from_us, time_to_us; /* of the fact; to 0 = no end */
    const uint8_t *fingerprint;        /* [32] or NULL */
    const uint8_t *chain;              /* [32] or NULL: this node alone */
} qr_facts_filter_t;

typedef struct qr_fact_item {
    uint8_t chain[32], digest[32]; /* digest: parent of a node, content id of a part or replica, fingerprint of a layout */
    uint32_t kind, layout, group, tier, owner, start, count, reuse; /* owner's: count = groups of a layout */
    uint64_t bytes, tx, time_us; /* bytes: node epoch of an owner, epoch of a publisher; tx: the transaction that said it */
    uint64_t publisher;
} qr_fact_item_t;

typedef struct qr_facts_cursor {
    uint8_t key[QR_FACTS_KEY_BYTES_MAX];
    uint32_t bytes; /* 0: from the beginning; on return 0: that was all */
} qr_facts_cursor_t;

/* Up to `most` items after the cursor; looks at no more than `looks` facts. 0 or a negative code. */
int qr_facts_query(qr_facts_t *facts, const qr_facts_filter_t *filter, qr_facts_cursor_t *cursor, uint32_t looks, qr_fact_item_t *items,
                   uint32_t most, uint32_t *ret_count);

/* A layout by its number (items' `layout`): 0 or -QR_E_NOT_FOUND. */
typedef struct qr_fact_layout {
    uint8_t fingerprint[32];
    uint32_t chunk_tokens, group_count, windows[QR_GROUPS_MAX];
    uint64_t tx, time_us;
} qr_fact_layout_t;
int qr_facts_layout(qr_facts_t *facts, uint32_t layout, qr_fact_layout_t *ret_layout);
/* Epoch of a node's newest publish (0: none) and its newest transaction. */
int qr_facts_owner(qr_facts_t *facts, uint32_t owner, uint64_t *ret_node_epoch, uint64_t *ret_tx, uint64_t *ret_publisher);

typedef struct qr_fact_publisher {
    uint64_t address, epoch, greatest, last_tx, node_epoch;
    uint64_t sequences[QR_FACTS_SEQUENCES], txs[QR_FACTS_SEQUENCES]; /* place sequence % SEQUENCES; sequence 0 = none */
} qr_fact_publisher_t;
/* The publisher after `address` in order of addresses: 0 or -QR_E_NOT_FOUND. */
int qr_facts_publisher_next(qr_facts_t *facts, uint64_t address, qr_fact_publisher_t *ret_publisher);
/* Nodes in an order in which parents come first: 1 and an item, 0 at the end, or a negative code. Must be ended before anything is written
 * or closed. */
typedef struct qr_facts_walk qr_facts_walk_t;
qr_facts_walk_t *qr_facts_walk_begin(qr_facts_t *facts);
int qr_facts_walk_next(qr_facts_walk_t *walk, qr_fact_item_t *ret_node);
void qr_facts_walk_end(qr_facts_walk_t **walk);
/* Parts and copies of one node, at most `most`. */
int qr_facts_of_node(qr_facts_t *facts, const uint8_t chain[32], uint32_t kind, qr_fact_item_t *items, uint32_t most, uint32_t *ret_count);

/* ---- local tables (F6) ------------------------------------------------------------------------------------------------------------ */

/* One more reuse of a chunk. */
int qr_facts_reuse_add(qr_facts_t *facts, const uint8_t chain[32], uint32_t times, uint64_t now_us);
/* One more reuse of each chunk of a chain that ends beyond from_row: of `chain`, its parent, and so on. *ret_count: how many. */
int qr_facts_reuse_chain(qr_facts_t *facts, const uint8_t chain[32], uint32_t from_row, uint64_t now_us, uint32_t *ret_count);

/* What was decided, and what came of it: the row of the message decisions_note, as it was told. */
typedef struct qr_fact_decision {
    uint64_t number;      /* from 1 on */
    uint64_t tx, time_us; /* newest transaction then; wall clock */
    uint64_t sender, epoch, request_id, policy_version;
    uint64_t predicted_ram_ns, predicted_ssd_ns, predicted_recompute_ns; /* UINT64_MAX: there was no such way */
    uint64_t ram_row_ns, ssd_row_ns, recompute_row_ns;
    uint64_t ram_samples, ssd_samples, recompute_samples;
    uint64_t outcome_ns, queue_ns, elapsed_ns;
    uint32_t kind, choice, resident_rows, ram_rows, ssd_rows, outcome_rows, reason, unused;
    uint8_t chain[32];
} qr_fact_decision_t;
/* A decision gets the next number and joins the ring of the newest `most` (up to QR_FACTS_DECISIONS_MAX). */
int qr_facts_decision_add(qr_facts_t *facts, qr_fact_decision_t *decision, uint32_t most);
/* The decision of the least number that is there and greater than `number`: 0 or -QR_E_NOT_FOUND. */
int qr_facts_decision_next(qr_facts_t *facts, uint64_t number, qr_fact_decision_t *ret_decision);

/* A policy (messages/schema.def: policy_snapshot). Version 1 is built in and not kept here; a version is never changed. */
typedef struct qr_fact_policy {
    uint64_t version, time_us;
    uint64_t restore_ns, restore_byte_ps, ram_ns, ram_byte_ps, recompute_row_ns;
} qr_fact_policy_t;
/* States one: it gets the next version (2 is the first) and holds from now on; -QR_E_LIMIT at the bound. */
int qr_facts_policy_put(qr_facts_t *facts, qr_fact_policy_t *policy);
/* Of that version; 0: the newest. -QR_E_NOT_FOUND. */
int qr_facts_policy_get(qr_facts_t *facts, uint64_t version, qr_fact_policy_t *ret_policy);

/* A chunk whose bytes were once verified: while all of this is the same they need not be read again. */
typedef struct qr_fact_trust {
    uint8_t boot_id[16];
    uint64_t device, inode, bytes, mtime_ns, ctime_ns;
} qr_fact_trust_t;
int qr_facts_trust_put(qr_facts_t *facts, const uint8_t content_id[32], const qr_fact_trust_t *trust);
/* 0; -QR_E_NOT_FOUND. */
int qr_facts_trust_get(qr_facts_t *facts, const uint8_t content_id[32], qr_fact_trust_t *ret_trust);
int qr_facts_trust_remove(qr_facts_t *facts, const uint8_t content_id[32]);

typedef struct qr_fact_demand {
    uint8_t chain[32];
    uint32_t tier, owner, priority, reserved;
    uint64_t expires_us; /* of the wall clock */
} qr_fact_demand_t;
/* Puts or replaces (by chain, tier and owner); -QR_E_LIMIT at the bound. */
int qr_facts_demand_put(qr_facts_t *facts, const qr_fact_demand_t *demand);
int qr_facts_demand_remove(qr_facts_t *facts, const uint8_t chain[32], uint32_t tier, uint32_t owner);
/* Demands that have not expired, in no order; expired ones are removed on the way. */
int qr_facts_demands(qr_facts_t *facts, uint64_t now_us, qr_fact_demand_t *demands, uint32_t most, uint32_t *ret_count);
uint32_t qr_facts_demand_count(const qr_facts_t *facts);

#endif
