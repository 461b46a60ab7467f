// cli/bench/bench.c - see bench.h.
#include "cli/bench/bench.h"
#include "backend/backend.h"
#include "base/comm.h"
#include "cli/bench/bench_cost.h"
#include "cli/error_text.h"
#include "cli/io.h"
#include "cli/output/certificates.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/output/summary.h"
#include "cli/process.h"
#include "cli/run/attn_flags.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/run/prompt_ids.h"
#include "cli/watch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SLEIGH_CUDA
#include "cli/bench/attn_timing.h"
#endif

// ---- set-up ----

static int most(const cli_ints *list) {
    int x = 0;
    for (int i = 0; i < list->n; i++)
        if (list->at[i] > x) x = list->at[i];
    return x;
}

// Rows of the KV cache that a test adds, with the step that is not timed.
static int64_t added(const cli_bench_test *t) {
    return (int64_t)t->n_prompt + t->n_gen + (t->n_gen > 0);
}

// Rows at the end of the longest test. A test at depth 0 without a prefill starts with one token, because decoding needs
// logits.
static int64_t most_rows(const cli_bench_plan *plan) {
    int64_t depth = most(&plan->depths), x = 0;
    for (int i = 0; i < plan->n_tests; i++) {
        const cli_bench_test *t = &plan->tests[i];
        int64_t n = (depth || t->n_prompt ? depth : 1) + added(t);
        if (n > x) x = n;
    }
    return x;
}

static int check_depths(const cli_bench_plan *plan, int limit, sl_error *err) {
    long long rows = most_rows(plan), depth = most(&plan->depths);
    if (rows <= limit) return 0;
    if (rows - depth > limit)
        return sl_fail(err, SL_ERR_ARG, "a test of %lld tokens: expected at most %d, this model's context", rows, limit);
    return sl_fail(err, SL_ERR_ARG,
                   "--depth %lld: expected at most %lld, because a test adds %lld tokens and this model's "
                   "context holds %d",
                   depth, limit - (rows - depth), rows - depth, limit);
}

// 1: K and V can be in host memory, so the engine needs a method at its start.
static int offloaded(const cli_bench_flags *o) {
    return strcmp(o->run->device.kv_cache, "gpu") != 0;
}

static int new_engine(cli_bench *b, sl_error *err) {
    cli_progress bar;
    char attn[CLI_ATTN_NAME];
    sl_attn_format(&b->attn.specs[0], attn, sizeof attn);
    sl_engine_options options = cli_engine_options(b->o->run, b->device);
    options.n_ctx = (int)most_rows(b->plan), options.n_sequences = b->max_batch; // check_depths
    options.attn = offloaded(b->o) ? attn : NULL;
    options.progress = (sl_progress){.fn = cli_progress_update, .ctx = &bar};
    int rc = cli_exact_below(&b->o->run->attention, &options.exact_below, err);
    if (rc) return rc;
    cli_progress_begin(&bar, "upload", "tensors");
    rc = sl_engine_new(b->model, &options, &b->engine, err);
    cli_progress_end(&bar);
    if (!rc) sl_engine_describe(b->engine, b->backend, sizeof b->backend), b->formats = sl_engine_kv_formats(b->engine);
    if (!rc && b->o->bench->hot_hits_given) rc = sl_engine_impose_hits(b->engine, b->o->bench->hot_hits, err);
    if (rc != SL_ERR_MEMORY) return rc;
    sl_error why = *err;
    return sl_fail(err, rc, "--batch %d at --depth %d: %.800s", b->max_batch, most(&b->plan->depths), cli_error_text(&why));
}

static int new_arrays(cli_bench *b, sl_error *err) {
    size_t most_steps = 1, runs = (size_t)b->attn.n * b->plan->repetitions;
    for (int i = 0; i < b->plan->n_tests; i++)
        if ((size_t)b->plan->tests[i].n_gen > most_steps) most_steps = b->plan->tests[i].n_gen;
    b->prompts = calloc(b->max_batch, sizeof *b->prompts);
    b->sessions = calloc(b->max_batch, sizeof *b->sessions);
    b->batch = calloc(b->max_batch, sizeof *b->batch);
    b->held = calloc(b->max_batch, sizeof *b->held);
    b->fill_ms = calloc(b->max_batch, sizeof *b->fill_ms);
    b->jobs = calloc(b->max_batch, sizeof *b->jobs);
    b->step_ms = calloc(runs * most_steps, sizeof *b->step_ms);
    b->run_ms = calloc(runs, sizeof *b->run_ms);
    if (b->prompts && b->sessions && b->batch && b->held && b->fill_ms && b->jobs && b->step_ms && b->run_ms) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "a batch of %d: out of memory", b->max_batch);
}

