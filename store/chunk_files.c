/* chunk_files.c - publishing, leases and leaving of chunk files (chunk_files.h). */
#include "store/chunk_files.h"

#include "base/error.h"
#include "base/mutant.h"
#include "store/chunk_table.h"
#include "store/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------------------------------------------- */

static const uint8_t nobody[16];

bool qr_chunk_name_is_tail(const qr_chunk_name_t *name) { return memcmp(name->owner, nobody, sizeof nobody) != 0; }

static char *put_hex(char *at, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) *at++ = digits[bytes[i] >> 4], *at++ = digits[bytes[i] & 15];
    *at = 0;
    return at;
}

void qr_chunk_name_path(const qr_chunk_name_t *name, char ret_path[QR_CHUNK_PATH_BYTES])
{
    char *at = ret_path;
    if (qr_chunk_name_is_tail(name)) {
        memcpy(at, "tails/", 6);
        at = put_hex(at + 6, name->owner, 16);
        *at++ = '-';
    } else {
        memcpy(at, "chunks/", 7);
        at = put_hex(at + 7, name->id, 1);
        *at++ = '/';
        at = put_hex(at, name->id + 1, 1);
        *at++ = '/';
    }
    (void)put_hex(at, name->id, 32);
}

/* ---- the table -------------------------------------------------------------------------------------------------------------------- */

static uint32_t bucket_of(const qr_chunk_files_t *files, const qr_chunk_name_t *name)
{
    uint32_t id, owner;
    memcpy(&id, name->id, sizeof id);
    memcpy(&owner, name->owner, sizeof owner);
    return (id ^ owner) & (files->bucket_count - 1);
}

uint32_t qr_chunk_table_find(const qr_chunk_files_t *files, const qr_chunk_name_t *name)
{
    uint32_t place = files->buckets[bucket_of(files, name)];
    while (place != QR_CHUNK_NONE && memcmp(&files->entries[place].name, name, sizeof *name) != 0) place = files->entries[place].next;
    return place;
}

uint32_t qr_chunk_table_put(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t bytes, uint64_t value)
{
    uint32_t place = files->free_entry, *bucket = &files->buckets[bucket_of(files, name)];
    if (place == QR_CHUNK_NONE) return QR_CHUNK_NONE;
    qr_chunk_entry_t *entry = &files->entries[place];
    files->free_entry = entry->next;
    *entry = (qr_chunk_entry_t){.name = *name, .bytes = bytes, .value = value, .next = *bucket, .state = QR_FILE_READY};
    *bucket = place;
    files->stats.bytes += bytes;
    if (qr_chunk_name_is_tail(name))
        files->stats.tails++;
    else
        files->stats.chunks++;
    return place;
}

void qr_chunk_table_remove(qr_chunk_files_t *files, uint32_t place)
{
    qr_chunk_entry_t *entry = &files->entries[place];
    uint32_t *link = &files->buckets[bucket_of(files, &entry->name)];
    qr_assert(entry->leases == 0);
    while (*link != place) link = &files->entries[*link].next;
    *link = entry->next;
    files->stats.bytes -= entry->bytes;
    if (entry->state == QR_FILE_WITHDRAWN || entry->proposed) files->leaving -= entry->bytes;
    if (entry->state == QR_FILE_WITHDRAWN) files->stats.withdrawn--;
    if (entry->proposed) files->stats.proposed--;
    if (qr_chunk_name_is_tail(&entry->name))
        files->stats.tails--;
    else
        files->stats.chunks--;
    *entry = (qr_chunk_entry_t){.next = files->free_entry};
    files->free_entry = place;
}

uint32_t qr_chunk_table_least(const qr_chunk_files_t *files, uint64_t after_value, uint32_t after_place)
{
    uint32_t least = QR_CHUNK_NONE;
    for (uint32_t i = 0; i < files->config.chunks_max; i++) {
        const qr_chunk_entry_t *entry = &files->entries[i];
        if (entry->state != QR_FILE_READY || entry->proposed || entry->damaged || (entry->leases && !QR_MUTANT(551))) continue;
        if ((qr_chunk_name_is_tail(&entry->name) && !QR_MUTANT(567)) || entry->value == UINT64_MAX) continue;
        if (after_place != QR_CHUNK_NONE && (entry->value < after_value || (entry->value == after_value && i <= after_place))) continue;
        if (least == QR_CHUNK_NONE ||
            (QR_MUTANT(552) ? entry->value > files->entries[least].value : entry->value < files->entries[least].value))
            least = i;
    }
    return least;
}

