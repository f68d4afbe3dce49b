#include "actors/page_table.h"
#include "base/mutant.h"

/* legal[from] has bit `to` set for each legal step. */
#define TO(state) (1u << QR_PAGE_##state)
static const uint8_t legal[QR_PAGE_STATES] = {
    [QR_PAGE_FREE] = TO(RESERVED),
    [QR_PAGE_RESERVED] = TO(LOADING) | TO(USED) | TO(FREE),
    [QR_PAGE_LOADING] = TO(USED) | TO(RESERVED) | TO(FENCED),
    [QR_PAGE_USED] = TO(RETAINED) | TO(FREE),
    [QR_PAGE_RETAINED] = TO(USED) | TO(FREE),
    [QR_PAGE_FENCED] = TO(FREE) | TO(RESERVED),
};
#undef TO

uint64_t qr_page_table_bytes(const qr_layout_t *layout)
{
    uint64_t pages = 0;
    for (uint32_t g = 0; g < layout->group_count; g++) pages += layout->groups[g].pages;
    return qr_round_up(sizeof(qr_page_table_t) + pages * sizeof(qr_page_t), 8);
}

void qr_page_table_init(qr_page_table_t *table, const qr_layout_t *layout)
{
    qr_assert(layout->group_count >= 1 && layout->group_count <= QR_GROUPS_MAX);
    table->group_count = layout->group_count;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        const qr_group_t *group = &layout->groups[g];
        qr_assert(group->pages >= 1 && group->pages < 1u << 28 && group->set_aside <= group->pages);
        qr_assert(group->window || !group->set_aside);
        qr_pool_t *pool = &table->pools[g];
        *pool = (qr_pool_t){.pages = group->pages,
                            .first = table->page_count,
                            .window = group->window,
                            .free_head = 0,
                            .aside = group->set_aside,
                            .set_aside = group->set_aside};
        pool->counts[QR_PAGE_FREE] = group->pages;
        table->page_count += group->pages;
        for (uint32_t p = 0; p < group->pages; p++)
            *qr_page_at(table, g, p) = (qr_page_t){
                .generation = 1, .node = QR_PAGE_NONE, .charge = QR_PAGE_NONE, .link = p + 1 < group->pages ? p + 1 : QR_PAGE_NONE};
    }
}

static void raise_generation(qr_page_t *page)
{
    if (QR_MUTANT(100)) return;
    page->generation = page->generation == UINT32_MAX ? 1 : page->generation + 1; /* T2 */
}

uint32_t qr_page_take(qr_page_table_t *table, uint32_t group)
{
    qr_pool_t *pool = &table->pools[group];
    uint32_t at = pool->free_head;
    qr_assert(at != QR_PAGE_NONE);
    qr_page_t *page = qr_page_at(table, group, at);
    pool->free_head = page->link;
    page->link = QR_PAGE_NONE;
    page->refs = 1;
    page->state = QR_PAGE_RESERVED;
    pool->counts[QR_PAGE_FREE]--;
    pool->counts[QR_PAGE_RESERVED]++;
    return at;
}

void qr_page_move(qr_page_table_t *table, uint32_t group, uint32_t at, uint32_t state)
{
    qr_page_t *page = qr_page_at(table, group, at);
    qr_pool_t *pool = &table->pools[group];
    qr_assert(state < QR_PAGE_STATES && (legal[page->state] >> state & 1u));
    pool->counts[page->state]--;
    pool->counts[state]++;
    if (state == QR_PAGE_FREE || state == QR_PAGE_RESERVED) raise_generation(page);
    page->state = (uint8_t)state;
    if (state != QR_PAGE_FREE) return;
    page->refs = 0;
    page->node = QR_PAGE_NONE;
    page->charge = QR_PAGE_NONE;
    page->link = pool->free_head;
    pool->free_head = at;
}

void qr_page_table_check(const qr_page_table_t *table)
{
    for (uint32_t g = 0; g < table->group_count; g++) {
        const qr_pool_t *pool = &table->pools[g];
        uint32_t counts[QR_PAGE_STATES] = {0};
        for (uint32_t p = 0; p < pool->pages; p++) {
            const qr_page_t *page = qr_page_at(table, g, p);
            qr_assert(page->state < QR_PAGE_STATES && page->generation);
            counts[page->state]++;
            if (page->state == QR_PAGE_FREE) qr_assert(!page->refs && page->node == QR_PAGE_NONE && page->charge == QR_PAGE_NONE); /* T3 */
        }
        qr_assert(!memcmp(counts, pool->counts, sizeof(counts))); /* T1 */
        uint32_t listed = 0;
        for (uint32_t p = pool->free_head; p != QR_PAGE_NONE; p = qr_page_at(table, g, p)->link) {
            qr_assert(p < pool->pages && qr_page_at(table, g, p)->state == QR_PAGE_FREE && listed < pool->pages);
            listed++;
        }
        qr_assert(listed == counts[QR_PAGE_FREE]);                                                     /* T3 */
        qr_assert(pool->idle + pool->aside <= counts[QR_PAGE_FREE] && pool->aside <= pool->set_aside); /* T4 */
    }
}
