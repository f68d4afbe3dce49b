/* tokenizer.c - byte-level BPE: pieces of the pre-tokenizer, each merged pair by pair, most wanted pair first.
 *
 * K1. Everything works on raw bytes; the byte alphabet of the file (one printable character per byte) is undone when it is read.
 * K2. Of all neighbouring pairs the one of lowest rank merges first, the leftmost on a tie; never left to right.
 * K3. A piece costs O(n log n): short ones are scanned, long ones use a heap. Nothing recurses.
 * K4. A byte without a token of its own is left out, as the reference does for vocabularies without an unknown token.
 * K5. Ids of control tokens come only from ranges that the caller marked; texts of user tokens count everywhere.
 * K6. The cache of short pieces changes speed, never results. One thread at a time uses a tokenizer. */
#include "model/tokenizer.h"

#include "base/error.h"
#include "base/mutant.h"
#include "base/render.h"
#include "model/gguf.h"
#include "model/pretokenize.h"
#include "model/refuse.h"
#include "model/template.h"
#include "model/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    SCAN_BYTES_MAX = 48,   /* longer pieces are merged with the heap */
    CACHE_SLOTS = 1 << 14, /* of 64 bytes */
    CACHE_KEY_BYTES = 22,
    CACHE_IDS = 8,
    HEAP_KEEP_BYTES = 1 << 20 /* scratch beyond this is given back after a piece */
};

typedef struct pair_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank, id;
} pair_slot_t;

typedef struct cache_slot {
    uint64_t hash;
    uint32_t ids[CACHE_IDS];
    uint8_t bytes, count; /* count 255: empty slot */
    uint8_t key[CACHE_KEY_BYTES];
} cache_slot_t;
_Static_assert(sizeof(cache_slot_t) == 64, "one line of cache");

typedef struct special {
    const uint8_t *text;
    uint32_t bytes, id;
    bool user;
} special_t;

struct qr_tokenizer {
    uint32_t count, merge_count;
    uint8_t *arena;    /* raw bytes of every token */
    uint32_t *offsets; /* [count + 1] into arena */
    uint32_t *ids;     /* [id_mask + 1] open addressing over ordinary tokens by their bytes; QR_TOKEN_NONE = empty */
    uint64_t id_mask;
    pair_slot_t *pairs; /* [pair_mask + 1]; rank QR_TOKEN_NONE = empty */
    uint64_t pair_mask;
    uint32_t byte_ids[256]; /* QR_TOKEN_NONE: no token */
    special_t *specials;    /* sorted by bytes */
    size_t special_count;
    bool special_first[256], any_user;
    cache_slot_t *cache;
    qr_pretokenizer_t *pretokenizer;
    qr_template_t *chat_template;
    char chat_error[256]; /* why there is no chat_template */
    uint32_t bos_token;
    bool add_bos;
    /* scratch of the piece at hand */
    uint32_t *symbols, *ranks, *next, *previous;
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_count, heap_capacity;
};

/* Where ids go. */
typedef struct sink {
    uint32_t *tokens;
    size_t count, capacity;
} sink_t;

static bool sink_put(sink_t *sink, uint32_t id)
{
    if (sink->count == sink->capacity) return false;
    sink->tokens[sink->count++] = id;
    return true;
}

/* ---- tables ----------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}
static uint64_t hash_bytes(const uint8_t *bytes, size_t count)
{
    uint64_t hash = count * 0x9e3779b97f4a7c15u, word;
    for (; count >= 8; bytes += 8, count -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9fb21c651e98df25u;
        hash ^= hash >> 29;
    }
    word = 0;
    for (size_t i = 0; i < count; i++) word |= (uint64_t)bytes[i] << 8 * i;
    return mix(hash ^ word);
}

static uint32_t find_token(const qr_tokenizer_t *t, const uint8_t *bytes, size_t count)
{
    for (uint64_t at = hash_bytes(bytes, count) & t->id_mask;; at = (at + 1) & t->id_mask) {
        uint32_t id = t->ids[at];
        if (id == QR_TOKEN_NONE) return id;
        if (t->offsets[id + 1] - t->offsets[id] == count && !memcmp(t->arena + t->offsets[id], bytes, count)) return id;
    }
}
static const pair_slot_t *find_pair(const qr_tokenizer_t *t, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    for (uint64_t at = mix(pair) & t->pair_mask;; at = (at + 1) & t->pair_mask) {
        const pair_slot_t *slot = &t->pairs[at];
        if (slot->pair == pair || slot->rank == QR_TOKEN_NONE) return slot; /* an empty slot has no rank */
    }
}

