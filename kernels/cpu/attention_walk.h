/* attention_walk.h - what the vector attention kernels share: where the keys of a span lie, and the walks of one query row (decode) and of
 * a tile of them (prefill) over the spans of a segment. The arithmetic itself (arithmetic 5) is each instruction set's own.
 *
 * T1. No key outside a span's [first, end) is read; its 8-key blocks outside have no address. */
#ifndef QR_ATTENTION_WALK_H
#define QR_ATTENTION_WALK_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/unroll.h"
#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { QR_SPAN_BLOCKS = QR_SPAN / 8 };

/* The visible part [first, end) of one span, relative to its begin, and where its keys lie: one address per 8 of them. */
typedef struct span {
    uint32_t first, end;
    const uint16_t *k[QR_SPAN_BLOCKS], *v[QR_SPAN_BLOCKS];
} span_t;

/* Values of one stored row: all kv heads. */
QR_INLINE uint64_t kv_width(const qr_attend_t *a) { return (uint64_t)a->kv_heads * a->dim; }

/* Span that begins at token `begin`, of which [first, end) (absolute) is looked at. */
static inline void find_span(const qr_attend_t *a, uint32_t lane, uint32_t begin, uint32_t first, uint32_t end, span_t *ret)
{
    ret->first = first - begin;
    ret->end = end - begin;
    for (uint32_t i = ret->first / 8; i * 8 < ret->end; i++) {
        uint64_t at = qr_attend_slot(a, lane, begin + 8 * i) * kv_width(a);
        ret->k[i] = a->k_pages + at;
        ret->v[i] = a->v_pages + at;
    }
}

/* Asks for 8 keys (or values) of dim 16-bit values before they are needed. */
QR_INLINE void fetch_8(const uint16_t *rows, uint64_t stride, uint32_t dim)
{
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t d = 0; d < dim; d += 32) _mm_prefetch((const char *)(rows + t * stride + d), _MM_HINT_T0);
}

/* What an instruction set does for one query row: one span against `heads` (1 to heads_max) query heads q[][dim] of the kv head that begins
 * `at` values into a row; their states and parts of L move. next: the span after it, to be fetched, or NULL. False: a score is not finite. */
typedef struct row_steps {
    uint32_t heads_max;
    bool (*span)(uint32_t heads, const qr_attend_t *a, const span_t *span, const span_t *next, uint64_t at, const float *q, float *states,
                 float (*l)[16]);
    float (*sum)(const float l[16]); /* the 16 parts of L, by halves */
} row_steps_t;

/* attend_one of cpu.h with the steps of one instruction set. Walks all asked kv heads per span, so that rows are read in the order they lie. */
QR_INLINE void attend_row(const row_steps_t *steps, const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to,
                          uint32_t segment, float *states)
{
    uint32_t position = a->positions[row], begin = qr_max_u32(qr_attend_first(a, position), segment * QR_SEGMENT);
    uint32_t end = qr_min_u32(position + 1, (segment + 1) * QR_SEGMENT), count = (kv_to - kv_from) * a->group;
    const float *q = a->qkv + (uint64_t)row * (a->heads + 2 * a->kv_heads) * a->dim + (uint64_t)kv_from * a->group * a->dim;
    float l[QR_ATTEND_HEADS_MAX][16];
    bool finite = true;
    qr_assert(count <= QR_COUNT(l));
    memset(l, 0, count * sizeof *l);
    memset(states, 0, (size_t)count * a->state_floats * sizeof *states);
    for (uint32_t i = 0; i < count; i++) states[(uint64_t)i * a->state_floats] = -INFINITY;
    uint32_t base = begin / QR_SPAN * QR_SPAN;
    span_t spans[2];
    find_span(a, lane, base, begin, qr_min_u32(end, base + QR_SPAN), &spans[0]);
    for (uint32_t i = 0; base < end; i ^= 1, base += QR_SPAN) {
        span_t *next = NULL;
        if (base + QR_SPAN < end) {
            next = &spans[i ^ 1];
            find_span(a, lane, base + QR_SPAN, base + QR_SPAN, qr_min_u32(end, base + 2 * QR_SPAN), next);
        }
        for (uint32_t kv = kv_from; kv < kv_to; kv++)
            for (uint32_t g = 0, heads; g < a->group; g += heads) {
                uint32_t head = (kv - kv_from) * a->group + g, left = a->group - g;
                heads = (uint32_t)qr_div_up(left, qr_div_up(left, steps->heads_max)); /* nearly of one size: 4 of at most 3 are 2 + 2 */
                finite &= steps->span(heads, a, &spans[i], g ? NULL : next, (uint64_t)kv * a->dim, q + (uint64_t)head * a->dim,
                                      states + (uint64_t)head * a->state_floats, l + head);
            }
    }
    for (uint32_t i = 0; i < count; i++) states[(uint64_t)i * a->state_floats + 1] = steps->sum(l[i]);
    if (!finite && !QR_MUTANT(71)) qr_status_raise(a->status + row);
}

