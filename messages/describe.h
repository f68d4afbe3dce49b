/* describe.h - the schema described for people and for other languages: messages/README.md and the schema hash. */
#ifndef QR_DESCRIBE_H
#define QR_DESCRIBE_H

#include "base/text.h"

/* Canonical text of the schema: a line per message, a line per field. What the hash is over; comments do not count. */
void qr_describe_canonical(qr_text_t *text);
/* First 8 bytes, little-endian, of SHA-256 over the canonical text: link_hello.schema_hash. */
uint64_t qr_describe_hash(void);
/* messages/README.md: tables per message and a JSON block that a codec in another language can be made from. `comments` is the
 * text of schema.def (NUL-terminated), from which the sentence above each message is taken; "" gives none. */
void qr_describe_readme(qr_text_t *text, const char *comments);

#endif
