// cli/tune/tune_prompts.c - the prompts of sleigh tune, and one measurement on a prompt; see tune.h.
#include "base/hash.h"
#include "cli/error_text.h"
#include "cli/grow.h"
#include "cli/output/progress_bar.h"
#include "cli/output/summary.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/tune/tune.h"
#include "cli/watch.h"
#include "engine/logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_SEEDS = 8 }; // draws of a layer-step, for its mean square error

// ---- making prompts ----

static tune_prompt *new_prompt(tune *t, sl_error *err) {
    tune_prompt *grown = cli_grow(t->prompts, t->n_prompts, &t->cap_prompts, sizeof *grown);
    if (!grown) {
        sl_fail(err, SL_ERR_MEMORY, "prompts: out of memory");
        return NULL;
    }
    t->prompts = grown;
    grown[t->n_prompts] = (tune_prompt){0};
    return &grown[t->n_prompts++];
}

static int set_question(tune *t, tune_prompt *p, sl_error *err) {
    p->item = &p->text.items[0];
    int rc = eval_prompt_ids(&t->prompter, &p->text.context, p->item, &p->ids, &p->n_context, err);
    if (!rc && p->ids.n == 0) rc = sl_fail(err, SL_ERR_FORMAT, "the prompt is empty");
    if (t->o.tasks->question_dense || p->n_context < 1) p->n_context = (int)p->ids.n;
    return rc;
}

static int make_task(tune *t, int task, int length, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < t->o.tasks->samples + t->o.tune->check; i++) {
        tune_prompt *p = new_prompt(t, err);
        if (!p) return SL_ERR_MEMORY;
        snprintf(p->name, sizeof p->name, "%s/%d/%d", eval_task_name(task), length, i);
        p->length = length, p->is_check = i >= t->o.tasks->samples;
        rc = eval_task_text(&t->maker, task, length, (uint32_t)i, &p->text, err);
        if (!rc) rc = set_question(t, p, err);
    }
    return rc;
}

static int make_tasks(tune *t, sl_error *err) {
    int rc = 0;
    for (const char *p = t->o.tasks->tasks; !rc && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, ","), p);
        int task = eval_task_find(name), all = !strcmp(name, "all");
        if (task < 0 && !all)
            return sl_fail(err, SL_ERR_ARG, "--task %s: unknown task; `sleigh eval --help` lists all tasks", name);
        for (int k = 0; !rc && eval_task_name(k); k++)
            for (int i = 0; !rc && (all || k == task) && i < t->o.tasks->lengths.n; i++)
                rc = make_task(t, k, t->o.tasks->lengths.at[i], err);
    }
    return rc;
}

int tune_range_from(const cli_ints *lengths, int i) {
    return i ? (lengths->at[i - 1] + lengths->at[i]) / 2 : lengths->at[0] - lengths->at[0] / 4;
}

// The --length that a prompt of n tokens belongs to; 0: it is shorter than every range.
static int length_of(const tune *t, int n) {
    int found = 0;
    for (int i = 0; i < t->o.tasks->lengths.n; i++)
        if (n >= tune_range_from(&t->o.tasks->lengths, i)) found = t->o.tasks->lengths.at[i];
    return found;
}

// Gives the last prompt, of line `line`, to a length. Of the prompts of a length the first --samples are for tuning, and the
// next
// --check for the check.
static int place_line(tune *t, int line, sl_error *err) {
    tune_prompt *p = &t->prompts[t->n_prompts - 1];
    int n_before = 0, limit = sl_model_config(t->run.model)->n_ctx;
    if ((int)p->ids.n > limit)
        return sl_fail(err, SL_ERR_CONTEXT, "%s: line %d: %zu tokens; expected at most %d, this model's context",
                       t->o.tasks->jsonl, line, p->ids.n, limit);
    snprintf(p->name, sizeof p->name, "line/%d", line);
    p->length = length_of(t, (int)p->ids.n);
    for (int i = 0; i + 1 < t->n_prompts; i++) n_before += t->prompts[i].length == p->length;
    p->is_check = n_before >= t->o.tasks->samples;
    if (p->length && n_before < t->o.tasks->samples + t->o.tune->check) return 0;
    sl_ids_free(&p->ids), eval_text_free(&p->text);
    t->n_prompts--;
    return 0;
}

