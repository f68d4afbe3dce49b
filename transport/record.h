/* record.h - what every actor received, on disk, so that it can be shown (tap) and replayed.
 *
 * A host thread fills blocks of entries and hands whole blocks to the record thread; only that one touches files. A segment is one
 * file NODE-ACTOR-N (formats.md): header, then blocks of a snapshot and entries.
 *
 * C1. At most QR_RECORD_BLOCKS_MAX blocks of one host are on their way; at the bound the host drops entries and begins new segments
 *     (with snapshots) once there is room again: a segment never has a hole.
 * C2. All segments of a node hold at most record_bytes; the oldest are deleted first, never the one being written.
 * C3. What a replay acts on is covered by checks: the head up to the first entry, each entry's head, each message. They find damage,
 *     not malice.
 * C4. One recorder at a time writes a node's segments in a folder: whoever finds one of them locked by its writer does not begin. */
#ifndef QR_RECORD_H
#define QR_RECORD_H

#include "messages/message.h"
#include "transport/port.h"

enum { QR_RECORD_BLOCK_BYTES = 64 << 10, QR_RECORD_BLOCKS_MAX = 256, QR_RECORD_VERSION = 2, QR_RECORD_STATE_MAX = 1 << 30 };
enum { QR_ENTRY_MESSAGE = 1, QR_ENTRY_ALARM = 2, QR_ENTRY_PIECE = 3 };
static inline uint32_t qr_entry_kind(uint32_t kind) { return kind & 0xff; }
static inline uint32_t qr_entry_place(uint32_t kind) { return kind >> 8; }
#define QR_RECORD_MAGIC "QRRECORD"

/* First bytes of a segment file; all little-endian. After it: config_bytes of `name = value` lines (every parameter, then the layout),
 * then the snapshot, then entries up to the end of the file. */
typedef struct qr_record_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t schema_hash;
    uint64_t address, epoch;
    uint64_t begun_us; /* now_us of the sender's clock */
    char actor[32];
    uint32_t node;
    uint32_t check; /* of this header, with this field 0 */
    uint64_t given_digest; /* of the plain parts of qr_given_t */
    uint32_t config_bytes;
    uint32_t pure; /* 1: the snapshot holds the state, the entries can be replayed */
} qr_record_header_t;

typedef struct qr_record_snapshot {
    uint64_t alarm_us, now_us;
    uint64_t state_bytes; /* size of the state block; 0: not kept (an io actor, or it is larger than a segment may be) */
    uint64_t run_bytes;   /* of the runs that hold it */
    uint32_t partner_count;
    uint32_t check;     /* of all from the file's first byte to the last run, with this field and the next 0 */
    uint32_t own_check; /* of all that stands before it in this struct */
    uint32_t reserved;
} qr_record_snapshot_t; /* then partner_count partners, then the state as runs, then entries */

/* A run of the state block: what lies between runs is zero. The last run has 0 bytes. Without state there is no run at all. */
typedef struct qr_record_run {
    uint64_t offset, bytes;
} qr_record_run_t;

typedef struct qr_record_partner {
    uint64_t address, epoch_in, sequence_in, sequence_out;
    uint32_t asked, owed; /* open questions, all kinds together */
} qr_record_partner_t;

typedef struct qr_record_entry {
    uint64_t now_us;
    uint32_t bytes, kind;              /* of the message that follows; QR_ENTRY_* in the low 8 bits, above them its place in its host's
                                        * turn (entries of one turn share now_us) */
    uint64_t hash;                     /* of what was emitted */
    uint32_t message_check, head_check; /* of the message; of all that stands before head_check */
} qr_record_entry_t;                   /* then bytes of message */
_Static_assert(sizeof(qr_record_entry_t) == 32, "no padding");

struct qr_given;

/* ---- the sending side: one recorder per host thread ------------------------------------------------------------------ */

enum { QR_PIECE_OPEN = 1, QR_PIECE_DATA = 2 };
/* A block is a run of pieces: this header, then `bytes` bytes for the segment of `address`. OPEN begins a new segment with them. */
typedef struct qr_record_piece {
    uint64_t address;
    uint32_t kind, bytes;
} qr_record_piece_t;

typedef struct qr_recorder {
    qr_port_t *port;
    uint8_t *block; /* [capacity] being filled, or NULL */
    size_t used, capacity;
    uint64_t since_us;                  /* when its first piece was put in */
    atomic_int *on_the_way;             /* blocks handed over and not yet released; freed with the recorder */
    uint64_t schema_hash, given_digest; /* for headers; taken once, they cost too much at every segment */
    bool lost;                          /* the last block could not be handed over: every segment of this host must begin anew */
} qr_recorder_t;

