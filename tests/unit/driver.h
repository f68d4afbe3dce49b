/* driver.h - runs token sequences straight on a decoder, for tests and benches: pages in random order, any tile, any company.
 * A sequence owns blocks of pages of every group; forks may share them. Aborts on errors that a test does not expect. */
#ifndef QR_TEST_DRIVER_H
#define QR_TEST_DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/prng.h"
#include "model/decoder.h"

typedef struct sequence {
    const uint32_t *tokens;
    uint32_t done;                  /* rows computed */
    uint32_t *pages[QR_GROUPS_MAX]; /* [blocks] physical page of each block */
} sequence_t;

typedef struct driver {
    qr_model_t *model;
    qr_decoder_t *decoder;
    uint32_t page_tokens, blocks, rows_max, lanes_max;
    uint32_t *free_pages[QR_GROUPS_MAX], free_count[QR_GROUPS_MAX];
} driver_t;

typedef struct span {
    sequence_t *sequence;
    uint32_t rows;
} span_t;

static inline void driver_must(int status, const char *what)
{
    if (status == 0) return;
    fprintf(stderr, "%s: %s\n", what, qr_error_name(status));
    abort();
}

static inline void driver_init(driver_t *d, qr_model_t *model, uint32_t page_tokens, uint32_t context, uint32_t sequences,
                               uint32_t rows_max, uint32_t lanes_max, bool poison, uint64_t seed)
{
    char message[512] = "";
    *d = (driver_t){.model = model, .page_tokens = page_tokens, .rows_max = rows_max, .lanes_max = lanes_max};
    d->blocks = (uint32_t)qr_div_up(context, page_tokens);
    qr_decoder_config_t config = {
        .page_tokens = page_tokens, .rows_max = rows_max, .lanes_max = lanes_max, .context_tokens = context, .poison = poison};
    qr_prng_t prng;
    qr_prng_init(&prng, seed);
    for (uint32_t g = 0; g < model->layout.group_count; g++) {
        uint32_t pages = config.pages[g] = d->free_count[g] = sequences * d->blocks;
        d->free_pages[g] = malloc(pages * sizeof(uint32_t));
        for (uint32_t i = 0; i < pages; i++) { /* shuffled */
            uint32_t j = (uint32_t)qr_prng_below(&prng, i + 1);
            d->free_pages[g][i] = d->free_pages[g][j];
            d->free_pages[g][j] = i;
        }
    }
    driver_must(qr_decoder_new(model, &config, &d->decoder, message, sizeof message), message);
}
static inline void driver_done(driver_t *d)
{
    qr_decoder_destroy(&d->decoder);
    for (uint32_t g = 0; g < QR_GROUPS_MAX; g++) free(d->free_pages[g]);
}

static inline void sequence_init(driver_t *d, sequence_t *s, const uint32_t *tokens)
{
    *s = (sequence_t){.tokens = tokens};
    for (uint32_t g = 0; g < d->model->layout.group_count; g++) {
        s->pages[g] = malloc(d->blocks * sizeof(uint32_t));
        for (uint32_t i = 0; i < d->blocks; i++) {
            qr_assert(d->free_count[g]);
            s->pages[g][i] = d->free_pages[g][--d->free_count[g]];
        }
    }
}
static inline void sequence_done(driver_t *d, sequence_t *s)
{
    for (uint32_t g = 0; g < d->model->layout.group_count; g++) {
        for (uint32_t i = 0; i < d->blocks; i++) d->free_pages[g][d->free_count[g]++] = s->pages[g][i];
        free(s->pages[g]);
    }
}

/* Computes the next rows of each span in one batch. logits[lane]: NULL or f32[rows][vocabulary] for all rows of the span.
 * fork[lane] (may be NULL): the span's sequence begins as a copy of that sequence's first `done` rows: whole pages shared by number, the
 * partial one copied in this batch. ret_status: NULL or u32[rows of the batch]. */
