/* link: qr_sim qr_actor_checkpoint_writer qr_actor_restore_streamer qr_actor_capture_value qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* contract_store_test.c - the simulated storage and transfer hold the conversation that the real ones are held to (moves_test.c), so that
 * the fakes cannot drift. */
#include "tests/unit/stand.h"
#include "transport/sim/storage.h"
#include "transport/sim/transfer.h"

#include "tests/conversations/chunk_conversation.h"
#include "tests/conversations/spill_conversation.h"

enum { PAGE = 8, CHUNK = 16, PAGES = 64, GROUPS = 2, LATE = 8, LONG_US = 10000000 };
#define NODE 0
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)

typedef struct fakes {
    qr_given_t *given;
    qr_sim_world_given_t mine;
    stand_t *storage, *transfer, *executor;
    uint32_t tokens[CONVERSATION_PARTS * CHUNK]; /* the conversation's own */
    struct {
        uint8_t to;
        qr_message_t message;
    } late[LATE];
    uint32_t late_count;
} fakes_t;

/* What an actor has said: the answer to the asker's question of this time, if it is there; drops may come later. */
static bool take(fakes_t *f, stand_t *s, uint64_t from, uint16_t wanted, qr_message_t *ret_answer)
{
    bool found = false;
    for (uint32_t i = 0; i < s->outbox.count; i++) {
        const qr_message_t *m = &s->messages[i];
        if (m->to == from && m->type == wanted && !found) {
            *ret_answer = *m;
            found = true;
        } else if (m->type == QR_MESSAGE_chunk_dropped) {
            assert_true(f->late_count < LATE);
            f->late[f->late_count].to = qr_address_role(m->to);
            f->late[f->late_count++].message = *m;
        }
    }
    return found;
}

static uint16_t answer_of(uint16_t ask)
{
    static const uint16_t pairs[][2] = {{QR_MESSAGE_chunk_find, QR_MESSAGE_chunk_found},
                                        {QR_MESSAGE_chunk_lease, QR_MESSAGE_chunk_leased},
                                        {QR_MESSAGE_chunk_release, QR_MESSAGE_chunk_released},
                                        {QR_MESSAGE_chunk_write, QR_MESSAGE_chunk_written},
                                        {QR_MESSAGE_chunk_drop, QR_MESSAGE_chunk_dropped},
                                        {QR_MESSAGE_page_upload, QR_MESSAGE_page_uploaded},
                                        {QR_MESSAGE_page_download, QR_MESSAGE_page_downloaded},
                                        {QR_MESSAGE_fence, QR_MESSAGE_fenced},
                                        {QR_MESSAGE_page_spill, QR_MESSAGE_page_spilled},
                                        {QR_MESSAGE_page_unspill, QR_MESSAGE_page_unspilled},
                                        {QR_MESSAGE_spill_drop, QR_MESSAGE_spill_dropped},
                                        {QR_MESSAGE_ram_find, QR_MESSAGE_ram_found},
                                        {QR_MESSAGE_chunk_hold, QR_MESSAGE_chunk_held},
                                        {QR_MESSAGE_chunk_unhold, QR_MESSAGE_chunk_unheld},
                                        {QR_MESSAGE_chunk_victims, QR_MESSAGE_chunk_victims_named}};
    for (size_t i = 0; i < QR_COUNT(pairs); i++)
        if (pairs[i][0] == ask) return pairs[i][1];
    fail_msg("no answer to message %u", ask);
    return 0;
}

static bool ask(void *context, uint8_t from, uint8_t to, uint16_t type, const void *body, qr_message_t *ret_answer)
{
    fakes_t *f = context;
    stand_t *s = to == QR_ROLE_storage ? f->storage : f->transfer;
    uint64_t asker = qr_address(NODE + 1, 1, from, 0);
    uint16_t wanted = answer_of(type);
    stand_say(s, asker, type, body);
    bool found = take(f, s, asker, wanted, ret_answer);
    while (!found && stand_alarm(s, s->now_us + LONG_US)) found = take(f, s, asker, wanted, ret_answer);
    return found;
}

static bool late(void *context, uint8_t from, uint16_t answer_type, qr_message_t *ret_answer)
{
    fakes_t *f = context;
    for (uint32_t i = 0; i < f->late_count; i++) {
        if (f->late[i].to != from || f->late[i].message.type != answer_type) continue;
        *ret_answer = f->late[i].message;
        f->late[i] = f->late[--f->late_count];
        return true;
    }
    return false;
}

/* Seed 7 are the rows that the conversation's tokens mean: the fake storage writes no others. */
static uint64_t word(const fakes_t *f, uint32_t group, uint32_t row, uint64_t seed)
{
    return seed == 7 ? qr_sim_word(f->tokens[row], row, group) : qr_mix_u64(seed << 32 ^ (uint64_t)group << 16 ^ row);
}

