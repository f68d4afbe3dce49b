/* device.c - see device.h. */
#include "transport/sim/device.h"

#include "base/error.h"
#include "messages/schema.h"
#include "transport/sim/judge.h"
#include "transport/sim/world.h"

enum { COPIES_MAX = 512, WINDOWS_MAX = 512, NO_PAGE = 0xffffffffu };
#define POISON 0xdeadbeefdeadbeefull

typedef struct lane {
    uint64_t handle, seed, request_id;
    uint32_t greedy, generated_from, last_token, scope;
    uint32_t stale, unused; /* 1: opened with a page that had another owner by then (V2) */
} lane_t;

typedef qr_sim_row_word_t row_t;

/* A batch as asked; its tokens and pages are kept behind the actor. */
typedef struct batch {
    uint64_t id, due_us, cost_us;
    uint32_t lane_count, row_count, copy_count, window_count;
    uint64_t lanes[QR_LANES_MAX];
    uint32_t starts[QR_LANES_MAX], counts[QR_LANES_MAX], flags[QR_LANES_MAX], tokens[QR_BATCH_ROWS_MAX];
    uint64_t copy_sources[COPIES_MAX], copy_targets[COPIES_MAX], window_lanes[WINDOWS_MAX], window_pages[WINDOWS_MAX];
    uint32_t copy_rows[COPIES_MAX], copy_groups[COPIES_MAX], window_groups[WINDOWS_MAX], window_blocks[WINDOWS_MAX];
} batch_t;

typedef struct device {
    uint64_t address, scheduler;
    uint64_t rows_at, generations_at, tables_at; /* offsets behind this struct */
    uint64_t batches, failed, garbage;
    uint32_t blocks_max, queued;
    lane_t lanes[QR_LANES_MAX];
    batch_t queue[QR_BATCHES_IN_FLIGHT];
} device_t;

/* ---- what a row holds and what is drawn ------------------------------------------------------------------------------------------- */

static uint64_t word_of(uint32_t token, uint32_t position, uint32_t group)
{
    return qr_mix_u64((uint64_t)token << 40 | (uint64_t)position << 8 | (group + 1));
}

static uint64_t add_word(uint64_t sum, uint64_t word) { return qr_mix_u64(sum ^ word) + 1; }

static uint32_t drawn(uint64_t sum, bool greedy, uint64_t seed, uint32_t index, uint32_t *ret_logprob_bits)
{
    if (!greedy) sum = qr_mix_u64(sum ^ qr_mix_u64(seed + 0x9e3779b97f4a7c15u * (index + 1)));
    *ret_logprob_bits = 0x80000000u | ((uint32_t)(sum >> 40) & 0x3fffffff); /* a negative number or so */
    return (sum >> 20) % QR_SIM_END_ONE_IN ? (uint32_t)(sum % QR_SIM_END_TOKEN) : QR_SIM_END_TOKEN;
}

static uint64_t window_sum(uint64_t sum, const qr_given_t *given, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t w = given->layout.groups[g].window;
        for (uint32_t p = w && count > w ? count - w : 0; w && p < count; p++) sum = add_word(sum, word_of(tokens[p], p, g));
    }
    return sum;
}

void qr_sim_sequence_add(qr_sim_sequence_t *sequence, const qr_given_t *given, uint32_t token)
{
    for (uint32_t g = 0; g < given->layout.group_count; g++)
        if (!given->layout.groups[g].window) sequence->prefix = add_word(sequence->prefix, word_of(token, sequence->count, g));
    sequence->count++;
}

