/* link: qr_sim qr_actor_page_manager qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_actor_residents qr_actor_worker qr_actor_plan qr_actor_calibration qr_actor_heartbeat qr_actor_restore_streamer qr_actor_checkpoint_writer qr_actor_capture_value qr_messages qr_actor_decisions */
/* Conversations as text, compared byte for byte with tests/conversations/NAME.txt; and the harness that holds them. After a wanted change
 *
 *   QUIRE_GOLDEN=write build/test_conversations_test && git diff tests/conversations
 *
 * writes the texts anew; read the difference before it is committed. */
#include "actors/checkpoint_writer.h"
#include "actors/heartbeat.h"
#include "actors/page_manager.h"
#include "actors/restore_streamer.h"
#include "actors/worker.h"
#include "base/error.h"
#include "messages/schema.h"
#include "transport/sim/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define HTTP qr_address(1, 0, QR_ROLE_http, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define UPLINK qr_address(1, 0, QR_ROLE_uplink, 0)
#define ROUTER qr_address(1, 0, QR_ROLE_router, 0)
#define HEARTBEAT qr_address(1, 0, QR_ROLE_heartbeat, 0)
#define OTHER_HEARTBEAT qr_address(2, 0, QR_ROLE_heartbeat, 0)
#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define OTHER_WORKER qr_address(2, 1, QR_ROLE_worker, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define PAGE_MANAGER qr_address(1, 1, QR_ROLE_page_manager, 0)
#define RESTORE_STREAMER qr_address(1, 1, QR_ROLE_restore_streamer, 0)
#define CHECKPOINT_WRITER qr_address(1, 1, QR_ROLE_checkpoint_writer, 0)
#define TRANSFER qr_address(1, 1, QR_ROLE_transfer, 0)
#define STORAGE qr_address(1, 0, QR_ROLE_storage, 0)
#define CATALOG_WRITER qr_address(2, 0, QR_ROLE_catalog_writer, 0)

enum { ONE = 0x3f800000 }; /* 1.0f */

/* ---- page manager ---------------------------------------------------------------------------------------------------------------- */

static uint64_t reserve(qr_harness_t *h, uint64_t id, qr_u32s_t tokens, uint32_t rows_max, uint32_t wait_rows)
{
    QR_HARNESS_SAY(h, SCHEDULER, pages_reserve, .request_id = id, .attempt = 1, .tokens = tokens, .rows_max = rows_max, .first_rows = 1,
                   .wait_rows = wait_rows);
    const qr_pages_granted_t *granted = QR_HARNESS_HEARD(h, pages_granted);
    return granted ? granted->route : 0;
}

static void commit(qr_harness_t *h, uint64_t route, uint32_t rows, qr_u32s_t tokens)
{
    QR_HARNESS_SAY(h, SCHEDULER, rows_committed, .routes = QR_U64S(route), .rows = QR_U32S(rows),
                   .token_counts = QR_U32S((uint32_t)tokens.count), .tokens = tokens);
}

static void page_manager_talks(qr_harness_t *h)
{
    const qr_u32s_t none = {NULL, 0};
    QR_HARNESS_SAY(h, MESH, start, .epoch = 1, .seed = 7);
    qr_harness_remark(h, "eight prompt tokens and four more: three pages");
    uint64_t first = reserve(h, 1, (qr_u32s_t)QR_U32S(11, 12, 13, 14, 15, 16, 17, 18), 12, 0);
    qr_harness_remark(h, "somebody else begins the same way and would rather wait than compute 8 rows");
    (void)reserve(h, 2, (qr_u32s_t)QR_U32S(11, 12, 13, 14, 15, 16, 17, 18, 19), 9, 4);
    qr_harness_remark(h, "the prompt's rows stand, then one that was drawn (token 91)");
    commit(h, first, 8, none);
    commit(h, first, 9, (qr_u32s_t)QR_U32S(91));
    qr_harness_remark(h, "a fork after six tokens: the first page is shared, two rows of the second are copied");
    uint64_t second = reserve(h, 3, (qr_u32s_t)QR_U32S(11, 12, 13, 14, 15, 16, 27, 28), 8, 0);
    commit(h, second, 8, none);
    qr_harness_remark(h, "more than the pool ever holds; more than is free now");
    (void)reserve(h, 4, (qr_u32s_t)QR_U32S(1, 2, 3), 36, 0);
    (void)reserve(h, 5, (qr_u32s_t)QR_U32S(1, 2, 3), 32, 0);
    qr_harness_remark(h, "the cache holds nothing that nobody uses yet");
    QR_HARNESS_SAY(h, HTTP, cache_drop, .version = 1);
    qr_harness_remark(h, "one ends and leaves its rows, one ends and leaves nothing; a handle works once");
    QR_HARNESS_SAY(h, SCHEDULER, route_release, .route = first, .keep = 1);
    QR_HARNESS_SAY(h, SCHEDULER, route_release, .route = second, .keep = 0);
    QR_HARNESS_SAY(h, SCHEDULER, route_release, .route = second, .keep = 0);
    qr_harness_state(h);
    QR_HARNESS_SAY(h, HTTP, cache_drop, .version = 1);
    QR_HARNESS_SAY(h, MESH, drain, .budget_us = 1000);
    QR_HARNESS_SAY(h, MESH, stop, .budget_us = 1000);
}

