/* random.h - messages and byte strings made from a seed: what property tests, the simulator and fuzz seeds feed on.
 * The same generator state gives the same result on every machine. */
#ifndef QR_RANDOM_H
#define QR_RANDOM_H

#include "base/arena.h"
#include "base/prng.h"
#include "messages/message.h"

enum {
    QR_RANDOM_PLAIN = 0,    /* numbers of all sizes, columns of 0 to 40 elements */
    QR_RANDOM_BOUNDARY = 1, /* numbers at the ends of their kinds and of msgpack's forms, columns at the ends of bin's forms */
    QR_RANDOM_MODES = 2
};

/* Fills a message of a type that the schema has; columns are taken from the arena (at most 58 x 525,000 bytes in BOUNDARY mode;
 * columns that would not fit are left empty). */
void qr_random_message(qr_prng_t *prng, uint32_t mode, uint16_t type, qr_arena_t *arena, qr_message_t *ret_message);
/* A type of the schema. */
uint16_t qr_random_type(qr_prng_t *prng);

/* Turns an encoded message in buffer[count] into a hostile one by a few of: bits flipped, cut, bytes appended, a tag replaced, a
 * length raised, a piece doubled or removed, an element inserted, the array's count changed. Returns the new count, <= capacity. */
size_t qr_random_spoil(qr_prng_t *prng, uint8_t *buffer, size_t count, size_t capacity);

#endif
