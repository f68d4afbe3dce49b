/* link: qr_io_http qr_io_http_server qr_io_keys qr_io_recall qr_io_http_json qr_io_http_continuation qr_io_http_answer qr_io_http_metrics qr_sim qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* contract_http_test.c - the simulated clients and the real http actor, with a client at a real socket, hold the same conversations
 * with a gateway: the same messages in the same order. What the simulated client submits is what the real one submits when the same is
 * asked over HTTP, byte for byte but for its key. How much a client may leave unread is each one's own affair. */
#include "actors/io/http.h"
#include "base/error.h"
#include "messages/codec.h"
#include "model/model.h"
#include "tests/unit/stand.h"
#include "transport/sim/clients.h"
#include "transport/sim/device.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINES = 64, LINE = 120, TURNS = 20000, WIRE = 1 << 16, BIG = 30000 };
#define HTTP qr_address(1, 0, QR_ROLE_http, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define GATEWAY qr_address(1, 0, QR_ROLE_gateway, 0)
#define PAGES qr_address(1, 1, QR_ROLE_page_manager, 0)
#define WORKER qr_address(1, 1, QR_ROLE_worker, 0)
#define FACTS qr_address(1, 0, QR_ROLE_facts, 0)

/* One twin and what it said. */
typedef struct twin {
    stand_t *stand;
    bool real;
    char lines[LINES][LINE];
    uint32_t count;
    uint64_t key; /* of the newest submit */
    uint8_t submit[WIRE];
    int64_t submit_bytes;
    qr_request_submit_t asked;
    uint32_t tokens[64], lengths[8];
    uint8_t stop[64], salt[64];
    int client;
} twin_t;

static qr_given_t given;
static qr_sim_workload_t workload;
static qr_sim_world_given_t world = {.clients = &workload};

static void keep_submit(twin_t *t, const qr_message_t *m)
{
    qr_message_t copy = *m;
    t->key = m->body.request_submit.key;
    t->asked = m->body.request_submit;
    assert_true(t->asked.tokens.count <= 64 && t->asked.stop.count <= 64 && t->asked.stop_lengths.count <= 8);
    qr_copy(t->tokens, t->asked.tokens.data, 4 * t->asked.tokens.count);
    qr_copy(t->stop, t->asked.stop.data, t->asked.stop.count);
    qr_copy(t->lengths, t->asked.stop_lengths.data, 4 * t->asked.stop_lengths.count);
    qr_copy(t->salt, t->asked.cache_salt.data, t->asked.cache_salt.count);
    copy.body.request_submit.key = copy.from = copy.to = copy.epoch = copy.sequence = 0;
    copy.version = 1;
    t->submit_bytes = qr_codec_encode(&copy, t->submit, WIRE);
    assert_true(t->submit_bytes > 0);
}

static void hear(twin_t *t)
{
    for (uint32_t i = 0; i < t->stand->outbox.count; i++) {
        const qr_message_t *m = &t->stand->messages[i];
        assert_true(t->count < LINES);
        char *line = t->lines[t->count++];
        int n = snprintf(line, LINE, "%s to role %u of device %u", qr_schema_find(m->type)->name, qr_address_role(m->to),
                         qr_address_device(m->to));
        if (m->type == QR_MESSAGE_request_submit) keep_submit(t, m);
        if (m->type == QR_MESSAGE_request_cancel)
            (void)snprintf(line + n, LINE - (size_t)n, " %s reason %u", m->body.request_cancel.key == t->key ? "of it" : "of another",
                           m->body.request_cancel.reason);
        if (m->type == QR_MESSAGE_probe) (void)snprintf(line + n, LINE - (size_t)n, " %llu", (unsigned long long)m->body.probe.probe_id);
        if (m->type == QR_MESSAGE_drained) (void)snprintf(line + n, LINE - (size_t)n, " open %u", m->body.drained.open_count);
        if (m->type == QR_MESSAGE_ready) assert_int_equal(m->body.ready.reason, 0);
    }
    t->stand->outbox.count = 0;
}

