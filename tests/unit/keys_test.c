/* link: qr_io_keys qr_base */
/* Keys files: what is read, what is refused, where and with which words; whose a key is. */
#define _GNU_SOURCE
#include "actors/io/keys.h"
#include "base/error.h"
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define SALT_A "00000000000000000000000000000000000000000000000000000000000000aA"
#define SALT_B "00000000000000000000000000000000000000000000000000000000000000bb"
/* SHA-256 of "abc" (FIPS 180-4, the published example) and of the empty string. */
#define KEY_ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define KEY_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define HEAD "version = 1\ntenant = a\n    salt = " SALT_A "\n"

static qr_keys_t keys;
static char words[512];

static int parse(const char *text) { return qr_keys_parse("k.conf", text, strlen(text), &keys, words, sizeof words); }

static void refuse(const char *text, uint32_t line, const char *expected)
{
    char where[64];
    (void)snprintf(where, sizeof where, "k.conf: line %u: ", line);
    if (parse(text) == 0) fail_msg("took: %s", text);
    if (strncmp(words, where, strlen(where)) != 0 || !strstr(words, expected))
        fail_msg("said \"%s\", not \"%s%s\"", words, where, expected);
    assert_int_equal(keys.key_count, 0);
}

static void test_reads_tenants_and_keys(void **unused)
{
    (void)unused;
    assert_int_equal(parse("# a comment\nversion = 1\n\ntenant = a\n    salt = " SALT_A
                           "\n    lanes = 4\n    pages = 100\n    tokens_per_s = 50\n"
                           "    bytes = 1125899906842624\n    # one more\n    key = " KEY_ABC "  \ntenant=b.c_d-2\n    salt=" SALT_B
                           "\n    key = " KEY_EMPTY "\n        admin = 1\n    key = " SALT_B),
                     0);
    assert_int_equal(keys.tenant_count, 2);
    assert_int_equal(keys.key_count, 3);
    const qr_tenant_t *a = &keys.tenants[0], *b = &keys.tenants[1];
    assert_string_equal(a->name, "a");
    assert_int_equal(a->salt[31], 0xaa);
    assert_int_equal(a->lanes, 4);
    assert_int_equal(a->pages, 100);
    assert_int_equal(a->tokens_per_s, 50);
    assert_true(a->bytes == QR_TENANT_BYTES_MAX);
    assert_string_equal(b->name, "b.c_d-2");
    assert_true(b->lanes == 0 && b->pages == 0 && b->tokens_per_s == 0 && b->bytes == 0);
    assert_true(keys.keys[0].tenant == 0 && !keys.keys[0].admin);
    assert_true(keys.keys[1].tenant == 1 && keys.keys[1].admin);
    assert_true(keys.keys[2].tenant == 1 && !keys.keys[2].admin);
}

