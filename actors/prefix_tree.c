#include "actors/prefix_tree.h"
#include "base/mutant.h"

enum { CHILDREN_LOOKED_AT_MAX = 64, STEPS_MAX = 256 };

static uint32_t bucket_count(uint32_t capacity)
{
    uint32_t buckets = 16;
    while (buckets < capacity) buckets *= 2;
    return buckets;
}
static qr_scope_t *scope_at(const qr_prefix_tree_t *tree, uint32_t scope)
{
    return (qr_scope_t *)((uintptr_t)tree + tree->scopes_at) + scope;
}
static uint32_t *column(const qr_prefix_tree_t *tree, uint64_t at) { return (uint32_t *)((uintptr_t)tree + at); }

/* Lays the arrays out behind the header; returns the bytes of all. */
static uint64_t place(qr_prefix_tree_t *tree, uint32_t capacity, uint32_t page_tokens)
{
    uint64_t buckets = bucket_count(capacity), at = sizeof(qr_prefix_tree_t);
    tree->nodes_at = at;
    at += (uint64_t)capacity * sizeof(qr_node_t);
    tree->scopes_at = at;
    at += (uint64_t)capacity * sizeof(qr_scope_t);
    tree->tokens_at = at;
    at += (uint64_t)capacity * page_tokens * sizeof(uint32_t);
    tree->full_at = at;
    at += buckets * sizeof(uint32_t);
    tree->first_at = at;
    at += buckets * sizeof(uint32_t);
    tree->scope_index_at = at;
    at += buckets * sizeof(uint32_t);
    return qr_round_up(at, 8);
}
uint64_t qr_prefix_tree_bytes(uint32_t capacity, uint32_t page_tokens)
{
    qr_prefix_tree_t tree = {0};
    return place(&tree, capacity, page_tokens);
}
void qr_prefix_tree_init(qr_prefix_tree_t *tree, uint32_t capacity, uint32_t page_tokens)
{
    qr_assert(capacity >= 1 && capacity < QR_NODE_ROOT && page_tokens >= 1);
    place(tree, capacity, page_tokens);
    tree->capacity = capacity;
    tree->page_tokens = page_tokens;
    tree->mask = bucket_count(capacity) - 1;
    /* 0xff bytes: every bucket QR_NODE_NONE */
    memset(column(tree, tree->full_at), 0xff, (tree->mask + 1ull) * 3 * sizeof(uint32_t));
    for (uint32_t i = 0; i < capacity; i++) {
        qr_node_at(tree, i)->full_next = i + 1 < capacity ? i + 1 : QR_NODE_NONE;
        scope_at(tree, i)->next = i + 1 < capacity ? i + 1 : QR_NODE_NONE;
    }
}

/* ---- hashes: seeded, so that nobody outside can aim at one bucket ------------------------------------------------ */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}
static uint32_t hash_tokens(const qr_prefix_tree_t *tree, uint32_t parent, const uint32_t *tokens)
{
    /* Two lanes, so that the multiplications overlap. */
    uint64_t a = tree->seed, b = tree->seed ^ 0xc2b2ae3d27d4eb4fu;
    uint32_t i = 0;
    for (; i + 4 <= tree->page_tokens; i += 4) {
        a = mix(a, (uint64_t)tokens[i] << 32 | tokens[i + 1]);
        b = mix(b, (uint64_t)tokens[i + 2] << 32 | tokens[i + 3]);
    }
    for (; i < tree->page_tokens; i++) a = mix(a, tokens[i]);
    return (uint32_t)(mix(mix(a, b), parent) >> 16);
}
static uint32_t hash_first(const qr_prefix_tree_t *tree, uint32_t parent, uint32_t token)
{
    return (uint32_t)(mix(mix(tree->seed, parent), token) >> 16);
}
static uint32_t *full_bucket(const qr_prefix_tree_t *tree, uint32_t hash) { return &column(tree, tree->full_at)[hash & tree->mask]; }
static uint32_t *first_bucket(const qr_prefix_tree_t *tree, uint32_t parent, uint32_t token)
{
    return &column(tree, tree->first_at)[hash_first(tree, parent, token) & tree->mask];
}
static uint32_t *scope_bucket(const qr_prefix_tree_t *tree, const qr_hash_t *hash)
{
    uint32_t word;
    memcpy(&word, hash->bytes, sizeof(word)); /* a SHA-256 digest is its own hash; the salt is not the asker's alone to choose */
    return &column(tree, tree->scope_index_at)[(uint32_t)mix(tree->seed, word) & tree->mask];
}

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

