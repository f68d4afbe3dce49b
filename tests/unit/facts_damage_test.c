/* link: qr_io_facts_book qr_store_faults qr_actor_catalog_batch qr_messages qr_schema qr_base */
/* facts_damage_test.c - damage to every kind of file that the catalog lies in, one at a time and on a copy each: the facts are the same
 * before and after, or the book does not open and says which file and what to do. */
#include "tests/unit/facts_stand.h"

#include <leveldb/c.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TXS = 200, FILES_MAX = 64 };

static stand_t *stand;         /* whose store lies in stand->folder, closed cleanly */
static qr_facts_state_t sound; /* what its facts sum up to */

static void copy_file(const char *from, const char *to)
{
    char bytes[65536];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n;
    if (in < 0 || out < 0) abort();
    while ((n = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)n) != n) abort();
    (void)close(in);
    (void)close(out);
}

static void copy_folder(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    if (!dir) abort();
    (void)mkdir(to, 0700);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char a[4 * STORE_PATH], b[4 * STORE_PATH];
        struct stat status;
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(a, sizeof a, "%.400s/%.200s", from, entry->d_name);
        (void)snprintf(b, sizeof b, "%.400s/%.200s", to, entry->d_name);
        if (lstat(a, &status)) abort();
        if (S_ISDIR(status.st_mode))
            copy_folder(a, b);
        else
            copy_file(a, b);
    }
    (void)closedir(dir);
}

static void remove_folder(const char *path) { store_remove(path); }

/* A copy of the store in `copy`. */
static void fresh_copy(char copy[STORE_PATH])
{
    store_folder(copy);
    copy_folder(stand->folder, copy);
}

typedef struct names {
    uint32_t count;
    char paths[FILES_MAX][STORE_PATH];
} names_t;

/* Files of COPY/INNER whose name has `part`, longest first where `longest`. */
static void find(const char *copy, const char *inner, const char *part, names_t *names)
{
    char folder[2 * STORE_PATH];
    (void)snprintf(folder, sizeof folder, "%s/%s", copy, inner);
    DIR *dir = opendir(folder);
    names->count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strstr(entry->d_name, part) && names->count < FILES_MAX)
            (void)snprintf(names->paths[names->count++], STORE_PATH, "%.150s/%.90s", folder, entry->d_name);
    if (dir) (void)closedir(dir);
}

static int open_copy(const char *copy, qr_facts_book_t **book, char message[1200])
{
    qr_facts_book_config_t config = stand_config(stand);
    config.store = copy;
    return qr_facts_book_open(&config, book, message, 1200);
}

/* The copy opens, its facts are the sound ones, and it goes on. rebuilt: whether that took a rebuild, -1: either. Returns whether it did.
 */
static bool expect_same(const char *copy, int rebuilt)
{
    char message[1200] = "";
    qr_facts_book_t *book = NULL;
    if (open_copy(copy, &book, message)) fail_msg("%s", message);
    qr_facts_book_state_t state = stand_state(book);
    assert_int_equal(state.facts.tx, sound.tx);
    assert_int_equal(state.facts.fact_count, sound.fact_count);
    assert_int_equal(state.facts.sum, sound.sum);
    if (rebuilt >= 0) assert_int_equal(state.rebuilt > 0, rebuilt);
    bool made_again = state.rebuilt > 0;
    if (state.rebuilt) { /* said in a line each, and the damaged one is kept */
        assert_non_null(strstr(qr_facts_book_report(book), "made again from the log"));
        assert_true(store_count(copy, "facts/damaged-1") > 0);
    }
    assert_true(stand_equal(stand, book, 0, stand->txs));
    assert_int_equal(qr_facts_book_verify(book), 0);
    qr_facts_book_close(&book);
    if (open_copy(copy, &book, message)) fail_msg("%s", message);
    assert_int_equal(stand_state(book).rebuilt, 0); /* healed for good */
    qr_facts_book_close(&book);
    remove_folder(copy);
    return made_again;
}

