/* tap.h - `quire tap DIR`: shows record segments, one line per message, as each actor received them. */
#ifndef QR_TAP_H
#define QR_TAP_H

#include "base/base.h"

/* The subcommand; words[0] is the first word after `tap`. Prints to stdout. Returns the exit status: 0; 2 for wrong words or a folder
 * without segments; 1 when something in it cannot be read, which it says on stderr. */
int qr_tap_main(int count, char **words);

#endif
