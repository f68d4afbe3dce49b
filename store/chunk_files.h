/* chunk_files.h - the chunk files of one store folder: which there are, how many bytes they take, who reads them, and which may leave.
 * Used by one thread (actors/io/storage); readers on other threads hold leases and use chunk.h alone.
 *
 *   STORE/chunks/AB/CD/ABCD...      a chunk: its content id in 64 hex digits, under its first two bytes
 *   STORE/tails/OWNER-ID            a tail: 32 hex digits of its owner, 64 of its content id
 *
 * FI1. Publishing is temporary -> write -> fsync -> rename -> fsync of the folder, and of the folder's parent when this process has not
 *      yet seen its entry durable. A receipt is given after the last of these; whatever fails before it leaves no final file.
 * FI2. bytes = the sum of the sizes of all files of the table; bytes + reserved (of writes under way, their whole size from the start) +
 *      stray (temporaries that could not be unlinked) <= bytes_max. A write that does not fit is refused before a byte is written.
 * FI3. A file leaves only by: victims proposed (or the caller's own reason) -> the caller withdraws its facts -> drop -> no lease left ->
 *      unlink. A withdrawn file is leased to nobody new. Only the start may delete what its caller does not adopt.
 * FI4. A leased file is not unlinked. Leases are {index, generation} and name a holder, so that those of a dead one can be released.
 * FI5. Tails, damaged files and files of value UINT64_MAX are never proposed as victims.
 * FI6. A name that is not ours to the letter (a symbolic link, another length, upper case) is left alone and counted as a stranger. */
#ifndef QR_CHUNK_FILES_H
#define QR_CHUNK_FILES_H

#include "store/chunk.h"
#include "store/folder.h"

typedef struct qr_chunk_files qr_chunk_files_t;
typedef struct qr_chunk_writing qr_chunk_writing_t;

enum { QR_CHUNK_PATH_BYTES = 128 };

/* A file's name: its content id; for a tail its owner too (all zero: it is a chunk). */
typedef struct qr_chunk_name {
    uint8_t id[32], owner[16];
} qr_chunk_name_t;
bool qr_chunk_name_is_tail(const qr_chunk_name_t *name);
/* The path below the store's folder. */
void qr_chunk_name_path(const qr_chunk_name_t *name, char ret_path[QR_CHUNK_PATH_BYTES]);

typedef struct qr_chunk_files_config {
    uint64_t bytes_max;  /* of all files together */
    uint32_t chunks_max; /* files, tails included */
    uint32_t leases_max; /* open at once; more: BUSY */
    uint32_t writes_max; /* under way at once; more: BUSY */
} qr_chunk_files_config_t;

/* A final file that was there at the start. */
typedef struct qr_chunk_final {
    qr_chunk_name_t name;
    uint64_t bytes;
    char path[QR_CHUNK_PATH_BYTES]; /* below the store's folder: for qr_chunk_reader_open and qr_chunk_verify with folder.fd */
} qr_chunk_final_t;
/* What becomes of it. LEAVE: it could not be judged now (an I/O error, no memory): it stays where it is, counted with the strangers, is
 * judged again at the next start, and replaced when its content is published again. */
typedef enum qr_chunk_adopt { QR_CHUNK_DELETE, QR_CHUNK_ADOPT, QR_CHUNK_LEAVE } qr_chunk_adopt_t;
typedef struct qr_chunk_adoption {
    void *context;
    /* Whether to keep the file; its value for eviction. NULL: every file is kept with value 0. */
    qr_chunk_adopt_t (*adopt)(void *context, const qr_chunk_final_t *found, uint64_t *ret_value);
    /* The file was deleted although adopt would keep it: shorter than a header, no place in the table, or least in value while the bytes
     * were above the bound. NULL: nobody hears of it. */
    void (*lost)(void *context, const qr_chunk_final_t *found);
} qr_chunk_adoption_t;

/* Sweeps temporaries, asks adoption about every final file, deletes what is not adopted, brings the bytes under the bound. The folder
 * must stay open. 0; -QR_E_INVALID: a bound is zero; -QR_E_MEMORY; -QR_E_IO, -QR_E_NO_SPACE, -QR_E_PERMISSION with one line of message. */
int qr_chunk_files_open(const qr_store_folder_t *folder, const qr_chunk_files_config_t *config, const qr_chunk_adoption_t *adoption,
                        qr_chunk_files_t **ret_files, char *message, size_t message_bytes);
/* Cancels writes and frees; leases end with it. Accepts NULL. */
void qr_chunk_files_close(qr_chunk_files_t **files);