static int setup(void **unused)
{
    (void)unused;
    stand = stand_new(77);
    qr_facts_book_t *book = stand_open(stand);
    while (stand->txs < TXS) {
        if (stand_step(stand, book)) return -1;
        if (qr_facts_book_catch_up(book, UINT32_MAX)) return -1;
        if (stand->txs == 120 && qr_facts_book_snapshot(book)) return -1;
        if (stand->txs % 60 == 0) { /* several tables, several starts */
            qr_facts_book_close(&book);
            book = stand_open(stand);
        }
    }
    sound = stand_state(book).facts;
    qr_facts_book_close(&book);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    return 0;
}

static void test_CT_01_manifest_cut_at_its_end(void **unused)
{
    (void)unused;
    static const uint64_t cuts[] = {1, 7, 32, 100000};
    for (size_t k = 0; k < QR_COUNT(cuts); k++)
        for (int with_log = 0; with_log < 2; with_log++) {
            char copy[STORE_PATH];
            names_t names;
            fresh_copy(copy);
            find(copy, "facts/view", "MANIFEST", &names);
            assert_int_equal(names.count, 1);
            uint64_t bytes = store_bytes(names.paths[0]);
            store_truncate(names.paths[0], bytes > cuts[k] ? bytes - cuts[k] : 0);
            find(copy, "facts/view", ".log", &names);
            assert_true(names.count > 0);
            if (with_log && store_bytes(names.paths[0]) > 5) store_truncate(names.paths[0], store_bytes(names.paths[0]) - 5);
            (void)expect_same(copy, -1);
        }
}

/* The log of LevelDB cut or damaged: what it lost is applied again, or all of it is made again. */
static void test_CT_01_the_write_ahead_log_cut(void **unused)
{
    (void)unused;
    for (uint32_t kind = 0; kind < 5; kind++) {
        char copy[STORE_PATH];
        names_t names;
        fresh_copy(copy);
        find(copy, "facts/view", ".log", &names);
        for (uint32_t i = 0; i < names.count; i++) {
            uint64_t bytes = store_bytes(names.paths[i]);
            if (kind == 0 && bytes > 5) store_truncate(names.paths[i], bytes - 5);
            if (kind == 1) store_truncate(names.paths[i], 0);
            if (kind == 2 && bytes > 20) store_flip(names.paths[i], bytes / 2, 1);
            if (kind == 3) assert_int_equal(unlink(names.paths[i]), 0);
            if (kind == 4) store_truncate(names.paths[i], bytes / 2);
        }
        (void)expect_same(copy, -1);
    }
}

static void test_CT_03_every_table_damaged_in_turn(void **unused)
{
    (void)unused;
    static const uint32_t kinds[] = {2, 0, 1, 3, 4};
    char live[FILES_MAX][STORE_PATH]; /* names; a table that a compaction has left behind is nobody's: it may be anything */
    uint32_t live_count = 0;
    for (uint32_t k = 0; k < QR_COUNT(kinds); k++)
        for (uint32_t i = 0;; i++) {
            char copy[STORE_PATH], name[STORE_PATH];
            names_t names;
            fresh_copy(copy);
            find(copy, "facts/view", ".ldb", &names);
            if (i >= names.count) {
                remove_folder(copy);
                break;
            }
            uint64_t bytes = store_bytes(names.paths[i]);
            bool lives = false;
            (void)snprintf(name, sizeof name, "%s", strrchr(names.paths[i], '/'));
            for (uint32_t l = 0; l < live_count; l++) lives = lives || strcmp(live[l], name) == 0;
            if (kinds[k] == 0) store_truncate(names.paths[i], 0);
            if (kinds[k] == 1) store_flip(names.paths[i], bytes / 2, 16);
            if (kinds[k] == 2) assert_int_equal(unlink(names.paths[i]), 0);
            if (kinds[k] == 3) store_truncate(names.paths[i], bytes / 2);
            if (kinds[k] == 4) store_flip(names.paths[i], 3, 1);
            bool made_again = expect_same(copy, kinds[k] == 2 ? -1 : lives);
            if (kinds[k] == 2 && made_again) memcpy(live[live_count++], name, sizeof name);
        }
    assert_true(live_count >= 1);
}

