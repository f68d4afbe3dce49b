/* simulate.c - see simulate.h. */
#include "transport/sim/simulate.h"

#include "actors/checkpoint_writer.h"
#include "actors/restore_streamer.h"
#include "actors/roles.h"
#include "base/error.h"
#include "transport/sim/judge.h"
#include "transport/sim/text.h"
#include "transport/stop.h"
#include "transport/sim/transfer.h"

#include <stdlib.h>

#define FAIL_OVER_GAP_US(plan) (6000000 + 3000ull * (plan)->peer_down_ms)
enum { SETTLE_US = 2000000, QUIET_US = 90000000, LAST_US = 60000000, SHRINK_RUNS = 400, SET_ASIDE = 6 };
enum { PATIENCE_MOST_MS = 60000 /* ends well within QUIET_US */, UNEVEN_MOST = 3 /* fill_uneven: 6 halves */ };

static const char *const profile_names[QR_PROFILES] = {"mixed", "calm",  "network",  "process", "device",
                                                       "all",   "large", "failover", "catalog", "store"};
const char *qr_sim_profile_name(uint32_t profile) { return profile < QR_PROFILES ? profile_names[profile] : "?"; }
uint32_t qr_sim_profile_find(const char *name)
{
    uint32_t i = 0;
    while (i < QR_PROFILES && strcmp(name, profile_names[i])) i++;
    return i;
}

/* ---- drawing --------------------------------------------------------------------------------------------------------------------------
 */

static uint32_t between(qr_prng_t *prng, uint32_t least, uint32_t most)
{
    return least + (uint32_t)qr_prng_below(prng, (uint64_t)most - least + 1);
}

/* limits.md: an H200, 3.1 ms a step and 38 ms for 2,048 rows; a few cores of a CPU, 2.5 ms and 0.4 ms a row. */
static const qr_sim_cost_t fast_cost = {3100, 18000, 2}, slow_cost = {2500, 400000, 200};

static uint32_t kinds_of(uint32_t profile)
{
    const uint32_t network = 1u << QR_FAULT_CUT | 1u << QR_FAULT_BREAK | 1u << QR_FAULT_TWICE;
    const uint32_t process = 1u << QR_FAULT_KILL | 1u << QR_FAULT_PAUSE | 1u << QR_FAULT_LEAVE | 1u << QR_FAULT_STUCK;
    const uint32_t device = 1u << QR_FAULT_SLOW | 1u << QR_FAULT_BATCHES | 1u << QR_FAULT_LANES;
    switch (profile) {
    case QR_PROFILE_NETWORK: return network;
    case QR_PROFILE_PROCESS: return process;
    case QR_PROFILE_DEVICE: return device;
    case QR_PROFILE_ALL: return network | process | device;
    default: return 0;
    }
}

static void draw_faults(qr_sim_plan_t *plan, qr_prng_t *prng, uint32_t kinds)
{
    uint32_t count = kinds ? between(prng, 1, 14) : 0;
    for (uint32_t i = 0; i < count; i++) {
        qr_sim_fault_t *f = &plan->faults[plan->fault_count++];
        do f->kind = between(prng, 1, QR_FAULT_FENCE); /* what came later is drawn elsewhere, so that old seeds mean what they meant */
        while (!(kinds >> f->kind & 1u));
        f->at_us = 50000 + qr_prng_below(prng, plan->busy_us);
        uint32_t down_us = plan->peer_down_ms * 1000;
        f->for_us = qr_prng_one_in(prng, 2) ? 1 + qr_prng_below(prng, down_us) : 1 + qr_prng_below(prng, 3 * (uint64_t)down_us);
        f->node = (uint32_t)qr_prng_below(prng, plan->node_count);
        f->other = (uint32_t)qr_prng_below(prng, plan->node_count);
        f->amount = f->kind == QR_FAULT_SLOW ? between(prng, 2, 60) : between(prng, 2, 12);
        if (f->kind == QR_FAULT_BATCHES || f->kind == QR_FAULT_LANES)
            f->for_us = qr_max_u64(f->for_us, plan->busy_us / 4); /* they happen only while batches run */
    }
    for (uint32_t i = 0; i < plan->fault_count; i++)
        plan->workload.faults |= 1u << plan->faults[i].kind; /* what is drawn, not what might be */
}

/* Two to four device nodes behind edges that live; one at a time is dead, and it is there again well before the next one dies. Meanwhile
 * nodes pause and links stall for less than counts as silence, and sessions break: nobody may notice any of it. */
static void draw_fail_over(qr_sim_plan_t *plan, qr_prng_t *prng)
{
    uint32_t edges = between(prng, 1, 2), devices = between(prng, 2, 4), silence_us = plan->peer_down_ms * 1000;
    plan->node_count = edges + devices;
    for (uint32_t n = 0; n < plan->node_count; n++)
        plan->nodes[n] = (qr_sim_node_plan_t){n < edges ? QR_SIM_EDGE : QR_SIM_DEVICE, n >= edges};
    plan->workload.fail_over = 1;
    plan->offer_timeout_ms =
        between(prng, 150, 600); /* above the slowest round trip; what waits for an answer also gives up within a pause */
    uint64_t at_us = 2000000, gap_us = FAIL_OVER_GAP_US(plan);
    for (uint32_t i = between(prng, 1, 4); i > 0; i--) {
        uint32_t device = edges + (uint32_t)qr_prng_below(prng, devices), edge = (uint32_t)qr_prng_below(prng, edges),
                 kind = between(prng, 1, 6);
        qr_sim_fault_t *f = &plan->faults[plan->fault_count++];
        *f = (qr_sim_fault_t){
            .at_us = at_us + qr_prng_below(prng, 500000), .for_us = 1 + qr_prng_below(prng, 1000000), .node = device, .other = edge};
        f->kind = kind <= 2   ? QR_FAULT_KILL
                  : kind == 3 ? QR_FAULT_LEAVE
                  : kind == 4 ? QR_FAULT_PAUSE
                  : kind == 5 ? QR_FAULT_CUT
                              : QR_FAULT_BREAK;
        if (kind == 4 || kind == 5) f->for_us = 1 + qr_prng_below(prng, (uint64_t)silence_us * 9 / 10);
        if (kind == 4 && qr_prng_one_in(prng, 3)) f->node = edge;
        at_us += gap_us;
    }
    for (uint32_t i = 0; i < plan->fault_count; i++) plan->workload.faults |= 1u << plan->faults[i].kind;
    plan->busy_us = at_us;
}

/* The largest meshes there are, next to each other under one clock; nothing goes wrong, so what is measured is the speed. */
static void draw_large(qr_sim_plan_t *plan)
{
    plan->node_count = QR_NODES_MAX;
    plan->mesh_count = 33;
    for (uint32_t n = 0; n < plan->node_count; n++) plan->nodes[n] = (qr_sim_node_plan_t){n ? QR_SIM_DEVICE : QR_SIM_EDGE, n > 0};
    plan->busy_us = 600000000;
    plan->check_every = 1000;
    plan->context = 256;
    plan->page_tokens = 16;
    plan->pages = 256;
    plan->window = plan->window_pages = 0;
    plan->lanes = 8;
    plan->requests = 32;
    plan->tile = 64;
    plan->peer_down_ms = 1000;
    plan->workload.requests = 200 * 600 / plan->mesh_count + 1;
    plan->workload.gap_us = plan->busy_us / plan->workload.requests;
    plan->workload.busy_until_us = plan->busy_us;
    plan->workload.prompt_most = 128;
    plan->workload.answer_most = 40;
}

static const uint32_t catalog_kinds[] = {QR_FAULT_UNIT, QR_FAULT_UNIT,  QR_FAULT_UNIT, QR_FAULT_APPEND, QR_FAULT_DISK, QR_FAULT_LOG,
                                         QR_FAULT_LOG,  QR_FAULT_FENCE, QR_FAULT_KILL, QR_FAULT_BREAK,  QR_FAULT_CUT,  QR_FAULT_STUCK};

