// tests/models/test_model.c - whole models: equal bits with paging, chunks, batches, threads and a reused prefix.
#include "backend/backend.h"
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static model_fixture fixture_open(const char *dir, const char *attn, int n_ctx, int n_sequences, int chunk, int n_threads,
                                  uint32_t seed) {
    return model_fixture_load(
        dir, attn,
        (sl_engine_options){
            .n_ctx = n_ctx, .n_sequences = n_sequences, .prefill_chunk = chunk, .n_threads = n_threads, .seed = seed});
}

// Prefills ids and decodes n_steps greedily. Writes the last logits to out[n_vocab].
static void decode_greedy(model_fixture *r, sl_session *s, int n_steps, float *out, int32_t *tokens) {
    for (int i = 0; i < n_steps; i++) {
        int32_t id = test_argmax(sl_session_logits(s, NULL), r->n_vocab);
        if (tokens) tokens[i] = id;
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
    }
    memcpy(out, sl_session_logits(s, NULL), r->n_vocab * sizeof *out);
}

static void run_greedy(model_fixture *r, sl_session *s, const int32_t *ids, int n, int n_steps, float *out, int32_t *tokens) {
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    decode_greedy(r, s, n_steps, out, tokens);
}

static int equal_bits(const float *a, const float *b, int n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

// ---- the engine, on the embedded model ----

static void chunked_prefill(void) { // equal bits with any chunk size, at and around page boundaries
    static const int lengths[] = {1, 255, 256, 257, 520}, chunks[] = {1024, 256, 100, 17};
    model_fixture first = fixture_open("models/tiny", "dense", 1024, 1, chunks[0], 0, 0);
    int32_t *ids = test_ids(520, first.n_vocab, test_seed);
    float *want = malloc(first.n_vocab * sizeof *want), *got = malloc(first.n_vocab * sizeof *got);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        sl_session *s = model_fixture_session(&first, 0);
        run_greedy(&first, s, ids, lengths[l], 2, want, NULL);
        sl_session_free(s);
        for (size_t c = 1; c < sizeof chunks / sizeof *chunks; c++) {
            model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, chunks[c], 0, 0);
            s = model_fixture_session(&r, 0);
            run_greedy(&r, s, ids, lengths[l], 2, got, NULL);
            if (!equal_bits(got, want, r.n_vocab)) FAIL("%d tokens in chunks of %d: other bits", lengths[l], chunks[c]);
            sl_session_free(s);
            model_fixture_close(&r);
        }
    }
    model_fixture_close(&first);
    free(ids), free(want), free(got);
}

// Decoding 8 sequences of different lengths together and one by one gives equal bits.
static void batch_of_8(const char *attn) {
    enum { B = 8, STEPS = 6 };
    static const int lengths[B] = {1, 40, 255, 256, 257, 300, 511, 640};
    model_fixture r = fixture_open("models/tiny", attn, 1024, B, 0, 0, 7);
    sl_session *batch[B], *alone[B];
    int32_t next[B];
    float *want = malloc((size_t)B * r.n_vocab * sizeof *want), *got = malloc(r.n_vocab * sizeof *got);
    for (int i = 0; i < B; i++) {
        int32_t *ids = test_ids(lengths[i], r.n_vocab, test_seed + i);
        batch[i] = model_fixture_session(&r, 100 + i);
        CHECK_OK(sl_prefill(batch[i], ids, lengths[i], NULL, &err), err);
        CHECK_OK(sl_session_fork(batch[i], lengths[i], 100 + i, &alone[i], &err), err);
        free(ids);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < B; i++) next[i] = test_argmax(sl_session_logits(batch[i], NULL), r.n_vocab);
        CHECK_OK(sl_decode(batch, B, next, &err), err);
    }
    for (int i = 0; i < B; i++) {
        memcpy(want + (size_t)i * r.n_vocab, sl_session_logits(batch[i], NULL), r.n_vocab * sizeof *want);
        sl_session_free(batch[i]);
    }
    for (int i = 0; i < B; i++) {
        decode_greedy(&r, alone[i], STEPS, got, NULL);
        if (!equal_bits(got, want + (size_t)i * r.n_vocab, r.n_vocab)) FAIL("%s: sequence %d alone gives other bits", attn, i);
        sl_session_free(alone[i]);
    }
    model_fixture_close(&r);
    free(want), free(got);
}

static void batch_invariance(void) {
    batch_of_8("dense");
    batch_of_8("santa-prop:S=16");
    batch_of_8("santa-sys:S=16");
    batch_of_8("santa-flash:S=16");
}