static uint64_t *row_at(fakes_t *f, uint32_t group, uint32_t row, uint32_t first_block, const uint64_t *pages)
{
    return &qr_sim_device_row(f->executor->state, f->given, group, pages[row / PAGE - first_block], row % PAGE)->word;
}

static void fill(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed)
{
    for (uint32_t r = start; r < start + rows; r++) *row_at(context, group, r, first_block, pages) = word(context, group, r, seed);
}

static bool holds(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed)
{
    for (uint32_t r = start; r < start + rows; r++)
        if (*row_at(context, group, r, first_block, pages) != word(context, group, r, seed)) return false;
    return true;
}

static void spoil(void *context, qr_hash_t content, bool removes)
{
    fakes_t *f = context;
    qr_sim_file_t *file = qr_sim_store_file(f->mine.store, NODE, content.bytes);
    assert_non_null(file);
    file->damaged = 1;
    if (removes)
        file->removed = 1;
    else
        file->on_disk.words[3] ^= 4;
}

static void spoil_memory(void *context, uint32_t slot)
{
    const fakes_t *f = context;
    uint64_t life;
    qr_sim_store_memory(f->mine.store, NODE, slot, &life)->words[3] ^= 4;
}

static void converse_about_spill(fakes_t *f, const qr_sim_spills_t *spills)
{
    spill_world_t kept = {.context = f, .page_tokens = PAGE, .groups = GROUPS, .ask = ask, .fill = fill, .holds = holds};
    for (uint32_t i = 0; i < SPILL_BLOCKS; i++) kept.out[i] = qr_handle(i, 9), kept.in[i] = qr_handle(PAGES - 1 - i, 9);
    spill_conversation_run(&kept);
    assert_int_equal(spills->dropped, 1);
}

static void converse(uint32_t ram_slots)
{
    qr_sim_spills_t spills = {.row_ns = 1000};
    const qr_sim_store_work_t work = {.bytes_max = 1 << 20, .write_us = 100, .move_ns = 1000, .slots = 2, .ram_slots = ram_slots};
    fakes_t *f = calloc(1, sizeof *f);
    qr_prng_t prng;
    f->given = stand_given();
    f->given->layout = (qr_layout_t){.group_count = GROUPS, .page_tokens = PAGE, .chunk_tokens = CHUNK, .context_tokens = 128};
    for (uint32_t g = 0; g < GROUPS; g++) f->given->layout.groups[g] = (qr_group_t){.pages = PAGES, .row_bytes = 8};
    f->given->params.max_lanes = 2;
    f->given->params.over_commit = 1;
    f->given->params.spill_bytes = SPILL_BLOCKS * GROUPS * PAGE * 8 + 100;
    f->mine.spills = &spills;
    f->given->decoder = (struct qr_decoder *)&f->mine;
    f->mine.store = qr_sim_store_new(&work, f->given, 1);
    f->executor = stand_new(&qr_sim_executor_class, f->given, qr_address(1, 1, QR_ROLE_executor, 0));
    f->mine.executor = f->executor->state;
    f->storage = stand_new(&qr_sim_storage_class, f->given, qr_address(1, 0, QR_ROLE_storage, 0));
    f->transfer = stand_new(&qr_sim_transfer_class, f->given, qr_address(1, 1, QR_ROLE_transfer, 0));
    SAY(f->storage, MESH, start, .epoch = 5);
    SAY(f->transfer, MESH, start, .epoch = 5);
    qr_prng_init(&prng, 11);
    for (uint32_t i = 0; i < CONVERSATION_PARTS * CHUNK; i++) f->tokens[i] = (uint32_t)qr_prng_below(&prng, 300);
    chunk_world_t world = {.context = f, .given = f->given, .ask = ask, .late = late, .fill = fill, .holds = holds};
    world.spoil = spoil;
    world.spoil_memory = spoil_memory;
    for (uint32_t g = 0; g < GROUPS; g++) world.payload_chunk_bytes[g] = 64 + 8 * CHUNK;
    ram_slots ? ram_conversation_run(&world) : chunk_conversation_run(&world);
    if (!ram_slots) hold_conversation_run(&world);
    if (!ram_slots) converse_about_spill(f, &spills);
    stand_destroy(f->storage);
    stand_destroy(f->transfer);
    stand_destroy(f->executor);
    qr_sim_store_destroy(&f->mine.store);
    free(f->given);
    free(f);
}

static void test_the_fakes_hold_the_conversation(void **state)
{
    (void)state;
    converse(0);
}
static void test_the_fakes_hold_the_conversation_of_memory(void **state)
{
    (void)state;
    converse(2 * GROUPS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_fakes_hold_the_conversation),
                                       cmocka_unit_test(test_the_fakes_hold_the_conversation_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
