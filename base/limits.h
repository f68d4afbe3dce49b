/* limits.h - every bound and window of Quire, and how they relate. A table, queue or column that can grow is bounded by
 * one of these; what happens at the bound is said beside it. */
#ifndef QR_LIMITS_H
#define QR_LIMITS_H

#include "base/base.h"

enum {
    QR_GROUPS_MAX = 4,             /* retention groups of one model; more: the model is refused at load */
    QR_CONTEXT_MAX = 131072,       /* tokens of one continuation; longer: 400 context_length_exceeded */
    QR_LANES_MAX = 64,             /* lanes of one device; params.max_lanes is at most this */
    QR_BATCHES_IN_FLIGHT = 2,      /* batches the executor holds: one runs, one is prepared */
    QR_BATCH_ROWS_MAX = 4096,      /* rows of one batch */
    QR_REQUESTS_MAX = 1024,        /* requests open in one gateway, router, worker or scheduler; more: BUSY */
    QR_STOPS_MAX = 16,             /* stop strings of one request; more: 400 */
    QR_STOP_BYTES_MAX = 256,       /* bytes of one stop string; longer: 400 */
    QR_SALT_BYTES_MAX = 64,        /* bytes of tenant salt or cache_salt; longer: 400 */
    QR_TENANTS_MAX = 256,          /* tenants of one keys file; more: the file is refused at boot */
    QR_PARTNERS_MAX = 64,          /* actors of other failure units one actor may know */
    QR_NODES_MAX = 32,             /* nodes of one mesh */
    QR_ACTORS_MAX = 64,            /* actors of one node */
    QR_MESSAGE_ELEMENTS_MAX = 64,  /* elements of a message head, the six of the envelope included */
    QR_MESSAGE_BYTES_MAX = 4 << 20, /* bytes of one encoded message; a longer one from outside is refused */
    QR_OUTBOX_BYTES = 8 << 20,     /* bytes of structs and columns one handler call may emit */
    QR_NOTES_MAX = 64,             /* notes one handler call may emit; more are counted and dropped */
    QR_TEXT_BYTES_MAX = 1 << 20,   /* bytes of text of one request; longer: 413 */
    QR_CHAT_MESSAGES_MAX = 2048,   /* messages of one chat request; more: 400 */
    QR_RESTORE_LEASES = 8,         /* files leased ahead by one restore_streamer */
    QR_RESTORE_UPLOADS = 2,        /* uploads under way: one moves, one waits */
    QR_CAPTURES_MAX = 8,           /* captures that wait; more are skipped and counted */
    QR_STAGING_SLOTS_MAX = 8,      /* staging slots for captures; a part waits for one */
    QR_CAPTURE_DROPS = 64,         /* files dropped together to make room */
    QR_CATALOG_PUBLISHES = 4,      /* publishes one publisher may have open at the catalog writer */
    QR_CATALOG_CHANGES_MAX = 512,  /* changes of one publish; more: LIMIT, publish them in parts */
    QR_DECISIONS_MAX = 64,         /* decisions of one actor that wait for facts; more are dropped and counted */
    QR_CATALOG_LOOKUPS = 64,       /* lookups one asker may have open */
    QR_LOOKUP_NODES_MAX = 4096,    /* chain hashes one lookup looks at; the rest of a longer prompt is recomputed */
    QR_STORAGE_WRITES = 8,         /* chunk_writes waiting or under way in one storage; more: BUSY */
    QR_RAM_SLOTS_MAX = 1 << 20,    /* chunk parts kept in memory */
    QR_STORAGE_LEASES = 256,       /* leases open in one storage; more: BUSY */
    QR_CONTINUATION_ASKS = 16,     /* questions of one kind about saved continuations that http has open; more wait there */
    QR_HOLDS_ENDING = 2 * QR_CONTINUATION_ASKS, /* holds of chunks that facts gives back at a time: drops, and saves that fail */
    QR_COUNTED_CONTEXTS = 4,       /* ids of a text that does not fit the context are counted up to so many contexts, */
    QR_COUNTED_LEAST = 16384,      /* and at least so many: beyond, counting would only take everybody's time */
    QR_TOKEN_BYTES_MAX = 65536,    /* bytes of one token's text; longer: the model is refused at load */
    QR_DELTA_TEXT_MAX = 4096       /* bytes of text the gateway may hold back for one request (stop strings, UTF-8) */
};

#define QR_TOKEN_NONE UINT32_MAX          /* no token was drawn */
#define QR_TOKEN_PREVIOUS (UINT32_MAX - 1) /* token source of a decode row: what the lane drew in the batch before */
#define QR_NEVER_US UINT64_MAX            /* an alarm or deadline that never comes */

_Static_assert(QR_STOPS_MAX * QR_STOP_BYTES_MAX <= QR_DELTA_TEXT_MAX, "held-back text covers every stop string");
_Static_assert(QR_TOKEN_BYTES_MAX * 8 < QR_MESSAGE_BYTES_MAX, "the text of a token, each byte shown as U+FFFD, fits one message");
_Static_assert((uint64_t)QR_CONTEXT_MAX * 8 < QR_MESSAGE_BYTES_MAX, "a whole context of tokens and handles fits one message");

#endif
