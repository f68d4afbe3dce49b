/* decoder.c - a ragged batch as launches over page pools (decoder.h says the promises).
 *
 * Pool of a group: [layer of the group][key, value][pages][page_tokens][kv_heads][dim], fp16.
 * Only rows whose logits are wanted go through the last layer's products: their bits do not depend on who else is computed. */
#define _GNU_SOURCE
#include "model/decoder.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mutant.h"
#include "model/attention_state.h"
#include "model/refuse.h"

enum {
    COPIES_PER_LANE = 4,        /* copies of one batch and group, per lane */
    POOL_PAGES_MAX = 65536,     /* of a default pool; a given one may be larger */
    LAUNCHES_PER_LAYER_MAX = 18 /* copies included; checked against the queue when the decoder is made */
};

/* Inputs of one batch for one group. */
typedef struct group_inputs {
    qr_buffer_t slots, page_offsets, first_blocks, page_table, copy_from, copy_to, copy_rows;
} group_inputs_t;

struct qr_decoder {
    qr_model_t *model;
    qr_device_t *device;
    qr_decoder_config_t config;
    qr_layout_t layout;
    qr_attention_state_t state;
    qr_buffer_t pools[QR_GROUPS_MAX];
    group_inputs_t groups[QR_GROUPS_MAX];
    qr_buffer_t tokens, positions, row_offsets, logit_rows;
    qr_buffer_t x, x_last;              /* f32[rows][hidden], f32[lanes_max][hidden]: the residual stream */
    qr_buffer_t y, y_last;              /* f32[rows][heads * dim]: attention's results */
    qr_buffer_t qkv, gate_up, rotation; /* f32[rows][...] */
    qr_buffer_t activation[2];          /* fp32, quantised: the input of the next product */
    qr_buffer_t status, status_last;    /* u32[rows], u32[lanes_max] */
    qr_buffer_t logits;                 /* f32[lanes_max][vocabulary] */
    uint32_t *host_status;              /* [rows_max]: after a batch, 0 or QR_E_NUMERIC */
    uint32_t *host_status_last;         /* [lanes_max] */
    float *host_logits;                 /* NULL where the device's memory is ours */
    uint32_t *host_rows;                /* [lanes_max]: the batch's logit_rows */
    uint32_t row_count, lane_count, logit_count, longest[QR_GROUPS_MAX];
    float q_scale;
    bool working, trimmed; /* trimmed: the last layer has only the rows of logit_rows */
};

/* ---- pools -------------------------------------------------------------------------------------------------------------------- */

static uint32_t context_blocks(const qr_decoder_t *d) { return (uint32_t)qr_div_up(d->config.context_tokens, d->config.page_tokens); }

/* Pages a lane may need of a windowed group (design 7): rows of every batch in flight lie in it before the first of them is committed. */
static uint64_t window_blocks(const qr_decoder_t *d, uint32_t window)
{
    uint64_t in_flight = (uint64_t)d->config.rows_max * (QR_MUTANT(861) ? 1 : QR_BATCHES_IN_FLIGHT);
    uint64_t blocks = qr_div_up(window - 1 + in_flight, d->config.page_tokens) + 1;
    return qr_min_u64(blocks, context_blocks(d));
}

/* min(25 % of the memory, 1 GiB): windowed groups get what all lanes may need, at most half of it together; group 0 the rest. */
static void pools_size(qr_decoder_t *d)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t left = qr_min_u64(memory / 4, 1ull << 30), share = left / 2 / qr_max_u32(d->layout.group_count - 1, 1);
    for (uint32_t g = d->layout.group_count; g-- > 0;) {
        qr_group_t *group = &d->layout.groups[g];
        uint64_t page_bytes = (uint64_t)group->row_bytes * d->config.page_tokens, pages = left / page_bytes;
        if (g > 0) pages = qr_min_u64(share / page_bytes, d->config.lanes_max * window_blocks(d, group->window));
        if (d->config.pages[g])
            pages = d->config.pages[g];
        else
            pages = qr_min_u64(qr_max_u64(pages, 8), POOL_PAGES_MAX);
        group->pages = (uint32_t)pages;
        left -= qr_min_u64(left, pages * page_bytes);
    }
}

