/* plan.c - attention in pieces (A1, A2). */
#include "kernels/cpu/plan.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/cpu/pool.h"

enum {
    FEW_ROWS = 2,            /* lanes with at most so many rows are decode lanes */
    ROUND_SEGMENTS = 4,      /* segments one prefill piece walks: 32 rows x 3 heads x 2048 keys are about half a millisecond */
    SMALL_WORK = 96 * 9 * 64 /* keys x heads x dim below which handing over costs more than it gives: about 2 us */
};

typedef enum { ONE, MERGE, MANY } piece_kind_t;

/* ONE: row, segment, kv heads [kv_from, kv_to) into slot. MERGE: a row's slots. MANY: rows, kv head, segments [from, to). */
typedef struct piece {
    uint32_t kind, lane, row, row_count, kv_from, kv_to, segment_from, segment_to;
    uint64_t slot; /* ONE: its state; MERGE: the first of the row */
} piece_t;

struct qr_plan {
    const qr_cpu_isa_t *isa;
    qr_attend_t a;
    uint32_t threads, round, rounds, piece_count, piece_capacity;
    uint32_t one_pieces; /* row segments of decode lanes: what there is to share without cutting kv heads */
    bool small;
    piece_t *pieces;
    float *slots, *states, *scratch; /* decode states, prefill states, attend_many's own per thread */
    uint64_t slot_capacity, state_capacity, slot_count;
    float *one_scratch; /* [threads][group max x state] : states of a row that has one segment */
};

/* Segments [ret_from, ret_to) that rows [row, row + count) of a lane see. Positions ascend within a lane. */
static void segments_of(const qr_attend_t *a, uint32_t row, uint32_t count, uint32_t *ret_from, uint32_t *ret_to)
{
    *ret_from = qr_attend_first(a, a->positions[row]) / QR_SEGMENT;
    *ret_to = a->positions[row + count - 1] / QR_SEGMENT + 1;
}

static int grow(float **memory, uint64_t *capacity, uint64_t floats)
{
    if (floats <= *capacity) return 0;
    uint64_t wanted = qr_round_up(floats + floats / 2, 1024);
    float *grown = aligned_alloc(64, wanted * sizeof *grown);
    if (!grown) return -QR_E_MEMORY;
    free(*memory);
    *memory = grown;
    *capacity = wanted;
    return 0;
}

int qr_plan_new(const qr_cpu_isa_t *isa, uint32_t threads, qr_plan_t **ret_plan)
{
    qr_plan_t *plan = calloc(1, sizeof *plan);
    if (!plan) return -QR_E_MEMORY;
    plan->isa = isa;
    plan->threads = threads;
    plan->scratch = aligned_alloc(64, qr_round_up(threads * qr_attend_scratch_floats() * sizeof(float), 64));
    plan->one_scratch = aligned_alloc(64, (size_t)threads * QR_ATTEND_GROUP_MAX * (QR_STATE_HEAD + QR_ATTEND_DIM_MAX) * sizeof(float));
    if (!plan->scratch || !plan->one_scratch) {
        qr_plan_destroy(&plan);
        return -QR_E_MEMORY;
    }
    *ret_plan = plan;
    return 0;
}

void qr_plan_destroy(qr_plan_t **plan_address)
{
    qr_plan_t *plan = *plan_address;
    if (!plan) return;
    free(plan->pieces);
    free(plan->slots);
    free(plan->states);
    free(plan->scratch);
    free(plan->one_scratch);
    free(plan);
    *plan_address = NULL;
}

static void read_args(qr_attend_t *a, const qr_cpu_args_t *args)
{
    *a = (qr_attend_t){
        .qkv = (const float *)args->b[0],
        .k_pages = (const uint16_t *)args->b[1],
        .v_pages = (const uint16_t *)args->b[2],
        .positions = (const uint32_t *)args->b[3],
        .row_offsets = (const uint32_t *)args->b[4],
        .page_offsets = (const uint32_t *)args->b[5],
        .first_blocks = (const uint32_t *)args->b[6],
        .page_table = (const uint32_t *)args->b[7],
        .y = (float *)args->b[8],
        .status = (uint32_t *)args->b[9],
        .rows = args->s[0],
        .heads = args->s[1],
        .kv_heads = args->s[2],
        .dim = args->s[3],
        .lanes = args->s[4],
        .page_tokens = args->s[5],
        .window = args->s[6],
    };
    qr_assert(a->kv_heads && a->heads % a->kv_heads == 0 && a->dim % 8 == 0 && a->dim && a->dim <= QR_ATTEND_DIM_MAX &&
              a->page_tokens % 8 == 0);
    a->group = a->heads / a->kv_heads;
    a->state_floats = QR_STATE_HEAD + a->dim;
    qr_assert(a->group <= QR_ATTEND_GROUP_MAX && a->row_offsets[a->lanes] <= a->rows);
}

