/* keys.c - see keys.h. */
#define _GNU_SOURCE
#include "actors/io/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mutant.h"
#include "base/sha256.h"

_Static_assert(QR_TENANTS_MAX == 256 && QR_KEYS_MAX == 1024 && QR_KEYS_FILE_BYTES_MAX == 262144, "the sentences say so");
_Static_assert(QR_TENANT_LANES_MAX == 1024 && QR_TENANT_PAGES_MAX == 67108864 && QR_TENANT_TOKENS_PER_S_MAX == 10000000, "these too");
_Static_assert(QR_TENANT_BYTES_MAX == 1125899906842624u, "and this");

/* ---- lines --------------------------------------------------------------------------------------------------------------------- */

/* Where the reader is: a line is `name = value` at a level of indentation. */
typedef struct reader {
    const char *file;
    char *message;
    size_t message_bytes;
    qr_keys_t *keys;
    uint32_t line, tenant_line; /* numbers from 1; where the open tenant began, 0: none */
    uint32_t seen;              /* fields of the open tenant, a bit each */
    uint32_t admin_line;        /* of the newest key's */
    bool version;
    const char *name, *value; /* not ended by NUL */
    size_t name_bytes, value_bytes, indent;
} reader_t;

static int fail_at(const reader_t *r, uint32_t line, int code, const char *expected)
{
    snprintf(r->message, r->message_bytes, "%.200s: line %u: %s", r->file, line, expected);
    return -code;
}
static int fail(const reader_t *r, int code, const char *expected) { return fail_at(r, r->line, code, expected); }

static bool is(const reader_t *r, const char *name) { return r->name_bytes == strlen(name) && !memcmp(r->name, name, r->name_bytes); }

/* Cuts a line into indentation, name and value. *ret_blank: nothing stands there, or a comment. */
static int cut(reader_t *r, const char *at, const char *end, bool *ret_blank)
{
    for (const char *c = at; c < end; c++)
        if ((unsigned char)*c < 32 || (unsigned char)*c > 126)
            return fail(r, QR_E_FORMAT, "expected plain ASCII text, spaces instead of tabs");
    const char *from = at;
    while (from < end && *from == ' ') from++;
    while (end > from && end[-1] == ' ') end--;
    *ret_blank = from == end || *from == '#';
    if (*ret_blank) return 0;
    r->indent = (size_t)(from - at);
    const char *equal = memchr(from, '=', (size_t)(end - from)), *to = equal;
    if (!equal) return fail(r, QR_E_FORMAT, "expected `name = value`");
    while (to > from && to[-1] == ' ') to--;
    r->name = from;
    r->name_bytes = (size_t)(to - from);
    for (from = equal + 1; from < end && *from == ' ';) from++;
    r->value = from;
    r->value_bytes = (size_t)(end - from);
    return 0;
}

/* ---- values -------------------------------------------------------------------------------------------------------------------- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool read_hex(const reader_t *r, uint8_t to[32])
{
    if (r->value_bytes != 64) return false;
    for (size_t i = 0; i < 32; i++) {
        int high = digit_of(r->value[2 * i]), low = digit_of(r->value[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        to[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool read_number(const reader_t *r, uint64_t most, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (!r->value_bytes || r->value_bytes > 18) return false;
    for (size_t i = 0; i < r->value_bytes; i++) {
        if (r->value[i] < '0' || r->value[i] > '9') return false;
        value = value * 10 + (uint64_t)(r->value[i] - '0');
    }
    *ret_value = value;
    return value >= 1 && value <= most;
}

static bool is_name(const char *text, size_t bytes)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    if (!bytes || bytes >= QR_TENANT_NAME_BYTES || *text == '.' || *text == '-') return false;
    for (size_t i = 0; i < bytes; i++)
        if (!memchr(letters, text[i], sizeof letters - 1)) return false;
    return true;
}

/* ---- fields -------------------------------------------------------------------------------------------------------------------- */

enum { SALT, LANES, PAGES, TOKENS_PER_S, BYTES, LIMITS };

static qr_tenant_t *open_tenant(const reader_t *r) { return &r->keys->tenants[r->keys->tenant_count - 1]; }

