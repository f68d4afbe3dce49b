/* vocabulary.c - token texts to bytes.
 *
 * V1. A token of type normal is written in the byte-level alphabet; every other type is literal text.
 * V2. Control and unknown tokens print nothing (QR_TOKEN_SPECIAL); tokens that end an answer carry QR_TOKEN_END and print nothing either,
 *     whatever type the file gives them (or none): their text is no part of the answer.
 * V3. The matrix may have more rows than there are tokens, never fewer; rows beyond are never drawn. */
#include "model/vocabulary.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/mutant.h"
#include "model/refuse.h"

/* Token types of the format that matter here. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_UNUSED = 5 };

#define REFUSE(model, code, format, ...) qr_refuse(message, message_bytes, code, "%s: " format, (model)->path, __VA_ARGS__)

/* ---- the byte-level alphabet ------------------------------------------------------------------------------------------- */

static bool byte_prints(uint32_t byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173); }

/* The 68 bytes that do not print, in order: 0 to 32, 127 to 160, 173. */
uint32_t qr_character_of_byte(uint8_t byte)
{
    if (byte_prints(byte)) return byte;
    return byte < 33 ? 256u + byte : byte < 161 ? 256u + 33 + byte - 127 : 256u + 67;
}
int qr_byte_of_character(uint32_t character)
{
    if (character < 256) return byte_prints(character) ? (int)character : -1;
    int place = (int)qr_min_u32(character - 256, 68);
    return place < 33 ? place : place < 67 ? place - 33 + 127 : place == 67 ? 173 : -1;
}

/* One character of UTF-8; anything malformed is one byte with character UINT32_MAX. Only two-byte forms matter to the alphabet. */
static uint32_t character_next(const uint8_t *s, uint64_t count, uint64_t *at)
{
    uint8_t lead = s[(*at)++];
    if (lead < 0x80) return lead;
    if (lead < 0xc2 || lead > 0xdf || *at == count || (s[*at] & 0xc0) != 0x80) return UINT32_MAX;
    return (uint32_t)(lead & 31) << 6 | (s[(*at)++] & 63);
}

int64_t qr_alphabet_undo(const char *text, uint64_t text_bytes, uint8_t *ret_bytes)
{
    int64_t count = 0;
    for (uint64_t at = 0; at < text_bytes;) {
        int byte = qr_byte_of_character(character_next((const uint8_t *)text, text_bytes, &at));
        if (byte < 0) return -1;
        ret_bytes[count++] = (uint8_t)byte;
    }
    return count;
}

/* ---- end tokens --------------------------------------------------------------------------------------------------------- */

static void end_add(qr_model_t *model, uint8_t *flags, uint32_t token)
{
    if (flags[token] & QR_TOKEN_END || model->end_token_count == QR_END_TOKENS_MAX) return;
    flags[token] |= QR_MUTANT(860) ? QR_TOKEN_END : QR_TOKEN_END | QR_TOKEN_SPECIAL;
    model->end_tokens[model->end_token_count++] = token;
}

