/* given.h - the immutable memory every actor of a node is given at boot, known to the record by its digest.
 * Plain numbers and tables; the world-facing objects (loaded model, device) are for io actors only and opaque here. */
#ifndef QR_GIVEN_H
#define QR_GIVEN_H

#include "base/params.h"
#include "messages/message.h"

/* Retention groups: group 0 keeps the whole prefix (window 0); others keep a sliding window of `window` tokens: position q
 * attends q-(window-1) .. q. */
typedef struct qr_group {
    uint32_t window;     /* 0 = whole prefix */
    uint32_t pages;      /* pool size of this group, in pages */
    uint32_t set_aside;  /* pages kept for captures (windowed groups only) */
    uint32_t row_bytes;  /* bytes of one token row over all members */
} qr_group_t;

typedef struct qr_layout {
    uint32_t group_count;
    uint32_t page_tokens;
    uint32_t chunk_tokens;
    uint32_t context_tokens; /* most tokens of one continuation */
    qr_group_t groups[QR_GROUPS_MAX];
    qr_hash_t fingerprint;
} qr_layout_t;

/* Vocabulary for detokenising: token t is bytes[offsets[t] .. offsets[t+1]). flags: QR_TOKEN_SPECIAL prints nothing. */
enum { QR_TOKEN_SPECIAL = 1, QR_TOKEN_END = 2 };
typedef struct qr_vocabulary {
    uint32_t count;
    uint32_t reserved;
    const uint32_t *offsets; /* [count + 1] */
    const uint8_t *bytes;
    const uint8_t *flags;    /* [count] */
} qr_vocabulary_t;

typedef struct qr_given {
    qr_params_t params;
    qr_layout_t layout;
    qr_vocabulary_t vocabulary;
    /* For io actors only; NULL in tests that need none. Pure actors never look (the include table forbids the types). */
    struct qr_model *model;      /* model/model.h */
    struct qr_decoder *decoder;  /* model/decoder.h: device, weights and page pools, made at boot */
    struct qr_tokenizer *tokenizer; /* model/tokenizer.h */
    struct qr_staging *staging;  /* store/staging.h: memory between page pools and chunk files; outlives every actor */
    struct qr_staging *ram;      /* store/staging.h: slots in which chunks are kept; NULL: there is no RAM tier here */
    struct qr_store_folder *store; /* store/folder.h: the store's folder, open and locked; NULL: nothing is durable here */
    struct qr_activity *activity; /* actors/io/activity.h: whether the device computes, for who should step aside; may be NULL */
    const void *prompt;          /* actors/io/prompt.h: what `generate` and `bench` ask */
} qr_given_t;

#endif
