/* avx512_attention.c - paged attention with AVX-512 in the order of arithmetic 5.
 *
 * attend_one (decode): two keys share a vector, so that the 8 lanes of a score lie side by side; 16 keys are reduced at once by a
 * transposing tree. attend_many (prefill): a span of keys is widened and transposed once for all rows and heads of the tile.
 * Heads whose size is not a multiple of 16 are the scalar kernel's. */
#include "kernels/cpu/attention_walk.h"
#include "kernels/cpu/avx512.h"

enum { VECTORS = QR_SPAN / 16, HEADS_MAX = 4 };

QR_INLINE uint64_t visible_mask(uint32_t first, uint32_t end) { return (end >= 64 ? ~0ull : (1ull << end) - 1) & ~((1ull << first) - 1); }

/* Masked scores of one head and span become weights; M, L and the factor of acc move (arithmetic 5.2). False: a score is not finite. */
QR_INLINE bool soften(__m512 s[VECTORS], uint64_t mask, float *m, __m512 *l, float *ret_factor)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    uint32_t bad = 0;
    QR_UNROLL (int i = 0; i < VECTORS; i++) {
        __mmask16 part = (__mmask16)(mask >> (16 * i));
        bad |= _mm512_mask_fpclass_ps_mask(part, s[i], 0x99); /* NaN or infinite */
        s[i] = _mm512_mask_mov_ps(none, part, s[i]);
    }
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
    *ret_factor = 1.0f;
    if (most > *m) {
        *ret_factor = _mm512_cvtss_f32(exp2n_16(_mm512_set1_ps(*m - most)));
        if (!QR_MUTANT(67)) *l = _mm512_mul_ps(*l, _mm512_set1_ps(*ret_factor));
        *m = most;
    }
    __m512 base = _mm512_set1_ps(*m);
    QR_UNROLL (int i = 0; i < VECTORS; i++) {
        s[i] = exp2n_16(_mm512_sub_ps(s[i], base));
        *l = _mm512_add_ps(*l, s[i]);
    }
    return !bad;
}

/* ---- decode --------------------------------------------------------------------------------------------------------- */

/* 8 vectors of two keys x 8 lanes to 16 scores: trees by halves, h = 4, 2, 1. */
QR_INLINE __m512 tree_pairs(const __m512 v[8])
{
    __m512 four[4], two[2];
    QR_UNROLL (int i = 0; i < 4; i++)
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88), _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
    QR_UNROLL (int i = 0; i < 2; i++) {
        __m512d x = _mm512_castps_pd(four[2 * i]), y = _mm512_castps_pd(four[2 * i + 1]);
        two[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    __m512 one = _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), one);
}

QR_INLINE __m512 widen_pair(const uint16_t *k, uint64_t stride)
{
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)k)),
                                           _mm_loadu_si128((const __m128i *)(k + stride)), 1);
    return _mm512_cvtph_ps(both);
}

/* 8 keys against G query heads: v[g][pair], the lanes of arithmetic 5.1. The loop over dim stays rolled. */
QR_INLINE void score_8(const int G, const float *q, uint32_t dim, const uint16_t *k, uint64_t stride, __m512 (*v)[8])
{
    QR_UNROLL (int p = 0; p < 4; p++) {
        __m512 keys = widen_pair(k + 2 * (uint32_t)p * stride, stride);
        QR_UNROLL (int g = 0; g < G; g++) v[g][p] = _mm512_mul_ps(_mm512_broadcast_f32x8(_mm256_loadu_ps(q + (uint32_t)g * dim)), keys);
    }
    QR_ROLLED (uint32_t d = 8; d < dim; d += 8) {
        __m512 query[HEADS_MAX];
        QR_UNROLL (int g = 0; g < G; g++) query[g] = _mm512_broadcast_f32x8(_mm256_loadu_ps(q + (uint32_t)g * dim + d));
        QR_UNROLL (int p = 0; p < 4; p++) {
            __m512 keys = widen_pair(k + 2 * (uint32_t)p * stride + d, stride);
            QR_UNROLL (int g = 0; g < G; g++) v[g][p] = _mm512_fmadd_ps(query[g], keys, v[g][p]);
        }
    }
}

