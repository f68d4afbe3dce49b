/* actor.h - what an actor is: a state block, a handler, a checker and a printer (design: the actor contract).
 *
 * A1. handle runs to completion, never blocks, never fails, allocates nothing. It emits at most max_out messages.
 * A2. A pure actor's state is one zero-initialised block without pointers or padding: a snapshot is a memcpy.
 * A3. `given` is immutable after boot and the same for every actor of a node. Only init may look at more than params sizes.
 * A4. io actors (work != NULL or owns_world) obey the same messages; their block may hold pointers and is never snapshot. */
#ifndef QR_ACTOR_H
#define QR_ACTOR_H

#include "actors/given.h"
#include "actors/outbox.h"
#include "base/text.h"
#include "messages/message.h"

/* Of a thread that moves state, above the process's: about a tenth of a core that somebody computes on. */
enum { QR_NICENESS_BEHIND = 10 };

typedef struct qr_actor_class {
    const char *name;  /* role's name, also in topology files */
    uint16_t role;     /* QR_ROLE_* */
    uint16_t max_out;  /* most messages one handle or work call emits */
    bool owns_world;   /* io actor: no snapshot, not replayable */
    bool behind;       /* its thread runs behind those that compute tokens (QR_NICENESS_BEHIND), if that holds of all actors of its host */

    /* Bytes of the state block for this configuration. */
    uint64_t (*bytes)(const qr_given_t *given);
    /* Fills a zeroed block. The only function that may receive memory or, for io actors, take it. */
    void (*init)(void *self, const qr_given_t *given, uint64_t address);
    void (*handle)(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox);
    /* Asserts the numbered invariants over the whole state. May be NULL for io actors. */
    void (*check)(const void *self, const qr_given_t *given);
    /* Writes the state in a few lines. */
    void (*print)(const void *self, const qr_given_t *given, qr_text_t *text);

    /* io actors only: one piece of at most 1 ms; returns when to look again (0 now, QR_NEVER_US idle; absolute now_us otherwise). */
    uint64_t (*work)(void *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox);
    /* io actors only: a descriptor that becomes readable when `work` has something to do, or -1. */
    int (*wake_descriptor)(void *self);
    /* io actors only: gives back what init or `start` took. */
    void (*done)(void *self);
} qr_actor_class_t;

/* Every actor's class is `extern const qr_actor_class_t qr_<role>_class` in actors/<role>.h or actors/io/<role>.h. */

#endif
