// attention/prefill/hash_sparse.c - the mask of Hash-Sparse attention: key blocks whose keys share hash buckets with the
// queries.
//
// M. Pagliardini, D. Paliotta, M. Jaggi, F. Fleuret: Faster Causal Attention Over Large Sequences Through Sparse Flash
// Attention, arXiv:2306.01160, section 3 (hash-based attention). A query attends to the keys of its bucket. The bucket of x is
// the index of the largest of R x and -R x, for buckets / 2 random directions R: the hash of Reformer (N. Kitaev, L. Kaiser, A.
// Levskaya, arXiv:2001.04451). SampleAttention's comparison (arXiv:2406.15486) states no number of buckets; 16 is our choice.
//
// Difference: the paper attends to single keys, a share of 1 / buckets of all pairs if the buckets are equal. Almost every pair
// of blocks of 128 has a query and a key of one bucket, so the mask takes the share 1 / buckets of the key blocks before a
// query block, those with the most pairs of equal buckets, and attends to all of their keys. Each query head hashes the keys
// with directions of its own.
#include "attention/prefill/mask_random.h"
#include "attention/stages/stages.h"

enum { MOST_BUCKETS = 2 * SL_MASK_DIRECTIONS };

static const sl_attn_param params[] = {
    {"buckets", SL_PARAM_CHOICE, 3, 0, 6, "hash buckets; the mask visits 1 / buckets of the key blocks", "2,4,8,16,32,64,128"},
    {0},
};

// The directions are followed by their opposites.
static uint32_t bucket_of(const double *dot, int n) {
    int best = 0;
    double most = dot[0];
    for (int c = 1; c < 2 * n; c++) {
        double x = c < n ? dot[c] : -dot[c - n];
        if (x > most) best = c, most = x;
    }
    return (uint32_t)best;
}

// The key blocks before query block i that have the most pairs with it: a query and a key of one bucket each.
static void mask_block(const sl_mask_args *a, int head, int i, int n_buckets, sl_row_sums *x) {
    int base = a->kv.n_kv - a->n_tokens, n = (i + n_buckets - 1) / n_buckets;
    uint32_t n_queries[MOST_BUCKETS] = {0};
    for (int t = 0; t < SL_MASK_BLOCK; t++) {
        int token = i * SL_MASK_BLOCK + t - base;
        if (token >= 0 && token < a->n_tokens) n_queries[x->offset[token]]++;
    }
    for (int j = 0; j < i; j++) {
        x->sum[j] = 0;
        for (int t = 0; t < SL_MASK_BLOCK; t++) x->sum[j] += n_queries[x->column[j * SL_MASK_BLOCK + t]];
    }
    sl_mask_add_most(a->mask, head, i, 0, i, n, x->sum, x->rank);
}

static void mask_head(const sl_mask_args *a, int head, sl_row_sums *x) {
    int n_buckets = 2 << (int)sl_attn_get(a->spec, "buckets");
    if (!sl_mask_hash_rows(a, head, n_buckets / 2, bucket_of, x)) return;
    for (int i = a->mask->first; i < a->mask->first + a->mask->n; i++) mask_block(a, head, i, n_buckets, x);
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->geom->n_heads, mask_head);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_hash_sparse = {
    .name = "hash-sparse",
    .summary = "the key blocks whose keys share most hash buckets with the queries of a block",
    .source = "Hash-Sparse attention (Pagliardini et al., arXiv:2306.01160)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
