/* stream.h - a copy that leaves the caches alone: what is restored or checkpointed is not read again soon, the weights are (limits: 1.5
 * times memcpy, and the weights stay in L3). */
#ifndef QR_STREAM_H
#define QR_STREAM_H

#include "base/base.h"

/* As memcpy, with non-temporal stores where the processor has them. The bytes are visible to other threads after a message or lock that
 * follows, as with memcpy. */
void qr_stream_copy(void *to, const void *from, size_t bytes);

#endif
