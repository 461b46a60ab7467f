// cli/run.c - see run.h.
#include "cli/run.h"
#include "cli/attn/attn_list.h"
#include "base/philox.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/watch.h"
#include "models/source.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

// ---- checks before anything is loaded ----

int cli_check_device(const cli_options *o, sl_error *err) {
    return sl_device_check(o->device, err);
}

int cli_need_model(const cli_options *o, sl_error *err) {
    return o->model ? 0
                    : sl_fail(err, SL_ERR_ARG,
                              "flag --model is required: give the folder or the name of a model, for example -m tiny");
}

int cli_is_parallel(const cli_options *o) {
    return o->prompts || (o->jsonl && CLI_GIVEN(o, parallel));
}

// ---- the model and ids for it ----

static int check_tokenizer(const cli_options *o, const sl_model *model, sl_error *err) {
    if (sl_model_tokenizer(model)) return 0;
    if (o->stops.n) return sl_fail(err, SL_ERR_ARG, "flag --stop needs a tokenizer; the folder of this model has none");
    if (o->ids || o->random_prompt) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "the folder of this model has no tokenizer, so text is not possible; generate takes --ids FILE or "
                   "--random-prompt N");
}

// Makes dummy weights and packed weights in host memory. A GPU makes its dummy weights itself.
static int make_weights(const cli_options *o, const char *device, sl_model *model, sl_error *err) {
    cli_progress bar;
    sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    if (sl_model_is_dummy(model) && sl_device_is_gpu(device)) return 0;
    cli_progress_begin(&bar, sl_model_is_dummy(model) ? "dummy weights" : "unpack", "MiB");
    int rc = sl_model_materialise(model, o->threads, &progress, NULL, err);
    cli_progress_end(&bar);
    return rc;
}

sl_rope_options cli_rope_options(const cli_options *o) {
    return (sl_rope_options){.scaling = o->rope_scaling,
                             .theta = o->rope_theta,
                             .factor = o->rope_scale,
                             .original_ctx = o->rope_original_ctx,
                             .low_freq_factor = o->rope_low_freq_factor,
                             .high_freq_factor = o->rope_high_freq_factor,
                             .attention_factor = o->yarn_attention_factor,
                             .beta_fast = o->yarn_beta_fast,
                             .beta_slow = o->yarn_beta_slow};
}

const char *cli_limit_text(const sl_config *config) {
    if (config->window && config->n_ctx == config->window)
        return "this model's sliding_window: Sleigh attends to every token, so the context must fit into the window";
    return config->n_ctx > config->n_trained
               ? "because fp32 represents no larger position exactly"
               : "this model's max_position_embeddings (--rope-scaling runs it past its trained context)";
}

int cli_warn_trained(const sl_config *config, int n_ctx) {
    if (n_ctx <= config->n_trained) return 0;
    char rope[256];
    sl_config_describe_rope(config, rope, sizeof rope);
    cli_say("warning: a context of %d tokens, and this model was trained on %d; RoPE: %s", n_ctx, config->n_trained, rope);
    return 1;
}

