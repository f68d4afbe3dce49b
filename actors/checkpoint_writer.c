/* checkpoint_writer.c - owns captures: resident rows on their way into durable chunks that the catalog knows.
 *
 *   page_manager, facts  checkpoint_writer           storage         transfer        page_manager      catalog_writer (one per mesh)
 *     capture -------------> | -- chunk_find ---------> |                                 |                  |
 *                            | -- pages_pin ------------------------------------------->  |                  |
 *                            | -- page_download --------------------> |  into a slot      |                  |
 *                            | -- pages_unpin ----------------------------------------->  |                  |
 *                            | -- chunk_write --------> |  out of the slot                |                  |
 *                            |    (no room: chunk_victims, publish WITHDRAW, chunk_drop, once more)          |
 *                            | -- publish NODE, PART, REPLICA -------------------------------------------->  |
 *     <-- captured --------- |
 *                            | -- chunk_losses --------> |  open until something is damaged or gone
 *                            |    (its names, publish WITHDRAW, chunk_drop)                                  |
 *
 * One capture is under way, chunk by chunk from the first that is missing (be it before start_rows: a chain with a gap restores nothing),
 * parents first: a chunk is begun when the one before is published, and storage is asked again how much of the rest is there. Of a chunk's
 * groups one moves into a slot while another is written. A capture that is expected to save less than it costs is skipped
 * (capture_value.h). One that somebody wants (facts, for a saved continuation) is never judged, and the next to begin is always the first
 * of those, if there is any.
 *
 * A capture that cannot go on is answered at once; what it had open is wound down before the next one begins: slots and pins come back
 * with their answers, a chunk that turned out to be durable is published, what was withdrawn is dropped. Parts of a chunk that never
 * became whole stay: the next capture of the chain asks to write them again, which is an answer and no write, or they leave as victims,
 * withdrawn like any other.
 *
 * Between two captures what storage has lost is withdrawn, by the way that room is made. If that is refused it is tried again, later and
 * later.
 *
 * A publish that is lost with its link, or whose outcome the catalog writer does not know, is asked again with the same sequence. Refused
 * because the catalog writer is busy or its log failed: asked again until the capture is given up. STALE: published anew, a few times.
 * Refused for good: what may be published all the same is withdrawn before it is dropped, and left alone if that is refused too: parts of
 * several groups (by an earlier capture), an asking whose outcome is not known, a file in place of an earlier one that was damaged or lost
 * and that the log still names. Only a node of one group of which the log can't know is dropped at once.
 *
 * At the bounds: a capture beyond QR_CAPTURES_MAX, or a wanted one beyond as many as facts may have open, is answered BUSY: neither kind
 * takes a place of the other. A capture for which nothing is answered for capture_max_ms ends with
 * DEADLINE, together with all that wait; until what it had open has come back, new ones are answered BUSY. Without a link to the catalog
 * writer captures are answered PEER_DOWN.
 *
 * K1. A slot is FREE, or it is one group's of the chunk under way: PINNING, LOADING (pinned; transfer writes into it), STAGED (the bytes
 *     are there) or WRITING (storage reads it). Groups of slots and of what is written differ. Nobody else names a slot.
 * K2. One slot at most is PINNING or LOADING, one WRITING. A pin is held in LOADING only.
 * K3. A node is published only when every group of it is durable. At most one publish is open or to be repeated.
 * K4. A file is dropped only when its replica's withdrawal was committed, or when it was never published.
 * K5. The capture under way is answered exactly once; `abandoned` says that it was, or that losses are withdrawn, and that something is
 *     still open.
 * K6. Nothing waits while nothing is under way, unless this actor drains.
 * K7. Rows count as durable when chunk_find named them, or when their node was committed. Storage hears of that with the next chunk_find
 *     (published), and names nothing that it did not hear of; what was withdrawn since is not said. */
#include "actors/checkpoint_writer.h"

#include "actors/capture_value.h"
#include "actors/note.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/mutant.h"

enum {
    HASH_TOKENS = 16384,  /* tokens hashed in one call; a longer chain goes on in the next one, so that no step is delayed */
    ROOM_TRIES = 3,       /* times that room is made for one chunk */
    STALE_TRIES = 3,      /* times that a publish is made anew */
    UNWANTED_MAX = 2,     /* the catalog knows this model with another layout: whatever is written would be dropped again */
    PINS_MAX = 8,         /* pins and unpins without an answer: the window of roles.def */
    RETRY_AFTER_MS = 100, /* when the catalog writer does not say */
    WANTED_MAX = QR_CONTINUATION_ASKS,
    PLACES = QR_CAPTURES_MAX + WANTED_MAX, /* the last ones are of wanted captures */
    LOSSES_AGAIN_US = 1000000,
    LOSSES_AGAIN_US_MAX = 64000000,
    CHANGES_MAX = QR_CAPTURE_DROPS > 1 + 2 * QR_GROUPS_MAX ? QR_CAPTURE_DROPS : 1 + 2 * QR_GROUPS_MAX
};
#define NONE UINT32_MAX

_Static_assert(CHANGES_MAX <= (int)QR_CATALOG_CHANGES_MAX, "every publish fits");

enum { FREE, PINNING, LOADING, STAGED, WRITING };
enum { IDLE, HASHING, FINDING, STAGING, VICTIMS, WITHDRAWING, DROPPING, PUBLISHING, LOSSES };
static const char *const phase_names[] = {"idle",        "hashing",  "finding",    "staging", "victims",
                                          "withdrawing", "dropping", "publishing", "losses"};
enum { QUIET, OPEN, LOST, AGAIN }; /* publish: none, asked, its link ended, to be asked again at again_us */
/* Why files are withdrawn and dropped: room is needed, their node was refused, or they are lost. */
enum { ROOM = 1, CLEANUP = 2, LOST_FILES = 3 };
/* Why captures ended early, as they are counted. */
enum { WHY_BUSY, WHY_WORTHLESS, WHY_GONE, WHY_FULL, WHY_IO, WHY_LATE, WHY_UNPUBLISHED, WHY_OTHER, WHYS };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
typedef struct capture {
    uint64_t capture_id, asker, ticket;
    uint32_t open, start_rows, rows, wanted;
    uint8_t root[32];
} capture_t;

typedef struct slot {
    uint64_t lease;
    uint32_t state, group, generation, unused;
} slot_t;