static void seeds_and_threads(void) {
    static const char *methods[] = {"dense", "santa", "santa-strat", "santa-sys", "santa-prop", "santa-flash"};
    enum { N = 300, STEPS = 8 };
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        float *out[4];
        static const struct {
            int threads;
            uint32_t seed, sequence;
        } runs[4] = {{1, 5, 0}, {0, 5, 0}, {0, 6, 0}, {0, 5, 1}};
        char spec[64];
        snprintf(spec, sizeof spec, m == 0 ? "%s" : "%s:S=8", methods[m]);
        for (int i = 0; i < 4; i++) {
            model_fixture r = fixture_open("models/tiny", spec, 1024, 1, 0, runs[i].threads, runs[i].seed);
            int32_t *ids = test_ids(N, r.n_vocab, test_seed);
            sl_session *s = model_fixture_session(&r, runs[i].sequence);
            out[i] = malloc(r.n_vocab * sizeof *out[i]);
            CHECK_OK(sl_prefill(s, ids, N - STEPS, NULL, &err), err);
            for (int j = N - STEPS; j < N; j++) CHECK_OK(sl_decode(&s, 1, &ids[j], &err), err);
            memcpy(out[i], sl_session_logits(s, NULL), r.n_vocab * sizeof *out[i]);
            sl_session_free(s);
            model_fixture_close(&r);
            free(ids);
        }
        const int n = 1024;
        if (!equal_bits(out[0], out[1], n)) FAIL("%s: one thread and all threads differ", methods[m]);
        for (int i = 2; i < 4; i++)
            if (equal_bits(out[0], out[i], n) != (m == 0)) FAIL("%s: run %d ignores its seed or sequence id", methods[m], i);
        for (int i = 0; i < 4; i++) free(out[i]);
    }
}

// Tokens decoded one by one and tokens prefilled together give logits that differ by rounding only.
static void decode_agrees_with_prefill(void) {
    enum { N = 400, FROM = 250 };
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 0, 0, 0);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed);
    sl_session *whole = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(whole, ids, N, NULL, &err), err);
    float *want = malloc(r.n_vocab * sizeof *want);
    memcpy(want, sl_session_logits(whole, NULL), r.n_vocab * sizeof *want);
    CHECK_OK(sl_session_truncate(whole, FROM, &err), err);
    for (int i = FROM; i < N; i++) CHECK_OK(sl_decode(&whole, 1, &ids[i], &err), err);
    double square = 0, norm = 0;
    for (int i = 0; i < r.n_vocab; i++) {
        double d = sl_session_logits(whole, NULL)[i] - want[i];
        square += d * d, norm += (double)want[i] * want[i];
    }
    CHECK_NEAR(sqrt(square / norm), 0, 2e-3); // K and V of 150 tokens are rounded to bf16 from sums in another order
    sl_session_free(whole);
    model_fixture_close(&r);
    free(ids), free(want);
}

static void prefix_reuse(void) { // truncate and fork give the bits of a new session
    enum { N = 600, CUT = 300, STEPS = 4 };
    model_fixture r = fixture_open("models/tiny", "santa-prop:S=16", 1024, 3, 0, 0, 3);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed), *other = test_ids(N, r.n_vocab, test_seed + 1);
    float *want = malloc(r.n_vocab * sizeof *want), *got = malloc(r.n_vocab * sizeof *got);
    memcpy(other, ids, CUT * sizeof *ids);
    sl_session *a = model_fixture_session(&r, 9), *b = model_fixture_session(&r, 9), *fork;
    run_greedy(&r, a, ids, N, STEPS, want, NULL);

    run_greedy(&r, b, other, N, STEPS, got, NULL); // the same first 300 tokens, then another text
    CHECK_OK(sl_session_fork(b, CUT, 9, &fork, &err), err);
    run_greedy(&r, fork, ids + CUT, N - CUT, STEPS, got, NULL);
    CHECK(equal_bits(got, want, r.n_vocab));
    sl_session_free(fork);

    CHECK_OK(sl_session_truncate(b, CUT, &err), err);
    run_greedy(&r, b, ids + CUT, N - CUT, STEPS, got, NULL);
    CHECK(equal_bits(got, want, r.n_vocab));
    sl_session_free(a), sl_session_free(b);
    model_fixture_close(&r);
    free(ids), free(other), free(want), free(got);
}

