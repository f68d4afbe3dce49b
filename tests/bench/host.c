/* link: qr_transport */
/* host.c - what a decode step of 32 lanes costs in messages through a host: encode, send to oneself, receive, decode, judge, handle.
 * The actors do nothing but say what a step says. 5 messages: batch_run, batch_done, rows_committed, step_tokens, tokens (its ack
 * tokens_taken comes back on top). 12: the same device group with three small questions and answers more per step. Placement: all on
 * one host; the router on an edge host; one thread each; recorded. Bar: under 15 us a step. --tiny: a smoke run. */
#include "actors/actor.h"
#include "actors/note.h"
#include "transport/clock.h"
#include "transport/mesh.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zmq.h>

enum { LANES = 32, RUNS_MAX = 15 };

static uint64_t steps_wanted;
static uint32_t probes_per_step;
static _Atomic uint64_t begun_ns, ended_ns, begun_cpu_ns, ended_cpu_ns;
static uint64_t lanes[LANES];
static uint32_t counts[LANES], ones[LANES], tokens[LANES], attempts[LANES];

typedef struct toy {
    uint64_t address, steps, partner, batch, open, asked, pending;
} toy_t;

/* Processor time of the whole process: what a step costs when others take the machine away. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

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
static void toy_print(const void *self, const qr_given_t *given, qr_text_t *text) { (void)self, (void)given, (void)text; }

static bool life(toy_t *toy, const qr_message_t *m, qr_outbox_t *outbox)
{
    switch (m->type) {
    case QR_MESSAGE_start:
        if (m->body.start.partners.count) toy->partner = m->body.start.partners.data[0];
        qr_send(outbox, m->from, ready, (&(qr_ready_t){0}));
        return true;
    case QR_MESSAGE_drain: qr_send(outbox, m->from, drained, (&(qr_drained_t){0})); return true;
    case QR_MESSAGE_stop: qr_send(outbox, m->from, stopped, (&(qr_stopped_t){0})); return true;
    default: return false;
    }
}

static void run_batch(toy_t *toy, qr_outbox_t *outbox)
{
    qr_batch_run_t run = {.batch = ++toy->batch,
                          .lanes = {lanes, LANES},
                          .starts = {counts, LANES},
                          .row_counts = {ones, LANES},
                          .flags = {ones, LANES},
                          .tokens = {tokens, LANES}};
    uint64_t executor = qr_address_partner(toy->address, QR_ROLE_executor);
    qr_send(outbox, executor, batch_run, &run);
    for (uint32_t i = 0; i < probes_per_step; i++) qr_send(outbox, executor, probe, (&(qr_probe_t){toy->batch + i}));
}

static void scheduler_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (life(toy, m, outbox)) return;
    if (m->type == QR_MESSAGE_submit) {
        atomic_store(&begun_cpu_ns, cpu_ns());
        atomic_store(&begun_ns, qr_clock_ns());
        run_batch(toy, outbox);
    }
    if (m->type != QR_MESSAGE_batch_done) return;
    qr_send(outbox, qr_address_partner(toy->address, QR_ROLE_page_manager), rows_committed,
            (&(qr_rows_committed_t){{lanes, LANES}, {counts, LANES}, {ones, LANES}, {tokens, LANES}}));
    qr_send(
        outbox, qr_address_partner(toy->address, QR_ROLE_worker), step_tokens,
        (&(qr_step_tokens_t){{lanes, LANES}, {attempts, LANES}, m->body.batch_done.tokens, m->body.batch_done.logprob_bits, 10, 0, LANES}));
    if (++toy->steps < steps_wanted)
        run_batch(toy, outbox);
    else {
        atomic_store(&ended_cpu_ns, cpu_ns());
        atomic_store(&ended_ns, qr_clock_ns());
    }
}

static void executor_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (life(toy, m, outbox)) return;
    if (m->type == QR_MESSAGE_probe) qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
    if (m->type == QR_MESSAGE_batch_run) toy->pending = m->body.batch_run.batch;
}

static uint64_t executor_work(void *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given, (void)now_us;
    if (toy->pending)
        qr_send(outbox, qr_address_partner(toy->address, QR_ROLE_scheduler), batch_done,
                (&(qr_batch_done_t){toy->pending, {lanes, LANES}, {attempts, LANES}, {tokens, LANES}, {tokens, LANES}, 10}));
    toy->pending = 0;
    return QR_NEVER_US;
}

static void worker_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (life(toy, m, outbox)) {
        if (m->type == QR_MESSAGE_start) qr_outbox_alarm(outbox, m->now_us + 20000);
        return;
    }
    if (m->type == QR_MESSAGE_alarm)
        qr_send(outbox, qr_address_partner(toy->address, QR_ROLE_scheduler), submit, (&(qr_submit_t){.request_id = 1}));
    if (m->type == QR_MESSAGE_tokens_taken) toy->open = 0;
    if (m->type != QR_MESSAGE_step_tokens || toy->open) return; /* without credit the tokens stay where they are */
    toy->open = 1;
    qr_tokens_t body = {.request_ids = {lanes, LANES},
                        .attempts = {attempts, LANES},
                        .indexes = {counts, LANES},
                        .counts = {ones, LANES},
                        .tokens = {tokens, LANES},
                        .logprob_bits = {tokens, LANES},
                        .finishes = {attempts, LANES},
                        .errors = {attempts, LANES}};
    qr_send(outbox, toy->partner, tokens, &body);
}

static void router_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    (void)given;
    if (life(self, m, outbox) || m->type != QR_MESSAGE_tokens) return;
    qr_send(outbox, m->from, tokens_taken,
            (&(qr_tokens_taken_t){m->body.tokens.request_ids, m->body.tokens.attempts, m->body.tokens.indexes}));
}

