/* link: qr_messages */
/* codec.c - what one message costs to encode and decode, best and median of many turns, and what is allocated on the way (counted
 * by standing in front of malloc). Beside it the price of msgpack-c behind the cursor, which decides that the cursor serves alone.
 * Bar: batch_run of 32 lanes and batch_done, encode and decode of both, under 1 us without an allocation. --tiny: a smoke run. */
#include "base/prng.h"
#include "messages/codec.h"
#include "messages/schema.h"

#include <malloc.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LANES = 32, TURNS_MAX = 2000, BUFFER_BYTES = 1 << 16 };

/* ---- counting allocations: this program's malloc, calloc and realloc are glibc's with a counter in front -------------------- */

static uint64_t allocations;
#if !defined(QR_SANITIZED) && defined(__GLIBC__)
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
void *malloc(size_t bytes) { return allocations++, __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return allocations++, __libc_calloc(count, bytes); }
void *realloc(void *memory, size_t bytes) { return allocations++, __libc_realloc(memory, bytes); }
#endif

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* ---- what is measured ----------------------------------------------------------------------------------------------- */

static struct {
    uint8_t bytes[2][BUFFER_BYTES];
    uint64_t arena_memory[BUFFER_BYTES / 8];
    qr_arena_t arena;
    qr_message_t messages[2], read;
    size_t counts[2];
    uint32_t message_count;
    msgpack_zone zone;
} bench;
static volatile uint64_t sink;

static void do_encode(void)
{
    for (uint32_t i = 0; i < bench.message_count; i++)
        bench.counts[i] = (size_t)qr_codec_encode(&bench.messages[i], bench.bytes[i], BUFFER_BYTES);
}

static void do_decode(void)
{
    for (uint32_t i = 0; i < bench.message_count; i++) {
        qr_arena_reset(&bench.arena);
        if (qr_codec_decode(bench.bytes[i], bench.counts[i], &bench.arena, &bench.read) != 0) abort();
        sink = sink + bench.read.sequence;
    }
}

static void do_both(void)
{
    do_encode();
    do_decode();
}

static void do_peek(void)
{
    qr_peek_t peek;
    for (uint32_t i = 0; i < bench.message_count; i++) sink = sink + (uint64_t)qr_codec_peek(bench.bytes[i], bench.counts[i], &peek);
}

/* msgpack-c alone into a cleared zone: what it would add behind the cursor, before its objects are copied anywhere. */
static void do_msgpack(void)
{
    for (uint32_t i = 0; i < bench.message_count; i++) {
        msgpack_object object;
        size_t at = 0;
        msgpack_zone_clear(&bench.zone);
        if (msgpack_unpack((const char *)bench.bytes[i], bench.counts[i], &at, &bench.zone, &object) != MSGPACK_UNPACK_SUCCESS) abort();
        sink = sink + object.via.array.size;
    }
}

typedef struct {
    double best, median;
    uint64_t allocations;
} figure_t;

static figure_t measure(void (*what)(void), int turns, int loops)
{
    static double samples[TURNS_MAX];
    for (int i = 0; i < 10; i++) what();
    uint64_t before = allocations;
    for (int turn = 0; turn < turns; turn++) {
        double start = now_ns();
        for (int i = 0; i < loops; i++) what();
        samples[turn] = (now_ns() - start) / loops;
    }
    figure_t figure = {.allocations = allocations - before};
    qsort(samples, (size_t)turns, sizeof *samples, by_value);
    figure.best = samples[0];
    figure.median = samples[turns / 2];
    return figure;
}

static uint64_t measure_row(const char *name, int turns, int loops, double *ret_both)
{
    do_encode();
    figure_t encode = measure(do_encode, turns, loops), decode = measure(do_decode, turns, loops), both = measure(do_both, turns, loops);
    figure_t peek = measure(do_peek, turns, loops), other = measure(do_msgpack, turns, loops);
    printf("%-34s %5zu B  encode %4.0f / %4.0f  decode %4.0f / %4.0f  both %4.0f / %4.0f  peek %3.0f / %3.0f  msgpack_unpack %4.0f / %4.0f "
           "ns  mallocs %llu\n",
           name, bench.counts[0] + (bench.message_count > 1 ? bench.counts[1] : 0), encode.best, encode.median, decode.best, decode.median,
           both.best, both.median, peek.best, peek.median, other.best, other.median,
           (unsigned long long)(encode.allocations + decode.allocations + both.allocations + peek.allocations));
    if (ret_both) *ret_both = both.median;
    return encode.allocations + decode.allocations + both.allocations + peek.allocations;
}

/* ---- messages of the sizes of host.md §2 and of a decode step ----------------------------------------------------------------- */

static uint64_t lanes[64];
static uint32_t words[6][512];

