/* uplink.c - see uplink.h. */
#define _GNU_SOURCE
#include "transport/uplink.h"

#include "actors/note.h"
#include "actors/roles.h"
#include "base/error.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/describe.h"
#include "messages/schema.h"
#include "transport/clock.h"
#include "transport/link.h"
#include "transport/log.h"
#include "transport/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { CONTROL = 0, BULK = 1, KINDS = 2, TURN = 64, BAN_US = 10000000, LOG_EVERY_US = 1000000 };
#define ZAP_ENDPOINT "inproc://zeromq.zap.01"

typedef struct side {
    bool present; /* both ends have this kind */
    void *dealer; /* connecting side: its own socket; NULL: it is reached through the router */
    qr_link_t link;
} side_t;

typedef struct peer {
    uint32_t index, id; /* in the topology; node id */
    bool listens;       /* the peer listens and we connect */
    bool up;            /* its control link is */
    uint64_t epoch;
    char routing[16]; /* "n7" */
    side_t sides[KINDS];
} peer_t;

struct qr_uplink {
    qr_uplink_config_t config;
    qr_port_t port;
    uint64_t self;
    uint64_t schema_hash;
    qr_hash_t digest; /* what `fingerprints` points to */
    qr_bytes_t fingerprints;
    uint64_t now_us, logged_us;
    bool curve;
    char secret[QR_TOPOLOGY_KEY_BYTES], routing[16];
    void *zap, *routers[KINDS];
    uint32_t peer_count;
    peer_t peers[QR_NODES_MAX];
    qr_pairs_t *pairs;
    uint8_t *wire, *arena_memory; /* wire: [QR_MESSAGE_BYTES_MAX] */
    qr_arena_t arena;
    qr_message_t message, said;
    bool closing;
    qr_uplink_counts_t counts;
};

static const qr_topology_node_t *own_node(const qr_uplink_t *uplink) { return &uplink->config.topology->nodes[uplink->config.node]; }

static void bump(_Atomic uint64_t *count) { atomic_fetch_add_explicit(count, 1, memory_order_relaxed); }

/* At most one line a second about what others do wrong: they must not be able to fill a disk. */
static void complain(qr_uplink_t *uplink, const char *who, const char *sentence)
{
    if (uplink->logged_us && uplink->now_us < uplink->logged_us + LOG_EVERY_US) return;
    uplink->logged_us = uplink->now_us;
    char line[256];
    (void)snprintf(line, sizeof line, "%s: %s", who, sentence);
    qr_log_line(uplink->config.log_level, QR_LEVEL_WARN, "uplink", line);
}

static uint64_t session_new(void)
{
    uint64_t value = 0;
    while (value == 0)
        if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) value = 0;
    return value;
}

/* ---- checks before anything is opened -------------------------------------------------------------------------------------- */

bool qr_uplink_needed(const qr_topology_t *topology, uint32_t node)
{
    for (uint32_t i = 0; i < topology->link_count; i++)
        if (topology->links[i].connect == node || topology->links[i].listen == node) return true;
    return false;
}

int qr_uplink_check_version(int major, int minor, int patch, bool curve, qr_text_t *error)
{
    if (!curve || major > 4 || (major == 4 && (minor > 3 || (minor == 3 && patch >= 2)))) return 0;
    qr_text_put(error, "libzmq before 4.3.2 must not be used with CURVE (CVE-2019-13132); update libzmq");
    return -QR_E_UNSUPPORTED;
}

/* Whether a tcp:// endpoint stays inside this machine. */
static bool is_loopback(const char *endpoint)
{
    const char *host = endpoint + strlen("tcp://");
    return QR_MUTANT(309) || strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]:", 6) == 0 || strncmp(host, "localhost:", 10) == 0;
}

static int node_fail(int code, const char *name, const char *what, qr_text_t *error)
{
    qr_text_put(error, "node '");
    qr_text_put(error, name);
    qr_text_put(error, "' ");
    qr_text_put(error, what);
    return -code;
}

