/* model.h - a loaded model: what its file says, checked, and its weights packed on a device.
 *
 * Order of life: qr_gguf_open (checks everything) -> qr_model_open (architecture, vocabulary, template; no weights) ->
 * qr_model_load (weights to a device, fingerprint). An edge node stops after qr_model_open. */
#ifndef QR_MODEL_H
#define QR_MODEL_H

#include "actors/given.h"
#include "kernels/device.h"

enum { QR_LAYERS_MAX = 256, QR_END_TOKENS_MAX = 16, QR_DIM_MAX = 256 };

/* Hyper-parameters of the `llama` architecture, descriptor-driven (model/arch.c). */
typedef struct qr_arch {
    char name[32];
    uint32_t layers, hidden, heads, kv_heads, dim; /* dim: of one head */
    uint32_t feed_forward, vocabulary;             /* vocabulary: rows of token_embd */
    uint32_t context;                              /* the model's own */
    uint32_t rope_pairing;                         /* as kernel rope_append */
    uint32_t tied;                                 /* 1: the head is token_embd */
    float norm_eps;
    double rope_theta;
    double rope_scale;                             /* linear; 1 = none */
    uint32_t window[QR_LAYERS_MAX];                /* per layer; 0 = whole prefix (tiny models use windows) */
} qr_arch_t;

typedef struct qr_layer_weights {
    qr_weight_t qkv[3];       /* one stacked q|k|v when the formats agree (qkv_count 1), else three */
    uint32_t qkv_count;
    uint32_t gate_up_count;
    qr_weight_t gate_up[2];   /* gate|up likewise */
    qr_weight_t output, down;
    qr_buffer_t attention_norm, feed_forward_norm; /* f32[hidden] */
} qr_layer_weights_t;

typedef struct qr_model {
    qr_arch_t arch;
    qr_layout_t layout;           /* groups and row bytes; pages are set by the decoder */
    qr_vocabulary_t vocabulary;
    uint32_t end_tokens[QR_END_TOKENS_MAX], end_token_count; /* tokens that end an answer */
    uint32_t bos_token;           /* QR_TOKEN_NONE if none */
    bool add_bos;
    const char *chat_template;    /* NUL-terminated, "" if none */
    char name[128];               /* id shown by /v1/models: general.name or the file's name */
    char path[QR_PARAM_TEXT_BYTES];
    char fingerprint_lines[4096]; /* sorted key=value lines; set by load */

    /* after qr_model_load */
    qr_device_t *device;
    qr_weight_t embedding, head;  /* head.buffer.host == embedding's when tied */
    qr_buffer_t final_norm;
    qr_buffer_t rope_steps;       /* u64[dim / 2] */
    qr_layer_weights_t *layers;   /* [arch.layers] */

    struct qr_gguf *file;         /* model/gguf.h; kept for tensors and tokenizer data */
} qr_model_t;

/* Opens and checks a file. 0 or a negative QR_E_*; message: one line naming file, field and what is supported. */
int qr_model_open(const char *path, qr_model_t **ret_model, char *message, size_t message_bytes);
/* The same from an opened file, which it takes (*file becomes NULL unless there was no memory). */
int qr_model_open_gguf(struct qr_gguf **file, qr_model_t **ret_model, char *message, size_t message_bytes);
/* Packs the weights on the device and computes the fingerprint. progress may be NULL: (done, total) bytes. */
int qr_model_load(qr_model_t *model, qr_device_t *device, void (*progress)(void *context, uint64_t done, uint64_t total), void *context,
                  char *message, size_t message_bytes);
void qr_model_destroy(qr_model_t **model);

#endif
