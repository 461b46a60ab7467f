// tests/cuda/test_cuda_means.c - means of a GPU's draws over 200 seeds. The mean of an unbiased method is dense attention's
// output. The mean of Bernoulli scores is q K^T. The bias of a self-normalised method falls as the number of draws grows. The
// last cases measure how large errors are.
//
// A mean of R outputs may differ from the expected vector by 4 sqrt(trace Cov / R), with the covariance of the R outputs, and
// by roundings that are the same in every run. Stored masses are off by at most 2^-8 each (2^-9 RMS), independently. The
// rounding of the output to bf16 has the same size, but differs from run to run where rows are drawn.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"
#include "tests/support/means.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 200, HEADS = 32, KV_HEADS = 8, DIM = 128, N = 4000 };
static const int n_kv = N;

// The mean of a vector and the trace of its covariance over SEEDS runs.
typedef struct moments {
    int n;
    double *sum, square;
} moments;

static moments moments_new(int n) {
    return (moments){.n = n, .sum = calloc(n, sizeof(double))};
}

static void moments_add(moments *m, const double *x) {
    for (int i = 0; i < m->n; i++) m->sum[i] += x[i], m->square += x[i] * x[i];
}

// Compares the mean with `want`, then frees m. slack: allowed beyond 4 standard errors.
static void moments_check(moments *m, const double *want, double slack, const char *what, int head) {
    double variance = m->square / SEEDS, off = 0;
    for (int i = 0; i < m->n; i++) {
        double mean = m->sum[i] / SEEDS;
        variance -= mean * mean, off += (mean - want[i]) * (mean - want[i]);
    }
    double error = sqrt(fmax(variance, 0) / SEEDS);
    if (!(sqrt(off) <= 4 * error + slack))
        FAIL("%s, head %d: the mean is off by %.4g, its standard error %.4g, rounding %.4g", what, head, sqrt(off), error,
             slack);
    free(m->sum);
}

static double norm(const double *x, int n) {
    double square = 0;
    for (int i = 0; i < n; i++) square += x[i] * x[i];
    return sqrt(square);
}

static void output(const decode_fixture *r, int head, double *to) {
    for (int d = 0; d < DIM; d++) to[d] = sl_bf16_to_f32(r->out[head * DIM + d]);
}

// ---- outputs ----

// One step with this seed. n_before steps, at the rows before the newest row, plan a threshold that the layer carries.
static void decode_seed(decode_fixture *r, uint32_t seed, int n_before) {
    fixture_seed(r, seed);
    for (int back = n_before; back > 0; back--) {
        r->rows[0].position = N - 1 - back;
        fixture_upload_rows(r);
        fixture_decode(r);
    }
    r->rows[0].position = N - 1;
    fixture_upload_rows(r);
    fixture_launch(r);
}

// Steps before a step whose threshold is carried.
static int steps_before(const decode_fixture *r) {
    return sl_carries_threshold(&r->spec) ? 3 : 0;
}

// Every head must draw: an output of all rows has the same value in every run, and the roundings of the masses and of the
// output are not averaged.
static void check_unbiased(ref_cache *c, const char *attn, int n_before) {
    moments m[HEADS];
    double mu[HEADS][DIM], out[DIM];
    decode_fixture r = fixture_new(c, attn, 0);
    if (n_before < 0) n_before = steps_before(&r);
    for (int h = 0; h < HEADS; h++) m[h] = moments_new(DIM);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        decode_seed(&r, seed, n_before);
        CHECK_INT(r.stats.fallbacks, 0);
        for (int h = 0; h < HEADS; h++) {
            if (seed == 0) fixture_error(&r, 0, h, mu[h]);
            output(&r, h, out);
            moments_add(&m[h], out);
        }
    }
    for (int h = 0; h < HEADS; h++) moments_check(&m[h], mu[h], 0x1p-9 * norm(mu[h], DIM), attn, h);
    fixture_free(&r);
}

static void unbiased(void) {
    static const char *const specs[] = {"santa:S=64",
                                        "santa-strat:S=64",
                                        "santa-sys:S=64",
                                        "santa-flash:S=512",
                                        "santa-sys:S=1000",
                                        "santa-pps:S=64:budget=even",
                                        "santa-pps:S=64:pps=sys:budget=even",
                                        "santa-pps:S=64:budget=carried",
                                        "santa-pps:S=64:budget=carried:pps=sys"};
    for (int scale = 1; scale <= 4; scale += 3) { // flat and peaked
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, scale, test_seed + scale);
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) check_unbiased(&c, specs[i], -1);
        ref_cache_free(&c);
    }
}

