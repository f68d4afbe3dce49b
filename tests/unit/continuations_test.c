/* link: qr_store qr_io_recall qr_io_http_continuation qr_io_http_json qr_model qr_schema qr_base */
/* continuations_test.c - saved continuations on a real folder: bounds, tenants, time, damage, what a kill leaves; and what of a response is
 * remembered until it is saved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

#include "actors/io/http_continuation.h"
#include "actors/io/recall.h"
#include "base/error.h"
#include "store/continuations.h"
#include "store/crc32c.h"
#include "tests/unit/store_folder.h"

static const uint32_t ids[] = {5, 6, 7};
static const uint8_t text[] = "text\xFE";

static qr_continuation_t make(uint8_t number, const char *tenant, uint64_t expires_us)
{
    qr_continuation_t x = {
        .head = {.id = {number}, .created_us = number, .expires_us = expires_us, .token_count = 3, .text_bytes = sizeof text - 1},
        .fingerprint = {9},
        .scope = {7, 8},
        .salt_bytes = 2,
        .salt = {1, 2},
        .tokens = ids,
        .text = text};
    strcpy(x.head.tenant, tenant);
    strcpy(x.head.name, "name");
    strcpy(x.head.owner, "o");
    return x;
}

static qr_continuations_t *open_at(const char *store, uint32_t most)
{
    char message[400] = "";
    qr_continuations_t *c = NULL;
    assert_int_equal(qr_continuations_open(store, most, &c, message, sizeof message), 0);
    return c;
}

static int put(qr_continuations_t *c, uint8_t number, const char *tenant, uint64_t expires_us, uint64_t now_us)
{
    qr_continuation_t x = make(number, tenant, expires_us);
    return qr_continuations_put(c, &x, now_us);
}

static int get(qr_continuations_t *c, uint8_t number, const char *tenant, uint64_t now_us)
{
    const uint8_t id[16] = {number};
    qr_continuation_t x;
    return qr_continuations_get(c, id, tenant, now_us, &x);
}

static int drop(qr_continuations_t *c, uint8_t number, const char *tenant)
{
    const uint8_t id[16] = {number};
    return qr_continuations_drop(c, id, tenant, 1);
}

static void test_what_was_put_comes_back(void **state)
{
    (void)state;
    char store[STORE_PATH];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 4);
    assert_int_equal(put(c, 1, "a", 0, 1), 0);
    assert_int_equal(put(c, 1, "a", 0, 1), -QR_E_IN_USE);
    for (int again = 0; again < 2; again++) {
        const uint8_t id[16] = {1};
        qr_continuation_t x, expected = make(1, "a", 0);
        assert_int_equal(qr_continuations_get(c, id, "a", 1, &x), 0);
        assert_memory_equal(x.tokens, ids, sizeof ids);
        assert_memory_equal(x.text, text, sizeof text - 1);
        assert_memory_equal(x.fingerprint, expected.fingerprint, 32);
        assert_memory_equal(x.scope, expected.scope, 32);
        assert_memory_equal(x.salt, expected.salt, sizeof x.salt);
        assert_memory_equal(x.head.id, expected.head.id, 16);
        assert_string_equal(x.head.name, "name");
        assert_string_equal(x.head.owner, "o");
        assert_int_equal(x.head.created_us, 1);
        qr_continuations_close(&c);
        c = open_at(store, 4); /* as after a kill: nothing is written at the end */
    }
    assert_int_equal(drop(c, 1, "a"), 0);
    assert_int_equal(drop(c, 1, "a"), -QR_E_NOT_FOUND);
    qr_continuations_close(&c);
    c = open_at(store, 4);
    assert_int_equal(qr_continuations_count(c), 0);
    qr_continuations_close(&c);
    store_remove(store);
}

static void test_fork_of_what_was_read(void **state)
{
    (void)state;
    char store[STORE_PATH];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 4);
    const uint8_t id[16] = {1}, second[16] = {2};
    qr_continuation_t x;
    assert_int_equal(put(c, 1, "a", 0, 1), 0);
    assert_int_equal(qr_continuations_get(c, id, "a", 1, &x), 0);
    x.head.id[0] = 2;
    strcpy(x.head.name, "a longer name than before");
    assert_int_equal(qr_continuations_put(c, &x, 1), 0);
    assert_int_equal(qr_continuations_get(c, second, "a", 1, &x), 0);
    assert_memory_equal(x.text, text, sizeof text - 1);
    assert_memory_equal(x.tokens, ids, sizeof ids);
    qr_continuations_close(&c);
    store_remove(store);
}