/* ---- worker ------------------------------------------------------------------------------------------------------------------------ */

static void offer(qr_harness_t *h, uint64_t id, uint32_t attempt)
{
    QR_HARNESS_SAY(h, ROUTER, offer, .request_id = id, .attempt = attempt, .generated_from = 3, .tokens = QR_U32S(1, 2, 3),
                   .max_tokens = 20, .top_p_bits = ONE, .seed = 9);
}

static void step(qr_harness_t *h, uint64_t id, uint32_t token)
{
    QR_HARNESS_SAY(h, SCHEDULER, step_tokens, .request_ids = QR_U64S(id), .attempts = QR_U32S(1), .tokens = QR_U32S(token),
                   .logprob_bits = QR_U32S(0), .step_us = 1000, .decode_rows = 1);
}

static void take(qr_harness_t *h, uint64_t id, uint32_t index)
{
    QR_HARNESS_SAY(h, ROUTER, tokens_taken, .request_ids = QR_U64S(id), .attempts = QR_U32S(1), .indexes = QR_U32S(index));
}

static void worker_talks(qr_harness_t *h)
{
    QR_HARNESS_SAY(h, MESH, start, .epoch = 3, .seed = 1, .partners = QR_U64S(HEARTBEAT, ROUTER));
    qr_harness_remark(h, "an offer is answered at once and handed on; said again, it is answered the same and starts nothing");
    offer(h, 7, 1);
    offer(h, 7, 1);
    qr_harness_remark(h, "one `tokens` is open at a time: what is drawn meanwhile goes with the next");
    step(h, 7, 50);
    step(h, 7, 51);
    step(h, 7, 52);
    take(h, 7, 1);
    take(h, 7, 3);
    qr_harness_remark(h, "a second request; the router no longer wants the first");
    offer(h, 8, 1);
    QR_HARNESS_SAY(h, ROUTER, offer_cancel, .request_id = 7, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    QR_HARNESS_SAY(h, SCHEDULER, ended, .request_id = 7, .attempt = 1, .finish = QR_FINISH_CANCELLED, .computed_tokens = 3);
    take(h, 7, 3);
    qr_harness_remark(h, "the offer of a request that has ended comes late once more");
    offer(h, 7, 1);
    qr_harness_remark(h, "what was never offered, and a prompt that can never fit");
    QR_HARNESS_SAY(h, ROUTER, offer_cancel, .request_id = 99, .attempt = 1, .finish = QR_FINISH_CANCELLED);
    QR_HARNESS_SAY(h, ROUTER, offer, .request_id = 9, .attempt = 1, .generated_from = 3, .tokens = QR_U32S(1, 2, 3), .max_tokens = 50,
                   .top_p_bits = ONE);
    qr_harness_remark(h, "time passes: the heartbeat hears how it is");
    (void)qr_harness_pass(h, 250000);
    qr_harness_state(h);
}

/* ---- heartbeat ---------------------------------------------------------------------------------------------------------------------- */

static void heartbeat_talks(qr_harness_t *h)
{
    QR_HARNESS_SAY(h, MESH, start, .epoch = 3, .partners = QR_U64S(OTHER_HEARTBEAT, ROUTER, WORKER, OTHER_WORKER));
    qr_harness_remark(h, "a worker here says how it is: for the router here and the other node's heartbeat");
    QR_HARNESS_SAY(h, WORKER, observation, .worker = WORKER, .worker_epoch = 5, .sequence = 1, .age_us = 20, .state = QR_STATE_READY,
                   .lanes_max = 4, .pages_free = 8, .pages_pool = 8);
    qr_harness_remark(h, "the other node's heartbeat tells of its worker: for the router here only");
    QR_HARNESS_SAY(h, UPLINK, link_up, .node = 2, .node_epoch = 9);
    QR_HARNESS_SAY(h, OTHER_HEARTBEAT, beat, .node = 2, .node_epoch = 9, .sequence = 1, .state = QR_STATE_READY);
    QR_HARNESS_SAY(h, OTHER_HEARTBEAT, observation, .worker = OTHER_WORKER, .worker_epoch = 5, .sequence = 4, .age_us = 300,
                   .state = QR_STATE_READY, .lanes_max = 4, .pages_free = 8, .pages_pool = 8);
    qr_harness_remark(
        h, "then it is silent for longer than peer_down_ms and is called down, once; what is said again of the worker here grows older");
    for (int i = 0; i < 6; i++) (void)qr_harness_pass(h, 100000);
    qr_harness_remark(h, "an old beat brings nobody back, a new one does");
    QR_HARNESS_SAY(h, OTHER_HEARTBEAT, beat, .node = 2, .node_epoch = 9, .sequence = 1, .state = QR_STATE_READY);
    QR_HARNESS_SAY(h, OTHER_HEARTBEAT, beat, .node = 2, .node_epoch = 9, .sequence = 2, .state = QR_STATE_READY);
    qr_harness_state(h);
}

/* ---- restore streamer ---------------------------------------------------------------------------------------------------------------- */

static const uint32_t durable_tokens[] = {11, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23, 24, 25, 26, 27, 28};

static void restore(qr_harness_t *h, uint64_t id, uint32_t start, uint32_t end, qr_u64s_t pages)
{
    QR_HARNESS_SAY(h, SCHEDULER, restore, .restore_id = id, .request_id = id, .root = {{7}}, .tokens = {durable_tokens, end},
                   .start_rows = start, .end_rows = end, .pages = pages);
}
static uint64_t lease_key(const qr_harness_t *h, uint32_t nth)
{
    const qr_message_t *m = qr_harness_heard(h, QR_MESSAGE_chunk_lease, nth);
    return m ? m->body.chunk_lease.key : 0;
}

static void restore_streamer_talks(qr_harness_t *h)
{
    QR_HARNESS_SAY(h, MESH, start, .epoch = 3, .seed = 1, .partners = QR_U64S(STORAGE));
    qr_harness_remark(h, "sixteen rows in two durable chunks: both files are leased at once");
    restore(h, 1, 0, 16, (qr_u64s_t)QR_U64S(101, 102, 103, 104));
    uint64_t first = lease_key(h, 0), second = lease_key(h, 1);
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = first, .lease = 31, .content = {{8}}, .bytes = 5120, .trusted = 1);
    qr_harness_remark(h, "the second file was never seen whole, so its SHA-256 is looked at as well");
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = second, .lease = 32, .content = {{9}}, .bytes = 5120);
    QR_HARNESS_SAY(h, TRANSFER, page_uploaded, .key = first, .bytes = 512, .queue_us = 4, .move_us = 90);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 31);
    QR_HARNESS_SAY(h, TRANSFER, page_uploaded, .key = second, .bytes = 512, .queue_us = 8, .move_us = 95);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 32);
    qr_harness_remark(h, "a damaged file ends a restore at its chunk and is set aside");
    restore(h, 2, 0, 16, (qr_u64s_t)QR_U64S(101, 102, 103, 104));
    first = lease_key(h, 0), second = lease_key(h, 1);
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = first, .lease = 33, .content = {{8}}, .bytes = 5120, .trusted = 1);
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = second, .lease = 34, .content = {{9}}, .bytes = 5120, .trusted = 1);
    QR_HARNESS_SAY(h, TRANSFER, page_uploaded, .key = second, .reason = QR_E_DIGEST, .damage = 1);
    QR_HARNESS_SAY(h, TRANSFER, page_uploaded, .key = first, .bytes = 512, .move_us = 90);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 34);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 33);
    qr_harness_remark(h, "a cancel is answered when nothing writes into the pages any more, and not because time has passed");
    restore(h, 3, 4, 8, (qr_u64s_t)QR_U64S(202));
    first = lease_key(h, 0);
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = first, .lease = 35, .content = {{8}}, .bytes = 5120, .trusted = 1);
    QR_HARNESS_SAY(h, SCHEDULER, restore_cancel, .restore_id = 3);
    (void)qr_harness_pass(h, 60000000);
    qr_harness_state(h);
    QR_HARNESS_SAY(h, TRANSFER, page_uploaded, .key = first, .reason = QR_E_CANCELLED);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 35);
    qr_harness_remark(h, "storage that does not answer costs a restore its deadline; the lease that comes after it is given back");
    restore(h, 4, 0, 8, (qr_u64s_t)QR_U64S(101, 102));
    first = lease_key(h, 0);
    (void)qr_harness_pass(h, 10000000);
    QR_HARNESS_SAY(h, STORAGE, chunk_leased, .key = first, .lease = 36, .content = {{8}}, .bytes = 5120, .trusted = 1);
    QR_HARNESS_SAY(h, STORAGE, chunk_released, .lease = 36);
    qr_harness_remark(h, "rows that end inside a chunk are no durable rows");
    restore(h, 5, 0, 10, (qr_u64s_t)QR_U64S(101, 102, 103));
    QR_HARNESS_SAY(h, MESH, drain, .budget_us = 1000);
    restore(h, 6, 0, 8, (qr_u64s_t)QR_U64S(101, 102));
    QR_HARNESS_SAY(h, MESH, stop, .budget_us = 1000);
}

