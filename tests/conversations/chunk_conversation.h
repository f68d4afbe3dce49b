/* chunk_conversation.h - what storage and transfer are asked, one after the other, and what they must answer: the contract that the real
 * actors and the simulated world's fakes are held to alike. A world says how a question reaches them; the conversation knows nothing of
 * files.
 *
 * Parts are those of one chain of PARTS_MAX chunks, every group of the layout; their tokens and rows are made from a seed. Include after
 * cmocka. */
#ifndef CHUNK_CONVERSATION_H
#define CHUNK_CONVERSATION_H

#include "actors/given.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/prng.h"
#include "messages/schema.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONVERSATION_PARTS = 4, CONVERSATION_LEASES = 8 };

typedef struct chunk_world {
    void *context;
    const qr_given_t *given;
    uint32_t payload_chunk_bytes[QR_GROUPS_MAX]; /* of one chunk file of the group, on disk */
    /* Sends a question from a role to a role and runs the world until it rests. Whether it was answered; *ret_answer lives until the next
     * ask. */
    bool (*ask)(void *context, uint8_t from, uint8_t to, uint16_t type, const void *body, qr_message_t *ret_answer);
    /* Whether an earlier question of this type has been answered meanwhile. */
    bool (*late)(void *context, uint8_t from, uint16_t answer_type, qr_message_t *ret_answer);
    /* Writes rows [start, start + rows) of a chain into pages (pages[i] is block first_block + i), and compares them. */
    void (*fill)(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed);
    bool (*holds)(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed);
    /* Changes one byte of the payload of a part, or removes it, behind storage's back. */
    void (*spoil)(void *context, qr_hash_t content, bool remove);
    /* Changes one byte of a RAM slot, behind everybody's back; NULL in a world without RAM. */
    void (*spoil_memory)(void *context, uint32_t slot);
} chunk_world_t;

/* The words of the list below. */
typedef enum chunk_verb {
    STEP_FIND, /* chunk_find of all parts: depth */
    STEP_SAVE, /* rows are made, page_download, chunk_write of every group: reason; chunk_find says that it was published; flag: that it was not */
    STEP_LEASE, /* chunk_lease into lease `slot`: reason, flag = trusted */
    STEP_LOAD,  /* page_upload of the lease's file into fresh pages; flag = whole; from: rows left out: reason, damage; right bytes if 0 */
    STEP_STALE, /* the same into the pages of the load before, with their old generation: reason */
    STEP_FENCE, /* fence of the pages of the load before */
    STEP_RELEASE, /* chunk_release of lease `slot`; flag = trust, damage: reason */
    STEP_DROP,    /* chunk_drop of all groups: reason; flag: not answered yet */
    STEP_DROPPED, /* the drop of before is answered now: reason */
    STEP_FLIP,    /* a byte of the part's file changes */
    STEP_REMOVE,  /* somebody removes the part's file */
    STEP_MEMORY,  /* ram_find of all parts: depth */
    STEP_FORGETS, /* a byte of the memory that lease `slot` is of changes */
    STEP_HOLD,    /* chunk_hold number `slot` of the first `depth` parts: reason */
    STEP_UNHOLD,  /* chunk_unhold of it */
    STEP_VICTIMS  /* chunk_victims of the bytes of `depth` parts: exactly they are named */
} chunk_verb_t;
/* What a lease says about memory: none, that it is of memory, or that its upload fills some. */
typedef enum chunk_memory { MEMORY_NONE, MEMORY_KEPT, MEMORY_FILL } chunk_memory_t;

typedef struct chunk_step {
    chunk_verb_t verb;
    uint32_t part, slot, reason, flag, from, depth, damage;
    chunk_memory_t memory; /* STEP_LEASE; STEP_RELEASE: MEMORY_KEPT = it is there now */
} chunk_step_t;

