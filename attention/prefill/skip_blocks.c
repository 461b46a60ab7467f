// attention/prefill/skip_blocks.c - the method `threshold`: exact scores, and no softmax and no V for blocks of small scores.
//
// J. Yuan, C. Shinn, K. Xu, J. Cui and 18 others: BLASST: Dynamic BLocked Attention Sparsity via Softmax Thresholding,
// arXiv:2512.12087. The attention skips a key block when each row of the query block has no score in it above m - ln(1 /
// lambda), where m is the row's running maximum (sl_attn_prefill_args.skip_distance). A skipped block adds at most 128 lambda
// e^m to the mass that a row loses, so a row over n keys loses at most the share D / (l + D) <= n lambda. The default keeps
// this share below 3.3% at 32k tokens.
#include "attention/stages/stages.h"

#include <math.h>

static const sl_attn_param params[] = {
    {"lambda", SL_PARAM_FLOAT, 1e-6, 1e-30, 0.5, "largest e^(score - running maximum) of a block that is skipped", NULL},
    {0},
};

static float skip_distance(const sl_attn_spec *spec) {
    return (float)-log2(sl_attn_get(spec, "lambda"));
}

static const sl_attn_ops ops = {.skip_distance = skip_distance};

const sl_attn_method sl_method_threshold = {
    .name = "threshold",
    .summary = "exact scores; key blocks of small scores lose their softmax and their values",
    .source = "BLASST (Yuan et al., arXiv:2512.12087)",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .cpu = &ops,
};
