// tests/support/mask_patterns.c - see mask_patterns.h. Pairs of a query and a key are counted one by one, and rows are sorted
// with qsort. Random numbers come from base/philox.h by the words that attention/prefill/mask_random.c names.
#include "tests/support/mask_patterns.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PHILOX_BLOCKS, PHILOX_DIRECTIONS };

static sl_philox4 words(const segment *s, int use, int head, int place, int i) {
    uint32_t of_head = (uint32_t)(s->layer * 65536 + s->c.geom.first_head + head);
    return sl_philox((uint32_t)use, 0, (uint32_t)place, of_head, (uint32_t)i, SL_STREAM_MASK);
}

static int n_kv_of(const segment *s) {
    return s->base + s->n_tokens;
}

// n of the blocks in `from`, which are n_from: one more block can be drawn in each turn, and a block drawn again gives way to
// it.
static void draw(const segment *s, int head, int place, const int *from, int n_from, int n, char *keep) {
    for (int i = 0; i < n && i < n_from; i++) {
        int left = n_from - (n < n_from ? n : n_from) + i;
        int chosen = (int)floor(words(s, PHILOX_BLOCKS, head, place, i).v[0] * 0x1p-32 * (left + 1));
        keep[keep[from[chosen]] ? from[left] : from[chosen]] = 1;
    }
}

void naive_bigbird(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep) {
    int n = n_kv_of(s), others[256], n_others = 0;
    double window = ceil(sl_attn_get(spec, "local") * n), global = ceil(sl_attn_get(spec, "global") * n);
    for (int query = i * 128; query < (i + 1) * 128; query++)
        for (int key = 0; key <= query; key++)
            if (key < global || query - key < window) keep[key / 128] = 1;
    keep[0] = keep[i] = 1;
    for (int j = 0; j <= i; j++)
        if (!keep[j]) others[n_others++] = j;
    draw(s, head, i, others, n_others, (int)sl_attn_get(spec, "random"), keep);
}

// ---- hashes ----

// [n][head_dim] normally distributed multiples of 2^-8
static double *directions(const segment *s, int head, int n) {
    int dim = s->c.geom.head_dim;
    double *out = malloc((size_t)n * dim * sizeof *out);
    for (int i = 0; i < n * dim; i++) {
        sl_philox4 r = words(s, PHILOX_DIRECTIONS, head, i / dim, i % dim);
        double u = (r.v[0] + 0.5) / 4294967296.0, angle = 2 * acos(-1) * (r.v[1] + 0.5) / 4294967296.0;
        out[i] = rint(256 * sqrt(-2 * log(u)) * cos(angle)) / 256;
    }
    return out;
}

static float channel(const segment *s, int head, int row, int is_key, int d) {
    const sl_attn_geom *g = &s->c.geom;
    if (is_key) return sl_bf16_to_f32(ref_k_row(&s->c, 0, head / (g->n_heads / g->n_kv_heads), row)[d]);
    return s->q[((size_t)(row - s->base) * g->n_heads + head) * g->head_dim + d];
}

static int largest_of_both_signs(const double *dot, int n) {
    int best = 0;
    for (int c = 0; c < n; c++)
        if (dot[c] > dot[best]) best = c;
    double most = dot[best];
    for (int c = 0; c < n; c++)
        if (-dot[c] > most) most = -dot[c], best = n + c;
    return best;
}

// The order of reflected signs: the signs of one product more are the signs so far, and then these in reverse with the new one.
static int place_of_signs(const double *dot, int n) {
    int order[128] = {0}, size = 1, signs = 0;
    for (int c = 0; c < n; c++) signs |= (dot[n - 1 - c] > 0) << c;
    for (int c = 0; c < n; c++, size *= 2)
        for (int k = 0; k < size; k++) order[2 * size - 1 - k] = order[k] | 1 << c;
    for (int k = 0; k < size; k++)
        if (order[k] == signs) return k;
    return -1;
}

// The hashes of rows [first, first + n), by position.
static int *hashes(const segment *s, int head, int first, int n, int is_key, int n_products, int (*hash)(const double *, int)) {
    int *out = malloc((n + 1) * sizeof *out), dim = s->c.geom.head_dim;
    double dot[64], *to = directions(s, head, n_products);
    for (int r = 0; r < n; r++) {
        memset(dot, 0, sizeof dot);
        for (int d = dim - 1; d >= 0; d--)
            for (int c = 0; c < n_products; c++) dot[c] += to[c * dim + d] * channel(s, head, first + r, is_key, d);
        out[r] = hash(dot, n_products);
    }
    free(to);
    return out;
}

