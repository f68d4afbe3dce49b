/* chunk_scan.c - what a store holds when it is opened: temporaries are swept, final files adopted or deleted (chunk_files.h). */
#include "store/chunk_table.h"

#include "base/error.h"
#include "base/mutant.h"
#include "store/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct scan {
    qr_chunk_files_t *files;
    const qr_chunk_adoption_t *adoption;
    char *message;
    size_t message_bytes;
} scan_t;

static int complain(const scan_t *scan, const char *path, const char *what)
{
    (void)snprintf(scan->message, scan->message_bytes, "store: %s: %s: %s", path, what, strerror(errno));
    return qr_chunk_error_of(errno == ENOENT ? EIO : errno);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------------ */

/* Exactly 2 * count lower-case hex digits. */
static bool hex_read(const char *text, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < 2 * count; i++) {
        int digit = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10 : -1;
        if (digit < 0) return false;
        bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | digit);
    }
    return true;
}

/* The name that a path below the store spells; false unless it spells it to the letter. */
static bool name_read(const char *path, const char *file, bool tail, qr_chunk_name_t *name)
{
    char again[QR_CHUNK_PATH_BYTES];
    memset(name, 0, sizeof *name);
    if (strlen(file) != (tail ? 97u : 64u)) return false;
    if (tail && (!hex_read(file, name->owner, 16) || file[32] != '-')) return false;
    if (!hex_read(file + (tail ? 33 : 0), name->id, 32)) return false;
    qr_chunk_name_path(name, again);
    return strcmp(again, path) == 0; /* the folders too; a tail has an owner */
}

/* ---- one file ---------------------------------------------------------------------------------------------------------------------- */

static int file_delete(scan_t *scan, const qr_chunk_final_t *found, bool lost)
{
    if (qr_store_fail(scan_unlink) || unlinkat(scan->files->root, found->path, 0) != 0)
        return complain(scan, found->path, "cannot be deleted");
    if (lost)
        scan->files->stats.lost++;
    else
        scan->files->stats.deleted++;
    if (lost && scan->adoption->lost) scan->adoption->lost(scan->adoption->context, found);
    return 0;
}

static int file_take(scan_t *scan, const char *path, const char *file, bool tail)
{
    qr_chunk_final_t found;
    struct stat status;
    uint64_t value = 0;
    if (fstatat(scan->files->root, path, &status, AT_SYMLINK_NOFOLLOW) != 0) return complain(scan, path, "cannot be looked at");
    if (!name_read(path, file, tail, &found.name) || !S_ISREG(status.st_mode)) return scan->files->stats.strangers++, 0;
    found.bytes = (uint64_t)status.st_size;
    memcpy(found.path, path, strlen(path) + 1);
    if (found.bytes < QR_CHUNK_HEADER_BYTES) return file_delete(scan, &found, true);
    qr_chunk_adopt_t wish = scan->adoption->adopt ? scan->adoption->adopt(scan->adoption->context, &found, &value) : QR_CHUNK_ADOPT;
    if (wish == QR_CHUNK_LEAVE) return scan->files->stats.strangers++, 0;
    if (wish == QR_CHUNK_DELETE) return file_delete(scan, &found, false);
    if (qr_chunk_table_put(scan->files, &found.name, found.bytes, value) == QR_CHUNK_NONE) return file_delete(scan, &found, true);
    scan->files->stats.adopted++;
    return 0;
}

/* ---- folders ------------------------------------------------------------------------------------------------------------------------ */

/* Calls `take` for every name in the folder root/path, with the path below the store and the name alone. depth: levels of folders below. */
static int folder_walk(scan_t *scan, const char *path, int depth, int (*take)(scan_t *, const char *, const char *))
{
    int fd = openat(scan->files->root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), status = 0;
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0) (void)close(fd);
        return complain(scan, path, "cannot be opened");
    }
    for (;;) {
        char below[QR_CHUNK_PATH_BYTES];
        uint8_t byte;
        struct stat s;
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (!entry && errno) status = complain(scan, path, "cannot be read");
        if (!entry || status) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int count = snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (count < 0 || (size_t)count >= sizeof below) { /* longer than any name of ours */
            scan->files->stats.strangers++;
        } else if (!depth) {
            status = take(scan, below, entry->d_name);
        } else if (strlen(entry->d_name) == 2 && hex_read(entry->d_name, &byte, 1) &&
                   fstatat(scan->files->root, below, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode)) {
            status = folder_walk(scan, below, depth - 1, take);
        } else {
            scan->files->stats.strangers++;
        }
        if (status) break;
    }
    (void)closedir(folder);
    return status;
}

static int chunk_take(scan_t *scan, const char *path, const char *name) { return file_take(scan, path, name, false); }
static int tail_take(scan_t *scan, const char *path, const char *name) { return file_take(scan, path, name, true); }

static int temporary_take(scan_t *scan, const char *path, const char *name)
{
    struct stat status;
    (void)name;
    if (QR_MUTANT(561)) return 0;
    if (fstatat(scan->files->root, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode))
        return scan->files->stats.strangers++, 0; /* nothing of ours */
    if (qr_store_fail(sweep_unlink) || unlinkat(scan->files->root, path, 0) != 0) return complain(scan, path, "cannot be swept");
    scan->files->stats.swept++;
    return 0;
}

/* Deletes the least values while the bytes are above a bound that was lowered. */
static int bound(scan_t *scan)
{
    qr_chunk_files_t *files = scan->files;
    int status = 0;
    while (!status && files->stats.bytes > files->config.bytes_max) {
        uint32_t place = qr_chunk_table_least(files, 0, QR_CHUNK_NONE);
        if (place == QR_CHUNK_NONE) break; /* tails and pinned files alone: writes are refused until some are dropped */
        qr_chunk_final_t found = {.name = files->entries[place].name, .bytes = files->entries[place].bytes};
        qr_chunk_name_path(&found.name, found.path);
        status = file_delete(scan, &found, true);
        if (!status) qr_chunk_table_remove(files, place), files->stats.adopted--;
    }
    return status;
}

int qr_chunk_scan(qr_chunk_files_t *files, const qr_chunk_adoption_t *adoption, char *message, size_t message_bytes)
{
    scan_t scan = {files, adoption, message, message_bytes};
    int status = folder_walk(&scan, "tmp", 0, temporary_take);
    if (!status) status = folder_walk(&scan, "chunks", 2, chunk_take);
    if (!status) status = folder_walk(&scan, "tails", 0, tail_take);
    if (!status) status = bound(&scan);
    return status;
}
