/* link: qr_actor_gateway qr_actor_quota qr_actor_detokenize qr_schema */
#define _GNU_SOURCE
/* The gateway by hand: every request gets its one answer; contexts, stop strings, characters, deadlines, bounds. */
#include "tests/unit/edge_harness.h"

#include "actors/gateway.h"

enum { HTTP = 0, PROMPT, TEXT, ROUTER, MESH };
static const uint64_t gateway = 1ull << 32 | QR_ROLE_gateway << 16;
static uint64_t to(int who)
{
    static const uint8_t roles[] = {QR_ROLE_http, QR_ROLE_prompt, QR_ROLE_text, QR_ROLE_router, QR_ROLE_mesh};
    return qr_address_partner(gateway, roles[who]);
}

static words_t words;
static qr_given_t given;
static rig_t rig;

static int begin(void **unused)
{
    (void)unused;
    memset(&words, 0, sizeof words);
    memset(&given, 0, sizeof given);
    const char *const texts[] = {"The", " quick", " brown", " fox", " jumps", "I", "\xf0\x9f\x98", "\x81", " a"};
    for (size_t i = 0; i < QR_COUNT(texts); i++) words_put(&words, texts[i]);
    words_add(&words, "<|end|>", 7, QR_TOKEN_SPECIAL | QR_TOKEN_END);
    qr_params_init(&given.params);
    given.params.max_requests = 8;
    given.layout.context_tokens = 32;
    given.vocabulary = words.vocabulary;
    rig_init(&rig, &qr_gateway_class, &given, gateway);
    SAY(&rig, to(MESH), start, .epoch = 3, .seed = 17);
    assert_int_equal(NEXT(&rig, to(MESH), ready)->reason, 0);
    rig_quiet(&rig);
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    rig_done(&rig);
    return 0;
}

static const uint32_t zeros[64];

/* A request of token ids. Returns what the router is asked to place. */
static qr_place_t submit_tokens(uint64_t key, uint32_t count, uint32_t max_tokens)
{
    SAY(&rig, to(HTTP), request_submit, .key = key, .kind = QR_INPUT_TOKENS, .tokens = {zeros, count}, .max_tokens = max_tokens,
        .top_p_bits = 0x3f800000);
    return *NEXT(&rig, to(ROUTER), place);
}

/* One entry of `tokens` from the router. */
static void tokens(uint64_t id, uint32_t index, const uint32_t *ids, uint32_t count, uint32_t finish)
{
    const uint32_t one = 1, none = 0;
    SAY(&rig, to(ROUTER), tokens, .request_ids = {&id, 1}, .attempts = {&one, 1}, .indexes = {&index, 1}, .counts = {&count, 1},
        .tokens = {ids, count}, .logprob_bits = {zeros, count}, .finishes = {&finish, 1}, .errors = {&none, 1});
}

static void assert_delta(uint64_t key, const char *text, uint32_t token_count)
{
    const qr_request_deltas_t *d = NEXT(&rig, to(HTTP), request_deltas);
    assert_int_equal(d->keys.count, 1);
    assert_int_equal(d->keys.data[0], key);
    assert_int_equal(d->text_lengths.data[0], strlen(text));
    assert_int_equal(d->token_counts.data[0], token_count);
    assert_bytes(d->text, text);
}
static void assert_taken(uint64_t id, uint32_t index)
{
    const qr_tokens_taken_t *t = NEXT(&rig, to(ROUTER), tokens_taken);
    assert_int_equal(t->request_ids.count, 1);
    assert_int_equal(t->request_ids.data[0], id);
    assert_int_equal(t->indexes.data[0], index);
}
static void ended(uint64_t id, uint32_t finish)
{
    SAY(&rig, to(ROUTER), place_ended, .request_id = id, .finish = finish, .cached_tokens = 1, .queue_us = 2, .prefill_us = 3);
}
static void assert_refused(int who, uint64_t key, uint32_t reason, const char *param)
{
    const qr_request_refused_t *r = NEXT(&rig, to(who), request_refused);
    assert_int_equal(r->key, key);
    assert_int_equal(r->reason, reason);
    assert_bytes(r->param, param);
    assert_true(r->text.count > 0);
}

/* ---- conversations ---------------------------------------------------------------------------------------------------- */

static void test_text_request_from_beginning_to_end(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 7, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("hello"), .max_tokens = 4,
        .temperature_bits = 0x3f000000, .top_p_bits = 0x3f000000, .top_k = 5, .seed_given = 1, .seed = 99, .logprobs = 1,
        .cache_salt = TEXT_COLUMN("salt"), .priority = 2, .budget_us = 5000000);
    const qr_text_encode_t *ask = NEXT(&rig, to(TEXT), text_encode);
    uint64_t id = ask->request_id;
    assert_int_equal(ask->kind, QR_INPUT_TEXT);
    assert_bytes(ask->text, "hello");
    rig_quiet(&rig);
    rig.now_us += 1000;
    SAY(&rig, to(TEXT), text_encoded, .request_id = id, .tokens = U32_COLUMN(3, 4, 5));
    const qr_place_t *place = NEXT(&rig, to(ROUTER), place);
    assert_int_equal(place->request_id, id);
    assert_int_equal(place->tokens.count, 3);
    assert_int_equal(place->tokens.data[2], 5);
    assert_int_equal(place->max_tokens, 4);
    assert_int_equal(place->temperature_bits, 0x3f000000);
    assert_int_equal(place->top_k, 5);
    assert_int_equal(place->seed, 99);
    assert_int_equal(place->budget_us, 5000000 - 1000);
    assert_int_equal(place->priority, 2);
    assert_bytes(place->cache_salt, "salt");
    rig_quiet(&rig);
    tokens(id, 0, (const uint32_t[]){0}, 1, 0);
    assert_delta(7, "The", 1);
    assert_taken(id, 1);
    rig_quiet(&rig);
    tokens(id, 1, (const uint32_t[]){1, 9}, 2, QR_FINISH_STOP);
    assert_delta(7, " quick", 2); /* the end token is counted and not shown */
    assert_taken(id, 3);
    rig_quiet(&rig);
    ended(id, QR_FINISH_STOP);
    const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished);
    assert_int_equal(f->key, 7);
    assert_int_equal(f->finish, QR_FINISH_STOP);
    assert_int_equal(f->prompt_tokens, 3);
    assert_int_equal(f->completion_tokens, 3);
    assert_int_equal(f->cached_tokens, 1);
    assert_int_equal(f->seed, 99);
    assert_int_equal(f->queue_us, 2);
    assert_int_equal(f->prefill_us, 3);
    assert_int_equal(f->prompt_ids.count, 0);
    rig_quiet(&rig);
}

