// grammar/token_trie.c - the tokens of a vocabulary as a tree of bytes.
#include "grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const char *bytes;
    uint32_t n;
    int32_t id;
} entry;

static int by_bytes(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order == 0) order = (x->n > y->n) - (x->n < y->n);
    return order ? order : x->id - y->id;
}

static int is_end(const sl_token_trie *trie, int32_t id) {
    for (int i = 0; i < trie->n_ends; i++)
        if (trie->ends[i] == id) return 1;
    return 0;
}

// *n_entries: tokens with bytes, sorted
static int read_tokens(const sl_tokenizer *tok, sl_token_trie *trie, entry *entries, int32_t *n_entries, sl_error *err) {
    int32_t n = 0;
    int rc = sl_text_append(&trie->bytes, "", 0, err);
    for (int32_t id = 0; !rc && id < trie->n_vocab; id++) {
        size_t before = trie->bytes.n;
        trie->from[id] = (uint32_t)before;
        if (id >= sl_tokenizer_n_vocab(tok) || sl_tokenizer_is_special(tok, id) || is_end(trie, id)) continue;
        rc = sl_token_bytes(tok, id, &trie->bytes, err);
        size_t size = trie->bytes.n - before;
        if (size > UINT16_MAX / 2) trie->bytes.n = before; // a grammar never needs such a token
        if (size > 0 && size <= UINT16_MAX / 2) entries[n++] = (entry){NULL, (uint32_t)size, id};
    }
    trie->from[trie->n_vocab] = (uint32_t)trie->bytes.n;
    for (int32_t i = 0; i < n; i++) entries[i].bytes = trie->bytes.data + trie->from[entries[i].id];
    qsort(entries, (size_t)n, sizeof *entries, by_bytes);
    *n_entries = n;
    return rc;
}

static uint32_t shared_bytes(const entry *a, const entry *b) {
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static int make_nodes(sl_token_trie *trie, const entry *entries, int32_t n, sl_error *err) {
    size_t n_nodes = 0;
    for (int32_t i = 0; i < n; i++) {
        n_nodes += entries[i].n - (i > 0 ? shared_bytes(&entries[i - 1], &entries[i]) : 0);
        if ((int)entries[i].n > trie->most_depth) trie->most_depth = (int)entries[i].n;
    }
    uint32_t *open = malloc(((size_t)trie->most_depth + 1) * sizeof *open); // the nodes on the way to the last token
    trie->nodes = malloc((n_nodes + 1) * sizeof *trie->nodes);
    trie->sorted = malloc(((size_t)n + 1) * sizeof *trie->sorted);
    if (!open || !trie->nodes || !trie->sorted) {
        free(open);
        return sl_fail(err, SL_ERR_MEMORY, "a tree of %zu bytes of tokens: out of memory", n_nodes);
    }
    uint32_t at = 0, depth = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t shared = i > 0 ? shared_bytes(&entries[i - 1], &entries[i]) : 0;
        while (depth > shared) trie->nodes[open[--depth]].skip = at;
        for (; depth < entries[i].n; depth++, at++) {
            // The nodes on the way to a token have no token, so their list ends where it begins.
            trie->nodes[at] = (sl_trie_node){0, (uint32_t)i, (uint16_t)depth, (uint8_t)entries[i].bytes[depth]};
            open[depth] = at;
        }
        trie->sorted[i] = entries[i].id;
    }
    while (depth > 0) trie->nodes[open[--depth]].skip = at;
    trie->nodes[at] = (sl_trie_node){at, (uint32_t)n, 0, 0};
    trie->n_nodes = at;
    free(open);
    return 0;
}

int sl_token_trie_new(const sl_tokenizer *tok, int n_vocab, const int32_t *ends, int n_ends, sl_token_trie **out,
                      sl_error *err) {
    *out = NULL;
    if (n_vocab < 1) return sl_fail(err, SL_ERR_ARG, "%d token ids: expected at least 1", n_vocab);
    for (int i = 0; i < n_ends; i++)
        if (ends[i] < 0 || ends[i] >= n_vocab)
            return sl_fail(err, SL_ERR_ARG, "end token %d: expected 0 to %d", ends[i], n_vocab - 1);
    sl_token_trie *trie = calloc(1, sizeof *trie);
    entry *entries = malloc((size_t)n_vocab * sizeof *entries);
    int32_t n = 0;
    int rc = 0;
    if (trie) {
        *trie = (sl_token_trie){.n_ends = n_ends, .n_vocab = n_vocab, .n_words = (n_vocab + 31) / 32};
        trie->ends = malloc(((size_t)n_ends + 1) * sizeof *ends);
        trie->from = malloc(((size_t)n_vocab + 1) * sizeof *trie->from);
    }
    if (!trie || !entries || !trie->ends || !trie->from)
        rc = sl_fail(err, SL_ERR_MEMORY, "a tree of %d tokens: out of memory", n_vocab);
    if (!rc && n_ends > 0) memcpy(trie->ends, ends, (size_t)n_ends * sizeof *ends);
    if (!rc) rc = read_tokens(tok, trie, entries, &n, err);
    if (!rc) rc = make_nodes(trie, entries, n, err);
    free(entries);
    if (rc) sl_token_trie_free(trie);
    if (!rc) *out = trie;
    return rc;
}

void sl_token_trie_free(sl_token_trie *trie) {
    if (!trie) return;
    free(trie->nodes), free(trie->sorted), free(trie->ends), free(trie->from);
    sl_text_free(&trie->bytes);
    free(trie);
}

int sl_token_trie_words(const sl_token_trie *trie) {
    return trie->n_words;
}
