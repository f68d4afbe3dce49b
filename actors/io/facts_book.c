/* facts_book.c - see facts_book.h. */
#define _GNU_SOURCE
#include "actors/io/facts_book.h"

#include "actors/catalog_batch.h"
#include "base/error.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/schema.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES = 1024,
    REPORT_BYTES = 8192,
    READ_BYTES = 1 << 20,  /* records of one log_batch, about; at least one */
    PAGE_BYTES = 1 << 18,  /* of a snapshot's message, about */
    LOOKS = 65536,         /* facts that one page of a query looks at */
    SYNC_EVERY = 64,       /* transactions; LevelDB is made durable that often */
    SNAPSHOT_EVERY = 4096, /* records */
    SNAPSHOTS_KEPT = 8,
    DAMAGED_KEPT = 2,
    TRIES = 2, /* to make the view again before something else is to blame: a disk without room */
    ITEMS_OF_NODE = QR_GROUPS_MAX * 128,
    PAGE_BATCH = 'B',
    PAGE_VIEW = 'V'
};

_Static_assert((int)QR_FACT_NODE == (int)QR_CATALOG_NODE && (int)QR_FACT_DROP == (int)QR_CATALOG_DROP, "one vocabulary");
_Static_assert((int)QR_FACT_RAM == (int)QR_TIER_RAM && (int)QR_FACT_OBJECT == (int)QR_TIER_OBJECT, "one vocabulary");
_Static_assert((int)QR_FACTS_LAYOUTS_MAX >= (int)QR_CATALOG_LAYOUTS, "every layout that the writer takes");
_Static_assert((int)SNAPSHOTS_KEPT < (int)QR_LOG_SNAPSHOTS_MAX, "there is room for the next one");

/* A column that grows. */
typedef struct column {
    uint8_t *data;
    size_t bytes, capacity;
} column_t;

typedef struct columns {
#define X(kind, name) column_t name;
    QR_CATALOG_ROW_COLUMNS(X)
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    uint32_t row_count;
} columns_t;

struct qr_facts_book {
    qr_facts_book_config_t config;
    char store[PATH_BYTES], view_path[PATH_BYTES + 32], as_of_path[PATH_BYTES + 32];
    int lock;
    qr_log_t log;
    qr_facts_t *view, *as_of;
    uint64_t bytes_at_snapshot, unsynced, rebuilt, snapshots_failed;
    uint32_t tries; /* views made again since one was last as new as the log */
    bool aside;     /* what was damaged is kept already: what failed to take its place is not */
    bool broken;    /* the view cannot be made again now: until qr_facts_book_mend */
    columns_t columns;
    void *arena_memory;
    uint8_t *wire; /* [QR_LOG_RECORD_BYTES_MAX] */
    qr_message_t message;
    char report[REPORT_BYTES], told[REPORT_BYTES];
    size_t report_used;
};

static void __attribute__((format(printf, 2, 3))) say(qr_facts_book_t *book, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int count = vsnprintf(book->report + book->report_used, REPORT_BYTES - book->report_used - 1, format, list);
    va_end(list);
    if (count <= 0) return;
    book->report_used += qr_min_u64((uint64_t)count, REPORT_BYTES - book->report_used - 2);
    book->report[book->report_used++] = '\n';
    book->report[book->report_used] = 0;
    if (book->report_used > REPORT_BYTES - 512) book->report_used = REPORT_BYTES - 512; /* the last of many lines is written over */
}

const char *qr_facts_book_report(qr_facts_book_t *book)
{
    memcpy(book->told, book->report, book->report_used + 1);
    book->told[book->report_used] = 0;
    book->report_used = 0;
    book->report[0] = 0;
    return book->told;
}

static qr_log_tail_t tail_of(const qr_facts_book_t *book)
{
    qr_log_tail_t tail;
    book->log.class->tail(book->log.self, &tail);
    return tail;
}

static qr_facts_state_t state_of(const qr_facts_book_t *book)
{
    qr_facts_state_t state = {.damaged = true};
    if (book->view) qr_facts_state(book->view, &state);
    return state;
}

static uint64_t random_id(void)
{
    uint64_t id = 0;
    while (id == 0)
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = (uint64_t)getpid();
    return id;
}

/* ---- columns ---------------------------------------------------------------------------------------------------------------- */

static int column_add(column_t *c, const void *data, size_t bytes)
{
    if (bytes > c->capacity - c->bytes) {
        size_t capacity = qr_max_u64(2 * c->capacity, qr_max_u64(4096, c->bytes + bytes));
        uint8_t *grown = realloc(c->data, capacity);
        if (!grown) return -QR_E_MEMORY;
        c->data = grown;
        c->capacity = capacity;
    }
    qr_copy(c->data + c->bytes, data, bytes);
    c->bytes += bytes;
    return 0;
}

static void columns_clear(columns_t *c)
{
#define X(kind, name) c->name.bytes = 0;
    QR_CATALOG_ROW_COLUMNS(X)
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    c->row_count = 0;
}

static void columns_done(columns_t *c)
{
#define X(kind, name) free(c->name.data);
    QR_CATALOG_ROW_COLUMNS(X) QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
}

/* Appends all rows of a valid batch. */
static int columns_add(columns_t *c, const qr_catalog_batch_t *b)
{
    int code = 0;
#define X(kind, name) code = code ? code : column_add(&c->name, b->name.data, (size_t)b->name.count * sizeof *b->name.data);
    QR_CATALOG_ROW_COLUMNS(X)
#undef X
#define X(kind, name)                                                                                                                      \
    code = code ? code : column_add(&c->name, b->changes.name.data, (size_t)b->changes.name.count * sizeof *b->changes.name.data);
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    c->row_count += (uint32_t)b->txs.count;
    return code;
}

static size_t columns_bytes(const columns_t *c)
{
    size_t sum = 0;
#define X(kind, name) sum += c->name.bytes;
    QR_CATALOG_ROW_COLUMNS(X)
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    return sum;
}