/* What goes wrong around the catalog; of worlds whose edges and workers nobody may miss only units, between two deaths. */
static void draw_catalog_faults(qr_sim_plan_t *plan, qr_prng_t *prng)
{
    uint32_t most = QR_COUNT(plan->faults) - plan->fault_count, units = QR_SIM_UNITS - (plan->profile == QR_PROFILE_FAIL_OVER);
    uint32_t count = qr_min_u32(most, between(prng, 1, plan->profile == QR_PROFILE_CATALOG ? 12 : 5));
    uint64_t down_us = plan->peer_down_ms * 1000ull;
    for (uint32_t i = 0; i < count; i++) {
        qr_sim_fault_t *f = &plan->faults[plan->fault_count++];
        f->kind = plan->profile == QR_PROFILE_FAIL_OVER ? QR_FAULT_UNIT : catalog_kinds[qr_prng_below(prng, QR_COUNT(catalog_kinds))];
        f->at_us = 20000 + qr_prng_below(prng, plan->busy_us);
        if (plan->profile == QR_PROFILE_FAIL_OVER) /* as draw_fail_over: well between two deaths */
            f->at_us = 5500000 + qr_prng_below(prng, 300000) +
                       FAIL_OVER_GAP_US(plan) * qr_prng_below(prng, plan->busy_us / FAIL_OVER_GAP_US(plan));
        f->for_us = 1 + qr_prng_below(prng, f->kind == QR_FAULT_UNIT ? 200000 : f->kind == QR_FAULT_KILL ? down_us : plan->busy_us / 3);
        if (f->kind == QR_FAULT_CUT || f->kind == QR_FAULT_STUCK) f->for_us = qr_min_u64(f->for_us, 3 * down_us);
        f->node = (uint32_t)qr_prng_below(prng, plan->node_count);
        f->other = (uint32_t)qr_prng_below(prng, f->kind == QR_FAULT_UNIT ? 8 : plan->node_count);
        f->amount = f->kind == QR_FAULT_UNIT ? (uint32_t)qr_prng_below(prng, units) : between(prng, 1, 8);
        plan->workload.faults |= 1u << f->kind;
        if (f->kind != QR_FAULT_FENCE || qr_prng_one_in(prng, 3) || plan->fault_count == QR_COUNT(plan->faults)) continue;
        f->amount = 1; /* the other writer comes while facts is away */
        plan->faults[plan->fault_count++] = (qr_sim_fault_t){.at_us = f->at_us - qr_prng_below(prng, 20000),
                                                             .for_us = 1 + qr_prng_below(prng, 50000),
                                                             .kind = QR_FAULT_UNIT,
                                                             .node = f->node};
        plan->workload.faults |= 1u << QR_FAULT_UNIT;
    }
}

static const uint32_t store_kinds[] = {QR_FAULT_STORAGE, QR_FAULT_STORAGE, QR_FAULT_FULL,   QR_FAULT_ROT,  QR_FAULT_ROT,
                                       QR_FAULT_MOVES,   QR_FAULT_MOVES,   QR_FAULT_APPEND, QR_FAULT_DISK, QR_FAULT_SLOW,
                                       QR_FAULT_KILL,    QR_FAULT_LEAVE,   QR_FAULT_UNIT};

/* What goes wrong around the store: storage ends alone, disks are full, slow or rotten, moves fail, and nodes die meanwhile. */
static void draw_store_faults(qr_sim_plan_t *plan, qr_prng_t *prng)
{
    uint32_t most = QR_COUNT(plan->faults) - plan->fault_count;
    uint32_t count = qr_min_u32(most, between(prng, plan->profile == QR_PROFILE_STORE ? 0 : 2, 10));
    for (uint32_t i = 0; i < count; i++) {
        qr_sim_fault_t *f = &plan->faults[plan->fault_count++];
        f->kind = store_kinds[qr_prng_below(prng, QR_COUNT(store_kinds))];
        f->at_us = 20000 + qr_prng_below(prng, plan->busy_us);
        bool ends = f->kind == QR_FAULT_UNIT || f->kind == QR_FAULT_STORAGE;
        f->for_us = 1 + qr_prng_below(prng, ends ? 200000 : f->kind == QR_FAULT_KILL ? plan->peer_down_ms * 1000ull : plan->busy_us / 2);
        f->node = (uint32_t)qr_prng_below(prng, plan->node_count);
        f->other = (uint32_t)qr_prng_below(prng, 8);
        f->amount = f->kind == QR_FAULT_UNIT ? (uint32_t)qr_prng_below(prng, QR_SIM_UNITS) : between(prng, 1, 8);
        plan->workload.faults |= 1u << f->kind;
        if (f->kind != QR_FAULT_ROT) continue;
        f->amount = 1 + f->amount / 4; /* few files are read */
        f->for_us = qr_max_u64(f->for_us, plan->busy_us / 3);
    }
}

/* A prompt of a few chunks, asked so often that every node has computed it. */
static void draw_again(qr_sim_plan_t *plan)
{
    qr_sim_workload_t *w = &plan->workload;
    uint32_t chunk = 2 * plan->page_tokens, chunks = qr_min_u32(3, qr_max_u32(1, plan->context / 2 / chunk));
    if (plan->window) return; /* a load ends within a window's pages: what is longer is computed (README.md) */
    w->again_rows = chunks * chunk + 1;
    w->again_tries = 4;
    for (uint32_t n = 0; n < plan->node_count; n++) /* what was slow once is tried again after a dozen (cost.h) */
        w->again_tries += plan->nodes[n].parts & QR_SIM_DEVICE ? 13 * plan->nodes[n].devices : 0;
    w->again_us = 200000 + 16 * plan->store.write_us + chunks * 4 * plan->link_us;
}

/* A store in every world of its profile and in half of those of `all` that have a catalog; pools are small, so that what was computed is
 * soon gone. */
static void draw_store(qr_sim_plan_t *plan, qr_prng_t *prng)
{
    bool has = plan->profile == QR_PROFILE_STORE || (plan->profile == QR_PROFILE_ALL && plan->catalog.chains && qr_prng_one_in(prng, 2));
    if (!has) return;
    qr_sim_store_work_t *w = &plan->store;
    uint64_t chunk_bytes = 64 + 16ull * plan->page_tokens, chain = plan->context / (2 * plan->page_tokens) * (plan->window ? 2 : 1);
    w->bytes_max = chunk_bytes * (qr_prng_one_in(prng, 2) ? 100000 : chain * between(prng, 2, 6));
    w->write_us = between(prng, 100, qr_prng_one_in(prng, 4) ? 40000 : 3000);
    w->move_ns = plan->cost.row_ns / between(prng, 2, 20) + 1;
    w->slots = between(prng, 1, 3);
    w->restore_max_ms = between(prng, 200, 3000);
    w->capture_max_ms = between(prng, 500, 5000);
    plan->workload.drop_us = (uint32_t)(plan->busy_us / between(prng, 2, 10));
    draw_again(plan);
    plan->catalog.nodes_max = 4096;
    plan->workload.prefixes = qr_max_u32(plan->workload.prefixes, 1);
    uint32_t least = plan->context / plan->page_tokens;
    plan->pages = qr_min_u32(plan->pages, 2 * least + between(prng, 2, 20));
    draw_store_faults(plan, prng);
}

/* Memory of a third of the worlds with a store holds everything that is captured, of another a few parts; in a third clients leave soon.
 * From a generator of its own. */
static void draw_ram(qr_sim_plan_t *plan)
{
    qr_prng_t prng;
    qr_prng_init(&prng, plan->seed ^ 0x72616d2074696572u);
    uint32_t slots = between(&prng, 1, 6);
    if (plan->store.bytes_max && !qr_prng_one_in(&prng, 3)) plan->store.ram_slots = qr_prng_one_in(&prng, 2) ? slots : QR_SIM_RAM_SLOTS;
    if (!plan->store.bytes_max || !qr_prng_one_in(&prng, 3)) return;
    plan->workload.cancel_one_in = between(&prng, 2, 4); /* while rows move */
    plan->workload.cancel_us = plan->local_us * 10 + plan->link_us + qr_prng_below(&prng, 10000);
}

