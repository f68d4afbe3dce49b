/* http_json.c - see http_json.h. Reading is jansson's, in its strict mode (duplicate keys, bad UTF-8, numbers out of range and
 * trailing bytes are errors); writing is done here, straight into the buffer that is sent.
 *
 * A field that this version does not support is refused by name when it would change the answer, and accepted when its value says
 * "off". Fields that only label a request are accepted and ignored. A name that is in neither list is refused. */
#include "actors/io/http_json.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "actors/io/http_continuation.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/utf8.h"

enum { ERROR_SHOWN_BYTES = 60, TEMPERATURE_MAX = 100, LOGPROBS_MAX = 5, DEADLINE_MS_MAX = 86400000 };

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

void qr_http_buffer_done(qr_http_buffer_t *buffer)
{
    free(buffer->data);
    *buffer = (qr_http_buffer_t){0};
}

void qr_http_buffer_clear(qr_http_buffer_t *buffer)
{
    buffer->count = 0;
    buffer->failed = false;
}

static bool buffer_room(qr_http_buffer_t *buffer, size_t count)
{
    if (buffer->failed) return false;
    if (count <= buffer->capacity - buffer->count) return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 512;
    while (capacity - buffer->count < count) capacity *= 2;
    char *grown = realloc(buffer->data, capacity);
    if (!grown) {
        buffer->failed = true;
        return false;
    }
    buffer->data = grown;
    buffer->capacity = capacity;
    return true;
}

void qr_http_put_bytes(qr_http_buffer_t *buffer, const void *bytes, size_t count)
{
    if (!buffer_room(buffer, count)) return;
    qr_copy(buffer->data + buffer->count, bytes, count);
    buffer->count += count;
}

void qr_http_put(qr_http_buffer_t *buffer, const char *text) { qr_http_put_bytes(buffer, text, strlen(text)); }

void qr_http_put_u64(qr_http_buffer_t *buffer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    qr_http_put_bytes(buffer, digits + at, sizeof digits - at);
}

void qr_http_put_float(qr_http_buffer_t *buffer, uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    char digits[40];
    if (isfinite(value))
        snprintf(digits, sizeof digits, "%.9g", (double)value);
    else
        strcpy(digits, "null");
    for (char *c = digits; *c; c++)
        if (*c == ',') *c = '.'; /* whatever the locale says */
    qr_http_put(buffer, digits);
}