typedef struct qr_chunk_files_stats {
    uint64_t bytes, reserved, stray, bytes_max;
    uint32_t chunks, tails, leases, writes, withdrawn, proposed; /* now */
    uint32_t swept, adopted, deleted, lost, strangers;           /* at the start */
    uint64_t published, failed, evicted;                         /* writes with a receipt; writes that failed; files unlinked by drop */
} qr_chunk_files_stats_t;
void qr_chunk_files_stats(const qr_chunk_files_t *files, qr_chunk_files_stats_t *ret_stats);
/* Asserts the table's invariants. */
void qr_chunk_files_check(const qr_chunk_files_t *files);
/* Files by place, 0 to chunks_max - 1, in no order: false for a free or withdrawn place. */
bool qr_chunk_files_at(const qr_chunk_files_t *files, uint32_t place, qr_chunk_name_t *ret_name, uint64_t *ret_bytes, uint64_t *ret_value);

/* ---- writing -------------------------------------------------------------------------------------------------------------------- */

/* Begins to write a file; owner NULL for a chunk, its 16 bytes (not all zero) for a tail: header.tail must say the same. 0;
 * -QR_E_LIMIT: it can never fit; -QR_E_BUSY: no room now, see qr_chunk_files_shortfall; -QR_E_INVALID; and qr_chunk_writer_new's. */
int qr_chunk_files_write(qr_chunk_files_t *files, const qr_chunk_header_t *header, const uint32_t *tokens, const uint8_t *owner,
                         qr_chunk_writing_t **ret_write);
int qr_chunk_write_put(qr_chunk_writing_t *write, const void *bytes, size_t count);
/* The slow half of an end, for another thread: after the last byte, syncs the file, gives it its final name and syncs the folders. Between
 * the call and its return nothing else may be done with this write, no other write may be synced or ended, and the files must stay open.
 * 0, or as _end, which says the same again: it only finishes the table then. */
int qr_chunk_write_sync(qr_chunk_writing_t *write);
/* Publishes (FI1) and ends the write, whatever happens: *write is NULL afterwards. 0 and the name: the file is durable. A file that was
 * there already stays as it is (*ret_existed); one that was withdrawn is replaced and stands again. id NULL, or what the content id has
 * to be: -QR_E_FORMAT when it is another. Failures as of qr_chunk_writer_put and _end. */
int qr_chunk_write_end(qr_chunk_writing_t **write, const uint8_t id[32], uint64_t value, qr_chunk_name_t *ret_name, bool *ret_existed);
/* Gives up; accepts NULL. */
void qr_chunk_write_cancel(qr_chunk_writing_t **write);

/* ---- leases --------------------------------------------------------------------------------------------------------------------- */

/* Leases a file to a holder (any number). 0; -QR_E_NOT_FOUND: no such file, or withdrawn or damaged; -QR_E_BUSY: leases_max are open. */
int qr_chunk_files_lease(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t holder, uint64_t *ret_lease);
/* Ends a lease. *ret_dropped: it was the last of a withdrawn file, which is now unlinked, and *ret_name is its name. -QR_E_STALE: no such
 * lease; -QR_E_IO: the file could not be unlinked (it stays withdrawn; drop it again). */
int qr_chunk_files_release(qr_chunk_files_t *files, uint64_t lease, bool *ret_dropped, qr_chunk_name_t *ret_name);
/* One lease of the holder, or 0: for releasing those of a holder that is gone. */
uint64_t qr_chunk_files_lease_of(const qr_chunk_files_t *files, uint64_t holder);

/* ---- leaving -------------------------------------------------------------------------------------------------------------------- */

/* -QR_E_NOT_FOUND. */
int qr_chunk_files_value(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t value);
/* Bytes that must leave, beyond those that are leaving (proposed or withdrawn), before a file of `bytes` can be written; 1 when only a
 * place in the table is short; 0 when it fits, or will. UINT64_MAX: it can never fit. */
uint64_t qr_chunk_files_shortfall(const qr_chunk_files_t *files, uint64_t bytes);
/* Proposes files to drop, worth at least `bytes` together, the least values first. They are marked, and not proposed again. 0 and
 * *ret_count; -QR_E_BUSY: not even all of them, or not `most`, would do: nothing is proposed. */
int qr_chunk_files_victims(qr_chunk_files_t *files, uint64_t bytes, qr_chunk_name_t *ret_names, uint32_t most, uint32_t *ret_count);
/* Takes a proposal back: the caller did not withdraw it. -QR_E_NOT_FOUND. */
int qr_chunk_files_keep(qr_chunk_files_t *files, const qr_chunk_name_t *name);
/* A reader found the file damaged: it is leased to nobody new and counts as not there when its content is published again. The caller
 * withdraws its facts and drops it. -QR_E_NOT_FOUND. */
int qr_chunk_files_damaged(qr_chunk_files_t *files, const qr_chunk_name_t *name);
/* The caller has withdrawn every fact about the file: it is unlinked, now or at the end of its last lease (*ret_waits). A file that is
 * gone from the disk already counts as unlinked. 0; -QR_E_NOT_FOUND; -QR_E_IO, -QR_E_PERMISSION: it stays, withdrawn; drop it again. */
int qr_chunk_files_drop(qr_chunk_files_t *files, const qr_chunk_name_t *name, bool *ret_waits);

#endif
