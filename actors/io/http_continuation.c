/* http_continuation.c - see http_continuation.h. */
#include "actors/io/http_continuation.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mutant.h"
#include "base/render.h"

static const char id_prefix[] = "cont-";
enum { TTL_S_MAX = 10 * 366 * 86400 };

bool qr_http_continuation_id(const char *text, size_t count, uint8_t ret_id[16])
{
    size_t prefix = sizeof id_prefix - 1;
    if (count != QR_HTTP_CONTINUATION_ID_TEXT || memcmp(text, id_prefix, prefix) != 0) return false;
    for (size_t i = 0; i < 16; i++) {
        char digits[3] = {text[prefix + 2 * i], text[prefix + 2 * i + 1], 0};
        if (strspn(digits, "0123456789abcdef") != 2) return false;
        ret_id[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return true;
}

void qr_http_put_continuation_id(qr_http_buffer_t *out, const uint8_t id[16])
{
    char text[QR_HTTP_CONTINUATION_ID_TEXT + 1];
    size_t at = (size_t)snprintf(text, sizeof text, "%s", id_prefix);
    for (size_t i = 0; i < 16; i++) at += (size_t)snprintf(text + at, sizeof text - at, "%02x", id[i]);
    qr_http_put(out, text);
}

/* ---- bodies --------------------------------------------------------------------------------------------------------------------- */

static int wrong(qr_http_error_t *error, const char *param, const char *sentence)
{
    qr_http_error_invalid(error, param, "%s", sentence);
    return -QR_E_INVALID;
}

static int read_name(const char *param, const json_t *value, char *to, qr_http_error_t *error)
{
    size_t bytes = json_string_length(value);
    if (!json_is_string(value) || bytes > QR_HTTP_CONTINUATION_NAME || memchr(json_string_value(value), 0, bytes))
        return wrong(error, param, "it must be a string of at most 64 bytes");
    memcpy(to, json_string_value(value), bytes);
    to[bytes] = 0;
    return 0;
}

static int no_response(qr_http_error_t *error)
{
    static const char why[] =
        "there is no such response to save: it is unknown, of another key, or ended longer ago than this server remembers";
    qr_http_error_reason(error, QR_E_NOT_FOUND, (qr_bytes_t){(const uint8_t *)"response", 8},
                         (qr_bytes_t){(const uint8_t *)why, sizeof why - 1}, 0);
    return -QR_E_NOT_FOUND;
}

/* "chatcmpl-..." or "cmpl-..." with 16 hex digits. */
static int read_response(const json_t *value, qr_http_continuation_t *ask, qr_http_error_t *error)
{
    const char *text = json_string_value(value);
    if (!text) return wrong(error, "response", "response must be the id of a finished response");
    ask->chat = !strncmp(text, "chatcmpl-", 9);
    if (!ask->chat && strncmp(text, "cmpl-", 5) != 0) return no_response(error);
    size_t prefix = ask->chat ? 9 : 5;
    text += prefix;
    if (json_string_length(value) != prefix + 16 || strspn(text, "0123456789abcdef") != 16) return no_response(error);
    ask->response = strtoull(text, NULL, 16);
    return 0;
}

static int read_member(const char *key, const json_t *value, qr_http_continuation_t *ask, qr_http_error_t *error)
{
    if (!strcmp(key, "response") && ask->operation == QR_HTTP_SAVE) return read_response(value, ask, error);
    if (json_is_null(value)) return 0;
    if (!strcmp(key, "name")) return read_name("name", value, ask->name, error);
    if (!strcmp(key, "owner")) return read_name("owner", value, ask->owner, error);
    if (!strcmp(key, "pin")) {
        ask->pin = json_is_true(value);
        return json_is_boolean(value) ? 0 : wrong(error, "pin", "pin must be true or false");
    }
    if (!strcmp(key, "ttl_s")) {
        json_int_t seconds = json_integer_value(value);
        if (!json_is_integer(value) || seconds < 1 || seconds > TTL_S_MAX)
            return wrong(error, "ttl_s", "ttl_s must be whole seconds, from 1 to ten years");
        ask->ttl_us = (uint64_t)seconds * 1000000;
        return 0;
    }
    return wrong(error, "",
                 ask->operation == QR_HTTP_SAVE ? "a save knows response, name, owner, ttl_s and pin"
                                                : "a fork knows name, owner, ttl_s and pin");
}

int qr_http_continuation_parse(const char *body, size_t bytes, qr_http_continuation_t *ask, qr_http_error_t *error)
{
    const char *key;
    json_t *value;
    if (!bytes && ask->operation == QR_HTTP_FORK) return 0;
    json_error_t where;
    json_t *root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root) return qr_http_error_json(error, &where);
    int status = json_is_object(root) ? 0 : wrong(error, "", "the body must be a JSON object");
    if (!status && ask->operation == QR_HTTP_SAVE && !json_object_get(root, "response"))
        status = wrong(error, "response", "response must be the id of a finished response");
    if (!status) json_object_foreach(root, key, value) if (!status) status = read_member(key, value, ask, error);
    if (!status && ask->pin && ask->ttl_us) status = wrong(error, "ttl_s", "what is pinned never expires: give pin or ttl_s, not both");
    json_decref(root);
    return status;
}

/* ---- objects -------------------------------------------------------------------------------------------------------------------- */

void qr_http_put_render(qr_http_buffer_t *out, qr_bytes_t render)
{
    uint64_t run = 0;
    for (uint64_t at = 0; at <= render.count; at++) {
        if (at < render.count && render.data[at] != QR_RENDER_CONTENT && render.data[at] != QR_RENDER_CONTENT_END) continue;
        if (at > run) qr_http_put_escaped(out, render.data + run, at - run);
        run = at + 1;
    }
}

static void put_name(qr_http_buffer_t *out, const char *key, qr_bytes_t name)
{
    qr_http_put(out, key);
    if (!name.count) {
        qr_http_put(out, "null");
        return;
    }
    qr_http_put(out, "\"");
    qr_http_put_escaped(out, name.data, name.count);
    qr_http_put(out, "\"");
}

void qr_http_put_continuation(qr_http_buffer_t *out, const qr_http_continuation_view_t *v)
{
    qr_http_put(out, "{\"id\":\"");
    qr_http_put_continuation_id(out, v->id);
    qr_http_put(out, "\",\"object\":\"continuation\",\"created\":");
    qr_http_put_u64(out, v->created_us / 1000000);
    qr_http_put(out, ",\"expires_at\":");
    if (v->expires_us)
        qr_http_put_u64(out, v->expires_us / 1000000);
    else
        qr_http_put(out, "null");
    put_name(out, ",\"name\":", v->name);
    put_name(out, ",\"owner\":", v->owner);
    qr_http_put(out, v->pin ? ",\"pin\":true" : ",\"pin\":false");
    if (v->model) put_name(out, ",\"model\":", (qr_bytes_t){(const uint8_t *)v->model, strlen(v->model)});
    qr_http_put(out, ",\"tokens\":");
    qr_http_put_u64(out, v->token_count);
    if (v->saved) {
        qr_http_put(out, v->short_reason ? ",\"durable\":false,\"durable_tokens\":" : ",\"durable\":true,\"durable_tokens\":");
        qr_http_put_u64(out, v->durable_tokens);
        if (v->short_reason) put_name(out, ",\"durable_reason\":", (qr_bytes_t){(const uint8_t *)v->short_reason, strlen(v->short_reason)});
    }
    if (v->with_state) {
        qr_http_put(out, ",\"text\":\"");
        qr_http_put_render(out, v->text);
        qr_http_put(out, "\",\"token_ids\":[");
        for (uint64_t i = 0; i < v->tokens.count; i++) {
            if (i) qr_http_put(out, ",");
            qr_http_put_u64(out, v->tokens.data[i]);
        }
        qr_http_put(out, "]");
    }
    qr_http_put(out, "}");
}
