// tests/models/test_prefill_methods.c - prefill with masks and skipped blocks on a whole model, in segments
// (sl_engine_set_prefill).
#include "attention/prefill/prefill_mask.h"
#include "engine/engine.h"
#include "models/config.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;
static int n_vocab_of_model; // of check_all_logits

// cache: sl_engine_options.kv_cache_dtype
static model_fixture open_with(const char *device, const char *cache, int chunk) {
    return model_fixture_load(
        "models/tiny", "dense",
        (sl_engine_options){
            .n_ctx = 1024, .n_sequences = 2, .prefill_chunk = chunk, .device = device, .kv_cache_dtype = cache, .seed = 1});
}

static model_fixture open_on(const char *device, int chunk) {
    return open_with(device, NULL, chunk);
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
    if (rule) CHECK_OK(sl_attn_plan_set(&plan, "attn_prefill_layer", rule, &err), err);
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
static void check_full_masks(const char *device, const char *cache) {
    static const int segments[] = {1024, 300, 128}, chunks[] = {1024, 200, 128}, calls[][2] = {{0, 450}, {123, 327}, {1, 301}};
    model_fixture first = open_with(device, cache, 1024);
    int32_t *ids = test_ids(450, first.n_vocab, test_seed);
    float *want = malloc(first.n_vocab * sizeof *want), *got = malloc(first.n_vocab * sizeof *got);
    for (int c = 0; c < 3; c++) {
        model_fixture r = open_with(device, cache, chunks[c]);
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
    check_full_masks(NULL, NULL);
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
static void check_sparse_chunks(const char *device, const char *cache) {
    static const char *const methods[] = {"sample:alpha_c=0.6:alpha_s=0.6:chunk_n=2",
                                          "vertical-slash:columns=20:slashes=60",
                                          "streaming:window=130",
                                          "xattention:threshold=0.5",
                                          "threshold:lambda=0.3",
                                          "oracle:density=0.5",
                                          "bigbird:local=0.1:global=0.1:random=1",
                                          "hash-sparse",
                                          "hyperattention:bucket=128:columns=0:dense=128"};
    int n_methods = device ? 3 : 9; // a GPU offers the first three
    static const int chunks[] = {1024, 200, 128};
    model_fixture r[3];
    for (int c = 0; c < 3; c++) r[c] = open_with(device, cache, chunks[c]);
    int32_t *ids = test_ids(700, r[0].n_vocab, test_seed);
    size_t n_vocab = r[0].n_vocab;
    float *dense = malloc(n_vocab * sizeof *dense), *out[3];
    for (int c = 0; c < 3; c++) out[c] = malloc(n_vocab * sizeof *out[c]);
    prefill_twice(&r[0], ids, 77, 623, dense);
    for (int m = 0; m < n_methods; m++) {
        for (int c = 0; c < 3; c++) {
            set_prefill(&r[c], methods[m], NULL, 512);
            sl_engine_reset_stats(r[c].engine);
            prefill_twice(&r[c], ids, 77, 623, out[c]);
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
    check_sparse_chunks(NULL, NULL);
}

#ifdef SLEIGH_CUDA

static void gpu_full_masks(void) {
    check_full_masks("cuda", NULL);
    check_full_masks("cuda", "fp8");
}
static void gpu_sparse_chunks(void) {
    check_sparse_chunks("cuda", NULL);
    check_sparse_chunks("cuda", "int8");
}

// The tiny model on both devices: the masks come from queries and keys that differ by roundings, so the share of visited blocks
// of a method may differ by a few blocks. One block can change the least kept share of a head much, so most heads must agree,
// not all.
static void gpu_densities(void) {
    static const char *const methods[] = {"sample", "vertical-slash:columns=20:slashes=60"};
    model_fixture r[2] = {open_on(NULL, 512), open_on("cuda", 512)};
    const sl_config *c = sl_model_config(r[0].model);
    int32_t *ids = test_ids(1000, r[0].n_vocab, test_seed);
    float *out = malloc(r[0].n_vocab * sizeof *out);
    for (int m = 0; m < 2; m++) {
        sl_prefill_report report[2];
        for (int i = 0; i < 2; i++) {
            set_prefill(&r[i], methods[m], NULL, 1024);
            sl_engine_reset_stats(r[i].engine);
            prefill_twice(&r[i], ids, 0, 1000, out);
            report[i] = sl_engine_prefill_total(r[i].engine);
        }
        CHECK_INT(report[0].causal, report[1].causal);
        CHECK_NEAR((double)report[1].visited / report[1].causal, (double)report[0].visited / report[0].causal, 0.02);
        int n_agree = 0, n = c->n_layers * c->n_heads;
        for (int i = 0; i < n; i++) {
            int32_t kept[2];
            for (int k = 0; k < 2; k++) kept[k] = sl_engine_prefill_report(r[k].engine, i / c->n_heads, i % c->n_heads).kept;
            CHECK((kept[0] == SL_MASK_NOT_SAMPLED) == (kept[1] == SL_MASK_NOT_SAMPLED));
            n_agree += fabs((double)kept[0] - kept[1]) <= 0.05 * (1 << SL_SHARE_BITS);
        }
        if (4 * n_agree < 3 * n) FAIL("%s: %d of %d heads keep the same share on both devices", methods[m], n_agree, n);
    }
    for (int i = 0; i < 2; i++) model_fixture_close(&r[i]);
    free(ids), free(out);
}

static void check_refused(const model_fixture *r, const char *method, const char *want) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(method, &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, sl_model_config(r->model)->n_layers, &spec, &err), err);
    CHECK(!sl_attn_prefills_on_gpu(&spec)); // so --device auto takes the CPU
    CHECK_ERR(sl_engine_set_prefill(r->engine, &plan, 1024, &err), err, SL_ERR_UNSUPPORTED, want);
    sl_attn_plan_free(&plan);
}

static void gpu_refused(void) {
    static const char *const methods[] = {"oracle", "xattention", "threshold", "bigbird", "hash-sparse", "hyperattention"};
    model_fixture r = open_on("cuda", 512);
    for (int m = 0; m < 6; m++) {
        char want[128];
        snprintf(want, sizeof want, "attn_prefill %s: not offered on a GPU (layer 0); use attn_prefill sample, or device cpu",
                 methods[m]);
        check_refused(&r, methods[m], want);
    }
    check_refused(&r, "sample:repair=0.5",
                  "attn_prefill sample: found repair 0.5, expected 0: not offered on a GPU (layer 0); or device cpu");
    CHECK_ERR(sl_engine_observe_prefill(r.engine, &(sl_prefill_observer){.n_rows = 3}, &err), err, SL_ERR_UNSUPPORTED,
              "prefill_check 3: not offered on a GPU");
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
        {"streaming+santa", 512, 1024, "attn_prefill streaming+santa: a prefill draws no rows; expected one method (layer 0)"},
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

// ---- progress ----

typedef struct heard_progress {
    int n, last, is_wrong;
} heard_progress;

static void hear_progress(void *ctx, int done, int total) {
    heard_progress *h = ctx;
    h->is_wrong |= done < h->last || done > total || total != 900;
    h->last = done;
    h->n++;
}

// A segment is one pass of many seconds, so its progress is reported in each layer.
static void progress(void) {
    model_fixture r = open_on(NULL, 256);
    int32_t *ids = test_ids(900, r.n_vocab, test_seed);
    sl_session *s = model_fixture_session(&r, 0);
    heard_progress h = {0};
    set_prefill(&r, "sample", NULL, 512);
    CHECK_OK(sl_prefill(s, ids, 900, &(sl_progress){hear_progress, &h}, &err), err);
    CHECK(!h.is_wrong && h.last == 900);
    if (h.n < 2 * sl_model_config(r.model)->n_layers) FAIL("%d reports in two segments", h.n);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
}

// ---- forks ----

static sl_session *session_of(model_fixture *r, const int32_t *ids, int n) {
    sl_session *s = model_fixture_session(r, 0);
    CHECK_OK(sl_prefill(s, ids, n, NULL, &err), err);
    return s;
}

// Another session never gets a part of a segment. A fork at a border has the bits of a session of its own.
static void check_forks(const char *device) {
    enum { N = 900 };
    model_fixture r = open_on(device, 256);
    int32_t *ids = test_ids(N, r.n_vocab, test_seed);
    float *want = malloc(r.n_vocab * sizeof *want);
    set_prefill(&r, "sample:alpha_c=0.6:alpha_s=0.6", NULL, 512);
    sl_session *s = session_of(&r, ids, N), *fork = NULL;
    CHECK_ERR(
        sl_session_fork(s, 700, 0, &fork, &err), err, SL_ERR_ARG,
        "fork at 700 tokens: attn_prefill read the tokens 512 to 899 together, so another sequence cannot share a part of "
        "their rows; fork at 512 or 900");
    CHECK_ERR(sl_session_copy(s, 1, 0, &fork, &err), err, SL_ERR_ARG, "fork at 0 or 512");
    CHECK_OK(sl_session_fork(s, N, 0, &fork, &err), err);
    CHECK(equal_bits(sl_session_logits(fork, NULL), sl_session_logits(s, NULL), r.n_vocab));
    CHECK_INT(sl_session_reusable(fork, N, N), N);
    CHECK_INT(sl_session_reusable(fork, N - 1, SL_CONTINUES), 512);
    memcpy(want, sl_session_logits(s, NULL), r.n_vocab * sizeof *want);
    sl_session_free(fork);
    CHECK_OK(sl_session_fork(s, 512, 0, &fork, &err), err);
    CHECK_OK(sl_prefill(fork, ids + 512, N - 512, NULL, &err), err);
    CHECK(equal_bits(sl_session_logits(fork, NULL), want, r.n_vocab));
    sl_session_free(fork);
    CHECK_OK(sl_session_truncate(s, 700, &err), err);
    CHECK_INT(sl_session_reusable(s, 700, SL_CONTINUES), 512);
    CHECK_ERR(sl_session_fork(s, 700, 0, &fork, &err), err, SL_ERR_ARG, "fork at 512");
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids), free(want);
}
static void forks(void) {
    check_forks(NULL);
}

// Two sessions with a common prefix and other lengths have the bits of sessions alone, also when they decode together.
static void check_ragged(const char *device) {
    static const char *const methods[] = {"sample:alpha_c=0.6:alpha_s=0.6", "threshold:lambda=0.3"};
    static const int lengths[2] = {900, 677};
    model_fixture r = open_on(device, 256);
    int32_t *ids = test_ids(900, r.n_vocab, test_seed);
    float *want[2];
    for (int i = 0; i < 2; i++) want[i] = malloc(r.n_vocab * sizeof *want[i]);
    for (int m = 0; m < (device ? 1 : 2); m++) { // a GPU does not offer threshold
        sl_session *s[2];
        set_prefill(&r, methods[m], NULL, 512);
        for (int i = 0; i < 2; i++) {
            sl_session *alone = session_of(&r, ids, lengths[i]);
            CHECK_OK(sl_decode(&alone, 1, ids, &err), err);
            memcpy(want[i], sl_session_logits(alone, NULL), r.n_vocab * sizeof *want[i]);
            sl_session_free(alone);
        }
        s[0] = session_of(&r, ids, 512);
        CHECK_OK(sl_session_fork(s[0], 512, 0, &s[1], &err), err);
        for (int i = 1; i >= 0; i--) CHECK_OK(sl_prefill(s[i], ids + 512, lengths[i] - 512, NULL, &err), err);
        CHECK_OK(sl_decode(s, 2, (int32_t[]){ids[0], ids[0]}, &err), err);
        for (int i = 0; i < 2; i++) CHECK(equal_bits(sl_session_logits(s[i], NULL), want[i], r.n_vocab));
        for (int i = 0; i < 2; i++) sl_session_free(s[i]);
    }
    for (int i = 0; i < 2; i++) free(want[i]);
    model_fixture_close(&r);
    free(ids);
}
static void ragged(void) {
    check_ragged(NULL);
}

#ifdef SLEIGH_CUDA
static void gpu_forks(void) {
    check_forks("cuda");
}
static void gpu_ragged(void) {
    check_ragged("cuda");
}
#endif

// ---- reports ----

typedef struct seen {
    int n, n_heads, is_sampled;
    sl_prefill_report sum;
} seen;

static void see(void *ctx, const sl_prefill_record *r) {
    seen *x = ctx;
    int first = 3 * x->n_heads; // in the last layer, the first segment does not attend
    CHECK_INT(r->layer * x->n_heads + r->head, x->n < first ? x->n : x->n - first);
    CHECK_INT(r->position, x->n < first ? 0 : 512);
    CHECK_INT(r->n_tokens, r->position ? 388 : 512);
    CHECK(r->sequence == 0 && r->report->visited <= r->report->causal);
    CHECK_INT(r->report->measured != SL_MASK_NOT_SAMPLED, x->is_sampled);
    sl_prefill_report_add(&x->sum, r->report);
    x->n++;
}

// An observer gets each segment, layer and head once, and the checks of rows say what is right for two masks.
static void observed(void) {
    static const struct {
        const char *attn;
        int is_full;
    } cases[] = {{"streaming:window=1024", 1}, {"sample:alpha_c=0.4:alpha_s=0.4", 0}, {"threshold:lambda=0.3", 0}};
    model_fixture r = open_on(NULL, 200), plain = open_on(NULL, 200);
    const sl_config *c = sl_model_config(r.model);
    int32_t *ids = test_ids(900, r.n_vocab, test_seed);
    CHECK_INT(c->n_layers, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        seen x = {.n_heads = c->n_heads, .is_sampled = i < 2, .sum = sl_prefill_report_none()};
        CHECK_OK(sl_engine_observe_prefill(r.engine, &(sl_prefill_observer){see, &x, 5}, &err), err);
        set_prefill(&r, cases[i].attn, NULL, 512), set_prefill(&plain, cases[i].attn, NULL, 512);
        sl_engine_reset_stats(r.engine);
        sl_session *s = session_of(&r, ids, 900), *t = session_of(&plain, ids, 900);
        CHECK(equal_bits(sl_session_logits(s, NULL), sl_session_logits(t, NULL), r.n_vocab));
        CHECK_INT(x.n, 7 * c->n_heads);
        sl_prefill_report all = sl_engine_prefill_total(r.engine);
        CHECK(all.visited == x.sum.visited && all.causal == x.sum.causal && all.kept == x.sum.kept);
        CHECK(all.measured == x.sum.measured && all.n_errors == x.sum.n_errors && all.error_max == x.sum.error_max);
        // 5 rows of each segment and head in 3 layers; in the last layer only the last block attends, with one of the 5 rows
        CHECK_INT(all.n_errors, 31 * c->n_heads);
        if (cases[i].is_full)
            CHECK(all.measured == 1 << SL_SHARE_BITS && all.error_max < 1e-5 && sl_prefill_density(&all) == 1);
        else
            CHECK(all.measured < 1 << SL_SHARE_BITS && sl_prefill_error(&all) > 1e-4 &&
                  all.error_max >= sl_prefill_error(&all));
        sl_session_free(s), sl_session_free(t);
    }
    CHECK_OK(sl_engine_observe_prefill(r.engine, NULL, &err), err);
    model_fixture_close(&r), model_fixture_close(&plain);
    free(ids);
}

static const test_case cases[] = {
    {"progress", 0, progress},
    {"full-masks-are-dense", NEEDS_SPEED, full_masks},
    {"chunks", NEEDS_SPEED, sparse_chunks},
    {"refused", 0, refused_prefill},
    {"forks", 0, forks},
    {"ragged", 0, ragged},
    {"observed", 0, observed},
    GPU_CASE("gpu-full-masks-are-dense", gpu_full_masks),
    GPU_CASE("gpu-chunks", gpu_sparse_chunks),
    GPU_CASE("gpu-densities", gpu_densities),
    GPU_CASE("gpu-forks", gpu_forks),
    GPU_CASE("gpu-ragged", gpu_ragged),
    GPU_CASE("gpu-refused", gpu_refused),
    {0},
};
const test_suite suite_prefill_methods = {"prefill_methods", cases};