/* Continuations are saved in two thirds of the worlds with a store; in half of those the first node, which has facts, computes too. */
static void draw_saves(qr_sim_plan_t *plan)
{
    qr_prng_t prng;
    qr_prng_init(&prng, plan->seed ^ 0x73617665732e2e2eu);
    if (!plan->store.bytes_max || qr_prng_one_in(&prng, 3)) return;
    plan->store.saves_us = plan->busy_us / between(&prng, 4, 40) + 1;
    plan->store.saves_until_us = plan->busy_us;
    if (!(plan->nodes[0].parts & QR_SIM_DEVICE) && qr_prng_one_in(&prng, 2))
        plan->nodes[0] = (qr_sim_node_plan_t){plan->nodes[0].parts | QR_SIM_DEVICE, between(&prng, 1, 2)};
    draw_again(plan);
}

/* Lanes that get pages by tranches out of small pools, so that later requests make room for earlier ones. */
static void draw_over_commit(qr_sim_plan_t *plan, qr_prng_t *prng, bool mixed)
{
    bool may = (mixed && plan->profile != QR_PROFILE_FAIL_OVER) || plan->profile == QR_PROFILE_ALL || plan->profile == QR_PROFILE_STORE;
    if (!may || plan->window || !qr_prng_one_in(prng, 3)) return;
    plan->over_commit = 1;
    plan->tranche_tokens = between(prng, 1, 40);
    plan->preempt_quantum = between(prng, 1, 24);
    plan->pages = qr_min_u32(plan->pages, plan->context / plan->page_tokens + between(prng, 1, 12));
    plan->lanes = qr_max_u32(plan->lanes, 3);
    plan->request_timeout_ms = PATIENCE_MOST_MS; /* small pools are slow; who starves still shows */
    plan->workload.answer_most = qr_max_u32(plan->workload.answer_most, between(prng, 30, 200));
    plan->spill_pages = qr_prng_one_in(prng, 4) ? 0 : qr_prng_one_in(prng, 3) ? between(prng, 1, 6) : 4096;
    plan->spill_fail_one_in = qr_prng_one_in(prng, 4) ? between(prng, 2, 10) : 0;
    plan->spill_row_ns = plan->cost.row_ns / between(prng, 1, 20) + 1;
}

/* Drawn by a generator of its own, so that the rest of a plan is the same with and without a catalog. */
static void draw_catalog(qr_sim_plan_t *plan, qr_prng_t *prng)
{
    bool has = plan->profile == QR_PROFILE_CATALOG || plan->profile == QR_PROFILE_STORE ||
               (plan->profile == QR_PROFILE_ALL && !qr_prng_one_in(prng, 3)) ||
               (plan->profile == QR_PROFILE_FAIL_OVER && qr_prng_one_in(prng, 3));
    if (!has) return;
    qr_sim_catalog_work_t *w = &plan->catalog;
    w->chains = between(prng, 1, 5);
    w->depth = between(prng, 1, qr_min_u32(6, plan->context / (2 * plan->page_tokens)));
    w->publishes = between(prng, 8, 40);
    w->nodes_max = qr_prng_one_in(prng, 4) ? between(prng, 16, 30) : between(prng, 64, 200);
    w->publish_us = plan->busy_us / w->publishes / 2 + 1;
    w->look_us = plan->busy_us / between(prng, 10, 40) + 1;
    w->write_us = between(prng, 200, qr_prng_one_in(prng, 3) ? 60000 : 6000);
    w->busy_until_us = plan->busy_us;
    w->seed = plan->workload.seed;
    if (plan->profile != QR_PROFILE_STORE) draw_catalog_faults(plan, prng);
}

static void draw_nodes(qr_sim_plan_t *plan, qr_prng_t *prng, uint32_t nodes)
{
    if (!nodes) nodes = between(prng, 1, 6);
    plan->node_count = qr_min_u32(qr_max_u32(nodes, 1), QR_NODES_MAX);
    uint32_t edges = plan->node_count == 1 ? 1 : 1 + (uint32_t)qr_prng_below(prng, qr_max_u32(1, plan->node_count / 3));
    for (uint32_t n = 0; n < plan->node_count; n++) {
        bool edge = n < edges, both = plan->node_count == 1 || (edge && qr_prng_one_in(prng, 3));
        plan->nodes[n].parts = both ? QR_SIM_EDGE | QR_SIM_DEVICE : edge ? QR_SIM_EDGE : QR_SIM_DEVICE;
        plan->nodes[n].devices = plan->nodes[n].parts & QR_SIM_DEVICE ? between(prng, 1, 2) : 0;
    }
}

/* What a third or so of the worlds have beside the rest; from a generator of its own, so that the rest stays what it was. */
static void draw_more(qr_sim_plan_t *plan)
{
    qr_prng_t prng;
    qr_sim_workload_t *w = &plan->workload;
    qr_prng_init(&prng, plan->seed ^ 0x6d6f72652e2e2e21u);
    if (qr_prng_one_in(&prng, 3)) w->stop_one_in = between(&prng, 1, 5);
    if (qr_prng_one_in(&prng, 3)) w->chat_one_in = between(&prng, 2, 6);
    if (qr_prng_one_in(&prng, 3)) w->tenant_one_in = between(&prng, 2, 5);
    if (qr_prng_one_in(&prng, 4)) w->slow_one_in = between(&prng, 2, 10);
    w->slow_bytes = between(&prng, 4, 64);
    w->slow_us = between(&prng, 20000, 2000000);
    if (qr_prng_one_in(&prng, 2)) w->probe_us = between(&prng, 20000, 500000);
    if (qr_prng_one_in(&prng, 2)) w->read_us = between(&prng, 20000, 500000);
    if (plan->window && qr_prng_one_in(&prng, 2)) /* room for one route and little more: what leaves a window is used again at once */
        plan->window_pages = (plan->window + 2 * plan->tile) / plan->page_tokens + between(&prng, 3, 3 + plan->lanes);
    if (qr_prng_one_in(&prng, 2)) plan->uneven = between(&prng, 1, UINT32_MAX);
    if (plan->profile != QR_PROFILE_FAIL_OVER || qr_prng_one_in(&prng, 2)) return;
    plan->cost = fast_cost; /* long answers from a fast device: more than a router keeps piles up in a stall */
    w->prompt_most = qr_max_u32(2, plan->context / 4);
    w->prefix_tokens = qr_min_u32(w->prefix_tokens, plan->context / 8);
    w->answer_most = between(&prng, 150, 300);
}

/* In worlds where no fault explains a deadline everybody waits as long as a worker may take for all that its table holds, one request after
 * another (a pool may hold no more) on the slowest device that fill_uneven makes: who gets no turn in that time was forgotten or passed
 * over. Batches of one request: its answer's rows one by one, its prompt's by tiles, a few that overlap with the neighbours. */
static void draw_patience(qr_sim_plan_t *plan)
{
    const uint32_t short_ones = 1u << QR_FAULT_BATCHES | 1u << QR_FAULT_LANES; /* over at once, and no explanation (clients.c, K4) */
    const qr_sim_workload_t *w = &plan->workload;
    if (plan->profile == QR_PROFILE_LARGE || (!w->fail_over && (w->faults & ~short_ones))) return;
    uint64_t tiles = plan->context / plan->tile + 1, draws = qr_min_u32(w->answer_most, plan->context), batches = draws + tiles + 2;
    uint64_t rows_ns = (draws + plan->context) * plan->cost.row_ns, lanes_us = batches * plan->cost.lane_us;
    uint64_t each_us = (batches * plan->cost.base_us + rows_ns / 1000) * (plan->uneven ? UNEVEN_MOST : 1) + lanes_us;
    each_us = each_us * 13 / 10; /* device.c: a batch takes 80 to 129 of 100 of its cost */
    plan->request_timeout_ms =
        qr_max_u32(plan->request_timeout_ms, (uint32_t)qr_min_u64(PATIENCE_MOST_MS, plan->requests * each_us / 1000));
}

