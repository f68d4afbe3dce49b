/* mesh.c - see mesh.h. */
#define _GNU_SOURCE
#include "transport/mesh.h"

#include "actors/roles.h"
#include "base/error.h"
#include "messages/codec.h"
#include "messages/schema.h"
#include "transport/clock.h"
#include "transport/host.h"
#include "transport/log.h"
#include "transport/pair.h"
#include "transport/uplink.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { BOOT_MS_DEFAULT = 60000, JOIN_MS = 5000, ERROR_BYTES = 512 };

typedef enum thread_kind { THREAD_HOST, THREAD_UPLINK, THREAD_RECORD } thread_kind_t;

typedef struct thread {
    thread_kind_t kind;
    uint32_t port;
    pthread_t id;
    bool running;
    int code; /* of opening its port */
    struct qr_mesh *mesh;
    qr_host_t *host;
    qr_uplink_t *uplink;
    qr_record_config_t record;
} thread_t;

/* One actor of this node, as mesh sees it. */
typedef struct member {
    const qr_actor_class_t *actor;
    uint64_t address;
    uint32_t port;
    bool started, stopped;
    uint16_t asked;  /* type of the question that mesh waits for now */
    bool answered;   /* that one is */
    uint32_t reason; /* of its ready */
    char text[ERROR_BYTES / 2];
} member_t;

struct qr_mesh {
    qr_mesh_config_t config;
    qr_topology_t topology;
    uint32_t node; /* index of this node */
    uint64_t address, epoch, seed;
    qr_directory_t directory;
    qr_port_t port;
    bool port_open;
    qr_pairs_t *pairs;
    uint32_t member_count, thread_count;
    member_t members[QR_ACTORS_MAX];
    thread_t threads[QR_PORTS_MAX];
    sem_t opened;
    int end_event, signals; /* descriptors, -1 = none */
    bool ending;            /* the run is over: signal, node_stop or qr_mesh_end */
    bool signalled;
    int reason; /* of node_stop, negative */
    bool taken_down;
    uint8_t *wire; /* [QR_MESSAGE_BYTES_MAX] */
    uint8_t *arena_memory;
    qr_arena_t arena;
    qr_message_t message;
};

/* Start order of roles; stop runs through the second list. */
static const uint8_t start_order[] = {
    QR_ROLE_facts,
    QR_ROLE_storage,
    QR_ROLE_catalog_writer,
    QR_ROLE_catalog_replica,
    QR_ROLE_transfer,
    QR_ROLE_executor,
    QR_ROLE_page_manager,
    QR_ROLE_restore_streamer,
    QR_ROLE_checkpoint_writer,
    QR_ROLE_scheduler,
    QR_ROLE_worker,
    QR_ROLE_heartbeat,
    QR_ROLE_router,
    QR_ROLE_text,
    QR_ROLE_gateway,
    QR_ROLE_http,
    QR_ROLE_prompt,
};
static const uint8_t stop_order[] = {
    QR_ROLE_prompt,           QR_ROLE_http,
    QR_ROLE_gateway,          QR_ROLE_text,
    QR_ROLE_router,           QR_ROLE_worker,
    QR_ROLE_scheduler,        QR_ROLE_checkpoint_writer,
    QR_ROLE_restore_streamer, QR_ROLE_page_manager,
    QR_ROLE_executor,         QR_ROLE_transfer,
    QR_ROLE_catalog_writer,   QR_ROLE_catalog_replica,
    QR_ROLE_storage,          QR_ROLE_facts,
    QR_ROLE_heartbeat,
};
static const uint8_t drain_first[] = {QR_ROLE_prompt, QR_ROLE_http, QR_ROLE_gateway, QR_ROLE_heartbeat};
static const uint8_t drain_then[] = {QR_ROLE_worker};

static const qr_topology_node_t *own_node(const qr_mesh_t *mesh) { return &mesh->topology.nodes[mesh->node]; }

/* ---- who is here --------------------------------------------------------------------------------------------------------- */

static const qr_actor_class_t *class_find(const qr_mesh_config_t *config, uint8_t role)
{
    for (uint32_t i = 0; i < config->class_count; i++)
        if (config->classes[i]->role == role) return config->classes[i];
    return NULL;
}

