// tests/attention/test_bounds.c - bounds that cannot be computed are not bounds. A row of V can be infinite or NaN, its square
// can exceed fp32, and sizes can round to 0. No method may state an error that its output exceeds, and none may count such a
// step as certified.
#include "attention/stages/stages.h"
#include "tests/support/bad_values.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STATE = 1 << 12, MOST_ROWS = 2148 };

// ---- decode steps of one sequence ----

typedef struct steps {
    ref_cache c;
    sl_attn_stats stats; // of the last step
    double state[MOST_STATE / sizeof(double)];
} steps;

// Decodes step number `step`. Step 0 has no step before it.
static void decode(steps *x, const char *attn, int step) {
    sl_attn_query *q = &x->c.queries[0];
    sl_attn_spec spec;
    sl_error err;
    CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
    CHECK(!spec.method->cpu->state || spec.method->cpu->state(&x->c.geom, &spec) <= sizeof x->state);
    if (step == 0) memset(x->state, 0, sizeof x->state);
    q->position = BAD_ROWS - 1 + (uint32_t)step;
    q->state = x->state;
    x->stats = ref_decode(&x->c, attn, 0, 1, 5, 1);
    q->state = NULL;
}

// |out - mu| / |mu| of the layer; NaN: the output or mu is no number.
static double error_of(const ref_cache *c) {
    double off = 0, norm = 0, mu[BAD_DIM], *p = malloc(MOST_ROWS * sizeof *p);
    for (int head = 0; head < BAD_HEADS; head++) {
        ref_attention(c, 0, head, c->q + head * BAD_DIM, c->seqs[0].n_tokens, p, mu);
        for (int d = 0; d < BAD_DIM; d++) off += pow(c->out[head * BAD_DIM + d] - mu[d], 2), norm += mu[d] * mu[d];
    }
    free(p);
    return sqrt(off / norm);
}

static int is_number(const float *out, int n) {
    for (int d = 0; d < n; d++)
        if (!isfinite(out[d])) return 0;
    return 1;
}

// ---- a stated error of a layer ----

// n_good, n_bad: steps without and with the bad row. A threshold that good steps have planned makes a bad row heavy, and with
// sizes of about 0 for the other rows, nothing is left to draw.
static void layer_of(const char *attn, int kind, int row, int n_good, int n_bad) {
    steps good = {.c = bad_cache()}, x = {.c = bad_cache()};
    char name[160];
    snprintf(name, sizeof name, "%s, %s in row %d, step %d after %d good ones", attn, bad_values[kind].name, row, n_bad,
             n_good);
    for (int i = 0; i < n_good; i++) decode(&good, attn, i);
    memcpy(x.state, good.state, sizeof x.state);
    bad_plant(&x.c, kind, row);
    for (int i = 0; i < n_bad; i++) decode(&x, attn, n_good + i);
    const sl_attn_report *r = x.c.reports;
    int dense = strstr(attn, "on-miss=dense") != NULL, finite = is_number(x.c.out, BAD_HEADS * BAD_DIM);
    double error = error_of(&x.c);
    CHECK_INT(x.stats.stated, 1);
    if (!finite || isnan(error)) {
        if (x.stats.unbounded != 1 || x.stats.certified || !isinf(r->stated_error) || !isinf(r->error_bound))
            FAIL("%s: an output that is no number has the stated error %g", name, r->stated_error);
    } else if (!(error <= r->stated_error * (1 + 1e-5) + 1e-3)) { // 1e-3: rounding of stored masses
        FAIL("%s: the error is %g, and %g is stated", name, error, r->stated_error);
    }
    // santa-is takes the rows of its newest page exactly, and a head that takes every row is exact too.
    int sampled = !strncmp(attn, "santa-pps", 9) || (row < BAD_ROWS / SL_PAGE * SL_PAGE && !r[1].fallback);
    if (sampled && !dense && x.stats.unbounded != 1) FAIL("%s: %g is stated", name, r->stated_error);
    if (sampled) CHECK_INT(x.stats.certified, 0);
    if (sampled && dense && finite) CHECK(r->fallback == 1 && r->stated_error == 0 && error < 1e-5);
    for (int head = 0; head < BAD_HEADS; head++) CHECK(!memcmp(&r[head].stated_error, &r->stated_error, sizeof(float)));
    ref_cache_free(&x.c), ref_cache_free(&good.c);
}

