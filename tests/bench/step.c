/* link: qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_messages qr_actor_decisions */
/* step.c - planning and messaging of one decode step at 32 lanes: the handlers of scheduler, page_manager and worker, and encode and
 * decode of every message between them, an executor that answers at once and a router that takes at once. Sockets are not in it (a
 * message through one to the own host costs 0.23 to 0.47 us, codec included). Goal: 15 us a step. `--tiny` runs a few steps. */
#include "actors/page_manager.h"
#include "actors/scheduler.h"
#include "actors/worker.h"
#include "messages/codec.h"
#include "messages/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LANES = 32, PROMPT = 64, CONTEXT = 4096, FRAMES = 4096, FRAME_BYTES = 1 << 22, WINDOW = 20, STEPS_MAX = 3000 };

#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define ROUTER qr_address(1, 0, QR_ROLE_router, 0)
#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define PAGES qr_address(1, 1, QR_ROLE_page_manager, 0)
#define EXECUTOR qr_address(1, 1, QR_ROLE_executor, 0)

typedef struct member {
    const qr_actor_class_t *actor;
    void *state;
    uint64_t address, handle_ns;
} member_t;

static qr_given_t given;
static member_t members[3];
static qr_outbox_t outbox;
static qr_message_t messages[2048];
static uint8_t outbox_bytes[QR_OUTBOX_BYTES] __attribute__((aligned(64))), arena_bytes[1 << 21] __attribute__((aligned(64)));
static uint8_t frames[FRAME_BYTES];
static struct {
    uint32_t at, bytes;
} queue[FRAMES];
static uint32_t queue_head, queue_tail, frame_at;
static uint64_t encode_ns, decode_ns, message_count, batch_count, drawn_count;

static uint64_t clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void post(uint64_t from, uint64_t to, uint16_t type, const void *body)
{
    qr_message_t message = {.type = type, .version = QR_MESSAGE_VERSION, .from = from, .to = to, .epoch = 1, .sequence = 1};
    memcpy(&message.body, body, qr_schema_find(type)->bytes);
    uint64_t begin = clock_ns();
    if (frame_at > FRAME_BYTES / 2) frame_at = 0;
    int64_t bytes = qr_codec_encode(&message, frames + frame_at, FRAME_BYTES / 2);
    encode_ns += clock_ns() - begin;
    qr_assert(bytes > 0 && queue_tail - queue_head < FRAMES);
    queue[queue_tail % FRAMES].at = frame_at;
    queue[queue_tail++ % FRAMES].bytes = (uint32_t)bytes;
    frame_at += (uint32_t)bytes;
}
#define POST(from, to, name, ...) post((from), (to), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* What executor and router say; their time is not counted. */
static void answer(const qr_message_t *m)
{
    static uint32_t zeros[QR_LANES_MAX], tokens[QR_LANES_MAX], indexes[QR_REQUESTS_MAX];
    switch (m->type) {
    case QR_MESSAGE_lane_open: POST(m->to, m->from, lane_opened, .lane = m->body.lane_open.lane); break;
    case QR_MESSAGE_batch_run: {
        const qr_batch_run_t *run = &m->body.batch_run;
        for (uint32_t i = 0; i < run->lanes.count; i++) {
            tokens[i] = run->flags.data[i] & QR_ROW_SAMPLE ? (uint32_t)(batch_count * 31 + i) % 1000 : QR_TOKEN_NONE;
            drawn_count += run->flags.data[i] & QR_ROW_SAMPLE;
        }
        batch_count++;
        POST(m->to, m->from, batch_done, .batch = run->batch, .lanes = run->lanes, .statuses = {zeros, run->lanes.count},
             .tokens = {tokens, run->lanes.count}, .logprob_bits = {zeros, run->lanes.count}, .step_us = 5000);
        break;
    }
    case QR_MESSAGE_tokens: {
        const qr_tokens_t *t = &m->body.tokens;
        for (uint64_t i = 0; i < t->request_ids.count; i++) indexes[i] = t->indexes.data[i] + t->counts.data[i];
        POST(m->to, m->from, tokens_taken, .request_ids = t->request_ids, .attempts = t->attempts,
             .indexes = {indexes, t->request_ids.count});
        break;
    }
    default: break;
    }
}

