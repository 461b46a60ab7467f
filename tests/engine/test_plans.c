// tests/engine/test_plans.c - streams with attention methods of their own in one batch, and a pool of fewer pages than the
// sessions want.
#include "engine/engine_internal.h"
#include "engine/stream.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static sl_error err;
static const char *device;

enum { N_PROMPT = 300, STREAMS = 6, STEPS = 5 };

static const char *const methods[STREAMS] = {NULL, "santa:S=24", "topk:k=8", "santa:S=24", NULL, "quest:tokens=32"};

typedef struct lane {
    sl_session *session;
    sl_stream *stream;
    float *logits[STEPS + 1]; // after each step of the stream alone
    int32_t ids[STEPS];       // that it samples alone
    sl_attn_stats stats;      // of all steps
} lane;

static float *copy_of(const float *logits, int n) {
    return memcpy(malloc((size_t)n * sizeof *logits), logits, (size_t)n * sizeof *logits);
}

static lane open_lane(model_fixture *r, int i, const char *attn) {
    lane l = {.session = model_fixture_session(r, 70 + (uint32_t)i)};
    sl_generation o = sl_generation_default();
    int32_t *ids = test_ids(N_PROMPT + i, r->n_vocab, test_seed + (uint64_t)i);
    o.sampling = sl_sampling_default(), o.sampling.seed = 5, o.attn = attn;
    CHECK_OK(sl_prefill(l.session, ids, N_PROMPT + i, NULL, &err), err);
    CHECK_OK(sl_stream_new(l.session, &o, &l.stream, &err), err);
    CHECK_OK(sl_stream_begin(l.stream, 0, &err), err);
    free(ids);
    return l;
}

static void close_lane(lane *l) {
    for (int j = 0; j <= STEPS; j++) free(l->logits[j]);
    sl_stream_free(l->stream), sl_session_free(l->session);
}

// What lane i gives in an engine of its own, whose plan is the method.
static lane alone(int i) {
    model_fixture r = model_fixture_load("models/tiny", methods[i] ? methods[i] : "dense",
                                         (sl_engine_options){.device = device, .n_ctx = 512, .n_threads = 1, .seed = 3});
    lane l = open_lane(&r, i, NULL), kept = {0};
    int n;
    for (int j = 0; j <= STEPS; j++) {
        kept.logits[j] = copy_of(sl_session_logits(l.session, &err), r.n_vocab);
        if (j == STEPS) break;
        CHECK_OK(sl_streams_step(&l.stream, 1, &err), err);
        kept.ids[j] = sl_stream_ids(l.stream, &n)[j];
    }
    if (sl_stream_attn_stats(l.stream)) kept.stats = *sl_stream_attn_stats(l.stream);
    close_lane(&l);
    model_fixture_close(&r);
    return kept;
}

// A stream counts what it counts alone, and the engine counts all streams.
static void check_stats(const model_fixture *r, const lane *lanes) {
    const sl_attn_stats *all = sl_engine_attn_stats(r->engine), *of;
    sl_attn_stats sum = {0};
    for (int i = 0; i < STREAMS; i++) {
        sl_attention_work work;
        int rc = sl_stream_attention_work(lanes[i].stream, &work, &err);
        of = sl_stream_attn_stats(lanes[i].stream);
        CHECK_INT(rc, of ? 0 : SL_ERR_UNSUPPORTED);
        if (!of) return;
        CHECK(work.bytes == of->bytes && work.dense_bytes == of->dense_bytes && work.heads == of->steps);
        if (i != 0 && i != 4 && memcmp(of, &lanes[i].stats, sizeof *of)) FAIL("stream %d: other counts than alone", i);
        sl_attn_stats_add(&sum, of);
    }
    double a, b;
    for (int i = 0; sl_attn_counter(all, i, &a); i++) CHECK_STR(sl_attn_counter(&sum, i, &b), sl_attn_counter(all, i, &a));
    for (int i = 0; sl_attn_counter(all, i, &a) && sl_attn_counter(&sum, i, &b); i++) CHECK_NEAR(a, b, 1e-9);
    CHECK(sum.v_rows < sum.dense_v_rows && sum.v_rows > 0 && sum.features > 0);
}