static void layers(void) {
    static const char *const methods[] = {"santa-pps:epsilon=0.2",
                                          "santa-pps:epsilon=0.2:bound=clt",
                                          "santa-pps:epsilon=0.2:bound=bernstein",
                                          "santa-pps:epsilon=0.2:on-miss=dense",
                                          "santa-is:proposal=int8:epsilon=0.2",
                                          "santa-is:proposal=int8:epsilon=0.2:bound=clt",
                                          "santa-is:proposal=int8:epsilon=0.2:on-miss=dense"};
    for (int m = 0; m < 7; m++)
        for (int kind = 0; kind < n_bad_values; kind++)
            for (int i = 0; i < 4; i++) {
                int n_good = i % 2 ? 3 : 0, n_bad = 1 + i / 2;
                layer_of(methods[m], kind, 300, n_good, n_bad);
                layer_of(methods[m], kind, BAD_ROWS - 1, n_good, n_bad);
            }
}

// ---- an error of each head ----

// The heads of a KV head with the bad row attend exactly, or state no bound.
static void heads_of(const char *attn, int kind, int row) {
    steps x = {.c = bad_cache()};
    bad_plant(&x.c, kind, row);
    decode(&x, attn, 0);
    double mu[BAD_DIM], *p = malloc(BAD_ROWS * sizeof *p);
    for (int head = 0; head < BAD_HEADS; head++) {
        const sl_attn_report *r = &x.c.reports[head];
        const float *out = x.c.out + head * BAD_DIM;
        ref_attention(&x.c, 0, head, x.c.q + head * BAD_DIM, BAD_ROWS, p, mu);
        double error = ref_relative(out, mu, BAD_DIM), bound = r->error_bound;
        if (!is_number(out, BAD_DIM) ? !isinf(r->error_bound) : !(error <= bound / (1 - bound) + 1e-3) && bound < 1)
            FAIL("%s, %s in row %d: head %d is off by %g and states %g", attn, bad_values[kind].name, row, head, error, bound);
        CHECK(!isnan(r->error_bound));
    }
    free(p);
    ref_cache_free(&x.c);
}

static void heads(void) {
    static const char *const methods[] = {"santa-pps:epsilon=0.2:certify=head",
                                          "santa-pps:epsilon=0.2:certify=head:bound=bernstein",
                                          "vattention:epsilon=0.3:bound=hoeffding:verify=numerator",
                                          "vattention:epsilon=0.3:bound=hoeffding",
                                          "vattention:epsilon=0.3:bound=bernstein",
                                          "vattention:epsilon=0.3:predictor=quest:bound=bernstein",
                                          "vattention:epsilon=0.3:predictor=int4:bound=bernstein"};
    for (int m = 0; m < 7; m++)
        for (int kind = 0; kind < n_bad_values; kind++) {
            heads_of(methods[m], kind, 0); // a fixed row of vattention
            heads_of(methods[m], kind, 300);
            heads_of(methods[m], kind, BAD_ROWS - 1);
        }
}

// vattention with bound=clt knows nothing about rows outside of its base sample. An infinite row that it has read gives no
// bound, wherever the row lies.
static void central_limit(void) {
    static const char *const verify[] = {"output", "numerator"};
    int n_bad = 0;
    for (int v = 0; v < 2; v++)
        for (int kind = 0; kind < n_bad_values; kind++)
            for (int row = 0; row < BAD_ROWS; row += 50) {
                char attn[100];
                snprintf(attn, sizeof attn, "vattention:epsilon=0.3:base=0.5:verify=%s", verify[v]);
                steps x = {.c = bad_cache()};
                bad_plant(&x.c, kind, row);
                decode(&x, attn, 0);
                for (int head = 0; head < BAD_HEADS; head++) {
                    int bad = !is_number(x.c.out + head * BAD_DIM, BAD_DIM);
                    if (bad != (isinf(x.c.reports[head].error_bound) != 0))
                        FAIL("%s, %s in row %d, head %d: states %g", attn, bad_values[kind].name, row, head,
                             x.c.reports[head].error_bound);
                    n_bad += bad;
                }
                ref_cache_free(&x.c);
            }
    CHECK(n_bad > 40);
}

