/* link: qr_actor_restore_streamer qr_io_storage qr_io_storage_parts qr_io_storage_ram qr_io_storage_holds qr_io_storage_errand qr_io_transfer qr_io_transfer_spill qr_io_transfer_digest qr_actor_roles qr_store_faults qr_model qr_messages */
/* The fault table (S2 of Quire resumes) at message level: the real restore_streamer, storage and transfer over real files and page pools.
 * A chain is captured once; then, for each of 13 kinds of fault and each of 20 draws (--full: 1,000), the fault is put in at a moment that
 * is drawn, the chain is restored into pages of NaN, and judged:
 *   - what `restored` reports is equal, bit for bit, to what was captured, and ends at a chunk's end, no chunk before the fault is lost;
 *   - nothing else of any pool was touched, then or later: what is not restored is computed when `restored` comes and must stay;
 *   - a page that has a new owner holds what the new owner wrote;
 *   - a restore that was cut short is counted by one counter, the one of its kind; no lease is left;
 *   - after the capture of what is missing the chain is restored whole again.
 * Arguments: --full, --seed N, --draws N, the name of a kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "tests/conversations/moves.h"

#include "actors/restore_streamer.h"
#include "store/fail.h"

/* A chunk begins in the middle of a page; a file of group 0 is read in two pieces. */
enum { PAGE = 16, CHUNK = 136, CHUNKS = 3, ROWS = CHUNK * CHUNKS, BLOCKS = (ROWS + PAGE - 1) / PAGE, PAGES = 40, GROUPS = 2, MEMBERS = 4 };
enum { PIECES = 3 /* reads of a chunk's files */, STEPS = 70 /* messages and slices of a restore, about */, ROUNDS = 4 };
enum { FRESH = 0x7e /* 0x7e7e is a NaN */, FOREIGN = 0x55 };

static const moves_config_t config = {.page_tokens = PAGE,
                                      .chunk_tokens = CHUNK,
                                      .pages = PAGES,
                                      .layers = 3,
                                      .window = 200,
                                      .dim = 64,
                                      .in_memory = true,
                                      .streamer = &qr_restore_streamer_class};

/* Why restores ended early, and what else counts. */
#define COUNTER_MAP(X)                                                                                                                     \
    X(MISSING, restores_missing_total)                                                                                                     \
    X(DAMAGED, restores_damaged_total)                                                                                                     \
    X(IO, restores_io_total)                                                                                                               \
    X(LATE, restores_late_total)                                                                                                           \
    X(CANCELLED, restores_cancelled_total)                                                                                                 \
    X(OTHER, restores_other_total)                                                                                                         \
    X(REFUSED, restores_refused_total)                                                                                                     \
    X(SET_ASIDE, store_damaged_total)                                                                                                      \
    X(REMOVED, store_missing_total)                                                                                                        \
    X(UNWRITTEN, store_write_failures_total)                                                                                               \
    X(LEASES, store_leases)
#define COUNTER_ENUM(name, metric) name,
enum { COUNTER_MAP(COUNTER_ENUM) COUNTERS, CLASSES = REFUSED + 1 };
#define COUNTER_NAME(name, metric) #metric,
static const char *const counter_names[] = {COUNTER_MAP(COUNTER_NAME)};
enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
};
#define COUNTER_ID(name, metric) ID_##metric,
static const uint32_t counter_ids[] = {COUNTER_MAP(COUNTER_ID)};

/* When a fault is put in: before storage and transfer begin anew, before the restore is asked for, between two messages or slices of it,
 * or while a file is read. */
typedef enum moment { AT_START, AT_REST, AT_STEP, AT_PIECE } moment_t;
enum { ALWAYS = 1 << AT_START | 1 << AT_REST | 1 << AT_STEP | 1 << AT_PIECE };

typedef struct world world_t;
typedef struct kind {
    const char *name;
    void (*put)(world_t *w);
    uint32_t moments, allowed; /* bits: moments; counters that may name it */
    bool message;              /* a message fault: put in between two slices, not inside a read */
} kind_t;

struct world {
    moves_t *m;
    const kind_t *kind;
    qr_prng_t prng;
    uint32_t draw_index;
    /* the chain */
    uint32_t tokens[ROWS], row_bytes, members[GROUPS];
    qr_hash_t parents[CHUNKS], chains[CHUNKS], contents[CHUNKS][GROUPS];
    uint8_t *rows[GROUPS][MEMBERS]; /* [ROWS][row_bytes]: what was captured */
    /* the restore under way */
    uint32_t generations[GROUPS][PAGES], place[GROUPS][BLOCKS]; /* place: page of a block */
    bool target[GROUPS][PAGES], foreign[GROUPS][PAGES];
    uint64_t pages[GROUPS * BLOCKS], restore_id;
    uint32_t start, end, first_block, blocks, boundary, reason;
    bool answered;
    /* the fault of this draw */
    moment_t moment;
    uint32_t chunk, group, cut; /* the file; no chunk before `cut` may be lost */
    bool exact, undo;           /* the restore ends at `cut`; somebody has to take the fault out */
    uint32_t least, most;       /* restores that are cut short until it is mended */
    uint32_t reads, read_at;    /* pieces read; put in before this one (0: not) */
    uint32_t drops;             /* answers that somebody waits for */
    bool reached;               /* that piece is being read */
    qr_u64s_t fenced;           /* of the fence under way */
    uint32_t fence_groups[GROUPS * BLOCKS];
    uint64_t fence_pages[GROUPS * BLOCKS];
    uint64_t upload_keys[QR_RESTORE_LEASES]; /* last key of each place of the streamer's table */
    /* the row of the table */
    uint64_t faults, whole, short_, wrong, by[COUNTERS], before[COUNTERS];
};
static world_t *reading; /* whose hook is on */

