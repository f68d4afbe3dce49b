/* pretokenize.h - cuts text into the pieces that merging works on, by the rule the model file names.
 *
 * P1. Pieces cover the text without gaps, in order; each is at least one character.
 * P2. A rule is a regular expression over letters, numbers and white space. Which code points are which is fixed by the table in
 *     pretokenize.c, not by the version of the PCRE2 library at hand. */
#ifndef QR_PRETOKENIZE_H
#define QR_PRETOKENIZE_H

#include "base/utf8.h"

typedef struct qr_pretokenizer qr_pretokenizer_t;

/* name: value of tokenizer.ggml.pre, or "none" (one piece). -QR_E_UNSUPPORTED lists what is supported; -QR_E_MEMORY. */
int qr_pretokenizer_new(const char *name, qr_pretokenizer_t **ret_pretokenizer, char *message, size_t message_bytes);
void qr_pretokenizer_destroy(qr_pretokenizer_t **pretokenizer);
/* Whether a piece that is a token as a whole is taken without merging (the rule's family says so). */
bool qr_pretokenizer_whole_pieces(const qr_pretokenizer_t *pretokenizer);
/* Takes a text (valid UTF-8, alive until the last qr_pretokenizer_next). 0 or -QR_E_MEMORY. */
int qr_pretokenizer_start(qr_pretokenizer_t *pretokenizer, const char *text, size_t bytes);
/* End of the piece that begins at byte `at` < bytes. */
size_t qr_pretokenizer_next(qr_pretokenizer_t *pretokenizer, size_t at);
/* Code point that starts at text (valid UTF-8) and its bytes. */
uint32_t qr_utf8_read(const uint8_t *text, uint32_t *ret_bytes);
/* Writes a code point, returns its bytes (1-4). */
uint32_t qr_utf8_write(uint32_t code, uint8_t *to);

#endif
