/* link: qr_io_facts_book qr_store_faults qr_actor_catalog_batch qr_messages qr_schema qr_base */
/* facts_kill_test.c - a process is killed between every two system calls of appending to the log, of snapshots and cuts, of writing the
 * facts and of making them again, at the first and every later time it comes there (CK-07, the part of the catalog). What it was told is
 * in the log is there, what it was not told is there whole or not at all, the facts are what the log says, nothing half-written stays,
 * and the next writer goes on. usage: facts_kill_test [most times that a point is killed at] (default 2) */
#include "store/fail.h"
#include "tests/unit/facts_stand.h"

#include <signal.h>
#include <sys/wait.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TXS = 40, DRAWN = 120 };
static uint32_t rounds = 2;
static struct {
    uint32_t kills, lives, points, acknowledged, unacknowledged;
} seen;

static qr_facts_book_config_t config_of(const stand_t *s)
{
    qr_facts_book_config_t config = stand_config(s);
    config.history_bytes = 14 * 4096; /* snapshots and cuts all the time */
    config.snapshot_every = 6;
    return config;
}

/* Draws all transactions; they are the same for every life. */
static void draw_all(stand_t *s, columns_t *each)
{
    while (s->txs < DRAWN) {
        uint64_t tx = s->txs + 1;
        stand_draw(s, &each[tx]);
    }
}

/* The life that is killed somewhere: TXS appends and their facts; halfway the facts are damaged, and made again at the next open. */
static void child_life(const stand_t *s, const columns_t *each, int words_to, uint64_t from)
{
    char message[1200], path[2 * STORE_PATH];
    qr_facts_book_config_t config = config_of(s);
    qr_facts_book_t *book;
    for (uint32_t half = 0; half < 2; half++) {
        if (qr_facts_book_open(&config, &book, message, sizeof message)) _exit(5);
        if (stand_state(book).log.newest + 1 != from) _exit(6);
        for (uint64_t end = from + TXS / 2; from < end; from++) {
            const qr_append_t body = stand_append_body(s, &each[from], from);
            if (qr_facts_book_append(book, &body, from)) _exit(7);
            if (write(words_to, &from, sizeof from) != sizeof from) _exit(8);
            if (from % 3 && qr_facts_book_catch_up(book, UINT32_MAX)) _exit(9);
            if (qr_facts_book_maintain(book)) _exit(10);
        }
        qr_facts_book_close(&book);
        if (half) break;
        (void)snprintf(path, sizeof path, "%s/facts/view/CURRENT", s->folder);
        (void)unlink(path);
    }
    _exit(0);
}

