/* topology.c - see topology.h. The text form is ZPL, read with zconfig; everything it yields is checked before it is used. */
#include "transport/topology.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/nearest.h"
#include "messages/schema.h"

#include <czmq.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20 };

typedef struct reader {
    const char *name; /* of the file, for messages */
    qr_text_t *error;
    qr_topology_t *topology;
} reader_t;

static int fail(reader_t *reader, int code, const char *a, const char *b, const char *c)
{
    qr_text_put(reader->error, reader->name);
    qr_text_put(reader->error, ": ");
    qr_text_put(reader->error, a);
    qr_text_put(reader->error, b);
    qr_text_put(reader->error, c);
    return -code;
}

/* ---- known keys --------------------------------------------------------------------------------------------------------- */

/* An unknown key is an error that names the nearest of the `known` ones (a NULL ends the list). */
static int check_keys(reader_t *reader, zconfig_t *section, const char *where, const char *const *known)
{
    for (zconfig_t *child = zconfig_child(section); child; child = zconfig_next(child)) {
        const char *name = zconfig_name(child), *near = known[0];
        size_t best = SIZE_MAX;
        for (const char *const *k = known; *k; k++) {
            size_t distance = qr_nearest_edits(name, *k);
            if (distance < best) {
                best = distance;
                near = *k;
            }
        }
        if (best == 0) continue;
        char what[160];
        (void)snprintf(what, sizeof what, "unknown key '%.60s' in %s; the nearest known one is '", name, where);
        return fail(reader, QR_E_INVALID, what, near, "'");
    }
    return 0;
}

static int number(reader_t *reader, zconfig_t *item, uint64_t least, uint64_t most, uint64_t *ret_value)
{
    const char *text = zconfig_value(item);
    char *end = NULL;
    uint64_t value = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : UINT64_MAX;
    if (!end || *end || value < least || value > most)
        return fail(reader, QR_E_INVALID, "'", zconfig_name(item), "' is not a number in its range");
    *ret_value = value;
    return 0;
}

static int text_copy(reader_t *reader, zconfig_t *item, char *to, size_t bytes)
{
    const char *text = zconfig_value(item);
    size_t count = text ? strlen(text) : 0;
    if (count == 0 || count >= bytes) return fail(reader, QR_E_INVALID, "'", zconfig_name(item), "' is empty or too long");
    memcpy(to, text, count + 1);
    return 0;
}

/* Names become parts of file names and log lines: letters, digits, '-', '_' and '.' only, no leading dot. */
static int name_copy(reader_t *reader, zconfig_t *item, char to[QR_TOPOLOGY_NAME_BYTES])
{
    int code = text_copy(reader, item, to, QR_TOPOLOGY_NAME_BYTES);
    for (const char *c = to; code == 0 && *c; c++) {
        bool fine = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-' || *c == '_' ||
                    (*c == '.' && c != to);
        if (!fine) return fail(reader, QR_E_INVALID, "the name '", to, "' may hold letters, digits, '-', '_' and '.' only");
    }
    return code;
}

/* ---- sections ------------------------------------------------------------------------------------------------------------- */

static int add_actor(reader_t *reader, qr_topology_node_t *node, uint8_t role, uint32_t host)
{
    if (node->actor_count == QR_ACTORS_MAX) return fail(reader, QR_E_LIMIT, "node '", node->name, "' has too many actors");
    qr_topology_actor_t *actor = &node->actors[node->actor_count];
    *actor = (qr_topology_actor_t){.host = (uint16_t)host, .role = role, .device = node->hosts[host].device};
    for (uint32_t i = 0; i < node->actor_count; i++)
        if (node->actors[i].role == role && node->actors[i].device == actor->device)
            return fail(reader, QR_E_INVALID, "an actor occurs twice on one device of node '", node->name, "'");
    actor->address = qr_address(node->id, actor->device, role, actor->instance);
    node->actor_count++;
    return 0;
}