static uint32_t below(world_t *w, uint32_t bound) { return (uint32_t)qr_prng_below(&w->prng, bound); }
static void check(const world_t *w, bool holds, const char *what)
{
    if (!holds)
        fail_msg("%s, draw %u, moment %d: %s (rows %u to %u, boundary %u, reason %s, chunk %u, group %u, read %u)", w->kind->name,
                 w->draw_index, (int)w->moment, what, w->start, w->end, w->boundary, qr_error_name((int)w->reason), w->chunk, w->group,
                 w->read_at);
}

/* ---- counters ----------------------------------------------------------------------------------------------------------------------- */

static void count(world_t *w, uint64_t ret_counts[COUNTERS])
{
    static const uint8_t roles[] = {QR_ROLE_restore_streamer, QR_ROLE_storage};
    pump_t *p = &w->m->pump;
    for (uint32_t r = 0; r < QR_COUNT(roles); r++) {
        qr_message_t message = {.type = QR_MESSAGE_metrics_read, .from = at_role(QR_ROLE_mesh), .epoch = 1};
        member_t *member = pump_find(p, at_role(roles[r]));
        qr_outbox_reset(&p->outbox, member->actor->max_out);
        p->outbox.alarm_us = member->alarm_us;
        member->actor->handle(member->state, w->m->given, &message, &p->outbox);
        const qr_metrics_t *metrics = &p->messages[0].body.metrics;
        assert_int_equal(p->messages[0].type, QR_MESSAGE_metrics);
        for (uint64_t i = 0; i < metrics->ids.count; i++)
            for (uint32_t c = 0; c < COUNTERS; c++)
                if (metrics->ids.data[i] == counter_ids[c]) ret_counts[c] = metrics->values.data[i];
    }
}

/* ---- pages ----------------------------------------------------------------------------------------------------------------------------
 */

static uint8_t *page_at(world_t *w, uint32_t group, uint32_t member, uint32_t page)
{
    return qr_decoder_member_rows(w->m->given->decoder, group, member) + (size_t)page * PAGE * w->row_bytes;
}
static bool all_are(const uint8_t *bytes, size_t count, uint8_t value)
{
    return count == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Chooses pages for rows [start, end), each in a new generation. */
static void pages_choose(world_t *w, uint32_t start, uint32_t end)
{
    w->start = start, w->end = end, w->first_block = start / PAGE;
    w->blocks = (uint32_t)qr_div_up(end, PAGE) - w->first_block;
    memset(w->target, 0, sizeof w->target);
    memset(w->foreign, 0, sizeof w->foreign);
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < w->blocks; i++) {
            uint32_t page = below(w, PAGES);
            while (w->target[g][page]) page = (page + 1) % PAGES;
            w->target[g][page] = true, w->place[g][i] = page;
            w->pages[g * w->blocks + i] = qr_handle(page, ++w->generations[g][page]);
        }
}

static void pages_fill(world_t *w)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t k = 0; k < w->members[g]; k++)
            for (uint32_t page = 0; page < PAGES; page++)
                memset(page_at(w, g, k, page), w->foreign[g][page] ? FOREIGN : FRESH, (size_t)PAGE * w->row_bytes);
}

/* A page of the load has a new owner. */
static void page_leaves(world_t *w, uint32_t group, uint32_t page)
{
    w->foreign[group][page] = true;
    for (uint32_t k = 0; k < w->members[group]; k++) memset(page_at(w, group, k, page), FOREIGN, (size_t)PAGE * w->row_bytes);
}

/* Sets rows [from, to) to what was captured, or counts those that are other. Pages that left are not looked at. */
static uint32_t rows_go(world_t *w, bool set, uint32_t from, uint32_t to)
{
    uint32_t wrong = 0;
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t row = from; row < to;) {
            uint32_t page = w->place[g][row / PAGE - w->first_block], count = qr_min_u32(to - row, PAGE - row % PAGE);
            size_t bytes = (size_t)count * w->row_bytes;
            for (uint32_t k = 0; k < w->members[g] && !w->foreign[g][page]; k++) {
                uint8_t *there = page_at(w, g, k, page) + (size_t)(row % PAGE) * w->row_bytes;
                const uint8_t *right = w->rows[g][k] + (size_t)row * w->row_bytes;
                if (set)
                    memcpy(there, right, bytes);
                else
                    wrong += memcmp(there, right, bytes) != 0 ? count : 0;
            }
            row += count;
        }
    return wrong;
}

