/* link: qr_io_text qr_model qr_schema qr_base */
/* text_test.c - the text actor by hand: one message in, one answer out. Vocabulary T1 of the cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "actors/io/text.h"
#include "base/error.h"
#include "model/tokenizer.h"

static const char chatml[] = "{% for message in messages %}{{'<sx>' + message['role'] + '\n' + message['content'] + '<s>'}}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<sx>assistant\n' }}{% endif %}";
#define TEXT(s)                                                                                                                            \
    {                                                                                                                                      \
        s, sizeof s - 1                                                                                                                    \
    }
static const qr_token_text_t texts[] = {TEXT("a"),        TEXT("b"),  TEXT("c"),   TEXT("d"),  TEXT("ab"),  TEXT("bc"),
                                        TEXT("abc"),      TEXT("cd"), TEXT("abd"), TEXT("aa"), TEXT("<s>"), TEXT("<sx>"),
                                        TEXT("\xC4\xA0"), TEXT("<"),  TEXT(">"),   TEXT("s"),  TEXT("x")};
static const qr_token_text_t merges[] = {TEXT("b c"), TEXT("a b"), TEXT("c d"), TEXT("a bc"), TEXT("a a")};
static const uint8_t types[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 1, 1, 1, 1, 1};

typedef struct stand {
    qr_given_t given;
    void *actor;
    qr_outbox_t outbox;
    qr_message_t answer;
    uint8_t *bytes;
} stand_t;

enum { MESH = 1, GATEWAY = 2 };

static const qr_message_t *say(stand_t *s, uint16_t type, uint64_t from, const void *body, size_t bytes)
{
    qr_message_t message = {.type = type, .version = 1, .from = from};
    memcpy(&message.body, body, bytes);
    qr_outbox_reset(&s->outbox, qr_text_class.max_out);
    qr_text_class.handle(s->actor, &s->given, &message, &s->outbox);
    assert_true(s->outbox.count <= 1);
    if (s->outbox.count) assert_int_equal(s->answer.to, from);
    return s->outbox.count ? &s->answer : NULL;
}
static const qr_message_t *encode(stand_t *s, uint8_t kind, const char *text, qr_u32s_t roles, qr_u32s_t lengths)
{
    qr_text_encode_t b = {
        .request_id = 42, .kind = kind, .text = {(const uint8_t *)text, strlen(text)}, .roles = roles, .lengths = lengths};
    return say(s, QR_MESSAGE_text_encode, GATEWAY, &b, sizeof b);
}
static void assert_refused(const qr_message_t *m, uint32_t reason, const char *param)
{
    assert_int_equal(m->type, QR_MESSAGE_text_refused);
    const qr_text_refused_t *b = &m->body.text_refused;
    assert_int_equal(b->request_id, 42);
    assert_int_equal(b->reason, reason);
    assert_int_equal(b->param.count, strlen(param));
    assert_memory_equal(b->param.data, param, strlen(param));
    assert_true(b->text.count > 0);
}

static stand_t *open_stand(bool add_bos, uint32_t context)
{
    char message[300];
    stand_t *s = calloc(1, sizeof *s);
    qr_tokenizer_tables_t tables = {.name = "T1",
                                    .pre = "none",
                                    .chat_template = chatml,
                                    .texts = texts,
                                    .types = types,
                                    .merges = merges,
                                    .count = 17,
                                    .merge_count = 5,
                                    .bos_token = 10,
                                    .add_bos = add_bos};
    assert_int_equal(qr_tokenizer_new_from(&tables, &s->given.tokenizer, message, sizeof message), 0);
    s->given.layout.context_tokens = context;
    s->bytes = malloc(QR_OUTBOX_BYTES);
    qr_outbox_init(&s->outbox, &s->answer, 1, s->bytes, QR_OUTBOX_BYTES);
    s->actor = calloc(1, qr_text_class.bytes(&s->given));
    qr_text_class.init(s->actor, &s->given, qr_address(1, 0, QR_ROLE_text, 0));
    qr_start_t start = {.epoch = 1};
    const qr_message_t *m = say(s, QR_MESSAGE_start, MESH, &start, sizeof start);
    assert_true(m->type == QR_MESSAGE_ready && m->body.ready.reason == 0);
    return s;
}
static void close_stand(stand_t *s)
{
    qr_text_class.done(s->actor);
    qr_tokenizer_destroy(&s->given.tokenizer);
    free(s->actor);
    free(s->bytes);
    free(s);
}

static void test_texts(void **state)
{
    (void)state;
    stand_t *s = open_stand(false, 100);
    const qr_message_t *m = encode(s, QR_INPUT_TEXT, "abcd<s>", (qr_u32s_t){0}, (qr_u32s_t){0});
    static const uint32_t ids[] = {6, 3, 13, 15, 14};
    assert_int_equal(m->type, QR_MESSAGE_text_encoded);
    assert_int_equal(m->body.text_encoded.request_id, 42);
    assert_int_equal(m->body.text_encoded.tokens.count, 5);
    assert_memory_equal(m->body.text_encoded.tokens.data, ids, sizeof ids);
    const uint32_t roles[] = {QR_CHAT_USER, QR_CHAT_ASSISTANT}, lengths[] = {3, 0};
    m = encode(s, QR_INPUT_CHAT, "<s>", (qr_u32s_t){roles, 2}, (qr_u32s_t){lengths, 2});
    assert_int_equal(m->type, QR_MESSAGE_text_encoded);
    assert_int_equal(m->body.text_encoded.tokens.data[0], 11);
    close_stand(s);
}

static void test_refusals(void **state)
{
    (void)state;
    stand_t *s = open_stand(false, 4);
    const uint32_t role = QR_CHAT_USER, length = 2, long_length = UINT32_MAX;
    assert_refused(encode(s, QR_INPUT_TEXT, "", (qr_u32s_t){0}, (qr_u32s_t){0}), QR_E_INVALID, "prompt"); /* AP-09 */
    assert_refused(encode(s, QR_INPUT_TEXT, "QQQ", (qr_u32s_t){0}, (qr_u32s_t){0}), QR_E_INVALID, "prompt");
    assert_refused(encode(s, QR_INPUT_TEXT, "\xFF", (qr_u32s_t){0}, (qr_u32s_t){0}), QR_E_INVALID, "prompt");
    const qr_message_t *m = encode(s, QR_INPUT_TEXT, "ddddd", (qr_u32s_t){0}, (qr_u32s_t){0}); /* AP-15: both numbers */
    assert_refused(m, QR_E_CONTEXT, "prompt");
    char sentence[200] = "";
    memcpy(sentence, m->body.text_refused.text.data, m->body.text_refused.text.count);
    assert_non_null(strstr(sentence, "5"));
    assert_non_null(strstr(sentence, "4"));
    assert_int_equal(encode(s, QR_INPUT_TEXT, "dddd", (qr_u32s_t){0}, (qr_u32s_t){0})->type, QR_MESSAGE_text_encoded);
    assert_refused(encode(s, QR_INPUT_CHAT, "abc", (qr_u32s_t){&role, 1}, (qr_u32s_t){&length, 1}), QR_E_INVALID, "messages");
    assert_refused(encode(s, QR_INPUT_CHAT, "abc", (qr_u32s_t){&role, 1}, (qr_u32s_t){&long_length, 1}), QR_E_INVALID, "messages");
    assert_refused(encode(s, QR_INPUT_CHAT, "abc", (qr_u32s_t){&role, 1}, (qr_u32s_t){0}), QR_E_INVALID, "messages");
    char *big = malloc(QR_TEXT_BYTES_MAX + 2);
    memset(big, 'd', QR_TEXT_BYTES_MAX + 1);
    big[QR_TEXT_BYTES_MAX + 1] = 0;
    assert_refused(encode(s, QR_INPUT_TEXT, big, (qr_u32s_t){0}, (qr_u32s_t){0}), QR_E_LIMIT, "prompt");
    big[QR_TEXT_BYTES_MAX] = 0; /* the longest text, one id a byte: counted as far as it helps anybody, then refused by the context */
    m = encode(s, QR_INPUT_TEXT, big, (qr_u32s_t){0}, (qr_u32s_t){0});
    assert_refused(m, QR_E_CONTEXT, "prompt");
    memset(sentence, 0, sizeof sentence);
    memcpy(sentence, m->body.text_refused.text.data, m->body.text_refused.text.count);
    assert_string_equal(sentence, "the prompt has more than 16384 tokens, the context holds 4");
    const uint32_t whole = QR_TEXT_BYTES_MAX;
    assert_refused(encode(s, QR_INPUT_CHAT, big, (qr_u32s_t){&role, 1}, (qr_u32s_t){&whole, 1}), QR_E_CONTEXT, "messages");
    free(big);
    close_stand(s);
}

