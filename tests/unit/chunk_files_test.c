/* link: qr_store */
/* chunk_files_test.c - a store's folder and its table: publishing, the byte bound over restarts, leases, leaving, tails, lock and epoch.
 * What the files alone can show of RS-03, RS-05, RS-07, CK-01, CK-03. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "store/crc32c.h"
#include "tests/unit/chunk_stand.h"

enum { SAMPLES = 14 };
static sample_t samples[SAMPLES]; /* all of one size */
static uint64_t sample_bytes;
static store_t store;

static int group_set_up(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < SAMPLES; i++) sample_make(&samples[i], 100 + i, 16, 4, 64);
    sample_bytes = qr_chunk_file_bytes(&samples[0].header);
    return 0;
}
static int group_tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < SAMPLES; i++) sample_free(&samples[i]);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    store_end(&store);
    return 0;
}
static qr_chunk_files_config_t cap(uint32_t chunks)
{
    qr_chunk_files_config_t config = roomy;
    config.bytes_max = chunks * sample_bytes;
    return config;
}
static void assert_disk_is_counted(void)
{
    uint32_t files;
    qr_chunk_files_stats_t stats = stats_of(&store);
    assert_int_equal(store_disk(&store, &files), stats.bytes);
    assert_int_equal(files, stats.chunks + stats.tails);
}
static qr_chunk_reason_t restored(const qr_chunk_name_t *name, const sample_t *sample, int *ret_status)
{
    char below[QR_CHUNK_PATH_BYTES];
    qr_chunk_reason_t reason;
    bool wrong;
    qr_chunk_name_path(name, below);
    *ret_status = restore(store.folder.fd, below, sample, &reason, &wrong);
    assert_false(wrong);
    return reason;
}

/* ---- publishing ------------------------------------------------------------------------------------------------------------------ */

static void test_publish_and_find(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t name, again;
    bool existed;
    char path[512];
    struct stat first, second;
    int status;
    assert_int_equal(publish(&store, &samples[0], NULL, 7, &name, &existed), 0);
    assert_false(existed);
    full_path(&store, &name, path);
    assert_int_equal(stat(path, &first), 0);
    assert_int_equal(first.st_mode & 0777, 0600);
    assert_int_equal(first.st_size, sample_bytes);
    assert_int_equal(stat(store.path, &second), 0);
    assert_int_equal(second.st_mode & 0777, 0700);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_INTACT);
    assert_int_equal(status, 0);
    assert_disk_is_counted();
    /* Publishing it again: one file, the same one. */
    assert_int_equal(publish(&store, &samples[0], NULL, 9, &again, &existed), 0);
    assert_true(existed);
    assert_memory_equal(&again, &name, sizeof name);
    assert_int_equal(stat(path, &second), 0);
    assert_int_equal(second.st_ino, first.st_ino);
    assert_int_equal(stats_of(&store).chunks, 1);
    assert_int_equal(stats_of(&store).published, 1);
    assert_disk_is_counted();
    /* Removed by hand and published again: a receipt means a file. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(publish(&store, &samples[0], NULL, 9, &again, &existed), 0);
    assert_false(existed);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_INTACT);
    assert_disk_is_counted();
    /* Even with its folders gone; the first write that notices may fail, the next must not. */
    char folder[300];
    (void)snprintf(folder, sizeof folder, "%s/chunks", store.path);
    remove_tree(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    store_close(&store);
    store_open(&store, &roomy);
    assert_int_equal(stats_of(&store).chunks, 0);
    assert_int_equal(publish(&store, &samples[0], NULL, 9, &again, &existed), 0);
    (void)snprintf(folder, sizeof folder, "%s/chunks/%02x", store.path, name.id[0]);
    remove_tree(folder);
    assert_int_equal(publish(&store, &samples[0], NULL, 9, &again, &existed), -QR_E_IO);
    assert_int_equal(publish(&store, &samples[0], NULL, 9, &again, &existed), 0);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_INTACT);
    assert_disk_is_counted();
}

static void test_content_id_asked_for(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t name, other;
    qr_chunk_writing_t *write;
    bool existed;
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, NULL), 0);
    for (int right = 0; right < 2; right++) {
        assert_int_equal(qr_chunk_files_write(store.files, &samples[1].header, samples[1].tokens, NULL, &write), 0);
        assert_int_equal(qr_chunk_write_put(write, samples[1].payload, samples[1].bytes), 0);
        uint8_t id[32];
        memcpy(id, name.id, 32);
        int status = qr_chunk_write_end(&write, id, 0, &other, &existed);
        assert_null(write);
        assert_int_equal(status, -QR_E_FORMAT);
        assert_disk_is_counted();
    }
    assert_int_equal(publish(&store, &samples[1], NULL, 0, &other, NULL), 0);
    assert_int_equal(stats_of(&store).failed, 2);
}

