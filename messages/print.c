#include "messages/print.h"

#include "base/error.h"
#include "messages/schema.h"

enum { ELEMENTS_SHOWN = 8, BYTES_SHOWN = 64, HASH_BYTES_SHOWN = 8 };

void qr_print_address(qr_text_t *text, uint64_t address)
{
    const char *role = qr_role_name(qr_address_role(address));
    qr_text_put_u64(text, qr_address_node(address));
    qr_text_put(text, ".");
    qr_text_put_u64(text, qr_address_device(address));
    qr_text_put(text, ".");
    if (qr_role_find(role))
        qr_text_put(text, role);
    else
        qr_text_put_u64(text, qr_address_role(address));
    qr_text_put(text, ".");
    qr_text_put_u64(text, address & UINT16_MAX);
}

static bool ends_in(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && memcmp(name + n - m, ending, m) == 0;
}

/* How a field's numbers want to be read. */
enum { STYLE_PLAIN, STYLE_ERROR, STYLE_BITS, STYLE_ADDRESS, STYLE_TOKEN };

static int style_of(const char *name)
{
    if (ends_in(name, "reason") || ends_in(name, "error") || ends_in(name, "errors") || ends_in(name, "statuses")) return STYLE_ERROR;
    if (ends_in(name, "_bits")) return STYLE_BITS;
    if (ends_in(name, "partners")) return STYLE_ADDRESS;
    return ends_in(name, "tokens") ? STYLE_TOKEN : STYLE_PLAIN;
}

static void put_number(qr_text_t *text, int style, uint64_t value)
{
    uint8_t big[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    if (style == STYLE_ERROR && value < QR_E_COUNT)
        qr_text_put(text, value ? qr_error_name((int)value) : "0");
    else if (style == STYLE_ADDRESS)
        qr_print_address(text, value);
    else if (style == STYLE_TOKEN && value == QR_TOKEN_NONE)
        qr_text_put(text, "none");
    else if (style == STYLE_TOKEN && value == QR_TOKEN_PREVIOUS)
        qr_text_put(text, "previous");
    else if (style == STYLE_BITS && value <= UINT32_MAX) {
        qr_text_put(text, "0x");
        qr_text_put_hex(text, big, sizeof big);
    } else {
        qr_text_put_u64(text, value);
    }
}

static void put_column(qr_text_t *text, const qr_field_t *field, qr_column_t column)
{
    qr_text_put(text, "[");
    qr_text_put_u64(text, column.count);
    qr_text_put(text, "]=");
    if (field->kind == QR_KIND_BYTES) {
        qr_text_put_quoted(text, column.data, column.count, BYTES_SHOWN);
        return;
    }
    int style = style_of(field->name);
    for (uint64_t i = 0; i < column.count && i < ELEMENTS_SHOWN; i++) {
        uint32_t u32 = field->kind == QR_KIND_U32S ? ((const uint32_t *)column.data)[i] : 0;
        if (i) qr_text_put(text, ",");
        put_number(text, style, field->kind == QR_KIND_U32S ? u32 : ((const uint64_t *)column.data)[i]);
    }
    if (column.count > ELEMENTS_SHOWN) qr_text_put(text, ",...");
}

/* " name=value"; optional fields that hold nothing are left out. */
static void put_field(qr_text_t *text, const void *body, const qr_field_t *field)
{
    bool column = qr_kind_is_column(field->kind), hash = field->kind == QR_KIND_HASH;
    if (!field->required && (column ? qr_column_get(body, field).count == 0 : !hash && qr_number_get(body, field) == 0)) return;
    qr_text_put(text, " ");
    qr_text_put(text, field->name);
    if (column) {
        put_column(text, field, qr_column_get(body, field));
        return;
    }
    qr_text_put(text, "=");
    if (hash)
        qr_text_put_hex(text, (const uint8_t *)body + field->offset, HASH_BYTES_SHOWN);
    else
        put_number(text, ends_in(field->name, "_tokens") ? STYLE_PLAIN : style_of(field->name), qr_number_get(body, field));
}

void qr_print_message(qr_text_t *text, const qr_message_t *message)
{
    const qr_schema_t *row = qr_schema_find(message->type);
    if (row) {
        qr_text_put(text, row->name);
    } else {
        qr_text_put(text, "type ");
        qr_text_put_u64(text, message->type);
    }
    qr_text_put(text, " ");
    qr_print_address(text, message->from);
    qr_text_put(text, " > ");
    qr_print_address(text, message->to);
    for (uint32_t i = 0; row && i < row->field_count; i++) put_field(text, &message->body, &row->fields[i]);
}
