// tests/engine/test_scheduler.c - the scheduler and its prefix cache: random jobs with several methods, prefills, grammars,
// lengths and priorities, cancelled at random, in a KV cache that is too small for all, each against its prompt alone in an
// engine of its own. Then the rules of admission, order and memory, and the prefix tree against a list.
#include "engine/engine_internal.h"
#include "engine/logprobs.h"
#include "engine/schedule/prefix_tree.h"
#include "engine/schedule/scheduler.h"
#include "engine/stream.h"
#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_backend.h"
#endif
#include "tests/support/gpu.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { N_CTX = 1024, N_VOCAB_LESS = 16, BASES = 2, BASE = 540, JOBS = 8, SEGMENT = 256 };

static const char *const drafts[] = {"ngram:min=2:most=6", "self:least=2:most=3:attn=topk:k=64",
                                     "ngram:min=1+self:least=1:attn=santa-is:S=256", "auto"};
static const char *const methods[] = {NULL, "santa:S=24", "topk:k=8", "santa-prop:S=32", "quest:tokens=32"};

typedef struct spec { // describes a job
    int32_t *ids;
    int n, n_prefill, priority, n_prompt_logprobs, cancel_at; // cancel_at: tokens after which the job is cancelled; -1: never
    const char *attn, *salt;
    int is_sparse;
    sl_generation generation;
} spec;

typedef struct answer {
    int32_t ids[64];
    int n, n_prompt_logprobs;
    sl_stop stop;
    char text[1024];
    size_t n_text;
    uint64_t hash;
    double prompt_logprob; // sum over the prompt's tokens
} answer;

static sl_model *model;
static sl_grammar *grammars[2];
static const char sparse_on_cpu[] = "vertical-slash:columns=20:slashes=40";
static const char *device = "cpu", *sparse = sparse_on_cpu; // sparse: the methods of sparse prefills

static sl_engine *open_engine(sl_engine_options o) {
    sl_engine *e;
    if (!o.n_ctx) o.n_ctx = N_CTX;
    o.device = device, o.n_threads = 1, o.seed = 3;
    if (!o.prefill_chunk) o.prefill_chunk = 128;
    CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
    return e;
}

static sl_attn_plan plan_of(const sl_engine *e, const char *attn) {
    sl_attn_plan plan;
    CHECK_OK(sl_plan_methods_of(e, attn, &plan, &err), err);
    return plan;
}

// ---- random jobs ----

// The first two have a base in common, so the second one finds pages of the other.
static spec random_spec(int32_t *const *bases, int i) {
    int n_vocab = sl_model_n_vocab(model) - N_VOCAB_LESS, is_plain = i < 2;
    spec s = {.n_prompt_logprobs = is_plain || test_below(6) ? -1 : test_below(3),
              .priority = test_below(3) - 1,
              .cancel_at = test_below(5) ? -1 : test_below(4),
              .attn = methods[test_below(5)],
              .salt = is_plain || test_below(4) ? NULL : "tenant",
              .is_sparse = !is_plain && test_below(4) == 0,
              .generation = sl_generation_default()};
    int n_common = !is_plain && test_below(5) ? 64 * test_below(BASE / 64) : BASE, n_own = 1 + test_below(150);
    s.n = n_common + n_own;
    s.ids = test_ids(s.n, n_vocab + N_VOCAB_LESS, test_seed + 1000 + (uint64_t)i);
    memcpy(s.ids, bases[is_plain ? 0 : test_below(BASES)], (size_t)n_common * sizeof *s.ids);
    s.n_prefill = test_below(4) ? s.n : s.n - test_below(n_own);
    s.generation.max_tokens = 1 + test_below(12), s.generation.sequence = (uint32_t)(test_below(3) ? 40 + i : 40);
    s.generation.sampling.seed = (uint32_t)test_below(4), s.generation.attn = s.attn;
    s.generation.n_logprobs = test_below(4) ? -1 : 2;
    if (test_below(3) == 0) s.generation.sampling.repeat_penalty = 1.3f;
    if (test_below(3) == 0) s.generation.grammar = grammars[test_below(2)];
    if (test_below(2)) { // a step with drafts can make several tokens
        s.generation.draft = drafts[test_below(4)], s.cancel_at = -1, s.generation.max_tokens += 30;
        if (test_below(2)) s.generation.sampling.temp = 0;
    }
    return s;
}

static void add_text(answer *a, const sl_stream *stream) {
    size_t n;
    const char *text = sl_stream_text(stream, &n);
    CHECK(a->n_text + n <= sizeof a->text);
    memcpy(a->text + a->n_text, text, n);
    a->n_text += n;
}

static void take_results(answer *a, const sl_stream *stream) {
    int n;
    const int32_t *ids = sl_stream_ids(stream, &n);
    CHECK(n <= 64);
    if (n) memcpy(a->ids, ids, (size_t)n * sizeof *ids);
    a->n = n, a->stop = sl_stream_result(stream).stop;
}

static void add_logprobs(answer *a, const sl_token_logprobs *l, int n) {
    for (int i = 0; i < n; i++) a->prompt_logprob += l[i].sampled.at;
    a->n_prompt_logprobs = n;
}

