// engine/schedule/scheduler.c - see scheduler.h.
#include "engine/schedule/scheduler.h"
#include "base/clock.h"
#include "engine/schedule/scheduler_internal.h"
#include "engine/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROWTH = 1024 }; // tokens that admission counts for an answer without max_tokens

// ---- life ----

int sl_scheduler_new(sl_engine *engine, const sl_scheduler_options *options, sl_scheduler **out, sl_error *err) {
    sl_scheduler *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "scheduler: out of memory");
    size_t n = (size_t)engine->n_sequences;
    s->engine = engine;
    if (options) s->options = *options;
    s->streams = malloc(n * sizeof *s->streams);
    s->sessions = malloc(n * sizeof *s->sessions);
    s->batch = malloc(n * sizeof *s->batch);
    s->pages = malloc((size_t)sl_kv_pages_of(engine->n_ctx) * sizeof *s->pages);
    int has_all = s->streams && s->sessions && s->batch && s->pages;
    int rc = has_all ? 0 : sl_fail(err, SL_ERR_MEMORY, "scheduler: out of memory");
    const sl_attn_spec dense = {.method = &sl_method_dense};
    if (!rc) rc = sl_attn_plan_init(&s->dense, engine->geom.n_layers, &dense, err);
    if (!rc && !s->options.no_prefixes) rc = sl_prefix_tree_new(&engine->device.pool, &s->tree, err);
    if (rc) {
        sl_scheduler_free(s);
        return rc;
    }
    atomic_fetch_add(&engine->n_users, 1);
    *out = s;
    return 0;
}

void sl_scheduler_free(sl_scheduler *s) {
    if (!s) return;
    SL_CHECK(s->n_jobs == 0);
    sl_prefix_tree_free(s->tree);
    sl_attn_plan_free(&s->dense);
    free(s->jobs);
    free(s->streams);
    free(s->sessions);
    free(s->batch);
    free(s->pages);
    sl_engine_free(s->engine);
    free(s);
}

sl_engine *sl_scheduler_engine(const sl_scheduler *s) {
    return s->engine;
}
sl_prefix_tree *sl_scheduler_tree(const sl_scheduler *s) {
    return s->tree;
}

static void changed(sl_job *j) {
    if (j->on_change) j->on_change(j->ctx, j);
}

// Ends a job that has no error, or the error in j->error, and gives its pages back. The stream and its results stay.
static void end_job(sl_job *j) {
    sl_scheduler *s = j->scheduler;
    int i = 0;
    while (s->jobs[i] != j) i++;
    memmove(s->jobs + i, s->jobs + i + 1, (size_t)(--s->n_jobs - i) * sizeof *s->jobs);
    for (i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->leader == j) s->jobs[i]->leader = NULL;
    sl_stream_end(j->stream, NULL);
    if (j->times.first) j->logits_hash = sl_logits_hash(sl_session_last_logits(j->session), s->engine->model->config.n_vocab);
    if (!j->is_lent) sl_session_truncate(j->session, 0, NULL);
    j->state = SL_JOB_ENDED;
    s->all.n_ended++;
    s->all.n_failed += j->error.code != SL_OK;
    sl_scheduler_note(s, j, SL_EVENT_END, NULL, 0);
    sl_job_sum_work(j);
    changed(j);
}

// Ends a job with an error that all ranks of the model have.
static void refuse_job(sl_job *j, const sl_error *why) {
    j->error = *why;
    end_job(j);
}

// Ends a job with any error. The job stays if this rank alone may have the error: s->lost is set, and the step must end.
static void fail_job(sl_job *j, const sl_error *why) {
    if (!sl_scheduler_lose(j->scheduler, why)) refuse_job(j, why);
}

void sl_job_cancel(sl_job *j) {
    j->is_cancelled = 1;
}

void sl_job_free(sl_job *j) {
    if (!j) return;
    j->on_change = NULL;
    j->is_cancelled |= j->state != SL_JOB_ENDED;
    if (j->state != SL_JOB_ENDED && j->number) end_job(j);
    sl_stream_free(j->stream);
    sl_session_free(j->session);
    sl_attn_plan_free(&j->prefill);
    sl_logprobs_free(&j->prompt_logprobs);
    free(j->ids);
    free(j->key);
    free(j);
}

// ---- adding ----

sl_job_options sl_job_options_default(void) {
    return (sl_job_options){.n_prefill = -1, .end = -1, .n_prompt_logprobs = -1};
}

