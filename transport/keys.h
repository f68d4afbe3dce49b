/* keys.h - `quire keys NAME [--folder DIR]`: makes a node's CURVE key pair. */
#ifndef QR_KEYS_H
#define QR_KEYS_H

#include "base/base.h"

/* The subcommand; words[0] is the first word after `keys`. Writes DIR/NAME.secret (default folder `keys`) and prints the line for the
 * topology file. Returns the exit status: 0; 2 for wrong words or a key that exists. */
int qr_keys_main(int count, char **words);

#endif