static void context_overflow(void) {
    model_fixture r = fixture_open("models/tiny", "dense", 300, 1, 0, 0, 0);
    int32_t *ids = test_ids(301, r.n_vocab, test_seed), bad = r.n_vocab;
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_ERR(sl_prefill(s, ids, 301, NULL, &err), err, SL_ERR_CONTEXT, "301");
    CHECK_INT(sl_session_n_tokens(s), 0);
    CHECK_OK(sl_prefill(s, ids, 300, NULL, &err), err);
    CHECK_ERR(sl_decode(&s, 1, ids, &err), err, SL_ERR_CONTEXT, "300");
    CHECK_INT(sl_session_n_tokens(s), 300);
    CHECK_OK(sl_session_truncate(s, 10, &err), err);
    CHECK_ERR(sl_decode(&s, 1, &bad, &err), err, SL_ERR_ARG, "1024");
    CHECK_ERR(sl_session_truncate(s, 11, &err), err, SL_ERR_ARG, "11");
    sl_engine *none;
    sl_engine_options o = {.n_ctx = 1 << 30};
    CHECK_ERR(sl_engine_new(r.model, &o, &none, &err), err, SL_ERR_ARG, "131072");
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// A dense method whose state counts the steps of a sequence and layer. The count shows when the engine clears the state.
static const sl_attn_ops *dense_ops;
static uint32_t last_count; // of layer 0

static size_t counting_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    const sl_attn_spec dense = {.method = sl_attn_find("dense")};
    (void)spec;
    return dense_ops->workspace(g, &dense, n_seqs, n_tokens, n_kv);
}
static void counting_decode(const sl_attn_decode_args *args) {
    const sl_attn_spec dense = {.method = sl_attn_find("dense")};
    sl_attn_decode_args as_dense = *args;
    as_dense.spec = &dense;
    for (int i = 0; i < args->n_seqs; i++) {
        uint32_t *count = args->seqs[i].state;
        count[args->layer]++;
        for (int j = 0; j < args->geom->n_layers; j++)
            CHECK(j == args->layer || count[j] == 0); // every layer has its own state
        if (args->layer == 0) last_count = count[0];
    }
    dense_ops->decode(&as_dense);
}
static size_t counting_state(const sl_attn_geom *g, const sl_attn_spec *spec) {
    (void)spec;
    return g->n_layers * sizeof(uint32_t);
}

static void set_plan(model_fixture *r, const sl_attn_spec *spec) {
    sl_attn_plan plan;
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, spec, &err), err);
    CHECK_OK(sl_engine_set_plan(r->engine, &plan, &err), err);
    sl_attn_plan_free(&plan);
}

static void method_state(void) {
    static const sl_attn_ops ops = {.workspace = counting_workspace, .decode = counting_decode, .state = counting_state};
    static const sl_attn_method counting = {
        .name = "counting", .summary = "test", .source = "test", .mean = SL_MEAN_EXACT, .cpu = &ops};
    dense_ops = sl_attn_find("dense")->cpu;
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 64, 0, 0);
    for (int i = 0; i < sl_model_config(r.model)->n_layers; i++) { // a plan with one method that is refused
        sl_attn_method silent = counting;
        sl_attn_plan plan;
        silent.mean = SL_MEAN_UNSTATED;
        CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r.model)->n_layers, &(sl_attn_spec){.method = &counting}, &err), err);
        plan.layer[i].method = &silent;
        CHECK_ERR(sl_engine_set_plan(r.engine, &plan, &err), err, SL_ERR_ARG, "does not state the mean");
        sl_attn_plan_free(&plan);
    }
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    float *want = malloc(r.n_vocab * sizeof *want), *got = malloc(r.n_vocab * sizeof *got);
    sl_session *s = model_fixture_session(&r, 0), *fork;
    run_greedy(&r, s, ids, 290, 5, want, NULL);
    CHECK_OK(sl_session_truncate(s, 100, &err), err);
    set_plan(&r, &(sl_attn_spec){.method = &counting});
    run_greedy(&r, s, ids + 100, 190, 5, got, NULL);
    CHECK(equal_bits(got, want, r.n_vocab));
    uint32_t steps = last_count;
    CHECK(steps >= 4);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(last_count, steps + 1);
    CHECK_OK(sl_session_fork(s, 280, 0, &fork, &err), err); // the state of a fork begins with zeros
    run_greedy(&r, fork, ids + 280, 10, 5, got, NULL);
    CHECK(equal_bits(got, want, r.n_vocab));
    CHECK_INT(last_count, steps);
    CHECK_OK(sl_session_truncate(s, 280, &err), err); // the state of a truncated session begins with zeros
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(last_count, 1);
    set_plan(&r, &(sl_attn_spec){.method = sl_attn_find("dense")}); // another session decodes with another method
    CHECK_OK(sl_decode(&fork, 1, ids, &err), err);
    set_plan(&r, &(sl_attn_spec){.method = &counting});
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(last_count, 2);
    CHECK_OK(sl_decode(&fork, 1, ids, &err), err); // its state begins with zeros
    CHECK_INT(last_count, 1);
    sl_session_free(fork), sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(want), free(got);
}

