/* link: qr_transport qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_heartbeat qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_detokenize qr_actor_plan qr_actor_calibration qr_messages qr_actor_decisions */
/* What other nodes may send, made of chance: no message breaks an invariant of gateway, router, heartbeat, worker or scheduler, whatever
 * is in it. Half of the messages are pure noise, half nearly fit an open conversation. As in a host, what an actor hears is judged first
 * and what it says must be allowed: an answer to the wrong asker or a question beyond its window fails here. Scheduler and
 * page_manager, which live in this node, speak in well-formed messages. */
#include "tests/unit/edge_harness.h"

#include "actors/gateway.h"
#include "actors/heartbeat.h"
#include "actors/router.h"
#include "actors/scheduler.h"
#include "actors/worker.h"
#include "messages/random.h"
#include "messages/schema.h"
#include "transport/pair.h"

enum { ROUNDS = 30000, ARENA_BYTES = 1 << 24 };

static words_t words;
static qr_given_t given;
static qr_prng_t prng;
static rig_t rig;
static uint8_t *memory;
static qr_pairs_t *pairs;

static uint64_t local(uint8_t role) { return qr_address(1, 0, role, 0); }
static uint64_t remote(uint8_t role) { return qr_address(2, (uint8_t)(role != QR_ROLE_heartbeat), role, 0); }
static uint32_t below(uint64_t bound) { return (uint32_t)qr_prng_below(&prng, bound); }

typedef struct source {
    uint16_t type;
    uint8_t role, node; /* who says it; node 3: an address nobody knows */
} source_t;

static uint64_t address_of(const source_t *s)
{
    if (s->node == 3) return qr_address(3, 0, s->role, (uint16_t)below(2));
    return s->node == 1 ? local(s->role) : remote(s->role);
}

/* Ids the actor under test has used lately. */
static uint64_t ids[8];

static void remember_ids(void)
{
    for (uint32_t i = 0; i < rig.outbox->count; i++) {
        const qr_message_t *m = &rig.outbox->messages[i];
        if (m->type == QR_MESSAGE_place) ids[below(8)] = m->body.place.request_id;
        if (m->type == QR_MESSAGE_text_encode) ids[below(8)] = m->body.text_encode.request_id;
        if (m->type == QR_MESSAGE_offer) ids[below(8)] = m->body.offer.request_id;
        if (m->type == QR_MESSAGE_submit) ids[below(8)] = m->body.submit.request_id;
    }
}

/* As a host: what was said must be allowed; answers to a node whose session ended meanwhile are dropped. */
static void judge_said(void)
{
    for (uint32_t i = 0; i < rig.outbox->count; i++) {
        const qr_message_t *m = &rig.outbox->messages[i];
        uint64_t number;
        qr_pair_t *pair = qr_pairs_get(pairs, m->to);
        assert_non_null(pair);
        qr_verdict_t verdict = qr_pairs_send(pairs, pair, m->type, &number);
        if (verdict == QR_VERDICT_QUESTION && qr_address_node(m->to) != 1) continue;
        if (verdict) fail_msg("%s to %llx: %s", qr_schema_find(m->type)->name, (unsigned long long)m->to, qr_verdict_sentence(verdict));
    }
}

/* Whether a host would let the actor hear it. */
static bool judge_heard(const qr_message_t *m)
{
    qr_pair_t *pair = qr_pairs_get(pairs, m->from);
    assert_non_null(pair);
    return qr_pairs_receive(pairs, pair, m->type, 1, pair->sequence_in + 1) == QR_VERDICT_OK;
}

