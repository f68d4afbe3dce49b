/* device_cpu.c - the cpu device: its memory is ours, its queue is a ring of checked launches, its work is cut into pieces that the
 * pool shares.
 *
 * U1. One launch is open at a time; the next begins when every piece of it is done (D1).
 * U2. A launch of little work runs on the calling thread, without waking or meeting anyone: a hand-over costs about half a microsecond.
 * U3. Within advance the control register is the default one, whatever the host set; it is put back on return. */
#include <stdlib.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/params.h"
#include "base/text.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/pool.h"
#include "kernels/device_kind.h"
#include "kernels/table.h"

enum {
    HUGE_BYTES = 2 << 20,
    PRODUCT_ROWS = 256,     /* rows of one piece: with 3 KiB activations they stay in a 1-2 MiB cache */
    PIECE_MACS = 12 << 20,  /* multiply-adds of one prefill piece: tens of microseconds */
    SHARED_MACS = 64 << 10, /* a smaller product runs on the calling thread */
    ROWS_WORK = 24576,      /* values a row-wise piece should touch: some microseconds */
    HURRIED_MACS = 4 << 20  /* a smaller product, like launches of few rows, looks at the clock only when it ends */
};

typedef struct cpu_device {
    qr_device_t base;
    const qr_cpu_isa_t *isa;
    qr_table_t *table;
    qr_pool_t *pool;
    qr_plan_t *plan;
    uint32_t threads;

    uint32_t first, count;         /* queue: launches[first], count of them; the first may be open */
    bool open, hurried;            /* hurried: looks at the clock after every piece */
    uint32_t row_step, group_step; /* how the open launch is cut */
    qr_cpu_args_t args;
    qr_launch_t launches[QR_LAUNCHES_MAX];
} cpu_device_t;

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* handle holds the mapping's start, which lies less than one huge page before host; its length follows from bytes. */
static uint64_t mapped_bytes(uint64_t bytes)
{
    return bytes >= HUGE_BYTES ? qr_round_up(bytes, HUGE_BYTES) + HUGE_BYTES : qr_round_up(bytes, 4096);
}

static int buffer_new(qr_device_t *device, uint64_t bytes, qr_buffer_t *ret_buffer)
{
    (void)device;
    uint64_t wanted = qr_max_u64(bytes, 1), length = mapped_bytes(wanted);
    if (length < bytes || length > (uint64_t)INT64_MAX) return -QR_E_MEMORY;
    uint8_t *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return -QR_E_MEMORY;
    uint8_t *host = start;
    if (wanted >= HUGE_BYTES) {
        host = start + (HUGE_BYTES - (uintptr_t)start % HUGE_BYTES) % HUGE_BYTES;
        madvise(host, qr_round_up(wanted, HUGE_BYTES), MADV_HUGEPAGE); /* a wish: refusal is fine */
    }
    for (uint64_t i = 0; i < wanted; i += 4096) ((volatile uint8_t *)host)[i] = 0; /* touched: decode meets no page fault */
    *ret_buffer = (qr_buffer_t){.host = host, .handle = start, .bytes = bytes};
    return 0;
}

static void buffer_done(qr_device_t *device, qr_buffer_t *buffer)
{
    (void)device;
    munmap(buffer->handle, mapped_bytes(qr_max_u64(buffer->bytes, 1)));
}

static int buffer_write(qr_device_t *device, qr_buffer_t *buffer, uint64_t offset, const void *from, uint64_t bytes)
{
    (void)device;
    qr_copy(buffer->host + offset, from, bytes);
    return 0;
}

static int buffer_read(qr_device_t *device, const qr_buffer_t *buffer, uint64_t offset, void *to, uint64_t bytes)
{
    (void)device;
    qr_copy(to, buffer->host + offset, bytes);
    return 0;
}

