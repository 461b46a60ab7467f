// tests/cuda/test_cuda_extremes.c - test_extremes.c on a GPU. A head whose scores are beyond the range of stored masses attends
// exactly. NaN stays NaN. The other heads of a ragged batch keep their bits. The counters are 0 again for the next launch.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/exact_step_cuda.h"
#include "attention/stages/stages.h"
#include "tests/support/bad_values.h"
#include "tests/support/decode_check.h"
#include "tests/support/extremes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, SEQS = 5, N_DIMS = 2 };
static const int lengths[SEQS] = {1, 300, 1500, 256, 2049}, dims[N_DIMS] = {64, 80};

static ref_cache new_cache(int dim) {
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, dim, SEQS, lengths, 1, test_seed);
    ref_add_to_values(&c, 1);
    return c;
}

static sl_attn_spec spec_of(const char *attn) {
    sl_attn_spec spec;
    sl_error err;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    return spec;
}

static int runs_on_gpu(const char *attn) {
    sl_attn_spec spec = spec_of(attn);
    return sl_attn_on_gpu(&spec);
}

// Heads whose stated error needs too many rows attend to every row exactly, whatever their scores are.
static int states_error(const char *attn) {
    sl_attn_spec spec = spec_of(attn);
    return sl_attn_states_error(&spec);
}

// Launches one method twice: the second launch must give the bits of the first. out: from malloc
static sl_attn_stats launch(ref_cache *c, const char *attn, bf16 **out, double error[SEQS][HEADS]) {
    size_t size = (size_t)SEQS * HEADS * c->geom.head_dim * sizeof(bf16);
    decode_fixture r = fixture_new(c, attn, 5);
    fixture_launch(&r);
    sl_attn_stats stats = r.stats;
    *out = malloc(size);
    memcpy(*out, r.out, size);
    fixture_seed(&r, 5);
    fixture_launch(&r);
    CHECK(!memcmp(*out, r.out, size));
    for (int i = 0; error && i < SEQS * HEADS; i++) error[i / HEADS][i % HEADS] = fixture_error(&r, i / HEADS, i % HEADS, NULL);
    fixture_free(&r);
    return stats;
}

static int is_nan(const bf16 *out, int dim) {
    int n = 0;
    for (int d = 0; d < dim; d++) n += isnan(sl_bf16_to_f32(out[d])) != 0;
    return n == dim ? 1 : n == 0 ? 0 : -1;
}

static void check_other_heads(const char *attn, const bf16 *plain, const bf16 *got, const int bad[SEQS], int dim) {
    for (int i = 0; i < SEQS * HEADS; i++) {
        int s = i / HEADS, head = i % HEADS;
        int shares_query = !strncmp(attn, "bernoulli-group", 15) && bad[s] >= 0 && head / GROUP == bad[s] / GROUP;
        if (head == bad[s] || shares_query) continue;
        if (memcmp(plain + (size_t)i * dim, got + (size_t)i * dim, dim * sizeof *got))
            FAIL("%s, head_dim %d, sequence %d: head %d has other bits when another head is huge", attn, dim, s, head);
    }
}

// bad[s]: the head of sequence s whose query is scaled. -1: none.
static void try_huge(const char *attn, int falls_back, int dim) {
    static const int bad[SEQS] = {1, -1, 3, 7, 6};
    static const float factor[SEQS] = {1e6f, 1, 1e5f, -1e6f, -1e15f};
    ref_cache c = new_cache(dim);
    bf16 *plain, *got;
    double error[SEQS][HEADS];
    sl_attn_stats before = launch(&c, attn, &plain, NULL);
    uint64_t own = before.fallbacks;
    if (own && !states_error(attn)) FAIL("%s: %llu fall-backs of usual scores", attn, (unsigned long long)own);
    for (int s = 0; s < SEQS; s++)
        for (int d = 0; d < dim && bad[s] >= 0; d++) c.q[((size_t)s * HEADS + bad[s]) * dim + d] *= factor[s];
    sl_attn_stats stats = launch(&c, attn, &got, error);
    uint64_t huge = falls_back ? 4 : 0;
    if (stats.fallbacks < huge || stats.fallbacks > own + huge)
        FAIL("%s: %llu fall-backs, %llu before", attn, (unsigned long long)stats.fallbacks, (unsigned long long)own);
    for (int s = 0; s < SEQS; s++) {
        if (bad[s] < 0) continue;
        if (is_nan(got + ((size_t)s * HEADS + bad[s]) * dim, dim))
            FAIL("%s, head_dim %d, sequence %d: the huge head is NaN", attn, dim, s);
        if (falls_back && !(error[s][bad[s]] < 0x1p-8)) // one row has all the mass: the output is its bf16 values
            FAIL("%s, head_dim %d, sequence %d: the huge head is off by %g", attn, dim, s, error[s][bad[s]]);
    }
    check_other_heads(attn, plain, got, bad, dim);
    free(plain), free(got);
    ref_cache_free(&c);
}

