// tests/engine/test_draft_faults.c - drafts and what may go wrong around them: bits of a draft's rows that flip, a cancellation
// between two draft steps, a caller that stops in the middle, answers that end within a run of accepted drafts, and warm-ups
// that lack pages or fail.
#include "engine/draft/draft.h"
#include "engine/engine_internal.h"
#include "engine/stream.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;
static const char *device = "cpu";
static sl_model *model;

enum { N_CTX = 512, PROMPT = 90, DRAFTS = 4 };

static int count_down(void *ctx) { // 1 once *ctx calls were made; below 0: never
    int *left = ctx;
    return *left >= 0 && (*left)-- == 0;
}

static sl_engine *open_engine(int *left) {
    sl_engine *e;
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    CHECK_OK(sl_engine_new(model,
                           &(sl_engine_options){.n_ctx = N_CTX,
                                                .n_sequences = 3,
                                                .n_draft = 15,
                                                .draft_model = model,
                                                .device = device,
                                                .n_threads = 1,
                                                .cancel = {left ? count_down : NULL, left}},
                           &e, &err),
             err);
    return e;
}

static void close_engine(sl_engine *e) {
    sl_engine_free(e);
    sl_model_free(model);
}

// A text that repeats itself, with a part of its own in each round.
static int32_t *prompt_of(int n, int period) {
    int32_t *ids = test_ids(n, sl_model_n_vocab(model), test_seed + (uint64_t)period);
    for (int i = period; i < n; i++) ids[i] = ids[i - period];
    return ids;
}

static sl_session *prefilled(sl_engine *e, const int32_t *ids, int n) {
    sl_session *s;
    CHECK_OK(sl_session_new(e, 3, &s, &err), err);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    return s;
}

// ---- bits that flip ----

// The K rows of a layer and head in the page of the session's next row, in host memory.
static void copy_block(sl_session *s, int layer, int head, char *here, int is_back) {
    sl_engine *e = s->engine;
    const sl_backend *be = e->device.backend;
    sl_kv_rows kv = sl_kv_layer(&e->device.pool, layer);
    size_t size = sl_kv_block_bytes(kv.formats.k, e->geom.head_dim),
           block = (size_t)s->kv.pages[s->kv.n_tokens / SL_PAGE] * (size_t)e->geom.n_kv_heads + (size_t)head;
    char *there = (char *)kv.k + block * size;
    if (be->is_device)
        is_back ? be->upload(be, there, here, size) : be->download(be, here, there, size);
    else
        memcpy(is_back ? there : here, is_back ? here : there, size);
}

static void flip(sl_session *s, int layer, int head, int row, int bit) {
    const sl_engine *e = s->engine;
    size_t row_bytes = sl_kv_row_bytes(SL_BF16, e->geom.head_dim);
    char *here = malloc(SL_PAGE * row_bytes);
    copy_block(s, layer, head, here, 0);
    here[(size_t)row * row_bytes + (size_t)bit / 8] ^= (char)(1 << bit % 8);
    copy_block(s, layer, head, here, 1);
    free(here);
}

// One pass over a token and the drafts of `self`, which wrote rows of K behind the session. Before the pass, one bit flips in
// row `row` of the page. logits: [1 + DRAFTS][n_vocab] of the pass. Returns the number of its rows.
static int pass_after_flip(sl_engine *e, const int32_t *ids, int row, int layer, int head, int bit, sl_draft_job *job,
                           float *logits) {
    int n_vocab = sl_model_n_vocab(model);
    sl_session *s = prefilled(e, ids, PROMPT);
    sl_drafter *drafter;
    sl_sampler *sampler;
    sl_sampling greedy = sl_sampling_default();
    greedy.temp = 0;
    CHECK_OK(sl_drafter_new(e, "self:least=4:most=4:attn=streaming:window=40", &drafter, &err), err);
    CHECK_OK(sl_drafter_begin(drafter, s, &err), err);
    CHECK_OK(sl_sampler_new(&greedy, n_vocab, &sampler, &err), err);
    CHECK_OK(sl_engine_claim(e, &err), err);
    *job = (sl_draft_job){.drafter = drafter, .session = s, .sampler = sampler, .most = DRAFTS, .ids = {ids[PROMPT]}};
    CHECK_OK(sl_drafts_make(job, 1, &err), err);
    CHECK_INT(job->n, 1 + DRAFTS);
    CHECK_INT(sl_session_n_tokens(s), PROMPT);
    if (row >= 0) flip(s, layer, head, row, bit);
    sl_run run = {.session = s, .ids = job->ids, .n = job->n};
    CHECK_OK(sl_decode_runs_claimed(&run, 1, &err), err);
    for (int i = 0; i < job->n; i++) {
        if (i) sl_run_take(&run, i);
        memcpy(logits + (size_t)i * (size_t)n_vocab, sl_session_last_logits(s), (size_t)n_vocab * sizeof *logits);
    }
    sl_engine_release(e);
    sl_sampler_free(sampler), sl_drafter_free(drafter), sl_session_free(s);
    return job->n;
}

