/* storage.c - see storage.h. */
#include "transport/sim/storage.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"
#include "transport/sim/catalog.h"
#include "transport/sim/transfer.h"

#include <stdlib.h>

enum { LEASES = 64, WRITES = 8, DROPS = 64, HEADER_BYTES = 64, DEVICES = 2, HOLDS = 16, HOLD_CHUNKS = 32 };
enum { ABSENT, WRITING, DURABLE, ASIDE }; /* of a file; ASIDE: damaged, and nobody may have it again */
enum { EMPTY, FILLING, KEPT, LEAVING };   /* of a RAM slot; LEAVING: found by nobody, and read to its end */
enum { UNHEARD, UNPUBLISHED, PUBLISHED }; /* G9: qr_part_word_t */
enum { NO_PLACE_ONE_IN = 6, LEAVES_ONE_IN = 8 };

typedef struct disk {
    qr_sim_file_t *files; /* [capacity] */
    uint32_t count, capacity;
    qr_sim_slot_t slots[DEVICES][QR_STAGING_SLOTS_MAX];
    qr_sim_bytes_t memory[QR_SIM_RAM_SLOTS];
    uint64_t lives; /* of its storage; memory is void with each */
} disk_t;

struct qr_sim_store {
    qr_sim_store_work_t work;
    qr_sim_store_counts_t counts;
    uint32_t node_count, unused;
    uint64_t clock, lease; /* of touches; the newest lease of this world */
    disk_t *disks;         /* [node_count] */
    qr_sim_saves_t saves;
};

static qr_sim_store_t *store_of(const qr_given_t *given) { return qr_sim_given(given)->store; }

qr_sim_store_t *qr_sim_store_new(const qr_sim_store_work_t *work, const qr_given_t *given, uint32_t node_count)
{
    qr_assert(given->layout.chunk_tokens <= QR_SIM_FILE_ROWS);
    qr_sim_store_t *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->work = *work;
    s->node_count = node_count;
    s->disks = calloc(node_count, sizeof *s->disks);
    if (!s->disks) qr_sim_store_destroy(&s);
    return s;
}

void qr_sim_store_destroy(qr_sim_store_t **self)
{
    qr_sim_store_t *s = *self;
    if (!s) return;
    *self = NULL;
    for (uint32_t n = 0; s->disks && n < s->node_count; n++) free(s->disks[n].files);
    free(s->disks);
    free(s);
}

const qr_sim_store_work_t *qr_sim_store_work(const qr_sim_store_t *s) { return &s->work; }
qr_sim_store_counts_t *qr_sim_store_counts(qr_sim_store_t *s) { return &s->counts; }
qr_sim_saves_t *qr_sim_store_saves(qr_sim_store_t *s) { return &s->saves; }

static qr_sim_file_t *part_of(const disk_t *disk, const uint8_t chain[32], uint32_t group);

/* The files that a device publishes or withdraws; one publish of it is open at most. */
static void see_publish(disk_t *disk, uint32_t device, const qr_publish_t *b)
{
    for (uint32_t i = 0; i < disk->count; i++)
        if (disk->files[i].publisher == device) disk->files[i].publisher = 0;
    for (uint64_t i = 0; i < b->kinds.count; i++) {
        qr_sim_file_t *f = part_of(disk, b->chains.data + 32 * i, b->groups.data[i]);
        bool withdraws = b->kinds.data[i] == QR_CATALOG_WITHDRAW;
        if (!f || !(withdraws || b->kinds.data[i] == QR_CATALOG_REPLICA)) continue;
        f->publisher = device;
        f->sequence = b->sequence;
        f->withdraws = withdraws;
    }
}

static void see_published(disk_t *disk, uint32_t device, uint64_t sequence, bool refused)
{
    for (uint32_t i = 0; i < disk->count; i++) {
        qr_sim_file_t *f = &disk->files[i];
        if (f->publisher != device || f->sequence != sequence) continue;
        if (refused && !f->withdraws) f->may_drop |= 1u << device;
    }
}

void qr_sim_store_watch(qr_sim_store_t *s, const qr_message_t *message, bool said)
{
    const qr_pages_reserve_t *b = &message->body.pages_reserve;
    uint32_t node = qr_address_node(said ? message->from : message->to) - 1, device = qr_address_device(said ? message->from : message->to);
    if (said && message->type == QR_MESSAGE_publish) see_publish(&s->disks[node], device, &message->body.publish);
    if (!said && message->type == QR_MESSAGE_publish_committed)
        see_published(&s->disks[node], device, message->body.publish_committed.sequence, false);
    if (!said && message->type == QR_MESSAGE_publish_refused && message->body.publish_refused.reason != QR_E_PEER_DOWN)
        see_published(&s->disks[node], device, message->body.publish_refused.sequence, true);
    if (!said || node || message->type != QR_MESSAGE_pages_reserve || b->tokens.count > QR_SIM_SAVE_TOKENS) return;
    qr_sim_chain_t *chain = &s->saves.heard[s->saves.heard_count++ % QR_SIM_HEARD];
    memcpy(chain->scope, b->scope.bytes, 32);
    chain->count = (uint32_t)b->tokens.count;
    qr_copy(chain->tokens, b->tokens.data, 4 * b->tokens.count);
}

qr_sim_slot_t *qr_sim_store_slot(qr_sim_store_t *s, uint32_t node, uint32_t device, uint32_t slot)
{
    if (device == 0 || device > DEVICES || slot >= s->work.slots)
        qr_sim_finding("staging slot %u of device %u does not exist", slot, device);
    return &s->disks[node].slots[device - 1][slot];
}

/* ---- files --------------------------------------------------------------------------------------------------------------------- */

uint64_t qr_sim_store_tokens(const uint32_t *tokens, uint64_t count)
{
    uint64_t hash = count;
    for (uint64_t i = 0; i < count; i++) hash = qr_mix_u64(hash ^ tokens[i]) + 1;
    return hash;
}

uint64_t qr_sim_store_digest(const qr_sim_bytes_t *b)
{
    uint64_t hash = b->tokens ^ b->count;
    for (uint32_t i = 0; i < b->count; i++) hash = qr_mix_u64(hash ^ b->words[i]) + 1;
    return hash;
}

void qr_sim_store_name(const qr_sim_bytes_t *b, uint8_t ret_content[32])
{
    uint64_t hash = b->digest ^ (uint64_t)b->group << 32 ^ b->start, word;
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(&word, b->chain + 8 * (size_t)i, 8);
        hash = qr_mix_u64(hash ^ word) + 1;
    }
    for (uint32_t i = 0; i < 4; i++) {
        hash = qr_mix_u64(hash + i);
        memcpy(ret_content + 8 * (size_t)i, &hash, 8);
    }
}