/* One fact gone without a trace, as a disk that lies may leave it: every table is sound, only the count and the sum know. */
static void test_a_fact_that_is_gone_is_missed(void **unused)
{
    (void)unused;
    char copy[STORE_PATH], view[2 * STORE_PATH], *error = NULL;
    fresh_copy(copy);
    (void)snprintf(view, sizeof view, "%s/facts/view", copy);
    leveldb_options_t *options = leveldb_options_create();
    leveldb_t *db = leveldb_open(options, view, &error);
    assert_null(error);
    leveldb_readoptions_t *reading = leveldb_readoptions_create();
    leveldb_writeoptions_t *writing = leveldb_writeoptions_create();
    leveldb_iterator_t *it = leveldb_create_iterator(db, reading);
    uint32_t count = 0, at = 0;
    size_t bytes = 0;
    for (leveldb_iter_seek_to_first(it); leveldb_iter_valid(it); leveldb_iter_next(it)) count++;
    assert_true(count > 10);
    for (leveldb_iter_seek_to_first(it); at < count / 2; at++) leveldb_iter_next(it);
    const char *key = leveldb_iter_key(it, &bytes);
    leveldb_delete(db, writing, key, bytes, &error);
    assert_null(error);
    leveldb_iter_destroy(it);
    leveldb_readoptions_destroy(reading);
    leveldb_writeoptions_destroy(writing);
    leveldb_close(db);
    leveldb_options_destroy(options);
    (void)expect_same(copy, 1);
}

static void test_every_other_file_of_the_facts(void **unused)
{
    (void)unused;
    static const char *const parts[] = {"CURRENT", "MANIFEST"};
    for (size_t p = 0; p < QR_COUNT(parts); p++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            char copy[STORE_PATH];
            names_t names;
            fresh_copy(copy);
            find(copy, "facts/view", parts[p], &names);
            assert_int_equal(names.count, 1);
            uint64_t bytes = store_bytes(names.paths[0]);
            if (kind == 0) store_truncate(names.paths[0], 0);
            if (kind == 1) store_flip(names.paths[0], bytes / 2, 1);
            if (kind == 2) assert_int_equal(unlink(names.paths[0]), 0);
            if (kind == 3) store_truncate(names.paths[0], bytes / 2);
            (void)expect_same(copy, 1);
        }
}

/* Damage while it is open: the next question is answered right or not at all, and then again right. */
static void test_CT_03_damage_under_an_open_store(void **unused)
{
    (void)unused;
    char copy[STORE_PATH], message[1200];
    names_t names;
    fresh_copy(copy);
    qr_facts_book_t *book = NULL;
    assert_int_equal(open_copy(copy, &book, message), 0);
    find(copy, "facts/view", ".ldb", &names);
    assert_true(names.count > 0);
    for (uint32_t i = 0; i < names.count; i++)
        for (uint64_t at = 0; at + 600 < store_bytes(names.paths[i]); at += 500) store_flip(names.paths[i], at, 2);
    static qr_fact_item_t right[QR_FACTS_KINDS][STAND_ITEMS];
    qr_facts_book_t *intact = stand_open(stand);
    for (uint32_t kind = QR_FACTS_NODES; kind < QR_FACTS_KINDS; kind++) {
        const qr_facts_filter_t filter = {.kind = kind};
        (void)stand_items(intact, 0, &filter, STAND_ITEMS - 1, right[kind], STAND_ITEMS);
    }
    qr_facts_book_close(&intact);
    for (uint32_t turn = 0; turn < 3; turn++) {
        for (uint32_t kind = QR_FACTS_NODES; kind < QR_FACTS_KINDS; kind++) {
            static qr_fact_item_t items[STAND_ITEMS];
            const qr_facts_filter_t filter = {.kind = kind};
            qr_facts_cursor_t cursor = {.bytes = 0};
            uint32_t count;
            uint64_t tx;
            uint32_t reason = qr_facts_book_query(book, 0, &filter, &cursor, items, STAND_ITEMS, &count, &tx);
            assert_true(reason == 0 || reason == QR_E_BUSY);
            if (reason == 0) assert_memory_equal(items, right[kind], count * sizeof items[0]); /* never a wrong one */
        }
        assert_int_equal(qr_facts_book_catch_up(book, UINT32_MAX), 0);
    }
    assert_true(stand_equal(stand, book, 0, stand->txs));
    qr_facts_book_close(&book);
    (void)expect_same(copy, -1);
}

