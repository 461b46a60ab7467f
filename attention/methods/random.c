// attention/methods/random.c - the method `random`: S rows drawn uniformly, the baseline of every method.
#include "attention/stages/stages.h"

static const sl_attn_param params[] = {
    {"S", SL_PARAM_INT, 128, 1, 65536, "rows drawn per query head", NULL},
    {0},
};

static size_t capacity(const sl_attn_spec *spec, int n_kv) {
    return sl_sampler_capacity((int)sl_attn_get(spec, "S"), n_kv);
}
static size_t scratch(const sl_attn_spec *spec, int n_kv) {
    return sl_sampler_scratch((int)sl_attn_get(spec, "S"), n_kv);
}
static void run(sl_head *x) {
    sl_draw_independent(&x->masses, x->S, x->u, &x->draws);
}

static const sl_draw uniform_rows = {.capacity = capacity, .scratch = scratch, .run = run};
static const sl_composition stages = {.propose = &sl_propose_uniform, .draw = &uniform_rows, .normaliser = SL_BY_SAMPLE};

const sl_attn_method sl_method_random = {
    .name = "random",
    .summary = "S rows drawn uniformly, self-normalised: the baseline of every method",
    .source = "importance sampling with a uniform proposal",
    .mean = SL_MEAN_BIASED,
    .params = params,
    .crossover = {{.ratio = 16, .least = 512}, {.ratio = 8, .least = 512}},
    .stages = &stages,
    .cpu = &sl_stages_ops,
    .cuda = SL_ON_CUDA(sl_random_cuda_ops),
};
