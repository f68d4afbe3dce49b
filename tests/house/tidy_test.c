/* link: qr_base */
/* tidy_test.c - who may include whom (house.md §3.3), checked on every #include line of the repository, and a few words that no
 * file may hold. Runs in the repository's root. The rules themselves are tested first, on lines that must be refused. */
#include "base/base.h"

#include <ctype.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <cmocka.h>

enum { LINE_BYTES = 4096, WORDS_MAX = 24 };

/* One room, or one file of it with more rights: first row whose path begins the file's. Entries of `may` are beginnings of what may
 * stand between the quotes or angle brackets; "libc" stands for the headers of libc_headers. */
typedef struct {
    const char *path;
    const char *may[WORDS_MAX];
} rule_t;

#define ACTOR_HEADERS "actors/actor.h", "actors/given.h", "actors/outbox.h", "actors/note."
/* given.h and message.h: layout, vocabulary and chat roles that a model shares with the actors are plain words of theirs. */
#define MODEL "base/", "kernels/", "model/", "actors/given.h", "messages/message.h"
static const rule_t rules[] = {
    {"base/assert.c", {"base/", "libc"}},
    {"base/", {"base/", "stdbool.h", "stddef.h", "stdint.h", "string.h"}}, /* what base.h gives to everyone */
    {"messages/document.c", {"base/", "messages/", "libc"}},               /* a program */
    {"messages/codec.c", {"base/", "messages/", "msgpack.h"}},
    {"messages/", {"base/", "messages/"}},
    {"actors/io/executor", {"base/", "messages/", ACTOR_HEADERS, "actors/io/executor", "actors/io/activity.h", "kernels/", "model/", "libc"}},
    {"actors/io/transfer",
     {"base/", "messages/", ACTOR_HEADERS, "actors/io/transfer", "actors/io/activity.h", "actors/io/duty.h", "kernels/stream.h", "model/decoder.h",
      "store/chunk", "store/folder.h", "store/staging.h", "openssl/", "libc"}},
    {"actors/io/storage", {"base/", "messages/", ACTOR_HEADERS, "actors/io/storage", "actors/io/activity.h", "actors/io/duty.h", "store/", "curl/", "openssl/", "kernels/stream.h", "libc"}},
    {"actors/io/facts", {"base/", "messages/", ACTOR_HEADERS, "actors/io/facts", "actors/catalog_batch.h", "store/continuations.h", "store/facts.h", "store/log.h", "libc"}},
    {"actors/io/text", {"base/", "messages/", ACTOR_HEADERS, "actors/io/text", "model/tokenizer.h", "model/template.h", "libc"}},
    {"actors/io/http", {"base/", "messages/", ACTOR_HEADERS, "actors/io/http", "actors/io/keys.", "actors/io/recall.", "model/model.h", "microhttpd.h", "jansson.h", "libc"}},
    /* Ends of the program that act as http does: generate and bench ask through the prompt actor and print. */
    {"actors/io/", {"base/", "messages/", ACTOR_HEADERS, "actors/io/", "model/tokenizer.h", "model/model.h", "jansson.h", "libc"}},
    {"actors/", {"base/", "messages/message.h", "messages/schema.h", "messages/metric.def", ACTOR_HEADERS, "actors/"}}, /* see listed() */
    {"transport/sim/",
     {"base/", "messages/", "actors/", "transport/", "setjmp.h", "stdarg.h", "stdio.h", "stdlib.h"}}, /* no clock, no socket, no thread */
    {"transport/", {"base/", "messages/", ACTOR_HEADERS, "actors/roles.", "transport/", "zmq.h", "czmq.h", "libc"}},
    {"store/", {"base/", "store/", "leveldb/", "openssl/", "curl/", "xxhash.h", "xxh_x86dispatch.h", "libc"}},
    {"kernels/", {"base/", "kernels/", "CL/", "cuda.h", "cuda_fp16.h", "immintrin.h", "cpuid.h", "libc"}},
    {"model/tokenizer", {MODEL, "pcre2.h", "utf8proc.h", "libc"}},
    {"model/pretokenize", {MODEL, "pcre2.h", "utf8proc.h", "libc"}},
    {"model/template", {MODEL, "pcre2.h", "utf8proc.h", "libc"}},
    {"model/", {MODEL, "immintrin.h", "libc"}},
    {"main.c", {""}},
    {"tests/", {""}},
    {"examples/", {""}},
};