static void test_AP_01_character_over_two_tokens(void **unused)
{
    (void)unused;
    uint64_t id = submit_tokens(1, 2, 3).request_id;
    tokens(id, 0, (const uint32_t[]){5, 6}, 2, 0);
    assert_delta(1, "I", 2);
    assert_taken(id, 2);
    tokens(id, 2, (const uint32_t[]){7}, 1, QR_FINISH_LENGTH);
    assert_delta(1, "\xf0\x9f\x98\x81", 1);
    assert_taken(id, 3);
    ended(id, QR_FINISH_LENGTH);
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->completion_tokens, 3);
    rig_quiet(&rig);
    id = submit_tokens(2, 2, 2).request_id; /* max_tokens 2: the character stays unfinished */
    tokens(id, 0, (const uint32_t[]){5, 6}, 2, QR_FINISH_LENGTH);
    assert_delta(2, "I\xef\xbf\xbd", 2);
    assert_taken(id, 2);
    ended(id, QR_FINISH_LENGTH);
    const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished);
    assert_int_equal(f->finish, QR_FINISH_LENGTH);
    assert_int_equal(f->completion_tokens, 2);
    rig_quiet(&rig);
}

/* The end is told apart from the tokens: what was held back comes out with place_ended. */
static void test_held_text_comes_out_at_the_end(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9,
        .stop = TEXT_COLUMN("own fox"), .stop_lengths = U32_COLUMN(7));
    uint64_t id = NEXT(&rig, to(ROUTER), place)->request_id;
    tokens(id, 0, (const uint32_t[]){2, 6}, 2, 0);
    assert_delta(1, " br", 2);
    assert_taken(id, 2);
    ended(id, QR_FINISH_LENGTH);
    assert_delta(1, "own\xef\xbf\xbd", 0);
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_LENGTH);
    rig_quiet(&rig);
}

static void test_AP_03_stop_string_over_two_tokens(void **unused)
{
    (void)unused;
    for (int together = 0; together < 2; together++) {
        SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9,
            .stop = TEXT_COLUMN("own fox"), .stop_lengths = U32_COLUMN(7));
        uint64_t id = NEXT(&rig, to(ROUTER), place)->request_id;
        const uint32_t ids[] = {0, 1, 2, 3, 4};
        if (together) {
            tokens(id, 0, ids, 5, 0);
            (void)NEXT(&rig, to(ROUTER), place_cancel);
            assert_delta(1, "The quick br", 4);
            assert_taken(id, 5);
        } else {
            const char *const shown[] = {"The", " quick", " br"};
            for (uint32_t i = 0; i < 3; i++) {
                tokens(id, i, ids + i, 1, 0);
                assert_delta(1, shown[i], 1);
                assert_taken(id, i + 1);
            }
            tokens(id, 3, ids + 3, 1, 0);
            const qr_place_cancel_t *cancel = NEXT(&rig, to(ROUTER), place_cancel);
            assert_int_equal(cancel->request_id, id);
            assert_int_equal(cancel->finish, QR_FINISH_STOP);
            assert_delta(1, "", 1);
            assert_taken(id, 4);
            rig_quiet(&rig);
            tokens(id, 4, ids + 4, 1, 0); /* drawn before the cancel was heard */
            assert_taken(id, 5);
        }
        rig_quiet(&rig);
        ended(id, QR_FINISH_STOP);
        const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished);
        assert_int_equal(f->finish, QR_FINISH_STOP);
        assert_int_equal(f->completion_tokens, 4);
        assert_int_equal(f->cached_tokens, 1);
        rig_quiet(&rig);
    }
}

/* A router that never answers the cancel delays a stop string's answer by at most a second. */
static void test_stop_string_without_usage(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9,
        .stop = TEXT_COLUMN("The"), .stop_lengths = U32_COLUMN(3));
    uint64_t id = NEXT(&rig, to(ROUTER), place)->request_id;
    tokens(id, 0, zeros, 1, 0);
    rig_pass(&rig, 999999);
    rig_quiet(&rig);
    rig_pass(&rig, 1);
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_STOP);
    rig_quiet(&rig);
    ended(id, QR_FINISH_STOP);
    rig_quiet(&rig);
}

static void test_AP_07_ids_outside_the_vocabulary(void **unused)
{
    (void)unused;
    uint64_t other = submit_tokens(1, 2, 3).request_id;
    const uint32_t bad[][2] = {{10, 0}, {0, 10}, {UINT32_MAX, 0}, {0, 2147483648u}};
    for (size_t i = 0; i < QR_COUNT(bad); i++) {
        SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = {bad[i], 2}, .max_tokens = 1);
        assert_refused(HTTP, 2, QR_E_INVALID, "prompt");
        rig_quiet(&rig);
    }
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = U32_COLUMN(0, 9), .max_tokens = 1);
    (void)NEXT(&rig, to(ROUTER), place);
    tokens(other, 0, (const uint32_t[]){5}, 1, 0);
    assert_delta(1, "I", 1);
}

