/* link: qr_transport */
/* Records: what was received is on disk, replays byte for byte, stays within its bound, and bad files do no harm. */
#include "base/error.h"
#include "messages/codec.h"
#include "messages/describe.h"
#include "tests/unit/toy.h"
#include "transport/clock.h"
#include "transport/mesh.h"
#include "transport/replay.h"
#include "transport/segment.h"
#include "transport/tap.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* A toy scheduler asks a toy page manager; both pure; the prompt idles. */
static uint64_t rounds;
static atomic_bool finished; /* outside the state: only tells the test to end the run */

static void scheduler_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox) && m->type != QR_MESSAGE_start) return;
    if (m->type == QR_MESSAGE_alarm) toy->alarms++;
    if (m->type == QR_MESSAGE_route_released) {
        toy->answered++;
        toy->open_probes--;
    }
    if (toy->answered == rounds) atomic_store(&finished, true);
    if (toy->answered % 100 == 50) qr_outbox_alarm(outbox, m->now_us + 10);
    while (toy->open_probes < 8 && toy->sent < rounds) {
        toy->open_probes++;
        qr_send(outbox, qr_address_partner(toy->address, QR_ROLE_page_manager), route_release,
                (&(qr_route_release_t){++toy->sent ^ m->now_us, 1}));
    }
}

static void page_manager_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox)) return;
    toy->received++;
    if (m->type == QR_MESSAGE_route_release)
        qr_send(outbox, m->from, route_released, (&(qr_route_released_t){m->body.route_release.route ^ toy->received, 0}));
}

/* Differs from the recorded one in one answer: replay must see it. */
static void page_manager_handle_wrong(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    page_manager_handle(self, given, m, outbox);
    if (((toy_t *)self)->received == 20 && outbox->count) outbox->messages[0].body.route_released.reason = 1;
}

static void prompt_handle(void *self, const qr_given_t *given, const qr_message_t *m, qr_outbox_t *outbox)
{
    toy_t *toy = self;
    (void)given;
    if (toy_life(toy, m, outbox) && m->type != QR_MESSAGE_start) return;
    if (m->type == QR_MESSAGE_start)
        qr_outbox_alarm(outbox, m->now_us + 60000000);
    else
        qr_send(outbox, qr_address(qr_address_node(toy->address), 0, QR_ROLE_mesh, 0), node_stop, (&(qr_node_stop_t){0}));
}

#define TOY(name_, handle_)                                                                                                                \
    {                                                                                                                                      \
        .name = #name_, .role = QR_ROLE_##name_, .max_out = 32, .bytes = toy_bytes, .init = toy_init, .handle = handle_,                   \
        .print = toy_print                                                                                                                 \
    }
static const qr_actor_class_t scheduler_class = TOY(scheduler, scheduler_handle),
                              page_manager_class = TOY(page_manager, page_manager_handle),
                              wrong_class = TOY(page_manager, page_manager_handle_wrong), prompt_class = TOY(prompt, prompt_handle);
static const qr_actor_class_t *const toys[] = {&scheduler_class, &page_manager_class, &prompt_class};
static const char zpl[] =
    "version = 1\nnode = n-1\n    id = 4\n    host = device\n        actor = scheduler\n        actor = page_manager\n"
    "    host = edge\n        actor = prompt\n";

static char folder[32];
static bool with_strangers; /* files of an earlier run and of a node with a longer name lie in the folder already */
static qr_given_t *given;
static char names[1024][96];
static uint32_t name_count;

static uint64_t list(void)
{
    uint64_t bytes = 0;
    name_count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (struct dirent *entry; (entry = readdir(open));) {
        struct stat stat_;
        char path[512];
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_int_equal(stat(path, &stat_), 0);
        bytes += (uint64_t)stat_.st_size;
        (void)snprintf(names[name_count++], sizeof names[0], "%.90s", entry->d_name);
    }
    (void)closedir(open);
    qsort(names, name_count, sizeof names[0], (int (*)(const void *, const void *))strcmp);
    return bytes;
}

