/* chunk_table.h - the table behind chunk_files.h, for chunk_files.c and chunk_scan.c alone. */
#ifndef QR_CHUNK_TABLE_H
#define QR_CHUNK_TABLE_H

#include "store/chunk_files.h"

#define QR_CHUNK_NONE UINT32_MAX

enum { QR_FILE_FREE, QR_FILE_READY, QR_FILE_WITHDRAWN };
typedef struct qr_chunk_entry {
    qr_chunk_name_t name;
    uint64_t bytes, value;
    uint32_t leases, next; /* next: of its bucket, or of the free list */
    uint8_t state;
    bool proposed, damaged; /* READY only */
} qr_chunk_entry_t;

typedef struct qr_chunk_lease {
    uint64_t holder;
    uint32_t entry, next; /* entry NONE = free, then next is the free list */
    uint32_t generation, reserved;
} qr_chunk_lease_t;

struct qr_chunk_writing {
    qr_chunk_files_t *files; /* NULL = free */
    qr_chunk_writer_t *writer;
    uint64_t bytes;
    qr_chunk_name_t name; /* its owner; its id at the end */
    char temporary[32];   /* below STORE/tmp */
    bool synced, left;    /* qr_chunk_write_sync was called; the temporary is still there */
    int status;           /* what it returned */
    bool failed;          /* and counted */
};

struct qr_chunk_files {
    int root, tmp, chunks, tails; /* folders; root is the caller's */
    qr_chunk_files_config_t config;
    qr_chunk_files_stats_t stats;
    uint64_t leaving;      /* bytes of withdrawn and proposed files */
    uint64_t temporaries;  /* counter of names */
    uint32_t bucket_count; /* a power of two */
    uint32_t free_entry, free_lease;
    uint32_t *buckets;         /* [bucket_count] */
    qr_chunk_entry_t *entries; /* [chunks_max] */
    qr_chunk_lease_t *leases;  /* [leases_max] */
    qr_chunk_writing_t *writes;  /* [writes_max] */
    /* Folders of final names whose entries this process has made durable: bit a, and bit a << 8 | b. */
    uint8_t first_durable[256 / 8], second_durable[65536 / 8];
};

/* The place of a name, or NONE. */
uint32_t qr_chunk_table_find(const qr_chunk_files_t *files, const qr_chunk_name_t *name);
/* Puts a READY file into the table; NONE when it is full. */
uint32_t qr_chunk_table_put(qr_chunk_files_t *files, const qr_chunk_name_t *name, uint64_t bytes, uint64_t value);
void qr_chunk_table_remove(qr_chunk_files_t *files, uint32_t place);
/* READY, not proposed, not leased, no tail, not pinned, not damaged, and after (value, place) in the order of leaving; the first such, or
 * NONE. */
uint32_t qr_chunk_table_least(const qr_chunk_files_t *files, uint64_t after_value, uint32_t after_place);
/* Sweeps, scans, adopts (chunk_files.h). */
int qr_chunk_scan(qr_chunk_files_t *files, const qr_chunk_adoption_t *adoption, char *message, size_t message_bytes);

#endif
