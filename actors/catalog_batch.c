#include "actors/catalog_batch.h"

static bool is_zero(const uint8_t *digest)
{
    uint8_t any = 0;
    for (uint32_t i = 0; i < 32; i++) any |= digest[i];
    return any == 0;
}

static bool change_valid(const qr_catalog_changes_t *c, uint32_t i, uint32_t chunk_tokens, uint32_t group_count)
{
    uint32_t start = c->starts.data[i], count = c->counts.data[i];
    switch (c->kinds.data[i]) {
    case QR_CATALOG_NODE:
        return count == chunk_tokens && start % chunk_tokens == 0 && start <= UINT32_MAX - count &&
               (start == 0) == is_zero(c->digests.data + 32 * (size_t)i);
    case QR_CATALOG_PART: return c->groups.data[i] < group_count && c->sizes.data[i] > 0 && c->sizes.data[i] <= UINT32_MAX;
    case QR_CATALOG_REPLICA:
    case QR_CATALOG_WITHDRAW:
        return c->groups.data[i] < group_count && c->tiers.data[i] >= QR_TIER_RAM && c->tiers.data[i] <= QR_TIER_OBJECT;
    case QR_CATALOG_DROP: return true;
    default: return false;
    }
}

bool qr_catalog_changes_valid(const qr_catalog_changes_t *changes, uint32_t first, uint32_t count, uint32_t chunk_tokens,
                              uint32_t group_count)
{
    if (chunk_tokens == 0 || group_count == 0 || group_count > QR_GROUPS_MAX) return false;
    for (uint32_t i = first; i < first + count; i++)
        if (!change_valid(changes, i, chunk_tokens, group_count)) return false;
    return true;
}

bool qr_catalog_changes_even(const qr_catalog_changes_t *c, uint32_t *ret_count)
{
    uint64_t n = c->kinds.count;
    if (n > QR_MESSAGE_BYTES_MAX || c->tiers.count != n || c->groups.count != n || c->chains.count != 32 * n ||
        c->digests.count != 32 * n || c->starts.count != n || c->counts.count != n || c->sizes.count != n)
        return false;
    *ret_count = (uint32_t)n;
    return true;
}

static bool rows_even(const qr_catalog_batch_t *b)
{
    uint64_t n = b->txs.count;
    return n <= QR_MESSAGE_BYTES_MAX && b->writer_epochs.count == n && b->publishers.count == n && b->publisher_epochs.count == n &&
           b->node_epochs.count == n && b->sequences.count == n && b->fingerprints.count == 32 * n && b->chunk_tokens.count == n &&
           b->group_counts.count == n && b->change_counts.count == n;
}

/* Whether windows and changes are exactly what the rows say they have. */
static bool sums_fit(const qr_catalog_batch_t *b, uint32_t change_count)
{
    uint64_t windows = 0, changes = 0;
    for (uint64_t i = 0; i < b->txs.count; i++) {
        if (b->group_counts.data[i] > QR_GROUPS_MAX) return false;
        windows += b->group_counts.data[i];
        changes += b->change_counts.data[i];
    }
    return windows == b->windows.count && changes == change_count;
}

bool qr_catalog_row_next(const qr_catalog_batch_t *b, qr_catalog_row_t *row)
{
    uint32_t i = row->index;
    if (i >= b->txs.count) return false;
    row->tx = b->txs.data[i];
    row->writer_epoch = b->writer_epochs.data[i];
    row->publisher = b->publishers.data[i];
    row->publisher_epoch = b->publisher_epochs.data[i];
    row->node_epoch = b->node_epochs.data[i];
    row->sequence = b->sequences.data[i];
    row->fingerprint = b->fingerprints.data + 32 * (size_t)i;
    row->chunk_tokens = b->chunk_tokens.data[i];
    row->group_count = b->group_counts.data[i];
    row->windows = b->windows.count ? b->windows.data + row->next_window : NULL;
    row->first_change += row->change_count;
    row->change_count = b->change_counts.data[i];
    row->next_window += row->group_count;
    row->index++;
    return true;
}

bool qr_catalog_batch_valid(const qr_catalog_batch_t *b, bool whole, uint64_t first_tx, uint64_t last_tx)
{
    uint32_t change_count;
    if (!rows_even(b) || !qr_catalog_changes_even(&b->changes, &change_count) || !sums_fit(b, change_count)) return false;
    uint64_t tx = first_tx - 1;
    for (qr_catalog_row_t row = {0}; qr_catalog_row_next(b, &row);) {
        if (whole && row.tx != tx && row.tx != tx + 1) return false;
        if (whole && row.tx < first_tx) return false;
        tx = row.tx;
        bool bare = row.publisher == 0 && row.group_count == 0 && row.change_count == 0;
        if (!bare && !qr_catalog_changes_valid(&b->changes, row.first_change, row.change_count, row.chunk_tokens, row.group_count))
            return false;
    }
    return !whole || (first_tx > 0 && tx == last_tx);
}
