/* executor.c - owns the lanes' page tables and samplers, and the queue of batches of one device.
 *
 *   scheduler  -- lane_open -->   executor  -- lane_opened -->
 *   scheduler  -- batch_run -->   executor  -- batch_done | batch_failed -->   in the order asked
 *   scheduler  -- lane_close -->  executor  -- lane_closed -->
 *   scheduler  -- probe -->       executor  -- probe_done -->                  from the handler
 *
 * E1. Nothing is computed in a handler: batch_run only queues. `work` advances the device, or draws tokens, for about a millisecond.
 * E2. At most QR_BATCHES_IN_FLIGHT batches are held; one runs. QR_TOKEN_PREVIOUS is looked up when its batch starts, which is after
 *     the batch before has drawn.
 * E3. A lane fails alone: its status says why, nothing of it counts, other lanes' rows never see it.
 * E4. Every page a batch reads or writes is in its lane's table, which lane_open and window pages fill; a lane that lacks one is
 *     answered with a status, never run past its table.
 * E5. The warm-up appends nowhere (slot -1) and copies an unwritten page onto an unwritten page: the pool stays as it was made.
 * E6. Stop is heard between two slices: batches in hand are answered failed and their work is given up (on opencl what was queued of the
 *     running one still ends first). */
#include "actors/io/executor.h"

#include "actors/io/activity.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"
#include "base/text.h"
#include "model/decoder.h"
#include "model/sampler.h"

#include <time.h>

enum { NO_PAGE = 0xffffffffu, WARM_ROWS = 20, GAP_US_MAX = 5000, COPIES_PER_LANE = 4 /* of one group, as the decoder has room */ };
enum phase { PHASE_IDLE, PHASE_COMPUTE, PHASE_DRAW };

typedef struct lane {
    uint64_t handle; /* 0 = free */
    qr_sampling_t sampling;
    uint32_t logprobs;
    uint32_t last_token; /* what it drew last, QR_TOKEN_NONE before that and after a failure */
} lane_t;

typedef struct copy {
    uint32_t group, from, to, rows;
} copy_t;

typedef struct window {
    uint64_t lane; /* its handle: the lane may close, and another open in its place, before the batch starts */
    uint32_t group, block, page, reserved;
} window_t;

/* A batch as asked, kept until it starts. */
typedef struct asked {
    uint64_t id;
    uint32_t lane_count, row_count, copy_count, window_count;
    uint32_t lanes[QR_LANES_MAX], starts[QR_LANES_MAX], counts[QR_LANES_MAX], flags[QR_LANES_MAX];
    copy_t copies[QR_EXECUTOR_COPIES_MAX];
    uint32_t *tokens;  /* [rows_max] */
    window_t *windows; /* [windows_max] */
} asked_t;

typedef struct executor {
    uint64_t address, scheduler, start_by;
    struct qr_activity *activity; /* or NULL */
    uint64_t batches, failed, batch_us, plan_us, started_us, ended_us;
    uint32_t lanes_max, rows_max, blocks_max, windows_max, context, vocabulary, page_tokens, group_count, reserved;
    uint32_t phase, queued, running, draw_lane, logit_next, device_failed, warming;
    asked_t asked[QR_BATCHES_IN_FLIGHT]; /* asked[0] runs or is next */
    lane_t lanes[QR_LANES_MAX];
    uint32_t statuses[QR_LANES_MAX], drawn[QR_LANES_MAX], logprobs[QR_LANES_MAX];
    qr_batch_t batch;
    uint32_t row_offsets[QR_LANES_MAX + 1], logit_rows[QR_LANES_MAX + 1];
    uint32_t page_offsets[QR_GROUPS_MAX][QR_LANES_MAX + 1], first_blocks[QR_GROUPS_MAX][QR_LANES_MAX];
    uint32_t copy_from[QR_GROUPS_MAX][QR_EXECUTOR_COPIES_MAX], copy_to[QR_GROUPS_MAX][QR_EXECUTOR_COPIES_MAX];
    uint32_t copy_rows[QR_GROUPS_MAX][QR_EXECUTOR_COPIES_MAX];
    /* memory behind this struct */
    uint32_t *tables;               /* [lanes_max][group_count][blocks_max] physical pages, NO_PAGE */
    uint32_t *tokens, *positions;   /* [rows_max] of the running batch */
    uint32_t *pages[QR_GROUPS_MAX]; /* [lanes_max * blocks_max] */
    int32_t *slots[QR_GROUPS_MAX];  /* [rows_max] */
    void *scratch;                  /* of the sampler */
} executor_t;

