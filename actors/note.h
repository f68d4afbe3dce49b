/* note.h - codes of note.def. */
#ifndef QR_NOTE_H
#define QR_NOTE_H

enum {
#define NOTE(name, number, sentence) QR_NOTE_##name = (number),
#include "actors/note.def"
    QR_NOTES_CODES_MAX = 64
};
enum { QR_LEVEL_ERROR = 0, QR_LEVEL_WARN = 1, QR_LEVEL_INFO = 2, QR_LEVEL_TRACE = 3 };

#endif