int cli_read_config(const cli_options *o, sl_config *out, sl_error *err) {
    const sl_rope_options rope = cli_rope_options(o);
    int rc = sl_config_load(sl_source_documents(o->source), out, err);
    if (!rc) rc = sl_config_change_rope(out, &rope, err);
    if (rc) return rc;
    if (o->n_ctx > out->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--ctx-size %d: expected 1 to %d, %s", o->n_ctx, out->n_ctx, cli_limit_text(out));
    if (o->random_prompt > out->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--random-prompt %d: expected 1 to %d, %s", o->random_prompt, out->n_ctx,
                       cli_limit_text(out));
    return 0;
}

static int lock_part(const void *data, size_t n, const char *path, sl_error *err) {
    struct rlimit limit;
    char size[32], most[32];
    if (!mlock(data, n)) return 0;
    int number = errno;
    if (getrlimit(RLIMIT_MEMLOCK, &limit)) limit.rlim_cur = 0;
    return sl_fail(err, SL_ERR_MEMORY,
                   "--mlock: cannot lock %s of %s in memory: %s; the limit of locked memory is %s (ulimit -l)",
                   cli_bytes((double)n, size), path, strerror(number),
                   limit.rlim_cur == RLIM_INFINITY ? "infinite" : cli_bytes((double)limit.rlim_cur, most));
}

// --mlock: reads the files of weights and keeps them in memory, until they are unmapped. Of a GGUF file with packed weights,
// the tensors are kept. A GPU holds a copy of its own.
static int lock_weights(const cli_options *o, const char *device, const sl_tensors *tensors, sl_error *err) {
    size_t unpacked;
    int rc = 0;
    if (!o->mlock || sl_device_is_gpu(device)) return 0;
    sl_tensors_memory(tensors, &unpacked);
    for (int i = 0; !rc && !unpacked && i < sl_tensors_n_files(tensors); i++) {
        const sl_tensor_file *f = sl_tensors_file(tensors, i);
        rc = lock_part(f->map, f->size, f->path, err);
    }
    for (int i = 0; !rc && unpacked && i < sl_tensors_count(tensors); i++) {
        const sl_tensor *t = sl_tensors_at(tensors, i);
        rc = lock_part(t->data, t->n_bytes, t->file, err);
    }
    return rc;
}

static void say_line(void *ctx, const char *line) {
    (void)ctx;
    cli_say("%s", line);
}

sl_log cli_log(void) {
    return (sl_log){.fn = say_line};
}

int cli_load_model(const cli_options *o, const char *device, unsigned flags, sl_model **out, sl_error *err) {
    int is_dummy = !strcmp(o->load_format, "dummy");
    const sl_model_options options = {.flags = flags | (is_dummy ? SL_MODEL_DUMMY : SL_MODEL_PACKED),
                                      .chat_template = o->chat_template,
                                      .rope = cli_rope_options(o),
                                      .log = cli_log()};
    int rc = sl_model_load(o->model, &options, out, err);
    if (rc) return rc;
    if (is_dummy && !(flags & SL_MODEL_NO_TOKENIZER)) rc = check_tokenizer(o, *out, err);
    if (!rc) rc = cli_watch(sl_model_tensors(*out), err);
    if (!rc) rc = make_weights(o, device, *out, err);
    if (!rc) rc = lock_weights(o, device, sl_model_tensors(*out), err);
    if (!rc) return 0;
    sl_model_free(*out);
    *out = NULL;
    return rc;
}

int cli_read_ids(const cli_options *o, const sl_config *c, sl_ids *ids, sl_error *err) {
    sl_text text = {0};
    int rc = cli_read_file(o->ids, &text, err);
    if (!rc) rc = cli_parse_ids(o->ids, &text, ids, err);
    sl_text_free(&text);
    if (!rc && ids->n == 0) rc = sl_fail(err, SL_ERR_FORMAT, "--ids %s: expected token ids, found none", o->ids);
    for (size_t i = 0; !rc && i < ids->n; i++)
        if (ids->data[i] >= c->n_vocab)
            rc = sl_fail(err, SL_ERR_FORMAT, "--ids %s: id %d at index %zu; expected 0 to %d, the ids of this model", o->ids,
                         ids->data[i], i, c->n_vocab - 1);
    return rc;
}

int cli_random_ids(uint32_t seed, uint32_t sequence, int n, int n_vocab, sl_ids *ids, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        const sl_rng_id id = {.seed = seed, .sequence = sequence, .position = (uint32_t)i};
        rc = sl_ids_push(ids, (int32_t)(sl_rng_u64(&id, 0, SL_STREAM_PROMPT) % (uint64_t)n_vocab), err);
    }
    return rc;
}

// ---- attention ----

static int has_param(const sl_attn_method *m, const char *name) {
    for (const sl_attn_param *p = m->params; p && p->name; p++)
        if (!strcmp(p->name, name)) return 1;
    return 0;
}

// Parses the method of a flag and applies the --PARAM flags that it has.
static int parse_attn(const cli_options *o, const char *flag, const char *text, sl_attn_spec *spec, unsigned char *used,
                      sl_error *err) {
    int rc = cli_attn_parse(flag, text, spec, err);
    for (int i = 0; !rc && i < o->n_params; i++) {
        if (!has_param(spec->method, o->params[i].name)) continue;
        used[i] = 1;
        rc = sl_attn_set(spec, o->params[i].name, o->params[i].value, err);
    }
    return rc;
}