static bool few(const qr_attend_t *a, uint32_t lane) { return a->row_offsets[lane + 1] - a->row_offsets[lane] <= FEW_ROWS; }

/* Sizes everything the launch will need: slots of decode rows, states of prefill rows, rounds. */
int qr_plan_begin(qr_plan_t *plan, const qr_cpu_args_t *args)
{
    qr_attend_t *a = &plan->a;
    uint64_t slots = 0, keys = 0;
    bool states = false;
    read_args(a, args);
    plan->round = plan->one_pieces = 0;
    plan->rounds = 1;
    for (uint32_t lane = 0; lane < a->lanes; lane++) {
        uint32_t begin = a->row_offsets[lane], end = a->row_offsets[lane + 1], from, to;
        if (begin == end) continue;
        if (!few(a, lane)) {
            segments_of(a, begin, end - begin, &from, &to);
            plan->rounds = qr_max_u32(plan->rounds, (to - 1) / ROUND_SEGMENTS + 1);
            states = true;
            keys += UINT32_MAX;
            continue;
        }
        for (uint32_t row = begin; row < end; row++) {
            segments_of(a, row, 1, &from, &to);
            plan->one_pieces += to - from;
            if (to - from > 1) slots += to - from;
            keys += a->positions[row] + 1 - qr_attend_first(a, a->positions[row]);
        }
    }
    if (slots) plan->rounds = qr_max_u32(plan->rounds, 2);
    plan->small = keys * a->heads * a->dim < SMALL_WORK;
    if (grow(&plan->slots, &plan->slot_capacity, slots * a->heads * a->state_floats)) return -QR_E_MEMORY;
    return grow(&plan->states, &plan->state_capacity, states ? (uint64_t)a->rows * a->heads * a->state_floats : 0);
}

static void add(qr_plan_t *plan, piece_t piece)
{
    if (plan->piece_count == plan->piece_capacity) {
        uint32_t wanted = plan->piece_capacity ? plan->piece_capacity * 2 : 256;
        piece_t *grown = realloc(plan->pieces, wanted * sizeof *grown);
        qr_assert(grown); /* tens of kilobytes: the process could not go on either */
        plan->pieces = grown;
        plan->piece_capacity = wanted;
    }
    plan->pieces[plan->piece_count++] = piece;
}

static void cut_few(qr_plan_t *plan, uint32_t lane)
{
    const qr_attend_t *a = &plan->a;
    bool whole = plan->one_pieces >= 3 * plan->threads || plan->small || plan->threads == 1;
    uint32_t step = whole ? qr_max_u32(1, qr_min_u32(a->kv_heads, QR_ATTEND_HEADS_MAX / a->group)) : 1;
    for (uint32_t row = a->row_offsets[lane], from, to; row < a->row_offsets[lane + 1]; row++) {
        segments_of(a, row, 1, &from, &to);
        uint64_t slot = plan->slot_count;
        if (to - from > 1) plan->slot_count += to - from;
        if (plan->round == 1 && to - from > 1)
            add(plan, (piece_t){.kind = MERGE, .lane = lane, .row = row, .segment_from = from, .segment_to = to, .slot = slot});
        if (plan->round) continue;
        for (uint32_t segment = from; segment < to; segment++)
            for (uint32_t kv = 0; kv < a->kv_heads; kv += step)
                add(plan, (piece_t){.kind = ONE,
                                    .lane = lane,
                                    .row = row,
                                    .kv_from = kv,
                                    .kv_to = qr_min_u32(kv + step, a->kv_heads),
                                    .segment_from = segment,
                                    .segment_to = segment + (to - from > 1),
                                    .slot = slot + (segment - from)});
    }
}

static void cut_many(qr_plan_t *plan, uint32_t lane)
{
    const qr_attend_t *a = &plan->a;
    uint32_t tile = qr_max_u32(1, qr_min_u32(32, QR_ATTEND_ROWS_MAX / a->group)), begin = a->row_offsets[lane],
             end = a->row_offsets[lane + 1];
    uint32_t round_from = plan->round * ROUND_SEGMENTS, round_to = round_from + ROUND_SEGMENTS;
    for (uint32_t kv = 0; kv < a->kv_heads; kv++)
        for (uint32_t row = begin, from, to; row < end; row += tile) {
            uint32_t count = qr_min_u32(tile, end - row);
            segments_of(a, row, count, &from, &to);
            if (to <= round_from || from >= round_to) continue;
            add(plan, (piece_t){.kind = MANY,
                                .lane = lane,
                                .row = row,
                                .row_count = count,
                                .kv_from = kv,
                                .kv_to = kv + 1,
                                .segment_from = qr_max_u32(from, round_from),
                                .segment_to = qr_min_u32(to, round_to)});
        }
}

