#include "model/doctor.h"

#include "base/params.h"
#include "base/sha256.h"
#include "model/decoder.h"
#include "model/tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 40, PAGE = 16, BLOCKS = 3 };

static void print_processor(void)
{
    char line[512], name[256] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10)) {
            const char *colon = strchr(line, ':');
            if (colon) snprintf(name, sizeof name, "%s", colon + 2);
            name[strcspn(name, "\n")] = 0;
            break;
        }
    if (file) fclose(file);
    printf("processor   %s, %ld cores\n", name, sysconf(_SC_NPROCESSORS_ONLN));
}
static void print_memory(void)
{
    char line[256], huge[64] = "unknown";
    unsigned long long total = 0, available = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "MemTotal: %llu", &total);
        sscanf(line, "MemAvailable: %llu", &available);
    }
    if (file) fclose(file);
    file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file && fgets(line, sizeof line, file)) {
        const char *open = strchr(line, '[');
        if (open) snprintf(huge, sizeof huge, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
    }
    if (file) fclose(file);
    printf("memory      %.1f GiB, %.1f GiB available; huge pages: %s\n", (double)total / 1048576.0, (double)available / 1048576.0, huge);
}

/* SHA-256 of the last logits of a fixed prompt on a tiny model. 0, or a negative code with a sentence. */
static int logits_digest(const char *path, const qr_device_config_t *config, uint8_t ret_digest[32], char *name, size_t name_bytes, const char **ret_overlap, char *message, size_t message_bytes)
{
    qr_device_t *device = NULL;
    qr_model_t *model = NULL;
    qr_decoder_t *decoder = NULL;
    uint32_t tokens[ROWS], positions[ROWS], last = ROWS - 1, offsets[2] = {0, ROWS}, first[1] = {0}, page_offsets[2] = {0, BLOCKS}, pages[BLOCKS] = {2, 0, 1};
    int32_t slots[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        tokens[i] = 3 + i * 31 % 250;
        positions[i] = i;
        slots[i] = (int32_t)(pages[i / PAGE] * PAGE + i % PAGE);
    }
    qr_decoder_config_t sizes = {.page_tokens = PAGE, .rows_max = ROWS, .lanes_max = 1, .context_tokens = 64, .poison = true, .pages = {BLOCKS, BLOCKS, BLOCKS, BLOCKS}};
    int status = qr_device_new(config, &device, message, message_bytes);
    if (!status) snprintf(name, name_bytes, "%s", qr_device_name(device)), *ret_overlap = qr_device_overlap(device);
    if (!status) status = qr_model_open(path, &model, message, message_bytes);
    if (!status) status = qr_model_load(model, device, NULL, NULL, message, message_bytes);
    if (!status) status = qr_decoder_new(model, &sizes, &decoder, message, message_bytes);
    qr_batch_t batch = {.row_count = ROWS, .lane_count = 1, .tokens = tokens, .positions = positions, .row_offsets = offsets, .logit_count = 1, .logit_rows = &last,
                        .groups[0] = {.page_offsets = page_offsets, .first_blocks = first, .pages = pages, .slots = slots}};
    if (!status) status = qr_decoder_submit(decoder, &batch);
    if (!status) status = qr_decoder_advance(decoder, 0);
    if (!status) qr_sha256(qr_decoder_logits(decoder, 0), model->arch.vocabulary * sizeof(float), ret_digest);
    qr_decoder_destroy(&decoder);
    qr_model_destroy(&model);
    qr_device_destroy(&device);
    return status;
}
static int test_devices(void)
{
    char path[] = "/tmp/quire-doctor-XXXXXX", message[1024], name[128];
    int file = mkstemp(path), bad = 0;
    qr_tiny_config_t tiny;
    qr_tiny_config_init(&tiny);
    if (file < 0 || qr_tiny_write(&tiny, path)) {
        printf("self-test   cannot write %s; make room in /tmp and run again\n", path);
        return 1;
    }
    close(file);
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512"};
    uint8_t judge[32], digest[32];
    const char *overlap = "";
    for (uint32_t isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        qr_device_config_t config = {.kind = QR_DEVICE_CPU, .isa = isa, .threads = 2};
        int status = logits_digest(path, &config, isa == QR_ISA_SCALAR ? judge : digest, name, sizeof name, &overlap, message, sizeof message);
        bool equal = isa == QR_ISA_SCALAR || !memcmp(judge, digest, 32);
        if (status) printf("cpu %-7s not used: %s\n", isas[isa], message);
        else printf("cpu %-7s %s\n", isas[isa], equal ? "works, the same bits as scalar" : "WRONG BITS: use --isa scalar and report this");
        bad |= (status && isa == QR_ISA_SCALAR) || (!status && !equal);
    }
    printf("cpu         moving state beside computing: %s\n", overlap);
    qr_device_config_t config = {.kind = QR_DEVICE_OPENCL};
    int status = logits_digest(path, &config, digest, name, sizeof name, &overlap, message, sizeof message);
    if (status) printf("opencl      not used: %s\n", message);
    else printf("opencl      works: %s%s; moving state beside computing: %s\n", name, memcmp(judge, digest, 32) ? " (own bits)" : ", the same bits as scalar", overlap);
    unlink(path);
    return bad;
}
int qr_doctor_main(int count, char **words)
{
    if (count) {
        bool help = !strcmp(words[0], "--help") || !strcmp(words[0], "-h");
        if (!help) fprintf(stderr, "quire: doctor takes no options\n");
        else printf("usage: quire doctor   checks processor, memory, devices and the bits of every instruction set\n");
        return help ? 0 : 2;
    }
    print_processor();
    print_memory();
    int bad = test_devices();
    printf("%s\n", bad ? "doctor: something above needs attention" : "doctor: this machine can serve");
    return bad;
}
