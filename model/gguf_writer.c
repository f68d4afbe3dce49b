/* gguf_writer.c - GGUF v3 in memory (gguf_writer.h). Keys and tensors are kept as blobs until encode lays them out. */
#include "model/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

typedef struct blob {
    char name[96];
    uint32_t type; /* of a value, or the format of a tensor */
    uint32_t dim_count;
    uint64_t dims[QR_GGUF_DIMS_MAX];
    uint8_t *bytes;
    size_t count;
} blob_t;

typedef struct blobs {
    blob_t *items;
    uint32_t count, room;
} blobs_t;

/* Bytes that grow. */
typedef struct sink {
    uint8_t *bytes;
    size_t count, room;
    bool failed;
} sink_t;

struct qr_gguf_writer {
    blobs_t keys, tensors;
    uint32_t alignment;
    bool failed;
};

/* ---- growing bytes ---------------------------------------------------------------------------------------------------------- */

static void sink_put(sink_t *sink, const void *bytes, size_t count)
{
    if (sink->failed) return;
    if (sink->count + count > sink->room) {
        size_t room = (sink->count + count) * 2;
        uint8_t *grown = realloc(sink->bytes, room);
        sink->failed = grown == NULL;
        if (!grown) return;
        sink->bytes = grown;
        sink->room = room;
    }
    qr_copy(sink->bytes + sink->count, bytes, count);
    sink->count += count;
}
static void sink_number(sink_t *sink, uint64_t value, uint32_t bytes)
{
    uint8_t little[8];
    for (uint32_t i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> (8 * i));
    sink_put(sink, little, bytes);
}
static void sink_string(sink_t *sink, const char *text)
{
    sink_number(sink, strlen(text), 8);
    sink_put(sink, text, strlen(text));
}
static void sink_align(sink_t *sink, uint32_t alignment)
{
    static const uint8_t zero[64];
    while (sink->count % alignment && !sink->failed)
        sink_put(sink, zero, (size_t)qr_min_u64(sizeof zero, alignment - sink->count % alignment));
}

/* ---- blobs --------------------------------------------------------------------------------------------------------------------- */