static int end_tenant(const reader_t *r)
{
    if (!r->tenant_line || r->seen & 1u << SALT) return 0;
    return fail_at(r, r->tenant_line, QR_E_INVALID, "the tenant has no salt; expected `salt = ` and 64 hex digits below it");
}

static int on_tenant(reader_t *r)
{
    int code = end_tenant(r);
    if (code) return code;
    if (!is_name(r->value, r->value_bytes)) return fail(r, QR_E_INVALID, "expected a name of 1 to 31 letters, digits, '-', '_' and '.'");
    if (r->keys->tenant_count == QR_TENANTS_MAX) return fail(r, QR_E_LIMIT, "expected at most 256 tenants");
    for (uint32_t i = 0; i < r->keys->tenant_count; i++) {
        const char *other = r->keys->tenants[i].name;
        if (strlen(other) == r->value_bytes && !memcmp(other, r->value, r->value_bytes))
            return fail(r, QR_E_INVALID, "expected a name that no tenant above has");
    }
    r->keys->tenant_count++;
    memcpy(open_tenant(r)->name, r->value, r->value_bytes);
    r->tenant_line = r->line;
    r->seen = 0;
    return 0;
}

static int on_root(reader_t *r)
{
    uint64_t version;
    if (is(r, "version")) {
        if (r->version || !read_number(r, 1, &version)) return fail(r, QR_E_INVALID, "expected `version = 1`, once");
        r->version = true;
        return 0;
    }
    if (!r->version) return fail(r, QR_E_INVALID, "expected `version = 1` before everything else");
    if (is(r, "tenant")) return on_tenant(r);
    return fail(r, QR_E_INVALID, "expected `tenant = NAME`; what belongs to a tenant is indented by four spaces");
}

static int on_salt(reader_t *r)
{
    static const uint8_t zero[QR_TENANT_SALT_BYTES];
    qr_tenant_t *tenant = open_tenant(r);
    if (!read_hex(r, tenant->salt) || !memcmp(tenant->salt, zero, sizeof zero))
        return fail(r, QR_E_INVALID, "expected a salt of 64 hex digits, not all 0 (`quire keys --bearer NAME` makes one)");
    for (uint32_t i = 0; i + 1 < r->keys->tenant_count && !QR_MUTANT(665); i++)
        if (!memcmp(r->keys->tenants[i].salt, tenant->salt, sizeof tenant->salt))
            return fail(r, QR_E_INVALID, "expected a salt that no tenant above has: the two would share cached state");
    return 0;
}

static int on_key(reader_t *r)
{
    qr_keys_t *keys = r->keys;
    if (keys->key_count == QR_KEYS_MAX) return fail(r, QR_E_LIMIT, "expected at most 1024 keys");
    qr_key_t *key = &keys->keys[keys->key_count];
    if (!read_hex(r, key->digest))
        return fail(r, QR_E_INVALID,
                    "expected the SHA-256 of a bearer key as 64 hex digits, never the key itself (`quire keys --bearer NAME` makes both)");
    for (uint32_t i = 0; i < keys->key_count; i++)
        if (!memcmp(keys->keys[i].digest, key->digest, sizeof key->digest))
            return fail(r, QR_E_INVALID, "expected a key that is not above already");
    key->tenant = keys->tenant_count - 1;
    key->admin = false;
    keys->key_count++;
    r->admin_line = 0;
    return 0;
}

static int on_limit(reader_t *r, uint32_t which)
{
    static const struct {
        uint64_t most;
        const char *expected;
    } limits[LIMITS] = {
        [LANES] = {QR_TENANT_LANES_MAX, "expected a number from 1 to 1024; leave the line out for no bound"},
        [PAGES] = {QR_TENANT_PAGES_MAX, "expected a number from 1 to 67108864; leave the line out for no bound"},
        [TOKENS_PER_S] = {QR_TENANT_TOKENS_PER_S_MAX, "expected a number from 1 to 10000000; leave the line out for no bound"},
        [BYTES] = {QR_TENANT_BYTES_MAX, "expected a number from 1 to 1125899906842624; leave the line out for no bound"},
    };
    qr_tenant_t *tenant = open_tenant(r);
    uint64_t value;
    if (!read_number(r, limits[which].most, &value)) return fail(r, QR_E_INVALID, limits[which].expected);
    switch (which) {
    case LANES: tenant->lanes = (uint32_t)value; break;
    case PAGES: tenant->pages = (uint32_t)value; break;
    case TOKENS_PER_S: tenant->tokens_per_s = (uint32_t)value; break;
    default: tenant->bytes = value; break;
    }
    return 0;
}

