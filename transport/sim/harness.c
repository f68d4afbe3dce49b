/* harness.c - see harness.h. */
#include "transport/sim/harness.h"

#include "actors/note.h"
#include "base/arena.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/print.h"
#include "messages/schema.h"

#include <stdlib.h>

enum { BEGIN_US = 1000000, LINE_BYTES = 4096, STATE_BYTES = 1 << 16 };
enum { HEARD_BYTES = QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX) };

struct qr_harness {
    const qr_actor_class_t *actor;
    const qr_given_t *given;
    FILE *out;
    uint64_t address, now_us, alarm_us;
    qr_verdict_t fault;
    void *state;
    qr_pairs_t *pairs;
    qr_outbox_t *outbox;
    qr_message_t *messages; /* of the outbox */
    uint8_t *columns, *wire;
    qr_arena_t heard_arena, said_arena;
    qr_message_t heard;
    uint32_t said_count;
    qr_message_t *said; /* [QR_HARNESS_SAID_MAX] */
};

void qr_harness_given(qr_given_t *given)
{
    memset(given, 0, sizeof *given);
    qr_params_init(&given->params);
    given->params.page_tokens = 4;
    given->params.max_lanes = 4;
    given->params.max_requests = 8;
    given->layout.group_count = 1;
    given->layout.page_tokens = 4;
    given->layout.chunk_tokens = 8;
    given->layout.context_tokens = 64;
    given->layout.groups[0] = (qr_group_t){.pages = 8, .row_bytes = 64};
}

qr_harness_t *qr_harness_new(const qr_actor_class_t *actor, const qr_given_t *given, uint64_t address, FILE *out)
{
    qr_assert(!actor->work && !actor->owns_world);
    qr_harness_t *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    *h = (qr_harness_t){.actor = actor, .given = given, .out = out, .address = address, .now_us = BEGIN_US, .alarm_us = QR_NEVER_US};
    h->state = calloc(1, qr_max_u64(actor->bytes(given), 8));
    h->pairs = calloc(1, sizeof *h->pairs);
    h->outbox = calloc(1, sizeof *h->outbox);
    h->messages = calloc(qr_max_u32(actor->max_out, 1), sizeof *h->messages);
    h->columns = malloc(QR_OUTBOX_BYTES);
    h->wire = malloc(QR_MESSAGE_BYTES_MAX);
    h->said = calloc(QR_HARNESS_SAID_MAX, sizeof *h->said);
    void *heard = malloc(HEARD_BYTES), *said = malloc(QR_HARNESS_SAID_BYTES);
    qr_arena_init(&h->heard_arena, heard, HEARD_BYTES);
    qr_arena_init(&h->said_arena, said, QR_HARNESS_SAID_BYTES);
    if (!h->state || !h->pairs || !h->outbox || !h->messages || !h->columns || !h->wire || !h->said || !heard || !said)
        return qr_harness_destroy(&h), NULL;
    qr_outbox_init(h->outbox, h->messages, actor->max_out, h->columns, QR_OUTBOX_BYTES);
    qr_pairs_init(h->pairs, address);
    actor->init(h->state, given, address);
    return h;
}

void qr_harness_destroy(qr_harness_t **harness)
{
    qr_harness_t *h = *harness;
    *harness = NULL;
    if (!h) return;
    free(h->state);
    free(h->pairs);
    free(h->outbox);
    free(h->messages);
    free(h->columns);
    free(h->wire);
    free(h->said);
    free(h->heard_arena.memory);
    free(h->said_arena.memory);
    free(h);
}

/* ---- showing ---------------------------------------------------------------------------------------------------------------- */

static void show(qr_harness_t *h, const char *arrow, const qr_message_t *message, const char *remark)
{
    if (!h->out) return;
    char line[LINE_BYTES];
    qr_text_t text;
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
    (void)fprintf(h->out, "%3llu.%06llu %s %s%s%s\n", (unsigned long long)(h->now_us / 1000000), (unsigned long long)(h->now_us % 1000000),
                  arrow, line, remark ? "  !! " : "", remark ? remark : "");
}

static const char *note_name(uint32_t code)
{
    static const char *const names[QR_NOTES_CODES_MAX] = {
#define NOTE(name, number, sentence) [number] = #name,
#include "actors/note.def"
    };
    return code < QR_NOTES_CODES_MAX && names[code] ? names[code] : "?";
}

static void show_note(qr_harness_t *h, const qr_note_t *note)
{
    if (!h->out) return;
    (void)fprintf(h->out, "               notes %s(%llu, %llu, %llu)", note_name(note->code), (unsigned long long)note->a,
                  (unsigned long long)note->b, (unsigned long long)note->c);
    if (note->request_id) (void)fprintf(h->out, " of request %llu", (unsigned long long)note->request_id);
    (void)fprintf(h->out, "\n");
}

void qr_harness_remark(qr_harness_t *h, const char *line)
{
    if (h->out) (void)fprintf(h->out, "# %s\n", line);
}

void qr_harness_state(qr_harness_t *h)
{
    char *memory = h->out ? malloc(STATE_BYTES) : NULL;
    if (!memory) return;
    qr_text_t text;
    qr_text_init(&text, memory, STATE_BYTES);
    h->actor->print(h->state, h->given, &text);
    for (char *line = memory; *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        (void)fprintf(h->out, "  | %s\n", line);
        line = end ? end + 1 : line + strlen(line);
    }
    free(memory);
}

/* ---- calling ---------------------------------------------------------------------------------------------------------------- */

