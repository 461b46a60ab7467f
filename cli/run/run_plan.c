// cli/run/run_plan.c - the attention plans of a run: those that flags, a profile or the caller request, and the choice of auto.
#include "cli/run/run_plan.h"
#include "attention/auto.h"
#include "cli/attn/attn_list.h"
#include "cli/output/progress_bar.h"
#include "cli/run/attn_flags.h"
#include "cli/run/load_model.h"
#include "cli/watch.h"

#include <limits.h>

// ---- decoding ----

static int choose_plan(cli_run *run, const sl_attn_plan *wanted, int n_kv, int quiet, sl_attn_plan *out, sl_error *err) {
    if (run->options->model.comm && sl_auto_in_plan(wanted))
        return sl_fail(
            err, SL_ERR_ARG,
            "auto cannot be used with --tensor-parallel-size %d, because each rank would choose from its own times; name "
            "a method",
            run->options->model.tensor_parallel);
    return cli_auto_choose_plan(&run->attn_auto, &run->options->attention, run->device, sl_model_config(run->model), wanted,
                                run->n_sequences, n_kv, quiet, out, err);
}

int cli_run_choose_plan(cli_run *run, const sl_attn_plan *listed, sl_attn_plan *out, sl_error *err) {
    return choose_plan(run, listed, run->n_kv, 0, out, err);
}

// Makes `wanted` the requested plan, lets auto choose, and sets the result in the engine. After an error the run is unchanged.
static int apply_plan(cli_run *run, sl_attn_plan *wanted, sl_error *err) {
    sl_attn_plan plan;
    int rc = choose_plan(run, wanted, run->n_kv, 1, &plan, err);
    if (!rc) rc = sl_engine_set_plan(run->engine, &plan, err);
    if (!rc) rc = cli_watch_buckets(run->engine, err);
    if (rc) {
        sl_attn_plan_free(&plan);
        sl_attn_plan_free(wanted);
        return rc;
    }
    sl_attn_plan_free(&run->requested);
    sl_attn_plan_free(&run->plan);
    run->requested = *wanted, run->plan = plan;
    return 0;
}

// The plan of a text with one method for all layers; text NULL: the plan of the flags. The caller frees *out, also after an
// error.
static int read_plan(const cli_run *run, const char *text, sl_attn_plan *out, sl_error *err) {
    sl_attn_spec spec;
    *out = (sl_attn_plan){.n_layers = run->plan.n_layers};
    if (!text) return cli_plan_decode(&run->options->attention, &run->profile, &spec, out, err);
    int rc = sl_attn_parse(text, &spec, err);
    return rc ? rc : sl_attn_plan_init(out, out->n_layers, &spec, err);
}

int cli_run_set_attention(cli_run *run, const char *text, sl_error *err) {
    static const cli_list no_rules = {0};
    return cli_run_set_attention_but(run, text, &no_rules, err);
}

int cli_run_set_attention_but(cli_run *run, const char *text, const cli_list *rules, sl_error *err) {
    sl_attn_plan plan;
    int rc = read_plan(run, text, &plan, err);
    for (int i = 0; !rc && i < rules->n; i++) rc = sl_attn_plan_set(&plan, "attn_layer", rules->items[i], err);
    if (!rc) return apply_plan(run, &plan, err);
    sl_attn_plan_free(&plan);
    return rc;
}

// ---- prefill ----

// What auto in `wanted` means for the current prompt; before the first prompt, and without auto, dense.
static int choose_prefill(cli_run *run, const sl_attn_plan *wanted, sl_attn_spec *out, sl_error *err) {
    *out = (sl_attn_spec){.method = &sl_method_dense};
    if (!sl_auto_in_plan(wanted)) return 0;
    return cli_auto_choose_prefill(&run->attn_auto, &run->options->attention, run->device, sl_model_config(run->model),
                                   &run->profile, run->n_kv == INT_MAX ? 0 : run->n_kv, out, err);
}

// *plan: `wanted`, with auto replaced by the choice for the current prompt. The caller frees it.
static int choose_prefill_plan(cli_run *run, const sl_attn_plan *wanted, sl_attn_spec *choice, sl_attn_plan *plan, int *segment,
                               sl_error *err) {
    int from_profile = sl_auto_in_plan(wanted) && run->profile.n_ranges && !run->options->attention.prefill_segment_given;
    int rc = choose_prefill(run, wanted, choice, err);
    if (!rc) rc = sl_attn_plan_copy(plan, wanted, err);
    if (rc) return rc;
    for (int i = 0; i < plan->n_layers; i++)
        if (plan->layer[i].method == &sl_method_auto) plan->layer[i] = *choice;
    *segment = from_profile ? run->profile.segment : run->options->attention.prefill_segment;
    return 0;
}

// Replaces auto in `wanted` by the choice for the current prompt, and sets the result in the engine. After an error
// run->prefill is unchanged.
static int use_prefill(cli_run *run, const sl_attn_plan *wanted, sl_error *err) {
    sl_attn_spec choice;
    sl_attn_plan plan;
    int segment, rc = choose_prefill_plan(run, wanted, &choice, &plan, &segment, err);
    if (rc) return rc;
    rc = sl_engine_set_prefill(run->engine, &plan, segment, err);
    if (rc) {
        sl_attn_plan_free(&plan);
        return rc;
    }
    sl_attn_plan_free(&run->prefill);
    run->prefill = plan, run->prefill_auto = choice;
    return 0;
}

