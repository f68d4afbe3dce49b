/* link: qr_messages */
/* codec_test.c - the codec against msgpack-c (its judge), against bytes packed by msgpack for Python, and against hostile bytes.
 * QUIRE_TEST_SEED in the environment repeats a run; the seed is printed first. */
#include "base/error.h"
#include "messages/codec.h"
#include "messages/print.h"
#include "messages/random.h"
#include "messages/schema.h"
#include "tests/codec_judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { BUFFER_BYTES = QR_MESSAGE_BYTES_MAX, ARENA_BYTES = 8 << 20, SMALL_BYTES = 1 << 16 };

/* What every test works with. */
typedef struct {
    uint64_t seed;
    uint8_t *buffer, *again;  /* [BUFFER_BYTES] */
    qr_arena_t made, decoded; /* columns of the message made and of the one read back */
    msgpack_zone zone;
} bench_t;

static int set_up(void **state)
{
    bench_t *b = calloc(1, sizeof *b);
    const char *seed = getenv("QUIRE_TEST_SEED");
    b->seed = seed ? strtoull(seed, NULL, 0) : 20240601;
    printf("seed %llu\n", (unsigned long long)b->seed);
    b->buffer = malloc(BUFFER_BYTES);
    b->again = malloc(BUFFER_BYTES);
    qr_arena_init(&b->made, malloc(ARENA_BYTES), ARENA_BYTES);
    qr_arena_init(&b->decoded, malloc(ARENA_BYTES), ARENA_BYTES);
    msgpack_zone_init(&b->zone, 8192);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    bench_t *b = *state;
    msgpack_zone_destroy(&b->zone);
    free(b->buffer);
    free(b->again);
    free(b->made.memory);
    free(b->decoded.memory);
    free(b);
    return 0;
}

/* Field by field; padding does not count. */
static bool same_message(const qr_message_t *a, const qr_message_t *b)
{
    const qr_schema_t *row = qr_schema_find(a->type);
    if (a->type != b->type || a->from != b->from || a->to != b->to || a->epoch != b->epoch || a->sequence != b->sequence) return false;
    for (uint32_t i = 0; i < row->field_count; i++) {
        const qr_field_t *f = &row->fields[i];
        size_t bytes = qr_kind_is_column(f->kind) ? 0 : qr_kind_bytes(f->kind);
        if (memcmp((const uint8_t *)&a->body + f->offset, (const uint8_t *)&b->body + f->offset, bytes) != 0) return false;
        if (bytes) continue;
        qr_column_t x = qr_column_get(&a->body, f), y = qr_column_get(&b->body, f);
        if (x.count != y.count || (x.count && memcmp(x.data, y.data, x.count * qr_kind_bytes(f->kind)) != 0)) return false;
    }
    return true;
}

static void show(const qr_message_t *message)
{
    char line[2000];
    qr_text_t text;
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
    print_message("%s\n", line);
}

/* ---- agreement ------------------------------------------------------------------------------------------------------ */

/* Decodes from memory of exactly `count` bytes and holds verdict and values against the judge's. Returns the verdict. */
static int decode_judged(bench_t *b, const uint8_t *bytes, size_t count, qr_message_t *ret_message)
{
    static judgement_t j; /* large */
    uint8_t *exact = calloc(1, count ? count : 1);
    qr_copy(exact, bytes, count);
    qr_arena_reset(&b->decoded);
    int rc = qr_codec_decode(exact, count, &b->decoded, ret_message);
    msgpack_zone_clear(&b->zone);
    judge(exact, count, &b->zone, &j);
    assert_true(rc <= 0);
    assert_int_equal(j.legal, rc == 0);
    if (rc == 0) assert_true(judge_agrees(&j, ret_message));
    if (rc == 0) assert_true(b->decoded.used <= QR_CODEC_ARENA_BYTES(count));
    memset(exact, 0xee, count); /* nothing of the message may still point into the frame */
    free(exact);
    return rc;
}

