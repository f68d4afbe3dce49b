/* tiny.h - seeded tiny models of the `llama` architecture as real GGUF files: the whole server runs on one, in tests and in seconds.
 *
 * Tokens: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (control), 3..258 the bytes 0..255, then merged pairs, then reserved control
 * tokens. The rows of control tokens are small in the head, so that greedy answers do not end by chance. ChatML template. */
#ifndef QR_TINY_H
#define QR_TINY_H

#include "model/gguf_writer.h"
#include "model/model.h"

enum { QR_TINY_TOKENS_MIN = 259 };

typedef struct qr_tiny_config {
    uint64_t seed;
    char name[64]; /* general.name */
    uint32_t layers, hidden, heads, kv_heads, dim, feed_forward;
    uint32_t vocabulary; /* rows of token_embd */
    uint32_t tokens;     /* of the tokenizer; 0: as many as rows. Fewer than QR_TINY_TOKENS_MIN: cut off (tests with token ids only) */
    uint32_t context;
    uint32_t format;      /* of the matrices: QR_FORMAT_*; widths must be whole blocks of it */
    uint32_t head_format; /* of token_embd (and output.weight): QR_FORMAT_* */
    bool tied;
    float rope_theta;
    float rope_scale;               /* linear; 1: no scaling keys */
    uint32_t window[QR_LAYERS_MAX]; /* per layer; all 0: no key */
} qr_tiny_config_t;

/* 2 layers of 64, 4 / 2 heads of 16, 320 tokens, Q8_0, context 512, seed 1. */
void qr_tiny_config_init(qr_tiny_config_t *config);
/* The same config with widths that fit its format (Q6_K needs 256). */
void qr_tiny_config_fit(qr_tiny_config_t *config);
/* The model as an editable file; the caller destroys *ret_writer. 0, -QR_E_INVALID (widths do not fit the format), -QR_E_MEMORY. */
int qr_tiny_build(const qr_tiny_config_t *config, qr_gguf_writer_t **ret_writer);
/* Builds it and writes it to path. Also -QR_E_IO. */
int qr_tiny_write(const qr_tiny_config_t *config, const char *path);
/* Quantises one row of finite values to row-major blocks of a format (qr_format_row_bytes of them). Plain rounding, for test models. */
void qr_tiny_row_encode(uint32_t format, const float *values, uint32_t count, uint8_t *ret_row);

#endif
