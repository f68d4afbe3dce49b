/* link: qr_io_facts_book qr_store qr_actor_catalog_batch qr_messages qr_schema qr_base */
/* log.c - records of the catalog's log are bytes from outside: their frame, the message in it and its batch. Each input is tried as it is,
 * and again framed as a payload with its checks made right, or nearly everything would end at the first of them. */
#include "actors/catalog_batch.h"
#include "actors/io/facts_book.h"
#include "messages/codec.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Walks an accepted batch: every index of it is inside its column. */
static uint64_t walk(const qr_append_t *a)
{
    const qr_catalog_batch_t batch = QR_CATALOG_BATCH(a);
    uint64_t sum = 0;
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(&batch, &row);) {
        for (uint32_t i = 0; i < 32; i++) sum += row.fingerprint[i];
        for (uint32_t i = 0; i < row.group_count; i++) sum += row.windows[i];
        for (uint32_t i = row.first_change; i < row.first_change + row.change_count; i++)
            sum += batch.changes.sizes.data[i] + batch.changes.chains.data[32 * (size_t)i + 31];
    }
    return sum;
}

static void try_record(const uint8_t *bytes, size_t count)
{
    qr_log_record_t record;
    qr_message_t message;
    size_t used;
    if (qr_log_record_parse(bytes, count, &record, &used) != 0) return;
    qr_assert(used <= count && record.payload + record.bytes == bytes + used);
    uint64_t room = QR_CODEC_ARENA_BYTES(record.bytes);
    void *arena = aligned_alloc(64, (size_t)qr_round_up(room, 64));
    if (!arena) return;
    static volatile uint64_t sink;
    if (qr_facts_record_decode(record.payload, record.bytes, record.sequence, arena, room, &message) == 0)
        sink = walk(&message.body.append);
    (void)sink;
    free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    try_record(bytes, count);
    if (count < 8 || count > 1 << 16) return 0;
    uint8_t *framed = malloc(24 + count);
    uint64_t sequence;
    if (!framed) return 0;
    memcpy(&sequence, bytes, 8);
    memcpy(framed + 24, bytes + 8, count - 8);
    qr_log_record_head(sequence % 16, 1, bytes + 8, (uint32_t)(count - 8), framed);
    try_record(framed, 24 + count - 8);
    free(framed);
    return 0;
}
