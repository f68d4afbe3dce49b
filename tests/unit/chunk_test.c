/* link: qr_store */
/* chunk_test.c - one chunk file: its bytes against an independent program's (tests/oracle/chunk.py), every reason for which one is refused,
 * the payload's shape, and the writer. Hostile headers: SE-09 as far as one file shows it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/sha256.h"
#include "store/crc32c.h"
#include "tests/unit/chunk_stand.h"
#include "tests/unit/chunk_vectors.h"

static char scratch[64];
static char path[128];
static sample_t sample;

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(scratch, sizeof scratch, "%s/quire-chunk-XXXXXX", scratch_base());
    if (!mkdtemp(scratch)) return -1;
    (void)snprintf(path, sizeof path, "%s/file", scratch);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    sample_free(&sample);
    remove_tree(scratch);
    return 0;
}

static void id_read(const char *hex, uint8_t id[32])
{
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        id[i] = (uint8_t)byte;
    }
}

/* Writes the sample to `path`; its id. */
static void sample_write(const sample_t *s, uint8_t ret_id[32])
{
    qr_chunk_writer_t *writer;
    (void)unlink(path);
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &s->header, s->tokens, &writer), 0);
    assert_int_equal(qr_chunk_writer_put(writer, s->payload, s->bytes), 0);
    assert_int_equal(qr_chunk_writer_end(writer, ret_id), 0);
    qr_chunk_writer_destroy(&writer);
    assert_null(writer);
}

/* ---- digests and bytes ---------------------------------------------------------------------------------------------------------- */

