/* main.c - the `quire` program: a table of subcommands. Each reads its options by the one table of base/params.def, makes what
 * actors are given (model, device, decoder, tokenizer) and hands the rest to the room that does the work. */
#include "actors/catalog_replica.h"
#include "actors/catalog_writer.h"
#include "actors/detokenize.h"
#include "actors/gateway.h"
#include "actors/heartbeat.h"
#include "actors/io/bench.h"
#include "actors/checkpoint_writer.h"
#include "actors/io/activity.h"
#include "actors/io/continuation_tool.h"
#include "actors/io/executor.h"
#include "actors/io/facts.h"
#include "actors/io/facts_tool.h"
#include "actors/io/generate.h"
#include "actors/io/http.h"
#include "actors/io/keys.h"
#include "actors/io/prompt.h"
#include "actors/io/storage.h"
#include "actors/io/text.h"
#include "actors/io/transfer.h"
#include "actors/page_manager.h"
#include "actors/restore_streamer.h"
#include "actors/router.h"
#include "actors/scheduler.h"
#include "actors/worker.h"
#include "base/error.h"
#include "base/nearest.h"
#include "messages/describe.h"
#include "model/decoder.h"
#include "model/doctor.h"
#include "model/inspect.h"
#include "model/oracle.h"
#include "model/tokenizer.h"
#include "store/folder.h"
#include "store/inspect.h"
#include "store/staging.h"
#include "transport/link.h"
#include "transport/mesh.h"
#include "transport/replay.h"
#include "transport/sim/simulate.h"
#include "transport/tap.h"
#include "transport/uplink.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_USAGE = 2 };

/* ---- what every actor is given ------------------------------------------------------------------------------------- */

typedef struct boot {
    qr_given_t given;
    qr_topology_t *topology; /* NULL: the built-in default */
    const char *node;
    qr_device_t *device;
    uint64_t load_us;
    uint64_t epoch; /* of the store; 0: mesh makes one */
    qr_store_folder_t folder;
    qr_activity_t activity;
    bool computes; /* this node has an executor */
    bool no_store; /* --no-store */
} boot_t;

