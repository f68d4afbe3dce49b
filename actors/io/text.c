/* text.c - the io actor `text`: turns texts and chats into token ids. It sits on a host thread of its own, so that a prompt of a
 * megabyte delays nobody's tokens.
 *
 *     gateway -- text_encode --> text -- text_encoded | text_refused --> gateway
 *
 * Rules it keeps (and documents):
 * - A text or a content is ordinary text: what looks like a control token in it is not one.
 * - A prompt begins with the model's begin token exactly once where the model asks for one, never twice, whoever wrote it.
 * - More ids than the context holds are refused here, with both numbers; nothing is cut. A text far beyond the context is not counted to
 *   its end: others wait for their turn.
 * - A prompt without a single id is refused.
 * - A prompt that continues something saved keeps the saved ids, whatever the tokenizer would make of their text: the render must begin
 * with the saved bytes, and only what follows is tokenized. So a resumed prompt is the saved one to the last id. */
#include "actors/io/text.h"

#include <stdio.h>
#include <stdlib.h>

#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/render.h"
#include "base/utf8.h"
#include "model/tokenizer.h"

/* Ids of the longest text (at least one byte each) and of what a template writes around the most messages. */
enum { TOKENS_CAPACITY = QR_TEXT_BYTES_MAX + QR_CHAT_MESSAGES_MAX * 64, MESSAGE_BYTES = 320 };

typedef struct text_actor {
    uint64_t address, mesh, epoch;
    uint64_t encoded, refused, tokens_total, longest;
    uint32_t *tokens; /* [TOKENS_CAPACITY] */
    uint8_t *render;  /* malloc()ed, of the question being answered; NULL without one */
    uint64_t render_bytes;
} text_actor_t;

static uint64_t bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(text_actor_t);
}

static void init(void *block, const qr_given_t *given, uint64_t address)
{
    (void)given;
    text_actor_t *self = block;
    self->address = address;
}

static void done(void *block)
{
    text_actor_t *self = block;
    free(self->tokens);
    free(self->render);
    self->tokens = NULL;
    self->render = NULL;
}

static void on_start(text_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->mesh = message->from;
    self->epoch = message->body.start.epoch;
    if (!self->tokens) self->tokens = malloc((size_t)TOKENS_CAPACITY * sizeof *self->tokens);
    qr_ready_t body = {.reason = QR_E_OK};
    const char *why = !given->tokenizer ? "no tokenizer was made for this node" : !self->tokens ? "not enough memory" : NULL;
    if (why) {
        body.reason = given->tokenizer ? QR_E_MEMORY : QR_E_INVALID;
        body.text = (qr_bytes_t){(const uint8_t *)why, strlen(why)};
    }
    qr_send(outbox, message->from, ready, &body);
}

static bool adds_up(const qr_text_encode_t *b)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < b->lengths.count; i++) sum += b->lengths.data[i];
    return b->roles.count == b->lengths.count && b->roles.count <= QR_CHAT_MESSAGES_MAX && sum == b->text.count;
}

/* Makes self->render of b's input. 0 or a negative code with a sentence. */
static int render(text_actor_t *self, const qr_given_t *given, const qr_text_encode_t *b, char *sentence, size_t sentence_bytes)
{
    if (b->kind == QR_INPUT_CHAT && !adds_up(b)) {
        snprintf(sentence, sentence_bytes, "the messages do not add up");
        return -QR_E_INVALID;
    }
    if (b->kind == QR_INPUT_CHAT) {
        size_t bytes = 0;
        int error = qr_tokenizer_render(given->tokenizer, b->roles.data, b->lengths.data, b->roles.count, (const char *)b->text.data,
                                        &self->render, &bytes, sentence, sentence_bytes);
        self->render_bytes = bytes;
        return error;
    }
    if (!qr_utf8_valid(b->text.data, b->text.count)) {
        snprintf(sentence, sentence_bytes, "the text is not valid UTF-8");
        return -QR_E_FORMAT;
    }
    self->render = malloc(b->text.count + 2);
    if (!self->render) return -QR_E_MEMORY;
    self->render[0] = QR_RENDER_CONTENT;
    qr_copy(self->render + 1, b->text.data, b->text.count);
    self->render[b->text.count + 1] = QR_RENDER_CONTENT_END;
    self->render_bytes = b->text.count + 2;
    return 0;
}

/* Whether the render goes on from what was saved; a cut inside a character would tear it. */
static bool continues(const text_actor_t *self, qr_bytes_t prefix)
{
    if (!prefix.count || prefix.count > self->render_bytes) return false;
    if (memcmp(self->render, prefix.data, prefix.count) != 0 && !QR_MUTANT(686)) return false;
    return prefix.count == self->render_bytes || (self->render[prefix.count] & 0xC0) != 0x80;
}

static uint32_t context_of(const qr_given_t *given) { return given->layout.context_tokens ? given->layout.context_tokens : QR_CONTEXT_MAX; }

/* Most ids that are looked for (limits.h). */
static size_t counted_most(const qr_given_t *given)
{
    if (QR_MUTANT(899)) return TOKENS_CAPACITY;
    return qr_min_u64(qr_max_u64((uint64_t)QR_COUNTED_CONTEXTS * context_of(given), QR_COUNTED_LEAST), TOKENS_CAPACITY);
}

