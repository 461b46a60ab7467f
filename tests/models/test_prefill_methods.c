// tests/models/test_prefill_methods.c - prefill with masks and skipped blocks on a whole model, in segments
// (sl_engine_set_prefill).
#include "attention/prefill_mask.h"
#include "engine/engine.h"
#include "models/config.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;
static int n_vocab_of_model; // of check_all_logits

static model_fixture open_on(const char *device, int chunk) {
    return model_fixture_load(
        "models/tiny", "dense",
        (sl_engine_options){.n_ctx = 1024, .n_sequences = 2, .prefill_chunk = chunk, .device = device, .seed = 1});
}

static int equal_bits(const float *a, const float *b, int n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

// Prefills with `attn` in every layer but the one of `rule`. rule: NULL, or `0=dense`
static void set_prefill(model_fixture *r, const char *attn, const char *rule, int segment) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, &spec, &err), err);
    if (rule) CHECK_OK(sl_attn_plan_set(&plan, rule, &err), err);
    CHECK_OK(sl_engine_set_prefill(r->engine, &plan, segment, &err), err);
    sl_attn_plan_free(&plan);
}

// Prefills n tokens after `before` others, and decodes two tokens. Returns the last logits in *out.
static void prefill_twice(model_fixture *r, const int32_t *ids, int before, int n, float *out) {
    sl_session *s = model_fixture_session(r, 0);
    if (before) CHECK_OK(sl_prefill(s, ids, before, NULL, &err), err);
    CHECK_OK(sl_prefill(s, ids + before, n, NULL, &err), err);
    for (int i = 0; i < 2; i++) {
        int32_t id = test_argmax(sl_session_logits(s, NULL), r->n_vocab);
        CHECK_OK(sl_decode(&s, 1, &id, &err), err);
    }
    memcpy(out, sl_session_logits(s, NULL), r->n_vocab * sizeof *out);
    sl_session_free(s);
}

// A mask with all blocks gives the bits of dense attention: in segments, with any chunk size, in two calls, and where a session
// continues in the middle of a segment.
static void check_full_masks(const char *device) {
    static const int segments[] = {1024, 300, 128}, chunks[] = {1024, 200, 128}, calls[][2] = {{0, 700}, {123, 577}, {1, 511}};
    model_fixture first = open_on(device, 1024);
    int32_t *ids = test_ids(700, first.n_vocab, test_seed);
    float *want = malloc(first.n_vocab * sizeof *want), *got = malloc(first.n_vocab * sizeof *got);
    for (int c = 0; c < 3; c++) {
        model_fixture r = open_on(device, chunks[c]);
        for (int i = 0; i < 3; i++) {
            prefill_twice(&first, ids, calls[i][0], calls[i][1], want);
            for (int k = 0; k < 3; k++) {
                set_prefill(&r, "streaming:window=1024", k == 1 ? "0=dense" : NULL, segments[k]);
                prefill_twice(&r, ids, calls[i][0], calls[i][1], got);
                if (!equal_bits(got, want, r.n_vocab))
                    FAIL("%d and %d tokens in segments of %d and chunks of %d: other bits", calls[i][0], calls[i][1],
                         segments[k], chunks[c]);
            }
            set_prefill(&r, "dense", NULL, 0);
            prefill_twice(&r, ids, calls[i][0], calls[i][1], got);
            CHECK(equal_bits(got, want, r.n_vocab));
        }
        model_fixture_close(&r);
    }
    model_fixture_close(&first);
    free(ids), free(want), free(got);
}
static void full_masks(void) {
    check_full_masks(NULL);
}

static int keep_last(void *ctx, int first_row, int n_rows, const float *logits, sl_error *e) {
    (void)first_row, (void)e;
    memcpy(ctx, logits + (size_t)(n_rows - 1) * n_vocab_of_model, n_vocab_of_model * sizeof *logits);
    return 0;
}

// sl_prefill makes logits of the last token, and sl_prefill_logits of every token. The last token's differ by the rounding of
// lm_head, which computes one row in another order.
static void check_all_logits(model_fixture *r, const int32_t *ids, int n, const char *attn) {
    float *last = malloc(r->n_vocab * sizeof *last);
    double off = 0, norm = 0;
    sl_session *s = model_fixture_session(r, 0), *t = model_fixture_session(r, 0);
    n_vocab_of_model = r->n_vocab;
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    CHECK_OK(sl_prefill_logits(t, ids, n, keep_last, last, NULL, &err), err);
    const float *want = sl_session_logits(s, NULL);
    for (int i = 0; i < r->n_vocab; i++) off += (last[i] - want[i]) * (last[i] - want[i]), norm += want[i] * want[i];
    if (!(off <= 1e-10 * norm)) FAIL("%s: logits of all rows differ by %g", attn, sqrt(off / norm));
    sl_session_free(s), sl_session_free(t);
    free(last);
}

