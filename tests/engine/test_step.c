// tests/engine/test_step.c - sl_sample and sl_step give the same tokens, logits and states as sampling on the host and then
// decoding.
#include "engine/engine_internal.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;

enum { B = 4, N_CTX = 1024 };
static const int lengths[B] = {1, 255, 256, 600};

typedef struct step_fixture {
    model_fixture on;
    sl_session *batch[B];
    sl_sampler *samplers[B];
} step_fixture;

// Sequence i has lengths[i] tokens and samples with params[i].
static step_fixture step_open(const char *attn, int n_ctx, const sl_sampling *params) {
    step_fixture r = {
        .on = model_fixture_load("models/tiny", attn, (sl_engine_options){.n_ctx = n_ctx, .n_sequences = B, .seed = 7})};
    for (int i = 0; i < B; i++) {
        uint64_t state = test_seed + i;
        int32_t ids[N_CTX];
        for (int j = 0; j < lengths[i]; j++) ids[j] = (int32_t)(test_uniform(&state) * (r.on.n_vocab - 16));
        CHECK_OK(sl_session_new(r.on.engine, 100 + i, &r.batch[i], &err), err);
        CHECK_OK(sl_prefill(r.batch[i], ids, lengths[i], NULL, &err), err);
        CHECK_OK(sl_sampler_new(&params[i], r.on.n_vocab, &r.samplers[i], &err), err);
    }
    return r;
}

static void step_close(step_fixture *r) {
    for (int i = 0; i < B; i++) sl_session_free(r->batch[i]), sl_sampler_free(r->samplers[i]);
    model_fixture_close(&r->on);
}

// Does what sl_step does, with sl_sample and sl_decode. Returns the result of the decode step.
static int sample_and_decode(step_fixture *r, int32_t *ids) {
    sl_session *live[B];
    int32_t live_ids[B];
    int n = 0;
    CHECK_OK(sl_sample(r->batch, B, r->samplers, ids, &err), err);
    for (int i = 0; i < B; i++)
        if (!sl_model_is_eos(r->on.model, ids[i])) live[n] = r->batch[i], live_ids[n++] = ids[i];
    return n ? sl_decode(live, n, live_ids, &err) : 0;
}

static void check_equal(const step_fixture *a, const step_fixture *b, const char *what) {
    for (int i = 0; i < B; i++) {
        CHECK_INT(sl_session_n_tokens(a->batch[i]), sl_session_n_tokens(b->batch[i]));
        if (memcmp(sl_session_logits(a->batch[i], NULL), sl_session_logits(b->batch[i], NULL), a->on.n_vocab * sizeof(float)))
            FAIL("%s: sequence %d: other logits", what, i);
    }
}

static void step_is_sample_and_decode(void) {
    static const char *const methods[] = {"dense", "santa-prop:S=16",
                                          "santa-pps:S=24:budget=variance"}; // the last method keeps a state
    enum { STEPS = 6, EOS = 1009 };
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        const sl_logit_bias end = {EOS, 14}; // so that an end token is sampled sometimes
        sl_sampling params[B];
        for (int i = 0; i < B; i++) params[i] = sl_sampling_default(), params[i].seed = 5 + i;
        params[0].temp = 0;
        params[1].temp = params[2].temp = 2;
        params[2].bias = &end, params[2].n_bias = 1;
        step_fixture a = step_open(methods[m], N_CTX, params), b = step_open(methods[m], N_CTX, params);
        for (int step = 0; step < STEPS; step++) {
            int32_t drawn[B], ids[B], want[B];
            CHECK_OK(sl_sample(a.batch, B, a.samplers, drawn, &err), err);
            for (int i = 0; i < B; i++) { // the position of a token is the position of its row
                const sl_session *x = a.batch[i];
                CHECK_INT(drawn[i], sl_sampler_sample(a.samplers[i], sl_session_logits(x, NULL), 100 + (uint32_t)i,
                                                      (uint32_t)sl_session_n_tokens(x)));
            }
            CHECK_OK(sl_step(a.batch, B, a.samplers, ids, &err), err);
            CHECK_OK(sample_and_decode(&b, want), err);
            for (int i = 0; i < B; i++) {
                CHECK_INT(ids[i], want[i]);
                CHECK_INT(drawn[i], want[i]);
            }
            check_equal(&a, &b, methods[m]);
        }
        CHECK(!memcmp(sl_engine_attn_stats(a.on.engine), sl_engine_attn_stats(b.on.engine), sizeof(sl_attn_stats)));
        step_close(&a), step_close(&b);
    }
}

