/* http_answer.c - see http_answer.h. Events are written by hand into the stream's buffer: a token costs a copy, not a tree. */
#include "actors/io/http_answer.h"

#include <stdio.h>

#include "base/utf8.h"

void qr_http_answer_init(qr_http_answer_t *answer, const qr_http_request_t *request, const char *model, const qr_hash_t *fingerprint,
                         uint64_t id, uint64_t created_s)
{
    *answer = (qr_http_answer_t){.chat = request->chat,
                                 .stream = request->stream,
                                 .include_usage = request->include_usage,
                                 .logprobs = request->logprobs,
                                 .token_ids = request->token_ids,
                                 .id = id,
                                 .created_s = created_s,
                                 .model = model};
    static const qr_hash_t unknown;
    if (!memcmp(fingerprint, &unknown, sizeof unknown)) return;
    const uint8_t *b = fingerprint->bytes;
    snprintf(answer->fingerprint, sizeof answer->fingerprint, "fp_%02x%02x%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5],
             b[6], b[7]);
}

void qr_http_answer_done(qr_http_answer_t *answer)
{
    qr_http_buffer_done(&answer->head);
    qr_http_buffer_done(&answer->text);
    qr_http_buffer_done(&answer->tokens);
    qr_http_buffer_done(&answer->logprob_bits);
}

void qr_http_answer_name(const qr_http_answer_t *answer, char *to)
{
    snprintf(to, 40, "%s-%016llx", answer->chat ? "chatcmpl" : "cmpl", (unsigned long long)answer->id);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------------------- */

/* {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":.., */
static void put_head(const qr_http_answer_t *a, qr_http_buffer_t *out)
{
    char name[40];
    qr_http_answer_name(a, name);
    qr_http_put(out, "{\"id\":\"");
    qr_http_put(out, name);
    qr_http_put(out, "\",\"object\":\"");
    qr_http_put(out, !a->chat ? "text_completion" : a->stream ? "chat.completion.chunk" : "chat.completion");
    qr_http_put(out, "\",\"created\":");
    qr_http_put_u64(out, a->created_s);
    qr_http_put(out, ",\"model\":\"");
    qr_http_put_escaped(out, a->model, strlen(a->model));
    qr_http_put(out, "\",\"system_fingerprint\":");
    if (a->fingerprint[0]) {
        qr_http_put(out, "\"");
        qr_http_put(out, a->fingerprint);
        qr_http_put(out, "\",");
    } else {
        qr_http_put(out, "null,");
    }
}

static void put_usage(const qr_request_finished_t *f, qr_http_buffer_t *out)
{
    qr_http_put(out, "{\"prompt_tokens\":");
    qr_http_put_u64(out, f->prompt_tokens);
    qr_http_put(out, ",\"completion_tokens\":");
    qr_http_put_u64(out, f->completion_tokens);
    qr_http_put(out, ",\"total_tokens\":");
    qr_http_put_u64(out, (uint64_t)f->prompt_tokens + f->completion_tokens);
    qr_http_put(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    qr_http_put_u64(out, f->cached_tokens);
    qr_http_put(out, "}}");
}

static qr_bytes_t token_bytes(const qr_vocabulary_t *v, uint32_t token)
{
    if (token >= v->count) return (qr_bytes_t){0};
    return (qr_bytes_t){v->bytes + v->offsets[token], v->offsets[token + 1] - v->offsets[token]};
}

/* A token as a JSON string; one that is part of a character as bytes:\xf0\x9f. */
static void put_token(qr_bytes_t bytes, qr_http_buffer_t *out)
{
    qr_http_put(out, "\"");
    if (qr_utf8_valid(bytes.data, bytes.count)) {
        qr_http_put_escaped(out, bytes.data, bytes.count);
    } else {
        qr_http_put(out, "bytes:");
        for (uint64_t i = 0; i < bytes.count; i++) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\\\x%02x", bytes.data[i]);
            qr_http_put(out, escape);
        }
    }
    qr_http_put(out, "\"");
}

static void put_ids(const uint32_t *tokens, size_t count, qr_http_buffer_t *out)
{
    qr_http_put(out, "[");
    for (size_t i = 0; i < count; i++) {
        if (i) qr_http_put(out, ",");
        qr_http_put_u64(out, tokens[i]);
    }
    qr_http_put(out, "]");
}

/* {"content":[{"token","logprob","bytes","top_logprobs"}]} */
static void put_chat_logprobs(const qr_vocabulary_t *v, const uint32_t *tokens, const uint32_t *bits, size_t count, qr_http_buffer_t *out)
{
    qr_http_put(out, "{\"content\":[");
    for (size_t i = 0; i < count; i++) {
        qr_bytes_t bytes = token_bytes(v, tokens[i]);
        qr_http_put(out, i ? ",{\"token\":" : "{\"token\":");
        put_token(bytes, out);
        qr_http_put(out, ",\"logprob\":");
        qr_http_put_float(out, bits[i]);
        qr_http_put(out, ",\"bytes\":[");
        for (uint64_t j = 0; j < bytes.count; j++) {
            if (j) qr_http_put(out, ",");
            qr_http_put_u64(out, bytes.data[j]);
        }
        qr_http_put(out, "],\"top_logprobs\":[]}");
    }
    qr_http_put(out, "],\"refusal\":null}");
}

/* {"tokens":[],"token_logprobs":[],"top_logprobs":null,"text_offset":[]} */
static void put_text_logprobs(qr_http_answer_t *a, const qr_vocabulary_t *v, const uint32_t *tokens, const uint32_t *bits, size_t count,
                              qr_http_buffer_t *out)
{
    qr_http_put(out, "{\"tokens\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) qr_http_put(out, ",");
        put_token(token_bytes(v, tokens[i]), out);
    }
    qr_http_put(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) qr_http_put(out, ",");
        qr_http_put_float(out, bits[i]);
    }
    qr_http_put(out, "],\"top_logprobs\":null,\"text_offset\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) qr_http_put(out, ",");
        qr_http_put_u64(out, a->text_offset);
        if (tokens[i] >= v->count || (v->flags[tokens[i]] & QR_TOKEN_SPECIAL)) continue; /* prints nothing */
        qr_bytes_t bytes = token_bytes(v, tokens[i]);
        for (uint64_t j = 0; j < bytes.count; j++) a->text_offset += (bytes.data[j] & 0xC0) != 0x80;
    }
    qr_http_put(out, "]}");
}

