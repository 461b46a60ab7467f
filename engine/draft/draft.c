// engine/draft/draft.c - sl_drafter: the sources of one stream's drafts, how often their drafts are accepted, and the choice of
// a source and a number of drafts for each pass.
#include "engine/draft/draft.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/number.h"
#include "engine/draft/draft_counts.h"
#include "engine/draft/ngram_index.h"
#include "engine/engine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_CLASSES = 5, // of n-grams, by the length of the common end
    N_SOURCES = N_CLASSES + SL_DRAFT_METHODS,
    // Passes without a draft until a source is tried again. The number doubles after each try without a gain, up to MOST_PAUSE.
    // A try costs about one pass, so the tries of a long answer take less than 1%.
    PAUSE = 48,
    MOST_PAUSE = 4 * PAUSE,
    // The first draft of a method needs page extras. Their time is small beside the time of a generation that has had
    // SETTLED_PASSES passes and has taken SETTLED_MS milliseconds.
    SETTLED_PASSES = 512,
    SETTLED_MS = 512,
};

// The acceptance of one source: of the drafts that were compared, the share that was accepted. Older drafts count less.
typedef struct acceptance {
    double compared, accepted;
} acceptance;

// Decode steps that draft: of the session itself with another plan (`self`), or of a session of the draft model (`model`).
typedef struct drafting {
    uint64_t key;        // of sl_draft_costs
    sl_plan *plan;       // NULL: none
    sl_session *session; // of the draft model; NULL: `self`
} drafting;

struct sl_drafter {
    sl_engine *engine;
    sl_draft_spec spec;
    sl_ngram_index index;               // spec.has_ngram
    uint32_t n_cuts;                    // the session's n_cuts when the index last got its text
    drafting methods[SL_DRAFT_METHODS]; // [spec.n_methods]
    float *logits;                      // [n_vocab] of the session while `self` decodes
    acceptance acceptance[N_SOURCES];
    sl_draft_counts counts;
    uint32_t checked; // number of the session's plan that was checked last
    int is_exact;     // 1: its methods keep no state from step to step
    int n_idle;       // passes since the last draft
    int pause;        // passes without a draft until the next try
    // ---- the pass that runs ----
    int source; // of the drafts
    int next;   // ngram: the place that is copied
};

// ---- life ----

static sl_engine *drafting_engine(const sl_drafter *d) {
    return d->spec.of_model ? d->engine->draft : d->engine;
}

static int open_method(sl_drafter *d, int which, sl_error *err) {
    drafting *m = &d->methods[which];
    sl_engine *e = drafting_engine(d);
    const char *attn = d->spec.attn[which], *weights = d->spec.weights ? d->spec.weights : "";
    int rc = sl_plan_parse(e, attn, d->spec.weights != NULL, &m->plan, err);
    m->key = sl_fnv1a(sl_fnv1a(d->spec.of_model ? 1 : SL_FNV1A_START, attn, strlen(attn)), weights, strlen(weights));
    if (rc || !d->spec.of_model) return rc ? rc : sl_draft_check_state(e, &m->plan->methods, err);
    rc = sl_session_new(e, 0, &m->session, err);
    if (!rc) sl_session_use_plan(m->session, m->plan);
    return rc;
}

static int open_methods(sl_drafter *d, sl_error *err) {
    // sl_plan_parse claims the engine that it changes. Only calls of the main engine use the engine of the draft model.
    int rc = d->spec.of_model ? sl_engine_claim(d->engine, err) : 0;
    if (rc) return rc;
    for (int i = 0; !rc && i < d->spec.n_methods; i++) rc = open_method(d, i, err);
    if (d->spec.of_model) sl_engine_release(d->engine);
    return rc;
}