void qr_sim_plan_draw(qr_sim_plan_t *plan, uint64_t seed, uint32_t profile, uint32_t nodes)
{
    qr_prng_t prng, other, of_store;
    memset(plan, 0, sizeof *plan);
    qr_prng_init(&prng, seed ^ 0x73696d756c617465u);
    qr_prng_init(&other, seed ^ 0x636174616c6f67u);
    qr_prng_init(&of_store, seed ^ 0x73746f7265u);
    plan->seed = seed;
    plan->profile = profile == QR_PROFILE_MIXED ? between(&prng, QR_PROFILE_CALM, QR_PROFILE_FAIL_OVER) : profile;
    if (profile == QR_PROFILE_MIXED && plan->profile == QR_PROFILE_LARGE)
        plan->profile = seed & 1 ? QR_PROFILE_CATALOG : QR_PROFILE_STORE; /* large is never drawn */
    static const uint32_t page_tokens[] = {8, 8, 16, 32};
    plan->page_tokens = page_tokens[qr_prng_below(&prng, QR_COUNT(page_tokens))];
    plan->context = plan->page_tokens * between(&prng, 6, 24);
    plan->pages = plan->context / plan->page_tokens * between(&prng, 1, 8) + between(&prng, 2, 20);
    plan->window = qr_prng_one_in(&prng, 3) ? between(&prng, 2, 40) : 0;
    plan->lanes = between(&prng, 1, 8);
    plan->requests = between(&prng, 4, 40);
    plan->tile = between(&prng, 4, 96);
    plan->wait_rows = qr_prng_one_in(&prng, 2) ? 0 : between(&prng, 4, 64);
    plan->window_pages = plan->window ? (plan->lanes + 1) * ((plan->window + 2 * plan->tile) / plan->page_tokens + 3) : 0;
    plan->peer_down_ms = between(&prng, 300, 1200);
    plan->offer_timeout_ms = between(&prng, 200, 2500);
    plan->request_timeout_ms = between(&prng, 8000, 30000);
    plan->busy_us = between(&prng, 500000, 5000000);
    plan->link_us = between(&prng, 50, 5000);
    plan->local_us = between(&prng, 1, 60);
    plan->check_every = 1;
    plan->cost = qr_prng_one_in(&prng, 2) ? fast_cost : slow_cost;
    if (plan->profile == QR_PROFILE_FAIL_OVER)
        draw_fail_over(plan, &prng);
    else
        draw_nodes(plan, &prng, nodes);
    qr_sim_workload_t *w = &plan->workload;
    w->seed = qr_prng_next(&prng);
    w->requests = between(&prng, 4, 90);
    w->gap_us = qr_min_u64(plan->busy_us / w->requests + 1, LAST_US / 16); /* the last phase asks at this pace too */
    w->busy_until_us = plan->busy_us;
    w->last_us = LAST_US;
    w->last_requests = 4;
    w->prompt_most = between(&prng, 2, plan->context);
    w->answer_most = qr_prng_one_in(&prng, 5) ? between(&prng, 60, 300) : between(&prng, 1, 60);
    w->prefixes = between(&prng, 0, 3);
    w->prefix_tokens = between(&prng, 1, plan->context / 2);
    w->cancel_one_in = qr_prng_one_in(&prng, 2) ? between(&prng, 2, 12) : 0;
    w->budget_one_in = qr_prng_one_in(&prng, 3) ? between(&prng, 3, 12) : 0;
    w->burst_one_in = between(&prng, 3, 12);
    w->grow_one_in = between(&prng, 2, 5);
    w->text_one_in = between(&prng, 2, 9);
    w->salt_one_in = between(&prng, 2, 9);
    if (plan->profile != QR_PROFILE_FAIL_OVER) draw_faults(plan, &prng, kinds_of(plan->profile));
    if (plan->profile == QR_PROFILE_LARGE)
        draw_large(plan);
    else
        draw_more(plan);
    draw_catalog(plan, &other);
    draw_store(plan, &of_store);
    draw_ram(plan);
    draw_saves(plan);
    draw_over_commit(plan, &of_store, profile == QR_PROFILE_MIXED);
    draw_patience(plan);
    if (plan->catalog.chains) w->read_us = 0; /* a heartbeat that ends alone leaves the question for its numbers open for good */
}

/* ---- running --------------------------------------------------------------------------------------------------------------------------
 */

typedef struct stage {
    qr_world_t *world;
    const qr_sim_plan_t *plan;
    qr_sim_judge_t *judge;
    qr_sim_catalog_t *catalog; /* NULL: there is none */
    qr_sim_store_t *store;     /* NULL: there is none */
    bool last;
} stage_t;

static uint32_t nodes_of(const qr_sim_plan_t *plan) { return plan->node_count * qr_max_u32(1, plan->mesh_count); }

/* State of the n-th edge's client, NULL while it is not there. */
static void *client_of(const stage_t *stage, uint32_t n)
{
    return stage->plan->nodes[n % stage->plan->node_count].parts & QR_SIM_EDGE
               ? qr_world_state(stage->world, qr_sim_address(n, 0, QR_ROLE_http))
               : NULL;
}

static bool all_clients(void *context)
{
    const stage_t *stage = context;
    char text[QR_SIM_FINDING_BYTES];
    for (uint32_t n = 0; n < nodes_of(stage->plan); n++) {
        if (!(stage->plan->nodes[n % stage->plan->node_count].parts & QR_SIM_EDGE)) continue;
        const void *client = client_of(stage, n);
        if (!client || !(stage->last ? qr_sim_client_is_done(client) : qr_sim_client_is_quiet(client))) return false;
    }
    return !stage->last || !stage->catalog || qr_sim_catalog_is_done(stage->catalog, stage->world, text, sizeof text);
}

/* Everything `given` that a plan says. The vocabulary prints two letters of four a token, so that
 * stop strings begin often and overlap themselves. */
static void fill_given(qr_given_t *given, const qr_sim_plan_t *plan, const qr_sim_world_given_t *mine)
{
    static uint32_t offsets[QR_SIM_VOCABULARY + 1];
    static uint8_t bytes[2 * QR_SIM_VOCABULARY], flags[QR_SIM_VOCABULARY];
    for (uint32_t t = 0; t < QR_SIM_VOCABULARY; t++) {
        offsets[t + 1] = 2 * (t + 1);
        bytes[2 * t] = (uint8_t)('A' + t % 4);
        bytes[2 * t + 1] = (uint8_t)('A' + t / 4 % 4);
    }
    flags[QR_SIM_END_TOKEN] = QR_TOKEN_END | QR_TOKEN_SPECIAL;
    memset(given, 0, sizeof *given);
    qr_params_init(&given->params);
    given->params.max_lanes = plan->lanes;
    given->params.max_requests = plan->requests;
    given->params.prefill_tile = plan->tile;
    given->params.wait_rows = plan->wait_rows;
    given->params.page_tokens = plan->page_tokens;
    given->params.context = plan->context;
    given->params.peer_down_ms = plan->peer_down_ms;
    given->params.offer_timeout_ms = plan->offer_timeout_ms;
    given->params.request_timeout_ms = plan->request_timeout_ms;
    if (plan->catalog.chains) { /* a store, so that durable prefixes are looked for */
        given->params.catalog_nodes_max = plan->catalog.nodes_max;
        given->params.store[0] = '/';
        given->params.captures = QR_CAPTURES_MAX;
    }
    given->params.ram_bytes = plan->store.bytes_max ? plan->store.ram_slots : 0; /* whoever asks about memory asks whether there is any */
    given->params.over_commit = plan->over_commit;
    given->params.spill_bytes = plan->over_commit ? (uint64_t)plan->spill_pages * plan->page_tokens * 8 : 0;
    if (plan->over_commit) {
        given->params.tranche_tokens = plan->tranche_tokens;
        given->params.preempt_quantum = plan->preempt_quantum;
    }
    if (plan->store.bytes_max) {
        given->params.staging_slots = plan->store.slots;
        given->params.restore_max_ms = plan->store.restore_max_ms;
        given->params.capture_max_ms = plan->store.capture_max_ms;
    }
    given->layout.group_count = plan->window ? 2 : 1;
    given->layout.page_tokens = plan->page_tokens;
    given->layout.chunk_tokens = 2 * plan->page_tokens;
    given->layout.context_tokens = plan->context;
    given->layout.groups[0] = (qr_group_t){.pages = plan->pages, .row_bytes = 8};
    given->layout.groups[1] = (qr_group_t){.window = plan->window, .pages = plan->window_pages, .row_bytes = 8};
    if (plan->store.bytes_max && plan->window) { /* two chunks are captured at a time, beside what requests need */
        given->layout.groups[1].set_aside = SET_ASIDE;
        given->layout.groups[1].pages += SET_ASIDE;
    }
    given->layout.fingerprint.bytes[0] = 1;
    given->vocabulary = (qr_vocabulary_t){QR_SIM_VOCABULARY, 0, offsets, bytes, flags};
    given->decoder = (struct qr_decoder *)(uintptr_t)mine;
}

