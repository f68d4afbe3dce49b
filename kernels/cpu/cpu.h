/* cpu.h - what one instruction set brings to the cpu device, and what its kernels are told.
 *
 * C1. Every function computes the bits of arithmetic `cpu-1`; scalar.c is the judge, the others must equal it.
 * C2. A function works on the part of a launch it is told (rows, groups, a segment) and writes nothing else, so parts of one
 *     launch may run on any threads in any order. Only statuses are shared: relaxed stores of 1. */
#ifndef QR_CPU_H
#define QR_CPU_H

#include "base/mutant.h"
#include "kernels/device.h"
#include "kernels/layout.h"

/* A launch with its addresses found: buffer i at b[i], size i, scalar i, in the places of kernels.def. */
typedef struct qr_cpu_args {
    uint8_t *b[QR_LAUNCH_BUFFERS_MAX];
    uint32_t s[QR_LAUNCH_SIZES_MAX];
    float f[QR_LAUNCH_SCALARS_MAX];
} qr_cpu_args_t;

/* Rows (or copies) [from, to) of one of the row-wise kernels. */
typedef void qr_cpu_rows_f(const qr_cpu_args_t *args, uint32_t from, uint32_t to);

/* Rows [row_from, row_to) of outputs [16 * group_from, 16 * group_to) of a product. */
typedef void qr_cpu_product_f(const qr_cpu_args_t *args, uint32_t row_from, uint32_t row_to, uint32_t group_from, uint32_t group_to);

enum {
    QR_SPAN = 64,
    QR_SEGMENT = 512,   /* arithmetic 5.2, 5.3: absolute positions */
    QR_STATE_HEAD = 16, /* floats before acc in an attention state: M, l, then unused */
    QR_ATTEND_DIM_MAX = 256,
    QR_ATTEND_GROUP_MAX = QR_HEADS_PER_KV_MAX, /* query heads of one kv head */
    QR_ATTEND_HEADS_MAX = 128,                 /* query heads of one call of attend_one */
    QR_ATTEND_ROWS_MAX = 128                   /* query rows x heads of one tile of attend_many */
};

/* One attention launch, addresses found. */
typedef struct qr_attend {
    const float *qkv;
    const uint16_t *k_pages, *v_pages;
    const uint32_t *positions, *row_offsets, *page_offsets, *first_blocks, *page_table;
    float *y;
    uint32_t *status;
    uint32_t rows, heads, kv_heads, dim, lanes, page_tokens, window;
    uint32_t group;        /* heads / kv_heads */
    uint32_t state_floats; /* QR_STATE_HEAD + dim: M, l, ..., acc */
} qr_attend_t;

/* First key that the query at `position` sees. */
static inline uint32_t qr_attend_first(const qr_attend_t *a, uint32_t position)
{
    return a->window && position + 1 > a->window ? position + 1 - a->window + QR_MUTANT(69) : 0;
}

/* Slot (page * page_tokens + row) of a lane's token; the 7 after a multiple of 8 follow it. */
static inline uint64_t qr_attend_slot(const qr_attend_t *a, uint32_t lane, uint32_t token)
{
    uint32_t block = token / a->page_tokens - (QR_MUTANT(76) ? 0 : a->first_blocks[lane]);
    return (uint64_t)a->page_table[a->page_offsets[lane] + block] * a->page_tokens + token % a->page_tokens;
}

static inline void qr_status_raise(uint32_t *status) { __atomic_store_n(status, 1u, __ATOMIC_RELAXED); }

typedef struct qr_cpu_isa {
    const char *name;
    qr_cpu_rows_f *rows[QR_KERNELS_COUNT]; /* NULL: product and attention */
    qr_cpu_product_f *product;
    /* One query row, kv heads [kv_from, kv_to), one segment that has a visible key: overwrites the states of their query heads,
     * states[(head - kv_from * group)][state_floats]. Raises the row's status if a visible score is not finite. */
    void (*attend_one)(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t kv_from, uint32_t kv_to, uint32_t segment,
                       float *states);
    /* row_count consecutive rows of one lane, one kv head, one segment: merges into states[row][head - kv * group] (stride: states of a
     * row are row_stride floats apart); a state with l == 0 is empty. row_count * group <= QR_ATTEND_ROWS_MAX. scratch:
     * qr_attend_scratch_floats(). */
    void (*attend_many)(const qr_attend_t *a, uint32_t lane, uint32_t row, uint32_t row_count, uint32_t kv, uint32_t segment, float *states,
                        uint64_t row_stride, float *scratch);
    /* into = into merged with the next segment's state (arithmetic 5.3); an empty `into` takes it as it is. */
    void (*merge)(uint32_t dim, float *into, const float *state);
    /* out[dim] = fma(acc, 1 / l, +0) */
    void (*finish)(uint32_t dim, const float *state, float *out);
} qr_cpu_isa_t;

/* Floats of scratch one thread needs for attend_many, 64-byte aligned. */
static inline size_t qr_attend_scratch_floats(void)
{
    return 2u * QR_ATTEND_DIM_MAX * QR_SPAN + (size_t)QR_ATTEND_ROWS_MAX * (QR_SPAN + 2 * QR_STATE_HEAD + QR_ATTEND_DIM_MAX) + 64;
}

extern const qr_cpu_isa_t qr_cpu_scalar;
/* NULL where the build or the compiler has no such file's instructions. */
const qr_cpu_isa_t *qr_cpu_avx2(void);
const qr_cpu_isa_t *qr_cpu_avx512(void);
/* The row-wise kernels that only move bytes or must be one code for all: embed, rope_table, gather, page_copy. */
qr_cpu_rows_f qr_cpu_embed, qr_cpu_rope_table, qr_cpu_gather, qr_cpu_page_copy;

#endif