static int buffer_fill(qr_device_t *device, qr_buffer_t *buffer, uint8_t value)
{
    enum { PIECE = 1 << 20 };
    if (buffer->host) {
        memset(buffer->host, value, buffer->bytes);
        return 0;
    }
    uint8_t *piece = malloc(PIECE);
    if (!piece) return -QR_E_MEMORY;
    memset(piece, value, PIECE);
    int status = 0;
    for (uint64_t at = 0; at < buffer->bytes && !status; at += PIECE)
        status = qr_buffer_write(device, buffer, at, piece, qr_min_u64(PIECE, buffer->bytes - at));
    free(piece);
    return status;
}

/* Unwritten rows are zero, or NaN patterns with `poison` (DC3). */
static int pools_new(qr_decoder_t *d, char *message, size_t message_bytes)
{
    for (uint32_t g = 0; g < d->layout.group_count; g++) {
        const qr_group_t *group = &d->layout.groups[g];
        uint64_t bytes = (uint64_t)group->row_bytes * d->config.page_tokens * group->pages;
        int status = qr_buffer_new(d->device, bytes, &d->pools[g]);
        if (!status && d->config.poison) status = buffer_fill(d->device, &d->pools[g], 0xff);
        if (status)
            return qr_refuse(message, message_bytes, -status, "a pool of %u pages needs %llu bytes: %s; use --pages with a smaller number",
                             group->pages, (unsigned long long)bytes, qr_error_sentence(status));
    }
    return 0;
}

/* Bytes of one member (a slab of a layer) of a group, and where the member of a layer begins. */
static uint64_t member_bytes(const qr_decoder_t *d, uint32_t group)
{
    uint64_t row = (uint64_t)d->state.slabs[0].row_values * 2;
    return row * d->config.page_tokens * d->layout.groups[group].pages;
}
static uint64_t member_offset(const qr_decoder_t *d, uint32_t layer, uint32_t member)
{
    uint32_t group = d->state.group_of[layer];
    return ((uint64_t)d->state.place_of[layer] * QR_SLABS_COUNT + member) * member_bytes(d, group);
}

uint16_t *qr_decoder_page_row(qr_decoder_t *decoder, uint32_t layer, uint32_t member, uint32_t page, uint32_t row)
{
    qr_assert(layer < decoder->model->arch.layers && member < QR_SLABS_COUNT && row < decoder->config.page_tokens);
    uint32_t group = decoder->state.group_of[layer];
    qr_assert(decoder->pools[group].host && page < decoder->layout.groups[group].pages);
    uint64_t at = ((uint64_t)page * decoder->config.page_tokens + row) * decoder->state.slabs[member].row_values * 2;
    return (uint16_t *)(void *)(decoder->pools[group].host + member_offset(decoder, layer, member) + at);
}

uint32_t qr_decoder_member_count(const qr_decoder_t *decoder, uint32_t group)
{
    qr_assert(group < decoder->state.group_count);
    return QR_SLABS_COUNT * decoder->state.groups[group].layer_count;
}
uint32_t qr_decoder_row_bytes(const qr_decoder_t *decoder) { return decoder->state.slabs[0].row_values * 2; }

uint8_t *qr_decoder_member_rows(qr_decoder_t *decoder, uint32_t group, uint32_t member)
{
    qr_assert(member < qr_decoder_member_count(decoder, group));
    const qr_attention_group_t *of = &decoder->state.groups[group];
    uint8_t *host = decoder->pools[group].host;
    return host ? host + member_offset(decoder, of->layers[member % of->layer_count], member / of->layer_count) : NULL;
}