static bool host_used(const qr_topology_node_t *node, uint32_t host)
{
    for (uint32_t i = 0; i < node->actor_count; i++)
        if (node->actors[i].host == host) return true;
    return false;
}

/* prompt takes http's place in a program that has the one and not the other; the built-in default loses what the program lacks. */
static int fit_to_program(qr_mesh_t *mesh, bool built_in, qr_text_t *error)
{
    qr_topology_node_t *node = &mesh->topology.nodes[mesh->node];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < node->actor_count; i++) {
        qr_topology_actor_t actor = node->actors[i];
        if (actor.role == QR_ROLE_http && !class_find(&mesh->config, QR_ROLE_http) && class_find(&mesh->config, QR_ROLE_prompt)) {
            actor.role = QR_ROLE_prompt;
            actor.address = qr_address(node->id, actor.device, actor.role, actor.instance);
        }
        if (class_find(&mesh->config, actor.role)) {
            node->actors[kept++] = actor;
        } else if (!built_in) {
            qr_text_put(error, "the topology gives node '");
            qr_text_put(error, node->name);
            qr_text_put(error, "' the actor '");
            qr_text_put(error, qr_role_name(actor.role));
            qr_text_put(error, "', which this command does not run");
            return -QR_E_INVALID;
        }
    }
    node->actor_count = kept;
    while (built_in && node->host_count > 1 && !host_used(node, node->host_count - 1)) node->host_count--; /* no thread for nobody */
    return 0;
}

static bool linked(const qr_mesh_t *mesh, uint32_t other)
{
    for (uint32_t i = 0; i < mesh->topology.link_count; i++) {
        qr_topology_link_t link = mesh->topology.links[i];
        if ((link.connect == mesh->node && link.listen == other) || (link.listen == mesh->node && link.connect == other)) return true;
    }
    return other == mesh->node;
}

/* Addresses of the actors of other failure units, on this node and the linked ones, that `self` may talk with. */
static uint32_t partners_of(const qr_mesh_t *mesh, uint64_t self, uint64_t partners[QR_PARTNERS_MAX])
{
    uint32_t count = 0;
    uint8_t role = qr_address_role(self);
    for (uint32_t n = 0; n < mesh->topology.node_count; n++) {
        const qr_topology_node_t *node = &mesh->topology.nodes[n];
        if (!linked(mesh, n)) continue;
        for (uint32_t i = 0; i < node->actor_count; i++) {
            const qr_topology_actor_t *other = &node->actors[i];
            bool same_unit =
                n == mesh->node && other->device == qr_address_device(self) && qr_roles_unit(other->role) == qr_roles_unit(role);
            if (same_unit || other->address == self || !qr_roles_talk(role, other->role)) continue;
            if (count < QR_PARTNERS_MAX) partners[count++] = other->address;
        }
    }
    return count;
}

/* ---- mesh's own messages ---------------------------------------------------------------------------------------------------- */

static member_t *member_find(qr_mesh_t *mesh, uint64_t address)
{
    for (uint32_t i = 0; i < mesh->member_count; i++)
        if (mesh->members[i].address == address) return &mesh->members[i];
    return NULL;
}

static void say(qr_mesh_t *mesh, member_t *member)
{
    qr_message_t *message = &mesh->message;
    message->version = QR_MESSAGE_VERSION;
    message->from = mesh->address;
    message->to = member->address;
    message->epoch = mesh->epoch;
    qr_pair_t *pair = qr_pairs_get(mesh->pairs, member->address);
    qr_verdict_t verdict = pair ? qr_pairs_send(mesh->pairs, pair, message->type, &message->sequence) : QR_VERDICT_FULL;
    if (verdict) qr_host_fault("mesh", member->actor->name, "life", qr_verdict_sentence(verdict));
    int64_t bytes = qr_codec_encode(message, mesh->wire, QR_MESSAGE_BYTES_MAX);
    if (bytes <= 0 || qr_port_send(&mesh->port, member->port, mesh->wire, (size_t)bytes) != 0)
        qr_host_fault("mesh", member->actor->name, "life", "the send was refused");
    member->asked = message->type;
    member->answered = false;
}

