/* chunk_write.c - writes a chunk file under a name of its writer's choice (chunk.h). What must be hashed is hashed as it is written. */
#define _GNU_SOURCE /* sync_file_range */
#include "store/chunk.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/mutant.h"
#include "store/chunk_bytes.h"
#include "store/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <unistd.h>

struct qr_chunk_writer {
    int file, failed; /* failed: the first error */
    uint64_t left;    /* bytes of payload */
    EVP_MD_CTX *sha;
    qr_chunk_fast_t *fast;
    uint8_t digest[16];              /* of the header */
    uint8_t head[QR_CHUNK_HEAD_MAX]; /* only while it is written */
};

static int write_all(int file, const uint8_t *bytes, size_t count)
{
    while (count) {
        ssize_t written = write(file, bytes, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return qr_chunk_error_of(errno);
        if (written == 0) return -QR_E_IO;
        bytes += written, count -= (size_t)written;
    }
    return 0;
}

static int failed(qr_chunk_writer_t *w, int status)
{
    if (status && !w->failed) w->failed = status;
    return status;
}

static int head_write(qr_chunk_writer_t *w, const qr_chunk_header_t *header, const uint32_t *tokens)
{
    size_t bytes = (size_t)qr_chunk_payload_offset(header);
    qr_chunk_header_encode(header, w->head);
    memcpy(w->head + QR_CHUNK_HEADER_BYTES, tokens, 4ul * header->count);
    qr_chunk_fast_add(w->fast, tokens, 4ul * header->count);
    if (EVP_DigestUpdate(w->sha, w->head, bytes) != 1) return -QR_E_MEMORY;
    if (qr_store_fail(write_head)) return qr_chunk_error_of(errno);
    return write_all(w->file, w->head, bytes);
}

int qr_chunk_writer_new(int folder, const char *path, const qr_chunk_header_t *header, const uint32_t *tokens,
                        qr_chunk_writer_t **ret_writer)
{
    uint8_t chain[32];
    if (!qr_chunk_header_valid(header)) return -QR_E_INVALID;
    qr_chain_node(header->parent, tokens, header->count, chain);
    if (memcmp(chain, header->chain, 32) != 0) return -QR_E_INVALID;
    qr_chunk_writer_t *w = calloc(1, sizeof *w);
    if (!w) return -QR_E_MEMORY;
    w->file = -1;
    w->left = qr_chunk_payload_bytes(header);
    memcpy(w->digest, header->digest, 16);
    w->sha = EVP_MD_CTX_new(), w->fast = qr_chunk_fast_new();
    int status = w->sha && w->fast && EVP_DigestInit_ex(w->sha, EVP_sha256(), NULL) == 1 ? 0 : -QR_E_MEMORY;
    if (!status) {
        w->file = qr_store_fail(write_open) ? -1 : openat(folder, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        status = w->file < 0 ? qr_chunk_error_of(errno) : head_write(w, header, tokens);
        if (status && w->file >= 0) (void)unlinkat(folder, path, 0);
    }
    if (status)
        qr_chunk_writer_destroy(&w);
    else
        *ret_writer = w;
    return status;
}

int qr_chunk_writer_put(qr_chunk_writer_t *w, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    if (w->failed) return w->failed;
    if (count > w->left) return failed(w, -QR_E_INVALID);
    while (count) {
        size_t piece = (size_t)qr_min_u64(count, 512 << 10);
        int status = qr_store_fail(write_piece) ? qr_chunk_error_of(errno) : write_all(w->file, at, piece);
        if (status) return failed(w, status);
        (void)sync_file_range(w->file, 0, 0, SYNC_FILE_RANGE_WRITE); /* the disk works while we hash; fsync counts */
        if (EVP_DigestUpdate(w->sha, at, piece) != 1) return failed(w, -QR_E_MEMORY);
        qr_chunk_fast_add(w->fast, at, piece);
        at += piece, count -= piece, w->left -= piece;
    }
    return 0;
}

int qr_chunk_writer_end(qr_chunk_writer_t *w, uint8_t ret_id[32])
{
    uint8_t digest[16], id[32];
    if (w->failed) return w->failed;
    if (w->left) return -QR_E_INVALID;
    qr_chunk_fast_end(w->fast, digest);
    if (memcmp(digest, w->digest, 16) != 0 && !QR_MUTANT(548)) return failed(w, -QR_E_FORMAT);
    if (!QR_MUTANT(549) && (qr_store_fail(write_fsync) || fsync(w->file) != 0)) return failed(w, qr_chunk_error_of(errno));
    if (EVP_DigestFinal_ex(w->sha, id, NULL) != 1) return failed(w, -QR_E_MEMORY);
    memcpy(ret_id, id, sizeof id);
    return 0;
}

void qr_chunk_writer_destroy(qr_chunk_writer_t **writer)
{
    qr_chunk_writer_t *w = *writer;
    if (!w) return;
    if (w->file >= 0) (void)close(w->file);
    EVP_MD_CTX_free(w->sha);
    qr_chunk_fast_destroy(&w->fast);
    free(w);
    *writer = NULL;
}