static void check_round_trip(bench_t *b, const qr_message_t *message)
{
    qr_message_t read;
    qr_peek_t peek;
    int64_t count = qr_codec_encode(message, b->buffer, BUFFER_BYTES);
    assert_true(count > 0);
    int rc = decode_judged(b, b->buffer, (size_t)count, &read);
    if (rc != 0 || !same_message(message, &read)) show(message);
    assert_int_equal(rc, 0);
    assert_true(same_message(message, &read));
    assert_int_equal(read.now_us, 0);
    assert_int_equal(read.reserved, 0);
    int64_t again = qr_codec_encode(&read, b->again, BUFFER_BYTES);
    assert_int_equal(again, count);
    assert_memory_equal(b->again, b->buffer, (size_t)count);
    assert_int_equal(qr_codec_peek(b->buffer, (size_t)count, &peek), 0);
    assert_true(peek.type == message->type && peek.from == message->from && peek.to == message->to);
    assert_true(peek.epoch == message->epoch && peek.sequence == message->sequence);
}

/* Every type, random and boundary instances. */
static void test_round_trip(void **state)
{
    bench_t *b = *state;
    qr_prng_t prng;
    qr_message_t message;
    qr_prng_init(&prng, b->seed);
    for (int round = 0; round < 150; round++) {
        for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
            if (!qr_schema_find(type)) continue;
            qr_arena_reset(&b->made);
            qr_random_message(&prng, (uint32_t)round % QR_RANDOM_MODES, type, &b->made, &message);
            check_round_trip(b, &message);
        }
    }
}

/* Spoiled messages and plain noise: the cursor and msgpack-c agree on what is legal and on every value of it. */
static void test_hostile(void **state)
{
    bench_t *b = *state;
    qr_prng_t prng;
    qr_message_t message, read;
    uint32_t legal = 0, refused = 0;
    qr_prng_init(&prng, b->seed + 1);
    for (int round = 0; round < 200000; round++) {
        qr_arena_reset(&b->made);
        qr_random_message(&prng, QR_RANDOM_PLAIN, qr_random_type(&prng), &b->made, &message);
        int64_t count = qr_codec_encode(&message, b->buffer, SMALL_BYTES);
        assert_true(count > 0);
        size_t spoiled = qr_random_spoil(&prng, b->buffer, (size_t)count, SMALL_BYTES);
        if (round % 50 == 0)
            for (size_t i = 0; i < spoiled; i++) b->buffer[i] = (uint8_t)qr_prng_next(&prng);
        if (decode_judged(b, b->buffer, spoiled, &read) == 0)
            legal++;
        else
            refused++;
    }
    print_message("hostile: %u still legal, %u refused\n", legal, refused);
    assert_true(legal > 10000 && refused > 100000);
}

/* Cut at every byte, each message is refused; nothing beyond the cut is read (the copy has exactly so many bytes). */
static void test_truncations(void **state)
{
    bench_t *b = *state;
    qr_prng_t prng;
    qr_message_t message, read;
    qr_prng_init(&prng, b->seed + 2);
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
        if (!qr_schema_find(type)) continue;
        qr_arena_reset(&b->made);
        qr_random_message(&prng, QR_RANDOM_PLAIN, type, &b->made, &message);
        size_t count = (size_t)qr_codec_encode(&message, b->buffer, BUFFER_BYTES);
        for (size_t cut = 0; cut < count; cut++) {
            int rc = decode_judged(b, b->buffer, cut, &read);
            assert_true(rc == -QR_E_TRUNCATED);
        }
    }
}

/* ---- golden bytes --------------------------------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, uint8_t *bytes)
{
    size_t count = strlen(hex) / 2;
    for (size_t i = 0; i < count; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return count;
}

/* msgpack.packb([32, 1, from, to, 7 << 20 | 123456, 300, 123 << 40 | 9, 1, 3, u32s(5, 4294967295, 49151), 128, 0x3f800000,
 * 0x3f000000, 0, 40, 2**64 - 1, 1, 0, b'tenant', b'cache', 2, 30000000], use_bin_type=True), msgpack for Python 1.2.4 */
