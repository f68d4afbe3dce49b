/* pump.h - a little world for a few actors: every message is encoded, queued per pair of actors, decoded at a fresh address and
 * handled; which pair goes next is drawn from a seed, so only the order of one sender to one receiver is kept. Time moves when told.
 * Roles, credit and the bound of max_out are checked like a host does; check runs after every message. */
#ifndef QR_PUMP_H
#define QR_PUMP_H

#include "actors/actor.h"
#include "actors/roles.h"
#include "base/prng.h"
#include "messages/codec.h"
#include "messages/schema.h"

#include <stdio.h>
#include <stdlib.h>

enum { PUMP_ACTORS = 9, PUMP_BYTES = 1 << 20 };

typedef struct letter {
    struct letter *next;
    size_t bytes;
    uint8_t data[];
} letter_t;

typedef struct pump pump_t;

/* A member of the world: a real actor, or a test's own function (handle != NULL) that gets each message. */
typedef struct member {
    uint64_t address, alarm_us, epoch;
    const qr_actor_class_t *actor;
    void *state;
    void (*handle)(pump_t *pump, void *context, const qr_message_t *message);
    void *context;
    letter_t *first[PUMP_ACTORS], *last[PUMP_ACTORS]; /* by sender */
    uint16_t open[PUMP_ACTORS][QR_MESSAGE_TYPES_MAX]; /* questions this member has open at the other */
} member_t;

struct pump {
    const qr_given_t *given;
    member_t members[PUMP_ACTORS];
    uint32_t count;
    uint64_t now_us, delivered, queued;
    qr_prng_t prng;
    qr_outbox_t outbox;
    qr_message_t *messages;
    uint8_t *bytes, *scratch, *arena;
    void (*seen)(pump_t *pump, const qr_message_t *message); /* NULL or told of every message before it is handled */
    void *context;
};

static inline member_t *pump_find(pump_t *pump, uint64_t address)
{
    for (uint32_t i = 0; i < pump->count; i++)
        if (pump->members[i].address == address) return &pump->members[i];
    return NULL;
}

static inline void pump_init(pump_t *pump, const qr_given_t *given, uint64_t seed)
{
    memset(pump, 0, sizeof *pump);
    pump->given = given;
    pump->now_us = 1000000;
    qr_prng_init(&pump->prng, seed);
    pump->messages = calloc(2048, sizeof *pump->messages);
    pump->bytes = aligned_alloc(64, QR_OUTBOX_BYTES);
    pump->scratch = malloc(PUMP_BYTES);
    pump->arena = aligned_alloc(64, PUMP_BYTES * 2);
    qr_outbox_init(&pump->outbox, pump->messages, 0, pump->bytes, QR_OUTBOX_BYTES);
}

static inline void pump_done(pump_t *pump)
{
    for (uint32_t i = 0; i < pump->count; i++) {
        for (uint32_t s = 0; s < PUMP_ACTORS; s++)
            while (pump->members[i].first[s]) {
                letter_t *letter = pump->members[i].first[s];
                pump->members[i].first[s] = letter->next;
                free(letter);
            }
        free(pump->members[i].state);
    }
    free(pump->messages);
    free(pump->bytes);
    free(pump->scratch);
    free(pump->arena);
}

static inline member_t *pump_add(pump_t *pump, uint64_t address, const qr_actor_class_t *actor,
                                 void (*handle)(pump_t *, void *, const qr_message_t *), void *context)
{
    member_t *member = &pump->members[pump->count++];
    qr_assert(pump->count <= PUMP_ACTORS);
    member->address = address;
    member->alarm_us = QR_NEVER_US;
    member->epoch = 1;
    member->actor = actor;
    member->handle = handle;
    member->context = context;
    if (actor) {
        member->state = calloc(1, actor->bytes(pump->given));
        actor->init(member->state, pump->given, address);
    }
    return member;
}

static inline void pump_credit(pump_t *pump, member_t *from, member_t *to, uint16_t type)
{
    const qr_schema_t *row = qr_schema_find(type);
    uint8_t a = qr_address_role(from->address), b = qr_address_role(to->address);
    if (a == QR_ROLE_mesh || b == QR_ROLE_mesh) return;
    if (!qr_roles_may(a, b, type)) {
        fprintf(stderr, "role %u may not say %s to role %u\n", a, row->name, b);
        abort();
    }
    if (row->mood == QR_MOOD_ASK) qr_assert(++from->open[to - pump->members][type] <= qr_roles_window(a, b, type));
    if (row->mood == QR_MOOD_ANSWER) qr_assert(to->open[from - pump->members][row->question]-- > 0);
}