// The standard error of saap-is from rows that are infinite is no number, never 0.
static void standard_errors(void) {
    int n_bad = 0;
    for (int kind = 0; kind < n_bad_values; kind++) {
        steps x = {.c = bad_cache()};
        bad_plant(&x.c, kind, 300);
        decode(&x, "saap-is:S=600:l=1:window=16:dense-layers=0", 0);
        for (int head = 0; head < BAD_HEADS; head++) {
            int bad = !is_number(x.c.out + head * BAD_DIM, BAD_DIM);
            n_bad += bad;
            if (bad) CHECK(isnan(x.c.reports[head].standard_error));
        }
        ref_cache_free(&x.c);
    }
    CHECK(n_bad > 0);
}

// ---- sizes that round to 0 ----

// A cache whose pages differ in their values. key: channel 3 of row 5 of K. It sets the step of the channel in page 0, and so
// the bound of the scores of the page. q: channel 3 of the queries. Other keys have 0 there.
static ref_cache cache_of_pages(double key, double q) {
    static const int n = MOST_ROWS;
    ref_cache c = ref_cache_new(BAD_HEADS, BAD_HEADS, BAD_DIM, 1, &n, 0.3, test_seed);
    ref_add_to_values(&c, 1);
    for (int h = 0; h < BAD_HEADS; h++) {
        for (int j = 0; j < n; j++) {
            bf16 *k = (bf16 *)ref_k_row(&c, 0, h, j), *v = (bf16 *)ref_v_row(&c, 0, h, j);
            k[3] = j == 5 ? sl_f32_to_bf16((float)key) : 0;
            for (int d = 0; d < BAD_DIM && j >= SL_PAGE; d++) v[d] = sl_f32_to_bf16(3 * sl_bf16_to_f32(v[d]));
        }
        c.q[h * BAD_DIM + 3] = (float)q;
    }
    return c;
}

// The sizes of a page grow by 2^octaves with the bound of its scores, so those of the other pages can round to 0. Then a
// threshold from steps with small bounds makes the page heavy, and nothing is left to draw.
static void score_bounds(void) {
    static const double octaves[] = {5, 7, 11, 20, 24, 25, 26, INFINITY};
    const char *attn = "santa-is:proposal=int8:epsilon=0.4";
    for (int i = 0; i < 8; i++) {
        double key = -3000, q = fmin(octaves[i], 1e6) * 2 * sqrt(BAD_DIM) * log(2) / (-key / 255);
        steps good = {.c = cache_of_pages(0, q)}, x = {.c = cache_of_pages(key, q)};
        for (int step = 0; step < 3; step++) decode(&good, attn, step);
        CHECK_INT(good.stats.certified, 1);
        memcpy(x.state, good.state, sizeof x.state);
        for (int step = 3; step < 6; step++) {
            decode(&x, attn, step);
            double error = error_of(&x.c), stated = x.c.reports->stated_error;
            if (!(error <= stated + 1e-3))
                FAIL("a bound of %g octaves, step %d: the error is %g, and %g is stated", octaves[i], step, error, stated);
            CHECK_INT(x.stats.certified, stated <= 0.4);
            for (int head = 0; head < BAD_HEADS; head++)
                if (octaves[i] > 100) CHECK(!(x.c.reports[head].score_bound < 1e5));
        }
        ref_cache_free(&x.c), ref_cache_free(&good.c);
    }
}

// ---- the rules ----