static inline void driver_step(driver_t *d, const span_t *spans, uint32_t lanes, float *const *logits, sequence_t *const *forks,
                               uint32_t *ret_status)
{
    uint32_t rows = 0, logit_count = 0, groups = d->model->layout.group_count, vocabulary = d->model->arch.vocabulary;
    for (uint32_t l = 0; l < lanes; l++) rows += spans[l].rows;
    uint32_t *tokens = calloc(rows, 4), *positions = calloc(rows, 4), *row_offsets = calloc(lanes + 1, 4), *logit_rows = calloc(rows, 4);
    uint32_t *first = calloc(lanes, 4), *page_offsets[QR_GROUPS_MAX] = {0}, *pages[QR_GROUPS_MAX] = {0}, *copies[QR_GROUPS_MAX] = {0};
    int32_t *slots[QR_GROUPS_MAX] = {0};
    qr_batch_t batch = {.row_count = rows,
                        .lane_count = lanes,
                        .tokens = tokens,
                        .positions = positions,
                        .row_offsets = row_offsets,
                        .logit_rows = logit_rows};
    for (uint32_t g = 0; g < groups; g++) {
        page_offsets[g] = calloc(lanes + 1, 4), pages[g] = calloc((size_t)lanes * d->blocks, 4), slots[g] = calloc(rows, 4),
        copies[g] = calloc(3u * lanes, 4);
        batch.groups[g].page_offsets = page_offsets[g], batch.groups[g].first_blocks = first, batch.groups[g].pages = pages[g];
        batch.groups[g].slots = slots[g];
        batch.groups[g].copy_from = copies[g], batch.groups[g].copy_to = copies[g] + lanes,
        batch.groups[g].copy_rows = copies[g] + 2 * lanes;
    }
    for (uint32_t l = 0, at = 0; l < lanes; l++) {
        sequence_t *s = spans[l].sequence, *from = forks ? forks[l] : NULL;
        uint32_t used = (uint32_t)qr_div_up(s->done + spans[l].rows, d->page_tokens);
        for (uint32_t g = 0; g < groups; g++) {
            if (from) { /* share whole pages, copy the tail */
                uint32_t whole = s->done / d->page_tokens, tail = s->done % d->page_tokens, n = batch.groups[g].copy_count;
                for (uint32_t i = 0; i < whole; i++) s->pages[g][i] = from->pages[g][i];
                if (tail) {
                    copies[g][n] = from->pages[g][whole], copies[g][lanes + n] = s->pages[g][whole], copies[g][2 * lanes + n] = tail;
                    batch.groups[g].copy_count++;
                }
            }
            page_offsets[g][l + 1] = page_offsets[g][l] + used;
            for (uint32_t i = 0; i < used; i++) pages[g][page_offsets[g][l] + i] = s->pages[g][i];
        }
        for (uint32_t r = 0; r < spans[l].rows; r++, at++) {
            uint32_t p = s->done + r;
            tokens[at] = s->tokens[p];
            positions[at] = p;
            for (uint32_t g = 0; g < groups; g++)
                slots[g][at] = (int32_t)(s->pages[g][p / d->page_tokens] * d->page_tokens + p % d->page_tokens);
            if (logits && logits[l]) logit_rows[logit_count++] = at;
        }
        row_offsets[l + 1] = at;
    }
    batch.logit_count = logit_count;
    driver_must(qr_decoder_submit(d->decoder, &batch), "submit");
    int status;
    while ((status = qr_decoder_advance(d->decoder, 0)) > 0) {
    }
    driver_must(status, "advance");
    for (uint32_t l = 0, at = 0; l < lanes; l++) {
        for (uint32_t r = 0; r < spans[l].rows && logits && logits[l]; r++, at++)
            memcpy(logits[l] + (size_t)r * vocabulary, qr_decoder_logits(d->decoder, at), vocabulary * sizeof(float));
        spans[l].sequence->done += spans[l].rows;
    }
    for (uint32_t r = 0; ret_status && r < rows; r++) ret_status[r] = qr_decoder_row_status(d->decoder, r);
    free(tokens), free(positions), free(row_offsets), free(logit_rows), free(first);
    for (uint32_t g = 0; g < groups; g++) free(page_offsets[g]), free(pages[g]), free(slots[g]), free(copies[g]);
}

#endif
