/* link: qr_sim qr_actor_checkpoint_writer qr_actor_restore_streamer qr_actor_capture_value qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* sim_test.c - the simulated world is repeatable, its checkers see, what it found stays mended, and 300 fixed seeds and 100 of
 * QUIRE_TEST_SEED find nothing. `quire simulate` runs more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "actors/catalog_replica.h"
#include "actors/catalog_writer.h"
#include "actors/checkpoint_writer.h"
#include "actors/gateway.h"
#include "actors/page_manager.h"
#include "actors/restore_streamer.h"
#include "actors/roles.h"
#include "actors/scheduler.h"
#include "base/error.h"
#include "messages/schema.h"
#include "transport/sim/simulate.h"

enum { FIXED = 300, FIXED_OF_STORE = 20, DERIVED = 100 };

static void run_seed(uint64_t seed)
{
    qr_sim_plan_t plan;
    qr_sim_result_t result;
    qr_sim_plan_draw(&plan, seed, QR_PROFILE_MIXED, 0);
    if (!qr_sim_plan_run(&plan, &result, NULL, NULL)) fail_msg("seed %llu: %s", (unsigned long long)seed, result.finding);
}

static void test_same_plan_same_history(void **state)
{
    (void)state;
    for (uint32_t profile = QR_PROFILE_CALM; profile < QR_PROFILES; profile++) {
        if (profile == QR_PROFILE_LARGE) continue; /* a minute: tests/long.sh */
        qr_sim_plan_t plan;
        qr_sim_result_t first, second;
        qr_sim_plan_draw(&plan, 77 + profile, profile, 0);
        assert_true(qr_sim_plan_run(&plan, &first, NULL, NULL));
        run_seed(5); /* what ran before does not matter */
        assert_true(qr_sim_plan_run(&plan, &second, NULL, NULL));
        assert_int_equal(first.hash, second.hash);
        assert_memory_equal(&first, &second, sizeof first);
        assert_true(first.answers.finished > 0);
        plan.workload.seed++;
        assert_true(qr_sim_plan_run(&plan, &second, NULL, NULL));
        assert_int_not_equal(first.hash, second.hash);
    }
}

/* Every kind of fault happens in some of the fixed seeds, and every profile's worlds answer. */
static void test_everything_happens(void **state)
{
    (void)state;
    uint32_t kinds[QR_FAULT_KINDS] = {0}, profiles[QR_PROFILES] = {0};
    for (uint64_t seed = 1; seed <= FIXED; seed++) {
        qr_sim_plan_t plan;
        qr_sim_plan_draw(&plan, seed, QR_PROFILE_MIXED, 0);
        profiles[plan.profile]++;
        for (uint32_t i = 0; i < plan.fault_count; i++) kinds[plan.faults[i].kind]++;
    }
    for (uint32_t k = 1; k < QR_FAULT_KINDS; k++) assert_true(kinds[k] >= 10);
    for (uint32_t p = QR_PROFILE_CALM; p < QR_PROFILES; p++) assert_true(p == QR_PROFILE_LARGE ? profiles[p] == 0 : profiles[p] >= 20);
}

/* ---- the checkers see: the same worlds with one doctored actor ------------------------------------------------------------------ */

enum {
    WRONG_TOKEN = 1,
    TOKENS_SWAPPED,
    WRONG_USAGE,
    LOST_END,
    STILL,
    PAGE_TWICE,
    WRONG_TEXT,
    WRONG_COPY,
    DEEP_MATCH,
    LOST_COMMIT,
    OTHER_RECORD,
    EARLY_COMMIT,
    PAGES_SWAPPED, /* from here on: worlds with a store */
    OTHER_PAGE,
    OTHER_LEASE,
    WRONG_SLOT,
    OTHER_TOKENS,
    OTHER_PIN,
    OTHER_MEMORY,
    NOT_FILLED,
    MORE_DURABLE,
    WORTHLESS,
    EARLY_PUBLISH,
    NOT_WITHDRAWN,
    MORE_CACHED,
    NOTHING_FOUND
};
static uint32_t disease, countdown;