static int sum_logprobs(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    const spec *s = ((const void **)ctx)[0];
    answer *a = (answer *)((const void **)ctx)[1];
    int n_vocab = sl_model_n_vocab(model);
    (void)e;
    for (int i = 0; i < n_rows && first + i + 1 < s->n; i++, a->n_prompt_logprobs++)
        a->prompt_logprob +=
            logits[(size_t)i * n_vocab + s->ids[first + i + 1]] - sl_log_sum(logits + (size_t)i * n_vocab, n_vocab);
    return 0;
}

// The job's prompt alone: one prefill, decode steps of the other prompt tokens, and the generation.
static answer alone(const spec *s) {
    sl_engine *e = open_engine((sl_engine_options){.attn = s->attn});
    answer a = {0};
    sl_session *session;
    sl_stream *stream;
    sl_generation o = s->generation;
    o.attn = NULL, o.draft = NULL;
    if (s->is_sparse) {
        sl_attn_plan plan = plan_of(e, sparse);
        CHECK_OK(sl_engine_set_prefill(e, &plan, SEGMENT, &err), err);
        sl_attn_plan_free(&plan);
    }
    CHECK_OK(sl_session_new(e, o.sequence, &session, &err), err);
    const void *ctx[] = {s, &a};
    if (s->n_prompt_logprobs >= 0)
        CHECK_OK(sl_prefill_logits(session, s->ids, s->n_prefill, sum_logprobs, ctx, NULL, &err), err);
    else
        CHECK_OK(sl_prefill(session, s->ids, s->n_prefill, NULL, &err), err);
    for (int i = s->n_prefill; i < s->n; i++) CHECK_OK(sl_decode(&session, 1, s->ids + i, &err), err);
    CHECK_OK(sl_stream_new(session, &o, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    while (sl_stream_is_running(stream)) {
        if (sl_stream_result(stream).n_generated == s->cancel_at) CHECK_OK(sl_stream_end(stream, &err), err);
        if (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        add_text(&a, stream);
    }
    take_results(&a, stream);
    a.hash = sl_logits_hash(sl_session_last_logits(session), sl_model_n_vocab(model));
    sl_stream_free(stream), sl_session_free(session), sl_engine_free(e);
    return a;
}

typedef struct running {
    const spec *of;
    sl_job *job;
    answer got;
} running;

static void on_change(void *ctx, sl_job *job) {
    running *r = ctx;
    if (sl_job_times_of(job).first > 0) add_text(&r->got, sl_job_stream(job));
    const sl_generated so_far = sl_stream_result(sl_job_stream(job));
    if (sl_job_state_of(job) == SL_JOB_DECODES && so_far.n_generated == r->of->cancel_at) sl_job_cancel(job);
}

static sl_job *add(sl_scheduler *s, const spec *of, running *r) {
    sl_job_options o = sl_job_options_default();
    sl_attn_plan plan = {0};
    o.ids = of->ids, o.n = of->n, o.n_prefill = of->n_prefill, o.generation = &of->generation, o.priority = of->priority;
    o.salt = of->salt, o.n_prompt_logprobs = of->n_prompt_logprobs, o.on_change = r ? on_change : NULL, o.ctx = r;
    if (of->is_sparse) {
        plan = plan_of(*(sl_engine **)s, sparse); // the engine is its first member
        o.prefill = &plan, o.segment = SEGMENT;
    }
    sl_job *job;
    CHECK_OK(sl_scheduler_add(s, &o, &job, &err), err);
    sl_attn_plan_free(&plan);
    return job;
}

static void check_answer(const running *r) {
    answer want = alone(r->of), got = r->got;
    const sl_stream *stream = sl_job_stream(r->job);
    CHECK_INT(sl_job_error(r->job)->code, SL_OK);
    take_results(&got, stream);
    int n;
    const sl_token_logprobs *logprobs = sl_job_prompt_logprobs(r->job, &n);
    add_logprobs(&got, logprobs, n);
    CHECK_INT(got.n, want.n);
    CHECK(!memcmp(got.ids, want.ids, (size_t)want.n * sizeof *want.ids));
    CHECK(got.n_text == want.n_text && !memcmp(got.text, want.text, want.n_text));
    CHECK_INT(got.stop, want.stop);
    if (want.n) CHECK(sl_job_logits_hash(r->job) == want.hash);
    if (r->of->n_prompt_logprobs >= 0) {
        CHECK_INT(n, r->of->n_prefill - (r->of->n_prefill == r->of->n));
        CHECK_NEAR(got.prompt_logprob, want.prompt_logprob, 1e-6 * n);
    }
}

// Every page is free again, and the engine has only its own plan.
static void close_all(sl_scheduler *s, sl_engine *e) {
    sl_scheduler_free(s);
    CHECK_INT(e->device.pool.n_free, e->device.pool.n_pages);
    CHECK(e->plans.first == e->plans.of_engine && !e->plans.first->next);
    sl_engine_free(e);
}

// prefill_chunk 400: on a GPU, passes have tokens of several jobs.
static void random_jobs(int round) {
    int32_t *bases[BASES];
    spec specs[JOBS];
    running jobs[JOBS] = {0};
    test_draw_from(test_seed + (uint64_t)round);
    for (int i = 0; i < BASES; i++) bases[i] = test_ids(BASE, sl_model_n_vocab(model), test_seed + (uint64_t)i);
    for (int i = 0; i < JOBS; i++) specs[i] = random_spec(bases, i);
    sl_engine *e = open_engine((sl_engine_options){.attn = "dense",
                                                   .n_sequences = 4,
                                                   .n_draft = 8,
                                                   .kv_tokens = round ? 16 * SL_PAGE : 7 * SL_PAGE,
                                                   .prefill_chunk = round == 1 ? 400 : 0});
    sl_scheduler *s;
    CHECK_OK(
        sl_scheduler_new(e, &(sl_scheduler_options){.step_tokens = round ? 200 : 128, .no_prefixes = round == 2}, &s, &err),
        err);
    if (round == 1) CHECK_OK(sl_scheduler_warm_up(s, 1, &err), err);
    for (int i = 0; i < JOBS;) {
        for (int n = test_below(4); n > 0 && i < JOBS; n--, i++) {
            jobs[i].of = &specs[i];
            jobs[i].job = add(s, &specs[i], &jobs[i]);
        }
        sl_scheduler_step(s);
        CHECK(sl_scheduler_stats_of(s).n_free >= 0);
    }
    for (int n = 0; sl_scheduler_step(s); n++) CHECK(n < 5000);
    const sl_scheduler_stats stats = sl_scheduler_stats_of(s);
    CHECK(round == 2 ? stats.hit_tokens == 0 && stats.n_cached == 0
                     : stats.hit_tokens >= SL_PAGE && stats.hit_tokens < stats.query_tokens);
    CHECK(stats.n_ended == JOBS && stats.n_failed == 0 && stats.n_free + stats.n_cached == stats.n_pages);
    for (int i = 0; i < JOBS; i++) check_answer(&jobs[i]), sl_job_free(jobs[i].job), free(specs[i].ids);
    for (int i = 0; i < BASES; i++) free(bases[i]);
    close_all(s, e);
}

static void load(void) {
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
}

static void random_rounds(int n) {
    static const char schema[] = "{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}";
    load();
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_JSON_SCHEMA, schema, sizeof schema - 1, &grammars[0], &err), err);
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_REGEX, "[a-z]{2} [^x]*", 14, &grammars[1], &err), err);
    for (int i = 0; i < n; i++) random_jobs(i);
    sl_grammar_free(grammars[0]), sl_grammar_free(grammars[1]);
    sl_model_free(model);
}

