/* link: qr_io_storage qr_io_storage_parts qr_io_storage_holds qr_io_storage_ram qr_io_storage_errand qr_io_transfer qr_io_transfer_spill qr_io_transfer_digest qr_actor_roles qr_store_faults qr_model qr_messages */
/* storage and transfer over real files and page pools: the chunk conversation at every page and chunk size, with and without windows; what
 * a damaged file, an old generation or a fence may do; room, leases, trust, restarts. */
#include <sys/mman.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "tests/conversations/moves.h"

#include "actors/io/duty.h"

#include "store/fail.h"

static const moves_config_t plain = {.page_tokens = 16, .chunk_tokens = 32, .pages = 12, .layers = 2};

/* ---- a chain of parts of one group, and short ways to say things about it ---------------------------------------------------------- */

enum { PARTS = 16, TOKENS_MAX = 4096 };
typedef struct chain {
    moves_t *m;
    uint32_t chunk, blocks;
    uint32_t *tokens;
    qr_hash_t parents[PARTS], chains[PARTS], contents[PARTS];
    qr_hash_t published;                     /* said with the next chunk_find: what was saved last */
    qr_hash_t stamp;                         /* said with every load; zero: none */
    uint64_t bytes;                          /* of a file */
    uint64_t pages[QR_TRANSFER_PAGES_MAX];   /* 0 ..: saved from */
    uint64_t targets[QR_TRANSFER_PAGES_MAX]; /* blocks ..: loaded into */
} chain_t;

static chain_t *chain_new(moves_t *m, uint64_t seed)
{
    chain_t *c = calloc(1, sizeof *c);
    assert_non_null(c);
    qr_prng_t prng;
    c->m = m;
    c->chunk = m->config.chunk_tokens;
    c->blocks = (c->chunk + m->config.page_tokens - 2) / m->config.page_tokens + 1;
    c->tokens = calloc((size_t)PARTS * c->chunk, sizeof(uint32_t));
    qr_prng_init(&prng, seed);
    for (uint32_t i = 0; i < PARTS * c->chunk; i++) c->tokens[i] = (uint32_t)qr_prng_below(&prng, 300);
    for (uint32_t p = 0; p < PARTS; p++) {
        if (p) c->parents[p] = c->chains[p - 1];
        if (!p) memset(c->parents[0].bytes, (int)seed, 32);
        qr_chain_node(c->parents[p].bytes, c->tokens + p * c->chunk, c->chunk, c->chains[p].bytes);
    }
    for (uint32_t i = 0; i < c->blocks; i++) c->pages[i] = qr_handle(i, 1), c->targets[i] = qr_handle(c->blocks + i, 1);
    c->bytes = qr_round_up(4096 + 4ull * c->chunk, 4096) + qr_staging_payload_bytes(m->given->staging, 0, c->chunk);
    return c;
}
static void chain_destroy(chain_t **c)
{
    free((*c)->tokens), free(*c);
    *c = NULL;
}
static uint32_t first_block(const chain_t *c, uint32_t part) { return part * c->chunk / c->m->config.page_tokens; }

/* Rows of a part (group 0) into slot 0. */
static void download(chain_t *c, uint32_t part)
{
    qr_message_t answer;
    moves_fill(c->m, 0, part * c->chunk, c->chunk, first_block(c, part), c->pages, 7);
    MOVES_ASK(c->m, checkpoint_writer, transfer, page_download, &answer, .key = 1, .slot = 0, .start = part * c->chunk, .rows = c->chunk,
              .first_block = first_block(c, part), .pages = {c->pages, c->blocks});
    assert_int_equal(answer.body.page_downloaded.reason, 0);
    assert_int_equal(answer.body.page_downloaded.bytes, qr_staging_payload_bytes(c->m->given->staging, 0, c->chunk));
}
static void write_say(chain_t *c, uint32_t part)
{
    MOVES_SAY(c->m, checkpoint_writer, storage, chunk_write, .key = part, .slot = 0, .parent = c->parents[part], .chain = c->chains[part],
              .start = part * c->chunk, .tokens = {c->tokens + part * c->chunk, c->chunk});
}
static uint32_t found(chain_t *c)
{
    qr_message_t answer;
    MOVES_ASK(c->m, checkpoint_writer, storage, chunk_find, &answer, .key = 3, .chains = {(const uint8_t *)c->chains, sizeof c->chains},
              .published = c->published);
    c->published = (qr_hash_t){0};
    return answer.body.chunk_found.depth;
}
/* Writes a part as the next chunk of a capture; what was written before is said to be published. */
static qr_chunk_written_t save(chain_t *c, uint32_t part)
{
    qr_message_t answer;
    (void)found(c);
    download(c, part);
    write_say(c, part);
    assert_true(moves_late(c->m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
    assert_int_equal(answer.body.chunk_written.key, part);
    if (!answer.body.chunk_written.reason) c->contents[part] = answer.body.chunk_written.content, c->published = c->chains[part];
    return answer.body.chunk_written;
}
static qr_chunk_leased_t lease(chain_t *c, uint32_t part)
{
    qr_message_t answer;
    MOVES_ASK(c->m, restore_streamer, storage, chunk_lease, &answer, .key = 5, .chain = c->chains[part]);
    return answer.body.chunk_leased;
}
static uint32_t release(chain_t *c, uint64_t handle, uint8_t trust, uint32_t damage)
{
    qr_message_t answer;
    MOVES_ASK(c->m, restore_streamer, storage, chunk_release, &answer, .lease = handle, .trust = trust, .damage = damage);
    return answer.body.chunk_released.reason;
}
static void upload_say(chain_t *c, uint32_t part, qr_hash_t content, bool whole, const uint64_t *pages)
{
    MOVES_SAY(c->m, restore_streamer, transfer, page_upload, .key = part, .content = content, .bytes = c->bytes, .whole = whole,
              .parent = c->parents[part], .chain = c->chains[part], .start = part * c->chunk,
              .tokens = {c->tokens + part * c->chunk, c->chunk}, .from_row = part * c->chunk, .first_block = first_block(c, part),
              .pages = {pages, c->blocks}, .stamp = c->stamp);
}
/* Loads a part; the rows must be right if it says so. */
static qr_page_uploaded_t load(chain_t *c, uint32_t part, qr_hash_t content, bool whole)
{
    qr_message_t answer;
    moves_fill(c->m, 0, part * c->chunk, c->chunk, first_block(c, part), c->targets, 99);
    upload_say(c, part, content, whole, c->targets);
    assert_true(moves_late(c->m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
    assert_int_equal(answer.body.page_uploaded.key, part);
    if (answer.body.page_uploaded.reason == 0)
        assert_true(moves_holds(c->m, 0, part * c->chunk, c->chunk, first_block(c, part), c->targets, 7));
    else
        assert_int_equal(answer.body.page_uploaded.bytes, 0);
    return answer.body.page_uploaded;
}
static uint32_t drop(chain_t *c, uint32_t part)
{
    qr_message_t answer;
    MOVES_ASK(c->m, checkpoint_writer, storage, chunk_drop, &answer, .key = 3, .chain = c->chains[part]);
    return answer.body.chunk_dropped.reason;
}
static uint64_t metric(moves_t *m, uint8_t role, uint32_t id)
{
    qr_message_t message = {.type = QR_MESSAGE_metrics_read, .from = at_role(QR_ROLE_mesh), .epoch = 1};
    member_t *member = pump_find(&m->pump, at_role(role));
    qr_outbox_reset(&m->pump.outbox, 8);
    member->actor->handle(member->state, m->given, &message, &m->pump.outbox);
    const qr_metrics_t *metrics = &m->pump.messages[0].body.metrics;
    assert_int_equal(m->pump.messages[0].type, QR_MESSAGE_metrics);
    for (uint64_t i = 0; i < metrics->ids.count; i++)
        if (metrics->ids.data[i] == id) return metrics->values.data[i];
    fail_msg("no metric %u", id);
    return 0;
}
enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
};

/* ---- the conversation -----------------------------------------------------------------------------------------------------------------
 */

static void converse(uint32_t page_tokens, uint32_t chunk_tokens, uint32_t window)
{
    uint32_t blocks = (chunk_tokens + page_tokens - 2) / page_tokens + 1;
    moves_config_t config = {.page_tokens = page_tokens, .chunk_tokens = chunk_tokens, .pages = 2 * blocks, .layers = 3, .window = window};
    moves_t *m = moves_new(&config);
    chunk_world_t world;
    moves_as_world(m, &world);
    assert_int_equal(m->given->layout.group_count, window ? 2 : 1);
    chunk_conversation_run(&world);
    hold_conversation_run(&world);
    moves_destroy(m);
    config.ram_slots = window ? 4 : 2;
    m = moves_new(&config);
    moves_as_world(m, &world);
    ram_conversation_run(&world);
    moves_destroy(m);
}
static void test_conversation_at_every_page_and_chunk_size(void **state)
{
    (void)state;
    static const uint32_t pages[] = {8, 16, 32, 64, 256}, chunks[] = {8, 24, 64, 256};
    for (uint32_t p = 0; p < QR_COUNT(pages); p++)
        for (uint32_t c = 0; c < QR_COUNT(chunks); c++) converse(pages[p], chunks[c], 0);
}
static void test_conversation_with_a_window(void **state)
{
    (void)state;
    converse(8, 24, 24);
    converse(16, 64, 24);
    converse(64, 32, 24);
}

/* A node counts when all its groups are here. */
static void test_a_node_needs_all_its_groups(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = 16, .chunk_tokens = 24, .pages = 8, .layers = 3, .window = 20};
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0); /* group 0 */
    assert_int_equal(found(c), 0);
    c->published = c->chains[0];
    MOVES_ASK(m, checkpoint_writer, storage, chunk_write, &answer, .slot = 1, .group = 1, .parent = c->parents[0], .chain = c->chains[0],
              .tokens = {c->tokens, c->chunk});
    assert_int_equal(answer.body.chunk_written.reason, 0);
    assert_int_equal(found(c), 1);
    chain_destroy(&c);
    moves_destroy(m);
}

/* The file holds [member][token][row], members by slab and then by layer, whatever the pages are. */
static void test_file_is_in_payload_order(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = 16, .chunk_tokens = 24, .pages = 8, .layers = 3};
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    char path[512];
    assert_int_equal(save(c, 1).reason, 0);
    moves_file_path(m, c->contents[1], path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 8192, SEEK_SET), 0);
    uint32_t values = qr_decoder_row_bytes(m->given->decoder) / 2;
    for (uint32_t slab = 0; slab < 2; slab++)
        for (uint32_t layer = 0; layer < 3; layer++)
            for (uint32_t position = 24; position < 48; position++)
                for (uint32_t k = 0; k < values; k++) {
                    uint16_t value = 0;
                    assert_int_equal(fread(&value, 2, 1, file), 1);
                    assert_int_equal(value, row_value(7, layer, slab, position, k));
                }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    chain_destroy(&c);
    moves_destroy(m);
}

/* An upload writes its rows and nothing else of any pool. */
static void test_an_upload_touches_only_its_rows(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = 16, .chunk_tokens = 24, .pages = 8, .layers = 3, .window = 20};
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    uint64_t all[8];
    qr_message_t answer;
    assert_int_equal(save(c, 1).reason, 0);
    for (uint32_t i = 0; i < 8; i++) all[i] = qr_handle(i, 1);
    for (uint32_t g = 0; g < 2; g++) moves_fill(m, g, 0, 8 * 16, 0, all, 50);
    uint64_t targets[] = {qr_handle(6, 1), qr_handle(2, 1)}; /* rows 24 .. 47: block 1 from row 8 on, block 2 */
    MOVES_ASK(m, restore_streamer, transfer, page_upload, &answer, .key = 1, .content = c->contents[1], .bytes = c->bytes,
              .parent = c->parents[1], .chain = c->chains[1], .start = 24, .tokens = {c->tokens + 24, 24}, .from_row = 29, .first_block = 1,
              .pages = {targets, 2});
    assert_int_equal(answer.body.page_uploaded.reason, 0);
    assert_true(moves_holds(m, 0, 29, 19, 1, targets, 7));
    assert_true(moves_holds(m, 1, 0, 8 * 16, 0, all, 50)); /* the other group */
    static const uint32_t others[] = {0, 1, 3, 4, 5, 7};
    for (uint32_t i = 0; i < QR_COUNT(others); i++) assert_true(moves_holds(m, 0, others[i] * 16, 16, 0, all, 50));
    assert_true(moves_holds(m, 0, 6 * 16, 13, 0, all, 50)); /* rows before from_row in its own page */
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- damage
 * ------------------------------------------------------------------------------------------------------------------------------ */

typedef enum hurt {
    HURT_MAGIC,
    HURT_HEADER,
    HURT_TOKEN,
    HURT_PADDING,
    HURT_FIRST,
    HURT_LAST,
    HURT_SHORT,
    HURT_EMPTY,
    HURT_LONG,
    HURT_SWAPPED,
    HURT_GONE,
    HURTS
} hurt_t;