static int new_sequences(cli_bench *b, sl_error *err) {
    const sl_config *c = sl_model_config(b->model);
    const sl_scheduler_options options = {.no_prefixes = 1}; // each sequence has pages of its own
    for (int i = 0; i < c->n_eos; i++) b->no_end[i] = (sl_logit_bias){.id = c->eos[i], .bias = -INFINITY};
    b->greedy = (sl_sampling){.temp = 0, .top_p = 1, .repeat_penalty = 1, .bias = b->no_end, .n_bias = c->n_eos};
    int rc = new_arrays(b, err);
    for (int j = 0; !rc && j < b->max_batch; j++)
        rc = cli_random_ids(b->o->run->sampling.seed, (uint32_t)j, most_rows(b->plan), c->n_vocab, &b->prompts[j], err);
    return rc ? rc : sl_scheduler_new(b->engine, &options, &b->scheduler, err);
}

// ---- jobs ----

// Shows a prefill, and ends a job that only prefills. sl_job_fn
static void after_pass(void *ctx, sl_job *job) {
    cli_bench_job *x = ctx;
    cli_bench *b = x->bench;
    int n = sl_job_n_done(job);
    double ms = sl_job_times_of(job).prefill_ms;
    if (n > x->n_done) b->progress.prefill.done += sl_model_prefill_flops(b->model, x->n_done, n - x->n_done);
    b->progress.prefill.ms += ms - x->ms;
    x->n_done = n, x->ms = ms;
    cli_progress_update(&b->progress, b->progress.done, b->progress.total);
    if (sl_job_state_of(job) == SL_JOB_DECODES || cli_interrupted()) sl_job_cancel(job);
}

// Adds job i, which continues the session. n_gen 0: it prefills ids[0..n). Else it decodes, until it is freed, for a step more
// than these and the one that is not timed.
static int add_job(cli_bench *b, int i, sl_session *session, const int32_t *ids, int n, int n_gen, sl_error *err) {
    sl_generation g = sl_generation_default();
    sl_job_options o = sl_job_options_default();
    cli_bench_job *x = &b->jobs[i];
    *x = (cli_bench_job){.bench = b, .n_done = sl_session_n_tokens(session)};
    g.sampling = b->greedy, g.sequence = sl_session_sequence(session), g.max_tokens = n_gen + 2;
    o.generation = &g, o.session = session, o.ids = ids, o.n = n;
    if (!n_gen) o.on_change = after_pass, o.ctx = x;
    return sl_scheduler_add(b->scheduler, &o, &x->job, err);
}

// Frees the first n jobs. Returns rc, or else the first error of a job.
static int free_jobs(cli_bench *b, int n, int rc, sl_error *err) {
    for (int i = 0; i < n; i++) {
        const sl_error *why = b->jobs[i].job ? sl_job_error(b->jobs[i].job) : NULL;
        if (!rc && why && why->code) *err = *why, rc = why->code;
        sl_job_free(b->jobs[i].job);
        b->jobs[i].job = NULL;
    }
    return rc;
}

// Ranks that share a model make the same passes, so the clock of the first one decides for all.
static int has_time(const cli_bench *b, double spent_ms) {
    enum { ENOUGH_MS = 500 };
    sl_comm *comm = b->o->run->model.comm;
    int has = spent_ms < ENOUGH_MS;
    if (comm) comm->broadcast(comm, &has, sizeof has);
    return has;
}

// Runs a short prefill before the measurements, because libraries load and tune themselves at first use. Then it times prefills
// and steps for half a second. The fastest ones give the speed of this machine, for the estimate of the whole run.
static int warm_up(cli_bench *b, sl_error *err) {
    enum { FIRST = 32, STEPS = 8, PASSES = 4 };
    const int32_t *ids = b->prompts[0].data;
    sl_session *s;
    int room = (int)b->prompts[0].n, n = room - STEPS;
    double all_ms = 0;
    int rc = sl_session_new(b->engine, 0, &s, err);
    if (rc) return rc;
    n = sl_session_next_pass(s, n < 1 ? 1 : n);
    rc = sl_prefill(s, ids, n < FIRST ? n : FIRST, NULL, err);
    for (int i = 0; !rc && i < PASSES && has_time(b, all_ms); i++) {
        double start = sl_now_ms();
        rc = sl_session_truncate(s, 0, err);
        if (!rc) rc = sl_prefill(s, ids, n, NULL, err);
        if (!rc) sl_session_logits(s, NULL); // waits for a GPU
        double ms = sl_now_ms() - start;
        b->prefill.rate = fmax(b->prefill.rate, sl_model_prefill_flops(b->model, 0, n) / ms);
        all_ms += ms;
    }
    all_ms = 0;
    if (!rc) rc = add_job(b, 0, s, NULL, 0, STEPS, err);
    for (int i = 0; !rc && b->steps.total > 0 && i < STEPS && n + i < room && has_time(b, all_ms); i++) {
        double start = sl_now_ms();
        sl_scheduler_step(b->scheduler);
        sl_session_logits(s, NULL);
        double ms = sl_now_ms() - start;
        b->steps.rate = fmax(b->steps.rate, cli_bench_step_bytes(b->model, b->formats, n + i) / ms);
        all_ms += ms;
    }
    rc = free_jobs(b, 1, rc, err);
    sl_session_free(s);
    return rc;
}