/* ---- the decoder's memory ---------------------------------------------------------------------------------------------------- */

static bool any_weight(const qr_model_t *m, bool quantised)
{
    bool any = qr_format_quantised(m->head.format) == quantised;
    for (uint32_t layer = 0; layer < m->arch.layers; layer++) {
        const qr_layer_weights_t *w = &m->layers[layer];
        for (uint32_t i = 0; i < w->qkv_count; i++) any |= qr_format_quantised(w->qkv[i].format) == quantised;
        for (uint32_t i = 0; i < w->gate_up_count; i++) any |= qr_format_quantised(w->gate_up[i].format) == quantised;
        any |= qr_format_quantised(w->output.format) == quantised || qr_format_quantised(w->down.format) == quantised;
    }
    return any;
}

static int scratch_new(qr_decoder_t *d)
{
    const qr_arch_t *a = &d->model->arch;
    uint64_t rows = d->config.rows_max, lanes = d->config.lanes_max, query = (uint64_t)a->heads * a->dim,
             kv = (uint64_t)a->kv_heads * a->dim;
    uint64_t widest = qr_max_u64(qr_max_u64(a->hidden, a->feed_forward), query);
    struct {
        qr_buffer_t *buffer;
        uint64_t bytes;
    } wanted[] = {
        {&d->tokens, rows * 4},
        {&d->positions, rows * 4},
        {&d->row_offsets, (lanes + 1) * 4},
        {&d->logit_rows, lanes * 4},
        {&d->x, rows * a->hidden * 4},
        {&d->x_last, lanes * a->hidden * 4},
        {&d->y, rows * query * 4},
        {&d->y_last, lanes * query * 4},
        {&d->qkv, rows * (query + 2 * kv) * 4},
        {&d->status, rows * 4},
        {&d->status_last, lanes * 4},
        {&d->gate_up, rows * 2 * a->feed_forward * 4},
        {&d->rotation, rows * a->dim * 4},
        {&d->logits, lanes * a->vocabulary * 4},
        {&d->activation[0], any_weight(d->model, false) ? rows * qr_activation_row_bytes(false, (uint32_t)widest) : 0},
        {&d->activation[1], any_weight(d->model, true) ? rows * qr_activation_row_bytes(true, (uint32_t)widest) : 0},
    };
    for (size_t i = 0; i < QR_COUNT(wanted); i++) {
        int status = wanted[i].bytes ? qr_buffer_new(d->device, wanted[i].bytes, wanted[i].buffer) : 0;
        if (status) return status;
    }
    d->host_status = calloc(rows, sizeof(uint32_t));
    d->host_status_last = calloc(lanes, sizeof(uint32_t));
    d->host_rows = calloc(lanes, sizeof(uint32_t));
    if (!d->logits.host) d->host_logits = calloc(lanes * a->vocabulary, sizeof(float));
    return d->host_status && d->host_status_last && d->host_rows && (d->logits.host || d->host_logits) ? 0 : -QR_E_MEMORY;
}

static int group_inputs_new(qr_decoder_t *d)
{
    uint64_t rows = d->config.rows_max, lanes = d->config.lanes_max;
    int status = 0;
    for (uint32_t g = 0; g < d->layout.group_count && !status; g++) {
        group_inputs_t *in = &d->groups[g];
        struct {
            qr_buffer_t *buffer;
            uint64_t count;
        } wanted[] = {
            {&in->slots, rows},
            {&in->page_offsets, lanes + 1},
            {&in->first_blocks, lanes},
            {&in->page_table, lanes * context_blocks(d)},
            {&in->copy_from, lanes * COPIES_PER_LANE},
            {&in->copy_to, lanes * COPIES_PER_LANE},
            {&in->copy_rows, lanes * COPIES_PER_LANE},
        };
        for (size_t i = 0; i < QR_COUNT(wanted) && !status; i++) status = qr_buffer_new(d->device, wanted[i].count * 4, wanted[i].buffer);
    }
    return status;
}

