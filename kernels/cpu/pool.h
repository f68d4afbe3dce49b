/* pool.h - compute threads that share the pieces of one task at a time. The caller is thread 0 and never depends on being alone.
 *
 * P1. A piece is run exactly once, by whoever claims it with one compare-and-swap on a word that holds (task, first, end): a stale
 *     claim fails, so a sleeper that wakes late cannot take a piece of a task it has not seen.
 * P2. Each thread owns a stretch of the pieces and takes them from its front; who runs out takes from the end of another's. So a
 *     thread meets the same weights every step while both cores are ours, and a lost core costs one piece of waiting, not a launch.
 * P3. When a helper keeps everyone waiting far longer than a piece takes, its core was taken away: the caller then works alone for as long
 *     as it waited, and tries again. When that soon happens again (before the helper was there for twice the wait), it works alone for
 *     twice as long, up to eight waits. So who takes a core for a moment now and then, as moves of state do, costs that moment; and a
 *     machine with other work costs at worst the helpers, not the caller.
 * P4. A helper spins briefly, then yields, then sleeps in the kernel: an idle pool burns no processor. */
#ifndef QR_POOL_H
#define QR_POOL_H

#include "base/base.h"

typedef struct qr_pool qr_pool_t;
/* Runs one piece on thread `thread`. */
typedef void qr_piece_f(void *context, uint32_t piece, uint32_t thread);

enum { QR_THREADS_MAX = 256, QR_PIECES_MAX = (1 << 20) - 1 };

/* threads >= 1, the caller included. 0 or -QR_E_MEMORY. */
int qr_pool_new(uint32_t threads, qr_pool_t **ret_pool);
/* An open task is abandoned. */
void qr_pool_destroy(qr_pool_t **pool);
/* Offers pieces 0..count-1 (1..QR_PIECES_MAX). Only when no task is open. */
void qr_pool_start(qr_pool_t *pool, qr_piece_f *run, void *context, uint32_t count);
/* Takes pieces until none is left and all are done (true), or until the deadline (false: call again). hurried: looks at the clock after
 * every piece; else only while it waits for others, which a short task is worth. deadline_ns: of qr_pool_now_ns, UINT64_MAX: none. */
bool qr_pool_work(qr_pool_t *pool, uint64_t deadline_ns, bool hurried);
/* Closes the open task: pieces nobody has begun are never run, those in progress are waited for. Without a task: nothing. */
void qr_pool_abandon(qr_pool_t *pool);
/* For how long the caller goes alone (P3) after it waited for waited_ns, together_ns after it had gone alone for before_ns. */
uint64_t qr_pool_alone_ns(uint64_t waited_ns, uint64_t together_ns, uint64_t before_ns);
/* CLOCK_MONOTONIC. */
uint64_t qr_pool_now_ns(void);

#endif