/* RS-03, the part of files: a write that fails leaves no entry, no final file and, after a restart, no temporary. */
static void check_full_disk(const qr_chunk_files_config_t *config)
{
    qr_chunk_name_t names[SAMPLES];
    uint32_t written = 0;
    int status = 0;
    while (written < SAMPLES) {
        status = publish(&store, &samples[written], NULL, 0, &names[written], NULL);
        if (status) break;
        written++;
    }
    assert_int_equal(status, -QR_E_NO_SPACE);
    assert_true(written < SAMPLES);
    assert_int_equal(stats_of(&store).chunks, written);
    assert_int_equal(stats_of(&store).failed, 1);
    assert_disk_is_counted();
    store_close(&store);
    store_open(&store, config);
    assert_int_equal(stats_of(&store).chunks, written);
    assert_disk_is_counted();
    for (uint32_t i = 0; i < written; i++) assert_int_equal(restored(&names[i], &samples[i], &status), QR_CHUNK_INTACT);
}

static void test_rs_03_failed_store_leaves_nothing(void **state)
{
    (void)state;
    /* A limit on a file's length stands for the full disk where nothing can be mounted. */
    store_new(&store, &roomy);
    qr_chunk_name_t name;
    struct rlimit before, low = {sample_bytes - 1, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low.rlim_max = before.rlim_max;
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, NULL), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    assert_int_equal(publish(&store, &samples[1], NULL, 0, &name, NULL), -QR_E_NO_SPACE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, old);
    assert_int_equal(stats_of(&store).chunks, 1);
    assert_disk_is_counted();
    assert_int_equal(publish(&store, &samples[1], NULL, 0, &name, NULL), 0);
    store_end(&store);
    /* A small disk. */
    store_new(&store, NULL);
    char options[64];
    (void)snprintf(options, sizeof options, "size=%llu", (unsigned long long)(6 * sample_bytes));
    if (mount("tmpfs", store.path, "tmpfs", 0, options) != 0) {
        print_message("no small disk: %s\n", strerror(errno));
        store_open(&store, &roomy);
        return;
    }
    store_open(&store, &roomy);
    check_full_disk(&roomy);
    store_close(&store);
    assert_int_equal(umount2(store.path, MNT_DETACH), 0);
}

/* ---- the bound over restarts ------------------------------------------------------------------------------------------------------- */

