/* replay.h - `quire replay DIR`: feeds recorded segments to their actors again and compares what they emit, byte for byte (by hash).
 *
 * L1. Only pure actors replay; the class must be built from the same schema and `given` must be the recorded one (its digest is
 *     compared). Nothing here has a socket or a clock.
 * L2. Parameters and layout come from the segment itself, the vocabulary from the model file that was recorded with, or another copy of
 *     it. Weights are not read.
 * L3. An actor acts only on what passed its checks (segment.h); a segment is replayed up to its first difference, because after that
 *     its state is another one.
 * L4. An answer to another node whose session had ended was not sent (host.h) and took no sequence number. A segment does not say so;
 *     an emission that is equal without its answers to one other node is therefore equal. */
#ifndef QR_REPLAY_H
#define QR_REPLAY_H

#include "actors/actor.h"
#include "transport/segment.h"

typedef struct qr_replay {
    uint64_t entries, messages; /* replayed; emitted */
    uint64_t unsent;            /* emissions that are equal by L4 */
    uint64_t differs_at;        /* index of the first entry whose emission differs, UINT64_MAX = none */
    uint16_t differs_type;      /* and the message it handled */
    bool cut;                   /* the segment ends in the middle of an entry */
} qr_replay_t;

/* Replays what is left of a segment that was opened with its state. 0 (ret->differs_at says how it went); -QR_E_UNSUPPORTED: another
 * schema, state size or given, or an io actor; -QR_E_FORMAT: the entry at ret->entries is none; -QR_E_MEMORY. show: NULL, or where
 * the first difference is printed, from where its line stands. */
int qr_replay_run(qr_segment_t *segment, const qr_actor_class_t *actor, const qr_given_t *given, FILE *show, qr_replay_t *ret_replay);

/* Reads the configuration lines of a segment: parameters and layout of ret_given, its vocabulary is left alone. 0, or -QR_E_FORMAT with
 * one sentence in `error`. */
int qr_replay_settings(const char *config, qr_given_t *ret_given, qr_text_t *error);

/* What a replay cannot have from a segment. */
typedef struct qr_replay_world {
    const qr_actor_class_t *const *classes; /* [class_count] */
    uint32_t class_count;
    /* Reads a model file's vocabulary; it stays until the next call. 0, or not with one sentence in `message`. */
    int (*vocabulary)(void *context, const char *path, qr_vocabulary_t *ret_vocabulary, char *message, size_t message_bytes);
    void *context;
} qr_replay_world_t;

/* The subcommand; words[0] is the first word after `replay`. One line for each segment and a sum, on stdout. Returns the exit status:
 * 0 all equal; 1 a difference or a damaged segment; 2 wrong words, nothing to replay, or recorded with what is not here. */
int qr_replay_main(int count, char **words, const qr_replay_world_t *world);

#endif
