/* link: qr_actor_gateway qr_actor_quota qr_actor_detokenize qr_actor_router qr_transport qr_messages */
/* The edge group in a world of chance: real gateway and router between a scripted asker, text and two workers (one on another node).
 * Messages are encoded, judged by the host's own credit table, and delivered in any order that keeps each pair's own. Workers refuse,
 * answer late, repeat, fail and go away; clients leave. Every request must be answered once, with the right tokens in the right order,
 * and what a lost worker had is offered to another with every token the router has received. */
#include "tests/unit/edge_harness.h"

#include "actors/gateway.h"
#include "actors/router.h"
#include "base/prng.h"
#include "messages/codec.h"
#include "transport/pair.h"

enum { REQUESTS = 240, RECORDS = 512, FLIGHT_MAX = 8192, LETTERS = 26, END_TOKEN = 26, FRAME_BYTES = 4096 };
enum { HTTP, TEXT, GATEWAY, ROUTER, W1, W2, HEARTBEAT, MESH, WHO };

typedef struct flight {
    uint32_t from, to, bytes;
    uint8_t frame[FRAME_BYTES];
} flight_t;

/* What a scripted worker knows of one attempt. */
typedef struct record {
    uint64_t id, key;
    uint32_t used, attempt, first, drawn, acked, max_tokens, finish, error, ended, late; /* late: the offer is not answered yet */
} record_t;

typedef struct asked {
    uint32_t open, answers, taken, finish, max_tokens, stop_at, cancelled;
    uint8_t text[64];
    uint32_t text_bytes;
} asked_t;

typedef struct world {
    qr_prng_t prng;
    uint64_t now_us, epoch, observation;
    rig_t gateway, router;
    qr_pairs_t *pairs[WHO];
    flight_t *flights;
    uint32_t flight_count, most_flights;
    record_t records[2][RECORDS];
    uint32_t tokens_open[2];
    asked_t asked[REQUESTS];
    uint32_t submitted, open, continued; /* continued: offers that came with generated tokens */
} world_t;

static const uint64_t addresses[WHO] = {
    1ull << 32 | QR_ROLE_http << 16,
    1ull << 32 | QR_ROLE_text << 16,
    1ull << 32 | QR_ROLE_gateway << 16,
    1ull << 32 | QR_ROLE_router << 16,
    1ull << 32 | 1u << 24 | QR_ROLE_worker << 16,
    2ull << 32 | 1u << 24 | QR_ROLE_worker << 16,
    1ull << 32 | QR_ROLE_heartbeat << 16,
    1ull << 32 | QR_ROLE_mesh << 16,
};
static words_t words;
static qr_given_t given;

static uint32_t who_is(uint64_t address)
{
    uint32_t who = 0;
    while (addresses[who] != address) assert_true(++who < WHO);
    return who;
}
static bool chance(world_t *w, uint32_t percent) { return qr_prng_below(&w->prng, 100) < percent; }

/* The token that every worker draws at `index` of request `key`; texts are letters. */
static uint32_t token_of(uint64_t key, uint32_t index) { return (uint32_t)((key * 7 + index * 3 + index * index) % LETTERS); }

/* ---- messages in flight --------------------------------------------------------------------------------------------------- */

