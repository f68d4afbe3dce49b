/* scalar.c - every kernel as plain loops in the order of arithmetic `cpu-1`: the judge of bits, and what runs where no vectors are.
 * Built for baseline x86-64; fmaf and sqrtf come from the C library, which IEEE leaves no choice. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2n.h"
#include "kernels/half.h"

/* ---- activations -------------------------------------------------------------------------------------------------- */

/* Nearest integer, ties to even, |x| <= 2^22. */
static int32_t nearest(float x) { return (int32_t)((x + 12582912.0f) - 12582912.0f); }

/* One block of 32 (arithmetic 2). True if it is poisoned. */
static bool quantise_block(const float *x, qr_activation_t *ret)
{
    uint32_t most = 0;
    for (int i = 0; i < QR_BLOCK; i++) {
        uint32_t bits = qr_float_bits(x[i]) & 0x7fffffffu;
        if (bits > most) most = bits;
    }
    *ret = (qr_activation_t){0};
    if (most >= 0x7f800000u + QR_MUTANT(72)) {
        ret->d = ret->ds = qr_bits_float(0x7fc00000u);
        return true;
    }
    if (most < 0x0d800000u) return false; /* 2^-100 */
    float amax = qr_bits_float(most), id = 127.0f / amax;
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < QR_BLOCK; i++) {
        int32_t q = nearest(x[i] * id);
        ret->q[i] = (int8_t)q;
        sums[i / 16] += q;
    }
    int32_t sum = sums[0] + sums[1];
    ret->d = amax / 127.0f;
    ret->ds = ret->d * (float)sum;
    ret->minus_128 = -128 * sum;
    ret->minus_8 = -8 * sum;
    ret->minus_32[0] = -32 * sums[0];
    ret->minus_32[1] = -32 * sums[1];
    return false;
}

/* A finished fp32 row as an activation; raises the status if a value is not finite. */
static void put_row(const float *x, uint32_t width, bool quantised, uint8_t *y, uint32_t *status)
{
    bool bad = false;
    if (quantised)
        for (uint32_t b = 0; b < width / QR_BLOCK; b++) bad |= quantise_block(x + b * QR_BLOCK, (qr_activation_t *)y + b);
    else
        for (uint32_t i = 0; i < width; i++) {
            bad |= !qr_float_finite(x[i]);
            ((float *)y)[i] = x[i];
        }
    if (bad) qr_status_raise(status);
}

static void quantise(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    for (uint32_t r = from; r < to; r++)
        put_row((const float *)args->b[0] + (uint64_t)r * width, width, quantised,
                args->b[1] + r * qr_activation_row_bytes(quantised, width), (uint32_t *)args->b[2] + r);
}

/* Values are made and stored 32 at a time: no row of any width is held on the stack. */
static void norm_row(const float *x, const float *w, uint32_t width, bool quantised, float eps, uint8_t *y, uint32_t *status)
{
    float a[64] = {0}, block[QR_BLOCK];
    for (uint32_t i = 0; i < width; i++) a[i % 64] = fmaf(x[i], x[i], a[i % 64]);
    for (int h = 32; h >= 1; h /= 2)
        for (int l = 0; l < h; l++) a[l] = a[l] + a[l + h];
    float r = 1.0f / sqrtf(a[0] / (float)width + eps);
    if (!qr_float_finite(a[0])) qr_status_raise(status); /* else an overflow would hide as r = 0 */
    for (uint32_t b = 0; b < width / QR_BLOCK; b++) {
        for (uint32_t i = 0; i < QR_BLOCK; i++) block[i] = (x[b * QR_BLOCK + i] * r) * w[b * QR_BLOCK + i];
        put_row(block, QR_BLOCK, quantised, y + b * qr_activation_row_bytes(quantised, QR_BLOCK), status);
    }
}

static void norm(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    for (uint32_t r = from; r < to; r++)
        norm_row((const float *)args->b[0] + (uint64_t)r * width, (const float *)args->b[1], width, quantised, args->f[0],
                 args->b[2] + r * qr_activation_row_bytes(quantised, width), (uint32_t *)args->b[3] + r);
}