static void test_tenants_and_time(void **state)
{
    (void)state;
    char store[STORE_PATH];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 8);
    assert_int_equal(put(c, 1, "a", 100, 1), 0);
    assert_int_equal(put(c, 2, "b", 0, 1), 0);
    assert_int_equal(put(c, 3, "a", 0, 1), 0);
    assert_int_equal(get(c, 1, "b", 1), -QR_E_NOT_FOUND);
    assert_int_equal(drop(c, 1, "b"), -QR_E_NOT_FOUND);
    assert_int_equal(get(c, 1, "a", 99), 0);
    assert_int_equal(get(c, 1, "a", 100), -QR_E_NOT_FOUND);
    uint32_t at = 0;
    assert_int_equal(qr_continuations_next(c, "a", 99, &at)->id[0], 1);
    assert_int_equal(qr_continuations_next(c, "a", 99, &at)->id[0], 3);
    assert_null(qr_continuations_next(c, "a", 99, &at));
    at = 0;
    assert_int_equal(qr_continuations_next(c, "a", 100, &at)->id[0], 3);
    qr_continuations_close(&c);
    store_remove(store);
}

static void test_bound(void **state)
{
    (void)state;
    char store[STORE_PATH];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 2);
    assert_int_equal(put(c, 1, "a", 100, 1), 0);
    assert_int_equal(put(c, 2, "b", 0, 1), 0);
    assert_int_equal(put(c, 3, "a", 0, 99), -QR_E_NO_SPACE);
    assert_int_equal(get(c, 1, "a", 99), 0);
    assert_int_equal(put(c, 3, "a", 0, 100), 0);
    assert_int_equal(put(c, 4, "a", 0, 100), -QR_E_NO_SPACE);
    qr_continuation_t x = make(5, "a", 9);
    x.head.pin = true;
    assert_int_equal(qr_continuations_put(c, &x, 1), -QR_E_INVALID);
    x = make(5, "a", 0);
    x.head.token_count = QR_CONTEXT_MAX + 1;
    assert_int_equal(qr_continuations_put(c, &x, 1), -QR_E_LIMIT);
    assert_int_equal(get(c, 2, "b", 1000), 0);
    qr_continuations_close(&c);
    store_remove(store);
}

/* Every byte of a file is checked: one wrong anywhere, or any shorter file, is set aside and said. */
static void test_damage(void **state)
{
    (void)state;
    char store[STORE_PATH], path[STORE_PATH + 100], aside[STORE_PATH + 120];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 4);
    assert_int_equal(put(c, 1, "a", 0, 1), 0);
    snprintf(path, sizeof path, "%s/continuations/01000000000000000000000000000000", store);
    snprintf(aside, sizeof aside, "%s.damaged", path);
    uint8_t whole[4096], bad[4096];
    int fd = open(path, O_RDONLY);
    ssize_t count = read(fd, whole, sizeof whole);
    assert_true(count > 112);
    close(fd);
    qr_continuations_close(&c);
    for (ssize_t at = 0; at < 2 * count; at++) {
        memcpy(bad, whole, (size_t)count);
        ssize_t bytes = at < count ? count : at - count;
        if (at < count) bad[at] ^= 0x40;
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(fd, bad, (size_t)bytes), bytes);
        close(fd);
        c = open_at(store, 4);
        assert_int_equal(qr_continuations_count(c), 0);
        assert_non_null(strstr(qr_continuations_report(c), "damaged"));
        assert_string_equal(qr_continuations_report(c), "");
        assert_int_equal(access(aside, F_OK), 0);
        assert_int_not_equal(access(path, F_OK), 0);
        qr_continuations_close(&c);
    }
    store_remove(store);
}