// After a change of one parameter, of the method or of the second method of a composition, the state begins with zeros, because
// another parameter made the old state. Setting the same parameters again keeps the state.
static void state_after_a_parameter_change(void) {
    static const sl_attn_param params[] = {{"x", SL_PARAM_INT, 0, 0, 9, "test", NULL}, {0}};
    static const sl_attn_ops ops = {.workspace = counting_workspace, .decode = counting_decode, .state = counting_state};
    static const sl_attn_method counting = {
        .name = "counting", .summary = "test", .source = "test", .mean = SL_MEAN_EXACT, .params = params, .cpu = &ops};
    static const struct {
        int value, plus_value, want;
    } t[] = {{1, 0, 1}, {1, 0, 2}, {2, 0, 1}, {2, 0, 2}, {1, 0, 1}, {1, 3, 1}, {1, 3, 2}, {1, 0, 1}};
    dense_ops = sl_attn_find("dense")->cpu;
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 64, 0, 0);
    sl_session *s = model_fixture_session(&r, 0);
    int32_t id = 7;
    CHECK_OK(sl_prefill(s, &id, 1, NULL, &err), err);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        set_plan(&r, &(sl_attn_spec){
                         .method = &counting, .value = {t[i].value}, .plus = &counting, .plus_value = {t[i].plus_value}});
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
        CHECK_INT(last_count, t[i].want);
    }
    sl_session_free(s);
    model_fixture_close(&r);
}

// When tokens were prefilled since the last decode step, the stored output does not belong to the previous step, and the method
// must not plan with this output. A fork has the same rows, the same sequence and an empty state, so it gives equal bits. One
// step later the method plans with its output, so a fork gives other bits.
static void state_after_a_prefill(void) {
    static const char *const methods[] = {"santa-pps:S=24:budget=variance", "santa:S=24:budget=variance"};
    enum { N = 200, FIRST = 180 };
    for (int m = 0; m < 2; m++) {
        model_fixture r = fixture_open("models/tiny", methods[m], 1024, 2, 0, 0, 5);
        int32_t *ids = test_ids(N + 2, r.n_vocab, test_seed);
        sl_session *s = model_fixture_session(&r, 3), *fork;
        CHECK_OK(sl_prefill(s, ids, FIRST, NULL, &err), err);
        CHECK_OK(sl_decode(&s, 1, &ids[FIRST], &err), err);
        CHECK_OK(sl_prefill(s, ids + FIRST + 1, N - FIRST - 1, NULL, &err), err);
        for (int step = 0; step < 2; step++) {
            CHECK_OK(sl_session_fork(s, N + step, 3, &fork, &err), err);
            CHECK_OK(sl_decode(&s, 1, &ids[N + step], &err), err);
            CHECK_OK(sl_decode(&fork, 1, &ids[N + step], &err), err);
            CHECK_INT(equal_bits(sl_session_logits(s, NULL), sl_session_logits(fork, NULL), r.n_vocab), step == 0);
            sl_session_free(fork);
        }
        sl_session_free(s);
        model_fixture_close(&r);
        free(ids);
    }
}

// An engine whose method or parameter was changed gives the bits of an engine that was opened with it: the seed does not
// change. Prefill is dense, so the bits are equal up to the change.
static void seed_after_a_parameter_change(void) {
    static const char *const from[] = {"dense", "santa-sys:S=9", "santa-pps:S=24", "magicpig:K=5:L=20", "santa-sys:S=9"};
    static const char *const to[] = {"santa-sys:S=8", "santa-sys:S=8", "santa-pps:S=24:budget=variance", "magicpig:K=5:L=21",
                                     "magicpig:K=5:L=21"};
    enum { N = 300, STEPS = 3 };
    for (int m = 0; m < 5; m++) {
        float *out[3];
        for (int i = 0; i < 3; i++) { // changed; opened with it; opened with it and another seed
            model_fixture r = fixture_open("models/tiny", i ? to[m] : from[m], 1024, 1, 0, 0, i == 2 ? 6 : 5);
            int32_t *ids = test_ids(N, r.n_vocab, test_seed);
            sl_session *s = model_fixture_session(&r, 3);
            sl_attn_spec spec;
            CHECK_OK(sl_prefill(s, ids, N - STEPS - 2, NULL, &err), err);
            if (i == 0) { // two steps with the previous method, and back
                for (int j = N - STEPS - 2; j < N - STEPS; j++) CHECK_OK(sl_decode(&s, 1, &ids[j], &err), err);
                CHECK_OK(sl_session_truncate(s, N - STEPS - 2, &err), err);
                CHECK_OK(sl_attn_parse(to[m], &spec, &err), err);
                set_plan(&r, &spec);
            }
            for (int j = N - STEPS - 2; j < N; j++) CHECK_OK(sl_decode(&s, 1, &ids[j], &err), err);
            out[i] = malloc(r.n_vocab * sizeof *out[i]);
            memcpy(out[i], sl_session_logits(s, NULL), r.n_vocab * sizeof *out[i]);
            sl_session_free(s);
            model_fixture_close(&r);
            free(ids);
        }
        if (!equal_bits(out[0], out[1], 1024)) FAIL("%s changed to %s: other bits", from[m], to[m]);
        if (equal_bits(out[1], out[2], 1024)) FAIL("%s ignores its seed", to[m]);
        for (int i = 0; i < 3; i++) free(out[i]);
    }
}

