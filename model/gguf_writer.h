/* gguf_writer.h - builds a GGUF v3 file in memory: seeded tiny models and the malformed files of tests.
 * W1. A key or tensor set again replaces the first in place.
 * W2. Running out of memory is remembered and reported by encode and save. */
#ifndef QR_GGUF_WRITER_H
#define QR_GGUF_WRITER_H

#include "model/gguf.h"

typedef struct qr_gguf_writer qr_gguf_writer_t;

/* NULL only without memory. alignment: written as general.alignment unless it is 32. */
qr_gguf_writer_t *qr_gguf_writer_new(uint32_t alignment);
void qr_gguf_writer_destroy(qr_gguf_writer_t **writer);

void qr_gguf_writer_u32(qr_gguf_writer_t *writer, const char *key, uint32_t value);
void qr_gguf_writer_f32(qr_gguf_writer_t *writer, const char *key, float value);
void qr_gguf_writer_bool(qr_gguf_writer_t *writer, const char *key, bool value);
void qr_gguf_writer_string(qr_gguf_writer_t *writer, const char *key, const char *value);
void qr_gguf_writer_u32s(qr_gguf_writer_t *writer, const char *key, uint32_t element_type, const uint32_t *values,
                         uint32_t count); /* U32 or I32 */
void qr_gguf_writer_strings(qr_gguf_writer_t *writer, const char *key, const char *const *values, uint32_t count);
/* Any value: type number and the bytes behind it as the format writes them. */
void qr_gguf_writer_raw(qr_gguf_writer_t *writer, const char *key, uint32_t type, const void *bytes, size_t count);
void qr_gguf_writer_drop(qr_gguf_writer_t *writer, const char *key);

/* Copies the bytes. dims fastest first, dim_count of them. */
void qr_gguf_writer_tensor(qr_gguf_writer_t *writer, const char *name, uint32_t format, uint32_t dim_count, const uint64_t *dims,
                           const void *bytes, size_t count);
void qr_gguf_writer_tensor_drop(qr_gguf_writer_t *writer, const char *name);

/* The file's bytes; the caller frees *ret_bytes. 0 or -QR_E_MEMORY. */
int qr_gguf_writer_encode(qr_gguf_writer_t *writer, uint8_t **ret_bytes, size_t *ret_count);
/* Writes them to a file. 0, -QR_E_MEMORY or -QR_E_IO. */
int qr_gguf_writer_save(qr_gguf_writer_t *writer, const char *path);

#endif
