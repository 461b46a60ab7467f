// cli/compare/compare_forced.c - the teacher-forced run: each method decodes the tokens of a path, along with dense
// attention. The paths of several prompts decode as a batch; the logits of a sequence are equal in every batch.
//
// Dense attention and the methods take turns on one engine, each on its forks of the dense prefixes. A turn has many steps.
// Only the logits of a turn are kept, so memory does not grow with the length of the path times the vocabulary. A switch of
// method makes a GPU record its step again; the steps of a turn share this cost. The number of steps of a turn changes no
// result.
#include "cli/compare/compare_forced.h"
#include "backend/backend.h"
#include "base/thread_pool.h"
#include "cli/compare/compare_prefix.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "engine/logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Steps of a turn, and logits of dense attention in a turn (8 MiB, if this is enough for MIN_TURN steps). The method of a turn
// has as many.
enum { MIN_TURN = 16, MAX_TURN = 128, TURN_LOGITS = 2 << 20 };

typedef struct scored { // one position of a path
    double log_sum, nll, kl;
    int top;
} scored;

typedef struct lane { // one prompt
    compare_prompt *prompt;
    compare_path path;
    int n_steps;
    sl_session **sessions; // [1 + attn.n]: of dense attention, then of the methods
    scored *scores;        // [1 + attn.n][n_steps]
} lane;

struct compare_forced {
    compare *c;
    lane *lanes; // [n_lanes], of cap_lanes
    int n_lanes, cap_lanes, n_vocab, turn;
    float *dense, *logits; // [n_lanes][turn][n_vocab] of dense attention, and of the method of this turn
    // one step
    sl_session **batch;  // [cap_lanes]
    int32_t *ids;        // [cap_lanes]
    sl_threads *threads; // score the logits
};

int compare_path_init(const compare *c, const compare_prompt *p, compare_path *path, sl_error *err) {
    const sl_ids *parts[] = {&p->ids, &c->dense.ids};
    int rc = 0;
    *path = (compare_path){.ids = p->reference.data, .n = (int)p->reference.n, .n_before = p->n_before};
    for (int j = 0; j < 2; j++)
        for (size_t i = 0; !rc && !p->reference.n && i < parts[j]->n; i++) rc = sl_ids_push(&path->own, parts[j]->data[i], err);
    if (!p->reference.n) path->ids = path->own.data, path->n = (int)path->own.n, path->n_before = (int)p->ids.n;
    // as one text with a reference, the last tokens of the prompt may change
    path->from = p->n_dense < path->n_before ? p->n_dense : path->n_before;
    return rc;
}

// ---- the batch ----

int compare_forced_new(compare *c, int n_prompts, compare_forced **out, sl_error *err) {
    compare_forced *f = *out = calloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_ERR_MEMORY, "a batch of %d prompts: out of memory", n_prompts);
    *f = (compare_forced){.c = c, .cap_lanes = n_prompts, .n_vocab = sl_model_config(c->run.model)->n_vocab};
    f->lanes = calloc(n_prompts, sizeof *f->lanes);
    f->batch = calloc(n_prompts, sizeof *f->batch);
    f->ids = calloc(n_prompts, sizeof *f->ids);
    if (f->lanes && f->batch && f->ids)
        return sl_threads_open(c->o->run->device.threads ? c->o->run->device.threads : sl_cpu_cores(), &f->threads, err);
    return sl_fail(err, SL_ERR_MEMORY, "a batch of %d prompts: out of memory", n_prompts);
}

void compare_forced_free(compare_forced *f) {
    for (int i = 0; f && i < f->n_lanes; i++) {
        lane *l = &f->lanes[i];
        for (int j = 0; l->sessions && j <= f->c->attn.n; j++) sl_session_free(l->sessions[j]);
        free(l->sessions);
        free(l->scores);
        sl_ids_free(&l->path.own);
    }
    if (!f) return;
    sl_threads_close(f->threads);
    free(f->lanes);
    free(f->dense);
    free(f->logits);
    free(f->batch);
    free(f->ids);
    free(f);
}

