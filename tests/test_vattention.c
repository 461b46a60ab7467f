// tests/test_vattention.c - vAttention: what is fixed, how the residual is sampled, how many rows a stated error asks for, and
// how often it is exceeded.
#include "tests/reference.h"
#include "tests/test.h"
#include "tests/weights.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char *const verify_names[] = {"denominator", "numerator", "output"};

// Values with a mean: without one a flat head's output is so near zero that a relative error needs every row.
static ref_cache cache_with_mean(int n, double scale, uint64_t seed) {
    ref_cache c = ref_cache_new(8, 2, 64, 1, &n, scale, seed);
    for (int j = 0; j < n; j++)
        for (int h = 0; h < 2; h++)
            for (int d = 0; d < 64; d++) {
                bf16 *v = (bf16 *)ref_v_row(&c, 0, h, j) + d;
                *v = sl_f32_to_bf16(sl_bf16_to_f32(*v) + 1);
            }
    return c;
}

static void small_contexts_are_dense(void) { // sink + window cover them, or the base sample does
    static const int n[] = {1, 31, 128, 255, 256, 257};
    static const struct { int heads, kv_heads, dim; } g[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 128}, {8, 1, 128}};
    static const char *const specs[] = {"vattention", "vattention:sink=0:window=1:base=1",
                                        "vattention:sink=64:window=64:epsilon=0.001:predictor=quest",
                                        "vattention:bound=hoeffding:epsilon=0.001"};
    double p[257], mu[128];
    for (int i = 0; i < 4; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 6, n, 1, test_seed + i);
        for (int k = 0; k < 4; k++) {
            ref_decode(&c, specs[k], 0, 6, 3, 0);
            for (int s = 0; s < 6; s++)
                for (int head = 0; head < g[i].heads; head++) {
                    ref_attention(&c, s, head, c.queries[s].q + head * g[i].dim, n[s], p, mu);
                    double e = ref_relative(c.queries[s].out + head * g[i].dim, mu, g[i].dim);
                    if (!(e < 0x1p-7)) FAIL("%s, n=%d, head %d: error %g", specs[k], n[s], head, e);
                }
        }
        ref_cache_free(&c);
    }
}

// ---- the pieces of an estimate, from what the method drew ----

typedef struct drawn {
    int n_fixed, n_sample, n_residual;
    double weight; // n_s / b
} drawn;

// Runs the draw alone for one head, on exact weights that it makes itself, and leaves the rows in x->draws.
typedef struct lab {
    ref_cache c;
    sl_attn_spec spec;
    sl_attn_decode_args args;
    sl_group group;
    sl_head head;
    sl_attn_report report;
    sl_rng_id id;
} lab;

static void lab_open(lab *l, int n, double scale, const char *attn, uint64_t seed) {
    sl_error err;
    memset(l, 0, sizeof *l);
    l->c = cache_with_mean(n, scale, seed);
    ref_decode(&l->c, attn, 0, 1, 1, 0); // keeps and builds the extras
    CHECK_OK(sl_attn_parse(attn, &l->spec, &err), err);
    l->args = (sl_attn_decode_args){.geom = &l->c.geom, .spec = &l->spec, .n_seqs = 1, .seqs = l->c.queries};
    l->group = sl_group_of(&l->args, 0, 0);
    int blocks = (n + 31) / 32;
    sl_weights wt = {.n = n,
                     .n_blocks = blocks,
                     .w = calloc(blocks * 32, sizeof(bf16)),
                     .ref = calloc(blocks, sizeof(int16_t)),
                     .cum = calloc(blocks + 1, sizeof(uint64_t))};
    float *score = malloc(SL_MAX_GROUP * SL_CHUNK * sizeof *score);
    for (int page = 0; page * 256 < n; page++) {
        sl_score_exact(&l->group, page, score);
        l->group.kernels->weigh(score, sl_page_rows(l->group.kv, page), wt.w + page * 256, wt.ref + page * 8,
                                wt.cum + page * 8 + 1);
    }
    free(score);
    sl_weights_finish(&wt);
    l->head =
        (sl_head){.group = &l->group,
                  .draw = &sl_draw_verified,
                  .q = l->group.q,
                  .weights = wt,
                  .draws = {.row = calloc(n, 4), .count = calloc(n, 4), .inv_pi = calloc(n, 4), .scratch = calloc(n + 8, 8)},
                  .rows = calloc(n, sizeof(bf16 *)),
                  .coef = calloc(n, 4),
                  .score = calloc(n, 4),
                  .out = calloc(64, 4),
                  .report = &l->report};
    l->head.u = sl_uniform_philox(&l->id);
}