/* acc[g][d..] += e v over the visible keys, W vectors of d at a time. */
QR_INLINE void weigh(const int G, const int W, const span_t *span, uint64_t stride, uint64_t at, const float (*e)[QR_SPAN],
                     const float *factor, float *acc, uint64_t acc_stride)
{
    __m512 sum[HEADS_MAX][4];
    QR_UNROLL (int g = 0; g < G; g++)
        QR_UNROLL (int w = 0; w < W; w++)
            sum[g][w] = _mm512_mul_ps(_mm512_loadu_ps(acc + (uint64_t)g * acc_stride + 16 * w), _mm512_set1_ps(factor[g]));
    QR_ROLLED (uint32_t t = span->first; t < span->end; t++) {
        const uint16_t *v = span->v[t / 8] + (t % 8) * stride + at;
        QR_UNROLL (int w = 0; w < W; w++) {
            __m512 values = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(v + 16 * w)));
            QR_UNROLL (int g = 0; g < G; g++) sum[g][w] = _mm512_fmadd_ps(_mm512_set1_ps(e[g][t]), values, sum[g][w]);
        }
    }
    QR_UNROLL (int g = 0; g < G; g++)
        QR_UNROLL (int w = 0; w < W; w++) _mm512_storeu_ps(acc + (uint64_t)g * acc_stride + 16 * w, sum[g][w]);
}

/* One span, G query heads of one kv head that begins `at` values into a row. next: the span after it, or NULL. */
QR_INLINE bool one_span(const int G, const qr_attend_t *a, const span_t *span, const span_t *next, uint64_t at, const float *q,
                        float *states, float (*l)[16])
{
    uint64_t stride = kv_width(a), mask = visible_mask(span->first, span->end);
    float e[HEADS_MAX][QR_SPAN], factor[HEADS_MAX];
    __m512 s[HEADS_MAX][VECTORS];
    bool finite = true;
    for (uint32_t i = 0; i < VECTORS; i++) {
        __m512 v[HEADS_MAX][8];
        QR_UNROLL (int half = 0; half < 2; half++) {
            uint32_t block = 2 * i + (uint32_t)half;
            bool seen = block * 8 + 8 > span->first && block * 8 < span->end;
            if (next && block * 8 < next->end) fetch_8(next->k[block] + at, stride, a->dim);
            if (seen) {
                __m512 part[HEADS_MAX][8];
                score_8(G, q, a->dim, span->k[block] + at, stride, part);
                QR_UNROLL (int g = 0; g < G; g++)
                    QR_UNROLL (int p = 0; p < 4; p++) v[g][4 * half + p] = part[g][p];
            } else
                QR_UNROLL (int g = 0; g < G; g++)
                    QR_UNROLL (int p = 0; p < 4; p++) v[g][4 * half + p] = _mm512_setzero_ps();
        }
        QR_UNROLL (int g = 0; g < G; g++) s[g][i] = tree_pairs(v[g]);
    }
    QR_UNROLL (int g = 0; g < G; g++) {
        __m512 parts = _mm512_loadu_ps(l[g]);
        finite &= soften(s[g], mask, states + (uint32_t)g * a->state_floats, &parts, &factor[g]);
        _mm512_storeu_ps(l[g], parts);
        QR_UNROLL (int i = 0; i < VECTORS; i++) _mm512_storeu_ps(e[g] + 16 * i, s[g][i]);
    }
    if (next)
        for (uint32_t block = 0; block * 8 < next->end; block++) fetch_8(next->v[block] + at, stride, a->dim);
    uint32_t d = 0;
    for (; d + 64 <= a->dim; d += 64)
        weigh(G, 4, span, stride, at + d, (const float(*)[QR_SPAN])e, factor, states + QR_STATE_HEAD + d, a->state_floats);
    for (; d < a->dim; d += 16)
        weigh(G, 1, span, stride, at + d, (const float(*)[QR_SPAN])e, factor, states + QR_STATE_HEAD + d, a->state_floats);
    return finite;
}

