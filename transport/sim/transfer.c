/* transfer.c - see transfer.h. What is known of a device lives in its transfer, and so dies with it. */
#include "transport/sim/transfer.h"

#include "base/error.h"
#include "base/prng.h"
#include "transport/sim/catalog.h"

enum {
    PAGES_MAX = 256,
    PINS = 16,
    ASKED = 128,
    ROWS_MAX = 1024,
    GARBAGE_ONE_IN = 4,
    MEMORY_FASTER = 8,
    SPILLS = 64,
    SPILL_MOVES = QR_LANES_MAX + 1
};

/* Pages that something may be done with. */
typedef struct claim {
    uint64_t id; /* of a restore, or of a pin's lease; 0: free */
    uint32_t open, count;
    uint64_t pages[PAGES_MAX];
    uint32_t groups[PAGES_MAX];
    uint32_t start_rows, unused;
} claim_t;

typedef struct move {
    uint64_t key, due_us, asked_us, began_us;
    uint32_t open, group, slot, start, end, at, from_row, first_block, count, whole; /* rows [start, end); at: the next one to move */
    uint64_t pages[PAGES_MAX], tokens, stamp;
    uint32_t reason, damage, fails, garbage; /* fails: it will; garbage: it scribbles first */
    uint32_t kept, keep;                     /* RAM slot + 1 it comes from, and that it fills; 0: none */
    uint64_t life;                           /* of that memory, when it was opened */
    uint8_t content[32], parent[32], chain[32];
    qr_sim_bytes_t file; /* as it was opened: it may be deleted meanwhile */
    const qr_sim_file_t *blame;
} move_t;

/* A request as the scheduler knows it, and which rows of its prompt were computed for it: asked of the device under its newest lane, and
 * committed (what is in flight when it makes room for another is not). */
typedef struct asked {
    uint64_t request_id, lane, route; /* 0: none yet */
    uint32_t attempt, prompt, computed, open, lanes, unused;
    uint64_t rows[ROWS_MAX / 64], sent[ROWS_MAX / 64];
} asked_t;

/* Rows that a preempted request left (H6); the rows lie behind the floors. */
typedef struct spill {
    uint64_t key; /* 0: none */
    uint32_t rows, unused;
} spill_t;

typedef struct spill_move {
    uint64_t key, due_us, asked_us, began_us;
    uint32_t open, back, start, end, at, count, fails, unused; /* rows [start, end); at: the next one; count: of pages of all groups */
    uint64_t pages[PAGES_MAX];
} spill_move_t;

typedef struct transfer {
    uint64_t address;
    uint32_t node, device, asked_end, unused; /* asked_end: no place from here on was ever used */
    uint64_t floors_at;                       /* offset of the least generations that may be moved, [pages of all groups] */
    move_t uploads[QR_RESTORE_UPLOADS], download;
    claim_t restores[QR_LANES_MAX], pins[PINS], loads[QR_LANES_MAX];
    asked_t asked[ASKED];
    uint64_t words_at; /* offset of the rows that are kept, [SPILLS][groups][context] */
    uint32_t room, used;
    spill_t spills[SPILLS];
    spill_move_t moves[SPILL_MOVES];
} transfer_t;

static qr_sim_store_counts_t *counts_of(const qr_given_t *given) { return qr_sim_store_counts(qr_sim_given(given)->store); }

/* ---- what may be touched (H1) ---------------------------------------------------------------------------------------------------- */

static bool has_claim(const claim_t *claims, uint32_t count, uint32_t group, uint64_t page)
{
    for (uint32_t c = 0; c < count; c++)
        for (uint32_t i = 0; claims[c].open && i < claims[c].count; i++)
            if (claims[c].pages[i] == page && claims[c].groups[i] == group) return true;
    return false;
}

static claim_t *find_claim(claim_t *claims, uint32_t count, uint64_t id, bool open)
{
    for (uint32_t c = 0; c < count; c++)
        if (claims[c].open ? open && claims[c].id == id : !open) return &claims[c];
    return NULL;
}

static qr_sim_row_word_t *row_of(const transfer_t *self, const qr_given_t *given, const move_t *m, uint32_t row, bool writes)
{
    uint32_t page_tokens = given->layout.page_tokens, block = row / page_tokens - m->first_block;
    void *device = qr_sim_given(given)->executor;
    if (!device) device = qr_world_state(qr_sim_world(), qr_sim_address(self->node, self->device, QR_ROLE_executor));
    if (row / page_tokens < m->first_block || block >= m->count) qr_sim_finding("a move at row %u has no page for it", row);
    bool may = !qr_sim_world() ? true
               : writes        ? has_claim(self->restores, QR_LANES_MAX, m->group, m->pages[block])
                               : has_claim(self->pins, PINS, m->group, m->pages[block]);
    if (!may && writes) qr_sim_finding("row %u of group %u is written into a page that is not being restored any more", row, m->group);
    if (!may) qr_sim_finding("row %u of group %u is read out of a page that is not pinned", row, m->group);
    return qr_sim_device_row(device, given, m->group, m->pages[block], row % page_tokens);
}

/* ---- moves ----------------------------------------------------------------------------------------------------------------------- */

