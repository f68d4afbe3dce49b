/* edge_harness.h - one actor by hand: a test says one message and reads what the actor says back. Checks every invariant after each
 * message. Used by the tests of the edge's actors. */
#ifndef EDGE_HARNESS_H
#define EDGE_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "actors/actor.h"
#include "base/error.h"

/* A vocabulary built from strings: token i is the i-th word; flags beside it. */
typedef struct words {
    uint32_t offsets[65];
    uint8_t bytes[4096], flags[64];
    qr_vocabulary_t vocabulary;
} words_t;

static inline void words_add(words_t *words, const void *bytes, size_t count, uint8_t flags)
{
    uint32_t i = words->vocabulary.count++;
    words->vocabulary.offsets = words->offsets;
    words->vocabulary.bytes = words->bytes;
    words->vocabulary.flags = words->flags;
    assert_true(i < 64 && words->offsets[i] + count <= sizeof words->bytes);
    memcpy(words->bytes + words->offsets[i], bytes, count);
    words->offsets[i + 1] = words->offsets[i] + (uint32_t)count;
    words->flags[i] = flags;
}
static inline void words_put(words_t *words, const char *text) { words_add(words, text, strlen(text), 0); }

typedef struct rig {
    const qr_actor_class_t *actor;
    const qr_given_t *given;
    void *self;
    uint64_t address, now_us;
    qr_outbox_t *outbox;
    uint32_t read; /* messages of the outbox that the test has looked at */
} rig_t;

static inline void rig_init(rig_t *rig, const qr_actor_class_t *actor, const qr_given_t *given, uint64_t address)
{
    memset(rig, 0, sizeof *rig);
    rig->actor = actor;
    rig->given = given;
    rig->address = address;
    rig->now_us = 1000000;
    uint64_t bytes = actor->bytes(given);
    rig->self = aligned_alloc(64, qr_round_up(bytes, 64));
    memset(rig->self, 0, bytes);
    actor->init(rig->self, given, address);
    rig->outbox = malloc(sizeof *rig->outbox);
    qr_outbox_init(rig->outbox, malloc(actor->max_out * sizeof(qr_message_t)), actor->max_out, aligned_alloc(64, QR_OUTBOX_BYTES),
                   QR_OUTBOX_BYTES);
    if (actor->check) actor->check(rig->self, given);
}

static inline void rig_done(rig_t *rig)
{
    if (rig->actor->done) rig->actor->done(rig->self);
    free(rig->outbox->messages);
    free(rig->outbox->bytes);
    free(rig->outbox);
    free(rig->self);
}

/* Says one message; body is the struct of the type. What came before in the outbox is gone. */
static inline void rig_say(rig_t *rig, uint64_t from, uint16_t type, const void *body, size_t body_bytes)
{
    static qr_message_t message;
    memset(&message, 0, sizeof message);
    message.type = type;
    message.version = 1;
    message.from = from;
    message.to = rig->address;
    message.now_us = rig->now_us;
    memcpy(&message.body, body, body_bytes);
    qr_outbox_reset(rig->outbox, rig->actor->max_out);
    rig->read = 0;
    rig->actor->handle(rig->self, rig->given, &message, rig->outbox);
    if (rig->actor->check) rig->actor->check(rig->self, rig->given);
}
#define SAY(rig, from, name, ...)                                                                                                          \
    do {                                                                                                                                   \
        qr_##name##_t said_ = {__VA_ARGS__};                                                                                               \
        rig_say((rig), (from), QR_MESSAGE_##name, &said_, sizeof said_);                                                                   \
    } while (0)

/* Moves the clock; fires the alarm if it is due. */
static inline void rig_pass(rig_t *rig, uint64_t us)
{
    rig->now_us += us;
    qr_outbox_reset(rig->outbox, rig->actor->max_out);
    rig->read = 0;
    if (rig->outbox->alarm_us > rig->now_us) return;
    uint64_t due_us = rig->outbox->alarm_us;
    rig->outbox->alarm_us = QR_NEVER_US;
    SAY(rig, 0, alarm, .due_us = due_us);
}

/* The next message the actor said must be of this type and to this actor. */
static inline const qr_message_t *rig_next(rig_t *rig, uint64_t to, uint16_t type)
{
    assert_true(rig->read < rig->outbox->count);
    const qr_message_t *message = &rig->outbox->messages[rig->read++];
    assert_int_equal(message->type, type);
    assert_int_equal(message->to, to);
    return message;
}
#define NEXT(rig, to, name) (&rig_next((rig), (to), QR_MESSAGE_##name)->body.name)
/* The actor said nothing more. */
static inline void rig_quiet(const rig_t *rig) { assert_int_equal(rig->read, rig->outbox->count); }

/* Columns from literals. */
#define U32_COLUMN(...)                                                                                                                    \
    {                                                                                                                                      \
        (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                                       \
    }
#define U64_COLUMN(...)                                                                                                                    \
    {                                                                                                                                      \
        (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                                       \
    }
#define TEXT_COLUMN(text)                                                                                                                  \
    {                                                                                                                                      \
        (const uint8_t *)(text), sizeof(text) - 1                                                                                          \
    }

static inline void assert_bytes(qr_bytes_t bytes, const char *text)
{
    assert_int_equal(bytes.count, strlen(text));
    if (bytes.count) assert_memory_equal(bytes.data, text, bytes.count);
}

#endif