uint32_t qr_prefix_tree_scope(const qr_prefix_tree_t *tree, const qr_hash_t *hash)
{
    for (uint32_t s = *scope_bucket(tree, hash); s != QR_NODE_NONE; s = scope_at(tree, s)->next)
        if (!memcmp(&scope_at(tree, s)->hash, hash, sizeof(*hash)) || QR_MUTANT(101)) return QR_NODE_ROOT | s;
    return QR_NODE_NONE;
}
const qr_hash_t *qr_prefix_tree_scope_hash(const qr_prefix_tree_t *tree, uint32_t root)
{
    return &scope_at(tree, root & ~QR_NODE_ROOT)->hash;
}
uint32_t qr_prefix_tree_scope_make(qr_prefix_tree_t *tree, const qr_hash_t *hash)
{
    uint32_t root = qr_prefix_tree_scope(tree, hash);
    if (root != QR_NODE_NONE) return root;
    uint32_t s = tree->free_scope;
    qr_assert(s != QR_NODE_NONE);
    tree->free_scope = scope_at(tree, s)->next;
    uint32_t *bucket = scope_bucket(tree, hash);
    *scope_at(tree, s) = (qr_scope_t){.hash = *hash, .next = *bucket};
    *bucket = s;
    return QR_NODE_ROOT | s;
}
static void scope_drop(qr_prefix_tree_t *tree, uint32_t s)
{
    uint32_t *link = scope_bucket(tree, &scope_at(tree, s)->hash);
    while (*link != s) link = &scope_at(tree, *link)->next;
    *link = scope_at(tree, s)->next;
    *scope_at(tree, s) = (qr_scope_t){.next = tree->free_scope};
    tree->free_scope = s;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static bool tokens_equal(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    if (QR_MUTANT(102)) { /* compares the low byte only */
        for (uint32_t i = 0; i < count; i++)
            if ((a[i] ^ b[i]) & 0xff) return false;
        return true;
    }
    return !memcmp(a, b, count * sizeof(uint32_t));
}
uint32_t qr_prefix_tree_find(const qr_prefix_tree_t *tree, uint32_t parent, const uint32_t *tokens)
{
    uint32_t hash = hash_tokens(tree, parent, tokens);
    if (QR_MUTANT(102)) hash = 0;
    for (uint32_t n = *full_bucket(tree, hash); n != QR_NODE_NONE; n = qr_node_at(tree, n)->full_next) {
        const qr_node_t *node = qr_node_at(tree, n);
        if (node->hash == hash && node->parent == parent && tokens_equal(qr_node_tokens(tree, n), tokens, tree->page_tokens)) return n;
    }
    return QR_NODE_NONE;
}
uint32_t qr_prefix_tree_next(const qr_prefix_tree_t *tree, uint32_t parent, uint32_t token, uint32_t node, uint32_t *steps)
{
    /* The low half of *steps counts chain entries, the high half children looked at: neither may run long. */
    uint32_t n = node == QR_NODE_NONE ? *first_bucket(tree, parent, token) : qr_node_at(tree, node)->first_next;
    for (; n != QR_NODE_NONE && (*steps & 0xffff) < STEPS_MAX; n = qr_node_at(tree, n)->first_next) {
        (*steps)++;
        if ((qr_node_at(tree, n)->parent != parent && !QR_MUTANT(458)) || *qr_node_tokens(tree, n) != token) continue;
        if ((*steps >> 16) >= CHILDREN_LOOKED_AT_MAX) return QR_NODE_NONE;
        *steps += 1u << 16;
        return n;
    }
    return QR_NODE_NONE;
}

uint32_t qr_prefix_tree_add(qr_prefix_tree_t *tree, uint32_t parent, const uint32_t *tokens, uint32_t count)
{
    uint32_t n = tree->free_node;
    qr_assert(n != QR_NODE_NONE && count >= 1 && count <= tree->page_tokens);
    qr_node_t *node = qr_node_at(tree, n);
    tree->free_node = node->full_next;
    tree->count++;
    bool root = (parent & QR_NODE_ROOT) != 0;
    uint32_t *bucket = first_bucket(tree, parent, tokens[0]);
    *node = (qr_node_t){.parent = parent,
                        .block = root ? 0 : qr_node_at(tree, parent)->block + 1,
                        .token_count = count,
                        .full_next = QR_NODE_NONE,
                        .first_next = *bucket,
                        .first_previous = QR_NODE_NONE,
                        .writer = QR_NODE_NONE,
                        .scope = root ? parent & ~QR_NODE_ROOT : qr_node_at(tree, parent)->scope};
    memset(node->pages, 0xff, sizeof(node->pages));
    if (*bucket != QR_NODE_NONE) qr_node_at(tree, *bucket)->first_previous = n;
    *bucket = n;
    memcpy(qr_node_tokens(tree, n), tokens, count * sizeof(uint32_t));
    scope_at(tree, node->scope)->nodes++;
    if (!root) qr_node_at(tree, parent)->children++;
    return n;
}
void qr_prefix_tree_append(qr_prefix_tree_t *tree, uint32_t n, const uint32_t *tokens, uint32_t count)
{
    qr_node_t *node = qr_node_at(tree, n);
    qr_assert(!node->full && node->token_count + count <= tree->page_tokens);
    memcpy(qr_node_tokens(tree, n) + node->token_count, tokens, count * sizeof(uint32_t));
    node->token_count += count;
}
void qr_prefix_tree_fill(qr_prefix_tree_t *tree, uint32_t n)
{
    qr_node_t *node = qr_node_at(tree, n);
    qr_assert(!node->full && node->token_count == tree->page_tokens);
    node->hash = hash_tokens(tree, node->parent, qr_node_tokens(tree, n));
    if (QR_MUTANT(102)) node->hash = 0;
    uint32_t *bucket = full_bucket(tree, node->hash);
    node->full = 1;
    node->full_next = *bucket;
    *bucket = n;
}
static void unfill(qr_prefix_tree_t *tree, uint32_t n)
{
    qr_node_t *node = qr_node_at(tree, n);
    uint32_t *link = full_bucket(tree, node->hash);
    while (*link != n) link = &qr_node_at(tree, *link)->full_next;
    *link = node->full_next;
    node->full = 0;
    node->full_next = QR_NODE_NONE;
}
void qr_prefix_tree_cut(qr_prefix_tree_t *tree, uint32_t n, uint32_t count)
{
    qr_node_t *node = qr_node_at(tree, n);
    qr_assert(count >= 1 && count <= node->token_count && !node->children);
    if (count == node->token_count) return;
    if (node->full) unfill(tree, n);
    node->token_count = count;
}
uint32_t qr_prefix_tree_remove(qr_prefix_tree_t *tree, uint32_t n)
{
    qr_node_t *node = qr_node_at(tree, n);
    uint32_t parent = node->parent, scope = node->scope;
    qr_assert(node->token_count && !node->children && !node->holders);
    if (node->full) unfill(tree, n);
    if (node->first_previous != QR_NODE_NONE)
        qr_node_at(tree, node->first_previous)->first_next = node->first_next;
    else
        *first_bucket(tree, parent, *qr_node_tokens(tree, n)) = node->first_next;
    if (node->first_next != QR_NODE_NONE) qr_node_at(tree, node->first_next)->first_previous = node->first_previous;
    if (!(parent & QR_NODE_ROOT)) qr_node_at(tree, parent)->children--;
    *node = (qr_node_t){.full_next = tree->free_node};
    tree->free_node = n;
    tree->count--;
    if (!--scope_at(tree, scope)->nodes) scope_drop(tree, scope);
    return parent;
}

void qr_prefix_tree_check(const qr_prefix_tree_t *tree)
{
    uint32_t count = 0, scoped = 0, children = 0, chained = 0;
    for (uint32_t n = 0; n < tree->capacity; n++) {
        const qr_node_t *node = qr_node_at(tree, n);
        if (!node->token_count) continue;
        count++;
        children += node->children;
        if (node->parent & QR_NODE_ROOT) {
            qr_assert(node->block == 0 && (node->parent & ~QR_NODE_ROOT) == node->scope);
            children++;
        } else {
            const qr_node_t *parent = qr_node_at(tree, node->parent);
            qr_assert(parent->full && parent->block + 1 == node->block && parent->scope == node->scope && parent->children); /* N1 */
        }
        qr_assert(node->token_count <= tree->page_tokens && node->rows <= node->token_count);
        qr_assert(node->full == (node->token_count == tree->page_tokens));
        if (node->full) qr_assert(qr_prefix_tree_find(tree, node->parent, qr_node_tokens(tree, n)) == n); /* N2 */
        if (node->first_previous == QR_NODE_NONE)
            for (uint32_t m = n; m != QR_NODE_NONE; m = qr_node_at(tree, m)->first_next) chained++;
    }
    for (uint32_t s = 0; s < tree->capacity; s++) {
        scoped += scope_at(tree, s)->nodes;
        if (scope_at(tree, s)->nodes) qr_assert(qr_prefix_tree_scope(tree, &scope_at(tree, s)->hash) == (QR_NODE_ROOT | s)); /* N3 */
    }
    qr_assert(count == tree->count && scoped == count && children == count && chained == count);
}
