/* roles.h - roles.def as look-ups: who may say what to whom, and how much of it may be open. Constant tables; a pair and
 * type that occurs twice in roles.def is a compile error.
 *
 * Not in roles.def, but part of every role: mesh's start, drain, stop and their answers, and what the host itself makes
 * (alarm from the actor to itself, link_up and link_down from uplink; link_hello between uplinks). */
#ifndef QR_ROLES_H
#define QR_ROLES_H

#include "messages/message.h"

enum {
    QR_ROLES_ASK = 1,    /* TALK: at most `bound` open questions */
    QR_ROLES_WITHIN = 2, /* NOTE: at most `bound` per open question `within` of its sender or receiver */
    QR_ROLES_LATEST = 3  /* NOTE: a newer one supersedes; no bound but the sender's own pace */
};

typedef struct qr_roles_row {
    uint8_t from, to; /* QR_ROLE_*; mesh's and uplink's own rows: 0 = any role */
    uint16_t type;    /* the ask or notice */
    uint16_t kind;    /* QR_ROLES_* */
    uint16_t within;  /* WITHIN: the ask; else 0 */
    uint64_t bound;   /* ASK: window; WITHIN: n per question; LATEST: 1 */
} qr_roles_row_t;

/* The row of an ask or notice between two roles; NULL if there is none, and for answers. */
const qr_roles_row_t *qr_roles_find(uint8_t from_role, uint8_t to_role, uint16_t type);
/* The row of the question that an answer sent by from_role to to_role closes; NULL if none. */
const qr_roles_row_t *qr_roles_question(uint8_t from_role, uint8_t to_role, uint16_t type);
/* Whether from_role may send `type` to to_role: an ask or notice with a row, or the answer of an ask with one. */
bool qr_roles_may(uint8_t from_role, uint8_t to_role, uint16_t type);
/* Most open questions of this ask per pair of actor instances; 0 if the pair has no such talk. */
uint64_t qr_roles_window(uint8_t asker, uint8_t answerer, uint16_t ask);
/* Messages that may be under way from one instance of from_role to one of to_role by credit: windows of its asks plus windows of
 * the asks it answers (an answer travels on its question's credit). Notices are not in it. */
uint64_t qr_roles_windows_sum(uint8_t from_role, uint8_t to_role);
/* Whether the two roles exchange anything in roles.def (either direction): who is whose partner in `start`. */
bool qr_roles_talk(uint8_t role, uint8_t other);
/* What restarts together and lives on one node: the edge, the device group; every other role is a unit of its own. */
uint8_t qr_roles_unit(uint8_t role);
/* Whether from_role may say `type` to to_role of another node. Inside a unit only metrics_read and cache_drop and their answers
 * cross, and of health only what heartbeats tell each other. The message must also be of scope NODE, which is not looked at here. */
bool qr_roles_cross(uint8_t from_role, uint8_t to_role, uint16_t type);
/* Rows of roles.def in order: index 0.. until NULL. */
const qr_roles_row_t *qr_roles_at(uint32_t index);

#endif
