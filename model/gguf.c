/* gguf.c - the GGUF reader (gguf.h says its promises).
 *
 * The header (metadata and tensor table) is read into one growing block; while it grows, places are kept as offsets, and become
 * pointers when it stands. Every read goes through `need`, which is the only place that compares with the file's size. */
#define _GNU_SOURCE
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mutant.h"
#include "base/utf8.h"
#include "model/refuse.h"

struct qr_gguf {
    int descriptor;        /* -1: memory */
    const uint8_t *memory; /* of the caller, or NULL */
    uint64_t bytes;        /* size of the file at open */
    uint8_t *head;         /* its first head_count bytes */
    uint64_t head_count;
    uint64_t at; /* parse position */
    uint32_t version, alignment;
    qr_gguf_entry_t *entries;
    uint32_t entry_count, entry_room;
    qr_gguf_tensor_t *tensors;
    uint32_t tensor_count, tensor_room;
    uint32_t *entry_order, *tensor_order; /* indexes in byte order of keys and names */
    char *message;                        /* of the open call */
    size_t message_bytes;
    char path[512];
};

#define REFUSE(file, code, format, ...) qr_refuse((file)->message, (file)->message_bytes, code, "%s: " format, (file)->path, __VA_ARGS__)

/* ---- tables of the format ---------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t bytes;
} types[QR_GGUF_TYPES_COUNT] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

/* Block sizes as the format's document gives them; formats nobody computes with are here so that inspect can show a file. */
static const struct {
    const char *name;
    uint16_t values, bytes;
} formats[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},        [2] = {"Q4_0", 32, 18},      [3] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},     [8] = {"Q8_0", 32, 34},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},  [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74}, [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110}, [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},       [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},
    [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},  [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const char *qr_gguf_format_name(uint32_t format) { return format < QR_COUNT(formats) ? formats[format].name : NULL; }
const char *qr_gguf_type_name(uint32_t type) { return type < QR_GGUF_TYPES_COUNT ? types[type].name : "unknown"; }

/* ---- bytes ----------------------------------------------------------------------------------------------------------- */

/* Reads exactly count bytes at offset; a short file is -QR_E_TRUNCATED. */
static int bytes_read(const qr_gguf_t *file, uint64_t offset, void *to, uint64_t count)
{
    if (file->memory) {
        if (offset > file->bytes || count > file->bytes - offset) return -QR_E_TRUNCATED;
        qr_copy(to, file->memory + offset, count);
        return 0;
    }
    uint8_t *place = to;
    while (count) {
        ssize_t got = pread(file->descriptor, place, qr_min_u64(count, 1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -QR_E_IO;
        if (got == 0) return -QR_E_TRUNCATED;
        place += got;
        offset += (uint64_t)got;
        count -= (uint64_t)got;
    }
    return 0;
}

/* Makes the next count bytes of the header present in memory. */
static int need(qr_gguf_t *file, uint64_t count, const char *what)
{
    if (count > file->bytes - file->at)
        return REFUSE(file, QR_E_TRUNCATED, "%s at byte %llu needs %llu bytes, the file ends at %llu", what, (unsigned long long)file->at,
                      (unsigned long long)count, (unsigned long long)file->bytes);
    uint64_t end = file->at + count;
    if (end <= file->head_count) return 0;
    if (end > QR_GGUF_HEADER_BYTES_MAX)
        return REFUSE(file, QR_E_LIMIT, "%s: the header is longer than %u bytes", what, (unsigned)QR_GGUF_HEADER_BYTES_MAX);
    uint64_t room = qr_min_u64(file->bytes, qr_max_u64(end, qr_max_u64(65536, 2 * file->head_count)));
    uint8_t *head = realloc(file->head, room);
    if (!head) return REFUSE(file, QR_E_MEMORY, "%llu bytes for the header", (unsigned long long)room);
    file->head = head;
    int status = bytes_read(file, file->head_count, head + file->head_count, room - file->head_count);
    if (status) return REFUSE(file, -status, "%s: %s", what, qr_error_sentence(status));
    file->head_count = room;
    return 0;
}

static uint64_t little(const uint8_t *bytes, uint32_t count)
{
    uint64_t value = 0;
    for (uint32_t i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

static int take_number(qr_gguf_t *file, uint32_t bytes, const char *what, uint64_t *ret_value)
{
    int status = need(file, bytes, what);
    if (status) return status;
    *ret_value = little(file->head + file->at, bytes);
    file->at += bytes;
    return 0;
}

/* A length-prefixed string; ret_at is its place in the header. */
static int take_string(qr_gguf_t *file, const char *what, uint64_t *ret_at, uint64_t *ret_bytes)
{
    uint64_t bytes;
    int status = take_number(file, 8, what, &bytes);
    if (status) return status;
    status = need(file, bytes, what);
    if (status) return status;
    *ret_at = file->at;
    *ret_bytes = bytes;
    file->at += bytes;
    return 0;
}

/* A key or a tensor's name: not empty, bounded, UTF-8 without NUL. */
static int take_name(qr_gguf_t *file, const char *what, uint64_t most, uint64_t *ret_at, qr_gguf_string_t *ret_name)
{
    uint64_t bytes, start = file->at;
    int status = take_string(file, what, ret_at, &bytes);
    if (status) return status;
    if (bytes == 0 || bytes > most)
        return REFUSE(file, QR_E_FORMAT, "%s at byte %llu has %llu bytes; 1 to %llu are supported", what, (unsigned long long)start,
                      (unsigned long long)bytes, (unsigned long long)most);
    *ret_name = (qr_gguf_string_t){(const char *)file->head + *ret_at, bytes};
    if (memchr(file->head + *ret_at, 0, bytes) || !qr_utf8_valid(file->head + *ret_at, bytes))
        return REFUSE(file, QR_E_FORMAT, "%s %s is not UTF-8 without NUL", what, qr_shown(*ret_name).text);
    return 0;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

/* Steps over the value of a type; bools must be 0 or 1. */
static int skip_values(qr_gguf_t *file, qr_gguf_string_t key, uint32_t type, uint64_t count)
{
    char what[120];
    qr_shown_t shown = qr_shown(key);
    (void)qr_refuse(what, sizeof what, QR_E_FORMAT, "key %s", shown.text);
    uint64_t size = types[type].bytes;
    if (type == QR_GGUF_STRING) {
        if (count > (file->bytes - file->at) / 8)
            return REFUSE(file, QR_E_TRUNCATED, "%s: %llu strings do not fit the file", what, (unsigned long long)count);
        for (uint64_t i = 0, at, bytes; i < count; i++) {
            int status = take_string(file, what, &at, &bytes);
            if (status) return status;
        }
        return 0;
    }
    if (count > (file->bytes - file->at) / size)
        return REFUSE(file, QR_E_TRUNCATED, "%s: %llu values of %s do not fit the file", what, (unsigned long long)count, types[type].name);
    int status = need(file, count * size, what);
    if (status) return status;
    if (type == QR_GGUF_BOOL)
        for (uint64_t i = 0; i < count; i++)
            if (file->head[file->at + i] > 1)
                return REFUSE(file, QR_E_FORMAT, "%s: a bool is 0 or 1, not %u", what, file->head[file->at + i]);
    file->at += count * size;
    return 0;
}

static int table_grow(qr_gguf_t *file, void **table, uint32_t *room, size_t item)
{
    uint32_t more = *room ? *room * 2 : 4;
    void *grown = realloc(*table, more * item);
    if (!grown) return REFUSE(file, QR_E_MEMORY, "%zu bytes for a table", more * item);
    *table = grown;
    *room = more;
    return 0;
}

/* Pointers of the entry are offsets until `pointers_set`. */
static int take_entry(qr_gguf_t *file)
{
    uint64_t key_at, type;
    qr_gguf_entry_t entry = {.count = 1};
    int status = take_name(file, "key", QR_GGUF_KEY_BYTES_MAX, &key_at, &entry.key);
    if (status) return status;
    qr_shown_t key = qr_shown(entry.key);
    uint64_t key_bytes = entry.key.bytes;
    status = take_number(file, 4, "the type of a value", &type);
    if (status) return status;
    if (type >= QR_GGUF_TYPES_COUNT)
        return REFUSE(file, QR_E_FORMAT, "key %s has type %llu; 0 to %d are known", key.text, (unsigned long long)type,
                      QR_GGUF_TYPES_COUNT - 1);
    entry.type = entry.element_type = (uint32_t)type;
    if (type == QR_GGUF_ARRAY) {
        status = take_number(file, 4, "the element type of an array", &type);
        if (!status) status = take_number(file, 8, "the length of an array", &entry.count);
        if (status) return status;
        if (type >= QR_GGUF_TYPES_COUNT || type == QR_GGUF_ARRAY)
            return REFUSE(file, QR_E_UNSUPPORTED, "key %s is an array of %s; arrays of numbers, bools and strings are supported", key.text,
                          qr_gguf_type_name((uint32_t)type));
        entry.element_type = (uint32_t)type;
    }
    uint64_t data_at = file->at;
    entry.key = (qr_gguf_string_t){(const char *)file->head + key_at, key_bytes};
    status = skip_values(file, entry.key, entry.element_type, entry.count);
    if (status) return status;
    entry.bytes = file->at - data_at;
    entry.key.data = (const char *)(uintptr_t)key_at;
    entry.data = (const uint8_t *)(uintptr_t)data_at;
    if (file->entry_count == file->entry_room) {
        void *table = file->entries;
        status = table_grow(file, &table, &file->entry_room, sizeof entry);
        file->entries = table;
        if (status) return status;
    }
    file->entries[file->entry_count++] = entry;
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------- */

/* Bytes of a tensor from its dims; nothing wraps. */
static int tensor_measure(qr_gguf_t *file, qr_gguf_tensor_t *tensor, const char *name)
{
    if (!qr_gguf_format_name(tensor->format))
        return REFUSE(file, QR_E_UNSUPPORTED, "tensor %s has format %u, which is not known; F32 F16 Q8_0 Q4_0 Q4_1 Q6_K are supported",
                      name, tensor->format);
    uint64_t block = formats[tensor->format].values, bytes = formats[tensor->format].bytes;
    if (tensor->dims[0] % block)
        return REFUSE(file, QR_E_FORMAT, "tensor %s: rows of %llu values are not a multiple of the %llu of a %s block", name,
                      (unsigned long long)tensor->dims[0], (unsigned long long)block, formats[tensor->format].name);
    bool wraps = __builtin_mul_overflow(tensor->dims[0] / block, bytes, &bytes);
    for (uint32_t i = 1; i < QR_GGUF_DIMS_MAX; i++) wraps |= __builtin_mul_overflow(bytes, tensor->dims[i], &bytes);
    if (wraps)
        return REFUSE(file, QR_E_TRUNCATED, "tensor %s [%llu, %llu, %llu, %llu] of %s needs 2^64 bytes or more, the file has %llu", name,
                      (unsigned long long)tensor->dims[0], (unsigned long long)tensor->dims[1], (unsigned long long)tensor->dims[2],
                      (unsigned long long)tensor->dims[3], formats[tensor->format].name, (unsigned long long)file->bytes);
    if (bytes > file->bytes)
        return REFUSE(file, QR_E_TRUNCATED, "tensor %s needs %llu bytes, the file has %llu", name, (unsigned long long)bytes,
                      (unsigned long long)file->bytes);
    tensor->bytes = bytes;
    return 0;
}

static int take_tensor(qr_gguf_t *file)
{
    uint64_t name_at, value = 0;
    qr_gguf_tensor_t tensor = {.dims = {1, 1, 1, 1}};
    int status = take_name(file, "tensor name", QR_GGUF_NAME_BYTES_MAX, &name_at, &tensor.name);
    if (status) return status;
    qr_shown_t name = qr_shown(tensor.name);
    status = take_number(file, 4, "the dimension count of a tensor", &value);
    if (status) return status;
    if (value < 1 || value > QR_GGUF_DIMS_MAX)
        return REFUSE(file, QR_E_FORMAT, "tensor %s has %llu dimensions; 1 to %d are supported", name.text, (unsigned long long)value,
                      QR_GGUF_DIMS_MAX);
    tensor.dim_count = (uint32_t)value;
    for (uint32_t i = 0; i < tensor.dim_count; i++) {
        status = take_number(file, 8, "a dimension of a tensor", &tensor.dims[i]);
        if (status) return status;
        if (tensor.dims[i] == 0 || tensor.dims[i] > INT64_MAX)
            return REFUSE(file, QR_E_FORMAT, "tensor %s: dimension %u is %llu", name.text, i, (unsigned long long)tensor.dims[i]);
    }
    status = take_number(file, 4, "the format of a tensor", &value);
    if (!status) status = take_number(file, 8, "the offset of a tensor", &tensor.offset);
    if (status) return status;
    tensor.format = (uint32_t)value;
    status = tensor_measure(file, &tensor, name.text);
    if (status) return status;
    tensor.name.data = (const char *)(uintptr_t)name_at;
    if (file->tensor_count == file->tensor_room) {
        void *table = file->tensors;
        status = table_grow(file, &table, &file->tensor_room, sizeof tensor);
        file->tensors = table;
        if (status) return status;
    }
    file->tensors[file->tensor_count++] = tensor;
    return 0;
}

/* Offsets become absolute; every tensor must lie in the file. */
static int tensors_place(qr_gguf_t *file)
{
    uint64_t base = qr_round_up(file->at, file->alignment); /* at <= 256 MiB: no wrap */
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        qr_gguf_tensor_t *t = &file->tensors[i];
        if (t->offset % file->alignment)
            return REFUSE(file, QR_E_FORMAT, "tensor %s: offset %llu is not a multiple of general.alignment %u", qr_shown(t->name).text,
                          (unsigned long long)t->offset, file->alignment);
        if (QR_MUTANT(400)) continue;
        if (base > file->bytes || t->offset > file->bytes - base || t->bytes > file->bytes - base - t->offset)
            return REFUSE(file, QR_E_TRUNCATED, "tensor %s needs %llu bytes at %llu + %llu, the file has %llu", qr_shown(t->name).text,
                          (unsigned long long)t->bytes, (unsigned long long)base, (unsigned long long)t->offset,
                          (unsigned long long)file->bytes);
        t->offset += base;
    }
    return 0;
}

/* ---- order, duplicates, overlaps ------------------------------------------------------------------------------------ */

static int string_compare(qr_gguf_string_t a, qr_gguf_string_t b)
{
    int order = memcmp(a.data, b.data, (size_t)qr_min_u64(a.bytes, b.bytes));
    return order ? order : a.bytes < b.bytes ? -1 : a.bytes > b.bytes;
}
static int entry_order(const void *a, const void *b, void *context)
{
    const qr_gguf_t *file = context;
    return string_compare(file->entries[*(const uint32_t *)a].key, file->entries[*(const uint32_t *)b].key);
}
static int tensor_order(const void *a, const void *b, void *context)
{
    const qr_gguf_t *file = context;
    return string_compare(file->tensors[*(const uint32_t *)a].name, file->tensors[*(const uint32_t *)b].name);
}
static int offset_order(const void *a, const void *b, void *context)
{
    const qr_gguf_t *file = context;
    uint64_t x = file->tensors[*(const uint32_t *)a].offset, y = file->tensors[*(const uint32_t *)b].offset;
    return x < y ? -1 : x > y;
}

static uint32_t *order_new(uint32_t count)
{
    uint32_t *order = malloc(sizeof(uint32_t) * qr_max_u32(count, 1));
    for (uint32_t i = 0; order && i < count; i++) order[i] = i;
    return order;
}

static int entries_sort(qr_gguf_t *file)
{
    file->entry_order = order_new(file->entry_count);
    if (!file->entry_order) return REFUSE(file, QR_E_MEMORY, "%u keys", file->entry_count);
    for (uint32_t i = 0; i < file->entry_count; i++) { /* offsets become pointers: the metadata stands */
        file->entries[i].key.data = (const char *)file->head + (uintptr_t)file->entries[i].key.data;
        file->entries[i].data = file->head + (uintptr_t)file->entries[i].data;
    }
    qsort_r(file->entry_order, file->entry_count, sizeof(uint32_t), entry_order, file);
    for (uint32_t i = 1; i < file->entry_count; i++)
        if (entry_order(&file->entry_order[i - 1], &file->entry_order[i], file) == 0 && !QR_MUTANT(401))
            return REFUSE(file, QR_E_FORMAT, "key %s stands twice", qr_shown(file->entries[file->entry_order[i]].key).text);
    return 0;
}

static int tensors_sort(qr_gguf_t *file)
{
    file->tensor_order = order_new(file->tensor_count);
    if (!file->tensor_order) return REFUSE(file, QR_E_MEMORY, "%u tensors", file->tensor_count);
    qsort_r(file->tensor_order, file->tensor_count, sizeof(uint32_t), offset_order, file);
    for (uint32_t i = 1; i < file->tensor_count; i++) {
        const qr_gguf_tensor_t *a = &file->tensors[file->tensor_order[i - 1]], *b = &file->tensors[file->tensor_order[i]];
        if (b->offset - a->offset < a->bytes)
            return REFUSE(file, QR_E_FORMAT, "tensor %s overlaps tensor %s", qr_shown(b->name).text, qr_shown(a->name).text);
    }
    qsort_r(file->tensor_order, file->tensor_count, sizeof(uint32_t), tensor_order, file);
    for (uint32_t i = 1; i < file->tensor_count; i++)
        if (tensor_order(&file->tensor_order[i - 1], &file->tensor_order[i], file) == 0)
            return REFUSE(file, QR_E_FORMAT, "tensor %s stands twice", qr_shown(file->tensors[file->tensor_order[i]].name).text);
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------------------------------- */

static int alignment_take(qr_gguf_t *file)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, "general.alignment");
    file->alignment = 32;
    if (!entry) return 0;
    if (entry->type != QR_GGUF_U32)
        return REFUSE(file, QR_E_FORMAT, "general.alignment is of type %s; u32 is supported", qr_gguf_type_name(entry->type));
    uint64_t value = qr_gguf_element_u64(entry, 0);
    if ((value == 0 && !QR_MUTANT(402)) || value > QR_GGUF_ALIGNMENT_MAX || (value & (value - 1)))
        return REFUSE(file, QR_E_FORMAT, "general.alignment is %llu; powers of two from 1 to %d are supported", (unsigned long long)value,
                      QR_GGUF_ALIGNMENT_MAX);
    file->alignment = (uint32_t)value;
    return 0;
}

static int header_take(qr_gguf_t *file, uint64_t *ret_tensors, uint64_t *ret_keys)
{
    uint64_t magic, version;
    int status = take_number(file, 4, "the magic", &magic);
    if (status) return status;
    if (magic != 0x46554747) return REFUSE(file, QR_E_FORMAT, "%s", "not a GGUF file (it does not begin with \"GGUF\")");
    status = take_number(file, 4, "the version", &version);
    if (status) return status;
    if (version != 2 && version != 3)
        return REFUSE(file, QR_E_UNSUPPORTED, "version %llu%s; GGUF 2 and 3, little-endian, are supported", (unsigned long long)version,
                      version && !(version & 0xffffff) ? " (a big-endian file)" : "");
    file->version = (uint32_t)version;
    status = take_number(file, 8, "the tensor count", ret_tensors);
    if (!status) status = take_number(file, 8, "the key count", ret_keys);
    if (status) return status;
    if (*ret_keys > QR_GGUF_KEYS_MAX)
        return REFUSE(file, QR_E_LIMIT, "%llu keys; %d are supported", (unsigned long long)*ret_keys, QR_GGUF_KEYS_MAX);
    if (*ret_tensors > QR_GGUF_TENSORS_MAX)
        return REFUSE(file, QR_E_LIMIT, "%llu tensors; %d are supported", (unsigned long long)*ret_tensors, QR_GGUF_TENSORS_MAX);
    return 0;
}

static int file_parse(qr_gguf_t *file)
{
    uint64_t tensors = 0, keys = 0;
    int status = header_take(file, &tensors, &keys);
    for (uint64_t i = 0; i < keys && !status; i++) status = take_entry(file);
    for (uint64_t i = 0; i < tensors && !status; i++) status = take_tensor(file);
    if (!status) status = entries_sort(file);
    if (!status) status = alignment_take(file);
    if (status) return status;
    for (uint32_t i = 0; i < file->tensor_count; i++)
        file->tensors[i].name.data = (const char *)file->head + (uintptr_t)file->tensors[i].name.data;
    status = tensors_place(file);
    return status ? status : tensors_sort(file);
}

static int file_open(qr_gguf_t *file)
{
    struct stat about;
    file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0 && (errno == ENOENT || errno == ENOTDIR))
        return REFUSE(file, QR_E_NOT_FOUND, "%s", "no such file; a GGUF file is needed");
    if (file->descriptor < 0 && (errno == EACCES || errno == EPERM)) return REFUSE(file, QR_E_PERMISSION, "%s", "no permission to read it");
    if (file->descriptor < 0 || fstat(file->descriptor, &about)) return REFUSE(file, QR_E_IO, "%s", strerror(errno));
    if (!S_ISREG(about.st_mode)) return REFUSE(file, QR_E_INVALID, "%s", "not a regular file; a GGUF file is needed");
    file->bytes = (uint64_t)about.st_size;
    return 0;
}

static int open_any(const char *path, const void *bytes, uint64_t count, qr_gguf_t **ret_file, char *message, size_t message_bytes)
{
    qr_gguf_t *file = calloc(1, sizeof *file);
    if (!file) return qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory", path);
    file->descriptor = -1;
    file->message = message;
    file->message_bytes = message_bytes;
    int status = 0;
    if (strlen(path) >= sizeof file->path)
        status = qr_refuse(message, message_bytes, QR_E_INVALID, "the path is longer than %zu bytes", sizeof file->path - 1);
    else
        memcpy(file->path, path, strlen(path) + 1);
    if (!status && bytes) {
        file->memory = bytes;
        file->bytes = count;
    } else if (!status) {
        status = file_open(file);
    }
    if (!status) status = file_parse(file);
    if (status) {
        qr_gguf_close(&file);
        return status;
    }
    file->message = NULL;
    file->message_bytes = 0;
    *ret_file = file;
    return 0;
}

int qr_gguf_open(const char *path, qr_gguf_t **ret_file, char *message, size_t message_bytes)
{
    return open_any(path, NULL, 0, ret_file, message, message_bytes);
}
int qr_gguf_open_memory(const void *bytes, uint64_t count, const char *name, qr_gguf_t **ret_file, char *message, size_t message_bytes)
{
    return open_any(name, bytes ? bytes : "", count, ret_file, message, message_bytes);
}
void qr_gguf_close(qr_gguf_t **file)
{
    qr_gguf_t *f = *file;
    if (!f) return;
    *file = NULL;
    if (f->descriptor >= 0) (void)close(f->descriptor);
    free(f->head);
    free(f->entries);
    free(f->tensors);
    free(f->entry_order);
    free(f->tensor_order);
    free(f);
}

/* ---- looking up -------------------------------------------------------------------------------------------------------- */

const char *qr_gguf_path(const qr_gguf_t *file) { return file->path; }
uint32_t qr_gguf_version(const qr_gguf_t *file) { return file->version; }
uint32_t qr_gguf_alignment(const qr_gguf_t *file) { return file->alignment; }
uint64_t qr_gguf_bytes(const qr_gguf_t *file) { return file->bytes; }
uint32_t qr_gguf_entry_count(const qr_gguf_t *file) { return file->entry_count; }
uint32_t qr_gguf_tensor_count(const qr_gguf_t *file) { return file->tensor_count; }
const qr_gguf_entry_t *qr_gguf_entry(const qr_gguf_t *file, uint32_t index)
{
    qr_assert(index < file->entry_count);
    return &file->entries[index];
}
const qr_gguf_tensor_t *qr_gguf_tensor(const qr_gguf_t *file, uint32_t index)
{
    qr_assert(index < file->tensor_count);
    return &file->tensors[index];
}
const qr_gguf_tensor_t *qr_gguf_tensor_sorted(const qr_gguf_t *file, uint32_t index)
{
    qr_assert(index < file->tensor_count);
    return &file->tensors[file->tensor_order[index]];
}

const qr_gguf_entry_t *qr_gguf_find(const qr_gguf_t *file, const char *key)
{
    qr_gguf_string_t wanted = {key, strlen(key)};
    uint32_t low = 0, high = file->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const qr_gguf_entry_t *entry = &file->entries[file->entry_order[middle]];
        int order = string_compare(wanted, entry->key);
        if (order == 0) return entry;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
const qr_gguf_tensor_t *qr_gguf_tensor_find(const qr_gguf_t *file, const char *name)
{
    qr_gguf_string_t wanted = {name, strlen(name)};
    uint32_t low = 0, high = file->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const qr_gguf_tensor_t *tensor = qr_gguf_tensor_sorted(file, middle);
        int order = string_compare(wanted, tensor->name);
        if (order == 0) return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static bool type_integer(uint32_t type) { return type <= QR_GGUF_I32 || type == QR_GGUF_U64 || type == QR_GGUF_I64; }

uint64_t qr_gguf_element_u64(const qr_gguf_entry_t *entry, uint64_t index)
{
    qr_assert(index < entry->count && (type_integer(entry->element_type) || entry->element_type == QR_GGUF_BOOL));
    uint32_t bytes = types[entry->element_type].bytes;
    uint64_t value = little(entry->data + index * bytes, bytes);
    switch (entry->element_type) {
    case QR_GGUF_I8: return (uint64_t)(int64_t)(int8_t)value;
    case QR_GGUF_I16: return (uint64_t)(int64_t)(int16_t)value;
    case QR_GGUF_I32: return (uint64_t)(int64_t)(int32_t)value;
    default: return value;
    }
}

static int type_refuse(const qr_gguf_t *file, const qr_gguf_entry_t *entry, const char *wanted, char *message, size_t message_bytes)
{
    return qr_refuse(message, message_bytes, QR_E_FORMAT, "%s: key %s is of type %s%s; %s is needed", file->path, qr_shown(entry->key).text,
                     entry->type == QR_GGUF_ARRAY ? "array of " : "", qr_gguf_type_name(entry->element_type), wanted);
}

int qr_gguf_get_u64(const qr_gguf_t *file, const char *key, uint64_t *ret_value, char *message, size_t message_bytes)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, key);
    if (!entry) return -QR_E_NOT_FOUND;
    if (!type_integer(entry->type)) return type_refuse(file, entry, "an integer", message, message_bytes);
    uint64_t value = qr_gguf_element_u64(entry, 0);
    bool is_signed = entry->type == QR_GGUF_I8 || entry->type == QR_GGUF_I16 || entry->type == QR_GGUF_I32 || entry->type == QR_GGUF_I64;
    if (is_signed && value > INT64_MAX)
        return qr_refuse(message, message_bytes, QR_E_FORMAT, "%s: key %s is %lld; it must not be negative", file->path, key,
                         (long long)value);
    *ret_value = value;
    return 0;
}
int qr_gguf_get_u32(const qr_gguf_t *file, const char *key, uint32_t *ret_value, char *message, size_t message_bytes)
{
    uint64_t value;
    int status = qr_gguf_get_u64(file, key, &value, message, message_bytes);
    if (status) return status;
    if (value > UINT32_MAX)
        return qr_refuse(message, message_bytes, QR_E_FORMAT, "%s: key %s is %llu; it must be below 2^32", file->path, key,
                         (unsigned long long)value);
    *ret_value = (uint32_t)value;
    return 0;
}
int qr_gguf_get_f64(const qr_gguf_t *file, const char *key, double *ret_value, char *message, size_t message_bytes)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, key);
    if (!entry) return -QR_E_NOT_FOUND;
    if (entry->type == QR_GGUF_F32) {
        float value;
        memcpy(&value, entry->data, sizeof value);
        *ret_value = (double)value;
        return 0;
    }
    if (entry->type != QR_GGUF_F64) return type_refuse(file, entry, "f32 or f64", message, message_bytes);
    memcpy(ret_value, entry->data, sizeof *ret_value);
    return 0;
}
int qr_gguf_get_bool(const qr_gguf_t *file, const char *key, bool *ret_value, char *message, size_t message_bytes)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, key);
    if (!entry) return -QR_E_NOT_FOUND;
    if (entry->type != QR_GGUF_BOOL) return type_refuse(file, entry, "bool", message, message_bytes);
    *ret_value = entry->data[0] != 0;
    return 0;
}
int qr_gguf_get_string(const qr_gguf_t *file, const char *key, qr_gguf_string_t *ret_value, char *message, size_t message_bytes)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, key);
    if (!entry) return -QR_E_NOT_FOUND;
    if (entry->type != QR_GGUF_STRING) return type_refuse(file, entry, "string", message, message_bytes);
    uint64_t cursor = 0;
    qr_assert(qr_gguf_string_next(entry, &cursor, ret_value));
    return 0;
}
int qr_gguf_get_array(const qr_gguf_t *file, const char *key, uint32_t element_type, const qr_gguf_entry_t **ret_entry, char *message,
                      size_t message_bytes)
{
    const qr_gguf_entry_t *entry = qr_gguf_find(file, key);
    if (!entry) return -QR_E_NOT_FOUND;
    bool any = element_type == QR_GGUF_TYPES_COUNT;
    bool fits = any ? type_integer(entry->element_type) || entry->element_type == QR_GGUF_BOOL : entry->element_type == element_type;
    if (entry->type != QR_GGUF_ARRAY || !fits) {
        char wanted[40];
        (void)qr_refuse(wanted, sizeof wanted, QR_E_FORMAT, "array of %s", any ? "integers" : qr_gguf_type_name(element_type));
        return type_refuse(file, entry, wanted, message, message_bytes);
    }
    *ret_entry = entry;
    return 0;
}