static size_t batch_bytes(const qr_catalog_batch_t *b)
{
    size_t sum = 0;
#define X(kind, name) sum += (size_t)b->name.count * sizeof *b->name.data;
    QR_CATALOG_ROW_COLUMNS(X)
#undef X
#define X(kind, name) sum += (size_t)b->changes.name.count * sizeof *b->changes.name.data;
    QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
    return sum;
}

/* As fields of a message. */
static void columns_fill(const columns_t *c, qr_log_batch_t *b)
{
#define X(kind, name)                                                                                                                      \
    b->name.data = (const void *)c->name.data;                                                                                             \
    b->name.count = c->name.bytes / sizeof *b->name.data;
    QR_CATALOG_ROW_COLUMNS(X) QR_CATALOG_CHANGE_COLUMNS(X)
#undef X
}

#define ADD(column, value) (code = code ? code : column_add(&c->column, &(value), sizeof(value)))

/* A row without changes yet. */
static int row_add(columns_t *c, const qr_catalog_row_t *row)
{
    int code = 0;
    uint32_t none = 0;
    ADD(txs, row->tx);
    ADD(writer_epochs, row->writer_epoch);
    ADD(publishers, row->publisher);
    ADD(publisher_epochs, row->publisher_epoch);
    ADD(node_epochs, row->node_epoch);
    ADD(sequences, row->sequence);
    ADD(chunk_tokens, row->chunk_tokens);
    ADD(group_counts, row->group_count);
    ADD(change_counts, none);
    if (!code) code = column_add(&c->fingerprints, row->fingerprint, 32);
    if (!code) code = column_add(&c->windows, row->windows, 4 * (size_t)row->group_count);
    c->row_count += code == 0;
    return code;
}

static int change_add(columns_t *c, uint8_t kind, const qr_fact_item_t *item)
{
    static const uint8_t zero[32];
    uint8_t tier = (uint8_t)item->tier;
    uint32_t group = kind == QR_CATALOG_NODE ? 0 : item->group, start = kind == QR_CATALOG_NODE ? item->start : 0,
             count = kind == QR_CATALOG_NODE ? item->count : 0;
    uint64_t size = kind == QR_CATALOG_PART ? item->bytes : 0;
    int code = 0;
    ADD(kinds, kind);
    ADD(tiers, tier);
    ADD(groups, group);
    ADD(starts, start);
    ADD(counts, count);
    ADD(sizes, size);
    if (!code) code = column_add(&c->chains, item->chain, 32);
    if (!code) code = column_add(&c->digests, kind == QR_CATALOG_REPLICA ? zero : item->digest, 32);
    if (code) return code;
    uint32_t changes;
    uint8_t *last = c->change_counts.data + c->change_counts.bytes - 4;
    memcpy(&changes, last, 4);
    changes++;
    memcpy(last, &changes, 4);
    return 0;
}

/* ---- records ------------------------------------------------------------------------------------------------------------------- */

static qr_catalog_batch_t batch_of(const qr_append_t *a)
{
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(a);
    return batch;
}

int qr_facts_record_decode(const uint8_t *payload, uint32_t bytes, uint64_t tx, void *arena_memory, uint64_t arena_bytes,
                           qr_message_t *ret_message)
{
    qr_arena_t arena;
    qr_arena_init(&arena, arena_memory, arena_bytes);
    if (qr_codec_decode(payload, bytes, &arena, ret_message) || ret_message->type != QR_MESSAGE_append) return -QR_E_FORMAT;
    const qr_append_t *a = &ret_message->body.append;
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(a);
    return a->tx == tx && qr_catalog_batch_valid(&batch, true, tx, tx) ? 0 : -QR_E_FORMAT;
}

int qr_facts_book_record(qr_facts_book_t *book, uint64_t tx, const qr_append_t **ret_append)
{
    qr_log_record_t record;
    int code = book->log.class->read_from(book->log.self, tx, &record);
    if (!code)
        code = qr_facts_record_decode(record.payload, record.bytes, tx, book->arena_memory, QR_CODEC_ARENA_BYTES(QR_LOG_RECORD_BYTES_MAX),
                                      &book->message);
    if (!code && book->message.body.append.writer_epoch != record.writer_epoch) code = -QR_E_FORMAT;
    *ret_append = &book->message.body.append;
    return code;
}

static int apply_record(qr_facts_book_t *book, qr_facts_t *view, uint64_t tx, bool sync)
{
    const qr_append_t *a;
    int code = qr_facts_book_record(book, tx, &a);
    if (code) return code == -QR_E_NOT_FOUND ? -QR_E_FORMAT : code;
    const qr_catalog_batch_t batch = batch_of(a);
    code = qr_facts_begin(view, tail_of(book).log_id, tx, a->writer_epoch, a->time_us);
    for (qr_catalog_row_t row = {0}; !code && qr_catalog_row_next(&batch, &row);) {
        size_t at = row.first_change;
        const qr_fact_row_t fact = {.publisher = row.publisher,
                                    .publisher_epoch = row.publisher_epoch,
                                    .node_epoch = row.node_epoch,
                                    .sequence = row.sequence,
                                    .fingerprint = row.fingerprint,
                                    .windows = row.windows,
                                    .chunk_tokens = row.chunk_tokens,
                                    .group_count = row.group_count,
                                    .change_count = row.change_count,
                                    .owner = qr_address_node(row.publisher),
                                    .kinds = batch.changes.kinds.data + at,
                                    .tiers = batch.changes.tiers.data + at,
                                    .chains = batch.changes.chains.data + 32 * at,
                                    .digests = batch.changes.digests.data + 32 * at,
                                    .groups = batch.changes.groups.data + at,
                                    .starts = batch.changes.starts.data + at,
                                    .counts = batch.changes.counts.data + at,
                                    .sizes = batch.changes.sizes.data + at};
        code = qr_facts_apply_row(view, &fact);
    }
    return code ? code : qr_facts_commit(view, sync);
}