static void on_message(qr_mesh_t *mesh, const void *bytes, size_t count)
{
    qr_message_t *message = &mesh->message;
    qr_arena_reset(&mesh->arena);
    if (qr_codec_decode(bytes, count, &mesh->arena, message) != 0) return;
    member_t *member = member_find(mesh, message->from);
    qr_pair_t *pair = member ? qr_pairs_get(mesh->pairs, message->from) : NULL;
    if (!pair) return;
    qr_verdict_t verdict = qr_pairs_receive(mesh->pairs, pair, message->type, message->epoch, message->sequence);
    if (verdict) qr_host_fault(member->actor->name, "mesh", "life", qr_verdict_sentence(verdict));
    if (member->asked == qr_schema_find(message->type)->question) member->answered = true; /* not: a late drained during stop */
    switch (message->type) {
    case QR_MESSAGE_ready: {
        qr_text_t text;
        qr_text_init(&text, member->text, sizeof member->text);
        qr_text_put_bytes(&text, message->body.ready.text.data, message->body.ready.text.count);
        member->reason = message->body.ready.reason;
        break;
    }
    case QR_MESSAGE_stopped: member->stopped = true; break;
    case QR_MESSAGE_node_stop:
        mesh->ending = true;
        mesh->reason = -(int)message->body.node_stop.reason;
        break;
    default: break;
    }
}

/* A second signal ends the process at once, whatever else goes on. */
static void leave_at_once(int number)
{
    (void)number;
    _exit(130);
}

static void on_signal(qr_mesh_t *mesh)
{
    struct signalfd_siginfo info;
    if (read(mesh->signals, &info, sizeof info) != (ssize_t)sizeof info) return;
    mesh->ending = mesh->signalled = true;
    struct sigaction action = {.sa_handler = leave_at_once};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    qr_log_line(mesh->config.log_level, QR_LEVEL_INFO, "mesh", "stopping; a second signal ends at once");
}

/* Waits for and handles what comes until `until_us`; returns after each wake. false: the time is over. */
static bool wait_some(qr_mesh_t *mesh, uint64_t until_us)
{
    uint64_t now = qr_clock_us();
    long timeout_ms = until_us == QR_NEVER_US ? -1 : until_us <= now ? 0 : (long)qr_min_u64(qr_div_up(until_us - now, 1000), 3600000);
    zmq_pollitem_t items[3] = {
        {mesh->port.inbox, 0, ZMQ_POLLIN, 0}, {NULL, mesh->end_event, ZMQ_POLLIN, 0}, {NULL, mesh->signals, ZMQ_POLLIN, 0}};
    int ready = zmq_poll(items, mesh->signals >= 0 && !mesh->signalled ? 3 : 2, timeout_ms);
    if (ready == 0) return until_us > qr_clock_us();
    if (ready < 0) return true; /* interrupted */
    if (items[2].revents) on_signal(mesh);
    if (items[1].revents) {
        uint64_t value;
        if (read(mesh->end_event, &value, sizeof value) > 0) mesh->ending = true;
    }
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (qr_port_receive(&mesh->port, &frame)) on_message(mesh, zmq_msg_data(&frame), zmq_msg_size(&frame));
    zmq_msg_close(&frame);
    return true;
}

/* ---- threads ------------------------------------------------------------------------------------------------------------------- */

static void thread_opened(void *context, int code)
{
    thread_t *thread = context;
    thread->code = code;
    (void)sem_post(&thread->mesh->opened);
}

static void *thread_body(void *context)
{
    thread_t *thread = context;
    switch (thread->kind) {
    case THREAD_HOST: qr_host_run(thread->host, thread_opened, thread); break;
    case THREAD_UPLINK: qr_uplink_run(thread->uplink, thread_opened, thread); break;
    case THREAD_RECORD: qr_record_run(&thread->record, thread_opened, thread); break;
    }
    return NULL;
}

static void thread_name(const qr_mesh_t *mesh, const thread_t *thread, char name[16])
{
    const char *base = thread->kind == THREAD_UPLINK   ? "uplink"
                       : thread->kind == THREAD_RECORD ? "record"
                                                       : own_node(mesh)->hosts[thread->port - 1].name;
    (void)snprintf(name, 16, "qr-%.12s", base);
}

