/* continuation_tool.c - see continuation_tool.h. One HTTP/1.1 request on a connection of its own, answered whole; the key comes from the
 * environment, so that no list of processes shows it. What the server says is printed as it is: its objects are the format of --json.
 *
 * Bounds: ANSWER_BYTES_MAX of an answer, WAIT_S without a byte. */
#include "actors/io/continuation_tool.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "actors/io/http_json.h"

enum { ANSWER_BYTES_MAX = 16 << 20, WAIT_S = 60, EXIT_USAGE = 2 };

typedef struct tool {
    const char *server, *name, *owner, *ttl_s;
    bool pin, json;
    const char *words[2]; /* what to do, and to which */
    int word_count;
} tool_t;

static const char help[] = "usage: quire continuation list | show ID | save RESPONSE | fork ID | drop ID   [options]\n"
                           "  --server HOST:PORT  the running server (default 127.0.0.1:8080)\n"
                           "  --name TEXT --owner TEXT --ttl-s SECONDS --pin   of what save and fork make\n"
                           "  --json              the server's own JSON\n"
                           "A server with a keys file wants a key in the environment: QUIRE_KEY=qk-...\n";

static int complain(const char *what, const char *why)
{
    fprintf(stderr, "quire continuation: %s%s%s\n", what, why ? ": " : "", why ? why : "");
    return 1;
}

/* ---- words -------------------------------------------------------------------------------------------------------------------- */

static int read_words(tool_t *t, int count, char **word)
{
    const struct {
        const char *name;
        const char **to;
    } options[] = {{"--server", &t->server}, {"--name", &t->name}, {"--owner", &t->owner}, {"--ttl-s", &t->ttl_s}};
    for (int i = 0; i < count; i++) {
        size_t at = 0;
        while (at < QR_COUNT(options) && strcmp(word[i], options[at].name) != 0) at++;
        if (at < QR_COUNT(options)) {
            if (++i == count) return complain(word[i - 1], "needs a value"), EXIT_USAGE;
            *options[at].to = word[i];
        } else if (!strcmp(word[i], "--pin")) {
            t->pin = true;
        } else if (!strcmp(word[i], "--json")) {
            t->json = true;
        } else if (word[i][0] == '-' || t->word_count == 2) {
            return complain("unexpected argument", word[i]), EXIT_USAGE;
        } else {
            t->words[t->word_count++] = word[i];
        }
    }
    return 0;
}

/* An id that may stand in a request line. */
static bool plain(const char *id)
{
    return *id && strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == strlen(id);
}

/* A bearer token (RFC 6750, 2.1): ours are of letters, digits, '-' and '_'. */
static bool is_key(const char *key)
{
    return *key && strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=") == strlen(key);
}

/* ---- the request ---------------------------------------------------------------------------------------------------------------- */

static int dial(const char *server)
{
    char host[256];
    const char *colon = strrchr(server, ':');
    if (!colon || (size_t)(colon - server) >= sizeof host) return -1;
    size_t bytes = (size_t)(colon - server), from = server[0] == '[' && bytes > 2 ? 1 : 0;
    memcpy(host, server + from, bytes - 2 * from);
    host[bytes - 2 * from] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) return -1;
    int fd = -1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            int error = errno;
            close(fd);
            errno = error;
            fd = -1;
        }
    }
    freeaddrinfo(found);
    struct timeval wait = {.tv_sec = WAIT_S};
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return fd;
}

static void put_string(qr_http_buffer_t *out, const char *key, const char *value)
{
    if (!value) return;
    qr_http_put(out, out->count > 1 ? ",\"" : "\"");
    qr_http_put(out, key);
    qr_http_put(out, "\":\"");
    qr_http_put_escaped(out, value, strlen(value));
    qr_http_put(out, "\"");
}

static void put_body(const tool_t *t, qr_http_buffer_t *out)
{
    qr_http_put(out, "{");
    put_string(out, "response", !strcmp(t->words[0], "save") ? t->words[1] : NULL);
    put_string(out, "name", t->name);
    put_string(out, "owner", t->owner);
    if (t->ttl_s) {
        qr_http_put(out, out->count > 1 ? ",\"ttl_s\":" : "\"ttl_s\":");
        qr_http_put(out, t->ttl_s);
    }
    if (t->pin) qr_http_put(out, out->count > 1 ? ",\"pin\":true" : "\"pin\":true");
    qr_http_put(out, "}");
}

static void put_request(const tool_t *t, const char *method, qr_http_buffer_t *out)
{
    bool fork = !strcmp(t->words[0], "fork"), one = t->words[1] && strcmp(t->words[0], "save") != 0;
    const char *key = getenv("QUIRE_KEY");
    qr_http_buffer_t body = {0};
    if (!strcmp(method, "POST")) put_body(t, &body);
    qr_http_put(out, method);
    qr_http_put(out, " /v1/continuations");
    if (one) qr_http_put(out, "/");
    if (one) qr_http_put(out, t->words[1]);
    if (fork) qr_http_put(out, "/fork");
    qr_http_put(out, " HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\nHost: ");
    qr_http_put(out, t->server);
    if (key && is_key(key)) qr_http_put(out, "\r\nAuthorization: Bearer ");
    if (key && is_key(key)) qr_http_put(out, key);
    qr_http_put(out, "\r\nContent-Length: ");
    qr_http_put_u64(out, body.count);
    qr_http_put(out, "\r\n\r\n");
    qr_http_put_bytes(out, body.data, body.count);
    out->failed |= body.failed;
    qr_http_buffer_done(&body);
}