static qr_sim_file_t *part_of(const disk_t *disk, const uint8_t chain[32], uint32_t group)
{
    for (uint32_t i = 0; i < disk->count; i++) {
        qr_sim_file_t *f = &disk->files[i];
        if (f->state != ABSENT && f->group == group && memcmp(f->chain, chain, 32) == 0) return f;
    }
    return NULL;
}

qr_sim_bytes_t *qr_sim_store_memory(qr_sim_store_t *s, uint32_t node, uint32_t slot, uint64_t *ret_life)
{
    if (slot >= s->work.ram_slots) return NULL;
    *ret_life = s->disks[node].lives;
    return &s->disks[node].memory[slot];
}

/* Whether this is a part as it was verified. */
static bool is_intact(const qr_sim_bytes_t *b, const uint8_t chain[32], uint32_t group)
{
    return b->whole && b->group == group && memcmp(b->chain, chain, 32) == 0 && qr_sim_store_digest(b) == b->digest;
}

/* A part that may be found and leased. */
static qr_sim_file_t *ready_part(const disk_t *disk, const uint8_t chain[32], uint32_t group)
{
    qr_sim_file_t *f = part_of(disk, chain, group);
    return f && f->state == DURABLE && !f->leaving ? f : NULL;
}

bool qr_sim_store_has(const qr_sim_store_t *s, uint32_t node, const uint8_t chain[32], uint32_t group)
{
    const qr_sim_file_t *f = part_of(&s->disks[node], chain, group);
    return f && (f->state != WRITING || f->was_aside);
}

qr_sim_file_t *qr_sim_store_file(qr_sim_store_t *s, uint32_t node, const uint8_t content[32])
{
    const disk_t *disk = &s->disks[node];
    for (uint32_t i = 0; i < disk->count; i++)
        if (disk->files[i].state == DURABLE && !disk->files[i].removed && memcmp(disk->files[i].content, content, 32) == 0)
            return &disk->files[i];
    return NULL;
}

/* A place for a file: its own if it was set aside, else a free one. */
static qr_sim_file_t *file_new(disk_t *disk, const uint8_t chain[32], uint32_t group)
{
    qr_sim_file_t *f = part_of(disk, chain, group);
    bool was_aside = f != NULL;
    for (uint32_t i = 0; !f && i < disk->count; i++)
        if (disk->files[i].state == ABSENT) f = &disk->files[i];
    if (!f && disk->count == disk->capacity) {
        disk->capacity = qr_max_u32(64, 2 * disk->capacity);
        disk->files = realloc(disk->files, disk->capacity * sizeof *disk->files);
        if (!disk->files) qr_sim_finding("not enough memory for %u files", disk->capacity);
    }
    if (!f) f = &disk->files[disk->count++];
    memset(f, 0, sizeof *f);
    memcpy(f->chain, chain, 32);
    f->group = group;
    f->was_aside = was_aside;
    return f;
}

/* A write came to nothing. */
static void unmake(qr_sim_file_t *f) { f->state = f->was_aside ? ASIDE : ABSENT; }

static uint64_t bytes_used(const disk_t *disk)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < disk->count; i++)
        if (disk->files[i].state == WRITING || disk->files[i].state == DURABLE) used += disk->files[i].bytes;
    return used;
}

/* G4: a bit turns over, the end is lost, another file's bytes lie there, or other bytes with a digest that fits, or nothing. */
static void damage(qr_sim_store_t *s, disk_t *disk, qr_sim_file_t *f)
{
    qr_sim_bytes_t *b = &f->on_disk;
    uint64_t how = qr_sim_draw(5);
    const qr_sim_file_t *other = &disk->files[qr_sim_draw(disk->count)];
    f->damaged = 1;
    s->counts.damage_done++;
    if (how == 0)
        b->whole = 0;
    else if (how == 1 && other->state == DURABLE && other != f && !other->damaged)
        *b = other->on_disk;
    else if (how == 4)
        f->removed = 1;
    else
        b->words[qr_sim_draw(b->count)] ^= 1ull << qr_sim_draw(64);
    if (how != 2) return;
    b->digest = qr_sim_store_digest(b); /* somebody wrote it: its times have changed, also for those who hold a lease */
    f->times++;
    f->trusted_epoch = 0;
}

/* ---- the actor ------------------------------------------------------------------------------------------------------------------- */

typedef struct lease {
    uint64_t id, holder; /* id 0: free */
    uint8_t chain[32];
    uint32_t group, blamed; /* blamed: transfer told its holder that it is damaged */
    uint32_t slot, fill;    /* RAM slot + 1 that it is of, and that its upload fills; 0: none */
} lease_t;

typedef struct ram_slot {
    uint8_t chain[32];
    uint32_t state, group, readers, unused; /* readers: leases, or 1 who fills */
    uint64_t touched;
} ram_slot_t;

typedef struct write {
    uint64_t from, key, due_us, asked_us; /* from 0: free */
    uint32_t slot, reason, fill, unused;  /* reason: decided when it was asked; fill: as a lease's */
    uint64_t shortfall;
    qr_sim_bytes_t bytes;
} write_t;

typedef struct drop {
    uint64_t from, key; /* from 0: free */
    uint8_t chain[32];
    uint32_t group, unused;
} drop_t;

typedef struct storage {
    uint64_t address, epoch, last_us;
    uint32_t node, awaited; /* awaited: bit d: device d has not spoken yet (G10) */
    struct {
        uint64_t from, key; /* from 0: nobody waits for losses */
    } watches[DEVICES];
    lease_t leases[LEASES];
    write_t writes[WRITES];
    drop_t drops[DROPS];
    ram_slot_t ram[QR_SIM_RAM_SLOTS];
    struct {
        uint64_t id; /* 0: free */
        uint32_t count, unused;
        uint8_t chains[32 * HOLD_CHUNKS];
    } holds[HOLDS];
    struct {
        uint32_t open, shared; /* shared: another one writes it too, or may withdraw it (G9) */
        uint8_t chain[32];
    } under_way[DEVICES]; /* G10 */
    uint64_t facts;       /* who knows the holds of before, 0: nobody */
    uint32_t holds_known, asking;
} storage_t;

typedef struct call {
    storage_t *self;
    const qr_given_t *given;
    qr_sim_store_t *store;
    disk_t *disk;
    const qr_message_t *message;
    qr_outbox_t *outbox;
} call_t;

/* Somebody who waits hears that there are some. */
static void tell_losses(const call_t *call)
{
    for (uint32_t i = 0; i < DEVICES; i++) {
        if (call->self->watches[i].from)
            qr_send(call->outbox, call->self->watches[i].from, chunk_losses_named,
                    (&(qr_chunk_losses_named_t){.key = call->self->watches[i].key}));
        call->self->watches[i].from = 0;
    }
}

static bool is_writing(const storage_t *self, uint32_t device, const uint8_t chain[32])
{
    return self->under_way[device].open && memcmp(self->under_way[device].chain, chain, 32) == 0;
}

