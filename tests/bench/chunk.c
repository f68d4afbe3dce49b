/* link: qr_store */
/* chunk.c - chunk files of a real size (256 tokens of SmolLM2-135M: 5.9 MB): writing with every sync, reading verified by XXH3-128 (a
 * trusted file) and by SHA-256 as well (its first open), from the page cache and from the disk; beside them, in turn with them, what the
 * bytes cost without any check: memcpy and plain pread. Best and median of the turns. --tiny: a smoke run; FOLDER: where (default: here).
 */
#include "base/chain.h"
#include "base/prng.h"
#include "store/chunk_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TURNS_MAX = 64, FILES = 4 };

static struct {
    uint32_t turns;
    size_t bytes; /* of one payload */
    qr_chunk_header_t header;
    uint32_t tokens[QR_CHUNK_TOKENS_MAX];
    uint8_t *payload, *room;
    qr_store_folder_t folder;
    qr_chunk_files_t *files;
    qr_chunk_name_t names[FILES];
} bench;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "bench_chunk: %s\n", what);
    exit(1);
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* ---- what is measured: all FILES files once ---------------------------------------------------------------------------------- */

static void do_copy(void)
{
    for (int i = 0; i < FILES; i++) memcpy(bench.room + (size_t)i * bench.bytes, bench.payload, bench.bytes);
}
static void drop(void)
{
    bool waits;
    for (int i = 0; i < FILES; i++) must(qr_chunk_files_drop(bench.files, &bench.names[i], &waits) == 0, "drop");
}
static void do_write(void)
{
    for (int i = 0; i < FILES; i++) {
        qr_chunk_writing_t *write;
        bool existed;
        qr_chunk_piece_t piece = {bench.payload, bench.bytes};
        bench.header.parent[0] = (uint8_t)i; /* another file */
        qr_chain_node(bench.header.parent, bench.tokens, bench.header.count, bench.header.chain);
        must(qr_chunk_digest(bench.tokens, bench.header.count, &piece, 1, bench.header.digest) == 0, "digest");
        must(qr_chunk_files_write(bench.files, &bench.header, bench.tokens, NULL, &write) == 0, "begin");
        must(qr_chunk_write_put(write, bench.payload, bench.bytes) == 0, "put");
        must(qr_chunk_write_end(&write, NULL, 0, &bench.names[i], &existed) == 0 && !existed, "publish");
    }
}
static void read_file(int i, bool check)
{
    char path[QR_CHUNK_PATH_BYTES];
    qr_chunk_reader_t *reader;
    qr_chunk_reason_t reason;
    uint8_t *to = bench.room + (size_t)i * bench.bytes;
    qr_chunk_name_path(&bench.names[i], path);
    if (!check) {
        int file = openat(bench.folder.fd, path, O_RDONLY | O_CLOEXEC);
        must(file >= 0 && pread(file, to, bench.bytes, (off_t)qr_chunk_payload_offset(&bench.header)) == (ssize_t)bench.bytes, "pread");
        (void)close(file);
        return;
    }
    must(qr_chunk_reader_open(bench.folder.fd, path, NULL, NULL, &reader, &reason) == 0, "open");
    must(qr_chunk_reader_read(reader, to, bench.bytes) == 0 && qr_chunk_reader_end(reader) == 0, "read");
    qr_chunk_reader_close(&reader);
}
static void do_plain(void)
{
    for (int i = 0; i < FILES; i++) read_file(i, false);
}
static void do_trusted(void)
{
    for (int i = 0; i < FILES; i++) read_file(i, true);
}
static void do_first(void)
{
    for (int i = 0; i < FILES; i++) {
        char path[QR_CHUNK_PATH_BYTES];
        qr_chunk_verdict_t verdict;
        qr_chunk_name_path(&bench.names[i], path);
        must(qr_chunk_verify(bench.folder.fd, path, bench.names[i].id, &verdict) == 0 && verdict.reason == QR_CHUNK_INTACT, "verify");
    }
}
static void forget(void) /* the page cache, as far as it lets us */
{
    for (int i = 0; i < FILES; i++) {
        char path[QR_CHUNK_PATH_BYTES];
        qr_chunk_name_path(&bench.names[i], path);
        int file = openat(bench.folder.fd, path, O_RDONLY | O_CLOEXEC);
        must(file >= 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
        (void)close(file);
    }
}

static const struct row {
    const char *name;
    void (*before)(void), (*work)(void);
} rows[] = {
    {"memcpy of the payload", NULL, do_copy},
    {"write, fsync, publish", drop, do_write},
    {"page cache: pread, no check", NULL, do_plain},
    {"page cache: read, XXH3-128 (trusted)", NULL, do_trusted},
    {"page cache: read, SHA-256 (first open)", NULL, do_first},
    {"disk: pread, no check", forget, do_plain},
    {"disk: read, XXH3-128 (trusted)", forget, do_trusted},
    {"disk: read, SHA-256 (first open)", forget, do_first},
};

static void set_up(const char *folder, bool tiny)
{
    static const qr_chunk_files_config_t config = {.bytes_max = 1u << 30, .chunks_max = 64, .leases_max = 4, .writes_max = 2};
    char message[512];
    qr_prng_t prng;
    qr_prng_init(&prng, 1);
    bench.turns = tiny ? 2 : 25;
    bench.header = (qr_chunk_header_t){.count = tiny ? 16 : 256, .members = 60, .row_bytes = 384, .extent = 1, .shards = 1};
    bench.bytes = (size_t)qr_chunk_payload_bytes(&bench.header);
    bench.payload = malloc(bench.bytes), bench.room = malloc(bench.bytes * FILES);
    must(bench.payload && bench.room, "memory");
    for (size_t i = 0; i < bench.bytes; i++) bench.payload[i] = (uint8_t)qr_prng_next(&prng);
    must(qr_store_folder_open(folder, &bench.folder, message, sizeof message) == 0, message);
    must(qr_chunk_files_open(&bench.folder, &config, NULL, &bench.files, message, sizeof message) == 0, message);
    do_write();
}

int main(int count, char **word)
{
    static double seconds[QR_COUNT(rows)][TURNS_MAX];
    char folder[] = "bench-chunk-XXXXXX", command[64];
    const char *where = NULL;
    bool tiny = false;
    for (int i = 1; i < count; i++)
        if (strcmp(word[i], "--tiny") == 0)
            tiny = true;
        else
            where = word[i];
    must(!where || chdir(where) == 0, "no such folder");
    must(mkdtemp(folder) != NULL, "no scratch folder here");
    set_up(folder, tiny);
    for (uint32_t turn = 0; turn < bench.turns; turn++)
        for (size_t r = 0; r < QR_COUNT(rows); r++) { /* in turn, so that a slow second hits all of them */
            if (rows[r].before) rows[r].before();
            double begin = now_s();
            rows[r].work();
            seconds[r][turn] = now_s() - begin;
        }
    printf("%d files of %zu bytes of payload, %u turns; MB/s\n", FILES, bench.bytes, bench.turns);
    double bytes = (double)bench.bytes * FILES / 1e6;
    for (size_t r = 0; r < QR_COUNT(rows); r++) {
        qsort(seconds[r], bench.turns, sizeof **seconds, by_value);
        printf("%-42s best %8.0f  median %8.0f\n", rows[r].name, bytes / seconds[r][0], bytes / seconds[r][bench.turns / 2]);
    }
    qr_chunk_files_close(&bench.files);
    qr_store_folder_close(&bench.folder);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 ? 0 : 1;
}