/* What becomes of messages around the store. */
static void spoil_store(qr_message_t *m)
{
    if (m->type == QR_MESSAGE_page_upload && m->body.page_upload.pages.count > 1) {
        uint64_t *pages = (uint64_t *)(uintptr_t)m->body.page_upload.pages.data, first = pages[0];
        if (disease == PAGES_SWAPPED) pages[0] = pages[1], pages[1] = first;
        if (disease == OTHER_MEMORY && m->body.page_upload.kept) m->body.page_upload.kept ^= 1;
        if (disease == OTHER_PAGE) pages[0] += (uint64_t)7 << 32;
    }
    if (m->type == QR_MESSAGE_chunk_release && disease == OTHER_LEASE) m->body.chunk_release.lease += 1000000;
    if (m->type == QR_MESSAGE_chunk_release && disease == NOT_FILLED) m->body.chunk_release.kept = 1;
    bool of_save = m->type == QR_MESSAGE_captured && qr_address_role(m->to) == QR_ROLE_facts;
    if (of_save && disease == MORE_DURABLE) m->body.captured.durable_rows++;
    if (of_save && disease == WORTHLESS) m->body.captured.reason = QR_E_WORTHLESS;
    if (m->type == QR_MESSAGE_pages_unpin && disease == OTHER_PIN) m->body.pages_unpin.lease += 1000000;
    if (m->type == QR_MESSAGE_chunk_write && disease == WRONG_SLOT) m->body.chunk_write.start += (uint32_t)m->body.chunk_write.tokens.count;
    if (m->type == QR_MESSAGE_chunk_write && disease == OTHER_TOKENS) ((uint32_t *)(uintptr_t)m->body.chunk_write.tokens.data)[1] ^= 1;
    if (m->type == QR_MESSAGE_publish) {
        bool withdraws = m->body.publish.kinds.data[0] == QR_CATALOG_WITHDRAW;
        uint8_t *chains = (uint8_t *)(uintptr_t)m->body.publish.chains.data;
        if (disease == EARLY_PUBLISH && !withdraws) chains[m->body.publish.chains.count - 1] ^= 1;
        if (disease == NOT_WITHDRAWN && withdraws) chains[0] ^= 1;
    }
    if (m->type == QR_MESSAGE_ended && disease == MORE_CACHED && m->body.ended.computed_tokens) m->body.ended.cached_tokens++;
    if (m->type == QR_MESSAGE_lookup && disease == NOTHING_FOUND) m->body.lookup.fingerprint.bytes[0] ^= 1;
}

static void spoil(qr_message_t *m)
{
    bool of_deltas = disease == WRONG_TOKEN || disease == TOKENS_SWAPPED || disease == WRONG_TEXT;
    if (of_deltas && m->type == QR_MESSAGE_request_deltas && m->body.request_deltas.tokens.count > 1 && countdown && --countdown == 0) {
        uint32_t *tokens = (uint32_t *)(uintptr_t)m->body.request_deltas.tokens.data;
        if (disease == WRONG_TOKEN) tokens[0] = (tokens[0] + 1) % QR_SIM_END_TOKEN;
        if (disease == TOKENS_SWAPPED) tokens[1] = tokens[0];
        if (disease == WRONG_TEXT) ((uint8_t *)(uintptr_t)m->body.request_deltas.text.data)[0] ^= 1;
    }
    if (m->type == QR_MESSAGE_request_finished && disease == WRONG_USAGE) m->body.request_finished.completion_tokens++;
    if (m->type == QR_MESSAGE_pages_granted && disease == PAGE_TWICE && m->body.pages_granted.pages.count > 1)
        ((uint64_t *)(uintptr_t)m->body.pages_granted.pages.data)[1] = m->body.pages_granted.pages.data[0];
    if (m->type == QR_MESSAGE_matches && disease == WRONG_COPY && m->body.matches.ssd_masks.count)
        ((uint32_t *)(uintptr_t)m->body.matches.ssd_masks.data)[0] ^= 3;
    if (m->type == QR_MESSAGE_matches && disease == DEEP_MATCH) m->body.matches.tokens = ++m->body.matches.depth;
    if (m->type == QR_MESSAGE_append && disease == OTHER_RECORD && m->body.append.sizes.count > 1)
        ((uint64_t *)(uintptr_t)m->body.append.sizes.data)[1] ^= 1;
    if (m->type == QR_MESSAGE_publish_committed && disease == LOST_COMMIT && countdown && --countdown == 0)
        m->type = QR_MESSAGE_publish_refused; /* with the number of its transaction as the reason */
    if (m->type == QR_MESSAGE_publish_committed && disease == EARLY_COMMIT) m->body.publish_committed.tx++;
    spoil_store(m);
}