static int weight_new(qr_device_t *device, uint32_t format, uint32_t columns, uint32_t part_count, const void *const *parts,
                      const uint32_t *part_rows, qr_weight_t *ret_weight)
{
    qr_weight_t weight = {.format = format, .columns = columns};
    uint64_t rows = 0;
    for (uint32_t i = 0; i < part_count; i++) rows += part_rows[i];
    if (!rows || rows > UINT32_MAX - QR_GROUP_ROWS) return -QR_E_INVALID;
    weight.rows = (uint32_t)rows;
    int error = buffer_new(device, qr_packed_bytes(format, rows, columns), &weight.buffer);
    if (error) return error;
    qr_pack(format, columns, part_count, parts, part_rows, weight.buffer.host);
    *ret_weight = weight;
    return 0;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

static int enqueue(qr_device_t *device, const qr_launch_t *launch)
{
    cpu_device_t *cpu = (cpu_device_t *)device;
    if (cpu->count == QR_LAUNCHES_MAX) return -QR_E_LIMIT;
    const char *fault = qr_table_fault(cpu->table, launch);
    if (fault) qr_assert_failed(fault, launch->kernel < QR_KERNELS_COUNT ? qr_kernel_row(launch->kernel)->name : "kernels.def", __LINE__);
    cpu->launches[(cpu->first + cpu->count++) % QR_LAUNCHES_MAX] = *launch;
    return 0;
}

static void run_rows(void *context, uint32_t piece, uint32_t thread)
{
    (void)thread;
    const cpu_device_t *cpu = context;
    const qr_launch_t *launch = &cpu->launches[cpu->first];
    uint32_t from = piece * cpu->row_step;
    cpu->isa->rows[launch->kernel](&cpu->args, from, qr_min_u32(from + cpu->row_step, cpu->args.s[0]));
}

/* Row blocks outermost: all threads are on the same activations, each on its own outputs. */
static void run_product(void *context, uint32_t piece, uint32_t thread)
{
    (void)thread;
    const cpu_device_t *cpu = context;
    uint32_t groups = (uint32_t)qr_div_up(cpu->args.s[2], QR_GROUP_ROWS), cuts = (uint32_t)qr_div_up(groups, cpu->group_step);
    uint32_t row = piece / cuts * cpu->row_step, group = piece % cuts * cpu->group_step;
    cpu->isa->product(&cpu->args, row, qr_min_u32(row + cpu->row_step, cpu->args.s[0]), group, qr_min_u32(group + cpu->group_step, groups));
}

/* Opens pieces for the pool, or runs them here and now when there is too little to share. True if that finished the task. */
static bool offer(cpu_device_t *cpu, qr_piece_f *run, void *context, uint32_t count, bool small)
{
    if (!small && count > 1) { /* with one thread too: the pieces are where the budget is seen */
        qr_pool_start(cpu->pool, run, context, count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) run(context, i, 0);
    return true;
}

static bool begin_rows(cpu_device_t *cpu, const qr_launch_t *launch)
{
    uint32_t rows = launch->sizes[0], width = 1;
    switch (launch->kernel) {
    case QR_KERNEL_rope_append: width = (launch->sizes[1] + 2 * launch->sizes[2]) * launch->sizes[3]; break;
    case QR_KERNEL_rope_table: width = launch->sizes[1] * 16; break;
    case QR_KERNEL_page_copy: width = launch->sizes[1] * launch->sizes[2] / 8; break;
    case QR_KERNEL_gate: width = launch->sizes[1] * 4; break;
    default: width = launch->sizes[1]; break;
    }
    if (!rows) return true;
    cpu->hurried = rows >= 64;
    cpu->row_step = qr_max_u32(1, qr_min_u32(rows, ROWS_WORK / qr_max_u32(1, width)));
    return offer(cpu, run_rows, cpu, (uint32_t)qr_div_up(rows, cpu->row_step), (uint64_t)rows * width < ROWS_WORK);
}

static bool begin_product(cpu_device_t *cpu, const qr_launch_t *launch)
{
    uint32_t rows = launch->sizes[0], columns = launch->sizes[1], outputs = launch->sizes[2];
    uint32_t groups = (uint32_t)qr_div_up(outputs, QR_GROUP_ROWS);
    if (!rows || !outputs) return true;
    qr_assert(columns % QR_BLOCK == 0 && launch->sizes[4] >= launch->sizes[5] + outputs);
    cpu->row_step = qr_min_u32(rows, PRODUCT_ROWS);
    uint64_t macs = (uint64_t)cpu->row_step * columns * QR_GROUP_ROWS;
    uint32_t step = (uint32_t)qr_max_u64(2, PIECE_MACS / macs), fair = (uint32_t)qr_div_up(groups, 8ull * cpu->threads);
    cpu->group_step = qr_max_u32(2, qr_min_u32(step, fair) / 2 * 2); /* pairs of groups: the widest tile */
    uint64_t pieces = qr_div_up(rows, cpu->row_step) * qr_div_up(groups, cpu->group_step);
    qr_assert(pieces <= QR_PIECES_MAX);
    cpu->hurried = (uint64_t)rows * columns * outputs >= HURRIED_MACS;
    return offer(cpu, run_product, cpu, (uint32_t)pieces, (uint64_t)rows * columns * outputs < SHARED_MACS);
}

/* Next round of the open attention launch. 1: there is none. */
static bool next_round(cpu_device_t *cpu)
{
    for (;;) {
        bool small;
        uint32_t pieces = qr_plan_round(cpu->plan, &small);
        if (!pieces) return true;
        if (!offer(cpu, qr_plan_run, cpu->plan, pieces, small || pieces == 1)) return false;
    }
}

/* Begins the first launch of the queue. 1: it is done, 0: pieces are open, negative: failed. */
static int begin(cpu_device_t *cpu)
{
    const qr_launch_t *launch = &cpu->launches[cpu->first];
    for (uint32_t i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++)
        cpu->args.b[i] = launch->buffers[i] ? launch->buffers[i]->host + launch->offsets[i] : NULL;
    memcpy(cpu->args.s, launch->sizes, sizeof cpu->args.s);
    memcpy(cpu->args.f, launch->scalars, sizeof cpu->args.f);
    if (launch->kernel == QR_KERNEL_product) return begin_product(cpu, launch);
    if (launch->kernel != QR_KERNEL_attention) return begin_rows(cpu, launch);
    int error = qr_plan_begin(cpu->plan, &cpu->args);
    cpu->hurried = true;
    return error ? error : next_round(cpu);
}

static void retire(cpu_device_t *cpu)
{
    cpu->first = (cpu->first + 1) % QR_LAUNCHES_MAX;
    cpu->count--;
    cpu->open = false;
}

/* Continues or begins the first launch. 1: it is done, 0: the deadline came first, negative: failed. */
static int step(cpu_device_t *cpu, uint64_t deadline_ns)
{
    if (!cpu->open) {
        int done = begin(cpu);
        if (done) return done;
        cpu->open = true;
    }
    if (!qr_pool_work(cpu->pool, deadline_ns, cpu->hurried)) return 0;
    if (cpu->launches[cpu->first].kernel != QR_KERNEL_attention || next_round(cpu)) return 1;
    return 0; /* another round is open: the caller looks at the clock and comes back */
}

static int work(cpu_device_t *cpu, uint64_t deadline_ns)
{
    while (cpu->count) {
        int done = step(cpu, deadline_ns);
        if (done < 0) {
            cpu->count = 0;
            cpu->open = false;
            return -QR_E_DEVICE;
        }
        if (done) retire(cpu);
        if (deadline_ns != UINT64_MAX && qr_pool_now_ns() >= deadline_ns) return cpu->count != 0;
    }
    return 0;
}

static int advance(qr_device_t *device, uint64_t budget_us)
{
    cpu_device_t *cpu = (cpu_device_t *)device;
    uint64_t deadline_ns = budget_us ? qr_pool_now_ns() + budget_us * 1000 : UINT64_MAX;
#if defined(__x86_64__)
    uint32_t control = _mm_getcsr();
    _mm_setcsr(0x1f80u);
#endif
    int result = work(cpu, deadline_ns);
#if defined(__x86_64__)
    _mm_setcsr(control);
#endif
    return result;
}

static void abandon(qr_device_t *device)
{
    cpu_device_t *cpu = (cpu_device_t *)device;
    qr_pool_abandon(cpu->pool);
    cpu->count = 0;
    cpu->open = false;
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static const qr_cpu_isa_t *choose_isa(uint32_t wanted)
{
    const qr_cpu_isa_t *avx512 = qr_cpu_avx512(), *avx2 = qr_cpu_avx2();
    switch (wanted) {
    case QR_ISA_SCALAR: return &qr_cpu_scalar;
    case QR_ISA_AVX2: return avx2;
    case QR_ISA_AVX512: return avx512;
    default: return avx512 ? avx512 : avx2 ? avx2 : &qr_cpu_scalar;
    }
}

static void destroy(qr_device_t *device)
{
    cpu_device_t *cpu = (cpu_device_t *)device;
    qr_pool_destroy(&cpu->pool);
    qr_plan_destroy(&cpu->plan);
    qr_table_destroy(&cpu->table);
    free(cpu);
}

static void name_it(cpu_device_t *cpu)
{
    qr_text_t text;
    qr_text_init(&text, cpu->base.name, sizeof cpu->base.name);
    qr_text_put(&text, "cpu ");
    qr_text_put(&text, cpu->isa->name);
    qr_text_put(&text, ", ");
    qr_text_put_u64(&text, cpu->threads);
    qr_text_put(&text, cpu->threads == 1 ? " thread" : " threads");
    qr_text_init(&text, cpu->base.variant, sizeof cpu->base.variant);
    qr_text_put(&text, "cpu-1");
}

int qr_device_cpu_new(const qr_device_config_t *config, qr_device_t **ret_device, char *message, size_t message_bytes)
{
    qr_text_t text;
    qr_text_init(&text, message, message_bytes);
    const qr_cpu_isa_t *isa = choose_isa(config->isa);
    if (!isa) {
        qr_text_put(&text, "this processor or build has no such instruction set; use --isa auto");
        return -QR_E_UNSUPPORTED;
    }
    cpu_device_t *cpu = calloc(1, sizeof *cpu);
    uint32_t threads = qr_max_u32(1, qr_min_u32(config->threads, QR_THREADS_MAX));
    if (!cpu || qr_table_new(&cpu->table) || qr_plan_new(isa, threads, &cpu->plan) || qr_pool_new(threads, &cpu->pool)) {
        if (cpu) destroy(&cpu->base);
        qr_text_put(&text, "not enough memory or threads for the cpu device; use fewer --threads");
        return -QR_E_MEMORY;
    }
    cpu->isa = isa;
    cpu->threads = threads;
    cpu->base = (qr_device_t){.destroy = destroy,
                              .buffer_new = buffer_new,
                              .buffer_done = buffer_done,
                              .buffer_write = buffer_write,
                              .buffer_read = buffer_read,
                              .weight_new = weight_new,
                              .enqueue = enqueue,
                              .advance = advance,
                              .abandon = abandon};
    name_it(cpu);
    *ret_device = &cpu->base;
    return 0;
}
