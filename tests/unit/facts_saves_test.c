/* link: qr_io_facts qr_io_facts_book qr_store_faults qr_actor_catalog_batch qr_messages qr_schema */
/* facts_saves_test.c - saves and drops of continuations as facts handles them, message by message: what is asked of storage and of the
 * checkpoint writers, in which order, and what is answered when they refuse. */
#include "tests/unit/stand.h"

#include "actors/io/facts.h"
#include "base/error.h"
#include "tests/unit/store_folder.h"

enum { NODE = 1, CHUNK = 8, TOKENS = 20, FULL = 16 };

static uint64_t mesh(void) { return qr_address(NODE, 0, QR_ROLE_mesh, 0); }
static uint64_t http(void) { return qr_address(NODE, 0, QR_ROLE_http, 0); }
static uint64_t storage(void) { return qr_address(NODE, 0, QR_ROLE_storage, 0); }
static uint64_t writer(uint8_t device) { return qr_address(NODE, device, QR_ROLE_checkpoint_writer, 0); }

static char folder[STORE_PATH];
static qr_given_t *given;
static stand_t *stand;
static uint32_t tokens[TOKENS];
static const uint8_t scope[32] = {3, 1};

static void boot(void)
{
    stand = stand_new(&qr_facts_class, given, qr_address(NODE, 0, QR_ROLE_facts, 0));
    SAY(stand, mesh(), start, .epoch = 1,
        .partners = COLUMN64(storage(), writer(1), writer(2), qr_address(2, 1, QR_ROLE_checkpoint_writer, 0), http()));
    assert_int_equal(HEARD(stand, ready)->reason, 0);
}
static int begin(void **unused)
{
    (void)unused;
    store_folder(folder);
    given = stand_given();
    memcpy(given->params.store, folder, STORE_PATH);
    given->params.continuations_max = 40;
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = 100 + i;
    boot();
    return 0;
}
static int end(void **unused)
{
    (void)unused;
    stand_destroy(stand);
    free(given);
    store_remove(folder);
    return 0;
}

static const uint8_t *id_of(uint8_t number)
{
    static uint8_t id[16];
    memset(id, number, sizeof id);
    return id;
}
static void save(uint8_t number, bool pin, uint32_t count, uint64_t bytes_most)
{
    qr_continuation_save_t body = {.key = number,
                                   .id = {id_of(number), 16},
                                   .pin = pin,
                                   .text = {(const uint8_t *)"hello", 5},
                                   .tokens = {tokens, count},
                                   .bytes_most = bytes_most};
    memcpy(body.scope.bytes, scope, 32);
    stand_say(stand, http(), QR_MESSAGE_continuation_save, &body);
}
static void expect_saved(uint8_t number, uint32_t reason, uint32_t durable_rows, uint32_t short_reason)
{
    assert_int_equal(HEARD(stand, continuation_saved)->key, number);
    assert_int_equal(HEARD(stand, continuation_saved)->reason, reason);
    assert_int_equal(HEARD(stand, continuation_saved)->durable_rows, durable_rows);
    assert_int_equal(HEARD(stand, continuation_saved)->short_reason, short_reason);
}
static void captured(uint8_t device, uint64_t key, uint32_t reason, uint32_t rows)
{
    SAY(stand, writer(device), captured, .capture_id = key, .reason = reason, .durable_rows = rows);
}
static uint32_t found(uint8_t number)
{
    SAY(stand, http(), continuation_read, .key = 1, .id = {id_of(number), 16});
    return HEARD(stand, continuation_found)->reason;
}
static uint64_t asked(uint8_t device)
{
    const qr_capture_t *c = HEARD(stand, capture);
    assert_int_equal(stand->outbox.count, 1);
    assert_int_equal(stand->messages[0].to, writer(device));
    assert_int_equal(c->wanted, 1);
    assert_int_equal(c->start_rows, 0);
    assert_int_equal(c->tokens.count, FULL);
    assert_memory_equal(c->tokens.data, tokens, 4 * FULL);
    assert_memory_equal(c->scope.bytes, scope, 32);
    return c->capture_id;
}

static void test_a_save_is_answered_when_its_chunks_are(void **unused)
{
    (void)unused;
    save(1, false, TOKENS, 0);
    uint64_t key = asked(1);
    captured(1, key + 1, 0, FULL); /* nobody's */
    assert_int_equal(stand->outbox.count, 0);
    captured(1, key, 0, FULL);
    expect_saved(1, 0, FULL, 0);
    save(2, false, FULL, 0); /* the last row may not be there: the second chunk is not counted on */
    assert_int_equal(HEARD(stand, capture)->tokens.count, CHUNK);
    captured(1, HEARD(stand, capture)->capture_id, 0, CHUNK);
    expect_saved(2, 0, CHUNK, 0);
    save(3, false, CHUNK, 0); /* none */
    expect_saved(3, 0, 0, 0);
}

/* What one device does not have another one may. */
static void test_a_save_asks_every_device(void **unused)
{
    (void)unused;
    save(1, false, TOKENS, 0);
    captured(1, asked(1), QR_E_NOT_FOUND, CHUNK);
    captured(2, asked(2), 0, FULL);
    expect_saved(1, 0, FULL, 0);
    save(2, false, TOKENS, 0);
    captured(1, asked(1), QR_E_NO_SPACE, CHUNK);
    captured(2, asked(2), QR_E_NOT_FOUND, 0);
    expect_saved(2, 0, CHUNK, QR_E_NO_SPACE); /* why it stopped where it got furthest */
    assert_int_equal(found(2), 0);
}