static void huge_scores(void) {
    for (int i = 0; i < n_extremes; i++)
        for (int k = 0; k < N_DIMS && runs_on_gpu(extremes[i].attn); k++)
            try_huge(extremes[i].attn, extremes[i].falls_back_on_gpu, dims[k]);
}

// The scores of one head lie far below the range but close together, so that attention is not one-hot.
static void all_far_below(void) {
    enum { DIM = 128 };
    for (int i = 0; i < n_extremes; i++) {
        if (!extremes[i].falls_back_on_gpu || !runs_on_gpu(extremes[i].attn)) continue;
        ref_cache c = new_cache(DIM);
        bf16 *got;
        double error[SEQS][HEADS];
        for (int j = 0; j < lengths[4]; j++) ((bf16 *)ref_k_row(&c, 4, 0, j))[0] = sl_f32_to_bf16(64);
        c.q[(size_t)4 * HEADS * DIM] = -4096; // -23,170 nats, 33,400 octaves
        sl_attn_stats stats = launch(&c, extremes[i].attn, &got, error);
        CHECK(stats.fallbacks == 1 || (stats.fallbacks > 1 && states_error(extremes[i].attn)));
        if (!(error[4][0] < 0.02)) FAIL("%s: off by %g", extremes[i].attn, error[4][0]); // fp32 scores: 2^-9 octaves
        free(got);
        ref_cache_free(&c);
    }
}

static void nan_query(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const int bad[SEQS] = {0, -1, 5, -1, 2};
    enum { DIM = 64 };
    for (int i = 0; i < n_extremes; i++) {
        const char *attn = extremes[i].attn;
        if (!runs_on_gpu(attn)) continue;
        ref_cache c = new_cache(DIM);
        bf16 *plain, *got;
        launch(&c, attn, &plain, NULL);
        for (int s = 0, k = 0; s < SEQS; s++)
            if (bad[s] >= 0) c.q[((size_t)s * HEADS + bad[s]) * DIM + 7] = values[k++];
        launch(&c, attn, &got, NULL);
        for (int s = 0; s < SEQS; s++)
            if (bad[s] >= 0 && is_nan(got + ((size_t)s * HEADS + bad[s]) * DIM, DIM) != 1)
                FAIL("%s, sequence %d: a query with %g does not give NaN", attn, s, values[s / 2]);
        check_other_heads(attn, plain, got, bad, DIM);
        free(plain), free(got);
        ref_cache_free(&c);
    }
}

// One row of KV head 1 is NaN: first in a page with extras, then in the newest page.
static void nan_key(void) {
    enum { DIM = 128 };
    for (int i = 0; i < n_extremes; i++) {
        const char *attn = extremes[i].attn;
        if (!runs_on_gpu(attn) || extremes[i].sees_rows < 1) continue;
        ref_cache c = new_cache(DIM);
        bf16 *got;
        for (int d = 0; d < DIM; d++) ((bf16 *)ref_k_row(&c, 2, 1, 700))[d] = ((bf16 *)ref_k_row(&c, 4, 1, 2048))[d] = 0x7fc0;
        launch(&c, attn, &got, NULL);
        for (int k = 0; k < SEQS * HEADS; k++) {
            int s = k / HEADS, want = (s == 2 || s == 4) && k % HEADS / GROUP == 1;
            if (is_nan(got + (size_t)k * DIM, DIM) != want)
                FAIL("%s, sequence %d, head %d: NaN expected: %d", attn, s, k % HEADS, want);
        }
        free(got);
        ref_cache_free(&c);
    }
}