int sl_drafter_new(sl_engine *e, const char *draft, sl_drafter **out, sl_error *err) {
    sl_draft_spec spec;
    int rc = sl_draft_read(e, draft, &spec, err);
    if (rc) return rc;
    sl_drafter *d = calloc(1, sizeof *d);
    if (!d) return sl_fail(err, SL_ERR_MEMORY, "{draft}: out of memory");
    d->engine = e, d->spec = spec;
    if (spec.n_methods && !spec.of_model && !(d->logits = malloc(e->model->config.n_vocab * sizeof *d->logits)))
        rc = sl_fail(err, SL_ERR_MEMORY, "{draft}: out of memory");
    if (!rc && spec.has_ngram) rc = sl_ngram_init(&d->index, spec.min, spec.max, e->n_ctx + 1, err);
    if (!rc) rc = open_methods(d, err);
    if (rc) {
        sl_drafter_free(d);
        return rc;
    }
    static const double expected[N_SOURCES] = {0.3, 0.45, 0.6, 0.75, 0.85, 0.8, 0.8}; // before the first draft
    for (int i = 0; i < N_SOURCES; i++) d->acceptance[i] = (acceptance){4, 4 * expected[i]};
    *out = d;
    return 0;
}

void sl_drafter_free(sl_drafter *d) {
    if (!d) return;
    for (int i = 0; i < SL_DRAFT_METHODS; i++) {
        drafting *m = &d->methods[i];
        sl_plan_drop(drafting_engine(d), m->plan);
        sl_session_free(m->session);
    }
    sl_ngram_free(&d->index);
    free(d->logits);
    free(d);
}

// Leaves steps out of the engine's statistics: called before them (back 0), and after them. saved: of e->stats.
static void set_counts_aside(sl_engine *e, sl_attn_stats *saved, int back) {
    const sl_attn_runner *attention = e->device.attention;
    if (attention->set_aside) attention->set_aside(e, back);
    *(back ? &e->stats : saved) = *(back ? saved : &e->stats);
}

// Errors of drafts and of their warm-up, such as a lack of memory or logits that are not finite, only end the drafts, because a
// generation does not need drafts. Two errors go to the caller: a cancellation, and with ranks an error that this rank alone
// may have. After such an error, the ranks would differ.
static int error_of_drafts(const sl_engine *e, int rc) {
    return rc == SL_ERR_CANCELLED || sl_engine_is_own_error(e, rc) ? rc : 0;
}

// ---- warm-up ----

// A pass of n_rows rows over sessions of one token, which have one token again after it.
static int warm_pass(sl_session *const *sessions, int n_rows, int is_measured, sl_error *err) {
    static const int32_t ids[1 + SL_MAX_DRAFT]; // the tokens do not matter
    sl_engine *e = sessions[0]->engine;
    int most = 1 + e->n_draft, n = (n_rows + most - 1) / most;
    sl_run runs[n];
    for (int i = 0; i < n; i++) // the first sessions have one row more
        runs[i] = (sl_run){.session = sessions[i], .ids = ids, .n = n_rows / n + (i < n_rows % n)};
    double start = sl_now_ms();
    int rc = sl_decode_runs_claimed(runs, n, err);
    if (!rc && is_measured) sl_draft_costs_pass(&e->draft_costs, n_rows, sl_engine_share_time(e, sl_now_ms() - start));
    for (int i = 0; !rc && i < n; i++) rc = sl_session_truncate(sessions[i], 1, err);
    return rc;
}

// A pass of each number of rows. Three more passes of `most` rows and of 2, 3, 5, 9, 17, ... rows if they are measured: the
// first one does not count, and one alone may be far off. The largest comes first, because it allocates what the others need,
// and that would make their recordings invalid.
static int warm_passes(sl_session *const *sessions, int most, int is_measured, sl_error *err) {
    int rc = 0;
    for (int n_rows = most; !rc && n_rows >= 2; n_rows--) {
        int is_point = is_measured && (n_rows == most || !((n_rows - 1) & (n_rows - 2)));
        for (int i = 0; !rc && i < (is_point ? 4 : 1); i++) rc = warm_pass(sessions, n_rows, is_point, err);
    }
    return rc;
}

