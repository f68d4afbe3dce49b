/* world.c - see world.h. */
#include "transport/sim/world.h"

#include "actors/catalog_replica.h"
#include "actors/catalog_writer.h"
#include "actors/gateway.h"
#include "actors/heartbeat.h"
#include "actors/note.h"
#include "actors/page_manager.h"
#include "actors/roles.h"
#include "actors/router.h"
#include "actors/scheduler.h"
#include "actors/worker.h"
#include "base/error.h"
#include "messages/codec.h"
#include "messages/print.h"
#include "messages/schema.h"
#include "transport/pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

enum {
    WIRE_BYTES = 1 << 20,
    BOOT_US = 2000,
    RETRY_US = 200000,
    AGE_SLACK_US = 200000,
    STOP_US = 500000,
    UNIT_US = 2000,
    INSTANT_MOST = 100000,
    ARENA_BYTES = QR_CODEC_ARENA_BYTES(WIRE_BYTES)
};

typedef struct letter {
    uint64_t from, to;
    uint32_t node, life;         /* of the receiver when it was sent */
    uint32_t link, side;         /* of another node: the link's index and the sender's side; UINT32_MAX inside a node */
    uint32_t from_born, to_born; /* incarnations of both ends; 0 = does not matter */
    uint32_t circle;             /* W8: which peace of the circle it was sent in; 0 = not within one */
    uint64_t session;
    uint32_t bytes, copies;
    uint8_t data[];
} letter_t;

enum event_kind {
    EVENT_LETTER,
    EVENT_ARRIVAL,
    EVENT_ALARM,
    EVENT_START,
    EVENT_BOOT,
    EVENT_FAULT,
    EVENT_CONNECT,
    EVENT_UP,
    EVENT_DOWN,
    EVENT_LEAVE,
    EVENT_UNIT_END,
    EVENT_UNIT_BEGIN
};

typedef struct event {
    uint64_t at_us, order;
    uint32_t kind, node, index; /* index: cell, fault, link */
    uint64_t serial;
    letter_t *letter;
} event_t;

/* What a router has heard of a worker. */
typedef struct seen {
    uint64_t worker, epoch, sequence, age_us, heard_us;
} seen_t;

typedef struct cell {
    const qr_actor_class_t *actor;
    uint64_t address, epoch, alarm_us, alarm_serial;
    uint64_t start_us; /* when `start` is handled */
    uint64_t last_us;  /* newest delivery of what its uplink handed over */
    uint64_t messages;
    uint64_t tail_from;  /* the tail that was asked last begins there */
    uint64_t told[2];    /* messages of mesh and of the uplink so far */
    uint64_t down_us;    /* how long it will be dead */
    uint32_t born;       /* its incarnation, never used again */
    uint32_t last_words; /* it ends with this many messages more; 0 = it goes on */
    bool started, stopped;
    void *state; /* NULL: dead */
    qr_pairs_t *pairs;
    seen_t *seen;           /* [QR_PARTNERS_MAX] routers only */
    uint64_t *pair_last_us; /* [QR_PAIR_SLOTS] newest delivery to the other, by slot of pairs */
} cell_t;

typedef struct node {
    qr_sim_node_plan_t plan;
    uint64_t epoch, paused_until_us;
    uint32_t life, kills, cell_count, leaving; /* leaving: actors that were asked to stop */
    bool alive, has_left;                      /* has_left: it was asked to leave, now or before */
    bool unit_down, circle_down;               /* W8: one unit is dead; nothing passes within the circle */
    uint32_t circle;                           /* how often that happened, plus one */
    uint64_t trouble_us;                       /* when it last was dead, paused, cut off or unlinked */
    uint64_t fault_until_us[QR_FAULT_KINDS];
    uint32_t fault_amount[QR_FAULT_KINDS];
    cell_t cells[QR_SIM_CELLS_MAX];
} node_t;

/* Side 0 is nodes[0]. */
typedef struct link {
    uint32_t nodes[2];
    uint64_t session[2];  /* 0 = down on that side */
    uint64_t up_us[2];    /* when that side's newest session came up */
    uint64_t since_us[2]; /* when that side's newest session came up indeed */
    uint64_t down_us[2];  /* when that side's newest session ended, 0 = not in this life of its node */
    uint64_t cut_until_us[2], twice_until_us, last_us[2], made;
    bool connecting;
} link_t;

struct qr_world {
    qr_sim_config_t config;
    qr_prng_t prng;
    uint64_t now_us, order, hash, sessions;
    uint32_t node_count; /* of all meshes */
    node_t *nodes;
    link_t *links;
    uint32_t *link_at; /* [node_count][config.node_count] index of the link to the m-th node of the same mesh; UINT32_MAX = none */
    uint32_t link_count;
    uint64_t same_instant;
    uint32_t births;
    bool calm; /* nothing goes wrong in this world */
    event_t *heap;
    uint64_t heap_count, heap_capacity;
    qr_outbox_t outbox;
    qr_message_t *messages, message;
    uint8_t *outbox_bytes, *wire, *arena_bytes;
    letter_t *history[QR_SIM_HISTORY];
    uint64_t history_us[QR_SIM_HISTORY], history_count;
    qr_sim_counts_t counts;
    cell_t *handling;
    letter_t *in_hand; /* being delivered: a finding leaves without giving it back */
    char finding[QR_SIM_FINDING_BYTES];
    jmp_buf out;
};

static qr_world_t *running; /* the world whose events are being handled in this process */

static const char *const fault_names[QR_FAULT_KINDS] = {"none",    "kill",  "pause",   "cut",   "break", "twice",  "slow",
                                                        "batches", "lanes", "leave",   "stuck", "unit",  "append", "disk",
                                                        "log",     "fence", "storage", "full",  "rot",   "moves"};
static const uint8_t unit_roles[QR_SIM_UNITS] = {QR_ROLE_facts, QR_ROLE_catalog_writer, QR_ROLE_catalog_replica, QR_ROLE_heartbeat};
const char *qr_sim_fault_name(uint32_t kind) { return kind < QR_FAULT_KINDS ? fault_names[kind] : "?"; }

uint64_t qr_sim_address(uint32_t node, uint32_t device, uint8_t role) { return qr_address(node + 1, (uint8_t)device, role, 0); }
uint64_t qr_sim_asker(uint32_t node) { return qr_address(node + 1, 0, QR_ROLE_router, 1); }
qr_world_t *qr_sim_world(void) { return running; }
uint64_t qr_sim_draw(uint64_t bound) { return running ? qr_prng_below(&running->prng, bound) : 0; }

/* ---- findings ------------------------------------------------------------------------------------------------------------------ */

void qr_sim_finding(const char *format, ...)
{
    qr_world_t *world = running;
    va_list list;
    va_start(list, format);
    if (!world) {
        (void)vfprintf(stderr, format, list);
        abort();
    }
    (void)vsnprintf(world->finding, sizeof world->finding, format, list);
    va_end(list);
    longjmp(world->out, 1);
}

static void on_assert(const char *expression, const char *file, int line)
{
    if (!running) return;
    const cell_t *cell = running->handling;
    qr_sim_finding("broken invariant of %s at node %u: %s (%s:%d)", cell ? cell->actor->name : "the world",
                   cell ? qr_address_node(cell->address) : 0, expression, file, line);
}

/* ---- queue: a binary heap by (time, order) -------------------------------------------------------------------------------------- */

static bool before(const event_t *a, const event_t *b) { return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order; }

static void push(qr_world_t *world, event_t event)
{
    if (world->heap_count == world->heap_capacity) {
        uint64_t capacity = qr_max_u64(1024, 2 * world->heap_capacity);
        event_t *heap = realloc(world->heap, capacity * sizeof *heap);
        if (!heap) qr_sim_finding("not enough memory for %llu events", (unsigned long long)capacity);
        world->heap = heap;
        world->heap_capacity = capacity;
    }
    uint64_t at = world->heap_count++;
    while (at && before(&event, &world->heap[(at - 1) / 2])) {
        world->heap[at] = world->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    world->heap[at] = event;
    world->counts.queue_most = qr_max_u64(world->counts.queue_most, world->heap_count);
}

static void post(qr_world_t *world, event_t event)
{
    event.order = ++world->order;
    push(world, event);
}

static event_t pop(qr_world_t *world)
{
    event_t first = world->heap[0], last = world->heap[--world->heap_count];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= world->heap_count) break;
        if (child + 1 < world->heap_count && before(&world->heap[child + 1], &world->heap[child])) child++;
        if (!before(&world->heap[child], &last)) break;
        world->heap[at] = world->heap[child];
        at = child;
    }
    if (world->heap_count) world->heap[at] = last;
    return first;
}

/* ---- nodes and cells -------------------------------------------------------------------------------------------------------------- */