typedef struct checkpoint_writer {
    uint64_t address, epoch, storage, catalog; /* catalog 0: there is none */
    uint64_t tokens_at, chains_at;
    uint64_t drain_asker, drain_by_us, stop_asker, stop_by_us;
    uint64_t tickets;
    uint64_t progress_us;                   /* when anything was last answered for what is under way */
    uint64_t sequence, again_us;            /* of the newest publish; when it is asked again */
    uint64_t withdrawn;                     /* 1: what is being dropped has been withdrawn, or was never published (K4) */
    uint64_t losses_at_us, losses_again_us; /* when losses are asked for again, and how much later after that */
    uint64_t captures, done, rows, bytes, drops, orphans, losses;
    uint64_t skipped[WHYS];
    qr_capture_costs_t costs;
    uint64_t sizes[QR_GROUPS_MAX]; /* of the durable files of the chunk under way */
    uint32_t phase, abandoned, late, link;
    uint32_t capture;                    /* under way and not answered; NONE */
    uint32_t chunk, chunk_count, hashed; /* of its chain */
    uint32_t durable_rows, next_group;
    uint32_t written; /* bit g: group g of the chunk under way is durable */
    uint32_t room_tries, stale_tries, publish;
    uint32_t purpose, round; /* of what is withdrawn and dropped; number of the newest question of which one is open */
    uint32_t asked;          /* 1: chunk_find, chunk_victims or chunk_losses (now) is open */
    uint32_t unpins, drops_open, victim_count;
    uint32_t draining, stopping, group_count, page_tokens, chunk_tokens, tokens_max, slot_count;
    uint32_t unwanted;       /* nodes in a row that the catalog took for wrong; at UNWANTED_MAX nothing is captured any more */
    uint32_t doubt;          /* 1: an earlier asking of the node's publish may have been committed */
    uint32_t watching, lost; /* chunk_losses is open; storage said that there are some */
    uint32_t storage_gone;   /* until link_up: what is asked of it is not answered */
    uint8_t contents[32 * QR_GROUPS_MAX];
    uint8_t root[32];
    uint8_t published[32]; /* the chunk committed since the last chunk_find; zero: none */
    uint8_t victim_chains[32 * QR_CAPTURE_DROPS];
    uint32_t victim_groups[QR_CAPTURE_DROPS];
    capture_t capture_table[PLACES];
    slot_t slots[QR_STAGING_SLOTS_MAX];
} checkpoint_writer_t;
#pragma GCC diagnostic pop

typedef struct call {
    checkpoint_writer_t *self;
    const qr_given_t *given;
    const qr_message_t *message;
    qr_outbox_t *outbox;
} call_t;

/* ---- where things are -------------------------------------------------------------------------------------------------- */

static uint32_t *tokens_of(const checkpoint_writer_t *self, uint32_t c)
{
    return (uint32_t *)((uintptr_t)self + self->tokens_at) + (uint64_t)c * self->tokens_max;
}
/* Hash of chunk i of the chain under way. */
static uint8_t *chain_of(const checkpoint_writer_t *self, uint32_t i) { return (uint8_t *)((uintptr_t)self + self->chains_at) + 32ull * i; }
static const uint8_t *parent_of(const checkpoint_writer_t *self, uint32_t i) { return i ? chain_of(self, i - 1) : self->root; }
static uint64_t key_of(const checkpoint_writer_t *self, const slot_t *slot)
{
    return qr_handle((uint32_t)(slot - self->slots), slot->generation);
}
/* The slot of a key in that state, NULL without one. */
static slot_t *find_slot(checkpoint_writer_t *self, uint64_t key, uint32_t state)
{
    uint32_t i = qr_handle_index(key);
    if (i >= self->slot_count || self->slots[i].state != state) return NULL;
    return self->slots[i].generation == qr_handle_generation(key) || QR_MUTANT(617) ? &self->slots[i] : NULL;
}
static uint32_t slots_in(const checkpoint_writer_t *self, uint32_t state)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->slot_count; i++) count += self->slots[i].state == state;
    return count;
}
/* Slots that transfer, storage or page_manager have to answer for. */
static uint32_t slots_out(const checkpoint_writer_t *self)
{
    return slots_in(self, PINNING) + slots_in(self, LOADING) + slots_in(self, WRITING);
}
static uint32_t captures_open(const checkpoint_writer_t *self)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < PLACES; c++) count += self->capture_table[c].open;
    return count;
}
static bool whole(const checkpoint_writer_t *self) { return self->written == (1u << self->group_count) - 1; }
static uint32_t raised(uint32_t generation) { return generation == UINT32_MAX ? 1 : generation + 1; }

/* ---- answers --------------------------------------------------------------------------------------------------------------- */

static uint32_t why(uint32_t reason)
{
    switch (reason) {
    case QR_E_BUSY: return WHY_BUSY;
    case QR_E_WORTHLESS: return WHY_WORTHLESS;
    case QR_E_NOT_FOUND:
    case QR_E_STALE: return WHY_GONE;
    case QR_E_SHORTFALL:
    case QR_E_NO_SPACE: return WHY_FULL;
    case QR_E_IO: return WHY_IO;
    case QR_E_DEADLINE: return WHY_LATE;
    case QR_E_PEER_DOWN: return WHY_UNPUBLISHED;
    default: return WHY_OTHER;
    }
}

static void answer(const call_t *call, uint64_t to, uint64_t capture_id, uint32_t reason, uint32_t durable_rows, uint32_t rows)
{
    checkpoint_writer_t *self = call->self;
    if (reason) {
        self->skipped[why(reason)]++;
        qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_capture_skipped, capture_id, reason, durable_rows, rows);
    } else {
        self->done++;
    }
    qr_send(call->outbox, to, captured, (&(qr_captured_t){.capture_id = capture_id, .reason = reason, .durable_rows = durable_rows}));
}

/* Answers a capture of the table; its place is free. */
static void end_capture(const call_t *call, uint32_t index, uint32_t reason, uint32_t durable_rows)
{
    capture_t *c = &call->self->capture_table[index];
    if (QR_MUTANT(821) && c->wanted && reason) durable_rows = qr_min_u32(c->rows, durable_rows + call->self->chunk_tokens);
    answer(call, c->asker, c->capture_id, reason, durable_rows, c->rows);
    if (QR_MUTANT(822) && c->wanted) answer(call, c->asker, c->capture_id, reason, durable_rows, c->rows);
    memset(c, 0, sizeof *c);
}

/* The capture under way is over, answered with a reason or 0; what it has open is wound down (K5). */
static void give_up(const call_t *call, uint32_t reason)
{
    checkpoint_writer_t *self = call->self;
    if (self->capture == NONE) return;
    end_capture(call, self->capture, reason, self->durable_rows);
    self->capture = NONE;
    self->abandoned = 1;
    for (uint32_t i = 0; i < self->slot_count; i++)
        if (self->slots[i].state == STAGED) self->slots[i].state = FREE;
}

/* Those that wait are not going to be served. */
static void refuse_waiting(const call_t *call, uint32_t reason)
{
    for (uint32_t c = 0; c < (QR_MUTANT(820) ? QR_CAPTURES_MAX : PLACES); c++)
        if (call->self->capture_table[c].open && c != call->self->capture) end_capture(call, c, reason, 0);
}

/* ---- publishing --------------------------------------------------------------------------------------------------------------- */

typedef struct changes {
    uint64_t sizes[CHANGES_MAX];
    uint32_t groups[CHANGES_MAX], starts[CHANGES_MAX], counts[CHANGES_MAX], count, unused;
    uint8_t kinds[CHANGES_MAX], tiers[CHANGES_MAX], chains[32 * CHANGES_MAX], digests[32 * CHANGES_MAX];
} changes_t;