static void test_AP_09_empty_prompts(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .max_tokens = 1);
    assert_refused(HTTP, 1, QR_E_INVALID, "prompt");
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_CHAT, .max_tokens = 1);
    assert_refused(HTTP, 2, QR_E_INVALID, "messages");
    SAY(&rig, to(HTTP), request_submit, .key = 3, .kind = QR_INPUT_TEXT, .max_tokens = 1); /* may become tokens: text decides */
    uint64_t id = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(TEXT), text_encoded, .request_id = id);
    assert_refused(HTTP, 3, QR_E_INVALID, "prompt");
    rig_quiet(&rig);
    SAY(&rig, to(HTTP), request_submit, .key = 4, .kind = QR_INPUT_CHAT, .roles = U32_COLUMN(QR_CHAT_USER), .lengths = U32_COLUMN(0),
        .max_tokens = 1);
    id = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(TEXT), text_encoded, .request_id = id);
    assert_refused(HTTP, 4, QR_E_INVALID, "messages");
    SAY(&rig, to(HTTP), request_submit, .key = 5, .kind = QR_INPUT_CHAT, .roles = U32_COLUMN(QR_CHAT_USER), .lengths = U32_COLUMN(0),
        .max_tokens = 1);
    id = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(TEXT), text_encoded, .request_id = id, .tokens = U32_COLUMN(1));
    (void)NEXT(&rig, to(ROUTER), place); /* the template added tokens: a normal request */
    rig_quiet(&rig);
}

static void test_AP_15_context(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 33}, .max_tokens = 1);
    const qr_request_refused_t *r = NEXT(&rig, to(HTTP), request_refused);
    assert_int_equal(r->reason, QR_E_CONTEXT);
    assert_bytes(r->text, "the prompt has 33 tokens, the context holds 32");
    static const struct {
        uint32_t prompt, asked, allowed;
    } rows[] = {{30, 10, 2}, {32, 1, 1}, {32, 5, 1}, {32, 0, 1}, {31, 0, 1}, {2, 0, 30}, {2, 3, 3}};
    for (uint64_t i = 0; i < QR_COUNT(rows); i++) {
        qr_place_t place = submit_tokens(10 + i, rows[i].prompt, rows[i].asked);
        assert_int_equal(place.max_tokens, rows[i].allowed);
        assert_int_equal(place.tokens.count, rows[i].prompt); /* nothing is cut off */
        assert_true(place.tokens.count + place.max_tokens - 1 <= 32);
    }
}

static void test_default_max_tokens(void **unused)
{
    (void)unused;
    given.layout.context_tokens = 5000;
    rig_done(&rig);
    rig_init(&rig, &qr_gateway_class, &given, gateway);
    assert_int_equal(submit_tokens(1, 2, 0).max_tokens, 1024);
    assert_int_equal(submit_tokens(2, 2, 4000).max_tokens, 4000);
}

static void test_bad_requests_name_their_field(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = 9);
    assert_refused(HTTP, 1, QR_E_INVALID, "prompt");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .temperature_bits = 0x7fc00000);
    assert_refused(HTTP, 1, QR_E_INVALID, "temperature");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .temperature_bits = 0xbf800000);
    assert_refused(HTTP, 1, QR_E_INVALID, "temperature");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .top_p_bits = 0x3f800001);
    assert_refused(HTTP, 1, QR_E_INVALID, "top_p");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .min_p_bits = 0x7f800000);
    assert_refused(HTTP, 1, QR_E_INVALID, "min_p");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .stop = TEXT_COLUMN("ab"),
        .stop_lengths = U32_COLUMN(1, 2));
    assert_refused(HTTP, 1, QR_E_INVALID, "stop");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1},
        .cache_salt = {(const uint8_t *)zeros, 65});
    assert_refused(HTTP, 1, QR_E_LIMIT, "cache_salt");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_CHAT, .text = TEXT_COLUMN("abc"), .roles = U32_COLUMN(1),
        .lengths = U32_COLUMN(2));
    assert_refused(HTTP, 1, QR_E_INVALID, "messages");
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 1}, .echo_prompt = 1);
    assert_refused(HTTP, 1, QR_E_INVALID, "echo");
    rig_quiet(&rig);
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("x"));
    uint64_t id = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(TEXT), text_refused, .request_id = id, .reason = QR_E_FORMAT, .param = TEXT_COLUMN("prompt"),
        .text = TEXT_COLUMN("not UTF-8"));
    assert_refused(HTTP, 1, QR_E_FORMAT, "prompt");
    rig_quiet(&rig);
}

static void test_one_delta_message_per_tokens_message(void **unused)
{
    (void)unused;
    uint64_t a = submit_tokens(1, 2, 9).request_id, b = submit_tokens(2, 2, 9).request_id, gone = 12345;
    SAY(&rig, to(ROUTER), tokens, .request_ids = U64_COLUMN(a, gone, b), .attempts = U32_COLUMN(1, 1, 1), .indexes = U32_COLUMN(0, 4, 0),
        .counts = U32_COLUMN(2, 1, 1), .tokens = U32_COLUMN(0, 1, 8, 3), .logprob_bits = U32_COLUMN(10, 11, 12, 13),
        .finishes = U32_COLUMN(0, 0, 0), .errors = U32_COLUMN(0, 0, 0));
    const qr_request_deltas_t *d = NEXT(&rig, to(HTTP), request_deltas);
    assert_int_equal(d->keys.count, 2);
    assert_int_equal(d->keys.data[0], 1);
    assert_int_equal(d->keys.data[1], 2);
    assert_int_equal(d->text_lengths.data[0], 9);
    assert_int_equal(d->text_lengths.data[1], 4);
    assert_bytes(d->text, "The quick fox");
    assert_int_equal(d->tokens.count, 3);
    assert_int_equal(d->tokens.data[2], 3);
    assert_int_equal(d->logprob_bits.data[2], 13);
    const qr_tokens_taken_t *t = NEXT(&rig, to(ROUTER), tokens_taken);
    assert_int_equal(t->indexes.count, 3);
    assert_int_equal(t->indexes.data[0], 2);
    assert_int_equal(t->indexes.data[1], 5);
    assert_int_equal(t->indexes.data[2], 1);
    rig_quiet(&rig);
}

