/* stream.c - non-temporal copies (stream.h). SSE2 is part of every x86-64; 16-byte stores fill the write-combining buffers as wider ones
 * do. */
#include "kernels/stream.h"

#if defined(__SSE2__)
#include <immintrin.h>

void qr_stream_copy(void *to, const void *from, size_t bytes)
{
    uint8_t *d = to;
    const uint8_t *s = from;
    size_t head = (size_t)(-(uintptr_t)d & 63);
    if (bytes < head + 64) {
        qr_copy(d, s, bytes);
        return;
    }
    qr_copy(d, s, head);
    d += head, s += head, bytes -= head;
    for (; bytes >= 64; d += 64, s += 64, bytes -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)s), b = _mm_loadu_si128((const __m128i *)(const void *)(s + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(s + 32)), e = _mm_loadu_si128((const __m128i *)(const void *)(s + 48));
        _mm_stream_si128((__m128i *)(void *)d, a);
        _mm_stream_si128((__m128i *)(void *)(d + 16), b);
        _mm_stream_si128((__m128i *)(void *)(d + 32), c);
        _mm_stream_si128((__m128i *)(void *)(d + 48), e);
    }
    _mm_sfence(); /* no lock or message orders these stores by itself */
    qr_copy(d, s, bytes);
}
#else
void qr_stream_copy(void *to, const void *from, size_t bytes) { qr_copy(to, from, bytes); }
#endif