static void post(world_t *w, uint32_t from, qr_message_t *message)
{
    uint32_t to = who_is(message->to);
    message->from = addresses[from];
    message->version = 1;
    message->epoch = 1;
    assert_int_equal(qr_pairs_send(w->pairs[from], qr_pairs_get(w->pairs[from], message->to), message->type, &message->sequence),
                     QR_VERDICT_OK);
    assert_true(w->flight_count < FLIGHT_MAX);
    flight_t *flight = &w->flights[w->flight_count++];
    w->most_flights = qr_max_u32(w->most_flights, w->flight_count);
    int64_t bytes = qr_codec_encode(message, flight->frame, FRAME_BYTES);
    assert_true(bytes > 0);
    flight->from = from;
    flight->to = to;
    flight->bytes = (uint32_t)bytes;
}
#define POST(w, from, whom, name, ...)                                                                                                     \
    do {                                                                                                                                   \
        static qr_message_t posted_;                                                                                                       \
        memset(&posted_, 0, sizeof posted_);                                                                                               \
        posted_.type = QR_MESSAGE_##name;                                                                                                  \
        posted_.to = addresses[whom];                                                                                                      \
        posted_.body.name = (qr_##name##_t){__VA_ARGS__};                                                                                  \
        post((w), (from), &posted_);                                                                                                       \
    } while (0)

static void post_outbox(world_t *w, uint32_t from, rig_t *rig)
{
    for (uint32_t i = 0; i < rig->outbox->count; i++) post(w, from, &rig->outbox->messages[i]);
}

/* ---- workers ---------------------------------------------------------------------------------------------------------------- */

static record_t *find_record(world_t *w, uint32_t n, uint64_t id, uint32_t attempt)
{
    for (uint32_t i = 0; i < RECORDS; i++)
        if (w->records[n][i].used && w->records[n][i].id == id && w->records[n][i].attempt == attempt) return &w->records[n][i];
    return NULL;
}

static void answer_offer(world_t *w, uint32_t n, record_t *r)
{
    r->late = 0;
    if (chance(w, 20)) {
        POST(w, W1 + n, ROUTER, offer_refused, .request_id = r->id, .attempt = r->attempt,
             .reason = chance(w, 50) ? QR_E_BUSY : QR_E_NEVER_FITS, .retry_after_ms = 5);
        r->used = 0;
        return;
    }
    POST(w, W1 + n, ROUTER, offer_accepted, .request_id = r->id, .attempt = r->attempt);
}

static void worker_hears(world_t *w, uint32_t n, const qr_message_t *m)
{
    if (m->type == QR_MESSAGE_offer) {
        const qr_offer_t *o = &m->body.offer;
        record_t *r = w->records[n];
        while (r->used) r++;
        *r = (record_t){.id = o->request_id, .used = 1, .attempt = o->attempt, .max_tokens = o->max_tokens, .late = 1};
        memcpy(&r->key, o->cache_salt.data, 8);
        assert_int_equal(o->generated_from, 2 + r->key % 5);
        r->first = r->drawn = r->acked = (uint32_t)o->tokens.count - o->generated_from;
        assert_true(r->first < r->max_tokens);
        for (uint32_t k = 0; k < r->first; k++) assert_int_equal(o->tokens.data[o->generated_from + k], token_of(r->key, k));
        w->continued += r->first > 0;
        if (chance(w, 90)) answer_offer(w, n, r);
    } else if (m->type == QR_MESSAGE_offer_cancel) {
        const qr_offer_cancel_t *c = &m->body.offer_cancel;
        record_t *r = find_record(w, n, c->request_id, c->attempt);
        if (r && !r->ended) {
            r->ended = 1;
            r->finish = c->finish;
        }
        POST(w, W1 + n, ROUTER, offer_cancelled, .request_id = c->request_id, .attempt = c->attempt, .reason = r ? 0 : QR_E_UNKNOWN);
    } else {
        const qr_tokens_taken_t *t = &m->body.tokens_taken;
        w->tokens_open[n] = 0;
        for (uint32_t i = 0; i < RECORDS; i++) {
            record_t *r = &w->records[n][i];
            if (!r->used || r->late) continue;
            uint32_t named = 0;
            while (named < t->request_ids.count && (t->request_ids.data[named] != r->id || t->attempts.data[named] != r->attempt)) named++;
            if (named < t->request_ids.count) {
                assert_true(t->indexes.data[named] <= r->drawn);
                r->acked = qr_max_u32(r->acked, t->indexes.data[named]);
                if (r->ended == 2 && r->acked == r->drawn) r->used = 0;
            } else if (r->ended == 2)
                r->used = 0; /* told the end, and it was not wanted */
            if (r->used && r->ended == 2) r->ended = 1;
        }
    }
}

/* Every running request draws a token; what is new goes to the router if it owes no answer. Now and then all is said again. */
static void worker_steps(world_t *w, uint32_t n)
{
    uint64_t ids[RECORDS];
    uint32_t attempts[RECORDS], indexes[RECORDS], counts[RECORDS], finishes[RECORDS], errors[RECORDS], ids_of[1024], count = 0, total = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        record_t *r = &w->records[n][i];
        if (!r->used) continue;
        if (r->late) {
            if (chance(w, 5)) answer_offer(w, n, r);
            continue;
        }
        if (!r->ended && r->drawn < r->max_tokens) r->drawn++;
        if (!r->ended && r->drawn == r->max_tokens) r->ended = 1, r->finish = QR_FINISH_LENGTH;
        if (w->tokens_open[n] || (r->acked == r->drawn && !r->ended) || total + 32 > QR_COUNT(ids_of)) continue;
        if (!r->ended && chance(w, 2)) { /* it fails, for a reason of its own or of the request's */
            r->ended = 1, r->finish = QR_FINISH_ERROR, r->error = chance(w, 80) ? QR_E_DEVICE : QR_E_NUMERIC;
        }
        uint32_t from = chance(w, 10) ? r->first : r->acked; /* a repeat from the start */
        ids[count] = r->id;
        attempts[count] = r->attempt;
        indexes[count] = from;
        counts[count] = r->drawn - from;
        errors[count] = r->ended ? r->error : 0;
        finishes[count++] = r->ended ? r->finish : 0;
        for (uint32_t k = from; k < r->drawn; k++) ids_of[total++] = token_of(r->key, k);
        if (r->ended) r->ended = 2;
    }
    if (count == 0) return;
    w->tokens_open[n] = 1;
    POST(w, W1 + n, ROUTER, tokens, .request_ids = {ids, count}, .attempts = {attempts, count}, .indexes = {indexes, count},
         .counts = {counts, count}, .tokens = {ids_of, total}, .logprob_bits = {ids_of, total}, .finishes = {finishes, count},
         .errors = {errors, count});
}