static uint32_t index_of_address(uint64_t address) { return qr_address_node(address) - 1; }

static const qr_given_t *given_of(const qr_world_t *world, uint64_t address)
{
    if (!world->config.givens) return world->config.given;
    return &world->config.givens[index_of_address(address) % world->config.node_count];
}

/* The place of an actor of a node that runs; its own unit may be dead. */
static cell_t *place_find(const qr_world_t *world, uint64_t address)
{
    uint32_t n = index_of_address(address);
    if (n >= world->node_count || !world->nodes[n].alive) return NULL;
    node_t *node = &world->nodes[n];
    for (uint32_t i = 0; i < node->cell_count; i++)
        if (node->cells[i].address == address) return &node->cells[i];
    return NULL;
}

static cell_t *cell_find(const qr_world_t *world, uint64_t address)
{
    cell_t *cell = place_find(world, address);
    return cell && cell->state ? cell : NULL;
}

static bool has_catalog(const qr_world_t *world) { return world->config.facts != NULL; }
static bool has_store(const qr_world_t *world) { return world->config.storage != NULL; }
static bool has_transfer(const qr_world_t *world) { return world->config.transfer != NULL; }
static bool has_log(const qr_world_t *world, uint32_t n) { return has_catalog(world) && n % world->config.node_count == 0; }

/* W8 */
static bool in_circle(const qr_world_t *world, uint64_t address)
{
    switch (qr_address_role(address)) {
    case QR_ROLE_storage: return true;
    case QR_ROLE_restore_streamer: return has_store(world);
    case QR_ROLE_facts:
    case QR_ROLE_catalog_writer:
    case QR_ROLE_catalog_replica:
    case QR_ROLE_scheduler:
    case QR_ROLE_checkpoint_writer: return true;
    case QR_ROLE_router: return (address & 0xffff) == 1;
    default: return false;
    }
}

/* Whether what passes between these two passes within the circle: actors of one unit end together. */
static bool through_circle(const qr_world_t *world, uint64_t a, uint64_t b)
{
    if (!in_circle(world, a) || !in_circle(world, b)) return false;
    return qr_address_device(a) != qr_address_device(b) || qr_roles_unit(qr_address_role(a)) != qr_roles_unit(qr_address_role(b));
}

static link_t *link_find(const qr_world_t *world, uint32_t a, uint32_t b)
{
    if (a / world->config.node_count != b / world->config.node_count || b >= world->node_count) return NULL;
    uint32_t i = world->link_at[(uint64_t)a * world->config.node_count + b % world->config.node_count];
    return i == UINT32_MAX ? NULL : &world->links[i];
}

static void cell_end(cell_t *cell)
{
    if (cell->state && cell->actor->done) cell->actor->done(cell->state);
    free(cell->state);
    free(cell->pairs);
    free(cell->pair_last_us);
    free(cell->seen);
    cell->state = NULL;
    cell->pairs = NULL;
    cell->pair_last_us = NULL;
    cell->seen = NULL;
}

static void cell_done(cell_t *cell)
{
    cell_end(cell);
    *cell = (cell_t){0};
}

/* A new incarnation of the actor of this place. */
static void cell_begin(qr_world_t *world, cell_t *cell)
{
    const qr_actor_class_t *actor = cell->actor;
    uint64_t bytes = qr_max_u64(8, actor->bytes(given_of(world, cell->address)));
    bool watches = actor->role == QR_ROLE_router;
    cell->born = ++world->births;
    cell->alarm_us = QR_NEVER_US;
    cell->state = calloc(1, qr_round_up(bytes, 64));
    cell->pairs = calloc(1, sizeof *cell->pairs);
    cell->pair_last_us = calloc(QR_PAIR_SLOTS, sizeof *cell->pair_last_us);
    cell->seen = watches ? calloc(QR_PARTNERS_MAX, sizeof *cell->seen) : NULL;
    if (!cell->state || !cell->pairs || (watches && !cell->seen) || !cell->pair_last_us)
        qr_sim_finding("not enough memory for %s", actor->name);
    qr_pairs_init(cell->pairs, cell->address);
    world->handling = cell;
    actor->init(cell->state, given_of(world, cell->address), cell->address);
    world->handling = NULL;
}

static void cell_new(qr_world_t *world, node_t *node, uint64_t address, const qr_actor_class_t *actor)
{
    qr_assert(node->cell_count < QR_SIM_CELLS_MAX && actor->max_out <= 4 * QR_REQUESTS_MAX);
    cell_t *cell = &node->cells[node->cell_count++];
    if (world->config.doctored && world->config.doctored->role == actor->role && (address & 0xffff) == 0) actor = world->config.doctored;
    cell->actor = actor;
    cell->address = address;
    cell->epoch = node->epoch;
    cell_begin(world, cell);
}

static uint32_t devices_of(const qr_world_t *world, uint32_t n)
{
    const qr_sim_node_plan_t *plan = &world->nodes[n].plan;
    return plan->parts & QR_SIM_DEVICE ? plan->devices : 0;
}

/* Start order of mesh (transport/mesh.c). */
static void cells_make(qr_world_t *world, uint32_t n)
{
    node_t *node = &world->nodes[n];
    if (has_log(world, n)) {
        cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_facts), world->config.facts);
        cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_catalog_writer), &qr_catalog_writer_class);
    }
    if (has_store(world) && devices_of(world, n)) cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_storage), world->config.storage);
    if (has_catalog(world)) cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_catalog_replica), &qr_catalog_replica_class);
    for (uint32_t d = 1; d <= devices_of(world, n); d++) {
        if (has_transfer(world)) cell_new(world, node, qr_sim_address(n, d, QR_ROLE_transfer), world->config.transfer);
        cell_new(world, node, qr_sim_address(n, d, QR_ROLE_executor), world->config.executor);
        cell_new(world, node, qr_sim_address(n, d, QR_ROLE_page_manager), &qr_page_manager_class);
        if (has_catalog(world)) {
            cell_new(world, node, qr_sim_address(n, d, QR_ROLE_restore_streamer), world->config.restorer);
            cell_new(world, node, qr_sim_address(n, d, QR_ROLE_checkpoint_writer), world->config.publisher);
        }
        cell_new(world, node, qr_sim_address(n, d, QR_ROLE_scheduler), &qr_scheduler_class);
        cell_new(world, node, qr_sim_address(n, d, QR_ROLE_worker), &qr_worker_class);
    }
    cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_heartbeat), &qr_heartbeat_class);
    if (has_catalog(world)) cell_new(world, node, qr_sim_asker(n), world->config.asker);
    if (!(node->plan.parts & QR_SIM_EDGE)) return;
    cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_router), &qr_router_class);
    cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_text), world->config.text);
    cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_gateway), &qr_gateway_class);
    cell_new(world, node, qr_sim_address(n, 0, QR_ROLE_http), world->config.http);
}

static void boot(qr_world_t *world, uint32_t n)
{
    node_t *node = &world->nodes[n];
    if (node->alive) return;
    node->alive = true;
    node->trouble_us = world->now_us;
    node->epoch = qr_world_new_epoch(world); /* never used again in this world */
    node->paused_until_us = 0;
    node->unit_down = node->circle_down = false;
    node->circle++;
    cells_make(world, n);
    uint64_t at = world->now_us;
    for (uint32_t i = 0; i < node->cell_count; i++) {
        at += 1 + qr_prng_below(&world->prng, BOOT_US);
        node->cells[i].start_us = at;
        post(world, (event_t){.at_us = at, .kind = EVENT_START, .node = n, .index = i, .serial = node->life});
    }
    for (uint32_t i = 0; i < world->link_count; i++) {
        link_t *link = &world->links[i];
        if (link->nodes[0] != n && link->nodes[1] != n) continue;
        link->down_us[link->nodes[1] == n] = 0;
        post(world, (event_t){.at_us = at + qr_prng_below(&world->prng, RETRY_US), .kind = EVENT_CONNECT, .index = i});
    }
}

/* ---- sending ---------------------------------------------------------------------------------------------------------------------- */

static uint64_t delay(qr_world_t *world, uint64_t most)
{
    uint64_t us = qr_prng_below(&world->prng, qr_max_u64(1, most));
    return qr_prng_one_in(&world->prng, 64) ? 10 * us : us; /* a slow one now and then */
}

static letter_t *letter_new(qr_world_t *world, uint64_t from, uint64_t to, const void *bytes, size_t count)
{
    letter_t *letter = malloc(sizeof *letter + count);
    if (!letter) qr_sim_finding("not enough memory for a message");
    *letter = (letter_t){.from = from, .to = to, .node = index_of_address(to), .link = UINT32_MAX, .bytes = (uint32_t)count, .copies = 1};
    letter->life = world->nodes[letter->node].life;
    letter->from_born = letter->to_born = letter->circle = 0;
    memcpy(letter->data, bytes, count);
    return letter;
}

