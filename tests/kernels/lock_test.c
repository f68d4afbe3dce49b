/* link: qr_kernels */
/* lock_test.c - the bits of arithmetic `cpu-1` as recorded digests: every kernel on seeded inputs, on every instruction set, against
 * tests/kernels/numerics.lock. What two compilers or two machines build must give the same digests; a change that alters one alters
 * the arithmetic and needs a new name. QUIRE_NUMERICS_WRITE=1 records anew (from the scalar kernel). */
#include "base/sha256.h"
#include "base/text.h"
#include "tests/kernels/scenario.h"

#define LOCK_FILE "tests/kernels/numerics.lock"
enum { LINES_MAX = 64, LINE_BYTES = 256 };
static char recorded[LINES_MAX][LINE_BYTES];
static uint32_t recorded_count, used;
static bool writing;
static FILE *out;
static qr_device_t *devices[3];
static uint32_t device_count;

static int begin(void **state)
{
    (void)state;
    writing = getenv("QUIRE_NUMERICS_WRITE") != NULL;
    for (uint32_t isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++)
        if ((devices[device_count] = open_device(isa, 2))) device_count++;
    FILE *in = writing ? NULL : fopen(LOCK_FILE, "r");
    while (in && recorded_count < LINES_MAX && fgets(recorded[recorded_count], LINE_BYTES, in)) recorded_count++;
    if (in) fclose(in);
    if (writing) out = fopen(LOCK_FILE, "w");
    return writing ? out == NULL : recorded_count == 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < device_count; i++) qr_device_destroy(&devices[i]);
    if (out) fclose(out);
    print_message("%u digests\n", used);
    return 0;
}

static void digest_of(const scenario_t *s, qr_device_t *device, char hex[65])
{
    uint8_t *got[QR_LAUNCH_BUFFERS_MAX], digest[32];
    qr_sha256_t sha;
    qr_text_t text;
    scenario_run(s, device, 0, got);
    qr_sha256_init(&sha);
    for (int i = 0; i < QR_LAUNCH_BUFFERS_MAX; i++)
        if (got[i]) qr_sha256_add(&sha, got[i], s->bytes[i]);
    qr_sha256_end(&sha, digest);
    qr_text_init(&text, hex, 65);
    qr_text_put_hex(&text, digest, 32);
    results_done(got);
}

static void check(scenario_t s)
{
    char line[LINE_BYTES], hex[65];
    for (uint32_t i = 0; i < device_count; i++) {
        digest_of(&s, devices[i], hex);
        snprintf(line, sizeof line, "%s %s\n", hex, s.what);
        if (writing && i == 0) fputs(line, out);
        if (writing) continue;
        assert_true(used < recorded_count);
        if (strcmp(line, recorded[used])) fail_msg("%s: %s is not the recorded %s", qr_device_name(devices[i]), line, recorded[used]);
    }
    used++;
    scenario_done(&s);
}

/* Inputs come from exact operations only: no cosine of a library enters a digest. */
static void test_digests(void **state)
{
    (void)state;
    static const uint32_t formats[] = {QR_FORMAT_F32, QR_FORMAT_F16, QR_FORMAT_Q8_0, QR_FORMAT_Q4_0, QR_FORMAT_Q4_1, QR_FORMAT_Q6_K};
    random_state = 20240229;
    for (uint32_t f = 0; f < QR_COUNT(formats); f++) {
        check(make_embed(formats[f], 3, 256, 33));
        check(make_product(formats[f], 1, 512, 40, 0, false));
        check(make_product(formats[f], 9, 256, 33, 3, true));
    }
    check(make_rope_table(20, 32));
    check(make_norm(3, 576, true));
    check(make_norm(2, 96, false));
    check(make_quantise(5, 352, true));
    check(make_gate(3, 1536, true, 3));
    check(make_gate(2, 64, false, 40));
    for (uint32_t pairing = 0; pairing < 2; pairing++) {
        scenario_t s = make_rope_append(9, 3, 1, 64, pairing);
        for (uint32_t i = 0; i < s.bytes[1] / 4; i++) ((float *)s.data[1])[i] = random_float(0.5f);
        check(s);
    }
    lanes_t lanes = {.count = 4, .rows = {1, 40, 2, 1}, .keys = {700, 90, 66, 1}};
    check(make_attention(9, 3, 64, 16, 0, &lanes, 0.3f));
    check(make_attention(2, 1, 128, 8, 0, &lanes, 0.3f));
    check(make_attention(4, 1, 80, 32, 50, &lanes, 0.3f));
    check(make_gather(7, 64));
    check(make_page_copy(3, 16, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digests)};
    return cmocka_run_group_tests(tests, begin, end);
}