/* Somebody has it from the catalog. */
static void hear_of(qr_sim_file_t *f)
{
    if (f->word == UNHEARD) f->word = PUBLISHED;
}

/* A device's writer begins to write a chunk (G9, G10). */
static void begin_chunk(const call_t *call, uint32_t device, const uint8_t chain[32])
{
    storage_t *self = call->self;
    bool shared = is_writing(self, device, chain) && self->under_way[device].shared;
    for (uint32_t d = 0; d < DEVICES; d++)
        if (d != device && is_writing(self, d, chain)) self->under_way[d].shared = shared = true;
    for (uint32_t g = 0; g < call->given->layout.group_count; g++) {
        qr_sim_file_t *f = part_of(call->disk, chain, g);
        if (!f || !f->may_leave || f->may_leave == device + 1) continue;
        f->may_leave = 0;
        f->kept = 1;
        shared = true;
    }
    self->under_way[device].open = 1;
    self->under_way[device].shared = shared;
    memcpy(self->under_way[device].chain, chain, 32);
}

/* It asks for something new; `published`: its publish was committed (G9). */
static void end_chunk(const call_t *call, uint32_t device, const uint8_t published[32])
{
    bool counts = is_writing(call->self, device, published) && !call->self->under_way[device].shared;
    for (uint32_t g = 0; counts && g < call->given->layout.group_count; g++) {
        qr_sim_file_t *f = ready_part(call->disk, published, g);
        if (f) f->word = PUBLISHED;
    }
    if (!call->self->under_way[device].open) return;
    call->self->under_way[device].open = 0;
    for (uint32_t g = 0; g < call->given->layout.group_count; g++) { /* its losses may be withdrawn by others now */
        const qr_sim_file_t *f = part_of(call->disk, call->self->under_way[device].chain, g);
        if (f && f->state == ASIDE) tell_losses(call);
    }
}

/* Whether another writer may be about to publish a chunk of that chain (G10). */
static bool is_under_way(const storage_t *self, const uint8_t chain[32], uint64_t asker)
{
    for (uint32_t d = 0; d < DEVICES; d++)
        if (self->under_way[d].open && d + 1 != qr_address_device(asker) && memcmp(self->under_way[d].chain, chain, 32) == 0) return true;
    return false;
}

/* A device asks: nothing of before the start is open there. */
static void hear_device(const call_t *call)
{
    uint32_t before = call->self->awaited;
    call->self->awaited &= ~(1u << qr_address_device(call->message->from));
    if (before && !call->self->awaited) tell_losses(call);
}

/* Whether a device's writer may have this file dropped (G10). */
static bool may_leave(const call_t *call, const qr_sim_file_t *f)
{
    uint32_t device = qr_address_device(call->message->from);
    if (call->self->awaited >> device & 1 || is_under_way(call->self, f->chain, call->message->from)) return false;
    if (is_writing(call->self, device - 1, f->chain)) return !call->self->under_way[device - 1].shared;
    return !f->kept || f->may_leave == device;
}

/* ---- the RAM tier (G7): `place` is a slot + 1, 0 = none ---- */

static uint32_t ram_find(const call_t *call, const uint8_t chain[32], uint32_t group)
{
    for (uint32_t i = 0; i < call->store->work.ram_slots; i++) {
        const ram_slot_t *r = &call->self->ram[i];
        if ((r->state == FILLING || r->state == KEPT) && r->group == group && memcmp(r->chain, chain, 32) == 0) return i + 1;
    }
    return 0;
}

static bool ram_keeps(const call_t *call, const uint8_t chain[32], uint32_t group)
{
    uint32_t place = ram_find(call, chain, group);
    return place && call->self->ram[place - 1].state == KEPT;
}

static void ram_leave(const call_t *call, uint32_t place)
{
    ram_slot_t *r = &call->self->ram[place - 1];
    r->state = r->readers ? LEAVING : EMPTY;
    call->store->counts.ram_left++;
}

/* One reader less, or what is being filled is given up. */
static void ram_let_go(const call_t *call, uint32_t place)
{
    ram_slot_t *r = &call->self->ram[place - 1];
    r->readers--;
    if (r->state == FILLING || (r->state == LEAVING && !r->readers)) r->state = EMPTY;
}

/* What nobody reads and was asked for the longest time ago. */
static uint32_t ram_victim(const call_t *call)
{
    uint32_t least = 0;
    for (uint32_t i = 0; i < call->store->work.ram_slots; i++) {
        const ram_slot_t *r = &call->self->ram[i];
        if (r->state == KEPT && !r->readers && (!least || r->touched < call->self->ram[least - 1].touched)) least = i + 1;
    }
    return least;
}

/* A place to fill; 0: the part stays out. */
static uint32_t ram_reserve(const call_t *call, const uint8_t chain[32], uint32_t group)
{
    uint32_t place = 0, slots = call->store->work.ram_slots;
    if (!slots || ram_find(call, chain, group) || (qr_sim_world() && qr_sim_draw(NO_PLACE_ONE_IN) == 0)) return 0;
    while (place < slots && call->self->ram[place].state != EMPTY) place++;
    if (place++ == slots) {
        place = ram_victim(call);
        if (!place) return 0;
        ram_leave(call, place);
    }
    ram_slot_t *r = &call->self->ram[place - 1];
    *r = (ram_slot_t){.state = FILLING, .group = group, .readers = 1};
    memcpy(r->chain, chain, 32);
    call->disk->memory[place - 1].whole = 0;
    return place;
}

static void ram_keep(const call_t *call, uint32_t place)
{
    ram_slot_t *r = &call->self->ram[place - 1];
    r->state = KEPT;
    r->readers = 0;
    r->touched = ++call->store->clock;
    call->store->counts.ram_entered++;
}

/* Something leaves now and then. */
static void ram_weather(const call_t *call)
{
    if (!call->store->work.ram_slots || !qr_sim_world() || qr_sim_draw(LEAVES_ONE_IN)) return;
    if (ram_victim(call)) ram_leave(call, ram_victim(call));
}

static void on_ram_find(const call_t *call)
{
    const qr_ram_find_t *b = &call->message->body.ram_find;
    uint32_t depth = 0;
    ram_weather(call);
    for (bool all = true; all && depth < b->chains.count / 32; depth += all)
        for (uint32_t g = 0; g < call->given->layout.group_count; g++) all = all && ram_keeps(call, b->chains.data + 32 * (size_t)depth, g);
    qr_send(call->outbox, call->message->from, ram_found, (&(qr_ram_found_t){.key = b->key, .depth = depth}));
}