static void alone_or_not(void) {
    random_rounds(3);
}

// ---- rules ----

static spec plain_spec(int n, int max_tokens) {
    spec s = {.n = n, .n_prefill = n, .n_prompt_logprobs = -1, .cancel_at = -1, .generation = sl_generation_default()};
    s.ids = test_ids(n, sl_model_n_vocab(model), test_seed + 5);
    s.generation.max_tokens = max_tokens, s.generation.sampling = sl_sampling_default();
    return s;
}

#ifdef SLEIGH_CUDA
// After the warm-up the steps of 1 to 5 jobs are recorded, and no page is taken.
static void warm_up_on_gpu(void) {
    device = "cuda";
    load();
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 5});
    sl_scheduler *s;
    CHECK_OK(sl_scheduler_new(e, NULL, &s, &err), err);
    CHECK_OK(sl_scheduler_warm_up(s, 1, &err), err);
    CHECK_INT(sl_cuda_of(e->device.backend)->n_graphs, 5);
    spec of = plain_spec(100, 4);
    sl_job *job = add(s, &of, NULL);
    while (sl_scheduler_step(s)) continue;
    CHECK_INT(sl_job_error(job)->code, SL_OK);
    CHECK_INT(sl_cuda_of(e->device.backend)->n_graphs, 5);
    sl_job_free(job), free(of.ids);
    close_all(s, e);
    sl_model_free(model);
    device = "cpu";
}

static void alone_or_not_on_gpu(void) {
    device = "cuda", sparse = "sample";
    random_rounds(2);
    device = "cpu", sparse = sparse_on_cpu;
}

// One pass with the tokens of three sessions, after rows or without: the logits of a prefill of each alone. A part that does
// not fit changes no session.
static void together_on_gpu(void) {
    enum { N = 3 };
    static const int before[N] = {0, 300, 17}, n[N] = {200, 3, 130};
    device = "cuda";
    load();
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = N + 1, .prefill_chunk = 512});
    sl_session *alone, *sessions[N];
    sl_prefill_part parts[N];
    int32_t *ids[N];
    uint64_t want[N];
    for (int i = 0; i < N; i++) {
        ids[i] = test_ids(N_CTX + 1, sl_model_n_vocab(model), test_seed + (uint64_t)i);
        CHECK_OK(sl_session_new(e, 0, &alone, &err), err);
        CHECK_OK(sl_prefill(alone, ids[i], before[i] + n[i], NULL, &err), err);
        want[i] = sl_logits_hash(sl_session_last_logits(alone), sl_model_n_vocab(model));
        sl_session_free(alone);
        CHECK_OK(sl_session_new(e, 0, &sessions[i], &err), err);
        if (before[i]) CHECK_OK(sl_prefill(sessions[i], ids[i], before[i], NULL, &err), err);
        parts[i] = (sl_prefill_part){sessions[i], ids[i] + before[i], n[i]};
    }
    int32_t bad = -1;
    sl_prefill_part last = parts[N - 1];
    parts[N - 1].ids = &bad, parts[N - 1].n = 1;
    CHECK_ERR(sl_prefill_together(parts, N, &err), err, SL_ERR_ARG, "id -1");
    for (int i = 0; i < N; i++)
        CHECK(sessions[i]->kv.n_tokens == before[i] && sessions[i]->kv.n_pages == sl_kv_pages_of(before[i]));
    parts[N - 1] = last;
    CHECK_OK(sl_prefill_together(parts, N, &err), err);
    for (int i = 0; i < N; i++) {
        CHECK(sl_logits_hash(sl_session_last_logits(sessions[i]), sl_model_n_vocab(model)) == want[i]);
        CHECK_INT(sessions[i]->n_prefilled, before[i] + n[i]);
        sl_session_free(sessions[i]), free(ids[i]);
    }
    sl_engine_free(e), sl_model_free(model);
    device = "cpu";
}
#endif

