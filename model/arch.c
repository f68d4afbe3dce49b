/* arch.c - architectures as tables (arch.h says the rules): keys into numbers, numbers into qr_arch_t, tensors against both. */
#include "model/arch.h"

#include <stdio.h>

#include "base/error.h"
#include "base/mutant.h"
#include "model/refuse.h"

/* ---- the descriptor of an architecture ------------------------------------------------------------------------------- */

/* Every number a key may give; 0 where absent. */
typedef struct numbers {
    uint64_t layers, context, hidden, feed_forward, heads, key_length, value_length, rope_dims, vocabulary, experts;
    double eps, theta, scale, scale_old;
} numbers_t;

typedef struct key_row {
    const char *suffix; /* behind "<architecture>." */
    enum { WHOLE, REAL } kind;
    bool required;
    double least, most;
    double absent; /* the value when the file does not say */
    size_t member; /* in numbers_t */
} key_row_t;

typedef enum size { ONE, HIDDEN, QUERY, KEY, FEED_FORWARD, VOCABULARY } size_of_t;
static const char *const size_keys[] = {
    [HIDDEN] = "embedding_length",          [QUERY] = "attention.head_count",        [KEY] = "attention.head_count_kv",
    [FEED_FORWARD] = "feed_forward_length", [VOCABULARY] = "token_embd.weight rows",
};

typedef struct tensor_row {
    const char *name; /* %u: the layer */
    bool per_layer, optional;
    size_of_t columns, rows; /* rows ONE: a vector */
} tensor_row_t;

typedef struct descriptor {
    const char *name;
    uint32_t rope_pairing;
    const key_row_t *keys;
    size_t key_count;
    const char *const *ignored; /* suffixes that change no number */
    size_t ignored_count;
    const tensor_row_t *tensors; /* [QR_TENSOR_ROLES_COUNT] */
} descriptor_t;

#define NUMBER(x) offsetof(numbers_t, x)
static const key_row_t llama_keys[] = {
    {"block_count", WHOLE, true, 1, QR_LAYERS_MAX, 0, NUMBER(layers)},
    {"context_length", WHOLE, true, 1, 1u << 30, 0, NUMBER(context)},
    {"embedding_length", WHOLE, true, 32, 65536, 0, NUMBER(hidden)},
    {"feed_forward_length", WHOLE, true, 32, 1u << 20, 0, NUMBER(feed_forward)},
    {"attention.head_count", WHOLE, true, 1, 1024, 0, NUMBER(heads)},
    {"attention.key_length", WHOLE, false, 8, QR_DIM_MAX, 0, NUMBER(key_length)},
    {"attention.value_length", WHOLE, false, 8, QR_DIM_MAX, 0, NUMBER(value_length)},
    {"attention.layer_norm_rms_epsilon", REAL, true, 1e-12, 0.1, 0, NUMBER(eps)},
    {"rope.dimension_count", WHOLE, false, 8, QR_DIM_MAX, 0, NUMBER(rope_dims)},
    {"rope.freq_base", REAL, false, 1.0009765625, 1e12, 10000.0, NUMBER(theta)},
    {"rope.scaling.factor", REAL, false, 1.0, 1e6, 1, NUMBER(scale)},
    {"rope.scale_linear", REAL, false, 1.0, 1e6, 1, NUMBER(scale_old)},
    {"vocab_size", WHOLE, false, 1, 1u << 24, 0, NUMBER(vocabulary)},
    {"expert_count", WHOLE, false, 0, 0, 0, NUMBER(experts)}, /* mixtures are another architecture to us */
};
static const char *const llama_ignored[] = {
    "attention.head_count_kv", "attention.sliding_window", "rope.scaling.type", /* read by functions of their own */
    "expert_used_count",       "tensor_data_layout",       "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
};
static const tensor_row_t llama_tensors[QR_TENSOR_ROLES_COUNT] = {
    [QR_TENSOR_EMBEDDING] = {"token_embd.weight", false, false, HIDDEN, VOCABULARY},
    [QR_TENSOR_FINAL_NORM] = {"output_norm.weight", false, false, HIDDEN, ONE},
    [QR_TENSOR_HEAD] = {"output.weight", false, true, HIDDEN, VOCABULARY}, /* absent: tied to token_embd */
    [QR_TENSOR_ATTENTION_NORM] = {"blk.%u.attn_norm.weight", true, false, HIDDEN, ONE},
    [QR_TENSOR_QUERY] = {"blk.%u.attn_q.weight", true, false, HIDDEN, QUERY},
    [QR_TENSOR_KEY] = {"blk.%u.attn_k.weight", true, false, HIDDEN, KEY},
    [QR_TENSOR_VALUE] = {"blk.%u.attn_v.weight", true, false, HIDDEN, KEY},
    [QR_TENSOR_OUTPUT] = {"blk.%u.attn_output.weight", true, false, QUERY, HIDDEN},
    [QR_TENSOR_FEED_FORWARD_NORM] = {"blk.%u.ffn_norm.weight", true, false, HIDDEN, ONE},
    [QR_TENSOR_GATE] = {"blk.%u.ffn_gate.weight", true, false, HIDDEN, FEED_FORWARD},
    [QR_TENSOR_UP] = {"blk.%u.ffn_up.weight", true, false, HIDDEN, FEED_FORWARD},
    [QR_TENSOR_DOWN] = {"blk.%u.ffn_down.weight", true, false, FEED_FORWARD, HIDDEN},
};
/* The file's q and k rows are permuted by its maker for pairs (2i, 2i+1): pairing 0. */
static const descriptor_t descriptors[] = {
    {"llama", 0, llama_keys, QR_COUNT(llama_keys), llama_ignored, QR_COUNT(llama_ignored), llama_tensors},
};