/* Fills `lease` with one of memory, if the part is there. */
static bool ram_lease(const call_t *call, lease_t *lease, qr_chunk_leased_t *body)
{
    const qr_chunk_lease_t *b = &call->message->body.chunk_lease;
    uint32_t place = ram_keeps(call, b->chain.bytes, b->group) ? ram_find(call, b->chain.bytes, b->group) : 0;
    if (!place) return false;
    ram_slot_t *r = &call->self->ram[place - 1];
    uint32_t one_in = qr_world_fault(qr_sim_world(), call->self->node, QR_FAULT_ROT);
    if (one_in && qr_sim_draw(one_in) == 0) { /* G4 */
        qr_sim_bytes_t *memory = &call->disk->memory[place - 1];
        memory->words[qr_sim_draw(memory->count)] ^= 1ull << qr_sim_draw(64);
        call->store->counts.ram_damage_done++;
    }
    r->readers++;
    r->touched = ++call->store->clock;
    *lease = (lease_t){.id = ++call->store->lease, .holder = call->message->from, .group = b->group, .slot = place};
    memcpy(lease->chain, b->chain.bytes, 32);
    *body = (qr_chunk_leased_t){.key = b->key, .lease = lease->id, .trusted = 1, .kept = place};
    body->bytes = HEADER_BYTES + 8ull * call->disk->memory[place - 1].count;
    qr_sim_file_t *f = ready_part(call->disk, b->chain.bytes, b->group);
    if (f) {
        memcpy(body->content.bytes, f->content, 32);
        f->key = ++call->store->clock;
        hear_of(f);
    }
    call->store->counts.ram_leases++;
    return true;
}

/* ---- holds (G8) ---- */

static bool is_held(const storage_t *self, const uint8_t chain[32])
{
    for (uint32_t h = 0; h < HOLDS; h++)
        for (uint32_t i = 0; self->holds[h].id && i < self->holds[h].count; i++)
            if (memcmp(self->holds[h].chains + 32 * (size_t)i, chain, 32) == 0) return true;
    return false;
}

/* Different chains that are held, and how many there may be: a quarter of the disk, so that some are refused. */
static uint32_t held_count(const storage_t *self)
{
    uint32_t count = 0;
    for (uint32_t h = 0; h < HOLDS; h++)
        for (uint32_t i = 0; self->holds[h].id && i < self->holds[h].count; i++) {
            bool before = false;
            for (uint32_t k = 0; k < h; k++)
                for (uint32_t j = 0; self->holds[k].id && j < self->holds[k].count; j++)
                    before |= memcmp(self->holds[k].chains + 32 * (size_t)j, self->holds[h].chains + 32 * (size_t)i, 32) == 0;
            count += !before;
        }
    return count;
}
static uint64_t held_most(const call_t *call)
{
    const qr_layout_t *layout = &call->given->layout;
    return call->store->work.bytes_max / 4 / ((HEADER_BYTES + 8ull * layout->chunk_tokens) * layout->group_count);
}

/* 0 or a reason. */
static uint32_t hold_take(const call_t *call, qr_bytes_t id, const qr_hash_t *scope, qr_u32s_t tokens)
{
    storage_t *self = call->self;
    uint32_t size = call->given->layout.chunk_tokens, count = (uint32_t)tokens.count / size, at = HOLDS;
    uint64_t number = 0;
    memcpy(&number, id.data, qr_min_u64(sizeof number, id.count));
    for (uint32_t h = 0; h < HOLDS; h++) {
        if (self->holds[h].id == number) return 0;
        if (!self->holds[h].id) at = h;
    }
    if (!number || count > HOLD_CHUNKS) return QR_E_INVALID;
    if (at == HOLDS) return QR_E_NO_SPACE;
    uint8_t *chains = self->holds[at].chains;
    for (uint32_t i = 0; i < count; i++)
        qr_chain_node(i ? chains + 32 * (size_t)(i - 1) : scope->bytes, tokens.data + (size_t)i * size, size, chains + 32 * (size_t)i);
    self->holds[at].count = count;
    self->holds[at].id = number;
    if (held_count(self) <= held_most(call)) return 0;
    self->holds[at].id = 0;
    return QR_E_NO_SPACE;
}

static void on_hold(const call_t *call)
{
    const qr_chunk_hold_t *b = &call->message->body.chunk_hold;
    uint32_t reason = hold_take(call, b->id, &b->scope, b->tokens);
    call->store->counts.held += reason == 0;
    qr_send(call->outbox, call->message->from, chunk_held, (&(qr_chunk_held_t){.key = b->key, .reason = reason}));
}

static void on_unhold(const call_t *call)
{
    const qr_chunk_unhold_t *b = &call->message->body.chunk_unhold;
    uint64_t number = 0;
    memcpy(&number, b->id.data, qr_min_u64(sizeof number, b->id.count));
    for (uint32_t h = 0; h < HOLDS; h++)
        if (call->self->holds[h].id == number) call->self->holds[h].id = 0;
    qr_send(call->outbox, call->message->from, chunk_unheld, (&(qr_chunk_unheld_t){.key = b->key}));
}

/* The holds of before, one by one; asked again when facts is there again. */
static void holds_ask(const call_t *call, qr_bytes_t after)
{
    if (call->self->holds_known || call->self->asking) return;
    call->self->asking = 1;
    qr_send(call->outbox, call->self->facts, holds_read, (&(qr_holds_read_t){.after = after}));
}

static void on_holds_found(const call_t *call)
{
    const qr_holds_found_t *b = &call->message->body.holds_found;
    call->self->asking = 0;
    call->self->holds_known = b->id.count == 0;
    if (call->self->holds_known) return;
    (void)hold_take(call, b->id, &b->scope, b->tokens);
    holds_ask(call, b->id);
}

/* ---- losses: files that are set aside ---- */

static void set_aside(const call_t *call, qr_sim_file_t *f)
{
    f->state = ASIDE;
    f->told = 0;
    tell_losses(call);
}

static void on_losses(const call_t *call)
{
    const qr_chunk_losses_t *b = &call->message->body.chunk_losses;
    uint8_t chains[32 * QR_CAPTURE_DROPS];
    uint32_t groups[QR_CAPTURE_DROPS], count = 0;
    hear_device(call);
    for (uint32_t i = 0; i < call->disk->count && count < QR_CAPTURE_DROPS; i++) {
        qr_sim_file_t *f = &call->disk->files[i];
        bool waits = call->self->awaited || is_under_way(call->self, f->chain, call->message->from);
        if (f->state != ASIDE || f->leaving || (f->told ? f->told != call->message->from : waits)) continue;
        if (b->now) f->told = call->message->from;
        memcpy(chains + 32 * (size_t)count, f->chain, 32);
        groups[count++] = f->group;
    }
    uint32_t device = qr_address_device(call->message->from) - 1;
    if (!b->now && !count) {
        call->self->watches[device].from = call->message->from;
        call->self->watches[device].key = b->key;
        return;
    }
    if (!b->now) count = 0;
    qr_send(call->outbox, call->message->from, chunk_losses_named,
            (&(qr_chunk_losses_named_t){.key = b->key, .chains = {chains, 32ull * count}, .groups = {groups, count}}));
}