static const char *const strangers[] = {"n-1-scheduler.0.0-00000003", "n-1-2-scheduler.0.0-00000001", "n-1-scheduler.0.0-0000000x"};
static void make_strangers(void)
{
    for (size_t i = 0; i < QR_COUNT(strangers); i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", folder, strangers[i]);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        assert_int_equal(fputs("old", file) < 0, 0);
        assert_int_equal(fclose(file), 0);
    }
}

static void record(uint64_t count, uint64_t bytes)
{
    char words[256];
    qr_text_t error;
    static qr_topology_t topology;
    qr_text_init(&error, words, sizeof words);
    (void)snprintf(folder, sizeof folder, "/tmp/qr-record-XXXXXX");
    assert_non_null(mkdtemp(folder));
    if (with_strangers) make_strangers();
    rounds = count;
    atomic_store(&finished, false);
    given = toy_given();
    (void)snprintf(given->params.record, sizeof given->params.record, "%s", folder);
    given->params.record_bytes = bytes;
    if (qr_topology_parse("t", zpl, strlen(zpl), &topology, &error) != 0) fail_msg("%s", words);
    qr_mesh_config_t config = {.topology = &topology, .classes = toys, .class_count = 3, .given = given, .log_level = QR_LEVEL_WARN};
    qr_mesh_t *mesh = NULL;
    if (qr_mesh_new(&config, &mesh, &error) != 0) fail_msg("%s", words);
    for (int i = 0; i < 30000 && !atomic_load(&finished); i++) usleep(1000);
    qr_mesh_end(mesh);
    assert_int_equal(qr_mesh_run(mesh), 0);
    const toy_t *scheduler = qr_mesh_state(mesh, qr_address(4, 0, QR_ROLE_scheduler, 0));
    assert_int_equal(scheduler->answered, count);
    qr_mesh_destroy(&mesh);
}

static void forget(void)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    free(given);
}

static void open_file(uint32_t index, bool with_state, qr_segment_t *segment)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, names[index]);
    assert_int_equal(qr_segment_open(path, with_state, segment), 0);
}

static void test_replays_byte_for_byte(void **state)
{
    (void)state;
    record(5000, 1 << 20);
    (void)list();
    uint64_t replayed = 0, segments = 0;
    for (uint32_t i = 0; i < name_count; i++) {
        qr_segment_t segment;
        qr_replay_t replay;
        open_file(i, true, &segment);
        const qr_actor_class_t *actor = strcmp(segment.header.actor, "scheduler") == 0      ? &scheduler_class
                                        : strcmp(segment.header.actor, "page_manager") == 0 ? &page_manager_class
                                                                                            : &prompt_class;
        assert_int_equal(segment.header.node, 4);
        assert_non_null(strstr(segment.config, "record_bytes = 1048576"));
        assert_int_equal(qr_replay_run(&segment, actor, given, NULL, &replay), 0);
        assert_int_equal(replay.differs_at, UINT64_MAX);
        replayed += replay.entries;
        segments++;
        qr_segment_close(&segment);
    }
    assert_true(segments > 6); /* several per actor: replay began at snapshots in the middle */
    assert_true(replayed > 10000);
    forget();
}

static void test_replay_sees_a_difference(void **state)
{
    (void)state;
    record(50, 1 << 20);
    (void)list();
    bool seen = false;
    for (uint32_t i = 0; i < name_count; i++) {
        qr_segment_t segment;
        qr_replay_t replay;
        open_file(i, true, &segment);
        if (strcmp(segment.header.actor, "page_manager") == 0) {
            assert_int_equal(qr_replay_run(&segment, &wrong_class, given, NULL, &replay), 0);
            assert_int_equal(replay.differs_at, 20); /* entry 0 is start */
            assert_int_equal(replay.differs_type, QR_MESSAGE_route_release);
            seen = true;
        }
        qr_segment_close(&segment);
    }
    assert_true(seen);
    forget();
}

/* ---- the subcommand ---------------------------------------------------------------------------------------------------------- */

static const qr_actor_class_t *const wrong_toys[] = {&scheduler_class, &wrong_class, &prompt_class};
static char out[64]; /* what a subcommand printed, as a file */