static void end_tokens(void) { // they are not appended, when some or all sequences sample one
    const sl_logit_bias end = {1012, 1e4f};
    sl_sampling params[B];
    for (int i = 0; i < B; i++) params[i] = sl_sampling_default(), params[i].temp = 0;
    params[1].bias = params[3].bias = &end, params[1].n_bias = params[3].n_bias = 1;
    step_fixture r = step_open("dense", N_CTX, params);
    int32_t ids[B];
    float *before = malloc(r.on.n_vocab * sizeof *before);
    memcpy(before, sl_session_logits(r.batch[3], NULL), r.on.n_vocab * sizeof *before);
    CHECK_OK(sl_step(r.batch, B, r.samplers, ids, &err), err);
    for (int i = 0; i < B; i++) {
        CHECK_INT(ids[i] == 1012, i % 2);
        CHECK_INT(sl_session_n_tokens(r.batch[i]), lengths[i] + !(i % 2));
    }
    CHECK(!memcmp(before, sl_session_logits(r.batch[3], NULL), r.on.n_vocab * sizeof *before));
    sl_session *ended[2] = {r.batch[3], r.batch[1]};
    sl_sampler *samplers[2] = {r.samplers[3], r.samplers[1]};
    sl_engine_reset_stats(r.on.engine);
    CHECK_OK(sl_step(ended, 2, samplers, ids, &err), err);
    CHECK(ids[0] == 1012 && ids[1] == 1012);
    CHECK_INT(sl_engine_attn_stats(r.on.engine)->steps, 0);
    CHECK_INT(sl_session_n_tokens(r.batch[1]), lengths[1]);
    free(before);
    step_close(&r);
}

static void all_or_none(void) {
    sl_sampling params[B];
    for (int i = 0; i < B; i++) params[i] = sl_sampling_default();
    step_fixture r = step_open("dense", 600, params); // the longest sequence is full
    int32_t ids[B], want[B], drawn[B];
    CHECK_OK(sl_sample(r.batch, B, r.samplers, want, &err), err);
    CHECK_ERR(sl_step(r.batch, B, r.samplers, ids, &err), err, SL_ERR_CONTEXT, "sequence 103: the context is full: 600");
    CHECK_ERR(sl_step(r.batch, 0, r.samplers, ids, &err), err, SL_ERR_ARG, "expected at least 1");
    CHECK_ERR(sl_sample(r.batch, B + 1, r.samplers, ids, &err), err, SL_ERR_ARG, "1 to 4");
    for (int i = 0; i < B; i++) CHECK_INT(sl_session_n_tokens(r.batch[i]), lengths[i]);
    CHECK_OK(sl_sample(r.batch, B, r.samplers, drawn, &err), err);
    CHECK(!memcmp(want, drawn, sizeof want));
    CHECK_OK(sl_step(r.batch, B - 1, r.samplers, ids, &err), err);
    for (int i = 0; i < B - 1; i++) CHECK_INT(ids[i], want[i]);
    step_close(&r);
}

// A fork or a copy that finds no free page leaves *out as it was: the caller may free it.
static void failed_fork(void) {
    model_fixture m = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 512});
    sl_session *s = model_fixture_session(&m, 0), *fork = NULL;
    int32_t *ids = test_ids(500, m.n_vocab, test_seed);
    CHECK_OK(sl_prefill(s, ids, 500, NULL, &err), err);
    CHECK_ERR(sl_session_fork(s, 500, 1, &fork, &err), err, SL_ERR_MEMORY, "pages");
    CHECK(fork == NULL);
    CHECK_ERR(sl_session_copy(s, 500, 1, &fork, &err), err, SL_ERR_MEMORY, "pages");
    CHECK(fork == NULL);
    sl_session_free(s);
    free(ids);
    model_fixture_close(&m);
}