static void gate(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t width = args->s[1];
    bool quantised = args->s[2] != 0;
    float block[QR_BLOCK];
    for (uint32_t r = from; r < to; r++) {
        const float *g = (const float *)args->b[0] + (uint64_t)r * 2 * width, *u = g + width;
        uint8_t *y = args->b[1] + r * qr_activation_row_bytes(quantised, width);
        for (uint32_t b = 0; b < width / QR_BLOCK; b++) {
            for (uint32_t i = 0; i < QR_BLOCK; i++) {
                float gate_value = g[b * QR_BLOCK + i], e = qr_exp2n(-fabsf(gate_value) * QR_LOG2_E);
                float numerator = gate_value >= 0 ? gate_value : gate_value * e;
                block[i] = numerator / (1.0f + e) * u[b * QR_BLOCK + i];
            }
            put_row(block, QR_BLOCK, quantised, y + b * qr_activation_row_bytes(quantised, QR_BLOCK), (uint32_t *)args->b[2] + r);
        }
    }
}

/* ---- products ----------------------------------------------------------------------------------------------------- */

/* Dot of one block as the integer of arithmetic 2, for lane `lane` of a group. */
static int32_t block_dot(uint32_t format, const uint8_t *quants, const int8_t *scales, uint32_t lane, const qr_activation_t *x)
{
    int32_t halves[2] = {0, 0};
    for (uint32_t i = 0; i < QR_BLOCK; i++) {
        const uint8_t *four = quants + (format == QR_FORMAT_Q8_0 || format == QR_FORMAT_Q6_K ? i / 4 : i % 16 / 4) * 64 + lane * 4;
        int32_t w = four[i % 4];
        if (format == QR_FORMAT_Q8_0)
            w -= 128;
        else if (format == QR_FORMAT_Q6_K)
            w -= 32;
        else
            w = (w >> (i / 16 * 4) & 15) - (format == QR_FORMAT_Q4_0 ? 8 : 0);
        halves[i / 16] += w * x->q[i];
    }
    return format == QR_FORMAT_Q6_K ? scales[32 + lane] * halves[0] + scales[48 + lane] * halves[1] : halves[0] + halves[1];
}

static float half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, 2);
    return qr_half_to_float(half);
}

static float chain_quantised(uint32_t format, uint32_t blocks, const uint8_t *group, uint32_t lane, const qr_activation_t *x)
{
    uint32_t quant = qr_quant_bytes(format), scale = qr_scale_bytes(format);
    const uint8_t *scales = group + (uint64_t)blocks * quant;
    float acc = 0;
    for (uint32_t b = 0; b < blocks; b++, group += quant, scales += scale) {
        int32_t dot = block_dot(format, group, (const int8_t *)scales, lane, x + b);
        float p = half_at(scales + 2 * lane) * x[b].d;
        acc = fmaf((float)dot, p, acc);
        if (format == QR_FORMAT_Q4_1) acc = fmaf(half_at(scales + 32 + 2 * lane), x[b].ds, acc);
    }
    return acc;
}

static float plain_weight(uint32_t format, const uint8_t *group, uint64_t i, uint32_t lane)
{
    float value;
    if (format == QR_FORMAT_F16) return half_at(group + (i * 16 + lane) * 2);
    memcpy(&value, group + (i * 16 + lane) * 4, 4);
    return value;
}

static float chain_plain(uint32_t format, uint32_t blocks, const uint8_t *group, uint32_t lane, const float *x)
{
    float acc = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        float s = x[b * QR_BLOCK] * plain_weight(format, group, b * QR_BLOCK, lane);
        for (uint32_t i = 1; i < QR_BLOCK; i++) s = fmaf(x[b * QR_BLOCK + i], plain_weight(format, group, b * QR_BLOCK + i, lane), s);
        acc = acc + s;
    }
    return acc;
}

static void product(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to)
{
    uint32_t columns = args->s[1], outputs = args->s[2], format = args->s[3], stride = args->s[4], offset = args->s[5];
    uint64_t row_bytes = qr_activation_row_bytes(qr_format_quantised(format), columns);
    for (uint32_t r = row_from; r < row_to; r++)
        for (uint32_t o = group_from * 16; o < qr_min_u32(group_to * 16, outputs); o++) {
            const uint8_t *group = args->b[1] + o / 16 * qr_group_bytes(format, columns), *x = args->b[0] + r * row_bytes;
            float *y = (float *)args->b[2] + (uint64_t)r * stride + offset + o;
            float value = qr_format_quantised(format)
                              ? chain_quantised(format, columns / QR_BLOCK, group, o % 16, (const qr_activation_t *)x)
                              : chain_plain(format, columns / QR_BLOCK, group, o % 16, (const float *)x);
            *y = args->s[6] ? *y + value : value;
        }
}

