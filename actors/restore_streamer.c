/* restore_streamer.c - owns restores: durable chunks on their way into pages that are loading.
 *
 *   scheduler                 restore_streamer                  storage          transfer
 *     restore ------------------> | -- chunk_lease ------------> |
 *     restore_cancel -----------> | <-------- chunk_leased ----- |
 *                                 | -- page_upload -----------------------------> |   into the loading pages
 *                                 | <----------------------------- page_uploaded -|
 *                                 | -- chunk_release ----------> |
 *     <-- restored -------------- |
 *
 * A restore's parts are the chunks that hold its rows, from the first on, and of each chunk one part per retention group. Every group's
 * part of every chunk is loaded, also what lies before the window of the end: page_manager keeps every page of a committed load as
 * reusable rows, and a restore may end at any chunk. Files are leased ahead of the uploads, one upload moves while one waits, and
 * restores that are open together take turns.
 *
 * Storage says whether a part lies in its RAM tier: then the lease is of that memory, and the upload reads no file. One that reads a file
 * may fill a place in RAM by the way; the release says whether it did.
 *
 * Whatever goes wrong with a part ends the restore at that part's chunk; what comes before it still goes on. A cancel, a stop and a
 * restore for which nothing was answered for restore_max_ms halt it: nothing new begins. Either way `restored` is sent when no upload of
 * the restore is under way, be it ever so late: it promises that nothing writes into its pages any more (load_ended is quiet by it). A
 * lease that is answered after its restore ended is released at once.
 *
 * At the bounds: a restore beyond max_lanes is refused BUSY; a file beyond QR_RESTORE_LEASES waits for one that is released.
 *
 * R1. Parts [0, base) are verified, and those whose bit is set in `verified` (bit i: part base + i; bit 0 is clear). The boundary is
 *     the end of the last chunk of which all groups are below base.
 * R2. An unverified part of [base, next_part) has exactly one file, unless the restore wants no more of it.
 * R3. A file is FREE, ASKED (lease), LEASED, MOVING (upload) or RELEASING; the lease is held from LEASED on and released once. At most
 *     QR_RESTORE_UPLOADS move; none waits LEASED while fewer do, or when nobody wants it.
 * R4. stop_part and parts are multiples of the groups: a chunk is wanted whole or not at all. A restore has a reason exactly when it is
 *     halted or stop_part < parts.
 * R5. An open restore moves something, or wants something and is not halted.
 * R6. `restored` was sent exactly when the restore is not open: none of its uploads is under way then. */
#include "actors/restore_streamer.h"

#include "actors/note.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/mutant.h"

enum {
    PARTS_AHEAD = 64,    /* parts beyond base that may be asked for: bits of `verified` */
    HASH_TOKENS = 16384, /* tokens hashed in one call; a longer prefix goes on in the next one, so that no step is delayed */
};
#define NONE UINT32_MAX

enum { FREE, ASKED, LEASED, MOVING, RELEASING };
/* Why restores ended early, as they are counted. */
enum { WHY_NOT_FOUND, WHY_DAMAGED, WHY_IO, WHY_DEADLINE, WHY_CANCELLED, WHY_OTHER, WHYS };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct restore {
    uint64_t restore_id, request_id, asker;
    uint64_t progress_us; /* when anything was last answered for it, or it came */
    uint64_t bytes, localise_us, move_us, queue_us;
    uint64_t ram_rows, ram_us; /* of group 0, out of memory; of all groups */
    uint64_t verified;
    uint32_t open, start_rows, end_rows, first_chunk;
    uint32_t parts, stop_part;     /* in all; none from stop_part on is wanted */
    uint32_t next_part, base;      /* part to lease next */
    uint32_t hashed, halted;       /* chunks whose hash is known */
    uint32_t reason, moving;       /* uploads under way */
    uint8_t parent[32], chain[32]; /* of chunk hashed - 1; chain is the root before the first */
} restore_t;

typedef struct file {
    uint64_t lease, bytes;
    uint64_t asked_us; /* ASKED, MOVING: since when */
    uint64_t ticket;   /* uploads go in the order of their leases' asking */
    uint32_t state, generation;
    uint32_t restore, part; /* restore NONE: nobody wants it any more */
    uint8_t parent[32], chain[32], content[32], stamp[32];
    uint32_t kept, keep; /* RAM slots + 1 of the lease: what it is of, and what its upload fills */
    uint64_t trusted;
} file_t;

