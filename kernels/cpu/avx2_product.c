/* avx2_product.c - products with AVX2: 8 output rows (half a group) ride in one vector, each its own chain (arithmetic 2).
 *
 * vpmaddubsw saturates: bytes biased by 128 must never enter it. Q8_0 goes in as |w| (up to 128) times sign(q, w): at most 32512 a
 * pair. Nibbles may add eight results in 16 bits (30480), Q6_K's bytes two (32004). */
#include "kernels/cpu/avx2.h"

enum { ROWS_MAX = 4, PREFETCH = 4096 };

typedef struct job {
    const uint8_t *x, *weight;
    float *y;
    uint64_t x_stride, y_stride, group_bytes;
    uint32_t blocks, outputs;
    bool accumulate;
} job_t;

QR_INLINE __m256i four(const qr_activation_t *x, int place)
{
    int32_t word;
    memcpy(&word, x->q + place, 4);
    return _mm256_set1_epi32(word);
}

QR_INLINE __m256 halves_8(const uint8_t *at) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)at)); }
QR_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Integer dots of one block, 8 outputs x T rows. w: the half's first quants. */
QR_INLINE void dots_q8(const int T, const uint8_t *w, const qr_activation_t *const *x, __m256i *a)
{
    QR_UNROLL (int t = 0; t < T; t++) a[t] = _mm256_setzero_si256();
    QR_UNROLL (int j = 0; j < 8; j++) {
        __m256i v = _mm256_xor_si256(_mm256_load_si256((const __m256i *)(w + 64 * j)), _mm256_set1_epi8((char)0x80)),
                size = _mm256_abs_epi8(v);
        QR_UNROLL (int t = 0; t < T; t++)
            a[t] = _mm256_add_epi32(a[t], widen(_mm256_maddubs_epi16(size, _mm256_sign_epi8(four(x[t], 4 * j), v))));
    }
}

QR_INLINE void dots_q4(const bool minus_8, const int T, const uint8_t *w, const qr_activation_t *const *x, __m256i *a)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    QR_UNROLL (int t = 0; t < T; t++) a[t] = _mm256_setzero_si256();
    QR_UNROLL (int j = 0; j < 4; j++) {
        __m256i v = _mm256_load_si256((const __m256i *)(w + 64 * j)), low = _mm256_and_si256(v, nibble);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        QR_UNROLL (int t = 0; t < T; t++) {
            __m256i sum =
                _mm256_add_epi16(_mm256_maddubs_epi16(low, four(x[t], 4 * j)), _mm256_maddubs_epi16(high, four(x[t], 16 + 4 * j)));
            a[t] = _mm256_add_epi16(a[t], sum);
        }
    }
    QR_UNROLL (int t = 0; t < T; t++) {
        a[t] = widen(a[t]);
        if (minus_8) a[t] = _mm256_add_epi32(a[t], _mm256_set1_epi32(x[t]->minus_8));
    }
}

/* A value a lane in both halves of 16 bits: what pairs are multiplied with. */
QR_INLINE __m256i pairs_of(__m256i low, __m256i high) { return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa); }

/* scales: the half's sub-scales of both halves of the block, 16 bytes apart. They come in where pairs widen; what the bias of 32 takes
 * off both halves is one pair more, 32 times the sub-scales and the sums of q. */
QR_INLINE void dots_q6(const int T, const uint8_t *w, const uint8_t *scales, const qr_activation_t *const *x, __m256i *a)
{
    __m256i low = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)scales)),
            high = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(scales + 16)));
    const __m256i scale[2] = {pairs_of(low, low), pairs_of(high, high)}, bias = _mm256_slli_epi16(pairs_of(low, high), 5);
    QR_UNROLL (int t = 0; t < T; t++) {
        uint32_t sums = ((uint32_t)x[t]->minus_32[0] >> 5 & 0xffff) | (uint32_t)x[t]->minus_32[1] << 11; /* each by 32 */
        a[t] = _mm256_madd_epi16(bias, _mm256_set1_epi32((int32_t)sums));
    }
    QR_UNROLL (int j = 0; j < 8; j += 2) {
        __m256i v0 = _mm256_load_si256((const __m256i *)(w + 64 * j)), v1 = _mm256_load_si256((const __m256i *)(w + 64 * (j + 1)));
        QR_UNROLL (int t = 0; t < T; t++) {
            __m256i two = _mm256_add_epi16(_mm256_maddubs_epi16(v0, four(x[t], 4 * j)), _mm256_maddubs_epi16(v1, four(x[t], 4 * j + 4)));
            a[t] = _mm256_add_epi32(a[t], _mm256_madd_epi16(two, scale[QR_MUTANT(791) ? 0 : j / 4]));
        }
    }
}

