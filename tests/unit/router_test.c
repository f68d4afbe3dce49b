/* link: qr_actor_router qr_schema */
/* The router by hand: ranking, offers, fences, tokens, cancels, lost workers. */
#include "tests/unit/edge_harness.h"

#include "actors/router.h"

static const uint64_t router = 1ull << 32 | QR_ROLE_router << 16, gateway = 1ull << 32 | QR_ROLE_gateway << 16,
                      mesh = 1ull << 32 | QR_ROLE_mesh << 16, heartbeat = 1ull << 32 | QR_ROLE_heartbeat << 16;
/* Worker 1 is on this node, 2 and 3 on others. */
static uint64_t worker(uint32_t node) { return qr_address(node, 1, QR_ROLE_worker, 0); }

static qr_given_t given;
static rig_t rig;
static uint64_t sequence;
static const uint32_t zeros[256];

static int begin(void **unused)
{
    (void)unused;
    memset(&given, 0, sizeof given);
    qr_params_init(&given.params);
    given.params.max_requests = 8;
    given.params.offer_timeout_ms = 500;
    given.layout.context_tokens = 64;
    sequence = 0;
    rig_init(&rig, &qr_router_class, &given, router);
    SAY(&rig, mesh, start, .epoch = 1, .seed = 1, .partners = U64_COLUMN(heartbeat, worker(1), worker(2)));
    (void)NEXT(&rig, mesh, ready);
    rig_quiet(&rig);
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    rig_done(&rig);
    return 0;
}

static void seen_full(uint32_t node, uint8_t state, uint64_t queued, uint64_t row_ns, uint64_t age_us, uint32_t context)
{
    SAY(&rig, heartbeat, observation, .worker = worker(node), .worker_epoch = 5, .sequence = ++sequence, .age_us = age_us, .state = state,
        .tokens_queued = queued, .context_tokens = context, .prefill_row_ns = row_ns, .prefill_samples = 1, .step_us = 100,
        .step_samples = 1);
}
static void seen(uint32_t node, uint64_t queued) { seen_full(node, QR_STATE_READY, queued, 1000, 0, 64); }

/* Requests of the gateway: place `slot`, number `serial`. */
static uint64_t id_of(uint32_t slot, uint64_t serial) { return 1ull << 56 | serial << 16 | slot; }

static void place(uint64_t id, uint32_t prompt, uint32_t max_tokens)
{
    SAY(&rig, gateway, place, .request_id = id, .tokens = {zeros, prompt}, .max_tokens = max_tokens, .seed = 42);
}
static void assert_offer(uint32_t node, uint64_t id, uint32_t attempt)
{
    const qr_offer_t *offer = NEXT(&rig, worker(node), offer);
    assert_int_equal(offer->request_id, id);
    assert_int_equal(offer->attempt, attempt);
    assert_int_equal(offer->seed, 42);
    assert_int_equal(offer->generated_from, offer->tokens.count);
}
static void assert_refused(uint64_t id, uint32_t reason)
{
    const qr_place_refused_t *r = NEXT(&rig, gateway, place_refused);
    assert_int_equal(r->request_id, id);
    assert_int_equal(r->reason, reason);
}
static void assert_ended(uint64_t id, uint32_t finish, uint32_t error, uint32_t tokens)
{
    const qr_place_ended_t *e = NEXT(&rig, gateway, place_ended);
    assert_int_equal(e->request_id, id);
    assert_int_equal(e->finish, finish);
    assert_int_equal(e->error, error);
    assert_int_equal(e->completion_tokens, tokens);
}
static void tokens(uint32_t node, uint64_t id, uint32_t attempt, uint32_t index, const uint32_t *ids, uint32_t count, uint32_t finish)
{
    const uint32_t error = 0, cached = 3;
    const uint64_t us = 9;
    SAY(&rig, worker(node), tokens, .request_ids = {&id, 1}, .attempts = {&attempt, 1}, .indexes = {&index, 1}, .counts = {&count, 1},
        .tokens = {ids, count}, .logprob_bits = {ids, count}, .finishes = {&finish, 1}, .errors = {&error, 1},
        .cached_tokens = {&cached, 1}, .queue_us = {&us, 1}, .prefill_us = {&us, 1});
}
/* The worker is told which index is expected; NOT_WANTED: its request is left out. */
#define NOT_WANTED UINT32_MAX
static void assert_taken(uint32_t node, uint32_t index)
{
    const qr_tokens_taken_t *t = NEXT(&rig, worker(node), tokens_taken);
    assert_int_equal(t->request_ids.count, index == NOT_WANTED ? 0 : 1);
    if (index != NOT_WANTED) assert_int_equal(t->indexes.data[0], index);
}
static void assert_passed_on(uint64_t id, uint32_t index, const uint32_t *ids, uint32_t count)
{
    const qr_tokens_t *t = NEXT(&rig, gateway, tokens);
    assert_int_equal(t->request_ids.count, 1);
    assert_int_equal(t->request_ids.data[0], id);
    assert_int_equal(t->indexes.data[0], index);
    assert_int_equal(t->counts.data[0], count);
    assert_memory_equal(t->tokens.data, ids, 4 * count);
    assert_memory_equal(t->logprob_bits.data, ids, 4 * count);
}
static void take(uint64_t id, uint32_t index)
{
    const uint32_t one = 1;
    SAY(&rig, gateway, tokens_taken, .request_ids = {&id, 1}, .attempts = {&one, 1}, .indexes = {&index, 1});
}

static void lose(bool link)
{
    if (link)
        SAY(&rig, mesh, link_down, .node = 2, .reason = QR_E_IO);
    else
        SAY(&rig, heartbeat, peer_down, .node = 2, .node_epoch = 5, .silence_us = 1);
}

/* ---- losses -------------------------------------------------------------------------------------------------------------- */

static const uint32_t prompt_ids[] = {71, 72, 73}, drawn_ids[] = {31, 32, 33, 34, 35, 36, 37, 38};
enum { PROMPT = 3 };

static void place_long(uint64_t id, uint32_t max_tokens, uint64_t budget_us)
{
    SAY(&rig, gateway, place, .request_id = id, .tokens = {prompt_ids, PROMPT}, .max_tokens = max_tokens, .seed = 42, .logprobs = 1,
        .temperature_bits = 11, .priority = 2, .cache_salt = TEXT_COLUMN("salt"), .budget_us = budget_us);
}
/* An offer of prompt_ids and the first `drawn` of drawn_ids. */
static const qr_offer_t *assert_retry(uint32_t node, uint64_t id, uint32_t attempt, uint32_t drawn)
{
    const qr_offer_t *o = NEXT(&rig, worker(node), offer);
    assert_int_equal(o->request_id, id);
    assert_int_equal(o->attempt, attempt);
    assert_int_equal(o->generated_from, PROMPT);
    assert_int_equal(o->tokens.count, PROMPT + drawn);
    assert_memory_equal(o->tokens.data, prompt_ids, sizeof prompt_ids);
    assert_memory_equal(o->tokens.data + PROMPT, drawn_ids, 4 * (size_t)drawn);
    assert_int_equal(o->seed, 42);
    assert_int_equal(o->logprobs, 1);
    assert_int_equal(o->temperature_bits, 11);
    assert_int_equal(o->priority, 2);
    assert_bytes(o->cache_salt, "salt");
    return o;
}
static void accepted(uint32_t node, uint64_t id, uint32_t attempt)
{
    SAY(&rig, worker(node), offer_accepted, .request_id = id, .attempt = attempt);
    rig_quiet(&rig);
}
/* The worker says drawn_ids[from .. to). */
static void draw(uint32_t node, uint64_t id, uint32_t attempt, uint32_t from, uint32_t to, uint32_t finish)
{
    tokens(node, id, attempt, from, drawn_ids + from, to - from, finish);
}
static void fails(uint32_t node, uint64_t id, uint32_t attempt, uint32_t index, uint32_t finish, uint32_t error)
{
    const uint32_t zero = 0;
    SAY(&rig, worker(node), tokens, .request_ids = {&id, 1}, .attempts = {&attempt, 1}, .indexes = {&index, 1}, .counts = {&zero, 1},
        .finishes = {&finish, 1}, .errors = {&error, 1});
}
/* A request that runs on node 2 and whose first token the gateway has taken; 9 tokens at most. */
static void stream_on_2(uint64_t id, uint64_t budget_us)
{
    seen(2, 0);
    place_long(id, 8, budget_us);
    (void)assert_retry(2, id, 1, 0);
    accepted(2, id, 1);
    draw(2, id, 1, 0, 1, 0);
    assert_taken(2, 1);
    assert_passed_on(id, 0, drawn_ids, 1);
    take(id, 1);
    rig_quiet(&rig);
}

