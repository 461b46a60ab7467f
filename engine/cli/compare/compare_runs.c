// engine/cli/compare/compare_runs.c - the runs of one prompt of sleigh compare:
//   dense run:          dense attention generates; at each step, every method also runs on its queries and KV cache (same
//   state); free run:           each method generates from the same dense prefix; teacher-forced run: each method decodes the
//   tokens of the dense run, or of a reference, in parallel with dense attention.
//
// In the teacher-forced run, dense attention and the methods alternate on one engine, BLOCK steps at a time, each on its fork
// of the dense prefix. Only BLOCK rows of dense logits are kept, so memory is O(vocabulary) at any length. A switch of method
// makes a GPU record its step again; BLOCK steps share this cost.
#include "engine/cli/compare/compare_runs.h"
#include "engine/cli/compare/compare.h"
#include "engine/cli/io.h"
#include "engine/cli/output/progress_bar.h"
#include "engine/cli/process.h"
#include "engine/cli/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16 };

static int check_interrupt(sl_error *err) {
    return cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
}

// ---- the prefix and free runs ----

// Makes the session hold exactly the dense prefix of the prompt. If that is the whole prompt, the session has the logits of its
// last token.
static int to_prefix(compare *c, const compare_prompt *p, sl_error *err) {
    int keep = cli_timeline_common(&c->t, p->ids.data, p->n_dense);
    if (keep > c->n_held) keep = c->n_held;
    if (keep == (int)p->ids.n) keep--; // repeat the last token, for its logits
    int rc = cli_timeline_cut(&c->t, keep, err);
    c->n_held = keep;
    if (!rc) rc = cli_timeline_prefill(&c->t, p->ids.data + keep, p->n_dense - keep, err);
    if (!rc) rc = check_interrupt(err);
    if (!rc) c->n_held = p->n_dense;
    return rc;
}

// Decodes the rest of the prompt and the answer with the current method.
static int generate(compare *c, const compare_prompt *p, compare_answer *a, sl_error *err) {
    int rc = to_prefix(c, p, err);
    a->text.n = a->ids.n = 0;
    sl_engine_reset_stats(c->run.engine);
    if (!rc) rc = sl_text_append(&a->text, "", 0, err);
    if (!rc) rc = cli_timeline_feed(&c->t, p->ids.data + p->n_dense, (int)p->ids.n - p->n_dense, err);
    if (!rc) rc = cli_timeline_generate(&c->t, 0, cli_sink_text, &a->text, err);
    if (!rc) rc = check_interrupt(err);
    for (size_t i = 0; !rc && i < c->t.generated.n; i++) rc = sl_ids_push(&a->ids, c->t.generated.data[i], err);
    a->stopped = c->t.stopped;
    return rc;
}

int compare_differ_at(const sl_ids *a, const sl_ids *b) {
    int i = cli_common_prefix(a->data, a->n, b->data, b->n);
    return (size_t)i == a->n && (size_t)i == b->n ? -1 : i;
}

static int judge_answer(compare *c, compare_method *m, sl_error *err) {
    const sl_ids *a = &c->dense.ids, *b = &m->answer.ids;
    int differ = compare_differ_at(a, b), least = (int)(a->n < b->n ? a->n : b->n), same = 0;
    for (int i = 0; i < least; i++) same += a->data[i] == b->data[i];
    m->n_identical += differ < 0;
    int rc = cli_values_add(&m->agreement, least ? (double)same / least : 1, err);
    return rc ? rc : cli_values_add(&m->prefix, differ < 0 ? least : differ, err);
}

static int free_run(compare *c, const compare_prompt *p, int which, sl_error *err) {
    compare_method *m = &c->methods[which];
    int rc = cli_run_set_attention(&c->run, m->text, err);
    if (!rc) rc = cli_run_set_prompt(&c->run, (int)p->ids.n, err);
    if (!rc) rc = generate(c, p, &m->answer, err);
    if (rc) return rc;
    sl_attn_stats_add(&m->read, sl_engine_attn_stats(c->run.engine));
    return judge_answer(c, m, err);
}

