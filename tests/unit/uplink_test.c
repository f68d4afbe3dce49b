/* link: qr_transport */
/* Links between nodes: two nodes in one process, two processes, and hostile peers made by hand. */
#include "base/error.h"
#include "messages/codec.h"
#include "messages/describe.h"
#include "tests/unit/toy.h"
#include "transport/clock.h"
#include "transport/link.h"
#include "transport/mesh.h"
#include "transport/uplink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include <cmocka.h>

static atomic_uint edge_up; /* whether the toy router has its link, for who waits for it */

/* ---- toy router (node 1) asks the toy worker (node 2) ------------------------------------------------------------------------ */

static void ask(toy_t *toy, qr_outbox_t *outbox)
{
    while (toy->up && toy->open_probes < 16 && toy->partner_count) {
        toy->open_probes++;
        qr_send(outbox, toy->partners[0], probe, (&(qr_probe_t){++toy->sent}));
    }
}

static void router_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox)) {
        if (m->type == QR_MESSAGE_link_down) toy->open_probes = 0;
        atomic_store(&edge_up, (uint32_t)toy->up);
        if (m->type == QR_MESSAGE_link_up) ask(toy, outbox);
        if (m->type == QR_MESSAGE_stop) toy->up = 0;
        return;
    }
    if (m->type != QR_MESSAGE_probe_done) return;
    toy->answered++;
    toy->open_probes--;
    ask(toy, outbox);
}

static void worker_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox)) return;
    toy->received++;
    if (m->type == QR_MESSAGE_probe) qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
}

static const qr_actor_class_t router_class = {.name = "router",
                                              .role = QR_ROLE_router,
                                              .max_out = 64,
                                              .bytes = toy_bytes,
                                              .init = toy_init,
                                              .handle = router_handle,
                                              .check = toy_check,
                                              .print = toy_print};
static const qr_actor_class_t worker_class = {.name = "worker",
                                              .role = QR_ROLE_worker,
                                              .max_out = 64,
                                              .bytes = toy_bytes,
                                              .init = toy_init,
                                              .handle = worker_handle,
                                              .print = toy_print};
static const qr_actor_class_t *const toys[] = {&router_class, &worker_class};

/* ---- two nodes ------------------------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/qr-uplink-XXXXXX";
static char keys[2][QR_TOPOLOGY_KEY_BYTES];
static int next_port;
static uint32_t log_level = QR_LEVEL_ERROR;
static qr_topology_t topology;
static qr_given_t *given;

static int setup(void **state)
{
    (void)state;
    char words[256];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    if (!mkdtemp(folder)) return -1;
    next_port = 10000 + (int)(getpid() % 10000) * 2;
    given = toy_given();
    given->params.peer_down_ms = 500;
    return qr_topology_keys_make(folder, "edge", keys[0], &error) || qr_topology_keys_make(folder, "device0", keys[1], &error) ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    free(given);
    return system(command);
}

static bool is_free(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool free = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    (void)close(fd);
    return free;
}

/* Two ports that nobody has; below those that the system hands out to whoever connects. */
static void take_ports(void)
{
    do next_port = next_port + 2 < 32000 ? next_port + 2 : 10000;
    while (!is_free(next_port) || !is_free(next_port + 1));
}

static void make_topology(bool curve)
{
    char text[1024], words[256];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    take_ports();
    char public[2][64];
    for (int i = 0; i < 2; i++)
        (void)snprintf(public[i], sizeof public[i], curve ? "    public = \"%s\"\n" : "    insecure = 1\n", keys[i]);
    (void)snprintf(
        text, sizeof text,
        "version = 1\nkeys = \"%s\"\nnode = edge\n    id = 1\n%s    host = h\n        actor = router\nnode = device0\n    id = 2\n%s    "
        "listen\n"
        "        control = \"tcp://127.0.0.1:%d\"\n        bulk = \"tcp://127.0.0.1:%d\"\n    host = h\n        actor = worker\nlink\n"
        "    connect = edge\n    listen = device0\n",
        folder, public[0], public[1], next_port, next_port + 1);
    if (qr_topology_parse("t", text, strlen(text), &topology, &error) != 0) fail_msg("%s", words);
}

static qr_mesh_t *node_on(const qr_topology_t *nodes, const char *name)
{
    char words[256];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    qr_mesh_config_t config = {
        .topology = nodes, .node = name, .classes = toys, .class_count = 2, .given = given, .check = true, .log_level = log_level};
    qr_mesh_t *mesh = NULL;
    if (qr_mesh_new(&config, &mesh, &error) != 0) fail_msg("%s", words);
    return mesh;
}

static qr_mesh_t *node_new(const char *name) { return node_on(&topology, name); }

static qr_mesh_counts_t counts_of(const qr_mesh_t *mesh)
{
    qr_mesh_counts_t counts;
    qr_mesh_counts(mesh, &counts);
    return counts;
}

/* Waits for a condition on a node's counts, at most a minute. */
#define UNTIL(condition)                                                                                                                   \
    do {                                                                                                                                   \
        uint64_t end = qr_clock_us() + 60000000;                                                                                           \
        while (!(condition) && qr_clock_us() < end) usleep(2000);                                                                          \
        assert_true(condition);                                                                                                            \
    } while (0)