static void hurt_file(chain_t *c, uint32_t part, hurt_t hurt)
{
    char path[512], other[512];
    moves_file_path(c->m, c->contents[part], path);
    moves_file_path(c->m, c->contents[part + 1], other);
    switch (hurt) {
    case HURT_MAGIC: moves_flip(c->m, c->contents[part], 2); break;
    case HURT_HEADER: moves_flip(c->m, c->contents[part], 117); break;
    case HURT_TOKEN: moves_flip(c->m, c->contents[part], 4096); break;
    case HURT_PADDING: moves_flip(c->m, c->contents[part], 8190); break;
    case HURT_FIRST: moves_flip(c->m, c->contents[part], 8192); break;
    case HURT_LAST: moves_flip(c->m, c->contents[part], c->bytes - 1); break;
    case HURT_SHORT: assert_int_equal(truncate(path, (off_t)c->bytes - 1), 0); break;
    case HURT_EMPTY: assert_int_equal(truncate(path, 0), 0); break;
    case HURT_LONG: assert_int_equal(truncate(path, (off_t)c->bytes + 1), 0); break;
    case HURT_SWAPPED: assert_int_equal(unlink(path) || link(other, path), 0); break;
    case HURT_GONE: assert_int_equal(unlink(path), 0); break;
    default: break;
    }
}

static void test_damage_is_never_a_success(void **state)
{
    (void)state;
    static const uint32_t reasons[HURTS] = {QR_E_FORMAT,    QR_E_FORMAT,    QR_E_IDENTITY, QR_E_FORMAT,   QR_E_DIGEST,   QR_E_DIGEST,
                                            QR_E_TRUNCATED, QR_E_TRUNCATED, QR_E_FORMAT,   QR_E_IDENTITY, QR_E_NOT_FOUND};
    moves_t *m = moves_new(&plain);
    for (hurt_t hurt = 0; hurt < HURTS; hurt++) {
        chain_t *c = chain_new(m, 10 + hurt);
        assert_int_equal(save(c, 0).reason, 0);
        assert_int_equal(save(c, 1).reason, 0);
        qr_chunk_leased_t leased = lease(c, 0);
        assert_int_equal(leased.reason, 0);
        hurt_file(c, 0, hurt);
        qr_page_uploaded_t uploaded = load(c, 0, leased.content, hurt & 1);
        assert_int_equal(uploaded.reason, reasons[hurt]);
        assert_int_equal(uploaded.damage, 1);
        assert_int_equal(release(c, leased.lease, 0, uploaded.reason), 0);
        assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND); /* set aside */
        assert_int_equal(found(c), 0);
        assert_int_equal(save(c, 0).reason, 0); /* and made again */
        assert_int_equal(found(c), 2);
        leased = lease(c, 0);
        assert_int_equal(load(c, 0, leased.content, true).reason, 0);
        assert_int_equal(release(c, leased.lease, 1, 0), 0);
        chain_destroy(&c);
    }
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_damaged_total), HURTS);
    assert_int_equal(metric(m, QR_ROLE_transfer, ID_uploads_failed_total), HURTS);
    moves_destroy(m);
}

/* Another row in the file of a part, and a digest that was made right again. */
static void forge(chain_t *c, uint32_t part)
{
    char path[512];
    moves_file_path(c->m, c->contents[part], path);
    FILE *file = fopen(path, "r+b");
    uint8_t *bytes = malloc(c->bytes), header[QR_CHUNK_HEADER_BYTES];
    assert_true(file && bytes);
    assert_int_equal(fread(bytes, 1, c->bytes, file), c->bytes);
    bytes[9000] ^= 1;
    qr_chunk_header_t h;
    assert_int_equal(qr_chunk_header_decode(bytes, c->bytes, c->bytes, &h), QR_CHUNK_INTACT);
    qr_chunk_piece_t piece = {bytes + 8192, c->bytes - 8192};
    assert_int_equal(qr_chunk_digest(c->tokens + part * c->chunk, h.count, &piece, 1, h.digest), 0);
    qr_chunk_header_encode(&h, header);
    memcpy(bytes, header, sizeof header);
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, c->bytes, file), c->bytes);
    fclose(file), free(bytes);
}

