/* link: qr_io_text qr_sim qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* contract_text_test.c - the simulated text actor and the real one, with the vocabulary of a tiny model, hold the same conversation:
 * the same answers in the same order, token for token. The model's vocabulary is its three control tokens and the 256 bytes, so its
 * tokens of a text are the bytes too, only numbered otherwise. */
#include "actors/io/text.h"
#include "base/error.h"
#include "model/tokenizer.h"
#include "tests/unit/model_file.h"
#include "tests/unit/stand.h"
#include "transport/sim/text.h"

enum { CONTEXT = 200, ANSWERS = 128, REAL_BEGIN = 1, REAL_END = 2, REAL_BYTES = 3 };
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define GATEWAY qr_address(1, 0, QR_ROLE_gateway, 0)
#define TEXT qr_address(1, 0, QR_ROLE_text, 0)

/* What one twin said, in its order. */
typedef struct heard {
    uint64_t to, id;
    uint32_t type, reason, count, words;
    char param[16], text[104]; /* no padding: answers are compared as bytes */
    uint32_t tokens[CONTEXT];
} heard_t;

typedef struct twin {
    stand_t *stand;
    bool real;
    uint32_t count;
    heard_t heard[ANSWERS];
} twin_t;

/* A token in the fake's numbers. */
static uint32_t number_of(const twin_t *t, uint32_t token)
{
    if (!t->real) return token;
    assert_true(token == REAL_BEGIN || token == REAL_END || (token >= REAL_BYTES && token < REAL_BYTES + 256));
    return token == REAL_BEGIN ? QR_SIM_CHAT_BEGIN_TOKEN : token == REAL_END ? QR_SIM_CHAT_END_TOKEN : token - REAL_BYTES;
}

static void copy_words(char *to, size_t room, qr_bytes_t from)
{
    (void)snprintf(to, room, "%.*s", (int)from.count, (const char *)from.data);
}

static void hear(twin_t *t)
{
    for (uint32_t i = 0; i < t->stand->outbox.count; i++) {
        const qr_message_t *m = &t->stand->messages[i];
        assert_true(t->count < ANSWERS);
        heard_t *h = &t->heard[t->count++];
        *h = (heard_t){.type = m->type, .to = m->to};
        if (m->type == QR_MESSAGE_text_encoded) {
            h->id = m->body.text_encoded.request_id;
            h->count = (uint32_t)m->body.text_encoded.tokens.count;
            assert_true(h->count <= CONTEXT);
            for (uint32_t k = 0; k < h->count; k++) h->tokens[k] = number_of(t, m->body.text_encoded.tokens.data[k]);
        }
        if (m->type == QR_MESSAGE_text_refused) {
            h->id = m->body.text_refused.request_id;
            h->reason = m->body.text_refused.reason;
            copy_words(h->param, sizeof h->param, m->body.text_refused.param);
            h->words = m->body.text_refused.text.count > 0;
            if (h->reason == QR_E_CONTEXT) copy_words(h->text, sizeof h->text, m->body.text_refused.text); /* names both numbers */
        }
    }
    t->stand->outbox.count = 0;
}

static void say(twin_t *t, uint64_t from, uint16_t type, const void *body)
{
    uint64_t alarm_us = t->stand->outbox.alarm_us;
    stand_say(t->stand, from, type, body);
    t->stand->outbox.alarm_us = qr_min_u64(alarm_us, t->stand->outbox.alarm_us);
    hear(t);
}
#define TELL(t, from, name, ...) say((t), (from), QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__})

/* Lets it answer everything that is open; the real one has already. */
static void settle(twin_t *t)
{
    while (t->stand->outbox.alarm_us != QR_NEVER_US) {
        t->stand->now_us = qr_max_u64(t->stand->now_us, t->stand->outbox.alarm_us);
        t->stand->outbox.alarm_us = QR_NEVER_US;
        TELL(t, TEXT, alarm, .due_us = t->stand->now_us);
    }
}

static void ask(twin_t *t, uint64_t id, const char *text, uint64_t bytes)
{
    TELL(t, GATEWAY, text_encode, .request_id = id, .kind = QR_INPUT_TEXT, .text = {(const uint8_t *)text, bytes});
}
static void ask_text(twin_t *t, uint64_t id, const char *text) { ask(t, id, text, strlen(text)); }