/* ---- the asker ------------------------------------------------------------------------------------------------------------------ */

static void submit(world_t *w)
{
    uint64_t key = w->submitted++;
    asked_t *a = &w->asked[key];
    uint32_t prompt[8] = {0}, length = 2;
    uint8_t stop[2], kind = chance(w, 50) ? QR_INPUT_TOKENS : QR_INPUT_TEXT, text[8] = "prompt.";
    a->open = 1;
    a->max_tokens = 1 + (uint32_t)qr_prng_below(&w->prng, 20);
    a->stop_at = chance(w, 30) ? (uint32_t)qr_prng_below(&w->prng, 18) : 100;
    stop[0] = (uint8_t)('a' + token_of(key, a->stop_at));
    stop[1] = (uint8_t)('a' + token_of(key, a->stop_at + 1));
    w->open++;
    POST(w, HTTP, GATEWAY, request_submit, .key = key, .kind = kind, .text = {text, kind == QR_INPUT_TEXT ? 2 + key % 5 : 0},
         .tokens = {prompt, kind == QR_INPUT_TOKENS ? 2 + key % 5 : 0}, .max_tokens = a->max_tokens, .top_p_bits = 0x3f800000,
         .stop = {stop, a->stop_at < 100 ? 2 : 0}, .stop_lengths = {&length, a->stop_at < 100}, .cache_salt = {(const uint8_t *)&key, 8},
         .budget_us = chance(w, 5) ? 200000 : 0);
}

static void asker_hears(world_t *w, const qr_message_t *m)
{
    if (m->type == QR_MESSAGE_request_deltas) {
        const qr_request_deltas_t *d = &m->body.request_deltas;
        uint64_t text_at = 0, at = 0;
        for (uint64_t i = 0; i < d->keys.count; i++) {
            asked_t *a = &w->asked[d->keys.data[i]];
            assert_int_equal(a->answers, 0); /* nothing after the answer */
            for (uint32_t k = 0; k < d->token_counts.data[i]; k++, at++) {
                assert_int_equal(d->tokens.data[at], token_of(d->keys.data[i], a->taken)); /* each once, in order */
                assert_int_equal(d->logprob_bits.data[at], d->tokens.data[at]);
                a->taken++;
            }
            assert_true(a->text_bytes + d->text_lengths.data[i] <= sizeof a->text);
            if (d->text_lengths.data[i]) memcpy(a->text + a->text_bytes, d->text.data + text_at, d->text_lengths.data[i]);
            a->text_bytes += d->text_lengths.data[i];
            text_at += d->text_lengths.data[i];
        }
        return;
    }
    bool finished = m->type == QR_MESSAGE_request_finished;
    uint64_t key = finished ? m->body.request_finished.key : m->body.request_refused.key;
    asked_t *a = &w->asked[key];
    assert_true(a->open);
    assert_int_equal(a->answers++, 0);
    a->finish = finished ? m->body.request_finished.finish : QR_FINISH_REFUSED;
    if (finished)
        assert_int_equal(m->body.request_finished.completion_tokens, a->taken);
    else
        assert_int_equal(a->taken, 0);
    w->open--;
}

/* What the text of a request must be, from the whole stream at once. */
static void check_answer(const world_t *w, uint64_t key)
{
    const asked_t *a = &w->asked[key];
    uint8_t full[64];
    uint32_t end = a->max_tokens, stop_found = 0;
    for (uint32_t i = 0; i < 32; i++) full[i] = (uint8_t)('a' + token_of(key, i));
    for (uint32_t i = 0; i + 1 < a->max_tokens && a->stop_at < 100 && !stop_found; i++)
        if (full[i] == full[a->stop_at] && full[i + 1] == full[a->stop_at + 1]) end = i, stop_found = 1;
    assert_int_equal(a->answers, 1);
    assert_true(a->text_bytes <= a->taken); /* cut off, what was held back comes out: it was no stop string */
    assert_memory_equal(a->text, full, a->text_bytes);
    if (a->finish == QR_FINISH_LENGTH) assert_true(!stop_found && a->text_bytes == a->max_tokens && a->taken == a->max_tokens);
    if (a->finish == QR_FINISH_STOP) assert_true(stop_found && a->text_bytes == end && a->taken == end + 2);
    if (a->finish == QR_FINISH_CANCELLED) assert_true(a->cancelled);
}

