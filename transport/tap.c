/* tap.c - see tap.h. Entries of all actors of a folder are merged by time (they share the clock of their process). */
#define _GNU_SOURCE
#include "transport/tap.h"

#include "base/error.h"
#include "base/text.h"
#include "messages/codec.h"
#include "messages/print.h"
#include "messages/schema.h"
#include "transport/segment.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { STREAMS_MAX = 256, FILES_MAX = 8192, NAME_BYTES = 96, LINE_BYTES = 65536, FOLLOW_US = 100000, KINDS_MAX = 512 };

/* All segments of one actor, oldest first. */
typedef struct stream {
    char name[NAME_BYTES]; /* NODE-ACTOR */
    char file[NAME_BYTES]; /* the one that is open */
    bool open, have;
    qr_segment_t segment;
    qr_segment_entry_t entry; /* valid if `have` */
} stream_t;

/* One kind of conversation, counted for the summary. */
typedef struct talk {
    uint8_t from, to;
    uint16_t type;
    uint64_t count, bytes;
} talk_t;

typedef struct tap {
    const char *folder, *type;
    uint8_t role;   /* of the actor that is asked for; 0 = every one */
    uint32_t place; /* and its device << 16 | instance, if by_place */
    uint64_t request;
    bool by_place, by_request, follow, summary;
    uint32_t stream_count, file_count, talk_count;
    stream_t streams[STREAMS_MAX];
    char files[FILES_MAX][NAME_BYTES]; /* sorted */
    talk_t talks[KINDS_MAX];
    uint64_t entries, alarms, pieces, unreadable;
    qr_arena_t arena;
    qr_message_t message;
    char line[LINE_BYTES];
} tap_t;

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* Length of NODE-ACTOR in NODE-ACTOR-N, 0 if the name is none of ours. */
static size_t stem_of(const char *name)
{
    const char *dash = strrchr(name, '-');
    if (!dash || dash == name || strlen(dash) != 9 || strlen(name) >= NAME_BYTES) return 0;
    return strspn(dash + 1, "0123456789") == 8 ? (size_t)(dash - name) : 0;
}

static bool scan(tap_t *tap)
{
    DIR *folder = opendir(tap->folder);
    if (!folder) return false;
    tap->file_count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (stem_of(entry->d_name) && tap->file_count < FILES_MAX)
            memcpy(tap->files[tap->file_count++], entry->d_name, strlen(entry->d_name) + 1);
    (void)closedir(folder);
    qsort(tap->files, tap->file_count, NAME_BYTES, by_name);
    for (uint32_t f = 0; f < tap->file_count; f++) {
        size_t stem = stem_of(tap->files[f]);
        bool known = false;
        for (uint32_t s = 0; s < tap->stream_count; s++)
            known = known || (strlen(tap->streams[s].name) == stem && memcmp(tap->streams[s].name, tap->files[f], stem) == 0);
        if (known || tap->stream_count == STREAMS_MAX) continue;
        memcpy(tap->streams[tap->stream_count].name, tap->files[f], stem);
        tap->streams[tap->stream_count++].name[stem] = 0;
    }
    return true;
}

/* Opens the stream's first file whose name is after `after` ("" = the first). */
static bool open_after(tap_t *tap, stream_t *stream, const char *after)
{
    size_t stem = strlen(stream->name);
    for (uint32_t f = 0; f < tap->file_count; f++) {
        if (stem_of(tap->files[f]) != stem || memcmp(tap->files[f], stream->name, stem) != 0 || strcmp(tap->files[f], after) <= 0) continue;
        char path[1024];
        qr_segment_t segment;
        (void)snprintf(path, sizeof path, "%s/%s", tap->folder, tap->files[f]);
        int code = qr_segment_open(path, false, &segment);
        if (code == -QR_E_TRUNCATED && tap->follow) return false;
        if (code) { /* one that has just begun has no head yet, one that has just been deleted is none */
            tap->unreadable += code != -QR_E_TRUNCATED && access(path, F_OK) == 0;
            continue;
        }
        if (stream->open) qr_segment_close(&stream->segment);
        stream->segment = segment;
        memcpy(stream->file, tap->files[f], NAME_BYTES);
        return stream->open = true;
    }
    return false;
}