/* ---- making the view again ------------------------------------------------------------------------------------------------------- */

/* Loads a snapshot into a view that was just made. */
static int load_snapshot(qr_facts_book_t *book, qr_facts_t *view, uint64_t tx)
{
    qr_log_record_t page;
    uint64_t pages = 1;
    int code = 0;
    for (uint64_t i = 0; !code && i < pages; i++) {
        code = book->log.class->snapshot_page(book->log.self, tx, i, &page, &pages);
        if (!code && (page.bytes == 0 || (page.payload[0] != PAGE_BATCH && page.payload[0] != PAGE_VIEW))) code = -QR_E_FORMAT;
        if (!code && page.payload[0] == PAGE_VIEW) code = qr_facts_load(view, page.payload + 1, page.bytes - 1);
    }
    if (!code) code = qr_facts_load_end(view, tail_of(book).log_id);
    qr_facts_state_t state;
    qr_facts_state(view, &state);
    return code ? code : state.tx == tx ? 0 : -QR_E_FORMAT;
}

/* A view in `folder` as of the newest snapshot not above `most` that can be read, or empty if the log reaches back to its beginning. */
static int view_from_snapshot(qr_facts_book_t *book, const char *folder, uint64_t most, qr_facts_t **ret_view)
{
    char message[256];
    for (;;) {
        qr_log_tail_t tail = tail_of(book);
        uint32_t i = tail.snapshot_count;
        while (i && tail.snapshots[i - 1] > most) i--;
        bool whole = i == 0;
        if (whole && tail.oldest != 1 && tail.newest && !book->config.accept_loss) return -QR_E_FORMAT;
        if (qr_facts_remove(folder)) return -QR_E_IO;
        int code = qr_facts_open(folder, ret_view, message, sizeof message);
        if (code || whole) return code;
        code = load_snapshot(book, *ret_view, tail.snapshots[i - 1]);
        if (!code) return 0;
        qr_facts_close(ret_view, false);
        if (code != -QR_E_FORMAT) return code;
        say(book, "the snapshot of transaction %llu is damaged; it is kept in '%s/log/quarantine'",
            (unsigned long long)tail.snapshots[i - 1], book->store);
        if (book->log.class->quarantine(book->log.self, tail.snapshots[i - 1], true)) return -QR_E_IO;
    }
}

/* Renames the damaged view aside. */
static int view_aside(qr_facts_book_t *book)
{
    char folder[PATH_BYTES + 32], name[64];
    (void)snprintf(folder, sizeof folder, "%s/facts", book->store);
    int code = qr_facts_set_aside(folder, "view", DAMAGED_KEPT, name, sizeof name);
    if (!code) say(book, "the damaged facts are kept in '%s/%s'", folder, name);
    return code == -QR_E_NOT_FOUND ? 0 : code;
}

/* Records up to the newest. Damage: -QR_E_FORMAT and its number. */
static int apply_all(qr_facts_book_t *book, qr_facts_t *view, uint64_t most, uint64_t *ret_at)
{
    qr_facts_state_t state;
    qr_facts_state(view, &state);
    for (uint64_t tx = state.tx + 1; tx <= most; tx++) {
        *ret_at = tx;
        int code = apply_record(book, view, tx, false);
        if (code) return code;
    }
    return 0;
}

/* B2. */
static int rebuild_view(qr_facts_book_t *book, const char *why)
{
    qr_facts_close(&book->view, false);
    bool keep = why && !book->aside;
    if (keep) say(book, "the facts in '%s' are damaged (%s); they are made again from the log", book->view_path, why);
    int code = keep ? view_aside(book) : qr_facts_remove(book->view_path);
    if (!code) book->aside = keep || book->aside;
    if (!code) code = view_from_snapshot(book, book->view_path, UINT64_MAX, &book->view);
    book->rebuilt += code == 0 && why;
    return code;
}

/* B4: record `tx` cannot be read and the view does not hold it. */
static int lose_record(qr_facts_book_t *book, uint64_t tx, char *message, size_t message_bytes)
{
    qr_log_tail_t tail = tail_of(book);
    qr_facts_state_t state = state_of(book);
    if (tx != tail.newest && !book->config.accept_loss) {
        (void)snprintf(message, message_bytes,
                       "record %llu of the catalog's log in '%.400s/log' is damaged and nothing else holds it; put back an intact copy, or "
                       "run `quire catalog rebuild "
                       "--store %.400s --accept-loss` to go on without it",
                       (unsigned long long)tx, book->store, book->store);
        return -QR_E_FORMAT;
    }
    /* The new identity first: a kill between the two finds the damaged record again. */
    int code = QR_MUTANT(583) ? 0 : book->log.class->renew(book->log.self, random_id());
    say(book, "record %llu of the catalog's log is damaged and lost; it is kept in '%s/log/quarantine', and the log begins a new identity",
        (unsigned long long)tx, book->store);
    if (!code) code = book->log.class->quarantine(book->log.self, tx, false);
    if (code || tx == tail.newest) return code;
    /* accept_loss: what follows it is applied over what is there, and a snapshot makes the log whole again. */
    code = qr_facts_begin(book->view, tail_of(book).log_id, tx, state.writer_epoch, 0);
    return code ? code : qr_facts_commit(book->view, false);
}

/* Whether the log's record of the view's transaction is the one that the view applied. */
static bool same_log(qr_facts_book_t *book, const qr_facts_state_t *state, const qr_log_tail_t *tail)
{
    const qr_append_t *a;
    if (state->tx == 0 || state->log_id == tail->log_id) return true;
    for (uint32_t i = 0; i < tail->snapshot_count; i++)
        if (tail->snapshots[i] == state->tx) return true;
    if (state->tx < tail->oldest || state->tx > tail->newest) return tail->newest == 0;
    return qr_facts_book_record(book, state->tx, &a) == 0 && a->writer_epoch == state->writer_epoch;
}

