/* avx512_product.c - products with AVX-512 VNNI: 16 output rows ride in one vector, each its own chain (arithmetic 2).
 *
 * A tile is G groups of 16 outputs x T rows, everything in registers; GEMV, a lane batch and a prefill differ in T only. With many rows
 * the nibbles of a pair of groups are taken apart once for all tiles: 65 instead of 55 products per 100 vector operations. */
#include "kernels/cpu/avx512.h"

enum {
    ROWS_MAX = 6,
    ROWS_MAX_Q6_K = 4,
    PREFETCH_LEAST = 12288,
    PREFETCH_MOST = 24576,
    COLD_ROWS = 16,
    APART_ROWS = 24,
    APART_BLOCKS = 96 /* 3072 columns: 96 KiB on the stack */
};

/* One product's addresses; x rows are x_stride bytes apart. */
typedef struct job {
    const uint8_t *x, *weight;
    const uint8_t *apart; /* nibbles of the pair taken apart, u8[blocks][8][16][4] a group, or NULL */
    float *y;
    uint64_t x_stride, y_stride, group_bytes;
    uint32_t blocks, outputs;
    bool accumulate, cold; /* cold: weights come from memory, the tile fetches ahead */
} job_t;

QR_INLINE __m512i four(const qr_activation_t *x, int place)
{
    int32_t word;
    memcpy(&word, x->q + place, 4);
    return _mm512_set1_epi32(word);
}

QR_INLINE __m512 halves_16(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)at)); }

/* What unsigned weights take off a block's dot. */
QR_INLINE __m512i correction(const uint32_t format, const qr_activation_t *x)
{
    if (format == QR_FORMAT_Q8_0) return _mm512_set1_epi32(x->minus_128);
    return format == QR_FORMAT_Q4_0 && !QR_MUTANT(74) ? _mm512_set1_epi32(x->minus_8) : _mm512_setzero_si512();
}

/* Integer dots of one block, G groups x T rows, of bytes (Q8_0, or nibbles taken apart). */
QR_INLINE void dots_bytes(const uint32_t format, const int G, const int T, const uint8_t *const *w, const qr_activation_t *const *x,
                          __m512i (*a)[ROWS_MAX])
{
    QR_UNROLL (int t = 0; t < T; t++)
        QR_UNROLL (int g = 0; g < G; g++) a[g][t] = correction(format, x[t]);
    QR_UNROLL (int j = 0; j < 8; j++) {
        __m512i v[2];
        QR_UNROLL (int g = 0; g < G; g++) v[g] = _mm512_load_si512(w[g] + 64 * j);
        QR_UNROLL (int t = 0; t < T; t++) {
            __m512i q = four(x[t], 4 * j);
            QR_UNROLL (int g = 0; g < G; g++) a[g][t] = _mm512_dpbusd_epi32(a[g][t], v[g], q);
        }
    }
}

QR_INLINE void dots_q4(const uint32_t format, const int G, const int T, const uint8_t *const *w, const qr_activation_t *const *x,
                       __m512i (*a)[ROWS_MAX])
{
    const __m512i nibble = _mm512_set1_epi8(15);
    QR_UNROLL (int t = 0; t < T; t++)
        QR_UNROLL (int g = 0; g < G; g++) a[g][t] = correction(format, x[t]);
    QR_UNROLL (int j = 0; j < 4; j++) {
        __m512i low[2], high[2];
        QR_UNROLL (int g = 0; g < G; g++) {
            __m512i v = _mm512_load_si512(w[g] + 64 * j);
            low[g] = _mm512_and_si512(v, nibble);
            high[g] = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
        }
        QR_UNROLL (int t = 0; t < T; t++) {
            __m512i q = four(x[t], 4 * j);
            QR_UNROLL (int g = 0; g < G; g++) a[g][t] = _mm512_dpbusd_epi32(a[g][t], low[g], q);
        }
        QR_UNROLL (int t = 0; t < T; t++) {
            __m512i q = four(x[t], 16 + 4 * j);
            QR_UNROLL (int g = 0; g < G; g++) a[g][t] = _mm512_dpbusd_epi32(a[g][t], high[g], q);
        }
    }
}

