/* tokenizer.h - byte-level BPE from a model file's own tables, with the pre-tokenizer the file names.
 * Ordinary text never becomes a control token; only ids written by the template (or asked for) are special. */
#ifndef QR_TOKENIZER_H
#define QR_TOKENIZER_H

#include "model/model.h"

typedef struct qr_tokenizer qr_tokenizer_t;

int qr_tokenizer_new(const qr_model_t *model, qr_tokenizer_t **ret_tokenizer, char *message, size_t message_bytes);
void qr_tokenizer_destroy(qr_tokenizer_t **tokenizer);
/* Appends the ids of text[bytes] (valid UTF-8, else -QR_E_FORMAT) to tokens[capacity] from *count on.
 * specials: whether texts of control tokens in it become their ids. -QR_E_LIMIT when it does not fit. */
int qr_tokenizer_encode(qr_tokenizer_t *tokenizer, const char *text, size_t bytes, bool specials, uint32_t *tokens, size_t capacity,
                        size_t *count);
/* One chat conversation to ids: message i has role roles[i] (QR_CHAT_*) and the next lengths[i] bytes of text. The template's own
 * markers become control ids, message content never does. */
int qr_tokenizer_chat(qr_tokenizer_t *tokenizer, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text,
                      uint32_t *tokens, size_t capacity, size_t *count, char *message, size_t message_bytes);

#endif
