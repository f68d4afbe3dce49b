/* avx2_attention.c - paged attention with AVX2 in the order of arithmetic 5.
 *
 * attend_one (decode): the 8 lanes of a score are one vector, 8 keys are reduced at once by a transposing tree. attend_many (prefill):
 * a span of keys is widened and transposed once for all rows and heads of the tile. Heads whose size is not a multiple of 8 do not
 * exist. */
#include "kernels/cpu/attention_walk.h"
#include "kernels/cpu/avx2.h"

enum { BLOCKS = QR_SPAN_BLOCKS, HEADS_MAX = 3 };

QR_INLINE __m256 widen(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }

/* 8 vectors of 8 lanes to 8 scores: trees by halves, h = 4, 2, 1. */
QR_INLINE __m256 tree_keys(const __m256 v[8])
{
    __m256 four[4], two[2];
    QR_UNROLL (int i = 0; i < 4; i++)
        four[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x20), _mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x31));
    QR_UNROLL (int i = 0; i < 2; i++) {
        __m256d x = _mm256_castps_pd(four[2 * i]), y = _mm256_castps_pd(four[2 * i + 1]);
        two[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    __m256 one = _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
    return _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 4 keys against G heads, the lanes of arithmetic 5.1, to v[g][4 * part + key]. */
QR_INLINE void score_4(const int G, const float *q, uint32_t dim, const uint16_t *k, uint64_t stride, const int part, __m256 (*v)[8])
{
    __m256 sum[HEADS_MAX][4];
    QR_UNROLL (int key = 0; key < 4; key++) {
        __m256 keys = widen(k + (uint32_t)key * stride);
        QR_UNROLL (int g = 0; g < G; g++) sum[g][key] = _mm256_mul_ps(_mm256_loadu_ps(q + (uint32_t)g * dim), keys);
    }
    QR_ROLLED (uint32_t d = 8; d < dim; d += 8)
        QR_UNROLL (int key = 0; key < 4; key++) {
            __m256 keys = widen(k + (uint32_t)key * stride + d);
            QR_UNROLL (int g = 0; g < G; g++) sum[g][key] = _mm256_fmadd_ps(_mm256_loadu_ps(q + (uint32_t)g * dim + d), keys, sum[g][key]);
        }
    QR_UNROLL (int g = 0; g < G; g++)
        QR_UNROLL (int key = 0; key < 4; key++) v[g][4 * part + key] = sum[g][key];
}

/* Scores s[64] of one head and span (masked ones: anything) become weights; M, L and the factor of acc move (arithmetic 5.2). */
static bool soften(float *s, uint32_t first, uint32_t end, float *m, float *l, float *ret_factor)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 most = none, low = _mm256_loadu_ps(l), high = _mm256_loadu_ps(l + 8), x[BLOCKS];
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < BLOCKS; i++) {
        __m256i key = _mm256_add_epi32(_mm256_set1_epi32(8 * i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)first), key),
                                           _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), key));
        x[i] = _mm256_loadu_ps(s + 8 * i);
        largest = _mm256_max_epu32(largest, _mm256_and_si256(seen, magnitude(x[i])));
        x[i] = _mm256_blendv_ps(none, x[i], _mm256_castsi256_ps(seen));
        most = _mm256_max_ps(most, x[i]);
    }
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1)); /* of finite scores, or the lane fails */
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    float top = _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    *ret_factor = 1.0f;
    if (top > *m) {
        *ret_factor = qr_exp2n(*m - top);
        if (!QR_MUTANT(792)) low = _mm256_mul_ps(low, _mm256_set1_ps(*ret_factor));
        high = _mm256_mul_ps(high, _mm256_set1_ps(*ret_factor));
        *m = top;
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        __m256 e0 = exp2n_8(_mm256_sub_ps(x[i], _mm256_set1_ps(*m))), e1 = exp2n_8(_mm256_sub_ps(x[i + 1], _mm256_set1_ps(*m)));
        low = _mm256_add_ps(low, e0);
        high = _mm256_add_ps(high, e1);
        _mm256_storeu_ps(s + 8 * i, e0);
        _mm256_storeu_ps(s + 8 * i + 8, e1);
    }
    _mm256_storeu_ps(l, low);
    _mm256_storeu_ps(l + 8, high);
    return most_of_8(largest) < 0x7f800000u;
}

