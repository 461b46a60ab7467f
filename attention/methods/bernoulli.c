// attention/methods/bernoulli.c - Bernoulli qK^T: scores from few key features (SANTA paper, arXiv:2605.01910, section 5 and
// appendix C). The method combines every row of V. With `+METHOD`, a santa method draws rows of V.
#include "attention/stages/stages.h"

static const sl_attn_param params[] = {
    {"B", SL_PARAM_INT, 8, 1, 1024, "Bernoulli trials per query feature", NULL},
    {"bernoulli-sampling", SL_PARAM_CHOICE, 0, 0, 1, "dependence of the trials of a feature", "stratified,iid"},
    {0},
};

static const sl_composition each = {.propose = &sl_propose_bernoulli}, group = {.propose = &sl_propose_bernoulli_group};

const sl_attn_method sl_method_bernoulli = {.name = "bernoulli",
                                            .summary = "scores from Bernoulli trials of query features, for each head",
                                            .source = "SANTA paper (arXiv:2605.01910), section 5",
                                            .mean = SL_MEAN_BIASED,
                                            .params = params,
                                            .crossover = {{.least = 512}, {.least = 512}},
                                            .stages = &each,
                                            .cpu = &sl_stages_ops,
                                            .cuda = SL_ON_CUDA(sl_bernoulli_cuda_ops)};
const sl_attn_method sl_method_bernoulli_group = {
    .name = "bernoulli-group",
    .summary = "scores from Bernoulli trials of the mean query of the group: one set of features for the group",
    .source = "SANTA paper (arXiv:2605.01910), appendix C.2",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .crossover = {{.least = 512}, {.least = 512}},
    .stages = &group,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_bernoulli_group_cuda_ops)};
