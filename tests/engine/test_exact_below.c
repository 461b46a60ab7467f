// tests/engine/test_exact_below.c - sequences with few rows attend to every row (sl_attn_exact_below): the rule, the calls of
// methods, and decode steps of engines, whose other sequences must keep their bits.
#include "engine/engine_internal.h"
#include "tests/support/models.h"
#include "tests/support/reference.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// ---- the rule ----

static int below(const char *attn, int setting, int on_gpu) {
    sl_attn_spec spec;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    return sl_attn_exact_below(&spec, setting, on_gpu);
}

// The least number for each method: the next power of 2 above ratio x rows, or above `least`, or above `stated`.
static void rule(void) {
    for (int m = 0; sl_attn_methods[m]; m++)
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            const sl_attn_crossover *c = &sl_attn_methods[m]->crossover[on_gpu];
            sl_attn_spec spec;
            CHECK_OK(sl_attn_parse(sl_attn_methods[m]->name, &spec, &err), err);
            int n = sl_attn_exact_below(&spec, SL_EXACT_AUTO, on_gpu), has = c->ratio || c->least || c->stated;
            CHECK((n & (n - 1)) == 0 && (n > 0) == has);
            CHECK_INT(sl_attn_exact_below(&spec, 0, on_gpu), 0);
            CHECK_INT(sl_attn_exact_below(&spec, 777, on_gpu), has ? 777 : 0);
            CHECK(!has || n >= (sl_attn_states_error(&spec) ? c->stated : c->least));
        }
    CHECK_INT(below("dense", SL_EXACT_AUTO, 0) + below("dense-q", SL_EXACT_AUTO, 1), 0);
    const sl_attn_crossover *c = sl_method_dense.crossover;
    CHECK(c[0].ratio == 0 && c[1].ratio == 0);
    // By rows: S = 128 and its neighbours, on both sides of a power of 2.
    int at_128 = below("santa-sys:S=128", SL_EXACT_AUTO, 0);
    CHECK_INT(below("santa-sys:S=127", SL_EXACT_AUTO, 0), at_128);
    CHECK_INT(below("santa-sys:S=129", SL_EXACT_AUTO, 0), 2 * at_128);
    CHECK_INT(below("santa-sys:S=256", SL_EXACT_AUTO, 0), 2 * at_128);
    CHECK_INT(below("santa-sys:S=1", SL_EXACT_AUTO, 0), below("santa-sys:S=2", SL_EXACT_AUTO, 0)); // `least` holds
    CHECK_INT(below("saap:sink=0:window=4096", SL_EXACT_AUTO, 1), below("saap:sink=96:window=4000", SL_EXACT_AUTO, 1));
    CHECK_INT(below("streaming", SL_EXACT_AUTO, 0) + below("streaming", SL_EXACT_AUTO, 1), 0); // reads a row as fast as dense
    // With one thread block for a head: with S^2 on a GPU.
    CHECK_INT(below("santa-pps:S=1024", SL_EXACT_AUTO, 1), 4 * below("santa-pps:S=512", SL_EXACT_AUTO, 1));
    CHECK_INT(below("santa-pps:S=2048", SL_EXACT_AUTO, 1), 524288);
    CHECK_INT(below("santa-pps:S=1024", SL_EXACT_AUTO, 0), 2 * below("santa-pps:S=512", SL_EXACT_AUTO, 0));
    CHECK_INT(below("santa-is:S=2048", SL_EXACT_AUTO, 1), 65536);
    CHECK_INT(below("santa-sys:S=2048", SL_EXACT_AUTO, 1), 2 * below("santa-sys:S=1024", SL_EXACT_AUTO, 1));
    // A stated error: S does not count.
    CHECK_INT(below("santa-pps:epsilon=0.2", SL_EXACT_AUTO, 0), below("santa-pps:epsilon=0.2:S=65536", SL_EXACT_AUTO, 0));
    // Two methods: the larger number, each by its own rows.
    CHECK_INT(below("bernoulli-group:B=4+santa-sys:S=128", SL_EXACT_AUTO, 0), at_128);
    CHECK_INT(below("streaming:window=2048+santa-sys:S=128", SL_EXACT_AUTO, 0), at_128);
    CHECK_INT(below("quest:tokens=2048+santa-sys:S=128", SL_EXACT_AUTO, 0), below("quest:tokens=2048", SL_EXACT_AUTO, 0));
    CHECK_INT(below("quest:tokens=2048:sink=16", SL_EXACT_AUTO, 0), below("quest:tokens=2048", SL_EXACT_AUTO, 0));
}