/* Runs `work` in a process that then dies by SIGKILL. */
static void killed_after(void (*work)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        work();
        (void)kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
static void eight(void)
{
    qr_chunk_files_config_t config = cap(10);
    qr_chunk_name_t name;
    if (store_try(&store, &config, NULL)) _exit(1);
    for (uint32_t i = 0; i < 8; i++)
        if (publish(&store, &samples[i], NULL, 50 + i, &name, NULL)) _exit(2);
}

/* Values as a catalog would give them back. */
static qr_chunk_adopt_t adopt_with_value(void *context, const qr_chunk_final_t *found, uint64_t *ret_value)
{
    (void)context;
    qr_chunk_reader_t *reader;
    qr_chunk_reason_t reason;
    if (qr_chunk_reader_open(store.folder.fd, found->path, NULL, NULL, &reader, &reason)) return QR_CHUNK_DELETE;
    for (uint32_t i = 0; i < SAMPLES; i++)
        if (memcmp(qr_chunk_reader_header(reader)->chain, samples[i].header.chain, 32) == 0) *ret_value = 50 + i;
    qr_chunk_reader_close(&reader);
    return QR_CHUNK_ADOPT;
}

static void test_ck_03_accounting_survives_kill(void **state)
{
    (void)state;
    store_new(&store, NULL);
    killed_after(eight);
    qr_chunk_files_config_t config = cap(10);
    qr_chunk_adoption_t adoption = {.adopt = adopt_with_value};
    assert_int_equal(store_try(&store, &config, &adoption), 0);
    assert_int_equal(stats_of(&store).chunks, 8);
    assert_int_equal(stats_of(&store).bytes, 8 * sample_bytes);
    for (uint32_t i = 8; i < 13; i++) {
        qr_chunk_name_t name, victims[4];
        qr_chunk_writing_t *write;
        uint32_t count, files;
        bool waits;
        int status = qr_chunk_files_write(store.files, &samples[i].header, samples[i].tokens, NULL, &write);
        assert_int_equal(status, i < 10 ? 0 : -QR_E_BUSY);
        if (status == 0) qr_chunk_write_cancel(&write);
        uint64_t shortfall = qr_chunk_files_shortfall(store.files, sample_bytes);
        assert_int_equal(shortfall, i < 10 ? 0 : sample_bytes);
        assert_int_equal(qr_chunk_files_victims(store.files, shortfall, victims, 4, &count), 0);
        assert_int_equal(count, i < 10 ? 0 : 1);
        for (uint32_t v = 0; v < count; v++) { /* the least value leaves, once the caller has withdrawn it */
            int read;
            assert_int_equal(restored(&victims[v], &samples[i - 10], &read), QR_CHUNK_INTACT);
            assert_int_equal(qr_chunk_files_drop(store.files, &victims[v], &waits), 0);
            assert_false(waits);
        }
        assert_int_equal(publish(&store, &samples[i], NULL, 50 + i, &name, NULL), 0);
        assert_true(store_disk(&store, &files) <= config.bytes_max && files <= 10);
        assert_disk_is_counted();
    }
    assert_int_equal(stats_of(&store).chunks, 10);
    assert_int_equal(stats_of(&store).evicted, 3);
}

static qr_chunk_name_t four[4];
static void publish_four(void)
{
    if (store_try(&store, &roomy, NULL)) _exit(1);
    for (uint32_t i = 0; i < 4; i++)
        if (publish(&store, &samples[i], NULL, 0, &four[i], NULL)) _exit(2);
}

/* CK-01, the part of files: after a kill the same files are found, by their names and by what they say, and nothing is written twice. */
static void test_ck_01_files_are_found_again(void **state)
{
    (void)state;
    store_new(&store, NULL);
    killed_after(publish_four);
    store_open(&store, &roomy);
    assert_int_equal(stats_of(&store).adopted, 4);
    struct stat before[4], after;
    char path[512];
    for (uint32_t i = 0; i < 4; i++) {
        qr_chunk_name_t name;
        uint64_t bytes, value;
        uint32_t found = 0;
        for (uint32_t place = 0; place < roomy.chunks_max; place++) {
            int status;
            if (!qr_chunk_files_at(store.files, place, &name, &bytes, &value)) continue;
            assert_int_equal(bytes, sample_bytes);
            (void)restored(&name, &samples[i], &status);
            if (status == 0) found++, four[i] = name;
        }
        assert_int_equal(found, 1);
        full_path(&store, &four[i], path);
        assert_int_equal(stat(path, &before[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        qr_chunk_name_t name;
        bool existed;
        assert_int_equal(publish(&store, &samples[i], NULL, 0, &name, &existed), 0);
        assert_true(existed);
        full_path(&store, &name, path);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(after.st_ino, before[i].st_ino);
        assert_memory_equal(&after.st_mtim, &before[i].st_mtim, sizeof after.st_mtim);
    }
    assert_int_equal(stats_of(&store).chunks, 4);
    assert_disk_is_counted();
}

/* What nobody adopts is reclaimed; what is too short to be a file of ours, or above the bound, is lost and said so. */
static uint32_t lost_count;
static qr_chunk_name_t lost_names[SAMPLES];
static qr_chunk_adopt_t adopt_but_first(void *context, const qr_chunk_final_t *found, uint64_t *ret_value)
{
    *ret_value = found->name.id[0];
    return memcmp(context, &found->name, sizeof found->name) != 0 ? QR_CHUNK_ADOPT : QR_CHUNK_DELETE;
}
static void lose(void *context, const qr_chunk_final_t *found)
{
    (void)context;
    assert_true(lost_count < SAMPLES);
    lost_names[lost_count++] = found->name;
}

static void test_start_adopts_or_deletes(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t names[6];
    char path[512];
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(publish(&store, &samples[i], NULL, 0, &names[i], NULL), 0);
    store_close(&store);
    full_path(&store, &names[5], path);
    assert_int_equal(truncate(path, 100), 0);
    (void)snprintf(path, sizeof path, "%s/tmp/17", store.path);
    file_write(path, samples[0].payload, 100);
    (void)snprintf(path, sizeof path, "%s/chunks/notes.txt", store.path); /* strangers stay */
    file_write(path, samples[0].payload, 10);
    (void)snprintf(path, sizeof path, "%s/chunks/AB", store.path);
    assert_int_equal(mkdir(path, 0700), 0);
    full_path(&store, &names[0], path);
    memcpy(path + strlen(path) - 4, "AAAA", 4);
    file_write(path, samples[0].payload, 10);
    full_path(&store, &names[0], path);
    memcpy(path + strlen(path) - 4, "0000", 4);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    lost_count = 0;
    qr_chunk_files_config_t config = cap(3); /* was lowered */
    qr_chunk_adoption_t adoption = {.context = &names[0], .adopt = adopt_but_first, .lost = lose};
    int status = store_try(&store, &config, &adoption);
    if (status) print_error("%s\n", store.message);
    assert_int_equal(status, 0);
    qr_chunk_files_stats_t stats = stats_of(&store);
    assert_int_equal(stats.swept, 1);
    assert_int_equal(stats.deleted, 1);
    assert_int_equal(stats.lost, 2); /* the short one, and one of four because three fit */
    assert_int_equal(stats.adopted, 3);
    assert_int_equal(stats.chunks, 3);
    assert_int_equal(stats.strangers, 4);
    assert_int_equal(lost_count, 2);
    uint8_t least = 255;
    for (uint32_t i = 1; i < 5; i++) least = names[i].id[0] < least ? names[i].id[0] : least;
    bool short_one = memcmp(&lost_names[0], &names[5], sizeof names[5]) == 0;
    assert_true(short_one || memcmp(&lost_names[1], &names[5], sizeof names[5]) == 0);
    assert_int_equal(lost_names[short_one ? 1 : 0].id[0], least);
    assert_int_equal(readlink(path, (char[8]){0}, 8), 8);
    /* A table that is too small loses files too, and never takes more. */
    store_close(&store);
    config = roomy, config.chunks_max = 2;
    adoption.adopt = NULL, lost_count = 0;
    assert_int_equal(store_try(&store, &config, &adoption), 0);
    assert_int_equal(stats_of(&store).chunks, 2);
    assert_int_equal(lost_count, 1);
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------------- */

/* RS-05: while a slow reader holds its lease the file stays, whatever eviction wants; every byte it reads is the old one. */
static void test_rs_05_leased_file_is_not_unlinked(void **state)
{
    (void)state;
    qr_chunk_files_config_t config = cap(2);
    store_new(&store, &config);
    qr_chunk_name_t names[3], victims[4], gone;
    uint64_t leases[2], lease;
    uint32_t count;
    bool waits, dropped;
    char path[512];
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(publish(&store, &samples[i], NULL, i, &names[i], NULL), 0);
        assert_int_equal(qr_chunk_files_lease(store.files, &names[i], 77, &leases[i]), 0);
    }
    /* Leased files are no victims: nothing can be proposed. */
    assert_int_equal(qr_chunk_files_victims(store.files, sample_bytes, victims, 4, &count), -QR_E_BUSY);
    assert_int_equal(stats_of(&store).proposed, 0);
    /* A withdrawn one waits for its reader, is leased to nobody new, and takes its room until it is gone. */
    qr_chunk_reader_t *reader;
    qr_chunk_reason_t reason;
    uint8_t *room = malloc(samples[0].bytes);
    full_path(&store, &names[0], path);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, &samples[0].header, samples[0].tokens, &reader, &reason), 0);
    assert_int_equal(qr_chunk_reader_read(reader, room, samples[0].bytes / 2), 0);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[0], &waits), 0);
    assert_true(waits);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &names[0], 78, &lease), -QR_E_NOT_FOUND);
    assert_int_equal(publish(&store, &samples[2], NULL, 0, &names[2], NULL), -QR_E_BUSY);
    assert_int_equal(qr_chunk_files_shortfall(store.files, sample_bytes), 0); /* its room is coming */
    assert_int_equal(qr_chunk_reader_read(reader, room + samples[0].bytes / 2, samples[0].bytes - samples[0].bytes / 2), 0);
    assert_int_equal(qr_chunk_reader_end(reader), 0);
    assert_memory_equal(room, samples[0].payload, samples[0].bytes);
    qr_chunk_reader_close(&reader);
    free(room);
    assert_int_equal(qr_chunk_files_release(store.files, leases[0], &dropped, &gone), 0);
    assert_true(dropped);
    assert_memory_equal(&gone, &names[0], sizeof gone);
    assert_int_equal(access(path, F_OK), -1);
    assert_disk_is_counted();
    assert_int_equal(publish(&store, &samples[2], NULL, 0, &names[2], NULL), 0);
    /* An old handle says so, also after its place was used again. */
    assert_int_equal(qr_chunk_files_release(store.files, leases[0], &dropped, &gone), -QR_E_STALE);
    assert_int_equal(qr_chunk_files_lease(store.files, &names[2], 79, &lease), 0);
    assert_int_equal(qr_handle_index(lease), qr_handle_index(leases[0]));
    assert_int_equal(qr_chunk_files_release(store.files, leases[0], &dropped, &gone), -QR_E_STALE);
    assert_int_equal(qr_chunk_files_release(store.files, UINT64_MAX, &dropped, &gone), -QR_E_STALE);
    assert_int_equal(stats_of(&store).leases, 2);
}

