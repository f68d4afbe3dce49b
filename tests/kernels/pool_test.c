/* link: qr_kernels */
/* pool_test.c - the compute threads and the launch checks: every piece exactly once whoever takes it, deadlines, sleep, and
 * buffers that are too short named. */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"
#include "tests/kernels/scenario.h"

enum { PIECES = 1000 };
typedef struct work {
    _Atomic uint32_t runs[PIECES], threads_seen;
    uint32_t task, slow_thread;
    uint64_t piece_ns;
} work_t;

static void busy(uint64_t ns)
{
    uint64_t end = qr_pool_now_ns() + ns;
    while (qr_pool_now_ns() < end) {
    }
}

static void run_piece(void *context, uint32_t piece, uint32_t thread)
{
    work_t *work = context;
    assert_true(piece < PIECES);
    atomic_fetch_add(&work->runs[piece], 1);
    atomic_fetch_or(&work->threads_seen, 1u << thread);
    if (work->piece_ns) busy(work->piece_ns);
}

static void test_every_piece_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        qr_pool_t *pool;
        static work_t work;
        assert_int_equal(qr_pool_new(threads, &pool), 0);
        memset(&work, 0, sizeof work);
        uint32_t expected[PIECES] = {0};
        for (uint32_t task = 0; task < 3000; task++) {
            uint32_t count = 1 + (task * 7919) % (task % 50 ? 9 : PIECES);
            qr_pool_start(pool, run_piece, &work, count);
            while (!qr_pool_work(pool, task % 3 ? UINT64_MAX : qr_pool_now_ns() + 1, task % 2)) {
            }
            for (uint32_t i = 0; i < count; i++) expected[i]++;
            for (uint32_t i = 0; i < count; i++) assert_int_equal(atomic_load(&work.runs[i]), expected[i]);
        }
        assert_true(work.threads_seen & 1);
        qr_pool_destroy(&pool);
        assert_null(pool);
    }
}

/* The caller takes nothing (its deadline has passed): helpers finish the task, stealing what was the caller's. */
static void test_helpers_steal(void **state)
{
    (void)state;
    qr_pool_t *pool;
    static work_t work;
    memset(&work, 0, sizeof work);
    work.piece_ns = 1000;
    assert_int_equal(qr_pool_new(2, &pool), 0);
    uint64_t give_up = qr_pool_now_ns() + 10000000000ull;
    qr_pool_start(pool, run_piece, &work, 64);
    struct timespec nap = {0, 1000000};
    for (uint32_t done = 0; done < 64 && qr_pool_now_ns() < give_up;) {
        nanosleep(&nap, NULL);
        done = 0;
        for (uint32_t i = 0; i < 64; i++) done += atomic_load(&work.runs[i]);
    }
    while (!qr_pool_work(pool, UINT64_MAX, false)) {
    }
    for (uint32_t i = 0; i < 64; i++) assert_int_equal(atomic_load(&work.runs[i]), 1);
    assert_int_equal(work.threads_seen, 2);
    qr_pool_destroy(&pool);
}

/* What nobody has begun when the pool goes never runs; what was begun has ended. */
static void test_destroy_abandons(void **state)
{
    (void)state;
    qr_pool_t *pool;
    static work_t work;
    memset(&work, 0, sizeof work);
    assert_int_equal(qr_pool_new(3, &pool), 0);
    qr_pool_start(pool, run_piece, &work, 100);
    qr_pool_destroy(&pool);
    uint32_t before = 0, after = 0;
    for (uint32_t i = 0; i < 100; i++) before += atomic_load(&work.runs[i]);
    assert_int_equal(qr_pool_new(1, &pool), 0);
    qr_pool_start(pool, run_piece, &work, 100);
    qr_pool_abandon(pool);
    qr_pool_start(pool, run_piece, &work, 1); /* another may begin */
    assert_true(qr_pool_work(pool, UINT64_MAX, false));
    qr_pool_destroy(&pool);
    for (uint32_t i = 0; i < 100; i++) {
        assert_in_range(atomic_load(&work.runs[i]), 0, 2);
        after += atomic_load(&work.runs[i]);
    }
    assert_int_equal(after, before + 1);
}

/* Idle threads burn no processor: less than a tenth of the time passes on the process's clock. */
static void test_idle_sleeps(void **state)
{
    (void)state;
    qr_pool_t *pool;
    static work_t work;
    assert_int_equal(qr_pool_new(4, &pool), 0);
    memset(&work, 0, sizeof work);
    qr_pool_start(pool, run_piece, &work, 8);
    while (!qr_pool_work(pool, UINT64_MAX, false)) {
    }
    struct timespec nap = {0, 100000000}, before, after;
    nanosleep(&nap, NULL); /* they fall asleep */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nap.tv_nsec = 300000000;
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double burnt = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    assert_true(burnt < 0.03);
    memset(&work, 0, sizeof work); /* and wake again */
    qr_pool_start(pool, run_piece, &work, 500);
    while (!qr_pool_work(pool, UINT64_MAX, false)) {
    }
    for (uint32_t i = 0; i < 500; i++) assert_int_equal(atomic_load(&work.runs[i]), 1);
    qr_pool_destroy(&pool);
}

