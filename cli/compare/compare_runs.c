// cli/compare/compare_runs.c - the runs of one prompt of sleigh compare:
//   dense run           dense attention generates (with --no-texts it decodes the reference). At each step, every method also
//                       runs on the same queries and KV cache (compare_heads.c).
//   free run            each method generates after its own prefill. Dense attention scores the text.
//   teacher-forced run  each method decodes the tokens of the dense run or of a reference (compare_forced.c).
#include "cli/compare/compare_runs.h"
#include "cli/compare/compare.h"
#include "cli/compare/compare_forced.h"
#include "cli/compare/compare_heads.h"
#include "cli/compare/compare_prefix.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/timeline.h"
#include "engine/logprobs.h"

#include <math.h>

static int check_interrupt(sl_error *err) {
    return cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
}

// ---- the prefix, and an answer ----

static int to_prefix(compare *c, const compare_prompt *p, int which, sl_error *err) {
    return compare_hold_prefix(c, which, p->ids.data, p->n_dense, (int)p->ids.n, err);
}

// Keeps a fork of the dense prefix for the prompt.
static int keep_dense_prefix(compare *c, const compare_prompt *p, sl_error *err) {
    int rc = to_prefix(c, p, -1, err);
    sl_session_free(c->dense_prefix);
    c->dense_prefix = NULL;
    return rc ? rc : sl_session_fork(c->t.session, p->n_dense, p->sequence, &c->dense_prefix, err);
}

// Decodes the rest of the prompt and the answer with the current method, after a prefill with a method of c->prefills.
static int generate(compare *c, const compare_prompt *p, int which, compare_answer *a, sl_error *err) {
    int rc = to_prefix(c, p, which, err);
    a->text.n = a->ids.n = 0;
    sl_engine_reset_stats(c->run.engine);
    if (!rc) rc = sl_text_append(&a->text, "", 0, err);
    if (!rc) rc = cli_timeline_feed(&c->t, p->ids.data + p->n_dense, (int)p->ids.n - p->n_dense, err);
    if (!rc) rc = cli_timeline_generate(&c->t, c->o->compare->n_predict, 0, cli_sink_text, &a->text, err);
    if (!rc) rc = check_interrupt(err);
    int n;
    const int32_t *sampled = sl_stream_ids(c->t.stream, &n);
    for (int i = 0; !rc && i < n; i++) rc = sl_ids_push(&a->ids, sampled[i], err);
    a->stopped = c->t.stopped;
    return rc;
}

int compare_differ_at(const sl_ids *a, const sl_ids *b) {
    int i = cli_common_prefix(a->data, a->n, b->data, b->n);
    return (size_t)i == a->n && (size_t)i == b->n ? -1 : i;
}

// ---- the negative log-likelihood of an answer under dense attention ----

typedef struct answer_score {
    const int32_t *ids;  // the end of the prompt, then the answer; row i of the logits predicts ids[i + 1]
    int n_vocab, n_rows; // n_rows: first rows, which predict tokens of the prompt
    double nll;          // sum over the tokens of the answer
} answer_score;

static int score_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    answer_score *s = ctx;
    for (int i = s->n_rows > first ? s->n_rows - first : 0; i < n_rows; i++) {
        const float *row = logits + (size_t)i * s->n_vocab;
        s->nll += sl_log_sum(row, s->n_vocab) - row[s->ids[first + i + 1]];
    }
    if (!isfinite(s->nll)) return sl_fail(err, SL_ERR_FORMAT, "the logits of an answer are not finite");
    return check_interrupt(err);
}

// *nll: the mean over the tokens of the answer. One pass of dense attention on a fork of the dense prefix.
static int score_answer(compare *c, const compare_prompt *p, const compare_answer *a, double *nll, sl_error *err) {
    sl_session *fork = NULL;
    sl_ids ids = {0};
    int n_prompt = (int)p->ids.n, from = p->n_dense < n_prompt ? p->n_dense : n_prompt - 1, rc = 0;
    for (int i = from; !rc && i < n_prompt; i++) rc = sl_ids_push(&ids, p->ids.data[i], err);
    for (size_t i = 0; !rc && i < a->ids.n; i++) rc = sl_ids_push(&ids, a->ids.data[i], err);
    answer_score s = {.ids = ids.data, .n_vocab = sl_model_config(c->run.model)->n_vocab, .n_rows = n_prompt - from - 1};
    if (!rc) rc = sl_session_fork(c->dense_prefix, from, p->sequence, &fork, err);
    if (!rc) rc = cli_run_set_prefill(&c->run, "dense", NULL, err);
    if (!rc) rc = sl_prefill_logits(fork, ids.data, (int)ids.n - 1, score_rows, &s, NULL, err);
    sl_session_free(fork);
    sl_ids_free(&ids);
    *nll = s.nll / (double)a->ids.n;
    return rc;
}

// ---- free runs ----

