/* moves.h - a world for storage and transfer: the real actors over a tiny model's page pools, staging slots and a store in a temporary
 * folder; every message is encoded, delivered and decoded by pump.h, and the test speaks as their partners. Include after cmocka. */
#ifndef MOVES_H
#define MOVES_H

#include "actors/io/activity.h"
#include "actors/io/storage.h"
#include "actors/io/transfer.h"
#include "model/decoder.h"
#include "store/chunk_files.h"
#include "store/staging.h"
#include "tests/conversations/chunk_conversation.h"
#include "tests/conversations/pump.h"
#include "tests/unit/model_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

enum { ANSWERS_MAX = 96, NODE = 7 };

typedef struct moves_config {
    uint32_t page_tokens, chunk_tokens, pages, layers, window, dim, slots; /* window: of layer 1; 0: one group */
    uint64_t store_bytes, store_files;
    uint64_t spill_bytes;             /* 0: requests are not preempted */
    uint32_t ram_slots;               /* parts kept in memory; 0: none */
    const char *path;                 /* of a store that is there already; NULL: a new one, which destroy removes */
    bool in_memory;                   /* a new one where a sync costs nothing, if there is such a place */
    const qr_actor_class_t *streamer; /* NULL: the test speaks as restore_streamer too */
    bool facts;                       /* there is a facts actor, which the test plays */
    uint32_t writers;                 /* checkpoint writers that storage is told of at its start: of device 1, 2, ... */
} moves_config_t;

/* An answer that has come, its columns copied. */
typedef struct heard {
    uint64_t to;
    qr_message_t message;
    uint8_t chains[QR_CAPTURE_DROPS * 32];
    uint32_t groups[QR_CAPTURE_DROPS];
    uint64_t sizes[QR_CAPTURE_DROPS];
} heard_t;

typedef struct moves {
    moves_config_t config;
    qr_given_t *given;
    qr_device_t *device;
    qr_model_t *model;
    qr_store_folder_t folder;
    qr_activity_t activity;
    char path[64];
    pump_t pump;
    member_t *storage, *transfer, *streamer; /* streamer NULL: the test */
    uint32_t writes_open, heard_count;
    heard_t heard[ANSWERS_MAX], last;
} moves_t;

static inline uint64_t at_role(uint8_t role) { return qr_address(NODE, role == QR_ROLE_storage ? 0 : 1, role, 0); }

/* ---- folders ------------------------------------------------------------------------------------------------------------------------ */

static inline void moves_tree(const char *path, bool remove_all, uint64_t *bytes, uint32_t *files)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char below[1024];
        struct stat s;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if ((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= sizeof below) abort();
        if (lstat(below, &s) == 0 && S_ISDIR(s.st_mode)) {
            moves_tree(below, remove_all, bytes, files);
            if (remove_all) (void)rmdir(below);
        } else {
            *bytes += (uint64_t)s.st_size, *files += 1;
            if (remove_all) (void)unlink(below);
        }
    }
    if (folder) (void)closedir(folder);
}
/* Bytes and number of files in one folder of the store. */
static inline uint64_t moves_disk(const moves_t *m, const char *folder, uint32_t *ret_files)
{
    char path[300];
    uint64_t bytes = 0;
    *ret_files = 0;
    (void)snprintf(path, sizeof path, "%s/%s", m->path, folder);
    moves_tree(path, false, &bytes, ret_files);
    return bytes;
}
static inline void moves_file_path(const moves_t *m, qr_hash_t content, char ret_path[512])
{
    char below[QR_CHUNK_PATH_BYTES];
    qr_chunk_name_t name = {0};
    memcpy(name.id, content.bytes, 32);
    qr_chunk_name_path(&name, below);
    (void)snprintf(ret_path, 512, "%s/%s", m->path, below);
}

/* ---- partners ------------------------------------------------------------------------------------------------------------------------ */

static inline void moves_hear(pump_t *pump, void *context, const qr_message_t *message)
{
    moves_t *m = context;
    (void)pump;
    assert_true(m->heard_count < ANSWERS_MAX);
    heard_t *h = &m->heard[m->heard_count++];
    h->to = message->to, h->message = *message;
    if (message->type == QR_MESSAGE_chunk_written) m->writes_open--;
    if (message->type == QR_MESSAGE_chunk_losses_named) {
        qr_copy(h->chains, message->body.chunk_losses_named.chains.data, message->body.chunk_losses_named.chains.count);
        qr_copy(h->groups, message->body.chunk_losses_named.groups.data, message->body.chunk_losses_named.groups.count * 4);
    }
    if (message->type != QR_MESSAGE_chunk_victims_named) return;
    const qr_chunk_victims_named_t *named = &message->body.chunk_victims_named;
    qr_copy(h->chains, named->chains.data, named->chains.count);
    qr_copy(h->groups, named->groups.data, named->groups.count * 4);
    qr_copy(h->sizes, named->sizes.data, named->sizes.count * 8);
}