static void decoder_done(qr_decoder_t *d)
{
    qr_buffer_t *buffers[] = {
        &d->tokens,  &d->positions, &d->row_offsets,   &d->logit_rows,    &d->x,      &d->x_last,      &d->y,     &d->y_last, &d->qkv,
        &d->gate_up, &d->rotation,  &d->activation[0], &d->activation[1], &d->status, &d->status_last, &d->logits};
    for (size_t i = 0; i < QR_COUNT(buffers); i++)
        if (buffers[i]->bytes) qr_buffer_done(d->device, buffers[i]);
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) {
        group_inputs_t *in = &d->groups[g];
        qr_buffer_t *of_group[] = {&d->pools[g],    &in->slots,     &in->page_offsets, &in->first_blocks,
                                   &in->page_table, &in->copy_from, &in->copy_to,      &in->copy_rows};
        for (size_t i = 0; i < QR_COUNT(of_group); i++)
            if (of_group[i]->bytes) qr_buffer_done(d->device, of_group[i]);
    }
    free(d->host_status);
    free(d->host_status_last);
    free(d->host_rows);
    free(d->host_logits);
    free(d);
}

static bool page_tokens_fit(uint32_t n) { return n == 8 || n == 16 || n == 32 || (n && n % 64 == 0 && n <= 1024); }

int qr_decoder_new(qr_model_t *model, const qr_decoder_config_t *config, qr_decoder_t **ret_decoder, char *message, size_t message_bytes)
{
    qr_assert(model->device && config->rows_max >= 1 && config->lanes_max >= 1 && config->context_tokens >= 1);
    if (!page_tokens_fit(config->page_tokens))
        return qr_refuse(message, message_bytes, QR_E_INVALID, "--page-tokens %u: 8, 16, 32, 64 or a multiple of 64 is supported",
                         config->page_tokens);
    if (model->arch.layers * LAUNCHES_PER_LAYER_MAX + 16 > QR_LAUNCHES_MAX)
        return qr_refuse(message, message_bytes, QR_E_LIMIT, "%s: llama.block_count %u is too many for one batch of launches", model->path,
                         model->arch.layers);
    qr_decoder_t *d = calloc(1, sizeof *d);
    if (!d) return qr_refuse(message, message_bytes, QR_E_MEMORY, "not enough memory");
    d->model = model;
    d->device = model->device;
    d->config = *config;
    d->layout = model->layout;
    d->layout.page_tokens = config->page_tokens;
    d->layout.context_tokens = config->context_tokens;
    d->q_scale = (float)(0x1.71547652b82fep+0 / sqrt((double)model->arch.dim)); /* log2(e) / sqrt(dim): arithmetic 4 */
    qr_assert(qr_attention_state_resolve(&model->arch, &d->state) == 0);
    pools_size(d);
    int status = pools_new(d, message, message_bytes);
    if (!status) {
        status = scratch_new(d);
        if (!status) status = group_inputs_new(d);
        if (status)
            (void)qr_refuse(message, message_bytes, -status,
                            "memory for batches of %u rows: %s; use a smaller --prefill-tile or --max-lanes", config->rows_max,
                            qr_error_sentence(status));
    }
    if (status) {
        decoder_done(d);
        return status;
    }
    *ret_decoder = d;
    return 0;
}

void qr_decoder_destroy(qr_decoder_t **decoder)
{
    if (*decoder) {
        qr_decoder_abandon(*decoder); /* nothing computes on memory that goes */
        decoder_done(*decoder);
    }
    *decoder = NULL;
}
const qr_layout_t *qr_decoder_layout(const qr_decoder_t *decoder) { return &decoder->layout; }

/* ---- launches ------------------------------------------------------------------------------------------------------------------ */