static void test_a_pin_is_held_first_or_refused(void **unused)
{
    (void)unused;
    save(1, true, TOKENS, 0);
    const qr_chunk_hold_t *hold = HEARD(stand, chunk_hold);
    uint64_t key = hold->key;
    assert_int_equal(stand->outbox.count, 1);
    assert_memory_equal(hold->id.data, id_of(1), 16);
    assert_memory_equal(hold->scope.bytes, scope, 32);
    assert_int_equal(hold->tokens.count, FULL);
    SAY(stand, storage(), chunk_held, .key = key);
    captured(1, asked(1), 0, FULL);
    expect_saved(1, 0, FULL, 0);
    save(2, true, TOKENS, 0);
    SAY(stand, storage(), chunk_held, .key = HEARD(stand, chunk_hold)->key, .reason = QR_E_NO_SPACE);
    expect_saved(2, QR_E_SHORTFALL, 0, 0);
    assert_int_equal(found(1), 0);
    assert_int_equal(found(2), QR_E_NOT_FOUND);
}

static void test_a_drop_gives_the_hold_back(void **unused)
{
    (void)unused;
    save(1, true, TOKENS, 0);
    SAY(stand, storage(), chunk_held, .key = HEARD(stand, chunk_hold)->key);
    uint64_t key = asked(1);
    SAY(stand, http(), continuation_drop, .key = 5, .id = {id_of(1), 16}); /* its save is still under way */
    assert_memory_equal(HEARD(stand, chunk_unhold)->id.data, id_of(1), 16);
    assert_int_equal(HEARD_COUNT(stand, continuation_dropped), 0);
    SAY(stand, storage(), chunk_unheld, .key = HEARD(stand, chunk_unhold)->key);
    assert_int_equal(HEARD(stand, continuation_dropped)->key, 5);
    assert_int_equal(HEARD(stand, continuation_dropped)->reason, 0);
    captured(1, key, 0, FULL);
    expect_saved(1, QR_E_NOT_FOUND, 0, 0);
    save(2, false, CHUNK, 0);
    SAY(stand, http(), continuation_drop, .key = 6, .id = {id_of(2), 16}); /* held by nobody */
    assert_int_equal(HEARD(stand, continuation_dropped)->reason, 0);
}

static void test_holds_are_said_after_a_restart(void **unused)
{
    (void)unused;
    for (uint8_t n = 1; n <= 4; n++) {
        save(n, n != 2, CHUNK, 0);
        if (n != 2) SAY(stand, storage(), chunk_held, .key = HEARD(stand, chunk_hold)->key);
        expect_saved(n, 0, 0, 0);
    }
    stand_destroy(stand);
    boot();
    static const uint8_t expected[] = {1, 3, 4};
    uint8_t after[16];
    for (uint32_t i = 0; i < 3; i++) {
        SAY(stand, storage(), holds_read, .after = {after, i ? 16 : 0});
        assert_memory_equal(HEARD(stand, holds_found)->id.data, id_of(expected[i]), 16);
        assert_memory_equal(HEARD(stand, holds_found)->scope.bytes, scope, 32);
        memcpy(after, HEARD(stand, holds_found)->id.data, 16);
    }
    SAY(stand, storage(), holds_read, .after = {after, 16});
    assert_int_equal(HEARD(stand, holds_found)->id.count, 0);
    memset(after, 9, sizeof after); /* dropped meanwhile: from the first on */
    SAY(stand, storage(), holds_read, .after = {after, 16});
    assert_memory_equal(HEARD(stand, holds_found)->id.data, id_of(1), 16);
}

static void test_a_tenants_bytes_are_bounded(void **unused)
{
    (void)unused;
    const uint64_t one = CHUNK * (4 + 64) + 5; /* token ids, rows of stand_given's layout, text */
    save(1, false, CHUNK, 2 * one);
    expect_saved(1, 0, 0, 0);
    save(2, false, CHUNK, 2 * one);
    expect_saved(2, 0, 0, 0);
    save(3, false, CHUNK, 2 * one);
    expect_saved(3, QR_E_QUOTA, 0, 0);
    assert_int_equal(found(3), QR_E_NOT_FOUND);
    SAY(stand, http(), continuation_save, .key = 4, .id = {id_of(4), 16}, .source = {id_of(1), 16}, .bytes_most = 2 * one); /* a fork */
    expect_saved(4, QR_E_QUOTA, 0, 0);
    SAY(stand, http(), continuation_drop, .key = 6, .id = {id_of(1), 16});
    save(3, false, CHUNK, 2 * one);
    expect_saved(3, 0, 0, 0);
}

/* As many as http may ask, and drops beside them; one more is told so and leaves nothing. */
static void test_saves_that_wait_are_bounded(void **unused)
{
    (void)unused;
    for (uint8_t n = 1; n <= QR_HOLDS_ENDING; n++) {
        save(n, false, TOKENS, 0);
        assert_int_equal(HEARD_COUNT(stand, capture), 1);
    }
    save(200, false, TOKENS, 0);
    expect_saved(200, QR_E_BUSY, 0, 0);
    assert_int_equal(found(200), QR_E_NOT_FOUND);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_a_save_is_answered_when_its_chunks_are),
                                       TEST(test_a_save_asks_every_device),
                                       TEST(test_a_pin_is_held_first_or_refused),
                                       TEST(test_a_drop_gives_the_hold_back),
                                       TEST(test_holds_are_said_after_a_restart),
                                       TEST(test_a_tenants_bytes_are_bounded),
                                       TEST(test_saves_that_wait_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
