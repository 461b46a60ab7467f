// engine/generation_options.c - the default options of a generation, and the sampling parameters of a model, which
// generation_config.json gives.
#include "engine/engine_internal.h"

#include <math.h>

sl_generation sl_generation_default(void) {
    const sl_sampling unset = {
        .temp = NAN, .top_k = SL_UNSET, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .repeat_last_n = SL_UNSET};
    return (sl_generation){.sampling = unset, .max_tokens = 1024, .n_logprobs = -1};
}

static void complete_float(float *x, float of_model, float otherwise) {
    if (isnan(*x)) *x = isnan(of_model) ? otherwise : of_model;
}

void sl_sampling_complete(const sl_model *model, const sl_sampling *otherwise, sl_sampling *s) {
    const sl_config *c = &model->config;
    // As in transformers, a penalty of the model sees every token of the context.
    int is_models_penalty = isnan(s->repeat_penalty) && !isnan(c->gen_repeat_penalty);
    if (s->repeat_last_n == SL_UNSET) s->repeat_last_n = is_models_penalty ? -1 : otherwise->repeat_last_n;
    if (s->top_k == SL_UNSET) s->top_k = c->gen_top_k >= 0 ? c->gen_top_k : otherwise->top_k;
    complete_float(&s->temp, c->gen_do_sample == 0 ? 0 : c->gen_temp, otherwise->temp);
    complete_float(&s->top_p, c->gen_top_p, otherwise->top_p);
    complete_float(&s->min_p, c->gen_min_p, otherwise->min_p);
    complete_float(&s->repeat_penalty, c->gen_repeat_penalty, otherwise->repeat_penalty);
    complete_float(&s->presence_penalty, NAN, otherwise->presence_penalty);
    complete_float(&s->frequency_penalty, NAN, otherwise->frequency_penalty);
}

sl_sampling sl_model_sampling(const sl_model *model) {
    const sl_sampling otherwise = sl_sampling_default();
    sl_sampling s = sl_generation_default().sampling;
    sl_sampling_complete(model, &otherwise, &s);
    return s;
}
