/* table.c - kernels.def as data, and its shapes as small stack programs (T1). */
#include "kernels/table.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/mutant.h"
#include "kernels/layout.h"

static const qr_kernel_row_t rows[QR_KERNELS_COUNT] = {
#define KERNEL(row_name, row_sentence) [QR_KERNEL_##row_name] = {.name = #row_name, .sentence = row_sentence,
#define BUFFER(index, buffer_name, dir, buffer_shape) .buffers[index] = {#buffer_name, buffer_shape, QR_##dir},
#define SIZE(index, size_name) .sizes[index] = #size_name,
#define SCALAR(index, scalar_name) .scalars[index] = #scalar_name,
#define END(row_name)                                                                                                                      \
    }                                                                                                                                      \
    ,
#include "kernels/kernels.def"
};

enum { STEPS_MAX = 32, DEPTH_MAX = 8, DIMENSIONS_MAX = 4 };
typedef enum { PUSH_NUMBER, PUSH_SIZE, ADD, MULTIPLY, DIVIDE, DIMENSION, STOP } op_t;
typedef enum { PLAIN, ACTIVATION, PACKED } unit_t;
typedef struct {
    uint8_t op, value;
} step_t;
typedef struct {
    uint8_t unit, element_bytes, format_size, quantised_size;
    step_t steps[STEPS_MAX];
} program_t;
enum { NONE = 255 };
struct qr_table {
    program_t programs[QR_KERNELS_COUNT][QR_LAUNCH_BUFFERS_MAX];
    uint8_t buffer_counts[QR_KERNELS_COUNT];
};

typedef struct {
    const char *at;
    const qr_kernel_row_t *row;
    program_t *program;
    uint32_t count;
} parser_t;

static void emit(parser_t *p, op_t op, uint32_t value)
{
    qr_assert(p->count < STEPS_MAX && value <= NONE);
    p->program->steps[p->count++] = (step_t){(uint8_t)op, (uint8_t)value};
}

static bool letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
static bool digit(char c) { return c >= '0' && c <= '9'; }
static void skip(parser_t *p)
{
    while (*p->at == ' ') p->at++;
}

static uint32_t size_index(const qr_kernel_row_t *row, const char *word, size_t length)
{
    for (uint32_t i = 0; i < QR_LAUNCH_SIZES_MAX; i++)
        if (row->sizes[i] && strlen(row->sizes[i]) == length && !memcmp(row->sizes[i], word, length)) return i;
    return NONE;
}

static void read_sum(parser_t *p);

/* number | name | "..." | (sum). What the sizes do not tell counts as 1. */
static void read_factor(parser_t *p)
{
    skip(p);
    if (*p->at == '(') {
        p->at++;
        read_sum(p);
        qr_assert(*p->at == ')');
        p->at++;
    } else if (digit(*p->at)) {
        uint32_t number = 0;
        while (digit(*p->at)) number = number * 10 + (uint32_t)(*p->at++ - '0');
        emit(p, PUSH_NUMBER, number);
    } else if (letter(*p->at)) {
        const char *from = p->at;
        while (letter(*p->at)) p->at++;
        uint32_t index = size_index(p->row, from, (size_t)(p->at - from));
        if (index == NONE)
            emit(p, PUSH_NUMBER, 1);
        else
            emit(p, PUSH_SIZE, index);
    } else {
        qr_assert(*p->at == '.');
        while (*p->at == '.') p->at++;
        emit(p, PUSH_NUMBER, 1);
    }
    skip(p);
}

static void read_product(parser_t *p)
{
    read_factor(p);
    while (*p->at == '*' || *p->at == '/') {
        op_t op = *p->at++ == '*' ? MULTIPLY : DIVIDE;
        read_factor(p);
        emit(p, op, 0);
    }
}

static void read_sum(parser_t *p)
{
    read_product(p);
    while (*p->at == '+') {
        p->at++;
        read_product(p);
        emit(p, ADD, 0);
    }
}

