// attention/prefill/oracle.c - the mask with the largest block masses: what the best mask of a size keeps. It computes every
// score, so it is for tests and comparisons.
//
// The diagonal and the sink count as blocks of the mask. So no mask with as many blocks in a query block keeps more of its
// mass.
#include "attention/prefill/row_sums.h"
#include "attention/stages/stages.h"

static const sl_attn_param params[] = {
    {"density", SL_PARAM_FLOAT, 0.1, 0, 1, "share of the causal blocks of a query block, rounded to whole blocks", NULL},
    {"mass", SL_PARAM_FLOAT, 0, 0, 1, "in place of density: the share of the mass that the fewest blocks reach; 0: density",
     NULL},
    {0},
};

static void mask_block(const sl_mask_args *a, int task, sl_row_sums *x) {
    const sl_prefill_mask *m = a->mask;
    int head = task % m->n_heads, i = m->first + task / m->n_heads;
    if (!sl_sum_query_block(a, head, i, 1, x)) return;
    uint64_t total = 0, kept = 0, share = sl_share_of(sl_attn_get(a->spec, "mass")), *row = sl_mask_row(m, head, i);
    int most = (int)((sl_share_of(sl_attn_get(a->spec, "density")) * (uint64_t)(i + 1) + (1u << 31)) >> 32), n = 0;
    for (int j = 0; j <= i; j++) {
        total += x->sum[j];
        if (sl_mask_has(row, j)) kept += x->sum[j], x->sum[j] = 0, n++;
    }
    sl_rank_sums(x->sum, i + 1, x->rank);
    for (int c = 0; c <= i && sl_rank_sum(x->rank[c]) && (share ? kept << 32 < share * total : n < most); c++, n++) {
        sl_mask_set(row, (int)sl_rank_index(x->rank[c]));
        kept += sl_rank_sum(x->rank[c]);
    }
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->mask->n * a->mask->n_heads, mask_block);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_oracle = {
    .name = "oracle",
    .summary = "the key blocks with the largest exact masses (it computes every score)",
    .source = "ours, to compare with",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