static int stop_at_once(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    (void)ctx, (void)first, (void)n_rows, (void)logits;
    return sl_fail(e, SL_ERR_IO, "stopped by the callback");
}

static void count_reports(void *ctx, int done, int total) {
    (void)done, (void)total;
    ++*(int *)ctx;
}

// A callback that stops sl_prefill_logits: its error is returned, and no progress is reported after it.
static void stopped_prefill(void) {
    model_fixture m = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 512, .prefill_chunk = 64});
    sl_session *s = model_fixture_session(&m, 0);
    int32_t *ids = test_ids(200, m.n_vocab, test_seed);
    int n_reports = 0;
    sl_progress progress = {count_reports, &n_reports};
    CHECK_ERR(sl_prefill_logits(s, ids, 200, stop_at_once, NULL, &progress, &err), err, SL_ERR_IO, "stopped by the callback");
    CHECK_INT(n_reports, 0);
    sl_session_free(s);
    free(ids);
    model_fixture_close(&m);
}

// After a prefill and after steps, every full page before the newest row has the extras of the methods and of the shadows in
// every layer, built from its rows.
static void ignore(void *ctx, const sl_attn_record *record) {
    (void)ctx, (void)record;
}

static void check_extras(const sl_session *s, int layer, const sl_attn_spec *spec) {
    static char want[1 << 20];
    sl_kv_pool *pool = &s->engine->device.pool;
    sl_kv_need need[SL_MAX_NEEDS];
    int n = s->engine->device.attention->needs(spec, need);
    CHECK(n > 0);
    sl_kv_view view = sl_kv_view_of(pool, &s->kv, layer, s->kv.n_tokens);
    for (int i = 0; i < n * sl_kv_n_built(&view) * pool->n_kv_heads; i++) {
        int h = i % pool->n_kv_heads, page = i / pool->n_kv_heads % sl_kv_n_built(&view);
        sl_kv_need x = need[i / pool->n_kv_heads / sl_kv_n_built(&view)];
        size_t size = x.kind->size(x.arg, pool->head_dim);
        CHECK(!x.kind->span && !x.kind->chained && size <= sizeof want);
        memset(want, 0, size);
        x.kind->build(&(sl_kv_page){.arg = x.arg,
                                    .head_dim = pool->head_dim,
                                    .layer = layer,
                                    .h = h,
                                    .first = page * SL_PAGE,
                                    .k = sl_kv_k_run(&view, pool->n_kv_heads, pool->head_dim, page, h),
                                    .v = sl_kv_v_run(&view, pool->n_kv_heads, pool->head_dim, page, h),
                                    .shared = sl_kv_shared(&view, x, h)},
                      want);
        if (memcmp(sl_kv_extra(&view, x, page, h), want, size)) FAIL("%s, layer %d, page %d", x.kind->name, layer, page);
    }
}

static void extras_of_layers(void) {
    static int32_t ids[600];
    sl_attn_spec spec, shadow;
    CHECK_OK(sl_attn_parse("santa-is:S=16", &spec, &err), err);
    CHECK_OK(sl_attn_parse("quest:tokens=64", &shadow, &err), err);
    model_fixture m = model_fixture_load("models/tiny", "santa-is:S=16", (sl_engine_options){.n_ctx = N_CTX});
    CHECK_OK(sl_engine_observe(m.engine, &(sl_observer){.fn = ignore, .shadows = &shadow, .n_shadows = 1}, &err), err);
    sl_session *s = model_fixture_session(&m, 0);
    for (int step = 0; step < 3; step++) { // a prefill, a step to the end of a page, and one more
        if (step == 0) CHECK_OK(sl_prefill(s, ids, 511, NULL, &err), err);
        if (step > 0) CHECK_OK(sl_decode(&s, 1, ids, &err), err);
        for (int layer = 0; layer < sl_model_config(m.model)->n_layers; layer++)
            check_extras(s, layer, &spec), check_extras(s, layer, &shadow);
    }
    sl_session_free(s);
    model_fixture_close(&m);
}

