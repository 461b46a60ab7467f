// attention/methods/santa.c - the SANTA family: exact scores, S drawn rows of V.
//
// K. Lee, C. Delacour, K. Callahan-Coray, K. Jiang, C. Yaras, S. Oymak, T. Srimani, K. Y. Camsari: Stochastic Sparse Attention
// for Memory-Bound Inference, arXiv:2605.01910. SANTA is Stochastic Additive No-mulT Attention; S2ANTA are its stratified and
// systematic variants. santa-pps is ours.
//
// The methods differ in the draw and the default of S. All of them compute exact scores and divide by the exact normaliser. So
// they read only the drawn rows of V.
#include "attention/stages/stages.h"

#include <math.h>

#define S_PARAM(DEFAULT)                                                                                                       \
    { "S", SL_PARAM_INT, DEFAULT, 1, 65536, "rows of V drawn per query head", NULL }
#define BUDGET_PARAM(DEFAULT, MOST, WORDS)                                                                                     \
    { "budget", SL_PARAM_CHOICE, DEFAULT, 0, MOST, "split of the draws of a layer over its heads", WORDS }
#define TILE_PARAM                                                                                                             \
    { "tile", SL_PARAM_CHOICE, 2, 0, 3, "rows of a tile", "64,128,256,512" }
#define VALUE_PARAM                                                                                                            \
    { "value", SL_PARAM_CHOICE, 0, 0, 1, "add a drawn row once, times its count, or once for each draw (CPU)", "counts,adds" }

static const sl_attn_param params[] = {S_PARAM(128), BUDGET_PARAM(0, 1, "even,variance"), VALUE_PARAM, {0}};
static const sl_attn_param prop_params[] = {S_PARAM(128), BUDGET_PARAM(0, 1, "even,variance"), TILE_PARAM, VALUE_PARAM, {0}};
static const sl_attn_param flash_params[] = {S_PARAM(2048), TILE_PARAM, {0}};
static const sl_attn_param pps_params[] = {
    S_PARAM(128),
    BUDGET_PARAM(2, 2, "even,variance,carried"),
    {"pps", SL_PARAM_CHOICE, 0, 0, 1, "uniform numbers of the light draws: one per draw, or one for all", "strat,sys"},
    SL_EPSILON_PARAMS,
    SL_LAYER_PARAMS,
    {"certify", SL_PARAM_CHOICE, 0, 0, 1, "state the error of a layer, or of every head (a biased estimate)", "layer,head"},
    {0},
};

// ---- draws from p ----

static int second_moment(const sl_attn_spec *spec) { // sum p |v|^2, for --budget=variance
    return sl_budget_is_by_variance(spec) ? 2 : 0;
}

static int most_draws(const sl_attn_spec *spec) {
    return (int)sl_attn_get(spec, "S") * (sl_budget_is_by_variance(spec) ? SL_BUDGET_MOST : 1);
}

static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    return sl_sampler_capacity(most_draws(spec), n_kv);
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    return sl_sampler_scratch(most_draws(spec), n_kv);
}
static void run_sampler(sl_head *x) {
    x->masses.tile = sl_tile_of(x->group->args->spec);
    x->draw->sampler(&x->masses, x->S, x->u, &x->draws);
}

// ---- santa-pps ----

static sl_attn_mean pps_mean(const sl_attn_spec *spec) {
    int accepts = sl_attn_states_error(spec) && !(sl_attn_certifies_layer(spec) && sl_attn_chooses(spec, "on-miss", "report"));
    return accepts ? SL_MEAN_BIASED : SL_MEAN_UNBIASED;
}

static int check_pps(const sl_attn_spec *spec, sl_error *err) {
    if (!sl_attn_states_error(spec) || sl_attn_chooses(spec, "pps", "strat")) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "{attn} santa-pps: found {pps} sys with {epsilon} %g, expected {pps} strat: the stated error "
                   "needs a uniform number for each draw",
                   sl_attn_get(spec, "epsilon"));
}

#define DRAW(SAMPLER)                                                                                                          \
    {                                                                                                                          \
        .size_power = second_moment, .keeps = sl_budget_is_by_variance, .capacity = capacity, .scratch = scratch,              \
        .prepare = sl_budget_profile, .plan = sl_budget_by_variance, .run = run_sampler, .sampler = SAMPLER                    \
    }
