/* chunk.c - header, identity and reading of a chunk file (chunk.h). */
#include "store/chunk.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mutant.h"
#include "base/sha256.h"
#include "store/chunk_bytes.h"
#include "store/crc32c.h"
#include "store/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian");

/* The header as it lies in the file (FORMAT.md); every field at its natural alignment. */
typedef struct wire {
    char magic[8];
    uint16_t version, header_bytes;
    uint8_t digest, fast_digest, type, zero;
    uint8_t fingerprint[32], parent[32], chain[32];
    uint32_t start, count;
    uint16_t group, extent, shard, shards;
    uint32_t members, row_bytes;
    uint64_t tokens_offset, payload_offset, payload_bytes;
    uint8_t fast[16];
    uint8_t reserved[3916];
    uint32_t check;
} wire_t;
_Static_assert(sizeof(wire_t) == QR_CHUNK_HEADER_BYTES && offsetof(wire_t, fast) == 160 && offsetof(wire_t, check) == 4092, "FORMAT.md");

static const char magic[8] = "QRCHUNK";
enum { TAIL = 0x8000, DIGEST_SHA256 = 0x12, FAST_XXH3 = 1, TYPE_FP16 = 1 };

#define NAME(name, sentence) #name,
static const char *const reason_names[] = {QR_CHUNK_REASON_MAP(NAME)};
#undef NAME
#define SENTENCE(name, sentence) sentence,
static const char *const reason_sentences[] = {QR_CHUNK_REASON_MAP(SENTENCE)};
#undef SENTENCE
const char *qr_chunk_reason_name(qr_chunk_reason_t reason) { return reason < QR_CHUNK_REASONS ? reason_names[reason] : "UNKNOWN"; }
const char *qr_chunk_reason_sentence(qr_chunk_reason_t reason)
{
    return reason < QR_CHUNK_REASONS ? reason_sentences[reason] : "unknown reason";
}

int qr_chunk_reason_error(qr_chunk_reason_t reason)
{
    switch (reason) {
    case QR_CHUNK_INTACT: return 0;
    case QR_CHUNK_IO: return QR_E_IO;
    case QR_CHUNK_TRUNCATED: return QR_E_TRUNCATED;
    case QR_CHUNK_VERSION_OTHER: return QR_E_UNSUPPORTED;
    case QR_CHUNK_KIND:
    case QR_CHUNK_FINGERPRINT:
    case QR_CHUNK_SHAPE:
    case QR_CHUNK_RANGE:
    case QR_CHUNK_PARENT:
    case QR_CHUNK_CHAIN:
    case QR_CHUNK_TOKENS: return QR_E_IDENTITY;
    case QR_CHUNK_PAYLOAD:
    case QR_CHUNK_CONTENT:
    case QR_CHUNK_CHANGED: return QR_E_DIGEST;
    default: return QR_E_FORMAT;
    }
}

int qr_chunk_error_of(int number)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return -QR_E_NO_SPACE;
    case ENOENT:
    case ENOTDIR: return -QR_E_NOT_FOUND;
    case EACCES:
    case EPERM: return -QR_E_PERMISSION;
    case EEXIST: return -QR_E_IN_USE;
    case ENOMEM: return -QR_E_MEMORY;
    default: return -QR_E_IO;
    }
}

/* ---- the header ---------------------------------------------------------------------------------------------------------------- */

static uint64_t payload_bytes(uint32_t members, uint32_t count, uint32_t row_bytes) { return (uint64_t)members * count * row_bytes; }
uint64_t qr_chunk_payload_offset(const qr_chunk_header_t *header)
{
    return qr_round_up(QR_CHUNK_HEADER_BYTES + 4ull * header->count, QR_CHUNK_ALIGN);
}
uint64_t qr_chunk_payload_bytes(const qr_chunk_header_t *header)
{
    return payload_bytes(header->members, header->count, header->row_bytes);
}
uint64_t qr_chunk_file_bytes(const qr_chunk_header_t *header) { return qr_chunk_payload_offset(header) + qr_chunk_payload_bytes(header); }