/* Every page that is not of the load, and what lies behind its end, is as it was; pages that left are their new owners'. */
static bool rest_is_untouched(world_t *w)
{
    size_t bytes = (size_t)PAGE * w->row_bytes, tail = (size_t)(w->end % PAGE) * w->row_bytes;
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t k = 0; k < w->members[g]; k++) {
            for (uint32_t page = 0; page < PAGES; page++)
                if ((w->foreign[g][page] || !w->target[g][page]) &&
                    !all_are(page_at(w, g, k, page), bytes, w->foreign[g][page] ? FOREIGN : FRESH))
                    return false;
            uint32_t last = w->place[g][w->blocks - 1];
            if (tail && !w->foreign[g][last] && !all_are(page_at(w, g, k, last) + tail, bytes - tail, FRESH)) return false;
        }
    return true;
}

/* ---- the world ------------------------------------------------------------------------------------------------------------------------
 */

/* `restored` comes: what it reports is judged, the rest is computed, at once. */
static void on_restored(world_t *w, const qr_restored_t *r)
{
    check(w, !w->answered && r->restore_id == w->restore_id, "restored is said once");
    w->answered = true, w->boundary = r->boundary, w->reason = r->reason;
    check(w, r->boundary == w->start || (r->boundary > w->start && r->boundary <= w->end && r->boundary % CHUNK == 0), "a chunk's end");
    check(w, (r->reason != 0) == (r->boundary < w->end), "a reason exactly when it is cut short");
    w->wrong += rows_go(w, false, w->start, r->boundary);
    check(w, w->wrong == 0, "wrong rows");
    check(w, rest_is_untouched(w), "a page of somebody else was written");
    (void)rows_go(w, true, r->boundary, w->end);
}

static void seen(pump_t *pump, const qr_message_t *message)
{
    world_t *w = pump->context;
    if (message->type == QR_MESSAGE_restored) on_restored(w, &message->body.restored);
    if (message->type == QR_MESSAGE_page_upload)
        w->upload_keys[qr_handle_index(message->body.page_upload.key)] = message->body.page_upload.key;
    if (message->type == QR_MESSAGE_fenced) /* their owner may use them from now on */
        for (uint64_t i = 0; i < w->fenced.count; i++) page_leaves(w, w->fence_groups[i], qr_handle_index(w->fence_pages[i]));
}

/* One message, or a piece of work; false: nothing is left to do. */
static bool advance(world_t *w)
{
    moves_t *m = w->m;
    if (m->pump.queued && below(w, 4)) return pump_deliver(&m->pump);
    bool busy = pump_work(&m->pump, m->transfer) != QR_NEVER_US;
    busy = pump_work(&m->pump, m->storage) != QR_NEVER_US || busy;
    return busy || m->pump.queued;
}

/* Before a piece is read: a file fault is put in now; for a message fault this slice ends with the piece. */
static void before_piece(qr_store_point_t point)
{
    world_t *w = reading;
    struct timespec begin, now;
    if (point != QR_STORE_POINT_read_piece || ++w->reads != w->read_at) return;
    w->reached = true;
    if (!w->kind->message) {
        w->kind->put(w);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    do (void)clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 <= QR_TRANSFER_SLICE_US);
}

static void restart(world_t *w, void (*between)(world_t *w))
{
    moves_halt(w->m, true);
    if (between) between(w);
    moves_boot(w->m, 1 + below(w, 1000));
    qr_store_fail_arm(0, 0, 0, false);
    w->m->pump.seen = seen, w->m->pump.context = w;
}

/* ---- capture ------------------------------------------------------------------------------------------------------------------------ */

static void put_swapped(world_t *w);
static uint32_t capture_part(world_t *w, uint32_t chunk, uint32_t group)
{
    qr_message_t answer;
    uint32_t start = chunk * CHUNK, block = start / PAGE, blocks = (uint32_t)qr_div_up(start + CHUNK, PAGE) - block;
    MOVES_ASK(w->m, checkpoint_writer, transfer, page_download, &answer, .key = 1, .slot = group, .group = group, .start = start,
              .rows = CHUNK, .first_block = block, .pages = {w->pages + group * w->blocks + block, blocks});
    check(w, answer.body.page_downloaded.reason == 0, "the rows are there to be captured");
    MOVES_ASK(w->m, checkpoint_writer, storage, chunk_write, &answer, .key = 2, .slot = group, .group = group, .parent = w->parents[chunk],
              .chain = w->chains[chunk], .start = start, .tokens = {w->tokens + start, CHUNK});
    static const qr_hash_t none;
    qr_hash_t *content = &w->contents[chunk][group];
    if (answer.body.chunk_written.reason) return answer.body.chunk_written.reason;
    bool first = memcmp(content, &none, 32) == 0;
    /* After a start a file is believed by its header until it is read: until then it may bear the name of the one it was swapped with. */
    bool believed = w->kind->put == put_swapped && w->moment == AT_START;
    check(w, first || believed || memcmp(content, &answer.body.chunk_written.content, 32) == 0, "equal rows have one name");
    if (first) *content = answer.body.chunk_written.content;
    return 0;
}