static int read_host(reader_t *reader, qr_topology_node_t *node, zconfig_t *section)
{
    static const char *const known[] = {"device", "actor", NULL};
    if (node->host_count == QR_TOPOLOGY_HOSTS_MAX) return fail(reader, QR_E_LIMIT, "node '", node->name, "' has too many hosts");
    uint32_t index = node->host_count++;
    qr_topology_host_t *host = &node->hosts[index];
    int code = name_copy(reader, section, host->name);
    if (code == 0) code = check_keys(reader, section, "a host", known);
    zconfig_t *device = zconfig_locate(section, "device");
    uint64_t value = 0;
    if (code == 0 && device) code = number(reader, device, 0, 255, &value);
    host->device = (uint8_t)value;
    for (zconfig_t *item = zconfig_child(section); code == 0 && item; item = zconfig_next(item)) {
        if (strcmp(zconfig_name(item), "actor") != 0) continue;
        const char *name = zconfig_value(item);
        uint8_t role = name ? qr_role_find(name) : 0;
        if (!role || role == QR_ROLE_mesh || role == QR_ROLE_uplink || role == QR_ROLE_record)
            return fail(reader, QR_E_INVALID, "there is no actor '", name ? name : "", "' to place");
        code = add_actor(reader, node, role, index);
    }
    return code;
}

static int read_endpoint(reader_t *reader, zconfig_t *item, char to[QR_TOPOLOGY_PATH_BYTES])
{
    int code = text_copy(reader, item, to, QR_TOPOLOGY_PATH_BYTES);
    if (code == 0 && strncmp(to, "tcp://", 6) != 0) return fail(reader, QR_E_INVALID, "'", to, "' does not begin with tcp://");
    return code;
}

static int read_listen(reader_t *reader, qr_topology_node_t *node, zconfig_t *section)
{
    static const char *const known[] = {"control", "bulk", NULL};
    int code = check_keys(reader, section, "listen", known);
    zconfig_t *control = zconfig_locate(section, "control"), *bulk = zconfig_locate(section, "bulk");
    if (code == 0 && !control) return fail(reader, QR_E_INVALID, "listen of node '", node->name, "' has no control endpoint");
    if (code == 0) code = read_endpoint(reader, control, node->control);
    if (code == 0 && bulk) code = read_endpoint(reader, bulk, node->bulk);
    return code;
}

static int read_public(reader_t *reader, qr_topology_node_t *node, zconfig_t *item)
{
    uint8_t raw[32];
    const char *key = zconfig_value(item);
    if (!key || strlen(key) != 40 || !zmq_z85_decode(raw, key))
        return fail(reader, QR_E_INVALID, "the public key of node '", node->name, "' is not 40 characters of Z85 (is it quoted?)");
    memcpy(node->public_key, key, QR_TOPOLOGY_KEY_BYTES);
    return 0;
}

static int read_node(reader_t *reader, zconfig_t *section)
{
    static const char *const known[] = {"id", "public", "insecure", "listen", "host", NULL};
    qr_topology_t *topology = reader->topology;
    if (topology->node_count == QR_NODES_MAX) return fail(reader, QR_E_LIMIT, "too many nodes", "", "");
    qr_topology_node_t *node = &topology->nodes[topology->node_count];
    int code = name_copy(reader, section, node->name);
    if (code == 0) code = check_keys(reader, section, "a node", known);
    if (code) return code;
    zconfig_t *id = zconfig_locate(section, "id");
    uint64_t value = 0;
    if (!id) return fail(reader, QR_E_INVALID, "node '", node->name, "' has no id");
    code = number(reader, id, 1, UINT32_MAX, &value);
    node->id = (uint32_t)value;
    for (uint32_t i = 0; code == 0 && i < topology->node_count; i++)
        if (topology->nodes[i].id == node->id || strcmp(topology->nodes[i].name, node->name) == 0)
            return fail(reader, QR_E_INVALID, "the name or id of node '", node->name, "' occurs twice");
    for (zconfig_t *item = zconfig_child(section); code == 0 && item; item = zconfig_next(item)) {
        const char *key = zconfig_name(item);
        if (strcmp(key, "public") == 0)
            code = read_public(reader, node, item);
        else if (strcmp(key, "listen") == 0)
            code = read_listen(reader, node, item);
        else if (strcmp(key, "host") == 0)
            code = read_host(reader, node, item);
        else if (strcmp(key, "insecure") == 0) {
            code = number(reader, item, 0, 1, &value);
            node->insecure = code == 0 && value == 1;
        }
    }
    if (code == 0) topology->node_count++;
    return code;
}