static void lab_close(lab *l) {
    free(l->head.weights.w), free(l->head.weights.ref), free(l->head.weights.cum);
    free(l->head.draws.row), free(l->head.draws.count), free(l->head.draws.inv_pi), free(l->head.draws.scratch);
    free(l->head.rows), free(l->head.coef), free(l->head.score), free(l->head.out);
    ref_cache_free(&l->c);
}

static drawn look(const lab *l) {
    drawn d = {.weight = 1};
    for (int i = 0; i < l->head.draws.n; i++) {
        CHECK(i == 0 || l->head.draws.row[i] > l->head.draws.row[i - 1]);
        CHECK_INT(l->head.draws.count[i], 1);
        d.n_fixed += l->head.draws.inv_pi[i] == 1;
        if (l->head.draws.inv_pi[i] != 1) d.n_sample++, d.weight = l->head.draws.inv_pi[i];
    }
    d.n_residual = l->head.weights.n - d.n_fixed;
    return d;
}

// The sample is without replacement, from the residual alone, each of its rows equally often: of R runs a row's count has
// standard deviation sqrt(R f (1 - f)), f = b / n_s; 5 of them for the worst of 900 rows.
static void uniform_sample(void) {
    enum { N = 1000, R = 2000 };
    lab l;
    lab_open(&l, N, 0.5, "vattention:sink=16:window=16:top=0.05:base=0.1:epsilon=1:verify=denominator", test_seed);
    static double seen[N];
    static int fixed[N];
    memset(seen, 0, sizeof seen);
    drawn first = {0};
    for (uint32_t r = 0; r < R; r++) {
        l.id.position = r;
        l.head.draw->run(&l.head);
        drawn d = look(&l);
        if (r == 0) first = d;
        CHECK_INT(d.n_fixed, first.n_fixed);
        CHECK_INT(d.n_sample, (int)ceil(0.1 * d.n_residual)); // the base sample is enough at this epsilon
        CHECK_NEAR(d.weight * d.n_sample, d.n_residual, 1e-3);
        for (int i = 0; i < l.head.draws.n; i++) {
            int j = l.head.draws.row[i], is_fixed = l.head.draws.inv_pi[i] == 1;
            if (r == 0 && is_fixed) fixed[j] = 1;
            CHECK_INT(is_fixed, fixed[j]); // what is fixed depends on the weights alone
            seen[j] += !is_fixed;
        }
    }
    double f = (double)first.n_sample / first.n_residual;
    for (int j = 0; j < N; j++)
        if (!fixed[j]) CHECK_NEAR(seen[j], R * f, 5 * sqrt(R * f * (1 - f)));
    for (int j = 0; j < 16; j++) CHECK(fixed[j] && fixed[N - 1 - j]);
    lab_close(&l);
}

