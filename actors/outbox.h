/* outbox.h - where a handler puts what it has to say. Structs and columns are copied at once, so a sender may reuse its
 * scratch. Pure: part of every actor's closure.
 *
 * O1. count <= capacity (the actor's max_out); a send beyond it or beyond the bytes is our own mistake (assert).
 * O2. alarm_us holds the armed alarm on entry and is armed as it stands on return (absolute; QR_NEVER_US = none). */
#ifndef QR_OUTBOX_H
#define QR_OUTBOX_H

#include "messages/message.h"

typedef struct qr_note {
    uint32_t code;       /* actors/note.def */
    uint32_t level;      /* 0 error, 1 warn, 2 info, 3 trace */
    uint64_t request_id; /* 0 = none */
    uint64_t a, b, c;
} qr_note_t;

typedef struct qr_outbox {
    uint64_t alarm_us;
    uint32_t count, capacity;
    uint32_t note_count, notes_dropped;
    uint64_t bytes_used, bytes_capacity;
    uint8_t *bytes;                 /* [bytes_capacity] 8-byte aligned: columns of the messages below */
    qr_message_t *messages;         /* [capacity]; type, to and body are set here, the rest by the host */
    qr_note_t notes[QR_NOTES_MAX];
} qr_outbox_t;

/* Prepares an outbox over caller's memory. messages: [capacity]; bytes: 8-byte aligned. */
void qr_outbox_init(qr_outbox_t *outbox, qr_message_t *messages, uint32_t capacity, void *bytes, uint64_t bytes_capacity);
/* Empties it for the next call with room for `capacity` messages; the armed alarm is the caller's to set. */
void qr_outbox_reset(qr_outbox_t *outbox, uint32_t capacity);
/* Appends a message: body is the struct of `type` (qr_<name>_t); its columns are copied. */
void qr_outbox_send(qr_outbox_t *outbox, uint64_t to, uint16_t type, const void *body);
/* qr_send(outbox, to, offer, &body): checks at compile time that body is a qr_offer_t; a compound literal may stand there too. */
#define qr_send(outbox, to, name, ...) \
    qr_outbox_send((outbox), (to), QR_MESSAGE_##name, (1 ? (__VA_ARGS__) : (const qr_##name##_t *)0))
/* Notes are what an actor logs. More than QR_NOTES_MAX per call are counted and dropped. */
void qr_outbox_note(qr_outbox_t *outbox, uint32_t level, uint32_t code, uint64_t request_id, uint64_t a, uint64_t b, uint64_t c);
/* Arms the alarm to fire at the earlier of what is armed and at_us. */
static inline void qr_outbox_alarm(qr_outbox_t *outbox, uint64_t at_us)
{
    if (at_us < outbox->alarm_us) outbox->alarm_us = at_us;
}

#endif
