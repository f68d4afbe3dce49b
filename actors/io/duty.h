/* duty.h - the share of time that moving state (transfer's slices, storage's writes) may take while batches are computed.
 *
 * DU1. Everybody who moves for one device shares one account, activity.resume_us: of all their time together, at most `share` percent
 *      of any stretch that begins with a pause is worked, whoever works it. After a slice that worked w the account moves on by w x
 *      (100 - share) / share, from now or from where it stands, whichever is later: two slices at once are paid one after the other.
 *      Pauses that were longer than they had to be give no credit.
 * DU2. Worked time is the thread's own processor time: a slice that somebody pushed aside, or that waits for the disk, disturbs nobody
 *      by that.
 * DU3. While nothing is computed, and was not for QR_DUTY_LATELY_US, nothing waits, whatever is owed. */
#ifndef QR_DUTY_H
#define QR_DUTY_H

#include "actors/io/activity.h"
#include "base/base.h"
#include "base/mutant.h"

enum { QR_DUTY_LATELY_US = 10000 }; /* a batch that ended so lately still counts: between two steps lies a gap */

static inline bool qr_duty_computing(const qr_activity_t *activity, uint64_t now_us)
{
    return qr_activity_computing(activity, now_us, QR_MUTANT(789) ? 0 : QR_DUTY_LATELY_US);
}

/* When the next slice may begin; now_us or before it: at once. */
static inline uint64_t qr_duty_resume_us(const qr_activity_t *activity, uint64_t now_us)
{
    if (!qr_duty_computing(activity, now_us)) return now_us;
    return atomic_load_explicit(&activity->resume_us, memory_order_relaxed);
}

/* A slice has ended that worked for worked_us. share: 1 to 100 percent; 100, and 0 where nothing was set: no pauses. */
static inline void qr_duty_worked(qr_activity_t *activity, uint64_t share, uint64_t now_us, uint64_t worked_us)
{
    if (!qr_duty_computing(activity, now_us) || share == 0 || share >= 100 || QR_MUTANT(640)) return;
    uint64_t pause_us = QR_MUTANT(781) ? worked_us : worked_us * (100 - share) / share;
    uint64_t seen_us = atomic_load_explicit(&activity->resume_us, memory_order_relaxed), next_us;
    do {
        next_us = (QR_MUTANT(782) ? now_us : qr_max_u64(now_us, seen_us)) + pause_us;
    } while (!atomic_compare_exchange_weak_explicit(&activity->resume_us, &seen_us, next_us, memory_order_relaxed, memory_order_relaxed));
}

#endif