/* acc[g][d..] += e v over the visible keys, W vectors of d at a time. */
QR_INLINE void weigh(const int G, const int W, const span_t *span, uint64_t stride, uint64_t at, const float (*e)[QR_SPAN],
                     const float *factor, float *acc, uint64_t acc_stride)
{
    __m256 sum[HEADS_MAX][4];
    QR_UNROLL (int g = 0; g < G; g++)
        QR_UNROLL (int w = 0; w < W; w++)
            sum[g][w] = _mm256_mul_ps(_mm256_loadu_ps(acc + (uint64_t)g * acc_stride + 8 * w), _mm256_set1_ps(factor[g]));
    QR_ROLLED (uint32_t t = span->first; t < span->end; t++) {
        const uint16_t *v = span->v[t / 8] + (t % 8) * stride + at;
        QR_UNROLL (int w = 0; w < W; w++) {
            __m256 values = widen(v + 8 * w);
            QR_UNROLL (int g = 0; g < G; g++) sum[g][w] = _mm256_fmadd_ps(_mm256_set1_ps(e[g][t]), values, sum[g][w]);
        }
    }
    QR_UNROLL (int g = 0; g < G; g++)
        QR_UNROLL (int w = 0; w < W; w++) _mm256_storeu_ps(acc + (uint64_t)g * acc_stride + 8 * w, sum[g][w]);
}

/* One span, G query heads of one kv head that begins `at` values into a row. next: the span after it, or NULL. */
QR_INLINE bool one_span(const int G, const qr_attend_t *a, const span_t *span, const span_t *next, uint64_t at, const float *q,
                        float *states, float (*l)[16])
{
    uint64_t stride = kv_width(a);
    float e[HEADS_MAX][QR_SPAN] = {{0}}, factor[HEADS_MAX];
    bool finite = true;
    for (uint32_t block = span->first / 8; block * 8 < span->end; block++) {
        __m256 v[HEADS_MAX][8];
        const uint16_t *k = span->k[block] + at;
        if (next && block * 8 < next->end) {
            fetch_8(next->k[block] + at, stride, a->dim);
            fetch_8(next->v[block] + at, stride, a->dim);
        }
        score_4(G, q, a->dim, k, stride, 0, v);
        score_4(G, q, a->dim, k + 4 * stride, stride, 1, v);
        QR_UNROLL (int g = 0; g < G; g++) _mm256_storeu_ps(e[g] + block * 8, tree_keys(v[g]));
    }
    QR_UNROLL (int g = 0; g < G; g++)
        finite &= soften(e[g], span->first, span->end, states + (uint32_t)g * a->state_floats, l[g], &factor[g]);
    uint32_t d = 0;
    for (; d + 32 <= a->dim; d += 32)
        weigh(G, 4, span, stride, at + d, (const float(*)[QR_SPAN])e, factor, states + QR_STATE_HEAD + d, a->state_floats);
    for (; d < a->dim; d += 8)
        weigh(G, 1, span, stride, at + d, (const float(*)[QR_SPAN])e, factor, states + QR_STATE_HEAD + d, a->state_floats);
    return finite;
}

static bool one_span_heads(uint32_t heads, const qr_attend_t *a, const span_t *span, const span_t *next, uint64_t at, const float *q,
                           float *states, float (*l)[16])
{
    switch (heads) {
    case 1: return one_span(1, a, span, next, at, q, states, l);
    case 2: return one_span(2, a, span, next, at, q, states, l);
    default: return one_span(3, a, span, next, at, q, states, l);
    }
}

static float sum_of(const float l[16]) { return tree_8(_mm256_add_ps(_mm256_loadu_ps(l), _mm256_loadu_ps(l + 8))); }

void qr_avx2_attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                        float *states)
{
    static const row_steps_t steps = {HEADS_MAX, one_span_heads, sum_of};
    attend_row(&steps, a, lane, row, kv_from, kv_to, segment, states);
}

void qr_avx2_merge(uint32_t dim, float *into, const float *state)
{
    if (into[1] == 0) {
        qr_cpu_scalar.merge(dim, into, state);
        return;
    }
    float most = state[0] > into[0] ? state[0] : into[0], x = qr_exp2n(into[0] - most), y = qr_exp2n(state[0] - most);
    into[1] = fmaf(state[1], y, into[1] * x);
    for (uint32_t d = QR_STATE_HEAD; d < QR_STATE_HEAD + dim; d += 8) {
        __m256 old = _mm256_mul_ps(_mm256_loadu_ps(into + d), _mm256_set1_ps(x));
        _mm256_storeu_ps(into + d, _mm256_fmadd_ps(_mm256_loadu_ps(state + d), _mm256_set1_ps(y), old));
    }
    into[0] = most;
}

