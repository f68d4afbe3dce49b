/* storage.c - owns the chunk files of the store (store/chunk_files.h), the table of parts (storage_parts.h) and the one errand that writes.
 *
 *   checkpoint_writer -- chunk_find -->    storage  -- chunk_found -->          from the handler
 *   scheduler         -- ram_find -->      storage  -- ram_found -->            from the handler
 *   restore_streamer  -- chunk_lease -->   storage  -- chunk_leased -->         from the handler
 *   restore_streamer  -- chunk_release --> storage  -- chunk_released -->       from the handler
 *   checkpoint_writer -- chunk_write -->   storage  -- chunk_written -->        when the file is durable, or is not going to be
 *   checkpoint_writer -- chunk_victims --> storage  -- chunk_victims_named -->  from the handler
 *   checkpoint_writer -- chunk_drop -->    storage  -- chunk_dropped -->        when the file is gone: after the last of its leases
 *   facts -- chunk_hold, chunk_unhold -->  storage  -- chunk_held, _unheld -->  from the handler
 *   facts <-- holds_read --                storage  <-- holds_found --          one after the other, at the start
 *   checkpoint_writer -- chunk_losses -->  storage  -- chunk_losses_named -->   when there are some (SO9)
 *   storage -- facts_query -->             facts    -- facts_page -->           at the start (SO9)
 *
 * SO1. Whatever waits for the disk runs on the errand's thread: digests, writes, every fsync. So no lookup or lease stands behind one. It
 *      works in pieces, on the account that transfer's slices are on (duty.h).
 * SO2. A part is READY in the table if and only if its file is published: found, leased and counted only after the receipt. A write
 *      that failed leaves nothing.
 * SO3. A file that is not what it should be (damage), or that somebody removed, is withdrawn at once: leased to nobody new and unlinked
 *      with its last lease. The same part may be written again after that.
 * SO4. A leased file is not unlinked; a drop waits. Leases of a partner whose epoch ended are released, its questions forgotten.
 * SO5. Trust: a file's SHA-256 counts as seen while (boot, device, inode, size, times) are those of when it was: compared at each
 *      lease. It is kept in memory; trust_known and trust_keep are the two places where `facts` can keep it for longer.
 * SO6. At most QR_STORAGE_WRITES writes wait (more: BUSY), QR_STORAGE_LEASES leases and QR_CAPTURE_DROPS drops are open; bytes and
 *      files have the bounds store_bytes and store_files (more: SHORTFALL, and victims are named by value).
 * SO7. A part counts as found (chunk_find) only when the catalog is known to have it: the catalog named it at the start or it was leased,
 *      if it was found then; else its writer said that its publish was committed (chunk_find.published), and meanwhile nobody else asked to
 *      write the chunk and nobody who was told that it may leave could have withdrawn it. So nothing counts that is being published, was
 *      written in vain, or is being withdrawn. Writing a part that is here is an answer and no write, so what does not count is published
 *      anew by the next capture of its chain, from the files that are there.
 * SO8. The chunks of a hold (storage_holds.h) are nobody's victims, those that are here and those that come: they are worth UINT64_MAX.
 *      Held chunks together fit the bounds of bytes and files; a hold beyond them is refused. Holds are kept in memory and asked from
 *      facts at the start; until all are known no victim is named. A bound that was lowered since the last run is kept first, before
 *      holds are known.
 * SO9. What the catalog may name and is not here is a loss: found damaged or gone, leased in vain, or named by the catalog at the
 *      start, which is asked then. A loss stands until a checkpoint_writer has withdrawn it, or until it is written again; never both:
 *      who was told its name has it, and until then others may not write it. At most QR_CAPTURE_DROPS are kept; one more is found again
 *      when it is asked for, and the catalog is read on when there is room.
 * SO10. The RAM tier (storage_ram.h) holds parts whose file was published here; what is leased from it is memory, and its file is not
 *       looked at: it may be gone. Parts come into it with the write (copied on the errand's thread) and with the upload of a leased
 *       file (lease.fill), and are kept only when that ended well. A chunk_drop takes a part out of both; so a loss that memory still
 *       holds is withdrawn like any other, and leaves memory with its drop. Its memory is touched ahead (RA4), not while batches are
 *       computed.
 * SO11. The chunk that a checkpoint_writer last asked to write is its own until it asks chunk_find: its publish may be on its way. To
 *       another writer of this node no part of it is named, as a victim or a loss, and a drop of one that was named before is refused (BUSY),
 *       now and later; that part does not count as found, since the withdrawal may have come after the publish. What a writer's earlier
 *       epoch wrote last is kept from the others in the same way until the catalog has answered something that the new one asked (it says
 *       what was published, or drops): whatever was on its way before has arrived by then.
 * SO12. Who begins anew alone does not know what is being published. So until every checkpoint_writer of this node has asked chunk_find or
 *       for the losses (which it does when nothing of before is open) no victim and no loss is named, and of who has not, no drop of a part
 *       that is here is taken (BUSY): what it was told was told by the storage of before. */
#include "actors/io/storage.h"

#include "actors/io/duty.h"
#include "actors/io/storage_errand.h"
#include "actors/io/storage_holds.h"
#include "actors/io/storage_parts.h"
#include "actors/io/storage_ram.h"
#include "actors/note.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/mutant.h"
#include "kernels/stream.h"
#include "store/facts.h"
#include "store/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    WRITE_PIECE_BYTES = 512 << 10, /* its SHA-256 and its copy to the system: well below a millisecond */
    PAUSE_US_MAX = 20000,          /* then look again whether anything is computed */
    HOLDERS_MAX = QR_PARTNERS_MAX,
    MESSAGE_BYTES = 512
};
enum { SWEEP_PAGE = 512, SWEEP_TRIES = 60, SWEEP_AGAIN_US = 1000000 };

/* One chunk_write. The first of the queue is worked on. */
typedef struct write_ask {
    uint64_t from, key, asked_us; /* from 0: nobody waits for the answer */
    bool void_;                   /* its asker's epoch ended: the slot may be in other hands, nothing of it may stay */
    uint32_t slot;
    qr_chunk_header_t header;
    uint32_t tokens[QR_CHUNK_TOKENS_MAX];
} write_ask_t;

typedef enum phase { PHASE_IDLE, PHASE_DIGEST, PHASE_WRITE } phase_t;

typedef struct lease_row {
    uint64_t lease, holder; /* lease 0: free */
    uint32_t part, fill;    /* fill: RAM slot + 1 that its upload fills, or 0 */
    qr_chunk_trust_t trust; /* the file as it was leased */
} lease_row_t;

/* Memory that is read; its index in a lease's handle begins where those of files end. */
typedef struct ram_lease {
    uint64_t lease, holder; /* lease 0: free */
    uint32_t slot, generation;
} ram_lease_t;

typedef struct drop_ask {
    uint64_t from, key; /* from 0: free */
    uint32_t part, reserved;
} drop_ask_t;

typedef struct loss {
    uint8_t chain[32];
    uint64_t told; /* who withdraws it; 0: nobody yet */
    uint32_t group, reserved;
} loss_t;

typedef struct storage {
    uint64_t address;
    qr_chunk_files_t *files;
    qr_parts_t parts;
    qr_errand_t *errand;
    qr_activity_t *activity;           /* or NULL */
    uint64_t transfer_duty, paused_us; /* paused: of the write under way, for the duty */
    struct {
        uint64_t address, epoch, watch_key;
        bool watches;                      /* chunk_losses is open */
        bool writes, left;                 /* SO11 */
        bool shared;                       /* another one wrote the same chunk meanwhile, or may withdraw it (SO7) */
        uint8_t chain[32], left_chain[32]; /* of the chunk that it writes, and that its epoch of before wrote last */
    } holders[HOLDERS_MAX];
    qr_holds_t holds;
    uint64_t facts;            /* who knows the holds of earlier runs; 0: nobody */
    uint64_t held_chunk_bytes; /* of one chunk, all groups */
    uint8_t *chains;           /* [QR_CONTEXT_MAX / chunk_tokens] of a hold that is being taken, 32 bytes each */
    bool holds_known;
    uint64_t awaited[HOLDERS_MAX]; /* checkpoint_writers of this node that have not spoken since the start (SO12) */
    uint32_t awaited_count;
    loss_t losses[QR_CAPTURE_DROPS];
    uint32_t loss_count;
    struct { /* the catalog at the start */
        uint64_t query_id, again_us, named, missing;
        uint32_t tries;
        enum { SWEEP_OVER, SWEEP_ASKED, SWEEP_WAITS, SWEEP_FULL } state; /* WAITS: until again_us; FULL: until the losses are withdrawn */
        uint8_t cursor[QR_FACTS_KEY_BYTES_MAX];
        uint32_t cursor_bytes;
    } sweep;
    lease_row_t leases[QR_STORAGE_LEASES];
    qr_ram_t ram;
    ram_lease_t ram_leases[QR_STORAGE_LEASES];
    drop_ask_t drops[QR_CAPTURE_DROPS];
    /* the write under way: the errand's while phase is not IDLE */
    phase_t phase;
    uint32_t write_count;
    write_ask_t *writes; /* [QR_STORAGE_WRITES], the first is worked on */
    qr_chunk_writing_t *write;
    const uint8_t *payload;
    uint64_t payload_bytes;
    uint32_t write_fill; /* RAM slot + 1 that takes a copy, or 0 */
    int write_status;
    /* counts */
    uint64_t hits, misses, written, failed, refused_full, refused_busy, damaged, missing, evicted, adopted, unread;
} storage_t;

