/* transfer.c - owns the moves between chunk files, staging slots and page pools of one device, and what is known of its pages' generations.
 *
 *   restore_streamer  -- page_upload -->    transfer  -- page_uploaded -->     after every byte is there and verified, or not
 *   checkpoint_writer -- page_download -->  transfer  -- page_downloaded -->
 *   scheduler -- page_spill, page_unspill, spill_drop -->  transfer  -- page_spilled, page_unspilled, spill_dropped -->
 *   page_manager      -- fence -->          transfer  -- fenced -->            what moved to or from these pages was answered before
 *
 * M1. page_uploaded says 0 only when the file's header, identity and tokens are those asked for, XXH3-128 over tokens and payload
 *     agrees with what was read, and with `whole`, or when it is not the file any more that was leased, SHA-256 of the file with its
 *     name. Until then the pages hold anything.
 * M2. No size of a file or message is used before it was checked; at most QR_DIGEST_BUFFERS pieces of a file are in memory, whatever the
 *     file says.
 * M3. A fence ends every move that names one of its pages with the same or an older generation; later moves that name such a generation
 *     are refused STALE. floors[group][page] is the least generation that may be moved.
 * M4. A handler moves nothing. `work` moves for at most QR_TRANSFER_SLICE_US, one piece more, and the pieces that wait for their digest
 *     (QR_DIGEST_BUFFERS at most); while batches are computed for at most transfer_duty percent of the time (duty.h), and behind whoever
 *     computes. SHA-256 runs on a thread of its own beside reading and copying (transfer_digest.h), but what is read while batches are
 *     computed is digested in the slice. What that thread worked is on the account in either case.
 * M5. At most QR_RESTORE_UPLOADS uploads and one download are open; more are refused BUSY. Uploads move in the order asked; a download
 *     gets every other slice.
 * M6. `damage` blames the file, never the asker: a file that is the one asked for (chain, group), of this model, and whose tokens,
 *     parent or start are other than the message says is IDENTITY without damage.
 * M7. Rows of preempted requests lie in a room of spill_bytes (transfer_spill.h) under their key, from the answer to page_spill until
 *     page_unspill or spill_drop, never longer; a block's XXH3-128 agrees before its rows count. At most max_lanes + 1 of these moves
 *     are open, and they take every other slice while others wait.
 * M8. An upload out of a RAM slot (kept) needs no file and is held against the same header, tokens and XXH3-128, over the bytes as they
 *     are copied. One that fills a RAM slot (keep) writes it only before its answer, and leaves a valid header only with the answer 0.
 *
 * Copies into pages and slots are non-temporal: they would push the weights out of the cache (limits 14, 16). Files are read by pread
 * through a buffer that stays in L2, through several where the digest lags behind. */
#include "actors/io/transfer.h"

#include "actors/io/duty.h"
#include "actors/io/transfer_digest.h"
#include "actors/io/transfer_spill.h"
#include "actors/note.h"
#include "base/error.h"
#include "base/mutant.h"
#include "kernels/stream.h"
#include "model/decoder.h"
#include "store/chunk_bytes.h"
#include "store/chunk_files.h"
#include "store/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Pages of a move, as asked; [start, end) are the rows that lie in them. */
typedef struct span {
    uint32_t group, start, end, first_block, page_count;
    uint64_t pages[QR_TRANSFER_PAGES_MAX];
} span_t;

typedef struct upload {
    uint64_t from, key, turn; /* from 0: free; turn: the order asked in */
    uint64_t asked_us, began_us, bytes;
    bool whole, opened;
    qr_hash_t content, stamp;
    qr_chunk_header_t want;
    uint32_t tokens[QR_CHUNK_TOKENS_MAX];
    span_t span; /* start: the first row that is copied */
    int file;
    qr_chunk_reader_t *reader;
    uint32_t kept, keep;   /* RAM slot + 1 it comes from, and that it fills; 0: none */
    qr_chunk_fast_t *fast; /* of what comes from RAM */
    uint64_t at;           /* bytes of payload done */
} upload_t;

typedef struct download {
    uint64_t from, key; /* from 0: free */
    uint64_t began_us;
    uint32_t slot;
    span_t span;
    uint64_t at; /* bytes of payload done */
} download_t;

/* Rows of all groups between pages and the room of spills, block after block, member after member. */
typedef struct spill_move {
    uint64_t from, key, turn; /* from 0: free; turn: the order asked in */
    uint64_t began_us, bytes;
    bool back;                         /* into pages */
    uint32_t start, end;               /* rows; start: a page start */
    uint32_t blocks;                   /* of each group: pages[group * blocks + i] is block start / page_tokens + i */
    uint32_t block, group, member, at; /* what is next; at: (group, member) pairs of this block that are done */
    uint32_t slot;                     /* of this block */
    qr_chunk_fast_t *fast;             /* of this block */
    uint64_t *pages;                   /* [pages_max] */
} spill_move_t;

typedef struct transfer {
    uint64_t address, turns;
    uint64_t (*clock_us)(void);                            /* of tests; NULL: the machine's */
    uint64_t waiting_us;                                   /* since when a slice waits for the duty; 0: none does */
    uint64_t slices, wait_us, read_us, verify_us, copy_us; /* of all uploads; wait: of every move */
    uint64_t uploads_done, uploads_failed, fenced, upload_bytes, upload_us, downloads_done, download_bytes, download_us;
    uint64_t spills_done, spills_refused, spilled_rows, unspilled_rows, unspills_failed, spill_us;
    uint32_t group_count, page_tokens, row_bytes, after_download, after_move, moves_max, move_pages_max;
    uint32_t members[QR_GROUPS_MAX], pages[QR_GROUPS_MAX];
    qr_digest_t *digest;             /* of the upload that moves; its buffers are read into */
    uint32_t *floors[QR_GROUPS_MAX]; /* [pages], behind this struct */
    upload_t uploads[QR_RESTORE_UPLOADS];
    download_t download;
    qr_spill_room_t room;
    spill_move_t *moves; /* [moves_max]; NULL where nothing is spilled */
    uint64_t *move_pages;
} transfer_t;