static uint32_t add(changes_t *c, uint8_t kind, const uint8_t chain[32], uint32_t group)
{
    uint32_t i = c->count++;
    c->kinds[i] = kind;
    c->tiers[i] = kind == QR_CATALOG_REPLICA || kind == QR_CATALOG_WITHDRAW ? QR_TIER_SSD : 0;
    c->groups[i] = group;
    c->starts[i] = c->counts[i] = 0;
    c->sizes[i] = 0;
    memcpy(c->chains + 32ull * i, chain, 32);
    memset(c->digests + 32ull * i, 0, 32);
    return i;
}

/* The chunk under way: its node, and of every group the part and its copy here. */
static void list_node(const checkpoint_writer_t *self, changes_t *c)
{
    const uint8_t *chain = chain_of(self, self->chunk);
    uint32_t i = add(c, QR_CATALOG_NODE, chain, 0);
    if (self->chunk) memcpy(c->digests + 32ull * i, parent_of(self, self->chunk), 32);
    c->starts[i] = self->chunk * self->chunk_tokens;
    c->counts[i] = self->chunk_tokens;
    for (uint32_t g = 0; g < self->group_count; g++) {
        i = add(c, QR_CATALOG_PART, chain, g);
        memcpy(c->digests + 32ull * i, self->contents + 32ull * g, 32);
        c->sizes[i] = self->sizes[g];
        (void)add(c, QR_CATALOG_REPLICA, chain, g);
    }
}

/* Says the publish of this phase under the sequence that it has. */
static void say_publish(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_layout_t *layout = &call->given->layout;
    uint32_t windows[QR_GROUPS_MAX];
    changes_t c;
    c.count = 0;
    for (uint32_t g = 0; g < self->group_count; g++) windows[g] = layout->groups[g].window;
    if (self->phase == PUBLISHING) list_node(self, &c);
    for (uint32_t i = 0; self->phase == WITHDRAWING && i < self->victim_count; i++)
        (void)add(&c, QR_CATALOG_WITHDRAW, self->victim_chains + 32ull * i, self->victim_groups[i]);
    qr_publish_t body = {.sequence = self->sequence,
                         .node_epoch = self->epoch,
                         .fingerprint = layout->fingerprint,
                         .chunk_tokens = self->chunk_tokens,
                         .windows = {windows, self->group_count},
                         .kinds = {c.kinds, c.count},
                         .tiers = {c.tiers, c.count},
                         .groups = {c.groups, c.count},
                         .chains = {c.chains, 32ull * c.count},
                         .digests = {c.digests, 32ull * c.count},
                         .starts = {c.starts, c.count},
                         .counts = {c.counts, c.count},
                         .sizes = {c.sizes, c.count}};
    self->again_us = QR_NEVER_US;
    self->publish = self->link ? OPEN : LOST;
    if (self->link) qr_send(call->outbox, self->catalog, publish, &body);
}

static void publish_anew(const call_t *call)
{
    call->self->sequence++;
    say_publish(call);
}

static void publish_node(const call_t *call)
{
    qr_assert(whole(call->self) || QR_MUTANT(618)); /* K3 */
    call->self->phase = PUBLISHING;
    call->self->stale_tries = call->self->doubt = 0;
    publish_anew(call);
}

/* ---- making room ----------------------------------------------------------------------------------------------------------------- */

static void ask_victims(const call_t *call, uint64_t bytes)
{
    checkpoint_writer_t *self = call->self;
    self->phase = VICTIMS;
    self->asked = 1;
    self->round = raised(self->round);
    qr_send(call->outbox, self->storage, chunk_victims, (&(qr_chunk_victims_t){.key = qr_handle(0, self->round), .bytes = bytes}));
}

static void withdraw(const call_t *call, uint32_t purpose)
{
    checkpoint_writer_t *self = call->self;
    self->phase = WITHDRAWING;
    self->purpose = purpose;
    self->stale_tries = 0;
    for (uint32_t i = 0; i < self->victim_count && !QR_MUTANT(888); i++)
        if (memcmp(self->victim_chains + 32ull * i, self->published, 32) == 0) memset(self->published, 0, 32); /* K7 */
    publish_anew(call);
}

/* Drops what was withdrawn, or was never published (K4). */
static void drop(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    self->phase = DROPPING;
    self->withdrawn = 1;
    self->round = raised(self->round);
    self->drops_open = self->victim_count;
    for (uint32_t i = 0; i < self->victim_count; i++) {
        qr_chunk_drop_t body = {.key = qr_handle(i, self->round), .group = self->victim_groups[i]};
        memcpy(body.chain.bytes, self->victim_chains + 32ull * i, 32);
        qr_send(call->outbox, self->storage, chunk_drop, &body);
    }
}

/* The durable files of the chunk under way are what leaves. */
static void list_own(checkpoint_writer_t *self)
{
    self->victim_count = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        memcpy(self->victim_chains + 32ull * self->victim_count, chain_of(self, self->chunk), 32);
        self->victim_groups[self->victim_count++] = g;
    }
}

/* A chunk of the chain under way does not leave to make room for it. */
static bool own_chain(const checkpoint_writer_t *self, const uint8_t chain[32])
{
    for (uint32_t i = 0; i < self->chunk_count; i++)
        if (memcmp(chain_of(self, i), chain, 32) == 0) return true;
    return false;
}

static void on_victims(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_chunk_victims_named_t *b = &call->message->body.chunk_victims_named;
    self->asked = 0;
    if (self->abandoned) return;
    self->victim_count = 0;
    bool even = b->chains.count == 32 * b->groups.count && b->sizes.count == b->groups.count;
    for (uint64_t i = 0; even && i < b->groups.count && self->victim_count < QR_CAPTURE_DROPS; i++) {
        const uint8_t *chain = b->chains.data + 32 * i;
        if (b->groups.data[i] >= self->group_count || (own_chain(self, chain) && !QR_MUTANT(619))) continue;
        memcpy(self->victim_chains + 32ull * self->victim_count, chain, 32);
        self->victim_groups[self->victim_count++] = b->groups.data[i];
    }
    if (self->victim_count == 0)
        give_up(call, QR_E_NO_SPACE);
    else if (QR_MUTANT(620))
        self->purpose = ROOM, drop(call);
    else
        withdraw(call, ROOM);
}

/* ---- losses --------------------------------------------------------------------------------------------------------------------- */

static void ask_losses(const call_t *call, uint8_t now)
{
    qr_send(call->outbox, call->self->storage, chunk_losses, (&(qr_chunk_losses_t){.key = qr_handle(0, call->self->round), .now = now}));
}

/* Whether nothing but losses is to be done, or the first of them can be asked for. */
static void begin_losses(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (!self->catalog || self->draining || self->storage_gone) return;
    if (self->lost && self->phase == IDLE && self->link && call->message->now_us >= self->losses_at_us) {
        self->phase = LOSSES;
        self->abandoned = 1; /* nobody waits for it */
        self->asked = 1;
        self->progress_us = call->message->now_us;
        self->round = raised(self->round);
        ask_losses(call, 1);
    } else if (!self->lost && !self->watching && !self->abandoned) {
        self->watching = 1;
        ask_losses(call, 0);
    }
}