static void finish(qr_mesh_t **mesh)
{
    qr_mesh_end(*mesh);
    assert_int_equal(qr_mesh_run(*mesh), 0);
    assert_int_equal(counts_of(*mesh).sockets_open, 0);
}

static void two_nodes(bool curve)
{
    make_topology(curve);
    uint64_t down_ms = given->params.peer_down_ms;
    given->params.peer_down_ms = 30000; /* one session, however busy the machine is */
    qr_mesh_t *edge = node_new("edge"), *device = node_new("device0");
    UNTIL(counts_of(edge).link_received > 2100); /* at most 16 of them were not handled yet when the node stops */
    finish(&edge);
    finish(&device);
    const toy_t *router = qr_mesh_state(edge, qr_address(1, 0, QR_ROLE_router, 0));
    const toy_t *worker = qr_mesh_state(device, qr_address(2, 0, QR_ROLE_worker, 0));
    assert_int_equal(router->links_up, 1);
    assert_int_equal(worker->links_up, 1);
    assert_true(router->answered >= 2000);
    assert_true(worker->received >= router->answered);
    assert_int_equal(counts_of(edge).link_malformed + counts_of(edge).link_refused + counts_of(edge).dropped_answer, 0);
    qr_mesh_destroy(&edge);
    qr_mesh_destroy(&device);
    given->params.peer_down_ms = down_ms;
}

static void test_two_nodes_in_one_process(void **state)
{
    (void)state;
    two_nodes(true);
}
static void test_two_nodes_without_keys_on_loopback(void **state)
{
    (void)state;
    two_nodes(false);
}

/* A node that restarts is a new session: down, then up, and questions flow again. The survivor notices silence in time. */
static void test_restart_is_a_new_session(void **state)
{
    (void)state;
    make_topology(true);
    qr_mesh_t *edge = node_new("edge"), *device = node_new("device0");
    UNTIL(counts_of(edge).link_received > 100);
    finish(&device);
    qr_mesh_destroy(&device);
    const toy_t *router = qr_mesh_state(edge, qr_address(1, 0, QR_ROLE_router, 0));
    UNTIL(!atomic_load(&edge_up));
    device = node_new("device0");
    uint64_t before = counts_of(edge).link_received;
    UNTIL(counts_of(edge).link_received > before + 100);
    finish(&edge);
    assert_true(router->links_up >= 2); /* more where the machine is too busy to keep one */
    assert_int_equal(counts_of(edge).link_sessions, router->links_up);
    finish(&device);
    qr_mesh_destroy(&edge);
    qr_mesh_destroy(&device);
}

/* ---- a connection that breaks and is made again ------------------------------------------------------------------------------------ */

typedef struct relay {
    int listener, port, target;
    atomic_bool end, cut;
    atomic_uint made; /* connections */
} relay_t;

static int relay_connect(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    (void)close(fd);
    return -1;
}

/* Hands on what stands ready; false when either side is gone. */
static bool relay_pass(int from, int to)
{
    char bytes[16384];
    ssize_t count = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    for (ssize_t at = 0; at < count;) {
        ssize_t sent = send(to, bytes + at, (size_t)(count - at), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += sent;
    }
    return count > 0;
}

static void *relay_body(void *context)
{
    relay_t *relay = context;
    while (!atomic_load(&relay->end)) {
        struct pollfd waiting = {relay->listener, POLLIN, 0};
        if (poll(&waiting, 1, 20) <= 0) continue;
        int a = accept(relay->listener, NULL, NULL), b = relay_connect(relay->target);
        atomic_store(&relay->cut, false);
        atomic_fetch_add(&relay->made, 1);
        bool alive = a >= 0 && b >= 0;
        while (alive && !atomic_load(&relay->end) && !atomic_load(&relay->cut)) {
            struct pollfd both[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
            (void)poll(both, 2, 20);
            alive = (both[0].revents == 0 || relay_pass(a, b)) && (both[1].revents == 0 || relay_pass(b, a));
        }
        if (a >= 0) (void)close(a);
        if (b >= 0) (void)close(b);
    }
    return NULL;
}

static void relay_open(relay_t *relay, int target)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    memset(relay, 0, sizeof *relay);
    relay->target = target;
    relay->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(relay->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(relay->listener, 4), 0);
    assert_int_equal(getsockname(relay->listener, (struct sockaddr *)&at, &size), 0);
    relay->port = ntohs(at.sin_port);
}

/* The connection breaks and is made again at once: nobody was silent, libzmq tells nobody, but what was in it is gone. The session begins
 * anew, so the questions that were lost do not stay open. */
static void test_what_a_broken_connection_lost_is_noticed(void **state)
{
    (void)state;
    static qr_topology_t edge_topology;
    static relay_t relay;
    make_topology(false);
    relay_open(&relay, next_port);
    edge_topology = topology;
    (void)snprintf(edge_topology.nodes[1].control, sizeof edge_topology.nodes[1].control, "tcp://127.0.0.1:%d", relay.port);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, relay_body, &relay), 0);
    uint64_t down_ms = given->params.peer_down_ms;
    given->params.peer_down_ms = 4000; /* hellos once a second: silence is not what ends it */
    qr_mesh_t *device = node_new("device0"), *edge = node_on(&edge_topology, "edge");
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t before = counts_of(edge).link_received, made = atomic_load(&relay.made);
        UNTIL(counts_of(edge).link_received > before + 100);
        atomic_store(&relay.cut, true);
        UNTIL(atomic_load(&relay.made) > made);
    }
    uint64_t before = counts_of(edge).link_received;
    UNTIL(counts_of(edge).link_received > before + 100);
    finish(&edge);
    finish(&device);
    atomic_store(&relay.end, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close(relay.listener);
    const toy_t *router = qr_mesh_state(edge, qr_address(1, 0, QR_ROLE_router, 0));
    assert_true(router->links_up >= 2);
    qr_mesh_destroy(&edge);
    qr_mesh_destroy(&device);
    given->params.peer_down_ms = down_ms;
}

