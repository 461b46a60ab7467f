// tests/cuda/test_cuda_observe.c - an observer on a GPU must report the same figures as an observer on the CPU, and must not
// change an output.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "engine/engine.h"
#include "tests/support/models.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;
enum { SEED = 7 };

static model_fixture fixture_on(const char *device, const char *attn, int n_ctx, int n_sequences) {
    return model_fixture_load(
        "models/tiny", attn,
        (sl_engine_options){.n_ctx = n_ctx, .n_sequences = n_sequences, .device = device, .n_threads = 4, .seed = SEED});
}

static void parse_all(const char *const *names, int n, sl_attn_spec *specs) {
    for (int i = 0; i < n; i++) CHECK_OK(sl_attn_parse(names[i], &specs[i], &err), err);
}

// ---- the CPU's figures ----

static const char *const shadow_methods[] = {"streaming:sink=4:window=252",
                                             "topk:k=32",
                                             "dense-q",
                                             "santa-sys:S=64",
                                             "santa-prop:S=64",
                                             "santa-flash:S=64",
                                             "santa-pps:S=64",
                                             "santa-is:S=64"};
enum {
    N_SHADOWS = sizeof shadow_methods / sizeof *shadow_methods,
    SEEDS = 8,
    LAYERS = 4,
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_DIM = 128,
    STEPS = 6,
    TOKENS = 1500,
    EXACT = 3
};

typedef struct sums {
    double n, error, cosine, bias, k_rows, v_rows, samples, bytes, dense_bytes, features;
} sums;

typedef struct figures {
    sums of[N_SHADOWS][LAYERS];
    uint32_t tiles[STEPS * LAYERS * HEADS]; // of the heads of the dense run
    int n, n_records;
} figures;

static void add_record(void *ctx, const sl_attn_record *r) {
    figures *f = ctx;
    const sl_attn_report *p = r->report;
    int run = f->n_records++ / HEADS % (1 + N_SHADOWS * SEEDS), which = (run - 1) / SEEDS;
    CHECK_INT(r->seed, SEED + (run ? (run - 1) % SEEDS : 0));
    CHECK_INT(r->n_kv, r->position + 1);
    if (run == 0) {
        CHECK(f->n < STEPS * LAYERS * HEADS && p->error == 0 && p->bias == 0);
        f->tiles[f->n++] = p->tiles;
        return;
    }
    sums *s = &f->of[which][r->layer];
    s->n++;
    s->error += p->error, s->cosine += p->cosine, s->bias += p->bias, s->k_rows += p->k_rows, s->v_rows += p->v_rows;
    s->samples += p->samples, s->bytes += (double)p->bytes, s->dense_bytes += (double)p->dense_bytes;
    s->features += p->features;
}

static void observe_run(const char *device, figures *out) {
    sl_attn_spec shadows[N_SHADOWS];
    model_fixture r = fixture_on(device, "dense", TOKENS + STEPS, 1);
    const sl_config *c = sl_model_config(r.model);
    CHECK(c->n_layers == LAYERS && c->n_heads == HEADS && c->n_kv_heads == KV_HEADS && c->head_dim == HEAD_DIM);
    int32_t *ids = test_ids(TOKENS + STEPS, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 3);
    parse_all(shadow_methods, N_SHADOWS, shadows);
    const sl_observer o = {.fn = add_record, .ctx = out, .shadows = shadows, .n_shadows = N_SHADOWS, .n_seeds = SEEDS};
    CHECK_OK(sl_prefill(s, ids, TOKENS, NULL, &err), err);
    CHECK_OK(sl_engine_observe(r.engine, &o, &err), err);
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&s, 1, ids + TOKENS + i, &err), err);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// The states of the two devices differ, because activations are rounded to bf16 (logits differ by 0.7%: test_cuda_engine.c). So
// a page or a row near a limit may be chosen on one device only. Rounding changes outputs by 0.002. Sampled methods draw mostly
// the same rows from the same uniform numbers. The rest of the difference is noise of SEEDS * STEPS * HEADS outputs. The
// standard deviation of an error is at most the mean error, so the mean has a standard error of 1 / sqrt(384) = 5%. The test
// allows four standard errors.
static void check_figures(const sums *got, const sums *want, const char *attn, int layer, int exact) {
    double g = got->error / got->n, w = want->error / want->n, most = 0.003 + (exact ? 0.05 : 0.2) * w;
    if (!(fabs(g - w) <= most)) FAIL("%s, layer %d: mean error %.5f, on the CPU %.5f", attn, layer, g, w);
    CHECK_NEAR(got->cosine / got->n, want->cosine / want->n, 0.003 + (exact ? 0.05 : 0.2) * (1 - want->cosine / want->n));
    CHECK_NEAR(got->bias / got->n, want->bias / want->n, 0.005 + 0.2 * w);
    CHECK_INT(got->n, want->n);
    CHECK_NEAR(got->samples, want->samples, 0.01 * want->samples);
    CHECK_INT(got->dense_bytes, want->dense_bytes);
    CHECK_NEAR(got->features, want->features, 1e-3 * want->features);
    // Sampled kernels count a row once for each head and group of 32 draws that reads the row.
    double more = exact ? 0 : got->v_rows * HEADS / KV_HEADS;
    CHECK(got->v_rows >= 0.95 * want->v_rows && (exact ? got->v_rows <= 1.02 * want->v_rows : got->v_rows <= got->samples));
    CHECK(got->k_rows >= 0.98 * want->k_rows && got->k_rows <= 1.02 * want->k_rows + more);
    double row = HEAD_DIM * sizeof(bf16);
    CHECK(got->bytes >= 0.98 * want->bytes && got->bytes <= 1.02 * want->bytes + 2 * more * row); // both of K and of V
}