/* How much of the chain is found. published: a chunk that has just been published, or zero. */
static uint32_t depth(world_t *w, qr_hash_t published)
{
    qr_message_t answer;
    MOVES_ASK(w->m, checkpoint_writer, storage, chunk_find, &answer, .key = 3, .chains = {(const uint8_t *)w->chains, sizeof w->chains},
              .published = published);
    return answer.body.chunk_found.depth;
}

/* Computes everything and captures what is not there; 0, or the first reason why a part was not written. */
static uint32_t capture(world_t *w)
{
    uint32_t from = depth(w, (qr_hash_t){0}), start = w->start, end = w->end;
    if (from == CHUNKS) return 0;
    pages_choose(w, 0, ROWS);
    pages_fill(w);
    (void)rows_go(w, true, 0, ROWS);
    uint32_t reason = 0;
    for (uint32_t i = from * GROUPS; i < CHUNKS * GROUPS && !reason; i++) {
        reason = capture_part(w, i / GROUPS, i % GROUPS);
        if (!reason && i % GROUPS == GROUPS - 1) (void)depth(w, w->chains[i / GROUPS]);
    }
    w->start = start, w->end = end;
    return reason;
}

/* ---- what is done to files ------------------------------------------------------------------------------------------------------------
 */

static char *path_of(const world_t *w, uint32_t chunk, uint32_t group)
{
    static char paths[2][512];
    static uint32_t turn;
    char *path = paths[turn++ % 2];
    moves_file_path(w->m, w->contents[chunk][group], path);
    return path;
}
static uint64_t size_of(const world_t *w, uint32_t chunk, uint32_t group)
{
    struct stat s;
    assert_int_equal(stat(path_of(w, chunk, group), &s), 0);
    return (uint64_t)s.st_size;
}
static uint8_t *file_read(const world_t *w, uint32_t chunk, uint32_t group)
{
    uint64_t bytes = size_of(w, chunk, group);
    uint8_t *content = malloc(bytes);
    int file = open(path_of(w, chunk, group), O_RDONLY);
    assert_true(file >= 0 && content && pread(file, content, bytes, 0) == (ssize_t)bytes);
    close(file);
    return content;
}
/* Writes over a part of the file, or (anew) puts another file in its place. */
static void file_write(world_t *w, uint64_t at, const uint8_t *bytes, uint64_t count, bool anew)
{
    const char *path = path_of(w, w->chunk, w->group);
    char other[600];
    (void)snprintf(other, sizeof other, "%s~", path);
    int file = open(anew ? other : path, anew ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY, 0600);
    assert_true(file >= 0 && pwrite(file, bytes, count, (off_t)at) == (ssize_t)count);
    close(file);
    if (anew) assert_int_equal(rename(other, path), 0);
}

/* A fault of one file: the restore ends there, once. */
static void one_file(world_t *w)
{
    w->cut = w->chunk, w->exact = w->moment <= AT_REST;
    w->least = w->most = 1;
    w->faults++;
}

static void put_bit_flip(world_t *w)
{
    one_file(w);
    uint64_t bit = qr_prng_below(&w->prng, 8 * size_of(w, w->chunk, w->group));
    if (below(w, 4) == 0) bit = below(w, 8 * (4096 + 4 * CHUNK)); /* the payload is most of it */
    uint8_t *bytes = file_read(w, w->chunk, w->group), byte = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
    file_write(w, bit / 8, &byte, 1, false);
    free(bytes);
}
static void put_truncation(world_t *w)
{
    one_file(w);
    uint64_t size = size_of(w, w->chunk, w->group);
    uint64_t left = below(w, 4)   ? 1 + qr_prng_below(&w->prng, size - 1)
                    : below(w, 2) ? size - 1 - below(w, 2)
                                  : 4096ull * (1 + below(w, 2));
    assert_int_equal(truncate(path_of(w, w->chunk, w->group), (off_t)left), 0);
}
static void put_zero_length(world_t *w)
{
    one_file(w);
    assert_int_equal(truncate(path_of(w, w->chunk, w->group), 0), 0);
}
static void put_missing(world_t *w)
{
    one_file(w);
    assert_int_equal(unlink(path_of(w, w->chunk, w->group)), 0);
}
static void put_torn_header(world_t *w)
{
    static const uint8_t zeros[4096];
    one_file(w);
    uint32_t at = 512 * below(w, 8);
    file_write(w, at, zeros, 4096 - at, false);
}