/* RFC 3720 B.4 and the check value of the CRC catalogues. */
static void test_crc32c(void **state)
{
    (void)state;
    uint8_t bytes[1000];
    assert_int_equal(qr_crc32c(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(qr_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(qr_crc32c(0, bytes, 32), 0x62a8ab43);
    for (uint32_t i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(qr_crc32c(0, bytes, 32), 0x46dd794e);
    for (size_t cut = 0; cut <= 32; cut++) assert_int_equal(qr_crc32c(qr_crc32c(0, bytes, cut), bytes + cut, 32 - cut), 0x46dd794e);
    assert_int_equal(qr_crc32c(7, bytes, 0), 7);
}

/* Files of the other program are read, and their content written again is the same file to the last byte. */
static void test_vectors_in_both_directions(void **state)
{
    (void)state;
    for (size_t v = 0; v < QR_COUNT(chunk_vectors); v++) {
        const chunk_vector_t *vector = &chunk_vectors[v];
        uint8_t *bytes = calloc(1, vector->bytes), id[32], digest[32];
        assert_non_null(bytes);
        for (uint32_t i = 0; i < vector->run_count; i++) memcpy(bytes + vector->runs[i].at, vector->runs[i].bytes, vector->runs[i].count);
        id_read(vector->id, id);
        qr_sha256(bytes, vector->bytes, digest);
        assert_memory_equal(digest, id, 32);
        file_write(path, bytes, vector->bytes);
        qr_chunk_verdict_t verdict;
        assert_int_equal(qr_chunk_verify(AT_FDCWD, path, id, &verdict), 0);
        assert_int_equal(verdict.reason, QR_CHUNK_INTACT);
        assert_memory_equal(verdict.id, id, 32);
        sample_t again = {.header = verdict.header};
        again.bytes = (size_t)qr_chunk_payload_bytes(&again.header);
        again.payload = bytes + qr_chunk_payload_offset(&again.header);
        memcpy(again.tokens, bytes + QR_CHUNK_HEADER_BYTES, 4ul * again.header.count);
        memset(digest, 0, sizeof digest);
        sample_write(&again, digest);
        assert_memory_equal(digest, id, 32);
        size_t count;
        uint8_t *written = file_read(path, &count);
        assert_int_equal(count, vector->bytes);
        assert_memory_equal(written, bytes, count);
        free(written);
        free(bytes);
    }
}

/* The worked example of the specification is the first vector. */
static void test_example_of_the_document(void **state)
{
    (void)state;
    FILE *document = fopen("store/FORMAT.md", "r");
    char line[512];
    uint8_t bytes[16384] = {0}, digest[32], id[32];
    uint32_t lines = 0;
    assert_non_null(document);
    while (fgets(line, sizeof line, document)) {
        unsigned at, byte;
        if (strspn(line, "0123456789abcdef") != 8 || strncmp(line + 8, "  ", 2) != 0 || sscanf(line, "%8x", &at) != 1) continue;
        for (char *word = line + 10; at < sizeof bytes && sscanf(word, "%2x", &byte) == 1; word += 3) {
            bytes[at++] = (uint8_t)byte;
            if (word[2] != ' ') break;
        }
        lines++;
    }
    fclose(document);
    assert_true(lines > 10);
    qr_sha256(bytes, chunk_vectors[0].bytes, digest);
    id_read(chunk_vectors[0].id, id);
    assert_memory_equal(digest, id, 32);
}

/* ---- every reason ------------------------------------------------------------------------------------------------------------------ */

enum { FIELD_CRC = 4092 };
/* Puts a number into the header, makes its CRC right if asked, and says what decoding makes of it. */
static qr_chunk_reason_t decode_with(size_t at, uint64_t number, size_t bytes, bool seal)
{
    uint8_t header[QR_CHUNK_HEADER_BYTES];
    qr_chunk_header_t decoded;
    qr_chunk_header_encode(&sample.header, header);
    memcpy(header + at, &number, bytes);
    uint32_t crc = qr_crc32c(0, header, FIELD_CRC);
    if (seal) memcpy(header + FIELD_CRC, &crc, 4);
    return qr_chunk_header_decode(header, sizeof header, qr_chunk_file_bytes(&sample.header), &decoded);
}

static void test_se_09_header_fields_are_checked_one_by_one(void **state)
{
    (void)state;
    sample_free(&sample);
    sample_make(&sample, 1, 16, 4, 64);
    static const struct {
        size_t at;
        uint64_t number;
        size_t bytes;
        qr_chunk_reason_t reason;
    } rows[] = {
        {0, 'X', 1, QR_CHUNK_MAGIC},
        {0, 0, 8, QR_CHUNK_TORN},
        {7, 1, 1, QR_CHUNK_MAGIC},
        {8, 2, 2, QR_CHUNK_VERSION_OTHER},
        {8, 999, 2, QR_CHUNK_VERSION_OTHER},
        {8, 0x8002, 2, QR_CHUNK_VERSION_OTHER},
        {10, 4095, 2, QR_CHUNK_VERSION_OTHER},
        {12, 0x1e, 1, QR_CHUNK_LAYOUT},
        {13, 2, 1, QR_CHUNK_LAYOUT},
        {14, 255, 1, QR_CHUNK_LAYOUT},
        {15, 1, 1, QR_CHUNK_LAYOUT},
        {112, UINT32_MAX, 4, QR_CHUNK_LAYOUT},
        {112, QR_CONTEXT_MAX, 4, QR_CHUNK_LAYOUT},
        {116, 0, 4, QR_CHUNK_LAYOUT},
        {116, 17, 4, QR_CHUNK_LAYOUT},
        {116, 1u << 31, 4, QR_CHUNK_LAYOUT},
        {116, 4097, 4, QR_CHUNK_LAYOUT},
        {122, 0, 2, QR_CHUNK_LAYOUT},
        {122, 3, 2, QR_CHUNK_LAYOUT},
        {124, 1, 2, QR_CHUNK_LAYOUT},
        {126, 0, 2, QR_CHUNK_LAYOUT},
        {128, 0, 4, QR_CHUNK_LAYOUT},
        {128, 5, 4, QR_CHUNK_LAYOUT},
        {128, UINT32_MAX, 4, QR_CHUNK_LAYOUT},
        {132, 0, 4, QR_CHUNK_LAYOUT},
        {132, 63, 4, QR_CHUNK_LAYOUT},
        {132, 128, 4, QR_CHUNK_LAYOUT},
        {132, 1u << 31, 4, QR_CHUNK_LAYOUT},
        {136, 4097, 8, QR_CHUNK_LAYOUT},
        {136, 0, 8, QR_CHUNK_LAYOUT},
        {144, 4096, 8, QR_CHUNK_LAYOUT},
        {144, UINT64_MAX, 8, QR_CHUNK_LAYOUT},
        {152, 16 * 4 * 64 - 1, 8, QR_CHUNK_LAYOUT},
        {152, 16 * 4 * 64 + 1, 8, QR_CHUNK_LAYOUT},
        {152, 1ull << 63, 8, QR_CHUNK_LAYOUT},
        {176, 1, 1, QR_CHUNK_LAYOUT},
        {4091, 1, 1, QR_CHUNK_LAYOUT},
    };
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        qr_chunk_reason_t reason = decode_with(rows[i].at, rows[i].number, rows[i].bytes, true);
        if (reason != rows[i].reason) print_error("field at %zu: %s\n", rows[i].at, qr_chunk_reason_name(reason));
        assert_int_equal(reason, rows[i].reason);
    }
    assert_int_equal(decode_with(8, 0x8001, 2, true), QR_CHUNK_INTACT); /* a tail */
}

/* Without a right CRC no byte of the header may change, and none may be missing. */
static void test_header_bytes(void **state)
{
    (void)state;
    sample_free(&sample);
    sample_make(&sample, 2, 16, 4, 64);
    uint8_t header[QR_CHUNK_HEADER_BYTES];
    qr_chunk_header_t decoded;
    uint64_t bytes = qr_chunk_file_bytes(&sample.header);
    qr_chunk_header_encode(&sample.header, header);
    assert_int_equal(qr_chunk_header_decode(header, sizeof header, bytes, &decoded), QR_CHUNK_INTACT);
    assert_memory_equal(&decoded, &sample.header, sizeof decoded);
    for (size_t at = 0; at < sizeof header; at++) {
        header[at] ^= 0x10;
        assert_int_not_equal(qr_chunk_header_decode(header, sizeof header, bytes, &decoded), QR_CHUNK_INTACT);
        header[at] ^= 0x10;
    }
    assert_int_equal(decode_with(16, 1, 1, false), QR_CHUNK_HEADER);
    for (size_t have = 0; have < sizeof header; have += 5)
        assert_int_equal(qr_chunk_header_decode(header, have, bytes, &decoded), QR_CHUNK_TRUNCATED);
    assert_int_equal(qr_chunk_header_decode(header, sizeof header, bytes - 1, &decoded), QR_CHUNK_TRUNCATED);
    assert_int_equal(qr_chunk_header_decode(header, sizeof header, bytes + 1, &decoded), QR_CHUNK_LAYOUT);
    for (size_t from = 512; from < sizeof header; from += 512) { /* sectors that were never written */
        uint8_t torn[QR_CHUNK_HEADER_BYTES] = {0};
        memcpy(torn, header, from);
        assert_int_equal(qr_chunk_header_decode(torn, sizeof torn, bytes, &decoded), QR_CHUNK_TORN);
    }
}

static void test_identity_is_compared(void **state)
{
    (void)state;
    sample_free(&sample);
    sample_make(&sample, 3, 16, 4, 64);
    qr_chunk_header_t want = sample.header;
    uint32_t tokens[16];
    memcpy(tokens, sample.tokens, sizeof tokens);
    assert_int_equal(qr_chunk_header_match(&sample.header, sample.tokens, &want, tokens), QR_CHUNK_INTACT);
    assert_int_equal(qr_chunk_header_match(&sample.header, sample.tokens, NULL, NULL), QR_CHUNK_INTACT);
    memset(want.digest, 0, 16); /* not part of the question */
    assert_int_equal(qr_chunk_header_match(&sample.header, sample.tokens, &want, NULL), QR_CHUNK_INTACT);
#define DIFFERS(change, reason)                                                                                                            \
    do {                                                                                                                                   \
        want = sample.header;                                                                                                              \
        change;                                                                                                                            \
        assert_int_equal(qr_chunk_header_match(&sample.header, sample.tokens, &want, tokens), reason);                                     \
    } while (0)
    DIFFERS(want.tail = true, QR_CHUNK_KIND);
    DIFFERS(want.fingerprint[31] ^= 1, QR_CHUNK_FINGERPRINT);
    DIFFERS(want.group = 1, QR_CHUNK_SHAPE);
    DIFFERS(want.extent = QR_CHUNK_EXTENT_WINDOW, QR_CHUNK_SHAPE);
    DIFFERS(want.shards = 2, QR_CHUNK_SHAPE);
    DIFFERS((want.shards = 2, want.shard = 1), QR_CHUNK_SHAPE);
    DIFFERS(want.members = 3, QR_CHUNK_SHAPE);
    DIFFERS(want.row_bytes = 66, QR_CHUNK_SHAPE);
    DIFFERS(want.start = 0, QR_CHUNK_RANGE);
    DIFFERS(want.count = 15, QR_CHUNK_RANGE);
    DIFFERS(want.parent[0] ^= 1, QR_CHUNK_PARENT);
    DIFFERS(want.chain[0] ^= 1, QR_CHUNK_CHAIN);
    DIFFERS(tokens[15] ^= 1, QR_CHUNK_TOKENS);
    tokens[15] ^= 1;
    qr_chunk_header_t forged = sample.header; /* its chain hash names other tokens */
    forged.chain[5] ^= 1;
    assert_int_equal(qr_chunk_header_match(&forged, sample.tokens, NULL, NULL), QR_CHUNK_CHAIN);
    memcpy(forged.chain, forged.parent, 32); /* its own parent */
    assert_int_equal(qr_chunk_header_match(&forged, sample.tokens, NULL, NULL), QR_CHUNK_CHAIN);
}

static void test_reasons_have_words(void **state)
{
    (void)state;
    for (int r = 0; r < QR_CHUNK_REASONS; r++) {
        assert_true(strlen(qr_chunk_reason_name((qr_chunk_reason_t)r)) > 1);
        assert_true(strlen(qr_chunk_reason_sentence((qr_chunk_reason_t)r)) > 5);
        assert_int_equal(qr_chunk_reason_error((qr_chunk_reason_t)r) == 0, r == QR_CHUNK_INTACT);
    }
    assert_string_equal(qr_chunk_reason_name(QR_CHUNK_REASONS), "UNKNOWN");
    assert_int_equal(qr_chunk_reason_error(QR_CHUNK_TOKENS), QR_E_IDENTITY);
    assert_int_equal(qr_chunk_reason_error(QR_CHUNK_CONTENT), QR_E_DIGEST);
    assert_int_equal(qr_chunk_reason_error(QR_CHUNK_TORN), QR_E_FORMAT);
}

/* ---- reading --------------------------------------------------------------------------------------------------------------------- */

static void test_reads_in_pieces_of_any_size(void **state)
{
    (void)state;
    uint8_t id[32], verified[32];
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static const uint32_t counts[] = {1, 8, 255, 256, 1023, 1024, 1025, 4096};
        sample_free(&sample);
        sample_make(&sample, seed, counts[seed % 8], 1 + (uint32_t)seed % 5, 2 + 2 * (uint32_t)(seed * 7 % 40));
        sample_write(&sample, id);
        qr_chunk_reason_t reason;
        bool wrong;
        assert_int_equal(restore(AT_FDCWD, path, &sample, &reason, &wrong), 0);
        assert_false(wrong);
        qr_chunk_verdict_t verdict;
        assert_int_equal(qr_chunk_verify(AT_FDCWD, path, id, &verdict), 0);
        assert_int_equal(verdict.reason, QR_CHUNK_INTACT);
        size_t bytes;
        uint8_t *file = file_read(path, &bytes); /* the id is what base's own SHA-256 makes of the file */
        assert_int_equal(bytes, qr_chunk_file_bytes(&sample.header));
        qr_sha256(file, bytes, verified);
        assert_memory_equal(verified, id, 32);
        free(file);
        id[0] ^= 1;
        assert_int_equal(qr_chunk_verify(AT_FDCWD, path, id, &verdict), 0);
        assert_int_equal(verdict.reason, QR_CHUNK_CONTENT);
    }
}

static void test_nothing_is_vouched_for_before_the_end(void **state)
{
    (void)state;
    sample_free(&sample);
    sample_make(&sample, 4, 64, 3, 64);
    uint8_t id[32], *room = malloc(sample.bytes + 1);
    qr_chunk_reader_t *reader;
    qr_chunk_reason_t reason;
    sample_write(&sample, id);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, &sample.header, sample.tokens, &reader, &reason), 0);
    assert_int_equal(reason, QR_CHUNK_INTACT);
    assert_int_equal(qr_chunk_reader_end(reader), -QR_E_INVALID);
    assert_int_equal(qr_chunk_reader_read(reader, room, sample.bytes + 1), -QR_E_INVALID);
    assert_int_equal(qr_chunk_reader_read(reader, room, sample.bytes - 1), 0);
    assert_int_equal(qr_chunk_reader_end(reader), -QR_E_INVALID);
    assert_int_equal(qr_chunk_reader_read(reader, room + sample.bytes - 1, 1), 0);
    assert_int_equal(qr_chunk_reader_end(reader), 0);
    assert_memory_equal(room, sample.payload, sample.bytes);
    qr_chunk_reader_close(&reader);
    /* A file that is rewritten while it is read: same size, other bytes. */
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, &sample.header, sample.tokens, &reader, &reason), 0);
    assert_int_equal(qr_chunk_reader_read(reader, room, sample.bytes / 2), 0);
    int file = open(path, O_WRONLY);
    assert_int_equal(pwrite(file, "x", 1, (off_t)(qr_chunk_payload_offset(&sample.header) + 1)), 1); /* behind the reader's back */
    struct timespec times[2] = {{0, UTIME_OMIT}, {1, 0}};
    assert_int_equal(futimens(file, times), 0);
    close(file);
    assert_int_equal(qr_chunk_reader_read(reader, room, sample.bytes - sample.bytes / 2), 0);
    assert_int_equal(qr_chunk_reader_end(reader), -QR_E_FORMAT);
    assert_int_equal(qr_chunk_reader_reason(reader), QR_CHUNK_CHANGED);
    qr_chunk_reader_close(&reader);
    /* One that gets shorter: an error value, no signal. */
    sample_write(&sample, id);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, &sample.header, sample.tokens, &reader, &reason), 0);
    assert_int_equal(truncate(path, (off_t)qr_chunk_payload_offset(&sample.header) + 10), 0);
    assert_int_equal(qr_chunk_reader_read(reader, room, sample.bytes), -QR_E_FORMAT);
    assert_int_equal(qr_chunk_reader_reason(reader), QR_CHUNK_TRUNCATED);
    assert_int_not_equal(qr_chunk_reader_end(reader), 0);
    qr_chunk_reader_close(&reader);
    free(room);
}

