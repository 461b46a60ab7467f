// tests/cli/test_figures_compare.c - every figure and every column of sleigh compare, computed again from made-up records of
// its runs: values of positions, outputs of heads, counts of steps, reports of prefills. (test_cli_compare.c checks the
// records.)
#include "cli/commands.h"
#include "cli/compare/compare.h"
#include "cli/compare/compare_print.h"
#include "cli/compare/compare_rows.h"
#include "cli/compare/compare_runs.h"
#include "cli/options/all_options.h"
#include "tests/cli/fields.h"

#include <math.h>
#include <stdlib.h>

enum {
    LAYERS = 4,
    HEADS = 8,
    N = LAYERS * HEADS,
    DECODE = 2,
    MAX_METHODS = 4,
    MAX_PROMPTS = 10,
    MAX_OUTPUTS = MAX_PROMPTS * 3 * N
};

static sl_error err;

// ---- records ----

typedef struct records { // of a method
    cli_values agreement, prefix, text_nll, kl, top1, nll[N_PARTS], more;
    double outputs[MAX_OUTPUTS][2];
    int step_of[MAX_OUTPUTS], n_outputs; // step_of: the step of an output
} records;

typedef struct made {
    cli_options o;
    cli_compare_flags flags; // of o
    compare c;
    int is_grouped, n_steps, n_identical[MAX_METHODS];
    records of[MAX_METHODS];
    cli_values dense_nll[N_PARTS], dense_text;
    sl_prefill_report reports[DECODE * N];
    json_t *prompts[MAX_PROMPTS];
    fields prompt_fields[MAX_PROMPTS], answers[MAX_PROMPTS][MAX_METHODS + 1];
    char texts[MAX_PROMPTS][MAX_METHODS + 1][8];
} made;

// Adds a value to the records of the program and of the test.
static void add_both(cli_values *a, cli_values *b, double x) {
    add_value(a, x), add_value(b, x);
}

static void end_both(cli_values *a, cli_values *b) {
    end_group(a), end_group(b);
}

static void make_stats(sl_attn_stats *s) {
    s->bytes = 1000 + (uint64_t)test_below(900), s->dense_bytes = 4000 + (uint64_t)test_below(999);
    s->stated = 50 + (uint64_t)test_below(9), s->certified = 30 + (uint64_t)test_below(9), s->unbounded = 7;
    s->stated_units = (uint64_t)(test_draw() * 40 * SL_STATED_UNIT), s->stated_most = 1 + test_draw();
}

static sl_prefill_report make_report(int is_dense) {
    sl_prefill_report r = sl_prefill_report_none();
    if (is_dense) return r;
    r.causal = 100 + (uint64_t)test_below(50), r.visited = 20 + (uint64_t)test_below(50);
    r.kept = (1 << 23) + test_below(1 << 22), r.measured = (1 << 22) + test_below(1 << 22);
    r.n_errors = 1 + (uint64_t)test_below(5), r.errors = test_draw(), r.error_max = test_draw();
    return r;
}

static void make_method(made *m, int i) {
    compare_method *method = &m->c.methods[i];
    make_stats(&method->read), make_stats(&method->forced);
    if (i == 1) method->forced.stated = method->forced.certified = method->forced.unbounded = 0;
    method->feed_ms = 900 * test_draw();
    for (int h = 0; h < N; h++) {
        double *x = (double *)&method->heads[h];
        for (size_t k = 0; k < sizeof(compare_head) / sizeof *x; k++) x[k] = 1 + test_draw();
        method->heads[h].bias -= 1.5, method->heads[h].n = m->n_steps;
        if (i == 1) method->heads[h].v_distinct = 0;
    }
    for (int t = 0; t < N_TILES; t++)
        method->tiles[t] = (compare_tiles){.n = t == 3 ? 0 : 1 + test_below(5), .error = test_draw(), .cosine = test_draw()};
}

static const char *const stops[] = {"limit", "end", "stop"};

// An answer of n ids, and its fields.
static void make_answer(compare_answer *a, int n, char text[8], fields *f) {
    static const char letters[] = "abcd";
    a->ids.n = a->text.n = 0;
    for (int i = 0; i < n; i++) {
        int id = test_below(3);
        CHECK_OK(sl_ids_push(&a->ids, id, &err), err);
        CHECK_OK(sl_text_append(&a->text, &letters[id], 1, &err), err);
    }
    a->stopped = stops[test_below(3)];
    snprintf(text, 8, "%.*s", n, a->text.data);
    want_text(f, "text", text), want_list(f, "ids"), want_text(f, "stopped", a->stopped);
}

static double mean_from(const cli_values *v, int first) { // of the values from `first` on
    return mean_of_values(v->x + first, v->n - first);
}