static uint64_t read_clock(const transfer_t *self, clockid_t id)
{
    struct timespec t;
    if (self->clock_us) return self->clock_us();
    (void)clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static uint64_t clock_us(const transfer_t *self) { return read_clock(self, CLOCK_MONOTONIC); }
/* What this thread has worked. */
static uint64_t worked_us(const transfer_t *self) { return read_clock(self, CLOCK_THREAD_CPUTIME_ID); }

/* ---- pages ---------------------------------------------------------------------------------------------------------------------- */

/* Generations are counters that may wrap. */
static bool generation_before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

/* 0, or why a page of this group cannot be moved. */
static uint32_t page_reason(const transfer_t *self, uint32_t group, uint64_t page)
{
    uint32_t index = qr_handle_index(page), generation = qr_handle_generation(page);
    if (index >= self->pages[group] || generation == 0) return QR_E_INVALID;
    return generation_before(generation, self->floors[group][index]) && !QR_MUTANT(630) ? QR_E_STALE : 0;
}

/* 0, or why these pages cannot hold rows [start, end). */
static uint32_t span_fill(const transfer_t *self, uint32_t group, uint32_t start, uint32_t end, uint32_t first_block, qr_u64s_t pages,
                          span_t *ret_span)
{
    uint64_t page = self->page_tokens, floor_row = first_block * page;
    if (group >= self->group_count || pages.count > QR_TRANSFER_PAGES_MAX) return QR_E_INVALID;
    if (start >= end || end > QR_CONTEXT_MAX || start < floor_row || end > floor_row + pages.count * page) return QR_E_INVALID;
    for (uint64_t i = 0; i < pages.count; i++) {
        uint32_t reason = page_reason(self, group, pages.data[i]);
        if (reason) return reason;
    }
    *ret_span = (span_t){.group = group, .start = start, .end = end, .first_block = first_block, .page_count = (uint32_t)pages.count};
    qr_copy(ret_span->pages, pages.data, pages.count * sizeof(uint64_t));
    return 0;
}

/* Where row `row` of a member lies, and how many rows follow it in its page. */
static uint8_t *row_at(const transfer_t *self, const qr_given_t *given, const span_t *span, uint32_t member, uint32_t row,
                       uint32_t *ret_rows)
{
    uint32_t block = row / self->page_tokens - span->first_block, in_page = row % self->page_tokens;
    uint64_t slot = (uint64_t)qr_handle_index(span->pages[block]) * self->page_tokens + in_page;
    *ret_rows = self->page_tokens - in_page;
    return qr_decoder_member_rows(given->decoder, span->group, member) + slot * self->row_bytes;
}

/* Puts rows of one member, from position `row` on, into pages; those before the span's start are left out. */
static void scatter(const transfer_t *self, const qr_given_t *given, const span_t *span, uint32_t member, uint32_t row, uint32_t rows,
                    const uint8_t *bytes)
{
    uint32_t skip = row < span->start ? qr_min_u32(span->start - row, rows) : 0;
    if (QR_MUTANT(631)) skip = 0;
    row += skip, rows -= skip, bytes += (uint64_t)skip * self->row_bytes;
    while (rows) {
        uint32_t fit;
        uint8_t *to = row_at(self, given, span, member, row, &fit);
        fit = qr_min_u32(fit, rows);
        qr_stream_copy(to, bytes, (size_t)fit * self->row_bytes);
        row += fit, rows -= fit, bytes += (uint64_t)fit * self->row_bytes;
    }
}

/* ---- uploads ------------------------------------------------------------------------------------------------------------------------ */

static void upload_close(transfer_t *self, upload_t *u)
{
    if (u->opened && u->whole) qr_digest_drop(self->digest);
    qr_chunk_reader_close(&u->reader);
    qr_chunk_fast_destroy(&u->fast);
    if (u->file >= 0) (void)close(u->file);
    u->from = 0, u->file = -1, u->opened = false;
}

static void upload_answer(transfer_t *self, upload_t *u, uint32_t reason, bool damage, qr_outbox_t *outbox)
{
    uint64_t now_us = clock_us(self), move_us = u->opened ? now_us - u->began_us : 0;
    qr_page_uploaded_t body = {.key = u->key, .reason = reason, .damage = damage, .bytes = reason ? 0 : u->at, .move_us = move_us};
    body.queue_us = (u->opened ? u->began_us : now_us) - u->asked_us;
    qr_send(outbox, u->from, page_uploaded, &body);
    self->upload_us += move_us;
    if (!reason)
        self->uploads_done++, self->upload_bytes += u->at;
    else if (reason == QR_E_FENCED)
        self->fenced++;
    else
        self->uploads_failed++;
    upload_close(self, u);
}

/* What the message asks a file to be. */
static bool want_fill(const transfer_t *self, const qr_given_t *given, const qr_page_upload_t *ask, qr_chunk_header_t *want)
{
    if (ask->group >= self->group_count || ask->tokens.count == 0 || ask->tokens.count > QR_CHUNK_TOKENS_MAX) return false;
    *want = (qr_chunk_header_t){.start = ask->start,
                                .count = (uint32_t)ask->tokens.count,
                                .members = self->members[ask->group],
                                .row_bytes = self->row_bytes,
                                .group = (uint16_t)ask->group,
                                .shards = 1};
    want->extent = given->layout.groups[ask->group].window ? QR_CHUNK_EXTENT_WINDOW : QR_CHUNK_EXTENT_TOKEN;
    memcpy(want->fingerprint, given->layout.fingerprint.bytes, 32);
    memcpy(want->parent, ask->parent.bytes, 32);
    memcpy(want->chain, ask->chain.bytes, 32);
    return qr_chunk_header_valid(want) && ask->from_row >= ask->start;
}

/* Whether the RAM slots of the message are there and hold such a payload. */
static bool ram_valid(const qr_given_t *given, const qr_chunk_header_t *want, const qr_page_upload_t *ask)
{
    const qr_staging_t *ram = given->ram;
    return ram && ask->kept <= ram->config.slots && ask->keep <= ram->config.slots && !(ask->kept && ask->keep) &&
           qr_chunk_payload_bytes(want) <= ram->slot_bytes;
}

static void on_page_upload(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_upload_t *ask = &message->body.page_upload;
    qr_chunk_header_t want = {0};
    upload_t *u = NULL;
    uint32_t reason = want_fill(self, given, ask, &want) ? 0 : QR_E_INVALID;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS && !u; i++)
        if (!self->uploads[i].from) u = &self->uploads[i];
    if (!reason && (ask->kept || ask->keep) && !ram_valid(given, &want, ask)) reason = QR_E_INVALID;
    if (!reason && !ask->kept && !given->store) reason = QR_E_NOT_FOUND;
    if (!reason && !u) reason = QR_E_BUSY;
    if (!reason) reason = span_fill(self, ask->group, ask->from_row, want.start + want.count, ask->first_block, ask->pages, &u->span);
    if (reason) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, reason, message->type, ask->key);
        qr_send(outbox, message->from, page_uploaded, (&(qr_page_uploaded_t){.key = ask->key, .reason = reason}));
        self->uploads_failed++;
        return;
    }
    u->from = message->from, u->key = ask->key, u->turn = ++self->turns, u->asked_us = clock_us(self);
    u->kept = ask->kept, u->keep = ask->keep;
    u->whole = ask->whole != 0 && !ask->kept, u->content = ask->content, u->stamp = ask->stamp, u->want = want, u->at = 0;
    qr_copy(u->tokens, ask->tokens.data, ask->tokens.count * sizeof(uint32_t));
}