// A bit of the drafts' rows of K changes no bit of the pass. A bit of the session's own rows does, so the flips are seen.
static void bits(void) {
    sl_engine *e = open_engine(NULL);
    int n_vocab = sl_model_n_vocab(model), n_seen = 0, n_bits = 16 * e->geom.head_dim, sign = 15;
    size_t size = (size_t)(1 + DRAFTS) * (size_t)n_vocab * sizeof(float);
    float *want = malloc(size), *got = malloc(size);
    int32_t *ids = prompt_of(PROMPT + 1, 17);
    sl_draft_job plain, job;
    pass_after_flip(e, ids, -1, 0, 0, 0, &plain, want);
    sl_session *s = prefilled(e, ids, PROMPT);
    for (int i = 0; i <= DRAFTS; i++) { // the pass itself has the bits of steps
        CHECK_OK(sl_decode(&s, 1, &plain.ids[i], &err), err);
        CHECK(!memcmp(want + (size_t)i * (size_t)n_vocab, sl_session_last_logits(s), (size_t)n_vocab * sizeof *want));
    }
    sl_session_free(s);
    for (int i = 0; i < (SANITIZED ? 8 : 40); i++) {
        int is_own = i % 4 == 3, row = is_own ? PROMPT - 1 - test_below(8) : PROMPT + test_below(DRAFTS);
        int bit = is_own ? 16 * test_below(e->geom.head_dim) + sign : test_below(n_bits);
        pass_after_flip(e, ids, row, test_below(e->geom.n_layers), test_below(e->geom.n_kv_heads), bit, &job, got);
        CHECK(!memcmp(job.ids, plain.ids, sizeof *job.ids * (1 + DRAFTS)));
        int is_same = !memcmp(got, want, size);
        if (!is_own && !is_same) FAIL("bit %d of row %d, which a draft wrote, changes logits", bit, row);
        n_seen += is_own && !is_same;
    }
    CHECK(n_seen > (SANITIZED ? 0 : 5));
    free(want), free(got), free(ids);
    close_engine(e);
}

// ---- cancellations and callers that stop ----

typedef struct made {
    int32_t ids[256];
    int n;
    uint64_t hash; // of the session's logits
    sl_stop stop;
    sl_draft_counts counts;
} made;