// Rows depend on the methods of the prefill too, so these are part of the key.
int sl_prefix_key(const sl_attn_plan *prefill, int segment, const char *salt, char **out, sl_error *err) {
    sl_text key = {0};
    char line[512];
    snprintf(line, sizeof line, "%d\n", segment);
    int rc = sl_text_append(&key, line, strlen(line), err);
    for (int i = 0; !rc && i < prefill->n_layers; i++) {
        sl_attn_format(&prefill->layer[i], line, sizeof line - 1);
        strcat(line, "\n");
        rc = sl_text_append(&key, line, strlen(line), err);
    }
    if (!rc) rc = sl_text_append(&key, salt ? salt : "", salt ? strlen(salt) : 0, err);
    if (!rc) rc = sl_text_append(&key, "", 1, err); // the final NUL
    *out = key.data;
    return rc;
}

static int check_size(const sl_scheduler *s, const sl_job_options *o, sl_error *err) {
    const sl_engine *e = s->engine;
    int n_held = o->session ? o->session->kv.n_tokens : 0, has_logits = o->session && o->session->has_logits;
    if (o->n < !has_logits) return sl_fail(err, SL_ERR_ARG, "a prompt of %d tokens: expected at least %d", o->n, !has_logits);
    if (o->n > e->n_ctx - n_held)
        return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %d tokens: more than {n_ctx} %d", n_held + o->n, e->n_ctx);
    if (n_held && o->n_prompt_logprobs >= 0)
        return sl_fail(err, SL_ERR_ARG, "log-probabilities of a prompt: expected no rows before it, found %d", n_held);
    return sl_check_ids(e, o->ids, o->n, err);
}

static int n_in(const sl_scheduler *s, sl_job_state state) {
    int n = 0;
    for (int i = 0; i < s->n_jobs; i++) n += s->jobs[i]->state == state;
    return n;
}

int sl_scheduler_set_prefill(const sl_scheduler *s, const sl_attn_plan *plan, int segment, sl_error *err) {
    return sl_engine_set_prefill(s->engine, plan->n_layers ? plan : &s->dense, segment, err);
}

static int set_prefill(const sl_scheduler *s, const sl_job *j, sl_error *err) {
    return sl_scheduler_set_prefill(s, &j->prefill, j->segment, err);
}

// The session of the job, with the ids of its rows before the prompt.
static int open_session(sl_job *j, const sl_job_options *o, sl_error *err) {
    int n_held = j->n - o->n, rc = 0;
    if (!(j->ids = malloc((size_t)j->n * sizeof *j->ids))) return sl_fail(err, SL_ERR_MEMORY, "job: out of memory");
    if (o->session) {
        j->session = o->session, j->is_lent = 1, j->n_cached = n_held;
        j->session->n_users++;
        sl_session_set_sequence(j->session, o->generation->sequence);
    } else {
        rc = sl_session_new(j->scheduler->engine, o->generation->sequence, &j->session, err);
    }
    if (!rc && n_held) memcpy(j->ids, j->session->ids, (size_t)n_held * sizeof *j->ids);
    if (!rc && o->n) memcpy(j->ids + n_held, o->ids, (size_t)o->n * sizeof *j->ids);
    return rc;
}

static int fill_job(sl_job *j, const sl_job_options *o, sl_error *err) {
    sl_scheduler *s = j->scheduler;
    int n_ctx = s->engine->n_ctx, n_answer = o->generation->max_tokens ? o->generation->max_tokens : GROWTH;
    int n_tokens = n_answer < n_ctx - j->n ? j->n + n_answer : n_ctx, n_pages = s->engine->device.pool.n_pages;
    j->n_due = sl_kv_pages_of(n_tokens) < n_pages ? sl_kv_pages_of(n_tokens) : n_pages;
    int rc = o->prefill ? sl_attn_plan_copy(&j->prefill, o->prefill, err) : 0;
    if (!rc && o->prefill) rc = set_prefill(s, j, err); // says what is wrong with it
    if (!rc) rc = sl_prefix_key(&j->prefill, j->segment, o->salt, &j->key, err);
    if (!rc) rc = open_session(j, o, err);
    if (!rc) rc = sl_stream_new(j->session, o->generation, &j->stream, err);
    if (!rc && o->attn) rc = sl_stream_set_plan(j->stream, o->attn, err);
    if (!rc) rc = sl_stream_set_named(j->stream, o->named, o->n_named, err);
    if (rc) return rc;
    if (o->has_seed) sl_session_set_seed(j->session, o->seed);
    sl_stream_set_end(j->stream, o->end);
    sl_stream_use_plan(j->stream);
    sl_logprobs_begin(&j->prompt_logprobs, o->n_prompt_logprobs, s->engine->model->config.n_vocab);
    return 0;
}

