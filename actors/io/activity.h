/* activity.h - words of memory by which io actors of one device see whether it computes: the executor writes, whoever should step aside
 * reads, and keeps account of the time it took (duty.h). A hint and no more: nothing is decided by it but how soon to take the next slice. Relaxed: no data is handed over by it. */
#ifndef QR_ACTIVITY_H
#define QR_ACTIVITY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qr_activity {
    _Atomic uint64_t batches;   /* begun since boot */
    _Atomic uint32_t computing; /* 1 while one is on the device */
    _Atomic uint64_t resume_us; /* who moves state takes no slice before, while batches are computed (duty.h) */
} qr_activity_t;

/* All accept NULL. */
static inline void qr_activity_begin(qr_activity_t *activity)
{
    if (!activity) return;
    (void)atomic_fetch_add_explicit(&activity->batches, 1, memory_order_relaxed);
    atomic_store_explicit(&activity->computing, 1, memory_order_relaxed);
}
static inline void qr_activity_idle(qr_activity_t *activity)
{
    if (activity) atomic_store_explicit(&activity->computing, 0, memory_order_relaxed);
}
static inline uint64_t qr_activity_batches(const qr_activity_t *activity)
{
    return activity ? atomic_load_explicit(&activity->batches, memory_order_relaxed) : 0;
}
static inline int qr_activity_computing(const qr_activity_t *activity)
{
    return activity && atomic_load_explicit(&activity->computing, memory_order_relaxed);
}

#endif
