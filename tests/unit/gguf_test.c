/* link: qr_model */
/* gguf_test.c - the GGUF reader against lies: sizes, offsets, names, types, truncation. Cases MF-01, MF-03, MF-05, MF-07. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/prng.h"
#include "model/gguf.h"
#include "model/tiny.h"

/* ---- files by hand ------------------------------------------------------------------------------------------------------------ */

typedef struct bytes {
    uint8_t data[4096];
    size_t count;
} bytes_t;

static void put(bytes_t *b, const void *data, size_t count)
{
    assert_true(b->count + count <= sizeof b->data);
    memcpy(b->data + b->count, data, count);
    b->count += count;
}
static void put_number(bytes_t *b, uint64_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) put(b, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}
static void put_string(bytes_t *b, const char *text)
{
    put_number(b, strlen(text), 8);
    put(b, text, strlen(text));
}
static bytes_t header(uint64_t tensors, uint64_t keys)
{
    bytes_t b = {.count = 0};
    put(&b, "GGUF", 4);
    put_number(&b, 3, 4);
    put_number(&b, tensors, 8);
    put_number(&b, keys, 8);
    return b;
}
static void put_tensor(bytes_t *b, const char *name, uint32_t dims, const uint64_t *dim, uint32_t format, uint64_t offset)
{
    put_string(b, name);
    put_number(b, dims, 4);
    for (uint32_t i = 0; i < dims; i++) put_number(b, dim[i], 8);
    put_number(b, format, 4);
    put_number(b, offset, 8);
}

/* Opens bytes; they must be refused with the code, in one line that names `word`. */
static void refused(const void *data, size_t count, int code, const char *word)
{
    qr_gguf_t *file = NULL;
    char message[512] = "";
    int status = qr_gguf_open_memory(data, count, "x.gguf", &file, message, sizeof message);
    if (status == 0) qr_gguf_close(&file);
    if (status != -code) print_error("status %s, message: %s\n", qr_error_name(status), message);
    assert_int_equal(status, -code);
    assert_null(file);
    assert_non_null(strstr(message, "x.gguf: "));
    assert_null(strchr(message, '\n'));
    if (!strstr(message, word)) print_error("another word is wanted in: %s\n", message);
    assert_non_null(strstr(message, word));
}
static void refused_bytes(const bytes_t *b, int code, const char *word) { refused(b->data, b->count, code, word); }
static void accepted(const void *data, size_t count)
{
    qr_gguf_t *file = NULL;
    char message[512] = "";
    int status = qr_gguf_open_memory(data, count, "x.gguf", &file, message, sizeof message);
    if (status) print_error("%s\n", message);
    assert_int_equal(status, 0);
    qr_gguf_close(&file);
    assert_null(file);
}

/* ---- the cases -------------------------------------------------------------------------------------------------------------------- */

static void test_MF_01(void **state)
{
    (void)state;
    bytes_t b = header(2, 0); /* b has 2^64 - 16 bytes, which padding wraps to 0 */
    put_tensor(&b, "a", 1, (uint64_t[]){64}, 0, 0);
    put_tensor(&b, "b", 4, (uint64_t[]){4, 1073741823, 1073741825, 1}, 0, 256);
    b.count = 384;
    refused_bytes(&b, QR_E_TRUNCATED, "tensor \"b\"");

    b = header(2, 0); /* each 2^63 bytes: the sum is 2^64 */
    put_tensor(&b, "a", 1, (uint64_t[]){1ull << 61}, 0, 0);
    put_tensor(&b, "b", 1, (uint64_t[]){1ull << 61}, 0, 1ull << 63);
    b.count = 384;
    refused_bytes(&b, QR_E_TRUNCATED, "tensor \"a\"");

    qr_tiny_config_t config; /* a real file whose first dimension becomes 2^42 + 1 */
    qr_tiny_config_init(&config);
    config.head_format = QR_FORMAT_F32;
    qr_gguf_writer_t *writer;
    uint8_t *bytes;
    size_t count;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    assert_int_equal(qr_gguf_writer_encode(writer, &bytes, &count), 0);
    accepted(bytes, count);
    uint8_t *name = memmem(bytes, count, "token_embd.weight", 17);
    assert_non_null(name);
    memcpy(name + 17 + 4, &(uint64_t){(1ull << 42) + 1}, 8);
    refused(bytes, count, QR_E_TRUNCATED, "token_embd.weight");
    free(bytes);
    qr_gguf_writer_destroy(&writer);
}