int sl_scheduler_add(sl_scheduler *s, const sl_job_options *o, sl_job **out, sl_error *err) {
    int rc = check_size(s, o, err);
    if (!rc && s->options.max_waiting && n_in(s, SL_JOB_WAITS) >= s->options.max_waiting) {
        s->all.n_refused++;
        rc = sl_fail(err, SL_ERR_BUSY, "%d requests wait already: expected fewer than {max_waiting} %d", n_in(s, SL_JOB_WAITS),
                     s->options.max_waiting);
    }
    if (rc) return rc;
    if (s->n_jobs == s->cap_jobs) {
        int cap = 2 * s->cap_jobs + 16;
        sl_job **grown = realloc(s->jobs, (size_t)cap * sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "%d jobs: out of memory", cap);
        s->jobs = grown, s->cap_jobs = cap;
    }
    sl_job *j = calloc(1, sizeof *j);
    if (!j) return sl_fail(err, SL_ERR_MEMORY, "job: out of memory");
    int n_held = o->session ? o->session->kv.n_tokens : 0;
    *j = (sl_job){.scheduler = s,
                  .priority = o->priority,
                  .n = n_held + o->n,
                  .n_prefill = n_held + (o->n_prefill < 0 ? o->n : o->n_prefill),
                  .segment = o->prefill ? o->segment : 0,
                  .at_start = o->at_start,
                  .wants_work = o->wants_work,
                  .on_change = o->on_change,
                  .ctx = o->ctx};
    rc = fill_job(j, o, err);
    if (rc) {
        sl_job_free(j);
        return rc;
    }
    j->times.added = sl_now_ms();
    j->number = ++s->n_added;
    s->jobs[s->n_jobs++] = j;
    sl_scheduler_note(s, j, SL_EVENT_ADDED, j->ids, j->n);
    *out = j;
    return 0;
}

// ---- pages ----

// Pages that the session lacks for n_tokens tokens.
static int n_lacking(const sl_session *s, int n_tokens) {
    return sl_kv_lacking(&s->engine->device.pool, &s->kv, n_tokens);
}

// Pages that the job may still take, of those that admission counts.
static int n_open(const sl_job *j) {
    return n_lacking(j->session, j->n_due * SL_PAGE);
}

// Pages that admitted jobs may still take, of those that admission counted.
static int n_outstanding(const sl_scheduler *s) {
    int n = 0;
    for (int i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->state != SL_JOB_WAITS) n += n_open(s->jobs[i]);
    return n;
}

// Pages that no admitted job holds or counts on.
static int n_available(const sl_scheduler *s) {
    return s->engine->device.pool.n_free + (s->tree ? sl_prefix_n_evictable(s->tree) : 0) - n_outstanding(s);
}

// Makes n free pages, where the prefix cache has enough. Returns 1 when there are n.
static int make_free(sl_scheduler *s, int n) {
    const sl_kv_pool *pool = &s->engine->device.pool;
    if (pool->n_free < n && s->tree) sl_prefix_evict(s->tree, n - pool->n_free);
    return pool->n_free >= n;
}

// A job that waits gives up its own rows: they are prefilled again.
static void drop_rows(sl_job *j) {
    sl_session_truncate(j->session, 0, NULL);
    j->n_cached = 0;
}

// Frees pages of sessions, where the caller allows it. 0: there are none. for_job: a job that lacks pages; NULL: none
static int free_sessions(sl_scheduler *s, const sl_job *for_job) {
    if (!s->options.give_up) return 0;
    if (s->options.give_up(s->options.ctx)) return 1;
    for (int i = s->n_jobs - 1; i >= 0; i--) {
        sl_job *j = s->jobs[i];
        if (j == for_job || j->state != SL_JOB_WAITS || !j->session->kv.n_pages) continue;
        drop_rows(j);
        return 1;
    }
    return 0;
}

int sl_scheduler_make_room(sl_scheduler *s, int n) {
    while (n > n_available(s))
        if (!free_sessions(s, NULL)) return 0;
    return make_free(s, n);
}