static int check_link(const qr_topology_t *topology, uint32_t node, qr_topology_link_t link, qr_text_t *error)
{
    const qr_topology_node_t *own = &topology->nodes[node], *other = &topology->nodes[link.connect == node ? link.listen : link.connect];
    if (own->insecure != other->insecure)
        return node_fail(QR_E_INVALID, other->name, "and its peer must both be insecure, or neither", error);
    if (!own->insecure && !own->public_key[0])
        return node_fail(QR_E_INVALID, own->name, "has links but no public key; make one with `quire keys`", error);
    if (!own->insecure && !other->public_key[0])
        return node_fail(QR_E_INVALID, other->name, "has links but no public key; make one with `quire keys`", error);
    return 0;
}

int qr_uplink_check(const qr_topology_t *topology, uint32_t node, qr_text_t *error)
{
    const qr_topology_node_t *own = &topology->nodes[node];
    /* Before the keys: a bind that anyone could reach must be refused whatever else is wrong. */
    if (!own->public_key[0] && !own->insecure &&
        ((own->control[0] && !is_loopback(own->control)) || (own->bulk[0] && !is_loopback(own->bulk))))
        return node_fail(QR_E_INVALID, own->name, "would listen outside this machine without keys; give it a public key (`quire keys`)",
                         error);
    for (uint32_t i = 0; i < topology->link_count; i++) {
        qr_topology_link_t link = topology->links[i];
        if (link.connect != node && link.listen != node) continue;
        int code = check_link(topology, node, link, error);
        if (code) return code;
    }
    if (own->insecure) return 0;
    if (!zmq_has("curve")) return node_fail(QR_E_UNSUPPORTED, own->name, "needs CURVE, which this libzmq was built without", error);
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    int code = qr_uplink_check_version(major, minor, patch, true, error);
    char secret[QR_TOPOLOGY_KEY_BYTES], public_key[QR_TOPOLOGY_KEY_BYTES];
    if (code == 0) code = qr_topology_secret_read(topology->keys, own->name, secret, error);
    if (code) return code;
    bool same = zmq_curve_public(public_key, secret) == 0 && strcmp(public_key, own->public_key) == 0;
    explicit_bzero(secret, sizeof secret);
    return same ? 0 : node_fail(QR_E_INVALID, own->name, "has a public key that does not belong to its secret key", error);
}

/* ---- building --------------------------------------------------------------------------------------------------------------- */

static void peer_add(qr_uplink_t *uplink, uint32_t index, bool listens)
{
    const qr_topology_node_t *node = &uplink->config.topology->nodes[index];
    const qr_topology_node_t *listener = listens ? node : own_node(uplink);
    peer_t *peer = &uplink->peers[uplink->peer_count++];
    *peer = (peer_t){.index = index, .id = node->id, .listens = listens};
    (void)snprintf(peer->routing, sizeof peer->routing, "n%u", node->id);
    peer->sides[CONTROL].present = true;
    peer->sides[BULK].present = listener->bulk[0] != 0;
}