uint32_t qr_sim_token_after(const qr_sim_sequence_t *sequence, const qr_given_t *given, const uint32_t *tokens, bool greedy, uint64_t seed,
                            uint32_t generated_from, uint32_t *ret_logprob_bits)
{
    uint64_t sum = window_sum(sequence->prefix, given, tokens, sequence->count);
    return drawn(sum, greedy, seed, sequence->count - generated_from, ret_logprob_bits);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t pages_before(const qr_given_t *given, uint32_t group)
{
    uint64_t pages = 0;
    for (uint32_t g = 0; g < group; g++) pages += given->layout.groups[g].pages;
    return pages;
}

static row_t *row_at(const device_t *self, const qr_given_t *given, uint32_t group, uint32_t page, uint32_t row)
{
    row_t *rows = (row_t *)(void *)((uint8_t *)(uintptr_t)self + self->rows_at);
    return rows + (pages_before(given, group) + page) * given->layout.page_tokens + row;
}

static uint32_t *table_of(const device_t *self, const qr_given_t *given, uint32_t lane, uint32_t group)
{
    uint32_t *tables = (uint32_t *)(void *)((uint8_t *)(uintptr_t)self + self->tables_at);
    return tables + ((uint64_t)lane * given->layout.group_count + group) * self->blocks_max;
}

/* The page of a handle that some message names (V1, V2). */
static uint32_t page_seen(device_t *self, const qr_given_t *given, uint32_t group, uint64_t handle)
{
    uint32_t *generations = (uint32_t *)(void *)((uint8_t *)self + self->generations_at), page = qr_handle_index(handle);
    if (group >= given->layout.group_count || page >= given->layout.groups[group].pages)
        qr_sim_finding("the device was given page %u of group %u, which it does not have", page, group);
    uint32_t *seen = &generations[pages_before(given, group) + page], generation = qr_handle_generation(handle);
    if (generation < *seen)
        qr_sim_finding("page %u of group %u was given with generation %u, but %u owns it", page, group, generation, *seen);
    if (generation > *seen) {
        for (uint32_t r = 0; r < given->layout.page_tokens; r++) *row_at(self, given, group, page, r) = (row_t){POISON, 0};
        *seen = generation;
    }
    return page;
}

/* The page of a handle that a lane is opened with. Its request may have been cancelled while this was under way, and the page may have gone
 * to a move already: that lane may be closed and no more (V2). */
static uint32_t page_named(device_t *self, const qr_given_t *given, uint32_t group, uint64_t handle, uint32_t *ret_stale)
{
    uint32_t *generations = (uint32_t *)(void *)((uint8_t *)self + self->generations_at), page = qr_handle_index(handle);
    if (group >= given->layout.group_count || page >= given->layout.groups[group].pages ||
        qr_handle_generation(handle) >= generations[pages_before(given, group) + page])
        return page_seen(self, given, group, handle);
    *ret_stale = 1;
    return page;
}

uint64_t qr_sim_word(uint32_t token, uint32_t position, uint32_t group) { return word_of(token, position, group); }

row_t *qr_sim_device_row(void *executor_state, const qr_given_t *given, uint32_t group, uint64_t page, uint32_t row)
{
    device_t *self = executor_state;
    return row_at(self, given, group, page_seen(self, given, group, page), row);
}

static uint64_t lay_out(device_t *self, const qr_given_t *given)
{
    uint64_t pages = pages_before(given, given->layout.group_count), page_tokens = given->layout.page_tokens;
    uint64_t blocks = qr_div_up(given->layout.context_tokens, page_tokens) + 1;
    uint64_t rows_at = qr_round_up(sizeof(device_t), 64), generations_at = rows_at + pages * page_tokens * sizeof(row_t);
    uint64_t tables_at = qr_round_up(generations_at + pages * 4, 64);
    if (self) {
        self->rows_at = rows_at;
        self->generations_at = generations_at;
        self->tables_at = tables_at;
        self->blocks_max = (uint32_t)blocks;
    }
    return tables_at + given->params.max_lanes * given->layout.group_count * blocks * 4;
}

static uint64_t device_bytes(const qr_given_t *given) { return lay_out(NULL, given); }

static void device_init(void *block, const qr_given_t *given, uint64_t address)
{
    device_t *self = block;
    lay_out(self, given);
    self->address = address;
    self->scheduler = qr_address_partner(address, QR_ROLE_scheduler);
    row_t *rows = row_at(self, given, 0, 0, 0);
    uint64_t count = pages_before(given, given->layout.group_count) * given->layout.page_tokens;
    for (uint64_t i = 0; i < count; i++) rows[i].word = POISON;
}

/* ---- lanes --------------------------------------------------------------------------------------------------------------------------- */

static lane_t *lane_of(device_t *self, const qr_given_t *given, uint64_t handle)
{
    uint32_t i = qr_handle_index(handle);
    if (i >= given->params.max_lanes || self->lanes[i].handle != handle || handle == 0)
        qr_sim_finding("the device was asked about lane %u of generation %u, which is not open", i, qr_handle_generation(handle));
    return &self->lanes[i];
}

static void on_lane_open(device_t *self, const qr_given_t *given, const qr_lane_open_t *open, qr_outbox_t *outbox)
{
    uint32_t index = qr_handle_index(open->lane);
    if (index >= given->params.max_lanes || self->lanes[index].handle) qr_sim_finding("lane %u was opened twice", index);
    if (open->group_counts.count != given->layout.group_count)
        qr_sim_finding("a lane was opened with %u groups", (uint32_t)open->group_counts.count);
    self->lanes[index] = (lane_t){.handle = open->lane,
                                  .seed = open->seed,
                                  .request_id = open->request_id,
                                  .scope = qr_sim_judge_scope(given, open->request_id),
                                  .greedy = open->temperature_bits == 0,
                                  .generated_from = open->generated_from,
                                  .last_token = QR_TOKEN_NONE};
    uint64_t at = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t *table = table_of(self, given, index, g);
        for (uint32_t b = 0; b < self->blocks_max; b++) table[b] = NO_PAGE;
        for (uint32_t b = 0; b < open->group_counts.data[g]; b++, at++) {
            if (open->first_blocks.data[g] + b >= self->blocks_max || at >= open->pages.count)
                qr_sim_finding("a lane was opened with a page beyond its table");
            table[open->first_blocks.data[g] + b] = page_named(self, given, g, open->pages.data[at], &self->lanes[index].stale);
        }
    }
    qr_send(outbox, self->scheduler, lane_opened, &(qr_lane_opened_t){.lane = open->lane});
}