static uint64_t now_us(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000 + (uint64_t)at.tv_nsec / 1000;
}

static void say(twin_t *t, uint64_t from, uint16_t type, const void *body)
{
    uint64_t alarm_us = t->stand->outbox.alarm_us;
    if (t->real) t->stand->now_us = now_us();
    stand_say(t->stand, from, type, body);
    t->stand->outbox.alarm_us = qr_min_u64(alarm_us, t->stand->outbox.alarm_us);
    hear(t);
}
#define TELL(t, from, name, ...) say((t), (from), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* One turn of its own: a piece of work and an alarm that is due, or time up to its next alarm. */
static void turn(twin_t *t)
{
    stand_t *s = t->stand;
    if (t->real) {
        uint64_t alarm_us = s->outbox.alarm_us;
        qr_outbox_reset(&s->outbox, s->actor->max_out);
        s->now_us = now_us();
        (void)s->actor->work(s->state, s->given, s->now_us, &s->outbox);
        s->outbox.alarm_us = qr_min_u64(alarm_us, s->outbox.alarm_us);
        hear(t);
        (void)usleep(500);
        if (s->outbox.alarm_us > s->now_us) return;
    }
    if (s->outbox.alarm_us == QR_NEVER_US) return;
    s->now_us = qr_max_u64(s->now_us, s->outbox.alarm_us);
    s->outbox.alarm_us = QR_NEVER_US;
    TELL(t, HTTP, alarm, .due_us = s->now_us);
}

/* Lets it go on until it has said `lines` lines in all. */
static void until(twin_t *t, uint32_t lines)
{
    for (uint32_t i = 0; t->count < lines; i++) {
        assert_true(i < TURNS);
        turn(t);
    }
    assert_int_equal(t->count, lines);
}

/* ---- the client at the socket
 * ------------------------------------------------------------------------------------------------------------ */

