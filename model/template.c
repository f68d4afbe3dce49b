/* template.c - recognises ChatML-shaped templates and renders them.
 *
 * The source is cut into words (tags, names, texts); a template is known when its words follow this shape, where LIT is any fixed
 * text, in quotes or bare between tags:
 *
 *     [if not add_generation_prompt is defined; set add_generation_prompt = false; endif]
 *     [LIT]
 *     for message in messages
 *         [if loop.first and messages[0].role != 'system'; LIT; endif]
 *         [LIT] message.role LIT message.content [LIT]
 *     endfor
 *     [LIT]
 *     if add_generation_prompt; LIT; endif
 *
 * Subscripts and dots are the same; neighbouring fixed texts are one. White space around tags follows the reference renderer with
 * trim_blocks and lstrip_blocks on. */
#include "model/template.h"

#include "base/error.h"
#include "base/mutant.h"
#include "messages/message.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { SOURCE_BYTES_MAX = 65536, WORDS_MAX = 512 };
enum { WORD_END, WORD_OPEN, WORD_CLOSE, WORD_NAME, WORD_TEXT, WORD_SIGN }; /* OPEN, CLOSE: of a {% %} block; {{ }} leaves only + signs */

typedef struct word {
    int kind;
    size_t first, bytes; /* in qr_template.bytes */
} word_t;

typedef struct literal {
    size_t first, bytes;
} literal_t;

struct qr_template {
    char *bytes; /* fixed texts, unescaped, and names */
    size_t used, capacity;
    word_t words[WORDS_MAX];
    size_t word_count, at;
    literal_t before_all, missing_system, before_role, before_content, after_content, after_all, opening;
    bool has_missing_system;
};

static bool add_word(qr_template_t *t, int kind, size_t first)
{
    if (t->word_count == WORDS_MAX) return false;
    t->words[t->word_count++] = (word_t){kind, first, t->used - first};
    return true;
}
static void add_byte(qr_template_t *t, char byte)
{
    qr_assert(t->used < t->capacity); /* every source byte adds at most one */
    t->bytes[t->used++] = byte;
}

/* A quoted text from source[*at] on. */
static bool read_quoted(qr_template_t *t, const char *source, size_t *at)
{
    char quote = source[(*at)++];
    size_t first = t->used;
    for (; source[*at] && source[*at] != quote; (*at)++) {
        char byte = source[*at];
        if (byte == '\\') {
            byte = source[++*at];
            if (byte == 'n')
                byte = '\n';
            else if (byte == 't')
                byte = '\t';
            else if (byte == 'r')
                byte = '\r';
            else if (byte != '\\' && byte != '\'' && byte != '"')
                return false;
        }
        add_byte(t, byte);
    }
    if (!source[*at]) return false;
    (*at)++;
    return add_word(t, WORD_TEXT, first);
}

static bool read_name(qr_template_t *t, const char *source, size_t *at)
{
    size_t first = t->used;
    while (isalnum((unsigned char)source[*at]) || source[*at] == '_') add_byte(t, source[(*at)++]);
    return add_word(t, WORD_NAME, first);
}

/* The words of one tag, from behind its opening to behind its closing; *ret_trim: the closing has a minus. */
static bool read_tag(qr_template_t *t, const char *source, size_t *at, char closing, bool *ret_trim)
{
    for (;;) {
        while (isspace((unsigned char)source[*at])) (*at)++;
        char byte = source[*at];
        if (!byte) return false;
        *ret_trim = byte == '-' && source[*at + 1] == closing && source[*at + 2] == '}';
        if (*ret_trim || (byte == closing && source[*at + 1] == '}')) {
            *at += *ret_trim ? 3 : 2;
            return true;
        }
        if (byte == '\'' || byte == '"') {
            if (!read_quoted(t, source, at)) return false;
        } else if (isalnum((unsigned char)byte) || byte == '_') {
            if (!read_name(t, source, at)) return false;
        } else {
            size_t first = t->used;
            add_byte(t, byte);
            (*at)++;
            if (byte == '!' && source[*at] == '=') add_byte(t, source[(*at)++]);
            if (!add_word(t, WORD_SIGN, first)) return false;
        }
    }
}

/* A bare text up to the next tag, with the white space rules applied. after_block: a block tag stands before it; trim: its closing
 * has a minus. */