typedef struct restore_streamer {
    uint64_t address, epoch, storage, tokens_at, pages_at;
    uint64_t drain_asker, drain_by_us, stop_asker, stop_by_us;
    uint64_t tickets, hash_left; /* tokens that this call may still hash */
    uint64_t restores, refused, rows, bytes, localise_us, move_us, verify_failures, ram_rows, ram_us;
    uint64_t failures[WHYS];
    uint32_t draining, turn; /* restore whose turn it is */
    uint32_t slots, tokens_max, blocks_max, group_count, page_tokens, chunk_tokens;
    restore_t restore_table[QR_LANES_MAX];
    file_t files[QR_RESTORE_LEASES];
} restore_streamer_t;
#pragma GCC diagnostic pop

/* ---- where things are -------------------------------------------------------------------------------------------------- */

static uint32_t *tokens_of(const restore_streamer_t *self, uint32_t r)
{
    return (uint32_t *)((uintptr_t)self + self->tokens_at) + (uint64_t)r * self->tokens_max;
}
/* [groups][blocks of the load] of a restore. */
static uint64_t *pages_of(const restore_streamer_t *self, uint32_t r)
{
    return (uint64_t *)((uintptr_t)self + self->pages_at) + (uint64_t)r * self->group_count * self->blocks_max;
}
static uint32_t first_block(const restore_streamer_t *self, const restore_t *r) { return r->start_rows / self->page_tokens; }
static uint32_t block_count(const restore_streamer_t *self, uint32_t start_rows, uint32_t end_rows)
{
    return (uint32_t)qr_div_up(end_rows, self->page_tokens) - start_rows / self->page_tokens;
}
static uint64_t key_of(const restore_streamer_t *self, const file_t *f) { return qr_handle((uint32_t)(f - self->files), f->generation); }
/* The file of a key in that state, or NULL. */
static file_t *find_file(restore_streamer_t *self, uint64_t key, uint32_t state)
{
    uint32_t i = qr_handle_index(key);
    if (i >= QR_RESTORE_LEASES || self->files[i].state != state) return NULL;
    return self->files[i].generation == qr_handle_generation(key) || QR_MUTANT(600) ? &self->files[i] : NULL;
}
static restore_t *restore_of(restore_streamer_t *self, const file_t *f)
{
    return f->restore == NONE ? NULL : &self->restore_table[f->restore];
}

/* End of the last chunk of which every group is verified. */
static uint32_t boundary_of(const restore_streamer_t *self, const restore_t *r)
{
    uint32_t chunks = r->base / self->group_count;
    if (QR_MUTANT(494) && r->reason && chunks) chunks--;
    if (QR_MUTANT(601)) chunks = (uint32_t)qr_div_up(r->base, self->group_count);
    return chunks ? (r->first_chunk + chunks) * self->chunk_tokens : r->start_rows;
}

/* ---- files ----------------------------------------------------------------------------------------------------------------- */

/* Gives a lease back; damage: what is wrong with what was leased, 0: nothing. kept: RAM has it now. */
static void release_as(restore_streamer_t *self, file_t *f, uint8_t trust, uint8_t kept, uint32_t damage, qr_outbox_t *outbox)
{
    f->restore = NONE;
    if (QR_MUTANT(490) && damage) f->lease = 0;
    f->state = f->lease ? RELEASING : FREE; /* 0: storage is gone, and the lease with it */
    if (!f->lease) return;
    qr_send(outbox, self->storage, chunk_release, &(qr_chunk_release_t){.lease = f->lease, .trust = trust, .damage = damage, .kept = kept});
}
static void release(restore_streamer_t *self, file_t *f, qr_outbox_t *outbox) { release_as(self, f, 0, 0, 0, outbox); }

static bool wants(const restore_t *r, const file_t *f) { return r && !r->halted && f->part < r->stop_part; }

/* Hashes up to the chunk of the next part; false: not in this call. */
static bool hash_to(restore_streamer_t *self, uint32_t index)
{
    restore_t *r = &self->restore_table[index];
    uint32_t chunk = r->first_chunk + r->next_part / self->group_count, size = self->chunk_tokens;
    while (r->hashed <= chunk) {
        if (self->hash_left == 0) return false;
        memcpy(r->parent, r->chain, 32);
        qr_chain_node(r->parent, tokens_of(self, index) + (uint64_t)r->hashed * size, size, r->chain);
        r->hashed++;
        self->hash_left -= qr_min_u64(self->hash_left, size);
    }
    return true;
}

