// attention/prefill/hyperattention.c - the mask of HyperAttention: key blocks that hashing and sorting bring together with a
// query block, and sampled key blocks.
//
// I. Han, R. Jayaram, A. Karbasi, V. Mirrokni, D. P. Woodruff, A. Zandieh: HyperAttention: Long-context Attention in
// Near-Linear Time, arXiv:2310.05869. Algorithm 4 splits a causal matrix at half of the rows: both halves are causal, and the
// rest has the queries of the second half and the keys of the first half. Algorithm 1 (sortLSH) treats the rest: queries and
// keys are sorted by a hash whose neighbours differ in one sign of 7 random products (Definition 1), and a query attends to the
// keys of its bucket of b sorted rows. Algorithm 2 adds m sampled columns for all queries. b = m = 256 as in SampleAttention's
// comparison (arXiv:2406.15486, section 5.1). The 7 products, and dense attention to at most 4,096 keys, are those of the
// authors' program.
//
// Differences: a query block attends to whole key blocks, the b / 128 with the most pairs of equal buckets. The m sampled keys
// are m / 128 whole key blocks, drawn uniformly. A sampled key has the weight of every other key: in the paper it stands for
// n / m keys, which a mask cannot say. A segment that begins inside a half sorts its own queries only. The authors' program is
// also exact in a rest with fewer than 4,096 queries, so it is exact in a part of fewer than 8,192 keys. Here every rest is
// sparse.
#include "attention/prefill/mask_random.h"
#include "attention/stages/stages.h"

#include <string.h>

enum { PRODUCTS = 7, N_HASHES = 1 << PRODUCTS };

static const sl_attn_param params[] = {
    {"bucket", SL_PARAM_INT, 256, SL_MASK_BLOCK, 1 << 20, "sorted queries and keys of one bucket", NULL},
    {"columns", SL_PARAM_INT, 256, 0, 1 << 20, "sampled keys of each half, in whole blocks", NULL},
    {"dense", SL_PARAM_INT, 4096, SL_MASK_BLOCK, 1 << 20, "keys up to which a part is dense and is not split again", NULL},
    {0},
};

typedef struct head_call {
    const sl_mask_args *a;
    int head, bucket, columns, dense; // dense: in blocks
    sl_row_sums *x;                   // column, offset: hashes of keys and of queries; sum: the bucket of a key
} head_call;

// The place of the signs in an order where neighbours differ in one sign: the inverse of a Gray code.
static uint32_t place_of_signs(const double *dot, int n) {
    uint32_t place = 0;
    for (int c = 0; c < n; c++) place = place << 1 | (dot[c] > 0);
    for (int shift = 1; shift < n; shift *= 2) place ^= place >> shift;
    return place;
}

// next[h]: how many of the n rows have a smaller hash. Row by row, next[hash]++ is then the row's place in a stable sort.
static void begin_sort(const uint32_t *hash, int n, int next[N_HASHES]) {
    int n_rows[N_HASHES] = {0}, sum = 0;
    for (int i = 0; i < n; i++) n_rows[hash[i]]++;
    for (int h = 0; h < N_HASHES; h++) next[h] = sum, sum += n_rows[h];
}

static void bucket_keys(const head_call *c, int from, int middle) {
    int first = from * SL_MASK_BLOCK, n = middle * SL_MASK_BLOCK - first, next[N_HASHES];
    begin_sort(c->x->column + first, n, next);
    for (int j = first; j < first + n; j++) c->x->sum[j] = (uint32_t)(next[c->x->column[j]]++ / c->bucket);
}

// The key blocks [from, middle) that have the most pairs with query block i. n_queries: its queries in each bucket.
static void add_pairs(const head_call *c, int i, int from, int middle, const uint32_t *n_queries) {
    sl_row_sums *x = c->x;
    for (int j = from; j < middle; j++) {
        x->slash[j - from] = 0;
        for (int t = 0; t < SL_MASK_BLOCK; t++) x->slash[j - from] += n_queries[x->sum[j * SL_MASK_BLOCK + t]];
    }
    int n = (c->bucket + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK;
    sl_mask_add_most(c->a->mask, c->head, i, from, middle - from, n, x->slash, x->rank);
}

// Adds the sparse part: key blocks of [from, middle) for the query blocks [middle, end).
static void mask_rest(const head_call *c, int from, int middle, int end) {
    const sl_mask_args *a = c->a;
    const sl_prefill_mask *m = a->mask;
    sl_row_sums *x = c->x;
    int base = a->kv.n_kv - a->n_tokens, first = middle * SL_MASK_BLOCK - base, last = end * SL_MASK_BLOCK - base;
    if (first < 0) first = 0;
    if (last > a->n_tokens) last = a->n_tokens; // queries [first, last)
    if (last <= first) return;
    int n = last - first, n_keys = (middle - from) * SL_MASK_BLOCK, next[N_HASHES];
    uint32_t *n_queries = x->block; // of a bucket
    bucket_keys(c, from, middle);
    memset(x->set, 0, m->n_words * sizeof *x->set);
    memset(x->other, 0, m->n_words * sizeof *x->other);
    sl_mask_draw(a, c->head, middle, x->set, from, middle, (c->columns + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK);
    begin_sort(x->offset + first, n, next);
    for (int t = first, i = (base + first) / SL_MASK_BLOCK; t < last; i++) {
        memset(n_queries, 0, (size_t)(n_keys / c->bucket + 1) * sizeof *n_queries);
        for (; t < last && base + t < (i + 1) * SL_MASK_BLOCK; t++)
            n_queries[(uint64_t)next[x->offset[t]]++ * n_keys / n / c->bucket]++;
        add_pairs(c, i, from, middle, n_queries);
        sl_mask_add_lines(m, c->head, i, i + 1, x->set, x->other);
    }
}

// Adds the key blocks of [from, end) for the query blocks [from, end).
static void mask_part(const head_call *c, int from, int end) {
    const sl_prefill_mask *m = c->a->mask;
    if (end - from <= c->dense) {
        for (int i = from > m->first ? from : m->first; i < end; i++) sl_mask_add(m, c->head, i, from, i);
        return;
    }
    int middle = from + (end - from + 1) / 2;
    mask_part(c, from, middle);
    mask_part(c, middle, end);
    mask_rest(c, from, middle, end);
}

static void mask_head(const sl_mask_args *a, int head, sl_row_sums *x) {
    head_call c = {a, head, (int)sl_attn_get(a->spec, "bucket"), (int)sl_attn_get(a->spec, "columns"), 0, x};
    c.dense = (int)sl_attn_get(a->spec, "dense") / SL_MASK_BLOCK;
    if (!sl_mask_hash_rows(a, head, PRODUCTS, place_of_signs, x)) return;
    mask_part(&c, 0, a->mask->first + a->mask->n);
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->geom->n_heads, mask_head);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_hyperattention = {
    .name = "hyperattention",
    .summary = "key blocks of the queries' buckets after sorting by a hash, and sampled key blocks",
    .source = "HyperAttention (Han et al., arXiv:2310.05869)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