/* In a process of its own: pages of a listing and of a snapshot are read, and then it is closed. Its exit status. */
static int close_between_pages(const char *folder, uint32_t round)
{
    char message[1200];
    qr_facts_book_t *book = NULL;
    qr_fact_item_t items[3];
    const qr_facts_filter_t filter = {.kind = QR_FACTS_REPLICAS};
    const qr_facts_book_config_t config = {.store = folder, .history_bytes = 1 << 30};
    qr_facts_cursor_t cursor = {.bytes = 0};
    uint32_t count;
    uint64_t tx;
    qr_log_batch_t batch;
    const qr_log_read_t question = {.from_tx = 100000};
    if (qr_facts_book_open(&config, &book, message, sizeof message)) return 3;
    for (uint32_t i = 0; i <= round % 5; i++)
        if (qr_facts_book_query(book, round % 2 ? 150 : 0, &filter, &cursor, items, 3, &count, &tx) || cursor.bytes == 0) return 4;
    if (qr_facts_book_read(book, &question, &batch)) return 5; /* and a snapshot is being read */
    qr_facts_book_close(&book);
    return 0;
}

/* Closing in the middle of a listing: nothing of LevelDB is left open by it, or an assertion would end the process. The program is started
 * anew for it: LevelDB's thread does not live on in a fork. */