enum { MS = 1000000 };

/* One wait costs as much again; waits that follow each other cost twice as much each time, up to eight waits and a tenth of a second. */
static void test_alone_after_a_wait(void **state)
{
    (void)state;
    uint64_t alone = 0;
    assert_int_equal(qr_pool_alone_ns(MS, 1000ull * MS, 0), MS);
    for (uint64_t i = 0; i < 20; i++) { /* moves of state at a quarter of the time */
        alone = qr_pool_alone_ns(MS, 2 * MS, alone);
        assert_int_equal(alone, MS);
    }
    for (uint64_t i = 0; i < 20; i++) { /* another program that wants the core as much as we do */
        alone = qr_pool_alone_ns(4 * MS, 4 * MS, alone);
        assert_int_equal(alone, 4ull * MS << qr_min_u64(i, 3));
    }
    assert_int_equal(qr_pool_alone_ns(MS, 0, alone), 8 * MS);
    assert_int_equal(qr_pool_alone_ns(MS, 2 * MS, alone), MS); /* it is gone */
    assert_int_equal(qr_pool_alone_ns(1000ull * MS, 0, 0), 100 * MS);
}

typedef struct hold {
    _Atomic uint32_t threads_seen;
    _Atomic bool release;
    uint64_t own_ns; /* a piece of the caller's takes so long */
} hold_t;

static void nap(uint64_t ns) { (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL); }

static void hold_piece(void *context, uint32_t piece, uint32_t thread)
{
    hold_t *hold = context;
    (void)piece;
    atomic_fetch_or(&hold->threads_seen, 1u << thread);
    if (!thread && hold->own_ns) nap(hold->own_ns);
    while (thread && !atomic_load(&hold->release)) nap(MS / 10);
}

/* A task whose last piece the helper keeps: the caller waited for at least least_ns, at most most_ns, and went on in [from_ns, to_ns]. */
typedef struct stall {
    uint64_t waiting_ns, from_ns, to_ns, least_ns, most_ns; /* waiting: not later than that it began to */
} stall_t;

static stall_t stall(qr_pool_t *pool, uint64_t hold_ns)
{
    hold_t hold = {0};
    stall_t s;
    uint64_t started_ns = qr_pool_now_ns(), worked_ns;
    qr_pool_start(pool, hold_piece, &hold, 2);
    while (!atomic_load(&hold.threads_seen) && qr_pool_now_ns() - started_ns < 10000ull * MS) nap(MS / 10);
    bool shared = atomic_load(&hold.threads_seen) == 2;
    worked_ns = qr_pool_now_ns();
    assert_true(shared && !qr_pool_work(pool, 0, false)); /* the caller's piece */
    s.waiting_ns = qr_pool_now_ns();
    hold_ns += 8 * (s.waiting_ns - started_ns); /* far longer than a piece took, however slow we are */
    while ((s.from_ns = qr_pool_now_ns()) - s.waiting_ns < hold_ns) nap(MS / 10);
    atomic_store(&hold.release, true);
    assert_true(qr_pool_work(pool, UINT64_MAX, false));
    s.to_ns = qr_pool_now_ns();
    s.least_ns = s.from_ns - s.waiting_ns;
    s.most_ns = s.to_ns - worked_ns;
    return s;
}

static void until(uint64_t ns)
{
    while (qr_pool_now_ns() < ns) nap(MS / 10);
}

/* Two waits, the second soon after the caller had gone alone for the first: after it the caller goes alone for twice the first. Whether
 * the helper is offered the task that begins after the second wait's own time is over, and before that. false: we came too late to see. */
static bool second_wait_counts_double(void)
{
    qr_pool_t *pool;
    hold_t hold = {.release = true, .own_ns = MS};
    assert_int_equal(qr_pool_new(2, &pool), 0);
    stall_t first = stall(pool, 20 * MS);
    until(first.to_ns + first.most_ns);    /* for as long as it waited it goes alone, */
    stall_t second = stall(pool, 10 * MS); /* and no longer: the helper has a piece of this */
    uint64_t alone_ns = qr_min_u64(first.least_ns, 100 * MS), together_ns = second.waiting_ns - first.from_ns - alone_ns;
    until(second.to_ns + second.most_ns);
    qr_pool_start(pool, hold_piece, &hold, 8);
    uint64_t until_ns = second.from_ns + qr_min_u64(qr_min_u64(2 * alone_ns, 8 * second.least_ns), 100 * MS);
    bool told = together_ns < 2 * second.least_ns && qr_pool_now_ns() < until_ns;
    assert_true(qr_pool_work(pool, UINT64_MAX, false));
    if (told) assert_int_equal(hold.threads_seen, 1);
    qr_pool_destroy(&pool);
    return told;
}

