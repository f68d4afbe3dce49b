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
/* The token that begins every prompt of this model, where the file asks for one (add_bos): true and *ret_token. The encoders
 * never add it to ordinary text; a chat begins with it exactly once, whether or not the template writes it. */
bool qr_tokenizer_bos(const qr_tokenizer_t *tokenizer, uint32_t *ret_token);
/* One chat conversation to ids: message i has role roles[i] (QR_CHAT_*) and the next lengths[i] bytes of text. The template's own
 * markers become control ids, message content never does. */
int qr_tokenizer_chat(qr_tokenizer_t *tokenizer, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text,
                      uint32_t *tokens, size_t capacity, size_t *count, char *message, size_t message_bytes);

/* The render of a chat (base/render.h), malloc()ed into *ret_render; errors as qr_tokenizer_chat. */
int qr_tokenizer_render(qr_tokenizer_t *tokenizer, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text,
                        uint8_t **ret_render, size_t *ret_bytes, char *message, size_t message_bytes);
/* Appends the ids of what follows the first `skip` bytes of a render, by the rules of qr_tokenizer_chat and without a begin token. skip may
 * lie inside a content, at a character's begin. -QR_E_FORMAT (the marks do not pair, or not UTF-8), _LIMIT, _MEMORY. */
int qr_tokenizer_encode_render(qr_tokenizer_t *tokenizer, const uint8_t *render, size_t bytes, size_t skip, uint32_t *tokens,
                               size_t capacity, size_t *count);

/* The same tokenizer from tables in memory, for tests, fuzzing and other file formats; nothing of them is kept but chat_template. */
typedef struct qr_token_text {
    const char *data; /* in the byte alphabet of byte-level BPE: each character stands for one byte */
    uint64_t bytes;
} qr_token_text_t;
enum { QR_TOKEN_TYPE_NORMAL = 1, QR_TOKEN_TYPE_UNKNOWN = 2, QR_TOKEN_TYPE_CONTROL = 3, QR_TOKEN_TYPE_USER = 4, QR_TOKEN_TYPE_UNUSED = 5 };
typedef struct qr_tokenizer_tables {
    const char *name;              /* what error lines call it: the file's path */
    const char *pre;               /* pre-tokenizer: smollm, gpt-2, default, llama-bpe, or none (the whole text is one piece) */
    const char *chat_template;     /* "" if none */
    const qr_token_text_t *texts;  /* [count]; control and user tokens in plain UTF-8 */
    const uint8_t *types;          /* [count] QR_TOKEN_TYPE_* */
    const qr_token_text_t *merges; /* [merge_count] "left right", most wanted first */
    uint32_t count, merge_count;
    uint32_t bos_token; /* QR_TOKEN_NONE if none */
    bool add_bos;
} qr_tokenizer_tables_t;
/* 0, -QR_E_FORMAT, -QR_E_UNSUPPORTED or -QR_E_MEMORY with one line in message. */
int qr_tokenizer_new_from(const qr_tokenizer_tables_t *tables, qr_tokenizer_t **ret_tokenizer, char *message, size_t message_bytes);

#endif