static void test_repeats_and_gaps(void **unused)
{
    (void)unused;
    uint64_t id = submit_tokens(1, 2, 9).request_id;
    tokens(id, 0, (const uint32_t[]){0, 1}, 2, 0);
    assert_delta(1, "The quick", 2);
    assert_taken(id, 2);
    tokens(id, 0, (const uint32_t[]){0, 1, 2}, 3, 0); /* a repeat with one more */
    assert_delta(1, " brown", 1);
    assert_taken(id, 3);
    tokens(id, 1, (const uint32_t[]){1}, 1, 0);
    assert_taken(id, 3);
    rig_quiet(&rig);
    tokens(id, 4, (const uint32_t[]){4}, 1, 0); /* a gap: the index that is expected is answered */
    assert_taken(id, 3);
    rig_quiet(&rig);
    SAY(&rig, to(ROUTER), tokens, .request_ids = {&id, 1}, .counts = U32_COLUMN(5)); /* columns that do not add up change nothing */
    assert_int_equal(NEXT(&rig, to(ROUTER), tokens_taken)->request_ids.count, 0);
    rig_quiet(&rig);
}

static void test_cancel_in_every_state(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("x"), .max_tokens = 1);
    uint64_t encoding = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(HTTP), request_cancel, .key = 1, .reason = QR_E_CANCELLED);
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_CANCELLED);
    rig_quiet(&rig);
    SAY(&rig, to(TEXT), text_encoded, .request_id = encoding, .tokens = U32_COLUMN(1)); /* too late: nothing is placed */
    rig_quiet(&rig);
    uint64_t placed = submit_tokens(2, 2, 9).request_id;
    tokens(placed, 0, (const uint32_t[]){0}, 1, 0);
    SAY(&rig, to(HTTP), request_cancel, .key = 2, .reason = QR_E_SLOW_CLIENT);
    const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished);
    assert_int_equal(f->finish, QR_FINISH_CANCELLED);
    assert_int_equal(f->error, QR_E_SLOW_CLIENT);
    assert_int_equal(f->completion_tokens, 1);
    assert_int_equal(NEXT(&rig, to(ROUTER), place_cancel)->finish, QR_FINISH_CANCELLED);
    rig_quiet(&rig);
    SAY(&rig, to(HTTP), request_cancel, .key = 2, .reason = QR_E_CANCELLED); /* again: no second answer */
    rig_quiet(&rig);
    tokens(placed, 1, (const uint32_t[]){1}, 1, QR_FINISH_CANCELLED);
    assert_taken(placed, 2);
    rig_quiet(&rig);
    ended(placed, QR_FINISH_CANCELLED);
    rig_quiet(&rig);
    SAY(&rig, to(HTTP), metrics_read, .version = 1);
    const qr_metrics_t *m = NEXT(&rig, to(HTTP), metrics);
    assert_int_equal(m->ids.data[5], 6);
    assert_int_equal(m->values.data[5], 0); /* open */
    assert_int_equal(m->values.data[3], 2); /* cancelled */
    assert_int_equal(m->values.data[6], 1); /* slow clients */
}

static void test_deadlines(void **unused)
{
    (void)unused;
    given.params.request_timeout_ms = 2000;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9, .budget_us = 1000000);
    uint64_t early = NEXT(&rig, to(ROUTER), place)->request_id;
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9, .budget_us = 9000000);
    qr_place_t later = *NEXT(&rig, to(ROUTER), place);
    assert_int_equal(later.budget_us, 2000000);
    tokens(later.request_id, 0, (const uint32_t[]){0}, 1, 0);
    rig_pass(&rig, 999999);
    rig_quiet(&rig);
    rig_pass(&rig, 1);
    assert_refused(HTTP, 1, QR_E_DEADLINE, "");
    assert_int_equal(NEXT(&rig, to(ROUTER), place_cancel)->request_id, early);
    rig_quiet(&rig);
    rig_pass(&rig, 1000000);
    const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished); /* something was shown: an error ends it */
    assert_int_equal(f->finish, QR_FINISH_ERROR);
    assert_int_equal(f->error, QR_E_DEADLINE);
    assert_int_equal(NEXT(&rig, to(ROUTER), place_cancel)->request_id, later.request_id);
    rig_quiet(&rig);
    assert_true(rig.outbox->alarm_us == QR_NEVER_US);
}

static void test_router_refusals_and_errors(void **unused)
{
    (void)unused;
    uint64_t id = submit_tokens(1, 2, 9).request_id;
    SAY(&rig, to(ROUTER), place_refused, .request_id = id, .reason = QR_E_BUSY, .retry_after_ms = 40);
    const qr_request_refused_t *r = NEXT(&rig, to(HTTP), request_refused);
    assert_int_equal(r->reason, QR_E_BUSY);
    assert_int_equal(r->retry_after_ms, 40);
    id = submit_tokens(2, 2, 9).request_id;
    SAY(&rig, to(ROUTER), place_ended, .request_id = id, .finish = QR_FINISH_ERROR, .error = QR_E_PEER_DOWN);
    assert_refused(HTTP, 2, QR_E_PEER_DOWN, ""); /* nothing was shown */
    id = submit_tokens(3, 2, 9).request_id;
    tokens(id, 0, (const uint32_t[]){0, 6}, 2, 0);
    SAY(&rig, to(ROUTER), place_ended, .request_id = id, .finish = QR_FINISH_ERROR, .error = QR_E_PEER_DOWN);
    assert_delta(3, "\xef\xbf\xbd", 0);
    const qr_request_finished_t *f = NEXT(&rig, to(HTTP), request_finished);
    assert_int_equal(f->finish, QR_FINISH_ERROR);
    assert_int_equal(f->error, QR_E_PEER_DOWN);
    rig_quiet(&rig);
    SAY(&rig, to(ROUTER), place_ended, .request_id = id, .finish = QR_FINISH_STOP); /* unknown by now */
    rig_quiet(&rig);
}