static void test_CT_05_closing_between_pages(void **unused)
{
    (void)unused;
    for (uint32_t round = 0; round < 20; round++) {
        char copy[STORE_PATH], number[16];
        fresh_copy(copy);
        (void)snprintf(number, sizeof number, "%u", round);
        pid_t child = fork();
        if (child == 0) {
            (void)execl("/proc/self/exe", "facts_damage_test", copy, number, (char *)NULL);
            _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        (void)expect_same(copy, 0);
    }
}

/* The facts are gone altogether, or are those of an older day: nothing is forgotten, no transaction is taken twice. */
static void test_CT_07_facts_that_begin_empty(void **unused)
{
    (void)unused;
    for (uint32_t kind = 0; kind < 3; kind++) {
        char copy[STORE_PATH], path[2 * STORE_PATH], message[1200];
        fresh_copy(copy);
        (void)snprintf(path, sizeof path, "%s/facts%s", copy, kind ? "/view" : "");
        remove_folder(path);
        if (kind == 2) { /* another, younger view */
            stand_t *young = stand_new(77);
            qr_facts_book_t *book = stand_open(young);
            while (young->txs < 30) assert_int_equal(stand_step(young, book), 0);
            assert_int_equal(qr_facts_book_catch_up(book, UINT32_MAX), 0);
            qr_facts_book_close(&book);
            char from[2 * STORE_PATH];
            (void)snprintf(from, sizeof from, "%s/facts/view", young->folder);
            copy_folder(from, path);
            stand_destroy(young);
        }
        qr_facts_book_t *book = NULL;
        assert_int_equal(open_copy(copy, &book, message), 0);
        assert_int_equal(stand_state(book).log.newest, TXS);
        assert_true(stand_equal(stand, book, 0, TXS));
        qr_facts_book_close(&book);
        remove_folder(copy);
    }
}

/* The log is gone but the facts are there: they are not thrown away, and the next transaction has the next number. */
static void test_CT_07_a_log_that_begins_empty(void **unused)
{
    (void)unused;
    for (uint32_t kind = 0; kind < 2; kind++) {
        char copy[STORE_PATH], path[2 * STORE_PATH], message[1200];
        names_t names;
        fresh_copy(copy);
        if (kind == 0) {
            (void)snprintf(path, sizeof path, "%s/log", copy);
            remove_folder(path);
        } else { /* only its newest records are gone */
            for (uint64_t tx = TXS - 3; tx <= TXS; tx++) {
                (void)snprintf(path, sizeof path, "%s/log/%020llu.record", copy, (unsigned long long)tx);
                assert_int_equal(unlink(path), 0);
            }
        }
        (void)names;
        qr_facts_book_t *book = NULL;
        assert_int_equal(open_copy(copy, &book, message), 0);
        assert_int_equal(stand_state(book).log.newest, TXS);
        assert_non_null(strstr(qr_facts_book_report(book), "takes their place"));
        assert_true(stand_equal(stand, book, 0, TXS));
        assert_int_equal(qr_facts_book_verify(book), 0);
        qr_facts_book_close(&book);
        (void)expect_same(copy, 0);
    }
}

/* A record that the facts hold: history is lost, facts are not; whoever reads the log is given a snapshot. */
static void test_CT_01_a_damaged_record_that_the_facts_hold(void **unused)
{
    (void)unused;
    for (uint64_t tx = 50; tx <= TXS; tx += 75) {
        char copy[STORE_PATH], path[2 * STORE_PATH], message[1200];
        fresh_copy(copy);
        (void)snprintf(path, sizeof path, "%s/log/%020llu.record", copy, (unsigned long long)tx);
        store_flip(path, store_bytes(path) - 1, 1);
        qr_facts_book_t *book = NULL;
        assert_int_equal(open_copy(copy, &book, message), 0);
        assert_int_equal(qr_facts_book_verify(book), 1);
        assert_non_null(strstr(qr_facts_book_report(book), "damaged"));
        const qr_log_read_t question = {.from_tx = tx};
        qr_log_batch_t batch;
        assert_int_equal(qr_facts_book_read(book, &question, &batch), 0);
        assert_int_equal(batch.snapshot_tx, TXS);
        assert_non_null(strstr(qr_facts_book_report(book), "takes the place of all records"));
        assert_int_equal(qr_facts_book_verify(book), 0);
        assert_int_equal(store_count(copy, "log/quarantine"), 1);
        qr_facts_book_close(&book);
        (void)expect_same(copy, 0);
    }
}

/* A record that nothing else holds. The newest: it is set aside, said, and the log has another identity, so nobody keeps a transaction of
 * its number. One before others: the store does not open, and the words say what to do; rebuild with accept_loss goes on. */
static void test_CT_01_a_damaged_record_that_nothing_holds(void **unused)
{
    (void)unused;
    for (uint64_t tx = 150; tx <= TXS; tx += 50) {
        char copy[STORE_PATH], path[2 * STORE_PATH], message[1200];
        fresh_copy(copy);
        (void)snprintf(path, sizeof path, "%s/facts/view", copy);
        remove_folder(path); /* the facts have to be made of the log: snapshot 120 and what follows */
        (void)snprintf(path, sizeof path, "%s/log/%020llu.record", copy, (unsigned long long)tx);
        store_truncate(path, store_bytes(path) - 5);
        qr_facts_book_t *book = NULL;
        int code = open_copy(copy, &book, message);
        if (tx < TXS) {
            assert_int_equal(code, -QR_E_FORMAT);
            assert_non_null(strstr(message, "record 150"));
            assert_non_null(strstr(message, copy));
            assert_non_null(strstr(message, "--accept-loss"));
            assert_int_equal(store_count(copy, "log/quarantine"), 0); /* nothing was touched */
            qr_facts_book_config_t config = stand_config(stand);
            config.store = copy;
            config.accept_loss = true;
            assert_int_equal(qr_facts_book_open(&config, &book, message, sizeof message), 0);
            assert_int_equal(stand_state(book).facts.tx, TXS);
        } else {
            assert_int_equal(code, 0);
            assert_true(stand_equal(stand, book, 0, TXS - 1));
            assert_int_equal(stand_state(book).log.newest, TXS - 1);
        }
        assert_true(stand_state(book).log.log_id != 900);
        assert_non_null(strstr(qr_facts_book_report(book), "new identity"));
        assert_int_equal(store_count(copy, "log/quarantine"), 1);
        assert_int_equal(qr_facts_book_verify(book), 0);
        qr_facts_book_close(&book);
        assert_int_equal(open_copy(copy, &book, message), 0);
        assert_int_equal(qr_facts_book_verify(book), 0);
        qr_facts_book_close(&book);
        remove_folder(copy);
    }
}

/* A snapshot that is damaged is set aside; what is older stands in, or nothing does and that is said. */
static void test_a_damaged_snapshot(void **unused)
{
    (void)unused;
    for (uint32_t kind = 0; kind < 4; kind++) {
        char copy[STORE_PATH], path[2 * STORE_PATH];
        fresh_copy(copy);
        (void)snprintf(path, sizeof path, "%s/log/%020u.snapshot", copy, 120);
        uint64_t bytes = store_bytes(path);
        assert_true(bytes > 100);
        if (kind == 0) store_flip(path, bytes / 2, 1);
        if (kind == 1) store_truncate(path, bytes - 1);
        if (kind == 2) store_truncate(path, 0);
        if (kind == 3) store_flip(path, bytes - 12, 1);
        (void)snprintf(path, sizeof path, "%s/facts/view", copy);
        remove_folder(path);
        (void)expect_same(copy, -1); /* from the records */
    }
}

/* No room for the facts while they are made again: the log and its snapshots are not to blame, and all is there when room is. */
static void test_no_room_is_no_damage(void **unused)
{
    (void)unused;
    char copy[STORE_PATH], path[2 * STORE_PATH], message[1200] = "";
    struct rlimit most, little;
    qr_facts_book_t *book = NULL;
    fresh_copy(copy);
    assert_int_equal(open_copy(copy, &book, message), 0);
    assert_int_equal(qr_facts_book_renew(book), 0); /* nothing but a snapshot */
    qr_facts_book_close(&book);
    (void)snprintf(path, sizeof path, "%s/facts/view", copy);
    remove_folder(path);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &most), 0);
    little = (struct rlimit){.rlim_cur = 4096, .rlim_max = most.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    int code = open_copy(copy, &book, message);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &most), 0);
    assert_int_equal(code, -QR_E_IO);
    assert_int_equal(store_count(copy, "log/quarantine"), 0);
    (void)expect_same(copy, -1);
}