static void same_figures(void) {
    static figures cpu, gpu;
    int same = 0;
    cpu = gpu = (figures){0};
    observe_run("cpu", &cpu);
    observe_run("cuda", &gpu);
    CHECK_INT(gpu.n_records, cpu.n_records);
    for (int i = 0; i < N_SHADOWS; i++)
        for (int layer = 0; layer < LAYERS; layer++) {
            const sums *got = &gpu.of[i][layer], *want = &cpu.of[i][layer];
            printf("      %-28s layer %d: error %.4f, on the CPU %.4f\n", shadow_methods[i], layer, got->error / got->n,
                   want->error / want->n);
            check_figures(got, want, shadow_methods[i], layer, i < EXACT);
        }
    for (int i = 0; i < cpu.n; i++) same += gpu.tiles[i] == cpu.tiles[i];
    printf("      tiles: %d of %d heads have the CPU's\n", same, cpu.n);
    CHECK(same >= 0.9 * cpu.n); // in the other heads the mass of some number of tiles is near 90%
}

// ---- profiles ----

enum { N_PROFILE = sizeof(sl_attn_spread) / sizeof(double) };

static void add_profile(void *ctx, const sl_attn_record *r) {
    double(*sum)[N_PROFILE] = ctx;
    CHECK(r->profile != NULL);
    for (int i = 0; i < N_PROFILE; i++) sum[r->layer * HEADS + r->head][i] += ((const double *)r->profile)[i] / STEPS;
}

