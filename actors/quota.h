/* quota.h - what one tenant may have at once and over time, in integers. Pure evaluator of the gateway, which keeps one of these a
 * tenant. Zeroed memory is a tenant that has nothing and has used nothing.
 *
 * Requests and pages are counts of what is open. Tokens are a bucket that holds QR_QUOTA_BURST_S seconds of its rate: a request takes
 * all it may use (prompt and most generated tokens) before it runs, and what it did not use comes back at its end, so that many
 * requests at once cannot use what only one was promised. One that needs more than the bucket holds is let in when it is full; the
 * next ones then wait until the debt is paid.
 *
 * Q1. open <= lanes and pages <= limits.pages after every admission, if the limit is not 0 and did not shrink.
 * Q2. What was taken and not given back by any time t is at most the largest of the bucket and one request, and what the rate
 *     gives until t.
 * Q3. A refusal changes nothing but the time that `spent` is told for. */
#ifndef QR_QUOTA_H
#define QR_QUOTA_H

#include "actors/given.h"

enum { QR_QUOTA_BURST_S = 10 };
enum { QR_QUOTA_FINE, QR_QUOTA_PAGES, QR_QUOTA_NEVER, QR_QUOTA_TOKENS };

typedef struct qr_quota_limits {
    uint32_t lanes, pages, tokens_per_s; /* 0 = no bound */
    uint32_t unused;
} qr_quota_limits_t;

typedef struct qr_quota {
    qr_quota_limits_t limits;
    uint64_t spent; /* millionths of tokens taken and not yet paid for by the rate */
    uint64_t at_us; /* when that was so */
    uint32_t open;  /* requests */
    uint32_t pages; /* that they may need */
} qr_quota_t;

/* Whether one more request may be open under these limits. */
bool qr_quota_may_open(const qr_quota_t *quota, const qr_quota_limits_t *limits);
/* Opens one; the limits are those of the tenant from now on. */
void qr_quota_open(qr_quota_t *quota, const qr_quota_limits_t *limits);
/* An open request is about to run: takes its pages and tokens, or neither. _PAGES: others have them now; _NEVER: more pages than the
 * tenant may ever have; _TOKENS: the bucket is too low, *ret_retry_ms says for how long (rounded up). */
uint32_t qr_quota_take(qr_quota_t *quota, uint64_t now_us, uint32_t tokens, uint32_t pages, uint32_t *ret_retry_ms);
/* An open request ends: pages as taken, and of the taken tokens those it did not use. */
void qr_quota_close(qr_quota_t *quota, uint32_t pages, uint32_t unused_tokens);

/* Most pages of all groups that a route of so many rows holds, `rows_in_flight` of them not yet committed. */
uint32_t qr_quota_pages(const qr_layout_t *layout, uint64_t rows, uint64_t rows_in_flight);

#endif