static uint64_t table_slots(uint64_t entries)
{
    uint64_t slots = 16;
    while (slots < 2 * entries) slots *= 2;
    return slots;
}

static bool is_plain(uint8_t type) { return type == QR_TOKEN_TYPE_NORMAL || type == QR_TOKEN_TYPE_UNUSED; }

/* Raw bytes of all tokens and the table over ordinary ones. The first of equal tokens counts. */
static int read_tokens(qr_tokenizer_t *t, const qr_tokenizer_tables_t *tables, char *message, size_t message_bytes)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < tables->count; i++) {
        if (!qr_utf8_valid(tables->texts[i].data, tables->texts[i].bytes)) {
            snprintf(message, message_bytes, "%s: tokenizer.ggml.tokens: token %u is not UTF-8", tables->name, i);
            return -QR_E_FORMAT;
        }
        all += tables->texts[i].bytes;
    }
    if (all >= UINT32_MAX) {
        snprintf(message, message_bytes, "%s: tokenizer.ggml.tokens: more than 4 GiB of text", tables->name);
        return -QR_E_LIMIT;
    }
    t->arena = malloc(all + 1);
    t->offsets = malloc((tables->count + (size_t)1) * sizeof *t->offsets);
    t->id_mask = table_slots(tables->count) - 1;
    t->ids = malloc((t->id_mask + 1) * sizeof *t->ids);
    if (!t->arena || !t->offsets || !t->ids) return -QR_E_MEMORY;
    for (uint64_t i = 0; i <= t->id_mask; i++) t->ids[i] = QR_TOKEN_NONE;
    uint32_t used = 0;
    for (uint32_t i = 0; i < tables->count; i++) {
        const qr_token_text_t *text = &tables->texts[i];
        t->offsets[i] = used;
        int64_t raw = is_plain(tables->types[i]) ? qr_alphabet_undo(text->data, text->bytes, t->arena + used) : -1;
        bool ordinary = raw > 0;
        if (raw < 0) {
            qr_copy(t->arena + used, text->data, text->bytes);
            raw = (int64_t)text->bytes;
        }
        used += (uint32_t)raw;
        t->offsets[i + 1] = used;
        if (!ordinary || find_token(t, t->arena + t->offsets[i], (size_t)raw) != QR_TOKEN_NONE) continue;
        uint64_t at = hash_bytes(t->arena + t->offsets[i], (size_t)raw) & t->id_mask;
        while (t->ids[at] != QR_TOKEN_NONE) at = (at + 1) & t->id_mask;
        t->ids[at] = i;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t one = (uint8_t)byte;
        t->byte_ids[byte] = find_token(t, &one, 1);
    }
    return 0;
}

/* One "left right": ids of both and of what they join to, false if a part is unknown. */
static bool read_merge(const qr_tokenizer_t *t, const qr_token_text_t *merge, uint8_t *scratch, uint32_t ids[3])
{
    if (merge->bytes < 3 || !qr_utf8_valid(merge->data, merge->bytes)) return false;
    const char *space = memchr(merge->data + 1, ' ', merge->bytes - 1); /* the alphabet has no blank */
    if (!space) return false;
    uint64_t first = (uint64_t)(space - merge->data);
    int64_t left = qr_alphabet_undo(merge->data, first, scratch);
    if (left <= 0) return false;
    int64_t right = qr_alphabet_undo(space + 1, merge->bytes - first - 1, scratch + left);
    if (right <= 0) return false;
    ids[0] = find_token(t, scratch, (size_t)left);
    ids[1] = find_token(t, scratch + left, (size_t)right);
    ids[2] = find_token(t, scratch, (size_t)(left + right));
    return ids[0] != QR_TOKEN_NONE && ids[1] != QR_TOKEN_NONE && ids[2] != QR_TOKEN_NONE;
}