static int threads_start(qr_mesh_t *mesh, qr_text_t *error)
{
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        thread_t *thread = &mesh->threads[i];
        if (pthread_create(&thread->id, NULL, thread_body, thread) != 0) {
            qr_text_put(error, "cannot start a thread");
            return -QR_E_MEMORY;
        }
        thread->running = true;
        char name[16];
        thread_name(mesh, thread, name);
        (void)pthread_setname_np(thread->id, name);
        while (sem_wait(&mesh->opened) != 0) continue;
        if (thread->code == 0) continue;
        qr_text_put(error, name + 3);
        const qr_topology_node_t *node = own_node(mesh);
        char uplink[2 * QR_TOPOLOGY_PATH_BYTES + 160];
        (void)snprintf(uplink, sizeof uplink,
                       ": cannot %s%s%s%s; stop the program that listens there, or give the node other endpoints in the topology file",
                       node->control[0] ? "listen on " : "connect", node->control, node->bulk[0] ? " or " : "", node->bulk);
        qr_text_put(error, thread->kind == THREAD_UPLINK ? uplink
                           : thread->kind == THREAD_RECORD && thread->code == -QR_E_IN_USE
                               ? ": another process of this node records into that folder; name another one with --record"
                           : thread->kind == THREAD_RECORD ? ": cannot write to the folder of records"
                                                           : ": cannot open its sockets");
        return thread->code;
    }
    return 0;
}

/* Each thread is sent the close frame and joined, the recorder last, when nobody hands over any more; only then are ports closed. */
static void threads_join(qr_mesh_t *mesh)
{
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        thread_t *thread = &mesh->threads[i];
        if (!thread->running) continue;
        if (thread->code == 0 && mesh->port_open) (void)qr_port_send(&mesh->port, thread->port, NULL, 0);
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += JOIN_MS / 1000;
        if (pthread_timedjoin_np(thread->id, NULL, &end) != 0) {
            char name[16];
            thread_name(mesh, thread, name);
            fprintf(stderr, "quire: thread %s does not end; the process ends without it\n", name);
            _exit(70);
        }
        thread->running = false;
    }
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        if (mesh->threads[i].host) qr_host_close(mesh->threads[i].host);
        if (mesh->threads[i].uplink) qr_uplink_close(mesh->threads[i].uplink);
    }
}

/* ---- building ---------------------------------------------------------------------------------------------------------------- */

static void directory_add(qr_mesh_t *mesh, uint64_t address, const char *name, uint32_t port)
{
    qr_assert(mesh->directory.actor_count < QR_COUNT(mesh->directory.actors));
    mesh->directory.actors[mesh->directory.actor_count++] = (qr_directory_actor_t){address, name, port};
}

static uint32_t port_add(qr_mesh_t *mesh)
{
    static atomic_uint boots; /* an inproc name is used once per process */
    uint32_t port = mesh->directory.port_count++;
    qr_assert(port < QR_PORTS_MAX);
    (void)snprintf(mesh->directory.endpoints[port], sizeof mesh->directory.endpoints[port], "inproc://%u/%u/%u", own_node(mesh)->id, port,
                   atomic_fetch_add(&boots, 1));
    return port;
}

/* The directory, complete before any thread exists. */
static void directory_build(qr_mesh_t *mesh)
{
    const qr_topology_node_t *node = own_node(mesh);
    qr_directory_t *directory = &mesh->directory;
    directory->node = node->id;
    directory->uplink = directory->record = UINT32_MAX;
    mesh->address = qr_address(node->id, 0, QR_ROLE_mesh, 0);
    directory_add(mesh, mesh->address, "mesh", port_add(mesh));
    for (uint32_t h = 0; h < node->host_count; h++) (void)port_add(mesh);
    for (uint32_t i = 0; i < node->actor_count; i++) {
        member_t *member = &mesh->members[mesh->member_count++];
        member->actor = class_find(&mesh->config, node->actors[i].role);
        member->address = node->actors[i].address;
        member->port = 1u + node->actors[i].host;
        directory_add(mesh, member->address, member->actor->name, member->port);
    }
    if (qr_uplink_needed(&mesh->topology, mesh->node)) {
        directory->uplink = port_add(mesh);
        directory_add(mesh, qr_address(node->id, 0, QR_ROLE_uplink, 0), "uplink", directory->uplink);
    }
    if (mesh->config.given->params.record[0]) {
        directory->record = port_add(mesh);
        directory_add(mesh, qr_address(node->id, 0, QR_ROLE_record, 0), "record", directory->record);
    }
}