static void put_control(qr_http_buffer_t *buffer, uint8_t byte)
{
    static const char hex[] = "0123456789abcdef";
    char escape[] = {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
    size_t count = sizeof escape;
    const char *letters = "\bb\tt\nn\ff\rr\"\"\\\\";
    for (const char *l = letters; *l; l += 2)
        if ((uint8_t)l[0] == byte) {
            escape[1] = l[1];
            count = 2;
        }
    qr_http_put_bytes(buffer, escape, count);
}

void qr_http_put_escaped(qr_http_buffer_t *buffer, const void *bytes, size_t count)
{
    const uint8_t *t = bytes;
    size_t run = 0;
    for (size_t at = 0; at < count;) {
        if (t[at] >= 0x20 && t[at] != '"' && t[at] != '\\' && t[at] < 0x7F) {
            at++;
            continue;
        }
        size_t length = qr_utf8_character(t + at, count - at);
        if (length > 1) {
            at += length;
            continue;
        }
        qr_http_put_bytes(buffer, t + run, at - run);
        if (length == 0)
            qr_http_put(buffer, "\xEF\xBF\xBD");
        else
            put_control(buffer, t[at]);
        run = ++at;
    }
    qr_http_put_bytes(buffer, t + run, count - run);
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------- */

/* Copies text cut between characters; controls and malformed bytes become '?', so that a log line stays one line. */
static void copy_shown(char *to, size_t to_bytes, const void *bytes, size_t count)
{
    const uint8_t *t = bytes;
    size_t used = 0;
    for (size_t at = 0; at < count;) {
        size_t length = qr_utf8_character(t + at, count - at);
        bool shown = length > 1 || (length == 1 && t[at] >= 0x20 && t[at] != 0x7F);
        size_t step = length ? length : 1;
        if (used + (shown ? step : 1) >= to_bytes) break;
        if (shown)
            memcpy(to + used, t + at, step);
        else
            to[used] = '?';
        used += shown ? step : 1;
        at += step;
    }
    to[used] = 0;
}

/* A text of the user for an error: cut, marked when cut. */
typedef struct shown {
    char text[ERROR_SHOWN_BYTES + 8];
} shown_t;
static shown_t show(const char *text, size_t count)
{
    shown_t shown;
    copy_shown(shown.text, ERROR_SHOWN_BYTES, text, count);
    if (count >= ERROR_SHOWN_BYTES) strcat(shown.text, "...");
    return shown;
}

void qr_http_error_invalid(qr_http_error_t *error, const char *param, const char *format, ...)
{
    va_list arguments;
    *error = (qr_http_error_t){.status = 400, .type = "invalid_request_error"};
    copy_shown(error->param, sizeof error->param, param, strlen(param));
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
}

static const struct status {
    uint32_t reason, status;
    const char *code;
} statuses[] = {
    {QR_E_INVALID, 400, NULL},
    {QR_E_CONTEXT, 400, "context_length_exceeded"},
    {QR_E_NEVER_FITS, 400, "never_fits"},
    {QR_E_UNSUPPORTED, 400, "unsupported"},
    {QR_E_LIMIT, 400, "limit"},
    {QR_E_FORMAT, 400, NULL},
    {QR_E_MODEL, 404, "model_not_found"},
    {QR_E_NOT_FOUND, 404, "not_found"},
    {QR_E_PERMISSION, 403, "permission"},
    {QR_E_BUSY, 429, "rate_limit_exceeded"},
    {QR_E_QUOTA, 429, "rate_limit_exceeded"},
    {QR_E_SHORTFALL, 429, "rate_limit_exceeded"},
    {QR_E_NO_WORKER, 503, "no_worker"},
    {QR_E_DRAINING, 503, "draining"},
    {QR_E_PEER_DOWN, 503, "peer_down"},
    {QR_E_CANCELLED, 503, "cancelled"},
    {QR_E_MEMORY, 503, "memory"},
    {QR_E_DEADLINE, 504, "deadline"},
    {QR_E_MISMATCH, 409, "continuation_mismatch"},
    {QR_E_NO_SPACE, 507, "no_space"},
    {QR_E_SLOW_CLIENT, 408, "slow_client"},
    {QR_E_NUMERIC, 500, "numeric"},
    {QR_E_DEVICE, 500, "device"},
};

void qr_http_error_reason(qr_http_error_t *error, uint32_t reason, qr_bytes_t param, qr_bytes_t text, uint32_t retry_after_ms)
{
    struct status found = {reason, 500, "internal_error"};
    for (size_t i = 0; i < QR_COUNT(statuses); i++)
        if (statuses[i].reason == reason) found = statuses[i];
    *error = (qr_http_error_t){.status = found.status, .code = found.code};
    error->type = found.status >= 500 ? "server_error" : found.status == 429 ? "rate_limit_error" : "invalid_request_error";
    if (found.status == 429 || found.status == 503) error->retry_after_s = qr_max_u32((uint32_t)qr_div_up(retry_after_ms, 1000), 1);
    copy_shown(error->param, sizeof error->param, param.data, param.count);
    const char *own = qr_error_sentence((int)reason);
    if (text.count)
        copy_shown(error->message, sizeof error->message, text.data, text.count);
    else
        copy_shown(error->message, sizeof error->message, own, strlen(own));
}

void qr_http_put_error(qr_http_buffer_t *buffer, const qr_http_error_t *error)
{
    qr_http_put(buffer, "{\"error\":{\"message\":\"");
    qr_http_put_escaped(buffer, error->message, strlen(error->message));
    qr_http_put(buffer, "\",\"type\":\"");
    qr_http_put(buffer, error->type);
    qr_http_put(buffer, "\",\"param\":");
    if (error->param[0]) {
        qr_http_put(buffer, "\"");
        qr_http_put_escaped(buffer, error->param, strlen(error->param));
        qr_http_put(buffer, "\",\"code\":");
    } else {
        qr_http_put(buffer, "null,\"code\":");
    }
    if (error->code) {
        qr_http_put(buffer, "\"");
        qr_http_put(buffer, error->code);
        qr_http_put(buffer, "\"}}");
    } else {
        qr_http_put(buffer, "null}}");
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------------------------- */

typedef struct parse {
    qr_http_request_t *request;
    qr_http_error_t *error;
    const qr_http_limits_t *limits;
    const json_t *stream_options;
    size_t text_capacity, message_capacity;
} parse_t;

static int invalid(parse_t *p, const char *param, const char *sentence)
{
    qr_http_error_invalid(p->error, param, "%s", sentence);
    return -QR_E_INVALID;
}
static int out_of_memory(parse_t *p)
{
    qr_http_error_reason(p->error, QR_E_MEMORY, (qr_bytes_t){0}, (qr_bytes_t){0}, 1000);
    return -QR_E_MEMORY;
}

static int get_bool(parse_t *p, const char *name, const json_t *value, bool *ret_value)
{
    if (!json_is_boolean(value)) {
        qr_http_error_invalid(p->error, name, "%s must be true or false", name);
        return -QR_E_INVALID;
    }
    *ret_value = json_is_true(value);
    return 0;
}
static int get_integer(parse_t *p, const char *name, const json_t *value, int64_t least, int64_t most, int64_t *ret_value)
{
    if (!json_is_integer(value)) {
        qr_http_error_invalid(p->error, name, "%s must be an integer", name);
        return -QR_E_INVALID;
    }
    int64_t number = json_integer_value(value);
    if (number < least || number > most) {
        qr_http_error_invalid(p->error, name, "%s must be between %lld and %lld", name, (long long)least, (long long)most);
        return -QR_E_INVALID;
    }
    *ret_value = number;
    return 0;
}
static int get_float(parse_t *p, const char *name, const json_t *value, double most, uint32_t *ret_bits)
{
    if (!json_is_number(value)) {
        qr_http_error_invalid(p->error, name, "%s must be a number", name);
        return -QR_E_INVALID;
    }
    double number = json_number_value(value);
    if (!(number >= 0 && number <= most)) {
        qr_http_error_invalid(p->error, name, "%s must be between 0 and %g", name, most);
        return -QR_E_INVALID;
    }
    float narrow = (float)(number == 0 ? 0.0 : number); /* no negative zero */
    memcpy(ret_bits, &narrow, 4);
    return 0;
}

/* Whether it is this text to its last byte: a NUL ends no string of JSON. */
static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && !strcmp(json_string_value(value), text) &&
           (json_string_length(value) == strlen(text) || QR_MUTANT(896));
}

static int on_model(parse_t *p, const char *name, const json_t *value)
{
    if (!json_is_string(value)) return invalid(p, name, "model must be a string");
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);
    if (is_text(value, p->limits->model) || is_text(value, "default") || !bytes) return 0;
    *p->error = (qr_http_error_t){.status = 404, .type = "invalid_request_error", .code = "model_not_found", .param = "model"};
    snprintf(p->error->message, sizeof p->error->message, "The model '%s' does not exist; this server has '%s'", show(text, bytes).text,
             show(p->limits->model, strlen(p->limits->model)).text);
    return -QR_E_MODEL;
}
static int on_stream(parse_t *p, const char *name, const json_t *value) { return get_bool(p, name, value, &p->request->stream); }
static int on_stream_options(parse_t *p, const char *name, const json_t *value)
{
    const char *key;
    json_t *member;
    if (!json_is_object(value)) return invalid(p, name, "stream_options must be an object");
    p->stream_options = value;
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        bool flag = false;
        bool usage = !strcmp(key, "include_usage");
        if (!usage && strcmp(key, "include_obfuscation") != 0) return invalid(p, name, "stream_options knows only include_usage");
        if (!json_is_boolean(member)) return invalid(p, name, "the members of stream_options must be true or false");
        flag = json_is_true(member);
        if (usage) p->request->include_usage = flag || QR_MUTANT(249);
    }
    return 0;
}
static int on_max_tokens(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, 1, INT64_MAX, &number);
    /* The newer name wins where both are given. */
    if (!error && (p->request->max_tokens == 0 || !strcmp(name, "max_completion_tokens")))
        p->request->max_tokens = (uint32_t)qr_min_u64((uint64_t)number, QR_CONTEXT_MAX);
    return error;
}
static int on_temperature(parse_t *p, const char *name, const json_t *value)
{
    return get_float(p, name, value, TEMPERATURE_MAX, &p->request->temperature_bits);
}
static int on_top_p(parse_t *p, const char *name, const json_t *value) { return get_float(p, name, value, 1, &p->request->top_p_bits); }
static int on_min_p(parse_t *p, const char *name, const json_t *value) { return get_float(p, name, value, 1, &p->request->min_p_bits); }
static int on_top_k(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, -1, UINT32_MAX, &number);
    if (!error) p->request->top_k = number < 0 ? 0 : (uint32_t)number; /* -1 is another word for off */
    return error;
}
static int on_seed(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, INT64_MIN, INT64_MAX, &number);
    if (error) return error;
    p->request->seed_given = true;
    p->request->seed = (uint64_t)number;
    return 0;
}
static int on_priority(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, 0, 255, &number);
    if (!error) p->request->priority = (uint32_t)number;
    return error;
}
static int on_deadline(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, 1, DEADLINE_MS_MAX, &number);
    if (!error) p->request->deadline_ms = (uint64_t)number;
    return error;
}
static int on_ignore_eos(parse_t *p, const char *name, const json_t *value) { return get_bool(p, name, value, &p->request->ignore_eos); }
static int on_token_ids(parse_t *p, const char *name, const json_t *value) { return get_bool(p, name, value, &p->request->token_ids); }

