/* continuations.c - see continuations.h.
 *
 * A file, numbers little-endian:
 *   0  magic "QRCONT", 0, 2     8  u32 bytes of the file    12  u32 CRC-32C of all that follows
 *  16  u64 created_us          24  u64 expires_us           32  id[16]                48  fingerprint[32]
 *  80  u32 pin                 84  u32 tenant bytes         88  u32 name bytes        92  u32 owner bytes
 *  96  u32 salt bytes         100  u32 tokens              104  u32 text bytes       108  u32 zero
 * 112  scope[32]: root of its chain
 * 144  token ids, tenant, name, owner, salt, text; nothing between or behind them.
 * Version 1 (the byte 7 is 1) had no scope: the token ids begin at 112. It is read, and never written. */
#define _GNU_SOURCE
#include "store/continuations.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/utf8.h"
#include "store/chunk.h"
#include "store/crc32c.h"
#include "store/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_1_BYTES = 112, HEAD_BYTES = 144, NAME_BYTES = 2 * QR_CONTINUATION_ID_BYTES, REPORT_BYTES = 2048 };
enum { FILE_BYTES_MAX = HEAD_BYTES + 4 * QR_CONTEXT_MAX + 4 * 64 + QR_RENDER_BYTES_MAX };
static const char magic[8] = {'Q', 'R', 'C', 'O', 'N', 'T', 0, 2};

struct qr_continuations {
    int folder;
    uint32_t count, most;
    uint8_t *file, *made;          /* [FILE_BYTES_MAX]: what was read last; what is written, maybe from what was read */
    qr_continuation_head_t *heads; /* [most], by time of saving */
    char path[QR_STORE_PATH_BYTES];
    char report[REPORT_BYTES], said[REPORT_BYTES];
};

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}
static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}
static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }
static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

static void name_of(const uint8_t *id, const char *suffix, char to[NAME_BYTES + 16])
{
    for (uint32_t i = 0; i < QR_CONTINUATION_ID_BYTES; i++) snprintf(to + 2 * (size_t)i, 3, "%02x", id[i]);
    snprintf(to + NAME_BYTES, 16, "%s", suffix);
}

static void say(qr_continuations_t *c, const char *name, const char *what)
{
    size_t used = strlen(c->report);
    if (used + 512 > sizeof c->report) return; /* enough was said; the files tell the rest */
    snprintf(c->report + used, sizeof c->report - used, "%.300s/continuations/%.60s: %s\n", c->path, name, what);
}

/* ---- one file ------------------------------------------------------------------------------------------------------------------ */

static bool fits(const qr_continuation_t *x)
{
    const qr_continuation_head_t *h = &x->head;
    return h->token_count && h->token_count <= QR_CONTEXT_MAX && h->text_bytes <= QR_RENDER_BYTES_MAX && x->salt_bytes <= QR_SALT_BYTES_MAX;
}

static uint32_t encode(const qr_continuation_t *x, uint8_t *to)
{
    const qr_continuation_head_t *h = &x->head;
    const struct {
        const void *data;
        size_t bytes;
    } parts[] = {{x->tokens, 4 * (size_t)h->token_count},
                 {h->tenant, strlen(h->tenant)},
                 {h->name, strlen(h->name)},
                 {h->owner, strlen(h->owner)},
                 {x->salt, x->salt_bytes},
                 {x->text, h->text_bytes}};
    memset(to, 0, HEAD_BYTES);
    memcpy(to, magic, sizeof magic);
    put_u64(to + 16, h->created_us);
    put_u64(to + 24, h->expires_us);
    memcpy(to + 32, h->id, sizeof h->id);
    memcpy(to + 48, x->fingerprint, 32);
    const uint32_t numbers[] = {
        h->pin, (uint32_t)parts[1].bytes, (uint32_t)parts[2].bytes, (uint32_t)parts[3].bytes, x->salt_bytes, h->token_count, h->text_bytes};
    for (size_t i = 0; i < QR_COUNT(numbers); i++) put_u32(to + 80 + 4 * i, numbers[i]);
    memcpy(to + 112, x->scope, 32);
    size_t at = HEAD_BYTES;
    for (size_t i = 0; i < QR_COUNT(parts); i++) {
        qr_copy(to + at, parts[i].data, parts[i].bytes);
        at += parts[i].bytes;
    }
    put_u32(to + 8, (uint32_t)at);
    put_u32(to + 12, qr_crc32c(0, to + 16, at - 16));
    return (uint32_t)at;
}