static bool wanting(const restore_t *r)
{
    return r->open && !r->halted && r->next_part < r->stop_part && r->next_part < r->base + PARTS_AHEAD;
}

/* The restore whose turn it is to lease a file, NONE: none can. Files are shared equally among those who want some. */
static uint32_t next_restore(restore_streamer_t *self)
{
    uint32_t held[QR_LANES_MAX] = {0}, askers = 0;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++)
        if (self->files[i].state != FREE && self->files[i].restore != NONE) held[self->files[i].restore]++;
    for (uint32_t r = 0; r < self->slots; r++) askers += wanting(&self->restore_table[r]) || held[r];
    uint32_t share = askers ? qr_max_u32(1, QR_RESTORE_LEASES / askers) : 1;
    if (QR_MUTANT(602)) share = QR_RESTORE_LEASES;
    for (uint32_t k = 0; k < self->slots; k++) {
        uint32_t r = ((QR_MUTANT(602) ? 0 : self->turn) + k) % self->slots;
        if (wanting(&self->restore_table[r]) && held[r] < share && hash_to(self, r)) return r;
    }
    return NONE;
}

static void ask_leases(restore_streamer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        file_t *f = &self->files[i];
        if (f->state != FREE) continue;
        uint32_t index = next_restore(self);
        if (index == NONE) return;
        restore_t *r = &self->restore_table[index];
        f->state = ASKED;
        f->generation = f->generation == UINT32_MAX ? 1 : f->generation + 1;
        f->restore = index;
        f->part = r->next_part++;
        f->asked_us = now_us;
        f->ticket = ++self->tickets;
        memcpy(f->parent, r->parent, 32);
        memcpy(f->chain, r->chain, 32);
        self->turn = (index + 1) % self->slots;
        qr_chunk_lease_t body = {.key = key_of(self, f), .group = f->part % self->group_count};
        memcpy(body.chain.bytes, f->chain, 32);
        qr_send(outbox, self->storage, chunk_lease, &body);
    }
}

static void begin_upload(restore_streamer_t *self, file_t *f, uint64_t now_us, qr_outbox_t *outbox)
{
    restore_t *r = restore_of(self, f);
    uint32_t size = self->chunk_tokens, start = (r->first_chunk + f->part / self->group_count) * size, group = f->part % self->group_count;
    uint32_t from = QR_MUTANT(603) ? start : qr_max_u32(start, r->start_rows), block = from / self->page_tokens;
    uint64_t at = (uint64_t)group * block_count(self, r->start_rows, r->end_rows) + block - first_block(self, r);
    if (QR_MUTANT(604)) at = block - first_block(self, r);
    qr_page_upload_t body = {.key = key_of(self, f),
                             .bytes = f->bytes,
                             .whole = f->trusted ? 0 : 1,
                             .group = group,
                             .start = start,
                             .tokens = {tokens_of(self, f->restore) + start, size},
                             .from_row = from,
                             .first_block = block,
                             .kept = QR_MUTANT(813) ? 0 : f->kept,
                             .keep = QR_MUTANT(814) ? 0 : f->keep,
                             .pages = {pages_of(self, f->restore) + at, block_count(self, from, start + size)}};
    memcpy(body.content.bytes, f->content, 32);
    if (!QR_MUTANT(722)) memcpy(body.stamp.bytes, f->stamp, 32);
    memcpy(body.parent.bytes, f->parent, 32);
    memcpy(body.chain.bytes, f->chain, 32);
    f->state = MOVING;
    f->asked_us = now_us;
    r->moving++;
    qr_send(outbox, qr_address_partner(self->address, QR_ROLE_transfer), page_upload, &body);
}

/* Uploads in the order in which their leases were asked for, as many as may be under way (R3). */
static void begin_uploads(restore_streamer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    for (;;) {
        uint32_t moving = 0;
        file_t *next = NULL;
        for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
            file_t *f = &self->files[i];
            moving += f->state == MOVING;
            if (f->state == LEASED && (!next || f->ticket < next->ticket)) next = f;
        }
        if (!next || moving >= QR_RESTORE_UPLOADS + QR_MUTANT(605)) return;
        begin_upload(self, next, now_us, outbox);
    }
}

/* ---- restores ---------------------------------------------------------------------------------------------------------------- */

