/* link: qr_actor_gateway qr_actor_quota qr_actor_detokenize qr_actor_router qr_messages */
/* edge.c - what one decode step costs the edge at 32 streams: tokens from the worker through router and gateway to request_deltas, both
 * tokens_taken, and encode and decode of all five messages. Sockets are not in it. Goal: a few microseconds; the step itself takes
 * milliseconds. `--tiny` runs a few steps. */
#include "actors/gateway.h"
#include "actors/router.h"
#include "messages/codec.h"
#include "messages/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STREAMS = 32, FRAMES = 256, FRAME_BYTES = 1 << 16, VOCABULARY = 1024 };

static const uint64_t addresses[] = {1ull << 32 | QR_ROLE_gateway << 16, 1ull << 32 | QR_ROLE_router << 16};
static const uint64_t worker = 1ull << 32 | 1u << 24 | QR_ROLE_worker << 16, http = 1ull << 32 | QR_ROLE_http << 16,
                      heartbeat = 1ull << 32 | QR_ROLE_heartbeat << 16;
static const qr_actor_class_t *const classes[] = {&qr_gateway_class, &qr_router_class};
static void *states[2];
static qr_given_t given;
static qr_outbox_t outbox;
static uint8_t frames[FRAMES][FRAME_BYTES], arena_bytes[1 << 17] __attribute__((aligned(64)));
static size_t frame_bytes[FRAMES];
static uint32_t head, tail;
static uint64_t ids[STREAMS], messages, handle_ns;
static uint32_t id_count;

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void post(qr_message_t *m, uint64_t from)
{
    m->from = from;
    m->version = 1;
    int64_t bytes = qr_codec_encode(m, frames[tail % FRAMES], FRAME_BYTES);
    qr_assert(bytes > 0 && tail - head < FRAMES);
    frame_bytes[tail++ % FRAMES] = (size_t)bytes;
    messages++;
}

/* Delivers what is queued until nothing is left; what is not for gateway or router is only decoded. */
static void pump(void)
{
    static qr_message_t m;
    while (head != tail) {
        qr_arena_t arena;
        qr_arena_init(&arena, arena_bytes, sizeof arena_bytes);
        qr_assert(qr_codec_decode(frames[head % FRAMES], frame_bytes[head % FRAMES], &arena, &m) == 0);
        head++;
        m.now_us = clock_ns() / 1000;
        if (m.type == QR_MESSAGE_offer) ids[id_count++] = m.body.offer.request_id;
        for (uint32_t a = 0; a < 2; a++) {
            if (m.to != addresses[a]) continue;
            qr_outbox_reset(&outbox, classes[a]->max_out);
            uint64_t begin = clock_ns();
            classes[a]->handle(states[a], &given, &m, &outbox);
            handle_ns += clock_ns() - begin;
            for (uint32_t i = 0; i < outbox.count; i++) post(&outbox.messages[i], addresses[a]);
        }
    }
}

static void say(uint64_t from, uint64_t to, uint16_t type, const void *body)
{
    static qr_message_t m;
    m.type = type;
    m.to = to;
    memcpy(&m.body, body, qr_schema_find(type)->bytes);
    post(&m, from);
    pump();
}

static void begin_streams(void)
{
    static const uint32_t prompt[4] = {1, 2, 3, 4};
    qr_observation_t seen = {.worker = worker, .worker_epoch = 1, .sequence = 1, .state = QR_STATE_READY};
    say(heartbeat, addresses[1], QR_MESSAGE_observation, &seen);
    for (uint64_t key = 0; key < STREAMS; key++) {
        qr_request_submit_t submit = {
            .key = key, .kind = QR_INPUT_TOKENS, .tokens = {prompt, 4}, .max_tokens = 1u << 16, .budget_us = 3600000000u};
        say(http, addresses[0], QR_MESSAGE_request_submit, &submit);
        qr_offer_accepted_t accepted = {ids[key], 1};
        say(worker, addresses[1], QR_MESSAGE_offer_accepted, &accepted);
    }
}

static void step(uint32_t index)
{
    static uint32_t attempts[STREAMS], indexes[STREAMS], counts[STREAMS], tokens[STREAMS], zeros[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++) {
        attempts[i] = counts[i] = 1;
        indexes[i] = index;
        tokens[i] = (index * 31 + i * 7) % VOCABULARY;
    }
    qr_tokens_t body = {.request_ids = {ids, STREAMS},
                        .attempts = {attempts, STREAMS},
                        .indexes = {indexes, STREAMS},
                        .counts = {counts, STREAMS},
                        .tokens = {tokens, STREAMS},
                        .logprob_bits = {tokens, STREAMS},
                        .finishes = {zeros, STREAMS},
                        .errors = {zeros, STREAMS}};
    say(worker, addresses[1], QR_MESSAGE_tokens, &body);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int count, char **word)
{
    bool tiny = count > 1 && !strcmp(word[1], "--tiny");
    static uint32_t offsets[VOCABULARY + 1];
    static uint8_t text[VOCABULARY * 4], flags[VOCABULARY];
    static uint64_t times[4000];
    uint32_t steps = tiny ? 50 : (uint32_t)QR_COUNT(times);
    for (uint32_t i = 0; i <= VOCABULARY; i++) offsets[i] = i * 4;
    memset(text, 'a', sizeof text);
    qr_params_init(&given.params);
    given.layout.context_tokens = 1u << 17;
    given.vocabulary = (qr_vocabulary_t){VOCABULARY, 0, offsets, text, flags};
    qr_outbox_init(&outbox, malloc(qr_gateway_class.max_out * sizeof(qr_message_t)), qr_gateway_class.max_out,
                   aligned_alloc(64, QR_OUTBOX_BYTES), QR_OUTBOX_BYTES);
    for (uint32_t a = 0; a < 2; a++) {
        states[a] = calloc(1, classes[a]->bytes(&given));
        classes[a]->init(states[a], &given, addresses[a]);
    }
    begin_streams();
    messages = handle_ns = 0;
    for (uint32_t i = 0; i < steps; i++) {
        uint64_t begin = clock_ns();
        step(i);
        times[i] = clock_ns() - begin;
    }
    qsort(times, steps, sizeof *times, compare);
    printf("edge step, %d streams: median %.1f us, best %.1f us; handlers %.1f us; %.1f messages\n", STREAMS,
           (double)times[steps / 2] / 1000, (double)times[0] / 1000, (double)handle_ns / 1000 / steps, (double)messages / steps);
    free(outbox.messages);
    free(outbox.bytes);
    for (uint32_t a = 0; a < 2; a++) free(states[a]);
    return 0;
}