static void page_manager_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    (void)given;
    (void)life(self, m, outbox);
}

#define TOY(name_, ...)                                                                                                                    \
    {                                                                                                                                      \
        .name = #name_, .role = QR_ROLE_##name_, .max_out = 16, .bytes = toy_bytes, .init = toy_init, .handle = name_##_handle,            \
        .print = toy_print, __VA_ARGS__                                                                                                    \
    }
static const qr_actor_class_t scheduler_class = TOY(scheduler), executor_class = TOY(executor, .work = executor_work, .owns_world = true),
                              worker_class = TOY(worker), router_class = TOY(router), page_manager_class = TOY(page_manager);
static const qr_actor_class_t *const toys[] = {&scheduler_class, &executor_class, &worker_class, &router_class, &page_manager_class};

#define HEAD "version = 1\nnode = a\n    id = 1\n"
#define DEVICE                                                                                                                             \
    "    host = device\n        actor = scheduler\n        actor = executor\n        actor = worker\n        actor = page_manager\n"
#define ALONE(name) "    host = " #name "\n        actor = " #name "\n"
static const char one_host[] = HEAD DEVICE "        actor = router\n";
static const char edge_host[] = HEAD DEVICE "    host = edge\n        actor = router\n";
static const char each[] = HEAD ALONE(scheduler) ALONE(executor) ALONE(worker) ALONE(page_manager) ALONE(router);

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double run_once(const char *zpl, bool record, double *ret_messages, double *ret_cpu_ns)
{
    static qr_topology_t topology;
    char words[256], folder[] = "/tmp/qr-bench-XXXXXX", command[64];
    qr_text_t error;
    qr_text_init(&error, words, sizeof words);
    qr_given_t *given = calloc(1, sizeof *given);
    qr_params_init(&given->params);
    if (record && mkdtemp(folder)) (void)snprintf(given->params.record, sizeof given->params.record, "%s", folder);
    atomic_store(&ended_ns, 0);
    qr_mesh_config_t config = {.topology = &topology, .classes = toys, .class_count = 5, .given = given, .log_level = QR_LEVEL_WARN};
    qr_mesh_t *mesh = NULL;
    if (qr_topology_parse("bench", zpl, strlen(zpl), &topology, &error) != 0 || qr_mesh_new(&config, &mesh, &error) != 0) {
        fprintf(stderr, "%s\n", words);
        exit(1);
    }
    while (!atomic_load(&ended_ns)) usleep(2000);
    qr_mesh_counts_t counted;
    qr_mesh_end(mesh);
    (void)qr_mesh_run(mesh);
    qr_mesh_counts(mesh, &counted);
    qr_mesh_destroy(&mesh);
    free(given);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    if (record && system(command) != 0) exit(1);
    *ret_messages = (double)(counted.messages - 3 * 5) / (double)steps_wanted; /* start, stop and drain or alarm are not of the step */
    *ret_cpu_ns = (double)(atomic_load(&ended_cpu_ns) - atomic_load(&begun_cpu_ns)) / (double)steps_wanted;
    return (double)(atomic_load(&ended_ns) - atomic_load(&begun_ns)) / (double)steps_wanted;
}

static double run(const char *name, const char *zpl, uint32_t probes, uint64_t steps, int runs, bool record)
{
    double samples[RUNS_MAX], cpu[RUNS_MAX], messages = 0;
    probes_per_step = probes;
    steps_wanted = steps;
    for (int i = 0; i < runs; i++) samples[i] = run_once(zpl, record, &messages, &cpu[i]);
    qsort(samples, (size_t)runs, sizeof *samples, by_value);
    qsort(cpu, (size_t)runs, sizeof *cpu, by_value);
    printf("%-44s %6.2f messages/step %9.0f / %7.0f ns/step, of the processor %7.0f / %7.0f (best / median of %d x %llu)\n", name, messages,
           samples[0], samples[runs / 2], cpu[0], cpu[runs / 2], runs, (unsigned long long)steps);
    return cpu[runs / 2];
}

static void print_context(void)
{
    char line[256] = "unknown", *value = NULL;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && (value = strchr(line, ':'))) break;
    if (file) (void)fclose(file);
    printf("context: %ld cores,%s", sysconf(_SC_NPROCESSORS_ONLN), value ? value + 1 : " unknown cpu\n");
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    printf("context: libzmq %d.%d.%d, compiler %s, %d lanes\n", major, minor, patch, __VERSION__, LANES);
}

int main(int count, char **words)
{
    bool tiny = count > 1 && strcmp(words[1], "--tiny") == 0;
    for (uint32_t i = 0; i < LANES; i++) {
        lanes[i] = qr_handle(i, 7);
        counts[i] = 1000 + i;
        ones[i] = 1;
        tokens[i] = 30000 + 17 * i;
    }
    uint64_t steps = tiny ? 200 : 20000;
    int runs = tiny ? 1 : 5;
    print_context();
    double five = run("5-message step, one host", one_host, 0, steps, runs, false);
    double twelve = run("12-message step, one host", one_host, 3, steps, runs, false);
    (void)run("5-message step, router on an edge host", edge_host, 0, steps, runs, false);
    (void)run("5-message step, one host, recorded", one_host, 0, steps, runs, true);
    (void)run("5-message step, one thread each", each, 0, tiny ? 200 : 2000, tiny ? 1 : 3, false);
    printf("bar: 15000 ns of the processor per step: 5 messages %s, 12 messages %s\n", five < 15000 ? "met" : "missed",
           twelve < 15000 ? "met" : "missed");
    return 0;
}