static void on_losses(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_chunk_losses_named_t *b = &call->message->body.chunk_losses_named;
    self->asked = 0;
    self->victim_count = 0;
    bool even = b->chains.count == 32 * b->groups.count;
    for (uint64_t i = 0; even && i < b->groups.count && self->victim_count < QR_CAPTURE_DROPS; i++) {
        memcpy(self->victim_chains + 32ull * self->victim_count, b->chains.data + 32 * i, 32);
        self->victim_groups[self->victim_count++] = b->groups.data[i];
    }
    self->lost = 0;
    if (QR_MUTANT(730) && self->victim_count)
        self->purpose = LOST_FILES, drop(call);
    else if (self->victim_count)
        withdraw(call, LOST_FILES);
}

/* The catalog does not take the withdrawal: later. */
static void losses_refused(checkpoint_writer_t *self, uint64_t now_us)
{
    self->lost = !QR_MUTANT(731);
    self->losses_at_us = now_us + self->losses_again_us;
    self->losses_again_us = qr_min_u64(2 * self->losses_again_us, LOSSES_AGAIN_US_MAX);
}

/* No answer for what is under way. */
static void on_watched(const call_t *call, uint64_t key)
{
    if (!call->self->watching) qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, call->message->type, key, call->self->round);
    call->self->lost |= call->self->watching;
    call->self->watching = 0;
}

static void on_dropped(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_chunk_dropped_t *b = &call->message->body.chunk_dropped;
    self->drops_open--;
    if (self->purpose == LOST_FILES)
        self->losses++;
    else
        self->drops += b->reason == 0;
    if (self->drops_open) return;
    self->withdrawn = 0;
    self->victim_count = 0;
    self->phase = STAGING; /* once more; or, abandoned, it ends there */
}

/* ---- one chunk ----------------------------------------------------------------------------------------------------------------- */

static void begin_chunk(checkpoint_writer_t *self)
{
    self->phase = STAGING;
    self->next_group = self->written = self->room_tries = 0;
}

static void begin_pin(const call_t *call, uint32_t i)
{
    checkpoint_writer_t *self = call->self;
    slot_t *slot = &self->slots[i];
    slot->state = PINNING;
    slot->group = self->next_group++;
    slot->generation = raised(slot->generation);
    qr_pages_pin_t body = {.holder_key = key_of(self, slot),
                           .tokens = {tokens_of(self, self->capture), (uint64_t)(self->chunk + 1) * self->chunk_tokens},
                           .start_rows = self->chunk * self->chunk_tokens};
    memcpy(body.scope.bytes, self->root, 32);
    qr_send(call->outbox, qr_address_partner(self->address, QR_ROLE_page_manager), pages_pin, &body);
}

static void begin_write(const call_t *call, slot_t *slot)
{
    checkpoint_writer_t *self = call->self;
    uint32_t start = self->chunk * self->chunk_tokens;
    slot->state = WRITING;
    slot->generation = raised(slot->generation);
    qr_chunk_write_t body = {.key = key_of(self, slot),
                             .slot = (uint32_t)(slot - self->slots),
                             .group = slot->group,
                             .start = start,
                             .tokens = {tokens_of(self, self->capture) + start, self->chunk_tokens}};
    memcpy(body.parent.bytes, parent_of(self, self->chunk), 32);
    memcpy(body.chain.bytes, chain_of(self, self->chunk), 32);
    qr_send(call->outbox, self->storage, chunk_write, &body);
}

/* Writes what is staged, the first group first, and stages the next group, if a slot is free for it. */
static void stage(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (self->phase != STAGING || self->abandoned) return;
    slot_t *next = NULL;
    uint32_t room = NONE;
    for (uint32_t i = 0; i < self->slot_count; i++) {
        slot_t *slot = &self->slots[i];
        if (slot->state == STAGED && (!next || slot->group < next->group)) next = slot;
        if (slot->state == FREE && room == NONE) room = i;
    }
    if (next && slots_in(self, WRITING) == 0) begin_write(call, next);
    bool moving = slots_in(self, PINNING) + slots_in(self, LOADING) > 0;
    if (room != NONE && !moving && self->next_group < self->group_count && self->unpins + slots_out(self) < PINS_MAX) begin_pin(call, room);
}

static void unpin(const call_t *call, uint64_t lease)
{
    call->self->unpins++;
    qr_send(call->outbox, qr_address_partner(call->self->address, QR_ROLE_page_manager), pages_unpin,
            (&(qr_pages_unpin_t){.lease = lease}));
}

/* The pages of a group among those that were pinned: 0 and where they are, or why the part cannot be taken from them. */
static uint32_t find_pages(const checkpoint_writer_t *self, const qr_pages_pinned_t *b, uint32_t group, uint32_t *ret_first,
                           qr_u64s_t *ret_pages)
{
    uint32_t start = self->chunk * self->chunk_tokens, first = start / self->page_tokens;
    uint64_t count = qr_div_up(start + self->chunk_tokens, self->page_tokens) - first, at = 0, sum = 0;
    if (b->group_counts.count != self->group_count || b->first_blocks.count != self->group_count) return QR_E_INVALID;
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (g < group) at += b->group_counts.data[g];
        sum += b->group_counts.data[g];
    }
    if (sum != b->pages.count) return QR_E_INVALID;
    uint32_t have = b->first_blocks.data[group];
    if ((have > first || have + (uint64_t)b->group_counts.data[group] < first + count) && !QR_MUTANT(621)) return QR_E_NOT_FOUND;
    if (QR_MUTANT(621)) have = first, count = qr_min_u64(count, b->group_counts.data[group]);
    *ret_first = first;
    *ret_pages = (qr_u64s_t){b->pages.data + at + (first - have), count};
    return 0;
}

static void on_pinned(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_pages_pinned_t *b = &call->message->body.pages_pinned;
    slot_t *slot = find_slot(self, b->holder_key, PINNING);
    uint32_t first = 0;
    qr_u64s_t pages = {0};
    slot->state = FREE;
    uint32_t reason = b->reason ? b->reason : self->abandoned ? 0 : find_pages(self, b, slot->group, &first, &pages);
    if (!b->reason && (reason || self->abandoned) && !QR_MUTANT(622)) unpin(call, b->lease);
    if (reason) give_up(call, reason == QR_E_SHORTFALL ? QR_E_BUSY : reason); /* a shortfall of pages is not one of bytes */
    if (self->abandoned) return;
    slot->state = LOADING;
    slot->lease = b->lease;
    slot->generation = raised(slot->generation);
    qr_send(call->outbox, qr_address_partner(self->address, QR_ROLE_transfer), page_download,
            (&(qr_page_download_t){.key = key_of(self, slot),
                                   .slot = (uint32_t)(slot - self->slots),
                                   .group = slot->group,
                                   .start = self->chunk * self->chunk_tokens,
                                   .rows = self->chunk_tokens,
                                   .first_block = first,
                                   .pages = pages}));
}