// Sets the work of the whole run.
static int plan_work(cli_bench *b, cli_bench_cost *cost, sl_error *err) {
    enum { PARTS = 3 }; // time_parts
    int *held = calloc(b->max_batch, sizeof *held), n_extra = b->plan->parts && sl_device_is_gpu(b->device) ? PARTS : 0;
    if (!held) return sl_fail(err, SL_ERR_MEMORY, "a batch of %d: out of memory", b->max_batch);
    cli_bench_cost_of(b->model, b->formats, b->o->bench, b->plan, b->attn.n, n_extra, held, cost);
    b->prefill.total = cost->prefill, b->steps.total = cost->steps;
    free(held);
    return 0;
}

static void announce(const cli_bench *b, const cli_bench_cost *cost) {
    char line[320];
    double copy_ms = b->prefill.rate > 0 ? cost->fill / b->prefill.rate : 0;
    cli_bench_announce(cli_work_left(&b->prefill), cli_work_left(&b->steps), copy_ms, sl_device_is_gpu(b->device), line,
                       sizeof line);
    if (*line) cli_say("%s", line);
}

// ---- memory rate and energy ----

static int measure_rate(const cli_bench *b, double *gb_s, sl_error *err) {
#ifdef SLEIGH_CUDA
    if (sl_device_is_gpu(b->device)) return sl_bench_read_rate(sl_bench_gpu_index(b->device), gb_s, err);
#endif
    return cli_memory_rate(b->o->run->device.threads ? b->o->run->device.threads : sl_cpu_cores(), gb_s, err);
}

// Measures the peak rate, before the engine takes the memory of the device.
static void find_peak(cli_bench *b) {
    sl_error why;
    int decodes = 0;
    for (int i = 0; i < b->plan->n_tests; i++) decodes |= b->plan->tests[i].n_gen > 0;
    b->peak_gb_s = b->o->bench->memory_rate > 0 ? b->o->bench->memory_rate : NAN;
    if (b->o->bench->memory_rate > 0 || !decodes) return;
    if (measure_rate(b, &b->peak_gb_s, &why)) {
        b->peak_gb_s = NAN;
        fprintf(stderr, "memory rate: could not be measured: %s\n", cli_error_text(&why));
    }
}

static void open_meter(cli_bench *b) {
    cli_meter_source source = {0};
#ifdef SLEIGH_CUDA
    char pci_id[32];
    if (sl_device_is_gpu(b->device) && !sl_bench_pci_id(sl_bench_gpu_index(b->device), pci_id, sizeof pci_id, NULL))
        source.pci_id = pci_id;
#endif
    if (source.pci_id || !sl_device_is_gpu(b->device)) cli_meter_open(&b->meter, &source);
}

static void describe(const cli_bench *b) {
    char size[32];
    fprintf(stderr, "model: %s, a step reads %s of weights%s\nbackend: %s\n", b->o->run->model.path,
            cli_bytes((double)sl_model_decode_bytes(b->model), size), sl_model_is_dummy(b->model) ? " (dummy weights)" : "",
            b->backend);
    if (isfinite(b->peak_gb_s))
        fprintf(stderr, "memory rate: %.1f GB/s, %s\n", b->peak_gb_s, b->o->bench->memory_rate > 0 ? "given" : "measured");
}