static void test_lost_before_acceptance(void **unused)
{
    for (int link = 0; link < 2; link++) {
        uint64_t id = id_of(0, 1);
        seen(2, 0);
        place_long(id, 8, 0);
        (void)assert_retry(2, id, 1, 0);
        lose(link);
        if (!link) (void)NEXT(&rig, worker(2), offer_cancel); /* first the fence */
        rig_quiet(&rig);
        rig_pass(&rig, 1999999);
        rig_quiet(&rig);
        seen(1, 0);
        (void)assert_retry(1, id, 2, 0);
        SAY(&rig, mesh, link_down, .node = 1, .reason = QR_E_IO);
        rig_quiet(&rig);
        rig_pass(&rig, 1999999);
        rig_quiet(&rig);
        rig_pass(&rig, 1);
        assert_refused(id, QR_E_NO_WORKER); /* nothing ran: ask again later */
        rig_quiet(&rig);
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
    }
}

static void test_lost_before_the_first_token(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    seen(2, 0);
    place_long(id, 2, 0);
    (void)assert_retry(2, id, 1, 0);
    accepted(2, id, 1);
    seen(1, 0);
    rig_quiet(&rig);
    lose(false);
    assert_int_equal(NEXT(&rig, worker(2), offer_cancel)->attempt, 1);
    assert_int_equal(assert_retry(1, id, 2, 0)->max_tokens, 2);
    rig_quiet(&rig);
    accepted(1, id, 2);
    draw(1, id, 2, 0, 2, QR_FINISH_LENGTH);
    assert_taken(1, 2);
    assert_passed_on(id, 0, drawn_ids, 2);
    take(id, 2);
    assert_int_equal(NEXT(&rig, gateway, place_ended)->cached_tokens, 3); /* its prompt was computed there */
    rig_quiet(&rig);
}

/* The gateway holds one token, one is on its way, two are kept here when the worker goes: it gets each once, in order, and one end. */
static void test_lost_mid_stream(void **unused)
{
    for (int link = 0; link < 2; link++) {
        uint64_t id = id_of(0, 1);
        stream_on_2(id, 5000000);
        draw(2, id, 1, 1, 2, 0);
        assert_taken(2, 2);
        assert_passed_on(id, 1, drawn_ids + 1, 1);
        draw(2, id, 1, 2, 4, 0);
        assert_taken(2, 4);
        rig_pass(&rig, 1000000);
        seen(1, 0);
        rig_quiet(&rig);
        lose(link);
        if (!link) assert_int_equal(NEXT(&rig, worker(2), offer_cancel)->attempt, 1); /* it may still run it */
        const qr_offer_t *o = assert_retry(1, id, 2, 4);
        assert_int_equal(o->max_tokens, 8);
        assert_int_equal(o->budget_us, 4000000);
        rig_quiet(&rig);
        draw(2, id, 1, 4, 6, QR_FINISH_LENGTH); /* late, even at the right index */
        assert_taken(2, NOT_WANTED);
        rig_quiet(&rig);
        if (!link) SAY(&rig, worker(2), offer_cancelled, .request_id = id, .attempt = 1);
        accepted(1, id, 2);
        draw(1, id, 2, 4, 5, 0);
        assert_taken(1, 5);
        rig_quiet(&rig);
        draw(2, id, 1, 5, 6, 0);
        assert_taken(2, NOT_WANTED);
        take(id, 2);
        assert_passed_on(id, 2, drawn_ids + 2, 3);
        const uint32_t error = 0, cached = 77, attempt = 2, from = 5, count = 3, finish = QR_FINISH_LENGTH;
        const uint64_t us = 77; /* what the retry cost is nobody's usage */
        SAY(&rig, worker(1), tokens, .request_ids = {&id, 1}, .attempts = {&attempt, 1}, .indexes = {&from, 1}, .counts = {&count, 1},
            .tokens = {drawn_ids + 5, 3}, .logprob_bits = {drawn_ids + 5, 3}, .finishes = {&finish, 1}, .errors = {&error, 1},
            .cached_tokens = {&cached, 1}, .queue_us = {&us, 1}, .prefill_us = {&us, 1});
        assert_taken(1, 8);
        take(id, 5);
        assert_passed_on(id, 5, drawn_ids + 5, 3);
        take(id, 8);
        const qr_place_ended_t *e = NEXT(&rig, gateway, place_ended);
        assert_int_equal(e->finish, QR_FINISH_LENGTH);
        assert_int_equal(e->completion_tokens, 8);
        assert_int_equal(e->cached_tokens, 3);
        assert_int_equal(e->queue_us, 9);
        assert_int_equal(e->prefill_us, 9);
        rig_quiet(&rig);
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
    }
}

static void test_lost_without_another_worker(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    lose(true);
    rig_pass(&rig, 1999999);
    rig_quiet(&rig);
    rig_pass(&rig, 1);
    assert_ended(id, QR_FINISH_ERROR, QR_E_PEER_DOWN, 1);
    rig_quiet(&rig);
    id = id_of(0, 2); /* a token is still on its way to the gateway: it goes before the end */
    seen(2, 0);
    place_long(id, 8, 0);
    (void)assert_retry(2, id, 1, 0);
    draw(2, id, 1, 0, 1, 0);
    lose(true);
    rig_pass(&rig, 2000000);
    rig_quiet(&rig);
    take(id, 1);
    assert_ended(id, QR_FINISH_ERROR, QR_E_PEER_DOWN, 1);
    rig_quiet(&rig);
}

static void test_lost_when_the_budget_ends(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 3000000);
    rig_pass(&rig, 2000000);
    lose(true);
    rig_pass(&rig, 999999);
    rig_quiet(&rig);
    rig_pass(&rig, 1); /* before two seconds of waiting are over */
    assert_ended(id, QR_FINISH_ERROR, QR_E_DEADLINE, 1);
    id = id_of(0, 2);
    stream_on_2(id, 3000000);
    seen(1, 0);
    rig_pass(&rig, 3000000);
    lose(true);
    assert_ended(id, QR_FINISH_ERROR, QR_E_DEADLINE, 1); /* no worker is asked for what is late already */
    rig_quiet(&rig);
}

static void test_lost_while_it_is_cancelled(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0); /* cancelled, then lost: no other worker hears of it */
    seen(1, 0);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_STOP);
    (void)NEXT(&rig, worker(2), offer_cancel);
    rig_quiet(&rig);
    lose(true);
    assert_ended(id, QR_FINISH_STOP, 0, 1);
    rig_quiet(&rig);
    id = id_of(0, 2); /* lost, offered again, then cancelled */
    seen_full(2, QR_STATE_READY, 0, 1, 0, 64);
    place_long(id, 8, 0);
    (void)assert_retry(2, id, 1, 0);
    accepted(2, id, 1);
    lose(true);
    (void)assert_retry(1, id, 2, 0);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(NEXT(&rig, worker(1), offer_cancel)->attempt, 2);
    SAY(&rig, worker(1), offer_refused, .request_id = id, .attempt = 2, .reason = QR_E_BUSY);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 0);
    SAY(&rig, mesh, link_down, .node = 1, .reason = QR_E_IO);
    id = id_of(0, 3); /* lost, waiting, a token on its way to the gateway, then cancelled */
    seen(2, 0);
    place_long(id, 8, 0);
    draw(2, id, 1, 0, 1, 0);
    lose(true);
    rig_quiet(&rig);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    rig_quiet(&rig);
    take(id, 1);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 1);
    seen(2, 0);
    rig_quiet(&rig);
}