static uint64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}
static int fail(const char *what, const char *why)
{
    fprintf(stderr, "quire: %s%s%s\n", what, why && *why ? ": " : "", why ? why : "");
    return EXIT_USAGE;
}
static void show_progress(void *context, uint64_t done, uint64_t total)
{
    uint64_t *last = context, percent = total ? done * 100 / total : 100;
    if (percent == *last) return;
    *last = percent;
    fprintf(stderr, "\rloading weights %3u %% of %llu MB%s", (unsigned)percent, (unsigned long long)(total / 1000000u), done >= total ? "\n" : "");
}
static bool node_has(const boot_t *boot, uint8_t role)
{
    if (!boot->topology) return true;
    qr_text_t error;
    char buffer[8];
    qr_text_init(&error, buffer, sizeof buffer);
    int at = qr_topology_node_find(boot->topology, boot->node, &error);
    if (at < 0) return false;
    const qr_topology_node_t *node = &boot->topology->nodes[at];
    for (uint32_t i = 0; i < node->actor_count; i++)
        if (node->actors[i].role == role) return true;
    return false;
}
static int boot_topology(boot_t *boot)
{
    const qr_params_t *p = &boot->given.params;
    boot->node = p->node;
    if (!p->topology[0]) return 0;
    char buffer[512];
    qr_text_t error;
    qr_text_init(&error, buffer, sizeof buffer);
    boot->topology = calloc(1, sizeof *boot->topology);
    if (!boot->topology) return fail("not enough memory", NULL);
    if (qr_topology_read(p->topology, boot->topology, &error)) return fail(p->topology, buffer);
    if (qr_topology_node_find(boot->topology, boot->node, &error) < 0) return fail(p->topology, buffer);
    return 0;
}
/* quire/store in the XDG state folder; its parents are made. false: there is no such folder. */
static bool default_store(char path[QR_PARAM_TEXT_BYTES])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool xdg = state && state[0] == '/';
    if (!xdg && !(home && home[0] == '/')) return false;
    int count = xdg ? snprintf(path, QR_PARAM_TEXT_BYTES, "%s/quire/store", state) : snprintf(path, QR_PARAM_TEXT_BYTES, "%s/.local/state/quire/store", home);
    return count > 0 && count < QR_PARAM_TEXT_BYTES;
}
static void make_parents(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
}
/* Opens the store of this node and takes its next epoch. The default one is a convenience: if it cannot be had, a line says so. */
static int boot_store(boot_t *boot)
{
    qr_params_t *p = &boot->given.params;
    char message[512];
    bool given = p->store[0], recovered, named = boot->topology && (node_has(boot, QR_ROLE_facts) || node_has(boot, QR_ROLE_storage));
    if (boot->no_store && given) return fail("--no-store", "contradicts --store");
    if (boot->no_store) return 0;
    if (boot->topology && !named && !given) return 0; /* nobody here would use it */
    if (!given && !default_store(p->store)) return 0;
    make_parents(p->store);
    int status = qr_store_folder_open(p->store, &boot->folder, message, sizeof message);
    if (!status) {
        status = qr_store_epoch_next(&boot->folder, &boot->epoch, &recovered, message, sizeof message);
        if (status) qr_store_folder_close(&boot->folder);
    }
    if (status && (given || named)) return fail(message, NULL);
    if (status) {
        fprintf(stderr, "quire: %s; going on without a store\n", message);
        p->store[0] = 0;
        return 0;
    }
    if (recovered) fprintf(stderr, "quire: %s/epoch was damaged; its count goes on from the clock\n", p->store);
    boot->given.store = &boot->folder;
    return 0;
}
static uint32_t threads_of(const qr_params_t *p)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return p->threads ? (uint32_t)p->threads : (uint32_t)(cores > 0 ? cores : 1);
}
static int boot_decoder(boot_t *boot, qr_model_t *model, uint32_t context_tokens)
{
    const qr_params_t *p = &boot->given.params;
    char message[512];
    qr_device_config_t device = {.kind = (uint32_t)p->device, .isa = (uint32_t)p->isa, .threads = threads_of(p)};
    /* Compute threads never take the signals that mesh waits for; until then the default ends a slow load at once. */
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    int status = qr_device_new(&device, &boot->device, message, sizeof message);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status) return fail("device", message);
    uint64_t last = UINT64_MAX;
    if (qr_model_load(model, boot->device, isatty(2) ? show_progress : NULL, &last, message, sizeof message)) return fail("model", message);
    qr_decoder_config_t config = {.page_tokens = (uint32_t)p->page_tokens,
                                  .rows_max = (uint32_t)qr_min_u64(QR_BATCH_ROWS_MAX, p->prefill_tile + p->max_lanes),
                                  .lanes_max = (uint32_t)p->max_lanes,
                                  .context_tokens = context_tokens,
                                  .poison = p->poison != 0};
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) config.pages[g] = (uint32_t)p->pages;
    if (qr_decoder_new(model, &config, &boot->given.decoder, message, sizeof message)) return fail("decoder", message);
    boot->given.layout = *qr_decoder_layout(boot->given.decoder);
    return 0;
}
/* Opens the model and, where this node computes, its weights and pools. 0 or the exit status. */
static int boot_model(boot_t *boot)
{
    qr_params_t *p = &boot->given.params;
    uint64_t begin = clock_us();
    char message[512];
    if (!p->model[0]) return fail("no model given", "add --model FILE.gguf (examples/get-model.sh smollm2 downloads one)");
    if (p->page_tokens != 8 && p->page_tokens != 16 && p->page_tokens != 32 && p->page_tokens % 64 != 0)
        return fail("--page-tokens", "must be 8, 16, 32, 64 or a multiple of 64");
    qr_model_t *model;
    if (qr_model_open(p->model, &model, message, sizeof message)) return fail(message, NULL);
    boot->given.model = model;
    boot->computes = node_has(boot, QR_ROLE_executor);
    uint32_t context_tokens = p->context ? (uint32_t)qr_min_u64(p->context, model->arch.context) : qr_min_u32(model->arch.context, QR_CONTEXT_MAX);
    if (p->context > model->arch.context) fprintf(stderr, "quire: --context %llu is more than the model's %u; using %u\n", (unsigned long long)p->context, model->arch.context, context_tokens);
    boot->given.layout = model->layout;
    if (boot->computes) {
        int status = boot_decoder(boot, model, context_tokens);
        if (status) return status;
    }
    boot->given.layout.page_tokens = (uint32_t)p->page_tokens;
    boot->given.layout.chunk_tokens = (uint32_t)p->chunk_tokens;
    boot->given.layout.context_tokens = context_tokens;
    boot->given.vocabulary = model->vocabulary;
    if (qr_tokenizer_new(model, &boot->given.tokenizer, message, sizeof message)) return fail("tokenizer", message);
    boot->load_us = clock_us() - begin;
    return 0;
}
/* Whether pages of this node can go to disk and come back: a store, a device whose pages the cpu reaches, and everybody who takes part. */
static bool is_durable(const boot_t *boot)
{
    static const uint8_t roles[] = {QR_ROLE_storage, QR_ROLE_transfer, QR_ROLE_restore_streamer, QR_ROLE_checkpoint_writer, QR_ROLE_catalog_replica};
    bool all = boot->given.store && boot->given.decoder && qr_decoder_member_rows(boot->given.decoder, 0, 0) && boot->given.params.captures;
    for (size_t i = 0; i < QR_COUNT(roles); i++) all = all && node_has(boot, roles[i]);
    return all;
}
/* Maps the slots in which chunks are kept, as many as --ram-bytes holds; the system gives their memory as they are used. */
static int boot_ram(boot_t *boot, qr_staging_config_t config)
{
    config.kept = true;
    config.slots = qr_staging_slots_in(&config, boot->given.params.ram_bytes);
    if (boot->given.params.ram_bytes && !config.slots)
        fprintf(stderr, "quire: --ram-bytes %llu holds not one chunk of this model: none is kept in memory\n",
                (unsigned long long)boot->given.params.ram_bytes);
    if (!config.slots) return boot->given.params.ram_bytes = 0, 0;
    return qr_staging_new(&config, &boot->given.ram) ? fail("not enough memory for chunks", "lower --ram-bytes") : 0;
}
/* Makes the slots that rows pass through on their way to disk. */
static int boot_staging(boot_t *boot)
{
    if (!is_durable(boot)) return boot->given.params.captures = boot->given.params.ram_bytes = 0, 0;
    const qr_layout_t *layout = &boot->given.layout;
    qr_staging_config_t config = {.slots = (uint32_t)boot->given.params.staging_slots, .chunk_tokens = layout->chunk_tokens, .group_count = layout->group_count};
    for (uint32_t g = 0; g < layout->group_count; g++) {
        config.groups[g].members = qr_decoder_member_count(boot->given.decoder, g);
        config.groups[g].row_bytes = layout->groups[g].row_bytes / config.groups[g].members;
    }
    if (qr_staging_new(&config, &boot->given.staging)) return fail("not enough memory for the staging slots", "lower --staging-slots or --chunk-tokens");
    boot->given.activity = &boot->activity;
    return boot_ram(boot, config);
}
/* Rows of requests that make room are kept where transfer runs and the cpu reaches the pages. */
static void boot_spill(boot_t *boot)
{
    qr_params_t *p = &boot->given.params;
    if (!p->over_commit || !boot->given.decoder || !qr_decoder_member_rows(boot->given.decoder, 0, 0) || !node_has(boot, QR_ROLE_transfer)) p->spill_bytes = 0;
    if (p->spill_bytes) boot->given.activity = &boot->activity;
}
static void boot_done(boot_t *boot)
{
    qr_tokenizer_destroy(&boot->given.tokenizer);
    qr_decoder_destroy(&boot->given.decoder);
    qr_model_destroy(&boot->given.model);
    qr_device_destroy(&boot->device);
    qr_staging_destroy(&boot->given.staging);
    qr_staging_destroy(&boot->given.ram);
    if (boot->given.store) qr_store_folder_close(&boot->folder);
    boot->given.store = NULL;
    free(boot->topology);
    boot->topology = NULL;
}

