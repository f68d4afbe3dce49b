/* schema.c - the constant tables of schema.h, one block per row of schema.def.
 *
 * A number used twice is a duplicate case label, a field that does not exist fails offsetof, a body larger than the union of
 * qr_message_t fails a static assertion: the table checks itself at compile time. */
#include "messages/schema.h"

#define REQUIRED 1
#define OPTIONAL 0
enum { QR_MESSAGE_none = 0 };

_Static_assert(sizeof(qr_bytes_t) == sizeof(qr_column_t) && offsetof(qr_bytes_t, count) == offsetof(qr_column_t, count), "column");
_Static_assert(sizeof(qr_u32s_t) == sizeof(qr_column_t) && offsetof(qr_u32s_t, count) == offsetof(qr_column_t, count), "column");
_Static_assert(sizeof(qr_u64s_t) == sizeof(qr_column_t) && offsetof(qr_u64s_t, count) == offsetof(qr_column_t, count), "column");
_Static_assert(sizeof(qr_hash_t) == 32, "digest in place");

/* Counts of a message's fields, one flag per field summed in an enum constant. */
enum {
#define BEGIN(name, number, mood, question, scope) name##_fields = 0
#define END(name) ,
#define U8(field, presence) + 1
#define U16(field, presence) + 1
#define U32(field, presence) + 1
#define U64(field, presence) + 1
#define HASH(field, presence) + 1
#define BYTES(field, presence) + 1
#define U32S(field, presence) + 1
#define U64S(field, presence) + 1
#include "messages/schema.def"
};
enum {
#define BEGIN(name, number, mood, question, scope) name##_required = 0
#define END(name) ,
#define U8(field, presence) + presence
#define U16(field, presence) + presence
#define U32(field, presence) + presence
#define U64(field, presence) + presence
#define HASH(field, presence) + presence
#define BYTES(field, presence) + presence
#define U32S(field, presence) + presence
#define U64S(field, presence) + presence
#include "messages/schema.def"
};
enum {
#define BEGIN(name, number, mood, question, scope) name##_columns = 0
#define END(name) ,
#define BYTES(field, presence) + 1
#define U32S(field, presence) + 1
#define U64S(field, presence) + 1
#include "messages/schema.def"
};

const qr_schema_t *qr_schema_find(uint16_t type)
{
    switch (type) {
#define BEGIN(name, number_, mood_, question_, scope_)                                                                             \
    case number_: {                                                                                                                \
        typedef qr_##name##_t body_t;                                                                                              \
        enum { mood = QR_MOOD_##mood_, question = QR_MESSAGE_##question_, scope = QR_SCOPE_##scope_ };                             \
        static const qr_field_t fields[] = {
#define FIELD(field, kind, presence) {#field, offsetof(body_t, field), kind, presence},
#define U8(field, presence) FIELD(field, QR_KIND_U8, presence)
#define U16(field, presence) FIELD(field, QR_KIND_U16, presence)
#define U32(field, presence) FIELD(field, QR_KIND_U32, presence)
#define U64(field, presence) FIELD(field, QR_KIND_U64, presence)
#define HASH(field, presence) FIELD(field, QR_KIND_HASH, presence)
#define BYTES(field, presence) FIELD(field, QR_KIND_BYTES, presence)
#define U32S(field, presence) FIELD(field, QR_KIND_U32S, presence)
#define U64S(field, presence) FIELD(field, QR_KIND_U64S, presence)
#define END(name)                                                                                                                  \
        };                                                                                                                         \
        _Static_assert(QR_MESSAGE_##name > 0 && QR_MESSAGE_##name < QR_MESSAGE_TYPES_MAX, "number of " #name);                     \
        _Static_assert(sizeof(body_t) <= sizeof(((qr_message_t *)0)->body.raw), "body of " #name " passes the union");             \
        _Static_assert(name##_fields >= 1 && name##_fields <= (int)QR_FIELDS_MAX, "fields of " #name);                                  \
        _Static_assert(((int)mood == QR_MOOD_ANSWER) == ((int)question != 0), "an answer names its question: " #name);         \
        static const qr_schema_t row = {#name, fields, QR_MESSAGE_##name, sizeof(body_t), question, name##_fields,                 \
                                        name##_required, name##_columns, mood, scope};                                             \
        return &row;                                                                                                               \
    }
#include "messages/schema.def"
#undef FIELD
    default: return NULL;
    }
}

const qr_schema_t *qr_schema_find_name(const char *name)
{
    size_t length = strlen(name);
    for (uint16_t type = 1; type < QR_MESSAGE_TYPES_MAX; type++) {
        const qr_schema_t *row = qr_schema_find(type);
        if (row && strlen(row->name) == length && memcmp(row->name, name, length) == 0) return row;
    }
    return NULL;
}

/* Names of roles by number. */
#define ROLE(name) [QR_ROLE_##name] = #name,
static const char *const roles[] = {
    ROLE(mesh) ROLE(http) ROLE(text) ROLE(gateway) ROLE(router) ROLE(worker) ROLE(scheduler)
    ROLE(page_manager) ROLE(executor) ROLE(heartbeat) ROLE(transfer) ROLE(storage) ROLE(facts)
    ROLE(catalog_writer) ROLE(catalog_replica) ROLE(restore_streamer) ROLE(checkpoint_writer) ROLE(uplink)
    ROLE(record) ROLE(prompt)
};
#undef ROLE
_Static_assert(QR_COUNT(roles) == QR_ROLE_prompt + 1, "a role without a name");

const char *qr_role_name(uint8_t role) { return role < QR_COUNT(roles) && roles[role] ? roles[role] : "unknown"; }

uint8_t qr_role_find(const char *name)
{
    size_t length = strlen(name);
    for (uint8_t role = 1; role < QR_COUNT(roles); role++)
        if (strlen(roles[role]) == length && memcmp(roles[role], name, length) == 0) return role;
    return 0;
}