/* Every loss takes one of four retries; the one after them ends the request. */
static void test_losses_in_a_row(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    seen(1, 0);
    lose(true);
    (void)assert_retry(1, id, 2, 1);
    seen_full(3, QR_STATE_READY, 900, 1000, 0, 64);
    SAY(&rig, mesh, link_down, .node = 1, .reason = QR_E_IO); /* before it accepted */
    (void)assert_retry(3, id, 3, 1);
    accepted(3, id, 3);
    draw(3, id, 3, 1, 2, 0);
    assert_taken(3, 2);
    assert_passed_on(id, 1, drawn_ids + 1, 1);
    SAY(&rig, mesh, link_down, .node = 3, .reason = QR_E_IO);
    rig_quiet(&rig);
    take(id, 2);
    seen(2, 0);
    (void)assert_retry(2, id, 4, 2);
    lose(true);
    seen(2, 0);
    (void)assert_retry(2, id, 5, 2);
    accepted(2, id, 5);
    seen(1, 0);
    lose(true);
    assert_ended(id, QR_FINISH_ERROR, QR_E_PEER_DOWN, 2);
    rig_quiet(&rig);
    SAY(&rig, mesh, metrics_read, .version = 1);
    const qr_metrics_t *m = NEXT(&rig, mesh, metrics);
    assert_int_equal(m->values.data[0], 5);
    assert_int_equal(m->values.data[2], 4);
}

/* The last token is there and only the end is missing: nobody is asked again. */
static void test_lost_after_the_last_token(void **unused)
{
    (void)unused;
    static const uint8_t flags[64] = {[33] = QR_TOKEN_END};
    given.vocabulary = (qr_vocabulary_t){.count = 64, .flags = flags};
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    seen(1, 900);
    draw(2, id, 1, 1, 3, 0); /* 33 ends an answer */
    assert_taken(2, 3);
    assert_passed_on(id, 1, drawn_ids + 1, 2);
    lose(true);
    rig_quiet(&rig);
    take(id, 3);
    assert_ended(id, QR_FINISH_STOP, 0, 3);
    given.vocabulary.count = 0;
    id = id_of(0, 2);
    stream_on_2(id, 0);
    draw(2, id, 1, 1, 8, 0); /* as many as were asked for */
    assert_taken(2, 8);
    assert_passed_on(id, 1, drawn_ids + 1, 7);
    take(id, 8);
    lose(true);
    assert_ended(id, QR_FINISH_LENGTH, 0, 8);
    rig_quiet(&rig);
    given.vocabulary.count = 64;
    id = id_of(0, 3); /* 33 is a token like others for who ignores ends */
    seen(2, 0);
    SAY(&rig, gateway, place, .request_id = id, .tokens = {prompt_ids, PROMPT}, .max_tokens = 8, .ignore_eos = 1);
    draw(2, id, 1, 0, 3, 0);
    lose(true);
    assert_int_equal(NEXT(&rig, worker(1), offer)->tokens.count, PROMPT + 3);
}

/* Which errors of a worker are its own failing, and which would come again elsewhere. */
static void test_errors_that_are_tried_elsewhere(void **unused)
{
    (void)unused;
    static const uint8_t elsewhere[QR_E_COUNT] = {
        [QR_E_MEMORY] = 1,   [QR_E_IO] = 1,     [QR_E_BUSY] = 1,   [QR_E_SHORTFALL] = 1, [QR_E_PEER_DOWN] = 1, [QR_E_STALE] = 1,
        [QR_E_DRAINING] = 1, [QR_E_DEVICE] = 1, [QR_E_IN_USE] = 1, [QR_E_UNKNOWN] = 1,   [QR_E_NO_WORKER] = 1,
    };
    for (uint32_t error = 0; error < QR_E_COUNT; error++) {
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
        uint64_t id = id_of(0, 1);
        stream_on_2(id, 0);
        seen(1, 0);
        fails(2, id, 1, 1, QR_FINISH_ERROR, error);
        if (elsewhere[error])
            (void)assert_retry(1, id, 2, 1);
        else
            assert_ended(id, QR_FINISH_ERROR, error, 1);
        assert_taken(2, 1); /* either way it hears that its end was seen */
        rig_quiet(&rig);
    }
}

/* A worker that failed is asked again only when something new was heard of it; so is one that refused. */
static void test_the_only_worker_fails(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    fails(2, id, 1, 1, QR_FINISH_ERROR, QR_E_DEVICE);
    assert_taken(2, 1);
    rig_quiet(&rig);
    sequence--;
    seen(2, 0); /* the same observation again */
    rig_quiet(&rig);
    seen(2, 0);
    (void)assert_retry(2, id, 2, 1);
    SAY(&rig, worker(2), offer_refused, .request_id = id, .attempt = 2, .reason = QR_E_BUSY);
    rig_quiet(&rig);
    seen(2, 0);
    (void)assert_retry(2, id, 3, 1);
    SAY(&rig, worker(2), offer_refused, .request_id = id, .attempt = 3, .reason = QR_E_BUSY);
    rig_pass(&rig, 2000000);
    assert_ended(id, QR_FINISH_ERROR, QR_E_DEVICE, 1);
    rig_quiet(&rig);
}

/* Retries wait behind an offer without an answer as others do: fence, then the next. */
static void test_a_retry_that_is_not_answered(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    seen(1, 0);
    seen_full(3, QR_STATE_READY, 900, 1000, 0, 64);
    lose(true);
    (void)assert_retry(1, id, 2, 1);
    rig_pass(&rig, 500000);
    assert_int_equal(NEXT(&rig, worker(1), offer_cancel)->attempt, 2);
    (void)assert_retry(3, id, 3, 1);
    draw(1, id, 2, 1, 2, 0);
    assert_taken(1, NOT_WANTED);
    draw(3, id, 3, 1, 2, QR_FINISH_STOP);
    assert_taken(3, 2);
    assert_passed_on(id, 1, drawn_ids + 1, 1);
    take(id, 2);
    assert_ended(id, QR_FINISH_STOP, 0, 2);
    rig_quiet(&rig);
}

/* A worker that says that it has stopped, and a node with two workers: none of the node's is a candidate for the other's requests. */
static void test_losses_of_other_kinds(void **unused)
{
    (void)unused;
    const uint64_t twin = qr_address(2, 1, QR_ROLE_worker, 1);
    uint64_t id = id_of(0, 1);
    stream_on_2(id, 0);
    seen(1, 0);
    seen_full(2, QR_STATE_DOWN, 0, 1000, 0, 64);
    assert_int_equal(NEXT(&rig, worker(2), offer_cancel)->attempt, 1);
    (void)assert_retry(1, id, 2, 1);
    rig_quiet(&rig);
    draw(1, id, 2, 1, 2, QR_FINISH_STOP);
    take(id, 2);
    SAY(&rig, mesh, link_down, .node = 1, .reason = QR_E_IO);
    for (uint32_t k = 0; k < 2; k++) {
        id = id_of(0, 2 + k);
        if (k == 0) stream_on_2(id, 0);
        SAY(&rig, heartbeat, observation, .worker = twin, .worker_epoch = 5, .sequence = ++sequence, .state = QR_STATE_READY,
            .tokens_queued = k ? 0 : 50, .prefill_row_ns = 1000, .prefill_samples = 1, .step_us = 100, .step_samples = 1);
        if (k == 1) { /* the other way round: the later of the two has it */
            seen(2, 500);
            place_long(id, 8, 0);
            assert_int_equal(NEXT(&rig, twin, offer)->attempt, 1);
        }
        rig_quiet(&rig);
        lose(true);
        rig_quiet(&rig);
        rig_pass(&rig, 2000000);
        assert_int_equal(rig.outbox->count, 1);
    }
}