static void doctored_handle(const qr_actor_class_t *actor, void *self, const qr_given_t *given, const qr_message_t *message,
                            qr_outbox_t *outbox)
{
    if (disease == LOST_END && message->type == QR_MESSAGE_place_ended && countdown && --countdown == 0) return;
    actor->handle(self, given, message, outbox);
    if (disease == STILL) qr_outbox_alarm(outbox, message->now_us);
    for (uint32_t i = 0; i < outbox->count; i++) spoil(&outbox->messages[i]);
}
static void doctored_gateway(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_gateway_class, self, given, message, outbox);
}
static void doctored_page_manager(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_page_manager_class, self, given, message, outbox);
}

static void doctored_replica(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_catalog_replica_class, self, given, message, outbox);
}
static void doctored_writer(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_catalog_writer_class, self, given, message, outbox);
}

static void doctored_streamer(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_restore_streamer_class, self, given, message, outbox);
}
static void doctored_checkpoints(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_checkpoint_writer_class, self, given, message, outbox);
}
static void doctored_scheduler(void *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    doctored_handle(&qr_scheduler_class, self, given, message, outbox);
}

/* A calm world with a small store, where caches are dropped and so rows are restored and files leave. */
static void draw_small_store(qr_sim_plan_t *plan)
{
    qr_sim_plan_draw(plan, 2729, QR_PROFILE_STORE, 3);
    plan->window = plan->window_pages = plan->over_commit = 0;
    plan->store.ram_slots = 3;
    plan->store.saves_us = plan->busy_us / 40;
    plan->store.saves_until_us = plan->busy_us;
    plan->nodes[0] = (qr_sim_node_plan_t){QR_SIM_EDGE | QR_SIM_DEVICE, 1}; /* beside facts */
    plan->store.bytes_max = (plan->context / 16) * (64 + 16ull * plan->page_tokens);
    plan->workload.drop_us = 200000;
    plan->workload.salt_one_in = plan->workload.tenant_one_in = 0;
}

static void expect_finding(const qr_actor_class_t *doctored, uint32_t kind, const char *has)
{
    qr_sim_plan_t plan;
    qr_sim_result_t result;
    qr_sim_plan_draw(&plan, 3, kind < WRONG_COPY ? QR_PROFILE_CALM : QR_PROFILE_CATALOG, 3);
    if (kind >= PAGES_SWAPPED) draw_small_store(&plan);
    plan.fault_count = plan.workload.faults = 0;
    plan.workload.cancel_one_in = plan.workload.budget_one_in = 0;
    plan.workload.answer_most = plan.workload.requests = 40;
    if (!qr_sim_plan_run(&plan, &result, NULL, NULL)) fail_msg("without a disease: %s", result.finding);
    assert_true(kind < PAGES_SWAPPED ||
                (result.store.restored_rows && result.store.dropped && result.store.ram_leases && result.store.saves));
    plan.doctored = doctored;
    disease = kind;
    countdown = 3;
    bool fine = qr_sim_plan_run(&plan, &result, NULL, NULL);
    disease = 0;
    if (fine || !strstr(result.finding, has)) fail_msg("disease %u: found '%s', not '%s'", kind, result.finding, has);
}