bool qr_chunk_header_valid(const qr_chunk_header_t *h)
{
    if (!h->count || h->count > QR_CHUNK_TOKENS_MAX || h->start > QR_CONTEXT_MAX || h->count > QR_CONTEXT_MAX - h->start) return false;
    if (!h->members || h->members > QR_CHUNK_MEMBERS_MAX || !h->row_bytes || h->row_bytes > QR_CHUNK_ROW_BYTES_MAX || h->row_bytes % 2)
        return false;
    if (h->extent != QR_CHUNK_EXTENT_TOKEN && h->extent != QR_CHUNK_EXTENT_WINDOW) return false;
    return h->shard < h->shards && qr_chunk_payload_bytes(h) <= QR_CHUNK_PAYLOAD_MAX;
}

void qr_chunk_header_encode(const qr_chunk_header_t *header, uint8_t ret_bytes[QR_CHUNK_HEADER_BYTES])
{
    qr_assert(qr_chunk_header_valid(header));
    wire_t wire = {.version = (uint16_t)(QR_CHUNK_VERSION | (header->tail ? TAIL : 0)),
                   .header_bytes = QR_CHUNK_HEADER_BYTES,
                   .digest = DIGEST_SHA256,
                   .fast_digest = FAST_XXH3,
                   .type = TYPE_FP16,
                   .start = header->start,
                   .count = header->count,
                   .group = header->group,
                   .extent = header->extent,
                   .shard = header->shard,
                   .shards = header->shards,
                   .members = header->members,
                   .row_bytes = header->row_bytes,
                   .tokens_offset = QR_CHUNK_HEADER_BYTES,
                   .payload_offset = qr_chunk_payload_offset(header),
                   .payload_bytes = qr_chunk_payload_bytes(header)};
    memcpy(wire.magic, magic, sizeof magic);
    memcpy(wire.fingerprint, header->fingerprint, 32);
    memcpy(wire.parent, header->parent, 32);
    memcpy(wire.chain, header->chain, 32);
    memcpy(wire.fast, header->digest, 16);
    wire.check = qr_crc32c(0, &wire, offsetof(wire_t, check));
    memcpy(ret_bytes, &wire, sizeof wire);
}

static bool all_zero(const uint8_t *bytes, size_t count)
{
    uint8_t any = 0;
    for (size_t i = 0; i < count; i++) any |= bytes[i];
    return !any;
}

/* The checks of a header whose bytes are whole. */
static qr_chunk_reason_t wire_check(const wire_t *wire, uint64_t file_bytes, qr_chunk_header_t *h)
{
    *h = (qr_chunk_header_t){.start = wire->start,
                             .count = wire->count,
                             .members = wire->members,
                             .row_bytes = wire->row_bytes,
                             .group = wire->group,
                             .extent = wire->extent,
                             .shard = wire->shard,
                             .shards = wire->shards,
                             .tail = (wire->version & TAIL) != 0};
    memcpy(h->fingerprint, wire->fingerprint, 32);
    memcpy(h->parent, wire->parent, 32);
    memcpy(h->chain, wire->chain, 32);
    memcpy(h->digest, wire->fast, 16);
    if (wire->digest != DIGEST_SHA256 || wire->fast_digest != FAST_XXH3 || wire->type != TYPE_FP16 || wire->zero) return QR_CHUNK_LAYOUT;
    if (!all_zero(wire->reserved, sizeof wire->reserved) && !QR_MUTANT(540)) return QR_CHUNK_LAYOUT;
    if (!qr_chunk_header_valid(h) || wire->tokens_offset != QR_CHUNK_HEADER_BYTES || wire->payload_offset != qr_chunk_payload_offset(h))
        return QR_CHUNK_LAYOUT;
    if (wire->payload_bytes != qr_chunk_payload_bytes(h)) return QR_CHUNK_LAYOUT;
    if (file_bytes < qr_chunk_file_bytes(h)) return QR_CHUNK_TRUNCATED;
    return file_bytes > qr_chunk_file_bytes(h) && !QR_MUTANT(541) ? QR_CHUNK_LAYOUT : QR_CHUNK_INTACT;
}