/* Room for tokens is bounded: who has no room for a prompt is refused; who has none for a token runs on and cannot be offered again. */
static void test_records_are_bounded(void **unused)
{
    (void)unused;
    enum { LONG = QR_CONTEXT_MAX, FIT = 8 };
    static uint32_t prompt[LONG];
    qr_given_t large = given;
    large.params.max_requests = 16;
    large.layout.context_tokens = LONG;
    rig_done(&rig);
    rig_init(&rig, &qr_router_class, &large, router);
    seen_full(2, QR_STATE_READY, 0, 1, 0, 0);
    for (uint32_t i = 0; i < FIT; i++) {
        SAY(&rig, gateway, place, .request_id = id_of(i, 1), .tokens = {prompt, LONG - 2}, .max_tokens = 3);
        assert_int_equal(NEXT(&rig, worker(2), offer)->tokens.count, LONG - 2);
    }
    place(id_of(FIT, 1), 1, 1);
    assert_refused(id_of(FIT, 1), QR_E_BUSY);
    draw(2, id_of(0, 1), 1, 0, 2, 0); /* fits: its last block has room */
    assert_taken(2, 2);
    assert_passed_on(id_of(0, 1), 0, drawn_ids, 2);
    assert_int_equal(rig.outbox->note_count, 0);
    take(id_of(0, 1), 2);
    draw(2, id_of(1, 1), 1, 0, 3, 0); /* one more than that */
    assert_taken(2, 3);
    assert_passed_on(id_of(1, 1), 0, drawn_ids, 3);
    assert_int_equal(rig.outbox->note_count, 1);
    take(id_of(1, 1), 3);
    rig_quiet(&rig);
    place(id_of(FIT, 2), 1, 1); /* what it gave up is room for others */
    (void)NEXT(&rig, worker(2), offer);
    SAY(&rig, gateway, place, .request_id = id_of(9, 1), .tokens = {prompt, 100}, .max_tokens = 200);
    (void)NEXT(&rig, worker(2), offer);
    draw(2, id_of(9, 1), 1, 0, 2, 0);
    assert_taken(2, 2);
    seen_full(1, QR_STATE_READY, 0, 1, 0, 0);
    lose(true);
    for (uint32_t i = 0; i < 9; i++) { /* all at once, those with a record; number 1 is complete and ends by itself */
        if (i == 1) {
            assert_ended(id_of(1, 1), QR_FINISH_LENGTH, 0, 3);
            continue;
        }
        const qr_offer_t *o = &rig.outbox->messages[rig.read++].body.offer;
        assert_int_equal(o->request_id, i == FIT ? id_of(FIT, 2) : id_of(i, 1));
        assert_int_equal(o->tokens.count, i == FIT ? 1 : i ? LONG - 2 : LONG);
    }
}

static void test_drain_and_stop_while_it_waits(void **unused)
{
    for (int stop = 0; stop < 2; stop++) {
        uint64_t id = id_of(0, 1);
        stream_on_2(id, 0);
        lose(true);
        SAY(&rig, mesh, drain, .budget_us = 1000000);
        rig_quiet(&rig);
        if (stop) {
            rig_pass(&rig, 1000000);
            assert_int_equal(NEXT(&rig, mesh, drained)->open_count, 1);
            SAY(&rig, mesh, stop, .budget_us = 1);
            assert_ended(id, QR_FINISH_ERROR, QR_E_DRAINING, 1);
            (void)NEXT(&rig, mesh, stopped);
        } else {
            seen(1, 0); /* what runs may end, on another worker too */
            (void)assert_retry(1, id, 2, 1);
            draw(1, id, 2, 1, 2, QR_FINISH_STOP);
            assert_taken(1, 2);
            assert_passed_on(id, 1, drawn_ids + 1, 1);
            take(id, 2);
            assert_ended(id, QR_FINISH_STOP, 0, 2);
            assert_int_equal(NEXT(&rig, mesh, drained)->open_count, 0);
        }
        rig_quiet(&rig);
        seen(2, 0);
        rig_quiet(&rig);
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
    }
}

/* ---- conversations ------------------------------------------------------------------------------------------------------ */

static void test_one_request_from_place_to_end(void **unused)
{
    (void)unused;
    uint64_t id = id_of(2, 1);
    seen(1, 0);
    SAY(&rig, gateway, place, .request_id = id, .tokens = U32_COLUMN(7, 8, 9), .max_tokens = 4, .temperature_bits = 11, .top_p_bits = 12,
        .min_p_bits = 13, .top_k = 14, .seed = 15, .logprobs = 1, .ignore_eos = 1, .tenant_salt = TEXT_COLUMN("tenant"),
        .cache_salt = TEXT_COLUMN("salt"), .priority = 16, .budget_us = 17);
    const qr_offer_t *o = NEXT(&rig, worker(1), offer);
    assert_int_equal(o->attempt, 1);
    assert_int_equal(o->generated_from, 3);
    assert_int_equal(o->tokens.count, 3);
    assert_int_equal(o->tokens.data[2], 9);
    assert_int_equal(o->max_tokens, 4);
    assert_int_equal(o->temperature_bits, 11);
    assert_int_equal(o->top_p_bits, 12);
    assert_int_equal(o->min_p_bits, 13);
    assert_int_equal(o->top_k, 14);
    assert_int_equal(o->seed, 15);
    assert_int_equal(o->logprobs, 1);
    assert_int_equal(o->ignore_eos, 1);
    assert_bytes(o->tenant_salt, "tenant");
    assert_bytes(o->cache_salt, "salt");
    assert_int_equal(o->priority, 16);
    assert_int_equal(o->budget_us, 17);
    rig_quiet(&rig);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    rig_quiet(&rig);
    const uint32_t ids[] = {31, 32, 33};
    tokens(1, id, 1, 0, ids, 1, 0);
    assert_taken(1, 1);
    assert_passed_on(id, 0, ids, 1);
    rig_quiet(&rig);
    tokens(1, id, 1, 1, ids + 1, 1, 0); /* no credit towards the gateway: kept */
    assert_taken(1, 2);
    rig_quiet(&rig);
    tokens(1, id, 1, 2, ids + 2, 1, QR_FINISH_LENGTH);
    assert_taken(1, 3);
    rig_quiet(&rig);
    take(id, 1);
    assert_passed_on(id, 1, ids + 1, 2); /* what came meanwhile goes as one */
    rig_quiet(&rig);
    take(id, 3);
    const qr_place_ended_t *e = NEXT(&rig, gateway, place_ended);
    assert_int_equal(e->finish, QR_FINISH_LENGTH);
    assert_int_equal(e->completion_tokens, 3);
    assert_int_equal(e->cached_tokens, 3);
    assert_int_equal(e->queue_us, 9);
    assert_int_equal(e->prefill_us, 9);
    rig_quiet(&rig);
}

static void test_best_worker_by_predicted_time(void **unused)
{
    (void)unused;
    seen_full(1, QR_STATE_READY, 100, 1000, 0, 64); /* 100 rows wait, 1 us each */
    seen_full(2, QR_STATE_READY, 10, 20000, 0, 64); /* 10 rows wait, 20 us each */
    place(id_of(0, 1), 4, 1);
    assert_offer(1, id_of(0, 1), 1); /* 104 us against 280 us */
    place(id_of(1, 1), 60, 1);
    assert_offer(1, id_of(1, 1), 1); /* 164 against 1400 */
    seen_full(2, QR_STATE_READY, 10, 2000, 0, 64);
    place(id_of(2, 1), 4, 1);
    assert_offer(2, id_of(2, 1), 1);                             /* 28 us against 168: what was offered since the last observation counts */
    seen_full(1, QR_STATE_READY, UINT64_MAX, UINT64_MAX, 0, 64); /* numbers from outside never wrap */
    place(id_of(3, 1), 4, 1);
    assert_offer(2, id_of(3, 1), 1);
}