// A job whose grammar cannot go on ends alone, with its error; so does one whose grammar no token can begin.
static void grammar_errors(void) {
    load();
    spec of = plain_spec(100, 8), dead = of, never = of;
    const sl_logit_bias no_x = {'x', -INFINITY}, none = {'z', -INFINITY};
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_REGEX, "abxy", 4, &grammars[0], &err), err);
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_REGEX, "zz", 2, &grammars[1], &err), err);
    dead.generation.grammar = grammars[0], dead.generation.sampling.bias = &no_x, dead.generation.sampling.n_bias = 1;
    never.generation.grammar = grammars[1], never.generation.sampling.bias = &none, never.generation.sampling.n_bias = 1;
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 3});
    sl_scheduler *s;
    running jobs[3] = {{.of = &dead}, {.of = &of}, {.of = &never}};
    CHECK_OK(sl_scheduler_new(e, NULL, &s, &err), err);
    for (int i = 0; i < 3; i++) jobs[i].job = add(s, jobs[i].of, &jobs[i]);
    while (sl_scheduler_step(s)) continue;
    check_answer(&jobs[1]);
    for (int i = 0; i < 3; i += 2) {
        const sl_error *why = sl_job_error(jobs[i].job);
        CHECK(why->code == SL_ERR_ARG && strstr(why->message, "the logit biases leave no token"));
        CHECK(sl_stream_result(sl_job_stream(jobs[i].job)).stop == SL_STOP_ERROR);
    }
    CHECK(jobs[0].got.n_text == 2 && !memcmp(jobs[0].got.text, "ab", 2) && jobs[2].got.n_text == 0);
    CHECK_INT(sl_scheduler_stats_of(s).n_failed, 2);
    for (int i = 0; i < 3; i++) sl_job_free(jobs[i].job);
    sl_grammar_free(grammars[0]), sl_grammar_free(grammars[1]);
    close_all(s, e);
    free(of.ids), sl_model_free(model);
}

// Jobs with one prompt that arrive together: one prefills, the others take its pages.
static void one_prefill_for_all(void) {
    load();
    spec of = plain_spec(900, 3);
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 5});
    sl_scheduler *s;
    sl_job *jobs[5];
    CHECK_OK(sl_scheduler_new(e, NULL, &s, &err), err);
    for (int i = 0; i < 5; i++) jobs[i] = add(s, &of, NULL);
    while (sl_scheduler_step(s)) continue;
    CHECK_INT(sl_job_n_cached(jobs[0]), 0);
    for (int i = 1; i < 5; i++) CHECK_INT(sl_job_n_cached(jobs[i]), 768);
    for (int i = 1; i < 5; i++) CHECK(sl_job_logits_hash(jobs[i]) == sl_job_logits_hash(jobs[0]));
    CHECK_INT(sl_scheduler_stats_of(s).prompt_tokens, 900 + 4 * 132);
    for (int i = 0; i < 5; i++) sl_job_free(jobs[i]);
    close_all(s, e);
    free(of.ids), sl_model_free(model);
}

// A short prompt passes a long one, which still goes on; a lower number of priority comes first; the queue has a bound.
static void order(void) {
    load();
    spec long_one = plain_spec(1000, 2), short_one = plain_spec(100, 2), first = plain_spec(100, 2);
    short_one.ids[0]++, first.ids[0] += 2, first.priority = -1;
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 2});
    sl_scheduler *s;
    sl_job *jobs[4], *none;
    CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.max_waiting = 4}, &s, &err), err);
    jobs[0] = add(s, &long_one, NULL), jobs[1] = add(s, &short_one, NULL), jobs[2] = add(s, &short_one, NULL),
    jobs[3] = add(s, &first, NULL);
    sl_job_options o = sl_job_options_default();
    o.ids = short_one.ids, o.n = 100, o.generation = &short_one.generation;
    CHECK_ERR(sl_scheduler_add(s, &o, &none, &err), err, SL_ERR_BUSY, "max_waiting 4");
    o.n = 0;
    CHECK_ERR(sl_scheduler_add(s, &o, &none, &err), err, SL_ERR_ARG, "a prompt of 0 tokens");
    o.n = N_CTX + 1;
    CHECK_ERR(sl_scheduler_add(s, &o, &none, &err), err, SL_ERR_CONTEXT, "1025 tokens: more than n_ctx 1024");
    int ended[4] = {0};
    for (int n = 1, is_more = 1; is_more; n++) {
        is_more = sl_scheduler_step(s);
        for (int i = 0; i < 4; i++)
            if (!ended[i] && sl_job_state_of(jobs[i]) == SL_JOB_ENDED) ended[i] = n;
    }
    if (!(ended[3] < ended[1] && ended[1] < ended[2] && ended[2] < ended[0]))
        FAIL("ended in steps %d %d %d %d", ended[0], ended[1], ended[2], ended[3]);
    CHECK(sl_scheduler_stats_of(s).n_refused == 1);
    for (int i = 0; i < 4; i++) sl_job_free(jobs[i]);
    close_all(s, e);
    free(long_one.ids), free(short_one.ids), free(first.ids), sl_model_free(model);
}