void qr_chunk_files_check(const qr_chunk_files_t *files)
{
    uint64_t bytes = 0, leaving = 0, reserved = 0;
    uint32_t chunks = 0, tails = 0, leases = 0, open = 0, withdrawn = 0, proposed = 0, writes = 0;
    for (uint32_t i = 0; i < files->config.chunks_max; i++) {
        const qr_chunk_entry_t *e = &files->entries[i];
        if (e->state == QR_FILE_FREE) continue;
        qr_assert(qr_chunk_table_find(files, &e->name) == i);
        qr_assert(!e->proposed || e->state == QR_FILE_READY);
        bytes += e->bytes, leases += e->leases;
        if (e->proposed || e->state == QR_FILE_WITHDRAWN) leaving += e->bytes;
        withdrawn += e->state == QR_FILE_WITHDRAWN, proposed += e->proposed;
        tails += qr_chunk_name_is_tail(&e->name), chunks += !qr_chunk_name_is_tail(&e->name);
    }
    for (uint32_t i = 0; i < files->config.leases_max; i++) open += files->leases[i].entry != QR_CHUNK_NONE;
    for (uint32_t i = 0; i < files->config.writes_max; i++)
        if (files->writes[i].files) writes++, reserved += files->writes[i].bytes;
    const qr_chunk_files_stats_t *s = &files->stats;
    qr_assert(s->bytes == bytes && files->leaving == leaving && s->reserved == reserved);
    qr_assert(s->chunks == chunks && s->tails == tails && s->withdrawn == withdrawn && s->proposed == proposed && s->writes == writes);
    qr_assert(s->leases == leases && leases == open);
}

void qr_chunk_files_stats(const qr_chunk_files_t *files, qr_chunk_files_stats_t *ret_stats) { *ret_stats = files->stats; }

bool qr_chunk_files_at(const qr_chunk_files_t *files, uint32_t place, qr_chunk_name_t *ret_name, uint64_t *ret_bytes, uint64_t *ret_value)
{
    if (place >= files->config.chunks_max || files->entries[place].state != QR_FILE_READY) return false;
    const qr_chunk_entry_t *entry = &files->entries[place];
    *ret_name = entry->name, *ret_bytes = entry->bytes, *ret_value = entry->value;
    return true;
}

/* ---- opening and closing ---------------------------------------------------------------------------------------------------------- */

static int tables_make(qr_chunk_files_t *f)
{
    const qr_chunk_files_config_t *c = &f->config;
    for (f->bucket_count = 16; f->bucket_count < c->chunks_max;) f->bucket_count *= 2;
    f->buckets = malloc(f->bucket_count * sizeof *f->buckets);
    f->entries = calloc(c->chunks_max, sizeof *f->entries);
    f->leases = calloc(c->leases_max, sizeof *f->leases);
    f->writes = calloc(c->writes_max, sizeof *f->writes);
    if (!f->buckets || !f->entries || !f->leases || !f->writes) return -QR_E_MEMORY;
    memset(f->buckets, 0xff, f->bucket_count * sizeof *f->buckets);
    for (uint32_t i = 0; i < c->chunks_max; i++) f->entries[i].next = i + 1 < c->chunks_max ? i + 1 : QR_CHUNK_NONE;
    for (uint32_t i = 0; i < c->leases_max; i++)
        f->leases[i] = (qr_chunk_lease_t){.entry = QR_CHUNK_NONE, .next = i + 1 < c->leases_max ? i + 1 : QR_CHUNK_NONE, .generation = 1};
    return 0;
}

static int folders_open(qr_chunk_files_t *f, char *message, size_t message_bytes)
{
    const struct {
        const char *name;
        int *fd;
    } rows[] = {{"tmp", &f->tmp}, {"chunks", &f->chunks}, {"tails", &f->tails}};
    for (size_t i = 0; i < QR_COUNT(rows); i++) {
        int status = qr_store_subfolder(f->root, rows[i].name, rows[i].fd);
        if (!status) continue;
        (void)snprintf(message, message_bytes, "store: folder %s: %s", rows[i].name, strerror(errno));
        return status;
    }
    return 0;
}

