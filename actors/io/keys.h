/* keys.h - the keys file: which bearer key belongs to which tenant, and what that tenant may have. Parser, lookup, and the maker of
 * new lines. No socket, no actor: testable and fuzzable alone.
 *
 * The file (a documented one is examples/deploy/keys.conf), plain ASCII, four spaces a level, `#` begins a line of comment:
 *
 *     version = 1
 *     tenant = NAME                 letters, digits, '-', '_' and '.', at most 31
 *         salt = 64 hex digits      needed; what keeps its cached state apart from everybody else's
 *         lanes = N                 requests open at once
 *         pages = N                 pages that its open requests may need together
 *         tokens_per_s = N          prompt and generated tokens a second
 *         bytes = N                 bytes of the store
 *         key = 64 hex digits       SHA-256 of a bearer key; any number of them
 *             admin = 1             this key may also read /metrics and make admin calls
 *
 * A limit that is left out is none.
 *
 * B1. The file holds digests and never a key; a key that a client sends is digested, compared, and kept nowhere.
 * B2. Errors name the file, the line and what is expected there, never what stands there: it may be a key in the wrong place.
 * B3. A lookup takes the same steps for every key: all digests are compared in full.
 * B4. Names, salts and digests occur once each. Whatever the bytes, the result is an error or a table within these bounds. */
#ifndef QR_KEYS_H
#define QR_KEYS_H

#include "base/base.h"
#include "base/limits.h"

enum { QR_KEYS_MAX = 1024, QR_KEYS_FILE_BYTES_MAX = 256 << 10, QR_TENANT_NAME_BYTES = 32, QR_TENANT_SALT_BYTES = 32 };
enum { QR_BEARER_BYTES = 46 }; /* "qk-", 43 letters of 32 random bytes */
enum {
    QR_TENANT_LANES_MAX = QR_REQUESTS_MAX,
    QR_TENANT_PAGES_MAX = 1 << 26,
    QR_TENANT_TOKENS_PER_S_MAX = 10000000,
};
#define QR_TENANT_BYTES_MAX (1ull << 50)

typedef struct qr_tenant {
    char name[QR_TENANT_NAME_BYTES];
    uint8_t salt[QR_TENANT_SALT_BYTES];
    uint32_t lanes, pages, tokens_per_s; /* 0 = no bound */
    uint64_t bytes;                      /* 0 = no bound */
} qr_tenant_t;

typedef struct qr_key {
    uint8_t digest[32];
    uint32_t tenant; /* index */
    bool admin;
} qr_key_t;

typedef struct qr_keys {
    uint32_t tenant_count, key_count;
    qr_tenant_t tenants[QR_TENANTS_MAX];
    qr_key_t keys[QR_KEYS_MAX];
} qr_keys_t;

/* Reads the text of a file. name: of the file, for messages. 0, or -QR_E_FORMAT, _INVALID, _LIMIT with one sentence. */
int qr_keys_parse(const char *name, const void *bytes, size_t count, qr_keys_t *ret_keys, char *message, size_t message_bytes);
/* Reads a file that its owner alone may read or write; free() the result. Also -QR_E_IO, _PERMISSION, _MEMORY. */
int qr_keys_read(const char *path, qr_keys_t **ret_keys, char *message, size_t message_bytes);
/* Whose key this is. false: nobody's; *ret_tenant and *ret_admin are then untouched. */
bool qr_keys_find(const qr_keys_t *keys, const void *bearer, size_t bytes, uint32_t *ret_tenant, bool *ret_admin);
/* A new random key for a new tenant: the key itself, and the lines of the file that know it. 0, or -QR_E_INVALID (the name), _IO. */
int qr_keys_make(const char *tenant, char ret_bearer[QR_BEARER_BYTES + 1], char ret_lines[512], char *message, size_t message_bytes);

#endif