int sl_drafts_warm_up(sl_engine *e, sl_plan *own, sl_error *err) {
    enum { MOST = 64 };
    int each = 1 + e->n_draft, n_free = e->device.pool.n_free, needed = (MOST + each - 1) / each, rc = 0, n = 0;
    sl_plan *plan = own ? own : e->plans.of_engine;
    if (!e->device.backend->run_step || each < 2 || e->n_ctx < 1 + each) return 0;
    if (sl_draft_check_state(e, &plan->methods, NULL)) return 0; // no drafts with this plan
    int n_sessions = plan == e->plans.of_engine ? e->n_sequences : 1;
    if (n_sessions > needed) n_sessions = needed;
    if (n_sessions > n_free) n_sessions = n_free; // a page for each
    int most = n_sessions * each < MOST ? n_sessions * each : MOST;
    if (most <= plan->draft_rows) return 0; // also without a free page
    sl_session *sessions[n_sessions];
    sl_attn_stats saved;
    if ((rc = sl_engine_claim(e, err))) return rc;
    set_counts_aside(e, &saved, 0);
    for (; !rc && n < n_sessions; n += !rc) {
        if ((rc = sl_session_new(e, 0, &sessions[n], err))) break;
        sl_session_use_plan(sessions[n], own);
        if ((rc = sl_prefill_claimed(sessions[n], &(int32_t){0}, 1, NULL, err))) sl_session_free(sessions[n]);
    }
    e->plans.draws_always = 1; // without it, a session of one token attends exactly where a long one draws
    if (!rc) rc = warm_passes(sessions, most, 1, err);
    e->plans.draws_always = 0;
    if (!rc && plan->n_splits) rc = warm_passes(sessions, most, 0, err);
    sl_draft_costs_age(&e->draft_costs); // passes over longer sessions take longer
    rc = error_of_drafts(e, rc);
    if (!rc) plan->draft_rows = most; // a warm-up that failed is not tried again
    while (n) sl_session_free(sessions[--n]);
    set_counts_aside(e, &saved, 1);
    sl_engine_release(e);
    return rc;
}

int sl_drafter_begin(sl_drafter *d, const sl_session *session, sl_error *err) {
    const sl_plan *plan = sl_session_plan(session);
    int rc = sl_draft_check_state(d->engine, &plan->methods, err);
    if (!rc) rc = sl_drafts_warm_up(d->engine, session->own_plan, err);
    if (rc) return rc;
    d->counts = (sl_draft_counts){0}, d->n_idle = 0, d->pause = PAUSE;
    d->checked = plan->number, d->is_exact = 1;
    for (int i = 0; i < d->spec.n_methods; i++) {
        sl_session *s = d->methods[i].session;
        if (s) s->sequence = session->sequence, s->seed = session->seed;
    }
    return 0;
}

const sl_draft_counts *sl_drafter_counts(const sl_drafter *d) {
    return &d->counts;
}

// ---- the choice ----

static int class_of(int length) { // of an n-gram
    return length <= 3 ? 0 : length <= 5 ? 1 : length <= 8 ? 2 : length <= 16 ? 3 : 4;
}

static double share(const sl_drafter *d, int source) {
    return d->acceptance[source].accepted / d->acceptance[source].compared;
}

// Tokens and milliseconds of a pass.
typedef struct prospect {
    double tokens, ms;
} prospect;

// Finds the number of drafts of a source, `least` to `most`, with the most tokens in a millisecond. A draft counts only if all
// drafts before it are accepted. cost: milliseconds of a draft. Returns the pass with these drafts.
static prospect best_number(prospect without, double accepted, double cost, int least, int most, int *number) {
    prospect at = without, best = without;
    double chance = 1;
    *number = 0;
    for (int i = 1; i <= most; i++) {
        chance *= accepted;
        at.tokens += chance, at.ms += cost;
        if (i <= least || at.tokens * best.ms > best.tokens * at.ms) best = at, *number = i;
    }
    return best;
}

// Whether method i may draft. A method may need page extras of the whole context, which takes as long as several passes. Where
// there is another source, it waits until this is little beside the passes that were made.
static int may_draft(const sl_drafter *d, int i, const sl_draft_job *job, int most, double pass_ms) {
    const sl_session *of_model = d->methods[i].session;
    int is_alone = !d->spec.has_ngram || d->spec.least,
        is_measured = sl_draft_costs_of_method(&d->engine->draft_costs, d->methods[i].key) > 0;
    if (of_model && job->session->kv.n_tokens + most > of_model->engine->n_ctx) return 0;
    double n_steps = (double)d->counts.n_steps;
    return is_alone || is_measured || (n_steps >= SETTLED_PASSES && n_steps * pass_ms >= SETTLED_MS);
}

// A session without a plan of its own follows the engine's, which may have changed.
static int is_exact(sl_drafter *d, const sl_session *s) {
    const sl_plan *plan = sl_session_plan(s);
    if (plan->number != d->checked) d->is_exact = !sl_draft_check_state(d->engine, &plan->methods, NULL);
    d->checked = plan->number;
    return d->is_exact;
}

