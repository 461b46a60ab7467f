// tests/attention/test_threshold_rules.c - cases of the suite certified: draws at a known threshold, and the rules of
// threshold.h.
#include "attention/stages/stages.h"
#include "tests/attention/certified_cases.h"
#include "tests/support/draw_inputs.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- draws at a known threshold ----

// Number m of repetition i: every number goes once through the grid (i + 1/2) / R while i goes from 0 to R - 1.
enum { R = 256 };
static uint64_t uniform_grids(const void *ctx, uint32_t index) {
    uint32_t i = *(const uint32_t *)ctx;
    return uniform_grid((int)((i * (2 * index + 1) + 37 * index) % R), R);
}

// |mean c_j - pi_j| < 1 / R if the steps share a number. With a number for each step, a row that lies in two steps has two
// parts. Returns the largest count.
static int check_draws_at(sample *s, const sl_masses *size, uint64_t kappa, int shared) {
    int n = size->n, most = 0;
    double mean[512] = {0};
    sl_take_all split = sl_split_sizes(size, kappa), want = {0};
    for (int j = 0; j < n; j++) {
        uint64_t z = sl_masses_of_row(size, j);
        if (z >= kappa)
            want.n_heavy++;
        else
            want.light += z;
    }
    CHECK_INT(split.n_heavy, want.n_heavy);
    CHECK(split.light == want.light);
    CHECK_INT(split.k, want.light / kappa);
    for (uint32_t i = 0; i < R; i++) {
        uint64_t fixed = uniform_grid((int)i, R);
        sl_uniform u = shared ? (sl_uniform){uniform_fixed, &fixed} : (sl_uniform){uniform_grids, &i};
        sl_draw_at(size, kappa, shared, u, &s->draws);
        int draws = s->draws.n_draws - want.n_heavy;
        if (draws != split.k && draws != split.k + 1)
            FAIL("n=%d kappa %g: %d light draws in %d steps", n, (double)kappa, draws, split.k);
        for (int d = 0; d < s->draws.n; d++) {
            int j = s->draws.row[d];
            double z = (double)sl_masses_of_row(size, j);
            CHECK(j >= 0 && j < n && z > 0 && (d == 0 || j > s->draws.row[d - 1]));
            CHECK_NEAR(s->draws.inv_pi[d] / fmax(1, (double)kappa / z), 1, 1e-6);
            mean[j] += (double)s->draws.count[d] / R;
            most = s->draws.count[d] > most ? s->draws.count[d] : most;
        }
    }
    for (int j = 0; j < n; j++) {
        double pi = fmin(1, (double)sl_masses_of_row(size, j) / (double)kappa);
        if (!(fabs(mean[j] - pi) < (shared ? 1.0 : 2.0) / R + 1e-9))
            FAIL("n=%d kappa %g shared %d row %d: mean count %.6g, expected %.6g", n, (double)kappa, shared, j, mean[j], pi);
        CHECK(pi < 1 || mean[j] == 1);
    }
    return most;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Thresholds between which all rows are heavy and all rows are light; the sizes of rows, so rows tie with kappa.
static int check_thresholds(sample *s, const sl_masses *size) {
    uint64_t z[512], total = sl_masses_total(size);
    int n = 0, most = 0;
    for (int j = 0; j < size->n; j++)
        if (sl_masses_of_row(size, j)) z[n++] = sl_masses_of_row(size, j);
    CHECK(n > 0);
    qsort(z, n, sizeof *z, by_size);
    const uint64_t kappas[] = {1,         2,         z[0],  z[0] + 1,  z[n / 2],  z[n - 1],         z[n - 1] + 1,
                               total / 7, total - 1, total, total + 1, 3 * total, (uint64_t)1 << 62};
    CHECK_INT(sl_split_sizes(size, 1).n_heavy, n);
    CHECK_INT(sl_split_sizes(size, z[0]).n_heavy, n);
    CHECK_INT(sl_split_sizes(size, z[n - 1] + 1).n_heavy, 0);
    CHECK(sl_split_sizes(size, z[n - 1] + 1).light == total);
    for (size_t i = 0; i < sizeof kappas / sizeof *kappas; i++)
        for (int shared = 0; shared < 2 && kappas[i]; shared++) {
            int count = check_draws_at(s, size, kappas[i], shared);
            most = count > most ? count : most;
        }
    return most;
}

void case_draws_at_a_threshold(void) {
    static const int ns[] = {1, 31, 32, 33, 257};
    int most = 0;
    for (int i = 0; i < 5; i++)
        for (int kind = 0; kind < N_SHAPES; kind++)
            for (int mixed = 0; mixed < 2; mixed++) {
                sample s = sample_new(ns[i], shapes[kind], test_seed + 10 * i + kind);
                if (mixed) sl_masses_mix(&s.sizes, 0.05);
                int count = check_thresholds(&s, &s.sizes);
                most = count > most ? count : most;
                sample_free(&s);
            }
    CHECK_INT(most, 2); // a row below kappa lies in two steps at most
}

// Sizes that are powers of two, so that many rows tie, and every third row is empty.
void case_equal_and_empty_rows(void) {
    static const int ns[] = {1, 31, 32, 33, 257};
    for (int i = 0; i < 5; i++) {
        float score[512];
        sample s = sample_new(ns[i], FLAT, test_seed);
        for (int j = 0; j < ns[i]; j++) score[j] = j % 3 == 2 ? -300 : (float)(j % 4);
        sl_attn_kernels_named("portable")->masses(score, ns[i], s.masses.stored, s.masses.ref, s.masses.cum + 1);
        sl_masses_finish(&s.masses);
        CHECK_INT(sl_masses_of_row(&s.masses, 2 % ns[i]) == 0, ns[i] > 2);
        check_thresholds(&s, &s.masses);
        sample_free(&s);
    }
}

// ---- the rules of threshold.h ----

// P(chi-square of nu degrees of freedom > x), nu even: a sum of Poisson probabilities.
static double exceeds(int nu, double x) {
    double sum = 0, term = exp(-x / 2);
    for (int i = 0; i < nu / 2; i++, term *= x / 2 / i) sum += term;
    return sum;
}
static double exact_quantile(int nu, double delta) {
    double low = 0, high = 1000;
    for (int i = 0; i < 100; i++) {
        double mid = (low + high) / 2;
        if (exceeds(nu, mid) > delta)
            low = mid;
        else
            high = mid;
    }
    return high;
}

void case_chi_square_quantiles(void) {
    static const double deltas[] = {1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2};
    static const int nus[] = {2, 4, 10, 100};
    for (int i = 0; i < 7; i++) {
        sl_stated s = sl_stated_of(deltas[i], SL_STATED_CHI2);
        CHECK_NEAR(erfc(s.z / sqrt(2)) / deltas[i], 1, 1e-6);
        CHECK_NEAR(sl_chi2_quantile(&s, 1) / (s.z * s.z), 1, 1e-12);
        CHECK_NEAR(sl_chi2_quantile(&s, 0), 1, 1e-12);
        double before = 0;
        for (int spread = 1; spread <= 1000; spread++) { // rises with the spread, up to z^2
            double q = sl_chi2_quantile(&s, spread / 1000.0);
            CHECK(q >= before * (1 - 1e-12) && q <= s.z * s.z);
            before = q;
        }
        for (int k = 0; k < 4; k++) {
            double ratio = sl_chi2_quantile(&s, 1.0 / nus[k]) * nus[k] / exact_quantile(nus[k], deltas[i]);
            if (!(ratio > 0.995 && ratio < (deltas[i] < 0.05 ? 2.2 : 1.05)))
                FAIL("nu=%d delta %g: %.4f of the quantile", nus[k], deltas[i], ratio);
        }
    }
}

// |e|^2 = s chi-square of one degree + (1 - s): a line with the share s of B, and the rest on many lines. Satterthwaite's
// formula has its largest error here. The share of |e| > b follows from the normal distribution.
void case_lines_among_many(void) {
    static const double deltas[] = {0.2, 0.1, 0.05, 0.01, 0.001}, shares[] = {0.1, 0.2, 0.3, 0.5, 0.7, 1};
    printf("      | delta | share of B on one line: 0.1 | 0.2 | 0.3 | 0.5 | 0.7 | 1 |\n");
    for (int i = 0; i < 5; i++) {
        sl_stated stated = sl_stated_of(deltas[i], SL_STATED_CHI2);
        printf("      | %g%% |", 100 * deltas[i]);
        for (int k = 0; k < 6; k++) {
            double s = shares[k], x = (sl_chi2_quantile(&stated, s * s) - 1 + s) / s, beyond = erfc(sqrt(x / 2));
            printf(" %.2f%% |", 100 * beyond);
            CHECK(beyond <= deltas[i] * (1 + 1e-6));
            CHECK(s < 1 || fabs(beyond / deltas[i] - 1) < 1e-6);
        }
        printf("\n");
    }
}

// b of each bound in closed form; few draws have Bernstein's inequality whatever the bound.
void case_error_bounds(void) {
    for (int bound = 0; bound < 3; bound++) {
        sl_stated s = sl_stated_of(0.05, (sl_stated_bound)bound);
        double l = log(2 / 0.05), bernstein = sqrt(2 * 3 * l) + 4.0 / 3 * 0.01 * l;
        double want = bound == SL_STATED_BERNSTEIN ? bernstein : 1.959963985 * sqrt(3);
        CHECK_NEAR(sl_error_bound(&s, 1, 0.01, 3, SL_STATED_FEW), want, 1e-6);
        CHECK_NEAR(sl_error_bound(&s, 1, 0.01, 3, SL_STATED_FEW - 1), bernstein, 1e-6);
        CHECK(sl_error_bound(&s, 1, 0.01, 0, 100) == 0);
        CHECK(isinf(sl_error_bound(&s, 1, 0.01, INFINITY, 100)));
        CHECK_NEAR(sl_error_bound(&s, 1e-6, 0.01, 3, 100), bound == SL_STATED_CHI2 ? sqrt(3) : want, 0.01);
    }
}

static double moved(double kappa, double total, double ratio) {
    sl_threshold t = {.kappa = kappa};
    sl_threshold_move(&t, &(sl_threshold_step){.total = total, .light = 5, .k = 10}, ratio);
    return t.kappa;
}

// chi2 takes the larger spread of a step and of the steps before, at most 1.
void case_spreads(void) {
    static const double own[] = {0.01, 0.25, 3}, of_bound[] = {0.1, 0.25, 3}, after[] = {0.073, 0.145, 0.37};
    sl_stated stated = sl_stated_of(0.05, SL_STATED_CHI2);
    for (int i = 0; i < 3; i++) {
        sl_threshold t = {.kappa = 1, .margin = 1, .spread = 0.1};
        sl_threshold_step s = {
            .total = 1e3, .light = 100, .k = 100, .kappa = 1, .B = 100, .squares = 1e4, .trace_squares = own[i] * 1e4};
        double b = sl_threshold_error(&t, &s, &stated, 0.2, 0.75);
        CHECK_NEAR(b, sl_error_bound(&stated, of_bound[i], 1, 100, 100), 1e-9);
        CHECK(b <= stated.z * 10 * (1 + 1e-12));
        CHECK_NEAR(t.spread, after[i], 1e-12);
    }
    sl_threshold t = {.kappa = 1, .margin = 1, .spread = 0.1};
    sl_threshold_step none = {.total = 1e3, .light = 100, .k = 100, .kappa = 1, .B = 100, .squares = 1e4};
    CHECK_NEAR(sl_threshold_error(&t, &none, &stated, 0.2, 0.75), sl_error_bound(&stated, 0.1, 1, 100, 100), 1e-9);
    CHECK_NEAR(t.spread, 0.1, 1e-12);
}

// Where heads take every row, kappa follows the B that draws would have had, and the margin stays.
void case_steps_without_draws(void) {
    sl_stated stated = sl_stated_of(0.05, SL_STATED_CLT);
    sl_threshold_step s = {.total = 1e3, .kappa = 1, .spared_B = 100, .spared_k = 100, .squares = 1e4};
    sl_threshold t = {.kappa = 1, .margin = 0.8, .spread = 1};
    double r = 0.8 * pow(0.2 * 100 / (stated.z * 10), 2);
    CHECK(sl_threshold_error(&t, &s, &stated, 0.2, 0.75) == 0);
    CHECK_NEAR(t.kappa, 0.7 + 0.3 * r, 1e-12);
    CHECK(t.margin == 0.8 && t.spread == 1);
    s.spared_B = s.spared_k = 0; // one row has all the mass
    CHECK(sl_threshold_error(&t, &s, &stated, 0.2, 0.75) == 0);
    CHECK_NEAR(t.kappa, 1.9 * (0.7 + 0.3 * r), 1e-12);
    CHECK(t.margin == 0.8);
}

void case_threshold_moves(void) {
    CHECK_NEAR(moved(2, 100, 1), 2, 1e-12);
    CHECK_NEAR(moved(2, 100, 0), 1.4, 1e-12);
    CHECK_NEAR(moved(2, 100, 2), 2.6, 1e-12);
    CHECK_NEAR(moved(2, 100, INFINITY), 3.8, 1e-12);
    CHECK_NEAR(moved(2, 100, NAN), 2, 1e-12); // says nothing about kappa
    CHECK_NEAR(moved(2, 3, INFINITY), 3, 1e-12);
    CHECK_NEAR(moved(0, 100, 1), 0.5, 1e-12); // the mean of a search
    sl_threshold t = {0};
    sl_threshold_move(&t, &(sl_threshold_step){.total = 100}, 1); // a search without light rows: the next step searches
    CHECK(t.kappa == 0);
    t.kappa = 2; // all rows are taken: kappa stays until there are too many rows
    sl_threshold_budget(&t, &(sl_threshold_step){.total = 100, .rows = 50}, 64);
    CHECK_NEAR(t.kappa, 2, 1e-12);
    sl_threshold_budget(&t, &(sl_threshold_step){.total = 100, .rows = 128}, 64);
    CHECK_NEAR(t.kappa, 2.6, 1e-12);
    sl_threshold_budget(&t, &(sl_threshold_step){.total = 100, .rows = 32, .light = 10, .k = 10}, 64);
    CHECK_NEAR(t.kappa, 2.6 * 0.85, 1e-12);
}

// Steps of a layer with 1,000 sizes w_i = 1 / i and |output|^2 = `squares`.
static sl_threshold_step harmonic_step(double kappa, double squares) {
    sl_threshold_step s = {.kappa = kappa, .squares = squares};
    for (int i = 1; i <= 1000; i++) {
        s.total += 1.0 / i;
        if (1.0 / i >= kappa)
            s.rows++;
        else
            s.light += 1.0 / i;
    }
    s.k = s.light / kappa;
    s.rows += s.k;
    s.B = kappa * s.light;
    return s;
}

// Each step is equal to the step before, so the carried values converge.
void case_controllers_reach_their_aims(void) {
    static const double starts[] = {1e-3, 0.01, 0.9};
    for (int i = 0; i < 3; i++) {
        sl_threshold t = {.kappa = starts[i], .margin = 0.8, .spread = 1};
        for (int step = 0; step < 60; step++) {
            sl_threshold_step s = harmonic_step(t.kappa, 1);
            sl_threshold_budget(&t, &s, 128);
        }
        CHECK_NEAR(harmonic_step(t.kappa, 1).rows, 128, 2);
        for (int bound = 0; bound < 3; bound++)
            for (int a = 1; a < 4; a++) {
                double aim = 0.25 + 0.2 * a, share = 0.2;
                int certified = 0, n = 4000;
                sl_stated stated = sl_stated_of(0.05, (sl_stated_bound)bound);
                uint64_t seed = test_seed + i;
                t = (sl_threshold){.kappa = starts[i], .margin = 0.8, .spread = 1};
                for (int step = -200; step < n; step++) {
                    sl_threshold_step s = harmonic_step(t.kappa, 4 * exp(0.1 * test_normal(&seed)));
                    double b = sl_threshold_error(&t, &s, &stated, share, aim);
                    certified += step >= 0 && b <= share * sqrt(s.squares);
                }
                CHECK_NEAR((double)certified / n, aim, 0.02);
            }
    }
}
