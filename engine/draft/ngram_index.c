// engine/draft/ngram_index.c - the index of n-grams.
#include "engine/draft/ngram_index.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

int sl_ngram_init(sl_ngram_index *x, int min, int max, int cap, sl_error *err) {
    *x = (sl_ngram_index){.min = min, .max = max, .cap = cap, .n_buckets = 1};
    while (x->n_buckets < cap) x->n_buckets *= 2;
    x->ids = malloc((size_t)cap * sizeof *x->ids);
    x->prev = malloc((size_t)cap * sizeof *x->prev);
    x->last = malloc((size_t)x->n_buckets * sizeof *x->last);
    if (!x->ids || !x->prev || !x->last) {
        sl_ngram_free(x);
        return sl_fail(err, SL_ERR_MEMORY, "{draft}: an index of %d tokens: out of memory", cap);
    }
    memset(x->last, -1, (size_t)x->n_buckets * sizeof *x->last);
    return 0;
}

void sl_ngram_free(sl_ngram_index *x) {
    free(x->ids);
    free(x->prev);
    free(x->last);
    *x = (sl_ngram_index){0};
}

static int32_t *bucket(const sl_ngram_index *x, int end) { // of the n-gram whose last id is at `end`
    uint64_t hash = sl_fnv1a(SL_FNV1A_START, x->ids + end + 1 - x->min, (size_t)x->min * sizeof *x->ids);
    return &x->last[(hash ^ hash >> 32) & (uint64_t)(x->n_buckets - 1)];
}

void sl_ngram_push(sl_ngram_index *x, int32_t id) {
    SL_CHECK(x->n < x->cap);
    int at = x->n++;
    x->ids[at] = id;
    if (at + 1 < x->min) return;
    int32_t *last = bucket(x, at);
    x->prev[at] = *last;
    *last = at;
}

static void pop(sl_ngram_index *x) { // the newest place of a hash is the first of its chain
    int at = x->n - 1;
    if (at + 1 >= x->min) *bucket(x, at) = x->prev[at];
    x->n--;
}

void sl_ngram_sync(sl_ngram_index *x, const int32_t *ids, int n, int known) {
    int common = known;
    while (common < n && common < x->n && x->ids[common] == ids[common]) common++;
    while (x->n > common) pop(x);
    for (int i = common; i < n; i++) sl_ngram_push(x, ids[i]);
}

static int match(const sl_ngram_index *x, int a, int b) { // equal ids that end at places a < b
    int n = 0;
    while (n < x->max && n <= a && x->ids[a - n] == x->ids[b - n]) n++;
    return n;
}

int sl_ngram_find(const sl_ngram_index *x, int *next) {
    int end = x->n - 1, most = 0;
    if (x->n < x->min) return 0;
    int at = x->prev[end];
    for (int seen = 0; at >= 0 && seen < SL_NGRAM_PLACES && most < x->max; at = x->prev[at], seen++) {
        int n = match(x, at, end);
        if (n > most) most = n, *next = at + 1;
    }
    return most >= x->min ? most : 0;
}

void sl_ngram_copy(const sl_ngram_index *x, int next, int n, int32_t *out) {
    for (int i = 0; i < n; i++) out[i] = next + i < x->n ? x->ids[next + i] : out[next + i - x->n];
}