static void test_leases_are_bounded_and_end_with_their_holder(void **state)
{
    (void)state;
    qr_chunk_files_config_t config = roomy;
    config.leases_max = 3;
    store_new(&store, &config);
    qr_chunk_name_t name, gone;
    uint64_t lease;
    bool dropped, waits;
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, NULL), 0);
    for (uint64_t holder = 1; holder <= 3; holder++) assert_int_equal(qr_chunk_files_lease(store.files, &name, holder % 2, &lease), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &name, 9, &lease), -QR_E_BUSY);
    assert_int_equal(qr_chunk_files_drop(store.files, &name, &waits), 0);
    assert_true(waits);
    uint32_t ended = 0;
    while ((lease = qr_chunk_files_lease_of(store.files, 1)) != 0) {
        assert_int_equal(qr_chunk_files_release(store.files, lease, &dropped, &gone), 0);
        assert_false(dropped);
        ended++;
    }
    assert_int_equal(ended, 2);
    lease = qr_chunk_files_lease_of(store.files, 0);
    assert_int_not_equal(lease, 0);
    assert_int_equal(qr_chunk_files_release(store.files, lease, &dropped, &gone), 0);
    assert_true(dropped);
    assert_int_equal(stats_of(&store).chunks, 0);
    assert_disk_is_counted();
}