static const char offer_golden[] =
    "dc00162001cf0000000100050000cf0000000200060000ce0071e240cd012ccf00007b00000000090103c40c05000000ffffffffffbf0000cc80ce3f800000"
    "ce3f0000000028cfffffffffffffffff0100c40674656e616e74c405636163686502ce01c9c380";
/* msgpack.packb([75, 1, from, to, 255, 65536, 2**32, u64s(2**32 + 1, 2**33 + 2), u32s(0, 19), u32s(7, 2**32 - 1),
 * u32s(0xbf800000, 0), 2700]) */
static const char done_golden[] =
    "9c4b01cf0000000100090000cf0000000100070000ccffce00010000cf0000000100000000c41001000000010000000200000002000000c408000000001300"
    "0000c40807000000ffffffffc408000080bf00000000cd0a8c";

static void test_golden(void **state)
{
    bench_t *b = *state;
    uint8_t golden[256];
    uint32_t tokens[] = {5, UINT32_MAX, 49151}, statuses[] = {0, QR_E_NUMERIC}, drawn[] = {7, QR_TOKEN_NONE}, logprobs[] = {0xbf800000, 0};
    uint64_t lanes[] = {(1ull << 32) + 1, (1ull << 33) + 2};
    qr_message_t offer = {.type = QR_MESSAGE_offer,
                          .from = qr_address(1, 0, QR_ROLE_router, 0),
                          .to = qr_address(2, 0, QR_ROLE_worker, 0),
                          .epoch = 7 << 20 | 123456,
                          .sequence = 300};
    offer.body.offer = (qr_offer_t){.request_id = 123ull << 40 | 9,
                                    .attempt = 1,
                                    .generated_from = 3,
                                    .tokens = {tokens, 3},
                                    .max_tokens = 128,
                                    .temperature_bits = 0x3f800000,
                                    .top_p_bits = 0x3f000000,
                                    .top_k = 40,
                                    .seed = UINT64_MAX,
                                    .logprobs = 1,
                                    .tenant_salt = {(const uint8_t *)"tenant", 6},
                                    .cache_salt = {(const uint8_t *)"cache", 5},
                                    .priority = 2,
                                    .budget_us = 30000000};
    size_t count = from_hex(offer_golden, golden);
    assert_int_equal(qr_codec_encode(&offer, b->buffer, BUFFER_BYTES), count);
    assert_memory_equal(b->buffer, golden, count);
    check_round_trip(b, &offer);
    qr_message_t done = {.type = QR_MESSAGE_batch_done,
                         .from = qr_address(1, 0, QR_ROLE_executor, 0),
                         .to = qr_address(1, 0, QR_ROLE_scheduler, 0),
                         .epoch = 255,
                         .sequence = 65536};
    done.body.batch_done = (qr_batch_done_t){.batch = 1ull << 32,
                                             .lanes = {lanes, 2},
                                             .statuses = {statuses, 2},
                                             .tokens = {drawn, 2},
                                             .logprob_bits = {logprobs, 2},
                                             .step_us = 2700};
    count = from_hex(done_golden, golden);
    assert_int_equal(qr_codec_encode(&done, b->buffer, BUFFER_BYTES), count);
    assert_memory_equal(b->buffer, golden, count);
}

/* ---- what may be missing, what may follow, what must fit ------------------------------------------------------------------- */

/* A message by hand: an array16 header, then elements through msgpack-c. */
typedef struct {
    uint8_t bytes[1024];
    size_t count;
    msgpack_packer packer;
} hand_t;

static int hand_write(void *context, const char *bytes, size_t count)
{
    hand_t *h = context;
    assert_true(count <= sizeof h->bytes - h->count);
    memcpy(h->bytes + h->count, bytes, count);
    h->count += count;
    return 0;
}

