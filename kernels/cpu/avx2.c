/* avx2.c - the row-wise kernels with AVX2, FMA and F16C, and the table of this instruction set. */
#include "kernels/cpu/avx2.h"

#include <cpuid.h>

/* ---- activations -------------------------------------------------------------------------------------------------- */

enum { PARTS = QR_BLOCK / 8 };

/* One block of 32 in four vectors (arithmetic 2). True if it is poisoned. */
QR_INLINE bool quantise_block(const __m256 x[PARTS], qr_activation_t *ret)
{
    __m256i largest = magnitude(x[0]), q[PARTS];
    QR_UNROLL (int i = 1; i < PARTS; i++) largest = _mm256_max_epu32(largest, magnitude(x[i]));
    uint32_t most = most_of_8(largest);
    if (most >= 0x7f800000u || most < 0x0d800000u) {
        memset(ret, 0, sizeof *ret);
        if (most < 0x7f800000u) return false;
        ret->d = ret->ds = qr_bits_float(0x7fc00000u);
        return true;
    }
    float amax = qr_bits_float(most), d = amax / 127.0f;
    __m256 id = _mm256_set1_ps(127.0f / amax);
    QR_UNROLL (int i = 0; i < PARTS; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], id));
    __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    __m256i bytes = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    int32_t low = _mm256_extract_epi32(sums, 0), high = _mm256_extract_epi32(sums, 4), sum = low + high;
    _mm256_storeu_si256((__m256i *)ret->q, bytes);
    __m256i rest = _mm256_setr_epi32((int32_t)qr_float_bits(d), (int32_t)qr_float_bits(d * (float)sum), -128 * sum, -8 * sum, -32 * low,
                                     -32 * high, 0, 0);
    _mm256_storeu_si256((__m256i *)&ret->d, rest);
    return false;
}

/* Block b of a finished row, as an activation; returns whether it holds a value that is not finite. */
QR_INLINE bool put_block(const __m256 x[PARTS], bool quantised, uint8_t *y, uint32_t b)
{
    if (quantised) return quantise_block(x, (qr_activation_t *)y + b);
    __m256i largest = magnitude(x[0]);
    QR_UNROLL (int i = 0; i < PARTS; i++) {
        _mm256_storeu_ps((float *)y + b * QR_BLOCK + 8 * (uint32_t)i, x[i]);
        largest = _mm256_max_epu32(largest, magnitude(x[i]));
    }
    return most_of_8(largest) >= 0x7f800000u;
}

static void quantise(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    for (uint32_t r = from; r < to; r++) {
        const float *x = (const float *)args->b[0] + (uint64_t)r * width;
        uint8_t *y = args->b[1] + r * qr_activation_row_bytes(quantised, width);
        bool bad = false;
        for (uint32_t b = 0; b < width / QR_BLOCK; b++) {
            __m256 v[PARTS];
            QR_UNROLL (int i = 0; i < PARTS; i++) v[i] = _mm256_loadu_ps(x + b * QR_BLOCK + 8 * (uint32_t)i);
            bad |= put_block(v, quantised, y, b);
        }
        if (bad) qr_status_raise((uint32_t *)args->b[2] + r);
    }
}

/* Sum of squares in 64 lanes and its tree (arithmetic 3). width: a multiple of 32. */
QR_INLINE float square_sum(const float *x, uint32_t width)
{
    __m256 a[8], v;
    QR_UNROLL (int l = 0; l < 8; l++) a[l] = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 64 <= width; i += 64)
        QR_UNROLL (int l = 0; l < 8; l++) {
            v = _mm256_loadu_ps(x + i + 8 * l);
            a[l] = _mm256_fmadd_ps(v, v, a[l]);
        }
    if (i < width)
        QR_UNROLL (int l = 0; l < 4; l++) {
            v = _mm256_loadu_ps(x + i + 8 * l);
            a[l] = _mm256_fmadd_ps(v, v, a[l]);
        }
    QR_UNROLL (int h = 4; h >= 1; h /= 2)
        QR_UNROLL (int l = 0; l < h; l++) a[l] = _mm256_add_ps(a[l], a[l + h]);
    return tree_8(a[0]);
}