static uint64_t move_us(const transfer_t *self, const qr_given_t *given, uint32_t rows)
{
    uint32_t slow = qr_max_u32(1, qr_world_fault(qr_sim_world(), self->node, QR_FAULT_SLOW));
    const qr_sim_store_work_t *work = qr_sim_store_work(qr_sim_given(given)->store);
    uint32_t one_in = qr_world_fault(qr_sim_world(), self->node, QR_FAULT_MOVES);
    uint64_t stall_us = one_in && qr_sim_draw(2ull * one_in) == 0 ? qr_sim_draw(2000ull * work->restore_max_ms) : 0; /* it hangs */
    return 1 + qr_sim_draw(1 + rows * work->move_ns / 1000) * slow + stall_us;
}

static bool move_fails(const transfer_t *self)
{
    uint32_t one_in = qr_world_fault(qr_sim_world(), self->node, QR_FAULT_MOVES);
    return one_in && qr_sim_draw(one_in) == 0;
}

/* H7 */
static void fill_memory(const transfer_t *self, const qr_given_t *given, const move_t *m)
{
    uint64_t life;
    qr_sim_bytes_t *memory = qr_sim_store_memory(qr_sim_given(given)->store, self->node, m->keep - 1, &life);
    if (memory && life == m->life) *memory = m->file;
}

static void answer_upload(const transfer_t *self, const qr_given_t *given, move_t *m, uint32_t reason, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_page_uploaded_t body = {.key = m->key, .reason = reason, .damage = reason && reason == m->reason && m->damage};
    body.bytes = reason ? 0 : 8ull * (m->end - m->start);
    body.queue_us = (m->began_us ? m->began_us : now_us) - m->asked_us;
    body.move_us = m->began_us ? now_us - m->began_us : 0;
    counts_of(given)->uploads += reason == 0;
    counts_of(given)->uploads_failed += reason != 0;
    counts_of(given)->damage_found += body.damage;
    uint64_t asker = qr_address_partner(self->address, QR_ROLE_restore_streamer);
    if (!reason && m->keep) fill_memory(self, given, m);
    if (body.damage && (m->blame || m->kept)) qr_sim_store_blame(qr_sim_world(), self->node, asker, m->chain, m->group, m->kept != 0);
    qr_send(outbox, asker, page_uploaded, &body);
    m->open = 0;
}

/* H3. What is wrong with the file, 0 = nothing. */
static uint32_t judge_file(move_t *m)
{
    const qr_sim_bytes_t *b = &m->file;
    uint8_t content[32];
    m->damage = 1;
    if (!b->whole || b->count != m->end - m->start) return QR_E_TRUNCATED;
    if (b->group != m->group || memcmp(b->chain, m->chain, 32)) return QR_E_IDENTITY;
    if (b->start != m->start || b->tokens != m->tokens || memcmp(b->parent, m->parent, 32))
        qr_sim_finding("a file of chain and group is asked for with another start, parent or tokens");
    if (qr_sim_store_digest(b) != b->digest) return QR_E_DIGEST;
    qr_sim_store_name(b, content);
    if (m->whole && memcmp(content, m->content, 32)) return QR_E_DIGEST;
    m->damage = 0;
    return m->fails ? QR_E_IO : 0;
}

/* Memory instead of a file: nothing of it is on the disk, and its name says nothing. */
static void open_memory(const transfer_t *self, const qr_given_t *given, move_t *m)
{
    m->file = *qr_sim_store_memory(qr_sim_given(given)->store, self->node, m->kept - 1, &m->life);
    m->whole = 0;
    m->fails = move_fails(self);
    m->garbage = m->fails || qr_sim_draw(GARBAGE_ONE_IN) == 0;
    m->reason = judge_file(m);
}

static void open_file(const transfer_t *self, const qr_given_t *given, move_t *m)
{
    if (m->keep) qr_sim_store_memory(qr_sim_given(given)->store, self->node, m->keep - 1, &m->life)->whole = 0;
    const qr_sim_file_t *f = qr_sim_store_file(qr_sim_given(given)->store, self->node, m->content);
    m->blame = f;
    m->damage = f == NULL;
    m->reason = f ? 0 : QR_E_NOT_FOUND;
    if (!f) return;
    m->file = f->on_disk;
    if (m->stamp != 1 + f->times) m->whole = 1; /* rewritten since its lease */
    m->fails = move_fails(self);
    m->garbage = m->fails || qr_sim_draw(GARBAGE_ONE_IN) == 0;
    m->reason = judge_file(m);
}

/* One page of rows. What is wrong is known only in the end, and then the rows are there. */
static void advance_upload(const transfer_t *self, const qr_given_t *given, move_t *m, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!m->began_us) {
        m->began_us = now_us;
        if (m->kept)
            open_memory(self, given, m);
        else
            open_file(self, given, m);
        m->at = m->from_row;
        if (m->reason == QR_E_NOT_FOUND) {
            answer_upload(self, given, m, m->reason, now_us, outbox);
            return;
        }
        for (uint32_t r = m->from_row; m->garbage && r < m->end; r++)
            *row_of(self, given, m, r, true) = (qr_sim_row_word_t){qr_sim_draw(UINT64_MAX), 0}; /* H2 */
    }
    uint32_t size = given->layout.page_tokens, to = qr_min_u32(m->end, (m->at / size + 1) * size);
    uint32_t cost = m->kept ? qr_max_u32(1, size / MEMORY_FASTER) : size;
    for (; m->at < to; m->at++)
        if (m->at - m->start < m->file.count && !m->fails)
            *row_of(self, given, m, m->at, true) = (qr_sim_row_word_t){m->file.words[m->at - m->start], m->file.scope};
    if (m->at == m->end) answer_upload(self, given, m, m->reason, now_us, outbox);
    m->due_us = now_us + move_us(self, given, cost);
}