// ---- the prefix cache ----

// The most pages of the prompt that can come from the cache: the last token of the prompt needs a pass, which gives the logits.
static int most_cached(const sl_job *j) {
    // Log-probabilities need a pass over all tokens. A session that the caller lent has its own rows, unless it gave them up.
    if (!j->scheduler->tree || j->prompt_logprobs.n_top >= 0 || (j->is_lent && j->session->kv.n_tokens)) return 0;
    return sl_whole_segments((j->n_prefill - (j->n_prefill == j->n)) / SL_PAGE, j->segment);
}

static int find_prefix(sl_job *j) { // to s->pages
    sl_scheduler *s = j->scheduler;
    int most = most_cached(j), n = most ? sl_prefix_find(s->tree, j->key, j->ids, most, s->pages) : 0;
    return sl_whole_segments(n, j->segment);
}

// Takes the pages that the cache has beyond the job's own, which are dropped.
static int take_prefix(sl_job *j, sl_error *err) {
    int n = find_prefix(j);
    if (n * SL_PAGE <= j->session->kv.n_tokens) return 0;
    int rc = set_prefill(j->scheduler, j, err);
    if (!rc) rc = sl_session_truncate(j->session, 0, err);
    if (!rc) rc = sl_session_share(j->session, j->ids, j->scheduler->pages, n, err);
    if (!rc) j->scheduler->all.hit_tokens += (uint64_t)(n * SL_PAGE - j->n_cached), j->n_cached = n * SL_PAGE;
    return rc;
}

// Gives the full pages of the job's prefill to the cache. Without memory the cache stays smaller, which is no error.
static void give_prefix(sl_job *j) {
    sl_scheduler *s = j->scheduler;
    // In a lent session, segments of a sparse prefill may differ from those of a prompt alone.
    int is_sparse = j->segment || j->session->n_segments;
    if (s->tree && !(j->is_lent && is_sparse))
        sl_prefix_add(s->tree, j->key, j->ids, sl_session_shareable(j->session), j->session->kv.pages, NULL);
}

// Finds the job that prefills the longest common prefix before this job needs it.
static void find_leader(sl_job *j) {
    const sl_scheduler *s = j->scheduler;
    for (int i = 0, most = most_cached(j); i < s->n_jobs; i++) {
        sl_job *other = s->jobs[i];
        if (other == j || other->state != SL_JOB_PREFILLS || strcmp(other->key, j->key)) continue;
        int n = 0, end = other->n_prefill < most * SL_PAGE ? other->n_prefill : most * SL_PAGE;
        while (n < end && other->ids[n] == j->ids[n]) n++;
        n = n / SL_PAGE * SL_PAGE;
        if (n > j->n_common && n > j->session->kv.n_tokens) j->leader = other, j->n_common = n;
    }
}

// ---- admission ----

static int is_first(const sl_job *a, const sl_job *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->number < b->number;
}

// Pages that the job lacks beside what the admitted jobs may take. 0 or less: it fits.
static int n_missing(sl_job *j) {
    const sl_kv_pool *pool = &j->scheduler->engine->device.pool;
    int n_found = find_prefix(j), n_pinned = 0;
    for (int i = 0; i < n_found; i++) n_pinned += pool->refs[j->scheduler->pages[i]] == 1;
    return n_open(j) - n_found + n_pinned - n_available(j->scheduler);
}

// Pages that sessions beside those of the admitted jobs hold, at least.
static int n_idle(const sl_scheduler *s) {
    const sl_kv_pool *pool = &s->engine->device.pool;
    int n = pool->n_pages - pool->n_free - (s->tree ? sl_prefix_n_evictable(s->tree) : 0);
    for (int i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->state != SL_JOB_WAITS) n -= s->jobs[i]->session->kv.n_pages;
    return n;
}

// Makes room for a job that waits, from sessions that may give up their pages: only if that suffices, or if no admitted job
// will give back pages. Returns 1 when the job fits.
static int make_fit(sl_scheduler *s, sl_job *j) {
    int is_alone = s->n_jobs == n_in(s, SL_JOB_WAITS);
    for (int n; (n = n_missing(j)) > 0;) {
        if (!is_alone && n > n_idle(s)) return 0;
        if (free_sessions(s, j)) continue;
        // Its own rows can keep pages of the prefix cache that nobody else holds.
        if (!is_alone || !s->options.give_up || !j->session->kv.n_pages) return 0;
        drop_rows(j);
    }
    return 1;
}

