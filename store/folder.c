/* folder.c - lock and epoch of a store (folder.h). */
#include "store/folder.h"

#include "base/error.h"
#include "base/mutant.h"
#include "store/chunk.h"
#include "store/crc32c.h"
#include "store/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int complain(int status, const char *path, const char *what, int number, char *message, size_t message_bytes)
{
    const char *next = !number            ? ""
                       : number == ENOSPC ? "; make room on its disk, or name another folder with --store (--no-store for none)"
                                          : "; name another folder with --store (--no-store for none)";
    (void)snprintf(message, message_bytes, "store %s: %s%s%s%s", path, what, number ? ": " : "", number ? strerror(number) : "", next);
    return status;
}

/* ---- the folder and its lock --------------------------------------------------------------------------------------------------- */

/* Makes the last folder of the path; its entry is made durable in its parent. */
static int make(const char *path)
{
    char parent[QR_STORE_PATH_BYTES];
    if (mkdir(path, 0700) != 0) return errno == EEXIST ? 0 : -1;
    size_t end = strlen(path);
    while (end && path[end - 1] == '/') end--;
    while (end && path[end - 1] != '/') end--;
    memcpy(parent, path, end);
    memcpy(parent + end, ".", 2);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int status = fd < 0 || fsync(fd) != 0 ? -1 : 0;
    if (fd >= 0) (void)close(fd);
    return status;
}

static int ours(qr_store_folder_t *f, char *message, size_t message_bytes)
{
    struct stat status;
    if (fstat(f->fd, &status) != 0) return complain(-QR_E_IO, f->path, "fstat", errno, message, message_bytes);
    if (status.st_uid != geteuid())
        return complain(-QR_E_PERMISSION, f->path, "the folder belongs to another user; name one of your own", 0, message, message_bytes);
    if ((status.st_mode & 077) && fchmod(f->fd, 0700) != 0)
        return complain(-QR_E_PERMISSION, f->path, "others may enter the folder, and it cannot be closed to them", errno, message,
                        message_bytes);
    return 0;
}

static void holder_name(char *name, size_t name_bytes)
{
    int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    ssize_t count = fd >= 0 ? read(fd, name, name_bytes - 1) : 0;
    if (fd >= 0) (void)close(fd);
    name[count > 0 ? count : 0] = 0;
    name[strcspn(name, "\n")] = 0;
}

static int in_use(const qr_store_folder_t *f, char *message, size_t message_bytes)
{
    char holder[64] = "", what[128];
    ssize_t count = pread(f->lock, holder, sizeof holder - 1, 0);
    holder[count > 0 ? count : 0] = 0;
    holder[strcspn(holder, "\n")] = 0;
    for (char *c = holder; *c; c++)
        if (*c < 32 || *c > 126) *c = '?';
    (void)snprintf(what, sizeof what, "already in use by process %s; stop it or name another folder",
                   *holder ? holder : "(it did not say)");
    return complain(-QR_E_IN_USE, f->path, what, 0, message, message_bytes);
}

static int lock(qr_store_folder_t *f, char *message, size_t message_bytes)
{
    char name[32], line[64];
    f->lock = openat(f->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->lock < 0) return complain(qr_chunk_error_of(errno), f->path, "the lock file cannot be opened", errno, message, message_bytes);
    if (!QR_MUTANT(550) && (qr_store_fail(folder_lock) || flock(f->lock, LOCK_EX | LOCK_NB) != 0)) {
        if (errno == EWOULDBLOCK) return in_use(f, message, message_bytes);
        return complain(-QR_E_IO, f->path, "the lock cannot be taken", errno, message, message_bytes);
    }
    holder_name(name, sizeof name);
    int count = snprintf(line, sizeof line, "%ld %s\n", (long)getpid(), name);
    if (ftruncate(f->lock, 0) != 0 || pwrite(f->lock, line, (size_t)count, 0) != count)
        return complain(qr_chunk_error_of(errno), f->path, "the lock file cannot be written", errno, message, message_bytes);
    return 0;
}