// Answers without a limit outgrow the cache: the others go on with their bits, and the one that was admitted last says
// why it ends.
static void outgrows(void) {
    load();
    spec specs[2] = {plain_spec(200, 0), plain_spec(300, 0)};
    for (int i = 0; i < 2; i++) specs[i].generation.sequence = (uint32_t)i, specs[i].generation.sampling.temp = 5;
    sl_engine *e = open_engine((sl_engine_options){.n_ctx = 600, .n_sequences = 2, .kv_tokens = 4 * SL_PAGE});
    sl_scheduler *s;
    sl_job *jobs[2];
    CHECK_OK(sl_scheduler_new(e, NULL, &s, &err), err);
    for (int i = 0; i < 2; i++) jobs[i] = add(s, &specs[i], NULL);
    while (sl_scheduler_step(s)) continue;
    const sl_error *last = sl_job_error(jobs[1]);
    sl_generated first = sl_stream_result(sl_job_stream(jobs[0])), second = sl_stream_result(sl_job_stream(jobs[1]));
    if (first.stop == SL_STOP_CONTEXT && second.stop == SL_STOP_CALLER) {
        CHECK_INT(last->code, SL_ERR_MEMORY);
        CHECK(strstr(last->message, "1024 tokens of all sequences (kv_tokens)"));
    }
    CHECK_INT(sl_job_error(jobs[0])->code, SL_OK);
    CHECK(first.n_prompt + first.n_generated == 600 + 1 || first.stop == SL_STOP_END);
    for (int i = 0; i < 2; i++) sl_job_free(jobs[i]), free(specs[i].ids);
    close_all(s, e);
    sl_model_free(model);
}

// Cancelled in every state, and freed without a cancel: the pages come back within one step.
static void cancels(void) {
    load();
    spec of = plain_spec(300, 8), other = plain_spec(300, 8);
    of.n_prefill = 295, other.ids[0]++;
    for (int at = 0; at < 13; at++) {
        sl_engine *e = open_engine((sl_engine_options){.n_sequences = 1});
        sl_scheduler *s;
        CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.no_prefixes = 1}, &s, &err), err);
        sl_job *job = add(s, &of, NULL), *behind = add(s, &other, NULL);
        for (int i = 0; i < at; i++) sl_scheduler_step(s);
        CHECK(sl_job_state_of(job) != SL_JOB_ENDED && sl_job_state_of(behind) == SL_JOB_WAITS);
        if (at % 2) sl_job_cancel(behind);
        sl_job_cancel(job);
        CHECK_INT(sl_scheduler_step(s), at % 2 == 0);
        CHECK(sl_job_state_of(job) == SL_JOB_ENDED && sl_job_state_of(behind) == (at % 2 ? SL_JOB_ENDED : SL_JOB_PREFILLS));
        CHECK_INT(sl_job_session(job)->kv.n_pages, 0);
        sl_job_free(job), sl_job_free(behind);
        close_all(s, e);
    }
    free(of.ids), free(other.ids), sl_model_free(model);
}

static int n_passes; // of failing_finish

static int failing_finish(const sl_backend *be, sl_error *e) {
    (void)be;
    n_passes++;
    return sl_fail(e, SL_ERR_DEVICE, "broken");
}

static void twice(sl_comm *c, const float *part, size_t n_floats, float *all) { // both ranks have the same
    for (int i = 0; i < c->n; i++) memcpy(all + (size_t)i * n_floats, part, n_floats * sizeof *part);
}

// An error of the device in a prefill, a fed token and a decode step. It ends its job in one process. Of a rank, it stops the
// scheduler: the other ranks may not have the error, and another pass would not be the pass that they run.
static void lost_rank(void) {
    load();
    sl_comm comm = {.n = 2, .all_gather = twice};
    spec of = plain_spec(300, 8);
    of.n_prefill = 298;
    for (int i = 0; i < 12; i++) {
        int at = i / 2, is_rank = i % 2;
        sl_engine *e = open_engine((sl_engine_options){.n_sequences = 2});
        sl_backend *be = (sl_backend *)e->device.backend; // in the memory of the engine
        sl_scheduler *s;
        CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.no_prefixes = 1}, &s, &err), err);
        sl_job *job = add(s, &of, NULL);
        for (int k = 0; k < at; k++) sl_scheduler_step(s);
        sl_job_state before = sl_job_state_of(job);
        CHECK_INT(before, at < 1 ? SL_JOB_WAITS : at < 3 ? SL_JOB_PREFILLS : at < 4 ? SL_JOB_FEEDS : SL_JOB_DECODES);
        CHECK_INT(sl_scheduler_error(s)->code, SL_OK);
        be->finish = failing_finish, n_passes = 0;
        if (is_rank) e->comm = &comm;
        sl_scheduler_step(s);
        CHECK_INT(sl_scheduler_error(s)->code, is_rank ? SL_ERR_DEVICE : SL_OK);
        CHECK_INT(sl_job_error(job)->code, is_rank ? SL_OK : SL_ERR_DEVICE);
        CHECK_INT(sl_job_state_of(job) == SL_JOB_ENDED, !is_rank);
        if (is_rank) CHECK_INT(n_passes, 1);
        sl_job_free(job);
        e->comm = NULL;
        close_all(s, e);
    }
    free(of.ids), sl_model_free(model);
}