static void on_lane_close(device_t *self, const qr_given_t *given, uint64_t handle, qr_outbox_t *outbox)
{
    lane_t *lane = lane_of(self, given, handle);
    for (uint32_t b = 0; b < self->queued; b++)
        for (uint32_t i = 0; i < self->queue[b].lane_count; i++)
            if (self->queue[b].lanes[i] == handle) qr_sim_finding("a lane was closed while a batch names it");
    lane->handle = 0;
    qr_send(outbox, self->scheduler, lane_closed, &(qr_lane_closed_t){.lane = handle});
}

/* ---- batches ------------------------------------------------------------------------------------------------------------------------- */

static uint64_t cost_us(const device_t *self, const qr_given_t *given, const batch_t *b)
{
    const qr_sim_cost_t *cost = &qr_sim_given(given)->cost;
    uint64_t us = cost->base_us + (uint64_t)b->row_count * cost->row_ns / 1000 + b->lane_count * cost->lane_us;
    us = us * (80 + qr_sim_draw(50)) / 100 + 1;
    uint32_t slow = qr_world_fault(qr_sim_world(), qr_address_node(self->address) - 1, QR_FAULT_SLOW);
    return slow ? us * slow : us;
}

static void on_batch_run(device_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_batch_run_t *run = &message->body.batch_run;
    if (self->queued == QR_BATCHES_IN_FLIGHT) qr_sim_finding("a third batch was sent");
    batch_t *b = &self->queue[self->queued++];
    b->id = run->batch;
    b->lane_count = (uint32_t)run->lanes.count;
    b->row_count = (uint32_t)run->tokens.count;
    b->copy_count = (uint32_t)run->copy_sources.count;
    b->window_count = (uint32_t)run->window_lanes.count;
    if (b->lane_count > QR_LANES_MAX || b->row_count > QR_BATCH_ROWS_MAX || b->copy_count > COPIES_MAX || b->window_count > WINDOWS_MAX)
        qr_sim_finding("a batch of %u lanes, %u rows, %u copies is larger than it may be", b->lane_count, b->row_count, b->copy_count);
    for (uint32_t i = 0; i < b->lane_count; i++)
        if (lane_of(self, given, run->lanes.data[i])->stale) qr_sim_finding("a lane is computed that was opened with somebody else's page");
    qr_copy(b->lanes, run->lanes.data, b->lane_count * 8);
    qr_copy(b->starts, run->starts.data, b->lane_count * 4);
    qr_copy(b->counts, run->row_counts.data, b->lane_count * 4);
    qr_copy(b->flags, run->flags.data, b->lane_count * 4);
    qr_copy(b->tokens, run->tokens.data, b->row_count * 4);
    qr_copy(b->copy_sources, run->copy_sources.data, b->copy_count * 8);
    qr_copy(b->copy_targets, run->copy_targets.data, b->copy_count * 8);
    qr_copy(b->copy_rows, run->copy_rows.data, b->copy_count * 4);
    qr_copy(b->copy_groups, run->copy_groups.data, b->copy_count * 4);
    qr_copy(b->window_lanes, run->window_lanes.data, b->window_count * 8);
    qr_copy(b->window_groups, run->window_groups.data, b->window_count * 4);
    qr_copy(b->window_blocks, run->window_blocks.data, b->window_count * 4);
    qr_copy(b->window_pages, run->window_pages.data, b->window_count * 8);
    b->cost_us = cost_us(self, given, b);
    b->due_us = (self->queued == 2 ? self->queue[0].due_us : message->now_us) + b->cost_us;
    qr_outbox_alarm(outbox, self->queue[0].due_us);
}

