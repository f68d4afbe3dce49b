/* continuation_tool.h - `quire continuation`: the HTTP calls on saved continuations, from the command line. */
#ifndef QR_CONTINUATION_TOOL_H
#define QR_CONTINUATION_TOOL_H

#include "base/base.h"

/* word: what follows `quire continuation`. The exit status: 0; 1: the server refused or cannot be reached; 2: bad words. */
int qr_continuation_tool_main(int count, char **word);

#endif