static bool take_string(char *to, const uint8_t **from, uint32_t bytes)
{
    bool plain = !memchr(*from, 0, bytes) && qr_utf8_valid(*from, bytes);
    memcpy(to, *from, bytes);
    to[bytes] = 0;
    *from += bytes;
    return plain;
}

/* Every number is checked before it sizes anything. tokens and text point into bytes. */
static bool decode(const uint8_t *bytes, size_t count, const uint8_t *id, qr_continuation_t *x)
{
    memset(x, 0, sizeof *x);
    if (count < HEAD_1_BYTES || memcmp(bytes, magic, 7) != 0 || get_u32(bytes + 8) != count) return false;
    const size_t start = bytes[7] == 1 && !QR_MUTANT(804) ? HEAD_1_BYTES : HEAD_BYTES;
    if ((bytes[7] != 1 && bytes[7] != magic[7]) || count < start) return false;
    if (get_u32(bytes + 12) != qr_crc32c(0, bytes + 16, count - 16) && !QR_MUTANT(680)) return false;
    qr_continuation_head_t *h = &x->head;
    uint32_t pin = get_u32(bytes + 80), tenant = get_u32(bytes + 84), name = get_u32(bytes + 88), owner = get_u32(bytes + 92);
    x->salt_bytes = get_u32(bytes + 96);
    h->token_count = get_u32(bytes + 100);
    h->text_bytes = get_u32(bytes + 104);
    if (pin > 1 || tenant > QR_CONTINUATION_TENANT_BYTES_MAX || name > QR_CONTINUATION_NAME_BYTES_MAX ||
        owner > QR_CONTINUATION_NAME_BYTES_MAX || !fits(x) || memcmp(bytes + 32, id, sizeof h->id) != 0 ||
        start + 4 * (uint64_t)h->token_count + tenant + name + owner + x->salt_bytes + h->text_bytes != count)
        return false;
    h->created_us = get_u64(bytes + 16);
    h->expires_us = get_u64(bytes + 24);
    h->pin = pin;
    memcpy(h->id, id, sizeof h->id);
    memcpy(x->fingerprint, bytes + 48, 32);
    if (start == HEAD_BYTES) memcpy(x->scope, bytes + HEAD_1_BYTES, 32);
    x->tokens = (const uint32_t *)(const void *)(bytes + start);
    const uint8_t *at = bytes + start + 4 * (size_t)h->token_count;
    bool plain = take_string(h->tenant, &at, tenant);
    plain = take_string(h->name, &at, name) && plain;
    plain = take_string(h->owner, &at, owner) && plain;
    memcpy(x->salt, at, x->salt_bytes);
    x->text = at + x->salt_bytes;
    return plain;
}

