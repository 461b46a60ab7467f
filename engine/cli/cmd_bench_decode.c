// engine/cli/cmd_bench_decode.c - sleigh bench decode: times sl_step over batches, depths of the KV cache and methods.
//
// Every sequence's cache is filled by a dense prefill of its own random ids; one that is deep enough serves the smaller batches
// too. A measurement begins at the depth, takes one step that is not timed and then --steps that are. A step's time is that
// between two returns of sl_step: on a GPU, where it returns while its step still runs, that is a whole step as well.
#include "engine/cli/print_json.h"
#include "engine/cli/progress.h"
#include "engine/cli/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    const cli_options *o;
    const char *device;
    sl_model *model;
    sl_engine *engine;
    int max_batch, max_depth;
    sl_ids *prompts;        // [max_batch] of max_depth ids
    sl_session **sessions;  // [max_batch], the deepest first; NULL: not there yet
    sl_session **batch;     // [max_batch] the batch that is timed, the deepest last
    int *held;              // [max_batch] tokens of its prompt that a session holds
    sl_sampler **samplers;  // [max_batch] greedy, without end tokens
    int32_t *ids;           // [max_batch]
    double *step_ms;        // [repetitions * steps]
    const char **attn;      // [n_attn]
    char *attn_text;        // what they point into
    sl_attn_spec *specs;    // [n_attn]
    int n_attn, n_rows;     // n_rows: printed
    double filled, fill_ms; // tokens prefilled at this depth, and their time
} bench;

typedef struct row {
    int batch, depth;
    const char *attn;
    double prefill_tok_s, step_ms, kv_bytes; // kv_bytes: of K, V and page extras, a step
    // On a GPU: the linear layers alone; what leaving out attention saves; likewise everything but these two. They overlap, so
    // their sum is not step_ms. NaN elsewhere
    double linear_ms, attention_ms, rest_ms;
} row;

// ---- set-up ----

// --attn as a list: flags and commas separate.
static int parse_attn(bench *b, sl_error *err) {
    const cli_list *list = &b->o->attns;
    size_t size = sizeof "dense";
    int n = 1;
    for (int i = 0; i < list->n; i++) {
        size += strlen(list->items[i]) + 1;
        for (const char *p = list->items[i]; p; p = strchr(p + 1, ',')) n++;
    }
    b->attn_text = calloc(1, size);
    b->attn = calloc(n, sizeof *b->attn);
    b->specs = calloc(n, sizeof *b->specs);
    if (!b->attn_text || !b->attn || !b->specs) return sl_fail(err, SL_ERR_MEMORY, "--attn: out of memory");
    for (int i = 0; i < list->n; i++) {
        if (i) strcat(b->attn_text, ",");
        strcat(b->attn_text, list->items[i]);
    }
    if (!list->n) strcpy(b->attn_text, "dense");
    int rc = 0;
    for (char *save = NULL, *word = strtok_r(b->attn_text, ",", &save); !rc && word; word = strtok_r(NULL, ",", &save)) {
        b->attn[b->n_attn] = word;
        rc = sl_attn_parse(word, &b->specs[b->n_attn++], err);
    }
    return rc || b->n_attn ? rc : sl_fail(err, SL_ERR_ARG, "--attn: names no method");
}

static int check_depths(bench *b, sl_error *err) {
    const cli_options *o = b->o;
    for (int i = 0; i < o->batches.n; i++)
        if (o->batches.at[i] > b->max_batch) b->max_batch = o->batches.at[i];
    for (int i = 0; i < o->depths.n; i++)
        if (o->depths.at[i] > b->max_depth) b->max_depth = o->depths.at[i];
    int limit = sl_model_config(b->model)->n_ctx;
    if (b->max_depth <= limit - 1 - o->n_steps) return 0;
    return sl_fail(err, SL_ERR_ARG, "--depth %d: with %d steps and one before them this model's context holds %d", b->max_depth,
                   o->n_steps, limit - 1 - o->n_steps);
}

static int new_engine(bench *b, sl_error *err) {
    const cli_options *o = b->o;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    const sl_engine_options options = {.n_ctx = b->max_depth + 1 + o->n_steps,
                                       .n_sequences = b->max_batch,
                                       .prefill_chunk = o->ubatch,
                                       .n_threads = o->threads,
                                       .device = b->device,
                                       .progress = &progress,
                                       .seed = o->seed};
    cli_progress_begin(&bar, "upload", "layers");
    int rc = sl_engine_new(b->model, &options, &b->engine, err);
    cli_progress_end(&bar);
    if (rc != SL_ERR_MEMORY) return rc;
    sl_error why = *err;
    return sl_fail(err, rc, "--batch %d at --depth %d: %.800s", b->max_batch, b->max_depth, why.message);
}