/* "unit[dimension][dimension]... anything" */
static void compile(const qr_kernel_row_t *row, const char *shape, program_t *program)
{
    parser_t p = {shape, row, program, 0};
    program->format_size = (uint8_t)size_index(row, "format", 6);
    program->quantised_size = (uint8_t)size_index(row, "quantised", 9);
    program->unit = !strncmp(shape, "activation", 10) ? ACTIVATION : !strncmp(shape, "packed", 6) ? PACKED : PLAIN;
    program->element_bytes = !strncmp(shape, "f16", 3) ? 2 : !strncmp(shape, "u64", 3) ? 8 : 4;
    while (*p.at && *p.at != '[') p.at++;
    while (*p.at == '[') {
        p.at++;
        read_sum(&p);
        qr_assert(*p.at == ']');
        p.at++;
        emit(&p, DIMENSION, 0);
    }
    emit(&p, STOP, 0);
}

int qr_table_new(qr_table_t **ret_table)
{
    qr_table_t *table = calloc(1, sizeof *table);
    if (!table) return -QR_E_MEMORY;
    for (uint32_t kernel = 0; kernel < QR_KERNELS_COUNT; kernel++)
        for (uint32_t i = 0; i < QR_LAUNCH_BUFFERS_MAX && rows[kernel].buffers[i].name; i++) {
            compile(&rows[kernel], rows[kernel].buffers[i].shape, &table->programs[kernel][i]);
            table->buffer_counts[kernel] = (uint8_t)(i + 1);
        }
    *ret_table = table;
    return 0;
}

void qr_table_destroy(qr_table_t **table)
{
    free(*table);
    *table = NULL;
}

const qr_kernel_row_t *qr_kernel_row(uint32_t kernel)
{
    qr_assert(kernel < QR_KERNELS_COUNT);
    return &rows[kernel];
}

/* Runs a shape's program; the rest of ret_dimensions stays 1. */
static uint32_t evaluate(const program_t *program, const uint32_t *sizes, uint64_t ret_dimensions[DIMENSIONS_MAX])
{
    uint64_t stack[DEPTH_MAX];
    uint32_t depth = 0, count = 0;
    for (const step_t *step = program->steps; step->op != STOP; step++) {
        switch (step->op) {
        case PUSH_NUMBER: stack[depth++] = step->value; break;
        case PUSH_SIZE: stack[depth++] = sizes[step->value]; break;
        case ADD:
            depth--;
            stack[depth - 1] += stack[depth];
            break;
        case MULTIPLY:
            depth--;
            stack[depth - 1] *= stack[depth];
            break;
        case DIVIDE:
            depth--;
            stack[depth - 1] /= stack[depth];
            break;
        default: ret_dimensions[count++] = stack[--depth]; break;
        }
    }
    return count;
}

uint64_t qr_table_bytes(const qr_table_t *table, const qr_launch_t *launch, uint32_t index)
{
    const program_t *program = &table->programs[launch->kernel][index];
    uint64_t d[DIMENSIONS_MAX] = {1, 1, 1, 1};
    evaluate(program, launch->sizes, d);
    if (program->unit == PACKED) return qr_packed_bytes(launch->sizes[program->format_size], d[0], (uint32_t)d[1]);
    if (program->unit == ACTIVATION) {
        bool quantised = program->quantised_size != NONE ? launch->sizes[program->quantised_size] != 0
                                                         : qr_format_quantised(launch->sizes[program->format_size]);
        return d[0] * qr_activation_row_bytes(quantised, (uint32_t)d[1]);
    }
    return d[0] * d[1] * d[2] * d[3] * program->element_bytes;
}

const char *qr_table_fault(const qr_table_t *table, const qr_launch_t *launch)
{
    if (launch->kernel >= QR_KERNELS_COUNT) return "kernel";
    for (uint32_t i = 0; i < table->buffer_counts[launch->kernel]; i++) {
        const qr_buffer_t *buffer = launch->buffers[i];
        if (!buffer || launch->offsets[i] > buffer->bytes) return rows[launch->kernel].buffers[i].name;
        if (buffer->bytes - (QR_MUTANT(80) ? 0 : launch->offsets[i]) < qr_table_bytes(table, launch, i))
            return rows[launch->kernel].buffers[i].name;
    }
    return NULL;
}