// Streams with several methods step in one batch, and each has the bits that it has alone.
static void several_plans(void) {
    model_fixture r = model_fixture_load(
        "models/tiny", "dense",
        (sl_engine_options){.device = device, .n_ctx = 512, .n_sequences = STREAMS, .n_threads = 2, .seed = 3});
    lane lanes[STREAMS];
    sl_stream *streams[STREAMS];
    size_t bytes = (size_t)r.n_vocab * sizeof(float);
    for (int i = 0; i < STREAMS; i++) {
        lane want = alone(i);
        lanes[i] = open_lane(&r, i, methods[i]);
        memcpy(lanes[i].logits, want.logits, sizeof want.logits), memcpy(lanes[i].ids, want.ids, sizeof want.ids);
        lanes[i].stats = want.stats;
        streams[i] = lanes[i].stream;
    }
    CHECK(memcmp(lanes[0].logits[STEPS], lanes[1].logits[STEPS], bytes));
    CHECK_INT(r.engine->plans.n_made, 4); // the engine's, and one for each method
    CHECK(lanes[1].session->own_plan == lanes[3].session->own_plan && lanes[1].session->own_plan->n_users == 4);
    for (int j = 0; j < STEPS; j++) {
        if (j == 2) CHECK_OK(sl_engine_set_attention(r.engine, "topk:k=8", &err), err); // becomes the plan of lanes 0 and 4
        if (j == 3) CHECK_OK(sl_engine_set_attention(r.engine, "dense", &err), err);
        int first = j == 2, n = j == 2 ? 3 : STREAMS; // in step 2 only lanes with a method of their own
        CHECK_OK(sl_streams_step(streams + first, n, &err), err);
        if (j == 2) CHECK_OK(sl_streams_step(streams + 5, 1, &err), err);
        for (int i = 0; i < STREAMS; i++) {
            int n_ids, at = i == 0 || i == 4 ? j - (j > 2) : j;
            if (j == 2 && (i == 0 || i == 4)) continue;
            const int32_t *ids = sl_stream_ids(streams[i], &n_ids);
            CHECK_INT(n_ids, at + 1);
            CHECK_INT(ids[at], lanes[i].ids[at]);
            if (memcmp(sl_session_logits(lanes[i].session, &err), lanes[i].logits[at + 1], bytes))
                FAIL("stream %d, step %d: other logits than alone", i, j);
        }
    }
    check_stats(&r, lanes);
    for (int i = 0; i < STREAMS; i++) close_lane(&lanes[i]);
    CHECK(r.engine->plans.first == r.engine->plans.of_engine && !r.engine->plans.of_engine->next &&
          r.engine->plans.of_engine->n_users == 1);
    model_fixture_close(&r);
}

static void several_on_cpu(void) {
    device = "cpu";
    several_plans();
}

static void several_on_gpu(void) {
    device = "cuda";
    several_plans();
}

// Methods that a stream refuses, its next generation with another method, and a fork.
static void plan_rules(void) {
    model_fixture r =
        model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 512, .n_sequences = 2, .n_threads = 1});
    lane l = open_lane(&r, 0, "santa:S=24");
    sl_generation o = sl_generation_default();
    sl_session *fork;
    CHECK_OK(sl_stream_end(l.stream, &err), err);
    o.attn = "santas";
    CHECK_ERR(sl_stream_set_options(l.stream, &o, &err), err, SL_ERR_ARG, "santas");
    o.attn = "sample";
    CHECK_ERR(sl_stream_set_options(l.stream, &o, &err), err, SL_ERR_ARG, "a method for prefill");
    CHECK_OK(sl_stream_begin(l.stream, 0, &err), err);
    CHECK_STR(sl_session_plan(l.session)->methods.layer[0].method->name, "santa");
    CHECK_OK(sl_session_fork(l.session, 100, 9, &fork, &err), err);
    CHECK(sl_session_plan(fork) == sl_session_plan(l.session));
    CHECK_OK(sl_stream_end(l.stream, &err), err);
    CHECK(sl_session_plan(l.session) == r.engine->plans.of_engine); // a session without a stream
    o.attn = NULL;
    CHECK_OK(sl_stream_set_options(l.stream, &o, &err), err);
    CHECK_OK(sl_stream_begin(l.stream, 0, &err), err);
    CHECK(sl_session_plan(l.session) == r.engine->plans.of_engine);
    sl_session_free(fork);
    close_lane(&l);
    model_fixture_close(&r);
}

