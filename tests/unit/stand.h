/* stand.h - holds one actor in a test's hands: say a message, look at what it says back. Bodies point into the stand's own memory
 * until the next message. check runs after every message, so a broken invariant ends the test at the message that broke it. */
#ifndef QR_STAND_H
#define QR_STAND_H

#include "actors/actor.h"
#include "messages/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { STAND_MESSAGES = 2048 };

typedef struct stand {
    const qr_actor_class_t *actor;
    const qr_given_t *given;
    void *state;
    uint64_t address, now_us;
    qr_outbox_t outbox;
    qr_message_t *messages;
    uint8_t *bytes;
} stand_t;

static inline stand_t *stand_new(const qr_actor_class_t *actor, const qr_given_t *given, uint64_t address)
{
    stand_t *stand = calloc(1, sizeof *stand);
    stand->actor = actor;
    stand->given = given;
    stand->address = address;
    stand->now_us = 1000000;
    stand->state = calloc(1, actor->bytes(given));
    stand->messages = calloc(STAND_MESSAGES, sizeof *stand->messages);
    stand->bytes = aligned_alloc(64, QR_OUTBOX_BYTES);
    qr_outbox_init(&stand->outbox, stand->messages, actor->max_out, stand->bytes, QR_OUTBOX_BYTES);
    actor->init(stand->state, given, address);
    return stand;
}

static inline void stand_destroy(stand_t *stand)
{
    if (stand->actor->done) stand->actor->done(stand->state);
    free(stand->state);
    free(stand->messages);
    free(stand->bytes);
    free(stand);
}

static inline void stand_say(stand_t *stand, uint64_t from, uint16_t type, const void *body)
{
    qr_message_t message = {.type = type, .version = 1, .from = from, .to = stand->address, .epoch = 1, .now_us = stand->now_us};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    qr_outbox_reset(&stand->outbox, stand->actor->max_out);
    stand->actor->handle(stand->state, stand->given, &message, &stand->outbox);
    if (stand->actor->check) stand->actor->check(stand->state, stand->given);
}
/* SAY(stand, from, offer, .request_id = 7, ...) */
#define SAY(stand, from, name, ...) stand_say((stand), (from), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* One piece of an io actor's work; what it says is looked at like a handler's. */
static inline uint64_t stand_work(stand_t *stand)
{
    qr_outbox_reset(&stand->outbox, stand->actor->max_out);
    return stand->actor->work(stand->state, stand->given, stand->now_us, &stand->outbox);
}

/* Moves time to the armed alarm and lets it fire; false if none is armed before `until_us`. */
static inline bool stand_alarm(stand_t *stand, uint64_t until_us)
{
    uint64_t due_us = stand->outbox.alarm_us;
    if (due_us > until_us) {
        stand->now_us = until_us;
        return false;
    }
    stand->now_us = due_us > stand->now_us ? due_us : stand->now_us;
    stand->outbox.alarm_us = QR_NEVER_US;
    SAY(stand, stand->address, alarm, .due_us = due_us);
    return true;
}

/* The nth message of a type it said, NULL without one. */
static inline const qr_message_t *stand_heard(const stand_t *stand, uint16_t type, uint32_t nth)
{
    for (uint32_t i = 0; i < stand->outbox.count; i++)
        if (stand->messages[i].type == type && nth-- == 0) return &stand->messages[i];
    return NULL;
}
static inline uint32_t stand_count(const stand_t *stand, uint16_t type)
{
    uint32_t count = 0;
    while (stand_heard(stand, type, count)) count++;
    return count;
}
static inline const qr_message_t *stand_must(const stand_t *stand, uint16_t type, const char *name, const char *file, int line)
{
    const qr_message_t *message = stand_heard(stand, type, 0);
    if (!message) {
        print_error("%s:%d: it did not say %s; it said:", file, line, name);
        for (uint32_t i = 0; i < stand->outbox.count; i++) print_error(" %s", qr_schema_find(stand->messages[i].type)->name);
        print_error("\n");
        _fail(file, line);
    }
    return message;
}
/* HEARD(stand, offer_refused)->reason: the first of that type; the test fails without one. */
#define HEARD(stand, name) (&stand_must((stand), QR_MESSAGE_##name, #name, __FILE__, __LINE__)->body.name)
#define HEARD_NTH(stand, name, nth) (&stand_heard((stand), QR_MESSAGE_##name, (nth))->body.name)
#define HEARD_COUNT(stand, name) stand_count((stand), QR_MESSAGE_##name)
#define COLUMN32(...)                                                                                                                      \
    {                                                                                                                                      \
        .data = (const uint32_t[]){__VA_ARGS__}, .count = sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                      \
    }
#define COLUMN64(...)                                                                                                                      \
    {                                                                                                                                      \
        .data = (const uint64_t[]){__VA_ARGS__}, .count = sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                      \
    }

static inline qr_given_t *stand_given(void)
{
    qr_given_t *given = calloc(1, sizeof *given);
    qr_params_init(&given->params);
    given->layout.group_count = 1;
    given->layout.page_tokens = 4;
    given->layout.chunk_tokens = 8;
    given->layout.context_tokens = 64;
    given->layout.groups[0] = (qr_group_t){.window = 0, .pages = 8, .row_bytes = 64};
    given->params.page_tokens = 4;
    return given;
}

#endif