// 1: the text `method[:k=v]*` sets parameter `name`.
static int spec_sets(const char *spec, const char *name) {
    size_t n = strlen(name);
    for (const char *p = strchr(spec, ':'); p; p = strchr(p + 1, ':'))
        if (!strncmp(p + 1, name, n) && p[1 + n] == '=') return 1;
    return 0;
}

// Appends to a layer rule the --PARAM flags that its method has and that the rule does not set. sl_attn_plan_set reports errors
// in the rule.
static int complete_rule(const cli_options *o, const char *rule, sl_text *out, unsigned char *used, sl_error *err) {
    const char *spec_text = strchr(rule, '=');
    sl_attn_spec spec;
    int rc = sl_text_append(out, rule, strlen(rule), err);
    if (rc || !spec_text || sl_attn_parse(spec_text + 1, &spec, NULL)) return rc;
    for (int i = 0; !rc && i < o->n_params; i++) {
        const cli_param *p = &o->params[i];
        if (!has_param(spec.method, p->name)) continue;
        used[i] = 1;
        if (spec_sets(spec_text, p->name)) continue;
        rc = sl_text_append(out, ":", 1, err);
        if (!rc) rc = sl_text_append(out, p->name, strlen(p->name), err);
        if (!rc) rc = sl_text_append(out, "=", 1, err);
        if (!rc) rc = sl_text_append(out, p->value, strlen(p->value), err);
    }
    return rc;
}

// Checks the method of a rule of --attn-prefill-layer. sl_attn_plan_set reports errors before the method.
static int check_prefill_rule(const cli_options *o, const char *rule, sl_error *err) {
    const char *text = strchr(rule, '=');
    sl_attn_spec spec;
    int rc = text ? cli_attn_parse("--attn-prefill-layer", text + 1, &spec, err) : 0;
    if (!rc && text) rc = cli_check_auto(o, "--attn-prefill-layer", &spec, err);
    if (rc || !text || spec.method == &sl_method_auto || strstr(sl_attn_phases(spec.method), "prefill")) return rc;
    return sl_fail(err, SL_ERR_ARG, "--attn-prefill-layer %.64s: a method for decoding, which does not prefill", rule);
}

// Applies a rule of --attn-layer or --attn-prefill-layer; option: its name in messages. plan: NULL, or the plan to change.
static int apply_rule(const cli_options *o, const char *option, const char *text, sl_attn_plan *plan, unsigned char *used,
                      sl_error *err) {
    sl_text rule = {0};
    int rc = strcmp(option, "attn_prefill_layer") ? 0 : check_prefill_rule(o, text, err);
    if (!rc) rc = complete_rule(o, text, &rule, used, err);
    if (!rc && plan) rc = sl_attn_plan_set(plan, option, rule.data, err);
    sl_text_free(&rule);
    return rc;
}

// A flag for all layers, and the rules of its flag for layers.
typedef struct attn_flags {
    const char *flag, *text, *option; // option: the name of the rules in messages
    const cli_list *rules;
    const sl_attn_plan *profiled; // the plan of --attn-profile, in place of `text`; NULL: none
} attn_flags;

// plan: NULL, or the plan to fill, whose n_layers is set.
static int apply_flags(const cli_options *o, const attn_flags *f, sl_attn_spec *spec, sl_attn_plan *plan, unsigned char *used,
                       sl_error *err) {
    int rc = parse_attn(o, f->flag, f->text, spec, used, err);
    if (!rc && plan) {
        int n_layers = plan->n_layers;
        *plan = (sl_attn_plan){0};
        rc = f->profiled ? sl_attn_plan_copy(plan, f->profiled, err) : sl_attn_plan_init(plan, n_layers, spec, err);
    }
    for (int i = 0; !rc && i < f->rules->n; i++) rc = apply_rule(o, f->option, f->rules->items[i], plan, used, err);
    return rc;
}