// ---- heads on the states of the dense run ----

static void add_tiles(compare_method *m, const sl_attn_report *p) {
    int i = 0;
    while (i < N_TILES - 1 && p->tiles > 1u << i) i++;
    m->tiles[i].n++, m->tiles[i].error += p->error, m->tiles[i].cosine += p->cosine;
}

static int add_record(compare_method *m, const sl_attn_record *r, int n_heads) {
    const sl_attn_report *p = r->report;
    compare_head *h = &m->heads[r->layer * n_heads + r->head];
    double ess = p->ess > 0 ? p->ess : NAN, spread = p->v_rows / ess - 1; // squared; below 0 only by rounding
    h->n++;
    h->error += p->error, h->cosine += p->cosine, h->bias += p->bias;
    h->k_rows += p->k_rows, h->v_rows += p->v_rows, h->v_distinct += p->v_distinct;
    h->samples += p->samples, h->ess += ess;
    h->spread += sqrt(spread < 0 ? 0 : spread);
    h->bytes += (double)p->bytes, h->dense_bytes += (double)p->dense_bytes;
    int rc = cli_values_add(&m->error, p->error, NULL);
    return rc ? rc : cli_values_add(&m->cosine, p->cosine, NULL);
}

// Ends the groups of a step: its heads are one group.
static int end_groups(compare *c) {
    int rc = 0;
    for (int i = 0; !rc && i < c->attn.n; i++) {
        rc = cli_values_end_group(&c->methods[i].error, NULL);
        if (!rc) rc = cli_values_end_group(&c->methods[i].cosine, NULL);
    }
    return rc;
}

// Receives, for each layer, the heads of dense attention, which runs, and then the heads of each method in order.
static void observe(void *ctx, const sl_attn_record *r) {
    compare *c = ctx;
    int n_heads = sl_model_config(c->run.model)->n_heads, which = c->n_observed++ / n_heads % (c->attn.n + 1) - 1;
    if (!c->observe_rc && r->layer == 0 && r->head == 0 && which < 0) c->observe_rc = end_groups(c);
    if (!c->observe_rc && which >= 0) c->observe_rc = add_record(&c->methods[which], r, n_heads);
    if (which >= 0 && r->layer == sl_model_config(c->run.model)->n_layers - 1) add_tiles(&c->methods[which], r->report);
}

// Observes the methods, with the choice of auto for the current prompt.
static int observe_methods(compare *c, sl_error *err) {
    const sl_attn_plan listed = {.n_layers = c->attn.n, .layer = c->attn.specs};
    sl_attn_plan shadows;
    int rc = cli_run_choose_plan(&c->run, &listed, &shadows, err);
    const sl_observer observer = {.fn = observe, .ctx = c, .shadows = shadows.layer, .n_shadows = shadows.n_layers};
    if (!rc) rc = sl_engine_observe(c->run.engine, &observer, err);
    sl_attn_plan_free(&shadows);
    return rc;
}

static int dense_run(compare *c, const compare_prompt *p, sl_error *err) {
    int rc = cli_run_set_attention(&c->run, "dense", err);
    c->n_observed = 0;
    if (!rc && c->o->heads) rc = observe_methods(c, err);
    if (!rc) rc = generate(c, p, &c->dense, err);
    if (!c->o->heads) return rc;
    int back = sl_engine_observe(c->run.engine, NULL, rc ? NULL : err);
    if (!rc) rc = back;
    if (!rc && !c->observe_rc) c->observe_rc = end_groups(c);
    return !rc && c->observe_rc ? sl_fail(err, c->observe_rc, "errors of the heads: out of memory") : rc;
}

// ---- teacher-forced ----