/* ---- leaving --------------------------------------------------------------------------------------------------------------------------
 */

static void test_victims_by_value(void **state)
{
    (void)state;
    qr_chunk_files_config_t config = cap(5);
    store_new(&store, &config);
    static const uint64_t values[5] = {30, UINT64_MAX, 10, 20, 10};
    qr_chunk_name_t names[5], victims[5];
    uint64_t lease;
    uint32_t count;
    bool waits;
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(publish(&store, &samples[i], NULL, values[i], &names[i], NULL), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &names[3], 1, &lease), 0);
    assert_int_equal(qr_chunk_files_shortfall(store.files, 6 * sample_bytes), UINT64_MAX);
    assert_int_equal(qr_chunk_files_shortfall(store.files, 5 * sample_bytes), 5 * sample_bytes);
    assert_int_equal(qr_chunk_files_victims(store.files, 4 * sample_bytes, victims, 5, &count), -QR_E_BUSY); /* one leased, one pinned */
    assert_int_equal(qr_chunk_files_victims(store.files, 3 * sample_bytes, victims, 2, &count), -QR_E_BUSY); /* no room for the answer */
    assert_int_equal(stats_of(&store).proposed, 0);
    assert_int_equal(qr_chunk_files_victims(store.files, 1, victims, 5, &count), 0);
    assert_int_equal(count, 1);
    assert_memory_equal(&victims[0], &names[2], sizeof names[2]);
    /* Its room counts as coming: the next question is for what is short beyond it; nothing is proposed twice. */
    assert_int_equal(qr_chunk_files_shortfall(store.files, sample_bytes), 0);
    assert_int_equal(qr_chunk_files_shortfall(store.files, sample_bytes + 1), 1);
    assert_int_equal(qr_chunk_files_victims(store.files, sample_bytes, victims, 5, &count), 0);
    assert_int_equal(count, 1);
    assert_memory_equal(&victims[0], &names[4], sizeof names[4]);
    assert_int_equal(stats_of(&store).proposed, 2);
    /* Taken back, and dropped. */
    assert_int_equal(qr_chunk_files_keep(store.files, &names[2]), 0);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[4], &waits), 0);
    assert_false(waits);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[4], &waits), -QR_E_NOT_FOUND);
    assert_int_equal(stats_of(&store).proposed, 0);
    assert_disk_is_counted();
    assert_int_equal(qr_chunk_files_value(store.files, &names[2], 40), 0);
    assert_int_equal(qr_chunk_files_value(store.files, &names[4], 40), -QR_E_NOT_FOUND);
    assert_int_equal(qr_chunk_files_victims(store.files, sample_bytes, victims, 5, &count), 0);
    assert_int_equal(count, 1);
    assert_memory_equal(&victims[0], &names[0], sizeof names[0]);
    /* A file that can never fit is refused as such; one without a place in the table is told to wait. */
    qr_chunk_writing_t *write;
    sample_t large;
    sample_make(&large, 1, 256, 60, 64);
    assert_int_equal(qr_chunk_files_write(store.files, &large.header, large.tokens, NULL, &write), -QR_E_LIMIT);
    sample_free(&large);
}