/* Takes the first answer of a type to a role out of what was heard. */
static inline bool moves_heard(moves_t *m, uint8_t role, uint16_t type, qr_message_t *ret_answer)
{
    memset(ret_answer, 0, sizeof *ret_answer);
    for (uint32_t i = 0; i < m->heard_count; i++) {
        if (m->heard[i].message.type != type || qr_address_role(m->heard[i].to) != role) continue;
        m->last = m->heard[i];
        memmove(&m->heard[i], &m->heard[i + 1], (--m->heard_count - i) * sizeof m->heard[0]);
        if (type == QR_MESSAGE_chunk_victims_named) {
            m->last.message.body.chunk_victims_named.chains.data = m->last.chains;
            m->last.message.body.chunk_victims_named.groups.data = m->last.groups;
            m->last.message.body.chunk_victims_named.sizes.data = m->last.sizes;
        }
        if (type == QR_MESSAGE_chunk_losses_named) {
            m->last.message.body.chunk_losses_named.chains.data = m->last.chains;
            m->last.message.body.chunk_losses_named.groups.data = m->last.groups;
        }
        *ret_answer = m->last.message;
        return true;
    }
    return false;
}

/* Delivers and works until nothing is left to do; waits for storage's errand while a write is open. */
static inline void moves_rest(moves_t *m)
{
    for (;;) {
        bool busy = pump_deliver(&m->pump);
        while (pump_deliver(&m->pump)) {
        }
        if (m->transfer->state && pump_work(&m->pump, m->transfer) != QR_NEVER_US) busy = true;
        if (pump_work(&m->pump, m->storage) != QR_NEVER_US) busy = true;
        if (m->pump.queued) busy = true;
        if (busy) continue;
        if (!m->writes_open) return;
        struct pollfd waits = {.fd = qr_storage_class.wake_descriptor(m->storage->state), .events = POLLIN};
        assert_int_equal(poll(&waits, 1, 60000), 1);
    }
}

static inline void moves_say(moves_t *m, uint8_t from, uint8_t to, uint16_t type, const void *body)
{
    if (type == QR_MESSAGE_chunk_write) m->writes_open++;
    pump_send(&m->pump, at_role(from), at_role(to), type, body);
}
#define MOVES_SAY(m, from, to, name, ...) moves_say((m), QR_ROLE_##from, QR_ROLE_##to, QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