static inline void pump_send(pump_t *pump, uint64_t from, uint64_t to, uint16_t type, const void *body)
{
    member_t *sender = pump_find(pump, from), *receiver = pump_find(pump, to);
    qr_assert(sender && receiver);
    pump_credit(pump, sender, receiver, type);
    qr_message_t message = {.type = type, .version = QR_MESSAGE_VERSION, .from = from, .to = to, .epoch = sender->epoch, .sequence = 1};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    int64_t bytes = qr_codec_encode(&message, pump->scratch, PUMP_BYTES);
    qr_assert(bytes > 0);
    letter_t *letter = malloc(sizeof *letter + (size_t)bytes);
    letter->next = NULL;
    letter->bytes = (size_t)bytes;
    memcpy(letter->data, pump->scratch, (size_t)bytes);
    uint32_t s = (uint32_t)(sender - pump->members);
    if (receiver->last[s])
        receiver->last[s]->next = letter;
    else
        receiver->first[s] = letter;
    receiver->last[s] = letter;
    pump->queued++;
}
/* PUMP_SEND(pump, from, to, offer, .request_id = 7, ...) */
#define PUMP_SEND(pump, from, to, name, ...) pump_send((pump), (from), (to), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

static inline void pump_handle(pump_t *pump, member_t *member, qr_message_t *message)
{
    message->now_us = pump->now_us;
    pump->delivered++;
    if (pump->seen) pump->seen(pump, message);
    if (member->handle) {
        member->handle(pump, member->context, message);
        return;
    }
    qr_outbox_reset(&pump->outbox, member->actor->max_out);
    pump->outbox.alarm_us = member->alarm_us;
    member->actor->handle(member->state, pump->given, message, &pump->outbox);
    member->alarm_us = pump->outbox.alarm_us;
    if (member->actor->check) member->actor->check(member->state, pump->given);
    for (uint32_t i = 0; i < pump->outbox.count; i++)
        pump_send(pump, member->address, pump->messages[i].to, pump->messages[i].type, &pump->messages[i].body);
}

/* One piece of work of an io actor; returns when it wants to be looked at again. */
static inline uint64_t pump_work(pump_t *pump, member_t *member)
{
    qr_outbox_reset(&pump->outbox, member->actor->max_out);
    uint64_t look_us = member->actor->work(member->state, pump->given, pump->now_us, &pump->outbox);
    for (uint32_t i = 0; i < pump->outbox.count; i++)
        pump_send(pump, member->address, pump->messages[i].to, pump->messages[i].type, &pump->messages[i].body);
    return pump->outbox.count ? 0 : look_us;
}

/* Delivers one message of a pair drawn at random; false when nothing is queued. */
static inline bool pump_deliver(pump_t *pump)
{
    if (pump->queued == 0) return false;
    for (;;) {
        member_t *member = &pump->members[qr_prng_below(&pump->prng, pump->count)];
        uint32_t s = (uint32_t)qr_prng_below(&pump->prng, pump->count);
        letter_t *letter = member->first[s];
        if (letter == NULL) continue;
        member->first[s] = letter->next;
        if (letter->next == NULL) member->last[s] = NULL;
        pump->queued--;
        qr_arena_t arena;
        qr_message_t message;
        qr_arena_init(&arena, pump->arena, PUMP_BYTES * 2);
        qr_assert(qr_codec_decode(letter->data, letter->bytes, &arena, &message) == 0);
        free(letter);
        pump_handle(pump, member, &message);
        return true;
    }
}

static inline bool pump_alarms(pump_t *pump)
{
    bool fired = false;
    for (uint32_t i = 0; i < pump->count; i++) {
        member_t *member = &pump->members[i];
        if (member->alarm_us > pump->now_us) continue;
        qr_message_t message = {.type = QR_MESSAGE_alarm, .version = 1, .from = member->address, .to = member->address};
        message.body.alarm.due_us = member->alarm_us;
        member->alarm_us = QR_NEVER_US;
        pump_handle(pump, member, &message);
        fired = true;
    }
    return fired;
}

/* Moves time to the next alarm and fires it; false when none is armed. */
static inline bool pump_sleep(pump_t *pump)
{
    uint64_t due_us = QR_NEVER_US;
    for (uint32_t i = 0; i < pump->count; i++) due_us = qr_min_u64(due_us, pump->members[i].alarm_us);
    if (due_us == QR_NEVER_US) return false;
    pump->now_us = qr_max_u64(pump->now_us, due_us);
    return pump_alarms(pump);
}

#endif