static int find_name(const qr_topology_t *topology, const char *name)
{
    for (uint32_t i = 0; i < topology->node_count; i++)
        if (strcmp(topology->nodes[i].name, name) == 0) return (int)i;
    return -1;
}

static int read_link(reader_t *reader, zconfig_t *section)
{
    static const char *const known[] = {"connect", "listen", NULL};
    qr_topology_t *topology = reader->topology;
    if (topology->link_count == QR_NODES_MAX) return fail(reader, QR_E_LIMIT, "too many links", "", "");
    int code = check_keys(reader, section, "a link", known);
    if (code) return code;
    int connect = find_name(topology, zconfig_get(section, "connect", "")),
        listen = find_name(topology, zconfig_get(section, "listen", ""));
    if (connect < 0 || listen < 0 || connect == listen) return fail(reader, QR_E_INVALID, "a link has to name two different nodes", "", "");
    if (!topology->nodes[listen].control[0])
        return fail(reader, QR_E_INVALID, "node '", topology->nodes[listen].name, "' is to listen but has no listen section");
    for (uint32_t i = 0; i < topology->link_count; i++) {
        qr_topology_link_t other = topology->links[i];
        if (other.connect + other.listen == (uint32_t)connect + (uint32_t)listen &&
            (other.connect == (uint32_t)connect || other.connect == (uint32_t)listen))
            return fail(reader, QR_E_INVALID, "two links between the same nodes", "", "");
    }
    topology->links[topology->link_count++] = (qr_topology_link_t){(uint32_t)connect, (uint32_t)listen};
    return 0;
}

static int read_root(reader_t *reader, zconfig_t *root)
{
    static const char *const known[] = {"version", "keys", "node", "link", NULL};
    int code = check_keys(reader, root, "the file", known);
    zconfig_t *version = zconfig_locate(root, "version"), *keys = zconfig_locate(root, "keys");
    uint64_t value = 0;
    if (code == 0 && !version) return fail(reader, QR_E_INVALID, "'version = 1' is missing", "", "");
    if (code == 0) code = number(reader, version, 1, 1, &value);
    if (code == 0 && keys) code = text_copy(reader, keys, reader->topology->keys, sizeof reader->topology->keys);
    for (zconfig_t *item = zconfig_child(root); code == 0 && item; item = zconfig_next(item))
        if (strcmp(zconfig_name(item), "node") == 0) code = read_node(reader, item);
    for (zconfig_t *item = zconfig_child(root); code == 0 && item; item = zconfig_next(item))
        if (strcmp(zconfig_name(item), "link") == 0) code = read_link(reader, item);
    if (code == 0 && reader->topology->node_count == 0) return fail(reader, QR_E_INVALID, "there is no node", "", "");
    return code;
}

/* zconfig speaks to stdout about bad lines, so the usual mistakes are found here, with the line's number. */
static int check_lines(reader_t *reader, const char *bytes, size_t count)
{
    size_t line = 1, indent = 0, before = 0;
    bool leading = true, blank = true;
    for (size_t i = 0; i <= count; i++) {
        char c = i < count ? bytes[i] : '\n';
        char where[32];
        (void)snprintf(where, sizeof where, "line %zu: ", line);
        if (c == '\n') {
            if (!blank) before = indent;
            leading = blank = true;
            indent = 0;
            line++;
        } else if (leading && c == ' ') {
            indent++;
        } else if ((unsigned char)c < 32 || (unsigned char)c > 126) {
            return fail(reader, QR_E_FORMAT, where, "only plain ASCII text is allowed, and spaces instead of tabs", "");
        } else if (leading) {
            leading = false;
            blank = c == '#';
            if (!blank && (indent % 4 != 0 || indent > before + 4))
                return fail(reader, QR_E_FORMAT, where, "indent by four spaces at once", "");
        }
    }
    return 0;
}