static void test_table_and_writes_are_bounded(void **state)
{
    (void)state;
    qr_chunk_files_config_t config = roomy;
    config.chunks_max = 3, config.writes_max = 2;
    store_new(&store, &config);
    qr_chunk_writing_t *writes[3];
    qr_chunk_name_t name, victims[2];
    uint32_t count, files;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(qr_chunk_files_write(store.files, &samples[i].header, samples[i].tokens, NULL, &writes[i]), 0);
    assert_int_equal(qr_chunk_files_write(store.files, &samples[2].header, samples[2].tokens, NULL, &writes[2]), -QR_E_BUSY);
    assert_int_equal(stats_of(&store).reserved, 2 * sample_bytes);
    qr_chunk_write_cancel(&writes[0]);
    assert_null(writes[0]);
    qr_chunk_write_cancel(&writes[0]);
    qr_chunk_write_cancel(&writes[1]);
    assert_int_equal(stats_of(&store).reserved, 0);
    assert_int_equal(store_disk(&store, &files), 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(publish(&store, &samples[i], NULL, i, &name, NULL), 0);
    assert_int_equal(publish(&store, &samples[3], NULL, 0, &name, NULL), -QR_E_BUSY);
    assert_int_equal(qr_chunk_files_shortfall(store.files, sample_bytes), 1); /* bytes would fit: it is a place that is short */
    assert_int_equal(qr_chunk_files_victims(store.files, 1, victims, 2, &count), 0);
    assert_int_equal(count, 1);
    /* A store that is closed in the middle of a write leaves no temporary. */
    bool waits;
    assert_int_equal(qr_chunk_files_drop(store.files, &victims[0], &waits), 0);
    assert_int_equal(qr_chunk_files_write(store.files, &samples[3].header, samples[3].tokens, NULL, &writes[0]), 0);
    store_close(&store);
    assert_int_equal(store_disk(&store, &files), 2 * sample_bytes);
}

/* RS-07, the part of files: what was evicted is leased to nobody; what somebody removed by hand is an error value at the first read, and
 * dropping it sets the account right. */
static void test_rs_07_removed_files_are_noticed(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t names[2];
    uint64_t lease;
    bool waits;
    char path[512];
    int status;
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(publish(&store, &samples[i], NULL, 0, &names[i], NULL), 0);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[0], &waits), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &names[0], 1, &lease), -QR_E_NOT_FOUND);
    full_path(&store, &names[1], path);
    assert_int_equal(unlink(path), 0);
    (void)restored(&names[1], &samples[1], &status);
    assert_int_equal(status, -QR_E_NOT_FOUND);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[1], &waits), 0);
    assert_int_equal(stats_of(&store).bytes, 0);
    assert_disk_is_counted();
}

/* Published again while it is withdrawn and still read: it stands again, and the release of the old lease takes nothing away. */
static void test_publish_over_a_withdrawn_file(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t name, again, gone;
    uint64_t lease;
    bool waits, dropped, existed;
    int status;
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, NULL), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &name, 1, &lease), 0);
    assert_int_equal(qr_chunk_files_drop(store.files, &name, &waits), 0);
    assert_true(waits);
    assert_int_equal(publish(&store, &samples[0], NULL, 5, &again, &existed), 0);
    assert_false(existed);
    assert_int_equal(stats_of(&store).withdrawn, 0);
    assert_int_equal(qr_chunk_files_release(store.files, lease, &dropped, &gone), 0);
    assert_false(dropped);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_INTACT);
    assert_disk_is_counted();
}

