/* link: qr_base */
/* base_test.c - digests, chain, generators, map, arena and text against independent values. Digests come from Python's hashlib
 * (the expressions are beside them), Philox vectors from Random123's published test set, splitmix64 and xoshiro256** from
 * their authors' programs. */
#include "base/arena.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/map.h"
#include "base/nearest.h"
#include "base/philox.h"
#include "base/prng.h"
#include "base/sha256.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void assert_digest(const uint8_t digest[32], const char *hex)
{
    char shown[65];
    qr_text_t text;
    qr_text_init(&text, shown, sizeof shown);
    qr_text_put_hex(&text, digest, 32);
    assert_string_equal(shown, hex);
}

/* FIPS 180-4 examples and one million 'a'. */
static void test_sha256_published(void **state)
{
    (void)state;
    uint8_t digest[32];
    qr_sha256("", 0, digest);
    assert_digest(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    qr_sha256("abc", 3, digest);
    assert_digest(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    qr_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, digest);
    assert_digest(digest, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    char piece[1000];
    memset(piece, 'a', sizeof piece);
    for (int i = 0; i < 1000; i++) qr_sha256_add(&sha, piece, sizeof piece);
    qr_sha256_end(&sha, digest);
    assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Every length 0..300, fed in ragged pieces. h=sha256(); for n in range(301): h.update(sha256(b[:n]).digest()),
 * b = bytes((i*131+7)&255 for i in range(300)) */
static void test_sha256_lengths(void **state)
{
    (void)state;
    uint8_t bytes[300], digest[32];
    for (unsigned i = 0; i < 300; i++) bytes[i] = (uint8_t)(i * 131 + 7);
    qr_sha256_t all, one;
    qr_sha256_init(&all);
    for (size_t n = 0; n <= 300; n++) {
        qr_sha256_init(&one);
        for (size_t at = 0, piece = n % 7 + 1; at < n; at += piece, piece = piece % 67 + 1) {
            if (piece > n - at) piece = n - at;
            qr_sha256_add(&one, bytes + at, piece);
        }
        qr_sha256_end(&one, digest);
        qr_sha256_add(&all, digest, 32);
    }
    qr_sha256_end(&all, digest);
    assert_digest(digest, "7722024365d27836079cbf29de35d060b9383d7c713083199661392f983216d4");
}

/* pre = lambda b: pack('<I', len(b)) + b; root = sha256(b"quire.root.1\0" + fp + pre(t) + pre(c));
 * node = sha256(b"quire.chain.1\0" + parent + pack('<I', n) + tokens as '<I'); scope = sha256(pre(t) + pre(c)); fp = bytes(range(32)) */
static void test_chain_vectors(void **state)
{
    (void)state;
    uint8_t fingerprint[32], root[32], other[32], node[32], next[32];
    uint32_t tokens[256], three[3] = {UINT32_MAX, 0, 1};
    for (unsigned i = 0; i < 32; i++) fingerprint[i] = (uint8_t)i;
    for (uint32_t i = 0; i < 256; i++) tokens[i] = (i * 7919 + 3) % 49152;
    qr_chain_root(fingerprint, NULL, 0, NULL, 0, root);
    assert_digest(root, "81076f142313fa073f26710a32203d3f5773f841eda76fbf8d52e056cba358fa");
    qr_chain_root(fingerprint, "tenant", 6, "cache", 5, other);
    assert_digest(other, "a333e64c435e67d7fe35ad1704fd17622d77389420963a06363fb4c9c00b50ca");
    qr_chain_root(fingerprint, "tenantc", 7, "ache", 4, other);
    assert_digest(other, "989acc2d562886893d483f1f236f84395960f61fa0006162aa857bacc2726c53");
    qr_chain_node(root, tokens, 256, node);
    assert_digest(node, "76ffe69b0ea2ed589324f1408b53c8d901049fa90401dbf263a9935348eefbd2");
    qr_chain_node(node, three, 3, next);
    assert_digest(next, "75460e10177ff753024c84de9e578e12aa83229832b91a8eb5c3455f8663af03");
    qr_chain_node(root, NULL, 0, node);
    assert_digest(node, "c5e88eb12cb3d878fa430427f205cea7a08c40b8eb5326cb5f1c0aa8e440a1da");
    qr_chain_scope("tenant", 6, "cache", 5, other);
    assert_digest(other, "e28ac345bcda1e65fa7be19685c05a89f22bc73ef2d233cfffb268ee6755af8a");
    qr_chain_scope(NULL, 0, NULL, 0, other);
    assert_digest(other, "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
}

/* The second chunk's hash of tokens 0..15 in chunks of 8, no salts. */
static void chain_of_sixteen(uint8_t ret_node[32])
{
    uint8_t fingerprint[32], root[32], first[32];
    uint32_t tokens[16];
    for (unsigned i = 0; i < 32; i++) fingerprint[i] = (uint8_t)i;
    for (uint32_t i = 0; i < 16; i++) tokens[i] = i;
    qr_chain_root(fingerprint, NULL, 0, NULL, 0, root);
    qr_chain_node(root, tokens, 8, first);
    qr_chain_node(first, tokens + 8, 8, ret_node);
}

static const char sixteen_golden[] = "b084c72332dff2dcc5791acd9dd8fd404833ad6b3034d38a83e5df27aa463251"; /* hashlib, as above */

/* Token ids that differ by 256 or 65,536 only have different chains: every id enters with 4 bytes. */
static void test_PI_01(void **state)
{
    (void)state;
    static const char *const golden[] = {"fe8794b4d7fdd429d12a6bc3c803c3874b994853183d2ad240ae357aa4f38e0c",
                                         "91696a26129a75d346c5a1b2f1e070e6385e440ba0f065efbd93d151b97864ff",
                                         "9f16a953c2357809ba4ee07d08a4112499ddaa40d27b10ddedb783613230b5ab"};
    static const uint32_t firsts[] = {65, 65 + 256, 65 + 65536};
    uint8_t fingerprint[32], root[32], node[32];
    for (unsigned i = 0; i < 32; i++) fingerprint[i] = (uint8_t)i;
    qr_chain_root(fingerprint, NULL, 0, NULL, 0, root);
    for (size_t i = 0; i < QR_COUNT(firsts); i++) {
        uint32_t tokens[4] = {firsts[i], firsts[i] + 1, firsts[i] + 2, firsts[i] + 3};
        qr_chain_node(root, tokens, 4, node);
        assert_digest(node, golden[i]);
    }
}

/* The same in other processes, with another environment, as the first and as the thousandth hash. */
static void test_PI_04(void **state)
{
    (void)state;
    static const char *const environments[] = {"", "LANG=tr_TR.UTF-8 LC_ALL=tr_TR.UTF-8 ", "TZ=Asia/Kathmandu ", "PYTHONHASHSEED=1 ",
                                               "PYTHONHASHSEED=2 "};
    uint8_t node[32];
    for (int i = 0; i < 1000; i++) chain_of_sixteen(node);
    assert_digest(node, sixteen_golden);
    char self[400] = {0};
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    for (size_t i = 0; i < QR_COUNT(environments); i++) {
        char command[600], hex[80] = {0};
        snprintf(command, sizeof command, "%s'%s' chain", environments[i], self);
        FILE *child = popen(command, "r");
        assert_non_null(child);
        assert_non_null(fgets(hex, sizeof hex, child));
        assert_int_equal(pclose(child), 0);
        hex[strcspn(hex, "\n")] = 0;
        assert_string_equal(hex, sixteen_golden);
    }
}

static int print_chain(void)
{
    uint8_t node[32];
    chain_of_sixteen(node);
    for (int i = 0; i < 32; i++) printf("%02x", node[i]);
    printf("\n");
    return 0;
}

/* Random123, kat_vectors, philox4x32 10. */
static void test_philox_published(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
         {0xa4093822u, 0x299f31d0u},
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
    };
    for (size_t i = 0; i < QR_COUNT(vectors); i++) {
        uint32_t words[4];
        qr_philox4x32(vectors[i].counter, vectors[i].key, words);
        assert_memory_equal(words, vectors[i].words, sizeof words);
    }
    assert_true(qr_philox_draw(0, 0, 0) == 0xe169c58d6627e8d5u);
    assert_true(qr_philox_draw(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu) == 0x94fdccebd16cfe09u);
}

static void test_prng_published(void **state)
{
    (void)state;
    static const uint64_t mixed[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};
    static const uint64_t starred[] = {
        11520, 0, 1509978240, 1215971899390074240u, 1216172134540287360u, 607988272756665600u, 16172922978634559625u, 8476171486693032832u};
    uint64_t seed = 1234567;
    for (size_t i = 0; i < QR_COUNT(mixed); i++) assert_true(qr_splitmix64(&seed) == mixed[i]);
    qr_prng_t prng = {{1, 2, 3, 4}};
    for (size_t i = 0; i < QR_COUNT(starred); i++) assert_true(qr_prng_next(&prng) == starred[i]);
    qr_prng_init(&prng, 0);
    uint32_t seen = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t value = qr_prng_between(&prng, 3, 12);
        assert_true(value >= 3 && value <= 12);
        seen |= 1u << value;
    }
    assert_int_equal(seen, 0x1ff8);
    (void)qr_prng_between(&prng, 0, UINT64_MAX);
}

/* The map against a plain table, with few keys so that probes collide and removals move entries. */
static void test_map_model(void **state)
{
    (void)state;
    enum { ENTRIES = 24, KEYS = 64 };
    uint64_t seeds[] = {0, 1, 0x9e3779b97f4a7c15u};
    for (size_t s = 0; s < QR_COUNT(seeds); s++) {
        qr_map_t *map = malloc(qr_map_bytes(ENTRIES));
        assert_non_null(map);
        qr_map_init(map, ENTRIES, seeds[s]);
        uint32_t values[KEYS] = {0}, count = 0, got = 0;
        qr_prng_t prng;
        qr_prng_init(&prng, 7 + s);
        for (uint32_t step = 1; step < 20000; step++) {
            uint64_t pick = qr_prng_below(&prng, KEYS), key = pick == 0 ? 0 : pick == 1 ? UINT64_MAX : pick * 0x100000001u;
            if (qr_prng_one_in(&prng, 2)) {
                bool fits = values[pick] || count < ENTRIES;
                assert_true(qr_map_put(map, key, step) == fits);
                if (fits) count += values[pick] == 0, values[pick] = step;
            } else {
                assert_true(qr_map_remove(map, key) == (values[pick] != 0));
                count -= values[pick] != 0, values[pick] = 0;
            }
            assert_int_equal(map->count, count);
            if (step % 64 == 0) qr_map_check(map);
            pick = qr_prng_below(&prng, KEYS), key = pick == 0 ? 0 : pick == 1 ? UINT64_MAX : pick * 0x100000001u;
            got = 77;
            assert_true(qr_map_get(map, key, &got) == (values[pick] != 0));
            assert_int_equal(got, values[pick] ? values[pick] : 77);
        }
        free(map);
    }
}

/* A map is plain memory: a copy of its bytes is the same map. */
static void test_map_copy(void **state)
{
    (void)state;
    uint64_t bytes = qr_map_bytes(100);
    qr_map_t *map = malloc(bytes), *copy = malloc(bytes);
    qr_map_init(map, 100, 5);
    for (uint64_t key = 0; key < 100; key++) assert_true(qr_map_put(map, key << 32, (uint32_t)key));
    assert_false(qr_map_put(map, 1, 1));
    memcpy(copy, map, bytes);
    memset(map, 0xa5, bytes);
    uint32_t value = 0;
    for (uint64_t key = 0; key < 100; key++) {
        assert_true(qr_map_get(copy, key << 32, &value));
        assert_int_equal(value, key);
    }
    qr_map_check(copy);
    free(map);
    free(copy);
    qr_map_t *none = malloc(qr_map_bytes(0));
    qr_map_init(none, 0, 0);
    assert_false(qr_map_put(none, 1, 1));
    assert_false(qr_map_remove(none, 1));
    free(none);
}

static void test_arena(void **state)
{
    (void)state;
    uint64_t memory[4];
    qr_arena_t arena;
    qr_arena_init(&arena, memory, sizeof memory);
    uint8_t *first = qr_arena_take(&arena, 1), *second = qr_arena_take(&arena, 9);
    assert_ptr_equal(first, memory);
    assert_ptr_equal(second, &memory[1]);
    assert_null(qr_arena_take(&arena, 9));
    assert_null(qr_arena_take(&arena, UINT64_MAX));
    assert_ptr_equal(qr_arena_take(&arena, 8), &memory[3]);
    assert_null(qr_arena_take(&arena, 1));
    assert_non_null(qr_arena_take(&arena, 0));
    qr_arena_reset(&arena);
    assert_ptr_equal(qr_arena_take(&arena, 32), memory);
}

static void test_text(void **state)
{
    (void)state;
    char data[16];
    qr_text_t text;
    qr_text_init(&text, data, sizeof data);
    qr_text_put_u64(&text, UINT64_MAX);
    assert_true(text.cut);
    assert_string_equal(data, "184467440737095");
    qr_text_init(&text, data, sizeof data);
    qr_text_put_i64(&text, INT32_MIN);
    assert_string_equal(data, "-2147483648");
    qr_text_init(&text, data, sizeof data);
    qr_text_put_quoted(&text, "a\"\n\xff", 4, 3);
    assert_string_equal(data, "\"a\\x22\\x0a\"...");
    assert_string_equal(qr_error_name(-QR_E_NEVER_FITS), "NEVER_FITS");
    assert_string_equal(qr_error_name(INT32_MIN), "UNKNOWN_CODE");
    assert_string_equal(qr_error_sentence(QR_E_COUNT), "unknown error code");
}

static void test_nearest(void **state)
{
    (void)state;
    char b[QR_NEAREST_BYTES_MAX + 2];
    assert_int_equal(qr_nearest_edits("kitten", "sitting"), 3);
    assert_int_equal(qr_nearest_edits("saturday", "sunday"), 3);
    assert_int_equal(qr_nearest_edits("", "abc"), 3);
    assert_int_equal(qr_nearest_edits("abc", ""), 3);
    assert_int_equal(qr_nearest_edits("max-lanes", "max_lanes"), 0);
    memset(b, 'x', sizeof b);
    b[sizeof b - 1] = 0;
    assert_int_equal(qr_nearest_edits("x", b), SIZE_MAX); /* longer than a name may be */
    b[sizeof b - 2] = 0;
    assert_int_equal(qr_nearest_edits("x", b), QR_NEAREST_BYTES_MAX - 1);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "chain") == 0) return print_chain();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_published),
        cmocka_unit_test(test_sha256_lengths),
        cmocka_unit_test(test_chain_vectors),
        cmocka_unit_test(test_PI_01),
        cmocka_unit_test(test_PI_04),
        cmocka_unit_test(test_philox_published),
        cmocka_unit_test(test_prng_published),
        cmocka_unit_test(test_map_model),
        cmocka_unit_test(test_map_copy),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
