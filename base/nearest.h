/* nearest.h - how far two names are apart, for messages that name the nearest known one. */
#ifndef QR_NEAREST_H
#define QR_NEAREST_H

#include "base/base.h"

enum { QR_NEAREST_BYTES_MAX = 63 };

/* Edits (insert, delete, replace one character) that turn a into b; '-' and '_' are the same. SIZE_MAX when b is longer than
 * QR_NEAREST_BYTES_MAX. Wagner and Fischer, "The string-to-string correction problem" (1974), one row kept. */
size_t qr_nearest_edits(const char *a, const char *b);

#endif