static void stats_count_rows(void) { // a dense step over n rows reads each row once per KV head and layer
    enum { N = 300 };
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 0, 0, 0);
    const sl_config *c = sl_model_config(r.model);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, N - 1, NULL, &err), err);
    CHECK_INT(sl_engine_attn_stats(r.engine)->steps, 0);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    const sl_attn_stats *st = sl_engine_attn_stats(r.engine);
    CHECK_INT(st->steps, c->n_layers * c->n_heads);
    CHECK_INT(st->k_rows, (long long)c->n_layers * c->n_kv_heads * N);
    CHECK_INT(st->dense_k_rows, st->k_rows);
    CHECK_INT(st->bytes, (long long)c->n_layers * c->n_kv_heads * N * c->head_dim * 2 * 2);
    CHECK_INT(st->dense_bytes, st->bytes);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// Stated errors count into the sums in any order, and unbounded ones only as a count.
static void stats_of_stated_errors(void) {
    static const double errors[] = {0.1f, 0.3f, INFINITY, 1e-7f, 0.2f, 5000, 1024, 0};
    enum { N = sizeof errors / sizeof *errors };
    sl_attn_stats none = {0}, up = {0}, down = {0}, parts[2] = {{0}};
    CHECK(isnan(sl_attn_stats_stated_mean(&none)) && isnan(sl_attn_stats_stated_most(&none)));
    for (int i = 0; i < N; i++) {
        sl_attn_stats_add_stated(&up, errors[i], errors[i] <= 0.2f);
        sl_attn_stats_add_stated(&down, errors[N - 1 - i], errors[N - 1 - i] <= 0.2f);
        sl_attn_stats_add_stated(&parts[i % 2], errors[i], errors[i] <= 0.2f);
    }
    sl_attn_stats_add(&parts[0], &parts[1]);
    CHECK(!memcmp(&up, &down, sizeof up) && !memcmp(&up, &parts[0], sizeof up));
    CHECK(up.stated == N && up.certified == 4 && up.unbounded == 2);
    CHECK_NEAR(sl_attn_stats_stated_mean(&up), (0.1 + 0.3 + 1e-7 + 0.2 + 1024) / 6, 1e-8);
    CHECK(sl_attn_stats_stated_most(&up) == 1024);
    sl_attn_stats_add_stated(&none, INFINITY, 0);
    CHECK(isnan(sl_attn_stats_stated_mean(&none)) && isnan(sl_attn_stats_stated_most(&none)));
}

// ---- the observer ----

typedef struct seen {
    sl_attn_record record;
    sl_attn_report report;
} seen;

typedef struct witness {
    seen *at;
    int n, cap;
} witness;

static void note_record(void *ctx, const sl_attn_record *r) {
    witness *w = ctx;
    if (w->n == w->cap) w->at = realloc(w->at, (w->cap = w->cap ? 2 * w->cap : 1024) * sizeof *w->at);
    w->at[w->n++] = (seen){*r, *r->report};
}

static void observe(model_fixture *r, witness *w, int with_error, const sl_attn_spec *shadows, int n_shadows, int n_seeds) {
    sl_observer o = {note_record, w, .with_error = with_error, .shadows = shadows, .n_shadows = n_shadows, .n_seeds = n_seeds};
    CHECK_OK(sl_engine_observe(r->engine, &o, &err), err);
}