/* Stamps, judges and keeps one message of the outbox, as a host sends it. */
static void take(qr_harness_t *h, qr_message_t *message)
{
    bool remote = qr_address_node(message->to) != qr_address_node(h->address);
    qr_pair_t *pair = qr_pairs_get(h->pairs, message->to);
    qr_verdict_t verdict = pair ? qr_pairs_send(h->pairs, pair, message->type, &message->sequence) : QR_VERDICT_FULL;
    message->from = h->address;
    message->epoch = 1;
    if (verdict == QR_VERDICT_QUESTION && remote) {
        show(h, "<--", message, "not sent: its session ended while the actor worked on it");
        return;
    }
    if (verdict && !QR_MUTANT(319)) {
        if (!h->fault) h->fault = verdict;
        show(h, "<--", message, qr_verdict_sentence(verdict));
        return;
    }
    int64_t bytes = qr_codec_encode(message, h->wire, QR_MESSAGE_BYTES_MAX);
    qr_assert(bytes > 0); /* it fits its bound */
    show(h, "<--", message, NULL);
    if (h->said_count == QR_HARNESS_SAID_MAX) return;
    qr_message_t *kept = &h->said[h->said_count];
    if (qr_codec_decode(h->wire, (size_t)bytes, &h->said_arena, kept) == 0) h->said_count++;
}

static void call(qr_harness_t *h, const qr_message_t *message)
{
    qr_outbox_reset(h->outbox, h->actor->max_out);
    h->outbox->alarm_us = h->alarm_us;
    h->actor->handle(h->state, h->given, message, h->outbox);
    h->alarm_us = h->outbox->alarm_us;
    for (uint32_t i = 0; i < h->outbox->note_count; i++) show_note(h, &h->outbox->notes[i]);
    for (uint32_t i = 0; i < h->outbox->count; i++) take(h, &h->outbox->messages[i]);
    if (h->actor->check) h->actor->check(h->state, h->given);
}

static void forget(qr_harness_t *h)
{
    h->said_count = 0;
    qr_arena_reset(&h->said_arena);
}

qr_verdict_t qr_harness_deliver(qr_harness_t *h, const qr_message_t *message)
{
    forget(h);
    qr_message_t addressed = *message;
    addressed.to = h->address;
    addressed.version = QR_MESSAGE_VERSION;
    int64_t bytes = qr_codec_encode(&addressed, h->wire, QR_MESSAGE_BYTES_MAX);
    qr_arena_reset(&h->heard_arena);
    qr_assert(bytes > 0 && qr_codec_decode(h->wire, (size_t)bytes, &h->heard_arena, &h->heard) == 0);
    h->heard.now_us = h->now_us;
    qr_pair_t *pair = qr_pairs_get(h->pairs, h->heard.from);
    qr_verdict_t verdict = pair ? qr_pairs_receive(h->pairs, pair, h->heard.type, h->heard.epoch, h->heard.sequence) : QR_VERDICT_FULL;
    show(h, "-->", &h->heard, verdict ? qr_verdict_sentence(verdict) : NULL);
    if (verdict && !QR_MUTANT(320)) return verdict;
    if (h->heard.type == QR_MESSAGE_link_down) qr_pairs_close_node(h->pairs, h->heard.body.link_down.node);
    call(h, &h->heard);
    return QR_VERDICT_OK;
}

qr_verdict_t qr_harness_say(qr_harness_t *h, uint64_t from, uint16_t type, const void *body)
{
    const qr_schema_t *row = qr_schema_find(type);
    qr_assert(row);
    const qr_pair_t *pair = qr_pairs_get(h->pairs, from);
    qr_message_t message = {.type = type, .from = from, .epoch = 1};
    if (pair && pair->epoch_in) message.epoch = pair->epoch_in;
    message.sequence = pair ? pair->sequence_in + 1 : 1;
    memcpy(&message.body, body, row->bytes);
    return qr_harness_deliver(h, &message);
}

uint32_t qr_harness_pass(qr_harness_t *h, uint64_t us)
{
    uint64_t until_us = h->now_us + us;
    uint32_t fired = 0;
    forget(h);
    for (; h->alarm_us <= until_us && fired < QR_HARNESS_ALARMS_MAX; fired++) {
        h->now_us = qr_max_u64(h->now_us, h->alarm_us);
        h->heard = (qr_message_t){.type = QR_MESSAGE_alarm,
                                  .version = QR_MESSAGE_VERSION,
                                  .from = h->address,
                                  .to = h->address,
                                  .epoch = 1,
                                  .now_us = h->now_us,
                                  .body.alarm.due_us = h->alarm_us};
        h->alarm_us = QR_NEVER_US;
        show(h, "-->", &h->heard, NULL);
        call(h, &h->heard);
    }
    h->now_us = until_us;
    return fired;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------- */

uint32_t qr_harness_count(const qr_harness_t *h) { return h->said_count; }

const qr_message_t *qr_harness_message(const qr_harness_t *h, uint32_t index) { return index < h->said_count ? &h->said[index] : NULL; }

const qr_message_t *qr_harness_heard(const qr_harness_t *h, uint16_t type, uint32_t nth)
{
    for (uint32_t i = 0; i < h->said_count; i++)
        if (h->said[i].type == type && nth-- == 0) return &h->said[i];
    return NULL;
}

const void *qr_harness_body(const qr_harness_t *h, uint16_t type)
{
    const qr_message_t *message = qr_harness_heard(h, type, 0);
    return message ? &message->body : NULL;
}

uint64_t qr_harness_now_us(const qr_harness_t *h) { return h->now_us; }
uint64_t qr_harness_alarm_us(const qr_harness_t *h) { return h->alarm_us; }
qr_verdict_t qr_harness_fault(const qr_harness_t *h) { return h->fault; }