/* Another intact file of the chain takes its place, or the two change places. */
static void put_swapped(world_t *w)
{
    uint32_t other = below(w, GROUPS * CHUNKS - 1), self = w->chunk * GROUPS + w->group;
    other += other >= self;
    one_file(w);
    uint64_t bytes = size_of(w, other / GROUPS, other % GROUPS), own = size_of(w, w->chunk, w->group);
    uint8_t *content = file_read(w, other / GROUPS, other % GROUPS), *mine = file_read(w, w->chunk, w->group);
    file_write(w, 0, content, bytes, true);
    bool both = below(w, 2);
    if (both || w->moment == AT_START) { /* at the start two files of one name cost both */
        w->most = 2;
        w->exact = w->moment == AT_REST;
        if (other / GROUPS < w->chunk && (other / GROUPS + 1) * CHUNK > w->start) w->cut = other / GROUPS;
    }
    if (both) {
        uint32_t chunk = w->chunk, group = w->group;
        w->chunk = other / GROUPS, w->group = other % GROUPS;
        file_write(w, 0, mine, own, true);
        w->chunk = chunk, w->group = group;
    }
    free(content), free(mine);
}

/* As of another model: an intact file of the same tokens and sizes. */
static void put_fingerprint(world_t *w)
{
    one_file(w);
    uint64_t bytes = size_of(w, w->chunk, w->group);
    uint8_t *content = file_read(w, w->chunk, w->group);
    qr_chunk_header_t header;
    assert_int_equal(qr_chunk_header_decode(content, bytes, bytes, &header), QR_CHUNK_INTACT);
    header.fingerprint[below(w, 32)] ^= (uint8_t)(1u << below(w, 8));
    qr_chunk_header_encode(&header, content);
    file_write(w, 0, content, bytes, below(w, 2));
    free(content);
}

/* ---- what is said too late, or no more ------------------------------------------------------------------------------------------------
 */

/* Pages of the load are fenced: their owner has another. older: the fence means who had them before, and nothing happens. */
static void fence_some(world_t *w, bool older)
{
    uint32_t count = 1 + below(w, 3);
    uint64_t said = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t group = below(w, GROUPS), block = below(w, w->blocks), page = w->place[group][block];
        uint32_t row = (w->first_block + block) * PAGE;
        w->fence_groups[said] = group;
        w->fence_pages[said++] = qr_handle(page, w->generations[group][page] - older);
        w->cut = qr_min_u32(w->cut, row / CHUNK);
    }
    if (older) w->cut = CHUNKS;
    w->fenced = (qr_u64s_t){w->fence_pages, older ? 0 : said};
    MOVES_SAY(w->m, page_manager, transfer, fence, .fence_id = 4, .groups = {w->fence_groups, said}, .pages = {w->fence_pages, said});
    w->faults += !older;
}

static void put_stale(world_t *w)
{
    qr_message_t answer;
    bool older = below(w, 4) == 0;
    fence_some(w, older);
    moves_rest(w->m);
    assert_true(moves_heard(w->m, QR_ROLE_page_manager, QR_MESSAGE_fenced, &answer));
    w->fenced.count = 0;
    w->least = w->most = !older, w->exact = true;
}

/* What an earlier use of the streamer's places is still owed comes now. */
static void answers_come_late(world_t *w)
{
    member_t *streamer = w->m->streamer;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        if (qr_handle_generation(w->upload_keys[i]) < 2) continue;
        uint64_t key = qr_handle(i, qr_handle_generation(w->upload_keys[i]) - 1);
        qr_message_t late = {.type = QR_MESSAGE_page_uploaded, .version = QR_MESSAGE_VERSION, .epoch = 1};
        late.from = at_role(QR_ROLE_transfer), late.to = streamer->address;
        late.body.page_uploaded = (qr_page_uploaded_t){.key = key, .bytes = 1000};
        pump_handle(&w->m->pump, streamer, &late);
        late.type = QR_MESSAGE_chunk_leased, late.from = at_role(QR_ROLE_storage);
        late.body.chunk_leased = (qr_chunk_leased_t){.key = key, .lease = 77, .bytes = 5000, .trusted = 1};
        pump_handle(&w->m->pump, streamer, &late);
    }
}

static void put_late(world_t *w)
{
    uint32_t what = below(w, 3);
    if (w->answered) return; /* too late to be late */
    w->cut = 0, w->least = 0, w->most = 1;
    if (what == 0) {
        fence_some(w, false);
        w->cut = 0; /* moves of other chunks are ended with it, if they share the page */
    } else if (what == 1) {
        MOVES_SAY(w->m, scheduler, restore_streamer, restore_cancel, .restore_id = w->restore_id);
        w->faults++;
    } else {
        put_bit_flip(w); /* an answer that was believed would pass it */
        answers_come_late(w);
    }
}