static int make_lines(tune *t, sl_error *err) {
    int rc = eval_records_read(t->o.tasks->jsonl, GRADE_NONE, NULL, t->o.tasks->n_predict, &t->records, err);
    for (int i = 0; !rc && i < t->records.n; i++) {
        tune_prompt *p = new_prompt(t, err);
        if (!p) return SL_ERR_MEMORY;
        p->text = t->records.at[i].text, t->records.at[i].text = (eval_text){0};
        rc = set_question(t, p, err);
        if (!rc) rc = place_line(t, t->records.at[i].line, err);
    }
    return rc;
}

static int make_texts(tune *t, sl_error *err) {
    cli_records r;
    json_t *record;
    int rc = cli_records_open(&r, t->o.tasks->jsonl, CLI_RECORDS_TEXTS, err);
    while (!rc && !(rc = cli_records_next(&r, &record, err)) && record) {
        const json_t *text = json_object_get(record, "text");
        tune_prompt *p = new_prompt(t, err);
        rc = !p ? SL_ERR_MEMORY
                : sl_tokenize(sl_model_tokenizer(t->run.model), json_string_value(text), json_string_length(text), SL_TOK_BOS,
                              &p->ids, err);
        if (!rc) p->n_context = (int)p->ids.n - t->o.tune->score;
        if (!rc && p->n_context < 1)
            rc = sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %zu tokens; expected more than --score %d", r.path, r.n_lines,
                         p->ids.n, t->o.tune->score);
        if (!rc) rc = place_line(t, r.n_lines, err);
        json_decref(record);
    }
    cli_records_close(&r);
    return rc;
}

int tune_make_prompts(tune *t, sl_error *err) {
    int rc = tune_is_kl(t) ? make_texts(t, err) : t->o.tasks->jsonl ? make_lines(t, err) : make_tasks(t, err);
    if (rc || t->n_prompts) return rc;
    return sl_fail(err, SL_ERR_FORMAT, "%s: expected prompts of at least %d tokens, found none; --length gives the ranges",
                   t->o.tasks->jsonl, tune_range_from(&t->o.tasks->lengths, 0));
}

void tune_free_prompts(tune *t) {
    for (int i = 0; i < t->n_prompts; i++) {
        tune_prompt *p = &t->prompts[i];
        if (p->has_context) cli_timeline_close(&p->context);
        sl_ids_free(&p->ids), eval_text_free(&p->text);
        free(p->logits);
    }
    free(t->prompts);
}

int tune_first_length(const tune *t) {
    int least = t->prompts[0].length;
    for (int i = 1; i < t->n_prompts; i++) least = t->prompts[i].length < least ? t->prompts[i].length : least;
    return least;
}

int tune_select(tune *t, int length, int is_check, tune_prompt **out) {
    int n = 0;
    for (int i = 0; i < t->n_prompts; i++)
        if (t->prompts[i].length == length && t->prompts[i].is_check == is_check) out[n++] = &t->prompts[i];
    return n;
}

// ---- one measurement ----

double tune_reward(const tune *t, double x) {
    return tune_is_kl(t) ? exp(-x) : x;
}

static int not_interrupted(const tune *t, sl_error *err) {
    if (!cli_interrupted()) return 0;
    return sl_fail(err, SL_ERR_IO, "interrupted; run the same command to continue (%d measurements are in %s)",
                   (int)json_object_size(t->log), t->log_path);
}

