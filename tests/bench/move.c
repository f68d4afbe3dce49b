/* link: qr_io_storage qr_io_storage_parts qr_io_storage_holds qr_io_storage_ram qr_io_storage_errand qr_io_transfer qr_io_transfer_spill qr_io_transfer_digest qr_actor_roles qr_store qr_model qr_messages cmocka */
/* move.c - what it takes to restore 2,048 tokens of a SmolLM2-135M shape (30 layers, 2 slabs, rows of 384 bytes: 23,040 bytes a token) out
 * of chunk files in the page cache, through storage and transfer and their encoded messages: as a trusted file, and as one opened for the
 * first time since boot, and the same out of the RAM tier. Beside it, in the same run, a plain and a non-temporal copy of as many bytes.
 * usage: bench_move [--tiny | rounds [tokens]]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "kernels/stream.h"
#include "tests/conversations/moves.h"

enum { CHUNK = 256, PARTS_MAX = 64 };

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
/* Of all threads: what a machine with other work cannot lengthen. */
static double processor_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Of rounds that began at `began_ms` of processor time. */
static void report(const char *what, double *ms, uint32_t rounds, uint64_t bytes, double began_ms)
{
    double processor = (processor_ms() - began_ms) / rounds;
    qsort(ms, rounds, sizeof *ms, by_value);
    printf("%-44s best %7.2f ms  median %7.2f ms  %8.0f MB/s at the median, %7.2f ms of processors\n", what, ms[0], ms[rounds / 2],
           (double)bytes / ms[rounds / 2] / 1e3, processor);
}

static qr_hash_t parents[PARTS_MAX], chains[PARTS_MAX];
static uint32_t tokens[PARTS_MAX * CHUNK];

static void must(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "bench_move: %s\n", what);
    exit(1);
}

static uint32_t out_of_ram; /* parts of the last restore */
static double restore(moves_t *m, uint32_t parts, bool whole)
{
    qr_message_t answer;
    uint64_t pages[CHUNK / 16];
    double began = now_ms();
    out_of_ram = 0;
    for (uint32_t p = 0; p < parts; p++) {
        must(moves_ask(m, QR_ROLE_restore_streamer, QR_ROLE_storage, QR_MESSAGE_chunk_lease,
                       &(qr_chunk_lease_t){.key = p, .chain = chains[p]}, &answer) &&
                 !answer.body.chunk_leased.reason,
             "no lease");
        qr_chunk_leased_t leased = answer.body.chunk_leased;
        out_of_ram += leased.kept != 0;
        for (uint32_t i = 0; i < CHUNK / 16; i++) pages[i] = qr_handle(16 + (p * 16 + i) * 7 % (parts * 16), 1); /* scattered */
        qr_page_upload_t ask = {.key = p,
                                .content = leased.content,
                                .bytes = leased.bytes,
                                .whole = whole,
                                .kept = leased.kept,
                                .keep = leased.keep,
                                .parent = parents[p],
                                .chain = chains[p],
                                .start = p * CHUNK,
                                .tokens = {tokens + p * CHUNK, CHUNK},
                                .from_row = p * CHUNK,
                                .first_block = p * 16,
                                .pages = {pages, 16}};
        must(moves_ask(m, QR_ROLE_restore_streamer, QR_ROLE_transfer, QR_MESSAGE_page_upload, &ask, &answer) &&
                 !answer.body.page_uploaded.reason,
             "an upload failed");
        must(moves_ask(m, QR_ROLE_restore_streamer, QR_ROLE_storage, QR_MESSAGE_chunk_release,
                       &(qr_chunk_release_t){.lease = leased.lease, .kept = leased.keep != 0}, &answer),
             "no release");
    }
    return now_ms() - began;
}

