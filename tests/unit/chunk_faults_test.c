/* link: qr_store_faults */
/* chunk_faults_test.c - real files, damaged in every way that a disk or a hand can: none may give a wrong byte that is vouched for. Each
 * fault is tried N times over seeded chunks: 20, or as many as the first argument says. Every system call of the store is also made to
 * fail, one after the other: whatever it answers, the table and the disk agree afterwards, and again after a new start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>

#include "store/fail.h"
#include "tests/unit/chunk_stand.h"

static uint32_t rounds = 20;
static store_t store;
static qr_prng_t prng;

/* ---- one damaged file at a time ------------------------------------------------------------------------------------------------- */

typedef struct file {
    sample_t *sample, *other; /* other: an intact chunk of the same size */
    uint8_t *bytes;
    size_t count; /* of bytes; set to 0 and `missing` for no file */
    bool missing;
} file_t;

static uint64_t below(uint64_t bound) { return qr_prng_below(&prng, bound); }
static void flip(file_t *f, size_t from, size_t to) { f->bytes[from + below(to - from)] ^= (uint8_t)(1u << below(8)); }
static size_t payload_at(const file_t *f) { return (size_t)qr_chunk_payload_offset(&f->sample->header); }
static size_t tokens_end(const file_t *f) { return 4096 + 4ul * f->sample->header.count; }

static void flip_head(file_t *f) { flip(f, 0, 176); }
static void flip_reserved(file_t *f) { flip(f, 176, 4092); }
static void flip_check(file_t *f) { flip(f, 4092, 4096); }
static void flip_token(file_t *f) { flip(f, 4096, tokens_end(f)); }
static void flip_padding(file_t *f) { flip(f, tokens_end(f), payload_at(f)); }
static void flip_payload(file_t *f) { flip(f, payload_at(f), f->count); }
static void flip_last(file_t *f) { flip(f, f->count - 1, f->count); }
static void flip_pair(file_t *f) { flip_payload(f), flip_payload(f), flip_payload(f); }
static void cut(file_t *f) { f->count = (size_t)below(f->count); }
static void cut_last(file_t *f) { f->count--; }
static void empty(file_t *f) { f->count = 0; }
static void remove_it(file_t *f) { f->missing = true; }
static void grow(file_t *f) { f->count += 1 + below(64); } /* there is room behind */
static void tear_header(file_t *f)
{
    size_t from = 512 * below(8);
    memset(f->bytes + from, 0, 4096 - from);
}
static void tear_payload(file_t *f) /* a page that was never written */
{
    size_t from = payload_at(f) + below(f->count - payload_at(f) - 64);
    memset(f->bytes + from, 0, qr_min_u64(4096, f->count - from));
}
static void swap_rows(file_t *f)
{
    uint8_t row[64];
    size_t bytes = f->sample->header.row_bytes, a = payload_at(f), b = a + bytes * (1 + below(f->sample->header.count - 1));
    assert_true(bytes <= sizeof row);
    memcpy(row, f->bytes + a, bytes);
    memcpy(f->bytes + a, f->bytes + b, bytes);
    memcpy(f->bytes + b, row, bytes);
}
/* An intact file of another chunk under this name, with whatever the other differs in. */
static void intact_other(file_t *f, void (*change)(sample_t *))
{
    sample_t *s = f->other;
    if (change) change(s);
    sample_seal(s);
    qr_chunk_header_encode(&s->header, f->bytes);
    memset(f->bytes + 4096, 0, payload_at(f) - 4096);
    memcpy(f->bytes + 4096, s->tokens, 4ul * s->header.count);
    memcpy(f->bytes + payload_at(f), s->payload, s->bytes);
}
static void swap_file(file_t *f) { intact_other(f, NULL); }
static void same_but(file_t *f, void (*change)(sample_t *))
{
    memcpy(&f->other->header, &f->sample->header, sizeof f->sample->header);
    memcpy(f->other->tokens, f->sample->tokens, sizeof f->sample->tokens);
    intact_other(f, change);
}
static void fingerprint(sample_t *s) { s->header.fingerprint[below(32)] ^= 1; }
static void parent(sample_t *s) { s->header.parent[below(32)] ^= 1; }
static void token(sample_t *s) { s->tokens[below(s->header.count)] ^= 1; }
static void start(sample_t *s) { s->header.start += 256; }
static void group(sample_t *s) { s->header.group++; }
static void shape(sample_t *s)
{
    uint32_t members = s->header.members;
    s->header.members = s->header.row_bytes / 2, s->header.row_bytes = 2 * members; /* as many bytes */
}
static void tail(sample_t *s) { s->header.tail = true; }
static void other_fingerprint(file_t *f) { same_but(f, fingerprint); }
static void other_parent(file_t *f) { same_but(f, parent); }
static void other_token(file_t *f) { same_but(f, token); }
static void other_start(file_t *f) { same_but(f, start); }
static void other_group(file_t *f) { same_but(f, group); }
static void other_shape(file_t *f) { same_but(f, shape); }
static void other_tail(file_t *f) { same_but(f, tail); }