/* What is wrong with a file, as messages say it. */
static uint32_t reason_of(qr_chunk_reason_t reason)
{
    switch (reason) {
    case QR_CHUNK_IO:
    case QR_CHUNK_CHANGED: return QR_E_IO;
    case QR_CHUNK_TRUNCATED: return QR_E_TRUNCATED;
    case QR_CHUNK_PAYLOAD:
    case QR_CHUNK_CONTENT: return QR_E_DIGEST;
    case QR_CHUNK_KIND:
    case QR_CHUNK_FINGERPRINT:
    case QR_CHUNK_SHAPE:
    case QR_CHUNK_RANGE:
    case QR_CHUNK_PARENT:
    case QR_CHUNK_CHAIN:
    case QR_CHUNK_TOKENS: return QR_E_IDENTITY;
    default: return QR_E_FORMAT;
    }
}

/* The first bytes of the file into its SHA-256. They are made anew from what was checked: one content has exactly one file (chunk.h CF1).
 */
static bool head_hash(transfer_t *self, upload_t *u)
{
    uint8_t header[QR_CHUNK_HEADER_BYTES];
    static const uint8_t zeros[QR_CHUNK_ALIGN];
    size_t tokens = 4ul * u->want.count, padding = (size_t)qr_chunk_payload_offset(&u->want) - QR_CHUNK_HEADER_BYTES - tokens;
    if (!qr_digest_begin(self->digest)) return false;
    qr_chunk_header_encode(qr_chunk_reader_header(u->reader), header);
    qr_digest_head(self->digest, header, sizeof header);
    qr_digest_head(self->digest, u->tokens, tokens);
    qr_digest_head(self->digest, zeros, padding);
    return true;
}

/* Whether the file that was opened is the one that was leased; where nothing is known of that one, what the asker said counts. */
static bool stamp_fits(const upload_t *u)
{
    static const qr_hash_t unknown;
    qr_hash_t now;
    qr_chunk_trust_stamp(qr_chunk_reader_trust(u->reader), now.bytes);
    return memcmp(&u->stamp, &unknown, sizeof unknown) == 0 || memcmp(&u->stamp, &now, sizeof now) == 0 || QR_MUTANT(721);
}

/* Holds what RAM says it keeps against what was asked for. */
static uint32_t ram_open(upload_t *u, const qr_given_t *given, bool *ret_damage)
{
    qr_chunk_reason_t why = qr_chunk_header_match(&given->ram->headers[u->kept - 1], u->tokens, &u->want, u->tokens);
    *ret_damage = why != QR_CHUNK_INTACT && !QR_MUTANT(769);
    if (*ret_damage) return reason_of(why);
    if (!(u->fast = qr_chunk_fast_new())) return QR_E_MEMORY;
    qr_chunk_fast_add(u->fast, u->tokens, 4ul * u->want.count);
    return 0;
}