static void answer_download(const transfer_t *self, const qr_given_t *given, uint32_t reason, uint64_t now_us, qr_outbox_t *outbox)
{
    move_t *m = (move_t *)(uintptr_t)&self->download;
    qr_page_downloaded_t body = {.key = m->key, .reason = reason, .bytes = reason ? 0 : 8ull * (m->end - m->start)};
    body.move_us = now_us - m->asked_us;
    counts_of(given)->downloads += reason == 0;
    qr_send(outbox, qr_address_partner(self->address, QR_ROLE_checkpoint_writer), page_downloaded, &body);
    m->open = 0;
}

static void advance_download(transfer_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    move_t *m = &self->download;
    qr_sim_slot_t *slot = qr_sim_store_slot(qr_sim_given(given)->store, self->node, self->device, m->slot);
    uint32_t size = given->layout.page_tokens, to = qr_min_u32(m->end, (m->at / size + 1) * size);
    for (; m->at < to; m->at++) {
        const qr_sim_row_word_t *row = row_of(self, given, m, m->at, false);
        slot->words[m->at - m->start] = row->word;
        if (row->scope && slot->scope && row->scope != slot->scope) qr_sim_finding("rows of two scopes are captured as one chunk");
        if (row->scope) slot->scope = row->scope;
    }
    m->due_us = now_us + move_us(self, given, size);
    if (m->at < m->end) return;
    bool fails = move_fails(self);
    slot->filled = !fails;
    answer_download(self, given, fails ? QR_E_IO : 0, now_us, outbox);
}

static uint32_t *floor_of(const transfer_t *self, const qr_given_t *given, uint32_t group, uint64_t page)
{
    uint32_t *floors = (uint32_t *)(void *)((uint8_t *)(uintptr_t)self + self->floors_at), before = 0;
    for (uint32_t g = 0; g < group; g++) before += given->layout.groups[g].pages;
    return &floors[before + qr_handle_index(page)];
}

/* Whether a page was fenced under this generation, or a later one. */
static bool is_stale(const transfer_t *self, const qr_given_t *given, const move_t *m)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (qr_handle_generation(m->pages[i]) < *floor_of(self, given, m->group, m->pages[i])) return true;
    return false;
}

static void keep_pages(move_t *m, const qr_u64s_t *pages)
{
    if (pages->count > PAGES_MAX) qr_sim_finding("a move of %llu pages", (unsigned long long)pages->count);
    m->count = (uint32_t)pages->count;
    qr_copy(m->pages, pages->data, 8 * pages->count);
}

/* H7. Whether the memory that an upload names exists; that its asker has a lease of it, or of the file. */
static bool may_touch(const transfer_t *self, const qr_given_t *given, const move_t *m, uint64_t asker)
{
    qr_sim_store_t *store = qr_sim_given(given)->store;
    uint32_t most = qr_sim_store_work(store)->ram_slots;
    if (m->kept > most || m->keep > most || (m->kept && m->keep)) {
        if (qr_sim_world()) qr_sim_finding("an upload names memory that does not exist");
        return false;
    }
    if (!qr_sim_store_may(qr_sim_world(), self->node, asker, m->chain, m->group, m->kept, m->keep))
        qr_sim_finding("an upload of group %u at %u names what its asker has no lease of", m->group, m->start);
    return true;
}

static void on_upload(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_upload_t *b = &message->body.page_upload;
    move_t *m = self->uploads;
    while (m < self->uploads + QR_RESTORE_UPLOADS && m->open) m++;
    qr_assert(m < self->uploads + QR_RESTORE_UPLOADS);
    memset(m, 0, sizeof *m);
    m->open = 1;
    m->key = b->key;
    m->asked_us = message->now_us;
    m->group = b->group;
    m->start = b->start;
    m->end = b->start + (uint32_t)b->tokens.count;
    m->from_row = b->from_row;
    m->first_block = b->first_block;
    m->whole = b->whole;
    m->stamp = b->stamp.bytes[0];
    m->kept = b->kept;
    m->keep = b->keep;
    m->tokens = qr_sim_store_tokens(b->tokens.data, b->tokens.count);
    memcpy(m->content, b->content.bytes, 32);
    memcpy(m->parent, b->parent.bytes, 32);
    memcpy(m->chain, b->chain.bytes, 32);
    keep_pages(m, &b->pages);
    m->due_us = message->now_us + move_us(self, given, given->layout.page_tokens);
    if (!may_touch(self, given, m, message->from))
        answer_upload(self, given, m, QR_E_INVALID, message->now_us, outbox);
    else if (is_stale(self, given, m))
        answer_upload(self, given, m, QR_E_STALE, message->now_us, outbox);
}

