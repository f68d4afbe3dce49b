/* link: qr_model */
/* inspect_test.c - `quire inspect`: what it prints and how it ends. Damaged and unsupported files: one line, exit 2 (MF-01, MF-07 at the
 * command). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/inspect.h"
#include "tests/unit/model_file.h"

typedef struct output {
    int status;
    char out[65536], err[4096];
} output_t;

static void stream_take(FILE *stream, int saved, const char *path, char *text, size_t room)
{
    fflush(stream);
    dup2(saved, fileno(stream));
    close(saved);
    FILE *file = fopen(path, "r");
    text[fread(text, 1, room - 1, file)] = 0;
    fclose(file);
    unlink(path);
}

static output_t *inspect(int argc, char **argv)
{
    static output_t output;
    char out[] = "/tmp/quire-out-XXXXXX", err[] = "/tmp/quire-err-XXXXXX";
    int out_file = mkstemp(out), err_file = mkstemp(err), saved_out, saved_err;
    fflush(stdout), fflush(stderr);
    saved_out = dup(1), saved_err = dup(2);
    dup2(out_file, 1), dup2(err_file, 2);
    output.status = qr_inspect_main(argc, argv);
    stream_take(stdout, saved_out, out, output.out, sizeof output.out);
    stream_take(stderr, saved_err, err, output.err, sizeof output.err);
    close(out_file), close(err_file);
    return &output;
}
static uint32_t lines_of(const char *text)
{
    uint32_t lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static void test_prints(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    config.layers = 3, config.window[1] = 32;
    model_file_t file = model_file_tiny(&config);
    output_t *o = inspect(2, (char *[]){"inspect", file.path});
    assert_int_equal(o->status, 0);
    assert_string_equal(o->err, "");
    static const char *const words[] = {"gguf_version          3",
                                        "\"llama.block_count\" = 3",
                                        "320 x string",
                                        "Q8_0",
                                        "F32",
                                        "whole prefix",
                                        "window 32",
                                        "  architecture=llama",
                                        "  variant=cpu-1",
                                        "  weights=sha256:",
                                        "fingerprint           "};
    for (size_t i = 0; i < QR_COUNT(words); i++) {
        if (!strstr(o->out, words[i])) print_error("word %zu is missing\n", i);
        assert_non_null(strstr(o->out, words[i]));
    }
    o = inspect(3, (char *[]){"inspect", "--json", file.path});
    assert_int_equal(o->status, 0);
    assert_int_equal(lines_of(o->out), 1);
    static const char *const members[] = {
        "{\"file\":",         "\"gguf_version\":3", "\"formats\":{\"F32\":{\"tensors\":7,", "\"groups\":[{\"window\":0,",
        "\"fingerprint\":\"", "\\nweights=sha256:"};
    for (size_t i = 0; i < QR_COUNT(members); i++) {
        const char *member = strstr(members[i], "\\n") ? "\\u000aweights=sha256:" : members[i];
        if (!strstr(o->out, member)) print_error("member %zu is missing in %s\n", i, o->out);
        assert_non_null(strstr(o->out, member));
    }
    o = inspect(3, (char *[]){"inspect", file.path, "--no-fingerprint"});
    assert_int_equal(o->status, 0);
    assert_null(strstr(o->out, "weights=sha256"));
    unlink(file.path);
}

static void test_refuses(void **state)
{
    (void)state;
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    model_file_t file = model_file_tiny(&config);
    output_t *o = inspect(2, (char *[]){"inspect", "/nonexistent.gguf"});
    assert_int_equal(o->status, 2);
    assert_int_equal(lines_of(o->err), 1);
    assert_string_equal(o->out, "");
    assert_int_equal(truncate(file.path, 20000), 0);
    o = inspect(3, (char *[]){"inspect", "--json", file.path});
    assert_int_equal(o->status, 2);
    assert_int_equal(lines_of(o->err), 1);
    assert_non_null(strstr(o->err, "tensor \""));
    unlink(file.path);
    qr_gguf_writer_t *writer;
    assert_int_equal(qr_tiny_build(&config, &writer), 0); /* a sound file of another architecture is shown, then refused */
    qr_gguf_writer_string(writer, "general.architecture", "gemma\n\x1b[31m");
    file = model_file_save(&writer);
    o = inspect(2, (char *[]){"inspect", file.path});
    assert_int_equal(o->status, 2);
    assert_int_equal(lines_of(o->err), 1);
    assert_non_null(strstr(o->err, "llama is supported"));
    assert_non_null(strstr(o->out, "tensors"));
    assert_null(strchr(o->out, 27)); /* no file writes our terminal */
    assert_null(strchr(o->err, 27));
    o = inspect(3, (char *[]){"inspect", "--json", file.path});
    assert_int_equal(o->status, 2);
    assert_non_null(strstr(o->out, "\"error\":"));
    unlink(file.path);
    o = inspect(1, (char *[]){"inspect"});
    assert_int_equal(o->status, 2);
    assert_non_null(strstr(o->err, "usage"));
    o = inspect(3, (char *[]){"inspect", "--jsonn", "x"});
    assert_int_equal(o->status, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prints), cmocka_unit_test(test_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