/* Brings view and log together (B2 to B4). */
static int recover(qr_facts_book_t *book, const char *damage, char *message, size_t message_bytes)
{
    qr_log_tail_t tail = tail_of(book);
    qr_facts_state_t state = state_of(book);
    int code = 0;
    bool again = damage || book->config.rebuild;
    if (!again && !same_log(book, &state, &tail)) again = true, damage = "they are of another log";
    if (!again && (state.tx + 1 < tail.oldest || (state.tx == 0 && tail.snapshot_count))) again = true; /* a snapshot is nearer */
    if (again) code = rebuild_view(book, damage);
    if (code == -QR_E_NO_SPACE)
        return (void)snprintf(message, message_bytes,
                              "the catalog's facts in '%.400s' cannot be made again: its disk is full; make room on it", book->store),
               code;
    if (code) {
        (void)snprintf(message, message_bytes,
                       "the catalog's facts in '%.400s' cannot be made again: its log does not reach back to its beginning and no snapshot "
                       "can be read; "
                       "`quire catalog rebuild --store %.400s --accept-loss` makes them of what is left",
                       book->store, book->store);
        return code;
    }
    state = state_of(book);
    if (state.tx > tail.newest) { /* the log lost acknowledged records: the facts hold them (B3) */
        say(book, "the catalog's log ends at transaction %llu, the facts hold %llu; a snapshot of the facts takes their place",
            (unsigned long long)tail.newest, (unsigned long long)state.tx);
        code = qr_facts_book_snapshot(book);
        if (!code) code = book->log.class->cut(book->log.self, state.tx);
        if (code) (void)snprintf(message, message_bytes, "no snapshot of the catalog can be written in '%.400s/log'", book->store);
        return code;
    }
    bool lost = false;
    if (book->config.accept_loss && state.tx + 1 < tail.oldest) { /* nothing holds what came before */
        say(book, "transactions before %llu of the catalog's log are lost; the log begins a new identity", (unsigned long long)tail.oldest);
        code = book->log.class->renew(book->log.self, random_id());
        if (!code) code = qr_facts_begin(book->view, tail_of(book).log_id, tail.oldest - 1, state.writer_epoch, 0);
        if (!code) code = qr_facts_commit(book->view, false);
        if (code) return (void)snprintf(message, message_bytes, "the store '%.400s' cannot be written", book->store), code;
        lost = true;
    }
    for (bool once = true;;) {
        uint64_t at = 0;
        code = apply_all(book, book->view, tail_of(book).newest, &at);
        if (code && state_of(book).damaged && once) {
            once = false;
            code = rebuild_view(book, "a table cannot be read or written");
            if (code) break;
            continue;
        }
        if (code != -QR_E_FORMAT || state_of(book).damaged) break;
        code = lose_record(book, at, message, message_bytes);
        if (code) return code;
        lost = true;
    }
    if (code)
        return (void)snprintf(message, message_bytes, "the facts in '%.400s' cannot be written: %s", book->store, qr_error_sentence(code)),
               code;
    state = state_of(book);
    if (!lost || state.tx == 0 || !book->config.accept_loss) return 0;
    code = qr_facts_book_snapshot(book);
    return code ? code : book->log.class->cut(book->log.self, state.tx);
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------------- */

static int make_folders(qr_facts_book_t *book, char *message, size_t message_bytes)
{
    char path[PATH_BYTES + 32];
    struct stat status;
    (void)snprintf(path, sizeof path, "%s/log/id", book->store);
    if (book->config.existing && stat(path, &status) != 0)
        return snprintf(message, message_bytes,
                        "'%.500s' holds no catalog (no file log/id); name the folder that `quire serve --store` was given", book->store),
               -QR_E_NOT_FOUND;
    (void)snprintf(path, sizeof path, "%s", book->store);
    for (char *at = path + 1; *at; at++) { /* parents too */
        if (*at != '/') continue;
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof path, "%s/facts", book->store);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return snprintf(message, message_bytes, "cannot make the folder '%.500s': %s", path, strerror(errno)), -QR_E_IO;
    return 0;
}

static int take_lock(qr_facts_book_t *book, char *message, size_t message_bytes)
{
    char path[PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/facts/lock", book->store);
    book->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (book->lock < 0) return snprintf(message, message_bytes, "cannot open '%.500s': %s", path, strerror(errno)), -QR_E_IO;
    if (flock(book->lock, LOCK_EX | LOCK_NB) == 0) return 0;
    (void)snprintf(message, message_bytes,
                   "the catalog in '%.500s' is in use by another process; stop the server that has it, or name another --store",
                   book->store);
    return -QR_E_IN_USE;
}

static int open_parts(qr_facts_book_t *book, char *message, size_t message_bytes)
{
    char path[PATH_BYTES + 32], damage[256];
    int code = make_folders(book, message, message_bytes);
    if (!code) code = take_lock(book, message, message_bytes);
    if (code) return code;
    book->arena_memory = aligned_alloc(64, qr_round_up(QR_CODEC_ARENA_BYTES(QR_LOG_RECORD_BYTES_MAX), 64));
    book->wire = malloc(QR_LOG_RECORD_BYTES_MAX);
    if (!book->arena_memory || !book->wire) return snprintf(message, message_bytes, "not enough memory"), -QR_E_MEMORY;
    (void)snprintf(path, sizeof path, "%s/log", book->store);
    code = qr_log_open_folder(path, book->config.log_id ? book->config.log_id : random_id(), true, &book->log, message, message_bytes);
    if (code) return code;
    (void)qr_facts_remove(book->as_of_path);
    code = qr_facts_open(book->view_path, &book->view, damage, sizeof damage);
    if (code == -QR_E_NO_SPACE)
        return snprintf(message, message_bytes, "'%.500s' cannot be opened: its disk is full (%s); make room on it", book->view_path,
                        damage),
               code;
    if (code && code != -QR_E_FORMAT) return snprintf(message, message_bytes, "'%.500s': %s", book->view_path, damage), code;
    code = recover(book, code ? damage : NULL, message, message_bytes);
    book->bytes_at_snapshot = tail_of(book).bytes;
    return code;
}

int qr_facts_book_open(const qr_facts_book_config_t *config, qr_facts_book_t **ret_book, char *message, size_t message_bytes)
{
    qr_facts_book_t *book = calloc(1, sizeof *book);
    if (!book) return snprintf(message, message_bytes, "not enough memory"), -QR_E_MEMORY;
    book->config = *config;
    book->lock = -1;
    int code = snprintf(book->store, sizeof book->store, "%s", config->store) < (int)sizeof book->store ? 0 : -QR_E_LIMIT;
    (void)snprintf(book->view_path, sizeof book->view_path, "%s/facts/view", book->store);
    (void)snprintf(book->as_of_path, sizeof book->as_of_path, "%s/facts/as-of", book->store);
    if (code) (void)snprintf(message, message_bytes, "the name of the store is too long");
    if (!code) code = open_parts(book, message, message_bytes);
    if (code) {
        qr_facts_book_close(&book);
        return code;
    }
    *ret_book = book;
    return 0;
}

static void as_of_close(qr_facts_book_t *book)
{
    if (!book->as_of) return;
    qr_facts_close(&book->as_of, false);
    (void)qr_facts_remove(book->as_of_path);
}

void qr_facts_book_close(qr_facts_book_t **self)
{
    qr_facts_book_t *book = *self;
    if (!book) return;
    *self = NULL;
    as_of_close(book);
    qr_facts_close(&book->view, true);
    if (book->log.class) qr_log_close(&book->log);
    if (book->lock >= 0) (void)close(book->lock);
    columns_done(&book->columns);
    free(book->arena_memory);
    free(book->wire);
    free(book);
}

static uint64_t oldest_of(const qr_log_tail_t *tail)
{
    return tail->oldest == 1 ? 1 : tail->snapshot_count ? tail->snapshots[0] : tail->newest;
}

void qr_facts_book_state(const qr_facts_book_t *book, qr_facts_book_state_t *ret_state)
{
    qr_log_tail_t tail = tail_of(book);
    *ret_state = (qr_facts_book_state_t){.log = tail,
                                         .facts = state_of(book),
                                         .oldest_tx = oldest_of(&tail),
                                         .rebuilt = book->rebuilt,
                                         .snapshots_failed = book->snapshots_failed,
                                         .demand_count = book->view ? qr_facts_demand_count(book->view) : 0};
}

/* ---- appending -------------------------------------------------------------------------------------------------------------------------
 */

static uint32_t nodes_in(const qr_append_t *a)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < a->kinds.count; i++) count += a->kinds.data[i] == QR_CATALOG_NODE;
    return count;
}

