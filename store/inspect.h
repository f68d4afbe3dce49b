/* inspect.h - `quire inspect FILE` for a chunk file: what it says of itself, and whether that is true. */
#ifndef QR_STORE_INSPECT_H
#define QR_STORE_INSPECT_H

#include "base/base.h"

/* Whether the arguments (the program's, behind `inspect`) name a file that is, or by its name should be, a chunk or a tail. */
bool qr_chunk_inspect_wants(int count, char **word);
/* Options: FILE, --json. Prints to standard output: header, identity and the verdict of a whole reading (CRC-32C, chain hash, XXH3-128,
 * SHA-256, and the file's name if it is a content id). Returns the exit status: 0 for an intact file; 2 with one line on standard error
 * for one that is damaged or cannot be read, or for bad arguments. */
int qr_chunk_inspect_main(int count, char **word);

#endif