static uint64_t read_clock_us(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static uint64_t clock_us(void) { return read_clock_us(CLOCK_MONOTONIC); }
/* What this thread has worked. */
static uint64_t worked_us(void) { return read_clock_us(CLOCK_THREAD_CPUTIME_ID); }

/* ---- files and trust ---------------------------------------------------------------------------------------------------------------- */

/* What the file is on disk now. 0, -QR_E_NOT_FOUND, -QR_E_IO. */
static int file_look(const qr_given_t *given, const qr_chunk_name_t *name, qr_chunk_trust_t *ret_trust)
{
    char path[QR_CHUNK_PATH_BYTES];
    qr_chunk_name_path(name, path);
    int file = openat(given->store->fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0) return errno == ENOENT ? -QR_E_NOT_FOUND : -QR_E_IO;
    int status = qr_chunk_trust_of(file, ret_trust);
    (void)close(file);
    return status;
}

/* SO5. The file as it is now, compared with the file whose SHA-256 was seen. */
static bool trust_known(qr_part_t *part, const qr_chunk_trust_t *now)
{
    if (part->trusted && memcmp(&part->trust, now, sizeof *now) != 0 && !QR_MUTANT(643)) part->trusted = false;
    return part->trusted;
}
static void trust_keep(qr_part_t *part, const qr_chunk_trust_t *seen) { part->trusted = true, part->trust = *seen; }

/* ---- losses (SO9) ----------------------------------------------------------------------------------------------------------------- */

static loss_t *loss_find(storage_t *self, const uint8_t chain[32], uint32_t group)
{
    for (uint32_t i = 0; i < self->loss_count; i++)
        if (self->losses[i].group == group && memcmp(self->losses[i].chain, chain, 32) == 0) return &self->losses[i];
    return NULL;
}

static void losses_tell(storage_t *self, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < HOLDERS_MAX; i++) {
        if (!self->holders[i].watches) continue;
        self->holders[i].watches = false;
        qr_send(outbox, self->holders[i].address, chunk_losses_named, (&(qr_chunk_losses_named_t){.key = self->holders[i].watch_key}));
    }
}

/* false: there is no room for it. */
static bool loss_add(storage_t *self, const uint8_t chain[32], uint32_t group, qr_outbox_t *outbox)
{
    if (loss_find(self, chain, group)) return true;
    if (self->loss_count == QR_CAPTURE_DROPS) return false;
    loss_t *loss = &self->losses[self->loss_count++];
    *loss = (loss_t){.group = group};
    memcpy(loss->chain, chain, 32);
    losses_tell(self, outbox);
    return true;
}

static void sweep_ask(storage_t *self, const qr_given_t *given, qr_outbox_t *outbox);

/* The last one makes room for what the start has still to look at. */
static void loss_over(storage_t *self, const qr_given_t *given, const uint8_t chain[32], uint32_t group, qr_outbox_t *outbox)
{
    loss_t *loss = loss_find(self, chain, group);
    if (loss) *loss = self->losses[--self->loss_count];
    bool room = self->sweep.state == SWEEP_FULL && !self->loss_count;
    if (room && !(QR_MUTANT(819) && self->phase != PHASE_IDLE)) sweep_ask(self, given, outbox);
}

static bool being_written(const storage_t *self, const loss_t *loss)
{
    for (uint32_t i = 0; i < self->write_count; i++) {
        const qr_chunk_header_t *header = &self->writes[i].header;
        if (header->group == loss->group && memcmp(header->chain, loss->chain, 32) == 0) return true;
    }
    return false;
}

/* ---- chunks under way (SO11) ----------------------------------------------------------------------------------------------------- */

static bool is_writing(const storage_t *self, uint32_t holder, const uint8_t chain[32])
{
    return self->holders[holder].writes && memcmp(self->holders[holder].chain, chain, 32) == 0;
}
/* Whether a part of this chunk is a loss. */
static bool is_lost(const storage_t *self, const uint8_t chain[32])
{
    for (uint32_t i = 0; i < self->loss_count; i++)
        if (memcmp(self->losses[i].chain, chain, 32) == 0) return true;
    return false;
}
static bool has_left(const storage_t *self, uint32_t holder, const uint8_t chain[32])
{
    return self->holders[holder].left && memcmp(self->holders[holder].left_chain, chain, 32) == 0;
}

static void left_ends(storage_t *self, uint32_t holder, qr_outbox_t *outbox)
{
    bool named = self->holders[holder].left && is_lost(self, self->holders[holder].left_chain);
    self->holders[holder].left = false;
    if (named) losses_tell(self, outbox);
}

/* Whether somebody else was told that a part of this chunk may leave; from now on it may not by that. */
static bool told_another(storage_t *self, const qr_given_t *given, uint64_t writer, const uint8_t chain[32])
{
    bool any = false;
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t place = qr_parts_find(&self->parts, chain, g);
        qr_part_t *part = place == QR_PART_NONE ? NULL : &self->parts.parts[place];
        if (!part || !part->told || part->told == writer) continue;
        any = true, part->told = 0, part->kept = !QR_MUTANT(891);
    }
    return any;
}

static void write_begins(storage_t *self, const qr_given_t *given, uint64_t writer, const uint8_t chain[32])
{
    uint32_t own = 0;
    while (own < HOLDERS_MAX && self->holders[own].address != writer) own++;
    if (own == HOLDERS_MAX) return;
    bool shared = is_writing(self, own, chain) && self->holders[own].shared;
    for (uint32_t i = 0; i < HOLDERS_MAX; i++)
        if (i != own && is_writing(self, i, chain)) shared = self->holders[i].shared = true;
    self->holders[own].writes = true;
    memcpy(self->holders[own].chain, chain, 32);
    self->holders[own].shared = (told_another(self, given, writer, chain) || shared) && !QR_MUTANT(883);
}

/* SO7: its publish was committed. */
static void chunk_published(storage_t *self, const qr_given_t *given, const uint8_t chain[32])
{
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t place = qr_parts_find(&self->parts, chain, g);
        if (place != QR_PART_NONE && self->parts.parts[place].state == QR_PART_READY) self->parts.parts[place].word = QR_PART_PUBLISHED;
    }
}

/* published: the chunk whose publish was committed, or zero. */
static void write_ends(storage_t *self, const qr_given_t *given, uint64_t writer, const uint8_t published[32], qr_outbox_t *outbox)
{
    static const uint8_t none[32];
    for (uint32_t i = 0; i < HOLDERS_MAX; i++) {
        if (self->holders[i].address != writer) continue;
        if (is_writing(self, i, published) && !self->holders[i].shared) chunk_published(self, given, published);
        bool named = self->holders[i].writes && is_lost(self, self->holders[i].chain);
        if (!QR_MUTANT(853)) self->holders[i].writes = false;
        if (named) losses_tell(self, outbox); /* they may be withdrawn by others now */
        if (memcmp(published, none, sizeof none) != 0) left_ends(self, i, outbox);
    }
}
static bool written_by_another(const storage_t *self, uint64_t asker, const uint8_t chain[32])
{
    for (uint32_t i = 0; i < HOLDERS_MAX; i++)
        if (self->holders[i].address != asker && (is_writing(self, i, chain) || has_left(self, i, chain))) return true;
    return false;
}

/* SO12. */
static bool is_awaited(const storage_t *self, uint64_t writer)
{
    for (uint32_t i = 0; i < self->awaited_count; i++)
        if (self->awaited[i] == writer) return true;
    return false;
}

static void writers_await(storage_t *self, const qr_start_t *start)
{
    self->awaited_count = 0;
    for (uint64_t i = 0; i < start->partners.count && self->awaited_count < HOLDERS_MAX; i++) {
        uint64_t partner = start->partners.data[i];
        bool writer = qr_address_role(partner) == QR_ROLE_checkpoint_writer && qr_address_node(partner) == qr_address_node(self->address);
        if (writer) self->awaited[self->awaited_count++] = partner;
    }
}

/* Nothing of before is open at this writer. */
static void writer_speaks(storage_t *self, uint64_t writer, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < self->awaited_count; i++) {
        if (self->awaited[i] != writer) continue;
        self->awaited[i] = self->awaited[--self->awaited_count];
        if (!self->awaited_count && self->loss_count) losses_tell(self, outbox);
        return;
    }
}