// The method of --attn-prefill, else auto if --attn-profile has methods for prefill; profile: NULL, or that of --attn-profile.
static int apply_prefill(const cli_options *o, const cli_attn_profile *profile, sl_attn_plan *plan, unsigned char *used,
                         sl_error *err) {
    int by_profile = profile && profile->n_ranges && o->command & CLI_DECODES && !CLI_GIVEN(o, attn_prefill);
    const attn_flags flags = {.flag = "--attn-prefill",
                              .text = by_profile ? "auto" : o->attn_prefill,
                              .option = "attn_prefill_layer",
                              .rules = &o->attn_prefill_layers};
    sl_attn_spec spec;
    return apply_flags(o, &flags, &spec, plan, used, err);
}

// Checks --attn, --attn-layer and --PARAM as far as possible without a model. profile: NULL, or that of --attn-profile, whose
// plan takes the place of --attn if this flag is not given. plan: NULL, or the plan to fill.
static int apply_attention(const cli_options *o, const cli_attn_profile *profile, sl_attn_spec *spec, sl_attn_plan *plan,
                           sl_error *err) {
    int is_profiled = profile && profile->decode.n_layers && o->command & CLI_DECODES && !CLI_GIVEN(o, attn);
    const attn_flags flags = {.flag = "--attn",
                              .text = o->attn,
                              .option = "attn_layer",
                              .rules = &o->attn_layers,
                              .profiled = is_profiled ? &profile->decode : NULL};
    unsigned char used[CLI_MAX_PARAMS] = {0};
    int rc = apply_flags(o, &flags, spec, plan, used, err);
    if (!rc) rc = apply_prefill(o, NULL, NULL, used, err);
    for (int i = 0; !rc && i < o->n_params; i++)
        if (!used[i])
            rc = sl_fail(err, SL_ERR_ARG, "flag --%s: the chosen attention method (%s) has no such parameter",
                         o->params[i].name, spec->method->name);
    if (!rc && plan && o->schedule) rc = sl_attn_plan_schedule(plan, o->schedule, err);
    return rc;
}

// Appends to buf; cuts the text at `size`.
__attribute__((format(printf, 3, 4))) static void append(char *buf, size_t size, const char *fmt, ...) {
    size_t n = strlen(buf);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf + n, size - n, fmt, ap);
    va_end(ap);
}

static void format_plan(const sl_attn_plan *plan, char *buf, size_t size) {
    char text[256], next[256];
    *buf = 0;
    for (int i = 0, first = 0; i < plan->n_layers; i++) {
        sl_attn_format(&plan->layer[i], text, sizeof text);
        if (i + 1 < plan->n_layers) sl_attn_format(&plan->layer[i + 1], next, sizeof next);
        if (i + 1 < plan->n_layers && !strcmp(text, next)) continue;
        if (first) append(buf, size, " ");
        if (first == 0 && i + 1 == plan->n_layers)
            append(buf, size, "%s", text);
        else if (first == i)
            append(buf, size, "%d=%s", i, text);
        else
            append(buf, size, "%d-%d=%s", first, i, text);
        first = i + 1;
    }
}

void cli_run_format_attention(const cli_run *run, char *buf, size_t size) {
    format_plan(&run->plan, buf, size);
}

void cli_run_format_prefill(const cli_run *run, char *buf, size_t size) {
    format_plan(run->n_kv == INT_MAX ? &run->requested_prefill : &run->prefill, buf, size); // no prompt yet: auto
}

void cli_run_describe_attention(const cli_run *run, FILE *out) {
    char text[CLI_ATTN_TEXT];
    format_plan(run->n_kv == INT_MAX ? &run->requested : &run->plan, text, sizeof text); // no prompt yet: show auto
    fprintf(out, "attention: %s\n", text);
}

static int default_sequences(const cli_options *o) {
    return cli_is_parallel(o) ? o->parallel : 1;
}