static uint64_t clock_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint32_t *table_of(const executor_t *self, uint32_t lane, uint32_t group)
{
    return self->tables + ((uint64_t)lane * self->group_count + group) * self->blocks_max;
}

/* Index of an open lane, UINT32_MAX if the handle is none. */
static uint32_t lane_find(const executor_t *self, uint64_t handle)
{
    uint32_t i = qr_handle_index(handle);
    return i < self->lanes_max && handle != 0 && self->lanes[i].handle == handle ? i : UINT32_MAX;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------------------ */

/* 0, or why the lane cannot be opened. */
static uint32_t open_reason(const executor_t *self, const qr_given_t *given, const qr_lane_open_t *open)
{
    uint32_t index = qr_handle_index(open->lane);
    uint64_t at = 0;
    if (qr_handle_generation(open->lane) == 0 || index >= self->lanes_max) return QR_E_LIMIT;
    if (self->lanes[index].handle && !QR_MUTANT(171)) return QR_E_IN_USE;
    if (open->group_counts.count != self->group_count || open->first_blocks.count != self->group_count) return QR_E_PROTOCOL;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint64_t count = open->group_counts.data[g];
        if (open->first_blocks.data[g] + count > self->blocks_max || count > open->pages.count - at) return QR_E_LIMIT;
        for (uint64_t end = at + count; at < end; at++)
            if (qr_handle_index(open->pages.data[at]) >= given->layout.groups[g].pages) return QR_E_LIMIT;
    }
    return at == open->pages.count ? 0 : QR_E_PROTOCOL;
}

static void fill_tables(executor_t *self, uint32_t lane, const qr_lane_open_t *open)
{
    uint64_t at = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t *table = table_of(self, lane, g);
        for (uint32_t b = 0; b < self->blocks_max; b++) table[b] = NO_PAGE;
        for (uint32_t b = 0; b < open->group_counts.data[g]; b++)
            table[open->first_blocks.data[g] + b] = qr_handle_index(open->pages.data[at++]);
    }
}

static void on_lane_open(executor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_lane_open_t *open = &message->body.lane_open;
    qr_lane_opened_t opened = {.lane = open->lane, .reason = open_reason(self, given, open)};
    if (opened.reason == 0) {
        uint32_t index = qr_handle_index(open->lane);
        lane_t *lane = &self->lanes[index];
        memset(lane, 0, sizeof *lane);
        lane->handle = open->lane;
        lane->sampling.temperature = float_of(open->temperature_bits);
        lane->sampling.top_p = float_of(open->top_p_bits);
        lane->sampling.min_p = float_of(open->min_p_bits);
        lane->sampling.top_k = open->top_k;
        lane->sampling.seed = open->seed;
        lane->logprobs = open->logprobs;
        lane->last_token = QR_TOKEN_NONE;
        fill_tables(self, index, open);
    }
    qr_send(outbox, message->from, lane_opened, &opened);
}

static bool lane_is_queued(const executor_t *self, uint32_t lane)
{
    for (uint32_t b = 0; b < self->queued; b++)
        for (uint32_t i = 0; i < self->asked[b].lane_count; i++)
            if (self->asked[b].lanes[i] == lane) return true;
    return false;
}