/* Reads the stream's next entry into `entry`, going on to the next file at the end of one. */
static bool advance(tap_t *tap, stream_t *stream)
{
    if (stream->have) return true;
    if (!stream->open && !open_after(tap, stream, "")) return false;
    for (;;) {
        int code = qr_segment_next(&stream->segment, &stream->entry);
        if (code == 0) return stream->have = true;
        if (code == -QR_E_FORMAT) tap->unreadable++;
        char after[NAME_BYTES];
        memcpy(after, stream->file, NAME_BYTES);
        if (!open_after(tap, stream, after)) return false;
    }
}

/* ---- filters ------------------------------------------------------------------------------------------------------------------ */

static bool column_has(qr_column_t column, uint64_t value)
{
    const uint64_t *data = column.data;
    for (uint64_t i = 0; i < column.count; i++)
        if (data[i] == value) return true;
    return false;
}

/* Whether any field that names a request holds this number: request_id, key, request_ids, keys. */
static bool names_request(const qr_message_t *message, uint64_t request)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    for (uint32_t i = 0; row && i < row->field_count; i++) {
        const qr_field_t *field = &row->fields[i];
        bool one = strcmp(field->name, "request_id") == 0 || strcmp(field->name, "key") == 0;
        bool many = strcmp(field->name, "request_ids") == 0 || strcmp(field->name, "keys") == 0;
        if (one && qr_number_get(&message->body, field) == request) return true;
        if (many && column_has(qr_column_get(&message->body, field), request)) return true;
    }
    return false;
}

static bool wanted(const tap_t *tap, const stream_t *stream, const qr_message_t *message)
{
    uint64_t address = stream->segment.header.address;
    if (tap->role && qr_address_role(address) != tap->role) return false;
    if (tap->by_place && ((uint32_t)qr_address_device(address) << 16 | (uint32_t)(address & 0xffff)) != tap->place) return false;
    const qr_schema_t *row = qr_schema_find(message->type);
    if (tap->type && (!row || strcmp(row->name, tap->type) != 0)) return false;
    return !tap->by_request || names_request(message, tap->request);
}

/* ---- output --------------------------------------------------------------------------------------------------------------------- */

static void count(tap_t *tap, const qr_message_t *message, uint64_t bytes)
{
    uint8_t from = qr_address_role(message->from), to = qr_address_role(message->to);
    for (uint32_t i = 0; i < tap->talk_count; i++) {
        talk_t *talk = &tap->talks[i];
        if (talk->from != from || talk->to != to || talk->type != message->type) continue;
        talk->count++;
        talk->bytes += bytes;
        return;
    }
    if (tap->talk_count < KINDS_MAX) tap->talks[tap->talk_count++] = (talk_t){from, to, message->type, 1, bytes};
}

static void show(tap_t *tap, stream_t *stream)
{
    const qr_segment_entry_t *entry = &stream->entry;
    qr_arena_reset(&tap->arena);
    tap->entries++;
    if (qr_entry_kind(entry->head.kind) == QR_ENTRY_PIECE) tap->pieces++;
    if (entry->head.bytes == 0) return;
    if (qr_codec_decode(entry->message, entry->head.bytes, &tap->arena, &tap->message) != 0) {
        tap->unreadable++;
        return;
    }
    if (!wanted(tap, stream, &tap->message)) return;
    if (qr_entry_kind(entry->head.kind) == QR_ENTRY_ALARM)
        tap->alarms++;
    else
        count(tap, &tap->message, entry->head.bytes);
    if (tap->summary) return;
    qr_text_t text;
    qr_text_init(&text, tap->line, sizeof tap->line);
    qr_print_message(&text, &tap->message);
    printf("[%" PRIu64 ".%06" PRIu64 "] %s\n", entry->head.now_us / 1000000, entry->head.now_us % 1000000, tap->line);
}