static void profiles_on(const char *device, double sum[LAYERS * HEADS][N_PROFILE]) {
    model_fixture r = fixture_on(device, "dense", TOKENS + STEPS, 1);
    int32_t *ids = test_ids(TOKENS + STEPS, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 3);
    const sl_observer o = {.fn = add_profile, .ctx = sum, .with_profile = 1};
    CHECK_OK(sl_prefill(s, ids, TOKENS, NULL, &err), err);
    CHECK_OK(sl_engine_observe(r.engine, &o, &err), err);
    for (int i = 0; i < STEPS; i++) CHECK_OK(sl_decode(&s, 1, ids + TOKENS + i, &err), err);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// The queries and keys differ by the rounding of activations to bf16 (see check_figures). An effective number of keys, a mass
// and a mean distance follow the scores of a head. A median does not: where half of the mass ends before a gap between heavy
// rows, a change of 0.4% of the query moves it over the gap (from 50 to 38 in one head here). These moves are as likely in each
// direction, and heads move independently, so the sum over the heads of a layer is compared: with random changes of 0.4% of
// queries and keys it moves by up to 1.4%, with 1% by up to 2.3%.
static void same_profiles(void) {
    static double cpu[LAYERS * HEADS][N_PROFILE], gpu[LAYERS * HEADS][N_PROFILE];
    enum { MEDIAN = offsetof(sl_attn_spread, distance_median) / sizeof(double) };
    memset(cpu, 0, sizeof cpu), memset(gpu, 0, sizeof gpu);
    profiles_on("cpu", cpu);
    profiles_on("cuda", gpu);
    for (int i = 0; i < LAYERS * HEADS; i++)
        for (int j = 0; j < N_PROFILE; j++) {
            double most = (j == 2 || j == 3 ? 0.01 : 2) + 0.05 * cpu[i][j];
            if (j != MEDIAN && !(fabs(gpu[i][j] - cpu[i][j]) <= most))
                FAIL("layer %d, head %d, figure %d: %g, on the CPU %g", i / HEADS, i % HEADS, j, gpu[i][j], cpu[i][j]);
        }
    for (int layer = 0; layer < LAYERS; layer++) {
        double got = 0, want = 0;
        for (int i = layer * HEADS; i < (layer + 1) * HEADS; i++) got += gpu[i][MEDIAN], want += cpu[i][MEDIAN];
        printf("      layer %d: mean of the medians %.2f, on the CPU %.2f\n", layer, got / HEADS, want / HEADS);
        CHECK_NEAR(got, want, 0.05 * want);
    }
}

// ---- no output changes ----

typedef struct seen {
    sl_attn_record record;
    sl_attn_report report;
} seen;

enum { SHADOWS = 3, TWINS = 2, RUNS = 1 + SHADOWS * TWINS, MAX_SEEN = FIXTURE_STEPS * LAYERS * RUNS * FIXTURE_BATCH * HEADS };

typedef struct witness {
    seen at[MAX_SEEN];
    int n;
} witness;

static void note(void *ctx, const sl_attn_record *r) {
    witness *w = ctx;
    CHECK(w->n < MAX_SEEN);
    w->at[w->n++] = (seen){*r, *r->report};
}

static int same_outcome(const sl_attn_report *a, const sl_attn_report *b) {
    return a->k_rows == b->k_rows && a->v_rows == b->v_rows && a->samples == b->samples && a->bytes == b->bytes &&
           a->tries == b->tries && a->fallback == b->fallback && a->error == b->error && a->bias == b->bias &&
           a->tiles == b->tiles;
}

static void check_records(const witness *w, const sl_attn_spec *shadows) {
    int group = FIXTURE_BATCH * HEADS, other = 0, fallbacks = 0;
    CHECK_INT(w->n, MAX_SEEN);
    for (int i = 0; i < w->n; i++) {
        int at = i % group, run = i / group % RUNS, layer = i / group / RUNS % LAYERS, which = (run - 1) / TWINS;
        const sl_attn_record *x = &w->at[i].record;
        const sl_attn_report *y = &w->at[i].report, *first = &w->at[i - run * group].report;
        CHECK(x->layer == layer && x->head == at % HEADS && (int)x->sequence == 50 + at / HEADS);
        CHECK_INT(x->position, model_fixture_lengths[at / HEADS] + i / group / RUNS / LAYERS);
        CHECK_INT(x->n_kv, x->position + 1);
        CHECK_INT(x->seed, SEED + (run ? (run - 1) % TWINS : 0));
        CHECK(x->spec->method == shadows[run ? which : 0].method);
        CHECK(y->error >= 0 && fabs(y->cosine) <= 1 + 1e-6 && fabs(y->bias) <= y->error + 1e-6 && y->tiles > 0);
        if (run == 1) CHECK(same_outcome(y, first)); // the running method again, with its state of the steps before
        if (run == 2) other += y->error != first->error;
        if (run && which == 1) CHECK(y->error == 0 && y->bias == 0 && y->bytes == y->dense_bytes); // dense
        fallbacks += y->fallback;
    }
    printf("      %d heads attended to all rows\n", fallbacks);
    CHECK(other > w->n / RUNS / 10); // some heads do not fall back to all rows; another seed gives these heads other errors
}

static void changes_nothing(void) {
    static const char running[] = "santa-pps:epsilon=0.4"; // keeps state from step to step
    static const char *const names[SHADOWS] = {running, "dense", "quest:tokens=64"};
    static witness w;
    sl_attn_spec shadows[SHADOWS];
    model_fixture r = fixture_on("cuda", running, 1024, FIXTURE_BATCH);
    size_t size = (size_t)FIXTURE_BATCH * r.n_vocab * sizeof(float);
    float *want = malloc(size), *got = malloc(size);
    parse_all(names, SHADOWS, shadows);
    model_fixture_run_batch(&r, want);
    sl_attn_stats stats = *sl_engine_attn_stats(r.engine), now;
    sl_engine_reset_stats(r.engine);
    w.n = 0;
    const sl_observer o = {.fn = note, .ctx = &w, .shadows = shadows, .n_shadows = SHADOWS, .n_seeds = TWINS};
    CHECK_OK(sl_engine_observe(r.engine, &o, &err), err);
    model_fixture_run_batch(&r, got);
    now = *sl_engine_attn_stats(r.engine);
    CHECK(!memcmp(got, want, size));
    CHECK(!memcmp(&now, &stats, sizeof now)); // observed methods do not add to the statistics
    check_records(&w, shadows);

    sl_observer plain = {.fn = note, .ctx = &w}; // an observer without `errors` gets none
    w.n = 0;
    CHECK_OK(sl_engine_observe(r.engine, &plain, &err), err);
    model_fixture_run_batch(&r, got);
    CHECK(!memcmp(got, want, size));
    CHECK_INT(w.n, MAX_SEEN / RUNS);
    for (int i = 0; i < w.n; i++) CHECK(isnan(w.at[i].report.error) && w.at[i].report.tiles == 0);

    sl_attn_spec bad;
    CHECK_OK(sl_attn_parse("magicpig", &bad, &err), err);
    plain.shadows = &bad, plain.n_shadows = 1;
    CHECK_ERR(sl_engine_observe(r.engine, &plain, &err), err, SL_ERR_UNSUPPORTED, "magicpig: not offered on a GPU (observed)");
    CHECK_OK(sl_engine_observe(r.engine, NULL, &err), err);
    model_fixture_run_batch(&r, got); // steps are recorded again
    CHECK(!memcmp(got, want, size));
    CHECK_INT(w.n, MAX_SEEN / RUNS);
    model_fixture_close(&r);
    free(want), free(got);
}
#endif

static const test_case cases[] = {
    GPU_CASE("same-figures", same_figures),
    GPU_CASE("same-profiles", same_profiles),
    GPU_CASE("changes-nothing", changes_nothing),
    {0},
};
const test_suite suite_cuda_observe = {"cuda_observe", cases};
