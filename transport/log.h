/* log.h - how notes and the node's own words appear on stderr: one line each, written with one call. */
#ifndef QR_LOG_H
#define QR_LOG_H

#include "actors/note.h"
#include "actors/outbox.h"

/* Prints a note of `actor` made while it handled `cause`, if its level is at most `limit`. */
void qr_log_note(uint32_t limit, const char *actor, const char *cause, const qr_note_t *note, uint64_t now_us);
/* Prints a sentence about this node. */
void qr_log_line(uint32_t limit, uint32_t level, const char *who, const char *sentence);

#endif
