/* record.c - see record.h. */
#define _GNU_SOURCE
#include "transport/record.h"

#include "actors/given.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/sha256.h"
#include "base/text.h"
#include "messages/describe.h"
#include "messages/schema.h"
#include "transport/clock.h"
#include "transport/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FLUSH_US = 20000, FILES_MAX = 4096, CONFIG_BYTES = 16384 };

uint64_t qr_record_hash(uint64_t hash, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    hash ^= count * 0x9e3779b97f4a7c15u;
    for (; count >= 8; count -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    uint64_t rest = 0;
    qr_copy(&rest, at, count);
    hash = (hash ^ rest) * 0xc4ceb9fe1a85ec53u;
    return hash ^ hash >> 29;
}

/* ---- sending side --------------------------------------------------------------------------------------------------------- */

int qr_recorder_init(qr_recorder_t *recorder, qr_port_t *port, const qr_given_t *given)
{
    memset(recorder, 0, sizeof *recorder);
    recorder->port = port;
    recorder->schema_hash = qr_describe_hash();
    recorder->given_digest = qr_record_given_digest(given);
    recorder->on_the_way = malloc(sizeof *recorder->on_the_way);
    if (!recorder->on_the_way) return -QR_E_MEMORY;
    atomic_init(recorder->on_the_way, 0);
    return 0;
}

/* Runs in the record thread when it is done with a block. */
static void release(void *bytes, void *hint)
{
    free(bytes);
    atomic_fetch_sub((atomic_int *)hint, 1);
}

/* Hands the current block over. false: it was lost. */
static bool hand_over(qr_recorder_t *recorder)
{
    if (!recorder->block) return true;
    bool fine = atomic_load(recorder->on_the_way) < QR_RECORD_BLOCKS_MAX;
    if (fine) {
        atomic_fetch_add(recorder->on_the_way, 1);
        fine = qr_port_send_block(recorder->port, recorder->port->directory->record, recorder->block, recorder->used, release,
                                  recorder->on_the_way) == 0;
        if (!fine) atomic_fetch_sub(recorder->on_the_way, 1);
    }
    if (!fine) {
        free(recorder->block);
        recorder->lost = true;
    }
    recorder->block = NULL;
    recorder->used = recorder->capacity = 0;
    return fine;
}

/* Room for `bytes` more in the block; a large snapshot gets a block of its own size. */
static uint8_t *room(qr_recorder_t *recorder, size_t bytes, uint64_t now_us)
{
    if (recorder->block && recorder->capacity - recorder->used < bytes) (void)hand_over(recorder);
    if (recorder->lost) return NULL;
    if (!recorder->block) {
        recorder->capacity = qr_max_u64(QR_RECORD_BLOCK_BYTES, bytes);
        recorder->block = malloc(recorder->capacity);
        recorder->used = 0;
        recorder->since_us = now_us;
        if (!recorder->block) {
            recorder->lost = true;
            return NULL;
        }
    }
    uint8_t *at = recorder->block + recorder->used;
    recorder->used += bytes;
    return at;
}

bool qr_recorder_put(qr_recorder_t *recorder, uint64_t address, uint32_t kind, const void *a, size_t a_bytes, const void *b, size_t b_bytes,
                     uint64_t now_us)
{
    qr_record_piece_t piece = {address, kind, (uint32_t)(a_bytes + b_bytes)};
    qr_assert(a_bytes + b_bytes <= UINT32_MAX);
    uint8_t *at = recorder->lost ? NULL : room(recorder, sizeof piece + a_bytes + b_bytes, now_us);
    if (!at) return false;
    memcpy(at, &piece, sizeof piece);
    qr_copy(at + sizeof piece, a, a_bytes);
    qr_copy(at + sizeof piece + a_bytes, b, b_bytes);
    return true;
}

bool qr_recorder_put_entry(qr_recorder_t *recorder, uint64_t address, qr_record_entry_t entry, const void *message)
{
    qr_record_piece_t piece = {address, QR_PIECE_DATA, (uint32_t)(sizeof entry + entry.bytes)};
    uint8_t *at = recorder->lost ? NULL : room(recorder, sizeof piece + piece.bytes, entry.now_us);
    if (!at) return false;
    entry.message_check = qr_record_fold(qr_record_hash(0, message, entry.bytes));
    entry.head_check = qr_record_entry_check(&entry);
    memcpy(at, &piece, sizeof piece);
    memcpy(at + sizeof piece, &entry, sizeof entry);
    qr_copy(at + sizeof piece + sizeof entry, message, entry.bytes);
    return true;
}

uint64_t qr_recorder_turn(qr_recorder_t *recorder, uint64_t now_us, bool all)
{
    if (!recorder->block) return QR_NEVER_US;
    if (!all && now_us < recorder->since_us + FLUSH_US) return recorder->since_us + FLUSH_US;
    (void)hand_over(recorder);
    return QR_NEVER_US;
}

bool qr_recorder_recovered(qr_recorder_t *recorder)
{
    if (atomic_load(recorder->on_the_way) > QR_RECORD_BLOCKS_MAX / 2) return false;
    recorder->lost = false;
    return true;
}

void qr_recorder_done(qr_recorder_t *recorder)
{
    (void)qr_recorder_turn(recorder, 0, true);
    /* The counter lives until the last block has come back; the record thread ends after this one. */
}

uint64_t qr_record_given_digest(const qr_given_t *given)
{
    uint64_t hash = qr_record_hash(0, &given->layout, sizeof given->layout);
    const qr_vocabulary_t *words = &given->vocabulary;
    if (words->count && words->offsets) {
        hash = qr_record_hash(hash, words->offsets, (words->count + 1u) * sizeof *words->offsets);
        if (words->bytes) hash = qr_record_hash(hash, words->bytes, words->offsets[words->count]);
        if (words->flags) hash = qr_record_hash(hash, words->flags, words->count);
    }
    return hash;
}

static void put_line(qr_text_t *text, const char *name, uint64_t value)
{
    qr_text_put(text, name);
    qr_text_put(text, " = ");
    qr_text_put_u64(text, value);
    qr_text_put(text, "\n");
}

/* The layout as lines: what a machine's memory and its model file made of the parameters. */
static void put_layout(qr_text_t *text, const qr_layout_t *layout)
{
    put_line(text, "layout_page_tokens", layout->page_tokens);
    put_line(text, "layout_chunk_tokens", layout->chunk_tokens);
    put_line(text, "layout_context_tokens", layout->context_tokens);
    qr_text_put(text, "layout_fingerprint = ");
    qr_text_put_hex(text, layout->fingerprint.bytes, sizeof layout->fingerprint.bytes);
    qr_text_put(text, "\n");
    for (uint32_t g = 0; g < layout->group_count && g < QR_GROUPS_MAX; g++) {
        const qr_group_t *group = &layout->groups[g];
        put_line(text, "layout_group_window", group->window);
        put_line(text, "layout_group_pages", group->pages);
        put_line(text, "layout_group_set_aside", group->set_aside);
        put_line(text, "layout_group_row_bytes", group->row_bytes);
    }
}

uint64_t qr_record_head_hash(const qr_record_header_t *header, const void *config, const qr_record_snapshot_t *snapshot,
                             const qr_record_partner_t *partners)
{
    qr_record_snapshot_t unchecked = *snapshot;
    unchecked.check = unchecked.own_check = 0;
    uint64_t hash = qr_record_hash(0, header, sizeof *header);
    hash = qr_record_hash(hash, config, header->config_bytes);
    hash = qr_record_hash(hash, &unchecked, sizeof unchecked);
    return qr_record_hash(hash, partners, snapshot->partner_count * sizeof *partners);
}

void qr_record_head_seal(const uint8_t *head, qr_record_snapshot_t *snapshot, const qr_record_partner_t *partners, const uint8_t *runs,
                         size_t run_bytes)
{
    qr_record_header_t header;
    memcpy(&header, head, sizeof header);
    snapshot->run_bytes = run_bytes;
    uint64_t hash = qr_record_head_hash(&header, head + sizeof header, snapshot, partners);
    for (size_t at = 0; at < run_bytes;) {
        qr_record_run_t run;
        memcpy(&run, runs + at, sizeof run);
        hash = qr_record_run_hash(hash, &run, runs + at + sizeof run);
        at += sizeof run + run.bytes;
    }
    snapshot->check = qr_record_fold(hash);
    snapshot->own_check = qr_record_snapshot_check(snapshot);
}

size_t qr_record_head_make(const qr_recorder_t *recorder, uint32_t node, const char *actor, uint64_t address, uint64_t epoch,
                           uint64_t now_us, const qr_given_t *given, bool pure, uint8_t **ret_bytes)
{
    uint8_t *bytes = calloc(1, sizeof(qr_record_header_t) + CONFIG_BYTES);
    if (!bytes) return 0;
    qr_text_t config;
    qr_text_init(&config, (char *)bytes + sizeof(qr_record_header_t), CONFIG_BYTES);
    qr_params_print(&given->params, QR_AUDIENCE_SERVE | QR_AUDIENCE_GENERATE | QR_AUDIENCE_BENCH | QR_AUDIENCE_NODE, &config);
    put_layout(&config, &given->layout);
    qr_record_header_t header = {.version = QR_RECORD_VERSION,
                                 .header_bytes = sizeof header,
                                 .address = address,
                                 .epoch = epoch,
                                 .begun_us = now_us,
                                 .node = node,
                                 .config_bytes = (uint32_t)config.count,
                                 .pure = pure};
    memcpy(header.magic, QR_RECORD_MAGIC, 8);
    header.schema_hash = recorder->schema_hash;
    header.given_digest = recorder->given_digest;
    memcpy(header.actor, actor, qr_min_u64(strlen(actor), sizeof header.actor - 1));
    header.check = qr_record_header_check(&header);
    memcpy(bytes, &header, sizeof header);
    *ret_bytes = bytes;
    return sizeof header + config.count;
}

enum { RUN_GRAIN = 4096 };

static bool is_zero(const uint8_t *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Bytes of the run that begins at `at`: whole grains until the next one that is all zero. */
static uint64_t run_length(const uint8_t *state, uint64_t state_bytes, uint64_t at)
{
    uint64_t end = at;
    while (end < state_bytes && !is_zero(state + end, qr_min_u64(RUN_GRAIN, state_bytes - end)))
        end = qr_min_u64(end + RUN_GRAIN, state_bytes);
    return end - at;
}

size_t qr_record_runs_make(const void *state, uint64_t state_bytes, uint64_t most, uint8_t **ret_runs)
{
    size_t used = 0, capacity = 0;
    uint8_t *runs = NULL;
    for (uint64_t at = 0; at <= state_bytes;) {
        qr_record_run_t run = {at, run_length(state, state_bytes, at)};
        if (run.bytes == 0 && at < state_bytes) {
            at = qr_min_u64(at + RUN_GRAIN, state_bytes);
            continue;
        }
        size_t more = sizeof run + run.bytes;
        if (used + more > capacity) {
            capacity = (used + more) * 2;
            uint8_t *grown = used + more <= most ? realloc(runs, capacity) : NULL;
            if (!grown) {
                free(runs);
                return 0;
            }
            runs = grown;
        }
        memcpy(runs + used, &run, sizeof run);
        qr_copy(runs + used + sizeof run, (const uint8_t *)state + at, run.bytes);
        used += more;
        if (run.bytes == 0) break;
        at += run.bytes;
    }
    *ret_runs = runs;
    return used;
}

/* ---- record thread --------------------------------------------------------------------------------------------------------- */

typedef struct open_segment {
    uint64_t address;
    int file;
    uint32_t index;
} open_segment_t;
typedef struct kept_file {
    char name[96];
    uint64_t bytes;
} kept_file_t;

typedef struct writer {
    const qr_record_config_t *config;
    qr_port_t port;
    int folder;
    uint32_t open_count, kept_count, next;
    open_segment_t open[QR_ACTORS_MAX];
    kept_file_t kept[FILES_MAX]; /* oldest first */
    uint64_t bytes;              /* of all kept files */
    bool failed;                 /* a write failed: recording has ended */
} writer_t;

int qr_record_folder(const char *folder)
{
    struct stat there;
    if (mkdir(folder, 0700) == 0) return 0;
    return errno == EEXIST && stat(folder, &there) == 0 && S_ISDIR(there.st_mode) ? 0 : -QR_E_IO;
}

static int by_age(const void *a, const void *b)
{
    return strcmp(strrchr(((const kept_file_t *)a)->name, '-'), strrchr(((const kept_file_t *)b)->name, '-'));
}

/* Whether a file is a segment of this node: NODE-ROLE.DEVICE.INSTANCE-NNNNNNNN. A node's name may hold '-', a role's does not. */
static bool is_ours(const writer_t *writer, const char *name, uint32_t *ret_number)
{
    size_t count = strlen(name), prefix = strlen(writer->config->node);
    if (count >= sizeof writer->kept[0].name || count < prefix + 11 || strncmp(name, writer->config->node, prefix) != 0) return false;
    const char *number = name + count - 8, *role = name + prefix + 1;
    if (name[prefix] != '-' || number[-1] != '-' || strspn(number, "0123456789") != 8) return false;
    *ret_number = (uint32_t)strtoul(number, NULL, 10);
    return memchr(role, '-', (size_t)(number - 1 - role)) == NULL;
}

/* Whether another recorder writes this segment (C4). A file system without locks says no. */
static bool is_written(const writer_t *writer, const char *name)
{
    int file = openat(writer->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return false;
    bool written = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    (void)close(file);
    return written;
}

/* Finds the next free number, so that an earlier run's segments stay readable beside ours until the bound takes them. -QR_E_IN_USE. */
static int scan(writer_t *writer)
{
    int code = 0;
    DIR *folder = opendir(writer->config->folder);
    if (!folder) return -QR_E_IO;
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct stat stat;
        uint32_t number;
        if (!is_ours(writer, entry->d_name, &number) || writer->kept_count == FILES_MAX ||
            fstatat(writer->folder, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (is_written(writer, entry->d_name)) code = -QR_E_IN_USE;
        kept_file_t *kept = &writer->kept[writer->kept_count++];
        memcpy(kept->name, entry->d_name, strlen(entry->d_name) + 1);
        kept->bytes = (uint64_t)stat.st_size;
        writer->bytes += kept->bytes;
        writer->next = qr_max_u32(writer->next, number + 1);
    }
    (void)closedir(folder);
    qsort(writer->kept, writer->kept_count, sizeof *writer->kept, by_age);
    return code;
}

static open_segment_t *segment_find(writer_t *writer, uint64_t address)
{
    for (uint32_t i = 0; i < writer->open_count; i++)
        if (writer->open[i].address == address) return &writer->open[i];
    return NULL;
}

static void forget(writer_t *writer, uint32_t index)
{
    writer->bytes -= writer->kept[index].bytes;
    writer->kept_count--;
    memmove(&writer->kept[index], &writer->kept[index + 1], (writer->kept_count - index) * sizeof *writer->kept);
    for (uint32_t i = 0; i < writer->open_count; i++)
        if (writer->open[i].index > index) writer->open[i].index--;
}

/* Deletes the oldest closed segments until `more` bytes fit. */
static void make_room(writer_t *writer, uint64_t more)
{
    for (uint32_t i = 0;
         i < writer->kept_count && (writer->bytes + more > writer->config->most_bytes || writer->kept_count == FILES_MAX);) {
        bool open = false;
        for (uint32_t o = 0; o < writer->open_count; o++) open = open || (writer->open[o].file >= 0 && writer->open[o].index == i);
        if (open || QR_MUTANT(313)) {
            i++;
            continue;
        }
        (void)unlinkat(writer->folder, writer->kept[i].name, 0);
        forget(writer, i);
    }
}

/* Said once; the folder may be read as it is. */
static void give_up(writer_t *writer, const char *what)
{
    int reason = errno;
    char line[256];
    if (writer->failed) return;
    writer->failed = true;
    (void)snprintf(line, sizeof line, "cannot %s a segment in '%.100s': %s; recording ends here, serving goes on", what,
                   writer->config->folder, strerror(reason));
    qr_log_line(QR_LEVEL_WARN, QR_LEVEL_WARN, "record", line);
}

static void segment_open(writer_t *writer, uint64_t address)
{
    open_segment_t *segment = segment_find(writer, address);
    if (!segment) {
        if (writer->open_count == QR_ACTORS_MAX) return;
        segment = &writer->open[writer->open_count++];
        *segment = (open_segment_t){address, -1, UINT32_MAX};
    }
    if (segment->file >= 0) (void)close(segment->file);
    segment->file = -1;
    make_room(writer, 0);
    if (writer->kept_count == FILES_MAX) return;
    kept_file_t *kept = &writer->kept[writer->kept_count];
    (void)snprintf(kept->name, sizeof kept->name, "%s-%s.%u.%u-%08u", writer->config->node, qr_role_name(qr_address_role(address)),
                   qr_address_device(address), (unsigned)(address & 0xffff), writer->next++);
    kept->bytes = 0;
    segment->file = openat(writer->folder, kept->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    segment->index = writer->kept_count;
    if (segment->file >= 0) {
        (void)flock(segment->file, LOCK_EX | LOCK_NB);
        writer->kept_count++;
    } else {
        give_up(writer, "make");
    }
}

static void segment_write(writer_t *writer, uint64_t address, const uint8_t *bytes, size_t count)
{
    open_segment_t *segment = segment_find(writer, address);
    if (!segment || segment->file < 0) return;
    while (count > 0) {
        ssize_t put = write(segment->file, bytes, count);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) { /* disk full: this segment ends here, what was written stays readable */
            give_up(writer, "write");
            (void)close(segment->file);
            segment->file = -1;
            return;
        }
        writer->kept[segment->index].bytes += (uint64_t)put;
        writer->bytes += (uint64_t)put;
        bytes += put;
        count -= (size_t)put;
    }
}

/* Consecutive DATA pieces of one actor lie apart only by their heads, so each is written by itself. */
static void write_block(writer_t *writer, const uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at + sizeof(qr_record_piece_t) <= count && !writer->failed;) {
        qr_record_piece_t piece;
        memcpy(&piece, bytes + at, sizeof piece);
        at += sizeof piece;
        qr_assert(piece.bytes <= count - at);
        if (piece.kind == QR_PIECE_OPEN) segment_open(writer, piece.address);
        segment_write(writer, piece.address, bytes + at, piece.bytes);
        at += piece.bytes;
    }
    make_room(writer, 0);
}

/* The close frame comes from another sender than the blocks, so it may overtake them: after it, what is there is still written. */
static void serve(writer_t *writer)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    bool closing = false;
    for (;;) {
        if (zmq_msg_recv(&frame, writer->port.inbox, closing ? ZMQ_DONTWAIT : 0) < 0) {
            if (zmq_errno() == EINTR) continue;
            break;
        }
        QR_TAKE_OVER(&writer->port.directory->marks[writer->port.index]);
        if (zmq_msg_size(&frame) == 0)
            closing = true;
        else
            write_block(writer, zmq_msg_data(&frame), zmq_msg_size(&frame));
    }
    zmq_msg_close(&frame);
}

void qr_record_run(const qr_record_config_t *config, void (*opened)(void *context, int code), void *context)
{
    writer_t *writer = calloc(1, sizeof *writer);
    int code = writer ? qr_port_open(&writer->port, config->directory, config->port) : -QR_E_MEMORY;
    if (writer) writer->folder = -1;
    if (code == 0) {
        writer->config = config;
        writer->folder = open(config->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        code = writer->folder >= 0 ? 0 : -QR_E_IO;
    }
    if (code == 0) code = scan(writer);
    opened(context, code);
    if (code == 0) serve(writer);
    if (!writer) return;
    for (uint32_t i = 0; i < writer->open_count; i++)
        if (writer->open[i].file >= 0) (void)close(writer->open[i].file);
    if (writer->folder >= 0) (void)close(writer->folder);
    qr_port_close(&writer->port);
    free(writer);
}