// The number of rows by the formulas, from an own reading of the base sample: the rows that epsilon = 1 draws are that sample.
static void budgets_by_formula(void) {
    enum { N = 3000 };
    for (int verify = 0; verify < 3; verify++)
        for (int k = 0; k < 2; k++) {
            char base[160], spec[160];
            double epsilon = verify == 2 ? 0.3 : 0.1, delta = 0.1, scale = k ? 1.5 : 0.3;
            snprintf(base, sizeof base, "vattention:sink=32:window=32:top=0.02:base=0.1:epsilon=1:verify=denominator");
            snprintf(spec, sizeof spec, "vattention:sink=32:window=32:top=0.02:base=0.1:epsilon=%g:delta=%g:verify=%s", epsilon,
                     delta, verify_names[verify]);
            lab small, large;
            lab_open(&small, N, scale, base, test_seed + k);
            lab_open(&large, N, scale, spec, test_seed + k);
            small.head.draw->run(&small.head);
            large.head.draw->run(&large.head);
            drawn d = look(&small), got = look(&large);
            double e = 0, squares = 0, D = 0, N_v[64] = {0}, sum_v[64] = {0}, ev = 0,
                   total = (double)sl_weights_total(&small.head.weights);
            for (int i = 0; i < small.head.draws.n; i++) {
                int j = small.head.draws.row[i], sampled = small.head.draws.inv_pi[i] != 1;
                double own = (double)sl_weights_mass(&small.head.weights, j) / total;
                D += own * small.head.draws.inv_pi[i];
                if (sampled) e += own, squares += own * own;
                for (int c = 0; c < 64; c++) {
                    double v = sl_bf16_to_f32(ref_v_row(&small.c, 0, 0, j)[c]);
                    N_v[c] += own * v * small.head.draws.inv_pi[i];
                    if (sampled) sum_v[c] += own * v, ev += own * own * v * v;
                }
                int found = 0; // the base sample is a part of the larger one
                for (int o = 0; sampled && o < large.head.draws.n; o++) found |= large.head.draws.row[o] == j;
                CHECK(found || !sampled);
            }
            double m = d.n_sample, n_s = d.n_residual, norm = 0, mean = 0, b = INFINITY;
            for (int c = 0; c < 64; c++) norm += N_v[c] * N_v[c], mean += sum_v[c] * sum_v[c] / m;
            double sigma = sqrt((squares - e * e / m) / (m - 1)), trace = (ev - mean) / (m - 1);
            double z = sl_normal_quantile(1 - delta / 2);
            if (verify == 0) b = pow(z * n_s * sigma / (epsilon * D), 2);
            if (verify == 1) b = pow(z * n_s * sqrt(trace / norm) / epsilon, 2);
            for (double part = delta / 1000; verify == 2 && part < delta; part += delta / 1000) {
                double A = sl_normal_quantile(1 - part / 2) * sigma / D;
                double C = sl_normal_quantile(1 - (delta - part) / 2) * sqrt(trace / norm);
                b = fmin(b, pow(2 * n_s * (A + C) / epsilon, 2));
            }
            b = fmax(m, ceil(b / (1 + b / n_s)));
            if (!(fabs(got.n_sample - b) <= 1 + 0.005 * b))
                FAIL("%s, scale %g: %d rows, expected %g", verify_names[verify], scale, got.n_sample, b);
            lab_close(&small), lab_close(&large);
        }
    CHECK_NEAR(sl_normal_quantile(0.975), 1.959963984540054, 1e-12);
    CHECK_NEAR(sl_normal_quantile(0.5), 0, 1e-12);
}

// Relative errors of D, N and N / D by what was drawn, against all rows with the same weights.
static void true_errors(const lab *l, double error[3]) {
    const sl_weights *wt = &l->head.weights;
    double total = (double)sl_weights_total(wt), D = 0, N[64] = {0}, mu[64] = {0}, norm = 0, off = 0, off_out = 0;
    for (int j = 0; j < wt->n; j++)
        for (int c = 0; c < 64; c++)
            mu[c] += (double)sl_weights_mass(wt, j) / total * sl_bf16_to_f32(ref_v_row(&l->c, 0, 0, j)[c]);
    for (int i = 0; i < l->head.draws.n; i++) {
        int j = l->head.draws.row[i];
        double own = (double)sl_weights_mass(wt, j) / total * l->head.draws.inv_pi[i];
        D += own;
        for (int c = 0; c < 64; c++) N[c] += own * sl_bf16_to_f32(ref_v_row(&l->c, 0, 0, j)[c]);
    }
    for (int c = 0; c < 64; c++) norm += mu[c] * mu[c], off += pow(N[c] - mu[c], 2), off_out += pow(N[c] / D - mu[c], 2);
    error[0] = fabs(D - 1), error[1] = sqrt(off / norm), error[2] = sqrt(off_out / norm);
}

// The share of errors above epsilon is at most delta for the quantity that is verified. The budget rests on a sample's estimate
// of spread and on the central limit theorem, so that the share is measured, with its interval.
static void coverage(int verify, const char *bound, double epsilon, double base) {
    static const double scales[] = {0.5, 1, 2};
    const double delta = 0.1;
    int exceeded = 0, runs = 0, all_rows = 0, seeds = 100 / SCALE;
    for (int k = 0; k < 3; k++) {
        char spec[200];
        snprintf(spec, sizeof spec, "vattention:sink=32:window=32:top=0.05:base=%g:epsilon=%g:delta=%g:verify=%s:bound=%s",
                 base, epsilon, delta, verify_names[verify], bound);
        lab l;
        lab_open(&l, 2500, scales[k], spec, test_seed + k);
        for (int seed = 0; seed < seeds; seed++, runs++) {
            double error[3];
            l.id.seed = (uint32_t)(test_seed + seed);
            l.head.draw->run(&l.head);
            true_errors(&l, error);
            exceeded += error[verify] > epsilon;
            all_rows += l.head.draws.n == 2500;
        }
        lab_close(&l);
    }
    printf("      %s, %s, epsilon %g, delta %g: %d of %d exceed it (at most %.1f%%, 95%% confidence); %d read every row\n",
           verify_names[verify], bound, epsilon, delta, exceeded, runs, 100 * upper_share(exceeded, runs), all_rows);
    CHECK(exceeded <=
          delta * runs + 2 * sqrt(delta * (1 - delta) * runs)); // 2 standard errors: delta itself must not be refused
    CHECK(all_rows < runs);
}
static void coverage_denominator(void) {
    coverage(0, "clt", 0.05, 0.05);
    coverage(0, "hoeffding", 0.3, 0.05);
}
static void coverage_numerator(void) {
    coverage(1, "clt", 0.1, 0.05);
}
static void coverage_output(void) {
    coverage(2, "clt", 0.3, 0.05);
}

