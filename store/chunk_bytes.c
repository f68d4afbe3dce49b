/* chunk_bytes.c - XXH3-128 by libxxhash's own state (chunk_bytes.h); where the library was built with its choice of vector width at run
 * time, by that. */
#include "store/chunk_bytes.h"

#include <xxhash.h>
#ifdef QR_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

qr_chunk_fast_t *qr_chunk_fast_new(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state) (void)XXH3_128bits_reset(state);
    return (qr_chunk_fast_t *)state;
}
void qr_chunk_fast_add(qr_chunk_fast_t *fast, const void *bytes, size_t count)
{
    (void)XXH3_128bits_update((XXH3_state_t *)fast, bytes, count);
}
void qr_chunk_fast_end(const qr_chunk_fast_t *fast, uint8_t ret_digest[16])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest((const XXH3_state_t *)fast));
    memcpy(ret_digest, canonical.digest, sizeof canonical.digest);
}
void qr_chunk_fast_destroy(qr_chunk_fast_t **fast)
{
    (void)XXH3_freeState((XXH3_state_t *)*fast);
    *fast = NULL;
}
