// attention/subset.c - methods that attend exactly to some rows and omit the other rows: the k rows of largest score, the
// fewest rows with a share of the mass, attention sinks with a sliding window.
//
// streaming: G. Xiao, Y. Tian, B. Chen, S. Han, M. Lewis: Efficient Streaming Language Models with Attention Sinks,
// arXiv:2309.17453.
#include "attention/stages.h"

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

static const sl_composition top_k = {&sl_propose_exact, &sl_draw_top_k, SL_BY_SAMPLE, NULL},
                            top_p = {&sl_propose_exact, &sl_draw_top_p, SL_BY_SAMPLE, NULL},
                            window = {&sl_propose_nothing, &sl_draw_window, SL_BY_SAMPLE, NULL};

const sl_attn_method sl_method_topk = {
    .name = "topk",
    .summary = "the k rows of largest score, renormalised (an oracle: it reads every key)",
    .source = "exact top-k",
    .mean = SL_MEAN_BIASED,
    .params = top_k_params,
    .stages = &top_k,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_oracle_cuda_ops),
};
const sl_attn_method sl_method_topp = {
    .name = "topp",
    .summary = "the fewest rows that reach the share p of the attention mass, renormalised (an oracle: it reads every key)",
    .source = "exact top-p",
    .mean = SL_MEAN_BIASED,
    .params = top_p_params,
    .stages = &top_p,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_oracle_cuda_ops),
};
const sl_attn_method sl_method_streaming = {
    .name = "streaming",
    .summary = "the first rows (attention sinks) and the last rows, renormalised",
    .source = "StreamingLLM (Xiao et al., arXiv:2309.17453)",
    .mean = SL_MEAN_BIASED,
    .params = streaming_params,
    .stages = &window,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_streaming_cuda_ops),
};