static const chunk_step_t chunk_steps[] = {
    {STEP_FIND, .depth = 0},
    {STEP_LEASE, .part = 0, .reason = QR_E_NOT_FOUND},
    {STEP_DROP, .part = 0, .reason = QR_E_NOT_FOUND},
    /* What was written in vain does not count, leased or not; written again and published it does. */
    {STEP_SAVE, .part = 0, .flag = 1},
    {STEP_FIND, .depth = 0},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1},
    {STEP_RELEASE, .slot = 0},
    {STEP_FIND, .depth = 0},
    /* Saved, found, and found again with the same name when it is saved twice. */
    {STEP_SAVE, .part = 0},
    {STEP_FIND, .depth = 1},
    {STEP_SAVE, .part = 0},
    {STEP_SAVE, .part = 2},
    {STEP_FIND, .depth = 1}, /* part 1 is missing */
    {STEP_SAVE, .part = 1},
    {STEP_FIND, .depth = 3},
    /* Loaded: as a whole file, and from a row in its middle. */
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1},
    {STEP_LOAD, .part = 0, .slot = 0, .flag = 1},
    {STEP_LOAD, .part = 0, .slot = 0, .from = 5},
    {STEP_RELEASE, .slot = 0, .flag = 1},
    {STEP_RELEASE, .slot = 0, .reason = QR_E_STALE},
    /* Pages that were fenced are not written again under the same generation. */
    {STEP_LEASE, .part = 1, .slot = 1, .flag = 1},
    {STEP_LOAD, .part = 1, .slot = 1},
    {STEP_FENCE},
    {STEP_STALE, .part = 1, .slot = 1, .reason = QR_E_STALE},
    {STEP_LOAD, .part = 1, .slot = 1},
    /* A drop waits for the lease; nobody leases meanwhile; what is leased can be read to its end. */
    {STEP_DROP, .part = 1, .flag = 1},
    {STEP_LEASE, .part = 1, .slot = 2, .reason = QR_E_NOT_FOUND},
    {STEP_FIND, .depth = 1},
    {STEP_LOAD, .part = 1, .slot = 1},
    {STEP_RELEASE, .slot = 1},
    {STEP_DROPPED},
    {STEP_SAVE, .part = 1},
    {STEP_FIND, .depth = 3},
    /* Damage is never moved as a success, and the part is gone afterwards; it can be saved again. */
    {STEP_LEASE, .part = 2, .slot = 3, .flag = 1},
    {STEP_FLIP, .part = 2},
    {STEP_LOAD, .part = 2, .slot = 3, .reason = QR_E_DIGEST, .damage = 1},
    {STEP_RELEASE, .slot = 3, .damage = QR_E_DIGEST},
    {STEP_FIND, .depth = 2},
    {STEP_LEASE, .part = 2, .reason = QR_E_NOT_FOUND},
    {STEP_SAVE, .part = 2},
    {STEP_LEASE, .part = 2, .slot = 3, .flag = 1},
    {STEP_LOAD, .part = 2, .slot = 3},
    {STEP_RELEASE, .slot = 3},
    /* Somebody removes a file: a miss. */
    {STEP_REMOVE, .part = 0},
    {STEP_LEASE, .part = 0, .reason = QR_E_NOT_FOUND},
    {STEP_FIND, .depth = 0},
    {STEP_SAVE, .part = 0},
    {STEP_FIND, .depth = 3},
    /* All leave. */
    {STEP_DROP, .part = 0},
    {STEP_DROP, .part = 1},
    {STEP_DROP, .part = 2},
    {STEP_DROP, .part = 2, .reason = QR_E_NOT_FOUND},
    {STEP_FIND, .depth = 0},
};