static void on_find(const call_t *call)
{
    const qr_chunk_find_t *b = &call->message->body.chunk_find;
    uint32_t depth = 0;
    hear_device(call);
    end_chunk(call, qr_address_device(call->message->from) - 1, b->published.bytes);
    for (bool all = true; all && depth < b->chains.count / 32; depth += all)
        for (uint32_t g = 0; g < call->given->layout.group_count; g++) {
            const qr_sim_file_t *f = ready_part(call->disk, b->chains.data + 32 * (size_t)depth, g);
            all = all && f && f->word == PUBLISHED;
        }
    qr_send(call->outbox, call->message->from, chunk_found, (&(qr_chunk_found_t){.key = b->key, .depth = depth}));
}

static void on_lease(const call_t *call)
{
    const qr_chunk_lease_t *b = &call->message->body.chunk_lease;
    qr_chunk_leased_t body = {.key = b->key, .reason = QR_E_NOT_FOUND};
    lease_t *lease = call->self->leases;
    while (lease < call->self->leases + LEASES && lease->id) lease++;
    ram_weather(call);
    if (lease < call->self->leases + LEASES && ram_lease(call, lease, &body)) {
        qr_send(call->outbox, call->message->from, chunk_leased, &body);
        return;
    }
    qr_sim_file_t *f = ready_part(call->disk, b->chain.bytes, b->group);
    uint32_t one_in = qr_world_fault(qr_sim_world(), call->self->node, QR_FAULT_ROT);
    if (f && one_in && !f->damaged && qr_sim_draw(one_in) == 0) damage(call->store, call->disk, f);
    bool seen = f && (f->removed || !f->on_disk.whole); /* it is not there, or its size is not what it was */
    if (seen && !f->leases && (f->removed || qr_sim_draw(2))) {
        set_aside(call, f);
        call->store->counts.damage_found++;
        f = NULL;
    }
    if (lease == call->self->leases + LEASES) qr_sim_finding("node %u has more leases than its actors may ask for", call->self->node + 1);
    if (f) {
        *lease = (lease_t){.id = ++call->store->lease, .holder = call->message->from, .group = b->group};
        memcpy(lease->chain, b->chain.bytes, 32);
        f->leases++;
        hear_of(f);
        f->key = ++call->store->clock;
        body = (qr_chunk_leased_t){.key = b->key, .lease = lease->id, .bytes = f->bytes, .trusted = f->trusted_epoch == call->self->epoch};
        memcpy(body.content.bytes, f->content, 32);
        body.stamp.bytes[0] = (uint8_t)(1 + f->times);
        body.keep = lease->fill = ram_reserve(call, f->chain, f->group);
        call->store->counts.leases++;
    }
    qr_send(call->outbox, call->message->from, chunk_leased, &body);
}

/* Answers whoever waits for a file to be gone; with its last lease it is. */
static void try_delete(const call_t *call, qr_sim_file_t *f)
{
    if (!f->leaving || f->leases) return;
    for (uint32_t i = 0; i < DROPS; i++) {
        drop_t *d = &call->self->drops[i];
        if (!d->from || d->group != f->group || memcmp(d->chain, f->chain, 32)) continue;
        qr_send(call->outbox, d->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = d->key, .bytes = f->bytes}));
        d->from = 0;
    }
    const qr_sim_catalog_t *catalog = qr_sim_given(call->given)->catalog;
    if (catalog && qr_sim_catalog_says(catalog, call->self->node, f->chain, f->group)) /* G3 */
        qr_sim_finding("node %u deletes a file that the log still says stands there", call->self->node + 1);
    f->state = ABSENT;
    call->store->counts.dropped++;
}

/* Memory that is read no more. What is wrong with it is not the file's fault. */
static void end_ram_lease(const call_t *call, lease_t *lease, uint32_t reason)
{
    const ram_slot_t *r = &call->self->ram[lease->slot - 1];
    if (reason && is_intact(&call->disk->memory[lease->slot - 1], lease->chain, lease->group))
        qr_sim_finding("node %u: intact memory is called damaged (%s)", call->self->node + 1, qr_error_name((int)reason));
    call->store->counts.ram_damage_found += reason != 0;
    lease->id = 0;
    if (reason && r->state == KEPT) ram_leave(call, lease->slot);
    ram_let_go(call, lease->slot);
}

/* What a lease's upload put into memory: kept if its holder says so (and then it is there), else given up. */
static void end_fill(const call_t *call, lease_t *lease, const qr_sim_file_t *f, bool kept, uint32_t reason)
{
    bool there = lease->fill && is_intact(&call->disk->memory[lease->fill - 1], lease->chain, lease->group);
    if (kept && !there) qr_sim_finding("node %u: memory is said to hold a part and does not", call->self->node + 1);
    if (!lease->fill) return;
    if (kept && !reason && f->state == DURABLE && !f->leaving)
        ram_keep(call, lease->fill);
    else
        ram_let_go(call, lease->fill);
    lease->fill = 0;
}

/* kept: 1 or 0 as its holder says, 2: the holder is gone. */
static void end_lease(const call_t *call, lease_t *lease, bool trust, uint32_t reason, uint32_t kept)
{
    if (lease->slot) {
        if (kept == 1) qr_sim_finding("node %u: memory is said to be filled by a lease of memory", call->self->node + 1);
        end_ram_lease(call, lease, reason);
        return;
    }
    qr_sim_file_t *f = part_of(call->disk, lease->chain, lease->group);
    if (!f || !f->leases) qr_sim_finding("node %u: a leased file is gone", call->self->node + 1);
    if (kept == 0 && !reason && lease->fill && is_intact(&call->disk->memory[lease->fill - 1], lease->chain, lease->group))
        qr_sim_finding("node %u: memory that was filled and verified is given up", call->self->node + 1);
    f->leases--;
    end_fill(call, lease, f, kept == 1, reason);
    lease->id = 0;
    if (trust && f->state == DURABLE) f->trusted_epoch = call->self->epoch;
    if (reason && f->state == DURABLE && !f->leaving) {
        if (!f->damaged) qr_sim_finding("node %u: an intact file is set aside (%s)", call->self->node + 1, qr_error_name((int)reason));
        set_aside(call, f);
    }
    try_delete(call, f);
}

