/* link: qr_io_prompt qr_io_generate qr_io_bench qr_schema */
/* The prompt actor by hand, and what generate and bench print of its results. */
#include "tests/unit/edge_harness.h"

#include "actors/io/bench.h"
#include "actors/io/generate.h"

#include <jansson.h>
#include <stdio.h>

static const uint64_t prompt = 1ull << 32 | QR_ROLE_prompt << 16, gateway = 1ull << 32 | QR_ROLE_gateway << 16,
                      mesh = 1ull << 32 | QR_ROLE_mesh << 16, page_manager = 1ull << 32 | 1u << 24 | QR_ROLE_page_manager << 16;
static qr_given_t given;
static rig_t rig;

static void boot(const qr_prompt_given_t *list)
{
    given.prompt = list;
    rig_init(&rig, &qr_prompt_class, &given, prompt);
    SAY(&rig, mesh, start, .epoch = 1, .partners = U64_COLUMN(page_manager));
    (void)NEXT(&rig, mesh, ready);
}
static void pass_probe(void)
{
    uint64_t id = NEXT(&rig, gateway, probe)->probe_id;
    rig_quiet(&rig);
    SAY(&rig, gateway, probe_done, .probe_id = id);
}
static void finish(uint64_t key, uint32_t how)
{
    SAY(&rig, gateway, request_finished, .key = key, .finish = how, .prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1,
        .seed = 5, .queue_us = 6, .prefill_us = 2000, .decode_us = 8, .prompt_ids = U32_COLUMN(1, 2, 3));
}

static void test_generate_from_ask_to_object(void **unused)
{
    (void)unused;
    const char *const stops[] = {"x", "yz"};
    FILE *stream = tmpfile();
    qr_prompt_ask_t ask = {.kind = QR_INPUT_CHAT,
                           .text = "hello",
                           .text_bytes = 5,
                           .system = "be kind",
                           .system_bytes = 7,
                           .max_tokens = 9,
                           .temperature = 0.5f,
                           .top_p = 1,
                           .keep_prompt = true,
                           .stops = stops,
                           .stop_count = 2,
                           .cache_salt = "salt"};
    qr_prompt_result_t result = {0};
    qr_prompt_given_t list = {.asks = &ask, .results = &result, .ask_count = 1, .stream = stream};
    boot(&list);
    uint64_t id = NEXT(&rig, gateway, probe)->probe_id; /* the path is not ready yet: asked again */
    SAY(&rig, gateway, probe_done, .probe_id = id, .reason = QR_E_NO_WORKER);
    rig_quiet(&rig);
    rig_pass(&rig, 10000);
    pass_probe();
    const qr_request_submit_t *b = NEXT(&rig, gateway, request_submit);
    assert_int_equal(b->kind, QR_INPUT_CHAT);
    assert_bytes(b->text, "be kindhello");
    assert_int_equal(b->roles.count, 2);
    assert_int_equal(b->roles.data[0], QR_CHAT_SYSTEM);
    assert_int_equal(b->roles.data[1], QR_CHAT_USER);
    assert_int_equal(b->lengths.data[0], 7);
    assert_int_equal(b->lengths.data[1], 5);
    assert_int_equal(b->temperature_bits, 0x3f000000);
    assert_int_equal(b->top_p_bits, 0x3f800000);
    assert_int_equal(b->echo_prompt, 1);
    assert_bytes(b->stop, "xyz");
    assert_int_equal(b->stop_lengths.data[1], 2);
    assert_bytes(b->cache_salt, "salt");
    rig_quiet(&rig);
    rig.now_us += 5000;
    SAY(&rig, gateway, request_deltas, .keys = U64_COLUMN(0), .text_lengths = U32_COLUMN(3), .text = TEXT_COLUMN("\"\xc3\xa9"),
        .token_counts = U32_COLUMN(1), .tokens = U32_COLUMN(41), .logprob_bits = U32_COLUMN(0));
    rig.now_us += 4000;
    SAY(&rig, gateway, request_deltas, .keys = U64_COLUMN(0), .text_lengths = U32_COLUMN(0), .token_counts = U32_COLUMN(1),
        .tokens = U32_COLUMN(42), .logprob_bits = U32_COLUMN(0));
    SAY(&rig, gateway, request_deltas, .keys = U64_COLUMN(0), .text_lengths = U32_COLUMN(1), .text = TEXT_COLUMN("!"),
        .token_counts = U32_COLUMN(0));
    finish(0, QR_FINISH_LENGTH);
    assert_int_equal(NEXT(&rig, mesh, node_stop)->reason, 0);
    rig_quiet(&rig);
    SAY(&rig, mesh, stop, .budget_us = 1);
    (void)NEXT(&rig, mesh, stopped);
    rig_done(&rig);
    assert_int_equal(result.first_us, 5000);
    assert_int_equal(result.token_us[1], 9000);
    char streamed[16] = {0};
    rewind(stream);
    assert_int_equal(fread(streamed, 1, sizeof streamed, stream), 4);
    assert_string_equal(streamed, "\"\xc3\xa9!");
    FILE *out = tmpfile();
    assert_true(qr_generate_answered(&result));
    assert_int_equal(qr_generate_print_json(&result, 1500, out), 0);
    rewind(out);
    json_error_t error;
    json_t *object = json_loadf(out, JSON_REJECT_DUPLICATES, &error), *timings = json_object_get(object, "timings");
    assert_non_null(object);
    assert_int_equal(json_object_size(object), 6);
    assert_string_equal(json_string_value(json_object_get(object, "text")), "\"\xc3\xa9!");
    assert_int_equal(json_array_size(json_object_get(object, "prompt_tokens")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(object, "completion_tokens"), 1)), 42);
    assert_string_equal(json_string_value(json_object_get(object, "finish_reason")), "length");
    assert_int_equal(json_integer_value(json_object_get(object, "cached_tokens")), 1);
    assert_int_equal(json_object_size(timings), 4);
    assert_true(json_real_value(json_object_get(timings, "load_ms")) == 1.5);
    assert_true(json_real_value(json_object_get(timings, "ttft_ms")) == 5.0);
    assert_true(json_real_value(json_object_get(timings, "prefill_tokens_per_s")) == 1000.0); /* two rows computed in 2 ms */
    assert_true(json_real_value(json_object_get(timings, "decode_tokens_per_s")) == 250.0);   /* one token in 4 ms */
    json_decref(object);
    fclose(out);
    fclose(stream);
    qr_prompt_result_done(&result);
}