static int by_talk(const void *a, const void *b)
{
    const talk_t *x = a, *y = b;
    return x->type != y->type ? (int)x->type - (int)y->type : x->from != y->from ? x->from - y->from : x->to - y->to;
}

static void show_summary(tap_t *tap)
{
    qsort(tap->talks, tap->talk_count, sizeof *tap->talks, by_talk);
    uint64_t batches = 0;
    for (uint32_t i = 0; i < tap->talk_count; i++)
        if (tap->talks[i].type == QR_MESSAGE_batch_done || tap->talks[i].type == QR_MESSAGE_batch_failed) batches += tap->talks[i].count;
    printf("%10s %12s %9s  %-16s %-16s %s\n", "messages", "bytes", "per batch", "from", "to", "type");
    for (uint32_t i = 0; i < tap->talk_count; i++) {
        const talk_t *talk = &tap->talks[i];
        const qr_schema_t *row = qr_schema_find(talk->type);
        printf("%10" PRIu64 " %12" PRIu64 " %9.3f  %-16s %-16s %s\n", talk->count, talk->bytes,
               batches ? (double)talk->count / (double)batches : 0.0, qr_role_name(talk->from), qr_role_name(talk->to),
               row ? row->name : "?");
    }
    printf("entries %" PRIu64 ", batches %" PRIu64 ", alarms %" PRIu64 ", pieces that spoke %" PRIu64 ", unreadable %" PRIu64 "\n",
           tap->entries, batches, tap->alarms, tap->pieces, tap->unreadable);
}

/* Order of time, and inside a turn of one host the order it handled them in. */
static bool comes_before(const qr_record_entry_t *a, const qr_record_entry_t *b)
{
    return a->now_us != b->now_us ? a->now_us < b->now_us : qr_entry_place(a->kind) < qr_entry_place(b->kind);
}

/* Shows everything that is there, in order of time. */
static void show_all(tap_t *tap)
{
    for (;;) {
        stream_t *first = NULL;
        for (uint32_t s = 0; s < tap->stream_count; s++) {
            stream_t *stream = &tap->streams[s];
            if (advance(tap, stream) && (!first || comes_before(&stream->entry.head, &first->entry.head))) first = stream;
        }
        if (!first) return;
        show(tap, first);
        first->have = false;
    }
}

/* ---- command line ------------------------------------------------------------------------------------------------------------------ */

static const char usage[] =
    "usage: quire tap DIR [--actor NAME] [--type MESSAGE] [--request N] [--summary] [--follow]\n"
    "  --actor NAME     only what this actor received: a role (gateway), or one of several (worker.1.0: role, device, instance)\n"
    "  --type MESSAGE   only messages of this type\n"
    "  --request N      only messages that name this request_id or key\n"
    "  --summary        counts instead of messages\n"
    "  --follow         goes on as the recording does\n";

static int wrong(const char *what, const char *word)
{
    fprintf(stderr, "quire tap: %s%s\n%s", what, word, usage);
    return 2;
}

/* A number up to `most`, in digits alone. */
static bool number_read(const char *word, uint64_t most, uint64_t *ret_number)
{
    uint64_t number = 0;
    if (!*word) return false;
    for (; *word; word++) {
        if (*word < '0' || *word > '9') return false;
        uint64_t digit = (uint64_t)(*word - '0');
        if (number > (most - digit) / 10) return false;
        number = number * 10 + digit;
    }
    *ret_number = number;
    return true;
}