static void queue(qr_decoder_t *d, qr_launch_t launch)
{
    int status = qr_device_enqueue(d->device, &launch);
    qr_assert(status == 0); /* room for a whole batch was checked when the decoder was made */
}

/* The norm of x as an input for each kind of weight among those given. */
static void queue_norm(qr_decoder_t *d, const qr_buffer_t *x, const qr_buffer_t *norm, const qr_weight_t *weights, uint32_t count,
                       uint32_t rows, const qr_buffer_t *status)
{
    for (uint32_t quantised = 0; quantised < 2; quantised++) {
        bool wanted = false;
        for (uint32_t i = 0; i < count; i++) wanted |= qr_format_quantised(weights[i].format) == (quantised != 0);
        if (!wanted) continue;
        queue(d, (qr_launch_t){.kernel = QR_KERNEL_norm,
                               .buffers = {x, norm, &d->activation[quantised], status},
                               .sizes = {rows, d->model->arch.hidden, quantised},
                               .scalars = {d->model->arch.norm_eps}});
    }
}

static void queue_product(qr_decoder_t *d, const qr_weight_t *weight, const qr_buffer_t *y, uint32_t rows, uint32_t stride, uint32_t offset,
                          bool accumulate)
{
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_product,
                           .buffers = {&d->activation[qr_format_quantised(weight->format)], &weight->buffer, y},
                           .sizes = {rows, weight->columns, weight->rows, weight->format, stride, offset, accumulate}});
}

/* Matrices beside each other in one output row. */
static void queue_products(qr_decoder_t *d, const qr_weight_t *weights, uint32_t count, const qr_buffer_t *y, uint32_t rows,
                           uint32_t stride)
{
    uint32_t offset = 0;
    for (uint32_t i = 0; i < count; i++) {
        queue_product(d, &weights[i], y, rows, stride, offset, false);
        offset += weights[i].rows;
    }
    qr_assert(offset == stride);
}

static void queue_copies(qr_decoder_t *d, const qr_batch_t *batch)
{
    for (uint32_t layer = 0; layer < d->model->arch.layers; layer++) {
        uint32_t g = d->state.group_of[layer];
        if (!batch->groups[g].copy_count) continue;
        for (uint32_t member = 0; member < QR_SLABS_COUNT; member++)
            queue(d, (qr_launch_t){.kernel = QR_KERNEL_page_copy,
                                   .buffers = {&d->pools[g], &d->groups[g].copy_from, &d->groups[g].copy_to, &d->groups[g].copy_rows},
                                   .offsets = {member_offset(d, layer, member)},
                                   .sizes = {batch->groups[g].copy_count, d->config.page_tokens, d->state.slabs[member].row_values}});
    }
}

static void queue_attention(qr_decoder_t *d, uint32_t layer)
{
    const qr_arch_t *a = &d->model->arch;
    const qr_layer_weights_t *w = &d->model->layers[layer];
    uint32_t g = d->state.group_of[layer];
    const group_inputs_t *in = &d->groups[g];
    uint64_t k = member_offset(d, layer, 0), v = member_offset(d, layer, 1);
    queue_norm(d, &d->x, &w->attention_norm, w->qkv, w->qkv_count, d->row_count, &d->status);
    queue_products(d, w->qkv, w->qkv_count, &d->qkv, d->row_count, (a->heads + 2 * a->kv_heads) * a->dim);
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_rope_append,
                           .buffers = {&d->qkv, &d->rotation, &in->slots, &d->pools[g], &d->pools[g], &d->status},
                           .offsets = {0, 0, 0, k, v, 0},
                           .sizes = {d->row_count, a->heads, a->kv_heads, a->dim, a->rope_pairing},
                           .scalars = {d->q_scale}});
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_attention,
                           .buffers = {&d->qkv, &d->pools[g], &d->pools[g], &d->positions, &d->row_offsets, &in->page_offsets,
                                       &in->first_blocks, &in->page_table, &d->y, &d->status},
                           .offsets = {0, k, v},
                           .sizes = {d->row_count, a->heads, a->kv_heads, a->dim, d->lane_count, d->config.page_tokens,
                                     a->window[layer] - (QR_MUTANT(410) && a->window[layer]), d->longest[g]}});
}