static void on_lane_close(executor_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint32_t lane = lane_find(self, message->body.lane_close.lane);
    qr_lane_closed_t closed = {.lane = message->body.lane_close.lane};
    if (lane == UINT32_MAX)
        closed.reason = QR_E_STALE;
    else if (lane_is_queued(self, lane))
        closed.reason = QR_E_IN_USE;
    else
        self->lanes[lane].handle = 0;
    qr_send(outbox, message->from, lane_closed, &closed);
}

/* ---- asking for a batch ----------------------------------------------------------------------------------------------------- */

static bool columns_agree(const executor_t *self, const qr_batch_run_t *run)
{
    uint64_t lanes = run->lanes.count, rows = 0, copies = run->copy_sources.count, windows = run->window_lanes.count;
    if (lanes == 0 || lanes > self->lanes_max || run->starts.count != lanes || run->row_counts.count != lanes || run->flags.count != lanes)
        return false;
    for (uint64_t i = 0; i < lanes; i++) {
        uint64_t count = run->row_counts.data[i];
        if (count == 0 || count > self->rows_max || run->starts.data[i] + count > self->context) return false;
        if (lane_find(self, run->lanes.data[i]) == UINT32_MAX) return false;
        rows += count;
    }
    if (rows > self->rows_max || run->tokens.count != rows) return false;
    if (copies > QR_EXECUTOR_COPIES_MAX || run->copy_targets.count != copies || run->copy_rows.count != copies ||
        run->copy_groups.count != copies)
        return false;
    return windows <= self->windows_max && run->window_groups.count == windows && run->window_blocks.count == windows &&
           run->window_pages.count == windows;
}

static bool references_fit(const executor_t *self, const qr_given_t *given, const qr_batch_run_t *run)
{
    uint32_t copies[QR_GROUPS_MAX] = {0};
    for (uint64_t i = 0; i < run->copy_sources.count; i++) {
        uint32_t group = run->copy_groups.data[i];
        if (group >= self->group_count || ++copies[group] > self->lanes_max * COPIES_PER_LANE || run->copy_rows.data[i] > self->page_tokens)
            return false;
        uint32_t pages = given->layout.groups[group].pages;
        if (qr_handle_index(run->copy_sources.data[i]) >= pages || qr_handle_index(run->copy_targets.data[i]) >= pages) return false;
    }
    for (uint64_t i = 0; i < run->window_lanes.count; i++) {
        uint32_t group = run->window_groups.data[i];
        if (group >= self->group_count || run->window_blocks.data[i] >= self->blocks_max) return false;
        if (qr_handle_index(run->window_pages.data[i]) >= given->layout.groups[group].pages) return false;
    }
    return true;
}

static void keep_asked(executor_t *self, asked_t *asked, const qr_batch_run_t *run)
{
    asked->id = run->batch;
    asked->lane_count = (uint32_t)run->lanes.count;
    asked->row_count = (uint32_t)run->tokens.count;
    for (uint32_t i = 0; i < asked->lane_count; i++) asked->lanes[i] = lane_find(self, run->lanes.data[i]);
    qr_copy(asked->starts, run->starts.data, asked->lane_count * sizeof(uint32_t));
    qr_copy(asked->counts, run->row_counts.data, asked->lane_count * sizeof(uint32_t));
    qr_copy(asked->flags, run->flags.data, asked->lane_count * sizeof(uint32_t));
    qr_copy(asked->tokens, run->tokens.data, asked->row_count * sizeof(uint32_t));
    if (QR_MUTANT(170) && asked->tokens[0] == QR_TOKEN_PREVIOUS) asked->tokens[0] = self->lanes[asked->lanes[0]].last_token;
    asked->copy_count = (uint32_t)run->copy_sources.count;
    for (uint32_t i = 0; i < asked->copy_count; i++)
        asked->copies[i] = (copy_t){run->copy_groups.data[i], qr_handle_index(run->copy_sources.data[i]),
                                    qr_handle_index(run->copy_targets.data[i]), run->copy_rows.data[i]};
    asked->window_count = (uint32_t)run->window_lanes.count;
    for (uint32_t i = 0; i < asked->window_count; i++)
        asked->windows[i] = (window_t){run->window_lanes.data[i], run->window_groups.data[i], run->window_blocks.data[i],
                                       qr_handle_index(run->window_pages.data[i]), 0};
}

