// cli/tune/cmd_tune.c - sleigh tune: finds attention settings for a model on prompts, and writes them to a profile. This
// file has the flags, the order of work and the profile; see tune.h.
#include "attention/auto.h"
#include "cli/commands.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/tune/tune.h"
#include "kv/kv.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// ---- flags ----

void tune_take_flags(tune *t, const cli_tune_flags *o) {
    *t = (tune){.o = *o, .run_options = *o->run, .task_options = *o->tasks, .tune_options = *o->tune};
    t->o.run = &t->run_options, t->o.tasks = &t->task_options, t->o.tune = &t->tune_options;
}

static int has_part(const tune *t, const char *part) {
    size_t n = strlen(part);
    for (const char *p = t->o.tune->parts; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strcspn(p, ",") == n && !strncmp(p, part, n)) return 1;
    return 0;
}

static int check_parts(const cli_tune_flags *o, sl_error *err) {
    for (const char *p = o->tune->parts; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        int n = (int)strcspn(p, ",");
        if (!(n == 7 && !strncmp(p, "prefill", 7)) && !(n == 7 && !strncmp(p, "budgets", 7)))
            return sl_fail(err, SL_ERR_ARG, "--parts %.60s: expected prefill, budgets or both", o->tune->parts);
    }
    return 0;
}