static void seen_model(uint32_t node, uint8_t model, uint64_t queued)
{
    SAY(&rig, heartbeat, observation, .worker = worker(node), .worker_epoch = 5, .sequence = ++sequence, .state = QR_STATE_READY,
        .fingerprint = {{[31] = model}}, .tokens_queued = queued, .context_tokens = 64, .prefill_row_ns = 1000, .prefill_samples = 1);
}

/* Workers of two fingerprints never serve one router at once: answers would depend on where a request runs. */
static void test_workers_share_one_fingerprint(void **unused)
{
    (void)unused;
    seen_model(2, 7, 1000);
    seen_model(3, 8, 0); /* faster, but other numbers */
    place(id_of(0, 1), 4, 1);
    assert_offer(2, id_of(0, 1), 1);
    SAY(&rig, worker(2), offer_refused, .request_id = id_of(0, 1), .attempt = 1, .reason = QR_E_BUSY);
    assert_refused(id_of(0, 1), QR_E_BUSY);
    lose(true); /* node 2: nobody with 7 is left */
    seen_model(3, 8, 0);
    place(id_of(0, 2), 4, 1);
    assert_offer(3, id_of(0, 2), 1);
    seen_model(2, 7, 0);
    place(id_of(1, 2), 4, 1);
    assert_offer(3, id_of(1, 2), 1);
    qr_given_t computes = given; /* a node that computes holds on to its own */
    computes.layout.fingerprint.bytes[31] = 7;
    rig_done(&rig);
    rig_init(&rig, &qr_router_class, &computes, router);
    SAY(&rig, mesh, start, .epoch = 1, .seed = 1, .partners = U64_COLUMN(heartbeat, worker(1), worker(2)));
    seen_model(3, 8, 0);
    place(id_of(0, 3), 4, 1);
    rig_quiet(&rig);
    seen_model(1, 7, 0);
    assert_offer(1, id_of(0, 3), 1);
    rig_done(&rig);
    rig_init(&rig, &qr_router_class, &given, router);
}

static void test_ties_fall_to_the_smaller_address(void **unused)
{
    (void)unused;
    seen(2, 0);
    seen(1, 0);
    place(id_of(0, 1), 4, 1);
    assert_offer(1, id_of(0, 1), 1);
    place(id_of(1, 1), 4, 1); /* the first now has rows waiting */
    assert_offer(2, id_of(1, 1), 1);
}

static void test_each_candidate_is_asked_once(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    seen(2, 50);
    place(id, 4, 1);
    assert_offer(1, id, 1);
    SAY(&rig, worker(1), offer_refused, .request_id = id, .attempt = 1, .reason = QR_E_BUSY, .retry_after_ms = 70);
    assert_offer(2, id, 2);
    SAY(&rig, worker(2), offer_refused, .request_id = id, .attempt = 2, .reason = QR_E_NEVER_FITS);
    const qr_place_refused_t *r = NEXT(&rig, gateway, place_refused);
    assert_int_equal(r->reason, QR_E_BUSY); /* any that was busy may have room later */
    assert_int_equal(r->retry_after_ms, 70);
    rig_quiet(&rig);
    id = id_of(0, 2);
    place(id, 4, 1);
    assert_offer(1, id, 1);
    SAY(&rig, worker(1), offer_refused, .request_id = id, .attempt = 1, .reason = QR_E_NEVER_FITS);
    assert_offer(2, id, 2);
    SAY(&rig, worker(2), offer_refused, .request_id = id, .attempt = 2, .reason = QR_E_NEVER_FITS);
    assert_refused(id, QR_E_NEVER_FITS);
    rig_quiet(&rig);
}

static void test_no_worker_within_a_second(void **unused)
{
    (void)unused;
    place(id_of(0, 1), 4, 1);
    rig_quiet(&rig);
    rig_pass(&rig, 400000);
    place(id_of(1, 1), 4, 1);
    rig_quiet(&rig);
    seen_full(2, QR_STATE_STARTING, 0, 1000, 0, 64); /* not ready: no reason to give up yet */
    rig_quiet(&rig);
    rig_pass(&rig, 600000);
    assert_refused(id_of(0, 1), QR_E_NO_WORKER);
    rig_quiet(&rig);
    seen(1, 0);
    assert_offer(1, id_of(1, 1), 1); /* the other had waited for less */
    rig_quiet(&rig);
}

static void test_why_nobody_can_take_it(void **unused)
{
    (void)unused;
    seen_full(1, QR_STATE_DRAINING, 0, 1000, 0, 64);
    seen_full(2, QR_STATE_DRAINING, 0, 1000, 0, 64);
    place(id_of(0, 1), 4, 1);
    assert_refused(id_of(0, 1), QR_E_DRAINING);
    seen_full(1, QR_STATE_READY, 0, 1000, 0, 3); /* a smaller context than the prompt */
    place(id_of(0, 2), 4, 1);
    assert_refused(id_of(0, 2), QR_E_CONTEXT);
    place(id_of(0, 3), 65, 1);
    assert_refused(id_of(0, 3), QR_E_CONTEXT);
    place(id_of(0, 4), 0, 1);
    assert_refused(id_of(0, 4), QR_E_INVALID);
    place(id_of(9, 5), 1, 1);
    assert_refused(id_of(9, 5), QR_E_INVALID);
    rig_quiet(&rig);
}

static void test_old_observations_do_not_count(void **unused)
{
    (void)unused;
    given.params.peer_down_ms = 100;
    seen_full(1, QR_STATE_READY, 0, 1000, 150000, 64);
    rig_pass(&rig, 50001); /* 200,001 us old now */
    place(id_of(0, 1), 4, 1);
    rig_quiet(&rig);
    seen_full(1, QR_STATE_READY, 0, 1000, 10, 64);
    assert_offer(1, id_of(0, 1), 1);
    SAY(&rig, heartbeat, observation, .worker = worker(1), .worker_epoch = 5, .sequence = sequence - 1,
        .state = QR_STATE_DOWN); /* older: nothing changes */
    place(id_of(1, 1), 4, 1);
    assert_offer(1, id_of(1, 1), 1);
}

static void test_a_silent_worker_is_fenced_and_the_next_one_asked(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    seen(2, 50);
    place(id, 4, 1);
    assert_offer(1, id, 1);
    rig_pass(&rig, 499999);
    rig_quiet(&rig);
    rig_pass(&rig, 1);
    const qr_offer_cancel_t *cancel = NEXT(&rig, worker(1), offer_cancel); /* first the fence */
    assert_int_equal(cancel->attempt, 1);
    assert_offer(2, id, 2);
    rig_quiet(&rig);
    rig_pass(&rig, 500000);
    (void)NEXT(&rig, worker(2), offer_cancel);
    assert_refused(id, QR_E_NO_WORKER);
    rig_quiet(&rig);
}

