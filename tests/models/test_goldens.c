// tests/models/test_goldens.c - compares logits and greedy tokens of small models with Hugging Face transformers
// (tests/goldens, made by scripts/goldens/make_goldens.py).
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/support/npy.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

static sl_error err;

typedef struct golden_check {
    const test_array *want;
    double square, norm, worst; // sums of squares of the differences and of the logits; the largest |difference|
} golden_check;

static int compare_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *e) {
    golden_check *g = ctx;
    (void)e;
    for (int i = 0; i < n_rows; i++) {
        for (int j = 0; j < g->want->n_cols; j++) {
            double w = g->want->data[(size_t)(first + i) * g->want->n_cols + j];
            double d = logits[(size_t)i * g->want->n_cols + j] - w;
            if (!(fabs(d) <= g->worst)) g->worst = fabs(d); // NaN counts as the largest
            g->square += d * d;
            g->norm += w * w;
        }
    }
    return 0;
}

// The goldens are fp32, with K and V rounded to bf16 as in Sleigh's cache. Two differences remain. Another order of fp32 sums
// gives 2^-24 sqrt(terms), about 1e-6 relative. This difference moves a few entries of K and V over a rounding boundary of
// bf16: about 2^-24 sqrt(100) 2^9 / 2 = 1e-4 of them, each by 2^-8, which gives about 1e-5 after the mean of attention. The
// bound of 2e-4 leaves a margin for models with few keys.
enum { GREEDY_STEPS = 32 };
static const double GOLDEN_RELATIVE = 2e-4;

static void check_golden(const char *name) {
    char path[256];
    int n, n_greedy;
    snprintf(path, sizeof path, "tests/goldens/%s", name);
    model_fixture r = model_fixture_load(
        path, "dense", (sl_engine_options){.n_sequences = 1, .prefill_chunk = 100}); // prompts cross chunks and pages
    snprintf(path, sizeof path, "tests/goldens/%s/ids.json", name);
    int32_t *ids = test_read_ids(path, &n);
    snprintf(path, sizeof path, "tests/goldens/%s/greedy.json", name);
    int32_t *greedy = test_read_ids(path, &n_greedy);
    snprintf(path, sizeof path, "tests/goldens/%s/logits.npy", name);
    test_array want = test_read_npy(path);
    CHECK_INT(want.n_rows, n);
    CHECK_INT(want.n_cols, r.n_vocab);
    CHECK(n_greedy >= GREEDY_STEPS);

    golden_check g = {.want = &want};
    sl_session *s = model_fixture_session(&r, 0);
    CHECK_OK(sl_prefill_logits(s, ids, n, compare_rows, &g, NULL, &err), err);
    double relative = sqrt(g.square / g.norm);
    if (!(relative <= GOLDEN_RELATIVE))
        FAIL("%s: relative error of the logits %.3g > %.3g (worst difference %.3g)", name, relative, GOLDEN_RELATIVE, g.worst);
    for (int i = 0; i < n_greedy; i++) {
        int32_t id = test_argmax(sl_session_logits(s, NULL), r.n_vocab);
        if (id != greedy[i]) FAIL("%s: greedy token %d is %d, expected %d", name, i, id, greedy[i]);
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
    }
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(greedy), free(want.data);
}

static void golden_mha(void) {
    check_golden("mha");
}
static void golden_gqa(void) {
    check_golden("gqa");
}
static void golden_yarn(void) {
    check_golden("yarn");
}
static void golden_tied(void) {
    check_golden("tied");
}
static void golden_f16(void) {
    check_golden("f16");
}
static void golden_f32(void) {
    check_golden("f32");
}
static void golden_headdim80(void) {
    check_golden("headdim80");
}
static void golden_sharded(void) {
    check_golden("sharded");
}
static void golden_mistral(void) {
    check_golden("mistral");
}
// The mean square of each norm's input is about eps: a wrong eps of one norm gives an error of a percent.
static void golden_eps(void) {
    check_golden("eps");
}
static void golden_eps_default(void) { // config.json does not give rms_norm_eps
    check_golden("eps-default");
}
static void golden_qwen2(void) { // biases; the window fields of published folders
    check_golden("qwen2");
}
static void golden_qwen2_tied(void) { // 7 query heads for a KV head
    check_golden("qwen2-tied");
}
static void golden_qwen3(void) { // norms of q and k
    check_golden("qwen3");
}
static void golden_qwen3_tied(void) { // 5 query heads for a KV head
    check_golden("qwen3-tied");
}

// The trained model has sharper attention than random weights, so that a key on the other side of a rounding boundary has a
// larger effect.
static const double TINY_RELATIVE = 1e-3;

static void golden_tiny(void) { // the embedded model: its last positions and greedy continuation
    int n, n_greedy;
    model_fixture r = model_fixture_load("models/tiny", "dense", (sl_engine_options){.n_ctx = 4096, .n_sequences = 1});
    int32_t *ids = test_read_ids("tests/goldens/tiny/ids.json", &n);
    int32_t *greedy = test_read_ids("tests/goldens/tiny/greedy.json", &n_greedy);
    test_array want = test_read_npy("tests/goldens/tiny/logits_last.npy");
    sl_session *s = model_fixture_session(&r, 0);
    double square = 0, norm = 0;
    for (int row = 0; row < want.n_rows; row++) {
        int from = sl_session_n_tokens(s), to = n - want.n_rows + row + 1;
        CHECK_OK(sl_prefill(s, ids + from, to - from, NULL, &err), err);
        for (int j = 0; j < r.n_vocab; j++) {
            double w = want.data[(size_t)row * r.n_vocab + j], d = sl_session_logits(s, NULL)[j] - w;
            square += d * d, norm += w * w;
        }
    }
    if (!(sqrt(square / norm) <= TINY_RELATIVE)) FAIL("relative error of the logits %.3g", sqrt(square / norm));
    for (int i = 0; i < n_greedy; i++) {
        int32_t id = test_argmax(sl_session_logits(s, NULL), r.n_vocab);
        CHECK_INT(id, greedy[i]);
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
    }
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(greedy), free(want.data);
}

static const test_case cases[] = {
    {"mha", 0, golden_mha},
    {"gqa-llama3-rope", 0, golden_gqa},
    {"tied", 0, golden_tied},
    {"f16", 0, golden_f16},
    {"f32", 0, golden_f32},
    {"headdim80", 0, golden_headdim80},
    {"sharded-linear-rope", 0, golden_sharded},
    {"yarn-rope", 0, golden_yarn},
    {"mistral", 0, golden_mistral},
    {"eps", 0, golden_eps},
    {"eps-default", 0, golden_eps_default},
    {"qwen2", 0, golden_qwen2},
    {"qwen2-tied", 0, golden_qwen2_tied},
    {"qwen3", 0, golden_qwen3},
    {"qwen3-tied", 0, golden_qwen3_tied},
    {"tiny", 0, golden_tiny},
    {0},
};
const test_suite suite_model_goldens = {"model_goldens", cases};