uint32_t qr_facts_book_append(qr_facts_book_t *book, const qr_append_t *a, uint64_t now_us)
{
    qr_log_tail_t tail = tail_of(book);
    const qr_catalog_batch_t batch = batch_of(a);
    if (!qr_catalog_batch_valid(&batch, true, a->tx, a->tx)) return QR_E_INVALID;
    for (uint64_t i = 0; i < a->writer_epochs.count; i++)
        if (a->writer_epochs.data[i] != a->writer_epoch) return QR_E_INVALID;
    if (a->tx <= tail.newest) { /* a repeat, or another's number */
        qr_log_record_t record;
        bool repeat = book->log.class->read_from(book->log.self, a->tx, &record) == 0 && record.writer_epoch == a->writer_epoch;
        return repeat && !QR_MUTANT(584) ? 0 : QR_E_STALE;
    }
    if (a->tx != tail.newest + 1 || (a->writer_epoch < tail.newest_epoch && !QR_MUTANT(585))) return QR_E_STALE;
    if (state_of(book).node_count + nodes_in(a) > QR_FACTS_NODES_MAX) return QR_E_LIMIT;
    qr_message_t message = {
        .type = QR_MESSAGE_append, .version = QR_MESSAGE_VERSION, .epoch = a->writer_epoch, .sequence = a->tx, .body.append = *a};
    message.body.append.time_us = now_us;
    int64_t bytes = qr_codec_encode(&message, book->wire, QR_LOG_RECORD_BYTES_MAX);
    if (bytes <= 0 || bytes > QR_LOG_RECORD_BYTES_MAX - 256) return QR_E_LIMIT; /* a log_batch of it needs a little more */
    int code = book->log.class->append_at(book->log.self, a->tx, a->writer_epoch, book->wire, (uint32_t)bytes);
    return code == -QR_E_IN_USE ? QR_E_STALE : (uint32_t)-code;
}

/* ---- the view follows
 * --------------------------------------------------------------------------------------------------------------------- */

/* B3: damaged records that the view holds. */
static int heal_log(qr_facts_book_t *book, uint64_t tx)
{
    qr_facts_state_t state = state_of(book);
    if (state.damaged || state.tx < tx || state.tx != tail_of(book).newest) return -QR_E_FORMAT;
    say(book, "record %llu of the catalog's log is damaged; the facts hold it: a snapshot of them takes the place of all records",
        (unsigned long long)tx);
    int code = book->log.class->quarantine(book->log.self, tx, false);
    if (!code) code = qr_facts_book_snapshot(book);
    return code ? code : book->log.class->cut(book->log.self, state.tx);
}

void qr_facts_book_mend(qr_facts_book_t *book)
{
    if (QR_MUTANT(589)) return;
    book->broken = false;
    book->tries = 0;
}

int qr_facts_book_catch_up(qr_facts_book_t *book, uint32_t most)
{
    if (book->broken) return -QR_E_FORMAT;
    while (most--) {
        qr_facts_state_t state = state_of(book);
        if (state.damaged) {
            int code = book->tries++ < TRIES || QR_MUTANT(590) ? rebuild_view(book, "a table cannot be read or written") : -QR_E_IO;
            if (code) {
                book->broken = true;
                say(book, "the facts cannot be made again: %s", qr_error_sentence(code));
                return code;
            }
            continue;
        }
        if (state.tx >= tail_of(book).newest) {
            book->tries = 0;
            book->aside = false;
            return 0;
        }
        bool sync = ++book->unsynced >= SYNC_EVERY;
        if (sync) book->unsynced = 0;
        int code = apply_record(book, book->view, state.tx + 1, sync);
        if (code && state_of(book).damaged) continue;
        if (code) return code;
    }
    return state_of(book).tx < tail_of(book).newest;
}