/* Start-up sums the windows that end in each inbox: credit is the only bound there is. */
static int check_windows(const qr_mesh_t *mesh, qr_text_t *error)
{
    for (uint32_t port = 1; port < mesh->directory.port_count; port++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < mesh->member_count; i++)
            for (uint32_t n = 0; mesh->members[i].port == port && n < mesh->topology.node_count; n++)
                for (uint32_t k = 0; linked(mesh, n) && k < mesh->topology.nodes[n].actor_count; k++)
                    sum += qr_roles_windows_sum(mesh->topology.nodes[n].actors[k].role, qr_address_role(mesh->members[i].address));
        if (sum <= QR_PORT_IN_FLIGHT_MAX) continue;
        qr_text_put(error, "more questions may be open towards one host than its inbox may hold; place its actors on several hosts");
        return -QR_E_LIMIT;
    }
    return 0;
}

static int host_build(qr_mesh_t *mesh, uint32_t index)
{
    const qr_actor_class_t *classes[QR_ACTORS_MAX];
    uint64_t addresses[QR_ACTORS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < mesh->member_count; i++) {
        if (mesh->members[i].port != index + 1) continue;
        classes[count] = mesh->members[i].actor;
        addresses[count++] = mesh->members[i].address;
    }
    if (count == 0) return 0;
    const qr_params_t *params = &mesh->config.given->params;
    uint64_t segment = mesh->directory.record == UINT32_MAX ? 0 : qr_max_u64(params->record_bytes / (8 * mesh->member_count), 16384);
    qr_host_config_t config = {&mesh->directory,
                               index + 1,
                               own_node(mesh)->hosts[index].name,
                               mesh->config.given,
                               mesh->epoch,
                               mesh->config.scramble || params->scramble,
                               mesh->config.check || params->scramble,
                               mesh->config.log_level,
                               segment};
    thread_t *thread = &mesh->threads[mesh->thread_count];
    *thread = (thread_t){.kind = THREAD_HOST, .port = index + 1, .mesh = mesh};
    thread->host = qr_host_new(&config, classes, addresses, count);
    if (!thread->host) return -QR_E_MEMORY;
    mesh->thread_count++;
    return 0;
}

static int hosts_build(qr_mesh_t *mesh, qr_text_t *error)
{
    const qr_params_t *params = &mesh->config.given->params;
    int code = 0;
    for (uint32_t h = 0; h < own_node(mesh)->host_count && code == 0; h++) code = host_build(mesh, h);
    if (code == 0 && mesh->directory.uplink != UINT32_MAX) {
        qr_uplink_config_t config = {&mesh->directory,
                                     mesh->directory.uplink,
                                     &mesh->topology,
                                     mesh->node,
                                     mesh->epoch,
                                     (uint32_t)params->chunk_tokens,
                                     &mesh->config.given->vocabulary,
                                     params->peer_down_ms * 1000,
                                     mesh->config.log_level};
        thread_t *thread = &mesh->threads[mesh->thread_count];
        *thread = (thread_t){.kind = THREAD_UPLINK, .port = mesh->directory.uplink, .mesh = mesh};
        thread->uplink = qr_uplink_new(&config);
        if (thread->uplink)
            mesh->thread_count++;
        else
            code = -QR_E_MEMORY;
    }
    if (code == 0 && mesh->directory.record != UINT32_MAX)
        mesh->threads[mesh->thread_count++] =
            (thread_t){.kind = THREAD_RECORD,
                       .port = mesh->directory.record,
                       .mesh = mesh,
                       .record = {&mesh->directory, mesh->directory.record, params->record, own_node(mesh)->name, params->record_bytes}};
    if (code) qr_text_put(error, "not enough memory for the actors' state");
    return code;
}

static uint64_t random_u64(void)
{
    uint64_t value = 0;
    while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) continue;
    return value;
}

