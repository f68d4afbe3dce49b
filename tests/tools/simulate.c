/* link: qr_sim qr_actor_checkpoint_writer qr_actor_restore_streamer qr_actor_capture_value qr_actor_catalog_writer qr_actor_catalog_replica qr_actor_catalog_batch qr_actor_gateway qr_actor_quota qr_actor_router qr_actor_worker qr_actor_scheduler qr_actor_cost qr_actor_page_manager qr_actor_residents qr_actor_prefix_tree qr_actor_page_table qr_actor_residency qr_actor_plan qr_actor_calibration qr_actor_detokenize qr_actor_heartbeat qr_messages qr_actor_decisions */
/* simulate.c - `quire simulate` without the rest of the program, so that it also builds fast under sanitizers and with seeded defects. */
#include "transport/sim/simulate.h"

#include <time.h>

static uint64_t clock_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int main(int count, char **word) { return qr_simulate_main(count - 1, word + 1, clock_us); }
