/* outbox.c - deep copies of what a handler sends, walked by the schema table. See outbox.h. */
#include "actors/outbox.h"

#include "base/mutant.h"

#include "messages/schema.h"

void qr_outbox_init(qr_outbox_t *outbox, qr_message_t *messages, uint32_t capacity, void *bytes, uint64_t bytes_capacity)
{
    qr_assert(((uintptr_t)bytes & 7u) == 0);
    memset(outbox, 0, sizeof *outbox);
    outbox->alarm_us = QR_NEVER_US;
    outbox->capacity = capacity;
    outbox->bytes = bytes;
    outbox->bytes_capacity = bytes_capacity;
    outbox->messages = messages;
}

void qr_outbox_reset(qr_outbox_t *outbox, uint32_t capacity)
{
    outbox->count = 0;
    outbox->capacity = capacity;
    outbox->note_count = outbox->notes_dropped = 0;
    outbox->bytes_used = 0;
}

/* Copies the column of a field behind the ones already there and points the body at the copy. */
static void copy_column(qr_outbox_t *outbox, void *body, const qr_field_t *field)
{
    qr_column_t column = qr_column_get(body, field);
    if (column.count == 0) {
        qr_column_set(body, field, NULL, 0);
        return;
    }
    uint64_t room = outbox->bytes_capacity - outbox->bytes_used, element = qr_kind_bytes(field->kind);
    qr_assert(column.data != NULL);
    qr_assert(column.count <= room / element);
    uint64_t bytes = column.count * element;
    uint8_t *to = outbox->bytes + outbox->bytes_used;
    memcpy(to, column.data, bytes);
    outbox->bytes_used += qr_min_u64(qr_round_up(bytes, 8), room);
    qr_column_set(body, field, QR_MUTANT(15) ? column.data : to, column.count);
}

void qr_outbox_send(qr_outbox_t *outbox, uint64_t to, uint16_t type, const void *body)
{
    const qr_schema_t *row = qr_schema_find(type);
    qr_assert(row != NULL);
    qr_assert(outbox->count < outbox->capacity);
    qr_message_t *message = &outbox->messages[outbox->count++];
    memset(message, 0, offsetof(qr_message_t, body));
    message->type = type;
    message->version = QR_MESSAGE_VERSION;
    message->to = to;
    memcpy(&message->body, body, row->bytes);
    if (row->column_count == 0) return;
    for (uint32_t i = 0; i < row->field_count; i++)
        if (qr_kind_is_column(row->fields[i].kind)) copy_column(outbox, &message->body, &row->fields[i]);
}

void qr_outbox_note(qr_outbox_t *outbox, uint32_t level, uint32_t code, uint64_t request_id, uint64_t a, uint64_t b, uint64_t c)
{
    if (outbox->note_count == QR_NOTES_MAX) {
        outbox->notes_dropped++;
        return;
    }
    outbox->notes[outbox->note_count++] = (qr_note_t){code, level, request_id, a, b, c};
}
