/* pool.c - the compute threads (P1-P4). */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/mutant.h"

enum {
    SPINS = 1000,       /* pauses before the first yield: some tens of microseconds */
    AWAKE_NS = 1000000, /* idle this long: sleep */
    STALL_NS = 200000,  /* waiting longer than this and four pieces: a core was taken away */
    ALONE_MOST_NS = 100000000,
    GENERATION_BITS = 24,
    PLACE_BITS = 20
};

/* One thread's stretch of the open task: generation << 40 | first << 20 | end. */
typedef struct stretch {
    _Alignas(128) _Atomic uint64_t word;
} stretch_t;

typedef struct helper {
    qr_pool_t *pool;
    pthread_t thread;
    uint32_t index;
} helper_t;

struct qr_pool {
    stretch_t stretches[QR_THREADS_MAX];
    _Alignas(128) _Atomic uint32_t done;     /* pieces finished by helpers */
    _Alignas(128) _Atomic uint32_t sleepers; /* helpers that went to sleep since the last bell */
    _Atomic uint32_t bell;                   /* futex word */
    _Atomic bool stop;
    _Alignas(128) qr_piece_f *run; /* stable while a piece of it is unfinished */
    void *context;
    uint32_t threads, count, own_done, generation;
    bool open, alone;                                /* alone: this task was not offered to the helpers */
    uint64_t started_ns, waiting_ns, alone_until_ns; /* of the task; since when we wait for its last pieces, 0: not yet */
    uint64_t alone_ns;                               /* how long we went alone last */
    helper_t helpers[QR_THREADS_MAX];
};

uint64_t qr_pool_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* The arithmetic wants the control register as the system starts threads: masked, nearest even, no flushing (arithmetic 6). */
static void assert_rounding(void)
{
#if defined(__x86_64__)
    qr_assert((_mm_getcsr() & 0xffc0u) == 0x1f80u);
#endif
}

static uint32_t first_of(uint64_t word) { return (uint32_t)(word >> PLACE_BITS) & QR_PIECES_MAX; }
static uint32_t end_of(uint64_t word) { return (uint32_t)word & QR_PIECES_MAX; }

static uint64_t make_word(uint32_t generation, uint32_t first, uint32_t end)
{
    return (uint64_t)(generation & ((1u << GENERATION_BITS) - 1)) << (2 * PLACE_BITS) | (uint64_t)first << PLACE_BITS | end;
}

/* Claims one piece of a stretch, from its front or its end. */
static bool claim(stretch_t *stretch, bool front, uint32_t *ret_piece)
{
    uint64_t word = atomic_load_explicit(&stretch->word, memory_order_acquire);
    while (first_of(word) < end_of(word)) {
        uint64_t next = front ? word + (1ull << PLACE_BITS) : word - 1;
        if (atomic_compare_exchange_weak_explicit(&stretch->word, &word, next, memory_order_acq_rel, memory_order_acquire)) {
            *ret_piece = front || QR_MUTANT(73) ? first_of(word) : end_of(word) - 1;
            return true;
        }
    }
    return false;
}

static bool claim_any(qr_pool_t *pool, uint32_t thread, uint32_t *ret_piece)
{
    if (claim(&pool->stretches[thread], true, ret_piece)) return true;
    for (uint32_t i = 1; i < pool->threads; i++)
        if (claim(&pool->stretches[(thread + i) % pool->threads], false, ret_piece)) return true;
    return false;
}

static void help(qr_pool_t *pool, uint32_t thread)
{
    uint32_t piece, finished = 0;
    while (claim_any(pool, thread, &piece)) {
        pool->run(pool->context, piece, thread);
        finished++;
    }
    if (finished) atomic_fetch_add_explicit(&pool->done, finished, memory_order_release);
}

static void sleep_until_bell(qr_pool_t *pool, stretch_t *stretch, uint64_t seen)
{
    uint32_t bell = atomic_load(&pool->bell);
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&stretch->word) == seen && !atomic_load(&pool->stop))
        syscall(SYS_futex, &pool->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
}

static void *helper_main(void *argument)
{
    helper_t *helper = argument;
    qr_pool_t *pool = helper->pool;
    stretch_t *stretch = &pool->stretches[helper->index];
    uint64_t seen = 0, idle_since = 0;
    uint32_t spins = 0;
    assert_rounding();
    while (!atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
        uint64_t word = atomic_load_explicit(&stretch->word, memory_order_acquire);
        if (word != seen) {
            help(pool, helper->index);
            seen = atomic_load_explicit(&stretch->word, memory_order_acquire);
            if (first_of(seen) < end_of(seen)) seen = 0; /* a task arrived meanwhile */
            spins = 0;
        } else if (++spins < SPINS) {
            pause_briefly();
        } else if (spins == SPINS) {
            idle_since = qr_pool_now_ns();
        } else if (qr_pool_now_ns() - idle_since < AWAKE_NS) {
            sched_yield();
        } else {
            sleep_until_bell(pool, stretch, seen);
            spins = 0;
        }
    }
    return NULL;
}