/* Whether a writer may withdraw this loss now. */
static bool loss_is_for(const storage_t *self, const loss_t *loss, uint64_t writer)
{
    if (being_written(self, loss)) return false;
    if (loss->told) return loss->told == writer; /* nobody else writes it meanwhile */
    return (!self->awaited_count || QR_MUTANT(894)) && (!written_by_another(self, writer, loss->chain) || QR_MUTANT(893));
}

/* Whether a part that is here may leave by this writer's drop (SO11, SO12). */
static bool may_drop(const storage_t *self, uint64_t writer, const qr_part_t *part)
{
    if (QR_MUTANT(851)) return true;
    if (is_awaited(self, writer) && !QR_MUTANT(890)) return false;
    if (written_by_another(self, writer, part->chain)) return false;
    for (uint32_t i = 0; i < HOLDERS_MAX; i++) /* a publish of its own that was refused */
        if (self->holders[i].address == writer && is_writing(self, i, part->chain)) return !self->holders[i].shared;
    return !part->kept || part->told == writer;
}

static void on_chunk_losses(storage_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_losses_t *ask = &message->body.chunk_losses;
    writer_speaks(self, message->from, outbox);
    uint8_t chains[QR_CAPTURE_DROPS * 32];
    uint32_t groups[QR_CAPTURE_DROPS], count = 0;
    for (uint32_t i = 0; i < self->loss_count; i++) {
        loss_t *loss = &self->losses[i];
        if (!loss_is_for(self, loss, message->from)) continue;
        if (ask->now) loss->told = message->from;
        memcpy(chains + 32ul * count, loss->chain, 32);
        groups[count++] = loss->group;
    }
    if (!ask->now && !count) {
        for (uint32_t i = 0; i < HOLDERS_MAX; i++)
            if (self->holders[i].address == message->from) self->holders[i].watches = true, self->holders[i].watch_key = ask->key;
        return;
    }
    if (!ask->now) count = 0; /* a word that there are some */
    qr_send(outbox, message->from, chunk_losses_named,
            (&(qr_chunk_losses_named_t){.key = ask->key, .chains = {chains, 32ul * count}, .groups = {groups, count}}));
}

/* ---- leaving --------------------------------------------------------------------------------------------------------------------------
 */

/* Answers everybody who waits for this part to be gone; it leaves the table. */
static void part_gone(storage_t *self, uint32_t place, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_CAPTURE_DROPS; i++) {
        drop_ask_t *drop = &self->drops[i];
        if (!drop->from || drop->part != place) continue;
        qr_send(outbox, drop->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = drop->key, .bytes = self->parts.parts[place].bytes}));
        drop->from = 0;
    }
    qr_parts_remove(&self->parts, place);
}

/* Withdraws a part; it is gone now or with its last lease (*ret_waits). 0, or why its file is still there (asked again, it is tried again).
 */
static int part_leave(storage_t *self, uint32_t place, bool *ret_waits, qr_outbox_t *outbox)
{
    qr_part_t *part = &self->parts.parts[place];
    part->state = QR_PART_LEAVING, part->trusted = false;
    int status = qr_chunk_files_drop(self->files, &part->name, ret_waits);
    if (status == -QR_E_NOT_FOUND) status = 0, *ret_waits = false;
    if (!status && !*ret_waits) part_gone(self, place, outbox);
    return status;
}

/* SO3. */
static void part_damaged(storage_t *self, uint32_t place, uint32_t reason, qr_outbox_t *outbox)
{
    const qr_part_t *part = &self->parts.parts[place];
    bool waits;
    if (part->state != QR_PART_READY) return;
    self->damaged++;
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_store_chunk_damaged, 0, reason, part->bytes, part->start);
    if (!QR_MUTANT(723)) (void)loss_add(self, part->chain, part->group, outbox);
    if (!QR_MUTANT(644)) (void)part_leave(self, place, &waits, outbox);
}
static void part_missing(storage_t *self, uint32_t place, qr_outbox_t *outbox)
{
    bool waits;
    self->missing++;
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_store_chunk_missing, 0, self->parts.parts[place].bytes, 0, 0);
    (void)loss_add(self, self->parts.parts[place].chain, self->parts.parts[place].group, outbox);
    (void)part_leave(self, place, &waits, outbox);
}

static void on_chunk_drop(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_drop_t *ask = &message->body.chunk_drop;
    if (!QR_MUTANT(724)) loss_over(self, given, ask->chain.bytes, ask->group, outbox); /* it was withdrawn */
    uint32_t place = qr_parts_find(&self->parts, ask->chain.bytes, ask->group), slot = 0;
    qr_chunk_dropped_t body = {.key = ask->key};
    while (slot < QR_CAPTURE_DROPS && self->drops[slot].from) slot++;
    for (uint32_t i = 0; i < HOLDERS_MAX; i++)
        if (self->holders[i].address == message->from) left_ends(self, i, outbox);
    if (place != QR_PART_NONE && self->parts.parts[place].state == QR_PART_READY &&
        !may_drop(self, message->from, &self->parts.parts[place])) {
        if (!QR_MUTANT(852)) self->parts.parts[place].word = QR_PART_UNPUBLISHED;
        (void)qr_chunk_files_keep(self->files, &self->parts.parts[place].name);
        body.reason = QR_E_BUSY;
        qr_send(outbox, message->from, chunk_dropped, &body);
        return;
    }
    qr_ram_forget(&self->ram, ask->chain.bytes, ask->group); /* the catalog is not going to name it */
    if (place == QR_PART_NONE)
        body.reason = QR_E_NOT_FOUND;
    else if (slot == QR_CAPTURE_DROPS)
        body.reason = QR_E_BUSY;
    if (body.reason) {
        qr_send(outbox, message->from, chunk_dropped, &body);
        return;
    }
    /* Enters as a waiting one; part_gone answers it, now or with the last lease. */
    bool waits = false;
    self->drops[slot] = (drop_ask_t){.from = message->from, .key = ask->key, .part = place};
    if (self->parts.parts[place].state == QR_PART_READY) qr_parts_leave(&self->parts, place), self->evicted++;
    int status = part_leave(self, place, &waits, outbox);
    if (status) {
        self->drops[slot].from = 0;
        body.reason = (uint32_t)-status;
        qr_send(outbox, message->from, chunk_dropped, &body);
    }
}

/* ---- holds (SO8) ----------------------------------------------------------------------------------------------------------------- */

/* What a part is worth, told to the files. */
static void part_value(storage_t *self, uint32_t place)
{
    const qr_part_t *part = &self->parts.parts[place];
    bool held = qr_holds_has(&self->holds, part->chain) && !QR_MUTANT(806);
    (void)qr_chunk_files_value(self->files, &part->name, held ? UINT64_MAX : part->key);
}

static void chain_value(storage_t *self, const qr_given_t *given, const uint8_t chain[32])
{
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t place = qr_parts_find(&self->parts, chain, g);
        if (place != QR_PART_NONE) part_value(self, place);
    }
}

/* Takes a hold. 0 or a reason. */
static uint32_t hold_take(storage_t *self, const qr_given_t *given, qr_bytes_t id, const qr_hash_t *scope, qr_u32s_t tokens)
{
    uint32_t size = given->layout.chunk_tokens;
    if (id.count != QR_HOLD_ID_BYTES || tokens.count > QR_CONTEXT_MAX) return QR_E_INVALID;
    uint32_t count = (uint32_t)(tokens.count / size);
    for (uint32_t i = 0; i < count; i++)
        qr_chain_node(i ? self->chains + 32ull * (i - 1) : scope->bytes, tokens.data + (uint64_t)i * size, size, self->chains + 32ull * i);
    int status = qr_holds_add(&self->holds, id.data, self->chains, count);
    for (uint32_t i = 0; i < count && !status; i++) chain_value(self, given, self->chains + 32ull * i);
    return (uint32_t)-status;
}

static void on_chunk_hold(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_hold_t *b = &message->body.chunk_hold;
    uint32_t reason = hold_take(self, given, b->id, &b->scope, b->tokens);
    qr_send(outbox, message->from, chunk_held, (&(qr_chunk_held_t){.key = b->key, .reason = reason}));
}

typedef struct freeing {
    storage_t *self;
    const qr_given_t *given;
} freeing_t;

static void chain_freed(void *context, const uint8_t chain[32])
{
    const freeing_t *freeing = context;
    if (!QR_MUTANT(807)) chain_value(freeing->self, freeing->given, chain);
}

static void on_chunk_unhold(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_unhold_t *b = &message->body.chunk_unhold;
    freeing_t freeing = {self, given};
    if (b->id.count == QR_HOLD_ID_BYTES) qr_holds_end(&self->holds, b->id.data, chain_freed, &freeing);
    qr_send(outbox, message->from, chunk_unheld, (&(qr_chunk_unheld_t){.key = b->key}));
}