static int on_field(reader_t *r)
{
    static const char *const names[LIMITS] = {"salt", "lanes", "pages", "tokens_per_s", "bytes"};
    if (!r->tenant_line) return fail(r, QR_E_INVALID, "expected `tenant = NAME` above what belongs to it");
    if (is(r, "key")) return on_key(r);
    for (uint32_t i = 0; i < LIMITS; i++) {
        if (!is(r, names[i])) continue;
        if (r->seen >> i & 1u) return fail(r, QR_E_INVALID, "expected this field once a tenant");
        r->seen |= 1u << i;
        return i == SALT ? on_salt(r) : on_limit(r, i);
    }
    return fail(r, QR_E_INVALID, "expected one of salt, lanes, pages, tokens_per_s, bytes and key");
}

static int on_admin(reader_t *r, bool behind_key)
{
    uint64_t value;
    if (!behind_key || !is(r, "admin") || r->admin_line || !read_number(r, 1, &value))
        return fail(r, QR_E_INVALID, "expected nothing, or `admin = 1` right below a key");
    r->keys->keys[r->keys->key_count - 1].admin = true;
    r->admin_line = r->line;
    return 0;
}

/* ---- the file ------------------------------------------------------------------------------------------------------------------- */

int qr_keys_parse(const char *name, const void *bytes, size_t count, qr_keys_t *ret_keys, char *message, size_t message_bytes)
{
    reader_t r = {.file = name, .message = message, .message_bytes = message_bytes, .keys = ret_keys};
    memset(ret_keys, 0, sizeof *ret_keys);
    if (count > QR_KEYS_FILE_BYTES_MAX) return fail_at(&r, 1, QR_E_LIMIT, "expected a file of at most 262144 bytes");
    bool behind_key = false;
    int code = 0;
    for (const char *at = bytes, *end = at + count; at < end && !code;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        bool blank = true;
        if (!stop) stop = end;
        r.line++;
        code = cut(&r, at, stop, &blank);
        at = stop == end ? end : stop + 1;
        if (code || blank) continue;
        if (r.indent == 8) {
            code = on_admin(&r, behind_key);
        } else {
            code = r.indent == 0   ? on_root(&r)
                   : r.indent == 4 ? on_field(&r)
                                   : fail(&r, QR_E_FORMAT, "expected an indentation of 0, 4 or 8 spaces");
            behind_key = r.indent == 4 && is(&r, "key");
        }
    }
    if (!code) code = end_tenant(&r);
    if (!code && !ret_keys->key_count)
        code = fail_at(&r, qr_max_u32(r.line, 1), QR_E_INVALID,
                       "the file ends here; expected a tenant with a key (`quire keys --bearer NAME` makes one)");
    if (code) memset(ret_keys, 0, sizeof *ret_keys);
    return code;
}

static int file_failed(int code, const char *path, const char *why, char *message, size_t message_bytes)
{
    snprintf(message, message_bytes, "the keys file %.200s %s", path, why);
    return -code;
}

static int file_unread(const char *path, char *message, size_t message_bytes)
{
    char why[160];
    snprintf(why, sizeof why, "cannot be read: %s", strerror(errno));
    return file_failed(QR_E_IO, path, why, message, message_bytes);
}

