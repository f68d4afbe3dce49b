/* link.h - one connection towards one peer (control or bulk): session, echo, silence, strikes. No socket, no clock.
 *
 * K1. A session of ours has a number that is never used again. The link is up while the peer's last hello echoed it and the peer's
 *     own session is the one that hello named.
 * K2. Every end of a session is told once (QR_LINK_DOWN), and begins a new session of ours at once.
 * K3. A link is not up while it is banned. */
#ifndef QR_LINK_H
#define QR_LINK_H

#include "messages/message.h"

enum { QR_LINK_PROTOCOL = 1 };
enum { QR_LINK_UP = 1, QR_LINK_DOWN = 2, QR_LINK_REPLY = 4 }; /* what the owner has to do; DOWN before UP */

typedef struct qr_link {
    uint64_t session;      /* ours, never 0 */
    uint64_t peer_session; /* from its last hello, 0 = none heard */
    uint64_t peer_epoch;
    uint64_t heard_us;     /* last bytes of the peer that belonged to the session */
    uint64_t hello_due_us; /* when we say hello next */
    uint64_t banned_until_us;
    uint32_t strikes; /* malformed or forbidden messages of this session */
    bool up;
} qr_link_t;

/* What this side expects of the other's hello. */
typedef struct qr_link_expect {
    uint32_t node; /* id of the peer */
    uint64_t schema_hash;
    uint32_t chunk_tokens;
} qr_link_expect_t;

void qr_link_init(qr_link_t *link, uint64_t session, uint64_t now_us);
/* Whether a hello may open a session at all; otherwise a sentence says why not. */
const char *qr_link_refusal(const qr_link_hello_t *hello, const qr_link_expect_t *expect);
/* Takes an acceptable hello. new_session is used if ours has to change. Returns QR_LINK_* bits. */
uint32_t qr_link_hello(qr_link_t *link, const qr_link_hello_t *hello, uint64_t new_session, uint64_t now_us);
/* Time passes: QR_LINK_DOWN when the peer was silent for longer than down_us. */
uint32_t qr_link_time(qr_link_t *link, uint64_t new_session, uint64_t down_us, uint64_t now_us);
/* The session is over (a refused send, a strike too many): DOWN if it was up. ban_us: hellos are ignored for so long. */
uint32_t qr_link_end(qr_link_t *link, uint64_t new_session, uint64_t ban_us, uint64_t now_us);

#endif