/* One of those that stood before this start; then the next. */
static void on_holds_found(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_holds_found_t *b = &message->body.holds_found;
    if (message->from != self->facts || self->holds_known) return;
    self->holds_known = b->id.count == 0;
    if (self->holds_known) return;
    uint32_t reason = hold_take(self, given, b->id, &b->scope, b->tokens);
    if (reason) qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_hold_refused, 0, reason, self->holds.count, self->holds.most);
    qr_send(outbox, self->facts, holds_read, (&(qr_holds_read_t){.after = b->id}));
}

/* How many chunks may be held: as many as fit both bounds. */
static int holds_open(storage_t *self, const qr_given_t *given)
{
    const qr_layout_t *layout = &given->layout;
    const qr_staging_config_t *config = &given->staging->config;
    self->held_chunk_bytes = 0;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        qr_chunk_header_t header = {
            .count = layout->chunk_tokens, .members = config->groups[g].members, .row_bytes = config->groups[g].row_bytes, .shards = 1};
        self->held_chunk_bytes += qr_chunk_file_bytes(&header);
    }
    uint64_t most = qr_min_u64(given->params.store_bytes / qr_max_u64(self->held_chunk_bytes, 1),
                               given->params.store_files / qr_max_u32(layout->group_count, 1));
    self->chains = malloc(32ull * (QR_CONTEXT_MAX / qr_max_u32(layout->chunk_tokens, 1) + 1));
    return self->chains ? qr_holds_init(&self->holds, (uint32_t)most) : -QR_E_MEMORY;
}

static void holds_ask(storage_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_facts && qr_address_node(b->partners.data[i]) == qr_address_node(self->address))
            self->facts = b->partners.data[i];
    self->holds_known = !self->facts || QR_MUTANT(808);
    if (!self->holds_known) qr_send(outbox, self->facts, holds_read, (&(qr_holds_read_t){0}));
}

/* What was named and not dropped may be named again. */
static void names_take_back(storage_t *self)
{
    for (uint32_t i = 0; i < self->parts.capacity; i++)
        if (self->parts.parts[i].state == QR_PART_READY) (void)qr_chunk_files_keep(self->files, &self->parts.parts[i].name);
}

static void other_value(storage_t *self, const qr_given_t *given, const uint8_t chain[32], bool naming)
{
    for (uint32_t g = 0; g < given->layout.group_count; g++) {
        uint32_t place = qr_parts_find(&self->parts, chain, g);
        if (place == QR_PART_NONE) continue;
        if (naming)
            (void)qr_chunk_files_value(self->files, &self->parts.parts[place].name, UINT64_MAX);
        else
            part_value(self, place);
    }
}

/* What others write is worth everything while victims are named to `asker`; then it is worth again what it was. */
static void others_value(storage_t *self, const qr_given_t *given, uint64_t asker, bool naming)
{
    for (uint32_t i = 0; i < HOLDERS_MAX && !QR_MUTANT(850); i++) {
        if (self->holders[i].address == asker) continue;
        if (self->holders[i].writes) other_value(self, given, self->holders[i].chain, naming);
        if (self->holders[i].left) other_value(self, given, self->holders[i].left_chain, naming);
    }
}

static void on_chunk_victims(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_victims_t *ask = &message->body.chunk_victims;
    qr_chunk_name_t names[QR_CAPTURE_DROPS];
    uint8_t chains[QR_CAPTURE_DROPS * 32];
    uint32_t groups[QR_CAPTURE_DROPS], named = 0, count = 0;
    uint64_t sizes[QR_CAPTURE_DROPS];
    uint64_t bytes = qr_max_u64(ask->bytes, 1);
    others_value(self, given, message->from, true);
    bool may = self->holds_known && (!self->awaited_count || QR_MUTANT(889)); /* SO8, SO12 */
    int status = may ? qr_chunk_files_victims(self->files, bytes, names, QR_COUNT(names), &count) : -QR_E_BUSY;
    if (status && may && !QR_MUTANT(652)) { /* some that were named may not have been dropped: their asker gave up, or wants them itself */
        names_take_back(self);
        status = qr_chunk_files_victims(self->files, bytes, names, QR_COUNT(names), &count);
    }
    others_value(self, given, message->from, false);
    if (status) count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = qr_parts_find_name(&self->parts, &names[i]);
        if (place == QR_PART_NONE) continue;
        self->parts.parts[place].told = message->from;
        if (!QR_MUTANT(884)) self->parts.parts[place].word = QR_PART_UNPUBLISHED; /* its withdrawal is on its way */
        memcpy(chains + 32ul * named, self->parts.parts[place].chain, 32);
        groups[named] = self->parts.parts[place].group, sizes[named++] = self->parts.parts[place].bytes;
    }
    qr_chunk_victims_named_t body = {.key = ask->key, .chains = {chains, 32ul * named}, .groups = {groups, named}, .sizes = {sizes, named}};
    qr_send(outbox, message->from, chunk_victims_named, &body);
}

/* ---- finding and leasing
 * ------------------------------------------------------------------------------------------------------------------ */

static uint32_t find_ready(const storage_t *self, const uint8_t chain[32], uint32_t group)
{
    uint32_t place = qr_parts_find(&self->parts, chain, group);
    return place != QR_PART_NONE && (self->parts.parts[place].state == QR_PART_READY || QR_MUTANT(645)) ? place : QR_PART_NONE;
}

/* SO7. */
static bool find_named(const storage_t *self, const uint8_t chain[32], uint32_t group)
{
    uint32_t place = find_ready(self, chain, group);
    return place != QR_PART_NONE && (self->parts.parts[place].word == QR_PART_PUBLISHED || QR_MUTANT(655));
}

/* Somebody has it from the catalog. */
static void part_heard(qr_part_t *part)
{
    if (part->word == QR_PART_UNHEARD || QR_MUTANT(885)) part->word = QR_PART_PUBLISHED;
}

static void on_chunk_find(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_find_t *ask = &message->body.chunk_find;
    uint32_t depth = 0, nodes = (uint32_t)qr_min_u64(ask->chains.count / 32, QR_LOOKUP_NODES_MAX);
    writer_speaks(self, message->from, outbox);
    write_ends(self, given, message->from, ask->published.bytes, outbox);
    for (bool all = true; depth < nodes; depth++) {
        for (uint32_t g = 0; g < given->layout.group_count && all && !(QR_MUTANT(646) && g); g++)
            all = find_named(self, ask->chains.data + 32ul * depth, g);
        if (!all) break;
    }
    qr_send(outbox, message->from, chunk_found, (&(qr_chunk_found_t){.key = ask->key, .depth = depth}));
}

static void on_ram_find(const storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_ram_find_t *ask = &message->body.ram_find;
    uint32_t depth = 0, nodes = (uint32_t)qr_min_u64(ask->chains.count / 32, QR_LOOKUP_NODES_MAX);
    for (bool all = true; depth < nodes; depth++) {
        for (uint32_t g = 0; g < given->layout.group_count && all; g++) all = qr_ram_has(&self->ram, ask->chains.data + 32ul * depth, g);
        if (!all) break;
    }
    qr_send(outbox, message->from, ram_found, (&(qr_ram_found_t){.key = ask->key, .depth = depth}));
}

/* The place of a part whose file stands, or QR_PART_NONE. */
static uint32_t find_standing(storage_t *self, const qr_given_t *given, const uint8_t chain[32], uint32_t group, qr_chunk_trust_t *ret_now,
                              uint32_t *ret_reason, qr_outbox_t *outbox)
{
    uint32_t place = find_ready(self, chain, group);
    *ret_reason = QR_E_NOT_FOUND;
    if (place == QR_PART_NONE) return QR_PART_NONE;
    int status = file_look(given, &self->parts.parts[place].name, ret_now);
    if (status == -QR_E_NOT_FOUND) {
        part_missing(self, place, outbox);
        return QR_PART_NONE;
    }
    if (!status && ret_now->bytes != self->parts.parts[place].bytes) {
        part_damaged(self, place, QR_E_TRUNCATED, outbox);
        return QR_PART_NONE;
    }
    *ret_reason = (uint32_t)-status;
    return status ? QR_PART_NONE : place;
}

/* Leases the part's memory, if it is kept. */
static bool ram_lease(storage_t *self, const qr_message_t *message, qr_chunk_leased_t *body)
{
    const qr_chunk_lease_t *ask = &message->body.chunk_lease;
    uint32_t i = 0;
    while (i < QR_STORAGE_LEASES && self->ram_leases[i].lease) i++;
    uint32_t slot = i < QR_STORAGE_LEASES ? qr_ram_lease(&self->ram, ask->chain.bytes, ask->group) : QR_RAM_NONE;
    if (slot == QR_RAM_NONE) return false;
    ram_lease_t *row = &self->ram_leases[i];
    row->generation = row->generation == UINT32_MAX ? 1 : row->generation + 1;
    row->lease = qr_handle(QR_STORAGE_LEASES + i, row->generation), row->holder = message->from, row->slot = slot;
    body->lease = row->lease, body->kept = slot + 1, body->trusted = 1;
    body->bytes = qr_chunk_file_bytes(&self->ram.memory->headers[slot]);
    uint32_t place = find_ready(self, ask->chain.bytes, ask->group);
    if (place == QR_PART_NONE) return true;
    qr_part_t *part = &self->parts.parts[place];
    memcpy(body->content.bytes, part->name.id, 32);
    part_heard(part);
    (void)qr_parts_touch(&self->parts, place);
    part_value(self, place);
    return true;
}