static void test_the_checkers_see(void **state)
{
    (void)state;
    qr_actor_class_t gateway = qr_gateway_class, pages = qr_page_manager_class, replica = qr_catalog_replica_class,
                     writer = qr_catalog_writer_class;
    replica.handle = doctored_replica;
    writer.handle = doctored_writer;
    gateway.handle = doctored_gateway;
    pages.handle = doctored_page_manager;
    expect_finding(&gateway, WRONG_TOKEN, "should be");
    expect_finding(&gateway, TOKENS_SWAPPED, "should be");
    expect_finding(&gateway, WRONG_TEXT, "not that of the tokens");
    expect_finding(&gateway, WRONG_USAGE, "usage says");
    expect_finding(&gateway, LOST_END, "DEADLINE");
    expect_finding(&gateway, STILL, "time stands still");
    expect_finding(&pages, PAGE_TWICE, "");
    expect_finding(&replica, WRONG_COPY, "");
    expect_finding(&replica, DEEP_MATCH, "");
    expect_finding(&writer, LOST_COMMIT, "is in the log");
    expect_finding(&writer, OTHER_RECORD, "something else");
    expect_finding(&writer, EARLY_COMMIT, "was answered as");
}

static void test_the_checkers_of_the_store_see(void **state)
{
    (void)state;
    qr_actor_class_t streamer = qr_restore_streamer_class, checkpoints = qr_checkpoint_writer_class, scheduler = qr_scheduler_class;
    streamer.handle = doctored_streamer;
    checkpoints.handle = doctored_checkpoints;
    scheduler.handle = doctored_scheduler;
    expect_finding(&streamer, PAGES_SWAPPED, "should be");
    expect_finding(&streamer, OTHER_PAGE, "is not being restored any more");
    expect_finding(&streamer, OTHER_LEASE, "a lease is given back that is not held");
    expect_finding(&streamer, OTHER_MEMORY, "names what its asker has no lease of");
    expect_finding(&streamer, NOT_FILLED, "memory is said to");
    expect_finding(&checkpoints, MORE_DURABLE, "of a wanted capture");
    expect_finding(&checkpoints, WORTHLESS, "a wanted capture is WORTHLESS");
    expect_finding(&checkpoints, WRONG_SLOT, "which holds something else");
    expect_finding(&checkpoints, OTHER_TOKENS, "is not that of its token");
    expect_finding(&checkpoints, OTHER_PIN, "pages are unpinned that are not pinned");
    expect_finding(&checkpoints, EARLY_PUBLISH, "whose disk does not have it");
    expect_finding(&checkpoints, NOT_WITHDRAWN, "deletes a file that the log still says stands there");
    expect_finding(&scheduler, MORE_CACHED, "rows were reused");
    expect_finding(&scheduler, NOTHING_FOUND, "was never restored");
}

/* A plan whose last phase has no time always has a finding; nearly everything can be taken out of it. */
static void test_shrink(void **state)
{
    (void)state;
    qr_sim_plan_t plan;
    qr_sim_result_t result;
    qr_sim_plan_draw(&plan, 12, QR_PROFILE_ALL, 6);
    plan.workload.last_us = 1;
    assert_false(qr_sim_plan_run(&plan, &result, NULL, NULL));
    assert_true(qr_sim_plan_shrink(&plan, 400) < 400);
    assert_int_equal(plan.fault_count, 0);
    assert_int_equal(plan.workload.requests, 1);
    assert_true(plan.node_count <= 3);
    assert_false(qr_sim_plan_run(&plan, &result, NULL, NULL));
    FILE *out = tmpfile();
    char text[4096] = {0};
    qr_sim_plan_print(&plan, out);
    rewind(out);
    assert_true(fread(text, 1, sizeof text - 1, out) > 100);
    assert_non_null(strstr(text, ".fault_count = 0"));
    fclose(out);
}

/* ---- what was found, by the plan that shows it (README.md) ------------------------------------------------------------------------ */

