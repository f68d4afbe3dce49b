/* link: qr_transport */
/* segment.c - record segments are bytes from outside: opening them, reading them to the end and reading their settings must do no harm.
 * Each input is tried as it is, and again with its checks made right, or nearly everything would end at the first of them. */
#define _GNU_SOURCE
#include "transport/replay.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void read_all(const uint8_t *bytes, size_t count)
{
    char path[64], words[256];
    int file = memfd_create("segment", MFD_CLOEXEC);
    if (file < 0 || write(file, bytes, count) != (ssize_t)count) abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (int with_state = 0; with_state < 2; with_state++) {
        static qr_given_t given;
        qr_segment_t segment;
        qr_segment_entry_t entry;
        qr_text_t error;
        qr_text_init(&error, words, sizeof words);
        if (qr_segment_open(path, with_state, &segment) != 0) continue;
        (void)qr_replay_settings(segment.config, &given, &error);
        while (qr_segment_next(&segment, &entry) == 0) continue;
        qr_segment_close(&segment);
    }
    (void)close(file);
}

/* Bytes from `at` on as a struct, if they are there. */
static bool get(const uint8_t *bytes, size_t count, uint64_t at, void *to, size_t to_bytes)
{
    if (at > count || count - at < to_bytes) return false;
    memcpy(to, bytes + at, to_bytes);
    return true;
}

/* The hash over the runs from `at` on; moves `at` behind them. */
static uint64_t seal_runs(const uint8_t *bytes, size_t count, uint64_t *at, uint64_t hash)
{
    qr_record_run_t run = {0, 1};
    while (run.bytes && get(bytes, count, *at, &run, sizeof run) && run.bytes <= count - *at - sizeof run) {
        hash = qr_record_run_hash(hash, &run, bytes + *at + sizeof run);
        *at += sizeof run + run.bytes;
    }
    return hash;
}

static void seal_entries(uint8_t *bytes, size_t count, uint64_t at)
{
    qr_record_entry_t entry;
    while (get(bytes, count, at, &entry, sizeof entry) && entry.bytes <= count - at - sizeof entry) {
        entry.message_check = qr_record_fold(qr_record_hash(0, bytes + at + sizeof entry, entry.bytes));
        entry.head_check = qr_record_entry_check(&entry);
        memcpy(bytes + at, &entry, sizeof entry);
        at += sizeof entry + entry.bytes;
    }
}

static void seal(uint8_t *bytes, size_t count)
{
    qr_record_header_t header;
    qr_record_snapshot_t snapshot;
    if (!get(bytes, count, 0, &header, sizeof header)) return;
    memcpy(header.magic, QR_RECORD_MAGIC, 8);
    header.version = QR_RECORD_VERSION;
    header.header_bytes = sizeof header;
    header.config_bytes %= 4096;
    header.check = qr_record_header_check(&header);
    memcpy(bytes, &header, sizeof header);
    uint64_t snapshot_at = sizeof header + header.config_bytes, at = snapshot_at + sizeof snapshot;
    if (!get(bytes, count, snapshot_at, &snapshot, sizeof snapshot)) return;
    snapshot.state_bytes %= 1 << 20;
    snapshot.partner_count %= 200;
    uint64_t partner_bytes = snapshot.partner_count * sizeof(qr_record_partner_t);
    if (partner_bytes > count - at) return;
    qr_record_partner_t *partners = malloc(partner_bytes + 1);
    if (!partners) return;
    memcpy(partners, bytes + at, partner_bytes);
    at += partner_bytes;
    uint64_t begin = at, hash = qr_record_head_hash(&header, bytes + sizeof header, &snapshot, partners);
    if (snapshot.state_bytes) {
        (void)seal_runs(bytes, count, &at, hash);
        snapshot.run_bytes = at - begin;
        at = begin;
        hash = seal_runs(bytes, count, &at, qr_record_head_hash(&header, bytes + sizeof header, &snapshot, partners));
    }
    snapshot.check = qr_record_fold(hash);
    snapshot.own_check = qr_record_snapshot_check(&snapshot);
    memcpy(bytes + snapshot_at, &snapshot, sizeof snapshot);
    free(partners);
    seal_entries(bytes, count, at);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    read_all(bytes, count);
    uint8_t *sealed = malloc(count + 1);
    if (!sealed) return 0;
    memcpy(sealed, bytes, count);
    seal(sealed, count);
    read_all(sealed, count);
    free(sealed);
    return 0;
}