QR_INLINE void store(const job_t *job, const int T, uint32_t row, uint32_t first, const __m256 *f)
{
    uint32_t left = job->outputs - first;
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)qr_min_u32(left, 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    QR_UNROLL (int t = 0; t < T; t++) {
        float *y = job->y + (row + (uint32_t)t) * job->y_stride + first;
        if (left >= 8) /* masked stores are microcode on some processors */
            _mm256_storeu_ps(y, job->accumulate ? _mm256_add_ps(_mm256_loadu_ps(y), f[t]) : f[t]);
        else
            _mm256_maskstore_ps(y, mask, job->accumulate ? _mm256_add_ps(_mm256_maskload_ps(y, mask), f[t]) : f[t]);
    }
}

/* Half `half` of a group x T rows, the whole chain. */
QR_INLINE void half_tile(const uint32_t format, const int T, const job_t *job, uint32_t row, uint32_t group, uint32_t half)
{
    const uint32_t quant = qr_quant_bytes(format), scale = qr_scale_bytes(format);
    const uint8_t *w = job->weight + group * job->group_bytes + 32 * half,
                  *s = job->weight + group * job->group_bytes + (uint64_t)job->blocks * quant;
    const qr_activation_t *x[ROWS_MAX];
    __m256 f[ROWS_MAX];
    QR_UNROLL (int t = 0; t < T; t++) {
        x[t] = (const qr_activation_t *)(job->x + (row + (uint32_t)t) * job->x_stride);
        f[t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < job->blocks; b++, w += quant, s += scale) {
        __m256i a[ROWS_MAX];
        if (!half)
            for (uint32_t i = 0; i < quant; i += 64) _mm_prefetch((const char *)w + PREFETCH + i, _MM_HINT_T0);
        if (format == QR_FORMAT_Q8_0)
            dots_q8(T, w, x, a);
        else if (format == QR_FORMAT_Q6_K)
            dots_q6(T, w, s + 32 + 8 * half, x, a);
        else
            dots_q4(format == QR_FORMAT_Q4_0, T, w, x, a);
        __m256 d = halves_8(s + 16 * half), m = format == QR_FORMAT_Q4_1 ? halves_8(s + 32 + 16 * half) : d;
        QR_UNROLL (int t = 0; t < T; t++) {
            f[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[t]), _mm256_mul_ps(d, _mm256_set1_ps(x[t]->d)), f[t]);
            if (format == QR_FORMAT_Q4_1) f[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[t]->ds), f[t]);
            x[t]++;
        }
    }
    store(job, T, row, group * 16 + 8 * half, f);
}

QR_INLINE void tile(const uint32_t format, const int T, const job_t *job, uint32_t row, uint32_t group)
{
    uint32_t halves = group * 16 + 8 < job->outputs ? 2 : 1;
    QR_ROLLED (uint32_t half = 0; half < halves; half++) half_tile(format, T, job, row, group, half);
}

