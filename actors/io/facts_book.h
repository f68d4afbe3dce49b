/* facts_book.h - the catalog of one store: its log (store/log.h, the authority) and its facts on LevelDB (store/facts.h, made from the
 * log), opened, healed, written, read and asked together. The io actor `facts` and `quire catalog` use it; one thread, one process.
 *
 *   STORE/log/                     records and snapshots
 *   STORE/facts/view/              LevelDB
 *   STORE/facts/damaged-N/         views that were damaged, renamed aside; the two newest are kept
 *   STORE/facts/as-of/             a state of the past while somebody asks about it
 *   STORE/facts/lock               held (flock) by the process that has the book open
 *
 * B1. A transaction is in the log, durable, before append answers; the view follows, one transaction at a time (catch_up).
 * B2. A damaged view is renamed aside and made again from the newest snapshot and the records behind it; the facts are equal after it.
 * B3. A damaged record that the view already holds costs history only: a snapshot is made of the view, and the log cut below it.
 * B4. A damaged record that the view does not hold: the newest one is renamed aside and the log gets a new identity, so that nobody holds
 *     another transaction of its number; if others follow it the book does not open, and says which file and what to do.
 * B5. What was done about damage is said in one line each (qr_facts_book_report). */
#ifndef QR_IO_FACTS_BOOK_H
#define QR_IO_FACTS_BOOK_H

#include "messages/message.h"
#include "store/facts.h"
#include "store/log.h"

typedef struct qr_facts_book qr_facts_book_t;

typedef struct qr_facts_book_config {
    const char *store;
    uint64_t history_bytes;  /* records and older snapshots beyond this are cut */
    uint64_t snapshot_every; /* records; 0 = 4096 */
    uint64_t log_id;         /* of a log that has none, not 0: random */
    bool existing;           /* refuse a folder without a catalog */
    bool accept_loss;        /* `catalog rebuild`: go on without records that cannot be read (B4) */
    bool rebuild;            /* make the facts again even if they look whole */
} qr_facts_book_config_t;

/* 0; -QR_E_IN_USE: another process holds the store; -QR_E_NOT_FOUND: no catalog there (existing); -QR_E_FORMAT: B4; -QR_E_IO;
 * -QR_E_MEMORY. One sentence in message. */
int qr_facts_book_open(const qr_facts_book_config_t *config, qr_facts_book_t **ret_book, char *message, size_t message_bytes);
/* Accepts NULL, leaves NULL. */
void qr_facts_book_close(qr_facts_book_t **book);
/* What happened since the last call, one sentence per line; empty: nothing. */
const char *qr_facts_book_report(qr_facts_book_t *book);

typedef struct qr_facts_book_state {
    qr_log_tail_t log;
    qr_facts_state_t facts;
    uint64_t oldest_tx; /* oldest state that can be asked for */
    uint64_t rebuilt, snapshots_failed;
    uint32_t demand_count;
} qr_facts_book_state_t;
void qr_facts_book_state(const qr_facts_book_t *book, qr_facts_book_state_t *ret_state);

/* The record of an `append` (schema). 0 or the reason of append_failed; a repeat is 0 again. now_us: wall clock. */
uint32_t qr_facts_book_append(qr_facts_book_t *book, const qr_append_t *append, uint64_t now_us);
/* The answer of a `log_read`: 0 and the body, its columns valid until the next call; else the reason of log_failed. */
uint32_t qr_facts_book_read(qr_facts_book_t *book, const qr_log_read_t *question, qr_log_batch_t *ret_batch);
/* Applies up to `most` records to the view, healing it if needed. 1: there are more; 0: it is as new as the log; negative: it cannot be
 * brought there now. */
int qr_facts_book_catch_up(qr_facts_book_t *book, uint32_t most);
/* After catch_up was negative: it may try again. What kept it (a disk without room) may be over. */
void qr_facts_book_mend(qr_facts_book_t *book);
/* A snapshot and a cut if it is time. 0 or a negative code. */
int qr_facts_book_maintain(qr_facts_book_t *book);
/* A snapshot now. 0 or a negative code. */
int qr_facts_book_snapshot(qr_facts_book_t *book);

/* Items of the state as of a transaction (0: now). 0 or the reason of facts_refused. */
uint32_t qr_facts_book_query(qr_facts_book_t *book, uint64_t as_of_tx, const qr_facts_filter_t *filter, qr_facts_cursor_t *cursor,
                             qr_fact_item_t *items, uint32_t most, uint32_t *ret_count, uint64_t *ret_tx);
/* The facts themselves, as new as the log, for their local tables (store/facts.h); NULL: they cannot be had now. Valid until the next call.
 */
qr_facts_t *qr_facts_book_view(qr_facts_book_t *book);
/* One record as the message it is (columns valid until the next call). 0 or a negative code. */
int qr_facts_book_record(qr_facts_book_t *book, uint64_t tx, const qr_append_t **ret_append);
/* A snapshot of the facts takes the place of all records and snapshots (B3). 0 or a negative code. */
int qr_facts_book_renew(qr_facts_book_t *book);
/* Reads every record, every page and every fact. Damage found: how many, and one line each in the report. */
uint32_t qr_facts_book_verify(qr_facts_book_t *book);

/* Whether these bytes are the payload of record `tx` (fuzzing): 0 or a negative code. arena: of QR_CODEC_ARENA_BYTES(count). */
int qr_facts_record_decode(const uint8_t *payload, uint32_t bytes, uint64_t tx, void *arena, uint64_t arena_bytes,
                           qr_message_t *ret_message);

#endif