static blob_t *blob_find(blobs_t *blobs, const char *name)
{
    for (uint32_t i = 0; i < blobs->count; i++)
        if (strcmp(blobs->items[i].name, name) == 0) return &blobs->items[i];
    return NULL;
}
static void blob_drop(blobs_t *blobs, const char *name)
{
    blob_t *blob = blob_find(blobs, name);
    if (!blob) return;
    free(blob->bytes);
    size_t behind = (size_t)(blobs->items + blobs->count - (blob + 1));
    memmove(blob, blob + 1, behind * sizeof *blob);
    blobs->count--;
}
static blob_t *blob_make(qr_gguf_writer_t *writer, blobs_t *blobs, const char *name, const void *bytes, size_t count)
{
    blob_t *blob = blob_find(blobs, name);
    qr_assert(strlen(name) < sizeof blob->name);
    if (!blob && blobs->count == blobs->room) {
        uint32_t room = blobs->room ? blobs->room * 2 : 64;
        blob_t *grown = realloc(blobs->items, room * sizeof *grown);
        writer->failed |= grown == NULL;
        if (!grown) return NULL;
        blobs->items = grown;
        blobs->room = room;
    }
    uint8_t *copy = malloc(count + 1);
    writer->failed |= copy == NULL;
    if (!copy) return NULL;
    qr_copy(copy, bytes, count);
    if (blob)
        free(blob->bytes);
    else
        blob = &blobs->items[blobs->count++];
    memset(blob, 0, sizeof *blob);
    memcpy(blob->name, name, strlen(name));
    blob->bytes = copy;
    blob->count = count;
    return blob;
}
static void blobs_done(blobs_t *blobs)
{
    for (uint32_t i = 0; i < blobs->count; i++) free(blobs->items[i].bytes);
    free(blobs->items);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------ */

qr_gguf_writer_t *qr_gguf_writer_new(uint32_t alignment)
{
    qr_gguf_writer_t *writer = calloc(1, sizeof *writer);
    if (!writer) return NULL;
    writer->alignment = alignment;
    if (alignment != 32) qr_gguf_writer_u32(writer, "general.alignment", alignment);
    return writer;
}
void qr_gguf_writer_destroy(qr_gguf_writer_t **writer)
{
    if (!*writer) return;
    blobs_done(&(*writer)->keys);
    blobs_done(&(*writer)->tensors);
    free(*writer);
    *writer = NULL;
}

void qr_gguf_writer_raw(qr_gguf_writer_t *writer, const char *key, uint32_t type, const void *bytes, size_t count)
{
    blob_t *blob = blob_make(writer, &writer->keys, key, bytes, count);
    if (blob) blob->type = type;
}
/* Takes the bytes of the sink as a value. */
static void raw_take(qr_gguf_writer_t *writer, const char *key, uint32_t type, sink_t *sink)
{
    writer->failed |= sink->failed;
    qr_gguf_writer_raw(writer, key, type, sink->bytes, sink->count);
    free(sink->bytes);
}
void qr_gguf_writer_u32(qr_gguf_writer_t *writer, const char *key, uint32_t value)
{
    sink_t sink = {0};
    sink_number(&sink, value, 4);
    raw_take(writer, key, QR_GGUF_U32, &sink);
}
void qr_gguf_writer_f32(qr_gguf_writer_t *writer, const char *key, float value)
{
    qr_gguf_writer_raw(writer, key, QR_GGUF_F32, &value, sizeof value);
}
void qr_gguf_writer_bool(qr_gguf_writer_t *writer, const char *key, bool value)
{
    uint8_t byte = value;
    qr_gguf_writer_raw(writer, key, QR_GGUF_BOOL, &byte, 1);
}
void qr_gguf_writer_string(qr_gguf_writer_t *writer, const char *key, const char *value)
{
    sink_t sink = {0};
    sink_string(&sink, value);
    raw_take(writer, key, QR_GGUF_STRING, &sink);
}
void qr_gguf_writer_u32s(qr_gguf_writer_t *writer, const char *key, uint32_t element_type, const uint32_t *values, uint32_t count)
{
    sink_t sink = {0};
    qr_assert(element_type == QR_GGUF_U32 || element_type == QR_GGUF_I32);
    sink_number(&sink, element_type, 4);
    sink_number(&sink, count, 8);
    for (uint32_t i = 0; i < count; i++) sink_number(&sink, values[i], 4);
    raw_take(writer, key, QR_GGUF_ARRAY, &sink);
}
void qr_gguf_writer_strings(qr_gguf_writer_t *writer, const char *key, const char *const *values, uint32_t count)
{
    sink_t sink = {0};
    sink_number(&sink, QR_GGUF_STRING, 4);
    sink_number(&sink, count, 8);
    for (uint32_t i = 0; i < count; i++) sink_string(&sink, values[i]);
    raw_take(writer, key, QR_GGUF_ARRAY, &sink);
}
void qr_gguf_writer_drop(qr_gguf_writer_t *writer, const char *key) { blob_drop(&writer->keys, key); }

void qr_gguf_writer_tensor(qr_gguf_writer_t *writer, const char *name, uint32_t format, uint32_t dim_count, const uint64_t *dims,
                           const void *bytes, size_t count)
{
    qr_assert(dim_count >= 1 && dim_count <= QR_GGUF_DIMS_MAX);
    blob_t *blob = blob_make(writer, &writer->tensors, name, bytes, count);
    if (!blob) return;
    blob->type = format;
    blob->dim_count = dim_count;
    memcpy(blob->dims, dims, dim_count * sizeof *dims);
}
void qr_gguf_writer_tensor_drop(qr_gguf_writer_t *writer, const char *name) { blob_drop(&writer->tensors, name); }

/* ---- the file --------------------------------------------------------------------------------------------------------------------- */

int qr_gguf_writer_encode(qr_gguf_writer_t *writer, uint8_t **ret_bytes, size_t *ret_count)
{
    sink_t sink = {0};
    uint64_t offset = 0;
    sink_put(&sink, "GGUF", 4);
    sink_number(&sink, 3, 4);
    sink_number(&sink, writer->tensors.count, 8);
    sink_number(&sink, writer->keys.count, 8);
    for (uint32_t i = 0; i < writer->keys.count; i++) {
        const blob_t *key = &writer->keys.items[i];
        sink_string(&sink, key->name);
        sink_number(&sink, key->type, 4);
        sink_put(&sink, key->bytes, key->count);
    }
    for (uint32_t i = 0; i < writer->tensors.count; i++) {
        const blob_t *tensor = &writer->tensors.items[i];
        sink_string(&sink, tensor->name);
        sink_number(&sink, tensor->dim_count, 4);
        for (uint32_t d = 0; d < tensor->dim_count; d++) sink_number(&sink, tensor->dims[d], 8);
        sink_number(&sink, tensor->type, 4);
        sink_number(&sink, offset, 8);
        offset = qr_round_up(offset + tensor->count, writer->alignment);
    }
    for (uint32_t i = 0; i < writer->tensors.count; i++) {
        sink_align(&sink, writer->alignment);
        sink_put(&sink, writer->tensors.items[i].bytes, writer->tensors.items[i].count);
    }
    if (sink.failed || writer->failed) {
        free(sink.bytes);
        return -QR_E_MEMORY;
    }
    *ret_bytes = sink.bytes;
    *ret_count = sink.count;
    return 0;
}

int qr_gguf_writer_save(qr_gguf_writer_t *writer, const char *path)
{
    uint8_t *bytes;
    size_t count;
    int status = qr_gguf_writer_encode(writer, &bytes, &count);
    if (status) return status;
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(bytes, 1, count, file) == count;
    if (file && fclose(file)) written = false;
    free(bytes);
    return written ? 0 : -QR_E_IO;
}