/* Opens the file and holds it against what was asked for. 0, or the reason and whether the file is to blame. */
static uint32_t upload_open(transfer_t *self, upload_t *u, const qr_given_t *given, bool *ret_damage)
{
    char path[QR_CHUNK_PATH_BYTES];
    qr_chunk_name_t name = {0};
    qr_chunk_reason_t why = QR_CHUNK_INTACT;
    if (u->kept) return ram_open(u, given, ret_damage);
    memcpy(name.id, u->content.bytes, 32);
    qr_chunk_name_path(&name, path);
    u->file = openat(given->store->fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    *ret_damage = u->file < 0 && errno == ENOENT && !QR_MUTANT(493);
    if (u->file < 0) return errno == ENOENT ? QR_E_NOT_FOUND : QR_E_IO;
    (void)posix_fadvise(u->file, 0, 0, POSIX_FADV_SEQUENTIAL);
    int status = qr_chunk_reader_open_file(u->file, NULL, NULL, &u->reader, &why);
    if (status == -QR_E_MEMORY) return QR_E_MEMORY;
    *ret_damage = status != 0;
    if (status) return reason_of(why);
    const qr_chunk_header_t *header = qr_chunk_reader_header(u->reader);
    why = qr_chunk_header_match(header, qr_chunk_reader_tokens(u->reader), &u->want, u->tokens);
    if (QR_MUTANT(632) && (header->members == u->want.members && header->row_bytes == u->want.row_bytes && header->count == u->want.count))
        why = QR_CHUNK_INTACT;
    if (why != QR_CHUNK_INTACT) {
        bool asked = why == QR_CHUNK_RANGE || why == QR_CHUNK_PARENT || why == QR_CHUNK_TOKENS; /* what only the asker said */
        if (why == QR_CHUNK_FINGERPRINT && QR_MUTANT(488)) asked = true;
        *ret_damage = !asked || memcmp(header->chain, u->want.chain, 32) != 0 || QR_MUTANT(633);
        return reason_of(why);
    }
    if (!stamp_fits(u)) u->whole = true; /* rewritten since its lease: what was seen once is not this file */
    return u->whole && !head_hash(self, u) ? QR_E_MEMORY : 0;
}

/* Everything was read: does it agree? */
static uint32_t upload_end(transfer_t *self, upload_t *u, const qr_given_t *given)
{
    uint8_t id[32];
    if (u->kept) {
        qr_chunk_fast_end(u->fast, id);
        return memcmp(id, given->ram->headers[u->kept - 1].digest, 16) == 0 || QR_MUTANT(770) ? 0 : QR_E_DIGEST;
    }
    int status = qr_chunk_reader_end(u->reader);
    if (status && !QR_MUTANT(634)) return reason_of(qr_chunk_reader_reason(u->reader));
    if (u->whole && !qr_digest_end(self->digest, id)) return QR_E_MEMORY;
    if (u->whole && memcmp(id, u->content.bytes, 32) != 0 && !QR_MUTANT(635)) return QR_E_DIGEST;
    if (u->keep) given->ram->headers[u->keep - 1] = *qr_chunk_reader_header(u->reader);
    return 0;
}

/* Reads, digests and copies one piece. */
static uint32_t upload_piece(transfer_t *self, const qr_given_t *given, upload_t *u)
{
    uint64_t payload = qr_chunk_payload_bytes(&u->want), most = QR_TRANSFER_PIECE_BYTES / self->row_bytes * self->row_bytes;
    uint64_t bytes = qr_min_u64(most, payload - u->at), cursor = u->at, end = u->at + bytes;
    qr_chunk_extent_t extent;
    uint64_t began_us = clock_us(self), free_us = began_us, read_us, verified_us;
    uint8_t *buffer = u->kept ? NULL : qr_digest_buffer(self->digest);
    const uint8_t *from = u->kept ? qr_staging_slot(given->ram, u->kept - 1) + u->at : buffer;
    if (u->whole) free_us = clock_us(self);
    if (!u->kept && qr_chunk_reader_read(u->reader, buffer, (size_t)bytes)) return reason_of(qr_chunk_reader_reason(u->reader));
    read_us = clock_us(self);
    if (u->whole) qr_digest_add(self->digest, (size_t)bytes, !qr_duty_computing(given->activity, read_us) || QR_MUTANT(779));
    if (u->kept) qr_chunk_fast_add(u->fast, from, (size_t)bytes);
    if (u->keep && !QR_MUTANT(771)) qr_stream_copy(qr_staging_slot(given->ram, u->keep - 1) + u->at, from, (size_t)bytes);
    verified_us = clock_us(self);
    while (qr_chunk_extent_next(&u->want, &cursor, end, &extent))
        scatter(self, given, &u->span, extent.member, u->want.start + extent.token, extent.count, from + (extent.offset - u->at));
    u->at = end;
    self->read_us += read_us - free_us, self->verify_us += free_us - began_us + verified_us - read_us,
        self->copy_us += clock_us(self) - verified_us;
    return 0;
}

/* Moves until the time is over or the upload has ended. */
static void upload_advance(transfer_t *self, const qr_given_t *given, upload_t *u, uint64_t until_us, qr_outbox_t *outbox)
{
    uint32_t reason = 0;
    bool damage = false;
    if (!u->opened) {
        u->opened = true, u->began_us = clock_us(self);
        reason = upload_open(self, u, given, &damage);
        if (reason) {
            upload_answer(self, u, reason, damage, outbox);
            return;
        }
    }
    uint64_t payload = qr_chunk_payload_bytes(&u->want);
    do {
        reason = upload_piece(self, given, u);
    } while (!reason && u->at < payload && clock_us(self) < until_us);
    if (!reason && u->at < payload) return;
    if (!reason) reason = upload_end(self, u, given);
    upload_answer(self, u, reason, reason && reason != QR_E_MEMORY, outbox);
}

/* ---- downloads ---------------------------------------------------------------------------------------------------------------------- */

static void download_answer(transfer_t *self, uint32_t reason, qr_outbox_t *outbox)
{
    download_t *d = &self->download;
    uint64_t move_us = d->began_us ? clock_us(self) - d->began_us : 0;
    qr_page_downloaded_t body = {.key = d->key, .reason = reason, .bytes = reason ? 0 : d->at, .move_us = move_us};
    qr_send(outbox, d->from, page_downloaded, &body);
    self->download_us += move_us;
    if (!reason)
        self->downloads_done++, self->download_bytes += d->at;
    else if (reason == QR_E_FENCED)
        self->fenced++;
    d->from = 0;
}

static void on_page_download(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_download_t *ask = &message->body.page_download;
    download_t *d = &self->download;
    uint64_t end = (uint64_t)ask->start + ask->rows;
    uint32_t reason = 0;
    if (!given->staging || ask->slot >= given->staging->config.slots || ask->rows > given->layout.chunk_tokens || end > QR_CONTEXT_MAX)
        reason = QR_E_INVALID;
    if (!reason && d->from) reason = QR_E_BUSY;
    if (!reason) reason = span_fill(self, ask->group, ask->start, (uint32_t)end, ask->first_block, ask->pages, &d->span);
    if (!reason && (uint64_t)ask->rows * self->members[ask->group] * self->row_bytes > given->staging->slot_bytes) reason = QR_E_INVALID;
    if (reason) {
        qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, reason, message->type, ask->key);
        qr_send(outbox, message->from, page_downloaded, (&(qr_page_downloaded_t){.key = ask->key, .reason = reason}));
        return;
    }
    d->from = message->from, d->key = ask->key, d->slot = ask->slot, d->at = 0, d->began_us = 0;
}

/* Copies runs of rows, a page of a member at a time, until the time is over or all are there. */
static void download_advance(transfer_t *self, const qr_given_t *given, uint64_t until_us, qr_outbox_t *outbox)
{
    download_t *d = &self->download;
    uint32_t rows = d->span.end - d->span.start, runs = 0, fit;
    uint64_t member_bytes = (uint64_t)rows * self->row_bytes, payload = member_bytes * self->members[d->span.group];
    uint8_t *slot = qr_staging_slot(given->staging, d->slot);
    if (!d->began_us) d->began_us = clock_us(self);
    while (d->at < payload) {
        uint32_t member = (uint32_t)(d->at / member_bytes), row = d->span.start + (uint32_t)(d->at % member_bytes / self->row_bytes);
        const uint8_t *from = row_at(self, given, &d->span, member, row, &fit);
        fit = qr_min_u32(fit, d->span.end - row);
        if (QR_MUTANT(636) && fit > 1) from += self->row_bytes;
        qr_stream_copy(slot + d->at, from, (size_t)fit * self->row_bytes);
        d->at += (uint64_t)fit * self->row_bytes;
        if (++runs % 8 == 0 && d->at < payload && clock_us(self) >= until_us) return;
    }
    download_answer(self, 0, outbox);
}