static void on_download(transfer_t *self, const qr_given_t *given, const qr_message_t *message)
{
    const qr_page_download_t *b = &message->body.page_download;
    move_t *m = &self->download;
    qr_assert(!m->open);
    memset(m, 0, sizeof *m);
    m->open = 1;
    m->key = b->key;
    m->asked_us = message->now_us;
    m->slot = b->slot;
    m->group = b->group;
    m->start = m->at = b->start;
    m->end = b->start + b->rows;
    m->first_block = b->first_block;
    keep_pages(m, &b->pages);
    qr_sim_slot_t *slot = qr_sim_store_slot(qr_sim_given(given)->store, self->node, self->device, b->slot);
    *slot = (qr_sim_slot_t){.group = b->group, .start = b->start, .count = b->rows};
    m->due_us = message->now_us + move_us(self, given, given->layout.page_tokens);
}

/* ---- rows of preempted requests (H6) --------------------------------------------------------------------------------------------- */

static spill_t *find_spill(transfer_t *self, uint64_t key)
{
    for (uint32_t i = 0; i < SPILLS; i++)
        if (self->spills[i].key == key) return &self->spills[i];
    return NULL;
}

static bool drop_spill(transfer_t *self, const qr_given_t *given, uint64_t key)
{
    spill_t *s = key ? find_spill(self, key) : NULL;
    if (!s) return false;
    self->used -= (uint32_t)qr_div_up(s->rows, given->layout.page_tokens);
    *s = (spill_t){0};
    return true;
}

static qr_sim_row_word_t *kept_row(transfer_t *self, const qr_given_t *given, const spill_t *s, uint32_t group, uint32_t row)
{
    qr_sim_row_word_t *words = (qr_sim_row_word_t *)(void *)((uint8_t *)self + self->words_at);
    return &words[((uint64_t)(s - self->spills) * given->layout.group_count + group) * given->layout.context_tokens + row];
}

static spill_move_t *move_of(transfer_t *self, uint64_t key)
{
    for (uint32_t i = 0; i < SPILL_MOVES; i++)
        if (self->moves[i].open && self->moves[i].key == key) return &self->moves[i];
    return NULL;
}

static uint64_t spill_us(const transfer_t *self, const qr_given_t *given)
{
    uint32_t slow = qr_max_u32(1, qr_world_fault(qr_sim_world(), self->node, QR_FAULT_SLOW));
    return 1 + qr_sim_draw(1 + given->layout.page_tokens * qr_sim_given(given)->spills->row_ns / 1000) * slow;
}

static void answer_spill(transfer_t *self, const qr_given_t *given, spill_move_t *m, uint32_t reason, uint64_t now_us, qr_outbox_t *outbox)
{
    qr_sim_spills_t *counts = qr_sim_given(given)->spills;
    uint64_t scheduler = qr_address_partner(self->address, QR_ROLE_scheduler), took_us = m->began_us ? now_us - m->began_us : 0;
    if (m->back) {
        uint32_t boundary = reason == 0 ? m->end : reason == QR_E_DIGEST ? m->at : m->start;
        counts->unspilled += boundary - m->start;
        counts->unspills_failed += reason != 0;
        qr_send(outbox, scheduler, page_unspilled,
                (&(qr_page_unspilled_t){
                    .key = m->key, .boundary = boundary, .reason = reason, .bytes = 8ull * (boundary - m->start), .move_us = took_us}));
    } else {
        counts->spilled += reason ? 0 : m->end;
        counts->refused += reason != 0;
        qr_send(outbox, scheduler, page_spilled,
                (&(qr_page_spilled_t){.key = m->key, .reason = reason, .bytes = reason ? 0 : 8ull * m->end, .move_us = took_us}));
    }
    if (reason || m->back) (void)drop_spill(self, given, m->key);
    m->open = 0;
}

/* Rows of one page of every group. */
static void advance_spill(transfer_t *self, const qr_given_t *given, spill_move_t *m, uint64_t now_us, qr_outbox_t *outbox)
{
    const spill_t *s = find_spill(self, m->key);
    uint32_t size = given->layout.page_tokens, blocks = m->count / given->layout.group_count, block = (m->at - m->start) / size;
    uint32_t end = qr_min_u32(m->end, m->at + size);
    void *device = qr_sim_given(given)->executor;
    if (!device) device = qr_world_state(qr_sim_world(), qr_sim_address(self->node, self->device, QR_ROLE_executor));
    if (!m->began_us) m->began_us = now_us;
    bool fails = m->fails && (end == m->end || qr_sim_draw(2) == 0);
    for (uint32_t g = 0; g < given->layout.group_count; g++)
        for (uint32_t r = m->at; r < end; r++) {
            uint64_t page = m->pages[g * blocks + block];
            if (m->back && qr_sim_world() && !has_claim(self->loads, QR_LANES_MAX, g, page))
                qr_sim_finding("row %u of group %u comes back into a page that is not loading any more", r, g);
            qr_sim_row_word_t *row = qr_sim_device_row(device, given, g, page, r % size), *kept = kept_row(self, given, s, g, r);
            if (!m->back)
                *kept = *row;
            else
                *row = fails ? (qr_sim_row_word_t){qr_sim_draw(UINT64_MAX), 0} : *kept;
        }
    if (fails) {
        answer_spill(self, given, m, m->back ? QR_E_DIGEST : QR_E_MEMORY, now_us, outbox);
        return;
    }
    m->at = end;
    if (m->at == m->end) answer_spill(self, given, m, 0, now_us, outbox);
    m->due_us = now_us + spill_us(self, given);
}