/* Burst above capacity: what does not fit is refused at once with a hint; when places are free again requests are taken. */
static void test_SC_05(void **unused)
{
    (void)unused;
    uint64_t ids[8];
    uint32_t taken = 0;
    for (uint64_t key = 0; key < 200; key++) {
        SAY(&rig, to(HTTP), request_submit, .key = key, .kind = QR_INPUT_TOKENS, .tokens = {zeros, key % 2 ? 4 : 24}, .max_tokens = 4);
        if (rig.outbox->messages[0].type == QR_MESSAGE_place) {
            assert_int_equal(taken, key); /* first come, first served */
            ids[taken++] = NEXT(&rig, to(ROUTER), place)->request_id;
        } else {
            const qr_request_refused_t *r = NEXT(&rig, to(HTTP), request_refused);
            assert_int_equal(r->reason, QR_E_BUSY);
            assert_int_equal(r->key, key);
            assert_true(r->retry_after_ms > 0);
        }
        rig_quiet(&rig);
    }
    assert_int_equal(taken, 8);
    for (uint32_t i = 0; i < taken; i++) {
        tokens(ids[i], 0, zeros, 4, QR_FINISH_LENGTH);
        ended(ids[i], QR_FINISH_LENGTH);
        (void)NEXT(&rig, to(HTTP), request_finished);
    }
    for (uint64_t key = 300; key < 310; key++) {
        uint64_t id = submit_tokens(key, 4, 4).request_id;
        tokens(id, 0, zeros, 4, QR_FINISH_LENGTH);
        ended(id, QR_FINISH_LENGTH);
        assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_LENGTH);
    }
}

/* A cancelled request keeps its place until the router let go of it, so its questions never pass the window. */
static void test_places_are_counted_until_the_router_answers(void **unused)
{
    (void)unused;
    uint64_t ids[8];
    for (uint64_t key = 0; key < 8; key++) {
        ids[key] = submit_tokens(key, 2, 2).request_id;
        SAY(&rig, to(HTTP), request_cancel, .key = key, .reason = QR_E_CANCELLED);
    }
    SAY(&rig, to(HTTP), request_submit, .key = 50, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2);
    assert_refused(HTTP, 50, QR_E_BUSY, "");
    ended(ids[3], QR_FINISH_CANCELLED);
    (void)submit_tokens(51, 2, 2);
}

static void test_keys_are_per_asker(void **unused)
{
    (void)unused;
    (void)submit_tokens(1, 2, 2);
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2);
    assert_refused(HTTP, 1, QR_E_IN_USE, "");
    SAY(&rig, to(PROMPT), request_submit, .key = 1, .kind = QR_INPUT_TOKENS, .tokens = U32_COLUMN(4, 5), .max_tokens = 2, .echo_prompt = 1);
    uint64_t id = NEXT(&rig, to(ROUTER), place)->request_id;
    SAY(&rig, to(PROMPT), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2, .echo_prompt = 1);
    assert_refused(PROMPT, 2, QR_E_BUSY, ""); /* one prompt is kept at a time */
    SAY(&rig, to(HTTP), request_cancel, .key = 1, .reason = QR_E_CANCELLED);
    (void)NEXT(&rig, to(HTTP), request_finished);
    ended(id, QR_FINISH_LENGTH);
    const qr_request_finished_t *f = NEXT(&rig, to(PROMPT), request_finished);
    assert_int_equal(f->prompt_ids.count, 2);
    assert_int_equal(f->prompt_ids.data[1], 5);
    SAY(&rig, to(PROMPT), request_submit, .key = 3, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2, .echo_prompt = 1);
    (void)NEXT(&rig, to(ROUTER), place);
}

static void test_seeds_come_from_the_gateways_own_generator(void **unused)
{
    (void)unused;
    uint64_t first = submit_tokens(1, 2, 2).seed, second = submit_tokens(2, 2, 2).seed;
    assert_true(first != second);
    rig_done(&rig);
    rig_init(&rig, &qr_gateway_class, &given, gateway);
    SAY(&rig, to(MESH), start, .epoch = 3, .seed = 17);
    qr_place_t again = submit_tokens(1, 2, 2);
    assert_true(again.seed == first);
    ended(again.request_id, QR_FINISH_LENGTH);
    assert_true(NEXT(&rig, to(HTTP), request_finished)->seed == first);
    SAY(&rig, to(HTTP), request_submit, .key = 9, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2, .seed_given = 1,
        .seed = 0);
    assert_true(NEXT(&rig, to(ROUTER), place)->seed == 0);
}

static void test_probes_come_back_to_who_asked(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), probe, .probe_id = 77);
    uint64_t first = NEXT(&rig, to(ROUTER), probe)->probe_id;
    SAY(&rig, to(PROMPT), probe, .probe_id = 77);
    uint64_t second = NEXT(&rig, to(ROUTER), probe)->probe_id;
    SAY(&rig, to(ROUTER), probe_done, .probe_id = second, .reason = 5);
    const qr_probe_done_t *done = NEXT(&rig, to(PROMPT), probe_done);
    assert_int_equal(done->probe_id, 77);
    assert_int_equal(done->reason, 5);
    SAY(&rig, to(ROUTER), probe_done, .probe_id = first);
    assert_int_equal(NEXT(&rig, to(HTTP), probe_done)->reason, 0);
    SAY(&rig, to(ROUTER), probe_done, .probe_id = first);
    SAY(&rig, to(ROUTER), probe_done, .probe_id = UINT64_MAX);
    rig_quiet(&rig);
    for (uint64_t i = 0; i < 16; i++) {
        SAY(&rig, to(HTTP), probe, .probe_id = i);
        (void)NEXT(&rig, to(ROUTER), probe);
    }
    SAY(&rig, to(PROMPT), probe, .probe_id = 5);
    assert_int_equal(NEXT(&rig, to(PROMPT), probe_done)->reason, QR_E_BUSY);
}

