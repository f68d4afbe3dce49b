/* replay.h - feeds a recorded segment to its actor again and compares what it emits, byte for byte (by hash).
 *
 * L1. Only pure actors replay; the class must be built from the same schema and `given` must be the recorded one (its digest is
 *     compared). Nothing here has a socket or a clock. */
#ifndef QR_REPLAY_H
#define QR_REPLAY_H

#include "actors/actor.h"
#include "transport/segment.h"

typedef struct qr_replay {
    uint64_t entries, messages; /* replayed; emitted */
    uint64_t differs_at;        /* index of the first entry whose emission differs, UINT64_MAX = none */
    uint16_t differs_type;      /* and the message it handled */
} qr_replay_t;

/* Replays what is left of a segment that was opened with its state. 0 (ret->differs_at says how it went); -QR_E_UNSUPPORTED: another
 * schema, state size or given, or an io actor; -QR_E_FORMAT: an entry that is none; -QR_E_MEMORY. */
int qr_replay_run(qr_segment_t *segment, const qr_actor_class_t *actor, const qr_given_t *given, qr_replay_t *ret_replay);

/* Replays every segment of a folder whose actor is pure and in `classes`; prints one line per segment to stdout. Returns the exit
 * status: 0 all equal; 1 a difference or a bad segment; 2 no segments. */
int qr_replay_folder(const char *folder, const qr_actor_class_t *const *classes, uint32_t class_count, const qr_given_t *given);

#endif
