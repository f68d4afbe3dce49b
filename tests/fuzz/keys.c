/* link: qr_io_keys qr_base */
/* keys.c - keys files: whatever the bytes, an error of one line that repeats none of them, or a table whose parts are all there. */
#include "actors/io/keys.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void check_tenant(const qr_keys_t *keys, uint32_t t)
{
    const qr_tenant_t *tenant = &keys->tenants[t];
    size_t length = strnlen(tenant->name, sizeof tenant->name);
    qr_assert(length > 0 && length < sizeof tenant->name);
    qr_assert(tenant->lanes <= QR_TENANT_LANES_MAX && tenant->pages <= QR_TENANT_PAGES_MAX);
    qr_assert(tenant->tokens_per_s <= QR_TENANT_TOKENS_PER_S_MAX && tenant->bytes <= QR_TENANT_BYTES_MAX);
    for (uint32_t other = 0; other < t; other++) {
        qr_assert(strcmp(keys->tenants[other].name, tenant->name) != 0);
        qr_assert(memcmp(keys->tenants[other].salt, tenant->salt, sizeof tenant->salt) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static qr_keys_t keys;
    char message[512] = "";
    if (qr_keys_parse("fuzz", bytes, count, &keys, message, sizeof message) != 0) {
        qr_assert(!strncmp(message, "fuzz: line ", 11) && !strchr(message, '\n') && keys.key_count == 0);
        return 0;
    }
    qr_assert(keys.tenant_count > 0 && keys.tenant_count <= QR_TENANTS_MAX && keys.key_count > 0 && keys.key_count <= QR_KEYS_MAX);
    for (uint32_t t = 0; t < keys.tenant_count; t++) check_tenant(&keys, t);
    for (uint32_t k = 0; k < keys.key_count; k++) {
        qr_assert(keys.keys[k].tenant < keys.tenant_count);
        for (uint32_t other = 0; other < k; other++) qr_assert(memcmp(keys.keys[other].digest, keys.keys[k].digest, 32) != 0);
    }
    return 0;
}