static int on_logprobs(parse_t *p, const char *name, const json_t *value)
{
    if (p->request->chat) return get_bool(p, name, value, &p->request->logprobs);
    int64_t number;
    int error = get_integer(p, name, value, 0, LOGPROBS_MAX, &number);
    if (!error) p->request->logprobs = true; /* of the drawn token, whatever the number */
    return error;
}
static int on_cache_salt(parse_t *p, const char *name, const json_t *value)
{
    size_t bytes = json_string_length(value);
    if (!json_is_string(value) || bytes == 0) return invalid(p, name, "cache_salt must be a string that is not empty");
    if (bytes > QR_SALT_BYTES_MAX) return invalid(p, name, "cache_salt is longer than 64 bytes");
    memcpy(p->request->cache_salt, json_string_value(value), bytes);
    p->request->cache_salt_bytes = (uint32_t)bytes;
    return 0;
}

static int on_continuation(parse_t *p, const char *name, const json_t *value)
{
    if (!json_is_string(value)) return invalid(p, name, "continuation must be the id of a saved continuation");
    p->request->continues = true;
    if (qr_http_continuation_id(json_string_value(value), json_string_length(value), p->request->continuation)) return 0;
    qr_http_error_reason(p->error, QR_E_NOT_FOUND, (qr_bytes_t){(const uint8_t *)name, strlen(name)}, (qr_bytes_t){0}, 0);
    return -QR_E_NOT_FOUND;
}

