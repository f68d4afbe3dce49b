/* link: qr_store_faults qr_base */
/* log_test.c - the catalog's log in a local folder: numbers, damage, snapshots, cuts, failed syncs, two processes. */
#include "store/log.h"

#include "base/error.h"
#include "base/prng.h"
#include "store/crc32c.h"
#include "store/fail.h"
#include "tests/unit/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ID = 77 };

static qr_log_t open_log(const char *folder)
{
    char message[512];
    qr_log_t log = {0};
    if (qr_log_open_folder(folder, ID, true, &log, message, sizeof message)) fail_msg("%s", message);
    return log;
}

static qr_log_tail_t tail_of(const qr_log_t *log)
{
    qr_log_tail_t tail;
    log->class->tail(log->self, &tail);
    return tail;
}

static uint32_t payload_of(uint64_t n, uint8_t payload[256])
{
    uint32_t bytes = (uint32_t)(n * 7 % 200);
    for (uint32_t i = 0; i < bytes; i++) payload[i] = (uint8_t)(n * 31 + i);
    return bytes;
}

static int append(const qr_log_t *log, uint64_t n)
{
    uint8_t payload[256];
    return log->class->append_at(log->self, n, n / 10 + 1, payload, payload_of(n, payload));
}

static int check(const qr_log_t *log, uint64_t n)
{
    uint8_t payload[256];
    uint32_t bytes = payload_of(n, payload);
    qr_log_record_t record;
    int code = log->class->read_from(log->self, n, &record);
    if (code) return code;
    assert_int_equal(record.sequence, n);
    assert_int_equal(record.writer_epoch, n / 10 + 1);
    assert_int_equal(record.bytes, bytes);
    assert_memory_equal(record.payload, payload, bytes);
    return 0;
}

/* Pages 0 .. count - 1 of a snapshot. */
typedef struct pages {
    uint64_t next, count;
    uint8_t payload[256];
} pages_t;

static int next_page(void *context, const uint8_t **ret_payload, uint32_t *ret_bytes)
{
    pages_t *p = context;
    if (p->next == p->count) return 0;
    *ret_bytes = payload_of(1000 + p->next++, p->payload);
    *ret_payload = p->payload;
    return 1;
}

static int snapshot(const qr_log_t *log, uint64_t n, uint64_t count)
{
    pages_t p = {.count = count};
    return log->class->snapshot(log->self, n, n / 10 + 1, next_page, &p);
}

static int check_snapshot(const qr_log_t *log, uint64_t n, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint8_t payload[256];
        uint64_t pages;
        qr_log_record_t page;
        int code = log->class->snapshot_page(log->self, n, i, &page, &pages);
        if (code) return code;
        assert_int_equal(pages, count);
        assert_int_equal(page.bytes, payload_of(1000 + i, payload));
        assert_memory_equal(page.payload, payload, page.bytes);
    }
    uint64_t pages;
    qr_log_record_t page;
    assert_int_equal(log->class->snapshot_page(log->self, n, count, &page, &pages), -QR_E_NOT_FOUND);
    return 0;
}

static void record_path(const char *folder, uint64_t n, const char *ending, char path[2 * STORE_PATH])
{
    (void)snprintf(path, 2 * STORE_PATH, "%s/%020llu.%s", folder, (unsigned long long)n, ending);
}

static void test_records_are_there_again(void **unused)
{
    (void)unused;
    char folder[STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    assert_int_equal(tail_of(&log).log_id, ID);
    assert_int_equal(tail_of(&log).newest, 0);
    assert_int_equal(append(&log, 2), -QR_E_INVALID);
    for (uint64_t n = 1; n <= 50; n++) assert_int_equal(append(&log, n), 0);
    assert_int_equal(append(&log, 50), -QR_E_IN_USE);
    assert_int_equal(append(&log, 52), -QR_E_INVALID);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(tail_of(&log).oldest, 1);
        assert_int_equal(tail_of(&log).newest, 50);
        assert_int_equal(tail_of(&log).newest_epoch, 6);
        assert_int_equal(tail_of(&log).bytes, 50 * 4096);
        for (uint64_t n = 1; n <= 50; n++) assert_int_equal(check(&log, n), 0);
        assert_int_equal(check(&log, 51), -QR_E_NOT_FOUND);
        assert_int_equal(check(&log, 0), -QR_E_NOT_FOUND);
        qr_log_close(&log);
        log = open_log(folder);
    }
    qr_log_close(&log);
    store_remove(folder);
}