/* The built-in topology leaves out who would have nothing to do: the CATALOG_CLASSES without a store, the CHUNK_CLASSES behind them when
 * nothing of this node's pages can be durable, transfer, the last, unless it also keeps rows of requests that make room. */
enum { CATALOG_CLASSES = 3, CHUNK_CLASSES = 3 };
static const qr_actor_class_t *const serve_classes[] = {&qr_http_class,         &qr_text_class,     &qr_gateway_class,   &qr_router_class, &qr_worker_class,         &qr_scheduler_class,
                                                        &qr_page_manager_class, &qr_executor_class, &qr_heartbeat_class, &qr_facts_class,  &qr_catalog_writer_class, &qr_catalog_replica_class,
                                                        &qr_storage_class, &qr_restore_streamer_class, &qr_checkpoint_writer_class, &qr_transfer_class};
static const qr_actor_class_t *const prompt_classes[] = {&qr_prompt_class,   &qr_text_class,         &qr_gateway_class,  &qr_router_class,   &qr_worker_class,
                                                         &qr_scheduler_class, &qr_page_manager_class, &qr_executor_class, &qr_heartbeat_class};

/* Fills ret_classes, which has room for all; returns how many. */
static uint32_t classes_choose(const boot_t *boot, bool prompt, const qr_actor_class_t **ret_classes)
{
    const qr_actor_class_t *const *all = prompt ? prompt_classes : serve_classes;
    uint32_t count = prompt ? QR_COUNT(prompt_classes) : QR_COUNT(serve_classes), chosen = 0;
    const uint32_t transfer = QR_COUNT(serve_classes) - 1, chunks = transfer - CHUNK_CLASSES, catalog = chunks - CATALOG_CLASSES;
    for (uint32_t i = 0; i < count; i++) {
        bool durable = boot->given.staging != NULL, wanted = i < catalog || (i < chunks ? boot->given.store != NULL : durable);
        if (prompt || boot->topology || wanted || (i == transfer && boot->given.params.spill_bytes)) ret_classes[chosen++] = all[i];
    }
    return chosen;
}

/* Boots every actor of this node, waits for the end and stops them. `prompt`: generate and bench instead of http. */
static int mesh_run(boot_t *boot, bool prompt, uint32_t log_level, const char *ready)
{
    char buffer[1024];
    qr_text_t error;
    qr_text_init(&error, buffer, sizeof buffer);
    const qr_actor_class_t *classes[QR_COUNT(serve_classes) + QR_COUNT(prompt_classes)];
    if (prompt) boot->given.params.spill_bytes = 0;
    uint32_t class_count = classes_choose(boot, prompt, classes);
    qr_mesh_config_t config = {.topology = boot->topology,
                               .node = boot->node,
                               .classes = classes,
                               .class_count = class_count,
                               .epoch = boot->epoch,
                               .given = &boot->given,
                               .signals = true,
                               .scramble = boot->given.params.scramble != 0,
                               .check = boot->given.params.scramble != 0,
                               .log_level = log_level};
    qr_mesh_t *mesh;
    int status = qr_mesh_new(&config, &mesh, &error);
    if (status == -QR_E_CANCELLED) return 130;
    if (status) return fail(buffer, NULL);
    if (ready) fprintf(stderr, "%s\n", ready);
    status = qr_mesh_run(mesh);
    qr_mesh_destroy(&mesh);
    return status ? 1 : 0;
}

/* ---- options --------------------------------------------------------------------------------------------------------- */

static void print_usage(const char *subcommand, uint32_t audience, const char *extra)
{
    static char buffer[32768];
    qr_text_t text;
    qr_text_init(&text, buffer, sizeof buffer);
    qr_params_help(audience, &text);
    printf("usage: quire %s [options]\n%s%s", subcommand, extra ? extra : "", buffer);
}
/* Reads `--name value`, `--name=value`. own: called first for options of one subcommand; returns how many words it took, 0 = not
 * its own, -1 = bad. 0, -1 for --help, or the exit status. */