static void norm(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    const float *w = (const float *)args->b[1];
    for (uint32_t row = from; row < to; row++) {
        const float *x = (const float *)args->b[0] + (uint64_t)row * width;
        uint8_t *y = args->b[2] + row * qr_activation_row_bytes(quantised, width);
        float sum = square_sum(x, width);
        bool bad = !qr_float_finite(sum);
        __m256 r = _mm256_set1_ps(1.0f / sqrtf(sum / (float)width + args->f[0]));
        for (uint32_t b = 0; b < width / QR_BLOCK; b++) {
            __m256 v[PARTS];
            QR_UNROLL (int i = 0; i < PARTS; i++) {
                uint32_t at = b * QR_BLOCK + 8 * (uint32_t)i;
                v[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + at), r), _mm256_loadu_ps(w + at));
            }
            bad |= put_block(v, quantised, y, b);
        }
        if (bad) qr_status_raise((uint32_t *)args->b[3] + row);
    }
}

QR_INLINE __m256 gated(__m256 g, __m256 up)
{
    __m256 e = exp2n_8(_mm256_mul_ps(_mm256_castsi256_ps(magnitude(g)), _mm256_set1_ps(-QR_LOG2_E)));
    __m256 positive = _mm256_cmp_ps(g, _mm256_setzero_ps(), _CMP_GE_OQ);
    __m256 numerator = _mm256_blendv_ps(_mm256_mul_ps(g, e), g, positive);
    return _mm256_mul_ps(_mm256_div_ps(numerator, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

static void gate(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    for (uint32_t r = from; r < to; r++) {
        const float *g = (const float *)args->b[0] + (uint64_t)r * 2 * width, *up = g + width;
        uint8_t *y = args->b[1] + r * qr_activation_row_bytes(quantised, width);
        bool bad = false;
        for (uint32_t b = 0; b < width / QR_BLOCK; b++, g += QR_BLOCK, up += QR_BLOCK) {
            __m256 v[PARTS];
            QR_UNROLL (int i = 0; i < PARTS; i++) v[i] = gated(_mm256_loadu_ps(g + 8 * i), _mm256_loadu_ps(up + 8 * i));
            bad |= put_block(v, quantised, y, b);
        }
        if (bad) qr_status_raise((uint32_t *)args->b[2] + r);
    }
}

/* ---- rotation and append -------------------------------------------------------------------------------------------- */

enum { PAIRS_MAX = QR_ATTEND_DIM_MAX / 2 };

QR_INLINE void rotate_halves(float *head, const float *c, const float *s, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += 8) {
        __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + half + i), cos = _mm256_loadu_ps(c + i),
               sin = _mm256_loadu_ps(s + i);
        __m256 u = _mm256_mul_ps(b, sin), v = _mm256_mul_ps(b, cos);
        _mm256_storeu_ps(head + i, _mm256_fmsub_ps(a, cos, u));
        _mm256_storeu_ps(head + half + i, _mm256_fmadd_ps(a, sin, v));
    }
}

/* Shuffles within 128 bits leave pairs in the order 0 1 4 5 2 3 6 7; cosines follow them there, unpacking undoes it. */
QR_INLINE __m256 as_pairs(const float *x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_loadu_pd((const double *)x), 0xd8)); }

QR_INLINE void rotate_pairs(float *head, const float *c, const float *s, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += 8) {
        __m256 x0 = _mm256_loadu_ps(head + 2 * i), x1 = _mm256_loadu_ps(head + 2 * i + 8);
        __m256 a = _mm256_shuffle_ps(x0, x1, 0x88), b = _mm256_shuffle_ps(x0, x1, 0xdd), cos = as_pairs(c + i), sin = as_pairs(s + i);
        __m256 u = _mm256_mul_ps(b, sin), v = _mm256_mul_ps(b, cos), ra = _mm256_fmsub_ps(a, cos, u), rb = _mm256_fmadd_ps(a, sin, v);
        _mm256_storeu_ps(head + 2 * i, _mm256_unpacklo_ps(ra, rb));
        _mm256_storeu_ps(head + 2 * i + 8, _mm256_unpackhi_ps(ra, rb));
    }
}

