/* link: qr_actor_residents qr_actor_page_table qr_actor_prefix_tree qr_actor_residency qr_messages */
/* page_evaluators_test.c - page table, prefix tree and order of eviction alone. */
#include "actors/residents.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_value_grows_with_rows_place_and_reuse(void **state)
{
    (void)state;
    uint64_t base = qr_residency_value(4, 0, 0);
    assert_true(base > 0 && qr_residency_value(8, 0, 0) == 2 * base);
    assert_true(qr_residency_value(4, 4096, 0) > base); /* more to attend: dearer to compute again */
    assert_true(qr_residency_value(4, 0, 1) == 2 * base);
    assert_true(qr_residency_value(4, 0, 100) == qr_residency_value(4, 0, QR_RESIDENCY_HITS_MAX));
    assert_true(qr_residency_value(1024, QR_CONTEXT_MAX, 100) < 1ull << 40);
}
static void test_order_takes_least_first_and_ages(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    qr_order_t *order = calloc(1, qr_order_bytes(COUNT));
    qr_order_init(order, COUNT);
    assert_true(qr_order_least(order) == QR_ORDER_NONE);
    uint64_t keys[COUNT], seed = 9, last = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        qr_order_insert(order, i, keys[i] = seed >> 59); /* many equal keys */
    }
    qr_order_check(order);
    for (uint32_t i = 0; i < COUNT; i += 3) qr_order_remove(order, i);
    qr_order_check(order);
    uint32_t previous = 0;
    while (order->count) {
        uint32_t id = qr_order_take(order);
        assert_true(id % 3 && keys[id] >= last && !qr_order_has(order, id));
        if (keys[id] == last) assert_true(id > previous); /* equal keys: first in, first out */
        last = keys[id];
        previous = id;
        qr_order_check(order);
    }
    /* What is worth 3 and never touched leaves after some rounds of things worth 1: the level rises to what leaves. */
    uint64_t level = order->level, rounds = 0;
    assert_true(level == last);
    qr_order_insert(order, 0, level + 3);
    for (; qr_order_has(order, 0); rounds++) {
        qr_order_insert(order, 1, order->level + 1);
        qr_order_take(order);
        if (qr_order_has(order, 1)) qr_order_remove(order, 1);
        assert_true(rounds < 10);
    }
    assert_true(rounds == 3);
    free(order);
}
static void test_pages_raise_generations(void **state)
{
    (void)state;
    qr_layout_t layout = {.group_count = 2, .page_tokens = 4, .groups = {{0, 3, 0, 1}, {8, 5, 2, 1}}};
    qr_page_table_t *table = calloc(1, qr_page_table_bytes(&layout));
    qr_page_table_init(table, &layout);
    qr_page_table_check(table);
    uint32_t p = qr_page_take(table, 0);
    uint64_t handle = qr_page_handle(table, 0, p);
    assert_true(qr_handle_generation(handle) == 1 && qr_page_at(table, 0, p)->refs == 1);
    qr_page_move(table, 0, p, QR_PAGE_LOADING);
    qr_page_move(table, 0, p, QR_PAGE_RESERVED); /* back to a reservation */
    assert_true(qr_handle_generation(qr_page_handle(table, 0, p)) == 2);
    qr_page_move(table, 0, p, QR_PAGE_LOADING);
    qr_page_move(table, 0, p, QR_PAGE_FENCED);
    assert_true(qr_handle_generation(qr_page_handle(table, 0, p)) == 2);
    qr_page_move(table, 0, p, QR_PAGE_FREE);
    assert_true(qr_handle_generation(qr_page_handle(table, 0, p)) == 3);
    qr_page_table_check(table);
    assert_true(qr_page_take(table, 0) == p); /* last in, first out */
    qr_page_at(table, 0, p)->generation = UINT32_MAX;
    qr_page_move(table, 0, p, QR_PAGE_FREE);
    assert_true(qr_page_at(table, 0, p)->generation == 1); /* 0 is never valid */
    assert_int_equal(qr_pool_spare(&table->pools[1]), 3);
    qr_page_table_check(table);
    free(table);
}
static void test_scopes_with_equal_beginnings(void **state)
{
    (void)state;
    enum { NODES = 64 };
    qr_prefix_tree_t *tree = calloc(1, qr_prefix_tree_bytes(NODES, 4));
    qr_prefix_tree_init(tree, NODES, 4);
    qr_hash_t scopes[8];
    uint32_t roots[8], nodes[8], tokens[4] = {1, 2, 3, 4};
    memset(scopes, 7, sizeof scopes);
    for (uint32_t i = 0; i < 8; i++) {
        scopes[i].bytes[31] = (uint8_t)i; /* all in one bucket */
        assert_true(qr_prefix_tree_scope(tree, &scopes[i]) == QR_NODE_NONE);
        roots[i] = qr_prefix_tree_scope_make(tree, &scopes[i]);
        nodes[i] = qr_prefix_tree_add(tree, roots[i], tokens, 4);
        qr_prefix_tree_fill(tree, nodes[i]);
        qr_prefix_tree_check(tree);
    }
    for (uint32_t i = 0; i < 8; i++) assert_true(qr_prefix_tree_find(tree, qr_prefix_tree_scope(tree, &scopes[i]), tokens) == nodes[i]);
    for (uint32_t i = 0; i < 8; i += 2) qr_prefix_tree_remove(tree, nodes[i]);
    qr_prefix_tree_check(tree);
    for (uint32_t i = 0; i < 8; i++) assert_true((qr_prefix_tree_scope(tree, &scopes[i]) == QR_NODE_NONE) == (i % 2 == 0));
    free(tree);
}
static void test_children_by_first_token(void **state)
{
    (void)state;
    enum { NODES = 400 };
    qr_prefix_tree_t *tree = calloc(1, qr_prefix_tree_bytes(NODES, 4));
    qr_prefix_tree_init(tree, NODES, 4);
    qr_hash_t scope = {{1}};
    uint32_t root = qr_prefix_tree_scope_make(tree, &scope), nodes[300];
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t tokens[4] = {5, i, 0, 0};
        nodes[i] = qr_prefix_tree_add(tree, root, tokens, 2);
    }
    qr_prefix_tree_check(tree);
    uint32_t steps = 0, seen = 0;
    for (uint32_t n = QR_NODE_NONE; (n = qr_prefix_tree_next(tree, root, 5, n, &steps)) != QR_NODE_NONE; seen++)
        assert_true(n == nodes[299 - seen]); /* newest first */
    assert_int_equal(seen, 64);              /* and no more than that */
    steps = 0;
    assert_true(qr_prefix_tree_next(tree, root, 6, QR_NODE_NONE, &steps) == QR_NODE_NONE);
    uint32_t more[2] = {8, 9};
    qr_prefix_tree_append(tree, nodes[7], more, 2);
    uint32_t whole[4] = {5, 7, 8, 9};
    assert_true(qr_prefix_tree_find(tree, root, whole) == QR_NODE_NONE);
    qr_prefix_tree_fill(tree, nodes[7]);
    assert_true(qr_prefix_tree_find(tree, root, whole) == nodes[7]);
    whole[0] += 1u << 16; /* tokens are 32 bits wide everywhere */
    assert_true(qr_prefix_tree_find(tree, root, whole) == QR_NODE_NONE);
    qr_prefix_tree_cut(tree, nodes[7], 3);
    whole[0] = 5;
    assert_true(qr_prefix_tree_find(tree, root, whole) == QR_NODE_NONE);
    for (uint32_t i = 0; i < 300; i++) {
        qr_prefix_tree_remove(tree, nodes[(i * 7) % 300]);
        qr_prefix_tree_check(tree);
    }
    assert_true(tree->count == 0 && qr_prefix_tree_scope(tree, &scope) == QR_NODE_NONE);
    free(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value_grows_with_rows_place_and_reuse),
        cmocka_unit_test(test_order_takes_least_first_and_ages),
        cmocka_unit_test(test_pages_raise_generations),
        cmocka_unit_test(test_scopes_with_equal_beginnings),
        cmocka_unit_test(test_children_by_first_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
