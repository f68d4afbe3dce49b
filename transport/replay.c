/* replay.c - see replay.h. */
#include "transport/replay.h"

#include "base/error.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/describe.h"
#include "messages/schema.h"
#include "transport/pair.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

/* The hash of what the actor emits, stamped and encoded as its host did. An answer whose session had ended was not sent then
 * (host.c): it took no sequence number and is not in the hash; replay cannot know and reports a difference there. */
static uint64_t emitted(player_t *player)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < player->outbox->count; i++) {
        qr_message_t *message = &player->outbox->messages[i];
        qr_pair_t *pair = qr_pairs_get(player->pairs, message->to);
        message->from = player->segment->header.address;
        message->epoch = player->segment->header.epoch;
        message->sequence = pair ? ++pair->sequence_out : 0;
        int64_t bytes = qr_codec_encode(message, player->wire, QR_MESSAGE_BYTES_MAX);
        if (bytes > 0) hash = qr_record_hash(hash, player->wire, (size_t)bytes);
    }
    return qr_record_hash(hash, &player->alarm_us, sizeof player->alarm_us);
}

static int play(player_t *player, const qr_segment_entry_t *entry, uint64_t *ret_hash)
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
    *ret_hash = emitted(player);
    return 0;
}

static int play_all(player_t *player, qr_replay_t *replay)
{
    qr_segment_entry_t entry;
    for (;;) {
        int code = qr_segment_next(player->segment, &entry);
        if (code == -QR_E_NOT_FOUND) return 0;
        uint64_t hash = 0;
        if (code == 0) code = play(player, &entry, &hash);
        if (code) return code;
        if (hash != entry.hash && replay->differs_at == UINT64_MAX) {
            replay->differs_at = replay->entries;
            replay->differs_type = player->message.type;
        }
        replay->entries++;
        replay->messages += player->outbox->count;
    }
}

int qr_replay_run(qr_segment_t *segment, const qr_actor_class_t *actor, const qr_given_t *given, qr_replay_t *ret_replay)
{
    const qr_record_header_t *header = &segment->header;
    if (!header->pure || !segment->state || header->schema_hash != qr_describe_hash() ||
        header->given_digest != qr_record_given_digest(given) || segment->snapshot.state_bytes != qr_max_u64(actor->bytes(given), 8))
        return -QR_E_UNSUPPORTED;
    qr_replay_t replay = {.differs_at = UINT64_MAX};
    player_t player = {.actor = actor, .given = given, .segment = segment};
    int code = player_make(&player) ? play_all(&player, &replay) : -QR_E_MEMORY;
    player_free(&player);
    if (code == 0) *ret_replay = replay;
    return code;
}

static const qr_actor_class_t *class_of(const qr_actor_class_t *const *classes, uint32_t count, uint64_t address)
{
    for (uint32_t i = 0; i < count; i++)
        if (classes[i]->role == qr_address_role(address) && !classes[i]->owns_world && !classes[i]->work) return classes[i];
    return NULL;
}

/* One segment, one line. false: it differs or cannot be read. */
static bool replay_file(const char *path, const char *name, const qr_actor_class_t *const *classes, uint32_t count, const qr_given_t *given)
{
    qr_segment_t segment;
    qr_replay_t replay;
    int code = qr_segment_open(path, true, &segment);
    if (code) return printf("%s: %s\n", name, qr_error_sentence(code)), code == -QR_E_TRUNCATED;
    const qr_actor_class_t *actor = class_of(classes, count, segment.header.address);
    bool fine = true;
    if (!actor || !segment.header.pure) {
        printf("%s: not for replay\n", name);
    } else if ((code = qr_replay_run(&segment, actor, given, &replay)) != 0) {
        printf("%s: %s\n", name, qr_error_sentence(code));
        fine = false;
    } else if (replay.differs_at != UINT64_MAX) {
        const qr_schema_t *row = qr_schema_find(replay.differs_type);
        printf("%s: entry %" PRIu64 " (%s) emits something else than it did\n", name, replay.differs_at, row ? row->name : "?");
        fine = false;
    } else {
        printf("%s: %" PRIu64 " entries, %" PRIu64 " messages, all equal\n", name, replay.entries, replay.messages);
    }
    qr_segment_close(&segment);
    return fine;
}

int qr_replay_folder(const char *folder, const qr_actor_class_t *const *classes, uint32_t class_count, const qr_given_t *given)
{
    struct dirent **names = NULL;
    int count = scandir(folder, &names, NULL, alphasort), status = 2;
    for (int i = 0; i < count; i++) {
        char path[1024];
        const char *name = names[i]->d_name, *dash = strrchr(name, '-');
        int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
        if (dash && strlen(dash) == 9 && bytes > 0 && (size_t)bytes < sizeof path) {
            bool fine = replay_file(path, name, classes, class_count, given);
            status = fine ? (status == 2 ? 0 : status) : 1;
        }
        free(names[i]);
    }
    free(names);
    if (status == 2) fprintf(stderr, "quire replay: no record segments in %s\n", folder);
    return status;
}
