// engine/schedule/prefix_tree.c - see prefix_tree.h.
#include "engine/schedule/prefix_tree.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

typedef struct node {
    struct node *parent, *child, *next; // the first child; the next child of the parent
    char *key;                          // the key of the prompts, in nodes without a parent; NULL in others
    uint64_t hash;                      // the hash of ids
    uint64_t used;                      // sl_prefix_tree.clock of the last use
    int is_held;                        // sequences hold this page or one after it; valid in sl_prefix_n_evictable
    int32_t page;
    int32_t ids[SL_PAGE];
} node;

struct sl_prefix_tree {
    sl_kv_pool *pool;
    node *first; // pages that begin prompts
    uint64_t clock;
    int n_pages;
};

int sl_prefix_tree_new(sl_kv_pool *pool, sl_prefix_tree **out, sl_error *err) {
    sl_prefix_tree *t = calloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_MEMORY, "prefix cache: out of memory");
    t->pool = pool;
    *out = t;
    return 0;
}

// ---- walks ----

static uint64_t hash_of(const int32_t *ids) {
    return sl_fnv1a(SL_FNV1A_START, ids, SL_PAGE * sizeof *ids);
}

// The node of a list of children that has these tokens and, at the beginning of a prompt, this key.
static node *find(node *first, const char *key, uint64_t hash, const int32_t *ids) {
    node *n = first;
    while (n && (n->hash != hash || memcmp(n->ids, ids, sizeof n->ids) || (n->key && strcmp(n->key, key)))) n = n->next;
    return n;
}

// An order that visits children before their parents: its first node, and the node after n.
static node *first_leaf(node *n) {
    while (n && n->child) n = n->child;
    return n;
}
static node *next_node(const node *n) {
    return n->next ? first_leaf(n->next) : n->parent;
}

int sl_prefix_find(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages, int32_t *pages) {
    int n = 0;
    t->clock++;
    for (node *at = t->first; n < n_pages; at = at->child, ids += SL_PAGE) {
        at = find(at, key, hash_of(ids), ids);
        if (!at) break;
        at->used = t->clock;
        pages[n++] = at->page;
    }
    return n;
}

// ---- adding and evicting ----

// Adds a child of parent, or a page that begins a prompt.
static node *add_node(sl_prefix_tree *t, node *parent, const char *key, uint64_t hash, const int32_t *ids, int32_t page) {
    node **first = parent ? &parent->child : &t->first, *n = malloc(sizeof *n);
    if (!n) return NULL;
    *n = (node){.parent = parent, .next = *first, .key = parent ? NULL : strdup(key), .hash = hash, .page = page};
    if (!parent && !n->key) {
        free(n);
        return NULL;
    }
    memcpy(n->ids, ids, sizeof n->ids);
    sl_kv_page_use(t->pool, page);
    t->n_pages++;
    return *first = n;
}

int sl_prefix_add(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages, const int32_t *pages, sl_error *err) {
    node *parent = NULL;
    t->clock++;
    for (int i = 0; i < n_pages; i++, ids += SL_PAGE) {
        uint64_t hash = hash_of(ids);
        node *at = find(parent ? parent->child : t->first, key, hash, ids);
        if (!at && !(at = add_node(t, parent, key, hash, ids, pages[i])))
            return sl_fail(err, SL_ERR_MEMORY, "prefix cache of %d pages: out of memory", t->n_pages);
        at->used = t->clock;
        parent = at;
    }
    return 0;
}

int sl_prefix_n_pages(const sl_prefix_tree *t) {
    return t->n_pages;
}

int sl_prefix_n_evictable(const sl_prefix_tree *t) {
    int n = 0;
    for (node *at = first_leaf(t->first); at; at = next_node(at)) {
        int is_held = at->is_held || t->pool->refs[at->page] > 1;
        at->is_held = 0; // for the next count
        n += !is_held;
        if (is_held && at->parent) at->parent->is_held = 1;
    }
    return n;
}

static void remove_leaf(sl_prefix_tree *t, node *n) {
    node **at = n->parent ? &n->parent->child : &t->first;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
    sl_kv_page_drop(t->pool, n->page);
    free(n->key);
    free(n);
    t->n_pages--;
}

// A leaf that no sequence holds.
static int is_evictable(const sl_prefix_tree *t, const node *n) {
    return !n->child && t->pool->refs[n->page] == 1;
}

int sl_prefix_evict(sl_prefix_tree *t, int n) {
    int freed = 0;
    while (freed < n) {
        node *oldest = NULL;
        for (node *at = first_leaf(t->first); at; at = next_node(at))
            if (is_evictable(t, at) && (!oldest || at->used < oldest->used)) oldest = at;
        if (!oldest) break;
        // One use sets the clock of one path, so the pages before this one follow at once if their last use is the same.
        uint64_t used = oldest->used;
        for (node *parent; oldest && oldest->used == used && freed < n && is_evictable(t, oldest); oldest = parent, freed++) {
            parent = oldest->parent;
            remove_leaf(t, oldest);
        }
    }
    return freed;
}

int sl_prefix_remove(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages) {
    node *last = NULL;
    int removed = 0;
    for (int i = 0; i < n_pages; i++, ids += SL_PAGE) {
        node *at = find(last ? last->child : t->first, key, hash_of(ids), ids);
        if (!at) break;
        last = at;
    }
    for (node *parent; last && is_evictable(t, last); last = parent, removed++) {
        parent = last->parent;
        remove_leaf(t, last);
    }
    return removed;
}

void sl_prefix_tree_free(sl_prefix_tree *t) {
    if (!t) return;
    while (t->first) remove_leaf(t, first_leaf(t->first));
    free(t);
}
