/* pretokenize.c - the pre-tokenizer rules, compiled by PCRE2 with JIT, and the table that makes their character classes those of
 * the reference.
 *
 * The class of a code point depends on the Unicode version of whoever compiled the tables: PCRE2 10.42 has version 14, the
 * reference (Hugging Face tokenizers 0.23) has 16, with 17 for single digits. Where they differ the text is searched in a copy
 * in which such a code point is replaced by one of the right class and the same length, so offsets stay as they are and every
 * rule is served by the same table.
 *
 * Rules are anchored and total: each alternative list covers every character, so a match begins where the last one ended. JIT
 * code keeps its backtracking in a block of its own, never on the thread's stack; should a limit be hit, one character is cut. */
#include "model/pretokenize.h"

#include "base/error.h"
#include "base/mutant.h"
#include "model/refuse.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

enum { OTHER, LETTER, NUMBER };
enum { MATCH_LIMIT = 1 << 30, JIT_STACK_START_BYTES = 32768, JIT_STACK_MOST_BYTES = 1 << 20 };

/* Rules. The contractions and classes are those the model families publish in their tokenizer.json.
 * smollm splits single digits off first and then applies the GPT-2 rule to what lies between: as one expression, a digit is its
 * own piece and white space before a digit ends like white space before the end. */
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d"
static const struct rule {
    const char *name, *pattern;
    bool whole_pieces;
    bool single_digits; /* numbers of the newer Unicode version count too */
} rules[] = {
    {"smollm", "\\p{N}|" GPT2_WORDS "| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+", false, true},
    {"gpt-2", GPT2_WORDS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", false, false},
    {"default", GPT2_WORDS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", false, false},
    {"llama-bpe",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     true, false},
    {"none", NULL, false, false},
};
#define SUPPORTED "smollm, gpt-2, default, llama-bpe"

/* Code points whose class differs between Unicode 14 (with PCRE2's idea of \s) and the reference; ascending. */
static const struct range {
    uint32_t first, last;
    int class;
} ranges[] = {
    {0x180E, 0x180E, OTHER},    {0x1C89, 0x1C8A, LETTER},   {0xA7CB, 0xA7CD, LETTER},   {0xA7DA, 0xA7DC, LETTER},
    {0x105C0, 0x105F3, LETTER}, {0x10D40, 0x10D49, NUMBER}, {0x10D4A, 0x10D65, LETTER}, {0x10D6F, 0x10D85, LETTER},
    {0x10EC2, 0x10EC4, LETTER}, {0x1123F, 0x11240, LETTER}, {0x11380, 0x11389, LETTER}, {0x1138B, 0x1138B, LETTER},
    {0x1138E, 0x1138E, LETTER}, {0x11390, 0x113B5, LETTER}, {0x113B7, 0x113B7, LETTER}, {0x113D1, 0x113D1, LETTER},
    {0x113D3, 0x113D3, LETTER}, {0x116D0, 0x116E3, NUMBER}, {0x11BC0, 0x11BE0, LETTER}, {0x11BF0, 0x11BF9, NUMBER},
    {0x11F02, 0x11F02, LETTER}, {0x11F04, 0x11F10, LETTER}, {0x11F12, 0x11F33, LETTER}, {0x11F50, 0x11F59, NUMBER},
    {0x1342F, 0x1342F, LETTER}, {0x13441, 0x13446, LETTER}, {0x13460, 0x143FA, LETTER}, {0x16100, 0x1611D, LETTER},
    {0x16130, 0x16139, NUMBER}, {0x16D40, 0x16D6C, LETTER}, {0x16D70, 0x16D79, NUMBER}, {0x18CFF, 0x18CFF, LETTER},
    {0x1B132, 0x1B132, LETTER}, {0x1B155, 0x1B155, LETTER}, {0x1CCF0, 0x1CCF9, NUMBER}, {0x1D2C0, 0x1D2D3, NUMBER},
    {0x1DF25, 0x1DF2A, LETTER}, {0x1E030, 0x1E06D, LETTER}, {0x1E4D0, 0x1E4EB, LETTER}, {0x1E4F0, 0x1E4F9, NUMBER},
    {0x1E5D0, 0x1E5ED, LETTER}, {0x1E5F0, 0x1E5F0, LETTER}, {0x1E5F1, 0x1E5FA, NUMBER}, {0x2B739, 0x2B739, LETTER},
    {0x2EBF0, 0x2EE5D, LETTER}, {0x31350, 0x323AF, LETTER},
};
/* Numbers of Unicode 17, for rules that split single digits. */
static const struct range digit_ranges[] = {{0x11DE0, 0x11DE9, NUMBER}, {0x16FF4, 0x16FF6, NUMBER}};
/* A code point of each class, three and four bytes long. */
static const uint32_t stand_ins[3][2] = {{0x2500, 0x1F600}, {0x0904, 0x10000}, {0x0966, 0x1D7CE}};

struct qr_pretokenizer {
    const struct rule *rule;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool jit;
    const uint8_t *text; /* the text, or its copy with stand-ins */
    size_t bytes;
    uint8_t *copy;
    size_t copy_bytes;
    uint8_t blocks[0x1100 / 8]; /* bit c >> 8: a code point of that block may need a stand-in */
};

uint32_t qr_utf8_read(const uint8_t *t, uint32_t *ret_bytes)
{
    if (t[0] < 0x80) return *ret_bytes = 1, t[0];
    if (t[0] < 0xE0) return *ret_bytes = 2, (t[0] & 31u) << 6 | (t[1] & 63u);
    if (t[0] < 0xF0) return *ret_bytes = 3, (t[0] & 15u) << 12 | (t[1] & 63u) << 6 | (t[2] & 63u);
    return *ret_bytes = 4, (t[0] & 7u) << 18 | (t[1] & 63u) << 12 | (t[2] & 63u) << 6 | (t[3] & 63u);
}

uint32_t qr_utf8_write(uint32_t code, uint8_t *to)
{
    if (code < 0x80) return to[0] = (uint8_t)code, 1;
    if (code < 0x800) {
        to[0] = (uint8_t)(0xC0 | code >> 6);
        to[1] = (uint8_t)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (uint8_t)(0xE0 | code >> 12);
        to[1] = (uint8_t)(0x80 | (code >> 6 & 63));
        to[2] = (uint8_t)(0x80 | (code & 63));
        return 3;
    }
    to[0] = (uint8_t)(0xF0 | code >> 18);
    to[1] = (uint8_t)(0x80 | (code >> 12 & 63));
    to[2] = (uint8_t)(0x80 | (code >> 6 & 63));
    to[3] = (uint8_t)(0x80 | (code & 63));
    return 4;
}

static void mark_blocks(qr_pretokenizer_t *p, const struct range *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (uint32_t block = from[i].first >> 8; block <= from[i].last >> 8; block++)
            p->blocks[block >> 3] |= (uint8_t)(1u << (block & 7));
}

static int compile(qr_pretokenizer_t *p)
{
    int error;
    PCRE2_SIZE offset;
    p->code =
        pcre2_compile((PCRE2_SPTR)p->rule->pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
    if (!p->code) return -QR_E_MEMORY; /* the patterns are ours and correct */
    p->data = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->data || !p->context) return -QR_E_MEMORY;
    pcre2_set_match_limit(p->context, MATCH_LIMIT);
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    if (p->jit) {
        p->stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MOST_BYTES, NULL);
        if (!p->stack) return -QR_E_MEMORY;
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
    }
    mark_blocks(p, ranges, QR_COUNT(ranges));
    if (p->rule->single_digits) mark_blocks(p, digit_ranges, QR_COUNT(digit_ranges));
    return 0;
}

int qr_pretokenizer_new(const char *name, qr_pretokenizer_t **ret_pretokenizer, char *message, size_t message_bytes)
{
    const struct rule *rule = NULL;
    for (size_t i = 0; i < QR_COUNT(rules); i++)
        if (!strcmp(rules[i].name, name)) rule = &rules[i];
    if (!rule)
        return qr_refuse(message, message_bytes, QR_E_UNSUPPORTED, "tokenizer.ggml.pre: %s is not supported; supported: " SUPPORTED,
                         qr_shown((qr_gguf_string_t){name, strlen(name)}).text);
    qr_pretokenizer_t *p = calloc(1, sizeof *p);
    int error = p ? 0 : -QR_E_MEMORY;
    if (p) {
        p->rule = rule;
        if (rule->pattern) error = compile(p);
    }
    if (error) {
        snprintf(message, message_bytes, "pre-tokenizer %s: not enough memory", name);
        qr_pretokenizer_destroy(&p);
        return error;
    }
    *ret_pretokenizer = p;
    return 0;
}

void qr_pretokenizer_destroy(qr_pretokenizer_t **pretokenizer)
{
    qr_pretokenizer_t *p = *pretokenizer;
    if (!p) return;
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->stack);
    pcre2_code_free(p->code);
    free(p->copy);
    free(p);
    *pretokenizer = NULL;
}

