/* avx512.c - the row-wise kernels with AVX-512, and the table of this instruction set. */
#include "kernels/cpu/avx512.h"

/* ---- activations -------------------------------------------------------------------------------------------------- */

/* One block of 32 in two vectors (arithmetic 2). True if it is poisoned. */
QR_INLINE bool quantise_block(__m512 x0, __m512 x1, qr_activation_t *ret)
{
    uint32_t most = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude(x0), magnitude(x1)));
    if (most >= 0x7f800000u || most < 0x0d800000u) {
        _mm512_storeu_si512(ret, _mm512_setzero_si512());
        if (most < 0x7f800000u) return false;
        ret->d = ret->ds = qr_bits_float(0x7fc00000u);
        return true;
    }
    float amax = qr_bits_float(most), d = amax / 127.0f;
    __m512 id = _mm512_set1_ps(127.0f / amax);
    __m512i q0 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x0, id), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i q1 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x1, id), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q0)), _mm512_cvtepi32_epi8(q1), 1);
    __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    int32_t low = _mm256_cvtsi256_si32(sums), high = _mm256_extract_epi32(sums, 4), sum = low + high;
    _mm256_storeu_si256((__m256i *)ret->q, q);
    ret->d = d; /* eight scalar stores: the shuffles that would join them are what this function has least of */
    ret->ds = d * (float)sum;
    ret->minus_128 = -128 * sum;
    ret->minus_8 = -8 * sum;
    ret->minus_32[0] = -32 * low;
    ret->minus_32[1] = -32 * high;
    ret->zero[0] = ret->zero[1] = 0;
    return false;
}

/* Block b of a finished row, as an activation; returns whether it holds a value that is not finite. */
QR_INLINE bool put_block(__m512 x0, __m512 x1, bool quantised, uint8_t *y, uint32_t b)
{
    if (quantised) return quantise_block(x0, x1, (qr_activation_t *)y + b);
    float *out = (float *)y + b * QR_BLOCK;
    _mm512_storeu_ps(out, x0);
    _mm512_storeu_ps(out + 16, x1);
    return _mm512_cmpge_epu32_mask(_mm512_max_epu32(magnitude(x0), magnitude(x1)), _mm512_set1_epi32(0x7f800000)) != 0;
}

static void quantise(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    for (uint32_t r = from; r < to; r++) {
        const float *x = (const float *)args->b[0] + (uint64_t)r * width;
        uint8_t *y = args->b[1] + r * qr_activation_row_bytes(quantised, width);
        bool bad = false;
        for (uint32_t b = 0; b < width / QR_BLOCK; b++)
            bad |= put_block(_mm512_loadu_ps(x + b * QR_BLOCK), _mm512_loadu_ps(x + b * QR_BLOCK + 16), quantised, y, b);
        if (bad) qr_status_raise((uint32_t *)args->b[2] + r);
    }
}

/* Sum of squares in 64 lanes and its tree (arithmetic 3). width: a multiple of 32. */
QR_INLINE float square_sum(const float *x, uint32_t width)
{
    __m512 a[4], v;
    QR_UNROLL (int l = 0; l < 4; l++) a[l] = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 64 <= width; i += 64)
        QR_UNROLL (int l = 0; l < 4; l++) {
            v = _mm512_loadu_ps(x + i + 16 * l);
            a[l] = _mm512_fmadd_ps(v, v, a[l]);
        }
    if (i < width)
        QR_UNROLL (int l = 0; l < 2; l++) {
            v = _mm512_loadu_ps(x + i + 16 * l);
            a[l] = _mm512_fmadd_ps(v, v, a[l]);
        }
    if (QR_MUTANT(64)) return tree_16(_mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3])));
    return tree_16(_mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3])));
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
        __m512 r = _mm512_set1_ps(1.0f / sqrtf(sum / (float)width + args->f[0]));
        for (uint32_t b = 0; b < width / QR_BLOCK; b++) {
            const float *xb = x + b * QR_BLOCK, *wb = w + b * QR_BLOCK;
            __m512 y0 = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(xb), r), _mm512_loadu_ps(wb));
            __m512 y1 = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(xb + 16), r), _mm512_loadu_ps(wb + 16));
            bad |= put_block(y0, y1, quantised, y, b);
        }
        if (bad) qr_status_raise((uint32_t *)args->b[3] + row);
    }
}

QR_INLINE __m512 gated(__m512 g, __m512 up)
{
    __m512 e = exp2n_16(_mm512_mul_ps(_mm512_castsi512_ps(magnitude(g)), _mm512_set1_ps(-QR_LOG2_E)));
    __mmask16 positive = _mm512_cmp_ps_mask(g, _mm512_setzero_ps(), _CMP_GE_OQ);
    __m512 numerator = _mm512_mask_mov_ps(_mm512_mul_ps(g, e), positive, g);
    return _mm512_mul_ps(_mm512_div_ps(numerator, _mm512_add_ps(_mm512_set1_ps(1.0f), e)), up);
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
            __m512 y0 = gated(_mm512_loadu_ps(g), _mm512_loadu_ps(up)), y1 = gated(_mm512_loadu_ps(g + 16), _mm512_loadu_ps(up + 16));
            bad |= put_block(y0, y1, quantised, y, b);
        }
        if (bad) qr_status_raise((uint32_t *)args->b[2] + r);
    }
}