// The mean of a join is attention to the set of its first method.
static void joins(void) {
    static const char *const specs[] = {"quest:tokens=1024+santa-sys:S=64", "topk:k=400+santa:S=64",
                                        "topp:p=0.8+santa-strat:S=64", "streaming:window=700+santa-flash:S=512"};
    for (int scale = 1; scale <= 4; scale += 3) { // flat and peaked
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, scale, test_seed + scale);
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) check_unbiased(&c, specs[i], 0);
        ref_cache_free(&c);
    }
}

// ---- a cache of fp8 or int8 ----

// The draws of santa-prop for each tile of a head, from its stored masses (methods-theory.md): floor(S W / Z), and one more for
// the tiles of the largest remainders.
static void tile_budgets(const sl_masses *m, int S, int *budget) {
    int n = (m->n + SL_PAGE - 1) / SL_PAGE, left = S;
    double rest[N / SL_PAGE + 1], total = (double)m->cum[m->n_blocks];
    for (int t = 0; t < n; t++) {
        int end = (t + 1) * (SL_PAGE / SL_BLOCK) < m->n_blocks ? (t + 1) * (SL_PAGE / SL_BLOCK) : m->n_blocks;
        double share = S * (double)(m->cum[end] - m->cum[t * (SL_PAGE / SL_BLOCK)]) / total;
        left -= budget[t] = (int)share;
        rest[t] = share - budget[t];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int t = 1; t < n; t++)
            if (rest[t] > rest[best]) best = t;
        budget[best]++, rest[best] = -1;
    }
}

// santa-prop has the mean sum_t (S_t / S) mu_t, with mu_t the attention within tile t. The mean of santa-is differs from dense
// attention by a bias that falls as S grows.
static void check_prop(ref_cache *c, int S) {
    char attn[32];
    snprintf(attn, sizeof attn, "santa-prop:S=%d", S);
    decode_fixture r = fixture_new(c, attn, 0);
    moments m[HEADS];
    double(*want)[DIM] = calloc(HEADS, sizeof *want), *p = malloc(N * sizeof *p), out[DIM];
    for (int h = 0; h < HEADS; h++) m[h] = moments_new(DIM);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        decode_seed(&r, seed, 0);
        for (int h = 0; h < HEADS; h++) {
            output(&r, h, out);
            moments_add(&m[h], out);
        }
    }
    for (int h = 0; h < HEADS; h++) {
        int budget[N / SL_PAGE + 1];
        sl_masses masses = fixture_masses(&r, 0, 0, h);
        double mu[DIM], v[DIM], weight[N / SL_PAGE + 1] = {0};
        tile_budgets(&masses, S, budget);
        ref_attention(c, 0, h, c->q + h * DIM, N, p, mu);
        for (int j = 0; j < N; j++) weight[j / SL_PAGE] += p[j];
        for (int j = 0; j < N; j++) {
            ref_value(c, 0, h / (HEADS / KV_HEADS), j, v);
            for (int d = 0; d < DIM; d++) want[h][d] += p[j] / weight[j / SL_PAGE] * budget[j / SL_PAGE] / S * v[d];
        }
        fixture_masses_free(&masses);
        moments_check(&m[h], want[h], 0x1p-9 * norm(want[h], DIM), attn, h);
    }
    free(want), free(p);
    fixture_free(&r);
}

static void unbiased_bytes(void) {
    static const char *const specs[] = {"santa:S=64",        "santa-strat:S=64",           "santa-sys:S=64",
                                        "santa-flash:S=512", "santa-pps:S=64:budget=even", "santa-pps:S=64:budget=carried"};
    static const sl_format formats[] = {SL_FP8, SL_INT8};
    for (int i = 0; i < 4; i++) { // flat and peaked
        int scale = i / 2 ? 4 : 1;
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, scale, test_seed + scale);
        ref_store_as(&c, formats[i % 2]);
        for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) check_unbiased(&c, specs[k], -1);
        check_prop(&c, 64);
        ref_cache_free(&c);
    }
}

