/* judge.c - see judge.h. */
#include "transport/sim/judge.h"

#include "base/error.h"
#include "base/prng.h"
#include "messages/schema.h"
#include "transport/sim/device.h"
#include "transport/sim/world.h"

#include <stdlib.h>

enum { PLACES = 1 << 14, WAIT_US = 1000000, SLACK_US = 20000, BATCHES = 6, LINK_TIMES = 40, LOCAL_TIMES = 200 };

typedef struct entry {
    uint64_t id, key;
    uint64_t placed_us;  /* it waits for a worker since; 0: it does not */
    uint64_t offered_us; /* its offer is open since; 0: none is */
    uint64_t offered_order, worker;
    uint64_t router, holder; /* the worker that was offered it last, until it is lost or let go; 0: none */
    uint64_t answered_us;    /* its client was answered or its gateway let it go; 0: not yet */
    uint32_t attempt, scope, losses, unused;
} entry_t;

/* What a router was told of one worker, by the order of all messages. */
typedef struct told {
    uint64_t heard, lost, epoch;
} told_t;

struct qr_sim_judge {
    qr_sim_judge_config_t config;
    uint64_t calm_from_us, now_us, order;
    uint64_t submitting;     /* key of the submit that a gateway is just handling; 0: another message */
    entry_t entries[PLACES]; /* by request id */
    uint64_t ids[PLACES];    /* by key: the request id; 0 = none */
    told_t told[];           /* [nodes][QR_NODES_MAX][devices] */
};

static qr_sim_judge_t *judge_of(const qr_given_t *given) { return qr_sim_given(given)->judge; }
static uint32_t place_of(uint64_t number) { return (uint32_t)(qr_mix_u64(number) % PLACES); }

static entry_t *find(qr_sim_judge_t *self, uint64_t id)
{
    entry_t *e = &self->entries[place_of(id)];
    return id && e->id == id ? e : NULL;
}

static told_t *told_of(qr_sim_judge_t *self, uint64_t router, uint64_t worker)
{
    uint32_t device = qr_address_device(worker), node = qr_address_node(router) - 1;
    if (node >= self->config.nodes || device == 0 || device > self->config.devices) return NULL;
    uint64_t at = ((uint64_t)node * QR_NODES_MAX + (qr_address_node(worker) - 1) % QR_NODES_MAX) * self->config.devices + device - 1;
    return &self->told[at];
}

qr_sim_judge_t *qr_sim_judge_new(const qr_sim_judge_config_t *config)
{
    uint64_t told = (uint64_t)config->nodes * QR_NODES_MAX * config->devices;
    qr_sim_judge_t *self = calloc(1, sizeof *self + told * sizeof(told_t));
    if (!self) return NULL;
    self->config = *config;
    self->calm_from_us = QR_NEVER_US;
    return self;
}

void qr_sim_judge_destroy(qr_sim_judge_t **judge)
{
    free(*judge);
    *judge = NULL;
}

void qr_sim_judge_calm(qr_sim_judge_t *judge, uint64_t from_us) { judge->calm_from_us = from_us; }

/* ---- gateways: who a request is, and when it is over ------------------------------------------------------------------------------------
 */

static entry_t *begin(qr_sim_judge_t *self, uint64_t id)
{
    entry_t *e = find(self, id);
    if (e) return e;
    e = &self->entries[place_of(id)];
    *e = (entry_t){.id = id, .key = self->submitting};
    if (self->submitting) self->ids[place_of(self->submitting)] = id;
    return e;
}

static uint32_t scope_of(qr_bytes_t tenant, qr_bytes_t cache)
{
    uint64_t h = qr_mix_u64(tenant.count << 8 | cache.count);
    for (uint64_t i = 0; i < tenant.count; i++) h = qr_mix_u64(h ^ tenant.data[i]);
    for (uint64_t i = 0; i < cache.count; i++) h = qr_mix_u64(h ^ cache.data[i]);
    return (uint32_t)h | 1;
}

static void over(qr_sim_judge_t *self, uint64_t key)
{
    entry_t *e = find(self, self->ids[place_of(key)]);
    if (e && e->key == key && !e->answered_us) e->answered_us = self->now_us;
}