/* Windows and copies come before any append. */
static void prepare(device_t *self, const qr_given_t *given, const batch_t *b, bool fails)
{
    for (uint32_t i = 0; i < b->window_count; i++) {
        uint32_t lane = qr_handle_index(b->window_lanes[i]);
        if (lane >= given->params.max_lanes || self->lanes[lane].handle != b->window_lanes[i]) continue; /* it closed since */
        if (b->window_blocks[i] >= self->blocks_max) qr_sim_finding("a page of a windowed group beyond its lane's table");
        table_of(self, given, lane, b->window_groups[i])[b->window_blocks[i]] =
            page_seen(self, given, b->window_groups[i], b->window_pages[i]);
    }
    for (uint32_t i = 0; i < b->copy_count; i++) {
        uint32_t g = b->copy_groups[i], from = page_seen(self, given, g, b->copy_sources[i]),
                 to = page_seen(self, given, g, b->copy_targets[i]);
        if (b->copy_rows[i] > given->layout.page_tokens) qr_sim_finding("a copy of %u rows of a page", b->copy_rows[i]);
        for (uint32_t r = 0; r < b->copy_rows[i]; r++)
            *row_at(self, given, g, to, r) = fails ? (row_t){++self->garbage, 0} : *row_at(self, given, g, from, r);
    }
}

/* Adds the words of one position of the groups with a window (or without) to the sum; false if one is missing. */
static bool attend(const device_t *self, const qr_given_t *given, uint32_t lane, uint32_t group, uint32_t position, uint64_t *sum)
{
    uint32_t page = table_of(self, given, lane, group)[position / given->layout.page_tokens];
    row_t nothing = {POISON, 0}, *row = page == NO_PAGE ? &nothing : row_at(self, given, group, page, position % given->layout.page_tokens);
    if (row->scope && self->lanes[lane].scope && row->scope != self->lanes[lane].scope)
        qr_sim_finding("a row of another scope is attended: position %u in page %u of group %u", position, page, group);
    *sum = add_word(*sum, row->word);
    return row->word != POISON;
}

/* Sum over what the row at `position` attends, in the order of qr_sim_token_after; false if a word is missing. */
static bool attend_all(const device_t *self, const qr_given_t *given, uint32_t lane, uint32_t position, uint64_t *sum)
{
    bool whole = true;
    for (uint32_t p = 0; p <= position; p++)
        for (uint32_t g = 0; g < given->layout.group_count; g++)
            if (!given->layout.groups[g].window) whole &= attend(self, given, lane, g, p, sum);
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t w = given->layout.groups[g].window;
        for (uint32_t p = w && position + 1 > w ? position + 1 - w : 0; w && p <= position; p++)
            whole &= attend(self, given, lane, g, p, sum);
    }
    return whole;
}

/* Rows of one lane, and its draw. garbage: the batch fails. Returns the status. */
static uint32_t compute(device_t *self, const qr_given_t *given, const batch_t *b, uint32_t i, const uint32_t *tokens, bool garbage,
                        uint32_t *ret_token, uint32_t *ret_bits)
{
    uint32_t index = qr_handle_index(b->lanes[i]), status = 0;
    lane_t *lane = &self->lanes[index];
    qr_sim_judge_computes(given, lane->request_id);
    for (uint32_t r = 0; r < b->counts[i]; r++) {
        uint32_t position = b->starts[i] + r, token = tokens[r] == QR_TOKEN_PREVIOUS ? lane->last_token : tokens[r];
        if (token == QR_TOKEN_NONE) status = QR_E_INVALID; /* what came before it failed */
        for (uint32_t g = 0; g < given->layout.group_count; g++) {
            uint32_t block = position / given->layout.page_tokens,
                     page = block < self->blocks_max ? table_of(self, given, index, g)[block] : NO_PAGE;
            if (page == NO_PAGE) qr_sim_finding("a row at %u of group %u has no page", position, g);
            *row_at(self, given, g, page, position % given->layout.page_tokens) =
                (row_t){garbage || status ? ++self->garbage : word_of(token, position, g), lane->scope};
        }
    }
    *ret_token = QR_TOKEN_NONE;
    *ret_bits = 0;
    uint64_t sum = 0;
    if (garbage || status) return status;
    if (!attend_all(self, given, index, b->starts[i] + b->counts[i] - 1, &sum)) return QR_E_NUMERIC;
    if (b->flags[i] & QR_ROW_SAMPLE) {
        uint32_t count = b->starts[i] + b->counts[i];
        *ret_token = drawn(sum, lane->greedy, lane->seed, count - lane->generated_from, ret_bits);
        lane->last_token = *ret_token;
    }
    return 0;
}

