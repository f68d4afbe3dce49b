/* decoder.h - turns one ragged batch into launches over the page pools.
 *
 * DC1. A batch is a transaction of its caller: nothing is published here; failed lanes are reported, others are untouched.
 * DC2. Copies run before appends, appends before attention, on the one queue of the device.
 * DC3. Pools are made once and touched at start; unwritten rows hold NaN when `poison` is set. */
#ifndef QR_DECODER_H
#define QR_DECODER_H

#include "model/model.h"

typedef struct qr_decoder qr_decoder_t;

typedef struct qr_decoder_config {
    uint32_t pages[QR_GROUPS_MAX]; /* per group; 0: the default pool */
    uint32_t page_tokens;
    uint32_t rows_max; /* most rows of one batch, <= QR_BATCH_ROWS_MAX */
    uint32_t lanes_max;
    uint32_t context_tokens;
    bool poison;
} qr_decoder_config_t;

/* One ragged batch; every array is the caller's and stays until the batch is done. */
typedef struct qr_batch {
    uint32_t row_count, lane_count;
    const uint32_t *tokens;      /* [rows] ids below arch.vocabulary */
    const uint32_t *positions;   /* [rows] */
    const uint32_t *row_offsets; /* [lanes + 1] */
    uint32_t logit_count;
    const uint32_t *logit_rows; /* [logit_count] rows whose logits are wanted, ascending */
    struct {
        const uint32_t *page_offsets; /* [lanes + 1] */
        const uint32_t *first_blocks; /* [lanes] */
        const uint32_t *pages;        /* physical indexes */
        const int32_t *slots;         /* [rows] page * page_tokens + row, -1 idle */
        uint32_t copy_count;
        const uint32_t *copy_from, *copy_to, *copy_rows; /* [copy_count] pages and rows */
    } groups[QR_GROUPS_MAX];
} qr_batch_t;

int qr_decoder_new(qr_model_t *model, const qr_decoder_config_t *config, qr_decoder_t **ret_decoder, char *message, size_t message_bytes);
void qr_decoder_destroy(qr_decoder_t **decoder);
/* The layout with pool sizes as made. */
const qr_layout_t *qr_decoder_layout(const qr_decoder_t *decoder);
/* Checks the batch against the pools (asserts: it is ours) and queues it. One at a time. 0 or -QR_E_*. */
int qr_decoder_submit(qr_decoder_t *decoder, const qr_batch_t *batch);
/* Works for about budget_us (0: to the end). 1: still working, 0: done, negative: the batch failed as a whole. */
int qr_decoder_advance(qr_decoder_t *decoder, uint64_t budget_us);
/* Gives the submitted batch up (how soon: qr_device_abandon); rows it would have appended hold anything. Without one: nothing. */
void qr_decoder_abandon(qr_decoder_t *decoder);
/* After done: logits of logit_rows[index], f32[vocabulary]; valid until the next submit. */
const float *qr_decoder_logits(const qr_decoder_t *decoder, uint32_t index);
/* After done: 0 or QR_E_NUMERIC per row. */
uint32_t qr_decoder_row_status(const qr_decoder_t *decoder, uint32_t row);
/* Tests: where row `row` of page `page` of member `member` (0 key, 1 value) of a layer lies, fp16[kv_heads * dim]. cpu device only. */
uint16_t *qr_decoder_page_row(qr_decoder_t *decoder, uint32_t layer, uint32_t member, uint32_t page, uint32_t row);

/* Members of a group, as a chunk file orders them: by slab (key, value), then by layer; and the bytes of one row of one member. */
uint32_t qr_decoder_member_count(const qr_decoder_t *decoder, uint32_t group);
uint32_t qr_decoder_row_bytes(const qr_decoder_t *decoder);
/* Where the rows of a member lie: row r of page p at (p * page_tokens + r) * row bytes. NULL: the device's memory is not the host's.
 * Only for pages that no batch in flight names (reading: rows that are committed). */
uint8_t *qr_decoder_member_rows(qr_decoder_t *decoder, uint32_t group, uint32_t member);

#endif
