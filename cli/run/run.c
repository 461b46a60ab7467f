// cli/run/run.c - see run.h.
#include "cli/run/run.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/attn_flags.h"
#include "cli/run/draft_flags.h"
#include "cli/run/grammar_flags.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/run/run_plan.h"
#include "cli/run/sampling_flags.h"
#include "cli/watch.h"

#include <stdlib.h>

// The observer of sparse prefills: the file of --stats, and run->prefill_into.
static void observe_prefill(void *ctx, const sl_prefill_record *r) {
    cli_run *run = ctx;
    int n_heads = sl_model_config(run->model)->n_heads;
    if (run->prefill_into) sl_prefill_report_add(&run->prefill_into[r->layer * n_heads + r->head], r->report);
    cli_stats_prefill(&run->stats, r);
}

static int new_engine(cli_run *run, int n_ctx, int n_sequences, sl_error *err) {
    cli_progress bar;
    sl_engine_options options = cli_engine_options(run->options, run->device);
    options.n_ctx = n_ctx, options.n_sequences = n_sequences, options.kv_tokens = run->options->device.kv_tokens;
    options.exact_below = run->exact_below, options.n_draft = run->drafts.n_draft, options.draft_weights = run->drafts.weights;
    options.draft_model = run->draft_model;
    options.progress = (sl_progress){.fn = cli_progress_update, .ctx = &bar};
    cli_progress_begin(&bar, "upload", "tensors");
    int rc = sl_engine_new_planned(run->model, &options, &run->plan, &run->engine, err);
    cli_progress_end(&bar);
    if (!rc && !run->said_trained)
        run->said_trained = cli_warn_trained(sl_model_config(run->model), sl_engine_n_ctx(run->engine));
    const char *draft = cli_draft(&run->options->drafts);
    if (!rc && draft) rc = sl_engine_check_draft(run->engine, draft, &run->plan, err);
    if (!rc) rc = cli_run_set_prefill(run, NULL, NULL, err);
    const sl_prefill_observer observer = {.fn = observe_prefill, .ctx = run, .n_rows = run->options->attention.prefill_check};
    if (!rc) rc = sl_engine_observe_prefill(run->engine, &observer, err);
    if (!rc) rc = cli_stats_observe(&run->stats, run->engine, err);
    return rc ? rc : cli_watch_buckets(run->engine, err);
}

static int open_model(cli_run *run, sl_error *err) {
    const cli_run_options *o = run->options;
    double start = sl_now_ms();
    sl_attn_spec spec;
    sl_config config;
    int rc = cli_need_model(&o->model, err);
    if (!rc) rc = cli_check_device(&o->device, err);
    if (!rc) rc = cli_exact_below(&o->attention, &run->exact_below, err);
    if (!rc) rc = cli_plan_decode(&o->attention, NULL, &spec, NULL, err);
    if (!rc) rc = cli_check_biases(&o->sampling, err);
    if (!rc) rc = cli_make_grammar(&o->grammar, &run->grammar, err);
    if (!rc) run->device = cli_pick_device(o, &spec, 1);
    if (!rc) rc = cli_draft_need(&o->drafts, &o->stats, run->device, &run->drafts, err);
    if (!rc) rc = cli_read_config(o, &config, err);
    if (!rc) rc = cli_stats_open(&run->stats, &o->stats, err);
    if (!rc) rc = cli_load_model(o, run->device, 0, &run->model, err);
    if (!rc) rc = cli_load_draft_model(&o->drafts, &run->draft_model, err);
    if (!rc) rc = cli_run_list_plans(run, err);
    run->load_ms = sl_now_ms() - start; // without a calibration, which only the first run with auto needs
    if (!rc) rc = cli_run_choose_first(run, err);
    return rc ? rc : cli_make_sampling(&o->sampling, run->model, &run->sampling, err);
}

int cli_run_open_model(cli_run *run, const cli_run_options *o, int n_sequences, sl_error *err) {
    *run = (cli_run){.options = o, .n_sequences = n_sequences};
    int rc = open_model(run, err);
    if (rc) cli_run_close(run);
    return rc;
}

int cli_run_open_engine(cli_run *run, int n_ctx, int n_sequences, sl_error *err) {
    double start = sl_now_ms();
    int rc = new_engine(run, n_ctx, n_sequences, err);
    run->load_ms += sl_now_ms() - start;
    if (rc) cli_run_close(run);
    return rc;
}

int cli_run_open(cli_run *run, const cli_run_options *o, int n_sequences, sl_error *err) {
    int rc = cli_run_open_model(run, o, n_sequences, err);
    return rc ? rc : cli_run_open_engine(run, o->limits.n_ctx, n_sequences, err);
}

int cli_run_finish(cli_run *run, sl_error *err) {
    return cli_stats_close(&run->stats, err);
}

void cli_run_close(cli_run *run) {
    cli_stats_close(&run->stats, NULL);
    sl_engine_free(run->engine);
    sl_attn_plan_free(&run->requested);
    sl_attn_plan_free(&run->plan);
    sl_attn_plan_free(&run->requested_prefill);
    sl_attn_plan_free(&run->prefill);
    cli_auto_close(&run->attn_auto);
    cli_attn_profile_free(&run->profile);
    free((void *)run->sampling.bias);
    sl_grammar_free(run->grammar);
    sl_model_free(run->draft_model);
    sl_model_free(run->model);
    *run = (cli_run){0};
}

int cli_run_set_ctx(cli_run *run, int n_ctx, sl_error *err) {
    int before = sl_engine_n_ctx(run->engine);
    sl_engine_free(run->engine); // before the new engine: two KV caches may not fit in memory
    run->engine = NULL;
    int n = run->n_sequences, rc = new_engine(run, n_ctx, n, err);
    if (!rc) return 0;
    // Only one rank may have failed, and the others do not try again with it.
    if (run->options->model.comm || new_engine(run, before, n, NULL)) run->engine = NULL;
    return rc;
}