static void handle(const qr_message_t *message)
{
    for (uint32_t i = 0; i < QR_COUNT(members); i++) {
        member_t *member = &members[i];
        if (member->address != message->to) continue;
        qr_outbox_reset(&outbox, member->actor->max_out);
        uint64_t begin = clock_ns();
        member->actor->handle(member->state, &given, message, &outbox);
        member->handle_ns += clock_ns() - begin;
        for (uint32_t k = 0; k < outbox.count; k++) post(member->address, messages[k].to, messages[k].type, &messages[k].body);
        return;
    }
    answer(message);
}

/* Delivers until so many batches were run. */
static void run_until(uint64_t batches)
{
    while (batch_count < batches && queue_head != queue_tail) {
        qr_message_t message;
        qr_arena_t arena;
        uint32_t slot = queue_head++ % FRAMES;
        uint64_t begin = clock_ns();
        qr_arena_init(&arena, arena_bytes, sizeof arena_bytes);
        int code = qr_codec_decode(frames + queue[slot].at, queue[slot].bytes, &arena, &message);
        decode_ns += clock_ns() - begin;
        qr_assert(code == 0);
        message.now_us = 1000000 + batch_count * 5000;
        message_count++;
        handle(&message);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void member_init(member_t *member, const qr_actor_class_t *actor, uint64_t address)
{
    member->actor = actor;
    member->address = address;
    member->state = calloc(1, actor->bytes(&given));
    actor->init(member->state, &given, address);
    POST(MESH, address, start, .epoch = 1, .seed = 1);
}

int main(int argc, char **argv)
{
    bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    uint64_t steps = tiny ? 200 : STEPS_MAX;
    uint32_t prompt[PROMPT];
    qr_params_init(&given.params);
    given.layout.group_count = 1;
    given.layout.page_tokens = 16;
    given.layout.chunk_tokens = 256;
    given.layout.context_tokens = CONTEXT;
    given.layout.groups[0] = (qr_group_t){.pages = LANES * CONTEXT / 16 + 8, .row_bytes = 64};
    qr_outbox_init(&outbox, messages, 0, outbox_bytes, sizeof outbox_bytes);
    member_init(&members[0], &qr_worker_class, WORKER);
    member_init(&members[1], &qr_scheduler_class, SCHEDULER);
    member_init(&members[2], &qr_page_manager_class, PAGES);
    for (uint32_t r = 0; r < LANES; r++) {
        for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = r * PROMPT + i;
        POST(ROUTER, WORKER, offer, .request_id = r + 1, .attempt = 1, .generated_from = PROMPT, .tokens = {prompt, PROMPT},
             .max_tokens = CONTEXT - PROMPT, .ignore_eos = 1);
    }
    run_until(200); /* every lane decodes */
    message_count = drawn_count = 0;
    static double all[STEPS_MAX / WINDOW], parts[STEPS_MAX / WINDOW][5];
    uint32_t windows = (uint32_t)(steps / WINDOW);
    uint64_t first = batch_count;
    for (uint32_t w = 0; w < windows; w++) {
        for (uint32_t i = 0; i < 3; i++) members[i].handle_ns = 0;
        encode_ns = decode_ns = 0;
        run_until(first + (w + 1) * WINDOW);
        for (uint32_t i = 0; i < 3; i++) parts[w][i] = (double)members[i].handle_ns;
        parts[w][3] = (double)encode_ns;
        parts[w][4] = (double)decode_ns;
        for (uint32_t i = 0; i < 5; i++) all[w] += parts[w][i] /= 1000.0 * WINDOW;
    }
    static const char *const names[] = {"worker", "scheduler", "page_manager", "encode", "decode"};
    double n = (double)(batch_count - first);
    printf("step: %.0f steps of %.1f lanes, %.1f messages a step (tokens and its answer included); best and median of %u windows\n", n,
           (double)drawn_count / n, (double)message_count / n, windows);
    for (uint32_t i = 0; i < 5; i++) {
        double part[STEPS_MAX / WINDOW];
        for (uint32_t w = 0; w < windows; w++) part[w] = parts[w][i];
        qsort(part, windows, sizeof *part, by_value);
        printf("  %-13s %6.2f %6.2f us a step\n", names[i], part[0], part[windows / 2]);
    }
    qsort(all, windows, sizeof *all, by_value);
    printf("  %-13s %6.2f %6.2f us a step (goal 15)\n", "all", all[0], all[windows / 2]);
    for (uint32_t i = 0; i < 3; i++) free(members[i].state);
    return 0;
}