/* Two processes; the device is killed: the edge hears of it within the time of silence. */
static void test_kill_is_noticed(void **state)
{
    (void)state;
    make_topology(true);
    pid_t child = fork();
    if (child == 0) {
        qr_mesh_t *device = node_new("device0");
        (void)qr_mesh_run(device);
        _exit(0);
    }
    qr_mesh_t *edge = node_new("edge");
    UNTIL(counts_of(edge).link_received > 100);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    UNTIL(!atomic_load(&edge_up));
    finish(&edge);
    const toy_t *router = qr_mesh_state(edge, qr_address(1, 0, QR_ROLE_router, 0));
    assert_true(router->links_up >= 1);                  /* more where the machine is too busy to keep one */
    assert_true(router->links_down >= router->links_up); /* a question on its way to a node that is down is answered by one more */
    assert_true(router->open_probes == 0);
    qr_mesh_destroy(&edge);
}

/* ---- peers made by hand ----------------------------------------------------------------------------------------------------------- */

typedef struct hand {
    void *context, *socket;
    uint64_t session, peer_session, epoch, sequence;
    qr_arena_t arena;
    uint8_t arena_memory[65536];
} hand_t;

enum { METADATA = 95 };           /* ZMQ_METADATA: every libzmq of 4.3 takes it, its header names it among drafts only */
static const char *hand_metadata; /* "X-name:value" more in the handshake of the next hand; NULL: none */