static int no_model(void *context, const char *path, qr_vocabulary_t *ret_vocabulary, char *message, size_t message_bytes)
{
    (void)context, (void)ret_vocabulary;
    (void)snprintf(message, message_bytes, "no model here, not even %.40s", path);
    return -QR_E_NOT_FOUND;
}

/* Runs a subcommand with its output in `out`. */
static int printing(int (*run)(int count, char **words, const void *context), int count, char **words, const void *context)
{
    (void)snprintf(out, sizeof out, "%s.out", folder);
    (void)fflush(stdout);
    int saved = dup(1);
    assert_non_null(freopen(out, "w", stdout));
    int status = run(count, words, context);
    (void)fflush(stdout);
    assert_true(dup2(saved, 1) >= 0);
    (void)close(saved);
    return status;
}

static int run_replay(int count, char **words, const void *context)
{
    qr_replay_world_t world = {.classes = context, .class_count = 3, .vocabulary = no_model};
    return qr_replay_main(count, words, &world);
}

static int replay_all(const qr_actor_class_t *const *classes) { return printing(run_replay, 1, (char *[]){folder}, classes); }

/* Whether `out` has a line with both words. */
static bool printed(const char *word, const char *also)
{
    char line[4096];
    bool found = false;
    FILE *file = fopen(out, "r");
    assert_non_null(file);
    while (!found && fgets(line, sizeof line, file)) found = strstr(line, word) && strstr(line, also);
    (void)fclose(file);
    return found;
}

static void test_replay_prints_a_line_for_each_segment_and_a_sum(void **state)
{
    (void)state;
    record(2000, 1 << 20);
    assert_int_equal(replay_all(toys), 0);
    assert_true(printed("n-1-page_manager.0.0-", " entries, "));
    assert_true(printed("sum: ", ", 0 differ, 0 damaged, 0 refused"));
    assert_int_equal(replay_all(wrong_toys), 1);
    assert_true(printed("n-1-page_manager.0.0-", "DIFFERS at entry 20 (route_release)"));
    assert_true(printed("  handled ", "route_release 4.0.scheduler.0 > 4.0.page_manager.0 route="));
    assert_true(printed("  emits ", "route_released 4.0.page_manager.0 > 4.0.scheduler.0 route="));
    assert_true(printed("sum: ", ", 1 differ, 0 damaged"));
    (void)unlink(out);
    forget();
}

static void test_replay_refuses_by_name(void **state)
{
    (void)state;
    record(50, 1 << 20);
    char *none[] = {(char *)"/nowhere"}, *two[] = {folder, folder}, *option[] = {(char *)"--fast", folder};
    char *model[] = {folder, (char *)"--model", (char *)"m.gguf"};
    assert_int_equal(printing(run_replay, 1, none, toys), 2);
    assert_int_equal(printing(run_replay, 2, two, toys), 2);
    assert_int_equal(printing(run_replay, 2, option, toys), 2);
    assert_int_equal(printing(run_replay, 0, none, toys), 2);
    assert_int_equal(printing(run_replay, 3, model, toys), 2);
    assert_true(printed("not replayed: ", "no model here, not even m.gguf"));
    char command[128];
    (void)snprintf(command, sizeof command, "rm %s/*", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(replay_all(toys), 2); /* nothing left */
    (void)unlink(out);
    forget();
}

/* One byte changed anywhere is found before an actor acts on it. */
static void test_a_changed_byte_is_damage(void **state)
{
    (void)state;
    record(50, 1 << 20);
    (void)list();
    char path[256];
    for (uint32_t i = 0; i < name_count; i++) {
        (void)snprintf(path, sizeof path, "%s/%.95s", folder, names[i]);
        if (!strstr(names[i], "page_manager")) assert_int_equal(unlink(path), 0);
    }
    (void)list();
    assert_int_equal(name_count, 1);
    assert_int_equal(replay_all(toys), 0);
    (void)snprintf(path, sizeof path, "%s/%s", folder, names[0]);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    for (long at = 0; at < bytes; at += at < 4096 ? 3 : 7) {
        uint8_t kept = 0;
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fread(&kept, 1, 1, file), 1);
        uint8_t changed = kept ^ (uint8_t)(1u << at % 8);
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fwrite(&changed, 1, 1, file), 1);
        (void)fflush(file);
        int status = replay_all(toys);
        if (status != 1 && status != 2) fail_msg("byte %ld: status %d", at, status);
        if (at >= 16) assert_int_equal(status, 1); /* before: the magic and the version */
        if (at >= 16) assert_true(printed("damaged", ""));
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fwrite(&kept, 1, 1, file), 1);
    }
    (void)fclose(file);
    assert_int_equal(replay_all(toys), 0);
    (void)unlink(out);
    forget();
}