// The memory of a step on the CPU serves the layer that needs most, wherever it is.
static void workspace(void) {
    static const char *const order[][2] = {
        {"saap-is:S=16", "dense"}, {"dense", "santa-is:S=2048"}, {"santa-is:S=2048", "dense"}};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        model_fixture r = model_fixture_load(
            "models/tiny", "dense", (sl_engine_options){.n_ctx = 8192, .n_sequences = 3, .prefill_chunk = 1, .n_threads = 1});
        const sl_engine *e = r.engine;
        sl_attn_spec spec[2];
        sl_attn_plan plan;
        for (int k = 0; k < 2; k++) CHECK_OK(sl_attn_parse(order[i][k], &spec[k], &err), err);
        CHECK_OK(sl_attn_plan_init(&plan, e->geom.n_layers, &spec[1], &err), err);
        plan.layer[0] = spec[0];
        CHECK_OK(sl_engine_set_plan(r.engine, &plan, &err), err);
        for (int k = 0; k < 2; k++)
            CHECK(e->device.pass.workspace.size >= spec[k].method->cpu->workspace(&e->geom, &spec[k], 3, 1, 8192));
        sl_attn_plan_free(&plan);
        model_fixture_close(&r);
    }
}

static void drop_record(void *ctx, const sl_attn_record *record) {
    (void)ctx, (void)record;
}

// An observer changes no statistics of a stream.
static void observed(void) {
    sl_attn_stats stats[2];
    for (int i = 0; i < 2; i++) {
        model_fixture r = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 512, .n_threads = 1});
        sl_attn_spec shadow;
        CHECK_OK(sl_attn_parse("topk:k=8", &shadow, &err), err);
        const sl_observer o = {.fn = drop_record, .with_error = 1, .shadows = &shadow, .n_shadows = 1, .n_seeds = 1};
        if (i) CHECK_OK(sl_engine_observe(r.engine, &o, &err), err);
        lane l = open_lane(&r, 0, "santa:S=24");
        for (int j = 0; j < STEPS; j++) CHECK_OK(sl_streams_step(&l.stream, 1, &err), err);
        stats[i] = *sl_stream_attn_stats(l.stream);
        close_lane(&l);
        model_fixture_close(&r);
    }
    CHECK(stats[0].v_rows > 0 && !memcmp(&stats[0], &stats[1], sizeof *stats));
}

// ---- a pool of few pages ----

static int free_pages(const model_fixture *r) {
    return r->engine->device.pool.n_free;
}

