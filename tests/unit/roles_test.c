/* link: qr_actor_roles */
/* roles_test.c - roles.def and schema.def fit each other, and nothing but their rows is allowed. */
#include "actors/roles.h"
#include "messages/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static bool may(uint8_t from, uint8_t to, uint16_t type) { return qr_roles_may(from, to, type); }

static void test_examples(void **state)
{
    (void)state;
    enum {
        G = QR_ROLE_gateway,
        R = QR_ROLE_router,
        W = QR_ROLE_worker,
        S = QR_ROLE_scheduler,
        P = QR_ROLE_page_manager,
        E = QR_ROLE_executor
    };
    assert_true(may(G, R, QR_MESSAGE_place));
    assert_true(may(R, G, QR_MESSAGE_place_ended));
    assert_true(may(R, G, QR_MESSAGE_place_refused));
    assert_true(may(G, R, QR_MESSAGE_place_cancel));
    assert_false(may(R, G, QR_MESSAGE_place));
    assert_false(may(G, R, QR_MESSAGE_place_ended));
    assert_false(may(G, W, QR_MESSAGE_place));
    assert_false(may(W, E, QR_MESSAGE_batch_run));
    assert_true(may(S, P, QR_MESSAGE_rows_committed));
    assert_false(may(P, S, QR_MESSAGE_rows_committed));
    assert_int_equal(qr_roles_window(S, E, QR_MESSAGE_batch_run), QR_BATCHES_IN_FLIGHT);
    assert_int_equal(qr_roles_window(E, S, QR_MESSAGE_batch_run), 0);
    assert_int_equal(qr_roles_window(S, P, QR_MESSAGE_rows_committed), 0);
    const qr_roles_row_t *row = qr_roles_find(S, P, QR_MESSAGE_rows_committed);
    assert_true(row->kind == QR_ROLES_WITHIN && row->within == QR_MESSAGE_batch_run && row->bound == 1);
    row = qr_roles_question(E, S, QR_MESSAGE_batch_failed);
    assert_true(row && row->type == QR_MESSAGE_batch_run && row->from == S && row->to == E);
    assert_null(qr_roles_question(S, E, QR_MESSAGE_batch_failed));
    assert_int_equal(qr_roles_find(W, QR_ROLE_heartbeat, QR_MESSAGE_observation)->kind, QR_ROLES_LATEST);
    assert_int_equal(qr_roles_windows_sum(S, E), 2 * QR_LANES_MAX + QR_BATCHES_IN_FLIGHT + 16);
    assert_int_equal(qr_roles_windows_sum(E, S), 2 * QR_LANES_MAX + QR_BATCHES_IN_FLIGHT + 16);
    assert_int_equal(qr_roles_windows_sum(E, P), 0);
    assert_true(qr_roles_talk(R, W) && qr_roles_talk(W, R) && !qr_roles_talk(E, R));
}

static void test_life(void **state)
{
    (void)state;
    for (uint8_t role = 1; role <= QR_ROLE_prompt; role++) {
        assert_true(may(QR_ROLE_mesh, role, QR_MESSAGE_start));
        assert_true(may(role, QR_ROLE_mesh, QR_MESSAGE_ready));
        assert_true(may(QR_ROLE_mesh, role, QR_MESSAGE_drain) && may(role, QR_ROLE_mesh, QR_MESSAGE_drained));
        assert_true(may(QR_ROLE_mesh, role, QR_MESSAGE_stop) && may(role, QR_ROLE_mesh, QR_MESSAGE_stopped));
        assert_int_equal(qr_roles_window(QR_ROLE_mesh, role, QR_MESSAGE_stop), 1);
        assert_true(may(role, role, QR_MESSAGE_alarm));
        assert_true(may(QR_ROLE_uplink, role, QR_MESSAGE_link_down) && may(QR_ROLE_uplink, role, QR_MESSAGE_link_up));
        if (role == QR_ROLE_mesh) continue;
        assert_false(may(role, QR_ROLE_mesh, QR_MESSAGE_alarm));
        assert_false(may(role, QR_ROLE_mesh, QR_MESSAGE_start));
        assert_false(may(role, QR_ROLE_worker, QR_MESSAGE_stop));
        if (role != QR_ROLE_uplink) assert_false(may(role, QR_ROLE_worker, QR_MESSAGE_link_down));
    }
    assert_true(may(QR_ROLE_uplink, QR_ROLE_uplink, QR_MESSAGE_link_hello));
    assert_false(may(QR_ROLE_uplink, QR_ROLE_worker, QR_MESSAGE_link_hello));
}