typedef struct losing {
    sl_engine *e;
    const sl_job *failed;
} losing;

// The error of the failed job becomes one that this rank alone has.
static void lose_memory(void *ctx, sl_job *job) {
    static sl_comm comm = {.n = 2, .all_gather = twice};
    const losing *l = ctx;
    const sl_stream *stream = sl_job_stream(l->failed);
    (void)job;
    if (sl_stream_result(stream).stop != SL_STOP_ERROR) return;
    sl_fail((sl_error *)sl_stream_error(stream), SL_ERR_MEMORY, "no memory");
    l->e->comm = &comm;
}

// An error of a rank after a decode step of three jobs, of which the last one ends in this step. The end of a job is an
// exchange between the ranks, and no exchange may follow the error.
static void lost_after_step(void) {
    load();
    spec of = plain_spec(20, 8), dead = of, last = of;
    const sl_logit_bias none = {'z', -INFINITY};
    CHECK_OK(sl_grammar_new(SL_GRAMMAR_REGEX, "zz", 2, &grammars[0], &err), err);
    dead.generation.grammar = grammars[0], dead.generation.sampling.bias = &none, dead.generation.sampling.n_bias = 1;
    last.generation.max_tokens = 1;
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 3});
    losing l = {.e = e};
    sl_scheduler *s;
    CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.no_prefixes = 1}, &s, &err), err);
    sl_job_options o = sl_job_options_default();
    o.ids = of.ids, o.n = of.n, o.generation = &of.generation, o.on_change = lose_memory, o.ctx = &l;
    sl_job *jobs[3];
    CHECK_OK(sl_scheduler_add(s, &o, &jobs[0], &err), err);
    l.failed = jobs[1] = add(s, &dead, NULL), jobs[2] = add(s, &last, NULL);
    while (!sl_scheduler_error(s)->code) CHECK(sl_scheduler_step(s));
    CHECK_INT(sl_scheduler_error(s)->code, SL_ERR_MEMORY);
    CHECK(!sl_stream_is_running(sl_job_stream(jobs[2])));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(sl_job_state_of(jobs[i]), SL_JOB_DECODES);
        sl_job_free(jobs[i]);
    }
    e->comm = NULL;
    close_all(s, e);
    sl_grammar_free(grammars[0]), free(of.ids), sl_model_free(model);
}

// ---- jobs that continue a session ----

// Rows of a prefill and of decode steps.
static sl_session *spoken_session(sl_engine *e, const int32_t *ids, int n, uint32_t sequence) {
    sl_session *made;
    CHECK_OK(sl_session_new(e, sequence, &made, &err), err);
    CHECK_OK(sl_prefill(made, ids, n, NULL, &err), err);
    for (int i = 0; i < 3; i++) CHECK_OK(sl_decode(&made, 1, &ids[i], &err), err);
    return made;
}