static void queue_gather(qr_decoder_t *d, const qr_buffer_t *from, const qr_buffer_t *to, uint32_t width)
{
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_gather, .buffers = {from, &d->logit_rows, to}, .sizes = {d->logit_count, width}});
}

/* Everything behind attention of one layer, over any set of rows. */
static void queue_feed_forward(qr_decoder_t *d, uint32_t layer, const qr_buffer_t *x, const qr_buffer_t *y, uint32_t rows,
                               const qr_buffer_t *status)
{
    const qr_arch_t *a = &d->model->arch;
    const qr_layer_weights_t *w = &d->model->layers[layer];
    uint32_t output = qr_format_quantised(w->output.format), down = qr_format_quantised(w->down.format);
    queue(d, (qr_launch_t){
                 .kernel = QR_KERNEL_quantise, .buffers = {y, &d->activation[output], status}, .sizes = {rows, a->heads * a->dim, output}});
    queue_product(d, &w->output, x, rows, a->hidden, 0, true);
    queue_norm(d, x, &w->feed_forward_norm, w->gate_up, w->gate_up_count, rows, status);
    queue_products(d, w->gate_up, w->gate_up_count, &d->gate_up, rows, 2 * a->feed_forward);
    queue(d, (qr_launch_t){
                 .kernel = QR_KERNEL_gate, .buffers = {&d->gate_up, &d->activation[down], status}, .sizes = {rows, a->feed_forward, down}});
    queue_product(d, &w->down, x, rows, a->hidden, 0, true);
}

static void queue_batch(qr_decoder_t *d, const qr_batch_t *batch)
{
    const qr_arch_t *a = &d->model->arch;
    if (!QR_MUTANT(408)) queue_copies(d, batch);
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_rope_table,
                           .buffers = {&d->positions, &d->model->rope_steps, &d->rotation},
                           .sizes = {d->row_count, a->dim / 2}});
    queue(d, (qr_launch_t){.kernel = QR_KERNEL_embed,
                           .buffers = {&d->tokens, &d->model->embedding.buffer, &d->x},
                           .sizes = {d->row_count, a->hidden, a->vocabulary, d->model->embedding.format}});
    const qr_buffer_t *x = &d->x, *y = &d->y, *status = &d->status;
    uint32_t rows = d->row_count;
    for (uint32_t layer = 0; layer < a->layers; layer++) {
        queue_attention(d, layer);
        if (layer + 1 == a->layers) { /* from here on only the rows whose logits are wanted */
            if (d->logit_count == 0) return;
            if (d->trimmed) {
                x = &d->x_last, y = &d->y_last, status = &d->status_last, rows = d->logit_count;
                queue_gather(d, &d->x, x, a->hidden);
                queue_gather(d, &d->y, y, a->heads * a->dim);
            }
        }
        queue_feed_forward(d, layer, x, y, rows, status);
    }
    queue_norm(d, x, &d->model->final_norm, &d->model->head, 1, rows, status);
    queue_product(d, &d->model->head, &d->logits, rows, a->vocabulary, 0, false);
}

/* ---- a batch ---------------------------------------------------------------------------------------------------------------------- */