/* ---- a segment made by hand: two probes from another node, whose session had ended when the first was answered --------------------- */

#define HERE qr_address(4, 0, QR_ROLE_worker, 0)
#define THERE qr_address(9, 0, QR_ROLE_router, 0)

static void worker_handle(void *self, const qr_given_t *given_, const qr_message_t *m, qr_outbox_t *outbox)
{
    (void)self, (void)given_;
    qr_send(outbox, m->from, probe_done, (&(qr_probe_done_t){m->body.probe.probe_id, 0}));
}
static const qr_actor_class_t worker_class = TOY(worker, worker_handle);

static void put(FILE *file, const void *bytes, size_t count) { assert_int_equal(fwrite(bytes, 1, count, file), count); }

/* answer: whether probe_done was sent, as number `sequence`. */
static void put_probe(FILE *file, uint64_t id, bool answer, uint64_t sequence)
{
    uint8_t asked[128], answered[128];
    qr_message_t m = {.type = QR_MESSAGE_probe, .from = THERE, .to = HERE, .epoch = 5, .sequence = id, .body.probe.probe_id = id};
    int64_t bytes = qr_codec_encode(&m, asked, sizeof asked);
    m = (qr_message_t){.type = QR_MESSAGE_probe_done, .from = HERE, .to = THERE, .epoch = 3, .sequence = sequence};
    m.body.probe_done.probe_id = id;
    int64_t emitted = qr_codec_encode(&m, answered, sizeof answered);
    uint64_t never = QR_NEVER_US, hash = answer ? qr_record_hash(0, answered, (size_t)emitted) : 0;
    qr_record_entry_t entry = {
        .now_us = id, .bytes = (uint32_t)bytes, .kind = QR_ENTRY_MESSAGE, .hash = qr_record_hash(hash, &never, sizeof never)};
    entry.message_check = qr_record_fold(qr_record_hash(0, asked, (size_t)bytes));
    entry.head_check = qr_record_entry_check(&entry);
    put(file, &entry, sizeof entry);
    put(file, asked, (size_t)bytes);
}

static qr_replay_t replay_probes(bool second_too)
{
    char path[] = "/tmp/qr-probes-XXXXXX";
    int descriptor = mkstemp(path);
    FILE *file = fdopen(descriptor, "wb");
    assert_non_null(file);
    given = toy_given();
    toy_t toy = {.address = HERE};
    qr_recorder_t recorder = {.schema_hash = qr_describe_hash(), .given_digest = qr_record_given_digest(given)};
    uint8_t *head = NULL, *runs = NULL;
    size_t head_bytes = qr_record_head_make(&recorder, 4, "worker", HERE, 3, 0, given, true, &head);
    size_t run_bytes = qr_record_runs_make(&toy, sizeof toy, 1 << 20, &runs);
    qr_record_partner_t partner = {.address = THERE, .epoch_in = 5, .sequence_out = 70};
    qr_record_snapshot_t snapshot = {.alarm_us = QR_NEVER_US, .partner_count = 1, .state_bytes = sizeof toy};
    qr_record_head_seal(head, &snapshot, &partner, runs, run_bytes);
    put(file, head, head_bytes);
    put(file, &snapshot, sizeof snapshot);
    put(file, &partner, sizeof partner);
    put(file, runs, run_bytes);
    put_probe(file, 1, false, 0);
    put_probe(file, 2, second_too, 71);
    put_probe(file, 3, true, second_too ? 72 : 70); /* 70: a number that was used */
    assert_int_equal(fclose(file), 0);
    qr_segment_t segment;
    qr_replay_t replay;
    assert_int_equal(qr_segment_open(path, true, &segment), 0);
    assert_int_equal(qr_replay_run(&segment, &worker_class, given, NULL, &replay), 0);
    qr_segment_close(&segment);
    free(head);
    free(runs);
    free(given);
    (void)unlink(path);
    return replay;
}