/* A tile of query rows x heads against one segment. Row i is query row i / group, head i % group of the kv head. Everything behind the
 * pointers is scratch, 64-byte aligned. */
typedef struct tile {
    const qr_attend_t *a;
    uint32_t row, kv, count; /* count: query rows * group */
    float *k, *v;            /* span widened: k[dim][64], v[64][dim] */
    float *s;                /* [count][64] scores, then weights */
    float (*l)[16];          /* [count] */
    float *states;           /* [count][state_floats] of this segment */
    float factor[QR_ATTEND_ROWS_MAX];
} tile_t;

/* What an instruction set does with one span of a tile, in this order, and the sum of a row's 16 parts of L. `base` is the span's first
 * token; masked: some key of the span is masked for some row. */
typedef struct tile_steps {
    void (*widen)(tile_t *tile, const span_t *span, bool masked);
    void (*score)(const tile_t *tile, const span_t *span);
    void (*soften)(tile_t *tile, uint32_t base);
    void (*weigh)(const tile_t *tile, uint32_t base, const span_t *span);
    float (*sum)(const float l[16]);
    void (*merge)(uint32_t dim, float *into, const float *state);
} tile_steps_t;

/* Query of row i of the tile: dim floats. */
QR_INLINE const float *query_of(const tile_t *tile, uint32_t i)
{
    const qr_attend_t *a = tile->a;
    return a->qkv + (uint64_t)(tile->row + i / a->group) * (a->heads + 2 * a->kv_heads) * a->dim +
           (tile->kv * a->group + i % a->group) * a->dim;
}

static inline void begin_tile(tile_t *tile, float *scratch)
{
    tile->k = scratch;
    tile->v = tile->k + QR_ATTEND_DIM_MAX * QR_SPAN;
    tile->s = tile->v + QR_ATTEND_DIM_MAX * QR_SPAN;
    tile->l = (float(*)[16])(tile->s + QR_ATTEND_ROWS_MAX * QR_SPAN);
    tile->states = (float *)(tile->l + QR_ATTEND_ROWS_MAX);
    memset(tile->l, 0, tile->count * sizeof *tile->l);
    memset(tile->states, 0, (size_t)tile->count * tile->a->state_floats * sizeof(float));
    for (uint32_t i = 0; i < tile->count; i++) tile->states[(uint64_t)i * tile->a->state_floats] = -INFINITY;
}

/* attend_many of cpu.h with the steps of one instruction set. */
QR_INLINE void attend_tile(const tile_steps_t *steps, const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv,
                           uint32_t segment, float *states, uint64_t row_stride, float *scratch)
{
    tile_t tile = {.a = a, .row = row, .kv = kv, .count = row_count * a->group};
    qr_assert(tile.count <= QR_ATTEND_ROWS_MAX);
    uint32_t begin = qr_max_u32(qr_attend_first(a, a->positions[row]), segment * QR_SEGMENT);
    uint32_t end = qr_min_u32(a->positions[row + row_count - 1] + 1, (segment + 1) * QR_SEGMENT);
    begin_tile(&tile, scratch);
    for (uint32_t base = begin / QR_SPAN * QR_SPAN; base < end; base += QR_SPAN) {
        span_t span;
        find_span(a, lane, base, qr_max_u32(begin, base), qr_min_u32(end, base + QR_SPAN), &span);
        steps->widen(&tile, &span, base + QR_SPAN > a->positions[row] + 1 || base < qr_attend_first(a, a->positions[row + row_count - 1]));
        steps->score(&tile, &span);
        steps->soften(&tile, base);
        steps->weigh(&tile, base, &span);
    }
    for (uint32_t i = 0; i < tile.count; i++) {
        float *state = tile.states + (uint64_t)i * a->state_floats;
        if (state[0] == -INFINITY) continue; /* this row saw nothing of the segment */
        state[1] = steps->sum(tile.l[i]);
        steps->merge(a->dim, states + i / a->group * row_stride + i % a->group * a->state_floats, state);
    }
}

#endif