static void gateway_says(qr_sim_judge_t *self, const qr_message_t *m)
{
    entry_t *e;
    switch (m->type) {
    case QR_MESSAGE_text_encode: (void)begin(self, m->body.text_encode.request_id); break;
    case QR_MESSAGE_place:
        e = begin(self, m->body.place.request_id);
        e->scope = scope_of(m->body.place.tenant_salt, m->body.place.cache_salt);
        break;
    case QR_MESSAGE_request_finished: over(self, m->body.request_finished.key); break;
    case QR_MESSAGE_request_refused: over(self, m->body.request_refused.key); break;
    case QR_MESSAGE_place_cancel:
        e = find(self, m->body.place_cancel.request_id);
        if (e && !e->answered_us) e->answered_us = self->now_us;
        break;
    default: break;
    }
}

/* ---- routers
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Whether a node paused at some time since then: what it does in time is late. */
static bool paused_since(const qr_sim_judge_t *self, uint64_t address, uint64_t since_us)
{
    for (uint32_t i = 0; i < self->config.fault_count; i++) {
        const qr_sim_fault_t *f = &self->config.faults[i];
        bool of_node = f->kind == QR_FAULT_PAUSE && f->node % self->config.nodes == qr_address_node(address) - 1;
        if (of_node && f->at_us <= self->now_us && f->at_us + f->for_us >= since_us) return true;
    }
    return false;
}

/* The request waits no longer (J1). */
static void waited(qr_sim_judge_t *self, uint64_t router, entry_t *e)
{
    uint64_t us = e->placed_us ? self->now_us - e->placed_us : 0;
    bool paused = paused_since(self, router, e->placed_us);
    e->placed_us = 0;
    if (us > WAIT_US + SLACK_US && !paused)
        qr_sim_finding("request %llx waited %llu us for a worker and was not answered", (unsigned long long)e->id, (unsigned long long)us);
}

/* Its open offer is over (J2); late: it may be over only in time. */
static void offer_over(qr_sim_judge_t *self, const qr_given_t *given, uint64_t router, entry_t *e, bool late)
{
    uint64_t us = e->offered_us ? self->now_us - e->offered_us : 0;
    const told_t *told = e->offered_us ? told_of(self, router, e->worker) : NULL;
    bool paused = paused_since(self, router, e->offered_us);
    e->offered_us = 0;
    if (!late || !told || told->lost > e->offered_order || paused) return;
    if (us > given->params.offer_timeout_ms * 1000 + SLACK_US)
        qr_sim_finding("an offer of request %llx was open for %llu us", (unsigned long long)e->id, (unsigned long long)us);
}

static void router_offers(qr_sim_judge_t *self, const qr_message_t *m)
{
    const qr_offer_t *b = &m->body.offer;
    const told_t *told = told_of(self, m->from, m->to);
    if (told && told->lost > told->heard)
        qr_sim_finding("a request was offered to a worker of node %u after that node was told to be down", qr_address_node(m->to));
    entry_t *e = find(self, b->request_id);
    if (!e) return;
    waited(self, m->from, e);
    e->offered_us = self->now_us;
    e->offered_order = self->order;
    e->worker = e->holder = m->to;
    e->router = m->from;
    e->attempt = b->attempt;
}

static void router_says(qr_sim_judge_t *self, const qr_given_t *given, const qr_message_t *m)
{
    entry_t *e;
    switch (m->type) {
    case QR_MESSAGE_offer: router_offers(self, m); break;
    case QR_MESSAGE_place_refused:
    case QR_MESSAGE_place_ended:
        e = find(self, m->type == QR_MESSAGE_place_refused ? m->body.place_refused.request_id : m->body.place_ended.request_id);
        if (!e) break;
        waited(self, m->from, e);
        e->offered_us = e->holder = 0;
        break;
    case QR_MESSAGE_offer_cancel:
        e = find(self, m->body.offer_cancel.request_id);
        if (!e || e->attempt != m->body.offer_cancel.attempt) break;
        e->holder = 0;
        offer_over(self, given, m->from, e, false);
        break;
    default: break;
    }
}

static void router_answered(qr_sim_judge_t *self, const qr_given_t *given, const qr_message_t *m, uint64_t id, uint32_t attempt)
{
    entry_t *e = find(self, id);
    if (e && e->offered_us && e->attempt == attempt && e->worker == m->from) offer_over(self, given, m->to, e, true);
}

/* What a router heard takes its requests from the workers of a node; device 0: from all of them. */
static void requests_lost(qr_sim_judge_t *self, uint64_t router, uint32_t node, uint32_t device)
{
    for (uint32_t i = 0; i < PLACES; i++) {
        entry_t *e = &self->entries[i];
        if (!e->holder || e->router != router || qr_address_node(e->holder) != node) continue;
        if (device && qr_address_device(e->holder) != device) continue;
        e->holder = 0;
        e->losses++;
    }
}