/* The padding between tokens and payload is in no digest but the SHA-256: it has to be zero. */
static void test_padding_is_zero(void **state)
{
    (void)state;
    uint8_t id[32];
    sample_free(&sample);
    sample_make(&sample, 5, 100, 2, 64);
    sample_write(&sample, id);
    int file = open(path, O_WRONLY);
    assert_int_equal(pwrite(file, "x", 1, 4096 + 4 * 100 + 77), 1);
    close(file);
    qr_chunk_reason_t reason;
    bool wrong;
    assert_int_equal(restore(AT_FDCWD, path, &sample, &reason, &wrong), -QR_E_FORMAT);
    assert_int_equal(reason, QR_CHUNK_LAYOUT);
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    qr_chunk_reader_t *reader = NULL;
    qr_chunk_reason_t reason;
    qr_chunk_verdict_t verdict;
    (void)unlink(path);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, NULL, NULL, &reader, &reason), -QR_E_NOT_FOUND);
    assert_int_equal(qr_chunk_verify(AT_FDCWD, path, NULL, &verdict), -QR_E_NOT_FOUND);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, scratch, NULL, NULL, &reader, &reason), -QR_E_FORMAT);
    assert_int_equal(reason, QR_CHUNK_MAGIC);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, NULL, NULL, &reader, &reason), -QR_E_FORMAT);
    assert_int_equal(unlink(path), 0);
    file_write(path, NULL, 0);
    assert_int_equal(qr_chunk_reader_open(AT_FDCWD, path, NULL, NULL, &reader, &reason), -QR_E_FORMAT);
    assert_int_equal(reason, QR_CHUNK_TRUNCATED);
    assert_null(reader);
}

