/* avx2_attention.c - paged attention with AVX2 in the order of arithmetic 5: the 8 lanes of a score are one vector, 8 keys are
 * reduced at once by a transposing tree. Prefill rows go one by one. Heads whose size is not a multiple of 8 do not exist. */
#include "kernels/cpu/avx2.h"

enum { BLOCKS = QR_SPAN / 8, HEADS_MAX = 2 };

typedef struct span {
    uint32_t first, end; /* visible part, relative to the span's begin */
    const uint16_t *k[BLOCKS], *v[BLOCKS];
} span_t;

QR_INLINE uint64_t kv_width(const qr_attend_t *a) { return (uint64_t)a->kv_heads * a->dim; }

static void find_span(const qr_attend_t *a, uint32_t lane, uint32_t begin, uint32_t first, uint32_t end, span_t *ret)
{
    ret->first = first - begin;
    ret->end = end - begin;
    for (uint32_t i = ret->first / 8; i * 8 < ret->end; i++) {
        uint64_t at = qr_attend_slot(a, lane, begin + 8 * i) * kv_width(a);
        ret->k[i] = a->k_pages + at;
        ret->v[i] = a->v_pages + at;
    }
}

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
    float top = -INFINITY, tops[8];
    _mm256_storeu_ps(tops, most);
    for (int i = 0; i < 8; i++) top = tops[i] > top ? tops[i] : top;
    *ret_factor = 1.0f;
    if (top > *m) {
        *ret_factor = qr_exp2n(*m - top);
        low = _mm256_mul_ps(low, _mm256_set1_ps(*ret_factor));
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

QR_INLINE bool one_span(const int G, const qr_attend_t *a, const span_t *span, uint64_t at, const float *q, float *states, float (*l)[16])
{
    uint64_t stride = kv_width(a);
    float e[HEADS_MAX][QR_SPAN] = {{0}}, factor[HEADS_MAX];
    bool finite = true;
    for (uint32_t block = span->first / 8; block * 8 < span->end; block++) {
        __m256 v[HEADS_MAX][8];
        const uint16_t *k = span->k[block] + at;
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

static bool one_span_1(const qr_attend_t *a, const span_t *span, uint64_t at, const float *q, float *states, float (*l)[16])
{
    return one_span(1, a, span, at, q, states, l);
}

static bool one_span_2(const qr_attend_t *a, const span_t *span, uint64_t at, const float *q, float *states, float (*l)[16])
{
    return one_span(2, a, span, at, q, states, l);
}

void qr_avx2_attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                        float *states)
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
    for (uint32_t base = begin / QR_SPAN * QR_SPAN; base < end; base += QR_SPAN) {
        span_t span;
        find_span(a, lane, base, qr_max_u32(begin, base), qr_min_u32(end, base + QR_SPAN), &span);
        for (uint32_t kv = kv_from; kv < kv_to; kv++)
            for (uint32_t g = 0, heads; g < a->group; g += heads) {
                heads = qr_min_u32(HEADS_MAX, a->group - g);
                uint32_t head = (kv - kv_from) * a->group + g;
                finite &= (heads == 2 ? one_span_2 : one_span_1)(a, &span, (uint64_t)kv * a->dim, q + (uint64_t)head * a->dim,
                                                                 states + (uint64_t)head * a->state_floats, l + head);
            }
    }
    for (uint32_t i = 0; i < count; i++)
        states[(uint64_t)i * a->state_floats + 1] = tree_8(_mm256_add_ps(_mm256_loadu_ps(l[i]), _mm256_loadu_ps(l[i] + 8)));
    if (!finite) qr_status_raise(a->status + row);
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

void qr_avx2_attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment,
                         float *states, uint64_t row_stride, float *scratch)
{
    for (uint32_t r = 0; r < row_count; r++) {
        uint32_t position = a->positions[row + r];
        if (position < segment * QR_SEGMENT || qr_attend_first(a, position) >= (segment + 1) * QR_SEGMENT) continue;
        qr_avx2_attend_one(a, lane, row + r, kv, kv + 1, segment, scratch);
        for (uint32_t g = 0; g < a->group; g++)
            qr_avx2_merge(a->dim, states + r * row_stride + g * a->state_floats, scratch + (uint64_t)g * a->state_floats);
    }
}
