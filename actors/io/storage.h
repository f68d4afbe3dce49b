/* storage.h - owns the chunk files of a node's store: which parts there are, who reads them, which may leave, and their way to the disk. io
 * actor, on a host thread of its own. Partners: scheduler (ram_find), restore_streamer (chunk_lease, chunk_release), checkpoint_writer
 * (chunk_find, chunk_write, chunk_victims, chunk_drop), http (metrics_read). Needs given->store, open and locked, and given->staging;
 * given->ram if parts are to be kept in memory. */
#ifndef QR_STORAGE_H
#define QR_STORAGE_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_storage_class;

#endif