/* One half (16 columns) of a Q6_K block, times its sub-scale. */
QR_INLINE void dots_q6_half(const int half, const int G, const int T, const uint8_t *const *w, const uint8_t *const *s,
                            const qr_activation_t *const *x, __m512i (*a)[ROWS_MAX])
{
    QR_UNROLL (int t = 0; t < T; t++)
        QR_UNROLL (int g = 0; g < G; g++) a[g][t] = _mm512_set1_epi32(x[t]->minus_32[half]);
    QR_UNROLL (int j = 4 * half; j < 4 * half + 4; j++) {
        __m512i v[2];
        QR_UNROLL (int g = 0; g < G; g++) v[g] = _mm512_load_si512(w[g] + 64 * j);
        QR_UNROLL (int t = 0; t < T; t++) {
            __m512i q = four(x[t], 4 * j);
            QR_UNROLL (int g = 0; g < G; g++) a[g][t] = _mm512_dpbusd_epi32(a[g][t], v[g], q);
        }
    }
    QR_UNROLL (int g = 0; g < G; g++) {
        __m512i scale = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(s[g] + 32 + 16 * half)));
        QR_UNROLL (int t = 0; t < T; t++) a[g][t] = _mm512_mullo_epi32(a[g][t], scale);
    }
}

QR_INLINE void store(const job_t *job, const int G, const int T, uint32_t row, uint32_t group, const __m512 (*f)[ROWS_MAX])
{
    QR_UNROLL (int g = 0; g < G; g++) {
        uint32_t first = (group + (uint32_t)g) * 16, left = job->outputs - first;
        __mmask16 mask = (__mmask16)(left >= 16 || QR_MUTANT(75) ? 0xffffu : (1u << left) - 1);
        QR_UNROLL (int t = 0; t < T; t++) {
            float *y = job->y + (row + (uint32_t)t) * job->y_stride + first;
            __m512 value = f[g][t];
            if (job->accumulate && !QR_MUTANT(77)) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), value);
            _mm512_mask_storeu_ps(y, mask, value);
        }
    }
}

/* G groups x T rows of a quantised format, the whole chain. */
QR_INLINE void tile(const uint32_t format, const bool apart, const int G, const int T, const job_t *job, uint32_t row, uint32_t group)
{
    const uint32_t quant = apart ? 512 : qr_quant_bytes(format), scale = qr_scale_bytes(format);
    const uint8_t *w[2], *s[2];
    const qr_activation_t *x[ROWS_MAX];
    __m512 f[2][ROWS_MAX];
    QR_UNROLL (int g = 0; g < G; g++) {
        w[g] = job->weight + (group + (uint32_t)g) * job->group_bytes;
        s[g] = w[g] + (uint64_t)job->blocks * qr_quant_bytes(format);
        if (apart) w[g] = job->apart + (uint64_t)g * job->blocks * quant;
        QR_UNROLL (int t = 0; t < T; t++) f[g][t] = _mm512_setzero_ps();
    }
    QR_UNROLL (int t = 0; t < T; t++) x[t] = (const qr_activation_t *)(job->x + (row + (uint32_t)t) * job->x_stride);
    const uint64_t ahead = qr_min_u64(qr_max_u64((uint64_t)G * job->group_bytes, PREFETCH_LEAST), PREFETCH_MOST);
    const uint8_t *fetch = w[0] + ahead;
    for (uint32_t b = 0; b < job->blocks; b++) {
        __m512i a[2][ROWS_MAX];
        if (!apart && job->cold)
            for (uint32_t i = 0; i < (uint32_t)G * (quant + scale); i += 64) _mm_prefetch((const char *)fetch + i, _MM_HINT_T0);
        fetch += (uint32_t)G * (quant + scale);
        if (apart || format == QR_FORMAT_Q8_0)
            dots_bytes(format, G, T, w, x, a);
        else if (format == QR_FORMAT_Q6_K) {
            __m512i high[2][ROWS_MAX];
            dots_q6_half(0, G, T, w, s, x, a);
            dots_q6_half(1, G, T, w, s, x, high);
            QR_UNROLL (int g = 0; g < G; g++)
                QR_UNROLL (int t = 0; t < T; t++) a[g][t] = _mm512_add_epi32(a[g][t], high[g][t]);
        } else
            dots_q4(format, G, T, w, x, a);
        QR_UNROLL (int g = 0; g < G; g++) {
            __m512 d = halves_16(s[g]), m = format == QR_FORMAT_Q4_1 ? halves_16(s[g] + 32) : d;
            QR_UNROLL (int t = 0; t < T; t++) {
                __m512 p = _mm512_mul_ps(d, _mm512_set1_ps(x[t]->d));
                if (QR_MUTANT(65))
                    f[g][t] = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(a[g][t]), p), f[g][t]);
                else
                    f[g][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[g][t]), p, f[g][t]);
                if (format == QR_FORMAT_Q4_1) f[g][t] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[t]->ds), f[g][t]);
            }
            w[g] += quant;
            s[g] += scale;
        }
        QR_UNROLL (int t = 0; t < T; t++) x[t]++;
    }
    store(job, G, T, row, group, (const __m512(*)[ROWS_MAX])f);
}