static void test_drain_and_stop(void **unused)
{
    (void)unused;
    uint64_t id = submit_tokens(1, 2, 2).request_id;
    SAY(&rig, to(MESH), drain, .budget_us = 1000000);
    rig_quiet(&rig);
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 2);
    assert_refused(HTTP, 2, QR_E_DRAINING, "");
    SAY(&rig, to(HTTP), probe, .probe_id = 1);
    assert_int_equal(NEXT(&rig, to(HTTP), probe_done)->reason, QR_E_DRAINING);
    ended(id, QR_FINISH_LENGTH);
    (void)NEXT(&rig, to(HTTP), request_finished);
    assert_int_equal(NEXT(&rig, to(MESH), drained)->open_count, 0);
    rig_quiet(&rig);
}

static void test_drain_ends_with_its_budget_and_stop_answers_everything(void **unused)
{
    (void)unused;
    uint64_t shown = submit_tokens(1, 2, 9).request_id, stopping;
    tokens(shown, 0, (const uint32_t[]){0}, 1, 0);
    (void)submit_tokens(2, 2, 9);
    SAY(&rig, to(HTTP), request_submit, .key = 3, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("x"), .max_tokens = 1);
    SAY(&rig, to(HTTP), request_submit, .key = 4, .kind = QR_INPUT_TOKENS, .tokens = {zeros, 2}, .max_tokens = 9,
        .stop = TEXT_COLUMN("The"), .stop_lengths = U32_COLUMN(3));
    stopping = NEXT(&rig, to(ROUTER), place)->request_id;
    tokens(stopping, 0, zeros, 1, 0);
    SAY(&rig, to(MESH), drain, .budget_us = 500000);
    rig_quiet(&rig);
    rig_pass(&rig, 500000);
    assert_int_equal(NEXT(&rig, to(MESH), drained)->open_count, 4);
    rig_quiet(&rig);
    SAY(&rig, to(MESH), stop, .budget_us = 1);
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_ERROR);
    assert_int_equal(NEXT(&rig, to(ROUTER), place_cancel)->request_id, shown);
    assert_refused(HTTP, 2, QR_E_DRAINING, "");
    (void)NEXT(&rig, to(ROUTER), place_cancel);
    assert_refused(HTTP, 3, QR_E_DRAINING, "");
    assert_int_equal(NEXT(&rig, to(HTTP), request_finished)->finish, QR_FINISH_STOP);
    (void)NEXT(&rig, to(MESH), stopped);
    rig_quiet(&rig);
}

/* More text than one message carries: part of the tokens is taken, the rest comes again. */
static void test_a_flood_of_text_is_taken_in_parts(void **unused)
{
    (void)unused;
    static words_t wide;
    static uint8_t letters[4000];
    static uint32_t many[40];
    memset(&wide, 0, sizeof wide);
    memset(letters, 'x', sizeof letters);
    words_add(&wide, letters, sizeof letters, 0);
    given.vocabulary = wide.vocabulary;
    given.layout.context_tokens = 5000;
    rig_done(&rig);
    rig_init(&rig, &qr_gateway_class, &given, gateway);
    uint64_t id = submit_tokens(1, 2, 100).request_id, text = 0;
    uint32_t at = 0, messages = 0;
    for (; at < 40 && messages < 40; messages++) {
        tokens(id, at, many, 40 - at, QR_FINISH_LENGTH);
        text += NEXT(&rig, to(HTTP), request_deltas)->text.count;
        uint32_t taken = NEXT(&rig, to(ROUTER), tokens_taken)->indexes.data[0];
        assert_true(taken > at);
        at = taken;
        rig_quiet(&rig);
    }
    assert_true(messages > 1 && at == 40 && text == 40 * sizeof letters);
}

/* A router that is not ours takes and gives nothing: the request goes on as if it had said nothing. */
static void test_tokens_of_a_stranger(void **unused)
{
    (void)unused;
    uint64_t id = submit_tokens(1, 4, 8).request_id;
    const uint64_t stranger = qr_address(2, 0, QR_ROLE_router, 0);
    const uint32_t one = 1, none = 0, token = 3, finish = QR_FINISH_STOP;
    SAY(&rig, stranger, tokens, .request_ids = {&id, 1}, .attempts = {&one, 1}, .indexes = {&none, 1}, .counts = {&one, 1},
        .tokens = {&token, 1}, .logprob_bits = {&none, 1}, .finishes = {&finish, 1}, .errors = {&none, 1});
    assert_int_equal(NEXT(&rig, stranger, tokens_taken)->request_ids.count, 0);
    rig_quiet(&rig);
    tokens(id, 0, &none, 1, 0);
    assert_delta(1, "The", 1);
    assert_taken(id, 1);
}

/* formats.md: 24 bits of the epoch, then a counter of 40 bits; gateways of any two nodes and incarnations differ in the epoch. */
static void test_request_ids(void **unused)
{
    (void)unused;
    rig_done(&rig);
    rig_init(&rig, &qr_gateway_class, &given, gateway);
    SAY(&rig, to(MESH), start, .epoch = 0x123456789abcdefull, .seed = 17);
    uint64_t first = submit_tokens(1, 4, 8).request_id, second = submit_tokens(2, 4, 8).request_id;
    assert_int_equal(first >> 40, 0xabcdef);
    assert_int_equal(second >> 40, 0xabcdef);
    assert_int_equal(second >> 16 & 0xffffff, (first >> 16 & 0xffffff) + 1);
    assert_int_equal(first & 0xffff, 0);
    assert_int_equal(second & 0xffff, 1);
}

/* ---- tenants ------------------------------------------------------------------------------------------------------------ */