static void test_trust_changes_with_the_file(void **state)
{
    (void)state;
    uint8_t id[32];
    qr_chunk_trust_t first, again;
    sample_free(&sample);
    sample_make(&sample, 6, 16, 2, 64);
    sample_write(&sample, id);
    int file = open(path, O_RDWR);
    assert_int_equal(qr_chunk_trust_of(file, &first), 0);
    assert_int_equal(qr_chunk_trust_of(file, &again), 0);
    assert_memory_equal(&first, &again, sizeof first);
    assert_int_equal(first.bytes, qr_chunk_file_bytes(&sample.header));
    assert_int_not_equal(first.inode, 0);
    uint8_t none[16] = {0};
    assert_memory_not_equal(first.boot_id, none, 16);
    struct timespec times[2] = {{0, UTIME_OMIT}, {12, 34}};
    assert_int_equal(futimens(file, times), 0);
    assert_int_equal(qr_chunk_trust_of(file, &again), 0);
    assert_int_equal(again.modified_ns, 12000000034);
    assert_memory_not_equal(&first, &again, sizeof first);
    close(file);
    assert_int_equal(qr_chunk_trust_of(-1, &again), -QR_E_IO);
}

/* ---- shape ------------------------------------------------------------------------------------------------------------------------ */

/* Every byte of the payload belongs to exactly one (member, token) of exactly one extent, in file order, whatever the pieces. */
static void test_extents_cover_the_payload(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 2}, {16, 4, 64}, {7, 5, 6}, {256, 60, 384}};
    for (size_t s = 0; s < QR_COUNT(shapes); s++) {
        qr_chunk_header_t h = {.count = shapes[s][0], .members = shapes[s][1], .row_bytes = shapes[s][2], .extent = 1, .shards = 1};
        uint64_t payload = qr_chunk_payload_bytes(&h);
        for (uint64_t piece_rows = 1; piece_rows <= 1000; piece_rows = piece_rows * 3 + 1) {
            uint64_t next_row = 0;
            for (uint64_t from = 0; from < payload; from += piece_rows * h.row_bytes) {
                uint64_t cursor = from, end = qr_min_u64(payload, from + piece_rows * h.row_bytes);
                qr_chunk_extent_t extent;
                while (qr_chunk_extent_next(&h, &cursor, end, &extent)) {
                    assert_int_equal(extent.offset, next_row * h.row_bytes);
                    assert_int_equal(extent.bytes, (uint64_t)extent.count * h.row_bytes);
                    assert_int_equal(extent.member, next_row / h.count);
                    assert_int_equal(extent.token, next_row % h.count);
                    assert_true(extent.count > 0 && extent.token + extent.count <= h.count);
                    next_row += extent.count;
                }
                assert_int_equal(cursor, end);
            }
            assert_int_equal(next_row, (uint64_t)h.members * h.count);
        }
    }
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static void test_writer_refuses(void **state)
{
    (void)state;
    qr_chunk_writer_t *writer = NULL;
    uint8_t id[32];
    sample_free(&sample);
    sample_make(&sample, 7, 16, 2, 64);
    (void)unlink(path);
    qr_chunk_header_t wrong = sample.header;
    wrong.count = 0;
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &wrong, sample.tokens, &writer), -QR_E_INVALID);
    wrong = sample.header, wrong.chain[0] ^= 1;
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &wrong, sample.tokens, &writer), -QR_E_INVALID);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &sample.header, sample.tokens, &writer), 0);
    qr_chunk_writer_t *second = NULL;
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &sample.header, sample.tokens, &second), -QR_E_IN_USE);
    struct stat status;
    assert_int_equal(stat(path, &status), 0); /* the loser takes nothing away */
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(qr_chunk_writer_end(writer, id), -QR_E_INVALID); /* nothing of the payload yet */
    assert_int_equal(qr_chunk_writer_put(writer, sample.payload, sample.bytes), 0);
    assert_int_equal(qr_chunk_writer_put(writer, "x", 1), -QR_E_INVALID);
    qr_chunk_writer_destroy(&writer);
    (void)unlink(path);
    /* Bytes that are not those the digest was taken of: a staging slot that changed under the writer. */
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, path, &sample.header, sample.tokens, &writer), 0);
    sample.payload[100] ^= 1;
    assert_int_equal(qr_chunk_writer_put(writer, sample.payload, sample.bytes), 0);
    assert_int_equal(qr_chunk_writer_end(writer, id), -QR_E_FORMAT);
    assert_int_equal(qr_chunk_writer_end(writer, id), -QR_E_FORMAT);
    qr_chunk_writer_destroy(&writer);
    qr_chunk_writer_destroy(&writer);
    assert_int_equal(qr_chunk_writer_new(AT_FDCWD, "/nowhere/at/all", &sample.header, sample.tokens, &writer), -QR_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_vectors_in_both_directions),
        cmocka_unit_test(test_example_of_the_document),
        cmocka_unit_test(test_se_09_header_fields_are_checked_one_by_one),
        cmocka_unit_test(test_header_bytes),
        cmocka_unit_test(test_identity_is_compared),
        cmocka_unit_test(test_reasons_have_words),
        cmocka_unit_test(test_reads_in_pieces_of_any_size),
        cmocka_unit_test(test_nothing_is_vouched_for_before_the_end),
        cmocka_unit_test(test_padding_is_zero),
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_trust_changes_with_the_file),
        cmocka_unit_test(test_extents_cover_the_payload),
        cmocka_unit_test(test_writer_refuses),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