typedef int (*own_option_fn)(void *context, int words, char **word);
/* The halves of `--name=value` go to own as two words. */
static int own_read(own_option_fn own, void *context, int words, char **word)
{
    char name[64], *equal = strchr(word[0], '='), *halves[2] = {name, equal ? equal + 1 : NULL};
    if (!equal || (size_t)(equal - word[0]) >= sizeof name) return own(context, words, word);
    memcpy(name, word[0], (size_t)(equal - word[0]));
    name[equal - word[0]] = 0;
    int took = own(context, 2, halves);
    return took == 2 ? 1 : took == 1 ? (fail(name, "takes no value"), -1) : took;
}
static int options_read(int count, char **word, uint32_t audience, qr_params_t *params, own_option_fn own, void *context)
{
    for (int i = 0; i < count;) {
        if (!strcmp(word[i], "--help") || !strcmp(word[i], "-h")) return -1;
        int took = own ? own_read(own, context, count - i, word + i) : 0;
        if (took < 0) return EXIT_USAGE;
        if (took) {
            i += took;
            continue;
        }
        if (strncmp(word[i], "--", 2)) return fail("unexpected argument", word[i]);
        char name[64], message[512];
        const char *equal = strchr(word[i], '=');
        size_t length = equal ? (size_t)(equal - word[i]) - 2 : strlen(word[i]) - 2;
        if (length >= sizeof name) return fail("unknown option", word[i]);
        memcpy(name, word[i] + 2, length);
        name[length] = 0;
        if (!equal && i + 1 >= count) {
            snprintf(message, sizeof message, "%s needs a value", word[i]);
            if (qr_params_set(params, name, "", audience, message, sizeof message) == -QR_E_NOT_FOUND) return fail(message, NULL);
            snprintf(message, sizeof message, "%s needs a value", word[i]);
            return fail(message, NULL);
        }
        if (qr_params_set(params, name, equal ? equal + 1 : word[i + 1], audience, message, sizeof message)) return fail(message, NULL);
        i += equal ? 1 : 2;
    }
    return 0;
}

/* Of an option that one subcommand reads itself. */
static int fail_value(const char *option) { return fprintf(stderr, "quire: %s needs a value\n", option), -1; }

/* What http or the links to other nodes would refuse is refused before the model is loaded. */
static int boot_edge(const boot_t *boot)
{
    char message[1024];
    qr_text_t error;
    if (node_has(boot, QR_ROLE_http) && qr_http_check(&boot->given.params, message, sizeof message)) return fail(message, NULL);
    if (!boot->topology) return 0;
    qr_text_init(&error, message, sizeof message);
    int node = qr_topology_node_find(boot->topology, boot->node, &error);
    bool links = node >= 0 && qr_uplink_needed(boot->topology, (uint32_t)node);
    return links && qr_uplink_check(boot->topology, (uint32_t)node, &error) ? fail(message, NULL) : 0;
}

/* ---- serve, node ----------------------------------------------------------------------------------------------------- */

static int serve_own(void *context, int words, char **word)
{
    (void)words;
    return !strcmp(word[0], "--no-store") ? ((boot_t *)context)->no_store = true, 1 : 0;
}
static int serve_as(const char *name, uint32_t audience, int count, char **word)
{
    static boot_t boot;
    qr_params_init(&boot.given.params);
    int status = options_read(count, word, audience, &boot.given.params, serve_own, &boot);
    if (status == -1) return print_usage(name, audience, "  --no-store          keep nothing on disk: no catalog, no durable chunks\n"), 0;
    if (!status) status = boot_topology(&boot);
    if (!status) status = boot_edge(&boot);
    if (!status) status = boot_store(&boot);
    if (!status) status = boot_model(&boot);
    if (!status) status = boot_staging(&boot);
    if (!status) {
        boot_spill(&boot);
        static char settings[8192], ready[1024];
        qr_text_t text;
        qr_text_init(&text, settings, sizeof settings);
        qr_params_print(&boot.given.params, audience, &text);
        fprintf(stderr, "%s", settings);
        snprintf(ready, sizeof ready, "ready: %s on %s%s%s (loaded in %.1f s%s%s)", boot.given.model->name,
                 boot.device ? qr_device_name(boot.device) : "other nodes", node_has(&boot, QR_ROLE_http) ? ", http://" : "",
                 node_has(&boot, QR_ROLE_http) ? boot.given.params.listen : "", (double)boot.load_us / 1e6,
                 boot.device ? "; moving state beside it: " : "", boot.device ? qr_device_overlap(boot.device) : "");
        status = mesh_run(&boot, false, QR_LEVEL_WARN, ready);
    }
    boot_done(&boot);
    return status;
}
static int serve_main(int count, char **word) { return serve_as("serve --model FILE", QR_AUDIENCE_SERVE, count, word); }
static int node_main(int count, char **word) { return serve_as("node --topology FILE --node NAME --model FILE", QR_AUDIENCE_NODE, count, word); }

/* ---- generate, bench --------------------------------------------------------------------------------------------------- */

typedef struct generate_options {
    qr_prompt_ask_t ask;
    char *text;
    uint32_t *tokens;
    const char *stops[QR_STOPS_MAX];
    bool json, contiguous, chat;
    uint32_t inputs; /* how many of --prompt, --prompt-file, --tokens were given */
} generate_options_t;

