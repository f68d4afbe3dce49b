/* chunk.h - one chunk file: the durable rows of one group of layers for one range of tokens (bytes: FORMAT.md). Encoding and checking of
 * its header, a reader that hands out no row it cannot vouch for, and a writer that streams.
 *
 * CF1. Every byte of the file is determined by header fields, tokens and payload: reserved bytes and padding are zero and checked, so a
 *      content has exactly one file and one name.
 * CF2. No size of the file is used before it was checked against the limits below and the file's own length. What is
 *      allocated for a file is QR_CHUNK_HEAD_MAX and at most one piece, whatever it says.
 * CF3. What a reader gave out may be used only after qr_chunk_reader_end returned 0: then header, identity, tokens and XXH3-128 over
 *      tokens and payload agree. What is called "verified" beyond that is qr_chunk_verify: SHA-256 of the whole file against its name.
 * CF4. Files are read by pread through the page cache: an I/O error or a file that got shorter is an error value, never a signal.
 *      (Measured: from the cold disk it is as fast as O_DIRECT, from the page cache five times faster.)
 * CF5. An open file is never changed by Quire: it is written under another name, renamed, and at last unlinked. */
#ifndef QR_CHUNK_H
#define QR_CHUNK_H

#include "base/base.h"

enum {
    QR_CHUNK_HEADER_BYTES = 4096,
    QR_CHUNK_ALIGN = 4096, /* the payload begins at a multiple of it */
    QR_CHUNK_VERSION = 1,
    QR_CHUNK_TOKENS_MAX = 4096,                                          /* tokens of one file */
    QR_CHUNK_MEMBERS_MAX = 4096,                                         /* (slab, layer) pairs of one group */
    QR_CHUNK_ROW_BYTES_MAX = 65536,                                      /* bytes of one row of one member */
    QR_CHUNK_HEAD_MAX = QR_CHUNK_HEADER_BYTES + 4 * QR_CHUNK_TOKENS_MAX, /* bytes before the payload */
    QR_CHUNK_PIECE_BYTES = 1 << 20,                                      /* what reads and writes are cut into */
    QR_CHUNK_EXTENT_TOKEN = 1,                                           /* rows of the whole prefix */
    QR_CHUNK_EXTENT_WINDOW = 2                                           /* rows of a sliding window */
};
#define QR_CHUNK_PAYLOAD_MAX (1ull << 31) /* bytes of payload of one file */

/* Why a file is not what was asked for; in the order of the checks. */
#define QR_CHUNK_REASON_MAP(X)                                                                                                             \
    X(INTACT, "intact")                                                                                                                    \
    X(IO, "the operating system could not read it")                                                                                        \
    X(TRUNCATED, "it ends too early")                                                                                                      \
    X(TORN, "its header was never written in full")                                                                                        \
    X(MAGIC, "it is not a chunk file")                                                                                                     \
    X(VERSION_OTHER, "its version is not supported")                                                                                       \
    X(HEADER, "its header's CRC-32C does not agree")                                                                                       \
    X(LAYOUT, "its sizes, digests or reserved bytes are not those of a chunk")                                                             \
    X(KIND, "it is a tail where a chunk was asked for, or a chunk where a tail was")                                                       \
    X(FINGERPRINT, "it belongs to another model or execution variant")                                                                     \
    X(SHAPE, "its group, members or rows are laid out otherwise")                                                                          \
    X(RANGE, "it holds another range of tokens")                                                                                           \
    X(PARENT, "it follows another prefix")                                                                                                 \
    X(CHAIN, "its chain hash is not that of its parent and its tokens, or not the one asked for")                                          \
    X(TOKENS, "its tokens are others")                                                                                                     \
    X(PAYLOAD, "XXH3-128 over tokens and payload does not agree")                                                                          \
    X(CONTENT, "its SHA-256 is not its name")                                                                                              \
    X(CHANGED, "it changed while it was read")
#define QR_CHUNK_REASON_ENUM(name, sentence) QR_CHUNK_##name,
typedef enum qr_chunk_reason { QR_CHUNK_REASON_MAP(QR_CHUNK_REASON_ENUM) QR_CHUNK_REASONS } qr_chunk_reason_t;
#undef QR_CHUNK_REASON_ENUM
/* "HEADER" and its sentence. Static memory. */
const char *qr_chunk_reason_name(qr_chunk_reason_t reason);
const char *qr_chunk_reason_sentence(qr_chunk_reason_t reason);
/* The QR_E_* that a message carries for it: 0, IO, TRUNCATED, FORMAT, UNSUPPORTED, IDENTITY or DIGEST. */
int qr_chunk_reason_error(qr_chunk_reason_t reason);