static void on_release(const call_t *call)
{
    const qr_chunk_release_t *b = &call->message->body.chunk_release;
    qr_chunk_released_t body = {.lease = b->lease, .reason = QR_E_STALE};
    for (uint32_t i = 0; i < LEASES && b->lease; i++) {
        lease_t *lease = &call->self->leases[i];
        if (lease->id != b->lease || lease->holder != call->message->from) continue;
        if (lease->blamed && !b->damage) qr_sim_finding("node %u: a damaged file is given back without a word", call->self->node + 1);
        end_lease(call, lease, b->trust == 1, b->damage, b->kept == 1);
        body.reason = 0;
    }
    if (body.reason && qr_sim_world()) qr_sim_finding("node %u: a lease is given back that is not held", call->self->node + 1);
    qr_send(call->outbox, call->message->from, chunk_released, &body);
}

void qr_sim_store_blame(const qr_world_t *world, uint32_t node, uint64_t holder, const uint8_t chain[32], uint32_t group, bool memory)
{
    storage_t *self = world ? qr_world_state(world, qr_sim_address(node, 0, QR_ROLE_storage)) : NULL;
    lease_t *its = NULL;
    for (uint32_t i = 0; self && i < LEASES; i++) {
        lease_t *lease = &self->leases[i];
        if (!lease->id || lease->holder != holder || lease->group != group || memcmp(lease->chain, chain, 32)) continue;
        if ((lease->slot != 0) != memory) continue;
        if (its) return; /* two restores: either may be meant */
        its = lease;
    }
    if (its) its->blamed = 1;
}

bool qr_sim_store_may(const qr_world_t *world, uint32_t node, uint64_t holder, const uint8_t chain[32], uint32_t group, uint32_t kept,
                      uint32_t keep)
{
    enum { SETTLED_US = 100000 }; /* those who asked the storage before have heard of its end */
    uint64_t address = qr_sim_address(node, 0, QR_ROLE_storage);
    const storage_t *self = world ? qr_world_state(world, address) : NULL;
    if (!self || qr_world_now_us(world) < qr_world_started_us(world, address) + SETTLED_US) return true;
    for (uint32_t i = 0; i < LEASES; i++) {
        const lease_t *lease = &self->leases[i];
        bool part = lease->id && lease->holder == holder && lease->group == group && memcmp(lease->chain, chain, 32) == 0;
        if (part && lease->slot == kept && (!keep || lease->fill == keep)) return true;
    }
    return false;
}

/* Why a write is not going to be, or 0. */
static uint32_t judge_write(const call_t *call, const qr_sim_bytes_t *b, uint64_t *ret_shortfall)
{
    const qr_sim_file_t *there = part_of(call->disk, b->chain, b->group);
    uint64_t bytes = HEADER_BYTES + 8ull * b->count, used = bytes_used(call->disk);
    if (there && there->leases) return QR_E_BUSY; /* set aside or leaving, and still read */
    if (there && there->state == WRITING) return QR_E_BUSY;
    if (there && there->state == ASIDE && there->told && there->told != call->message->from)
        return QR_E_BUSY; /* it is withdrawn just now */
    if (used + bytes <= call->store->work.bytes_max) return 0;
    *ret_shortfall = used + bytes - call->store->work.bytes_max;
    call->store->counts.shortfalls++;
    return QR_E_SHORTFALL;
}

static uint64_t disk_us(const call_t *call)
{
    uint32_t slow = qr_max_u32(1, qr_world_fault(qr_sim_world(), call->self->node, QR_FAULT_DISK));
    return (1 + qr_sim_draw(call->store->work.write_us)) * slow;
}

/* The bytes of a slot as a file. */
static void take_slot(const call_t *call, const qr_chunk_write_t *b, qr_sim_bytes_t *ret_bytes)
{
    const qr_sim_slot_t *slot = qr_sim_store_slot(call->store, call->self->node, qr_address_device(call->message->from), b->slot);
    if (!slot->filled || slot->group != b->group || slot->start != b->start || slot->count != b->tokens.count)
        qr_sim_finding("node %u writes slot %u, which holds something else", call->self->node + 1, b->slot);
    *ret_bytes = (qr_sim_bytes_t){.group = b->group, .start = b->start, .count = slot->count, .whole = 1, .scope = slot->scope};
    memcpy(ret_bytes->chain, b->chain.bytes, 32);
    memcpy(ret_bytes->parent, b->parent.bytes, 32);
    memcpy(ret_bytes->words, slot->words, sizeof slot->words);
    for (uint32_t i = 0; i < slot->count; i++) /* G2 */
        if (slot->words[i] != qr_sim_word(b->tokens.data[i], b->start + i, b->group))
            qr_sim_finding("node %u writes a chunk at %u of group %u whose row %u is not that of its token", call->self->node + 1, b->start,
                           b->group, i);
    ret_bytes->tokens = qr_sim_store_tokens(b->tokens.data, b->tokens.count);
    ret_bytes->digest = qr_sim_store_digest(ret_bytes);
}

/* A writer that asks for something new drops nothing any more of what it was told before. */
static void begin_errand(const call_t *call)
{
    for (uint32_t i = 0; i < call->disk->count; i++) call->disk->files[i].may_drop &= ~(1u << qr_address_device(call->message->from));
}

static void on_write(const call_t *call)
{
    begin_errand(call);
    const qr_chunk_write_t *b = &call->message->body.chunk_write;
    write_t *w = call->self->writes;
    while (w < call->self->writes + WRITES && w->from) w++;
    if (w == call->self->writes + WRITES) qr_sim_finding("node %u has more writes than its actors may ask for", call->self->node + 1);
    *w = (write_t){.from = call->message->from, .key = b->key, .slot = b->slot, .asked_us = call->message->now_us};
    begin_chunk(call, qr_address_device(call->message->from) - 1, b->chain.bytes);
    take_slot(call, b, &w->bytes);
    call->self->last_us = qr_max_u64(call->self->last_us, call->message->now_us) + disk_us(call); /* one errand */
    w->due_us = call->self->last_us;
    qr_sim_file_t *there = ready_part(call->disk, b->chain.bytes, b->group);
    if (there) {
        there->word = UNPUBLISHED;
        return;
    }
    w->reason = judge_write(call, &w->bytes, &w->shortfall);
    if (w->reason) return;
    qr_sim_file_t *f = file_new(call->disk, b->chain.bytes, b->group);
    f->state = WRITING;
    f->bytes = HEADER_BYTES + 8ull * w->bytes.count;
    f->due_us = w->due_us;
    f->on_disk = w->bytes;
    qr_sim_store_name(&f->on_disk, f->content);
    w->fill = ram_reserve(call, f->chain, f->group);
}

/* What became of a write whose time has come. */
static uint32_t outcome(const call_t *call, qr_sim_file_t *f)
{
    uint32_t one_in = qr_world_fault(qr_sim_world(), call->self->node, QR_FAULT_APPEND);
    if (qr_world_fault(qr_sim_world(), call->self->node, QR_FAULT_FULL)) return QR_E_NO_SPACE;
    if (one_in && qr_sim_draw(one_in) == 0) return QR_E_IO; /* its sync failed */
    f->state = DURABLE;
    f->word = UNPUBLISHED;
    f->key = ++call->store->clock;
    f->trusted_epoch = call->self->epoch;
    return 0;
}