// More sessions than the pool holds. A prefill and a step without a free page change nothing, and go on when there is one.
static void few_pages(void) {
    model_fixture r = model_fixture_load("models/tiny", "dense",
                                         (sl_engine_options){.n_sequences = 4, .kv_tokens = 3 * SL_PAGE, .n_threads = 1});
    sl_session *s[4];
    int32_t *ids = test_ids(2 * SL_PAGE, r.n_vocab, test_seed), next[4] = {5, 6, 7, 8};
    CHECK_INT(sl_engine_n_ctx(r.engine), 3 * SL_PAGE);
    CHECK_INT(free_pages(&r), 3);
    for (int i = 0; i < 4; i++) s[i] = model_fixture_session(&r, (uint32_t)i);
    for (int i = 0; i < 3; i++) CHECK_OK(sl_prefill(s[i], ids, SL_PAGE - (i == 0), NULL, &err), err);
    CHECK_ERR(sl_prefill(s[3], ids, 2, NULL, &err), err, SL_ERR_MEMORY, "KV cache is full: 1 more pages of 256 tokens needed");
    CHECK_INT(sl_session_n_tokens(s[3]), 0);
    sl_session_free(s[2]);
    float *before = copy_of(sl_session_logits(s[0], &err), r.n_vocab);
    CHECK_OK(sl_prefill(s[3], ids, SL_PAGE, NULL, &err), err); // takes the page of s[2]
    sl_session *batch[] = {s[0], s[1], s[3]};
    CHECK_ERR(sl_decode(batch, 3, next, &err), err, SL_ERR_MEMORY, "KV cache is full");
    CHECK(sl_session_n_tokens(s[0]) == SL_PAGE - 1 && sl_session_n_tokens(s[1]) == SL_PAGE && free_pages(&r) == 0);
    CHECK(!memcmp(before, sl_session_logits(s[0], &err), (size_t)r.n_vocab * sizeof *before));
    sl_session_free(s[3]); // one page: enough for s[1], and none for the second of two
    CHECK_OK(sl_session_fork(s[1], 0, 9, &s[3], &err), err);
    batch[2] = s[3];
    CHECK_ERR(sl_decode(batch, 3, next, &err), err, SL_ERR_MEMORY, "KV cache is full");
    CHECK(sl_session_n_tokens(s[1]) == SL_PAGE && s[1]->kv.n_pages == 1 && free_pages(&r) == 1);
    CHECK_OK(sl_decode(batch, 2, next, &err), err);
    CHECK(sl_session_n_tokens(s[0]) == SL_PAGE && sl_session_n_tokens(s[1]) == SL_PAGE + 1 && free_pages(&r) == 0);
    sl_session_free(s[0]), sl_session_free(s[1]), sl_session_free(s[3]);
    CHECK_INT(free_pages(&r), 3);
    free(before), free(ids);
    model_fixture_close(&r);
}

static void page_options(void) {
    model_fixture r = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 512, .n_threads = 1});
    static const struct {
        sl_engine_options o;
        int rc, n_ctx, n_pages; // n_ctx: 0: refused
        const char *message;
    } rows[] = {
        {{.kv_tokens = -1}, SL_ERR_ARG, 0, 0, "kv_tokens -1: expected 0, or at least n_ctx (0)"},
        {{.n_ctx = 600, .kv_tokens = 599}, SL_ERR_ARG, 0, 0, "kv_tokens 599: expected 0, or at least n_ctx (600)"},
        {{.kv_tokens = 2147483647}, SL_ERR_MEMORY, 0, 0, "kv_tokens 2147483647 does not fit into memory"},
        {{.n_ctx = 600, .kv_tokens = 600, .n_sequences = 9}, 0, 600, 3, NULL},
        {{.n_ctx = 600, .n_sequences = 9}, 0, 600, 27, NULL},
        {{.kv_tokens = 1025, .n_sequences = 2}, 0, 1025, 5, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_engine *e;
        int rc = sl_engine_new(r.model, &rows[i].o, &e, &err);
        CHECK_INT(rc, rows[i].rc);
        if (rc && !strstr(err.message, rows[i].message)) FAIL("\"%s\", expected \"%s\"", err.message, rows[i].message);
        if (rc) continue;
        CHECK_INT(sl_engine_n_ctx(e), rows[i].n_ctx);
        CHECK_INT(e->device.pool.n_pages, rows[i].n_pages);
        sl_engine_free(e);
    }
    model_fixture_close(&r);
}

static const test_case cases[] = {{"several", 0, several_on_cpu},    {"several-on-gpu", NEEDS_GPU, several_on_gpu},
                                  {"rules", 0, plan_rules},          {"observed", 0, observed},
                                  {"workspace", 0, workspace},       {"few-pages", 0, few_pages},
                                  {"page-options", 0, page_options}, {0}};
const test_suite suite_plans = {"plans", cases};