/* One read of a file: what every helper needs. */
typedef struct reading {
    const qr_gguf_t *file;
    const descriptor_t *descriptor;
    numbers_t numbers;
    qr_arch_t arch;
    char *message;
    size_t message_bytes;
} reading_t;

#define REFUSE(r, code, format, ...) qr_refuse((r)->message, (r)->message_bytes, code, "%s: " format, qr_gguf_path((r)->file), __VA_ARGS__)

/* ---- keys ------------------------------------------------------------------------------------------------------------------ */

typedef struct name {
    char text[128];
} name_t;
static name_t key_name(const reading_t *r, const char *suffix)
{
    name_t name;
    (void)snprintf(name.text, sizeof name.text, "%s.%s", r->descriptor->name, suffix);
    return name;
}

static int key_read(reading_t *r, const key_row_t *row)
{
    uint8_t *place = (uint8_t *)&r->numbers + row->member;
    name_t key = key_name(r, row->suffix);
    uint64_t whole = 0;
    double real = 0;
    int status = row->kind == WHOLE ? qr_gguf_get_u64(r->file, key.text, &whole, r->message, r->message_bytes)
                                    : qr_gguf_get_f64(r->file, key.text, &real, r->message, r->message_bytes);
    if (status == -QR_E_NOT_FOUND) {
        if (row->required) return REFUSE(r, QR_E_FORMAT, "the key %s is missing", key.text);
        whole = (uint64_t)row->absent;
        real = row->absent;
    } else if (status) {
        return status;
    } else if (row->kind == WHOLE && ((double)whole < row->least || (double)whole > row->most)) {
        return REFUSE(r, QR_E_UNSUPPORTED, "%s is %llu; %.0f to %.0f are supported", key.text, (unsigned long long)whole, row->least,
                      row->most);
    } else if (row->kind == REAL && !(real >= row->least && real <= row->most)) {
        return REFUSE(r, QR_E_UNSUPPORTED, "%s is %g; %g to %g are supported", key.text, real, row->least, row->most);
    }
    if (row->kind == WHOLE)
        memcpy(place, &whole, sizeof whole);
    else
        memcpy(place, &real, sizeof real);
    return 0;
}