static void test_an_answer_to_an_ended_session_was_not_sent(void **state)
{
    (void)state;
    qr_replay_t replay = replay_probes(true);
    assert_int_equal(replay.differs_at, UINT64_MAX);
    assert_int_equal(replay.entries, 3);
    assert_int_equal(replay.unsent, 1);
    replay = replay_probes(false); /* the third has a number that neither story explains */
    assert_int_equal(replay.differs_at, 2);
    assert_int_equal(replay.unsent, 2);
}

#define GROUP "layout_group_window = 0\n"

static void test_settings_come_back(void **state)
{
    (void)state;
    static qr_given_t back;
    char words[256], config[4096];
    qr_text_t error, text;
    qr_params_t wanted;
    qr_params_init(&wanted);
    wanted.page_tokens = 64;
    wanted.device = 1;
    (void)snprintf(wanted.model, sizeof wanted.model, "a \"b\" \\x41\n\303\251");
    qr_text_init(&text, config, sizeof config);
    qr_params_print(&wanted, UINT32_MAX, &text);
    qr_text_put(&text, "layout_page_tokens = 64\nlayout_group_window = 0\nlayout_group_pages = 77\nlayout_group_window = 9\n");
    qr_text_init(&error, words, sizeof words);
    assert_int_equal(qr_replay_settings(config, &back, &error), 0);
    assert_memory_equal(&back.params, &wanted, sizeof wanted);
    assert_int_equal(back.layout.page_tokens, 64);
    assert_int_equal(back.layout.group_count, 2);
    assert_int_equal(back.layout.groups[0].pages, 77);
    assert_int_equal(back.layout.groups[1].window, 9);
    static const char too_many[] = GROUP GROUP GROUP GROUP GROUP;
    static const char *const bad[] = {"page_tokens",
                                      "page_tokens = x\n",
                                      "nothing = 1\n",
                                      "model = \"a\n",
                                      "model = \"\\x4\"\n",
                                      "model = \"\\x00\"\n",
                                      "layout_group_pages = -1\n",
                                      "layout_group_pages = 4294967296\n",
                                      "layout_other = 1\n",
                                      "layout_fingerprint = 00\n",
                                      too_many};
    for (size_t i = 0; i < QR_COUNT(bad); i++) {
        qr_text_init(&error, words, sizeof words);
        if (qr_replay_settings(bad[i], &back, &error) != -QR_E_FORMAT || !words[0]) fail_msg("%s", bad[i]);
    }
}

/* A state block that is mostly zero is kept small, and comes back the same. */
static void test_state_as_runs(void **state)
{
    (void)state;
    enum { BYTES = 1000003 };
    uint8_t *block = calloc(1, BYTES), *back = calloc(1, BYTES), *runs = NULL;
    static const size_t places[] = {0, 5000, 8191, 8192, 600000, BYTES - 1};
    for (size_t i = 0; i < QR_COUNT(places); i++) block[places[i]] = (uint8_t)(i + 1);
    size_t bytes = qr_record_runs_make(block, BYTES, 100000, &runs);
    assert_true(bytes > 0 && bytes < 25000);
    size_t at = 0;
    for (;;) {
        qr_record_run_t run;
        memcpy(&run, runs + at, sizeof run);
        at += sizeof run;
        if (run.bytes == 0) break;
        memcpy(back + run.offset, runs + at, run.bytes);
        at += run.bytes;
    }
    assert_int_equal(at, bytes);
    assert_memory_equal(block, back, BYTES);
    free(runs);
    memset(block, 1, BYTES);
    assert_int_equal(qr_record_runs_make(block, BYTES, 100000, &runs), 0); /* too large */
    bytes = qr_record_runs_make(block, BYTES, 2000000, &runs);
    assert_int_equal(bytes, BYTES + 2 * sizeof(qr_record_run_t));
    free(runs);
    free(block);
    free(back);
}