static void hand_start(hand_t *h, uint32_t elements, uint64_t type, uint64_t version)
{
    h->count = 0;
    msgpack_packer_init(&h->packer, h, hand_write);
    msgpack_pack_array(&h->packer, elements);
    msgpack_pack_uint64(&h->packer, type);
    msgpack_pack_uint64(&h->packer, version);
    for (uint64_t i = 0; i < 4; i++) msgpack_pack_uint64(&h->packer, 1000 + i);
}

static void hand_bin(hand_t *h, size_t bytes)
{
    static const uint8_t zeros[256];
    msgpack_pack_bin(&h->packer, bytes);
    msgpack_pack_bin_body(&h->packer, zeros, bytes);
}

static void hand_number(hand_t *h, uint64_t value) { msgpack_pack_uint64(&h->packer, value); }

static int hand_decode(bench_t *b, const hand_t *h, qr_message_t *ret) { return decode_judged(b, h->bytes, h->count, ret); }

/* probe_done {u64 probe_id, u32 reason} with something of every scalar form behind it. */
static void test_unknown_trailing_fields(void **state)
{
    bench_t *b = *state;
    hand_t h;
    qr_message_t read;
    hand_start(&h, 6 + 2 + 14, QR_MESSAGE_probe_done, 1);
    hand_number(&h, 77);
    hand_number(&h, QR_E_BUSY);
    hand_number(&h, UINT64_MAX);
    hand_bin(&h, 200);
    msgpack_pack_nil(&h.packer);
    msgpack_pack_true(&h.packer);
    msgpack_pack_false(&h.packer);
    msgpack_pack_float(&h.packer, 1.5f);
    msgpack_pack_double(&h.packer, 1.5);
    msgpack_pack_int64(&h.packer, -1);
    msgpack_pack_int64(&h.packer, -300);
    msgpack_pack_int64(&h.packer, INT64_MIN);
    msgpack_pack_str(&h.packer, 3);
    msgpack_pack_str_body(&h.packer, "abc", 3);
    msgpack_pack_str(&h.packer, 40);
    msgpack_pack_str_body(&h.packer, "0123456789012345678901234567890123456789", 40);
    msgpack_pack_ext(&h.packer, 4, 9);
    msgpack_pack_ext_body(&h.packer, "abcd", 4);
    msgpack_pack_ext(&h.packer, 5, -9);
    msgpack_pack_ext_body(&h.packer, "abcde", 5);
    assert_int_equal(hand_decode(b, &h, &read), 0);
    assert_int_equal(read.body.probe_done.probe_id, 77);
    assert_int_equal(read.body.probe_done.reason, QR_E_BUSY);
}

static void test_containers_refused(void **state)
{
    bench_t *b = *state;
    static const uint8_t tags[] = {0x80, 0x90, 0xdc, 0xdd, 0xde, 0xdf, 0xc1};
    for (size_t i = 0; i < sizeof tags; i++) {
        hand_t h;
        qr_message_t read;
        char tail[5] = {(char)tags[i], 0, 0, 0, 0};
        size_t bytes = tags[i] < 0xa0 || tags[i] == 0xc1 ? 1 : (tags[i] & 1) ? 5 : 3;
        hand_start(&h, 6 + 2 + 1, QR_MESSAGE_probe_done, 1);
        hand_number(&h, 77);
        hand_number(&h, 0);
        hand_write(&h, tail, bytes);
        assert_int_equal(hand_decode(b, &h, &read), -QR_E_FORMAT);
    }
}