static void make_values(made *m, int i, int n_question, int n_answer, const double *dense, fields *f) {
    compare_method *own = &m->c.methods[i];
    records *r = &m->of[i];
    int first = r->kl.n, first_part[N_PARTS] = {r->nll[QUESTION].n, r->nll[ANSWER].n};
    for (int k = 0; k < n_question + n_answer; k++) {
        int part = k < n_question ? QUESTION : ANSWER;
        double nll = 3 * test_draw();
        add_both(&own->kl, &r->kl, -log(1 - test_draw())), add_both(&own->top1, &r->top1, test_draw() < 0.7);
        add_both(&own->nll[part], &r->nll[part], nll), add_both(&own->more_nll, &r->more, nll - dense[k]);
    }
    want(f, "top1", mean_from(&r->top1, first)), want(f, "kl", mean_from(&r->kl, first));
    want(f, "ppl_question", exp(mean_from(&r->nll[QUESTION], first_part[QUESTION])));
    want(f, "ppl_answer", exp(mean_from(&r->nll[ANSWER], first_part[ANSWER])));
    want(f, "ln_ppl_ratio", mean_from(&r->more, first)), want(f, "positions", n_question + n_answer);
    for (int k = 0; k < N_PARTS; k++) end_both(&own->nll[k], &r->nll[k]);
    end_both(&own->kl, &r->kl), end_both(&own->top1, &r->top1), end_both(&own->more_nll, &r->more);
}

static void make_outputs(made *m, int i, int n_steps, fields *f) {
    compare_outputs *o = &m->c.methods[i].outputs;
    records *r = &m->of[i];
    double sum = 0;
    o->x = realloc(o->x, sizeof r->outputs);
    for (int k = 0; k < n_steps * N; k++, r->n_outputs++, o->n++) {
        CHECK(r->n_outputs < MAX_OUTPUTS);
        r->step_of[r->n_outputs] = m->n_steps - n_steps + k / N;
        for (int which = 0; which < 2; which++)
            o->x[o->n][which] = (float)(r->outputs[r->n_outputs][which] = (float)test_draw());
        sum += r->outputs[r->n_outputs][0];
    }
    want(f, "l2", m->c.o->compare->heads ? sum / (n_steps * N) : (double)NAN);
}

// The free run of a method: its answer against that of dense attention.
static void make_free_run(made *m, int i, fields *f) {
    compare_method *own = &m->c.methods[i];
    records *r = &m->of[i];
    const sl_ids *a = &m->c.dense.ids, *b = &own->answer.ids;
    int n = (int)(a->n < b->n ? a->n : b->n), same = 0, differs = 0;
    double nll = test_draw();
    for (int k = 0; k < n; k++) same += a->data[k] == b->data[k];
    while (differs < n && a->data[differs] == b->data[differs]) differs++;
    int is_same = a->n == b->n && differs == n;
    own->n_identical += is_same, m->n_identical[i] += is_same;
    add_both(&own->agreement, &r->agreement, (double)same / n), add_both(&own->prefix, &r->prefix, differs);
    add_both(&own->text_nll, &r->text_nll, nll), end_both(&own->text_nll, &r->text_nll);
    want(f, "differs_at", is_same ? (double)NAN : differs), want(f, "agreement", (double)same / n), want(f, "text_nll", nll);
}

static void make_prompt(made *m, int p) {
    compare_prompt *prompt = &m->c.prompts[p];
    fields *f = &m->prompt_fields[p], *dense = &m->answers[p][MAX_METHODS];
    int n_question = p % 3, n_answer = 2 + test_below(4), texts = m->o.compare.texts;
    double nll[16];
    *prompt = (compare_prompt){.id = p ? json_integer(70 + p) : NULL, .sequence = 900u + (uint32_t)p, .n_dense = 3 + p};
    for (int k = 0; k < 5 + p; k++) CHECK_OK(sl_ids_push(&prompt->ids, k, &err), err);
    want(f, "id", p ? 70 + p : 0), want(f, "sequence", 900 + p), want(f, "n_prompt", 5 + p), want(f, "n_dense", 3 + p);
    want_list(f, "dense"), want_list(f, "methods");
    for (int k = 0; k < N_PARTS; k++) prompt->first_of[k] = m->c.dense_nll[k].n;
    int first[N_PARTS] = {m->dense_nll[QUESTION].n, m->dense_nll[ANSWER].n};
    for (int k = 0; k < n_question + n_answer; k++) {
        int part = k < n_question ? QUESTION : ANSWER;
        nll[k] = 3 * test_draw(), add_both(&m->c.dense_nll[part], &m->dense_nll[part], nll[k]);
    }
    for (int k = 0; k < N_PARTS; k++) end_both(&m->c.dense_nll[k], &m->dense_nll[k]), prompt->end_of[k] = m->c.dense_nll[k].n;
    int n_steps = 1 + test_below(3);
    m->n_steps += n_steps, prompt->n_steps = m->c.n_steps = m->n_steps;
    double text_nll = test_draw();
    if (texts) {
        make_answer(&m->c.dense, 4, m->texts[p][MAX_METHODS], dense);
        add_both(&m->c.dense_text_nll, &m->dense_text, text_nll), end_both(&m->c.dense_text_nll, &m->dense_text);
    } else {
        want_text(dense, "text", NULL), want_list(dense, "ids"), want_text(dense, "stopped", NULL);
    }
    want(dense, "text_nll", texts ? text_nll : (double)NAN);
    want(dense, "ppl_question", exp(mean_from(&m->dense_nll[QUESTION], first[QUESTION])));
    want(dense, "ppl_answer", exp(mean_from(&m->dense_nll[ANSWER], first[ANSWER])));
    for (int i = 0; i < m->c.attn.n; i++) {
        fields *own = &m->answers[p][i];
        if (texts) {
            make_answer(&m->c.methods[i].answer, 3 + test_below(3), m->texts[p][i], own);
            make_free_run(m, i, own);
        } else {
            want_text(own, "text", NULL), want_list(own, "ids"), want_text(own, "stopped", NULL);
            want(own, "differs_at", NAN), want(own, "agreement", NAN), want(own, "text_nll", NAN);
        }
        want_text(own, "attn", m->c.attn.names[i]), want_text(own, "attn_prefill", m->c.prefills.names[i / DECODE]);
        make_values(m, i, n_question, n_answer, nll, own);
        make_outputs(m, i, n_steps, own);
    }
    m->prompts[p] = compare_prompt_json(&m->c, prompt, p);
}