static void test_rounds_one_after_the_other(void **unused)
{
    (void)unused;
    const uint32_t tokens[] = {1, 2};
    qr_prompt_ask_t asks[3];
    qr_prompt_result_t results[3] = {{0}, {0}, {0}};
    for (uint32_t i = 0; i < 3; i++)
        asks[i] =
            (qr_prompt_ask_t){.kind = QR_INPUT_TOKENS, .tokens = tokens, .token_count = 2, .max_tokens = 1, .top_p = 1, .round = i == 2};
    qr_prompt_given_t list = {.asks = asks, .results = results, .ask_count = 3, .drop_cache = true};
    boot(&list);
    pass_probe();
    (void)NEXT(&rig, page_manager, cache_drop);
    rig_quiet(&rig);
    SAY(&rig, page_manager, cache_dropped, .pages_free = 1);
    assert_int_equal(NEXT(&rig, gateway, request_submit)->key, 0);
    assert_int_equal(NEXT(&rig, gateway, request_submit)->key, 1);
    rig_quiet(&rig);
    finish(1, QR_FINISH_STOP);
    rig_quiet(&rig);
    SAY(&rig, gateway, request_refused, .key = 0, .reason = QR_E_CONTEXT, .param = TEXT_COLUMN("prompt"), .text = TEXT_COLUMN("too long"));
    (void)NEXT(&rig, page_manager, cache_drop);
    rig_quiet(&rig);
    SAY(&rig, page_manager, cache_dropped, .pages_free = 1);
    assert_int_equal(NEXT(&rig, gateway, request_submit)->key, 2);
    finish(2, QR_FINISH_STOP);
    (void)NEXT(&rig, mesh, node_stop);
    rig_done(&rig);
    assert_int_equal(results[0].finish, QR_FINISH_REFUSED);
    assert_int_equal(results[0].error, QR_E_CONTEXT);
    assert_false(qr_generate_answered(&results[0]));
    char line[64] = {0};
    FILE *out = tmpfile();
    qr_generate_explain(&results[0], out);
    rewind(out);
    assert_non_null(fgets(line, sizeof line, out));
    assert_string_equal(line, "quire: prompt: too long\n");
    fclose(out);
    for (uint32_t i = 0; i < 3; i++) qr_prompt_result_done(&results[i]);
}

static void test_a_path_that_never_answers(void **unused)
{
    (void)unused;
    uint32_t reason = 0;
    qr_prompt_ask_t ask = {.kind = QR_INPUT_TEXT, .text = "x", .text_bytes = 1, .top_p = 1};
    qr_prompt_result_t result = {0};
    qr_prompt_given_t list = {.asks = &ask, .results = &result, .ask_count = 1, .ready_ms = 50, .ret_reason = &reason};
    boot(&list);
    for (int i = 0; i < 5; i++) {
        uint64_t id = NEXT(&rig, gateway, probe)->probe_id;
        SAY(&rig, gateway, probe_done, .probe_id = id, .reason = QR_E_NO_WORKER);
        rig_quiet(&rig);
        rig_pass(&rig, 10000);
    }
    uint64_t id = NEXT(&rig, gateway, probe)->probe_id;
    SAY(&rig, gateway, probe_done, .probe_id = id, .reason = QR_E_NO_WORKER);
    assert_int_equal(NEXT(&rig, mesh, node_stop)->reason, QR_E_NO_WORKER);
    assert_int_equal(reason, QR_E_NO_WORKER);
    rig_done(&rig);
    char line[64] = {0};
    FILE *out = tmpfile();
    qr_generate_explain(&result, out);
    rewind(out);
    assert_non_null(fgets(line, sizeof line, out));
    assert_string_equal(line, "quire: stopped before an answer came\n");
    fclose(out);
}

