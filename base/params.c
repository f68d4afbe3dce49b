/* params.c - the configuration table interpreted: defaults, parser with range errors and the nearest name, help, print. */
#include "base/params.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/nearest.h"
#include "base/text.h"

enum { NAME_BYTES_MAX = 48 };
enum { KIND_NUMBER, KIND_CHOICE, KIND_TEXT };
enum { S = QR_AUDIENCE_SERVE, G = QR_AUDIENCE_GENERATE, B = QR_AUDIENCE_BENCH, N = QR_AUDIENCE_NODE };

typedef struct {
    const char *name;
    const char *words; /* NUMBER: unit; CHOICE: a|b|c; TEXT: default */
    const char *sentence;
    uint64_t least, most, standard;
    uint32_t kind, audience;
    size_t offset;
} row_t;

static const row_t rows[] = {
#define NUMBER(name, least, most, default_value, unit, audience, sentence)                                                         \
    {#name, unit, sentence, least, most, default_value, KIND_NUMBER, audience, offsetof(qr_params_t, name)},
#define CHOICE(name, default_value, choices, audience, sentence)                                                                   \
    {#name, choices, sentence, 0, 0, default_value, KIND_CHOICE, audience, offsetof(qr_params_t, name)},
#define TEXT(name, default_value, audience, sentence)                                                                              \
    {#name, default_value, sentence, 0, 0, 0, KIND_TEXT, audience, offsetof(qr_params_t, name)},
#include "base/params.def"
};

static uint64_t *number_of(qr_params_t *params, const row_t *row) { return (uint64_t *)(void *)((uint8_t *)params + row->offset); }
static char *text_of(qr_params_t *params, const row_t *row) { return (char *)params + row->offset; }

void qr_params_init(qr_params_t *params)
{
    memset(params, 0, sizeof *params);
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        if (rows[i].kind == KIND_TEXT) memcpy(text_of(params, &rows[i]), rows[i].words, strlen(rows[i].words));
        else *number_of(params, &rows[i]) = rows[i].standard;
    }
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static char plain(char c) { return c == '-' ? '_' : c; }

static bool name_is(const char *given, const char *name)
{
    while (*given && *name && plain(*given) == *name) given++, name++;
    return *given == 0 && *name == 0;
}

/* The name nearest to what was given among those of the audience; NULL if nothing is near. */
static const char *nearest(const char *given, uint32_t audience)
{
    const char *best = NULL;
    size_t best_distance = 4; /* more than three edits is another word */
    if (strlen(given) >= NAME_BYTES_MAX) return NULL;
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        size_t d = rows[i].audience & audience ? qr_nearest_edits(given, rows[i].name) : SIZE_MAX;
        if (d < best_distance && d < strlen(rows[i].name)) {
            best_distance = d;
            best = rows[i].name;
        }
    }
    return best;
}

static const row_t *row_find(const char *name)
{
    for (size_t i = 0; i < QR_COUNT(rows); i++)
        if (name_is(name, rows[i].name)) return &rows[i];
    return NULL;
}

static void put_option(qr_text_t *text, const char *name)
{
    qr_text_put(text, "--");
    for (; *name; name++) qr_text_put_bytes(text, *name == '_' ? "-" : name, 1);
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

/* Decimal digits only. 0, -QR_E_INVALID (not a number) or -QR_E_LIMIT (past 64 bits). */
static int number_parse(const char *value, uint64_t *ret_number)
{
    uint64_t number = 0;
    bool over = false;
    if (*value == 0) return -QR_E_INVALID;
    for (; *value; value++) {
        if (*value < '0' || *value > '9') return -QR_E_INVALID;
        uint64_t digit = (uint64_t)(*value - '0');
        if (number > (UINT64_MAX - digit) / 10) over = true;
        else number = number * 10 + digit;
    }
    if (over) return -QR_E_LIMIT;
    *ret_number = number;
    return 0;
}

static void put_range(qr_text_t *text, const row_t *row)
{
    qr_text_put_u64(text, row->least);
    qr_text_put(text, " to ");
    qr_text_put_u64(text, row->most);
    if (row->words[0]) {
        qr_text_put(text, " ");
        qr_text_put(text, row->words);
    }
}

static int set_number(qr_params_t *params, const row_t *row, const char *value, qr_text_t *message)
{
    uint64_t number = 0;
    int rc = number_parse(value, &number);
    if (rc == 0 && (number < row->least || number > row->most + QR_MUTANT(20))) rc = -QR_E_LIMIT;
    put_option(message, row->name);
    if (rc) {
        qr_text_put(message, rc == -QR_E_LIMIT ? " is out of range: " : " needs a whole number, not ");
        qr_text_put_quoted(message, value, strlen(value), 40);
        qr_text_put(message, "; allowed: ");
        put_range(message, row);
        return rc;
    }
    if (row->offset == offsetof(qr_params_t, page_tokens) && number != 8 && number != 16 && number != 32 && number % 64 != 0) {
        qr_text_put(message, " must be 8, 16, 32, 64 or a multiple of 64");
        return -QR_E_INVALID;
    }
    *number_of(params, row) = number;
    return 0;
}

/* Bytes of the first word of a|b|c. */
static size_t word_bytes(const char *words)
{
    size_t n = 0;
    while (words[n] && words[n] != '|') n++;
    return n;
}

static int set_choice(qr_params_t *params, const row_t *row, const char *value, qr_text_t *message)
{
    uint64_t index = 0;
    for (const char *word = row->words;; index++) {
        size_t n = word_bytes(word);
        if (strlen(value) == n && memcmp(value, word, n) == 0) {
            *number_of(params, row) = index;
            return 0;
        }
        if (word[n] == 0) break;
        word += n + 1;
    }
    put_option(message, row->name);
    qr_text_put(message, " does not know ");
    qr_text_put_quoted(message, value, strlen(value), 40);
    qr_text_put(message, "; choose one of ");
    qr_text_put(message, row->words);
    return -QR_E_INVALID;
}

static int set_text(qr_params_t *params, const row_t *row, const char *value, qr_text_t *message)
{
    size_t length = strlen(value);
    if (length >= QR_PARAM_TEXT_BYTES) {
        put_option(message, row->name);
        qr_text_put(message, " is longer than ");
        qr_text_put_u64(message, QR_PARAM_TEXT_BYTES - 1);
        qr_text_put(message, " bytes");
        return -QR_E_LIMIT;
    }
    memset(text_of(params, row), 0, QR_PARAM_TEXT_BYTES);
    qr_copy(text_of(params, row), value, length);
    return 0;
}

int qr_params_set(qr_params_t *params, const char *name, const char *value, uint32_t audience, char *message, size_t message_bytes)
{
    qr_text_t text;
    qr_text_init(&text, message, message_bytes);
    const row_t *row = row_find(name);
    if (row == NULL || !(row->audience & audience)) {
        const char *near = row ? NULL : nearest(name, audience);
        put_option(&text, name);
        qr_text_put(&text, row ? " is not an option of this command" : " is not an option");
        if (near) {
            qr_text_put(&text, "; did you mean ");
            put_option(&text, near);
            qr_text_put(&text, "?");
        }
        return -QR_E_NOT_FOUND;
    }
    int rc = row->kind == KIND_NUMBER   ? set_number(params, row, value, &text)
             : row->kind == KIND_CHOICE ? set_choice(params, row, value, &text)
                                        : set_text(params, row, value, &text);
    if (rc == 0) qr_text_init(&text, message, message_bytes);
    return rc;
}

/* ---- help and print ------------------------------------------------------------------------------------------------- */

static void put_choice(qr_text_t *text, const row_t *row, uint64_t index)
{
    const char *word = row->words;
    while (index-- && word[word_bytes(word)]) word += word_bytes(word) + 1;
    qr_text_put_bytes(text, word, word_bytes(word));
}

static void put_help_value(qr_text_t *text, const row_t *row)
{
    switch (row->kind) {
    case KIND_NUMBER:
        qr_text_put(text, " (default ");
        qr_text_put_u64(text, row->standard);
        qr_text_put(text, "; ");
        put_range(text, row);
        qr_text_put(text, ")");
        break;
    case KIND_CHOICE:
        qr_text_put(text, " (default ");
        put_choice(text, row, row->standard);
        qr_text_put(text, "; ");
        qr_text_put(text, row->words);
        qr_text_put(text, ")");
        break;
    default:
        if (row->words[0] == 0) break;
        qr_text_put(text, " (default ");
        qr_text_put(text, row->words);
        qr_text_put(text, ")");
    }
}

void qr_params_help(uint32_t audience, qr_text_t *text)
{
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        const row_t *row = &rows[i];
        if (!(row->audience & audience)) continue;
        size_t before = text->count;
        qr_text_put(text, "  ");
        put_option(text, row->name);
        qr_text_put(text, row->kind == KIND_NUMBER ? " N " : row->kind == KIND_CHOICE ? " WORD " : " TEXT ");
        while (text->count - before < 28 && !text->cut) qr_text_put(text, " ");
        qr_text_put(text, row->sentence);
        put_help_value(text, row);
        qr_text_put(text, "\n");
    }
}

void qr_params_print(const qr_params_t *params, uint32_t audience, qr_text_t *text)
{
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        const row_t *row = &rows[i];
        const uint8_t *at = (const uint8_t *)params + row->offset;
        uint64_t number;
        if (!(row->audience & audience)) continue;
        memcpy(&number, at, sizeof number);
        qr_text_put(text, row->name);
        qr_text_put(text, " = ");
        if (row->kind == KIND_NUMBER) qr_text_put_u64(text, number);
        else if (row->kind == KIND_CHOICE) put_choice(text, row, number);
        else qr_text_put_quoted(text, at, strlen((const char *)at), QR_PARAM_TEXT_BYTES);
        qr_text_put(text, "\n");
    }
}
