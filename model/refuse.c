/* refuse.c - one-line errors of the model room. What a file says is shown quoted and shortened, so that no file writes our terminal. */
#include "model/refuse.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"

int qr_refuse(char *message, size_t message_bytes, int code, const char *format, ...)
{
    va_list arguments;
    qr_assert(code > 0 && code < QR_E_COUNT);
    if (!message_bytes) return -code;
    va_start(arguments, format);
    (void)vsnprintf(message, message_bytes, format, arguments);
    va_end(arguments);
    for (char *c = message; *c; c++)
        if ((uint8_t)*c < 32 || *c == 127) *c = '?';
    return -code;
}

qr_shown_t qr_shown(qr_gguf_string_t string)
{
    qr_shown_t shown;
    qr_text_t text;
    qr_text_init(&text, shown.text, sizeof shown.text);
    qr_text_put_quoted(&text, string.data, (size_t)qr_min_u64(string.bytes, SIZE_MAX), 64);
    return shown;
}