static bool read_bare(qr_template_t *t, const char *source, size_t *at, bool after_block, bool trim)
{
    size_t first = t->used, from = *at, to = from;
    while (source[to] && !(source[to] == '{' && (source[to + 1] == '%' || source[to + 1] == '{' || source[to + 1] == '#'))) to++;
    *at = to;
    if (trim) {
        while (from < to && isspace((unsigned char)source[from])) from++;
    } else if (after_block && from < to && source[from] == '\n' && !QR_MUTANT(456)) {
        from++;
    }
    if (source[to] && source[to + 2] == '-') {
        while (to > from && isspace((unsigned char)source[to - 1])) to--;
    } else if (source[to] && source[to + 1] == '%') {
        size_t line = to;
        while (line > from && (source[line - 1] == ' ' || source[line - 1] == '\t')) line--;
        if (line == 0 || source[line - 1] == '\n') to = line;
    } else if (!source[to] && to > from && source[to - 1] == '\n') {
        to--; /* the renderer drops one new line at the end */
    }
    if (from == to) return true;
    while (from < to) add_byte(t, source[from++]);
    return add_word(t, WORD_TEXT, first);
}

static bool read_words(qr_template_t *t, const char *source)
{
    bool after_block = false, trim = false;
    for (size_t at = 0;;) {
        if (!read_bare(t, source, &at, after_block, trim)) return false;
        if (!source[at]) return add_word(t, WORD_END, t->used);
        bool block = source[at + 1] == '%';
        if (!block && source[at + 1] != '{') return false; /* a comment: not one of ours */
        at += source[at + 2] == '-' ? 3 : 2;
        if (block && !add_word(t, WORD_OPEN, t->used)) return false;
        if (!read_tag(t, source, &at, block ? '%' : '}', &trim)) return false;
        if (block && !add_word(t, WORD_CLOSE, t->used)) return false;
        after_block = block;
    }
}

/* ---- the shape ------------------------------------------------------------------------------------------------------ */

static bool word_is(const qr_template_t *t, size_t at, int kind, const char *text)
{
    const word_t *w = &t->words[at];
    return at < t->word_count && w->kind == kind && w->bytes == strlen(text) && !memcmp(t->bytes + w->first, text, w->bytes);
}

/* Takes a sequence of names and signs written with blanks between; "<" and ">" are a block's ends, 'x' a quoted text. */
static bool take(qr_template_t *t, const char *sequence)
{
    size_t at = t->at;
    while (*sequence) {
        char one[32];
        size_t n = strcspn(sequence, " ");
        qr_assert(n < sizeof one);
        memcpy(one, sequence, n);
        one[n] = 0;
        sequence += n + (sequence[n] == ' ');
        int kind = isalnum((unsigned char)one[0]) ? WORD_NAME : WORD_SIGN;
        if (!strcmp(one, "<") || !strcmp(one, ">")) {
            kind = one[0] == '<' ? WORD_OPEN : WORD_CLOSE;
            one[0] = 0;
        } else if (one[0] == '\'') {
            kind = WORD_TEXT;
            one[n - 1] = 0;
            memmove(one, one + 1, n);
        }
        if (!word_is(t, at, kind, one)) return false;
        at++;
    }
    t->at = at;
    return true;
}

/* Takes neighbouring fixed texts, with or without + between, as one; false if there is none. */
static bool take_literal(qr_template_t *t, literal_t *ret_literal)
{
    bool any = false;
    size_t first = t->used;
    for (;;) {
        size_t at = t->at;
        while (any && word_is(t, at, WORD_SIGN, "+")) at++;
        if (t->words[at].kind != WORD_TEXT) break;
        for (size_t i = 0; i < t->words[at].bytes; i++) add_byte(t, t->bytes[t->words[at].first + i]);
        any = true;
        t->at = at + 1;
    }
    if (any) *ret_literal = (literal_t){first, t->used - first};
    return any;
}
static bool take_member(qr_template_t *t, const char *member)
{
    char dotted[64], subscript[64];
    snprintf(dotted, sizeof dotted, "message . %s", member);
    snprintf(subscript, sizeof subscript, "message [ '%s' ]", member);
    while (take(t, "+")) {
    }
    bool taken = take(t, dotted) || take(t, subscript);
    while (taken && take(t, "+")) {
    }
    return taken;
}