/* The case's 90 bytes, with another type or value. */
static bytes_t alignment_file(uint32_t type, uint64_t value, uint32_t bytes)
{
    bytes_t b = header(1, 1);
    put_string(&b, "general.alignment");
    put_number(&b, type, 4);
    if (type == QR_GGUF_STRING)
        put_string(&b, "32");
    else
        put_number(&b, value, bytes);
    put_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
    return b;
}

static void test_MF_03(void **state)
{
    static const uint8_t given[90] = {0x47, 0x47, 0x55, 0x46, 3,   0,   0,   0, 1, 0, 0, 0,   0,   0,   0,   0,   1,   0,   0,   0,   0,
                                      0,    0,    0,    17,   0,   0,   0,   0, 0, 0, 0, 'g', 'e', 'n', 'e', 'r', 'a', 'l', '.', 'a', 'l',
                                      'i',  'g',  'n',  'm',  'e', 'n', 't', 4, 0, 0, 0, 0,   0,   0,   0,   1,   0,   0,   0,   0,   0,
                                      0,    0,    't',  1,    0,   0,   0,   1, 0, 0, 0, 0,   0,   0,   0,   0,   0,   0,   0};
    (void)state;
    refused(given, sizeof given, QR_E_FORMAT, "general.alignment is 0");
    const uint64_t wrong[] = {3, 131072, 2147483648u, 4294967295u};
    for (size_t i = 0; i < QR_COUNT(wrong); i++) {
        bytes_t b = alignment_file(QR_GGUF_U32, wrong[i], 4);
        refused_bytes(&b, QR_E_FORMAT, "powers of two");
    }
    bytes_t b = alignment_file(QR_GGUF_U64, 32, 8);
    refused_bytes(&b, QR_E_FORMAT, "general.alignment is of type u64");
    b = alignment_file(QR_GGUF_STRING, 0, 0);
    refused_bytes(&b, QR_E_FORMAT, "general.alignment is of type string");
    const uint64_t right[] = {1, 2, 32, 65536};
    for (size_t i = 0; i < QR_COUNT(right); i++) {
        static uint8_t file[70000];
        b = alignment_file(QR_GGUF_U32, right[i], 4);
        memcpy(file, b.data, b.count);
        accepted(file, qr_round_up(b.count, right[i]) + 4);
        refused(file, qr_round_up(b.count, right[i]) + 3, QR_E_TRUNCATED, "tensor \"t\"");
    }
}