static void finish(device_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    batch_t *b = &self->queue[0];
    uint32_t statuses[QR_LANES_MAX], tokens[QR_LANES_MAX], bits[QR_LANES_MAX], node = qr_address_node(self->address) - 1, row = 0;
    uint32_t one_batch = qr_world_fault(qr_sim_world(), node, QR_FAULT_BATCHES),
             one_lane = qr_world_fault(qr_sim_world(), node, QR_FAULT_LANES);
    bool fails = one_batch && qr_sim_draw(one_batch) == 0;
    prepare(self, given, b, fails);
    for (uint32_t i = 0; i < b->lane_count; row += b->counts[i++]) {
        bool lane_fails = one_lane && qr_sim_draw(one_lane) == 0;
        statuses[i] = compute(self, given, b, i, b->tokens + row, fails || lane_fails, &tokens[i], &bits[i]);
        if (fails || statuses[i] || lane_fails) self->lanes[qr_handle_index(b->lanes[i])].last_token = QR_TOKEN_NONE;
        if (lane_fails && !statuses[i]) statuses[i] = QR_E_NUMERIC;
    }
    self->batches++;
    self->failed += fails;
    if (fails)
        qr_send(outbox, self->scheduler, batch_failed, &(qr_batch_failed_t){.batch = b->id, .reason = QR_E_DEVICE});
    else {
        qr_batch_done_t done = {
            .batch = b->id, .lanes = {b->lanes, b->lane_count}, .statuses = {statuses, b->lane_count}, .step_us = b->cost_us};
        done.tokens = (qr_u32s_t){tokens, b->lane_count};
        done.logprob_bits = (qr_u32s_t){bits, b->lane_count};
        qr_send(outbox, self->scheduler, batch_done, &done);
    }
    self->queue[0] = self->queue[1];
    self->queued--;
}

/* What still computes is given up, as the real one does. */
static void on_stop(device_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    for (; self->queued; self->queued--, self->queue[0] = self->queue[1])
        qr_send(outbox, self->scheduler, batch_failed, &(qr_batch_failed_t){.batch = self->queue[0].id, .reason = QR_E_DRAINING});
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

/* ---- the actor ----------------------------------------------------------------------------------------------------------------------- */

static void device_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    device_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: qr_send(outbox, message->from, ready, &(qr_ready_t){0}); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    case QR_MESSAGE_lane_open: on_lane_open(self, given, &message->body.lane_open, outbox); break;
    case QR_MESSAGE_lane_close: on_lane_close(self, given, message->body.lane_close.lane, outbox); break;
    case QR_MESSAGE_batch_run: on_batch_run(self, given, message, outbox); break;
    case QR_MESSAGE_probe: qr_send(outbox, message->from, probe_done, &(qr_probe_done_t){.probe_id = message->body.probe.probe_id}); break;
    case QR_MESSAGE_metrics_read: qr_send(outbox, message->from, metrics, &(qr_metrics_t){0}); break;
    case QR_MESSAGE_alarm:
        if (self->queued && self->queue[0].due_us <= message->now_us) finish(self, given, outbox);
        if (self->queued) qr_outbox_alarm(outbox, qr_max_u64(self->queue[0].due_us, message->now_us + 1));
        break;
    default: break;
    }
}

static void device_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const device_t *self = block;
    (void)given;
    qr_text_put(text, "executor: queued ");
    qr_text_put_u64(text, self->queued);
    qr_text_put(text, ", batches ");
    qr_text_put_u64(text, self->batches);
    qr_text_put(text, ", failed ");
    qr_text_put_u64(text, self->failed);
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_sim_executor_class = {
    .name = "executor",
    .role = QR_ROLE_executor,
    .max_out = 4,
    .owns_world = true,
    .bytes = device_bytes,
    .init = device_init,
    .handle = device_handle,
    .print = device_print,
};