/* Files of version 1 had no scope: made here of one of today by leaving it out. */
static void test_the_version_before_is_read(void **state)
{
    (void)state;
    char store[STORE_PATH], path[STORE_PATH + 100];
    const uint8_t id[16] = {1};
    uint8_t now[4096], old[4096];
    static const uint8_t none[32];
    qr_continuation_t x;
    store_folder(store);
    qr_continuations_t *c = open_at(store, 4);
    assert_int_equal(put(c, 1, "a", 0, 1), 0);
    qr_continuations_close(&c);
    snprintf(path, sizeof path, "%s/continuations/01000000000000000000000000000000", store);
    int fd = open(path, O_RDWR);
    ssize_t count = read(fd, now, sizeof now);
    assert_true(count > 144);
    memcpy(old, now, 112);
    memcpy(old + 112, now + 144, (size_t)count - 144);
    uint32_t bytes = (uint32_t)count - 32, crc = qr_crc32c(0, old + 16, bytes - 16);
    old[7] = 1;
    memcpy(old + 8, &bytes, 4);
    memcpy(old + 12, &crc, 4);
    assert_int_equal(pwrite(fd, old, bytes, 0), bytes);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
    c = open_at(store, 4);
    assert_int_equal(qr_continuations_get(c, id, "a", 1, &x), 0);
    assert_memory_equal(x.tokens, ids, sizeof ids);
    assert_memory_equal(x.text, text, sizeof text - 1);
    assert_memory_equal(x.scope, none, 32);
    qr_continuations_close(&c);
    store_remove(store);
}

static void test_half_written_is_swept(void **state)
{
    (void)state;
    char store[STORE_PATH], path[STORE_PATH + 100];
    store_folder(store);
    qr_continuations_t *c = open_at(store, 4);
    qr_continuations_close(&c);
    snprintf(path, sizeof path, "%s/continuations/01000000000000000000000000000000.new", store);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "QRCONT", 6), 6);
    close(fd);
    c = open_at(store, 4);
    assert_int_equal(qr_continuations_count(c), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    qr_continuations_close(&c);
    store_remove(store);
}

/* ---- recall ----------------------------------------------------------------------------------------------------------------------- */

static const uint32_t offsets[] = {0, 1, 2, 4, 5, 5}; /* a, b, é, its first byte, an end that prints nothing */
static const uint8_t vocabulary_bytes[] = "ab\xC3\xA9\xC3", flags[5] = {0, 0, 0, 0, QR_TOKEN_SPECIAL};
static const qr_vocabulary_t vocabulary = {5, 0, offsets, vocabulary_bytes, flags};

static qr_recall_t *remember(qr_recalls_t *t, uint64_t id, const char *shown, const uint32_t *tokens, uint64_t count, size_t prompt)
{
    qr_http_request_t request = {.kind = QR_INPUT_TEXT, .text = malloc(prompt + 1), .text_bytes = prompt};
    qr_recall_t *r = qr_recall_new(t, &request, (qr_bytes_t){0}, (qr_u32s_t){0});
    assert_null(request.text);
    r->answer_id = id;
    r->tenant = 1;
    qr_recall_add(t, r, (qr_bytes_t){(const uint8_t *)shown, strlen(shown)}, tokens, count);
    return r;
}

static void test_what_is_kept_of_an_answer(void **state)
{
    (void)state;
    static const struct {
        const char *shown;
        uint32_t tokens[4], count, kept;
        size_t bytes;
    } cases[] = {
        {"ab", {0, 1}, 2, 2, 2},
        {"ab", {0, 1, 4}, 3, 2, 2}, /* the end token is not kept */
        {"a", {0, 1}, 2, 1, 1},     /* a stop string took b */
        {"a\xC3\xA9", {0, 2}, 2, 2, 3},
        {"a\xEF\xBF\xBD", {0, 3}, 2, 1, 1}, /* half a character was shown as something else */
        {"", {0}, 0, 0, 0},
        {"b", {0, 1}, 2, 0, 0},
    };
    for (size_t i = 0; i < QR_COUNT(cases); i++) {
        qr_recalls_t t = {.window_us = 10};
        qr_recall_t *r = remember(&t, 7, cases[i].shown, cases[i].tokens, cases[i].count, 3);
        qr_recall_keep(&t, &r, &vocabulary, 5);
        const qr_recall_t *found = qr_recall_find(&t, 7, false, 1, 14);
        assert_non_null(found);
        assert_int_equal(found->drawn.count, 4 * cases[i].kept);
        assert_int_equal(found->shown.count, cases[i].bytes);
        assert_null(qr_recall_find(&t, 7, false, 2, 14));
        assert_null(qr_recall_find(&t, 7, true, 1, 14));
        assert_null(qr_recall_find(&t, 8, false, 1, 14));
        assert_null(qr_recall_find(&t, 7, false, 1, 15)); /* the window is over */
        qr_recalls_done(&t);
        assert_int_equal(t.bytes, 0);
    }
}

