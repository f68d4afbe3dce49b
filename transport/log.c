/* log.c - see log.h. */
#include "transport/log.h"

#include "transport/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Sentences by number. */
static const char *const sentences[QR_NOTES_CODES_MAX] = {
#define NOTE(name, number, sentence) [number] = #name ": " sentence,
#include "actors/note.def"
};

static const char *sentence_of(uint32_t code)
{
    return code < QR_NOTES_CODES_MAX && sentences[code] ? sentences[code] : "a note without a sentence";
}

static const char *const levels[] = {"error", "warn", "info", "trace"};

static void write_line(const char *line, int count, size_t capacity)
{
    size_t bytes = count < 0 ? 0 : (size_t)count < capacity ? (size_t)count : capacity - 1;
    ssize_t ignored = write(STDERR_FILENO, line, bytes);
    (void)ignored;
}

void qr_log_note(uint32_t limit, const char *actor, const char *cause, const qr_note_t *note, uint64_t now_us)
{
    if (note->level > limit) return;
    char line[512];
    int count =
        snprintf(line, sizeof line, "[%" PRIu64 ".%06" PRIu64 "] %s %s > %s: %s %" PRIu64 " %" PRIu64 " %" PRIu64 " request %" PRIx64 "\n",
                 now_us / 1000000, now_us % 1000000, levels[qr_min_u32(note->level, 3)], actor, cause, sentence_of(note->code), note->a,
                 note->b, note->c, note->request_id);
    write_line(line, count, sizeof line);
}

void qr_log_line(uint32_t limit, uint32_t level, const char *who, const char *sentence)
{
    if (level > limit) return;
    char line[1024];
    uint64_t now_us = qr_clock_us();
    int count = snprintf(line, sizeof line, "[%" PRIu64 ".%06" PRIu64 "] %s %s: %s\n", now_us / 1000000, now_us % 1000000,
                         levels[qr_min_u32(level, 3)], who, sentence);
    write_line(line, count, sizeof line);
}