static const char *const libc_headers[] = {
    "assert.h", "ctype.h",     "dirent.h",  "dlfcn.h",  "errno.h",     "fcntl.h",   "fenv.h",   "inttypes.h", "limits.h",
    "linux/",   "locale.h",    "malloc.h",  "math.h",   "netdb.h",     "netinet/",  "arpa/",    "poll.h",     "pthread.h",
    "sched.h",  "semaphore.h", "signal.h",  "stdarg.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h",   "stdio.h",
    "stdlib.h", "string.h",    "strings.h", "sys/",     "termios.h",   "time.h",    "unistd.h",
};

static bool begins(const char *text, const char *word) { return strncmp(text, word, strlen(word)) == 0; }

static bool is_libc(const char *include)
{
    for (size_t i = 0; i < QR_COUNT(libc_headers); i++) {
        const char *name = libc_headers[i];
        if (name[strlen(name) - 1] == '/' ? begins(include, name) : strcmp(include, name) == 0) return true;
    }
    return false;
}

/* ---- evaluators ----------------------------------------------------------------------------------------------------- */

static char evaluators[8192]; /* tests/house/evaluators.txt */

/* Whether evaluators.txt lists `other` for the pure file `name`. */
static bool listed(const char *name, const char *other)
{
    size_t length = strlen(name), other_length = strlen(other);
    for (const char *line = evaluators; *line;) {
        const char *end = strchr(line, '\n') ? strchr(line, '\n') : line + strlen(line);
        const char *at = begins(line, "- ") ? line + 2 : line;
        if (begins(at, name) && at[length] == ':') {
            for (at += length + 1; at < end; at++)
                if (at[-1] == ' ' && begins(at, other) && (at[other_length] == ' ' || at[other_length] == '\n' || at[other_length] == 0))
                    return true;
        }
        line = *end ? end + 1 : end;
    }
    return false;
}

/* "worker" of "actors/worker.c". */
static void stem(const char *path, char name[64])
{
    const char *slash = strrchr(path, '/'), *from = slash ? slash + 1 : path, *dot = strchr(from, '.');
    size_t length = dot ? (size_t)(dot - from) : strlen(from);
    if (length > 63) length = 63;
    memcpy(name, from, length);
    name[length] = 0;
}

/* A pure actor sees no other actor, only the evaluators listed for it. */
static bool evaluator_allowed(const char *path, const char *include)
{
    char name[64], other[64];
    stem(path, name);
    stem(include, other);
    static const char *const common[] = {"actor", "given", "outbox", "note", "roles"};
    for (size_t i = 0; i < QR_COUNT(common); i++)
        if (strcmp(other, common[i]) == 0) return strcmp(other, "roles") != 0 || strcmp(name, "roles") == 0;
    return strcmp(name, other) == 0 || listed(name, other);
}

/* Whether the file may include the header. */
static bool allowed(const char *path, const char *include)
{
    for (size_t r = 0; r < QR_COUNT(rules); r++) {
        if (!begins(path, rules[r].path)) continue;
        bool pure = strcmp(rules[r].path, "actors/") == 0;
        for (int i = 0; i < WORDS_MAX && rules[r].may[i]; i++) {
            const char *may = rules[r].may[i];
            bool match = strcmp(may, "libc") == 0 ? is_libc(include) : begins(include, may);
            if (match) return !pure || !begins(include, "actors/") || evaluator_allowed(path, include);
        }
        return false;
    }
    return false; /* a room that nobody described */
}