/* ---- checkpoint writer ------------------------------------------------------------------------------------------------------------- */

static void ask_capture(qr_harness_t *h, uint64_t id, uint32_t rows)
{
    QR_HARNESS_SAY(h, PAGE_MANAGER, capture, .capture_id = id, .scope = {{7}}, .tokens = {durable_tokens, rows});
}
/* From the pin that was asked for to the write that is asked for; returns its key. */
static uint64_t move_out(qr_harness_t *h, uint64_t lease, uint32_t first_block)
{
    QR_HARNESS_SAY(h, PAGE_MANAGER, pages_pinned, .holder_key = QR_HARNESS_HEARD(h, pages_pin)->holder_key, .lease = lease,
                   .group_counts = QR_U32S(2), .first_blocks = QR_U32S(first_block),
                   .pages = QR_U64S(101 + first_block, 102 + first_block));
    QR_HARNESS_SAY(h, TRANSFER, page_downloaded, .key = QR_HARNESS_HEARD(h, page_download)->key, .bytes = 4096, .move_us = 8);
    uint64_t key = QR_HARNESS_HEARD(h, chunk_write)->key;
    QR_HARNESS_SAY(h, PAGE_MANAGER, pages_unpinned, .lease = lease);
    return key;
}

static void checkpoint_writer_talks(qr_harness_t *h)
{
    static const uint8_t victim[32] = {0xee};
    QR_HARNESS_SAY(h, MESH, start, .epoch = 3, .seed = 1, .partners = QR_U64S(STORAGE, CATALOG_WRITER));
    qr_harness_remark(h, "there is no link to the catalog writer yet, so nothing can be published");
    ask_capture(h, 1, 8);
    QR_HARNESS_SAY(h, UPLINK, link_up, .node = 2, .node_epoch = 4);
    qr_harness_remark(h, "of sixteen rows the first chunk is durable already; the second is pinned, moved into a slot, written, published");
    ask_capture(h, 2, 16);
    QR_HARNESS_SAY(h, STORAGE, chunk_found, .key = QR_HARNESS_HEARD(h, chunk_find)->key, .depth = 1);
    uint64_t key = move_out(h, 51, 2);
    qr_harness_remark(h,
                      "the store is full: what leaves is withdrawn from the catalog, then dropped, and the same slot is written once more");
    QR_HARNESS_SAY(h, STORAGE, chunk_written, .key = key, .reason = QR_E_SHORTFALL, .shortfall_bytes = 5120);
    QR_HARNESS_SAY(h, STORAGE, chunk_victims_named, .key = QR_HARNESS_HEARD(h, chunk_victims)->key, .chains = {victim, 32},
                   .groups = QR_U32S(0), .sizes = QR_U64S(6000));
    QR_HARNESS_SAY(h, CATALOG_WRITER, publish_committed, .sequence = 1, .tx = 9);
    QR_HARNESS_SAY(h, STORAGE, chunk_dropped, .key = QR_HARNESS_HEARD(h, chunk_drop)->key, .bytes = 6000);
    key = QR_HARNESS_HEARD(h, chunk_write)->key;
    QR_HARNESS_SAY(h, STORAGE, chunk_written, .key = key, .content = {{5}}, .bytes = 5120, .write_us = 40);
    qr_harness_remark(h,
                      "the link ends before the catalog writer answers: the capture ends, the publish is asked again under its sequence");
    QR_HARNESS_SAY(h, UPLINK, link_down, .node = 2, .reason = QR_E_PEER_DOWN);
    qr_harness_state(h);
    QR_HARNESS_SAY(h, UPLINK, link_up, .node = 2, .node_epoch = 4);
    QR_HARNESS_SAY(h, CATALOG_WRITER, publish_committed, .sequence = 2, .tx = 10);
    qr_harness_remark(h, "a part that storage could not write is published by nobody");
    ask_capture(h, 3, 8);
    QR_HARNESS_SAY(h, STORAGE, chunk_found, .key = QR_HARNESS_HEARD(h, chunk_find)->key, .depth = 0);
    QR_HARNESS_SAY(h, STORAGE, chunk_written, .key = move_out(h, 52, 0), .reason = QR_E_IO);
    qr_harness_remark(h, "a node that the catalog writer refuses for good is not kept");
    ask_capture(h, 4, 8);
    QR_HARNESS_SAY(h, STORAGE, chunk_found, .key = QR_HARNESS_HEARD(h, chunk_find)->key, .depth = 0);
    QR_HARNESS_SAY(h, STORAGE, chunk_written, .key = move_out(h, 53, 0), .content = {{6}}, .bytes = 5120, .write_us = 40);
    QR_HARNESS_SAY(h, CATALOG_WRITER, publish_refused, .sequence = 3, .reason = QR_E_LIMIT);
    QR_HARNESS_SAY(h, STORAGE, chunk_dropped, .key = QR_HARNESS_HEARD(h, chunk_drop)->key, .bytes = 5120);
    qr_harness_remark(h, "rows that end inside a chunk are not kept; what is durable needs nothing");
    ask_capture(h, 5, 10);
    ask_capture(h, 6, 16);
    QR_HARNESS_SAY(h, STORAGE, chunk_found, .key = QR_HARNESS_HEARD(h, chunk_find)->key, .depth = 2);
    qr_harness_remark(h, "a stop waits for the slot that transfer writes into and for its pin");
    ask_capture(h, 7, 8);
    QR_HARNESS_SAY(h, STORAGE, chunk_found, .key = QR_HARNESS_HEARD(h, chunk_find)->key, .depth = 0);
    QR_HARNESS_SAY(h, PAGE_MANAGER, pages_pinned, .holder_key = QR_HARNESS_HEARD(h, pages_pin)->holder_key, .lease = 54,
                   .group_counts = QR_U32S(2), .first_blocks = QR_U32S(0), .pages = QR_U64S(101, 102));
    key = QR_HARNESS_HEARD(h, page_download)->key;
    QR_HARNESS_SAY(h, MESH, stop, .budget_us = 1000000);
    QR_HARNESS_SAY(h, TRANSFER, page_downloaded, .key = key, .bytes = 4096, .move_us = 8);
    QR_HARNESS_SAY(h, PAGE_MANAGER, pages_unpinned, .lease = 54);
}