// Admits waiting jobs in their order, up to the first that does not fit.
static void admit(sl_scheduler *s) {
    for (;;) {
        sl_job *next = NULL;
        for (int i = 0; i < s->n_jobs; i++)
            if (s->jobs[i]->state == SL_JOB_WAITS && (!next || is_first(s->jobs[i], next))) next = s->jobs[i];
        if (!next || s->n_jobs - n_in(s, SL_JOB_WAITS) == s->engine->n_sequences) return;
        if (!make_fit(s, next)) return;
        sl_error why;
        next->state = SL_JOB_PREFILLS;
        next->times.admitted = sl_now_ms();
        next->turn = ++s->n_admitted;
        s->all.query_tokens += s->tree && !next->is_lent ? (uint64_t)next->n : 0;
        if (take_prefix(next, &why)) {
            fail_job(next, &why);
            continue;
        }
        find_leader(next);
        changed(next);
    }
}

// ---- prefills ----

// sl_logits_fn: each row gives the log-probability of the next token of the prompt.
static int add_prompt_logprobs(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    sl_job *j = ctx;
    sl_logprobs *l = &j->prompt_logprobs;
    int rc = 0;
    (void)first;
    for (int i = 0; !rc && i < n_rows && l->n + 1 < j->n; i++) {
        rc = sl_logprobs_before(l, logits + (size_t)i * l->n_vocab, err);
        if (!rc) rc = sl_logprobs_add(l, j->ids[l->n + 1], err);
    }
    return rc;
}

// A pass of a job alone.
static int prefill_alone(sl_job *j, const sl_prefill_part *part, sl_error *err) {
    if (j->prompt_logprobs.n_top >= 0)
        return sl_prefill_logits(j->session, part->ids, part->n, add_prompt_logprobs, j, NULL, err);
    return sl_prefill(j->session, part->ids, part->n, NULL, err);
}

// The prompt has rows up to n_prefill.
static void end_prefill(sl_job *j) {
    sl_error why;
    int rc = 0;
    j->times.prefilled = sl_now_ms();
    if (j->n_prefill < j->n)
        j->state = SL_JOB_FEEDS;
    else if (!(rc = sl_stream_begin(j->stream, j->at_start, &why)))
        j->state = SL_JOB_DECODES;
    if (rc) fail_job(j, &why);
}

// Whether the job can prefill now. A job whose leader has made the common pages takes them.
static int can_prefill(sl_job *j) {
    if (j->state != SL_JOB_PREFILLS || j->is_cancelled) return 0;
    if (j->leader && j->leader->state == SL_JOB_PREFILLS && j->leader->session->kv.n_tokens < j->n_common) return 0;
    if (!j->n_common) return 1;
    sl_error why;
    j->leader = NULL, j->n_common = 0;
    if (!take_prefix(j, &why)) return 1;
    fail_job(j, &why);
    return 0;
}

static int n_left(const sl_job *j) { // tokens that are not prefilled yet
    return j->n_prefill - j->session->kv.n_tokens;
}

// 1: the job's tokens may stand in one pass with those of other jobs.
static int can_join(const sl_job *j) {
    return !j->segment && j->prompt_logprobs.n_top < 0;
}

// The job whose turn it is in a pass that has n others: the first one, or the one with the fewest tokens left.
static sl_job *next_prefill(sl_scheduler *s, int n) {
    sl_job *next = NULL;
    int by_length = (s->n_passes + (uint64_t)n) % 2;
    for (int i = s->n_jobs - 1; i >= 0; i--) { // can_prefill may end a job
        sl_job *j = s->jobs[i];
        if (j->in_pass || (n && !can_join(j)) || !can_prefill(j)) continue;
        int is_before = !next || is_first(j, next);
        if (next && by_length && n_left(j) != n_left(next)) is_before = n_left(j) < n_left(next);
        if (is_before) next = j;
    }
    return next;
}

// What may still be prefilled before the next decode step.
typedef struct room {
    int tokens;   // that this pass may still take
    double flops; // that all passes together may still take (sl_model_prefill_flops)
    double least; // with fewer left, no further job begins, because a tiny piece of a prompt costs as much as a larger one
} room;

