/* scheduler.h - decides what the device computes next: admission to pages, lanes, batches, and the end of every request.
 * Pure. Partners: worker (asks submit), page_manager and executor (asked); see scheduler.c for the conversations. */
#ifndef QR_SCHEDULER_H
#define QR_SCHEDULER_H

#include "actors/actor.h"

enum {
    QR_SCHEDULER_FAILURES_MAX = 3,               /* batches that may fail under a lane before its request ends with DEVICE */
    QR_SCHEDULER_WAITS_MAX = 8,                  /* `wait` answers a request accepts before it computes the rows itself */
    QR_SCHEDULER_COPIES_MAX = 2 * QR_GROUPS_MAX, /* page copies of one fork */
    QR_SCHEDULER_PRIORITY_MAX = 1000,            /* larger ones count as this */
    QR_SCHEDULER_PRIORITY_US = 1000000,          /* one level of priority is worth so much earlier an arrival: ageing, fixed at arrival */
    QR_SCHEDULER_RETRY_US = 100000               /* a request short of pages asks again after this even if nothing was released */
};

extern const qr_actor_class_t qr_scheduler_class;

#endif
