#include "base/chain.h"

#include "base/mutant.h"

#include "base/sha256.h"

/* Tokens enter the digest as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian");

void qr_chain_root(const uint8_t fingerprint[32], const void *tenant_salt, uint32_t tenant_bytes, const void *cache_salt,
                   uint32_t cache_bytes, uint8_t ret_root[32])
{
    static const char label[] = "quire.root.1"; /* its NUL is part of it */
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    qr_sha256_add(&sha, label, sizeof label);
    qr_sha256_add(&sha, fingerprint, 32);
    if (QR_MUTANT(16)) qr_sha256_add(&sha, tenant_salt, tenant_bytes);
    else qr_sha256_add_prefixed(&sha, tenant_salt, tenant_bytes);
    qr_sha256_add_prefixed(&sha, cache_salt, cache_bytes);
    qr_sha256_end(&sha, ret_root);
}

void qr_chain_node(const uint8_t parent[32], const uint32_t *tokens, uint32_t count, uint8_t ret_node[32])
{
    static const char label[] = "quire.chain.1";
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    qr_sha256_add(&sha, label, sizeof label);
    qr_sha256_add(&sha, parent, 32);
    qr_sha256_add(&sha, &count, sizeof count);
    qr_sha256_add(&sha, tokens, (size_t)count * sizeof *tokens);
    qr_sha256_end(&sha, ret_node);
}

void qr_chain_scope(const void *tenant_salt, uint32_t tenant_bytes, const void *cache_salt, uint32_t cache_bytes, uint8_t ret_scope[32])
{
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    qr_sha256_add_prefixed(&sha, tenant_salt, tenant_bytes);
    qr_sha256_add_prefixed(&sha, cache_salt, cache_bytes);
    qr_sha256_end(&sha, ret_scope);
}