/* TK-09: a model that wants a begin token gets one at the start of a text, and one at the start of a chat. */
static void test_TK_09(void **state)
{
    (void)state;
    stand_t *s = open_stand(true, 100);
    const qr_message_t *m = encode(s, QR_INPUT_TEXT, "abc", (qr_u32s_t){0}, (qr_u32s_t){0});
    assert_true(m->body.text_encoded.tokens.count == 2 && m->body.text_encoded.tokens.data[0] == 10 &&
                m->body.text_encoded.tokens.data[1] == 6);
    m = encode(s, QR_INPUT_TEXT, "<s>abc", (qr_u32s_t){0}, (qr_u32s_t){0}); /* its text in a prompt is text */
    assert_true(m->body.text_encoded.tokens.count == 5 && m->body.text_encoded.tokens.data[0] == 10 &&
                m->body.text_encoded.tokens.data[1] == 13);
    m = encode(s, QR_INPUT_TEXT, "", (qr_u32s_t){0}, (qr_u32s_t){0}); /* AP-09: with a begin token an empty text is a prompt */
    assert_true(m->type == QR_MESSAGE_text_encoded && m->body.text_encoded.tokens.count == 1);
    const uint32_t role = QR_CHAT_USER, length = 1;
    m = encode(s, QR_INPUT_CHAT, "a", (qr_u32s_t){&role, 1}, (qr_u32s_t){&length, 1});
    assert_true(m->body.text_encoded.tokens.data[0] == 10 && m->body.text_encoded.tokens.data[1] == 11);
    close_stand(s);
}

