/* inspect.c - prints a model file (inspect.h). The only file of this room that writes to the terminal. */
#include "model/inspect.h"

#include <stdio.h>

#include "base/base.h"
#include "base/error.h"
#include "model/attention_state.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/refuse.h"

enum { FORMATS_MAX = 64 };

typedef struct printer {
    bool json;
    bool first; /* no comma before the next json member */
} printer_t;

/* ---- one line, or one json member, at a time ---------------------------------------------------------------------------------- */

/* A json string; bytes that are not printable ASCII become escapes of their Latin-1 reading, so the output is always valid. */
static void json_string(const char *data, uint64_t bytes)
{
    putchar('"');
    for (uint64_t i = 0; i < bytes; i++) {
        uint8_t c = (uint8_t)data[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c >= 32 && c < 127)
            putchar(c);
        else
            printf("\\u%04x", c);
    }
    putchar('"');
}
static void member(printer_t *p, const char *name)
{
    if (p->json) printf("%s", p->first ? "" : ",");
    p->first = false;
    if (p->json)
        printf("\"%s\":", name);
    else
        printf("%-22s", name);
}
static void put_number(printer_t *p, const char *name, uint64_t value)
{
    member(p, name);
    printf(p->json ? "%llu" : "%llu\n", (unsigned long long)value);
}
static void put_text(printer_t *p, const char *name, const char *text)
{
    member(p, name);
    if (p->json)
        json_string(text, strlen(text));
    else
        printf("%s\n", text);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------ */

static void put_scalar(const printer_t *p, const qr_gguf_t *file, const qr_gguf_entry_t *entry)
{
    char key[QR_PARAM_TEXT_BYTES];
    double real;
    if (entry->type == QR_GGUF_STRING) {
        uint64_t cursor = 0;
        qr_gguf_string_t text;
        (void)qr_gguf_string_next(entry, &cursor, &text);
        if (p->json)
            json_string(text.data, qr_min_u64(text.bytes, 4096));
        else
            printf("%s", qr_shown(text).text);
    } else if (entry->type == QR_GGUF_F32 || entry->type == QR_GGUF_F64) {
        uint64_t bytes = qr_min_u64(entry->key.bytes, sizeof key - 1);
        memcpy(key, entry->key.data, bytes);
        key[bytes] = 0;
        if (entry->key.bytes < sizeof key && qr_gguf_get_f64(file, key, &real, NULL, 0) == 0 && real - real == 0)
            printf("%.9g", real);
        else
            printf(p->json ? "null" : "not finite");
    } else if (entry->type == QR_GGUF_BOOL) {
        printf(qr_gguf_element_u64(entry, 0) ? "true" : "false");
    } else if (entry->type == QR_GGUF_I8 || entry->type == QR_GGUF_I16 || entry->type == QR_GGUF_I32 || entry->type == QR_GGUF_I64) {
        printf("%lld", (long long)qr_gguf_element_u64(entry, 0));
    } else {
        printf("%llu", (unsigned long long)qr_gguf_element_u64(entry, 0));
    }
}

static void put_keys(printer_t *p, const qr_gguf_t *file)
{
    if (p->json) member(p, "keys"), printf("{");
    for (uint32_t i = 0; i < qr_gguf_entry_count(file); i++) {
        const qr_gguf_entry_t *entry = qr_gguf_entry(file, i);
        if (p->json) {
            if (i) printf(",");
            json_string(entry->key.data, entry->key.bytes);
            printf(":");
        } else {
            printf("  %s = ", qr_shown(entry->key).text);
        }
        if (entry->type == QR_GGUF_ARRAY) {
            char text[64];
            int count = snprintf(text, sizeof text, "%llu x %s", (unsigned long long)entry->count, qr_gguf_type_name(entry->element_type));
            if (p->json)
                json_string(text, (uint64_t)count);
            else
                printf("%s", text);
        } else {
            put_scalar(p, file, entry);
        }
        if (!p->json) printf("\n");
    }
    if (p->json) printf("}");
}

/* ---- tensors by format ----------------------------------------------------------------------------------------------------------- */

static void put_tensors(printer_t *p, const qr_gguf_t *file)
{
    struct {
        uint64_t count, bytes;
    } formats[FORMATS_MAX] = {0};
    for (uint32_t i = 0; i < qr_gguf_tensor_count(file); i++) {
        const qr_gguf_tensor_t *t = qr_gguf_tensor(file, i);
        qr_assert(t->format < FORMATS_MAX); /* only known formats open */
        formats[t->format].count++;
        formats[t->format].bytes += t->bytes;
    }
    put_number(p, "tensors", qr_gguf_tensor_count(file));
    if (p->json) member(p, "formats"), printf("{");
    bool first = true;
    for (uint32_t f = 0; f < FORMATS_MAX; f++) {
        if (!formats[f].count) continue;
        if (p->json)
            printf("%s\"%s\":{\"tensors\":%llu,\"bytes\":%llu}", first ? "" : ",", qr_gguf_format_name(f),
                   (unsigned long long)formats[f].count, (unsigned long long)formats[f].bytes);
        else
            printf("  %-10s %6llu tensors %14llu bytes\n", qr_gguf_format_name(f), (unsigned long long)formats[f].count,
                   (unsigned long long)formats[f].bytes);
        first = false;
    }
    if (p->json) printf("}");
}

/* ---- the model ------------------------------------------------------------------------------------------------------------------ */

static void put_groups(printer_t *p, const qr_model_t *model)
{
    if (p->json) member(p, "groups"), printf("[");
    for (uint32_t g = 0; g < model->layout.group_count; g++) {
        const qr_group_t *group = &model->layout.groups[g];
        if (p->json)
            printf("%s{\"window\":%u,\"row_bytes\":%u}", g ? "," : "", group->window, group->row_bytes);
        else if (group->window)
            printf("%-22swindow %u, %u bytes a token\n", "group", group->window, group->row_bytes);
        else
            printf("%-22swhole prefix, %u bytes a token\n", "group", group->row_bytes);
    }
    if (p->json) printf("]");
}

static void put_model(printer_t *p, const qr_model_t *model)
{
    const qr_arch_t *a = &model->arch;
    put_text(p, "name", model->name);
    put_text(p, "architecture", a->name);
    put_number(p, "layers", a->layers);
    put_number(p, "hidden", a->hidden);
    put_number(p, "heads", a->heads);
    put_number(p, "kv_heads", a->kv_heads);
    put_number(p, "head_values", a->dim);
    put_number(p, "feed_forward", a->feed_forward);
    put_number(p, "vocabulary", a->vocabulary);
    put_number(p, "tokens", model->vocabulary.count);
    put_number(p, "context", a->context);
    put_groups(p, model);
}

static int put_fingerprint(printer_t *p, qr_model_t *model, char *message, size_t message_bytes)
{
    qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = QR_ISA_AUTO, .threads = 1};
    qr_device_t *device;
    int status = qr_device_new(&config, &device, message, message_bytes);
    if (status) return status;
    status = qr_model_load(model, device, NULL, NULL, message, message_bytes);
    if (!status) {
        char hex[2 * 32 + 1];
        for (int i = 0; i < 32; i++) (void)snprintf(hex + 2 * i, 3, "%02x", model->layout.fingerprint.bytes[i]);
        put_text(p, "fingerprint", hex);
        if (p->json) put_text(p, "fingerprint_lines", model->fingerprint_lines);
        for (const char *line = model->fingerprint_lines; !p->json && *line;) {
            int count = (int)strcspn(line, "\n");
            printf("  %.*s\n", count, line);
            line += count + (line[count] == '\n');
        }
    }
    qr_model_destroy(&model); /* before its device */
    qr_device_destroy(&device);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------------------------------------------- */

static int inspect(printer_t *p, const char *path, bool fingerprint, char *message, size_t message_bytes)
{
    qr_gguf_t *file;
    qr_model_t *model;
    int status = qr_gguf_open(path, &file, message, message_bytes);
    if (status) return status;
    if (p->json) printf("{");
    put_text(p, "file", path);
    put_number(p, "gguf_version", qr_gguf_version(file));
    put_number(p, "alignment", qr_gguf_alignment(file));
    put_number(p, "bytes", qr_gguf_bytes(file));
    put_keys(p, file);
    put_tensors(p, file);
    qr_gguf_close(&file);
    status = qr_model_open(path, &model, message, message_bytes);
    if (!status) {
        put_model(p, model);
        if (fingerprint)
            status = put_fingerprint(p, model, message, message_bytes);
        else
            qr_model_destroy(&model);
    }
    if (p->json) {
        if (status) put_text(p, "error", message);
        printf("}\n");
    }
    return status;
}

int qr_inspect_main(int argc, char **argv)
{
    printer_t printer = {.first = true};
    const char *path = NULL;
    bool fingerprint = true, wrong = false;
    char message[512] = "";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            printer.json = true;
        else if (!strcmp(argv[i], "--no-fingerprint"))
            fingerprint = false;
        else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return printf("usage: quire inspect FILE [--json] [--no-fingerprint]     FILE: a model (GGUF), or a chunk file of a store\n") < 0;
        else if (argv[i][0] == '-' || path)
            wrong = true;
        else
            path = argv[i];
    }
    if (wrong || !path) {
        fprintf(stderr, "usage: quire inspect FILE [--json] [--no-fingerprint]\n");
        return 2;
    }
    int status = inspect(&printer, path, fingerprint, message, sizeof message);
    if (fflush(stdout)) return 2;
    if (status) fprintf(stderr, "%s\n", message);
    return status ? 2 : 0;
}