/* The same of a world with room for two parts of every group in memory. */
static const chunk_step_t ram_steps[] = {
    {STEP_MEMORY, .depth = 0},
    {STEP_LEASE, .part = 0, .reason = QR_E_NOT_FOUND},
    /* What is written is in memory, and comes out of it. */
    {STEP_SAVE, .part = 0},
    {STEP_SAVE, .part = 1},
    {STEP_MEMORY, .depth = 2},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_LEASE, .part = 0, .slot = 1, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_LOAD, .part = 0, .slot = 0},
    {STEP_LOAD, .part = 0, .slot = 1, .from = 5},
    {STEP_RELEASE, .slot = 0},
    {STEP_RELEASE, .slot = 1},
    {STEP_RELEASE, .slot = 0, .reason = QR_E_STALE},
    /* Memory that fails is found when it is read, and leaves; its file stands, and fills it again, by one lease at a time. */
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_FORGETS, .slot = 0},
    {STEP_LOAD, .part = 0, .slot = 0, .reason = QR_E_DIGEST, .damage = 1},
    {STEP_RELEASE, .slot = 0, .damage = QR_E_DIGEST},
    {STEP_MEMORY, .depth = 0},
    {STEP_FIND, .depth = 2},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_FILL},
    {STEP_LEASE, .part = 0, .slot = 1, .flag = 1, .memory = MEMORY_NONE},
    {STEP_LOAD, .part = 0, .slot = 1},
    {STEP_RELEASE, .slot = 1},
    {STEP_MEMORY, .depth = 0},
    {STEP_LOAD, .part = 0, .slot = 0},
    {STEP_RELEASE, .slot = 0, .memory = MEMORY_KEPT},
    {STEP_MEMORY, .depth = 2},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_LOAD, .part = 0, .slot = 0},
    /* What is read fails for all its readers; what nobody vouches for stays out. */
    {STEP_LEASE, .part = 0, .slot = 1, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_FORGETS, .slot = 1},
    {STEP_LOAD, .part = 0, .slot = 1, .reason = QR_E_DIGEST, .damage = 1},
    {STEP_RELEASE, .slot = 1, .damage = QR_E_DIGEST},
    {STEP_MEMORY, .depth = 0},
    {STEP_RELEASE, .slot = 0},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_FILL},
    {STEP_RELEASE, .slot = 0},
    {STEP_MEMORY, .depth = 0},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_FILL},
    {STEP_LOAD, .part = 0, .slot = 0},
    {STEP_RELEASE, .slot = 0, .memory = MEMORY_KEPT},
    /* Memory needs no file. A drop takes a part out of both, and out of the hands of those to come only. */
    {STEP_REMOVE, .part = 0},
    {STEP_LEASE, .part = 0, .slot = 0, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_LOAD, .part = 0, .slot = 0},
    {STEP_DROP, .part = 0},
    {STEP_MEMORY, .depth = 0},
    {STEP_LEASE, .part = 0, .slot = 1, .reason = QR_E_NOT_FOUND},
    {STEP_LOAD, .part = 0, .slot = 0},
    {STEP_RELEASE, .slot = 0},
    {STEP_LEASE, .part = 1, .slot = 0, .flag = 1, .memory = MEMORY_KEPT},
    {STEP_LOAD, .part = 1, .slot = 0},
    {STEP_RELEASE, .slot = 0},
    {STEP_SAVE, .part = 0},
    {STEP_MEMORY, .depth = 2},
    {STEP_DROP, .part = 0},
    {STEP_DROP, .part = 1},
    {STEP_MEMORY, .depth = 0},
};

/* What is held is nobody's victim. */
static const chunk_step_t hold_steps[] = {
    {STEP_SAVE, .part = 0},
    {STEP_SAVE, .part = 1},
    {STEP_SAVE, .part = 2},
    {STEP_HOLD, .slot = 1, .depth = 2},
    {STEP_VICTIMS, .depth = 1},
    {STEP_HOLD, .slot = 1, .depth = 2}, /* the same hold */
    {STEP_HOLD, .slot = 2, .depth = 1},
    {STEP_UNHOLD, .slot = 1},
    {STEP_VICTIMS, .depth = 2}, /* those that were named and not dropped too */
    {STEP_UNHOLD, .slot = 3},
    {STEP_HOLD, .slot = 3, .depth = 4}, /* one of them is still to come */
    {STEP_SAVE, .part = 3},
    {STEP_UNHOLD, .slot = 2},
    {STEP_UNHOLD, .slot = 3},
    {STEP_VICTIMS, .depth = 4},
    {STEP_DROP, .part = 0},
    {STEP_DROP, .part = 1},
    {STEP_DROP, .part = 2},
    {STEP_DROP, .part = 3},
};

/* What the conversation knows while it goes on. Group by group the same is said. */
typedef struct chunk_talk {
    const chunk_world_t *world;
    uint32_t step, chunk, key;
    uint32_t *tokens; /* [PARTS * chunk] */
    qr_hash_t parents[CONVERSATION_PARTS], chains[CONVERSATION_PARTS];
    qr_hash_t contents[CONVERSATION_PARTS][QR_GROUPS_MAX];
    struct {
        uint64_t lease[QR_GROUPS_MAX], bytes[QR_GROUPS_MAX];
        qr_hash_t content[QR_GROUPS_MAX];
        uint32_t kept[QR_GROUPS_MAX], keep[QR_GROUPS_MAX];
    } leases[CONVERSATION_LEASES];
    uint32_t generation, blocks; /* fresh pages: another generation of the upper half of the pool */
    uint64_t *pages;             /* of the last load */
} chunk_talk_t;

static inline void chunk_expect(const chunk_talk_t *talk, const char *what, uint64_t got, uint64_t want)
{
    if (got == want) return;
    print_error("step %u: %s is %llu, must be %llu\n", talk->step, what, (unsigned long long)got, (unsigned long long)want);
    fail();
}