static void on_downloaded(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_page_downloaded_t *b = &call->message->body.page_downloaded;
    slot_t *slot = find_slot(self, b->key, LOADING);
    if (!QR_MUTANT(623) || !b->reason) unpin(call, slot->lease);
    slot->lease = 0;
    slot->state = self->abandoned || b->reason ? FREE : STAGED;
    if (b->reason)
        give_up(call, b->reason);
    else
        qr_capture_downloaded(&self->costs, b->bytes, b->move_us);
}

/* Storage has no room for a part, which stays in its slot. */
static void no_room(const call_t *call, slot_t *slot, uint64_t bytes)
{
    checkpoint_writer_t *self = call->self;
    slot->state = self->abandoned ? FREE : STAGED;
    if (self->abandoned) return;
    if (++self->room_tries > ROOM_TRIES)
        give_up(call, QR_E_NO_SPACE);
    else
        ask_victims(call, qr_max_u64(bytes, 1));
}

static void on_written(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_chunk_written_t *b = &call->message->body.chunk_written;
    slot_t *slot = find_slot(self, b->key, WRITING);
    if (b->reason == QR_E_SHORTFALL) {
        no_room(call, slot, b->shortfall_bytes);
        return;
    }
    slot->state = FREE;
    bool fine = b->reason == 0 && b->bytes > 0 && b->bytes <= UINT32_MAX;
    if (!fine && !QR_MUTANT(624)) {
        give_up(call, b->reason ? b->reason : QR_E_IO);
        return;
    }
    qr_capture_written(&self->costs, b->bytes, b->write_us);
    self->bytes += b->bytes;
    memcpy(self->contents + 32ull * slot->group, b->content.bytes, 32);
    self->sizes[slot->group] = b->bytes;
    self->written |= 1u << slot->group;
    if ((whole(self) || QR_MUTANT(618)) && !self->stopping) publish_node(call);
    if (QR_MUTANT(840) && self->publish == OPEN && !self->abandoned && self->capture_table[self->capture].wanted &&
        self->chunk + 1 == self->chunk_count) {
        self->durable_rows += self->chunk_tokens;
        give_up(call, 0);
    }
}

/* How many of the chunks from the next one on are here already: none of them is moved again, and what is written was not there. */
static void find(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    self->phase = FINDING;
    self->asked = 1;
    self->round = raised(self->round);
    qr_chunk_find_t body = {.key = qr_handle(0, self->round),
                            .chains = {chain_of(self, self->chunk), 32ull * (self->chunk_count - self->chunk)}};
    if (!QR_MUTANT(886)) memcpy(body.published.bytes, self->published, 32);
    if (!QR_MUTANT(887)) memset(self->published, 0, 32);
    qr_send(call->outbox, self->storage, chunk_find, &body);
}

/* ---- what the catalog says -------------------------------------------------------------------------------------------------------- */

static void on_committed(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (self->unwanted < UNWANTED_MAX) self->unwanted = 0;
    self->publish = QUIET;
    if (self->phase == WITHDRAWING) {
        if (self->purpose == LOST_FILES) self->losses_again_us = LOSSES_AGAIN_US;
        drop(call);
        return;
    }
    memcpy(self->published, chain_of(self, self->chunk), 32);
    self->durable_rows = (self->chunk + 1) * self->chunk_tokens;
    self->rows += self->chunk_tokens;
    self->phase = STAGING;
    if (self->abandoned) return;
    if (++self->chunk == self->chunk_count)
        give_up(call, 0);
    else if (self->draining)
        give_up(call, QR_E_DRAINING);
    else
        find(call);
}

/* Whether the same publish may still be taken, if it is asked again. */
static bool passing(uint32_t reason)
{
    return reason == QR_E_BUSY || reason == QR_E_DRAINING || reason == QR_E_IO || reason == QR_E_NO_SPACE;
}

/* Whether a refusal says that the log has no such layout, so that it never had a node of it: nothing of it was ever published. */
static bool unheard_of(uint32_t reason) { return reason == QR_E_INVALID || reason == QR_E_LIMIT; }

static void refused_for_good(const call_t *call, uint32_t reason)
{
    checkpoint_writer_t *self = call->self;
    qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_publish_failed, 0, reason, self->sequence, self->durable_rows);
    self->publish = QUIET;
    bool node = self->phase == PUBLISHING;
    if (node && reason == QR_E_INVALID && self->unwanted < UNWANTED_MAX && ++self->unwanted == UNWANTED_MAX)
        qr_outbox_note(call->outbox, QR_LEVEL_ERROR, QR_NOTE_unwanted, 0, self->chunk_tokens, self->group_count, 0);
    self->phase = STAGING;
    give_up(call, node || reason != QR_E_SHORTFALL ? reason : QR_E_NO_SPACE);
    if (node && QR_MUTANT(882)) memcpy(self->published, chain_of(self, self->chunk), 32);
    if (node) {
        list_own(self);
        self->purpose = CLEANUP;
        if (self->group_count == 1 && ((!self->doubt && unheard_of(reason)) || QR_MUTANT(628)))
            drop(call);
        else
            withdraw(call, CLEANUP);
    } else if (self->purpose == LOST_FILES && unheard_of(reason)) {
        drop(call); /* the log never had such a node */
    } else if (self->purpose == LOST_FILES) {
        self->victim_count = 0;
        losses_refused(self, call->message->now_us);
    } else if (self->purpose == CLEANUP) {
        self->orphans += self->victim_count;
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_chunk_orphaned, 0, reason, self->sequence, 0);
    }
}

static void on_publish_refused(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_publish_refused_t *b = &call->message->body.publish_refused;
    uint64_t after_us = (b->retry_after_ms ? qr_min_u64(b->retry_after_ms, 600000) : RETRY_AFTER_MS) * 1000ull;
    if (b->reason == QR_E_PEER_DOWN || (passing(b->reason) && !self->abandoned)) {
        qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_publish_lost, 0, self->sequence, b->reason, 0);
        self->publish = AGAIN;
        self->doubt |= b->reason == QR_E_PEER_DOWN;
        self->again_us = call->message->now_us + after_us;
    } else if (b->reason == QR_E_STALE && self->stale_tries++ < STALE_TRIES) {
        publish_anew(call);
    } else {
        refused_for_good(call, b->reason ? b->reason : QR_E_INVALID);
    }
}

/* ---- one capture --------------------------------------------------------------------------------------------------------------------- */

static void begin_capture(const call_t *call, uint32_t index)
{
    checkpoint_writer_t *self = call->self;
    const capture_t *c = &self->capture_table[index];
    self->phase = HASHING;
    self->capture = index;
    self->progress_us = call->message->now_us;
    self->chunk_count = c->rows / self->chunk_tokens;
    if (!QR_MUTANT(823)) self->durable_rows = 0;
    self->hashed = self->chunk = self->written = self->next_group = 0;
    memcpy(self->root, c->root, 32);
}

/* Whether capture c begins before d: one that is wanted, then the one that came first. */
static bool before(const capture_t *c, const capture_t *d)
{
    return c->wanted != d->wanted && !QR_MUTANT(801) ? c->wanted > d->wanted : c->ticket < d->ticket;
}

