/* oracle.c - the contiguous decoder (oracle.h). Every product is a double sum of fp32 weights times double values, in plain order per lane.
 *
 * O1. Nothing of kernels/ computes here; formats are read from their published block layouts.
 * O2. Keys and values stay in double: what fp16 pages and int8 activations cost is what a comparison shows. */
#include "model/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/arch.h"
#include "model/refuse.h"

typedef struct matrix {
    float *values; /* [rows][columns] */
    uint32_t rows, columns;
} matrix_t;

typedef struct layer {
    matrix_t query, key, value, output, gate, up, down, attention_norm, feed_forward_norm; /* norms: one row */
    double *keys, *values;                                                                 /* [context][kv_heads * dim] */
} layer_t;

struct qr_oracle {
    qr_arch_t arch;
    uint32_t context, position;
    matrix_t embedding, head, final_norm; /* head.values == embedding.values when tied */
    layer_t *layers;
    double *x, *normed, *q, *scores, *mixed, *gate, *up;
};

/* ---- block formats -------------------------------------------------------------------------------------------------------------- */

/* IEEE half to double by its definition. */
static double half_value(const uint8_t *place)
{
    uint32_t bits = (uint32_t)place[0] | (uint32_t)place[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent == 0    ? ldexp((double)fraction, -24)
                       : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                        : ldexp((double)(fraction | 1024), (int)exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void widen_4(const uint8_t *block, uint32_t header, double scale, double shift, float *values)
{
    for (uint32_t i = 0; i < 16; i++) {
        values[i] = (float)(scale * (double)(block[header + i] & 15) + shift);
        values[i + 16] = (float)(scale * (double)(block[header + i] >> 4) + shift);
    }
}

/* 256 values in 2 halves of 128, each 4 quarters of 32; two signed scales per 32 values. */
static void widen_q6_k(const uint8_t *block, float *values)
{
    double d = half_value(block + 208);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t half = i >> 7, quarter = i >> 5 & 3, l = i & 31;
        uint32_t low = block[64 * half + 32 * (quarter & 1) + l] >> (quarter & 2 ? 4 : 0) & 15,
                 high = block[128 + 32 * half + l] >> (2 * quarter) & 3;
        values[i] = (float)(d * (double)(int8_t)block[192 + i / 16] * (double)((int32_t)(low | high << 4) - 32));
    }
}

static void row_widen(uint32_t format, const uint8_t *row, uint32_t columns, float *values)
{
    switch (format) {
    case 0: memcpy(values, row, columns * sizeof(float)); return;
    case 1:
        for (uint32_t i = 0; i < columns; i++) values[i] = (float)half_value(row + 2 * i);
        return;
    case 2:
        for (uint32_t b = 0; b < columns / 32; b++) {
            double d = half_value(row + 18 * b);
            widen_4(row + 18 * b, 2, d, -8 * d, values + 32 * b);
        }
        return;
    case 3:
        for (uint32_t b = 0; b < columns / 32; b++)
            widen_4(row + 20 * b, 4, half_value(row + 20 * b), half_value(row + 20 * b + 2), values + 32 * b);
        return;
    case 8:
        for (uint32_t i = 0; i < columns; i++)
            values[i] = (float)(half_value(row + 34 * (i / 32)) * (double)(int8_t)row[34 * (i / 32) + 2 + i % 32]);
        return;
    case 14:
        for (uint32_t b = 0; b < columns / 256; b++) widen_q6_k(row + 210 * b, values + 256 * b);
        return;
    default: qr_unreachable("arch.c admits these formats only");
    }
}

/* ---- weights --------------------------------------------------------------------------------------------------------------------- */

static int matrix_read(const qr_model_t *model, qr_tensor_role_t role, uint32_t layer, matrix_t *ret_matrix, char *message,
                       size_t message_bytes)
{
    const qr_gguf_tensor_t *tensor = qr_arch_tensor(model->file, &model->arch, role, layer);
    ret_matrix->rows = (uint32_t)tensor->dims[1];
    ret_matrix->columns = (uint32_t)tensor->dims[0];
    uint64_t row_bytes = tensor->bytes / ret_matrix->rows;
    uint8_t *row = malloc(row_bytes);
    ret_matrix->values = malloc((size_t)ret_matrix->rows * ret_matrix->columns * sizeof(float));
    int status = 0;
    if (!row || !ret_matrix->values)
        status = qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory to widen the weights", model->path);
    for (uint32_t r = 0; r < ret_matrix->rows && !status; r++) {
        status = qr_gguf_tensor_read(model->file, tensor, r * row_bytes, row, row_bytes, message, message_bytes);
        if (!status) row_widen(tensor->format, row, ret_matrix->columns, ret_matrix->values + (size_t)r * ret_matrix->columns);
    }
    free(row);
    return status;
}

static int layer_read(const qr_model_t *model, uint32_t index, uint32_t context, layer_t *layer, char *message, size_t message_bytes)
{
    const struct {
        qr_tensor_role_t role;
        matrix_t *matrix;
    } wanted[] = {
        {QR_TENSOR_QUERY, &layer->query},
        {QR_TENSOR_KEY, &layer->key},
        {QR_TENSOR_VALUE, &layer->value},
        {QR_TENSOR_OUTPUT, &layer->output},
        {QR_TENSOR_GATE, &layer->gate},
        {QR_TENSOR_UP, &layer->up},
        {QR_TENSOR_DOWN, &layer->down},
        {QR_TENSOR_ATTENTION_NORM, &layer->attention_norm},
        {QR_TENSOR_FEED_FORWARD_NORM, &layer->feed_forward_norm},
    };
    int status = 0;
    for (size_t i = 0; i < QR_COUNT(wanted) && !status; i++)
        status = matrix_read(model, wanted[i].role, index, wanted[i].matrix, message, message_bytes);
    size_t row = (size_t)model->arch.kv_heads * model->arch.dim;
    layer->keys = malloc(context * row * sizeof(double));
    layer->values = malloc(context * row * sizeof(double));
    if (!status && (!layer->keys || !layer->values))
        status = qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory for %u positions", model->path, context);
    return status;
}

static int scratch_new(qr_oracle_t *o)
{
    const qr_arch_t *a = &o->arch;
    size_t query = (size_t)a->heads * a->dim;
    o->x = malloc(a->hidden * sizeof(double));
    o->normed = malloc(a->hidden * sizeof(double));
    o->q = malloc(query * sizeof(double));
    o->mixed = malloc(query * sizeof(double));
    o->scores = malloc(o->context * sizeof(double));
    o->gate = malloc(a->feed_forward * sizeof(double));
    o->up = malloc(a->feed_forward * sizeof(double));
    return o->x && o->normed && o->q && o->mixed && o->scores && o->gate && o->up ? 0 : -QR_E_MEMORY;
}

int qr_oracle_new(const qr_model_t *model, uint32_t context, qr_oracle_t **ret_oracle, char *message, size_t message_bytes)
{
    qr_assert(context >= 1);
    qr_oracle_t *o = calloc(1, sizeof *o);
    layer_t *layers = calloc(model->arch.layers, sizeof *layers);
    if (!o || !layers) {
        free(o), free(layers);
        return qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory", model->path);
    }
    *o = (qr_oracle_t){.arch = model->arch, .context = context, .layers = layers};
    int status = matrix_read(model, QR_TENSOR_EMBEDDING, 0, &o->embedding, message, message_bytes);
    if (!status) status = matrix_read(model, QR_TENSOR_FINAL_NORM, 0, &o->final_norm, message, message_bytes);
    o->head = o->embedding;
    if (!status && !o->arch.tied) {
        o->head = (matrix_t){0};
        status = matrix_read(model, QR_TENSOR_HEAD, 0, &o->head, message, message_bytes);
    }
    for (uint32_t l = 0; l < o->arch.layers && !status; l++) status = layer_read(model, l, context, &layers[l], message, message_bytes);
    if (!status && scratch_new(o)) status = qr_refuse(message, message_bytes, QR_E_MEMORY, "%s: not enough memory", model->path);
    if (status)
        qr_oracle_destroy(&o);
    else
        *ret_oracle = o;
    return status;
}

void qr_oracle_destroy(qr_oracle_t **oracle)
{
    qr_oracle_t *o = *oracle;
    if (!o) return;
    *oracle = NULL;
    for (uint32_t i = 0; i < o->arch.layers; i++) {
        layer_t *l = &o->layers[i];
        matrix_t *matrices[] = {&l->query, &l->key,  &l->value,          &l->output,           &l->gate,
                                &l->up,    &l->down, &l->attention_norm, &l->feed_forward_norm};
        for (size_t k = 0; k < QR_COUNT(matrices); k++) free(matrices[k]->values);
        free(l->keys), free(l->values);
    }
    if (o->head.values != o->embedding.values) free(o->head.values);
    free(o->embedding.values), free(o->final_norm.values), free(o->layers);
    free(o->x), free(o->normed), free(o->q), free(o->mixed), free(o->scores), free(o->gate), free(o->up);
    free(o);
}
void qr_oracle_reset(qr_oracle_t *oracle) { oracle->position = 0; }

/* ---- one token --------------------------------------------------------------------------------------------------------------------- */

static double dot(const float *w, const double *x, uint32_t count)
{
    double lanes[8] = {0};
    for (uint32_t i = 0; i < count; i++) lanes[i % 8] += (double)w[i] * x[i];
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}
static void apply(const matrix_t *m, const double *x, double *y)
{
    for (uint32_t r = 0; r < m->rows; r++) y[r] = dot(m->values + (size_t)r * m->columns, x, m->columns);
}
static void apply_add(const matrix_t *m, const double *x, double *y)
{
    for (uint32_t r = 0; r < m->rows; r++) y[r] += dot(m->values + (size_t)r * m->columns, x, m->columns);
}
static void norm(const matrix_t *weight, double eps, const double *x, double *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < weight->columns; i++) sum += x[i] * x[i];
    double scale = 1.0 / sqrt(sum / weight->columns + eps);
    for (uint32_t i = 0; i < weight->columns; i++) y[i] = x[i] * scale * (double)weight->values[i];
}

/* Rotates each head by position * theta^(-2i / dim) / scale. */
static void rotate(const qr_arch_t *a, double *rows, uint32_t heads, uint32_t position)
{
    for (uint32_t i = 0; i < a->dim / 2; i++) {
        double angle = position * pow(a->rope_theta, -2.0 * i / a->dim) / a->rope_scale, c = cos(angle), s = sin(angle);
        uint32_t first = a->rope_pairing == 0 ? 2 * i : i, second = a->rope_pairing == 0 ? 2 * i + 1 : i + a->dim / 2;
        for (uint32_t h = 0; h < heads; h++) {
            double *head = rows + (size_t)h * a->dim, x = head[first], y = head[second];
            head[first] = x * c - y * s;
            head[second] = x * s + y * c;
        }
    }
}

/* Softmax attention of one head over rows first..position. */
static void attend(qr_oracle_t *o, const layer_t *l, uint32_t head, uint32_t first)
{
    const qr_arch_t *a = &o->arch;
    uint32_t row = a->kv_heads * a->dim, place = head / (a->heads / a->kv_heads) * a->dim;
    const double *q = o->q + (size_t)head * a->dim;
    double *out = o->mixed + (size_t)head * a->dim, most = -INFINITY, sum = 0;
    for (uint32_t t = first; t <= o->position; t++) {
        const double *k = l->keys + (size_t)t * row + place;
        double score = 0;
        for (uint32_t i = 0; i < a->dim; i++) score += q[i] * k[i];
        o->scores[t] = score / sqrt((double)a->dim);
        most = fmax(most, o->scores[t]);
    }
    memset(out, 0, a->dim * sizeof(double));
    for (uint32_t t = first; t <= o->position; t++) {
        const double *v = l->values + (size_t)t * row + place;
        double e = exp(o->scores[t] - most);
        sum += e;
        for (uint32_t i = 0; i < a->dim; i++) out[i] += e * v[i];
    }
    for (uint32_t i = 0; i < a->dim; i++) out[i] /= sum;
}

static void layer_step(qr_oracle_t *o, uint32_t index)
{
    const qr_arch_t *a = &o->arch;
    layer_t *l = &o->layers[index];
    size_t row = (size_t)a->kv_heads * a->dim;
    double *k = l->keys + o->position * row, *v = l->values + o->position * row;
    uint32_t window = a->window[index], first = window && o->position >= window ? o->position - (window - 1) : 0;
    norm(&l->attention_norm, (double)a->norm_eps, o->x, o->normed);
    apply(&l->query, o->normed, o->q);
    apply(&l->key, o->normed, k);
    apply(&l->value, o->normed, v);
    rotate(a, o->q, a->heads, o->position);
    rotate(a, k, a->kv_heads, o->position);
    for (uint32_t head = 0; head < a->heads; head++) attend(o, l, head, first);
    apply_add(&l->output, o->mixed, o->x);
    norm(&l->feed_forward_norm, (double)a->norm_eps, o->x, o->normed);
    apply(&l->gate, o->normed, o->gate);
    apply(&l->up, o->normed, o->up);
    for (uint32_t i = 0; i < a->feed_forward; i++) o->gate[i] = o->gate[i] / (1.0 + exp(-o->gate[i])) * o->up[i];
    apply_add(&l->down, o->gate, o->x);
}

int qr_oracle_step(qr_oracle_t *oracle, const uint32_t *tokens, uint32_t count, float *ret_logits)
{
    const qr_arch_t *a = &oracle->arch;
    if (count > oracle->context - oracle->position) return -QR_E_CONTEXT;
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] >= a->vocabulary) return -QR_E_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        const float *row = oracle->embedding.values + (size_t)tokens[i] * a->hidden;
        for (uint32_t c = 0; c < a->hidden; c++) oracle->x[c] = (double)row[c];
        for (uint32_t l = 0; l < a->layers; l++) layer_step(oracle, l);
        oracle->position++;
    }
    if (!ret_logits || count == 0) return 0;
    norm(&oracle->final_norm, (double)a->norm_eps, oracle->x, oracle->normed);
    for (uint32_t r = 0; r < a->vocabulary; r++)
        ret_logits[r] = (float)dot(oracle->head.values + (size_t)r * a->hidden, oracle->normed, a->hidden);
    return 0;
}