/* content: the file is intact and of the identity asked for, with other rows: only its name tells, by SHA-256. */
static void other_rows(file_t *f) { same_but(f, NULL); }

static const struct fault {
    const char *name;
    void (*make)(file_t *);
    bool content;
} faults[] = {
    {"bit in the header", flip_head, false},
    {"bit in the reserved bytes", flip_reserved, false},
    {"bit in the header's CRC", flip_check, false},
    {"bit in a token", flip_token, false},
    {"bit in the padding", flip_padding, false},
    {"bit in the payload", flip_payload, false},
    {"bit in the last byte", flip_last, false},
    {"three bits in the payload", flip_pair, false},
    {"cut anywhere", cut, false},
    {"last byte missing", cut_last, false},
    {"zero length", empty, false},
    {"missing", remove_it, false},
    {"bytes behind the end", grow, false},
    {"torn header", tear_header, false},
    {"torn payload", tear_payload, false},
    {"two rows exchanged", swap_rows, false},
    {"intact file of another chunk", swap_file, false},
    {"another fingerprint, equal sizes", other_fingerprint, false},
    {"another parent", other_parent, false},
    {"another token", other_token, false},
    {"another start", other_start, false},
    {"another group", other_group, false},
    {"another shape, equal bytes", other_shape, false},
    {"a tail for a chunk", other_tail, false},
    {"other rows under the same identity", other_rows, true},
};

static void put_file(const char *path, const file_t *f)
{
    (void)unlink(path);
    if (!f->missing) file_write(path, f->bytes, f->count);
}

static void test_no_damage_is_accepted(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    uint32_t tried = 0, accepted = 0;
    for (size_t i = 0; i < QR_COUNT(faults); i++) {
        uint32_t reasons[QR_CHUNK_REASONS] = {0};
        for (uint32_t round = 0; round < rounds; round++) {
            static const uint32_t counts[] = {2, 16, 255, 256, 1000};
            sample_t sample, other;
            qr_chunk_name_t name;
            qr_chunk_verdict_t verdict = {0};
            qr_chunk_reason_t reason;
            bool wrong, waits;
            char path[512];
            uint32_t count = counts[below(QR_COUNT(counts))];
            sample_make(&sample, qr_prng_next(&prng), count, 5, 64);
            sample_make(&other, qr_prng_next(&prng), count, 5, 64);
            assert_int_equal(publish(&store, &sample, NULL, 0, &name, NULL), 0);
            full_path(&store, &name, path);
            file_t f = {.sample = &sample, .other = &other};
            f.bytes = file_read(path, &f.count);
            f.bytes = realloc(f.bytes, f.count + 128);
            assert_non_null(f.bytes);
            memset(f.bytes + f.count, 0x5a, 128);
            assert_int_equal(restore(AT_FDCWD, path, &sample, &reason, &wrong), 0); /* before the damage it is good */
            faults[i].make(&f);
            put_file(path, &f);
            int status = restore(AT_FDCWD, path, &sample, &reason, &wrong);
            int verified = qr_chunk_verify(AT_FDCWD, path, name.id, &verdict);
            tried++;
            if (wrong && !faults[i].content) accepted++;
            if (!faults[i].content) assert_int_not_equal(status, 0);
            if (f.missing) {
                assert_int_equal(status, -QR_E_NOT_FOUND);
                assert_int_equal(verified, -QR_E_NOT_FOUND);
            } else { /* whoever sees the whole file against its name sees everything */
                assert_int_equal(verified, 0);
                if (verdict.reason == QR_CHUNK_INTACT) print_error("%s: verified\n", faults[i].name);
                assert_int_not_equal(verdict.reason, QR_CHUNK_INTACT);
            }
            reasons[faults[i].content ? verdict.reason : reason]++;
            assert_int_equal(qr_chunk_files_drop(store.files, &name, &waits), 0);
            free(f.bytes);
            sample_free(&sample);
            sample_free(&other);
        }
        char words[256];
        int at = 0;
        for (int r = 0; r < QR_CHUNK_REASONS; r++)
            if (reasons[r])
                at += snprintf(words + at, sizeof words - (size_t)at, " %s %u", qr_chunk_reason_name((qr_chunk_reason_t)r), reasons[r]);
        print_message("%-36s%s\n", faults[i].name, words);
    }
    print_message("%u damaged files, %u accepted\n", tried, accepted);
    assert_int_equal(tried, QR_COUNT(faults) * rounds);
    assert_int_equal(accepted, 0);
    store_end(&store);
}