/* ---- the world --------------------------------------------------------------------------------------------------------------------- */

static void hear(world_t *w, uint32_t to, qr_message_t *m)
{
    rig_t *rig = to == GATEWAY ? &w->gateway : &w->router;
    switch (to) {
    case HTTP: asker_hears(w, m); break;
    case TEXT: {
        static const uint32_t zeros[16];
        if (chance(w, 5))
            POST(w, TEXT, GATEWAY, text_refused, .request_id = m->body.text_encode.request_id, .reason = QR_E_FORMAT);
        else
            POST(w, TEXT, GATEWAY, text_encoded, .request_id = m->body.text_encode.request_id,
                 .tokens = {zeros, m->body.text_encode.text.count});
        break;
    }
    case GATEWAY:
    case ROUTER:
        rig->now_us = w->now_us;
        rig_say(rig, m->from, m->type, &m->body, sizeof m->body);
        post_outbox(w, to, rig);
        break;
    case W1:
    case W2: worker_hears(w, to - W1, m); break;
    default: break; /* heartbeat and mesh only speak */
    }
}

/* Delivers one message, the oldest of its pair. */
static void deliver(world_t *w)
{
    uint32_t chosen = (uint32_t)qr_prng_below(&w->prng, w->flight_count), first = 0;
    while (w->flights[first].from != w->flights[chosen].from || w->flights[first].to != w->flights[chosen].to) first++;
    static flight_t flight;
    static uint8_t memory[QR_CODEC_ARENA_BYTES(FRAME_BYTES)] __attribute__((aligned(64)));
    static qr_message_t message;
    flight = w->flights[first];
    memmove(w->flights + first, w->flights + first + 1, (--w->flight_count - first) * sizeof flight);
    qr_arena_t arena;
    qr_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(qr_codec_decode(flight.frame, flight.bytes, &arena, &message), 0);
    qr_pair_t *pair = qr_pairs_get(w->pairs[flight.to], message.from);
    assert_int_equal(qr_pairs_receive(w->pairs[flight.to], pair, message.type, message.epoch, message.sequence), QR_VERDICT_OK);
    hear(w, flight.to, &message);
}

static void tell_router(world_t *w, uint64_t from, uint16_t type, const void *body, size_t bytes)
{
    w->router.now_us = w->now_us;
    rig_say(&w->router, from, type, body, bytes);
    post_outbox(w, ROUTER, &w->router);
}

static void observe(world_t *w, uint32_t n)
{
    POST(w, HEARTBEAT, ROUTER, observation, .worker = addresses[W1 + n], .worker_epoch = n ? w->epoch : 1, .sequence = ++w->observation,
         .state = QR_STATE_READY, .tokens_queued = qr_prng_below(&w->prng, 50), .context_tokens = 64, .prefill_row_ns = 1000000,
         .prefill_samples = 1, .step_us = 1, .step_samples = 1);
}

/* The session with node 2 is over: nothing more arrives, every question is closed, its worker forgets. */
static void cut_link(world_t *w)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->flight_count; i++)
        if (w->flights[i].from != W2 && w->flights[i].to != W2) w->flights[kept++] = w->flights[i];
    w->flight_count = kept;
    memset(w->records[1], 0, sizeof w->records[1]);
    w->tokens_open[1] = 0;
    w->epoch++;
    qr_pairs_close_node(w->pairs[ROUTER], 2);
    memset(w->pairs[W2], 0, sizeof(qr_pairs_t));
    qr_pairs_init(w->pairs[W2], addresses[W2]);
    qr_pair_t *pair = qr_pairs_get(w->pairs[ROUTER], addresses[W2]);
    pair->epoch_in = pair->sequence_in = 0;
    qr_link_down_t down = {.node = 2};
    tell_router(w, addresses[MESH], QR_MESSAGE_link_down, &down, sizeof down);
}

static void pass(world_t *w, uint64_t us)
{
    w->now_us += us;
    rig_t *rigs[2] = {&w->gateway, &w->router};
    for (uint32_t i = 0; i < 2; i++) {
        rigs[i]->now_us = w->now_us;
        rig_pass(rigs[i], 0);
        post_outbox(w, i ? ROUTER : GATEWAY, rigs[i]);
    }
}

