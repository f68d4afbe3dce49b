/* replay.c - see replay.h. */
#include "transport/replay.h"

#include "base/error.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/describe.h"
#include "messages/print.h"
#include "messages/schema.h"
#include "transport/pair.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>

enum { LINE_BYTES = 65536, PATH_BYTES = 1024, VALUE_BYTES = 4 * QR_PARAM_TEXT_BYTES + 3, NUMBER_DIGITS = 8 };

typedef struct player {
    const qr_actor_class_t *actor;
    const qr_given_t *given;
    qr_segment_t *segment;
    uint64_t alarm_us;
    uint64_t *state;
    uint8_t *wire, *arena_memory, *columns;
    qr_message_t *messages;
    qr_outbox_t *outbox;
    qr_pairs_t *pairs;
    qr_arena_t arena;
    qr_message_t message;
} player_t;

static bool player_make(player_t *player)
{
    const qr_segment_t *segment = player->segment;
    uint32_t capacity = player->actor->max_out;
    player->state = calloc(1, segment->snapshot.state_bytes + 8);
    player->wire = malloc(QR_MESSAGE_BYTES_MAX);
    player->arena_memory = malloc(QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    player->columns = malloc(QR_OUTBOX_BYTES);
    player->messages = calloc(capacity ? capacity : 1, sizeof *player->messages);
    player->outbox = calloc(1, sizeof *player->outbox);
    player->pairs = calloc(1, sizeof *player->pairs);
    if (!player->state || !player->wire || !player->arena_memory || !player->columns || !player->messages || !player->outbox ||
        !player->pairs)
        return false;
    memcpy(player->state, segment->state, segment->snapshot.state_bytes);
    qr_arena_init(&player->arena, player->arena_memory, QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    qr_outbox_init(player->outbox, player->messages, capacity, player->columns, QR_OUTBOX_BYTES);
    player->alarm_us = segment->snapshot.alarm_us;
    qr_pairs_init(player->pairs, segment->header.address);
    for (uint32_t i = 0; i < segment->snapshot.partner_count; i++) {
        qr_pair_t *pair = qr_pairs_get(player->pairs, segment->partners[i].address);
        if (pair && !QR_MUTANT(314)) pair->sequence_out = segment->partners[i].sequence_out;
    }
    return true;
}

static void player_free(player_t *player)
{
    free(player->state);
    free(player->wire);
    free(player->arena_memory);
    free(player->columns);
    free(player->messages);
    free(player->outbox);
    free(player->pairs);
}

/* ---- what it emits -------------------------------------------------------------------------------------------------------------- */

/* The other node this message answers, 0 if it is no answer or stays in its node. */
static uint32_t answers_node(const player_t *player, const qr_message_t *message)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    uint32_t node = qr_address_node(message->to);
    return row && row->mood == QR_MOOD_ANSWER && node != qr_address_node(player->segment->header.address) ? node : 0;
}

/* The hash of what the actor emitted, stamped and encoded as its host did, without the answers to node `without` (0: with all). */
static uint64_t emitted(player_t *player, uint32_t without)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < player->outbox->count; i++) {
        qr_message_t *message = &player->outbox->messages[i];
        message->from = player->segment->header.address;
        message->epoch = player->segment->header.epoch;
        message->sequence = 0;
        if (without && answers_node(player, message) == without) continue;
        qr_pair_t *pair = qr_pairs_get(player->pairs, message->to);
        message->sequence = pair ? ++pair->sequence_out : 0;
        int64_t bytes = qr_codec_encode(message, player->wire, QR_MESSAGE_BYTES_MAX);
        if (bytes > 0) hash = qr_record_hash(hash, player->wire, (size_t)bytes);
    }
    return qr_record_hash(hash, &player->alarm_us, sizeof player->alarm_us);
}

static void unstamp(player_t *player)
{
    for (uint32_t i = 0; i < player->outbox->count; i++) {
        const qr_message_t *message = &player->outbox->messages[i];
        qr_pair_t *pair = message->sequence ? qr_pairs_get(player->pairs, message->to) : NULL;
        if (pair) pair->sequence_out--;
    }
}

