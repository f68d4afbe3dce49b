/* detokenize.h - token ids to text, piece by piece: bytes of the vocabulary, whole UTF-8 characters, stop strings.
 * Pure evaluator; one state per request, a plain block without pointers.
 *
 * D1. What has been given out is valid UTF-8 and ends at a character's end. An invalid byte sequence becomes one U+FFFD per maximal
 *     subpart (Unicode 15, section 3.9, "substitution of maximal subparts"), as soon as it is certain and no earlier.
 * D2. Held back is exactly the longest end of the text that could begin a stop string, plus at most 3 bytes of an unfinished
 *     character. The text given out in pieces, then qr_detokenize_finish, is the text of all tokens in one call.
 * D3. The stop string that is completed first ends the text before its first byte; of two completed by the same byte the longer.
 *     Nothing is given out afterwards. Token edges play no part.
 * D4. At the end of a request an unfinished character becomes one U+FFFD. */
#ifndef QR_DETOKENIZE_H
#define QR_DETOKENIZE_H

#include "actors/given.h"
#include "base/utf8.h"

enum { QR_DETOKENIZE_HELD_MAX = QR_STOP_BYTES_MAX + 8 };

typedef struct qr_detokenize {
    uint32_t stop_count;
    uint32_t held_count;                     /* bytes of held */
    uint32_t pending_count;                  /* bytes of pending */
    uint32_t stopped;                        /* 1 after a stop string */
    uint8_t pending[8];                      /* beginning of a character, at most 3 bytes */
    uint32_t stop_offsets[QR_STOPS_MAX + 2]; /* stop i is stops[stop_offsets[i] .. stop_offsets[i + 1]) */
    uint32_t matched[QR_STOPS_MAX];          /* bytes of stop i that the text ends in */
    uint8_t held[QR_DETOKENIZE_HELD_MAX];    /* text not given out: the longest of `matched` */
    uint8_t stops[QR_STOPS_MAX * QR_STOP_BYTES_MAX];
    uint8_t borders[QR_STOPS_MAX * QR_STOP_BYTES_MAX]; /* per byte: longest proper border of the stop's first bytes up to it */
} qr_detokenize_t;

/* Most bytes one call can give out for `bytes` bytes of a token. */
#define QR_DETOKENIZE_ROOM(bytes) (3 * (uint64_t)(bytes) + QR_DETOKENIZE_HELD_MAX + 16)

/* Begins a request whose text ends at any of the stop strings: stop i is the next stop_lengths[i] bytes of `stop`. state is zeroed first.
 * 0, -QR_E_LIMIT (too many, or one too long) or -QR_E_INVALID (an empty one, lengths that do not add up, not UTF-8); state is then
 * unusable. */
int qr_detokenize_init(qr_detokenize_t *state, qr_bytes_t stop, qr_u32s_t stop_lengths);

/* Takes one token; writes what may be shown to out[capacity], capacity >= QR_DETOKENIZE_ROOM(its bytes). Returns the bytes written.
 * Specials and ids outside the vocabulary print nothing. After a stop string nothing more is written. */
uint64_t qr_detokenize_token(qr_detokenize_t *state, const qr_vocabulary_t *vocabulary, uint32_t token, uint8_t *out, uint64_t capacity);

/* The text ends here: writes what was held back to out[capacity], capacity >= QR_DETOKENIZE_ROOM(0). Returns the bytes written. A second
 * call writes nothing. */
uint64_t qr_detokenize_finish(qr_detokenize_t *state, uint8_t *out, uint64_t capacity);

/* Bytes of a token's text; 0 for specials and ids outside. */
uint32_t qr_detokenize_bytes(const qr_vocabulary_t *vocabulary, uint32_t token);

#endif