static void end_write(const call_t *call, write_t *w)
{
    qr_sim_file_t *f = part_of(call->disk, w->bytes.chain, w->bytes.group);
    const qr_sim_slot_t *slot = qr_sim_store_slot(call->store, call->self->node, qr_address_device(w->from), w->slot);
    if (memcmp(slot->words, w->bytes.words, sizeof slot->words) || slot->group != w->bytes.group)
        qr_sim_finding("node %u: slot %u was filled anew while it was written", call->self->node + 1, w->slot);
    if (!w->reason && f && f->state == WRITING) {
        w->reason = outcome(call, f);
        if (w->reason) unmake(f);
        call->store->counts.written += w->reason == 0;
        call->store->counts.failed += w->reason != 0;
    } else if (!w->reason && !(f && f->state == DURABLE)) {
        w->reason = QR_E_IO; /* it was there when it was asked */
    }
    if (w->fill && !w->reason) {
        call->disk->memory[w->fill - 1] = f->on_disk;
        ram_keep(call, w->fill);
    } else if (w->fill) {
        ram_let_go(call, w->fill);
    }
    w->fill = 0;
    qr_chunk_written_t body = {
        .key = w->key, .reason = w->reason, .shortfall_bytes = w->shortfall, .write_us = call->message->now_us - w->asked_us};
    if (!w->reason) {
        body.bytes = f->bytes;
        memcpy(body.content.bytes, f->content, 32);
    }
    qr_send(call->outbox, w->from, chunk_written, &body);
    w->from = 0;
}

static void on_victims(const call_t *call)
{
    const qr_chunk_victims_t *b = &call->message->body.chunk_victims;
    uint8_t chains[32 * QR_CAPTURE_DROPS];
    uint32_t groups[QR_CAPTURE_DROPS], count = 0;
    uint64_t sizes[QR_CAPTURE_DROPS], named = 0, after = 0;
    begin_errand(call);
    while (call->self->holds_known && !call->self->awaited && count < QR_CAPTURE_DROPS && named < b->bytes) {
        qr_sim_file_t *least = NULL;
        for (uint32_t i = 0; i < call->disk->count; i++) {
            qr_sim_file_t *f = &call->disk->files[i];
            if (is_held(call->self, f->chain) || is_under_way(call->self, f->chain, call->message->from)) continue;
            if (f->state == DURABLE && !f->leases && !f->leaving && f->key > after && (!least || f->key < least->key)) least = f;
        }
        if (!least) break;
        least->may_drop |= 1u << qr_address_device(call->message->from);
        least->may_leave = qr_address_device(call->message->from);
        least->word = UNPUBLISHED; /* its withdrawal is on its way */
        after = least->key;
        memcpy(chains + 32 * (size_t)count, least->chain, 32);
        groups[count] = least->group;
        sizes[count++] = least->bytes;
        named += least->bytes;
    }
    qr_send(call->outbox, call->message->from, chunk_victims_named,
            (&(qr_chunk_victims_named_t){
                .key = b->key, .chains = {chains, 32ull * count}, .groups = {groups, count}, .sizes = {sizes, count}}));
}

static void on_drop(const call_t *call)
{
    const qr_chunk_drop_t *b = &call->message->body.chunk_drop;
    qr_sim_file_t *f = part_of(call->disk, b->chain.bytes, b->group);
    drop_t *d = call->self->drops;
    while (d < call->self->drops + DROPS && d->from) d++;
    bool stands = f && (f->state == DURABLE || f->state == ASIDE);
    if (f && f->state == DURABLE && !f->leaving && !may_leave(call, f)) {
        f->word = UNPUBLISHED;
        qr_send(call->outbox, call->message->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = b->key, .reason = QR_E_BUSY}));
        return;
    }
    if (ram_keeps(call, b->chain.bytes, b->group)) ram_leave(call, ram_find(call, b->chain.bytes, b->group));
    if (!stands || d == call->self->drops + DROPS) {
        uint32_t reason = stands ? QR_E_BUSY : QR_E_NOT_FOUND;
        qr_send(call->outbox, call->message->from, chunk_dropped, (&(qr_chunk_dropped_t){.key = b->key, .reason = reason}));
        return;
    }
    if (f->state == DURABLE && is_held(call->self, f->chain) && !(f->may_drop >> qr_address_device(call->message->from) & 1))
        qr_sim_finding("node %u: a held file is dropped, and nobody said that it may leave", call->self->node + 1); /* G8 */
    *d = (drop_t){.from = call->message->from, .key = b->key, .group = b->group};
    memcpy(d->chain, b->chain.bytes, 32);
    f->leaving = 1;
    try_delete(call, f);
}

/* Of its own node: nobody of those who asked remembers it (world.h, W8). What is being written may still become a file. */
static void on_link_down(const call_t *call)
{
    if (call->message->body.link_down.node != call->self->node + 1) return;
    call->self->asking = 0;
    for (uint32_t i = 0; i < DROPS; i++) call->self->drops[i].from = 0;
    for (uint32_t i = 0; i < DEVICES; i++) call->self->watches[i].from = 0;
    for (uint32_t i = 0; i < call->disk->count; i++) call->disk->files[i].told = 0;
    for (uint32_t i = 0; i < LEASES; i++)
        if (call->self->leases[i].id) end_lease(call, &call->self->leases[i], false, 0, 2);
    for (uint32_t i = 0; i < WRITES; i++) {
        write_t *w = &call->self->writes[i];
        qr_sim_file_t *f = w->from ? part_of(call->disk, w->bytes.chain, w->bytes.group) : NULL;
        if (f && f->state == WRITING) unmake(f); /* nothing of it may stay: its slot is in other hands */
        if (w->from && w->fill) ram_let_go(call, w->fill);
        w->from = 0;
    }
}

