#include "base/text.h"

void qr_text_init(qr_text_t *text, char *data, size_t capacity)
{
    qr_assert(capacity >= 1);
    *text = (qr_text_t){.data = data, .capacity = capacity};
    data[0] = 0;
}
void qr_text_put_bytes(qr_text_t *text, const void *bytes, size_t count)
{
    size_t room = text->capacity - 1 - text->count;
    if (count > room) {
        count = room;
        text->cut = true;
    }
    qr_copy(text->data + text->count, bytes, count);
    text->count += count;
    text->data[text->count] = 0;
}
void qr_text_put(qr_text_t *text, const char *string) { qr_text_put_bytes(text, string, strlen(string)); }
void qr_text_put_u64(qr_text_t *text, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    qr_text_put_bytes(text, digits + at, sizeof digits - at);
}
void qr_text_put_i64(qr_text_t *text, int64_t value)
{
    if (value < 0) qr_text_put(text, "-");
    qr_text_put_u64(text, value < 0 ? 0u - (uint64_t)value : (uint64_t)value);
}
static char hex_digit(unsigned value) { return (char)(value < 10 ? '0' + value : 'a' + value - 10); }
void qr_text_put_hex(qr_text_t *text, const void *bytes, size_t count)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < count; i++) {
        char two[2] = {hex_digit(b[i] >> 4), hex_digit(b[i] & 15u)};
        qr_text_put_bytes(text, two, 2);
    }
}
void qr_text_put_quoted(qr_text_t *text, const void *bytes, size_t count, size_t most)
{
    const uint8_t *b = bytes;
    qr_text_put(text, "\"");
    for (size_t i = 0; i < count && i < most; i++) {
        if (b[i] >= 32 && b[i] < 127 && b[i] != '"' && b[i] != '\\') {
            qr_text_put_bytes(text, &b[i], 1);
        } else {
            qr_text_put(text, "\\x");
            qr_text_put_hex(text, &b[i], 1);
        }
    }
    qr_text_put(text, count > most ? "\"..." : "\"");
}