static void test_recall_is_bounded(void **state)
{
    (void)state;
    qr_recalls_t t = {.window_us = 1000000};
    for (uint64_t i = 0; i < QR_RECALLS_MAX + 5; i++) {
        qr_recall_t *r = remember(&t, i + 1, "a", (const uint32_t[]){0}, 1, 8);
        qr_recall_keep(&t, &r, &vocabulary, 1);
    }
    assert_int_equal(t.count, QR_RECALLS_MAX);
    assert_null(qr_recall_find(&t, 5, false, 1, 2));
    assert_non_null(qr_recall_find(&t, 6, false, 1, 2));
    for (uint64_t i = 0; i < 100; i++) { /* of a megabyte each: the oldest leave */
        qr_recall_t *r = remember(&t, 5000 + i, "a", (const uint32_t[]){0}, 1, QR_TEXT_BYTES_MAX);
        qr_recall_keep(&t, &r, &vocabulary, 1);
        assert_true(t.bytes <= QR_RECALL_BYTES_MAX);
    }
    assert_non_null(qr_recall_find(&t, 5099, false, 1, 2));
    assert_null(qr_recall_find(&t, 5000, false, 1, 2));
    qr_recalls_done(&t);
    /* All under way: what comes beyond the bound is not remembered, and nothing is lost of those before. */
    static qr_recall_t *open[70];
    for (uint64_t i = 0; i < 70; i++) open[i] = remember(&t, i + 1, "a", (const uint32_t[]){0}, 1, QR_TEXT_BYTES_MAX);
    for (uint64_t i = 0; i < 70; i++) qr_recall_keep(&t, &open[i], &vocabulary, 1);
    assert_non_null(qr_recall_find(&t, 1, false, 1, 2));
    assert_null(qr_recall_find(&t, 70, false, 1, 2));
    qr_recalls_done(&t);
    assert_int_equal(t.bytes, 0);
    t.window_us = 0;
    qr_http_request_t request = {.kind = QR_INPUT_TEXT};
    assert_null(qr_recall_new(&t, &request, (qr_bytes_t){0}, (qr_u32s_t){0}));
}

static void test_ids_as_text(void **state)
{
    (void)state;
    uint8_t id[16];
    assert_true(qr_http_continuation_id("cont-000102030405060708090a0b0c0d0eff", 37, id));
    assert_int_equal(id[15], 255);
    assert_false(qr_http_continuation_id("cont-000102030405060708090a0b0c0d0eff", 36, id));
    assert_false(qr_http_continuation_id("cont-000102030405060708090A0b0c0d0eff", 37, id));
    assert_false(qr_http_continuation_id("conx-000102030405060708090a0b0c0d0eff", 37, id));
    qr_http_buffer_t out = {0};
    qr_http_put_continuation_id(&out, id);
    qr_http_put_render(&out, (qr_bytes_t){(const uint8_t *)"<\xFE"
                                                           "a\"\xFF>\xFE",
                                          7});
    qr_http_put_bytes(&out, "", 1);
    assert_string_equal(out.data, "cont-000102030405060708090a0b0c0d0eff<a\\\">");
    qr_http_buffer_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_put_comes_back),
        cmocka_unit_test(test_fork_of_what_was_read),
        cmocka_unit_test(test_tenants_and_time),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_the_version_before_is_read),
        cmocka_unit_test(test_half_written_is_swept),
        cmocka_unit_test(test_what_is_kept_of_an_answer),
        cmocka_unit_test(test_recall_is_bounded),
        cmocka_unit_test(test_ids_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