/* ---- snapshots
 * -------------------------------------------------------------------------------------------------------------------------------- */

/* What the pages of a snapshot are made of, one after another: messages for whoever begins, then the view itself. */
typedef struct source {
    qr_facts_book_t *book;
    qr_facts_walk_t *walk;
    qr_facts_dump_t *dump;
    qr_facts_state_t state;
    uint64_t page, publisher; /* last publisher told */
    qr_fact_layout_t layouts[QR_FACTS_LAYOUTS_MAX];
    qr_fact_item_t parts[QR_GROUPS_MAX], copies[ITEMS_OF_NODE];
    bool nodes_done, publishers_done;
    uint8_t page_bytes[QR_FACTS_PAGE_BYTES + 4096];
} source_t;

static qr_catalog_row_t row_of(const source_t *s, uint32_t layout, uint64_t publisher, uint64_t node_epoch, uint64_t tx)
{
    const qr_fact_layout_t *l = &s->layouts[layout];
    return (qr_catalog_row_t){.tx = tx,
                              .writer_epoch = s->state.writer_epoch,
                              .publisher = publisher,
                              .node_epoch = node_epoch,
                              .fingerprint = l->fingerprint,
                              .windows = l->windows,
                              .chunk_tokens = l->chunk_tokens,
                              .group_count = l->group_count};
}

/* Rows of one node: what it is and its copies, a row per owner. Copies in the object store are nobody's. */
static int node_rows(source_t *s, const qr_fact_item_t *node)
{
    columns_t *c = &s->book->columns;
    uint32_t part_count, copy_count;
    uint64_t publisher = 0, epoch = 0, tx = 0;
    if (node->layout >= s->state.layout_count) return -QR_E_FORMAT;
    int code = qr_facts_of_node(s->book->view, node->chain, QR_FACTS_PARTS, s->parts, QR_GROUPS_MAX, &part_count);
    if (!code) code = qr_facts_of_node(s->book->view, node->chain, QR_FACTS_REPLICAS, s->copies, ITEMS_OF_NODE, &copy_count);
    if (code) return code;
    bool named = false; /* node and parts are said in the first row */
    for (uint32_t i = 0; !code && (i < copy_count || !named); i++) {
        uint32_t owner = i < copy_count && s->copies[i].tier != QR_TIER_OBJECT ? s->copies[i].owner : 0;
        bool first = true; /* of its owner */
        for (uint32_t k = 0; k < i; k++) first = first && !(s->copies[k].owner == owner && s->copies[k].tier != QR_TIER_OBJECT);
        if (named && (owner == 0 || !first)) continue;
        if (!named && owner == 0 && i + 1 < copy_count) continue; /* a later copy has an owner */
        if (owner == 0) {                                         /* any publisher: the first one */
            qr_fact_publisher_t p;
            code = qr_facts_publisher_next(s->book->view, 0, &p);
            owner = code ? 0 : qr_address_node(p.address);
        }
        if (!code) code = qr_facts_owner(s->book->view, owner, &epoch, &tx, &publisher);
        if (code) return code == -QR_E_NOT_FOUND ? -QR_E_FORMAT : code;
        qr_catalog_row_t row = row_of(s, node->layout, publisher, epoch, tx);
        code = row_add(c, &row);
        if (!code && !named) code = change_add(c, QR_CATALOG_NODE, node);
        for (uint32_t k = 0; !code && !named && k < part_count; k++) code = change_add(c, QR_CATALOG_PART, &s->parts[k]);
        for (uint32_t k = 0; !code && k < copy_count; k++) {
            bool object = s->copies[k].tier == QR_TIER_OBJECT;
            if (object ? !named : s->copies[k].owner == owner) code = change_add(c, QR_CATALOG_REPLICA, &s->copies[k]);
        }
        named = true;
    }
    return code;
}

/* Empty rows of a publisher: the sequences that are known of its newest epoch. */
static int publisher_rows(source_t *s, const qr_fact_publisher_t *p)
{
    uint64_t epoch = p->node_epoch, tx, publisher;
    int code = qr_facts_owner(s->book->view, qr_address_node(p->address), &epoch, &tx, &publisher);
    if (code == -QR_E_NOT_FOUND) return -QR_E_FORMAT;
    for (uint64_t least = 0; !code;) { /* in the order of their numbers */
        uint32_t best = QR_FACTS_SEQUENCES;
        for (uint32_t i = 0; i < QR_FACTS_SEQUENCES; i++)
            if (p->sequences[i] > least && (best == QR_FACTS_SEQUENCES || p->sequences[i] < p->sequences[best])) best = i;
        if (best == QR_FACTS_SEQUENCES || QR_MUTANT(586)) return 0;
        least = p->sequences[best];
        qr_catalog_row_t row = row_of(s, 0, p->address, epoch, p->txs[best]);
        row.publisher_epoch = p->epoch;
        row.sequence = least;
        code = row_add(&s->book->columns, &row);
    }
    return code;
}

/* Fills the columns up to about a page. */
static int fill_page(source_t *s)
{
    columns_t *c = &s->book->columns;
    int code = 0;
    columns_clear(c);
    while (!code && !s->nodes_done && columns_bytes(c) < PAGE_BYTES) {
        qr_fact_item_t node;
        int more = qr_facts_walk_next(s->walk, &node);
        if (more < 0) return more;
        if (more)
            code = node_rows(s, &node);
        else
            s->nodes_done = true;
    }
    while (!code && s->nodes_done && !s->publishers_done && columns_bytes(c) < PAGE_BYTES) {
        qr_fact_publisher_t p;
        code = qr_facts_publisher_next(s->book->view, s->publisher, &p);
        if (code == -QR_E_NOT_FOUND) return s->publishers_done = true, 0;
        s->publisher = p.address;
        if (!code && s->state.layout_count) code = publisher_rows(s, &p);
    }
    return code;
}