#define CHUNK_ASK(talk, from, to, name, answer, ...)                                                                                       \
    ((talk)->world->ask((talk)->world->context, QR_ROLE_##from, QR_ROLE_##to, QR_MESSAGE_##name, &(qr_##name##_t){__VA_ARGS__}, (answer)))

static inline void chunk_pages(chunk_talk_t *talk, uint32_t first_page, uint32_t generation)
{
    for (uint32_t i = 0; i < talk->blocks; i++) talk->pages[i] = qr_handle(first_page + i, generation);
}

static inline void chunk_save(chunk_talk_t *talk, const chunk_step_t *s)
{
    const chunk_world_t *w = talk->world;
    uint32_t start = s->part * talk->chunk, first_block = start / w->given->layout.page_tokens;
    static const qr_hash_t none;
    qr_message_t answer;
    for (uint32_t g = 0; g < w->given->layout.group_count; g++) {
        chunk_pages(talk, 0, 1);
        w->fill(w->context, g, start, talk->chunk, first_block, talk->pages, 7);
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, checkpoint_writer, transfer, page_download, &answer, .key = ++talk->key, .slot = 0, .group = g,
                               .start = start, .rows = talk->chunk, .first_block = first_block, .pages = {talk->pages, talk->blocks}),
                     true);
        chunk_expect(talk, "download reason", answer.body.page_downloaded.reason, 0);
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, checkpoint_writer, storage, chunk_write, &answer, .key = ++talk->key, .slot = 0, .group = g,
                               .parent = talk->parents[s->part], .chain = talk->chains[s->part], .start = start,
                               .tokens = {talk->tokens + start, talk->chunk}),
                     true);
        const qr_chunk_written_t *written = &answer.body.chunk_written;
        chunk_expect(talk, "key", written->key, talk->key);
        chunk_expect(talk, "write reason", written->reason, s->reason);
        if (s->reason) continue;
        chunk_expect(talk, "bytes", written->bytes, w->payload_chunk_bytes[g]);
        if (memcmp(&talk->contents[s->part][g], &none, sizeof none) != 0)
            assert_memory_equal(&talk->contents[s->part][g], &written->content, sizeof none); /* equal rows, equal name */
        talk->contents[s->part][g] = written->content;
    }
    qr_hash_t published = s->flag || s->reason ? none : talk->chains[s->part];
    chunk_expect(talk, "answered",
                 CHUNK_ASK(talk, checkpoint_writer, storage, chunk_find, &answer, .key = ++talk->key, .published = published), true);
}

static inline void chunk_load(chunk_talk_t *talk, const chunk_step_t *s, bool again)
{
    const chunk_world_t *w = talk->world;
    uint32_t start = s->part * talk->chunk, page = w->given->layout.page_tokens, from_row = start + s->from;
    if (!again) chunk_pages(talk, talk->blocks, ++talk->generation + 1);
    for (uint32_t g = 0; g < w->given->layout.group_count; g++) {
        qr_message_t answer;
        qr_page_upload_t ask = {.key = ++talk->key,
                                .content = talk->leases[s->slot].content[g],
                                .bytes = talk->leases[s->slot].bytes[g],
                                .whole = (uint8_t)s->flag,
                                .parent = talk->parents[s->part],
                                .chain = talk->chains[s->part],
                                .group = g,
                                .start = start,
                                .tokens = {talk->tokens + start, talk->chunk},
                                .from_row = from_row,
                                .first_block = start / page,
                                .pages = {talk->pages, talk->blocks},
                                .kept = talk->leases[s->slot].kept[g],
                                .keep = talk->leases[s->slot].keep[g]};
        w->fill(w->context, g, start, talk->chunk, start / page, talk->pages, 99);
        chunk_expect(talk, "answered",
                     w->ask(w->context, QR_ROLE_restore_streamer, QR_ROLE_transfer, QR_MESSAGE_page_upload, &ask, &answer), true);
        chunk_expect(talk, "key", answer.body.page_uploaded.key, talk->key);
        chunk_expect(talk, "upload reason", answer.body.page_uploaded.reason, s->reason);
        chunk_expect(talk, "damage", answer.body.page_uploaded.damage, s->damage);
        if (s->reason) continue;
        chunk_expect(talk, "rows before are untouched", w->holds(w->context, g, start, s->from, start / page, talk->pages, 99), true);
        chunk_expect(talk, "rows are right", w->holds(w->context, g, from_row, talk->chunk - s->from, start / page, talk->pages, 7), true);
    }
}