static bool one_span_heads(uint32_t heads, const qr_attend_t *a, const span_t *span, const span_t *next, uint64_t at, const float *q,
                           float *states, float (*l)[16])
{
    switch (heads) {
    case 1: return one_span(1, a, span, next, at, q, states, l);
    case 2: return one_span(2, a, span, next, at, q, states, l);
    case 3: return one_span(3, a, span, next, at, q, states, l);
    default: return one_span(4, a, span, next, at, q, states, l);
    }
}

static float sum_of(const float l[16]) { return tree_16(_mm512_loadu_ps(l)); }

void qr_avx512_attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                          float *states)
{
    static const row_steps_t steps = {HEADS_MAX, one_span_heads, sum_of};
    if (a->dim % 16)
        qr_cpu_scalar.attend_one(a, lane, row, kv_from, kv_to, segment, states);
    else
        attend_row(&steps, a, lane, row, kv_from, kv_to, segment, states);
}

/* ---- merge ------------------------------------------------------------------------------------------------------------ */

void qr_avx512_merge(uint32_t dim, float *into, const float *state)
{
    if (dim % 16 || into[1] == 0) {
        qr_cpu_scalar.merge(dim, into, state);
        return;
    }
    float most = state[0] > into[0] ? state[0] : into[0], x = qr_exp2n(into[0] - most), y = qr_exp2n(state[0] - most);
    into[1] = fmaf(state[1], y, into[1] * x);
    for (uint32_t d = QR_STATE_HEAD; d < QR_STATE_HEAD + dim; d += 16) {
        __m512 old = _mm512_mul_ps(_mm512_loadu_ps(into + d), _mm512_set1_ps(x));
        _mm512_storeu_ps(into + d, _mm512_fmadd_ps(_mm512_loadu_ps(state + d), _mm512_set1_ps(y), old));
    }
    into[0] = most;
}

void qr_avx512_finish(uint32_t dim, const float *state, float *out)
{
    if (dim % 16) {
        qr_cpu_scalar.finish(dim, state, out);
        return;
    }
    __m512 r = _mm512_set1_ps(1.0f / state[1]);
    for (uint32_t d = 0; d < dim; d += 16)
        _mm512_storeu_ps(out + d, _mm512_fmadd_ps(_mm512_loadu_ps(state + QR_STATE_HEAD + d), r, _mm512_setzero_ps()));
}

/* ---- prefill ---------------------------------------------------------------------------------------------------------- */

QR_INLINE void transpose_16(__m512 r[16])
{
    __m512 t[16];
    QR_UNROLL (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    QR_UNROLL (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    }
    QR_UNROLL (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
    QR_UNROLL (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Widens the looked-at keys of a span; the others become zeros, and so does, where some key is masked for some row, whatever is not
 * finite: a masked key may then contribute fma(+0, v, acc). A stored row is always finite (arithmetic 7): only rows nobody wrote change. */
static void widen_span(tile_t *tile, const span_t *span, bool masked)
{
    const qr_attend_t *a = tile->a;
    uint64_t stride = kv_width(a), at = (uint64_t)tile->kv * a->dim;
    for (uint32_t i = 0; i < VECTORS; i++)
        for (uint32_t d = 0; d < a->dim; d += 16) {
            __m512 r[16];
            QR_UNROLL (uint32_t t = 0; t < 16; t++) {
                uint32_t key = 16 * i + t;
                r[t] = _mm512_setzero_ps();
                if (key >= span->first && key < span->end)
                    r[t] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(span->k[key / 8] + (key % 8) * stride + at + d)));
            }
            transpose_16(r);
            QR_UNROLL (uint32_t t = 0; t < 16; t++) _mm512_store_ps(tile->k + (d + t) * QR_SPAN + 16 * i, r[t]);
        }
    for (uint32_t key = 0; key < QR_SPAN; key++)
        for (uint32_t d = 0; d < a->dim; d += 16) {
            __m512 x = _mm512_setzero_ps();
            if (key >= span->first && key < span->end) {
                x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(span->v[key / 8] + (key % 8) * stride + at + d)));
                if (masked) x = _mm512_maskz_mov_ps((__mmask16)~_mm512_fpclass_ps_mask(x, 0x99), x);
            }
            _mm512_store_ps(tile->v + key * a->dim + d, x);
        }
}

