/* device_opencl.c - the opencl device: one in-order queue, the portable kernels built when it is opened.
 *
 * CL1. Arguments come from kernels.def alone: every buffer as (base, byte offset), then sizes, then scalars, in their places.
 * CL2. One work-item owns one chain (kernels/portable), so results depend on neither work-group size nor batch.
 * CL3. `host` of its buffers is NULL: bytes go in and out by buffer_write and buffer_read, blocking, while the queue is empty.
 * CL4. Weights are packed by kernels/layout.c, as for the cpu device. */
#include "base/error.h"
#include "base/params.h"
#include "base/text.h"
#include "kernels/device_kind.h"
#include "kernels/layout.h"
#include "kernels/table.h"

#ifdef QR_HAVE_OPENCL

#include "kernels/opencl_source.h"

#include <CL/cl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WORK_GROUP = 64, SPIN_US = 50, POLL_US = 1000 };

typedef struct {
    qr_device_t kind;
    cl_context context;
    cl_command_queue queue;
    cl_device_id device;
    cl_program program;
    cl_kernel kernels[QR_KERNELS_COUNT];
    qr_table_t *table;
    cl_event last;   /* of the newest launch; NULL when the queue is known to be empty */
    uint32_t queued; /* launches since the queue was last empty */
    bool failed;
} opencl_t;

/* Work-items of a launch: one per chain (see kernels/portable). */
static uint64_t work_items(const qr_launch_t *launch)
{
    const uint32_t *s = launch->sizes;
    switch (launch->kernel) {
    case QR_KERNEL_embed:
    case QR_KERNEL_gather: return (uint64_t)s[0] * s[1];
    case QR_KERNEL_rope_table: return (uint64_t)s[0] * s[1];
    case QR_KERNEL_norm: return s[0];
    case QR_KERNEL_quantise:
    case QR_KERNEL_gate: return (uint64_t)s[0] * (s[1] / 32);
    case QR_KERNEL_product: return (uint64_t)s[0] * s[2];
    case QR_KERNEL_rope_append: return (uint64_t)s[0] * (s[1] + 2 * (uint64_t)s[2]);
    case QR_KERNEL_attention: return (uint64_t)s[0] * s[1];
    case QR_KERNEL_page_copy: return (uint64_t)s[0] * s[1] * s[2];
    default: qr_unreachable("kernel without a work shape");
    }
}

static void queue_emptied(opencl_t *self)
{
    if (self->last) clReleaseEvent(self->last);
    self->last = NULL;
    self->queued = 0;
}

static void opencl_abandon(qr_device_t *device)
{
    opencl_t *self = (opencl_t *)device;
    if (self->queue) clFinish(self->queue);
    queue_emptied(self);
    self->failed = false;
}

static void opencl_destroy(qr_device_t *device)
{
    opencl_t *self = (opencl_t *)device;
    opencl_abandon(device);
    for (uint32_t k = 0; k < QR_KERNELS_COUNT; k++)
        if (self->kernels[k]) clReleaseKernel(self->kernels[k]);
    if (self->program) clReleaseProgram(self->program);
    if (self->queue) clReleaseCommandQueue(self->queue);
    if (self->context) clReleaseContext(self->context);
    qr_table_destroy(&self->table);
    free(self);
}

static int opencl_buffer_new(qr_device_t *device, uint64_t bytes, qr_buffer_t *ret_buffer)
{
    opencl_t *self = (opencl_t *)device;
    cl_int status;
    uint64_t rounded = qr_round_up(qr_max_u64(bytes, 4), 4096);
    cl_mem memory = clCreateBuffer(self->context, CL_MEM_READ_WRITE, rounded, NULL, &status);
    if (status) return -QR_E_MEMORY;
    static const cl_uint zero;
    if (clEnqueueFillBuffer(self->queue, memory, &zero, sizeof zero, 0, rounded, 0, NULL, NULL) || clFinish(self->queue)) {
        clReleaseMemObject(memory);
        return -QR_E_MEMORY;
    }
    *ret_buffer = (qr_buffer_t){.handle = memory, .bytes = bytes};
    return 0;
}

static void opencl_buffer_done(qr_device_t *device, qr_buffer_t *buffer)
{
    (void)device;
    clReleaseMemObject(buffer->handle);
}

static int opencl_buffer_write(qr_device_t *device, qr_buffer_t *buffer, uint64_t offset, const void *from, uint64_t bytes)
{
    opencl_t *self = (opencl_t *)device;
    if (!bytes) return 0;
    return clEnqueueWriteBuffer(self->queue, buffer->handle, CL_TRUE, offset, bytes, from, 0, NULL, NULL) ? -QR_E_DEVICE : 0;
}