static void make(made *m, int n_prompts, int n_args, char **args) {
    static compare_prompt prompts[MAX_PROMPTS];
    compare *c = &m->c;
    CHECK_OK(cli_options_parse(&m->o, CLI_COMPARE, n_args, args, &err), err);
    m->flags = (cli_compare_flags){&m->o.run, &m->o.input, &m->o.chat, &m->o.compare, &m->o.output, &m->o.given};
    c->o = &m->flags, c->prompts = prompts;
    CHECK_OK(sl_model_load(tiny(), NULL, &c->run.model, &err), err);
    CHECK_OK(sl_engine_new(c->run.model, &(sl_engine_options){.n_ctx = 16, .n_threads = 1}, &c->run.engine, &err), err);
    cli_model_name_of(c->run.model, tiny(), &c->name);
    CHECK_OK(cli_attn_list_parse("--attn", &m->o.run.attention.attns, &c->attn, &err), err);
    CHECK_OK(cli_prefill_list_parse(&m->o.run.attention, &c->prefills, &err), err);
    c->n_decode = c->attn.n;
    CHECK_INT(c->n_decode, DECODE);
    CHECK_OK(cli_attn_list_repeat(&c->attn, c->prefills.n, &err), err);
    c->run.sampling.temp = 0.25f;
    c->methods = calloc(MAX_METHODS, sizeof *c->methods), c->profiles = calloc(N, sizeof *c->profiles);
    c->prefill_heads = m->reports, c->prefill_ms = calloc(2, sizeof *c->prefill_ms), c->n_timed = calloc(2, sizeof *c->n_timed);
    for (int i = 0; i < c->attn.n; i++) {
        c->methods[i].text = c->attn.names[i], c->methods[i].prefill = c->prefills.names[i / DECODE];
        c->methods[i].heads = calloc(N, sizeof *c->methods[i].heads);
    }
    for (c->n_prompts = 0; c->n_prompts < n_prompts;) {
        make_prompt(m, c->n_prompts); // prompt_error needs the prompts before
        c->n_prompts++;
    }
    for (int i = 0; i < c->attn.n; i++) make_method(m, i);
    for (int i = 0; i < c->prefills.n * N; i++) m->reports[i] = make_report(i < N && c->prefills.n > 1);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 7; j++) ((double *)&c->profiles[i])[j] = 5 * test_draw();
    for (int k = 0; k < c->prefills.n; k++) c->prefill_ms[k] = 800 * test_draw(), c->n_timed[k] = 2 + k;
}

static void drop_values(cli_values *v, int n) {
    for (int i = 0; i < n; i++) cli_values_free(&v[i]);
}

static void drop(made *m) {
    compare *c = &m->c;
    for (int i = 0; i < c->attn.n; i++) {
        compare_method *own = &c->methods[i];
        drop_values(&own->agreement, 3), drop_values(&own->kl, 2), drop_values(own->nll, N_PARTS + 1);
        drop_values(&m->of[i].agreement, 8);
        sl_ids_free(&own->answer.ids), sl_text_free(&own->answer.text);
        free(own->heads), free(own->outputs.x);
    }
    drop_values(c->dense_nll, N_PARTS), drop_values(&c->dense_text_nll, 1), drop_values(m->dense_nll, 3);
    for (int p = 0; p < c->n_prompts; p++) {
        json_decref(m->prompts[p]), json_decref(c->prompts[p].id);
        sl_ids_free(&c->prompts[p].ids);
    }
    sl_ids_free(&c->dense.ids), sl_text_free(&c->dense.text);
    free(c->methods), free(c->profiles), free(c->prefill_ms), free(c->n_timed);
    cli_attn_list_free(&c->attn), cli_attn_list_free(&c->prefills);
    sl_engine_free(c->run.engine), sl_model_free(c->run.model);
    cli_options_free(&m->o);
}

