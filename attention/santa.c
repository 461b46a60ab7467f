// attention/santa.c - the SANTA family (Stochastic Additive No-mulT Attention): exact scores, S sampled rows of V.
//
// Each method is a row: its draw, its default S. All propose exactly and divide by the exact normaliser, so rows that are not
// drawn are never read.
#include "attention/stages.h"

#include <math.h>

static const char budgets[] = "even,variance";
#define S_PARAM(DEFAULT)                                                                                                       \
    { "S", SL_PARAM_INT, DEFAULT, 1, 65536, "rows of V drawn per query head", NULL }
#define BUDGET_PARAM                                                                                                           \
    { "budget", SL_PARAM_CHOICE, 0, 0, 1, "how a layer's draws are split over its heads", budgets }

static const sl_attn_param params[] = {S_PARAM(128), BUDGET_PARAM, {0}};
static const sl_attn_param flash_params[] = {S_PARAM(2048), {0}};
static const sl_attn_param pps_params[] = {
    S_PARAM(128),
    BUDGET_PARAM,
    {"pps", SL_PARAM_CHOICE, 0, 0, 1, "an own uniform number for each light draw, or one for all", "strat,sys"},
    {"epsilon", SL_PARAM_FLOAT, 0, 0, 1, "relative error that every head states instead of S (a biased estimate); 0: S draws",
     NULL},
    {"delta", SL_PARAM_FLOAT, 0.05, 1e-9, 0.2, "probability that a stated error is exceeded", NULL},
    {"bound", SL_PARAM_CHOICE, 0, 0, 1, "what a stated error leans on", "clt,bernstein"},
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
    x->draw->sampler(&x->masses, x->S, x->u, &x->draws);
}

// ---- santa-pps ----

static sl_attn_mean pps_mean(const sl_attn_spec *spec) {
    return sl_attn_states_error(spec) ? SL_MEAN_BIASED : SL_MEAN_UNBIASED;
}

static int check_pps(const sl_attn_spec *spec, sl_error *err) {
    if (!sl_attn_states_error(spec) || sl_attn_get(spec, "pps") == 0) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "--attn santa-pps: found --pps sys beside --epsilon %g, expected --pps strat: the stated error "
                   "needs a uniform number for each draw",
                   sl_attn_get(spec, "epsilon"));
}

#define DRAW(SAMPLER)                                                                                                          \
    { .size_power = second_moment, .capacity = capacity, .scratch = scratch, .run = run_sampler, .sampler = SAMPLER }
#define STAGES(DRAW)                                                                                                           \
    { .propose = &sl_propose_exact, .draw = &DRAW, .normaliser = SL_BY_TOTAL }

static const sl_draw independent = DRAW(sl_draw_independent), stratified = DRAW(sl_draw_stratified),
                     systematic = DRAW(sl_draw_systematic), proportional = DRAW(sl_draw_tiles_proportional),
                     uniform_tiles = DRAW(sl_draw_tiles_uniform);
static const sl_composition santa = STAGES(independent), strat = STAGES(stratified), sys = STAGES(systematic),
                            prop = STAGES(proportional), flash = STAGES(uniform_tiles), pps = STAGES(sl_draw_pps);

const sl_attn_method sl_method_santa = {.name = "santa",
                                        .summary = "S independent draws from the attention weights",
                                        .source = "SANTA, Algorithm 1",
                                        .mean = SL_MEAN_UNBIASED,
                                        .params = params,
                                        .stages = &santa,
                                        .cpu = &sl_stages_ops,
                                        .cuda = SL_ON_CUDA(sl_santa_cuda_ops)};
const sl_attn_method sl_method_santa_strat = {
    .name = "santa-strat",
    .summary = "one draw in each of S equal parts of the attention mass, each with its own uniform number",
    .source = "S2ANTA, Appendix A",
    .mean = SL_MEAN_UNBIASED,
    .params = params,
    .stages = &strat,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_strat_cuda_ops)};
const sl_attn_method sl_method_santa_sys = {
    .name = "santa-sys",
    .summary = "one draw in each of S equal parts of the attention mass, one uniform number for all",
    .source = "S2ANTA, systematic",
    .mean = SL_MEAN_UNBIASED,
    .params = params,
    .stages = &sys,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_sys_cuda_ops)};
const sl_attn_method sl_method_santa_prop = {.name = "santa-prop",
                                             .summary =
                                                 "S split over 256-row tiles by largest remainder, systematic inside each tile",
                                             .source = "S2ANTA, Algorithms 2-5",
                                             .mean = SL_MEAN_BIASED,
                                             .params = params,
                                             .stages = &prop,
                                             .cpu = &sl_stages_ops,
                                             .cuda = SL_ON_CUDA(sl_santa_prop_cuda_ops)};
const sl_attn_method sl_method_santa_flash = {.name = "santa-flash",
                                              .summary =
                                                  "S split evenly over 256-row tiles, tiles merged with their exact mass",
                                              .source = "S2ANTA, Algorithms 6-8",
                                              .mean = SL_MEAN_UNBIASED,
                                              .params = flash_params,
                                              .stages = &flash,
                                              .cpu = &sl_stages_ops,
                                              .cuda = SL_ON_CUDA(sl_santa_flash_cuda_ops)};
const sl_attn_method sl_method_santa_pps = {
    .name = "santa-pps",
    .summary = "rows with large p |v| exactly, the rest in proportion to it; S draws, or a stated error",
    .source = "ours: take-all PPS sampling",
    .mean = SL_MEAN_UNBIASED,
    .mean_of = pps_mean,
    .caution =
        "with --epsilon biased: whether draws are accepted depends on the estimate. Measured: +1.6 to +3.8% of the output "
        "on values of one channel, +0.15% on normal values without a step before",
    .check = check_pps,
    .params = pps_params,
    .stages = &pps,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_santa_pps_cuda_ops)};