// The number in column i of a row of a table, after its name; 0: the cell is blank.
static int cell(const char *row, int i) {
    for (i += 2; i > 0; i--) row = strchr(row, '|') + 1;
    return atoi(row);
}

// The table of docs/methods.md has the numbers of every method that has some.
static void table(void) {
    static char page[1 << 17];
    FILE *f = fopen("docs/methods.md", "r");
    CHECK(f);
    page[fread(page, 1, sizeof page - 1, f)] = 0;
    fclose(f);
    const char *start = strstr(page, "| method | CPU: ratio |");
    CHECK(start);
    for (int m = 0; sl_attn_methods[m]; m++) {
        const sl_attn_crossover *c = sl_attn_methods[m]->crossover, none = {0};
        char name[64];
        if (!memcmp(&c[0], &none, sizeof none) && !memcmp(&c[1], &none, sizeof none)) continue;
        snprintf(name, sizeof name, "`%s`", sl_attn_methods[m]->name);
        const char *row = strstr(start, name);
        if (!row || row > strstr(start, "\n\n")) FAIL("the table of docs/methods.md lacks %s", name);
        while (*row != '\n') row--;
        const int numbers[] = {c[0].ratio, c[0].least, c[0].stated, c[1].ratio, c[1].least, c[1].stated};
        for (int i = 0; i < 6; i++)
            if (cell(row, i) != numbers[i])
                FAIL("docs/methods.md, %s, column %d: %d, expected %d", name, i, cell(row, i), numbers[i]);
    }
}

// ---- calls ----

enum { N_SEQS = 6, HEADS = 8, KV_HEADS = 2, DIM = 64, BELOW = 300 };
static const int lengths[N_SEQS] = {BELOW, 17, BELOW - 1, 1, 700, BELOW + 1};

static void decode(ref_cache *c, const char *attn, int exact_below, int first, int n, float *out, sl_attn_stats *stats) {
    c->exact_below = exact_below;
    *stats = ref_decode(c, attn, first, n, 11, 3);
    memcpy(out, c->out, (size_t)N_SEQS * HEADS * DIM * sizeof *out);
}

static void check_reports(const ref_cache *c, const sl_attn_spec *spec) {
    for (int i = 0; i < N_SEQS * HEADS; i++) {
        const sl_attn_report *r = &c->reports[i];
        int exact = lengths[i / HEADS] < BELOW;
        CHECK_INT(r->exact, exact);
        if (!exact) continue;
        CHECK(r->v_rows == (uint32_t)lengths[i / HEADS] && r->k_rows == r->v_rows && r->v_distinct == r->v_rows);
        CHECK(r->bytes == r->dense_bytes && r->samples == 0 && r->fallback == 0);
        CHECK(sl_attn_states_error(spec) ? r->error_bound == 0 : isnan(r->error_bound));
        CHECK(sl_attn_certifies_layer(spec) ? r->stated_error == 0 && r->certified == 1 : isnan(r->stated_error));
    }
}