static void test_finds_whose_a_key_is(void **unused)
{
    (void)unused;
    uint32_t tenant = 77;
    bool admin = true;
    assert_int_equal(parse(HEAD "    key = " SALT_B "\ntenant = b\n    salt = " SALT_B "\n    key = " KEY_ABC "\n        admin = 1\n"), 0);
    assert_false(qr_keys_find(&keys, "abd", 3, &tenant, &admin));
    assert_false(qr_keys_find(&keys, "", 0, &tenant, &admin));
    assert_false(qr_keys_find(&keys, KEY_ABC, 64, &tenant, &admin)); /* what the file holds opens nothing */
    assert_true(tenant == 77 && admin);
    admin = false;
    assert_true(qr_keys_find(&keys, "abc", 3, &tenant, &admin));
    assert_true(tenant == 1 && admin);
    /* Every bit of the digest counts. */
    for (uint32_t bit = 0; bit < 256; bit++) {
        keys.keys[1].digest[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(qr_keys_find(&keys, "abc", 3, &tenant, &admin));
        keys.keys[1].digest[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_refuses_with_line_and_words(void **unused)
{
    (void)unused;
    refuse("", 1, "expected a tenant with a key");
    refuse("tenant = a\n", 1, "`version = 1` before everything");
    refuse("version = 2\n", 1, "`version = 1`");
    refuse("version = 1\nversion = 1\n", 2, "once");
    refuse("version = 1\n    salt = " SALT_A "\n", 2, "`tenant = NAME` above");
    refuse("version = 1\ntenant = \n", 2, "a name of 1 to 31");
    refuse("version = 1\ntenant = a b\n", 2, "a name of 1 to 31");
    refuse("version = 1\ntenant = aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", 2, "a name of 1 to 31");
    refuse("version = 1\ntenant = .a\n", 2, "a name of 1 to 31");
    refuse("version = 1\ntenant = a\n    key = " KEY_ABC "\n", 2, "no salt");
    refuse("version = 1\ntenant = a\ntenant = b\n", 2, "no salt");
    refuse("version = 1\ntenant = a\n    salt = 12\n", 3, "64 hex digits");
    refuse("version = 1\ntenant = a\n    salt = 000000000000000000000000000000000000000000000000000000000000000g\n", 3, "64 hex digits");
    refuse("version = 1\ntenant = a\n    salt = 0000000000000000000000000000000000000000000000000000000000000000\n", 3, "not all 0");
    refuse(HEAD "tenant = b\n    salt = " SALT_A "\n", 5, "share cached state");
    refuse(HEAD "tenant = a\n", 4, "no tenant above has");
    refuse(HEAD "    salt = " SALT_B "\n", 4, "once a tenant");
    refuse(HEAD, 3, "expected a tenant with a key");
    refuse(HEAD "    key = my-secret\n", 4, "never the key itself");
    refuse(HEAD "    key = " KEY_ABC "\n    key = " KEY_ABC "\n", 5, "not above already");
    refuse(HEAD "    key = " KEY_ABC "\n        admin = 0\n", 5, "`admin = 1`");
    refuse(HEAD "    key = " KEY_ABC "\n        admin = 1\n        admin = 1\n", 6, "`admin = 1`");
    refuse(HEAD "        admin = 1\n", 4, "right below a key");
    refuse(HEAD "    key = " KEY_ABC "\n    lanes = 2\n        admin = 1\n", 6, "right below a key");
    refuse(HEAD "    lanes = 0\n", 4, "from 1 to 1024");
    refuse(HEAD "    lanes = 1025\n", 4, "from 1 to 1024");
    refuse(HEAD "    lanes = 1\n    lanes = 1\n", 5, "once a tenant");
    refuse(HEAD "    pages = -1\n", 4, "from 1 to 67108864");
    refuse(HEAD "    tokens_per_s = 1.5\n", 4, "from 1 to 10000000");
    refuse(HEAD "    bytes = 99999999999999999999\n", 4, "from 1 to 1125899906842624");
    refuse(HEAD "    lane = 3\n", 4, "expected one of salt, lanes");
    refuse(HEAD "  lanes = 3\n", 4, "indentation");
    refuse(HEAD "    lanes\n", 4, "`name = value`");
    refuse(HEAD "\tlanes = 3\n", 4, "spaces instead of tabs");
    refuse("version = 1\r\n", 1, "plain ASCII");
    refuse("\xef\xbb\xbfversion = 1\n", 1, "plain ASCII");
    static const char zero[] = "version = 1\0\n";
    assert_true(qr_keys_parse("k", zero, sizeof zero - 1, &keys, words, sizeof words) < 0);
}

/* B2: a key that was put anywhere into the file is not in the sentence. */
static void test_errors_repeat_nothing(void **unused)
{
    (void)unused;
    static const char *const forms[] = {"%s\n",
                                        "%s = 1\n",
                                        "version = %s\n",
                                        "version = 1\ntenant = %s %s\n",
                                        HEAD "    key = %s\n",
                                        HEAD "    %s = 3\n",
                                        HEAD "    lanes = %s\n",
                                        HEAD "    salt = %s\n",
                                        HEAD "        admin = %s\n"};
    for (size_t i = 0; i < QR_COUNT(forms); i++) {
        char text[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof text, forms[i], "qk-verysecret", "qk-verysecret");
#pragma GCC diagnostic pop
        assert_true(parse(text) < 0);
        assert_null(strstr(words, "verysecret"));
    }
}

static void test_bounds(void **unused)
{
    (void)unused;
    static char text[QR_KEYS_FILE_BYTES_MAX + 2];
    size_t at = (size_t)snprintf(text, sizeof text, "version = 1\n");
    for (uint32_t i = 0; i < QR_TENANTS_MAX; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "tenant = t%u\n    salt = %064x\n    key = %064x\n", i, i + 1, i + 1);
    assert_int_equal(parse(text), 0);
    assert_int_equal(keys.tenant_count, QR_TENANTS_MAX);
    (void)snprintf(text + at, sizeof text - at, "tenant = more\n");
    refuse(text, 2 + 3 * QR_TENANTS_MAX, "at most 256 tenants");
    at = (size_t)snprintf(text, sizeof text, HEAD);
    for (uint32_t i = 0; i < QR_KEYS_MAX; i++) at += (size_t)snprintf(text + at, sizeof text - at, "    key = %064x\n", i + 1);
    assert_int_equal(parse(text), 0);
    assert_int_equal(keys.key_count, QR_KEYS_MAX);
    (void)snprintf(text + at, sizeof text - at, "    key = " KEY_ABC "\n");
    refuse(text, 4 + QR_KEYS_MAX, "at most 1024 keys");
    memset(text, '\n', sizeof text - 1);
    assert_int_equal(qr_keys_parse("k", text, sizeof text - 1, &keys, words, sizeof words), -QR_E_LIMIT);
    assert_non_null(strstr(words, "262144 bytes"));
}

static void put_file(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_the_file_is_its_owners_alone(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/keys-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/keys.conf", folder);
    qr_keys_t *read = NULL;
    assert_int_equal(qr_keys_read(path, &read, words, sizeof words), -QR_E_IO);
    assert_non_null(strstr(words, path));
    static const struct {
        mode_t mode;
        int code;
    } modes[] = {{0600, 0},
                 {0400, 0},
                 {0640, -QR_E_PERMISSION},
                 {0604, -QR_E_PERMISSION},
                 {0620, -QR_E_PERMISSION},
                 {0700, -QR_E_PERMISSION},
                 {0644, -QR_E_PERMISSION}};
    for (size_t i = 0; i < QR_COUNT(modes); i++) {
        (void)unlink(path);
        put_file(path, HEAD "    key = " KEY_ABC "\n", modes[i].mode);
        assert_int_equal(qr_keys_read(path, &read, words, sizeof words), modes[i].code);
        if (modes[i].code) {
            assert_non_null(strstr(words, "chmod it to 0600"));
            continue;
        }
        assert_int_equal(read->key_count, 1);
        free(read);
    }
    (void)unlink(path);
    put_file(path, HEAD "    key = x\n", 0600);
    assert_int_equal(qr_keys_read(path, &read, words, sizeof words), -QR_E_INVALID);
    assert_non_null(strstr(words, "line 4"));
    assert_int_equal(qr_keys_read(folder, &read, words, sizeof words), -QR_E_INVALID);
    (void)unlink(path);
    (void)rmdir(folder);
}

static void test_new_keys_are_known_to_their_lines(void **unused)
{
    (void)unused;
    char bearer[2][QR_BEARER_BYTES + 1], lines[2][512], text[2048];
    for (int i = 0; i < 2; i++) assert_int_equal(qr_keys_make(i ? "bob" : "alice", bearer[i], lines[i], words, sizeof words), 0);
    assert_string_not_equal(bearer[0], bearer[1]);
    (void)snprintf(text, sizeof text, "version = 1\n%s%s", lines[0], lines[1]);
    assert_null(strstr(text, bearer[0]));
    assert_int_equal(parse(text), 0);
    assert_string_equal(keys.tenants[0].name, "alice");
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t tenant = 9;
        bool admin = true;
        assert_int_equal(strlen(bearer[i]), QR_BEARER_BYTES);
        assert_true(qr_keys_find(&keys, bearer[i], QR_BEARER_BYTES, &tenant, &admin));
        assert_true(tenant == i && !admin);
    }
    assert_int_equal(qr_keys_make("a b", bearer[0], lines[0], words, sizeof words), -QR_E_INVALID);
}

static void test_the_documented_example(void **unused)
{
    (void)unused;
    static char text[8192];
    FILE *file = fopen("examples/deploy/keys.conf", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    if (parse(text)) fail_msg("%s", words);
    assert_int_equal(keys.tenant_count, 2);
    assert_int_equal(keys.tenants[0].tokens_per_s, 400);
    assert_true(keys.keys[2].admin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_tenants_and_keys),
        cmocka_unit_test(test_finds_whose_a_key_is),
        cmocka_unit_test(test_refuses_with_line_and_words),
        cmocka_unit_test(test_errors_repeat_nothing),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_the_file_is_its_owners_alone),
        cmocka_unit_test(test_new_keys_are_known_to_their_lines),
        cmocka_unit_test(test_the_documented_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