/* Makes noise look like something: ids that exist, small numbers, columns of one length. */
static void nearly_fit(qr_message_t *m)
{
    static uint64_t request_ids[4], us[4];
    static uint32_t attempts[4], indexes[4], counts[4], finishes[4], errors[4], tokens[16];
    uint32_t n = below(5), total = 0;
    uint64_t id = ids[below(8)];
    switch (m->type) {
    case QR_MESSAGE_tokens:
        for (uint32_t i = 0; i < n; i++) {
            request_ids[i] = ids[below(8)];
            attempts[i] = 1 + below(2);
            indexes[i] = below(20) ? below(4) : UINT32_MAX - below(3);
            counts[i] = below(4);
            finishes[i] = below(8);
            errors[i] = below(30);
            total += counts[i];
        }
        for (uint32_t i = 0; i < 16; i++) tokens[i] = below(20) ? below(8) : UINT32_MAX - below(3);
        m->body.tokens =
            (qr_tokens_t){.request_ids = {request_ids, n}, .attempts = {attempts, n}, .indexes = {indexes, n}, .counts = {counts, n}};
        m->body.tokens.tokens = m->body.tokens.logprob_bits = (qr_u32s_t){tokens, total};
        m->body.tokens.finishes = (qr_u32s_t){finishes, n};
        m->body.tokens.errors = (qr_u32s_t){errors, n};
        if (below(2)) m->body.tokens.queue_us = (qr_u64s_t){us, n};
        break;
    case QR_MESSAGE_tokens_taken:
        request_ids[0] = id;
        indexes[0] = below(6);
        m->body.tokens_taken = (qr_tokens_taken_t){.request_ids = {request_ids, 1}, .attempts = {attempts, 1}, .indexes = {indexes, 1}};
        break;
    case QR_MESSAGE_request_submit:
        m->body.request_submit = (qr_request_submit_t){.key = below(64),
                                                       .kind = (uint8_t)(1 + below(2)),
                                                       .tokens = {tokens, below(16)},
                                                       .max_tokens = below(6),
                                                       .budget_us = below(90000)};
        for (uint32_t i = 0; i < 16; i++) tokens[i] = below(50) ? below(8) : 9;
        break;
    case QR_MESSAGE_place:
        m->body.place = (qr_place_t){
            .request_id = 1ull << 56 | (uint64_t)below(1000) << 16 | below(10), .tokens = {tokens, below(16)}, .max_tokens = below(9)};
        break;
    case QR_MESSAGE_observation:
        m->body.observation.worker = qr_address(m->from >> 32 & 3, 1, QR_ROLE_worker, (uint16_t)below(3));
        m->body.observation.worker_epoch = below(3);
        m->body.observation.sequence = below(100);
        m->body.observation.state = QR_STATE_READY;
        m->body.observation.age_us = below(5000000);
        m->body.observation.context_tokens = 64;
        break;
    case QR_MESSAGE_beat:
        m->body.beat = (qr_beat_t){.node = 2, .node_epoch = below(3), .sequence = below(9999), .state = (uint8_t)below(5)};
        break;
    case QR_MESSAGE_offer:
        for (uint32_t i = 0; i < 16; i++) tokens[i] = below(40) ? below(8) : 900;
        m->body.offer = (qr_offer_t){.request_id = 1 + below(12), .attempt = 1 + below(3), .generated_from = 1 + below(4)};
        m->body.offer.tokens = (qr_u32s_t){tokens, m->body.offer.generated_from + (below(4) == 0)};
        m->body.offer.max_tokens = below(6);
        break;
    case QR_MESSAGE_offer_cancel: m->body.offer_cancel = (qr_offer_cancel_t){id, 1 + below(3), QR_FINISH_CANCELLED}; break;
    case QR_MESSAGE_submit_cancel: m->body.submit_cancel = (qr_submit_cancel_t){id, 1, QR_FINISH_CANCELLED}; break;
    case QR_MESSAGE_peer_down: m->body.peer_down.node = below(3); break;
    case QR_MESSAGE_link_down: m->body.link_down.node = below(3); break;
    case QR_MESSAGE_request_cancel: m->body.request_cancel.key = below(64); break;
    case QR_MESSAGE_text_encoded: m->body.text_encoded = (qr_text_encoded_t){.request_id = id, .tokens = {tokens, below(16)}}; break;
    case QR_MESSAGE_offer_accepted: m->body.offer_accepted = (qr_offer_accepted_t){id, 1 + below(2)}; break;
    case QR_MESSAGE_probe_done: m->body.probe_done.probe_id = below(20); break;
    case QR_MESSAGE_place_ended:
    case QR_MESSAGE_place_refused:
    case QR_MESSAGE_place_cancel:
    case QR_MESSAGE_text_refused:
    case QR_MESSAGE_offer_refused:
    case QR_MESSAGE_offer_cancelled: memcpy(&m->body, &id, 8); break; /* the id is the first field */
    default: break;
    }
    if (m->type == QR_MESSAGE_offer_refused || m->type == QR_MESSAGE_offer_cancelled) m->body.offer_refused.attempt = 1 + below(2);
}

/* Messages of this node's scheduler and page_manager: never malformed, only at any time and about anything. */
static bool well_formed(qr_message_t *m)
{
    static uint64_t request_ids[2];
    static uint32_t attempts[2], drawn[2];
    switch (m->type) {
    case QR_MESSAGE_step_tokens:
        for (uint32_t i = 0; i < 2; i++) request_ids[i] = ids[below(8)], attempts[i] = 1 + below(3), drawn[i] = below(8);
        m->body.step_tokens = (qr_step_tokens_t){.request_ids = {request_ids, 2}, .attempts = {attempts, 2}};
        m->body.step_tokens.tokens = m->body.step_tokens.logprob_bits = (qr_u32s_t){drawn, 2};
        return true;
    case QR_MESSAGE_ended:
        m->body.ended = (qr_ended_t){.request_id = ids[below(8)], .attempt = 1 + below(3), .finish = 1 + below(5), .error = below(9)};
        return true;
    case QR_MESSAGE_submit:
        for (uint32_t i = 0; i < 2; i++) drawn[i] = below(8);
        m->body.submit = (qr_submit_t){.request_id = 1 + below(1u << 30), .attempt = 1, .generated_from = 1 + below(2)};
        m->body.submit.tokens = (qr_u32s_t){drawn, 2};
        m->body.submit.max_tokens = 1 + below(4);
        m->body.submit.budget_us = below(3) ? below(90000) : UINT64_MAX - below(3);
        return true;
    case QR_MESSAGE_pages_refused:
        m->body.pages_refused = (qr_pages_refused_t){.request_id = ids[below(8)], .attempt = 1, .reason = QR_E_NEVER_FITS};
        return true;
    default: return false;
    }
}

