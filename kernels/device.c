/* device.c - one door to every kind of device. */
#include "kernels/device.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/params.h"
#include "base/text.h"
#include "kernels/device_kind.h"

int qr_device_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes)
{
    switch (config->kind) {
    case QR_DEVICE_CPU: return qr_device_cpu_new(config, ret_device, message, message_bytes);
    case QR_DEVICE_OPENCL: return qr_device_opencl_new(config, ret_device, message, message_bytes);
    default: break;
    }
    qr_text_t text;
    qr_text_init(&text, message, message_bytes);
    qr_text_put(&text, "this build has no such device; use --device cpu");
    return -QR_E_UNSUPPORTED;
}

void qr_device_destroy(qr_device_t **device)
{
    if (*device) (*device)->destroy(*device);
    *device = NULL;
}

const char *qr_device_name(const qr_device_t *device) { return device->name; }
const char *qr_device_variant(const qr_device_t *device) { return device->variant; }
const char *qr_device_overlap(const qr_device_t *device)
{
    return (device->event_submission && device->independent_queue) || QR_MUTANT(788) ? "eligible" : "interference-only";
}

int qr_buffer_new(qr_device_t *device, uint64_t bytes, qr_buffer_t *ret_buffer) { return device->buffer_new(device, bytes, ret_buffer); }

void qr_buffer_done(qr_device_t *device, qr_buffer_t *buffer)
{
    if (buffer->handle) device->buffer_done(device, buffer);
    *buffer = (qr_buffer_t){0};
}

int qr_buffer_write(qr_device_t *device, qr_buffer_t *buffer, uint64_t offset, const void *from, uint64_t bytes)
{
    qr_assert(offset <= buffer->bytes && bytes <= buffer->bytes - offset);
    return device->buffer_write(device, buffer, offset, from, bytes);
}

int qr_buffer_read(qr_device_t *device, const qr_buffer_t *buffer, uint64_t offset, void *to, uint64_t bytes)
{
    qr_assert(offset <= buffer->bytes && bytes <= buffer->bytes - offset);
    return device->buffer_read(device, buffer, offset, to, bytes);
}

int qr_weight_new(qr_device_t *device, uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts,
                  const uint32_t *part_rows, qr_weight_t *ret_weight)
{
    if (!qr_format_row_bytes(format, columns) || !part_count) return -QR_E_UNSUPPORTED;
    return device->weight_new(device, format, columns, part_count, parts, part_rows, ret_weight);
}

void qr_weight_done(qr_device_t *device, qr_weight_t *weight)
{
    qr_buffer_done(device, &weight->buffer);
    *weight = (qr_weight_t){0};
}

int qr_device_enqueue(qr_device_t *device, const qr_launch_t *launch) { return device->enqueue(device, launch); }
int qr_device_advance(qr_device_t *device, uint64_t budget_us) { return device->advance(device, budget_us); }
void qr_device_abandon(qr_device_t *device) { device->abandon(device); }