static void on_start(const call_t *call)
{
    call->self->epoch = call->message->body.start.epoch;
    call->disk->lives++;
    for (uint32_t i = 0; i < QR_SIM_RAM_SLOTS; i++) call->disk->memory[i].whole = 0;
    for (uint32_t i = 0; i < call->disk->count; i++) {
        qr_sim_file_t *f = &call->disk->files[i];
        f->leases = 0;
        f->told = 0;
        if (f->state == WRITING) { /* G1 */
            bool whole = f->due_us < call->message->now_us && qr_sim_draw(2);
            f->state = DURABLE;
            if (!whole) unmake(f);
            call->store->counts.torn += !whole;
        }
        /* What was withdrawn and not deleted is found again: nobody remembers that it was to leave. */
        if (f->state == DURABLE || f->state == ASIDE) f->leaving = 0;
        const qr_sim_catalog_t *catalog = qr_sim_given(call->given)->catalog;
        bool said = f->state == DURABLE && catalog && qr_sim_catalog_says(catalog, call->self->node, f->chain, f->group);
        f->word = said ? PUBLISHED : UNHEARD;
        f->may_leave = f->kept = 0;
        call->store->counts.adopted += f->state == DURABLE;
    }
    qr_send(call->outbox, call->message->from, ready, (&(qr_ready_t){0}));
    const qr_u64s_t *partners = &call->message->body.start.partners;
    for (uint64_t i = 0; i < partners->count; i++) {
        if (qr_address_node(partners->data[i]) != call->self->node + 1) continue;
        if (qr_address_role(partners->data[i]) == QR_ROLE_facts) call->self->facts = partners->data[i];
        if (qr_address_role(partners->data[i]) == QR_ROLE_checkpoint_writer)
            call->self->awaited |= 1u << qr_address_device(partners->data[i]);
    }
    call->self->holds_known = call->self->facts == 0;
    holds_ask(call, (qr_bytes_t){0});
}

static void on_time(const call_t *call)
{
    for (uint32_t i = 0; i < WRITES; i++) {
        write_t *w = &call->self->writes[i];
        if (w->from && w->due_us <= call->message->now_us) end_write(call, w);
    }
}

static void on_stop(const call_t *call)
{
    for (uint32_t i = 0; i < WRITES; i++)
        if (call->self->writes[i].from) end_write(call, &call->self->writes[i]);
    qr_send(call->outbox, call->message->from, stopped, (&(qr_stopped_t){0}));
}

static void storage_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    storage_t *self = block;
    qr_sim_store_t *store = store_of(given);
    const call_t call = {self, given, store, &store->disks[self->node], message, outbox};
    switch (message->type) {
    case QR_MESSAGE_start: on_start(&call); break;
    case QR_MESSAGE_stop: on_stop(&call); break;
    case QR_MESSAGE_metrics_read: qr_send(outbox, message->from, metrics, (&(qr_metrics_t){0})); break;
    case QR_MESSAGE_alarm: on_time(&call); break;
    case QR_MESSAGE_chunk_find: on_find(&call); break;
    case QR_MESSAGE_ram_find: on_ram_find(&call); break;
    case QR_MESSAGE_chunk_lease: on_lease(&call); break;
    case QR_MESSAGE_chunk_release: on_release(&call); break;
    case QR_MESSAGE_chunk_write: on_write(&call); break;
    case QR_MESSAGE_chunk_victims: on_victims(&call); break;
    case QR_MESSAGE_chunk_drop: on_drop(&call); break;
    case QR_MESSAGE_chunk_losses: on_losses(&call); break;
    case QR_MESSAGE_chunk_hold: on_hold(&call); break;
    case QR_MESSAGE_chunk_unhold: on_unhold(&call); break;
    case QR_MESSAGE_holds_found: on_holds_found(&call); break;
    case QR_MESSAGE_link_down: on_link_down(&call); break;
    case QR_MESSAGE_link_up:
        if (message->body.link_up.node == self->node + 1) holds_ask(&call, (qr_bytes_t){0});
        break;
    default: break;
    }
    outbox->alarm_us = QR_NEVER_US;
    for (uint32_t i = 0; i < WRITES; i++)
        if (self->writes[i].from) qr_outbox_alarm(outbox, self->writes[i].due_us);
}

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
    self->node = qr_address_node(address) - 1;
}

/* G5, G7, G8 */
static void storage_check(const void *block, const qr_given_t *given)
{
    const storage_t *self = block;
    const qr_sim_store_t *store = store_of(given);
    qr_assert(bytes_used(&store->disks[self->node]) <= store->work.bytes_max);
    uint32_t readers = 0, leases = 0;
    for (uint32_t i = 0; i < QR_SIM_RAM_SLOTS; i++) {
        readers += self->ram[i].readers;
        qr_assert(i < store->work.ram_slots || self->ram[i].state == EMPTY);
    }
    for (uint32_t i = 0; i < LEASES; i++) leases += self->leases[i].id && (self->leases[i].slot || self->leases[i].fill);
    for (uint32_t i = 0; i < WRITES; i++) leases += self->writes[i].from && self->writes[i].fill;
    qr_assert(readers == leases);
    qr_assert(held_count(self) * (HEADER_BYTES + 8ull * given->layout.chunk_tokens) * given->layout.group_count <= store->work.bytes_max);
}

static void storage_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const storage_t *self = block;
    const disk_t *disk = &store_of(given)->disks[self->node];
    uint32_t leases = 0, files = 0;
    for (uint32_t i = 0; i < LEASES; i++) leases += self->leases[i].id != 0;
    for (uint32_t i = 0; i < disk->count; i++) files += disk->files[i].state == DURABLE;
    qr_text_put(text, "storage: files ");
    qr_text_put_u64(text, files);
    qr_text_put(text, ", leases ");
    qr_text_put_u64(text, leases);
    qr_text_put(text, "\n");
}

const qr_actor_class_t qr_sim_storage_class = {
    .name = "storage",
    .role = QR_ROLE_storage,
    .max_out = LEASES + WRITES + DROPS + DEVICES + 2,
    .owns_world = true,
    .bytes = storage_bytes,
    .init = storage_init,
    .handle = storage_handle,
    .check = storage_check,
    .print = storage_print,
};

/* A file that was seen to be damaged, and that the log goes on to say stands there (G6). */
static bool advertised(const qr_sim_catalog_t *catalog, const disk_t *disk, uint32_t node)
{
    for (uint32_t i = 0; catalog && i < disk->count; i++)
        if (disk->files[i].state == ASIDE && qr_sim_catalog_says(catalog, node, disk->files[i].chain, disk->files[i].group)) return true;
    return false;
}

bool qr_sim_store_is_quiet(const qr_sim_store_t *s, const struct qr_sim_catalog *catalog, const qr_world_t *world, char *text,
                           size_t text_bytes)
{
    for (uint32_t n = 0; n < s->node_count; n++) {
        if (advertised(catalog, &s->disks[n], n)) {
            (void)snprintf(text, text_bytes, "at the end the log says that node %u has a file that was found damaged", n + 1);
            return false;
        }
        const storage_t *self = qr_world_state(world, qr_sim_address(n, 0, QR_ROLE_storage));
        uint32_t leases = 0, others = 0;
        for (uint32_t i = 0; self && i < LEASES; i++) leases += self->leases[i].id != 0;
        for (uint32_t i = 0; self && i < DROPS; i++) others += self->drops[i].from != 0;
        for (uint32_t i = 0; self && i < WRITES; i++) others += self->writes[i].from != 0;
        if (leases || others) {
            (void)snprintf(text, text_bytes, "at the end storage of node %u has %u leases and %u writes and drops", n + 1, leases, others);
            return false;
        }
    }
    return true;
}