static int check_flags(const cli_tune_flags *o, sl_error *err) {
    static const char *const of_tasks[] = {"--task", "--haystack", NULL};
    const char *other = cli_given_flag(o->given, of_tasks);
    if (!o->output->path)
        return sl_fail(err, SL_ERR_ARG, "flag --out is required: give the profile to write, for example --out tiny.json");
    if (o->tasks->jsonl && other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with --jsonl", other);
    if (o->tasks->jsonl && !strcmp(o->tasks->jsonl, "-"))
        return sl_fail(err, SL_ERR_ARG, "--jsonl -: expected a file, because the run may be continued");
    if (o->tune->measure[0] == 'k' && !o->tasks->jsonl)
        return sl_fail(err, SL_ERR_ARG, "--measure kl needs --jsonl FILE with lines {\"text\"}");
    if (o->tasks->lengths.n > CLI_PROFILE_RANGES)
        return sl_fail(err, SL_ERR_ARG, "--length: expected at most %d lengths", CLI_PROFILE_RANGES);
    int rc = check_parts(o, err);
    return rc ? rc : cli_check_chat_flags(o->chat, o->given, err);
}

static int check_candidates(tune *t, sl_error *err) {
    static const char *const grid[] = {"sample:alpha_c={0.8,0.9,0.95,0.98}:alpha_s={0.8,0.9,0.95,0.98}:chunk_n={1,2,4}"};
    const cli_list standard = {.items = (const char **)grid, .n = 1};
    const cli_list *given = &t->o.run->attention.attn_prefills;
    int rc = cli_attn_list_parse("--attn-prefill", given->n ? given : &standard, &t->candidates, err);
    if (rc) return rc;
    for (int i = 0; i < t->candidates.n; i++) {
        const sl_attn_spec *s = &t->candidates.specs[i];
        if (s->method == &sl_method_dense || tune_estimator_blocks(s, 1, SL_PAGE) < 0)
            return sl_fail(err, SL_ERR_ARG,
                           "--attn-prefill %s: expected sample, vertical-slash, xattention, streaming or threshold, whose work "
                           "is known; dense is always measured",
                           t->candidates.names[i]);
    }
    return 0;
}

static int check_method(tune *t, sl_error *err) {
    const char *attn = t->o.run->attention.attn;
    int rc = sl_attn_parse(attn, &t->method, err);
    if (!rc && (t->method.plus || sl_attn_param_index(t->method.method, "S") < 0 || !t->method.method->cpu))
        rc = sl_fail(err, SL_ERR_ARG, "--attn %.100s: expected one method with a number of draws S", attn);
    return rc;
}

static int check_lengths(tune *t, sl_error *err) {
    sl_config config;
    cli_ints *l = &t->task_options.lengths;
    int rc = cli_read_config(t->o.run, &config, err);
    cli_sort_ints(l);
    for (int i = 0; !rc && i < l->n; i++) {
        if (l->at[i] > config.n_ctx)
            rc = sl_fail(err, SL_ERR_ARG, "--length %d: expected at most %d, %s", l->at[i], config.n_ctx,
                         cli_limit_text(&config));
        else if (i && l->at[i] == l->at[i - 1])
            rc = sl_fail(err, SL_ERR_ARG, "--length %d is named twice", l->at[i]);
    }
    return rc;
}

// The table of --auto must be readable; the profile names it by its full path.
static int check_calibration(const tune *t, char path[CLI_PROFILE_PATH], sl_error *err) {
    const char *calibration = t->o.run->attention.calibration;
    sl_auto_table table;
    *path = 0;
    if (!calibration) return 0;
    int rc = sl_auto_read(calibration, 0, &table, err);
    sl_auto_free(&table);
    if (!rc && !realpath(calibration, path)) rc = sl_fail(err, SL_ERR_IO, "--calibration %s: %s", calibration, strerror(errno));
    return rc;
}

// ---- the run ----

// What this command chooses in place of flags that are not given.
static void set_defaults(tune *t) {
    const cli_tune_flags *o = &t->o;
    cli_list *stops = &t->run_options.limits.stops;
    if (!o->tasks->samples) t->task_options.samples = 16;
    if (!o->tune->score) t->tune_options.score = 32;
    if (!o->run->attention.attn_given) t->run_options.attention.attn = "santa-prop:S=8";
    t->newline[0] = "\n"; // answers in the plain wording are one line
    if (!o->tasks->jsonl && !o->chat->is_on && !stops->n) *stops = (cli_list){.items = t->newline, .n = 1};
}

static int prepare(tune *t, sl_error *err) {
    const cli_tune_flags *o = &t->o;
    const char *path = o->output->path;
    set_defaults(t);
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = cli_check_device(&o->run->device, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc) rc = check_candidates(t, err);
    if (!rc) rc = check_method(t, err);
    if (!rc) rc = check_lengths(t, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &t->prompter.chat, err);
    int n = snprintf(t->log_path, sizeof t->log_path, "%s.log", path ? path : "");
    if (!rc && n >= (int)sizeof t->log_path) rc = sl_fail(err, SL_ERR_ARG, "--out: the path is too long");
    return rc;
}

// Opens an engine for the longest prompt, with pages for the contexts that the budgets keep.
static int open_engine(tune *t, sl_error *err) {
    size_t n_ctx = 0, n_pages = 0, limit = (size_t)sl_model_config(t->run.model)->n_ctx;
    for (int i = 0; i < t->n_prompts; i++) {
        const tune_prompt *p = &t->prompts[i];
        size_t n = p->ids.n + (p->item ? (size_t)p->item->n_predict : 0);
        if (n > limit) n = limit;
        if (n > n_ctx) n_ctx = n;
        if (has_part(t, "budgets") && p->length == tune_first_length(t)) n_pages += (n + SL_PAGE - 1) / SL_PAGE + 1;
    }
    size_t per_sequence = (n_ctx + SL_PAGE - 1) / SL_PAGE;
    return cli_run_open_engine(&t->run, (int)n_ctx, (int)((n_pages + per_sequence - 1) / per_sequence) + 1, err);
}

static int plan_work(const tune *t) { // an upper bound of the measurements
    int n = 0;
    for (int i = 0; i < t->n_prompts && has_part(t, "prefill"); i++) n += t->prompts[i].is_check ? 2 : 1 + t->candidates.n;
    if (has_part(t, "budgets")) n += t->o.tune->iterations * t->o.tune->episodes;
    for (int i = 0; i < t->n_prompts && has_part(t, "budgets"); i++)
        if (t->prompts[i].length == tune_first_length(t)) n += t->prompts[i].is_check ? 4 : t->o.tune->check ? 1 : 5;
    return n;
}

static int open_run(tune *t, sl_error *err) {
    const cli_tune_flags *o = &t->o;
    int rc = cli_run_open_model(&t->run, o->run, 1, err);
    if (rc) return rc;
    t->prompter.tok = sl_model_tokenizer(t->run.model);
    if (!t->prompter.tok)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the folder has no tokenizer, which tune needs", o->run->model.path);
    cli_model_name_of(t->run.model, o->run->model.path, &t->model);
    t->maker = eval_maker_of(o->tasks, o->chat->is_on, 1, &t->prompter);
    rc = tune_make_prompts(t, err);
    if (!rc) rc = open_engine(t, err);
    if (!rc) rc = sl_device_name(t->run.device, t->device, sizeof t->device, err);
    if (rc) return rc;
    t->run.sampling = (sl_sampling){.temp = 0, .top_p = 1, .repeat_penalty = 1, .seed = o->run->sampling.seed};
    return cli_timeline_open(&t->t, &t->run, 0, err);
}

static int write_profile(tune *t, json_t *prefill, json_t *decode, const char *calibration, sl_error *err) {
    char times[CLI_PROFILE_PATH];
    const cli_model_options *o = &t->o.run->model;
    json_t *model = cli_attn_profile_model(o->path, cli_is_dummy(o), &o->rope, err);
    if (!model) {
        json_decref(prefill), json_decref(decode);
        return SL_ERR_IO;
    }
    int rc =
        cli_attn_profile_write(t->o.output->path, model, prefill, decode, *calibration ? json_string(calibration) : NULL, err);
    cli_prefill_times_path(t->o.output->path, times);
    if (rc || !t->n_times) return rc;
    rc = cli_prefill_times_write(times, t->device, t->times, t->n_times, err);
    int crossover = cli_prefill_crossover(t->times, t->n_times);
    if (!rc && crossover == INT_MAX)
        cli_say("prefill: no length has a tuned method that is 5%% faster than dense prefill on %s", t->device);
    else if (!rc)
        cli_say("prefill: the tuned methods are at least 5%% faster than dense prefill from %d tokens on (%s)", crossover,
                t->device);
    return rc;
}

static int run(tune *t, sl_error *err) {
    char calibration[CLI_PROFILE_PATH];
    json_t *prefill = NULL, *decode = NULL;
    int rc = check_calibration(t, calibration, err);
    if (!rc) rc = open_run(t, err);
    if (!rc) rc = tune_open_log(t, err);
    if (rc) return rc;
    t->n_planned = plan_work(t);
    tune_open_table(t);
    cli_catch_interrupt(1);
    cli_progress_begin_run(&t->progress, "tune", "measurements", t->n_planned, 0, 0);
    if (has_part(t, "prefill")) rc = tune_prefill_part(t, &prefill, err);
    if (!rc && has_part(t, "budgets")) rc = tune_budgets_part(t, &decode, err);
    cli_progress_end(&t->progress);
    int end = cli_rows_end(&t->rows, rc ? NULL : err);
    if (!rc) rc = end;
    if (!rc) return write_profile(t, prefill, decode, calibration, err);
    json_decref(prefill), json_decref(decode);
    return rc;
}

int cmd_tune(const cli_tune_flags *o, sl_error *err) {
    tune t;
    tune_take_flags(&t, o);
    int rc = prepare(&t, err);
    if (!rc) rc = run(&t, err);
    tune_free_prompts(&t);
    cli_timeline_close(&t.t);
    cli_run_close(&t.run);
    if (t.log_file) fclose(t.log_file);
    eval_prompter_free(&t.prompter);
    eval_records_free(&t.records);
    cli_attn_list_free(&t.candidates);
    json_decref(t.log), json_decref(t.settings);
    return rc;
}