/* A disk without room under an open book: making the facts again ends, and goes on when there is room. */
static void test_room_that_comes_back(void **unused)
{
    (void)unused;
    stand_t *s = stand_new(78);
    qr_facts_book_t *book = stand_open(s);
    struct rlimit most, little;
    while (s->txs < 60) assert_int_equal(stand_step(s, book), 0);
    assert_int_equal(qr_facts_book_catch_up(book, UINT32_MAX), 0);
    for (uint32_t k = 0; k < 10; k++) assert_int_equal(stand_step(s, book), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &most), 0);
    little = (struct rlimit){.rlim_cur = 4096, .rlim_max = most.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    int code = 0;
    for (uint32_t k = 0; k < 1000 && code >= 0; k++) code = qr_facts_book_catch_up(book, 16);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &most), 0);
    assert_true(code < 0);
    assert_int_equal(store_count(s->folder, "facts/damaged-2"), 0); /* one is kept, not each that failed */
    qr_facts_book_mend(book);
    assert_int_equal(qr_facts_book_catch_up(book, UINT32_MAX), 0);
    assert_true(stand_equal(s, book, 0, s->txs));
    qr_facts_book_close(&book);
    stand_destroy(s);
}

int main(int words, char **word)
{
    if (words == 3) return close_between_pages(word[1], (uint32_t)atoi(word[2]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_CT_01_manifest_cut_at_its_end),
                                       cmocka_unit_test(test_CT_01_the_write_ahead_log_cut),
                                       cmocka_unit_test(test_CT_03_every_table_damaged_in_turn),
                                       cmocka_unit_test(test_a_fact_that_is_gone_is_missed),
                                       cmocka_unit_test(test_every_other_file_of_the_facts),
                                       cmocka_unit_test(test_CT_03_damage_under_an_open_store),
                                       cmocka_unit_test(test_CT_05_closing_between_pages),
                                       cmocka_unit_test(test_CT_07_facts_that_begin_empty),
                                       cmocka_unit_test(test_CT_07_a_log_that_begins_empty),
                                       cmocka_unit_test(test_CT_01_a_damaged_record_that_the_facts_hold),
                                       cmocka_unit_test(test_CT_01_a_damaged_record_that_nothing_holds),
                                       cmocka_unit_test(test_a_damaged_snapshot),
                                       cmocka_unit_test(test_no_room_is_no_damage),
                                       cmocka_unit_test(test_room_that_comes_back)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