/* A1: no key of the architecture stays unread. */
static int keys_known(const reading_t *r)
{
    size_t prefix = strlen(r->descriptor->name);
    for (uint32_t i = 0; i < qr_gguf_entry_count(r->file); i++) {
        const qr_gguf_entry_t *entry = qr_gguf_entry(r->file, i);
        if (entry->key.bytes <= prefix || memcmp(entry->key.data, r->descriptor->name, prefix) || entry->key.data[prefix] != '.') continue;
        qr_gguf_string_t suffix = {entry->key.data + prefix + 1, entry->key.bytes - prefix - 1};
        bool known = false;
        for (size_t k = 0; k < r->descriptor->key_count; k++) known |= qr_gguf_string_is(suffix, r->descriptor->keys[k].suffix);
        for (size_t k = 0; k < r->descriptor->ignored_count; k++) known |= qr_gguf_string_is(suffix, r->descriptor->ignored[k]);
        if (!known)
            return REFUSE(r, QR_E_UNSUPPORTED, "the key %s is not known to architecture %s and might change its numbers",
                          qr_shown(entry->key).text, r->descriptor->name);
    }
    return 0;
}

/* A u32 for all layers, or an array with one per layer. */
static int per_layer_read(reading_t *r, const char *suffix, uint64_t absent, uint64_t most, uint32_t values[QR_LAYERS_MAX])
{
    name_t key = key_name(r, suffix);
    const qr_gguf_entry_t *entry = qr_gguf_find(r->file, key.text);
    uint64_t value = absent;
    int status = 0;
    bool array = entry && entry->type == QR_GGUF_ARRAY;
    if (array)
        status = qr_gguf_get_array(r->file, key.text, QR_GGUF_TYPES_COUNT, &entry, r->message, r->message_bytes);
    else if (entry)
        status = qr_gguf_get_u64(r->file, key.text, &value, r->message, r->message_bytes);
    if (status) return status;
    if (array && entry->count != r->numbers.layers)
        return REFUSE(r, QR_E_FORMAT, "%s has %llu elements, but llama.block_count is %llu", key.text, (unsigned long long)entry->count,
                      (unsigned long long)r->numbers.layers);
    for (uint32_t i = 0; i < r->numbers.layers; i++) {
        if (array) value = qr_gguf_element_u64(entry, i);
        if (value > most)
            return REFUSE(r, QR_E_UNSUPPORTED, "%s of layer %u is %llu; at most %llu is supported", key.text, i, (unsigned long long)value,
                          (unsigned long long)most);
        values[i] = (uint32_t)value;
    }
    return 0;
}

static int kv_heads_read(reading_t *r)
{
    uint32_t values[QR_LAYERS_MAX];
    int status = per_layer_read(r, "attention.head_count_kv", r->numbers.heads, 1024, values);
    if (status) return status;
    for (uint32_t i = 0; i < r->numbers.layers; i++)
        if (values[i] != values[0])
            return REFUSE(r, QR_E_UNSUPPORTED, "llama.attention.head_count_kv is %u in layer 0 and %u in layer %u; one value is supported",
                          values[0], values[i], i);
    if (values[0] == 0 || r->numbers.heads % values[0])
        return REFUSE(r, QR_E_FORMAT, "llama.attention.head_count_kv %u does not divide llama.attention.head_count %llu", values[0],
                      (unsigned long long)r->numbers.heads);
    if (r->numbers.heads / values[0] > QR_HEADS_PER_KV_MAX)
        return REFUSE(r, QR_E_UNSUPPORTED,
                      "llama.attention.head_count %llu over llama.attention.head_count_kv %u: at most %d query heads share one",
                      (unsigned long long)r->numbers.heads, values[0], QR_HEADS_PER_KV_MAX);
    r->arch.kv_heads = values[0];
    return 0;
}

static int windows_read(reading_t *r)
{
    bool whole = false;
    int status = per_layer_read(r, "attention.sliding_window", 0, 1u << 30, r->arch.window);
    if (status) return status;
    for (uint32_t i = 0; i < r->numbers.layers; i++) {
        whole |= r->arch.window[i] == 0;
        if (r->arch.window[i] == 1)
            return REFUSE(r, QR_E_UNSUPPORTED,
                          "llama.attention.sliding_window of layer %u is 1; 0 (whole prefix) or at least 2 is supported", i);
    }
    if (!whole)
        return REFUSE(r, QR_E_UNSUPPORTED, "%s", "llama.attention.sliding_window: a model needs at least one layer with 0 (whole prefix)");
    return 0;
}