static bool take_shape(qr_template_t *t)
{
    if (take(t, "< if not add_generation_prompt is defined >") && !take(t, "< set add_generation_prompt = false > < endif >")) return false;
    (void)take_literal(t, &t->before_all);
    if (!take(t, "< for message in messages >")) return false;
    if (take(t, "< if loop . first and messages [ 0 ] [ 'role' ] != 'system' >") ||
        take(t, "< if loop . first and messages [ 0 ] . role != 'system' >")) {
        t->has_missing_system = true;
        if (!take_literal(t, &t->missing_system) || !take(t, "< endif >")) return false;
    }
    (void)take_literal(t, &t->before_role);
    if (!take_member(t, "role") || !take_literal(t, &t->before_content) || !take_member(t, "content")) return false;
    (void)take_literal(t, &t->after_content);
    if (!take(t, "< endfor >")) return false;
    (void)take_literal(t, &t->after_all);
    if (!take(t, "< if add_generation_prompt >")) return false;
    return take_literal(t, &t->opening) && take(t, "< endif >") && t->words[t->at].kind == WORD_END;
}

int qr_template_new(const char *source, qr_template_t **ret_template, char *message, size_t message_bytes)
{
    static const char supported[] =
        "supported: ChatML-shaped templates (one loop over messages that writes role and content between fixed texts)";
    size_t bytes = strnlen(source, SOURCE_BYTES_MAX + 1);
    if (bytes == 0 || bytes > SOURCE_BYTES_MAX) {
        snprintf(message, message_bytes, "tokenizer.chat_template: %s; %s", bytes ? "longer than 64 KiB" : "the model has none", supported);
        return -QR_E_UNSUPPORTED;
    }
    qr_template_t *t = calloc(1, sizeof *t);
    if (t) t->bytes = malloc(t->capacity = 2 * bytes + 1);
    if (!t || !t->bytes) {
        free(t);
        snprintf(message, message_bytes, "tokenizer.chat_template: not enough memory");
        return -QR_E_MEMORY;
    }
    if (!read_words(t, source) || !take_shape(t)) {
        qr_template_destroy(&t);
        snprintf(message, message_bytes, "tokenizer.chat_template: not a template this version knows; %s", supported);
        return -QR_E_UNSUPPORTED;
    }
    *ret_template = t;
    return 0;
}

void qr_template_destroy(qr_template_t **chat_template)
{
    if (!*chat_template) return;
    free((*chat_template)->bytes);
    free(*chat_template);
    *chat_template = NULL;
}

/* ---- rendering -------------------------------------------------------------------------------------------------------- */

static const char *role_name(uint32_t role)
{
    static const char *const names[] = {"system", "user", "assistant", "tool", "system"};
    return role < QR_COUNT(names) ? names[role] : "user";
}
static bool lacks_system(const qr_template_t *t, const uint32_t *roles, size_t messages)
{
    return t->has_missing_system && messages > 0 && (strcmp(role_name(roles[0]), "system") != 0 || QR_MUTANT(457));
}

size_t qr_template_bytes(const qr_template_t *t, const uint32_t *roles, const uint32_t *lengths, size_t messages)
{
    size_t bytes =
        t->before_all.bytes + t->after_all.bytes + t->opening.bytes + (lacks_system(t, roles, messages) ? t->missing_system.bytes : 0);
    for (size_t i = 0; i < messages; i++)
        bytes += t->before_role.bytes + strlen(role_name(roles[i])) + t->before_content.bytes + lengths[i] + t->after_content.bytes;
    return bytes;
}

static void put(char **to, const char *from, size_t bytes)
{
    qr_copy(*to, from, bytes);
    *to += bytes;
}
static void put_literal(char **to, const qr_template_t *t, literal_t literal) { put(to, t->bytes + literal.first, literal.bytes); }

void qr_template_render(const qr_template_t *t, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text, char *to,
                        qr_template_range_t *contents)
{
    char *begin = to;
    put_literal(&to, t, t->before_all);
    if (lacks_system(t, roles, messages)) put_literal(&to, t, t->missing_system);
    for (size_t i = 0; i < messages; i++) {
        put_literal(&to, t, t->before_role);
        put(&to, role_name(roles[i]), strlen(role_name(roles[i])));
        put_literal(&to, t, t->before_content);
        contents[i] = (qr_template_range_t){(size_t)(to - begin), lengths[i]};
        put(&to, text, lengths[i]);
        text += lengths[i];
        put_literal(&to, t, t->after_content);
    }
    put_literal(&to, t, t->after_all);
    put_literal(&to, t, t->opening);
}
