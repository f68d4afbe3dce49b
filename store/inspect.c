/* inspect.c - prints a chunk file (inspect.h). The only file of this room that writes to the terminal. */
#include "store/inspect.h"

#include "base/error.h"
#include "base/text.h"
#include "store/chunk.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct printer {
    bool json, any; /* any: a member was printed */
} printer_t;

static void put(printer_t *p, const char *name, const char *text, bool quoted)
{
    if (!p->json) {
        printf("%-16s%s\n", name, text);
        return;
    }
    printf("%s\"%s\":", p->any ? "," : "{", name);
    p->any = true;
    if (quoted) putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (quoted && (*c < 32 || *c > 126 || *c == '"' || *c == '\\'))
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    if (quoted) putchar('"');
}
static void put_number(printer_t *p, const char *name, uint64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    put(p, name, text, false);
}
static void put_hex(printer_t *p, const char *name, const uint8_t *bytes, size_t count)
{
    char shown[65];
    qr_text_t text;
    qr_text_init(&text, shown, sizeof shown);
    qr_text_put_hex(&text, bytes, count);
    put(p, name, shown, true);
}
static void put_header(printer_t *p, const qr_chunk_header_t *h)
{
    put(p, "kind", h->tail ? "tail" : "chunk", true);
    put_hex(p, "fingerprint", h->fingerprint, 32);
    put_hex(p, "parent", h->parent, 32);
    put_hex(p, "chain", h->chain, 32);
    put_number(p, "start", h->start);
    put_number(p, "count", h->count);
    put_number(p, "group", h->group);
    put(p, "extent", h->extent == QR_CHUNK_EXTENT_WINDOW ? "window" : "whole prefix", true);
    put_number(p, "shard", h->shard);
    put_number(p, "shards", h->shards);
    put_number(p, "members", h->members);
    put_number(p, "row_bytes", h->row_bytes);
    put_number(p, "payload_offset", qr_chunk_payload_offset(h));
    put_number(p, "payload_bytes", qr_chunk_payload_bytes(h));
    put_hex(p, "xxh3_128", h->digest, 16);
}

/* ---- which files are ours ---------------------------------------------------------------------------------------------------------- */

static bool hex_name(const char *name, uint8_t id[32])
{
    for (int i = 0; i < 64; i++) {
        int digit = name[i] >= '0' && name[i] <= '9' ? name[i] - '0' : name[i] >= 'a' && name[i] <= 'f' ? name[i] - 'a' + 10 : -1;
        if (digit < 0) return false;
        id[i / 2] = (uint8_t)(id[i / 2] << 4 | digit);
    }
    return name[64] == 0;
}
/* The content id that a file's name spells, if it does: 64 digits, or a tail's OWNER-ID. */
static bool name_id(const char *path, uint8_t id[32])
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return hex_name(name, id) || (strlen(name) == 97 && name[32] == '-' && hex_name(name + 33, id));
}
/* The header, where it is whole. */
static qr_chunk_reason_t header_read(const char *path, bool *ret_magic, qr_chunk_header_t *ret_header)
{
    uint8_t bytes[QR_CHUNK_HEADER_BYTES];
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *ret_magic = false;
    if (file < 0) return QR_CHUNK_IO;
    ssize_t count = fstat(file, &status) == 0 && S_ISREG(status.st_mode) ? pread(file, bytes, sizeof bytes, 0) : -1;
    (void)close(file);
    if (count < 0) return QR_CHUNK_IO;
    *ret_magic = count >= 8 && memcmp(bytes, "QRCHUNK", 8) == 0;
    return qr_chunk_header_decode(bytes, (size_t)count, (uint64_t)status.st_size, ret_header);
}

bool qr_chunk_inspect_wants(int count, char **word)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(word[i], "--help") || !strcmp(word[i], "-h")) return false; /* one help for both */
    for (int i = 0; i < count; i++) {
        uint8_t id[32];
        qr_chunk_header_t header;
        bool magic;
        if (word[i][0] == '-') continue;
        (void)header_read(word[i], &magic, &header);
        return magic || name_id(word[i], id);
    }
    return false;
}

/* ---- the command -------------------------------------------------------------------------------------------------------------------- */

static int inspect(printer_t *p, const char *path)
{
    qr_chunk_header_t header;
    qr_chunk_verdict_t verdict = {0};
    uint8_t id[32];
    bool magic, named = name_id(path, id);
    int status = qr_chunk_verify(AT_FDCWD, path, named ? id : NULL, &verdict);
    if (status) {
        fprintf(stderr, "%s: %s\n", path, qr_error_sentence(status));
        return 2;
    }
    put(p, "file", path, true);
    if (header_read(path, &magic, &header) == QR_CHUNK_INTACT) put_header(p, &header);
    if (verdict.reason == QR_CHUNK_INTACT || verdict.reason == QR_CHUNK_CONTENT) put_hex(p, "content_id", verdict.id, 32);
    if (named) put_hex(p, "name", id, 32);
    put(p, "verdict", qr_chunk_reason_name(verdict.reason), true);
    put(p, "why", qr_chunk_reason_sentence(verdict.reason), true);
    if (p->json) printf("}\n");
    if (verdict.reason == QR_CHUNK_INTACT) return 0;
    fprintf(stderr, "%s: damaged: %s (%s)\n", path, qr_chunk_reason_sentence(verdict.reason), qr_chunk_reason_name(verdict.reason));
    return 2;
}

int qr_chunk_inspect_main(int count, char **word)
{
    printer_t printer = {0};
    const char *path = NULL;
    for (int i = 0; i < count; i++) {
        if (strcmp(word[i], "--json") == 0) {
            printer.json = true;
        } else if (strcmp(word[i], "--no-fingerprint") == 0) { /* of models; a chunk's is in its header */
        } else if (word[i][0] == '-' || path) {
            fprintf(stderr, "usage: quire inspect CHUNK [--json]\n");
            return 2;
        } else {
            path = word[i];
        }
    }
    if (!path) return 2;
    int status = inspect(&printer, path);
    return fflush(stdout) ? 2 : status;
}