static const qr_message_t *go_on(stand_t *s, uint8_t kind, const char *text, qr_u32s_t lengths, const char *prefix, uint8_t render)
{
    static const uint32_t roles[] = {QR_CHAT_USER, QR_CHAT_ASSISTANT, QR_CHAT_USER}, ids[] = {16, 16, 16};
    qr_text_encode_t b = {.request_id = 42,
                          .kind = kind,
                          .text = {(const uint8_t *)text, strlen(text)},
                          .roles = {roles, lengths.count},
                          .lengths = lengths,
                          .render = render};
    if (prefix) {
        b.prefix_text = (qr_bytes_t){(const uint8_t *)prefix, strlen(prefix)};
        b.prefix_tokens = (qr_u32s_t){ids, 3};
    }
    return say(s, QR_MESSAGE_text_encode, GATEWAY, &b, sizeof b);
}
static void assert_ids(const qr_message_t *m, const uint32_t *ids, uint64_t count)
{
    assert_int_equal(m->type, QR_MESSAGE_text_encoded);
    assert_int_equal(m->body.text_encoded.tokens.count, count);
    assert_memory_equal(m->body.text_encoded.tokens.data, ids, 4 * count);
}

/* What was saved stays the ids it was; what follows it is tokenized behind, by the same rules; what does not follow is refused. */
static void test_continuations(void **state)
{
    (void)state;
    stand_t *s = open_stand(true, 100);
    const uint32_t three[] = {1, 1, 1}, one[] = {1};
    const qr_message_t *m = go_on(s, QR_INPUT_CHAT, "a", (qr_u32s_t){one, 1}, NULL, 1);
    static const char rendered[] = "<sx>user\n\xFE"
                                   "a\xFF<s><sx>assistant\n";
    assert_int_equal(m->body.text_encoded.rendered.count, sizeof rendered - 1);
    assert_memory_equal(m->body.text_encoded.rendered.data, rendered, sizeof rendered - 1);
    assert_true(m->body.text_encoded.tokens.count > 0);
    /* "c" of the assistant was saved with it: the rest is what closes its turn, a new one and an opening. */
    static const char saved[] = "<sx>user\n\xFE"
                                "a\xFF<s><sx>assistant\n\xFE"
                                "c";
    m = go_on(s, QR_INPUT_CHAT, "acd", (qr_u32s_t){three, 3}, saved, 0);
    static const uint32_t turn[] = {16, 16, 16, 10, 11, 15, 3, 10, 11, 0, 15, 15, 15, 0};
    assert_ids(m, turn, QR_COUNT(turn));
    assert_int_equal(m->body.text_encoded.rendered.count, 0);
    /* A message cannot speak for the template, and another message is another conversation. */
    assert_refused(go_on(s, QR_INPUT_CHAT, "acd", (qr_u32s_t){three, 3},
                         "<sx>user\n\xFE"
                         "b",
                         0),
                   QR_E_MISMATCH, "continuation");
    assert_refused(go_on(s, QR_INPUT_CHAT, "a", (qr_u32s_t){one, 1}, saved, 0), QR_E_MISMATCH, "continuation");
    assert_refused(go_on(s, QR_INPUT_CHAT, "a", (qr_u32s_t){one, 1}, "", 0), QR_E_MISMATCH, "continuation");
    static const uint32_t rest[] = {16, 16, 16, 13, 15, 14, 3};
    assert_ids(go_on(s, QR_INPUT_TEXT, "ab<s>d", (qr_u32s_t){0},
                     "\xFE"
                     "ab",
                     0),
               rest, 7); /* what looks like control is text; no begin token */
    assert_ids(go_on(s, QR_INPUT_TEXT, "ab", (qr_u32s_t){0},
                     "\xFE"
                     "ab",
                     0),
               rest, 3);
    assert_refused(go_on(s, QR_INPUT_TEXT, "a\xC3\xA9", (qr_u32s_t){0},
                         "\xFE"
                         "a\xC3",
                         0),
                   QR_E_MISMATCH, "continuation");
    assert_refused(go_on(s, QR_INPUT_TEXT, "ab\xFF<s>\xFE", (qr_u32s_t){0},
                         "\xFE"
                         "ab",
                         0),
                   QR_E_INVALID, "prompt");
    close_stand(s);
}

static void test_life(void **state)
{
    (void)state;
    stand_t *s = open_stand(false, 100);
    qr_drain_t drain = {.budget_us = 1};
    const qr_message_t *m = say(s, QR_MESSAGE_drain, MESH, &drain, sizeof drain);
    assert_true(m->type == QR_MESSAGE_drained && m->body.drained.open_count == 0);
    qr_stop_t stop = {.budget_us = 1};
    assert_int_equal(say(s, QR_MESSAGE_stop, MESH, &stop, sizeof stop)->type, QR_MESSAGE_stopped);
    qr_tokenizer_t *kept = s->given.tokenizer; /* a node without a tokenizer says so at start */
    s->given.tokenizer = NULL;
    qr_start_t start = {.epoch = 1};
    m = say(s, QR_MESSAGE_start, MESH, &start, sizeof start);
    assert_true(m->type == QR_MESSAGE_ready && m->body.ready.reason != 0 && m->body.ready.text.count > 0);
    s->given.tokenizer = kept;
    close_stand(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_refusals), cmocka_unit_test(test_TK_09),
                                       cmocka_unit_test(test_continuations), cmocka_unit_test(test_life)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