static void letter_drop(letter_t *letter)
{
    if (--letter->copies == 0) free(letter);
}

/* Hands a letter to an actor of its own node, not before what was sent on the same way. */
static void hand_over(qr_world_t *world, letter_t *letter, uint64_t *last_us, uint64_t at_us)
{
    const cell_t *cell = cell_find(world, letter->to);
    at_us = qr_max_u64(at_us, *last_us);
    if (cell && !cell->started) at_us = qr_max_u64(at_us, cell->start_us + 1);
    *last_us = at_us;
    post(world, (event_t){.at_us = at_us, .kind = EVENT_LETTER, .node = letter->node, .letter = letter});
}

static letter_t *letter_of(qr_world_t *world, cell_t *cell, uint8_t role, uint16_t type, const void *body);

/* link_up or link_down for one actor, as its uplink says it. */
static void tell_cell(qr_world_t *world, cell_t *cell, uint32_t other, bool up)
{
    if (!cell->state) return;
    qr_link_up_t link_up = {other + 1, world->nodes[other].epoch};
    qr_link_down_t link_down = {other + 1, QR_E_PEER_DOWN};
    letter_t *letter =
        letter_of(world, cell, QR_ROLE_uplink, up ? QR_MESSAGE_link_up : QR_MESSAGE_link_down, up ? (const void *)&link_up : &link_down);
    hand_over(world, letter, &cell->last_us, world->now_us + delay(world, world->config.local_us));
}

static void send_remote(qr_world_t *world, cell_t *cell, const qr_message_t *message, const void *bytes, size_t count)
{
    uint32_t n = index_of_address(cell->address), other = index_of_address(message->to);
    link_t *link = link_find(world, n, other);
    bool crosses = qr_roles_cross(qr_address_role(cell->address), qr_address_role(message->to), message->type);
    if (!link || !crosses || qr_schema_find(message->type)->scope != QR_SCOPE_NODE)
        qr_sim_finding("%s sent %s to another node", cell->actor->name, qr_schema_find(message->type)->name);
    uint32_t side = link->nodes[1] == n;
    if (!link->session[side]) {
        world->counts.dropped_session++;
        if (qr_schema_find(message->type)->mood == QR_MOOD_ASK)
            tell_cell(world, cell, other, false); /* as uplink.c: the question is closed again */
        return;
    }
    letter_t *letter = letter_new(world, cell->address, message->to, bytes, count);
    letter->link = (uint32_t)(link - world->links);
    letter->side = side;
    letter->session = link->session[side];
    uint64_t at = world->now_us + 1 + delay(world, world->config.link_us);
    if (link->cut_until_us[side] > world->now_us) at = qr_max_u64(at, link->cut_until_us[side] + 1); /* sent again when it is over */
    at = link->last_us[side] = qr_max_u64(at, link->last_us[side]);
    post(world, (event_t){.at_us = at, .kind = EVENT_ARRIVAL, .node = other, .letter = letter});
    if (link->twice_until_us <= world->now_us) return;
    letter->copies++;
    post(world, (event_t){.at_us = at, .kind = EVENT_ARRIVAL, .node = other, .letter = letter});
}

static void send_local(qr_world_t *world, cell_t *cell, qr_pair_t *pair, const qr_message_t *message, const void *bytes, size_t count)
{
    node_t *node = &world->nodes[index_of_address(cell->address)];
    const cell_t *to = place_find(world, message->to);
    if (!to) qr_sim_finding("%s sent %s to an actor its node does not have", cell->actor->name, qr_schema_find(message->type)->name);
    bool circle = through_circle(world, cell->address, message->to);
    if (!to->state || (circle && node->circle_down)) { /* W8 */
        world->counts.dropped_session++;
        if (circle && qr_schema_find(message->type)->mood == QR_MOOD_ASK) tell_cell(world, cell, index_of_address(cell->address), false);
        return;
    }
    uint64_t *last_us = &cell->pair_last_us[pair - cell->pairs->slots];
    letter_t *letter = letter_new(world, cell->address, message->to, bytes, count);
    letter->from_born = cell->born;
    letter->to_born = to->born;
    letter->circle = circle ? node->circle : 0;
    hand_over(world, letter, last_us, world->now_us + delay(world, world->config.local_us));
}

/* What mesh hears. Who has stopped hears nothing more, and the next one of its node is asked to stop. */
static void hear(qr_world_t *world, cell_t *cell, const qr_message_t *message)
{
    uint32_t n = index_of_address(cell->address);
    if (message->type == QR_MESSAGE_stopped) {
        cell->stopped = true;
        post(world, (event_t){.at_us = world->now_us + 1,
                              .kind = EVENT_LEAVE,
                              .node = n,
                              .index = world->nodes[n].leaving,
                              .serial = world->nodes[n].life});
    }
    bool again = cell->actor->role == QR_ROLE_catalog_writer; /* its disk or another writer may be the reason: it is tried again */
    if (message->type == QR_MESSAGE_ready && message->body.ready.reason && again)
        qr_world_restart_unit(world, cell->address, UNIT_US + qr_prng_below(&world->prng, RETRY_US));
    else if (message->type == QR_MESSAGE_ready && message->body.ready.reason)
        qr_sim_finding("%s did not start: %u", cell->actor->name, message->body.ready.reason);
}

static void send_one(qr_world_t *world, cell_t *cell, qr_message_t *message)
{
    qr_pair_t *pair = qr_pairs_get(cell->pairs, message->to);
    qr_verdict_t verdict = pair ? qr_pairs_send(cell->pairs, pair, message->type, &message->sequence) : QR_VERDICT_FULL;
    bool remote = qr_address_node(message->to) != qr_address_node(cell->address);
    bool broken = world->nodes[index_of_address(cell->address)].circle_down && through_circle(world, cell->address, message->to);
    if (verdict == QR_VERDICT_QUESTION && (remote || broken)) { /* its session ended while the actor worked on it */
        world->counts.dropped_answer++;
        return;
    }
    if (verdict)
        qr_sim_finding("node %u: %s -> role %u: %s: %s", qr_address_node(cell->address), cell->actor->name, qr_address_role(message->to),
                       qr_schema_find(message->type) ? qr_schema_find(message->type)->name : "?", qr_verdict_sentence(verdict));
    if (message->type == QR_MESSAGE_tail) cell->tail_from = message->body.tail.from_tx;
    message->from = cell->address;
    message->version = QR_MESSAGE_VERSION;
    message->epoch = cell->epoch;
    if (world->config.see) world->config.see(world->config.given, cell->address, message, world->now_us);
    int64_t bytes = qr_codec_encode(message, world->wire, WIRE_BYTES);
    if (bytes <= 0) qr_sim_finding("%s: a %s does not fit its bound", cell->actor->name, qr_schema_find(message->type)->name);
    if (qr_address_role(message->to) == QR_ROLE_mesh)
        hear(world, cell, message);
    else if (remote)
        send_remote(world, cell, message, world->wire, (size_t)bytes);
    else
        send_local(world, cell, pair, message, world->wire, (size_t)bytes);
}

/* ---- handling --------------------------------------------------------------------------------------------------------------------- */

static void arm(qr_world_t *world, cell_t *cell, uint64_t alarm_us)
{
    if (alarm_us == cell->alarm_us) return;
    cell->alarm_us = alarm_us;
    cell->alarm_serial++;
    if (alarm_us == QR_NEVER_US) return;
    uint32_t n = index_of_address(cell->address);
    post(world, (event_t){.at_us = qr_max_u64(alarm_us, world->now_us),
                          .kind = EVENT_ALARM,
                          .node = n,
                          .index = (uint32_t)(cell - world->nodes[n].cells),
                          .serial = cell->alarm_serial << 16 | (world->nodes[n].life & 0xffff)});
}

static void call(qr_world_t *world, cell_t *cell, const qr_message_t *message)
{
    world->handling = cell;
    qr_outbox_reset(&world->outbox, cell->actor->max_out);
    world->outbox.alarm_us = message->type == QR_MESSAGE_alarm ? QR_NEVER_US : cell->alarm_us;
    if (message->type == QR_MESSAGE_alarm) cell->alarm_us = QR_NEVER_US;
    cell->actor->handle(cell->state, given_of(world, cell->address), message, &world->outbox);
    cell->messages++;
    for (uint32_t i = 0; i < world->outbox.note_count; i++) world->counts.preemptions += world->outbox.notes[i].code == QR_NOTE_preempted;
    if (cell->actor->check && world->config.check_every && cell->messages % world->config.check_every == 0)
        cell->actor->check(cell->state, given_of(world, cell->address));
    world->handling = NULL;
    arm(world, cell, world->outbox.alarm_us);
    for (uint32_t i = 0; i < world->outbox.count; i++) send_one(world, cell, &world->messages[i]);
    if (cell->last_words && --cell->last_words == 0) qr_world_restart_unit(world, cell->address, 0);
}