// A job that continues a session gives what a prefill and a stream in that session give, and the session keeps all rows. Beside
// it runs a job of the same tokens that takes its rows from the prefix cache.
static void continues(void) {
    load();
    for (int n_more = 0; n_more <= 40; n_more += 40) {
        spec of = plain_spec(600, 7), whole = plain_spec(603 + n_more, 7);
        memcpy(whole.ids, of.ids, 600 * sizeof *of.ids), memcpy(whole.ids + 600, of.ids, 3 * sizeof *of.ids);
        if (n_more) memcpy(whole.ids + 603, of.ids + 100, (size_t)n_more * sizeof *of.ids);
        sl_engine *e = open_engine((sl_engine_options){.n_sequences = 3});
        sl_session *hand = spoken_session(e, of.ids, 600, 4), *lent = spoken_session(e, of.ids, 600, 9);
        sl_stream *stream;
        of.generation.sequence = 4;
        if (n_more) CHECK_OK(sl_prefill(hand, of.ids + 100, n_more, NULL, &err), err);
        CHECK_OK(sl_stream_new(hand, &of.generation, &stream, &err), err);
        CHECK_OK(sl_stream_begin(stream, 0, &err), err);
        while (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        sl_scheduler *s;
        CHECK_OK(sl_scheduler_new(e, NULL, &s, &err), err);
        sl_job_options o = sl_job_options_default();
        sl_job *job, *beside = add(s, &whole, NULL);
        while (sl_scheduler_step(s)) continue;
        o.session = lent, o.ids = of.ids + 100, o.n = n_more, o.generation = &of.generation;
        CHECK_OK(sl_scheduler_add(s, &o, &job, &err), err);
        CHECK_INT(sl_job_n_prompt(job), 603 + n_more);
        if (!n_more) CHECK(sl_scheduler_step(s) && sl_job_state_of(job) == SL_JOB_DECODES); // there is nothing to prefill
        while (sl_scheduler_step(s)) continue;
        int n, n_want;
        const int32_t *ids = sl_stream_ids(sl_job_stream(job), &n), *want = sl_stream_ids(stream, &n_want);
        CHECK(n == n_want && !memcmp(ids, want, (size_t)n * sizeof *ids) && sl_job_n_cached(job) == 603);
        CHECK(sl_job_logits_hash(job) == sl_logits_hash(sl_session_last_logits(hand), sl_model_n_vocab(model)));
        CHECK_INT(sl_session_n_tokens(lent), sl_session_n_tokens(hand));
        CHECK(!memcmp(sl_session_ids(lent), sl_session_ids(hand), (size_t)sl_session_n_tokens(hand) * sizeof *ids));
        CHECK(sl_session_sequence(lent) == 4);
        sl_job_free(job), sl_job_free(beside);
        // what a session cannot continue with
        o.n_prompt_logprobs = 0;
        CHECK_ERR(sl_scheduler_add(s, &o, &job, &err), err, SL_ERR_ARG, "expected no rows before it, found 6");
        o.n_prompt_logprobs = -1, o.n = N_CTX - 600;
        CHECK_ERR(sl_scheduler_add(s, &o, &job, &err), err, SL_ERR_CONTEXT, "more than n_ctx 1024");
        CHECK_OK(sl_session_truncate(lent, 100, &err), err);
        o.n = 0;
        CHECK_ERR(sl_scheduler_add(s, &o, &job, &err), err, SL_ERR_ARG, "a prompt of 0 tokens: expected at least 1");
        sl_stream_free(stream), sl_session_free(hand), sl_session_free(lent);
        close_all(s, e);
        free(of.ids), free(whole.ids);
    }
    sl_model_free(model);
}

static int give_nothing(void *ctx) {
    (void)ctx;
    return 0;
}

// A job that continues the session, with n tokens of ids. Returns the hash of its logits.
static uint64_t continue_session(sl_scheduler *s, sl_session *session, const int32_t *ids, int n, int max_tokens) {
    sl_job_options o = sl_job_options_default();
    sl_generation generation = sl_generation_default();
    sl_job *job;
    generation.max_tokens = max_tokens, generation.sampling = sl_sampling_default();
    o.session = session, o.ids = ids, o.n = n, o.generation = &generation;
    CHECK_OK(sl_scheduler_add(s, &o, &job, &err), err);
    for (int i = 0; sl_scheduler_step(s); i++) CHECK(i < 3000);
    CHECK_OK(sl_job_error(job)->code, *sl_job_error(job));
    uint64_t hash = sl_job_logits_hash(job);
    sl_job_free(job);
    return hash;
}

// A session that was cut within a page of the prefix cache copies this page. The cache gives the page up that the copy needs.
static void copies_a_page(void) {
    load();
    spec of = plain_spec(600, 1), other = plain_spec(600, 1), whole = plain_spec(310, 3);
    other.ids[0]++;
    memcpy(whole.ids, of.ids, 300 * sizeof *of.ids), memcpy(whole.ids + 300, other.ids, 10 * sizeof *of.ids);
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 2, .kv_tokens = 5 * SL_PAGE});
    sl_scheduler *s;
    sl_session *session, *filler;
    CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.give_up = give_nothing}, &s, &err), err);
    CHECK_OK(sl_session_new(e, 0, &session, &err), err);
    CHECK_OK(sl_session_new(e, 0, &filler, &err), err);
    continue_session(s, session, of.ids, 600, 1);
    CHECK_OK(sl_session_truncate(session, 300, &err), err);
    sl_job *job = add(s, &other, NULL);
    while (sl_scheduler_step(s)) continue;
    sl_job_free(job);
    CHECK_OK(sl_prefill(filler, of.ids, 10, NULL, &err), err);
    CHECK(e->device.pool.n_free == 0 && e->device.pool.refs[session->kv.pages[1]] == 2);
    CHECK(continue_session(s, session, other.ids, 10, 3) == alone(&whole).hash);
    sl_session_free(session), sl_session_free(filler);
    close_all(s, e);
    free(of.ids), free(other.ids), free(whole.ids), sl_model_free(model);
}

// The own rows of a session keep a page of the prefix cache that it does not hold. No other job can give pages back: it
// prefills its rows again.
static void keeps_pages_of_others(void) {
    load();
    spec of = plain_spec(600, 1), other = plain_spec(300, 1);
    sl_engine *e = open_engine((sl_engine_options){.n_sequences = 2, .kv_tokens = 4 * SL_PAGE});
    sl_scheduler *s;
    sl_session *session;
    CHECK_OK(sl_scheduler_new(e, &(sl_scheduler_options){.give_up = give_nothing}, &s, &err), err);
    CHECK_OK(sl_session_new(e, 0, &session, &err), err);
    CHECK_OK(sl_prefill(session, of.ids, 300, NULL, &err), err);
    sl_job *job = add(s, &other, NULL); // the first page of the cache is its own
    while (sl_scheduler_step(s)) continue;
    sl_job_free(job);
    continue_session(s, session, of.ids + 300, 220, 1); // the second page of the cache is the session's
    CHECK(e->device.pool.n_free == 0 && sl_scheduler_stats_of(s).n_cached == 0);
    continue_session(s, session, of.ids, 2, 300);
    sl_session_free(session);
    close_all(s, e);
    free(of.ids), free(other.ids), sl_model_free(model);
}