/* A whole group of F32 or F16 x T rows: per block of 32 a chain of its own, added to the output's. */
QR_INLINE void tile_plain(const uint32_t format, const int T, const job_t *job, uint32_t row, uint32_t group)
{
    const uint32_t column_bytes = qr_quant_bytes(format) / QR_BLOCK;
    const uint8_t *w = job->weight + group * job->group_bytes;
    const float *x[ROWS_MAX];
    __m256 f[2][ROWS_MAX], sum[2][ROWS_MAX];
    QR_UNROLL (int t = 0; t < T; t++) {
        x[t] = (const float *)(job->x + (row + (uint32_t)t) * job->x_stride);
        f[0][t] = f[1][t] = sum[0][t] = sum[1][t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < job->blocks; b++) {
        for (uint32_t i = 0; i < QR_BLOCK; i++, w += column_bytes) {
            __m256 v[2];
            QR_UNROLL (int half = 0; half < 2; half++)
                v[half] = format == QR_FORMAT_F16 ? halves_8(w + 16 * half) : _mm256_load_ps((const float *)w + 8 * half);
            QR_UNROLL (int t = 0; t < T; t++) {
                __m256 value = _mm256_broadcast_ss(x[t] + i);
                QR_UNROLL (int half = 0; half < 2; half++)
                    sum[half][t] = i ? _mm256_fmadd_ps(value, v[half], sum[half][t]) : _mm256_mul_ps(value, v[half]);
            }
        }
        QR_UNROLL (int t = 0; t < T; t++) {
            QR_UNROLL (int half = 0; half < 2; half++) f[half][t] = _mm256_add_ps(f[half][t], sum[half][t]);
            x[t] += QR_BLOCK;
        }
    }
    QR_UNROLL (uint32_t half = 0; half < 2; half++)
        if (group * 16 + 8 * half < job->outputs) store(job, T, row, group * 16 + 8 * half, f[half]);
}

typedef void tile_f(const job_t *job, uint32_t row, uint32_t group);
#define TILE(name, body, format, T)                                                                                                        \
    static void name##_##T(const job_t *job, uint32_t row, uint32_t group) { body(format, T, job, row, group); }
#define TILES(name, body, format)                                                                                                          \
    TILE(name, body, format, 1) TILE(name, body, format, 2) TILE(name, body, format, 3) TILE(name, body, format, 4)
TILES(q8_0, tile, QR_FORMAT_Q8_0)
TILES(q4_0, tile, QR_FORMAT_Q4_0)
TILES(q4_1, tile, QR_FORMAT_Q4_1)
TILES(q6_k, tile, QR_FORMAT_Q6_K)
TILES(f16, tile_plain, QR_FORMAT_F16)
TILES(f32, tile_plain, QR_FORMAT_F32)
#define ROW(name)                                                                                                                          \
    {                                                                                                                                      \
        name##_1, name##_2, name##_3, name##_4                                                                                             \
    }

static tile_f *const *tiles_of(uint32_t format)
{
    static tile_f *const table[6][ROWS_MAX] = {ROW(q8_0), ROW(q4_0), ROW(q4_1), ROW(q6_k), ROW(f16), ROW(f32)};
    switch (format) {
    case QR_FORMAT_Q8_0: return table[0];
    case QR_FORMAT_Q4_0: return table[1];
    case QR_FORMAT_Q4_1: return table[2];
    case QR_FORMAT_Q6_K: return table[3];
    case QR_FORMAT_F16: return table[4];
    default: return table[5];
    }
}

void qr_avx2_product(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to)
{
    uint32_t columns = args->s[1], format = args->s[3], rows = row_to - row_from, count = (uint32_t)qr_div_up(rows, ROWS_MAX);
    job_t job = {.x = args->b[0],
                 .weight = args->b[1],
                 .y = (float *)args->b[2] + args->s[5],
                 .y_stride = args->s[4],
                 .x_stride = qr_activation_row_bytes(qr_format_quantised(format), columns),
                 .group_bytes = qr_group_bytes(format, columns),
                 .blocks = columns / QR_BLOCK,
                 .outputs = args->s[2],
                 .accumulate = args->s[6] != 0};
    tile_f *const *tiles = tiles_of(format);
    for (uint32_t group = group_from; group < group_to; group++)
        for (uint32_t i = 0, row = row_from; i < count; i++) {
            uint32_t end = row_from + (uint32_t)((uint64_t)rows * (i + 1) / count);
            tiles[end - row - 1](&job, row, group);
            row = end;
        }
}