static int head_dim_read(reading_t *r)
{
    const numbers_t *n = &r->numbers;
    uint64_t dim = n->key_length;
    if (!dim && n->hidden % n->heads)
        return REFUSE(r, QR_E_FORMAT, "llama.embedding_length %llu is not a multiple of llama.attention.head_count %llu",
                      (unsigned long long)n->hidden, (unsigned long long)n->heads);
    if (!dim) dim = n->hidden / n->heads;
    if (dim % 8 || dim > QR_DIM_MAX)
        return REFUSE(r, QR_E_UNSUPPORTED,
                      "heads of %llu values (llama.embedding_length / llama.attention.head_count, or "
                      "llama.attention.key_length); multiples of 8 up to %d are supported",
                      (unsigned long long)dim, QR_DIM_MAX);
    if (n->value_length && n->value_length != dim)
        return REFUSE(r, QR_E_UNSUPPORTED, "llama.attention.value_length %llu differs from the key length %llu",
                      (unsigned long long)n->value_length, (unsigned long long)dim);
    if (n->rope_dims && n->rope_dims != dim)
        return REFUSE(r, QR_E_UNSUPPORTED,
                      "llama.rope.dimension_count %llu differs from the head size %llu; only full rotation is supported",
                      (unsigned long long)n->rope_dims, (unsigned long long)dim);
    r->arch.dim = (uint32_t)dim;
    return 0;
}

