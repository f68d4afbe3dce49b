/* chain.h - what names a prefix (formats.md, Chain): every node's hash commits to its parent and its tokens, the root to the
 * model's fingerprint and both salts, each behind its length. Digests are 32 bytes. Pure. */
#ifndef QR_CHAIN_H
#define QR_CHAIN_H

#include "base/base.h"

/* SHA-256("quire.root.1\0" || fingerprint || u32 n || tenant_salt[n] || u32 m || cache_salt[m]) */
void qr_chain_root(const uint8_t fingerprint[32], const void *tenant_salt, uint32_t tenant_bytes, const void *cache_salt,
                   uint32_t cache_bytes, uint8_t ret_root[32]);
/* SHA-256("quire.chain.1\0" || parent || u32 count || u32 tokens[count]) */
void qr_chain_node(const uint8_t parent[32], const uint32_t *tokens, uint32_t count, uint8_t ret_node[32]);
/* SHA-256(u32 n || tenant_salt[n] || u32 m || cache_salt[m]): the scope of pages_reserve; routes of other scopes share nothing. */
void qr_chain_scope(const void *tenant_salt, uint32_t tenant_bytes, const void *cache_salt, uint32_t cache_bytes, uint8_t ret_scope[32]);

#endif
