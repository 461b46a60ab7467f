// cli/run/sampling_flags.c - see sampling_flags.h.
#include "cli/run/sampling_flags.h"

#include <math.h>
#include <stdlib.h>

static int add_bias(sl_sampling *s, int32_t id, float value, sl_error *err) {
    sl_logit_bias *bias = realloc((void *)s->bias, (s->n_bias + 1) * sizeof *bias);
    if (!bias) return sl_fail(err, SL_ERR_MEMORY, "--logit-bias: out of memory");
    bias[s->n_bias++] = (sl_logit_bias){.id = id, .bias = value};
    s->bias = bias;
    return 0;
}

// ID+BIAS or ID-BIAS, as in llama.cpp.
static int parse_bias(const char *text, sl_logit_bias *out, sl_error *err) {
    char *sign, *end = "?";
    long id = strtol(text, &sign, 10);
    double bias = 0;
    if (sign != text && (*sign == '+' || *sign == '-') && sign[1] != '+' && sign[1] != '-') bias = strtod(sign, &end);
    if (*end || end == sign + 1 || id < 0 || id > INT32_MAX || isnan(bias))
        return sl_fail(err, SL_ERR_ARG, "--logit-bias %.60s: expected ID+BIAS or ID-BIAS, for example 15043+1.5", text);
    *out = (sl_logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return 0;
}

int cli_check_biases(const cli_sampling_options *o, sl_error *err) {
    sl_logit_bias bias;
    int rc = 0;
    for (int i = 0; !rc && i < o->logit_bias.n; i++) rc = parse_bias(o->logit_bias.items[i], &bias, err);
    return rc;
}

static float given(int is_given, double flag) {
    return is_given ? (float)flag : NAN;
}

int cli_make_sampling(const cli_sampling_options *o, const sl_model *model, sl_sampling *out, sl_error *err) {
    const sl_config *c = sl_model_config(model);
    const sl_sampling of_table = {.temp = (float)o->temp,
                                  .top_k = o->top_k,
                                  .top_p = (float)o->top_p,
                                  .min_p = (float)o->min_p,
                                  .repeat_penalty = (float)o->repeat_penalty,
                                  .repeat_last_n = o->repeat_last_n};
    *out = (sl_sampling){
        .temp = given(o->temp_given, o->temp),
        .top_k = o->top_k_given ? o->top_k : SL_UNSET,
        .top_p = given(o->top_p_given, o->top_p),
        .min_p = given(o->min_p_given, o->min_p),
        .repeat_penalty = given(o->repeat_penalty_given, o->repeat_penalty),
        .repeat_last_n = o->repeat_last_n_given ? o->repeat_last_n : SL_UNSET,
        .presence_penalty = (float)o->presence_penalty,
        .frequency_penalty = (float)o->frequency_penalty,
        .seed = o->seed,
    };
    sl_sampling_complete(model, &of_table, out);
    int rc = 0;
    for (int i = 0; !rc && i < o->logit_bias.n; i++) {
        sl_logit_bias bias = {0};
        rc = parse_bias(o->logit_bias.items[i], &bias, err);
        if (!rc) rc = add_bias(out, bias.id, bias.bias, err);
    }
    for (int32_t id = 0; !rc && o->ignore_eos && id < c->n_vocab; id++)
        if (sl_model_is_eos(model, id)) rc = add_bias(out, id, -INFINITY, err);
    return rc ? rc : sl_sampling_check(out, c->n_vocab, err);
}
