/* prompt.c - owns the asks of `generate` and `bench` while the mesh runs. See prompt.h.
 *
 *   prompt -- probe --> gateway ... executor; again until it comes back without a reason
 *   for each round:  [ -- cache_drop --> page_manager -- cache_dropped --> ]
 *                    -- request_submit (all of the round) --> gateway -- request_deltas, request_finished | _refused -->
 *   prompt -- node_stop --> mesh
 *
 * T1. Every ask of a round is answered before the next round begins; each answer is stored once. */
#include "actors/io/prompt.h"

#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"

#include <stdlib.h>

enum { PROBE_AGAIN_US = 10000, READY_MS = 20000 };
enum { IDLE, PROBING, DROPPING, ASKING, OVER };

typedef struct room {
    uint64_t text, tokens; /* capacities of a result's buffers */
} room_t;

typedef struct prompt {
    uint64_t address, gateway, mesh;
    uint64_t page_manager; /* 0: not known, nothing is dropped */
    uint64_t ready_by_us, probe_at_us;
    uint32_t state, next, open; /* next: first ask not sent; open: asks without an answer */
    uint32_t probe_id, stopped, leaving;
    uint32_t room_count;
    room_t *rooms; /* [ask_count] */
} prompt_t;

static const qr_prompt_given_t *given_of(const qr_given_t *given)
{
    static const qr_prompt_given_t nothing;
    return given->prompt ? given->prompt : &nothing;
}

static void *grown(void *data, uint64_t bytes)
{
    void *more = realloc(data, bytes ? bytes : 1);
    qr_assert(more != NULL);
    return more;
}