/* ---- rotation and append -------------------------------------------------------------------------------------------- */

enum { PAIRS_MAX = QR_ATTEND_DIM_MAX / 2 };

/* Even and odd elements of 32 consecutive floats. */
QR_INLINE __m512 evens(__m512 a, __m512 b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
QR_INLINE __m512 odds(__m512 a, __m512 b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

QR_INLINE void rotate_halves(float *head, const float *c, const float *s, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += 16) {
        __m512 a = _mm512_loadu_ps(head + i), b = _mm512_loadu_ps(head + half + i), cos = _mm512_loadu_ps(c + i),
               sin = _mm512_loadu_ps(s + i);
        __m512 u = _mm512_mul_ps(b, sin), v = _mm512_mul_ps(b, cos);
        _mm512_storeu_ps(head + i, _mm512_fmsub_ps(a, cos, u));
        _mm512_storeu_ps(head + half + i, _mm512_fmadd_ps(a, sin, v));
    }
}

QR_INLINE void rotate_pairs(float *head, const float *c, const float *s, uint32_t half)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (uint32_t i = 0; i < half; i += 16) {
        __m512 x0 = _mm512_loadu_ps(head + 2 * i), x1 = _mm512_loadu_ps(head + 2 * i + 16), a = evens(x0, x1), b = odds(x0, x1);
        __m512 cos = _mm512_loadu_ps(c + i), sin = _mm512_loadu_ps(s + i), u = _mm512_mul_ps(b, sin), v = _mm512_mul_ps(b, cos);
        __m512 ra = QR_MUTANT(62) ? _mm512_fmadd_ps(a, cos, u) : _mm512_fmsub_ps(a, cos, u), rb = _mm512_fmadd_ps(a, sin, v);
        _mm512_storeu_ps(head + 2 * i, _mm512_permutex2var_ps(ra, low, rb));
        _mm512_storeu_ps(head + 2 * i + 16, _mm512_permutex2var_ps(ra, high, rb));
    }
}

QR_INLINE __m512i most_of(const float *x, uint32_t count)
{
    __m512i most = _mm512_setzero_si512();
    for (uint32_t i = 0; i < count; i += 16) most = _mm512_max_epu32(most, magnitude(_mm512_loadu_ps(x + i)));
    return most;
}

QR_INLINE void narrow(const float *from, uint32_t count, uint16_t *to)
{
    for (uint32_t i = 0; i < count; i += 16) _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), 0));
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
    if (dim % 32 || half > PAIRS_MAX) {
        qr_cpu_scalar.rows[QR_KERNEL_rope_append](args, from, to);
        return;
    }
    const __m512 scale = _mm512_set1_ps(args->f[0]);
    float c[PAIRS_MAX], s[PAIRS_MAX];
    for (uint32_t r = from; r < to; r++) {
        float *q = (float *)args->b[0] + (uint64_t)r * (heads + 2 * kv_heads) * dim, *k = q + heads * dim, *v = k + kv_width;
        const float *table = (const float *)args->b[1] + (uint64_t)r * dim;
        for (uint32_t i = 0; i < half; i += 16) {
            __m512 t0 = _mm512_loadu_ps(table + 2 * i), t1 = _mm512_loadu_ps(table + 2 * i + 16);
            _mm512_storeu_ps(c + i, evens(t0, t1));
            _mm512_storeu_ps(s + i, odds(t0, t1));
        }
        for (uint32_t h = 0; h < heads + kv_heads; h++)
            if (args->s[4])
                rotate_halves(q + h * dim, c, s, half);
            else
                rotate_pairs(q + h * dim, c, s, half);
        for (uint32_t i = 0; i < heads * dim; i += 16) _mm512_storeu_ps(q + i, _mm512_mul_ps(_mm512_loadu_ps(q + i), scale));
        uint32_t most_q = _mm512_reduce_max_epu32(most_of(q, heads * dim));
        uint32_t most_kv = _mm512_reduce_max_epu32(most_of(k, 2 * kv_width));
        if (most_q >= 0x7f800000u || most_kv >= 0x7f800000u) qr_status_raise((uint32_t *)args->b[5] + r);
        append_row(args, r, k, v, kv_width, most_kv < 0x477ff000u); /* from 65520 on it would round to infinity */
    }
}

static const qr_cpu_isa_t isa = {
    .name = "avx512",
    .rows = {[QR_KERNEL_embed] = qr_cpu_embed,
             [QR_KERNEL_rope_table] = qr_cpu_rope_table,
             [QR_KERNEL_norm] = norm,
             [QR_KERNEL_quantise] = quantise,
             [QR_KERNEL_rope_append] = rope_append,
             [QR_KERNEL_gate] = gate,
             [QR_KERNEL_gather] = qr_cpu_gather,
             [QR_KERNEL_page_copy] = qr_cpu_page_copy},
    .product = qr_avx512_product,
    .attend_one = qr_avx512_attend_one,
    .attend_many = qr_avx512_attend_many,
    .merge = qr_avx512_merge,
    .finish = qr_avx512_finish,
};

const qr_cpu_isa_t *qr_cpu_avx512(void)
{
    bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    return here ? &isa : NULL;
}
