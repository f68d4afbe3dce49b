/* utf8.h - what may follow what in UTF-8 (Unicode 15, table 3-7): no over-long forms, no surrogates, nothing above U+10FFFF. Pure. */
#ifndef QR_UTF8_H
#define QR_UTF8_H

#include "base/base.h"

/* Bytes of the character that begins with `first`; 0 when none begins so. */
static inline uint32_t qr_utf8_bytes(uint8_t first)
{
    if (first < 0x80) return 1;
    if (first < 0xc2) return 0;
    if (first < 0xe0) return 2;
    if (first < 0xf0) return 3;
    return first < 0xf5 ? 4 : 0;
}

/* Whether `byte` may stand at place `at` (1..3) of the character that begins with `first`. */
static inline bool qr_utf8_follows(uint8_t first, uint32_t at, uint8_t byte)
{
    uint8_t least = 0x80, most = 0xbf;
    if (at == 1) {
        if (first == 0xe0) least = 0xa0;
        if (first == 0xed) most = 0x9f;
        if (first == 0xf0) least = 0x90;
        if (first == 0xf4) most = 0x8f;
    }
    return byte >= least && byte <= most;
}

/* Bytes of the whole, valid character that begins at text[0] within `room` bytes; 0 when there is none. */
size_t qr_utf8_character(const uint8_t *text, size_t room);

/* Whether bytes[count] are whole, valid characters. */
bool qr_utf8_valid(const void *bytes, size_t count);

#endif