/* Control tokens by which chat models end a turn although the file names only one end token. */
static bool text_ends(qr_gguf_string_t text)
{
    static const char *const ends[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>"};
    for (size_t i = 0; i < QR_COUNT(ends); i++)
        if (qr_gguf_string_is(text, ends[i])) return true;
    return false;
}

/* Reads an optional token id; *ret_token stays QR_TOKEN_NONE when absent. */
static int token_key_read(qr_model_t *model, const char *key, uint32_t *ret_token, char *message, size_t message_bytes)
{
    uint64_t value;
    int status = qr_gguf_get_u64(model->file, key, &value, message, message_bytes);
    if (status == -QR_E_NOT_FOUND) return 0;
    if (status) return status;
    if (value >= model->vocabulary.count)
        return REFUSE(model, QR_E_FORMAT, "%s is %llu, but tokenizer.ggml.tokens has %u elements", key, (unsigned long long)value,
                      model->vocabulary.count);
    *ret_token = (uint32_t)value;
    return 0;
}

static int specials_read(qr_model_t *model, uint8_t *flags, char *message, size_t message_bytes)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    model->bos_token = QR_TOKEN_NONE;
    int status = token_key_read(model, "tokenizer.ggml.bos_token_id", &model->bos_token, message, message_bytes);
    for (size_t i = 0; i < QR_COUNT(keys) && !status; i++) {
        uint32_t token = QR_TOKEN_NONE;
        status = token_key_read(model, keys[i], &token, message, message_bytes);
        if (!status && token != QR_TOKEN_NONE) end_add(model, flags, token);
    }
    if (status) return status;
    status = qr_gguf_get_bool(model->file, "tokenizer.ggml.add_bos_token", &model->add_bos, message, message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (model->add_bos && model->bos_token == QR_TOKEN_NONE)
        return REFUSE(model, QR_E_FORMAT, "%s", "tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is missing");
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------ */

static int arrays_find(qr_model_t *model, const qr_gguf_entry_t **ret_tokens, const qr_gguf_entry_t **ret_types, char *message,
                       size_t message_bytes)
{
    qr_gguf_string_t kind;
    int status = qr_gguf_get_string(model->file, "tokenizer.ggml.model", &kind, message, message_bytes);
    if (status == -QR_E_NOT_FOUND) return REFUSE(model, QR_E_FORMAT, "%s", "the key tokenizer.ggml.model is missing; gpt2 is supported");
    if (status) return status;
    if (!qr_gguf_string_is(kind, "gpt2"))
        return REFUSE(model, QR_E_UNSUPPORTED, "tokenizer.ggml.model is %s; gpt2 (byte-level BPE) is supported", qr_shown(kind).text);
    status = qr_gguf_get_array(model->file, "tokenizer.ggml.tokens", QR_GGUF_STRING, ret_tokens, message, message_bytes);
    if (status == -QR_E_NOT_FOUND) return REFUSE(model, QR_E_FORMAT, "%s", "the key tokenizer.ggml.tokens is missing");
    if (status) return status;
    if ((*ret_tokens)->count == 0 || (*ret_tokens)->count > model->arch.vocabulary)
        return REFUSE(model, QR_E_FORMAT, "tokenizer.ggml.tokens has %llu elements, but tensor token_embd.weight has %u rows",
                      (unsigned long long)(*ret_tokens)->count, model->arch.vocabulary);
    *ret_types = NULL;
    status = qr_gguf_get_array(model->file, "tokenizer.ggml.token_type", QR_GGUF_TYPES_COUNT, ret_types, message, message_bytes);
    if (status && status != -QR_E_NOT_FOUND) return status;
    if (*ret_types && (*ret_types)->count != (*ret_tokens)->count)
        return REFUSE(model, QR_E_FORMAT, "tokenizer.ggml.token_type has %llu elements, but tokenizer.ggml.tokens has %llu",
                      (unsigned long long)(*ret_types)->count, (unsigned long long)(*ret_tokens)->count);
    return 0;
}

int qr_vocabulary_read(qr_model_t *model, char *message, size_t message_bytes)
{
    const qr_gguf_entry_t *tokens, *token_types;
    int status = arrays_find(model, &tokens, &token_types, message, message_bytes);
    if (status) return status;
    uint32_t count = (uint32_t)tokens->count;
    uint32_t *offsets = malloc(sizeof(uint32_t) * ((size_t)count + 1));
    uint8_t *bytes = malloc(tokens->bytes), *flags = calloc(count, 1); /* tokens->bytes >= the texts, each has a length before it */
    model->vocabulary = (qr_vocabulary_t){.count = count, .offsets = offsets, .bytes = bytes, .flags = flags};
    if (!offsets || !bytes || !flags) return REFUSE(model, QR_E_MEMORY, "%u tokens", count);
    qr_gguf_string_t text;
    uint32_t used = 0;
    uint64_t cursor = 0;
    for (uint32_t t = 0; qr_gguf_string_next(tokens, &cursor, &text); t++) {
        uint64_t type = token_types ? qr_gguf_element_u64(token_types, t) : TYPE_NORMAL;
        if (text.bytes > QR_TOKEN_BYTES_MAX && !QR_MUTANT(898))
            return REFUSE(model, QR_E_LIMIT, "tokenizer.ggml.tokens: token %u has %llu bytes; up to %d are supported", t,
                          (unsigned long long)text.bytes, QR_TOKEN_BYTES_MAX);
        offsets[t] = used;
        int64_t raw = type == TYPE_NORMAL ? qr_alphabet_undo(text.data, text.bytes, bytes + used) : -1;
        if (raw < 0) memcpy(bytes + used, text.data, text.bytes); /* a text outside the alphabet stays as it is */
        used += raw < 0 ? (uint32_t)text.bytes : (uint32_t)raw;
        if (type == TYPE_CONTROL || (type == TYPE_UNKNOWN && !QR_MUTANT(411)) || type == TYPE_UNUSED) flags[t] = QR_TOKEN_SPECIAL;
        if (type == TYPE_CONTROL && text_ends(text)) end_add(model, flags, t);
    }
    offsets[count] = used;
    return specials_read(model, flags, message, message_bytes);
}

void qr_vocabulary_done(qr_vocabulary_t *vocabulary)
{
    free((void *)(uintptr_t)vocabulary->offsets);
    free((void *)(uintptr_t)vocabulary->bytes);
    free((void *)(uintptr_t)vocabulary->flags);
    *vocabulary = (qr_vocabulary_t){0};
}