// The most tokens of the job, at least one and at most n, that fit into the room.
static int n_within(const sl_job *j, int n, const room *r) {
    const sl_model *m = j->scheduler->engine->model;
    int least = 1, most = n < r->tokens ? n : r->tokens;
    while (least < most) {
        int middle = least + (most - least + 1) / 2;
        if (sl_model_prefill_flops(m, j->session->kv.n_tokens, middle) <= r->flops)
            least = middle;
        else
            most = middle - 1;
    }
    return least;
}

// Puts tokens of a job into a pass; of a sparse prefill a whole segment. Returns their number; 0: the job failed.
static int add_part(sl_scheduler *s, sl_job *j, sl_prefill_part *part, room *r) {
    sl_error why;
    int rc = set_prefill(s, j, &why), at = j->session->kv.n_tokens, m = sl_session_next_pass(j->session, n_left(j));
    if (!j->segment) m = n_within(j, m, r);
    if (!rc && !make_free(s, n_lacking(j->session, at + m))) { // admission counted it
        sl_fail(&why, SL_ERR_MEMORY, "no free page of the KV cache for a prefill");
        refuse_job(j, &why);
        return 0;
    }
    if (!rc)
        rc = sl_kv_reserve(&s->engine->device.pool, &j->session->kv, at + m, &why); // so that two jobs do not count one page
    if (rc) {
        fail_job(j, &why);
        return 0;
    }
    *part = (sl_prefill_part){j->session, j->ids + at, m};
    r->tokens -= m;
    r->flops -= sl_model_prefill_flops(s->engine->model, at, m);
    return m;
}

// Fills s->batch and parts with the jobs of the next pass, as far as there is room. Returns their number.
static int gather_pass(sl_scheduler *s, sl_prefill_part *parts, room *r) {
    int n = 0;
    sl_job *j;
    while (r->tokens > 0 && r->flops > r->least && n < s->engine->n_sequences && !s->lost.code && (j = next_prefill(s, n))) {
        s->n_turns++;
        if (!n_left(j)) { // all came from the prefix cache
            end_prefill(j);
            if (j->state != SL_JOB_ENDED) changed(j);
            continue;
        }
        if (!add_part(s, j, &parts[n], r)) continue;
        j->in_pass = 1;
        s->batch[n++] = j;
        if (!can_join(j) || !sl_prefill_joins(s->engine)) break;
    }
    for (int i = 0; i < n; i++) s->batch[i]->in_pass = 0;
    s->n_passes += n > 0;
    return s->lost.code ? 0 : n;
}

// Runs a pass. After a pass of several jobs failed, each goes on alone: only the cause fails.
static void run_pass(sl_scheduler *s, const sl_prefill_part *parts, int n) {
    sl_error why;
    double start = sl_now_ms();
    int is_done = n > 1 && !sl_prefill_together(parts, n, &why), n_tokens = 0;
    double ms = sl_now_ms() - start;
    if (n > 1 && !is_done && sl_scheduler_lose(s, &why)) return;
    for (int i = 0; i < n; i++) n_tokens += parts[i].n;
    for (int i = 0; i < n; i++) {
        sl_job *j = s->batch[i];
        start = sl_now_ms();
        int rc = is_done ? 0 : prefill_alone(j, &parts[i], &why);
        double own = is_done ? ms * parts[i].n / n_tokens : sl_now_ms() - start;
        j->times.prefill_ms += own, s->all.prefill_ms += own;
        sl_scheduler_note(s, j, SL_EVENT_PREFILL, parts[i].ids, parts[i].n);
        if (rc) fail_job(j, &why);
        if (s->lost.code) return;
        if (rc) continue;
        s->all.prompt_tokens += (uint64_t)parts[i].n;
        give_prefix(j);
        if (!n_left(j)) end_prefill(j);
        if (j->state != SL_JOB_ENDED) changed(j);
    }
}

// Runs passes with the work of step_tokens tokens together; one pass if no job decodes.
static void prefill(sl_scheduler *s) {
    int chunk = s->engine->prefill_chunk, step_tokens = s->options.step_tokens ? s->options.step_tokens : chunk;
    int decodes = n_in(s, SL_JOB_DECODES) + n_in(s, SL_JOB_FEEDS) > 0, n;
    double flops = sl_model_prefill_flops(s->engine->model, 0, step_tokens);
    room r = {.flops = decodes ? flops : INFINITY, .least = decodes ? flops / 64 : 0};
    sl_prefill_part parts[s->engine->n_sequences];
    do {
        r.tokens = chunk;
        n = gather_pass(s, parts, &r);
        run_pass(s, parts, n);
    } while (n && decodes && !s->lost.code);
}