/* Pools from half a longest request (a whole one where every node must be able to take over) to twice as large as planned, costs from half
 * to three times, each node its own. */
static void fill_uneven(qr_given_t *givens, qr_sim_world_given_t *mine, const qr_sim_plan_t *plan)
{
    qr_prng_t prng;
    qr_prng_init(&prng, plan->uneven);
    for (uint32_t n = 0; n < plan->node_count; n++) {
        fill_given(&givens[n], plan, &mine[n]);
        if (!plan->uneven) continue;
        uint32_t least = plan->context / plan->page_tokens / (plan->workload.fail_over ? 1 : 2) + 1;
        uint32_t most = qr_prng_one_in(&prng, 2) ? 2 * least : 2 * plan->pages;
        givens[n].layout.groups[0].pages = between(&prng, least, qr_max_u32(least, most));
        uint32_t halves = between(&prng, 1, 6);
        mine[n].cost.base_us = plan->cost.base_us * halves / 2 + 1;
        mine[n].cost.row_ns = plan->cost.row_ns * halves / 2 + 1;
    }
}

/* Rows that the largest pool holds; 0: windows decide too. */
static uint32_t rows_most(const qr_sim_plan_t *plan, const qr_given_t *givens)
{
    uint32_t pages = 0;
    for (uint32_t n = 0; n < plan->node_count; n++)
        if (plan->nodes[n].parts & QR_SIM_DEVICE) pages = qr_max_u32(pages, givens[n].layout.groups[0].pages);
    return plan->window ? 0 : pages * plan->page_tokens;
}

static qr_sim_judge_t *judge_new(const qr_sim_plan_t *plan)
{
    qr_sim_judge_config_t config = {.nodes = nodes_of(plan), .devices = 1, .link_us = plan->link_us, .local_us = plan->local_us};
    for (uint32_t n = 0; n < plan->node_count; n++) config.devices = qr_max_u32(config.devices, plan->nodes[n].devices);
    uint64_t rows = 2 * (uint64_t)plan->tile + plan->lanes;
    config.batch_us = (plan->cost.base_us + rows * plan->cost.row_ns / 1000 + plan->lanes * plan->cost.lane_us) * (plan->uneven ? 4 : 2);
    config.faults = plan->faults;
    config.fault_count = plan->fault_count;
    qr_sim_judge_t *judge = qr_sim_judge_new(&config);
    if (judge && !(plan->workload.faults & ~(1u << QR_FAULT_BATCHES | 1u << QR_FAULT_LANES))) qr_sim_judge_calm(judge, 0);
    return judge;
}

static void fail(qr_sim_result_t *result, const char *sentence)
{
    if (!result->finding[0]) (void)snprintf(result->finding, sizeof result->finding, "%s", sentence);
}

static void run_phases(stage_t *stage, qr_sim_result_t *result)
{
    qr_world_t *world = stage->world;
    if (!qr_world_run(world, stage->plan->busy_us, NULL, NULL)) return;
    qr_world_heal(world);
    uint64_t until_us = qr_world_now_us(world) + QUIET_US;
    /* Whoever was dead is there again, and every silence that began before has been noticed. */
    uint64_t settle_us = 1000000 + 4000ull * stage->plan->peer_down_ms;
    if (!qr_world_run(world, qr_world_now_us(world) + settle_us, NULL, NULL)) return;
    if (!qr_world_run(world, until_us, all_clients, stage)) return;
    if (!all_clients(stage)) {
        fail(result, "after healing a request never ended");
        return;
    }
    for (uint32_t n = 0; n < nodes_of(stage->plan); n++)
        if (client_of(stage, n)) qr_sim_client_last(client_of(stage, n), qr_world_now_us(world));
    if (stage->catalog) qr_sim_catalog_last(stage->catalog);
    stage->last = true;
    qr_sim_judge_calm(stage->judge, qr_world_now_us(world));
    const qr_sim_workload_t *w = &stage->plan->workload;
    until_us = qr_world_now_us(world) + 2 * LAST_US + 1000000 + (w->again_rows ? w->again_tries * (w->again_us + 2000000) : 0);
    if (!qr_world_run(world, until_us, all_clients, stage)) return;
    char text[QR_SIM_FINDING_BYTES];
    if (!all_clients(stage)) {
        if (stage->catalog && !qr_sim_catalog_is_done(stage->catalog, world, text, sizeof text)) fail(result, text);
        fail(result, "the last phase did not end");
        return;
    }
    /* What is still on its way comes home; then no question is open anywhere. */
    if (!qr_world_run(world, qr_world_now_us(world) + SETTLE_US, NULL, NULL)) return;
    if (!qr_world_is_quiet(world, text, sizeof text)) fail(result, text);
    if (stage->store && !qr_sim_store_is_quiet(stage->store, stage->catalog, world, text, sizeof text)) fail(result, text);
    for (uint32_t n = 0; n < nodes_of(stage->plan); n++)
        for (uint32_t d = 1; d <= qr_world_devices(world, n); d++)
            if (!qr_sim_moves_are_quiet(world, n, d, text, sizeof text)) fail(result, text);
}

/* Which conversations there were. */
static void hear_talk(uint8_t said[QR_SIM_TALKS], const qr_message_t *message)
{
    uint8_t from = qr_address_role(message->from), to = qr_address_role(message->to);
    const qr_roles_row_t *ask = qr_roles_find(from, to, message->type), *row = ask ? ask : qr_roles_question(from, to, message->type);
    const qr_roles_row_t *first = qr_roles_at(0);
    if (row && row >= first && row < first + QR_SIM_TALKS) said[row - first] |= ask ? QR_SIM_ASKED : QR_SIM_ANSWERED;
}

/* Every message: the judge, and where rows move those who know what may be moved. */
static void see(const qr_given_t *given, uint64_t actor, const qr_message_t *message, uint64_t now_us)
{
    qr_sim_judge_see(given, actor, message, now_us);
    const qr_sim_world_given_t *mine = qr_sim_given(given);
    if (message->from == actor) hear_talk(mine->said, message);
    if (mine->store) qr_sim_store_watch(mine->store, message, message->from == actor);
    if (mine->store) qr_sim_catalog_watch(mine->catalog, message, message->from == actor);
    if ((mine->store || mine->spills) && message->from == actor) qr_sim_moves_watch(given, message);
}