// Decodes the last tokens of a text. The first call, with dense attention, keeps the logits; later calls compare with them.
static int decode_text(tune *t, cli_timeline *at, tune_prompt *p, double *kl, sl_error *err) {
    size_t n_vocab = (size_t)sl_model_config(t->run.model)->n_vocab;
    int n = (int)p->ids.n - p->n_context, is_first = !p->logits, rc = 0;
    double sum = 0;
    if (is_first && !(p->logits = malloc(n * n_vocab * sizeof *p->logits)))
        return sl_fail(err, SL_ERR_MEMORY, "logits of %d tokens: out of memory", n);
    for (int i = 0; !rc && i < n; i++) {
        float *dense = p->logits + i * n_vocab;
        rc = sl_decode(&at->session, 1, &p->ids.data[p->n_context + i], err);
        if (rc) break;
        const float *own = sl_session_logits(at->session, err);
        if (!own) return SL_ERR_NOT_FINITE;
        if (is_first) memcpy(dense, own, n_vocab * sizeof *dense);
        sum += cli_kl(dense, sl_log_sum(dense, (int)n_vocab), own, sl_log_sum(own, (int)n_vocab), (int)n_vocab);
    }
    *kl = sum / n;
    return rc;
}

// Decodes what is left of the prompt, and the answer.
static int decode_answer(cli_timeline *at, tune_prompt *p, double *score, sl_error *err) {
    sl_text answer = {0};
    char extracted[EVAL_EXTRACT];
    json_t *whole = NULL;
    int from = sl_session_n_tokens(at->session), rc = sl_text_append(&answer, "", 0, err);
    if (!rc) rc = cli_timeline_feed(at, p->ids.data + from, (int)p->ids.n - from, err);
    if (!rc) rc = cli_timeline_generate(at, p->item->n_predict, 0, cli_sink_text, &answer, err);
    if (!rc && p->item->grader == GRADE_EXACT && p->item->answer.n)
        whole = json_pack("[s%]", p->item->answer.data, p->item->answer.n);
    if (!rc) *score = eval_grade(p->item->grader, answer.data, answer.n, whole ? whole : p->item->references, extracted);
    json_decref(whole);
    sl_text_free(&answer);
    return rc;
}

static int decode(tune *t, cli_timeline *at, tune_prompt *p, double *x, sl_error *err) {
    int rc = p->item ? decode_answer(at, p, x, err) : decode_text(t, at, p, x, err);
    return rc ? rc : not_interrupted(t, err);
}

static uint32_t sequence_of(const char *name) {
    return sl_fnv1a_32(SL_FNV1A_32_START, name, strlen(name));
}

// The prefill of a measurement: of the whole prompt, because the question must not depend on the method of decoding.
static int prefill(tune *t, tune_prompt *p, const char *attn, sl_error *err) {
    int rc = cli_run_set_prefill(&t->run, attn, NULL, err);
    if (!rc) rc = cli_run_set_attention(&t->run, "dense", err);
    if (!rc) rc = cli_timeline_cut(&t->t, 0, err);
    return rc ? rc : cli_timeline_prefill(&t->t, p->ids.data, p->item ? (int)p->ids.n : p->n_context, err);
}

int tune_prefill(tune *t, tune_prompt *p, const char *attn, tune_value *out, sl_error *err) {
    char name[512];
    int rc = 0;
    snprintf(name, sizeof name, "prefill/%.300s/%s", attn, p->name);
    json_t *value = tune_find(t, name);
    if (!value) {
        double x = 0;
        if (!p->item && !p->logits) rc = prefill(t, p, "dense", err);
        if (!p->item && !p->logits && !rc) rc = decode(t, &t->t, p, &x, err);
        if (!rc) rc = prefill(t, p, attn, err);
        if (!rc) rc = not_interrupted(t, err);
        sl_prefill_report report = sl_engine_prefill_total(t->run.engine);
        double ms = t->t.prefill_ms;
        if (!rc) rc = decode(t, &t->t, p, &x, err);
        if (!rc)
            rc = tune_record(t, name,
                             json_pack("{s:f, s:I, s:I, s:f}", "x", x, "visited", (json_int_t)report.visited, "causal",
                                       (json_int_t)report.causal, "ms", ms),
                             err);
        value = rc ? NULL : tune_find(t, name);
    }
    if (rc) return rc;
    *out = (tune_value){json_number_value(json_object_get(value, "x")), json_number_value(json_object_get(value, "visited")),
                        json_number_value(json_object_get(value, "causal")), json_number_value(json_object_get(value, "ms"))};
    return 0;
}