/* Only SHA-256 of the whole file sees it. */
static void test_a_forged_digest_is_seen_by_the_whole_file(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    forge(c, 0);
    qr_chunk_leased_t leased = lease(c, 0);
    assert_int_equal(leased.reason, 0);
    assert_int_equal(leased.trusted, 0); /* it changed since it was written: the whole file has to be seen */
    qr_page_uploaded_t uploaded = load(c, 0, leased.content, true);
    assert_int_equal(uploaded.reason, QR_E_DIGEST);
    assert_int_equal(uploaded.damage, 1);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Its holder was told that it is trusted; then somebody rewrites it, so that its quick digest fits. */
static void test_a_file_that_changes_under_its_lease_is_seen_whole(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(save(c, 1).reason, 0);
    for (uint32_t part = 0; part < 2; part++) {
        qr_chunk_leased_t leased = lease(c, part);
        assert_int_equal(leased.trusted, 1);
        c->stamp = leased.stamp;
        if (part) forge(c, part);
        qr_page_uploaded_t uploaded = load(c, part, leased.content, false);
        assert_int_equal(uploaded.reason, part ? QR_E_DIGEST : 0);
        assert_int_equal(uploaded.damage, part);
        assert_int_equal(release(c, leased.lease, 0, uploaded.reason), 0);
    }
    assert_int_equal(lease(c, 1).reason, QR_E_NOT_FOUND);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Another model's file, and askers who are wrong about a file: refused; only the former is the file's fault. */
static void test_identity(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(save(c, 1).reason, 0);
    m->given->layout.fingerprint.bytes[0] ^= 1;
    qr_page_uploaded_t uploaded = load(c, 0, c->contents[0], false);
    assert_int_equal(uploaded.reason, QR_E_IDENTITY);
    assert_int_equal(uploaded.damage, 1);
    m->given->layout.fingerprint.bytes[0] ^= 1;
    chain_t wrong = *c;
    wrong.parents[1].bytes[5] ^= 1;
    uploaded = load(&wrong, 1, c->contents[1], false);
    assert_int_equal(uploaded.reason, QR_E_IDENTITY);
    assert_int_equal(uploaded.damage, 0);
    c->tokens[3] ^= 1;
    uploaded = load(c, 0, c->contents[0], true);
    assert_int_equal(uploaded.reason, QR_E_IDENTITY);
    assert_int_equal(uploaded.damage, 0);
    c->tokens[3] ^= 1;
    uploaded = load(c, 0, c->contents[1], false); /* the file of another part: whoever says it is this one has been misled */
    assert_int_equal(uploaded.reason, QR_E_IDENTITY);
    assert_int_equal(uploaded.damage, 1);
    assert_int_equal(load(c, 0, c->contents[0], true).reason, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Questions that make no sense move nothing. */
static void test_malformed_questions_are_refused(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    const uint64_t pages[] = {qr_handle(4, 1), qr_handle(5, 1), qr_handle(12, 1), 6};
    const struct {
        uint32_t group, start, count, from_row, first_block, page_at, page_count;
    } asks[] = {{1, 0, 32, 0, 0, 0, 2},  {0, 0, 32, 32, 0, 0, 2},
                {0, 0, 32, 0, 0, 0, 1},  {0, 0, 32, 0, 1, 0, 2},
                {0, 32, 32, 0, 2, 0, 2}, {0, 0, 0, 0, 0, 0, 2},
                {0, 0, 32, 0, 0, 1, 2},  {0, 0, 32, 0, 0, 2, 2},
                {0, 0, 32, 0, 0, 0, 0},  {0, QR_CONTEXT_MAX, 32, QR_CONTEXT_MAX, QR_CONTEXT_MAX / 16, 0, 2}};
    for (uint32_t i = 0; i < QR_COUNT(asks); i++) {
        MOVES_ASK(m, restore_streamer, transfer, page_upload, &answer, .key = i, .content = c->contents[0], .bytes = c->bytes,
                  .parent = c->parents[0], .chain = c->chains[0], .group = asks[i].group, .start = asks[i].start,
                  .tokens = {c->tokens, asks[i].count}, .from_row = asks[i].from_row, .first_block = asks[i].first_block,
                  .pages = {pages + asks[i].page_at, asks[i].page_count});
        assert_int_equal(answer.body.page_uploaded.reason, QR_E_INVALID);
        assert_int_equal(answer.body.page_uploaded.damage, 0);
    }
    const struct {
        uint32_t slot, group, start, rows, first_block, page_count;
    } downs[] = {{2, 0, 0, 32, 0, 2}, {0, 1, 0, 32, 0, 2},  {0, 0, 0, 33, 0, 2}, {0, 0, 0, 32, 0, 1},
                 {0, 0, 0, 0, 0, 2},  {0, 0, 16, 32, 0, 2}, {0, 0, 0, 32, 0, 3}, {0, 0, UINT32_MAX, 32, 0, 2}};
    for (uint32_t i = 0; i < QR_COUNT(downs); i++) {
        MOVES_ASK(m, checkpoint_writer, transfer, page_download, &answer, .key = i, .slot = downs[i].slot, .group = downs[i].group,
                  .start = downs[i].start, .rows = downs[i].rows, .first_block = downs[i].first_block,
                  .pages = {pages, downs[i].page_count});
        assert_int_equal(answer.body.page_downloaded.reason, QR_E_INVALID);
    }
    const struct {
        uint32_t slot, group, start, count, chain;
    } writes[] = {{2, 0, 0, 32, 0}, {0, 1, 0, 32, 0}, {0, 0, 16, 32, 0}, {0, 0, 0, 31, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 32, 1}};
    for (uint32_t i = 0; i < QR_COUNT(writes); i++) {
        MOVES_ASK(m, checkpoint_writer, storage, chunk_write, &answer, .key = i, .slot = writes[i].slot, .group = writes[i].group,
                  .parent = c->parents[0], .chain = c->chains[writes[i].chain], .start = writes[i].start,
                  .tokens = {c->tokens, writes[i].count});
        assert_int_equal(answer.body.chunk_written.reason, QR_E_INVALID);
    }
    assert_int_equal(found(c), 1);
    chain_destroy(&c);
    moves_destroy(m);
}

#define COLUMN(...)                                                                                                                        \
    {                                                                                                                                      \
        .data = (const uint32_t[]){__VA_ARGS__}, .count = sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                      \
    }
#define COLUMN64_OF(...)                                                                                                                   \
    {                                                                                                                                      \
        .data = (const uint64_t[]){__VA_ARGS__}, .count = sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                      \
    }

/* ---- fences and duty
 * --------------------------------------------------------------------------------------------------------------------- */

/* Chunks of 4,096 tokens: too long for one slice. */
static const moves_config_t broad = {.page_tokens = 256, .chunk_tokens = 4096, .pages = 48, .layers = 4, .dim = 64};

/* Delivers without working. */
static void deliver(moves_t *m)
{
    while (pump_deliver(&m->pump)) {
    }
}

static void test_a_fence_ends_moves_before_it_is_answered(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    for (uint32_t begun = 0; begun < 2; begun++) { /* one that waits, one that moves */
        for (uint32_t i = 0; i < c->blocks; i++) c->targets[i] = qr_handle(c->blocks + i - 2, begun + 1);
        moves_fill(m, 0, 0, c->chunk, 0, c->targets, 99);
        upload_say(c, 0, c->contents[0], true, c->targets);
        deliver(m);
        for (uint32_t i = 0; i < begun; i++) assert_int_not_equal(pump_work(&m->pump, m->transfer), QR_NEVER_US);
        assert_false(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
        /* A fence of an older generation, or of other pages or groups, means others. */
        MOVES_SAY(m, page_manager, transfer, fence, .fence_id = 8, .groups = COLUMN(0, 1),
                  .pages = COLUMN64_OF(qr_handle(c->blocks + 3, begun), c->targets[1]));
        deliver(m);
        assert_true(moves_heard(m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
        assert_false(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
        MOVES_SAY(m, page_manager, transfer, fence, .fence_id = 9, .groups = COLUMN(0), .pages = COLUMN64_OF(c->targets[c->blocks - 2]));
        deliver(m);
        assert_int_equal(m->heard_count, 2);
        assert_true(moves_heard(m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
        assert_int_equal(answer.body.fenced.fence_id, 9);
        assert_true(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
        assert_int_equal(answer.body.page_uploaded.reason, QR_E_FENCED);
        assert_int_equal(answer.body.page_uploaded.damage, 0);
        /* Whatever happens now, not a byte of these pages changes. */
        moves_fill(m, 0, 0, c->chunk, 0, c->targets, 98);
        moves_rest(m);
        assert_true(moves_holds(m, 0, 0, c->chunk, 0, c->targets, 98));
        assert_int_equal(load(c, 0, c->contents[0], false).reason, QR_E_STALE);
        assert_true(moves_holds(m, 0, 0, c->chunk, 0, c->targets, 99));
    }
    assert_int_equal(metric(m, QR_ROLE_transfer, ID_uploads_fenced_total), 2);
    chain_destroy(&c);
    moves_destroy(m);
}

static void test_a_fence_ends_a_download(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    moves_fill(m, 0, 0, c->chunk, 0, c->pages, 7);
    MOVES_SAY(m, checkpoint_writer, transfer, page_download, .key = 1, .rows = c->chunk, .pages = {c->pages, c->blocks});
    deliver(m);
    MOVES_SAY(m, page_manager, transfer, fence, .fence_id = 9, .groups = COLUMN(0), .pages = COLUMN64_OF(c->pages[2]));
    deliver(m);
    assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_page_downloaded, &answer));
    assert_int_equal(answer.body.page_downloaded.reason, QR_E_FENCED);
    assert_true(moves_heard(m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
    MOVES_ASK(m, checkpoint_writer, transfer, page_download, &answer, .key = 1, .rows = c->chunk, .pages = {c->pages, c->blocks});
    assert_int_equal(answer.body.page_downloaded.reason, QR_E_STALE);
    chain_destroy(&c);
    moves_destroy(m);
}

/* What is open when mesh says stop is answered, and nothing of it moves any more. */
static void test_stop_answers_what_is_open(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    upload_say(c, 0, c->contents[0], true, c->targets);
    MOVES_SAY(m, checkpoint_writer, transfer, page_download, .key = 1, .rows = c->chunk, .pages = {c->pages, c->blocks});
    deliver(m);
    assert_int_not_equal(pump_work(&m->pump, m->transfer), QR_NEVER_US);
    MOVES_ASK(m, mesh, transfer, stop, &answer, .budget_us = 1);
    assert_true(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
    assert_int_equal(answer.body.page_uploaded.reason, QR_E_CANCELLED);
    assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_page_downloaded, &answer));
    assert_int_equal(answer.body.page_downloaded.reason, QR_E_CANCELLED);
    assert_int_equal(pump_work(&m->pump, m->transfer), QR_NEVER_US);
    chain_destroy(&c);
    moves_destroy(m);
}

/* While batches are computed a slice is followed by a pause; without them by none. */
static void test_duty_while_lanes_decode(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    upload_say(c, 0, c->contents[0], true, c->targets);
    deliver(m);
    m->activity.resume_us = QR_NEVER_US - 1;
    qr_activity_end(&m->activity, 1);
    assert_int_equal(pump_work(&m->pump, m->transfer), 0); /* nothing computes, or did lately: go on at once, whatever is owed */
    uint64_t offered = qr_transfer_offered(m->transfer->state);
    assert_true(offered > 0); /* digested beside the mover, */
    m->activity.resume_us = 0;
    qr_activity_begin(&m->activity);
    struct timespec before, after;
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t resume_us = pump_work(&m->pump, m->transfer);
    (void)clock_gettime(CLOCK_MONOTONIC, &after);
    uint64_t began_us = (uint64_t)before.tv_sec * 1000000 + (uint64_t)before.tv_nsec / 1000;
    assert_int_equal(qr_transfer_offered(m->transfer->state), offered); /* but not beside a batch */
    assert_false(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
    assert_true(resume_us > began_us);
    uint64_t ended_us = (uint64_t)after.tv_sec * 1000000 + (uint64_t)after.tv_nsec / 1000;
    if (ended_us < resume_us) assert_int_equal(pump_work(&m->pump, m->transfer), resume_us); /* a message in between changes nothing */
    qr_activity_end(&m->activity, 1);
    moves_rest(m);
    assert_true(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
    assert_int_equal(answer.body.page_uploaded.reason, 0);
    assert_true(moves_holds(m, 0, 0, c->chunk, 0, c->targets, 7));
    chain_destroy(&c);
    moves_destroy(m);
}

/* Pieces of an upload that ends early may still wait for their digest: they are in none that follows. */
static void test_a_digest_of_an_ended_upload_is_left(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    for (uint32_t i = 0; i < 6; i++) {
        upload_say(c, 0, c->contents[0], true, c->targets);
        deliver(m);
        assert_int_equal(pump_work(&m->pump, m->transfer), 0);
        if (i % 2 == 0) {
            uint32_t groups[QR_TRANSFER_PAGES_MAX] = {0};
            MOVES_ASK(m, page_manager, transfer, fence, &answer, .fence_id = i + 1, .groups = {groups, c->blocks},
                      .pages = {c->targets, c->blocks});
            for (uint32_t k = 0; k < c->blocks; k++) c->targets[k] = qr_handle(c->blocks + k, qr_handle_generation(c->targets[k]) + 1);
        } else {
            moves_halt(m, false);
            moves_boot(m, i + 2);
        }
        if (moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer))
            assert_int_not_equal(answer.body.page_uploaded.reason, 0);
        assert_int_equal(load(c, 0, c->contents[0], true).reason, 0);
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* A clock of the test's own: every look at it costs LOOK_US. */
enum { LOOK_US = 40 };
static uint64_t looks_us;
static uint64_t look(void) { return looks_us += LOOK_US; }

/* By that clock: however the share, the same upload takes its slices, none longer than a millisecond and a piece; of the time from the
 * first to the last, while batches are computed, the share is worked and no more; what was waited is counted. */
static void test_slices_and_pauses_by_a_clock(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    uint64_t slices = 0;
    assert_int_equal(save(c, 0).reason, 0);
    qr_transfer_clock(m->transfer->state, look);
    static const uint32_t shares[] = {100, 50, 25, 10, 5};
    for (uint32_t i = 0; i < QR_COUNT(shares); i++) {
        uint64_t before = metric(m, QR_ROLE_transfer, ID_transfer_slices_total),
                 waits_us = metric(m, QR_ROLE_transfer, ID_transfer_wait_us_total);
        uint64_t began_us = looks_us, worked_us = 0, paused_us = 0;
        m->given->params.transfer_duty = shares[i];
        m->activity.resume_us = 0;
        qr_activity_begin(&m->activity);
        upload_say(c, 0, c->contents[0], false, c->targets);
        deliver(m);
        while (!moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer)) {
            uint64_t from_us = looks_us, resume_us = pump_work(&m->pump, m->transfer), took_us = looks_us - from_us;
            assert_true(took_us <= QR_TRANSFER_SLICE_US + 10 * LOOK_US);
            worked_us += took_us;
            deliver(m);
            if (resume_us == QR_NEVER_US || resume_us <= looks_us) continue;
            paused_us += resume_us - looks_us;
            looks_us = resume_us - LOOK_US;
        }
        assert_int_equal(answer.body.page_uploaded.reason, 0);
        uint64_t count = metric(m, QR_ROLE_transfer, ID_transfer_slices_total) - before, all_us = looks_us - began_us;
        if (i == 0) slices = count;
        assert_true(count >= 5);
        assert_int_equal(count, slices);
        worked_us -= 6 * LOOK_US * count; /* looks before and after what is paid for */
        assert_true(worked_us * 100 <= shares[i] * (all_us + QR_TRANSFER_SLICE_US * 100 / shares[i]));
        assert_true(worked_us * 100 >= (uint64_t)shares[i] * all_us * 7 / 10);
        waits_us = metric(m, QR_ROLE_transfer, ID_transfer_wait_us_total) - waits_us;
        assert_true(waits_us + LOOK_US * count >= paused_us && waits_us <= paused_us + 4 * LOOK_US * count);
        qr_activity_end(&m->activity, 1);
    }
    uint64_t phases_us = metric(m, QR_ROLE_transfer, ID_upload_read_us_total) + metric(m, QR_ROLE_transfer, ID_upload_verify_us_total) +
                         metric(m, QR_ROLE_transfer, ID_upload_copy_us_total);
    assert_true(phases_us > 0 && phases_us <= metric(m, QR_ROLE_transfer, ID_upload_us_total));
    chain_destroy(&c);
    moves_destroy(m);
}

/* A clock that stands: for a piece that goes to the helper a batch waits so long, and begins then. */
static struct {
    void *transfer;
    qr_activity_t *activity;
    uint64_t offered, nap_ns;
    bool begun;
} beside;
static uint64_t stand(void)
{
    if (!beside.begun && qr_transfer_offered(beside.transfer) > beside.offered) {
        beside.begun = true;
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(beside.nap_ns / 1000000000), .tv_nsec = (long)(beside.nap_ns % 1000000000)},
                        NULL);
        qr_activity_begin(beside.activity);
    }
    return looks_us;
}

/* What the helper digests is worked time of the slice: by a clock that stands still nothing else is owed. A helper that got no core in
 * that nap worked nothing (the mover took its piece): again, with a longer one. */
static void test_the_digest_is_on_the_account(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    uint64_t owed_us = 0;
    assert_int_equal(save(c, 0).reason, 0);
    looks_us = 1000000000;
    qr_transfer_clock(m->transfer->state, stand);
    m->given->params.transfer_duty = 50; /* a microsecond is paid with one */
    for (uint64_t nap_ns = 1000000; !owed_us && nap_ns < 2000000000; nap_ns *= 2) {
        beside.transfer = m->transfer->state, beside.activity = &m->activity, beside.nap_ns = nap_ns;
        beside.begun = true;
        upload_say(c, 0, c->contents[0], true, c->targets);
        deliver(m);
        m->activity.resume_us = looks_us += 1000000;
        beside.offered = qr_transfer_offered(m->transfer->state), beside.begun = false;
        (void)pump_work(&m->pump, m->transfer); /* all of it: no time passes */
        assert_true(beside.begun);
        owed_us = m->activity.resume_us - looks_us;
        qr_activity_end(&m->activity, 1);
        deliver(m);
        assert_true(moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
        assert_int_equal(answer.body.page_uploaded.reason, 0);
    }
    assert_true(owed_us > 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Whoever moves is on one account: two slices that ended together are paid one after the other, a pause that was too long gives nothing. */
static void test_one_account_for_all_who_move(void **state)
{
    (void)state;
    qr_activity_t activity = {0};
    qr_duty_worked(&activity, 25, 1000, 900);
    assert_int_equal(qr_duty_resume_us(&activity, 1000), 1000); /* nothing computes */
    qr_activity_begin(&activity);
    qr_duty_worked(&activity, 25, 2000, 900);
    assert_int_equal(qr_duty_resume_us(&activity, 2000), 2000 + 2700);
    qr_duty_worked(&activity, 25, 2000, 300);
    assert_int_equal(qr_duty_resume_us(&activity, 2000), 2000 + 2700 + 900);
    qr_duty_worked(&activity, 50, 9000, 100);
    assert_int_equal(qr_duty_resume_us(&activity, 9000), 9100);
    qr_duty_worked(&activity, 100, 20000, 900);
    assert_int_equal(activity.resume_us, 9100);
    /* Between two batches lies a gap; after it nothing waits. */
    qr_duty_worked(&activity, 5, 20000, 1000);
    qr_activity_end(&activity, 21000);
    assert_int_equal(qr_duty_resume_us(&activity, 21000 + QR_DUTY_LATELY_US - 1), 20000 + 19000);
    assert_int_equal(qr_duty_resume_us(&activity, 21000 + QR_DUTY_LATELY_US), 21000 + QR_DUTY_LATELY_US);
}

/* What storage writes is on the account too. */
static void test_writes_are_on_the_account(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    download(c, 0);
    qr_activity_begin(&m->activity);
    m->activity.resume_us = 0;
    qr_message_t answer;
    write_say(c, 0);
    assert_true(moves_late(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
    assert_int_equal(answer.body.chunk_written.reason, 0);
    assert_true(m->activity.resume_us > 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Two restores in flight and a capture between them: each gets its own rows, in any order (RS-01 at this level). */
static void test_concurrent_moves_mix_nothing_up(void **state)
{
    (void)state;
    moves_config_t config = {.page_tokens = 16, .chunk_tokens = 64, .pages = 160, .layers = 2, .store_files = 64};
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    qr_prng_t prng;
    qr_prng_init(&prng, 5);
    for (uint32_t p = 0; p < 8; p++) assert_int_equal(save(c, p).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t targets[8][8];
        uint32_t order[8], asked = 0, done = 0;
        for (uint32_t i = 0; i < 8; i++) order[i] = i;
        for (uint32_t i = 8; i-- > 1;) {
            uint32_t k = (uint32_t)qr_prng_below(&prng, i + 1), t = order[i];
            order[i] = order[k], order[k] = t;
        }
        for (uint32_t p = 0; p < 8; p++) {
            for (uint32_t i = 0; i < c->blocks; i++) targets[p][i] = qr_handle(40 + p * c->blocks + i, round + 1);
            moves_fill(m, 0, p * 64, 64, p * 4, targets[p], 99);
        }
        for (uint32_t turn = 0; done < 8; turn++) {
            if (asked < 8 && asked - done < QR_RESTORE_UPLOADS) {
                uint32_t p = order[asked++];
                upload_say(c, p, c->contents[p], round & 1, targets[p]);
            }
            if (turn % 4 == 0) download(c, turn % 8); /* slot 0 meanwhile */
            if (qr_prng_below(&prng, 2)) deliver(m);
            if (qr_prng_below(&prng, 2)) (void)pump_work(&m->pump, m->transfer);
            while (moves_heard(m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer)) {
                assert_int_equal(answer.body.page_uploaded.reason, 0);
                done++;
            }
        }
        for (uint32_t p = 0; p < 8; p++) assert_true(moves_holds(m, 0, p * 64, 64, p * 4, targets[p], 7));
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* More questions than there is room for are answered BUSY. */
static void test_more_than_the_windows_is_busy(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_outbox_t *outbox = &m->pump.outbox;
    assert_int_equal(save(c, 0).reason, 0);
    qr_message_t message = {.type = QR_MESSAGE_page_upload, .from = at_role(QR_ROLE_restore_streamer)};
    message.body.page_upload = (qr_page_upload_t){.content = c->contents[0],
                                                  .bytes = c->bytes,
                                                  .parent = c->parents[0],
                                                  .chain = c->chains[0],
                                                  .tokens = {c->tokens, c->chunk},
                                                  .pages = {c->targets, c->blocks}};
    for (uint32_t i = 0; i <= QR_RESTORE_UPLOADS; i++) { /* past the world's credit */
        qr_outbox_reset(outbox, qr_transfer_class.max_out);
        qr_transfer_class.handle(m->transfer->state, m->given, &message, outbox);
        assert_int_equal(outbox->count, i == QR_RESTORE_UPLOADS);
    }
    assert_int_equal(m->pump.messages[0].body.page_uploaded.reason, QR_E_BUSY);
    message = (qr_message_t){.type = QR_MESSAGE_page_download, .from = at_role(QR_ROLE_checkpoint_writer)};
    message.body.page_download = (qr_page_download_t){.rows = 32, .pages = {c->pages, c->blocks}};
    for (uint32_t i = 0; i < 2; i++) {
        qr_outbox_reset(outbox, qr_transfer_class.max_out);
        qr_transfer_class.handle(m->transfer->state, m->given, &message, outbox);
        assert_int_equal(outbox->count, i);
    }
    assert_int_equal(m->pump.messages[0].body.page_downloaded.reason, QR_E_BUSY);
    message = (qr_message_t){.type = QR_MESSAGE_chunk_write, .from = at_role(QR_ROLE_checkpoint_writer), .epoch = 1};
    message.body.chunk_write =
        (qr_chunk_write_t){.parent = c->parents[1], .chain = c->chains[1], .start = 32, .tokens = {c->tokens + 32, 32}};
    for (uint32_t i = 0; i <= QR_STORAGE_WRITES; i++) {
        qr_outbox_reset(outbox, qr_storage_class.max_out);
        qr_storage_class.handle(m->storage->state, m->given, &message, outbox);
        assert_int_equal(outbox->count, i == QR_STORAGE_WRITES);
    }
    assert_int_equal(m->pump.messages[0].body.chunk_written.reason, QR_E_BUSY);
    /* Give them up: nobody in this world has asked. */
    qr_storage_class.done(m->storage->state), qr_transfer_class.done(m->transfer->state);
    pump_done(&m->pump);
    moves_boot(m, 1);
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- room
 * --------------------------------------------------------------------------------------------------------------------------------- */

static qr_chunk_victims_named_t victims(moves_t *m, uint64_t bytes)
{
    qr_message_t answer;
    MOVES_ASK(m, checkpoint_writer, storage, chunk_victims, &answer, .key = 4, .bytes = bytes);
    assert_int_equal(answer.body.chunk_victims_named.key, 4);
    assert_int_equal(answer.body.chunk_victims_named.chains.count, 32 * answer.body.chunk_victims_named.groups.count);
    return answer.body.chunk_victims_named;
}
static void assert_names(const chain_t *c, const qr_chunk_victims_named_t *named, uint32_t place, uint32_t part)
{
    assert_true(place < named->groups.count);
    assert_memory_equal(named->chains.data + 32ul * place, c->chains[part].bytes, 32);
    assert_int_equal(named->sizes.data[place], c->bytes);
}
/* The folder never holds more than its bound and one temporary. */
static void assert_bound(const chain_t *c, uint32_t parts)
{
    uint32_t files;
    uint64_t bytes = moves_disk(c->m, "chunks", &files);
    assert_true(files <= parts && bytes <= c->m->given->params.store_bytes);
    (void)moves_disk(c->m, "tmp", &files);
    assert_int_equal(files, 0);
}

static void test_room_is_made_by_value(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 4ull * (8192 + 2 * 2 * 64 * 32) + 100;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(c->bytes, 8192 + 2 * 2 * 64 * 32);
    for (uint32_t p = 0; p < 4; p++) assert_int_equal(save(c, p).reason, 0);
    qr_chunk_written_t full = save(c, 4);
    assert_int_equal(full.reason, QR_E_SHORTFALL);
    assert_int_equal(full.shortfall_bytes, c->bytes - 100);
    assert_bound(c, 4);
    /* 3 was leased more often, 2 is leased now: of what is left the later one of the chain goes first. */
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(release(c, lease(c, 3).lease, 0, 0), 0);
    qr_chunk_leased_t held = lease(c, 2);
    qr_chunk_victims_named_t named = victims(m, full.shortfall_bytes);
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 1);
    named = victims(m, full.shortfall_bytes); /* what was named is on its way: the next one */
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 0);
    named = victims(m, 4 * c->bytes); /* more than may leave: 2 is leased */
    assert_int_equal(named.groups.count, 0);
    assert_int_equal(drop(c, 1), 0);
    assert_int_equal(save(c, 4).reason, 0);
    assert_bound(c, 4);
    assert_int_equal(release(c, held.lease, 0, 0), 0);
    /* The level rose to what left: 5, touched since, outlives 3, whose reuse is older than its lead. */
    assert_int_equal(drop(c, 0), 0);
    for (uint32_t p = 5; p < 7; p++) {
        full = save(c, p);
        if (!full.reason) continue;
        named = victims(m, full.shortfall_bytes);
        assert_int_equal(named.groups.count, 1);
        uint32_t left = 0;
        while (left < PARTS && memcmp(named.chains.data, c->chains[left].bytes, 32) != 0) left++;
        assert_int_not_equal(left, 3); /* leased twice */
        assert_int_equal(drop(c, left), 0);
        assert_int_equal(save(c, p).reason, 0);
        assert_bound(c, 4);
    }
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_evictions_total), 3);
    chain_destroy(&c);
    moves_destroy(m);
}

static uint32_t losses(chain_t *c, qr_hash_t ret_chains[PARTS])
{
    qr_message_t answer;
    MOVES_ASK(c->m, checkpoint_writer, storage, chunk_losses, &answer, .key = 8, .now = 1);
    uint32_t count = (uint32_t)answer.body.chunk_losses_named.groups.count;
    assert_int_equal(answer.body.chunk_losses_named.chains.count, 32 * count);
    memcpy(ret_chains, answer.body.chunk_losses_named.chains.data, 32 * count);
    return count;
}
static bool is_told(chain_t *c)
{
    qr_message_t answer;
    return moves_late(c->m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_losses_named, &answer);
}

/* The writer of a second device group. */
static void another_asks(moves_t *m, uint16_t type, const void *body, qr_message_t *ret_answer)
{
    pump_send(&m->pump, qr_address(NODE, 2, QR_ROLE_checkpoint_writer, 0), at_role(QR_ROLE_storage), type, body);
    moves_rest(m);
    assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, answer_of(type), ret_answer));
}
#define ANOTHER_ASKS(m, name, answer, ...) another_asks((m), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__}, (answer))

/* A chunk that its own writer saves, and another writer of the node that asks what ANOTHER_ASKS says. */
static moves_t *two_writers(const moves_config_t *config, chain_t **ret_chain)
{
    moves_t *m = moves_new(config);
    *ret_chain = chain_new(m, 1);
    (void)pump_add(&m->pump, qr_address(NODE, 2, QR_ROLE_checkpoint_writer, 0), NULL, moves_hear, m);
    return m;
}

/* Another writer of the node asks: what one writes does not leave for it before its publish can be in the catalog. */
static void test_what_another_writes_does_not_leave(void **state)
{
    (void)state;
    qr_message_t answer;
    moves_config_t config = plain;
    config.store_bytes = 2ull * (8192 + 2 * 2 * 64 * 32);
    chain_t *c;
    moves_t *m = two_writers(&config, &c);
    assert_int_equal(save(c, 0).reason, 0);
    ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
    assert_int_equal(answer.body.chunk_victims_named.groups.count, 0);
    assert_int_equal(found(c), 1); /* over: the next one asks for something new */
    ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
    assert_names(c, &answer.body.chunk_victims_named, 0, 0);
    /* Written again after it was named: it stays, and counts when the catalog has named it. */
    assert_int_equal(save(c, 0).reason, 0);
    ANOTHER_ASKS(m, chunk_drop, &answer, .key = 3, .chain = c->chains[0]);
    assert_int_equal(answer.body.chunk_dropped.reason, QR_E_BUSY);
    assert_int_equal(found(c), 0);
    ANOTHER_ASKS(m, chunk_drop, &answer, .key = 3, .chain = c->chains[0]); /* as late as it may be */
    assert_int_equal(answer.body.chunk_dropped.reason, QR_E_BUSY);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 1);
    ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
    assert_names(c, &answer.body.chunk_victims_named, 0, 0);
    ANOTHER_ASKS(m, chunk_drop, &answer, .key = 3, .chain = c->chains[0]);
    assert_int_equal(answer.body.chunk_dropped.reason, 0);
    /* Its own writer may have it leave. */
    assert_int_equal(save(c, 1).reason, 0);
    assert_int_equal(victims(m, 1).groups.count, 1);
    assert_int_equal(drop(c, 1), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* What counts as found is in the catalog: not what is being published, was written in vain, is written by two or may be withdrawn. */
static void test_only_what_was_published_is_found(void **state)
{
    (void)state;
    qr_message_t answer;
    chain_t *c;
    moves_t *m = two_writers(&plain, &c);
    const qr_bytes_t first = {c->chains[0].bytes, 32};
    assert_int_equal(save(c, 0).reason, 0);
    ANOTHER_ASKS(m, chunk_find, &answer, .key = 4, .chains = first);
    assert_int_equal(answer.body.chunk_found.depth, 0); /* its publish is on its way */
    c->published = (qr_hash_t){0};
    assert_int_equal(found(c), 0);          /* and came to nothing */
    qr_chunk_leased_t leased = lease(c, 0); /* by who has it from an older state of the catalog */
    assert_int_equal(leased.reason, 0);
    assert_int_equal(release(c, leased.lease, 0, 0), 0);
    assert_int_equal(found(c), 0);
    assert_int_equal(save(c, 0).reason, 0);
    c->published = c->chains[1]; /* of another chunk */
    assert_int_equal(found(c), 0);
    c->published = c->chains[0]; /* it has asked for something new before it said so */
    assert_int_equal(found(c), 0);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 1);
    ANOTHER_ASKS(m, chunk_find, &answer, .key = 4, .chains = first);
    assert_int_equal(answer.body.chunk_found.depth, 1);
    ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
    assert_names(c, &answer.body.chunk_victims_named, 0, 0);
    assert_int_equal(found(c), 0); /* it may be withdrawn by now */
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 0); /* after it was published, too */
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 1);
    /* Two write it: what one publishes the other may withdraw. */
    assert_int_equal(save(c, 0).reason, 0);
    m->writes_open++;
    ANOTHER_ASKS(m, chunk_write, &answer, .key = 5, .parent = c->parents[0], .chain = c->chains[0], .tokens = {c->tokens, c->chunk});
    assert_int_equal(answer.body.chunk_written.reason, 0);
    assert_int_equal(found(c), 0);
    ANOTHER_ASKS(m, chunk_find, &answer, .key = 4, .chains = first, .published = c->chains[0]);
    assert_int_equal(answer.body.chunk_found.depth, 0);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 1);
    /* Published once and written again: if that publish is refused for good, it is withdrawn. */
    assert_int_equal(save(c, 0).reason, 0);
    c->published = (qr_hash_t){0};
    assert_int_equal(found(c), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* A writer begins anew alone: its publish of before may be on its way until the catalog has answered the new one. */
static void test_what_a_writer_left_does_not_leave(void **state)
{
    (void)state;
    qr_message_t answer;
    chain_t *c;
    moves_t *m = two_writers(&plain, &c);
    for (uint32_t ends = 0; ends < 2; ends++) {
        assert_int_equal(save(c, 0).reason, 0);
        member_t *writer = pump_find(&m->pump, at_role(QR_ROLE_checkpoint_writer));
        writer->epoch++;
        memset(writer->open, 0, sizeof writer->open);
        c->published = (qr_hash_t){0};
        assert_int_equal(found(c), 0);
        ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
        assert_int_equal(answer.body.chunk_victims_named.groups.count, 0);
        ANOTHER_ASKS(m, chunk_drop, &answer, .key = 3, .chain = c->chains[0]);
        assert_int_equal(answer.body.chunk_dropped.reason, QR_E_BUSY);
        c->published = c->chains[1];
        if (ends)
            assert_int_equal(found(c), 0);
        else
            assert_int_equal(drop(c, 2), QR_E_NOT_FOUND);
        ANOTHER_ASKS(m, chunk_victims, &answer, .key = 4, .bytes = 1);
        assert_names(c, &answer.body.chunk_victims_named, 0, 0);
        ANOTHER_ASKS(m, chunk_drop, &answer, .key = 3, .chain = c->chains[0]);
        assert_int_equal(answer.body.chunk_dropped.reason, 0);
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* Storage begins anew alone: what is being published it does not know, so nothing leaves before every writer has spoken. */
static void test_nothing_leaves_before_every_writer_has_spoken(void **state)
{
    (void)state;
    qr_message_t answer;
    moves_config_t config = plain;
    config.writers = 2;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_hash_t named[PARTS];
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    (void)pump_add(&m->pump, qr_address(NODE, 2, QR_ROLE_checkpoint_writer, 0), NULL, moves_hear, m);
    assert_int_equal(lease(c, 5).reason, QR_E_NOT_FOUND); /* a loss */
    assert_int_equal(victims(m, 1).groups.count, 0);
    qr_chunk_leased_t leased = lease(c, 0);
    assert_int_equal(leased.reason, 0);
    assert_int_equal(release(c, leased.lease, 0, 0), 0);
    assert_int_equal(drop(c, 0), QR_E_BUSY); /* told by the storage of before: it stays, and is not in the catalog any more */
    assert_int_equal(found(c), 0);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_losses, .key = 7);
    assert_false(is_told(c));
    assert_int_equal(victims(m, 1).groups.count, 0); /* the other one may be publishing what it would name */
    ANOTHER_ASKS(m, chunk_find, &answer, .key = 4);
    assert_true(is_told(c));
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(named[0].bytes, c->chains[5].bytes, 32);
    qr_chunk_victims_named_t may = victims(m, 1);
    assert_names(c, &may, 0, 1);
    assert_int_equal(drop(c, 1), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- holds ---------------------------------------------------------------------------------------------------------------------- */

static uint32_t hold(chain_t *c, uint8_t id, uint32_t parts)
{
    qr_message_t answer;
    const uint8_t bytes[16] = {id};
    MOVES_ASK(c->m, facts, storage, chunk_hold, &answer, .key = 9, .id = {bytes, 16}, .scope = c->parents[0],
              .tokens = {c->tokens, parts * c->chunk + 3});
    assert_int_equal(answer.body.chunk_held.key, 9);
    return answer.body.chunk_held.reason;
}
static void unhold(chain_t *c, uint8_t id)
{
    qr_message_t answer;
    const uint8_t bytes[16] = {id};
    MOVES_ASK(c->m, facts, storage, chunk_unhold, &answer, .key = 9, .id = {bytes, 16});
    assert_int_equal(answer.body.chunk_unheld.key, 9);
}

/* What is held is nobody's victim, be it here before the hold or after; what two hold stays until both let go. */
static void test_held_chunks_do_not_leave(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 4ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(hold(c, 1, 3), 0);
    assert_int_equal(hold(c, 1, 3), 0); /* the same one */
    assert_int_equal(hold(c, 2, 2), 0);
    for (uint32_t p = 1; p < 4; p++) assert_int_equal(save(c, p).reason, 0);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(release(c, lease(c, 3).lease, 0, 0), 0); /* worth most, and not held */
    assert_int_equal(release(c, lease(c, 2).lease, 0, 0), 0);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_held_bytes), 3 * c->bytes);
    qr_chunk_victims_named_t named = victims(m, c->bytes);
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 3);
    assert_int_equal(drop(c, 3), 0);
    assert_int_equal(victims(m, c->bytes).groups.count, 0);
    unhold(c, 7); /* nobody's */
    unhold(c, 1);
    named = victims(m, c->bytes);
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 2);
    assert_int_equal(drop(c, 2), 0);
    assert_int_equal(victims(m, c->bytes).groups.count, 0);
    unhold(c, 2);
    assert_int_equal(victims(m, 2 * c->bytes).groups.count, 2);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_held_bytes), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Held together they fit the bound; a hold beyond it changes nothing, and one that ends makes room for another. */
static void test_holds_fit_the_bound(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 4ull * (8192 + 2 * 2 * 64 * 32) + 100;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1), *other = chain_new(m, 2);
    assert_int_equal(hold(c, 1, 3), 0);
    assert_int_equal(hold(other, 2, 2), QR_E_NO_SPACE);
    assert_int_equal(hold(c, 3, 4), 0); /* three of them are held already */
    assert_int_equal(hold(other, 4, 1), QR_E_NO_SPACE);
    assert_int_equal(hold(other, 5, 0), 0);
    unhold(c, 3);
    assert_int_equal(hold(other, 4, 1), 0);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_held_bytes), 4 * c->bytes);
    chain_destroy(&c);
    chain_destroy(&other);
    moves_destroy(m);
}

/* After a restart facts says what was held, one by one; before the last of them is known nothing may leave. */
static void test_holds_are_asked_at_the_start(void **state)
{
    (void)state;
    moves_config_t config = plain;
    const uint8_t ids[2][16] = {{1}, {2}};
    qr_message_t answer;
    config.facts = true;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    assert_true(moves_heard(m, QR_ROLE_facts, QR_MESSAGE_holds_read, &answer));
    moves_say(m, QR_ROLE_facts, QR_ROLE_storage, QR_MESSAGE_holds_found, &(qr_holds_found_t){0});
    for (uint32_t p = 0; p < 3; p++) assert_int_equal(save(c, p).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(moves_heard(m, QR_ROLE_facts, QR_MESSAGE_holds_read, &answer));
        assert_int_equal(answer.body.holds_read.after.count, i ? 16 : 0);
        assert_int_equal(victims(m, c->bytes).groups.count, 0);
        MOVES_SAY(m, facts, storage, holds_found, .id = {ids[i], 16}, .scope = c->parents[0], .tokens = {c->tokens, (1 + i) * c->chunk});
        moves_rest(m);
    }
    assert_true(moves_heard(m, QR_ROLE_facts, QR_MESSAGE_holds_read, &answer));
    moves_say(m, QR_ROLE_facts, QR_ROLE_storage, QR_MESSAGE_holds_found, &(qr_holds_found_t){0});
    moves_rest(m);
    qr_chunk_victims_named_t named = victims(m, c->bytes);
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 2);
    assert_int_equal(victims(m, 2 * c->bytes).groups.count, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Whoever was told names may never drop them: no file is kept from leaving by that. */
static void test_names_that_were_not_dropped_are_named_again(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 2ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t part = 2; part-- > 0;) { /* first what was not named yet */
            qr_chunk_victims_named_t named = victims(m, c->bytes);
            assert_int_equal(named.groups.count, 1);
            assert_names(c, &named, 0, part);
        }
    assert_int_equal(drop(c, 1), 0);
    assert_int_equal(save(c, 2).reason, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* What was used often long ago leaves at last: the level rises to each key that leaves. */
static void test_old_fame_fades(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 2ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    bool famous = true;
    assert_int_equal(save(c, 0).reason, 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(release(c, lease(c, 0).lease, 0, 0), 0);
    uint32_t rounds = 0;
    for (uint32_t p = 1; famous && rounds < 40; p = p % (PARTS - 1) + 1, rounds++) {
        qr_chunk_written_t full = save(c, p);
        if (full.reason == QR_E_SHORTFALL) {
            qr_chunk_victims_named_t named = victims(m, full.shortfall_bytes);
            assert_int_equal(named.groups.count, 1);
            uint32_t left = 0;
            while (left < PARTS && memcmp(named.chains.data, c->chains[left].bytes, 32) != 0) left++;
            assert_int_equal(drop(c, left), 0);
            famous = left != 0;
        }
    }
    assert_false(famous);
    assert_true(rounds > 3); /* not at once either */
    chain_destroy(&c);
    moves_destroy(m);
}

static void test_a_file_that_never_fits(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 9000;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, QR_E_NO_SPACE);
    assert_int_equal(victims(m, c->bytes).groups.count, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* The count of files is a bound too. */
static void test_files_are_counted(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_files = 3;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 3; p++) assert_int_equal(save(c, p).reason, 0);
    qr_chunk_written_t full = save(c, 3);
    assert_int_equal(full.reason, QR_E_SHORTFALL);
    assert_true(full.shortfall_bytes > 0);
    qr_chunk_victims_named_t named = victims(m, full.shortfall_bytes);
    assert_int_equal(named.groups.count, 1);
    assert_names(c, &named, 0, 2);
    assert_int_equal(drop(c, 2), 0);
    assert_int_equal(save(c, 3).reason, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* RS-05: a lease has no end but its release. What is leased is not named to leave; dropped all the same, it stays until it was read. */
static void test_RS_05_a_leased_file_outlives_its_drop(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 2ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    qr_chunk_leased_t held[3] = {lease(c, 0), lease(c, 1), lease(c, 1)};
    assert_int_equal(victims(m, c->bytes).groups.count, 0);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_drop, .key = 21, .chain = c->chains[1]);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_drop, .key = 22, .chain = c->chains[1]); /* asked twice, answered twice */
    moves_rest(m);
    assert_int_equal(m->heard_count, 0);
    assert_int_equal(save(c, 1).reason, QR_E_BUSY);      /* it is leaving */
    assert_int_equal(save(c, 2).reason, QR_E_SHORTFALL); /* its bytes are there as long as it is */
    assert_int_equal(load(c, 1, held[1].content, true).reason, 0);
    assert_int_equal(release(c, held[1].lease, 0, 0), 0);
    assert_int_equal(m->heard_count, 0);
    assert_int_equal(load(c, 1, held[2].content, false).reason, 0);
    assert_int_equal(release(c, held[2].lease, 1, 0), 0);
    for (uint64_t key = 21; key <= 22; key++) {
        assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_dropped, &answer));
        assert_int_equal(answer.body.chunk_dropped.key, key);
        assert_int_equal(answer.body.chunk_dropped.bytes, c->bytes);
    }
    assert_int_equal(load(c, 1, held[2].content, true).reason, QR_E_NOT_FOUND);
    assert_int_equal(save(c, 2).reason, 0);
    assert_int_equal(release(c, held[2].lease, 0, 0), QR_E_STALE);
    assert_int_equal(release(c, held[0].lease, 0, 0), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* A partner that begins anew holds nothing: its leases are over, what was named to it may be named again. */
static void test_leases_of_an_ended_epoch_are_released(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 2ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    qr_chunk_leased_t held = lease(c, 0);
    assert_int_equal(victims(m, c->bytes).groups.count, 1);
    pump_find(&m->pump, at_role(QR_ROLE_restore_streamer))->epoch = 2;
    assert_int_equal(lease(c, 9).reason, QR_E_NOT_FOUND);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_leases), 0);
    assert_int_equal(release(c, held.lease, 0, 0), QR_E_STALE);
    pump_find(&m->pump, at_role(QR_ROLE_checkpoint_writer))->epoch = 2;
    assert_int_equal(victims(m, 2 * c->bytes).groups.count, 2);
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- trust and restarts
 * -------------------------------------------------------------------------------------------------------------------- */

static void test_trust_is_of_the_file_that_was_seen(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    char path[512];
    assert_int_equal(save(c, 0).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    qr_chunk_leased_t leased = lease(c, 0);
    assert_int_equal(leased.reason, 0);
    assert_int_equal(leased.trusted, 0); /* the first time since boot */
    assert_int_equal(load(c, 0, leased.content, true).reason, 0);
    assert_int_equal(release(c, leased.lease, 1, 0), 0);
    leased = lease(c, 0);
    assert_int_equal(leased.trusted, 1);
    assert_int_equal(release(c, leased.lease, 0, 0), 0);
    moves_file_path(m, leased.content, path);
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0); /* touched: who knows what else */
    leased = lease(c, 0);
    assert_int_equal(leased.trusted, 0);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{1, 1}, {1, 1}}, 0),
                     0); /* between its lease and the word that it is whole */
    assert_int_equal(release(c, leased.lease, 1, 0), 0);
    leased = lease(c, 0);
    assert_int_equal(leased.trusted, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* CK-01, at this level: after a kill the same files are found and nothing is written again. */
static void test_files_are_found_again_after_a_kill(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    struct stat before[4], after;
    char path[512];
    for (uint32_t p = 0; p < 4; p++) {
        assert_int_equal(save(c, p).reason, 0);
        moves_file_path(m, c->contents[p], path);
        assert_int_equal(stat(path, &before[p]), 0);
    }
    moves_file_path(m, c->contents[3], path);
    assert_int_equal(truncate(path, 4096 + 16), 0); /* what is not a chunk any more is not adopted */
    moves_halt(m, true);
    moves_boot(m, 2);
    assert_int_equal(found(c), 0); /* whether the catalog knows them cannot be told from here */
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_adopted_files), 3);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_bytes), 3 * c->bytes);
    assert_int_equal(save(c, 0).reason, 0); /* it is there, and may be published again */
    assert_int_equal(found(c), 1);
    for (uint32_t p = 0; p < 3; p++) {
        qr_chunk_leased_t leased = lease(c, p);
        assert_int_equal(leased.reason, 0);
        assert_int_equal(leased.bytes, c->bytes);
        assert_int_equal(found(c), p + 1); /* it was asked for: the catalog knows it */
        assert_int_equal(load(c, p, leased.content, true).reason, 0);
        assert_int_equal(save(c, p).reason, 0);
        moves_file_path(m, c->contents[p], path);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(after.st_ino, before[p].st_ino);
        assert_int_equal(after.st_mtim.tv_nsec, before[p].st_mtim.tv_nsec);
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* CK-03: the bytes of before count from the start. */
static void test_CK_03_the_bound_holds_after_a_kill(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_bytes = 10ull * (8192 + 2 * 2 * 64 * 32);
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 8; p++) assert_int_equal(save(c, p).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_files), 8);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_bytes), 8 * c->bytes);
    for (uint32_t p = 8; p < 13; p++) {
        qr_chunk_written_t written = save(c, p);
        assert_bound(c, 10);
        if (p < 10) assert_int_equal(written.reason, 0);
        if (p < 10) continue;
        assert_int_equal(written.reason, QR_E_SHORTFALL);
        qr_chunk_victims_named_t named = victims(m, written.shortfall_bytes);
        assert_int_equal(named.groups.count, 1);
        qr_message_t answer;
        qr_hash_t chain;
        memcpy(chain.bytes, named.chains.data, 32);
        MOVES_ASK(m, checkpoint_writer, storage, chunk_drop, &answer, .chain = chain);
        assert_int_equal(answer.body.chunk_dropped.reason, 0);
        assert_int_equal(save(c, p).reason, 0);
        assert_bound(c, 10);
    }
    uint32_t files;
    (void)moves_disk(m, "chunks", &files);
    assert_int_equal(files, 10);
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- what the operating system refuses
 * --------------------------------------------------------------------------------------------------------- */

/* Every system call of a write fails once, with EIO and with a full disk: nothing of the file is found, then or after a restart. */
static void test_a_write_that_fails_leaves_nothing(void **state)
{
    (void)state;
    static const qr_store_point_t points[] = {QR_STORE_POINT_write_open,   QR_STORE_POINT_write_head,        QR_STORE_POINT_write_piece,
                                              QR_STORE_POINT_write_fsync,  QR_STORE_POINT_parent_make,       QR_STORE_POINT_parent_fsync,
                                              QR_STORE_POINT_write_rename, QR_STORE_POINT_write_folder_fsync};
    static const int errors[] = {EIO, ENOSPC};
    moves_t *m = moves_new(&plain);
    uint64_t failures = 0;
    for (uint32_t e = 0; e < QR_COUNT(errors); e++)
        for (uint32_t i = 0; i < QR_COUNT(points); i++) {
            chain_t *c = chain_new(m, 100 + 20 * e + i);
            uint32_t files;
            moves_halt(m, true); /* so that the folders are made durable anew */
            moves_boot(m, 2 + i);
            qr_store_fail_arm(points[i], 1, errors[e], false);
            qr_chunk_written_t written = save(c, 0);
            assert_int_equal(qr_store_fail_passed(points[i]), 1);
            qr_store_fail_arm(points[i], 0, 0, false);
            assert_int_equal(written.reason, errors[e] == EIO ? QR_E_IO : QR_E_NO_SPACE);
            assert_int_equal(found(c), 0);
            assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
            (void)moves_disk(m, "chunks", &files);
            assert_int_equal(files, failures);
            (void)moves_disk(m, "tmp", &files);
            assert_int_equal(files, 0);
            assert_int_equal(save(c, 0).reason, 0);
            failures++; /* so many files by now */
            assert_int_equal(load(c, 0, c->contents[0], true).reason, 0);
            chain_destroy(&c);
        }
    moves_destroy(m);
}

/* RS-03, at this level: a disk that stays full. Parts that were saved go on being found; none that was not ever is. */
static void test_a_full_disk(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    qr_store_fail_arm(QR_STORE_POINT_write_piece, 1, ENOSPC, true);
    for (uint32_t p = 1; p < 4; p++) assert_int_equal(save(c, p).reason, QR_E_NO_SPACE);
    assert_int_equal(found(c), 1);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_write_failures_total), 3);
    qr_store_fail_arm(QR_STORE_POINT_write_piece, 0, 0, false);
    moves_halt(m, true);
    moves_boot(m, 2);
    assert_int_equal(lease(c, 0).reason, 0);
    assert_int_equal(lease(c, 1).reason, QR_E_NOT_FOUND);
    assert_int_equal(found(c), 1);
    assert_int_equal(save(c, 1).reason, 0);
    assert_int_equal(found(c), 2);
    chain_destroy(&c);
    moves_destroy(m);
}

/* A file that cannot be unlinked: who waits for it hears so, and the part is not lost to the store for ever. */
static void test_a_file_that_cannot_be_unlinked(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    qr_chunk_leased_t held = lease(c, 0);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_drop, .key = 21, .chain = c->chains[0]);
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 1, EIO, false);
    assert_int_equal(release(c, held.lease, 0, 0), QR_E_IO);
    assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_dropped, &answer));
    assert_int_equal(answer.body.chunk_dropped.key, 21);
    assert_int_equal(answer.body.chunk_dropped.reason, QR_E_IO);
    assert_int_equal(found(c), 0);
    assert_int_equal(drop(c, 0), 0);
    assert_int_equal(save(c, 0).reason, 0);
    held = lease(c, 0);
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 1, EIO, false);
    assert_int_equal(release(c, held.lease, 0, QR_E_DIGEST), QR_E_IO);
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 0, 0, false);
    assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
    assert_int_equal(save(c, 0).reason, 0); /* what is left of it goes first */
    assert_int_equal(load(c, 0, c->contents[0], true).reason, 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* P3: a file that cannot be read while the store is opened is not deleted: it is not found now, and found at the next start, or written
 * anew in its place. */
static void test_an_error_at_the_start_deletes_nothing(void **state)
{
    (void)state;
    static const qr_store_point_t points[] = {QR_STORE_POINT_read_open, QR_STORE_POINT_read_head};
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    uint32_t files;
    assert_int_equal(save(c, 0).reason, 0);
    for (uint32_t i = 0; i < QR_COUNT(points); i++) {
        moves_halt(m, true);
        qr_store_fail_arm(points[i], 1, EIO, false);
        moves_boot(m, 2 + 2 * i);
        qr_store_fail_arm(points[i], 0, 0, false);
        assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
        (void)moves_disk(m, "chunks", &files);
        assert_int_equal(files, 1);
        if (i == 1) assert_int_equal(save(c, 0).reason, 0);
        (void)moves_disk(m, "chunks", &files);
        assert_int_equal(files, 1);
        assert_int_equal(metric(m, QR_ROLE_storage, ID_store_bytes), i * c->bytes);
        moves_halt(m, true);
        moves_boot(m, 3 + 2 * i);
        assert_int_equal(lease(c, 0).reason, 0);
        assert_int_equal(load(c, 0, c->contents[0], true).reason, 0);
    }
    chain_destroy(&c);
    moves_destroy(m);
}

static void test_an_error_while_reading(void **state)
{
    (void)state;
    moves_t *m = moves_new(&broad);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    static const uint32_t counts[] = {1, 7};
    for (uint32_t i = 0; i < 2; i++) {
        qr_store_fail_arm(QR_STORE_POINT_read_piece, counts[i], EIO, false);
        qr_page_uploaded_t uploaded = load(c, 0, c->contents[0], i);
        assert_int_equal(uploaded.reason, QR_E_IO);
        assert_int_equal(uploaded.damage, 1);
        qr_store_fail_arm(QR_STORE_POINT_read_piece, 0, 0, false);
        assert_int_equal(load(c, 0, c->contents[0], i).reason, 0);
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- no lookup or lease stands behind a sync
 * ------------------------------------------------------------------------------------------------- */

static _Atomic int gate; /* 1: the sync waits, 2: it is waiting, 0: it goes on */
static void hold_sync(qr_store_point_t point)
{
    if (point != QR_STORE_POINT_write_fsync || !gate) return;
    gate = 2;
    while (gate) (void)poll(NULL, 0, 1);
}
static void test_leases_are_answered_while_a_file_is_synced(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(found(c), 1);
    qr_store_fail_seen = hold_sync;
    gate = 1;
    download(c, 1);
    write_say(c, 1);
    deliver(m);
    while (gate == 1) {
        (void)pump_work(&m->pump, m->storage);
        (void)poll(NULL, 0, 1);
    }
    m->writes_open--; /* do not wait for it here */
    qr_chunk_leased_t leased = lease(c, 0);
    assert_int_equal(leased.reason, 0);
    assert_int_equal(load(c, 0, leased.content, true).reason, 0);
    assert_int_equal(release(c, leased.lease, 1, 0), 0);
    assert_int_equal(lease(c, 1).reason, QR_E_NOT_FOUND); /* not before its receipt */
    assert_int_equal(found(c), 1);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_writes_waiting), 1);
    assert_false(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
    m->writes_open++;
    gate = 0;
    assert_true(moves_late(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
    assert_int_equal(answer.body.chunk_written.reason, 0);
    assert_int_equal(save(c, 1).reason, 0); /* its asker asked for something else meanwhile */
    assert_int_equal(found(c), 2);
    qr_store_fail_seen = NULL;
    chain_destroy(&c);
    moves_destroy(m);
}

/* Mesh stops storage while a file is written: it is brought to its end and answered. And an asker that began anew gets nothing of its old
 * one. */
static void test_a_write_under_way_at_the_end(void **state)
{
    (void)state;
    for (uint32_t anew = 0; anew < 2; anew++) {
        moves_t *m = moves_new(&plain);
        chain_t *c = chain_new(m, 1);
        qr_message_t answer;
        qr_store_fail_seen = hold_sync;
        gate = 1;
        download(c, 0);
        write_say(c, 0);
        deliver(m);
        while (gate == 1) {
            (void)pump_work(&m->pump, m->storage);
            (void)poll(NULL, 0, 1);
        }
        m->writes_open--;
        if (anew) {
            member_t *writer = pump_find(&m->pump, at_role(QR_ROLE_checkpoint_writer));
            writer->epoch = 2;
            memset(writer->open, 0, sizeof writer->open);
            assert_int_equal(found(c), 0);
        }
        gate = 0;
        while (qr_storage_class.wake_descriptor(m->storage->state) >= 0 && anew && metric(m, QR_ROLE_storage, ID_store_writes_waiting)) {
            (void)pump_work(&m->pump, m->storage);
            (void)poll(NULL, 0, 1);
        }
        if (!anew) {
            m->writes_open++;
            MOVES_ASK(m, mesh, storage, stop, &answer, .budget_us = 1);
            assert_true(moves_heard(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
            assert_int_equal(answer.body.chunk_written.reason, 0);
        }
        qr_store_fail_seen = NULL;
        moves_halt(m, true);
        moves_boot(m, 2);
        assert_int_equal(lease(c, 0).reason, anew ? QR_E_NOT_FOUND : 0);
        chain_destroy(&c);
        moves_destroy(m);
    }
}

/* ---- losses ------------------------------------------------------------------------------------------------------------------------ */

/* The chains that storage names as lost, `now`; how many. */
/* Damaged, removed, asked for in vain: each is told once, named until it is dropped, and over when it is written again. */
static void test_losses_are_named_until_they_are_dropped(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_hash_t named[PARTS];
    for (uint32_t part = 0; part < 4; part++) assert_int_equal(save(c, part).reason, 0);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_losses, .key = 7);
    assert_false(is_told(c)); /* nothing is lost */
    moves_spoil(m, c->contents[1], false);
    qr_chunk_leased_t leased = lease(c, 1);
    qr_page_uploaded_t uploaded = load(c, 1, leased.content, true);
    assert_int_equal(release(c, leased.lease, 0, uploaded.reason), 0);
    assert_true(is_told(c));
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(named[0].bytes, c->chains[1].bytes, 32);
    assert_int_equal(losses(c, named), 1); /* until it is dropped */
    assert_int_equal(drop(c, 1), QR_E_NOT_FOUND);
    assert_int_equal(losses(c, named), 0);
    MOVES_SAY(m, checkpoint_writer, storage, chunk_losses, .key = 7);
    moves_spoil(m, c->contents[2], true);
    assert_int_equal(lease(c, 2).reason, QR_E_NOT_FOUND);
    assert_true(is_told(c));
    assert_int_equal(lease(c, 9).reason, QR_E_NOT_FOUND); /* never written: only the catalog can have named it */
    assert_int_equal(losses(c, named), 2);
    assert_int_equal(save(c, 2).reason, 0); /* by whom it was told */
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(named[0].bytes, c->chains[9].bytes, 32);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Of two who may withdraw a loss one is told its name; the other neither hears it nor writes it until the first one is done, or gone. */
static void test_a_loss_is_withdrawn_by_one(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_hash_t named[PARTS];
    qr_message_t answer;
    uint64_t second = qr_address(NODE, 2, QR_ROLE_checkpoint_writer, 0);
    (void)pump_add(&m->pump, second, NULL, moves_hear, m);
    assert_int_equal(save(c, 0).reason, 0);
    moves_spoil(m, c->contents[0], true);
    assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
    assert_int_equal(losses(c, named), 1);
    for (uint32_t done = 0; done < 2; done++) {
        if (done) assert_int_equal(drop(c, 0), QR_E_NOT_FOUND);
        pump_send(&m->pump, second, at_role(QR_ROLE_storage), QR_MESSAGE_chunk_losses, &(qr_chunk_losses_t){.key = 4, .now = 1});
        assert_true(moves_late(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_losses_named, &answer));
        assert_int_equal(answer.body.chunk_losses_named.groups.count, 0);
        download(c, 0);
        m->writes_open++;
        pump_send(&m->pump, second, at_role(QR_ROLE_storage), QR_MESSAGE_chunk_write,
                  &(qr_chunk_write_t){.key = 5, .parent = c->parents[0], .chain = c->chains[0], .tokens = {c->tokens, c->chunk}});
        assert_true(moves_late(m, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_written, &answer));
        assert_int_equal(answer.body.chunk_written.reason, done ? 0 : QR_E_BUSY);
        if (!done) assert_int_equal(losses(c, named), 1); /* it is still the first one's */
    }
    chain_destroy(&c);
    moves_destroy(m);
}

/* What one publishes another does not withdraw, though it was found to be gone meanwhile: the withdrawal could come before the publish. */
static void test_a_loss_of_what_is_published_waits(void **state)
{
    (void)state;
    moves_t *m = moves_new(&plain);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    uint64_t second = qr_address(NODE, 2, QR_ROLE_checkpoint_writer, 0);
    (void)pump_add(&m->pump, second, NULL, moves_hear, m);
    assert_int_equal(save(c, 0).reason, 0);
    moves_spoil(m, c->contents[0], true);
    assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
    ANOTHER_ASKS(m, chunk_losses, &answer, .key = 4, .now = 1);
    assert_int_equal(answer.body.chunk_losses_named.groups.count, 0);
    pump_send(&m->pump, second, at_role(QR_ROLE_storage), QR_MESSAGE_chunk_losses, &(qr_chunk_losses_t){.key = 4});
    assert_false(is_told(c));
    assert_int_equal(found(c), 0);
    assert_true(is_told(c));
    ANOTHER_ASKS(m, chunk_losses, &answer, .key = 4, .now = 1);
    assert_int_equal(answer.body.chunk_losses_named.groups.count, 1);
    chain_destroy(&c);
    moves_destroy(m);
}

/* At the start the catalog says what it thinks is here; what is not is lost. */
static void test_the_catalog_is_held_against_the_files_at_the_start(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.facts = true;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_hash_t named[PARTS];
    qr_message_t answer;
    char path[512];
    uint32_t groups[PARTS] = {0};
    for (uint32_t part = 0; part < 3; part++) assert_int_equal(save(c, part).reason, 0);
    moves_halt(m, true);
    moves_file_path(m, c->contents[1], path);
    assert_int_equal(unlink(path), 0);
    moves_boot(m, 2);
    assert_int_equal(found(c), 0); /* nobody said yet that the catalog knows what is here */
    assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    assert_int_equal(answer.body.facts_query.owner, NODE);
    assert_int_equal(answer.body.facts_query.tier, QR_TIER_SSD);
    MOVES_SAY(m, facts, storage, facts_refused, .query_id = answer.body.facts_query.query_id, .reason = QR_E_BUSY);
    assert_false(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    m->pump.now_us += 1000000;
    pump_alarms(&m->pump);
    assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer)); /* once more */
    MOVES_SAY(m, checkpoint_writer, storage, chunk_losses, .key = 7);
    MOVES_SAY(m, facts, storage, facts_page, .query_id = answer.body.facts_query.query_id, .cursor = {(const uint8_t *)"on", 2},
              .chains = {(const uint8_t *)c->chains, 64}, .groups = {groups, 2});
    assert_true(is_told(c));
    assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer)); /* the next page */
    assert_int_equal(answer.body.facts_query.cursor.count, 2);
    MOVES_SAY(m, facts, storage, facts_page, .query_id = answer.body.facts_query.query_id, .chains = {c->chains[2].bytes, 32},
              .groups = {groups, 1});
    moves_rest(m);
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(named[0].bytes, c->chains[1].bytes, 32);
    assert_int_equal(found(c), 1);
    assert_false(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    chain_destroy(&c);
    moves_destroy(m);
}

/* More than are kept at once: the catalog is read on when those have been dropped. */
static void test_many_losses_at_the_start(void **state)
{
    (void)state;
    enum { MANY = QR_CAPTURE_DROPS + 5 };
    moves_config_t config = plain;
    config.facts = true;
    moves_t *m = moves_new(&config);
    qr_message_t answer;
    qr_hash_t chains[MANY];
    uint32_t groups[MANY] = {0}, seen = 0;
    for (uint32_t i = 0; i < MANY; i++) memset(chains[i].bytes, (int)i + 1, 32);
    for (uint32_t round = 0; round < 2; round++) {
        assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
        assert_int_equal(answer.body.facts_query.cursor.count, 0);
        MOVES_SAY(m, facts, storage, facts_page, .query_id = answer.body.facts_query.query_id,
                  .chains = {chains[seen].bytes, 32ull * (MANY - seen)}, .groups = {groups, MANY - seen}); /* those dropped are withdrawn */
        moves_rest(m);
        MOVES_ASK(m, checkpoint_writer, storage, chunk_losses, &answer, .key = 8, .now = 1);
        uint32_t count = (uint32_t)answer.body.chunk_losses_named.groups.count;
        assert_int_equal(count, round ? 5 : QR_CAPTURE_DROPS);
        assert_false(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
        for (uint32_t i = 0; i < count; i++)
            MOVES_ASK(m, checkpoint_writer, storage, chunk_drop, &answer, .key = i, .chain = chains[seen + i]);
        seen += count;
    }
    assert_false(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    moves_destroy(m);
}

/* The last of them is not dropped but written again: the catalog is read on all the same. */
static void test_the_last_of_many_losses_is_written_again(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.facts = true;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    qr_message_t answer;
    qr_hash_t chains[QR_CAPTURE_DROPS + 1];
    uint32_t groups[QR_COUNT(chains)] = {0};
    for (uint32_t i = 0; i < QR_COUNT(chains); i++) memset(chains[i].bytes, (int)i + 1, 32);
    chains[0] = c->chains[0];
    assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    MOVES_SAY(m, facts, storage, facts_page, .query_id = answer.body.facts_query.query_id, .chains = {chains[0].bytes, sizeof chains},
              .groups = {groups, QR_COUNT(groups)});
    moves_rest(m);
    MOVES_ASK(m, checkpoint_writer, storage, chunk_losses, &answer, .key = 8, .now = 1);
    assert_int_equal(answer.body.chunk_losses_named.groups.count, QR_CAPTURE_DROPS);
    for (uint32_t i = 1; i < QR_CAPTURE_DROPS; i++)
        MOVES_ASK(m, checkpoint_writer, storage, chunk_drop, &answer, .key = i, .chain = chains[i]);
    assert_false(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    assert_int_equal(save(c, 0).reason, 0);
    assert_true(moves_late(m, QR_ROLE_facts, QR_MESSAGE_facts_query, &answer));
    MOVES_SAY(m, facts, storage, facts_page, .query_id = answer.body.facts_query.query_id, .chains = {chains[QR_CAPTURE_DROPS].bytes, 32},
              .groups = {groups, 1});
    moves_rest(m);
    qr_hash_t named[PARTS];
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(&named[0], &chains[QR_CAPTURE_DROPS], sizeof named[0]);
    chain_destroy(&c);
    moves_destroy(m);
}

/* At its bound a store answers for what it has, whoever asks to write it, and takes no room for it. */
static void test_at_the_bound_what_is_here_is_no_write(void **state)
{
    (void)state;
    moves_config_t config = plain;
    config.store_files = 2;
    moves_t *m = moves_new(&config);
    chain_t *c = chain_new(m, 1);
    for (uint32_t part = 0; part < 2; part++) assert_int_equal(save(c, part).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    assert_int_equal(found(c), 0);
    assert_int_equal(save(c, 2).reason, QR_E_SHORTFALL);
    for (uint32_t part = 0; part < 2; part++) {
        qr_hash_t content = c->contents[part];
        assert_int_equal(save(c, part).reason, 0);
        assert_memory_equal(c->contents[part].bytes, content.bytes, 32);
    }
    assert_int_equal(found(c), 2);
    assert_int_equal(metric(m, QR_ROLE_storage, ID_store_writes_total), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* ---- the RAM tier ----------------------------------------------------------------------------------------------------------------- */

static const moves_config_t ram_two = {.page_tokens = 16, .chunk_tokens = 32, .pages = 12, .layers = 2, .ram_slots = 2};

/* Loads a part as it was leased; the rows must be right if it says so. */
static qr_page_uploaded_t load_as(chain_t *c, uint32_t part, const qr_chunk_leased_t *leased)
{
    qr_message_t answer;
    moves_fill(c->m, 0, part * c->chunk, c->chunk, first_block(c, part), c->targets, 99);
    MOVES_SAY(c->m, restore_streamer, transfer, page_upload, .key = part, .content = leased->content, .bytes = leased->bytes,
              .whole = !leased->trusted, .parent = c->parents[part], .chain = c->chains[part], .start = part * c->chunk,
              .tokens = {c->tokens + part * c->chunk, c->chunk}, .from_row = part * c->chunk, .first_block = first_block(c, part),
              .pages = {c->targets, c->blocks}, .kept = leased->kept, .keep = leased->keep);
    assert_true(moves_late(c->m, QR_ROLE_restore_streamer, QR_MESSAGE_page_uploaded, &answer));
    if (answer.body.page_uploaded.reason == 0)
        assert_true(moves_holds(c->m, 0, part * c->chunk, c->chunk, first_block(c, part), c->targets, 7));
    return answer.body.page_uploaded;
}
static void release_kept(chain_t *c, uint64_t handle, uint8_t kept)
{
    qr_message_t answer;
    MOVES_ASK(c->m, restore_streamer, storage, chunk_release, &answer, .lease = handle, .kept = kept);
    assert_int_equal(answer.body.chunk_released.reason, 0);
}
/* Leases a part, loads it and lets go; says how it was leased. */
static qr_chunk_leased_t restore_part(chain_t *c, uint32_t part)
{
    qr_chunk_leased_t leased = lease(c, part);
    if (leased.reason) return leased;
    assert_int_equal(load_as(c, part, &leased).reason, 0);
    release_kept(c, leased.lease, leased.keep != 0);
    return leased;
}
static uint32_t ram_depth(chain_t *c)
{
    qr_message_t answer;
    MOVES_ASK(c->m, scheduler, storage, ram_find, &answer, .key = 4, .chains = {(const uint8_t *)c->chains, sizeof c->chains});
    assert_int_equal(answer.body.ram_found.key, 4);
    return answer.body.ram_found.depth;
}
static uint64_t ram_metric(chain_t *c, uint32_t id) { return metric(c->m, QR_ROLE_storage, id); }

/* What was captured lies in memory, and comes back without its file. */
static void test_ram_needs_no_file(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(save(c, 1).reason, 0);
    assert_int_equal(ram_depth(c), 2);
    assert_int_equal(ram_metric(c, ID_ram_bytes), 2 * m->given->ram->slot_bytes);
    for (uint32_t p = 0; p < 2; p++) moves_spoil(m, c->contents[p], p); /* one damaged, one gone */
    for (uint32_t p = 0; p < 2; p++) {
        qr_chunk_leased_t leased = restore_part(c, p);
        assert_int_equal(leased.reason, 0);
        assert_int_not_equal(leased.kept, 0);
        assert_int_equal(leased.bytes, c->bytes);
    }
    assert_int_equal(ram_metric(c, ID_ram_hits_total), 2);
    assert_int_equal(ram_metric(c, ID_ram_misses_total) + ram_metric(c, ID_store_hits_total) + ram_metric(c, ID_store_missing_total), 0);
    /* Once it is noticed that a file is gone, its part is withdrawn like any other. */
    qr_hash_t named[PARTS];
    assert_int_equal(losses(c, named), 0);
    qr_chunk_leased_t held = lease(c, 1);
    assert_int_equal(release(c, held.lease, 0, QR_E_DIGEST), 0); /* memory fails too */
    assert_int_equal(lease(c, 1).reason, QR_E_NOT_FOUND);
    assert_int_equal(losses(c, named), 1);
    assert_memory_equal(named[0].bytes, c->chains[1].bytes, 32);
    assert_int_equal(drop(c, 1), QR_E_NOT_FOUND);
    assert_int_equal(losses(c, named), 0);
    assert_int_equal(ram_depth(c), 1);
    assert_int_equal(drop(c, 0), 0);
    assert_int_equal(ram_depth(c), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* A bit that fell over in memory, and a slot that holds another part: refused, counted, and the file is used instead. */
static void test_ram_is_checked_when_it_is_read(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    for (uint32_t p = 0; p < 2; p++) {
        qr_chunk_leased_t leased = lease(c, p);
        assert_int_not_equal(leased.kept, 0);
        qr_chunk_header_t *header = &m->given->ram->headers[leased.kept - 1], was = *header;
        if (p == 0) qr_staging_slot(m->given->ram, leased.kept - 1)[77] ^= 4;
        if (p == 1) memset(header->parent, 5, 32);
        qr_page_uploaded_t uploaded = load_as(c, p, &leased);
        assert_int_equal(uploaded.reason, p ? QR_E_IDENTITY : QR_E_DIGEST);
        assert_int_equal(uploaded.damage, 1);
        *header = was;
        assert_int_equal(release(c, leased.lease, 0, uploaded.reason), 0);
        leased = restore_part(c, p);
        assert_int_equal(leased.reason + leased.kept, 0); /* the file is fine, and fills the place again */
        assert_int_not_equal(leased.keep, 0);
        assert_int_not_equal(restore_part(c, p).kept, 0);
    }
    assert_int_equal(ram_metric(c, ID_ram_verify_failures_total), 2);
    assert_int_equal(ram_metric(c, ID_store_damaged_total), 0);
    chain_destroy(&c);
    moves_destroy(m);
}

/* A part that is read from its file enters once it was verified, not before and not without. */
static void test_ram_is_filled_from_files(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    assert_int_equal(save(c, 0).reason, 0);
    moves_halt(m, true);
    moves_boot(m, 2);
    assert_int_equal(ram_depth(c), 0); /* it ended with the actor */
    qr_chunk_leased_t first = lease(c, 0), second = lease(c, 0);
    assert_int_not_equal(first.keep, 0);
    assert_int_equal(first.kept + second.kept + second.keep, 0); /* it is being filled: read by nobody, filled by nobody else */
    assert_int_equal(load_as(c, 0, &first).reason, 0);
    release_kept(c, first.lease, 0); /* as if it had not ended well */
    release_kept(c, second.lease, 0);
    assert_int_equal(ram_metric(c, ID_ram_chunks), 0);
    assert_int_not_equal(restore_part(c, 0).keep, 0);
    assert_int_not_equal(restore_part(c, 0).kept, 0);
    assert_int_equal(ram_metric(c, ID_ram_entered_total), 1);
    qr_message_t answer;
    MOVES_ASK(m, restore_streamer, transfer, page_upload, &answer, .parent = c->parents[0], .chain = c->chains[0],
              .tokens = {c->tokens, c->chunk}, .pages = {c->targets, c->blocks}, .keep = 3);
    assert_int_equal(answer.body.page_uploaded.reason, QR_E_INVALID); /* there is no such slot */
    chain_destroy(&c);
    moves_destroy(m);
}

/* The bound holds whatever comes; the later part of a chain stays out, until the earlier ones are asked for no more; who reads keeps. */
static void test_ram_leaves_by_value(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 3; p++) assert_int_equal(save(c, p).reason, 0);
    assert_int_equal(ram_depth(c), 2); /* without the first two the third is of no use */
    assert_int_equal(ram_metric(c, ID_ram_refused_total), 1);
    qr_chunk_leased_t held[2] = {lease(c, 0), lease(c, 1)};
    for (uint32_t i = 0; i < 40; i++) assert_int_equal(restore_part(c, 2).keep, 0); /* all of it is read */
    for (uint32_t p = 0; p < 2; p++) {
        assert_int_equal(load_as(c, p, &held[p]).reason, 0);
        release_kept(c, held[p].lease, 0);
    }
    assert_int_not_equal(restore_part(c, 2).keep, 0); /* asked for most by now */
    assert_int_equal(ram_depth(c), 1);                /* part 1 left, not part 0 */
    assert_int_equal(ram_metric(c, ID_ram_evictions_total), 1);
    /* Fame fades: others are asked for, and come in. */
    uint32_t tries = 0;
    for (uint32_t i = 0; i < 20; i++) assert_int_not_equal(restore_part(c, 0).kept, 0);
    assert_int_equal(save(c, 3).reason, 0);
    while (tries < 500 && !restore_part(c, 3).kept) tries++;
    assert_in_range(tries, 2, 200);
    assert_true(ram_metric(c, ID_ram_bytes) <= ram_metric(c, ID_ram_bytes_bound));
    assert_int_equal(ram_metric(c, ID_ram_bytes_bound), 2 * m->given->ram->slot_bytes);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Another prompt's first chunk is worth more than the second one of a prompt that nobody asked for again. */
static void test_ram_takes_another_chain(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1), *other = chain_new(m, 2);
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    assert_int_equal(save(other, 0).reason, 0);
    assert_int_equal(ram_depth(c) + ram_depth(other), 2);
    assert_int_not_equal(restore_part(c, 0).kept + restore_part(other, 0).kept, 0);
    chain_destroy(&c);
    chain_destroy(&other);
    moves_destroy(m);
}

/* What the catalog will not name any more leaves memory too, with its last reader; and so does a reader whose epoch ended. */
static void test_ram_of_what_is_dropped(void **state)
{
    (void)state;
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    for (uint32_t p = 0; p < 2; p++) assert_int_equal(save(c, p).reason, 0);
    qr_chunk_leased_t leased = lease(c, 0);
    assert_int_equal(drop(c, 0), 0);
    assert_int_equal(drop(c, 1), 0);
    assert_int_equal(lease(c, 0).reason, QR_E_NOT_FOUND);
    assert_int_equal(lease(c, 1).reason, QR_E_NOT_FOUND);
    assert_int_equal(ram_metric(c, ID_ram_chunks), 1);
    assert_int_equal(load_as(c, 0, &leased).reason, 0);
    release_kept(c, leased.lease, 0);
    assert_int_equal(ram_metric(c, ID_ram_chunks), 0);
    assert_int_equal(release(c, leased.lease, 0, 0), QR_E_STALE);
    assert_int_equal(save(c, 0).reason, 0);
    leased = lease(c, 0);
    assert_int_not_equal(leased.kept, 0);
    pump_find(&m->pump, at_role(QR_ROLE_restore_streamer))->epoch = 2;
    assert_int_equal(release(c, leased.lease, 0, 0), QR_E_STALE);
    assert_int_equal(ram_depth(c), 1);
    chain_destroy(&c);
    moves_destroy(m);
}

/* Pages of the RAM tier's memory that the system has given. */
static uint32_t resident(const qr_staging_t *ram, uint64_t bytes)
{
    static unsigned char pages[1 << 16];
    uint32_t count = 0;
    assert_true(bytes / 4096 < sizeof pages);
    assert_int_equal(mincore(ram->memory, bytes, pages), 0);
    for (uint64_t i = 0; i < (bytes + 4095) / 4096; i++) count += pages[i] & 1;
    return count;
}

/* Before anybody asks, and only for what the store holds; not while batches are computed. */
/* Whether this system can be asked for memory ahead (Linux 5.14) and says truly what is resident. */
static bool memory_ahead(void)
{
    enum { POPULATE_WRITE = 23 };
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char there = 0;
    assert_true(page != MAP_FAILED);
    bool can = mincore(page, 4096, &there) == 0 && !(there & 1) && madvise(page, 4096, POPULATE_WRITE) == 0;
    (void)munmap(page, 4096);
    return can;
}

static void test_ram_memory_is_there_ahead(void **state)
{
    (void)state;
    if (!memory_ahead()) {
        print_message("skipped: this kernel gives no memory ahead (tests/skips.txt)\n");
        return;
    }
    moves_t *m = moves_new(&ram_two);
    chain_t *c = chain_new(m, 1);
    moves_rest(m);
    assert_int_equal(resident(m->given->ram, m->given->ram->mapped_bytes), 0); /* an empty store */
    assert_int_equal(save(c, 0).reason, 0);
    assert_int_equal(save(c, 1).reason, 0);
    qr_staging_config_t config = m->given->ram->config;
    moves_halt(m, false);
    qr_staging_destroy(&m->given->ram);
    assert_int_equal(qr_staging_new(&config, &m->given->ram), 0);
    qr_activity_begin(&m->activity);
    moves_boot(m, 2);
    uint64_t slots = config.slots * m->given->ram->slot_bytes;
    moves_rest(m);
    assert_int_equal(resident(m->given->ram, slots), 0);
    qr_activity_end(&m->activity, 1);
    moves_rest(m);
    assert_int_equal(resident(m->given->ram, slots), slots / 4096);
    chain_destroy(&c);
    moves_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation_at_every_page_and_chunk_size),
        cmocka_unit_test(test_conversation_with_a_window),
        cmocka_unit_test(test_a_node_needs_all_its_groups),
        cmocka_unit_test(test_file_is_in_payload_order),
        cmocka_unit_test(test_an_upload_touches_only_its_rows),
        cmocka_unit_test(test_damage_is_never_a_success),
        cmocka_unit_test(test_a_forged_digest_is_seen_by_the_whole_file),
        cmocka_unit_test(test_a_file_that_changes_under_its_lease_is_seen_whole),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_malformed_questions_are_refused),
        cmocka_unit_test(test_a_fence_ends_moves_before_it_is_answered),
        cmocka_unit_test(test_a_fence_ends_a_download),
        cmocka_unit_test(test_stop_answers_what_is_open),
        cmocka_unit_test(test_duty_while_lanes_decode),
        cmocka_unit_test(test_the_digest_is_on_the_account),
        cmocka_unit_test(test_a_digest_of_an_ended_upload_is_left),
        cmocka_unit_test(test_slices_and_pauses_by_a_clock),
        cmocka_unit_test(test_one_account_for_all_who_move),
        cmocka_unit_test(test_writes_are_on_the_account),
        cmocka_unit_test(test_concurrent_moves_mix_nothing_up),
        cmocka_unit_test(test_more_than_the_windows_is_busy),
        cmocka_unit_test(test_room_is_made_by_value),
        cmocka_unit_test(test_what_another_writes_does_not_leave),
        cmocka_unit_test(test_only_what_was_published_is_found),
        cmocka_unit_test(test_what_a_writer_left_does_not_leave),
        cmocka_unit_test(test_nothing_leaves_before_every_writer_has_spoken),
        cmocka_unit_test(test_a_loss_of_what_is_published_waits),
        cmocka_unit_test(test_held_chunks_do_not_leave),
        cmocka_unit_test(test_holds_fit_the_bound),
        cmocka_unit_test(test_holds_are_asked_at_the_start),
        cmocka_unit_test(test_names_that_were_not_dropped_are_named_again),
        cmocka_unit_test(test_old_fame_fades),
        cmocka_unit_test(test_a_file_that_never_fits),
        cmocka_unit_test(test_files_are_counted),
        cmocka_unit_test(test_RS_05_a_leased_file_outlives_its_drop),
        cmocka_unit_test(test_leases_of_an_ended_epoch_are_released),
        cmocka_unit_test(test_trust_is_of_the_file_that_was_seen),
        cmocka_unit_test(test_files_are_found_again_after_a_kill),
        cmocka_unit_test(test_CK_03_the_bound_holds_after_a_kill),
        cmocka_unit_test(test_losses_are_named_until_they_are_dropped),
        cmocka_unit_test(test_a_loss_is_withdrawn_by_one),
        cmocka_unit_test(test_the_catalog_is_held_against_the_files_at_the_start),
        cmocka_unit_test(test_many_losses_at_the_start),
        cmocka_unit_test(test_the_last_of_many_losses_is_written_again),
        cmocka_unit_test(test_at_the_bound_what_is_here_is_no_write),
        cmocka_unit_test(test_a_write_that_fails_leaves_nothing),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_a_file_that_cannot_be_unlinked),
        cmocka_unit_test(test_an_error_at_the_start_deletes_nothing),
        cmocka_unit_test(test_an_error_while_reading),
        cmocka_unit_test(test_leases_are_answered_while_a_file_is_synced),
        cmocka_unit_test(test_a_write_under_way_at_the_end),
        cmocka_unit_test(test_ram_needs_no_file),
        cmocka_unit_test(test_ram_is_checked_when_it_is_read),
        cmocka_unit_test(test_ram_is_filled_from_files),
        cmocka_unit_test(test_ram_leaves_by_value),
        cmocka_unit_test(test_ram_takes_another_chain),
        cmocka_unit_test(test_ram_of_what_is_dropped),
        cmocka_unit_test(test_ram_memory_is_there_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
