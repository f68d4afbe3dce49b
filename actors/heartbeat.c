/* heartbeat.c - owns what this node knows of the health of workers and of other nodes.
 *
 *   worker -- observation --> heartbeat -- observation --> router of this node
 *                                 | -- observation, beat --> heartbeat of every other node --> its router
 *                                 | -- peer_down --> router, worker and catalog_replica of this node, after silence
 *
 * H1. Only ages cross between actors, never instants: what was heard grows older by this actor's own clock (now_us, monotonic)
 *     before it is passed on. Wall clocks and differences between nodes' clocks play no part.
 * H2. A node is down when nothing was heard from it for more than peer_down_ms of time in which this actor was awake: an alarm that
 *     fires late moves every `heard` by the lateness, because what others said meanwhile may still lie in the inbox.
 * H3. Of one worker the newest observation counts: another epoch (it began anew; uplinks let no message of an ended session through),
 *     then larger sequence. The same one may be said again, older. Epochs are only compared for equality and are never 0; what was
 *     known of a node's epochs ends with its link.
 * H4. A node speaks for its own workers only. */
#include "actors/heartbeat.h"

#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"

enum { LATE_BEATS = 3 }; /* an alarm later than so many beats means that this thread did not run */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct peer {
    uint64_t address;              /* its heartbeat */
    uint64_t node_epoch, sequence; /* of its newest beat; epoch 0 = never heard */
    uint64_t heard_us;             /* when */
    uint32_t state;                /* QR_STATE_* it says; QR_STATE_DOWN while silent or never heard */
    uint32_t unused;
} peer_t;

typedef struct local {
    uint64_t worker;      /* address; 0 = free */
    uint64_t received_us; /* when observation was received; its age_us is of that moment */
    uint64_t worker_epoch, sequence, age_us, tokens_queued, prefill_row_ns, prefill_samples, step_us, step_samples;
    uint32_t state, lanes_max, requests_open, context_tokens, pages_free, pages_pool;
    uint8_t fingerprint[32];
} local_t;

typedef struct heartbeat {
    uint64_t address, epoch, sequence;
    uint64_t beat_us, down_us; /* configuration */
    uint64_t next_beat_us;
    uint64_t peers_down_total;
    uint64_t replica;                                            /* catalog_replica of this node, 0 = none */
    uint64_t routers[QR_PARTNERS_MAX], workers[QR_PARTNERS_MAX]; /* of this node */
    peer_t peers[QR_NODES_MAX];
    local_t locals[QR_PARTNERS_MAX];
    uint32_t router_count, worker_count, peer_count, local_count;
    uint32_t state; /* QR_STATE_* of this node */
    uint32_t unused;
} heartbeat_t;
#pragma GCC diagnostic pop

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static uint64_t heartbeat_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(heartbeat_t);
}

static void heartbeat_init(void *block, const qr_given_t *given, uint64_t address)
{
    heartbeat_t *self = block;
    self->address = address;
    self->beat_us = given->params.beat_ms * 1000;
    self->down_us = given->params.peer_down_ms * 1000;
    self->state = QR_STATE_STARTING;
    self->next_beat_us = QR_NEVER_US;
}

static void add_partner(heartbeat_t *self, uint64_t partner)
{
    bool here = qr_address_node(partner) == qr_address_node(self->address);
    uint8_t role = qr_address_role(partner);
    if (here && role == QR_ROLE_router && self->router_count < QR_PARTNERS_MAX) self->routers[self->router_count++] = partner;
    if (here && role == QR_ROLE_catalog_replica) self->replica = partner;
    if (here && role == QR_ROLE_worker && self->worker_count < QR_PARTNERS_MAX) self->workers[self->worker_count++] = partner;
    if (!here && role == QR_ROLE_heartbeat && self->peer_count < QR_NODES_MAX)
        self->peers[self->peer_count++] = (peer_t){.address = partner, .state = QR_STATE_DOWN};
}

static void on_start(heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->epoch = b->epoch;
    self->state = QR_STATE_READY;
    for (uint64_t i = 0; i < b->partners.count; i++) add_partner(self, b->partners.data[i]);
    self->next_beat_us = message->now_us;
    qr_outbox_alarm(outbox, self->next_beat_us);
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->peer_count, self->router_count);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