/* W1 was asked first and was slow. Its late answer and tokens, in every order among those of W2, change nothing. */
static void rt_03(uint32_t order)
{
    static const uint32_t stale[] = {901, 902, 903, 904}, good[] = {101, 102, 103, 104};
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    seen(2, 50);
    place(id, 4, 4);
    assert_offer(1, id, 1);
    rig_pass(&rig, 500000);
    (void)NEXT(&rig, worker(1), offer_cancel);
    assert_offer(2, id, 2);
    uint32_t first = 0, second = 0, delivered = 0, ends = 0;
    for (uint32_t step = 0; step < 8; step++) {
        if (order >> step & 1u) {
            switch (first++) {
            case 0: SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1); break;
            case 1:
                tokens(1, id, 1, 0, stale, 2, 0);
                assert_taken(1, NOT_WANTED);
                break;
            case 2:
                tokens(1, id, 1, delivered, stale, 4 - delivered, 0);
                assert_taken(1, NOT_WANTED);
                break; /* even at the right index */
            case 3:
                tokens(1, id, 1, 2, stale + 2, 2, QR_FINISH_LENGTH);
                assert_taken(1, NOT_WANTED);
                break;
            }
            if (ends == 0) rig_quiet(&rig); /* nothing of it reaches the gateway */
            continue;
        }
        switch (second++) {
        case 0:
            SAY(&rig, worker(2), offer_accepted, .request_id = id, .attempt = 2);
            rig_quiet(&rig);
            continue;
        case 1: tokens(2, id, 2, 0, good, 1, 0); break;
        case 2: tokens(2, id, 2, 1, good + 1, 1, 0); break;
        case 3: tokens(2, id, 2, 2, good + 2, 2, QR_FINISH_LENGTH); break;
        }
        uint32_t count = second == 4 ? 2 : 1;
        assert_taken(2, delivered + count);
        assert_passed_on(id, delivered, good + delivered, count);
        rig_quiet(&rig);
        delivered += count;
        take(id, delivered);
        if (second == 4) {
            assert_ended(id, QR_FINISH_LENGTH, 0, 4);
            ends++;
        }
        rig_quiet(&rig);
    }
    assert_int_equal(delivered, 4);
    assert_int_equal(ends, 1);
}

static void test_RT_03(void **unused)
{
    uint32_t orders = 0;
    for (uint32_t order = 0; order < 256; order++) {
        if (__builtin_popcount(order) != 4) continue;
        rt_03(order);
        orders++;
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
    }
    assert_int_equal(orders, 70);
}

static void test_repeats_gaps_and_strangers(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    const uint32_t ids[] = {11, 12, 13, 14};
    seen(1, 0);
    place(id, 4, 9);
    assert_offer(1, id, 1);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    tokens(1, id, 1, 0, ids, 2, 0);
    assert_taken(1, 2);
    assert_passed_on(id, 0, ids, 2);
    tokens(1, id, 1, 0, ids, 3, 0); /* a repeat with one more */
    assert_taken(1, 3);
    tokens(1, id, 1, 0, ids, 3, 0);
    assert_taken(1, 3);
    tokens(1, id, 1, 4, ids, 1, QR_FINISH_STOP); /* a gap: neither token nor end counts */
    assert_taken(1, 3);
    rig_quiet(&rig);
    take(id, 2);
    assert_passed_on(id, 2, ids + 2, 1);
    take(id, 2); /* the gateway had no room: it comes again */
    assert_passed_on(id, 2, ids + 2, 1);
    take(id, 3);
    rig_quiet(&rig);
    tokens(2, id, 1, 3, ids, 1, 0); /* another worker */
    assert_taken(2, NOT_WANTED);
    tokens(1, id, 2, 3, ids, 1, 0); /* an attempt that was never made */
    assert_taken(1, NOT_WANTED);
    tokens(1, id_of(3, 9), 1, 0, ids, 1, 0);
    assert_taken(1, NOT_WANTED);
    SAY(&rig, worker(1), tokens, .request_ids = {&id, 1}, .counts = U32_COLUMN(3)); /* columns that do not add up */
    assert_int_equal(NEXT(&rig, worker(1), tokens_taken)->request_ids.count, 0);
    rig_quiet(&rig);
    tokens(1, id, 1, 3, ids + 3, 1, QR_FINISH_STOP);
    assert_taken(1, 4);
    assert_passed_on(id, 3, ids + 3, 1);
    take(id, 4);
    assert_ended(id, QR_FINISH_STOP, 0, 4);
    rig_quiet(&rig);
}

/* Without credit towards the gateway a request keeps 64 tokens; the worker keeps the rest. */
static void test_undelivered_tokens_are_bounded(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    uint32_t ids[200], sent = 0, delivered = 0;
    for (uint32_t i = 0; i < 200; i++) ids[i] = i;
    seen(1, 0);
    place(id, 4, 200);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    tokens(1, id, 1, 0, ids, 1, 0);
    assert_taken(1, 1);
    assert_passed_on(id, 0, ids, 1);
    tokens(1, id, 1, 1, ids + 1, 199, QR_FINISH_LENGTH);
    assert_taken(1, 64);
    sent = 64;
    take(id, 1);
    delivered = 1;
    while (delivered < 200) {
        uint32_t count = sent - delivered;
        assert_passed_on(id, delivered, ids + delivered, count);
        rig_quiet(&rig);
        take(id, delivered + count);
        delivered += count;
        if (delivered == 200) break;
        rig_quiet(&rig);
        tokens(1, id, 1, sent, ids + sent, 200 - sent, QR_FINISH_LENGTH);
        sent = qr_min_u32(200, sent + 64);
        assert_taken(1, sent);
    }
    assert_ended(id, QR_FINISH_LENGTH, 0, 200);
    rig_quiet(&rig);
}

static void test_cancel_in_every_state(void **unused)
{
    (void)unused;
    const uint32_t ids[] = {1, 2};
    place(id_of(0, 1), 4, 9); /* waiting */
    SAY(&rig, gateway, place_cancel, .request_id = id_of(0, 1), .finish = QR_FINISH_CANCELLED);
    assert_ended(id_of(0, 1), QR_FINISH_CANCELLED, 0, 0);
    seen(1, 0);
    uint64_t id = id_of(0, 2); /* offered, then refused by the worker */
    place(id, 4, 9);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    assert_int_equal(NEXT(&rig, worker(1), offer_cancel)->finish, QR_FINISH_CANCELLED);
    rig_quiet(&rig);
    SAY(&rig, worker(1), offer_refused, .request_id = id, .attempt = 1, .reason = QR_E_BUSY);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 0);
    SAY(&rig, worker(1), offer_cancelled, .request_id = id, .attempt = 1, .reason = QR_E_UNKNOWN);
    rig_quiet(&rig);
    id = id_of(0, 3); /* running: the end comes in tokens, what is drawn meanwhile is not passed on */
    place(id, 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    tokens(1, id, 1, 0, ids, 1, 0);
    assert_taken(1, 1);
    assert_passed_on(id, 0, ids, 1);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_STOP);
    assert_int_equal(NEXT(&rig, worker(1), offer_cancel)->finish, QR_FINISH_STOP);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_STOP);
    rig_quiet(&rig);
    SAY(&rig, worker(1), offer_cancelled, .request_id = id, .attempt = 1);
    tokens(1, id, 1, 1, ids + 1, 1, QR_FINISH_STOP);
    assert_taken(1, 2);
    rig_quiet(&rig);
    take(id, 1);
    assert_ended(id, QR_FINISH_STOP, 0, 2);
    rig_quiet(&rig);
    id = id_of(0, 4); /* running, but the worker knows nothing of it */
    place(id, 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    SAY(&rig, worker(1), offer_cancelled, .request_id = id, .attempt = 1, .reason = QR_E_UNKNOWN);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 0);
    rig_quiet(&rig);
}