static void test_rules(void **state)
{
    (void)state;
    static const struct {
        bool may;
        const char *path, *include;
    } cases[] = {
        {true, "actors/router.c", "base/map.h"},
        {false, "actors/router.c", "transport/host.h"},
        {false, "actors/router.c", "stdio.h"},
        {false, "actors/router.c", "string.h"},
        {false, "actors/router.c", "actors/gateway.h"},
        {false, "actors/router.c", "actors/plan.h"},
        {true, "actors/router.c", "actors/router.h"},
        {true, "actors/scheduler.c", "actors/plan.h"},
        {false, "actors/scheduler.c", "actors/page_table.h"},
        {false, "actors/scheduler.c", "actors/io/executor.h"},
        {false, "actors/scheduler.c", "messages/codec.h"},
        {false, "actors/router.c", "model/model.h"},
        {false, "base/map.c", "messages/message.h"},
        {false, "base/map.c", "stdlib.h"},
        {true, "base/assert.c", "stdlib.h"},
        {false, "messages/print.c", "msgpack.h"},
        {true, "messages/codec.c", "msgpack.h"},
        {false, "messages/codec.c", "actors/roles.h"},
        {false, "transport/host.c", "actors/router.h"},
        {true, "transport/host.c", "zmq.h"},
        {false, "transport/host.c", "model/model.h"},
        {false, "transport/sim/world.c", "zmq.h"},
        {false, "transport/sim/world.c", "time.h"},
        {true, "transport/sim/world.c", "actors/router.h"},
        {false, "kernels/table.c", "model/model.h"},
        {true, "kernels/table.c", "CL/cl.h"},
        {false, "model/decoder.c", "pcre2.h"},
        {true, "model/tokenizer.c", "pcre2.h"},
        {false, "model/model.c", "actors/router.h"},
        {false, "actors/io/http.c", "kernels/device.h"},
        {true, "actors/io/http.c", "microhttpd.h"},
        {false, "actors/io/text.c", "kernels/device.h"},
        {false, "actors/io/executor.c", "actors/scheduler.h"},
        {false, "store/files.c", "messages/message.h"},
        {false, "elsewhere/new.c", "base/base.h"},
        {true, "tests/unit/x.c", "model/model.h"},
        {true, "main.c", "transport/mesh.h"},
        {false, "transport/host.c", "curl/curl.h"},
    };
    for (size_t i = 0; i < QR_COUNT(cases); i++) {
        if (allowed(cases[i].path, cases[i].include) != cases[i].may) print_error("%s %s\n", cases[i].path, cases[i].include);
        assert_true(allowed(cases[i].path, cases[i].include) == cases[i].may);
    }
}

/* ---- the repository ------------------------------------------------------------------------------------------------- */

static uint32_t files_seen, includes_seen, complaints;

static void complain(const char *path, unsigned line, const char *what, const char *detail)
{
    print_error("%s:%u: %s%s\n", path, line, what, detail);
    complaints++;
}

/* What stands behind #include on the line, or NULL. Cuts the line. */
static char *include_of(char *line)
{
    while (*line == ' ') line++;
    if (*line++ != '#') return NULL;
    while (*line == ' ') line++;
    if (!begins(line, "include")) return NULL;
    char *from = line + strcspn(line, "\"<");
    if (!*from) return NULL;
    char *end = from + 1 + strcspn(from + 1, "\">");
    *end = 0;
    return from + 1;
}

static void check_line(const char *path, unsigned number, char *line)
{
    static const char *const words[] = {"TO"
                                        "DO",
                                        "FIX"
                                        "ME",
                                        "XX"
                                        "X"};
    size_t length = strcspn(line, "\r\n");
    if (strchr(line, '\t')) complain(path, number, "a tab", "");
    if (length && line[length - 1] == ' ') complain(path, number, "a blank at the end", "");
    if (line[length] == '\r') complain(path, number, "a carriage return", "");
    for (size_t i = 0; i < QR_COUNT(words); i++) {
        const char *at = strstr(line, words[i]);
        if (at && !isalnum((unsigned char)at[strlen(words[i])]) && (at == line || !isalnum((unsigned char)at[-1])))
            complain(path, number, "unfinished: ", words[i]);
    }
    char *include = include_of(line);
    if (!include) return;
    includes_seen++;
    if (!allowed(path, include)) complain(path, number, "may not include ", include);
}

static void check_file(const char *path)
{
    static char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    files_seen++;
    for (unsigned number = 1; fgets(line, sizeof line, file); number++) check_line(path, number, line);
    fclose(file);
}

static bool is_source(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0 || strcmp(dot, ".def") == 0 || strcmp(dot, ".k") == 0);
}

static void check_folder(const char *folder, int depth)
{
    DIR *dir = opendir(folder);
    if (!dir) return; /* a room without files yet */
    assert_true(depth < 8);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[1024];
        struct stat status;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &status) != 0) continue;
        if (S_ISDIR(status.st_mode))
            check_folder(path, depth + 1);
        else if (is_source(entry->d_name))
            check_file(path);
    }
    closedir(dir);
}

static void test_repository(void **state)
{
    (void)state;
    static const char *const rooms[] = {"base", "messages", "actors", "transport", "store", "kernels", "model", "tests", "examples"};
    for (size_t i = 0; i < QR_COUNT(rooms); i++) check_folder(rooms[i], 0);
    check_file("main.c");
    print_message("%u files, %u includes, %u complaints\n", files_seen, includes_seen, complaints);
    assert_true(files_seen > 50 && includes_seen > 200);
    assert_int_equal(complaints, 0);
}

static int set_up(void **state)
{
    (void)state;
    FILE *file = fopen("tests/house/evaluators.txt", "r");
    if (!file) return -1;
    size_t count = fread(evaluators, 1, sizeof evaluators - 1, file);
    fclose(file);
    evaluators[count] = 0;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_repository)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