// Milliseconds of a draft of method i. Before the first one: half of a pass of one row.
static double cost_of(const sl_drafter *d, int i) {
    double fixed, each, ms = sl_draft_costs_of_method(&d->engine->draft_costs, d->methods[i].key);
    sl_draft_costs_line(&d->engine->draft_costs, &fixed, &each);
    return ms > 0 ? ms : (fixed + each) / 2;
}

// The index has the session's text of the last pass, and behind it a token that may not have been appended. Without a cut, the
// session has only grown since then.
static void sync_index(sl_drafter *d, const sl_session *s) {
    int is_known = d->index.n && d->n_cuts == s->n_cuts;
    sl_ngram_sync(&d->index, s->ids, s->kv.n_tokens, is_known ? d->index.n - 1 : 0);
    d->n_cuts = s->n_cuts;
}

// Chooses source and number of a job's drafts. Returns the number. pass_ms: of a pass of one row. *pass: before and after.
static int choose(sl_drafter *d, const sl_draft_job *job, double each, double pass_ms, prospect *pass) {
    int most = job->most < d->spec.most ? job->most : d->spec.most, best = 0, number, tried = -1;
    int in_pass = sl_plan_most_rows(job->session) - 1; // besides the first row
    if (most > in_pass) most = in_pass;
    if (most <= 0 || !is_exact(d, job->session)) return 0;
    prospect chosen = *pass;
    if (d->spec.has_ngram) {
        sync_index(d, job->session);
        sl_ngram_push(&d->index, job->ids[0]);
        int length = sl_ngram_find(&d->index, &d->next);
        if (length) {
            tried = d->source = class_of(length);
            chosen = best_number(*pass, share(d, d->source), each, d->spec.least, most, &best);
        }
    }
    int is_found = tried >= 0; // an n-gram
    int turn = d->spec.n_methods ? (int)(d->counts.n_drafts % (uint64_t)d->spec.n_methods) : 0;
    // A grammar allows the sampler the tokens of the next place only, so a method cannot draft the places behind it.
    for (int i = 0; i < d->spec.n_methods && !sl_sampler_allowed(job->sampler); i++) {
        if (!may_draft(d, i, job, most, pass_ms)) continue;
        double cost = each + cost_of(d, i);
        prospect with = best_number(*pass, share(d, N_CLASSES + i), cost, d->spec.least, most, &number);
        if (number && (!best || with.tokens * chosen.ms > chosen.tokens * with.ms))
            chosen = with, best = number, d->source = N_CLASSES + i;
        if (tried < 0 || (!is_found && i == turn)) tried = N_CLASSES + i;
    }
    *pass = chosen;
    if (best) {
        d->n_idle = 0, d->pause = PAUSE;
    } else if (tried >= 0 && ++d->n_idle >= d->pause) { // a source that was bad may be good now
        best = 1, d->source = tried, d->n_idle = 0;
        d->pause = 2 * d->pause < MOST_PAUSE ? 2 * d->pause : MOST_PAUSE;
    }
    return best;
}

// ---- drafts of a method: decode steps of the session with another plan, or of a session of the draft model ----

static sl_session *drafting_session(const sl_draft_job *job) {
    sl_session *s = job->drafter->methods[job->drafter->source - N_CLASSES].session;
    return s ? s : job->session;
}

// A session and its sampler before the drafts.
typedef struct detour {
    sl_plan *plan;
    sl_attn_stats *work, ignored;
    int n_tokens, n_history; // of the session, and of the sampler
} detour;

// Brings the session of the draft model closer to the session, by at most one chunk, because the other sessions of the batch
// wait meanwhile. Returns 1 when it has all its rows, 0 when it lacks some.
static int catch_up(sl_session *drafts, const sl_session *s, sl_error *err) {
    int n = sl_session_common(drafts, s->ids, s->kv.n_tokens), lacking = s->kv.n_tokens - n;
    int m = lacking < drafts->engine->prefill_chunk ? lacking : drafts->engine->prefill_chunk;
    int rc = sl_session_truncate(drafts, n, err);
    if (!rc && m) rc = sl_prefill_claimed(drafts, s->ids + n, m, NULL, err);
    return rc ? rc : m == lacking;
}