static void hash_in(qr_world_t *world, const void *bytes, size_t count)
{
    uint64_t word, h = world->hash ^ world->now_us;
    const uint8_t *from = bytes;
    for (; count >= 8; count -= 8, from += 8) {
        memcpy(&word, from, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    word = 0;
    memcpy(&word, from, count);
    world->hash = qr_mix_u64(h ^ word ^ (uint64_t)count << 56);
}

static void remember(qr_world_t *world, letter_t *letter)
{
    uint64_t at = world->history_count++ % QR_SIM_HISTORY;
    if (world->history[at]) letter_drop(world->history[at]);
    world->history[at] = letter;
    world->history_us[at] = world->now_us;
    letter->copies++;
}

static bool decode(qr_world_t *world, const letter_t *letter)
{
    qr_arena_t arena;
    qr_arena_init(&arena, world->arena_bytes, ARENA_BYTES);
    return qr_codec_decode(letter->data, letter->bytes, &arena, &world->message) == 0;
}

static void print_line(FILE *out, uint64_t now_us, const qr_message_t *message)
{
    char line[600];
    qr_text_t text;
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
    fprintf(out, "%llu.%06llu %s\n", (unsigned long long)(now_us / 1000000), (unsigned long long)(now_us % 1000000), line);
}

/* What no actor can judge alone: nobody is declared down who was not silent, and what is known of a worker never gets older. */
static void judge_health(qr_world_t *world, cell_t *cell, const qr_message_t *message)
{
    uint64_t down_us = world->config.given->params.peer_down_ms * 1000;
    if (message->type == QR_MESSAGE_peer_down) {
        uint32_t self = index_of_address(cell->address), other = message->body.peer_down.node - 1;
        uint64_t trouble_us =
            qr_max_u64(world->nodes[self].trouble_us, other < world->node_count ? world->nodes[other].trouble_us : QR_NEVER_US);
        if (trouble_us + 3 * down_us + 1000000 < world->now_us)
            qr_sim_finding("node %u was declared down, but nothing happened to it for %llu us", other + 1,
                           (unsigned long long)(world->now_us - trouble_us));
    }
    if (message->type != QR_MESSAGE_observation || qr_address_role(cell->address) != QR_ROLE_router) return;
    const qr_observation_t *b = &message->body.observation;
    uint32_t n = index_of_address(b->worker);
    if (b->state == QR_STATE_DRAINING && n < world->node_count && !world->nodes[n].has_left)
        qr_sim_finding("a worker of node %u is said to drain, which nobody asked it to", n + 1);
    seen_t *seen = NULL;
    for (uint32_t i = 0; i < QR_PARTNERS_MAX && !seen; i++)
        if (cell->seen[i].worker == b->worker || !cell->seen[i].worker) seen = &cell->seen[i];
    if (!seen) return;
    if (seen->worker && seen->epoch == b->worker_epoch && b->sequence < seen->sequence)
        qr_sim_finding("observation %llu of a worker after %llu", (unsigned long long)b->sequence, (unsigned long long)seen->sequence);
    /* Time on the way is in nobody's age, so only where the way is short. */
    if (world->calm && seen->worker && seen->epoch == b->worker_epoch && b->sequence == seen->sequence &&
        b->age_us + AGE_SLACK_US < seen->age_us + (world->now_us - seen->heard_us))
        qr_sim_finding("an observation of a worker grew younger on the way");
    *seen = (seen_t){b->worker, b->worker_epoch, b->sequence, b->age_us, world->now_us};
}

/* Closes every question to the circle of its own node. anew: they also count from the beginning again. */
static void close_circle(const qr_world_t *world, cell_t *cell, bool anew)
{
    for (uint32_t i = 0; cell->pairs && i < QR_PAIR_SLOTS; i++) {
        qr_pair_t *pair = &cell->pairs->slots[i];
        bool own = pair->address && qr_address_node(pair->address) == qr_address_node(cell->address);
        if (!own || !through_circle(world, cell->address, pair->address)) continue;
        memset(pair->asked, 0, sizeof pair->asked);
        memset(pair->owed, 0, sizeof pair->owed);
        if (anew) pair->epoch_in = pair->sequence_in = pair->sequence_out = 0;
    }
}

/* A tail is answered with what was asked: never with what comes later, which might have been asked by another. */
static void judge_tail(const cell_t *cell, const qr_tail_batch_t *b)
{
    if (b->snapshot_tx == 0 && b->first_tx > cell->tail_from)
        qr_sim_finding("the replica of node %u asked for transaction %llu and was told of %llu", qr_address_node(cell->address),
                       (unsigned long long)cell->tail_from, (unsigned long long)b->first_tx);
}

static void deliver(qr_world_t *world, cell_t *cell, letter_t *letter)
{
    qr_message_t *message = &world->message;
    if (!decode(world, letter)) qr_sim_finding("what was encoded does not decode");
    bool remote = qr_address_node(letter->from) != qr_address_node(letter->to);
    qr_pair_t *pair = qr_pairs_get(cell->pairs, message->from);
    qr_verdict_t verdict = pair ? qr_pairs_receive(cell->pairs, pair, message->type, message->epoch, message->sequence) : QR_VERDICT_FULL;
    if (verdict && remote) {
        world->counts.dropped_stale += verdict == QR_VERDICT_STALE;
        world->counts.dropped_answer += verdict == QR_VERDICT_QUESTION;
        if (verdict != QR_VERDICT_STALE && verdict != QR_VERDICT_QUESTION)
            qr_sim_finding("%s refused %s of another node: %s", cell->actor->name, qr_schema_find(message->type)->name,
                           qr_verdict_sentence(verdict));
        return;
    }
    if (verdict) qr_sim_finding("%s refused %s: %s", cell->actor->name, qr_schema_find(message->type)->name, qr_verdict_sentence(verdict));
    message->now_us = world->now_us;
    judge_health(world, cell, message);
    if (message->type == QR_MESSAGE_tail_batch) judge_tail(cell, &message->body.tail_batch);
    bool down = message->type == QR_MESSAGE_link_down, own = down && message->body.link_down.node == qr_address_node(cell->address);
    if (own) close_circle(world, cell, false);
    if (down && !own) qr_pairs_close_node(cell->pairs, message->body.link_down.node);
    world->counts.messages++;
    world->counts.remote += remote;
    hash_in(world, letter->data, letter->bytes);
    remember(world, letter);
    if (world->config.trace) print_line(world->config.trace, world->now_us, message);
    if (world->config.see) world->config.see(world->config.given, cell->address, message, world->now_us);
    call(world, cell, message);
}

/* ---- events ----------------------------------------------------------------------------------------------------------------------- */

static bool is_paused(const qr_world_t *world, uint32_t n) { return world->nodes[n].paused_until_us > world->now_us; }

/* The event happens when its node runs again, in the old order. */
static void put_off(qr_world_t *world, event_t event)
{
    event.at_us = world->nodes[event.node].paused_until_us;
    push(world, event);
}

/* When an actor that is stuck goes on; 0: it is not. */
static uint64_t stuck_until_us(const qr_world_t *world, const cell_t *cell)
{
    const node_t *node = &world->nodes[index_of_address(cell->address)];
    uint64_t until_us = cell->actor->role == QR_ROLE_heartbeat ? node->fault_until_us[QR_FAULT_STUCK] : 0;
    return until_us > world->now_us ? until_us : 0;
}

/* Whether both ends are still who they were when it was sent, and nothing broke between them (W8). */
static bool is_current(const qr_world_t *world, const cell_t *cell, const letter_t *letter)
{
    if (letter->to_born && letter->to_born != cell->born) return false;
    if (letter->circle && letter->circle != world->nodes[letter->node].circle) return false;
    const cell_t *from = letter->from_born ? cell_find(world, letter->from) : NULL;
    return !letter->from_born || (from && from->born == letter->from_born);
}

static void on_letter(qr_world_t *world, event_t event)
{
    letter_t *letter = event.letter;
    cell_t *cell = letter->life == world->nodes[letter->node].life ? cell_find(world, letter->to) : NULL;
    if (cell && stuck_until_us(world, cell)) {
        event.at_us = stuck_until_us(world, cell);
        push(world, event);
        return;
    }
    world->in_hand = letter;
    if (cell && cell->started && !cell->stopped && is_current(world, cell, letter)) deliver(world, cell, letter);
    world->in_hand = NULL;
    letter_drop(letter);
}

/* At the uplink of the receiving node. */
static void on_arrival(qr_world_t *world, event_t event)
{
    letter_t *letter = event.letter;
    link_t *link = &world->links[letter->link];
    uint32_t side = !letter->side;
    cell_t *cell = letter->life == world->nodes[letter->node].life ? cell_find(world, letter->to) : NULL;
    if (!cell || link->session[side] != letter->session) {
        bool coming = cell && link->connecting && link->made == letter->session; /* our side of it is not up yet */
        if (coming) {
            event.at_us = qr_max_u64(world->now_us, link->up_us[side]) + 1;
            push(world, event);
            return;
        }
        world->counts.dropped_session++;
        letter_drop(letter);
        return;
    }
    letter->to_born = cell->born;
    hand_over(world, letter, &cell->last_us, world->now_us + delay(world, world->config.local_us));
}

static void on_alarm(qr_world_t *world, event_t event)
{
    node_t *node = &world->nodes[event.node];
    if (!node->alive || event.index >= node->cell_count || (event.serial & 0xffff) != (node->life & 0xffff)) return;
    cell_t *cell = &node->cells[event.index];
    if (!cell->state || cell->stopped || cell->alarm_serial != event.serial >> 16) return;
    if (stuck_until_us(world, cell)) {
        event.at_us = stuck_until_us(world, cell);
        push(world, event);
        return;
    }
    qr_message_t *message = &world->message;
    memset(message, 0, sizeof *message);
    message->type = QR_MESSAGE_alarm;
    message->version = QR_MESSAGE_VERSION;
    message->from = message->to = cell->address;
    message->epoch = cell->epoch;
    message->now_us = world->now_us;
    message->body.alarm.due_us = cell->alarm_us;
    world->counts.alarms++;
    hash_in(world, &cell->address, sizeof cell->address);
    call(world, cell, message);
}

/* Whether a node has this role: on device group d, or d 0: beside them. */
static bool node_has(const qr_world_t *world, uint32_t n, uint32_t d, uint8_t role)
{
    switch (role) {
    case QR_ROLE_heartbeat: return d == 0;
    case QR_ROLE_catalog_replica: return d == 0 && has_catalog(world);
    case QR_ROLE_facts:
    case QR_ROLE_catalog_writer: return d == 0 && has_log(world, n);
    case QR_ROLE_storage: return d == 0 && has_store(world) && devices_of(world, n);
    case QR_ROLE_restore_streamer:
    case QR_ROLE_checkpoint_writer: return d > 0 && has_catalog(world);
    case QR_ROLE_worker:
    case QR_ROLE_scheduler:
    case QR_ROLE_page_manager:
    case QR_ROLE_executor: return d > 0;
    default: return d == 0 && (world->nodes[n].plan.parts & QR_SIM_EDGE);
    }
}

/* The partners mesh would name (transport/mesh.c: partners_of). */
static uint32_t partners_of(const qr_world_t *world, const cell_t *cell, uint64_t partners[QR_PARTNERS_MAX])
{
    uint32_t count = 0, self = index_of_address(cell->address);
    uint8_t role = qr_address_role(cell->address);
    static const uint8_t roles[] = {QR_ROLE_http,           QR_ROLE_text,
                                    QR_ROLE_gateway,        QR_ROLE_router,
                                    QR_ROLE_worker,         QR_ROLE_scheduler,
                                    QR_ROLE_page_manager,   QR_ROLE_executor,
                                    QR_ROLE_heartbeat,      QR_ROLE_facts,
                                    QR_ROLE_catalog_writer, QR_ROLE_catalog_replica,
                                    QR_ROLE_storage,        QR_ROLE_checkpoint_writer};
    uint32_t first = self - self % world->config.node_count;
    for (uint32_t n = first; n < first + world->config.node_count; n++) {
        if (n != self && !link_find(world, n, self)) continue;
        for (uint32_t d = 0; d <= devices_of(world, n); d++)
            for (size_t i = 0; i < QR_COUNT(roles); i++) {
                if (!node_has(world, n, d, roles[i])) continue;
                bool unit = n == self && d == qr_address_device(cell->address) && qr_roles_unit(roles[i]) == qr_roles_unit(role);
                uint64_t address = qr_sim_address(n, d, roles[i]);
                if (unit || address == cell->address || !qr_roles_talk(role, roles[i]) || count == QR_PARTNERS_MAX) continue;
                partners[count++] = address;
            }
    }
    return count;
}

/* Makes a message of mesh or uplink to a cell, encoded like any other. */
static letter_t *letter_of(qr_world_t *world, cell_t *cell, uint8_t role, uint16_t type, const void *body)
{
    uint32_t n = index_of_address(cell->address);
    qr_message_t *message = &world->message;
    memset(message, 0, sizeof *message);
    message->type = type;
    message->version = QR_MESSAGE_VERSION;
    message->from = qr_address(n + 1, 0, role, 0);
    message->to = cell->address;
    message->epoch = world->nodes[n].epoch;
    message->sequence = ++cell->told[role == QR_ROLE_uplink];
    memcpy(&message->body, body, qr_schema_find(type)->bytes);
    int64_t bytes = qr_codec_encode(message, world->wire, WIRE_BYTES);
    qr_assert(bytes > 0);
    letter_t *letter = letter_new(world, message->from, message->to, world->wire, (size_t)bytes);
    letter->to_born = cell->born;
    return letter;
}

static void on_start(qr_world_t *world, event_t event)
{
    node_t *node = &world->nodes[event.node];
    if (!node->alive || event.serial != node->life || !node->cells[event.index].state) return;
    cell_t *cell = &node->cells[event.index];
    uint64_t partners[QR_PARTNERS_MAX];
    qr_start_t start = {
        .epoch = cell->epoch, .seed = qr_prng_next(&world->prng), .partners = {partners, partners_of(world, cell, partners)}};
    letter_t *letter = letter_of(world, cell, QR_ROLE_mesh, QR_MESSAGE_start, &start);
    cell->started = true;
    world->in_hand = letter;
    deliver(world, cell, letter);
    world->in_hand = NULL;
    letter_drop(letter);
}

/* ---- links: sessions come, end and come again ---------------------------------------------------------------------------------------- */

static void tell_side(qr_world_t *world, const link_t *link, uint32_t side, bool up)
{
    node_t *node = &world->nodes[link->nodes[side]];
    for (uint32_t i = 0; node->alive && i < node->cell_count; i++) tell_cell(world, &node->cells[i], link->nodes[!side], up);
}

static void side_down(qr_world_t *world, link_t *link, uint32_t side, uint64_t after_us)
{
    if (link->session[side] == 0) return;
    post(world, (event_t){.at_us = world->now_us + after_us,
                          .kind = EVENT_DOWN,
                          .node = link->nodes[side],
                          .index = (uint32_t)(link - world->links) * 2 + side,
                          .serial = link->session[side]});
}

static void connect_later(qr_world_t *world, link_t *link, uint64_t after_us)
{
    post(world, (event_t){.at_us = world->now_us + after_us, .kind = EVENT_CONNECT, .index = (uint32_t)(link - world->links)});
}

/* A session begins when both run, both ways are free and both ends of the last one have ended. */
static void on_connect(qr_world_t *world, event_t event)
{
    link_t *link = &world->links[event.index];
    if (link->connecting && (link->session[0] || link->session[1])) return; /* it is there already */
    bool wait = link->session[0] || link->session[1];
    for (uint32_t s = 0; s < 2; s++)
        wait |= link->cut_until_us[s] > world->now_us || !world->nodes[link->nodes[s]].alive || is_paused(world, link->nodes[s]);
    if (wait) {
        connect_later(world, link, RETRY_US / 2 + qr_prng_below(&world->prng, RETRY_US));
        return;
    }
    if (link->connecting) return;
    link->connecting = true;
    link->made = ++world->sessions;
    world->counts.sessions++;
    for (uint32_t s = 0; s < 2; s++) {
        link->up_us[s] = world->now_us + delay(world, 4 * world->config.link_us);
        post(world,
             (event_t){
                 .at_us = link->up_us[s], .kind = EVENT_UP, .node = link->nodes[s], .index = event.index * 2 + s, .serial = link->made});
    }
}

static void on_up(qr_world_t *world, event_t event)
{
    link_t *link = &world->links[event.index / 2];
    uint32_t side = event.index % 2;
    for (uint32_t s = 0; s < 2; s++)
        world->nodes[link->nodes[s]].trouble_us = qr_max_u64(world->nodes[link->nodes[s]].trouble_us, world->now_us);
    if (!link->connecting || link->made != event.serial || !world->nodes[link->nodes[side]].alive) return;
    link->session[side] = event.serial;
    link->down_us[side] = 0;
    link->since_us[side] = world->now_us;
    tell_side(world, link, side, true);
}

/* One end notices that the session is over; the other hears of it soon, or by itself. */
static void on_down(qr_world_t *world, event_t event)
{
    link_t *link = &world->links[event.index / 2];
    uint32_t side = event.index % 2;
    if (link->session[side] != event.serial) return;
    link->session[side] = 0;
    link->connecting = false;
    link->down_us[side] = world->now_us;
    tell_side(world, link, side, false);
    /* The hello of the next session tells the other end as soon as it gets through; silence tells it too. */
    uint64_t down_us = world->config.given->params.peer_down_ms * 1000,
             cut_us = link->cut_until_us[side] - qr_min_u64(link->cut_until_us[side], world->now_us);
    if (link->session[!side] == event.serial)
        side_down(world, link, !side, qr_min_u64(cut_us, down_us) + 1 + delay(world, 8 * world->config.link_us));
    connect_later(world, link, 1000 + qr_prng_below(&world->prng, RETRY_US));
}

/* Both ends will notice, each in its own time. */
static void session_end(qr_world_t *world, link_t *link, uint64_t soonest_us, uint64_t latest_us)
{
    link->connecting = link->session[0] && link->session[1] ? link->connecting : false; /* a half-made one is given up */
    for (uint32_t s = 0; s < 2; s++) side_down(world, link, s, soonest_us + qr_prng_below(&world->prng, latest_us - soonest_us + 1));
    if (!link->session[0] && !link->session[1]) connect_later(world, link, latest_us);
}

/* ---- faults ------------------------------------------------------------------------------------------------------------------------- */

static void kill_node(qr_world_t *world, uint32_t n, uint64_t for_us)
{
    node_t *node = &world->nodes[n];
    if (!node->alive) return;
    for (uint32_t i = 0; i < node->cell_count; i++) cell_done(&node->cells[i]);
    node->cell_count = 0;
    node->alive = false;
    node->life++;
    node->leaving = 0;
    node->kills++;
    world->counts.kills++;
    uint64_t down_us = world->config.given->params.peer_down_ms * 1000;
    bool silent = qr_prng_one_in(&world->prng, 4); /* the machine went, not the process: nobody resets its connections */
    for (uint32_t i = 0; i < world->link_count; i++) {
        link_t *link = &world->links[i];
        if (link->nodes[0] != n && link->nodes[1] != n) continue;
        uint32_t side = link->nodes[1] == n;
        link->session[side] = 0;
        link->connecting = false;
        side_down(world, link, !side,
                  silent ? down_us + qr_prng_below(&world->prng, down_us / 4 + 1) : 100 + qr_prng_below(&world->prng, 20000));
    }
    if (for_us != QR_NEVER_US) post(world, (event_t){.at_us = world->now_us + for_us, .kind = EVENT_BOOT, .node = n});
}

/* ---- units that end alone (W8) ----------------------------------------------------------------------------------------------- */

static void unit_end(qr_world_t *world, uint32_t n, cell_t *cell)
{
    node_t *node = &world->nodes[n];
    cell->last_words = 0;
    if (node->unit_down || node->leaving || !cell->state || !cell->started) return;
    bool circle = in_circle(world, cell->address);
    if (world->config.trace)
        fprintf(world->config.trace, "%llu.%06llu * %s of node %u ends\n", (unsigned long long)(world->now_us / 1000000),
                (unsigned long long)(world->now_us % 1000000), cell->actor->name, n + 1);
    uint64_t begin_us = world->now_us + qr_max_u64(UNIT_US, cell->down_us);
    cell_end(cell);
    cell->started = false;
    cell->alarm_serial++;
    node->unit_down = true;
    node->circle_down = circle;
    node->circle += circle;
    if (!circle) node->trouble_us = qr_max_u64(node->trouble_us, begin_us); /* a heart that does not beat */
    world->counts.unit_kills++;
    for (uint32_t i = 0; circle && i < node->cell_count; i++) {
        cell_t *other = &node->cells[i];
        if (!other->state || !in_circle(world, other->address)) continue;
        close_circle(world, other, false);
        tell_cell(world, other, n, false);
    }
    post(world,
         (event_t){.at_us = begin_us, .kind = EVENT_UNIT_BEGIN, .node = n, .index = (uint32_t)(cell - node->cells), .serial = node->life});
}

/* Nobody counts on from what the old one said. */
static void forget_unit(const qr_world_t *world, node_t *node, const cell_t *cell)
{
    for (uint32_t i = 0; i < node->cell_count; i++) {
        cell_t *other = &node->cells[i];
        if (!other->state || other == cell) continue;
        if (in_circle(world, cell->address) && in_circle(world, other->address)) close_circle(world, other, true);
        if (!qr_roles_talk(qr_address_role(other->address), qr_address_role(cell->address))) continue;
        qr_pair_t *pair = qr_pairs_get(other->pairs, cell->address);
        if (pair) pair->epoch_in = pair->sequence_in = pair->sequence_out = 0;
    }
}

static void unit_begin(qr_world_t *world, event_t event)
{
    node_t *node = &world->nodes[event.node];
    cell_t *cell = &node->cells[event.index];
    if (!node->alive || event.serial != node->life || cell->state) return;
    uint64_t told_us = 0; /* everybody has heard of the end before */
    for (uint32_t i = 0; i < node->cell_count; i++)
        if (node->cells[i].state && in_circle(world, node->cells[i].address)) told_us = qr_max_u64(told_us, node->cells[i].last_us);
    if (node->circle_down && told_us >= world->now_us) {
        event.at_us = told_us + 1;
        post(world, event);
        return;
    }
    forget_unit(world, node, cell);
    cell->epoch = qr_world_new_epoch(world);
    cell->told[0] = cell->told[1] = 0;
    cell_begin(world, cell);
    cell->start_us = world->now_us + 1;
    post(world, (event_t){.at_us = cell->start_us, .kind = EVENT_START, .node = event.node, .index = event.index, .serial = node->life});
    for (uint32_t i = 0; node->circle_down && i < node->cell_count; i++)
        if (&node->cells[i] != cell && in_circle(world, node->cells[i].address)) tell_cell(world, &node->cells[i], event.node, true);
    node->unit_down = node->circle_down = false;
    for (uint32_t i = 0; i < world->link_count; i++) {
        link_t *link = &world->links[i];
        uint32_t side = link->nodes[1] == event.node;
        if (link->nodes[side] != event.node) continue;
        bool ends = cell->actor->role == QR_ROLE_catalog_writer || cell->actor->role == QR_ROLE_catalog_replica;
        if (!ends && link->session[side])
            tell_cell(world, cell, link->nodes[!side], true);
        else if (ends && link->session[side]) /* before anything else arrives: it would be taken for what the new one is told */
            on_down(world, (event_t){.index = i * 2 + side, .serial = link->session[side]});
        else if (ends && link->connecting) /* half made: what was sent over it already is lost too */
            session_end(world, link, 1, 20000);
    }
}

/* QR_FAULT_UNIT, QR_FAULT_STORAGE */
static void unit_fault(qr_world_t *world, uint32_t n, const qr_sim_fault_t *fault)
{
    uint8_t role = fault->kind == QR_FAULT_STORAGE ? QR_ROLE_storage : unit_roles[fault->amount % QR_SIM_UNITS];
    cell_t *cell = place_find(world, qr_sim_address(n, 0, role));
    if (!cell) cell = place_find(world, qr_sim_address(n - n % world->config.node_count, 0, role));
    if (!cell || !cell->state || cell->last_words) return;
    cell->down_us = fault->for_us;
    cell->last_words = fault->other % 8;
    if (!cell->last_words) qr_world_restart_unit(world, cell->address, 0);
}

void qr_world_restart_unit(qr_world_t *world, uint64_t address, uint64_t after_us)
{
    uint32_t n = index_of_address(address);
    const cell_t *cell = place_find(world, address);
    if (!cell) return;
    post(world, (event_t){.at_us = world->now_us + after_us,
                          .kind = EVENT_UNIT_END,
                          .node = n,
                          .index = (uint32_t)(cell - world->nodes[n].cells),
                          .serial = (uint64_t)world->nodes[n].life << 32 | cell->born});
}

static void on_unit_end(qr_world_t *world, event_t event)
{
    node_t *node = &world->nodes[event.node];
    if (!node->alive || node->life != event.serial >> 32 || node->cells[event.index].born != (uint32_t)event.serial) return;
    if (node->unit_down) { /* one at a time */
        event.at_us = world->now_us + UNIT_US;
        post(world, event);
        return;
    }
    unit_end(world, event.node, &node->cells[event.index]);
}

static void leave(qr_world_t *world, uint32_t n, uint64_t budget_us);

static void on_fault(qr_world_t *world, const qr_sim_fault_t *fault)
{
    uint32_t n = fault->node % world->node_count, other = fault->other % world->node_count;
    uint64_t end_us = world->now_us + fault->for_us, down_us = world->config.given->params.peer_down_ms * 1000;
    node_t *node = &world->nodes[n];
    link_t *link = link_find(world, n, other);
    bool of_disks = fault->kind >= QR_FAULT_UNIT; /* the catalog's: nobody falls silent for them */
    if (!of_disks) node->trouble_us = qr_max_u64(node->trouble_us, end_us);
    if (link && !of_disks) world->nodes[other].trouble_us = qr_max_u64(world->nodes[other].trouble_us, end_us);
    if (world->config.trace)
        fprintf(world->config.trace, "%llu.%06llu * %s node %u other %u for %llu us amount %u\n",
                (unsigned long long)(world->now_us / 1000000), (unsigned long long)(world->now_us % 1000000),
                qr_sim_fault_name(fault->kind), n + 1, other + 1, (unsigned long long)fault->for_us, fault->amount);
    switch (fault->kind) {
    case QR_FAULT_KILL: kill_node(world, n, fault->for_us); break;
    case QR_FAULT_LEAVE: leave(world, n, fault->for_us); break;
    case QR_FAULT_PAUSE:
        if (!node->alive) break;
        node->paused_until_us = qr_max_u64(node->paused_until_us, end_us);
        for (uint32_t i = 0; fault->for_us > down_us && i < world->link_count; i++)
            if (world->links[i].nodes[0] == n || world->links[i].nodes[1] == n)
                side_down(world, &world->links[i], world->links[i].nodes[0] == n, down_us + qr_prng_below(&world->prng, down_us / 4 + 1));
        break;
    case QR_FAULT_CUT:
        if (!link) break;
        link->cut_until_us[link->nodes[1] == n] = qr_max_u64(link->cut_until_us[link->nodes[1] == n], end_us);
        if (fault->for_us > down_us) side_down(world, link, link->nodes[0] == n, down_us + qr_prng_below(&world->prng, down_us / 4 + 1));
        break;
    case QR_FAULT_BREAK:
        if (link) session_end(world, link, 1, 20000);
        break;
    case QR_FAULT_TWICE:
        if (link) link->twice_until_us = end_us;
        break;
    case QR_FAULT_UNIT:
    case QR_FAULT_STORAGE: unit_fault(world, n, fault); break;
    case QR_FAULT_APPEND:
    case QR_FAULT_DISK:
    case QR_FAULT_LOG:
    case QR_FAULT_FENCE:
        for (uint32_t i = 0; i < world->node_count; i++) {
            world->nodes[i].fault_until_us[fault->kind] = qr_max_u64(world->nodes[i].fault_until_us[fault->kind], end_us);
            world->nodes[i].fault_amount[fault->kind] = qr_max_u32(1, fault->amount);
        }
        break;
    default:
        node->fault_until_us[fault->kind] = qr_max_u64(node->fault_until_us[fault->kind], end_us); /* never shorter: order is kept by it */
        node->fault_amount[fault->kind] = fault->amount;
        break;
    }
}

uint32_t qr_world_fault(const qr_world_t *world, uint32_t node, uint32_t kind)
{
    if (!world) return 0;
    const node_t *n = &world->nodes[node];
    return n->fault_until_us[kind] > world->now_us ? n->fault_amount[kind] : 0;
}

/* The roles that a leaving node asks: first to drain (mesh asks workers later than edges; here all at once, and the whole budget is
 * waited for), then to stop, in mesh's order (transport/mesh.c). */
static const uint8_t drain_roles[] = {QR_ROLE_gateway, QR_ROLE_heartbeat, QR_ROLE_worker};
static const uint8_t stop_roles[] = {QR_ROLE_http,
                                     QR_ROLE_gateway,
                                     QR_ROLE_text,
                                     QR_ROLE_router,
                                     QR_ROLE_worker,
                                     QR_ROLE_scheduler,
                                     QR_ROLE_checkpoint_writer,
                                     QR_ROLE_restore_streamer,
                                     QR_ROLE_page_manager,
                                     QR_ROLE_executor,
                                     QR_ROLE_transfer,
                                     QR_ROLE_catalog_writer,
                                     QR_ROLE_catalog_replica,
                                     QR_ROLE_storage,
                                     QR_ROLE_facts,
                                     QR_ROLE_heartbeat};

/* The index-th actor of a node to be stopped, role by role. */
static cell_t *stop_cell(node_t *node, uint32_t index)
{
    for (size_t r = 0; r < QR_COUNT(stop_roles); r++)
        for (uint32_t i = 0; i < node->cell_count; i++)
            if (node->cells[i].actor->role == stop_roles[r] && index-- == 0) return &node->cells[i];
    return NULL;
}

static void say_life(qr_world_t *world, cell_t *cell, uint16_t type, uint64_t budget_us)
{
    qr_drain_t body = {budget_us}; /* stop has the same shape */
    letter_t *letter = letter_of(world, cell, QR_ROLE_mesh, type, &body);
    hand_over(world, letter, &cell->last_us, world->now_us + delay(world, world->config.local_us));
}

/* The fake http has no connections to drain: its gateway refuses what it still asks. */
static void leave(qr_world_t *world, uint32_t n, uint64_t budget_us)
{
    node_t *node = &world->nodes[n];
    if (!node->alive || node->leaving || !node->cell_count || !node->cells[node->cell_count - 1].started) return; /* still booting */
    node->leaving = 1;
    node->has_left = true;
    for (size_t r = 0; r < QR_COUNT(drain_roles); r++)
        for (uint32_t i = 0; i < node->cell_count; i++)
            if (node->cells[i].actor->role == drain_roles[r]) say_life(world, &node->cells[i], QR_MESSAGE_drain, budget_us);
    post(world, (event_t){.at_us = world->now_us + budget_us + 1, .kind = EVENT_LEAVE, .node = n, .index = 1, .serial = node->life});
}

/* One step of a node that stops: the next actor, or its end. A step that was overtaken by an answer does nothing. */
static void on_leave(qr_world_t *world, event_t event)
{
    node_t *node = &world->nodes[event.node];
    if (!node->alive || event.serial != node->life || event.index != node->leaving) return;
    cell_t *cell = stop_cell(node, node->leaving++ - 1);
    if (!cell) {
        kill_node(world, event.node, 1000 + qr_prng_below(&world->prng, 500000));
        return;
    }
    say_life(world, cell, QR_MESSAGE_stop, STOP_US);
    post(
        world,
        (event_t){.at_us = world->now_us + STOP_US, .kind = EVENT_LEAVE, .node = event.node, .index = node->leaving, .serial = node->life});
}

void qr_world_heal(qr_world_t *world)
{
    world->config.fault_count = 0;
    for (uint32_t i = 0; i < world->link_count; i++) {
        link_t *link = &world->links[i];
        for (uint32_t s = 0; s < 2; s++) link->cut_until_us[s] = qr_min_u64(link->cut_until_us[s], world->now_us);
        link->twice_until_us = 0;
    }
    for (uint32_t n = 0; n < world->node_count; n++) {
        node_t *node = &world->nodes[n];
        for (uint32_t k = 0; k < QR_FAULT_KINDS; k++)
            if (k != QR_FAULT_STUCK) node->fault_until_us[k] = 0;
        for (uint32_t i = 0; i < node->cell_count; i++) node->cells[i].last_words = 0;
        if (!node->alive) post(world, (event_t){.at_us = world->now_us + 1, .kind = EVENT_BOOT, .node = n});
    }
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------------- */

static void happen(qr_world_t *world, event_t event)
{
    bool of_node = event.kind == EVENT_LETTER || event.kind == EVENT_ARRIVAL || event.kind == EVENT_ALARM || event.kind == EVENT_START ||
                   event.kind == EVENT_UP || event.kind == EVENT_DOWN || event.kind == EVENT_LEAVE || event.kind == EVENT_UNIT_BEGIN;
    if (of_node && is_paused(world, event.node)) {
        put_off(world, event);
        return;
    }
    switch (event.kind) {
    case EVENT_LETTER: on_letter(world, event); break;
    case EVENT_ARRIVAL: on_arrival(world, event); break;
    case EVENT_ALARM: on_alarm(world, event); break;
    case EVENT_START: on_start(world, event); break;
    case EVENT_BOOT: boot(world, event.node); break;
    case EVENT_FAULT:
        if (event.index < world->config.fault_count) on_fault(world, &world->config.faults[event.index]);
        break;
    case EVENT_CONNECT: on_connect(world, event); break;
    case EVENT_UP: on_up(world, event); break;
    case EVENT_DOWN: on_down(world, event); break;
    case EVENT_LEAVE: on_leave(world, event); break;
    case EVENT_UNIT_END: on_unit_end(world, event); break;
    case EVENT_UNIT_BEGIN: unit_begin(world, event); break;
    default: qr_unreachable("an event of no kind");
    }
}

bool qr_world_run(qr_world_t *world, uint64_t until_us, bool (*stop)(void *context), void *context)
{
    if (world->finding[0]) return false;
    running = world;
    qr_assert_hook = on_assert;
    if (setjmp(world->out) == 0) {
        for (uint64_t events = 1; world->heap_count && world->heap[0].at_us <= until_us; events++) {
            if (stop && events % QR_SIM_STOP_EVENTS == 0 && stop(context)) break;
            event_t event = pop(world);
            world->same_instant = event.at_us > world->now_us ? 0 : world->same_instant + 1;
            world->now_us = qr_max_u64(world->now_us, event.at_us);
            if (world->same_instant > INSTANT_MOST)
                qr_sim_finding("time stands still: %u events at one instant, the last for an actor of node %u", INSTANT_MOST,
                               event.node + 1);
            happen(world, event);
        }
        if (!world->heap_count || world->heap[0].at_us > until_us) world->now_us = qr_max_u64(world->now_us, until_us);
    }
    if (world->in_hand) letter_drop(world->in_hand);
    world->in_hand = NULL;
    running = NULL;
    qr_assert_hook = NULL;
    return world->finding[0] == 0;
}

/* Links to the nodes of its mesh that come before it. */
static void link_with_others(qr_world_t *world, uint32_t n)
{
    uint32_t of_mesh = world->config.node_count, first = n - n % of_mesh;
    for (uint32_t m = 0; m < of_mesh; m++) world->link_at[(uint64_t)n * of_mesh + m] = UINT32_MAX;
    for (uint32_t m = first; m < n; m++) {
        uint32_t parts = world->nodes[n].plan.parts | world->nodes[m].plan.parts;
        if (parts != (QR_SIM_EDGE | QR_SIM_DEVICE) && !has_log(world, m)) continue;
        world->link_at[(uint64_t)n * of_mesh + m % of_mesh] = world->link_at[(uint64_t)m * of_mesh + n % of_mesh] = world->link_count;
        world->links[world->link_count++] = (link_t){.nodes = {m, n}};
    }
}

qr_world_t *qr_world_new(const qr_sim_config_t *config)
{
    qr_world_t *world = calloc(1, sizeof *world);
    if (!world) return NULL;
    world->config = *config;
    world->calm = config->fault_count == 0;
    qr_prng_init(&world->prng, config->seed);
    world->node_count = config->node_count * qr_max_u32(1, config->mesh_count);
    world->nodes = calloc(world->node_count, sizeof *world->nodes);
    world->links = calloc((size_t)world->node_count * config->node_count, sizeof *world->links);
    world->link_at = malloc((size_t)world->node_count * config->node_count * sizeof *world->link_at);
    world->messages = calloc(4 * QR_REQUESTS_MAX, sizeof *world->messages);
    world->outbox_bytes = aligned_alloc(64, QR_OUTBOX_BYTES);
    world->wire = malloc(WIRE_BYTES);
    world->arena_bytes = aligned_alloc(64, qr_round_up(ARENA_BYTES, 64));
    if (!world->nodes || !world->links || !world->link_at || !world->messages || !world->outbox_bytes || !world->wire ||
        !world->arena_bytes) {
        world->node_count = 0;
        qr_world_destroy(&world);
        return NULL;
    }
    qr_outbox_init(&world->outbox, world->messages, 4 * QR_REQUESTS_MAX, world->outbox_bytes, QR_OUTBOX_BYTES);
    for (uint32_t n = 0; n < world->node_count; n++) {
        world->nodes[n].plan = config->nodes[n % config->node_count];
        post(world, (event_t){.at_us = qr_prng_below(&world->prng, 1000), .kind = EVENT_BOOT, .node = n});
        link_with_others(world, n);
    }
    for (uint32_t f = 0; f < config->fault_count; f++)
        post(world, (event_t){.at_us = config->faults[f].at_us, .kind = EVENT_FAULT, .index = f});
    return world;
}

void qr_world_destroy(qr_world_t **self)
{
    qr_world_t *world = *self;
    if (!world) return;
    *self = NULL;
    for (uint32_t n = 0; world->nodes && n < world->node_count; n++)
        for (uint32_t i = 0; i < world->nodes[n].cell_count; i++) cell_done(&world->nodes[n].cells[i]);
    for (uint64_t i = 0; i < world->heap_count; i++)
        if (world->heap[i].letter) letter_drop(world->heap[i].letter);
    for (uint32_t i = 0; i < QR_SIM_HISTORY; i++)
        if (world->history[i]) letter_drop(world->history[i]);
    free(world->heap);
    free(world->nodes);
    free(world->links);
    free(world->link_at);
    free(world->messages);
    free(world->outbox_bytes);
    free(world->wire);
    free(world->arena_bytes);
    free(world);
}

uint64_t qr_world_now_us(const qr_world_t *world) { return world->now_us; }
uint64_t qr_world_epoch(const qr_world_t *world, uint32_t node) { return world->nodes[node].alive ? world->nodes[node].epoch : 0; }
uint64_t qr_world_new_epoch(qr_world_t *world) { return ++world->sessions << 8 | 1; }
uint64_t qr_world_unlinked_since_us(const qr_world_t *world, uint32_t node, uint32_t other)
{
    const link_t *link = node == other ? NULL : link_find(world, node, other);
    uint32_t side = link ? link->nodes[1] == node : 0;
    return link && !link->session[side] ? link->down_us[side] : 0;
}
uint64_t qr_world_linked_since_us(const qr_world_t *world, uint32_t node, uint32_t other)
{
    const link_t *link = node == other ? NULL : link_find(world, node, other);
    return link && link->session[0] && link->session[0] == link->session[1] ? link->since_us[link->nodes[1] == node] : 0;
}
uint32_t qr_world_devices(const qr_world_t *world, uint32_t node) { return devices_of(world, node); }
uint64_t qr_world_started_us(const qr_world_t *world, uint64_t address)
{
    const cell_t *cell = cell_find(world, address);
    return cell && cell->started ? cell->start_us : QR_NEVER_US;
}
uint64_t qr_world_hash(const qr_world_t *world) { return world->hash; }
const qr_sim_counts_t *qr_world_counts(const qr_world_t *world) { return &world->counts; }
const char *qr_world_finding(const qr_world_t *world) { return world->finding; }
bool qr_world_alive(const qr_world_t *world, uint32_t node) { return world->nodes[node].alive; }
uint32_t qr_world_kills(const qr_world_t *world, uint32_t node) { return world->nodes[node].kills; }
void *qr_world_state(const qr_world_t *world, uint64_t address)
{
    cell_t *cell = cell_find(world, address);
    return cell ? cell->state : NULL;
}

bool qr_world_is_quiet(const qr_world_t *world, char *text, size_t text_bytes)
{
    for (uint32_t n = 0; n < world->node_count; n++)
        for (uint32_t i = 0; i < world->nodes[n].cell_count; i++)
            for (uint32_t s = 0; world->nodes[n].cells[i].pairs && s < QR_PAIR_SLOTS; s++) {
                const qr_pair_t *pair = &world->nodes[n].cells[i].pairs->slots[s];
                for (uint16_t type = 1; pair->address && type < QR_MESSAGE_TYPES_MAX; type++) {
                    if ((!pair->asked[type] && !pair->owed[type]) || type == QR_MESSAGE_tail || type == QR_MESSAGE_chunk_losses)
                        continue; /* these stay open */
                    (void)snprintf(text, text_bytes, "at the end %s of node %u has %u open %s to role %u of node %u and owes %u",
                                   world->nodes[n].cells[i].actor->name, n + 1, pair->asked[type], qr_schema_find(type)->name,
                                   qr_address_role(pair->address), qr_address_node(pair->address), pair->owed[type]);
                    return false;
                }
            }
    return true;
}

void qr_world_tell(const qr_world_t *world, FILE *out)
{
    qr_arena_t arena;
    qr_message_t message;
    static char data[1 << 16];
    for (uint64_t i = world->history_count > QR_SIM_HISTORY ? world->history_count - QR_SIM_HISTORY : 0; i < world->history_count; i++) {
        const letter_t *letter = world->history[i % QR_SIM_HISTORY];
        qr_arena_init(&arena, world->arena_bytes, ARENA_BYTES);
        if (qr_codec_decode(letter->data, letter->bytes, &arena, &message) == 0)
            print_line(out, world->history_us[i % QR_SIM_HISTORY], &message);
    }
    for (uint32_t n = 0; n < world->node_count; n++)
        for (uint32_t i = 0; i < world->nodes[n].cell_count; i++) {
            const cell_t *cell = &world->nodes[n].cells[i];
            if (!cell->actor->print || !cell->state) continue;
            qr_text_t text;
            qr_text_init(&text, data, sizeof data);
            cell->actor->print(cell->state, given_of(world, cell->address), &text);
            fprintf(out, "node %u: %s", n + 1, data);
        }
    fprintf(out, "finding: %s\n", world->finding);
}