/* Linear scaling is the format's default when a factor is given without a type. */
static int scaling_read(reading_t *r)
{
    qr_gguf_string_t type = {"linear", 6};
    int status = qr_gguf_get_string(r->file, "llama.rope.scaling.type", &type, r->message, r->message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    bool none = qr_gguf_string_is(type, "none");
    if (!none && !qr_gguf_string_is(type, "linear"))
        return REFUSE(r, QR_E_UNSUPPORTED, "llama.rope.scaling.type is %s; none and linear are supported", qr_shown(type).text);
    if (r->numbers.scale > 1 && r->numbers.scale_old > 1)
        return REFUSE(r, QR_E_FORMAT, "%s", "llama.rope.scaling.factor and llama.rope.scale_linear are both given");
    r->arch.rope_scale = none ? 1 : r->numbers.scale > 1 ? r->numbers.scale : r->numbers.scale_old;
    return 0;
}

/* Product inputs are whole blocks of 32. */
static int widths_check(const reading_t *r)
{
    const qr_arch_t *a = &r->arch;
    const char *key = a->hidden % 32 ? "llama.embedding_length" : a->feed_forward % 32 ? "llama.feed_forward_length" : NULL;
    if (!key && (uint64_t)a->heads * a->dim % 32) key = "llama.attention.head_count x head size";
    if (!key && (uint64_t)a->kv_heads * a->dim > UINT16_MAX * 2u) key = "llama.attention.head_count_kv x head size";
    if (key) return REFUSE(r, QR_E_UNSUPPORTED, "%s: widths that are multiples of 32, at most 131070 for keys, are supported", key);
    return 0;
}

static int keys_read(reading_t *r)
{
    int status = 0;
    for (size_t i = 0; i < r->descriptor->key_count && !status; i++) status = key_read(r, &r->descriptor->keys[i]);
    if (!status) status = keys_known(r);
    if (!status) status = kv_heads_read(r);
    if (!status) status = windows_read(r);
    if (!status) status = head_dim_read(r);
    if (!status) status = scaling_read(r);
    if (status) return status;
    qr_arch_t *a = &r->arch;
    memcpy(a->name, r->descriptor->name, strlen(r->descriptor->name) + 1);
    a->layers = (uint32_t)r->numbers.layers;
    a->hidden = (uint32_t)r->numbers.hidden;
    a->heads = (uint32_t)r->numbers.heads;
    a->feed_forward = (uint32_t)r->numbers.feed_forward;
    a->context = (uint32_t)r->numbers.context;
    a->rope_pairing = r->descriptor->rope_pairing;
    a->norm_eps = (float)r->numbers.eps;
    a->rope_theta = r->numbers.theta;
    return widths_check(r);
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------- */

static uint64_t size_value(const qr_arch_t *a, size_of_t size)
{
    switch (size) {
    case ONE: return 1;
    case HIDDEN: return a->hidden;
    case QUERY: return (uint64_t)a->heads * a->dim;
    case KEY: return (uint64_t)a->kv_heads * a->dim;
    case FEED_FORWARD: return a->feed_forward;
    case VOCABULARY: return a->vocabulary;
    }
    qr_unreachable("size of a tensor");
}

static name_t tensor_name(const tensor_row_t *row, uint32_t layer)
{
    name_t name;
    const char *hole = strstr(row->name, "%u");
    if (hole)
        (void)snprintf(name.text, sizeof name.text, "%.*s%u%s", (int)(hole - row->name), row->name, layer, hole + 2);
    else
        (void)snprintf(name.text, sizeof name.text, "%s", row->name);
    return name;
}

/* One tensor against its row of the table (A2). */
static int tensor_check(const reading_t *r, const tensor_row_t *row, uint32_t layer, uint32_t *used)
{
    const char *arch = r->descriptor->name;
    name_t name = tensor_name(row, layer);
    const qr_gguf_tensor_t *t = qr_gguf_tensor_find(r->file, name.text);
    if (!t && row->optional) return 0;
    if (!t && row->per_layer)
        return REFUSE(r, QR_E_FORMAT, "tensor %s is missing, but %s.block_count is %u", name.text, arch, r->arch.layers);
    if (!t) return REFUSE(r, QR_E_FORMAT, "tensor %s is missing; architecture %s needs it", name.text, arch);
    (*used)++;
    uint64_t columns = size_value(&r->arch, row->columns), rows = size_value(&r->arch, row->rows);
    bool vector = row->rows == ONE;
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return REFUSE(r, QR_E_FORMAT, "tensor %s is [%llu, %llu], but %s.%s%s%s needs [%llu, %llu] (heads of %u values)", name.text,
                      (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], arch, size_keys[row->columns], vector ? "" : " with ",
                      vector ? "" : size_keys[row->rows], (unsigned long long)columns, (unsigned long long)rows, r->arch.dim);
    if (vector && t->format != QR_FORMAT_F32)
        return REFUSE(r, QR_E_UNSUPPORTED, "tensor %s is %s; norms in F32 are supported", name.text, qr_gguf_format_name(t->format));
    uint64_t row_bytes = qr_format_row_bytes(t->format, columns);
    if (row_bytes == 0 || row_bytes * rows != t->bytes)
        return REFUSE(r, QR_E_UNSUPPORTED,
                      "tensor %s is %s with rows of %llu values; F32 F16 Q8_0 Q4_0 Q4_1 Q6_K in whole blocks are supported", name.text,
                      qr_gguf_format_name(t->format), (unsigned long long)columns);
    return 0;
}

/* token_embd gives the vocabulary; a key that says otherwise is a contradiction. */
static int vocabulary_read(reading_t *r)
{
    const qr_gguf_tensor_t *t = qr_gguf_tensor_find(r->file, "token_embd.weight");
    if (!t) return REFUSE(r, QR_E_FORMAT, "tensor %s is missing; architecture %s needs it", "token_embd.weight", r->descriptor->name);
    if (t->dims[1] > 1u << 24)
        return REFUSE(r, QR_E_LIMIT, "tensor token_embd.weight has %llu rows; %u are supported", (unsigned long long)t->dims[1], 1u << 24);
    r->arch.vocabulary = (uint32_t)t->dims[1];
    if (r->numbers.vocabulary && r->numbers.vocabulary != t->dims[1])
        return REFUSE(r, QR_E_FORMAT, "llama.vocab_size is %llu, but tensor token_embd.weight has %llu rows",
                      (unsigned long long)r->numbers.vocabulary, (unsigned long long)t->dims[1]);
    r->arch.tied = qr_gguf_tensor_find(r->file, "output.weight") == NULL;
    return 0;
}

static bool tensor_known(const reading_t *r, const qr_gguf_tensor_t *t)
{
    for (uint32_t i = 0; i < QR_TENSOR_ROLES_COUNT; i++) {
        uint32_t layers = r->descriptor->tensors[i].per_layer ? r->arch.layers : 1;
        for (uint32_t l = 0; l < layers; l++)
            if (qr_gguf_string_is(t->name, tensor_name(&r->descriptor->tensors[i], l).text)) return true;
    }
    return false;
}

static int tensors_check(reading_t *r)
{
    uint32_t used = 0;
    int status = vocabulary_read(r);
    for (uint32_t i = 0; i < QR_TENSOR_ROLES_COUNT && !status; i++) {
        const tensor_row_t *row = &r->descriptor->tensors[i];
        for (uint32_t l = 0; l < (row->per_layer ? r->arch.layers : 1) && !status; l++) status = tensor_check(r, row, l, &used);
    }
    if (status || used == qr_gguf_tensor_count(r->file) || QR_MUTANT(403)) return status;
    for (uint32_t i = 0; i < qr_gguf_tensor_count(r->file); i++)
        if (!tensor_known(r, qr_gguf_tensor(r->file, i)))
            return REFUSE(r, QR_E_UNSUPPORTED, "tensor %s is not used by architecture %s with llama.block_count %u",
                          qr_shown(qr_gguf_tensor(r->file, i)->name).text, r->descriptor->name, r->arch.layers);
    qr_unreachable("more tensors than roles, all known");
}

/* ---- reading a file ---------------------------------------------------------------------------------------------------------- */

static int descriptor_find(reading_t *r)
{
    qr_gguf_string_t name;
    uint64_t parts = 1, version = 2;
    int status = qr_gguf_get_string(r->file, "general.architecture", &name, r->message, r->message_bytes);
    if (status == -QR_E_NOT_FOUND) return REFUSE(r, QR_E_FORMAT, "%s", "the key general.architecture is missing; llama is supported");
    if (status) return status;
    for (size_t i = 0; i < QR_COUNT(descriptors); i++)
        if (qr_gguf_string_is(name, descriptors[i].name)) r->descriptor = &descriptors[i];
    if (!r->descriptor) return REFUSE(r, QR_E_UNSUPPORTED, "general.architecture is %s; llama is supported", qr_shown(name).text);
    status = qr_gguf_get_u64(r->file, "split.count", &parts, r->message, r->message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (parts > 1) return REFUSE(r, QR_E_UNSUPPORTED, "split.count is %llu; models in one file are supported", (unsigned long long)parts);
    status = qr_gguf_get_u64(r->file, "general.quantization_version", &version, r->message, r->message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (version != 2)
        return REFUSE(r, QR_E_UNSUPPORTED, "general.quantization_version is %llu; 2 is supported", (unsigned long long)version);
    return 0;
}

int qr_arch_read(const qr_gguf_t *file, qr_arch_t *ret_arch, char *message, size_t message_bytes)
{
    reading_t reading = {.file = file, .message = message, .message_bytes = message_bytes};
    int status = descriptor_find(&reading);
    if (!status) status = keys_read(&reading);
    if (!status) status = tensors_check(&reading);
    if (!status) *ret_arch = reading.arch;
    return status;
}

const qr_gguf_tensor_t *qr_arch_tensor(const qr_gguf_t *file, const qr_arch_t *arch, qr_tensor_role_t role, uint32_t layer)
{
    qr_assert(role < QR_TENSOR_ROLES_COUNT && layer < arch->layers);
    for (size_t i = 0; i < QR_COUNT(descriptors); i++)
        if (strcmp(descriptors[i].name, arch->name) == 0)
            return qr_gguf_tensor_find(file, tensor_name(&descriptors[i].tensors[role], layer).text);
    qr_unreachable("architecture of a read file");
}