// ---- figures ----

// The values of the outputs of a layer (-1: of all), in groups of prompts, or of steps if there are fewer than 8 prompts.
static cli_values outputs_of(const made *m, int i, int which, int layer) {
    const records *r = &m->of[i];
    cli_values v = {0};
    for (int k = 0; k < r->n_outputs; k++) {
        if (layer < 0 || k % N / HEADS == layer) add_value(&v, r->outputs[k][which]);
        int step = r->step_of[k], prompt = 0, is_last = k + 1 == r->n_outputs;
        while (m->c.prompts[prompt].n_steps <= step) prompt++;
        int ends_step = is_last || r->step_of[k + 1] != step;
        if (m->c.n_prompts < 8 ? ends_step : is_last || r->step_of[k + 1] == m->c.prompts[prompt].n_steps) end_group(&v);
    }
    return v;
}

static void want_reads(fields *f, const made *m, int i, int first, int n) {
    compare_head s = {0};
    for (int h = first; h < first + n; h++) {
        const double *x = (const double *)&m->c.methods[i].heads[h];
        for (size_t k = 0; k < sizeof s / sizeof *x; k++) ((double *)&s)[k] += x[k];
    }
    want(f, "bias", s.bias / s.n), want(f, "k_rows", s.k_rows / s.n), want(f, "v_rows", s.v_rows / s.n);
    want(f, "v_distinct", i == 1 ? (double)NAN : s.v_distinct / s.n), want(f, "samples", s.samples / s.n);
    want(f, "ess", s.ess / s.n), want(f, "coefficient_spread", s.spread / s.n);
    want(f, "bytes", s.bytes / s.n), want(f, "bytes_share", s.bytes / s.dense_bytes);
}

static void want_outputs(fields *f, const made *m, int i, int layer) {
    cli_values l2 = outputs_of(m, i, 0, layer), cosine = outputs_of(m, i, 1, layer);
    want(f, "head_outputs", m->n_steps * (layer < 0 ? N : HEADS));
    want_mean(f, "l2", &l2, 0), want_mean(f, "cosine", &cosine, 0);
    want_quantile(f, "l2", "_median", &l2, 0.5), want_quantile(f, "l2", "_90", &l2, 0.9);
    want_quantile(f, "cosine", "_10", &cosine, 0.1), want_quantile(f, "cosine", "_median", &cosine, 0.5);
    want_reads(f, m, i, layer < 0 ? 0 : layer * HEADS, layer < 0 ? N : HEADS);
    cli_values_free(&l2), cli_values_free(&cosine);
}

static void want_quantiles(fields *f, const char *name, const cli_values *v) {
    want_quantile(f, name, "_10", v, 0.1), want_quantile(f, name, "_median", v, 0.5), want_quantile(f, name, "_90", v, 0.9);
}

static void want_texts(fields *f, const made *m, int i) {
    const records *r = &m->of[i];
    const compare_method *own = &m->c.methods[i];
    want(f, "identical", m->n_identical[i]);
    want_mean(f, "agreement", &r->agreement, 0), want_mean(f, "common_prefix", &r->prefix, 0);
    want(f, "kv_bytes_share", (double)own->read.bytes / (double)own->read.dense_bytes);
    want_mean(f, "text_nll", &r->text_nll, 1), want_quantiles(f, "text_nll", &r->text_nll);
    want_mean(f, "text_nll_dense", &m->dense_text, 1), want_quantiles(f, "text_nll_dense", &m->dense_text);
}

static void want_next_tokens(fields *f, const made *m, int i) {
    const records *r = &m->of[i];
    const sl_attn_stats *s = &m->c.methods[i].forced;
    double stated = s->stated ? (double)s->stated : (double)NAN, most = 0;
    cli_interval top1 = cli_values_share(&r->top1);
    for (int k = 0; k < r->kl.n; k++) most = fmax(most, r->kl.x[k]);
    want(f, "positions", r->kl.n), want(f, "question_tokens", r->nll[QUESTION].n), want(f, "answer_tokens", r->nll[ANSWER].n);
    want(f, "top1", mean_of_values(r->top1.x, r->top1.n)), want(f, "top1_se", error_of(&r->top1));
    want(f, "top1_low", top1.low), want(f, "top1_high", top1.high);
    want_mean(f, "kl", &r->kl, 1), want(f, "kl_max", most);
    want_quantile(f, "kl", "_median", &r->kl, 0.5), want_quantile(f, "kl", "_90", &r->kl, 0.9);
    want_quantile(f, "kl", "_99", &r->kl, 0.99);
    want_perplexity(f, "ppl_question", &r->nll[QUESTION]), want_perplexity(f, "ppl_answer", &r->nll[ANSWER]);
    want_perplexity(f, "ppl_question_dense", &m->dense_nll[QUESTION]);
    want_perplexity(f, "ppl_answer_dense", &m->dense_nll[ANSWER]);
    want_mean(f, "ln_ppl_ratio", &r->more, 1);
    want(f, "step_bytes", (double)s->bytes / r->kl.n), want(f, "step_bytes_share", (double)s->bytes / (double)s->dense_bytes);
    want(f, "layer_steps", (double)s->stated), want(f, "certified_share", (double)s->certified / stated);
    want(f, "unbounded_share", (double)s->unbounded / stated);
    want(f, "stated_error", (double)s->stated_units / SL_STATED_UNIT / (stated - (double)s->unbounded));
    want(f, "stated_error_max", stated > 0 ? s->stated_most : (double)NAN);
}

