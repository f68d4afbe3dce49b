/* spill_conversation.h - what the scheduler may count on when a preempted request's rows are kept: held by the transfer that serves
 * (spill_test.c) and by the simulated one (contract_store_test.c), so that the fake cannot drift. Include after cmocka. */
#ifndef SPILL_CONVERSATION_H
#define SPILL_CONVERSATION_H

#include "actors/actor.h"
#include "base/error.h"
#include "messages/schema.h"

enum { SPILL_BLOCKS = 6 };

/* A transfer with room for exactly SPILL_BLOCKS pages of rows of every group, and pools that have both kinds of pages. */
typedef struct spill_world {
    void *context;
    uint32_t page_tokens, groups;
    uint64_t out[SPILL_BLOCKS], in[SPILL_BLOCKS]; /* pages of every group that rows leave and come back to */
    /* Says it and waits; false: no answer. */
    bool (*ask)(void *context, uint8_t from, uint8_t to, uint16_t type, const void *body, qr_message_t *ret_answer);
    /* Sets rows [start, start + rows) of pages from block 0 on, or compares them. */
    void (*fill)(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed);
    bool (*holds)(void *context, uint32_t group, uint32_t start, uint32_t rows, uint32_t first_block, const uint64_t *pages, uint64_t seed);
} spill_world_t;

/* Pages from a block on, for every group. */
static inline qr_u64s_t spill_pages(const spill_world_t *w, const uint64_t *pages, uint32_t from, uint32_t to, uint64_t *ret_all)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < w->groups; g++)
        for (uint32_t b = from; b < to; b++) ret_all[count++] = pages[b];
    return (qr_u64s_t){ret_all, count};
}

static inline uint32_t spill_out(const spill_world_t *w, uint64_t key, uint32_t rows)
{
    uint64_t all[8 * SPILL_BLOCKS];
    qr_message_t answer;
    for (uint32_t g = 0; g < w->groups; g++) w->fill(w->context, g, 0, rows, 0, w->out, key);
    qr_page_spill_t ask = {.key = key, .rows = rows, .pages = spill_pages(w, w->out, 0, (uint32_t)qr_div_up(rows, w->page_tokens), all)};
    assert_true(w->ask(w->context, QR_ROLE_scheduler, QR_ROLE_transfer, QR_MESSAGE_page_spill, &ask, &answer));
    assert_int_equal(answer.body.page_spilled.key, key);
    for (uint32_t g = 0; g < w->groups; g++) w->fill(w->context, g, 0, rows, 0, w->out, key + 1000); /* the pages are somebody else's now */
    return answer.body.page_spilled.reason;
}

static inline qr_page_unspilled_t spill_back(const spill_world_t *w, uint64_t key, uint32_t start, uint32_t end)
{
    uint64_t all[8 * SPILL_BLOCKS];
    qr_message_t answer;
    qr_page_unspill_t ask = {.key = key, .start_rows = start, .end_rows = end};
    ask.pages = spill_pages(w, w->in, start / w->page_tokens, (uint32_t)qr_div_up(end, w->page_tokens), all);
    assert_true(w->ask(w->context, QR_ROLE_scheduler, QR_ROLE_transfer, QR_MESSAGE_page_unspill, &ask, &answer));
    assert_int_equal(answer.body.page_unspilled.key, key);
    return answer.body.page_unspilled;
}

static inline uint32_t spill_give_up(const spill_world_t *w, uint64_t key)
{
    qr_message_t answer;
    qr_spill_drop_t ask = {.key = key};
    assert_true(w->ask(w->context, QR_ROLE_scheduler, QR_ROLE_transfer, QR_MESSAGE_spill_drop, &ask, &answer));
    assert_int_equal(answer.body.spill_dropped.key, key);
    return answer.body.spill_dropped.reason;
}

