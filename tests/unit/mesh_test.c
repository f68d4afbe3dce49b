/* link: qr_transport */
/* The life of a node: boot failures name their actor, faults end the process with both names, signals, the end (SD-01). */
#include "base/error.h"
#include "tests/unit/toy.h"
#include "transport/clock.h"
#include "transport/mesh.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif
enum { SOON_US = 30000000 }; /* well below the budget of a stop that waits, whatever else this machine does */

/* What the toys do wrong; vice is set before a node is made. */
enum { GOOD, ANSWER_TWICE, ASK_TOO_MUCH, WRONG_ROLE, NOT_READY, REFUSE_START, NO_STOP, NO_DRAIN, RACE, BAD_NOTICE, LATE_DRAIN };
static int vice;
static uint64_t raced; /* written by two threads without any order, on purpose */

static void worker_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    uint64_t scheduler = qr_address_partner(toy->address, QR_ROLE_scheduler);
    if (m->type == QR_MESSAGE_start && vice == NOT_READY) return;
    if (m->type == QR_MESSAGE_stop && vice == NO_STOP) return;
    if (m->type == QR_MESSAGE_drain && (vice == NO_DRAIN || vice == LATE_DRAIN)) return;
    if (vice == LATE_DRAIN && m->type == QR_MESSAGE_stop) { /* first what it still owes; the end itself takes longer */
        qr_send(outbox, m->from, drained, (&(qr_drained_t){0}));
        toy->left = m->now_us + 50000;
        outbox->alarm_us = toy->left;
        return;
    }
    if (vice == LATE_DRAIN && toy->left && m->type == QR_MESSAGE_alarm) {
        toy->work_left = 1; /* it has ended */
        qr_send(outbox, qr_address(qr_address_node(toy->address), 0, QR_ROLE_mesh, 0), stopped, (&(qr_stopped_t){0}));
        return;
    }
    if (m->type == QR_MESSAGE_start && vice == REFUSE_START) {
        static const char text[] = "the port 8080 is in use";
        qr_send(outbox, m->from, ready, (&(qr_ready_t){QR_E_IN_USE, {(const uint8_t *)text, sizeof text - 1}}));
        return;
    }
    bool life = toy_life(toy, m, outbox);
    if (m->type == QR_MESSAGE_start || (m->type == QR_MESSAGE_alarm && vice == RACE)) {
        qr_outbox_alarm(outbox, m->now_us + 500);
        if (vice == RACE) raced++;
    }
    if (life) return;
    if (m->type == QR_MESSAGE_alarm) {
        if (vice == WRONG_ROLE) qr_send(outbox, scheduler, probe_done, (&(qr_probe_done_t){0}));
        if (vice == BAD_NOTICE) qr_send(outbox, scheduler, request_cancel, (&(qr_request_cancel_t){1, 1}));
        bool idle = toy->answered == toy->sent;
        for (int i = 0; idle && i < 16 + (vice == ASK_TOO_MUCH); i++) qr_send(outbox, scheduler, probe, (&(qr_probe_t){++toy->sent}));
    }
    if (m->type == QR_MESSAGE_probe_done) toy->answered++;
}

static void scheduler_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    bool life = toy_life(toy, m, outbox);
    if (m->type == QR_MESSAGE_start || (m->type == QR_MESSAGE_alarm && vice == RACE)) {
        qr_outbox_alarm(outbox, m->now_us + 500);
        if (vice == RACE) raced++;
    }
    if (life) return;
    if (m->type != QR_MESSAGE_probe) return;
    toy->received++;
    for (int i = 0; i < 1 + (vice == ANSWER_TWICE); i++)
        qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
}

/* A heartbeat starts after the worker: what the worker says to it before is held until it has started. */
static void early_worker_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    bool life = toy_life(toy, m, outbox);
    if (m->type == QR_MESSAGE_start)
        for (uint64_t i = 1; i <= 3; i++)
            qr_send(outbox, toy->partners[0], observation, (&(qr_observation_t){.worker = toy->address, .sequence = i}));
    (void)life;
}

static void heartbeat_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (m->type == QR_MESSAGE_observation) {
        qr_assert(toy->epoch != 0); /* start came first */
        qr_assert(m->body.observation.sequence == ++toy->received);
    }
    (void)toy_life(toy, m, outbox);
}

#define TOY(name_, handle_)                                                                                                                \
    {                                                                                                                                      \
        .name = #name_, .role = QR_ROLE_##name_, .max_out = 32, .bytes = toy_bytes, .init = toy_init, .handle = handle_,                   \
        .print = toy_print                                                                                                                 \
    }
static const qr_actor_class_t worker_class = TOY(worker, worker_handle), scheduler_class = TOY(scheduler, scheduler_handle),
                              early_class = TOY(worker, early_worker_handle), heartbeat_class = TOY(heartbeat, heartbeat_handle);