/* A damaged file is leased to nobody, is no victim, and is replaced when its content is published again. */
static void test_damaged_file_is_set_aside(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    qr_chunk_name_t name, victims[2];
    uint64_t lease;
    uint32_t count;
    bool existed;
    char path[512];
    int status;
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, NULL), 0);
    full_path(&store, &name, path);
    int file = open(path, O_WRONLY);
    assert_int_equal(pwrite(file, "damage", 6, 8192), 6);
    close(file);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_PAYLOAD);
    assert_int_equal(qr_chunk_files_damaged(store.files, &name), 0);
    assert_int_equal(qr_chunk_files_lease(store.files, &name, 1, &lease), -QR_E_NOT_FOUND);
    assert_int_equal(qr_chunk_files_victims(store.files, 1, victims, 2, &count), -QR_E_BUSY);
    assert_int_equal(publish(&store, &samples[0], NULL, 0, &name, &existed), 0);
    assert_false(existed);
    assert_int_equal(restored(&name, &samples[0], &status), QR_CHUNK_INTACT);
    assert_int_equal(qr_chunk_files_lease(store.files, &name, 1, &lease), 0);
    name.id[0] ^= 1;
    assert_int_equal(qr_chunk_files_damaged(store.files, &name), -QR_E_NOT_FOUND);
    assert_disk_is_counted();
}

/* ---- tails -----------------------------------------------------------------------------------------------------------------------------
 */

static void test_tails_belong_to_their_owner(void **state)
{
    (void)state;
    qr_chunk_files_config_t config = cap(3);
    store_new(&store, &config);
    static const uint8_t owners[2][16] = {{1, 2, 3}, {9}};
    static const uint8_t nobody[16];
    sample_t tail = samples[0];
    qr_chunk_name_t names[3], victims[3];
    qr_chunk_writing_t *write;
    uint32_t count;
    bool waits;
    int status;
    assert_int_equal(qr_chunk_files_write(store.files, &tail.header, tail.tokens, owners[0], &write),
                     -QR_E_INVALID); /* says it is a chunk */
    tail.header.tail = true;
    assert_int_equal(qr_chunk_files_write(store.files, &tail.header, tail.tokens, NULL, &write), -QR_E_INVALID);
    assert_int_equal(qr_chunk_files_write(store.files, &tail.header, tail.tokens, nobody, &write), -QR_E_INVALID);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(publish(&store, &tail, owners[i], 0, &names[i], NULL), 0);
    assert_int_equal(publish(&store, &samples[0], NULL, 5, &names[2], NULL), 0);
    assert_int_equal(stats_of(&store).tails, 2);
    assert_memory_equal(names[0].id, names[1].id, 32); /* one content, two owners, two files */
    assert_int_equal(qr_chunk_files_victims(store.files, sample_bytes + 1, victims, 3, &count), -QR_E_BUSY);
    assert_int_equal(restored(&names[1], &samples[0], &status), QR_CHUNK_KIND); /* never for a chunk */
    assert_int_equal(restored(&names[2], &tail, &status), QR_CHUNK_KIND);
    store_close(&store);
    store_open(&store, &config);
    assert_int_equal(stats_of(&store).tails, 2);
    assert_int_equal(stats_of(&store).strangers, 0);
    assert_int_equal(qr_chunk_files_drop(store.files, &names[0], &waits), 0);
    assert_int_equal(restored(&names[1], &tail, &status), QR_CHUNK_INTACT);
    assert_disk_is_counted();
}

/* ---- lock and epoch
 * ---------------------------------------------------------------------------------------------------------------------- */