// Below the number, a sequence has the bits of dense attention; from the number on, it has the bits that the method gives
// without it. Both hold alone and in the batch.
static void call(void) {
    static const char *const methods[] = {"santa:S=16",
                                          "santa-strat:S=16",
                                          "santa-prop:S=16",
                                          "santa-pps:S=16",
                                          "santa-pps:epsilon=0.2",
                                          "santa-pps:epsilon=0.2:certify=head",
                                          "santa-is:S=16",
                                          "santa-is:proposal=int8:epsilon=0.3",
                                          "random:S=16",
                                          "topk:k=16",
                                          "streaming:sink=4:window=60",
                                          "quest:tokens=32",
                                          "magicpig",
                                          "bernoulli:B=4",
                                          "bernoulli-group:B=4+santa-prop:S=16",
                                          "vattention",
                                          "dense-q"};
    size_t row = HEADS * DIM, bytes = row * sizeof(float);
    float *dense = malloc(N_SEQS * bytes), *drawn = malloc(N_SEQS * bytes), *mixed = malloc(N_SEQS * bytes),
          *alone = malloc(N_SEQS * bytes);
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, N_SEQS, lengths, 1.5, test_seed);
    sl_attn_stats stats;
    decode(&c, "dense", 0, 0, N_SEQS, dense, &stats);
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        sl_attn_stats plain;
        sl_attn_spec spec;
        int differs = 0;
        CHECK_OK(sl_attn_parse(methods[m], &spec, &err), err);
        decode(&c, methods[m], 0, 0, N_SEQS, drawn, &plain);
        CHECK_INT(plain.exact_heads, 0);
        decode(&c, methods[m], BELOW, 0, N_SEQS, mixed, &stats);
        check_reports(&c, &spec);
        CHECK_INT(stats.exact_heads, 3 * HEADS);
        CHECK_INT(stats.steps, N_SEQS * HEADS);
        CHECK_INT(stats.dense_v_rows, plain.dense_v_rows);
        if (sl_attn_certifies_layer(&spec)) CHECK(stats.stated == N_SEQS && stats.certified >= 3);
        for (int s = 0; s < N_SEQS; s++) {
            const float *want = (lengths[s] < BELOW ? dense : drawn) + s * row;
            if (memcmp(mixed + s * row, want, bytes)) FAIL("%s, %d rows: other bits in the batch", methods[m], lengths[s]);
            differs |= memcmp(dense + s * row, drawn + s * row, bytes) != 0;
            decode(&c, methods[m], BELOW, s, 1, alone, &stats);
            if (memcmp(alone + s * row, want, bytes)) FAIL("%s, %d rows: other bits alone", methods[m], lengths[s]);
            CHECK_INT(stats.exact_heads, lengths[s] < BELOW ? HEADS : 0);
        }
        CHECK(differs);
    }
    free(dense), free(drawn), free(mixed), free(alone);
    ref_cache_free(&c);
}

// ---- engines ----

enum { LANES = 5, STEPS = 6, FROM = 296, N_CTX = 1024 };
static const char *device;

// Tokens before the first step. During the steps, lane 0 reaches FROM + 4 rows, and lane 4 a new page.
static const int tokens[LANES] = {FROM, 40, 330, 150, 509};

typedef struct run {
    model_fixture r;
    sl_session *sessions[LANES];
    float *logits[LANES][STEPS];
} run;

static void set_methods(run *x, const char *attn, const char *of_last) {
    sl_attn_plan plan;
    sl_attn_spec spec, last;
    int n = x->r.engine->geom.n_layers;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_parse(of_last, &last, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, n, &spec, &err), err);
    plan.layer[n - 1] = last;
    CHECK_OK(sl_engine_set_plan(x->r.engine, &plan, &err), err);
    sl_attn_plan_free(&plan);
}

// Steps of the lanes [first, first + n) as one batch. attn is the method of all layers but the last.
static run run_lanes(const char *attn, const char *of_last, int exact_below, int first, int n) {
    run x = {.r = model_fixture_load("models/tiny", "dense",
                                     (sl_engine_options){.device = device,
                                                         .n_ctx = N_CTX,
                                                         .n_sequences = LANES,
                                                         .exact_below = exact_below,
                                                         .n_threads = 1,
                                                         .seed = 3})};
    int32_t next[LANES];
    set_methods(&x, attn, of_last);
    for (int i = first; i < first + n; i++) {
        int32_t *ids = test_ids(tokens[i], x.r.n_vocab, test_seed + (uint64_t)i);
        x.sessions[i] = model_fixture_session(&x.r, 70 + (uint32_t)i);
        CHECK_OK(sl_prefill(x.sessions[i], ids, tokens[i], NULL, &err), err);
        free(ids);
    }
    for (int j = 0; j < STEPS; j++) {
        for (int i = 0; i < n; i++) next[i] = 20 + 7 * j + first + i;
        CHECK_OK(sl_decode(x.sessions + first, n, next, &err), err);
        for (int i = first; i < first + n; i++) {
            size_t bytes = (size_t)x.r.n_vocab * sizeof(float);
            x.logits[i][j] = memcpy(malloc(bytes), sl_session_logits(x.sessions[i], &err), bytes);
        }
    }
    return x;
}

