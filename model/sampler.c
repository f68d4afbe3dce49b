/* sampler.c - draws one token as sampling.md fixes it.
 *
 * Z1. What decides is integers: weights are u64 and their sums exact, so no order of summing shows. The only floating-point steps are
 *     the division by the temperature, exp2n (arithmetic.md 3) and, for logprobs, one double logarithm; this file is built without
 *     contraction.
 * Z2. Candidates stand in the order (value descending, id ascending): one u64 key holds both, no two keys are equal.
 * Z3. Selection is by partition around keys; the result does not depend on pivots. Most draws look only at a head of the order: the
 *     values within some bits of the largest; a longer one is looked at when a rank or a sum falls behind it. */
#include "model/sampler.h"

#include "base/mutant.h"
#include "base/params.h"
#include "base/philox.h"

enum {
    WEIGHT_BITS = 40, /* weight of the largest value: 2^40 */
    BLOCK = 64,       /* values whose maximum is kept, so that most of them are never visited again */
    NOTHING_BITS = 41 /* below 2^-41 of the largest every weight is 0 */
};

/* How far heads reach: weights down to about 2^-bits of the largest. */
static const uint32_t head_bits[] = {7, 12, NOTHING_BITS};

typedef struct candidate {
    uint64_t key;    /* order of the value << 32 | ~id */
    uint64_t weight; /* > 0 */
} candidate_t;

/* ---- passes over all values: one body, built for three instruction sets ----------------------------------------------------------- */

static inline __attribute__((always_inline)) uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline __attribute__((always_inline)) float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* exp2n of arithmetic.md 3, x <= 0; below -64 or not a number: +0. */
static inline __attribute__((always_inline)) float exp2n(float x)
{
    float t = x + 12582912.0f, n = t - 12582912.0f, f = x - n;
    float p = 0x1.41fbbap-13f;
    p = __builtin_fmaf(p, f, 0x1.5f3e54p-10f);
    p = __builtin_fmaf(p, f, 0x1.3b2d4cp-7f);
    p = __builtin_fmaf(p, f, 0x1.c6aee8p-5f);
    p = __builtin_fmaf(p, f, 0x1.ebfbdcp-3f);
    p = __builtin_fmaf(p, f, 0x1.62e43p-1f);
    p = __builtin_fmaf(p, f, 1.0f);
    float result = float_of(bits_of(p) + (bits_of(t) << 23));
    return x >= -64.0f ? result : 0.0f;
}

/* Base-2 exponent of a scaled value below the scaled maximum. */
static inline __attribute__((always_inline)) float exponent_of(float value, float most) { return (value - most) * 0x1.715476p+0f; }

/* trunc(exp2n(x) * 2^40): the fraction's 24 bits moved by the exponent; shifts past 63 give 0. */
static inline __attribute__((always_inline)) uint64_t weight_of(float value, float most)
{
    uint32_t bits = bits_of(exp2n(exponent_of(value, most)));
    uint64_t fraction = (uint64_t)((bits & 0x7fffffu) | 0x800000u) << WEIGHT_BITS, shift = 23 + 127 - (uint64_t)(bits >> 23);
    return shift > 63 ? 0 : fraction >> shift;
}