static int add_stop(parse_t *p, const char *name, const json_t *value)
{
    qr_http_request_t *r = p->request;
    size_t bytes = json_string_length(value), used = 0;
    if (!json_is_string(value) || bytes == 0) return invalid(p, name, "stop must be a string or an array of strings, none of them empty");
    if (bytes > QR_STOP_BYTES_MAX) return invalid(p, name, "a stop string is longer than 256 bytes");
    if (r->stop_count == QR_STOPS_MAX) return invalid(p, name, "there are more than 16 stop strings");
    for (uint32_t i = 0; i < r->stop_count; i++) used += r->stop_lengths[i];
    memcpy(r->stop + used, json_string_value(value), bytes);
    r->stop_lengths[r->stop_count++] = (uint32_t)bytes;
    return 0;
}
static int on_stop(parse_t *p, const char *name, const json_t *value)
{
    if (!json_is_array(value)) return add_stop(p, name, value);
    int error = 0;
    for (size_t i = 0; !error && i < json_array_size(value); i++) error = add_stop(p, name, json_array_get(value, i));
    return error;
}

/* ---- prompts -------------------------------------------------------------------------------------------------------------------- */

static int set_text(parse_t *p, const json_t *value)
{
    qr_http_request_t *r = p->request;
    r->kind = QR_INPUT_TEXT;
    r->text_bytes = json_string_length(value);
    r->text = malloc(r->text_bytes + 1);
    if (!r->text) return out_of_memory(p);
    memcpy(r->text, json_string_value(value), r->text_bytes);
    return 0;
}
static int set_tokens(parse_t *p, const json_t *value)
{
    qr_http_request_t *r = p->request;
    size_t count = json_array_size(value);
    uint32_t context = p->limits->context_tokens ? p->limits->context_tokens : QR_CONTEXT_MAX;
    if (count == 0) return invalid(p, "prompt", "the prompt has no tokens");
    r->kind = QR_INPUT_TOKENS;
    r->tokens = malloc(count * sizeof *r->tokens);
    if (!r->tokens) return out_of_memory(p);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(value, i);
        if (!json_is_integer(id)) return invalid(p, "prompt", "the token ids of a prompt must be integers");
        json_int_t number = json_integer_value(id);
        if (number < 0 || number >= (json_int_t)p->limits->vocabulary + QR_MUTANT(247)) {
            qr_http_error_invalid(p->error, "prompt", "token id %lld at place %zu is outside the vocabulary of %u", (long long)number, i,
                                  p->limits->vocabulary);
            return -QR_E_INVALID;
        }
        r->tokens[i] = (uint32_t)number;
    }
    r->token_count = count;
    if (count <= context) return 0;
    qr_http_error_invalid(p->error, "prompt", "the prompt has %zu tokens, the context holds %u", count, context);
    p->error->code = "context_length_exceeded";
    return -QR_E_CONTEXT;
}
/* A text, its token ids, or an array with exactly one of either. */
static int on_prompt(parse_t *p, const char *name, const json_t *value)
{
    if (json_is_string(value)) return set_text(p, value);
    if (!json_is_array(value)) return invalid(p, name, "prompt must be a string or an array of token ids");
    const json_t *first = json_array_get(value, 0);
    bool nested = json_is_string(first) || json_is_array(first);
    if (!nested) return set_tokens(p, value);
    if (json_array_size(value) > 1) return invalid(p, name, "several prompts in one request are not supported; send one request for each");
    return json_is_string(first) ? set_text(p, first) : set_tokens(p, first);
}