// Prepares the session that drafts: it has the rows of the job's session, and its plan drafts. Returns 1; 0: it is not ready.
static int leave(detour *t, const sl_draft_job *job, sl_error *err) {
    sl_drafter *d = job->drafter;
    sl_session *s = job->session, *drafts = drafting_session(job);
    *t = (detour){NULL, s->work, {0}, s->kv.n_tokens, sl_sampler_n_tokens(job->sampler)};
    if (drafts != s) return catch_up(drafts, s, err);
    memcpy(d->logits, sl_session_last_logits(s), d->engine->model->config.n_vocab * sizeof *d->logits);
    t->plan = sl_plan_share(s->own_plan);
    sl_session_use_plan(s, d->methods[d->source - N_CLASSES].plan);
    s->work = &t->ignored;
    int rc = sl_session_sync_state(s, err);
    if (!rc) sl_session_build_extras(s); // here, so that the time of a draft does not have it
    return rc ? rc : 1;
}

static void come_back(detour *t, const sl_draft_job *job) {
    sl_drafter *d = job->drafter;
    sl_session *s = job->session;
    sl_sampler_truncate(job->sampler, t->n_history);
    if (drafting_session(job) != s) return;
    sl_session_use_plan(s, t->plan);
    sl_plan_drop(d->engine, t->plan);
    s->work = t->work;
    // This is no cut (n_cuts): choose reads the tokens into the index before the drafts and after them, never between.
    sl_kv_truncate(&d->engine->device.pool, &s->kv, t->n_tokens);
    sl_logits_forget_row(s);
    memcpy(s->logits, d->logits, d->engine->model->config.n_vocab * sizeof *d->logits);
}

// Draft i + 1 of the jobs [n], which all have draft i: one step of sessions of one engine.
static int method_step(sl_draft_job *const *jobs, int n, int i, sl_error *err) {
    sl_run runs[n];
    int32_t ids[n];
    for (int j = 0; j < n; j++)
        runs[j] = (sl_run){.session = drafting_session(jobs[j]),
                           .ids = &jobs[j]->ids[i],
                           .n = 1,
                           .sampler = jobs[j]->sampler,
                           .next = &ids[j]};
    int rc = sl_decode_runs_claimed(runs, n, err);
    for (int j = 0; !rc && j < n; j++) rc = sl_sampler_accept(runs[j].sampler, jobs[j]->ids[i], err);
    for (int j = 0; !rc && j < n; j++)
        if (ids[j] < 0) rc = sl_sample_claimed(&runs[j].session, 1, &runs[j].sampler, &ids[j], err);
    for (int j = 0; !rc && j < n; j++) jobs[j]->ids[jobs[j]->n++] = ids[j];
    return rc;
}

// All steps of the jobs [n]. wanted: of each job of the pass, whose first is `first`.
static int method_steps(sl_draft_job *const *mine, int n, const sl_draft_job *first, const int *wanted, sl_error *err) {
    sl_draft_job *now[n];
    int rc = 0;
    for (int i = 0, n_now = 1; !rc && n_now; i++) {
        n_now = 0;
        for (int j = 0; j < n; j++) {
            int last = mine[j]->ids[mine[j]->n - 1], has_ended = i && sl_model_is_eos(mine[j]->session->engine->model, last);
            if (wanted[mine[j] - first] > i && !has_ended) now[n_now++] = mine[j];
        }
        if (n_now) rc = method_step(now, n_now, i, err);
    }
    return rc;
}

// The time is shared by all drafts of the pass, also if their methods differ.
static void add_cost(sl_draft_job *const *mine, int n, double ms) {
    int n_drafts = 0;
    for (int j = 0; j < n; j++) n_drafts += mine[j]->n - 1;
    for (int j = 0; j < n; j++) {
        sl_drafter *d = mine[j]->drafter;
        if (mine[j]->n > 1)
            sl_draft_costs_method(&d->engine->draft_costs, d->methods[d->source - N_CLASSES].key, ms / n_drafts);
    }
}