// A stated error of a layer, in a first step (the heads search) and after three steps. Values have a mean, because an error
// relative to the mean of independent values needs more than half of the rows.
static void stated_errors_of_layers(void) {
    static const char *const specs[] = {"santa-pps:epsilon=0.3:certify=layer", "santa-pps:epsilon=0.3:certify=layer:bound=clt"};
    for (int scale = 1; scale <= 4; scale += 3) {
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, scale, test_seed + scale);
        ref_add_to_values(&c, 1);
        for (int i = 0; i < 2; i++)
            for (int n_before = 0; n_before <= 3; n_before += 3) check_unbiased(&c, specs[i], n_before);
        ref_cache_free(&c);
    }
}

// ---- Bernoulli qK^T ----

// Scores are unbiased (their softmax is not). A score that is computed from a stored mass is off by at most 2^-8 / ln 2, and by
// less than 2^-9 / ln 2 RMS, which the test allows.
static void bernoulli_scores(void) {
    static const char *const specs[] = {"bernoulli:B=4+santa:S=1", "bernoulli:B=4:bernoulli-sampling=iid+santa:S=1",
                                        "bernoulli-group:B=4+santa:S=1",
                                        "bernoulli-group:B=4:bernoulli-sampling=iid+santa:S=1"};
    enum { ROWS = 600, FEW = 8 };
    int n = ROWS;
    ref_cache c = ref_cache_new(FEW, 2, DIM, 1, &n, 1, test_seed);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        decode_fixture exact = fixture_new(&c, "santa:S=1", 0), r = fixture_new(&c, specs[i], 0);
        moments m[FEW];
        for (int h = 0; h < FEW; h++) m[h] = moments_new(ROWS);
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            fixture_seed(&r, seed);
            fixture_launch(&r);
            for (int h = 0; h < FEW; h++) {
                sl_masses wt = fixture_masses(&r, 0, 0, h);
                double score[ROWS];
                for (int j = 0; j < n; j++) score[j] = wt.ref[j / SL_BLOCK] + log2(sl_bf16_to_f32(wt.stored[j]));
                moments_add(&m[h], score);
                fixture_masses_free(&wt);
            }
        }
        for (int kv = 0; kv < 2; kv++) {
            double *want = fixture_scores(&exact, 0, kv);
            for (int h = 0; h < 4; h++)
                moments_check(&m[kv * 4 + h], want + h * n, 0x1p-9 / log(2) * sqrt(n), specs[i], kv * 4 + h);
            free(want);
        }
        fixture_free(&exact), fixture_free(&r);
    }
    ref_cache_free(&c);
}

// The mean with a sampler is the mean of attention over all rows with the same scores: a seed gives the same counts with and
// without a sampler.
static void bernoulli_values(void) {
    static const char *const samplers[] = {"santa:S=64", "santa-strat:S=64", "santa-sys:S=64", "santa-flash:S=512"};
    static const char *const scores[] = {"bernoulli:B=8", "bernoulli-group:B=8"};
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, 1, test_seed);
    static const double zero[DIM];
    for (int k = 0; k < 8; k++) {
        char attn[64];
        snprintf(attn, sizeof attn, "%s+%s", scores[k / 4], samplers[k % 4]);
        decode_fixture every = fixture_new(&c, scores[k / 4], 0), r = fixture_new(&c, attn, 0);
        moments m[HEADS];
        double size[HEADS] = {0}, a[DIM], b[DIM];
        for (int h = 0; h < HEADS; h++) m[h] = moments_new(DIM);
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            fixture_seed(&every, seed), fixture_seed(&r, seed);
            fixture_decode(&every), fixture_decode(&r);
            for (int h = 0; h < HEADS; h++) {
                output(&r, h, a), output(&every, h, b);
                size[h] += norm(b, DIM) / SEEDS;
                for (int d = 0; d < DIM; d++) a[d] -= b[d];
                moments_add(&m[h], a);
            }
        }
        for (int h = 0; h < HEADS; h++) moments_check(&m[h], zero, 0x1p-8 * size[h], attn, h); // both outputs are rounded
        fixture_free(&every), fixture_free(&r);
    }
    ref_cache_free(&c);
}

// ---- self-normalised methods ----

typedef struct bias {
    double mean, error; // the mean of (out - mu).mu / |mu|^2 over all heads, and its standard error
} bias;