/* One lane of the scores of R rows x 32 keys: the chain over d = lane, lane + 8, ... */
QR_INLINE void score_lane(const int R, const float *const *q, uint32_t dim, const float *k, uint32_t lane, __m512 (*ret)[2])
{
    QR_UNROLL (int r = 0; r < R; r++) {
        ret[r][0] = _mm512_mul_ps(_mm512_set1_ps(q[r][lane]), _mm512_load_ps(k + lane * QR_SPAN));
        ret[r][1] = _mm512_mul_ps(_mm512_set1_ps(q[r][lane]), _mm512_load_ps(k + lane * QR_SPAN + 16));
    }
    QR_ROLLED (uint32_t d = lane + 8; d < dim; d += 8) {
        __m512 k0 = _mm512_load_ps(k + d * QR_SPAN), k1 = _mm512_load_ps(k + d * QR_SPAN + 16);
        QR_UNROLL (int r = 0; r < R; r++) {
            __m512 x = _mm512_set1_ps(q[r][d]);
            ret[r][0] = _mm512_fmadd_ps(x, k0, ret[r][0]);
            ret[r][1] = _mm512_fmadd_ps(x, k1, ret[r][1]);
        }
    }
}

QR_INLINE void add_tile(const int R, __m512 (*a)[2], __m512 (*b)[2])
{
    QR_UNROLL (int r = 0; r < R; r++) {
        a[r][0] = _mm512_add_ps(a[r][0], b[r][0]);
        a[r][1] = _mm512_add_ps(a[r][1], b[r][1]);
    }
}

QR_INLINE void store_tile(const int R, __m512 (*a)[2], float *s)
{
    QR_UNROLL (int r = 0; r < R; r++) {
        _mm512_store_ps(s + r * QR_SPAN, a[r][0]);
        _mm512_store_ps(s + r * QR_SPAN + 16, a[r][1]);
    }
}

/* Lanes in tree order, so that few partial sums are alive: ((0+4)+(2+6)) + ((1+5)+(3+7)). Four rows are eight chains, which hides the
 * latency of the fma; the first half of the tree waits in memory, or the registers would not do. */
QR_INLINE void score_tile(const int R, const tile_t *tile, uint32_t first, uint32_t keys_from)
{
    const float *q[4], *k = tile->k + keys_from;
    float *s = tile->s + first * QR_SPAN + keys_from;
    uint32_t dim = tile->a->dim;
    __m512 a[4][2], b[4][2], c[4][2];
    QR_UNROLL (int r = 0; r < R; r++) q[r] = query_of(tile, first + (uint32_t)r);
    score_lane(R, q, dim, k, 0, a);
    score_lane(R, q, dim, k, QR_MUTANT(66) ? 2 : 4, b);
    add_tile(R, a, b);
    score_lane(R, q, dim, k, QR_MUTANT(66) ? 4 : 2, b);
    score_lane(R, q, dim, k, 6, c);
    add_tile(R, b, c);
    add_tile(R, a, b);
    store_tile(R, a, s);
    score_lane(R, q, dim, k, 1, a);
    score_lane(R, q, dim, k, 5, b);
    add_tile(R, a, b);
    score_lane(R, q, dim, k, 3, b);
    score_lane(R, q, dim, k, 7, c);
    add_tile(R, b, c);
    add_tile(R, a, b);
    QR_UNROLL (int r = 0; r < R; r++) {
        b[r][0] = _mm512_load_ps(s + r * QR_SPAN);
        b[r][1] = _mm512_load_ps(s + r * QR_SPAN + 16);
    }
    add_tile(R, b, a);
    store_tile(R, b, s);
}

static void score_rows(const tile_t *tile, const span_t *span)
{
    for (uint32_t from = 0; from < QR_SPAN; from += 32) {
        if (from >= span->end || from + 32 <= span->first) continue; /* masked for every row: never looked at */
        uint32_t i = 0;
        for (; i + 4 <= tile->count; i += 4) score_tile(4, tile, i, from);
        for (; i + 2 <= tile->count; i += 2) score_tile(2, tile, i, from);
        if (i < tile->count) score_tile(1, tile, i, from);
    }
}