/* The port's directory has to name a record port. -QR_E_MEMORY. */
int qr_recorder_init(qr_recorder_t *recorder, qr_port_t *port, const struct qr_given *given);
/* Appends one piece made of up to two runs. false: it was dropped, and `lost` is set. */
bool qr_recorder_put(qr_recorder_t *recorder, uint64_t address, uint32_t kind, const void *a, size_t a_bytes, const void *b, size_t b_bytes,
                     uint64_t now_us);
/* Appends a DATA piece that is one entry: head (its checks are made here), message[entry.bytes]. */
bool qr_recorder_put_entry(qr_recorder_t *recorder, uint64_t address, qr_record_entry_t entry, const void *message);
/* Digest of what `given` holds besides the configuration text: layout and vocabulary. */
uint64_t qr_record_given_digest(const struct qr_given *given);
/* Makes the header of a segment and the configuration behind it, malloced into *ret_bytes. Returns its bytes, 0 without memory. */
size_t qr_record_head_make(const qr_recorder_t *recorder, uint32_t node, const char *actor, uint64_t address, uint64_t epoch,
                           uint64_t now_us, const struct qr_given *given, bool pure, uint8_t **ret_bytes);
/* The runs of a state block, the last one included, malloced into *ret_runs. Returns their bytes; 0 when they are more than `most` or
 * there is no memory. */
size_t qr_record_runs_make(const void *state, uint64_t state_bytes, uint64_t most, uint8_t **ret_runs);
/* Hands over a block older than 20 ms; returns when to look again. At the end: `all`. */
uint64_t qr_recorder_turn(qr_recorder_t *recorder, uint64_t now_us, bool all);
/* Whether new segments may begin after a loss (half of the blocks came back); clears `lost`. */
bool qr_recorder_recovered(qr_recorder_t *recorder);
void qr_recorder_done(qr_recorder_t *recorder);

/* ---- the record thread -------------------------------------------------------------------------------------------------- */

typedef struct qr_record_config {
    qr_directory_t *directory;
    uint32_t port;
    const char *folder, *node;
    uint64_t most_bytes; /* of all segments */
} qr_record_config_t;
/* Makes the folder if missing. 0 or -QR_E_IO. */
int qr_record_folder(const char *folder);
/* Body of the thread: writes until the close frame. Tells `opened` 0, -QR_E_MEMORY, -QR_E_IO or -QR_E_IN_USE (C4), then it ends. */
void qr_record_run(const qr_record_config_t *config, void (*opened)(void *context, int code), void *context);

/* 64-bit hash of a run of emitted bytes; `hash` chains (start with 0). Not cryptographic. */
uint64_t qr_record_hash(uint64_t hash, const void *bytes, size_t count);
/* Its 32 bits as a check. */
static inline uint32_t qr_record_fold(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }
static inline uint32_t qr_record_entry_check(const qr_record_entry_t *entry)
{
    return qr_record_fold(qr_record_hash(0, entry, offsetof(qr_record_entry_t, head_check)));
}
static inline uint32_t qr_record_header_check(const qr_record_header_t *header)
{
    qr_record_header_t unchecked = *header;
    unchecked.check = 0;
    return qr_record_fold(qr_record_hash(0, &unchecked, sizeof unchecked));
}
static inline uint32_t qr_record_snapshot_check(const qr_record_snapshot_t *snapshot)
{
    return qr_record_fold(qr_record_hash(0, snapshot, offsetof(qr_record_snapshot_t, own_check)));
}
/* Hash of a segment's head up to its state: header, configuration, snapshot (its checks taken as 0), partners. */
uint64_t qr_record_head_hash(const qr_record_header_t *header, const void *config, const qr_record_snapshot_t *snapshot,
                             const qr_record_partner_t *partners);
/* Hash of one more run of the state; the last one, of 0 bytes, included. */
static inline uint64_t qr_record_run_hash(uint64_t hash, const qr_record_run_t *run, const void *bytes)
{
    return qr_record_hash(qr_record_hash(hash, run, sizeof *run), bytes, run->bytes);
}
/* Puts run_bytes and both checks into a snapshot: head[..] as qr_record_head_make made it, runs as qr_record_runs_make did. */
void qr_record_head_seal(const uint8_t *head, qr_record_snapshot_t *snapshot, const qr_record_partner_t *partners, const uint8_t *runs,
                         size_t run_bytes);

#endif
