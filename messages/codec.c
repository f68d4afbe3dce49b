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

enum { FORM_NUMBER = 1, FORM_BIN = 2, FORM_OTHER = 3 };

/* One element of the array: a number, or where a bin lies in the frame, or something to step over. */
typedef struct {
    const uint8_t *bin; /* FORM_BIN */
    uint64_t value;     /* FORM_NUMBER: the number; FORM_BIN: its bytes */
    uint32_t form;
    uint32_t reserved;
} element_t;

typedef struct {
    const uint8_t *at, *end;
    int error; /* 0 or the first -QR_E_*; reads go on and yield zeros */
} cursor_t;

static inline void fail(cursor_t *cursor, int code)
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

/* An unsigned big-endian number of 1, 2, 4 or 8 bytes. */
static inline uint64_t take_big(cursor_t *cursor, unsigned bytes)
{
    const uint8_t *from = take(cursor, bytes);
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    if (!from) return 0;
    switch (bytes) {
    case 1: return *from;
    case 2: memcpy(&u16, from, 2); return __builtin_bswap16(u16);
    case 4: memcpy(&u32, from, 4); return __builtin_bswap32(u32);
    default: memcpy(&u64, from, 8); return __builtin_bswap64(u64);
    }
}

static inline void read_number(cursor_t *cursor, unsigned bytes, element_t *element)
{
    element->form = FORM_NUMBER;
    element->value = take_big(cursor, bytes);
}

/* msgpack's signed forms are numbers too while they are not negative; negative ones fit no field. */
static void read_signed(cursor_t *cursor, unsigned bytes, element_t *element)
{
    read_number(cursor, bytes, element);
    if (element->value >> (8 * bytes - 1)) element->form = FORM_OTHER;
}

static inline void read_bin(cursor_t *cursor, unsigned length_bytes, element_t *element)
{
    element->form = FORM_BIN;
    element->value = take_big(cursor, length_bytes);
    element->bin = take(cursor, element->value);
}

static void skip(cursor_t *cursor, uint64_t bytes, element_t *element)
{
    element->form = FORM_OTHER;
    (void)take(cursor, bytes);
}

/* Scalars that no field of this version has: stepped over, so that a newer schema may append them. */
static void read_other(cursor_t *cursor, uint8_t tag, element_t *element)
{
    if (tag >= 0xe0) {
        skip(cursor, 0, element); /* small negative integer */
        return;
    }
    if ((tag & 0xe0) == 0xa0) {
        skip(cursor, tag & 0x1fu, element); /* short string */
        return;
    }
    switch (tag) {
    case 0xc0:
    case 0xc2:
    case 0xc3: skip(cursor, 0, element); break; /* nil, false, true */
    case 0xc7: skip(cursor, take_big(cursor, 1) + 1, element); break; /* extensions: a type byte, then the body */
    case 0xc8: skip(cursor, take_big(cursor, 2) + 1, element); break;
    case 0xc9: skip(cursor, take_big(cursor, 4) + 1, element); break;
    case 0xca: skip(cursor, 4, element); break; /* floats */
    case 0xcb: skip(cursor, 8, element); break;
    case 0xd0: read_signed(cursor, 1, element); break;
    case 0xd1: read_signed(cursor, 2, element); break;
    case 0xd2: read_signed(cursor, 4, element); break;
    case 0xd3: read_signed(cursor, 8, element); break;
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8: skip(cursor, 1 + (1ull << (tag - 0xd4)), element); break;
    case 0xd9: skip(cursor, take_big(cursor, 1), element); break; /* strings */
    case 0xda: skip(cursor, take_big(cursor, 2), element); break;
    case 0xdb: skip(cursor, take_big(cursor, 4), element); break;
    default: if (!QR_MUTANT(14)) fail(cursor, QR_E_FORMAT); break; /* containers and the tag that is never used */
    }
}

static inline void read_element(cursor_t *cursor, element_t *element)
{
    *element = (element_t){0};
    const uint8_t *tag = take(cursor, 1);
    if (!tag) return;
    if (*tag < 0x80) {
        element->form = FORM_NUMBER;
        element->value = *tag;
        return;
    }
    switch (*tag) {
    case 0xc4: read_bin(cursor, 1, element); break;
    case 0xc5: read_bin(cursor, 2, element); break;
    case 0xc6: read_bin(cursor, 4, element); break;
    case 0xcc: read_number(cursor, 1, element); break;
    case 0xcd: read_number(cursor, 2, element); break;
    case 0xce: read_number(cursor, 4, element); break;
    case 0xcf: read_number(cursor, 8, element); break;
    default: read_other(cursor, *tag, element); break;
    }
}