static const char generate_help[] =
    "  --prompt TEXT | --prompt-file FILE | --tokens 1,2,3   what to continue (one of them)\n"
    "  --chat              the prompt is a user's message, rendered by the model's chat template\n"
    "  --max-tokens N      most tokens to draw (default: what the context holds, at most 1024)\n"
    "  --temperature T     0: the most likely token each time (default 0)\n"
    "  --top-p P  --min-p P  0 to 1; --top-k K (0: off); --seed S; --stop TEXT (up to 16); --ignore-eos\n"
    "  --contiguous        use the independent contiguous decoder instead of pages (slow; greedy only)\n"
    "  --json              one JSON object: text, prompt_tokens, completion_tokens, finish_reason, cached_tokens, timings\n";

static int read_number(const char *option, const char *word, double least, double most, double *ret_value)
{
    char *end;
    errno = 0;
    double value = strtod(word, &end);
    if (!*word || *end || errno || !(value >= least && value <= most)) {
        fprintf(stderr, "quire: %s: '%.60s' is not a number from %g to %g\n", option, word, least, most);
        return -1;
    }
    *ret_value = value;
    return 0;
}
static int read_whole(const char *option, const char *word, uint32_t least, uint32_t most, uint32_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno || value < least || value > most) {
        fprintf(stderr, "quire: %s: '%.60s' is not a whole number from %u to %u\n", option, word, least, most);
        return -1;
    }
    *ret_value = (uint32_t)value;
    return 0;
}
/* Whole 64-bit numbers do not fit a double. */
static int read_seed(const char *word, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end || errno) return fail("--seed", "needs a whole number from 0 to 18446744073709551615"), -1;
    *ret_value = value;
    return 0;
}
static int read_tokens(const char *word, generate_options_t *o)
{
    size_t most = 1;
    for (const char *c = word; *c; c++) most += *c == ',';
    free(o->tokens);
    o->tokens = malloc(most * sizeof *o->tokens);
    uint32_t count = 0;
    while (o->tokens && *word) {
        char *end;
        errno = 0;
        unsigned long value = strtoul(word, &end, 10);
        if (*word < '0' || *word > '9' || (*end && (*end != ',' || !end[1])) || errno || value > UINT32_MAX) return fail("--tokens", "needs token ids separated by commas"), -1;
        o->tokens[count++] = (uint32_t)value;
        word = *end ? end + 1 : end;
    }
    if (!count) return fail("--tokens", "needs token ids separated by commas"), -1;
    o->ask.kind = QR_INPUT_TOKENS, o->ask.tokens = o->tokens, o->ask.token_count = count;
    return 0;
}
static int read_file(const char *path, generate_options_t *o)
{
    FILE *file = fopen(path, "rb");
    if (!file) return fail(path, strerror(errno)), -1;
    o->text = malloc(QR_TEXT_BYTES_MAX + 1);
    size_t bytes = o->text ? fread(o->text, 1, QR_TEXT_BYTES_MAX + 1, file) : 0;
    bool bad = ferror(file) != 0;
    fclose(file);
    if (bad) return fail(path, "cannot be read"), -1;
    if (bytes > QR_TEXT_BYTES_MAX) return fail(path, "is longer than 1 MiB"), -1;
    o->ask.kind = QR_INPUT_TEXT, o->ask.text = o->text, o->ask.text_bytes = bytes;
    return 0;
}
static int read_stop(const char *word, generate_options_t *o)
{
    if (!*word || strlen(word) > QR_STOP_BYTES_MAX) return fail("--stop", "needs 1 to 256 bytes"), -1;
    if (o->ask.stop_count == QR_STOPS_MAX) return fail("--stop", "may be given 16 times"), -1;
    o->stops[o->ask.stop_count++] = word;
    return 0;
}
static int generate_flag(generate_options_t *o, const char *word)
{
    if (!strcmp(word, "--json")) return o->json = true, 1;
    if (!strcmp(word, "--contiguous")) return o->contiguous = true, 1;
    if (!strcmp(word, "--chat")) return o->chat = true, 1;
    if (!strcmp(word, "--ignore-eos")) return o->ask.ignore_eos = true, 1;
    return 0;
}
static int generate_own(void *context, int words, char **word)
{
    static const char *const valued[] = {"--prompt", "--prompt-file", "--tokens", "--seed", "--max-tokens", "--temperature", "--top-p", "--min-p", "--top-k", "--stop"};
    generate_options_t *o = context;
    double value;
    int took = generate_flag(o, word[0]);
    for (size_t i = 0; words < 2 && i < QR_COUNT(valued); i++)
        if (!strcmp(word[0], valued[i])) return fail_value(word[0]);
    if (!took && words >= 2) {
        const char *name = word[0], *next = word[1];
        took = 2;
        o->inputs += !strcmp(name, "--prompt") || !strcmp(name, "--prompt-file") || !strcmp(name, "--tokens");
        if (!strcmp(name, "--prompt")) o->ask.kind = QR_INPUT_TEXT, o->ask.text = next, o->ask.text_bytes = strlen(next);
        else if (!strcmp(name, "--prompt-file")) took = read_file(next, o) ? -1 : 2;
        else if (!strcmp(name, "--tokens")) took = read_tokens(next, o) ? -1 : 2;
        else if (!strcmp(name, "--seed")) took = read_seed(next, &o->ask.seed) ? -1 : 2, o->ask.seed_given = true;
        else if (!strcmp(name, "--max-tokens")) took = read_whole(name, next, 1, QR_CONTEXT_MAX, &o->ask.max_tokens) ? -1 : 2;
        else if (!strcmp(name, "--temperature")) took = read_number(name, next, 0, 100, &value) ? -1 : (o->ask.temperature = (float)value, 2);
        else if (!strcmp(name, "--top-p")) took = read_number(name, next, 0, 1, &value) ? -1 : (o->ask.top_p = (float)value, 2);
        else if (!strcmp(name, "--min-p")) took = read_number(name, next, 0, 1, &value) ? -1 : (o->ask.min_p = (float)value, 2);
        else if (!strcmp(name, "--top-k")) took = read_whole(name, next, 0, UINT32_MAX, &o->ask.top_k) ? -1 : 2;
        else if (!strcmp(name, "--stop")) took = read_stop(next, o) ? -1 : 2;
        else took = 0;
    }
    return took;
}
/* What no single option can see. 0 or an exit status. */
static int generate_options_check(generate_options_t *o)
{
    if (!o->inputs) return fail("nothing to continue", "add --prompt TEXT, --prompt-file FILE or --tokens 1,2,3");
    if (o->inputs > 1) return fail("more than one thing to continue", "give one of --prompt, --prompt-file and --tokens");
    if (o->chat && o->ask.kind == QR_INPUT_TOKENS) return fail("--chat", "renders a text; it does not go with --tokens");
    if (o->contiguous && o->ask.temperature > 0) return fail("--contiguous", "is greedy only; leave out --temperature");
    if (o->chat) o->ask.kind = QR_INPUT_CHAT;
    return 0;
}
static int generate_tokens_check(const generate_options_t *o, uint32_t vocabulary)
{
    char message[128];
    for (uint32_t i = 0; o->ask.kind == QR_INPUT_TOKENS && i < o->ask.token_count; i++) {
        if (o->tokens[i] < vocabulary) continue;
        snprintf(message, sizeof message, "%u is no token id of this model; they go from 0 to %u", o->tokens[i], vocabulary - 1);
        return fail("--tokens", message);
    }
    return 0;
}

