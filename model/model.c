/* model.c - opens, checks and loads a model file (model.h says the order of its life).
 *
 * M1. Weights are read once, into memory of ours: hashed and packed in the same pass, so the fingerprint is of the bytes that compute.
 * M2. The fingerprint holds what changes numbers and nothing else: no file name, time, page size, thread count or template. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mutant.h"
#include "base/text.h"
#include "model/arch.h"
#include "model/attention_state.h"
#include "model/gguf.h"
#include "model/refuse.h"
#include "model/rope.h"
#include "model/sha256_bulk.h"
#include "model/vocabulary.h"

/* ---- open ------------------------------------------------------------------------------------------------------------------ */

static void name_set(qr_model_t *model, qr_gguf_string_t name)
{
    size_t count = (size_t)qr_min_u64(name.bytes, sizeof model->name - 1);
    for (size_t i = 0; i < count; i++) {
        char c = name.data[i];
        model->name[i] = c >= 32 && c < 127 ? c : '?';
    }
    model->name[count] = 0;
}

/* general.name, or the file's name without its folder and ".gguf". */
static int name_read(qr_model_t *model, char *message, size_t message_bytes)
{
    qr_gguf_string_t name;
    int status = qr_gguf_get_string(model->file, "general.name", &name, message, message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (status || name.bytes == 0) {
        const char *slash = strrchr(model->path, '/');
        name.data = slash ? slash + 1 : model->path;
        name.bytes = strlen(name.data);
        if (name.bytes > 5 && strcmp(name.data + name.bytes - 5, ".gguf") == 0) name.bytes -= 5;
    }
    name_set(model, name);
    return 0;
}

static int template_read(qr_model_t *model, char *message, size_t message_bytes)
{
    qr_gguf_string_t text = {"", 0};
    int status = qr_gguf_get_string(model->file, "tokenizer.chat_template", &text, message, message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (text.bytes && memchr(text.data, 0, text.bytes))
        return qr_refuse(message, message_bytes, QR_E_FORMAT, "%s: tokenizer.chat_template contains a NUL", model->path);
    char *copy = malloc(text.bytes + 1);
    if (!copy) return qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory for the chat template", model->path);
    qr_copy(copy, text.data, text.bytes);
    copy[text.bytes] = 0;
    model->chat_template = copy;
    return 0;
}

static int layout_make(qr_model_t *model, char *message, size_t message_bytes)
{
    qr_attention_state_t state;
    if (qr_attention_state_resolve(&model->arch, &state))
        return qr_refuse(message, message_bytes, QR_E_UNSUPPORTED, "%s: llama.attention.sliding_window has more than %d different values",
                         model->path, QR_GROUPS_MAX);
    qr_attention_state_describe(&state, &model->layout);
    model->layout.context_tokens = qr_min_u32(model->arch.context, QR_CONTEXT_MAX);
    return 0;
}

static int model_read(qr_model_t *model, char *message, size_t message_bytes)
{
    int status = qr_arch_read(model->file, &model->arch, message, message_bytes);
    if (!status) status = qr_vocabulary_read(model, message, message_bytes);
    if (!status) status = name_read(model, message, message_bytes);
    if (!status) status = template_read(model, message, message_bytes);
    return status ? status : layout_make(model, message, message_bytes);
}

int qr_model_open_gguf(qr_gguf_t **file, qr_model_t **ret_model, char *message, size_t message_bytes)
{
    qr_model_t *model = calloc(1, sizeof *model);
    if (!model) return qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory", qr_gguf_path(*file));
    model->file = *file;
    *file = NULL;
    (void)snprintf(model->path, sizeof model->path, "%s", qr_gguf_path(model->file)); /* the reader's limit is the same */
    int status = model_read(model, message, message_bytes);
    if (status)
        qr_model_destroy(&model);
    else
        *ret_model = model;
    return status;
}

int qr_model_open(const char *path, qr_model_t **ret_model, char *message, size_t message_bytes)
{
    qr_gguf_t *file;
    int status = qr_gguf_open(path, &file, message, message_bytes);
    if (status) return status;
    status = qr_model_open_gguf(&file, ret_model, message, message_bytes);
    qr_gguf_close(&file); /* NULL once the model has it */
    return status;
}

/* ---- weights ----------------------------------------------------------------------------------------------------------------- */

/* Digests wait by tensor index until all are known; the weights digest wants them in the order of names. */
typedef struct loading {
    qr_model_t *model;
    qr_hash_t *digests; /* [tensors], in sorted order */
    uint64_t done, total;
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
    char *message;
    size_t message_bytes;
} loading_t;

#define REFUSE(loading, code, format, ...)                                                                                                 \
    qr_refuse((loading)->message, (loading)->message_bytes, code, "%s: " format, (loading)->model->path, __VA_ARGS__)

static uint32_t sorted_index(const qr_gguf_t *file, const qr_gguf_tensor_t *tensor)
{
    for (uint32_t i = 0; i < qr_gguf_tensor_count(file); i++)
        if (qr_gguf_tensor_sorted(file, i) == tensor) return i;
    qr_unreachable("a tensor of another file");
}

/* Reads a tensor into new memory, hashing it on the way. */
static int tensor_take(loading_t *loading, const qr_gguf_tensor_t *tensor, uint8_t **ret_bytes)
{
    enum { PIECE = 4 << 20 };
    uint8_t *bytes = malloc(tensor->bytes);
    if (!bytes)
        return REFUSE(loading, QR_E_MEMORY, "%llu bytes for tensor %s", (unsigned long long)tensor->bytes, qr_shown(tensor->name).text);
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    for (uint64_t at = 0; at < tensor->bytes;) {
        uint64_t count = qr_min_u64(tensor->bytes - at, PIECE);
        int status = qr_gguf_tensor_read(loading->model->file, tensor, at, bytes + at, count, loading->message, loading->message_bytes);
        if (status) {
            free(bytes);
            return status;
        }
        qr_sha256_add_bulk(&sha, bytes + at, count);
        at += count;
        loading->done += count;
        if (loading->progress) loading->progress(loading->context, loading->done, loading->total);
    }
    qr_sha256_end(&sha, loading->digests[sorted_index(loading->model->file, tensor)].bytes);
    *ret_bytes = bytes;
    return 0;
}

/* Packs matrices of some roles of one layer, stacked by rows; all have one format and width. */
static int matrices_pack(loading_t *loading, uint32_t layer, const qr_tensor_role_t *roles, uint32_t count, qr_weight_t *ret_weight)
{
    qr_model_t *model = loading->model;
    uint8_t *parts[3] = {0};
    uint32_t rows[3], columns = 0, format = 0;
    int status = 0;
    for (uint32_t i = 0; i < count && !status; i++) {
        const qr_gguf_tensor_t *tensor = qr_arch_tensor(model->file, &model->arch, roles[i], layer);
        rows[i] = (uint32_t)tensor->dims[1];
        columns = (uint32_t)tensor->dims[0];
        format = tensor->format;
        status = tensor_take(loading, tensor, &parts[i]);
    }
    if (!status) {
        const void *from[3] = {parts[0], parts[1], parts[2]};
        status = qr_weight_new(model->device, format, columns, count, from, rows, ret_weight);
        if (status) (void)REFUSE(loading, -status, "packing the weights of layer %u: %s", layer, qr_error_sentence(status));
    }
    for (uint32_t i = 0; i < count; i++) free(parts[i]);
    return status;
}

static int vector_load(loading_t *loading, uint32_t layer, qr_tensor_role_t role, qr_buffer_t *ret_buffer)
{
    qr_model_t *model = loading->model;
    const qr_gguf_tensor_t *tensor = qr_arch_tensor(model->file, &model->arch, role, layer);
    uint8_t *bytes;
    int status = tensor_take(loading, tensor, &bytes);
    if (status) return status;
    status = qr_buffer_new(model->device, tensor->bytes, ret_buffer);
    if (!status) status = qr_buffer_write(model->device, ret_buffer, 0, bytes, tensor->bytes);
    if (status) (void)REFUSE(loading, -status, "tensor %s: %s", qr_shown(tensor->name).text, qr_error_sentence(status));
    free(bytes);
    return status;
}

static bool formats_agree(const qr_model_t *model, uint32_t layer, const qr_tensor_role_t *roles, uint32_t count)
{
    uint32_t first = qr_arch_tensor(model->file, &model->arch, roles[0], layer)->format;
    for (uint32_t i = 1; i < count; i++)
        if (qr_arch_tensor(model->file, &model->arch, roles[i], layer)->format != first) return false;
    return true;
}

/* One stacked matrix when the formats agree, else one each. */
static int stack_load(loading_t *loading, uint32_t layer, const qr_tensor_role_t *roles, uint32_t count, qr_weight_t *weights,
                      uint32_t *ret_count)
{
    bool stacked = formats_agree(loading->model, layer, roles, count);
    *ret_count = stacked ? 1 : count;
    if (stacked) return matrices_pack(loading, layer, roles, count, &weights[0]);
    int status = 0;
    for (uint32_t i = 0; i < count && !status; i++) status = matrices_pack(loading, layer, &roles[i], 1, &weights[i]);
    return status;
}

static int layer_load(loading_t *loading, uint32_t layer)
{
    static const qr_tensor_role_t qkv[] = {QR_TENSOR_QUERY, QR_TENSOR_KEY, QR_TENSOR_VALUE}, gate_up[] = {QR_TENSOR_GATE, QR_TENSOR_UP};
    static const qr_tensor_role_t output[] = {QR_TENSOR_OUTPUT}, down[] = {QR_TENSOR_DOWN};
    qr_layer_weights_t *weights = &loading->model->layers[layer];
    int status = vector_load(loading, layer, QR_TENSOR_ATTENTION_NORM, &weights->attention_norm);
    if (!status) status = stack_load(loading, layer, qkv, 3, weights->qkv, &weights->qkv_count);
    if (!status) status = matrices_pack(loading, layer, output, 1, &weights->output);
    if (!status) status = vector_load(loading, layer, QR_TENSOR_FEED_FORWARD_NORM, &weights->feed_forward_norm);
    if (!status) status = stack_load(loading, layer, gate_up, 2, weights->gate_up, &weights->gate_up_count);
    return status ? status : matrices_pack(loading, layer, down, 1, &weights->down);
}

static int ends_load(loading_t *loading)
{
    static const qr_tensor_role_t embedding[] = {QR_TENSOR_EMBEDDING}, head[] = {QR_TENSOR_HEAD};
    qr_model_t *model = loading->model;
    int status = matrices_pack(loading, 0, embedding, 1, &model->embedding);
    if (!status) status = vector_load(loading, 0, QR_TENSOR_FINAL_NORM, &model->final_norm);
    if (status) return status;
    if (!model->arch.tied) return matrices_pack(loading, 0, head, 1, &model->head);
    model->head = model->embedding;
    return 0;
}

static int rope_load(loading_t *loading)
{
    qr_model_t *model = loading->model;
    uint64_t steps[QR_DIM_MAX / 2], bytes = model->arch.dim / 2 * sizeof steps[0];
    qr_rope_steps(model->arch.rope_theta, model->arch.rope_scale, model->arch.dim, steps);
    int status = qr_buffer_new(model->device, bytes, &model->rope_steps);
    if (!status) status = qr_buffer_write(model->device, &model->rope_steps, 0, steps, bytes);
    return status ? REFUSE(loading, -status, "rotation table: %s", qr_error_sentence(status)) : 0;
}

/* ---- fingerprint (formats.md) ------------------------------------------------------------------------------------------------ */

static void sha_number(qr_sha256_t *sha, uint64_t value, uint32_t bytes)
{
    uint8_t little[8];
    for (uint32_t i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> (8 * i));
    qr_sha256_add(sha, little, bytes);
}

static qr_hash_t weights_digest(const qr_gguf_t *file, const qr_hash_t *digests)
{
    qr_hash_t digest;
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    for (uint32_t i = 0; i < qr_gguf_tensor_count(file); i++) {
        const qr_gguf_tensor_t *t = qr_gguf_tensor_sorted(file, i);
        sha_number(&sha, t->name.bytes, 2);
        qr_sha256_add(&sha, t->name.data, t->name.bytes);
        sha_number(&sha, t->format, 4);
        sha_number(&sha, t->dim_count, 4);
        for (uint32_t d = 0; d < t->dim_count; d++) sha_number(&sha, t->dims[d], 8);
        qr_sha256_add(&sha, digests[i].bytes, 32);
    }
    qr_sha256_end(&sha, digest.bytes);
    return digest;
}

static void line_text(qr_text_t *text, const char *key, const char *value)
{
    qr_text_put(text, key);
    qr_text_put(text, "=");
    qr_text_put(text, value);
    qr_text_put(text, "\n");
}
static void line_u64(qr_text_t *text, const char *key, uint64_t value)
{
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    line_text(text, key, digits);
}
/* Hexadecimal: every bit of the number, the same text everywhere. */
static void line_real(qr_text_t *text, const char *key, double value)
{
    char digits[40];
    (void)snprintf(digits, sizeof digits, "%a", value);
    line_text(text, key, digits);
}

/* Windows per layer as runs: "30x0", "1x0,5x512". */
static void line_windows(qr_text_t *text, const qr_arch_t *arch)
{
    qr_text_put(text, "attention.windows=");
    for (uint32_t layer = 0, next; layer < arch->layers; layer = next) {
        next = layer + 1;
        while (next < arch->layers && arch->window[next] == arch->window[layer]) next++;
        if (layer) qr_text_put(text, ",");
        qr_text_put_u64(text, next - layer);
        qr_text_put(text, "x");
        qr_text_put_u64(text, arch->window[layer]);
    }
    qr_text_put(text, "\n");
}

static void line_slabs(qr_text_t *text, const qr_arch_t *arch)
{
    qr_attention_state_t state;
    qr_assert(qr_attention_state_resolve(arch, &state) == 0);
    qr_text_put(text, "attention.slabs=");
    for (uint32_t s = 0; s < QR_SLABS_COUNT; s++) {
        if (s) qr_text_put(text, ",");
        qr_text_put(text, state.slabs[s].name);
        qr_text_put(text, ":f16:");
        qr_text_put_u64(text, state.slabs[s].row_values);
    }
    qr_text_put(text, "\n");
}

/* Lines in byte order of their keys. */
static void fingerprint_make(qr_model_t *model, const qr_hash_t *digests)
{
    const qr_arch_t *a = &model->arch;
    qr_hash_t weights = weights_digest(model->file, digests);
    qr_text_t text;
    char kind[32];
    (void)snprintf(kind, sizeof kind, "%s", qr_device_name(model->device));
    kind[strcspn(kind, " ,")] = 0;
    qr_text_init(&text, model->fingerprint_lines, sizeof model->fingerprint_lines);
    line_text(&text, "architecture", a->name);
    line_u64(&text, "attention.head_values", a->dim);
    line_u64(&text, "attention.heads", a->heads);
    line_u64(&text, "attention.kv_heads", a->kv_heads);
    line_slabs(&text, a);
    line_windows(&text, a);
    line_text(&text, "device", kind);
    line_u64(&text, "feed_forward", a->feed_forward);
    line_u64(&text, "hidden", a->hidden);
    line_u64(&text, "layers", a->layers);
    line_real(&text, "norm.epsilon", (double)a->norm_eps);
    line_u64(&text, "rope.pairing", a->rope_pairing);
    line_real(&text, "rope.scale", a->rope_scale);
    line_real(&text, "rope.theta", QR_MUTANT(405) ? 0 : a->rope_theta);
    line_u64(&text, "tied", a->tied);
    line_text(&text, "variant", qr_device_variant(model->device));
    line_u64(&text, "vocabulary", a->vocabulary);
    qr_text_put(&text, "weights=sha256:");
    qr_text_put_hex(&text, weights.bytes, sizeof weights.bytes);
    qr_text_put(&text, "\n");
    qr_assert(!text.cut);
    qr_sha256(text.data, text.count, model->layout.fingerprint.bytes);
}

/* ---- load, destroy ---------------------------------------------------------------------------------------------------------------- */

static int weights_load(loading_t *loading)
{
    qr_model_t *model = loading->model;
    model->layers = calloc(model->arch.layers, sizeof *model->layers);
    loading->digests = calloc(qr_gguf_tensor_count(model->file), sizeof *loading->digests);
    if (!model->layers || !loading->digests) return REFUSE(loading, QR_E_MEMORY, "%s", "not enough memory");
    int status = ends_load(loading);
    for (uint32_t layer = 0; layer < model->arch.layers && !status; layer++) status = layer_load(loading, layer);
    return status ? status : rope_load(loading);
}

static void weights_done(qr_model_t *model)
{
    if (!model->device) return;
    bool own_head = model->head.buffer.bytes && (model->head.buffer.host != model->embedding.buffer.host || !model->arch.tied);
    if (own_head) qr_weight_done(model->device, &model->head);
    if (model->embedding.buffer.bytes) qr_weight_done(model->device, &model->embedding);
    for (uint32_t layer = 0; model->layers && layer < model->arch.layers; layer++) {
        qr_layer_weights_t *w = &model->layers[layer];
        qr_weight_t *weights[] = {&w->qkv[0], &w->qkv[1], &w->qkv[2], &w->gate_up[0], &w->gate_up[1], &w->output, &w->down};
        for (size_t i = 0; i < QR_COUNT(weights); i++)
            if (weights[i]->buffer.bytes) qr_weight_done(model->device, weights[i]);
        if (w->attention_norm.bytes) qr_buffer_done(model->device, &w->attention_norm);
        if (w->feed_forward_norm.bytes) qr_buffer_done(model->device, &w->feed_forward_norm);
    }
    if (model->final_norm.bytes) qr_buffer_done(model->device, &model->final_norm);
    if (model->rope_steps.bytes) qr_buffer_done(model->device, &model->rope_steps);
    free(model->layers);
    model->layers = NULL;
    model->device = NULL;
}

int qr_model_load(qr_model_t *model, qr_device_t *device, void (*progress)(void *context, uint64_t done, uint64_t total), void *context,
                  char *message, size_t message_bytes)
{
    qr_assert(!model->device && device);
    loading_t loading = {.model = model, .progress = progress, .context = context, .message = message, .message_bytes = message_bytes};
    model->device = device;
    for (uint32_t i = 0; i < qr_gguf_tensor_count(model->file); i++) loading.total += qr_gguf_tensor(model->file, i)->bytes;
    int status = weights_load(&loading);
    if (!status)
        fingerprint_make(model, loading.digests);
    else
        weights_done(model);
    free(loading.digests);
    return status;
}

void qr_model_destroy(qr_model_t **model)
{
    qr_model_t *m = *model;
    if (!m) return;
    *model = NULL;
    weights_done(m);
    qr_vocabulary_done(&m->vocabulary);
    free((void *)(uintptr_t)m->chat_template);
    qr_gguf_close(&m->file);
    free(m);
}