// ---- decode steps ----

// 1: the job's next row has a page, or gets one. A job that outgrew what admission counted must leave the others theirs.
static int has_room(sl_job *j) {
    const sl_kv_seq *kv = &j->session->kv;
    int n = n_lacking(j->session, kv->n_tokens + 1);
    if (n == 0 || kv->n_tokens >= j->scheduler->engine->n_ctx) return 1;
    while (kv->n_pages >= j->n_due && n_available(j->scheduler) <= 0)
        if (!free_sessions(j->scheduler, j)) return 0;
    return make_free(j->scheduler, n);
}

// Fills s->batch with the jobs of a state that have room. Pages are taken at once, so that two jobs do not count the same one.
static int gather(sl_scheduler *s, sl_job_state state) {
    int n = 0;
    for (int i = s->n_jobs - 1; i >= 0 && !s->lost.code; i--) { // a job may end
        sl_job *j = s->jobs[i];
        sl_error why;
        if (j->state != state || j->is_cancelled || !has_room(j)) continue;
        int n_tokens = j->session->kv.n_tokens + 1, n_ctx = s->engine->n_ctx;
        if (n_tokens <= n_ctx && sl_kv_reserve(&s->engine->device.pool, &j->session->kv, n_tokens, &why))
            fail_job(j, &why);
        else
            s->batch[n++] = j;
    }
    for (int i = 0; i < n / 2; i++) { // in the order of their arrival
        sl_job *j = s->batch[i];
        s->batch[i] = s->batch[n - 1 - i], s->batch[n - 1 - i] = j;
    }
    return s->lost.code ? 0 : n;
}

// Decode steps append the tokens of prompts after n_prefill. After a batch failed, no job has changed, and each goes on alone:
// only the cause fails. The same holds in decode.
static void feed(sl_scheduler *s) {
    int n = gather(s, SL_JOB_FEEDS);
    int32_t ids[n + 1];
    sl_error why;
    for (int i = 0; i < n; i++)
        s->sessions[i] = s->batch[i]->session, ids[i] = s->batch[i]->ids[s->batch[i]->session->kv.n_tokens];
    double start = sl_now_ms();
    int failed = n ? sl_decode(s->sessions, n, ids, &why) : 0;
    double ms = n ? sl_now_ms() - start : 0;
    s->all.feed_ms += ms;
    if (failed && sl_scheduler_lose(s, &why)) return;
    for (int i = 0; i < n; i++) {
        sl_job *j = s->batch[i];
        j->times.feed_ms += ms;
        int rc = failed ? sl_decode(&s->sessions[i], 1, &ids[i], &why) : 0;
        sl_scheduler_note(s, j, SL_EVENT_FEED, &ids[i], 1);
        s->all.prompt_tokens += !rc;
        if (!rc && j->session->kv.n_tokens == j->n && !(rc = sl_stream_begin(j->stream, j->at_start, &why)))
            j->state = SL_JOB_DECODES;
        if (rc)
            fail_job(j, &why);
        else
            changed(j);
        if (s->lost.code) return;
    }
}

static int n_sampled(const sl_job *j) {
    int n;
    sl_stream_ids(j->stream, &n);
    return n;
}

// n_before: tokens that were sampled before the step.
static void end_step(sl_job *j, int n_before) {
    double now = sl_now_ms();
    if (!j->times.first) j->times.first = now;
    j->times.last = now;
    int n;
    const int32_t *ids = sl_stream_ids(j->stream, &n);
    j->scheduler->all.generated_tokens += (uint64_t)(n - n_before);
    sl_scheduler_note(j->scheduler, j, SL_EVENT_DECODE, ids + n_before, n - n_before);
    if (sl_stream_is_running(j->stream))
        changed(j);
    else if (sl_stream_result(j->stream).stop == SL_STOP_ERROR)
        fail_job(j, sl_stream_error(j->stream));
    else
        end_job(j);
}