/* The independent decoder, greedy: prints like generate. */
static int generate_contiguous(boot_t *boot, generate_options_t *o)
{
    const qr_model_t *model = boot->given.model;
    const uint32_t context = boot->given.layout.context_tokens, vocabulary = model->vocabulary.count;
    char message[512];
    qr_prompt_result_t result = {.finish = QR_FINISH_LENGTH};
    size_t prompt = 0;
    uint64_t text_capacity = QR_DETOKENIZE_ROOM(0) + 1;
    uint32_t *tokens = malloc((size_t)context * sizeof *tokens);
    float *logits = malloc(model->arch.vocabulary * sizeof *logits);
    if (!tokens || !logits) return fail("not enough memory", NULL);
    int status = 0;
    if (o->ask.kind == QR_INPUT_TOKENS) {
        for (; prompt < o->ask.token_count && prompt < context; prompt++) tokens[prompt] = o->tokens[prompt];
        if (o->ask.token_count > context) status = -QR_E_CONTEXT;
    } else if (o->ask.kind == QR_INPUT_CHAT) {
        status = qr_tokenizer_chat(boot->given.tokenizer, (uint32_t[]){QR_CHAT_USER}, (uint32_t[]){(uint32_t)o->ask.text_bytes}, 1, o->ask.text, tokens,
                                   context, &prompt, message, sizeof message);
    } else {
        if (model->add_bos && model->bos_token != QR_TOKEN_NONE) tokens[prompt++] = model->bos_token;
        status = qr_tokenizer_encode(boot->given.tokenizer, o->ask.text, o->ask.text_bytes, false, tokens, context, &prompt);
    }
    if (status || !prompt) return fail("prompt", status ? qr_error_sentence(status) : "has no tokens");
    qr_oracle_t *oracle;
    if (qr_oracle_new(model, context, &oracle, message, sizeof message)) return fail(message, NULL);
    uint32_t most = (uint32_t)qr_min_u64(o->ask.max_tokens ? o->ask.max_tokens : 1024, context - prompt ? context - prompt : 1);
    qr_detokenize_t text;
    if (qr_detokenize_init(&text, (qr_bytes_t){0}, (qr_u32s_t){0})) qr_unreachable("no stop strings are always valid");
    uint64_t begin = clock_us();
    result.prompt_ids = tokens, result.prompt_id_count = result.prompt_tokens = (uint32_t)prompt;
    result.tokens = calloc(most, sizeof *result.tokens), result.token_us = calloc(most, sizeof *result.token_us);
    if (!result.tokens || !result.token_us) return fail("not enough memory", NULL);
    status = qr_oracle_step(oracle, tokens, (uint32_t)prompt, logits);
    while (!status && result.token_count < most) {
        uint32_t best = 0;
        for (uint32_t t = 1; t < vocabulary; t++)
            if (logits[t] > logits[best]) best = t;
        result.token_us[result.token_count] = clock_us() - begin;
        result.tokens[result.token_count++] = best;
        if (!o->ask.ignore_eos && model->vocabulary.flags[best] & QR_TOKEN_END) {
            result.finish = QR_FINISH_STOP;
            break;
        }
        text_capacity += QR_DETOKENIZE_ROOM(qr_detokenize_bytes(&model->vocabulary, best));
        if (result.token_count < most) status = qr_oracle_step(oracle, &best, 1, logits);
    }
    if (status) return fail("contiguous decoder", qr_error_sentence(status));
    result.text = calloc(1, text_capacity);
    if (!result.text) return fail("not enough memory", NULL);
    uint8_t *out = (uint8_t *)result.text;
    for (uint32_t i = 0; i < result.token_count; i++)
        result.text_bytes += qr_detokenize_token(&text, &model->vocabulary, result.tokens[i], out + result.text_bytes, text_capacity - result.text_bytes);
    result.text_bytes += qr_detokenize_finish(&text, out + result.text_bytes, text_capacity - result.text_bytes);
    result.completion_tokens = result.token_count;
    result.first_us = result.token_us[0], result.ended_us = clock_us() - begin;
    if (o->json) qr_generate_print_json(&result, boot->load_us, stdout);
    else printf("%s\n", result.text);
    qr_oracle_destroy(&oracle);
    qr_prompt_result_done(&result);
    free(logits);
    return 0;
}

