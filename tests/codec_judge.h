/* codec_judge.h - msgpack-c as the judge of messages/codec.c: what it makes of the same bytes, element by element, against the
 * rules of formats.md. Shared by the property test and the fuzz target. It shares no code with the cursor. */
#ifndef QR_TESTS_CODEC_JUDGE_H
#define QR_TESTS_CODEC_JUDGE_H

#include "messages/codec.h"
#include "messages/schema.h"

#include <msgpack.h>

typedef struct {
    bool legal;     /* a message of this version and schema */
    uint32_t count; /* elements of the array */
    msgpack_object elements[QR_MESSAGE_ELEMENTS_MAX];
} judgement_t;

/* Element count of an array header at the front, its bytes in *ret_bytes; UINT64_MAX if there is none. */
static uint64_t judge_array(const uint8_t *bytes, size_t count, size_t *ret_bytes)
{
    if (count >= 1 && bytes[0] >= 0x90 && bytes[0] <= 0x9f) return *ret_bytes = 1, bytes[0] - 0x90u;
    if (count >= 3 && bytes[0] == 0xdc) return *ret_bytes = 3, (uint64_t)bytes[1] * 256 + bytes[2];
    if (count >= 5 && bytes[0] == 0xdd) {
        *ret_bytes = 5;
        return ((uint64_t)bytes[1] * 256 + bytes[2]) * 65536 + (uint64_t)bytes[3] * 256 + bytes[4];
    }
    return UINT64_MAX;
}

/* A container inside the array is refused before msgpack-c may allocate for the count it claims (TR-07). */
static bool judge_container(uint8_t tag) { return (tag >= 0x80 && tag <= 0x9f) || (tag >= 0xdc && tag <= 0xdf); }

static bool judge_number(const msgpack_object *object, uint64_t most)
{
    return object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 <= most;
}

static bool judge_field(const msgpack_object *object, uint8_t kind)
{
    switch (kind) {
    case QR_KIND_U8: return judge_number(object, UINT8_MAX);
    case QR_KIND_U16: return judge_number(object, UINT16_MAX);
    case QR_KIND_U32: return judge_number(object, UINT32_MAX);
    case QR_KIND_U64: return judge_number(object, UINT64_MAX);
    case QR_KIND_HASH: return object->type == MSGPACK_OBJECT_BIN && object->via.bin.size == 32;
    case QR_KIND_BYTES: return object->type == MSGPACK_OBJECT_BIN;
    case QR_KIND_U32S: return object->type == MSGPACK_OBJECT_BIN && object->via.bin.size % 4 == 0;
    case QR_KIND_U64S: return object->type == MSGPACK_OBJECT_BIN && object->via.bin.size % 8 == 0;
    default: return false;
    }
}

/* The elements alone: whether the bytes are one flat array of scalars, no more and no less. */
static bool judge_elements(const uint8_t *bytes, size_t count, msgpack_zone *zone, judgement_t *ret)
{
    size_t at = 0;
    uint64_t elements = judge_array(bytes, count, &at);
    if (elements > QR_MESSAGE_ELEMENTS_MAX) return false;
    ret->count = (uint32_t)elements;
    for (uint32_t i = 0; i < ret->count; i++) {
        if (at >= count || judge_container(bytes[at])) return false;
        msgpack_unpack_return rc = msgpack_unpack((const char *)bytes, count, &at, zone, &ret->elements[i]);
        if (rc != MSGPACK_UNPACK_SUCCESS && rc != MSGPACK_UNPACK_EXTRA_BYTES) return false;
    }
    if (at != count) return false;
    /* All at once must say the same as one by one. */
    msgpack_object whole;
    at = 0;
    qr_assert(msgpack_unpack((const char *)bytes, count, &at, zone, &whole) == MSGPACK_UNPACK_SUCCESS);
    qr_assert(whole.type == MSGPACK_OBJECT_ARRAY && whole.via.array.size == ret->count);
    return true;
}

static void judge(const uint8_t *bytes, size_t count, msgpack_zone *zone, judgement_t *ret)
{
    memset(ret, 0, sizeof *ret);
    if (count > QR_MESSAGE_BYTES_MAX || !judge_elements(bytes, count, zone, ret) || ret->count < 6) return;
    const msgpack_object *e = ret->elements;
    if (!judge_number(&e[0], UINT16_MAX) || !judge_number(&e[1], 1) || e[1].via.u64 != 1) return;
    for (int i = 2; i < 6; i++)
        if (!judge_number(&e[i], UINT64_MAX)) return;
    const qr_schema_t *row = qr_schema_find((uint16_t)e[0].via.u64);
    if (!row || ret->count - 6 < row->required_count) return;
    for (uint32_t i = 0; i < row->field_count && i + 6 < ret->count; i++)
        if (!judge_field(&e[6 + i], row->fields[i].kind)) return;
    ret->legal = true;
}

/* Whether a decoded message holds exactly what the judge read. */
static bool judge_agrees(const judgement_t *j, const qr_message_t *message)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    const msgpack_object *e = j->elements;
    if (!row || message->type != e[0].via.u64 || message->version != 1 || message->from != e[2].via.u64) return false;
    if (message->to != e[3].via.u64 || message->epoch != e[4].via.u64 || message->sequence != e[5].via.u64) return false;
    for (uint32_t i = 0; i < row->field_count; i++) {
        const qr_field_t *field = &row->fields[i];
        const msgpack_object *given = i + 6 < j->count ? &e[i + 6] : NULL;
        const uint8_t *place = (const uint8_t *)&message->body + field->offset;
        if (qr_kind_is_column(field->kind)) {
            qr_column_t column = qr_column_get(&message->body, field);
            uint64_t bytes = column.count * qr_kind_bytes(field->kind);
            if (bytes != (given ? given->via.bin.size : 0) || ((uintptr_t)column.data & 7) != 0) return false;
            if (bytes && memcmp(column.data, given->via.bin.ptr, bytes) != 0) return false;
        } else if (field->kind == QR_KIND_HASH) {
            static const uint8_t zero[32];
            if (memcmp(place, given ? (const void *)given->via.bin.ptr : zero, 32) != 0) return false;
        } else if (qr_number_get(&message->body, field) != (given ? given->via.u64 : 0)) {
            return false;
        }
    }
    return true;
}

#endif