static int opencl_buffer_read(qr_device_t *device, const qr_buffer_t *buffer, uint64_t offset, void *to, uint64_t bytes)
{
    opencl_t *self = (opencl_t *)device;
    if (!bytes) return 0;
    return clEnqueueReadBuffer(self->queue, buffer->handle, CL_TRUE, offset, bytes, to, 0, NULL, NULL) ? -QR_E_DEVICE : 0;
}

static int opencl_weight_new(qr_device_t *device, uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts,
                             const uint32_t *part_rows, qr_weight_t *ret_weight)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < part_count; i++) rows += part_rows[i];
    uint64_t bytes = qr_packed_bytes(format, rows, columns);
    uint8_t *packed = calloc(1, bytes);
    if (!packed) return -QR_E_MEMORY;
    qr_pack(format, columns, part_count, parts, part_rows, packed);
    qr_buffer_t buffer;
    int status = opencl_buffer_new(device, bytes, &buffer);
    if (!status) {
        status = opencl_buffer_write(device, &buffer, 0, packed, bytes);
        if (status) opencl_buffer_done(device, &buffer);
    }
    free(packed);
    if (status) return status;
    *ret_weight = (qr_weight_t){.format = format, .rows = (uint32_t)rows, .columns = columns, .buffer = buffer};
    return 0;
}

static cl_int arguments_set(opencl_t *self, const qr_launch_t *launch)
{
    const qr_kernel_row_t *row = qr_kernel_row(launch->kernel);
    cl_kernel kernel = self->kernels[launch->kernel];
    cl_uint at = 0;
    cl_int status = 0;
    for (uint32_t i = 0; i < QR_LAUNCH_BUFFERS_MAX && row->buffers[i].name; i++) {
        cl_mem memory = launch->buffers[i]->handle;
        cl_ulong offset = launch->offsets[i];
        status |= clSetKernelArg(kernel, at++, sizeof memory, &memory);
        status |= clSetKernelArg(kernel, at++, sizeof offset, &offset);
    }
    for (uint32_t i = 0; i < QR_LAUNCH_SIZES_MAX && row->sizes[i]; i++) status |= clSetKernelArg(kernel, at++, 4, &launch->sizes[i]);
    for (uint32_t i = 0; i < QR_LAUNCH_SCALARS_MAX && row->scalars[i]; i++) status |= clSetKernelArg(kernel, at++, 4, &launch->scalars[i]);
    return status;
}