/* Messages of a chat: who and what; the first `count` of them. */
static const char *const said[] = {"Be short.", "<|im_start|>one<|im_end|>", "0A1B", "", "\xc3\xa4\xe2\x82\xac 12 345", "it's"};
static const uint32_t who[] = {QR_CHAT_DEVELOPER, QR_CHAT_USER, QR_CHAT_ASSISTANT, QR_CHAT_USER, QR_CHAT_TOOL, QR_CHAT_USER};

static void ask_chat(twin_t *t, uint64_t id, uint32_t count, uint32_t missing)
{
    char text[256] = "";
    uint32_t lengths[QR_COUNT(said)];
    for (uint32_t i = 0; i < count; i++) {
        lengths[i] = (uint32_t)strlen(said[i]);
        strcat(text, said[i]);
    }
    TELL(t, GATEWAY, text_encode, .request_id = id, .kind = QR_INPUT_CHAT, .text = {(const uint8_t *)text, strlen(text) - missing},
         .roles = {who, count}, .lengths = {lengths, count});
}

static void converse(twin_t *t)
{
    static char big[QR_TEXT_BYTES_MAX + 1];
    memset(big, 'd', sizeof big);
    TELL(t, MESH, start, .epoch = 1, .seed = 1);
    ask_text(t, 1, "Count: one, two, three 123456 \t\n  x");
    ask_text(t, 2, "<|im_start|>user\n<|endoftext|>"); /* ordinary text */
    ask_text(t, 3, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82");
    ask_text(t, 4, "");
    ask_text(t, 5, "a\xff");
    ask_text(t, 6, "\xe2\x82");
    ask(t, 7, big, CONTEXT);
    ask(t, 8, big, CONTEXT + 1);
    ask(t, 9, big, QR_TEXT_BYTES_MAX);
    ask(t, 10, big, sizeof big);
    settle(t);
    for (uint32_t i = 1; i <= QR_COUNT(said); i++) ask_chat(t, 10 + i, i, 0); /* it grows, and outgrows the context */
    ask_chat(t, 20, 2, 1);
    TELL(t, GATEWAY, text_encode, .request_id = 21, .kind = QR_INPUT_CHAT, .roles = {who, 1});
    settle(t);
    for (uint32_t i = 0; i < 80; i++) ask_text(t, 100 + i, i % 3 ? "many" : ""); /* more than any table holds */
    TELL(t, MESH, drain, .budget_us = 1000);
    TELL(t, MESH, stop, .budget_us = 1000);
}

_Static_assert(sizeof(heard_t) == 16 + 16 + 120 + 4 * CONTEXT, "no padding");

static void test_text_and_its_twin(void **state)
{
    (void)state;
    static twin_t real = {.real = true}, fake;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.tokens = QR_TINY_TOKENS_MIN;
    model_file_t file = model_file_tiny(&config);
    qr_model_t *model = NULL;
    qr_given_t given = {.layout.context_tokens = CONTEXT};
    char message[256] = "";
    assert_int_equal(qr_model_open(file.path, &model, message, sizeof message), 0);
    assert_int_equal(qr_tokenizer_new(model, &given.tokenizer, message, sizeof message), 0);
    real.stand = stand_new(&qr_text_class, &given, TEXT);
    fake.stand = stand_new(&qr_sim_text_class, &given, TEXT);
    converse(&real);
    converse(&fake);
    assert_int_equal(real.count, 1 + 10 + 8 + 80 + 2);
    assert_int_equal(fake.count, real.count);
    for (uint32_t i = 0; i < real.count; i++)
        if (memcmp(&real.heard[i], &fake.heard[i], sizeof real.heard[i]))
            fail_msg("answer %u: %s of %llu (reason %u, %u tokens) and from the fake %s of %llu (reason %u, %u tokens)", i,
                     qr_schema_find((uint16_t)real.heard[i].type)->name, (unsigned long long)real.heard[i].id, real.heard[i].reason,
                     real.heard[i].count, qr_schema_find((uint16_t)fake.heard[i].type)->name, (unsigned long long)fake.heard[i].id,
                     fake.heard[i].reason, fake.heard[i].count);
    /* What the simulated worlds rest on: a chat that grows begins with the whole chat before it, the answer's head included. */
    const heard_t *one = &real.heard[12], *two = &real.heard[13];
    assert_true(one->type == QR_MESSAGE_text_encoded && two->type == QR_MESSAGE_text_encoded && one->count < two->count);
    assert_memory_equal(one->tokens, two->tokens, 4 * (one->count - strlen("assistant\n") - 1));
    stand_destroy(real.stand);
    stand_destroy(fake.stand);
    qr_tokenizer_destroy(&given.tokenizer);
    qr_model_destroy(&model);
    unlink(file.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text_and_its_twin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
