/* link.c - see link.h. */
#include "transport/link.h"

#include "base/mutant.h"
#include "base/sha256.h"

void qr_link_init(qr_link_t *link, uint64_t session, uint64_t now_us)
{
    memset(link, 0, sizeof *link);
    link->session = session;
    link->heard_us = link->hello_due_us = now_us;
}

qr_bytes_t qr_link_fingerprints(const qr_vocabulary_t *vocabulary, qr_hash_t *digest)
{
    if (vocabulary->count == 0) return (qr_bytes_t){NULL, 0};
    qr_sha256_t sha;
    qr_sha256_init(&sha);
    qr_sha256_add(&sha, &vocabulary->count, sizeof vocabulary->count);
    qr_sha256_add(&sha, vocabulary->offsets, ((size_t)vocabulary->count + 1) * sizeof *vocabulary->offsets);
    qr_sha256_add(&sha, vocabulary->bytes, vocabulary->offsets[vocabulary->count]);
    qr_sha256_add(&sha, vocabulary->flags, vocabulary->count);
    qr_sha256_end(&sha, digest->bytes);
    return (qr_bytes_t){digest->bytes, sizeof digest->bytes};
}

const char *qr_link_refusal(const qr_link_hello_t *hello, const qr_link_expect_t *expect)
{
    if (hello->protocol != QR_LINK_PROTOCOL) return "it speaks another version of the protocol";
    if (hello->schema_hash != expect->schema_hash) return "its message schema differs; both nodes need the same build";
    if (hello->node != expect->node) return "it says another node id than the topology file";
    if (hello->chunk_tokens != expect->chunk_tokens) return "its chunk_tokens differ; one value per mesh";
    if (hello->fingerprints.count != expect->fingerprints.count ||
        (expect->fingerprints.count && memcmp(hello->fingerprints.data, expect->fingerprints.data, expect->fingerprints.count) != 0))
        return "its vocabulary differs; both nodes need the same model file";
    if (hello->session == 0 || hello->node_epoch == 0) return "its session or epoch is 0";
    return NULL;
}

static uint32_t begin(qr_link_t *link, uint64_t new_session, uint64_t now_us)
{
    uint32_t bits = link->up ? QR_LINK_DOWN : 0;
    link->up = false;
    if (!QR_MUTANT(306)) link->session = new_session;
    link->peer_session = link->peer_epoch = 0;
    link->strikes = 0;
    link->sent = link->received = 0;
    link->heard_us = link->hello_due_us = now_us;
    return bits;
}

uint32_t qr_link_hello(qr_link_t *link, const qr_link_hello_t *hello, uint64_t new_session, uint64_t now_us)
{
    if (now_us < link->banned_until_us) return 0;
    uint32_t bits = 0;
    if (link->up && (hello->session != link->peer_session || hello->echo != link->session)) {
        /* The peer began anew. Our session number goes with the old one, else its late echo would count for the new. */
        bits |= begin(link, new_session, now_us);
    } else if (hello->echo == link->session && hello->sent != link->received && !QR_MUTANT(480)) {
        bits |= QR_LINK_LOST | begin(link, new_session, now_us);
    }
    bool news = hello->session != link->peer_session;
    link->peer_session = hello->session;
    link->peer_epoch = hello->node_epoch;
    link->heard_us = now_us;
    if ((hello->echo == link->session || QR_MUTANT(305)) && !link->up) {
        link->up = true;
        bits |= QR_LINK_UP;
    }
    if (news || hello->echo != link->session) bits |= QR_LINK_REPLY;
    return bits;
}

bool qr_link_silent(const qr_link_t *link, uint64_t down_us, uint64_t now_us) { return link->up && now_us >= link->heard_us + down_us; }

bool qr_link_admit(qr_link_t *link, uint64_t bytes, uint64_t now_us)
{
    uint64_t second_ns = 1000000000, cost_ns = (bytes + QR_LINK_MESSAGE_BYTES) * second_ns / QR_LINK_BYTES_PER_S;
    uint64_t paid_ns = qr_max_u64(link->paid_ns, now_us * 1000) + cost_ns;
    if (paid_ns > now_us * 1000 + second_ns) return false;
    link->paid_ns = paid_ns;
    return true;
}

uint32_t qr_link_end(qr_link_t *link, uint64_t new_session, uint64_t ban_us, uint64_t now_us)
{
    uint32_t bits = begin(link, new_session, now_us);
    if (ban_us) link->banned_until_us = now_us + ban_us;
    return bits;
}