/* The outermost array's element count; it is held against the remaining bytes (an element needs one at least). */
static inline uint32_t read_array(cursor_t *cursor)
{
    const uint8_t *tag = take(cursor, 1);
    uint64_t count = 0;
    if (!tag) return 0;
    if ((*tag & 0xf0) == 0x90) count = *tag & 0x0fu;
    else if (*tag == 0xdc) count = take_big(cursor, 2);
    else if (*tag == 0xdd) count = take_big(cursor, 4);
    else fail(cursor, QR_E_FORMAT);
    if (cursor->error) return 0;
    if (count > (uint64_t)(cursor->end - cursor->at)) fail(cursor, QR_E_TRUNCATED);
    else if (count > QR_MESSAGE_ELEMENTS_MAX) fail(cursor, QR_E_LIMIT);
    else if (count < QR_HEAD_ELEMENTS) fail(cursor, QR_E_FORMAT);
    return cursor->error ? 0 : (uint32_t)count;
}

/* ---- decode --------------------------------------------------------------------------------------------------------- */

/* The envelope's six elements. */
static void read_head(cursor_t *cursor, qr_peek_t *peek)
{
    element_t head[QR_HEAD_ELEMENTS];
    peek->elements = (uint16_t)read_array(cursor);
    for (unsigned i = 0; i < QR_HEAD_ELEMENTS; i++) {
        read_element(cursor, &head[i]);
        if (head[i].form != FORM_NUMBER) fail(cursor, QR_E_FORMAT);
    }
    if (cursor->error) return;
    if (head[1].value != QR_MESSAGE_VERSION) fail(cursor, QR_E_UNSUPPORTED);
    if (head[0].value > UINT16_MAX) fail(cursor, QR_E_FORMAT);
    peek->type = (uint16_t)head[0].value;
    peek->from = head[2].value;
    peek->to = head[3].value;
    peek->epoch = head[4].value;
    peek->sequence = head[5].value;
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

/* Whether the element can be the field. */
static inline bool element_fits(const element_t *element, uint8_t kind)
{
    uint32_t bytes = qr_kind_bytes(kind);
    if (kind < QR_KIND_HASH) return element->form == FORM_NUMBER && (bytes == 8 || element->value >> (8 * bytes) == 0 || QR_MUTANT(12));
    if (element->form != FORM_BIN) return false;
    return kind == QR_KIND_HASH ? element->value == bytes : (element->value & (bytes - 1)) == 0 || QR_MUTANT(10);
}

/* Puts a checked element into its field. false: the arena is full. */
static inline bool field_fill(const element_t *element, const qr_field_t *field, qr_arena_t *arena, void *body)
{
    if (field->kind < QR_KIND_HASH) {
        qr_number_set(body, field, element->value);
        return true;
    }
    if (field->kind == QR_KIND_HASH) {
        memcpy((uint8_t *)body + field->offset, element->bin, sizeof(qr_hash_t));
        return true;
    }
    if (element->value == 0) return true;
    void *column = qr_arena_take(arena, element->value);
    if (!column) return false;
    memcpy(column, element->bin, element->value);
    qr_column_set(body, field, column, element->value / qr_kind_bytes(field->kind));
    return true;
}

int qr_codec_decode(const uint8_t *bytes, size_t count, qr_arena_t *arena, qr_message_t *ret_message)
{
    cursor_t cursor = {bytes, bytes + count, 0};
    qr_peek_t head = {0};
    element_t elements[QR_FIELDS_MAX];
    if (count > QR_MESSAGE_BYTES_MAX) return -QR_E_LIMIT;
    read_head(&cursor, &head);
    if (cursor.error) return cursor.error;
    const qr_schema_t *row = qr_schema_find(head.type);
    if (!row) return -QR_E_UNSUPPORTED;
    uint32_t given = head.elements - (uint32_t)QR_HEAD_ELEMENTS, known = qr_min_u32(given, row->field_count);
    if (given < row->required_count) return -QR_E_FORMAT;
    for (uint32_t i = 0; i < given; i++) {
        read_element(&cursor, &elements[i]);
        if (i < known && !element_fits(&elements[i], row->fields[i].kind)) fail(&cursor, QR_E_FORMAT);
    }
    if (cursor.error) return cursor.error;
    if (cursor.at != cursor.end && !QR_MUTANT(13)) return -QR_E_FORMAT;

    /* Columns first: the arena is the only thing that can still refuse, and then nothing must have been written. */
    uint64_t need = 0;
    for (uint32_t i = 0; i < known; i++) need += qr_kind_is_column(row->fields[i].kind) ? qr_round_up(elements[i].value, 8) : 0;
    if (need > arena->capacity - arena->used) return -QR_E_MEMORY;
    memset(ret_message, 0, offsetof(qr_message_t, body));
    memset(&ret_message->body, 0, row->bytes);
    ret_message->type = head.type;
    ret_message->version = QR_MESSAGE_VERSION;
    ret_message->from = head.from;
    ret_message->to = head.to;
    ret_message->epoch = head.epoch;
    ret_message->sequence = head.sequence;
    for (uint32_t i = 0; i < known; i++)
        if (!field_fill(&elements[i], &row->fields[i], arena, &ret_message->body)) qr_unreachable("the arena was measured");
    return 0;
}