static void storm(const qr_actor_class_t *actor, const source_t *sources, uint32_t count)
{
    static qr_message_t message;
    rig_init(&rig, actor, &given, local((uint8_t)actor->role));
    memset(pairs, 0, sizeof *pairs);
    qr_pairs_init(pairs, rig.address);
    message.type = QR_MESSAGE_start;
    message.from = local(QR_ROLE_mesh);
    assert_true(judge_heard(&message));
    SAY(&rig, local(QR_ROLE_mesh), start, .epoch = 1,
        .partners = U64_COLUMN(local(QR_ROLE_router), local(QR_ROLE_worker), remote(QR_ROLE_worker), remote(QR_ROLE_heartbeat)));
    judge_said();
    memset(ids, 0, sizeof ids);
    uint64_t said = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const source_t *s = &sources[below(count)];
        qr_arena_t arena;
        qr_arena_init(&arena, memory, ARENA_BYTES);
        qr_random_message(&prng, below(50) ? QR_RANDOM_PLAIN : QR_RANDOM_BOUNDARY, s->type, &arena, &message);
        message.from = address_of(s);
        if (!well_formed(&message) && below(8)) nearly_fit(&message);
        if (s->type == QR_MESSAGE_link_down) message.body.link_down.node = 2 + below(2); /* our own has no link */
        if (!judge_heard(&message)) continue;
        if (s->type == QR_MESSAGE_link_down) qr_pairs_close_node(pairs, message.body.link_down.node);
        rig_say(&rig, message.from, s->type, &message.body, sizeof message.body);
        judge_said();
        remember_ids();
        said += rig.outbox->count;
        if (below(16)) continue;
        rig_pass(&rig, below(300000));
        judge_said();
    }
    assert_true(said > ROUNDS / 20);
    rig_done(&rig);
}

static void test_router(void **unused)
{
    (void)unused;
    static const source_t sources[] = {
        {QR_MESSAGE_place, QR_ROLE_gateway, 1},          {QR_MESSAGE_place, QR_ROLE_gateway, 1},
        {QR_MESSAGE_place_cancel, QR_ROLE_gateway, 1},   {QR_MESSAGE_tokens_taken, QR_ROLE_gateway, 1},
        {QR_MESSAGE_observation, QR_ROLE_heartbeat, 1},  {QR_MESSAGE_observation, QR_ROLE_heartbeat, 2},
        {QR_MESSAGE_offer_accepted, QR_ROLE_worker, 2},  {QR_MESSAGE_offer_refused, QR_ROLE_worker, 2},
        {QR_MESSAGE_offer_cancelled, QR_ROLE_worker, 2}, {QR_MESSAGE_tokens, QR_ROLE_worker, 2},
        {QR_MESSAGE_tokens, QR_ROLE_worker, 2},          {QR_MESSAGE_tokens, QR_ROLE_worker, 1},
        {QR_MESSAGE_probe, QR_ROLE_gateway, 1},          {QR_MESSAGE_probe_done, QR_ROLE_worker, 2},
        {QR_MESSAGE_peer_down, QR_ROLE_heartbeat, 1},    {QR_MESSAGE_link_down, QR_ROLE_uplink, 1},
        {QR_MESSAGE_offer_accepted, QR_ROLE_worker, 1},  {QR_MESSAGE_probe, QR_ROLE_gateway, 2},
    };
    storm(&qr_router_class, sources, QR_COUNT(sources));
}

static void test_gateway(void **unused)
{
    (void)unused;
    static const source_t sources[] = {
        {QR_MESSAGE_request_submit, QR_ROLE_http, 1},  {QR_MESSAGE_request_submit, QR_ROLE_prompt, 1},
        {QR_MESSAGE_request_cancel, QR_ROLE_http, 1},  {QR_MESSAGE_text_encoded, QR_ROLE_text, 1},
        {QR_MESSAGE_text_refused, QR_ROLE_text, 1},    {QR_MESSAGE_tokens, QR_ROLE_router, 1},
        {QR_MESSAGE_tokens, QR_ROLE_router, 1},        {QR_MESSAGE_place_ended, QR_ROLE_router, 1},
        {QR_MESSAGE_place_refused, QR_ROLE_router, 1}, {QR_MESSAGE_probe, QR_ROLE_http, 1},
        {QR_MESSAGE_probe_done, QR_ROLE_router, 1},    {QR_MESSAGE_tokens, QR_ROLE_router, 2},
    };
    storm(&qr_gateway_class, sources, QR_COUNT(sources));
}