static int same_float(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static int same_report(const sl_attn_report *a, const sl_attn_report *b) {
    return a->k_rows == b->k_rows && a->v_distinct == b->v_distinct && a->features == b->features && a->bytes == b->bytes &&
           a->dense_bytes == b->dense_bytes && a->v_rows == b->v_rows && a->samples == b->samples && a->budget == b->budget &&
           a->ess == b->ess && a->score_bound == b->score_bound && same_float(a->error_bound, b->error_bound) &&
           a->tries == b->tries && a->fallback == b->fallback && same_float(a->kappa, b->kappa) &&
           same_float(a->standard_error, b->standard_error) && same_float(a->largest_draw, b->largest_draw) &&
           same_float(a->pareto_shape, b->pareto_shape) && same_float(a->stated_error, b->stated_error) &&
           a->certified == b->certified && same_float(a->error, b->error) && same_float(a->cosine, b->cosine) &&
           same_float(a->bias, b->bias) && a->tiles == b->tiles;
}

// Shadows with a state, on a ragged batch: checks count, order and figures of the records, and that the step does not change.
static void observe_method(const char *running) {
    const char *const names[] = {running, "dense", "santa-sys:S=16", "quest:tokens=64"};
    enum { SHADOWS = 4, SEEDS = 2, SEED = 7 };
    sl_attn_spec shadows[SHADOWS];
    witness w = {0};
    model_fixture r = fixture_open("models/tiny", running, 1024, FIXTURE_BATCH, 0, 0, SEED);
    const sl_config *c = sl_model_config(r.model);
    size_t n = (size_t)FIXTURE_BATCH * r.n_vocab;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    for (int i = 0; i < SHADOWS; i++) CHECK_OK(sl_attn_parse(names[i], &shadows[i], &err), err);
    model_fixture_run_batch(&r, want);
    sl_attn_stats stats = *sl_engine_attn_stats(r.engine), now;
    sl_engine_reset_stats(r.engine);
    observe(&r, &w, 0, shadows, SHADOWS, SEEDS);
    model_fixture_run_batch(&r, got);
    now = *sl_engine_attn_stats(r.engine);
    CHECK(equal_bits(got, want, (int)n));
    CHECK(!memcmp(&now, &stats, sizeof now)); // shadows are not counted

    int group = FIXTURE_BATCH * c->n_heads, runs = 1 + SHADOWS * SEEDS, noisy = 0, other = 0;
    CHECK_INT(w.n, FIXTURE_STEPS * c->n_layers * runs * group);
    for (int i = 0; i < w.n; i++) {
        int at = i % group, run = i / group % runs, layer = i / group / runs % c->n_layers, which = (run - 1) / SEEDS;
        const sl_attn_record *x = &w.at[i].record;
        const sl_attn_report *y = &w.at[i].report, *first = &w.at[i - run * group].report;
        CHECK_INT(x->layer, layer);
        CHECK_INT(x->head, at % c->n_heads);
        CHECK_INT(x->sequence, 50 + at / c->n_heads);
        CHECK_INT(x->n_kv, x->position + 1);
        CHECK_INT(x->position, model_fixture_lengths[at / c->n_heads] + i / group / runs / c->n_layers);
        CHECK_INT(x->seed, SEED + (run ? (run - 1) % SEEDS : 0));
        CHECK(x->spec->method == (run ? shadows[which] : shadows[0]).method);
        CHECK(y->error >= 0 && fabs(y->cosine) <= 1 + 1e-6 && fabs(y->bias) <= y->error + 1e-6);
        if (run == 1) CHECK(same_report(y, first)); // the running method as its own shadow, with the state of earlier steps
        if (run == 2) other += y->error != first->error;
        if (run && which == 1) { // dense
            CHECK(y->error == 0 && y->bias == 0);
            CHECK_NEAR(y->cosine, 1, 1e-6);
        }
        if (run && which == 2) noisy += y->error > 0;
    }
    CHECK(other > w.n / runs / 2 && noisy > w.n / runs); // another seed gives other errors; sampling has errors
    CHECK_OK(sl_engine_observe(r.engine, NULL, &err), err);
    int before = w.n;
    model_fixture_run_batch(&r, got);
    CHECK(equal_bits(got, want, (int)n));
    CHECK_INT(w.n, before);
    model_fixture_close(&r);
    free(want), free(got), free(w.at);
}

static void observer(void) {
    observe_method("santa-pps:S=24:budget=variance");
    observe_method("santa-pps:epsilon=0.2:certify=layer:on-miss=dense");
}

// In layer 0 of the first step the queries and keys do not depend on the running method. So a shadow of a method reports the
// same as the running method, page extras included.
static void observer_same_state(void) {
    static const char *const names[] = {"quest:tokens=64", "dense-q", "santa-is:S=32", "santa-sys:S=16",
                                        "santa-pps:epsilon=0.2:certify=layer"};
    enum { N = 5 };
    sl_attn_spec shadows[N];
    witness all = {0};
    for (int i = 0; i < N; i++) CHECK_OK(sl_attn_parse(names[i], &shadows[i], &err), err);
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 0, 0, 3);
    int32_t *ids = test_ids(600, r.n_vocab, test_seed);
    int heads = sl_model_config(r.model)->n_heads;
    sl_session *s = model_fixture_session(&r, 4);
    CHECK_OK(sl_prefill(s, ids, 600, NULL, &err), err); // the pool has no page extras yet
    observe(&r, &all, 1, shadows, N, 1);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    sl_session_free(s);
    model_fixture_close(&r);
    for (int i = 0; i < N; i++) {
        witness one = {0};
        r = fixture_open("models/tiny", names[i], 1024, 1, 0, 0, 3);
        observe(&r, &one, 1, NULL, 0, 0);
        s = model_fixture_session(&r, 4);
        CHECK_OK(sl_prefill(s, ids, 600, NULL, &err), err);
        CHECK_OK(sl_decode(&s, 1, ids, &err), err);
        for (int h = 0; h < heads; h++)
            if (!same_report(&one.at[h].report, &all.at[(i + 1) * heads + h].report))
                FAIL("%s: head %d: the shadow's report is another", names[i], h);
        sl_session_free(s);
        model_fixture_close(&r);
        free(one.at);
    }
    free(ids), free(all.at);
}

