/* pair.h - what one actor keeps about each actor it talks with: sequences, the other's epoch, and the credit of every kind of
 * question (roles.def). The host judges each message with it before it sends or delivers. No socket, no clock.
 *
 * R1. asked[t] <= window_out[t] and owed[t] <= window_in[t], always.
 * R2. An answer is sent only while its question is owed, and taken only while it is asked.
 * R3. sequence_in only grows within one epoch of the other side; a gap is a fault inside a node, allowed between nodes.
 * R4. Notices `within` a question are counted over the actor's life: sent <= n x questions of that kind it took part in. */
#ifndef QR_PAIR_H
#define QR_PAIR_H

#include "messages/message.h"

enum { QR_PAIRS_MAX = 128, QR_PAIR_SLOTS = 256 }; /* actors one actor may talk with; slots of its hash table */

typedef enum qr_verdict {
    QR_VERDICT_OK = 0,
    QR_VERDICT_ROLE,     /* no row of roles.def lets these two say it */
    QR_VERDICT_STALE,    /* repeated or older sequence */
    QR_VERDICT_GAP,      /* a message is missing */
    QR_VERDICT_CREDIT,   /* more open questions than the window, or more notices than their bound */
    QR_VERDICT_QUESTION, /* an answer without an open question */
    QR_VERDICT_FULL      /* no room for one more partner */
} qr_verdict_t;
/* One sentence for a verdict. */
const char *qr_verdict_sentence(qr_verdict_t verdict);

typedef struct qr_pair {
    uint64_t address; /* of the other; 0 = free slot */
    uint64_t epoch_in, sequence_in, sequence_out;
    uint32_t port;                                                              /* where its messages go */
    uint16_t window_out[QR_MESSAGE_TYPES_MAX], window_in[QR_MESSAGE_TYPES_MAX]; /* asks: the window; others: 1 = allowed */
    uint16_t asked[QR_MESSAGE_TYPES_MAX], owed[QR_MESSAGE_TYPES_MAX];           /* open questions by the ask's type */
} qr_pair_t;

typedef struct qr_pairs {
    uint64_t self;
    uint32_t count;
    uint64_t questions[QR_MESSAGE_TYPES_MAX]; /* asked and been asked, over the actor's life */
    uint64_t notices[QR_MESSAGE_TYPES_MAX];   /* sent */
    qr_pair_t slots[QR_PAIR_SLOTS];
} qr_pairs_t;

/* The window of an ask (1 for an allowed answer or notice) that `from_role` may say to `to_role`; 0 = may not. Life messages
 * with mesh and what a host delivers itself are included. */
uint32_t qr_pair_window(uint8_t from_role, uint8_t to_role, uint16_t type);

/* Zeroed memory becomes the table of actor `self`. */
void qr_pairs_init(qr_pairs_t *pairs, uint64_t self);
/* The pair with `other`, made if missing (the caller sets `port` when made: it is UINT32_MAX); NULL when the table is full. */
qr_pair_t *qr_pairs_get(qr_pairs_t *pairs, uint64_t other);
/* Judges and books a message about to be sent (type, to). On OK the sequence to stamp is in *ret_sequence. Nothing is booked
 * otherwise. */
qr_verdict_t qr_pairs_send(qr_pairs_t *pairs, qr_pair_t *pair, uint16_t type, uint64_t *ret_sequence);
/* Judges and books a received one. A question beyond the window is CREDIT and not booked, its sequence is. */
qr_verdict_t qr_pairs_receive(qr_pairs_t *pairs, qr_pair_t *pair, uint16_t type, uint64_t epoch, uint64_t sequence);
/* The session with a node is over: every question to or from its actors is closed. */
void qr_pairs_close_node(qr_pairs_t *pairs, uint32_t node);

#endif