static void on_batch_run(executor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_batch_run_t *run = &message->body.batch_run;
    if (self->queued == QR_BATCHES_IN_FLIGHT || !columns_agree(self, run) || !references_fit(self, given, run)) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, QR_MESSAGE_batch_run, run->batch, self->queued);
        qr_send(outbox, message->from, batch_failed, (&(qr_batch_failed_t){.batch = run->batch, .reason = QR_E_PROTOCOL}));
        return;
    }
    keep_asked(self, &self->asked[self->queued++], run);
}

/* ---- starting a batch --------------------------------------------------------------------------------------------------------- */

static void lane_fails(executor_t *self, uint32_t place, uint32_t reason)
{
    if (self->statuses[place] == 0) self->statuses[place] = reason;
}

/* Ids of a lane's rows, previous ones looked up; an id that cannot be computed fails the lane, and row 0 stands in for it (E3). */
static void build_tokens(executor_t *self, const asked_t *asked, uint32_t place, uint32_t row)
{
    const lane_t *lane = &self->lanes[asked->lanes[place]];
    for (uint32_t i = 0; i < asked->counts[place]; i++) {
        uint32_t token = asked->tokens[row + i];
        if (token == QR_TOKEN_PREVIOUS) token = lane->last_token;
        if (token >= self->vocabulary) {
            lane_fails(self, place, QR_E_INVALID);
            token = 0;
        }
        self->tokens[row + i] = token;
        self->positions[row + i] = asked->starts[place] + i;
    }
}

/* Pages of one group that the rows of a lane attend, and the slots they are appended to. */
static void build_pages(executor_t *self, const asked_t *asked, uint32_t place, uint32_t group, uint32_t window)
{
    const uint32_t *table = table_of(self, asked->lanes[place], group);
    uint32_t start = asked->starts[place], count = asked->counts[place], row = self->row_offsets[place], page = self->page_tokens;
    uint32_t first = window && start >= window ? (start - (window - 1)) / page + QR_MUTANT(172) : 0;
    uint32_t last = (start + count - 1) / page, at = self->page_offsets[group][place];
    bool missing = false;
    for (uint32_t b = first; !missing && b <= last; b++) {
        missing = table[b] == NO_PAGE;
        self->pages[group][at++] = missing ? 0 : table[b];
    }
    if (missing) { /* E4: page 0 stands in for all of them, nothing is appended */
        lane_fails(self, place, QR_E_PROTOCOL);
        at = self->page_offsets[group][place];
        for (uint32_t b = first; b <= last; b++) self->pages[group][at++] = 0;
    }
    self->first_blocks[group][place] = first;
    self->page_offsets[group][place + 1] = at;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = start + i;
        self->slots[group][row + i] = missing ? -1 : (int32_t)(table[position / page] * page + (position + QR_MUTANT(169)) % page);
    }
}

static void build_copies(executor_t *self, const asked_t *asked)
{
    for (uint32_t g = 0; g < self->group_count; g++) self->batch.groups[g].copy_count = 0;
    for (uint32_t i = 0; i < asked->copy_count; i++) {
        const copy_t *copy = &asked->copies[i];
        uint32_t at = self->batch.groups[copy->group].copy_count++;
        self->copy_from[copy->group][at] = copy->from;
        self->copy_to[copy->group][at] = copy->to;
        self->copy_rows[copy->group][at] = copy->rows;
    }
}