QR_INLINE __m512 column_16(const uint32_t format, const uint8_t *w) { return format == QR_FORMAT_F16 ? halves_16(w) : _mm512_load_ps(w); }

/* The same of F32 and F16: per block of 32 a chain of its own, added to the output's. */
QR_INLINE void tile_plain(const uint32_t format, const int G, const int T, const job_t *job, uint32_t row, uint32_t group)
{
    const uint32_t column_bytes = qr_quant_bytes(format) / QR_BLOCK;
    const uint8_t *w[2];
    const float *x[ROWS_MAX];
    __m512 f[2][ROWS_MAX];
    QR_UNROLL (int g = 0; g < G; g++) {
        w[g] = job->weight + (group + (uint32_t)g) * job->group_bytes;
        QR_UNROLL (int t = 0; t < T; t++) f[g][t] = _mm512_setzero_ps();
    }
    QR_UNROLL (int t = 0; t < T; t++) x[t] = (const float *)(job->x + (row + (uint32_t)t) * job->x_stride);
    for (uint32_t b = 0; b < job->blocks; b++) {
        __m512 sum[2][ROWS_MAX];
        QR_UNROLL (int g = 0; g < G; g++) {
            __m512 v = column_16(format, w[g]);
            QR_UNROLL (int t = 0; t < T; t++) sum[g][t] = _mm512_mul_ps(_mm512_set1_ps(x[t][0]), v);
        }
        QR_ROLLED (uint32_t i = 1; i < QR_BLOCK; i++)
            QR_UNROLL (int g = 0; g < G; g++) {
                __m512 v = column_16(format, w[g] + i * column_bytes);
                QR_UNROLL (int t = 0; t < T; t++) sum[g][t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t][i]), v, sum[g][t]);
            }
        QR_UNROLL (int t = 0; t < T; t++) {
            QR_UNROLL (int g = 0; g < G; g++) f[g][t] = _mm512_add_ps(f[g][t], sum[g][t]);
            x[t] += QR_BLOCK;
        }
        QR_UNROLL (int g = 0; g < G; g++) w[g] += QR_BLOCK * column_bytes;
    }
    store(job, G, T, row, group, (const __m512(*)[ROWS_MAX])f);
}

typedef void tile_f(const job_t *job, uint32_t row, uint32_t group);
#define BYTES(format, G, T, job, row, group) tile(format, false, G, T, job, row, group)
#define APART(format, G, T, job, row, group) tile(format, true, G, T, job, row, group)
/* clang-format off */
#define TILE(name, body, format, G, T) \
    static void name##_##G##_##T(const job_t *job, uint32_t row, uint32_t group) { body(format, G, T, job, row, group); }
#define TILES_OF(name, body, format, G) \
    TILE(name, body, format, G, 1) TILE(name, body, format, G, 2) TILE(name, body, format, G, 3) TILE(name, body, format, G, 4)
#define TILES(name, body, format) TILES_OF(name, body, format, 1) TILES_OF(name, body, format, 2)
#define TILES_WIDE(name, body, format) \
    TILES(name, body, format) \
    TILE(name, body, format, 1, 5) TILE(name, body, format, 1, 6) TILE(name, body, format, 2, 5) TILE(name, body, format, 2, 6)