int cli_bench_open(cli_bench *b, const cli_bench_flags *o, const cli_bench_plan *plan, sl_error *err) {
    *b = (cli_bench){.o = o, .plan = plan, .now = sl_now_ms, .max_batch = most(&plan->batches)};
    sl_config config;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = cli_check_device(&o->run->device, err);
    if (!rc) rc = cli_attn_list_parse("--attn", &o->run->attention.attns, &b->attn, err);
    if (!rc) rc = cli_read_config(o->run, &config, err);
    if (!rc) rc = check_depths(plan, config.n_ctx, err);
    if (!rc) b->device = cli_pick_device(o->run, b->attn.specs, b->attn.n);
    if (!rc) rc = cli_load_model(o->run, b->device, SL_MODEL_NO_TOKENIZER, &b->model, err);
    if (rc) return rc;
    cli_model_name_of(b->model, o->run->model.path, &b->name);
    find_peak(b);
    cli_bench_cost cost;
    rc = new_engine(b, err);
    if (!rc) cli_warn_trained(&config, sl_engine_n_ctx(b->engine));
    if (!rc) rc = new_sequences(b, err);
    if (!rc) rc = plan_work(b, &cost, err);
    if (!rc) rc = warm_up(b, err);
    if (rc) return rc;
    open_meter(b);
    describe(b);
    announce(b, &cost);
    cli_catch_interrupt(1);
    return 0;
}

void cli_bench_close(cli_bench *b) {
    for (int j = 0; j < b->max_batch; j++) {
        if (b->sessions) sl_session_free(b->sessions[j]);
        if (b->prompts) sl_ids_free(&b->prompts[j]);
    }
    sl_scheduler_free(b->scheduler);
    free(b->prompts), free(b->sessions), free(b->batch), free(b->held), free(b->fill_ms), free(b->jobs);
    free(b->step_ms), free(b->run_ms);
    cli_attn_list_free(&b->attn);
    cli_auto_close(&b->attn_auto);
    cli_meter_close(&b->meter);
    sl_engine_free(b->engine);
    sl_model_free(b->model);
}

// ---- the cache at a depth ----

static int check_interrupt(sl_error *err) {
    return cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
}

// Appends n tokens of its prompt to session j, one pass at a time, to react to Ctrl+C in between. The logits do not depend on
// the passes.
static int is_random(const cli_bench_flags *o) {
    return !strcmp(o->bench->fill, "random");
}

static int prefill_to(cli_bench *b, int j, int want, sl_error *err) {
    cli_progress bar;
    int from = b->held[j], rc = 0;
    if (want == from) return 0;
    double start = b->now();
    if (is_random(b->o)) {
        rc = sl_session_fill(b->sessions[j], want, err);
        b->fill_ms[j] += b->now() - start;
        b->held[j] = want;
        return rc;
    }
    cli_progress_begin_prefill(&bar, b->model, from);
    for (int i = from, n; !rc && i < want; i += n) {
        n = sl_session_next_pass(b->sessions[j], want - i);
        rc = sl_prefill(b->sessions[j], b->prompts[j].data + i, n, NULL, err);
        if (!rc) rc = check_interrupt(err);
        if (!rc) cli_progress_update(&bar, i + n - from, want - from);
    }
    cli_progress_end(&bar);
    b->fill_ms[j] += b->now() - start;
    b->held[j] = want;
    return rc;
}

// Makes session j hold exactly the first `want` tokens of its prompt. Only --ragged needs fewer tokens than before.
static int set_depth(cli_bench *b, int j, int want, sl_error *err) {
    int copied = b->o->bench->copy && j > 0, rc = 0;
    if (b->sessions[j] && (want < b->held[j] || ((copied || is_random(b->o)) && want > b->held[j]))) {
        sl_session_free(b->sessions[j]);
        b->sessions[j] = NULL;
    }
    if (!b->sessions[j]) {
        b->fill_ms[j] = 0;
        b->held[j] = copied ? want : 0;
        rc = copied ? sl_session_copy(b->sessions[0], want, (uint32_t)j, &b->sessions[j], err)
                    : sl_session_new(b->engine, (uint32_t)j, &b->sessions[j], err);
    }
    if (!rc) rc = sl_session_truncate(b->sessions[j], b->held[j], err);
    if (!rc) rc = prefill_to(b, j, want, err);
    return rc ? rc : check_interrupt(err);
}

static int set_depths(cli_bench *b, int depth, int n, sl_error *err) {
    int rc = 0;
    for (int j = 0; !rc && j < n; j++) {
        rc = set_depth(b, j, cli_bench_depth(b->o->bench, depth, n, j), err);
        b->batch[n - 1 - j] = b->sessions[j];
    }
    return rc;
}