static void on_chunk_lease(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_lease_t *ask = &message->body.chunk_lease;
    qr_chunk_leased_t body = {.key = ask->key};
    if (ram_lease(self, message, &body)) {
        qr_send(outbox, message->from, chunk_leased, &body);
        return;
    }
    qr_chunk_trust_t now;
    uint32_t place = find_standing(self, given, ask->chain.bytes, ask->group, &now, &body.reason, outbox);
    if (place != QR_PART_NONE) {
        qr_part_t *part = &self->parts.parts[place];
        body.reason = (uint32_t)-qr_chunk_files_lease(self->files, &part->name, message->from, &body.lease);
        if (!body.reason) {
            uint32_t fill = qr_ram_reserve(&self->ram, part->chain, part->group, part->start, part->hits + 1);
            body.keep = fill == QR_RAM_NONE ? 0 : fill + 1;
            self->leases[qr_handle_index(body.lease)] =
                (lease_row_t){.lease = body.lease, .holder = message->from, .part = place, .fill = body.keep, .trust = now};
            memcpy(body.content.bytes, part->name.id, 32);
            body.bytes = part->bytes;
            body.trusted = trust_known(part, &now);
            qr_chunk_trust_stamp(&now, body.stamp.bytes);
            part_heard(part);
            (void)qr_parts_touch(&self->parts, place);
            part_value(self, place);
            self->hits++;
        }
    }
    if (body.reason) body.lease = 0;
    if (body.reason == QR_E_NOT_FOUND) self->misses++;
    if (body.reason == QR_E_NOT_FOUND && find_ready(self, ask->chain.bytes, ask->group) == QR_PART_NONE && !QR_MUTANT(725))
        (void)loss_add(self, ask->chain.bytes, ask->group, outbox); /* who asks for it has it from the catalog */
    qr_send(outbox, message->from, chunk_leased, &body);
}

/* Its file could not be unlinked: those who wait for it hear so, and may ask again. */
static void drops_failed(storage_t *self, uint32_t place, int status, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_CAPTURE_DROPS && !QR_MUTANT(653); i++) {
        drop_ask_t *drop = &self->drops[i];
        if (!drop->from || drop->part != place) continue;
        qr_send(outbox, drop->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = drop->key, .reason = (uint32_t)-status}));
        drop->from = 0;
    }
}

/* Ends a lease that is open. 0, or why a file that should go with it is still there. */
static int lease_end(storage_t *self, uint64_t lease, qr_outbox_t *outbox)
{
    bool dropped;
    qr_chunk_name_t name;
    lease_row_t *row = &self->leases[qr_handle_index(lease)];
    uint32_t place = row->part;
    int status = qr_chunk_files_release(self->files, lease, &dropped, &name);
    if (row->fill) qr_ram_release(&self->ram, row->fill - 1); /* nobody vouched for it */
    *row = (lease_row_t){0};
    if (dropped) part_gone(self, place, outbox);
    if (status) drops_failed(self, place, status, outbox);
    return status;
}

/* Ends a lease of memory that is open. */
static void ram_lease_end(storage_t *self, ram_lease_t *row)
{
    qr_ram_release(&self->ram, row->slot);
    row->lease = 0, row->holder = 0;
}

static void ram_release(storage_t *self, const qr_message_t *message, uint32_t index, qr_outbox_t *outbox)
{
    const qr_chunk_release_t *ask = &message->body.chunk_release;
    qr_chunk_released_t body = {.lease = ask->lease, .reason = QR_E_STALE};
    ram_lease_t *row = index < QR_STORAGE_LEASES ? &self->ram_leases[index] : NULL;
    if (row && row->lease == ask->lease && row->holder == message->from) {
        if (ask->damage) {
            qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_ram_chunk_damaged, 0, ask->damage, row->slot, self->ram.damaged + 1);
            qr_ram_damage(&self->ram, row->slot);
        }
        ram_lease_end(self, row);
        body.reason = 0;
    }
    qr_send(outbox, message->from, chunk_released, &body);
}

static void on_chunk_release(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_release_t *ask = &message->body.chunk_release;
    uint32_t index = qr_handle_index(ask->lease);
    qr_chunk_released_t body = {.lease = ask->lease, .reason = QR_E_STALE};
    lease_row_t row = index < QR_STORAGE_LEASES ? self->leases[index] : (lease_row_t){0};
    if (index >= QR_STORAGE_LEASES) {
        ram_release(self, message, index - QR_STORAGE_LEASES, outbox);
        return;
    }
    if (ask->lease && row.lease == ask->lease && row.holder == message->from) {
        qr_part_t *part = &self->parts.parts[row.part];
        qr_chunk_trust_t now;
        /* The file was seen whole; it counts only if it is still the one that was leased. */
        bool same = ask->trust && !ask->damage && part->state == QR_PART_READY && file_look(given, &part->name, &now) == 0;
        if (same && (memcmp(&now, &row.trust, sizeof now) == 0 || QR_MUTANT(647))) trust_keep(part, &now);
        bool fills = row.fill && ask->kept && !ask->damage && part->state == QR_PART_READY;
        if (fills || (QR_MUTANT(767) && row.fill)) qr_ram_keep(&self->ram, row.fill - 1), self->leases[index].fill = 0;
        if (ask->damage) part_damaged(self, row.part, ask->damage, outbox);
        body.reason = (uint32_t)-lease_end(self, ask->lease, outbox);
    }
    qr_send(outbox, message->from, chunk_released, &body);
}

/* ---- writing (SO1, SO2)
 * --------------------------------------------------------------------------------------------------------------------- */

static void write_answer(storage_t *self, const write_ask_t *w, uint32_t reason, const qr_part_t *part, uint64_t shortfall,
                         qr_outbox_t *outbox)
{
    uint64_t paused_us = w == &self->writes[0] && self->phase != PHASE_IDLE ? self->paused_us : 0;
    qr_chunk_written_t body = {
        .key = w->key, .reason = reason, .shortfall_bytes = shortfall, .write_us = clock_us() - w->asked_us - paused_us};
    if (part) memcpy(body.content.bytes, part->name.id, 32), body.bytes = part->bytes;
    if (reason == QR_E_SHORTFALL)
        self->refused_full++;
    else if (reason == QR_E_BUSY)
        self->refused_busy++;
    else if (reason && reason != QR_E_CANCELLED && reason != QR_E_INVALID)
        self->failed++;
    if (w->from) qr_send(outbox, w->from, chunk_written, &body);
}

/* The message as a file's header. */
static bool header_fill(const qr_given_t *given, const qr_chunk_write_t *ask, qr_chunk_header_t *ret_header)
{
    const qr_staging_config_t *config = &given->staging->config;
    uint8_t chain[32];
    if (ask->slot >= config->slots || ask->group >= config->group_count || ask->group >= given->layout.group_count) return false;
    if (ask->tokens.count != given->layout.chunk_tokens || ask->tokens.count > config->chunk_tokens || ask->start % ask->tokens.count)
        return false;
    qr_chunk_header_t header = {.start = ask->start,
                                .count = (uint32_t)ask->tokens.count,
                                .members = config->groups[ask->group].members,
                                .row_bytes = config->groups[ask->group].row_bytes,
                                .group = (uint16_t)ask->group,
                                .shards = 1};
    header.extent = given->layout.groups[ask->group].window ? QR_CHUNK_EXTENT_WINDOW : QR_CHUNK_EXTENT_TOKEN;
    memcpy(header.fingerprint, given->layout.fingerprint.bytes, 32);
    memcpy(header.parent, ask->parent.bytes, 32);
    memcpy(header.chain, ask->chain.bytes, 32);
    qr_chain_node(header.parent, ask->tokens.data, header.count, chain);
    *ret_header = header;
    return qr_chunk_header_valid(&header) && memcmp(chain, header.chain, 32) == 0;
}

static void on_chunk_write(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_chunk_write_t *ask = &message->body.chunk_write;
    bool room = self->write_count < QR_STORAGE_WRITES;
    write_ask_t refused = {.from = message->from, .key = ask->key, .asked_us = clock_us()};
    write_ask_t *w = room ? &self->writes[self->write_count] : &refused;
    *w = refused;
    if (!header_fill(given, ask, &w->header)) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, QR_E_INVALID, message->type, ask->key);
        write_answer(self, w, QR_E_INVALID, NULL, 0, outbox);
    } else if (!room) {
        write_answer(self, w, QR_E_BUSY, NULL, 0, outbox);
    } else {
        w->slot = ask->slot;
        write_begins(self, given, message->from, ask->chain.bytes);
        memcpy(w->tokens, ask->tokens.data, ask->tokens.count * sizeof(uint32_t));
        self->write_count++;
    }
}