/* The next capture, if nothing is under way any more. */
static void begin_next(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (self->phase != IDLE || self->draining) return;
    uint32_t first = NONE;
    for (uint32_t c = 0; c < PLACES; c++) {
        const capture_t *capture = &self->capture_table[c];
        if (capture->open && (first == NONE || before(capture, &self->capture_table[first]))) first = c;
    }
    if (first != NONE) begin_capture(call, first);
}

static void hash(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (self->phase != HASHING || self->abandoned) return;
    uint32_t size = self->chunk_tokens;
    for (uint32_t left = HASH_TOKENS; left && self->hashed < self->chunk_count; self->hashed++) {
        const uint32_t *tokens = tokens_of(self, self->capture) + (uint64_t)self->hashed * size;
        qr_chain_node(parent_of(self, self->hashed), tokens, size, chain_of(self, self->hashed));
        left -= qr_min_u32(left, size);
    }
    if (self->hashed == self->chunk_count) find(call);
}

/* Whether so many chunks are worth their cost. */
static bool worth(const call_t *call, uint32_t chunks)
{
    const qr_params_t *p = &call->given->params;
    qr_capture_case_t c = {.rows = (uint64_t)chunks * call->self->chunk_tokens,
                           .reuse_permille = p->reuse_permille,
                           .recompute_row_ns = p->recompute_row_ns,
                           .reload_kib_ns = p->reload_kib_ns,
                           .capture_kib_ns = p->capture_kib_ns};
    uint64_t gain_ns, cost_ns;
    for (uint32_t g = 0; g < call->self->group_count; g++) c.bytes += c.rows * call->given->layout.groups[g].row_bytes;
    return qr_capture_worth(&call->self->costs, &c, &gain_ns, &cost_ns) || QR_MUTANT(625);
}

static void on_found(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    self->asked = 0;
    if (self->abandoned) return;
    self->chunk += qr_min_u32(call->message->body.chunk_found.depth, self->chunk_count - self->chunk);
    self->durable_rows = self->chunk * self->chunk_tokens;
    if (self->chunk == self->chunk_count)
        give_up(call, 0);
    else if (self->draining)
        give_up(call, QR_E_DRAINING);
    else if ((!self->capture_table[self->capture].wanted || QR_MUTANT(802)) && !worth(call, self->chunk_count - self->chunk))
        give_up(call, QR_E_WORTHLESS);
    else
        begin_chunk(self);
}

/* Why a capture cannot be taken; 0: it can, in *ret_index. */
static uint32_t judge(const checkpoint_writer_t *self, const qr_capture_t *b, uint32_t *ret_index)
{
    uint64_t rows = b->tokens.count;
    bool partial = (rows % self->chunk_tokens || b->start_rows % self->chunk_tokens) && !QR_MUTANT(626);
    if (rows == 0 || b->start_rows >= rows || partial) return QR_E_INVALID;
    if (rows > self->tokens_max) return QR_E_LIMIT;
    if (self->draining) return QR_E_DRAINING;
    if (!self->catalog) return QR_E_UNSUPPORTED;
    if (!self->link) return QR_E_PEER_DOWN;
    if (self->unwanted == UNWANTED_MAX) return QR_E_UNSUPPORTED;
    *ret_index = NONE;
    bool apart = b->wanted && !QR_MUTANT(803);
    for (uint32_t c = apart ? QR_CAPTURES_MAX : 0; c < (apart ? PLACES : QR_CAPTURES_MAX); c++)
        if (!self->capture_table[c].open) *ret_index = c;
    return self->late || *ret_index == NONE ? QR_E_BUSY : 0;
}

static void on_capture(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_capture_t *b = &call->message->body.capture;
    uint32_t index = NONE, reason = judge(self, b, &index);
    self->captures++;
    if (reason) {
        answer(call, call->message->from, b->capture_id, reason, 0, (uint32_t)b->tokens.count);
        return;
    }
    capture_t *c = &self->capture_table[index];
    *c = (capture_t){.capture_id = b->capture_id,
                     .asker = call->message->from,
                     .ticket = ++self->tickets,
                     .open = 1,
                     .start_rows = b->start_rows,
                     .rows = (uint32_t)b->tokens.count,
                     .wanted = b->wanted != 0};
    memcpy(c->root, b->scope.bytes, 32);
    qr_copy(tokens_of(self, index), b->tokens.data, 4 * b->tokens.count);
}

/* ---- life ---------------------------------------------------------------------------------------------------------------------------- */

static uint32_t tokens_max(const qr_given_t *given)
{
    return given->layout.context_tokens - given->layout.context_tokens % given->layout.chunk_tokens;
}

static uint64_t checkpoint_writer_bytes(const qr_given_t *given)
{
    return sizeof(checkpoint_writer_t) + 32ull * (tokens_max(given) / given->layout.chunk_tokens) + 4ull * PLACES * tokens_max(given);
}

static void checkpoint_writer_init(void *block, const qr_given_t *given, uint64_t address)
{
    checkpoint_writer_t *self = block;
    self->address = address;
    self->storage = qr_address(qr_address_node(address), 0, QR_ROLE_storage, 0);
    self->group_count = given->layout.group_count;
    self->page_tokens = given->layout.page_tokens;
    self->chunk_tokens = given->layout.chunk_tokens;
    self->tokens_max = tokens_max(given);
    self->slot_count = (uint32_t)qr_min_u64(given->params.staging_slots, QR_STAGING_SLOTS_MAX);
    self->chains_at = sizeof(checkpoint_writer_t);
    self->tokens_at = self->chains_at + 32ull * (self->tokens_max / self->chunk_tokens);
    self->capture = NONE;
    self->losses_again_us = LOSSES_AGAIN_US;
    self->drain_by_us = self->stop_by_us = self->again_us = QR_NEVER_US;
}

static void on_start(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_start_t *b = &call->message->body.start;
    uint32_t node = qr_address_node(self->address);
    self->epoch = b->epoch;
    for (uint64_t i = 0; i < b->partners.count; i++) {
        uint64_t partner = b->partners.data[i];
        if (qr_address_role(partner) == QR_ROLE_storage && qr_address_node(partner) == node) self->storage = partner;
        if (qr_address_role(partner) == QR_ROLE_catalog_writer) self->catalog = partner;
    }
    self->link = self->catalog && qr_address_node(self->catalog) == node; /* another node's: link_up says so */
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_started, 0, self->epoch, self->slot_count, self->catalog);
    qr_send(call->outbox, call->message->from, ready, (&(qr_ready_t){0}));
}

/* Storage is gone, and every question to it closed. */
static void storage_lost(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    for (uint32_t i = 0; i < self->slot_count; i++)
        if (self->slots[i].state == WRITING) self->slots[i].state = FREE;
    give_up(call, QR_E_PEER_DOWN);
    self->round = raised(self->round);
    self->lost = self->asked != 0 && self->phase == LOSSES ? 1 : self->lost;
    self->asked = 0;
    self->watching = 0;
    self->storage_gone = 1;
    if (self->phase == DROPPING) {
        self->orphans += self->drops_open;
        self->drops_open = self->victim_count = 0;
        self->withdrawn = 0;
        self->phase = STAGING;
    }
}