// The figures of sparse prefills of all heads together.
static void want_prefill(fields *f, const made *m, int i) {
    int k = i / DECODE, has_question = m->of[i].nll[QUESTION].n > 0;
    double visited = 0, causal = 0, kept = INFINITY, measured = INFINITY, errors = 0, n = 0, most = NAN;
    for (int h = k * N; h < (k + 1) * N; h++) {
        const sl_prefill_report *r = &m->reports[h];
        visited += (double)r->visited, causal += (double)r->causal, errors += r->errors, n += (double)r->n_errors;
        if (r->kept >= 0) kept = fmin(kept, r->kept), measured = fmin(measured, r->measured);
        if (r->n_errors) most = fmax(r->error_max, isnan(most) ? 0 : most);
    }
    double feed = m->o.compare.texts ? m->c.methods[i].feed_ms / m->c.n_prompts : has_question ? (double)NAN : 0;
    want(f, "ttft_ms", m->c.prefill_ms[k] / m->c.n_timed[k] + feed);
    want(f, "prefill_density", visited / causal), want(f, "prefill_error", errors / n), want(f, "prefill_error_max", most);
    want(f, "prefill_kept", kept / 16777216), want(f, "prefill_cra", measured / 16777216);
}

static void want_method(fields *f, const made *m, int i) {
    f->n = 0;
    want_text(f, "attn", m->c.attn.names[i]), want_text(f, "attn_prefill", m->c.prefills.names[i / DECODE]);
    want(f, "prompts", m->c.n_prompts);
    want_texts(f, m, i), want_next_tokens(f, m, i), want_outputs(f, m, i, -1);
    if (m->o.run.attention.attn_prefills.n) want_prefill(f, m, i);
}

static void want_dense(fields *f, const made *m) {
    want_text(f, "attn", "(dense)"), want_text(f, "attn_prefill", "dense"), want(f, "step_bytes_share", 1);
    want_mean(f, "text_nll", &m->dense_text, 1), want_quantiles(f, "text_nll", &m->dense_text);
    want_perplexity(f, "ppl_question", &m->dense_nll[QUESTION]), want_perplexity(f, "ppl_answer", &m->dense_nll[ANSWER]);
}

static const char *const profile_names[] = {"keys_entropy",  "keys_squares",    "sink",   "window",
                                            "distance_mean", "distance_median", "rows_90"};

// Means over steps of a head, or of the heads of a layer, with the least and the greatest head.
static void want_profile(fields *f, const made *m, int first, int n) {
    for (int j = 0; j < 7; j++) {
        double x[HEADS], least, most;
        char key[64];
        for (int h = 0; h < n; h++) x[h] = ((const double *)&m->c.profiles[first + h])[j] / m->n_steps;
        least = quantile_of(x, n, 0), most = quantile_of(x, n, 1);
        want(f, profile_names[j], mean_of_values(x, n));
        snprintf(key, sizeof key, "%s_low", profile_names[j]);
        if (n > 1) want(f, key, least);
        snprintf(key, sizeof key, "%s_high", profile_names[j]);
        if (n > 1) want(f, key, most);
    }
}

static const json_t *item(const json_t *o, const char *list, int i) {
    const json_t *found = json_array_get(json_object_get(o, list), (size_t)i);
    if (!found) FAIL("\"%s\" has no item %d", list, i);
    return found;
}

// ---- checks ----