static int opencl_enqueue(qr_device_t *device, const qr_launch_t *launch)
{
    opencl_t *self = (opencl_t *)device;
    const char *fault = qr_table_fault(self->table, launch);
    if (fault) qr_assert_failed(fault, __FILE__, __LINE__);
    if (self->queued >= QR_LAUNCHES_MAX) return -QR_E_LIMIT;
    uint64_t items = work_items(launch);
    if (!items) return 0;
    size_t local = WORK_GROUP, global = qr_round_up(items, WORK_GROUP);
    cl_event event;
    if (arguments_set(self, launch) ||
        clEnqueueNDRangeKernel(self->queue, self->kernels[launch->kernel], 1, NULL, &global, &local, 0, NULL, &event)) {
        self->failed = true; /* said by advance, as any failure of the batch */
        return 0;
    }
    if (self->last) clReleaseEvent(self->last);
    self->last = event;
    self->queued++;
    return 0;
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static int opencl_advance(qr_device_t *device, uint64_t budget_us)
{
    opencl_t *self = (opencl_t *)device;
    cl_int state = CL_COMPLETE;
    if (self->last) {
        clFlush(self->queue);
        if (!budget_us && clFinish(self->queue)) self->failed = true;
        uint64_t begin = now_us(), end = begin + budget_us;
        for (;;) {
            if (clGetEventInfo(self->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL)) state = -1;
            if (state <= CL_COMPLETE || now_us() >= end) break;
            if (now_us() - begin < SPIN_US)
                sched_yield();
            else
                nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
    }
    if (state < 0) self->failed = true;
    if (state > CL_COMPLETE && !self->failed) return 1;
    if (self->failed) clFinish(self->queue);
    queue_emptied(self);
    bool failed = self->failed;
    self->failed = false;
    return failed ? -QR_E_DEVICE : 0;
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static int refuse(char *message, size_t message_bytes, int code, const char *what, const char *detail)
{
    qr_text_t text;
    qr_text_init(&text, message, message_bytes);
    qr_text_put(&text, what);
    if (detail) qr_text_put_quoted(&text, detail, strlen(detail), 300);
    return code;
}

/* First GPU of any platform, else the first device. */
static cl_device_id device_choose(void)
{
    cl_platform_id platforms[16];
    cl_uint count = 0;
    if (clGetPlatformIDs(16, platforms, &count)) return NULL;
    count = count < 16 ? count : 16;
    const cl_device_type kinds[2] = {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ALL};
    for (uint32_t k = 0; k < 2; k++)
        for (cl_uint p = 0; p < count; p++) {
            cl_device_id device;
            cl_uint found = 0;
            if (!clGetDeviceIDs(platforms[p], kinds[k], 1, &device, &found) && found) return device;
        }
    return NULL;
}

static int program_build(opencl_t *self, char *message, size_t message_bytes)
{
    cl_int status;
    const char *sources[QR_OPENCL_SOURCES];
    for (uint32_t i = 0; i < QR_OPENCL_SOURCES; i++) sources[i] = qr_opencl_sources[i];
    self->program = clCreateProgramWithSource(self->context, QR_OPENCL_SOURCES, sources, NULL, &status);
    if (status || clBuildProgram(self->program, 1, &self->device, "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt", NULL, NULL)) {
        static char log[4096];
        if (self->program) clGetProgramBuildInfo(self->program, self->device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
        return refuse(message, message_bytes, -QR_E_UNSUPPORTED,
                      "the OpenCL driver could not build Quire's kernels; use --device cpu. It says: ", log);
    }
    for (uint32_t k = 0; k < QR_KERNELS_COUNT; k++) {
        char name[64];
        snprintf(name, sizeof name, "qr_%s", qr_kernel_row(k)->name);
        self->kernels[k] = clCreateKernel(self->program, name, &status);
        if (status) return refuse(message, message_bytes, -QR_E_UNSUPPORTED, "the OpenCL driver lost the kernel ", name);
    }
    return 0;
}

static int opencl_open(opencl_t *self, char *message, size_t message_bytes)
{
    cl_int status;
    self->device = device_choose();
    if (!self->device)
        return refuse(message, message_bytes, -QR_E_UNSUPPORTED,
                      "no OpenCL platform with a device; install a driver (pocl-opencl-icd runs on any CPU) or use --device cpu", NULL);
    static char name[1024];
    clGetDeviceInfo(self->device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
    snprintf(self->kind.name, sizeof self->kind.name, "opencl %.48s", name);
    snprintf(self->kind.variant, sizeof self->kind.variant, "opencl-1");
    self->kind.event_submission = true; /* in one queue, in order: a copy stands between two launches */
    self->context = clCreateContext(NULL, 1, &self->device, NULL, NULL, &status);
    if (status) return refuse(message, message_bytes, -QR_E_DEVICE, "the OpenCL driver gave no context; use --device cpu", NULL);
    self->queue = clCreateCommandQueue(self->context, self->device, 0, &status);
    if (status) return refuse(message, message_bytes, -QR_E_DEVICE, "the OpenCL driver gave no queue; use --device cpu", NULL);
    int code = qr_table_new(&self->table);
    return code ? code : program_build(self, message, message_bytes);
}

int qr_device_opencl_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes)
{
    (void)config;
    opencl_t *self = calloc(1, sizeof *self);
    if (!self) return refuse(message, message_bytes, -QR_E_MEMORY, "not enough memory", NULL);
    self->kind = (qr_device_t){.destroy = opencl_destroy,
                               .buffer_new = opencl_buffer_new,
                               .buffer_done = opencl_buffer_done,
                               .buffer_write = opencl_buffer_write,
                               .buffer_read = opencl_buffer_read,
                               .weight_new = opencl_weight_new,
                               .enqueue = opencl_enqueue,
                               .advance = opencl_advance,
                               .abandon = opencl_abandon};
    int status = opencl_open(self, message, message_bytes);
    if (status) {
        opencl_destroy(&self->kind);
        return status;
    }
    *ret_device = &self->kind;
    return 0;
}

#else

int qr_device_opencl_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes)
{
    (void)config, (void)ret_device;
    qr_text_t text;
    qr_text_init(&text, message, message_bytes);
    qr_text_put(&text, "this build has no OpenCL; install ocl-icd-opencl-dev and build again, or use --device cpu");
    return -QR_E_UNSUPPORTED;
}

#endif
