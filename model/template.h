/* template.h - renders a chat in the model's own words. The template string of the file is recognised by its shape (ChatML and
 * its relatives: one loop that writes role and content between fixed texts); the fixed texts are the file's own.
 *
 * T1. Message content is copied, never read as template code.
 * T2. What the template wrote and what the messages said stay apart: every content is a range of the rendered text. */
#ifndef QR_TEMPLATE_H
#define QR_TEMPLATE_H

#include "base/base.h"

typedef struct qr_template qr_template_t;

/* Bytes [first, first + bytes) of a rendered text came from a message. */
typedef struct qr_template_range {
    size_t first, bytes;
} qr_template_range_t;

/* source: the template, NUL-terminated. -QR_E_UNSUPPORTED with a line that says what is supported; -QR_E_MEMORY. */
int qr_template_new(const char *source, qr_template_t **ret_template, char *message, size_t message_bytes);
void qr_template_destroy(qr_template_t **chat_template);
/* Bytes that qr_template_render will write. */
size_t qr_template_bytes(const qr_template_t *chat_template, const uint32_t *roles, const uint32_t *lengths, size_t messages);
/* Renders messages (roles QR_CHAT_*; text: all contents back to back) and the opening of the assistant's turn. to: room for
 * qr_template_bytes; contents: [messages], in order. Role developer is written as system: models know no other. */
void qr_template_render(const qr_template_t *chat_template, const uint32_t *roles, const uint32_t *lengths, size_t messages,
                        const char *text, char *to, qr_template_range_t *contents);

#endif
