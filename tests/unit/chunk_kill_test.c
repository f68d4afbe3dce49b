/* link: qr_store_faults */
/* chunk_kill_test.c - CK-07, the part of files: a process is killed between every two system calls of publishing, dropping, sweeping and
 * counting the epoch, at the first and every later time it comes there. What it gave a receipt for is found, verified; what it did not is
 * whole or gone; nothing half-written stays; the account is the sum of the files. Epochs never repeat. A kill keeps what was written but
 * not synced, so the order of the calls, on which a loss of power depends, is checked by itself. The first argument: most times that a
 * point is killed at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>

#include "store/fail.h"
#include "tests/unit/chunk_stand.h"

enum { SAMPLES = 4 };
static uint32_t rounds = 20;
static sample_t samples[SAMPLES];
static store_t store;
static const uint8_t owner[16] = {7};

/* What the child tells before it goes on: a receipt, a drop that was done, an epoch. */
typedef struct word {
    enum { RECEIPT = 1, DROPPED, EPOCH, NOT_ADOPTED } kind;
    uint32_t sample;
    uint64_t epoch;
    qr_chunk_name_t name;
} word_t;

static int words_to;
static void say(word_t word)
{
    if (write(words_to, &word, sizeof word) != sizeof word) _exit(3);
}
static void child_publish(uint32_t i, const uint8_t *to)
{
    word_t word = {.kind = RECEIPT, .sample = i};
    if (publish(&store, &samples[i], to, 0, &word.name, NULL)) _exit(4);
    say(word);
}

static qr_chunk_adopt_t adopt_but_last(void *context, const qr_chunk_final_t *found, uint64_t *ret_value)
{
    (void)ret_value;
    return memcmp(context, found->name.id, 32) != 0 ? QR_CHUNK_ADOPT : QR_CHUNK_DELETE;
}

/* The life that is killed somewhere: a start that has something to sweep and to delete, three receipts, a drop under a lease, an epoch. */
static void child_life(const uint8_t unwanted[32])
{
    word_t word = {.kind = EPOCH};
    qr_chunk_adoption_t adoption = {.context = (void *)(uintptr_t)unwanted, .adopt = adopt_but_last};
    bool flag;
    uint64_t lease;
    qr_chunk_name_t first, gone;
    if (store_try(&store, &roomy, &adoption)) _exit(5);
    if (qr_store_epoch_next(&store.folder, &word.epoch, &flag, store.message, sizeof store.message) || flag) _exit(6);
    say(word);
    child_publish(0, NULL);
    child_publish(1, NULL);
    samples[2].header.tail = true;
    child_publish(2, owner);
    if (publish(&store, &samples[0], NULL, 0, &first, &flag) || !flag) _exit(7);
    if (qr_chunk_files_lease(store.files, &first, 1, &lease) || qr_chunk_files_drop(store.files, &first, &flag) || !flag) _exit(8);
    if (qr_chunk_files_release(store.files, lease, &flag, &gone) || !flag) _exit(9);
    say((word_t){.kind = DROPPED, .sample = 0, .name = first});
}

/* ---- the judge ---------------------------------------------------------------------------------------------------------------------- */

static uint64_t last_epoch;
static struct {
    uint32_t kills, receipts, swept;
} seen;

static void judge(int words_from)
{
    word_t word;
    bool stands[SAMPLES] = {0};
    qr_chunk_name_t names[SAMPLES];
    uint32_t files, found = 0;
    while (read(words_from, &word, sizeof word) == sizeof word) {
        if (word.kind == RECEIPT) stands[word.sample] = true, names[word.sample] = word.name, seen.receipts++;
        if (word.kind == DROPPED) stands[word.sample] = false;
        if (word.kind == EPOCH) assert_true(word.epoch > last_epoch), last_epoch = word.epoch;
    }
    store_open(&store, &roomy);
    qr_chunk_files_stats_t stats = stats_of(&store);
    seen.swept += stats.swept;
    assert_int_equal(store_disk(&store, &files), stats.bytes); /* nothing half-written, nothing uncounted */
    assert_int_equal(files, stats.chunks + stats.tails);
    assert_int_equal(stats.strangers, 0);
    for (uint32_t place = 0; place < roomy.chunks_max; place++) { /* whatever is there is whole, with a receipt or without */
        qr_chunk_name_t name;
        qr_chunk_verdict_t verdict;
        uint64_t bytes, value;
        char path[QR_CHUNK_PATH_BYTES];
        if (!qr_chunk_files_at(store.files, place, &name, &bytes, &value)) continue;
        qr_chunk_name_path(&name, path);
        assert_int_equal(qr_chunk_verify(store.folder.fd, path, name.id, &verdict), 0);
        assert_int_equal(verdict.reason, QR_CHUNK_INTACT);
        found++;
    }
    assert_int_equal(found, files);
    for (uint32_t i = 0; i < 3; i++) {
        char path[QR_CHUNK_PATH_BYTES];
        qr_chunk_reason_t reason;
        bool wrong;
        /* The drop of sample 0 may have been done though nobody heard of it; everything else with a receipt is there. */
        if (!stands[i] || i == 0) continue;
        qr_chunk_name_path(&names[i], path);
        samples[i].header.tail = i == 2;
        assert_int_equal(restore(store.folder.fd, path, &samples[i], &reason, &wrong), 0);
        assert_false(wrong);
    }
    for (uint32_t i = 0; i < 3; i++) { /* publishing again: one file each, whatever was there */
        qr_chunk_name_t name;
        samples[i].header.tail = i == 2;
        assert_int_equal(publish(&store, &samples[i], i == 2 ? owner : NULL, 0, &name, NULL), 0);
        if (stands[i]) assert_memory_equal(&name, &names[i], sizeof name);
    }
    stats = stats_of(&store);
    assert_true(stats.chunks - 2 <= 1 && stats.tails == 1); /* and sample 3 where nobody deleted it */
    assert_int_equal(store_disk(&store, &files), stats.bytes);
    bool recovered;
    uint64_t epoch;
    assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &recovered, store.message, sizeof store.message), 0);
    assert_false(recovered);
    assert_true(epoch > last_epoch);
    store_close(&store);
}

