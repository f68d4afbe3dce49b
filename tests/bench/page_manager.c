/* link: qr_actor_page_manager qr_actor_residents qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_messages */
/* page_manager.c - what a step and an admission cost page_manager: medians of many calls, handler only. `--tiny` runs each once. */
#include "actors/page_manager.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LANES = 32, LONG = 131072, PAGE = 16, REPEATS_MAX = 4001 };

static qr_given_t given;
static void *state;
static qr_outbox_t outbox;
static qr_message_t messages[8], message;
static uint32_t tokens[LONG];
static uint64_t request;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}
static double say(uint16_t type)
{
    message.type = type;
    message.from = qr_address(1, 1, QR_ROLE_scheduler, 0);
    qr_outbox_reset(&outbox, qr_page_manager_class.max_out);
    double from = now_us();
    qr_page_manager_class.handle(state, &given, &message, &outbox);
    return now_us() - from;
}
static uint64_t reserve(uint32_t count, uint32_t rows_max, double *ret_us)
{
    message.body.pages_reserve =
        (qr_pages_reserve_t){.request_id = ++request, .tokens = {tokens, count}, .rows_max = rows_max, .first_rows = 1};
    *ret_us = say(QR_MESSAGE_pages_reserve);
    if (outbox.messages[0].type != QR_MESSAGE_pages_granted) {
        fprintf(stderr, "not granted\n");
        exit(1);
    }
    return outbox.messages[0].body.pages_granted.route;
}
static double commit(const uint64_t *routes, const uint32_t *rows, const uint32_t *counts, uint32_t count, const uint32_t *ids,
                     uint32_t id_count)
{
    message.body.rows_committed = (qr_rows_committed_t){{routes, count}, {rows, count}, {counts, count}, {ids, id_count}};
    return say(QR_MESSAGE_rows_committed);
}
static double release(uint64_t route)
{
    message.body.route_release = (qr_route_release_t){.route = route, .keep = 1};
    return say(QR_MESSAGE_route_release);
}
static void drop(void)
{
    message.body.cache_drop = (qr_cache_drop_t){1};
    say(QR_MESSAGE_cache_drop);
}
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static void report(const char *what, double *us, uint32_t count)
{
    qsort(us, count, sizeof *us, compare);
    printf("%-62s best %8.2f us, median %8.2f us, 99 %% %8.2f us\n", what, us[0], us[count / 2], us[count * 99 / 100]);
}
static void start(void)
{
    given.params.max_lanes = LANES;
    given.params.fence_max_ms = 1000;
    given.layout = (qr_layout_t){.group_count = 1, .page_tokens = PAGE, .chunk_tokens = 256, .context_tokens = LONG};
    given.layout.groups[0] = (qr_group_t){.pages = 3 * LONG / PAGE};
    uint64_t bytes = qr_page_manager_class.bytes(&given);
    state = calloc(1, bytes);
    qr_page_manager_class.init(state, &given, qr_address(1, 1, QR_ROLE_page_manager, 0));
    qr_outbox_init(&outbox, messages, 4, aligned_alloc(64, QR_OUTBOX_BYTES), QR_OUTBOX_BYTES);
    message.body.start = (qr_start_t){.epoch = 1, .seed = 42};
    say(QR_MESSAGE_start);
    printf("pool %u pages of %u tokens, state %.1f MiB\n", given.layout.groups[0].pages, PAGE, (double)bytes / 1048576.0);
}
static void bench_step(uint32_t repeats)
{
    static double us[REPEATS_MAX];
    uint64_t routes[LANES];
    uint32_t rows[LANES], counts[LANES], ids[LANES];
    double ignored;
    for (uint32_t i = 0; i < LANES; i++) {
        for (uint32_t j = 0; j < 500; j++) tokens[j] = i * 1000 + j;
        routes[i] = reserve(500, 500 + repeats + 1, &ignored);
        rows[i] = 500;
        counts[i] = 0;
    }
    commit(routes, rows, counts, LANES, NULL, 0);
    for (uint32_t n = 0; n < repeats; n++) {
        for (uint32_t i = 0; i < LANES; i++) {
            rows[i]++;
            counts[i] = 1;
            ids[i] = n * 7 + i;
        }
        us[n] = commit(routes, rows, counts, LANES, ids, LANES);
    }
    report("rows_committed, 32 lanes, one row each", us, repeats);
    for (uint32_t i = 0; i < LANES; i++) release(routes[i]);
    drop();
}
static void bench_long(uint32_t repeats)
{
    static double cold[REPEATS_MAX], warm[REPEATS_MAX], fork[REPEATS_MAX], ended[REPEATS_MAX], full[REPEATS_MAX];
    double ignored;
    for (uint32_t n = 0; n < repeats; n++) {
        for (uint32_t j = 0; j < LONG; j++) tokens[j] = n + j * 3;
        uint64_t a = reserve(LONG, LONG, &cold[n]);
        uint32_t rows = LONG, none = 0;
        commit(&a, &rows, &none, 1, NULL, 0);
        ended[n] = release(a);
        uint64_t b = reserve(LONG, LONG, &warm[n]);
        release(b);
        release(reserve(2048 + 5, 2048 + 105, &fork[n]));
        drop();
    }
    report("reserve, 128k-token prompt, nothing resident", cold, repeats);
    report("reserve, 128k-token prompt, all resident", warm, repeats);
    report("reserve, 2,053-token prompt, forked from a resident route", fork, repeats);
    report("route_release of 128k rows, kept", ended, repeats);
    for (uint32_t n = 0; n < repeats + 3; n++) { /* the pool is full of others: everything must be evicted for the next */
        for (uint32_t j = 0; j < LONG; j++) tokens[j] = n * 5 + j * 7;
        uint64_t a = reserve(LONG, LONG, n < 3 ? &ignored : &full[n - 3]);
        uint32_t rows = LONG, none = 0;
        commit(&a, &rows, &none, 1, NULL, 0);
        release(a);
    }
    report("reserve, 128k-token prompt, all of it by eviction", full, repeats);
    drop();
}
int main(int count, char **arguments)
{
    bool tiny = count > 1 && !strcmp(arguments[1], "--tiny");
    start();
    bench_step(tiny ? 10 : 4000);
    bench_long(tiny ? 1 : 41);
    return 0;
}