/* Values as integers in their order; -0 counts as +0. */
static inline __attribute__((always_inline)) uint32_t order_of(float value)
{
    uint32_t bits = bits_of(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static float order_value(uint32_t order) { return float_of(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

/* Largest value of each block of 64, as orders. */
static inline __attribute__((always_inline)) void maxima_body(const float *logits, uint32_t count, uint32_t *ret_maxima)
{
    for (uint32_t at = 0; at < count; at += BLOCK) {
        uint32_t most = 0, end = count - at < BLOCK ? count : at + BLOCK;
        for (uint32_t i = at; i < end; i++) {
            uint32_t order = order_of(logits[i]);
            most = order > most ? order : most;
        }
        ret_maxima[at / BLOCK] = most;
    }
}
/* Sum of the weights of one block. */
static inline __attribute__((always_inline)) uint64_t sum_body(const float *logits, uint32_t count, float temperature, float most)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += weight_of(logits[i] / temperature, most);
    return sum;
}

/* Appends the values of one block (its first id: `first`) whose order is at least `cut`; returns their number. */
static inline __attribute__((always_inline)) uint32_t gather_body(const float *logits, uint32_t count, uint32_t first, uint32_t cut,
                                                                  float temperature, float most, candidate_t *candidates)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (order_of(logits[i]) < cut) continue;
        float value = logits[i] / temperature;
        candidates[kept++] = (candidate_t){(uint64_t)order_of(value) << 32 | (UINT32_MAX - first - i), weight_of(value, most)};
    }
    return kept;
}

typedef struct passes {
    void (*maxima)(const float *logits, uint32_t count, uint32_t *ret_maxima);
    uint64_t (*sum)(const float *logits, uint32_t count, float temperature, float most);
    uint32_t (*gather)(const float *logits, uint32_t count, uint32_t first, uint32_t cut, float temperature, float most,
                       candidate_t *candidates);
} passes_t;

#define VARIANT(name, target)                                                                                                              \
    target static void maxima_##name(const float *logits, uint32_t count, uint32_t *ret_maxima)                                            \
    {                                                                                                                                      \
        maxima_body(logits, count, ret_maxima);                                                                                            \
    }                                                                                                                                      \
    target static uint64_t sum_##name(const float *logits, uint32_t count, float temperature, float most)                                  \
    {                                                                                                                                      \
        return sum_body(logits, count, temperature, most);                                                                                 \
    }                                                                                                                                      \
    target static uint32_t gather_##name(const float *logits, uint32_t count, uint32_t first, uint32_t cut, float temperature, float most, \
                                         candidate_t *candidates)                                                                          \
    {                                                                                                                                      \
        return gather_body(logits, count, first, cut, temperature, most, candidates);                                                      \
    }
VARIANT(plain, )
#if defined(__x86_64__)
VARIANT(avx2, __attribute__((target("avx2,fma"))))
VARIANT(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))))
#endif