/* ---- golden texts -------------------------------------------------------------------------------------------------------------------- */

typedef struct conversation {
    const char *name;
    const qr_actor_class_t *actor;
    uint64_t address;
    void (*talk)(qr_harness_t *h);
} conversation_t;

static char *talk(const conversation_t *c, size_t *ret_count)
{
    static qr_given_t given;
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_count);
    qr_harness_given(&given);
    given.params.peer_down_ms = 300;
    given.vocabulary.count = 100; /* ids below are tokens; the bytes are for io actors */
    qr_harness_t *h = qr_harness_new(c->actor, &given, c->address, out);
    assert_non_null(h);
    c->talk(h);
    assert_int_equal(qr_harness_fault(h), QR_VERDICT_OK);
    qr_harness_destroy(&h);
    assert_null(h);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* Names the first line that differs. */
static void compare(const char *path, const char *wanted, const char *got)
{
    int line = 1;
    const char *begin = got;
    for (; *wanted && *wanted == *got; wanted++, got++) {
        if (*wanted != '\n') continue;
        line++;
        begin = got + 1;
    }
    if (*wanted != *got) fail_msg("%s:%d is now: %.*s\n(QUIRE_GOLDEN=write writes it anew)", path, line, (int)strcspn(begin, "\n"), begin);
}