/* The saved ids, then the ids of what follows the saved text. */
static int encode_rest(text_actor_t *self, const qr_given_t *given, const qr_text_encode_t *b, size_t *ret_count, char *sentence,
                       size_t sentence_bytes)
{
    if (!continues(self, b->prefix_text)) {
        snprintf(sentence, sentence_bytes,
                 "the request does not begin with what the continuation holds; send the same conversation, with its answer");
        return -QR_E_MISMATCH;
    }
    if (b->prefix_tokens.count > counted_most(given)) return -QR_E_LIMIT;
    size_t count = b->prefix_tokens.count;
    memcpy(self->tokens, b->prefix_tokens.data, count * sizeof *self->tokens);
    int error = qr_tokenizer_encode_render(given->tokenizer, self->render, self->render_bytes, QR_MUTANT(687) ? 0 : b->prefix_text.count,
                                           self->tokens, counted_most(given), &count);
    if (error == -QR_E_FORMAT) snprintf(sentence, sentence_bytes, "the text is not valid UTF-8");
    *ret_count = count;
    return error;
}

/* Encodes what b asks for into self->tokens. 0 or a negative code with a sentence. */
static int encode(text_actor_t *self, const qr_given_t *given, const qr_text_encode_t *b, size_t *ret_count, char *sentence,
                  size_t sentence_bytes)
{
    const char *text = (const char *)b->text.data;
    size_t count = 0;
    int error;
    if (b->kind == QR_INPUT_CHAT) {
        if (!adds_up(b)) {
            snprintf(sentence, sentence_bytes, "the messages do not add up");
            return -QR_E_INVALID;
        }
        error = qr_tokenizer_chat(given->tokenizer, b->roles.data, b->lengths.data, b->roles.count, text, self->tokens, counted_most(given),
                                  &count, sentence, sentence_bytes);
    } else {
        uint32_t bos;
        if (qr_tokenizer_bos(given->tokenizer, &bos)) self->tokens[count++] = bos;
        error = qr_tokenizer_encode(given->tokenizer, text, b->text.count, false, self->tokens, counted_most(given), &count);
        if (error && error != -QR_E_LIMIT)
            snprintf(sentence, sentence_bytes, error == -QR_E_FORMAT ? "the text is not valid UTF-8" : "%s", qr_error_sentence(error));
    }
    if (!error) *ret_count = count;
    return error;
}

static int check_count(const qr_given_t *given, size_t count, char *sentence, size_t sentence_bytes)
{
    uint32_t context = context_of(given);
    if (count == 0) {
        snprintf(sentence, sentence_bytes, "the prompt has no tokens");
        return -QR_E_INVALID;
    }
    if (count > context) {
        snprintf(sentence, sentence_bytes, "the prompt has %zu tokens, the context holds %u", count, context);
        return -QR_E_CONTEXT;
    }
    return 0;
}

static void on_text_encode(text_actor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_text_encode_t *b = &message->body.text_encode;
    char sentence[MESSAGE_BYTES] = "";
    size_t count = 0;
    int error = b->text.count > QR_TEXT_BYTES_MAX || !self->tokens ? -QR_E_LIMIT : 0;
    if (!error && (b->render || b->prefix_tokens.count)) error = render(self, given, b, sentence, sizeof sentence);
    if (!error)
        error = b->prefix_tokens.count ? encode_rest(self, given, b, &count, sentence, sizeof sentence)
                                       : encode(self, given, b, &count, sentence, sizeof sentence);
    if (error == -QR_E_LIMIT && self->tokens && b->text.count <= QR_TEXT_BYTES_MAX) { /* more ids than are counted */
        snprintf(sentence, sizeof sentence, "the prompt has more than %zu tokens, the context holds %u", counted_most(given),
                 context_of(given));
        error = -QR_E_CONTEXT;
    }
    if (!error) error = check_count(given, count, sentence, sizeof sentence);
    if (error) {
        if (!sentence[0]) snprintf(sentence, sizeof sentence, "%s", qr_error_sentence(error));
        const char *param = error == -QR_E_MISMATCH ? "continuation" : b->kind == QR_INPUT_CHAT ? "messages" : "prompt";
        /* Malformed text is the caller's fault, not that of a file. */
        uint32_t reason = error == -QR_E_FORMAT ? QR_E_INVALID : (uint32_t)-error;
        qr_text_refused_t body = {.request_id = b->request_id,
                                  .reason = reason,
                                  .param = {(const uint8_t *)param, strlen(param)},
                                  .text = {(const uint8_t *)sentence, strlen(sentence)}};
        qr_send(outbox, message->from, text_refused, &body);
        qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_refused, b->request_id, reason, b->text.count, count);
        self->refused++;
        free(self->render);
        self->render = NULL;
        return;
    }
    self->encoded++;
    self->tokens_total += count;
    self->longest = qr_max_u64(self->longest, count);
    qr_text_encoded_t body = {.request_id = b->request_id, .tokens = {self->tokens, count}};
    if (b->render) body.rendered = (qr_bytes_t){self->render, self->render_bytes};
    qr_send(outbox, message->from, text_encoded, &body);
    free(self->render);
    self->render = NULL;
}

static void handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    text_actor_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_text_encode: on_text_encode(self, given, message, outbox); break;
    case QR_MESSAGE_drain: /* every question is answered in its handler: nothing is ever open */
        qr_send(outbox, message->from, drained, (&(qr_drained_t){.open_count = 0}));
        break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = QR_E_OK})); break;
    case QR_MESSAGE_alarm:
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0);
    }
}

static void print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const text_actor_t *self = block;
    qr_text_put(text, "text: encoded ");
    qr_text_put_u64(text, self->encoded);
    qr_text_put(text, ", refused ");
    qr_text_put_u64(text, self->refused);
    qr_text_put(text, ", tokens ");
    qr_text_put_u64(text, self->tokens_total);
    qr_text_put(text, ", longest ");
    qr_text_put_u64(text, self->longest);
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_text_class = {
    .name = "text",
    .role = QR_ROLE_text,
    .max_out = 1,
    .owns_world = true,
    .bytes = bytes,
    .init = init,
    .handle = handle,
    .print = print,
    .done = done,
};