static void test_MF_05(void **state)
{
    (void)state;
    static const uint8_t empty_key[37] = {0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    refused(empty_key, sizeof empty_key, QR_E_FORMAT, "key");

    bytes_t b = header(0, 2); /* (b) */
    for (int i = 0; i < 2; i++) {
        put_string(&b, "general.architecture");
        put_number(&b, QR_GGUF_STRING, 4);
        put_string(&b, i ? "llama" : "bert");
    }
    refused_bytes(&b, QR_E_FORMAT, "\"general.architecture\" stands twice");

    b = header(2, 0); /* (c) */
    put_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 0);
    put_tensor(&b, "same", 1, (uint64_t[]){8}, 0, 32);
    b.count = 256;
    refused_bytes(&b, QR_E_FORMAT, "\"same\" stands twice");

    b = header(0, 1); /* (d) */
    put_number(&b, 3, 8);
    put(&b, "a\0b", 3);
    put_number(&b, QR_GGUF_U8, 4);
    put_number(&b, 1, 1);
    refused_bytes(&b, QR_E_FORMAT, "a\\x00b");

    static const char *const malformed[] = {"a\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x82", "\x80"};
    for (size_t i = 0; i < QR_COUNT(malformed); i++) { /* (e) */
        b = header(0, 1);
        put_string(&b, malformed[i]);
        put_number(&b, QR_GGUF_U8, 4);
        put_number(&b, 1, 1);
        refused_bytes(&b, QR_E_FORMAT, "UTF-8");
    }
    b = header(0, 1);
    put_string(&b, "k\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
    put_number(&b, QR_GGUF_U8, 4);
    put_number(&b, 1, 1);
    accepted(b.data, b.count);

    b = header(0, 1); /* (f) */
    put_string(&b, "flag");
    put_number(&b, QR_GGUF_BOOL, 4);
    put_number(&b, 7, 1);
    refused_bytes(&b, QR_E_FORMAT, "\"flag\": a bool is 0 or 1, not 7");
    /* (g) is architecture's business: arch_test.c */
}

static void test_MF_07(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    qr_gguf_writer_t *writer;
    uint8_t *bytes;
    size_t count;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    assert_int_equal(qr_gguf_writer_encode(writer, &bytes, &count), 0);
    qr_gguf_t *file;
    char message[512];
    assert_int_equal(qr_gguf_open_memory(bytes, count, "x.gguf", &file, message, sizeof message), 0);
    const qr_gguf_tensor_t *last = qr_gguf_tensor(file, qr_gguf_tensor_count(file) - 1), *first = qr_gguf_tensor(file, 0);
    uint64_t last_offset = last->offset, last_bytes = last->bytes, data = first->offset, second_bytes = qr_gguf_tensor(file, 1)->bytes;
    qr_gguf_close(&file);
    assert_int_equal(last_offset + last_bytes, count);
    refused(bytes, count - 1, QR_E_TRUNCATED, "tensor \"output_norm.weight\" needs");
    refused(bytes, last_offset + last_bytes / 2, QR_E_TRUNCATED, "tensor \"output_norm.weight\" needs");
    refused(bytes, data, QR_E_TRUNCATED, "tensor \"token_embd.weight\" needs");
    refused(bytes, data - 1, QR_E_TRUNCATED, "tensor");                 /* inside the padding, or the header itself */
    uint8_t *name = memmem(bytes, count, "blk.0.attn_norm.weight", 22); /* the second tensor */
    assert_non_null(name);
    memcpy(name + 22 + 4 + 8 + 4, &(uint64_t){(count - data - 1) / 32 * 32}, 8);
    refused(bytes, count, QR_E_TRUNCATED, "tensor \"blk.0.attn_norm.weight\" needs");
    (void)second_bytes;
    free(bytes);
    qr_gguf_writer_destroy(&writer);
}

/* A file cut by someone else after it was opened: a read says so, no signal comes. */
static void test_MF_07_cut_after_open(void **state)
{
    (void)state;
    char path[] = "/tmp/quire-gguf-XXXXXX", message[512];
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    assert_int_equal(qr_tiny_write(&config, path), 0);
    qr_gguf_t *file;
    assert_int_equal(qr_gguf_open(path, &file, message, sizeof message), 0);
    const qr_gguf_tensor_t *last = qr_gguf_tensor(file, qr_gguf_tensor_count(file) - 1);
    uint8_t value[4];
    assert_int_equal(qr_gguf_tensor_read(file, last, last->bytes - 4, value, 4, message, sizeof message), 0);
    assert_int_equal(ftruncate(descriptor, (off_t)(last->offset + 8)), 0);
    assert_int_equal(qr_gguf_tensor_read(file, last, last->bytes - 4, value, 4, message, sizeof message), -QR_E_TRUNCATED);
    assert_non_null(strstr(message, "output_norm.weight"));
    assert_non_null(strstr(message, path));
    qr_gguf_close(&file);
    close(descriptor);
    unlink(path);
}

/* ---- more lies ---------------------------------------------------------------------------------------------------------------------- */

static void test_header_lies(void **state)
{
    (void)state;
    refused("", 0, QR_E_TRUNCATED, "magic");
    refused("GGUF", 4, QR_E_TRUNCATED, "version");
    refused("GGML\3\0\0\0", 8, QR_E_FORMAT, "not a GGUF file");
    refused("GGUF\1\0\0\0", 8, QR_E_UNSUPPORTED, "version 1; GGUF 2 and 3");
    refused("GGUF\0\0\0\3", 8, QR_E_UNSUPPORTED, "big-endian");
    bytes_t b = header(UINT64_MAX, 0);
    refused_bytes(&b, QR_E_LIMIT, "tensors");
    b = header(0, UINT64_MAX);
    refused_bytes(&b, QR_E_LIMIT, "keys");
    b = header(0, 65536);
    refused_bytes(&b, QR_E_TRUNCATED, "key");
    b = header(0, 0);
    b.data[4] = 2;
    accepted(b.data, b.count);

    const uint64_t counts[] = {UINT64_MAX, 1ull << 61, 1ull << 32, 9};
    for (size_t i = 0; i < QR_COUNT(counts); i++)
        for (uint32_t type = 0; type < QR_GGUF_TYPES_COUNT; type++) { /* arrays that claim more than the file */
            b = header(0, 1);
            put_string(&b, "list");
            put_number(&b, QR_GGUF_ARRAY, 4);
            put_number(&b, type, 4);
            put_number(&b, counts[i], 8);
            put_number(&b, 0, 8);
            refused_bytes(&b, type == QR_GGUF_ARRAY ? QR_E_UNSUPPORTED : QR_E_TRUNCATED, type == QR_GGUF_ARRAY ? "list" : "\"list\"");
        }
    b = header(0, 1); /* a string longer than the file */
    put_string(&b, "text");
    put_number(&b, QR_GGUF_STRING, 4);
    put_number(&b, UINT64_MAX - 3, 8);
    refused_bytes(&b, QR_E_TRUNCATED, "text");
    b = header(0, 1);
    put_string(&b, "odd");
    put_number(&b, 13, 4);
    refused_bytes(&b, QR_E_FORMAT, "type 13");
}

static void test_tensor_lies(void **state)
{
    (void)state;
    const struct {
        uint32_t dims;
        uint64_t dim[4];
        uint32_t format;
        uint64_t offset;
        int code;
        const char *word;
    } lies[] = {
        {0, {0}, 0, 0, QR_E_FORMAT, "0 dimensions"},
        {5, {1, 1, 1, 1}, 0, 0, QR_E_FORMAT, "5 dimensions"},
        {1, {0}, 0, 0, QR_E_FORMAT, "dimension 0 is 0"},
        {2, {8, UINT64_MAX}, 0, 0, QR_E_FORMAT, "dimension 1 is"},
        {1, {8}, 99, 0, QR_E_UNSUPPORTED, "format 99"},
        {1, {8}, 4, 0, QR_E_UNSUPPORTED, "format 4"},
        {1, {33}, 8, 0, QR_E_FORMAT, "multiple"},
        {1, {8}, 0, 4, QR_E_FORMAT, "offset 4"},
        {1, {8}, 0, 1ull << 63, QR_E_TRUNCATED, "needs 32"},
        {1, {8}, 0, UINT64_MAX - 31, QR_E_TRUNCATED, "needs 32"},
    };
    for (size_t i = 0; i < QR_COUNT(lies); i++) {
        bytes_t b = header(1, 0);
        put_tensor(&b, "lie", qr_min_u32(lies[i].dims, 4), lies[i].dim, lies[i].format, lies[i].offset);
        if (lies[i].dims > 4) memcpy(b.data + 24 + 8 + 3, &lies[i].dims, 4);
        b.count = 256;
        refused_bytes(&b, lies[i].code, lies[i].word);
    }
    bytes_t b = header(2, 0); /* one tensor on another */
    put_tensor(&b, "under", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&b, "over", 1, (uint64_t[]){8}, 0, 32);
    b.count = 512;
    refused_bytes(&b, QR_E_FORMAT, "\"over\" overlaps tensor \"under\"");
    b = header(1, 0); /* a hostile name stays on one line */
    put_tensor(&b, "a\nb\x1b[2J", 1, (uint64_t[]){0}, 0, 0);
    refused_bytes(&b, QR_E_FORMAT, "a\\x0ab\\x1b");
}

static void test_lookups(void **state)
{
    (void)state;
    qr_gguf_writer_t *writer = qr_gguf_writer_new(64);
    const uint32_t numbers[] = {1, 2, UINT32_MAX};
    const char *const words[] = {"", "one", "two two"};
    int8_t negative = -3;
    qr_gguf_writer_u32(writer, "n", 7);
    qr_gguf_writer_raw(writer, "negative", QR_GGUF_I8, &negative, 1);
    qr_gguf_writer_raw(writer, "wide", QR_GGUF_U64, &(uint64_t){1ull << 40}, 8);
    qr_gguf_writer_raw(writer, "double", QR_GGUF_F64, &(double){0.1}, 8);
    qr_gguf_writer_f32(writer, "f", 0.5f);
    qr_gguf_writer_bool(writer, "b", true);
    qr_gguf_writer_string(writer, "s", "hello");
    qr_gguf_writer_u32s(writer, "list", QR_GGUF_U32, numbers, 3);
    qr_gguf_writer_u32s(writer, "signed", QR_GGUF_I32, numbers, 3);
    qr_gguf_writer_strings(writer, "words", words, 3);
    uint8_t *bytes;
    size_t count;
    assert_int_equal(qr_gguf_writer_encode(writer, &bytes, &count), 0);
    qr_gguf_t *file;
    char message[512];
    assert_int_equal(qr_gguf_open_memory(bytes, count, "x.gguf", &file, message, sizeof message), 0);
    uint32_t u = 0;
    uint64_t w = 0;
    double f = 0;
    bool flag = false;
    qr_gguf_string_t s;
    const qr_gguf_entry_t *entry;
    assert_int_equal(qr_gguf_alignment(file), 64);
    assert_int_equal(qr_gguf_get_u32(file, "n", &u, message, sizeof message), 0);
    assert_int_equal(u, 7);
    assert_int_equal(qr_gguf_get_u32(file, "absent", &u, message, sizeof message), -QR_E_NOT_FOUND);
    assert_int_equal(qr_gguf_get_u32(file, "negative", &u, message, sizeof message), -QR_E_FORMAT);
    assert_int_equal(qr_gguf_get_u32(file, "wide", &u, message, sizeof message), -QR_E_FORMAT);
    assert_int_equal(qr_gguf_get_u32(file, "s", &u, message, sizeof message), -QR_E_FORMAT);
    assert_non_null(strstr(message, "\"s\" is of type string; an integer is needed"));
    assert_int_equal(u, 7);
    assert_int_equal(qr_gguf_get_u64(file, "wide", &w, message, sizeof message), 0);
    assert_true(w == 1ull << 40);
    assert_int_equal(qr_gguf_get_f64(file, "f", &f, message, sizeof message), 0);
    assert_true(f == 0.5);
    assert_int_equal(qr_gguf_get_f64(file, "double", &f, message, sizeof message), 0);
    assert_true(f == 0.1);
    assert_int_equal(qr_gguf_get_f64(file, "n", &f, message, sizeof message), -QR_E_FORMAT);
    assert_int_equal(qr_gguf_get_bool(file, "b", &flag, message, sizeof message), 0);
    assert_true(flag);
    assert_int_equal(qr_gguf_get_string(file, "s", &s, message, sizeof message), 0);
    assert_true(qr_gguf_string_is(s, "hello") && !qr_gguf_string_is(s, "hell"));
    assert_int_equal(qr_gguf_get_array(file, "list", QR_GGUF_TYPES_COUNT, &entry, message, sizeof message), 0);
    assert_true(entry->count == 3 && qr_gguf_element_u64(entry, 2) == UINT32_MAX);
    assert_int_equal(qr_gguf_get_array(file, "signed", QR_GGUF_I32, &entry, message, sizeof message), 0);
    assert_true(qr_gguf_element_u64(entry, 2) == UINT64_MAX);
    assert_int_equal(qr_gguf_get_array(file, "list", QR_GGUF_STRING, &entry, message, sizeof message), -QR_E_FORMAT);
    assert_int_equal(qr_gguf_get_array(file, "words", QR_GGUF_STRING, &entry, message, sizeof message), 0);
    uint64_t cursor = 0;
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(qr_gguf_string_next(entry, &cursor, &s));
        assert_true(qr_gguf_string_is(s, words[i]));
    }
    assert_false(qr_gguf_string_next(entry, &cursor, &s));
    qr_gguf_close(&file);
    free(bytes);
    qr_gguf_writer_destroy(&writer);
}