static int batch_page(source_t *s, const uint8_t **ret_payload, uint32_t *ret_bytes)
{
    qr_facts_book_t *book = s->book;
    int code = fill_page(s);
    if (code) return code;
    qr_message_t message = {.type = QR_MESSAGE_log_batch, .version = QR_MESSAGE_VERSION};
    qr_log_batch_t *b = &message.body.log_batch;
    *b = (qr_log_batch_t){.log_id = s->state.log_id,
                          .newest_tx = s->state.tx,
                          .first_tx = s->page,
                          .snapshot_tx = s->state.tx,
                          .cursor = s->page + 1,
                          .last = s->publishers_done};
    columns_fill(&book->columns, b);
    book->wire[0] = PAGE_BATCH;
    int64_t bytes = qr_codec_encode(&message, book->wire + 1, QR_LOG_RECORD_BYTES_MAX - 1);
    if (bytes <= 0) return -QR_E_LIMIT;
    s->page++;
    *ret_payload = book->wire;
    *ret_bytes = (uint32_t)bytes + 1;
    return 1;
}

static int next_page(void *context, const uint8_t **ret_payload, uint32_t *ret_bytes)
{
    source_t *s = context;
    const uint8_t *page;
    uint32_t bytes;
    if (!s->publishers_done) return batch_page(s, ret_payload, ret_bytes);
    int more = qr_facts_dump_next(s->dump, &page, &bytes);
    if (more <= 0) return more;
    s->book->wire[0] = PAGE_VIEW;
    memcpy(s->book->wire + 1, page, bytes);
    *ret_payload = s->book->wire;
    *ret_bytes = bytes + 1;
    return 1;
}

int qr_facts_book_snapshot(qr_facts_book_t *book)
{
    qr_facts_state_t state = state_of(book);
    if (state.damaged || state.tx == 0) return -QR_E_FORMAT;
    source_t *s = calloc(1, sizeof *s);
    if (!s) return -QR_E_MEMORY;
    s->book = book;
    s->state = state;
    int code = 0;
    for (uint32_t i = 0; !code && i < state.layout_count; i++) code = qr_facts_layout(book->view, i, &s->layouts[i]);
    s->walk = qr_facts_walk_begin(book->view);
    s->dump = qr_facts_dump_begin(book->view);
    if (!s->walk || !s->dump) code = -QR_E_MEMORY;
    if (!code) code = book->log.class->snapshot(book->log.self, state.tx, state.writer_epoch, next_page, s);
    if (s->walk) qr_facts_walk_end(&s->walk);
    if (s->dump) qr_facts_dump_end(&s->dump);
    free(s);
    book->snapshots_failed += code != 0;
    if (!code) book->bytes_at_snapshot = tail_of(book).bytes;
    return code;
}