void qr_avx2_finish(uint32_t dim, const float *state, float *out)
{
    __m256 r = _mm256_set1_ps(1.0f / state[1]);
    for (uint32_t d = 0; d < dim; d += 8)
        _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(state + QR_STATE_HEAD + d), r, _mm256_setzero_ps()));
}

/* ---- prefill ---------------------------------------------------------------------------------------------------------- */

QR_INLINE void transpose_8(__m256 r[8])
{
    __m256 t[8];
    QR_UNROLL (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    QR_UNROLL (int i = 0; i < 8; i += 4)
        QR_UNROLL (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
        }
    QR_UNROLL (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    }
    QR_UNROLL (int i = 0; i < 8; i++) r[i] = t[i];
}

QR_INLINE __m256 finite_or_zero(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude(x))));
}

/* Widens the looked-at keys of a span; the others become zeros, and so does, where some key is masked for some row, whatever is not
 * finite: a masked key may then contribute fma(+0, v, acc). A stored row is always finite (arithmetic 7): only rows nobody wrote change. */
static void widen_span(tile_t *tile, const span_t *span, bool masked)
{
    const qr_attend_t *a = tile->a;
    uint64_t stride = kv_width(a), at = (uint64_t)tile->kv * a->dim;
    for (uint32_t i = 0; i < BLOCKS; i++)
        for (uint32_t d = 0; d < a->dim; d += 8) {
            __m256 r[8];
            QR_UNROLL (uint32_t t = 0; t < 8; t++) {
                uint32_t key = 8 * i + t;
                bool seen = key >= span->first && key < span->end;
                r[t] = seen ? widen(span->k[i] + t * stride + at + d) : _mm256_setzero_ps();
                __m256 x = seen ? widen(span->v[i] + t * stride + at + d) : _mm256_setzero_ps();
                _mm256_store_ps(tile->v + key * a->dim + d, masked ? finite_or_zero(x) : x);
            }
            transpose_8(r);
            QR_UNROLL (uint32_t t = 0; t < 8; t++) _mm256_store_ps(tile->k + (d + t) * QR_SPAN + 8 * i, r[t]);
        }
}

/* One lane of the scores of R rows x 16 keys: the chain over d = lane, lane + 8, ... */
QR_INLINE void score_lane(const int R, const float *const *q, uint32_t dim, const float *k, uint32_t lane, __m256 (*ret)[2])
{
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int i = 0; i < 2; i++)
            ret[r][i] = _mm256_mul_ps(_mm256_broadcast_ss(q[r] + lane), _mm256_load_ps(k + lane * QR_SPAN + 8 * i));
    QR_ROLLED (uint32_t d = lane + 8; d < dim; d += 8) {
        __m256 k0 = _mm256_load_ps(k + d * QR_SPAN), k1 = _mm256_load_ps(k + d * QR_SPAN + 8);
        QR_UNROLL (int r = 0; r < R; r++) {
            __m256 x = _mm256_broadcast_ss(q[r] + d);
            ret[r][0] = _mm256_fmadd_ps(x, k0, ret[r][0]);
            ret[r][1] = _mm256_fmadd_ps(x, k1, ret[r][1]);
        }
    }
}

QR_INLINE void add_tile(const int R, __m256 (*a)[2], __m256 (*b)[2])
{
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int i = 0; i < 2; i++) a[r][i] = _mm256_add_ps(a[r][i], b[r][i]);
}

/* Lanes in tree order, so that few partial sums are alive: ((0+4)+(2+6)) + ((1+5)+(3+7)). Four rows are eight chains, which hides the
 * latency of the fma; the partial sums wait on the stack. */