typedef struct forced {
    compare *c;
    const int32_t *path; // [n]
    int n, n_before;     // n_before: first tokens of the path that are the prompt
    int n_vocab;
    sl_session **sessions; // [1 + attn.n]: of dense attention, then of the methods
    float *logits;         // [BLOCK][n_vocab] dense logits of this block of steps
    double log_sum[BLOCK];
    int top[BLOCK];
} forced;

static int open_forced(forced *f, int from, uint32_t sequence, sl_error *err) {
    int n = f->c->attn.n + 1, rc = 0;
    f->sessions = calloc(n, sizeof *f->sessions);
    f->logits = malloc((size_t)BLOCK * f->n_vocab * sizeof *f->logits);
    if (!f->sessions || !f->logits) return sl_fail(err, SL_ERR_MEMORY, "logits of %d steps: out of memory", BLOCK);
    for (int i = 0; !rc && i < n; i++) rc = sl_session_fork(f->c->t.session, from, sequence, &f->sessions[i], err);
    return rc;
}

static void close_forced(forced *f) {
    for (int i = 0; f->sessions && i <= f->c->attn.n; i++) sl_session_free(f->sessions[i]);
    free(f->sessions);
    free(f->logits);
}

static int switch_to(compare *c, const char *attn, sl_error *err) {
    double start = cli_now();
    int rc = cli_run_set_attention(&c->run, attn, err);
    c->switch_ms += cli_now() - start;
    c->n_switches++;
    return rc;
}

// Decodes token `at` of the path; *logits predict the next token. first: the first step of a block.
static int step(forced *f, int which, int at, int first, const float **logits, double *log_sum, sl_error *err) {
    compare *c = f->c;
    double start = cli_now();
    int rc = sl_decode(&f->sessions[which], 1, &f->path[at], err);
    if (rc) return rc;
    *logits = sl_session_logits(f->sessions[which], NULL);
    *(first ? &c->first_ms : &c->other_ms) += cli_now() - start;
    ++*(first ? &c->n_first : &c->n_other);
    *log_sum = cli_log_sum(*logits, f->n_vocab);
    if (isfinite(*log_sum)) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "the logits after token %d are not finite", at);
}

static int dense_block(forced *f, int from, int n, sl_error *err) {
    compare *c = f->c;
    int rc = switch_to(c, "dense", err);
    for (int i = 0; !rc && i < n; i++) {
        const float *logits;
        rc = step(f, 0, from + i, i == 0, &logits, &f->log_sum[i], err);
        if (rc) return rc;
        memcpy(f->logits + (size_t)i * f->n_vocab, logits, f->n_vocab * sizeof *logits);
        f->top[i] = cli_argmax(logits, f->n_vocab);
        double nll = f->log_sum[i] - logits[f->path[from + i + 1]];
        rc = cli_values_add(&c->dense_nll[from + i + 1 >= f->n_before], nll, err);
    }
    return rc;
}

static int method_block(forced *f, int which, int from, int n, sl_error *err) {
    compare_method *m = &f->c->methods[which];
    int rc = switch_to(f->c, m->text, err);
    for (int i = 0; !rc && i < n; i++) {
        const float *dense = f->logits + (size_t)i * f->n_vocab, *logits;
        int32_t next = f->path[from + i + 1];
        double log_sum;
        rc = step(f, which + 1, from + i, i == 0, &logits, &log_sum, err);
        if (rc) return rc;
        double nll = log_sum - logits[next];
        rc = cli_values_add(&m->kl, cli_kl(dense, f->log_sum[i], logits, log_sum, f->n_vocab), err);
        if (!rc) rc = cli_values_add(&m->top1, cli_argmax(logits, f->n_vocab) == f->top[i], err);
        if (!rc) rc = cli_values_add(&m->nll[from + i + 1 >= f->n_before], nll, err);
        if (!rc) rc = cli_values_add(&m->more_nll, nll - (f->log_sum[i] - dense[next]), err);
    }
    return rc;
}

