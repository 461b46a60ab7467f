// attention/methods/indexed.c - methods that read a page extra in place of all keys, and then K and V of a few rows.
//
// Quest: J. Tang, Y. Zhao, K. Zhu, G. Xiao, B. Kasikci, S. Han: Quest: Query-Aware Sparsity for Efficient Long-Context LLM
// Inference, arXiv:2406.10774. MagicPIG: Z. Chen, R. Sadhukhan, Z. Ye, Y. Zhou, J. Zhang, N. Nolte, Y. Tian, M. Douze, L.
// Bottou, Z. Jia, B. Chen: MagicPIG: LSH Sampling for Efficient LLM Generation, arXiv:2410.16179.
#include "attention/stages/stages.h"

static const sl_attn_param quest_params[] = {
    {"tokens", SL_PARAM_INT, 1024, 16, 1 << 20, "rows that are read, in units of 16", NULL},
    {"sink", SL_PARAM_INT, 0, 0, 1 << 20, "first rows that are always among them, in units of 16; 0: the paper's method", NULL},
    {0},
};
static const sl_attn_param magicpig_params[] = {
    {"K", SL_PARAM_INT, 10, 1, 16, "bits of a hash", NULL},
    {"L", SL_PARAM_INT, 150, 1, 512, "hash tables", NULL},
    {"hits", SL_PARAM_CHOICE, 1, 0, 1, "tables in which a row must match", "1,2"},
    {"sink", SL_PARAM_INT, 4, 0, 1 << 20, "first rows that are always read", NULL},
    {"window", SL_PARAM_INT, 64, 0, 1 << 20, "last rows that are always read", NULL},
    {0},
};

static int check_quest(const sl_attn_spec *spec, sl_error *err) {
    int tokens = (int)sl_attn_get(spec, "tokens"), sink = (int)sl_attn_get(spec, "sink");
    int most = tokens / 16 * 16 - 16; // besides the unit of the newest row
    if (sink <= most) return 0;
    return sl_fail(err, SL_ERR_ARG, "{attn} quest: {sink} %d: expected at most %d with {tokens} %d", sink, most, tokens);
}

static const sl_composition quest = {&sl_propose_bounds, &sl_draw_top_units, SL_BY_SAMPLE, NULL, NULL},
                            magicpig = {&sl_propose_hashes, &sl_draw_candidates, SL_BY_SAMPLE, NULL, NULL};

const sl_attn_method sl_method_quest = {
    .name = "quest",
    .summary = "the units of 16 rows whose channel bounds allow the largest scores, renormalised",
    .source = "Quest (Tang et al., arXiv:2406.10774)",
    .mean = SL_MEAN_BIASED,
    .check = check_quest,
    .params = quest_params,
    .crossover = {{.ratio = 8, .least = 512}, {.ratio = 16, .least = 8192}},
    .stages = &quest,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_quest_cuda_ops),
};
const sl_attn_method sl_method_magicpig = {
    .name = "magicpig",
    .summary = "rows whose hash matches that of the query, divided by the probability of a match, self-normalised",
    .source = "MagicPIG (Chen et al., arXiv:2410.16179)",
    .mean = SL_MEAN_BIASED,
    .caution = "the hash functions depend on the seed, the layer and the KV head, not on the sequence or the position, because "
               "signatures are part of pages that sequences share",
    .params = magicpig_params,
    .crossover = {{.least = 4096}, {0}},
    .stages = &magicpig,
    .cpu = &sl_stages_ops,
};
