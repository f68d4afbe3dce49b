/* inspect.h - `quire inspect FILE`: what a model file holds and what Quire makes of it. */
#ifndef QR_INSPECT_H
#define QR_INSPECT_H

/* argv[0] is the subcommand's name; options: FILE, --json, --no-fingerprint. Prints to standard output. Returns the exit status: 0; 2 with
 * one line on standard error for a file that is damaged or not supported (what could be read is printed first), or for bad arguments. */
int qr_inspect_main(int argc, char **argv);

#endif