static void test_element_counts(void **state)
{
    bench_t *b = *state;
    hand_t h;
    qr_message_t read;
    for (uint32_t extra = 0; extra <= 57; extra++) { /* 6 + 2 + 56 = 64 is the most */
        hand_start(&h, 8 + extra, QR_MESSAGE_probe_done, 1);
        for (uint32_t i = 0; i < 2 + extra; i++) hand_number(&h, 5);
        assert_int_equal(hand_decode(b, &h, &read), extra <= 56 ? 0 : -QR_E_LIMIT);
    }
    hand_start(&h, 7, QR_MESSAGE_probe_done, 1); /* a required field is missing */
    hand_number(&h, 5);
    assert_int_equal(hand_decode(b, &h, &read), -QR_E_FORMAT);
    hand_start(&h, 8, QR_MESSAGE_probe_done, 1); /* a byte too many */
    hand_number(&h, 5);
    hand_number(&h, 5);
    hand_number(&h, 5);
    assert_int_equal(hand_decode(b, &h, &read), -QR_E_FORMAT);
}

/* offer with its required fields only, then with one optional one: the rest is zero and empty. */
static void test_missing_optional(void **state)
{
    bench_t *b = *state;
    for (uint32_t optional = 0; optional <= 1; optional++) {
        hand_t h;
        qr_message_t read;
        memset(&read, 0xaa, sizeof read);
        hand_start(&h, 6 + 12 + optional, QR_MESSAGE_offer, 1);
        for (int i = 0; i < 3; i++) hand_number(&h, 4);
        hand_bin(&h, 8);
        for (int i = 0; i < 8; i++) hand_number(&h, 4);
        if (optional) hand_bin(&h, 7);
        assert_int_equal(hand_decode(b, &h, &read), 0);
        const qr_offer_t *o = &read.body.offer;
        assert_int_equal(o->tokens.count, 2);
        assert_int_equal(o->tenant_salt.count, optional ? 7 : 0);
        assert_true(o->cache_salt.count == 0 && o->cache_salt.data == NULL && o->priority == 0 && o->budget_us == 0);
        assert_true(o->source_kinds.count == 0 && o->source_costs_us.count == 0);
    }
}

/* Values that do not fit their kinds, columns that do not divide, other versions and types. */
static void test_misfits(void **state)
{
    bench_t *b = *state;
    static const struct {
        uint16_t type;
        uint8_t field; /* which one gets the bad value */
        bool bin;
        uint64_t value; /* number, or bytes of the bin */
        bool fits;
    } cases[] = {
        {QR_MESSAGE_route_release, 1, false, 255, true},
        {QR_MESSAGE_route_release, 1, false, 256, false},
        {QR_MESSAGE_link_down, 0, false, UINT32_MAX, true},
        {QR_MESSAGE_link_down, 0, false, 1ull << 32, false},
        {QR_MESSAGE_link_down, 0, true, 4, false},
        {QR_MESSAGE_text_encoded, 1, true, 0, true},
        {QR_MESSAGE_text_encoded, 1, true, 6, false},
        {QR_MESSAGE_text_encoded, 1, false, 6, false},
        {QR_MESSAGE_metrics, 1, true, 8, true},
        {QR_MESSAGE_metrics, 1, true, 12, false},
        {QR_MESSAGE_pages_pin, 1, true, 32, true},
        {QR_MESSAGE_pages_pin, 1, true, 31, false},
        {QR_MESSAGE_pages_pin, 1, true, 64, false},
        {QR_MESSAGE_ready, 1, true, 77, true},
    };
    for (size_t c = 0; c < QR_COUNT(cases); c++) {
        const qr_schema_t *row = qr_schema_find(cases[c].type);
        hand_t h;
        qr_message_t read;
        hand_start(&h, 6u + row->field_count, cases[c].type, 1);
        for (uint8_t i = 0; i < row->field_count; i++) {
            bool bad = i == cases[c].field, column = row->fields[i].kind >= QR_KIND_HASH;
            if (bad ? cases[c].bin : column)
                hand_bin(&h, bad ? cases[c].value : row->fields[i].kind == QR_KIND_HASH ? 32 : 0);
            else
                hand_number(&h, bad ? cases[c].value : 0);
        }
        assert_int_equal(hand_decode(b, &h, &read), cases[c].fits ? 0 : -QR_E_FORMAT);
    }
    hand_t h;
    qr_message_t read;
    static const uint64_t heads[][3] = {{QR_MESSAGE_probe, 2, QR_E_UNSUPPORTED},
                                        {QR_MESSAGE_probe, 0, QR_E_UNSUPPORTED},
                                        {127, 1, QR_E_UNSUPPORTED},
                                        {0, 1, QR_E_UNSUPPORTED},
                                        {65536 + 11, 1, QR_E_FORMAT},
                                        {QR_MESSAGE_probe, 1, 0}};
    for (size_t i = 0; i < QR_COUNT(heads); i++) {
        hand_start(&h, 7, heads[i][0], heads[i][1]);
        hand_number(&h, 1);
        assert_int_equal(hand_decode(b, &h, &read), -(int)heads[i][2]);
    }
}