/* The best the processor has, at most what isa names. */
static passes_t passes_pick(uint32_t isa)
{
    (void)isa;
#if defined(__x86_64__)
    if (isa == QR_ISA_SCALAR) return (passes_t){maxima_plain, sum_plain, gather_plain};
    if (isa != QR_ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return (passes_t){maxima_avx512, sum_avx512, gather_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (passes_t){maxima_avx2, sum_avx2, gather_avx2};
#endif
    return (passes_t){maxima_plain, sum_plain, gather_plain};
}

/* ---- one draw ---------------------------------------------------------------------------------------------------------------------- */

typedef struct draw {
    const float *logits;
    uint32_t count;
    passes_t passes;
    uint32_t *maxima;        /* [blocks] */
    candidate_t *candidates; /* [candidate_count] of [count] */
    uint32_t candidate_count;
    uint64_t candidate_sum;
    uint32_t bits;             /* how far the candidates reach */
    bool whole;                /* they hold every weight > 0, not only a head */
    uint32_t most;             /* order of the largest logit */
    float temperature, scaled; /* scaled: the largest logit divided by the temperature */
} draw_t;

static uint32_t block_count(uint32_t count) { return (count + BLOCK - 1) / BLOCK; }

size_t qr_sampler_scratch_bytes(uint32_t vocabulary)
{
    return (size_t)vocabulary * sizeof(candidate_t) + qr_round_up((uint64_t)block_count(vocabulary) * sizeof(uint32_t), 8);
}

/* Order of the smallest logit whose scaled exponent reaches down to -bits: the exponent never rises as the logit falls, so a search over
 * orders finds it exactly. Orders of bit patterns that are no numbers never reach. */
static uint32_t cut_of(const draw_t *d, uint32_t bits)
{
    uint32_t low = 0, high = d->most;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (exponent_of(order_value(middle) / d->temperature, d->scaled) >= -(float)bits)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static uint64_t total_weight(const draw_t *d)
{
    uint64_t total = 0;
    uint32_t cut = cut_of(d, NOTHING_BITS);
    for (uint32_t block = 0; block < block_count(d->count); block++)
        if (d->maxima[block] >= cut) /* all of the others is 0 */
            total += d->passes.sum(d->logits + block * BLOCK, qr_min_u32(BLOCK, d->count - block * BLOCK), d->temperature, d->scaled);
    return total;
}

/* Gathers the candidates whose exponent is at least -bits: a head of the order. */
static void candidates_gather(draw_t *d, uint32_t bits)
{
    uint32_t cut = cut_of(d, bits);
    d->candidate_count = 0;
    d->candidate_sum = 0;
    d->bits = bits;
    d->whole = bits == NOTHING_BITS;
    for (uint32_t block = 0; block < block_count(d->count); block++) {
        if (d->maxima[block] < cut) continue;
        uint32_t first = block * BLOCK, count = qr_min_u32(BLOCK, d->count - first), kept = 0;
        candidate_t *added = d->candidates + d->candidate_count;
        count = d->passes.gather(d->logits + first, count, first, cut, d->temperature, d->scaled, added);
        for (uint32_t i = 0; i < count; i++) { /* a weight of 0 is never drawn; it stands at the far end of the order */
            if (added[i].weight == 0) continue;
            d->candidate_sum += added[i].weight;
            added[kept++] = added[i];
        }
        d->candidate_count += kept;
    }
}

static uint64_t pivot_key(const candidate_t *c, uint32_t low, uint32_t high)
{
    uint64_t a = c[low].key, b = c[low + (high - low) / 2].key, e = c[high - 1].key;
    uint64_t small = a < b ? a : b, large = a < b ? b : a;
    return e <= small ? small : e >= large ? large : e;
}

/* Moves keys above the pivot before it, the others behind; returns the pivot's place and the weight before it. */
static uint32_t partition(candidate_t *c, uint32_t low, uint32_t high, uint64_t *ret_before)
{
    uint64_t pivot = pivot_key(c, low, high), before = 0;
    uint32_t at = low, pivot_at = low;
    for (uint32_t i = low; i < high; i++) {
        if (c[i].key < pivot) continue;
        candidate_t moved = c[i];
        c[i] = c[at];
        c[at] = moved;
        if (moved.key == pivot)
            pivot_at = at;
        else
            before += moved.weight;
        at++;
    }
    candidate_t last = c[at - 1]; /* the pivot goes behind all larger keys */
    c[at - 1] = c[pivot_at];
    c[pivot_at] = last;
    *ret_before = before;
    return at - 1;
}

/* Place of the first candidate, in order, at which the running sum exceeds `target` (below the sum of all) or, with by_count, of the one
 * with rank `target`. Afterwards the candidates before the place are those of higher order; *ret_sum is the running sum including it. */
static uint32_t candidate_select(candidate_t *c, uint32_t count, uint64_t target, bool by_count, uint64_t *ret_sum)
{
    uint32_t low = 0, high = count;
    uint64_t sum = 0;
    for (;;) {
        uint64_t before;
        qr_assert(low < high);
        uint32_t place = partition(c, low, high, &before);
        uint64_t reached = by_count ? place : sum + before, end = by_count ? place + 1 : reached + c[place].weight;
        if (target < reached) {
            high = place;
        } else if (target < end) {
            *ret_sum = sum + before + c[place].weight;
            return place;
        } else {
            sum += before + c[place].weight;
            low = place + 1;
        }
    }
}

/* ceil(p * n), exactly; 0 <= p < 1, n < 2^100. */
static uint64_t product_ceil(float p, uint64_t n)
{
    uint32_t bits = bits_of(p), exponent = bits >> 23;
    uint32_t fraction = (bits & 0x7fffffu) | (exponent ? 0x800000u : 0), shift = 23 + 127 - (exponent ? exponent : 1);
    unsigned __int128 product = (unsigned __int128)fraction * n;
    if (shift >= 100) return product != 0;
    unsigned __int128 whole = product >> shift;
    return (uint64_t)whole + (whole << shift != product);
}

/* The largest logit, ties to the smaller id. */
static uint32_t greedy(const draw_t *d)
{
    for (uint32_t block = 0; block < block_count(d->count); block++) {
        if (d->maxima[block] != d->most) continue;
        for (uint32_t i = block * BLOCK;; i++)
            if (order_of(d->logits[i]) == d->most && !(QR_MUTANT(406) && i < d->count - 1 && i % BLOCK < BLOCK - 1)) return i;
    }
    qr_unreachable("the largest of the maxima is one of them");
}

/* top_k, top_p, min_p in this order; leaves the candidates that are left and returns their sum. `whole` costs a visit of every value,
 * so it is asked for only when a rank or a sum lies behind the head. */
static bool filters_apply(draw_t *d, const qr_sampling_t *s, uint64_t *ret_total)
{
    bool limited = (s->top_k || QR_MUTANT(407)) && s->top_k < d->count;
    if (limited && !d->whole && s->top_k > d->candidate_count) return false;
    uint64_t total = d->candidate_sum;
    if (limited && s->top_k < d->candidate_count)
        d->candidate_count = candidate_select(d->candidates, d->candidate_count, s->top_k - 1, true, &total) + 1;
    else if (!limited && !d->whole)
        total = total_weight(d);
    bool headed = s->top_p < 1.0f;
    if (headed) {
        uint64_t target = qr_max_u64(product_ceil(s->top_p > 0 ? s->top_p : 0, total), 1) - 1;
        uint64_t have = limited || d->whole ? total : d->candidate_sum;
        if (target >= have) return false; /* behind the head */
        d->candidate_count = candidate_select(d->candidates, d->candidate_count, target, false, &total) + 1;
    }
    if (s->min_p > 0) {
        uint64_t least = s->min_p < 1.0f ? product_ceil(s->min_p, 1ull << WEIGHT_BITS) : 1ull << WEIGHT_BITS;
        bool inside = limited || headed || d->whole || least >= 1ull << (WEIGHT_BITS + 1 - d->bits);
        if (!inside) return false;
        uint32_t kept = 0;
        total = 0;
        for (uint32_t i = 0; i < d->candidate_count; i++) {
            if (d->candidates[i].weight < least) continue;
            total += d->candidates[i].weight;
            d->candidates[kept++] = d->candidates[i];
        }
        d->candidate_count = kept;
        d->candidate_sum = total;
    } else if (limited || headed) {
        d->candidate_sum = total;
    }
    *ret_total = total;
    return true;
}

static uint32_t draw_token(draw_t *d, const qr_sampling_t *s, uint32_t position, uint32_t choice)
{
    uint64_t u = qr_philox_draw(s->seed, position, choice), total, sum;
    for (uint32_t head = 0;; head++) {
        qr_assert(head < QR_COUNT(head_bits)); /* with every candidate at hand a draw always ends */
        candidates_gather(d, head_bits[head]);
        if (filters_apply(d, s, &total)) {
            uint64_t r = (uint64_t)((unsigned __int128)u * total >> 64);
            if (r < d->candidate_sum) {
                uint32_t place = candidate_select(d->candidates, d->candidate_count, r, false, &sum);
                return UINT32_MAX - (uint32_t)d->candidates[place].key;
            }
        }
    }
}

/* Natural logarithm of x > 0 in double: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)) as its series to the
 * 23rd power (the next term is below 2^-60). */
static double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        e++;
    }
    double t = (m - 1.0) / (m + 1.0), square = t * t, series = 0;
    for (int k = 23; k >= 1; k -= 2) series = series * square + 1.0 / (double)k;
    return (double)e * 0x1.62e42fefa39efp-1 + 2.0 * t * series;
}

/* ln softmax of the raw logits at a token. */
static float logprob_of(const draw_t *d, uint32_t token)
{
    draw_t raw = *d;
    raw.temperature = 1.0f;
    raw.scaled = order_value(d->most);
    double sum = (double)total_weight(&raw) * 0x1p-40;
    return (float)((double)d->logits[token] - (double)raw.scaled - natural_log(sum));
}

uint32_t qr_sampler_draw_as(uint32_t isa, const qr_sampling_t *sampling, const float *logits, uint32_t vocabulary, uint32_t position,
                            uint32_t choice, void *scratch, float *ret_logprob)
{
    qr_assert(vocabulary >= 1 && ((uintptr_t)scratch & 7) == 0);
    draw_t d = {.logits = logits, .count = vocabulary, .passes = passes_pick(isa), .candidates = scratch, .temperature = 1.0f};
    d.maxima = (uint32_t *)(void *)((uint8_t *)scratch + (size_t)vocabulary * sizeof(candidate_t));
    d.passes.maxima(logits, vocabulary, d.maxima);
    for (uint32_t block = 0; block < block_count(vocabulary); block++) d.most = qr_max_u32(d.most, d.maxima[block]);
    float scaled = sampling->temperature > 0 ? order_value(d.most) / sampling->temperature : 0.0f;
    uint32_t token;
    if (!(sampling->temperature > 0) || (bits_of(scaled) & 0x7f800000u) == 0x7f800000u) { /* so cold that the division overflows: greedy */
        token = greedy(&d);
    } else {
        d.temperature = sampling->temperature;
        d.scaled = scaled;
        token = draw_token(&d, sampling, position, choice);
    }
    if (ret_logprob) *ret_logprob = logprob_of(&d, token);
    return token;
}

uint32_t qr_sampler_draw(const qr_sampling_t *sampling, const float *logits, uint32_t vocabulary, uint32_t position, uint32_t choice,
                         void *scratch, float *ret_logprob)
{
    return qr_sampler_draw_as(QR_ISA_AUTO, sampling, logits, vocabulary, position, choice, scratch, ret_logprob);
}