/* A store with a file that the child will not adopt and a temporary that it sweeps. Its name. */
static void prepare(uint8_t unwanted[32])
{
    qr_chunk_name_t name;
    char stale[300];
    store_new(&store, &roomy);
    assert_int_equal(publish(&store, &samples[3], NULL, 0, &name, NULL), 0);
    memcpy(unwanted, name.id, 32);
    store_close(&store);
    (void)snprintf(stale, sizeof stale, "%s/tmp/99", store.path);
    file_write(stale, samples[0].payload, 50);
}

/* Runs one life that is killed at the count-th passing of a point; whether it was (or lived to its end). */
static bool kill_at(qr_store_point_t point, uint32_t count)
{
    uint8_t unwanted[32];
    int pipes[2], status;
    prepare(unwanted);
    last_epoch = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(pipes[0]);
        words_to = pipes[1];
        qr_store_fail_arm(point, count, QR_STORE_FAIL_KILL, false);
        child_life(unwanted);
        _exit(0);
    }
    close(pipes[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status))
        print_error("%s %u: the child gave up at %d\n", qr_store_point_name(point), count, WEXITSTATUS(status));
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    assert_true(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    judge(pipes[0]);
    close(pipes[0]);
    store_end(&store);
    return killed;
}

static void test_ck_07_killed_at_every_point(void **state)
{
    (void)state;
    uint32_t points = 0;
    for (int point = 0; point < QR_STORE_POINTS; point++) {
        uint32_t count = 0;
        while (count < rounds && kill_at((qr_store_point_t)point, count + 1)) count++, seen.kills++;
        points += count > 0;
        if (!count) print_message("%s is not passed in this life\n", qr_store_point_name((qr_store_point_t)point));
    }
    print_message("%u kills at %u of %u points; %u receipts, %u temporaries swept\n", seen.kills, points, (unsigned)QR_STORE_POINTS,
                  seen.receipts, seen.swept);
    assert_true(points >= 17 && seen.kills > 40 && seen.swept >= 10);
}

/* ---- order --------------------------------------------------------------------------------------------------------------------------- */

static qr_store_point_t trail[256];
static uint32_t trail_count;
static void note(qr_store_point_t point)
{
    if (trail_count < QR_COUNT(trail)) trail[trail_count++] = point;
}

/* One publish in a new store, call by call. */
static void test_order_of_a_publish(void **state)
{
    (void)state;
#define P(name) QR_STORE_POINT_##name
    static const qr_store_point_t first[] = {P(write_open),   P(write_head),         P(write_piece), P(write_fsync),
                                             P(parent_make),  P(parent_fsync),       P(parent_make), P(parent_fsync),
                                             P(write_rename), P(write_folder_fsync), P(write_done)};
    static const qr_store_point_t second[] = {P(write_open),   P(write_head),         P(write_piece), P(write_fsync),
                                              P(write_rename), P(write_folder_fsync), P(write_done)};
    static const qr_store_point_t epochs[] = {P(epoch_open),   P(epoch_write),        P(epoch_fsync),
                                              P(epoch_rename), P(epoch_folder_fsync), P(epoch_done)};
#undef P
    qr_chunk_name_t name;
    uint64_t epoch;
    bool flag;
    store_new(&store, &roomy);
    qr_store_fail_seen = note;
    trail_count = 0;
    samples[1].header.tail = samples[2].header.tail = false;
    assert_int_equal(publish(&store, &samples[1], NULL, 0, &name, NULL), 0);
    assert_int_equal(trail_count, QR_COUNT(first));
    assert_memory_equal(trail, first, sizeof first);
    samples[2].header.tail = true; /* tails' folder is there since the start */
    trail_count = 0;
    assert_int_equal(publish(&store, &samples[2], owner, 0, &name, NULL), 0);
    assert_int_equal(trail_count, QR_COUNT(second));
    assert_memory_equal(trail, second, sizeof second);
    trail_count = 0;
    assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &flag, store.message, sizeof store.message), 0);
    assert_int_equal(trail_count, QR_COUNT(epochs));
    assert_memory_equal(trail, epochs, sizeof epochs);
    qr_store_fail_seen = NULL;
    store_end(&store);
}

static int tear_down(void **state)
{
    (void)state;
    store_end(&store);
    return 0;
}

int main(int count, char **words)
{
    if (count > 1) rounds = (uint32_t)strtoul(words[1], NULL, 10);
    if (!rounds) return 2;
    sample_make(&samples[0], 1, 300, 20, 64); /* several pieces */
    sample_make(&samples[1], 2, 16, 2, 64);
    sample_make(&samples[2], 3, 5, 2, 64);
    sample_make(&samples[3], 4, 16, 2, 64);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_ck_07_killed_at_every_point, tear_down),
        cmocka_unit_test_teardown(test_order_of_a_publish, tear_down),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < SAMPLES; i++) sample_free(&samples[i]);
    return status;
}
