// engine/draft/ngram_index.h - finds the longest end of a text that occurred before in the same text, for the draft source
// `ngram`.
//
// The index chains the places of equal n-grams of `min` ids, the newest place first. So it takes 8 bytes for each token, an
// append takes constant time, and a look-up takes no time where the last n-gram is new. A look-up compares the text backwards
// from each place of the chain, and ends at the first place where `max` ids agree, or after SL_NGRAM_PLACES places.
#ifndef SLEIGH_NGRAM_INDEX_H
#define SLEIGH_NGRAM_INDEX_H

#include "base/error.h"

#include <stdint.h>

enum { SL_NGRAM_PLACES = 4096 };

typedef struct sl_ngram_index {
    int min, max;  // ids that must agree, at least 1; ids that are compared
    int n, cap;    // tokens of the text that are in the index, and the most
    int n_buckets; // a power of two
    int32_t *ids;  // [cap] the text
    int32_t *last; // [n_buckets] newest place of an n-gram with this hash: the place of its last id; -1: none
    int32_t *prev; // [cap] the place before, with the same hash; -1: none
} sl_ngram_index;

int sl_ngram_init(sl_ngram_index *x, int min, int max, int cap,
                  sl_error *err); // for texts of at most cap tokens. SL_ERR_MEMORY
void sl_ngram_free(sl_ngram_index *x);
// Makes the index hold the text ids[0..n), n at most cap: keeps what the texts have in common. Both texts have at least
// `known` ids. Their first `known` ids are equal and are not compared; the others are.
void sl_ngram_sync(sl_ngram_index *x, const int32_t *ids, int n, int known);
void sl_ngram_push(sl_ngram_index *x, int32_t id);
// Finds the longest end of the text that the text also has earlier; of places with equal lengths the newest. Returns its
// length, at most `max`, or 0 when it is shorter than `min`. *next: the place behind the earlier occurrence.
int sl_ngram_find(const sl_ngram_index *x, int *next);
// Copies the n ids from place `next` on. Behind the end of the text, the copy goes on with what it has copied.
void sl_ngram_copy(const sl_ngram_index *x, int next, int n, int32_t *out);

#endif
