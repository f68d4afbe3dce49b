/* detokenize.c - see detokenize.h. Bytes go through two small machines: one assembles characters, the other looks for stop strings
 * (one Knuth-Morris-Pratt matcher per stop string, so that hostile stop strings cost no more than harmless ones). */
#include "actors/detokenize.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/utf8.h"

static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd}; /* U+FFFD */

/* ---- characters --------------------------------------------------------------------------------------------------- */

/* ---- stop strings -------------------------------------------------------------------------------------------------- */

static void find_borders(const uint8_t *stop, uint32_t bytes, uint8_t *borders)
{
    borders[0] = 0;
    for (uint32_t i = 1, border = 0; i < bytes; i++) {
        while (border && stop[i] != stop[border]) border = borders[border - 1];
        if (stop[i] == stop[border]) border++;
        borders[i] = (uint8_t)border;
    }
}

int qr_detokenize_init(qr_detokenize_t *state, qr_bytes_t stop, qr_u32s_t stop_lengths)
{
    memset(state, 0, sizeof *state);
    if (stop_lengths.count > QR_STOPS_MAX) return -QR_E_LIMIT;
    uint64_t at = 0;
    for (uint32_t i = 0; i < stop_lengths.count; i++) {
        uint32_t bytes = stop_lengths.data[i];
        if (bytes > QR_STOP_BYTES_MAX) return -QR_E_LIMIT;
        if (bytes == 0 || bytes > stop.count - at || !qr_utf8_valid(stop.data + at, bytes)) return -QR_E_INVALID;
        state->stop_offsets[i] = (uint32_t)at;
        memcpy(state->stops + at, stop.data + at, bytes);
        find_borders(state->stops + at, bytes, state->borders + at);
        at += bytes;
    }
    if (at != stop.count) return -QR_E_INVALID;
    state->stop_offsets[stop_lengths.count] = (uint32_t)at;
    state->stop_count = (uint32_t)stop_lengths.count;
    return 0;
}

/* Moves every matcher over one byte. Returns the length of the longest stop string that it completes, else 0. */
static uint32_t match_byte(qr_detokenize_t *state, uint8_t byte)
{
    uint32_t completed = 0;
    for (uint32_t i = 0; i < state->stop_count; i++) {
        const uint8_t *stop = state->stops + state->stop_offsets[i], *borders = state->borders + state->stop_offsets[i];
        uint32_t bytes = state->stop_offsets[i + 1] - state->stop_offsets[i], matched = state->matched[i];
        while (matched && stop[matched] != byte) matched = QR_MUTANT(202) ? 0 : borders[matched - 1];
        if (stop[matched] == byte) matched++;
        if (matched == bytes) {
            completed = qr_max_u32(completed, bytes);
            matched = borders[bytes - 1];
        }
        state->matched[i] = matched;
    }
    return completed;
}

/* Gives out all but the last `keep` bytes of what is held. */
static uint64_t give_out(qr_detokenize_t *state, uint32_t keep, uint8_t *out)
{
    uint32_t count = state->held_count - keep;
    memcpy(out, state->held, count);
    memmove(state->held, state->held + count, keep);
    state->held_count = keep;
    return count;
}

/* One whole character of text. Returns the bytes given out. */
static uint64_t put_character(qr_detokenize_t *state, const uint8_t *bytes, uint32_t count, uint8_t *out)
{
    if (state->stopped) return 0;
    if (state->stop_count == 0) {
        memcpy(out, bytes, count);
        return count;
    }
    qr_assert(state->held_count + count <= QR_DETOKENIZE_HELD_MAX);
    uint32_t completed = 0;
    for (uint32_t k = 0; k < count; k++) {
        state->held[state->held_count++] = bytes[k];
        completed = qr_max_u32(completed, match_byte(state, bytes[k]));
    }
    if (completed) {
        uint64_t given = give_out(state, QR_MUTANT(203) ? 0 : completed, out);
        state->stopped = 1;
        state->held_count = 0;
        return given;
    }
    uint32_t keep = 0;
    for (uint32_t i = 0; i < state->stop_count; i++) keep = qr_max_u32(keep, state->matched[i]);
    return give_out(state, QR_MUTANT(201) ? 0 : keep, out);
}

/* ---- tokens --------------------------------------------------------------------------------------------------------- */

/* One byte of a token. Returns the bytes given out. */
static uint64_t put_byte(qr_detokenize_t *state, uint8_t byte, uint8_t *out)
{
    uint64_t given = 0;
    if (state->pending_count) {
        if (qr_utf8_follows(state->pending[0], state->pending_count, byte)) {
            state->pending[state->pending_count++] = byte;
            if (state->pending_count < qr_utf8_bytes(state->pending[0])) return 0;
            given = put_character(state, state->pending, state->pending_count, out);
            state->pending_count = 0;
            return given;
        }
        state->pending_count = 0;
        given = put_character(state, replacement, 3, out);
    }
    uint32_t need = qr_utf8_bytes(byte);
    if (need == 0) return given + put_character(state, replacement, 3, out + given);
    if (need == 1) return given + put_character(state, &byte, 1, out + given);
    state->pending[0] = byte;
    state->pending_count = 1;
    return given;
}

uint32_t qr_detokenize_bytes(const qr_vocabulary_t *vocabulary, uint32_t token)
{
    if (token >= vocabulary->count || (vocabulary->flags[token] & QR_TOKEN_SPECIAL && !QR_MUTANT(417))) return 0;
    return vocabulary->offsets[token + 1] - vocabulary->offsets[token];
}

/* What is unfinished becomes U+FFFD. */
static uint64_t end_character(qr_detokenize_t *state, uint8_t *out)
{
    if (state->pending_count == 0) return 0;
    state->pending_count = 0;
    return put_character(state, replacement, 3, out);
}

uint64_t qr_detokenize_token(qr_detokenize_t *state, const qr_vocabulary_t *vocabulary, uint32_t token, uint8_t *out, uint64_t capacity)
{
    uint32_t bytes = qr_detokenize_bytes(vocabulary, token);
    qr_assert(capacity >= QR_DETOKENIZE_ROOM(bytes));
    uint64_t given = 0;
    for (uint32_t i = 0; i < bytes && !state->stopped; i++)
        given += put_byte(state, vocabulary->bytes[vocabulary->offsets[token] + i], out + given);
    if (state->stopped) state->pending_count = 0;
    if (QR_MUTANT(200)) given += end_character(state, out + given);
    return given;
}

uint64_t qr_detokenize_finish(qr_detokenize_t *state, uint8_t *out, uint64_t capacity)
{
    qr_assert(capacity >= QR_DETOKENIZE_ROOM(0));
    uint64_t given = QR_MUTANT(204) ? 0 : end_character(state, out);
    given += QR_MUTANT(526) ? 0 : give_out(state, 0, out + given);
    for (uint32_t i = 0; i < state->stop_count; i++) state->matched[i] = 0;
    return given;
}