/* Connects to the device's control (or bulk) endpoint as node 1. secret NULL: without CURVE. */
static void hand_open(hand_t *hand, const char *routing, int port, const char *public_key, const char *secret)
{
    static uint64_t sessions = 76;
    char endpoint[64];
    int zero = 0, timeout = 10000, mark = 16;
    memset(hand, 0, sizeof *hand);
    hand->session = ++sessions;
    hand->epoch = 5;
    qr_arena_init(&hand->arena, hand->arena_memory, sizeof hand->arena_memory);
    hand->context = zmq_ctx_new();
    hand->socket = zmq_socket(hand->context, ZMQ_DEALER);
    zmq_setsockopt(hand->socket, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(hand->socket, ZMQ_RCVHWM, &mark, sizeof mark);
    zmq_setsockopt(hand->socket, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
    zmq_setsockopt(hand->socket, ZMQ_SNDTIMEO, &timeout, sizeof timeout);
    zmq_setsockopt(hand->socket, ZMQ_ROUTING_ID, routing, strlen(routing));
    if (secret) {
        zmq_setsockopt(hand->socket, ZMQ_CURVE_SERVERKEY, keys[1], QR_TOPOLOGY_KEY_BYTES);
        zmq_setsockopt(hand->socket, ZMQ_CURVE_PUBLICKEY, public_key, QR_TOPOLOGY_KEY_BYTES);
        zmq_setsockopt(hand->socket, ZMQ_CURVE_SECRETKEY, secret, QR_TOPOLOGY_KEY_BYTES);
    }
    if (hand_metadata) assert_int_equal(zmq_setsockopt(hand->socket, METADATA, hand_metadata, strlen(hand_metadata)), 0);
    (void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", port);
    assert_int_equal(zmq_connect(hand->socket, endpoint), 0);
}

/* For who expects no answer, or that sends are refused. */
static void hand_brief(hand_t *hand)
{
    int timeout = 300;
    zmq_setsockopt(hand->socket, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
    zmq_setsockopt(hand->socket, ZMQ_SNDTIMEO, &timeout, sizeof timeout);
}

static void hand_close(hand_t *hand)
{
    zmq_close(hand->socket);
    zmq_ctx_term(hand->context);
}

static void hand_send(hand_t *hand, qr_message_t *message)
{
    uint8_t wire[4096];
    message->version = 1;
    message->epoch = hand->epoch;
    message->sequence = ++hand->sequence;
    int64_t bytes = qr_codec_encode(message, wire, sizeof wire);
    assert_true(bytes > 0);
    (void)zmq_send(hand->socket, wire, (size_t)bytes, 0);
}

static void hand_hello(hand_t *hand)
{
    qr_message_t message = {
        .type = QR_MESSAGE_link_hello, .from = qr_address(1, 0, QR_ROLE_uplink, 0), .to = qr_address(2, 0, QR_ROLE_uplink, 0)};
    message.body.link_hello = (qr_link_hello_t){.protocol = QR_LINK_PROTOCOL,
                                                .schema_hash = qr_describe_hash(),
                                                .node = 1,
                                                .node_epoch = hand->epoch,
                                                .session = hand->session,
                                                .echo = hand->peer_session,
                                                .chunk_tokens = (uint32_t)given->params.chunk_tokens};
    hand_send(hand, &message);
}

/* Hello both ways; true when the device answered with its session. */
static bool hand_greet(hand_t *hand)
{
    hand_hello(hand);
    for (int i = 0; i < 10; i++) {
        uint8_t wire[4096];
        int count = zmq_recv(hand->socket, wire, sizeof wire, 0);
        qr_message_t message;
        qr_arena_reset(&hand->arena);
        if (count < 0) return false;
        if (count > (int)sizeof wire || qr_codec_decode(wire, (size_t)count, &hand->arena, &message) != 0) continue;
        if (message.type != QR_MESSAGE_link_hello) continue;
        hand->peer_session = message.body.link_hello.session;
        hand_hello(hand);
        if (message.body.link_hello.echo == hand->session) return true;
    }
    return false;
}

static qr_message_t probe_to_worker(uint64_t id)
{
    qr_message_t message = {
        .type = QR_MESSAGE_probe, .from = qr_address(1, 0, QR_ROLE_router, 0), .to = qr_address(2, 0, QR_ROLE_worker, 0)};
    message.body.probe.probe_id = id;
    return message;
}

/* TR-05: CURVE is required. Plain clients and unlisted keys reach nobody; the right key does. */
static void test_TR_05(void **state)
{
    (void)state;
    make_topology(true);
    qr_mesh_t *device = node_new("device0");
    char public_key[QR_TOPOLOGY_KEY_BYTES], secret[QR_TOPOLOGY_KEY_BYTES], words[128];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    hand_t hand;
    qr_message_t probe = probe_to_worker(1);
    hand_open(&hand, "n1", next_port, NULL, NULL); /* (a) no mechanism */
    hand_brief(&hand);
    assert_false(hand_greet(&hand));
    hand_send(&hand, &probe);
    hand_close(&hand);
    assert_int_equal(zmq_curve_keypair(public_key, secret), 0); /* (b) a key that nobody listed */
    hand_open(&hand, "n1", next_port, public_key, secret);
    hand_brief(&hand);
    assert_false(hand_greet(&hand));
    hand_send(&hand, &probe);
    hand_close(&hand);
    UNTIL(counts_of(device).link_keys_refused > 0);
    assert_int_equal(counts_of(device).link_received, 0);
    assert_int_equal(qr_topology_secret_read(folder, "edge", secret, &error), 0);
    hand_open(&hand, "n9", next_port, keys[0], secret); /* the right key under another node's name */
    hand_brief(&hand);
    assert_false(hand_greet(&hand));
    hand_close(&hand);
    assert_int_equal(counts_of(device).link_received, 0);
    char
        more[608]; /* (d) the right key and 600 bytes more than a handshake has: let in or not, the node lives and the next one is let in */
    (void)snprintf(more, sizeof more, "X-more:%0600d", 1);
    hand_metadata = more;
    hand_open(&hand, "n1", next_port, keys[0], secret);
    hand_metadata = NULL;
    hand_brief(&hand);
    uint64_t sessions = hand_greet(&hand) ? 1 : 0;
    hand_close(&hand);
    UNTIL(counts_of(device).link_sessions == sessions);
    hand_t bulk; /* (c) the right key and name */
    hand_open(&hand, "n1", next_port, keys[0], secret);
    hand_open(&bulk, "n1", next_port + 1, keys[0], secret);
    assert_true(hand_greet(&hand));
    assert_true(hand_greet(&bulk));
    UNTIL(counts_of(device).link_sessions == sessions + 1);
    hand_send(&hand, &probe);
    UNTIL(counts_of(device).link_received == 1);
    hand_close(&hand);
    hand_close(&bulk);
    finish(&device);
    assert_int_equal(((const toy_t *)qr_mesh_state(device, qr_address(2, 0, QR_ROLE_worker, 0)))->received, 1);
    qr_mesh_destroy(&device);
}

/* What a linked peer may not do: local messages, other names, wrong roles, no messages at all. It is dropped when it repeats it. */
static void test_hostile_peer_is_dropped(void **state)
{
    (void)state;
    make_topology(false);
    qr_mesh_t *device = node_new("device0");
    hand_t hand, bulk;
    hand_open(&hand, "n1", next_port, NULL, NULL);
    hand_open(&bulk, "n1", next_port + 1, NULL, NULL);
    assert_true(hand_greet(&hand));
    assert_true(hand_greet(&bulk));
    UNTIL(counts_of(device).link_sessions == 1);
    qr_message_t stop = {.type = QR_MESSAGE_stop, .from = qr_address(1, 0, QR_ROLE_mesh, 0), .to = qr_address(2, 0, QR_ROLE_worker, 0)};
    hand_send(&hand, &stop); /* LOCAL */
    qr_message_t forged = probe_to_worker(1);
    forged.from = qr_address(2, 0, QR_ROLE_router, 0); /* in our own name */
    hand_send(&hand, &forged);
    qr_message_t role = probe_to_worker(1);
    role.from = qr_address(1, 0, QR_ROLE_text, 0); /* no row */
    hand_send(&hand, &role);
    qr_message_t unlisted = probe_to_worker(1);
    unlisted.from = qr_address(1, 0, QR_ROLE_router, 7); /* an actor that node 1 does not have */
    hand_send(&hand, &unlisted);
    UNTIL(counts_of(device).link_refused == 4);
    qr_message_t astray = probe_to_worker(1);
    bulk.sequence = 100;
    hand_send(&bulk, &astray); /* the bulk link carries hellos only */
    UNTIL(counts_of(device).link_refused == 5);
    assert_int_equal(counts_of(device).link_received, 0);
    qr_message_t good = probe_to_worker(2);
    hand_send(&hand, &good);
    UNTIL(counts_of(device).link_received == 1);
    for (int i = 0; i < QR_UPLINK_STRIKES; i++) (void)zmq_send(hand.socket, "\xdd\x0f\xff\xff\xff", 5, 0);
    UNTIL(counts_of(device).link_malformed >= 10);
    hand_send(&hand, &good);
    hand_send(&hand, &good);
    usleep(50000);
    assert_int_equal(counts_of(device).link_received, 1); /* banned */
    hand_close(&hand);
    hand_close(&bulk);
    finish(&device);
    const toy_t *worker = qr_mesh_state(device, qr_address(2, 0, QR_ROLE_worker, 0));
    assert_int_equal(worker->received, 1);
    assert_int_equal(worker->links_down, 1);
    qr_mesh_destroy(&device);
}

/* Messages that pass the uplink and are wrong for the actor are counted one by one and logged once a second. */
static void test_wrong_messages_do_not_fill_the_log(void **state)
{
    (void)state;
    enum { REPEATS = 200 };
    make_topology(false);
    char path[96], line[512];
    (void)snprintf(path, sizeof path, "%s/log", folder);
    int before = dup(STDERR_FILENO), file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    assert_true(before >= 0 && file >= 0);
    log_level = QR_LEVEL_WARN;
    qr_mesh_t *device = node_new("device0");
    log_level = QR_LEVEL_ERROR;
    hand_t hand;
    hand_open(&hand, "n1", next_port, NULL, NULL);
    assert_true(hand_greet(&hand));
    UNTIL(counts_of(device).link_sessions == 1);
    (void)dup2(file, STDERR_FILENO);
    qr_message_t probe = probe_to_worker(1);
    for (int i = 0; i < REPEATS; i++) {
        hand.sequence = 5; /* the same one again and again */
        hand_send(&hand, &probe);
    }
    uint64_t end = qr_clock_us() + 30000000;
    while (counts_of(device).dropped_stale < REPEATS - 1 && qr_clock_us() < end) usleep(2000);
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    assert_int_equal(counts_of(device).dropped_stale, REPEATS - 1);
    FILE *log = fdopen(file, "r");
    rewind(log);
    uint32_t lines = 0;
    while (fgets(line, sizeof line, log)) lines++;
    (void)fclose(log);
    assert_in_range(lines, 1, 60); /* seconds, not messages */
    hand_close(&hand);
    finish(&device);
    qr_mesh_destroy(&device);
}

/* A peer that sends as fast as it can fills no inbox: what a link may not carry is dropped, and its session ends. */
static void test_a_flood_is_dropped(void **state)
{
    (void)state;
    enum { SALT_BYTES = 3 << 20, WIRE_BYTES = SALT_BYTES + 4096 };
    make_topology(false);
    qr_mesh_t *device = node_new("device0");
    hand_t hand;
    hand_open(&hand, "n1", next_port, NULL, NULL);
    assert_true(hand_greet(&hand));
    UNTIL(counts_of(device).link_sessions == 1);
    hand_brief(&hand);
    uint8_t *salt = calloc(1, SALT_BYTES), *wire = malloc(WIRE_BYTES);
    qr_message_t offer = probe_to_worker(1);
    offer.type = QR_MESSAGE_offer;
    offer.body.offer = (qr_offer_t){.request_id = 1, .attempt = 1, .tenant_salt = {salt, SALT_BYTES}};
    offer.version = 1;
    offer.epoch = hand.epoch;
    offer.sequence = 1000;
    int64_t bytes = qr_codec_encode(&offer, wire, WIRE_BYTES);
    assert_true(bytes > 0);
    uint64_t give_up_us = qr_clock_us() + 60000000; /* a slow machine needs more of them to be faster than the link's rate */
    while (counts_of(device).link_refused < QR_UPLINK_STRIKES && qr_clock_us() < give_up_us)
        (void)zmq_send(hand.socket, wire, (size_t)bytes, 0);
    UNTIL(counts_of(device).link_refused >= QR_UPLINK_STRIKES);
    free(salt);
    free(wire);
    hand_close(&hand);
    finish(&device);
    assert_int_equal(((const toy_t *)qr_mesh_state(device, qr_address(2, 0, QR_ROLE_worker, 0)))->links_down, 1);
    qr_mesh_destroy(&device);
}

/* Two nodes of one topology that opened different model files: no session. */
static void test_nodes_of_another_vocabulary_never_meet(void **state)
{
    (void)state;
    static const uint32_t offsets[] = {0, 1};
    static const uint8_t flags[] = {0};
    make_topology(false);
    given->vocabulary = (qr_vocabulary_t){.count = 1, .offsets = offsets, .bytes = (const uint8_t *)"a", .flags = flags};
    qr_mesh_t *device = node_new("device0");
    qr_vocabulary_t none = {0};
    given->vocabulary = none;
    hand_t hand;
    hand_open(&hand, "n1", next_port, NULL, NULL);
    hand_hello(&hand);
    UNTIL(counts_of(device).link_refused >= 1);
    assert_int_equal(counts_of(device).link_sessions, 0);
    hand_close(&hand);
    finish(&device);
    qr_mesh_destroy(&device);
}

/* ---- a peer that does not read, and one that vanishes ------------------------------------------------------------------------------ */

/* A toy heartbeat on node 2 floods node 1 with beats while its link is up, and beats once a millisecond to node 3. */
enum { FLOOD = 200 };
static void flood_handle(void *self, const qr_given_t *given_, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given_;
    bool life = toy_life(toy, m, outbox);
    if (m->type == QR_MESSAGE_start || m->type == QR_MESSAGE_alarm) qr_outbox_alarm(outbox, m->now_us + 1000);
    if (m->type == QR_MESSAGE_link_up && m->body.link_up.node == 1) toy->work_left = 1;
    if (m->type == QR_MESSAGE_link_down && m->body.link_down.node == 1) toy->work_left = 0;
    if (life || m->type != QR_MESSAGE_alarm) return;
    for (int i = 0; i < FLOOD && toy->work_left; i++)
        qr_send(outbox, qr_address(1, 0, QR_ROLE_heartbeat, 0), beat, (&(qr_beat_t){2, toy->epoch, ++toy->sent, 1}));
    qr_send(outbox, qr_address(3, 0, QR_ROLE_heartbeat, 0), beat, (&(qr_beat_t){2, toy->epoch, ++toy->received, 1}));
}
static const qr_actor_class_t flood_class = {.name = "heartbeat",
                                             .role = QR_ROLE_heartbeat,
                                             .max_out = FLOOD + 8,
                                             .bytes = toy_bytes,
                                             .init = toy_init,
                                             .handle = flood_handle,
                                             .print = toy_print};
static const qr_actor_class_t *const floods[] = {&flood_class};

/* The fast client: reads at once, says hello often, and measures the longest time without a beat. */
typedef struct fast {
    hand_t hand;
    atomic_bool end, ready;
    uint64_t beats, gap_us;
    bool holes;
} fast_t;

static void say_hello_as(hand_t *hand, uint32_t node)
{
    qr_message_t message = {
        .type = QR_MESSAGE_link_hello, .from = qr_address(node, 0, QR_ROLE_uplink, 0), .to = qr_address(2, 0, QR_ROLE_uplink, 0)};
    message.body.link_hello = (qr_link_hello_t){.protocol = QR_LINK_PROTOCOL,
                                                .schema_hash = qr_describe_hash(),
                                                .node = node,
                                                .node_epoch = hand->epoch,
                                                .session = hand->session,
                                                .echo = hand->peer_session,
                                                .chunk_tokens = (uint32_t)given->params.chunk_tokens};
    hand_send(hand, &message);
}

/* Receives one message; false after the receive timeout. */
static bool hand_receive(hand_t *hand, qr_message_t *message)
{
    uint8_t wire[4096];
    int count = zmq_recv(hand->socket, wire, sizeof wire, 0);
    qr_arena_reset(&hand->arena);
    return count > 0 && count <= (int)sizeof wire && qr_codec_decode(wire, (size_t)count, &hand->arena, message) == 0;
}

static void *fast_body(void *context)
{
    fast_t *fast = context;
    uint64_t last = 0, sequence = 0, hello_us = 0;
    while (!atomic_load(&fast->end)) {
        qr_message_t message;
        if (qr_clock_us() > hello_us + 50000) {
            say_hello_as(&fast->hand, 3);
            hello_us = qr_clock_us();
        }
        if (!hand_receive(&fast->hand, &message)) continue;
        if (message.type == QR_MESSAGE_link_hello) {
            fast->hand.peer_session = message.body.link_hello.session;
            continue;
        }
        uint64_t now = qr_clock_us();
        if (last && now - last > fast->gap_us) fast->gap_us = now - last;
        if (sequence && message.body.beat.sequence != sequence + 1) fast->holes = true;
        sequence = message.body.beat.sequence;
        last = now;
        if (++fast->beats == 20) atomic_store(&fast->ready, true);
    }
    return NULL;
}

enum { GAP_US = 4000000 }; /* whoever waits for the slow peer waits until its silence is noticed: SILENCE_MS */
enum { SILENCE_MS = 10000 };

static void slow_peer(bool vanishes)
{
    char text[1024], words[256];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    take_ports();
    (void)snprintf(
        text, sizeof text,
        "version = 1\nnode = one\n    id = 1\n    insecure = 1\n    host = h\n        actor = heartbeat\nnode = device0\n    id = 2\n"
        "    insecure = 1\n    listen\n        control = \"tcp://127.0.0.1:%d\"\n    host = h\n        actor = heartbeat\nnode = three\n"
        "    id = 3\n    insecure = 1\n    host = h\n        actor = heartbeat\nlink\n    connect = one\n    listen = device0\nlink\n"
        "    connect = three\n    listen = device0\n",
        next_port);
    if (qr_topology_parse("t", text, strlen(text), &topology, &error) != 0) fail_msg("%s", words);
    qr_mesh_config_t config = {
        .topology = &topology, .node = "device0", .classes = floods, .class_count = 1, .given = given, .log_level = QR_LEVEL_ERROR};
    qr_mesh_t *device = NULL;
    given->params.peer_down_ms = SILENCE_MS; /* silence is not what ends it here */
    if (qr_mesh_new(&config, &device, &error) != 0) fail_msg("%s", words);
    static fast_t fast;
    memset(&fast, 0, sizeof fast);
    hand_open(&fast.hand, "n3", next_port, NULL, NULL);
    int brief = 20;
    zmq_setsockopt(fast.hand.socket, ZMQ_RCVTIMEO, &brief, sizeof brief);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fast_body, &fast), 0);
    UNTIL(atomic_load(&fast.ready));

    hand_t slow;
    hand_open(&slow, "n1", next_port, NULL, NULL);
    assert_true(hand_greet(&slow));
    UNTIL(counts_of(device).link_sessions == 2);
    uint64_t dropped = counts_of(device).link_down_dropped; /* beats of the time before they were up */
    if (vanishes) {
        usleep(300000);
        hand_close(&slow);
    }
    /* Not read: marks and buffers fill up, the send is refused, the session ends. Nothing waits. */
    uint64_t end = qr_clock_us() + 60000000;
    while (counts_of(device).link_down_dropped == dropped && qr_clock_us() < end) {
        usleep(20000);
        if (!vanishes) say_hello_as(&slow, 1);
    }
    assert_true(counts_of(device).link_down_dropped > dropped);
    uint64_t expected = 0, got = 0;
    qr_message_t message;
    bool ended = false;
    while (!vanishes && hand_receive(&slow, &message)) {
        if (message.type == QR_MESSAGE_link_hello) ended = message.body.link_hello.session != slow.peer_session;
        if (ended) break;
        if (message.type != QR_MESSAGE_beat) continue;
        if (expected == 0) expected = message.body.beat.sequence;
        assert_int_equal(message.body.beat.sequence, expected); /* no hole: a prefix, then the end of the session */
        expected++;
        got++;
    }
    if (!vanishes) assert_true(ended && got > 1000);
    atomic_store(&fast.end, true);
    (void)pthread_join(thread, NULL);
    assert_false(fast.holes);
    if (fast.gap_us > GAP_US) fail_msg("the fast peer waited %llu us", (unsigned long long)fast.gap_us);
    if (!vanishes) hand_close(&slow);
    hand_close(&fast.hand);
    finish(&device);
    const toy_t *toy = qr_mesh_state(device, qr_address(2, 0, QR_ROLE_heartbeat, 0));
    assert_true(toy->links_down >= 1);
    assert_int_equal(toy->work_left, 0);
    qr_mesh_destroy(&device);
    given->params.peer_down_ms = 500;
}

/* TR-01: a peer that does not read gets everything in order up to the end of its session, never a hole; others are not delayed. */
static void test_TR_01(void **state)
{
    (void)state;
    slow_peer(false);
}
/* TR-03: a peer that vanishes while its queue fills never blocks the sender; its session ends, others are served. */
static void test_TR_03(void **state)
{
    (void)state;
    slow_peer(true);
}

/* ---- link.h by hand ------------------------------------------------------------------------------------------------------------------ */

static void test_sessions_need_the_echo(void **state)
{
    (void)state;
    qr_link_t a, b;
    qr_link_init(&a, 100, 0);
    qr_link_init(&b, 200, 0);
    qr_link_hello_t from_a = {.session = 100, .node_epoch = 1}, from_b = {.session = 200, .node_epoch = 2};
    assert_int_equal(qr_link_hello(&b, &from_a, 201, 1), QR_LINK_REPLY);
    assert_false(b.up);
    from_b.echo = 100;
    assert_int_equal(qr_link_hello(&a, &from_b, 101, 2), QR_LINK_UP | QR_LINK_REPLY);
    from_a.echo = 200;
    assert_int_equal(qr_link_hello(&b, &from_a, 201, 3), QR_LINK_UP);
    /* b restarts without a noticing: its new session ends a's. */
    qr_link_init(&b, 300, 4);
    from_b = (qr_link_hello_t){.session = 300, .node_epoch = 3, .echo = 0};
    assert_int_equal(qr_link_hello(&a, &from_b, 101, 5), QR_LINK_DOWN | QR_LINK_REPLY);
    assert_int_equal(a.session, 101);
    /* An echo of the ended session does not bring it back. */
    from_b.echo = 100;
    assert_int_equal(qr_link_hello(&a, &from_b, 102, 6), QR_LINK_REPLY);
    assert_false(a.up);
    from_b.echo = 101;
    assert_int_equal(qr_link_hello(&a, &from_b, 102, 7), QR_LINK_UP);
    assert_false(qr_link_silent(&a, 1000, 1006));
    assert_true(qr_link_silent(&a, 1000, 1007));
    assert_int_equal(qr_link_end(&a, 102, 0, 1007), QR_LINK_DOWN);
    assert_false(qr_link_silent(&a, 1000, 9999)); /* told once */
    assert_int_equal(qr_link_end(&a, 103, 0, 9999), 0);
}

static void test_a_hello_that_counts_more_than_came_ends_the_session(void **state)
{
    (void)state;
    qr_link_t a;
    qr_link_init(&a, 100, 0);
    qr_link_hello_t hello = {.session = 200, .node_epoch = 2, .echo = 100};
    assert_int_equal(qr_link_hello(&a, &hello, 101, 1), QR_LINK_UP | QR_LINK_REPLY);
    a.received = 3;
    hello.sent = 3;
    assert_int_equal(qr_link_hello(&a, &hello, 101, 2), 0);
    hello.sent = 4; /* the fourth did not come */
    assert_int_equal(qr_link_hello(&a, &hello, 101, 3), QR_LINK_DOWN | QR_LINK_LOST | QR_LINK_REPLY);
    assert_false(a.up);
    assert_int_equal(a.session, 101);
    assert_int_equal(qr_link_hello(&a, &hello, 102, 4), QR_LINK_REPLY); /* the old echo, whatever it counts */
    hello = (qr_link_hello_t){.session = 201, .node_epoch = 2, .echo = 101, .sent = 2};
    assert_int_equal(qr_link_hello(&a, &hello, 102, 5), QR_LINK_LOST | QR_LINK_REPLY); /* lost before it was up here: not up */
    assert_false(a.up);
}

static void test_a_link_has_a_rate(void **state)
{
    (void)state;
    qr_link_t link;
    qr_link_init(&link, 1, 0);
    uint64_t now_us = 5000000, second = QR_LINK_BYTES_PER_S / (1024 + QR_LINK_MESSAGE_BYTES), in = 0;
    while (qr_link_admit(&link, 1024, now_us)) in++;
    assert_in_range(in, second - 1, second + 1); /* a second's worth at once */
    for (in = 0; now_us < 7000000; now_us += 10)
        while (qr_link_admit(&link, 1024, now_us)) in++;
    assert_in_range(in, 2 * second - 2, 2 * second + 2); /* then only what time brings */
    assert_false(qr_link_admit(&link, QR_MESSAGE_BYTES_MAX, now_us));
    assert_true(qr_link_admit(&link, QR_MESSAGE_BYTES_MAX, now_us + 1000000));
}

static void test_hellos_of_another_vocabulary_are_refused(void **state)
{
    (void)state;
    const uint32_t offsets[] = {0, 1, 3}, moved[] = {0, 2, 3};
    const uint8_t flags[] = {0, QR_TOKEN_END};
    qr_vocabulary_t ours = {.count = 2, .offsets = offsets, .bytes = (const uint8_t *)"abc", .flags = flags}, theirs = ours, none = {0};
    qr_hash_t a, b;
    qr_link_expect_t expect = {.node = 1, .fingerprints = qr_link_fingerprints(&ours, &a)};
    qr_link_hello_t hello = {.protocol = QR_LINK_PROTOCOL, .node = 1, .session = 1, .node_epoch = 1};
    assert_int_equal(expect.fingerprints.count, 32);
    hello.fingerprints = qr_link_fingerprints(&theirs, &b);
    assert_null(qr_link_refusal(&hello, &expect));
    theirs.offsets = moved;
    hello.fingerprints = qr_link_fingerprints(&theirs, &b);
    assert_non_null(qr_link_refusal(&hello, &expect));
    theirs = ours, theirs.bytes = (const uint8_t *)"abd";
    hello.fingerprints = qr_link_fingerprints(&theirs, &b);
    assert_non_null(qr_link_refusal(&hello, &expect));
    hello.fingerprints = qr_link_fingerprints(&none, &b);
    assert_non_null(qr_link_refusal(&hello, &expect));
    expect.fingerprints = hello.fingerprints;
    assert_null(qr_link_refusal(&hello, &expect));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions_need_the_echo),
        cmocka_unit_test(test_a_hello_that_counts_more_than_came_ends_the_session),
        cmocka_unit_test(test_a_link_has_a_rate),
        cmocka_unit_test(test_hellos_of_another_vocabulary_are_refused),
        cmocka_unit_test(test_kill_is_noticed),
        cmocka_unit_test(test_two_nodes_in_one_process),
        cmocka_unit_test(test_two_nodes_without_keys_on_loopback),
        cmocka_unit_test(test_restart_is_a_new_session),
        cmocka_unit_test(test_what_a_broken_connection_lost_is_noticed),
        cmocka_unit_test(test_TR_05),
        cmocka_unit_test(test_hostile_peer_is_dropped),
        cmocka_unit_test(test_wrong_messages_do_not_fill_the_log),
        cmocka_unit_test(test_a_flood_is_dropped),
        cmocka_unit_test(test_nodes_of_another_vocabulary_never_meet),
        cmocka_unit_test(test_TR_01),
        cmocka_unit_test(test_TR_03),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
