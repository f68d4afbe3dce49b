/* link: qr_model qr_base */
/* tokenizer.c - any bytes as text, as a chat, and as a template: no crash, and the ids spell exactly the bytes that have tokens.
 * The vocabulary has a token for every byte but one, some merges, and two control tokens that a text must never become. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/pretokenize.h"
#include "model/template.h"
#include "model/tokenizer.h"

enum { BYTES = 256, MERGES = 6, TOKENS = BYTES + MERGES + 2, CONTROL = BYTES + MERGES, BYTES_MAX = 1 << 14, ABSENT = 'Q' };

static qr_tokenizer_t *tokenizers[4];
static char texts[TOKENS][16], spelled[TOKENS][16];
static size_t spelled_bytes[TOKENS];
static uint32_t ids[2 * BYTES_MAX + 64];

static void expect(bool fact, const char *what)
{
    if (fact) return;
    fprintf(stderr, "tokenizer fuzz: %s\n", what);
    abort();
}

static void open_all(void)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "none"};
    static const char chatml[] = "{% for message in messages %}{{'<s>' + message['role'] + '\n' + message['content'] + '<x>'}}{% endfor %}"
                                 "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}";
    static const uint8_t pairs[MERGES][2] = {{'a', 'b'}, {' ', ' '}, {'\n', '\n'}, {' ', 'a'}, {0xC3, 0xA9}, {'a', 'a'}};
    qr_token_text_t table[TOKENS], merges[MERGES];
    static char merge_texts[MERGES][16];
    uint8_t types[TOKENS];
    int next = 256;
    for (int byte = 0; byte < BYTES; byte++) {
        bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        texts[byte][qr_utf8_write((uint32_t)(prints ? byte : next++), (uint8_t *)texts[byte])] = 0;
        spelled[byte][0] = (char)byte;
        spelled_bytes[byte] = 1;
    }
    strcpy(texts[ABSENT], "\xC8\x80"); /* outside the alphabet */
    for (int m = 0; m < MERGES; m++) {
        snprintf(texts[BYTES + m], 16, "%s%s", texts[pairs[m][0]], texts[pairs[m][1]]);
        snprintf(merge_texts[m], 16, "%s %s", texts[pairs[m][0]], texts[pairs[m][1]]);
        memcpy(spelled[BYTES + m], pairs[m], 2);
        spelled_bytes[BYTES + m] = 2;
        merges[m] = (qr_token_text_t){merge_texts[m], strlen(merge_texts[m])};
    }
    strcpy(texts[CONTROL], "<s>");
    strcpy(texts[CONTROL + 1], "<x>");
    for (int i = 0; i < TOKENS; i++) {
        table[i] = (qr_token_text_t){texts[i], strlen(texts[i])};
        types[i] = i >= CONTROL ? QR_TOKEN_TYPE_CONTROL : QR_TOKEN_TYPE_NORMAL;
    }
    for (int i = 0; i < 4; i++) {
        char message[300];
        const qr_tokenizer_tables_t tables = {.name = "fuzz",
                                              .pre = pres[i],
                                              .chat_template = chatml,
                                              .texts = table,
                                              .types = types,
                                              .merges = merges,
                                              .count = TOKENS,
                                              .merge_count = MERGES,
                                              .bos_token = QR_TOKEN_NONE};
        expect(qr_tokenizer_new_from(&tables, &tokenizers[i], message, sizeof message) == 0, message);
    }
}

static void check_text(qr_tokenizer_t *t, const char *text, size_t bytes)
{
    size_t count = 0, at = 0;
    int error = qr_tokenizer_encode(t, text, bytes, false, ids, QR_COUNT(ids), &count);
    expect((error == 0) == qr_utf8_valid(text, bytes), "valid UTF-8 and success differ");
    for (size_t i = 0; i < count; i++) {
        expect(ids[i] < CONTROL, "a text became a control token");
        for (size_t j = 0; j < spelled_bytes[ids[i]]; j++) {
            while (at < bytes && text[at] == ABSENT) at++;
            expect(at < bytes && text[at] == spelled[ids[i]][j], "ids do not spell the text");
            at++;
        }
    }
    while (!error && at < bytes && text[at] == ABSENT) at++;
    expect(error || at == bytes, "the end of the text is lost");
}

static void check_chat(qr_tokenizer_t *t, const char *text, size_t bytes)
{
    uint32_t roles[3] = {QR_CHAT_USER, QR_CHAT_ASSISTANT, QR_CHAT_TOOL}, lengths[3] = {(uint32_t)bytes / 3, (uint32_t)bytes / 3, 0};
    lengths[2] = (uint32_t)bytes - lengths[0] - lengths[1];
    char message[400];
    size_t count = 0, starts = 0, ends = 0;
    if (qr_tokenizer_chat(t, roles, lengths, 3, text, ids, QR_COUNT(ids), &count, message, sizeof message)) return;
    for (size_t i = 0; i < count; i++) {
        starts += ids[i] == CONTROL;
        ends += ids[i] == CONTROL + 1;
    }
    expect(starts == 4 && ends == 3, "a content became a control token");
}

static void check_template(const char *source, size_t bytes)
{
    char copy[BYTES_MAX + 1], message[400], *to;
    memcpy(copy, source, bytes);
    copy[bytes] = 0;
    qr_template_t *t = NULL;
    if (qr_template_new(copy, &t, message, sizeof message)) return;
    const uint32_t role = QR_CHAT_USER, length = 2;
    qr_template_range_t range;
    size_t need = qr_template_bytes(t, &role, &length, 1);
    to = malloc(need); /* exactly: a byte more is seen */
    qr_template_render(t, &role, &length, 1, "hi", to, &range);
    expect(range.first + range.bytes <= need && !memcmp(to + range.first, "hi", 2), "the content is not where it is said to be");
    free(to);
    qr_template_destroy(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0]) open_all();
    if (size < 1 || size > BYTES_MAX) return 0;
    qr_tokenizer_t *t = tokenizers[data[0] & 3];
    const char *text = (const char *)data + 1;
    if (data[0] & 4)
        check_chat(t, text, size - 1);
    else if (data[0] & 8)
        check_template(text, size - 1);
    else
        check_text(t, text, size - 1);
    size_t count = 0;
    (void)qr_tokenizer_encode(t, text, size - 1, true, ids, QR_COUNT(ids), &count);
    return 0;
}