/* New pages of windowed groups enter their lanes' tables; a batch may carry those of lanes that are not in it. */
static void apply_windows(executor_t *self, const asked_t *asked)
{
    for (uint32_t i = 0; i < asked->window_count; i++) {
        const window_t *w = &asked->windows[i];
        uint32_t lane = QR_MUTANT(174) ? qr_handle_index(w->lane) % self->lanes_max : lane_find(self, w->lane);
        if (lane != UINT32_MAX) table_of(self, lane, w->group)[w->block] = w->page;
    }
}

static void build_batch(executor_t *self, const qr_given_t *given, const asked_t *asked)
{
    uint32_t row = 0, logits = 0;
    apply_windows(self, asked);
    for (uint32_t i = 0; i < asked->lane_count; i++) {
        self->statuses[i] = 0;
        self->row_offsets[i] = row;
        build_tokens(self, asked, i, row);
        row += asked->counts[i];
        self->row_offsets[i + 1] = row;
        if (asked->flags[i] & QR_ROW_SAMPLE) self->logit_rows[logits++] = row - 1;
        for (uint32_t g = 0; g < self->group_count; g++) build_pages(self, asked, i, g, given->layout.groups[g].window);
    }
    build_copies(self, asked);
    self->batch.row_count = row;
    self->batch.lane_count = asked->lane_count;
    self->batch.logit_count = logits;
}

/* Answers the running batch as failed: nothing was published (its rows lie behind every committed count). */
static void fail_batch(executor_t *self, uint32_t reason, qr_outbox_t *outbox)
{
    qr_activity_end(self->activity, clock_us());
    qr_send(outbox, self->scheduler, batch_failed, (&(qr_batch_failed_t){.batch = self->asked[0].id, .reason = reason}));
    self->failed++;
    self->device_failed = 1;
    self->phase = PHASE_IDLE;
    for (uint32_t i = 0; i < self->asked[0].lane_count; i++) self->lanes[self->asked[0].lanes[i]].last_token = QR_TOKEN_NONE;
}

/* Drops the oldest batch; the two slots change places because they own memory. */
static void queue_pop(executor_t *self)
{
    asked_t *first = &self->asked[0], *second = &self->asked[1];
    uint32_t *tokens = first->tokens;
    window_t *windows = first->windows;
    *first = *second;
    second->tokens = tokens;
    second->windows = windows;
    self->queued--;
}

static void start_batch(executor_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    uint64_t now_us = clock_us();
    if (self->ended_us && now_us - self->ended_us < GAP_US_MAX) self->plan_us += now_us - self->ended_us;
    self->started_us = now_us;
    qr_activity_begin(self->activity);
    build_batch(self, given, &self->asked[0]);
    self->phase = PHASE_COMPUTE;
    int code = qr_decoder_submit(given->decoder, &self->batch);
    if (code == 0) return;
    fail_batch(self, (uint32_t)-code, outbox);
    queue_pop(self);
}

/* ---- drawing and finishing -------------------------------------------------------------------------------------------------------- */