static void rows_check(const qr_decoder_t *d, const qr_batch_t *b)
{
    qr_assert(b->row_count >= 1 && b->row_count <= d->config.rows_max && b->lane_count >= 1 && b->lane_count <= d->config.lanes_max);
    qr_assert(b->logit_count <= d->config.lanes_max && b->row_offsets[0] == 0 && b->row_offsets[b->lane_count] == b->row_count);
    for (uint32_t i = 0; i < b->lane_count; i++) qr_assert(b->row_offsets[i] <= b->row_offsets[i + 1]);
    for (uint32_t r = 0; r < b->row_count; r++)
        qr_assert(b->tokens[r] < d->model->arch.vocabulary && b->positions[r] < d->config.context_tokens);
    for (uint32_t i = 0; i < b->logit_count; i++)
        qr_assert(b->logit_rows[i] < b->row_count && (i == 0 || b->logit_rows[i] > b->logit_rows[i - 1]));
}

/* Every key a row attends must have a page in its lane's table. */
static void group_check(const qr_decoder_t *d, const qr_batch_t *b, uint32_t g)
{
    const qr_group_t *group = &d->layout.groups[g];
    const uint32_t *offsets = b->groups[g].page_offsets, tokens = d->config.page_tokens;
    qr_assert(offsets[0] == 0 && b->groups[g].copy_count <= d->config.lanes_max * COPIES_PER_LANE);
    qr_assert(offsets[b->lane_count] <= d->config.lanes_max * context_blocks(d));
    for (uint32_t lane = 0; lane < b->lane_count; lane++) {
        qr_assert(offsets[lane] <= offsets[lane + 1]);
        uint64_t first = b->groups[g].first_blocks[lane], end = first + (offsets[lane + 1] - offsets[lane]);
        for (uint32_t r = b->row_offsets[lane]; r < b->row_offsets[lane + 1]; r++) {
            uint32_t p = b->positions[r], oldest = group->window && p >= group->window ? p - (group->window - 1) : 0;
            int32_t slot = b->groups[g].slots[r];
            qr_assert(oldest / tokens >= first && p / tokens < end);
            qr_assert(slot >= -1 && (slot < 0 || (uint32_t)slot / tokens < group->pages));
        }
    }
    for (uint32_t i = 0; i < offsets[b->lane_count]; i++) qr_assert(b->groups[g].pages[i] < group->pages);
    for (uint32_t i = 0; i < b->groups[g].copy_count; i++)
        qr_assert(b->groups[g].copy_from[i] < group->pages && b->groups[g].copy_to[i] < group->pages &&
                  b->groups[g].copy_rows[i] <= tokens);
}

static int column_write(qr_decoder_t *d, qr_buffer_t *buffer, const void *column, uint32_t count)
{
    return count ? qr_buffer_write(d->device, buffer, 0, column, (uint64_t)count * 4) : 0;
}

static int batch_write(qr_decoder_t *d, const qr_batch_t *b)
{
    memset(d->host_status, 0, b->row_count * sizeof(uint32_t));
    memset(d->host_status_last, 0, b->logit_count * sizeof(uint32_t));
    qr_copy(d->host_rows, b->logit_rows, b->logit_count * sizeof(uint32_t));
    int status = column_write(d, &d->tokens, b->tokens, b->row_count);
    status = status ? status : column_write(d, &d->positions, b->positions, b->row_count);
    status = status ? status : column_write(d, &d->row_offsets, b->row_offsets, b->lane_count + 1);
    status = status ? status : column_write(d, &d->logit_rows, b->logit_rows, b->logit_count);
    status = status ? status : column_write(d, &d->status, d->host_status, b->row_count);
    status = status ? status : column_write(d, &d->status_last, d->host_status_last, b->logit_count);
    for (uint32_t g = 0; g < d->layout.group_count && !status; g++) {
        group_inputs_t *in = &d->groups[g];
        status = column_write(d, &in->slots, b->groups[g].slots, b->row_count);
        status = status ? status : column_write(d, &in->page_offsets, b->groups[g].page_offsets, b->lane_count + 1);
        status = status ? status : column_write(d, &in->first_blocks, b->groups[g].first_blocks, b->lane_count);
        status = status ? status : column_write(d, &in->page_table, b->groups[g].pages, b->groups[g].page_offsets[b->lane_count]);
        status = status ? status : column_write(d, &in->copy_from, b->groups[g].copy_from, b->groups[g].copy_count);
        status = status ? status : column_write(d, &in->copy_to, b->groups[g].copy_to, b->groups[g].copy_count);
        status = status ? status : column_write(d, &in->copy_rows, b->groups[g].copy_rows, b->groups[g].copy_count);
    }
    return status;
}