/* A request of token ids by a tenant, with its limits. */
static void submit_as(uint32_t tenant, uint64_t key, uint32_t count, uint32_t max_tokens, uint32_t lanes, uint32_t pages, uint32_t rate)
{
    SAY(&rig, to(HTTP), request_submit, .key = key, .kind = QR_INPUT_TOKENS, .tokens = {zeros, count}, .max_tokens = max_tokens,
        .tenant_salt = TEXT_COLUMN("pepper"), .tenant = tenant, .tenant_lanes = lanes, .tenant_pages = pages, .tenant_tokens_per_s = rate);
}
static void assert_quota(uint64_t key, uint32_t reason, uint32_t retry_after_ms, const char *word)
{
    const qr_request_refused_t *r = NEXT(&rig, to(HTTP), request_refused);
    assert_int_equal(r->key, key);
    assert_int_equal(r->reason, reason);
    assert_int_equal(r->retry_after_ms, retry_after_ms);
    assert_int_equal(r->param.count, 0);
    assert_non_null(memmem(r->text.data, r->text.count, word, strlen(word)));
    rig_quiet(&rig);
}

/* A saved continuation goes to text with the input, and is compared here where the input is ids. */
static void test_continuations(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("abc"), .prefix_text = TEXT_COLUMN("ab"),
        .prefix_tokens = U32_COLUMN(3, 4));
    const qr_text_encode_t *ask = NEXT(&rig, to(TEXT), text_encode);
    assert_bytes(ask->prefix_text, "ab");
    assert_int_equal(ask->prefix_tokens.count, 2);
    assert_int_equal(ask->prefix_tokens.data[1], 4);
    SAY(&rig, to(TEXT), text_refused, .request_id = ask->request_id, .reason = QR_E_MISMATCH);
    assert_int_equal(NEXT(&rig, to(HTTP), request_refused)->reason, QR_E_MISMATCH);
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TOKENS, .tokens = U32_COLUMN(3, 4, 5),
        .prefix_tokens = U32_COLUMN(3, 4));
    assert_int_equal(NEXT(&rig, to(ROUTER), place)->tokens.count, 3);
    SAY(&rig, to(HTTP), request_submit, .key = 3, .kind = QR_INPUT_TOKENS, .tokens = U32_COLUMN(3, 5, 5),
        .prefix_tokens = U32_COLUMN(3, 4));
    assert_int_equal(NEXT(&rig, to(HTTP), request_refused)->reason, QR_E_MISMATCH);
    SAY(&rig, to(HTTP), request_submit, .key = 4, .kind = QR_INPUT_TOKENS, .tokens = U32_COLUMN(3), .prefix_tokens = U32_COLUMN(3, 4));
    assert_int_equal(NEXT(&rig, to(HTTP), request_refused)->reason, QR_E_MISMATCH);
    SAY(&rig, to(HTTP), request_submit, .key = 5, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("abc"), .prefix_text = TEXT_COLUMN("ab"));
    assert_int_equal(NEXT(&rig, to(HTTP), request_refused)->reason, QR_E_INVALID);
    rig_quiet(&rig);
}

static void test_a_tenants_salt_and_wishes_travel(void **unused)
{
    (void)unused;
    SAY(&rig, to(HTTP), request_submit, .key = 1, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("hi"), .tenant_salt = TEXT_COLUMN("pepper"),
        .cache_salt = TEXT_COLUMN("salt"), .tenant = QR_TENANTS_MAX, .priority = 7, .budget_us = 1000, .tenant_lanes = 1);
    uint64_t id = NEXT(&rig, to(TEXT), text_encode)->request_id;
    SAY(&rig, to(TEXT), text_encoded, .request_id = id, .tokens = U32_COLUMN(3, 4));
    const qr_place_t *place = NEXT(&rig, to(ROUTER), place);
    assert_bytes(place->tenant_salt, "pepper");
    assert_bytes(place->cache_salt, "salt");
    assert_int_equal(place->priority, 7);
    assert_int_equal(place->budget_us, 1000);
    submit_as(QR_TENANTS_MAX + 1, 2, 4, 4, 0, 0, 0);
    assert_refused(HTTP, 2, QR_E_INVALID, "tenant");
}

static void test_lanes_of_a_tenant(void **unused)
{
    (void)unused;
    submit_as(1, 1, 4, 4, 2, 0, 0);
    uint64_t first = NEXT(&rig, to(ROUTER), place)->request_id;
    SAY(&rig, to(HTTP), request_submit, .key = 2, .kind = QR_INPUT_TEXT, .text = TEXT_COLUMN("hi"), .tenant = 1, .tenant_lanes = 2);
    uint64_t second = NEXT(&rig, to(TEXT), text_encode)->request_id; /* one that is not placed yet counts too */
    submit_as(1, 3, 4, 4, 2, 0, 0);
    assert_quota(3, QR_E_QUOTA, 1000, "at once");
    submit_as(2, 4, 4, 4, 1, 0, 0); /* others are not touched */
    (void)NEXT(&rig, to(ROUTER), place);
    (void)submit_tokens(5, 4, 4);
    SAY(&rig, to(TEXT), text_refused, .request_id = second, .reason = QR_E_INVALID);
    (void)NEXT(&rig, to(HTTP), request_refused);
    submit_as(1, 6, 4, 4, 2, 0, 0);
    (void)NEXT(&rig, to(ROUTER), place);
    /* A client that left holds its place until the router is done with it. */
    SAY(&rig, to(HTTP), request_cancel, .key = 1, .reason = QR_E_CANCELLED);
    submit_as(1, 7, 4, 4, 2, 0, 0);
    assert_quota(7, QR_E_QUOTA, 1000, "at once");
    ended(first, QR_FINISH_CANCELLED);
    submit_as(1, 8, 4, 4, 2, 0, 0);
    (void)NEXT(&rig, to(ROUTER), place);
    rig_quiet(&rig);
}