/* ---- every system call fails once ------------------------------------------------------------------------------------------------- */

static sample_t big, small; /* big: several pieces */
static const uint8_t owner[16] = {7};

/* A life of a store, going on whatever fails. Counts the calls that failed and the receipts; names of files with a receipt. */
typedef struct life {
    uint32_t failed, receipts;
    qr_chunk_name_t names[3];
    bool has[3];
} life_t;

static int judge(life_t *life, int status)
{
    if (status) life->failed++;
    return status;
}

static void live(life_t *life)
{
    sample_t tail = small;
    uint64_t epoch;
    bool flag, wrong;
    qr_chunk_reason_t reason;
    char below_store[QR_CHUNK_PATH_BYTES];
    tail.header.tail = true;
    if (judge(life, store_try(&store, &roomy, NULL))) return;
    if (judge(life, qr_store_epoch_next(&store.folder, &epoch, &flag, store.message, sizeof store.message))) assert_true(store.message[0]);
    const sample_t *what[3] = {&big, &small, &tail};
    for (int i = 0; i < 3; i++) {
        life->has[i] = judge(life, publish(&store, what[i], i == 2 ? owner : NULL, 0, &life->names[i], NULL)) == 0;
        life->receipts += life->has[i];
        if (!life->has[i]) continue;
        qr_chunk_name_path(&life->names[i], below_store);
        int status = judge(life, restore(store.folder.fd, below_store, what[i], &reason, &wrong));
        assert_false(wrong);
        assert_int_equal(status == 0, reason == QR_CHUNK_INTACT);
    }
    if (life->has[1] && judge(life, qr_chunk_files_drop(store.files, &life->names[1], &flag)) == 0) life->has[1] = false;
}

/* What stands after a life: each receipt's file, intact, and nothing that is not counted. A temporary whose unlink failed is counted too.
 */
static void check_disk(const life_t *life)
{
    uint32_t files;
    store_open(&store, &roomy);
    qr_chunk_files_stats_t stats = stats_of(&store);
    assert_int_equal(store_disk(&store, &files), stats.bytes);
    assert_int_equal(files, stats.chunks + stats.tails);
    for (int i = 0; i < 3; i++) {
        qr_chunk_verdict_t verdict;
        char path[QR_CHUNK_PATH_BYTES];
        if (!life->has[i]) continue;
        qr_chunk_name_path(&life->names[i], path);
        assert_int_equal(qr_chunk_verify(store.folder.fd, path, life->names[i].id, &verdict), 0);
        assert_int_equal(verdict.reason, QR_CHUNK_INTACT);
    }
    store_close(&store);
}

static void test_every_call_may_fail(void **state)
{
    (void)state;
    static const int numbers[] = {EIO, ENOSPC, EROFS};
    uint32_t tried = 0, failures = 0;
    sample_make(&big, 1, 300, 20, 64);
    sample_make(&small, 2, 16, 2, 64);
    for (int point = 0; point < QR_STORE_POINTS; point++) {
        uint32_t passed = 0, most = rounds < 20 ? rounds : 20;
        for (uint32_t count = 1; count <= most; count++) {
            for (size_t n = 0; n < QR_COUNT(numbers); n++) {
                life_t life = {0};
                qr_chunk_files_stats_t stats;
                char stale[300];
                uint32_t files;
                store_new(&store, NULL);
                qr_store_fail_arm((qr_store_point_t)point, 0, 0, false);
                store_open(&store, &roomy); /* so that there is something to sweep */
                store_close(&store);
                (void)snprintf(stale, sizeof stale, "%s/tmp/99", store.path);
                file_write(stale, big.payload, 50);
                qr_store_fail_arm((qr_store_point_t)point, count, numbers[n], false);
                live(&life);
                passed = qr_store_fail_passed((qr_store_point_t)point);
                qr_store_fail_arm((qr_store_point_t)point, 0, 0, false);
                if (store.files) {
                    stats = stats_of(&store);
                    assert_int_equal(stats.reserved, 0);
                    assert_true(store_disk(&store, &files) <= stats.bytes + stats.stray);
                }
                store_close(&store);
                check_disk(&life);
                store_end(&store);
                tried += passed >= count;
                failures += life.failed > 0;
            }
            if (passed < count) break; /* it is not passed so often */
        }
    }
    print_message("%u lives with one failing call, %u of them noticed it\n", tried, failures);
    assert_true(failures > tried / 2);
    sample_free(&big);
    sample_free(&small);
}