static void test_heartbeat(void **unused)
{
    (void)unused;
    static const source_t sources[] = {
        {QR_MESSAGE_observation, QR_ROLE_worker, 1}, {QR_MESSAGE_observation, QR_ROLE_heartbeat, 2},
        {QR_MESSAGE_beat, QR_ROLE_heartbeat, 2},     {QR_MESSAGE_link_down, QR_ROLE_uplink, 1},
        {QR_MESSAGE_observation, QR_ROLE_worker, 2}, {QR_MESSAGE_metrics_read, QR_ROLE_http, 1},
    };
    storm(&qr_heartbeat_class, sources, QR_COUNT(sources));
}

static void test_worker(void **unused)
{
    (void)unused;
    static const source_t sources[] = {
        {QR_MESSAGE_offer, QR_ROLE_router, 1},         {QR_MESSAGE_offer, QR_ROLE_router, 2},
        {QR_MESSAGE_offer, QR_ROLE_router, 3},         {QR_MESSAGE_offer_cancel, QR_ROLE_router, 1},
        {QR_MESSAGE_offer_cancel, QR_ROLE_router, 2},  {QR_MESSAGE_offer_cancel, QR_ROLE_router, 3},
        {QR_MESSAGE_tokens_taken, QR_ROLE_router, 1},  {QR_MESSAGE_tokens_taken, QR_ROLE_router, 2},
        {QR_MESSAGE_tokens_taken, QR_ROLE_router, 3},  {QR_MESSAGE_probe, QR_ROLE_router, 2},
        {QR_MESSAGE_probe, QR_ROLE_router, 3},         {QR_MESSAGE_probe_done, QR_ROLE_scheduler, 1},
        {QR_MESSAGE_step_tokens, QR_ROLE_scheduler, 1}, {QR_MESSAGE_ended, QR_ROLE_scheduler, 1},
        {QR_MESSAGE_ended, QR_ROLE_scheduler, 1},      {QR_MESSAGE_peer_down, QR_ROLE_heartbeat, 1},
        {QR_MESSAGE_link_down, QR_ROLE_uplink, 1},     {QR_MESSAGE_metrics_read, QR_ROLE_http, 2},
    };
    storm(&qr_worker_class, sources, QR_COUNT(sources));
}

static void test_scheduler(void **unused)
{
    (void)unused;
    static const source_t sources[] = {
        {QR_MESSAGE_submit, QR_ROLE_worker, 1},       {QR_MESSAGE_submit_cancel, QR_ROLE_worker, 1},
        {QR_MESSAGE_probe, QR_ROLE_worker, 1},        {QR_MESSAGE_probe, QR_ROLE_worker, 2},
        {QR_MESSAGE_probe, QR_ROLE_worker, 3},        {QR_MESSAGE_probe_done, QR_ROLE_executor, 1},
        {QR_MESSAGE_probe_done, QR_ROLE_executor, 2}, {QR_MESSAGE_pages_refused, QR_ROLE_page_manager, 1},
        {QR_MESSAGE_metrics_read, QR_ROLE_http, 1},   {QR_MESSAGE_metrics_read, QR_ROLE_http, 2},
    };
    storm(&qr_scheduler_class, sources, QR_COUNT(sources));
}

static int seeded(void **unused)
{
    (void)unused;
    qr_prng_init(&prng, 20260);
    return 0;
}

int main(void)
{
    for (uint32_t i = 0; i < 8; i++) words_put(&words, &"\xf0\x9f\x98\x81"[i % 4]);
    qr_params_init(&given.params);
    given.params.max_requests = 8;
    given.layout.context_tokens = 14;
    given.vocabulary = words.vocabulary;
    given.layout.group_count = 1;
    given.layout.page_tokens = 4;
    given.layout.groups[0] = (qr_group_t){.pages = 64, .row_bytes = 64};
    memory = aligned_alloc(64, ARENA_BYTES);
    pairs = calloc(1, sizeof *pairs);
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_router, seeded), cmocka_unit_test_setup(test_gateway, seeded),
                                       cmocka_unit_test_setup(test_heartbeat, seeded), cmocka_unit_test_setup(test_worker, seeded),
                                       cmocka_unit_test_setup(test_scheduler, seeded)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(memory);
    free(pairs);
    return failed;
}