/* Captures do not wait for a node that may be long in coming back; the publish that is open does. */
static void on_link_down(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    uint32_t node = call->message->body.link_down.node;
    if (node == qr_address_node(self->storage)) storage_lost(call);
    if (!self->catalog || node != qr_address_node(self->catalog)) return;
    self->link = 0;
    self->doubt |= self->publish == OPEN;
    if (self->publish != QUIET) self->publish = LOST;
    self->again_us = QR_NEVER_US;
    refuse_waiting(call, QR_E_PEER_DOWN);
    give_up(call, QR_E_PEER_DOWN);
}

static void on_link_up(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (call->message->body.link_up.node == qr_address_node(self->storage) && !QR_MUTANT(732)) self->storage_gone = 0;
    if (!self->catalog || call->message->body.link_up.node != qr_address_node(self->catalog)) return;
    self->link = 1;
    self->losses_again_us = LOSSES_AGAIN_US;
    self->losses_at_us = call->message->now_us;
    if (self->publish != LOST) return;
    qr_outbox_note(call->outbox, QR_LEVEL_INFO, QR_NOTE_publish_lost, 0, self->sequence, QR_E_PEER_DOWN, 0);
    if (QR_MUTANT(627)) self->sequence++;
    say_publish(call);
}

/* The chunk under way is finished, within the budget; nothing else is. */
static void on_drain(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    self->draining = 1;
    self->drain_asker = call->message->from;
    self->drain_by_us = call->message->now_us + call->message->body.drain.budget_us;
    refuse_waiting(call, QR_E_DRAINING);
    if (self->phase == HASHING) give_up(call, QR_E_DRAINING);
}

/* Nothing goes on but what holds a slot or a pin. */
static void on_stop(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    self->draining = self->stopping = 1;
    self->stop_asker = call->message->from;
    self->stop_by_us = call->message->now_us + call->message->body.stop.budget_us;
    refuse_waiting(call, QR_E_DRAINING);
    give_up(call, QR_E_DRAINING);
}

static uint64_t late_us(const checkpoint_writer_t *self, const qr_given_t *given)
{
    return self->phase == IDLE || self->late ? QR_NEVER_US : self->progress_us + given->params.capture_max_ms * 1000;
}

static void on_alarm(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    uint64_t now_us = call->message->now_us;
    if (now_us >= late_us(self, call->given)) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_capture_late, 0, self->phase, slots_out(self), 0);
        self->late = 1;
        refuse_waiting(call, QR_E_DEADLINE);
        give_up(call, QR_E_DEADLINE);
    }
    if (self->publish == AGAIN && now_us >= self->again_us) say_publish(call);
}

static void settle_life(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    uint64_t now_us = call->message->now_us;
    bool quiet = slots_out(self) == 0 && self->unpins == 0;
    if (self->drain_asker && (self->phase == IDLE || now_us >= self->drain_by_us)) {
        qr_send(call->outbox, self->drain_asker, drained, (&(qr_drained_t){.open_count = captures_open(self)}));
        self->drain_asker = 0;
        self->drain_by_us = QR_NEVER_US;
    }
    if (self->stop_asker && (quiet || now_us >= self->stop_by_us)) {
        qr_send(call->outbox, self->stop_asker, stopped, (&(qr_stopped_t){.reason = quiet ? 0 : QR_E_DEADLINE}));
        self->stop_asker = 0;
        self->stop_by_us = QR_NEVER_US;
    }
}

/* What was given up is over when nothing of it is open. */
static bool wound_down(const checkpoint_writer_t *self)
{
    return slots_out(self) == 0 && self->unpins == 0 && !self->asked && self->publish == QUIET && self->drops_open == 0;
}

/* After every message: what can go on goes on. */
static void pump(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    if (self->abandoned && wound_down(self)) {
        self->phase = IDLE;
        self->abandoned = self->late = self->written = self->chunk_count = self->victim_count = 0;
    }
    begin_losses(call);
    begin_next(call);
    hash(call);
    stage(call);
    settle_life(call);
    uint64_t again_us = qr_min_u64(self->again_us, self->phase == HASHING ? call->message->now_us : QR_NEVER_US);
    if (self->lost && self->phase == IDLE && self->link && !self->draining && !self->storage_gone)
        again_us = qr_min_u64(again_us, self->losses_at_us);
    call->outbox->alarm_us = qr_min_u64(qr_min_u64(self->drain_by_us, self->stop_by_us), qr_min_u64(again_us, late_us(self, call->given)));
}

enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

static void on_metrics_read(const call_t *call)
{
    const checkpoint_writer_t *self = call->self;
    static const uint32_t ids[] = {METRIC_captures_total,           METRIC_captures_open,           METRIC_captures_done_total,
                                   METRIC_captured_rows_total,      METRIC_captured_bytes_total,    METRIC_captures_busy_total,
                                   METRIC_captures_worthless_total, METRIC_captures_gone_total,     METRIC_captures_full_total,
                                   METRIC_captures_io_total,        METRIC_captures_late_total,     METRIC_captures_unpublished_total,
                                   METRIC_captures_other_total,     METRIC_chunks_dropped_total,    METRIC_chunks_orphaned_total,
                                   METRIC_chunks_lost_total,        METRIC_capture_download_kib_ns, METRIC_capture_write_kib_ns};
    const uint64_t *s = self->skipped;
    const uint64_t values[QR_COUNT(ids)] = {self->captures,
                                            captures_open(self),
                                            self->done,
                                            self->rows,
                                            self->bytes,
                                            s[WHY_BUSY],
                                            s[WHY_WORTHLESS],
                                            s[WHY_GONE],
                                            s[WHY_FULL],
                                            s[WHY_IO],
                                            s[WHY_LATE],
                                            s[WHY_UNPUBLISHED],
                                            s[WHY_OTHER],
                                            self->drops,
                                            self->orphans,
                                            self->losses,
                                            self->costs.download_kib_ns,
                                            self->costs.write_kib_ns};
    qr_send(call->outbox, call->message->from, metrics, (&(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(ids)}}));
}

/* ---- class -----------------------------------------------------------------------------------------------------------------------------
 */

/* Answers to questions that are not open, or to an older one, change nothing. */
static void take_answer(const call_t *call, bool fits, uint64_t key, void (*on_answer)(const call_t *call))
{
    if (!fits) {
        qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_stale, 0, call->message->type, key, call->self->round);
        return;
    }
    if (call->message->type != QR_MESSAGE_publish_refused) call->self->progress_us = call->message->now_us;
    on_answer(call);
}

static void on_unpinned(const call_t *call)
{
    const qr_pages_unpinned_t *b = &call->message->body.pages_unpinned;
    call->self->unpins--;
    if (b->reason) qr_outbox_note(call->outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, b->reason, b->lease, 0);
}

static bool current(const checkpoint_writer_t *self, uint64_t key) { return qr_handle_generation(key) == self->round; }

