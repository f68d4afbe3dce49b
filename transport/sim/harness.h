/* harness.h - one pure actor in your hands, for tests, examples and curiosity: say a message to it, let time pass, read what it
 * says, see the conversation as arrows. examples/harness.c is a program to begin with.
 *
 *   qr_given_t given;
 *   qr_harness_given(&given);
 *   qr_harness_t *h = qr_harness_new(&qr_worker_class, &given, qr_address(1, 1, QR_ROLE_worker, 0), stdout);
 *   QR_HARNESS_SAY(h, router, probe, .probe_id = 7);              // --> probe 1.0.router.0 > 1.1.worker.0 probe_id=7
 *   const qr_probe_t *asked = QR_HARNESS_HEARD(h, probe);         // <-- probe 1.1.worker.0 > 1.1.scheduler.0 probe_id=1
 *
 * S1. Every message, both ways, is encoded and decoded by the codec: what a handler sees lies at a fresh address and is gone after it.
 * S2. Every message, both ways, is judged as in a host (pair.h): who may say what, credit, questions, sequence. What the actor may not
 *     say is not sent; qr_harness_fault tells the first such. What it may not be told does not reach it.
 * S3. The class's check runs after every call. Time moves only in qr_harness_pass; an alarm fires at the very time it was armed for. */
#ifndef QR_HARNESS_H
#define QR_HARNESS_H

#include "actors/actor.h"
#include "transport/pair.h"

#include <stdio.h>

enum {
    QR_HARNESS_SAID_MAX = 4096,       /* messages kept of one say or pass; more are shown and judged, but cannot be read back */
    QR_HARNESS_SAID_BYTES = 16 << 20, /* and bytes of their columns */
    QR_HARNESS_ALARMS_MAX = 1000000   /* alarms of one pass; an actor that never lets time move on ends it there */
};

typedef struct qr_harness qr_harness_t;

/* Defaults of every parameter and a layout small enough to follow by eye: one group of 8 pages of 4 rows, context 64. */
void qr_harness_given(qr_given_t *given);
/* Makes the actor. `out` gets the conversation, a line for each message; NULL: nobody does. The clock begins at 1 s. NULL: not enough
 * memory. `given` is the caller's and outlives the harness. */
qr_harness_t *qr_harness_new(const qr_actor_class_t *actor, const qr_given_t *given, uint64_t address, FILE *out);
/* Accepts NULL, leaves NULL. */
void qr_harness_destroy(qr_harness_t **harness);

/* Says a message in the name of `from`: body is the struct of the type. Returns the verdict; unless it is OK nothing was handled. What
 * was kept of the last say or pass is gone. */
qr_verdict_t qr_harness_say(qr_harness_t *harness, uint64_t from, uint16_t type, const void *body);
#define QR_HARNESS_SAY(harness, from, name, ...) qr_harness_say((harness), (from), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})
/* The same with an envelope made by hand (from, epoch, sequence): repeats, gaps, another incarnation. `to` is filled in. */
qr_verdict_t qr_harness_deliver(qr_harness_t *harness, const qr_message_t *message);
/* Moves the clock by so much and fires the alarms that come due, each at its time. Returns how many. */
uint32_t qr_harness_pass(qr_harness_t *harness, uint64_t us);

/* How many messages the last say or pass brought, and each of them: its columns live until the next one. */
uint32_t qr_harness_count(const qr_harness_t *harness);
const qr_message_t *qr_harness_message(const qr_harness_t *harness, uint32_t index);
/* The nth of a type, NULL without one. */
const qr_message_t *qr_harness_heard(const qr_harness_t *harness, uint16_t type, uint32_t nth);
/* The body of the first of that type, NULL without one. */
const void *qr_harness_body(const qr_harness_t *harness, uint16_t type);
#define QR_HARNESS_HEARD(harness, name) ((const qr_##name##_t *)qr_harness_body((harness), QR_MESSAGE_##name))

uint64_t qr_harness_now_us(const qr_harness_t *harness);
uint64_t qr_harness_alarm_us(const qr_harness_t *harness); /* QR_NEVER_US: none is armed */
/* The first verdict on what the actor may not say; QR_VERDICT_OK while there is none. */
qr_verdict_t qr_harness_fault(const qr_harness_t *harness);
/* A line of your own between the arrows, and the actor's state in its own words. */
void qr_harness_remark(qr_harness_t *harness, const char *line);
void qr_harness_state(qr_harness_t *harness);

/* Columns from literals: .tokens = QR_U32S(1, 2, 3). */
#define QR_U32S(...)                                                                                                                       \
    {                                                                                                                                      \
        (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4                                                       \
    }
#define QR_U64S(...)                                                                                                                       \
    {                                                                                                                                      \
        (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8                                                       \
    }

#endif
