/* facts_stand.h - for tests of the catalog's facts: transactions drawn from a seed, a book that takes them, and the plain model of
 * catalog_model.h as the judge of what the book says. */
#ifndef QR_FACTS_STAND_H
#define QR_FACTS_STAND_H

#include "actors/io/facts_book.h"
#include "base/error.h"
#include "tests/unit/catalog_model.h"
#include "tests/unit/store_folder.h"

enum { STAND_TXS = 400, STAND_NODES = 5, STAND_ITEMS = 512 };

/* What the log should say: the transactions that were drawn, as one long batch. */
typedef struct stand {
    char folder[STORE_PATH];
    columns_t all;
    uint64_t txs; /* drawn */
    uint64_t epochs[STAND_TXS + 1];
    uint64_t node_epochs[STAND_NODES + 1], sequences[STAND_NODES + 1], publisher_epochs[STAND_NODES + 1];
    qr_prng_t prng;
    uint64_t writer_epoch;
} stand_t;

static inline uint64_t stand_publisher(uint32_t node) { return qr_address(node, 0, QR_ROLE_checkpoint_writer, 0); }

static inline stand_t *stand_new(uint64_t seed)
{
    stand_t *s = calloc(1, sizeof *s);
    store_folder(s->folder);
    qr_prng_init(&s->prng, seed);
    s->writer_epoch = 1;
    for (uint32_t i = 1; i <= STAND_NODES; i++) s->node_epochs[i] = s->publisher_epochs[i] = 1;
    return s;
}

static inline void stand_destroy(stand_t *s)
{
    store_remove(s->folder);
    free(s);
}

/* Draws the next transaction into `one`. */
static inline void stand_draw(stand_t *s, columns_t *one)
{
    uint64_t tx = ++s->txs;
    columns_clear(one);
    if (tx == 1 || qr_prng_one_in(&s->prng, 15)) { /* a writer begins */
        s->writer_epoch += tx > 1;
        columns_row(one, tx, s->writer_epoch, 0, 0, 0, 0, MODELS);
    }
    for (uint64_t k = qr_prng_below(&s->prng, 3) + (one->row_count == 0); k; k--) {
        uint32_t node = (uint32_t)qr_prng_between(&s->prng, 1, STAND_NODES), model = (uint32_t)qr_prng_below(&s->prng, MODELS);
        if (qr_prng_one_in(&s->prng, 12)) s->node_epochs[node]++, s->publisher_epochs[node]++, s->sequences[node] = 0;
        columns_row(one, tx, s->writer_epoch, stand_publisher(node), s->publisher_epochs[node], s->node_epochs[node], ++s->sequences[node],
                    model);
        for (uint64_t i = qr_prng_below(&s->prng, 5); i; i--) columns_random(one, &s->prng, model, true);
    }
    s->epochs[tx] = s->writer_epoch;
    const qr_append_t body = {COLUMNS_BATCH(one)};
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&body);
    columns_add(&s->all, &batch);
}

static inline qr_append_t stand_append_body(const stand_t *s, const columns_t *one, uint64_t tx)
{
    const qr_append_t body = {.tx = tx, .writer_epoch = s->epochs[tx], COLUMNS_BATCH(one)};
    return body;
}

/* Draws and appends; the reason of the book. */
static inline uint32_t stand_step(stand_t *s, qr_facts_book_t *book)
{
    static columns_t one;
    stand_draw(s, &one);
    const qr_append_t body = stand_append_body(s, &one, s->txs);
    return qr_facts_book_append(book, &body, 1000 * s->txs);
}

static inline qr_facts_book_config_t stand_config(const stand_t *s)
{
    const qr_facts_book_config_t config = {.store = s->folder, .history_bytes = 1 << 30, .log_id = 900};
    return config;
}