static void check(const conversation_t *c)
{
    static char wanted[1 << 17];
    char path[128];
    size_t count;
    char *got = talk(c, &count);
    (void)snprintf(path, sizeof path, "tests/conversations/%s.txt", c->name);
    const char *golden = getenv("QUIRE_GOLDEN");
    bool write = golden && strcmp(golden, "write") == 0;
    FILE *file = fopen(path, write ? "wb" : "rb");
    if (!file) fail_msg("%s is not here; QUIRE_GOLDEN=write writes it", path);
    if (write) {
        assert_int_equal(fwrite(got, 1, count, file), count);
    } else {
        size_t read = fread(wanted, 1, sizeof wanted - 1, file);
        assert_true(read < sizeof wanted - 1);
        wanted[read] = 0;
        compare(path, wanted, got);
    }
    assert_int_equal(fclose(file), 0);
    free(got);
}

static void test_page_manager(void **state)
{
    (void)state;
    check(&(conversation_t){"page_manager", &qr_page_manager_class, PAGE_MANAGER, page_manager_talks});
}
static void test_worker(void **state)
{
    (void)state;
    check(&(conversation_t){"worker", &qr_worker_class, WORKER, worker_talks});
}
static void test_heartbeat(void **state)
{
    (void)state;
    check(&(conversation_t){"heartbeat", &qr_heartbeat_class, HEARTBEAT, heartbeat_talks});
}