int qr_topology_parse(const char *name, const void *bytes, size_t count, qr_topology_t *ret_topology, qr_text_t *error)
{
    qr_topology_t *topology = calloc(1, sizeof *topology);
    if (!topology) return -QR_E_MEMORY;
    reader_t reader = {name, error, topology};
    memcpy(topology->keys, "keys", 5);
    zconfig_t *root = NULL;
    int code = check_lines(&reader, bytes, count);
    if (code) {
        free(topology);
        return code;
    }
    if (count > 0 && count <= FILE_BYTES_MAX && !memchr(bytes, 0, count)) {
        zchunk_t *chunk = zchunk_new(bytes, count);
        root = chunk ? zconfig_chunk_load(chunk) : NULL;
        zchunk_destroy(&chunk);
    }
    code = root ? read_root(&reader, root) : fail(&reader, QR_E_FORMAT, "not a ZPL file (indent by four spaces, `name = value`)", "", "");
    zconfig_destroy(&root);
    if (code == 0) *ret_topology = *topology;
    free(topology);
    return code;
}

/* ---- files ------------------------------------------------------------------------------------------------------------------ */

static int file_read(const char *path, char *bytes, size_t capacity, size_t *ret_count, struct stat *ret_stat)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -QR_E_IO;
    size_t count = 0;
    ssize_t got = fstat(file, ret_stat) == 0 ? 1 : -1;
    while (got > 0 && count < capacity) {
        got = read(file, bytes + count, capacity - count);
        if (got > 0) count += (size_t)got;
    }
    (void)close(file);
    if (got < 0) return -QR_E_IO;
    *ret_count = count;
    return 0;
}

int qr_topology_read(const char *path, qr_topology_t *ret_topology, qr_text_t *error)
{
    char *bytes = malloc(FILE_BYTES_MAX + 1);
    if (!bytes) return -QR_E_MEMORY;
    size_t count = 0;
    struct stat stat;
    errno = 0;
    int code = file_read(path, bytes, FILE_BYTES_MAX + 1, &count, &stat);
    if (code) {
        qr_text_put(error, "cannot read the topology file '");
        qr_text_put(error, path);
        qr_text_put(error, "': ");
        qr_text_put(error, strerror(errno));
    } else {
        code = qr_topology_parse(path, bytes, count, ret_topology, error);
    }
    free(bytes);
    const char *slash = code == 0 ? strrchr(path, '/') : NULL;
    if (slash && ret_topology->keys[0] != '/') {
        char joined[QR_TOPOLOGY_PATH_BYTES];
        int bytes_put = snprintf(joined, sizeof joined, "%.*s/%s", (int)(slash - path), path, ret_topology->keys);
        if (bytes_put > 0 && (size_t)bytes_put < sizeof joined) memcpy(ret_topology->keys, joined, (size_t)bytes_put + 1);
    }
    return code;
}

int qr_topology_node_find(const qr_topology_t *topology, const char *name, qr_text_t *error)
{
    if (!name[0] && topology->node_count == 1) return 0;
    int index = name[0] ? find_name(topology, name) : -1;
    if (index >= 0) return index;
    qr_text_put(error, name[0] ? "the topology has no node '" : "the topology has several nodes; say which with --node");
    qr_text_put(error, name);
    if (name[0]) qr_text_put(error, "'");
    for (uint32_t i = 0; i < topology->node_count; i++) {
        qr_text_put(error, i ? ", " : "; it has ");
        qr_text_put(error, topology->nodes[i].name);
    }
    return -QR_E_NOT_FOUND;
}

static void default_host(qr_topology_node_t *node, const char *name, const uint8_t *roles)
{
    uint32_t index = node->host_count++;
    memcpy(node->hosts[index].name, name, strlen(name) + 1);
    for (; *roles; roles++)
        node->actors[node->actor_count++] = (qr_topology_actor_t){(uint16_t)index, *roles, 0, 0, qr_address(node->id, 0, *roles, 0)};
}

