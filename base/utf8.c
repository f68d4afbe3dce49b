#include "base/utf8.h"

size_t qr_utf8_character(const uint8_t *text, size_t room)
{
    uint32_t need = room ? qr_utf8_bytes(text[0]) : 0;
    if (need == 0 || need > room) return 0;
    for (uint32_t at = 1; at < need; at++)
        if (!qr_utf8_follows(text[0], at, text[at])) return 0;
    return need;
}

bool qr_utf8_valid(const void *bytes, size_t count)
{
    const uint8_t *text = bytes;
    for (size_t i = 0; i < count;) {
        uint64_t eight; /* most text is ASCII: eight bytes at once */
        if (i + 8 <= count && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        size_t step = qr_utf8_character(text + i, count - i);
        if (!step) return false;
        i += step;
    }
    return true;
}