qr_uplink_t *qr_uplink_new(const qr_uplink_config_t *config)
{
    qr_uplink_t *uplink = calloc(1, sizeof *uplink);
    if (!uplink) return NULL;
    uplink->config = *config;
    uplink->self = qr_address(config->topology->nodes[config->node].id, 0, QR_ROLE_uplink, 0);
    uplink->curve = !own_node(uplink)->insecure;
    uplink->schema_hash = qr_describe_hash();
    uplink->fingerprints = qr_link_fingerprints(config->vocabulary, &uplink->digest);
    (void)snprintf(uplink->routing, sizeof uplink->routing, "n%u", own_node(uplink)->id);
    uplink->pairs = calloc(1, sizeof *uplink->pairs);
    uplink->wire = malloc(QR_MESSAGE_BYTES_MAX);
    uplink->arena_memory = malloc(QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    if (!uplink->pairs || !uplink->wire || !uplink->arena_memory) {
        qr_uplink_destroy(&uplink);
        return NULL;
    }
    qr_pairs_init(uplink->pairs, uplink->self);
    qr_arena_init(&uplink->arena, uplink->arena_memory, QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    for (uint32_t i = 0; i < config->topology->link_count; i++) {
        qr_topology_link_t link = config->topology->links[i];
        if (link.connect == config->node)
            peer_add(uplink, link.listen, true);
        else if (link.listen == config->node)
            peer_add(uplink, link.connect, false);
    }
    return uplink;
}

void qr_uplink_destroy(qr_uplink_t **self)
{
    qr_uplink_t *uplink = *self;
    if (!uplink) return;
    *self = NULL;
    explicit_bzero(uplink->secret, sizeof uplink->secret);
    free(uplink->pairs);
    free(uplink->wire);
    free(uplink->arena_memory);
    free(uplink);
}

const qr_uplink_counts_t *qr_uplink_counts(const qr_uplink_t *uplink) { return &uplink->counts; }

/* ---- sockets ------------------------------------------------------------------------------------------------------------------ */

static bool set_int(void *socket, int option, int value) { return zmq_setsockopt(socket, option, &value, sizeof value) == 0; }

/* Options both kinds of socket have; all before bind or connect. */
static bool set_common(const qr_uplink_t *uplink, void *socket)
{
    int down_ms = (int)(uplink->config.peer_down_us / 1000);
    int64_t most = QR_MESSAGE_BYTES_MAX;
    return set_int(socket, ZMQ_LINGER, 0) && set_int(socket, ZMQ_SNDHWM, QR_UPLINK_MARK) && set_int(socket, ZMQ_RCVHWM, QR_UPLINK_MARK) &&
           set_int(socket, ZMQ_HEARTBEAT_IVL, (int)qr_max_u64((uint64_t)down_ms / 4, 10)) &&
           set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, down_ms) && set_int(socket, ZMQ_HEARTBEAT_TTL, down_ms) &&
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0 && set_int(socket, ZMQ_IPV6, 1);
}

static void *socket_new(qr_uplink_t *uplink, int type)
{
    void *socket = zmq_socket(uplink->config.directory->context, type);
    if (socket) atomic_fetch_add(&uplink->config.directory->sockets_open, 1);
    return socket;
}

static void socket_close(qr_uplink_t *uplink, void **socket)
{
    if (!*socket) return;
    (void)zmq_close(*socket);
    *socket = NULL;
    atomic_fetch_sub(&uplink->config.directory->sockets_open, 1);
}

static bool router_open(qr_uplink_t *uplink, uint32_t kind, const char *endpoint)
{
    void *socket = uplink->routers[kind] = socket_new(uplink, ZMQ_ROUTER);
    if (!socket || !set_common(uplink, socket) || !set_int(socket, ZMQ_ROUTER_MANDATORY, 1) || !set_int(socket, ZMQ_ROUTER_HANDOVER, 1))
        return false;
    if (uplink->curve && (zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "quire", 5) != 0 || !set_int(socket, ZMQ_CURVE_SERVER, 1) ||
                          zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, uplink->secret, QR_TOPOLOGY_KEY_BYTES) != 0))
        return false;
    return zmq_bind(socket, endpoint) == 0;
}

static bool dealer_open(qr_uplink_t *uplink, peer_t *peer, uint32_t kind)
{
    const qr_topology_node_t *node = &uplink->config.topology->nodes[peer->index];
    void *socket = peer->sides[kind].dealer = socket_new(uplink, ZMQ_DEALER);
    if (!socket || !set_common(uplink, socket) || !set_int(socket, ZMQ_IMMEDIATE, 1) || !set_int(socket, ZMQ_RECONNECT_IVL, 50) ||
        !set_int(socket, ZMQ_RECONNECT_IVL_MAX, 1000) ||
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, uplink->routing, strlen(uplink->routing)) != 0)
        return false;
    if (uplink->curve && (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, node->public_key, QR_TOPOLOGY_KEY_BYTES) != 0 ||
                          zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own_node(uplink)->public_key, QR_TOPOLOGY_KEY_BYTES) != 0 ||
                          zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, uplink->secret, QR_TOPOLOGY_KEY_BYTES) != 0))
        return false;
    return zmq_connect(socket, kind == BULK ? node->bulk : node->control) == 0;
}

static int sockets_open(qr_uplink_t *uplink)
{
    const qr_topology_node_t *own = own_node(uplink);
    if (uplink->curve) {
        char words[64];
        qr_text_t error;
        qr_text_init(&error, words, sizeof words);
        if (qr_topology_secret_read(uplink->config.topology->keys, own->name, uplink->secret, &error) != 0) return -QR_E_PERMISSION;
        uplink->zap = socket_new(uplink, ZMQ_REP);
        if (!uplink->zap || !set_int(uplink->zap, ZMQ_LINGER, 0) || zmq_bind(uplink->zap, ZAP_ENDPOINT) != 0) return -QR_E_IO;
    }
    bool listens = false;
    for (uint32_t p = 0; p < uplink->peer_count; p++) {
        peer_t *peer = &uplink->peers[p];
        listens = listens || !peer->listens;
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            side_t *side = &peer->sides[kind];
            if (!side->present) continue;
            qr_link_init(&side->link, session_new(), uplink->now_us);
            if (peer->listens && !dealer_open(uplink, peer, kind)) return -QR_E_IO;
        }
    }
    if (listens && !router_open(uplink, CONTROL, own->control)) return -QR_E_IO;
    if (listens && own->bulk[0] && !router_open(uplink, BULK, own->bulk)) return -QR_E_IO;
    return 0;
}