static void on_answer(const call_t *call)
{
    checkpoint_writer_t *self = call->self;
    const qr_message_t *m = call->message;
    uint64_t key;
    switch (m->type) {
    case QR_MESSAGE_chunk_found:
        key = m->body.chunk_found.key;
        take_answer(call, self->phase == FINDING && self->asked && current(self, key), key, on_found);
        break;
    case QR_MESSAGE_chunk_victims_named:
        key = m->body.chunk_victims_named.key;
        take_answer(call, self->phase == VICTIMS && self->asked && current(self, key), key, on_victims);
        break;
    case QR_MESSAGE_chunk_losses_named:
        key = m->body.chunk_losses_named.key;
        if (self->asked && self->phase == LOSSES && current(self, key))
            take_answer(call, true, key, on_losses);
        else
            on_watched(call, key);
        break;
    case QR_MESSAGE_chunk_dropped:
        key = m->body.chunk_dropped.key;
        take_answer(call, self->phase == DROPPING && self->drops_open && current(self, key), key, on_dropped);
        break;
    case QR_MESSAGE_chunk_written:
        key = m->body.chunk_written.key;
        take_answer(call, find_slot(self, key, WRITING), key, on_written);
        break;
    case QR_MESSAGE_pages_pinned:
        key = m->body.pages_pinned.holder_key;
        take_answer(call, find_slot(self, key, PINNING), key, on_pinned);
        break;
    case QR_MESSAGE_page_downloaded:
        key = m->body.page_downloaded.key;
        take_answer(call, find_slot(self, key, LOADING), key, on_downloaded);
        break;
    case QR_MESSAGE_pages_unpinned: take_answer(call, self->unpins, m->body.pages_unpinned.lease, on_unpinned); break;
    case QR_MESSAGE_publish_committed:
        key = m->body.publish_committed.sequence;
        take_answer(call, self->publish == OPEN && key == self->sequence, key, on_committed);
        break;
    default:
        key = m->body.publish_refused.sequence;
        take_answer(call, self->publish == OPEN && key == self->sequence, key, on_publish_refused);
        break;
    }
}

static void checkpoint_writer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    call_t call = {block, given, message, outbox};
    switch (message->type) {
    case QR_MESSAGE_start: on_start(&call); break;
    case QR_MESSAGE_alarm: on_alarm(&call); break;
    case QR_MESSAGE_capture: on_capture(&call); break;
    case QR_MESSAGE_chunk_found:
    case QR_MESSAGE_chunk_victims_named:
    case QR_MESSAGE_chunk_losses_named:
    case QR_MESSAGE_chunk_dropped:
    case QR_MESSAGE_chunk_written:
    case QR_MESSAGE_pages_pinned:
    case QR_MESSAGE_pages_unpinned:
    case QR_MESSAGE_page_downloaded:
    case QR_MESSAGE_publish_committed:
    case QR_MESSAGE_publish_refused: on_answer(&call); break;
    case QR_MESSAGE_link_up: on_link_up(&call); break;
    case QR_MESSAGE_link_down: on_link_down(&call); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(&call); break;
    case QR_MESSAGE_drain: on_drain(&call); break;
    case QR_MESSAGE_stop: on_stop(&call); break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, 0, 0); break;
    }
    pump(&call);
}

/* ---- check and print --------------------------------------------------------------------------------------------------------------- */

static void check_slots(const checkpoint_writer_t *self)
{
    uint32_t groups = self->written;
    for (uint32_t i = 0; i < QR_STAGING_SLOTS_MAX; i++) {
        const slot_t *slot = &self->slots[i];
        qr_assert(slot->state == FREE || i < self->slot_count);    /* K1 */
        qr_assert((slot->lease != 0) == (slot->state == LOADING)); /* K2 */
        if (slot->state == FREE) continue;
        qr_assert(slot->group < self->next_group && self->phase != IDLE && !(groups >> slot->group & 1));
        qr_assert(slot->state != STAGED || !self->abandoned);
        groups |= 1u << slot->group;
    }
    qr_assert(slots_in(self, PINNING) + slots_in(self, LOADING) <= 1 && slots_in(self, WRITING) <= 1); /* K2 */
    qr_assert(self->unpins + slots_in(self, PINNING) <= PINS_MAX);
}

static void checkpoint_writer_check(const void *block, const qr_given_t *given)
{
    (void)given;
    const checkpoint_writer_t *self = block;
    check_slots(self);
    bool publishes = self->phase == PUBLISHING || self->phase == WITHDRAWING;
    qr_assert(publishes == (self->publish != QUIET)); /* K3 */
    qr_assert(self->phase != PUBLISHING || whole(self));
    qr_assert((self->publish == AGAIN) == (self->again_us != QR_NEVER_US));
    qr_assert(self->publish != OPEN || self->link);
    qr_assert((self->drops_open != 0) == (self->phase == DROPPING) && self->drops_open <= self->victim_count); /* K4 */
    qr_assert((self->phase == DROPPING) == (self->withdrawn != 0));
    qr_assert((self->capture != NONE) == (self->phase != IDLE && !self->abandoned)); /* K5 */
    qr_assert(self->capture == NONE || self->capture_table[self->capture].open);
    qr_assert(!self->abandoned || !wound_down(self));
    qr_assert(self->phase != IDLE || (slots_out(self) == 0 && self->unpins == 0 && !self->late));
    qr_assert(self->phase != IDLE || captures_open(self) == 0); /* K6 */
    qr_assert(self->link || captures_open(self) == 0);
    qr_assert(self->durable_rows % self->chunk_tokens == 0);
    if (self->capture == NONE) return;
    qr_assert(self->durable_rows <= self->capture_table[self->capture].rows);
    qr_assert(self->phase < STAGING || self->durable_rows == self->chunk * self->chunk_tokens); /* K7, parents first */
}

static void checkpoint_writer_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    (void)given;
    const checkpoint_writer_t *self = block;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{", captures open ", captures_open(self)},
                   {", chunk ", self->chunk},
                   {" of ", self->chunk_count},
                   {", slots ", self->slot_count},
                   {", out ", slots_out(self)},
                   {", staged ", slots_in(self, STAGED)},
                   {", publishes ", self->sequence},
                   {", rows made durable ", self->rows}};
    qr_text_put(text, "checkpoint_writer: ");
    qr_text_put(text, phase_names[self->phase]);
    if (self->abandoned) qr_text_put(text, ", given up");
    if (!self->link) qr_text_put(text, ", no catalog writer");
    for (size_t i = 0; i < QR_COUNT(numbers); i++) {
        qr_text_put(text, numbers[i].name);
        qr_text_put_u64(text, numbers[i].value);
    }
    qr_text_put(text, "\n");
}

/* Every capture answered, and QR_CAPTURE_DROPS files dropped or one publish, an unpin, and life. */
enum { MAX_OUT = PLACES + QR_CAPTURE_DROPS + 8 };

const qr_actor_class_t qr_checkpoint_writer_class = {
    .name = "checkpoint_writer",
    .role = QR_ROLE_checkpoint_writer,
    .max_out = MAX_OUT,
    .bytes = checkpoint_writer_bytes,
    .init = checkpoint_writer_init,
    .handle = checkpoint_writer_handle,
    .check = checkpoint_writer_check,
    .print = checkpoint_writer_print,
};
