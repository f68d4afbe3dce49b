/* chunk_stand.h - for tests of chunk files: a scratch folder, seeded chunks, and hands that damage files. Include after cmocka. */
#ifndef CHUNK_STAND_H
#define CHUNK_STAND_H

#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"
#include "store/chunk_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct sample {
    qr_chunk_header_t header;
    uint32_t tokens[QR_CHUNK_TOKENS_MAX];
    uint8_t *payload; /* malloced [bytes] */
    size_t bytes;
} sample_t;

/* Makes header.chain, header.digest and the payload's size right again. */
static inline void sample_seal(sample_t *s)
{
    qr_chunk_piece_t piece = {s->payload, s->bytes};
    qr_chain_node(s->header.parent, s->tokens, s->header.count, s->header.chain);
    assert_int_equal(qr_chunk_digest(s->tokens, s->header.count, &piece, 1, s->header.digest), 0);
}

/* A chunk of `count` tokens and `members` members with rows of row_bytes; its bytes are the seed's. */
static inline void sample_make(sample_t *s, uint64_t seed, uint32_t count, uint32_t members, uint32_t row_bytes)
{
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    memset(s, 0, sizeof *s);
    s->header = (qr_chunk_header_t){
        .start = 256, .count = count, .members = members, .row_bytes = row_bytes, .extent = QR_CHUNK_EXTENT_TOKEN, .shards = 1};
    memset(s->header.fingerprint, 0xf1, 32);
    for (uint32_t i = 0; i < 32; i++) s->header.parent[i] = (uint8_t)qr_prng_next(&prng);
    for (uint32_t i = 0; i < count; i++) s->tokens[i] = (uint32_t)qr_prng_next(&prng) % 50000;
    s->bytes = (size_t)qr_chunk_payload_bytes(&s->header);
    s->payload = malloc(s->bytes + 1);
    assert_non_null(s->payload);
    for (size_t i = 0; i < s->bytes; i++) s->payload[i] = (uint8_t)qr_prng_next(&prng);
    sample_seal(s);
}
static inline void sample_free(sample_t *s)
{
    free(s->payload);
    s->payload = NULL;
}

/* ---- scratch folders --------------------------------------------------------------------------------------------------- */

static inline void remove_tree(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char below[1024];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if ((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= sizeof below) abort();
        if (lstat(below, &status) == 0 && S_ISDIR(status.st_mode))
            remove_tree(below);
        else
            (void)unlink(below);
    }
    if (folder) (void)closedir(folder);
    (void)rmdir(path);
}

/* Regular files below path and their bytes. */
static inline uint64_t tree_bytes(const char *path, uint32_t *files)
{
    uint64_t bytes = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char below[1024];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if ((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= sizeof below) abort();
        if (lstat(below, &status) != 0) continue;
        if (S_ISDIR(status.st_mode))
            bytes += tree_bytes(below, files);
        else
            bytes += (uint64_t)status.st_size, *files += 1;
    }
    if (folder) (void)closedir(folder);
    return bytes;
}

