/* link: qr_io_transfer_digest cmocka */
/* transfer_digest_test.c - SHA-256 beside the reader: TD1-TD4 of transfer_digest.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <openssl/sha.h>
#include <stdlib.h>
#include <time.h>

#include "actors/io/transfer_digest.h"
#include "base/base.h"

enum { PIECE = 128 << 10, BYTES = 24 * PIECE };

static uint64_t state;
static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static uint8_t *bytes;
static int setup(void **unused)
{
    (void)unused;
    bytes = malloc(BYTES);
    for (uint32_t i = 0; bytes && i < BYTES; i++) bytes[i] = (uint8_t)draw(256);
    return bytes ? 0 : -1;
}
static int teardown(void **unused)
{
    (void)unused;
    free(bytes);
    return 0;
}

/* Adds bytes [at, end) in pieces of random sizes. beside: 0 never, 1 always, 2 now and then. */
static void add(qr_digest_t *digest, size_t at, size_t end, uint32_t beside)
{
    while (at < end) {
        size_t count = qr_min_u64(end - at, draw(4) ? PIECE : 1 + draw(PIECE));
        memcpy(qr_digest_buffer(digest), bytes + at, count);
        qr_digest_add(digest, count, beside == 2 ? draw(2) : beside);
        at += count;
    }
}

static void check(qr_digest_t *digest, size_t count)
{
    uint8_t id[32], want[32];
    assert_true(qr_digest_end(digest, id));
    SHA256(bytes, count, want);
    assert_memory_equal(id, want, 32);
}

static void test_pieces_are_digested_in_order(void **unused)
{
    (void)unused;
    qr_digest_t *digest = qr_digest_new(PIECE);
    assert_non_null(digest);
    for (uint32_t i = 0; i < 30; i++) {
        size_t head = draw(3) ? draw(1000) : 0, count = i == 0 ? head : head + draw((uint32_t)(BYTES - head));
        assert_true(qr_digest_begin(digest));
        qr_digest_head(digest, bytes, head);
        add(digest, head, count, i % 3);
        check(digest, count);
    }
    qr_digest_destroy(&digest);
    assert_null(digest);
}

/* Until the helper has digested a piece; with others waiting it has the next one in hand then. */
static void wait_for_helper(qr_digest_t *digest)
{
    uint64_t worked = 0;
    for (uint32_t i = 0; i < 1200000 && !worked; i++) {
        worked = qr_digest_worked_us(digest);
        if (!worked) (void)nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    }
    assert_true(worked > 0);
}

/* What was dropped with pieces waiting and one in hand is in no later digest, and destroying waits for the piece in hand. */
static void test_a_dropped_file_leaves_nothing(void **unused)
{
    (void)unused;
    qr_digest_t *digest = qr_digest_new(BYTES / 4); /* the helper has one of these in hand for a while */
    assert_non_null(digest);
    for (uint32_t i = 0; i < 30; i++) {
        assert_true(qr_digest_begin(digest));
        (void)qr_digest_worked_us(digest);
        for (uint32_t k = 0; k < QR_DIGEST_BUFFERS; k++) {
            memcpy(qr_digest_buffer(digest), bytes, BYTES / 4);
            qr_digest_add(digest, BYTES / 4, true);
        }
        if (i % 2) {
            wait_for_helper(digest);
            qr_digest_drop(digest);
            (void)qr_digest_worked_us(digest);
            (void)nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
            assert_int_equal(qr_digest_worked_us(digest), 0); /* nothing was in hand any more */
        }
        assert_true(qr_digest_begin(digest));
        add(digest, 0, 2 * PIECE + i, 1);
        check(digest, 2 * PIECE + i);
    }
    assert_true(qr_digest_begin(digest));
    add(digest, 0, 3 * PIECE, 1);
    qr_digest_destroy(&digest);
}

/* One thread keeps one buffer; what the helper was given, and no more, is counted; its time is said once. */
static void test_it_says_what_was_given_to_the_helper(void **unused)
{
    (void)unused;
    qr_digest_t *digest = qr_digest_new(PIECE);
    assert_non_null(digest);
    assert_true(qr_digest_begin(digest));
    uint8_t *first = qr_digest_buffer(digest);
    assert_int_equal((uintptr_t)first % 4096, 0);
    add(digest, 0, 4 * PIECE, 0);
    assert_ptr_equal(qr_digest_buffer(digest), first);
    assert_int_equal(qr_digest_offered(digest), 0);
    assert_int_equal(qr_digest_worked_us(digest), 0);
    check(digest, 4 * PIECE);
    /* The helper does what it was given without anybody waiting for it. */
    assert_true(qr_digest_begin(digest));
    memcpy(qr_digest_buffer(digest), bytes, PIECE);
    qr_digest_add(digest, PIECE, true);
    assert_int_equal(qr_digest_offered(digest), 1);
    wait_for_helper(digest);
    assert_int_equal(qr_digest_worked_us(digest), 0);
    check(digest, PIECE);
    qr_digest_destroy(&digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_digested_in_order),
        cmocka_unit_test(test_a_dropped_file_leaves_nothing),
        cmocka_unit_test(test_it_says_what_was_given_to_the_helper),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
