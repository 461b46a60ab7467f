// attention/methods/subset.c - methods that attend exactly to some rows and omit the other rows: the k rows of largest score,
// the fewest rows with a share of the mass, attention sinks with a sliding window.
//
// streaming: G. Xiao, Y. Tian, B. Chen, S. Han, M. Lewis: Efficient Streaming Language Models with Attention Sinks,
// arXiv:2309.17453.
#include "attention/prefill/prefill_mask.h"
#include "attention/stages/stages.h"

static const sl_attn_param top_k_params[] = {
    {"k", SL_PARAM_INT, 128, 1, 1 << 20, "rows of largest score that are read", NULL},
    {0},
};
static const sl_attn_param top_p_params[] = {
    {"p", SL_PARAM_FLOAT, 0.95, 0, 1, "share of the attention mass that the rows reach", NULL},
    {0},
};
static const sl_attn_param streaming_params[] = {
    {"sink", SL_PARAM_INT, 4, 0, 1 << 20, "first rows that are read", NULL},
    {"window", SL_PARAM_INT, 2044, 1, 1 << 20, "last rows that are read (sliding window)", NULL},
    {0},
};

#define STAGES(PROPOSE, DRAW)                                                                                                  \
    { .propose = &PROPOSE, .draw = &DRAW, .normaliser = SL_BY_SAMPLE }
static const sl_composition top_k = STAGES(sl_propose_exact, sl_draw_top_k), top_p = STAGES(sl_propose_exact, sl_draw_top_p),
                            window = STAGES(sl_propose_nothing, sl_draw_window);

// ---- streaming as a mask ----
// A query block visits the key blocks that hold a sink key, or a key in the window of one of its queries. The mask depends on
// positions only.

static void streaming_mask(const sl_mask_args *a) {
    const sl_prefill_mask *m = a->mask;
    int sink = (int)sl_attn_get(a->spec, "sink"), window = (int)sl_attn_get(a->spec, "window");
    for (int head = 0; head < m->n_heads; head++)
        for (int i = m->first; i < m->first + m->n; i++) {
            int oldest = i * SL_MASK_BLOCK + 1 - window; // of the block's first query
            sl_mask_add(m, head, i, 0, (sink + SL_MASK_BLOCK - 1) / SL_MASK_BLOCK - 1);
            sl_mask_add(m, head, i, oldest > 0 ? oldest / SL_MASK_BLOCK : 0, i);
        }
}

static size_t streaming_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    return sl_stages_ops.workspace(g, spec, n_seqs, n_tokens, n_kv);
}
static int streaming_needs(const sl_attn_spec *spec, sl_kv_need *out) { // of a method that draws from the window
    return sl_stages_ops.needs(spec, out);
}
static size_t streaming_state(const sl_attn_geom *g, const sl_attn_spec *spec) {
    return sl_stages_ops.state(g, spec);
}

static const sl_attn_ops streaming_ops = {.workspace = streaming_workspace,
                                          .decode = sl_stages_decode,
                                          .needs = streaming_needs,
                                          .state = streaming_state,
                                          .mask = streaming_mask};

// ---- the methods ----

const sl_attn_method sl_method_topk = {
    .name = "topk",
    .summary = "the k rows of largest score, renormalised (an oracle: it reads every key)",
    .source = "exact top-k",
    .mean = SL_MEAN_BIASED,
    .params = top_k_params,
    .crossover = {{.ratio = 16, .least = 512}, {.ratio = 16, .least = 8192}},
    .stages = &top_k,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_subset_cuda_ops),
};
const sl_attn_method sl_method_topp = {
    .name = "topp",
    .summary = "the fewest rows that reach the share p of the attention mass, renormalised (an oracle: it reads every key)",
    .source = "exact top-p",
    .mean = SL_MEAN_BIASED,
    .params = top_p_params,
    .crossover = {{.least = 8192}, {.least = 8192}},
    .stages = &top_p,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_subset_cuda_ops),
};
const sl_attn_method sl_method_streaming = {
    .name = "streaming",
    .summary = "the first rows (attention sinks) and the last rows, renormalised",
    .source = "StreamingLLM (Xiao et al., arXiv:2309.17453)",
    .mean = SL_MEAN_BIASED,
    .params = streaming_params,
    .crossover = {{0}, {0}},
    .stages = &window,
    .cpu = &streaming_ops,
    .cuda = SL_ON_CUDA(sl_streaming_cuda_ops),
};