bool qr_sim_plan_run(const qr_sim_plan_t *plan, qr_sim_result_t *ret_result, FILE *trace, FILE *tell)
{
    static qr_given_t givens[QR_NODES_MAX];
    qr_sim_world_given_t mine[QR_NODES_MAX];
    qr_sim_workload_t workload = plan->workload;
    memset(ret_result, 0, sizeof *ret_result);
    stage_t stage = {NULL, plan, judge_new(plan), NULL, NULL, false};
    for (uint32_t n = 0; n < plan->node_count; n++)
        mine[n] = (qr_sim_world_given_t){.cost = plan->cost, .clients = &workload, .judge = stage.judge, .said = ret_result->said};
    fill_uneven(givens, mine, plan);
    workload.rows_most = rows_most(plan, givens);
    bool has_catalog = plan->catalog.chains > 0 && plan->mesh_count <= 1;
    stage.catalog = has_catalog ? qr_sim_catalog_new(&plan->catalog, givens, nodes_of(plan)) : NULL;
    bool has_store = has_catalog && plan->store.bytes_max > 0;
    stage.store = has_store ? qr_sim_store_new(&plan->store, givens, nodes_of(plan)) : NULL;
    qr_sim_spills_t *spills = &ret_result->spills;
    *spills = (qr_sim_spills_t){.row_ns = plan->spill_row_ns, .fail_one_in = plan->spill_fail_one_in};
    bool has_spills = plan->over_commit && plan->spill_pages;
    for (uint32_t n = 0; n < plan->node_count; n++)
        mine[n].catalog = stage.catalog, mine[n].store = stage.store, mine[n].spills = has_spills ? spills : NULL;
    qr_sim_config_t config = {.seed = plan->seed,
                              .node_count = plan->node_count,
                              .mesh_count = plan->mesh_count,
                              .nodes = plan->nodes,
                              .given = givens,
                              .givens = givens,
                              .see = see,
                              .link_us = plan->link_us,
                              .local_us = plan->local_us,
                              .check_every = plan->check_every,
                              .faults = plan->faults,
                              .fault_count = plan->fault_count,
                              .http = &qr_sim_http_class,
                              .text = &qr_sim_text_class,
                              .executor = &qr_sim_executor_class,
                              .facts = has_catalog ? &qr_sim_facts_class : NULL,
                              .publisher = has_store ? &qr_checkpoint_writer_class : &qr_sim_publisher_class,
                              .restorer = has_store ? &qr_restore_streamer_class : &qr_sim_restorer_class,
                              .storage = has_store ? &qr_sim_storage_class : NULL,
                              .transfer = has_store || has_spills ? &qr_sim_transfer_class : NULL,
                              .asker = &qr_sim_asker_class,
                              .doctored = plan->doctored,
                              .trace = trace};
    stage.world = stage.judge && (stage.catalog || !has_catalog) && (stage.store || !has_store) ? qr_world_new(&config) : NULL;
    if (!stage.world) {
        qr_sim_judge_destroy(&stage.judge);
        fail(ret_result, "not enough memory for the world");
        qr_sim_catalog_destroy(&stage.catalog);
        qr_sim_store_destroy(&stage.store);
        return false;
    }
    run_phases(&stage, ret_result);
    if (qr_world_finding(stage.world)[0]) fail(ret_result, qr_world_finding(stage.world));
    ret_result->hash = qr_world_hash(stage.world);
    ret_result->now_us = qr_world_now_us(stage.world);
    ret_result->counts = *qr_world_counts(stage.world);
    for (uint32_t n = 0; n < nodes_of(plan); n++)
        if (client_of(&stage, n)) qr_sim_client_count(client_of(&stage, n), &ret_result->answers);
    if (ret_result->finding[0] && tell) {
        qr_world_tell(stage.world, tell);
        fprintf(tell, "finding: %s\n", ret_result->finding);
    }
    if (stage.catalog) qr_sim_catalog_count(stage.catalog, &ret_result->catalog);
    if (stage.store) ret_result->store = *qr_sim_store_counts(stage.store);
    qr_world_destroy(&stage.world);
    qr_sim_catalog_destroy(&stage.catalog);
    qr_sim_store_destroy(&stage.store);
    qr_sim_judge_destroy(&stage.judge);
    return ret_result->finding[0] == 0;
}

/* ---- making smaller -------------------------------------------------------------------------------------------------------------------
 */

static bool still_fails(const qr_sim_plan_t *plan, uint32_t *runs)
{
    qr_sim_result_t result;
    (*runs)++;
    return !qr_sim_plan_run(plan, &result, NULL, NULL);
}

/* Takes the smaller plan if it still has a finding. */
static bool try_plan(qr_sim_plan_t *plan, const qr_sim_plan_t *smaller, uint32_t *runs)
{
    if (!still_fails(smaller, runs)) return false;
    *plan = *smaller;
    return true;
}

static bool shrink_faults(qr_sim_plan_t *plan, uint32_t *runs)
{
    bool better = false;
    for (uint32_t i = plan->fault_count; i-- > 0;) {
        qr_sim_plan_t smaller = *plan;
        memmove(&smaller.faults[i], &smaller.faults[i + 1], (smaller.fault_count - i - 1) * sizeof smaller.faults[0]);
        smaller.fault_count--;
        better |= try_plan(plan, &smaller, runs);
    }
    return better;
}

static bool shrink_number(qr_sim_plan_t *plan, uint32_t *runs, size_t offset, uint32_t least)
{
    bool better = false;
    for (uint32_t tries = 0;; tries++) {
        qr_sim_plan_t smaller = *plan;
        uint32_t *number = (uint32_t *)(void *)((uint8_t *)&smaller + offset);
        if (*number <= least) return better;
        *number = tries ? qr_max_u32(least, *number / 2) : least; /* at once, else by halves */
        if (try_plan(plan, &smaller, runs))
            better = true;
        else if (tries)
            return better;
    }
}

static bool shrink_nodes(qr_sim_plan_t *plan, uint32_t *runs)
{
    bool better = false;
    while (plan->node_count > 1) { /* the last ones are device nodes */
        qr_sim_plan_t smaller = *plan;
        smaller.node_count--;
        uint32_t parts = 0;
        for (uint32_t n = 0; n < smaller.node_count; n++) parts |= smaller.nodes[n].parts;
        if (parts != (QR_SIM_EDGE | QR_SIM_DEVICE) || !try_plan(plan, &smaller, runs)) break;
        better = true;
    }
    return better;
}

uint32_t qr_sim_plan_shrink(qr_sim_plan_t *plan, uint32_t runs_most)
{
    uint32_t runs = 0;
    bool better = true;
    static const struct {
        size_t offset;
        uint32_t least;
    } numbers[] = {{offsetof(qr_sim_plan_t, workload.requests), 1},
                   {offsetof(qr_sim_plan_t, catalog.chains), 0},
                   {offsetof(qr_sim_plan_t, catalog.publishes), 1},
                   {offsetof(qr_sim_plan_t, over_commit), 0},
                   {offsetof(qr_sim_plan_t, spill_pages), 0},
                   {offsetof(qr_sim_plan_t, spill_fail_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.again_rows), 0},
                   {offsetof(qr_sim_plan_t, workload.drop_us), 0},
                   {offsetof(qr_sim_plan_t, store.slots), 1},
                   {offsetof(qr_sim_plan_t, store.ram_slots), 0},
                   {offsetof(qr_sim_plan_t, workload.cancel_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.budget_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.text_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.salt_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.stop_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.chat_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.tenant_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.slow_one_in), 0},
                   {offsetof(qr_sim_plan_t, workload.probe_us), 0},
                   {offsetof(qr_sim_plan_t, workload.read_us), 0},
                   {offsetof(qr_sim_plan_t, uneven), 0},
                   {offsetof(qr_sim_plan_t, workload.prefixes), 0},
                   {offsetof(qr_sim_plan_t, workload.answer_most), 1},
                   {offsetof(qr_sim_plan_t, window), 0},
                   {offsetof(qr_sim_plan_t, wait_rows), 0},
                   {offsetof(qr_sim_plan_t, lanes), 1}};
    while (better && runs < runs_most) {
        better = shrink_faults(plan, &runs);
        better |= shrink_nodes(plan, &runs);
        for (size_t i = 0; i < QR_COUNT(numbers) && runs < runs_most; i++)
            better |= shrink_number(plan, &runs, numbers[i].offset, numbers[i].least);
    }
    return runs;
}

