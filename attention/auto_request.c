// attention/auto_request.c - the request `auto` (auto.h): a name with parameters and without functions.
#include "attention/auto.h"

static const sl_attn_param params[] = {
    {"epsilon", SL_PARAM_FLOAT, 0, 0, 1, "relative error that a method other than dense must state; 0: none", NULL},
    {"delta", SL_PARAM_FLOAT, 0.05, 1e-9, 0.2, "probability that a stated error is exceeded", NULL},
    {0},
};

const sl_attn_method sl_method_auto = {
    .name = "auto",
    .summary = "dense below the crossover that was measured on this device, above it the fastest candidate",
    .source = "ours",
    .mean = SL_MEAN_BIASED,
    .params = params,
};