static int judge_answer(compare *c, const compare_prompt *p, compare_method *m, sl_error *err) {
    const sl_ids *a = &c->dense.ids, *b = &m->answer.ids;
    int differ = compare_differ_at(a, b), least = (int)(a->n < b->n ? a->n : b->n), same = 0;
    double nll = c->dense_text_nll.x[c->dense_text_nll.n - 1];
    for (int i = 0; i < least; i++) same += a->data[i] == b->data[i];
    m->n_identical += differ < 0;
    int rc = cli_values_add(&m->agreement, least ? (double)same / least : 1, err);
    if (!rc) rc = cli_values_add(&m->prefix, differ < 0 ? least : differ, err);
    if (!rc && differ >= 0) rc = score_answer(c, p, &m->answer, &nll, err);
    if (!rc) rc = cli_values_add(&m->text_nll, nll, err);
    return rc ? rc : cli_values_end_group(&m->text_nll, err);
}

static int free_run(compare *c, const compare_prompt *p, int which, sl_error *err) {
    compare_method *m = &c->methods[which];
    int rc = cli_run_set_attention(&c->run, m->text, err);
    if (!rc) rc = cli_run_set_prompt(&c->run, (int)p->ids.n, err);
    if (!rc) rc = generate(c, p, compare_prefill_of(c, which), &m->answer, err);
    if (rc) return rc;
    m->feed_ms += c->t.feed_ms;
    sl_attn_stats_add(&m->read, sl_engine_attn_stats(c->run.engine));
    return judge_answer(c, p, m, err);
}

static int dense_run(compare *c, compare_prompt *p, sl_error *err) {
    double nll;
    int rc = cli_run_set_attention(&c->run, "dense", err);
    if (!rc) rc = compare_observe_begin(c, err);
    if (!rc) rc = generate(c, p, -1, &c->dense, err);
    rc = compare_observe_end(c, p, rc, err);
    if (!rc) rc = score_answer(c, p, &c->dense, &nll, err);
    if (!rc) rc = cli_values_add(&c->dense_text_nll, nll, err);
    return rc ? rc : cli_values_end_group(&c->dense_text_nll, err);
}

// --no-texts: dense attention decodes the path, whose steps are observed.
static int dense_steps(compare *c, compare_prompt *p, const compare_path *path, sl_error *err) {
    sl_session *fork = NULL;
    int rc = cli_run_set_attention(&c->run, "dense", err);
    if (!rc) rc = sl_session_fork(c->dense_prefix, path->from, p->sequence, &fork, err);
    if (!rc) rc = compare_observe_begin(c, err);
    for (int i = path->from; !rc && i < path->n - 1; i++) {
        rc = sl_decode(&fork, 1, &path->ids[i], err);
        if (!rc) rc = check_interrupt(err);
        cli_progress_work(&c->progress, 1);
    }
    rc = compare_observe_end(c, p, rc, err);
    sl_session_free(fork);
    return rc;
}

// ---- all runs ----

// Steps of a run that decodes the rest of the prompt and an answer.
static double run_steps(const compare *c, const compare_prompt *p) {
    return (double)p->ids.n - p->n_dense + c->o->compare->n_predict;
}

double compare_steps(const compare *c, const compare_prompt *p) {
    double n_path = p->reference.n ? (double)p->reference.n : (double)p->ids.n + c->o->compare->n_predict;
    // The last token of a path has no next token to predict.
    double n = n_path - 1 - (p->reference.n && p->n_before < p->n_dense ? p->n_before : p->n_dense), runs = c->attn.n + 1;
    return n * runs + (c->o->compare->texts ? run_steps(c, p) * runs : compare_observes(c) ? n : 0);
}

static int free_runs(compare *c, compare_prompt *p, sl_error *err) {
    cli_progress_item(&c->progress, "dense");
    int rc = dense_run(c, p, err);
    for (int i = 0; !rc && i < c->attn.n; i++) {
        cli_progress_work(&c->progress, run_steps(c, p));
        cli_progress_item(&c->progress, c->methods[i].text);
        rc = free_run(c, p, i, err);
    }
    cli_progress_work(&c->progress, run_steps(c, p));
    return rc;
}

// All runs of a prompt before the teacher-forced run.
static int begin_prompt(compare *c, compare_prompt *p, compare_forced *f, sl_error *err) {
    compare_path path = {0};
    sl_session_set_sequence(c->t.session, p->sequence);
    int rc = cli_run_set_prompt(&c->run, (int)p->ids.n, err);
    if (!rc) rc = keep_dense_prefix(c, p, err);
    if (!rc && c->o->compare->texts) rc = free_runs(c, p, err);
    if (!rc) rc = compare_path_init(c, p, &path, err);
    if (!rc && !c->o->compare->texts && compare_observes(c)) rc = dense_steps(c, p, &path, err);
    if (!rc) return compare_forced_add(f, p, &path, err);
    sl_ids_free(&path.own);
    return rc;
}

int compare_run_prompts(compare *c, compare_prompt *p, int n, sl_error *err) {
    double end = c->progress.rest.done;
    compare_forced *f = NULL;
    int rc = compare_forced_new(c, n, &f, err);
    for (int i = 0; i < n; i++) end += compare_steps(c, &p[i]);
    cli_progress_item(&c->progress, "dense");
    for (int i = 0; !rc && i < n; i++) rc = begin_prompt(c, &p[i], f, err);
    cli_progress_item(&c->progress, "next tokens");
    if (!rc) rc = compare_forced_run(f, err);
    compare_forced_free(f);
    cli_progress_work(&c->progress, end - c->progress.rest.done); // answers can end early
    return rc;
}