static void test_crc_of_known_bytes(void **unused)
{
    (void)unused;
    assert_int_equal(qr_crc32c(0, "123456789", 9), 0xe3069283u);
    uint8_t head[24], bytes[64];
    qr_log_record_t record;
    size_t used;
    qr_log_record_head(5, 6, (const uint8_t *)"abc", 3, head);
    memcpy(bytes, head, 24);
    memcpy(bytes + 24, "abc", 3);
    assert_int_equal(qr_log_record_parse(bytes, 27, &record, &used), 0);
    assert_int_equal(used, 27);
    for (size_t n = 0; n < 27; n++) assert_int_equal(qr_log_record_parse(bytes, n, &record, &used), -QR_E_TRUNCATED);
    for (size_t bit = 0; bit < 27 * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(qr_log_record_parse(bytes, 27, &record, &used) < 0);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* Whoever comes second under the same number is told so, also if it did not know, and what the first wrote stays. */
static void test_the_second_under_a_number_is_refused(void **unused)
{
    (void)unused;
    char folder[STORE_PATH];
    store_folder(folder);
    qr_log_t first = open_log(folder), second = open_log(folder);
    assert_int_equal(append(&first, 1), 0);
    assert_int_equal(second.class->append_at(second.self, 1, 99, (const uint8_t *)"other", 5), -QR_E_IN_USE);
    assert_int_equal(tail_of(&second).newest, 1);
    assert_int_equal(tail_of(&second).newest_epoch, 1);
    assert_int_equal(check(&first, 1), 0);
    assert_int_equal(append(&second, 2), 0);
    assert_int_equal(append(&first, 2), -QR_E_IN_USE);
    qr_log_close(&first);
    qr_log_close(&second);
    store_remove(folder);
}

/* Two processes race for every number: each number is taken once, and what is read is whole. */
static void test_a_number_is_taken_once_by_two_processes(void **unused)
{
    (void)unused;
    char folder[STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    qr_log_close(&log);
    enum { PROCESSES = 3, RACE = 60 };
    pid_t children[PROCESSES];
    for (uint32_t k = 0; k < PROCESSES; k++) {
        children[k] = fork();
        if (children[k]) continue;
        char message[256];
        uint32_t won = 0;
        if (qr_log_open_folder(folder, ID, false, &log, message, sizeof message)) _exit(200);
        for (uint64_t n = tail_of(&log).newest + 1; n <= RACE; n = tail_of(&log).newest + 1) {
            uint8_t payload[256];
            int code = log.class->append_at(log.self, n, n / 10 + 1, payload, payload_of(n, payload));
            if (code && code != -QR_E_IN_USE) _exit(201);
            won += code == 0;
        }
        _exit((int)won);
    }
    uint32_t sum = 0;
    for (uint32_t k = 0; k < PROCESSES; k++) {
        int status;
        assert_int_equal(waitpid(children[k], &status, 0), children[k]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= RACE);
        sum += (uint32_t)WEXITSTATUS(status);
    }
    assert_int_equal(sum, RACE);
    log = open_log(folder);
    for (uint64_t n = 1; n <= RACE; n++) assert_int_equal(check(&log, n), 0);
    qr_log_close(&log);
    store_remove(folder);
}

static void test_snapshots_and_cuts(void **unused)
{
    (void)unused;
    char folder[STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    for (uint64_t n = 1; n <= 20; n++) assert_int_equal(append(&log, n), 0);
    assert_int_equal(log.class->cut(log.self, 5), -QR_E_INVALID);
    assert_int_equal(snapshot(&log, 10, 5), 0);
    assert_int_equal(snapshot(&log, 15, 0), 0);
    assert_int_equal(snapshot(&log, 18, 70), 0);
    assert_int_equal(log.class->cut(log.self, 19), -QR_E_INVALID);
    assert_int_equal(check(&log, 1), 0);
    assert_int_equal(log.class->cut(log.self, 15), 0);
    for (uint32_t turn = 0; turn < 2; turn++) {
        qr_log_tail_t tail = tail_of(&log);
        assert_int_equal(tail.oldest, 16);
        assert_int_equal(tail.snapshot_count, 2);
        assert_int_equal(tail.snapshots[0], 15);
        assert_int_equal(check(&log, 15), -QR_E_NOT_FOUND);
        assert_int_equal(check(&log, 16), 0);
        assert_int_equal(check_snapshot(&log, 10, 5), -QR_E_NOT_FOUND);
        assert_int_equal(check_snapshot(&log, 15, 0), 0);
        assert_int_equal(check_snapshot(&log, 18, 70), 0);
        qr_log_close(&log);
        log = open_log(folder);
    }
    assert_int_equal(snapshot(&log, 20, 3), 0);
    assert_int_equal(log.class->cut(log.self, 20), 0);
    qr_log_close(&log);
    log = open_log(folder); /* no record is left: the number and the epoch are the snapshot's */
    assert_int_equal(tail_of(&log).newest, 20);
    assert_int_equal(tail_of(&log).oldest, 21);
    assert_int_equal(tail_of(&log).newest_epoch, 3);
    assert_int_equal(append(&log, 21), 0);
    assert_int_equal(check(&log, 21), 0);
    qr_log_close(&log);
    store_remove(folder);
}

/* A snapshot that is damaged is no ground to cut on. */
static void test_no_cut_below_a_damaged_snapshot(void **unused)
{
    (void)unused;
    char folder[STORE_PATH], path[2 * STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    for (uint64_t n = 1; n <= 9; n++) assert_int_equal(append(&log, n), 0);
    assert_int_equal(snapshot(&log, 9, 20), 0);
    record_path(folder, 9, "snapshot", path);
    store_flip(path, 400, 1);
    assert_int_equal(log.class->cut(log.self, 9), -QR_E_FORMAT);
    for (uint64_t n = 1; n <= 9; n++) assert_int_equal(check(&log, n), 0);
    assert_int_equal(check_snapshot(&log, 9, 20), -QR_E_FORMAT);
    assert_int_equal(log.class->quarantine(log.self, 9, true), 0);
    assert_int_equal(tail_of(&log).snapshot_count, 0);
    assert_int_equal(store_count(folder, "quarantine"), 1);
    qr_log_close(&log);
    store_remove(folder);
}

/* Every kind of damage to a record is seen, in the middle and at the end, and nothing is shortened by itself. */
static void test_CT_01_damage_of_a_record_is_never_silent(void **unused)
{
    (void)unused;
    for (uint32_t kind = 0; kind < 6; kind++)
        for (uint64_t n = 4; n <= 10; n += 6) {
            char folder[STORE_PATH], path[2 * STORE_PATH];
            store_folder(folder);
            qr_log_t log = open_log(folder);
            for (uint64_t k = 1; k <= 10; k++) assert_int_equal(append(&log, k), 0);
            qr_log_close(&log);
            record_path(folder, n, "record", path);
            uint64_t bytes = store_bytes(path);
            if (kind == 0) store_flip(path, bytes / 2, 1);
            if (kind == 1) store_truncate(path, bytes - 1);
            if (kind == 2) store_truncate(path, 0);
            if (kind == 3) store_truncate(path, 10);
            if (kind == 4) store_append(path, "x", 1);
            if (kind == 5 && n == 10) continue; /* a newest record that is gone is no damage that a log can see: the facts do */
            if (kind == 5) assert_int_equal(unlink(path), 0);
            log = open_log(folder);
            assert_int_equal(tail_of(&log).newest, 10);
            assert_int_equal(check(&log, n), -QR_E_FORMAT);
            for (uint64_t k = 1; k <= 10; k++)
                if (k != n) assert_int_equal(check(&log, k), 0);
            assert_int_equal(append(&log, 11), 0);
            assert_int_equal(log.class->quarantine(log.self, n, false), 0);
            assert_int_equal(store_count(folder, "quarantine"), kind != 5);
            qr_log_close(&log);
            store_remove(folder);
        }
}

/* A copy of a record under another number is not that record. */
static void test_a_record_under_another_number_is_damage(void **unused)
{
    (void)unused;
    char folder[STORE_PATH], from[2 * STORE_PATH], to[2 * STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    for (uint64_t n = 1; n <= 3; n++) assert_int_equal(append(&log, n), 0);
    record_path(folder, 2, "record", from);
    record_path(folder, 4, "record", to);
    assert_int_equal(link(from, to), 0);
    qr_log_close(&log);
    log = open_log(folder);
    assert_int_equal(check(&log, 4), -QR_E_FORMAT);
    qr_log_close(&log);
    store_remove(folder);
}

/* What a kill left in progress is swept; files of others stay. */
static void test_work_in_progress_is_swept(void **unused)
{
    (void)unused;
    char folder[STORE_PATH], path[STORE_PATH * 2];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    assert_int_equal(append(&log, 1), 0);
    (void)snprintf(path, sizeof path, "%s/work-1-1", folder);
    store_append(path, "half", 4);
    (void)snprintf(path, sizeof path, "%s/NOTES", folder);
    store_append(path, "mine", 4);
    qr_log_close(&log);
    log = open_log(folder);
    (void)snprintf(path, sizeof path, "%s/work-1-1", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    (void)snprintf(path, sizeof path, "%s/NOTES", folder);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(tail_of(&log).newest, 1);
    qr_log_close(&log);
    store_remove(folder);
}

/* A failed fsync: nothing of the record is there, it is counted, and the next try is another file. */
static void test_a_failed_sync_loses_the_file_alone(void **unused)
{
    (void)unused;
    char folder[STORE_PATH];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    assert_int_equal(append(&log, 1), 0);
    qr_store_fail_arm(QR_STORE_POINT_log_fsync, 1, EIO, false);
    assert_int_equal(append(&log, 2), -QR_E_IO);
    assert_int_equal(tail_of(&log).poisoned, 1);
    assert_int_equal(check(&log, 2), -QR_E_NOT_FOUND);
    assert_int_equal(store_count(folder, "."), 2); /* id, record 1 */
    assert_int_equal(append(&log, 2), 0);
    qr_store_fail_arm(QR_STORE_POINT_log_folder_fsync, 1, EIO, false);
    assert_int_equal(append(&log, 3), -QR_E_IO);
    assert_int_equal(check(&log, 3), -QR_E_NOT_FOUND);
    assert_int_equal(store_count(folder, "."), 3);
    qr_store_fail_arm(QR_STORE_POINT_snapshot_fsync, 1, EIO, false);
    assert_int_equal(snapshot(&log, 2, 4), -QR_E_IO);
    assert_int_equal(tail_of(&log).snapshot_count, 0);
    assert_int_equal(store_count(folder, "."), 3);
    assert_int_equal(tail_of(&log).poisoned, 3);
    qr_store_fail_arm(QR_STORE_POINT_log_write, 1, ENOSPC, false);
    assert_int_equal(append(&log, 3), -QR_E_IO);
    qr_store_fail_arm(QR_STORE_POINT_log_link, 1, EIO, false);
    assert_int_equal(append(&log, 3), -QR_E_IO);
    assert_int_equal(store_count(folder, "."), 3);
    qr_store_fail_arm(QR_STORE_POINT_log_fsync, 0, 0, false);
    assert_int_equal(append(&log, 3), 0);
    assert_int_equal(check(&log, 3), 0);
    qr_log_close(&log);
    store_remove(folder);
}

static void test_a_damaged_identity_is_another_one(void **unused)
{
    (void)unused;
    char folder[STORE_PATH], path[STORE_PATH * 2];
    store_folder(folder);
    qr_log_t log = open_log(folder);
    assert_int_equal(append(&log, 1), 0);
    qr_log_close(&log);
    (void)snprintf(path, sizeof path, "%s/id", folder);
    store_flip(path, 9, 1);
    char message[256];
    assert_int_equal(qr_log_open_folder(folder, 99, true, &log, message, sizeof message), 0);
    assert_int_equal(tail_of(&log).log_id, 99);
    assert_int_equal(check(&log, 1), 0);
    assert_int_equal(log.class->renew(log.self, 100), 0);
    qr_log_close(&log);
    log = open_log(folder);
    assert_int_equal(tail_of(&log).log_id, 100);
    qr_log_close(&log);
    store_remove(folder);
}

static void test_names_from_outside_do_no_harm(void **unused)
{
    (void)unused;
    char folder[STORE_PATH], path[STORE_PATH * 2], message[256];
    static const char *const names[] = {"00000000000000000000.record",  "1.record",
                                        "0000000000000000000x.record",  "99999999999999999999.record",
                                        "00000000000000000001.records", "00000000000000000002.snapshot"};
    store_folder(folder);
    qr_log_t log = open_log(folder);
    assert_int_equal(append(&log, 1), 0);
    qr_log_close(&log);
    for (size_t i = 0; i < QR_COUNT(names) - 1; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        store_append(path, "x", 1);
    }
    log = open_log(folder);
    assert_int_equal(tail_of(&log).newest, 1);
    qr_log_close(&log);
    (void)snprintf(path, sizeof path, "%s/%s", folder, names[5]); /* a snapshot that is none, above the records: damage is said, not read */
    store_append(path, "x", 1);
    log = open_log(folder);
    assert_int_equal(check_snapshot(&log, 2, 1), -QR_E_FORMAT);
    qr_log_close(&log);
    (void)snprintf(path, sizeof path, "%s/%020llu.record", folder, 9000000000ull);
    store_append(path, "x", 1);
    assert_int_equal(qr_log_open_folder(folder, ID, true, &log, message, sizeof message), -QR_E_FORMAT);
    assert_non_null(strstr(message, folder));
    store_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records_are_there_again),
                                       cmocka_unit_test(test_crc_of_known_bytes),
                                       cmocka_unit_test(test_the_second_under_a_number_is_refused),
                                       cmocka_unit_test(test_a_number_is_taken_once_by_two_processes),
                                       cmocka_unit_test(test_snapshots_and_cuts),
                                       cmocka_unit_test(test_no_cut_below_a_damaged_snapshot),
                                       cmocka_unit_test(test_CT_01_damage_of_a_record_is_never_silent),
                                       cmocka_unit_test(test_a_record_under_another_number_is_damage),
                                       cmocka_unit_test(test_work_in_progress_is_swept),
                                       cmocka_unit_test(test_a_failed_sync_loses_the_file_alone),
                                       cmocka_unit_test(test_a_damaged_identity_is_another_one),
                                       cmocka_unit_test(test_names_from_outside_do_no_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