static inline uint16_t answer_of(uint16_t type)
{
    for (uint16_t t = 0; t < QR_MESSAGE_TYPES_MAX; t++) {
        const qr_schema_t *row = qr_schema_find(t);
        if (row && row->mood == QR_MOOD_ANSWER && row->question == type) return t;
    }
    return 0;
}
static inline bool moves_ask(void *context, uint8_t from, uint8_t to, uint16_t type, const void *body, qr_message_t *ret_answer)
{
    moves_t *m = context;
    moves_say(m, from, to, type, body);
    moves_rest(m);
    return moves_heard(m, from, answer_of(type), ret_answer);
}
static inline bool moves_late(void *context, uint8_t from, uint16_t type, qr_message_t *ret_answer)
{
    moves_t *m = context;
    moves_rest(m);
    return moves_heard(m, from, type, ret_answer);
}
/* MOVES_ASK(m, checkpoint_writer, storage, chunk_find, &answer, ...): the test fails without an answer. */
#define MOVES_ASK(m, from, to, name, answer, ...)                                                                                          \
    assert_true(moves_ask((m), QR_ROLE_##from, QR_ROLE_##to, QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__}, (answer)))

/* ---- rows ------------------------------------------------------------------------------------------------------------------------------
 */

/* Value k of a row of one member: no two rows are alike. Bits, not numbers. */
static inline uint16_t row_value(uint64_t seed, uint32_t layer, uint32_t slab, uint32_t position, uint32_t k)
{
    return (uint16_t)qr_mix_u64(seed << 48 ^ (uint64_t)layer << 40 ^ (uint64_t)slab << 36 ^ (uint64_t)position << 12 ^ k);
}
/* Sets or compares rows through the decoder's own accessor, which knows layers and slabs, not members. */
static inline bool moves_rows(moves_t *m, bool set, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block,
                              const uint64_t *pages, uint64_t seed)
{
    const qr_layout_t *layout = &m->given->layout;
    uint32_t values = qr_decoder_row_bytes(m->given->decoder) / 2;
    for (uint32_t layer = 0; layer < m->config.layers; layer++) {
        if ((m->config.window && layer == 1) != (group == 1)) continue;
        for (uint32_t position = start; position < start + rows; position++)
            for (uint32_t slab = 0; slab < 2; slab++) {
                uint32_t page = qr_handle_index(pages[position / layout->page_tokens - first_block]);
                uint16_t *row = qr_decoder_page_row(m->given->decoder, layer, slab, page, position % layout->page_tokens);
                for (uint32_t k = 0; k < values; k++) {
                    uint16_t value = row_value(seed, layer, slab, position, k);
                    if (set)
                        row[k] = value;
                    else if (row[k] != value)
                        return false;
                }
            }
    }
    return true;
}
static inline void moves_fill(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages,
                              uint64_t seed)
{
    (void)moves_rows(context, true, group, start, rows, first_block, pages, seed);
}
static inline bool moves_holds(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages,
                               uint64_t seed)
{
    return moves_rows(context, false, group, start, rows, first_block, pages, seed);
}

static inline void moves_flip(const moves_t *m, qr_hash_t content, uint64_t offset)
{
    char path[512];
    uint8_t byte;
    moves_file_path(m, content, path);
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    assert_int_equal(pread(file, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(file, &byte, 1, (off_t)offset), 1);
    close(file);
}
static inline void moves_spoil(void *context, qr_hash_t content, bool remove_it)
{
    moves_t *m = context;
    char path[512];
    struct stat s;
    moves_file_path(m, content, path);
    assert_int_equal(stat(path, &s), 0);
    if (remove_it)
        assert_int_equal(unlink(path), 0);
    else
        moves_flip(m, content, (uint64_t)s.st_size - 17);
}

static inline void moves_spoil_memory(void *context, uint32_t slot)
{
    moves_t *m = context;
    qr_staging_slot(m->given->ram, slot)[77] ^= 4;
}

/* ---- the world
 * --------------------------------------------------------------------------------------------------------------------------- */

/* Boots the actors (again): the store is opened anew, what was in memory is gone. */
static inline void moves_boot(moves_t *m, uint64_t seed)
{
    static const uint8_t partners[] = {
        QR_ROLE_scheduler, QR_ROLE_restore_streamer, QR_ROLE_checkpoint_writer, QR_ROLE_page_manager, QR_ROLE_mesh, QR_ROLE_facts};
    uint64_t others[1 + QR_PARTNERS_MAX] = {at_role(QR_ROLE_facts)};
    for (uint32_t i = 0; i < m->config.writers; i++) others[1 + i] = qr_address(NODE, (uint8_t)(1 + i), QR_ROLE_checkpoint_writer, 0);
    qr_message_t answer;
    pump_init(&m->pump, m->given, seed);
    m->storage = pump_add(&m->pump, at_role(QR_ROLE_storage), &qr_storage_class, NULL, NULL);
    m->transfer = pump_add(&m->pump, at_role(QR_ROLE_transfer), &qr_transfer_class, NULL, NULL);
    m->streamer = NULL;
    for (uint32_t i = 0; i < QR_COUNT(partners); i++) {
        const qr_actor_class_t *actor = partners[i] == QR_ROLE_restore_streamer ? m->config.streamer : NULL;
        member_t *member = pump_add(&m->pump, at_role(partners[i]), actor, moves_hear, m);
        if (actor) member->handle = NULL, m->streamer = member;
    }
    MOVES_ASK(m, mesh, storage, start, &answer, .epoch = 1, .partners = {others + !m->config.facts, m->config.writers + m->config.facts});
    if (answer.body.ready.reason) print_error("%.*s\n", (int)answer.body.ready.text.count, (const char *)answer.body.ready.text.data);
    assert_int_equal(answer.body.ready.reason, 0);
    MOVES_ASK(m, mesh, transfer, start, &answer, .epoch = 1);
    assert_int_equal(answer.body.ready.reason, 0);
    if (m->streamer) MOVES_ASK(m, mesh, restore_streamer, start, &answer, .epoch = 1);
}
/* Ends them, as a process does (kill) or as mesh does. */
static inline void moves_halt(moves_t *m, bool kill)
{
    qr_message_t answer;
    if (!kill) {
        MOVES_SAY(m, mesh, transfer, stop, .budget_us = 1);
        MOVES_SAY(m, mesh, storage, stop, .budget_us = 1);
        while (pump_deliver(&m->pump)) {
        }
        assert_true(moves_heard(m, QR_ROLE_mesh, QR_MESSAGE_stopped, &answer) && moves_heard(m, QR_ROLE_mesh, QR_MESSAGE_stopped, &answer));
    }
    qr_storage_class.done(m->storage->state);
    qr_transfer_class.done(m->transfer->state);
    pump_done(&m->pump);
    m->heard_count = m->writes_open = 0;
}

static inline moves_t *moves_new(const moves_config_t *config)
{
    moves_t *m = calloc(1, sizeof *m);
    qr_tiny_config_t tiny;
    qr_decoder_config_t pools = {.page_tokens = config->page_tokens, .rows_max = 8, .lanes_max = 1, .context_tokens = 512, .poison = true};
    char message[512] = "";
    assert_non_null(m);
    m->config = *config;
    qr_tiny_config_init(&tiny);
    tiny.layers = config->layers;
    if (config->dim) tiny.dim = config->dim;
    if (config->window) tiny.window[1] = config->window;
    m->device = device_new(QR_ISA_AUTO, 1);
    model_file_t file = model_file_tiny(&tiny);
    m->model = model_load(file.path, m->device);
    unlink(file.path);
    m->given = calloc(1, sizeof *m->given);
    qr_params_init(&m->given->params);
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) pools.pages[g] = config->pages;
    if (qr_decoder_new(m->model, &pools, &m->given->decoder, message, sizeof message)) fail_msg("%s", message);
    m->given->layout = *qr_decoder_layout(m->given->decoder);
    m->given->layout.chunk_tokens = config->chunk_tokens;
    memset(m->given->layout.fingerprint.bytes, 0xf1, 32);
    m->given->params.store_bytes = config->store_bytes ? config->store_bytes : 1u << 30;
    m->given->params.store_files = config->store_files ? config->store_files : 64;
    m->given->params.spill_bytes = config->spill_bytes;
    m->given->params.over_commit = config->spill_bytes != 0;
    m->given->params.max_lanes = 2;
    m->given->params.max_requests = 4;
    m->given->activity = &m->activity;
    qr_staging_config_t staging = {
        .slots = config->slots ? config->slots : 2, .chunk_tokens = config->chunk_tokens, .group_count = m->given->layout.group_count};
    for (uint32_t g = 0; g < staging.group_count; g++) {
        staging.groups[g].members = qr_decoder_member_count(m->given->decoder, g);
        staging.groups[g].row_bytes = qr_decoder_row_bytes(m->given->decoder);
    }
    assert_int_equal(qr_staging_new(&staging, &m->given->staging), 0);
    staging.kept = true, staging.slots = config->ram_slots;
    if (config->ram_slots) assert_int_equal(qr_staging_new(&staging, &m->given->ram), 0);
    const char *base = config->in_memory && access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
    (void)snprintf(m->path, sizeof m->path, "%s/quire-moves-XXXXXX", base && strlen(base) < 32 ? base : "/tmp");
    if (config->path)
        (void)snprintf(m->path, sizeof m->path, "%s", config->path);
    else
        assert_non_null(mkdtemp(m->path));
    if (qr_store_folder_open(m->path, &m->folder, message, sizeof message)) fail_msg("%s", message);
    m->given->store = &m->folder;
    moves_boot(m, 1);
    return m;
}
static inline void moves_destroy(moves_t *m)
{
    uint64_t bytes = 0;
    uint32_t files = 0;
    moves_halt(m, false);
    qr_store_folder_close(&m->folder);
    if (!m->config.path) moves_tree(m->path, true, &bytes, &files);
    if (!m->config.path) (void)rmdir(m->path);
    qr_staging_destroy(&m->given->staging);
    qr_staging_destroy(&m->given->ram);
    qr_decoder_destroy(&m->given->decoder);
    qr_model_destroy(&m->model);
    qr_device_destroy(&m->device);
    free(m->given);
    free(m);
}
static inline void moves_as_world(moves_t *m, chunk_world_t *ret_world)
{
    *ret_world = (chunk_world_t){.context = m,
                                 .given = m->given,
                                 .ask = moves_ask,
                                 .late = moves_late,
                                 .fill = moves_fill,
                                 .holds = moves_holds,
                                 .spoil = moves_spoil,
                                 .spoil_memory = moves_spoil_memory};
    for (uint32_t g = 0; g < m->given->layout.group_count; g++)
        ret_world->payload_chunk_bytes[g] = (uint32_t)(qr_round_up(4096 + 4ull * m->config.chunk_tokens, 4096) +
                                                       qr_staging_payload_bytes(m->given->staging, g, m->config.chunk_tokens));
}

#endif