qr_chunk_reason_t qr_chunk_header_decode(const void *bytes, size_t have, uint64_t file_bytes, qr_chunk_header_t *ret_header)
{
    wire_t wire;
    qr_chunk_header_t header;
    if (have < sizeof wire || file_bytes < sizeof wire) return QR_CHUNK_TRUNCATED;
    memcpy(&wire, bytes, sizeof wire);
    if (all_zero((const uint8_t *)wire.magic, sizeof magic)) return QR_CHUNK_TORN;
    if (memcmp(wire.magic, magic, sizeof magic) != 0) return QR_CHUNK_MAGIC;
    if ((wire.version & ~TAIL) != QR_CHUNK_VERSION || wire.header_bytes != QR_CHUNK_HEADER_BYTES) return QR_CHUNK_VERSION_OTHER;
    if (wire.check != qr_crc32c(0, &wire, offsetof(wire_t, check)) && !QR_MUTANT(542))
        return wire.check ? QR_CHUNK_HEADER : QR_CHUNK_TORN; /* the check stands last */
    qr_chunk_reason_t reason = wire_check(&wire, file_bytes, &header);
    if (reason == QR_CHUNK_INTACT) *ret_header = header;
    return reason;
}

qr_chunk_reason_t qr_chunk_header_match(const qr_chunk_header_t *header, const uint32_t *tokens, const qr_chunk_header_t *want,
                                        const uint32_t *want_tokens)
{
    uint8_t chain[32];
    if (want && want->tail != header->tail) return QR_CHUNK_KIND;
    if (want && memcmp(want->fingerprint, header->fingerprint, 32) != 0 && !QR_MUTANT(543)) return QR_CHUNK_FINGERPRINT;
    if (want && (want->group != header->group || want->extent != header->extent || want->shard != header->shard ||
                 want->shards != header->shards || want->members != header->members || want->row_bytes != header->row_bytes))
        return QR_CHUNK_SHAPE;
    if (want && (want->start != header->start || want->count != header->count) && !QR_MUTANT(544)) return QR_CHUNK_RANGE;
    if (want && memcmp(want->parent, header->parent, 32) != 0) return QR_CHUNK_PARENT;
    qr_chain_node(header->parent, tokens, header->count, chain);
    if (memcmp(chain, header->chain, 32) != 0 && !QR_MUTANT(545)) return QR_CHUNK_CHAIN;
    if (want && memcmp(want->chain, header->chain, 32) != 0) return QR_CHUNK_CHAIN;
    if (want && want_tokens && memcmp(want_tokens, tokens, 4ull * header->count) != 0) return QR_CHUNK_TOKENS;
    return QR_CHUNK_INTACT;
}

bool qr_chunk_extent_next(const qr_chunk_header_t *header, uint64_t *cursor, uint64_t end, qr_chunk_extent_t *ret_extent)
{
    uint64_t row = header->row_bytes, member_bytes = row * header->count;
    qr_assert(*cursor % row == 0 && end % row == 0 && end <= qr_chunk_payload_bytes(header));
    if (*cursor >= end) return false;
    uint64_t member = *cursor / member_bytes, bytes = qr_min_u64(end, (member + 1) * member_bytes) - *cursor;
    *ret_extent = (qr_chunk_extent_t){.member = (uint32_t)member,
                                      .token = (uint32_t)(*cursor % member_bytes / row),
                                      .count = (uint32_t)(bytes / row),
                                      .offset = *cursor,
                                      .bytes = bytes};
    *cursor += bytes;
    return true;
}

/* ---- digests --------------------------------------------------------------------------------------------------------------------- */