static int add_text(parse_t *p, const char *text, size_t bytes)
{
    qr_http_request_t *r = p->request;
    if (bytes == 0) return 0;
    if (bytes > p->text_capacity - r->text_bytes) {
        size_t capacity = qr_max_u64(r->text_bytes + bytes, 2 * p->text_capacity + 256);
        uint8_t *grown = realloc(r->text, capacity);
        if (!grown) return out_of_memory(p);
        r->text = grown;
        p->text_capacity = capacity;
    }
    qr_copy(r->text + r->text_bytes, text, bytes);
    r->text_bytes += bytes;
    return 0;
}

static int find_role(const json_t *value)
{
    static const struct {
        const char *name;
        int role;
    } roles[] = {{"system", QR_CHAT_SYSTEM},
                 {"user", QR_CHAT_USER},
                 {"assistant", QR_CHAT_ASSISTANT},
                 {"tool", QR_CHAT_TOOL},
                 {"developer", QR_CHAT_DEVELOPER}};
    for (size_t i = 0; i < QR_COUNT(roles); i++)
        if (is_text(value, roles[i].name)) return roles[i].role;
    return -1;
}

/* Parts of a content are joined without anything between them. */
static int add_parts(parse_t *p, const char *param, const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_string(type)) return invalid(p, param, "a content part must be an object with a type");
        if (!is_text(type, "text")) {
            qr_http_error_invalid(p->error, param, "content parts of type '%s' are unsupported; only text is served",
                                  show(json_string_value(type), json_string_length(type)).text);
            return -QR_E_INVALID;
        }
        if (!json_is_string(text)) return invalid(p, param, "a text part must have a string named text");
        int error = add_text(p, json_string_value(text), json_string_length(text));
        if (error) return error;
    }
    return 0;
}