/* ---- rows of preempted requests (M7) ------------------------------------------------------------------------------------------------ */

static bool moves_key(const transfer_t *self, uint64_t key)
{
    for (uint32_t i = 0; i < self->moves_max; i++)
        if (self->moves[i].from && self->moves[i].key == key) return true;
    return false;
}

static void move_answer(transfer_t *self, spill_move_t *m, uint32_t reason, qr_outbox_t *outbox)
{
    uint64_t move_us = m->began_us ? clock_us(self) - m->began_us : 0;
    qr_chunk_fast_destroy(&m->fast);
    self->spill_us += move_us;
    if (reason == QR_E_FENCED) self->fenced++;
    if (m->back) {
        /* Blocks before the one that did not agree are verified; of a move that somebody ended nothing counts. */
        uint32_t done = reason == QR_E_DIGEST || reason == QR_E_MEMORY ? m->block * self->page_tokens : m->start;
        uint32_t boundary = reason ? done : m->end;
        self->unspilled_rows += boundary - m->start;
        self->unspills_failed += reason != 0;
        qr_send(outbox, m->from, page_unspilled,
                (&(qr_page_unspilled_t){.key = m->key, .boundary = boundary, .reason = reason, .bytes = m->bytes, .move_us = move_us}));
    } else {
        self->spills_done += !reason, self->spills_refused += reason != 0, self->spilled_rows += reason ? 0 : m->end;
        qr_send(outbox, m->from, page_spilled,
                (&(qr_page_spilled_t){.key = m->key, .reason = reason, .bytes = reason ? 0 : m->bytes, .move_us = move_us}));
    }
    if (reason || m->back) (void)qr_spill_free(&self->room, m->key);
    m->from = 0;
}

/* 0 and a move of rows [start, end), or why not. */
static uint32_t move_open(transfer_t *self, uint64_t from, uint64_t key, uint32_t start, uint32_t end, qr_u64s_t pages,
                          spill_move_t **ret_move)
{
    spill_move_t *m = NULL;
    if (key == 0 || start >= end || end > QR_CONTEXT_MAX || start % self->page_tokens) return QR_E_INVALID;
    uint64_t blocks = qr_div_up(end, self->page_tokens) - start / self->page_tokens;
    if (pages.count != blocks * self->group_count) return QR_E_INVALID;
    for (uint64_t i = 0; i < pages.count; i++) {
        uint32_t reason = page_reason(self, (uint32_t)(i / blocks), pages.data[i]);
        if (reason) return reason;
    }
    if (moves_key(self, key)) return QR_E_IN_USE;
    for (uint32_t i = 0; i < self->moves_max && !m; i++)
        if (!self->moves[i].from) m = &self->moves[i];
    if (!m) return self->moves_max ? QR_E_BUSY : QR_E_SHORTFALL;
    if (pages.count > self->move_pages_max) return QR_E_INVALID;
    uint64_t *own = m->pages;
    *m = (spill_move_t){
        .from = from, .key = key, .turn = ++self->turns, .start = start, .end = end, .blocks = (uint32_t)blocks, .pages = own};
    m->block = start / self->page_tokens;
    qr_copy(own, pages.data, pages.count * sizeof(uint64_t));
    *ret_move = m;
    return 0;
}

static void on_page_spill(transfer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_spill_t *ask = &message->body.page_spill;
    spill_move_t *m;
    uint32_t reason = move_open(self, message->from, ask->key, 0, ask->rows, ask->pages, &m);
    if (!reason && (reason = qr_spill_take(&self->room, ask->key, ask->rows)) != 0) m->from = 0;
    if (!reason) {
        m->slot = qr_spill_find(&self->room, ask->key)->first;
        return;
    }
    if (reason != QR_E_SHORTFALL) qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, reason, message->type, ask->key);
    qr_send(outbox, message->from, page_spilled, (&(qr_page_spilled_t){.key = ask->key, .reason = reason}));
    self->spills_refused++;
}

static void on_page_unspill(transfer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_page_unspill_t *ask = &message->body.page_unspill;
    const qr_spill_t *spill = qr_spill_find(&self->room, ask->key);
    spill_move_t *m;
    uint32_t reason = !spill ? QR_E_NOT_FOUND : ask->end_rows != spill->rows ? QR_E_INVALID : 0;
    if (!reason) reason = move_open(self, message->from, ask->key, ask->start_rows, ask->end_rows, ask->pages, &m);
    if (!reason) {
        m->back = true;
        m->slot = spill->first;
        for (uint32_t i = 0; i < m->block && !QR_MUTANT(708); i++) m->slot = self->room.table[m->slot].next;
        return;
    }
    qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_refused, 0, reason, message->type, ask->key);
    qr_send(outbox, message->from, page_unspilled,
            (&(qr_page_unspilled_t){.key = ask->key, .boundary = ask->start_rows, .reason = reason}));
    self->unspills_failed++;
    if (reason != QR_E_IN_USE) (void)qr_spill_free(&self->room, ask->key);
}

static void on_spill_drop(transfer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    uint64_t key = message->body.spill_drop.key;
    uint32_t reason = moves_key(self, key) ? QR_E_IN_USE : QR_MUTANT(709) || qr_spill_free(&self->room, key) ? 0 : QR_E_NOT_FOUND;
    qr_send(outbox, message->from, spill_dropped, (&(qr_spill_dropped_t){.key = key, .reason = reason}));
}

/* All of a block is digested: it agrees, or is noted. */
static uint32_t move_block_end(transfer_t *self, spill_move_t *m)
{
    qr_spill_slot_t *slot = &self->room.table[m->slot];
    uint8_t digest[16];
    qr_chunk_fast_end(m->fast, digest);
    qr_chunk_fast_destroy(&m->fast);
    if (!m->back)
        memcpy(slot->digest, digest, sizeof digest);
    else if (memcmp(slot->digest, digest, sizeof digest) != 0 && !QR_MUTANT(707))
        return QR_E_DIGEST;
    m->slot = slot->next;
    m->block++, m->group = m->member = m->at = 0;
    return 0;
}