/* The file is dropped while it is leased, and its lease may be gone with the streamer's epoch. */
static void put_lease_dropped(world_t *w)
{
    if (w->answered) return;
    if (below(w, 3)) w->m->streamer->epoch++;
    for (uint32_t g = 0; g < GROUPS; g++)
        MOVES_SAY(w->m, checkpoint_writer, storage, chunk_drop, .key = 20 + g, .chain = w->chains[w->chunk], .group = g);
    w->cut = w->chunk, w->least = 0, w->most = 1, w->drops = GROUPS;
    w->faults++;
}

/* ---- what the operating system refuses ------------------------------------------------------------------------------------------------
 */

/* A chunk has left and is captured again: a call of the write fails, once or for as long as the fault lasts. */
static void refuse_write(world_t *w, const int *errors, uint32_t error_count)
{
    static const qr_store_point_t points[] = {QR_STORE_POINT_write_open,  QR_STORE_POINT_write_head,   QR_STORE_POINT_write_piece,
                                              QR_STORE_POINT_write_fsync, QR_STORE_POINT_write_rename, QR_STORE_POINT_write_folder_fsync};
    qr_store_point_t point = points[below(w, QR_COUNT(points))];
    qr_message_t answer;
    uint64_t before[COUNTERS], after[COUNTERS];
    uint32_t files;
    for (uint32_t g = 0; g < GROUPS; g++) {
        MOVES_ASK(w->m, checkpoint_writer, storage, chunk_drop, &answer, .key = 20, .chain = w->chains[w->chunk], .group = g);
        check(w, answer.body.chunk_dropped.reason == 0, "the chunk leaves");
    }
    count(w, before);
    bool lasts = below(w, 2);
    qr_store_fail_arm(point, 1, errors[below(w, error_count)], lasts);
    uint32_t reason = capture(w), expected = errors[0] == ENOSPC ? QR_E_NO_SPACE : QR_E_IO;
    check(w, qr_store_fail_passed(point) == 1, "the point was passed");
    check(w, reason == expected || (reason == QR_E_PERMISSION && expected == QR_E_IO), "what was not written is not called so");
    if (!lasts) qr_store_fail_arm(0, 0, 0, false);
    count(w, after);
    check(w, after[UNWRITTEN] == before[UNWRITTEN] + 1, "one write failed");
    (void)moves_disk(w->m, "tmp", &files);
    check(w, files == 0 && depth(w, (qr_hash_t){0}) == w->chunk, "nothing is left of it");
    w->by[UNWRITTEN]++;
    one_file(w);
    w->undo = lasts;
}

/* A damaged file that cannot be removed either. */
static void refuse_unlink(world_t *w, int error)
{
    put_bit_flip(w);
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 1, error, true);
    w->undo = true;
}

static void put_full(world_t *w)
{
    static const int errors[] = {ENOSPC, EDQUOT};
    refuse_write(w, errors, QR_COUNT(errors));
}
static void put_read_only(world_t *w)
{
    static const int errors[] = {EROFS, EACCES};
    if (below(w, 3) == 0)
        refuse_unlink(w, errors[below(w, 2)]);
    else
        refuse_write(w, errors, QR_COUNT(errors));
}

/* The name leads nowhere: every open of the file fails until somebody mends it. */
static void lead_nowhere(world_t *w)
{
    const char *path = path_of(w, w->chunk, w->group);
    char other[600];
    (void)snprintf(other, sizeof other, "%s~", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink("nowhere", path), 0);
    one_file(w);
    w->undo = true;
    if (w->moment != AT_REST) w->least = 0; /* read already */
}
static void lead_back(world_t *w)
{
    const char *path = path_of(w, w->chunk, w->group);
    char other[600];
    (void)snprintf(other, sizeof other, "%s~", path);
    if (access(other, F_OK) == 0) assert_int_equal(rename(other, path), 0);
}

static void put_io(world_t *w)
{
    static const int errors[] = {EIO};
    uint32_t what = below(w, 4), chunks = CHUNKS - w->start / CHUNK;
    if (w->moment == AT_START) { /* the file is neither known nor deleted */
        qr_store_fail_arm(below(w, 2) ? QR_STORE_POINT_read_open : QR_STORE_POINT_read_head, 1 + below(w, GROUPS * CHUNKS), EIO, false);
        w->cut = 0, w->least = 0, w->most = 1, w->faults++; /* it may be of a chunk that is not asked for */
    } else if (w->moment == AT_REST && what < 2) {
        qr_store_point_t point = what ? QR_STORE_POINT_read_piece : QR_STORE_POINT_read_head;
        qr_store_fail_arm(point, 1 + below(w, chunks * (what ? PIECES : GROUPS)), EIO, false);
        w->cut = 0, w->least = w->most = 1, w->faults++;
    } else if (w->moment == AT_REST && what == 2) {
        refuse_write(w, errors, QR_COUNT(errors));
    } else {
        lead_nowhere(w);
    }
}

/* ---- a draw ----------------------------------------------------------------------------------------------------------------------------
 */