// Brings p->context to the end of the dense context.
static int hold_context(tune *t, tune_prompt *p, sl_error *err) {
    // A prompt without a question to decode: its last token is prefilled again, because the session holds logits of another
    // step
    int keep = p->n_context == (int)p->ids.n ? p->n_context - 1 : p->n_context, rc = 0;
    if (!p->has_context) rc = cli_run_set_prefill(&t->run, "dense", NULL, err);
    if (!rc && !p->has_context) {
        rc = cli_timeline_open(&p->context, &t->run, 0, err);
        p->has_context = !rc;
        if (!rc) rc = cli_timeline_prefill(&p->context, p->ids.data, keep, err);
    }
    if (!rc) rc = not_interrupted(t, err);
    if (!rc) rc = cli_timeline_cut(&p->context, keep, err);
    return rc || keep == p->n_context ? rc : cli_timeline_prefill(&p->context, p->ids.data + keep, 1, err);
}

int tune_decode(tune *t, tune_prompt *p, const sl_attn_plan *plan, const char *name, const char *draws, double *x,
                sl_error *err) {
    json_t *value = name ? tune_find(t, name) : NULL;
    if (value) {
        *x = json_number_value(json_object_get(value, "x"));
        return 0;
    }
    char key[512];
    snprintf(key, sizeof key, "%.380s/%s", draws, p->name);
    int rc = hold_context(t, p, err);
    if (!rc && !p->item && !p->logits) {
        rc = cli_run_set_attention(&t->run, "dense", err);
        if (!rc) rc = decode(t, &p->context, p, x, err);
        if (!rc) rc = hold_context(t, p, err);
    }
    if (!rc) rc = sl_engine_set_plan(t->run.engine, plan, err);
    if (!rc) rc = cli_watch_buckets(t->run.engine, err);
    if (rc) return rc;
    sl_session_set_sequence(p->context.session, sequence_of(key));
    rc = decode(t, &p->context, p, x, err);
    return rc || !name ? rc : tune_record(t, name, json_pack("{s:f}", "x", *x), err);
}

// ---- the errors of layers ----

typedef struct error_sums {
    const sl_attn_method *method;
    double *error; // [n_layers]
    int n;         // records of layer 0
} error_sums;

static void observe(void *ctx, const sl_attn_record *r) {
    error_sums *sums = ctx;
    if (r->head || r->spec->method != sums->method) return; // of the layer, equal for all heads; or the running dense method
    sums->error[r->layer] += (double)r->report->layer_error * r->report->layer_error;
    sums->n += r->layer == 0;
}

int tune_layer_errors(tune *t, tune_prompt *p, double *error, sl_error *err) {
    char name[512], attn[256];
    int n_layers = sl_model_config(t->run.model)->n_layers, rc = 0;
    sl_attn_format(&t->method, attn, sizeof attn);
    snprintf(name, sizeof name, "error/%s/%s", attn, p->name);
    json_t *value = tune_find(t, name);
    if (!value) {
        error_sums sums = {.method = t->method.method, .error = error};
        const sl_observer observer = {
            .fn = observe, .ctx = &sums, .shadows = &t->method, .n_shadows = 1, .n_seeds = ERROR_SEEDS};
        double x;
        memset(error, 0, n_layers * sizeof *error);
        rc = hold_context(t, p, err);
        if (!rc) rc = cli_run_set_attention(&t->run, "dense", err);
        if (rc) return rc;
        sl_session_set_sequence(p->context.session, sequence_of(name));
        rc = sl_engine_observe(t->run.engine, &observer, err);
        if (!rc) rc = decode(t, &p->context, p, &x, err);
        sl_engine_observe(t->run.engine, NULL, NULL);
        if (!rc && !sums.n) rc = sl_fail(err, SL_ERR_UNSUPPORTED, "--attn %s: no step was observed", attn);
        json_t *list = json_array();
        for (int l = 0; !rc && l < n_layers; l++) json_array_append_new(list, json_real(error[l] / sums.n));
        if (!rc) rc = tune_record(t, name, json_pack("{s:O}", "error", list), err);
        json_decref(list);
        value = rc ? NULL : tune_find(t, name);
    }
    for (int l = 0; !rc && l < n_layers; l++)
        error[l] = json_number_value(json_array_get(json_object_get(value, "error"), (size_t)l));
    return rc;
}
