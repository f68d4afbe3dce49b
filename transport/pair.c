/* pair.c - see pair.h. */
#include "transport/pair.h"

#include "actors/roles.h"
#include "base/mutant.h"
#include "messages/schema.h"

const char *qr_verdict_sentence(qr_verdict_t verdict)
{
    switch (verdict) {
    case QR_VERDICT_OK: return "fine";
    case QR_VERDICT_ROLE: return "no row of roles.def lets this role say this to that role";
    case QR_VERDICT_STALE: return "a repeated or older sequence number";
    case QR_VERDICT_GAP: return "a message before this one is missing";
    case QR_VERDICT_CREDIT: return "more open questions or notices than the window allows";
    case QR_VERDICT_QUESTION: return "an answer without an open question";
    case QR_VERDICT_FULL: return "no room for one more partner";
    }
    return "?";
}

uint32_t qr_pair_window(uint8_t from_role, uint8_t to_role, uint16_t type)
{
    if (type == QR_MESSAGE_alarm) return 0; /* made by the host, never sent */
    const qr_roles_row_t *row = qr_roles_find(from_role, to_role, type);
    if (row && row->kind == QR_ROLES_ASK) return (uint32_t)qr_min_u64(row->bound, UINT16_MAX);
    return row || qr_roles_question(from_role, to_role, type) ? 1 : 0;
}

void qr_pairs_init(qr_pairs_t *pairs, uint64_t self) { pairs->self = self; }

static void fill_windows(qr_pair_t *pair, uint8_t self, uint8_t other)
{
    for (uint16_t type = 1; type < QR_MESSAGE_TYPES_MAX; type++) {
        pair->window_out[type] = (uint16_t)qr_pair_window(self, other, type);
        pair->window_in[type] = (uint16_t)qr_pair_window(other, self, type);
    }
}

qr_pair_t *qr_pairs_get(qr_pairs_t *pairs, uint64_t other)
{
    uint64_t mixed = other * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(mixed >> 40) % QR_PAIR_SLOTS;
    while (pairs->slots[at].address && pairs->slots[at].address != other) at = (at + 1) % QR_PAIR_SLOTS;
    qr_pair_t *pair = &pairs->slots[at];
    if (pair->address) return pair;
    if (pairs->count == QR_PAIRS_MAX) return NULL;
    pairs->count++;
    pair->address = other;
    pair->port = UINT32_MAX;
    fill_windows(pair, qr_address_role(pairs->self), qr_address_role(other));
    return pair;
}

/* Whether a role asks or answers this question. */
static bool takes_part(uint8_t role, uint16_t ask)
{
    const qr_roles_row_t *row;
    for (uint32_t i = 0; (row = qr_roles_at(i)); i++)
        if (row->type == ask && row->kind == QR_ROLES_ASK && (row->from == role || row->to == role)) return true;
    return false;
}

/* The bound of a notice, or UINT64_MAX when its question is between others (or it is `latest`). */
static uint64_t notice_bound(const qr_pairs_t *pairs, uint8_t to_role, uint16_t type)
{
    const qr_roles_row_t *row = qr_roles_find(qr_address_role(pairs->self), to_role, type);
    if (!row || row->kind != QR_ROLES_WITHIN || !takes_part(qr_address_role(pairs->self), row->within)) return UINT64_MAX;
    return pairs->questions[row->within] * row->bound;
}

qr_verdict_t qr_pairs_send(qr_pairs_t *pairs, qr_pair_t *pair, uint16_t type, uint64_t *ret_sequence)
{
    const qr_schema_t *row = qr_schema_find(type);
    if (!row || !pair->window_out[type]) return QR_VERDICT_ROLE;
    if (row->mood == QR_MOOD_ASK) {
        if (pair->asked[type] >= pair->window_out[type] + QR_MUTANT(301)) return QR_VERDICT_CREDIT;
        pair->asked[type]++;
        pairs->questions[type]++;
    } else if (row->mood == QR_MOOD_ANSWER) {
        if (!pair->owed[row->question] && !QR_MUTANT(300)) return QR_VERDICT_QUESTION;
        pair->owed[row->question]--;
    } else {
        if (pairs->notices[type] >= notice_bound(pairs, qr_address_role(pair->address), type)) return QR_VERDICT_CREDIT;
        pairs->notices[type]++;
    }
    *ret_sequence = ++pair->sequence_out;
    return QR_VERDICT_OK;
}

/* Sequence numbers begin at 1 in every epoch of the sender. */
static qr_verdict_t judge_sequence(const qr_pairs_t *pairs, qr_pair_t *pair, uint64_t epoch, uint64_t sequence)
{
    bool local = qr_address_node(pair->address) == qr_address_node(pairs->self);
    if (epoch != pair->epoch_in) {
        if (local && pair->epoch_in) return QR_VERDICT_STALE;
        pair->epoch_in = epoch;
        if (!QR_MUTANT(461)) pair->sequence_in = 0;
    }
    if (sequence <= pair->sequence_in && !QR_MUTANT(303)) return QR_VERDICT_STALE;
    if (local && sequence != pair->sequence_in + 1 && !QR_MUTANT(302)) return QR_VERDICT_GAP;
    pair->sequence_in = sequence;
    return QR_VERDICT_OK;
}

qr_verdict_t qr_pairs_receive(qr_pairs_t *pairs, qr_pair_t *pair, uint16_t type, uint64_t epoch, uint64_t sequence)
{
    const qr_schema_t *row = qr_schema_find(type);
    if (!row || !pair->window_in[type]) return QR_VERDICT_ROLE;
    qr_verdict_t verdict = judge_sequence(pairs, pair, epoch, sequence);
    if (verdict) return verdict;
    if (row->mood == QR_MOOD_ASK) {
        if (pair->owed[type] >= pair->window_in[type]) return QR_VERDICT_CREDIT;
        pair->owed[type]++;
        pairs->questions[type]++;
    } else if (row->mood == QR_MOOD_ANSWER) {
        if (!pair->asked[row->question]) return QR_VERDICT_QUESTION;
        if (!QR_MUTANT(460)) pair->asked[row->question]--;
    }
    return QR_VERDICT_OK;
}

void qr_pairs_close_node(qr_pairs_t *pairs, uint32_t node)
{
    for (uint32_t i = 0; i < QR_PAIR_SLOTS; i++) {
        qr_pair_t *pair = &pairs->slots[i];
        if (!pair->address || qr_address_node(pair->address) != node || QR_MUTANT(304)) continue;
        memset(pair->asked, 0, sizeof pair->asked);
        memset(pair->owed, 0, sizeof pair->owed);
    }
}