/* Whether the emission hashes to what was recorded, maybe without its answers to one other node (L4). */
static bool equal(player_t *player, uint64_t hash, qr_replay_t *replay)
{
    if (emitted(player, 0) == hash) return true;
    for (uint32_t i = 0; i < player->outbox->count; i++) {
        uint32_t node = answers_node(player, &player->outbox->messages[i]);
        if (!node) continue;
        unstamp(player);
        if (emitted(player, node) == hash && !QR_MUTANT(318)) return replay->unsent++, true;
    }
    unstamp(player);
    return emitted(player, 0) == hash;
}

static void show_message(FILE *show, const char *what, const qr_message_t *message)
{
    static char line[LINE_BYTES];
    qr_text_t text;
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
    fprintf(show, "  %-8s %s%s\n", what, line, text.cut ? " ..." : "");
}

static void show_difference(FILE *show, const player_t *player, const qr_replay_t *replay)
{
    const qr_schema_t *row = qr_schema_find(replay->differs_type);
    fprintf(show, "DIFFERS at entry %" PRIu64 " (%s), time %" PRIu64 ".%06" PRIu64 "; the entries before it are equal\n",
            replay->differs_at, row ? row->name : "?", player->message.now_us / 1000000, player->message.now_us % 1000000);
    show_message(show, "handled", &player->message);
    for (uint32_t i = 0; i < player->outbox->count; i++) show_message(show, "emits", &player->outbox->messages[i]);
    if (player->outbox->count == 0) fprintf(show, "  emits    nothing\n");
    if (player->alarm_us == QR_NEVER_US)
        fprintf(show, "  alarm    none\n");
    else
        fprintf(show, "  alarm    at %" PRIu64 ".%06" PRIu64 "\n", player->alarm_us / 1000000, player->alarm_us % 1000000);
}

/* ---- playing ---------------------------------------------------------------------------------------------------------------------- */

/* Hands one entry to the actor. */
static int play(player_t *player, const qr_segment_entry_t *entry)
{
    qr_arena_reset(&player->arena);
    if (qr_entry_kind(entry->head.kind) == QR_ENTRY_PIECE ||
        qr_codec_decode(entry->message, entry->head.bytes, &player->arena, &player->message) != 0)
        return -QR_E_FORMAT;
    player->message.now_us = entry->head.now_us;
    if (qr_entry_kind(entry->head.kind) == QR_ENTRY_ALARM) player->alarm_us = QR_NEVER_US;
    qr_outbox_reset(player->outbox, player->actor->max_out);
    player->outbox->alarm_us = player->alarm_us;
    player->actor->handle(player->state, player->given, &player->message, player->outbox);
    player->alarm_us = player->outbox->alarm_us;
    return 0;
}

static int play_all(player_t *player, FILE *show, qr_replay_t *replay)
{
    qr_segment_entry_t entry;
    while (replay->differs_at == UINT64_MAX) {
        int code = qr_segment_next(player->segment, &entry);
        if (code == -QR_E_NOT_FOUND) break;
        if (code == 0) code = play(player, &entry);
        if (code) return code;
        if (!equal(player, entry.head.hash, replay)) {
            replay->differs_at = replay->entries;
            replay->differs_type = player->message.type;
            if (show) show_difference(show, player, replay);
        }
        replay->entries++;
        replay->messages += player->outbox->count;
    }
    replay->cut = player->segment->cut;
    return 0;
}

int qr_replay_run(qr_segment_t *segment, const qr_actor_class_t *actor, const qr_given_t *given, FILE *show, qr_replay_t *ret_replay)
{
    const qr_record_header_t *header = &segment->header;
    *ret_replay = (qr_replay_t){.differs_at = UINT64_MAX};
    if (!header->pure || !segment->state || header->schema_hash != qr_describe_hash() ||
        header->given_digest != qr_record_given_digest(given) || segment->snapshot.state_bytes != qr_max_u64(actor->bytes(given), 8))
        return -QR_E_UNSUPPORTED;
    player_t player = {.actor = actor, .given = given, .segment = segment};
    int code = player_make(&player) ? play_all(&player, show, ret_replay) : -QR_E_MEMORY;
    player_free(&player);
    return code;
}