int qr_decoder_submit(qr_decoder_t *decoder, const qr_batch_t *batch)
{
    qr_assert(!decoder->working);
    rows_check(decoder, batch);
    for (uint32_t g = 0; g < decoder->layout.group_count; g++) group_check(decoder, batch, g);
    int status = batch_write(decoder, batch);
    if (status) return status;
    decoder->row_count = batch->row_count;
    decoder->lane_count = batch->lane_count;
    decoder->logit_count = batch->logit_count;
    decoder->trimmed = batch->logit_count < batch->row_count;
    uint32_t last = 0;
    for (uint32_t r = 0; r < batch->row_count; r++) last = qr_max_u32(last, batch->positions[r]);
    for (uint32_t g = 0; g < decoder->layout.group_count; g++) {
        uint32_t window = decoder->layout.groups[g].window;
        decoder->longest[g] = window ? qr_min_u32(window, last + 1) : last + 1;
    }
    queue_batch(decoder, batch);
    decoder->working = true;
    return 0;
}

/* A row is sound when no value of its sampled logits is infinite or NaN; rows of the matrix behind the tokens are never looked at. */
static bool logits_finite(const float *logits, uint32_t count)
{
    uint32_t worst = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], 4);
        bits &= 0x7f800000u;
        worst = bits > worst ? bits : worst;
    }
    return worst < 0x7f800000u;
}

static int batch_finish(qr_decoder_t *d)
{
    uint64_t vocabulary = d->model->arch.vocabulary;
    int status = qr_buffer_read(d->device, &d->status, 0, d->host_status, (uint64_t)d->row_count * 4);
    if (!status && d->trimmed && d->logit_count)
        status = qr_buffer_read(d->device, &d->status_last, 0, d->host_status_last, (uint64_t)d->logit_count * 4);
    if (!status && d->host_logits && d->logit_count)
        status = qr_buffer_read(d->device, &d->logits, 0, d->host_logits, d->logit_count * vocabulary * 4);
    if (status) return status;
    for (uint32_t r = 0; r < d->row_count; r++) d->host_status[r] = d->host_status[r] ? QR_E_NUMERIC : 0;
    for (uint32_t i = 0; i < d->logit_count; i++) {
        bool sound = logits_finite(qr_decoder_logits(d, i), d->model->vocabulary.count);
        if ((!sound || (d->trimmed && d->host_status_last[i])) && !QR_MUTANT(409)) d->host_status[d->host_rows[i]] = QR_E_NUMERIC;
    }
    return 0;
}

int qr_decoder_advance(qr_decoder_t *decoder, uint64_t budget_us)
{
    if (!decoder->working) return 0;
    int status = qr_device_advance(decoder->device, budget_us);
    if (status > 0) return 1;
    decoder->working = false;
    return status ? status : batch_finish(decoder);
}

void qr_decoder_abandon(qr_decoder_t *decoder)
{
    if (decoder->working) qr_device_abandon(decoder->device);
    decoder->working = false;
}

const float *qr_decoder_logits(const qr_decoder_t *decoder, uint32_t index)
{
    qr_assert(!decoder->working && index < decoder->logit_count);
    const float *logits = decoder->host_logits ? decoder->host_logits : (const float *)(const void *)decoder->logits.host;
    return logits + (uint64_t)index * decoder->model->arch.vocabulary;
}
uint32_t qr_decoder_row_status(const qr_decoder_t *decoder, uint32_t row)
{
    qr_assert(!decoder->working && row < decoder->row_count);
    return decoder->host_status[row];
}