static int read_file(qr_continuations_t *c, const char *name, size_t *ret_count)
{
    int fd = openat(c->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT ? -QR_E_NOT_FOUND : -QR_E_IO;
    size_t count = 0;
    ssize_t got = 1;
    while (got > 0 && count < FILE_BYTES_MAX) {
        got = read(fd, c->file + count, FILE_BYTES_MAX - count);
        if (got > 0) count += (size_t)got;
        if (got < 0 && errno == EINTR) got = 1;
    }
    (void)close(fd);
    *ret_count = count;
    return got < 0 ? -QR_E_IO : 0;
}

static void set_aside(qr_continuations_t *c, const char *name)
{
    char to[NAME_BYTES + 16];
    snprintf(to, sizeof to, "%.*s.damaged", NAME_BYTES, name);
    bool moved = renameat(c->folder, name, c->folder, to) == 0;
    say(c, name, moved ? "damaged, set aside as .damaged: what was saved there is lost" : "damaged, and it cannot be renamed");
}

static int load(qr_continuations_t *c, const uint8_t *id, qr_continuation_t *x)
{
    char name[NAME_BYTES + 16];
    size_t count;
    name_of(id, "", name);
    int status = read_file(c, name, &count);
    if (status) return status;
    if (decode(c->file, count, id, x)) return 0;
    set_aside(c, name);
    return -QR_E_FORMAT;
}

/* The file under its final name, durable (C1). 0 or a negative code; then it is not there. */
static int store(qr_continuations_t *c, const qr_continuation_t *x)
{
    char name[NAME_BYTES + 16], temporary[NAME_BYTES + 16];
    name_of(x->head.id, "", name);
    name_of(x->head.id, ".new", temporary);
    uint32_t bytes = encode(x, c->made), at = 0;
    int fd = openat(c->folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600), error = 0;
    if (fd < 0) return qr_chunk_error_of(errno);
    while (!error && at < bytes) {
        ssize_t wrote = write(fd, c->made + at, bytes - at);
        if (wrote > 0)
            at += (uint32_t)wrote;
        else if (wrote == 0 || errno != EINTR)
            error = wrote == 0 ? EIO : errno;
    }
    if (!error && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    if (!error && renameat(c->folder, temporary, c->folder, QR_MUTANT(681) ? temporary : name) != 0) error = errno;
    if (!error && fsync(c->folder) != 0) { /* it may or may not be there after a crash: it is not relied on */
        error = errno;
        (void)unlinkat(c->folder, name, 0);
    }
    if (error) (void)unlinkat(c->folder, temporary, 0);
    return error ? qr_chunk_error_of(error) : 0;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------ */

static bool expired(const qr_continuation_head_t *h, uint64_t now_us)
{
    return h->expires_us && now_us >= h->expires_us && !QR_MUTANT(682);
}

static void forget(qr_continuations_t *c, uint32_t i)
{
    c->count--;
    memmove(c->heads + i, c->heads + i + 1, (c->count - i) * sizeof *c->heads);
}

static int unlink_one(qr_continuations_t *c, uint32_t i)
{
    char name[NAME_BYTES + 16];
    name_of(c->heads[i].id, "", name);
    if (!QR_MUTANT(683) && unlinkat(c->folder, name, 0) != 0 && errno != ENOENT) return -QR_E_IO;
    forget(c, i);
    return 0;
}

/* C2 */
static void sweep(qr_continuations_t *c, uint64_t now_us)
{
    for (uint32_t i = c->count; i--;)
        if (expired(&c->heads[i], now_us)) (void)unlink_one(c, i);
}

static int find(const qr_continuations_t *c, const uint8_t *id, const char *tenant, uint64_t now_us)
{
    for (uint32_t i = 0; i < c->count; i++) {
        const qr_continuation_head_t *h = &c->heads[i];
        if (memcmp(h->id, id, sizeof h->id) != 0) continue;
        return (strcmp(h->tenant, tenant) != 0 && !QR_MUTANT(684)) || expired(h, now_us) ? -1 : (int)i;
    }
    return -1;
}

static void insert(qr_continuations_t *c, const qr_continuation_head_t *h)
{
    uint32_t at = c->count++;
    for (; at && c->heads[at - 1].created_us > h->created_us; at--) c->heads[at] = c->heads[at - 1];
    c->heads[at] = *h;
}

static bool parse_id(const char *name, uint8_t *id)
{
    if (strspn(name, "0123456789abcdef") != NAME_BYTES) return false;
    for (uint32_t i = 0; i < QR_CONTINUATION_ID_BYTES; i++) {
        const char digits[3] = {name[2 * i], name[2 * i + 1], 0};
        id[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return true;
}

static void take_entry(qr_continuations_t *c, const char *name)
{
    uint8_t id[QR_CONTINUATION_ID_BYTES];
    qr_continuation_t x;
    if (!parse_id(name, id)) return;
    if (!strcmp(name + NAME_BYTES, ".new")) {
        (void)unlinkat(c->folder, name, 0); /* never acknowledged */
        return;
    }
    if (name[NAME_BYTES]) return;
    if (c->count == c->most) {
        say(c, name, "more than --continuations-max allows: not served; raise it, or remove files");
        return;
    }
    int status = load(c, id, &x);
    if (!status)
        insert(c, &x.head);
    else if (status != -QR_E_FORMAT)
        say(c, name, "cannot be read");
}

static int scan(qr_continuations_t *c)
{
    int fd = dup(c->folder);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        if (fd >= 0) (void)close(fd);
        return -QR_E_IO;
    }
    rewinddir(folder);
    for (struct dirent *entry; (entry = readdir(folder));) take_entry(c, entry->d_name);
    (void)closedir(folder);
    return 0;
}

int qr_continuations_open(const char *store_path, uint32_t most, qr_continuations_t **ret_continuations, char *message,
                          size_t message_bytes)
{
    qr_continuations_t *c = calloc(1, sizeof *c);
    int root = open(store_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status = -QR_E_MEMORY;
    if (c) {
        c->folder = -1;
        c->most = qr_min_u32(most, QR_CONTINUATIONS_MAX);
        c->heads = calloc(c->most + 1, sizeof *c->heads);
        c->file = malloc(FILE_BYTES_MAX);
        c->made = malloc(FILE_BYTES_MAX);
        snprintf(c->path, sizeof c->path, "%s", store_path);
        if (c->heads && c->file && c->made) status = root < 0 ? -QR_E_IO : qr_store_subfolder(root, "continuations", &c->folder);
        if (!status) status = scan(c);
    }
    if (root >= 0) (void)close(root);
    if (status) {
        snprintf(message, message_bytes, "%s/continuations: %s", store_path, qr_error_sentence(status));
        qr_continuations_close(&c);
        return status;
    }
    *ret_continuations = c;
    return 0;
}

void qr_continuations_close(qr_continuations_t **continuations)
{
    qr_continuations_t *c = *continuations;
    if (!c) return;
    if (c->folder >= 0) (void)close(c->folder);
    free(c->heads);
    free(c->file);
    free(c->made);
    free(c);
    *continuations = NULL;
}

const char *qr_continuations_report(qr_continuations_t *c)
{
    memcpy(c->said, c->report, sizeof c->said);
    c->report[0] = 0;
    return c->said;
}

uint32_t qr_continuations_count(const qr_continuations_t *c) { return c->count; }

int qr_continuations_put(qr_continuations_t *c, const qr_continuation_t *x, uint64_t now_us)
{
    if (!fits(x)) return -QR_E_LIMIT;
    if (x->head.pin && x->head.expires_us) return -QR_E_INVALID; /* C4 */
    for (uint32_t i = 0; i < c->count; i++)
        if (!memcmp(c->heads[i].id, x->head.id, sizeof x->head.id)) return -QR_E_IN_USE;
    if (c->count >= c->most) sweep(c, now_us);
    if (c->count >= c->most && !(QR_MUTANT(685) && c->count && unlink_one(c, 0) == 0)) return -QR_E_NO_SPACE;
    int status = store(c, x);
    if (!status) insert(c, &x->head);
    return status;
}

int qr_continuations_get(qr_continuations_t *c, const uint8_t id[QR_CONTINUATION_ID_BYTES], const char *tenant, uint64_t now_us,
                         qr_continuation_t *ret_continuation)
{
    int at = find(c, id, tenant, now_us);
    if (at < 0) return -QR_E_NOT_FOUND;
    int status = load(c, id, ret_continuation);
    if (status == -QR_E_FORMAT || status == -QR_E_NOT_FOUND) forget(c, (uint32_t)at);
    return status;
}

int qr_continuations_drop(qr_continuations_t *c, const uint8_t id[QR_CONTINUATION_ID_BYTES], const char *tenant, uint64_t now_us)
{
    int at = find(c, id, tenant, now_us);
    if (at < 0) return -QR_E_NOT_FOUND;
    int status = unlink_one(c, (uint32_t)at);
    return !status && fsync(c->folder) != 0 ? -QR_E_IO : status;
}

const qr_continuation_head_t *qr_continuations_next(const qr_continuations_t *c, const char *tenant, uint64_t now_us, uint32_t *at)
{
    while (*at < c->count) {
        const qr_continuation_head_t *h = &c->heads[(*at)++];
        if ((!tenant || !strcmp(h->tenant, tenant)) && !expired(h, now_us)) return h;
    }
    return NULL;
}