static int choose_plan(cli_run *run, const sl_attn_plan *wanted, int n_kv, int quiet, sl_attn_plan *out, sl_error *err) {
    return cli_auto_choose_plan(&run->attn_auto, run->options, run->device, sl_model_config(run->model), wanted,
                                default_sequences(run->options), n_kv, quiet, out, err);
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

// ---- prefill ----

// Reads --attn-profile for the loaded model.
static int read_profile(cli_run *run, sl_error *err) {
    const cli_options *o = run->options;
    const sl_rope_options rope = cli_rope_options(o);
    char name[256];
    if (!o->attn_profile) return 0;
    int rc = sl_device_name(run->device, name, sizeof name, err);
    if (!rc)
        rc = cli_attn_profile_read(o->attn_profile, o->model, !strcmp(o->load_format, "dummy"), &rope,
                                   sl_model_config(run->model)->n_layers, name, &run->profile, err);
    if (!rc && *run->profile.calibration) run->attn_auto.calibration = run->profile.calibration;
    return rc;
}

// The observer of sparse prefills: the file of --stats, and run->prefill_into.
static void observe_prefill(void *ctx, const sl_prefill_record *r) {
    cli_run *run = ctx;
    int n_heads = sl_model_config(run->model)->n_heads;
    if (run->prefill_into) sl_prefill_report_add(&run->prefill_into[r->layer * n_heads + r->head], r->report);
    cli_stats_prefill(&run->stats, r);
}

// What auto in `wanted` means for the current prompt; before the first prompt, and without auto, dense.
static int choose_prefill(cli_run *run, const sl_attn_plan *wanted, sl_attn_spec *out, sl_error *err) {
    *out = (sl_attn_spec){.method = &sl_method_dense};
    if (!sl_auto_in_plan(wanted)) return 0;
    return cli_auto_choose_prefill(&run->attn_auto, run->options, run->device, sl_model_config(run->model), &run->profile,
                                   run->n_kv == INT_MAX ? 0 : run->n_kv, out, err);
}

// Reads the table of --attn-prefill=auto, or measures one, which needs the memory of the engine that is not open yet.
static int open_prefill_table(cli_run *run, sl_error *err) {
    unsigned char used[CLI_MAX_PARAMS];
    sl_attn_plan wanted = {.n_layers = sl_model_config(run->model)->n_layers};
    int rc = apply_prefill(run->options, &run->profile, &wanted, used, err);
    if (!rc) rc = choose_prefill(run, &wanted, &run->prefill_auto, err);
    sl_attn_plan_free(&wanted);
    return rc;
}

// Replaces auto in `wanted` by the choice for the current prompt, and sets the result in the engine. After an error
// run->prefill is unchanged.
static int use_prefill(cli_run *run, sl_engine *engine, const sl_attn_plan *wanted, sl_error *err) {
    sl_attn_spec choice;
    int from_profile = sl_auto_in_plan(wanted) && run->profile.n_ranges && !CLI_GIVEN(run->options, prefill_segment);
    sl_attn_plan plan;
    int rc = choose_prefill(run, wanted, &choice, err);
    if (!rc) rc = sl_attn_plan_copy(&plan, wanted, err);
    if (rc) return rc;
    for (int i = 0; i < plan.n_layers; i++)
        if (plan.layer[i].method == &sl_method_auto) plan.layer[i] = choice;
    rc = sl_engine_set_prefill(engine, &plan, from_profile ? run->profile.segment : run->options->prefill_segment, err);
    if (rc) {
        sl_attn_plan_free(&plan);
        return rc;
    }
    sl_attn_plan_free(&run->prefill);
    run->prefill = plan, run->prefill_auto = choice;
    return 0;
}

static int set_prefill(cli_run *run, sl_engine *engine, const char *text, const cli_list *rules, sl_error *err) {
    unsigned char used[CLI_MAX_PARAMS];
    sl_attn_spec spec;
    sl_attn_plan wanted = {.n_layers = sl_model_config(run->model)->n_layers};
    int rc = text ? cli_attn_parse("--attn-prefill", text, &spec, err)
                  : apply_prefill(run->options, &run->profile, &wanted, used, err);
    if (!rc && text) rc = sl_attn_plan_init(&wanted, wanted.n_layers, &spec, err);
    for (int i = 0; !rc && rules && i < rules->n; i++) {
        rc = check_prefill_rule(run->options, rules->items[i], err);
        if (!rc) rc = sl_attn_plan_set(&wanted, "attn_prefill_layer", rules->items[i], err);
    }
    if (!rc) rc = use_prefill(run, engine, &wanted, err);
    if (rc) {
        sl_attn_plan_free(&wanted);
        return rc;
    }
    sl_attn_plan_free(&run->requested_prefill);
    run->requested_prefill = wanted;
    return 0;
}

int cli_run_set_prefill(cli_run *run, const char *text, const cli_list *rules, sl_error *err) {
    return set_prefill(run, run->engine, text, rules, err);
}

// ---- the length of the prompt ----

// --attn-prefill=auto: sets the choice for the current prompt, and reports it on stderr if it is another one than before.
static int set_prompt_prefill(cli_run *run, sl_error *err) {
    const sl_attn_spec before = run->prefill_auto;
    char text[256];
    if (!sl_auto_in_plan(&run->requested_prefill)) return 0;
    int rc = use_prefill(run, run->engine, &run->requested_prefill, err);
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
    int same = !rc;
    for (int i = 0; same && i < plan.n_layers; i++) same = sl_attn_same(&plan.layer[i], &run->plan.layer[i]);
    if (!rc && !same) rc = sl_engine_set_plan(run->engine, &plan, err);
    if (!rc) rc = cli_watch_buckets(run->engine, err);
    if (rc || same) {
        sl_attn_plan_free(&plan);
        return rc;
    }
    sl_attn_plan_free(&run->plan);
    run->plan = plan;
    return 0;
}

int cli_run_choose_text(cli_run *run, const char *attn, int n_tokens, char *buf, size_t size, sl_error *err) {
    sl_attn_spec spec;
    sl_attn_plan wanted = {.n_layers = run->plan.n_layers}, plan = {0};
    int rc = attn ? sl_attn_parse(attn, &spec, err) : apply_attention(run->options, &run->profile, &spec, &wanted, err);
    if (!rc && attn) rc = sl_attn_plan_init(&wanted, wanted.n_layers, &spec, err);
    if (!rc) rc = choose_plan(run, &wanted, n_tokens, 1, &plan, err);
    if (!rc) format_plan(&plan, buf, size);
    sl_attn_plan_free(&wanted);
    sl_attn_plan_free(&plan);
    return rc;
}

int cli_run_set_attention(cli_run *run, const char *text, sl_error *err) {
    static const cli_list no_rules = {0};
    return cli_run_set_attention_but(run, text, &no_rules, err);
}

int cli_run_set_attention_but(cli_run *run, const char *text, const cli_list *rules, sl_error *err) {
    sl_attn_spec spec;
    sl_attn_plan plan = {.n_layers = run->plan.n_layers};
    int rc = text ? sl_attn_parse(text, &spec, err) : apply_attention(run->options, &run->profile, &spec, &plan, err);
    if (!rc && text) rc = sl_attn_plan_init(&plan, run->plan.n_layers, &spec, err);
    for (int i = 0; !rc && i < rules->n; i++) rc = sl_attn_plan_set(&plan, "attn_layer", rules->items[i], err);
    if (!rc) return apply_plan(run, &plan, err);
    sl_attn_plan_free(&plan);
    return rc;
}

// ---- sampling ----

static int add_bias(cli_run *run, int32_t id, float value, sl_error *err) {
    sl_sampling *s = &run->sampling;
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

static int check_biases(const cli_options *o, sl_error *err) {
    sl_logit_bias bias;
    int rc = 0;
    for (int i = 0; !rc && i < o->logit_bias.n; i++) rc = parse_bias(o->logit_bias.items[i], &bias, err);
    return rc;
}

static float given(int is_given, double flag) {
    return is_given ? (float)flag : NAN;
}

static int make_sampling(cli_run *run, sl_error *err) {
    const cli_options *o = run->options;
    const sl_config *c = sl_model_config(run->model);
    const sl_sampling of_table = {.temp = (float)o->temp,
                                  .top_k = o->top_k,
                                  .top_p = (float)o->top_p,
                                  .min_p = (float)o->min_p,
                                  .repeat_penalty = (float)o->repeat_penalty,
                                  .repeat_last_n = o->repeat_last_n};
    run->sampling = (sl_sampling){
        .temp = given(CLI_GIVEN(o, temp), o->temp),
        .top_k = CLI_GIVEN(o, top_k) ? o->top_k : SL_UNSET,
        .top_p = given(CLI_GIVEN(o, top_p), o->top_p),
        .min_p = given(CLI_GIVEN(o, min_p), o->min_p),
        .repeat_penalty = given(CLI_GIVEN(o, repeat_penalty), o->repeat_penalty),
        .repeat_last_n = CLI_GIVEN(o, repeat_last_n) ? o->repeat_last_n : SL_UNSET,
        .presence_penalty = (float)o->presence_penalty,
        .frequency_penalty = (float)o->frequency_penalty,
        .seed = o->seed,
    };
    sl_sampling_complete(run->model, &of_table, &run->sampling);
    int rc = 0;
    for (int i = 0; !rc && i < o->logit_bias.n; i++) {
        sl_logit_bias bias = {0};
        rc = parse_bias(o->logit_bias.items[i], &bias, err);
        if (!rc) rc = add_bias(run, bias.id, bias.bias, err);
    }
    for (int32_t id = 0; !rc && o->ignore_eos && id < c->n_vocab; id++)
        if (sl_model_is_eos(run->model, id)) rc = add_bias(run, id, -INFINITY, err);
    return rc ? rc : sl_sampling_check(&run->sampling, c->n_vocab, err);
}

// ---- the run ----

// auto always runs on a GPU: the calibration table of a GPU names only methods that run there.
static int runs_on_gpu(const sl_attn_spec *spec) {
    return spec->method == &sl_method_auto || sl_attn_on_gpu(spec);
}

// The words that cli_pick_device prints for a method that a GPU does not offer.
static const char *name_of(const sl_attn_spec *spec) {
    return sl_attn_certifies_layer(spec)  ? "--on-miss dense"
           : sl_attn_carries_budget(spec) ? "--budget carried" // of santa-is
                                          : spec->method->name;
}

// 1 also for a text with an error, which is reported later, and for auto: a profile names methods of its own device.
static int prefills_on_gpu(const char *text) {
    sl_attn_spec spec;
    return sl_attn_parse(text, &spec, NULL) || spec.method == &sl_method_auto || sl_attn_prefills_on_gpu(&spec);
}

// The first method of a list that a GPU does not prefill with; NULL: there is none, or the list has an error.
static const char *missing_in_list(const cli_list *items) {
    cli_attn_list list;
    const char *missing = NULL;
    int rc = cli_attn_list_parse("--attn-prefill", items, &list, NULL);
    for (int i = 0; !rc && !missing && i < list.n; i++)
        if (list.specs[i].method != &sl_method_auto && !sl_attn_prefills_on_gpu(&list.specs[i]))
            missing = list.specs[i].method->name;
    cli_attn_list_free(&list);
    return missing;
}

// The first method of the flags for prefill that a GPU does not offer; NULL: there is none.
static const char *missing_prefill(const cli_options *o) {
    const char *missing = missing_in_list(&o->attn_prefills);
    if (!prefills_on_gpu(o->attn_prefill)) return o->attn_prefill;
    if (missing) return missing;
    for (int i = 0; i < o->attn_prefill_layers.n; i++) {
        const char *text = strchr(o->attn_prefill_layers.items[i], '=');
        if (text && !prefills_on_gpu(text + 1)) return text + 1;
    }
    return o->prefill_check ? "--prefill-check" : NULL;
}

const char *cli_pick_device(const cli_options *o, const sl_attn_spec *specs, int n) {
    const char *missing = o->stats ? "--stats (counts of single heads)" : NULL;
    if (strcmp(o->device, "auto")) return o->device;
    if (!sl_device_is_gpu("auto")) return "cpu";
    for (int i = 0; !missing && i < n; i++)
        if (!runs_on_gpu(&specs[i])) missing = name_of(&specs[i]);
    for (int i = 0; !missing && i < o->attn_layers.n; i++) {
        const char *text = strchr(o->attn_layers.items[i], '=');
        sl_attn_spec spec;
        if (text && !sl_attn_parse(text + 1, &spec, NULL) && !runs_on_gpu(&spec)) missing = name_of(&spec);
    }
    if (!missing) missing = missing_prefill(o);
    if (!missing) return "cuda";
    fprintf(stderr, "device: cpu, because a GPU does not offer %s\n", missing);
    return "cpu";
}

// ---- the engine ----

static int new_engine(cli_run *run, int n_ctx, int n_sequences, sl_engine **out, sl_error *err) {
    const cli_options *o = run->options;
    cli_progress bar;
    sl_engine_options options = {.n_ctx = n_ctx,
                                 .n_sequences = n_sequences,
                                 .prefill_chunk = o->ubatch,
                                 .n_threads = o->threads,
                                 .device = run->device,
                                 .kv_cache = o->kv_cache,
                                 .kv_gpu_memory = o->kv_gpu_memory,
                                 .host_memory = o->host_memory,
                                 .progress = {.fn = cli_progress_update, .ctx = &bar},
                                 .seed = o->seed};
    cli_progress_begin(&bar, "upload", "tensors");
    int rc = sl_engine_new_planned(run->model, &options, &run->plan, out, err);
    cli_progress_end(&bar);
    if (!rc && !run->said_trained) run->said_trained = cli_warn_trained(sl_model_config(run->model), sl_engine_n_ctx(*out));
    if (!rc) rc = set_prefill(run, *out, NULL, NULL, err);
    const sl_prefill_observer observer = {.fn = observe_prefill, .ctx = run, .n_rows = o->prefill_check};
    if (!rc) rc = sl_engine_observe_prefill(*out, &observer, err);
    if (!rc) rc = cli_stats_observe(&run->stats, *out, err);
    return rc ? rc : cli_watch_buckets(*out, err);
}

static int open_model(cli_run *run, sl_error *err) {
    const cli_options *o = run->options;
    double start = cli_now();
    sl_attn_spec spec;
    sl_config config;
    int rc = cli_need_model(o, err);
    if (!rc) rc = cli_check_device(o, err);
    if (!rc) rc = apply_attention(o, NULL, &spec, NULL, err);
    if (!rc) rc = check_biases(o, err);
    if (!rc) run->device = cli_pick_device(o, &spec, 1);
    if (!rc) rc = cli_read_config(o, &config, err);
    if (!rc) rc = cli_stats_open(&run->stats, o, err);
    if (!rc) rc = cli_load_model(o, run->device, 0, &run->model, err);
    if (rc) return rc;
    run->requested.n_layers = sl_model_config(run->model)->n_layers;
    rc = read_profile(run, err);
    if (!rc) rc = apply_attention(o, &run->profile, &spec, &run->requested, err);
    run->load_ms = cli_now() - start; // without a calibration, which only the first run with auto needs
    // Let auto choose for the longest context first: if its method needs too much memory, the error is reported now.
    run->n_kv = INT_MAX;
    if (!rc) rc = choose_plan(run, &run->requested, run->n_kv, 1, &run->plan, err);
    if (!rc) rc = open_prefill_table(run, err);
    if (!rc) rc = make_sampling(run, err);
    return rc;
}

int cli_run_open_model(cli_run *run, const cli_options *o, sl_error *err) {
    *run = (cli_run){.options = o};
    int rc = open_model(run, err);
    if (rc) cli_run_close(run);
    return rc;
}

int cli_run_open_engine(cli_run *run, int n_ctx, int n_sequences, sl_error *err) {
    double start = cli_now();
    int rc = new_engine(run, n_ctx, n_sequences, &run->engine, err);
    run->load_ms += cli_now() - start;
    if (rc) cli_run_close(run);
    return rc;
}

int cli_run_open(cli_run *run, const cli_options *o, sl_error *err) {
    int rc = cli_run_open_model(run, o, err);
    return rc ? rc : cli_run_open_engine(run, o->n_ctx, default_sequences(o), err);
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
    sl_model_free(run->model);
    *run = (cli_run){0};
}

int cli_run_set_ctx(cli_run *run, int n_ctx, sl_error *err) {
    int before = sl_engine_n_ctx(run->engine);
    sl_engine_free(run->engine); // before the new engine: two KV caches may not fit in memory
    run->engine = NULL;
    int n = default_sequences(run->options), rc = new_engine(run, n_ctx, n, &run->engine, err);
    if (rc && new_engine(run, before, n, &run->engine, NULL)) run->engine = NULL;
    return rc;
}