// Keeps the n key blocks of [from, end) with the most pairs of equal buckets, and none without a pair. keys: of position `from`
// on; queries: those of query block i, n_queries.
static void keep_most(const int *queries, int n_queries, const int *keys, int from, int end, int n, char *keep) {
    int pairs[256] = {0};
    for (int q = 0; q < n_queries; q++)
        for (int k = 0; k < (end - from) * 128; k++) pairs[from + k / 128] += queries[q] == keys[k];
    for (; n > 0; n--) {
        int best = from;
        for (int j = from; j < end; j++)
            if (pairs[j] > pairs[best]) best = j;
        if (from == end || !pairs[best]) return;
        keep[best] = 1, pairs[best] = 0;
    }
}

static int first_query(const segment *s, int i) {
    return i * 128 < s->base ? s->base : i * 128;
}
static int end_of_queries(const segment *s, int i) { // of the query blocks before block i
    return i * 128 < n_kv_of(s) ? i * 128 : n_kv_of(s);
}

void naive_hash_sparse(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep) {
    int buckets = 2, first = first_query(s, i), n = end_of_queries(s, i + 1) - first;
    for (int c = 0; c < (int)sl_attn_get(spec, "buckets"); c++) buckets *= 2;
    int *queries = hashes(s, head, first, n, 0, buckets / 2, largest_of_both_signs);
    int *keys = hashes(s, head, 0, i * 128, 1, buckets / 2, largest_of_both_signs);
    keep_most(queries, n, keys, 0, i, (int)ceil((double)i / buckets), keep);
    free(queries), free(keys);
}

// ---- hyperattention ----

typedef struct hashed {
    int hash, row;
} hashed;

static int compare(const void *a, const void *b) {
    const hashed *x = a, *y = b;
    return x->hash != y->hash ? x->hash - y->hash : x->row - y->row;
}

// hash[r] becomes the place of row r in the order of hashes.
static void sort_places(int *hash, int n) {
    hashed *rows = malloc((n + 1) * sizeof *rows);
    for (int r = 0; r < n; r++) rows[r] = (hashed){hash[r], r};
    qsort(rows, n, sizeof *rows, compare);
    for (int k = 0; k < n; k++) hash[rows[k].row] = k;
    free(rows);
}

// Query block i of the query blocks [middle, end), with the key blocks [from, middle).
static void naive_rest(const segment *s, const sl_attn_spec *spec, int head, int i, int from, int middle, int end, char *keep) {
    int size = (int)sl_attn_get(spec, "bucket"), n_keys = (middle - from) * 128;
    int first = first_query(s, middle), n = end_of_queries(s, end) - first, own = first_query(s, i) - first;
    int *queries = hashes(s, head, first, n, 0, 7, place_of_signs);
    int *keys = hashes(s, head, from * 128, n_keys, 1, 7, place_of_signs), blocks[256];
    char drawn[256] = {0};
    sort_places(queries, n), sort_places(keys, n_keys);
    for (int k = 0; k < n_keys; k++) keys[k] /= size;
    for (int k = 0; k < n; k++) queries[k] = (int)floor((double)queries[k] * n_keys / n) / size;
    keep_most(queries + own, end_of_queries(s, i + 1) - first - own, keys, from, middle, (size + 127) / 128, keep);
    for (int j = from; j < middle; j++) blocks[j - from] = j;
    draw(s, head, middle, blocks, middle - from, ((int)sl_attn_get(spec, "columns") + 127) / 128, drawn);
    for (int j = from; j < middle; j++) keep[j] |= drawn[j];
    free(queries), free(keys);
}

void naive_hyperattention(const segment *s, const sl_attn_spec *spec, int head, int i, char *keep) {
    int from = 0, end = (n_kv_of(s) + 127) / 128, dense = (int)sl_attn_get(spec, "dense");
    while ((end - from) * 128 > dense) {
        int middle = (from + end + 1) / 2;
        if (i < middle) {
            end = middle;
            continue;
        }
        naive_rest(s, spec, head, i, from, middle, end, keep);
        from = middle;
    }
    for (int j = from; j <= i; j++) keep[j] = 1;
}