QR_INLINE void score_tile(const int R, const tile_t *tile, uint32_t first, uint32_t keys_from)
{
    const float *q[4], *k = tile->k + keys_from;
    float *s = tile->s + first * QR_SPAN + keys_from;
    uint32_t dim = tile->a->dim;
    __m256 lane[4][2], part[2][4][2], pair[4][2];
    QR_UNROLL (int r = 0; r < R; r++) q[r] = query_of(tile, first + (uint32_t)r);
    QR_UNROLL (uint32_t odd = 0; odd < 2; odd++) {
        score_lane(R, q, dim, k, odd, part[odd]);
        score_lane(R, q, dim, k, odd + (QR_MUTANT(790) ? 2 : 4), lane);
        add_tile(R, part[odd], lane);
        score_lane(R, q, dim, k, odd + (QR_MUTANT(790) ? 4 : 2), pair);
        score_lane(R, q, dim, k, odd + 6, lane);
        add_tile(R, pair, lane);
        add_tile(R, part[odd], pair);
    }
    add_tile(R, part[0], part[1]);
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int i = 0; i < 2; i++) _mm256_store_ps(s + r * QR_SPAN + 8 * i, part[0][r][i]);
}

static void score_rows(const tile_t *tile, const span_t *span)
{
    for (uint32_t from = 0; from < QR_SPAN; from += 16) {
        if (from >= span->end || from + 16 <= span->first) continue; /* masked for every row: never looked at */
        uint32_t i = 0;
        for (; i + 4 <= tile->count; i += 4) score_tile(4, tile, i, from);
        for (; i < tile->count; i++) score_tile(1, tile, i, from);
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
        if (!soften(s, first > base ? first - base : 0, qr_min_u32(position + 1 - base, QR_SPAN), state, tile->l[i], &tile->factor[i]))
            qr_status_raise(a->status + tile->row + i / a->group);
    }
}

/* R rows x W vectors of d over the keys [first, end) of the span. */
QR_INLINE void weigh_tile(const int R, const int W, const tile_t *tile, uint32_t row, uint32_t d, uint32_t first, uint32_t end)
{
    const qr_attend_t *a = tile->a;
    float *acc = tile->states + (uint64_t)row * a->state_floats + QR_STATE_HEAD + d;
    const float *e = tile->s + row * QR_SPAN, *v = tile->v + d;
    __m256 sum[6][2];
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int w = 0; w < W; w++)
            sum[r][w] = _mm256_mul_ps(_mm256_loadu_ps(acc + (uint64_t)r * a->state_floats + 8 * w),
                                      _mm256_set1_ps(tile->factor[row + (uint32_t)r]));
    QR_ROLLED (uint32_t t = first; t < end; t++) {
        __m256 values[2];
        QR_UNROLL (int w = 0; w < W; w++) values[w] = _mm256_load_ps(v + (uint64_t)t * a->dim + 8 * w);
        QR_UNROLL (int r = 0; r < R; r++) {
            __m256 x = _mm256_broadcast_ss(e + (uint32_t)r * QR_SPAN + t);
            QR_UNROLL (int w = 0; w < W; w++) sum[r][w] = _mm256_fmadd_ps(x, values[w], sum[r][w]);
        }
    }
    QR_UNROLL (int r = 0; r < R; r++)
        QR_UNROLL (int w = 0; w < W; w++) _mm256_storeu_ps(acc + (uint64_t)r * a->state_floats + 8 * w, sum[r][w]);
}

QR_INLINE void weigh_rows_of(const int R, const tile_t *tile, uint32_t row, uint32_t base, const span_t *span)
{
    const qr_attend_t *a = tile->a;
    uint32_t last = a->positions[tile->row + (row + (uint32_t)R - 1) / a->group], d = 0;
    if (last < base) return;
    uint32_t end = qr_min_u32(span->end, last + 1 - base);
    for (; d + 16 <= a->dim; d += 16) weigh_tile(R, 2, tile, row, d, span->first, end);
    if (d < a->dim) weigh_tile(R, 1, tile, row, d, span->first, end);
}

static void weigh_rows(const tile_t *tile, uint32_t base, const span_t *span)
{
    uint32_t i = 0;
    for (; i + 6 <= tile->count; i += 6) weigh_rows_of(6, tile, i, base, span);
    for (; i < tile->count; i++) weigh_rows_of(1, tile, i, base, span);
}

void qr_avx2_attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment,
                         float *states, uint64_t row_stride, float *scratch)
{
    static const tile_steps_t steps = {widen_span, score_rows, soften_rows, weigh_rows, sum_of, qr_avx2_merge};
    attend_tile(&steps, a, lane, row, row_count, kv, segment, states, row_stride, scratch);
}