static void soften_rows(tile_t *tile, uint32_t base)
{
    const qr_attend_t *a = tile->a;
    for (uint32_t i = 0; i < tile->count; i++) {
        uint32_t position = a->positions[tile->row + i / a->group], first = qr_attend_first(a, position);
        float *s = tile->s + i * QR_SPAN, *state = tile->states + (uint64_t)i * a->state_floats;
        tile->factor[i] = 1;
        if (position < base || first >= base + QR_SPAN) { /* wholly masked for this row */
            memset(s, 0, QR_SPAN * sizeof *s);
            continue;
        }
        uint64_t mask = visible_mask(first > base ? first - base : 0, qr_min_u32(position + 1 - base, QR_SPAN));
        __m512 x[VECTORS], l = _mm512_load_ps(tile->l[i]);
        QR_UNROLL (int v = 0; v < VECTORS; v++) x[v] = _mm512_load_ps(s + 16 * v);
        if (!soften(x, mask, state, &l, &tile->factor[i])) qr_status_raise(a->status + tile->row + i / a->group);
        QR_UNROLL (int v = 0; v < VECTORS; v++) _mm512_store_ps(s + 16 * v, x[v]);
        _mm512_store_ps(tile->l[i], l);
    }
}

/* R rows x W vectors of d over the keys [first, end) of the span. */
QR_INLINE void weigh_tile(const int R, const int W, const tile_t *tile, uint32_t row, uint32_t d, uint32_t first, uint32_t end)
{
    const qr_attend_t *a = tile->a;
    float *acc = tile->states + (uint64_t)row * a->state_floats + QR_STATE_HEAD + d;
    const float *e = tile->s + row * QR_SPAN, *v = tile->v + d;
    __m512 sum[6][4];
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int w = 0; w < W; w++)
            sum[r][w] = _mm512_mul_ps(_mm512_loadu_ps(acc + (uint64_t)r * a->state_floats + 16 * w),
                                      _mm512_set1_ps(tile->factor[row + (uint32_t)r]));
    QR_ROLLED (uint32_t t = first; t < end; t++) {
        __m512 values[4];
        QR_UNROLL (int w = 0; w < W; w++) values[w] = _mm512_load_ps(v + (uint64_t)t * a->dim + 16 * w);
        QR_UNROLL (int r = 0; r < R; r++) {
            __m512 x = _mm512_set1_ps(e[(uint32_t)r * QR_SPAN + t]);
            QR_UNROLL (int w = 0; w < W; w++) sum[r][w] = _mm512_fmadd_ps(x, values[w], sum[r][w]);
        }
    }
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int w = 0; w < W; w++) _mm512_storeu_ps(acc + (uint64_t)r * a->state_floats + 16 * w, sum[r][w]);
}

QR_INLINE void weigh_rows_of(const int R, const tile_t *tile, uint32_t row, uint32_t base, const span_t *span)
{
    const qr_attend_t *a = tile->a;
    uint32_t last = a->positions[tile->row + (row + (uint32_t)R - 1) / a->group], d = 0;
    if (last < base) return;
    uint32_t end = qr_min_u32(span->end, last + 1 - base);
    for (; d + 64 <= a->dim; d += 64) weigh_tile(R, 4, tile, row, d, span->first, end);
    for (; d < a->dim; d += 16) weigh_tile(R, 1, tile, row, d, span->first, end);
}

static void weigh_rows(const tile_t *tile, uint32_t base, const span_t *span)
{
    uint32_t i = 0;
    for (; i + 6 <= tile->count; i += 6) weigh_rows_of(6, tile, i, base, span);
    for (; i + 3 <= tile->count; i += 3) weigh_rows_of(3, tile, i, base, span);
    for (; i < tile->count; i++) weigh_rows_of(1, tile, i, base, span);
}

void qr_avx512_attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment,
                           float *states, uint64_t row_stride, float *scratch)
{
    static const tile_steps_t steps = {widen_span, score_rows, soften_rows, weigh_rows, sum_of, qr_avx512_merge};
    if (a->dim % 16)
        qr_cpu_scalar.attend_many(a, lane, row, row_count, kv, segment, states, row_stride, scratch);
    else
        attend_tile(&steps, a, lane, row, row_count, kv, segment, states, row_stride, scratch);
}