// Recomputes the observer's figures for santa-sys from the outputs of the public operations of santa-sys and dense.
static sl_attn_spec recomputed_spec;
static float recomputed[8][64][3]; // [layer][head] error, cosine, bias of the last step
static uint32_t recomputed_tiles[8][64];

// The fewest tiles that hold 90% of a head's mass, computed from K: adds the largest remaining tile until the sum reaches 90%.
static uint32_t tiles_of(const sl_attn_decode_args *a, int head) {
    const sl_kv_view *kv = &a->seqs[0].kv;
    int dim = a->geom->head_dim, h = head / (a->geom->n_heads / a->geom->n_kv_heads);
    const float *q = a->seqs[0].q + (size_t)head * dim;
    double mass[16] = {0}, total = 0, held = 0;
    for (int j = 0; j < kv->n_kv; j++) {
        const bf16 *k = sl_kv_row_at(sl_kv_k_run(kv, a->geom->n_kv_heads, dim, j / SL_PAGE, h), dim, j % SL_PAGE).data;
        double dot = 0;
        for (int d = 0; d < dim; d++) dot += (double)q[d] * sl_bf16_to_f32(k[d]);
        mass[j / SL_PAGE] += exp(dot / sqrt(dim));
    }
    for (int t = 0; t < 16; t++) total += mass[t];
    for (uint32_t n = 1;; n++) {
        int most = 0;
        for (int t = 1; t < 16; t++) most = mass[t] > mass[most] ? t : most;
        held += mass[most], mass[most] = 0;
        if (held >= 0.9 * total) return n;
    }
}

static size_t recomputed_workspace(const sl_attn_geom *g, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    size_t a = counting_workspace(g, spec, n_seqs, n_tokens, n_kv),
           b = recomputed_spec.method->cpu->workspace(g, &recomputed_spec, n_seqs, n_tokens, n_kv);
    return a > b ? a : b;
}

static void recomputed_decode(const sl_attn_decode_args *args) {
    static float mu[64 * 256];
    const sl_attn_spec dense = {.method = sl_attn_find("dense")};
    const sl_attn_geom *g = args->geom;
    sl_attn_stats unused = {0};
    sl_attn_query query = args->seqs[0];
    sl_attn_decode_args a = *args;
    CHECK(args->n_seqs == 1 && g->n_layers <= 8 && g->n_heads <= 64 && g->head_dim <= 256);
    query.out = mu;
    a.spec = &dense, a.seqs = &query, a.stats = &unused, a.reports = NULL;
    dense_ops->decode(&a);
    a = *args;
    a.spec = &recomputed_spec;
    recomputed_spec.method->cpu->decode(&a);
    for (int h = 0; h < g->n_heads; h++) {
        const float *x = args->seqs[0].out + h * g->head_dim, *m = mu + h * g->head_dim;
        double gap = 0, mm = 0, xx = 0, xm = 0;
        for (int d = 0; d < g->head_dim; d++) {
            gap += ((double)x[d] - m[d]) * ((double)x[d] - m[d]);
            mm += (double)m[d] * m[d], xx += (double)x[d] * x[d], xm += (double)x[d] * m[d];
        }
        float *to = recomputed[args->layer][h];
        recomputed_tiles[args->layer][h] = tiles_of(args, h);
        to[0] = (float)sqrt(gap / mm), to[1] = (float)(xm / sqrt(xx * mm)), to[2] = (float)(xm / mm - 1);
    }
}