// Makes the sessions of the methods with one method for prefill.
static int fork_methods(compare *c, lane *l, int prefill, sl_error *err) {
    const compare_path *path = &l->path;
    int is_dense = compare_is_dense_prefill(c, prefill), first = 1 + prefill * c->n_decode;
    int rc = is_dense ? 0 : compare_hold_prefix(c, prefill, path->ids, path->from, path->n, err);
    for (int i = first; !rc && i < first + c->n_decode; i++)
        rc = sl_session_fork(is_dense ? c->dense_prefix : c->t.session, path->from, l->prompt->sequence, &l->sessions[i], err);
    return rc;
}

int compare_forced_add(compare_forced *f, compare_prompt *p, const compare_path *path, sl_error *err) {
    SL_CHECK(f->n_lanes < f->cap_lanes);
    lane *l = &f->lanes[f->n_lanes++];
    int n = f->c->attn.n + 1, rc = 0;
    *l = (lane){.prompt = p, .path = *path, .n_steps = path->n - 1 - path->from}; // the last token has no successor
    l->sessions = calloc(n, sizeof *l->sessions);
    l->scores = calloc((size_t)n * l->n_steps + 1, sizeof *l->scores);
    if (!l->sessions || !l->scores) return sl_fail(err, SL_ERR_MEMORY, "scores of %d steps: out of memory", l->n_steps);
    if (!rc) rc = sl_session_fork(f->c->dense_prefix, path->from, p->sequence, &l->sessions[0], err);
    for (int k = f->c->prefills.n - 1; !rc && k >= 0; k--) rc = fork_methods(f->c, l, k, err); // the session holds the last one
    return rc;
}

static int most_steps(const compare_forced *f) {
    int most = 0;
    for (int i = 0; i < f->n_lanes; i++)
        if (f->lanes[i].n_steps > most) most = f->lanes[i].n_steps;
    return most;
}

static int new_logits(compare_forced *f, sl_error *err) {
    int most = most_steps(f);
    f->turn = TURN_LOGITS / f->n_vocab / f->n_lanes;
    if (f->turn < MIN_TURN) f->turn = MIN_TURN;
    if (f->turn > MAX_TURN) f->turn = MAX_TURN;
    if (f->turn > most) f->turn = most;
    size_t n = (size_t)f->n_lanes * f->turn * f->n_vocab + 1;
    f->dense = malloc(n * sizeof *f->dense);
    f->logits = malloc(n * sizeof *f->logits);
    return f->dense && f->logits ? 0 : sl_fail(err, SL_ERR_MEMORY, "logits of %d steps: out of memory", f->turn);
}

// ---- a turn ----

static float *row_of(const compare_forced *f, float *logits, int lane, int step) {
    return logits + ((size_t)lane * f->turn + step) * f->n_vocab;
}

static int switch_to(compare *c, const char *attn, sl_error *err) {
    double start = sl_now_ms();
    int rc = cli_run_set_attention(&c->run, attn, err);
    c->switch_ms += sl_now_ms() - start;
    c->n_switches++;
    return rc;
}

// Decodes step at + i of every path that has this step, and copies the logits.
static int decode_step(compare_forced *f, int which, int at, int i, float *logits, sl_error *err) {
    compare *c = f->c;
    double start = sl_now_ms();
    int n = 0;
    for (int j = 0; j < f->n_lanes; j++) {
        const lane *l = &f->lanes[j];
        if (at + i >= l->n_steps) continue;
        f->batch[n] = l->sessions[which];
        f->ids[n++] = l->path.ids[l->path.from + at + i];
    }
    int rc = sl_decode(f->batch, n, f->ids, err);
    if (rc) return rc;
    for (int j = 0; j < f->n_lanes; j++)
        if (at + i < f->lanes[j].n_steps)
            memcpy(row_of(f, logits, j, i), sl_session_logits(f->lanes[j].sessions[which], NULL), f->n_vocab * sizeof *logits);
    *(i ? &c->other_ms : &c->first_ms) += sl_now_ms() - start;
    ++*(i ? &c->n_other : &c->n_first);
    cli_progress_work(&c->progress, n);
    return cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
}

// Scores step at + i of a path from the logits after it.
static void score_step(const compare_forced *f, int which, int at, int lane_index, int i) {
    const lane *l = &f->lanes[lane_index];
    const float *row = row_of(f, which ? f->logits : f->dense, lane_index, i);
    scored *dense = &l->scores[at + i], *own = dense + (size_t)which * l->n_steps;
    own->log_sum = sl_log_sum(row, f->n_vocab);
    own->nll = own->log_sum - row[l->path.ids[l->path.from + at + i + 1]];
    own->top = cli_argmax(row, f->n_vocab);
    if (which) own->kl = cli_kl(row_of(f, f->dense, lane_index, i), dense->log_sum, row, own->log_sum, f->n_vocab);
}

