/* link: qr_store */
/* chunk_file.c - writes a seeded chunk file, for tests/oracle/chunk.sh: chunk_file FILE SEED. */
#include "base/chain.h"
#include "base/prng.h"
#include "store/chunk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "chunk_file: %s\n", what);
    exit(1);
}
static void fill(qr_prng_t *prng, void *to, size_t count)
{
    for (size_t i = 0; i < count; i++) ((uint8_t *)to)[i] = (uint8_t)qr_prng_next(prng);
}

int main(int count, char **word)
{
    static uint32_t tokens[QR_CHUNK_TOKENS_MAX];
    qr_prng_t prng;
    qr_chunk_writer_t *writer;
    uint8_t id[32];
    must(count == 3, "usage: chunk_file FILE SEED");
    qr_prng_init(&prng, strtoull(word[2], NULL, 10));
    qr_chunk_header_t h = {.start = (uint32_t)qr_prng_below(&prng, 5000),
                           .count = 1 + (uint32_t)qr_prng_below(&prng, qr_prng_one_in(&prng, 4) ? 4096 : 300),
                           .members = 1 + (uint32_t)qr_prng_below(&prng, 12),
                           .row_bytes = 2 + 2 * (uint32_t)qr_prng_below(&prng, 60),
                           .group = (uint16_t)qr_prng_below(&prng, 4),
                           .extent = (uint16_t)(1 + qr_prng_below(&prng, 2)),
                           .shards = (uint16_t)(1 + qr_prng_below(&prng, 3)),
                           .tail = qr_prng_one_in(&prng, 3)};
    h.shard = (uint16_t)qr_prng_below(&prng, h.shards);
    fill(&prng, h.fingerprint, 32), fill(&prng, h.parent, 32), fill(&prng, tokens, 4ul * h.count);
    size_t bytes = (size_t)qr_chunk_payload_bytes(&h);
    uint8_t *payload = malloc(bytes);
    must(payload != NULL, "memory");
    fill(&prng, payload, bytes);
    qr_chunk_piece_t piece = {payload, bytes};
    qr_chain_node(h.parent, tokens, h.count, h.chain);
    must(qr_chunk_digest(tokens, h.count, &piece, 1, h.digest) == 0, "digest");
    must(qr_chunk_writer_new(AT_FDCWD, word[1], &h, tokens, &writer) == 0, "the file cannot be made");
    must(qr_chunk_writer_put(writer, payload, bytes) == 0 && qr_chunk_writer_end(writer, id) == 0, "the file cannot be written");
    qr_chunk_writer_destroy(&writer);
    free(payload);
    return 0;
}
