// attention/santa.c - the SANTA family (Stochastic Additive No-mulT Attention): exact scores, S sampled rows of V.
//
// Each method is a row: its draw, its default S. All propose exactly and divide by the exact normaliser, so rows that are not
// drawn are never read.
#include "attention/stages.h"

#define BUDGET(DEFAULT)                                                                                                        \
    { "S", SL_PARAM_INT, DEFAULT, 1, 65536, "rows of V drawn per query head" }

static const sl_attn_param params[] = {BUDGET(128), {0}};
static const sl_attn_param flash_params[] = {BUDGET(2048), {0}};

static const sl_composition independent = {.draw = sl_draw_independent}, stratified = {.draw = sl_draw_stratified},
                            systematic = {.draw = sl_draw_systematic}, proportional = {.draw = sl_draw_tiles_proportional},
                            uniform_tiles = {.draw = sl_draw_tiles_uniform};

const sl_attn_method sl_method_santa = {
    .name = "santa",
    .summary = "S independent draws from the attention weights",
    .source = "SANTA, Algorithm 1",
    .params = params,
    .stages = &independent,
    .cpu = &sl_stages_ops,
};
const sl_attn_method sl_method_santa_strat = {
    .name = "santa-strat",
    .summary = "one draw in each of S equal parts of the attention mass, each with its own uniform number",
    .source = "S2ANTA, Appendix A",
    .params = params,
    .stages = &stratified,
    .cpu = &sl_stages_ops,
};
const sl_attn_method sl_method_santa_sys = {
    .name = "santa-sys",
    .summary = "one draw in each of S equal parts of the attention mass, one uniform number for all",
    .source = "S2ANTA, systematic",
    .params = params,
    .stages = &systematic,
    .cpu = &sl_stages_ops,
};
const sl_attn_method sl_method_santa_prop = {
    .name = "santa-prop",
    .summary = "S split over 256-row tiles by largest remainder, systematic inside each tile",
    .source = "S2ANTA, Algorithms 2-5",
    .biased = 1,
    .params = params,
    .stages = &proportional,
    .cpu = &sl_stages_ops,
};
const sl_attn_method sl_method_santa_flash = {
    .name = "santa-flash",
    .summary = "S split evenly over 256-row tiles, tiles merged with their exact mass",
    .source = "S2ANTA, Algorithms 6-8",
    .params = flash_params,
    .stages = &uniform_tiles,
    .cpu = &sl_stages_ops,
};
