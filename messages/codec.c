/* codec.c - see codec.h. The cursor knows msgpack's scalars, reads integers and bins, steps over what a newer schema may append. */
#include "messages/codec.h"

#include "base/error.h"
#include "base/mutant.h"
#include "messages/schema.h"

#include <msgpack.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "columns are little-endian on the wire and copied as they lie");

/* ---- encode --------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at, *end;
} sink_t;

static inline int sink_write(void *context, const char *bytes, size_t count)
{
    sink_t *sink = context;
    if (count > (size_t)(sink->end - sink->at)) return -1;
    qr_copy(sink->at, bytes, count);
    sink->at += count;
    return 0;
}

static int put_bin(msgpack_packer *packer, const void *data, uint64_t bytes)
{
    const sink_t *sink = packer->data;
    if (bytes > (uint64_t)(sink->end - sink->at)) return -1;
    return msgpack_pack_bin(packer, bytes) | msgpack_pack_bin_body(packer, data, bytes);
}

static int put_field(msgpack_packer *packer, const void *body, const qr_field_t *field)
{
    if (field->kind < QR_KIND_HASH) return msgpack_pack_uint64(packer, qr_number_get(body, field));
    if (field->kind == QR_KIND_HASH) return put_bin(packer, (const uint8_t *)body + field->offset, sizeof(qr_hash_t));
    qr_column_t column = qr_column_get(body, field);
    if (column.count > QR_MESSAGE_BYTES_MAX) return -1;
    return put_bin(packer, column.data, column.count * qr_kind_bytes(field->kind));
}

static bool field_is_empty(const void *body, const qr_field_t *field)
{
    static const qr_hash_t zero;
    if (field->kind < QR_KIND_HASH) return qr_number_get(body, field) == 0;
    if (field->kind == QR_KIND_HASH) return memcmp((const uint8_t *)body + field->offset, &zero, sizeof zero) == 0;
    return qr_column_get(body, field).count == 0;
}

int64_t qr_codec_encode(const qr_message_t *message, uint8_t *buffer, size_t capacity)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    qr_assert(row != NULL);
    sink_t sink = {buffer, buffer + qr_min_u64(capacity, QR_MESSAGE_BYTES_MAX)};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &sink, sink_write);
    uint32_t fields = row->field_count;
    while (fields > row->required_count && field_is_empty(&message->body, &row->fields[fields - 1])) fields--;
    int bad = msgpack_pack_array(&packer, QR_HEAD_ELEMENTS + fields);
    bad |= msgpack_pack_uint64(&packer, message->type);
    bad |= msgpack_pack_uint64(&packer, QR_MESSAGE_VERSION);
    bad |= msgpack_pack_uint64(&packer, message->from);
    bad |= msgpack_pack_uint64(&packer, message->to);
    bad |= msgpack_pack_uint64(&packer, message->epoch);
    bad |= msgpack_pack_uint64(&packer, message->sequence);
    for (uint32_t i = 0; i < fields; i++) bad |= put_field(&packer, &message->body, &row->fields[i]);
    return bad ? -QR_E_LIMIT : (int64_t)(sink.at - buffer);
}

/* ---- the cursor ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
    int error; /* 0 or the first -QR_E_*; reads go on and yield zeros */
} cursor_t;

static void fail(cursor_t *cursor, int code)
{
    if (cursor->error == 0) cursor->error = -code;
    cursor->at = cursor->end;
}

/* The next n bytes, or NULL when fewer remain. */
static inline const uint8_t *take(cursor_t *cursor, uint64_t n)
{
    const uint8_t *from = cursor->at;
    if (n > (uint64_t)(cursor->end - from) + QR_MUTANT(11)) {
        fail(cursor, QR_E_TRUNCATED);
        return NULL;
    }
    cursor->at += n;
    return from;
}

/* An unsigned big-endian number of 1, 2, 4 or 8 bytes. Away from the frame's end one load serves all sizes. */
static inline uint64_t take_big(cursor_t *cursor, unsigned bytes)
{
    uint64_t number = 0;
    if (cursor->end - cursor->at >= 8) {
        memcpy(&number, cursor->at, 8);
        cursor->at += bytes;
        return __builtin_bswap64(number) >> (64 - 8 * bytes);
    }
    const uint8_t *from = take(cursor, bytes);
    for (unsigned i = 0; from && i < bytes; i++) number = number << 8 | from[i];
    return number;
}