static int add_message(parse_t *p, size_t index, const json_t *message)
{
    qr_http_request_t *r = p->request;
    char param[64];
    snprintf(param, sizeof param, "messages[%zu]", index);
    if (!json_is_object(message)) return invalid(p, param, "a message must be an object");
    snprintf(param, sizeof param, "messages[%zu].role", index);
    int role = find_role(json_object_get(message, "role"));
    if (role < 0) return invalid(p, param, "role must be system, developer, user, assistant or tool");
    snprintf(param, sizeof param, "messages[%zu].content", index);
    const json_t *content = json_object_get(message, "content");
    size_t before = r->text_bytes;
    int error = 0;
    if (json_is_string(content))
        error = add_text(p, json_string_value(content), json_string_length(content));
    else if (json_is_array(content))
        error = add_parts(p, param, content);
    else if ((content && !json_is_null(content)) || role != QR_CHAT_ASSISTANT) /* an answer may have had no text */
        error = invalid(p, param, "content must be a string or an array of text parts");
    if (error) return error;
    r->roles[index] = (uint32_t)role;
    r->lengths[index] = (uint32_t)(r->text_bytes - before);
    r->message_count = (uint32_t)index + 1;
    return 0;
}
static int on_messages(parse_t *p, const char *name, const json_t *value)
{
    qr_http_request_t *r = p->request;
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count == 0) return invalid(p, name, "messages must be an array with at least one message");
    if (count > QR_CHAT_MESSAGES_MAX) return invalid(p, name, "there are more than 2048 messages");
    r->kind = QR_INPUT_CHAT;
    r->roles = calloc(count, sizeof *r->roles);
    r->lengths = calloc(count, sizeof *r->lengths);
    if (!r->roles || !r->lengths) return out_of_memory(p);
    int error = 0;
    for (size_t i = 0; !error && i < count; i++) error = add_message(p, i, json_array_get(value, i));
    if (!error && r->text_bytes > QR_TEXT_BYTES_MAX) error = invalid(p, name, "the messages hold more than 1 MiB of text");
    return error;
}

/* ---- fields whose value must say "off" -------------------------------------------------------------------------------------------- */

