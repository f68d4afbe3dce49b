/* activity.h - words of memory by which io actors of one device see whether it computes: the executor writes, whoever should step aside
 * reads, and keeps account of the time it took (duty.h). A hint and no more: nothing is decided by it but how soon to take the next slice.
 * Relaxed: no data is handed over by it. */
#ifndef QR_ACTIVITY_H
#define QR_ACTIVITY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qr_activity {
    _Atomic uint32_t computing; /* 1 while a batch is on the device */
    _Atomic uint64_t ended_us;  /* when the last one ended; 0: none has */
    _Atomic uint64_t resume_us; /* who moves state takes no slice before, while batches are computed (duty.h) */
} qr_activity_t;

/* All accept NULL. */
static inline void qr_activity_begin(qr_activity_t *activity)
{
    if (activity) atomic_store_explicit(&activity->computing, 1, memory_order_relaxed);
}
static inline void qr_activity_end(qr_activity_t *activity, uint64_t now_us)
{
    if (!activity) return;
    atomic_store_explicit(&activity->ended_us, now_us, memory_order_relaxed);
    atomic_store_explicit(&activity->computing, 0, memory_order_relaxed);
}
/* One is on the device, or was less than lately_us ago. */
static inline int qr_activity_computing(const qr_activity_t *activity, uint64_t now_us, uint64_t lately_us)
{
    if (!activity) return 0;
    if (atomic_load_explicit(&activity->computing, memory_order_relaxed)) return 1;
    uint64_t ended_us = atomic_load_explicit(&activity->ended_us, memory_order_relaxed);
    return ended_us && now_us < ended_us + lately_us;
}

#endif
