/* catalog_batch.h - the columns of the catalog's messages (append, log_batch, tail_batch, publish) seen alike, judged, and walked row by
 * row. A pure evaluator of catalog_writer and catalog_replica.
 *
 * B1. Only a batch that qr_catalog_batch_valid accepted is walked: then every index below is inside its column.
 * B2. A replica's owner is the node of its publisher; the object store has none. */
#ifndef QR_CATALOG_BATCH_H
#define QR_CATALOG_BATCH_H

#include "messages/message.h"

/* Layouts (fingerprints) of one catalog; a publish of one more is refused LIMIT. */
enum { QR_CATALOG_LAYOUTS = 16 };

/* X(kind, name): columns over changes, and over rows, in the order of the schema. */
#define QR_CATALOG_CHANGE_COLUMNS(X)                                                                                                       \
    X(qr_bytes_t, kinds)                                                                                                                   \
    X(qr_bytes_t, tiers)                                                                                                                   \
    X(qr_u32s_t, groups)                                                                                                                   \
    X(qr_bytes_t, chains)                                                                                                                  \
    X(qr_bytes_t, digests)                                                                                                                 \
    X(qr_u32s_t, starts)                                                                                                                   \
    X(qr_u32s_t, counts)                                                                                                                   \
    X(qr_u64s_t, sizes)
#define QR_CATALOG_ROW_COLUMNS(X)                                                                                                          \
    X(qr_u64s_t, txs)                                                                                                                      \
    X(qr_u64s_t, writer_epochs)                                                                                                            \
    X(qr_u64s_t, publishers)                                                                                                               \
    X(qr_u64s_t, publisher_epochs)                                                                                                         \
    X(qr_u64s_t, node_epochs)                                                                                                              \
    X(qr_u64s_t, sequences)                                                                                                                \
    X(qr_bytes_t, fingerprints)                                                                                                            \
    X(qr_u32s_t, chunk_tokens)                                                                                                             \
    X(qr_u32s_t, group_counts)                                                                                                             \
    X(qr_u32s_t, windows)                                                                                                                  \
    X(qr_u32s_t, change_counts)

typedef struct qr_catalog_changes {
#define X(kind, name) kind name;
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
} qr_catalog_changes_t;

typedef struct qr_catalog_batch {
#define X(kind, name) kind name;
    QR_CATALOG_ROW_COLUMNS(X)
#undef X
    qr_catalog_changes_t changes;
} qr_catalog_batch_t;

/* The columns of a message body, or of a block of the same names. */
#define QR_CATALOG_CHANGES(body)                                                                                                           \
    {                                                                                                                                      \
        (body)->kinds, (body)->tiers, (body)->groups, (body)->chains, (body)->digests, (body)->starts, (body)->counts, (body)->sizes       \
    }
#define QR_CATALOG_BATCH(body)                                                                                                             \
    {                                                                                                                                      \
        (body)->txs, (body)->writer_epochs, (body)->publishers, (body)->publisher_epochs, (body)->node_epochs, (body)->sequences,          \
            (body)->fingerprints, (body)->chunk_tokens, (body)->group_counts, (body)->windows, (body)->change_counts,                      \
            QR_CATALOG_CHANGES(body)                                                                                                       \
    }

/* One row: a publish inside a transaction (publisher 0: a writer's claim, or a snapshot's bare facts). */
typedef struct qr_catalog_row {
    uint64_t tx, writer_epoch, publisher, publisher_epoch, node_epoch, sequence;
    const uint8_t *fingerprint; /* [32] */
    const uint32_t *windows;    /* [group_count] */
    uint32_t chunk_tokens, group_count;
    uint32_t first_change, change_count;
    uint32_t index, next_window; /* the walk's own */
} qr_catalog_row_t;

/* Whether changes [first, first + count) fit a layout; lengths of the columns must be equal already. */
bool qr_catalog_changes_valid(const qr_catalog_changes_t *changes, uint32_t first, uint32_t count, uint32_t chunk_tokens,
                              uint32_t group_count);
/* Whether all columns over changes have `*ret_count` entries. */
bool qr_catalog_changes_even(const qr_catalog_changes_t *changes, uint32_t *ret_count);
/* B1. Transactions (`whole`): rows of first_tx .. last_tx without a gap, in order. Snapshot pages: any txs. */
bool qr_catalog_batch_valid(const qr_catalog_batch_t *batch, bool whole, uint64_t first_tx, uint64_t last_tx);
/* Walks: *row zeroed before the first call; false after the last row. */
bool qr_catalog_row_next(const qr_catalog_batch_t *batch, qr_catalog_row_t *row);

#endif
