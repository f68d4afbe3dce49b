/* quota.c - see quota.h. */
#include "actors/quota.h"

#include "base/mutant.h"

enum { MILLION = 1000000 };

bool qr_quota_may_open(const qr_quota_t *quota, const qr_quota_limits_t *limits)
{
    return !limits->lanes || quota->open < limits->lanes || QR_MUTANT(660);
}

void qr_quota_open(qr_quota_t *quota, const qr_quota_limits_t *limits)
{
    quota->limits = *limits;
    quota->open++;
}

/* Pays off what the rate gave since the last time. A clock that stands still or goes back pays nothing. */
static void pay(qr_quota_t *quota, uint64_t now_us)
{
    if (now_us <= quota->at_us) return;
    uint64_t elapsed_us = now_us - quota->at_us, rate = quota->limits.tokens_per_s; /* tokens a second are millionths a microsecond */
    quota->spent -= elapsed_us > quota->spent / rate ? quota->spent : elapsed_us * rate;
    quota->at_us = now_us;
}

/* 0, or in how many ms the bucket will have what so many tokens need. */
static uint32_t wait_ms(const qr_quota_t *quota, uint32_t tokens)
{
    uint64_t rate = quota->limits.tokens_per_s, holds = rate * QR_QUOTA_BURST_S;
    uint64_t needs = qr_min_u64(tokens, holds) * MILLION, room = holds * MILLION;
    if (quota->spent + needs <= room) return 0;
    uint64_t us = qr_div_up(quota->spent + needs - room, rate);
    return (uint32_t)qr_min_u64(qr_div_up(us, 1000), UINT32_MAX);
}

uint32_t qr_quota_take(qr_quota_t *quota, uint64_t now_us, uint32_t tokens, uint32_t pages, uint32_t *ret_retry_ms)
{
    const qr_quota_limits_t *limits = &quota->limits;
    *ret_retry_ms = 0;
    if (limits->pages && pages > limits->pages) return QR_QUOTA_NEVER;
    if (limits->pages && (uint64_t)quota->pages + pages > limits->pages && !QR_MUTANT(661)) return QR_QUOTA_PAGES;
    if (limits->tokens_per_s) {
        pay(quota, now_us);
        *ret_retry_ms = wait_ms(quota, tokens);
        if (*ret_retry_ms) return QR_QUOTA_TOKENS;
        if (!QR_MUTANT(662)) quota->spent += (uint64_t)tokens * MILLION;
    }
    quota->pages += pages;
    return QR_QUOTA_FINE;
}

void qr_quota_close(qr_quota_t *quota, uint32_t pages, uint32_t unused_tokens)
{
    qr_assert(quota->open && quota->pages >= pages);
    quota->open--;
    quota->pages -= pages;
    quota->spent -= qr_min_u64(quota->spent, (uint64_t)unused_tokens * MILLION);
}

uint32_t qr_quota_pages(const qr_layout_t *layout, uint64_t rows, uint64_t rows_in_flight)
{
    uint64_t size = qr_max_u32(layout->page_tokens, 1), blocks = qr_div_up(rows, size), pages = 0;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        uint64_t window = layout->groups[g].window;
        uint64_t most = window ? qr_div_up(window - 1 + qr_max_u64(rows_in_flight, 1), size) + 1 : blocks;
        pages += qr_min_u64(blocks, most);
    }
    return (uint32_t)qr_min_u64(pages, UINT32_MAX);
}