static int new_sequences(bench *b, sl_error *err) {
    const sl_config *c = sl_model_config(b->model);
    sl_logit_bias no_end[SL_MAX_EOS];
    for (int i = 0; i < c->n_eos; i++) no_end[i] = (sl_logit_bias){.id = c->eos[i], .bias = -INFINITY};
    const sl_sampling greedy = {.temp = 0, .top_p = 1, .repeat_penalty = 1, .bias = no_end, .n_bias = c->n_eos};
    b->prompts = calloc(b->max_batch, sizeof *b->prompts);
    b->sessions = calloc(b->max_batch, sizeof *b->sessions);
    b->batch = calloc(b->max_batch, sizeof *b->batch);
    b->held = calloc(b->max_batch, sizeof *b->held);
    b->samplers = calloc(b->max_batch, sizeof *b->samplers);
    b->ids = calloc(b->max_batch, sizeof *b->ids);
    b->step_ms = calloc((size_t)b->o->n_steps * b->o->repetitions, sizeof *b->step_ms);
    if (!b->prompts || !b->sessions || !b->batch || !b->held || !b->samplers || !b->ids || !b->step_ms)
        return sl_fail(err, SL_ERR_MEMORY, "a batch of %d: out of memory", b->max_batch);
    int rc = 0;
    for (int j = 0; !rc && j < b->max_batch; j++) {
        rc = cli_random_ids(b->o->seed, (uint32_t)j, b->max_depth, c->n_vocab, &b->prompts[j], err);
        if (!rc) rc = sl_sampler_new(&greedy, c->n_vocab, &b->samplers[j], err);
    }
    return rc;
}

// ---- filling the cache ----

// Of session j in a batch of n: all `depth`, or evenly apart and odd (--ragged).
static int depth_of(const bench *b, int depth, int n, int j) {
    int apart = (int)((long long)depth * (n - j) / n);
    return !b->o->ragged ? depth : apart > 1 ? (apart - 1) | 1 : 1;
}

static void drop_sessions(bench *b) {
    for (int j = 0; j < b->max_batch; j++) {
        sl_session_free(b->sessions[j]);
        b->sessions[j] = NULL;
        b->held[j] = 0;
    }
}

static int fill(bench *b, int j, int depth, sl_error *err) {
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    sl_session_free(b->sessions[j]);
    b->sessions[j] = NULL;
    b->held[j] = depth;
    if (b->o->fork && j > 0) return sl_session_fork(b->sessions[0], depth, (uint32_t)j, &b->sessions[j], err);
    int rc = sl_session_new(b->engine, (uint32_t)j, &b->sessions[j], err);
    double start = cli_now();
    cli_progress_begin(&bar, "prefill", "tokens");
    if (!rc) rc = sl_prefill(b->sessions[j], b->prompts[j].data, depth, &progress, err);
    cli_progress_end(&bar);
    b->fill_ms += cli_now() - start;
    b->filled += depth;
    return rc;
}

// Libraries load and choose at their first use, which is not what is measured.
static int warm_up(bench *b, sl_error *err) {
    sl_session *s;
    int n = b->max_depth < sl_engine_prefill_chunk(b->engine) ? b->max_depth : sl_engine_prefill_chunk(b->engine);
    int rc = sl_session_new(b->engine, 0, &s, err);
    if (rc) return rc;
    rc = sl_prefill(s, b->prompts[0].data, n, NULL, err);
    sl_session_free(s);
    return rc;
}

// Sessions 0..n-1 hold their depth at least.
static int fill_batch(bench *b, int depth, int n, sl_error *err) {
    int rc = 0;
    for (int j = 0; !rc && j < n; j++) {
        int want = depth_of(b, depth, n, j);
        if (b->held[j] < want) rc = fill(b, j, want, err);
        if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "interrupted");
    }
    return rc;
}