/* msgpack's signed forms are numbers too while they are not negative; negative ones fit no field. */
static uint64_t read_signed(cursor_t *cursor, uint8_t tag)
{
    if (tag < 0xd0 || tag > 0xd3) {
        fail(cursor, QR_E_FORMAT);
        return 0;
    }
    unsigned bytes = 1u << (tag - 0xd0);
    uint64_t number = take_big(cursor, bytes);
    if (number >> (8 * bytes - 1)) fail(cursor, QR_E_FORMAT);
    return number;
}

static inline uint64_t read_number(cursor_t *cursor)
{
    const uint8_t *tag = take(cursor, 1);
    if (!tag) return 0;
    if (*tag < 0x80) return *tag;
    if (*tag >= 0xcc && *tag <= 0xcf) return take_big(cursor, 1u << (*tag - 0xcc));
    return read_signed(cursor, *tag);
}

/* A bin: where its bytes lie in the frame, their count in *ret_bytes; NULL and 0 if there is none. */
static inline const uint8_t *read_bin(cursor_t *cursor, uint64_t *ret_bytes)
{
    const uint8_t *tag = take(cursor, 1);
    *ret_bytes = 0;
    if (!tag) return NULL;
    if (*tag < 0xc4 || *tag > 0xc6) {
        fail(cursor, QR_E_FORMAT);
        return NULL;
    }
    uint64_t bytes = take_big(cursor, 1u << (*tag - 0xc4));
    const uint8_t *from = take(cursor, bytes);
    if (from) *ret_bytes = bytes;
    return from;
}

/* Steps over one scalar of any form: what a newer schema may append. Containers are refused. */
static void skip_element(cursor_t *cursor)
{
    const uint8_t *at = take(cursor, 1);
    uint8_t tag = at ? *at : 0;
    uint64_t bytes = 0;
    if (tag < 0x80 || tag >= 0xe0) return; /* small integers */
    switch (tag) {
    case 0xc0: /* nil, false, true */
    case 0xc2:
    case 0xc3: break;
    case 0xc4: /* bin */
    case 0xc5:
    case 0xc6: bytes = take_big(cursor, 1u << (tag - 0xc4)); break;
    case 0xc7: /* extension: a type byte, then the body */
    case 0xc8:
    case 0xc9: bytes = take_big(cursor, 1u << (tag - 0xc7)) + 1; break;
    case 0xca: /* floats */
    case 0xcb: bytes = tag == 0xca ? 4 : 8; break;
    case 0xcc: /* unsigned, then signed */
    case 0xcd:
    case 0xce:
    case 0xcf:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: bytes = 1u << (tag & 3); break;
    case 0xd4: /* extensions of fixed size */
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8: bytes = 1u + (1u << (tag - 0xd4)); break;
    case 0xd9: /* strings */
    case 0xda:
    case 0xdb: bytes = take_big(cursor, 1u << (tag - 0xd9)); break;
    default:
        if ((tag & 0xe0) == 0xa0) bytes = tag & 0x1fu;      /* short string */
        else if (!QR_MUTANT(14)) fail(cursor, QR_E_FORMAT); /* containers, and the tag that is never used */
    }
    (void)take(cursor, bytes);
}

/* The outermost array's element count; it is held against the remaining bytes (an element needs one at least). */
static inline uint32_t read_array(cursor_t *cursor)
{
    const uint8_t *tag = take(cursor, 1);
    uint64_t count = 0;
    if (!tag) return 0;
    if ((*tag & 0xf0) == 0x90) count = *tag & 0x0fu;
    else if (*tag == 0xdc || *tag == 0xdd) count = take_big(cursor, *tag == 0xdc ? 2 : 4);
    else fail(cursor, QR_E_FORMAT);
    if (cursor->error) return 0;
    if (count > (uint64_t)(cursor->end - cursor->at)) fail(cursor, QR_E_TRUNCATED);
    else if (count > QR_MESSAGE_ELEMENTS_MAX) fail(cursor, QR_E_LIMIT);
    else if (count < QR_HEAD_ELEMENTS) fail(cursor, QR_E_FORMAT);
    return cursor->error ? 0 : (uint32_t)count;
}

/* ---- decode --------------------------------------------------------------------------------------------------------- */