static const struct {
    const char *name;
    qr_sim_plan_t plan;
} found[] = {
    {"a draining edge says that the workers of other nodes drain",
     {.seed = 2u,
      .profile = 3,
      .busy_us = 4145326u,
      .nodes = {{1, 0}, {2, 2}},
      .node_count = 2,
      .faults = {{1177232u, 868376u, QR_FAULT_LEAVE, 0, 0, 6}},
      .fault_count = 1,
      .workload = {16023258074355412194u, 88199u, 4145326u, 60000000u, 1, 4, 116, 1, 0, 47, 0, 0, 8, 5, 0, 0, 518, 0},
      .cost = {3100u, 18000u, 2u},
      .link_us = 4072,
      .local_us = 9,
      .check_every = 1,
      .page_tokens = 32,
      .pages = 12,
      .window = 0,
      .window_pages = 40,
      .context = 192,
      .lanes = 1,
      .requests = 30,
      .tile = 76,
      .wait_rows = 0,
      .peer_down_ms = 1199,
      .offer_timeout_ms = 2255,
      .request_timeout_ms = 23264}},
    {"a stream hangs until its deadline after a stall that was longer than an answer may take and shorter than silence",
     {.seed = 16u,
      .profile = 7,
      .busy_us = 28712000u,
      .nodes = {{1, 0}, {2, 1}, {2, 1}},
      .node_count = 3,
      .faults = {{20189430u, 342777u, QR_FAULT_CUT, 1, 0, 0}},
      .fault_count = 1,
      .workload = {9010054671616944342u, 562981u, 28712000u, 60000000u, 51, 4, 30, 41, 1, 35, 6, 0, 10, 2, 1, 9, 522, 1},
      .cost = {2500u, 400000u, 200u},
      .link_us = 765,
      .local_us = 50,
      .check_every = 1,
      .page_tokens = 8,
      .pages = 26,
      .window = 12,
      .window_pages = 36,
      .context = 120,
      .lanes = 1,
      .requests = 12,
      .tile = 15,
      .wait_rows = 0,
      .peer_down_ms = 968,
      .offer_timeout_ms = 73,
      .request_timeout_ms = 12604}},
};

static void test_what_was_found_stays_mended(void **state)
{
    (void)state;
    for (size_t i = 0; i < QR_COUNT(found); i++) {
        qr_sim_result_t result;
        if (!qr_sim_plan_run(&found[i].plan, &result, NULL, NULL)) fail_msg("%s: %s", found[i].name, result.finding);
    }
}

static uint8_t said[QR_SIM_TALKS]; /* in all seeds that are the same for every commit */

static void run_and_hear(uint64_t seed, uint32_t profile)
{
    qr_sim_plan_t plan;
    qr_sim_result_t result;
    qr_sim_plan_draw(&plan, seed, profile, 0);
    if (!qr_sim_plan_run(&plan, &result, NULL, NULL))
        fail_msg("%s, seed %llu: %s", qr_sim_profile_name(profile), (unsigned long long)seed, result.finding);
    for (size_t i = 0; i < sizeof said; i++) said[i] |= result.said[i];
}

/* Seeds of a profile that found something, beside the plans above. */
static void test_seeds_that_found_something(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        uint32_t profile;
    } seeds[] = {{7, QR_PROFILE_STORE},     {25, QR_PROFILE_STORE},    {39, QR_PROFILE_STORE},    {161, QR_PROFILE_STORE},
                 {182, QR_PROFILE_STORE},   {997, QR_PROFILE_STORE},   {1129, QR_PROFILE_STORE},  {2188, QR_PROFILE_STORE},
                 {72, QR_PROFILE_STORE},    {2700, QR_PROFILE_MIXED},  {2559, QR_PROFILE_MIXED},  {7602, QR_PROFILE_MIXED},
                 {9083, QR_PROFILE_MIXED},  {15873, QR_PROFILE_MIXED}, {16164, QR_PROFILE_MIXED}, {7956, QR_PROFILE_MIXED},
                 {11890, QR_PROFILE_MIXED}, {19017, QR_PROFILE_MIXED}, {4509, QR_PROFILE_MIXED},  {5320, QR_PROFILE_MIXED},
                 {8589, QR_PROFILE_MIXED},  {9858, QR_PROFILE_MIXED}};
    for (size_t i = 0; i < QR_COUNT(seeds); i++) run_and_hear(seeds[i].seed, seeds[i].profile);
}