static void sockets_close(qr_uplink_t *uplink)
{
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        socket_close(uplink, &uplink->routers[kind]);
        for (uint32_t p = 0; p < uplink->peer_count; p++) socket_close(uplink, &uplink->peers[p].sides[kind].dealer);
    }
    socket_close(uplink, &uplink->zap);
}

/* ---- telling this node ---------------------------------------------------------------------------------------------------------- */

/* Sends link_up or link_down to one local actor. */
static void tell(qr_uplink_t *uplink, uint64_t to, const peer_t *peer, bool up, uint32_t reason)
{
    qr_message_t *message = &uplink->said;
    memset(message, 0, sizeof *message);
    message->type = up ? QR_MESSAGE_link_up : QR_MESSAGE_link_down;
    message->version = QR_MESSAGE_VERSION;
    message->from = uplink->self;
    message->to = to;
    message->epoch = uplink->config.epoch;
    if (up)
        message->body.link_up = (qr_link_up_t){peer->id, peer->epoch};
    else
        message->body.link_down = (qr_link_down_t){peer->id, reason};
    qr_pair_t *pair = qr_pairs_get(uplink->pairs, to);
    uint32_t port = qr_directory_port(uplink->config.directory, to);
    if (!pair || port == UINT32_MAX || qr_pairs_send(uplink->pairs, pair, message->type, &message->sequence) != QR_VERDICT_OK) return;
    int64_t bytes = qr_codec_encode(message, uplink->wire, QR_MESSAGE_BYTES_MAX);
    qr_assert(bytes > 0 && qr_port_send(&uplink->port, port, uplink->wire, (size_t)bytes) == 0);
}

static bool may_talk(const qr_uplink_t *uplink, uint8_t role, const peer_t *peer)
{
    const qr_topology_node_t *node = &uplink->config.topology->nodes[peer->index];
    for (uint32_t i = 0; i < node->actor_count; i++)
        if (qr_roles_talk(role, node->actors[i].role)) return true;
    return false;
}

static void tell_all(qr_uplink_t *uplink, const peer_t *peer, bool up, uint32_t reason)
{
    const qr_directory_t *directory = uplink->config.directory;
    for (uint32_t i = 0; i < directory->actor_count; i++) {
        uint8_t role = qr_address_role(directory->actors[i].address);
        if (role == QR_ROLE_mesh || role == QR_ROLE_uplink || role == QR_ROLE_record) continue;
        if (may_talk(uplink, role, peer)) tell(uplink, directory->actors[i].address, peer, up, reason);
    }
    char line[96];
    (void)snprintf(line, sizeof line, "node '%s' is %s", uplink->config.topology->nodes[peer->index].name, up ? "up" : "down");
    qr_log_line(uplink->config.log_level, QR_LEVEL_INFO, "uplink", line);
}

/* What a change of one side means for the peer. It is up while its control link is: that one alone orders the peer's last echo
 * before the first message, so neither end hears of the other's actors before it may. The bulk link has a session of its own. */
static void act(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, uint32_t bits, uint32_t reason)
{
    if (kind != CONTROL) return;
    if ((bits & QR_LINK_DOWN) && peer->up) {
        peer->up = false;
        tell_all(uplink, peer, false, reason);
    }
    if (!(bits & QR_LINK_UP)) return;
    peer->up = true;
    peer->epoch = peer->sides[CONTROL].link.peer_epoch;
    bump(&uplink->counts.sessions);
    tell_all(uplink, peer, true, 0);
}

/* ---- sending to a peer ------------------------------------------------------------------------------------------------------------ */