static uint32_t page_reason(const transfer_t *self, const qr_given_t *given, uint32_t group, uint64_t page)
{
    if (qr_handle_index(page) >= given->layout.groups[group].pages || qr_handle_generation(page) == 0) return QR_E_INVALID;
    return qr_handle_generation(page) < *floor_of(self, given, group, page) ? QR_E_STALE : 0;
}

/* 0 and a move of rows [start, end), or why not. */
static uint32_t open_spill(transfer_t *self, const qr_given_t *given, uint64_t key, uint32_t start, uint32_t end, const qr_u64s_t *pages,
                           uint64_t now_us, spill_move_t **ret_move)
{
    uint32_t size = given->layout.page_tokens;
    if (key == 0 || start >= end || end > given->layout.context_tokens || start % size) return QR_E_INVALID;
    uint64_t blocks = qr_div_up(end, size) - start / size;
    if (pages->count != blocks * given->layout.group_count || pages->count > PAGES_MAX) return QR_E_INVALID;
    for (uint64_t i = 0; i < pages->count; i++) {
        uint32_t reason = page_reason(self, given, (uint32_t)(i / blocks), pages->data[i]);
        if (reason) return reason;
    }
    if (move_of(self, key)) return QR_E_IN_USE;
    spill_move_t *m = self->moves;
    while (m < self->moves + SPILL_MOVES && m->open) m++;
    if (m == self->moves + SPILL_MOVES) return QR_E_BUSY;
    *m = (spill_move_t){.key = key, .open = 1, .start = start, .end = end, .at = start, .count = (uint32_t)pages->count};
    qr_copy(m->pages, pages->data, 8 * pages->count);
    m->asked_us = now_us;
    uint32_t one_in = qr_sim_given(given)->spills->fail_one_in;
    m->fails = (one_in && qr_sim_draw(one_in) == 0) || move_fails(self);
    m->due_us = now_us + spill_us(self, given);
    *ret_move = m;
    return 0;
}

/* Our own actors ask nothing that has to be refused. */
static void refuse_spill(const char *what, uint64_t key, uint32_t reason)
{
    if (qr_sim_world() && reason != QR_E_SHORTFALL) qr_sim_finding("%s of key %llu: reason %u", what, (unsigned long long)key, reason);
}

static void on_page_spill(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_spill_t *b = &message->body.page_spill;
    spill_move_t *m = NULL;
    uint32_t pages = (uint32_t)qr_div_up(b->rows, given->layout.page_tokens);
    uint32_t reason = open_spill(self, given, b->key, 0, b->rows, &b->pages, message->now_us, &m);
    if (!reason && find_spill(self, b->key)) reason = QR_E_IN_USE;
    spill_t *s = reason ? NULL : find_spill(self, 0);
    if (!reason && (!s || self->used + pages > self->room)) reason = QR_E_SHORTFALL;
    if (!reason) {
        *s = (spill_t){.key = b->key, .rows = b->rows};
        self->used += pages;
        return;
    }
    if (m) m->open = 0;
    refuse_spill("page_spill", b->key, reason);
    qr_sim_given(given)->spills->refused++;
    qr_send(outbox, message->from, page_spilled, (&(qr_page_spilled_t){.key = b->key, .reason = reason}));
}

static void on_page_unspill(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_unspill_t *b = &message->body.page_unspill;
    const spill_t *s = b->key ? find_spill(self, b->key) : NULL;
    spill_move_t *m = NULL;
    uint32_t reason = !s ? QR_E_NOT_FOUND : b->end_rows != s->rows ? QR_E_INVALID : 0;
    if (!reason) reason = open_spill(self, given, b->key, b->start_rows, b->end_rows, &b->pages, message->now_us, &m);
    if (reason) {
        refuse_spill("page_unspill", b->key, reason);
        qr_sim_given(given)->spills->unspills_failed++;
        qr_send(outbox, message->from, page_unspilled,
                (&(qr_page_unspilled_t){.key = b->key, .boundary = b->start_rows, .reason = reason}));
        if (reason != QR_E_IN_USE) (void)drop_spill(self, given, b->key);
        return;
    }
    m->back = 1;
    void *device = qr_sim_given(given)->executor;
    if (!device) device = qr_world_state(qr_sim_world(), qr_sim_address(self->node, self->device, QR_ROLE_executor));
    if (m->fails || qr_sim_draw(GARBAGE_ONE_IN) == 0) /* H2 */
        for (uint32_t i = 0; i < m->count; i++)
            for (uint32_t r = 0; r < given->layout.page_tokens; r++)
                *qr_sim_device_row(device, given, i / (m->count / given->layout.group_count), m->pages[i], r) =
                    (qr_sim_row_word_t){qr_sim_draw(UINT64_MAX), 0};
}

static void on_spill_drop(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint64_t key = message->body.spill_drop.key;
    uint32_t reason = move_of(self, key) ? QR_E_IN_USE : drop_spill(self, given, key) ? 0 : QR_E_NOT_FOUND;
    if (reason) refuse_spill("spill_drop", key, reason);
    qr_sim_given(given)->spills->dropped += reason == 0;
    qr_send(outbox, message->from, spill_dropped, (&(qr_spill_dropped_t){.key = key, .reason = reason}));
}