// Pages whose keys are beyond the range of quantised keys, in all channels or in one. The extras have the CPU's bits.
static void extras(void) {
    static const char *const methods[] = {"santa-is", "santa-is:proposal=int8", "santa-is:proposal=int3", "quest", "dense-q"};
    enum { DIM = 80 };
    for (int m = 0; m < 5; m++) {
        ref_cache c = new_cache(DIM);
        sl_attn_spec spec;
        sl_error err;
        sl_kv_need need[SL_MAX_NEEDS];
        ((bf16 *)ref_k_row(&c, 4, 0, 40))[3] = sl_f32_to_bf16(3e7f);
        ((bf16 *)ref_k_row(&c, 4, 0, 41))[3] = sl_f32_to_bf16(-3e7f);
        ((bf16 *)ref_k_row(&c, 4, 1, 300))[9] = 0x7fc0;
        ((bf16 *)ref_k_row(&c, 2, 0, 700))[0] = 0x7f80;
        CHECK_OK(sl_attn_parse(methods[m], &spec, &err), err);
        decode_fixture r = fixture_new(&c, methods[m], 5);
        CHECK_INT(spec.method->cuda->needs(&spec, need), 1);
        size_t size = need[0].kind->size(need[0].arg, DIM);
        char *block = malloc(size), *want = malloc(size);
        for (int s = 0; s < SEQS; s++)
            for (int page = 0; page < (lengths[s] - 1) / SL_PAGE; page++)
                for (int h = 0; h < KV_HEADS; h++) {
                    const char *from = (const char *)r.args.extra[0] + ((size_t)c.seqs[s].pages[page] * KV_HEADS + h) * size;
                    gpu_read(block, from, size);
                    const bf16 *rows = ref_k_row(&c, s, h, page * SL_PAGE);
                    need[0].kind->build(
                        &(sl_kv_page){
                            .arg = need[0].arg, .head_dim = DIM, .k = sl_kv_bf16_run(rows), .v = sl_kv_bf16_run(rows)},
                        want);
                    // a NaN among bounds may have any sign and payload
                    int n_steps = strcmp(methods[m], "quest") ? (int)size / 2 : 0;
                    for (int k = 0; k < n_steps; k++)
                        if (((const uint16_t *)block)[k] != ((const uint16_t *)want)[k])
                            FAIL("%s, sequence %d, page %d, KV head %d: element %d differs", methods[m], s, page, h, k);
                    for (int k = 0; !n_steps && k < (int)size / 2; k++) {
                        float a = sl_bf16_to_f32(((const bf16 *)block)[k]), b = sl_bf16_to_f32(((const bf16 *)want)[k]);
                        if (a != b && !(isnan(a) && isnan(b)))
                            FAIL("quest, sequence %d, page %d: %g, expected %g", s, page, a, b);
                    }
                }
        free(block), free(want);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// ---- values whose norm fp32 cannot hold ----

enum { BAD_ROW = 2 * SL_PAGE - 1 }; // the last row of a page: the newest row of a step, and in a built page in the next step

// Decodes the steps up to `position`. The steps before BAD_ROW do not see the bad row, and they plan a threshold.
static decode_fixture decode_up_to(ref_cache *c, const char *attn, int position) {
    decode_fixture r = fixture_new(c, attn, 5);
    for (int at = BAD_ROW - 4; at <= position; at++) {
        fixture_go_back(&r, BAD_ROWS - 1 - at);
        if (at < position)
            fixture_decode(&r);
        else
            fixture_launch(&r);
    }
    return r;
}

static int is_number(const decode_fixture *r) {
    for (int i = 0; i < BAD_HEADS * BAD_DIM; i++)
        if (!isfinite(sl_bf16_to_f32(r->out[i]))) return 0;
    return 1;
}

// As bounds/layers on the CPU: such a step is not certified, and it has no bound unless its heads attended exactly.
static void bad_values_of_layers(void) {
    static const char *const methods[] = {"santa-pps:epsilon=0.2", "santa-pps:epsilon=0.2:bound=clt",
                                          "santa-pps:epsilon=0.2:bound=bernstein", "santa-is:proposal=int8:epsilon=0.2",
                                          "santa-is:proposal=int8:epsilon=0.2:bound=clt"};
    for (int m = 0; m < 5; m++)
        for (int kind = 0; kind < n_bad_values; kind++)
            for (int built = 0; built < 2; built++) {
                ref_cache c = bad_cache();
                bad_plant(&c, kind, BAD_ROW);
                decode_fixture r = decode_up_to(&c, methods[m], BAD_ROW + built);
                int draws = m < 3 || (built && r.stats.fallbacks == 0); // santa-is takes the newest page exactly
                CHECK_INT(r.stats.stated, 1);
                if (bad_values[kind].is_number) CHECK(is_number(&r));
                if (draws || !is_number(&r)) {
                    if (r.stats.certified || r.stats.unbounded != 1)
                        FAIL("%s, %s, built %d: %g is stated", methods[m], bad_values[kind].name, built, r.stats.stated_most);
                }
                fixture_free(&r);
                ref_cache_free(&c);
            }
}

// A head that certifies its own error attends to every row.
static void bad_values_of_heads(void) {
    for (int kind = 0; kind < n_bad_values; kind++)
        for (int built = 0; built < 2; built++) {
            ref_cache c = bad_cache();
            bad_plant(&c, kind, BAD_ROW);
            decode_fixture r = decode_up_to(&c, "santa-pps:epsilon=0.2:certify=head", BAD_ROW + built);
            CHECK(r.stats.fallbacks >= 1);
            double mu[BAD_DIM], p[BAD_ROWS];
            float out[BAD_DIM];
            ref_attention(&c, 0, 1, c.q + BAD_DIM, BAD_ROW + built + 1, p, mu);
            for (int d = 0; d < BAD_DIM; d++) out[d] = sl_bf16_to_f32(r.out[BAD_DIM + d]);
            double error = ref_relative(out, mu, BAD_DIM);
            if (bad_values[kind].is_number && !(error < 0.02))
                FAIL("%s, built %d: head 1 is off by %g", bad_values[kind].name, built, error);
            fixture_free(&r);
            ref_cache_free(&c);
        }
}

// A layer-step whose heads attend exactly, because the sequence has few rows, states what the CPU states: no error, if the
// output has a norm.
static void exact_steps(void) {
    enum { HEADS_OF_LAYER = 3, HEAD_DIM = 64, SEQS = 8, N = HEADS_OF_LAYER * HEAD_DIM };
    static const float bad[SEQS] = {0, NAN, INFINITY, -INFINITY, 9.1e18f, 9.3e18f, 1e20f, -3e38f};
    static const char *const specs[] = {"santa-pps:epsilon=0.2", "santa-is:proposal=int8:epsilon=0.2"};
    const sl_attn_geom g = {.n_heads = HEADS_OF_LAYER, .n_kv_heads = 1, .head_dim = HEAD_DIM};
    for (int i = 0; i < 2 * SEQS; i++) {
        bf16 out[N];
        float numbers[N];
        sl_attn_report reports[HEADS_OF_LAYER];
        sl_attn_spec spec;
        sl_error err;
        CHECK_OK(sl_attn_parse(specs[i / SEQS], &spec, &err), err);
        for (int j = 0; j < N; j++)
            out[j] = sl_f32_to_bf16(j == N - 5 && bad[i % SEQS] != 0 ? bad[i % SEQS] : 0.5f * (float)(j % 3));
        for (int j = 0; j < N; j++) numbers[j] = sl_bf16_to_f32(out[j]);
        sl_reports_state_zero(&g, numbers, reports);
        sl_attn_cuda_stats counted, *stats = gpu_zero(sizeof counted);
        sl_attn_cuda_decode_args args = {
            .geom = &g, .spec = &spec, .n_seqs = 1, .out = gpu_copy(out, sizeof out), .stats = stats};
        sl_cuda_exact_step(&args);
        gpu_read(&counted, stats, sizeof counted);
        sl_attn_stats on_gpu = sl_attn_stats_of_kernels(&counted), on_cpu = {0};
        sl_attn_stats_add_stated(&on_cpu, reports[0].stated_error, reports[0].stated_error == 0);
        CHECK_INT(on_gpu.stated, 1);
        CHECK_INT(on_gpu.certified, on_cpu.certified);
        CHECK_INT(on_gpu.unbounded, on_cpu.unbounded);
        CHECK_INT(on_gpu.certified, i % SEQS == 0 || i % SEQS == 4);
        gpu_free_all();
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("huge-scores", huge_scores),
    GPU_CASE("all-far-below", all_far_below),
    GPU_CASE("nan-query", nan_query),
    GPU_CASE("nan-key", nan_key),
    GPU_CASE("extras", extras),
    GPU_CASE("bad-values-of-layers", bad_values_of_layers),
    GPU_CASE("bad-values-of-heads", bad_values_of_heads),
    GPU_CASE("exact-steps", exact_steps),
    {0},
};
const test_suite suite_cuda_extremes = {"cuda_extremes", cases};