/* The bound deletes this node's oldest segments, also of an earlier run, and nobody else's. */
static void test_only_own_segments_are_deleted(void **state)
{
    (void)state;
    with_strangers = true;
    record(20000, 200000);
    with_strangers = false;
    static const bool stays[] = {false, true, true};
    for (size_t i = 0; i < QR_COUNT(strangers); i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", folder, strangers[i]);
        assert_int_equal(access(path, F_OK) == 0, stays[i]);
    }
    forget();
}

static void test_stays_within_its_bound(void **state)
{
    (void)state;
    record(20000, 200000); /* writes about 2.5 MB */
    uint64_t bytes = list();
    assert_true(bytes > 50000);
    assert_true(bytes <= 200000 + QR_RECORD_BLOCK_BYTES);
    forget();
}

/* C4: two recorders would take each other's numbers and delete each other's segments. */
static void test_a_folder_has_one_recorder(void **state)
{
    (void)state;
    char words[256], path[256];
    qr_text_t error;
    static qr_topology_t topology;
    qr_text_init(&error, words, sizeof words);
    (void)snprintf(folder, sizeof folder, "/tmp/qr-record-XXXXXX");
    assert_non_null(mkdtemp(folder));
    make_strangers();
    (void)snprintf(path, sizeof path, "%s/%s", folder, strangers[0]);
    int other = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
    given = toy_given();
    (void)snprintf(given->params.record, sizeof given->params.record, "%s", folder);
    given->params.record_bytes = 200000;
    if (qr_topology_parse("t", zpl, strlen(zpl), &topology, &error) != 0) fail_msg("%s", words);
    qr_mesh_config_t config = {.topology = &topology, .classes = toys, .class_count = 3, .given = given, .log_level = QR_LEVEL_WARN};
    qr_mesh_t *mesh = NULL;
    assert_int_equal(qr_mesh_new(&config, &mesh, &error), -QR_E_IN_USE);
    assert_non_null(strstr(words, "--record"));
    assert_int_equal(access(path, F_OK), 0);
    (void)close(other);
    assert_int_equal(qr_record_folder(folder), 0);
    assert_int_equal(qr_record_folder(path), -QR_E_IO); /* a file is no folder */
    forget();
}