/* A disk that takes nothing any more: every write fails and says so, reading goes on. */
static void test_read_only_store(void **state)
{
    (void)state;
    qr_chunk_name_t name, second;
    qr_chunk_reason_t reason;
    bool wrong, waits;
    char path[512];
    sample_make(&big, 1, 300, 20, 64);
    sample_make(&small, 2, 16, 2, 64);
    store_new(&store, &roomy);
    assert_int_equal(publish(&store, &big, NULL, 0, &name, NULL), 0);
    full_path(&store, &name, path);
    qr_store_fail_arm(QR_STORE_POINT_write_open, 1, EROFS, true);
    for (int i = 0; i < 3; i++) assert_int_equal(publish(&store, &small, NULL, 0, &second, NULL), -QR_E_IO);
    assert_int_equal(restore(AT_FDCWD, path, &big, &reason, &wrong), 0);
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 1, EROFS, true);
    assert_int_equal(qr_chunk_files_drop(store.files, &name, &waits), -QR_E_IO);
    assert_int_equal(stats_of(&store).withdrawn, 1); /* it stays, counted, until it can be dropped */
    assert_int_equal(stats_of(&store).bytes, qr_chunk_file_bytes(&big.header));
    qr_store_fail_arm(QR_STORE_POINT_drop_unlink, 0, 0, false);
    assert_int_equal(qr_chunk_files_drop(store.files, &name, &waits), 0);
    assert_int_equal(stats_of(&store).bytes, 0);
    /* A temporary that cannot be unlinked counts until the next start sweeps it. */
    qr_chunk_writing_t *write;
    uint32_t files;
    assert_int_equal(qr_chunk_files_write(store.files, &small.header, small.tokens, NULL, &write), 0);
    qr_store_fail_arm(QR_STORE_POINT_cancel_unlink, 1, EIO, true);
    qr_chunk_write_cancel(&write);
    qr_store_fail_arm(QR_STORE_POINT_cancel_unlink, 0, 0, false);
    assert_int_equal(stats_of(&store).stray, qr_chunk_file_bytes(&small.header));
    store_close(&store);
    store_open(&store, &roomy);
    assert_int_equal(stats_of(&store).swept, 1);
    assert_int_equal(stats_of(&store).stray, 0);
    assert_int_equal(store_disk(&store, &files), 0);
    store_end(&store);
    sample_free(&big);
    sample_free(&small);
}

static int tear_down(void **state)
{
    (void)state;
    store_end(&store);
    return 0;
}

/* What QUIRE_STORE_FAIL arms before main: this program again, with one publish to do. */
static int publish_once(void)
{
    sample_t sample;
    qr_chunk_name_t name;
    sample_make(&sample, 2, 16, 2, 64);
    store_new(&store, &roomy);
    int status = publish(&store, &sample, NULL, 0, &name, NULL);
    store_end(&store);
    sample_free(&sample);
    return -status;
}
static int again_with(const char *setting)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        (void)setenv("TMPDIR", store.path, 1);
        (void)setenv("QUIRE_STORE_FAIL", setting, 1);
        (void)execl("/proc/self/exe", "chunk_faults_test", "--publish", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}
static void test_armed_from_outside(void **state)
{
    (void)state;
    char setting[64];
    store_new(&store, NULL);                                         /* holds what a killed one leaves */
    assert_int_equal(WEXITSTATUS(again_with("write_fsync:2:5")), 0); /* there is one fsync of a temporary */
    (void)snprintf(setting, sizeof setting, "write_fsync:1:%d", EIO);
    assert_int_equal(WEXITSTATUS(again_with(setting)), QR_E_IO);
    (void)snprintf(setting, sizeof setting, "write_piece:1:always-%d", ENOSPC);
    assert_int_equal(WEXITSTATUS(again_with(setting)), QR_E_NO_SPACE);
    int status = again_with("write_fsync:1:kill");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(WEXITSTATUS(again_with("no_such_point:1:5")), 2);
    assert_int_equal(WEXITSTATUS(again_with("write_fsync:0:5")), 2);
    assert_int_equal(WEXITSTATUS(again_with("write_fsync")), 2);
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "--publish") == 0) return publish_once();
    if (count > 1) rounds = (uint32_t)strtoul(words[1], NULL, 10);
    if (!rounds) return 2;
    qr_prng_init(&prng, 20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_no_damage_is_accepted, tear_down),
        cmocka_unit_test_teardown(test_every_call_may_fail, tear_down),
        cmocka_unit_test_teardown(test_read_only_store, tear_down),
        cmocka_unit_test_teardown(test_armed_from_outside, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
