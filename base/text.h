/* text.h - a bounded text writer without stdio: what actors print their state with. Pure.
 * Text past the capacity is cut; `cut` says so. The buffer always ends in NUL (capacity >= 1). */
#ifndef QR_TEXT_H
#define QR_TEXT_H

#include "base/base.h"

typedef struct qr_text {
    char *data;
    size_t count, capacity; /* count excludes the NUL */
    bool cut;
} qr_text_t;

void qr_text_init(qr_text_t *text, char *data, size_t capacity);
void qr_text_put(qr_text_t *text, const char *string);
void qr_text_put_bytes(qr_text_t *text, const void *bytes, size_t count);
void qr_text_put_u64(qr_text_t *text, uint64_t value);
void qr_text_put_i64(qr_text_t *text, int64_t value);
void qr_text_put_hex(qr_text_t *text, const void *bytes, size_t count);
/* Bytes as a quoted string, non-printing ones as \xNN, at most `most` bytes shown. */
void qr_text_put_quoted(qr_text_t *text, const void *bytes, size_t count, size_t most);

#endif
