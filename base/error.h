/* error.h - every error of Quire once: code, name, sentence. Functions return 0 or the negative code; messages between
 * actors carry the positive code as `reason`. HTTP statuses are the http actor's business. */
#ifndef QR_ERROR_H
#define QR_ERROR_H

#include "base/base.h"

#define QR_ERROR_MAP(X)                                                                                                                    \
    X(0, OK, "success")                                                                                                                    \
    X(1, INVALID, "the request or argument is not valid")                                                                                  \
    X(2, MEMORY, "not enough memory")                                                                                                      \
    X(3, IO, "the operating system reported an I/O error")                                                                                 \
    X(4, NOT_FOUND, "not found")                                                                                                           \
    X(5, FORMAT, "the bytes do not follow the format")                                                                                     \
    X(6, UNSUPPORTED, "valid, but not supported by this version")                                                                          \
    X(7, TRUNCATED, "the bytes end too early")                                                                                             \
    X(8, LIMIT, "a documented limit was passed")                                                                                           \
    X(9, BUSY, "over capacity now; try again later")                                                                                       \
    X(10, NEVER_FITS, "needs more pages than the pool has; raise --pages or ask for less")                                                 \
    X(11, SHORTFALL, "not enough free pages now")                                                                                          \
    X(12, CANCELLED, "cancelled by the asker")                                                                                             \
    X(13, DEADLINE, "the deadline passed")                                                                                                 \
    X(14, PEER_DOWN, "the node that worked on it is down")                                                                                 \
    X(15, STALE, "the handle, attempt or generation is old")                                                                               \
    X(16, CONTEXT, "the prompt is longer than the context")                                                                                \
    X(17, SLOW_CLIENT, "the client did not read its stream")                                                                               \
    X(18, DRAINING, "the server is shutting down; ask again when it is back")                                                              \
    X(19, NUMERIC, "a value that is not finite appeared in this lane")                                                                     \
    X(20, DEVICE, "the device failed the batch")                                                                                           \
    X(21, MODEL, "no such model is served here")                                                                                           \
    X(22, PROTOCOL, "a message broke the protocol")                                                                                        \
    X(23, IN_USE, "already in use")                                                                                                        \
    X(24, PERMISSION, "not permitted")                                                                                                     \
    X(25, UNKNOWN, "unknown route, lane or request")                                                                                       \
    X(26, NO_WORKER, "no worker is ready")                                                                                                 \
    X(27, SWITCH_ROWS, "a test switch forbids computing this many prompt rows")                                                            \
    X(28, DIGEST, "the bytes do not have the digest they must have")                                                                       \
    X(29, IDENTITY, "the file is not the chunk that was asked for")                                                                        \
    X(30, NO_SPACE, "the disk or the store's bound has no room")                                                                           \
    X(31, WORTHLESS, "costs more than it is expected to save")                                                                             \
    X(32, QUOTA, "the quota of this key's tenant is reached; try again later")                                                             \
    X(33, FENCED, "its pages are leaving: nothing moves to or from them any more")                                                         \
    X(34, MISMATCH, "what was asked does not continue what was saved")

#define QR_ERROR_ENUM(code, name, sentence) QR_E_##name = (code),
enum { QR_ERROR_MAP(QR_ERROR_ENUM) QR_E_COUNT };
#undef QR_ERROR_ENUM

/* Name ("NEVER_FITS") and sentence of a code; both accept the code or its negative, "UNKNOWN_CODE" otherwise. Static memory. */
const char *qr_error_name(int code);
const char *qr_error_sentence(int code);

#endif