static void end_run(run *x) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < STEPS; j++) free(x->logits[i][j]);
    for (int i = 0; i < LANES; i++)
        if (x->sessions[i]) sl_session_free(x->sessions[i]);
    model_fixture_close(&x->r);
}

static int same(const run *a, const run *b, int lane, int step) {
    return !memcmp(a->logits[lane][step], b->logits[lane][step], (size_t)a->r.n_vocab * sizeof(float));
}

// Rows of a step: those before, and its token.
static int rows_of(int lane, int step) {
    return tokens[lane] + step + 1;
}

// Query heads that attend exactly in all steps of the lanes.
static uint64_t exact_heads(const run *x, const int *numbers, int first, int n) {
    uint64_t heads = 0;
    for (int layer = 0; layer < x->r.engine->geom.n_layers; layer++)
        for (int i = first; i < first + n; i++)
            for (int j = 0; j < STEPS; j++) heads += rows_of(i, j) < numbers[layer];
    return heads * x->r.engine->geom.n_heads;
}

// A batch whose lanes are below and above the number: lanes below have the bits of dense attention, the others those of an
// engine without the number, and every lane has the bits that it has alone.
static void try_engine(const char *attn, const char *of_last, int setting) {
    run dense = run_lanes("dense", "dense", 0, 0, LANES), drawn = run_lanes(attn, of_last, 0, 0, LANES),
        mixed = run_lanes(attn, of_last, setting, 0, LANES), again = run_lanes(attn, of_last, setting, 0, LANES);
    const sl_plan *plan = mixed.r.engine->plans.of_engine;
    int n_layers = mixed.r.engine->geom.n_layers, differs = 0, least = plan->splits[0], most = plan->splits[plan->n_splits - 1];
    CHECK(plan->n_splits > 0 && n_layers > 1);
    sl_attn_stats stats = *sl_engine_attn_stats(mixed.r.engine);
    CHECK(stats.exact_heads == exact_heads(&mixed, plan->exact_below, 0, LANES));
    CHECK(stats.exact_heads > 0 && stats.exact_heads < stats.steps);
    CHECK(sl_engine_attention_work(mixed.r.engine).exact_heads == stats.exact_heads);
    CHECK(sl_engine_attn_stats(drawn.r.engine)->exact_heads == 0);
    for (int i = 0; i < LANES; i++) {
        run alone = run_lanes(attn, of_last, setting, i, 1);
        CHECK(sl_engine_attn_stats(alone.r.engine)->exact_heads == exact_heads(&alone, plan->exact_below, i, 1));
        for (int j = 0; j < STEPS; j++) {
            if (!same(&mixed, &again, i, j)) FAIL("%s, lane %d, step %d: other bits in a second run", attn, i, j);
            if (!same(&mixed, &alone, i, j)) FAIL("%s, lane %d, step %d: other bits alone", attn, i, j);
            if (rows_of(i, j) < least && !same(&mixed, &dense, i, j))
                FAIL("%s, lane %d, step %d of %d rows: not the bits of dense attention", attn, i, j, rows_of(i, j));
            if (rows_of(i, 0) >= most && !same(&mixed, &drawn, i, j))
                FAIL("%s, lane %d, step %d of %d rows: not the bits of the method", attn, i, j, rows_of(i, j));
            differs |= !same(&dense, &drawn, i, j);
        }
        end_run(&alone);
    }
    CHECK(differs);
    CHECK(same(&mixed, &dense, 0, 2) && !same(&mixed, &dense, 0, 3)); // lane 0 reaches the number in step 3
    end_run(&dense), end_run(&drawn), end_run(&mixed), end_run(&again);
}

static void engines(void) {
    static const char *const methods[] = {"santa-sys:S=24", "santa-pps:S=24", "santa-pps:epsilon=0.3", "santa-is:S=24",
                                          "quest:tokens=32"};
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) try_engine(methods[m], methods[m], FROM + 4);
    try_engine("santa-sys:S=24", "dense", FROM + 4); // a dense layer never counts
}