/* Memory where there is some: a sync of the disk takes milliseconds, and a kill loses as little. TMPDIR names a disk. */
static inline const char *scratch_base(void)
{
    const char *named = getenv("TMPDIR");
    return named ? named : access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

/* ---- stores -------------------------------------------------------------------------------------------------------------- */

typedef struct store {
    char path[256];
    qr_store_folder_t folder;
    qr_chunk_files_t *files;
    char message[512];
} store_t;

static const qr_chunk_files_config_t roomy = {.bytes_max = 1u << 30, .chunks_max = 64, .leases_max = 16, .writes_max = 4};

static inline int store_try(store_t *s, const qr_chunk_files_config_t *config, const qr_chunk_adoption_t *adoption)
{
    int status = qr_store_folder_open(s->path, &s->folder, s->message, sizeof s->message);
    if (!status) status = qr_chunk_files_open(&s->folder, config, adoption, &s->files, s->message, sizeof s->message);
    return status;
}
static inline void store_open(store_t *s, const qr_chunk_files_config_t *config)
{
    int status = store_try(s, config, NULL);
    if (status) print_error("%s\n", s->message);
    assert_int_equal(status, 0);
}
static inline void store_close(store_t *s)
{
    qr_chunk_files_close(&s->files);
    qr_store_folder_close(&s->folder);
}
static inline void store_new(store_t *s, const qr_chunk_files_config_t *config)
{
    memset(s, 0, sizeof *s);
    (void)snprintf(s->path, sizeof s->path, "%s/quire-store-XXXXXX", scratch_base());
    assert_non_null(mkdtemp(s->path));
    if (config) store_open(s, config);
}
static inline void store_end(store_t *s)
{
    store_close(s);
    remove_tree(s->path);
}
static inline qr_chunk_files_stats_t stats_of(const store_t *s)
{
    qr_chunk_files_stats_t stats;
    qr_chunk_files_check(s->files);
    qr_chunk_files_stats(s->files, &stats);
    return stats;
}
/* Bytes and number of the files in chunks/, tails/ and tmp/. */
static inline uint64_t store_disk(const store_t *s, uint32_t *ret_files)
{
    static const char *const folders[] = {"chunks", "tails", "tmp"};
    uint64_t bytes = 0;
    *ret_files = 0;
    for (size_t i = 0; i < QR_COUNT(folders); i++) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s/%s", s->path, folders[i]);
        bytes += tree_bytes(path, ret_files);
    }
    return bytes;
}
/* Publishes a sample; the status of the first call that fails. */
static inline int publish(store_t *s, const sample_t *sample, const uint8_t *owner, uint64_t value, qr_chunk_name_t *ret_name,
                          bool *ret_existed)
{
    qr_chunk_writing_t *write = NULL;
    bool existed;
    int status = qr_chunk_files_write(s->files, &sample->header, sample->tokens, owner, &write);
    for (size_t at = 0, piece = 4000; !status && at < sample->bytes; at += piece, piece = piece * 3 + 1)
        status = qr_chunk_write_put(write, sample->payload + at, (size_t)qr_min_u64(piece, sample->bytes - at));
    if (status) return qr_chunk_write_cancel(&write), status;
    return qr_chunk_write_end(&write, NULL, value, ret_name, ret_existed ? ret_existed : &existed);
}
static inline void full_path(const store_t *s, const qr_chunk_name_t *name, char path[512])
{
    char below[QR_CHUNK_PATH_BYTES];
    qr_chunk_name_path(name, below);
    (void)snprintf(path, 512, "%s/%s", s->path, below);
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

/* Reads a file as a restore does: open with identity, payload in pieces, end. 0 only if everything agreed; what was read is compared with
 * `sample` when it is accepted: `wrong` says that bytes other than the sample's were vouched for. */
static inline int restore(int folder, const char *path, const sample_t *sample, qr_chunk_reason_t *ret_reason, bool *wrong)
{
    qr_chunk_reader_t *reader = NULL;
    int status = qr_chunk_reader_open(folder, path, &sample->header, sample->tokens, &reader, ret_reason);
    *wrong = false;
    if (status) return status;
    size_t bytes = (size_t)qr_chunk_payload_bytes(qr_chunk_reader_header(reader));
    uint8_t *payload = malloc(bytes);
    assert_non_null(payload);
    for (size_t at = 0, piece = 1000; !status && at < bytes; at += piece, piece = piece * 2 + 7)
        status = qr_chunk_reader_read(reader, payload + at, (size_t)qr_min_u64(piece, bytes - at));
    if (!status) status = qr_chunk_reader_end(reader);
    *ret_reason = qr_chunk_reader_reason(reader);
    if (!status) *wrong = bytes != sample->bytes || memcmp(payload, sample->payload, bytes) != 0;
    free(payload);
    qr_chunk_reader_close(&reader);
    return status;
}

/* ---- whole files ------------------------------------------------------------------------------------------------------------ */

static inline uint8_t *file_read(const char *path, size_t *ret_bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *ret_bytes = (size_t)ftell(file);
    uint8_t *bytes = malloc(*ret_bytes + 1);
    assert_non_null(bytes);
    rewind(file);
    assert_int_equal(fread(bytes, 1, *ret_bytes, file), *ret_bytes);
    fclose(file);
    return bytes;
}
static inline void file_write(const char *path, const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (count) assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

#endif