/* On the errand's thread, after a piece of work that began with began_us worked: a pause, while batches are computed. It does not grow by
 * what transfer works meanwhile, or a capture would wait for the last of the restores. */
static void write_pause(storage_t *self, uint64_t began_us)
{
    uint64_t from_us = clock_us(), now_us = from_us, resume_us;
    if (!QR_MUTANT(785)) qr_duty_worked(self->activity, self->transfer_duty, now_us, worked_us() - began_us);
    resume_us = qr_duty_resume_us(self->activity, now_us);
    while (now_us < resume_us && qr_duty_computing(self->activity, now_us)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)qr_min_u64(resume_us - now_us, PAUSE_US_MAX) * 1000}, NULL);
        now_us = clock_us();
    }
    self->paused_us += now_us - from_us;
}

static void digest_run(void *context)
{
    storage_t *self = context;
    write_ask_t *w = &self->writes[0];
    qr_chunk_piece_t piece = {self->payload, self->payload_bytes};
    uint64_t began_us = worked_us();
    self->paused_us = 0;
    self->write_status = qr_chunk_digest(w->tokens, w->header.count, &piece, 1, w->header.digest);
    write_pause(self, began_us);
}

static void write_run(void *context)
{
    storage_t *self = context;
    int status = 0;
    for (uint64_t at = 0; at < self->payload_bytes && !status; at += WRITE_PIECE_BYTES) {
        size_t bytes = (size_t)qr_min_u64(WRITE_PIECE_BYTES, self->payload_bytes - at);
        uint64_t began_us = worked_us();
        if (self->write_fill) qr_stream_copy(qr_staging_slot(self->ram.memory, self->write_fill - 1) + at, self->payload + at, bytes);
        status = qr_chunk_write_put(self->write, self->payload + at, bytes);
        write_pause(self, began_us);
    }
    if (!status) status = qr_chunk_write_sync(self->write);
    self->write_status = status;
}

/* The first of the queue has been answered. */
static void write_over(storage_t *self)
{
    self->phase = PHASE_IDLE;
    self->write_count--;
    memmove(&self->writes[0], &self->writes[1], self->write_count * sizeof self->writes[0]);
}

/* Answers the first write at once if its part is here already or may not be written now. */
static bool write_settled(storage_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    const write_ask_t *w = &self->writes[0];
    qr_chunk_trust_t now;
    uint32_t reason, place;
    if (w->void_) {
        write_answer(self, w, QR_E_CANCELLED, NULL, 0, outbox);
        return true;
    }
    place = find_standing(self, given, w->header.chain, w->header.group, &now, &reason, outbox);
    if (place != QR_PART_NONE) {
        if (!QR_MUTANT(881)) self->parts.parts[place].word = QR_PART_UNPUBLISHED; /* its writer may withdraw it again */
        write_answer(self, w, 0, &self->parts.parts[place], 0, outbox);
        return true;
    }
    const loss_t *loss = loss_find(self, w->header.chain, w->header.group);
    if (loss && loss->told && loss->told != w->from && !QR_MUTANT(726)) { /* another one withdraws it just now */
        write_answer(self, w, QR_E_BUSY, NULL, 0, outbox);
        return true;
    }
    place = qr_parts_find(&self->parts, w->header.chain, w->header.group);
    if (place == QR_PART_NONE) return false;
    bool waits = true; /* leaving: if nothing but a failed unlink kept it, it goes now */
    if (self->parts.parts[place].state == QR_PART_LEAVING && !QR_MUTANT(654) && !part_leave(self, place, &waits, outbox) && !waits)
        return false;
    write_answer(self, w, QR_E_BUSY, NULL, 0, outbox);
    return true;
}

static void note_failed(const write_ask_t *w, int status, qr_outbox_t *outbox)
{
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_store_chunk_failed, 0, (uint64_t)-status, qr_chunk_file_bytes(&w->header), 0);
}

/* Digested: takes room for the file and sends the errand to write it. */
static void write_reserve(storage_t *self, qr_outbox_t *outbox)
{
    write_ask_t *w = &self->writes[0];
    uint64_t bytes = qr_chunk_file_bytes(&w->header), shortfall = 0;
    int status = self->write_status;
    if (!status && w->void_) status = -QR_E_CANCELLED;
    if (!status) status = qr_chunk_files_write(self->files, &w->header, w->tokens, NULL, &self->write);
    if (!status) {
        uint32_t fill = qr_ram_reserve(&self->ram, w->header.chain, w->header.group, w->header.start, 0);
        self->write_fill = fill == QR_RAM_NONE ? 0 : fill + 1;
        self->phase = PHASE_WRITE;
        qr_errand_give(self->errand, write_run, self);
        return;
    }
    if (status == -QR_E_BUSY) {
        qr_chunk_files_stats_t stats;
        qr_chunk_files_stats(self->files, &stats);
        uint64_t with = stats.bytes + stats.reserved + stats.stray + bytes;
        shortfall = with > stats.bytes_max ? with - stats.bytes_max : 1; /* or it is the count of files */
        status = -QR_E_SHORTFALL;
    }
    if (status == -QR_E_LIMIT) status = -QR_E_NO_SPACE;
    if (status != -QR_E_SHORTFALL && status != -QR_E_CANCELLED) note_failed(w, status, outbox);
    write_answer(self, w, (uint32_t)-status, NULL, shortfall, outbox);
    write_over(self);
}

/* A part found at the start by its header alone bore the name of what was written now: it is not what its name says, and has no file any
 * more. Its leases are of the new file, which they keep. */
static void name_false(storage_t *self, uint32_t place, qr_outbox_t *outbox)
{
    const qr_part_t *part = &self->parts.parts[place];
    if (part->state == QR_PART_READY) self->damaged++;
    qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_store_chunk_damaged, 0, QR_E_IDENTITY, part->bytes, part->start);
    (void)loss_add(self, part->chain, part->group, outbox);
    part_gone(self, place, outbox);
}

/* Written, synced and named, or failed: publishes it. */
static void write_publish(storage_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    write_ask_t *w = &self->writes[0];
    qr_chunk_name_t name;
    qr_chunk_trust_t now;
    bool existed, waits;
    uint32_t place = QR_PART_NONE;
    int status = qr_chunk_write_end(&self->write, NULL, 0, &name, &existed);
    if (!status) {
        uint32_t other = QR_MUTANT(489) ? QR_PART_NONE : qr_parts_find_name(&self->parts, &name);
        if (other != QR_PART_NONE) name_false(self, other, outbox);
        place = qr_parts_add(&self->parts, &w->header, &name, qr_chunk_file_bytes(&w->header));
        qr_assert(place != QR_PART_NONE); /* there are as many places as files */
        for (uint32_t i = 0; i < QR_STORAGE_LEASES && other != QR_PART_NONE; i++)
            if (self->leases[i].lease && self->leases[i].part == other) self->leases[i].part = place;
        part_value(self, place);
        self->parts.parts[place].word = QR_MUTANT(880) ? QR_PART_PUBLISHED : QR_PART_UNPUBLISHED;
        /* Its SHA-256 was taken of the bytes that were written. */
        if (file_look(given, &name, &now) == 0) trust_keep(&self->parts.parts[place], &now);
        self->written++;
    } else {
        note_failed(w, status, outbox);
    }
    if (self->write_fill && !status && !w->void_) {
        self->ram.memory->headers[self->write_fill - 1] = w->header;
        qr_ram_keep(&self->ram, self->write_fill - 1);
    } else if (self->write_fill) {
        qr_ram_release(&self->ram, self->write_fill - 1);
    }
    self->write_fill = 0;
    if (w->void_ && !status) {
        (void)part_leave(self, place, &waits, outbox);
        status = -QR_E_CANCELLED, place = QR_PART_NONE;
    }
    if (!status) loss_over(self, given, w->header.chain, w->header.group, outbox);
    write_answer(self, w, QR_MUTANT(649) ? 0 : (uint32_t)-status, place == QR_PART_NONE ? NULL : &self->parts.parts[place], 0, outbox);
    write_over(self);
}

/* The errand is back. */
static void write_step(storage_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    if (self->phase == PHASE_DIGEST)
        write_reserve(self, outbox);
    else if (self->phase == PHASE_WRITE)
        write_publish(self, given, outbox);
}

/* Nothing is to be written: memory for what may be read (RA4), unless batches are computed; then the next message reminds us. */
static uint64_t ram_ahead(storage_t *self, const qr_given_t *given)
{
    if (qr_duty_computing(given->activity, clock_us())) return QR_NEVER_US;
    return qr_ram_touch(&self->ram, self->parts.count) ? 0 : QR_NEVER_US;
}