int qr_chunk_files_open(const qr_store_folder_t *folder, const qr_chunk_files_config_t *config, const qr_chunk_adoption_t *adoption,
                        qr_chunk_files_t **ret_files, char *message, size_t message_bytes)
{
    static const qr_chunk_adoption_t everything;
    (void)snprintf(message, message_bytes, "store %s: not enough memory for its table of files", folder->path);
    if (!config->bytes_max || !config->chunks_max || !config->leases_max || !config->writes_max) {
        (void)snprintf(message, message_bytes, "store %s: a bound of zero", folder->path);
        return -QR_E_INVALID;
    }
    qr_chunk_files_t *f = calloc(1, sizeof *f);
    if (!f) return -QR_E_MEMORY;
    f->root = folder->fd, f->tmp = f->chunks = f->tails = -1;
    f->config = *config;
    f->stats.bytes_max = config->bytes_max;
    int status = tables_make(f);
    if (!status) status = folders_open(f, message, message_bytes);
    if (!status) status = qr_chunk_scan(f, adoption ? adoption : &everything, message, message_bytes);
    if (status)
        qr_chunk_files_close(&f);
    else
        *ret_files = f;
    return status;
}

void qr_chunk_files_close(qr_chunk_files_t **files)
{
    qr_chunk_files_t *f = *files;
    if (!f) return;
    for (uint32_t i = 0; f->writes && i < f->config.writes_max; i++) {
        qr_chunk_writing_t *write = f->writes[i].files ? &f->writes[i] : NULL;
        qr_chunk_write_cancel(&write);
    }
    const int folders[] = {f->tmp, f->chunks, f->tails};
    for (size_t i = 0; i < QR_COUNT(folders); i++)
        if (folders[i] >= 0) (void)close(folders[i]);
    free(f->buckets), free(f->entries), free(f->leases), free(f->writes);
    free(f);
    *files = NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t taken(const qr_chunk_files_t *f) { return f->stats.bytes + f->stats.reserved + f->stats.stray; }
static uint32_t places_taken(const qr_chunk_files_t *f) { return f->stats.chunks + f->stats.tails + f->stats.writes; }

int qr_chunk_files_write(qr_chunk_files_t *files, const qr_chunk_header_t *header, const uint32_t *tokens, const uint8_t *owner,
                         qr_chunk_writing_t **ret_write)
{
    uint32_t slot = 0;
    if (!qr_chunk_header_valid(header) || header->tail != (owner && memcmp(owner, nobody, 16) != 0)) return -QR_E_INVALID;
    uint64_t bytes = qr_chunk_file_bytes(header);
    if (bytes > files->config.bytes_max) return -QR_E_LIMIT;
    if (taken(files) + bytes > files->config.bytes_max && !QR_MUTANT(553)) return -QR_E_BUSY;
    if (places_taken(files) >= files->config.chunks_max || files->stats.writes == files->config.writes_max) return -QR_E_BUSY;
    while (files->writes[slot].files) slot++;
    qr_chunk_writing_t *write = &files->writes[slot];
    *write = (qr_chunk_writing_t){.bytes = bytes};
    qr_copy(write->name.owner, owner, owner ? 16 : 0);
    (void)snprintf(write->temporary, sizeof write->temporary, "%llu", (unsigned long long)++files->temporaries);
    int status = qr_chunk_writer_new(files->tmp, write->temporary, header, tokens, &write->writer);
    if (status) return files->stats.failed++, status;
    write->files = files;
    files->stats.writes++;
    files->stats.reserved += bytes;
    *ret_write = write;
    return 0;
}

/* Every write that fails is counted once. */
static int failed(qr_chunk_writing_t *write, int status)
{
    if (status && !write->failed) write->failed = true, write->files->stats.failed++;
    return status;
}

int qr_chunk_write_put(qr_chunk_writing_t *write, const void *bytes, size_t count)
{
    return failed(write, qr_chunk_writer_put(write->writer, bytes, count));
}

/* The write is over; a temporary that cannot be unlinked goes on counting until the next start sweeps it. */
static void write_over(qr_chunk_writing_t *write, bool temporary_left)
{
    qr_chunk_files_t *files = write->files;
    qr_chunk_writer_destroy(&write->writer);
    if (temporary_left && (qr_store_fail(cancel_unlink) || unlinkat(files->tmp, write->temporary, 0) != 0) && errno != ENOENT)
        files->stats.stray += write->bytes;
    files->stats.reserved -= write->bytes;
    files->stats.writes--;
    *write = (qr_chunk_writing_t){0};
}

void qr_chunk_write_cancel(qr_chunk_writing_t **write)
{
    if (*write) write_over(*write, true);
    *write = NULL;
}

static bool durable(uint8_t *bits, uint32_t bit) { return bits[bit / 8] & 1u << bit % 8; }
static void durable_set(uint8_t *bits, uint32_t bit) { bits[bit / 8] = (uint8_t)(bits[bit / 8] | 1u << bit % 8); }

/* Makes `name` in the folder `in` (a descriptor), its entry durable. */
static int parent_make(int in, const char *name)
{
    if ((qr_store_fail(parent_make) || mkdirat(in, name, 0700) != 0) && errno != EEXIST) return -1;
    return qr_store_fail(parent_fsync) || fsync(in) != 0 ? -1 : 0;
}

/* Opens the folder of a final name, made and durable in its parents (FI1). -1 with errno. */
static int parent_open(qr_chunk_files_t *f, const qr_chunk_name_t *name)
{
    char first[3], second[3];
    if (qr_chunk_name_is_tail(name)) return fcntl(f->tails, F_DUPFD_CLOEXEC, 0);
    (void)put_hex(first, name->id, 1), (void)put_hex(second, name->id + 1, 1);
    uint32_t pair = (uint32_t)name->id[0] << 8 | name->id[1];
    if (!durable(f->first_durable, name->id[0])) {
        if (parent_make(f->chunks, first) != 0) return -1;
        durable_set(f->first_durable, name->id[0]);
    }
    int fd = openat(f->chunks, first, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return -1;
    if (!durable(f->second_durable, pair)) {
        if (parent_make(fd, second) != 0) return (void)close(fd), -1;
        durable_set(f->second_durable, pair);
    }
    int inner = openat(fd, second, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int number = errno;
    (void)close(fd);
    errno = number;
    return inner;
}

/* Renames the temporary to its final name and makes that durable. On failure the final name is gone. */
static int place(qr_chunk_files_t *f, const qr_chunk_writing_t *write, bool *temporary_left)
{
    char path[QR_CHUNK_PATH_BYTES];
    int folder = parent_open(f, &write->name), number = 0;
    if (folder < 0 && errno == ENOENT) { /* somebody removed it: the next write makes it again */
        memset(f->first_durable, 0, sizeof f->first_durable);
        memset(f->second_durable, 0, sizeof f->second_durable);
        errno = EIO;
    }
    if (folder < 0) return qr_chunk_error_of(errno);
    qr_chunk_name_path(&write->name, path);
    if (qr_store_fail(write_rename) || renameat(f->tmp, write->temporary, f->root, path) != 0) {
        number = errno;
    } else {
        *temporary_left = false;
        if (!QR_MUTANT(554) && (qr_store_fail(write_folder_fsync) || fsync(folder) != 0)) {
            number = errno;
            if (!QR_MUTANT(563)) (void)unlinkat(f->root, path, 0);
        }
    }
    (void)close(folder);
    return number ? qr_chunk_error_of(number == ENOENT ? EIO : number) : 0;
}

/* Whether the file of a READY entry lies where it should, with its size, and nobody found it damaged. */
static bool stands(const qr_chunk_files_t *f, const qr_chunk_entry_t *entry)
{
    char path[QR_CHUNK_PATH_BYTES];
    struct stat status;
    if (entry->damaged) return false;
    qr_chunk_name_path(&entry->name, path);
    return fstatat(f->root, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == entry->bytes;
}

/* The table after a file has come to stand under its final name. */
static void published(qr_chunk_files_t *f, const qr_chunk_writing_t *write, uint32_t place, uint64_t value)
{
    f->stats.published++;
    if (place == QR_CHUNK_NONE) {
        place = qr_chunk_table_put(f, &write->name, write->bytes, value);
        qr_assert(place != QR_CHUNK_NONE); /* its place was counted with the write */
        return;
    }
    qr_chunk_entry_t *entry = &f->entries[place];
    if (entry->state == QR_FILE_WITHDRAWN) entry->state = QR_FILE_READY, f->stats.withdrawn--, f->leaving -= entry->bytes;
    entry->value = value;
    entry->damaged = false;
}

int qr_chunk_write_sync(qr_chunk_writing_t *write)
{
    write->synced = write->left = true;
    write->status = qr_chunk_writer_end(write->writer, write->name.id);
    if (!write->status) write->status = place(write->files, write, &write->left);
    return write->status;
}

int qr_chunk_write_end(qr_chunk_writing_t **write, const uint8_t id[32], uint64_t value, qr_chunk_name_t *ret_name, bool *ret_existed)
{
    qr_chunk_writing_t *w = *write;
    qr_chunk_files_t *files = w->files;
    bool existed = false, left = w->synced ? w->left : true;
    qr_assert(!w->synced || !id); /* a final name that is not wanted would have to go again */
    int status = w->synced ? w->status : qr_chunk_writer_end(w->writer, w->name.id);
    if (!status && id && memcmp(id, w->name.id, 32) != 0 && !QR_MUTANT(555)) status = -QR_E_FORMAT;
    uint32_t at = status ? QR_CHUNK_NONE : qr_chunk_table_find(files, &w->name);
    if (!status && !w->synced)
        existed = at != QR_CHUNK_NONE && files->entries[at].state == QR_FILE_READY && stands(files, &files->entries[at]) && !QR_MUTANT(562);
    if (!status && !existed && !w->synced) status = place(files, w, &left);
    if (!status && !existed) published(files, w, at, value);
    if (!status) (void)qr_store_fail(write_done); /* nothing can fail here; a process may end */
    if (!status) *ret_name = w->name, *ret_existed = existed;
    (void)failed(w, status);
    write_over(w, left);
    *write = NULL;
    return status;
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------------- */

int qr_chunk_files_lease(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t holder, uint64_t *ret_lease)
{
    uint32_t place = qr_chunk_table_find(files, name), slot = files->free_lease;
    if (place == QR_CHUNK_NONE || files->entries[place].damaged) return -QR_E_NOT_FOUND;
    if (files->entries[place].state != QR_FILE_READY && !QR_MUTANT(556)) return -QR_E_NOT_FOUND;
    if (slot == QR_CHUNK_NONE) return -QR_E_BUSY;
    qr_chunk_lease_t *lease = &files->leases[slot];
    files->free_lease = lease->next;
    lease->holder = holder, lease->entry = place;
    files->entries[place].leases++;
    files->stats.leases++;
    *ret_lease = qr_handle(slot, lease->generation);
    return 0;
}

uint64_t qr_chunk_files_lease_of(const qr_chunk_files_t *files, uint64_t holder)
{
    for (uint32_t i = 0; i < files->config.leases_max; i++)
        if (files->leases[i].entry != QR_CHUNK_NONE && files->leases[i].holder == holder) return qr_handle(i, files->leases[i].generation);
    return 0;
}

/* Unlinks a withdrawn file without leases. */
static int unlink_now(qr_chunk_files_t *files, uint32_t place)
{
    char path[QR_CHUNK_PATH_BYTES];
    qr_chunk_name_path(&files->entries[place].name, path);
    if ((qr_store_fail(drop_unlink) || unlinkat(files->root, path, 0) != 0) && errno != ENOENT)
        return errno == EACCES || errno == EPERM ? -QR_E_PERMISSION : -QR_E_IO;
    if (!QR_MUTANT(557)) qr_chunk_table_remove(files, place);
    files->stats.evicted++;
    (void)qr_store_fail(drop_done); /* nothing can fail here; a process may end */
    return 0;
}

int qr_chunk_files_release(qr_chunk_files_t *files, uint64_t handle, bool *ret_dropped, qr_chunk_name_t *ret_name)
{
    uint32_t slot = qr_handle_index(handle);
    *ret_dropped = false;
    if (slot >= files->config.leases_max) return -QR_E_STALE;
    qr_chunk_lease_t *lease = &files->leases[slot];
    if (lease->entry == QR_CHUNK_NONE || (lease->generation != qr_handle_generation(handle) && !QR_MUTANT(558))) return -QR_E_STALE;
    uint32_t place = lease->entry;
    qr_chunk_entry_t *entry = &files->entries[place];
    *lease = (qr_chunk_lease_t){.entry = QR_CHUNK_NONE, .next = files->free_lease, .generation = lease->generation + 1};
    if (!lease->generation) lease->generation = 1;
    files->free_lease = slot;
    files->stats.leases--;
    entry->leases--;
    if (entry->state != QR_FILE_WITHDRAWN || entry->leases) return 0;
    *ret_name = entry->name;
    int status = unlink_now(files, place);
    *ret_dropped = status == 0;
    return status;
}

/* ---- leaving ------------------------------------------------------------------------------------------------------------------------ */

int qr_chunk_files_value(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t value)
{
    uint32_t place = qr_chunk_table_find(files, name);
    if (place == QR_CHUNK_NONE) return -QR_E_NOT_FOUND;
    files->entries[place].value = value;
    return 0;
}

static void propose(qr_chunk_files_t *files, qr_chunk_entry_t *entry, bool on)
{
    if (entry->proposed == on) return;
    entry->proposed = on;
    files->stats.proposed += on ? 1u : UINT32_MAX;
    files->leaving += on ? entry->bytes : 0 - entry->bytes;
}

uint64_t qr_chunk_files_shortfall(const qr_chunk_files_t *files, uint64_t bytes)
{
    uint64_t wanted = taken(files) - files->leaving + bytes;
    uint32_t places = places_taken(files) - files->stats.withdrawn - files->stats.proposed;
    if (bytes > files->config.bytes_max) return UINT64_MAX;
    if (wanted > files->config.bytes_max) return wanted - files->config.bytes_max;
    return places >= files->config.chunks_max ? 1 : 0;
}

int qr_chunk_files_victims(qr_chunk_files_t *files, uint64_t bytes, qr_chunk_name_t *ret_names, uint32_t most, uint32_t *ret_count)
{
    uint32_t count = 0, last = QR_CHUNK_NONE;
    uint64_t last_value = 0, found = 0;
    while (found < bytes) {
        last = qr_chunk_table_least(files, last_value, last);
        if (last == QR_CHUNK_NONE || count == most) return -QR_E_BUSY;
        last_value = files->entries[last].value;
        found += files->entries[last].bytes;
        ret_names[count++] = files->entries[last].name;
    }
    for (uint32_t i = 0; i < count && !QR_MUTANT(559); i++)
        propose(files, &files->entries[qr_chunk_table_find(files, &ret_names[i])], true);
    *ret_count = count;
    return 0;
}

int qr_chunk_files_keep(qr_chunk_files_t *files, const qr_chunk_name_t *name)
{
    uint32_t place = qr_chunk_table_find(files, name);
    if (place == QR_CHUNK_NONE) return -QR_E_NOT_FOUND;
    propose(files, &files->entries[place], false);
    return 0;
}

int qr_chunk_files_damaged(qr_chunk_files_t *files, const qr_chunk_name_t *name)
{
    uint32_t place = qr_chunk_table_find(files, name);
    if (place == QR_CHUNK_NONE) return -QR_E_NOT_FOUND;
    files->entries[place].damaged = true;
    return 0;
}

int qr_chunk_files_drop(qr_chunk_files_t *files, const qr_chunk_name_t *name, bool *ret_waits)
{
    uint32_t place = qr_chunk_table_find(files, name);
    if (place == QR_CHUNK_NONE) return -QR_E_NOT_FOUND;
    qr_chunk_entry_t *entry = &files->entries[place];
    if (entry->state == QR_FILE_READY) {
        propose(files, entry, false);
        entry->state = QR_FILE_WITHDRAWN;
        files->stats.withdrawn++, files->leaving += entry->bytes;
    }
    bool waits = entry->leases > 0 && !QR_MUTANT(560);
    if (QR_MUTANT(560)) files->stats.leases -= entry->leases, entry->leases = 0;
    int status = waits ? 0 : unlink_now(files, place);
    if (!status) *ret_waits = waits;
    return status;
}