bool qr_pretokenizer_whole_pieces(const qr_pretokenizer_t *pretokenizer) { return pretokenizer->rule->whole_pieces; }

static int class_in(const struct range *table, size_t count, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > table[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= table[low].first ? table[low].class : -1;
}

/* Code point to search instead of this one, or 0. */
static uint32_t stand_in(const qr_pretokenizer_t *p, uint32_t code, uint32_t bytes)
{
    if (!(p->blocks[code >> 11] & 1u << (code >> 8 & 7))) return 0;
    int class = class_in(ranges, QR_COUNT(ranges), code);
    if (class < 0 && p->rule->single_digits) class = class_in(digit_ranges, QR_COUNT(digit_ranges), code);
    return class < 0 ? 0 : stand_ins[class][bytes - 3];
}

static int make_copy(qr_pretokenizer_t *p, const char *text, size_t bytes)
{
    if (p->copy_bytes < bytes) {
        uint8_t *grown = realloc(p->copy, bytes);
        if (!grown) return -QR_E_MEMORY;
        p->copy = grown;
        p->copy_bytes = bytes;
    }
    memcpy(p->copy, text, bytes);
    p->text = p->copy;
    return 0;
}

int qr_pretokenizer_start(qr_pretokenizer_t *p, const char *text, size_t bytes)
{
    p->text = (const uint8_t *)text;
    p->bytes = bytes;
    if (!p->rule->pattern) return 0;
    const uint8_t *t = (const uint8_t *)text;
    for (size_t i = 0; i < bytes;) { /* all ranges are three or four bytes long */
        if (t[i] < 0xE0) {
            i++;
            continue;
        }
        uint32_t length, code = qr_utf8_read(t + i, &length), other = stand_in(p, code, length);
        if (other && !QR_MUTANT(455)) {
            if (p->text != p->copy && make_copy(p, text, bytes)) return -QR_E_MEMORY;
            qr_utf8_write(other, p->copy + i);
        }
        i += length;
    }
    return 0;
}

size_t qr_pretokenizer_next(qr_pretokenizer_t *p, size_t at)
{
    qr_assert(at < p->bytes);
    if (!p->rule->pattern) return p->bytes;
    int rc = p->jit ? pcre2_jit_match(p->code, p->text, p->bytes, at, PCRE2_NO_UTF_CHECK, p->data, p->context)
                    : pcre2_match(p->code, p->text, p->bytes, at, PCRE2_NO_UTF_CHECK, p->data, p->context);
    if (rc > 0) {
        size_t end = pcre2_get_ovector_pointer(p->data)[1];
        if (end > at) return end;
    }
    uint32_t length;
    (void)qr_utf8_read(p->text + at, &length);
    return qr_min_u64(at + length, p->bytes);
}
