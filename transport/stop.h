/* stop.h - how a subcommand that runs on and on is ended by hand, and what is said when it ends by itself. One for the process.
 *
 * P1. The first INT or TERM is only noted, the second one ends the process as if nobody had looked.
 * P2. Who ends by a signal of its own (a broken invariant, a bad address) says its last words and then ends by that signal. */
#ifndef QR_STOP_H
#define QR_STOP_H

#include <stdbool.h>

enum { QR_STOP_BYTES = 96 };

/* From here on; a handler that somebody else has put in place (a sanitizer) stays. */
void qr_stop_watch(void);
bool qr_stop_asked(void);
/* What P2 says, on stderr; copied, cut at QR_STOP_BYTES - 1. */
void qr_stop_last_words(const char *words);

#endif