/* ROLE, or ROLE.DEVICE.INSTANCE as segment files are named. */
static bool actor_read(tap_t *tap, const char *word)
{
    char name[32], *end;
    uint64_t device, instance;
    if (strlen(word) >= sizeof name) return false;
    memcpy(name, word, strlen(word) + 1);
    char *dot = strchr(name, '.');
    if (dot) {
        *dot = 0;
        end = strchr(dot + 1, '.');
        if (!end) return false;
        *end = 0;
        if (!number_read(dot + 1, UINT8_MAX, &device) || !number_read(end + 1, UINT16_MAX, &instance)) return false;
        tap->by_place = true;
        tap->place = (uint32_t)(device << 16 | instance);
    }
    return (tap->role = qr_role_find(name)) != 0;
}

static int no_actor(const char *word)
{
    fprintf(stderr, "quire tap: there is no actor '%.60s'; roles:", word);
    for (uint8_t role = 1; role < QR_ROLES_MAX; role++)
        if (qr_role_find(qr_role_name(role)) == role) fprintf(stderr, " %s", qr_role_name(role));
    fprintf(stderr, "; one of several: ROLE.DEVICE.INSTANCE, as in worker.1.0\n");
    return 2;
}

static int no_message(const char *word)
{
    fprintf(stderr, "quire tap: there is no message '%.60s'; messages:", word);
    for (uint16_t type = 1; type < QR_MESSAGE_TYPES_MAX; type++)
        if (qr_schema_find(type)) fprintf(stderr, " %s", qr_schema_find(type)->name);
    fprintf(stderr, "\n");
    return 2;
}

static int parse(tap_t *tap, int count, char **words)
{
    const char *actor = NULL;
    for (int i = 0; i < count; i++) {
        const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(word, "--follow") == 0)
            tap->follow = true;
        else if (strcmp(word, "--summary") == 0)
            tap->summary = true;
        else if (strcmp(word, "--actor") == 0 && value && ++i)
            actor = value;
        else if (strcmp(word, "--type") == 0 && value && ++i)
            tap->type = value;
        else if (strcmp(word, "--request") == 0 && value && ++i) {
            tap->by_request = true;
            if (!number_read(value, UINT64_MAX, &tap->request))
                return wrong("--request is a number from 0 to 18446744073709551615, not ", value);
        } else if (word[0] == '-')
            return wrong("unknown option or missing value: ", word);
        else if (!tap->folder)
            tap->folder = word;
        else
            return wrong("one folder only, not also ", word);
    }
    if (!tap->folder) return wrong("which folder?", "");
    if (actor && !actor_read(tap, actor)) return no_actor(actor);
    if (tap->type && !qr_schema_find_name(tap->type)) return no_message(tap->type);
    return 0;
}

int qr_tap_main(int count, char **words)
{
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) return fputs(usage, stdout), 0;
    tap_t *tap = calloc(1, sizeof *tap);
    void *arena = malloc(QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
    int status = tap && arena ? parse(tap, count, words) : wrong("not enough memory", "");
    if (status == 0) {
        qr_arena_init(&tap->arena, arena, QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX));
        if (!scan(tap))
            status = wrong("cannot read the folder ", tap->folder);
        else if (tap->stream_count == 0 && !tap->follow)
            status = wrong("no record segments in ", tap->folder);
    }
    if (status == 0) show_all(tap);
    while (status == 0 && tap->follow) {
        (void)fflush(stdout);
        if (ferror(stdout)) break;
        (void)usleep(FOLLOW_US);
        (void)scan(tap);
        show_all(tap);
    }
    if (status == 0 && tap->summary) show_summary(tap);
    if (status == 0 && tap->unreadable) {
        (void)fflush(stdout);
        fprintf(stderr, "quire tap: %" PRIu64 " segments or messages in %s cannot be read; quire replay names the damaged ones\n",
                tap->unreadable, tap->folder);
        status = 1;
    }
    for (uint32_t s = 0; tap && s < tap->stream_count; s++)
        if (tap->streams[s].open) qr_segment_close(&tap->streams[s].segment);
    free(arena);
    free(tap);
    return status;
}