static int sockets_open(qr_mesh_t *mesh, qr_text_t *error)
{
    mesh->directory.context = zmq_ctx_new();
    uint32_t ports = mesh->directory.port_count;
    if (mesh->directory.context) {
        (void)zmq_ctx_set(mesh->directory.context, ZMQ_MAX_SOCKETS, (int)(ports * ports + 256));
        (void)zmq_ctx_set(mesh->directory.context, ZMQ_BLOCKY, 0);
    }
    if (!mesh->directory.context || qr_port_open(&mesh->port, &mesh->directory, QR_PORT_MESH) != 0) {
        qr_text_put(error, "cannot open sockets: ");
        qr_text_put(error, zmq_strerror(zmq_errno()));
        return -QR_E_IO;
    }
    mesh->port_open = true;
    return 0;
}

static int signals_open(qr_mesh_t *mesh)
{
    mesh->end_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mesh->end_event < 0) return -QR_E_IO;
    if (!mesh->config.signals) return 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    mesh->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return mesh->signals < 0 ? -QR_E_IO : 0;
}

/* ---- boot ------------------------------------------------------------------------------------------------------------------------ */

static int boot_failed(const member_t *member, int code, const char *what, qr_text_t *error)
{
    qr_text_put(error, "actor '");
    qr_text_put(error, member->actor->name);
    qr_text_put(error, "' ");
    qr_text_put(error, what);
    return code;
}

static int boot_one(qr_mesh_t *mesh, member_t *member, qr_text_t *error)
{
    uint64_t partners[QR_PARTNERS_MAX];
    mesh->message.type = QR_MESSAGE_start;
    memset(&mesh->message.body.start, 0, sizeof mesh->message.body.start);
    mesh->message.body.start.epoch = mesh->epoch;
    mesh->message.body.start.seed = mesh->seed;
    mesh->message.body.start.partners = (qr_u64s_t){partners, partners_of(mesh, member->address, partners)};
    say(mesh, member);
    member->started = true;
    uint32_t boot_ms = mesh->config.boot_ms ? mesh->config.boot_ms : BOOT_MS_DEFAULT;
    uint64_t until = qr_clock_us() + boot_ms * 1000u;
    while (!member->answered) {
        if (!wait_some(mesh, until)) return boot_failed(member, -QR_E_DEADLINE, "was not ready in time", error);
        if (mesh->ending && !member->answered)
            return boot_failed(member, -QR_E_CANCELLED, "was still starting when the run was ended", error);
    }
    if (member->reason == 0) return 0;
    (void)boot_failed(member, 0, "did not start: ", error);
    qr_text_put(error, member->text[0] ? member->text : qr_error_sentence((int)member->reason));
    return -(int)member->reason;
}

static int boot(qr_mesh_t *mesh, qr_text_t *error)
{
    for (uint32_t o = 0; o < QR_COUNT(start_order); o++)
        for (uint32_t i = 0; i < mesh->member_count; i++) {
            if (qr_address_role(mesh->members[i].address) != start_order[o]) continue;
            int code = boot_one(mesh, &mesh->members[i], error);
            if (code) return code;
        }
    return 0;
}

/* ---- end ------------------------------------------------------------------------------------------------------------------------- */

static void no_answer(qr_mesh_t *mesh, const member_t *member, const char *to)
{
    char sentence[128];
    (void)snprintf(sentence, sizeof sentence, "'%s' did not answer %s within its budget", member->actor->name, to);
    qr_log_line(mesh->config.log_level, QR_LEVEL_WARN, "mesh", sentence);
}

static void drain(qr_mesh_t *mesh, const uint8_t *roles, size_t count, uint64_t until_us)
{
    member_t *asked[QR_ACTORS_MAX];
    uint32_t asked_count = 0;
    uint64_t now = qr_clock_us();
    for (size_t r = 0; r < count; r++)
        for (uint32_t i = 0; i < mesh->member_count; i++) {
            member_t *member = &mesh->members[i];
            if (qr_address_role(member->address) != roles[r] || !member->started || member->reason) continue;
            mesh->message.type = QR_MESSAGE_drain;
            mesh->message.body.drain.budget_us = until_us > now ? until_us - now : 0;
            say(mesh, member);
            asked[asked_count++] = member;
        }
    for (uint32_t i = 0; i < asked_count; i++) {
        while (!asked[i]->answered && wait_some(mesh, until_us)) continue;
        if (!asked[i]->answered) no_answer(mesh, asked[i], "drain");
    }
}