static void test_restore_streamer(void **state)
{
    (void)state;
    check(&(conversation_t){"restore_streamer", &qr_restore_streamer_class, RESTORE_STREAMER, restore_streamer_talks});
}

static void test_checkpoint_writer(void **state)
{
    (void)state;
    check(&(conversation_t){"checkpoint_writer", &qr_checkpoint_writer_class, CHECKPOINT_WRITER, checkpoint_writer_talks});
}

/* ---- the harness ------------------------------------------------------------------------------------------------------------------------
 */

/* Answers a probe twice, asks the router for what it may not, arms alarms. */
static uint64_t rude_bytes(const qr_given_t *given) { return given ? 64 : 0; }
static void rude_init(void *self, const qr_given_t *given, uint64_t address) { (void)self, (void)given, (void)address; }
static void rude_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    uint64_t *alarms = self;
    (void)given;
    if (m->type == QR_MESSAGE_probe)
        for (uint64_t i = 0; i < m->body.probe.probe_id; i++)
            qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
    if (m->type == QR_MESSAGE_metrics_read) qr_send(outbox, ROUTER, cache_drop, (&(qr_cache_drop_t){1}));
    if (m->type == QR_MESSAGE_offer) qr_outbox_alarm(outbox, m->now_us + m->body.offer.budget_us);
    if (m->type == QR_MESSAGE_alarm && ++*alarms < 3) qr_outbox_alarm(outbox, m->now_us + 5);
}
static const qr_actor_class_t rude_class = {
    .name = "worker", .role = QR_ROLE_worker, .max_out = 8, .bytes = rude_bytes, .init = rude_init, .handle = rude_handle};

static qr_harness_t *rude(void)
{
    static qr_given_t given;
    qr_harness_given(&given);
    qr_harness_t *h = qr_harness_new(&rude_class, &given, WORKER, NULL);
    assert_non_null(h);
    return h;
}

static void test_what_an_actor_may_not_say_is_a_fault(void **state)
{
    (void)state;
    qr_harness_t *h = rude();
    QR_HARNESS_SAY(h, ROUTER, probe, .probe_id = 1);
    assert_int_equal(QR_HARNESS_HEARD(h, probe_done)->probe_id, 1);
    assert_int_equal(qr_harness_fault(h), QR_VERDICT_OK);
    QR_HARNESS_SAY(h, ROUTER, probe, .probe_id = 2); /* answered twice */
    assert_int_equal(qr_harness_count(h), 1);
    assert_int_equal(qr_harness_fault(h), QR_VERDICT_QUESTION);
    qr_harness_destroy(&h);
    h = rude();
    QR_HARNESS_SAY(h, HTTP, metrics_read, .version = 1);
    assert_int_equal(qr_harness_count(h), 0);
    assert_int_equal(qr_harness_fault(h), QR_VERDICT_ROLE);
    qr_harness_destroy(&h);
    h = rude(); /* towards another node a late answer is no fault, it is not sent */
    QR_HARNESS_SAY(h, qr_address(2, 0, QR_ROLE_router, 0), probe, .probe_id = 2);
    assert_int_equal(qr_harness_count(h), 1);
    assert_int_equal(qr_harness_fault(h), QR_VERDICT_OK);
    qr_harness_destroy(&h);
}