/* One try, one look, one more try; never a wait. */
static bool send_part(void *socket, const void *bytes, size_t count, int flags)
{
    if (zmq_send(socket, bytes, count, flags | ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() != EAGAIN) return false;
    int events;
    size_t size = sizeof events;
    (void)zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
    return zmq_send(socket, bytes, count, flags | ZMQ_DONTWAIT) >= 0;
}

static bool send_to(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, const void *bytes, size_t count)
{
    side_t *side = &peer->sides[kind];
    if (side->dealer) return send_part(side->dealer, bytes, count, 0);
    return uplink->routers[kind] && send_part(uplink->routers[kind], peer->routing, strlen(peer->routing), ZMQ_SNDMORE) &&
           send_part(uplink->routers[kind], bytes, count, 0);
}

static void say_hello(qr_uplink_t *uplink, peer_t *peer, uint32_t kind)
{
    qr_link_t *link = &peer->sides[kind].link;
    qr_message_t *message = &uplink->said;
    memset(message, 0, sizeof *message);
    message->type = QR_MESSAGE_link_hello;
    message->version = QR_MESSAGE_VERSION;
    message->from = uplink->self;
    message->to = qr_address(peer->id, 0, QR_ROLE_uplink, 0);
    message->epoch = uplink->config.epoch;
    message->body.link_hello = (qr_link_hello_t){.protocol = QR_LINK_PROTOCOL,
                                                 .schema_hash = uplink->schema_hash,
                                                 .node = own_node(uplink)->id,
                                                 .node_epoch = uplink->config.epoch,
                                                 .session = link->session,
                                                 .echo = link->peer_session,
                                                 .chunk_tokens = uplink->config.chunk_tokens,
                                                 .fingerprints = uplink->fingerprints,
                                                 .sent = link->sent};
    int64_t bytes = qr_codec_encode(message, uplink->wire, QR_MESSAGE_BYTES_MAX);
    qr_assert(bytes > 0);
    (void)send_to(uplink, peer, kind, uplink->wire, (size_t)bytes); /* not connected yet: the next one will be */
    link->hello_due_us = uplink->now_us + (link->up ? qr_max_u64(uplink->config.peer_down_us / 4, 10000) : QR_UPLINK_HELLO_US);
}

static peer_t *peer_of(qr_uplink_t *uplink, uint32_t node)
{
    for (uint32_t p = 0; p < uplink->peer_count; p++)
        if (uplink->peers[p].id == node) return &uplink->peers[p];
    return NULL;
}

/* A local actor's message for another node. */
static void export_message(qr_uplink_t *uplink, const uint8_t *bytes, size_t count)
{
    qr_peek_t head;
    if (qr_codec_peek(bytes, count, &head) != 0) return;
    const qr_schema_t *row = qr_schema_find(head.type);
    peer_t *peer = peer_of(uplink, qr_address_node(head.to));
    if (!row || row->scope != QR_SCOPE_NODE) {
        bump(&uplink->counts.local_refused);
        complain(uplink, row ? row->name : "?", "carries handles of this node and is not sent to another");
        return;
    }
    if (peer && peer->up) {
        if (send_to(uplink, peer, CONTROL, bytes, count)) {
            peer->sides[CONTROL].link.sent++;
            bump(&uplink->counts.sent);
            return;
        }
        complain(uplink, peer->routing, "does not take what is sent to it; its session ends");
        act(uplink, peer, CONTROL, qr_link_end(&peer->sides[CONTROL].link, session_new(), 0, uplink->now_us), QR_E_PEER_DOWN);
        return;
    }
    bump(&uplink->counts.dropped_down);
    if (row->mood == QR_MOOD_ASK && peer) tell(uplink, head.from, peer, false, QR_E_PEER_DOWN);
}

/* ---- receiving from a peer ----------------------------------------------------------------------------------------------------------- */

static void strike(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, const char *why)
{
    qr_link_t *link = &peer->sides[kind].link;
    complain(uplink, peer->routing, why);
    if (++link->strikes < QR_UPLINK_STRIKES) return;
    complain(uplink, peer->routing, "broke the protocol too often and is not listened to for a while");
    act(uplink, peer, kind, qr_link_end(link, session_new(), BAN_US, uplink->now_us), QR_E_PROTOCOL);
}

static void on_hello(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, const qr_link_hello_t *hello)
{
    qr_link_expect_t expect = {peer->id, uplink->schema_hash, uplink->config.chunk_tokens, uplink->fingerprints};
    const char *refusal = qr_link_refusal(hello, &expect);
    if (refusal) {
        bump(&uplink->counts.refused);
        complain(uplink, peer->routing, refusal);
        return;
    }
    uint32_t bits = qr_link_hello(&peer->sides[kind].link, hello, session_new(), uplink->now_us);
    if (bits & QR_LINK_LOST) {
        bump(&uplink->counts.lost);
        complain(uplink, peer->routing, "sent messages that did not arrive; its session begins anew");
    }
    act(uplink, peer, kind, bits, QR_E_PEER_DOWN);
    if (bits & QR_LINK_REPLY) say_hello(uplink, peer, kind);
}

/* Whether the topology gives the peer this actor; a peer's prompt stands where it lists http. */
static bool lists(const qr_uplink_t *uplink, const peer_t *peer, uint64_t address)
{
    const qr_topology_node_t *node = &uplink->config.topology->nodes[peer->index];
    uint64_t http = (address & ~(0xffull << 16)) | (uint64_t)QR_ROLE_http << 16;
    for (uint32_t i = 0; i < node->actor_count; i++) {
        uint64_t listed = node->actors[i].address;
        if (listed == address || (qr_address_role(address) == QR_ROLE_prompt && listed == http)) return true;
    }
    return false;
}

/* Everything that must hold before bytes of another node reach an inbox. NULL: fine. */
static const char *import_refusal(qr_uplink_t *uplink, const peer_t *peer, const qr_message_t *message)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    if (row->scope != QR_SCOPE_NODE) return "sent a message that may not leave its node";
    if (qr_address_node(message->from) != peer->id) return "sent a message in the name of another node";
    if (qr_address_node(message->to) != own_node(uplink)->id) return "sent a message for another node";
    if (!lists(uplink, peer, message->from)) return "sent a message in the name of an actor it does not have";
    if (!qr_roles_cross(qr_address_role(message->from), qr_address_role(message->to), message->type))
        return "sent what its role may not say to that role of another node";
    uint32_t port = qr_directory_port(uplink->config.directory, message->to);
    if (port == UINT32_MAX || port == uplink->config.port) return "sent a message to an actor that is not here";
    return NULL;
}