static void check_heads(const made *m, const json_t *method, int i, double close) {
    const compare_method *own = &m->c.methods[i];
    CHECK_INT(json_array_size(json_object_get(method, "heads")), m->o.compare.heads ? N : 0);
    CHECK_INT(json_array_size(json_object_get(method, "layers")), m->o.compare.heads ? LAYERS : 0);
    CHECK_INT(json_array_size(json_object_get(method, "tiles")), m->o.compare.heads ? N_TILES : 0);
    for (int h = 0; m->o.compare.heads && h < N; h++) {
        fields f = {.n = 0};
        want(&f, "layer", h / HEADS), want(&f, "head", h % HEADS), want_reads(&f, m, i, h, 1);
        want(&f, "l2", own->heads[h].error / own->heads[h].n), want(&f, "cosine", own->heads[h].cosine / own->heads[h].n);
        check_fields(item(method, "heads", h), &f, close);
    }
    for (int layer = 0; m->o.compare.heads && layer < LAYERS; layer++) {
        fields f = {.n = 0};
        want(&f, "layer", layer), want_outputs(&f, m, i, layer);
        check_fields(item(method, "layers", layer), &f, close);
    }
    for (int t = 0; m->o.compare.heads && t < N_TILES; t++) {
        fields f = {.n = 0};
        const compare_tiles *sum = &own->tiles[t];
        want_text(&f, "tiles", (const char *[]){"1", "2", "3-4", "5-8", "9+"}[t]), want(&f, "head_outputs", sum->n);
        want(&f, "l2", sum->error / sum->n), want(&f, "cosine", sum->cosine / sum->n);
        check_fields(item(method, "tiles", t), &f, close);
    }
}

static void check_prefill_heads(const made *m, const json_t *method, int i, double close) {
    static const char *const names[] = {"density", "kept", "cra", "error", "error_max"};
    const json_t *lists = json_object_get(method, "prefill_heads");
    if (json_is_null(lists)) { // dense
        CHECK(m->reports[i / DECODE * N].causal == 0);
        return;
    }
    CHECK_INT(json_object_size(lists), 5);
    for (int j = 0; j < 5; j++)
        for (int h = 0; h < N; h++) {
            const sl_prefill_report *r = &m->reports[i / DECODE * N + h];
            const double all[] = {(double)r->visited / (double)r->causal, r->kept / 16777216.0, r->measured / 16777216.0,
                                  r->errors / (double)r->n_errors, r->error_max};
            const json_t *heads = item(lists, names[j], h / HEADS);
            CHECK_NEAR(json_number_value(json_array_get(heads, (size_t)(h % HEADS))), all[j], close * all[j]);
        }
}

static int print_json(void *ctx, sl_error *e) {
    made *m = ctx;
    json_t *rows = compare_rows(&m->c, e);
    m->c.rows = json_array();
    for (int p = 0; p < m->c.n_prompts; p++) json_array_append(m->c.rows, m->prompts[p]);
    int rc = rows ? compare_print_summary(&m->c, rows, e) : SL_ERR_MEMORY;
    json_decref(rows), json_decref(m->c.rows);
    return rc;
}

static void check_document(made *m) {
    char device[256];
    fields f = {.n = 0};
    m->o.output.format = "json";
    const char *text = capture(print_json, m);
    json_t *out = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    CHECK(out != NULL && !strncmp(text, "{\n \"", 4)); // indented by a blank
    sl_engine_describe(m->c.run.engine, device, sizeof device);
    want_text(&f, "model", "tiny"), want_text(&f, "model_type", "llama"), want(&f, "n_params", m->c.name.n_params);
    want_text(&f, "dtype", "bf16"), want(&f, "dummy", 0), want_text(&f, "version", SLEIGH_VERSION);
    want_text(&f, "commit", cli_commit()), want_text(&f, "device", device), want(&f, "seed", 5), want(&f, "temp", 0.25);
    want(&f, "n_predict", 64), want(&f, "interrupted", m->c.is_partial), want(&f, "steps", m->n_steps);
    want_list(&f, "attention"), want_list(&f, "prompts"), want_list(&f, "methods");
    if (m->o.run.attention.attn_prefill_layers.n) want_list(&f, "attn_prefill_layer");
    check_fields(out, &f, 1e-8);
    CHECK_INT(json_array_size(json_object_get(out, "methods")), m->c.attn.n);
    CHECK_INT(json_array_size(json_object_get(out, "prompts")), m->c.n_prompts);
    CHECK_INT(json_array_size(json_object_get(out, "attention")), m->o.compare.attention ? N : 0);
    for (int i = 0; i < m->c.attn.n; i++) {
        const json_t *method = item(out, "methods", i);
        static fields own;
        want_method(&own, m, i);
        want_list(&own, "heads"), want_list(&own, "layers"), want_list(&own, "tiles");
        if (json_is_null(json_object_get(method, "prefill_heads")))
            want(&own, "prefill_heads", NAN);
        else
            want_list(&own, "prefill_heads");
        check_fields(method, &own, 1e-8);
        check_heads(m, method, i, 1e-8), check_prefill_heads(m, method, i, 1e-8);
    }
    for (int h = 0; m->o.compare.attention && h < N; h++) {
        fields own = {.n = 0};
        want(&own, "layer", h / HEADS), want(&own, "head", h % HEADS), want_profile(&own, m, h, 1);
        check_fields(item(out, "attention", h), &own, 1e-8);
    }
    for (int p = 0; p < m->c.n_prompts; p++) {
        const json_t *prompt = item(out, "prompts", p);
        compare_prompt other = m->c.prompts[p]; // two tokens and an answer are decoded; or a path of 20 tokens from token 2 on
        int runs = 1 + m->c.attn.n, more = m->o.compare.texts ? runs * (2 + 64) : 0,
            observes = !m->o.compare.texts && m->o.compare.heads;
        CHECK_INT(compare_steps(&m->c, &other), more + (runs + observes) * (2 + 64 - 1));
        other.reference.n = 20, other.n_before = 2;
        CHECK_INT(compare_steps(&m->c, &other), more + (runs + observes) * (20 - 1 - 2));
        check_fields(prompt, &m->prompt_fields[p], 1e-8);
        check_fields(json_object_get(prompt, "dense"), &m->answers[p][MAX_METHODS], 1e-8);
        CHECK_INT(json_array_size(json_object_get(prompt, "methods")), m->c.attn.n);
        for (int i = 0; i < m->c.attn.n; i++) check_fields(item(prompt, "methods", i), &m->answers[p][i], 1e-8);
    }
    json_decref(out);
}