static void test_refusal_after_acceptance(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    const uint32_t one = 1, zero = 0, finish = QR_FINISH_REFUSED, error = QR_E_NEVER_FITS;
    seen(1, 0);
    place(id, 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    SAY(&rig, worker(1), tokens, .request_ids = {&id, 1}, .attempts = {&one, 1}, .indexes = {&zero, 1}, .counts = {&zero, 1},
        .finishes = {&finish, 1}, .errors = {&error, 1});
    assert_refused(id, QR_E_NEVER_FITS);
    assert_taken(1, 0);
    rig_quiet(&rig);
}

static void test_a_lost_node(void **unused)
{
    const uint32_t ids[] = {1, 2};
    for (int link = 0; link < 2; link++) {
        uint64_t here = id_of(0, 1), offered = id_of(1, 1), running = id_of(2, 1), cancelled = id_of(3, 1);
        seen(2, 0);
        place(running, 4, 9);
        assert_offer(2, running, 1);
        SAY(&rig, worker(2), offer_accepted, .request_id = running, .attempt = 1);
        tokens(2, running, 1, 0, ids, 1, 0);
        assert_taken(2, 1);
        assert_passed_on(running, 0, ids, 1);
        place(cancelled, 4, 9);
        SAY(&rig, worker(2), offer_accepted, .request_id = cancelled, .attempt = 1);
        SAY(&rig, gateway, place_cancel, .request_id = cancelled, .finish = QR_FINISH_CANCELLED);
        place(offered, 4, 9);
        assert_offer(2, offered, 1);
        seen_full(1, QR_STATE_READY, 0, 1, 0, 64);
        place(here, 4, 9);
        assert_offer(1, here, 1);
        SAY(&rig, gateway, probe, .probe_id = 4); /* goes to the better one, which is here */
        uint64_t probe_id = NEXT(&rig, worker(1), probe)->probe_id;
        lose(link);
        if (!link) (void)NEXT(&rig, worker(2), offer_cancel); /* of `offered` */
        assert_offer(1, offered, 2);
        if (!link) (void)NEXT(&rig, worker(2), offer_cancel); /* of `running` */
        const qr_offer_t *again = NEXT(&rig, worker(1), offer);
        assert_int_equal(again->request_id, running);
        assert_int_equal(again->tokens.count, 5);
        assert_ended(cancelled, QR_FINISH_CANCELLED, 0, 0);
        rig_quiet(&rig);
        take(running, 1);
        rig_quiet(&rig);
        tokens(2, running, 1, 1, ids + 1, 1, 0); /* it was not dead: fenced all the same */
        assert_taken(2, NOT_WANTED);
        SAY(&rig, worker(1), probe_done, .probe_id = probe_id);
        assert_int_equal(NEXT(&rig, gateway, probe_done)->probe_id, 4);
        place(id_of(5, 1), 4, 9); /* nothing more is offered there until it is seen again */
        assert_offer(1, id_of(5, 1), 1);
        rig_quiet(&rig);
        assert_int_equal(end(unused), 0);
        assert_int_equal(begin(unused), 0);
    }
}

static void test_probe_to_a_node_that_goes_down(void **unused)
{
    (void)unused;
    SAY(&rig, gateway, probe, .probe_id = 1);
    assert_int_equal(NEXT(&rig, gateway, probe_done)->reason, QR_E_NO_WORKER);
    seen(2, 0);
    SAY(&rig, gateway, probe, .probe_id = 2);
    uint64_t probe_id = NEXT(&rig, worker(2), probe)->probe_id;
    lose(false);
    const qr_probe_done_t *done = NEXT(&rig, gateway, probe_done);
    assert_int_equal(done->probe_id, 2);
    assert_int_equal(done->reason, QR_E_PEER_DOWN);
    SAY(&rig, worker(2), probe_done, .probe_id = probe_id);
    rig_quiet(&rig);
    for (uint32_t link = 0; link < 2; link++) { /* another one is ready: it answers for the edge */
        seen(1, 1000);
        seen(2, 0);
        SAY(&rig, gateway, probe, .probe_id = 3 + link);
        probe_id = NEXT(&rig, worker(2), probe)->probe_id;
        lose(link);
        uint64_t next_id = NEXT(&rig, worker(1), probe)->probe_id;
        rig_quiet(&rig);
        if (!link) SAY(&rig, worker(2), probe_done, .probe_id = probe_id, .reason = QR_E_DRAINING); /* too late */
        rig_quiet(&rig);
        SAY(&rig, worker(1), probe_done, .probe_id = next_id);
        done = NEXT(&rig, gateway, probe_done);
        assert_int_equal(done->probe_id, 3 + link);
        assert_int_equal(done->reason, 0);
        rig_quiet(&rig);
    }
}

/* The questions to a node that was silent stay open until it answers or its link ends: while they take all credit, the next one is asked. */
static void test_probe_passes_over_a_worker_without_credit(void **unused)
{
    (void)unused;
    enum { WINDOW = 16 };
    uint64_t ids[WINDOW];
    seen(2, 0);
    for (uint32_t i = 0; i < WINDOW; i++) {
        SAY(&rig, gateway, probe, .probe_id = i);
        ids[i] = NEXT(&rig, worker(2), probe)->probe_id;
    }
    lose(false);
    for (uint32_t i = 0; i < WINDOW; i++) assert_int_equal(NEXT(&rig, gateway, probe_done)->reason, QR_E_PEER_DOWN);
    seen(2, 0);
    SAY(&rig, gateway, probe, .probe_id = 20);
    assert_int_equal(NEXT(&rig, gateway, probe_done)->reason, QR_E_BUSY); /* alone */
    seen(1, 1000);
    SAY(&rig, gateway, probe, .probe_id = 21);
    uint64_t probe_id = NEXT(&rig, worker(1), probe)->probe_id;
    SAY(&rig, worker(1), probe_done, .probe_id = probe_id);
    assert_int_equal(NEXT(&rig, gateway, probe_done)->reason, 0);
    SAY(&rig, worker(2), probe_done, .probe_id = ids[0]); /* late, and its credit is back */
    rig_quiet(&rig);
    SAY(&rig, gateway, probe, .probe_id = 22);
    (void)NEXT(&rig, worker(2), probe);
    rig_quiet(&rig);
}

/* One that is not ready (its catalog is still read) does not answer for the others. */
static void test_probe_goes_on_to_a_worker_that_is_ready(void **unused)
{
    (void)unused;
    seen(1, 0);
    seen(2, 0);
    for (uint32_t ready = 0; ready < 2; ready++) {
        SAY(&rig, gateway, probe, .probe_id = 3 + ready);
        uint64_t first = NEXT(&rig, worker(1), probe)->probe_id;
        SAY(&rig, worker(1), probe_done, .probe_id = first, .reason = QR_E_BUSY);
        uint64_t second = NEXT(&rig, worker(2), probe)->probe_id;
        rig_quiet(&rig);
        SAY(&rig, worker(2), probe_done, .probe_id = second, .reason = ready ? 0 : QR_E_DRAINING);
        const qr_probe_done_t *done = NEXT(&rig, gateway, probe_done);
        assert_int_equal(done->probe_id, 3 + ready);
        assert_int_equal(done->reason, ready ? 0 : QR_E_DRAINING);
        rig_quiet(&rig);
    }
}

static void test_a_worker_that_began_anew(void **unused)
{
    (void)unused;
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    place(id, 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    SAY(&rig, heartbeat, observation, .worker = worker(1), .worker_epoch = 6, .sequence = 1, .state = QR_STATE_READY);
    assert_offer(1, id, 2); /* it lost the request and may have it again */
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 2);
    SAY(&rig, heartbeat, observation, .worker = worker(1), .worker_epoch = 2, .sequence = 1, .state = QR_STATE_READY);
    assert_offer(1, id, 3); /* its clock was set back: epochs have no order */
    place(id_of(0, 3), 4, 9);
    assert_refused(id_of(0, 3), QR_E_IN_USE);
    rig_quiet(&rig);
}

/* After a lost link nothing of the old session counts: the same worker, said anew with a smaller sequence, is offered requests. */
static void test_a_link_that_comes_back(void **unused)
{
    (void)unused;
    sequence = 50;
    seen(2, 0);
    lose(true);
    sequence = 3;
    seen(2, 0);
    place(id_of(0, 1), 4, 9);
    assert_offer(2, id_of(0, 1), 1);
}

/* A worker that takes the cancel and never says that the request ended does not keep it here. */
static void test_a_cancel_without_an_end(void **unused)
{
    (void)unused;
    const uint32_t ids[] = {1, 2};
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    place(id, 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    (void)NEXT(&rig, worker(1), offer_cancel);
    SAY(&rig, worker(1), offer_cancelled, .request_id = id, .attempt = 1);
    rig_pass(&rig, 499999);
    rig_quiet(&rig);
    rig_pass(&rig, 1);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 0);
    rig_quiet(&rig);
    tokens(1, id, 1, 0, ids, 1, QR_FINISH_CANCELLED);
    assert_taken(1, NOT_WANTED);
    id = id_of(0, 2); /* cancelled while offered, accepted then, silent ever after */
    place(id, 4, 9);
    assert_offer(1, id, 1);
    SAY(&rig, gateway, place_cancel, .request_id = id, .finish = QR_FINISH_CANCELLED);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    rig_pass(&rig, 500000);
    assert_ended(id, QR_FINISH_CANCELLED, 0, 0);
}

/* A worker that says more tokens than were asked for is cancelled; none of the surplus reaches the gateway. */
static void test_more_tokens_than_asked_for(void **unused)
{
    (void)unused;
    const uint32_t ids[] = {1, 2, 3, 4};
    uint64_t id = id_of(0, 1);
    seen(1, 0);
    place(id, 4, 3);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    tokens(1, id, 1, 0, ids, 2, 0);
    assert_taken(1, 2);
    assert_passed_on(id, 0, ids, 2);
    tokens(1, id, 1, 2, ids, 2, 0);
    assert_int_equal(NEXT(&rig, worker(1), offer_cancel)->attempt, 1);
    assert_taken(1, NOT_WANTED);
    rig_quiet(&rig);
    take(id, 2);
    assert_ended(id, QR_FINISH_ERROR, QR_E_PROTOCOL, 2);
    rig_quiet(&rig);
}

/* Prompts that wait are kept in a bounded place: full means BUSY, and it is whole again afterwards. */
static void test_prompts_are_bounded(void **unused)
{
    (void)unused;
    qr_given_t small = given;
    small.params.max_requests = 4;
    rig_done(&rig);
    rig_init(&rig, &qr_router_class, &small, router); /* 4 x 64 tokens */
    for (uint64_t round = 1; round < 50; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t length = (uint32_t)(round * 7 + i * 13) % 64 + 1, prompt[64];
            for (uint32_t k = 0; k < length; k++) prompt[k] = (uint32_t)(round * 1000 + i * 100 + k);
            SAY(&rig, gateway, place, .request_id = id_of(i, round), .tokens = {prompt, length}, .max_tokens = 1);
            rig_quiet(&rig);
        }
        uint32_t gone = (uint32_t)round % 4;
        SAY(&rig, gateway, place_cancel, .request_id = id_of(gone, round), .finish = QR_FINISH_CANCELLED);
        assert_ended(id_of(gone, round), QR_FINISH_CANCELLED, 0, 0);
        seen(1, 0);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == gone) continue;
            const qr_offer_t *offer = NEXT(&rig, worker(1), offer);
            assert_int_equal(offer->tokens.count, (round * 7 + i * 13) % 64 + 1);
            for (uint32_t k = 0; k < offer->tokens.count; k++) assert_int_equal(offer->tokens.data[k], round * 1000 + i * 100 + k);
        }
        rig_quiet(&rig);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == gone) continue;
            SAY(&rig, worker(1), offer_accepted, .request_id = id_of(i, round), .attempt = 1);
            tokens(1, id_of(i, round), 1, 0, zeros, 0, QR_FINISH_LENGTH);
            assert_ended(id_of(i, round), QR_FINISH_LENGTH, 0, 0);
        }
        SAY(&rig, mesh, link_down, .node = 1, .reason = 0); /* forget the worker for the next round */
    }
}