static int unsupported(parse_t *p, const char *name)
{
    qr_http_error_invalid(p->error, name, "%s is not supported by this version", name);
    p->error->code = "unsupported";
    return -QR_E_UNSUPPORTED;
}
static int on_refused(parse_t *p, const char *name, const json_t *value)
{
    (void)value;
    return unsupported(p, name);
}
static int on_ignored(parse_t *p, const char *name, const json_t *value)
{
    (void)p, (void)name, (void)value;
    return 0;
}
static int on_one(parse_t *p, const char *name, const json_t *value)
{
    if (!json_is_number(value)) {
        qr_http_error_invalid(p->error, name, "%s must be a number", name);
        return -QR_E_INVALID;
    }
    return json_number_value(value) == 1 ? 0 : unsupported(p, name);
}
static int on_zero(parse_t *p, const char *name, const json_t *value)
{
    if (!json_is_number(value)) {
        qr_http_error_invalid(p->error, name, "%s must be a number", name);
        return -QR_E_INVALID;
    }
    return json_number_value(value) == 0 ? 0 : unsupported(p, name);
}
static int on_false(parse_t *p, const char *name, const json_t *value)
{
    bool flag;
    int error = get_bool(p, name, value, &flag);
    return error ? error : flag ? unsupported(p, name) : 0;
}
static int on_true(parse_t *p, const char *name, const json_t *value)
{
    bool flag;
    int error = get_bool(p, name, value, &flag);
    return error ? error : flag ? 0 : unsupported(p, name);
}
static int on_empty(parse_t *p, const char *name, const json_t *value)
{
    bool empty = (json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0) ||
                 (json_is_string(value) && json_string_length(value) == 0);
    return empty ? 0 : unsupported(p, name);
}
static int on_tool_choice(parse_t *p, const char *name, const json_t *value)
{
    return is_text(value, "none") || is_text(value, "auto") ? 0 : unsupported(p, name);
}
static int on_response_format(parse_t *p, const char *name, const json_t *value)
{
    return is_text(json_object_get(value, "type"), "text") ? 0 : unsupported(p, name);
}
static int on_top_logprobs(parse_t *p, const char *name, const json_t *value)
{
    int64_t number;
    int error = get_integer(p, name, value, 0, 20, &number);
    return error ? error : number ? unsupported(p, name) : 0;
}

enum { CHAT = 1, TEXT = 2, BOTH = 3 };
static const struct field {
    const char *name;
    int where;
    int (*read)(parse_t *p, const char *name, const json_t *value);
} fields[] = {
    {"prompt", TEXT, on_prompt},
    {"messages", CHAT, on_messages},
    {"model", BOTH, on_model},
    {"stream", BOTH, on_stream},
    {"stream_options", BOTH, on_stream_options},
    {"max_tokens", BOTH, on_max_tokens},
    {"max_completion_tokens", BOTH, on_max_tokens},
    {"temperature", BOTH, on_temperature},
    {"top_p", BOTH, on_top_p},
    {"top_k", BOTH, on_top_k},
    {"min_p", BOTH, on_min_p},
    {"seed", BOTH, on_seed},
    {"stop", BOTH, on_stop},
    {"logprobs", BOTH, on_logprobs},
    {"top_logprobs", CHAT, on_top_logprobs},
    {"cache_salt", BOTH, on_cache_salt},
    {"continuation", BOTH, on_continuation},
    {"priority", BOTH, on_priority},
    {"deadline_ms", BOTH, on_deadline},
    {"ignore_eos", BOTH, on_ignore_eos},
    {"return_token_ids", BOTH, on_token_ids},
    /* off only */
    {"n", BOTH, on_one},
    {"best_of", TEXT, on_one},
    {"echo", TEXT, on_false},
    {"suffix", TEXT, on_empty},
    {"presence_penalty", BOTH, on_zero},
    {"frequency_penalty", BOTH, on_zero},
    {"repetition_penalty", BOTH, on_one},
    {"logit_bias", BOTH, on_empty},
    {"stop_token_ids", BOTH, on_empty},
    {"tools", CHAT, on_empty},
    {"functions", CHAT, on_empty},
    {"tool_choice", CHAT, on_tool_choice},
    {"function_call", CHAT, on_tool_choice},
    {"response_format", BOTH, on_response_format},
    {"add_generation_prompt", CHAT, on_true},
    {"continue_final_message", CHAT, on_false},
    {"skip_special_tokens", BOTH, on_true},
    {"add_special_tokens", BOTH, on_true},
    {"chat_template", CHAT, on_refused},
    {"chat_template_name", CHAT, on_refused},
    {"chat_template_kwargs", CHAT, on_refused},
    {"chat_template_args", CHAT, on_refused},
    {"tokenize", CHAT, on_refused},
    /* labels */
    {"user", BOTH, on_ignored},
    {"metadata", BOTH, on_ignored},
    {"store", BOTH, on_ignored},
    {"service_tier", BOTH, on_ignored},
    {"safety_identifier", BOTH, on_ignored},
    {"prompt_cache_key", BOTH, on_ignored},
    {"prompt_cache_retention", BOTH, on_ignored},
    {"parallel_tool_calls", CHAT, on_ignored},
    {"request_id", BOTH, on_ignored},
};