/* Integers in any of msgpack's forms, also longer than need be and signed. */
static void test_integer_forms(void **state)
{
    bench_t *b = *state;
    static const char *const forms[] = {"05",   "cc05",   "cd0005",     "ce00000005",        "cf0000000000000005",
                                        "d005", "d10005", "d200000005", "d30000000000000005"};
    for (size_t i = 0; i < QR_COUNT(forms); i++) {
        hand_t h;
        qr_message_t read;
        uint8_t element[9];
        size_t bytes = from_hex(forms[i], element);
        hand_start(&h, 7, QR_MESSAGE_probe, 1);
        hand_write(&h, (const char *)element, bytes);
        assert_int_equal(hand_decode(b, &h, &read), 0);
        assert_int_equal(read.body.probe.probe_id, 5);
        element[1] = 0xff; /* now the signed forms are negative */
        hand_start(&h, 7, QR_MESSAGE_probe, 1);
        hand_write(&h, (const char *)element, bytes);
        assert_int_equal(hand_decode(b, &h, &read), element[0] >= 0xd0 ? -QR_E_FORMAT : 0);
    }
}

/* ---- bounds of memory ----------------------------------------------------------------------------------------------- */

static void test_failure_changes_nothing(void **state)
{
    bench_t *b = *state;
    uint32_t tokens[100] = {1};
    uint64_t memory[64];
    qr_message_t place = {.type = QR_MESSAGE_place, .body.place = {.tokens = {tokens, 100}, .cache_salt = {(const uint8_t *)"salt", 4}}};
    qr_message_t read, before;
    qr_arena_t arena;
    memset(&read, 0x5a, sizeof read);
    before = read;
    size_t count = (size_t)qr_codec_encode(&place, b->buffer, BUFFER_BYTES);
    for (uint64_t capacity = 0; capacity < 408; capacity += 8) { /* 400 + 8 are needed */
        qr_arena_init(&arena, memory, capacity);
        assert_int_equal(qr_codec_decode(b->buffer, count, &arena, &read), -QR_E_MEMORY);
        assert_int_equal(arena.used, 0);
        assert_memory_equal(&read, &before, sizeof read);
    }
    qr_arena_init(&arena, memory, 408);
    assert_int_equal(qr_codec_decode(b->buffer, count - 1, &arena, &read), -QR_E_TRUNCATED);
    assert_memory_equal(&read, &before, sizeof read);
    assert_int_equal(qr_codec_decode(b->buffer, count, &arena, &read), 0);
    assert_int_equal(arena.used, 408);
    qr_peek_t peek = {.type = 99};
    assert_int_equal(qr_codec_peek(b->buffer, 10, &peek), -QR_E_TRUNCATED);
    assert_int_equal(peek.type, 99);
}