void qr_sim_plan_print(const qr_sim_plan_t *plan, FILE *out)
{
    const qr_sim_workload_t *w = &plan->workload;
    fprintf(out, "{.seed = %lluu, .profile = %u, .busy_us = %lluu,\n .nodes = {", (unsigned long long)plan->seed, plan->profile,
            (unsigned long long)plan->busy_us);
    for (uint32_t n = 0; n < plan->node_count; n++) fprintf(out, "%s{%u, %u}", n ? ", " : "", plan->nodes[n].parts, plan->nodes[n].devices);
    fprintf(out, "}, .node_count = %u, .mesh_count = %u,\n", plan->node_count, plan->mesh_count);
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const qr_sim_fault_t *f = &plan->faults[i];
        fprintf(out, "%s{%lluu, %lluu, %u /* %s */, %u, %u, %u}", i ? ",\n            " : " .faults = {", (unsigned long long)f->at_us,
                (unsigned long long)f->for_us, f->kind, qr_sim_fault_name(f->kind), f->node, f->other, f->amount);
    }
    fprintf(out, "%s .fault_count = %u,\n", plan->fault_count ? "},\n" : "", plan->fault_count);
    fprintf(out, " .workload = {%lluu, %lluu, %lluu, %lluu, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, ",
            (unsigned long long)w->seed, (unsigned long long)w->gap_us, (unsigned long long)w->busy_until_us,
            (unsigned long long)w->last_us, w->requests, w->last_requests, w->prompt_most, w->answer_most, w->prefixes, w->prefix_tokens,
            w->cancel_one_in, w->budget_one_in, w->burst_one_in, w->grow_one_in, w->text_one_in, w->salt_one_in, w->faults, w->fail_over);
    fprintf(out, "%u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %lluu, %lluu},\n", w->stop_one_in, w->chat_one_in, w->tenant_one_in,
            w->slow_one_in, w->slow_bytes, w->slow_us, w->probe_us, w->read_us, w->drop_us, w->again_rows, w->again_tries,
            (unsigned long long)w->again_us, (unsigned long long)w->cancel_us);
    fprintf(out, " .cost = {%lluu, %lluu, %lluu}, .link_us = %llu, .local_us = %llu, .check_every = %u,\n",
            (unsigned long long)plan->cost.base_us, (unsigned long long)plan->cost.row_ns, (unsigned long long)plan->cost.lane_us,
            (unsigned long long)plan->link_us, (unsigned long long)plan->local_us, plan->check_every);
    fprintf(out, " .page_tokens = %u, .pages = %u, .window = %u, .window_pages = %u, .context = %u, .lanes = %u, .requests = %u,\n",
            plan->page_tokens, plan->pages, plan->window, plan->window_pages, plan->context, plan->lanes, plan->requests);
    fprintf(out, " .tile = %u, .wait_rows = %u, .peer_down_ms = %u, .offer_timeout_ms = %u, .request_timeout_ms = %u, .uneven = %uu",
            plan->tile, plan->wait_rows, plan->peer_down_ms, plan->offer_timeout_ms, plan->request_timeout_ms, plan->uneven);
    const qr_sim_catalog_work_t *c = &plan->catalog;
    if (c->chains)
        fprintf(out, ",\n .catalog = {%u, %u, %u, %u, %lluu, %lluu, %lluu, %lluu, %lluu}", c->chains, c->depth, c->publishes, c->nodes_max,
                (unsigned long long)c->publish_us, (unsigned long long)c->look_us, (unsigned long long)c->write_us,
                (unsigned long long)c->busy_until_us, (unsigned long long)c->seed);
    const qr_sim_store_work_t *s = &plan->store;
    if (s->bytes_max)
        fprintf(out, ",\n .store = {%lluu, %lluu, %lluu, %u, %u, %u, %u, %lluu, %lluu}", (unsigned long long)s->bytes_max,
                (unsigned long long)s->write_us, (unsigned long long)s->move_ns, s->slots, s->restore_max_ms, s->capture_max_ms,
                s->ram_slots, (unsigned long long)s->saves_us, (unsigned long long)s->saves_until_us);
    if (plan->over_commit)
        fprintf(out,
                ",\n .over_commit = %u, .tranche_tokens = %u, .preempt_quantum = %u, .spill_row_ns = %lluu, .spill_pages = %u, "
                ".spill_fail_one_in = %u",
                plan->over_commit, plan->tranche_tokens, plan->preempt_quantum, (unsigned long long)plan->spill_row_ns, plan->spill_pages,
                plan->spill_fail_one_in);
    fprintf(out, "}\n");
}

/* ---- the subcommand ---------------------------------------------------------------------------------------------------------------------
 */

static const char usage[] =
    "usage: quire simulate [--seeds A-B] [--nodes N] [--profile mixed|calm|network|process|device|all|failover|catalog|store|large] "
    "[--trace "
    "FILE] "
    "[--shrink] "
    "[--first] [--json]\n"
    "  --seeds A-B    seeds to run, both included (default 1-100); one number runs one; A- runs until a finding or a signal\n"
    "  --nodes N      nodes of every world, 1 to 32 (default: drawn)\n"
    "  --profile P    what goes wrong (default mixed: drawn)\n"
    "  --trace FILE   every message of the last seed as a line, and all states after a finding\n"
    "  --first        stop at the first finding\n"
    "  --shrink       make the plan of the first finding smaller and print it as a test's initialiser\n"
    "  --json         one JSON object\n";

typedef struct options {
    uint64_t first, last;
    uint32_t nodes, profile;
    const char *trace;
    bool shrink, json, first_only;
} options_t;

static bool number_of(const char *word, uint64_t most, uint64_t *ret_value, const char **ret_rest)
{
    char *end;
    if (*word < '0' || *word > '9') return false;
    unsigned long long value = strtoull(word, &end, 10); /* what is too large is UINT64_MAX, which is above every `most` */
    *ret_value = value;
    *ret_rest = end;
    return value <= most;
}

static bool read_seeds(options_t *o, const char *word)
{
    const char *rest;
    if (!number_of(word, UINT64_MAX - 1, &o->first, &rest)) return false;
    o->last = o->first;
    if (*rest == 0) return true;
    if (*rest++ != '-') return false;
    o->last = UINT64_MAX - 1;
    return *rest == 0 || (number_of(rest, UINT64_MAX - 1, &o->last, &rest) && *rest == 0 && o->last >= o->first);
}

/* 0, 1: help was asked for, -1: bad. */
static int read_options(options_t *o, int count, char **word)
{
    *o = (options_t){.first = 1, .last = 100};
    for (int i = 0; i < count; i++) {
        const char *name = word[i], *value = i + 1 < count ? word[i + 1] : "", *rest;
        uint64_t number = 0;
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) return 1;
        if (!strcmp(name, "--shrink"))
            o->shrink = true;
        else if (!strcmp(name, "--json"))
            o->json = true;
        else if (!strcmp(name, "--first"))
            o->first_only = true;
        else if (!strcmp(name, "--seeds") && read_seeds(o, value))
            i++;
        else if (!strcmp(name, "--nodes") && number_of(value, QR_NODES_MAX, &number, &rest) && !*rest && number)
            o->nodes = (uint32_t)number, i++;
        else if (!strcmp(name, "--profile") && qr_sim_profile_find(value) < QR_PROFILES)
            o->profile = qr_sim_profile_find(value), i++;
        else if (!strcmp(name, "--trace") && *value)
            o->trace = value, i++;
        else {
            fprintf(stderr, "quire: simulate: '%.60s %.60s' is not understood\n", name, value);
            return -1;
        }
    }
    return 0;
}

/* What one seed found, and how to see it. */
static void report(const options_t *o, qr_sim_plan_t *plan, const qr_sim_result_t *result)
{
    FILE *out = o->json ? stderr : stdout;
    fprintf(out, "seed %llu (%s, %u nodes): %s\n", (unsigned long long)plan->seed, qr_sim_profile_name(plan->profile), plan->node_count,
            result->finding);
    fprintf(out, "  again: quire simulate --seeds %llu --profile %s", (unsigned long long)plan->seed, qr_sim_profile_name(o->profile));
    if (o->nodes) fprintf(out, " --nodes %u", o->nodes);
    fprintf(out, " --trace FILE\n");
    (void)fflush(out);
    if (!o->shrink) return;
    uint32_t runs = qr_sim_plan_shrink(plan, SHRINK_RUNS);
    qr_sim_result_t smaller;
    fprintf(out, "made smaller in %u runs:\n", runs);
    qr_sim_plan_print(plan, out);
    (void)qr_sim_plan_run(plan, &smaller, NULL, out);
}