#define STAGES(DRAW)                                                                                                           \
    { .propose = &sl_propose_exact, .draw = &DRAW, .normaliser = SL_BY_TOTAL }

static const sl_draw independent = DRAW(sl_draw_independent), stratified = DRAW(sl_draw_stratified),
                     systematic = DRAW(sl_draw_systematic), proportional = DRAW(sl_draw_tiles_proportional),
                     uniform_tiles = DRAW(sl_draw_tiles_uniform);
static const sl_composition santa = STAGES(independent), strat = STAGES(stratified), sys = STAGES(systematic),
                            prop = STAGES(proportional), flash = STAGES(uniform_tiles), pps = STAGES(sl_draw_pps);

// clang-format off
#define SAMPLER_CROSSOVER {{32, 512, 0}, {16, 2048, 0}}
// clang-format on

const sl_attn_method sl_method_santa = {.name = "santa",
                                        .summary = "S independent draws from the attention probabilities",
                                        .source = "SANTA (arXiv:2605.01910), equation 4",
                                        .mean = SL_MEAN_UNBIASED,
                                        .params = params,
                                        .crossover = SAMPLER_CROSSOVER,
                                        .stages = &santa,
                                        .cpu = &sl_stages_ops,
                                        .cuda = SL_ON_CUDA(sl_santa_cuda_ops)};
const sl_attn_method sl_method_santa_strat = {
    .name = "santa-strat",
    .summary = "one draw in each of S equal parts of the attention mass, with a uniform number for each part",
    .source = "S2ANTA (arXiv:2605.01910), Appendix A",
    .mean = SL_MEAN_UNBIASED,
    .params = params,
    .crossover = SAMPLER_CROSSOVER,
    .stages = &strat,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_strat_cuda_ops)};
const sl_attn_method sl_method_santa_sys = {
    .name = "santa-sys",
    .summary = "one draw in each of S equal parts of the attention mass, with one uniform number for all parts",
    .source = "S2ANTA (arXiv:2605.01910), systematic",
    .mean = SL_MEAN_UNBIASED,
    .params = params,
    .crossover = SAMPLER_CROSSOVER,
    .stages = &sys,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_sys_cuda_ops)};
const sl_attn_method sl_method_santa_prop = {.name = "santa-prop",
                                             .summary =
                                                 "S split over tiles of rows by largest remainder, systematic in each tile",
                                             .source = "S2ANTA (arXiv:2605.01910), Algorithms 2-5",
                                             .mean = SL_MEAN_BIASED,
                                             .params = prop_params,
                                             .crossover = SAMPLER_CROSSOVER,
                                             .stages = &prop,
                                             .cpu = &sl_stages_ops,
                                             .cuda = SL_ON_CUDA(sl_santa_prop_cuda_ops)};
const sl_attn_method sl_method_santa_flash = {.name = "santa-flash",
                                              .summary =
                                                  "S split evenly over tiles of rows, every tile combined with its exact mass",
                                              .source = "S2ANTA (arXiv:2605.01910), Algorithms 6-8",
                                              .mean = SL_MEAN_UNBIASED,
                                              .params = flash_params,
                                              .crossover = SAMPLER_CROSSOVER,
                                              .stages = &flash,
                                              .cpu = &sl_stages_ops,
                                              .cuda = SL_ON_CUDA(sl_santa_flash_cuda_ops)};
const sl_attn_method sl_method_santa_pps = {
    .name = "santa-pps",
    .summary = "rows with large p |v| once each, the other rows drawn in proportion to p |v|; S draws, or a stated error",
    .source = "ours: take-all PPS sampling",
    .mean = SL_MEAN_UNBIASED,
    .mean_of = pps_mean,
    .caution = "with epsilon and certify=head or on-miss=dense biased, because the estimate decides whether the draws are "
               "accepted. Bias at delta 20%: +1.0 to "
               "+4.2% of "
               "the output on values of one channel, +0.28% on centred values (`sleigh-test means` prints the table)",
    .check = check_pps,
    .params = pps_params,
    .crossover = {{64, 4096, 16384}, {32, 8192, 8192}},
    .stages = &pps,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_pps_cuda_ops)};