void qr_topology_default(qr_topology_t *topology)
{
    memset(topology, 0, sizeof *topology);
    memcpy(topology->keys, "keys", 5);
    topology->node_count = 1;
    qr_topology_node_t *node = &topology->nodes[0];
    memcpy(node->name, "local", 6);
    node->id = 1;
    default_host(node, "edge", (const uint8_t[]){QR_ROLE_gateway, QR_ROLE_router, QR_ROLE_catalog_replica, QR_ROLE_catalog_writer, 0});
    default_host(node, "device", (const uint8_t[]){QR_ROLE_worker, QR_ROLE_scheduler, QR_ROLE_page_manager, QR_ROLE_restore_streamer, QR_ROLE_checkpoint_writer, QR_ROLE_executor, 0});
    default_host(node, "text", (const uint8_t[]){QR_ROLE_text, 0});
    default_host(node, "http", (const uint8_t[]){QR_ROLE_http, 0});
    default_host(node, "heartbeat", (const uint8_t[]){QR_ROLE_heartbeat, 0});
    default_host(node, "facts", (const uint8_t[]){QR_ROLE_facts, 0});
    default_host(node, "storage", (const uint8_t[]){QR_ROLE_storage, 0});
    default_host(node, "transfer", (const uint8_t[]){QR_ROLE_transfer, 0});
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------- */

static int secret_path(const char *folder, const char *node, char path[QR_TOPOLOGY_PATH_BYTES * 2], qr_text_t *error)
{
    int count = snprintf(path, QR_TOPOLOGY_PATH_BYTES * 2, "%s/%s.secret", folder, node);
    if (count > 0 && count < QR_TOPOLOGY_PATH_BYTES * 2 && !strchr(node, '/')) return 0;
    qr_text_put(error, "the name of the key file is too long or not a name");
    return -QR_E_INVALID;
}

static int path_failed(int code, const char *what, const char *path, const char *why, qr_text_t *error)
{
    qr_text_put(error, what);
    qr_text_put(error, " '");
    qr_text_put(error, path);
    qr_text_put(error, "'");
    qr_text_put(error, why);
    return -code;
}

/* The same with the system's reason. */
static int system_failed(const char *what, const char *path, qr_text_t *error)
{
    char why[160];
    (void)snprintf(why, sizeof why, ": %s", strerror(errno));
    return path_failed(QR_E_IO, what, path, why, error);
}

int qr_topology_keys_make(const char *folder, const char *node, char ret_public_key[QR_TOPOLOGY_KEY_BYTES], qr_text_t *error)
{
    char path[QR_TOPOLOGY_PATH_BYTES * 2], public_key[QR_TOPOLOGY_KEY_BYTES], secret_key[QR_TOPOLOGY_KEY_BYTES];
    int code = secret_path(folder, node, path, error);
    if (code) return code;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) return system_failed("cannot make the folder", folder, error);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST)
        return path_failed(QR_E_IN_USE, "the key", path, " exists already; delete it first to make a new one", error);
    if (file < 0) return system_failed("cannot write", path, error);
    bool fine = zmq_curve_keypair(public_key, secret_key) == 0 && write(file, secret_key, 40) == 40 && write(file, "\n", 1) == 1 &&
                fsync(file) == 0;
    fine = close(file) == 0 && fine;
    explicit_bzero(secret_key, sizeof secret_key);
    if (!fine) {
        (void)unlink(path);
        return path_failed(QR_E_IO, "cannot make the key", path, " (is libzmq built with CURVE?)", error);
    }
    memcpy(ret_public_key, public_key, sizeof public_key);
    return 0;
}

int qr_topology_secret_read(const char *folder, const char *node, char ret_secret_key[QR_TOPOLOGY_KEY_BYTES], qr_text_t *error)
{
    char path[QR_TOPOLOGY_PATH_BYTES * 2], bytes[64];
    int code = secret_path(folder, node, path, error);
    if (code) return code;
    size_t count = 0;
    struct stat stat;
    if (file_read(path, bytes, sizeof bytes, &count, &stat) != 0)
        return path_failed(QR_E_IO, "cannot read the secret key", path, "; make one with `quire keys`", error);
    if ((stat.st_mode & 077) != 0 && !QR_MUTANT(310))
        return path_failed(QR_E_PERMISSION, "the secret key", path, " may be read by others; chmod it to 0600", error);
    uint8_t raw[32];
    if (count > 0 && bytes[count - 1] == '\n') count--;
    if (count != 40) return path_failed(QR_E_FORMAT, "the secret key", path, " does not hold 40 characters", error);
    bytes[40] = 0;
    if (!zmq_z85_decode(raw, bytes)) return path_failed(QR_E_FORMAT, "the secret key", path, " is not Z85", error);
    memcpy(ret_secret_key, bytes, QR_TOPOLOGY_KEY_BYTES);
    explicit_bzero(bytes, sizeof bytes);
    explicit_bzero(raw, sizeof raw);
    return 0;
}