// Repeats the last token of each session, so that a test that starts with decode steps has logits.
static int make_logits(cli_bench *b, int n, sl_error *err) {
    int rc = 0;
    for (int j = 0; !rc && j < n; j++) {
        int at = b->held[j] > 0 ? b->held[j] - 1 : 0;
        rc = sl_session_truncate(b->sessions[j], at, err);
        const int32_t *id = &b->prompts[b->o->bench->copy ? 0 : j].data[at];
        if (!rc && at > 0 && (is_random(b->o) || offloaded(b->o))) // a prefill would stream all rows from the host
            rc = sl_decode(&b->sessions[j], 1, id, err);
        else if (!rc)
            rc = sl_prefill(b->sessions[j], id, 1, NULL, err);
        cli_progress_work(&b->progress, cli_bench_step_bytes(b->model, b->formats, b->held[j]));
    }
    return rc;
}

// ---- one repetition ----

static int set_attention(cli_bench *b, const cli_bench_row *r, const sl_attn_spec *spec, sl_error *err) {
    sl_attn_plan wanted = {0}, plan = {0};
    const sl_config *config = sl_model_config(b->model);
    int rc = sl_attn_plan_init(&wanted, config->n_layers, spec, err);
    if (!rc)
        rc = cli_auto_choose_plan(&b->attn_auto, &b->o->run->attention, b->device, config, &wanted, r->batch,
                                  r->depth + r->test.n_prompt, 0, &plan, err);
    if (!rc) rc = sl_engine_set_plan(b->engine, &plan, err);
    if (!rc) rc = cli_watch_buckets(b->engine, err);
    sl_attn_plan_free(&wanted);
    sl_attn_plan_free(&plan);
    return rc;
}

typedef struct timing {    // times of one test
    double *step_ms;       // [n_gen]
    double ms, joules;     // totals of prompts and timed steps
    double own_ms, all_ms; // of the timed steps: the scheduler's own time; with the engine's
} timing;

// Times the prefill of the test's prompts.
static int run_prompts(cli_bench *b, const cli_bench_row *r, timing *t, sl_error *err) {
    int n = r->test.n_prompt, rc = 0;
    if (!n) return 0;
    double joules = cli_meter_joules(&b->meter), start = b->now();
    for (int j = 0; !rc && j < r->batch; j++) rc = add_job(b, j, b->sessions[j], b->prompts[j].data + b->held[j], n, 0, err);
    while (!rc && sl_scheduler_step(b->scheduler)) continue;
    t->ms += b->now() - start;
    t->joules += cli_meter_joules(&b->meter) - joules;
    rc = free_jobs(b, r->batch, rc, err);
    return rc ? rc : check_interrupt(err);
}

// Times n_gen steps of the batch, after one step that is not timed.
static int time_steps(cli_bench *b, const cli_bench_row *r, timing *t, sl_error *err) {
    int n = r->batch, rc = 0;
    double rows = 0;
    for (int j = 0; j < n; j++) rows += sl_session_n_tokens(b->batch[j]);
    sl_scheduler_step(b->scheduler);
    cli_progress_work(&b->progress, cli_bench_step_bytes(b->model, b->formats, rows));
    sl_engine_reset_stats(b->engine);
    const sl_scheduler_stats first = sl_scheduler_stats_of(b->scheduler);
    double joules = cli_meter_joules(&b->meter), before = b->now();
    for (int i = 0; !rc && i < r->test.n_gen; i++) {
        sl_scheduler_step(b->scheduler);
        double now = b->now();
        t->step_ms[i] = now - before;
        t->ms += t->step_ms[i];
        before = now;
        rc = check_interrupt(err);
        cli_progress_work(&b->progress, cli_bench_step_bytes(b->model, b->formats, rows + (double)n * (i + 1)));
    }
    if (!rc) sl_session_logits(b->sessions[0], NULL); // waits for the last step of a GPU
    // A GPU computes a step while the host has the tokens of the step before. sl_engine_reset_stats waits for it, so the first
    // time above holds no step, and the step that runs after the loop takes its place.
    if (!rc && sl_device_is_gpu(b->device)) {
        double last = b->now() - before;
        memmove(t->step_ms, t->step_ms + 1, (size_t)(r->test.n_gen - 1) * sizeof *t->step_ms);
        t->step_ms[r->test.n_gen - 1] = last;
        t->ms += last;
    }
    t->joules += cli_meter_joules(&b->meter) - joules;
    const sl_scheduler_stats last = sl_scheduler_stats_of(b->scheduler);
    t->all_ms = last.step_ms - first.step_ms, t->own_ms = t->all_ms - (last.decode_ms - first.decode_ms);
    return rc;
}