// ---- logits on a device (logits.c), whose memory is the CPU's ----

enum { SESSIONS = 5, ROWS = 3, VOCAB = 4 };

static void set_row(float *row, float x) {
    for (int i = 0; i < VOCAB; i++) row[i] = x + i;
}

static void check_row(const float *row, float x) {
    for (int i = 0; i < VOCAB; i++) CHECK_NEAR(row[i], x + i, 0);
}

static void logits_on_a_device(void) {
    sl_backend be = *sl_cpu_memory();
    sl_model model = {.config.n_vocab = VOCAB};
    float rows[ROWS * VOCAB], last[ROWS * VOCAB], host[SESSIONS][VOCAB], want[SESSIONS] = {0}, time = 0;
    sl_session *owner[ROWS] = {0}, s[SESSIONS];
    sl_engine e = {.device = {.backend = &be,
                              .weights = {.config = &model.config},
                              .pass = {.logits = rows, .last_logits = last, .logits_owner = owner}}};
    uint64_t seed = test_seed;
    be.is_device = 1;
    for (int i = 0; i < SESSIONS; i++) {
        s[i] = (sl_session){.engine = &e, .logits = host[i], .logits_row = -1, .has_host_logits = 1, .has_logits = 1};
        set_row(host[i], 0);
    }
    for (int round = 0; round < 3000; round++) {
        sl_session *batch[ROWS];
        int first = (int)(SESSIONS * test_uniform(&seed)), n = 1 + (int)(ROWS * test_uniform(&seed)), what = round % 4;
        for (int i = 0; i < n; i++) batch[i] = &s[(first + i * (1 + round % 2)) % SESSIONS];
        if (what == 0) { // a step
            int at = (int)((ROWS - n + 1) * test_uniform(&seed));
            sl_logits_before_step(&e.device, batch, n, at, n);
            for (int i = 0; i < n; i++) set_row(rows + (at + i) * VOCAB, want[batch[i] - s] = time += 100);
            sl_logits_after_step(&e.device, batch, n, at);
        } else if (what == 1) {
            sl_logits_to_rows(&e.device, batch, n);
            for (int i = 0; i < n; i++) check_row(rows + i * VOCAB, want[batch[i] - s]);
        } else if (what == 2) {
            check_row(sl_session_logits(batch[0], &err), want[batch[0] - s]);
            CHECK(sl_session_logits(batch[0], &err) == batch[0]->logits);
        } else { // a step that failed for one session
            set_row(last + (n - 1) * VOCAB, want[batch[0] - s] = time += 100);
            sl_logits_restore(batch[0], n - 1);
        }
        for (int i = 0; i < SESSIONS; i++) {
            int row = s[i].logits_row;
            check_row(s[i].has_host_logits ? host[i] : rows + row * VOCAB, want[i]);
            if (row >= 0) CHECK(owner[row] == &s[i]);
        }
        for (int i = 0; i < ROWS; i++)
            if (owner[i]) CHECK_INT(owner[i]->logits_row, i);
    }
}

// ---- the matrices of a step ----

static void count_mark(void *ctx, void *stream) {
    (void)stream;
    ++*(int *)ctx;
}

// The key that the last layer stored for the session's next token, of the first KV head.
static void next_key(const sl_session *s, bf16 *out, size_t size) {
    const sl_engine *e = s->engine;
    const sl_kv_rows last = sl_kv_layer(&e->device.pool, e->geom.n_layers - 1);
    size_t page = (size_t)s->kv.pages[s->kv.n_tokens / SL_PAGE] * (size_t)e->geom.n_kv_heads;
    const bf16 *row = last.k + (page * SL_PAGE + (size_t)s->kv.n_tokens % SL_PAGE) * (size_t)e->geom.head_dim;
    e->device.backend->download(e->device.backend, out, row, size);
}

