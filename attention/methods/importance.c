// attention/methods/importance.c - quantised keys: as a proposal that exact keys correct (santa-is), or in place of the keys
// (dense-q).
#include "attention/stages/stages.h"

static const sl_attn_param is_params[] = {
    {"S", SL_PARAM_INT, 128, 1, 65536, "rows drawn per query head, in addition to the newest page", NULL},
    {"proposal", SL_PARAM_CHOICE, 1, 0, 2, "format of the quantised keys", "int8,int4,int3"},
    {"budget", SL_PARAM_CHOICE, 0, 0, 1, "split of the draws of a layer over its heads", "even,carried"},
    SL_EPSILON_PARAMS,
    SL_LAYER_PARAMS,
    {0},
};
static const sl_attn_param dense_params[] = {
    {"bits", SL_PARAM_CHOICE, 1, 0, 2, "bits of a key channel", "8,4,3"},
    {0},
};

static int check_is(const sl_attn_spec *spec, sl_error *err) {
    if (!sl_attn_states_error(spec)) return 0;
    if (!sl_attn_chooses(spec, "proposal", "int8"))
        return sl_fail(
            err, SL_ERR_ARG,
            "{attn} santa-is: found {proposal} %s with {epsilon} %g, expected int8: the error of scores from keys of "
            "fewer bits has no useful bound",
            sl_attn_chooses(spec, "proposal", "int4") ? "int4" : "int3", sl_attn_get(spec, "epsilon"));
    if (sl_attn_chooses(spec, "bound", "bernstein"))
        return sl_fail(err, SL_ERR_ARG,
                       "{attn} santa-is: found {bound} bernstein, expected clt or chi2: the output is self-normalised, so its "
                       "stated error is asymptotic");
    return 0;
}

static const sl_composition is = {&sl_propose_quantised, &sl_draw_importance, SL_BY_SAMPLE, NULL, NULL},
                            dense_q = {.propose = &sl_propose_quantised};

const sl_attn_method sl_method_santa_is = {
    .name = "santa-is",
    .summary = "S rows drawn by scores from quantised keys, corrected with their exact keys, self-normalised",
    .source = "ours: importance sampling with quantised keys",
    .mean = SL_MEAN_BIASED,
    .check = check_is,
    .params = is_params,
    .crossover = {{64, 2048, 16384}, {32, 8192, 16384}},
    .stages = &is,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_is_cuda_ops)};
const sl_attn_method sl_method_dense_q = {.name = "dense-q",
                                          .summary = "every row, with scores from quantised keys in place of exact scores",
                                          .source = "santa-is without its correction",
                                          .mean = SL_MEAN_BIASED,
                                          .params = dense_params,
                                          .stages = &dense_q,
                                          .cpu = &sl_stages_ops,
                                          .cuda = SL_ON_CUDA(sl_dense_q_cuda_ops)};
