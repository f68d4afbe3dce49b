/* avx512.h - what the AVX-512 files share: the exponential and the trees of arithmetic `cpu-1` on vectors. */
#ifndef QR_AVX512_H
#define QR_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2n.h"
#include "kernels/cpu/unroll.h"

/* qr_exp2n on 16 values. */
QR_INLINE __m512 exp2n_16(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(12582912.0f);
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-64.0f), _CMP_GE_OQ);
    __m512 t = _mm512_add_ps(x, shift), n = _mm512_sub_ps(t, shift), f = _mm512_sub_ps(x, n), p = _mm512_set1_ps(0x1.41fbbap-13f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f3e54p-10f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2d4cp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aee8p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdcp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_maskz_mov_ps(keep, _mm512_castsi512_ps(bits));
}

/* Sum of 16 lanes by halves: h = 8, 4, 2, 1. */
QR_INLINE float tree_16(__m512 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

QR_INLINE __m512i magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

void qr_avx512_product(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to);
void qr_avx512_attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                          float *states);
void qr_avx512_attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment,
                           float *states, uint64_t row_stride, float *scratch);
void qr_avx512_merge(uint32_t dim, float *into, const float *state);
void qr_avx512_finish(uint32_t dim, const float *state, float *out);

#endif