static void world_init(world_t *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    qr_prng_init(&w->prng, seed);
    w->now_us = 1000000;
    w->epoch = 1;
    w->flights = malloc(FLIGHT_MAX * sizeof *w->flights);
    for (uint32_t i = 0; i < WHO; i++) {
        w->pairs[i] = calloc(1, sizeof(qr_pairs_t));
        qr_pairs_init(w->pairs[i], addresses[i]);
    }
    rig_init(&w->gateway, &qr_gateway_class, &given, addresses[GATEWAY]);
    rig_init(&w->router, &qr_router_class, &given, addresses[ROUTER]);
    SAY(&w->gateway, addresses[MESH], start, .epoch = 1, .seed = seed);
    SAY(&w->router, addresses[MESH], start, .epoch = 1, .partners = U64_COLUMN(addresses[W1], addresses[W2]));
}

static void world_done(world_t *w)
{
    rig_done(&w->gateway);
    rig_done(&w->router);
    for (uint32_t i = 0; i < WHO; i++) free(w->pairs[i]);
    free(w->flights);
}

static void one_thing(world_t *w)
{
    uint64_t die = qr_prng_below(&w->prng, 1000);
    if (die < 60 && w->submitted < REQUESTS)
        submit(w);
    else if (die < 75 && w->submitted) {
        uint64_t key = qr_prng_below(&w->prng, w->submitted);
        if (!w->asked[key].cancelled && !w->asked[key].answers) {
            w->asked[key].cancelled = 1;
            POST(w, HTTP, GATEWAY, request_cancel, .key = key, .reason = QR_E_CANCELLED);
        }
    } else if (die < 150)
        worker_steps(w, (uint32_t)die & 1u);
    else if (die < 170)
        observe(w, (uint32_t)die & 1u);
    else if (die < 172)
        cut_link(w);
    else if (die < 250)
        pass(w, qr_prng_below(&w->prng, 20000));
    else if (w->flight_count)
        deliver(w);
}

/* No more submissions or faults: everything comes to its end. */
static void settle(world_t *w)
{
    for (uint32_t i = 0; i < 20000 && (w->open || w->flight_count || i < 2000); i++) {
        while (w->flight_count) deliver(w);
        if (i % 8 == 0) observe(w, 0);
        worker_steps(w, 0);
        worker_steps(w, 1);
        pass(w, 20000);
    }
}

static uint32_t run(uint64_t seed, uint32_t *finishes)
{
    static world_t w;
    world_init(&w, seed);
    for (uint32_t i = 0; i < 12000; i++) one_thing(&w);
    while (w.submitted < REQUESTS) submit(&w);
    settle(&w);
    assert_int_equal(w.open, 0);
    for (uint64_t key = 0; key < REQUESTS; key++) {
        check_answer(&w, key);
        finishes[w.asked[key].finish]++;
    }
    SAY(&w.gateway, addresses[MESH], drain, .budget_us = 1000000);
    assert_int_equal(NEXT(&w.gateway, addresses[MESH], drained)->open_count, 0);
    SAY(&w.router, addresses[MESH], drain, .budget_us = 1000000);
    assert_int_equal(NEXT(&w.router, addresses[MESH], drained)->open_count, 0);
    for (uint32_t n = 0; n < 2; n++)
        for (uint32_t i = 0; i < RECORDS; i++) assert_true(!w.records[n][i].used || w.records[n][i].late);
    assert_true(w.most_flights < 4 * REQUESTS);
    world_done(&w);
    return w.continued;
}

static void test_every_request_ends_once(void **unused)
{
    (void)unused;
    uint32_t finishes[6] = {0}, continued = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        print_message("seed %u\n", (unsigned)seed);
        continued += run(seed, finishes);
    }
    print_message("continued on another worker: %u\n", continued);
    assert_true(continued > 100);
    for (uint32_t finish = 1; finish < 6; finish++) {
        print_message("finish %u: %u\n", finish, finishes[finish]);
        assert_true(finishes[finish] > 0); /* the worlds were not too kind */
    }
}

int main(void)
{
    for (uint32_t i = 0; i < LETTERS; i++) {
        char letter = (char)('a' + i);
        words_add(&words, &letter, 1, 0);
    }
    words_add(&words, "<end>", 5, QR_TOKEN_SPECIAL | QR_TOKEN_END);
    qr_params_init(&given.params);
    given.params.max_requests = 24;
    given.params.offer_timeout_ms = 300;
    given.layout.context_tokens = 64;
    given.vocabulary = words.vocabulary;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_request_ends_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