static uint32_t why(uint32_t reason)
{
    switch (reason) {
    case QR_E_NOT_FOUND: return WHY_NOT_FOUND;
    case QR_E_DIGEST:
    case QR_E_IDENTITY:
    case QR_E_FORMAT:
    case QR_E_TRUNCATED: return WHY_DAMAGED;
    case QR_E_IO: return WHY_IO;
    case QR_E_DEADLINE: return WHY_DEADLINE;
    case QR_E_CANCELLED: return WHY_CANCELLED;
    default: return WHY_OTHER;
    }
}

/* Nothing of the part's chunk or of later ones is wanted any more. */
static void fail_part(restore_streamer_t *self, restore_t *r, uint32_t part, uint32_t reason)
{
    uint32_t stop = part - part % self->group_count;
    if (stop >= r->stop_part) return;
    r->stop_part = stop;
    if (!r->halted) r->reason = reason;
}

/* Nothing new of it begins. */
static void halt(restore_t *r, uint32_t reason)
{
    if (r->halted) return;
    r->halted = 1;
    r->reason = reason;
}

/* Lets go of what it wants no more; answered when nothing of it moves (R6). */
static void settle(restore_streamer_t *self, uint32_t index, qr_outbox_t *outbox)
{
    restore_t *r = &self->restore_table[index];
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        file_t *f = &self->files[i];
        if (f->state == LEASED && f->restore == index && !wants(r, f)) release(self, f, outbox);
    }
    if (r->moving && !(QR_MUTANT(606) && r->halted)) return;
    if (!r->halted && r->base < r->stop_part) return;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++)
        if (self->files[i].restore == index) self->files[i].restore = NONE;
    uint32_t boundary = boundary_of(self, r), reason = r->base == r->parts ? 0 : r->reason;
    r->open = 0;
    self->rows += boundary - r->start_rows;
    self->ram_rows += qr_min_u64(r->ram_rows, boundary - r->start_rows);
    if (reason) {
        if (!(QR_MUTANT(491) && boundary > r->start_rows)) self->failures[why(reason)]++;
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_restore_stopped, r->request_id, reason, boundary, r->end_rows);
    }
    qr_outbox_note(outbox, QR_LEVEL_TRACE, QR_NOTE_restore_phases, r->request_id, r->localise_us, r->queue_us, r->move_us);
    qr_restored_t body = {.restore_id = r->restore_id,
                          .boundary = boundary,
                          .reason = reason,
                          .bytes = r->bytes,
                          .move_us = r->move_us,
                          .queue_us = r->queue_us,
                          .ram_rows = qr_min_u64(r->ram_rows, boundary - r->start_rows),
                          .ram_us = r->ram_us};
    if (!reason || QR_MUTANT(741)) memcpy(body.chain.bytes, r->chain, 32); /* every chunk was hashed: it is the last one's */
    qr_send(outbox, r->asker, restored, &body);
}

/* When it is given up unless something is answered. */
static uint64_t due_us(const restore_streamer_t *self, const qr_given_t *given, uint32_t index)
{
    const restore_t *r = &self->restore_table[index];
    uint64_t since_us = QR_NEVER_US;
    if (r->halted) return QR_NEVER_US;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        const file_t *f = &self->files[i];
        if (f->restore == index && (f->state == ASKED || f->state == MOVING)) since_us = qr_min_u64(since_us, f->asked_us);
    }
    if (since_us == QR_NEVER_US) since_us = r->progress_us;
    return since_us + given->params.restore_max_ms * 1000;
}

static uint32_t open_count(const restore_streamer_t *self)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < self->slots; r++) count += self->restore_table[r].open;
    return count;
}
/* Nothing is open and no lease is held. */
static bool idle(const restore_streamer_t *self)
{
    bool held = false;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) held = held || self->files[i].state != FREE;
    return !held && open_count(self) == 0;
}

static void settle_life(restore_streamer_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    bool done = idle(self);
    if (self->drain_asker && (done || now_us >= self->drain_by_us)) {
        qr_send(outbox, self->drain_asker, drained, &(qr_drained_t){.open_count = open_count(self)});
        self->drain_asker = 0;
        self->drain_by_us = QR_NEVER_US;
    }
    if (self->stop_asker && (done || now_us >= self->stop_by_us)) {
        qr_send(outbox, self->stop_asker, stopped, &(qr_stopped_t){.reason = done ? 0 : QR_E_DEADLINE});
        self->stop_asker = 0;
        self->stop_by_us = QR_NEVER_US;
    }
}

