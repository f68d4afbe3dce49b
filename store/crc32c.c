/* crc32c.c - reflected polynomial 0x82f63b78: the processor's instruction where there is one, else bit by bit (headers are small). */
#include "store/crc32c.h"

static uint32_t plain(uint32_t crc, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t fast(uint32_t crc, const uint8_t *bytes, size_t count)
{
    uint64_t wide = crc, word;
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; count; bytes++, count--) crc = __builtin_ia32_crc32qi(crc, *bytes);
    return crc;
}
#endif

uint32_t qr_crc32c(uint32_t before, const void *bytes, size_t count)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~fast(~before, bytes, count);
#endif
    return ~plain(~before, bytes, count);
}