int qr_facts_book_maintain(qr_facts_book_t *book)
{
    qr_log_tail_t tail = tail_of(book);
    qr_facts_state_t state = state_of(book);
    if (state.damaged || state.tx != tail.newest || tail.newest == 0) return 0;
    uint64_t last = tail.snapshot_count ? tail.snapshots[tail.snapshot_count - 1] : 0;
    uint64_t every = book->config.snapshot_every ? book->config.snapshot_every : SNAPSHOT_EVERY;
    uint64_t since = tail.bytes - qr_min_u64(tail.bytes, book->bytes_at_snapshot);
    int code = 0;
    if (tail.newest > last && (tail.newest - last >= every || since > book->config.history_bytes / 2)) code = qr_facts_book_snapshot(book);
    book->bytes_at_snapshot = code ? tail.bytes : book->bytes_at_snapshot; /* the next try is not at once */
    for (tail = tail_of(book);
         !code && tail.snapshot_count && (tail.bytes > book->config.history_bytes || tail.snapshot_count > SNAPSHOTS_KEPT);
         tail = tail_of(book)) {
        uint64_t below = tail.snapshots[tail.snapshot_count > 1];
        if (tail.snapshot_count == 1 && tail.oldest > below) break; /* nothing older is left */
        code = book->log.class->cut(book->log.self, below);
        book->bytes_at_snapshot = tail_of(book).bytes;
    }
    return code;
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------------------------------ */

static uint32_t read_snapshot(qr_facts_book_t *book, const qr_log_read_t *q, qr_log_batch_t *ret_batch)
{
    qr_log_tail_t tail = tail_of(book);
    uint64_t tx = q->snapshot_tx, cursor = tx ? q->cursor : 0, pages;
    qr_log_record_t page;
    if (tx == 0 && tail.snapshot_count == 0) {
        if (qr_facts_book_catch_up(book, UINT32_MAX) < 0) return QR_E_IO;
        if (tail.newest && qr_facts_book_snapshot(book)) return QR_E_IO;
        tail = tail_of(book);
    }
    if (tail.newest == 0) { /* an empty log */
        *ret_batch = (qr_log_batch_t){.log_id = tail.log_id, .first_tx = 1};
        return 0;
    }
    if (tx == 0) tx = tail.snapshots[tail.snapshot_count - 1];
    int code = book->log.class->snapshot_page(book->log.self, tx, cursor, &page, &pages);
    if (code == -QR_E_NOT_FOUND) return QR_E_STALE;
    qr_arena_t arena;
    qr_arena_init(&arena, book->arena_memory, QR_CODEC_ARENA_BYTES(QR_LOG_RECORD_BYTES_MAX));
    if (!code && (page.bytes < 2 || page.payload[0] != PAGE_BATCH)) return QR_E_STALE; /* a cursor behind the last page */
    if (!code) code = qr_codec_decode(page.payload + 1, page.bytes - 1, &arena, &book->message);
    if (code || book->message.type != QR_MESSAGE_log_batch) return QR_E_IO;
    *ret_batch = book->message.body.log_batch;
    ret_batch->log_id = tail.log_id;
    ret_batch->newest_tx = tail.newest;
    return ret_batch->snapshot_tx == tx && ret_batch->first_tx == cursor ? 0 : QR_E_IO;
}

static uint32_t read_records(qr_facts_book_t *book, uint64_t from_tx, qr_log_batch_t *ret_batch)
{
    qr_log_tail_t tail = tail_of(book);
    uint64_t last = from_tx - 1;
    columns_clear(&book->columns);
    for (uint64_t tx = from_tx; tx <= tail.newest && columns_bytes(&book->columns) < READ_BYTES; tx++) {
        const qr_append_t *a;
        int code = qr_facts_book_record(book, tx, &a);
        if (code && tx > from_tx) break; /* its turn comes */
        if (code) return code == -QR_E_FORMAT ? QR_E_FORMAT : QR_E_IO;
        const qr_catalog_batch_t batch = batch_of(a);
        if (tx > from_tx && columns_bytes(&book->columns) + batch_bytes(&batch) > 2 * READ_BYTES) break;
        if (columns_add(&book->columns, &batch)) return QR_E_MEMORY;
        last = tx;
    }
    *ret_batch = (qr_log_batch_t){.log_id = tail.log_id, .newest_tx = tail.newest, .first_tx = from_tx, .last_tx = last};
    columns_fill(&book->columns, ret_batch);
    return 0;
}

uint32_t qr_facts_book_read(qr_facts_book_t *book, const qr_log_read_t *q, qr_log_batch_t *ret_batch)
{
    qr_log_tail_t tail = tail_of(book);
    if (q->snapshot_tx || q->from_tx < tail.oldest || q->from_tx > tail.newest + 1) return read_snapshot(book, q, ret_batch);
    uint32_t reason = read_records(book, q->from_tx, ret_batch);
    if (reason != QR_E_FORMAT) return reason;
    if (qr_facts_book_catch_up(book, UINT32_MAX) < 0 || heal_log(book, q->from_tx)) return QR_E_IO;
    return read_snapshot(book, q, ret_batch);
}

/* ---- questions
 * ------------------------------------------------------------------------------------------------------------------------------------ */

/* The state of the past in a view of its own; the one of before goes on if it can. */
static uint32_t open_as_of(qr_facts_book_t *book, uint64_t tx)
{
    qr_log_tail_t tail = tail_of(book);
    qr_facts_state_t state = {0};
    uint64_t base = 0, at;
    for (uint32_t i = 0; i < tail.snapshot_count && tail.snapshots[i] <= tx; i++) base = tail.snapshots[i];
    if (book->as_of) qr_facts_state(book->as_of, &state);
    if (book->as_of && (state.damaged || state.tx > tx || state.tx < base)) as_of_close(book);
    int code = book->as_of ? 0 : view_from_snapshot(book, book->as_of_path, tx, &book->as_of);
    if (!code) code = apply_all(book, book->as_of, tx, &at);
    if (code) as_of_close(book);
    return code ? QR_E_IO : 0;
}

qr_facts_t *qr_facts_book_view(qr_facts_book_t *book) { return qr_facts_book_catch_up(book, UINT32_MAX) < 0 ? NULL : book->view; }

uint32_t qr_facts_book_query(qr_facts_book_t *book, uint64_t as_of_tx, const qr_facts_filter_t *filter, qr_facts_cursor_t *cursor,
                             qr_fact_item_t *items, uint32_t most, uint32_t *ret_count, uint64_t *ret_tx)
{
    qr_log_tail_t tail = tail_of(book);
    *ret_count = 0;
    if (qr_facts_book_catch_up(book, UINT32_MAX) < 0) return QR_E_BUSY;
    if (as_of_tx > tail.newest) return QR_E_NOT_FOUND;
    if (as_of_tx && as_of_tx < oldest_of(&tail) && !QR_MUTANT(587)) return QR_E_STALE;
    bool past = as_of_tx && as_of_tx < state_of(book).tx;
    uint32_t reason = past ? open_as_of(book, as_of_tx) : 0;
    if (reason) return reason;
    *ret_tx = past ? as_of_tx : state_of(book).tx;
    int code = qr_facts_query(past ? book->as_of : book->view, filter, cursor, LOOKS, items, most, ret_count);
    return code == -QR_E_FORMAT ? QR_E_BUSY : (uint32_t)-code;
}

int qr_facts_book_renew(qr_facts_book_t *book)
{
    int code = qr_facts_book_catch_up(book, UINT32_MAX);
    qr_facts_state_t state = state_of(book);
    if (!code) code = qr_facts_book_snapshot(book);
    return code ? code : book->log.class->cut(book->log.self, state.tx);
}

/* ---- verify
 * ---------------------------------------------------------------------------------------------------------------------------------------
 */

uint32_t qr_facts_book_verify(qr_facts_book_t *book)
{
    qr_log_tail_t tail = tail_of(book);
    uint32_t bad = 0;
    char message[256];
    for (uint64_t tx = tail.oldest; tx <= tail.newest; tx++) {
        const qr_append_t *a;
        if (qr_facts_book_record(book, tx, &a) == 0) continue;
        bad++;
        say(book, "record %llu of the log is damaged or missing", (unsigned long long)tx);
    }
    for (uint32_t i = 0; i < tail.snapshot_count; i++) {
        qr_log_record_t page;
        uint64_t pages = 1;
        int code = 0;
        for (uint64_t k = 0; !code && k < pages; k++)
            code = book->log.class->snapshot_page(book->log.self, tail.snapshots[i], k, &page, &pages);
        if (!code) continue;
        bad++;
        say(book, "the snapshot of transaction %llu is damaged", (unsigned long long)tail.snapshots[i]);
    }
    if (qr_facts_verify(book->view, message, sizeof message)) {
        bad++;
        say(book, "%s", message);
    }
    return bad;
}
