// attention/prefill/sample.c - the mask of SampleAttention: columns and slashes that hold most of the mass of sampled queries.
//
// Q. Zhu, J. Duan, C. Chen, X. Li, S. Liu, G. Feng, X. Lv, C. Xiao, D. Lin, C. Yang: SampleAttention: Near-Lossless
// Acceleration of Long Context LLM Inference with Adaptive Structured Sparse Attention, Algorithm 1. A segment is split into
// chunk_n chunks of query blocks, equal to within one block. The last 128 queries of a chunk are sampled. The sink and the
// diagonal are our addition (prefill_mask.h), and so is the repair: the rows of a query block that was not sampled show whether
// the sampled rows speak for the chunk.
#include "attention/prefill/row_sums.h"
#include "attention/stages/stages.h"

#include <string.h>

static const sl_attn_param params[] = {
    {"alpha_c", SL_PARAM_FLOAT, 0.95, 0, 1, "share of the sampled mass that the chosen columns hold", NULL},
    {"alpha_s", SL_PARAM_FLOAT, 0.95, 0, 1, "share of the sampled mass that the chosen slashes hold", NULL},
    {"chunk_n", SL_PARAM_INT, 1, 1, 64, "chunks of a segment, each with samples of its own", NULL},
    {"repair", SL_PARAM_FLOAT, 0, 0, 1, "least share that a checked row keeps, else the chunk is dense; 0: no check", NULL},
    {0},
};

static uint64_t share_param(const sl_mask_args *a, const char *name) {
    return sl_share_of(sl_attn_get(a->spec, name));
}

// Column blocks whose sums reach alpha_c of the total.
static void choose_columns(const sl_mask_args *a, const sl_score_rows *rows, sl_row_sums *x) {
    sl_sum_blocks(rows, x);
    sl_rank_sums(x->sum, x->n_blocks, x->rank);
    int k = sl_fewest_reaching(x->rank, x->n_blocks, share_param(a, "alpha_c"));
    for (int i = 0; i < k; i++) sl_mask_set(x->set, (int)sl_rank_index(x->rank[i]));
}

// Slash block b has the offsets 128 b .. 128 b + 127. They cross two key blocks of a query block: b and b + 1 before the
// diagonal.
static void choose_slashes(const sl_mask_args *a, sl_row_sums *x) {
    sl_rank_sums(x->slash, x->n_blocks, x->rank);
    int k = sl_fewest_reaching(x->rank, x->n_blocks, share_param(a, "alpha_s"));
    for (int i = 0, b; i < k; i++) {
        sl_mask_set(x->other, b = (int)sl_rank_index(x->rank[i]));
        if (b + 1 < x->n_blocks) sl_mask_set(x->other, b + 1);
    }
}

// The least share of their mass that the rows of the middle query block keep.
static int32_t kept_in_middle(const sl_mask_args *a, int head, int from, int to, sl_row_sums *x) {
    int middle = from + (to - from - 1) / 2;
    sl_score_rows rows = sl_rows_of_blocks(a, head, middle, middle + 1, 1);
    return sl_sum_rows(a, &rows, x) ? sl_rows_kept(a, &rows, x) : SL_MASK_NOT_SAMPLED;
}

// kept: of the sampled rows. Makes the chunk dense if a sampled or a checked row keeps less than the share `repair`. Returns
// the estimated CRA of all these rows.
static int32_t repair_chunk(const sl_mask_args *a, int head, int from, int to, int32_t kept, sl_row_sums *x) {
    uint64_t least = share_param(a, "repair");
    if (!least) return kept;
    int32_t checked = kept_in_middle(a, head, from, to, x);
    if (checked < kept) kept = checked;
    if (kept >= 0 && (uint64_t)kept << (32 - SL_SHARE_BITS) >= least) return kept;
    sl_mask_add_all(a, head, from, to);
    return kept < 0 ? kept : 1 << SL_SHARE_BITS;
}

// The query blocks [from, to) of a head. Returns the estimated CRA.
static int32_t mask_chunk(const sl_mask_args *a, int head, int from, int to, sl_row_sums *x) {
    sl_score_rows rows = sl_rows_of_blocks(a, head, from, to, 1);
    if (rows.n > SL_MASK_BLOCK) rows.first += rows.n - SL_MASK_BLOCK, rows.n = SL_MASK_BLOCK;
    if (!sl_sum_rows(a, &rows, x)) {
        sl_mask_add_all(a, head, from, to);
        return SL_MASK_NOT_SAMPLED;
    }
    memset(x->set, 0, a->mask->n_words * sizeof *x->set);
    memset(x->other, 0, a->mask->n_words * sizeof *x->other);
    choose_columns(a, &rows, x);
    choose_slashes(a, x);
    sl_mask_add_lines(a->mask, head, from, to, x->set, x->other);
    return repair_chunk(a, head, from, to, sl_rows_kept(a, &rows, x), x);
}

static void mask_head(const sl_mask_args *a, int head, sl_row_sums *x) {
    const sl_prefill_mask *m = a->mask;
    int32_t least = 1 << SL_SHARE_BITS;
    int n = (int)sl_attn_get(a->spec, "chunk_n");
    if (n > m->n) n = m->n;
    for (int c = 0; c < n; c++) {
        int32_t kept = mask_chunk(a, head, m->first + c * m->n / n, m->first + (c + 1) * m->n / n, x);
        least = kept < least ? kept : least;
    }
    if (a->reports) a->reports[head].kept = least;
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->geom->n_heads, mask_head);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_sample = {
    .name = "sample",
    .summary = "column and slash blocks that hold most of the attention of sampled queries",
    .source = "SampleAttention (Zhu et al., arXiv:2406.15486), Algorithm 1",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
    .cuda = SL_ON_CUDA(sl_prefill_mask_cuda_ops),
};