static int read_merges(qr_tokenizer_t *t, const qr_tokenizer_tables_t *tables, char *message, size_t message_bytes)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < tables->merge_count; i++) longest = qr_max_u64(longest, tables->merges[i].bytes);
    uint8_t *scratch = malloc(longest + 1);
    t->pair_mask = table_slots(tables->merge_count) - 1;
    t->pairs = malloc((t->pair_mask + 1) * sizeof *t->pairs);
    int error = scratch && t->pairs ? 0 : -QR_E_MEMORY;
    for (uint64_t i = 0; !error && i <= t->pair_mask; i++) t->pairs[i] = (pair_slot_t){UINT64_MAX, QR_TOKEN_NONE, 0};
    for (uint32_t i = 0; !error && i < tables->merge_count; i++) {
        uint32_t ids[3];
        if (!read_merge(t, &tables->merges[i], scratch, ids)) {
            snprintf(message, message_bytes, "%s: tokenizer.ggml.merges: merge %u does not join two tokens to a token", tables->name, i);
            error = -QR_E_FORMAT;
            break;
        }
        pair_slot_t *slot = (pair_slot_t *)(uintptr_t)find_pair(t, ids[0], ids[1]);
        if (slot->rank == QR_TOKEN_NONE) *slot = (pair_slot_t){(uint64_t)ids[0] << 32 | ids[1], i, ids[2]};
    }
    free(scratch);
    return error;
}