/* After every message: what can end ends, what can begin begins. */
static void pump(restore_streamer_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    self->hash_left = HASH_TOKENS;
    for (uint32_t r = 0; r < self->slots; r++)
        if (self->restore_table[r].open) settle(self, r, outbox);
    begin_uploads(self, now_us, outbox);
    ask_leases(self, now_us, outbox);
    settle_life(self, now_us, outbox);
    outbox->alarm_us = qr_min_u64(self->drain_by_us, self->stop_by_us);
    for (uint32_t r = 0; r < self->slots; r++)
        if (self->restore_table[r].open) qr_outbox_alarm(outbox, due_us(self, given, r));
    if (self->hash_left == 0) qr_outbox_alarm(outbox, now_us);
    self->hash_left = 0;
}

/* ---- questions ----------------------------------------------------------------------------------------------------------------- */

/* Why a restore cannot be taken; 0: it can, in *ret_index. */
static uint32_t judge(const restore_streamer_t *self, const qr_restore_t *b, uint32_t *ret_index)
{
    bool partial = b->end_rows % self->chunk_tokens != 0 && !QR_MUTANT(607);
    if (b->end_rows <= b->start_rows || b->start_rows % self->page_tokens || partial || b->tokens.count != b->end_rows) return QR_E_INVALID;
    if (b->end_rows > self->tokens_max) return QR_E_LIMIT;
    if (b->pages.count != (uint64_t)self->group_count * block_count(self, b->start_rows, b->end_rows)) return QR_E_INVALID;
    if (self->draining) return QR_E_DRAINING;
    *ret_index = NONE;
    for (uint32_t r = 0; r < self->slots; r++) {
        if (self->restore_table[r].open && self->restore_table[r].restore_id == b->restore_id) return QR_E_IN_USE;
        if (!self->restore_table[r].open && *ret_index == NONE) *ret_index = r;
    }
    return *ret_index == NONE ? QR_E_BUSY : 0;
}

static void on_restore(restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_restore_t *b = &message->body.restore;
    uint32_t index = NONE, reason = judge(self, b, &index);
    if (reason) {
        self->refused++;
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, b->request_id, reason, b->start_rows, b->end_rows);
        qr_send(outbox, message->from, restored,
                &(qr_restored_t){.restore_id = b->restore_id, .boundary = b->start_rows, .reason = reason});
        return;
    }
    self->restores++;
    restore_t *r = &self->restore_table[index];
    *r = (restore_t){.restore_id = b->restore_id,
                     .request_id = b->request_id,
                     .asker = message->from,
                     .progress_us = message->now_us,
                     .open = 1,
                     .start_rows = b->start_rows,
                     .end_rows = b->end_rows,
                     .first_chunk = b->start_rows / self->chunk_tokens};
    r->parts = r->stop_part = (b->end_rows / self->chunk_tokens - r->first_chunk) * self->group_count;
    memcpy(r->chain, b->root.bytes, 32);
    qr_copy(tokens_of(self, index), b->tokens.data, 4 * b->tokens.count);
    qr_copy(pages_of(self, index), b->pages.data, 8 * b->pages.count);
}

static void on_cancel(restore_streamer_t *self, const qr_message_t *message)
{
    for (uint32_t r = 0; r < self->slots; r++)
        if (self->restore_table[r].open && self->restore_table[r].restore_id == message->body.restore_cancel.restore_id)
            halt(&self->restore_table[r], QR_E_CANCELLED);
}

static void stale(const qr_message_t *message, uint64_t key, qr_outbox_t *outbox)
{
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, message->type, key, 0);
}

static void on_leased(restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_leased_t *b = &message->body.chunk_leased;
    file_t *f = find_file(self, b->key, ASKED);
    if (!f) {
        stale(message, b->key, outbox);
        return;
    }
    restore_t *r = restore_of(self, f);
    uint32_t reason = b->reason ? b->reason : b->lease == 0 || b->bytes == 0 ? QR_E_NOT_FOUND : 0;
    if (r) r->progress_us = message->now_us;
    if (r && !QR_MUTANT(786)) r->localise_us += message->now_us - f->asked_us, self->localise_us += message->now_us - f->asked_us;
    f->lease = b->lease;
    f->bytes = b->bytes;
    f->trusted = b->trusted == 1;
    if (!QR_MUTANT(816) || b->kept) f->kept = b->kept;
    f->keep = b->keep;
    memcpy(f->content, b->content.bytes, 32);
    memcpy(f->stamp, b->stamp.bytes, 32);
    if (reason) {
        if (r) fail_part(self, r, f->part, reason);
        f->state = FREE;
        f->restore = NONE;
        if (b->lease) release(self, f, outbox);
    } else if (!wants(r, f)) {
        if (!QR_MUTANT(608)) release(self, f, outbox);
        if (QR_MUTANT(608)) f->state = FREE, f->restore = NONE;
    } else {
        f->state = LEASED;
    }
}

