/* link: qr_model */
/* tokenizer.c - how fast text becomes ids, and the small tool that tests/oracle/tokenizer.py drives.
 *
 *   bench_tokenizer [--tiny] [MODEL.gguf]   MB/s over generated text (and long runs of one character)
 *   bench_tokenizer --encode MODEL.gguf     reads records (u32 bytes, text) from stdin, prints each one's ids on a line
 *   bench_tokenizer --chat MODEL.gguf       reads records (u32 messages, then u32 role, u32 bytes, text each), prints ids likewise */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/base.h"
#include "base/error.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

enum { TEXT_BYTES = 64 << 20 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void print_ids(const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) printf("%s%u", i ? " " : "", ids[i]);
    putchar('\n');
}

static int encode_records(qr_tokenizer_t *tokenizer, char *text, uint32_t *ids)
{
    uint32_t bytes;
    while (fread(&bytes, 4, 1, stdin) == 1) {
        if (bytes > TEXT_BYTES || fread(text, 1, bytes, stdin) != bytes) return 1;
        size_t count = 0;
        int error = qr_tokenizer_encode(tokenizer, text, bytes, false, ids, TEXT_BYTES, &count);
        if (error)
            printf("error %s\n", qr_error_name(error));
        else
            print_ids(ids, count);
    }
    return 0;
}

static int chat_records(qr_tokenizer_t *tokenizer, char *text, uint32_t *ids)
{
    static uint32_t roles[QR_CHAT_MESSAGES_MAX], lengths[QR_CHAT_MESSAGES_MAX];
    uint32_t messages;
    while (fread(&messages, 4, 1, stdin) == 1) {
        if (messages > QR_CHAT_MESSAGES_MAX) return 1;
        size_t used = 0, count = 0;
        for (uint32_t i = 0; i < messages; i++) {
            if (fread(&roles[i], 4, 1, stdin) != 1 || fread(&lengths[i], 4, 1, stdin) != 1 || lengths[i] > TEXT_BYTES - used) return 1;
            if (fread(text + used, 1, lengths[i], stdin) != lengths[i]) return 1;
            used += lengths[i];
        }
        char message[300];
        int error = qr_tokenizer_chat(tokenizer, roles, lengths, messages, text, ids, TEXT_BYTES, &count, message, sizeof message);
        if (error)
            printf("error %s\n", message);
        else
            print_ids(ids, count);
    }
    return 0;
}

/* Words of English and code shape, drawn with a fixed seed. */
static size_t make_text(char *text, size_t bytes)
{
    static const char *const words[] = {
        "the",  "of",       " and", "page", "Tokens",       "int",  "(",    ");\n",   "    ",   "return",
        "0x1f", "42",       ",",    ".",    "continuation", "\n\n", "über", "日本語", "привет", "\xF0\x9F\x98\x80",
        "'s",   "HTTP/1.1", "_",    "=="};
    uint64_t state = 1;
    size_t used = 0;
    while (used + 32 < bytes) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const char *word = words[(state >> 33) % QR_COUNT(words)];
        if (state >> 63) text[used++] = ' ';
        memcpy(text + used, word, strlen(word));
        used += strlen(word);
    }
    return used;
}

static void measure(qr_tokenizer_t *tokenizer, const char *name, const char *text, size_t bytes, uint32_t *ids, int repeats)
{
    double best = 1e9;
    size_t count = 0;
    for (int i = 0; i < repeats; i++) {
        double start = now_s();
        count = 0;
        if (qr_tokenizer_encode(tokenizer, text, bytes, false, ids, TEXT_BYTES, &count)) exit(1);
        double took = now_s() - start;
        if (took < best) best = took;
    }
    printf("%-24s %9zu bytes %9zu ids %8.2f ms %8.1f MB/s\n", name, bytes, count, best * 1e3, (double)bytes / best / 1e6);
}

/* Opens a file for its vocabulary alone: no weights need to be in it. */
static int open_vocabulary(const char *path, qr_model_t *model, qr_tokenizer_t **ret_tokenizer, char *message, size_t message_bytes)
{
    static char template[65536];
    qr_gguf_string_t text = {"", 0};
    int error = qr_gguf_open(path, &model->file, message, message_bytes);
    if (error) return error;
    snprintf(model->path, sizeof model->path, "%s", path);
    (void)qr_gguf_get_string(model->file, "tokenizer.chat_template", &text, message, message_bytes);
    snprintf(template, sizeof template, "%.*s", (int)text.bytes, text.data);
    model->chat_template = template;
    model->bos_token = QR_TOKEN_NONE;
    (void)qr_gguf_get_u32(model->file, "tokenizer.ggml.bos_token_id", &model->bos_token, message, message_bytes);
    (void)qr_gguf_get_bool(model->file, "tokenizer.ggml.add_bos_token", &model->add_bos, message, message_bytes);
    return qr_tokenizer_new(model, ret_tokenizer, message, message_bytes);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 && argv[1][0] == '-' ? argv[1] : "";
    const char *path = argc > 1 && argv[argc - 1][0] != '-' ? argv[argc - 1] : getenv("QUIRE_MODEL");
    char message[512];
    static qr_model_t model;
    qr_tokenizer_t *tokenizer;
    if (!path) {
        puts("bench_tokenizer: skipped, needs a model file (argument or QUIRE_MODEL)");
        return 0;
    }
    double start = now_s();
    if (open_vocabulary(path, &model, &tokenizer, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        return 2;
    }
    double opened = now_s() - start;
    char *text = malloc(TEXT_BYTES);
    uint32_t *ids = malloc((size_t)TEXT_BYTES * sizeof *ids);
    if (!text || !ids) return 1;
    int result = 0;
    if (!strcmp(mode, "--encode")) {
        result = encode_records(tokenizer, text, ids);
    } else if (!strcmp(mode, "--chat")) {
        result = chat_records(tokenizer, text, ids);
    } else {
        bool tiny = !strcmp(mode, "--tiny");
        printf("open and build tables: %.1f ms\n", opened * 1e3);
        measure(tokenizer, "mixed text", text, make_text(text, tiny ? 65536 : 16 << 20), ids, tiny ? 1 : 3);
        static const char *const runs[] = {"a", "^", " ", "Z", "0", "。"};
        for (size_t i = 0; i < QR_COUNT(runs); i++) {
            size_t one = strlen(runs[i]), bytes = (tiny ? 10000 : 1000000) * one;
            for (size_t at = 0; at < bytes; at += one) memcpy(text + at, runs[i], one);
            char name[32];
            snprintf(name, sizeof name, "run of %s", runs[i]);
            measure(tokenizer, name, text, bytes, ids, 1);
        }
    }
    free(text);
    free(ids);
    qr_tokenizer_destroy(&tokenizer);
    qr_gguf_close(&model.file);
    return result;
}