int qr_store_folder_open(const char *path, qr_store_folder_t *ret_folder, char *message, size_t message_bytes)
{
    qr_store_folder_t f = {.fd = -1, .lock = -1};
    *ret_folder = f;
    if (!*path || strlen(path) >= sizeof f.path)
        return complain(-QR_E_INVALID, path, "the path is empty or too long", 0, message, message_bytes);
    memcpy(f.path, path, strlen(path) + 1);
    if (make(path) != 0) return complain(qr_chunk_error_of(errno), path, "the folder cannot be made", errno, message, message_bytes);
    f.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.fd < 0) return complain(qr_chunk_error_of(errno), path, "the folder cannot be opened", errno, message, message_bytes);
    int status = ours(&f, message, message_bytes);
    if (!status) status = lock(&f, message, message_bytes);
    if (status)
        qr_store_folder_close(&f);
    else
        *ret_folder = f;
    return status;
}

void qr_store_folder_close(qr_store_folder_t *folder)
{
    if (folder->lock > 0) (void)close(folder->lock);
    if (folder->fd > 0) (void)close(folder->fd);
    folder->fd = folder->lock = -1;
}

int qr_store_subfolder(int folder, const char *name, int *ret_fd)
{
    if (mkdirat(folder, name, 0700) != 0 && errno != EEXIST) return qr_chunk_error_of(errno);
    if (fsync(folder) != 0) return qr_chunk_error_of(errno);
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return qr_chunk_error_of(errno);
    *ret_fd = fd;
    return 0;
}

/* ---- the epoch --------------------------------------------------------------------------------------------------------------------- */

/* The last epoch; 0 for none; damaged for a file that is not ours to the last byte. */
static int epoch_read(int folder, uint64_t *ret_epoch, bool *ret_damaged)
{
    char text[64], again[64], *end = text;
    int fd = openat(folder, "epoch", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    *ret_epoch = 0, *ret_damaged = false;
    if (fd < 0) return errno == ENOENT ? 0 : -QR_E_IO;
    ssize_t count = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (count < 0) return -QR_E_IO;
    text[count] = 0;
    errno = 0;
    uint64_t epoch = strtoull(text, &end, 10);
    int length = snprintf(again, sizeof again, "%llu %08x\n", (unsigned long long)epoch, qr_crc32c(0, text, (size_t)(end - text)));
    *ret_damaged = errno != 0 || length != count || memcmp(text, again, (size_t)length) != 0 || epoch == UINT64_MAX;
    if (!*ret_damaged) *ret_epoch = epoch;
    return 0;
}

static int epoch_write(int folder, uint64_t epoch)
{
    char digits[32], line[64];
    int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)epoch);
    count = snprintf(line, sizeof line, "%s %08x\n", digits, qr_crc32c(0, digits, (size_t)count));
    int fd = qr_store_fail(epoch_open) ? -1 : openat(folder, "epoch.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    bool written = !qr_store_fail(epoch_write) && write(fd, line, (size_t)count) == count;
    written = written && (QR_MUTANT(564) || (!qr_store_fail(epoch_fsync) && fsync(fd) == 0));
    int number = errno;
    (void)close(fd);
    errno = number;
    if (!written) return -1;
    if (qr_store_fail(epoch_rename) || renameat(folder, "epoch.new", folder, "epoch") != 0) return -1;
    if (qr_store_fail(epoch_folder_fsync) || fsync(folder) != 0) return -1;
    return qr_store_fail(epoch_done) ? -1 : 0;
}

int qr_store_epoch_next(const qr_store_folder_t *folder, uint64_t *ret_epoch, bool *ret_recovered, char *message, size_t message_bytes)
{
    uint64_t epoch;
    bool damaged;
    int status = epoch_read(folder->fd, &epoch, &damaged);
    if (status) return complain(status, folder->path, "the epoch file cannot be read", errno, message, message_bytes);
    uint64_t now = (uint64_t)time(NULL) << 20;
    epoch = damaged || (now > epoch && !QR_MUTANT(568)) ? now : epoch + 1;
    if (epoch_write(folder->fd, epoch) != 0) {
        int number = errno;
        (void)unlinkat(folder->fd, "epoch.new", 0);
        return complain(qr_chunk_error_of(number), folder->path, "the epoch file cannot be written", number, message, message_bytes);
    }
    *ret_epoch = epoch;
    *ret_recovered = damaged;
    return 0;
}