/* Digests and copies the rows of one member of one block. */
static uint32_t move_member(transfer_t *self, const qr_given_t *given, spill_move_t *m)
{
    uint64_t page_bytes = (uint64_t)self->page_tokens * self->row_bytes, place = m->group * (uint64_t)m->blocks + m->block;
    uint32_t first = m->start / self->page_tokens, rows = qr_min_u32(m->end - m->block * self->page_tokens, self->page_tokens);
    uint8_t *page = qr_decoder_member_rows(given->decoder, m->group, m->member) + qr_handle_index(m->pages[place - first]) * page_bytes;
    uint8_t *kept = qr_spill_slot_memory(&self->room, m->slot) + m->at * page_bytes;
    size_t bytes = (size_t)rows * self->row_bytes;
    if (!m->fast && !(m->fast = qr_chunk_fast_new())) return QR_E_MEMORY;
    qr_chunk_fast_add(m->fast, m->back ? kept : page, bytes);
    qr_stream_copy(m->back ? page : kept, m->back ? kept : page, bytes);
    m->bytes += bytes, m->at++;
    if (++m->member < self->members[m->group]) return 0;
    m->member = 0;
    return ++m->group < self->group_count ? 0 : move_block_end(self, m);
}

static spill_move_t *move_next(const transfer_t *self)
{
    spill_move_t *next = NULL;
    for (uint32_t i = 0; i < self->moves_max; i++) {
        spill_move_t *m = &self->moves[i];
        if (m->from && (!next || m->turn < next->turn)) next = m;
    }
    return next;
}

/* Moves until the time is over or all rows are there. */
static void move_advance(transfer_t *self, const qr_given_t *given, spill_move_t *m, uint64_t until_us, qr_outbox_t *outbox)
{
    uint32_t reason = 0, members = 0;
    if (!m->began_us) m->began_us = clock_us(self);
    while (!reason && (uint64_t)m->block * self->page_tokens < m->end) {
        reason = move_member(self, given, m);
        if (!reason && ++members % 8 == 0 && clock_us(self) >= until_us) return;
    }
    move_answer(self, m, reason, outbox);
}

/* ---- fences (M3) -----------------------------------------------------------------------------------------------------------------------
 */

/* Whether a move names a page of the fence that the fence means. */
static bool fence_hits(const span_t *span, const qr_fence_t *fence)
{
    for (uint64_t i = 0; i < fence->pages.count; i++) {
        uint64_t page = fence->pages.data[i];
        for (uint32_t k = 0; k < span->page_count && fence->groups.data[i] == span->group; k++)
            if (qr_handle_index(span->pages[k]) == qr_handle_index(page) &&
                !generation_before(qr_handle_generation(page), qr_handle_generation(span->pages[k])))
                return true;
    }
    return false;
}

static bool fence_hits_move(const spill_move_t *m, uint32_t group_count, const qr_fence_t *fence)
{
    for (uint64_t i = 0; i < fence->pages.count; i++)
        for (uint32_t k = 0; k < m->blocks && fence->groups.data[i] < group_count; k++) {
            uint64_t fenced = fence->pages.data[i], page = m->pages[(uint64_t)fence->groups.data[i] * m->blocks + k];
            if (qr_handle_index(page) == qr_handle_index(fenced) &&
                !generation_before(qr_handle_generation(fenced), qr_handle_generation(page)))
                return true;
        }
    return false;
}

static void on_fence(transfer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_fence_t *fence = &message->body.fence;
    if (fence->groups.count != fence->pages.count) {
        qr_outbox_note(outbox, QR_LEVEL_ERROR, QR_NOTE_protocol, 0, message->type, fence->groups.count, fence->pages.count);
        return; /* unanswered: nothing may be freed by it */
    }
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) {
        upload_t *u = &self->uploads[i];
        if (u->from && fence_hits(&u->span, fence) && !(QR_MUTANT(637) && u->opened) && !(QR_MUTANT(638) && !u->opened))
            upload_answer(self, u, QR_E_FENCED, false, outbox);
    }
    if (self->download.from && fence_hits(&self->download.span, fence) && !QR_MUTANT(639)) download_answer(self, QR_E_FENCED, outbox);
    for (uint32_t i = 0; i < self->moves_max; i++)
        if (self->moves[i].from && fence_hits_move(&self->moves[i], self->group_count, fence) && !QR_MUTANT(710))
            move_answer(self, &self->moves[i], QR_E_FENCED, outbox);
    for (uint64_t i = 0; i < fence->pages.count; i++) {
        uint32_t group = fence->groups.data[i], index = qr_handle_index(fence->pages.data[i]);
        uint32_t next = qr_handle_generation(fence->pages.data[i]) + !QR_MUTANT(492);
        if (group >= self->group_count || index >= self->pages[group]) continue;
        uint32_t *floor = &self->floors[group][index];
        if (generation_before(*floor, next)) *floor = next;
    }
    qr_send(outbox, message->from, fenced, (&(qr_fenced_t){.fence_id = fence->fence_id}));
}

/* ---- work and duty (M4, M5)
 * -------------------------------------------------------------------------------------------------------------- */

static upload_t *upload_next(transfer_t *self)
{
    upload_t *next = NULL;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) {
        upload_t *u = &self->uploads[i];
        if (u->from && (!next || u->turn < next->turn)) next = u;
    }
    return next;
}

static uint32_t open_count(const transfer_t *self)
{
    uint32_t count = self->download.from != 0;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) count += self->uploads[i].from != 0;
    for (uint32_t i = 0; i < self->moves_max; i++) count += self->moves[i].from != 0;
    return count;
}

/* One slice of what is next. */
static void slice(transfer_t *self, const qr_given_t *given, uint64_t until_us, qr_outbox_t *outbox)
{
    upload_t *u = upload_next(self);
    spill_move_t *m = move_next(self);
    if (m && (!self->after_move || (!u && !self->download.from))) {
        move_advance(self, given, m, until_us, outbox);
        self->after_move = 1;
    } else if (self->download.from && (!u || !self->after_download)) {
        download_advance(self, given, until_us, outbox);
        self->after_download = 1, self->after_move = 0;
    } else if (u) {
        upload_advance(self, given, u, until_us, outbox);
        self->after_download = self->after_move = 0;
    }
}