static const qr_actor_class_t *const toys[] = {&worker_class, &scheduler_class, &heartbeat_class};
static const qr_actor_class_t *const early_toys[] = {&early_class, &scheduler_class, &heartbeat_class};
static const char two_hosts[] =
    "version = 1\nnode = a\n    id = 3\n    host = one\n        actor = worker\n    host = two\n        actor = scheduler\n";
static const char with_heartbeat[] =
    "version = 1\nnode = a\n    id = 3\n    host = one\n        actor = worker\n        actor = heartbeat\n";
static char words[512];

static int make(const char *zpl, const qr_actor_class_t *const *classes, bool signals, qr_given_t *given, qr_mesh_t **ret_mesh)
{
    qr_text_t error;
    static qr_topology_t topology;
    qr_text_init(&error, words, sizeof words);
    int code = qr_topology_parse("t", zpl, strlen(zpl), &topology, &error);
    qr_mesh_config_t config = {.topology = &topology,
                               .node = "a",
                               .classes = classes,
                               .class_count = 3,
                               .given = given,
                               .signals = signals,
                               .boot_ms = vice == NOT_READY ? 300 : 20000,
                               .log_level = QR_LEVEL_WARN};
    return code ? code : qr_mesh_new(&config, ret_mesh, &error);
}

/* ---- boot ----------------------------------------------------------------------------------------------------------------- */

static void test_boot_names_who_failed(void **state)
{
    (void)state;
    qr_given_t *given = toy_given();
    qr_mesh_t *mesh = NULL;
    given->params.stop_budget_ms = 300;
    vice = NOT_READY;
    assert_int_equal(make(two_hosts, toys, false, given, &mesh), -QR_E_DEADLINE);
    assert_string_equal(words, "actor 'worker' was not ready in time");
    vice = REFUSE_START;
    assert_int_equal(make(two_hosts, toys, false, given, &mesh), -QR_E_IN_USE);
    assert_string_equal(words, "actor 'worker' did not start: the port 8080 is in use");
    assert_null(mesh);
    vice = GOOD;
    assert_int_equal(make("version = 1\nnode = a\n    id = 3\n    host = one\n        actor = router\n", toys, false, given, &mesh),
                     -QR_E_INVALID);
    assert_non_null(strstr(words, "'router', which this command does not run"));
    free(given);
}

static void test_what_comes_before_start_is_held(void **state)
{
    (void)state;
    qr_given_t *given = toy_given();
    qr_mesh_t *mesh = NULL;
    if (make(with_heartbeat, early_toys, false, given, &mesh) != 0) fail_msg("%s", words);
    qr_mesh_counts_t counts = {0};
    for (int i = 0; i < 60000 && counts.messages < 5; i++) { /* two starts, three observations */
        usleep(1000);
        qr_mesh_counts(mesh, &counts);
    }
    qr_mesh_end(mesh);
    assert_int_equal(qr_mesh_run(mesh), 0);
    const toy_t *heartbeat = qr_mesh_state(mesh, qr_address(3, 0, QR_ROLE_heartbeat, 0));
    assert_int_equal(heartbeat->received, 3);
    qr_mesh_destroy(&mesh);
    free(given);
}

/* ---- faults: our own mistakes end the process, and say who ------------------------------------------------------------------- */