// ---- the prefix tree ----

enum { ENTRIES = 40, DEPTH = 5, POOL = 64 };

// Random prompts over few pages of tokens, against a list of all prompts: the longest common prefix of pages is found, and
// eviction frees the page that was used longest ago and that no sequence holds.
static void tree(void) {
    sl_kv_pool pool;
    sl_prefix_tree *t;
    static int32_t letters[3][SL_PAGE];
    int32_t pages[DEPTH], ids[DEPTH * SL_PAGE];
    char known[ENTRIES][DEPTH + 3];
    int n_known = 0, hits = 0;
    CHECK_OK(sl_kv_pool_init(&pool, sl_cpu_memory(), 1, 1, 16, POOL * DEPTH, &err), err);
    CHECK_OK(sl_prefix_tree_new(&pool, &t, &err), err);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < SL_PAGE; j++) letters[i][j] = i + (j == SL_PAGE - 1) * i;
    test_draw_from(test_seed);
    for (int k = 0; k < ENTRIES; k++) {
        char word[DEPTH + 3] = {(char)('x' + test_below(2)), ':'};
        int n = 1 + test_below(DEPTH), most = 0;
        for (int i = 0; i < n; i++) {
            int letter = test_below(3);
            word[2 + i] = (char)('a' + letter);
            memcpy(ids + i * SL_PAGE, letters[letter], sizeof letters[letter]);
        }
        char key[2] = {word[0]};
        for (int i = 0; i < n_known; i++) {
            int same = 0;
            while (known[i][same] && known[i][same] == word[same]) same++;
            if (same > 2 && same - 2 > most) most = same - 2;
        }
        CHECK_INT(sl_prefix_find(t, key, ids, n, pages), most);
        hits += most;
        sl_kv_seq seq = {0};
        CHECK_OK(sl_kv_share(&pool, &seq, pages, most, &err), err);
        CHECK_OK(sl_kv_reserve(&pool, &seq, n * SL_PAGE, &err), err);
        CHECK_OK(sl_prefix_add(t, key, ids, n, seq.pages, &err), err);
        sl_kv_seq_free(&pool, &seq);
        strcpy(known[n_known++], word);
        CHECK_INT(sl_prefix_n_pages(t), pool.n_pages - pool.n_free);
        CHECK_INT(sl_prefix_n_evictable(t), sl_prefix_n_pages(t));
    }
    CHECK(hits > ENTRIES / 2);
    // The last prompt is held by a sequence, so all but its pages can go.
    int n = (int)strlen(known[n_known - 1]) - 2;
    char key[2] = {known[n_known - 1][0]};
    CHECK_INT(sl_prefix_find(t, key, ids, n, pages), n);
    sl_kv_seq seq = {0};
    CHECK_OK(sl_kv_share(&pool, &seq, pages, n, &err), err);
    CHECK_INT(sl_prefix_n_evictable(t), sl_prefix_n_pages(t) - n);
    CHECK_INT(sl_prefix_evict(t, 1), 1);
    CHECK_INT(sl_prefix_find(t, key, ids, n, pages), n);
    int all = sl_prefix_n_evictable(t);
    CHECK_INT(sl_prefix_evict(t, 1 << 20), all);
    CHECK_INT(sl_prefix_n_pages(t), n);
    CHECK_INT(sl_prefix_find(t, key, ids, n, pages), n);
    sl_kv_seq_free(&pool, &seq);
    // A sequence that holds the last page alone keeps the pages before it in the tree.
    CHECK_OK(sl_kv_share(&pool, &seq, pages + n - 1, 1, &err), err);
    CHECK_INT(sl_prefix_n_evictable(t), 0);
    CHECK_INT(sl_prefix_evict(t, n), 0);
    sl_kv_seq_free(&pool, &seq);
    CHECK_INT(sl_prefix_n_evictable(t), n);
    sl_prefix_tree_free(t);
    CHECK_INT(pool.n_free, pool.n_pages);
    sl_kv_pool_free(&pool);
}

static const test_case cases[] = {
    {"alone-or-not", NEEDS_SPEED, alone_or_not},
    GPU_CASE("alone-or-not-on-gpu", alone_or_not_on_gpu),
    GPU_CASE("together-on-gpu", together_on_gpu),
    GPU_CASE("warm-up-on-gpu", warm_up_on_gpu),
    {"one-prefill-for-all", NEEDS_NOTHING, one_prefill_for_all},
    {"grammar-errors", NEEDS_NOTHING, grammar_errors},
    {"order", NEEDS_NOTHING, order},
    {"outgrows", NEEDS_NOTHING, outgrows},
    {"cancels", NEEDS_NOTHING, cancels},
    {"lost-rank", NEEDS_NOTHING, lost_rank},
    {"lost-after-step", NEEDS_NOTHING, lost_after_step},
    {"continues", NEEDS_NOTHING, continues},
    {"copies-a-page", NEEDS_NOTHING, copies_a_page},
    {"keeps-pages-of-others", NEEDS_NOTHING, keeps_pages_of_others},
    {"tree", NEEDS_NOTHING, tree},
    {0},
};
const test_suite suite_scheduler = {"scheduler", cases};