static void rules(void) {
    static const struct {
        double b, norm, stated;
        int certified; // at a share of 0.5
    } rows[] = {{0, 0, 0, 1},
                {0, 2, 0, 1},
                {1, 2, 1, 1},
                {1.5, 2, 3, 0},
                {2, 2, INFINITY, 0},
                {3, 2, INFINITY, 0},
                {1, 0, INFINITY, 0},
                {0, 9e18, 0, 1}, // 2^63 is 9.2e18
                {0, 0x1p63, INFINITY, 0},
                {1, 1e20, INFINITY, 0},
                {0, INFINITY, INFINITY, 0},
                {1, INFINITY, INFINITY, 0},
                {INFINITY, INFINITY, INFINITY, 0},
                {INFINITY, 2, INFINITY, 0},
                {NAN, 2, INFINITY, 0},
                {0, NAN, INFINITY, 0},
                {1, NAN, INFINITY, 0},
                {NAN, NAN, INFINITY, 0},
                {NAN, INFINITY, INFINITY, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double b = rows[i].b, norm = rows[i].norm;
        CHECK(sl_stated_error(b, norm) == rows[i].stated);
        CHECK_INT(sl_is_certified(b, norm, 0.5), rows[i].certified);
        double relative = sl_relative_bound(b, norm);
        CHECK(relative == (b == 0 && norm < 0x1p63 ? 0 : norm < 0x1p63 && b > 0 ? b / norm : INFINITY));
    }
}

// No number of a step makes what the layer carries infinite or NaN.
static void carried_values(void) {
    static const double values[] = {0, 1, INFINITY, NAN};
    sl_stated stated = sl_stated_of(0.05, SL_STATED_CHI2);
    for (int i = 0; i < 4 * 4 * 4 * 4 * 4; i++) {
        sl_threshold t = {.kappa = 0.01, .margin = 0.8, .spread = 0.1};
        sl_threshold_step s = {.total = 10, .rows = 100, .light = 5, .k = 50, .kappa = 0.01};
        s.B = values[i % 4], s.squares = values[i / 4 % 4], s.trace_squares = values[i / 16 % 4];
        s.spared_B = values[i / 64 % 4], s.kappa = values[i / 256];
        double b = sl_threshold_error(&t, &s, &stated, 0.2, 0.75);
        CHECK(t.kappa > 0 && t.kappa <= s.total && t.margin >= 0.01 && t.margin <= 2 && t.spread >= 0 && t.spread <= 1);
        if (!isfinite(s.B) || !isfinite(s.squares)) CHECK(!sl_is_certified(b, sqrt(s.squares), 0.2));
    }
}

// ---- the kernel ----

static void sizes_of_blocks(void) {
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    static const struct {
        bf16 norm;
        int out_of_range;
    } rows[] = {{0, 0}, {1, 0}, {0x3f80, 0}, {0x5f80, 0}, {0x7f80, 1}, {0x7fc0, 1}, {0x7fff, 1}}; // 0x5f80: 2^64, inf, NaN
    int n_isas = 0;
    for (int i = 0; i < 3; i++) {
        const sl_attn_kernels *kernels = sl_attn_kernels_named(isas[i]);
        if (!kernels) continue;
        n_isas++;
        for (int k = 0; k < 7 * 40 * 2; k++) {
            bf16 stored[64] = {0}, norm[40], size[64];
            int16_t ref[2] = {-40, 7}, size_ref[2];
            uint64_t mass[2];
            int row = k % 40, kind = k / 40 % 7;
            for (int j = 0; j < 40; j++) stored[j] = (bf16)(0x3f80 - 40 * j), norm[j] = 0x3f80;
            if (k / 280) stored[row] = 0; // 0 times infinity is NaN
            norm[row] = rows[kind].norm;
            kernels->sizes(stored, ref, norm, 40, 1, size, size_ref, mass);
            for (int b = 0; b < 2; b++) {
                int want = b == row / 32 && rows[kind].out_of_range;
                if (want != (size_ref[b] - ref[b] == SL_SIZE_UNIT_MOST))
                    FAIL("%s: norm %04x in row %d: block %d has the reference %d of %d", isas[i], norm[row], row, b,
                         size_ref[b], ref[b]);
                CHECK(mass[b] <= 32ull << 30);
            }
            for (int j = 0; j < 64; j++) CHECK(size[j] <= 0x3f80);
            sl_masses masses = {.n = 40, .n_blocks = 2, .ref = ref}, sizes = {.n = 40, .n_blocks = 2, .ref = size_ref};
            CHECK_INT(sl_sizes_out_of_range(&sizes, &masses), rows[kind].out_of_range);
        }
    }
    CHECK(n_isas > 0);
}

static const test_case cases[] = {
    {"layers", NEEDS_SPEED, layers},
    {"heads", 0, heads},
    {"central-limit", 0, central_limit},
    {"standard-errors", 0, standard_errors},
    {"score-bounds", 0, score_bounds},
    {"rules", 0, rules},
    {"carried-values", 0, carried_values},
    {"sizes-of-blocks", 0, sizes_of_blocks},
    {0},
};
const test_suite suite_bounds = {"bounds", cases};
