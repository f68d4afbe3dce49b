/* vocabulary.h - the tokens of a file as bytes, and which of them are control or end tokens. Private to model/. */
#ifndef QR_VOCABULARY_H
#define QR_VOCABULARY_H

#include "model/gguf.h"
#include "model/model.h"

/* The byte that a character of a byte-level BPE text stands for, or -1. (Printable bytes of Latin-1 stand for themselves, the
 * others are U+0100 and up in order; the table of the GPT-2 encoder.) */
int qr_byte_of_character(uint32_t character);
uint32_t qr_character_of_byte(uint8_t byte);
/* Writes the bytes that a text stands for, at most text_bytes, and returns how many; -1 when a character is outside the alphabet or
 * malformed: what was written means nothing then. */
int64_t qr_alphabet_undo(const char *text, uint64_t text_bytes, uint8_t *ret_bytes);

/* Fills vocabulary, end tokens, bos_token and add_bos of a model whose file and arch are set. The tables are the model's. 0 or -QR_E_*. */
int qr_vocabulary_read(qr_model_t *model, char *message, size_t message_bytes);
void qr_vocabulary_done(qr_vocabulary_t *vocabulary);

#endif
