// attention/bernoulli.c - Bernoulli qK^T: scores from few key features; values densely, or with `+` by a santa method.
#include "attention/stages.h"

static const sl_attn_param params[] = {
    {"B", SL_PARAM_INT, 8, 1, 1024, "Bernoulli samples per query feature", NULL},
    {"bernoulli-sampling", SL_PARAM_CHOICE, 0, 0, 1, "how the samples of a feature are drawn", "stratified,iid"},
    {0},
};

static const sl_composition each = {.propose = &sl_propose_bernoulli}, group = {.propose = &sl_propose_bernoulli_group};

const sl_attn_method sl_method_bernoulli = {.name = "bernoulli",
                                            .summary = "scores from Bernoulli-sampled query features, each head its own",
                                            .source = "SANTA paper, section 5",
                                            .mean = SL_MEAN_BIASED,
                                            .params = params,
                                            .stages = &each,
                                            .cpu = &sl_stages_ops,
                                            .cuda = SL_ON_CUDA(sl_bernoulli_cuda_ops)};
const sl_attn_method sl_method_bernoulli_group = {
    .name = "bernoulli-group",
    .summary = "scores from Bernoulli-sampled features of the group's mean query: one feature set for the group",
    .source = "SANTA paper, appendix C.2",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .stages = &group,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_bernoulli_group_cuda_ops)};