static int read_field(parse_t *p, const char *key, const json_t *value)
{
    int where = p->request->chat ? CHAT : TEXT;
    for (size_t i = 0; i < QR_COUNT(fields); i++) {
        if (!(fields[i].where & where) || strcmp(fields[i].name, key) != 0) continue;
        return json_is_null(value) ? 0 : fields[i].read(p, fields[i].name, value);
    }
    if (json_is_null(value)) return 0;
    shown_t shown = show(key, strlen(key));
    qr_http_error_invalid(p->error, shown.text, "Unrecognized request argument supplied: %s", shown.text);
    return -QR_E_INVALID;
}

static int read_object(parse_t *p, json_t *root)
{
    const char *key;
    json_t *value;
    int error = 0;
    if (!json_is_object(root)) return invalid(p, "", "the body must be a JSON object");
    json_object_foreach(root, key, value)
    {
        error = read_field(p, key, value);
        if (error) return error;
    }
    const char *prompt = p->request->chat ? "messages" : "prompt";
    if (p->request->kind == 0) {
        qr_http_error_invalid(p->error, prompt, "you must provide %s", prompt);
        return -QR_E_INVALID;
    }
    if (p->stream_options && !p->request->stream) return invalid(p, "stream_options", "stream_options is only allowed when stream is true");
    return 0;
}

int qr_http_error_json(qr_http_error_t *error, const struct json_error_t *where)
{
    char text[JSON_ERROR_TEXT_LENGTH];
    snprintf(text, sizeof text, "%s", where->text);
    char *near = strstr(text, " near '"); /* the rest is the user's text */
    if (near) *near = 0;
    if (json_error_code(where) == json_error_out_of_memory) {
        qr_http_error_reason(error, QR_E_MEMORY, (qr_bytes_t){0}, (qr_bytes_t){0}, 1000);
        return -QR_E_MEMORY;
    }
    if (json_error_code(where) == json_error_numeric_overflow) {
        const char *which = strstr(text, "real number") && !QR_MUTANT(897)
                                ? "a number in the body is not from -1.8e308 to 1.8e308"
                                : "a whole number in the body is not from -9223372036854775808 to 9223372036854775807";
        qr_http_error_invalid(error, "", "%s (line %d, byte %d)", which, where->line, where->position);
        return -QR_E_INVALID;
    }
    qr_http_error_invalid(error, "", "the body is not valid JSON: %s (line %d, byte %d)", show(text, strlen(text)).text, where->line,
                          where->position);
    return -QR_E_INVALID;
}

int qr_http_request_parse(const char *body, size_t bytes, bool chat, const qr_http_limits_t *limits, qr_http_request_t *request,
                          qr_http_error_t *error)
{
    const float one = 1;
    memset(request, 0, sizeof *request);
    request->chat = chat;
    memcpy(&request->temperature_bits, &one, 4);
    memcpy(&request->top_p_bits, &one, 4);
    json_error_t where;
    json_t *root = json_loadb(body, bytes, (QR_MUTANT(248) ? 0 : JSON_REJECT_DUPLICATES) | JSON_ALLOW_NUL, &where);
    if (!root) return qr_http_error_json(error, &where);
    parse_t p = {.request = request, .error = error, .limits = limits};
    int result = read_object(&p, root);
    json_decref(root);
    if (result) qr_http_request_done(request);
    return result;
}

void qr_http_request_done(qr_http_request_t *request)
{
    free(request->tokens);
    free(request->text);
    free(request->roles);
    free(request->lengths);
    memset(request, 0, sizeof *request);
}
