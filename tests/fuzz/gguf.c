/* link: qr_model */
/* gguf.c - any bytes as a model file: opened, walked, and taken for a model with its vocabulary. Small values of sizes are reached because
 * every length is checked against the bytes there are; what opens must keep the reader's promises. */
#include <stdlib.h>

#include "model/gguf.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void entries_walk(const qr_gguf_t *file)
{
    for (uint32_t i = 0; i < qr_gguf_entry_count(file); i++) {
        const qr_gguf_entry_t *entry = qr_gguf_entry(file, i);
        uint64_t cursor = 0, sum = 0;
        qr_gguf_string_t text;
        if (entry->element_type == QR_GGUF_STRING)
            while (qr_gguf_string_next(entry, &cursor, &text)) sum += text.bytes ? (uint8_t)text.data[text.bytes - 1] : 0;
        else if (entry->element_type != QR_GGUF_F32 && entry->element_type != QR_GGUF_F64)
            for (uint64_t k = 0; k < entry->count; k++) sum += qr_gguf_element_u64(entry, k);
        else if (entry->bytes)
            sum += entry->data[entry->bytes - 1];
        __asm__ volatile("" : : "r"(sum));
    }
}

static void tensors_walk(const qr_gguf_t *file)
{
    for (uint32_t i = 0; i < qr_gguf_tensor_count(file); i++) {
        const qr_gguf_tensor_t *tensor = qr_gguf_tensor_sorted(file, i);
        uint8_t last;
        qr_assert(tensor->bytes >= 1 && tensor->offset + tensor->bytes <= qr_gguf_bytes(file));
        qr_assert(qr_gguf_tensor_read(file, tensor, tensor->bytes - 1, &last, 1, NULL, 0) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char message[256] = "";
    qr_gguf_t *file;
    qr_model_t *model;
    int status = qr_gguf_open_memory(data, size, "fuzz.gguf", &file, message, sizeof message);
    qr_assert(status == 0 || (message[0] && !strchr(message, '\n')));
    if (status) return 0;
    entries_walk(file);
    tensors_walk(file);
    message[0] = 0;
    status = qr_model_open_gguf(&file, &model, message, sizeof message);
    qr_assert(status == 0 || (message[0] && !strchr(message, '\n')));
    if (status == 0) {
        uint64_t sum = 0;
        for (uint32_t t = 0; t < model->vocabulary.count; t++) {
            qr_assert(model->vocabulary.offsets[t] <= model->vocabulary.offsets[t + 1]);
            for (uint32_t b = model->vocabulary.offsets[t]; b < model->vocabulary.offsets[t + 1]; b++) sum += model->vocabulary.bytes[b];
        }
        __asm__ volatile("" : : "r"(sum));
        qr_model_destroy(&model);
    }
    return 0;
}