// ---- tables ----

// clang-format off
#define METHOD {"method", "{attn}"}
#define PREFILL {"prefill", "{attn_prefill}"}
#define CERTIFIED {"layer-steps certified %", "{certified_share*100:%.1f}"}, {"stated error", "{stated_error:%.3f}"}
static const column free_columns[] = {
    METHOD, PREFILL, {"identical", "{identical}"},
    {"equal tokens before the first difference", "{common_prefix:%.1f} ± {common_prefix_se:%.1f}"},
    {"agreement %", "{agreement*100:%.1f} ± {agreement_se*100:%.1f}"}, {"KV bytes %", "{kv_bytes_share*100:%.2f}"},
    {"texts: ln(perplexity) with dense attention", "{text_nll:%.4f} ± {text_nll_se:%.4f}"}, {"texts: 10%", "{text_nll_10:%.4f}"},
    {"texts: median", "{text_nll_median:%.4f}"}, {"texts: 90%", "{text_nll_90:%.4f}"}};
static const column forced_columns[] = {
    METHOD, PREFILL, {"top-1 agreement %", "{top1*100:%.1f} ({top1_low*100:%.1f} to {top1_high*100:%.1f})"},
    {"KL mean", "{kl:%.3g} ± {kl_se:%.3g}"}, {"KL median", "{kl_median:%.3g} ({kl_median_low:%.3g} to {kl_median_high:%.3g})"},
    {"KL 90%", "{kl_90:%.3g} ({kl_90_low:%.3g} to {kl_90_high:%.3g})"},
    {"KL 99%", "{kl_99:%.3g} ({kl_99_low:%.3g} to {kl_99_high:%.3g})"}, {"KL max", "{kl_max:%.3g}"},
    {"perplexity, question", "{ppl_question:%.4f} ± {ppl_question_se:%.4f}"},
    {"perplexity, answer", "{ppl_answer:%.4f} ± {ppl_answer_se:%.4f}"},
    {"ln(perplexity / dense)", "{ln_ppl_ratio:%.5f} ± {ln_ppl_ratio_se:%.5f}"}, {"KV bytes %", "{step_bytes_share*100:%.2f}"},
    {"TTFT ms", "{ttft_ms:%.1f}"}, {"density %", "{prefill_density*100:%.1f}"}, {"estimated CRA %", "{prefill_kept*100:%.1f}"},
    {"CRA %", "{prefill_cra*100:%.1f}"}, {"prefill error", "{prefill_error:%.4f}"}, CERTIFIED};
static const column head_columns[] = {
    METHOD, {"L2 mean", "{l2:%.4f} ± {l2_se:%.4f}"}, {"L2 median", "{l2_median:%.4f} ({l2_median_low:%.4f} to {l2_median_high:%.4f})"},
    {"L2 90%", "{l2_90:%.4f}"}, {"cosine mean", "{cosine:%.4f} ± {cosine_se:%.4f}"}, {"cosine median", "{cosine_median:%.4f}"},
    {"cosine 10%", "{cosine_10:%.4f}"}, {"bias", "{bias:%+.5f}"}, {"K rows", "{k_rows:%.1f}"}, {"V rows", "{v_rows:%.1f}"},
    {"distinct V rows of a KV head", "{v_distinct:%.1f}"}, {"effective samples", "{ess:%.1f}"},
    {"coefficient spread", "{coefficient_spread:%.2f}"}, {"bytes %", "{bytes_share*100:%.2f}"}};