static void print_store(const qr_sim_store_counts_t *t, const qr_sim_spills_t *s, uint64_t preemptions)
{
    if (preemptions)
        printf(
            "  %llu lanes made room for earlier requests: %llu rows were kept, %llu times none; %llu came back, %llu times not all; %llu "
            "dropped\n",
            (unsigned long long)preemptions, (unsigned long long)s->spilled, (unsigned long long)s->refused,
            (unsigned long long)s->unspilled, (unsigned long long)s->unspills_failed, (unsigned long long)s->dropped);
    if (!t->written) return;
    printf("  store: %llu files written, %llu failed, %llu torn, %llu without room, %llu dropped, %llu damaged, %llu of those found by a "
           "move; %llu leases, %llu uploads and %llu failed, %llu downloads, %llu fences; %llu restores, %llu whole, %llu rows\n",
           (unsigned long long)t->written, (unsigned long long)t->failed, (unsigned long long)t->torn, (unsigned long long)t->shortfalls,
           (unsigned long long)t->dropped, (unsigned long long)t->damage_done, (unsigned long long)t->damage_found,
           (unsigned long long)t->leases, (unsigned long long)t->uploads, (unsigned long long)t->uploads_failed,
           (unsigned long long)t->downloads, (unsigned long long)t->fenced, (unsigned long long)t->restores,
           (unsigned long long)t->restores_whole, (unsigned long long)t->restored_rows);
    printf("  memory: %llu parts came in, %llu left, %llu were leased; %llu damaged, %llu of those found\n",
           (unsigned long long)t->ram_entered, (unsigned long long)t->ram_left, (unsigned long long)t->ram_leases,
           (unsigned long long)t->ram_damage_done, (unsigned long long)t->ram_damage_found);
    printf("  continuations: %llu saved, %llu of them not all durable, %llu refused a hold, %llu dropped, %llu holds\n",
           (unsigned long long)t->saves, (unsigned long long)t->saves_short, (unsigned long long)t->saves_refused,
           (unsigned long long)t->saves_dropped, (unsigned long long)t->held);
}

/* Closes the trace. A run that ended before its last seed is traced now: `plan` is the seed it ended at, the same seed has the same
 * history. false: it is not whole. */
static bool trace_end(FILE *trace, const options_t *o, qr_sim_plan_t *plan, bool traced)
{
    qr_sim_result_t result;
    if (!traced) {
        qr_sim_plan_draw(plan, plan->seed, o->profile, o->nodes); /* it may have been made smaller */
        (void)qr_sim_plan_run(plan, &result, trace, trace);
    }
    bool failed = ferror(trace) != 0;
    if (!fclose(trace) && !failed) return true;
    fprintf(stderr, "quire: simulate: '%s' was not written to its end\n", o->trace);
    return false;
}

int qr_simulate_main(int count, char **word, uint64_t (*clock_us)(void))
{
    options_t o;
    qr_sim_plan_t plan;
    qr_sim_result_t result;
    int read = read_options(&o, count, word);
    if (read) return fputs(usage, read > 0 ? stdout : stderr), read > 0 ? 0 : 2;
    FILE *trace = o.trace ? fopen(o.trace, "w") : NULL;
    if (o.trace && !trace) return fprintf(stderr, "quire: simulate: cannot write '%s'\n", o.trace), 2;
    qr_sim_spills_t spills = {0};
    uint64_t begin = clock_us(), seeds = 0, findings = 0, messages = 0, kills = 0, units = 0, hash = 0, virtual_us = 0, preemptions = 0;
    qr_sim_answers_t a = {0};
    qr_sim_catalog_counts_t c = {0};
    qr_sim_store_counts_t t = {0};
    char running[QR_STOP_BYTES];
    qr_stop_watch();
    if (!o.json)
        printf("seeds %llu-%llu, profile %s\n", (unsigned long long)o.first, (unsigned long long)o.last, qr_sim_profile_name(o.profile));
    for (uint64_t seed = o.first; seed <= o.last && !qr_stop_asked(); seed++) {
        seeds++;
        (void)snprintf(running, sizeof running, "quire: simulate: ended in seed %llu\n", (unsigned long long)seed);
        qr_stop_last_words(running);
        (void)fflush(stdout); /* what was said stays, whatever happens to this process */
        qr_sim_plan_draw(&plan, seed, o.profile, o.nodes);
        bool fine = qr_sim_plan_run(&plan, &result, seed == o.last ? trace : NULL, seed == o.last ? trace : NULL);
        messages += result.counts.messages;
        kills += result.counts.kills;
        units += result.counts.unit_kills;
        preemptions += result.counts.preemptions;
        spills.spilled += result.spills.spilled;
        spills.refused += result.spills.refused;
        spills.unspilled += result.spills.unspilled;
        spills.unspills_failed += result.spills.unspills_failed;
        spills.dropped += result.spills.dropped;
        for (size_t i = 0; i < sizeof t / 8; i++) ((uint64_t *)&t)[i] += ((const uint64_t *)&result.store)[i];
        for (size_t i = 0; i < sizeof c / 8; i++) ((uint64_t *)&c)[i] += ((const uint64_t *)&result.catalog)[i];
        for (size_t i = 0; i < sizeof a / 8; i++) ((uint64_t *)&a)[i] += ((const uint64_t *)&result.answers)[i];
        virtual_us += result.now_us;
        hash = qr_mix_u64(hash ^ result.hash);
        if (fine) continue;
        findings++;
        report(&o, &plan, &result);
        if (o.shrink || o.first_only || o.last == UINT64_MAX - 1) break;
    }
    double s = (double)qr_max_u64(1, clock_us() - begin) / 1e6;
    unsigned long long n[] = {seeds,    findings, a.submitted, a.finished, a.cancelled, a.refused,
                              a.failed, a.tokens, messages,    kills,      units,       hash};
    printf(o.json ? "{\"seeds\": %llu, \"findings\": %llu, \"requests\": %llu, \"finished\": %llu, \"cancelled\": %llu, \"refused\": %llu, "
                    "\"failed\": %llu, \"tokens\": %llu, \"messages\": %llu, \"kills\": %llu, \"units\": %llu, \"hash\": \"%016llx\", "
                    "\"seeds_per_s\": %.1f, "
                    "\"virtual_s\": %.0f}\n"
                  : "%llu seeds, %llu findings; %llu requests: %llu finished, %llu cancelled, %llu refused, %llu failed; %llu tokens, %llu "
                    "messages, "
                    "%llu nodes and %llu units ended and began anew; hash %016llx; %.1f seeds/s, %.0f virtual s\n",
           n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], (double)seeds / s, (double)virtual_us / 1e6);
    if (!o.json && c.publishes)
        printf(
            "  catalog: %llu publishes asked, %llu committed, %llu refused, %llu again; %llu transactions, %llu failed, %llu torn or lost, "
            "%llu claims of others, %llu snapshots; %llu files, %llu torn; %llu lookups, %llu hits, %llu exact; %llu restores asked by "
            "schedulers\n",
            (unsigned long long)c.publishes, (unsigned long long)c.committed, (unsigned long long)c.refused, (unsigned long long)c.repeats,
            (unsigned long long)c.transactions, (unsigned long long)c.failed, (unsigned long long)c.lost, (unsigned long long)c.claims,
            (unsigned long long)c.snapshots, (unsigned long long)c.files, (unsigned long long)c.torn, (unsigned long long)c.lookups,
            (unsigned long long)c.hits, (unsigned long long)c.exact, (unsigned long long)c.restores);
    if (!o.json) print_store(&t, &spills, preemptions);
    for (uint32_t i = 0; !o.json && i < QR_COUNT(a.reasons); i++)
        if (a.reasons[i]) printf("  %s %llu\n", qr_error_name((int)i), (unsigned long long)a.reasons[i]);
    if (trace && !trace_end(trace, &o, &plan, !seeds || plan.seed == o.last)) return findings ? 1 : 2;
    return findings ? 1 : 0;
}