static bias bias_of(ref_cache *c, const char *attn) {
    decode_fixture r = fixture_new(c, attn, 0);
    double mu[HEADS][DIM], out[DIM], sum = 0, square = 0;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        double all = 0;
        decode_seed(&r, seed, steps_before(&r));
        for (int h = 0; h < HEADS; h++) {
            double dot = 0;
            if (seed == 0) fixture_error(&r, 0, h, mu[h]);
            output(&r, h, out);
            for (int d = 0; d < DIM; d++) dot += (out[d] - mu[h][d]) * mu[h][d];
            all += dot / pow(norm(mu[h], DIM), 2) / HEADS;
        }
        sum += all, square += all * all;
    }
    fixture_free(&r);
    double mean = sum / SEEDS;
    return (bias){mean, sqrt(fmax(square / SEEDS - mean * mean, 0) / SEEDS)};
}

// The first-order bias is -Cov(N - mu D, D) / Z^2, which is O(1 / S). When the values are the keys, it has the direction of mu.
// Four times as many draws must at least halve the bias, if it is larger than its standard error.
static void check_bias_falls(ref_cache *c, const char *const specs[4]) {
    bias before = {INFINITY, 0};
    for (int k = 0; k < 4 && specs[k]; k++) {
        bias b = bias_of(c, specs[k]);
        printf("      %s: bias %+.5f +- %.5f\n", specs[k], b.mean, b.error);
        if (!(fabs(b.mean) <= 0.5 * fabs(before.mean) + 4 * b.error))
            FAIL("%s: bias %.5f +- %.5f, with a quarter of the draws %.5f", specs[k], b.mean, b.error, before.mean);
        before = b;
    }
}

static void self_normalised(void) {
    static const char *const specs[][4] = {
        {"random:S=64", "random:S=256", "random:S=1024"},
        {"santa-is:S=8:proposal=int3:budget=even", "santa-is:S=32:proposal=int3:budget=even",
         "santa-is:S=128:proposal=int3:budget=even"},
        {"santa-is:S=8:budget=even", "santa-is:S=32:budget=even", "santa-is:S=128:budget=even", "santa-is:S=512:budget=even"},
        {"vattention:sink=8:window=8:top=0:base=0.004:epsilon=1:verify=denominator",
         "vattention:sink=8:window=8:top=0:base=0.016:epsilon=1:verify=denominator",
         "vattention:sink=8:window=8:top=0:base=0.064:epsilon=1:verify=denominator"},
    };
    ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n_kv, 1, test_seed);
    for (int h = 0; h < KV_HEADS; h++)
        for (int j = 0; j < N; j++) memcpy((bf16 *)ref_v_row(&c, 0, h, j), ref_k_row(&c, 0, h, j), DIM * sizeof(bf16));
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) check_bias_falls(&c, specs[i]);
    ref_store_as(&c, SL_FP8);                                      // K and V of a row have equal bits again
    for (size_t i = 1; i < 3; i++) check_bias_falls(&c, specs[i]); // santa-is
    ref_cache_free(&c);
}

// ---- how large errors are ----

// The mean relative error over heads and many seeds.
static double mean_error(ref_cache *c, const char *attn) {
    enum { MANY = 2000 }; // with flat attention the errors of the methods differ by a thousandth only
    double sum = 0, mu[HEADS][DIM];
    decode_fixture r = fixture_new(c, attn, 0);
    for (uint32_t seed = 0; seed < MANY; seed++) {
        fixture_seed(&r, seed);
        fixture_decode(&r);
        for (int h = 0; h < c->geom.n_heads; h++) {
            float out[DIM];
            if (seed == 0) fixture_error(&r, 0, h, mu[h]);
            for (int d = 0; d < DIM; d++) out[d] = sl_bf16_to_f32(r.out[h * DIM + d]);
            sum += ref_relative(out, mu[h], DIM) / c->geom.n_heads / MANY;
        }
    }
    fixture_free(&r);
    return sum;
}

// Compares the errors of methods with the errors of the published method's default, from flat to peaked attention. Flat
// attention has no heavy rows, and the norms of Gaussian values differ by 6%: then draws in proportion to p |v| have an error
// that is 0.2% smaller than the error of draws from p. This difference is a few standard errors.
static void errors(void) {
    static const double scales[] = {0.5, 1, 2, 4};
    static const int n[] = {8192, 32768};
    for (int i = 0; i < 8; i++) {
        double scale = scales[i % 4];
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n[i / 4], scale, test_seed);
        double prop = mean_error(&c, "santa-prop:S=128"), pps = mean_error(&c, "santa-pps:S=128:budget=even"),
               is = mean_error(&c, "santa-is:S=256:budget=even");
        printf("      %d rows, query deviation %g: santa-prop %.4f, santa-pps %.4f (%.4f of prop), santa-is int4 S=256 %.4f "
               "(%.2f)\n",
               n[i / 4], scale, prop, pps, pps / prop, is, is / prop);
        CHECK(pps < prop * (scale < 2 ? 1.001 : 1));
        if (scale == 4) CHECK(is <= 0.55 * prop);
        ref_cache_free(&c);
    }
}
// ---- every method has the mean that its label states (test_means.c) ----