static uint64_t transfer_work(void *block, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    transfer_t *self = block;
    uint64_t began_us = clock_us(self), began_work_us = worked_us(self), ended_us, resume_us;
    (void)now_us;
    if (!open_count(self)) return self->waiting_us = 0, QR_NEVER_US;
    resume_us = qr_duty_resume_us(given->activity, began_us);
    if (began_us < resume_us) {
        if (!self->waiting_us) self->waiting_us = began_us;
        return resume_us;
    }
    if (self->waiting_us && !QR_MUTANT(787)) self->wait_us += began_us - self->waiting_us;
    self->slices++, self->waiting_us = 0;
    slice(self, given, QR_MUTANT(783) ? QR_NEVER_US : began_us + QR_TRANSFER_SLICE_US * 9 / 10, outbox);
    ended_us = clock_us(self);
    qr_duty_worked(given->activity, given->params.transfer_duty, ended_us,
                   worked_us(self) - began_work_us + (QR_MUTANT(834) ? 0 : qr_digest_worked_us(self->digest)));
    if (!open_count(self)) return QR_NEVER_US;
    resume_us = qr_duty_resume_us(given->activity, ended_us);
    if (resume_us <= ended_us) return 0;
    self->waiting_us = ended_us;
    return resume_us;
}

/* ---- the actor
 * ------------------------------------------------------------------------------------------------------------------------------ */

static uint64_t floors_bytes(const qr_given_t *given)
{
    uint64_t pages = 0;
    for (uint32_t g = 0; g < given->layout.group_count; g++) pages += given->layout.groups[g].pages;
    return pages * sizeof(uint32_t);
}

static uint64_t transfer_bytes(const qr_given_t *given) { return qr_round_up(sizeof(transfer_t), 64) + floors_bytes(given); }

static void transfer_init(void *block, const qr_given_t *given, uint64_t address)
{
    transfer_t *self = block;
    uint32_t *floors = (uint32_t *)(void *)((uint8_t *)block + qr_round_up(sizeof(transfer_t), 64));
    self->address = address;
    self->group_count = given->layout.group_count;
    self->page_tokens = given->layout.page_tokens;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) self->uploads[i].file = -1;
    for (uint32_t g = 0; g < self->group_count; g++) {
        self->pages[g] = given->layout.groups[g].pages;
        self->floors[g] = floors;
        floors += self->pages[g];
        for (uint32_t p = 0; p < self->pages[g]; p++) self->floors[g][p] = 1;
    }
}

static void transfer_done(void *block)
{
    transfer_t *self = block;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) upload_close(self, &self->uploads[i]);
    qr_digest_destroy(&self->digest);
    for (uint32_t i = 0; i < self->moves_max; i++) qr_chunk_fast_destroy(&self->moves[i].fast);
    qr_spill_room_close(&self->room);
    free(self->moves), free(self->move_pages);
    self->moves = NULL, self->move_pages = NULL;
    self->moves_max = 0;
}

/* Room for rows of preempted requests, where requests are preempted. 0 or -QR_E_*. */
static int spill_open(transfer_t *self, const qr_given_t *given)
{
    const qr_params_t *p = &given->params;
    uint64_t members = 0,
             blocks = qr_div_up(given->layout.context_tokens ? given->layout.context_tokens : QR_CONTEXT_MAX, self->page_tokens);
    if (!p->over_commit || !p->spill_bytes || self->moves) return 0;
    for (uint32_t g = 0; g < self->group_count; g++) members += self->members[g];
    int status = qr_spill_room_open(&self->room, p->spill_bytes, members * self->page_tokens * self->row_bytes, self->page_tokens,
                                    (uint32_t)p->max_requests);
    if (status) return status;
    self->moves_max = (uint32_t)p->max_lanes + 1;
    self->move_pages_max = (uint32_t)blocks * self->group_count;
    self->moves = calloc(self->moves_max, sizeof *self->moves);
    self->move_pages = calloc((size_t)self->moves_max * self->move_pages_max, sizeof(uint64_t));
    if (!self->moves || !self->move_pages) return -QR_E_MEMORY; /* done frees what there is */
    for (uint32_t i = 0; i < self->moves_max; i++) self->moves[i].pages = self->move_pages + (size_t)i * self->move_pages_max;
    return 0;
}

static void on_start(transfer_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    qr_ready_t body = {0};
    const char *why = "";
    if (!given->decoder || (!given->staging && !given->params.spill_bytes))
        body.reason = QR_E_INVALID, why = "transfer needs a decoder, and staging slots or spill_bytes";
    else if (!qr_decoder_member_rows(given->decoder, 0, 0))
        body.reason = QR_E_UNSUPPORTED, why = "the pages of this device are not in the host's memory; restore needs --device cpu";
    else if (!self->digest && !(self->digest = qr_digest_new(QR_TRANSFER_PIECE_BYTES)))
        body.reason = QR_E_MEMORY, why = qr_error_sentence(QR_E_MEMORY);
    for (uint32_t g = 0; !body.reason && g < self->group_count; g++) self->members[g] = qr_decoder_member_count(given->decoder, g);
    if (!body.reason) self->row_bytes = qr_decoder_row_bytes(given->decoder);
    if (!body.reason && self->row_bytes > QR_CHUNK_ROW_BYTES_MAX)
        body.reason = QR_E_UNSUPPORTED, why = "a row of this model is longer than a chunk file may hold";
    if (!body.reason && spill_open(self, given))
        body.reason = QR_E_MEMORY, why = "not enough memory for rows of preempted requests; lower --spill-bytes";
    body.text = (qr_bytes_t){(const uint8_t *)why, strlen(why)};
    qr_send(outbox, message->from, ready, &body);
}

static void on_stop(transfer_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++)
        if (self->uploads[i].from) upload_answer(self, &self->uploads[i], QR_E_CANCELLED, false, outbox);
    if (self->download.from) download_answer(self, QR_E_CANCELLED, outbox);
    for (uint32_t i = 0; i < self->moves_max; i++)
        if (self->moves[i].from) move_answer(self, &self->moves[i], QR_E_CANCELLED, outbox);
    qr_send(outbox, message->from, stopped, (&(qr_stopped_t){.reason = 0}));
}