// ---- timing ----

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *x, int n) {
    qsort(x, n, sizeof *x, by_value);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

// Every session back to its depth, with the logits of the token before it.
static int rewind_batch(bench *b, int depth, int n, sl_error *err) {
    int rc = 0;
    for (int j = 0; !rc && j < n; j++) {
        int at = depth_of(b, depth, n, j) - 1;
        rc = sl_session_truncate(b->sessions[j], at, err);
        if (!rc) rc = sl_prefill(b->sessions[j], &b->prompts[b->o->fork ? 0 : j].data[at], 1, NULL, err);
        b->batch[n - 1 - j] = b->sessions[j];
    }
    return rc;
}

static int set_attention(bench *b, const sl_attn_spec *spec, sl_error *err) {
    sl_attn_plan plan = {0};
    int rc = sl_attn_plan_init(&plan, sl_model_config(b->model)->n_layers, spec, err);
    if (!rc) rc = sl_engine_set_attention(b->engine, &plan, err);
    sl_attn_plan_free(&plan);
    return rc;
}

// One repetition: n_steps steps of the batch from its depth on, their times to step_ms.
static int time_steps(bench *b, const row *r, int n_steps, double *step_ms, sl_error *err) {
    int n = r->batch, rc = rewind_batch(b, r->depth, n, err);
    if (!rc) rc = sl_step(b->batch, n, b->samplers, b->ids, err);
    sl_engine_reset_stats(b->engine);
    double before = cli_now();
    for (int i = 0; !rc && i < n_steps; i++) {
        rc = sl_step(b->batch, n, b->samplers, b->ids, err);
        double now = cli_now();
        step_ms[i] = now - before;
        before = now;
    }
    if (!rc && cli_interrupted()) rc = sl_fail(err, SL_ERR_IO, "interrupted");
    return rc;
}

// The median step without these parts.
static int time_without(bench *b, const row *r, unsigned parts, double *ms, sl_error *err) {
    int rc = sl_engine_leave_out(b->engine, parts, err);
    if (!rc) rc = time_steps(b, r, b->o->n_steps, b->step_ms, err);
    *ms = median(b->step_ms, b->o->n_steps);
    int back = sl_engine_leave_out(b->engine, 0, err);
    return rc ? rc : back;
}

static int time_parts(bench *b, row *r, sl_error *err) {
    double no_attention = 0, no_rest = 0;
    r->linear_ms = r->attention_ms = r->rest_ms = NAN;
    if (!sl_device_is_gpu(b->device)) return 0;
    int rc = time_without(b, r, SL_PART_ATTENTION | SL_PART_REST, &r->linear_ms, err);
    if (!rc) rc = time_without(b, r, SL_PART_ATTENTION, &no_attention, err);
    if (!rc) rc = time_without(b, r, SL_PART_REST, &no_rest, err);
    r->attention_ms = r->step_ms - no_attention;
    r->rest_ms = r->step_ms - no_rest;
    return rc;
}

static int measure(bench *b, int which, row *r, sl_error *err) {
    int n_steps = b->o->n_steps, n_runs = b->o->repetitions;
    double bytes = 0;
    int rc = set_attention(b, &b->specs[which], err);
    for (int run = 0; !rc && run < n_runs; run++) {
        rc = time_steps(b, r, n_steps, b->step_ms + run * n_steps, err);
        bytes += sl_engine_attn_stats(b->engine)->bytes;
    }
    if (rc) return rc;
    r->attn = b->attn[which];
    r->step_ms = median(b->step_ms, n_steps * n_runs);
    r->kv_bytes = bytes / n_steps / n_runs;
    r->prefill_tok_s = b->filled * 1e3 / b->fill_ms;
    return time_parts(b, r, err);
}

// ---- output ----

// What reading the weights alone takes, at --memory-rate or the row's own rate.
static double floor_ms(const bench *b, const row *r, double weights) {
    double rate = b->o->memory_rate > 0 ? b->o->memory_rate * 1e6 : (weights + r->kv_bytes) / r->step_ms; // bytes a ms
    return weights / rate;
}

static json_t *number(double x) {
    return isnan(x) ? json_null() : json_real(x);
}

static json_t *row_json(const bench *b, const row *r) {
    const cli_options *o = b->o;
    const sl_config *c = sl_model_config(b->model);
    char device[256];
    double weights = (double)sl_model_decode_bytes(b->model), bytes = weights + r->kv_bytes;
    sl_engine_describe(b->engine, device, sizeof device);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:s, s:b, s:b, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, "
                     "s:I, s:f, s:o, s:o, s:o}",
                     "version", SLEIGH_VERSION, "commit", cli_commit(), "device", device, "model", o->model, "model_type",
                     c->model_type, "dummy", sl_model_is_dummy(b->model), "batch", r->batch, "depth", r->depth, "attn", r->attn,
                     "ragged", o->ragged, "fork", o->fork, "steps", o->n_steps, "repetitions", o->repetitions, "seed",
                     (json_int_t)o->seed, "prefill_tok_s", r->prefill_tok_s, "step_ms", r->step_ms, "token_ms",
                     r->step_ms / r->batch, "tok_s", r->batch * 1e3 / r->step_ms, "gb_s", bytes / r->step_ms * 1e-6, "floor_ms",
                     floor_ms(b, r, weights), "weights_bytes", (json_int_t)weights, "kv_bytes", r->kv_bytes, "linear_ms",
                     number(r->linear_ms), "attention_ms", number(r->attention_ms), "rest_ms", number(r->rest_ms));
}