/* Rows that a part brings to its restore; those of its other groups are the same rows. */
static uint64_t part_rows(const restore_streamer_t *self, const restore_t *r, uint32_t part)
{
    uint32_t start = (r->first_chunk + part / self->group_count) * self->chunk_tokens;
    return part % self->group_count ? 0 : start + self->chunk_tokens - qr_max_u32(start, r->start_rows);
}

/* Part is verified: bits move on with what is verified without a gap (R1). */
static void verify(restore_t *r, uint32_t part)
{
    r->verified |= 1ull << (part - r->base);
    if (QR_MUTANT(609)) r->verified |= 1ull;
    while (r->verified & 1) {
        r->verified >>= 1;
        r->base++;
    }
}

static void on_uploaded(restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_uploaded_t *b = &message->body.page_uploaded;
    file_t *f = find_file(self, b->key, MOVING);
    if (!f) {
        stale(message, b->key, outbox);
        return;
    }
    restore_t *r = restore_of(self, f);
    uint32_t reason = b->reason ? b->reason : b->damage ? QR_E_DIGEST : 0;
    bool damaged = b->damage != 0; /* an IDENTITY without it: we asked for the wrong file, which is fine */
    if (r) {                       /* always, unless a defect answered too early */
        r->moving--;
        r->progress_us = message->now_us;
        r->move_us += b->move_us;
        r->queue_us += b->queue_us;
        if (reason) fail_part(self, r, f->part, reason);
        if (!reason) r->bytes += b->bytes;
        if (f->kept) r->ram_us += b->move_us, self->ram_us += b->move_us;
        if (f->kept && !reason) r->ram_rows += part_rows(self, r, f->part);
        if (!reason || QR_MUTANT(610)) verify(r, f->part);
    }
    self->move_us += b->move_us;
    if (!reason) self->bytes += b->bytes;
    self->verify_failures += damaged && !f->kept;
    if (damaged) qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_chunk_damaged, r ? r->request_id : 0, reason, f->part, f->lease);
    bool seen = !reason && !f->trusted;
    uint8_t kept = (!reason || QR_MUTANT(772)) && f->keep;
    damaged = damaged && !QR_MUTANT(612) && !(QR_MUTANT(815) && f->kept);
    release_as(self, f, seen || (QR_MUTANT(611) && !f->trusted), kept, damaged ? reason : 0, outbox);
}

static void on_released(restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_released_t *b = &message->body.chunk_released;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        file_t *f = &self->files[i];
        if (f->state != RELEASING || f->lease != b->lease) continue;
        f->state = FREE;
        f->lease = 0;
        if (b->reason) qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, b->reason, b->lease, 0);
        return;
    }
    stale(message, b->lease, outbox);
}

/* Storage is gone with its leases. What moves goes on: transfer verifies what it read, and answers. */
static void on_link_down(restore_streamer_t *self, const qr_message_t *message)
{
    if (message->body.link_down.node != qr_address_node(self->storage)) return;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        file_t *f = &self->files[i];
        restore_t *r = restore_of(self, f);
        f->lease = 0;
        if (f->state == MOVING) continue;
        if (r) fail_part(self, r, f->part, QR_E_PEER_DOWN);
        f->state = FREE;
        f->restore = NONE;
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t tokens_max(const qr_given_t *given)
{
    return given->layout.context_tokens - given->layout.context_tokens % given->layout.chunk_tokens;
}
static uint32_t slots(const qr_given_t *given) { return (uint32_t)qr_min_u64(given->params.max_lanes, QR_LANES_MAX); }
static uint32_t blocks_max(const qr_given_t *given) { return (uint32_t)qr_div_up(tokens_max(given), given->layout.page_tokens); }

static uint64_t restore_streamer_bytes(const qr_given_t *given)
{
    uint64_t pages = 8ull * slots(given) * given->layout.group_count * blocks_max(given);
    return sizeof(restore_streamer_t) + pages + qr_round_up(4ull * slots(given) * tokens_max(given), 8);
}

static void restore_streamer_init(void *block, const qr_given_t *given, uint64_t address)
{
    restore_streamer_t *self = block;
    self->address = address;
    self->storage = qr_address(qr_address_node(address), 0, QR_ROLE_storage, 0);
    self->slots = slots(given);
    self->tokens_max = tokens_max(given);
    self->blocks_max = blocks_max(given);
    self->group_count = given->layout.group_count;
    self->page_tokens = given->layout.page_tokens;
    self->chunk_tokens = given->layout.chunk_tokens;
    self->pages_at = sizeof(restore_streamer_t);
    self->tokens_at = self->pages_at + 8ull * self->slots * self->group_count * self->blocks_max;
    self->drain_by_us = self->stop_by_us = QR_NEVER_US;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) self->files[i].restore = NONE;
}