static void ask(twin_t *t, const char *text)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(qr_http_port(t->stand->state)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int little = 4096;
    t->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(t->client, SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
    assert_int_equal(connect(t->client, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(t->client, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void get(twin_t *t, const char *path)
{
    char text[200];
    (void)snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    ask(t, text);
}

/* Asks over HTTP for what the simulated client asked its gateway. */
static void post(twin_t *t, const twin_t *like)
{
    char body[2000], text[2400];
    const qr_request_submit_t *b = &like->asked;
    int n = snprintf(body, sizeof body,
                     "{\"stream\":true,\"max_tokens\":%u,\"temperature\":%s,\"seed\":%lld,\"logprobs\":0,\"ignore_eos\":%s,"
                     "\"priority\":%u,\"prompt\":[",
                     b->max_tokens, b->temperature_bits ? "0.75" : "0", (long long)b->seed, b->ignore_eos ? "true" : "false", b->priority);
    for (uint64_t i = 0; i < b->tokens.count; i++) n += snprintf(body + n, sizeof body - (size_t)n, "%s%u", i ? "," : "", like->tokens[i]);
    n += snprintf(body + n, sizeof body - (size_t)n, "]");
    if (b->cache_salt.count)
        n += snprintf(body + n, sizeof body - (size_t)n, ",\"cache_salt\":\"%.*s\"", (int)b->cache_salt.count, (const char *)like->salt);
    if (b->stop_lengths.count) n += snprintf(body + n, sizeof body - (size_t)n, ",\"stop\":[");
    for (uint64_t i = 0, at = 0; i < b->stop_lengths.count; at += like->lengths[i++])
        n += snprintf(body + n, sizeof body - (size_t)n, "%s\"%.*s\"", i ? "," : "", (int)like->lengths[i], (const char *)like->stop + at);
    (void)snprintf(body + n, sizeof body - (size_t)n, "%s}", b->stop_lengths.count ? "]" : "");
    (void)snprintf(text, sizeof text,
                   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                   strlen(body), body);
    ask(t, text);
}

static void leave(twin_t *t)
{
    if (t->real) close(t->client);
}

/* ---- the gateway
 * --------------------------------------------------------------------------------------------------------------------------- */

/* The first tokens of the answer that the device of the mind draws. */
static void deltas(twin_t *t, const twin_t *fake, uint32_t first, uint32_t count)
{
    uint32_t tokens[64], bits[64], at = (uint32_t)fake->asked.tokens.count, drawn[8], drawn_bits[8], lengths[1] = {2 * count},
                                   counts[1] = {count};
    uint8_t text[16];
    qr_sim_sequence_t sequence = {0};
    assert_true(first + count <= 8 && at + 8 <= 64);
    memcpy(tokens, fake->tokens, 4 * (size_t)at);
    for (uint32_t i = 0; i < at; i++) qr_sim_sequence_add(&sequence, &given, tokens[i]);
    for (uint32_t i = 0; i < first + count; i++) {
        uint32_t token = qr_sim_token_after(&sequence, &given, tokens, fake->asked.temperature_bits == 0, fake->asked.seed,
                                            (uint32_t)fake->asked.tokens.count, &bits[i]);
        qr_sim_sequence_add(&sequence, &given, token);
        tokens[at++] = token;
        if (i < first) continue;
        drawn[i - first] = token;
        drawn_bits[i - first] = bits[i];
        memcpy(text + 2 * (i - first), given.vocabulary.bytes + given.vocabulary.offsets[token], 2);
    }
    TELL(t, GATEWAY, request_deltas, .keys = {&t->key, 1}, .text_lengths = {lengths, 1}, .text = {text, 2 * count},
         .token_counts = {counts, 1}, .tokens = {drawn, count}, .logprob_bits = {drawn_bits, count});
}

/* Whether the simulated client asked for an answer that these scenes can hold: four or five tokens, the end token not among them. */
static bool suits(const twin_t *fake)
{
    uint32_t tokens[64], bits, at = (uint32_t)fake->asked.tokens.count;
    qr_sim_sequence_t sequence = {0};
    memcpy(tokens, fake->tokens, 4 * (size_t)at);
    for (uint32_t i = 0; i < at; i++) qr_sim_sequence_add(&sequence, &given, tokens[i]);
    for (uint32_t i = 0; i < fake->asked.max_tokens; i++) {
        tokens[at] = qr_sim_token_after(&sequence, &given, tokens, fake->asked.temperature_bits == 0, fake->asked.seed,
                                        (uint32_t)fake->asked.tokens.count, &bits);
        if (tokens[at] == QR_SIM_END_TOKEN) return false;
        qr_sim_sequence_add(&sequence, &given, tokens[at++]);
    }
    return fake->asked.max_tokens >= 4;
}

static void finished(twin_t *t, const twin_t *fake, uint32_t finish, uint32_t error, uint32_t drawn)
{
    TELL(t, GATEWAY, request_finished, .key = t->key, .finish = finish, .error = error, .prompt_tokens = (uint32_t)fake->asked.tokens.count,
         .completion_tokens = drawn);
}

/* ---- conversations
 * ------------------------------------------------------------------------------------------------------------------------- */

enum scene { ANSWERED, REFUSED, LEAVES, CROSSES, SLOW, DRAINS, OVERDUE, STOPS, SCENES };

static void begin(twin_t *t, const twin_t *fake)
{
    const uint64_t partners[] = {FACTS, PAGES, WORKER};
    t->stand = stand_new(t->real ? &qr_http_class : &qr_sim_http_class, &given, HTTP);
    TELL(t, MESH, start, .epoch = 1, .seed = 1, .partners = {partners, 3});
    if (t->real) post(t, fake);
    until(t, 2); /* ready, request_submit */
}

/* The client leaves: of its own, or because its time has come. */
static void let_leave(twin_t *t)
{
    leave(t);
    until(t, 3);
}

/* More than it takes unread: the fake's bound is 4 bytes, the real one's is stream_bytes behind what the sockets take. */
static void flood(twin_t *t, const twin_t *fake)
{
    static uint8_t text[BIG];
    static uint32_t tokens[BIG], bits[BIG];
    const uint32_t lengths[1] = {BIG}, counts[1] = {BIG};
    memset(text, 'x', sizeof text);
    deltas(t, fake, 0, 3);
    for (uint32_t i = 0; t->real && t->count < 3 && i < 2000; i++)
        TELL(t, GATEWAY, request_deltas, .keys = {&t->key, 1}, .text_lengths = {lengths, 1}, .text = {text, BIG},
             .token_counts = {counts, 1}, .tokens = {tokens, BIG}, .logprob_bits = {bits, BIG});
    assert_int_equal(t->count, 3);
}

static void converse(twin_t *t, const twin_t *fake, enum scene scene)
{
    begin(t, fake);
    uint32_t most = fake->asked.max_tokens;
    switch (scene) {
    case ANSWERED:
        deltas(t, fake, 0, 1);
        deltas(t, fake, 1, most - 1);
        finished(t, fake, QR_FINISH_LENGTH, 0, most);
        break;
    case REFUSED: TELL(t, GATEWAY, request_refused, .key = t->key, .reason = QR_E_BUSY, .retry_after_ms = 1000); break;
    case LEAVES:
        deltas(t, fake, 0, 1);
        let_leave(t);
        deltas(t, fake, 1, 1); /* on their way when it left */
        finished(t, fake, QR_FINISH_CANCELLED, QR_E_CANCELLED, 2);
        break;
    case CROSSES: /* the end is on its way when it leaves */
        let_leave(t);
        deltas(t, fake, 0, most);
        finished(t, fake, QR_FINISH_LENGTH, 0, most);
        break;
    case SLOW:
        flood(t, fake);
        deltas(t, fake, 3, 1);
        finished(t, fake, QR_FINISH_CANCELLED, QR_E_SLOW_CLIENT, 4);
        break;
    case DRAINS:
        TELL(t, MESH, drain, .budget_us = 60000000);
        deltas(t, fake, 0, most);
        finished(t, fake, QR_FINISH_LENGTH, 0, most); /* drained now */
        break;
    case OVERDUE:
        TELL(t, MESH, drain, .budget_us = 1000);
        until(t, 3); /* drained with one open */
        break;
    default: break;
    }
    if (scene != DRAINS && scene != OVERDUE && scene != STOPS) TELL(t, MESH, drain, .budget_us = 60000000);
    uint32_t said = t->count;
    TELL(t, MESH, stop, .budget_us = 100000);
    until(t, said + 1);
    leave(t);
}

static void end(twin_t *t)
{
    stand_destroy(t->stand);
    t->stand = NULL;
}

static void expect_same(const twin_t *real, const twin_t *fake, const char *what)
{
    for (uint32_t i = 0; i < qr_max_u32(real->count, fake->count); i++)
        if (i >= real->count || i >= fake->count || strcmp(real->lines[i], fake->lines[i]))
            fail_msg("%s, line %u: '%s', and the fake says '%s'", what, i, i < real->count ? real->lines[i] : "nothing",
                     i < fake->count ? fake->lines[i] : "nothing");
}

static void prepare(void)
{
    static uint32_t offsets[QR_SIM_VOCABULARY + 1];
    static uint8_t bytes[2 * QR_SIM_VOCABULARY], flags[QR_SIM_VOCABULARY];
    static qr_model_t model;
    for (uint32_t i = 0; i < QR_SIM_VOCABULARY; i++) {
        offsets[i + 1] = 2 * (i + 1);
        bytes[2 * i] = (uint8_t)('A' + i % 4);
        bytes[2 * i + 1] = (uint8_t)('A' + i / 4 % 4);
    }
    flags[QR_SIM_END_TOKEN] = QR_TOKEN_END | QR_TOKEN_SPECIAL;
    qr_params_init(&given.params);
    strcpy(given.params.listen, "127.0.0.1:0");
    given.params.stream_bytes = 4096;
    strcpy(model.name, "tiny");
    given.model = &model;
    given.layout = (qr_layout_t){.group_count = 1, .page_tokens = 8, .context_tokens = 64};
    given.vocabulary = (qr_vocabulary_t){QR_SIM_VOCABULARY, 0, offsets, bytes, flags};
    given.decoder = (struct qr_decoder *)(void *)&world;
    workload = (qr_sim_workload_t){.gap_us = 1000, .busy_until_us = QR_NEVER_US, .requests = 1, .prompt_most = 20, .answer_most = 1};
}

static void test_http_and_its_twin(void **state)
{
    (void)state;
    static const char *const names[SCENES] = {"answered", "refused", "leaves", "crosses", "slow", "drains", "overdue", "stops"};
    static const char *const ends[] = {"drained to role 1 of device 0 open 0", "stopped to role 1 of device 0"};
    for (uint32_t scene = 0; scene < SCENES; scene++) {
        static twin_t real, fake;
        memset(&real, 0, sizeof real);
        memset(&fake, 0, sizeof fake);
        prepare();
        workload.seed = 100 + scene;
        workload.salt_one_in = 2;
        workload.answer_most = 5;
        workload.cancel_one_in = scene == LEAVES || scene == CROSSES;
        workload.slow_one_in = scene == SLOW;
        workload.stop_one_in = scene == REFUSED || scene == OVERDUE || scene == STOPS; /* where no text follows */
        workload.slow_bytes = 4;
        workload.slow_us = 1000000000;
        for (bool found = false; !found; workload.seed += found ? 0 : SCENES) { /* the first seed that suits */
            memset(&fake, 0, sizeof fake);
            begin(&fake, NULL);
            found = suits(&fake);
            end(&fake);
        }
        memset(&fake, 0, sizeof fake);
        real.real = true;
        converse(&fake, &fake, scene);
        converse(&real, &fake, scene);
        expect_same(&real, &fake, names[scene]);
        assert_int_equal(real.submit_bytes, fake.submit_bytes);
        assert_memory_equal(real.submit, fake.submit, (size_t)real.submit_bytes);
        assert_string_equal(real.lines[real.count - 1], ends[1]);
        if (scene == ANSWERED || scene == REFUSED || scene == SLOW) assert_string_equal(real.lines[real.count - 2], ends[0]);
        end(&real);
        end(&fake);
    }
}

/* Probes and numbers: one probe at a time, one question per source, and again only after the answers. */
static void ask_more(twin_t *t)
{
    const uint64_t partners[] = {FACTS, PAGES, WORKER};
    const uint64_t sources[] = {GATEWAY, qr_address(1, 0, QR_ROLE_router, 0), FACTS, PAGES, WORKER};
    prepare();
    workload.requests = 0;
    workload.probe_us = 1000;
    t->stand = stand_new(t->real ? &qr_http_class : &qr_sim_http_class, &given, HTTP);
    TELL(t, MESH, start, .epoch = 1, .seed = 1, .partners = {partners, 3});
    for (uint32_t i = 1; i <= 3; i++) {
        if (t->real) get(t, "/readyz");
        until(t, 1 + i);
        TELL(t, GATEWAY, probe_done, .probe_id = i);
        leave(t);
    }
    workload.probe_us = 0;
    workload.read_us = 1000;
    if (!t->real) t->stand->outbox.alarm_us = t->stand->now_us + 1;
    for (uint32_t round = 0; round < 2; round++) {
        if (t->real) get(t, "/metrics");
        until(t, 9 + 5 * round);
        for (uint32_t i = 0; i < QR_COUNT(sources); i++) TELL(t, sources[i], metrics, .ids = {0});
        leave(t);
    }
    uint32_t said = t->count;
    TELL(t, MESH, stop, .budget_us = 100000);
    until(t, said + 1);
    end(t);
}

static void test_probes_and_numbers(void **state)
{
    (void)state;
    static twin_t real = {.real = true}, fake;
    ask_more(&real);
    ask_more(&fake);
    expect_same(&real, &fake, "probes and numbers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_http_and_its_twin), cmocka_unit_test(test_probes_and_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