static int compare_specials(const void *a, const void *b)
{
    const special_t *x = a, *y = b;
    int order = memcmp(x->text, y->text, qr_min_u32(x->bytes, y->bytes));
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int read_specials(qr_tokenizer_t *t, const qr_tokenizer_tables_t *tables)
{
    size_t count = 0;
    for (uint32_t i = 0; i < tables->count; i++)
        count += tables->types[i] == QR_TOKEN_TYPE_CONTROL || tables->types[i] == QR_TOKEN_TYPE_USER;
    t->specials = calloc(count + 1, sizeof *t->specials);
    if (!t->specials) return -QR_E_MEMORY;
    for (uint32_t i = 0; i < tables->count; i++) {
        bool user = tables->types[i] == QR_TOKEN_TYPE_USER;
        uint32_t bytes = t->offsets[i + 1] - t->offsets[i];
        if ((tables->types[i] != QR_TOKEN_TYPE_CONTROL && !user) || !bytes) continue;
        t->specials[t->special_count++] = (special_t){t->arena + t->offsets[i], bytes, i, user};
        t->special_first[t->arena[t->offsets[i]]] = true;
        t->any_user |= user;
    }
    qsort(t->specials, t->special_count, sizeof *t->specials, compare_specials);
    return 0;
}

int qr_tokenizer_new_from(const qr_tokenizer_tables_t *tables, qr_tokenizer_t **ret_tokenizer, char *message, size_t message_bytes)
{
    qr_tokenizer_t *t = calloc(1, sizeof *t);
    if (!t) return -QR_E_MEMORY;
    snprintf(message, message_bytes, "%s: tokenizer: not enough memory", tables->name);
    t->count = tables->count;
    t->merge_count = tables->merge_count;
    t->bos_token = tables->bos_token;
    t->add_bos = tables->add_bos && tables->bos_token < tables->count;
    int error = read_tokens(t, tables, message, message_bytes);
    if (!error) error = read_merges(t, tables, message, message_bytes);
    if (!error) error = read_specials(t, tables);
    if (!error) {
        char why[300];
        error = qr_pretokenizer_new(tables->pre, &t->pretokenizer, why, sizeof why);
        if (error) snprintf(message, message_bytes, "%s: %s", tables->name, why);
    }
    if (!error && qr_template_new(tables->chat_template, &t->chat_template, t->chat_error, sizeof t->chat_error) == -QR_E_MEMORY)
        error = -QR_E_MEMORY;
    if (!error && !(t->cache = malloc(CACHE_SLOTS * sizeof *t->cache))) error = -QR_E_MEMORY;
    if (error) {
        qr_tokenizer_destroy(&t);
        return error;
    }
    for (size_t i = 0; i < CACHE_SLOTS; i++) t->cache[i].count = 255;
    *ret_tokenizer = t;
    return 0;
}

/* ---- from a model file ------------------------------------------------------------------------------------------------- */

/* One array of strings of the file as texts[ret_count], which the caller frees. */
static int read_strings(const qr_gguf_t *file, const char *key, qr_token_text_t **ret_texts, uint32_t *ret_count, char *message,
                        size_t message_bytes)
{
    const qr_gguf_entry_t *entry;
    int error = qr_gguf_get_array(file, key, QR_GGUF_STRING, &entry, message, message_bytes);
    if (error == -QR_E_NOT_FOUND) snprintf(message, message_bytes, "%s: %s is missing", qr_gguf_path(file), key);
    if (error) return error == -QR_E_NOT_FOUND ? -QR_E_FORMAT : error;
    if (entry->count >= QR_TOKEN_PREVIOUS) {
        snprintf(message, message_bytes, "%s: %s: too many entries", qr_gguf_path(file), key);
        return -QR_E_LIMIT;
    }
    qr_token_text_t *texts = calloc(entry->count + 1, sizeof *texts);
    if (!texts) {
        snprintf(message, message_bytes, "%s: %s: not enough memory", qr_gguf_path(file), key);
        return -QR_E_MEMORY;
    }
    uint64_t cursor = 0;
    qr_gguf_string_t string;
    uint32_t count = 0;
    while (count < entry->count && qr_gguf_string_next(entry, &cursor, &string))
        texts[count++] = (qr_token_text_t){string.data, string.bytes};
    *ret_texts = texts;
    *ret_count = count;
    return 0;
}

static int read_types(const qr_gguf_t *file, uint32_t count, uint8_t *types, char *message, size_t message_bytes)
{
    memset(types, QR_TOKEN_TYPE_NORMAL, count);
    const qr_gguf_entry_t *entry;
    int error = qr_gguf_get_array(file, "tokenizer.ggml.token_type", QR_GGUF_TYPES_COUNT, &entry, message, message_bytes);
    if (error == -QR_E_NOT_FOUND) return 0;
    if (!error && entry->count != count) {
        snprintf(message, message_bytes, "%s: tokenizer.ggml.token_type: has %llu entries for %u tokens", qr_gguf_path(file),
                 (unsigned long long)entry->count, count);
        error = -QR_E_FORMAT;
    }
    for (uint32_t i = 0; !error && i < count; i++) types[i] = (uint8_t)qr_min_u64(qr_gguf_element_u64(entry, i), 255);
    return error;
}

/* The two names that decide the method, as NUL-terminated text. An absent pre-tokenizer is `default`. */
static int read_names(const qr_gguf_t *file, char pre[64], char *message, size_t message_bytes)
{
    qr_gguf_string_t text;
    int error = qr_gguf_get_string(file, "tokenizer.ggml.model", &text, message, message_bytes);
    if (error == -QR_E_NOT_FOUND)
        snprintf(message, message_bytes, "%s: tokenizer.ggml.model is missing; supported: gpt2", qr_gguf_path(file));
    if (error) return error == -QR_E_NOT_FOUND ? -QR_E_UNSUPPORTED : error;
    if (!qr_gguf_string_is(text, "gpt2"))
        return qr_refuse(message, message_bytes, QR_E_UNSUPPORTED,
                         "%s: tokenizer.ggml.model: %s is not supported; supported: gpt2 (byte-level BPE)", qr_gguf_path(file),
                         qr_shown(text).text);
    strcpy(pre, "default");
    error = qr_gguf_get_string(file, "tokenizer.ggml.pre", &text, message, message_bytes);
    if (error == -QR_E_NOT_FOUND) return 0;
    for (uint64_t i = 0; !error && i < text.bytes; i++) /* a NUL would hide what follows it */
        if ((uint8_t)text.data[i] < 32 || text.data[i] == 127)
            return qr_refuse(message, message_bytes, QR_E_FORMAT, "%s: tokenizer.ggml.pre: %s has control characters", qr_gguf_path(file),
                             qr_shown(text).text);
    if (!error) snprintf(pre, 64, "%.*s", (int)qr_min_u64(text.bytes, 63), text.data);
    if (!error && !strcmp(pre, "none")) strcpy(pre, "none (of a file)"); /* a name for tests only */
    return error;
}

int qr_tokenizer_new(const qr_model_t *model, qr_tokenizer_t **ret_tokenizer, char *message, size_t message_bytes)
{
    char pre[64];
    qr_token_text_t *texts = NULL, *merges = NULL;
    uint8_t *types = NULL;
    qr_tokenizer_tables_t tables = {
        .name = model->path, .pre = pre, .chat_template = model->chat_template, .bos_token = model->bos_token, .add_bos = model->add_bos};
    int error = read_names(model->file, pre, message, message_bytes);
    if (!error) error = read_strings(model->file, "tokenizer.ggml.tokens", &texts, &tables.count, message, message_bytes);
    if (!error) error = read_strings(model->file, "tokenizer.ggml.merges", &merges, &tables.merge_count, message, message_bytes);
    if (!error && !(types = malloc(tables.count + (size_t)1))) error = -QR_E_MEMORY;
    if (!error) error = read_types(model->file, tables.count, types, message, message_bytes);
    tables.texts = texts;
    tables.merges = merges;
    tables.types = types;
    if (!error) error = qr_tokenizer_new_from(&tables, ret_tokenizer, message, message_bytes);
    free(texts);
    free(merges);
    free(types);
    return error;
}

void qr_tokenizer_destroy(qr_tokenizer_t **tokenizer)
{
    qr_tokenizer_t *t = *tokenizer;
    if (!t) return;
    qr_pretokenizer_destroy(&t->pretokenizer);
    qr_template_destroy(&t->chat_template);
    free(t->arena);
    free(t->offsets);
    free(t->ids);
    free(t->pairs);
    free(t->specials);
    free(t->cache);
    free(t->symbols);
    free(t->ranks);
    free(t->next);
    free(t->previous);
    free(t->heap);
    free(t);
    *tokenizer = NULL;
}

bool qr_tokenizer_bos(const qr_tokenizer_t *tokenizer, uint32_t *ret_token)
{
    if (tokenizer->add_bos) *ret_token = tokenizer->bos_token;
    return tokenizer->add_bos;
}

/* ---- merging one piece -------------------------------------------------------------------------------------------------- */

/* Merges symbols[count] in place by scanning for the best pair; returns what is left. */
static size_t merge_scan(const qr_tokenizer_t *t, uint32_t *symbols, size_t count)
{
    uint32_t ranks[SCAN_BYTES_MAX], joined[SCAN_BYTES_MAX];
    for (size_t i = 0; i + 1 < count; i++) {
        const pair_slot_t *pair = find_pair(t, symbols[i], symbols[i + 1]);
        ranks[i] = pair->rank;
        joined[i] = pair->id;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best] || (QR_MUTANT(450) && ranks[i] == ranks[best])) best = i;
        if (ranks[best] == QR_TOKEN_NONE) break;
        symbols[best] = joined[best];
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        if (best + 1 < count) {
            memmove(ranks + best + 1, ranks + best + 2, (count - best - 2) * sizeof *ranks);
            memmove(joined + best + 1, joined + best + 2, (count - best - 2) * sizeof *joined);
            const pair_slot_t *pair = find_pair(t, symbols[best], symbols[best + 1]);
            ranks[best] = pair->rank;
            joined[best] = pair->id;
        }
        if (best > 0) {
            const pair_slot_t *pair = find_pair(t, symbols[best - 1], symbols[best]);
            ranks[best - 1] = pair->rank;
            joined[best - 1] = pair->id;
        }
    }
    return count;
}

