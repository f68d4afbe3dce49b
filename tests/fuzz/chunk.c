/* link: qr_store */
/* chunk.c - any bytes as a chunk file: its header decoded, the file opened, read to its end and verified. Each input is tried as it is, and
 * again with CRC, chain hash and XXH3-128 made right where it is long enough, or nearly everything would end at the first check. What opens
 * must keep the reader's promises. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdio.h>

#include "base/chain.h"
#include "store/chunk.h"
#include "store/crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROOM = 1 << 16 };

static void read_all(int file, const uint8_t *data, size_t size)
{
    static uint8_t room[ROOM];
    qr_chunk_reader_t *reader = NULL;
    qr_chunk_reason_t reason;
    int status = qr_chunk_reader_open_file(file, NULL, NULL, &reader, &reason);
    qr_assert((status == 0) == (reason == QR_CHUNK_INTACT));
    if (status) return;
    const qr_chunk_header_t *header = qr_chunk_reader_header(reader);
    uint64_t left = qr_chunk_payload_bytes(header), at = qr_chunk_payload_offset(header), cursor = 0;
    qr_assert(qr_chunk_header_valid(header) && at + left == size);
    qr_assert(memcmp(qr_chunk_reader_tokens(reader), data + QR_CHUNK_HEADER_BYTES, 4ul * header->count) == 0);
    for (qr_chunk_extent_t extent; qr_chunk_extent_next(header, &cursor, left, &extent);)
        qr_assert(extent.member < header->members && extent.token + extent.count <= header->count);
    while (left) {
        size_t bytes = (size_t)qr_min_u64(left, ROOM);
        qr_assert(qr_chunk_reader_read(reader, room, bytes) == 0 && memcmp(room, data + at, bytes) == 0);
        left -= bytes, at += bytes;
    }
    uint8_t bytes[QR_CHUNK_HEADER_BYTES]; /* what is vouched for is encoded to the same bytes */
    qr_chunk_header_encode(header, bytes);
    qr_assert(memcmp(bytes, data, sizeof bytes) == 0);
    status = qr_chunk_reader_end(reader);
    qr_assert(status == 0 || qr_chunk_reader_reason(reader) == QR_CHUNK_PAYLOAD);
    qr_chunk_reader_close(&reader);
}

static void try(const uint8_t *data, size_t size)
{
    char path[64];
    qr_chunk_verdict_t verdict;
    int file = memfd_create("chunk", MFD_CLOEXEC);
    if (file < 0 || (size && write(file, data, size) != (ssize_t)size)) abort();
    read_all(file, data, size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    qr_assert(qr_chunk_verify(-1, path, NULL, &verdict) == 0);
    (void)close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try(data, size);
    if (size < QR_CHUNK_HEADER_BYTES || size > (1u << 20)) return 0;
    uint8_t *sealed = malloc(size);
    if (!sealed) return 0;
    memcpy(sealed, data, size);
    memcpy(sealed, "QRCHUNK\0\1\0\0\x10\x12\1\1", 16);
    uint32_t count, crc;
    memcpy(&count, sealed + 116, 4);
    if (count <= QR_CHUNK_TOKENS_MAX && size >= QR_CHUNK_HEADER_BYTES + 4ul * count) {
        uint32_t *tokens = malloc(4ul * count + 4);
        size_t payload = (size_t)qr_min_u64(size, qr_round_up(QR_CHUNK_HEADER_BYTES + 4ul * count, QR_CHUNK_ALIGN));
        if (!tokens) abort();
        memcpy(tokens, sealed + QR_CHUNK_HEADER_BYTES, 4ul * count);
        qr_chain_node(sealed + 48, tokens, count, sealed + 80);
        qr_chunk_piece_t piece = {sealed + payload, size - payload};
        if (qr_chunk_digest(tokens, count, &piece, 1, sealed + 160) != 0) abort();
        free(tokens);
    }
    crc = qr_crc32c(0, sealed, 4092);
    memcpy(sealed + 4092, &crc, 4);
    try(sealed, size);
    free(sealed);
    return 0;
}