static inline void spill_expect(const spill_world_t *w, uint64_t key, uint32_t start, uint32_t end)
{
    qr_page_unspilled_t back = spill_back(w, key, start, end);
    assert_int_equal(back.reason, 0);
    assert_int_equal(back.boundary, end);
    for (uint32_t g = 0; g < w->groups; g++) assert_true(w->holds(w->context, g, start, end - start, 0, w->in, key));
}

static inline void spill_refusals(const spill_world_t *w)
{
    uint32_t page = w->page_tokens;
    qr_message_t answer;
    const qr_page_spill_t wrong[] = {{.key = 0, .rows = page, .pages = {w->out, w->groups}},
                                     {.key = 50, .rows = 0, .pages = {w->out, 0}},
                                     {.key = 50, .rows = page + 1, .pages = {w->out, w->groups}},
                                     {.key = 50, .rows = UINT32_MAX, .pages = {w->out, w->groups}}};
    for (size_t i = 0; i < QR_COUNT(wrong); i++) {
        assert_true(w->ask(w->context, QR_ROLE_scheduler, QR_ROLE_transfer, QR_MESSAGE_page_spill, &wrong[i], &answer));
        assert_int_equal(answer.body.page_spilled.reason, QR_E_INVALID);
    }
    assert_int_equal(spill_out(w, 51, page), 0);
    assert_int_equal(spill_out(w, 51, page), QR_E_IN_USE);                 /* and what it has stays */
    assert_int_equal(spill_back(w, 51, 0, page - 1).reason, QR_E_INVALID); /* not the rows that were spilled: given up, never half right */
    assert_int_equal(spill_give_up(w, 51), QR_E_NOT_FOUND);
}

/* A fence of a page: whoever names it as it was is refused. */
static inline void spill_fence(const spill_world_t *w)
{
    static const uint32_t group = 0;
    qr_message_t answer;
    assert_int_equal(spill_out(w, 60, 2 * w->page_tokens), 0);
    qr_fence_t fence = {.fence_id = 9, .groups = {&group, 1}, .pages = {&w->in[1], 1}};
    assert_true(w->ask(w->context, QR_ROLE_page_manager, QR_ROLE_transfer, QR_MESSAGE_fence, &fence, &answer));
    qr_page_unspilled_t back = spill_back(w, 60, 0, 2 * w->page_tokens);
    assert_int_equal(back.reason, QR_E_STALE);
    assert_int_equal(back.boundary, 0);
    assert_int_equal(spill_give_up(w, 60), QR_E_NOT_FOUND);
}

static inline void spill_conversation_run(const spill_world_t *w)
{
    uint32_t page = w->page_tokens;
    assert_int_equal(spill_out(w, 1, 3 * page + 5), 0);
    spill_expect(w, 1, 0, 3 * page + 5);
    qr_page_unspilled_t again = spill_back(w, 1, page, 3 * page + 5); /* what came back is gone */
    assert_int_equal(again.reason, QR_E_NOT_FOUND);
    assert_int_equal(again.boundary, page);
    assert_int_equal(spill_out(w, 2, 4 * page), 0); /* only what does not stand comes back */
    spill_expect(w, 2, 2 * page, 4 * page);
    assert_int_equal(spill_out(w, 3, 4 * page), 0); /* the room holds six pages */
    assert_int_equal(spill_out(w, 4, 2 * page + 1), QR_E_SHORTFALL);
    assert_int_equal(spill_back(w, 4, 0, 2 * page + 1).reason, QR_E_NOT_FOUND);
    assert_int_equal(spill_out(w, 5, page + 1), 0);
    assert_int_equal(spill_give_up(w, 3), 0);
    assert_int_equal(spill_give_up(w, 3), QR_E_NOT_FOUND);
    assert_int_equal(spill_out(w, 6, 4 * page), 0);
    spill_expect(w, 5, 0, page + 1); /* side by side nothing mixes */
    spill_expect(w, 6, page, 4 * page);
    spill_refusals(w);
    spill_fence(w);
}

#endif
