// engine/cli/compare/compare_forced.c - the teacher-forced run: each method decodes the tokens of a path, along with dense
// attention.
//
// Dense attention and the methods take turns on one engine, each on its fork of the dense prefix. A turn has many steps.
// Only the logits of a turn are kept, so memory does not grow with the length of the path. A switch of method makes a GPU
// record its step again; the steps of a turn share this cost. The number of steps of a turn changes no result.
#include "engine/cli/compare/compare_forced.h"
#include "engine/backend/backend.h"
#include "engine/cli/io.h"
#include "engine/cli/output/progress_bar.h"
#include "engine/cli/process.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Steps of a turn, and logits of dense attention in a turn (8 MiB). The method of a turn has as many.
enum { MIN_TURN = 16, MAX_TURN = 128, TURN_LOGITS = 2 << 20 };

typedef struct scored { // one position of the path
    double log_sum, nll, kl;
    int top;
} scored;

typedef struct forced {
    compare *c;
    const compare_path *path;
    int n_vocab, turn;      // turn: steps of a turn
    sl_session **sessions;  // [1 + attn.n]: of dense attention, then of the methods
    float *dense, *logits;  // [turn][n_vocab] of dense attention, and of the method of this turn
    scored *by_dense, *own; // [turn]
} forced;

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

static int open_forced(forced *f, uint32_t sequence, sl_error *err) {
    int n = f->c->attn.n + 1, n_steps = f->path->n - f->path->from, rc = 0;
    f->turn = TURN_LOGITS / f->n_vocab;
    if (f->turn < MIN_TURN) f->turn = MIN_TURN;
    if (f->turn > MAX_TURN) f->turn = MAX_TURN;
    if (f->turn > n_steps) f->turn = n_steps;
    size_t logits = (size_t)f->turn * f->n_vocab;
    f->sessions = calloc(n, sizeof *f->sessions);
    f->dense = malloc(logits * sizeof *f->dense);
    f->logits = malloc(logits * sizeof *f->logits);
    f->by_dense = malloc(f->turn * sizeof *f->by_dense);
    f->own = malloc(f->turn * sizeof *f->own);
    if (!f->sessions || !f->dense || !f->logits || !f->by_dense || !f->own)
        return sl_fail(err, SL_ERR_MEMORY, "logits of %d steps: out of memory", f->turn);
    for (int i = 0; !rc && i < n; i++) rc = sl_session_fork(f->c->t.session, f->path->from, sequence, &f->sessions[i], err);
    return rc;
}

static void close_forced(forced *f) {
    for (int i = 0; f->sessions && i <= f->c->attn.n; i++) sl_session_free(f->sessions[i]);
    free(f->sessions);
    free(f->dense);
    free(f->logits);
    free(f->by_dense);
    free(f->own);
}

static int switch_to(compare *c, const char *attn, sl_error *err) {
    double start = cli_now();
    int rc = cli_run_set_attention(&c->run, attn, err);
    c->switch_ms += cli_now() - start;
    c->n_switches++;
    return rc;
}

// Decodes tokens [at, at + n) of the path, and writes the logits after each of them to `logits`.
static int decode_turn(forced *f, int which, int at, int n, float *logits, sl_error *err) {
    compare *c = f->c;
    int rc = switch_to(c, which ? c->methods[which - 1].text : "dense", err);
    sl_engine_reset_stats(c->run.engine);
    for (int i = 0; !rc && i < n; i++) {
        double start = cli_now();
        rc = sl_decode(&f->sessions[which], 1, &f->path->ids[at + i], err);
        if (rc) return rc;
        memcpy(logits + (size_t)i * f->n_vocab, sl_session_logits(f->sessions[which], NULL), f->n_vocab * sizeof *logits);
        *(i ? &c->other_ms : &c->first_ms) += cli_now() - start;
        ++*(i ? &c->n_other : &c->n_first);
        if (cli_interrupted()) return sl_fail(err, SL_ERR_IO, "interrupted");
    }
    if (!rc && which) sl_attn_stats_add(&c->methods[which - 1].forced, sl_engine_attn_stats(c->run.engine));
    return rc;
}

// Scores n positions from the logits after tokens [at, at + n). dense: NULL, or dense attention's logits.
static int score_turn(const forced *f, int at, int n, const float *logits, const float *dense, scored *out, sl_error *err) {
    int n_threads = f->c->o->threads ? f->c->o->threads : sl_cpu_cores();
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * f->n_vocab;
        out[i].log_sum = cli_log_sum(row, f->n_vocab);
        out[i].nll = out[i].log_sum - row[f->path->ids[at + i + 1]];
        out[i].top = cli_argmax(row, f->n_vocab);
        if (dense) out[i].kl = cli_kl(dense + (size_t)i * f->n_vocab, f->by_dense[i].log_sum, row, out[i].log_sum, f->n_vocab);
    }
    for (int i = 0; i < n; i++)
        if (!isfinite(out[i].log_sum)) return sl_fail(err, SL_ERR_FORMAT, "the logits after token %d are not finite", at + i);
    return 0;
}

static int dense_turn(forced *f, int at, int n, sl_error *err) {
    int rc = decode_turn(f, 0, at, n, f->dense, err);
    if (!rc) rc = score_turn(f, at, n, f->dense, NULL, f->by_dense, err);
    for (int i = 0; !rc && i < n; i++)
        rc = cli_values_add(&f->c->dense_nll[at + i + 1 >= f->path->n_before], f->by_dense[i].nll, err);
    return rc;
}

static int method_turn(forced *f, int which, int at, int n, sl_error *err) {
    compare_method *m = &f->c->methods[which];
    int rc = decode_turn(f, which + 1, at, n, f->logits, err);
    if (!rc) rc = score_turn(f, at, n, f->logits, f->dense, f->own, err);
    for (int i = 0; !rc && i < n; i++) {
        const scored *dense = &f->by_dense[i], *own = &f->own[i];
        rc = cli_values_add(&m->kl, own->kl, err);
        if (!rc) rc = cli_values_add(&m->top1, own->top == dense->top, err);
        if (!rc) rc = cli_values_add(&m->nll[at + i + 1 >= f->path->n_before], own->nll, err);
        if (!rc) rc = cli_values_add(&m->more_nll, own->nll - dense->nll, err);
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

static int run_turns(forced *f, sl_error *err) {
    int rc = 0, last = f->path->n - 1; // the last token has no successor
    for (int at = f->path->from; !rc && at < last; at += f->turn) {
        int n = last - at < f->turn ? last - at : f->turn;
        rc = dense_turn(f, at, n, err);
        for (int i = 0; !rc && i < f->c->attn.n; i++) {
            cli_progress_work(&f->c->progress, n);
            rc = method_turn(f, i, at, n, err);
        }
        cli_progress_work(&f->c->progress, n);
    }
    return rc ? rc : end_prompt(f->c, err);
}

int compare_forced_run(compare *c, const compare_prompt *p, const compare_path *path, sl_error *err) {
    forced f = {.c = c, .path = path, .n_vocab = sl_model_config(c->run.model)->n_vocab};
    int rc = open_forced(&f, p->sequence, err);
    if (!rc) rc = run_turns(&f, err);
    close_forced(&f);
    return rc;
}
