/* model_file.h - edited tiny models on disk, for tests of the model room. */
#ifndef QR_TEST_MODEL_FILE_H
#define QR_TEST_MODEL_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "model/tiny.h"

typedef struct model_file {
    char path[64];
} model_file_t;

/* A new empty temporary file; the caller unlinks. */
static inline model_file_t model_file_new(void)
{
    model_file_t file = {"/tmp/quire-model-XXXXXX"};
    int descriptor = mkstemp(file.path);
    qr_assert(descriptor >= 0);
    close(descriptor);
    return file;
}
static inline model_file_t model_file_tiny(const qr_tiny_config_t *config)
{
    model_file_t file = model_file_new();
    int status = qr_tiny_write(config, file.path);
    qr_assert(status == 0);
    return file;
}
static inline model_file_t model_file_save(qr_gguf_writer_t **writer)
{
    model_file_t file = model_file_new();
    int status = qr_gguf_writer_save(*writer, file.path);
    qr_assert(status == 0);
    qr_gguf_writer_destroy(writer);
    return file;
}
static inline qr_device_t *device_new(uint32_t isa, uint32_t threads)
{
    qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = isa, .threads = threads};
    qr_device_t *device;
    char message[256];
    return qr_device_new(&config, &device, message, sizeof message) ? NULL : device;
}
/* Opens and loads; any error ends the test program. */
static inline qr_model_t *model_load(const char *path, qr_device_t *device)
{
    qr_model_t *model;
    char message[512] = "";
    int status = qr_model_open(path, &model, message, sizeof message);
    if (!status) status = qr_model_load(model, device, NULL, NULL, message, sizeof message);
    if (status) fprintf(stderr, "%s\n", message);
    qr_assert(status == 0);
    return model;
}

#endif