static bool is_fenced_spill(const spill_move_t *m, const qr_given_t *given, const qr_fence_t *b)
{
    for (uint64_t i = 0; m->open && i < b->pages.count; i++)
        for (uint32_t k = 0; k < m->count; k++)
            if (m->pages[k] == b->pages.data[i] && k / (m->count / given->layout.group_count) == b->groups.data[i]) return true;
    return false;
}

/* H4 */
static bool is_fenced(const move_t *m, const qr_fence_t *b)
{
    for (uint64_t i = 0; m->open && i < b->pages.count; i++)
        for (uint32_t k = 0; b->groups.data[i] == m->group && k < m->count; k++)
            if (m->pages[k] == b->pages.data[i]) return true;
    return false;
}

static void on_fence(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_fence_t *b = &message->body.fence;
    if (qr_sim_given(given)->store) counts_of(given)->fenced++;
    for (uint32_t i = 0; i < SPILL_MOVES; i++)
        if (is_fenced_spill(&self->moves[i], given, b)) answer_spill(self, given, &self->moves[i], QR_E_FENCED, message->now_us, outbox);
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++)
        if (is_fenced(&self->uploads[i], b)) answer_upload(self, given, &self->uploads[i], QR_E_FENCED, message->now_us, outbox);
    for (uint64_t i = 0; i < b->pages.count; i++) {
        uint32_t *floor = floor_of(self, given, b->groups.data[i], b->pages.data[i]);
        *floor = qr_max_u32(*floor, qr_handle_generation(b->pages.data[i]) + 1);
    }
    if (is_fenced(&self->download, b)) answer_download(self, given, QR_E_FENCED, message->now_us, outbox);
    qr_send(outbox, message->from, fenced, &(qr_fenced_t){.fence_id = b->fence_id});
}

static void on_time(transfer_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) {
        move_t *m = &self->uploads[i];
        if (m->open && m->due_us <= now_us) advance_upload(self, given, m, now_us, outbox);
    }
    if (self->download.open && self->download.due_us <= now_us) advance_download(self, given, now_us, outbox);
    for (uint32_t i = 0; i < SPILL_MOVES; i++)
        if (self->moves[i].open && self->moves[i].due_us <= now_us) advance_spill(self, given, &self->moves[i], now_us, outbox);
}

static void on_stop(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++)
        if (self->uploads[i].open) answer_upload(self, given, &self->uploads[i], QR_E_CANCELLED, message->now_us, outbox);
    if (self->download.open) answer_download(self, given, QR_E_CANCELLED, message->now_us, outbox);
    for (uint32_t i = 0; i < SPILL_MOVES; i++)
        if (self->moves[i].open) answer_spill(self, given, &self->moves[i], QR_E_CANCELLED, message->now_us, outbox);
    qr_send(outbox, message->from, stopped, &(qr_stopped_t){0});
}

/* ---- what is said ------------------------------------------------------------------------------------------------------------------ */

static void see_restore(transfer_t *self, const qr_given_t *given, const qr_restore_t *b)
{
    claim_t *c = find_claim(self->restores, QR_LANES_MAX, 0, false);
    qr_assert(c && b->pages.count <= PAGES_MAX);
    *c = (claim_t){.id = b->restore_id, .open = 1, .count = (uint32_t)b->pages.count, .start_rows = b->start_rows};
    qr_copy(c->pages, b->pages.data, 8 * b->pages.count);
    for (uint32_t i = 0; i < c->count; i++) c->groups[i] = i / (c->count / given->layout.group_count);
    counts_of(given)->restores++;
}

static void see_restored(transfer_t *self, const qr_given_t *given, const qr_restored_t *b)
{
    claim_t *c = find_claim(self->restores, QR_LANES_MAX, b->restore_id, true);
    if (!c) qr_sim_finding("a restore is answered twice");
    c->open = 0;
    counts_of(given)->restores_whole += b->reason == 0;
    counts_of(given)->restored_rows += b->boundary - c->start_rows;
}

static void see_loading(transfer_t *self, const qr_given_t *given, const qr_pages_loading_t *b)
{
    if (b->reason) return;
    claim_t *c = find_claim(self->loads, QR_LANES_MAX, 0, false);
    qr_assert(c && b->pages.count <= PAGES_MAX);
    *c = (claim_t){.id = b->route, .open = 1, .count = (uint32_t)b->pages.count};
    qr_copy(c->pages, b->pages.data, 8 * b->pages.count);
    for (uint32_t i = 0; i < c->count; i++) c->groups[i] = i / (c->count / given->layout.group_count);
}

static void see_load_ended(transfer_t *self, uint64_t route)
{
    claim_t *c = find_claim(self->loads, QR_LANES_MAX, route, true);
    if (c) c->open = 0;
}