/* ---- settings ----------------------------------------------------------------------------------------------------------------------- */

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* "text" with \xNN inside, as qr_params_print writes it, to its bytes in place. false: it is not. */
static bool unquote(char *value)
{
    size_t count = strlen(value), to = 0;
    if (count < 2 || value[count - 1] != '"') return false;
    for (size_t i = 1; i < count - 1; i++) {
        if (value[i] == '\\') {
            int high = i + 4 < count ? hex_digit(value[i + 2]) : -1, low = high < 0 ? -1 : hex_digit(value[i + 3]);
            if (low < 0 || value[i + 1] != 'x' || high + low == 0) return false;
            value[to++] = (char)(high * 16 + low);
            i += 3;
        } else {
            value[to++] = value[i];
        }
    }
    value[to] = 0;
    return true;
}

static bool number_read(const char *value, uint32_t *ret_number)
{
    uint64_t number = 0;
    if (!*value) return false;
    for (; *value; value++) {
        if (*value < '0' || *value > '9') return false;
        number = number * 10 + (uint64_t)(*value - '0');
        if (number > UINT32_MAX) return false;
    }
    *ret_number = (uint32_t)number;
    return true;
}

static bool fingerprint_read(const char *value, qr_hash_t *ret_hash)
{
    if (strlen(value) != 2 * sizeof ret_hash->bytes) return false;
    for (size_t i = 0; i < sizeof ret_hash->bytes; i++) {
        int high = hex_digit(value[2 * i]), low = hex_digit(value[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        ret_hash->bytes[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

/* A line of the layout; each group begins with its window. */
static bool layout_set(qr_layout_t *layout, const char *name, const char *value)
{
    if (strcmp(name, "layout_fingerprint") == 0) return fingerprint_read(value, &layout->fingerprint);
    if (strcmp(name, "layout_group_window") == 0 && layout->group_count++ == QR_GROUPS_MAX) return false;
    qr_group_t *group = &layout->groups[layout->group_count ? layout->group_count - 1 : 0];
    const struct {
        const char *name;
        uint32_t *to;
    } rows[] = {{"layout_page_tokens", &layout->page_tokens},
                {"layout_chunk_tokens", &layout->chunk_tokens},
                {"layout_context_tokens", &layout->context_tokens},
                {"layout_group_window", &group->window},
                {"layout_group_pages", &group->pages},
                {"layout_group_set_aside", &group->set_aside},
                {"layout_group_row_bytes", &group->row_bytes}};
    for (size_t i = 0; i < QR_COUNT(rows); i++)
        if (strcmp(name, rows[i].name) == 0) return number_read(value, rows[i].to);
    return false;
}

/* One `name = value` line, which is changed. false with a sentence. */
static bool setting(qr_given_t *given, char *line, qr_text_t *error)
{
    enum { ALL = QR_AUDIENCE_SERVE | QR_AUDIENCE_GENERATE | QR_AUDIENCE_BENCH | QR_AUDIENCE_NODE };
    char message[256] = "is not a setting of this version", *equals = strstr(line, " = "), *value = equals ? equals + 3 : NULL;
    if (equals) *equals = 0;
    bool fine = value && (value[0] != '"' || unquote(value));
    if (fine && strncmp(line, "layout_", 7) == 0)
        fine = layout_set(&given->layout, line, value);
    else if (fine)
        fine = qr_params_set(&given->params, line, value, ALL, message, sizeof message) == 0;
    if (fine) return true;
    qr_text_put(error, "its setting ");
    qr_text_put_quoted(error, line, strlen(line), 40);
    qr_text_put(error, ": ");
    qr_text_put(error, message);
    return false;
}

int qr_replay_settings(const char *config, qr_given_t *ret_given, qr_text_t *error)
{
    char line[VALUE_BYTES + 64];
    qr_params_init(&ret_given->params);
    memset(&ret_given->layout, 0, sizeof ret_given->layout);
    while (*config) {
        size_t count = strcspn(config, "\n");
        if (count >= sizeof line) return qr_text_put(error, "one of its settings is too long"), -QR_E_FORMAT;
        memcpy(line, config, count);
        line[count] = 0;
        if (!setting(ret_given, line, error)) return -QR_E_FORMAT;
        config += count + (config[count] == '\n');
    }
    return 0;
}

/* ---- the subcommand ------------------------------------------------------------------------------------------------------------------ */

typedef struct work {
    const qr_replay_world_t *world;
    const char *folder, *model; /* model: --model, NULL: the recorded one */
    qr_given_t given;
    char loaded[QR_PARAM_TEXT_BYTES]; /* the model file whose vocabulary is in `given` */
    uint64_t equal, differ, damaged, io, refused, begun, entries, messages;
} work_t;

static const qr_actor_class_t *class_of(const qr_replay_world_t *world, uint64_t address)
{
    for (uint32_t i = 0; i < world->class_count; i++)
        if (world->classes[i]->role == qr_address_role(address)) return world->classes[i];
    return NULL;
}

/* The recorded `given`. false with a sentence. */
static bool given_make(work_t *work, const qr_segment_t *segment, qr_text_t *error)
{
    if (qr_replay_settings(segment->config, &work->given, error)) return false;
    const char *path = work->model ? work->model : work->given.params.model;
    if (strcmp(path, work->loaded) != 0) {
        char message[512] = "";
        work->loaded[0] = 0;
        memset(&work->given.vocabulary, 0, sizeof work->given.vocabulary);
        if (strlen(path) >= sizeof work->loaded ||
            work->world->vocabulary(work->world->context, path, &work->given.vocabulary, message, sizeof message)) {
            qr_text_put(error, message);
            if (!work->model) qr_text_put(error, "; it was recorded with that model: say where a copy is with --model FILE");
            return false;
        }
        memcpy(work->loaded, path, strlen(path) + 1);
    }
    if (segment->header.given_digest == qr_record_given_digest(&work->given)) return true;
    qr_text_put(error, "it was recorded with another model file than ");
    qr_text_put(error, path[0] ? path : "none");
    qr_text_put(error, "; give that one with --model FILE");
    return false;
}

static void judge(work_t *work, qr_segment_t *segment, const char *name, const qr_actor_class_t *actor)
{
    qr_replay_t replay;
    printf("%s: ", name);
    (void)fflush(stdout); /* an actor that ends this process is named */
    int code = qr_replay_run(segment, actor, &work->given, stdout, &replay);
    work->entries += replay.entries;
    work->messages += replay.messages;
    if (code == -QR_E_FORMAT) {
        printf("damaged at entry %" PRIu64 "; the entries before it are equal\n", replay.entries);
        work->damaged++;
    } else if (code) {
        printf("not replayed: %s\n", code == -QR_E_MEMORY ? qr_error_sentence(code) : "its state has another size than this build's");
        work->refused++;
    } else if (replay.differs_at != UINT64_MAX) {
        work->differ++;
    } else {
        printf("%" PRIu64 " entries, %" PRIu64 " messages, all equal", replay.entries, replay.messages);
        if (replay.unsent) printf(" (%" PRIu64 " answers were for a session that had ended)", replay.unsent);
        printf(replay.cut ? "; it ends in the middle of an entry (still written, or a kill)\n" : "\n");
        work->equal++;
    }
}

static void replay_file(work_t *work, const char *name)
{
    char path[PATH_BYTES], sentence[1024];
    qr_segment_t segment;
    qr_text_t error;
    qr_text_init(&error, sentence, sizeof sentence);
    int bytes = snprintf(path, sizeof path, "%s/%s", work->folder, name);
    int code = bytes > 0 && (size_t)bytes < sizeof path ? qr_segment_open(path, true, &segment) : -QR_E_LIMIT;
    if (code == -QR_E_TRUNCATED) {
        printf("%s: its head is not complete (just begun, or a kill)\n", name);
        work->begun++;
    } else if (code == -QR_E_UNSUPPORTED || code == -QR_E_IO || code == -QR_E_MEMORY || code == -QR_E_LIMIT) {
        printf("%s: not replayed: %s\n", name,
               code == -QR_E_UNSUPPORTED ? "recorded by another version of quire" : qr_error_sentence(code));
        work->refused++;
    } else if (code) {
        printf("%s: damaged: its head is none of a record segment\n", name);
        work->damaged++;
    }
    if (code) return;
    const qr_actor_class_t *actor = class_of(work->world, segment.header.address);
    if (!segment.header.pure) {
        bool io = !actor || actor->owns_world || actor->work;
        printf("%s: not replayed: %s\n", name, io ? "an io actor" : "its state was too large; record with more --record-bytes");
        work->io++;
    } else if (!actor || segment.header.schema_hash != qr_describe_hash() || !given_make(work, &segment, &error)) {
        const char *why = !actor        ? "this program has no such actor"
                          : sentence[0] ? sentence
                                        : "recorded by a build with another message schema";
        printf("%s: not replayed: %s\n", name, why);
        work->refused++;
    } else {
        judge(work, &segment, name, actor);
    }
    qr_segment_close(&segment);
}

static int is_segment(const struct dirent *entry)
{
    const char *dash = strrchr(entry->d_name, '-');
    return dash && dash != entry->d_name && strlen(dash) == NUMBER_DIGITS + 1 && strspn(dash + 1, "0123456789") == NUMBER_DIGITS;
}

static int replay_folder(work_t *work)
{
    struct dirent **names = NULL;
    int count = scandir(work->folder, &names, is_segment, alphasort);
    if (count < 0) return fprintf(stderr, "quire replay: cannot read the folder %s\n", work->folder), 2;
    for (int i = 0; i < count; i++) {
        replay_file(work, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (count == 0)
        return fprintf(stderr, "quire replay: no record segments in %s; record some with quire serve --record %s\n", work->folder,
                       work->folder),
               2;
    printf("sum: %" PRIu64 " equal, %" PRIu64 " differ, %" PRIu64 " damaged, %" PRIu64 " refused, %" PRIu64 " not complete, %" PRIu64
           " not for replay; %" PRIu64 " entries, %" PRIu64 " messages\n",
           work->equal, work->differ, work->damaged, work->refused, work->begun, work->io, work->entries, work->messages);
    if (work->differ || work->damaged) return 1;
    if (work->refused) return 2;
    if (work->equal) return 0;
    return fprintf(stderr, "quire replay: nothing in %s can be replayed\n", work->folder), 2;
}

static const char usage[] = "usage: quire replay DIR [--model FILE]\n"
                            "  feeds what actors received (quire serve --record DIR) to this program's actors and compares what they say\n"
                            "  --model FILE   where the model file is that was recorded with, if not where it was\n";

static int wrong(const char *what, const char *word) { return fprintf(stderr, "quire replay: %s%s\n%s", what, word, usage), 2; }

int qr_replay_main(int count, char **words, const qr_replay_world_t *world)
{
    static work_t work;
    work = (work_t){.world = world};
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return fputs(usage, stdout), 0;
        if (strcmp(word, "--model") == 0 && i + 1 < count)
            work.model = words[++i];
        else if (strncmp(word, "--model=", 8) == 0)
            work.model = word + 8;
        else if (word[0] == '-')
            return wrong("unknown option or missing value: ", word);
        else if (work.folder)
            return wrong("one folder only, not also ", word);
        else
            work.folder = word;
    }
    return work.folder ? replay_folder(&work) : wrong("which folder?", "");
}