static inline void chunk_step_lease(chunk_talk_t *talk, const chunk_step_t *s)
{
    for (uint32_t g = 0; g < talk->world->given->layout.group_count; g++) {
        qr_message_t answer;
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, restore_streamer, storage, chunk_lease, &answer, .key = ++talk->key, .chain = talk->chains[s->part],
                               .group = g),
                     true);
        const qr_chunk_leased_t *leased = &answer.body.chunk_leased;
        chunk_expect(talk, "key", leased->key, talk->key);
        chunk_expect(talk, "lease reason", leased->reason, s->reason);
        if (s->reason) chunk_expect(talk, "lease", leased->lease, 0);
        if (s->reason) continue;
        assert_memory_equal(&leased->content, &talk->contents[s->part][g], sizeof leased->content);
        chunk_expect(talk, "trusted", leased->trusted, s->flag);
        chunk_expect(talk, "of memory", leased->kept != 0, s->memory == MEMORY_KEPT);
        chunk_expect(talk, "fills memory", leased->keep != 0, s->memory == MEMORY_FILL);
        talk->leases[s->slot].kept[g] = leased->kept;
        talk->leases[s->slot].keep[g] = leased->keep;
        chunk_expect(talk, "bytes", leased->bytes, talk->world->payload_chunk_bytes[g]);
        talk->leases[s->slot].lease[g] = leased->lease;
        talk->leases[s->slot].bytes[g] = leased->bytes;
        talk->leases[s->slot].content[g] = leased->content;
    }
}

static inline void chunk_step_holds(chunk_talk_t *talk, const chunk_step_t *s)
{
    const chunk_world_t *w = talk->world;
    uint8_t id[16] = {(uint8_t)s->slot};
    uint64_t bytes = 0;
    qr_message_t answer;
    uint32_t groups = w->given->layout.group_count;
    for (uint32_t g = 0; g < groups; g++) bytes += (uint64_t)s->depth * w->payload_chunk_bytes[g];
    if (s->verb == STEP_HOLD) {
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, facts, storage, chunk_hold, &answer, .key = ++talk->key, .id = {id, sizeof id},
                               .scope = talk->parents[0], .tokens = {talk->tokens, (uint64_t)s->depth * talk->chunk}),
                     true);
        chunk_expect(talk, "key", answer.body.chunk_held.key, talk->key);
        chunk_expect(talk, "hold reason", answer.body.chunk_held.reason, s->reason);
    } else if (s->verb == STEP_UNHOLD) {
        chunk_expect(talk, "answered", CHUNK_ASK(talk, facts, storage, chunk_unhold, &answer, .key = ++talk->key, .id = {id, sizeof id}),
                     true);
        chunk_expect(talk, "key", answer.body.chunk_unheld.key, talk->key);
    } else if (s->verb == STEP_VICTIMS) {
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, checkpoint_writer, storage, chunk_victims, &answer, .key = ++talk->key, .bytes = bytes), true);
        chunk_expect(talk, "victims", answer.body.chunk_victims_named.groups.count, (uint64_t)s->depth * groups);
    }
}