static void on_start(restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    self->epoch = b->epoch;
    for (uint64_t i = 0; i < b->partners.count; i++) /* one storage a node; the message's handles live there */
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_storage &&
            qr_address_node(b->partners.data[i]) == qr_address_node(self->address))
            self->storage = b->partners.data[i];
    qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->slots, 0);
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
}

/* What is open goes on; nothing new is taken. */
static void on_drain(restore_streamer_t *self, const qr_message_t *message)
{
    self->draining = 1;
    self->drain_asker = message->from;
    self->drain_by_us = message->now_us + message->body.drain.budget_us;
}

static void on_stop(restore_streamer_t *self, const qr_message_t *message)
{
    self->draining = 1;
    self->stop_asker = message->from;
    self->stop_by_us = message->now_us + message->body.stop.budget_us;
    for (uint32_t r = 0; r < self->slots; r++)
        if (self->restore_table[r].open) halt(&self->restore_table[r], QR_E_DRAINING);
}

/* Restores for which nothing was answered in time end as soon as nothing of them moves. */
static void on_alarm(restore_streamer_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    for (uint32_t r = 0; r < self->slots; r++) {
        restore_t *restore = &self->restore_table[r];
        if (!restore->open || due_us(self, given, r) > now_us || QR_MUTANT(613)) continue;
        halt(restore, QR_E_DEADLINE);
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_restore_late, restore->request_id, restore->restore_id, restore->moving,
                       boundary_of(self, restore));
    }
}

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const restore_streamer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    static const uint32_t ids[] = {METRIC_restores_begun_total,
                                   METRIC_restores_open,
                                   METRIC_restored_rows_total,
                                   METRIC_restored_bytes_total,
                                   METRIC_restore_us_total,
                                   METRIC_restores_refused_total,
                                   METRIC_restores_missing_total,
                                   METRIC_restores_damaged_total,
                                   METRIC_restores_io_total,
                                   METRIC_restores_late_total,
                                   METRIC_restores_cancelled_total,
                                   METRIC_restores_other_total,
                                   METRIC_restore_verify_failures_total,
                                   METRIC_restore_localise_us_total,
                                   METRIC_restored_ram_rows_total,
                                   METRIC_restore_ram_us_total};
    const uint64_t *f = self->failures;
    const uint64_t values[QR_COUNT(ids)] = {
        self->restores,        open_count(self),  self->rows,     self->bytes,     self->move_us,    self->refused,
        f[WHY_NOT_FOUND],      f[WHY_DAMAGED],    f[WHY_IO],      f[WHY_DEADLINE], f[WHY_CANCELLED], f[WHY_OTHER],
        self->verify_failures, self->localise_us, self->ram_rows, self->ram_us};
    qr_send(outbox, message->from, metrics, &(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(ids)}});
}

static void restore_streamer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    restore_streamer_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, message, outbox); break;
    case QR_MESSAGE_alarm: on_alarm(self, given, message->now_us, outbox); break;
    case QR_MESSAGE_restore: on_restore(self, message, outbox); break;
    case QR_MESSAGE_restore_cancel: on_cancel(self, message); break;
    case QR_MESSAGE_chunk_leased: on_leased(self, message, outbox); break;
    case QR_MESSAGE_chunk_released: on_released(self, message, outbox); break;
    case QR_MESSAGE_page_uploaded: on_uploaded(self, message, outbox); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message, outbox); break;
    case QR_MESSAGE_drain: on_drain(self, message); break;
    case QR_MESSAGE_stop: on_stop(self, message); break;
    case QR_MESSAGE_link_up: break;
    case QR_MESSAGE_link_down: on_link_down(self, message); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
    pump(self, given, message->now_us, outbox);
}

