/* gguf.h - reads GGUF v2 and v3 files: every length, offset and count is checked before anything is sized or read by it.
 *
 * G1. Bytes come through pread into memory of ours: a file that is cut later gives an error value, never a signal.
 * G2. No allocation is larger than the file (the tables are bounded by what the bytes read so far can hold).
 * G3. After open every tensor lies inside the file, aligned, and overlaps no other; names and keys are unique UTF-8 without NUL.
 * G4. Bytes of the file are never asserted on; an error is one line: file, field, what is supported. */
#ifndef QR_GGUF_H
#define QR_GGUF_H

#include "base/base.h"

enum { /* limits; beyond one of them the file is refused by name (-QR_E_LIMIT) */
       QR_GGUF_KEYS_MAX = 65536,
       QR_GGUF_TENSORS_MAX = 65536,
       QR_GGUF_KEY_BYTES_MAX = 65535,
       QR_GGUF_NAME_BYTES_MAX = 255,
       QR_GGUF_HEADER_BYTES_MAX = 256 << 20, /* metadata and tensor table together */
       QR_GGUF_ALIGNMENT_MAX = 65536,        /* a power of two from 1 on; default 32 */
       QR_GGUF_DIMS_MAX = 4
};

typedef enum qr_gguf_type { /* numbers of the format */
                            QR_GGUF_U8 = 0,
                            QR_GGUF_I8,
                            QR_GGUF_U16,
                            QR_GGUF_I16,
                            QR_GGUF_U32,
                            QR_GGUF_I32,
                            QR_GGUF_F32,
                            QR_GGUF_BOOL,
                            QR_GGUF_STRING,
                            QR_GGUF_ARRAY,
                            QR_GGUF_U64,
                            QR_GGUF_I64,
                            QR_GGUF_F64,
                            QR_GGUF_TYPES_COUNT
} qr_gguf_type_t;

typedef struct qr_gguf qr_gguf_t;

/* Bytes inside the file's header, alive until close; not NUL-terminated. */
typedef struct qr_gguf_string {
    const char *data;
    uint64_t bytes;
} qr_gguf_string_t;

typedef struct qr_gguf_entry {
    qr_gguf_string_t key;
    uint32_t type;         /* QR_GGUF_* */
    uint32_t element_type; /* of an array (arrays of arrays are refused), else type */
    uint64_t count;        /* elements of an array, else 1 */
    const uint8_t *data;   /* the value as it stands in the file (arrays: behind their count), unaligned */
    uint64_t bytes;
} qr_gguf_entry_t;

typedef struct qr_gguf_tensor {
    qr_gguf_string_t name;
    uint32_t format;                 /* number of the file; qr_gguf_format_name */
    uint32_t dim_count;              /* 1..4 */
    uint64_t dims[QR_GGUF_DIMS_MAX]; /* fastest first; 1 beyond dim_count */
    uint64_t offset, bytes;          /* from the start of the file */
} qr_gguf_tensor_t;

/* Opens and checks a file. 0, or -QR_E_NOT_FOUND, _PERMISSION, _IO, _FORMAT, _TRUNCATED, _LIMIT, _UNSUPPORTED, _MEMORY with one line in
 * message. */
int qr_gguf_open(const char *path, qr_gguf_t **ret_file, char *message, size_t message_bytes);
/* The same over bytes that the caller keeps until close (tests, fuzzing). */
int qr_gguf_open_memory(const void *bytes, uint64_t count, const char *name, qr_gguf_t **ret_file, char *message, size_t message_bytes);
void qr_gguf_close(qr_gguf_t **file);

const char *qr_gguf_path(const qr_gguf_t *file);
uint32_t qr_gguf_version(const qr_gguf_t *file);
uint32_t qr_gguf_alignment(const qr_gguf_t *file);
uint64_t qr_gguf_bytes(const qr_gguf_t *file);

/* Entries and tensors in file order. */
uint32_t qr_gguf_entry_count(const qr_gguf_t *file);
const qr_gguf_entry_t *qr_gguf_entry(const qr_gguf_t *file, uint32_t index);
uint32_t qr_gguf_tensor_count(const qr_gguf_t *file);
const qr_gguf_tensor_t *qr_gguf_tensor(const qr_gguf_t *file, uint32_t index);
/* Tensors by name: the index-th in byte order of names. */
const qr_gguf_tensor_t *qr_gguf_tensor_sorted(const qr_gguf_t *file, uint32_t index);
/* NULL when absent. */
const qr_gguf_entry_t *qr_gguf_find(const qr_gguf_t *file, const char *key);
const qr_gguf_tensor_t *qr_gguf_tensor_find(const qr_gguf_t *file, const char *name);

/* Values. 0; -QR_E_NOT_FOUND when the key is absent (no message: the caller may have a default); -QR_E_FORMAT for another type
 * or a number outside the type asked for, with one line in message. Integers of every width are taken where they fit. */
int qr_gguf_get_u64(const qr_gguf_t *file, const char *key, uint64_t *ret_value, char *message, size_t message_bytes);
int qr_gguf_get_u32(const qr_gguf_t *file, const char *key, uint32_t *ret_value, char *message, size_t message_bytes);
int qr_gguf_get_f64(const qr_gguf_t *file, const char *key, double *ret_value, char *message, size_t message_bytes); /* f32, f64 */
int qr_gguf_get_bool(const qr_gguf_t *file, const char *key, bool *ret_value, char *message, size_t message_bytes);
int qr_gguf_get_string(const qr_gguf_t *file, const char *key, qr_gguf_string_t *ret_value, char *message, size_t message_bytes);
/* The array with elements of that type; QR_GGUF_TYPES_COUNT accepts any integer or bool element. */
int qr_gguf_get_array(const qr_gguf_t *file, const char *key, uint32_t element_type, const qr_gguf_entry_t **ret_entry, char *message,
                      size_t message_bytes);
/* Element of an array (or index 0 of a scalar) of integers or bools, below count. Negative numbers come sign-extended. */
uint64_t qr_gguf_element_u64(const qr_gguf_entry_t *entry, uint64_t index);
/* Walks an array of strings: *cursor starts at 0; false at the end. */
bool qr_gguf_string_next(const qr_gguf_entry_t *entry, uint64_t *cursor, qr_gguf_string_t *ret_string);
bool qr_gguf_string_is(qr_gguf_string_t string, const char *text);

/* Reads bytes [offset, offset + bytes) of a tensor (inside it: asserted). 0, -QR_E_IO, or -QR_E_TRUNCATED when the file was cut since. */
int qr_gguf_tensor_read(const qr_gguf_t *file, const qr_gguf_tensor_t *tensor, uint64_t offset, void *to, uint64_t bytes, char *message,
                        size_t message_bytes);
/* "Q4_1"; NULL for a number that is not known. */
const char *qr_gguf_format_name(uint32_t format);
const char *qr_gguf_type_name(uint32_t type);

#endif