// The row's fields, or their names, separated by commas; texts in quotes.
static int print_csv(json_t *o, int names, sl_error *err) {
    const char *key, *comma = "";
    json_t *value;
    int rc = 0;
    json_object_foreach(o, key, value) {
        char *text = names ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        if (!rc) rc = cli_printf(err, "%s%s", comma, names ? key : text ? text : "");
        free(text);
        comma = ",";
    }
    return rc ? rc : cli_printf(err, "\n");
}

static int print_md(const bench *b, const row *r, int first, sl_error *err) {
    double weights = (double)sl_model_decode_bytes(b->model), bytes = weights + r->kv_bytes;
    int rc = 0;
    if (first)
        rc = cli_printf(err, "| batch | depth | attention | prefill tok/s | step ms | tok/s | GB/s | floor ms | linear ms | "
                             "attention ms | rest ms |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    if (rc) return rc;
    char parts[96] = "- | - | -";
    if (!isnan(r->linear_ms)) snprintf(parts, sizeof parts, "%.3f | %.3f | %.3f", r->linear_ms, r->attention_ms, r->rest_ms);
    return cli_printf(err, "| %d | %d | %s | %.1f | %.3f | %.1f | %.1f | %.3f | %s |\n", r->batch, r->depth, r->attn,
                      r->prefill_tok_s, r->step_ms, r->batch * 1e3 / r->step_ms, bytes / r->step_ms * 1e-6,
                      floor_ms(b, r, weights), parts);
}

static int print_row(bench *b, const row *r, sl_error *err) {
    int first = b->n_rows++ == 0, rc = 0;
    if (!strcmp(b->o->format, "md")) {
        rc = print_md(b, r, first, err);
    } else if (!strcmp(b->o->format, "csv")) {
        json_t *o = row_json(b, r);
        if (first) rc = print_csv(o, 1, err);
        if (!rc) rc = print_csv(o, 0, err);
        json_decref(o);
    } else {
        rc = cli_printf(err, first ? "[\n" : ",\n");
        if (!rc) rc = cli_print_json(row_json(b, r), JSON_COMPACT, err);
    }
    return rc ? rc : cli_flush(err);
}

// ---- all rows ----

static int run_rows(bench *b, sl_error *err) {
    const cli_options *o = b->o;
    int rc = 0;
    for (int d = 0; !rc && d < o->depths.n; d++) {
        drop_sessions(b);
        b->filled = b->fill_ms = 0;
        for (int i = 0; !rc && i < o->batches.n; i++) {
            rc = fill_batch(b, o->depths.at[d], o->batches.at[i], err);
            for (int a = 0; !rc && a < b->n_attn; a++) {
                row r = {.batch = o->batches.at[i], .depth = o->depths.at[d]};
                rc = measure(b, a, &r, err);
                if (!rc) rc = print_row(b, &r, err);
            }
        }
    }
    if (!rc && !strcmp(o->format, "json")) rc = cli_printf(err, "]\n");
    return rc;
}

static void close_bench(bench *b) {
    for (int j = 0; j < b->max_batch; j++) {
        if (b->sessions) sl_session_free(b->sessions[j]);
        if (b->samplers) sl_sampler_free(b->samplers[j]);
        if (b->prompts) sl_ids_free(&b->prompts[j]);
    }
    free(b->prompts), free(b->sessions), free(b->batch), free(b->held), free(b->samplers);
    free(b->ids), free(b->step_ms), free(b->attn), free(b->attn_text), free(b->specs);
    sl_engine_free(b->engine);
    sl_model_free(b->model);
}

int cmd_bench_decode(const cli_options *o, sl_error *err) {
    bench b = {.o = o};
    char device[256], size[32];
    int rc = cli_need_model(o, err);
    if (!rc) rc = cli_check_device(o, err);
    if (!rc) rc = parse_attn(&b, err);
    if (!rc) b.device = cli_pick_device(o, b.specs, b.n_attn);
    if (!rc) rc = cli_load_model(o, b.device, SL_MODEL_NO_TOKENIZER, &b.model, err);
    if (!rc) rc = check_depths(&b, err);
    if (!rc) rc = new_engine(&b, err);
    if (!rc) rc = new_sequences(&b, err);
    if (!rc) rc = warm_up(&b, err);
    if (!rc) {
        sl_engine_describe(b.engine, device, sizeof device);
        fprintf(stderr, "model: %s, a step reads %s of weights%s\nbackend: %s\n", o->model,
                cli_bytes((double)sl_model_decode_bytes(b.model), size),
                sl_model_is_dummy(b.model) ? ", which are dummies" : "", device);
        cli_catch_interrupt(1);
        rc = run_rows(&b, err);
    }
    close_bench(&b);
    return rc;
}
