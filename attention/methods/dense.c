// attention/methods/dense.c - exact attention. Decode is a composition without a draw (online_softmax.c). Prefill is
// prefill_tiles.c without a mask.
#include "attention/stages/stages.h"

static size_t workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    (void)n_tokens; // the scratch of prefill depends only on the tile
    size_t decode_bytes = sl_stages_ops.workspace(g, spec, n_seqs, 1, n_kv);
    size_t prefill_bytes = sl_prefill_workspace(g);
    return decode_bytes > prefill_bytes ? decode_bytes : prefill_bytes;
}

static const sl_attn_ops ops = {.workspace = workspace, .decode = sl_stages_decode, .prefill = sl_prefill_tiles};
static const sl_composition stages = {.propose = &sl_propose_exact};

const sl_attn_method sl_method_dense = {
    .name = "dense",
    .summary = "exact attention over every row",
    .source = "softmax(q K^T / sqrt(d)) V",
    .mean = SL_MEAN_EXACT,
    .stages = &stages,
    .cpu = &ops,
    .cuda = SL_ON_CUDA(sl_dense_cuda_ops),
};