static void put_logprobs(qr_http_answer_t *a, const qr_vocabulary_t *v, const uint32_t *tokens, const uint32_t *bits, size_t count,
                         qr_http_buffer_t *out)
{
    qr_http_put(out, ",\"logprobs\":");
    if (!a->logprobs || !bits || !count)
        qr_http_put(out, "null");
    else if (a->chat)
        put_chat_logprobs(v, tokens, bits, count, out);
    else
        put_text_logprobs(a, v, tokens, bits, count, out);
    if (a->token_ids) {
        qr_http_put(out, ",\"token_ids\":");
        put_ids(tokens, count, out);
    }
}

static const char *finish_word(uint32_t finish) { return finish == QR_FINISH_LENGTH ? "\"length\"" : "\"stop\""; }

/* ---- events -------------------------------------------------------------------------------------------------------------------- */

static void begin_event(qr_http_answer_t *a, qr_http_buffer_t *out)
{
    if (!a->head.count) put_head(a, &a->head);
    qr_http_put(out, "data: ");
    qr_http_put_bytes(out, a->head.data, a->head.count);
}
static void end_event(const qr_http_answer_t *a, qr_http_buffer_t *out)
{
    qr_http_put(out, a->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

/* The role goes first, in an event of its own. */
static void put_opening(qr_http_answer_t *a, qr_http_buffer_t *out)
{
    if (a->begun) return;
    a->begun = true;
    if (!a->chat) return;
    begin_event(a, out);
    qr_http_put(out,
                "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
    end_event(a, out);
}

void qr_http_answer_delta(qr_http_answer_t *a, const qr_vocabulary_t *vocabulary, qr_bytes_t text, const uint32_t *tokens,
                          const uint32_t *logprob_bits, size_t token_count, qr_http_buffer_t *out)
{
    if (!a->stream) {
        qr_http_put_bytes(&a->text, text.data, text.count);
        if (a->logprobs || a->token_ids) qr_http_put_bytes(&a->tokens, tokens, token_count * 4);
        if (a->logprobs && logprob_bits) qr_http_put_bytes(&a->logprob_bits, logprob_bits, token_count * 4);
        return;
    }
    put_opening(a, out);
    if (!text.count && !(token_count && (a->logprobs || a->token_ids))) return; /* part of a character, or of a stop string */
    begin_event(a, out);
    qr_http_put(out, a->chat ? "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" : "\"choices\":[{\"index\":0,\"text\":\"");
    qr_http_put_escaped(out, text.data, text.count);
    qr_http_put(out, a->chat ? "\"}" : "\"");
    put_logprobs(a, vocabulary, tokens, logprob_bits, token_count, out);
    qr_http_put(out, ",\"finish_reason\":null}");
    end_event(a, out);
}

static void put_last_events(qr_http_answer_t *a, const qr_request_finished_t *finished, qr_http_buffer_t *out)
{
    put_opening(a, out);
    begin_event(a, out);
    qr_http_put(out, a->chat ? "\"choices\":[{\"index\":0,\"delta\":{}" : "\"choices\":[{\"index\":0,\"text\":\"\"");
    qr_http_put(out, ",\"logprobs\":null,\"finish_reason\":");
    qr_http_put(out, finish_word(finished->finish));
    qr_http_put(out, "}");
    end_event(a, out);
    if (a->include_usage) {
        begin_event(a, out);
        qr_http_put(out, "\"choices\":[],\"usage\":");
        put_usage(finished, out);
        qr_http_put(out, "}\n\n");
    }
    qr_http_put(out, "data: [DONE]\n\n");
}

void qr_http_answer_finish(qr_http_answer_t *a, const qr_vocabulary_t *vocabulary, const qr_request_finished_t *finished,
                           qr_http_buffer_t *out)
{
    if (a->stream) {
        put_last_events(a, finished, out);
        return;
    }
    put_head(a, out);
    qr_http_put(out, a->chat ? "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                             : "\"choices\":[{\"index\":0,\"text\":\"");
    qr_http_put_escaped(out, a->text.data, a->text.count);
    qr_http_put(out, a->chat ? "\",\"refusal\":null}" : "\"");
    const uint32_t *bits = a->logprob_bits.count == a->tokens.count ? (const uint32_t *)(const void *)a->logprob_bits.data : NULL;
    put_logprobs(a, vocabulary, (const uint32_t *)(const void *)a->tokens.data, bits, a->tokens.count / 4, out);
    qr_http_put(out, ",\"finish_reason\":");
    qr_http_put(out, finish_word(finished->finish));
    qr_http_put(out, "}],\"usage\":");
    put_usage(finished, out);
    qr_http_put(out, "}");
    if (a->text.failed || a->tokens.failed || a->logprob_bits.failed) out->failed = true;
}

void qr_http_answer_error(qr_http_answer_t *a, const qr_http_error_t *error, qr_http_buffer_t *out)
{
    (void)a;
    qr_http_put(out, "data: ");
    qr_http_put_error(out, error);
    qr_http_put(out, "\n\n");
}