static int run_steps(cli_bench *b, const cli_bench_row *r, timing *t, sl_error *err) {
    int n_gen = r->test.n_gen, rc = 0;
    if (!n_gen) return 0;
    for (int j = 0; !rc && j < r->batch; j++) rc = add_job(b, j, b->batch[j], NULL, 0, n_gen, err);
    if (!rc) rc = time_steps(b, r, t, err);
    return free_jobs(b, r->batch, rc, err);
}

// Runs the test once. Fills the caches to the depth first.
static int run_once(cli_bench *b, const cli_bench_row *r, timing *t, sl_error *err) {
    t->ms = t->joules = t->own_ms = t->all_ms = 0;
    int rc = set_depths(b, r->depth, r->batch, err);
    if (!rc && !r->test.n_prompt) rc = make_logits(b, r->batch, err);
    if (!rc) rc = run_prompts(b, r, t, err);
    return rc ? rc : run_steps(b, r, t, err);
}

// ---- one row ----

// Median time of a step without these parts.
static int time_without(cli_bench *b, const cli_bench_row *r, unsigned parts, double *ms, sl_error *err) {
    timing t = {.step_ms = b->step_ms};
    int rc = sl_engine_skip_parts(b->engine, parts, err);
    if (!rc) rc = run_once(b, r, &t, err);
    *ms = cli_median(b->step_ms, r->test.n_gen);
    int back = sl_engine_skip_parts(b->engine, 0, err);
    return rc ? rc : back;
}

static int time_parts(cli_bench *b, int which, cli_bench_row *r, sl_error *err) {
    double no_attention = 0, no_rest = 0;
    r->linear_ms = r->attention_ms = r->rest_ms = NAN;
    if (!b->plan->parts || r->test.n_prompt || !sl_device_is_gpu(b->device)) return 0;
    int rc = set_attention(b, r, &b->attn.specs[which], err);
    if (!rc) rc = time_without(b, r, SL_PART_ATTENTION | SL_PART_REST, &r->linear_ms, err);
    if (!rc) rc = time_without(b, r, SL_PART_ATTENTION, &no_attention, err);
    if (!rc) rc = time_without(b, r, SL_PART_REST, &no_rest, err);
    r->attention_ms = r->step_ms - no_attention;
    r->rest_ms = r->step_ms - no_rest;
    return rc;
}

// Sums over the repetitions of a row.
typedef struct sums {
    double *step_ms, *run_ms; // [repetitions][n_gen], [repetitions]
    double kv_bytes, joules, own_ms, all_ms;
} sums;

// Runs repetition `run` of a row. Repetition 0 sets r->logits; the others must give the same logits.
static int repeat(cli_bench *b, int which, int run, cli_bench_row *r, sums *s, sl_error *err) {
    int n_gen = r->test.n_gen, rc = n_gen ? set_attention(b, r, &b->attn.specs[which], err) : 0;
    timing t = {.step_ms = s->step_ms + (size_t)run * n_gen};
    if (!rc) rc = run_once(b, r, &t, err);
    for (int j = 0; !rc && j < r->batch; j++)
        rc = sl_session_check_logits(b->sessions[j], err); // each step checks only the logits before it
    if (rc) return rc;
    s->run_ms[run] = t.ms;
    s->joules += t.joules;
    s->own_ms += t.own_ms, s->all_ms += t.all_ms;
    if (n_gen) r->read = *sl_engine_attn_stats(b->engine), s->kv_bytes += (double)r->read.bytes;
    uint64_t logits = sl_logits_hash(sl_session_logits(b->sessions[0], NULL), sl_model_config(b->model)->n_vocab);
    cli_meter_clocks(&b->meter, &r->sm_mhz, &r->memory_mhz);
    if (run > 0 && logits != r->logits && !b->o->bench->hot_hits_given)
        return sl_fail(err, SL_ERR_DEVICE,
                       "batch %d at depth %d, %s: the logits of repetition %d differ from those of the first", r->batch,
                       r->depth, r->attn, run + 1);
    r->logits = logits;
    return 0;
}