static void see_pinned(transfer_t *self, const qr_given_t *given, const qr_pages_pinned_t *b)
{
    claim_t *c = find_claim(self->pins, PINS, 0, false);
    if (b->reason) return;
    qr_assert(c && b->pages.count <= PAGES_MAX);
    *c = (claim_t){.id = b->lease, .open = 1, .count = (uint32_t)b->pages.count};
    qr_copy(c->pages, b->pages.data, 8 * b->pages.count);
    for (uint32_t i = 0, g = 0, of_group = 0; i < c->count; i++, of_group++) {
        while (g + 1 < given->layout.group_count && of_group == b->group_counts.data[g]) g++, of_group = 0;
        c->groups[i] = g;
    }
}

static void see_unpin(transfer_t *self, uint64_t lease)
{
    claim_t *c = find_claim(self->pins, PINS, lease, true);
    if (!c) qr_sim_finding("pages are unpinned that are not pinned");
    c->open = 0;
}

static asked_t *find_asked(transfer_t *self, uint64_t request_id, uint32_t attempt)
{
    for (uint32_t i = 0; i < self->asked_end; i++)
        if (self->asked[i].open && self->asked[i].request_id == request_id && self->asked[i].attempt == attempt) return &self->asked[i];
    return NULL;
}

static void see_submit(transfer_t *self, const qr_submit_t *b)
{
    asked_t *a = self->asked;
    while (a < self->asked + ASKED && a->open) a++;
    if (a == self->asked + ASKED) return;
    *a = (asked_t){.request_id = b->request_id, .attempt = b->attempt, .prompt = qr_min_u32(b->generated_from, ROWS_MAX), .open = 1};
    self->asked_end = qr_max_u32(self->asked_end, (uint32_t)(a - self->asked) + 1);
}

static void see_lane(transfer_t *self, const qr_lane_open_t *b)
{
    asked_t *a = find_asked(self, b->request_id, b->attempt);
    if (!a) return;
    a->lane = b->lane;
    a->lanes++;
    memset(a->sent, 0, sizeof a->sent);
}

static void see_granted(transfer_t *self, const qr_pages_granted_t *b)
{
    asked_t *a = find_asked(self, b->request_id, b->attempt);
    if (a) a->route = b->route;
}

static void see_batch(transfer_t *self, const qr_batch_run_t *b)
{
    for (uint64_t i = 0; i < b->lanes.count; i++)
        for (uint32_t k = 0; k < self->asked_end; k++) {
            asked_t *a = &self->asked[k];
            if (!a->open || a->lane != b->lanes.data[i]) continue;
            uint32_t end = qr_min_u32(a->prompt, b->starts.data[i] + b->row_counts.data[i]);
            for (uint32_t r = b->starts.data[i]; r < end; r++) a->sent[r / 64] |= 1ull << r % 64;
        }
}

static void see_committed(transfer_t *self, const qr_rows_committed_t *b)
{
    for (uint64_t i = 0; i < b->routes.count; i++)
        for (uint32_t k = 0; k < self->asked_end; k++) {
            asked_t *a = &self->asked[k];
            if (!a->open || a->route != b->routes.data[i]) continue;
            for (uint32_t r = 0; r < qr_min_u32(a->prompt, b->rows.data[i]); r++) {
                bool news = (a->sent[r / 64] >> r % 64 & 1) && !(a->rows[r / 64] >> r % 64 & 1);
                a->computed += news;
                a->rows[r / 64] |= (uint64_t)news << r % 64;
            }
        }
}

/* H5 */
static void see_ended(transfer_t *self, const qr_ended_t *b)
{
    asked_t *a = find_asked(self, b->request_id, b->attempt);
    if (!a) return;
    bool fine = b->finish == QR_FINISH_STOP || b->finish == QR_FINISH_LENGTH, exact = a->lanes == 1;
    /* What its earlier worker had still delivered may end it (a stop) before its prompt stands here; all that was computed is said. */
    if (b->cached_tokens + b->computed_tokens < a->prompt && b->computed_tokens == a->computed) exact = false;
    /* Of what it found after it had been placed again some may go uncounted. */
    if (fine && (b->cached_tokens > a->prompt - a->computed || (exact && b->cached_tokens != a->prompt - a->computed)))
        qr_sim_finding("request %llu says that %u rows were reused; of %u prompt rows %u were computed for it",
                       (unsigned long long)b->request_id, b->cached_tokens, a->prompt, a->computed);
    a->open = 0;
}

void qr_sim_moves_watch(const qr_given_t *given, const qr_message_t *message)
{
    uint32_t node = qr_address_node(message->from) - 1, device = qr_address_device(message->from);
    if (device == 0) return;
    transfer_t *self = qr_world_state(qr_sim_world(), qr_sim_address(node, device, QR_ROLE_transfer));
    if (!self) return;
    bool restores = message->type == QR_MESSAGE_restore || message->type == QR_MESSAGE_restored;
    if (restores && !qr_sim_given(given)->store) return; /* asked of a restorer that moves nothing */
    switch (message->type) {
    case QR_MESSAGE_restore: see_restore(self, given, &message->body.restore); break;
    case QR_MESSAGE_restored: see_restored(self, given, &message->body.restored); break;
    case QR_MESSAGE_pages_loading: see_loading(self, given, &message->body.pages_loading); break;
    case QR_MESSAGE_load_ended: see_load_ended(self, message->body.load_ended.route); break;
    case QR_MESSAGE_pages_pinned: see_pinned(self, given, &message->body.pages_pinned); break;
    case QR_MESSAGE_pages_unpin: see_unpin(self, message->body.pages_unpin.lease); break;
    case QR_MESSAGE_submit: see_submit(self, &message->body.submit); break;
    case QR_MESSAGE_lane_open: see_lane(self, &message->body.lane_open); break;
    case QR_MESSAGE_batch_run: see_batch(self, &message->body.batch_run); break;
    case QR_MESSAGE_pages_granted: see_granted(self, &message->body.pages_granted); break;
    case QR_MESSAGE_rows_committed: see_committed(self, &message->body.rows_committed); break;
    case QR_MESSAGE_ended: see_ended(self, &message->body.ended); break;
    default: break;
    }
}