void qr_prompt_result_done(qr_prompt_result_t *result)
{
    free(result->text);
    free(result->tokens);
    free(result->logprob_bits);
    free(result->token_us);
    free(result->prompt_ids);
    free(result->refusal);
    free(result->param);
    memset(result, 0, sizeof *result);
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

static char *copy_string(qr_bytes_t bytes)
{
    char *string = grown(NULL, bytes.count + 1);
    qr_copy(string, bytes.data, bytes.count);
    string[bytes.count] = 0;
    return string;
}

static void add_text(qr_prompt_result_t *result, room_t *room, const uint8_t *text, uint64_t bytes)
{
    if (result->text_bytes + bytes + 1 > room->text) {
        room->text = 2 * (result->text_bytes + bytes) + 256;
        result->text = grown(result->text, room->text);
    }
    qr_copy(result->text + result->text_bytes, text, bytes);
    result->text_bytes += bytes;
    result->text[result->text_bytes] = 0;
}

static void add_tokens(qr_prompt_result_t *result, room_t *room, const uint32_t *tokens, const uint32_t *logprob_bits, uint32_t count,
                       uint64_t now_us)
{
    if (result->token_count + (uint64_t)count > room->tokens) {
        room->tokens = 2 * (result->token_count + (uint64_t)count) + 64;
        result->tokens = grown(result->tokens, 4 * room->tokens);
        result->logprob_bits = grown(result->logprob_bits, 4 * room->tokens);
        result->token_us = grown(result->token_us, 8 * room->tokens);
    }
    if (result->token_count == 0 && count) result->first_us = now_us - result->asked_us;
    for (uint32_t i = 0; i < count; i++) {
        result->tokens[result->token_count] = tokens[i];
        result->logprob_bits[result->token_count] = logprob_bits[i];
        result->token_us[result->token_count++] = now_us - result->asked_us;
    }
}

static void on_deltas(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message)
{
    const qr_request_deltas_t *b = &message->body.request_deltas;
    uint64_t text_at = 0, tokens_at = 0;
    for (uint64_t i = 0; i < b->keys.count; i++) {
        uint64_t key = b->keys.data[i];
        uint32_t bytes = b->text_lengths.data[i], count = b->token_counts.data[i];
        qr_assert(key < list->ask_count);
        qr_prompt_result_t *result = &list->results[key];
        if (count)
            add_tokens(result, &self->rooms[key], b->tokens.data + tokens_at, b->logprob_bits.data + tokens_at, count, message->now_us);
        if (bytes) add_text(result, &self->rooms[key], b->text.data + text_at, bytes);
        if (bytes && list->stream) {
            (void)fwrite(b->text.data + text_at, 1, bytes, list->stream);
            (void)fflush(list->stream);
        }
        text_at += bytes;
        tokens_at += count;
    }
}

/* ---- asking --------------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static void over(prompt_t *self, uint32_t reason, qr_outbox_t *outbox)
{
    self->state = OVER;
    qr_send(outbox, self->mesh, node_stop, &(qr_node_stop_t){.reason = reason});
}

/* The text of a chat: the system message, then the user's. */
static char *chat_text(const qr_prompt_ask_t *ask)
{
    char *text = grown(NULL, ask->system_bytes + ask->text_bytes + 1);
    qr_copy(text, ask->system, ask->system ? ask->system_bytes : 0);
    qr_copy(text + (ask->system ? ask->system_bytes : 0), ask->text, ask->text_bytes);
    return text;
}

static void submit(prompt_t *self, const qr_prompt_given_t *list, uint32_t index, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_prompt_ask_t *ask = &list->asks[index];
    uint32_t roles[2], lengths[2], message_count = 0, stop_lengths[QR_STOPS_MAX], stops = qr_min_u32(ask->stop_count, QR_STOPS_MAX);
    char stop[QR_STOPS_MAX * QR_STOP_BYTES_MAX], *chat = NULL;
    uint64_t stop_bytes = 0;
    for (uint32_t i = 0; i < stops; i++) {
        uint64_t bytes = qr_min_u64(strlen(ask->stops[i]), QR_STOP_BYTES_MAX);
        memcpy(stop + stop_bytes, ask->stops[i], bytes);
        stop_lengths[i] = (uint32_t)bytes;
        stop_bytes += bytes;
    }
    qr_request_submit_t body = {
        .key = index,
        .kind = ask->kind,
        .text = {(const uint8_t *)ask->text, ask->kind == QR_INPUT_TOKENS ? 0 : ask->text_bytes},
        .tokens = {ask->tokens, ask->kind == QR_INPUT_TOKENS ? ask->token_count : 0},
        .max_tokens = ask->max_tokens,
        .temperature_bits = bits_of(ask->temperature),
        .top_p_bits = bits_of(ask->top_p),
        .min_p_bits = bits_of(ask->min_p),
        .top_k = ask->top_k,
        .seed_given = ask->seed_given,
        .seed = ask->seed,
        .logprobs = ask->logprobs,
        .ignore_eos = ask->ignore_eos,
        .echo_prompt = ask->keep_prompt,
        .stop = {(const uint8_t *)stop, stop_bytes},
        .stop_lengths = {stop_lengths, stops},
        .cache_salt = {(const uint8_t *)ask->cache_salt, ask->cache_salt ? strlen(ask->cache_salt) : 0},
    };
    if (ask->kind == QR_INPUT_CHAT) {
        if (ask->system) roles[message_count] = QR_CHAT_SYSTEM, lengths[message_count++] = (uint32_t)ask->system_bytes;
        roles[message_count] = QR_CHAT_USER;
        lengths[message_count++] = (uint32_t)ask->text_bytes;
        chat = chat_text(ask);
        body.text = (qr_bytes_t){(const uint8_t *)chat, (ask->system ? ask->system_bytes : 0) + ask->text_bytes};
        body.roles = (qr_u32s_t){roles, message_count};
        body.lengths = (qr_u32s_t){lengths, message_count};
    }
    list->results[index].asked_us = now_us;
    qr_send(outbox, self->gateway, request_submit, &body);
    free(chat);
    self->open++;
}

static void ask_round(prompt_t *self, const qr_prompt_given_t *list, uint64_t now_us, qr_outbox_t *outbox)
{
    self->state = ASKING;
    uint32_t round = list->asks[self->next].round;
    while (self->next < list->ask_count && list->asks[self->next].round == round && self->open < QR_REQUESTS_MAX)
        submit(self, list, self->next++, now_us, outbox);
}

/* All of a round has ended (or none began): the next one, or the end. */
static void next_round(prompt_t *self, const qr_prompt_given_t *list, uint64_t now_us, qr_outbox_t *outbox)
{
    if (self->next == list->ask_count) {
        over(self, 0, outbox);
        return;
    }
    if (list->drop_cache && self->page_manager) {
        self->state = DROPPING;
        qr_send(outbox, self->page_manager, cache_drop, &(qr_cache_drop_t){.version = 1});
        return;
    }
    ask_round(self, list, now_us, outbox);
}

static void answered(prompt_t *self, const qr_prompt_given_t *list, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_assert(self->open > 0);
    if (--self->open == 0 && !self->stopped && !self->leaving) next_round(self, list, now_us, outbox);
}

static void on_finished(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_finished_t *b = &message->body.request_finished;
    qr_assert(b->key < list->ask_count);
    qr_prompt_result_t *result = &list->results[b->key];
    add_text(result, &self->rooms[b->key], NULL, 0);
    result->finish = b->finish;
    result->error = b->error;
    result->prompt_tokens = b->prompt_tokens;
    result->completion_tokens = b->completion_tokens;
    result->cached_tokens = b->cached_tokens;
    result->seed = b->seed;
    result->queue_us = b->queue_us;
    result->prefill_us = b->prefill_us;
    result->decode_us = b->decode_us;
    result->ended_us = message->now_us - result->asked_us;
    if (b->prompt_ids.count) {
        result->prompt_ids = grown(NULL, 4 * b->prompt_ids.count);
        memcpy(result->prompt_ids, b->prompt_ids.data, 4 * b->prompt_ids.count);
        result->prompt_id_count = (uint32_t)b->prompt_ids.count;
    }
    answered(self, list, message->now_us, outbox);
}

static void on_refused(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_request_refused_t *b = &message->body.request_refused;
    qr_assert(b->key < list->ask_count);
    qr_prompt_result_t *result = &list->results[b->key];
    result->finish = QR_FINISH_REFUSED;
    result->error = b->reason;
    result->refusal = copy_string(b->text);
    result->param = copy_string(b->param);
    result->ended_us = message->now_us - result->asked_us;
    answered(self, list, message->now_us, outbox);
}

/* ---- life ------------------------------------------------------------------------------------------------------------------- */

static void send_probe(prompt_t *self, qr_outbox_t *outbox)
{
    self->state = PROBING;
    self->probe_at_us = QR_NEVER_US;
    qr_send(outbox, self->gateway, probe, &(qr_probe_t){.probe_id = ++self->probe_id});
}

static void on_start(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->mesh = message->from;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_page_manager && !self->page_manager) self->page_manager = b->partners.data[i];
    self->ready_by_us = message->now_us + 1000 * (uint64_t)(list->ready_ms ? list->ready_ms : READY_MS);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
    send_probe(self, outbox);
}