static void sum_up(const cli_bench *b, cli_bench_row *r, const sums *s) {
    enum { COUNTER_MS = 250 }; // shortest test for energy: counters update every 10 to 100 ms
    int runs = b->plan->repetitions, n_steps = r->test.n_gen;
    double tokens = (double)r->batch * (r->test.n_prompt + n_steps), rate[runs], steps = 0;
    for (int i = 0; i < runs; i++) rate[i] = tokens * 1e3 / s->run_ms[i];
    for (int i = 0; i < runs * n_steps; i++) steps += s->step_ms[i];
    cli_spread(s->run_ms, runs, &r->ms, &r->ms_sd, &r->ms_median);
    cli_spread(rate, runs, &r->tok_s, &r->tok_s_sd, &r->tok_s_median);
    r->joules = r->ms * runs >= COUNTER_MS ? s->joules / (tokens * runs) : NAN;
    r->prefill_ms = 0;
    for (int j = 0; j < r->batch; j++) r->prefill_ms += b->fill_ms[j];
    r->decode_ms = r->step_ms = r->step_ms_low = r->step_ms_high = r->token_ms = r->kv_bytes = r->gb_s = r->peak_share =
        r->speedup = r->scheduler_ms = r->scheduler_share = NAN;
    if (!n_steps) return;
    r->decode_ms = steps / runs;
    r->step_ms = cli_median(s->step_ms, runs * n_steps); // sorts the steps
    r->step_ms_low = s->step_ms[(runs * n_steps - 1) / 10];
    r->step_ms_high = s->step_ms[runs * n_steps - 1 - (runs * n_steps - 1) / 10];
    r->token_ms = r->decode_ms / n_steps / r->batch;
    r->kv_bytes = s->kv_bytes / n_steps / runs;
    r->gb_s = ((double)sl_model_decode_bytes(b->model) + r->kv_bytes) / r->step_ms * 1e-6;
    r->peak_share = r->gb_s / b->peak_gb_s;
    r->scheduler_ms = s->own_ms / n_steps / runs;
    r->scheduler_share = s->own_ms / s->all_ms;
}

// ---- all rows ----

// Measures the rows of one test, one per method, with the methods in alternation. Does not time the parts of a step.
static int measure(cli_bench *b, int n, cli_bench_row *rows, sl_error *err) {
    int runs = b->plan->repetitions, rc = 0;
    sums all[n];
    for (int a = 0; a < n; a++)
        all[a] = (sums){.step_ms = b->step_ms + (size_t)a * runs * rows->test.n_gen, .run_ms = b->run_ms + (size_t)a * runs};
    for (int run = 0; !rc && run < runs; run++)
        for (int a = 0; !rc && a < n; a++) rc = repeat(b, a, run, &rows[a], &all[a], err);
    for (int a = 0; !rc && a < n; a++) sum_up(b, &rows[a], &all[a]);
    return rc;
}

// Writes the name of a test as llama-bench does: "pp512", "tg128 @ d32768".
static void name_test(const cli_bench_row *r, char buf[64]) {
    int n = 0;
    if (r->test.n_prompt) n += snprintf(buf, 64, "pp%d", r->test.n_prompt);
    if (r->test.n_gen) n += snprintf(buf + n, 64 - n, "%stg%d", n ? "+" : "", r->test.n_gen);
    if (r->depth) snprintf(buf + n, 64 - n, " @ d%d", r->depth);
}

// Runs one test with each method, or once if the test does not decode.
static int run_test(cli_bench *b, const cli_bench_row *size, cli_bench_fn fn, void *ctx, sl_error *err) {
    int n = size->test.n_gen ? b->attn.n : 1;
    char name[64] = "";
    cli_bench_row rows[n];
    name_test(size, name);
    cli_progress_item(&b->progress, name);
    for (int a = 0; a < n; a++) {
        rows[a] = *size;
        rows[a].attn = size->test.n_gen ? b->attn.names[a] : "dense";
    }
    int rc = measure(b, n, rows, err);
    for (int a = 0; !rc && a < n; a++) {
        rows[a].speedup = rows[0].token_ms / rows[a].token_ms;
        rc = time_parts(b, a, &rows[a], err);
        if (!rc) rc = fn(ctx, &rows[a], err);
    }
    return rc;
}

int cli_bench_run(cli_bench *b, cli_bench_fn fn, void *ctx, sl_error *err) {
    const cli_bench_plan *plan = b->plan;
    cli_ints depths = plan->depths;
    int rc = 0, done = 0, n = depths.n * plan->batches.n * plan->n_tests;
    cli_sort_ints(&depths);
    cli_progress_begin_run(&b->progress, "bench", "tests", n, b->prefill.total,
                           b->steps.total > 0 ? b->steps.total : CLI_NO_WORK);
    b->progress.prefill.rate = b->prefill.rate, b->progress.rest.rate = b->steps.rate;
    for (int d = 0; !rc && d < depths.n; d++)
        for (int i = 0; !rc && i < plan->batches.n; i++)
            for (int t = 0; !rc && t < plan->n_tests; t++) {
                const cli_bench_row size = {.test = plan->tests[t], .batch = plan->batches.at[i], .depth = depths.at[d]};
                rc = run_test(b, &size, fn, ctx, err);
                cli_progress_update(&b->progress, ++done, n);
            }
    cli_progress_end(&b->progress);
    return rc;
}

