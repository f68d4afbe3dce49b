/* store_folder.h - for tests of the store: a folder of their own, and damage to the files in one. */
#ifndef QR_STORE_FOLDER_H
#define QR_STORE_FOLDER_H

#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STORE_PATH = 256 };

/* A new folder; its path. */
static inline void store_folder(char path[STORE_PATH])
{
    const char *given = getenv("TMPDIR"), *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* memory: thousands of syncs */
    (void)snprintf(path, STORE_PATH, "%s/quire-store-XXXXXX", given && strlen(given) < 128 ? given : base);
    if (!mkdtemp(path)) abort();
}

/* Removes a folder and everything in it; what mkdtemp made, nothing above. */
static inline void store_remove(const char *path)
{
    char inner[4 * STORE_PATH];
    DIR *dir = opendir(path);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner || lstat(inner, &status)) continue;
        if (S_ISDIR(status.st_mode))
            store_remove(inner);
        else
            (void)unlink(inner);
    }
    (void)closedir(dir);
    (void)rmdir(path);
}

/* How many files lie in FOLDER/INNER; 0 if it is not there. */
static inline int store_count(const char *folder, const char *inner)
{
    char path[4 * STORE_PATH];
    int count = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, inner);
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.' && strcmp(entry->d_name, "quarantine") != 0;
    (void)closedir(dir);
    return count;
}

static inline uint64_t store_bytes(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
}

static inline void store_flip(const char *path, uint64_t at, uint32_t count)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t byte;
        if (file < 0 || pread(file, &byte, 1, (off_t)(at + i)) != 1) abort();
        byte ^= 0xff;
        if (pwrite(file, &byte, 1, (off_t)(at + i)) != 1) abort();
    }
    (void)close(file);
}

static inline void store_truncate(const char *path, uint64_t bytes)
{
    if (truncate(path, (off_t)bytes)) abort();
}

static inline void store_append(const char *path, const void *bytes, size_t count)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, bytes, count) != (ssize_t)count) abort();
    (void)close(file);
}

#endif