static void stop_one(qr_mesh_t *mesh, member_t *member, uint64_t until_us)
{
    uint64_t now = qr_clock_us();
    mesh->message.type = QR_MESSAGE_stop;
    mesh->message.body.stop.budget_us = until_us > now ? until_us - now : 0;
    say(mesh, member);
    while (!member->answered && wait_some(mesh, until_us)) continue;
    if (!member->answered) no_answer(mesh, member, "stop");
}

/* Drain, stop in order, close the threads, close the sockets. A node that did not boot is stopped without draining. */
static void take_down(qr_mesh_t *mesh, bool gently)
{
    if (mesh->taken_down) return;
    mesh->taken_down = true;
    uint64_t budget_us = mesh->config.given->params.stop_budget_ms * 1000;
    uint64_t drain_until = qr_clock_us() + budget_us / 2;
    uint64_t until = qr_clock_us() + budget_us;
    if (gently) {
        drain(mesh, drain_first, QR_COUNT(drain_first), drain_until);
        drain(mesh, drain_then, QR_COUNT(drain_then), drain_until + budget_us / 4);
    }
    for (uint32_t o = 0; o < QR_COUNT(stop_order); o++)
        for (uint32_t i = 0; i < mesh->member_count; i++) {
            member_t *member = &mesh->members[i];
            if (qr_address_role(member->address) == stop_order[o] && member->started && !member->reason)
                stop_one(mesh, member, qr_max_u64(until, qr_clock_us() + 100000));
        }
    threads_join(mesh);
    if (mesh->port_open) qr_port_close(&mesh->port);
    mesh->port_open = false;
    if (mesh->directory.context) (void)zmq_ctx_term(mesh->directory.context);
    mesh->directory.context = NULL;
}

/* ---- public ------------------------------------------------------------------------------------------------------------------------ */

static int prepare(qr_mesh_t *mesh, qr_text_t *error)
{
    bool built_in = mesh->config.topology == NULL;
    if (built_in)
        qr_topology_default(&mesh->topology);
    else
        mesh->topology = *mesh->config.topology;
    int index = qr_topology_node_find(&mesh->topology, mesh->config.node ? mesh->config.node : "", error);
    if (index < 0) return index;
    mesh->node = (uint32_t)index;
    int code = fit_to_program(mesh, built_in, error);
    if (code == 0 && qr_uplink_needed(&mesh->topology, mesh->node)) code = qr_uplink_check(&mesh->topology, mesh->node, error);
    if (code) return code;
    const qr_params_t *params = &mesh->config.given->params;
    mesh->epoch = mesh->config.epoch ? mesh->config.epoch : (uint64_t)time(NULL) << 20 | (random_u64() & 0xfffff);
    mesh->seed = params->seed ? params->seed : random_u64();
    if (params->record[0] && qr_record_folder(params->record) != 0) {
        qr_text_put(error, "cannot make the folder of records '");
        qr_text_put(error, params->record);
        qr_text_put(error, "'");
        return -QR_E_IO;
    }
    return 0;
}

