/* link: qr_transport */
/* Hosts and mesh with toy actors: order, credit, alarms, work, faults, the end. */
#include "base/error.h"
#include "tests/unit/toy.h"
#include "transport/clock.h"
#include "transport/host.h"
#include "transport/mesh.h"
#include "transport/pair.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static uint64_t probes;      /* how many the toy scheduler asks */
static atomic_bool finished; /* they are answered; the toy prompt looks at it and ends the node */

static int niceness; /* of the thread that the toy executor works on */

/* ---- toy scheduler: asks the executor `probe` as fast as its window allows ------------------------------------------------ */

static void ask(toy_t *toy, qr_outbox_t *outbox)
{
    while (toy->open_probes < 16 && toy->left > 0) {
        toy->open_probes++;
        toy->left--;
        qr_send(outbox, qr_address_partner(toy->address, QR_ROLE_executor), probe, (&(qr_probe_t){++toy->sent}));
    }
}

static void scheduler_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox)) {
        if (m->type == QR_MESSAGE_start) qr_outbox_alarm(outbox, m->now_us + 1000);
        return;
    }
    if (m->type == QR_MESSAGE_alarm) {
        qr_assert(outbox->alarm_us == QR_NEVER_US);
        qr_assert(m->now_us >= m->body.alarm.due_us);
        toy->alarms++;
        toy->left = probes;
    } else if (m->type == QR_MESSAGE_probe_done) {
        qr_assert(m->body.probe_done.probe_id == ++toy->answered);
        toy->open_probes--;
        if (toy->answered == probes) atomic_store(&finished, true);
    } else if (m->type == QR_MESSAGE_probe) { /* from the worker */
        toy->probe_from = m->from;
        qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
    }
    ask(toy, outbox);
}

/* ---- toy executor: answers in pieces of work --------------------------------------------------------------------------------- */

typedef struct executor {
    toy_t toy;
    uint64_t ids[16];
    uint64_t head, tail; /* of questions waiting */
    int pipe[2];
} executor_t;

static uint64_t executor_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(executor_t);
}

static void executor_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    executor_t *executor = self;
    (void)given;
    if (toy_life(&executor->toy, m, outbox)) return;
    if (m->type != QR_MESSAGE_probe) return;
    executor->toy.probe_from = m->from;
    qr_assert(executor->tail - executor->head < 16);
    executor->ids[executor->tail++ % 16] = m->body.probe.probe_id;
}

static uint64_t executor_work(void *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    executor_t *executor = self;
    (void)given, (void)now_us;
    executor->toy.pieces++;
    niceness = getpriority(PRIO_PROCESS, 0);
    if (executor->head == executor->tail) return QR_NEVER_US;
    qr_send(outbox, executor->toy.probe_from, probe_done, (&(qr_probe_done_t){executor->ids[executor->head++ % 16], 0}));
    return executor->head < executor->tail ? 0 : QR_NEVER_US;
}

static const qr_actor_class_t scheduler_class = {.name = "scheduler",
                                                 .role = QR_ROLE_scheduler,
                                                 .max_out = 32,
                                                 .bytes = toy_bytes,
                                                 .init = toy_init,
                                                 .handle = scheduler_handle,
                                                 .check = toy_check,
                                                 .print = toy_print};
static const qr_actor_class_t executor_class = {.name = "executor",
                                                .role = QR_ROLE_executor,
                                                .max_out = 4,
                                                .owns_world = true,
                                                .bytes = executor_bytes,
                                                .init = toy_init,
                                                .handle = executor_handle,
                                                .print = toy_print,
                                                .work = executor_work};

/* A prompt that ends the node when the scheduler is through. */
static void prompt_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox)) {
        if (m->type == QR_MESSAGE_start) qr_outbox_alarm(outbox, m->now_us + 10000);
        return;
    }
    if (m->type == QR_MESSAGE_alarm && !atomic_load(&finished))
        qr_outbox_alarm(outbox, m->now_us + 10000);
    else if (m->type == QR_MESSAGE_alarm)
        qr_send(outbox, qr_address(qr_address_node(toy->address), 0, QR_ROLE_mesh, 0), node_stop, (&(qr_node_stop_t){QR_E_DEADLINE}));
}
static const qr_actor_class_t prompt_class = {.name = "prompt",
                                              .role = QR_ROLE_prompt,
                                              .max_out = 4,
                                              .bytes = toy_bytes,
                                              .init = toy_init,
                                              .handle = prompt_handle,
                                              .print = toy_print};

static const char one_host[] = "version = 1\nnode = a\n    id = 3\n    host = device\n        actor = scheduler\n        actor = executor\n"
                               "    host = edge\n        actor = prompt\n";
static const char two_hosts[] =
    "version = 1\nnode = a\n    id = 3\n    host = one\n        actor = scheduler\n    host = two\n        actor = executor\n"
    "    host = edge\n        actor = prompt\n";