static void on_metrics_read(const transfer_t *self, uint64_t from, qr_outbox_t *outbox)
{
    enum {
#define METRIC(name, number, kind, help) ID_##name = number,
#include "messages/metric.def"
    };
    const uint64_t pairs[][2] = {
        {ID_uploads_total, self->uploads_done},
        {ID_uploads_failed_total, self->uploads_failed},
        {ID_uploads_fenced_total, self->fenced},
        {ID_upload_bytes_total, self->upload_bytes},
        {ID_upload_us_total, self->upload_us},
        {ID_downloads_total, self->downloads_done},
        {ID_download_bytes_total, self->download_bytes},
        {ID_download_us_total, self->download_us},
        {ID_transfers_open, open_count(self)},
        {ID_transfer_slices_total, self->slices},
        {ID_transfer_wait_us_total, self->wait_us},
        {ID_upload_read_us_total, self->read_us},
        {ID_upload_verify_us_total, self->verify_us},
        {ID_upload_copy_us_total, self->copy_us},
        {ID_spills_total, self->spills_done},
        {ID_spills_refused_total, self->spills_refused},
        {ID_spilled_rows_total, self->spilled_rows},
        {ID_unspilled_rows_total, self->unspilled_rows},
        {ID_unspills_failed_total, self->unspills_failed},
        {ID_spill_bytes, self->room.used * self->room.slot_bytes},
        {ID_spill_bytes_bound, self->room.slots * self->room.slot_bytes},
        {ID_spill_us_total, self->spill_us},
    };
    uint32_t ids[QR_COUNT(pairs)];
    uint64_t values[QR_COUNT(pairs)];
    for (size_t i = 0; i < QR_COUNT(pairs); i++) ids[i] = (uint32_t)pairs[i][0], values[i] = pairs[i][1];
    qr_send(outbox, from, metrics, (&(qr_metrics_t){.ids = {ids, QR_COUNT(ids)}, .values = {values, QR_COUNT(values)}}));
}

static void transfer_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    transfer_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: on_start(self, given, message, outbox); break;
    case QR_MESSAGE_page_upload: on_page_upload(self, given, message, outbox); break;
    case QR_MESSAGE_page_download: on_page_download(self, given, message, outbox); break;
    case QR_MESSAGE_page_spill: on_page_spill(self, message, outbox); break;
    case QR_MESSAGE_page_unspill: on_page_unspill(self, message, outbox); break;
    case QR_MESSAGE_spill_drop: on_spill_drop(self, message, outbox); break;
    case QR_MESSAGE_fence: on_fence(self, message, outbox); break;
    case QR_MESSAGE_metrics_read: on_metrics_read(self, message->from, outbox); break;
    case QR_MESSAGE_drain: qr_send(outbox, message->from, drained, (&(qr_drained_t){.open_count = open_count(self)})); break;
    case QR_MESSAGE_stop: on_stop(self, message, outbox); break;
    case QR_MESSAGE_alarm:
    case QR_MESSAGE_link_up:
    case QR_MESSAGE_link_down: break;
    default: qr_outbox_note(outbox, QR_LEVEL_WARN, QR_NOTE_unexpected, 0, message->type, message->from, 0);
    }
}

static void transfer_check(const void *block, const qr_given_t *given)
{
    const transfer_t *self = block;
    uint32_t opened = 0;
    for (uint32_t i = 0; i < QR_RESTORE_UPLOADS; i++) {
        const upload_t *u = &self->uploads[i];
        qr_assert(u->from || (!u->reader && !u->fast && u->file < 0));
        opened += u->opened;
        for (uint32_t k = 0; u->from && k < u->span.page_count; k++) {
            uint32_t index = qr_handle_index(u->span.pages[k]);
            qr_assert(!generation_before(qr_handle_generation(u->span.pages[k]), self->floors[u->span.group][index])); /* M3 */
        }
    }
    qr_assert(opened <= 1); /* they move in turn, and there is one digest */
    for (uint32_t i = 0; i < self->moves_max; i++) {
        const spill_move_t *m = &self->moves[i];
        qr_assert(m->from ? qr_spill_find(&self->room, m->key) != NULL : m->fast == NULL); /* M7 */
        for (uint32_t k = 0; m->from && k < m->blocks * self->group_count; k++)
            qr_assert(page_reason(self, k / m->blocks, m->pages[k]) == 0); /* M3 */
    }
    qr_spill_room_check(&self->room);
    (void)given;
}

static void transfer_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const transfer_t *self = block;
    (void)given;
    qr_text_put(text, "transfer: open ");
    qr_text_put_u64(text, open_count(self));
    qr_text_put(text, ", uploads ");
    qr_text_put_u64(text, self->uploads_done);
    qr_text_put(text, ", failed ");
    qr_text_put_u64(text, self->uploads_failed);
    qr_text_put(text, ", downloads ");
    qr_text_put_u64(text, self->downloads_done);
    qr_text_put(text, ", fenced ");
    qr_text_put_u64(text, self->fenced);
    qr_text_put(text, ", pages of spilled rows ");
    qr_text_put_u64(text, self->room.used);
    qr_text_put(text, "\n");
}

uint8_t *qr_transfer_spilled(const void *transfer, uint64_t key, uint32_t block)
{
    const transfer_t *self = transfer;
    const qr_spill_t *spill = qr_spill_find(&self->room, key);
    if (!spill) return NULL;
    uint32_t slot = spill->first;
    for (; block && slot != QR_SPILL_NONE; block--) slot = self->room.table[slot].next;
    return slot == QR_SPILL_NONE ? NULL : qr_spill_slot_memory(&self->room, slot);
}

uint64_t qr_transfer_offered(const void *transfer) { return qr_digest_offered(((const transfer_t *)transfer)->digest); }

void qr_transfer_clock(void *transfer, uint64_t (*clock)(void)) { ((transfer_t *)transfer)->clock_us = clock; }

const qr_actor_class_t qr_transfer_class = {
    .name = "transfer",
    .role = QR_ROLE_transfer,
    .max_out = QR_RESTORE_UPLOADS + QR_LANES_MAX + 4,
    .owns_world = true,
    .behind = true,
    .bytes = transfer_bytes,
    .init = transfer_init,
    .handle = transfer_handle,
    .check = transfer_check,
    .print = transfer_print,
    .work = transfer_work,
    .done = transfer_done,
};