/* The envelope's six elements. */
static inline void read_head(cursor_t *cursor, qr_peek_t *peek)
{
    peek->elements = (uint16_t)read_array(cursor);
    uint64_t type = read_number(cursor), version = read_number(cursor);
    peek->from = read_number(cursor);
    peek->to = read_number(cursor);
    peek->epoch = read_number(cursor);
    peek->sequence = read_number(cursor);
    peek->type = (uint16_t)type;
    if (cursor->error) return;
    if (version != QR_MESSAGE_VERSION) fail(cursor, QR_E_UNSUPPORTED);
    if (type > UINT16_MAX) fail(cursor, QR_E_FORMAT);
}

int qr_codec_peek(const uint8_t *bytes, size_t count, qr_peek_t *ret_peek)
{
    cursor_t cursor = {bytes, bytes + count, 0};
    qr_peek_t peek = {0};
    if (count > QR_MESSAGE_BYTES_MAX) return -QR_E_LIMIT;
    read_head(&cursor, &peek);
    if (cursor.error) return cursor.error;
    *ret_peek = peek;
    return 0;
}

/* Reads a field into the body; a column is noted where it lies in the frame. Returns the arena bytes it will need. */
static inline uint64_t read_field(cursor_t *cursor, const qr_field_t *field, void *body)
{
    uint32_t size = qr_kind_bytes(field->kind);
    uint64_t bytes;
    if (field->kind < QR_KIND_HASH) {
        uint64_t number = read_number(cursor);
        if (size < 8 && number >> (8 * size) && !QR_MUTANT(12)) fail(cursor, QR_E_FORMAT);
        qr_number_set(body, field, number);
        return 0;
    }
    const uint8_t *bin = read_bin(cursor, &bytes);
    if (field->kind == QR_KIND_HASH) {
        if (bytes == size) memcpy((uint8_t *)body + field->offset, bin, size);
        else fail(cursor, QR_E_FORMAT);
        return 0;
    }
    if ((bytes & (size - 1)) != 0 && !QR_MUTANT(10)) fail(cursor, QR_E_FORMAT); /* sizes are powers of two */
    qr_column_set(body, field, bytes ? bin : NULL, bytes / size);
    return (bytes + 7) & ~(uint64_t)7;
}

/* Moves the columns from the frame into the arena, which has room for them. */
static inline void move_columns(const qr_schema_t *row, uint32_t fields, qr_arena_t *arena, void *body)
{
    for (uint32_t i = 0; i < fields; i++) {
        const qr_field_t *field = &row->fields[i];
        if (!qr_kind_is_column(field->kind)) continue;
        qr_column_t column = qr_column_get(body, field);
        if (column.count == 0) continue;
        uint64_t bytes = column.count * qr_kind_bytes(field->kind);
        void *to = qr_arena_take(arena, bytes);
        qr_assert(to != NULL);
        memcpy(to, column.data, bytes);
        qr_column_set(body, field, to, column.count);
    }
}

int qr_codec_decode(const uint8_t *bytes, size_t count, qr_arena_t *arena, qr_message_t *ret_message)
{
    cursor_t cursor = {bytes, bytes + count, 0};
    qr_peek_t head;
    uint64_t body[QR_COUNT(ret_message->body.raw)], need = 0;
    if (count > QR_MESSAGE_BYTES_MAX) return -QR_E_LIMIT;
    read_head(&cursor, &head);
    if (cursor.error) return cursor.error;
    const qr_schema_t *row = qr_schema_find(head.type);
    if (!row) return -QR_E_UNSUPPORTED;
    uint32_t given = head.elements - (uint32_t)QR_HEAD_ELEMENTS, known = qr_min_u32(given, row->field_count);
    if (given < row->required_count) return -QR_E_FORMAT;
    memset(body, 0, row->bytes);
    for (uint32_t i = 0; i < known; i++) need += read_field(&cursor, &row->fields[i], body);
    for (uint32_t i = known; i < given; i++) skip_element(&cursor);
    if (cursor.error) return cursor.error;
    if (cursor.at != cursor.end && !QR_MUTANT(13)) return -QR_E_FORMAT;
    if (need > arena->capacity - arena->used) return -QR_E_MEMORY;

    /* From here on nothing can fail. */
    if (row->column_count) move_columns(row, known, arena, body);
    memset(ret_message, 0, offsetof(qr_message_t, body));
    ret_message->type = head.type;
    ret_message->version = QR_MESSAGE_VERSION;
    ret_message->from = head.from;
    ret_message->to = head.to;
    ret_message->epoch = head.epoch;
    ret_message->sequence = head.sequence;
    memcpy(&ret_message->body, body, row->bytes);
    return 0;
}