static void worker_lost(qr_sim_judge_t *self, uint64_t router, uint32_t node)
{
    requests_lost(self, router, node, 0);
    for (uint32_t d = 1; d <= self->config.devices; d++) {
        told_t *told = told_of(self, router, qr_address(node, (uint8_t)d, QR_ROLE_worker, 0));
        if (told) told->lost = self->order;
    }
}

static void router_observes(qr_sim_judge_t *self, const qr_message_t *m)
{
    const qr_observation_t *b = &m->body.observation;
    told_t *told = told_of(self, m->to, b->worker);
    if (!told) return;
    if (told->epoch != b->worker_epoch || b->state == QR_STATE_DOWN) { /* what it had is lost */
        told->lost = self->order;
        requests_lost(self, m->to, qr_address_node(b->worker), qr_address_device(b->worker));
    }
    told->heard = self->order;
    told->epoch = b->worker_epoch;
}

static void router_hears(qr_sim_judge_t *self, const qr_given_t *given, const qr_message_t *m)
{
    entry_t *e;
    switch (m->type) {
    case QR_MESSAGE_place:
        e = find(self, m->body.place.request_id);
        if (e) e->placed_us = self->now_us;
        break;
    case QR_MESSAGE_place_cancel:
        e = find(self, m->body.place_cancel.request_id);
        if (!e) break;
        waited(self, m->to, e);
        offer_over(self, given, m->to, e, true);
        break;
    case QR_MESSAGE_offer_accepted:
        router_answered(self, given, m, m->body.offer_accepted.request_id, m->body.offer_accepted.attempt);
        break;
    case QR_MESSAGE_offer_refused:
        router_answered(self, given, m, m->body.offer_refused.request_id, m->body.offer_refused.attempt);
        e = find(self, m->body.offer_refused.request_id);
        if (e && e->attempt == m->body.offer_refused.attempt) e->holder = 0;
        break;
    case QR_MESSAGE_tokens:
        for (uint64_t i = 0; i < m->body.tokens.request_ids.count; i++)
            router_answered(self, given, m, m->body.tokens.request_ids.data[i], m->body.tokens.attempts.data[i]);
        break;
    case QR_MESSAGE_observation: router_observes(self, m); break;
    case QR_MESSAGE_peer_down: worker_lost(self, m->to, m->body.peer_down.node); break;
    case QR_MESSAGE_link_down: worker_lost(self, m->to, m->body.link_down.node); break;
    default: break;
    }
}

/* ---- what it is told
 * ------------------------------------------------------------------------------------------------------------------------ */

void qr_sim_judge_see(const qr_given_t *given, uint64_t actor, const qr_message_t *message, uint64_t now_us)
{
    qr_sim_judge_t *self = judge_of(given);
    uint8_t role = qr_address_role(actor);
    bool says = message->from == actor;
    if (actor & 0xffff) return; /* an asker of the catalog in a router's role */
    self->now_us = now_us;
    self->order++;
    if (!says) self->submitting = message->type == QR_MESSAGE_request_submit ? message->body.request_submit.key : 0;
    if (role == QR_ROLE_gateway && says) gateway_says(self, message);
    if (role == QR_ROLE_router && says) router_says(self, given, message);
    if (role == QR_ROLE_router && !says) router_hears(self, given, message);
}

void qr_sim_judge_computes(const qr_given_t *given, uint64_t request_id)
{
    qr_sim_judge_t *self = judge_of(given);
    const entry_t *e = self ? find(self, request_id) : NULL;
    if (!e || !e->answered_us || e->answered_us < self->calm_from_us) return;
    const qr_sim_judge_config_t *c = &self->config;
    uint64_t most_us = LINK_TIMES * c->link_us + LOCAL_TIMES * c->local_us + BATCHES * c->batch_us;
    uint64_t now_us = qr_world_now_us(qr_sim_world());
    if (now_us > e->answered_us + most_us)
        qr_sim_finding("rows of request %llx are computed %llu us after its client was answered", (unsigned long long)request_id,
                       (unsigned long long)(now_us - e->answered_us));
}

uint32_t qr_sim_judge_scope(const qr_given_t *given, uint64_t request_id)
{
    qr_sim_judge_t *self = judge_of(given);
    const entry_t *e = self ? find(self, request_id) : NULL;
    return e ? e->scope : 0;
}

uint32_t qr_sim_judge_losses(const qr_given_t *given, uint64_t key)
{
    qr_sim_judge_t *self = judge_of(given);
    const entry_t *e = self ? find(self, self->ids[place_of(key)]) : NULL;
    return e && e->key == key ? e->losses : 0;
}