int qr_chunk_digest(const uint32_t *tokens, uint32_t count, const qr_chunk_piece_t *pieces, uint32_t piece_count, uint8_t ret_digest[16])
{
    qr_chunk_fast_t *fast = qr_chunk_fast_new();
    if (!fast) return -QR_E_MEMORY;
    qr_chunk_fast_add(fast, tokens, 4ull * count);
    for (uint32_t i = 0; i < piece_count; i++) qr_chunk_fast_add(fast, pieces[i].bytes, pieces[i].count);
    qr_chunk_fast_end(fast, ret_digest);
    qr_chunk_fast_destroy(&fast);
    return 0;
}

/* The machine's boot, so that trust does not outlive it; zero where the kernel does not say. Read once. */
static uint8_t boot_id[16];
static void boot_id_read(void)
{
    char text[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t count = read(file, text, sizeof text - 1);
    (void)close(file);
    for (ssize_t i = 0, digits = 0; i < count && digits < 32; i++) {
        int digit = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10 : -1;
        if (digit < 0) continue;
        boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | digit);
        digits++;
    }
}

static int64_t ns_of(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

int qr_chunk_trust_of(int file, qr_chunk_trust_t *ret_trust)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct stat status;
    if (fstat(file, &status) != 0) return -QR_E_IO;
    qr_chunk_trust_t trust = {.device = status.st_dev,
                              .inode = status.st_ino,
                              .bytes = (uint64_t)status.st_size,
                              .modified_ns = ns_of(status.st_mtim),
                              .changed_ns = ns_of(status.st_ctim)};
    (void)pthread_once(&once, boot_id_read);
    memcpy(trust.boot_id, boot_id, sizeof boot_id);
    *ret_trust = trust;
    return 0;
}

void qr_chunk_trust_stamp(const qr_chunk_trust_t *trust, uint8_t ret_stamp[32]) { qr_sha256(trust, sizeof *trust, ret_stamp); }

/* ---- reading ------------------------------------------------------------------------------------------------------------------- */

struct qr_chunk_reader {
    int file, owned; /* owned: the descriptor to close, or -1 */
    qr_chunk_reason_t reason;
    uint64_t payload_end, at; /* offsets in the file */
    qr_chunk_fast_t *fast;
    qr_chunk_trust_t trust; /* as opened */
    qr_chunk_header_t header;
    size_t head_bytes;
    _Alignas(8) uint8_t head[QR_CHUNK_HEAD_MAX]; /* header, tokens, padding */
};

