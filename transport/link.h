/* link.h - one connection towards one peer (control or bulk): session, echo, silence, strikes. No socket, no clock.
 *
 * K1. A session of ours has a number that is never used again. The link is up while the peer's last hello echoed it and the peer's
 *     own session is the one that hello named.
 * K2. Every end of a session is told once (QR_LINK_DOWN), and begins a new session of ours at once.
 * K3. A link is not up while it is banned.
 * K4. Of one link at most QR_LINK_BYTES_PER_S (and QR_LINK_MESSAGE_BYTES for each message) are let in, with one second's worth at once:
 *     inboxes have no mark, so what another node may put there is bounded here.
 * K5. A hello says how many messages its session sent before it. If as many did not come in, some were lost (a connection that broke and
 *     was made again without anybody being silent, the bound of K4): the session ends, which closes what they left open. */
#ifndef QR_LINK_H
#define QR_LINK_H

#include "actors/given.h"
#include "messages/message.h"

enum { QR_LINK_PROTOCOL = 1 };
enum { QR_LINK_BYTES_PER_S = 32 << 20, QR_LINK_MESSAGE_BYTES = 512 };
enum { QR_LINK_UP = 1, QR_LINK_DOWN = 2, QR_LINK_REPLY = 4, QR_LINK_LOST = 8 }; /* what the owner has to do; DOWN before UP */

typedef struct qr_link {
    uint64_t session;      /* ours, never 0 */
    uint64_t peer_session; /* from its last hello, 0 = none heard */
    uint64_t peer_epoch;
    uint64_t heard_us;     /* last bytes of the peer that belonged to the session */
    uint64_t hello_due_us; /* when we say hello next */
    uint64_t banned_until_us;
    uint64_t sent, received; /* messages of the link's session that are no hellos (K5) */
    uint64_t paid_ns;        /* K4: until when what was let in has paid for itself */
    uint32_t strikes;        /* malformed or forbidden messages of the link's session */
    bool up;
} qr_link_t;

/* What this side expects of the other's hello. */
typedef struct qr_link_expect {
    uint32_t node; /* id of the peer */
    uint64_t schema_hash;
    uint32_t chunk_tokens;
    qr_bytes_t fingerprints; /* what its hello must carry: the vocabulary's digest */
} qr_link_expect_t;

/* `fingerprints` of a hello: SHA-256 over the vocabulary's count, offsets, bytes and flags. Both ends know it before any weights are
 * loaded; token ids mean the same to both only if it is equal. Empty for a node without a vocabulary. */
qr_bytes_t qr_link_fingerprints(const qr_vocabulary_t *vocabulary, qr_hash_t *digest);

void qr_link_init(qr_link_t *link, uint64_t session, uint64_t now_us);
/* Whether a hello may open a session at all; otherwise a sentence says why not. */
const char *qr_link_refusal(const qr_link_hello_t *hello, const qr_link_expect_t *expect);
/* Takes an acceptable hello. new_session is used if ours has to change. Returns QR_LINK_* bits. */
uint32_t qr_link_hello(qr_link_t *link, const qr_link_hello_t *hello, uint64_t new_session, uint64_t now_us);
/* Whether the link is up and the peer was silent for down_us: its session is to be ended. */
bool qr_link_silent(const qr_link_t *link, uint64_t down_us, uint64_t now_us);
/* Whether a message of so many bytes may come in now (K4); if so, it is booked. What may not is lost (K5). */
bool qr_link_admit(qr_link_t *link, uint64_t bytes, uint64_t now_us);
/* The session is over (silence, a refused send, a strike too many): DOWN if it was up. ban_us: hellos are ignored for so long. */
uint32_t qr_link_end(qr_link_t *link, uint64_t new_session, uint64_t ban_us, uint64_t now_us);

#endif