static int end_prompt(compare *c, sl_error *err) { // one group of values per prompt
    int rc = 0;
    for (int j = 0; !rc && j < N_PARTS; j++) rc = cli_values_end_group(&c->dense_nll[j], err);
    for (int i = 0; !rc && i < c->attn.n; i++) {
        compare_method *m = &c->methods[i];
        cli_values *const all[] = {&m->kl, &m->top1, &m->nll[QUESTION], &m->nll[ANSWER], &m->more_nll};
        for (int j = 0; !rc && j < 5; j++) rc = cli_values_end_group(all[j], err);
    }
    return rc;
}

static int run_forced(forced *f, int from, sl_error *err) {
    int rc = 0, last = f->n - 1; // the last token has no successor
    for (int at = from; !rc && at < last; at += BLOCK) {
        int n = last - at < BLOCK ? last - at : BLOCK;
        rc = dense_block(f, at, n, err);
        for (int i = 0; !rc && i < f->c->attn.n; i++) rc = method_block(f, i, at, n, err);
        if (!rc) rc = check_interrupt(err);
        cli_progress_work(&f->c->progress, (double)n * (f->c->attn.n + 1));
    }
    return rc ? rc : end_prompt(f->c, err);
}

static int forced_run(compare *c, const compare_prompt *p, sl_error *err) {
    sl_ids path = {0};
    forced f = {.c = c, .n_vocab = sl_model_config(c->run.model)->n_vocab};
    const sl_ids *parts[] = {&p->ids, &c->dense.ids};
    int rc = to_prefix(c, p, err);
    for (int j = 0; j < 2; j++)
        for (size_t i = 0; !rc && !p->reference.n && i < parts[j]->n; i++) rc = sl_ids_push(&path, parts[j]->data[i], err);
    f.path = p->reference.n ? p->reference.data : path.data;
    f.n = (int)(p->reference.n ? p->reference.n : path.n);
    f.n_before = p->reference.n ? p->n_before : (int)p->ids.n;
    int from = p->n_dense < f.n_before ? p->n_dense
                                       : f.n_before; // as one text with a reference, the last tokens of the prompt may change
    if (!rc) rc = open_forced(&f, from, p->sequence, err);
    if (!rc) rc = run_forced(&f, from, err);
    close_forced(&f);
    sl_ids_free(&path);
    return rc;
}

// Steps of a run that decodes the rest of the prompt and an answer.
static double run_steps(const compare *c, const compare_prompt *p) {
    return (double)p->ids.n - p->n_dense + c->o->n_predict;
}

double compare_steps(const compare *c, const compare_prompt *p) {
    double n_path = p->reference.n ? (double)p->reference.n : (double)p->ids.n + c->o->n_predict;
    int from = p->reference.n && p->n_before < p->n_dense ? p->n_before : p->n_dense;
    return (run_steps(c, p) + n_path - from) * (c->attn.n + 1);
}

int compare_run_prompt(compare *c, const compare_prompt *p, sl_error *err) {
    double end = c->progress.rest.done + compare_steps(c, p);
    sl_session_set_sequence(c->t.session, p->sequence);
    cli_progress_item(&c->progress, "dense");
    int rc = cli_run_set_prompt(&c->run, (int)p->ids.n, err);
    if (!rc) rc = dense_run(c, p, err);
    for (int i = 0; !rc && i < c->attn.n; i++) {
        cli_progress_work(&c->progress, run_steps(c, p));
        cli_progress_item(&c->progress, c->methods[i].text);
        rc = free_run(c, p, i, err);
    }
    cli_progress_work(&c->progress, run_steps(c, p));
    cli_progress_item(&c->progress, "next tokens");
    if (!rc) rc = forced_run(c, p, err);
    cli_progress_work(&c->progress, end - c->progress.rest.done); // answers can end early
    return rc;
}
