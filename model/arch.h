/* arch.h - architectures as tables: which keys a file must have, which tensors of which shape, and nothing else.
 *
 * A1. A key that would change numbers and is not understood is refused by name; so is a tensor nobody would use.
 * A2. A contradiction between keys and tensors is an error that names both.
 * A3. Every default is written in the table.
 *
 * Keys of `llama` beyond the common ones: `llama.attention.sliding_window` is a u32 (every layer) or an array with one u32 per layer, 0 =
 * the whole prefix; at least one layer keeps the whole prefix. A window w lets position q attend q-(w-1) .. q. */
#ifndef QR_ARCH_H
#define QR_ARCH_H

#include "model/gguf.h"
#include "model/model.h"

typedef enum qr_tensor_role {
    QR_TENSOR_EMBEDDING,
    QR_TENSOR_FINAL_NORM,
    QR_TENSOR_HEAD,
    QR_TENSOR_ATTENTION_NORM,
    QR_TENSOR_QUERY,
    QR_TENSOR_KEY,
    QR_TENSOR_VALUE,
    QR_TENSOR_OUTPUT,
    QR_TENSOR_FEED_FORWARD_NORM,
    QR_TENSOR_GATE,
    QR_TENSOR_UP,
    QR_TENSOR_DOWN,
    QR_TENSOR_ROLES_COUNT
} qr_tensor_role_t;

/* Reads the keys and checks the tensor table against them. 0 or -QR_E_* with one line in message. */
int qr_arch_read(const qr_gguf_t *file, qr_arch_t *ret_arch, char *message, size_t message_bytes);
/* The tensor of a role (layer: 0 for those outside the layers); NULL only for the head of a tied model. */
const qr_gguf_tensor_t *qr_arch_tensor(const qr_gguf_t *file, const qr_arch_t *arch, qr_tensor_role_t role, uint32_t layer);

#endif