static int generate_main(int count, char **word)
{
    static boot_t boot;
    static generate_options_t o;
    o.ask.top_p = 1, o.ask.stops = o.stops;
    qr_params_init(&boot.given.params);
    int status = options_read(count, word, QR_AUDIENCE_GENERATE, &boot.given.params, generate_own, &o);
    if (status == -1) return print_usage("generate --model FILE", QR_AUDIENCE_GENERATE, generate_help), 0;
    if (!status) status = generate_options_check(&o);
    if (!status) status = boot_topology(&boot);
    if (!status) status = boot_model(&boot);
    if (!status) status = generate_tokens_check(&o, boot.given.vocabulary.count);
    if (!status && o.contiguous) status = generate_contiguous(&boot, &o);
    else if (!status) {
        qr_prompt_result_t result = {0};
        uint32_t reason = 0;
        o.ask.keep_prompt = o.json;
        qr_prompt_given_t prompt = {.asks = &o.ask, .results = &result, .ask_count = 1, .stream = o.json ? NULL : stdout, .ret_reason = &reason};
        boot.given.prompt = &prompt;
        status = mesh_run(&boot, true, QR_LEVEL_WARN, NULL);
        if (reason) status = fail("no answer", qr_error_sentence((int)reason));
        else if (!qr_generate_answered(&result)) qr_generate_explain(&result, stderr), status = qr_generate_is_bad_input(&result) ? EXIT_USAGE : 1;
        else if (o.json) qr_generate_print_json(&result, boot.load_us, stdout);
        else printf("\n");
        if (!reason && result.finish == QR_FINISH_ERROR) qr_generate_explain(&result, stderr), status = 1;
        qr_prompt_result_done(&result);
    }
    free(o.text);
    free(o.tokens);
    boot_done(&boot);
    return status;
}

typedef struct bench_options {
    qr_bench_options_t bench;
    bool json;
} bench_options_t;

static const char bench_help[] =
    "  --prefill N  --decode N  --short N  --long N   tokens of the rows (default 512, 64, 16, 2048)\n"
    "  --streams N  --repeats N                       (default 8, 5)\n"
    "  --json                                         one JSON object\n";

static int bench_own(void *context, int words, char **word)
{
    bench_options_t *o = context;
    if (!strcmp(word[0], "--json")) return o->json = true, 1;
    const struct { const char *name; uint32_t *value; } rows[] = {{"--prefill", &o->bench.prefill_tokens}, {"--decode", &o->bench.decode_tokens},
        {"--short", &o->bench.context_short}, {"--long", &o->bench.context_long}, {"--streams", &o->bench.streams}, {"--repeats", &o->bench.repeats}};
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        if (strcmp(word[0], rows[i].name)) continue;
        if (words < 2) return fail_value(word[0]);
        return read_whole(word[0], word[1], 1, QR_CONTEXT_MAX, rows[i].value) ? -1 : 2;
    }
    return 0;
}
static int bench_main(int count, char **word)
{
    static boot_t boot;
    bench_options_t o = {0};
    qr_params_init(&boot.given.params);
    int status = options_read(count, word, QR_AUDIENCE_BENCH, &boot.given.params, bench_own, &o);
    if (status == -1) return print_usage("bench --model FILE", QR_AUDIENCE_BENCH, bench_help), 0;
    if (!status) status = boot_topology(&boot);
    if (!status) status = boot_model(&boot);
    qr_bench_t *bench = NULL;
    if (!status) {
        char message[256];
        if (qr_bench_new(&o.bench, &boot.given, &bench, message, sizeof message)) status = fail("bench", message);
    }
    if (!status) {
        boot.given.prompt = qr_bench_given(bench);
        status = mesh_run(&boot, true, QR_LEVEL_WARN, NULL);
        if (!status && qr_bench_print(bench, o.json, boot.load_us, stdout)) status = 1;
    }
    qr_bench_destroy(&bench);
    boot_done(&boot);
    return status;
}

/* ---- the table ----------------------------------------------------------------------------------------------------------- */