static void import_message(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, const uint8_t *bytes, size_t count)
{
    qr_link_t *link = &peer->sides[kind].link;
    if (uplink->now_us < link->banned_until_us) return;
    if (!qr_link_admit(link, count, uplink->now_us)) {
        bump(&uplink->counts.refused);
        strike(uplink, peer, kind, "sends more than a link may carry");
        return;
    }
    qr_arena_reset(&uplink->arena);
    qr_message_t *message = &uplink->message;
    if (qr_codec_decode(bytes, count, &uplink->arena, message) != 0) {
        bump(&uplink->counts.malformed);
        link->received++;
        strike(uplink, peer, kind, "sent bytes that are no message");
        return;
    }
    if (message->type == QR_MESSAGE_link_hello) {
        on_hello(uplink, peer, kind, &message->body.link_hello);
        return;
    }
    if (!peer->up || message->epoch != link->peer_epoch) {
        bump(&uplink->counts.stale);
        return;
    }
    link->heard_us = uplink->now_us;
    link->received++;
    const char *refusal = kind == BULK ? "sent a message on the bulk link" : import_refusal(uplink, peer, message);
    if (refusal) {
        bump(&uplink->counts.refused);
        strike(uplink, peer, kind, refusal);
        return;
    }
    bump(&uplink->counts.received);
    qr_assert(qr_port_send(&uplink->port, qr_directory_port(uplink->config.directory, message->to), bytes, count) == 0);
}

/* One multi-part message off a socket: at most `most` parts kept, the rest read and dropped. Returns the number of parts, 0 if
 * there was nothing. */
static uint32_t receive_parts(void *socket, zmq_msg_t *parts, uint32_t most)
{
    uint32_t count = 0;
    bool more = true;
    while (more) {
        zmq_msg_t surplus;
        zmq_msg_t *part = count < most ? &parts[count] : &surplus;
        if (part == &surplus) zmq_msg_init(part);
        if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0) {
            if (part == &surplus) zmq_msg_close(part);
            return count;
        }
        more = zmq_msg_more(part) != 0;
        if (part == &surplus) zmq_msg_close(part);
        count++;
    }
    return count;
}