static void ring(qr_pool_t *pool)
{
    atomic_store(&pool->sleepers, 0);
    atomic_fetch_add(&pool->bell, 1);
    syscall(SYS_futex, &pool->bell, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

int qr_pool_new(uint32_t threads, qr_pool_t **ret_pool)
{
    qr_assert(threads >= 1 && threads <= QR_THREADS_MAX);
    assert_rounding();
    qr_pool_t *pool = aligned_alloc(128, qr_round_up(sizeof *pool, 128));
    if (!pool) return -QR_E_MEMORY;
    memset(pool, 0, sizeof *pool);
    pool->threads = 1;
    for (uint32_t i = 1; i < threads; i++) {
        pool->helpers[i] = (helper_t){.pool = pool, .index = i};
        if (pthread_create(&pool->helpers[i].thread, NULL, helper_main, &pool->helpers[i])) {
            qr_pool_destroy(&pool);
            return -QR_E_MEMORY;
        }
        pool->threads = i + 1;
    }
    *ret_pool = pool;
    return 0;
}

void qr_pool_destroy(qr_pool_t **pool_address)
{
    qr_pool_t *pool = *pool_address;
    if (!pool) return;
    qr_pool_abandon(pool); /* helpers never outlive what they work on */
    atomic_store(&pool->stop, true);
    ring(pool);
    for (uint32_t i = 1; i < pool->threads; i++) pthread_join(pool->helpers[i].thread, NULL);
    free(pool);
    *pool_address = NULL;
}

void qr_pool_start(qr_pool_t *pool, qr_piece_f *run, void *context, uint32_t count)
{
    qr_assert(!pool->open && count >= 1 && count <= QR_PIECES_MAX);
    pool->run = run;
    pool->context = context;
    pool->count = count;
    pool->own_done = 0;
    pool->open = true;
    pool->waiting_ns = 0;
    pool->alone = pool->threads == 1;
    if (pool->alone) return;
    pool->started_ns = qr_pool_now_ns();
    pool->alone = pool->started_ns < pool->alone_until_ns;
    if (pool->alone) return;
    pool->generation++;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < pool->threads; i++) { /* ours first: who finds its own stretch may steal from the ones before */
        uint32_t first = (uint32_t)((uint64_t)count * i / pool->threads), end = (uint32_t)((uint64_t)count * (i + 1) / pool->threads);
        atomic_store_explicit(&pool->stretches[i].word, make_word(pool->generation, first, end), memory_order_release);
    }
    /* Adds 0 so that it meets sleep_until_bell in one order: either we see the sleeper or it sees our words. */
    if (atomic_fetch_add(&pool->sleepers, 0)) ring(pool);
}

static bool late(uint64_t deadline_ns) { return deadline_ns != UINT64_MAX && qr_pool_now_ns() >= deadline_ns; }

static bool work_alone(qr_pool_t *pool, uint64_t deadline_ns, bool hurried)
{
    while (pool->own_done < pool->count) {
        pool->run(pool->context, pool->own_done++, 0);
        if (hurried && late(deadline_ns)) break;
    }
    pool->open = pool->own_done < pool->count;
    return !pool->open;
}

uint64_t qr_pool_alone_ns(uint64_t waited_ns, uint64_t together_ns, uint64_t before_ns)
{
    uint64_t again_ns = together_ns < 2 * waited_ns && !QR_MUTANT(780) ? 2 * before_ns : 0;
    return qr_min_u64(qr_min_u64(qr_max_u64(waited_ns, again_ns), 8 * waited_ns), ALONE_MOST_NS);
}

/* The task is done. If we waited for a helper much longer than its piece can take, we go on alone for a while (P3). */
static void close_task(qr_pool_t *pool)
{
    pool->open = false;
    if (!pool->waiting_ns) return;
    uint64_t now = qr_pool_now_ns(), waited = now - pool->waiting_ns;
    uint64_t piece = (pool->waiting_ns - pool->started_ns) / qr_max_u32(1, pool->own_done);
    if (waited <= STALL_NS + 4 * piece) return;
    uint64_t together = pool->waiting_ns - pool->alone_until_ns, before = QR_MUTANT(836) ? 0 : pool->alone_ns;
    pool->alone_ns = QR_MUTANT(835) ? qr_pool_alone_ns(waited, before, together) : qr_pool_alone_ns(waited, together, before);
    pool->alone_until_ns = now + pool->alone_ns;
}

static bool all_done(qr_pool_t *pool)
{
    if (pool->own_done + atomic_load_explicit(&pool->done, memory_order_acquire) != pool->count) return false;
    close_task(pool);
    return true;
}

bool qr_pool_work(qr_pool_t *pool, uint64_t deadline_ns, bool hurried)
{
    uint32_t piece;
    if (pool->alone) return work_alone(pool, deadline_ns, hurried);
    while (claim_any(pool, 0, &piece)) {
        pool->run(pool->context, piece, 0);
        pool->own_done++;
        if (hurried && late(deadline_ns)) return all_done(pool);
    }
    for (uint32_t spins = 1; !all_done(pool); spins++) {
        if (spins < SPINS)
            pause_briefly();
        else
            sched_yield();
        if (spins % 64) continue;
        if (!pool->waiting_ns) pool->waiting_ns = qr_pool_now_ns();
        if (late(deadline_ns)) return all_done(pool);
    }
    return true;
}

void qr_pool_abandon(qr_pool_t *pool)
{
    uint32_t piece;
    if (!pool->open) return;
    if (pool->alone) {
        pool->open = false;
        return;
    }
    while (claim_any(pool, 0, &piece)) pool->own_done++;
    while (!all_done(pool)) sched_yield();
}