/* The lines go to stdout, for the keys file; the key itself to stderr, for its user. */
static int keys_bearer(const char *tenant)
{
    char bearer[QR_BEARER_BYTES + 1], lines[512], message[256];
    if (qr_keys_make(tenant, bearer, lines, message, sizeof message)) return fail("keys --bearer", message);
    fprintf(stderr, "the key of %s, shown this once: %s\n", tenant, bearer);
    printf("%s", lines);
    return 0;
}
static int keys_main(int count, char **word)
{
    char buffer[512], key[QR_TOPOLOGY_KEY_BYTES];
    qr_text_t error;
    qr_text_init(&error, buffer, sizeof buffer);
    bool help = count == 1 && (!strcmp(word[0], "--help") || !strcmp(word[0], "-h"));
    if (count == 2 && !strcmp(word[0], "--bearer")) return keys_bearer(word[1]);
    if (help || count != 2 || word[0][0] == '-')
        return fprintf(help ? stdout : stderr, "usage: quire keys FOLDER NODE      makes FOLDER/NODE.secret and prints the public key for the topology file\n"
                                               "       quire keys --bearer TENANT  makes an API key: prints the lines for the keys file, and the key on stderr\n"),
               help ? 0 : EXIT_USAGE;
    if (!*word[1] || strlen(word[1]) >= QR_TOPOLOGY_NAME_BYTES || word[1][0] == '-' ||
        strspn(word[1], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != strlen(word[1]))
        return fail("keys", "NODE is the node's name of the topology file: up to 31 letters, digits, '-', '_' and '.'");
    if (qr_topology_keys_make(word[0], word[1], key, &error)) return fail(buffer, NULL);
    printf("public = \"%s\"\n", key);
    return 0;
}

static int inspect_main(int count, char **word)
{
    return qr_chunk_inspect_wants(count, word) ? qr_chunk_inspect_main(count, word) : qr_inspect_main(count + 1, word - 1);
}

/* Opens a model file for its vocabulary alone. */
static int replay_vocabulary(void *context, const char *path, qr_vocabulary_t *ret_vocabulary, char *message, size_t message_bytes)
{
    qr_model_t **model = context;
    qr_model_destroy(model);
    int status = qr_model_open(path, model, message, message_bytes);
    if (!status) *ret_vocabulary = (*model)->vocabulary;
    return status;
}
static int replay_main(int count, char **word)
{
    qr_model_t *model = NULL;
    qr_replay_world_t world = {serve_classes, QR_COUNT(serve_classes), replay_vocabulary, &model};
    int status = qr_replay_main(count, word, &world);
    qr_model_destroy(&model);
    return status;
}

static int simulate_main(int count, char **word) { return qr_simulate_main(count, word, clock_us); }

static int catalog_main(int count, char **word)
{
    char store[QR_PARAM_TEXT_BYTES] = "";
    (void)default_store(store);
    return qr_facts_tool_main(count, word, store);
}

static const struct subcommand {
    const char *name;
    int (*main)(int count, char **word);
    const char *sentence;
} subcommands[] = {
    {"serve", serve_main, "serve a model to OpenAI clients"},
    {"generate", generate_main, "answer one prompt and end"},
    {"catalog", catalog_main, "ask, check or make again a store's catalog"},
    {"continuation", qr_continuation_tool_main, "list, save, fork and drop saved continuations of a running server"},
    {"inspect", inspect_main, "print what a model file or a chunk file holds"},
    {"doctor", qr_doctor_main, "check this machine and say what to do"},
    {"bench", bench_main, "measure prefill, decode and streams through the actors"},
    {"node", node_main, "run one node of a mesh (topology file)"},
    {"simulate", simulate_main, "run seeded worlds of the same actors and look for faults"},
    {"keys", keys_main, "make a node's CURVE keys, or an API key"},
    {"tap", qr_tap_main, "print a recorded run by the message schema"},
    {"replay", replay_main, "run a recorded run's actors again and compare every byte they say"},
};

static void print_subcommands(FILE *out)
{
    fprintf(out, "usage: quire SUBCOMMAND [options]\n");
    for (size_t i = 0; i < QR_COUNT(subcommands); i++) fprintf(out, "  %-12s %s\n", subcommands[i].name, subcommands[i].sentence);
    fprintf(out, "quire SUBCOMMAND --help lists its options. quire --version says what was built.\n");
}
/* Nodes of one mesh need the same protocol and schema. */
static void print_version(void)
{
    printf("quire %s, protocol %u, schema %016" PRIx64 "\n", QR_PROGRAM_VERSION, QR_LINK_PROTOCOL, qr_describe_hash());
}
/* What was printed reached its reader, or the status says it did not. */
static int printed(int status)
{
    bool lost = ferror(stdout) != 0; /* of earlier: its reason is gone */
    if (fflush(stdout) == 0 && !lost) return status;
    fprintf(stderr, "quire: standard output could not be written: %s\n", lost ? "part of it was lost" : strerror(errno));
    return status ? status : 1;
}
int main(int count, char **word)
{
    if (count < 2) return print_subcommands(stderr), EXIT_USAGE;
    if (!strcmp(word[1], "--help") || !strcmp(word[1], "-h") || !strcmp(word[1], "help")) return print_subcommands(stdout), printed(0);
    if (!strcmp(word[1], "--version")) return print_version(), printed(0);
    size_t nearest = 0;
    for (size_t i = 0; i < QR_COUNT(subcommands); i++) {
        if (!strcmp(word[1], subcommands[i].name)) return printed(subcommands[i].main(count - 2, word + 2));
        if (qr_nearest_edits(word[1], subcommands[i].name) < qr_nearest_edits(word[1], subcommands[nearest].name)) nearest = i;
    }
    fprintf(stderr, "quire: no subcommand '%.40s'; did you mean '%s'? quire --help lists them\n", word[1], subcommands[nearest].name);
    return EXIT_USAGE;
}
