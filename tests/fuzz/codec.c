/* link: qr_messages */
/* codec.c - any bytes as a message: no crash, no read beyond them, the verdict and the values of msgpack-c (codec_judge.h), and
 * what was read is written and read again as the same. An input that begins with 0xff is a seed for the generators instead, so
 * that deep messages are reached from the first minute. */
#include "base/error.h"
#include "messages/print.h"
#include "messages/random.h"
#include "tests/codec_judge.h"

#include <stdio.h>
#include <stdlib.h>

enum { BYTES_MAX = 1 << 16, ARENA_BYTES = 1 << 18 };

static uint8_t made[BYTES_MAX], first[BYTES_MAX], second[BYTES_MAX];
static uint64_t arena_memory[ARENA_BYTES / 8], made_memory[ARENA_BYTES / 8];

static void expect(bool fact, const char *what)
{
    if (fact) return;
    fprintf(stderr, "codec fuzz: %s\n", what);
    abort();
}

static void check_legal(const uint8_t *bytes, size_t count, const qr_message_t *message)
{
    static uint64_t again_memory[ARENA_BYTES / 8];
    qr_message_t again;
    qr_peek_t peek;
    qr_arena_t arena;
    char line[512];
    qr_text_t text;
    expect(qr_codec_peek(bytes, count, &peek) == 0 && peek.type == message->type && peek.from == message->from && peek.to == message->to,
           "peek disagrees");
    int64_t written = qr_codec_encode(message, first, sizeof first);
    expect(written > 0 && (size_t)written <= count, "the canonical form is longer"); /* shortest integers, no empty tail */
    qr_arena_init(&arena, again_memory, sizeof again_memory);
    expect(qr_codec_decode(first, (size_t)written, &arena, &again) == 0, "its own bytes are refused");
    expect(qr_codec_encode(&again, second, sizeof second) == written && memcmp(first, second, (size_t)written) == 0, "not canonical");
    qr_text_init(&text, line, sizeof line);
    qr_print_message(&text, message);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static judgement_t j;
    static msgpack_zone *zone;
    qr_message_t message;
    qr_arena_t arena;
    if (!zone) zone = msgpack_zone_new(8192);
    if (count > BYTES_MAX) return 0;
    if (count == 9 && bytes[0] == 0xff) {
        uint64_t seed;
        qr_prng_t prng;
        memcpy(&seed, bytes + 1, sizeof seed);
        qr_prng_init(&prng, seed);
        qr_arena_init(&arena, made_memory, sizeof made_memory);
        qr_random_message(&prng, QR_RANDOM_PLAIN, qr_random_type(&prng), &arena, &message);
        int64_t length = qr_codec_encode(&message, made, sizeof made);
        expect(length > 0, "a random message has no bytes");
        count = seed & 1 ? (size_t)length : qr_random_spoil(&prng, made, (size_t)length, sizeof made);
        bytes = made;
    }
    uint8_t *exact = calloc(1, count ? count : 1); /* so that the sanitizer sees a read one byte too far */
    qr_copy(exact, bytes, count);
    qr_arena_init(&arena, arena_memory, sizeof arena_memory);
    int rc = qr_codec_decode(exact, count, &arena, &message);
    msgpack_zone_clear(zone);
    judge(exact, count, zone, &j);
    expect(rc <= 0 && j.legal == (rc == 0), "msgpack-c's verdict differs");
    if (rc == 0) {
        expect(judge_agrees(&j, &message), "msgpack-c reads other values");
        check_legal(exact, count, &message);
    }
    free(exact);
    return 0;
}