/* Too small a buffer is an error for every size below the right one, and nothing is written beyond it. */
static void test_encode_bound(void **state)
{
    bench_t *b = *state;
    qr_prng_t prng;
    qr_message_t message;
    qr_prng_init(&prng, b->seed + 3);
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
        if (!qr_schema_find(type)) continue;
        qr_arena_reset(&b->made);
        qr_random_message(&prng, QR_RANDOM_PLAIN, type, &b->made, &message);
        size_t count = (size_t)qr_codec_encode(&message, b->buffer, BUFFER_BYTES);
        for (size_t capacity = 0; capacity < count; capacity++) {
            memset(b->again + capacity, 0xcc, 16);
            assert_int_equal(qr_codec_encode(&message, b->again, capacity), -QR_E_LIMIT);
            for (int i = 0; i < 16; i++) assert_int_equal(b->again[capacity + (size_t)i], 0xcc);
        }
        assert_int_equal(qr_codec_encode(&message, b->again, count), count);
    }
    message = (qr_message_t){.type = QR_MESSAGE_place,
                             .body.place.tokens = {(const uint32_t *)(const void *)b->made.memory, QR_MESSAGE_BYTES_MAX / 4}};
    assert_int_equal(qr_codec_encode(&message, b->buffer, BUFFER_BYTES), -QR_E_LIMIT);
    message.body.place.tokens.count = UINT64_MAX / 4 + 2; /* would wrap to 4 bytes */
    assert_int_equal(qr_codec_encode(&message, b->buffer, BUFFER_BYTES), -QR_E_LIMIT);
}

/* A whole context of tokens fits a message. */
static void test_whole_context(void **state)
{
    bench_t *b = *state;
    uint32_t *tokens = calloc(QR_CONTEXT_MAX, sizeof *tokens);
    for (uint32_t i = 0; i < QR_CONTEXT_MAX; i++) tokens[i] = i * 2654435761u;
    qr_message_t message = {.type = QR_MESSAGE_offer, .body.offer.tokens = {tokens, QR_CONTEXT_MAX}};
    check_round_trip(b, &message);
    free(tokens);
}

/* ---- TR-07 ---------------------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Counts and lengths that claim more than the frame holds cost neither memory nor time. */
static void test_TR_07(void **state)
{
    bench_t *b = *state;
    /* The last one: a legal envelope of text_encoded whose token array claims 1,000,000 elements and holds 3; beside it the same
     * as a bin of 4,000,000 bytes. */
    static const char *const hostile[] = {"ddffffffff",
                                          "dd0fffffff",
                                          "dfffffffff",
                                          "dbffffffff61",
                                          "c6ffffffff",
                                          "c9ffffffff01",
                                          "dcffff",
                                          "981a010203040507dd000f4240010203",
                                          "981a010203040507c6003d0900010203"};
    uint8_t bytes[64];
    qr_message_t read;
    for (size_t i = 0; i < QR_COUNT(hostile); i++) { /* before measuring: pages of the code itself */
        size_t count = from_hex(hostile[i], bytes);
        assert_true(qr_codec_decode(bytes, count, &b->decoded, &read) < 0);
    }
    for (size_t i = 0; i < QR_COUNT(hostile); i++) {
        size_t count = from_hex(hostile[i], bytes);
        uint64_t used = b->decoded.used, before = resident_bytes();
        double start = seconds();
        for (int times = 0; times < 1000; times++) {
            assert_true(qr_codec_decode(bytes, count, &b->decoded, &read) < 0);
            qr_peek_t peek;
            if (i < 7) assert_true(qr_codec_peek(bytes, count, &peek) < 0);
        }
        double each = (seconds() - start) / 1000;
        uint64_t after = resident_bytes();
        assert_int_equal(b->decoded.used, used);
        assert_true(after < before + (1 << 20));
        assert_true(each < 0.010);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_unknown_trailing_fields),
        cmocka_unit_test(test_containers_refused),
        cmocka_unit_test(test_element_counts),
        cmocka_unit_test(test_missing_optional),
        cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_integer_forms),
        cmocka_unit_test(test_failure_changes_nothing),
        cmocka_unit_test(test_encode_bound),
        cmocka_unit_test(test_whole_context),
        cmocka_unit_test(test_TR_07),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