static void test_a_helper_that_keeps_everyone_waiting(void **state)
{
    (void)state;
    uint32_t tries = 0;
    while (!second_wait_counts_double()) assert_true(++tries < 500);
}

/* Every buffer of every kernel: the length its shape says passes, one byte less is named. */
static void test_table_names_short_buffers(void **state)
{
    (void)state;
    lanes_t lanes = {.count = 2, .rows = {1, 3}, .keys = {5, 9}};
    scenario_t all[] = {make_embed(QR_FORMAT_Q4_1, 2, 64, 5),
                        make_rope_table(3, 8),
                        make_norm(2, 64, true),
                        make_quantise(2, 64, false),
                        make_product(QR_FORMAT_Q8_0, 2, 64, 20, 0, false),
                        make_rope_append(2, 2, 1, 8, 0),
                        make_attention(2, 1, 8, 8, 0, &lanes, 1),
                        make_gate(2, 64, true, 1),
                        make_gather(2, 64),
                        make_page_copy(1, 8, 16)};
    _Static_assert(QR_COUNT(all) == QR_KERNELS_COUNT, "every kernel");
    qr_table_t *table;
    assert_int_equal(qr_table_new(&table), 0);
    for (uint32_t s = 0; s < QR_COUNT(all); s++) {
        const qr_kernel_row_t *row = qr_kernel_row(all[s].launch.kernel);
        qr_launch_t launch = all[s].launch;
        qr_buffer_t buffers[QR_LAUNCH_BUFFERS_MAX];
        assert_int_equal(launch.kernel, s);
        for (uint32_t i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
            buffers[i] = (qr_buffer_t){.bytes = qr_table_bytes(table, &launch, i) + 64};
            assert_true(buffers[i].bytes > 64);
            launch.buffers[i] = &buffers[i];
            launch.offsets[i] = 64;
        }
        assert_null(qr_table_fault(table, &launch));
        for (uint32_t i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
            buffers[i].bytes--;
            const char *fault = qr_table_fault(table, &launch);
            assert_non_null(fault);
            assert_string_equal(fault, row->buffers[i].name);
            buffers[i].bytes++;
            launch.buffers[i] = NULL;
            assert_string_equal(qr_table_fault(table, &launch), row->buffers[i].name);
            launch.buffers[i] = &buffers[i];
        }
        scenario_done(&all[s]);
    }
    qr_launch_t unknown = {.kernel = QR_KERNELS_COUNT};
    assert_string_equal(qr_table_fault(table, &unknown), "kernel");
    qr_table_destroy(&table);
}

/* Shapes by hand: what the little language of kernels.def comes to. */
static void test_table_bytes(void **state)
{
    (void)state;
    qr_table_t *table;
    assert_int_equal(qr_table_new(&table), 0);
    qr_launch_t append = {.kernel = QR_KERNEL_rope_append, .sizes = {5, 9, 3, 64, 0}};
    assert_int_equal(qr_table_bytes(table, &append, 0), 5 * (9 + 6) * 64 * 4);
    assert_int_equal(qr_table_bytes(table, &append, 1), 5 * 32 * 2 * 4);
    qr_launch_t product = {.kernel = QR_KERNEL_product, .sizes = {7, 576, 50, QR_FORMAT_Q8_0, 60, 4, 0}};
    assert_int_equal(qr_table_bytes(table, &product, 0), 7 * 18 * 64);
    assert_int_equal(qr_table_bytes(table, &product, 1), 4 * 18 * 544);
    assert_int_equal(qr_table_bytes(table, &product, 2), 7 * 60 * 4);
    product.sizes[3] = QR_FORMAT_F16;
    assert_int_equal(qr_table_bytes(table, &product, 0), 7 * 576 * 4);
    qr_launch_t attention = {.kernel = QR_KERNEL_attention, .sizes = {5, 9, 3, 64, 2, 16, 0, 10}};
    assert_int_equal(qr_table_bytes(table, &attention, 4), 3 * 4);
    assert_int_equal(qr_table_bytes(table, &attention, 8), 5 * 9 * 64 * 4);
    qr_table_destroy(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_once),   cmocka_unit_test(test_helpers_steal),
        cmocka_unit_test(test_destroy_abandons),   cmocka_unit_test(test_idle_sleeps),
        cmocka_unit_test(test_alone_after_a_wait), cmocka_unit_test(test_table_names_short_buffers),
        cmocka_unit_test(test_table_bytes),        cmocka_unit_test(test_a_helper_that_keeps_everyone_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
