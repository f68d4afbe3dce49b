/* refuse.h - one-line errors of the model room. Private to model/. */
#ifndef QR_REFUSE_H
#define QR_REFUSE_H

#include "model/gguf.h"

/* Writes one line (control bytes become '?') and returns -code. message may be NULL when message_bytes is 0. */
__attribute__((format(printf, 4, 5))) int qr_refuse(char *message, size_t message_bytes, int code, const char *format, ...);

/* Bytes of a file as a quoted, printable, shortened text: for use inside one call's arguments. */
typedef struct qr_shown {
    char text[96];
} qr_shown_t;
qr_shown_t qr_shown(qr_gguf_string_t string);

#endif