int cli_run_set_prefill(cli_run *run, const char *text, const cli_list *rules, sl_error *err) {
    sl_attn_spec spec;
    sl_attn_plan wanted = {.n_layers = sl_model_config(run->model)->n_layers};
    int rc = text ? cli_attn_parse("--attn-prefill", text, &spec, err)
                  : cli_plan_prefill(&run->options->attention, &run->profile, &wanted, err);
    if (!rc && text) rc = sl_attn_plan_init(&wanted, wanted.n_layers, &spec, err);
    for (int i = 0; !rc && rules && i < rules->n; i++) {
        rc = cli_check_prefill_rule(&run->options->attention, rules->items[i], err);
        if (!rc) rc = sl_attn_plan_set(&wanted, "attn_prefill_layer", rules->items[i], err);
    }
    if (!rc) rc = use_prefill(run, &wanted, err);
    if (rc) {
        sl_attn_plan_free(&wanted);
        return rc;
    }
    sl_attn_plan_free(&run->requested_prefill);
    run->requested_prefill = wanted;
    return 0;
}

// The plan for prefill of a text with one method for all layers; text NULL: of the flags. The caller frees *out, also after an
// error.
static int read_prefill(const cli_run *run, const char *text, sl_attn_plan *out, sl_error *err) {
    sl_attn_spec spec;
    *out = (sl_attn_plan){.n_layers = run->plan.n_layers};
    if (!text) return cli_plan_prefill(&run->options->attention, &run->profile, out, err);
    int n_layers = out->n_layers, rc = sl_attn_parse(text, &spec, err);
    *out = (sl_attn_plan){0};
    return rc ? rc : sl_attn_plan_init(out, n_layers, &spec, err);
}

int cli_run_make_plans(cli_run *run, const char *attn, const char *prefill, int n, int quiet, cli_plans *out, sl_error *err) {
    sl_attn_plan wanted;
    sl_attn_spec choice;
    *out = (cli_plans){0};
    run->n_kv = n;
    int rc = read_plan(run, attn, &wanted, err);
    if (!rc) rc = choose_plan(run, &wanted, n, quiet, &out->decode, err);
    sl_attn_plan_free(&wanted);
    if (rc) return rc;
    out->has_decode = 1;
    rc = read_prefill(run, prefill, &wanted, err);
    if (!rc) rc = choose_prefill_plan(run, &wanted, &choice, &out->prefill, &out->segment, err);
    sl_attn_plan_free(&wanted);
    return rc;
}

void cli_plans_free(cli_plans *p) {
    sl_attn_plan_free(&p->decode);
    sl_attn_plan_free(&p->prefill);
}

// ---- the length of the prompt ----

// --attn-prefill=auto: sets the choice for the current prompt, and reports it on stderr if it is another one than before.
static int set_prompt_prefill(cli_run *run, sl_error *err) {
    const sl_attn_spec before = run->prefill_auto;
    char text[256];
    if (!sl_auto_in_plan(&run->requested_prefill)) return 0;
    int rc = use_prefill(run, &run->requested_prefill, err);
    if (rc || sl_attn_same(&before, &run->prefill_auto)) return rc;
    sl_attn_format(&run->prefill_auto, text, sizeof text);
    cli_say("attn-prefill auto: %s for %d tokens", text, run->n_kv);
    return 0;
}

int cli_run_set_prompt(cli_run *run, int n_tokens, sl_error *err) {
    sl_attn_plan plan;
    run->n_kv = n_tokens;
    int rc = set_prompt_prefill(run, err);
    if (rc || !sl_auto_in_plan(&run->requested)) return rc;
    rc = choose_plan(run, &run->requested, n_tokens, 0, &plan, err);
    if (!rc) rc = sl_engine_set_plan(run->engine, &plan, err); // does nothing for an equal plan
    if (!rc) rc = cli_watch_buckets(run->engine, err);
    if (rc) {
        sl_attn_plan_free(&plan);
        return rc;
    }
    sl_attn_plan_free(&run->plan);
    run->plan = plan;
    return 0;
}

// ---- the first plans ----

// Reads --attn-profile for the loaded model.
static int read_profile(cli_run *run, sl_error *err) {
    const cli_model_options *model = &run->options->model;
    const char *path = run->options->attention.attn_profile;
    char name[256];
    if (!path) return 0;
    int rc = sl_device_name(run->device, name, sizeof name, err);
    if (!rc)
        rc = cli_attn_profile_read(path, model->path, cli_is_dummy(model), &model->rope, sl_model_config(run->model)->n_layers,
                                   name, &run->profile, err);
    if (!rc && *run->profile.calibration) run->attn_auto.calibration = run->profile.calibration;
    return rc;
}

int cli_run_list_plans(cli_run *run, sl_error *err) {
    sl_attn_spec spec;
    run->requested.n_layers = sl_model_config(run->model)->n_layers;
    int rc = read_profile(run, err);
    return rc ? rc : cli_plan_decode(&run->options->attention, &run->profile, &spec, &run->requested, err);
}

// Reads the table of --attn-prefill=auto, or measures one, which needs the memory of the engine that is not open yet.
static int open_prefill_table(cli_run *run, sl_error *err) {
    sl_attn_plan wanted = {.n_layers = sl_model_config(run->model)->n_layers};
    int rc = cli_plan_prefill(&run->options->attention, &run->profile, &wanted, err);
    if (!rc) rc = choose_prefill(run, &wanted, &run->prefill_auto, err);
    sl_attn_plan_free(&wanted);
    return rc;
}

int cli_run_choose_first(cli_run *run, sl_error *err) {
    run->n_kv = INT_MAX;
    int rc = choose_plan(run, &run->requested, run->n_kv, 1, &run->plan, err);
    return rc ? rc : open_prefill_table(run, err);
}