int qr_keys_read(const char *path, qr_keys_t **ret_keys, char *message, size_t message_bytes)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &about) != 0) {
        int code = file_unread(path, message, message_bytes);
        if (file >= 0) (void)close(file);
        return code;
    }
    int code = 0;
    if (!S_ISREG(about.st_mode)) code = file_failed(QR_E_INVALID, path, "is not a file", message, message_bytes);
    if (!code && (about.st_mode & 07777 & ~(mode_t)0600) && !QR_MUTANT(666))
        code = file_failed(QR_E_PERMISSION, path, "must be its owner's alone; chmod it to 0600", message, message_bytes);
    char *bytes = malloc(QR_KEYS_FILE_BYTES_MAX + 1);
    qr_keys_t *keys = malloc(sizeof *keys);
    if (!code && (!bytes || !keys)) code = file_failed(QR_E_MEMORY, path, "finds no memory", message, message_bytes);
    size_t count = 0;
    for (ssize_t got = 1; !code && got > 0 && count <= QR_KEYS_FILE_BYTES_MAX;) {
        got = read(file, bytes + count, QR_KEYS_FILE_BYTES_MAX + 1 - count);
        if (got < 0) code = file_unread(path, message, message_bytes);
        if (got > 0) count += (size_t)got;
    }
    (void)close(file);
    if (!code) code = qr_keys_parse(path, bytes, count, keys, message, message_bytes);
    if (bytes) explicit_bzero(bytes, QR_KEYS_FILE_BYTES_MAX + 1);
    free(bytes);
    if (code)
        free(keys);
    else
        *ret_keys = keys;
    return code;
}

/* ---- lookup --------------------------------------------------------------------------------------------------------------------- */

/* 0xff..ff if the digests are equal, else 0; no branch depends on either. */
static uint32_t equal_mask(const uint8_t a[32], const uint8_t b[32])
{
    uint32_t difference = 0;
    for (size_t i = 0; i < 32; i++) difference |= (uint32_t)(a[i] ^ b[i]);
    return ((difference - 1) >> 8 & 1) * UINT32_MAX; /* difference < 256 */
}

bool qr_keys_find(const qr_keys_t *keys, const void *bearer, size_t bytes, uint32_t *ret_tenant, bool *ret_admin)
{
    uint8_t digest[32];
    uint32_t found = 0, tenant = 0, admin = 0;
    qr_sha256(bearer, bytes, digest);
    for (uint32_t i = 0; i < keys->key_count; i++) {
        uint32_t mask = equal_mask(keys->keys[i].digest, digest);
        found |= mask;
        tenant |= mask & keys->keys[i].tenant;
        admin |= mask & keys->keys[i].admin;
    }
    if (!found && !QR_MUTANT(667)) return false;
    *ret_tenant = tenant;
    *ret_admin = admin != 0;
    return true;
}

/* ---- new keys ------------------------------------------------------------------------------------------------------------------- */

static void put_hex(const uint8_t bytes[32], char to[65])
{
    for (size_t i = 0; i < 32; i++) (void)snprintf(to + 2 * i, 3, "%02x", bytes[i]);
}

int qr_keys_make(const char *tenant, char ret_bearer[QR_BEARER_BYTES + 1], char ret_lines[512], char *message, size_t message_bytes)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[64], digest[32];
    char salt[65], key[65];
    if (!is_name(tenant, strlen(tenant))) {
        snprintf(message, message_bytes, "NAME is a tenant's name: 1 to 31 letters, digits, '-', '_' and '.'");
        return -QR_E_INVALID;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        snprintf(message, message_bytes, "no random bytes: %s", strerror(errno));
        return -QR_E_IO;
    }
    memcpy(ret_bearer, "qk-", 3);
    for (uint32_t i = 0; i < 43; i++) { /* 256 bits, six a letter, the last two by four zeros */
        uint32_t bit = 6 * i, at = bit / 8, pair = (uint32_t)random[at] << 8 | (at + 1 < 32 ? random[at + 1] : 0);
        ret_bearer[3 + i] = letters[pair >> (10 - bit % 8) & 63];
    }
    ret_bearer[QR_BEARER_BYTES] = 0;
    qr_sha256(ret_bearer, QR_BEARER_BYTES, digest);
    put_hex(digest, key);
    put_hex(random + 32, salt);
    (void)snprintf(ret_lines, 512, "tenant = %s\n    salt = %s\n    key = %s\n", tenant, salt, key);
    explicit_bzero(random, sizeof random);
    return 0;
}
