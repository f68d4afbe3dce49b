/* link: qr_sim qr_actor_page_manager qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_actor_residents qr_actor_roles */
/* harness.c - talk with one actor by hand. No model, no socket, no thread: just the page manager, which owns every page of a device,
 * and you in the place of its scheduler. Build and run:
 *
 *   cmake --build build --target example_harness && build/example_harness
 *
 * Lines with --> are what the actor hears, lines with <-- what it says; time stands in front. messages/README.md lists every message
 * and what its fields mean, actors/roles.def who may say what to whom. tests/conversations has more of these. */
#include "transport/sim/harness.h"

#include "actors/page_manager.h"

/* An address says where an actor lives: node, device, role, instance. */
#define ME qr_address(1, 1, QR_ROLE_page_manager, 0)
#define SCHEDULER qr_address(1, 1, QR_ROLE_scheduler, 0)
#define MESH qr_address(1, 0, QR_ROLE_mesh, 0)
#define ADMIN qr_address(1, 0, QR_ROLE_http, 0)

/* Eight tokens of a prompt that two requests share, and what comes after them. */
#define PROMPT 11, 12, 13, 14, 15, 16, 17, 18

/* Asks for pages; the route that was granted, 0 if none was. */
static uint64_t reserve(qr_harness_t *h, uint64_t request_id, qr_u32s_t tokens, uint32_t rows_max)
{
    QR_HARNESS_SAY(h, SCHEDULER, pages_reserve, .request_id = request_id, .attempt = 1, .tokens = tokens, .rows_max = rows_max,
                   .first_rows = 1);
    const qr_pages_granted_t *granted = QR_HARNESS_HEARD(h, pages_granted);
    return granted ? granted->route : 0;
}

int main(void)
{
    /* What an actor is given at boot: parameters and the layout of the device, here 8 pages of 4 rows. */
    qr_given_t given;
    qr_harness_given(&given);
    qr_harness_t *h = qr_harness_new(&qr_page_manager_class, &given, ME, stdout);
    if (!h) return 2;
    QR_HARNESS_SAY(h, MESH, start, .epoch = 1, .seed = 7);

    qr_harness_remark(h, "a request with 8 prompt tokens, and room for 4 rows more: 3 pages");
    uint64_t first = reserve(h, 1, (qr_u32s_t)QR_U32S(PROMPT), 12);

    qr_harness_remark(h, "its batch ran: 8 rows stand in its pages (the page manager is told; nobody waits for an answer)");
    QR_HARNESS_SAY(h, SCHEDULER, rows_committed, .routes = QR_U64S(first), .rows = QR_U32S(8), .token_counts = QR_U32S(0));

    qr_harness_remark(h, "another request begins with the same 6 tokens: one whole page is shared, 2 rows of the next are copied");
    uint64_t second = reserve(h, 2, (qr_u32s_t)QR_U32S(11, 12, 13, 14, 15, 16, 27, 28), 8);

    qr_harness_remark(h, "both end; `keep` leaves their rows as cache");
    QR_HARNESS_SAY(h, SCHEDULER, rows_committed, .routes = QR_U64S(second), .rows = QR_U32S(8), .token_counts = QR_U32S(0));
    QR_HARNESS_SAY(h, SCHEDULER, route_release, .route = first, .keep = 1);
    QR_HARNESS_SAY(h, SCHEDULER, route_release, .route = second, .keep = 1);

    qr_harness_remark(h, "what it is now, in its own words");
    qr_harness_state(h);

    qr_harness_remark(h, "a scheduler may not drop the cache: a host would end the process here, the harness only says so");
    QR_HARNESS_SAY(h, SCHEDULER, cache_drop, .version = 1);
    qr_harness_remark(h, "an administrator may");
    QR_HARNESS_SAY(h, ADMIN, cache_drop, .version = 1);

    bool fine = qr_harness_fault(h) == QR_VERDICT_OK; /* it said nothing it may not say */
    qr_harness_destroy(&h);
    return fine ? 0 : 1;
}