static bool heap_push(qr_tokenizer_t *t, uint64_t key)
{
    if (t->heap_count == t->heap_capacity) {
        size_t capacity = t->heap_capacity ? t->heap_capacity * 2 : 1024;
        uint64_t *grown = realloc(t->heap, capacity * sizeof *grown);
        if (!grown) return false;
        t->heap = grown;
        t->heap_capacity = capacity;
    }
    size_t at = t->heap_count++;
    while (at > 0 && t->heap[(at - 1) / 2] > key) {
        t->heap[at] = t->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    t->heap[at] = key;
    return true;
}
static uint64_t heap_pop(qr_tokenizer_t *t)
{
    uint64_t top = t->heap[0], key = t->heap[--t->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= t->heap_count) break;
        if (child + 1 < t->heap_count && t->heap[child + 1] < t->heap[child]) child++;
        if (t->heap[child] >= key) break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = key;
    return top;
}

/* Ranks the pair that begins at symbol `left` and queues it. */
static bool rank_pair(qr_tokenizer_t *t, uint32_t left)
{
    uint32_t right = t->next[left];
    t->ranks[left] = right == QR_TOKEN_NONE ? QR_TOKEN_NONE : find_pair(t, t->symbols[left], t->symbols[right])->rank;
    return t->ranks[left] == QR_TOKEN_NONE || heap_push(t, (uint64_t)(QR_MUTANT(451) ? 0 : t->ranks[left]) << 32 | left);
}

/* Merges t->symbols[count] as a linked list; keys are rank << 32 | place, so ties go to the left. A key whose place has another
 * rank by now is old: a place never has the same pair twice. */
static int merge_heap(qr_tokenizer_t *t, size_t count, sink_t *sink)
{
    t->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        t->previous[i] = i ? i - 1 : QR_TOKEN_NONE;
        t->next[i] = i + 1 < count ? i + 1 : QR_TOKEN_NONE;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!rank_pair(t, i)) return -QR_E_MEMORY;
    while (t->heap_count) {
        uint64_t key = heap_pop(t);
        uint32_t left = (uint32_t)key, rank = (uint32_t)(key >> 32);
        if (QR_MUTANT(451) ? t->ranks[left] == QR_TOKEN_NONE : t->ranks[left] != rank) continue;
        uint32_t right = t->next[left];
        t->symbols[left] = find_pair(t, t->symbols[left], t->symbols[right])->id;
        t->ranks[right] = QR_TOKEN_NONE;
        t->next[left] = t->next[right];
        if (t->next[left] != QR_TOKEN_NONE) t->previous[t->next[left]] = left;
        if (!rank_pair(t, left)) return -QR_E_MEMORY;
        if (t->previous[left] != QR_TOKEN_NONE && !rank_pair(t, t->previous[left])) return -QR_E_MEMORY;
    }
    for (uint32_t i = 0; i != QR_TOKEN_NONE && count; i = t->next[i])
        if (!sink_put(sink, t->symbols[i])) return -QR_E_LIMIT;
    return 0;
}