int main(int argc, char **argv)
{
    bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    uint32_t rounds = argc > 1 && !tiny ? (uint32_t)atoi(argv[1]) : tiny ? 1 : 3;
    uint32_t parts = (argc > 2 ? (uint32_t)atoi(argv[2]) : (tiny ? 1 : 2) * CHUNK) / CHUNK;
    must(rounds > 0 && rounds <= 1000 && parts > 0 && parts <= PARTS_MAX, "usage: bench_move [--tiny | rounds 1-1000 [tokens 256-16384]]");
    moves_config_t config = {.page_tokens = 16, .chunk_tokens = CHUNK, .pages = 16 + parts * 16, .layers = 30, .dim = 96};
    moves_t *m = moves_new(&config);
    must(qr_decoder_row_bytes(m->given->decoder) == 384, "the tiny model has another shape");
    uint64_t bytes = (uint64_t)parts * CHUNK * 23040, source[16];
    qr_message_t answer;
    double *ms = calloc(rounds, sizeof *ms);
    uint8_t *from = aligned_alloc(4096, bytes), *to = aligned_alloc(4096, bytes);
    must(ms && from && to, "not enough memory");
    for (uint32_t i = 0; i < 16; i++) source[i] = qr_handle(i, 1);
    for (uint32_t p = 0; p < parts; p++) {
        for (uint32_t i = 0; i < CHUNK; i++) tokens[p * CHUNK + i] = p * 7 + i;
        if (p) parents[p] = chains[p - 1];
        qr_chain_node(parents[p].bytes, tokens + p * CHUNK, CHUNK, chains[p].bytes);
        moves_fill(m, 0, p * CHUNK, CHUNK, p * 16, source, 7);
        qr_page_download_t down = {.rows = CHUNK, .start = p * CHUNK, .first_block = p * 16, .pages = {source, 16}};
        must(moves_ask(m, QR_ROLE_checkpoint_writer, QR_ROLE_transfer, QR_MESSAGE_page_download, &down, &answer) &&
                 !answer.body.page_downloaded.reason,
             "a download failed");
        qr_chunk_write_t write = {.parent = parents[p], .chain = chains[p], .start = p * CHUNK, .tokens = {tokens + p * CHUNK, CHUNK}};
        must(moves_ask(m, QR_ROLE_checkpoint_writer, QR_ROLE_storage, QR_MESSAGE_chunk_write, &write, &answer) &&
                 !answer.body.chunk_written.reason,
             "a write failed");
    }
    printf("%u tokens, %.1f MB, files in the page cache, %u rounds, one thread and the digest's\n", parts * CHUNK, (double)bytes / 1e6,
           rounds);
    memset(from, 1, bytes), memset(to, 2, bytes);
    double began = processor_ms();
    for (uint32_t r = 0; r < rounds; r++) ms[r] = restore(m, parts, false);
    report("restore, trusted (XXH3-128)", ms, rounds, bytes, began);
    began = processor_ms();
    for (uint32_t r = 0; r < rounds; r++) ms[r] = restore(m, parts, true);
    report("restore, first open since boot (and SHA-256)", ms, rounds, bytes, began);
    qr_staging_config_t kept = m->given->staging->config;
    kept.kept = true, kept.slots = parts;
    moves_halt(m, false);
    must(qr_staging_new(&kept, &m->given->ram) == 0, "not enough memory for the RAM tier");
    moves_boot(m, 2);
    began = processor_ms();
    ms[0] = restore(m, parts, true);
    report("restore that also fills RAM, first open", ms, 1, bytes, began);
    began = processor_ms();
    for (uint32_t r = 0; r < rounds; r++) ms[r] = restore(m, parts, false);
    must(out_of_ram == parts, "not everything lies in RAM");
    report("restore out of RAM (XXH3-128)", ms, rounds, bytes, began);
    began = processor_ms();
    for (uint32_t r = 0; r < rounds; r++) {
        double from_ms = now_ms();
        memcpy(to, from, bytes);
        ms[r] = now_ms() - from_ms;
        must(to[bytes - 1] == from[bytes - 1], "memcpy");
    }
    report("limit: memcpy", ms, rounds, bytes, began);
    began = processor_ms();
    for (uint32_t r = 0; r < rounds; r++) {
        double from_ms = now_ms();
        qr_stream_copy(to, from, bytes);
        ms[r] = now_ms() - from_ms;
        must(to[bytes - 1] == from[bytes - 1], "stream copy");
    }
    report("limit: non-temporal copy", ms, rounds, bytes, began);
    free(ms), free(from), free(to);
    moves_destroy(m);
    return 0;
}
