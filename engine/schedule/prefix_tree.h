// engine/schedule/prefix_tree.h - the prefix cache: full pages of prefilled rows, found by the tokens that they hold.
//
// A node of the tree is a page: its 256 tokens follow the tokens of its parents. Rows of a prefill depend only on the tokens
// before them and on the methods of the prefill. So prompts that begin with the same tokens share pages, whatever attention
// their decode steps have, and no bit changes. Rows of decode steps never enter the tree.
//
// The tree holds each of its pages (sl_kv_pool.refs). A page can be evicted when no sequence holds it or a page after it.
#ifndef SLEIGH_PREFIX_TREE_H
#define SLEIGH_PREFIX_TREE_H

#include "kv/kv.h"

typedef struct sl_prefix_tree sl_prefix_tree;

int sl_prefix_tree_new(sl_kv_pool *pool, sl_prefix_tree **out, sl_error *err);
void sl_prefix_tree_free(sl_prefix_tree *t); // drops all pages; NULL is allowed

// Prompts share pages only if their keys are equal. ids: [n_pages * 256].

// Writes the pages of the longest prefix of ids that the tree has, and returns their number, at most n_pages. The pages become
// those that were used last.
int sl_prefix_find(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages, int32_t *pages);
// Adds pages[0 .. n_pages), which hold the rows of ids. Where the tree has a page of the same tokens already, it keeps its own.
// SL_ERR_MEMORY: the tree has a prefix of the pages.
int sl_prefix_add(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages, const int32_t *pages, sl_error *err);
// Frees the pages of ids, from the last one on, up to a page that a sequence holds or that other pages follow. Returns the
// number of freed pages.
int sl_prefix_remove(sl_prefix_tree *t, const char *key, const int32_t *ids, int n_pages);
int sl_prefix_n_pages(const sl_prefix_tree *t);
int sl_prefix_n_evictable(const sl_prefix_tree *t); // pages that sl_prefix_evict could free
// Frees at least n pages, those that were used least recently first. Returns the number of freed pages.
int sl_prefix_evict(sl_prefix_tree *t, int n);

#endif