/* The peer a ROUTER's message came from: its routing id must be the name its key was given by the allow-list. */
static peer_t *peer_of_route(qr_uplink_t *uplink, zmq_msg_t *id, zmq_msg_t *body)
{
    for (uint32_t p = 0; p < uplink->peer_count; p++) {
        peer_t *peer = &uplink->peers[p];
        size_t count = strlen(peer->routing);
        if (peer->listens || zmq_msg_size(id) != count || memcmp(zmq_msg_data(id), peer->routing, count) != 0) continue;
        if (!uplink->curve) return peer;
        const char *user = zmq_msg_gets(body, "User-Id");
        return user && strcmp(user, peer->routing) == 0 ? peer : NULL;
    }
    return NULL;
}

static uint32_t drain_router(qr_uplink_t *uplink, uint32_t kind, zmq_msg_t *parts)
{
    uint32_t n = 0;
    for (; n < TURN && uplink->routers[kind]; n++) {
        uint32_t count = receive_parts(uplink->routers[kind], parts, 2);
        if (count == 0) break;
        peer_t *peer = count == 2 ? peer_of_route(uplink, &parts[0], &parts[1]) : NULL;
        if (peer)
            import_message(uplink, peer, kind, zmq_msg_data(&parts[1]), zmq_msg_size(&parts[1]));
        else {
            bump(&uplink->counts.refused);
            complain(uplink, "a connection", "is not who it says it is, or sends more than one frame");
        }
    }
    return n;
}

static uint32_t drain_dealer(qr_uplink_t *uplink, peer_t *peer, uint32_t kind, zmq_msg_t *parts)
{
    uint32_t n = 0;
    for (; n < TURN && peer->sides[kind].dealer; n++) {
        uint32_t count = receive_parts(peer->sides[kind].dealer, parts, 1);
        if (count == 0) break;
        if (count == 1)
            import_message(uplink, peer, kind, zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]));
        else
            strike(uplink, peer, kind, "sends more than one frame");
    }
    return n;
}

/* ---- allow-list ------------------------------------------------------------------------------------------------------------------------
 */

/* The routing name of the linked node that owns this key and may connect here; NULL: not listed. */
static const char *key_owner(const qr_uplink_t *uplink, const uint8_t key[32])
{
    for (uint32_t p = 0; p < uplink->peer_count; p++) {
        uint8_t raw[32];
        const peer_t *peer = &uplink->peers[p];
        if (!peer->listens && zmq_z85_decode(raw, uplink->config.topology->nodes[peer->index].public_key) &&
            (memcmp(raw, key, 32) == 0 || QR_MUTANT(307)))
            return peer->routing;
    }
    return NULL;
}

static void zap_serve(qr_uplink_t *uplink)
{
    enum { VERSION, REQUEST, DOMAIN, ADDRESS, ROUTING, MECHANISM, KEY, PARTS };
    zmq_msg_t parts[PARTS];
    for (uint32_t i = 0; i < PARTS; i++) zmq_msg_init(&parts[i]);
    uint32_t count = receive_parts(uplink->zap, parts, PARTS);
    if (count > REQUEST) {
        const char *user = count == PARTS && zmq_msg_size(&parts[MECHANISM]) == 5 &&
                                   memcmp(zmq_msg_data(&parts[MECHANISM]), "CURVE", 5) == 0 && zmq_msg_size(&parts[KEY]) == 32
                               ? key_owner(uplink, zmq_msg_data(&parts[KEY]))
                               : NULL;
        if (!user) {
            bump(&uplink->counts.keys_refused);
            complain(uplink, "a connection", "has a key that no linked node has, and was refused");
        }
        (void)zmq_send(uplink->zap, "1.0", 3, ZMQ_SNDMORE);
        (void)zmq_send(uplink->zap, zmq_msg_data(&parts[REQUEST]), zmq_msg_size(&parts[REQUEST]), ZMQ_SNDMORE);
        (void)zmq_send(uplink->zap, user ? "200" : "400", 3, ZMQ_SNDMORE);
        (void)zmq_send(uplink->zap, "", 0, ZMQ_SNDMORE);
        (void)zmq_send(uplink->zap, user ? user : "", user ? strlen(user) : 0, ZMQ_SNDMORE);
        (void)zmq_send(uplink->zap, "", 0, 0);
    }
    for (uint32_t i = 0; i < PARTS; i++) zmq_msg_close(&parts[i]);
}

