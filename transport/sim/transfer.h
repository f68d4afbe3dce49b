/* transfer.h - the fake transfer: rows between the files of storage.h, staging slots and the pages of a device, piece by piece, each after
 * a time of its own. What was asked goes on by itself until it is answered or fenced, whoever has given up waiting for it.
 *
 * H1. Rows are written only into pages of a restore that is open (restore .. restored) and read only out of pages that are pinned
 *     (pages_pinned .. pages_unpin), under the generation that owns them; anything else is a finding.
 * H2. Until an upload is answered 0 its pages hold anything: garbage is drawn now and then.
 * H3. An upload is answered 0 only when header, identity, digest and, if asked, the whole content agree.
 * H4. What a fence names is answered before the fence is, and nothing of it moves afterwards.
 * H5. Of a request that ended well as many prompt rows are said to be reused as were never computed for it.
 * H6. Rows of preempted requests are kept under their key from page_spilled until page_unspilled or spill_drop, in a room of spill_bytes, as
 *     the real one does (transfer_spill.h). They are written only into pages that are loading (pages_loading .. load_ended), with garbage
 *     before; a move fails now and then. In a world a question that transfer would refuse for being wrong is a finding, and nothing is kept
 *     when all requests have ended.
 * H7. An upload out of a RAM slot (kept) reads no file and is held against the same header and digest; one that fills a slot (keep) has
 *     filled it when it is answered 0, and else leaves no header there. Both name memory that their asker has a lease of. */
#ifndef QR_SIM_TRANSFER_H
#define QR_SIM_TRANSFER_H

#include "transport/sim/storage.h"

/* Every message of a world with a transfer, when it is said: what the rules above need to know. */
void qr_sim_moves_watch(const qr_given_t *given, const qr_message_t *message);
/* Whether nothing of a device is being restored, pinned, moved or kept; else *text says what. */
bool qr_sim_moves_are_quiet(const qr_world_t *world, uint32_t node, uint32_t device, char *text, size_t text_bytes);

extern const qr_actor_class_t qr_sim_transfer_class;

#endif