// ---- a row's fields ----

static json_t *count(int n) { // 0: unknown
    return n ? json_integer(n) : json_null();
}

json_t *cli_bench_source_json(const cli_bench *b, int sm_mhz, int memory_mhz) {
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "version", SLEIGH_VERSION, "commit", cli_commit(), "device", b->backend,
                     "driver", *b->meter.driver ? json_string(b->meter.driver) : json_null(), "sm_mhz", count(sm_mhz),
                     "memory_mhz", count(memory_mhz));
}

static json_t *test_json(const cli_bench *b, const cli_bench_row *r) {
    char name[64] = "";
    name_test(r, name);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:b, s:b, s:s, s:s, s:s, s:s, s:i, s:I}", "test", name, "n_prompt",
                     r->test.n_prompt, "n_gen", r->test.n_gen, "depth", r->depth, "batch", r->batch, "attn", r->attn, "ragged",
                     b->o->bench->ragged, "copy", b->o->bench->copy, "fill", b->o->bench->fill, "kv_cache",
                     b->o->run->device.kv_cache, "k_format", sl_formats[b->formats.k].name, "v_format",
                     sl_formats[b->formats.v].name, "repetitions", b->plan->repetitions, "seed",
                     (json_int_t)b->o->run->sampling.seed);
}

// A count of a repetition's timed steps, for each step.
static double steps_of(const cli_bench_row *r, uint64_t n) {
    return r->test.n_gen ? (double)n / r->test.n_gen : NAN;
}

static double row_bytes(const cli_bench *b) { // K and V of a row of one KV head
    int head_dim = sl_model_config(b->model)->head_dim;
    return (double)(sl_kv_row_bytes(b->formats.k, head_dim) + sl_kv_row_bytes(b->formats.v, head_dim));
}

static json_t *figures_json(const cli_bench *b, const cli_bench_row *r) {
    double weights = (double)sl_model_decode_bytes(b->model), held = 0;
    for (int j = 0; j < r->batch; j++) held += b->held[j];
    char logits[24];
    snprintf(logits, sizeof logits, "%016llx", (unsigned long long)r->logits);
    const struct {
        const char *key;
        double value;
    } figures[] = {{"ms", r->ms},
                   {"ms_sd", r->ms_sd},
                   {"ms_median", r->ms_median},
                   {"tok_s", r->tok_s},
                   {"tok_s_sd", r->tok_s_sd},
                   {"tok_s_median", r->tok_s_median},
                   {"prefill_s", r->prefill_ms * 1e-3},
                   {"prefill_tok_s", held * 1e3 / r->prefill_ms},
                   {"decode_s", r->decode_ms * 1e-3},
                   {"step_ms", r->step_ms},
                   {"step_ms_10", r->step_ms_low},
                   {"step_ms_90", r->step_ms_high},
                   {"token_ms", r->token_ms},
                   {"speedup", r->speedup},
                   {"gb_s", r->gb_s},
                   {"peak_gb_s", b->peak_gb_s},
                   {"peak_share", r->peak_share},
                   {"floor_ms", r->test.n_gen ? weights / b->peak_gb_s * 1e-6 : NAN},
                   {"weights_bytes", weights},
                   {"kv_bytes", r->kv_bytes},
                   {"hot_hits", (double)r->read.hits / (double)(r->read.fetched + r->read.hits)},
                   {"bus_rows", steps_of(r, r->read.fetched)},
                   {"bus_bytes", steps_of(r, r->read.fetched) * row_bytes(b)},
                   {"joules_token", r->joules},
                   {"scheduler_ms", r->scheduler_ms},
                   {"scheduler_share", r->scheduler_share},
                   {"linear_ms", r->linear_ms},
                   {"attention_ms", r->attention_ms},
                   {"rest_ms", r->rest_ms}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(o, figures[i].key, cli_number(figures[i].value));
    cli_certificates_put(o, &r->read);
    json_object_set_new(o, "logits", json_string(logits));
    return o;
}

json_t *cli_bench_json(const cli_bench *b, const cli_bench_row *r) {
    json_t *row = cli_bench_source_json(b, r->sm_mhz, r->memory_mhz), *test = test_json(b, r), *figures = figures_json(b, r);
    if (row) {
        json_object_update(row, test);
        json_object_update(row, figures);
    }
    json_decref(test);
    json_decref(figures);
    return row;
}
