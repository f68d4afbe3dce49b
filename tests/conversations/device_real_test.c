/* link: qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_roles qr_io_executor qr_messages qr_actor_decisions */
/* The device group with the real executor over seeded tiny models, unwritten rows poisoned: every answer in a crowd (batches, forks,
 * evictions, cancels, any tile and page size, with and without a window) equals the answer alone and cold. */
#include "actors/io/executor.h"
#include "tests/conversations/device_group.h"
#include "tests/unit/model_file.h"
#include "model/decoder.h"

enum { PROMPTS = 20, CONTEXT = 128, ANSWER = 16, LONGEST = 70 };

typedef struct world {
    uint32_t lanes, page_tokens, pages, tile;
} world_t;

typedef struct prompt {
    uint32_t count, max_tokens, tokens[LONGEST];
    uint32_t answer_count, answer[ANSWER];
} prompt_t;

static qr_model_t *model;
static prompt_t prompts[PROMPTS];

static group_t *real_new(const world_t *w, uint64_t seed, uint32_t temperature_bits)
{
    group_t *g = group_new(w->lanes, w->pages, w->page_tokens, CONTEXT, w->tile, 0);
    char message[512] = "";
    qr_decoder_config_t config = {
        .page_tokens = w->page_tokens, .rows_max = w->tile + w->lanes, .lanes_max = w->lanes, .context_tokens = CONTEXT, .poison = true};
    for (uint32_t k = 0; k < QR_GROUPS_MAX; k++) config.pages[k] = w->pages;
    int status = qr_decoder_new(model, &config, &g->given->decoder, message, sizeof message);
    if (status) fail_msg("%s", message);
    g->given->model = model;
    g->given->layout = *qr_decoder_layout(g->given->decoder);
    g->given->layout.context_tokens = CONTEXT;
    g->given->vocabulary = model->vocabulary;
    g->executor = &qr_executor_class;
    g->temperature_bits = temperature_bits;
    group_start(g, seed);
    return g;
}

static void real_destroy(group_t *g)
{
    qr_decoder_destroy(&g->given->decoder);
    group_destroy(g);
}

static void make_prompts(uint64_t seed)
{
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        prompt_t *p = &prompts[i];
        p->count = (uint32_t)qr_prng_between(&prng, 1, LONGEST);
        p->max_tokens = (uint32_t)qr_prng_between(&prng, 1, ANSWER);
        uint32_t shared = i % 3 ? (uint32_t)qr_prng_below(&prng, p->count + 1) : p->count; /* two families, forks anywhere */
        for (uint32_t k = 0; k < p->count; k++)
            p->tokens[k] = 3 + (uint32_t)(k < shared ? qr_mix_u64(i % 2 * 1000 + k) % 250 : qr_prng_below(&prng, 250));
    }
}

/* Each alone on one lane, nothing cached. */
static void answer_alone(uint32_t temperature_bits)
{
    static const world_t alone = {.lanes = 1, .page_tokens = 16, .pages = 16, .tile = 64};
    group_t *g = real_new(&alone, 1, temperature_bits);
    uint64_t kinds[8] = {0}, kind_count = 0; /* a model that says one thing only would prove nothing */
    for (uint32_t i = 0; i < PROMPTS; i++) {
        prompt_t *p = &prompts[i];
        place_t *place = group_offer(g, ROUTER_A, p->tokens, p->count, p->max_tokens, 0);
        group_run(g);
        assert_true(place->finish == QR_FINISH_LENGTH || place->finish == QR_FINISH_STOP);
        assert_int_equal(place->cached, 0);
        p->answer_count = place->generated;
        memcpy(p->answer, place->tokens + p->count, place->generated * 4);
        for (uint32_t k = 0; k < p->answer_count; k++) kinds[p->answer[k] / 64 % 8] |= 1ull << p->answer[k] % 64;
        group_all_over(g);
    }
    for (uint32_t k = 0; k < 8; k++)
        for (uint64_t bits = kinds[k]; bits; bits &= bits - 1) kind_count++;
    assert_true(kind_count > 8);
    real_destroy(g);
}

static void answer_in_a_crowd(const world_t *w, uint64_t seed, uint32_t temperature_bits)
{
    group_t *g = real_new(w, seed, temperature_bits);
    qr_prng_t prng;
    uint32_t cached = 0;
    qr_prng_init(&prng, seed);
    for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
        const prompt_t *p = &prompts[i % PROMPTS];
        place_t *place = group_offer(g, i & 1 ? ROUTER_A : ROUTER_B, p->tokens, p->count, p->max_tokens, 0);
        for (uint64_t turns = qr_prng_below(&prng, 40); turns > 0; turns--) group_turn(g);
        if (qr_prng_one_in(&prng, 8) && !place->finished) group_cancel(g, place);
    }
    group_run(g);
    for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
        const prompt_t *p = &prompts[i % PROMPTS];
        const place_t *place = &g->places[i];
        assert_true(place->finished);
        if (!place->cancelled) assert_int_equal(place->generated, p->answer_count);
        assert_memory_equal(place->tokens + p->count, p->answer, place->generated * 4);
        cached += place->cached;
    }
    assert_true(cached > 0);
    group_all_over(g);
    real_destroy(g);
}

static void run_model(uint32_t window)
{
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.seed = 3;
    if (window) config.window[1] = window;
    qr_device_t *device = device_new(QR_ISA_AUTO, 1);
    model_file_t file = model_file_tiny(&config);
    model = model_load(file.path, device);
    static const world_t worlds[] = {{.lanes = 8, .page_tokens = 8, .pages = 40, .tile = 7},
                                     {.lanes = 3, .page_tokens = 16, .pages = 14, .tile = 64},
                                     {.lanes = 8, .page_tokens = 32, .pages = 12, .tile = 1}};
    for (uint32_t sampled = 0; sampled < 2; sampled++) {
        uint32_t temperature_bits = sampled ? 0x3f800000 : 0;
        make_prompts(5 + sampled);
        answer_alone(temperature_bits);
        for (uint32_t i = 0; i < QR_COUNT(worlds); i++) answer_in_a_crowd(&worlds[i], 100 + i, temperature_bits);
    }
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    unlink(file.path);
}

static void test_answers_in_a_crowd_equal_answers_alone(void **state)
{
    (void)state;
    run_model(0);
}

static void test_answers_in_a_crowd_equal_answers_alone_with_a_window(void **state)
{
    (void)state;
    run_model(24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_in_a_crowd_equal_answers_alone),
        cmocka_unit_test(test_answers_in_a_crowd_equal_answers_alone_with_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