static bool is_finite(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static void draw(executor_t *self, const qr_given_t *given, uint32_t place, uint32_t logit)
{
    const asked_t *asked = &self->asked[0];
    lane_t *lane = &self->lanes[asked->lanes[place]];
    const float *logits = qr_decoder_logits(given->decoder, logit);
    uint32_t position = asked->starts[place] + asked->counts[place];
    float logprob = 0;
    uint32_t token =
        qr_sampler_draw(&lane->sampling, logits, self->vocabulary, position, 0, self->scratch, lane->logprobs ? &logprob : NULL);
    if (token >= self->vocabulary || !is_finite(logits[token])) {
        lane_fails(self, place, QR_E_NUMERIC);
        return;
    }
    self->drawn[place] = token;
    memcpy(&self->logprobs[place], &logprob, sizeof logprob);
}

/* Statuses of a lane's rows, then its token if it asked for one. */
static void finish_lane(executor_t *self, const qr_given_t *given, uint32_t place)
{
    const asked_t *asked = &self->asked[0];
    lane_t *lane = &self->lanes[asked->lanes[place]];
    self->drawn[place] = QR_TOKEN_NONE;
    self->logprobs[place] = 0;
    for (uint32_t row = self->row_offsets[place]; row < self->row_offsets[place + 1]; row++)
        if (qr_decoder_row_status(given->decoder, row)) lane_fails(self, place, QR_E_NUMERIC);
    if (asked->flags[place] & QR_ROW_SAMPLE) {
        uint32_t logit = self->logit_next++;
        if (self->statuses[place] == 0 || QR_MUTANT(163)) draw(self, given, place, logit);
        lane->last_token = self->drawn[place];
    }
    if (self->statuses[place] && !QR_MUTANT(163)) lane->last_token = self->drawn[place] = QR_TOKEN_NONE;
}

static void finish_batch(executor_t *self, qr_outbox_t *outbox)
{
    const asked_t *asked = &self->asked[0];
    uint64_t handles[QR_LANES_MAX];
    uint32_t count = asked->lane_count;
    for (uint32_t i = 0; i < count; i++) handles[i] = self->lanes[asked->lanes[i]].handle;
    self->ended_us = clock_us();
    qr_batch_done_t done = {.batch = asked->id, .lanes = {handles, count}, .statuses = {self->statuses, count}};
    done.tokens = (qr_u32s_t){self->drawn, count};
    done.logprob_bits = (qr_u32s_t){self->logprobs, count};
    done.step_us = self->ended_us - self->started_us;
    self->batches++;
    self->batch_us += done.step_us;
    self->device_failed = 0;
    self->phase = PHASE_IDLE;
    qr_activity_end(self->activity, self->ended_us);
    qr_send(outbox, self->scheduler, batch_done, &done);
    queue_pop(self);
}

static void advance(executor_t *self, const qr_given_t *given, uint64_t until_us, qr_outbox_t *outbox)
{
    if (self->phase == PHASE_COMPUTE) {
        int code = qr_decoder_advance(given->decoder, QR_EXECUTOR_SLICE_US);
        if (code > 0) return;
        if (code < 0) {
            fail_batch(self, (uint32_t)-code, outbox);
            queue_pop(self);
            return;
        }
        self->phase = PHASE_DRAW;
        self->draw_lane = self->logit_next = 0;
    }
    while (self->draw_lane < self->asked[0].lane_count) {
        finish_lane(self, given, self->draw_lane++);
        if (self->draw_lane < self->asked[0].lane_count && clock_us() >= until_us) return;
    }
    finish_batch(self, outbox);
}

/* ---- warm-up (E5) ------------------------------------------------------------------------------------------------------------------- */

/* A prompt of a few rows and, where two lanes fit, a decode row; both look at page 0 only. */
static void build_warm_up(executor_t *self, const qr_given_t *given)
{
    uint32_t lanes = self->lanes_max > 1 && self->rows_max > 1 ? 2 : 1;
    uint32_t rows = qr_min_u32(WARM_ROWS, qr_min_u32(self->rows_max - (lanes - 1), self->context)), all = rows + lanes - 1;
    self->row_offsets[0] = 0;
    self->row_offsets[1] = rows;
    self->row_offsets[2] = all;
    for (uint32_t i = 0; i < all; i++) {
        self->tokens[i] = 0;
        self->positions[i] = i < rows ? i : rows - 1;
        for (uint32_t g = 0; g < self->group_count; g++) self->slots[g][i] = -1;
    }
    for (uint32_t i = 0; i < lanes; i++) self->logit_rows[i] = self->row_offsets[i + 1] - 1;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t blocks = (rows - 1) / self->page_tokens + 1;
        for (uint32_t i = 0; i <= lanes; i++) self->page_offsets[g][i] = i * blocks;
        for (uint32_t i = 0; i < lanes * blocks; i++) self->pages[g][i] = 0;
        self->first_blocks[g][0] = self->first_blocks[g][1] = 0;
        self->copy_from[g][0] = 0;
        self->copy_to[g][0] = self->copy_rows[g][0] = 1;
        self->batch.groups[g].copy_count = given->layout.groups[g].pages > 1;
    }
    self->batch.row_count = all;
    self->batch.lane_count = self->batch.logit_count = lanes;
}