static void fill(void)
{
    qr_prng_t prng;
    qr_prng_init(&prng, 1);
    for (uint32_t i = 0; i < QR_COUNT(lanes); i++) lanes[i] = qr_handle(i, 1 + (uint32_t)qr_prng_below(&prng, 100));
    for (size_t i = 0; i < QR_COUNT(words); i++)
        for (size_t j = 0; j < QR_COUNT(words[i]); j++) words[i][j] = (uint32_t)qr_prng_below(&prng, 49152);
}

static qr_message_t head(uint16_t type, uint8_t from, uint8_t to)
{
    return (qr_message_t){
        .type = type, .from = qr_address(1, 0, from, 0), .to = qr_address(1, 0, to, 0), .epoch = 1717, .sequence = 123456};
}

static void make_small(void)
{
    bench.message_count = 1;
    bench.messages[0] = head(QR_MESSAGE_lane_closed, QR_ROLE_executor, QR_ROLE_scheduler);
    bench.messages[0].body.lane_closed = (qr_lane_closed_t){.lane = 7};
}

static void make_middle(void)
{
    bench.message_count = 1;
    bench.messages[0] = head(QR_MESSAGE_tokens_taken, QR_ROLE_router, QR_ROLE_worker);
    bench.messages[0].body.tokens_taken = (qr_tokens_taken_t){{lanes, 16}, {words[0], 16}, {words[1], 16}};
}

static void make_large(void)
{
    bench.message_count = 1;
    bench.messages[0] = head(QR_MESSAGE_request_deltas, QR_ROLE_gateway, QR_ROLE_http);
    bench.messages[0].body.request_deltas = (qr_request_deltas_t){{lanes, 64},    {words[0], 64}, {(const uint8_t *)words[1], 256},
                                                                  {words[2], 64}, {words[3], 64}, {words[4], 64}};
}

static void make_step(void)
{
    static const uint32_t ones[LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t zeros[LANES];
    bench.message_count = 2;
    bench.messages[0] = head(QR_MESSAGE_batch_run, QR_ROLE_scheduler, QR_ROLE_executor);
    bench.messages[0].body.batch_run = (qr_batch_run_t){.batch = 100000,
                                                        .lanes = {lanes, LANES},
                                                        .starts = {words[0], LANES},
                                                        .row_counts = {ones, LANES},
                                                        .flags = {ones, LANES},
                                                        .tokens = {words[1], LANES}};
    bench.messages[1] = head(QR_MESSAGE_batch_done, QR_ROLE_executor, QR_ROLE_scheduler);
    bench.messages[1].body.batch_done = (qr_batch_done_t){.batch = 100000,
                                                          .lanes = {lanes, LANES},
                                                          .statuses = {zeros, LANES},
                                                          .tokens = {words[2], LANES},
                                                          .logprob_bits = {words[3], LANES},
                                                          .step_us = 2700};
}

/* The same with every optional column present: copies and windowed pages. */
static void make_full_step(void)
{
    make_step();
    qr_batch_run_t *run = &bench.messages[0].body.batch_run;
    run->copy_sources = run->copy_targets = run->window_lanes = run->window_pages = (qr_u64s_t){lanes, 4};
    run->copy_rows = run->copy_groups = run->window_groups = run->window_blocks = (qr_u32s_t){words[4], 4};
}

int main(int count, char **arguments)
{
    bool tiny = count > 1 && strcmp(arguments[1], "--tiny") == 0;
    int turns = tiny ? 20 : TURNS_MAX, loops = tiny ? 20 : 200;
    uint64_t allocated = 0;
    double step = 0;
    qr_arena_init(&bench.arena, bench.arena_memory, sizeof bench.arena_memory);
    if (!msgpack_zone_init(&bench.zone, 8192)) return 1;
    fill();
    printf("codec, best / median of %d turns of %d; compiler %s\n", turns, loops, __VERSION__);
    make_small();
    allocated += measure_row("lane_closed", turns, loops, NULL);
    make_middle();
    allocated += measure_row("tokens_taken, 16 requests", turns, loops, NULL);
    make_large();
    allocated += measure_row("request_deltas, 64 requests", turns, loops, NULL);
    make_full_step();
    allocated += measure_row("batch_run + batch_done, all columns", turns, loops, NULL);
    make_step();
    allocated += measure_row("batch_run + batch_done, 32 lanes", turns, loops, &step);
    printf("step: %.0f ns of 1000, %llu allocations\n", step, (unsigned long long)allocated);
    msgpack_zone_destroy(&bench.zone);
#ifdef QR_SANITIZED
    tiny = true;
#endif
    if (allocated != 0) return 1;
    return tiny || step < 1000 ? 0 : 1;
}