/* ---- rotation and append -------------------------------------------------------------------------------------------- */

static void rotate(float *head, const float *table, uint32_t dim, uint32_t pairing)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        uint32_t halves = pairing ^ QR_MUTANT(61), ia = halves ? i : 2 * i, ib = halves ? i + dim / 2 : 2 * i + 1;
        float c = table[2 * i], s = table[2 * i + 1], a = head[ia], b = head[ib], u = b * s, v = b * c;
        head[ia] = fmaf(a, c, -u);
        head[ib] = fmaf(a, s, v);
    }
}

/* fp32 values to fp16; returns whether every stored value is finite. */
static bool narrow(const float *from, uint32_t count, uint16_t *to)
{
    bool finite = true;
    for (uint32_t i = 0; i < count; i++) {
        to[i] = qr_float_to_half(from[i]);
        finite &= (to[i] & 0x7c00u) != 0x7c00u;
    }
    return finite;
}

static bool all_finite(const float *x, uint32_t count)
{
    bool finite = true;
    for (uint32_t i = 0; i < count; i++) finite &= qr_float_finite(x[i]);
    return finite;
}

/* A row that does not fit fp16 fails; zeros are stored, so that no stored value is ever other than finite (arithmetic 7). */
static void rope_append(const qr_cpu_args_t *args, uint32_t from, uint32_t to)
{
    uint32_t heads = args->s[1], kv_heads = args->s[2], dim = args->s[3], pairing = args->s[4], kv_width = kv_heads * dim;
    for (uint32_t r = from; r < to; r++) {
        float *q = (float *)args->b[0] + (uint64_t)r * (heads + 2 * kv_heads) * dim, *k = q + heads * dim;
        const float *v = k + kv_width, *table = (const float *)args->b[1] + (uint64_t)r * dim;
        for (uint32_t h = 0; h < heads + kv_heads; h++) rotate(q + h * dim, table, dim, pairing);
        for (uint32_t i = 0; i < heads * dim; i++) q[i] = q[i] * args->f[0];
        bool finite = all_finite(q, (heads + 2 * kv_heads) * dim);
        int32_t slot = ((const int32_t *)args->b[2])[r] - QR_MUTANT(63);
        if (slot >= 0) {
            uint16_t *k_row = (uint16_t *)args->b[3] + (uint64_t)slot * kv_width,
                     *v_row = (uint16_t *)args->b[4] + (uint64_t)slot * kv_width;
            bool fits = narrow(k, kv_width, k_row);
            fits &= narrow(v, kv_width, v_row);
            if (!fits && !QR_MUTANT(79)) {
                memset(k_row, 0, kv_width * 2ull);
                memset(v_row, 0, kv_width * 2ull);
            }
            finite &= fits;
        }
        if (!finite) qr_status_raise((uint32_t *)args->b[5] + r);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------- */

static float score(const float *q, const uint16_t *k, uint32_t dim)
{
    float a[8];
    for (uint32_t l = 0; l < 8; l++) a[l] = q[l] * qr_half_to_float(k[l]);
    for (uint32_t d = 8; d < dim; d++) a[d % 8] = fmaf(q[d], qr_half_to_float(k[d]), a[d % 8]);
    for (uint32_t h = 4; h >= 1; h /= 2)
        for (uint32_t l = 0; l < h; l++) a[l] = a[l] + a[l + h];
    return a[0];
}

/* Visible keys [first, end) of one span into the state of one head. */
static void attend_span(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t head, uint32_t first, uint32_t end, float *l,
                        float *state)
{
    uint32_t dim = a->dim, kv_width = a->kv_heads * dim, kv = head / a->group;
    const float *q = a->qkv + (uint64_t)row * (a->heads + 2 * a->kv_heads) * dim + head * dim;
    float s[QR_SPAN], *acc = state + QR_STATE_HEAD, most = -INFINITY;
    bool finite = true;
    for (uint32_t t = first; t < end; t++) {
        s[t % QR_SPAN] = score(q, a->k_pages + qr_attend_slot(a, lane, t) * kv_width + kv * dim, dim);
        finite &= qr_float_finite(s[t % QR_SPAN]);
        if (s[t % QR_SPAN] > most) most = s[t % QR_SPAN];
    }
    if (!finite) qr_status_raise(a->status + row);
    if (most > state[0]) {
        float r = qr_exp2n(state[0] - most);
        for (uint32_t i = 0; i < 16; i++) l[i] = l[i] * r;
        for (uint32_t d = 0; d < dim; d++) acc[d] = acc[d] * r;
        state[0] = most;
    }
    for (uint32_t t = first; t < end; t++) {
        const uint16_t *v = a->v_pages + qr_attend_slot(a, lane, t) * kv_width + kv * dim;
        float e = qr_exp2n(s[t % QR_SPAN] - state[0]);
        l[t % 16] = l[t % 16] + e;
        for (uint32_t d = 0; d < dim; d++) acc[d] = fmaf(e, qr_half_to_float(v[d]), acc[d]);
    }
}

/* One head of one row over the visible part of one segment. */
static void attend_segment(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t head, uint32_t segment, float *state)
{
    uint32_t position = a->positions[row], begin = qr_max_u32(qr_attend_first(a, position), segment * QR_SEGMENT);
    uint32_t end = qr_min_u32(position + 1 + QR_MUTANT(70), (segment + 1) * QR_SEGMENT);
    float l[16] = {0};
    memset(state, 0, a->state_floats * sizeof *state);
    state[0] = -INFINITY;
    for (uint32_t t = begin; t < end;) {
        uint32_t stop = qr_min_u32(end, (t / QR_SPAN + 1) * QR_SPAN);
        attend_span(a, lane, row, head, t, stop, l, state);
        t = stop;
    }
    for (uint32_t h = 8; h >= 1; h /= 2)
        for (uint32_t i = 0; i < h; i++) l[i] = l[i] + l[i + h];
    state[1] = l[0];
}

static void attend_one(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment, float *states)
{
    for (uint32_t head = kv_from * a->group; head < kv_to * a->group; head++, states += a->state_floats)
        attend_segment(a, lane, row, head, segment, states);
}

static void merge(uint32_t dim, float *into, const float *state)
{
    if (into[1] == 0) {
        memcpy(into, state, (QR_STATE_HEAD + dim) * sizeof *into);
        return;
    }
    float most = state[0] > into[0] ? state[0] : into[0], x = qr_exp2n(into[0] - most), y = qr_exp2n(state[0] - most);
    into[1] = fmaf(state[1], y, into[1] * x);
    for (uint32_t d = QR_STATE_HEAD; d < QR_STATE_HEAD + dim; d++) into[d] = fmaf(state[d], y, into[d] * x);
    into[0] = most;
}

static void finish(uint32_t dim, const float *state, float *out)
{
    float r = 1.0f / state[1];
    for (uint32_t d = 0; d < dim; d++) out[d] = fmaf(state[QR_STATE_HEAD + d], r, 0.0f);
}

static void attend_many(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment, float *states,
                        uint64_t row_stride, float *scratch)
{
    for (uint32_t r = 0; r < row_count; r++) {
        uint32_t position = a->positions[row + r];
        if (position < segment * QR_SEGMENT || qr_attend_first(a, position) >= (segment + 1) * QR_SEGMENT) continue;
        for (uint32_t g = 0; g < a->group; g++) {
            attend_segment(a, lane, row + r, kv * a->group + g, segment, scratch);
            merge(a->dim, states + r * row_stride + g * a->state_floats, scratch);
        }
    }
}

const qr_cpu_isa_t qr_cpu_scalar = {
    .name = "scalar",
    .rows = {[QR_KERNEL_embed] = qr_cpu_embed,
             [QR_KERNEL_rope_table] = qr_cpu_rope_table,
             [QR_KERNEL_norm] = norm,
             [QR_KERNEL_quantise] = quantise,
             [QR_KERNEL_rope_append] = rope_append,
             [QR_KERNEL_gate] = gate,
             [QR_KERNEL_gather] = qr_cpu_gather,
             [QR_KERNEL_page_copy] = qr_cpu_page_copy},
    .product = product,
    .attend_one = attend_one,
    .attend_many = attend_many,
    .merge = merge,
    .finish = finish,
};
