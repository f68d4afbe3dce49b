#include "messages/random.h"

#include "messages/schema.h"

uint16_t qr_random_type(qr_prng_t *prng)
{
    for (;;) {
        uint16_t type = (uint16_t)qr_prng_below(prng, QR_MESSAGE_TYPES_MAX);
        if (qr_schema_find(type)) return type;
    }
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

/* All sizes are equally likely, so that every integer form of msgpack occurs. */
static uint64_t number_plain(qr_prng_t *prng, unsigned bits)
{
    uint64_t shift = qr_prng_between(prng, 64 - bits, 63);
    return qr_prng_one_in(prng, 8) ? 0 : qr_prng_next(prng) >> shift;
}

/* The ends of msgpack's integer forms and of the kind itself. */
static uint64_t number_boundary(qr_prng_t *prng, unsigned bits)
{
    static const uint64_t ends[] = {0,           1,         0x7f,       0x80,           0xff,       0x100,      0x7fff,
                                    0x8000,      0xffff,    0x10000,    0x7fffffff,     0x80000000, 0xfffffffe, 0xffffffff,
                                    0x100000000, INT64_MAX, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
    uint64_t most = UINT64_MAX >> (64 - bits), value = ends[qr_prng_below(prng, QR_COUNT(ends))];
    return value > most ? most - qr_prng_below(prng, 2) : value;
}

static uint64_t number(qr_prng_t *prng, uint32_t mode, unsigned bits)
{
    return mode == QR_RANDOM_BOUNDARY ? number_boundary(prng, bits) : number_plain(prng, bits);
}

static uint64_t column_count(qr_prng_t *prng, uint32_t mode, uint32_t element)
{
    /* Bytes around the ends of bin 8 and bin 16; one in a hundred columns passes bin 16. */
    static const uint64_t ends[] = {0, 8, 248, 256, 264, 65528, 65536, 65544};
    if (mode == QR_RANDOM_PLAIN) return qr_prng_one_in(prng, 4) ? 0 : qr_prng_below(prng, 41);
    if (qr_prng_one_in(prng, 1000)) return qr_prng_between(prng, 66000, 525000) / element;
    if (element == 1 && qr_prng_one_in(prng, 2)) return qr_prng_between(prng, 254, 257);
    return ends[qr_prng_below(prng, qr_prng_one_in(prng, 20) ? QR_COUNT(ends) : 5)] / element;
}

static void fill_column(qr_prng_t *prng, uint32_t mode, const qr_field_t *field, qr_arena_t *arena, void *body)
{
    uint32_t element = qr_kind_bytes(field->kind);
    uint64_t count = column_count(prng, mode, element), bytes = count * element;
    uint8_t *data = count ? qr_arena_take(arena, bytes) : NULL;
    if (!data) return;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = number(prng, mode, 8 * element);
        memcpy(data + i * element, &value, element); /* little-endian: the low bytes */
    }
    qr_column_set(body, field, data, count);
}

void qr_random_message(qr_prng_t *prng, uint32_t mode, uint16_t type, qr_arena_t *arena, qr_message_t *ret_message)
{
    const qr_schema_t *row = qr_schema_find(type);
    qr_assert(row != NULL);
    memset(ret_message, 0, sizeof *ret_message);
    ret_message->type = type;
    ret_message->version = QR_MESSAGE_VERSION;
    ret_message->from = number(prng, mode, 64);
    ret_message->to = number(prng, mode, 64);
    ret_message->epoch = number(prng, mode, 64);
    ret_message->sequence = number(prng, mode, 64);
    /* Optional fields at the end are missing half the time. */
    uint32_t fields = row->field_count;
    if (qr_prng_one_in(prng, 2)) fields = (uint32_t)qr_prng_between(prng, row->required_count, row->field_count);
    for (uint32_t i = 0; i < fields; i++) {
        const qr_field_t *field = &row->fields[i];
        if (qr_kind_is_column(field->kind)) {
            fill_column(prng, mode, field, arena, &ret_message->body);
        } else if (field->kind == QR_KIND_HASH) {
            for (uint32_t at = 0; at < sizeof(qr_hash_t); at += 8) {
                uint64_t word = number(prng, mode, 64);
                memcpy((uint8_t *)&ret_message->body + field->offset + at, &word, 8);
            }
        } else {
            qr_number_set(&ret_message->body, field, number(prng, mode, 8 * qr_kind_bytes(field->kind)));
        }
    }
}

/* ---- hostile bytes -------------------------------------------------------------------------------------------------- */

/* Tags whose bodies or counts run away: containers, long strings, bins and extensions, and msgpack's scalars. */
static const uint8_t tags[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5,
                               0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3,
                               0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff};

/* Moves buffer[at..count) by `bytes` up; the gap holds what was there. */
static size_t open_gap(uint8_t *buffer, size_t at, size_t count, size_t bytes, size_t capacity)
{
    if (bytes > capacity - count) return count;
    memmove(buffer + at + bytes, buffer + at, count - at);
    return count + bytes;
}

static size_t spoil_once(qr_prng_t *prng, uint8_t *buffer, size_t count, size_t capacity)
{
    size_t at = count ? (size_t)qr_prng_below(prng, count) : 0, length, grown;
    uint8_t tag = tags[qr_prng_below(prng, QR_COUNT(tags))];
    switch (qr_prng_below(prng, 9)) {
    case 0: /* a bit flipped */
        if (count) buffer[at] = (uint8_t)(buffer[at] ^ 1u << qr_prng_below(prng, 8));
        return count;
    case 1: /* cut */ return at;
    case 2: /* bytes appended */
        length = (size_t)qr_min_u64(qr_prng_below(prng, 20), capacity - count);
        for (size_t i = 0; i < length; i++) buffer[count + i] = (uint8_t)qr_prng_next(prng);
        return count + length;
    case 3: /* a tag replaced */
        if (count) buffer[at] = tag;
        return count;
    case 4: /* a length raised */
        for (size_t i = at; i < count && i < at + 4; i++) buffer[i] = 0xff;
        return count;
    case 5: /* a piece doubled */
        length = (size_t)qr_prng_between(prng, 0, qr_min_u64(32, count - at));
        return open_gap(buffer, at, count, length, capacity);
    case 6: /* a piece removed */
        length = (size_t)qr_prng_between(prng, 0, qr_min_u64(32, count - at));
        memmove(buffer + at, buffer + at + length, count - at - length);
        return count - length;
    case 7: /* an element inserted */
        grown = open_gap(buffer, at, count, 1, capacity);
        if (grown > count) buffer[at] = tag;
        return grown;
    default: /* the array's count changed */
        if (count >= 3 && buffer[0] == 0xdc)
            buffer[2] = (uint8_t)(buffer[2] + qr_prng_between(prng, 0, 6) - 3);
        else if (count)
            buffer[0] = (uint8_t)(0x90 | qr_prng_below(prng, 16));
        return count;
    }
}

size_t qr_random_spoil(qr_prng_t *prng, uint8_t *buffer, size_t count, size_t capacity)
{
    uint64_t times = qr_prng_between(prng, 1, 4);
    while (times--) count = spoil_once(prng, buffer, count, capacity);
    return count;
}
