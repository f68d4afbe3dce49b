/* avx2.h - what the AVX2 files share: the exponential and the trees of arithmetic `cpu-1` on vectors of 8. */
#ifndef QR_AVX2_H
#define QR_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2n.h"
#include "kernels/cpu/unroll.h"

/* qr_exp2n on 8 values. */
QR_INLINE __m256 exp2n_8(__m256 x)
{
    const __m256 shift = _mm256_set1_ps(12582912.0f);
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-64.0f), _CMP_GE_OQ);
    __m256 t = _mm256_add_ps(x, shift), n = _mm256_sub_ps(t, shift), f = _mm256_sub_ps(x, n), p = _mm256_set1_ps(0x1.41fbbap-13f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5f3e54p-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2d4cp-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6aee8p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbdcp-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e43p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_and_ps(keep, _mm256_castsi256_ps(bits));
}

/* Sum of 8 lanes by halves: h = 4, 2, 1. */
QR_INLINE float tree_8(__m256 b)
{
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

QR_INLINE __m256i magnitude(__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }

QR_INLINE uint32_t most_of_8(__m256i x)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
}

void qr_avx2_product(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to);
void qr_avx2_attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                        float *states);
void qr_avx2_attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment,
                         float *states, uint64_t row_stride, float *scratch);
void qr_avx2_merge(uint32_t dim, float *into, const float *state);
void qr_avx2_finish(uint32_t dim, const float *state, float *out);

#endif