static void observer_error(void) {
    static const sl_attn_ops ops = {.workspace = recomputed_workspace, .decode = recomputed_decode};
    static const sl_attn_method method = {
        .name = "recomputed", .summary = "test", .source = "test", .mean = SL_MEAN_EXACT, .cpu = &ops};
    witness w = {0};
    dense_ops = sl_attn_find("dense")->cpu;
    CHECK_OK(sl_attn_parse("santa-sys:S=16", &recomputed_spec, &err), err);
    model_fixture r = fixture_open("models/tiny", "dense", 1400, 1, 0, 0, 11);
    int32_t *ids = test_ids(1300, r.n_vocab, test_seed);
    set_plan(&r, &(sl_attn_spec){.method = &method});
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill(s, ids, 1300, NULL, &err), err);
    observe(&r, &w, 1, &recomputed_spec, 1, 1);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    double sum = 0;
    int spread = 0;                 // heads whose mass lies in several tiles
    for (int i = 0; i < w.n; i++) { // running method and shadow have the same method and seed
        const float *want = recomputed[w.at[i].record.layer][w.at[i].record.head];
        CHECK_NEAR(w.at[i].report.error, want[0], 1e-6);
        CHECK_NEAR(w.at[i].report.cosine, want[1], 1e-6);
        CHECK_NEAR(w.at[i].report.bias, want[2], 1e-6);
        sum += want[0];
        CHECK_INT(w.at[i].report.tiles, recomputed_tiles[w.at[i].record.layer][w.at[i].record.head]);
        spread += w.at[i].report.tiles > 1;
    }
    CHECK(sum > 0 && spread > 0 && spread < w.n);
    observe(&r, &w, 0, NULL, 0, 0); // an observer without with_error gets none
    w.n = 0;
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(w.n, sl_model_config(r.model)->n_layers * sl_model_config(r.model)->n_heads);
    for (int i = 0; i < w.n; i++) CHECK(isnan(w.at[i].report.error) && isnan(w.at[i].report.cosine) && !w.at[i].report.tiles);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(w.at);
}

// Truncating clears the states of shadows. Each seed has a separate state. The running method's state stays.
static void observer_state(void) {
    static const sl_attn_ops ops = {.workspace = counting_workspace, .decode = counting_decode, .state = counting_state};
    static const sl_attn_method counting = {.name = "counting",
                                            .summary = "test",
                                            .source = "test",
                                            .mean = SL_MEAN_EXACT,
                                            .cpu = &ops},
                                none = {.name = "none", .summary = "test", .source = "test"};
    sl_attn_spec twice[2] = {{.method = &counting}, {.method = &counting}};
    witness w = {0};
    dense_ops = sl_attn_find("dense")->cpu;
    model_fixture r = fixture_open("models/tiny", "dense", 1024, 1, 0, 0, 0);
    int32_t *ids = test_ids(300, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 0);
    observe(&r, &w, 0, twice, 1, 3);
    CHECK_OK(sl_prefill(s, ids, 254, NULL, &err), err);
    for (int i = 0; i < 4; i++) CHECK_OK(sl_decode(&s, 1, ids + i, &err), err);
    CHECK_INT(last_count, 4);
    CHECK_OK(sl_session_truncate(s, 255, &err), err);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(last_count, 1);
    observe(&r, &w, 0, twice, 2, 50); // a larger observer, set after the last step, before the cut
    CHECK_OK(sl_session_truncate(s, 200, &err), err);
    CHECK_OK(sl_decode(&s, 1, ids, &err), err);
    CHECK_INT(last_count, 1);
    sl_attn_spec bad = {.method = &none};
    sl_observer wrong = {note_record, &w, .shadows = &bad, .n_shadows = 1, .n_seeds = 1};
    CHECK_ERR(sl_engine_observe(r.engine, &wrong, &err), err, SL_ERR_UNSUPPORTED, "none");
    CHECK_OK(sl_decode(&s, 1, ids, &err), err); // the previous observer continues
    CHECK_INT(last_count, 2);
    CHECK_OK(sl_engine_observe(r.engine, NULL, &err), err);
    set_plan(&r, &twice[0]);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sl_decode(&s, 1, ids, &err), err);
        CHECK_INT(last_count, i + 1); // observing in between does not clear it
        observe(&r, &w, 1, NULL, 0, 0);
    }
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(w.at);
}

static const test_case cases[] = {
    {"chunked-prefill-bits", 0, chunked_prefill},
    {"batch-of-8-bits", 0, batch_invariance},
    {"seeds-and-threads", 0, seeds_and_threads},
    {"decode-agrees-with-prefill", 0, decode_agrees_with_prefill},
    {"prefix-reuse-bits", 0, prefix_reuse},
    {"context-overflow", 0, context_overflow},
    {"method-state", 0, method_state},
    {"state-after-a-parameter-change", 0, state_after_a_parameter_change},
    {"state-after-a-prefill", 0, state_after_a_prefill},
    {"seed-after-a-parameter-change", 0, seed_after_a_parameter_change},
    {"stats-count-rows", 0, stats_count_rows},
    {"stats-of-stated-errors", 0, stats_of_stated_errors},
    {"observer", 0, observer},
    {"observer-same-state", 0, observer_same_state},
    {"observer-error", 0, observer_error},
    {"observer-state", 0, observer_state},
    {0},
};
const test_suite suite_model = {"model", cases};