static void test_pages_of_a_tenant(void **unused)
{
    (void)unused;
    given.layout.group_count = 1;
    given.layout.page_tokens = 4;
    submit_as(1, 1, 5, 8, 0, 5, 0); /* 12 rows: the last token drawn needs none */
    uint64_t first = NEXT(&rig, to(ROUTER), place)->request_id;
    submit_as(1, 2, 5, 5, 0, 5, 0); /* 9 rows */
    assert_quota(2, QR_E_QUOTA, 1000, "pages");
    submit_as(1, 3, 4, 5, 0, 5, 0); /* 8 rows: 3 + 2 pages */
    uint64_t third = NEXT(&rig, to(ROUTER), place)->request_id;
    submit_as(1, 4, 1, 1, 0, 5, 0);
    assert_quota(4, QR_E_QUOTA, 1000, "pages");
    submit_as(1, 5, 20, 2, 0, 5, 0); /* 21 rows never fit 5 pages: waiting would not help */
    assert_quota(5, QR_E_NEVER_FITS, 0, "fewer tokens");
    ended(first, QR_FINISH_LENGTH);
    submit_as(1, 6, 5, 8, 0, 5, 0);
    (void)NEXT(&rig, to(ROUTER), place);
    rig_quiet(&rig);
    SAY(&rig, to(ROUTER), place_refused, .request_id = third, .reason = QR_E_BUSY);
    (void)NEXT(&rig, to(HTTP), request_refused);
    submit_as(1, 7, 4, 5, 0, 5, 0);
    (void)NEXT(&rig, to(ROUTER), place);
}

static void test_tokens_per_second_of_a_tenant(void **unused)
{
    (void)unused;
    submit_as(1, 1, 4, 12, 0, 0, 2); /* the bucket holds 20 */
    uint64_t first = NEXT(&rig, to(ROUTER), place)->request_id;
    submit_as(1, 2, 4, 4, 0, 0, 2);
    assert_quota(2, QR_E_QUOTA, 2000, "a second");
    rig.now_us += 1999999;
    submit_as(1, 2, 4, 4, 0, 0, 2);
    assert_quota(2, QR_E_QUOTA, 1, "a second");
    rig.now_us += 1;
    submit_as(1, 3, 4, 4, 0, 0, 2);
    (void)NEXT(&rig, to(ROUTER), place);
    /* The first ends after 2 of its 12: 10 come back. */
    tokens(first, 0, (const uint32_t[]){0, 1}, 2, QR_FINISH_STOP);
    ended(first, QR_FINISH_STOP);
    submit_as(1, 4, 4, 7, 0, 0, 2);
    assert_quota(4, QR_E_QUOTA, 500, "a second");
    submit_as(1, 5, 4, 6, 0, 0, 2);
    uint64_t fifth = NEXT(&rig, to(ROUTER), place)->request_id;
    /* What the router refused used nothing; what was cut to the context takes what it may draw. */
    SAY(&rig, to(ROUTER), place_refused, .request_id = fifth, .reason = QR_E_NO_WORKER);
    rig.now_us += 100 * 1000000ull;
    submit_as(1, 6, 31, 500, 0, 0, 2);
    (void)NEXT(&rig, to(ROUTER), place);
    submit_as(1, 7, 1, 1, 0, 0, 2);
    assert_quota(7, QR_E_QUOTA, (32 - 20 + 2) * 500, "a second");
}

/* Whatever ends a request, its tenant's quota is free afterwards; the rig checks the sums after every message. */
static void test_quotas_come_back_whatever_happens(void **unused)
{
    (void)unused;
    for (uint32_t round = 0; round < 6; round++) {
        submit_as(1, round, 4, 4, 1, 0, 0);
        uint64_t id = NEXT(&rig, to(ROUTER), place)->request_id;
        switch (round) {
        case 0: ended(id, QR_FINISH_LENGTH); break;
        case 1: SAY(&rig, to(ROUTER), place_refused, .request_id = id, .reason = QR_E_NEVER_FITS); break;
        case 2: SAY(&rig, to(ROUTER), place_ended, .request_id = id, .finish = QR_FINISH_ERROR, .error = QR_E_DEVICE); break;
        case 3:
            rig_pass(&rig, given.params.request_timeout_ms * 1000);
            ended(id, QR_FINISH_CANCELLED);
            break;
        case 4:
            SAY(&rig, to(HTTP), request_cancel, .key = round, .reason = QR_E_CANCELLED);
            SAY(&rig, to(ROUTER), place_refused, .request_id = id, .reason = QR_E_BUSY);
            break;
        default: SAY(&rig, to(MESH), stop, .budget_us = 1); ended(id, QR_FINISH_CANCELLED);
        }
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        T(test_text_request_from_beginning_to_end),
        T(test_AP_01_character_over_two_tokens),
        T(test_held_text_comes_out_at_the_end),
        T(test_AP_03_stop_string_over_two_tokens),
        T(test_stop_string_without_usage),
        T(test_AP_07_ids_outside_the_vocabulary),
        T(test_AP_09_empty_prompts),
        T(test_AP_15_context),
        T(test_default_max_tokens),
        T(test_bad_requests_name_their_field),
        T(test_one_delta_message_per_tokens_message),
        T(test_repeats_and_gaps),
        T(test_cancel_in_every_state),
        T(test_deadlines),
        T(test_router_refusals_and_errors),
        T(test_SC_05),
        T(test_places_are_counted_until_the_router_answers),
        T(test_keys_are_per_asker),
        T(test_seeds_come_from_the_gateways_own_generator),
        T(test_probes_come_back_to_who_asked),
        T(test_drain_and_stop),
        T(test_drain_ends_with_its_budget_and_stop_answers_everything),
        T(test_a_flood_of_text_is_taken_in_parts),
        T(test_tokens_of_a_stranger),
        T(test_request_ids),
        T(test_continuations),
        T(test_a_tenants_salt_and_wishes_travel),
        T(test_lanes_of_a_tenant),
        T(test_pages_of_a_tenant),
        T(test_tokens_per_second_of_a_tenant),
        T(test_quotas_come_back_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
