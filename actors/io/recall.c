/* recall.c - see recall.h. */
#include "actors/io/recall.h"

#include <stdlib.h>

#include "base/mutant.h"

static void destroy(qr_recalls_t *t, qr_recall_t *r)
{
    t->bytes -= r->bytes;
    free(r->text);
    free(r->tokens);
    free(r->roles);
    free(r->lengths);
    qr_http_buffer_done(&r->prefix_text);
    qr_http_buffer_done(&r->prefix_tokens);
    qr_http_buffer_done(&r->shown);
    qr_http_buffer_done(&r->drawn);
    free(r);
}

static void unlink_open(qr_recalls_t *t, qr_recall_t *r)
{
    if (r->after) r->after->before = r->before;
    if (r->before)
        r->before->after = r->after;
    else
        t->open = r->after;
    r->before = r->after = NULL;
}

static void forget_oldest(qr_recalls_t *t)
{
    destroy(t, t->ring[t->first]);
    t->first = (t->first + 1) % QR_RECALLS_MAX;
    t->count--;
}

void qr_recalls_done(qr_recalls_t *t)
{
    while (t->count) forget_oldest(t);
    while (t->open) {
        qr_recall_t *r = t->open;
        qr_recall_drop(t, &r);
    }
}

/* V1: counts r anew; false when there is no room for it. */
static bool count_bytes(qr_recalls_t *t, qr_recall_t *r)
{
    size_t bytes = sizeof *r + r->text_bytes + 4 * r->token_count + 8 * (size_t)r->message_count + r->prefix_text.capacity +
                   r->prefix_tokens.capacity + r->shown.capacity + r->drawn.capacity;
    t->bytes += bytes - r->bytes;
    r->bytes = bytes;
    while (t->bytes > QR_RECALL_BYTES_MAX && t->count && !QR_MUTANT(689)) forget_oldest(t);
    return t->bytes <= QR_RECALL_BYTES_MAX;
}

qr_recall_t *qr_recall_new(qr_recalls_t *t, qr_http_request_t *request, qr_bytes_t prefix_text, qr_u32s_t prefix_tokens)
{
    qr_recall_t *r = t->window_us ? calloc(1, sizeof *r) : NULL;
    if (!r) return NULL;
    r->kind = request->kind;
    r->cache_salt_bytes = request->cache_salt_bytes;
    memcpy(r->cache_salt, request->cache_salt, sizeof r->cache_salt);
    r->text = request->text;
    r->text_bytes = request->text_bytes;
    r->tokens = request->tokens;
    r->token_count = request->token_count;
    r->roles = request->roles;
    r->lengths = request->lengths;
    r->message_count = request->message_count;
    request->text = NULL;
    request->tokens = request->roles = request->lengths = NULL;
    qr_http_put_bytes(&r->prefix_text, prefix_text.data, prefix_text.count);
    qr_http_put_bytes(&r->prefix_tokens, prefix_tokens.data, 4 * prefix_tokens.count);
    r->lost = !count_bytes(t, r) || r->prefix_text.failed || r->prefix_tokens.failed;
    r->after = t->open;
    if (t->open) t->open->before = r;
    t->open = r;
    return r;
}

void qr_recall_add(qr_recalls_t *t, qr_recall_t *r, qr_bytes_t text, const uint32_t *tokens, uint64_t token_count)
{
    if (r->lost) return;
    size_t before = r->shown.capacity + r->drawn.capacity;
    qr_http_put_bytes(&r->shown, text.data, text.count);
    qr_http_put_bytes(&r->drawn, tokens, 4 * token_count);
    bool grown = r->shown.capacity + r->drawn.capacity != before;
    if ((grown && !count_bytes(t, r)) || r->shown.failed || r->drawn.failed) r->lost = true;
}

/* V2 */
static void cut(qr_recall_t *r, const qr_vocabulary_t *v)
{
    size_t ids = r->drawn.count / 4, kept = 0, kept_bytes = 0, at = 0;
    for (size_t i = 0; i < ids; i++) {
        uint32_t id;
        memcpy(&id, r->drawn.data + 4 * i, 4);
        if (id >= v->count || ((v->flags[id] & QR_TOKEN_SPECIAL) && !QR_MUTANT(695))) break;
        size_t bytes = v->offsets[id + 1] - v->offsets[id];
        if (bytes > r->shown.count - at || memcmp(r->shown.data + at, v->bytes + v->offsets[id], bytes) != 0) break;
        at += bytes;
        if (at < r->shown.count && ((uint8_t)r->shown.data[at] & 0xC0) == 0x80) continue; /* inside a character */
        kept = i + 1;
        kept_bytes = at;
    }
    r->drawn.count = 4 * kept;
    r->shown.count = kept_bytes;
}

void qr_recall_keep(qr_recalls_t *t, qr_recall_t **recall, const qr_vocabulary_t *vocabulary, uint64_t now_us)
{
    qr_recall_t *r = *recall;
    if (r->lost) {
        qr_recall_drop(t, recall);
        return;
    }
    unlink_open(t, r);
    cut(r, vocabulary);
    r->until_us = now_us + t->window_us;
    while (t->count && (t->count == QR_RECALLS_MAX || t->ring[t->first]->until_us <= now_us)) forget_oldest(t);
    t->ring[(t->first + t->count++) % QR_RECALLS_MAX] = r;
    *recall = NULL;
}

void qr_recall_drop(qr_recalls_t *t, qr_recall_t **recall)
{
    if (*recall) {
        unlink_open(t, *recall);
        destroy(t, *recall);
    }
    *recall = NULL;
}

const qr_recall_t *qr_recall_find(qr_recalls_t *t, uint64_t answer_id, bool chat, uint32_t tenant, uint64_t now_us)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const qr_recall_t *r = t->ring[(t->first + i) % QR_RECALLS_MAX];
        if (r->answer_id == answer_id && r->chat == chat && (r->tenant == tenant || QR_MUTANT(696)))
            return now_us < r->until_us || QR_MUTANT(699) ? r : NULL;
    }
    return NULL;
}