#define ROW(name) {{{name##_1_1, name##_1_2, name##_1_3, name##_1_4}, {name##_2_1, name##_2_2, name##_2_3, name##_2_4}}}
#define ROW_WIDE(name) \
    {{{name##_1_1, name##_1_2, name##_1_3, name##_1_4, name##_1_5, name##_1_6}, \
      {name##_2_1, name##_2_2, name##_2_3, name##_2_4, name##_2_5, name##_2_6}}}
/* clang-format on */
TILES_WIDE(q8_0, BYTES, QR_FORMAT_Q8_0)
TILES_WIDE(q4_0, BYTES, QR_FORMAT_Q4_0)
TILES_WIDE(q4_1, BYTES, QR_FORMAT_Q4_1)
TILES_WIDE(q4_0_apart, APART, QR_FORMAT_Q4_0)
TILES_WIDE(q4_1_apart, APART, QR_FORMAT_Q4_1)
TILES(q6_k, BYTES, QR_FORMAT_Q6_K)
TILES_WIDE(f16, tile_plain, QR_FORMAT_F16)
TILES_WIDE(f32, tile_plain, QR_FORMAT_F32)

typedef struct tiles {
    tile_f *at[2][ROWS_MAX];
} tiles_t;

static const tiles_t *tiles_of(uint32_t format, bool apart)
{
    static const tiles_t q8_0 = ROW_WIDE(q8_0), q4_0 = ROW_WIDE(q4_0), q4_1 = ROW_WIDE(q4_1), q6_k = ROW(q6_k), f16 = ROW_WIDE(f16),
                         f32 = ROW_WIDE(f32);
    static const tiles_t q4_0_apart = ROW_WIDE(q4_0_apart), q4_1_apart = ROW_WIDE(q4_1_apart);
    switch (format) {
    case QR_FORMAT_Q8_0: return &q8_0;
    case QR_FORMAT_Q4_0: return apart ? &q4_0_apart : &q4_0;
    case QR_FORMAT_Q4_1: return apart ? &q4_1_apart : &q4_1;
    case QR_FORMAT_Q6_K: return &q6_k;
    case QR_FORMAT_F16: return &f16;
    default: return &f32;
    }
}

/* Nibbles of `groups` groups as bytes in the order of Q8_0's. */
static void take_apart(const job_t *job, uint32_t group, uint32_t groups, uint8_t *out)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *w = job->weight + (group + g) * job->group_bytes;
        for (uint32_t b = 0; b < job->blocks; b++, w += 256, out += 512)
            QR_UNROLL (uint32_t j = 0; j < 4; j++) {
                __m512i v = _mm512_load_si512(w + 64 * j);
                _mm512_store_si512(out + 64 * j, _mm512_and_si512(v, nibble));
                _mm512_store_si512(out + 256 + 64 * j, _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble));
            }
    }
}

/* One pair of groups (or a last single one) against all rows, in as few tiles as fit, all nearly of one size: 8 rows are 4 + 4. */
static void run_pair(job_t *job, const tiles_t *tiles, uint32_t most, uint32_t row_from, uint32_t row_to, uint32_t group, uint32_t groups)
{
    uint32_t rows = row_to - row_from, count = (uint32_t)qr_div_up(rows, most);
    job->cold = rows <= COLD_ROWS;
    for (uint32_t i = 0, row = row_from; i < count; i++) {
        uint32_t end = row_from + (uint32_t)((uint64_t)rows * (i + 1) / count);
        tiles->at[groups - 1][end - row - 1](job, row, group);
        row = end;
        job->cold = false;
    }
}

static void run_apart(const job_t *whole, uint32_t format, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to)
{
    _Alignas(64) uint8_t apart[2 * APART_BLOCKS * 512];
    job_t job = *whole;
    job.apart = apart;
    for (uint32_t group = group_from, groups; group < group_to; group += groups) {
        groups = qr_min_u32(2, group_to - group);
        take_apart(&job, group, groups, apart);
        run_pair(&job, tiles_of(format, true), ROWS_MAX, row_from, row_to, group, groups);
    }
}

void qr_avx512_product(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to)
{
    uint32_t columns = args->s[1], format = args->s[3], rows = row_to - row_from, pair = rows > 1 ? 2 : 1;
    job_t job = {.x = args->b[0],
                 .weight = args->b[1],
                 .y = (float *)args->b[2] + args->s[5],
                 .y_stride = args->s[4],
                 .x_stride = qr_activation_row_bytes(qr_format_quantised(format), columns),
                 .group_bytes = qr_group_bytes(format, columns),
                 .blocks = columns / QR_BLOCK,
                 .outputs = args->s[2],
                 .accumulate = args->s[6] != 0};
    bool nibbles = format == QR_FORMAT_Q4_0 || format == QR_FORMAT_Q4_1;
    if (nibbles && rows >= APART_ROWS && job.blocks <= APART_BLOCKS) {
        run_apart(&job, format, row_from, row_to, group_from, group_to);
        return;
    }
    for (uint32_t group = group_from, groups; group < group_to; group += groups) {
        groups = qr_min_u32(pair, group_to - group);
        run_pair(&job, tiles_of(format, false), format == QR_FORMAT_Q6_K ? ROWS_MAX_Q6_K : ROWS_MAX, row_from, row_to, group, groups);
    }
}
