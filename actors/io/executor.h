/* executor.h - owns the compute queue of one device: runs ragged batches through the decoder and draws tokens.
 * io actor. Partners: scheduler (asks everything). Needs given->decoder and given->model. */
#ifndef QR_EXECUTOR_H
#define QR_EXECUTOR_H

#include "actors/actor.h"

enum {
    QR_EXECUTOR_SLICE_US = 1000,  /* one piece of work */
    QR_EXECUTOR_COPIES_MAX = 1024 /* page copies of one batch; more: batch_failed */
};

extern const qr_actor_class_t qr_executor_class;

#endif