bool qr_sim_moves_are_quiet(const qr_world_t *world, uint32_t node, uint32_t device, char *text, size_t text_bytes)
{
    const transfer_t *self = qr_world_state(world, qr_sim_address(node, device, QR_ROLE_transfer));
    uint32_t restores = 0, pins = 0, moves = 0, spills = 0;
    for (uint32_t i = 0; self && i < SPILLS; i++) spills += self->spills[i].key != 0;
    for (uint32_t i = 0; self && i < SPILL_MOVES; i++) moves += self->moves[i].open;
    for (uint32_t i = 0; self && i < QR_LANES_MAX; i++) restores += self->loads[i].open;
    for (uint32_t i = 0; self && i < QR_LANES_MAX; i++) restores += self->restores[i].open;
    for (uint32_t i = 0; self && i < PINS; i++) pins += self->pins[i].open;
    for (uint32_t i = 0; self && i < QR_RESTORE_UPLOADS; i++) moves += self->uploads[i].open;
    if (self) moves += self->download.open;
    if (!restores && !pins && !moves && !spills) return true;
    (void)snprintf(text, text_bytes, "at the end device %u of node %u has %u restores, %u pins, %u moves and rows of %u requests", device,
                   node + 1, restores, pins, moves, spills);
    return false;
}

/* ---- the actor ------------------------------------------------------------------------------------------------------------------- */

static void transfer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    transfer_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: qr_send(outbox, message->from, ready, &(qr_ready_t){0}); break;
    case QR_MESSAGE_stop: on_stop(self, given, message, outbox); break;
    case QR_MESSAGE_metrics_read: qr_send(outbox, message->from, metrics, &(qr_metrics_t){0}); break;
    case QR_MESSAGE_alarm: on_time(self, given, message->now_us, outbox); break;
    case QR_MESSAGE_page_upload: on_upload(self, given, message, outbox); break;
    case QR_MESSAGE_page_download: on_download(self, given, message); break;
    case QR_MESSAGE_page_spill: on_page_spill(self, given, message, outbox); break;
    case QR_MESSAGE_page_unspill: on_page_unspill(self, given, message, outbox); break;
    case QR_MESSAGE_spill_drop: on_spill_drop(self, given, message, outbox); break;
    case QR_MESSAGE_fence: on_fence(self, given, message, outbox); break;
    default: break;
    }
    outbox->alarm_us = QR_NEVER_US;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++)
        if (self->uploads[i].open) qr_outbox_alarm(outbox, self->uploads[i].due_us);
    if (self->download.open) qr_outbox_alarm(outbox, self->download.due_us);
    for (uint32_t i = 0; i < SPILL_MOVES; i++)
        if (self->moves[i].open) qr_outbox_alarm(outbox, self->moves[i].due_us);
}

/* Floors, then the rows that are kept. */
static uint64_t words_at(const qr_given_t *given)
{
    uint64_t pages = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++) pages += given->layout.groups[g].pages;
    return qr_div_up(sizeof(transfer_t) + pages * sizeof(uint32_t), 16) * 16;
}

static uint64_t transfer_bytes(const qr_given_t *given)
{
    uint64_t rows = (uint64_t)SPILLS * given->layout.group_count * given->layout.context_tokens;
    return words_at(given) + (qr_sim_given(given)->spills ? rows * sizeof(qr_sim_row_word_t) : 0);
}

static void transfer_init(void *block, const qr_given_t *given, uint64_t address)
{
    transfer_t *self = block;
    self->address = address;
    self->node = qr_address_node(address) - 1;
    self->device = qr_address_device(address);
    self->floors_at = sizeof(transfer_t);
    self->words_at = words_at(given);
    uint64_t row_bytes = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++) row_bytes += given->layout.groups[g].row_bytes;
    self->room = (uint32_t)(given->params.spill_bytes / qr_max_u64(1, given->layout.page_tokens * row_bytes));
}

static void transfer_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const transfer_t *self = block;
    (void)given;
    qr_text_put(text, "transfer: uploads ");
    qr_text_put_u64(text, (uint64_t)self->uploads[0].open + self->uploads[1].open);
    qr_text_put(text, self->download.open ? ", a download\n" : "\n");
}

const qr_actor_class_t qr_sim_transfer_class = {
    .name = "transfer",
    .role = QR_ROLE_transfer,
    .max_out = QR_RESTORE_UPLOADS + SPILL_MOVES + 4,
    .owns_world = true,
    .bytes = transfer_bytes,
    .init = transfer_init,
    .handle = transfer_handle,
    .print = transfer_print,
};
