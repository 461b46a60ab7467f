// attention/prefill/vertical_slash.c - the vertical-slash mask of MInference: a fixed number of columns and slashes, chosen by
// the last 64 queries of the segment.
//
// H. Jiang, Y. Li, C. Zhang, Q. Wu, X. Luo, S. Ahn, Z. Han, A. H. Abdi, D. Li, C.-Y. Lin, Y. Yang, L. Qiu: MInference 1.0:
// Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention, arXiv:2407.02490. Columns and slashes are
// counted in tokens; the mask visits every block that one of them crosses.
#include "attention/prefill/row_sums.h"
#include "attention/stages/stages.h"

#include <string.h>

enum { SAMPLED = 64 };

static const sl_attn_param params[] = {
    {"columns", SL_PARAM_INT, 1000, 0, 1 << 20, "keys (vertical lines) that every query visits", NULL},
    {"slashes", SL_PARAM_INT, 6096, 0, 1 << 20, "offsets (slash lines) that every query visits", NULL},
    {0},
};

// Ranks all sums. Returns how many of the first `most` are positive.
static int rank_positive(const uint32_t *sum, int n, int most, uint64_t *rank) {
    int k = 0;
    sl_rank_sums(sum, n, rank);
    while (k < n && k < most && sl_rank_sum(rank[k])) k++;
    return k;
}

static void mask_head(const sl_mask_args *a, int head, sl_row_sums *x) {
    const sl_prefill_mask *m = a->mask;
    int n = a->n_tokens < SAMPLED ? a->n_tokens : SAMPLED;
    sl_score_rows rows = {.head = head, .stride = 1, .first = a->kv.n_kv - n, .n = n};
    if (!sl_sum_rows(a, &rows, x)) {
        sl_mask_add_all(a, head, m->first, m->first + m->n);
        return;
    }
    sl_sum_lines(a, &rows, x);
    memset(x->set, 0, m->n_words * sizeof *x->set);
    memset(x->other, 0, m->n_words * sizeof *x->other);
    int k = rank_positive(x->column, x->n_columns, (int)sl_attn_get(a->spec, "columns"), x->rank);
    for (int i = 0; i < k; i++) sl_mask_set(x->set, (int)sl_rank_index(x->rank[i]) / SL_MASK_BLOCK);
    k = rank_positive(x->offset, x->n_columns, (int)sl_attn_get(a->spec, "slashes"), x->rank);
    for (int i = 0; i < k; i++) { // keys 128 i - offset .. 128 i + 127 - offset
        int offset = (int)sl_rank_index(x->rank[i]), distance = offset / SL_MASK_BLOCK;
        sl_mask_set(x->other, distance);
        if (offset % SL_MASK_BLOCK && distance + 1 < x->n_blocks) sl_mask_set(x->other, distance + 1);
    }
    sl_mask_add_lines(m, head, m->first, m->first + m->n, x->set, x->other);
    if (a->reports) a->reports[head].kept = sl_rows_kept(a, &rows, x);
}

static void mask(const sl_mask_args *a) {
    sl_mask_run(a, a->geom->n_heads, mask_head);
}

static const sl_attn_ops ops = {.mask_workspace = sl_mask_run_workspace, .mask = mask};

const sl_attn_method sl_method_vertical_slash = {
    .name = "vertical-slash",
    .summary = "a fixed number of columns and slashes that the last 64 queries attend to most",
    .source = "MInference (Jiang et al., arXiv:2407.02490)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
    .cuda = SL_ON_CUDA(sl_prefill_mask_cuda_ops),
};