static uint64_t storage_work(void *block, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    storage_t *self = block;
    (void)now_us;
    if (!self->files || !self->errand) return QR_NEVER_US;
    if (self->phase != PHASE_IDLE && qr_errand_back(self->errand)) write_step(self, given, outbox);
    if (self->phase != PHASE_IDLE) return QR_NEVER_US; /* the descriptor tells */
    if (self->write_count == 0) return ram_ahead(self, given);
    if (write_settled(self, given, outbox)) {
        write_over(self);
        return 0;
    }
    self->payload = qr_staging_slot(given->staging, self->writes[0].slot);
    self->payload_bytes = qr_chunk_payload_bytes(&self->writes[0].header);
    self->phase = PHASE_DIGEST;
    qr_errand_give(self->errand, digest_run, self);
    return QR_NEVER_US;
}

/* ---- partners that begin anew (SO4)
 * -------------------------------------------------------------------------------------------------------- */

/* Whoever began anew does not know what it wrote; its publish may be on its way (SO11). */
static void holder_left(storage_t *self, uint32_t holder)
{
    if (self->holders[holder].writes && !QR_MUTANT(892)) {
        self->holders[holder].left = true;
        memcpy(self->holders[holder].left_chain, self->holders[holder].chain, 32);
    }
    self->holders[holder].watches = self->holders[holder].writes = false;
}

static void holder_over(storage_t *self, uint64_t holder, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_CAPTURE_DROPS; i++)
        if (self->drops[i].from == holder) self->drops[i].from = 0;
    for (uint32_t i = 0; i < QR_STORAGE_LEASES; i++)
        if (self->leases[i].lease && self->leases[i].holder == holder) (void)lease_end(self, self->leases[i].lease, outbox);
    for (uint32_t i = 0; i < QR_STORAGE_LEASES; i++)
        if (self->ram_leases[i].lease && self->ram_leases[i].holder == holder && !QR_MUTANT(768)) ram_lease_end(self, &self->ram_leases[i]);
    for (uint32_t i = 0; i < self->write_count; i++)
        if (self->writes[i].from == holder) self->writes[i].from = 0, self->writes[i].void_ = true;
    for (uint32_t i = 0; i < HOLDERS_MAX; i++)
        if (self->holders[i].address == holder) holder_left(self, i);
    for (uint32_t i = 0; i < self->loss_count; i++)
        if (self->losses[i].told == holder) self->losses[i].told = 0;
    if (self->loss_count) losses_tell(self, outbox);
    names_take_back(self);
}

static void holder_see(storage_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint32_t i = 0;
    while (i < HOLDERS_MAX && self->holders[i].address && self->holders[i].address != message->from) i++;
    if (i == HOLDERS_MAX) return;
    bool anew = self->holders[i].address && self->holders[i].epoch != message->epoch && !QR_MUTANT(650);
    self->holders[i].address = message->from, self->holders[i].epoch = message->epoch;
    if (anew) holder_over(self, message->from, outbox);
}

/* ---- the catalog at the start (SO9)
 * -------------------------------------------------------------------------------------------------------- */

static void sweep_ask(storage_t *self, const qr_given_t *given, qr_outbox_t *outbox)
{
    self->sweep.state = SWEEP_ASKED;
    qr_send(outbox, self->facts, facts_query,
            (&(qr_facts_query_t){.query_id = ++self->sweep.query_id,
                                 .kind = QR_FACTS_REPLICAS,
                                 .count_max = SWEEP_PAGE,
                                 .tier = QR_TIER_SSD,
                                 .owner = qr_address_node(self->address),
                                 .fingerprint = {given->layout.fingerprint.bytes, 32},
                                 .cursor = {self->sweep.cursor, self->sweep.cursor_bytes}}));
}

static void sweep_end(storage_t *self, qr_outbox_t *outbox)
{
    self->sweep.state = SWEEP_OVER;
    qr_outbox_note(outbox, self->sweep.missing ? QR_LEVEL_WARN : QR_LEVEL_INFO, QR_NOTE_store_swept, 0, self->sweep.named,
                   self->sweep.missing, 0);
}

/* Parts that the catalog says stand here. */
static void on_facts_page(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_facts_page_t *page = &message->body.facts_page;
    bool even = page->chains.count == 32 * page->groups.count && page->cursor.count <= sizeof self->sweep.cursor;
    if (self->sweep.state != SWEEP_ASKED || page->query_id != self->sweep.query_id || !even) return;
    uint64_t named = 0, missing = 0;
    for (uint64_t i = 0; i < page->groups.count; i++) {
        const uint8_t *chain = page->chains.data + 32 * i;
        uint32_t place = find_ready(self, chain, page->groups.data[i]);
        named++;
        if (place != QR_PART_NONE) {
            part_heard(&self->parts.parts[place]);
        } else if (missing++, !QR_MUTANT(727) && !loss_add(self, chain, page->groups.data[i], outbox)) {
            self->sweep.state = SWEEP_FULL; /* this page again, when those are withdrawn */
            return;
        }
    }
    self->sweep.named += named, self->sweep.missing += missing, self->missing += missing;
    qr_copy(self->sweep.cursor, page->cursor.data, page->cursor.count);
    self->sweep.cursor_bytes = (uint32_t)page->cursor.count;
    if (page->cursor.count)
        sweep_ask(self, given, outbox);
    else
        sweep_end(self, outbox);
}

static void on_facts_refused(storage_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    if (self->sweep.state != SWEEP_ASKED || message->body.facts_refused.query_id != self->sweep.query_id) return;
    if (++self->sweep.tries == SWEEP_TRIES) { /* what is missing is found when it is asked for */
        sweep_end(self, outbox);
        return;
    }
    self->sweep.state = SWEEP_WAITS;
    self->sweep.again_us = message->now_us + SWEEP_AGAIN_US;
    qr_outbox_alarm(outbox, self->sweep.again_us);
}

/* ---- start and stop
 * -------------------------------------------------------------------------------------------------------------------------- */

typedef struct opening {
    storage_t *self;
    const qr_given_t *given;
} opening_t;

/* Adopts a final file whose header, tokens and chain hash agree; its payload is judged when it is used. One that cannot be read now may
 * be whole: it is not deleted. */
static qr_chunk_adopt_t adopt(void *context, const qr_chunk_final_t *found, uint64_t *ret_value)
{
    const opening_t *opening = context;
    storage_t *self = opening->self;
    qr_chunk_reader_t *reader = NULL;
    qr_chunk_reason_t why;
    *ret_value = UINT64_MAX;
    if (qr_chunk_name_is_tail(&found->name)) return QR_CHUNK_ADOPT; /* its owner's */
    if (qr_chunk_reader_open(opening->given->store->fd, found->path, NULL, NULL, &reader, &why)) {
        bool unread = why == QR_CHUNK_IO && !QR_MUTANT(651);
        self->unread += unread;
        return unread ? QR_CHUNK_LEAVE : QR_CHUNK_DELETE;
    }
    const qr_chunk_header_t *header = qr_chunk_reader_header(reader);
    bool fits = !header->tail && qr_parts_find(&self->parts, header->chain, header->group) == QR_PART_NONE;
    uint32_t place = fits ? qr_parts_add(&self->parts, header, &found->name, found->bytes) : QR_PART_NONE;
    qr_chunk_reader_close(&reader);
    if (place != QR_PART_NONE) *ret_value = self->parts.parts[place].key;
    return place != QR_PART_NONE ? QR_CHUNK_ADOPT : QR_CHUNK_DELETE;
}
static void lost(void *context, const qr_chunk_final_t *found)
{
    storage_t *self = ((const opening_t *)context)->self;
    uint32_t place = qr_parts_find_name(&self->parts, &found->name);
    if (place != QR_PART_NONE) qr_parts_remove(&self->parts, place);
}

/* Takes everything that must be given back by done. 0, or an error with a sentence. */
static int store_open(storage_t *self, const qr_given_t *given, char *message, size_t message_bytes)
{
    opening_t opening = {self, given};
    qr_chunk_adoption_t adoption = {.context = &opening, .adopt = adopt, .lost = lost};
    qr_chunk_files_config_t config = {.bytes_max = given->params.store_bytes,
                                      .chunks_max = (uint32_t)given->params.store_files,
                                      .leases_max = QR_STORAGE_LEASES,
                                      .writes_max = 1};
    (void)snprintf(message, message_bytes, "storage needs an open store and staging slots");
    if (!given->store || !given->staging) return -QR_E_INVALID;
    (void)snprintf(message, message_bytes, "store: not enough memory for %u files", config.chunks_max);
    self->writes = calloc(QR_STORAGE_WRITES, sizeof *self->writes);
    int status = self->writes ? qr_parts_init(&self->parts, config.chunks_max) : -QR_E_MEMORY;
    self->activity = given->activity, self->transfer_duty = given->params.transfer_duty;
    if (!status) status = holds_open(self, given);
    if (!status) status = qr_ram_init(&self->ram, given->ram);
    if (!status) status = qr_errand_new(&self->errand);
    if (!status) status = qr_chunk_files_open(given->store, &config, &adoption, &self->files, message, message_bytes);
    return status;
}