static void test_drain_and_stop(void **unused)
{
    (void)unused;
    seen(1, 0);
    place(id_of(0, 1), 4, 9);
    place(id_of(1, 1), 4, 9);
    SAY(&rig, worker(1), offer_accepted, .request_id = id_of(1, 1), .attempt = 1);
    SAY(&rig, mesh, drain, .budget_us = 300000);
    rig_quiet(&rig);
    place(id_of(2, 1), 4, 9);
    assert_refused(id_of(2, 1), QR_E_DRAINING);
    rig_pass(&rig, 300000);
    assert_int_equal(NEXT(&rig, mesh, drained)->open_count, 2);
    SAY(&rig, mesh, stop, .budget_us = 1);
    (void)NEXT(&rig, worker(1), offer_cancel);
    assert_ended(id_of(0, 1), QR_FINISH_ERROR, QR_E_DRAINING, 0);
    (void)NEXT(&rig, worker(1), offer_cancel);
    assert_ended(id_of(1, 1), QR_FINISH_ERROR, QR_E_DRAINING, 0);
    (void)NEXT(&rig, mesh, stopped);
    rig_quiet(&rig);
}

/* Another node's gateway and heartbeat do not reach this router: no answer goes astray, no worker of ours is replaced. */
static void test_strangers_of_other_nodes(void **unused)
{
    (void)unused;
    const uint64_t their_gateway = qr_address(2, 0, QR_ROLE_gateway, 0), their_heartbeat = qr_address(2, 0, QR_ROLE_heartbeat, 0);
    seen(1, 0);
    SAY(&rig, their_gateway, probe, .probe_id = 9);
    const qr_probe_done_t *done = NEXT(&rig, their_gateway, probe_done);
    assert_int_equal(done->probe_id, 9);
    assert_int_equal(done->reason, QR_E_BUSY);
    rig_quiet(&rig);
    uint64_t id = id_of(0, 1);
    place(id, 4, 9);
    assert_offer(1, id, 1);
    SAY(&rig, worker(1), offer_accepted, .request_id = id, .attempt = 1);
    SAY(&rig, their_heartbeat, observation, .worker = worker(1), .worker_epoch = 99, .sequence = 1, .state = QR_STATE_DOWN);
    rig_quiet(&rig); /* the request still runs */
    assert_int_equal(rig.outbox->note_count, 1);
    place(id_of(1, 1), 4, 9);
    assert_offer(1, id_of(1, 1), 1);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        T(test_one_request_from_place_to_end),
        T(test_best_worker_by_predicted_time),
        T(test_ties_fall_to_the_smaller_address),
        T(test_workers_share_one_fingerprint),
        T(test_each_candidate_is_asked_once),
        T(test_no_worker_within_a_second),
        T(test_why_nobody_can_take_it),
        T(test_old_observations_do_not_count),
        T(test_a_silent_worker_is_fenced_and_the_next_one_asked),
        T(test_RT_03),
        T(test_repeats_gaps_and_strangers),
        T(test_undelivered_tokens_are_bounded),
        T(test_cancel_in_every_state),
        T(test_refusal_after_acceptance),
        T(test_a_lost_node),
        T(test_lost_before_acceptance),
        T(test_lost_before_the_first_token),
        T(test_lost_mid_stream),
        T(test_lost_without_another_worker),
        T(test_lost_when_the_budget_ends),
        T(test_lost_while_it_is_cancelled),
        T(test_losses_in_a_row),
        T(test_lost_after_the_last_token),
        T(test_errors_that_are_tried_elsewhere),
        T(test_the_only_worker_fails),
        T(test_a_retry_that_is_not_answered),
        T(test_losses_of_other_kinds),
        T(test_records_are_bounded),
        T(test_drain_and_stop_while_it_waits),
        T(test_probe_to_a_node_that_goes_down),
        T(test_probe_passes_over_a_worker_without_credit),
        T(test_probe_goes_on_to_a_worker_that_is_ready),
        T(test_a_worker_that_began_anew),
        T(test_a_link_that_comes_back),
        T(test_a_cancel_without_an_end),
        T(test_more_tokens_than_asked_for),
        T(test_prompts_are_bounded),
        T(test_drain_and_stop),
        T(test_strangers_of_other_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
