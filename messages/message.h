/* message.h - what a message is once decoded: the envelope and one struct per row of schema.def.
 *
 * M1. Columns point into memory of whoever made the message (the host's arena, the outbox, a test); they live until the
 *     handler returns. An empty column may have data == NULL.
 * M2. A struct is zero where the sender left a field out. */
#ifndef QR_MESSAGE_H
#define QR_MESSAGE_H

#include "base/base.h"
#include "base/limits.h"

typedef struct { const uint8_t *data; uint64_t count; } qr_bytes_t;  /* count bytes */
typedef struct { const uint32_t *data; uint64_t count; } qr_u32s_t;  /* count numbers, 4-byte aligned */
typedef struct { const uint64_t *data; uint64_t count; } qr_u64s_t;  /* count numbers, 8-byte aligned */
typedef struct { uint8_t bytes[32]; } qr_hash_t;                     /* SHA-256 digest */

/* One struct qr_<name>_t per message. */
#define BEGIN(name, number, mood, question, scope) typedef struct qr_##name {
#define END(name) } qr_##name##_t;
#define U8(field, presence) uint8_t field;
#define U16(field, presence) uint16_t field;
#define U32(field, presence) uint32_t field;
#define U64(field, presence) uint64_t field;
#define HASH(field, presence) qr_hash_t field;
#define BYTES(field, presence) qr_bytes_t field;
#define U32S(field, presence) qr_u32s_t field;
#define U64S(field, presence) qr_u64s_t field;
#include "messages/schema.def"

/* QR_MESSAGE_<name> = its number. */
enum {
#define BEGIN(name, number, mood, question, scope) QR_MESSAGE_##name = (number),
#include "messages/schema.def"
    QR_MESSAGE_TYPES_MAX = 256 /* numbers are below this */
};

typedef struct qr_message {
    uint16_t type;     /* QR_MESSAGE_* */
    uint16_t version;  /* 1 */
    uint32_t reserved; /* 0 */
    uint64_t from, to; /* addresses */
    uint64_t epoch;    /* sender's incarnation */
    uint64_t sequence; /* per (from, to), set by the sending host */
    uint64_t now_us;   /* receiver's clock, read once per turn of its host */
    union {
        uint64_t raw[64];
#define BEGIN(name, number, mood, question, scope) qr_##name##_t name;
#include "messages/schema.def"
    } body;
} qr_message_t;

/* ---- addresses: node << 32 | device << 24 | role << 16 | instance -------------------------------------------------- */

enum qr_role {
    QR_ROLE_mesh = 1, QR_ROLE_http, QR_ROLE_text, QR_ROLE_gateway, QR_ROLE_router, QR_ROLE_worker, QR_ROLE_scheduler,
    QR_ROLE_page_manager, QR_ROLE_executor, QR_ROLE_heartbeat, QR_ROLE_transfer, QR_ROLE_storage, QR_ROLE_facts,
    QR_ROLE_catalog_writer, QR_ROLE_catalog_replica, QR_ROLE_restore_streamer, QR_ROLE_checkpoint_writer, QR_ROLE_uplink,
    QR_ROLE_record, QR_ROLE_prompt,
    QR_ROLES_MAX = 32
};
static inline uint64_t qr_address(uint32_t node, uint8_t device, uint8_t role, uint16_t instance)
{
    return (uint64_t)node << 32 | (uint64_t)device << 24 | (uint64_t)role << 16 | instance;
}
static inline uint32_t qr_address_node(uint64_t a) { return (uint32_t)(a >> 32); }
static inline uint8_t qr_address_device(uint64_t a) { return (uint8_t)(a >> 24); }
static inline uint8_t qr_address_role(uint64_t a) { return (uint8_t)(a >> 16); }
/* The partner of one failure unit: same node and device, another role, instance 0. */
static inline uint64_t qr_address_partner(uint64_t a, uint8_t role) { return (a & 0xffffffffff000000u) | (uint64_t)role << 16; }

/* ---- words of the vocabulary ---------------------------------------------------------------------------------------- */

enum { QR_INPUT_TEXT = 1, QR_INPUT_TOKENS = 2, QR_INPUT_CHAT = 3 };
enum { QR_CHAT_SYSTEM = 0, QR_CHAT_USER = 1, QR_CHAT_ASSISTANT = 2, QR_CHAT_TOOL = 3, QR_CHAT_DEVELOPER = 4 };
enum {
    QR_FINISH_NONE = 0,
    QR_FINISH_STOP = 1,      /* end-of-sequence token or stop string */
    QR_FINISH_LENGTH = 2,    /* max_tokens or the context's end */
    QR_FINISH_CANCELLED = 3, /* the asker left */
    QR_FINISH_ERROR = 4,     /* error says why */
    QR_FINISH_REFUSED = 5    /* never ran; error says why */
};
enum { QR_ROW_SAMPLE = 1, QR_ROW_LOGPROB = 2 };
enum { QR_CATALOG_NODE = 1, QR_CATALOG_PART = 2, QR_CATALOG_REPLICA = 3, QR_CATALOG_WITHDRAW = 4, QR_CATALOG_DROP = 5 };
enum { QR_TIER_RAM = 1, QR_TIER_SSD = 2, QR_TIER_OBJECT = 3 };
/* Where the rows of a prefix come from. */
enum { QR_SOURCE_RESIDENT = 1, QR_SOURCE_RAM = 2, QR_SOURCE_SSD = 3, QR_SOURCE_PEER = 4, QR_SOURCE_OBJECT = 5, QR_SOURCE_RECOMPUTE = 6 };
/* The first policy: a restore takes 1 ms and 1 ns a byte, from memory 20 us and 1/4 ns; computing a row 1 ms. */
#define QR_POLICY_BUILT_IN ((qr_policy_snapshot_t){1, 1000000, 1000, 20000, 250, 1000000})
enum { QR_DECISION_LOAD = 1 };
enum { QR_STATE_STARTING = 0, QR_STATE_READY = 1, QR_STATE_DRAINING = 2, QR_STATE_DOWN = 3 };

#endif