static void storage_done(void *block)
{
    storage_t *self = block;
    qr_errand_destroy(&self->errand); /* first: it uses the rest */
    qr_chunk_files_close(&self->files);
    qr_parts_done(&self->parts);
    qr_holds_done(&self->holds);
    free(self->chains);
    qr_ram_done(&self->ram);
    free(self->writes);
    self->chains = NULL, self->writes = NULL, self->write = NULL, self->write_count = 0, self->phase = PHASE_IDLE;
}

static void on_start(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    char sentence[MESSAGE_BYTES] = "";
    qr_ready_t body = {0};
    if (!self->files) body.reason = (uint32_t)-store_open(self, given, sentence, sizeof sentence);
    if (body.reason) {
        body.text = (qr_bytes_t){(const uint8_t *)sentence, strlen(sentence)};
        storage_done(self);
    } else {
        qr_chunk_files_stats_t stats;
        qr_chunk_files_stats(self->files, &stats);
        self->adopted = stats.adopted;
        qr_outbox_note(outbox, QR_LEVEL_INFO, QR_NOTE_store_opened, 0, stats.adopted, stats.bytes, stats.deleted + stats.lost);
        if (self->unread) qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_store_chunks_unread, 0, self->unread, 0, 0);
        holds_ask(self, message, outbox);
        writers_await(self, &message->body.start);
    }
    qr_send(outbox, message->from, ready, &body);
    if (!body.reason && self->facts) sweep_ask(self, given, outbox);
}

/* The write under way is brought to its end (a few milliseconds), those that wait are given up. */
static void on_stop(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_errand_destroy(&self->errand);
    if (self->phase == PHASE_WRITE && !QR_MUTANT(648)) write_publish(self, given, outbox);
    for (; self->write_count; write_over(self)) write_answer(self, &self->writes[0], QR_E_CANCELLED, NULL, 0, outbox);
    for (uint32_t i = 0; i < QR_CAPTURE_DROPS; i++) {
        drop_ask_t *drop = &self->drops[i];
        if (drop->from) qr_send(outbox, drop->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = drop->key, .reason = QR_E_CANCELLED}));
        drop->from = 0;
    }
    qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = 0}));
}

/* ---- the actor
 * --------------------------------------------------------------------------------------------------------------------------------- */

static uint64_t storage_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(storage_t);
}

static void storage_init(void *block, const qr_given_t *given, uint64_t address)
{
    storage_t *self = block;
    (void)given;
    self->address = address;
}

static int storage_wake_descriptor(void *block)
{
    const storage_t *self = block;
    return self->errand ? qr_errand_descriptor(self->errand) : -1;
}

static void on_metrics_read(const storage_t *self, uint64_t from, qr_outbox_t *outbox)
{
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    qr_chunk_files_stats_t s;
    qr_chunk_files_stats(self->files, &s);
    const uint32_t ids[] = {ID_store_files,
                            ID_store_bytes,
                            ID_store_bytes_bound,
                            ID_store_leases,
                            ID_store_writes_waiting,
                            ID_store_hits_total,
                            ID_store_misses_total,
                            ID_store_writes_total,
                            ID_store_write_failures_total,
                            ID_store_refused_full_total,
                            ID_store_refused_busy_total,
                            ID_store_damaged_total,
                            ID_store_missing_total,
                            ID_store_evictions_total,
                            ID_store_adopted_files,
                            ID_store_held_bytes,
                            ID_ram_chunks,
                            ID_ram_bytes,
                            ID_ram_bytes_bound,
                            ID_ram_hits_total,
                            ID_ram_misses_total,
                            ID_ram_entered_total,
                            ID_ram_refused_total,
                            ID_ram_evictions_total,
                            ID_ram_verify_failures_total};
    const uint64_t values[] = {s.chunks + s.tails,
                               s.bytes + s.reserved + s.stray,
                               s.bytes_max,
                               s.leases,
                               self->write_count,
                               self->hits,
                               self->misses,
                               self->written,
                               self->failed,
                               self->refused_full,
                               self->refused_busy,
                               self->damaged,
                               self->missing,
                               self->evicted,
                               self->adopted,
                               self->holds.count * self->held_chunk_bytes,
                               self->ram.parts.count,
                               qr_ram_bytes(&self->ram),
                               qr_ram_bytes_bound(&self->ram),
                               self->ram.hits,
                               self->ram.misses,
                               self->ram.entered,
                               self->ram.refused,
                               self->ram.evictions,
                               self->ram.damaged};
    qr_send(outbox, from, metrics, (&(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}}));
}

static void on_question(storage_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    holder_see(self, message, outbox);
    switch (message->type) {
    case QR_MESSAGE_chunk_find: on_chunk_find(self, given, message, outbox); break;
    case QR_MESSAGE_ram_find: on_ram_find(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_lease: on_chunk_lease(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_release: on_chunk_release(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_write: on_chunk_write(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_victims: on_chunk_victims(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_hold: on_chunk_hold(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_unhold: on_chunk_unhold(self, given, message, outbox); break;
    case QR_MESSAGE_holds_found: on_holds_found(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_drop: on_chunk_drop(self, given, message, outbox); break;
    case QR_MESSAGE_chunk_losses: on_chunk_losses(self, message, outbox); break;
    case QR_MESSAGE_facts_page: on_facts_page(self, given, message, outbox); break;
    case QR_MESSAGE_facts_refused: on_facts_refused(self, message, outbox); break;
    default: on_metrics_read(self, message->from, outbox); break;
    }
}

static void storage_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    storage_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_drain: qr_send(outbox, message->from, drained, (&(qr_drained_t){.open_count = self->write_count})); break;
    case QR_MESSAGE_stop: on_stop(self, given, message, outbox); break;
    case QR_MESSAGE_alarm:
        if (self->sweep.state == SWEEP_WAITS && message->now_us >= self->sweep.again_us) sweep_ask(self, given, outbox);
        break;
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    case QR_MESSAGE_chunk_find:
    case QR_MESSAGE_ram_find:
    case QR_MESSAGE_chunk_lease:
    case QR_MESSAGE_chunk_release:
    case QR_MESSAGE_chunk_write:
    case QR_MESSAGE_chunk_victims:
    case QR_MESSAGE_chunk_drop:
    case QR_MESSAGE_chunk_hold:
    case QR_MESSAGE_chunk_unhold:
    case QR_MESSAGE_holds_found:
    case QR_MESSAGE_chunk_losses:
    case QR_MESSAGE_facts_page:
    case QR_MESSAGE_facts_refused:
    case QR_MESSAGE_metrics_read:
        if (self->files) {
            on_question(self, given, message, outbox);
            break;
        } /* fall through */
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
}

static void storage_check(const void *block, const qr_given_t *given)
{
    const storage_t *self = block;
    uint32_t leases = 0, ram_leases = 0, fills = self->write_fill != 0;
    (void)given;
    if (!self->files || self->phase == PHASE_WRITE) return; /* the write under way is the errand's */
    qr_chunk_files_check(self->files);
    qr_parts_check(&self->parts);
    qr_holds_check(&self->holds);
    for (uint32_t i = 0; i < QR_STORAGE_LEASES; i++) {
        if (!self->leases[i].lease) continue;
        leases++, fills += self->leases[i].fill != 0;
        qr_assert(self->parts.parts[self->leases[i].part].state != QR_PART_FREE); /* SO4 */
    }
    for (uint32_t i = 0; i < QR_STORAGE_LEASES; i++) ram_leases += self->ram_leases[i].lease != 0;
    qr_ram_check(&self->ram, ram_leases, fills);
    qr_chunk_files_stats_t stats;
    qr_chunk_files_stats(self->files, &stats);
    qr_assert(stats.leases == leases && stats.chunks == self->parts.count);
    for (uint32_t i = 0; i < QR_CAPTURE_DROPS; i++)
        qr_assert(!self->drops[i].from || self->parts.parts[self->drops[i].part].state == QR_PART_LEAVING);
}

static void storage_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const storage_t *self = block;
    (void)given;
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"storage: parts ", self->parts.count},
                {", level ", self->parts.level},
                {", writes waiting ", self->write_count},
                {", hits ", self->hits},
                {", misses ", self->misses},
                {", written ", self->written},
                {", failed ", self->failed},
                {", damaged ", self->damaged},
                {", missing ", self->missing},
                {", evicted ", self->evicted},
                {", in memory ", self->ram.parts.count}};
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        qr_text_put(text, rows[i].name);
        qr_text_put_u64(text, rows[i].value);
    }
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_storage_class = {
    .name = "storage",
    .role = QR_ROLE_storage,
    .max_out = QR_STORAGE_WRITES + QR_CAPTURE_DROPS + HOLDERS_MAX + 2,
    .owns_world = true,
    .bytes = storage_bytes,
    .init = storage_init,
    .handle = storage_handle,
    .check = storage_check,
    .print = storage_print,
    .work = storage_work,
    .wake_descriptor = storage_wake_descriptor,
    .done = storage_done,
};
