#include "actors/roles.h"

#include "base/mutant.h"

#include "messages/schema.h"

#define WITHIN(ask, n) QR_ROLES_WITHIN, QR_MESSAGE_##ask, n
#define LATEST QR_ROLES_LATEST, 0, 1

/* Places of the rows in the table; a row that occurs twice defines its name twice. */
enum {
#define TALK(asker, answerer, ask, window) row_##asker##_##answerer##_##ask,
#define NOTE(sender, receiver, notice, bound) row_##sender##_##receiver##_##notice,
#include "actors/roles.def"
    row_count
};

static const qr_roles_row_t rows[] = {
#define TALK(asker, answerer, ask, window) {QR_ROLE_##asker, QR_ROLE_##answerer, QR_MESSAGE_##ask, QR_ROLES_ASK, 0, window},
#define NOTE(sender, receiver, notice, bound) {QR_ROLE_##sender, QR_ROLE_##receiver, QR_MESSAGE_##notice, bound},
#include "actors/roles.def"
};
_Static_assert(QR_COUNT(rows) == row_count, "one place per row");

/* The key of a conversation for the switch below: the compiler makes a search of it. */
#define KEY(from, to, type) ((uint32_t)(from) << 24 | (uint32_t)(to) << 16 | (uint32_t)(type))

/* What every role hears of mesh and of its host, windows as small as the conversation needs. */
static const qr_roles_row_t *find_life(uint8_t from, uint8_t to, uint16_t type)
{
    static const qr_roles_row_t life[] = {
        {QR_ROLE_mesh, 0, QR_MESSAGE_start, QR_ROLES_ASK, 0, 1},           {QR_ROLE_mesh, 0, QR_MESSAGE_drain, QR_ROLES_ASK, 0, 1},
        {QR_ROLE_mesh, 0, QR_MESSAGE_stop, QR_ROLES_ASK, 0, 1},            {QR_ROLE_uplink, 0, QR_MESSAGE_link_up, QR_ROLES_LATEST, 0, 1},
        {QR_ROLE_uplink, 0, QR_MESSAGE_link_down, QR_ROLES_LATEST, 0, 1},  {QR_ROLE_mesh, 0, QR_MESSAGE_link_up, QR_ROLES_LATEST, 0, 1},
        {QR_ROLE_mesh, 0, QR_MESSAGE_link_down, QR_ROLES_LATEST, 0, 1},    {0, 0, QR_MESSAGE_alarm, QR_ROLES_LATEST, 0, 1},
        {QR_ROLE_uplink, QR_ROLE_uplink, QR_MESSAGE_link_hello, QR_ROLES_LATEST, 0, 1},
    };
    for (size_t i = 0; i < QR_COUNT(life); i++) {
        if (life[i].type != type || (life[i].from && life[i].from != from) || (life[i].to && life[i].to != to)) continue;
        if (type == QR_MESSAGE_alarm && from != to) return NULL;
        return &life[i];
    }
    return NULL;
}

const qr_roles_row_t *qr_roles_find(uint8_t from_role, uint8_t to_role, uint16_t type)
{
    switch (KEY(from_role, to_role, type)) {
#define TALK(asker, answerer, ask, window) \
    case KEY(QR_ROLE_##asker, QR_ROLE_##answerer, QR_MESSAGE_##ask): return &rows[row_##asker##_##answerer##_##ask];
#define NOTE(sender, receiver, notice, bound) \
    case KEY(QR_ROLE_##sender, QR_ROLE_##receiver, QR_MESSAGE_##notice): return &rows[row_##sender##_##receiver##_##notice];
#include "actors/roles.def"
    default: break;
    }
    return find_life(from_role, to_role, type);
}

const qr_roles_row_t *qr_roles_question(uint8_t from_role, uint8_t to_role, uint16_t type)
{
    const qr_schema_t *row = qr_schema_find(type);
    if (QR_MUTANT(19) && row && row->question && qr_roles_find(from_role, to_role, row->question)) return &rows[0];
    return row && row->question ? qr_roles_find(to_role, from_role, row->question) : NULL;
}

bool qr_roles_may(uint8_t from_role, uint8_t to_role, uint16_t type)
{
    return qr_roles_find(from_role, to_role, type) || qr_roles_question(from_role, to_role, type);
}

uint64_t qr_roles_window(uint8_t asker, uint8_t answerer, uint16_t ask)
{
    const qr_roles_row_t *row = qr_roles_find(asker, answerer, ask);
    return row && row->kind == QR_ROLES_ASK ? row->bound : 0;
}

uint64_t qr_roles_windows_sum(uint8_t from_role, uint8_t to_role)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        if (rows[i].kind != QR_ROLES_ASK) continue;
        if (rows[i].from == from_role && rows[i].to == to_role) sum += rows[i].bound;
        if (rows[i].from == to_role && rows[i].to == from_role) sum += rows[i].bound;
    }
    if (from_role == QR_ROLE_mesh || to_role == QR_ROLE_mesh) sum += 3; /* start, drain, stop or their answers */
    return sum;
}

bool qr_roles_talk(uint8_t role, uint8_t other)
{
    for (uint32_t i = 0; i < row_count; i++)
        if ((rows[i].from == role && rows[i].to == other) || (rows[i].from == other && rows[i].to == role)) return true;
    return false;
}

uint8_t qr_roles_unit(uint8_t role)
{
    switch (role) {
    case QR_ROLE_worker:
    case QR_ROLE_scheduler:
    case QR_ROLE_page_manager:
    case QR_ROLE_restore_streamer:
    case QR_ROLE_checkpoint_writer:
    case QR_ROLE_executor:
    case QR_ROLE_transfer: return QR_ROLE_worker;
    case QR_ROLE_http:
    case QR_ROLE_text:
    case QR_ROLE_gateway:
    case QR_ROLE_router:
    case QR_ROLE_prompt: return QR_ROLE_gateway;
    default: return role;
    }
}

bool qr_roles_cross(uint8_t from_role, uint8_t to_role, uint16_t type)
{
    if (!qr_roles_may(from_role, to_role, type)) return false;
    switch (type) {
    case QR_MESSAGE_metrics_read:
    case QR_MESSAGE_metrics:
    case QR_MESSAGE_cache_drop:
    case QR_MESSAGE_cache_dropped: return true;
    case QR_MESSAGE_observation:
    case QR_MESSAGE_beat: return from_role == QR_ROLE_heartbeat && to_role == QR_ROLE_heartbeat;
    default: return qr_roles_unit(from_role) != qr_roles_unit(to_role);
    }
}

const qr_roles_row_t *qr_roles_at(uint32_t index) { return index < row_count ? &rows[index] : NULL; }