/* One life, killed at the `count`-th passage of a point; false: it ended by itself. *acknowledged: the last transaction it was told of. */
static bool live(const stand_t *s, const columns_t *each, qr_store_point_t point, uint32_t count, uint64_t from, uint64_t *acknowledged)
{
    int words[2], status;
    char number[4][24];
    (void)each;
    assert_int_equal(pipe(words), 0);
    (void)snprintf(number[0], 24, "%u", point);
    (void)snprintf(number[1], 24, "%u", count);
    (void)snprintf(number[2], 24, "%llu", (unsigned long long)from);
    (void)snprintf(number[3], 24, "%d", words[1]);
    pid_t child = fork();
    if (child == 0) { /* the program anew: LevelDB's thread does not live on in a fork */
        (void)close(words[0]);
        (void)execl("/proc/self/exe", "facts_kill_test", "life", s->folder, number[0], number[1], number[2], number[3], (char *)NULL);
        _exit(127);
    }
    (void)close(words[1]);
    uint64_t tx;
    while (read(words[0], &tx, sizeof tx) == (ssize_t)sizeof tx) *acknowledged = tx;
    (void)close(words[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    seen.lives++;
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static uint32_t work_files(const char *folder)
{
    char path[2 * STORE_PATH];
    uint32_t count = 0;
    (void)snprintf(path, sizeof path, "%s/log", folder);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) count += strncmp(entry->d_name, "work-", 5) == 0;
    if (dir) (void)closedir(dir);
    return count;
}

/* What is there after a life. Returns the next transaction. */
static uint64_t judge(const stand_t *s, const columns_t *each, uint64_t acknowledged)
{
    char message[1200];
    qr_facts_book_config_t config = config_of(s);
    qr_facts_book_t *book;
    if (qr_facts_book_open(&config, &book, message, sizeof message)) fail_msg("%s", message);
    uint64_t newest = stand_state(book).log.newest;
    assert_true(newest == acknowledged || newest == acknowledged + 1);
    seen.acknowledged += newest == acknowledged;
    seen.unacknowledged += newest != acknowledged;
    assert_int_equal(stand_state(book).log.log_id == 900, 1); /* nothing was lost */
    assert_true(stand_equal(s, book, 0, newest));
    assert_int_equal(qr_facts_book_verify(book), 0);
    assert_int_equal(work_files(s->folder), 0);
    assert_int_equal(store_count(s->folder, "log/quarantine"), 0);
    if (newest) { /* what was in doubt is asked again and answered the same; another writer's is not */
        qr_append_t body = stand_append_body(s, &each[newest], newest);
        if (newest >= stand_state(book).log.oldest) assert_int_equal(qr_facts_book_append(book, &body, 1), 0);
        assert_int_equal(stand_state(book).log.newest, newest);
    }
    if (newest) { /* from the log alone they are the same */
        qr_facts_state_t before = stand_state(book).facts;
        qr_facts_book_close(&book);
        config.rebuild = true;
        if (qr_facts_book_open(&config, &book, message, sizeof message)) fail_msg("%s", message);
        qr_facts_state_t after = stand_state(book).facts;
        assert_int_equal(before.tx, after.tx);
        assert_int_equal(before.sum, after.sum);
        assert_int_equal(before.fact_count, after.fact_count);
    }
    qr_facts_book_close(&book);
    return newest + 1;
}

static bool ours(const char *name)
{
    return strncmp(name, "log_", 4) == 0 || strncmp(name, "snapshot_", 9) == 0 || strncmp(name, "cut_", 4) == 0 ||
           strncmp(name, "facts_", 6) == 0;
}

static void test_CK_07_killed_between_every_two_calls(void **unused)
{
    (void)unused;
    for (uint32_t point = 0; point < QR_STORE_POINTS; point++) {
        if (!ours(qr_store_point_name((qr_store_point_t)point)) ||
            strcmp(qr_store_point_name((qr_store_point_t)point), "log_quarantine") == 0)
            continue;
        uint32_t before = seen.kills;
        for (uint32_t count = 1, step = 1; count <= 400 && step <= rounds; count += rounds > 4 ? 1 + count / 6 : 5 * step, step++) {
            stand_t *s = stand_new(1000 + point);
            columns_t *each = calloc(DRAWN + 1, sizeof *each);
            draw_all(s, each);
            uint64_t acknowledged = 0;
            bool killed = live(s, each, (qr_store_point_t)point, count, 1, &acknowledged);
            seen.kills += killed;
            uint64_t next = judge(s, each, acknowledged);
            acknowledged = next - 1;
            if (killed && live(s, each, (qr_store_point_t)point, count, next, &acknowledged)) seen.kills++; /* and the one after it too */
            (void)judge(s, each, acknowledged);
            free(each);
            stand_destroy(s);
            if (!killed) break;
        }
        if (seen.kills == before) fail_msg("no life came to %s", qr_store_point_name((qr_store_point_t)point));
        seen.points++;
    }
    print_message("%u kills at %u points; what was in flight was there %u times and not %u times\n", seen.kills, seen.points,
                  seen.unacknowledged, seen.acknowledged);
    assert_true(seen.kills >= (rounds > 4 ? 200 : 30));
    assert_true(seen.unacknowledged > 2 && seen.acknowledged > 10);
}

/* life FOLDER POINT COUNT FROM DESCRIPTOR */
static int life_main(char **word)
{
    qr_store_point_t point = (qr_store_point_t)atoi(word[3]);
    stand_t *s = stand_new(1000 + (uint64_t)point);
    columns_t *each = calloc(DRAWN + 1, sizeof *each);
    store_remove(s->folder);
    (void)snprintf(s->folder, sizeof s->folder, "%s", word[2]);
    draw_all(s, each);
    qr_store_fail_arm(point, (uint32_t)atoi(word[4]), QR_STORE_FAIL_KILL, false);
    child_life(s, each, atoi(word[6]), strtoull(word[5], NULL, 10));
    return 1;
}

int main(int count, char **word)
{
    if (count == 7 && strcmp(word[1], "life") == 0) return life_main(word);
    if (count > 1) rounds = (uint32_t)atoi(word[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_CK_07_killed_between_every_two_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