/* Restores rows [start, end); fault: that of this draw is put in where it belongs. */
static void restore(world_t *w, uint32_t start, uint32_t end, bool fault)
{
    uint64_t after[COUNTERS];
    pages_choose(w, start, end);
    if (fault && w->moment == AT_REST && w->kind->put != put_stale) {
        w->kind->put(w);
        pages_choose(w, start, end);
    }
    pages_fill(w);
    if (fault && w->moment == AT_REST && w->kind->put == put_stale) w->kind->put(w);
    count(w, w->before);
    w->answered = false, w->boundary = w->reason = w->reads = 0, w->reached = false;
    if (fault && w->moment == AT_PIECE) reading = w, qr_store_fail_seen = before_piece;
    MOVES_SAY(w->m, scheduler, restore_streamer, restore, .restore_id = ++w->restore_id, .request_id = 9, .root = w->parents[0],
              .tokens = {w->tokens, end}, .start_rows = start, .end_rows = end, .pages = {w->pages, GROUPS * w->blocks});
    uint32_t steps = fault && w->moment == AT_STEP ? below(w, STEPS) : 0;
    while (steps-- && advance(w)) {
    }
    while (fault && w->moment == AT_PIECE && !w->reached && advance(w)) {
    }
    if (fault && (w->moment == AT_STEP || (w->kind->message && w->reached))) w->kind->put(w);
    moves_rest(w->m);
    qr_store_fail_seen = NULL;
    w->fenced.count = 0;
    check(w, w->answered, "restored is said");
    for (uint32_t i = 0; i < w->m->heard_count; i++) w->drops -= w->m->heard[i].message.type == QR_MESSAGE_chunk_dropped;
    check(w, w->drops == 0, "who drops a file hears that it is gone");
    w->m->heard_count = 0;
    count(w, after);
    uint64_t cuts = 0;
    for (uint32_t c = 0; c < CLASSES; c++) {
        cuts += after[c] - w->before[c];
        w->by[c] += after[c] - w->before[c];
        check(w, after[c] == w->before[c] || w->kind->allowed >> c & 1, counter_names[c]);
    }
    w->by[SET_ASIDE] += after[SET_ASIDE] - w->before[SET_ASIDE], w->by[REMOVED] += after[REMOVED] - w->before[REMOVED];
    check(w, cuts == (w->reason != 0), "a restore that was cut short is counted once");
    check(w, after[LEASES] == 0, "no lease is left");
    check(w, rows_go(w, false, w->start, w->end) == 0, "rows changed after restored was said");
    check(w, rest_is_untouched(w), "a page of somebody else was written after restored was said");
}

static void draw(world_t *w)
{
    uint32_t end = CHUNK * (1 + below(w, CHUNKS)), start = below(w, 2) ? 0 : PAGE * below(w, end / PAGE), moments[4], count_moments = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (w->kind->moments >> i & 1) moments[count_moments++] = i;
    w->moment = (moment_t)moments[below(w, count_moments)];
    w->start = start, w->end = end;
    w->chunk = start / CHUNK + below(w, end / CHUNK - start / CHUNK), w->group = below(w, GROUPS);
    w->cut = CHUNKS, w->exact = w->undo = false, w->drops = w->least = w->most = 0;
    w->read_at = w->moment == AT_PIECE ? 1 + below(w, PIECES * (end / CHUNK - start / CHUNK)) : 0;
    if (w->kind->put == put_io) end = ROWS;
    uint64_t faults = w->faults;
    if (w->moment == AT_START) restart(w, w->kind->put);
    restore(w, start, end, true);
    uint32_t cuts = w->reason != 0, cut = qr_max_u32(start, qr_min_u32(w->cut * CHUNK, end));
    if (w->faults != faults) w->whole += !cuts, w->short_ += cuts;
    check(w, w->boundary >= cut, "no chunk before the fault is lost");
    check(w, !w->exact || w->boundary == cut, "it ends at the fault");
    /* Somebody takes the fault out; what is missing is captured again, until nothing is. */
    if (w->undo) qr_store_fail_arm(0, 0, 0, false), lead_back(w);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        check(w, capture(w) == 0, "what is missing is captured again");
        restore(w, 0, ROWS, false);
        cuts += w->reason != 0;
        if (!w->reason) break;
    }
    check(w, !w->reason && depth(w, (qr_hash_t){0}) == CHUNKS, "mended");
    check(w, cuts >= w->least && cuts <= w->most, "every fault is counted, and no more");
    qr_store_fail_arm(0, 0, 0, false);
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------
 */