// wanted: [n] drafts of the jobs. Fills ids of the jobs whose drafts come from a method: of the draft model, or of `self`.
static int draft_by_method(sl_draft_job *jobs, int n, const int *wanted, int of_model, sl_error *err) {
    detour detours[n];
    sl_draft_job *mine[n];
    int n_mine = 0, rc = 0;
    double start = sl_now_ms();
    sl_engine *e = jobs[0].session->engine;
    sl_attn_stats before;
    for (int j = 0; rc >= 0 && j < n; j++) {
        int is_mine = wanted[j] && jobs[j].drafter->source >= N_CLASSES;
        if (!is_mine || (drafting_session(&jobs[j]) != jobs[j].session) != of_model) continue;
        rc = leave(&detours[n_mine], &jobs[j], err);
        if (rc || !of_model) mine[n_mine++] = &jobs[j]; // else the session of the draft model is not ready
    }
    if (!of_model) start = sl_now_ms(); // without page extras, which are made once
    if (!n_mine) return error_of_drafts(e, rc);
    set_counts_aside(e, &before, 0);
    if (rc >= 0) rc = method_steps(mine, n_mine, jobs, wanted, err);
    if (!rc) add_cost(mine, n_mine, sl_engine_share_time(e, sl_now_ms() - start));
    for (int j = 0; j < n_mine; j++) come_back(&detours[j], mine[j]);
    set_counts_aside(e, &before, 1);
    return error_of_drafts(e, rc);
}

int sl_drafts_make(sl_draft_job *jobs, int n, sl_error *err) {
    double fixed, each;
    int wanted[n], rc = 0;
    sl_engine *e = jobs[0].session->engine;
    sl_draft_costs_line(&e->draft_costs, &fixed, &each);
    prospect pass = {n, fixed + each * n};
    for (int i = 0; i < n; i++) {
        sl_draft_job *job = &jobs[i];
        wanted[i] = 0, job->n = 1;
        if (!job->drafter || e->observation.observer.fn) continue; // an observer sees single steps
        sl_drafter *d = job->drafter;
        wanted[i] = choose(d, job, each, fixed + each, &pass);
        if (wanted[i] && d->source < N_CLASSES) {
            sl_ngram_copy(&d->index, d->next, wanted[i], job->ids + 1);
            job->n = 1 + wanted[i];
        }
    }
    for (int of_model = 0; !rc && of_model < 2; of_model++) rc = draft_by_method(jobs, n, wanted, of_model, err);
    return rc;
}

// ---- after the pass ----

void sl_drafts_passed(const sl_draft_job *jobs, int n, double ms) {
    int n_rows = 0;
    for (int i = 0; i < n; i++) n_rows += jobs[i].n;
    sl_engine *e = jobs[0].session->engine;
    sl_draft_costs_pass(&e->draft_costs, n_rows, sl_engine_share_time(e, ms));
}

void sl_draft_settle(const sl_draft_job *job, int n_compared, int n_accepted) {
    sl_drafter *d = job->drafter;
    if (!d) return;
    int n = job->n - 1;
    d->counts.n_steps++;
    if (!n) return;
    acceptance *a = &d->acceptance[d->source];
    const double forget = 0.95;
    for (int i = 0; i < n_compared; i++) {
        a->compared = a->compared * forget + 1;
        a->accepted = a->accepted * forget + (i < n_accepted);
    }
    d->counts.n_drafts++;
    d->counts.n_draft_tokens += (uint64_t)n;
    d->counts.n_accepted_tokens += (uint64_t)n_accepted;
    for (int i = 0; i < n_accepted; i++) d->counts.accepted_at[i]++;
    if (d->source < N_CLASSES) d->counts.n_ngram_drafts++;
}

void sl_drafter_describe(const sl_drafter *d, char *buf, size_t size) {
    double fixed, each;
    sl_draft_costs_line(&d->engine->draft_costs, &fixed, &each);
    int n = sl_draft_counts_text(buf, size, &d->counts, d->spec.of_model ? "model" : "self");
    if (n >= 0 && (size_t)n < size)
        n += sl_print(buf + n, size - n, "; a pass of one row takes %.2f ms, a further row %.2f", fixed + each, each);
    for (int i = 0; i < d->spec.n_methods && n >= 0 && (size_t)n < size; i++)
        if (sl_draft_costs_of_method(&d->engine->draft_costs, d->methods[i].key) > 0)
            n += sl_print(buf + n, size - n, ", a draft of %s%s%s %.2f", d->spec.attn[i], d->spec.weights ? ":weights=" : "",
                          d->spec.weights ? d->spec.weights : "", cost_of(d, i));
}