/* ---- observations ------------------------------------------------------------------------------------------------------- */

static qr_observation_t aged(const heartbeat_t *self, const local_t *l, uint64_t now_us)
{
    qr_observation_t body = {
        .worker = l->worker,
        .worker_epoch = l->worker_epoch,
        .sequence = l->sequence,
        .age_us = l->age_us + (now_us - qr_min_u64(l->received_us, now_us)),
        .state = (uint8_t)l->state,
        .lanes_max = l->lanes_max,
        .requests_open = l->requests_open,
        .tokens_queued = l->tokens_queued,
        .context_tokens = l->context_tokens,
        .pages_free = l->pages_free,
        .pages_pool = l->pages_pool,
        .prefill_row_ns = l->prefill_row_ns,
        .prefill_samples = l->prefill_samples,
        .step_us = l->step_us,
        .step_samples = l->step_samples,
    };
    memcpy(body.fingerprint.bytes, l->fingerprint, 32);
    if (QR_MUTANT(231)) body.age_us = l->age_us;
    bool ours = qr_address_node(l->worker) == qr_address_node(self->address); /* a worker elsewhere goes on */
    if (ours && self->state == QR_STATE_DRAINING && body.state == QR_STATE_READY) body.state = QR_STATE_DRAINING;
    return body;
}

/* To the routers of this node and, when the worker is of this node, to every other node's heartbeat. */
static void pass_on(const heartbeat_t *self, const local_t *l, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_observation_t body = aged(self, l, now_us);
    for (uint32_t i = 0; i < self->router_count; i++) qr_send(outbox, self->routers[i], observation, &body);
    if (qr_address_node(l->worker) != qr_address_node(self->address)) return;
    for (uint32_t i = 0; i < self->peer_count; i++) qr_send(outbox, self->peers[i].address, observation, &body);
}

static local_t *find_local(heartbeat_t *self, uint64_t worker)
{
    for (uint32_t i = 0; i < self->local_count; i++)
        if (self->locals[i].worker == worker) return &self->locals[i];
    if (self->local_count == QR_PARTNERS_MAX) return NULL;
    self->locals[self->local_count] = (local_t){.worker = worker};
    return &self->locals[self->local_count++];
}

static void keep(local_t *l, const qr_observation_t *b, uint64_t now_us)
{
    *l = (local_t){
        .worker = b->worker,
        .received_us = now_us,
        .worker_epoch = b->worker_epoch,
        .sequence = b->sequence,
        .age_us = b->age_us,
        .tokens_queued = b->tokens_queued,
        .prefill_row_ns = b->prefill_row_ns,
        .prefill_samples = b->prefill_samples,
        .step_us = b->step_us,
        .step_samples = b->step_samples,
        .state = b->state,
        .lanes_max = b->lanes_max,
        .requests_open = b->requests_open,
        .context_tokens = b->context_tokens,
        .pages_free = b->pages_free,
        .pages_pool = b->pages_pool,
    };
    memcpy(l->fingerprint, b->fingerprint.bytes, 32);
}

static void on_observation(heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_observation_t *b = &message->body.observation;
    bool own = qr_address_node(b->worker) == qr_address_node(message->from); /* H4 */
    if (!own || qr_address_role(b->worker) != QR_ROLE_worker || b->age_us > QR_NEVER_US / 2 || b->worker_epoch == 0) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_protocol, 0, message->type, message->from, b->worker);
        return;
    }
    local_t *l = find_local(self, b->worker);
    if (!l) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, QR_E_LIMIT, b->worker, QR_PARTNERS_MAX);
        return;
    }
    bool older = b->worker_epoch == l->worker_epoch && b->sequence < l->sequence; /* H3 */
    if (older && !QR_MUTANT(232)) {
        qr_outbox_note(outbox, QR_LEVEL_TRACE, QR_NOTE_stale, 0, message->type, b->sequence, l->sequence);
        return;
    }
    keep(l, b, message->now_us);
    pass_on(self, l, message->now_us, outbox);
}

/* ---- other nodes ----------------------------------------------------------------------------------------------------------- */

static peer_t *find_peer(heartbeat_t *self, uint64_t address)
{
    for (uint32_t i = 0; i < self->peer_count; i++)
        if (self->peers[i].address == address) return &self->peers[i];
    return NULL;
}

