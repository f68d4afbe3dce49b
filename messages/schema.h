/* schema.h - schema.def as tables that can be walked: what codec, printer, outbox, generator and document interpret.
 *
 * S1. Everything here is constant; nothing is allocated or changed at run time (part of every actor's closure).
 * S2. Fields of a row are in wire order, required ones first; offsets are into qr_<name>_t. */
#ifndef QR_SCHEMA_H
#define QR_SCHEMA_H

#include "messages/message.h"

enum qr_kind {
    QR_KIND_U8 = 1, QR_KIND_U16, QR_KIND_U32, QR_KIND_U64, /* one number */
    QR_KIND_HASH,                                          /* 32 bytes in place */
    QR_KIND_BYTES, QR_KIND_U32S, QR_KIND_U64S              /* columns: {pointer, count} */
};
enum { QR_MOOD_ASK = 1, QR_MOOD_ANSWER = 2, QR_MOOD_NOTICE = 3 };
enum { QR_SCOPE_LOCAL = 1, QR_SCOPE_NODE = 2 };
enum { QR_HEAD_ELEMENTS = 6 }; /* type, version, from, to, epoch, sequence */
enum { QR_MESSAGE_VERSION = 1, QR_FIELDS_MAX = QR_MESSAGE_ELEMENTS_MAX - QR_HEAD_ELEMENTS };

typedef struct qr_field {
    const char *name;
    uint16_t offset;  /* in the body struct */
    uint8_t kind;     /* QR_KIND_* */
    uint8_t required; /* 1: a message without it is refused */
} qr_field_t;

typedef struct qr_schema {
    const char *name;
    const qr_field_t *fields; /* [field_count] */
    uint16_t number;          /* QR_MESSAGE_* */
    uint16_t bytes;           /* sizeof(qr_<name>_t) */
    uint16_t question;        /* ANSWER: the ask it closes; else 0 */
    uint8_t field_count, required_count;
    uint8_t column_count;     /* fields of column kinds */
    uint8_t mood, scope;      /* QR_MOOD_*, QR_SCOPE_* */
} qr_schema_t;

/* A column field seen without its element type; the three column structs have exactly this shape. */
typedef struct qr_column {
    const void *data;
    uint64_t count; /* elements */
} qr_column_t;

/* The row of a type, NULL for a number that no message has. */
const qr_schema_t *qr_schema_find(uint16_t type);
/* The row with this name, NULL without one. */
const qr_schema_t *qr_schema_find_name(const char *name);

/* "scheduler" for QR_ROLE_scheduler, "unknown" for a number that no role has; and back (0 if no role has the name). */
const char *qr_role_name(uint8_t role);
uint8_t qr_role_find(const char *name);

/* Whether a kind is a column, and the bytes of one element (numbers and hash: of the value itself). */
static inline bool qr_kind_is_column(uint8_t kind) { return kind >= QR_KIND_BYTES; }
static inline uint32_t qr_kind_bytes(uint8_t kind)
{
    static const uint8_t bytes[] = {0, 1, 2, 4, 8, 32, 1, 4, 8};
    return bytes[kind];
}
/* Reads and writes a column field of a body. */
static inline qr_column_t qr_column_get(const void *body, const qr_field_t *field)
{
    qr_column_t column;
    memcpy(&column, (const uint8_t *)body + field->offset, sizeof column);
    return column;
}
static inline void qr_column_set(void *body, const qr_field_t *field, const void *data, uint64_t count)
{
    qr_column_t column = {data, count};
    memcpy((uint8_t *)body + field->offset, &column, sizeof column);
}
/* Reads and writes a number field of a body (kinds U8 to U64; the value must fit the kind). */
static inline uint64_t qr_number_get(const void *body, const qr_field_t *field)
{
    const uint8_t *at = (const uint8_t *)body + field->offset;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (field->kind) {
    case QR_KIND_U8: return *at;
    case QR_KIND_U16: memcpy(&u16, at, 2); return u16;
    case QR_KIND_U32: memcpy(&u32, at, 4); return u32;
    default: memcpy(&u64, at, 8); return u64;
    }
}
static inline void qr_number_set(void *body, const qr_field_t *field, uint64_t value)
{
    uint8_t *at = (uint8_t *)body + field->offset;
    uint16_t u16 = (uint16_t)value;
    uint32_t u32 = (uint32_t)value;
    switch (field->kind) {
    case QR_KIND_U8: *at = (uint8_t)value; break;
    case QR_KIND_U16: memcpy(at, &u16, 2); break;
    case QR_KIND_U32: memcpy(at, &u32, 4); break;
    default: memcpy(at, &value, 8); break;
    }
}

#endif