/* Runs every kernel of a step once, so that `ready` means ready. */
static uint64_t warm_up(executor_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    int code = 0;
    if (self->phase == PHASE_IDLE) {
        build_warm_up(self, given);
        code = qr_decoder_submit(given->decoder, &self->batch);
        self->phase = PHASE_COMPUTE;
    }
    if (code == 0) code = qr_decoder_advance(given->decoder, QR_EXECUTOR_SLICE_US);
    if (code > 0) return 0;
    self->phase = PHASE_IDLE;
    self->warming = 0;
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->lanes_max, self->rows_max, self->vocabulary);
    qr_ready_t ready = {.reason = (uint32_t)-code};
    const char *text = code ? qr_error_sentence(code) : "";
    ready.text = (qr_bytes_t){(const uint8_t *)text, strlen(text)};
    qr_send(outbox, self->start_by, ready, &ready);
    return 0;
}

/* ---- the actor
 * ---------------------------------------------------------------------------------------------------------------------------- */

static uint32_t context_of(const qr_given_t *given) { return given->layout.context_tokens ? given->layout.context_tokens : QR_CONTEXT_MAX; }

/* Tokens that may be asked for and drawn: rows of the matrix that have no token are never looked at. */
static uint32_t vocabulary_of(const qr_given_t *given)
{
    uint32_t rows = given->model->arch.vocabulary, count = given->model->vocabulary.count;
    return count ? qr_min_u32(rows, count) : rows;
}

static uint64_t windows_max_of(const qr_given_t *given)
{
    uint64_t sum = 1;
    for (uint32_t g = 0; g < given->layout.group_count; g++)
        if (given->layout.groups[g].window || given->params.over_commit || given->params.store[0]) sum += given->layout.groups[g].pages;
    return sum;
}

/* Hands out 64-byte aligned parts of the block behind the struct; with base NULL it only counts. */
static void *part(uint8_t *base, uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;
    *at += qr_round_up(bytes, 64);
    return base ? base + begin : NULL;
}

static uint64_t lay_out(executor_t *self, const qr_given_t *given)
{
    uint8_t *base = (uint8_t *)self;
    uint64_t at = qr_round_up(sizeof(executor_t), 64), lanes = given->params.max_lanes;
    uint64_t rows = qr_min_u64(given->params.prefill_tile + lanes, QR_BATCH_ROWS_MAX), groups = given->layout.group_count;
    uint64_t blocks = qr_div_up(context_of(given), given->layout.page_tokens);
    executor_t counted, *to = self ? self : &counted;
    to->tables = part(base, &at, lanes * groups * blocks * sizeof(uint32_t));
    to->tokens = part(base, &at, rows * sizeof(uint32_t));
    to->positions = part(base, &at, rows * sizeof(uint32_t));
    for (uint32_t g = 0; g < groups; g++) {
        to->pages[g] = part(base, &at, lanes * blocks * sizeof(uint32_t));
        to->slots[g] = part(base, &at, rows * sizeof(int32_t));
    }
    for (uint32_t b = 0; b < QR_BATCHES_IN_FLIGHT; b++) {
        to->asked[b].tokens = part(base, &at, rows * sizeof(uint32_t));
        to->asked[b].windows = part(base, &at, windows_max_of(given) * sizeof(window_t));
    }
    to->scratch = part(base, &at, qr_sampler_scratch_bytes(vocabulary_of(given)));
    to->rows_max = (uint32_t)rows;
    to->blocks_max = (uint32_t)blocks;
    return at;
}