static void declare_down(heartbeat_t *self, peer_t *peer, uint64_t silence_us, qr_outbox_t *outbox)
{
    uint32_t node = qr_address_node(peer->address);
    qr_peer_down_t body = {.node = node, .node_epoch = peer->node_epoch, .silence_us = silence_us};
    peer->state = QR_STATE_DOWN;
    self->peers_down_total++;
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_peer_down, 0, node, peer->node_epoch, silence_us);
    for (uint32_t i = 0; i < self->router_count; i++) qr_send(outbox, self->routers[i], peer_down, &body);
    for (uint32_t i = 0; i < self->worker_count; i++) qr_send(outbox, self->workers[i], peer_down, &body);
    if (self->replica) qr_send(outbox, self->replica, peer_down, &body);
}

static void on_beat(heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_beat_t *b = &message->body.beat;
    peer_t *peer = find_peer(self, message->from);
    if (!peer || b->node != qr_address_node(message->from) || b->node_epoch == 0) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_protocol, 0, message->type, message->from, b->node);
        return;
    }
    if (b->node_epoch == peer->node_epoch && b->sequence <= peer->sequence) {
        qr_outbox_note(outbox, QR_LEVEL_TRACE, QR_NOTE_stale, 0, message->type, b->sequence, peer->sequence);
        return;
    }
    bool was_up = peer->state != QR_STATE_DOWN;
    peer->node_epoch = b->node_epoch;
    peer->sequence = b->sequence;
    peer->heard_us = message->now_us;
    if (b->state == QR_STATE_DOWN) {
        if (was_up) declare_down(self, peer, 0, outbox); /* it says that it leaves */
        return;
    }
    peer->state = b->state;
    if (!was_up) qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_peer_up, 0, b->node, b->node_epoch, 0);
}

static void on_link_down(heartbeat_t *self, const qr_message_t *message)
{
    uint32_t node = message->body.link_down.node;
    for (uint32_t i = 0; i < self->peer_count; i++) {
        peer_t *peer = &self->peers[i];
        if (qr_address_node(peer->address) != node) continue;
        peer->node_epoch = peer->sequence = 0;
        self->peers_down_total += peer->state != QR_STATE_DOWN;
        peer->state = QR_STATE_DOWN; /* who must know hears it from its host */
    }
    for (uint32_t i = 0; i < self->local_count; i++)
        if (qr_address_node(self->locals[i].worker) == node) self->locals[i].worker_epoch = self->locals[i].sequence = 0;
}

/* ---- time -------------------------------------------------------------------------------------------------------------------- */

static void send_beats(heartbeat_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (self->peer_count) self->sequence++;
    qr_beat_t body = {
        .node = qr_address_node(self->address), .node_epoch = self->epoch, .sequence = self->sequence, .state = (uint8_t)self->state};
    for (uint32_t i = 0; i < self->peer_count; i++) qr_send(outbox, self->peers[i].address, beat, &body);
    for (uint32_t i = 0; i < self->local_count && self->peer_count; i++) {
        const local_t *l = &self->locals[i];
        if (qr_address_node(l->worker) != qr_address_node(self->address)) continue;
        qr_observation_t observation = aged(self, l, now_us);
        for (uint32_t k = 0; k < self->peer_count; k++) qr_send(outbox, self->peers[k].address, observation, &observation);
    }
}

static void on_alarm(heartbeat_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    outbox->alarm_us = QR_NEVER_US;
    if (self->next_beat_us == QR_NEVER_US) return;
    if (now_us >= self->next_beat_us) {
        uint64_t late_us = now_us - self->next_beat_us;
        bool away = late_us > LATE_BEATS * self->beat_us && !QR_MUTANT(230); /* H2 */
        for (uint32_t i = 0; i < self->peer_count; i++) {
            peer_t *peer = &self->peers[i];
            if (peer->state == QR_STATE_DOWN) continue;
            if (away) peer->heard_us = qr_min_u64(peer->heard_us + late_us, now_us);
            uint64_t silence_us = now_us - qr_min_u64(peer->heard_us, now_us);
            if (silence_us > self->down_us / (QR_MUTANT(459) ? 4 : 1)) declare_down(self, peer, silence_us, outbox);
        }
        send_beats(self, now_us, outbox);
        self->next_beat_us = now_us + self->beat_us;
    }
    qr_outbox_alarm(outbox, self->next_beat_us);
}