static void test_one_process_at_a_time(void **state)
{
    (void)state;
    store_new(&store, NULL);
    int pipes[2];
    char word, message[512], want[64];
    qr_store_folder_t second;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        if (store_try(&store, &roomy, NULL)) _exit(1);
        (void)!write(pipes[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(pipes[0], &word, 1), 1);
    assert_int_equal(qr_store_folder_open(store.path, &second, message, sizeof message), -QR_E_IN_USE);
    (void)snprintf(want, sizeof want, "process %ld ", (long)child);
    assert_non_null(strstr(message, want));
    assert_non_null(strstr(message, store.path));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    store_open(&store, &roomy);                                                                         /* a dead holder holds nothing */
    assert_int_equal(qr_store_folder_open(store.path, &second, message, sizeof message), -QR_E_IN_USE); /* this process, twice */
    close(pipes[0]), close(pipes[1]);
}

static void test_folder_is_ours_alone(void **state)
{
    (void)state;
    store_new(&store, NULL);
    qr_store_folder_t folder;
    struct stat status;
    assert_int_equal(chmod(store.path, 0755), 0);
    store_open(&store, &roomy);
    assert_int_equal(stat(store.path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    assert_int_equal(qr_store_folder_open("", &folder, store.message, sizeof store.message), -QR_E_INVALID);
    assert_int_equal(qr_store_folder_open("/nowhere/at/all", &folder, store.message, sizeof store.message), -QR_E_NOT_FOUND);
    assert_non_null(strstr(store.message, "/nowhere/at/all"));
    assert_int_equal(qr_store_folder_open("/etc/passwd", &folder, store.message, sizeof store.message), -QR_E_NOT_FOUND);
    if (geteuid() == 0) { /* another user's */
        char path[300];
        (void)snprintf(path, sizeof path, "%s/other", store.path);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(qr_store_folder_open(path, &folder, store.message, sizeof store.message), -QR_E_PERMISSION);
    }
}

static void test_epochs_rise(void **state)
{
    (void)state;
    store_new(&store, &roomy);
    uint64_t epoch, before = 0;
    bool recovered;
    char path[300], old[64] = "";
    (void)snprintf(path, sizeof path, "%s/epoch", store.path);
    const uint64_t begin = (uint64_t)time(NULL);
    for (uint64_t i = 1; i <= 12; i++) {
        assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &recovered, store.message, sizeof store.message), 0);
        assert_true(epoch > before && epoch >= begin << 20 && epoch < (begin + 3600) << 20);
        before = epoch;
        assert_false(recovered);
        if (i % 5 == 0) store_close(&store), store_open(&store, &roomy);
    }
    /* A small number, as of a store that was not used for long while its node had none; and one that the clock is behind of. */
    static const uint64_t lasts[] = {7, 1ull << 60};
    for (size_t i = 0; i < QR_COUNT(lasts); i++) {
        char digits[32];
        int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)lasts[i]);
        int length = snprintf(old, sizeof old, "%s %08x\n", digits, qr_crc32c(0, digits, (size_t)count));
        file_write(path, (uint8_t *)old, (size_t)length);
        assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &recovered, store.message, sizeof store.message), 0);
        assert_false(recovered);
        assert_true(i == 0 ? epoch >= begin << 20 && epoch < (begin + 3600) << 20 : epoch == lasts[i] + 1);
    }
    size_t bytes;
    uint8_t *file = file_read(path, &bytes);
    memcpy(old, file, bytes);
    free(file);
    /* Any damage is noticed, and the number that follows was never used. */
    for (size_t i = 0; i <= bytes; i++) {
        char damaged[64];
        memcpy(damaged, old, sizeof damaged);
        if (i < bytes) damaged[i] ^= 1;
        file_write(path, (uint8_t *)damaged, i < bytes ? bytes : i / 2);
        assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &recovered, store.message, sizeof store.message), 0);
        assert_true(recovered);
        assert_true(epoch > 1ull << 40);
        before = epoch;
        assert_int_equal(qr_store_epoch_next(&store.folder, &epoch, &recovered, store.message, sizeof store.message), 0);
        assert_false(recovered);
        assert_true(epoch > before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_publish_and_find, tear_down),
        cmocka_unit_test_teardown(test_content_id_asked_for, tear_down),
        cmocka_unit_test_teardown(test_rs_03_failed_store_leaves_nothing, tear_down),
        cmocka_unit_test_teardown(test_ck_03_accounting_survives_kill, tear_down),
        cmocka_unit_test_teardown(test_ck_01_files_are_found_again, tear_down),
        cmocka_unit_test_teardown(test_start_adopts_or_deletes, tear_down),
        cmocka_unit_test_teardown(test_rs_05_leased_file_is_not_unlinked, tear_down),
        cmocka_unit_test_teardown(test_leases_are_bounded_and_end_with_their_holder, tear_down),
        cmocka_unit_test_teardown(test_victims_by_value, tear_down),
        cmocka_unit_test_teardown(test_table_and_writes_are_bounded, tear_down),
        cmocka_unit_test_teardown(test_rs_07_removed_files_are_noticed, tear_down),
        cmocka_unit_test_teardown(test_publish_over_a_withdrawn_file, tear_down),
        cmocka_unit_test_teardown(test_damaged_file_is_set_aside, tear_down),
        cmocka_unit_test_teardown(test_tails_belong_to_their_owner, tear_down),
        cmocka_unit_test_teardown(test_one_process_at_a_time, tear_down),
        cmocka_unit_test_teardown(test_folder_is_ours_alone, tear_down),
        cmocka_unit_test_teardown(test_epochs_rise, tear_down),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