static int build(qr_mesh_t *mesh, qr_text_t *error)
{
    int code = prepare(mesh, error);
    if (code) return code;
    directory_build(mesh);
    mesh->pairs = calloc(1, sizeof *mesh->pairs);
    mesh->wire = malloc(QR_MESSAGE_BYTES_MAX);
    mesh->arena_memory = malloc(QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    if (!mesh->pairs || !mesh->wire || !mesh->arena_memory) {
        qr_text_put(error, "not enough memory");
        return -QR_E_MEMORY;
    }
    qr_pairs_init(mesh->pairs, mesh->address);
    qr_arena_init(&mesh->arena, mesh->arena_memory, QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    code = signals_open(mesh);
    if (code == 0) code = sockets_open(mesh, error);
    if (code == 0) code = check_windows(mesh, error);
    if (code == 0) code = hosts_build(mesh, error);
    if (code == 0) code = threads_start(mesh, error);
    if (code == 0) code = boot(mesh, error);
    return code;
}

int qr_mesh_new(const qr_mesh_config_t *config, qr_mesh_t **ret_mesh, qr_text_t *error)
{
    qr_mesh_t *mesh = calloc(1, sizeof *mesh);
    if (!mesh) {
        qr_text_put(error, "not enough memory");
        return -QR_E_MEMORY;
    }
    mesh->config = *config;
    mesh->end_event = mesh->signals = -1;
    (void)sem_init(&mesh->opened, 0, 0);
    int code = build(mesh, error);
    if (code) {
        take_down(mesh, false);
        qr_mesh_destroy(&mesh);
        return code;
    }
    *ret_mesh = mesh;
    return 0;
}

int qr_mesh_run(qr_mesh_t *mesh)
{
    while (!mesh->ending) (void)wait_some(mesh, QR_NEVER_US);
    take_down(mesh, true);
    return mesh->reason;
}

void qr_mesh_end(qr_mesh_t *mesh)
{
    uint64_t one = 1;
    ssize_t ignored = write(mesh->end_event, &one, sizeof one);
    (void)ignored;
}

void qr_mesh_destroy(qr_mesh_t **self)
{
    qr_mesh_t *mesh = *self;
    if (!mesh) return;
    *self = NULL;
    take_down(mesh, true);
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        qr_host_destroy(&mesh->threads[i].host);
        qr_uplink_destroy(&mesh->threads[i].uplink);
    }
    if (mesh->end_event >= 0) (void)close(mesh->end_event);
    if (mesh->signals >= 0) (void)close(mesh->signals);
    (void)sem_destroy(&mesh->opened);
    free(mesh->pairs);
    free(mesh->wire);
    free(mesh->arena_memory);
    free(mesh);
}

void *qr_mesh_state(qr_mesh_t *mesh, uint64_t address)
{
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        void *state = mesh->threads[i].host ? qr_host_state(mesh->threads[i].host, address) : NULL;
        if (state) return state;
    }
    return NULL;
}

static void count_uplink(const qr_uplink_counts_t *counts, qr_mesh_counts_t *sum)
{
    sum->link_received = atomic_load(&counts->received);
    sum->link_sent = atomic_load(&counts->sent);
    sum->link_malformed = atomic_load(&counts->malformed);
    sum->link_refused = atomic_load(&counts->refused);
    sum->link_stale = atomic_load(&counts->stale);
    sum->link_local_refused = atomic_load(&counts->local_refused);
    sum->link_keys_refused = atomic_load(&counts->keys_refused);
    sum->link_sessions = atomic_load(&counts->sessions);
    sum->link_lost = atomic_load(&counts->lost);
    sum->link_down_dropped = atomic_load(&counts->dropped_down);
}

void qr_mesh_counts(const qr_mesh_t *mesh, qr_mesh_counts_t *ret_counts)
{
    qr_mesh_counts_t sum = {0};
    for (uint32_t i = 0; i < mesh->thread_count; i++) {
        if (mesh->threads[i].uplink) count_uplink(qr_uplink_counts(mesh->threads[i].uplink), &sum);
        if (!mesh->threads[i].host) continue;
        const qr_host_counts_t *one = qr_host_counts(mesh->threads[i].host);
        sum.messages += atomic_load(&one->messages);
        sum.alarms += atomic_load(&one->alarms);
        sum.pieces += atomic_load(&one->pieces);
        sum.sent += atomic_load(&one->sent);
        sum.sleeps += atomic_load(&one->sleeps);
        sum.self_in_flight_most = qr_max_u64(sum.self_in_flight_most, atomic_load(&one->self_in_flight_most));
        sum.dropped_malformed += atomic_load(&one->dropped_malformed);
        sum.dropped_role += atomic_load(&one->dropped_role);
        sum.dropped_stale += atomic_load(&one->dropped_stale);
        sum.dropped_answer += atomic_load(&one->dropped_answer);
    }
    sum.sockets_open = (uint64_t)atomic_load(&mesh->directory.sockets_open);
    *ret_counts = sum;
}