static void run(const char *zpl, const qr_actor_class_t *const *classes, uint32_t count, bool scramble, int expected)
{
    char words[512];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    probes = scramble ? 500 : 20000;
    atomic_store(&finished, false);
    static qr_topology_t topology;
    if (qr_topology_parse("test", zpl, strlen(zpl), &topology, &error) != 0) fail_msg("%s", words);
    qr_given_t *given = toy_given();
    qr_mesh_config_t config = {.topology = &topology,
                               .classes = classes,
                               .class_count = count,
                               .given = given,
                               .scramble = scramble,
                               .check = true,
                               .log_level = QR_LEVEL_WARN};
    qr_mesh_t *mesh = NULL;
    if (qr_mesh_new(&config, &mesh, &error) != 0) fail_msg("%s", words);
    assert_int_equal(qr_mesh_run(mesh), expected);
    const toy_t *scheduler = qr_mesh_state(mesh, qr_address(3, 0, QR_ROLE_scheduler, 0));
    assert_int_equal(scheduler->answered, probes);
    assert_int_equal(scheduler->alarms, 1);
    qr_mesh_counts_t counts;
    qr_mesh_counts(mesh, &counts);
    assert_int_equal(counts.sockets_open, 0);
    assert_true(counts.self_in_flight_most <= 32);
    if (zpl == one_host && !scramble) assert_true(counts.sleeps < probes / 10); /* a host with work never sleeps */
    qr_mesh_destroy(&mesh);
    assert_null(mesh);
    free(given);
}

static const qr_actor_class_t *const toys[] = {&scheduler_class, &executor_class, &prompt_class};

static void test_one_host(void **state)
{
    (void)state;
    run(one_host, toys, 3, false, -QR_E_DEADLINE);
}
static void test_two_hosts(void **state)
{
    (void)state;
    run(two_hosts, toys, 3, false, -QR_E_DEADLINE);
}
static void test_scramble(void **state)
{
    (void)state;
    run(one_host, toys, 3, true, -QR_E_DEADLINE);
}

/* An actor that stays behind takes its thread with it, unless others live there that do not. */
static void test_who_moves_stays_behind(void **state)
{
    (void)state;
    qr_actor_class_t behind = executor_class;
    behind.behind = true;
    const qr_actor_class_t *const classes[] = {&scheduler_class, &behind, &prompt_class};
    int own = getpriority(PRIO_PROCESS, 0), later = own + QR_NICENESS_BEHIND;
    run(two_hosts, toys, 3, true, -QR_E_DEADLINE);
    assert_int_equal(niceness, own);
    run(one_host, classes, 3, true, -QR_E_DEADLINE);
    assert_int_equal(niceness, own);
    run(two_hosts, classes, 3, true, -QR_E_DEADLINE);
    assert_int_equal(niceness, later < 19 ? later : 19);
}

/* ---- what a node's own actors say before the listener has started is all kept ----------------------------------------------- */

enum { EARLY = 3 * QR_HELD_MAX };
static void early_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (!toy_life(toy, m, outbox) || m->type != QR_MESSAGE_start) return;
    for (uint32_t i = 0; i < EARLY; i++) {
        qr_observation_t seen = {.worker = toy->address, .worker_epoch = 1, .sequence = i + 1};
        qr_send(outbox, qr_address(qr_address_node(toy->address), 0, QR_ROLE_heartbeat, 0), observation, &seen);
    }
}
static void listener_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox) || m->type != QR_MESSAGE_observation) return;
    qr_assert(m->body.observation.sequence == ++toy->received);
    if (toy->received == EARLY) atomic_store(&finished, true);
}
static const qr_actor_class_t early_class = {.name = "worker",
                                             .role = QR_ROLE_worker,
                                             .max_out = EARLY + 4,
                                             .bytes = toy_bytes,
                                             .init = toy_init,
                                             .handle = early_handle,
                                             .print = toy_print};
static const qr_actor_class_t listener_class = {.name = "heartbeat",
                                                .role = QR_ROLE_heartbeat,
                                                .max_out = 4,
                                                .bytes = toy_bytes,
                                                .init = toy_init,
                                                .handle = listener_handle,
                                                .print = toy_print};

static void test_nothing_of_this_node_is_dropped_before_start(void **state)
{
    (void)state;
    static const char zpl[] = "version = 1\nnode = a\n    id = 3\n    host = one\n        actor = worker\n        actor = heartbeat\n"
                              "        actor = prompt\n";
    static const qr_actor_class_t *const classes[] = {&early_class, &listener_class, &prompt_class};
    static qr_topology_t topology;
    char words[512];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    atomic_store(&finished, false);
    if (qr_topology_parse("test", zpl, strlen(zpl), &topology, &error) != 0) fail_msg("%s", words);
    qr_given_t *given = toy_given();
    qr_mesh_config_t config = {
        .topology = &topology, .classes = classes, .class_count = 3, .given = given, .check = true, .log_level = QR_LEVEL_WARN};
    qr_mesh_t *mesh = NULL;
    if (qr_mesh_new(&config, &mesh, &error) != 0) fail_msg("%s", words);
    assert_int_equal(qr_mesh_run(mesh), -QR_E_DEADLINE);
    assert_int_equal(((const toy_t *)qr_mesh_state(mesh, qr_address(3, 0, QR_ROLE_heartbeat, 0)))->received, EARLY);
    qr_mesh_destroy(&mesh);
    free(given);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_scramble),
        cmocka_unit_test(test_who_moves_stays_behind),
        cmocka_unit_test(test_nothing_of_this_node_is_dropped_before_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