uint32_t qr_plan_round(qr_plan_t *plan, bool *ret_small)
{
    plan->slot_count = 0;
    for (plan->piece_count = 0; !plan->piece_count && plan->round < plan->rounds; plan->round++, plan->slot_count = 0)
        for (uint32_t lane = 0; lane < plan->a.lanes; lane++) {
            if (plan->a.row_offsets[lane] == plan->a.row_offsets[lane + 1]) continue;
            if (few(&plan->a, lane))
                cut_few(plan, lane);
            else
                cut_many(plan, lane);
        }
    *ret_small = plan->small;
    qr_assert(plan->piece_count <= QR_PIECES_MAX);
    return plan->piece_count;
}

static float *output(const qr_attend_t *a, uint32_t row, uint32_t head) { return a->y + ((uint64_t)row * a->heads + head) * a->dim; }

static void run_one(qr_plan_t *plan, const piece_t *piece, uint32_t thread)
{
    const qr_attend_t *a = &plan->a;
    if (piece->segment_to > piece->segment_from) { /* one of several: the states go to their slot */
        float *states = plan->slots + (piece->slot * a->heads + piece->kv_from * a->group) * a->state_floats;
        plan->isa->attend_one(a, piece->lane, piece->row, piece->kv_from, piece->kv_to, piece->segment_from, states);
        return;
    }
    float *states = plan->one_scratch + (size_t)thread * QR_ATTEND_GROUP_MAX * (QR_STATE_HEAD + QR_ATTEND_DIM_MAX);
    uint32_t step = qr_max_u32(1, QR_ATTEND_GROUP_MAX / a->group); /* kv heads whose states fit */
    for (uint32_t kv = piece->kv_from, to; kv < piece->kv_to; kv = to) {
        to = qr_min_u32(kv + step, piece->kv_to);
        plan->isa->attend_one(a, piece->lane, piece->row, kv, to, piece->segment_from, states);
        for (uint32_t i = 0; i < (to - kv) * a->group; i++)
            plan->isa->finish(a->dim, states + i * a->state_floats, output(a, piece->row, kv * a->group + i));
    }
}

static void run_merge(qr_plan_t *plan, const piece_t *piece)
{
    const qr_attend_t *a = &plan->a;
    for (uint32_t head = 0; head < a->heads; head++) {
        float *first = plan->slots + (piece->slot * a->heads + head) * a->state_floats;
        uint32_t count = piece->segment_to - piece->segment_from;
        for (uint32_t i = 1; i < count; i++)
            plan->isa->merge(a->dim, first, first + (uint64_t)(QR_MUTANT(68) ? count - i : i) * a->heads * a->state_floats);
        plan->isa->finish(a->dim, first, output(a, piece->row, head));
    }
}

/* Walks its segments in order; the states live in memory between rounds, and are begun where the tile's first segment is. */
static void run_many(qr_plan_t *plan, const piece_t *piece, uint32_t thread)
{
    const qr_attend_t *a = &plan->a;
    uint32_t from, to, kv = piece->kv_from;
    float *scratch = plan->scratch + thread * qr_attend_scratch_floats();
    segments_of(a, piece->row, piece->row_count, &from, &to);
    uint64_t stride = (uint64_t)a->heads * a->state_floats;
    float *states = plan->states + piece->row * stride + kv * a->group * a->state_floats;
    if (piece->segment_from == from)
        for (uint32_t r = 0; r < piece->row_count; r++) memset(states + r * stride, 0, a->group * a->state_floats * sizeof *states);
    for (uint32_t segment = piece->segment_from; segment < piece->segment_to; segment++)
        plan->isa->attend_many(a, piece->lane, piece->row, piece->row_count, kv, segment, states, stride, scratch);
    if (piece->segment_to < to) return;
    for (uint32_t r = 0; r < piece->row_count; r++)
        for (uint32_t g = 0; g < a->group; g++)
            plan->isa->finish(a->dim, states + r * stride + g * a->state_floats, output(a, piece->row + r, kv * a->group + g));
}

void qr_plan_run(void *context, uint32_t index, uint32_t thread)
{
    qr_plan_t *plan = context;
    const piece_t *piece = &plan->pieces[index];
    switch (piece->kind) {
    case ONE: run_one(plan, piece, thread); break;
    case MERGE: run_merge(plan, piece); break;
    default: run_many(plan, piece, thread); break;
    }
}