/* Every row names an ask or a notice as its word says; WITHIN names an ask that sender or receiver takes part in. */
static void test_rows_fit_schema(void **state)
{
    (void)state;
    uint32_t count = 0;
    for (const qr_roles_row_t *row; (row = qr_roles_at(count)) != NULL; count++) {
        const qr_schema_t *schema = qr_schema_find(row->type);
        assert_int_equal(schema->mood, row->kind == QR_ROLES_ASK ? QR_MOOD_ASK : QR_MOOD_NOTICE);
        assert_true(row->bound > 0);
        assert_ptr_equal(qr_roles_find(row->from, row->to, row->type), row);
        if (row->kind != QR_ROLES_WITHIN) continue;
        bool found = false;
        for (uint32_t i = 0; qr_roles_at(i); i++) {
            const qr_roles_row_t *ask = qr_roles_at(i);
            bool shares = ask->from == row->from || ask->from == row->to || ask->to == row->from || ask->to == row->to;
            found = found || (ask->kind == QR_ROLES_ASK && ask->type == row->within && shares);
        }
        assert_true(found);
    }
    assert_true(count > 40);
}

/* No message of the schema is without anyone who may say it, and nothing is allowed beyond rows, their answers and life. */
static void test_closed(void **state)
{
    (void)state;
    uint64_t allowed = 0, expected = 0, answers[QR_MESSAGE_TYPES_MAX] = {0};
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
        bool said = false;
        if (qr_schema_find(type)) answers[qr_schema_find(type)->question]++;
        for (uint8_t from = 0; from < QR_ROLES_MAX; from++)
            for (uint8_t to = 0; to < QR_ROLES_MAX; to++)
                if (may(from, to, type)) said = true, allowed += type >= QR_MESSAGE_probe;
        assert_true(said == (qr_schema_find(type) != NULL));
    }
    for (uint32_t i = 0; qr_roles_at(i); i++) expected += 1 + (qr_roles_at(i)->kind == QR_ROLES_ASK ? answers[qr_roles_at(i)->type] : 0);
    assert_int_equal(allowed, expected);
}

/* Failure units do not reach across nodes: what a remote edge or device group says to ours is refused, metrics and cache drops apart. */
static void test_what_crosses_nodes(void **state)
{
    (void)state;
    enum { H = QR_ROLE_http, G = QR_ROLE_gateway, R = QR_ROLE_router, W = QR_ROLE_worker, S = QR_ROLE_scheduler, B = QR_ROLE_heartbeat };
    assert_true(qr_roles_cross(R, W, QR_MESSAGE_offer) && qr_roles_cross(W, R, QR_MESSAGE_offer_accepted));
    assert_true(qr_roles_cross(W, R, QR_MESSAGE_tokens) && qr_roles_cross(R, W, QR_MESSAGE_tokens_taken));
    assert_true(qr_roles_cross(R, W, QR_MESSAGE_probe) && qr_roles_cross(W, R, QR_MESSAGE_probe_done));
    assert_true(qr_roles_cross(B, B, QR_MESSAGE_beat) && qr_roles_cross(B, B, QR_MESSAGE_observation));
    assert_true(qr_roles_cross(H, R, QR_MESSAGE_metrics_read) && qr_roles_cross(R, H, QR_MESSAGE_metrics));
    assert_true(qr_roles_cross(H, QR_ROLE_page_manager, QR_MESSAGE_cache_drop));
    assert_false(qr_roles_cross(H, G, QR_MESSAGE_probe) || qr_roles_cross(G, H, QR_MESSAGE_probe_done));
    assert_false(qr_roles_cross(G, R, QR_MESSAGE_probe) || qr_roles_cross(R, G, QR_MESSAGE_tokens));
    assert_false(qr_roles_cross(G, R, QR_MESSAGE_tokens_taken));
    assert_false(qr_roles_cross(W, S, QR_MESSAGE_probe) || qr_roles_cross(S, QR_ROLE_executor, QR_MESSAGE_probe));
    assert_false(qr_roles_cross(B, R, QR_MESSAGE_observation) || qr_roles_cross(W, B, QR_MESSAGE_observation));
    assert_false(qr_roles_cross(W, R, QR_MESSAGE_offer)); /* no row */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_rows_fit_schema),
        cmocka_unit_test(test_closed),
        cmocka_unit_test(test_what_crosses_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