// Chunks do not change a bit of a sparse prefill, and the counts say that it was sparse.
static void check_sparse_chunks(const char *device) {
    static const char *const methods[] = {"sample:alpha_c=0.6:alpha_s=0.6:chunk_n=2",
                                          "vertical-slash:columns=20:slashes=60",
                                          "streaming:window=130",
                                          "xattention:threshold=0.5",
                                          "threshold:lambda=0.3",
                                          "oracle:density=0.5"};
    int n_methods = device ? 4 : 6; // a GPU offers the first four
    static const int chunks[] = {1024, 200, 128};
    model_fixture r[3];
    for (int c = 0; c < 3; c++) r[c] = open_on(device, chunks[c]);
    int32_t *ids = test_ids(900, r[0].n_vocab, test_seed);
    size_t n_vocab = r[0].n_vocab;
    float *dense = malloc(n_vocab * sizeof *dense), *out[3];
    for (int c = 0; c < 3; c++) out[c] = malloc(n_vocab * sizeof *out[c]);
    prefill_twice(&r[0], ids, 77, 823, dense);
    for (int m = 0; m < n_methods; m++) {
        for (int c = 0; c < 3; c++) {
            set_prefill(&r[c], methods[m], NULL, 512);
            sl_engine_reset_stats(r[c].engine);
            prefill_twice(&r[c], ids, 77, 823, out[c]);
            if (!equal_bits(out[c], out[0], n_vocab)) FAIL("%s in chunks of %d: other bits", methods[m], chunks[c]);
        }
        CHECK(!equal_bits(out[0], dense, n_vocab));
        if (!device) check_all_logits(&r[1], ids, 645, methods[m]);
        uint64_t visited = 0, causal = 0;
        for (int layer = 0; layer < sl_model_config(r[0].model)->n_layers; layer++)
            for (int head = 0; head < sl_model_config(r[0].model)->n_heads; head++) {
                sl_prefill_report report = sl_engine_prefill_report(r[0].engine, layer, head);
                visited += report.visited, causal += report.causal;
                CHECK(report.visited <= report.causal && report.kept >= SL_MASK_NOT_SAMPLED);
            }
        printf("      %-45s %llu of %llu blocks\n", methods[m], (unsigned long long)visited, (unsigned long long)causal);
        CHECK(0 < visited && visited < causal);
    }
    for (int c = 0; c < 3; c++) model_fixture_close(&r[c]), free(out[c]);
    free(ids), free(dense);
}
static void sparse_chunks(void) {
    check_sparse_chunks(NULL);
}

#ifdef SLEIGH_CUDA

static void gpu_full_masks(void) {
    check_full_masks("cuda");
}
static void gpu_sparse_chunks(void) {
    check_sparse_chunks("cuda");
}

// The tiny model on both devices: the masks come from queries and keys that differ by roundings, so the share of visited blocks
// of a method may differ by a few blocks.
static void gpu_densities(void) {
    static const char *const methods[] = {"sample", "vertical-slash:columns=20:slashes=60", "xattention:threshold=0.8"};
    model_fixture r[2] = {open_on(NULL, 512), open_on("cuda", 512)};
    int32_t *ids = test_ids(1000, r[0].n_vocab, test_seed);
    float *out = malloc(r[0].n_vocab * sizeof *out);
    for (int m = 0; m < 3; m++) {
        sl_prefill_report report[2];
        for (int i = 0; i < 2; i++) {
            set_prefill(&r[i], methods[m], NULL, 1024);
            sl_engine_reset_stats(r[i].engine);
            prefill_twice(&r[i], ids, 0, 1000, out);
            report[i] = sl_engine_prefill_total(r[i].engine);
        }
        CHECK_INT(report[0].causal, report[1].causal);
        CHECK_NEAR((double)report[1].visited / report[1].causal, (double)report[0].visited / report[0].causal, 0.02);
        CHECK_NEAR(report[1].kept * 0x1p-24, report[0].kept * 0x1p-24, 0.05);
    }
    for (int i = 0; i < 2; i++) model_fixture_close(&r[i]);
    free(ids), free(out);
}

static void gpu_refused(void) {
    model_fixture r = open_on("cuda", 512);
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse("oracle", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r.model)->n_layers, &spec, &err), err);
    CHECK_ERR(sl_engine_set_prefill(r.engine, &plan, 1024, &err), err, SL_ERR_UNSUPPORTED,
              "attn_prefill oracle: not offered on a GPU, which has no kernel for its mask (layer 0)");
    sl_attn_plan_free(&plan);
    model_fixture_close(&r);
}

#endif

static void refused_prefill(void) {
    static const struct {
        const char *attn;
        int chunk, segment;
        const char *message;
    } cases[] = {
        {"santa-pps", 512, 1024, "attn_prefill santa-pps: a method for decoding, which does not prefill (layer 0)"},
        {"sample", 512, 100, "prefill_segment 100: expected at least 128"},
        {"sample", 100, 1024, "prefill_chunk 100: expected at least 128 with attn_prefill"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_fixture r = open_on(NULL, cases[i].chunk);
        sl_attn_spec spec;
        sl_attn_plan plan;
        CHECK_OK(sl_attn_parse(cases[i].attn, &spec, &err), err);
        CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r.model)->n_layers, &spec, &err), err);
        CHECK_INT(sl_engine_set_prefill(r.engine, &plan, cases[i].segment, &err), SL_ERR_ARG);
        if (!strstr(err.message, cases[i].message)) FAIL("%s: found %s", cases[i].message, err.message);
        sl_attn_plan_free(&plan);
        model_fixture_close(&r);
    }
}

static const test_case cases[] = {
    {"full-masks-are-dense", 0, full_masks},   {"chunks", 0, sparse_chunks},
    {"refused", 0, refused_prefill},           GPU_CASE("gpu-full-masks-are-dense", gpu_full_masks),
    GPU_CASE("gpu-chunks", gpu_sparse_chunks), GPU_CASE("gpu-densities", gpu_densities),
    GPU_CASE("gpu-refused", gpu_refused),      {0},
};
const test_suite suite_prefill_methods = {"prefill_methods", cases};