#define RANGE(TITLE, KEY, SCALE, FORM) {TITLE, "{" KEY SCALE FORM "} ({" KEY "_low" SCALE FORM "} to {" KEY "_high" SCALE FORM "})"}
static const column attention_columns[] = {
    {"layer", "{layer}"}, RANGE("effective keys, exp(entropy)", "keys_entropy", "", ":%.1f"),
    RANGE("effective keys, 1 / sum p^2", "keys_squares", "", ":%.1f"),
    RANGE("mass of the first 4 tokens %", "sink", "*100", ":%.1f"), RANGE("mass of the last 256 tokens %", "window", "*100", ":%.1f"),
    RANGE("mean distance", "distance_mean", "", ":%.0f"), RANGE("median distance", "distance_median", "", ":%.0f"),
    RANGE("rows with 90% of the mass", "rows_90", "", ":%.0f")};
// clang-format on
#define COUNT(LIST) ((int)(sizeof(LIST) / sizeof *(LIST)))

// A field that a row of dense attention lacks is null there.
static void complete(fields *dense, const fields *method) {
    for (int i = 0; i < method->n; i++) {
        int found = 0;
        for (int j = 0; j < dense->n; j++) found |= !strcmp(dense->at[j].name, method->at[i].name);
        if (!found) want(dense, method->at[i].name, NAN);
    }
}

// The columns without those that the run does not have.
static int chosen(const made *m, const column *all, int n, column *out) {
    int k = 0;
    for (int i = 0; i < n; i++) {
        int of_prefill = !strcmp(all[i].title, "prefill") || strstr(all[i].cell, "ttft_ms") || strstr(all[i].cell, "{prefill_");
        int unknown =
            !strcmp(all[i].title, "TTFT ms") && !m->o.compare.texts && m->of[0].nll[QUESTION].n; // decoding was not timed
        if ((m->o.run.attention.attn_prefills.n || !of_prefill) && !unknown) out[k++] = all[i];
    }
    return k;
}

// The counts in the line before a table.
static void check_heading(const made *m, const char *md) {
    char lines[3][96];
    int n[3] = {m->of[0].kl.n, m->of[0].n_outputs, m->n_steps};
    snprintf(lines[0], sizeof *lines, ": %d prompt%s, seed 5, %d position%s", m->c.n_prompts, m->c.n_prompts > 1 ? "s" : "",
             n[0], n[0] > 1 ? "s" : "");
    snprintf(lines[1], sizeof *lines, ": %d outputs; ", n[1]);
    snprintf(lines[2], sizeof *lines, ": %d step%s; ", n[2], n[2] > 1 ? "s" : "");
    for (int i = 0; i < 3; i++)
        if (i == 0 || (i == 1 ? m->o.compare.heads : m->o.compare.attention)) CHECK_HAS(md, lines[i]);
}

static void check_tables(made *m) {
    static fields rows[1 + MAX_METHODS], layers[LAYERS];
    column columns[32];
    memset(rows, 0, sizeof rows), memset(layers, 0, sizeof layers);
    m->o.output.format = "md";
    const char *md = capture(print_json, m);
    check_heading(m, md);
    want_dense(&rows[0], m);
    for (int i = 0; i < m->c.attn.n; i++) want_method(&rows[1 + i], m, i);
    complete(&rows[0], &rows[1]);
    for (int i = 0; i < LAYERS; i++) want(&layers[i], "layer", i), want_profile(&layers[i], m, i * HEADS, HEADS);
    if (m->o.compare.texts)
        check_table(md, columns, chosen(m, free_columns, COUNT(free_columns), columns), rows, 1 + m->c.attn.n);
    CHECK(m->o.compare.texts == (strstr(md, "identical") != NULL));
    check_table(md, columns, chosen(m, forced_columns, COUNT(forced_columns), columns), rows, 1 + m->c.attn.n);
    if (m->o.compare.heads) check_table(md, head_columns, COUNT(head_columns), rows + 1, DECODE);
    CHECK(m->o.compare.heads == (strstr(md, "L2 mean") != NULL));
    if (m->o.compare.attention) check_table(md, attention_columns, COUNT(attention_columns), layers, LAYERS);
    CHECK(m->o.compare.attention == (strstr(md, "mean distance") != NULL));
}

static void try_made(int n_prompts, int n_args, char **args) {
    static made m;
    memset(&m, 0, sizeof m);
    make(&m, n_prompts, n_args, args);
    check_document(&m);
    check_tables(&m);
    drop(&m);
}

static void figures(void) {
    char *plain[] = {"--attn", "santa:S=8,topk:k=4", "--seed", "5"},
         *all[] = {"--attn", "santa:S=8,topk:k=4", "--seed", "5", "--attention", "--attn-prefill", "dense,streaming"},
         *few[] = {"--attn", "santa:S=8,topk:k=4", "--seed", "5", "--no-texts", "--no-heads", "--attn-prefill", "streaming"};
    test_draw_from(test_seed);
    try_made(9, 7, all);
    try_made(3, 4, plain);
    try_made(8, 8, few);
    try_made(1, 8, few); // without a question
}

static const test_case cases[] = {{"figures", 0, figures}, {0}};
extern const test_suite suite_figures_compare;
const test_suite suite_figures_compare = {"figures_compare", cases};