static inline void chunk_step_others(chunk_talk_t *talk, const chunk_step_t *s)
{
    const chunk_world_t *w = talk->world;
    qr_message_t answer;
    uint32_t groups = w->given->layout.group_count;
    chunk_step_holds(talk, s);
    if (s->verb == STEP_FIND) {
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, checkpoint_writer, storage, chunk_find, &answer, .key = ++talk->key,
                               .chains = {(const uint8_t *)talk->chains, sizeof talk->chains}),
                     true);
        chunk_expect(talk, "depth", answer.body.chunk_found.depth, s->depth);
    }
    if (s->verb == STEP_MEMORY) {
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, scheduler, storage, ram_find, &answer, .key = ++talk->key,
                               .chains = {(const uint8_t *)talk->chains, sizeof talk->chains}),
                     true);
        chunk_expect(talk, "key", answer.body.ram_found.key, talk->key);
        chunk_expect(talk, "depth", answer.body.ram_found.depth, s->depth);
    }
    for (uint32_t g = 0; g < groups && s->verb == STEP_FORGETS; g++) w->spoil_memory(w->context, talk->leases[s->slot].kept[g] - 1);
    for (uint32_t g = 0; g < groups && s->verb == STEP_RELEASE; g++) {
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, restore_streamer, storage, chunk_release, &answer, .lease = talk->leases[s->slot].lease[g],
                               .trust = (uint8_t)s->flag, .damage = s->damage, .kept = s->memory == MEMORY_KEPT),
                     true);
        chunk_expect(talk, "release reason", answer.body.chunk_released.reason, s->reason);
    }
    for (uint32_t g = 0; g < groups && s->verb == STEP_DROP; g++) {
        bool answered = CHUNK_ASK(talk, checkpoint_writer, storage, chunk_drop, &answer, .key = ++talk->key, .chain = talk->chains[s->part],
                                  .group = g);
        chunk_expect(talk, "answered", answered, !s->flag);
        if (answered) chunk_expect(talk, "drop reason", answer.body.chunk_dropped.reason, s->reason);
        if (answered && !s->reason) chunk_expect(talk, "dropped bytes", answer.body.chunk_dropped.bytes, w->payload_chunk_bytes[g]);
    }
    for (uint32_t g = 0; g < groups && s->verb == STEP_DROPPED; g++) {
        chunk_expect(talk, "answered", w->late(w->context, QR_ROLE_checkpoint_writer, QR_MESSAGE_chunk_dropped, &answer), true);
        chunk_expect(talk, "drop reason", answer.body.chunk_dropped.reason, s->reason);
    }
    for (uint32_t g = 0; g < groups && (s->verb == STEP_FLIP || s->verb == STEP_REMOVE); g++)
        w->spoil(w->context, talk->contents[s->part][g], s->verb == STEP_REMOVE);
    if (s->verb == STEP_FENCE) {
        uint32_t column[QR_GROUPS_MAX * 256];
        uint64_t pages[QR_GROUPS_MAX * 256];
        uint32_t count = 0;
        for (uint32_t g = 0; g < groups; g++)
            for (uint32_t i = 0; i < talk->blocks && count < QR_COUNT(column); i++) column[count] = g, pages[count++] = talk->pages[i];
        chunk_expect(talk, "answered",
                     CHUNK_ASK(talk, page_manager, transfer, fence, &answer, .fence_id = ++talk->key, .groups = {column, count},
                               .pages = {pages, count}),
                     true);
        chunk_expect(talk, "fence", answer.body.fenced.fence_id, talk->key);
    }
}

/* Holds a world to a list. Its pools have at least 2 x ((chunk + page - 2) / page + 1) pages of each group. */
static inline void chunk_conversation_list(const chunk_world_t *world, const chunk_step_t *steps, uint32_t count)
{
    chunk_talk_t *talk = calloc(1, sizeof *talk);
    const qr_layout_t *layout = &world->given->layout;
    qr_prng_t prng;
    talk->world = world;
    talk->chunk = layout->chunk_tokens;
    talk->blocks = (talk->chunk + layout->page_tokens - 2) / layout->page_tokens + 1; /* wherever a chunk begins in a page */
    talk->pages = calloc(talk->blocks, sizeof *talk->pages);
    talk->tokens = calloc((size_t)CONVERSATION_PARTS * talk->chunk, sizeof *talk->tokens);
    qr_prng_init(&prng, 11);
    for (uint32_t i = 0; i < CONVERSATION_PARTS * talk->chunk; i++) talk->tokens[i] = (uint32_t)qr_prng_below(&prng, 300);
    for (uint32_t p = 0; p < CONVERSATION_PARTS; p++) {
        if (p) talk->parents[p] = talk->chains[p - 1];
        if (!p) memset(talk->parents[p].bytes, 0x42, 32);
        qr_chain_node(talk->parents[p].bytes, talk->tokens + p * talk->chunk, talk->chunk, talk->chains[p].bytes);
    }
    for (talk->step = 0; talk->step < count; talk->step++) {
        const chunk_step_t *s = &steps[talk->step];
        if (s->verb == STEP_SAVE)
            chunk_save(talk, s);
        else if (s->verb == STEP_LOAD || s->verb == STEP_STALE)
            chunk_load(talk, s, s->verb == STEP_STALE);
        else if (s->verb == STEP_LEASE)
            chunk_step_lease(talk, s);
        else
            chunk_step_others(talk, s);
    }
    free(talk->pages), free(talk->tokens), free(talk);
}
static inline void chunk_conversation_run(const chunk_world_t *world)
{
    chunk_conversation_list(world, chunk_steps, QR_COUNT(chunk_steps));
}
static inline void hold_conversation_run(const chunk_world_t *world) { chunk_conversation_list(world, hold_steps, QR_COUNT(hold_steps)); }
static inline void ram_conversation_run(const chunk_world_t *world) { chunk_conversation_list(world, ram_steps, QR_COUNT(ram_steps)); }

#endif