static void decode(sl_scheduler *s) {
    int n = gather(s, SL_JOB_DECODES);
    sl_error of_batch, of_job;
    if (n == 0) return;
    int n_before[n];
    for (int i = 0; i < n; i++) s->streams[i] = s->batch[i]->stream, n_before[i] = n_sampled(s->batch[i]);
    double start = sl_now_ms();
    int failed = sl_streams_step(s->streams, n, &of_batch);
    double ms = sl_now_ms() - start;
    s->all.n_steps++;
    s->all.decode_ms += ms;
    if (failed && sl_scheduler_lose(s, &of_batch)) return;
    for (int i = 0; i < n; i++) {
        sl_job *j = s->batch[i];
        j->times.decode_ms += ms;
        int is_alone = failed && sl_stream_is_running(j->stream); // else memory was missing after the step
        if (!failed || (is_alone && !sl_streams_step(&j->stream, 1, &of_job))) continue;
        fail_job(j, is_alone ? &of_job : &of_batch);
        if (s->lost.code) return;
        s->batch[i] = NULL;
    }
    for (int i = 0; i < n; i++) // before the first call of on_change, which may read the work of other jobs
        if (s->batch[i] && s->batch[i]->wants_work) sl_job_sum_work(s->batch[i]);
    for (int i = 0; i < n && !s->lost.code; i++)
        if (s->batch[i]) end_step(s->batch[i], n_before[i]);
}

// Every job waits for a page, and no job can give one back: the one that was admitted last has outgrown the cache.
static void refuse_last(sl_scheduler *s) {
    sl_job *last = NULL;
    for (int i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->state != SL_JOB_WAITS && (!last || s->jobs[i]->turn > last->turn)) last = s->jobs[i];
    sl_error why;
    int n_tokens = s->engine->device.pool.n_pages * SL_PAGE;
    if (last)
        sl_fail(&why, SL_ERR_MEMORY,
                "the KV cache is full: %d tokens of all sequences ({kv_tokens}); the answer ended after %d tokens", n_tokens,
                sl_stream_result(last->stream).n_generated);
    else
        sl_fail(&why, SL_ERR_MEMORY, "the KV cache of %d tokens ({kv_tokens}) has no room, although no other job runs",
                n_tokens);
    refuse_job(last ? last : s->jobs[0], &why);
}

int sl_scheduler_step(sl_scheduler *s) {
    double start = sl_now_ms();
    for (int i = s->n_jobs - 1; i >= 0; i--)
        if (s->jobs[i]->is_cancelled) end_job(s->jobs[i]);
    uint64_t before = s->all.n_steps + s->n_turns + s->all.prompt_tokens + s->all.n_ended;
    admit(s);
    if (!s->lost.code) prefill(s);
    if (!s->lost.code) feed(s);
    if (!s->lost.code) decode(s);
    int is_idle = before == s->all.n_steps + s->n_turns + s->all.prompt_tokens + s->all.n_ended;
    if (!s->lost.code && s->n_jobs && is_idle) refuse_last(s);
    s->all.step_ms += sl_now_ms() - start;
    return s->n_jobs > 0;
}

// ---- what a job has made ----

sl_job_state sl_job_state_of(const sl_job *j) {
    return j->state;
}
const sl_error *sl_job_error(const sl_job *j) {
    return &j->error;
}
const sl_stream *sl_job_stream(const sl_job *j) {
    return j->stream;
}
const sl_session *sl_job_session(const sl_job *j) {
    return j->session;
}
int sl_job_n_prompt(const sl_job *j) {
    return j->n;
}
int sl_job_n_done(const sl_job *j) {
    int n = j->session->kv.n_tokens;
    return j->state == SL_JOB_ENDED || n > j->n ? j->n : n;
}
int sl_job_n_cached(const sl_job *j) {
    return j->n_cached;
}
uint64_t sl_job_logits_hash(const sl_job *j) {
    return j->logits_hash;
}
const sl_token_logprobs *sl_job_prompt_logprobs(const sl_job *j, int *n) {
    *n = j->prompt_logprobs.n;
    return j->prompt_logprobs.tokens;
}
sl_job_times sl_job_times_of(const sl_job *j) {
    return j->times;
}

sl_scheduler_stats sl_scheduler_stats_of(const sl_scheduler *s) {
    sl_scheduler_stats all = s->all;
    all.n_waiting = n_in(s, SL_JOB_WAITS);
    all.n_prefilling = n_in(s, SL_JOB_PREFILLS);
    all.n_decoding = n_in(s, SL_JOB_DECODES) + n_in(s, SL_JOB_FEEDS);
    all.n_pages = s->engine->device.pool.n_pages;
    all.n_free = s->engine->device.pool.n_free;
    all.n_cached = s->tree ? sl_prefix_n_evictable(s->tree) : 0;
    return all;
}