/* Reads exactly `bytes` at `offset`. -QR_E_TRUNCATED when the file ends before. */
static int read_all(int file, void *to, size_t bytes, uint64_t offset)
{
    uint8_t *at = to;
    while (bytes) {
        ssize_t count = pread(file, at, bytes, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return -QR_E_IO;
        if (count == 0 && QR_MUTANT(566)) return memset(at, 0, bytes), 0;
        if (count == 0) return -QR_E_TRUNCATED;
        at += count, bytes -= (size_t)count, offset += (uint64_t)count;
    }
    return 0;
}

static int refused(qr_chunk_reader_t *reader, qr_chunk_reason_t reason)
{
    reader->reason = reason;
    return reason == QR_CHUNK_INTACT ? 0 : reason == QR_CHUNK_IO ? -QR_E_IO : -QR_E_FORMAT;
}
static int read_failed(qr_chunk_reader_t *reader, int status)
{
    return refused(reader, status == -QR_E_TRUNCATED ? QR_CHUNK_TRUNCATED : QR_CHUNK_IO);
}

/* Header, tokens and padding; the digest has taken the tokens. */
static int head_read(qr_chunk_reader_t *r)
{
    if (qr_store_fail(read_head)) return refused(r, QR_CHUNK_IO);
    r->head_bytes = (size_t)qr_min_u64(sizeof r->head, r->trust.bytes);
    int status = read_all(r->file, r->head, r->head_bytes, 0);
    if (status) return read_failed(r, status);
    qr_chunk_reason_t reason = qr_chunk_header_decode(r->head, r->head_bytes, r->trust.bytes, &r->header);
    if (reason != QR_CHUNK_INTACT) return refused(r, reason);
    size_t tokens_end = QR_CHUNK_HEADER_BYTES + 4ul * r->header.count, payload = (size_t)qr_chunk_payload_offset(&r->header);
    qr_assert(payload <= sizeof r->head);
    if (!all_zero(r->head + tokens_end, payload - tokens_end) && !QR_MUTANT(546)) return refused(r, QR_CHUNK_LAYOUT);
    r->head_bytes = payload;
    r->at = payload;
    r->payload_end = qr_chunk_file_bytes(&r->header);
    qr_chunk_fast_add(r->fast, r->head + QR_CHUNK_HEADER_BYTES, 4ul * r->header.count);
    return 0;
}

static int reader_fill(qr_chunk_reader_t *r, const qr_chunk_header_t *want, const uint32_t *want_tokens)
{
    struct stat status;
    if (fstat(r->file, &status) != 0 || qr_chunk_trust_of(r->file, &r->trust) != 0) return refused(r, QR_CHUNK_IO);
    if (!S_ISREG(status.st_mode)) return refused(r, QR_CHUNK_MAGIC);
    int error = head_read(r);
    if (!error) error = refused(r, qr_chunk_header_match(&r->header, qr_chunk_reader_tokens(r), want, want_tokens));
    return error;
}

static int reader_new(int file, int owned, const qr_chunk_header_t *want, const uint32_t *want_tokens, qr_chunk_reader_t **ret_reader,
                      qr_chunk_reason_t *ret_reason)
{
    qr_chunk_reader_t *r = calloc(1, sizeof *r);
    *ret_reason = QR_CHUNK_IO;
    if (r) r->file = file, r->owned = owned, r->fast = qr_chunk_fast_new();
    if (!r || !r->fast) {
        if (!r && owned >= 0) (void)close(owned);
        qr_chunk_reader_close(&r);
        return -QR_E_MEMORY;
    }
    int error = reader_fill(r, want, want_tokens);
    *ret_reason = r->reason;
    if (error)
        qr_chunk_reader_close(&r);
    else
        *ret_reader = r;
    return error;
}

int qr_chunk_reader_open_file(int file, const qr_chunk_header_t *want, const uint32_t *want_tokens, qr_chunk_reader_t **ret_reader,
                              qr_chunk_reason_t *ret_reason)
{
    return reader_new(file, -1, want, want_tokens, ret_reader, ret_reason);
}

int qr_chunk_reader_open(int folder, const char *path, const qr_chunk_header_t *want, const uint32_t *want_tokens,
                         qr_chunk_reader_t **ret_reader, qr_chunk_reason_t *ret_reason)
{
    *ret_reason = QR_CHUNK_IO;
    /* A pipe under the name must not hold us up. */
    int file = qr_store_fail(read_open) ? -1 : openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return qr_chunk_error_of(errno) == -QR_E_NOT_FOUND ? -QR_E_NOT_FOUND : -QR_E_IO;
    (void)posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
    return reader_new(file, file, want, want_tokens, ret_reader, ret_reason);
}

const qr_chunk_header_t *qr_chunk_reader_header(const qr_chunk_reader_t *reader) { return &reader->header; }
const uint32_t *qr_chunk_reader_tokens(const qr_chunk_reader_t *reader)
{
    return (const uint32_t *)(const void *)(reader->head + QR_CHUNK_HEADER_BYTES);
}
const qr_chunk_trust_t *qr_chunk_reader_trust(const qr_chunk_reader_t *reader) { return &reader->trust; }
qr_chunk_reason_t qr_chunk_reader_reason(const qr_chunk_reader_t *reader) { return reader->reason; }

int qr_chunk_reader_read(qr_chunk_reader_t *r, void *to, size_t bytes)
{
    if (bytes > r->payload_end - r->at) return -QR_E_INVALID;
    uint8_t *at = to;
    while (bytes) { /* digested while it is in the cache */
        size_t piece = (size_t)qr_min_u64(bytes, 128 << 10);
        if (qr_store_fail(read_piece)) return refused(r, QR_CHUNK_IO);
        int status = read_all(r->file, at, piece, r->at);
        if (status) return read_failed(r, status);
        qr_chunk_fast_add(r->fast, at, piece);
        at += piece, bytes -= piece, r->at += piece;
    }
    return 0;
}

int qr_chunk_reader_end(qr_chunk_reader_t *r)
{
    uint8_t digest[16];
    qr_chunk_trust_t now;
    if (r->at != r->payload_end) return -QR_E_INVALID;
    if (r->reason != QR_CHUNK_INTACT) return refused(r, r->reason);
    qr_chunk_fast_end(r->fast, digest);
    if (memcmp(digest, r->header.digest, QR_MUTANT(547) ? 0 : 16) != 0) return refused(r, QR_CHUNK_PAYLOAD);
    if (qr_chunk_trust_of(r->file, &now) != 0) return refused(r, QR_CHUNK_IO);
    /* ctime moves when the file is unlinked, which changes no byte of it. */
    if ((now.bytes != r->trust.bytes || now.modified_ns != r->trust.modified_ns) && !QR_MUTANT(565)) return refused(r, QR_CHUNK_CHANGED);
    return 0;
}

void qr_chunk_reader_close(qr_chunk_reader_t **reader)
{
    qr_chunk_reader_t *r = *reader;
    if (!r) return;
    qr_chunk_fast_destroy(&r->fast);
    if (r->owned >= 0) (void)close(r->owned);
    free(r);
    *reader = NULL;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------------------------- */

/* Runs the payload through both digests. */
static int payload_verify(qr_chunk_reader_t *r, EVP_MD_CTX *sha, uint8_t *buffer, uint8_t ret_id[32])
{
    int status = 0;
    if (EVP_DigestUpdate(sha, r->head, r->head_bytes) != 1) return -QR_E_MEMORY;
    while (!status && r->at < r->payload_end) {
        size_t bytes = (size_t)qr_min_u64(QR_CHUNK_PIECE_BYTES, r->payload_end - r->at);
        status = qr_chunk_reader_read(r, buffer, bytes);
        if (!status && EVP_DigestUpdate(sha, buffer, bytes) != 1) status = -QR_E_MEMORY;
    }
    if (!status) status = qr_chunk_reader_end(r);
    if (!status && EVP_DigestFinal_ex(sha, ret_id, NULL) != 1) status = -QR_E_MEMORY;
    return status;
}

int qr_chunk_verify(int folder, const char *path, const uint8_t id[32], qr_chunk_verdict_t *ret_verdict)
{
    qr_chunk_verdict_t verdict = {0};
    qr_chunk_reader_t *reader = NULL;
    int status = qr_chunk_reader_open(folder, path, NULL, NULL, &reader, &verdict.reason);
    EVP_MD_CTX *sha = status ? NULL : EVP_MD_CTX_new();
    uint8_t *buffer = status ? NULL : malloc(QR_CHUNK_PIECE_BYTES);
    if (!status && (!sha || !buffer || EVP_DigestInit_ex(sha, EVP_sha256(), NULL) != 1)) status = -QR_E_MEMORY;
    if (!status) {
        verdict.header = reader->header, verdict.trust = reader->trust;
        status = payload_verify(reader, sha, buffer, verdict.id);
        verdict.reason = reader->reason;
    }
    if (!status && id && memcmp(id, verdict.id, 32) != 0) verdict.reason = QR_CHUNK_CONTENT;
    free(buffer);
    EVP_MD_CTX_free(sha);
    qr_chunk_reader_close(&reader);
    if (status && status != -QR_E_FORMAT) return status;
    *ret_verdict = verdict;
    return 0;
}