/* Runs a node in a child for a while; its exit status, and what it said in `said`. */
static int run_child(int which, char *said, size_t bytes)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(pipes[1], 2);
        vice = which;
        qr_mesh_t *mesh = NULL;
        if (make(two_hosts, toys, false, toy_given(), &mesh) != 0) _exit(1);
        usleep(which == GOOD ? 100000 : which == RACE ? 500000 : 60000000); /* who does wrong ends it before */
        qr_mesh_end(mesh);
        exit(qr_mesh_run(mesh));
    }
    (void)close(pipes[1]);
    size_t count = 0;
    ssize_t got;
    while ((got = read(pipes[0], said + count, bytes - 1 - count)) > 0) count += (size_t)got;
    said[count] = 0;
    (void)close(pipes[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void expect_fault(int which, const char *sentence)
{
    char said[4096];
    int status = run_child(which, said, sizeof said);
    if (!strstr(said, sentence)) fail_msg("said: %s", said);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static void test_faults_end_the_process(void **state)
{
    (void)state;
    char said[4096];
    assert_int_equal(run_child(GOOD, said, sizeof said), 0);
    expect_fault(ANSWER_TWICE, "fault: scheduler -> worker: probe_done: an answer without an open question");
    expect_fault(ASK_TOO_MUCH, "fault: worker -> scheduler: probe: more open questions");
    expect_fault(WRONG_ROLE, "fault: worker -> scheduler: probe_done: no row of roles.def");
    expect_fault(BAD_NOTICE, "fault: worker -> scheduler: request_cancel: no row of roles.def");
}

/* The suppressions and the meeting points must not make ThreadSanitizer blind. */
static void test_seeded_race_is_seen(void **state)
{
    (void)state;
#ifdef TSAN
    static char said[65536];
    int status = run_child(RACE, said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 66);
    assert_non_null(strstr(said, "data race"));
#else
    char said[4096];
    assert_int_equal(run_child(RACE, said, sizeof said), 0);
#endif
}

/* ---- signals ------------------------------------------------------------------------------------------------------------------- */

static const char with_dead_link[] =
    "version = 1\nnode = a\n    id = 3\n    insecure = 1\n    host = one\n        actor = worker\n    host = two\n"
    "        actor = scheduler\nnode = b\n    id = 4\n    insecure = 1\n    listen\n        control = \"tcp://127.0.0.1:9\"\n"
    "        bulk = \"tcp://127.0.0.1:9\"\n    host = one\n        actor = router\n        actor = heartbeat\nlink\n"
    "    connect = a\n    listen = b\n";

/* Starts a child with a node, sends it signals `apart_ms` apart, returns its status and how long the last one took. */
static int signal_child(const char *zpl, int which, const int *numbers, int count, int apart_ms, uint64_t *ret_us)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        vice = which;
        qr_mesh_t *mesh = NULL;
        qr_given_t *given = toy_given();
        given->params.stop_budget_ms = 2 * SOON_US / 1000;
        if (make(zpl, toys, true, given, &mesh) != 0) _exit(1);
        byte = 1;
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        int code = qr_mesh_run(mesh);
        qr_mesh_destroy(&mesh);
        _exit(code ? 3 : 0);
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    usleep(300000); /* a peer that is not there has been tried a few times */
    for (int i = 0; i < count; i++) {
        if (i) usleep((useconds_t)apart_ms * 1000);
        assert_int_equal(kill(child, numbers[i]), 0);
    }
    uint64_t start = qr_clock_us();
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    *ret_us = qr_clock_us() - start;
    return status;
}

/* SD-01: a link to an address where nobody listens, with and without work for it, never keeps the process. */
static void test_SD_01(void **state)
{
    (void)state;
    uint64_t us;
    static const int term[] = {SIGTERM}, interrupt[] = {SIGINT}, two[] = {SIGINT, SIGTERM};
    int status = signal_child(with_dead_link, GOOD, term, 1, 0, &us);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(us < SOON_US);
    status = signal_child(with_dead_link, GOOD, interrupt, 1, 0, &us);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(us < SOON_US);
    /* Someone who never stops: the second signal ends the process at once. */
    status = signal_child(two_hosts, NO_STOP, two, 2, 100, &us);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    assert_true(us < SOON_US);
}

/* Without a second signal, who does not answer is named and left behind within the budget. */
static void test_stop_has_a_budget(void **state)
{
    (void)state;
    qr_given_t *given = toy_given();
    qr_mesh_t *mesh = NULL;
    given->params.stop_budget_ms = 300;
    for (int i = 0; i < 2; i++) {
        vice = i ? NO_DRAIN : NO_STOP;
        if (make(two_hosts, toys, false, given, &mesh) != 0) fail_msg("%s", words);
        uint64_t start = qr_clock_us();
        qr_mesh_end(mesh);
        assert_int_equal(qr_mesh_run(mesh), 0);
        assert_true(qr_clock_us() - start < SOON_US);
        qr_mesh_counts_t counts;
        qr_mesh_counts(mesh, &counts);
        assert_int_equal(counts.sockets_open, 0);
        qr_mesh_destroy(&mesh);
    }
    vice = GOOD;
    free(given);
}

/* An answer to an older question is not taken for the one that is awaited: who drains late is still given time to stop. */
static void test_a_late_drain_is_no_stop(void **state)
{
    (void)state;
    qr_given_t *given = toy_given();
    qr_mesh_t *mesh = NULL;
    given->params.stop_budget_ms = 4000; /* a quarter of it is for the stop */
    vice = LATE_DRAIN;
    if (make(two_hosts, toys, false, given, &mesh) != 0) fail_msg("%s", words);
    qr_mesh_end(mesh);
    assert_int_equal(qr_mesh_run(mesh), 0);
    assert_int_equal(((const toy_t *)qr_mesh_state(mesh, qr_address(3, 0, QR_ROLE_worker, 0)))->work_left, 1);
    qr_mesh_destroy(&mesh);
    vice = GOOD;
    free(given);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_end_the_process),
        cmocka_unit_test(test_seeded_race_is_seen),
        cmocka_unit_test(test_SD_01),
        cmocka_unit_test(test_boot_names_who_failed),
        cmocka_unit_test(test_stop_has_a_budget),
        cmocka_unit_test(test_a_late_drain_is_no_stop),
        cmocka_unit_test(test_what_comes_before_start_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
