/* device_kind.h - what a kind of device brings to device.c. Private to kernels/. */
#ifndef QR_DEVICE_KIND_H
#define QR_DEVICE_KIND_H

#include "kernels/device.h"

/* Every kind's own struct begins with this. All functions as in device.h; pointers were checked. */
struct qr_device {
    void (*destroy)(qr_device_t *device);
    int (*buffer_new)(qr_device_t *device, uint64_t bytes, qr_buffer_t *ret_buffer);
    void (*buffer_done)(qr_device_t *device, qr_buffer_t *buffer);
    int (*buffer_write)(qr_device_t *device, qr_buffer_t *buffer, uint64_t offset, const void *from, uint64_t bytes);
    int (*buffer_read)(qr_device_t *device, const qr_buffer_t *buffer, uint64_t offset, void *to, uint64_t bytes);
    int (*weight_new)(qr_device_t *device, uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts,
                      const uint32_t *part_rows, qr_weight_t *ret_weight);
    int (*enqueue)(qr_device_t *device, const qr_launch_t *launch);
    int (*advance)(qr_device_t *device, uint64_t budget_us);
    void (*abandon)(qr_device_t *device);
    bool event_submission;  /* a launch runs to its end without a thread of ours */
    bool independent_queue; /* copies go through a queue of their own beside the launches, on hardware of their own */
    char name[64], variant[16];
};

int qr_device_cpu_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes);
int qr_device_opencl_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes);

#endif