#define BIT(counter) (1u << (counter))
enum { FILE_FAULT = 1 << MISSING | 1 << DAMAGED | 1 << IO };
static const kind_t kinds[] = {
    {"bit flip", put_bit_flip, ALWAYS, FILE_FAULT, false},
    {"truncation", put_truncation, ALWAYS, FILE_FAULT, false},
    {"zero length", put_zero_length, ALWAYS, FILE_FAULT, false},
    {"swapped intact file", put_swapped, ALWAYS, FILE_FAULT, false},
    {"missing file", put_missing, ALWAYS, BIT(MISSING), false},
    {"wrong fingerprint", put_fingerprint, ALWAYS, FILE_FAULT, false},
    {"stale generation", put_stale, 1 << AT_REST, BIT(OTHER), true},
    {"late completion after reuse", put_late, 1 << AT_STEP | 1 << AT_PIECE, FILE_FAULT | BIT(CANCELLED) | BIT(OTHER), true},
    {"lease dropped mid-read", put_lease_dropped, 1 << AT_STEP | 1 << AT_PIECE, BIT(MISSING), true},
    {"torn header", put_torn_header, ALWAYS, FILE_FAULT, false},
    {"directory full", put_full, 1 << AT_REST, BIT(MISSING), false},
    {"read-only", put_read_only, 1 << AT_REST, FILE_FAULT, false},
    {"I/O error", put_io, 1 << AT_START | 1 << AT_REST | 1 << AT_STEP, BIT(IO) | BIT(MISSING), false},
};
static uint32_t draws = 20;
static uint64_t seed = 1;
static char table[QR_COUNT(kinds)][400];

static void chain_make(world_t *w)
{
    for (uint32_t i = 0; i < ROWS; i++) w->tokens[i] = below(w, 300);
    memset(w->parents[0].bytes, 0x31, 32);
    for (uint32_t c = 0; c < CHUNKS; c++) {
        if (c) w->parents[c] = w->chains[c - 1];
        qr_chain_node(w->parents[c].bytes, w->tokens + c * CHUNK, CHUNK, w->chains[c].bytes);
    }
    w->row_bytes = qr_decoder_row_bytes(w->m->given->decoder);
    for (uint32_t g = 0; g < GROUPS; g++) {
        w->members[g] = qr_decoder_member_count(w->m->given->decoder, g);
        assert_true(w->members[g] <= MEMBERS);
        for (uint32_t k = 0; k < w->members[g]; k++) {
            w->rows[g][k] = malloc((size_t)ROWS * w->row_bytes);
            for (size_t i = 0; i < (size_t)ROWS * w->row_bytes; i++) w->rows[g][k][i] = (uint8_t)below(w, 256);
        }
    }
    assert_true((uint64_t)CHUNK * w->members[0] * w->row_bytes > QR_TRANSFER_PIECE_BYTES);
}

static void row_print(const world_t *w)
{
    char *line = table[w->kind - kinds];
    int at =
        snprintf(line, sizeof table[0], "%-28s %5llu faults, %5llu whole, %5llu cut short, %llu wrong rows; counted:", w->kind->name,
                 (unsigned long long)w->faults, (unsigned long long)w->whole, (unsigned long long)w->short_, (unsigned long long)w->wrong);
    for (uint32_t c = 0; c < LEASES; c++)
        if (w->by[c] && at < (int)sizeof table[0])
            at += snprintf(line + at, sizeof table[0] - (size_t)at, " %s %llu", counter_names[c], (unsigned long long)w->by[c]);
}

static void test_kind(void **state)
{
    world_t *w = calloc(1, sizeof *w);
    w->kind = *state;
    w->m = moves_new(&config);
    qr_prng_init(&w->prng, seed * 1000 + (uint64_t)(w->kind - kinds));
    chain_make(w);
    w->m->pump.seen = seen, w->m->pump.context = w;
    assert_int_equal(capture(w), 0);
    for (w->draw_index = 0; w->faults < draws; w->draw_index++) {
        check(w, w->draw_index < 2 * draws + 20, "a draw is a fault, nearly always");
        draw(w);
    }
    row_print(w);
    moves_destroy(w->m);
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t k = 0; k < MEMBERS; k++) free(w->rows[g][k]);
    free(w);
}

int main(int count_arguments, char **arguments)
{
    struct CMUnitTest tests[QR_COUNT(kinds)];
    const char *only = NULL;
    size_t chosen = 0;
    for (int i = 1; i < count_arguments; i++) {
        if (strcmp(arguments[i], "--full") == 0)
            draws = 1000;
        else if (i + 1 < count_arguments && strcmp(arguments[i], "--draws") == 0)
            draws = (uint32_t)strtoul(arguments[++i], NULL, 10);
        else if (i + 1 < count_arguments && strcmp(arguments[i], "--seed") == 0)
            seed = strtoull(arguments[++i], NULL, 10);
        else
            only = arguments[i];
    }
    for (size_t i = 0; i < QR_COUNT(kinds); i++)
        if (!only || strcmp(only, kinds[i].name) == 0)
            tests[chosen++] =
                (struct CMUnitTest){.name = kinds[i].name, .test_func = test_kind, .initial_state = (void *)(uintptr_t)&kinds[i]};
    if (chosen == 0) return fprintf(stderr, "arguments: --full, --draws N, --seed N, the name of a kind\n"), 2;
    int failed = _cmocka_run_group_tests("fault table", tests, chosen, NULL, NULL);
    for (size_t i = 0; i < QR_COUNT(kinds); i++)
        if (table[i][0]) puts(table[i]);
    return failed;
}