/* What a header says. As a question (`want`) the fields named `want` in the comments are compared, the digest is not. */
typedef struct qr_chunk_header {
    uint8_t fingerprint[32]; /* want */
    uint8_t parent[32];      /* want: chain hash of the chunk before, or the root */
    uint8_t chain[32];       /* want: qr_chain_node(parent, tokens, count) */
    uint8_t digest[16];      /* XXH3-128 over tokens and payload, canonical (big-endian) */
    uint32_t start, count;   /* want: tokens [start, start + count) of the continuation */
    uint32_t members;        /* want: (slab, layer) pairs of the group */
    uint32_t row_bytes;      /* want: of one token's row of one member; fp16, so even */
    uint16_t group, extent;  /* want: QR_CHUNK_EXTENT_* */
    uint16_t shard, shards;  /* want: shard < shards */
    bool tail;               /* want: a tail file, owned by one continuation */
} qr_chunk_header_t;

/* Sizes that follow from a header whose fields are within the limits. */
uint64_t qr_chunk_payload_offset(const qr_chunk_header_t *header);
uint64_t qr_chunk_payload_bytes(const qr_chunk_header_t *header);
uint64_t qr_chunk_file_bytes(const qr_chunk_header_t *header);

/* Whether the fields are within the limits above and QR_CONTEXT_MAX. */
bool qr_chunk_header_valid(const qr_chunk_header_t *header);
/* Writes the header's bytes. The fields must be valid. */
void qr_chunk_header_encode(const qr_chunk_header_t *header, uint8_t ret_bytes[QR_CHUNK_HEADER_BYTES]);
/* Reads the first bytes of a file that is file_bytes long; `have` of them are given. INTACT and the header, or the first reason. */
qr_chunk_reason_t qr_chunk_header_decode(const void *bytes, size_t have, uint64_t file_bytes, qr_chunk_header_t *ret_header);
/* Compares a decoded header and its tokens[count] with what was asked for. want NULL: only that the chain hash is the tokens'.
 * want_tokens NULL: they are not at hand. */
qr_chunk_reason_t qr_chunk_header_match(const qr_chunk_header_t *header, const uint32_t *tokens, const qr_chunk_header_t *want,
                                        const uint32_t *want_tokens);

/* ---- the payload's shape: [member][token][row] ------------------------------------------------------------------------------- */

/* A run of rows of one member; token is relative to header.start. */
typedef struct qr_chunk_extent {
    uint32_t member, token, count, reserved;
    uint64_t offset, bytes; /* from the payload's first byte */
} qr_chunk_extent_t;
/* The next run of payload bytes [*cursor, end), in file order; false at the end. Cursor and end are multiples of row_bytes. A reader of
 * pieces calls it over each piece; how rows become page slots is the caller's. */
bool qr_chunk_extent_next(const qr_chunk_header_t *header, uint64_t *cursor, uint64_t end, qr_chunk_extent_t *ret_extent);

/* ---- digests ------------------------------------------------------------------------------------------------------------------ */

typedef struct qr_chunk_piece {
    const void *bytes;
    size_t count;
} qr_chunk_piece_t;
/* XXH3-128 over tokens and the pieces in order, as a header holds it. -QR_E_MEMORY. */
int qr_chunk_digest(const uint32_t *tokens, uint32_t count, const qr_chunk_piece_t *pieces, uint32_t piece_count, uint8_t ret_digest[16]);

/* What tells whether a file is the one that was verified (design §6, Trust). Compared by memcmp; of no use across machines. */
typedef struct qr_chunk_trust {
    uint8_t boot_id[16];
    uint64_t device, inode, bytes;
    int64_t modified_ns, changed_ns; /* mtime and ctime since 1970 */
} qr_chunk_trust_t;
/* 0, or -QR_E_IO. */
int qr_chunk_trust_of(int file, qr_chunk_trust_t *ret_trust);
/* As 32 bytes that messages carry: equal for equal files, never all zero. */
void qr_chunk_trust_stamp(const qr_chunk_trust_t *trust, uint8_t ret_stamp[32]);

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

typedef struct qr_chunk_reader qr_chunk_reader_t;