// The steps [at, at + n) of all paths.
typedef struct score_call {
    const compare_forced *f;
    int which, at, n;
} score_call;

static void score_task(void *ctx, size_t k, int thread) {
    (void)thread;
    const score_call *c = ctx;
    int path = (int)k / c->n, i = (int)k % c->n;
    if (c->at + i < c->f->lanes[path].n_steps) score_step(c->f, c->which, c->at, path, i);
}

// Steps [at, at + n) with dense attention (which = 0) or a method.
static int run_turn(compare_forced *f, int which, int at, int n, sl_error *err) {
    compare *c = f->c;
    int rc = switch_to(c, which ? c->methods[which - 1].text : "dense", err);
    sl_engine_reset_stats(c->run.engine);
    for (int i = 0; !rc && i < n; i++) rc = decode_step(f, which, at, i, which ? f->logits : f->dense, err);
    if (rc) return rc;
    if (which) sl_attn_stats_add(&c->methods[which - 1].forced, sl_engine_attn_stats(c->run.engine));
    sl_threads *outside = sl_threads_use(f->threads);
    sl_parallel((size_t)f->n_lanes * n, score_task, &(score_call){f, which, at, n});
    sl_threads_use(outside);
    for (int k = 0; k < f->n_lanes * n; k++) {
        const lane *l = &f->lanes[k / n];
        int step = at + k % n;
        if (step < l->n_steps && !isfinite(l->scores[(size_t)which * l->n_steps + step].log_sum))
            return sl_fail(err, SL_ERR_FORMAT, "the logits after token %d are not finite", l->path.from + step);
    }
    return 0;
}

// ---- values ----

static int is_answer(const lane *l, int step) { // 1: step predicts a token of the answer
    return l->path.from + step + 1 >= l->path.n_before;
}

static int add_dense(compare *c, lane *l, sl_error *err) {
    int rc = 0;
    for (int j = 0; j < N_PARTS; j++) l->prompt->first_of[j] = c->dense_nll[j].n;
    for (int i = 0; !rc && i < l->n_steps; i++) rc = cli_values_add(&c->dense_nll[is_answer(l, i)], l->scores[i].nll, err);
    for (int j = 0; j < N_PARTS; j++) l->prompt->end_of[j] = c->dense_nll[j].n;
    for (int j = 0; !rc && j < N_PARTS; j++) rc = cli_values_end_group(&c->dense_nll[j], err);
    return rc;
}

// One group of values per prompt.
static int add_method(compare_method *m, const lane *l, const scored *scores, sl_error *err) {
    cli_values *const all[] = {&m->kl, &m->top1, &m->nll[QUESTION], &m->nll[ANSWER], &m->more_nll};
    int rc = 0;
    for (int i = 0; !rc && i < l->n_steps; i++) {
        const scored *dense = &l->scores[i], *own = &scores[i];
        rc = cli_values_add(&m->kl, own->kl, err);
        if (!rc) rc = cli_values_add(&m->top1, own->top == dense->top, err);
        if (!rc) rc = cli_values_add(&m->nll[is_answer(l, i)], own->nll, err);
        if (!rc) rc = cli_values_add(&m->more_nll, own->nll - dense->nll, err);
    }
    for (int j = 0; !rc && j < 5; j++) rc = cli_values_end_group(all[j], err);
    return rc;
}

int compare_forced_run(compare_forced *f, sl_error *err) {
    compare *c = f->c;
    int n_steps = most_steps(f), rc = new_logits(f, err);
    for (int at = 0; !rc && at < n_steps; at += f->turn) {
        int n = n_steps - at < f->turn ? n_steps - at : f->turn;
        for (int i = 0; !rc && i <= c->attn.n; i++) rc = run_turn(f, i, at, n, err);
    }
    for (int j = 0; !rc && j < f->n_lanes; j++) {
        lane *l = &f->lanes[j];
        rc = add_dense(c, l, err);
        for (int i = 0; !rc && i < c->attn.n; i++)
            rc = add_method(&c->methods[i], l, l->scores + (size_t)(i + 1) * l->n_steps, err);
    }
    return rc;
}