/* Every prefix of a header, and seeded damage anywhere: an error or a file, never a crash (the sanitizer builds watch). */
static void test_prefixes_and_damage(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 1;
    config.vocabulary = 32;
    qr_gguf_writer_t *writer;
    uint8_t *bytes;
    size_t count;
    assert_int_equal(qr_tiny_build(&config, &writer), 0);
    assert_int_equal(qr_gguf_writer_encode(writer, &bytes, &count), 0);
    qr_gguf_t *file = NULL;
    for (size_t cut = 0; cut < count; cut += cut < 4096 ? 1 : 997) {
        assert_true(qr_gguf_open_memory(bytes, cut, "x.gguf", &file, NULL, 0) < 0);
        assert_null(file);
    }
    uint64_t seed = 20240601;
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    for (uint32_t run = 0; run < 3000; run++) {
        uint8_t saved[8];
        size_t at = (size_t)qr_prng_below(&prng, 3000), wide = 1 + (size_t)qr_prng_below(&prng, 8);
        memcpy(saved, bytes + at, wide);
        for (size_t i = 0; i < wide; i++) bytes[at + i] = (uint8_t)(qr_prng_one_in(&prng, 2) ? 0xff : qr_prng_next(&prng));
        if (qr_gguf_open_memory(bytes, count, "x.gguf", &file, NULL, 0) == 0) qr_gguf_close(&file);
        memcpy(bytes + at, saved, wide);
    }
    accepted(bytes, count);
    free(bytes);
    qr_gguf_writer_destroy(&writer);
}

static void test_files(void **state)
{
    (void)state;
    qr_gguf_t *file = NULL;
    char message[512];
    assert_int_equal(qr_gguf_open("/nonexistent/model.gguf", &file, message, sizeof message), -QR_E_NOT_FOUND);
    assert_non_null(strstr(message, "/nonexistent/model.gguf: no such file"));
    assert_int_equal(qr_gguf_open("/tmp", &file, message, sizeof message), -QR_E_INVALID);
    assert_int_equal(qr_gguf_open("/dev/null", &file, message, sizeof message), -QR_E_INVALID);
    char long_path[700];
    memset(long_path, 'a', sizeof long_path);
    long_path[sizeof long_path - 1] = 0;
    assert_int_equal(qr_gguf_open(long_path, &file, message, sizeof message), -QR_E_INVALID);
    assert_null(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_MF_01),
        cmocka_unit_test(test_MF_03),
        cmocka_unit_test(test_MF_05),
        cmocka_unit_test(test_MF_07),
        cmocka_unit_test(test_MF_07_cut_after_open),
        cmocka_unit_test(test_header_lies),
        cmocka_unit_test(test_tensor_lies),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_prefixes_and_damage),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