// With the base sample's floor off and b < n_s the error is near-linear in epsilon: slope of log error on log epsilon.
static void error_follows_epsilon(void) {
    static const double epsilons[] = {0.03, 0.06, 0.12};
    double x[3], y[3], sxx = 0, sxy = 0, mx = 0, my = 0;
    for (int i = 0; i < 3; i++) {
        char spec[160];
        snprintf(spec, sizeof spec, "vattention:sink=32:window=32:top=0.01:base=0.01:epsilon=%g:verify=denominator",
                 epsilons[i]);
        lab l;
        lab_open(&l, 20000, 1, spec, test_seed);
        double square = 0;
        int R = 120 / SCALE;
        for (int seed = 0; seed < R; seed++) {
            double error[3];
            l.id.seed = (uint32_t)seed;
            l.head.draw->run(&l.head);
            drawn d = look(&l);
            CHECK(d.n_sample < d.n_residual / 2);
            true_errors(&l, error);
            square += error[0] * error[0] / R;
        }
        lab_close(&l);
        x[i] = log(epsilons[i]), y[i] = 0.5 * log(square), mx += x[i] / 3, my += y[i] / 3;
    }
    for (int i = 0; i < 3; i++) sxx += pow(x[i] - mx, 2), sxy += (x[i] - mx) * (y[i] - my);
    if (!(sxy / sxx > 0.75 && sxy / sxx < 1.25)) FAIL("slope %.3f", sxy / sxx);
}

static void hoeffding_asks_for_more(void) {
    for (int verify = 0; verify < 3; verify++) {
        int rows[2];
        for (int h = 0; h < 2; h++) {
            char spec[160];
            snprintf(spec, sizeof spec, "vattention:epsilon=0.5:sink=32:window=32:top=0.1:base=0.02:verify=%s:bound=%s",
                     verify_names[verify], h ? "hoeffding" : "clt");
            lab l;
            lab_open(&l, 6000, 0.5, spec, test_seed);
            l.head.draw->run(&l.head);
            rows[h] = l.head.draws.n;
            lab_close(&l);
        }
        CHECK(rows[1] >= rows[0]);
    }
}

static void same_bits(void) {
    static const char *const methods[] = {"vattention:sink=16:window=16", "vattention:predictor=quest:sink=16:window=16",
                                          "vattention:bound=hoeffding:sink=16:window=16"};
    static const int n[6] = {1, 31, 255, 256, 257, 1500};
    ref_cache c = ref_cache_new(8, 2, 64, 6, n, 2, test_seed);
    enum { ROW = 8 * 64 };
    float want[6 * ROW];
    int threads = omp_get_max_threads();
    for (int m = 0; m < 3; m++) {
        ref_decode(&c, methods[m], 0, 6, 9, 2);
        memcpy(want, c.out, sizeof want);
        omp_set_num_threads(1);
        ref_decode(&c, methods[m], 0, 6, 9, 2);
        omp_set_num_threads(threads);
        if (memcmp(want, c.out, sizeof want)) FAIL("%s: one thread gives other bits", methods[m]);
        for (int s = 0; s < 6; s++) {
            ref_decode(&c, methods[m], s, 1, 9, 2);
            if (memcmp(want + s * ROW, c.out + s * ROW, ROW * sizeof *want))
                FAIL("%s: sequence %d alone gives other bits", methods[m], s);
        }
    }
    ref_cache_free(&c);
}

static const test_case cases[] = {
    {"small-contexts-are-dense", 0, small_contexts_are_dense},
    {"uniform-sample", 0, uniform_sample},
    {"budgets-by-formula", 0, budgets_by_formula},
    {"coverage-denominator", 0, coverage_denominator},
    {"coverage-numerator", 0, coverage_numerator},
    {"coverage-output", 0, coverage_output},
    {"error-follows-epsilon", 0, error_follows_epsilon},
    {"hoeffding-asks-for-more", 0, hoeffding_asks_for_more},
    {"same-bits", 0, same_bits},
    {0},
};
const test_suite suite_vattention = {"vattention", cases};