enum { LABEL_SEQS = 8, LABEL_HEADS = 32, REPLICATES = LABEL_SEQS * LABEL_HEADS };
static const double ROUNDING = 0x1p-8; // outputs are bf16; methods that read every row also round masses to bf16

static ref_cache label_cache(int problem, double mu[MEANS_DIM]) {
    int n[LABEL_SEQS];
    for (int s = 0; s < LABEL_SEQS; s++) n[s] = means_rows(problem);
    ref_cache c = ref_cache_new(LABEL_HEADS, 4, MEANS_DIM, LABEL_SEQS, n, 0, test_seed);
    means_fill(&c, problem, test_seed + 100 * problem, mu);
    return c;
}

static means_verdict measure(ref_cache *c, const char *attn, const double *mu, int launches) {
    means m = means_of(mu);
    decode_fixture r = fixture_new(c, attn, 0);
    for (int i = 0; i < launches; i++) {
        fixture_seed(&r, (uint32_t)(test_seed + i));
        fixture_decode(&r);
        for (int k = 0; k < REPLICATES; k++) {
            float out[MEANS_DIM];
            for (int d = 0; d < MEANS_DIM; d++) out[d] = sl_bf16_to_f32(r.out[k * MEANS_DIM + d]);
            means_add(&m, out);
        }
    }
    fixture_free(&r);
    return means_judge(&m, ROUNDING);
}

static void labels(void) {
    printf("      | method | label | problem | bias along mu | standard error | worst channel, standard errors | found |\n");
    for (int problem = 0; problem < MEANS_PROBLEMS; problem++) {
        double mu[MEANS_DIM];
        ref_cache c = label_cache(problem, mu);
        for (int i = 0; sl_attn_methods[i]; i++) {
            if (!sl_attn_methods[i]->cpu->decode) continue;
            const char *attn = means_spec(sl_attn_methods[i]->name);
            sl_attn_spec spec;
            sl_error err;
            CHECK(attn != NULL);
            CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
            if (!sl_attn_on_gpu(&spec)) continue;
            sl_attn_mean label = sl_attn_mean_of(&spec);
            means_verdict v = measure(&c, attn, mu, label == SL_MEAN_UNBIASED ? 40 : 4);
            means_check(attn, label, problem, label == SL_MEAN_UNBIASED, &v);
        }
        ref_cache_free(&c);
    }
}

// santa-pps with --epsilon is labelled biased, because a head accepts its draws when the bound is small compared with the
// estimate. Values of one channel show the bias. The test fails when the bias is gone, because the label would then be wrong.
static void stated_errors_are_biased(void) {
    static const char *const specs[] = {"santa-pps:certify=head:epsilon=0.2:delta=0.2",
                                        "santa-pps:certify=head:epsilon=0.4:delta=0.2",
                                        "santa-pps:certify=head:epsilon=0.3:delta=0.2:bound=bernstein"};
    double mu[MEANS_DIM];
    ref_cache c = label_cache(1, mu);
    for (int i = 0; i < 3; i++) {
        means_verdict v = measure(&c, specs[i], mu, 20);
        printf("      | %s | one-channel | %+.2f%% | %.3f%% |\n", specs[i], 100 * v.bias, 100 * v.error);
        CHECK(v.is_biased && v.bias > 0 && v.bias < 0.06);
    }
    ref_cache_free(&c);
}
#endif

static const test_case cases[] = {
    GPU_CASE("labels", labels),
    GPU_CASE("stated-errors-are-biased", stated_errors_are_biased),
    GPU_CASE("unbiased", unbiased),
    GPU_CASE("joins", joins),
    GPU_CASE("unbiased-bytes", unbiased_bytes),
    GPU_CASE("unbiased-stated", stated_errors_of_layers),
    GPU_CASE("bernoulli-scores", bernoulli_scores),
    GPU_CASE("bernoulli-values", bernoulli_values),
    GPU_CASE("self-normalised", self_normalised),
    GPU_CASE("errors", errors),
    {0},
};
const test_suite suite_cuda_means = {"cuda_means", cases};