/* The whole answer, NUL-terminated; its status, or 0. */
static int converse(const tool_t *t, const qr_http_buffer_t *request, qr_http_buffer_t *answer)
{
    char part[16384];
    int fd = dial(t->server), status = 0;
    if (fd < 0) return 0;
    bool fine = !request->failed;
    for (size_t at = 0; fine && at < request->count;) {
        ssize_t sent = send(fd, request->data + at, request->count - at, MSG_NOSIGNAL);
        fine = sent > 0;
        at += fine ? (size_t)sent : 0;
    }
    for (ssize_t got = 1; fine && got > 0 && answer->count < ANSWER_BYTES_MAX;) {
        got = recv(fd, part, sizeof part, 0);
        if (got > 0) qr_http_put_bytes(answer, part, (size_t)got);
    }
    close(fd);
    qr_http_put_bytes(answer, "", 1);
    if (answer->failed || sscanf(answer->data, "HTTP/1.1 %3d", &status) != 1) return 0;
    return status;
}

/* ---- what is printed -------------------------------------------------------------------------------------------------------------- */

static void print_one(const json_t *c)
{
    const char *id = json_string_value(json_object_get(c, "id")), *name = json_string_value(json_object_get(c, "name")),
               *owner = json_string_value(json_object_get(c, "owner")), *text = json_string_value(json_object_get(c, "text"));
    json_int_t expires = json_integer_value(json_object_get(c, "expires_at"));
    printf("%s  %6lld tokens  %s  ", id ? id : "?", (long long)json_integer_value(json_object_get(c, "tokens")),
           json_is_true(json_object_get(c, "pin")) ? "pinned" : "-");
    if (expires)
        printf("until %lld", (long long)expires);
    else
        printf("stays");
    printf("  %s  %s\n", name ? name : "-", owner ? owner : "-");
    if (text) printf("%s\n", text);
}

static int print_answer(const tool_t *t, int status, const char *body)
{
    json_t *root = json_loads(body, 0, NULL);
    const json_t *data = json_object_get(root, "data"), *error = json_object_get(root, "error");
    int result = status == 200 && root ? 0 : 1;
    if (result) {
        const char *why = json_string_value(json_object_get(error, "message"));
        (void)complain(why ? why : "the answer of the server is not one of Quire's", NULL);
    } else if (t->json) {
        printf("%s\n", body);
    } else if (json_is_array(data)) {
        for (size_t i = 0; i < json_array_size(data); i++) print_one(json_array_get(data, i));
    } else if (json_is_true(json_object_get(root, "deleted"))) {
        printf("%s is gone\n", t->words[1]);
    } else {
        print_one(root);
    }
    json_decref(root);
    return result;
}

int qr_continuation_tool_main(int count, char **word)
{
    static const struct {
        const char *name, *method;
        int words;
    } doings[] = {{"list", "GET", 1}, {"show", "GET", 2}, {"save", "POST", 2}, {"fork", "POST", 2}, {"drop", "DELETE", 2}};
    tool_t t = {.server = "127.0.0.1:8080"};
    for (int i = 0; i < count; i++)
        if (!strcmp(word[i], "--help") || !strcmp(word[i], "-h")) return printf("%s", help), 0;
    int status = read_words(&t, count, word);
    if (status) return status;
    size_t at = 0;
    while (t.words[0] && at < QR_COUNT(doings) && strcmp(t.words[0], doings[at].name) != 0) at++;
    if (!t.words[0] || at == QR_COUNT(doings) || t.word_count != doings[at].words) return fprintf(stderr, "%s", help), EXIT_USAGE;
    const char *key = getenv("QUIRE_KEY");
    if (key && *key && !is_key(key))
        return complain("QUIRE_KEY", "holds no key: keys are qk- and letters, digits, '-' and '_'"), EXIT_USAGE;
    if (!strchr(t.server, ':')) return complain("--server", "needs HOST:PORT, as in 127.0.0.1:8080"), EXIT_USAGE;
    if (t.words[1] && !plain(t.words[1])) return complain(t.words[1], "not an id"), EXIT_USAGE;
    if (t.ttl_s && strspn(t.ttl_s, "0123456789") != strlen(t.ttl_s)) return complain("--ttl-s", "needs whole seconds"), EXIT_USAGE;
    qr_http_buffer_t request = {0}, answer = {0};
    put_request(&t, doings[at].method, &request);
    errno = 0;
    status = converse(&t, &request, &answer);
    const char *body = status ? strstr(answer.data, "\r\n\r\n") : NULL;
    if (body) {
        status = print_answer(&t, status, body + 4);
    } else {
        fprintf(stderr, "quire continuation: %s: %s; is `quire serve` running there? --server names another one\n", t.server,
                errno ? strerror(errno) : "no answer");
        status = 1;
    }
    qr_http_buffer_done(&request);
    qr_http_buffer_done(&answer);
    return status;
}