// sl_run_linear runs the layers and the head, and leaves every session as it was.
static void matrices_on(const char *device) {
    enum { N = 3, TOKENS = 4 };
    const sl_engine_options o = {.n_ctx = 64, .n_sequences = B, .device = device, .n_threads = 1};
    model_fixture r[2] = {model_fixture_load("models/tiny", "dense", o), model_fixture_load("models/tiny", "dense", o)};
    sl_session *batch[2][B];
    static const int32_t ids[B][TOKENS] = {{1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}, {4, 5, 6, 7}};
    static const int32_t next[2][B] = {{5, 6, 7, 8}, {6, 7, 8, 9}};
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < B; i++) {
            batch[f][i] = model_fixture_session(&r[f], (uint32_t)i);
            CHECK_OK(sl_prefill(batch[f][i], ids[i], TOKENS, NULL, &err), err);
        }
        CHECK_OK(sl_decode(batch[f], B, next[0], &err), err);
    }
    const sl_device *d = &r[0].engine->device;
    size_t row = (size_t)r[0].n_vocab * sizeof(float), key = (size_t)r[0].engine->geom.head_dim * sizeof(bf16);
    float *logits = malloc(N * row);
    bf16 before[128], after[128];
    int n_marks = 0;
    next_key(batch[0][N - 1], before, key);
    if (d->backend->skip_parts) CHECK_OK(sl_engine_skip_parts(r[0].engine, SL_PART_REST, &err), err);
    for (int i = 0; i < N; i++) sl_session_logits(batch[0][i], NULL); // they leave pass.logits
    float *poison = malloc(N * row); // a head whose input was not made again gives the logits of the step before
    memset(poison, 0xff, N * row);
    d->backend->upload(d->backend, d->pass.logits, poison, N * row);
    for (int i = 0; i < 2; i++) CHECK_OK(sl_run_linear(batch[0], N, count_mark, &n_marks, &err), err); // recorded, replayed
    CHECK_INT(n_marks, 6);
    next_key(batch[0][N - 1], after, key);
    CHECK(memcmp(before, after, key) != 0);
    d->backend->download(d->backend, logits, d->pass.logits, N * row);
    for (int i = 0; i < N; i++) CHECK(memcmp(logits + i * r[0].n_vocab, poison, row) != 0);
    free(poison);
    if (d->backend->skip_parts) CHECK_OK(sl_engine_skip_parts(r[0].engine, 0, &err), err);
    for (int step = 0; step < 2; step++) {
        for (int f = 0; step && f < 2; f++) CHECK_OK(sl_decode(batch[f], B, next[1], &err), err);
        for (int i = 0; i < B; i++) {
            CHECK_INT(sl_session_n_tokens(batch[0][i]), TOKENS + 1 + step);
            CHECK(!memcmp(sl_session_logits(batch[0][i], NULL), sl_session_logits(batch[1][i], NULL), row));
        }
    }
    CHECK_ERR(sl_run_linear(batch[0], 0, count_mark, &n_marks, &err), err, SL_ERR_ARG, "a batch of 0 sequences");
    free(logits);
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < B; i++) sl_session_free(batch[f][i]);
        model_fixture_close(&r[f]);
    }
}

static void matrices(void) {
    matrices_on("cpu");
}

#ifdef SLEIGH_CUDA
static void matrices_on_gpu(void) {
    matrices_on("cuda");
}
#endif

static const test_case cases[] = {
    {"extras-of-layers", 0, extras_of_layers},
    {"logits-on-a-device", 0, logits_on_a_device},
    {"failed-fork", 0, failed_fork},
    {"stopped-prefill", 0, stopped_prefill},
    {"step-is-sample-and-decode", 0, step_is_sample_and_decode},
    {"end-tokens", 0, end_tokens},
    {"all-or-none", 0, all_or_none},
    {"matrices", 0, matrices},
    GPU_CASE("matrices-on-gpu", matrices_on_gpu),
    {0},
};
extern const test_suite suite_step;
const test_suite suite_step = {"step", cases};
