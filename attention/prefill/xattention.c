// attention/prefill/xattention.c - the mask of XAttention: key blocks whose antidiagonal sums reach a share of the query
// block's total.
//
// R. Xu, G. Xiao, H. Huang, J. Guo, S. Han: XAttention: Block Sparse Attention with Antidiagonal Scoring, arXiv:2503.16428. A
// row is `stride` queries. A column is `stride` keys (row_sums.h). The score of a row and a column is the mean over their
// antidiagonal. The score of a block pair is the sum of the softmax of these scores over the rows and columns of the pair. This
// sum is an estimate, not the mass of the block.
#include "attention/prefill/row_sums.h"
#include "attention/stages/stages.h"

static const sl_attn_param params[] = {
    {"stride", SL_PARAM_CHOICE, 0, 0, 1, "queries and keys that share one score", "8,16"},
    {"threshold", SL_PARAM_FLOAT, 0.9, 0, 1, "share of a query block's total that the chosen key blocks reach", NULL},
    {0},
};

static void mask_block(const sl_mask_args *a, int task, sl_row_sums *x) {
    const sl_prefill_mask *m = a->mask;
    int head = task % m->n_heads, i = m->first + task / m->n_heads, stride = sl_attn_get(a->spec, "stride") > 0 ? 16 : 8;
    if (!sl_sum_query_block(a, head, i, stride, x)) return;
    sl_rank_sums(x->sum, i + 1, x->rank);
    int k = sl_fewest_reaching(x->rank, i + 1, sl_share_of(sl_attn_get(a->spec, "threshold")));
    for (int c = 0; c < k; c++) sl_mask_set(sl_mask_row(m, head, i), (int)sl_rank_index(x->rank[c]));
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->mask->n * a->mask->n_heads, mask_block);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_xattention = {
    .name = "xattention",
    .summary = "the key blocks whose antidiagonal scores reach a share of the query block's total",
    .source = "XAttention (Xu et al., arXiv:2503.16428)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