// Layers with numbers of rows of their own, by S.
static void layers(void) {
    const char *attn = "santa-sys:S=16", *of_last = "santa:S=24";
    run x = run_lanes(attn, of_last, SL_EXACT_AUTO, 0, LANES), alone = run_lanes(attn, of_last, SL_EXACT_AUTO, 4, 1);
    const sl_plan *plan = x.r.engine->plans.of_engine;
    int n_layers = x.r.engine->geom.n_layers, on_gpu = x.r.engine->device.backend->is_device;
    for (int i = 0; i < n_layers; i++)
        CHECK_INT(plan->exact_below[i], below(i + 1 < n_layers ? attn : of_last, SL_EXACT_AUTO, on_gpu));
    CHECK(sl_engine_attn_stats(x.r.engine)->exact_heads == exact_heads(&x, plan->exact_below, 0, LANES));
    for (int j = 0; j < STEPS; j++) CHECK(same(&x, &alone, 4, j));
    end_run(&x), end_run(&alone);
}

static void engines_on_cpu(void) {
    device = "cpu";
    engines();
    layers();
}

static void engines_on_gpu(void) {
    device = "cuda";
    engines();
    layers();
}

// An observer reports what the step did, and shadows draw in every step.
static int n_exact, n_drawn, n_shadow_exact;
static void count_record(void *ctx, const sl_attn_record *r) {
    (void)ctx;
    int is_shadow = !strcmp(r->spec->method->name, "topk");
    if (is_shadow) {
        n_shadow_exact += (int)r->report->exact;
        return;
    }
    n_exact += (int)r->report->exact, n_drawn += !r->report->exact;
    CHECK_INT(r->report->exact, r->n_kv < FROM + 4);
    if (r->report->exact) CHECK(r->report->v_rows == (uint32_t)r->n_kv && r->report->error < 0.01f);
}

static void observe(void) {
    model_fixture r = model_fixture_load(
        "models/tiny", "santa-sys:S=24",
        (sl_engine_options){.device = device, .n_ctx = 512, .exact_below = FROM + 4, .n_threads = 1, .seed = 3});
    sl_attn_spec shadow;
    CHECK_OK(sl_attn_parse("topk:k=8", &shadow, &err), err);
    const sl_observer o = {.fn = count_record, .with_error = 1, .shadows = &shadow, .n_shadows = 1, .n_seeds = 1};
    CHECK_OK(sl_engine_observe(r.engine, &o, &err), err);
    sl_session *s = model_fixture_session(&r, 1);
    int32_t *ids = test_ids(FROM, r.n_vocab, test_seed), next = 9;
    CHECK_OK(sl_prefill(s, ids, FROM, NULL, &err), err);
    n_exact = n_drawn = n_shadow_exact = 0;
    for (int j = 0; j < STEPS; j++) CHECK_OK(sl_decode(&s, 1, &next, &err), err);
    int heads = r.engine->geom.n_layers * r.engine->geom.n_heads;
    CHECK_INT(n_exact, 3 * heads);
    CHECK_INT(n_drawn, 3 * heads);
    CHECK_INT(n_shadow_exact, 0);
    CHECK(sl_engine_attn_stats(r.engine)->exact_heads == (uint64_t)n_exact);
    free(ids);
    sl_session_free(s);
    model_fixture_close(&r);
}

static void observe_on_cpu(void) {
    device = "cpu";
    observe();
}

static void observe_on_gpu(void) {
    device = "cuda";
    observe();
}

static const test_case cases[] = {{"rule", 0, rule},
                                  {"table", 0, table},
                                  {"call", 0, call},
                                  {"engines", NEEDS_SPEED, engines_on_cpu},
                                  {"engines-on-gpu", NEEDS_GPU, engines_on_gpu},
                                  {"observe", 0, observe_on_cpu},
                                  {"observe-on-gpu", NEEDS_GPU, observe_on_gpu},
                                  {0}};
const test_suite suite_exact_below = {"exact_below", cases};