// Runs a stream to its end. stop_after: the caller ends it after so many steps; -1: never. left: each step is cancelled after
// up to four questions, and tried again; NULL: never. n_cancelled: counts them.
static made run(sl_session *s, const sl_generation *g, int stop_after, int *left, int *n_cancelled) {
    sl_stream *stream;
    made m = {0};
    CHECK_OK(sl_stream_new(s, g, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    for (int step = 0; sl_stream_is_running(stream); step++) {
        if (step == stop_after) {
            CHECK_OK(sl_stream_end(stream, &err), err);
            break;
        }
        int n_before = sl_session_n_tokens(s), n_ids;
        sl_stream_ids(stream, &n_ids);
        if (left) *left = test_below(5);
        if (left && sl_streams_step(&stream, 1, &err)) {
            int n_now;
            CHECK_INT(err.code, SL_ERR_CANCELLED);
            sl_stream_ids(stream, &n_now);
            CHECK(sl_stream_is_running(stream) && n_now == n_ids && sl_session_n_tokens(s) == n_before);
            ++*n_cancelled;
            *left = -1;
            CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        } else if (!left) {
            CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        }
    }
    if (left) *left = -1;
    const int32_t *ids = sl_stream_ids(stream, &m.n);
    CHECK(m.n <= 256);
    memcpy(m.ids, ids, (size_t)m.n * sizeof *ids);
    m.hash = sl_logits_hash(sl_session_last_logits(s), sl_model_n_vocab(model));
    m.stop = sl_stream_result(stream).stop, m.counts = sl_stream_draft_counts(stream);
    sl_stream_free(stream);
    return m;
}

static const char *const drafts[] = {"ngram:min=1:least=6", "self:least=3:attn=streaming:window=64", "model:least=4",
                                     "ngram:min=2+self:least=2:attn=santa-is:S=64"};

static sl_generation generation(int round, int n) {
    sl_generation g = sl_generation_default();
    g.max_tokens = n, g.sampling.temp = round % 2 ? 0 : 0.8f, g.sampling.seed = (uint32_t)round;
    if (round % 3 == 2) g.sampling.repeat_penalty = 1.1f;
    return g;
}

// A step that is cancelled, also between two draft steps, changes nothing: the step after it makes the tokens of plain
// decoding.
static void cancelled(void) {
    int left = -1, n_cancelled = 0, n_accepted = 0;
    sl_engine *e = open_engine(&left);
    for (int round = 0; round < 8; round++) {
        int32_t *ids = prompt_of(PROMPT, 11 + round);
        sl_generation g = generation(round, 60);
        sl_session *a = prefilled(e, ids, PROMPT), *b = prefilled(e, ids, PROMPT);
        made want = run(a, &g, -1, NULL, NULL);
        g.draft = drafts[round % 4];
        made got = run(b, &g, -1, &left, &n_cancelled);
        CHECK_INT(got.n, want.n);
        CHECK(!memcmp(got.ids, want.ids, (size_t)want.n * sizeof *want.ids) && got.hash == want.hash && got.stop == want.stop);
        n_accepted += (int)got.counts.n_accepted_tokens;
        sl_session_free(a), sl_session_free(b), free(ids);
    }
    CHECK(n_cancelled > 20 && n_accepted > 20);
    close_engine(e);
}

// A caller that stops gets whole steps of the plain text, and the session goes on with any other drafts.
static void stopped(void) {
    enum { N = 80 };
    sl_engine *e = open_engine(NULL);
    for (int round = 0; round < 8; round++) {
        int32_t *ids = prompt_of(PROMPT, 11 + round);
        sl_generation g = generation(round, N);
        sl_session *a = prefilled(e, ids, PROMPT), *b = prefilled(e, ids, PROMPT), *c = prefilled(e, ids, PROMPT);
        made want = run(a, &g, -1, NULL, NULL), part, rest, short_one;
        g.draft = drafts[round % 4];
        part = run(b, &g, 3 + test_below(5), NULL, NULL);
        CHECK_INT(part.stop, want.n > part.n ? SL_STOP_CALLER : want.stop);
        CHECK(part.n <= want.n && !memcmp(part.ids, want.ids, (size_t)part.n * sizeof *part.ids));
        if (part.n < want.n) { // the session is that of a plain answer that was stopped there
            sl_generation plain = g;
            plain.draft = NULL;
            short_one = run(c, &plain, part.n, NULL, NULL);
            CHECK_INT(short_one.n, part.n);
            CHECK(sl_session_n_tokens(b) == sl_session_n_tokens(c) && part.hash == short_one.hash);
            g.draft = drafts[(round + 1) % 4], g.max_tokens = N - part.n;
            rest = run(b, &g, -1, NULL, NULL);
            CHECK_INT(rest.n, want.n - part.n);
            CHECK(!memcmp(rest.ids, want.ids + part.n, (size_t)rest.n * sizeof *rest.ids) && rest.hash == want.hash);
        }
        sl_session_free(a), sl_session_free(b), sl_session_free(c), free(ids);
    }
    close_engine(e);
}

static sl_draft_counts counts_of(sl_stream *stream) {
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    while (sl_stream_is_running(stream)) CHECK_OK(sl_streams_step(&stream, 1, &err), err);
    return sl_stream_draft_counts(stream);
}

// A stream whose session was cut and has other tokens now makes the drafts of a new stream on a new session.
static void cut(void) {
    enum { KEPT = 50 };
    int n_drafts = 0;
    sl_engine *e = open_engine(NULL);
    sl_generation g = generation(1, 60);
    g.draft = "ngram:min=1:least=6:most=6";
    for (int round = 0; round < 6; round++) {
        int32_t *ids = prompt_of(PROMPT, 9 + round), *other = prompt_of(PROMPT, 23 + round);
        sl_session *s = prefilled(e, ids, PROMPT), *fresh = prefilled(e, ids, KEPT);
        sl_stream *stream, *fresh_stream;
        CHECK_OK(sl_stream_new(s, &g, &stream, &err), err);
        CHECK_OK(sl_stream_new(fresh, &g, &fresh_stream, &err), err);
        counts_of(stream);
        CHECK_OK(sl_session_truncate(s, KEPT, &err), err);
        CHECK_OK(sl_prefill(s, other, PROMPT, NULL, &err), err);
        CHECK_OK(sl_prefill(fresh, other, PROMPT, NULL, &err), err);
        sl_draft_counts got = counts_of(stream), want = counts_of(fresh_stream);
        CHECK(!memcmp(&got, &want, sizeof got));
        n_drafts += (int)want.n_ngram_drafts;
        sl_stream_free(stream), sl_stream_free(fresh_stream);
        sl_session_free(s), sl_session_free(fresh), free(ids), free(other);
    }
    CHECK(n_drafts > 10);
    close_engine(e);
}

// ---- ends within a run ----

// Continues n tokens of a prompt. Checks that the answer with drafts is that without.
static made with_drafts(sl_engine *e, const int32_t *ids, int n, sl_generation g, const char *draft) {
    sl_session *a = prefilled(e, ids, n), *b = prefilled(e, ids, n);
    made want = run(a, &g, -1, NULL, NULL);
    g.draft = draft;
    made got = run(b, &g, -1, NULL, NULL);
    CHECK_INT(got.n, want.n);
    CHECK_INT(got.stop, want.stop);
    CHECK_INT(sl_session_n_tokens(a), sl_session_n_tokens(b));
    CHECK(!memcmp(got.ids, want.ids, (size_t)want.n * sizeof *want.ids) && got.hash == want.hash);
    sl_session_free(a), sl_session_free(b);
    return got;
}

// The last token of the plain answer that occurs for the first time, at a place that has a draft if every draft is accepted:
// each step makes 1 + DRAFTS tokens, and the first of them is no draft.
static int32_t token_within(sl_engine *e, const int32_t *ids, const sl_generation *g) {
    sl_session *s = prefilled(e, ids, PROMPT);
    made plain = run(s, g, -1, NULL, NULL);
    int32_t token = -1;
    sl_session_free(s);
    for (int i = 0, j; i < plain.n; i++) {
        for (j = 0; plain.ids[j] != plain.ids[i];) j++;
        if (j == i && i % (1 + DRAFTS)) token = plain.ids[i];
    }
    CHECK(token >= 0);
    return token;
}

// End tokens, of the model, that are accepted drafts: the answer needs no step of its own for them. Full contexts and limits
// that end a run. In the last round, drafts are the tokens of plain decoding.
static void ends(void) {
    sl_engine *e = open_engine(NULL);
    sl_config *config = &model->config;
    for (int round = 0; round < 5; round++) {
        int accepts_all = round == 4, n = N_CTX - 20 - test_below(60);
        const char *draft = accepts_all ? "self:least=4:most=4:attn=dense" : drafts[round];
        int32_t *ids = prompt_of(n, 7 + round);
        sl_generation g = generation(round, 120);
        config->n_eos = 0;
        made full = with_drafts(e, ids, n, g, draft);
        CHECK_INT(full.stop, SL_STOP_CONTEXT);
        g.max_tokens = 5 + test_below(40);
        made limited = with_drafts(e, ids, PROMPT, g, draft);
        CHECK_INT(limited.stop, SL_STOP_LENGTH);
        g.max_tokens = 120, g.sampling.temp = 1.5f;
        config->eos[0] = token_within(e, ids, &g), config->n_eos = 1;
        g.max_tokens = 150; // does not cut the step of the end token
        made ended = with_drafts(e, ids, PROMPT, g, draft);
        CHECK_INT(ended.stop, SL_STOP_END);
        free(ids);
        if (!accepts_all) continue;
        CHECK(full.counts.n_accepted_tokens > 0 && limited.counts.n_accepted_tokens > 0);
        CHECK_INT((int)(ended.counts.n_steps + ended.counts.n_accepted_tokens), ended.n); // the end token takes no step
    }
    close_engine(e);
}

// ---- warm-ups ----

static int (*finish_plain)(const sl_backend *be, sl_error *why);
static int most_rows, n_good = -1; // of the passes so far; passes until one fails, below 0: none fails

static void run_step(const sl_backend *be, sl_step_key key, void (*forward)(const struct sl_batch *batch),
                     const struct sl_batch *batch) {
    (void)be;
    if (key.n > most_rows) most_rows = key.n;
    forward(batch);
}

static int finish(const sl_backend *be, sl_error *why) {
    int rc = finish_plain(be, why);
    return rc || n_good < 0 || n_good-- ? rc : sl_fail(why, SL_ERR_MEMORY, "out of memory");
}

// Begins a generation with drafts, and expects that the warm-up runs passes of up to `most` rows; 0: none.
static void begin_drafts(sl_engine *e, sl_session *s, const char *attn, int most) {
    sl_generation g = generation(0, 4);
    sl_stream *stream;
    g.draft = "ngram", g.attn = attn;
    int n_free = e->device.pool.n_free;
    most_rows = 0;
    CHECK_OK(sl_stream_new(s, &g, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, 0, &err), err);
    CHECK_INT(most_rows, most);
    CHECK_INT(e->device.pool.n_free, n_free);
    sl_stream_free(stream);
}

// A warm-up runs as many passes as there are free pages for, and a later one runs the rest. A warm-up that fails is no error.
static void warm_ups(void) {
    sl_engine *e = open_engine(NULL);
    sl_backend *be = (sl_backend *)e->device.backend;
    finish_plain = be->finish;
    be->run_step = run_step, be->finish = finish; // records passes, as a GPU does
    int32_t *ids = prompt_of(PROMPT, 17);
    sl_session *s = prefilled(e, ids, PROMPT);
    sl_kv_pool *pool = &e->device.pool;
    int n_free = pool->n_free;
    CHECK(n_free >= 3);
    pool->n_free = 0, begin_drafts(e, s, NULL, 0);
    pool->n_free = 1, begin_drafts(e, s, NULL, 16);
    pool->n_free = 1, begin_drafts(e, s, NULL, 0);
    pool->n_free = n_free, begin_drafts(e, s, NULL, 48);
    begin_drafts(e, s, NULL, 0);
    n_good = 3, begin_drafts(e, s, "streaming:window=64", 16);
    CHECK_INT(n_good, -1);
    free(ids), sl_session_free(s);
    close_engine(e);
}

#ifdef SLEIGH_CUDA
static void on_gpu(void (*fn)(void)) {
    device = "cuda";
    fn();
    device = "cpu";
}

static void bits_on_gpu(void) {
    on_gpu(bits);
}
static void cancelled_on_gpu(void) {
    on_gpu(cancelled);
}
static void stopped_on_gpu(void) {
    on_gpu(stopped);
}
static void ends_on_gpu(void) {
    on_gpu(ends);
}
#endif

static const test_case cases[] = {
    {"bits", NEEDS_NOTHING, bits},
    {"cancelled", NEEDS_NOTHING, cancelled},
    {"stopped", NEEDS_NOTHING, stopped},
    {"cut", NEEDS_NOTHING, cut},
    {"ends", NEEDS_NOTHING, ends},
    {"warm-ups", NEEDS_NOTHING, warm_ups},
    GPU_CASE("bits-on-gpu", bits_on_gpu),
    GPU_CASE("cancelled-on-gpu", cancelled_on_gpu),
    GPU_CASE("stopped-on-gpu", stopped_on_gpu),
    GPU_CASE("ends-on-gpu", ends_on_gpu),
    {0},
};
const test_suite suite_draft_faults = {"draft_faults", cases};