/* What is no file is not waited for, and who shows what can be read says that there is more. */
static void test_a_pipe_is_no_segment(void **state)
{
    (void)state;
    record(50, 1 << 20);
    char path[256], *words[] = {folder, (char *)"--summary"};
    (void)snprintf(path, sizeof path, "%s/n-1-scheduler.0.0-00000099", folder);
    assert_int_equal(qr_tap_main(2, words), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    qr_segment_t segment;
    assert_int_equal(qr_segment_open(path, true, &segment), -QR_E_IO);
    assert_int_equal(qr_tap_main(2, words), 1);
    forget();
}

static void test_truncated_and_hostile_files(void **state)
{
    (void)state;
    record(50, 1 << 20);
    (void)list();
    char path[256], bad[64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, names[0]);
    (void)snprintf(bad, sizeof bad, "%s/bad", folder);
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t count = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    uint64_t seed = 11;
    for (size_t i = 0; i < 400; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint8_t kept = bytes[(seed >> 33) % count];
        size_t flip = (seed >> 33) % count, cut = i % 2 ? count : (seed >> 20) % count;
        bytes[flip] = (uint8_t)(seed >> 24);
        file = fopen(bad, "wb");
        assert_int_equal(fwrite(bytes, 1, cut, file), cut);
        (void)fclose(file);
        bytes[flip] = kept;
        qr_segment_t segment;
        qr_segment_entry_t entry;
        if (qr_segment_open(bad, true, &segment) != 0) continue;
        while (qr_segment_next(&segment, &entry) == 0) continue;
        qr_segment_close(&segment);
    }
    forget();
}

static void test_tap_prints_by_the_schema(void **state)
{
    (void)state;
    record(50, 1 << 20);
    char line[512];
    (void)snprintf(out, sizeof out, "%s.out", folder);
    (void)fflush(stdout);
    int saved = dup(1);
    assert_non_null(freopen(out, "w", stdout));
    char *all[] = {folder}, *some[] = {folder, (char *)"--actor", (char *)"scheduler", (char *)"--type", (char *)"route_released"};
    some[2] = (char *)"scheduler.0.0";
    char *sum[] = {folder, (char *)"--summary"}, *wrong[] = {folder, (char *)"--actor", (char *)"nobody"};
    int codes[4] = {qr_tap_main(1, all), 0, 0, 0};
    printf("--\n");
    codes[1] = qr_tap_main(5, some);
    printf("--\n");
    codes[2] = qr_tap_main(2, sum);
    codes[3] = qr_tap_main(3, wrong);
    (void)fflush(stdout);
    assert_true(dup2(saved, 1) >= 0);
    (void)close(saved);
    assert_int_equal(codes[0] + codes[1] + codes[2], 0);
    assert_int_equal(codes[3], 2);
    FILE *file = fopen(out, "r");
    int part = 0, lines[3] = {0}, asks = 0, summed = 0;
    while (fgets(line, sizeof line, file)) {
        if (strcmp(line, "--\n") == 0) {
            part++;
            continue;
        }
        lines[part]++;
        if (part == 0 && strstr(line, "] route_release 4.0.scheduler.0 > 4.0.page_manager.0 route=")) asks++;
        if (part == 1) assert_non_null(strstr(line, "route_released 4.0.page_manager.0 > 4.0.scheduler.0"));
        unsigned long long count;
        char from[32], to[32], type[32];
        if (part == 2 && sscanf(line, "%llu %*u %*f %31s %31s %31s", &count, from, to, type) == 4 && strcmp(type, "route_release") == 0)
            summed = (int)count;
    }
    (void)fclose(file);
    (void)unlink(out);
    assert_int_equal(asks, 50);
    assert_int_equal(lines[1], 50);
    assert_int_equal(summed, 50);
    forget();
}

static void test_tap_refuses_by_name(void **state)
{
    (void)state;
    record(5, 1 << 20);
    static const char *const bad[][2] = {{"--actor", "nobody"},
                                         {"--actor", "scheduler.0"},
                                         {"--actor", "scheduler.x.0"},
                                         {"--actor", "scheduler.256.0"},
                                         {"--actor", ".0.0"},
                                         {"--actor", ""},
                                         {"--type", "no_message"},
                                         {"--request", "-1"},
                                         {"--request", ""},
                                         {"--request", "12x"},
                                         {"--request", "18446744073709551616"}};
    for (size_t i = 0; i < QR_COUNT(bad); i++) {
        char *words[] = {folder, (char *)(uintptr_t)bad[i][0], (char *)(uintptr_t)bad[i][1]};
        if (qr_tap_main(3, words) != 2) fail_msg("%s '%s' was taken", bad[i][0], bad[i][1]);
    }
    char *elsewhere[] = {folder, (char *)"--actor", (char *)"scheduler.0.1"};
    char *largest[] = {folder, (char *)"--request", (char *)"18446744073709551615"};
    assert_int_equal(qr_tap_main(3, elsewhere), 0);
    assert_int_equal(qr_tap_main(3, largest), 0);
    forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_own_segments_are_deleted),
        cmocka_unit_test(test_replays_byte_for_byte),
        cmocka_unit_test(test_replay_sees_a_difference),
        cmocka_unit_test(test_stays_within_its_bound),
        cmocka_unit_test(test_a_folder_has_one_recorder),
        cmocka_unit_test(test_a_pipe_is_no_segment),
        cmocka_unit_test(test_truncated_and_hostile_files),
        cmocka_unit_test(test_tap_prints_by_the_schema),
        cmocka_unit_test(test_state_as_runs),
        cmocka_unit_test(test_tap_refuses_by_name),
        cmocka_unit_test(test_replay_prints_a_line_for_each_segment_and_a_sum),
        cmocka_unit_test(test_replay_refuses_by_name),
        cmocka_unit_test(test_a_changed_byte_is_damage),
        cmocka_unit_test(test_settings_come_back),
        cmocka_unit_test(test_an_answer_to_an_ended_session_was_not_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