static void free_scratch(qr_tokenizer_t *t)
{
    free(t->symbols);
    free(t->ranks);
    free(t->next);
    free(t->previous);
    free(t->heap);
    t->symbols = t->ranks = t->next = t->previous = NULL;
    t->heap = NULL;
    t->symbol_capacity = t->heap_capacity = 0;
}

static int encode_long(qr_tokenizer_t *t, const uint8_t *piece, size_t bytes, sink_t *sink)
{
    if (bytes >= QR_TOKEN_NONE) return -QR_E_LIMIT;
    if (t->symbol_capacity < bytes) {
        free_scratch(t);
        t->symbols = malloc(bytes * sizeof *t->symbols);
        t->ranks = malloc(bytes * sizeof *t->ranks);
        t->next = malloc(bytes * sizeof *t->next);
        t->previous = malloc(bytes * sizeof *t->previous);
        t->symbol_capacity = bytes;
        if (!t->symbols || !t->ranks || !t->next || !t->previous) {
            free_scratch(t);
            return -QR_E_MEMORY;
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = t->byte_ids[piece[i]];
        if (id != QR_TOKEN_NONE) t->symbols[count++] = id;
    }
    int error = merge_heap(t, count, sink);
    if (t->symbol_capacity > HEAP_KEEP_BYTES) free_scratch(t);
    return error;
}

static int encode_short(qr_tokenizer_t *t, const uint8_t *piece, size_t bytes, sink_t *sink)
{
    uint32_t symbols[SCAN_BYTES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = t->byte_ids[piece[i]];
        if (id != QR_TOKEN_NONE || QR_MUTANT(454)) symbols[count++] = id;
    }
    count = merge_scan(t, symbols, count);
    if (count > sink->capacity - sink->count) return -QR_E_LIMIT;
    memcpy(sink->tokens + sink->count, symbols, count * sizeof *symbols);
    sink->count += count;
    return 0;
}

static int encode_piece_fresh(qr_tokenizer_t *t, const uint8_t *piece, size_t bytes, sink_t *sink)
{
    if (qr_pretokenizer_whole_pieces(t->pretokenizer)) {
        uint32_t id = find_token(t, piece, bytes);
        if (id != QR_TOKEN_NONE) return sink_put(sink, id) ? 0 : -QR_E_LIMIT;
    }
    return bytes <= SCAN_BYTES_MAX ? encode_short(t, piece, bytes, sink) : encode_long(t, piece, bytes, sink);
}

static int encode_piece(qr_tokenizer_t *t, const uint8_t *piece, size_t bytes, sink_t *sink)
{
    if (bytes > CACHE_KEY_BYTES) return encode_piece_fresh(t, piece, bytes, sink);
    uint64_t hash = hash_bytes(piece, bytes);
    cache_slot_t *slot = &t->cache[hash & (CACHE_SLOTS - 1)];
    if (slot->hash == hash && slot->bytes == bytes && slot->count != 255 && !memcmp(slot->key, piece, bytes)) {
        if (slot->count > sink->capacity - sink->count) return -QR_E_LIMIT;
        for (size_t i = 0; i < slot->count; i++) sink->tokens[sink->count++] = slot->ids[i];
        return 0;
    }
    size_t before = sink->count;
    int error = encode_piece_fresh(t, piece, bytes, sink);
    if (error || sink->count - before > CACHE_IDS) return error;
    slot->hash = hash;
    slot->bytes = (uint8_t)bytes;
    slot->count = (uint8_t)(sink->count - before);
    memcpy(slot->key, piece, bytes);
    memcpy(slot->ids, sink->tokens + before, (sink->count - before) * sizeof *slot->ids);
    return 0;
}

/* ---- texts ---------------------------------------------------------------------------------------------------------------- */

/* Text without control tokens: what lies between two of them is one text to the pre-tokenizer. */
static int encode_run(qr_tokenizer_t *t, const uint8_t *text, size_t bytes, sink_t *sink)
{
    if (!bytes) return 0;
    int error = qr_pretokenizer_start(t->pretokenizer, (const char *)text, bytes);
    for (size_t at = 0; !error && at < bytes;) {
        size_t end = qr_pretokenizer_next(t->pretokenizer, at);
        error = encode_piece(t, text + at, end - at, sink);
        at = end;
    }
    return error;
}

/* Longest special whose text begins at text[0]; control tokens at most `written` bytes long, user tokens at most `room`. */
static const special_t *find_special(const qr_tokenizer_t *t, const uint8_t *text, size_t written, size_t room)
{
    const special_t *best = NULL;
    size_t low = 0, high = t->special_count;
    for (uint32_t depth = 0; low < high && depth < room; depth++) {
        size_t a = low, b = high; /* first whose byte at depth is not below */
        while (a < b) {
            size_t middle = (a + b) / 2;
            if (t->specials[middle].bytes <= depth || t->specials[middle].text[depth] < text[depth])
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) { /* first whose byte at depth is above */
            size_t middle = (a + b) / 2;
            if (t->specials[middle].text[depth] <= text[depth])
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
        if (low < high && t->specials[low].bytes == depth + 1 && (t->specials[low].user || depth + 1 <= written)) best = &t->specials[low];
    }
    return best;
}

/* contents: ranges, in order, in which no control token may begin or lie; everything else may hold them. */
static int encode_text(qr_tokenizer_t *t, const uint8_t *text, size_t bytes, const qr_template_range_t *contents, size_t content_count,
                       sink_t *sink)
{
    size_t run = 0, range = 0;
    for (size_t at = 0; at < bytes;) {
        while (range < content_count && at >= contents[range].first + contents[range].bytes) range++;
        bool content = range < content_count && at >= contents[range].first;
        if (content && !t->any_user && !QR_MUTANT(452)) { /* nothing can begin here */
            at = contents[range].first + contents[range].bytes;
            continue;
        }
        if (!t->special_first[text[at]]) {
            at++;
            continue;
        }
        size_t written = content && !QR_MUTANT(452) ? 0 : (range < content_count ? contents[range].first : bytes) - at;
        const special_t *special = find_special(t, text + at, written, bytes - at);
        if (!special) {
            at++;
            continue;
        }
        int error = encode_run(t, text + run, at - run, sink);
        if (error) return error;
        if (!sink_put(sink, special->id)) return -QR_E_LIMIT;
        at += special->bytes;
        run = at;
    }
    return encode_run(t, text + run, bytes - run, sink);
}

int qr_tokenizer_encode(qr_tokenizer_t *tokenizer, const char *text, size_t bytes, bool specials, uint32_t *tokens, size_t capacity,
                        size_t *count)
{
    if (!qr_utf8_valid(text, bytes)) return -QR_E_FORMAT;
    sink_t sink = {tokens, *count, capacity};
    qr_template_range_t all = {0, bytes};
    int error = encode_text(tokenizer, (const uint8_t *)text, bytes, &all, specials ? 0 : 1, &sink);
    if (!error) *count = sink.count;
    return error;
}

static int check_chat(const qr_tokenizer_t *t, const uint32_t *lengths, size_t messages, const char *text, char *message,
                      size_t message_bytes)
{
    if (!t->chat_template) {
        snprintf(message, message_bytes, "%s", t->chat_error);
        return -QR_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < messages; i++) { /* each alone: a character may not be cut between two messages */
        if (!qr_utf8_valid(text, lengths[i])) {
            snprintf(message, message_bytes, "messages[%zu].content: not valid UTF-8", i);
            return -QR_E_FORMAT;
        }
        text += lengths[i];
    }
    return 0;
}

int qr_tokenizer_chat(qr_tokenizer_t *tokenizer, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text,
                      uint32_t *tokens, size_t capacity, size_t *count, char *message, size_t message_bytes)
{
    int error = check_chat(tokenizer, lengths, messages, text, message, message_bytes);
    if (error) return error;
    size_t bytes = qr_template_bytes(tokenizer->chat_template, roles, lengths, messages);
    char *rendered = malloc(bytes + 1);
    qr_template_range_t *contents = calloc(messages + 1, sizeof *contents);
    sink_t sink = {tokens, *count, capacity};
    if (rendered && contents) {
        qr_template_render(tokenizer->chat_template, roles, lengths, messages, text, rendered, contents);
        error = encode_text(tokenizer, (const uint8_t *)rendered, bytes, contents, messages, &sink);
        uint32_t bos;
        if (!error && qr_tokenizer_bos(tokenizer, &bos) && (sink.count == *count || tokens[*count] != bos || QR_MUTANT(453))) {
            if (sink.count == capacity)
                error = -QR_E_LIMIT;
            else
                memmove(tokens + *count + 1, tokens + *count, (sink.count++ - *count) * sizeof *tokens);
            if (!error) tokens[*count] = bos;
        }
    } else {
        error = -QR_E_MEMORY;
    }
    free(rendered);
    free(contents);
    if (error)
        snprintf(message, message_bytes, error == -QR_E_LIMIT ? "the prompt has too many tokens" : "not enough memory");
    else
        *count = sink.count;
    return error;
}

/* ---- renders that are kept and continued ---------------------------------------------------------------------------------- */

int qr_tokenizer_render(qr_tokenizer_t *tokenizer, const uint32_t *roles, const uint32_t *lengths, size_t messages, const char *text,
                        uint8_t **ret_render, size_t *ret_bytes, char *message, size_t message_bytes)
{
    int error = check_chat(tokenizer, lengths, messages, text, message, message_bytes);
    if (error) return error;
    size_t bytes = qr_template_bytes(tokenizer->chat_template, roles, lengths, messages), from = 0, to = 0;
    char *plain = malloc(bytes + 1);
    uint8_t *render = malloc(bytes + 2 * messages + 1);
    qr_template_range_t *contents = calloc(messages + 1, sizeof *contents);
    if (plain && render && contents) {
        qr_template_render(tokenizer->chat_template, roles, lengths, messages, text, plain, contents);
        for (size_t i = 0; i < messages; i++) {
            size_t before = contents[i].first - from;
            qr_copy(render + to, plain + from, before);
            to += before;
            render[to++] = QR_RENDER_CONTENT;
            qr_copy(render + to, plain + contents[i].first, contents[i].bytes);
            to += contents[i].bytes;
            render[to++] = QR_RENDER_CONTENT_END;
            from = contents[i].first + contents[i].bytes;
        }
        qr_copy(render + to, plain + from, bytes - from);
        *ret_bytes = to + bytes - from;
        *ret_render = render;
        render = NULL;
    } else {
        error = -QR_E_MEMORY;
        snprintf(message, message_bytes, "not enough memory");
    }
    free(plain);
    free(render);
    free(contents);
    return error;
}

/* Copies what follows skip without its marks; contents: the ranges of it that messages said. false: the marks do not pair. */
static bool unmark(const uint8_t *render, size_t bytes, size_t skip, uint8_t *plain, size_t *ret_bytes, qr_template_range_t *contents,
                   size_t *ret_count)
{
    bool inside = false;
    size_t to = 0, count = 0;
    for (size_t at = 0; at < bytes; at++) {
        bool begin = render[at] == QR_RENDER_CONTENT, end = render[at] == QR_RENDER_CONTENT_END;
        if ((begin && inside) || (end && !inside)) return false;
        if (begin || end) inside = begin;
        if (begin && at >= skip) contents[count].first = to;
        if (at == skip && inside && !begin) contents[count].first = to; /* skip cuts a content */
        if (end && at >= skip) {
            contents[count].bytes = to - contents[count].first;
            count++;
        }
        if (!begin && !end && at >= skip) plain[to++] = render[at];
    }
    *ret_bytes = to;
    *ret_count = count;
    return !inside;
}

int qr_tokenizer_encode_render(qr_tokenizer_t *tokenizer, const uint8_t *render, size_t bytes, size_t skip, uint32_t *tokens,
                               size_t capacity, size_t *count)
{
    size_t marks = 0, plain_bytes, content_count;
    for (size_t i = 0; i < bytes; i++) marks += render[i] == QR_RENDER_CONTENT;
    uint8_t *plain = malloc(bytes + 1);
    qr_template_range_t *contents = calloc(marks + 2, sizeof *contents);
    int error = plain && contents ? 0 : -QR_E_MEMORY;
    if (!error &&
        (skip > bytes || !unmark(render, bytes, skip, plain, &plain_bytes, contents, &content_count) || !qr_utf8_valid(plain, plain_bytes)))
        error = -QR_E_FORMAT;
    if (!error) {
        sink_t sink = {tokens, *count, capacity};
        error = encode_text(tokenizer, plain, plain_bytes, contents, content_count, &sink);
        if (!error) *count = sink.count;
    }
    free(plain);
    free(contents);
    return error;
}
