/* folder.h - a store's folder: one process holds it at a time, and every start of it has a number of its own.
 *
 *   STORE/lock     held by flock while the store is open; names its holder: "PID PROGRAM"
 *   STORE/epoch    "EPOCH CRC": the last number given out, in decimal, and the CRC-32C of its digits in hex
 *   STORE/tmp/     files being written; whatever is found here at the start is swept
 *   STORE/chunks/  final chunk files (chunk_files.h)
 *   STORE/tails/   tail files
 *
 * SF1. Folders are 0700 and files 0600, of the user who runs the program; a folder that others may enter is closed to them or refused.
 * SF2. An epoch is on the disk (fsync of the file, rename, fsync of the folder) before anybody hears of it, so none is given out twice.
 *      It is seconds << 20 of the wall clock, or one more than the last one where that is not less: a node that begins a new store, or
 *      had none for a while, is not taken for an earlier life of itself. A damaged epoch file gives the clock's, and says so. */
#ifndef QR_STORE_FOLDER_H
#define QR_STORE_FOLDER_H

#include "base/base.h"

enum { QR_STORE_PATH_BYTES = 4096 };

typedef struct qr_store_folder {
    int fd;                         /* the folder */
    int lock;                       /* STORE/lock, held */
    char path[QR_STORE_PATH_BYTES]; /* as given */
} qr_store_folder_t;

/* Opens the folder, making it if its parent exists, and locks it. 0; -QR_E_IN_USE: message names the holder; -QR_E_PERMISSION;
 * -QR_E_NO_SPACE; -QR_E_INVALID; -QR_E_IO. message: one line for a person. */
int qr_store_folder_open(const char *path, qr_store_folder_t *ret_folder, char *message, size_t message_bytes);
/* Unlocks and closes; accepts a zeroed folder whose open failed. */
void qr_store_folder_close(qr_store_folder_t *folder);

/* The next epoch, above all that were given out, durable. *ret_recovered: the file was damaged (SF2). -QR_E_NO_SPACE, -QR_E_IO with one line of message. */
int qr_store_epoch_next(const qr_store_folder_t *folder, uint64_t *ret_epoch, bool *ret_recovered, char *message, size_t message_bytes);

/* Makes folder/name (0700) if it is missing, its entry durable, and opens it into *ret_fd. */
int qr_store_subfolder(int folder, const char *name, int *ret_fd);

#endif