/* ---- loop
 * -------------------------------------------------------------------------------------------------------------------------------- */

static uint32_t drain_inbox(qr_uplink_t *uplink, zmq_msg_t *frame)
{
    uint32_t n = 0;
    while (n < TURN && qr_port_receive(&uplink->port, frame)) {
        n++;
        if (zmq_msg_size(frame) == 0)
            uplink->closing = true;
        else
            export_message(uplink, zmq_msg_data(frame), zmq_msg_size(frame));
    }
    return n;
}

/* A process that was stopped comes back with everyone seemingly silent: the time it was away does not count. */
static void forgive(qr_uplink_t *uplink, uint64_t away_us)
{
    for (uint32_t p = 0; p < uplink->peer_count; p++)
        for (uint32_t kind = 0; kind < KINDS; kind++) uplink->peers[p].sides[kind].link.heard_us += away_us;
}

/* Hellos and silence. Returns when the next of them is due. */
static uint64_t pass_time(qr_uplink_t *uplink)
{
    uint64_t next = uplink->now_us + uplink->config.peer_down_us / 4;
    for (uint32_t p = 0; p < uplink->peer_count; p++)
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            peer_t *peer = &uplink->peers[p];
            side_t *side = &peer->sides[kind];
            if (!side->present) continue;
            if (qr_link_silent(&side->link, uplink->config.peer_down_us, uplink->now_us))
                act(uplink, peer, kind, qr_link_end(&side->link, session_new(), 0, uplink->now_us), QR_E_PEER_DOWN);
            if (side->link.hello_due_us <= uplink->now_us) say_hello(uplink, peer, kind);
            next = qr_min_u64(next, side->link.hello_due_us);
        }
    return next;
}

static void sleep_until(qr_uplink_t *uplink, uint64_t at)
{
    zmq_pollitem_t items[2 + KINDS + KINDS * QR_NODES_MAX];
    int count = 0;
    items[count++] = (zmq_pollitem_t){uplink->port.inbox, 0, ZMQ_POLLIN, 0};
    if (uplink->zap) items[count++] = (zmq_pollitem_t){uplink->zap, 0, ZMQ_POLLIN, 0};
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (uplink->routers[kind]) items[count++] = (zmq_pollitem_t){uplink->routers[kind], 0, ZMQ_POLLIN, 0};
        for (uint32_t p = 0; p < uplink->peer_count; p++)
            if (uplink->peers[p].sides[kind].dealer)
                items[count++] = (zmq_pollitem_t){uplink->peers[p].sides[kind].dealer, 0, ZMQ_POLLIN, 0};
    }
    (void)zmq_poll(items, count, at > uplink->now_us ? (long)qr_div_up(at - uplink->now_us, 1000) : 0);
}

static void loop(qr_uplink_t *uplink)
{
    zmq_msg_t parts[2];
    zmq_msg_init(&parts[0]);
    zmq_msg_init(&parts[1]);
    uint64_t before = qr_clock_us();
    while (!uplink->closing) {
        uplink->now_us = qr_clock_us();
        if (uplink->now_us - before > uplink->config.peer_down_us / 2) forgive(uplink, uplink->now_us - before);
        before = uplink->now_us;
        uint32_t n = drain_inbox(uplink, &parts[0]);
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            n += drain_router(uplink, kind, parts);
            for (uint32_t p = 0; p < uplink->peer_count; p++) n += drain_dealer(uplink, &uplink->peers[p], kind, parts);
        }
        if (uplink->zap) zap_serve(uplink);
        uint64_t next = pass_time(uplink);
        if (n == 0) sleep_until(uplink, next);
    }
    zmq_msg_close(&parts[0]);
    zmq_msg_close(&parts[1]);
}

void qr_uplink_run(qr_uplink_t *uplink, void (*opened)(void *context, int code), void *context)
{
    uplink->now_us = qr_clock_us();
    int code = qr_port_open(&uplink->port, uplink->config.directory, uplink->config.port);
    if (code == 0) code = sockets_open(uplink);
    opened(context, code);
    if (code == 0) loop(uplink);
    sockets_close(uplink);
}

void qr_uplink_close(qr_uplink_t *uplink) { qr_port_close(&uplink->port); }