static inline qr_facts_book_t *stand_open(const stand_t *s)
{
    char message[1200] = "";
    qr_facts_book_t *book = NULL;
    const qr_facts_book_config_t config = stand_config(s);
    if (qr_facts_book_open(&config, &book, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        abort();
    }
    return book;
}

static inline void stand_plain(const stand_t *s, uint64_t tx, plain_t *plain)
{
    const qr_append_t body = {COLUMNS_BATCH(&s->all)};
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(&body);
    memset(plain, 0, sizeof *plain);
    plain_batch(plain, &batch, tx);
}

/* Every item of a kind; how many. */
static inline uint32_t stand_items(qr_facts_book_t *book, uint64_t as_of, const qr_facts_filter_t *filter, uint32_t page,
                                   qr_fact_item_t *items, uint32_t capacity)
{
    qr_facts_cursor_t cursor = {.bytes = 0};
    uint32_t sum = 0, count;
    uint64_t tx;
    do {
        uint32_t reason = qr_facts_book_query(book, as_of, filter, &cursor, items + sum, qr_min_u32(page, capacity - sum), &count, &tx);
        if (reason) {
            fprintf(stderr, "question refused: %s\n", qr_error_sentence((int)reason));
            abort();
        }
        sum += count;
        qr_assert(sum < capacity);
    } while (cursor.bytes);
    return sum;
}

/* What the book says as the plain model. */
static inline void stand_said(qr_facts_book_t *book, uint64_t as_of, uint32_t page, plain_t *said)
{
    static qr_fact_item_t items[4 * STAND_ITEMS];
    memset(said, 0, sizeof *said);
    qr_facts_filter_t filter = {.kind = QR_FACTS_LAYOUTS};
    uint32_t models[QR_FACTS_LAYOUTS_MAX] = {0};
    uint32_t count = stand_items(book, as_of, &filter, page, items, QR_COUNT(items));
    for (uint32_t i = 0; i < count; i++) models[items[i].layout] = items[i].digest[0] / 17u - 1;
    filter.kind = QR_FACTS_NODES;
    count = stand_items(book, as_of, &filter, page, items, QR_COUNT(items));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = chain_id(items[i].chain);
        qr_assert(id < IDS && !said->nodes[id].here && items[i].count == CHUNK);
        said->nodes[id].here = 1;
        said->nodes[id].depth = items[i].start / CHUNK;
        said->nodes[id].parent = items[i].start ? (int)chain_id(items[i].digest) : -1;
        said->nodes[id].model = models[items[i].layout];
    }
    filter.kind = QR_FACTS_PARTS;
    count = stand_items(book, as_of, &filter, page, items, QR_COUNT(items));
    for (uint32_t i = 0; i < count; i++) said->nodes[chain_id(items[i].chain)].parts[items[i].group].bytes = (uint32_t)items[i].bytes;
    filter.kind = QR_FACTS_REPLICAS;
    count = stand_items(book, as_of, &filter, page, items, QR_COUNT(items));
    for (uint32_t i = 0; i < count; i++) {
        plain_part_t *part = &said->nodes[chain_id(items[i].chain)].parts[items[i].group];
        uint32_t *mask = items[i].tier == QR_TIER_RAM ? &part->ram : items[i].tier == QR_TIER_SSD ? &part->ssd : &part->object;
        *mask |= items[i].tier == QR_TIER_OBJECT ? 1 : 1u << items[i].owner;
    }
}

static inline bool stand_same(const plain_t *a, const plain_t *b)
{
    for (uint32_t id = 0; id < IDS; id++) {
        if (a->nodes[id].here != b->nodes[id].here)
            return fprintf(stderr, "node %u: here %d, %d\n", id, a->nodes[id].here, b->nodes[id].here), false;
        if (a->nodes[id].here && memcmp(&a->nodes[id], &b->nodes[id], sizeof a->nodes[id]) != 0)
            return fprintf(stderr, "node %u differs\n", id), false;
    }
    return true;
}

/* Whether the book says exactly what transactions 1 .. tx say. */
static inline bool stand_equal(const stand_t *s, qr_facts_book_t *book, uint64_t as_of, uint64_t tx)
{
    static plain_t wanted, said;
    stand_plain(s, tx, &wanted);
    stand_said(book, as_of, as_of ? 7 : STAND_ITEMS, &said);
    return stand_same(&wanted, &said);
}

static inline qr_facts_book_state_t stand_state(const qr_facts_book_t *book)
{
    qr_facts_book_state_t state;
    qr_facts_book_state(book, &state);
    return state;
}

#endif