static void test_fixed_seeds(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= FIXED; seed++) run_and_hear(seed, QR_PROFILE_MIXED);
    for (uint64_t seed = 1; seed <= FIXED_OF_STORE; seed++) run_and_hear(seed, QR_PROFILE_STORE);
}

/* Conversations that no simulated world has, and why. 0: any. */
static const struct {
    uint8_t from, to;
    uint16_t type;
    const char *why;
} unheard[] = {
    {QR_ROLE_prompt, 0, 0, "a host has http or prompt; both ask the same"},
    {QR_ROLE_gateway, QR_ROLE_prompt, 0, "the same"},
    {0, QR_ROLE_mesh, QR_MESSAGE_node_stop, "nodes leave by a fault of the plan"},
    {QR_ROLE_http, QR_ROLE_restore_streamer, QR_MESSAGE_metrics_read, "numbers are asked in worlds without a catalog only (README.md)"},
    {QR_ROLE_http, QR_ROLE_checkpoint_writer, QR_MESSAGE_metrics_read, "the same"},
    {QR_ROLE_http, QR_ROLE_storage, QR_MESSAGE_metrics_read, "the same"},
    {QR_ROLE_http, QR_ROLE_transfer, QR_MESSAGE_metrics_read, "the same"},
    {QR_ROLE_http, QR_ROLE_facts, 0, "both are fakes: what comes of a save is what facts asks of others"},
    {QR_ROLE_http, QR_ROLE_text, 0, "the same"},
    {QR_ROLE_storage, QR_ROLE_facts, QR_MESSAGE_facts_query, "both are fakes, and one world's truth is behind both"},
    {QR_ROLE_page_manager, QR_ROLE_transfer, QR_MESSAGE_fence, "loads end quiet: `restored` says that nothing moves any more"},
};
static const char *why_not(const qr_roles_row_t *row)
{
    for (size_t i = 0; i < QR_COUNT(unheard); i++)
        if ((!unheard[i].from || unheard[i].from == row->from) && (!unheard[i].to || unheard[i].to == row->to) &&
            (!unheard[i].type || unheard[i].type == row->type))
            return unheard[i].why;
    return NULL;
}

/* Every row of roles.def was spoken and answered in some fixed seed, or has a reason; a reason that holds no more is out of date. */
static void test_every_conversation_is_heard(void **state)
{
    (void)state;
    uint32_t missing = 0;
    const qr_roles_row_t *row;
    for (uint32_t i = 0; (row = qr_roles_at(i)); i++) {
        assert_true(i < QR_SIM_TALKS);
        bool heard = said[i] == (row->kind == QR_ROLES_ASK ? QR_SIM_ASKED | QR_SIM_ANSWERED : QR_SIM_ASKED);
        if (heard == !why_not(row)) continue;
        print_error("%s to %s: %s: %s\n", qr_role_name(row->from), qr_role_name(row->to), qr_schema_find(row->type)->name,
                    heard     ? "is heard, and has a reason why not"
                    : said[i] ? "is never answered"
                              : "is never said");
        missing++;
    }
    assert_int_equal(missing, 0);
}

static void test_seeds_of_this_commit(void **state)
{
    (void)state;
    const char *word = getenv("QUIRE_TEST_SEED");
    uint64_t first = 1000000 + (word ? strtoull(word, NULL, 10) : 0) * 1000;
    print_message("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)first + DERIVED - 1);
    for (uint64_t seed = first; seed < first + DERIVED; seed++) run_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_plan_same_history),
        cmocka_unit_test(test_everything_happens),
        cmocka_unit_test(test_the_checkers_see),
        cmocka_unit_test(test_the_checkers_of_the_store_see),
        cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_what_was_found_stays_mended),
        cmocka_unit_test(test_seeds_that_found_something),
        cmocka_unit_test(test_fixed_seeds),
        cmocka_unit_test(test_every_conversation_is_heard), /* in those seeds */
        cmocka_unit_test(test_seeds_of_this_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
