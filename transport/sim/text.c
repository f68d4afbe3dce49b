/* text.c - see text.h. */
#include "transport/sim/text.h"

#include "base/error.h"
#include "base/utf8.h"
#include "messages/schema.h"
#include "transport/sim/world.h"

enum { DELAY_US = 3000, ENCODES = 64, TOKENS_MOST = 1024, SENTENCE_BYTES = 160 };

typedef struct encode {
    uint64_t asker, request_id, due_us;
    uint32_t count, reason, chat, reserved;
    char sentence[SENTENCE_BYTES];
    uint32_t tokens[TOKENS_MOST];
} encode_t;

typedef struct text {
    uint64_t last_us;      /* newest due_us: answers keep the order of the questions */
    uint32_t count, first; /* a ring */
    encode_t encodes[ENCODES];
} text_t;

/* ---- tokens ----------------------------------------------------------------------------------------------------------------------------
 */

typedef struct writer {
    uint32_t *tokens;
    uint64_t capacity, count;
} writer_t;

static void put_token(writer_t *to, uint32_t token)
{
    if (to->count < to->capacity) to->tokens[to->count] = token;
    to->count++;
}
static void put_bytes(writer_t *to, const uint8_t *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) put_token(to, bytes[i]);
}
static void put_word(writer_t *to, const char *word) { put_bytes(to, (const uint8_t *)word, strlen(word)); }

static void put_chat(writer_t *to, const qr_text_encode_t *b)
{
    static const char *const names[] = {"system", "user", "assistant", "tool", "system"}; /* models know no developer */
    uint64_t at = 0;
    for (uint64_t i = 0; i < b->roles.count; at += b->lengths.data[i++]) {
        put_token(to, QR_SIM_CHAT_BEGIN_TOKEN);
        put_word(to, names[b->roles.data[i]]);
        put_word(to, "\n");
        put_bytes(to, b->text.data + at, b->lengths.data[i]);
        put_token(to, QR_SIM_CHAT_END_TOKEN);
        put_word(to, "\n");
    }
    put_token(to, QR_SIM_CHAT_BEGIN_TOKEN);
    put_word(to, "assistant\n");
}

static bool chat_adds_up(const qr_text_encode_t *b)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < b->lengths.count; i++) sum += b->lengths.data[i];
    return b->roles.count == b->lengths.count && b->roles.count <= QR_CHAT_MESSAGES_MAX && sum == b->text.count;
}

uint32_t qr_sim_text_tokens(const qr_text_encode_t *input, uint32_t *tokens, uint64_t capacity, uint64_t *ret_count)
{
    writer_t to = {tokens, capacity, 0};
    *ret_count = 0;
    if (input->text.count > QR_TEXT_BYTES_MAX) return QR_E_LIMIT;
    if (input->kind == QR_INPUT_CHAT) {
        if (!chat_adds_up(input)) return QR_E_INVALID;
        for (uint64_t i = 0, at = 0; i < input->roles.count; at += input->lengths.data[i++])
            if (input->roles.data[i] > QR_CHAT_DEVELOPER || !qr_utf8_valid(input->text.data + at, input->lengths.data[i]))
                return QR_E_INVALID;
        put_chat(&to, input);
    } else {
        if (!qr_utf8_valid(input->text.data, input->text.count)) return QR_E_INVALID;
        put_bytes(&to, input->text.data, input->text.count);
    }
    *ret_count = to.count;
    return to.count ? 0 : QR_E_INVALID;
}

/* ---- the actor -------------------------------------------------------------------------------------------------------------------------
 */

static void answer(text_t *self, qr_outbox_t *outbox)
{
    encode_t *e = &self->encodes[self->first];
    self->first = (self->first + 1) % ENCODES;
    self->count--;
    if (e->reason == 0) {
        qr_send(outbox, e->asker, text_encoded, &(qr_text_encoded_t){.request_id = e->request_id, .tokens = {e->tokens, e->count}});
        return;
    }
    const char *param = e->chat ? "messages" : "prompt";
    qr_text_refused_t body = {.request_id = e->request_id,
                              .reason = e->reason,
                              .param = {(const uint8_t *)param, strlen(param)},
                              .text = {(const uint8_t *)e->sentence, strlen(e->sentence)}};
    qr_send(outbox, e->asker, text_refused, &body);
}

static void on_text_encode(text_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_encode_t *b = &message->body.text_encode;
    if (self->count == ENCODES) answer(self, outbox); /* E2 */
    encode_t *e = &self->encodes[(self->first + self->count++) % ENCODES];
    uint64_t count = 0;
    *e = (encode_t){.asker = message->from, .request_id = b->request_id, .chat = b->kind == QR_INPUT_CHAT};
    e->reason = qr_sim_text_tokens(b, e->tokens, TOKENS_MOST, &count);
    (void)snprintf(e->sentence, sizeof e->sentence, "%s", qr_error_sentence((int)e->reason));
    if (e->reason == 0 && count > qr_min_u32(given->layout.context_tokens, TOKENS_MOST)) {
        uint64_t counted = qr_max_u64((uint64_t)QR_COUNTED_CONTEXTS * given->layout.context_tokens, QR_COUNTED_LEAST);
        e->reason = QR_E_CONTEXT;
        (void)snprintf(e->sentence, sizeof e->sentence, "the prompt has %s%llu tokens, the context holds %u",
                       count > counted ? "more than " : "", (unsigned long long)qr_min_u64(count, counted), given->layout.context_tokens);
    }
    e->count = (uint32_t)qr_min_u64(count, TOKENS_MOST);
    e->due_us = self->last_us = qr_max_u64(self->last_us, message->now_us + qr_sim_draw(DELAY_US));
    qr_outbox_alarm(outbox, self->encodes[self->first].due_us);
}

static void on_alarm(text_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    while (self->count && self->encodes[self->first].due_us <= now_us) answer(self, outbox);
    if (self->count) qr_outbox_alarm(outbox, self->encodes[self->first].due_us);
}

static uint64_t text_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(text_t);
}
static void text_init(void *block, const qr_given_t *given, uint64_t address) { (void)block, (void)given, (void)address; }

static void text_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    text_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: qr_send(outbox, message->from, ready, &(qr_ready_t){0}); break;
    case QR_MESSAGE_text_encode: on_text_encode(self, given, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, message->now_us, outbox); break;
    case QR_MESSAGE_drain: /* as the real one, which answered every question when it heard it */
    case QR_MESSAGE_stop:
        while (self->count) answer(self, outbox);
        if (message->type == QR_MESSAGE_drain)
            qr_send(outbox, message->from, drained, &(qr_drained_t){0});
        else
            qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
        break;
    default: break;
    }
}

const qr_actor_class_t qr_sim_text_class = {
    .name = "text",
    .role = QR_ROLE_text,
    .max_out = ENCODES + 1,
    .owns_world = true,
    .bytes = text_bytes,
    .init = text_init,
    .handle = text_handle,
};
