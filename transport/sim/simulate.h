/* simulate.h - a plan is everything a run depends on; it is drawn from a seed, can be made smaller, and always has the same history.
 *
 * L1. A run has two phases: things go wrong while clients ask; then everything heals, every open request ends, new ones are answered
 *     in full, and after cache_drop every pool is full.
 * L2. The same plan gives the same hash, whatever ran before it in the process. */
#ifndef QR_SIM_SIMULATE_H
#define QR_SIM_SIMULATE_H

#include "transport/sim/catalog.h"
#include "transport/sim/clients.h"
#include "transport/sim/device.h"
#include "transport/sim/storage.h"
#include "transport/sim/world.h"

enum qr_sim_profile {
    QR_PROFILE_MIXED, /* one of the others, or everything at once, by seed */
    QR_PROFILE_CALM,
    QR_PROFILE_NETWORK,
    QR_PROFILE_PROCESS,
    QR_PROFILE_DEVICE,
    QR_PROFILE_ALL,
    QR_PROFILE_LARGE,     /* 33 meshes of one edge and 31 workers, ten minutes at 200 requests a second; never drawn */
    QR_PROFILE_FAIL_OVER, /* device nodes die one after the other; nobody may notice */
    QR_PROFILE_CATALOG,   /* units of the catalog end alone, disks fail, the log is cut and claimed by others */
    QR_PROFILE_STORE,     /* rows are captured and restored; disks are full, slow and rotten, storage ends alone, moves fail */
    QR_PROFILES
};

typedef struct qr_sim_plan {
    uint64_t seed, busy_us;
    uint32_t profile;
    uint32_t node_count, mesh_count, fault_count;
    qr_sim_node_plan_t nodes[QR_NODES_MAX];
    qr_sim_fault_t faults[64];
    qr_sim_workload_t workload;
    qr_sim_cost_t cost;
    uint64_t link_us, local_us;
    uint32_t check_every;
    const qr_actor_class_t *doctored; /* world.h */
    /* of qr_given_t */
    uint32_t page_tokens, pages, window, window_pages, context, lanes, requests, tile, wait_rows;
    uint32_t peer_down_ms, offer_timeout_ms, request_timeout_ms, fail_over;
    qr_sim_catalog_work_t catalog; /* chains 0: this world has no catalog */
    uint32_t uneven;               /* not 0: nodes differ in pools and costs, drawn from it */
    qr_sim_store_work_t store;     /* bytes_max 0: this world has no store; it needs a catalog */
    uint32_t over_commit, tranche_tokens, preempt_quantum;
    uint64_t spill_row_ns;                   /* most of one row of a preempted request moved */
    uint32_t spill_pages, spill_fail_one_in; /* room for rows of preempted requests in pages, 0: they are computed again; moves that fail */
} qr_sim_plan_t;

enum { QR_SIM_TALKS = 256 }; /* most rows of actors/roles.def */
enum { QR_SIM_ASKED = 1, QR_SIM_ANSWERED = 2 };

typedef struct qr_sim_result {
    char finding[QR_SIM_FINDING_BYTES]; /* "" = none */
    uint64_t hash, now_us;
    qr_sim_counts_t counts;
    qr_sim_answers_t answers;
    qr_sim_catalog_counts_t catalog;
    qr_sim_store_counts_t store;
    qr_sim_spills_t spills;
    uint8_t said[QR_SIM_TALKS]; /* QR_SIM_* of each row of actors/roles.def (qr_roles_at) */
} qr_sim_result_t;

/* nodes 0: drawn. */
void qr_sim_plan_draw(qr_sim_plan_t *plan, uint64_t seed, uint32_t profile, uint32_t nodes);
/* Runs a plan. trace and tell may be NULL: every message as a line; the last messages and all states after a finding. true: no finding. */
bool qr_sim_plan_run(const qr_sim_plan_t *plan, qr_sim_result_t *ret_result, FILE *trace, FILE *tell);
/* Makes a plan with a finding smaller while it still has one (not always the same). Returns the number of runs it took. */
uint32_t qr_sim_plan_shrink(qr_sim_plan_t *plan, uint32_t runs_most);
/* Writes a plan as the C initialiser a named test holds. */
void qr_sim_plan_print(const qr_sim_plan_t *plan, FILE *out);
/* "mixed", "calm", ...; QR_PROFILES when there is none of that name. */
const char *qr_sim_profile_name(uint32_t profile);
uint32_t qr_sim_profile_find(const char *name);

/* `quire simulate`. clock_us: for the rate it prints; nothing that is decided looks at it. */
int qr_simulate_main(int count, char **word, uint64_t (*clock_us)(void));

#endif