QR_INLINE uint32_t most_of(const float *x, uint32_t count)
{
    __m256i most = _mm256_setzero_si256();
    for (uint32_t i = 0; i < count; i += 8) most = _mm256_max_epu32(most, magnitude(_mm256_loadu_ps(x + i)));
    return most_of_8(most);
}

QR_INLINE void narrow(const float *from, uint32_t count, uint16_t *to)
{
    for (uint32_t i = 0; i < count; i += 8) _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
}

static void append_row(const qr_cpu_args_t *args, uint32_t r, const float *k, const float *v, uint32_t kv_width, bool fits)
{
    int32_t slot = ((const int32_t *)args->b[2])[r];
    if (slot < 0) return;
    uint16_t *k_row = (uint16_t *)args->b[3] + (uint64_t)slot * kv_width, *v_row = (uint16_t *)args->b[4] + (uint64_t)slot * kv_width;
    if (fits) {
        narrow(k, kv_width, k_row);
        narrow(v, kv_width, v_row);
        return;
    }
    memset(k_row, 0, kv_width * 2ull);
    memset(v_row, 0, kv_width * 2ull);
    qr_status_raise((uint32_t *)args->b[5] + r);
}

/* Heads whose halves are whole vectors; others are the scalar kernel's. */
static void rope_append(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t heads = args->s[1], kv_heads = args->s[2], dim = args->s[3], half = dim / 2, kv_width = kv_heads * dim;
    if (dim % 16 || half > PAIRS_MAX) {
        qr_cpu_scalar.rows[QR_KERNEL_rope_append](args, from, to);
        return;
    }
    float c[PAIRS_MAX], s[PAIRS_MAX];
    for (uint32_t r = from; r < to; r++) {
        float *q = (float *)args->b[0] + (uint64_t)r * (heads + 2 * kv_heads) * dim, *k = q + heads * dim, *v = k + kv_width;
        const float *table = (const float *)args->b[1] + (uint64_t)r * dim;
        for (uint32_t i = 0; i < half; i++) {
            c[i] = table[2 * i];
            s[i] = table[2 * i + 1];
        }
        for (uint32_t h = 0; h < heads + kv_heads; h++)
            if (args->s[4])
                rotate_halves(q + h * dim, c, s, half);
            else
                rotate_pairs(q + h * dim, c, s, half);
        for (uint32_t i = 0; i < heads * dim; i += 8)
            _mm256_storeu_ps(q + i, _mm256_mul_ps(_mm256_loadu_ps(q + i), _mm256_set1_ps(args->f[0])));
        uint32_t most_q = most_of(q, heads * dim), most_kv = most_of(k, 2 * kv_width);
        if (most_q >= 0x7f800000u || most_kv >= 0x7f800000u) qr_status_raise((uint32_t *)args->b[5] + r);
        append_row(args, r, k, v, kv_width, most_kv < 0x477ff000u); /* from 65520 on it would round to infinity */
    }
}

static const qr_cpu_isa_t isa = {
    .name = "avx2",
    .rows = {[QR_KERNEL_embed] = qr_cpu_embed,
             [QR_KERNEL_rope_table] = qr_cpu_rope_table,
             [QR_KERNEL_norm] = norm,
             [QR_KERNEL_quantise] = quantise,
             [QR_KERNEL_rope_append] = rope_append,
             [QR_KERNEL_gate] = gate,
             [QR_KERNEL_gather] = qr_cpu_gather,
             [QR_KERNEL_page_copy] = qr_cpu_page_copy},
    .product = qr_avx2_product,
    .attend_one = qr_avx2_attend_one,
    .attend_many = qr_avx2_attend_many,
    .merge = qr_avx2_merge,
    .finish = qr_avx2_finish,
};

const qr_cpu_isa_t *qr_cpu_avx2(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1); /* a compiler of ours has no name for it */
    bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    return here ? &isa : NULL;
}