static uint64_t executor_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void executor_init(void *block, const qr_given_t *given, uint64_t address)
{
    executor_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->activity = given->activity;
    self->scheduler = qr_address_partner(address, QR_ROLE_scheduler);
    self->lanes_max = (uint32_t)given->params.max_lanes;
    self->windows_max = (uint32_t)windows_max_of(given);
    self->context = context_of(given);
    self->vocabulary = vocabulary_of(given);
    self->page_tokens = given->layout.page_tokens;
    self->group_count = given->layout.group_count;
    self->batch.tokens = self->tokens;
    self->batch.positions = self->positions;
    self->batch.row_offsets = self->row_offsets;
    self->batch.logit_rows = self->logit_rows;
    for (uint32_t g = 0; g < self->group_count; g++) {
        self->batch.groups[g].page_offsets = self->page_offsets[g];
        self->batch.groups[g].first_blocks = self->first_blocks[g];
        self->batch.groups[g].pages = self->pages[g];
        self->batch.groups[g].slots = self->slots[g];
        self->batch.groups[g].copy_from = self->copy_from[g];
        self->batch.groups[g].copy_to = self->copy_to[g];
        self->batch.groups[g].copy_rows = self->copy_rows[g];
    }
}

static void on_metrics_read(const executor_t *self, uint64_t from, qr_outbox_t *outbox)
{
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    const uint32_t ids[] = {ID_batch_us_total, ID_plan_us_total};
    const uint64_t values[] = {self->batch_us, self->plan_us};
    qr_send(outbox, from, metrics, (&(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}}));
}

/* The scheduler has stopped: it waited for its batches as long as it may. What still computes is given up (E6). */
static void on_stop(executor_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (self->phase == PHASE_COMPUTE || self->warming) qr_decoder_abandon(given->decoder);
    while (self->queued) {
        fail_batch(self, QR_E_DRAINING, outbox);
        queue_pop(self);
    }
    self->warming = 0;
    self->phase = PHASE_IDLE;
    qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = 0}));
}

static void executor_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    executor_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start:
        self->start_by = message->from;
        self->warming = 1;
        break;
    case QR_MESSAGE_drain: qr_send(outbox, message->from, drained, (&(qr_drained_t){.open_count = self->queued})); break;
    case QR_MESSAGE_stop: on_stop(self, given, message, outbox); break;
    case QR_MESSAGE_lane_open: on_lane_open(self, given, message, outbox); break;
    case QR_MESSAGE_lane_close: on_lane_close(self, message, outbox); break;
    case QR_MESSAGE_batch_run: on_batch_run(self, given, message, outbox); break;
    case QR_MESSAGE_probe:
        qr_send(outbox, message->from, probe_done,
                (&(qr_probe_done_t){.probe_id = message->body.probe.probe_id, .reason = self->device_failed ? QR_E_DEVICE : 0}));
        break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message->from, outbox); break;
    case QR_MESSAGE_alarm:
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
}

static uint64_t executor_work(void *block, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    executor_t *self = block;
    (void)now_us;
    if (self->warming) return warm_up(self, given, outbox);
    if (self->phase == PHASE_IDLE && self->queued) start_batch(self, given, outbox);
    if (self->phase != PHASE_IDLE) advance(self, given, clock_us() + QR_EXECUTOR_SLICE_US, outbox);
    return self->queued ? 0 : QR_NEVER_US;
}

static void executor_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const executor_t *self = block;
    (void)given;
    qr_text_put(text, "executor: queued ");
    qr_text_put_u64(text, self->queued);
    qr_text_put(text, ", phase ");
    qr_text_put_u64(text, self->phase);
    qr_text_put(text, ", batches ");
    qr_text_put_u64(text, self->batches);
    qr_text_put(text, ", failed ");
    qr_text_put_u64(text, self->failed);
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_executor_class = {
    .name = "executor",
    .role = QR_ROLE_executor,
    .max_out = 4,
    .owns_world = true,
    .bytes = executor_bytes,
    .init = executor_init,
    .handle = executor_handle,
    .print = executor_print,
    .work = executor_work,
};
