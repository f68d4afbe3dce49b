/* codec.h - messages to bytes and back: one flat msgpack array (formats.md, Message head).
 *
 * C1. Bytes are checked before they size or index anything. The cursor walks the head once; every length is held against what
 *     remains, the element count against the schema and QR_MESSAGE_ELEMENTS_MAX; containers inside the array are refused.
 * C2. Nothing is allocated: packing goes through msgpack-c into the caller's buffer, unpacking into the caller's arena. The
 *     cursor serves alone: msgpack-c behind it, into a cleared zone, would cost more than cursor, copies and encoding together
 *     (tests/bench/codec.c prints both) and find nothing more. It is the judge in tests/unit/codec_test.c and tests/fuzz/codec.c:
 *     same bytes, same values, same refusals.
 * C3. Encoding is canonical: shortest integers, trailing optional fields that are zero or empty left out.
 * C4. Columns of a decoded message lie 8-byte aligned in the arena and never point into the frame. */
#ifndef QR_CODEC_H
#define QR_CODEC_H

#include "base/arena.h"
#include "messages/message.h"

/* Arena that decoding `bytes` encoded bytes never exceeds: every column rounded up to 8 bytes. */
#define QR_CODEC_ARENA_BYTES(bytes) ((uint64_t)(bytes) + 8 * QR_MESSAGE_ELEMENTS_MAX)

/* The envelope alone. */
typedef struct qr_peek {
    uint16_t type;
    uint16_t elements; /* of the whole array */
    uint64_t from, to, epoch, sequence;
} qr_peek_t;

/* Writes a message (type, from, to, epoch, sequence, body) and returns its bytes, or -QR_E_LIMIT when it needs more than
 * `capacity` or QR_MESSAGE_BYTES_MAX. The type must be one of the schema (assert: it is ours). */
int64_t qr_codec_encode(const qr_message_t *message, uint8_t *buffer, size_t capacity);

/* Reads one message out of exactly `count` bytes. Numbers go to *ret_message, columns to the arena; now_us is 0. 0, or
 * -QR_E_TRUNCATED (ends too early), -QR_E_FORMAT (not this layout), -QR_E_LIMIT (a bound passed), -QR_E_UNSUPPORTED (version or
 * type unknown), -QR_E_MEMORY (arena too small). On failure *ret_message and the arena are as before. */
int qr_codec_decode(const uint8_t *bytes, size_t count, qr_arena_t *arena, qr_message_t *ret_message);

/* Reads the envelope only; the fields behind it are not looked at. Errors as qr_codec_decode, except that any type passes. */
int qr_codec_peek(const uint8_t *bytes, size_t count, qr_peek_t *ret_peek);

#endif