/* Every ask of the bench draws a token each millisecond, the streams eight in one: the rates must say so. */
static void answer_bench(const qr_prompt_given_t *list)
{
    for (uint32_t i = 0; i < list->ask_count; i++) {
        const qr_prompt_ask_t *ask = &list->asks[i];
        qr_prompt_result_t *r = &list->results[i];
        r->finish = QR_FINISH_LENGTH;
        r->token_count = ask->max_tokens;
        r->token_us = calloc(r->token_count, 8);
        r->asked_us = 1000000;
        r->first_us = 256000;
        for (uint32_t k = 0; k < r->token_count; k++) r->token_us[k] = r->first_us + 1000 * k;
    }
}

static void test_bench(void **unused)
{
    (void)unused;
    static words_t words;
    for (int i = 0; i < 40; i++) words_add(&words, "a", 1, i < 20 ? QR_TOKEN_SPECIAL : 0);
    given.vocabulary = words.vocabulary;
    given.layout.context_tokens = 100;
    qr_bench_options_t options = {.decode_tokens = 10, .repeats = 3};
    qr_bench_t *bench = NULL;
    char message[256];
    given.params.max_lanes = 8, given.params.max_requests = 256;
    static const qr_bench_options_t refused[] = {{.decode_tokens = 99},        {.decode_tokens = 1}, {.prefill_tokens = 100},
                                                 {.context_long = 37},         {.streams = 9},       {.repeats = 1001},
                                                 {.context_short = UINT32_MAX}};
    static const char *const named[] = {"--decode 99", "--decode",       "--prefill 100", "--long 37",
                                        "--streams 9", "--repeats 1001", "--short"};
    for (size_t i = 0; i < QR_COUNT(refused); i++) {
        assert_int_equal(qr_bench_new(&refused[i], &given, &bench, message, sizeof message), -QR_E_INVALID);
        assert_non_null(strstr(message, named[i]));
    }
    assert_int_equal(qr_bench_new(&options, &given, &bench, message, sizeof message), 0);
    const qr_prompt_given_t *list = qr_bench_given(bench);
    assert_int_equal(list->ask_count, 4 * (1 + 1 + 1 + 8));
    uint32_t round = 0;
    for (uint32_t i = 0; i < list->ask_count; i++) {
        const qr_prompt_ask_t *ask = &list->asks[i];
        assert_true(ask->round == round || ask->round == round + 1);
        round = ask->round;
        assert_true(ask->token_count + ask->max_tokens <= 100); /* cut to the context */
        for (uint32_t k = 0; k < ask->token_count; k++) assert_in_range(ask->tokens[k], 20, 39);
    }
    assert_int_equal(round, 15);
    assert_memory_not_equal(list->asks[0].tokens, list->asks[1].tokens, 4 * list->asks[0].token_count); /* each prefill is a new prompt */
    assert_int_equal(qr_bench_print(bench, true, 0, stdout), -QR_E_CANCELLED);
    answer_bench(list);
    FILE *out = tmpfile();
    assert_int_equal(qr_bench_print(bench, true, 2000, out), 0);
    rewind(out);
    json_t *object = json_loadf(out, 0, NULL), *rows = json_object_get(object, "rows");
    assert_int_equal(json_array_size(rows), 4);
    static const double rates[] = {99 / 0.256, 1000, 1000, 8000};
    for (uint32_t i = 0; i < 4; i++) {
        double rate = json_real_value(json_object_get(json_array_get(rows, i), "tokens_per_s"));
        assert_true(rate > rates[i] * 0.999 && rate < rates[i] * 1.001);
    }
    json_decref(object);
    fclose(out);
    /* Tokens that all came at once (the process had lost its core): one stream counts from when it asked, several say what to do. */
    for (uint32_t i = 1; i < 4; i++) { /* of the second row, not of the one that only warms up */
        qr_prompt_result_t *r = &list->results[4 + i];
        for (uint32_t k = 0; k < r->token_count; k++) r->token_us[k] = 500000;
    }
    out = tmpfile();
    assert_int_equal(qr_bench_print(bench, true, 2000, out), 0);
    rewind(out);
    object = json_loadf(out, 0, NULL);
    assert_true(json_real_value(json_object_get(json_array_get(json_object_get(object, "rows"), 1), "tokens_per_s")) ==
                20); /* 10 in 0.5 s */
    json_decref(object);
    fclose(out);
    for (uint32_t k = 0; k < 10; k++) list->results[list->ask_count - 1].token_us[k] = 500000;
    assert_int_equal(qr_bench_print(bench, true, 0, stdout), -QR_E_CANCELLED);
    qr_bench_destroy(&bench);
    assert_null(bench);
    qr_bench_destroy(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_from_ask_to_object),
        cmocka_unit_test(test_rounds_one_after_the_other),
        cmocka_unit_test(test_a_path_that_never_answers),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