/* Opens folder/path (folder: a folder's descriptor or AT_FDCWD) and checks header, identity and tokens against want and want_tokens
 * (either may be NULL). 0; -QR_E_NOT_FOUND; -QR_E_FORMAT: *ret_reason says why; -QR_E_IO; -QR_E_MEMORY. *ret_reason is always set. */
int qr_chunk_reader_open(int folder, const char *path, const qr_chunk_header_t *want, const uint32_t *want_tokens,
                         qr_chunk_reader_t **ret_reader, qr_chunk_reason_t *ret_reason);
/* The same over an open file; the descriptor stays the caller's and must outlive the reader. */
int qr_chunk_reader_open_file(int file, const qr_chunk_header_t *want, const uint32_t *want_tokens, qr_chunk_reader_t **ret_reader,
                              qr_chunk_reason_t *ret_reason);
const qr_chunk_header_t *qr_chunk_reader_header(const qr_chunk_reader_t *reader);
const uint32_t *qr_chunk_reader_tokens(const qr_chunk_reader_t *reader); /* [header.count] */
const qr_chunk_trust_t *qr_chunk_reader_trust(const qr_chunk_reader_t *reader);
/* Reads the next `bytes` bytes of payload, no more than are left. What it wrote is not vouched for yet (CF3). 0; -QR_E_FORMAT with the
 * reason TRUNCATED; -QR_E_IO; -QR_E_INVALID: more than are left. */
int qr_chunk_reader_read(qr_chunk_reader_t *reader, void *to, size_t bytes);
/* After the last byte of payload: 0 when the digest agrees and the file is the one that was opened; -QR_E_FORMAT with the reason PAYLOAD
 * or CHANGED; -QR_E_INVALID when payload is left; -QR_E_IO. */
int qr_chunk_reader_end(qr_chunk_reader_t *reader);
qr_chunk_reason_t qr_chunk_reader_reason(const qr_chunk_reader_t *reader); /* of the last failure */
void qr_chunk_reader_close(qr_chunk_reader_t **reader);

/* What qr_chunk_verify found. Valid as far as the reason reaches: the header from FINGERPRINT on, id for INTACT and CONTENT. */
typedef struct qr_chunk_verdict {
    qr_chunk_reason_t reason;
    qr_chunk_header_t header;
    uint8_t id[32];         /* SHA-256 of the whole file */
    qr_chunk_trust_t trust; /* of the file as it was verified */
} qr_chunk_verdict_t;
/* Reads the whole file once: header, tokens, padding, XXH3-128, and SHA-256 against id (NULL: it is only computed). 0: *ret_verdict says
 * what was found, intact or not; -QR_E_NOT_FOUND; -QR_E_IO; -QR_E_MEMORY. */
int qr_chunk_verify(int folder, const char *path, const uint8_t id[32], qr_chunk_verdict_t *ret_verdict);

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

typedef struct qr_chunk_writer qr_chunk_writer_t;

/* Creates folder/path (it must not exist) with mode 0600 and writes header, tokens and padding. header: valid, with its digest
 * (qr_chunk_digest) and the chain hash of tokens[count]. 0; -QR_E_INVALID; -QR_E_IN_USE: the name exists; -QR_E_NO_SPACE; -QR_E_IO;
 * -QR_E_MEMORY. On failure nothing is left under the name. */
int qr_chunk_writer_new(int folder, const char *path, const qr_chunk_header_t *header, const uint32_t *tokens,
                        qr_chunk_writer_t **ret_writer);
/* The next bytes of payload. -QR_E_INVALID: more than the header says. After a failure only destroy is left to do. */
int qr_chunk_writer_put(qr_chunk_writer_t *writer, const void *bytes, size_t count);
/* After the last byte: fsync. 0 and the content id (the file is durable as soon as its name is); -QR_E_INVALID: payload is missing;
 * -QR_E_FORMAT: what was written is not what the header's digest was taken of; -QR_E_NO_SPACE; -QR_E_IO. */
int qr_chunk_writer_end(qr_chunk_writer_t *writer, uint8_t ret_id[32]);
/* Closes and frees; accepts NULL. The file stays: whoever chose the name renames or unlinks it. */
void qr_chunk_writer_destroy(qr_chunk_writer_t **writer);

/* -QR_E_NO_SPACE, -QR_E_NOT_FOUND, -QR_E_PERMISSION, -QR_E_IN_USE, -QR_E_MEMORY or -QR_E_IO for an errno of a file's system call. */
int qr_chunk_error_of(int number);

#endif