static void on_probe_done(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_probe_done_t *b = &message->body.probe_done;
    if (self->state != PROBING || self->stopped || self->leaving || b->probe_id != self->probe_id) return;
    if (b->reason == 0) {
        next_round(self, list, message->now_us, outbox);
        return;
    }
    if (message->now_us >= self->ready_by_us) {
        if (list->ret_reason) *list->ret_reason = b->reason;
        over(self, b->reason, outbox);
        return;
    }
    self->probe_at_us = message->now_us + PROBE_AGAIN_US;
    qr_outbox_alarm(outbox, self->probe_at_us);
}

/* The user wants to leave: what is open is cancelled, nothing more is asked. */
static void on_drain(prompt_t *self, const qr_prompt_given_t *list, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->leaving = 1;
    for (uint32_t key = 0; key < self->next; key++)
        if (list->results[key].finish == QR_FINISH_NONE)
            qr_send(outbox, self->gateway, request_cancel, &(qr_request_cancel_t){.key = key, .reason = QR_E_CANCELLED});
    qr_send(outbox, message->from, drained, &(qr_drained_t){.open_count = self->open});
}

static void on_stop(prompt_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->stopped = 1;
    outbox->alarm_us = QR_NEVER_US;
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

static uint64_t prompt_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(prompt_t);
}

static void prompt_init(void *block, const qr_given_t *given, uint64_t address)
{
    prompt_t *self = block;
    self->address = address;
    self->gateway = qr_address_partner(address, QR_ROLE_gateway);
    self->room_count = given_of(given)->ask_count;
    self->rooms = calloc(self->room_count ? self->room_count : 1, sizeof *self->rooms);
    qr_assert(self->rooms != NULL);
}

static void prompt_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    prompt_t *self = block;
    const qr_prompt_given_t *list = given_of(given);
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, list, message, outbox); break;
    case QR_MESSAGE_alarm:
        if (self->state == PROBING && self->probe_at_us <= message->now_us && !self->stopped)
            send_probe(self, outbox);
        else if (self->state == PROBING && !self->stopped)
            qr_outbox_alarm(outbox, self->probe_at_us);
        break;
    case QR_MESSAGE_probe_done: on_probe_done(self, list, message, outbox); break;
    case QR_MESSAGE_cache_dropped:
        if (self->state == DROPPING && !self->stopped && !self->leaving) ask_round(self, list, message->now_us, outbox);
        break;
    case QR_MESSAGE_request_deltas: on_deltas(self, list, message); break;
    case QR_MESSAGE_request_finished: on_finished(self, list, message, outbox); break;
    case QR_MESSAGE_request_refused: on_refused(self, list, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, list, message, outbox); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    case QR_MESSAGE_metrics:
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
}

static void prompt_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const prompt_t *self = block;
    qr_text_put(text, "prompt: state ");
    qr_text_put_u64(text, self->state);
    qr_text_put(text, ", asked ");
    qr_text_put_u64(text, self->next);
    qr_text_put(text, ", open ");
    qr_text_put_u64(text, self->open);
    qr_text_put(text, "\n");
}

static void prompt_done(void *block)
{
    prompt_t *self = block;
    free(self->rooms);
    self->rooms = NULL;
}

const qr_actor_class_t qr_prompt_class = {
    .name = "prompt",
    .role = QR_ROLE_prompt,
    .max_out = QR_REQUESTS_MAX + 2,
    .owns_world = true,
    .bytes = prompt_bytes,
    .init = prompt_init,
    .handle = prompt_handle,
    .print = prompt_print,
    .done = prompt_done,
};