static void test_what_it_may_not_be_told_does_not_reach_it(void **state)
{
    (void)state;
    qr_harness_t *h = rude();
    assert_int_equal(QR_HARNESS_SAY(h, SCHEDULER, probe, .probe_id = 1), QR_VERDICT_ROLE);
    assert_int_equal(QR_HARNESS_SAY(h, ROUTER, tokens_taken, .indexes = {NULL, 0}), QR_VERDICT_QUESTION);
    for (uint32_t i = 0; i < 16; i++) assert_int_equal(QR_HARNESS_SAY(h, ROUTER, probe, .probe_id = 0), QR_VERDICT_OK);
    assert_int_equal(QR_HARNESS_SAY(h, ROUTER, probe, .probe_id = 0), QR_VERDICT_CREDIT); /* none was answered */
    assert_int_equal(qr_harness_count(h), 0);
    qr_message_t m = {.type = QR_MESSAGE_metrics_read, .from = HTTP, .epoch = 1, .sequence = 1};
    assert_int_equal(qr_harness_deliver(h, &m), QR_VERDICT_OK);
    assert_int_equal(qr_harness_deliver(h, &m), QR_VERDICT_STALE);
    m.sequence = 3;
    assert_int_equal(qr_harness_deliver(h, &m), QR_VERDICT_GAP);
    qr_harness_destroy(&h);
}

static void test_alarms_fire_at_their_time(void **state)
{
    (void)state;
    qr_harness_t *h = rude();
    assert_int_equal(qr_harness_alarm_us(h), QR_NEVER_US);
    QR_HARNESS_SAY(h, ROUTER, offer, .budget_us = 10);
    assert_int_equal(qr_harness_alarm_us(h), qr_harness_now_us(h) + 10);
    uint64_t begun_us = qr_harness_now_us(h);
    assert_int_equal(qr_harness_pass(h, 9), 0);
    assert_int_equal(qr_harness_pass(h, 6), 2); /* at 10 and 15 */
    assert_int_equal(qr_harness_now_us(h), begun_us + 15);
    assert_int_equal(qr_harness_pass(h, 4), 0);
    assert_int_equal(qr_harness_pass(h, 1000), 1);
    assert_int_equal(qr_harness_alarm_us(h), QR_NEVER_US);
    qr_harness_destroy(&h);
}

/* A column that was read back may be said again: it is encoded before what was kept is forgotten. */
static void test_columns_read_back_may_be_said(void **state)
{
    (void)state;
    static qr_given_t given;
    qr_harness_given(&given);
    qr_harness_t *h = qr_harness_new(&qr_worker_class, &given, WORKER, NULL);
    QR_HARNESS_SAY(h, MESH, start, .epoch = 3, .partners = QR_U64S(HEARTBEAT, ROUTER));
    given.vocabulary.count = 100;
    offer(h, 7, 1);
    assert_int_equal(QR_HARNESS_HEARD(h, submit)->tokens.count, 3);
    step(h, 7, 50);
    const qr_tokens_t *tokens = QR_HARNESS_HEARD(h, tokens);
    assert_int_equal(tokens->tokens.data[0], 50);
    assert_int_equal(
        QR_HARNESS_SAY(h, ROUTER, tokens_taken, .request_ids = tokens->request_ids, .attempts = tokens->attempts, .indexes = QR_U32S(1)),
        QR_VERDICT_OK);
    QR_HARNESS_SAY(h, HTTP, metrics_read, .version = 1);
    assert_int_equal(QR_HARNESS_HEARD(h, metrics)->values.data[0], 1); /* still open */
    qr_harness_destroy(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_manager),
        cmocka_unit_test(test_worker),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_restore_streamer),
        cmocka_unit_test(test_checkpoint_writer),
        cmocka_unit_test(test_what_an_actor_may_not_say_is_a_fault),
        cmocka_unit_test(test_what_it_may_not_be_told_does_not_reach_it),
        cmocka_unit_test(test_alarms_fire_at_their_time),
        cmocka_unit_test(test_columns_read_back_may_be_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