/* ---- check and print --------------------------------------------------------------------------------------------------------------- */

static void check_restore(const restore_streamer_t *self, uint32_t index)
{
    const restore_t *r = &self->restore_table[index];
    uint32_t moving = 0, files = 0, gaps = 0;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        const file_t *f = &self->files[i];
        if (f->restore != index) continue;
        qr_assert(r->open && f->part < r->next_part && f->part >= r->base); /* R2, R6 */
        qr_assert(!(r->verified >> (f->part - r->base) & 1));
        qr_assert(f->state != LEASED || wants(r, f)); /* R3 */
        moving += f->state == MOVING;
        files++;
        for (uint32_t k = 0; k < i; k++) qr_assert(self->files[k].restore != index || self->files[k].part != f->part);
    }
    qr_assert(moving == r->moving || !r->open);
    if (!r->open) return;
    qr_assert(r->parts % self->group_count == 0 && r->stop_part % self->group_count == 0 && r->stop_part <= r->parts); /* R4 */
    qr_assert((r->reason != 0) == (r->halted || r->stop_part < r->parts));
    qr_assert(r->base <= r->next_part && r->next_part <= r->parts && r->next_part <= r->base + PARTS_AHEAD && !(r->verified & 1)); /* R1 */
    for (uint32_t part = r->base; part < r->next_part; part++) gaps += !(r->verified >> (part - r->base) & 1);
    qr_assert(files <= gaps && (files == gaps || r->reason));       /* R2 */
    qr_assert(r->moving || (!r->halted && r->base < r->stop_part)); /* R5 */
}

static void restore_streamer_check(const void *block, const qr_given_t *given)
{
    (void)given;
    const restore_streamer_t *self = block;
    uint32_t moving = 0, leased = 0;
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) {
        const file_t *f = &self->files[i];
        moving += f->state == MOVING;
        leased += f->state == LEASED;
        bool owned = f->state == LEASED || f->state == MOVING;
        qr_assert(owned ? f->restore != NONE : f->state == ASKED || f->restore == NONE); /* R6 */
        qr_assert((f->state != LEASED && f->state != RELEASING) || f->lease);
    }
    qr_assert(moving <= QR_RESTORE_UPLOADS && (leased == 0 || moving == QR_RESTORE_UPLOADS)); /* R3 */
    for (uint32_t r = 0; r < self->slots; r++) check_restore(self, r);
}

static void restore_streamer_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const restore_streamer_t *self = block;
    uint32_t files[RELEASING + 1] = {0};
    for (uint32_t i = 0; i < QR_RESTORE_LEASES; i++) files[self->files[i].state]++;
    static const char *const names[] = {"", ", leases asked ", ", files waiting ", ", moving ", ", releasing "};
    qr_text_put(text, "restore_streamer: open ");
    qr_text_put_u64(text, open_count(self));
    for (uint32_t i = ASKED; i <= RELEASING; i++) {
        qr_text_put(text, names[i]);
        qr_text_put_u64(text, files[i]);
    }
    qr_text_put(text, ", restored rows ");
    qr_text_put_u64(text, self->rows);
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < self->slots; i++) {
        const restore_t *r = &self->restore_table[i];
        if (!r->open) continue;
        qr_text_put(text, "  restore ");
        qr_text_put_u64(text, r->restore_id);
        qr_text_put(text, " rows ");
        qr_text_put_u64(text, r->start_rows);
        qr_text_put(text, " to ");
        qr_text_put_u64(text, r->end_rows);
        qr_text_put(text, ", verified to ");
        qr_text_put_u64(text, boundary_of(self, r));
        qr_text_put(text, r->reason ? ", ends: " : "");
        qr_text_put(text, r->reason ? qr_error_name((int)r->reason) : "");
        qr_text_put(text, "\n");
    }
}

/* A stop ends every restore and releases every file; each call also asks for what then fits. */
enum { MAX_OUT = QR_LANES_MAX + 3 * QR_RESTORE_LEASES + 4 };

const qr_actor_class_t qr_restore_streamer_class = {
    .name = "restore_streamer",
    .role = QR_ROLE_restore_streamer,
    .max_out = MAX_OUT,
    .bytes = restore_streamer_bytes,
    .init = restore_streamer_init,
    .handle = restore_streamer_handle,
    .check = restore_streamer_check,
    .print = restore_streamer_print,
};