static void on_drain(heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->state = QR_STATE_DRAINING;
    for (uint32_t i = 0; i < self->local_count; i++)
        if (qr_address_node(self->locals[i].worker) == qr_address_node(self->address))
            pass_on(self, &self->locals[i], message->now_us, outbox);
    qr_send(outbox, message->from, drained, &(qr_drained_t){0});
}

static void on_stop(heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->state = QR_STATE_DOWN;
    self->sequence++;
    qr_beat_t body = {
        .node = qr_address_node(self->address), .node_epoch = self->epoch, .sequence = self->sequence, .state = QR_STATE_DOWN};
    for (uint32_t i = 0; i < self->peer_count; i++) qr_send(outbox, self->peers[i].address, beat, &body);
    self->next_beat_us = outbox->alarm_us = QR_NEVER_US;
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const heartbeat_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint64_t up = 0;
    for (uint32_t i = 0; i < self->peer_count; i++) up += self->peers[i].state != QR_STATE_DOWN;
    const uint32_t ids[] = {METRIC_peers_up, METRIC_peers_down_total};
    const uint64_t values[] = {up, self->peers_down_total};
    qr_send(outbox, message->from, metrics, &(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}});
}

/* ---- class --------------------------------------------------------------------------------------------------------------------- */

static void heartbeat_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    (void)given;
    heartbeat_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, message->now_us, outbox); break;
    case QR_MESSAGE_observation: on_observation(self, message, outbox); break;
    case QR_MESSAGE_beat: on_beat(self, message, outbox); break;
    case QR_MESSAGE_link_up: break; /* the first beat says so */
    case QR_MESSAGE_link_down: on_link_down(self, message); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

static void heartbeat_check(const void *block, const qr_given_t *given)
{
    (void)given;
    const heartbeat_t *self = block;
    qr_assert(self->router_count <= QR_PARTNERS_MAX && self->worker_count <= QR_PARTNERS_MAX && self->peer_count <= QR_NODES_MAX);
    qr_assert(self->local_count <= QR_PARTNERS_MAX);
    for (uint32_t i = 0; i < self->peer_count; i++) {
        const peer_t *peer = &self->peers[i];
        qr_assert(qr_address_role(peer->address) == QR_ROLE_heartbeat && qr_address_node(peer->address) != qr_address_node(self->address));
        qr_assert(peer->state == QR_STATE_DOWN || peer->node_epoch || peer->sequence);
    }
    for (uint32_t i = 0; i < self->local_count; i++)
        for (uint32_t k = 0; k < i; k++) qr_assert(self->locals[i].worker != self->locals[k].worker); /* H3 */
}

static void heartbeat_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const heartbeat_t *self = block;
    qr_text_put(text, "heartbeat: state ");
    qr_text_put_u64(text, self->state);
    qr_text_put(text, ", workers seen ");
    qr_text_put_u64(text, self->local_count);
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < self->peer_count; i++) {
        qr_text_put(text, "  node ");
        qr_text_put_u64(text, qr_address_node(self->peers[i].address));
        qr_text_put(text, " state ");
        qr_text_put_u64(text, self->peers[i].state);
        qr_text_put(text, " epoch ");
        qr_text_put_u64(text, self->peers[i].node_epoch);
        qr_text_put(text, " heard us ");
        qr_text_put_u64(text, self->peers[i].heard_us);
        qr_text_put(text, "\n");
    }
}

/* An alarm that finds every other node silent. At most QR_PARTNERS_MAX partners in all, so peers x (routers + workers + a replica) and
 * peers x (own workers) are at most 32 x 32 each. */
enum { MAX_OUT = 2 * (QR_PARTNERS_MAX / 2) * (QR_PARTNERS_MAX / 2) + QR_NODES_MAX + 2 };

const qr_actor_class_t qr_heartbeat_class = {
    .name = "heartbeat",
    .role = QR_ROLE_heartbeat,
    .max_out = MAX_OUT,
    .bytes = heartbeat_bytes,
    .init = heartbeat_init,
    .handle = heartbeat_handle,
    .check = heartbeat_check,
    .print = heartbeat_print,
};