bool qr_gguf_string_next(const qr_gguf_entry_t *entry, uint64_t *cursor, qr_gguf_string_t *ret_string)
{
    qr_assert(entry->element_type == QR_GGUF_STRING && *cursor <= entry->bytes);
    if (*cursor == entry->bytes) return false;
    uint64_t bytes = little(entry->data + *cursor, 8); /* checked at open */
    *ret_string = (qr_gguf_string_t){(const char *)entry->data + *cursor + 8, bytes};
    *cursor += 8 + bytes;
    return true;
}
bool qr_gguf_string_is(qr_gguf_string_t string, const char *text)
{
    return string.bytes == strlen(text) && memcmp(string.data, text, string.bytes) == 0;
}

int qr_gguf_tensor_read(const qr_gguf_t *file, const qr_gguf_tensor_t *tensor, uint64_t offset, void *to, uint64_t bytes, char *message,
                        size_t message_bytes)
{
    qr_assert(offset <= tensor->bytes && bytes <= tensor->bytes - offset);
    int status = bytes_read(file, tensor->offset + offset, to, bytes);
    if (!status) return 0;
    return qr_refuse(message, message_bytes, -status, "%s: tensor %s: %s while reading %llu bytes at %llu", file->path,
                     qr_shown(tensor->name).text, qr_error_sentence(status), (unsigned long long)bytes,
                     (unsigned long long)(tensor->offset + offset));
}
