/* toy.h - small actors under real roles, for tests of hosts, mesh, uplink and record. They know just enough to talk. */
#ifndef QR_TOY_H
#define QR_TOY_H

#include "actors/actor.h"
#include "actors/note.h"
#include "messages/schema.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct toy {
    uint64_t address, epoch, partner_count;
    uint64_t partners[QR_PARTNERS_MAX];
    uint64_t sent, answered, received, alarms, pieces, links_up, links_down, up, left, open_probes, work_left, probe_from;
    uint64_t last_us;
} toy_t;

static uint64_t toy_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(toy_t);
}
static void toy_init(void *self, const qr_given_t *given, uint64_t address)
{
    (void)given;
    ((toy_t *)self)->address = address;
}
static void toy_print(const void *self, const qr_given_t *given, qr_text_t *text)
{
    (void)self, (void)given;
    qr_text_put(text, "toy\n");
}
static inline void toy_check(const void *self, const qr_given_t *given)
{
    const toy_t *toy = self;
    (void)given;
    qr_assert(toy->answered <= toy->sent);
}

/* What every toy does: start, drain, stop, links. true: handled. */
static bool toy_life(toy_t *toy, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy->last_us = m->now_us;
    switch (m->type) {
    case QR_MESSAGE_start:
        toy->epoch = m->body.start.epoch;
        toy->partner_count = m->body.start.partners.count;
        qr_copy(toy->partners, m->body.start.partners.data, toy->partner_count * 8);
        qr_send(outbox, m->from, ready, (&(qr_ready_t){0}));
        return true;
    case QR_MESSAGE_drain: qr_send(outbox, m->from, drained, (&(qr_drained_t){0})); return true;
    case QR_MESSAGE_stop: qr_send(outbox, m->from, stopped, (&(qr_stopped_t){0})); return true;
    case QR_MESSAGE_link_up: toy->links_up++, toy->up = 1; return true;
    case QR_MESSAGE_link_down: toy->links_down++, toy->up = 0; return true; /* also the answer of each question for a node that is down */
    default: return false;
    }
}

static inline qr_given_t *toy_given(void)
{
    qr_given_t *given = calloc(1, sizeof *given);
    qr_params_init(&given->params);
    return given;
}

#endif
