/* prefix_tree.h - the prefix tree by token: nodes of one page of tokens under their parent, one tree per scope. Pure evaluator;
 * the page numbers, rows, holders and keys of a node are its user's, the rest is kept here.
 *
 * N1. A node is a child of its parent exactly once; children counts them; block = parent's + 1 (0 under a root).
 * N2. A node with page_tokens tokens is in the full index at most once per (parent, tokens), found by seeded hash and compared
 *     token by token. Every node is in the first-token index of (parent, first token), newest first.
 * N3. A scope exists while it has nodes. */
#ifndef QR_PREFIX_TREE_H
#define QR_PREFIX_TREE_H

#include "actors/given.h"

#define QR_NODE_NONE UINT32_MAX
#define QR_NODE_ROOT 0x80000000u /* parent of first blocks: QR_NODE_ROOT | scope */

typedef struct qr_node {
    uint32_t parent; /* a node, or QR_NODE_ROOT | scope */
    uint32_t children;
    uint32_t block;       /* its rows begin at block * page_tokens */
    uint32_t token_count; /* known tokens, promised ones included; 0 = unused slot */
    uint32_t hash;        /* of (parent, tokens) while it is in the full index */
    uint32_t full;        /* 1: in the full index */
    uint32_t full_next;   /* chains of the two indexes; full_next also links unused slots */
    uint32_t first_next, first_previous;
    uint32_t rows;    /* committed rows: the named pages hold them */
    uint32_t holders; /* routes and leases whose walk passes here */
    uint32_t writer;  /* route that promised or wrote most, or QR_NODE_NONE */
    uint32_t hits;    /* times it was matched */
    uint32_t scope;
    uint64_t key;                  /* level + value when last touched */
    uint32_t pages[QR_GROUPS_MAX]; /* named page per group, or QR_NODE_NONE */
} qr_node_t;
_Static_assert(sizeof(qr_node_t) == 80, "no padding");

typedef struct qr_scope {
    qr_hash_t hash;
    uint32_t nodes; /* 0 = unused slot */
    uint32_t next;
} qr_scope_t;
_Static_assert(sizeof(qr_scope_t) == 40, "no padding");

/* Header of a block of qr_prefix_tree_bytes() bytes. Offsets count from the header. */
typedef struct qr_prefix_tree {
    uint64_t seed;
    uint64_t nodes_at, tokens_at, full_at, first_at, scopes_at, scope_index_at;
    uint32_t capacity; /* nodes, scopes */
    uint32_t page_tokens;
    uint32_t mask;  /* buckets - 1 of every index */
    uint32_t count; /* nodes in use */
    uint32_t free_node, free_scope;
} qr_prefix_tree_t;

uint64_t qr_prefix_tree_bytes(uint32_t capacity, uint32_t page_tokens);
/* Fills a zeroed block. */
void qr_prefix_tree_init(qr_prefix_tree_t *tree, uint32_t capacity, uint32_t page_tokens);

static inline qr_node_t *qr_node_at(const qr_prefix_tree_t *tree, uint32_t node)
{
    return (qr_node_t *)((uintptr_t)tree + tree->nodes_at) + node;
}
/* [page_tokens] of a node; token_count of them are known. */
static inline uint32_t *qr_node_tokens(const qr_prefix_tree_t *tree, uint32_t node)
{
    return (uint32_t *)((uintptr_t)tree + tree->tokens_at) + (uint64_t)node * tree->page_tokens;
}

/* QR_NODE_ROOT | scope of a hash, or QR_NODE_NONE when it has no nodes. Compares all 32 bytes. */
uint32_t qr_prefix_tree_scope(const qr_prefix_tree_t *tree, const qr_hash_t *hash);
/* The same, made if absent; the caller adds a node to it at once (N3). */
uint32_t qr_prefix_tree_scope_make(qr_prefix_tree_t *tree, const qr_hash_t *hash);
/* The hash of QR_NODE_ROOT | scope. */
const qr_hash_t *qr_prefix_tree_scope_hash(const qr_prefix_tree_t *tree, uint32_t root);
/* The child of parent with exactly these page_tokens tokens, or QR_NODE_NONE. */
uint32_t qr_prefix_tree_find(const qr_prefix_tree_t *tree, uint32_t parent, const uint32_t *tokens);
/* Children whose first token is `token`: QR_NODE_NONE ends the walk, which also ends after a bounded number of steps (*steps,
 * 0 at first). `node` is the one before, QR_NODE_NONE at first. */
uint32_t qr_prefix_tree_next(const qr_prefix_tree_t *tree, uint32_t parent, uint32_t token, uint32_t node, uint32_t *steps);
/* A new child with count (1 .. page_tokens) tokens, no rows, no pages, no holders; there must be a free slot. In the full index
 * only after qr_prefix_tree_fill. */
uint32_t qr_prefix_tree_add(qr_prefix_tree_t *tree, uint32_t parent, const uint32_t *tokens, uint32_t count);
/* Appends tokens to a node that has room. */
void qr_prefix_tree_append(qr_prefix_tree_t *tree, uint32_t node, const uint32_t *tokens, uint32_t count);
/* Enters a node with page_tokens tokens in the full index; none equal may be there. */
void qr_prefix_tree_fill(qr_prefix_tree_t *tree, uint32_t node);
/* Forgets tokens beyond count >= 1; leaves the full index if it was there. No children allowed. */
void qr_prefix_tree_cut(qr_prefix_tree_t *tree, uint32_t node, uint32_t count);
/* Removes a node without children or holders. Returns its parent (a node or a root). */
uint32_t qr_prefix_tree_remove(qr_prefix_tree_t *tree, uint32_t node);
/* Asserts N1 to N3. */
void qr_prefix_tree_check(const qr_prefix_tree_t *tree);

#endif
