// tests/attention/test_vattention.c - vAttention: fixed rows, the sample of the residual, the rows that a stated error needs,
// and how often the error exceeds it.
#include "tests/support/draw_model.h"
#include "tests/support/reference.h"
#include "tests/test.h"
#include "tests/support/draw_inputs.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const verify_names[] = {"denominator", "numerator", "output"};

static void small_contexts_are_dense(void) { // sink + window cover all rows, or the base sample does
    static const int n[] = {1, 31, 128, 255, 256, 257};
    static const struct { int heads, kv_heads, dim; } g[] = {{1, 1, 64}, {6, 2, 80}, {8, 2, 128}, {8, 1, 128}, {9, 3, 64}};
    static const char *const specs[] = {"vattention",
                                        "vattention:sink=0:window=1:base=1",
                                        "vattention:sink=64:window=64:epsilon=0.001:predictor=quest",
                                        "vattention:sink=64:window=64:epsilon=0.001:predictor=int4",
                                        "vattention:bound=hoeffding:epsilon=0.001",
                                        "vattention:sink=64:window=64:epsilon=0.001:predictor=hash",
                                        "vattention:sink=64:window=64:epsilon=0.001:predictor=buckets"};
    double p[257], mu[128];
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(g[i].heads, g[i].kv_heads, g[i].dim, 6, n, 1, test_seed + i);
        for (int k = 0; k < 7; k++) {
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

// ---- the draw alone ----

enum { DIM = MODEL_DIM };

// One head over one cache, to test the draw alone, on exact masses that are made here, for one query and specification after
// another.
typedef struct fixture {
    ref_cache c;
    sl_attn_spec spec;
    sl_attn_decode_args args;
    sl_group group;
    sl_head head;
    sl_attn_report report;
    sl_rng_id id;
    double total, mu[DIM], norm; // of the stored masses; |mu|
} fixture;

static fixture *fixture_open(int n, uint64_t seed) {
    fixture *l = calloc(1, sizeof *l);
    int blocks = (n + 31) / 32;
    l->c = ref_cache_new(1, 1, DIM, 1, &n, 1, seed);
    // Values with a mean: without one, the output of a flat head is so close to 0 that a relative error needs every row.
    for (int j = 0; j < n; j++)
        for (int d = 0; d < DIM; d++) {
            bf16 *v = (bf16 *)ref_v_row(&l->c, 0, 0, j) + d;
            *v = sl_f32_to_bf16(sl_bf16_to_f32(*v) + 1);
        }
    l->args = (sl_attn_decode_args){.geom = &l->c.geom, .spec = &l->spec, .n_seqs = 1, .seqs = l->c.queries};
    l->head =
        (sl_head){.group = &l->group,
                  .draw = &sl_draw_verified,
                  .q = l->c.q,
                  .masses = {.n = n,
                             .n_blocks = blocks,
                             .stored = calloc(blocks * 32, sizeof(bf16)),
                             .ref = calloc(blocks, sizeof(int16_t)),
                             .cum = calloc(blocks + 1, sizeof(uint64_t))},
                  .draws = {.row = calloc(n, 4), .count = calloc(n, 4), .inv_pi = calloc(n, 4), .scratch = calloc(n + 8, 8)},
                  .rows = calloc(n, sizeof(sl_kv_row)),
                  .coef = calloc(n, 4),
                  .score = calloc(n, 4),
                  .out = calloc(DIM, 4),
                  .report = &l->report};
    l->head.u = sl_uniform_philox(&l->id);
    return l;
}

static void fixture_close(fixture *l) {
    free(l->head.masses.stored), free(l->head.masses.ref), free(l->head.masses.cum);
    free(l->head.draws.row), free(l->head.draws.count), free(l->head.draws.inv_pi), free(l->head.draws.scratch);
    free(l->head.rows), free(l->head.coef), free(l->head.score), free(l->head.out);
    ref_cache_free(&l->c);
    free(l);
}

static void fixture_spec(fixture *l, const char *attn) {
    sl_error err;
    ref_decode(&l->c, attn, 0, 1, 1, 0); // builds the page extras
    CHECK_OK(sl_attn_parse(attn, &l->spec, &err), err);
    l->group = sl_group_of(&l->args, 0, 0);
}

static void fixture_query(fixture *l, double scale, uint64_t seed) { // after a first fixture_spec
    sl_masses *masses = &l->head.masses;
    float score[SL_CHUNK + 16];
    l->id.position = (uint32_t)seed; // every query has draws of its own
    for (int d = 0; d < DIM; d++) l->c.q[d] = (float)(scale * test_normal(&seed));
    for (int page = 0; page * SL_PAGE < masses->n; page++) {
        int b = page * (SL_PAGE / SL_BLOCK);
        sl_score_exact(&l->group, page, score);
        l->group.kernels->masses(score, sl_page_rows(l->group.kv, page), masses->stored + page * SL_PAGE, masses->ref + b,
                                 masses->cum + b + 1);
    }
    sl_masses_finish(masses);
    l->total = (double)sl_masses_total(masses), l->norm = 0;
    memset(l->mu, 0, sizeof l->mu);
    for (int j = 0; j < masses->n; j++)
        for (double p = (double)sl_masses_of_row(masses, j) / l->total, d = 0; d < DIM; d++)
            l->mu[(int)d] += p * sl_bf16_to_f32(ref_v_row(&l->c, 0, 0, j)[(int)d]);
    for (int d = 0; d < DIM; d++) l->norm += l->mu[d] * l->mu[d];
    l->norm = sqrt(l->norm);
}

static double mass_of(const fixture *l, int j) {
    return (double)sl_masses_of_row(&l->head.masses, j) / l->total;
}

typedef struct drawn {
    int n_fixed, n_sample, n_residual; // n_sample: 0 where every row was taken
    double weight;                     // n_s / b
} drawn;

static drawn draw(fixture *l, uint32_t seed) {
    drawn d = {.weight = 1};
    l->id.seed = seed;
    l->head.draw->run(&l->head);
    for (int i = 0; i < l->head.draws.n; i++) {
        CHECK(i == 0 || l->head.draws.row[i] > l->head.draws.row[i - 1]); // distinct
        CHECK_INT(l->head.draws.count[i], 1);
        d.n_fixed += l->head.draws.inv_pi[i] == 1;
        if (l->head.draws.inv_pi[i] != 1) d.n_sample++, d.weight = l->head.draws.inv_pi[i];
    }
    d.n_residual = l->head.masses.n - d.n_fixed;
    return d;
}

// Relative errors of D, N and N / D of the drawn rows, against all rows with the same masses.
static void true_errors(const fixture *l, double error[3]) {
    double D = 0, N[DIM] = {0}, off = 0, off_out = 0;
    for (int i = 0; i < l->head.draws.n; i++) {
        int j = l->head.draws.row[i];
        double own = mass_of(l, j) * l->head.draws.inv_pi[i];
        const bf16 *v = ref_v_row(&l->c, 0, 0, j);
        D += own;
        for (int d = 0; d < DIM; d++) N[d] += own * sl_bf16_to_f32(v[d]);
    }
    for (int d = 0; d < DIM; d++) {
        double a = N[d] - l->mu[d], b = N[d] / D - l->mu[d];
        off += a * a, off_out += b * b;
    }
    error[0] = fabs(D - 1), error[1] = sqrt(off) / l->norm, error[2] = sqrt(off_out) / l->norm;
}

// ---- the sample ----

// The sample is without replacement, from the residual alone, and has each row equally often. Over R runs the count of a row
// has the standard deviation sqrt(R f (1 - f)), f = b / n_s. The bound is 5 of them, for the worst of 900 rows: the probability
// that one row is further off is 900 * 6e-7 = 5e-4.
static void uniform_sample(void) {
    enum { N = 1000, R = 2000 };
    fixture *l = fixture_open(N, test_seed);
    static double seen[N];
    static int fixed[N];
    memset(seen, 0, sizeof seen), memset(fixed, 0, sizeof fixed);
    drawn first = {0};
    fixture_spec(l, "vattention:sink=16:window=16:top=0.05:base=0.1:epsilon=1:verify=denominator");
    fixture_query(l, 0.5, test_seed);
    for (uint32_t r = 0; r < R; r++) {
        drawn d = draw(l, r);
        if (r == 0) first = d;
        CHECK_INT(d.n_fixed, first.n_fixed);
        CHECK_INT(d.n_sample, (int)ceil(0.1 * d.n_residual)); // the base sample is enough at this epsilon
        CHECK_NEAR(d.weight * d.n_sample, d.n_residual, 1e-3);
        for (int i = 0; i < l->head.draws.n; i++) {
            int j = l->head.draws.row[i], is_fixed = l->head.draws.inv_pi[i] == 1;
            if (r == 0 && is_fixed) fixed[j] = 1;
            CHECK_INT(is_fixed, fixed[j]); // fixed rows depend on the masses alone
            seen[j] += !is_fixed;
        }
    }
    double f = (double)first.n_sample / first.n_residual;
    for (int j = 0; j < N; j++)
        if (!fixed[j]) CHECK_NEAR(seen[j], R * f, 5 * sqrt(R * f * (1 - f)));
    for (int j = 0; j < 16; j++) CHECK(fixed[j] && fixed[N - 1 - j]);
    fixture_close(l);
}

static void residual_of_few_rows(void) { // 0, 1 and 2 rows are all read; of more rows, at least two
    for (int n = 32; n < 36; n++) {
        fixture *l = fixture_open(n, test_seed + n);
        fixture_spec(l, "vattention:sink=16:window=16:top=0:base=0:epsilon=1:delta=0.5:verify=denominator");
        fixture_query(l, 0, test_seed);
        drawn d = draw(l, 7);
        CHECK_INT(l->head.draws.n, n < 35 ? n : 34);
        CHECK_INT(d.n_sample, n < 35 ? 0 : 2);
        if (n < 35) CHECK(l->report.error_bound == 0);
        CHECK_INT(l->report.budget, n < 35 ? n - 32 : 2);
        CHECK_INT(l->report.tries, 1);
        fixture_close(l);
    }
}

static void no_spread(void) { // equal scores: the base sample is enough for D at any epsilon, and exact
    double error[3];
    fixture *l = fixture_open(3000, test_seed);
    fixture_spec(l, "vattention:base=0.02:epsilon=0.0001:verify=denominator");
    fixture_query(l, 0, test_seed);
    drawn d = draw(l, 1);
    true_errors(l, error);
    CHECK_INT(d.n_sample, (int)ceil(0.02 * d.n_residual));
    CHECK(l->report.error_bound < 1e-6 && error[0] < 1e-6);
    fixture_close(l);
}

// ---- every number of a draw, a second time ----

// A head that draw_model.h watched, and the same numbers in double precision. e[j] is e^(s_j) divided by the largest e^s.
typedef struct second {
    const watched_head *got;
    double *e, *norm; // [n]
    const bf16 **v;   // [n]
    int *order;       // [n] the residual, permuted
    char *fixed;      // [n]
    int n, n_residual, m, verify, bound;
    double epsilon, delta, most, largest_v; // most: no residual row's e exceeds it
    double D, N, sigma, trace, kurtosis;    // estimates of the base sample
    double sum, squares, ev, ev_squares, fixed_e;
} second;

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

// Sink, window and the k units of largest mass, of equal ones the first. The e^s of no other unit is larger than `most`, up to
// the rounding of a mass and the bound of a score's error.
static void fix_rows(second *f, const sl_attn_spec *spec, int unit, double scale) {
    int n_units = (f->n + unit - 1) / unit, k = (int)ceil(sl_attn_get(spec, "top") * n_units), equal = k;
    double *mass = malloc((n_units + 1) * sizeof *mass), cut = INFINITY;
    memcpy(mass, f->got->stored_p, n_units * sizeof *mass);
    qsort(mass, n_units, sizeof *mass, descending);
    if (k) cut = mass[k - 1];
    for (int u = 0; u < k; u++) equal -= mass[u] > cut;
    for (int u = 0; u < n_units; u++) {
        double own = f->got->stored_p[u];
        int taken = own > cut || (own == cut && equal-- > 0);
        if (!taken) f->most = fmax(f->most, own * exp2(f->got->page_bound[u * unit / SL_PAGE]) * scale * (1 + 0x1p-8));
        for (int j = u * unit; j < f->n && j < (u + 1) * unit; j++) {
            f->fixed[j] = taken || j < sl_attn_get(spec, "sink") || j >= f->n - sl_attn_get(spec, "window");
            if (!f->fixed[j]) f->order[f->n_residual++] = j;
        }
    }
    free(mass);
}

static void permute_residual(second *f, const sl_rng_id *id) { // Fisher and Yates
    for (int i = 0; i < f->n_residual; i++) {
        sl_philox4 r = sl_philox(id->seed, id->sequence, id->position, (id->layer << 16) + id->head, (uint32_t)i, 0);
        uint64_t u = (uint64_t)r.v[0] << 32 | r.v[1];
        int other = i + (int)((unsigned __int128)u * (unsigned)(f->n_residual - i) >> 64), t = f->order[i];
        f->order[i] = f->order[other], f->order[other] = t;
    }
}

// Moments of the first m rows of the permutation, with m - 1 in the variances, and the estimates of D and |N|.
static void read_base(second *f) {
    double N[DIM] = {0}, sum[DIM] = {0}, scale = (double)f->n_residual / f->m, mean, m2 = 0, m4 = 0, of_vectors = 0, ev4 = 0;
    for (int j = 0; j < f->n; j++)
        for (int c = 0; c < DIM && f->fixed[j]; c++)
            N[c] += f->e[j] * sl_bf16_to_f32(f->v[j][c]), f->fixed_e += c ? 0 : f->e[j];
    for (int i = 0; i < f->m; i++) {
        int j = f->order[i];
        f->sum += f->e[j], f->squares += f->e[j] * f->e[j], f->ev_squares += pow(f->e[j] * f->norm[j], 2);
        ev4 += pow(f->e[j] * f->norm[j], 4);
        for (int c = 0; c < DIM; c++) sum[c] += f->e[j] * sl_bf16_to_f32(f->v[j][c]);
    }
    mean = f->sum / f->m;
    for (int i = 0; i < f->m; i++) {
        int j = f->order[i];
        m2 += pow(f->e[j] - mean, 2), m4 += pow(f->e[j] - mean, 4);
        for (int c = 0; c < DIM; c++) of_vectors += pow(f->e[j] * sl_bf16_to_f32(f->v[j][c]) - sum[c] / f->m, 2);
    }
    for (int c = 0; c < DIM; c++) f->N += pow(N[c] + scale * sum[c], 2), f->ev += sum[c] * sum[c];
    f->N = sqrt(f->N), f->ev = sqrt(f->ev), f->D = f->fixed_e + scale * f->sum;
    f->sigma = sqrt(m2 / (f->m - 1)), f->trace = of_vectors / (f->m - 1);
    double of_e = m4 / f->m / pow(m2 / f->m, 2), of_ev = ev4 / f->m / pow(f->ev_squares / f->m, 2);
    f->kurtosis = f->verify == 0 ? of_e : f->verify == 1 ? of_ev : fmax(of_e, of_ev);
}

// The error that a theorem states for b rows. vectors: of the numerator. d: the probability that it is exceeded.
static double clt_error(const second *f, int vectors, double b, double d) {
    double n = f->n_residual, spread = vectors ? sqrt(f->trace) / f->N : f->sigma / f->D;
    return -sl_normal_quantile(d / 2) * n * spread * sqrt(1 / b - 1 / n);
}
static double hoeffding_error(const second *f, int vectors, double b, double d) {
    double n = f->n_residual, range = vectors ? 2 * f->most * f->largest_v / f->N : f->most / f->D;
    return n * range * sqrt(log(2 / d) / (2 * b));
}
static double deviation(double variance, double range, double L, double b) { // Bernstein
    return range * L / (3 * b) + sqrt(pow(range * L / (3 * b), 2) + 2 * variance * L / b);
}
static double bernstein_error(const second *f, int vectors, double b) { // the four statements of bernstein.h
    double n = f->n_residual, m = f->m, grid = 0, both = f->verify == 2 ? 2 : 1, d = f->delta / 8 / both;
    for (int i = f->m; i < f->n_residual; i = (int)fmax(ceil(i * sqrt(2)), i + 1)) grid++;
    double L = log(2 * grid * both / (0.75 * f->delta)), most = f->most * (vectors ? f->largest_v : 1);
    double range = vectors ? 2 * most : most, mean = (vectors ? f->ev : f->sum) / m;
    double a = most * sqrt(2 * log(1 / d) / m), x = (a + sqrt(a * a + 4 * (vectors ? f->ev_squares : f->squares) / m)) / 2;
    double square = fmin(x * x, most * most); // of the mean square; no square exceeds the range's
    double t = deviation(square, range, log((vectors ? 2 : 1) / d), m), variance = square - pow(fmax(mean - t, 0), 2);
    double least = vectors ? fmax(f->N - n * t, 0) : f->fixed_e + n * fmax(mean - t, 0);
    return n * fmin(deviation(variance, range, L, b), (n - b) / b * deviation(variance, range, L, n - b)) / least;
}

static double stated_error(const second *f, double b) {
    double best = INFINITY;
    if (f->bound == 2) {
        double of_d = bernstein_error(f, 0, b), of_n = bernstein_error(f, 1, b);
        return f->verify == 2 ? (of_d < 1 ? (of_d + of_n) / (1 - of_d) : INFINITY) : f->verify ? of_n : of_d;
    }
    if (f->verify < 2) return f->bound ? hoeffding_error(f, f->verify, b, f->delta) : clt_error(f, f->verify, b, f->delta);
    if (f->bound) return 4 * fmax(hoeffding_error(f, 0, b, f->delta / 2), hoeffding_error(f, 1, b, f->delta / 2));
    for (int i = 1; i < 50; i++) // delta is split in fiftieths
        best = fmin(best, 2 * (clt_error(f, 0, b, f->delta * i / 50) + clt_error(f, 1, b, f->delta * (50 - i) / 50)));
    return best;
}

// b must be the fewest rows, from the base sample on, whose stated error is at most epsilon, or all rows if there is no such
// number. Sums over the base sample are in fp32.
static void check_rows(const second *f, int b) {
    int before = b - 1, grid = f->m;
    for (; f->bound == 2 && grid < b; grid = (int)fmax(ceil(grid * sqrt(2)), grid + 1)) before = grid;
    double own = b < f->n_residual ? stated_error(f, b) : 0, less = b > f->m ? stated_error(f, before) : INFINITY;
    CHECK(b >= f->m);
    if (!(own <= f->epsilon * (1 + 1e-4) && less > f->epsilon * (1 - 1e-4)) ||
        (f->bound == 2 && b < f->n_residual && grid != b))
        FAIL("bound %d, verify %d: %d of %d rows state %g, fewer rows %g", f->bound, f->verify, b, f->n_residual, own, less);
}

static void check_second(ref_cache *c, const sl_attn_spec *spec, int head, int *n_sampled) {
    int n = c->seqs[0].n_tokens, refined = sl_attn_get(spec, "predictor") > 0, h = head / 2;
    int unit = sl_attn_chooses(spec, "predictor", "quest") ? 16 : 1;
    second f = {.got = &watched[head],
                .n = n,
                .verify = (int)sl_attn_get(spec, "verify"),
                .bound = (int)sl_attn_get(spec, "bound"),
                .epsilon = sl_attn_get(spec, "epsilon"),
                .delta = sl_attn_get(spec, "delta"),
                .e = malloc(n * sizeof *f.e),
                .norm = calloc(n, sizeof *f.norm),
                .v = malloc(n * sizeof *f.v),
                .order = malloc(n * sizeof *f.order),
                .fixed = calloc(n, 1)};
    const sl_attn_report *r = &c->reports[head];
    double top = -INFINITY, out[DIM] = {0}, sum = 0;
    for (int j = 0; j < n; j++) {
        double dot = 0;
        bf16 norm;
        f.v[j] = ref_v_row(c, 0, h, j);
        for (int d = 0; d < DIM; d++) dot += (double)c->q[head * DIM + d] * sl_bf16_to_f32(ref_k_row(c, 0, h, j)[d]);
        for (int d = 0; d < DIM; d++) f.norm[j] += pow(sl_bf16_to_f32(f.v[j][d]), 2);
        f.norm[j] = sqrt(f.norm[j]);
        sl_norms(sl_kv_bf16_run(f.v[j]), 1, DIM, &norm);
        f.largest_v = fmax(f.largest_v, sl_bf16_to_f32(norm));
        f.e[j] = dot / sqrt(DIM) / log(2);
        top = fmax(top, f.e[j]);
    }
    for (int j = 0; j < n; j++) f.e[j] = refined ? exp2(f.e[j] - top) : f.got->stored_p[j]; // stored masses are the oracle's
    fix_rows(&f, spec, unit, refined ? exp2(f.got->log2_total - top) : 1);
    sl_rng_id id = {5, c->queries[0].sequence, c->queries[0].position, 2, (uint32_t)head};
    permute_residual(&f, &id);
    f.m = (int)fmax(2, ceil(sl_attn_get(spec, "base") * f.n_residual));
    int b = f.m < f.n_residual ? (int)r->budget : f.n_residual;
    if (f.m < f.n_residual) {
        read_base(&f);
        // Sums over the base sample are in fp32.
        check_rows(&f, b);
        double error = b < f.n_residual ? stated_error(&f, b) : 0;
        if (!(fabs(r->error_bound - error) <= 2e-4 * error))
            FAIL("bound %d, verify %d, %d of %d rows, head %d: the stated error is %g, expected %g", f.bound, f.verify, b,
                 f.n_residual, head, r->error_bound, error);
        if (!(fabs(r->kurtosis - f.kurtosis) <= 1e-2 * f.kurtosis)) FAIL("kurtosis %g, expected %g", r->kurtosis, f.kurtosis);
        if (fabs(f.kurtosis - 1 - 0.25 * f.m) > 0.02 * f.m) CHECK_INT(r->heavy_tail, f.kurtosis - 1 > 0.25 * f.m);
        *n_sampled += b > f.m && b < f.n_residual;
    } else {
        CHECK(r->error_bound == 0 && isnan(r->kurtosis));
    }
    CHECK_INT(r->budget, b);
    CHECK_INT(r->tries, 1);
    CHECK_INT(r->samples, n - f.n_residual + b);
    double *times = calloc(n, sizeof *times);
    for (int j = 0; j < n; j++) times[j] = f.fixed[j];
    for (int i = 0; i < b; i++) times[f.order[i]] = (double)f.n_residual / b;
    for (int j = 0; j < n; j++) {
        if (f.got->count[j] != (times[j] > 0) || fabs(f.got->inv_pi[j] - times[j]) > 1e-6 * times[j])
            FAIL("head %d, row %d of %d: %d times with the weight %g, expected %g", head, j, n, f.got->count[j],
                 f.got->inv_pi[j], times[j]);
        sum += times[j] * f.e[j];
        for (int d = 0; d < DIM; d++) out[d] += times[j] * f.e[j] * sl_bf16_to_f32(f.v[j][d]);
    }
    for (int d = 0; d < DIM; d++) out[d] /= sum;
    CHECK(ref_relative(c->out + head * DIM, out, DIM) < 1e-4);
    free(f.e), free(f.norm), free(f.v), free(f.order), free(f.fixed), free(times);
}

// Heads 0 and 1: mild and flat; 2 and 3: peaked. Values of KV head 1 are the inverse of e^s of head 2, so that the error lies
// in the denominator. `far`: the values of a row are long.
static ref_cache cache_for_second(int n, double scale, uint64_t seed) {
    ref_cache c = ref_cache_new(4, 2, DIM, 1, &n, scale, seed);
    ref_add_to_values(&c, 1);
    for (int d = 0; d < DIM; d++) c.q[DIM + d] *= 0.3f, c.q[2 * DIM + d] *= 1.5f, c.q[3 * DIM + d] *= 3;
    for (int j = 0; j < n; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += c.q[2 * DIM + d] * sl_bf16_to_f32(ref_k_row(&c, 0, 1, j)[d]) / sqrt(DIM);
        for (int d = 0; d < DIM; d++) {
            bf16 *v = (bf16 *)ref_v_row(&c, 0, 1, j) + d;
            *v = sl_f32_to_bf16((float)(exp(-dot) * (d == 0) + 0.01 * sl_bf16_to_f32(*v)));
        }
    }
    return c;
}

static void every_number(void) {
    static const struct {
        const char *options;
        double epsilon[3]; // of clt, hoeffding, bernstein
    } of[] = {{"base=0.05:top=0.02", {0.1, 0.3, 0.6}},
              {"base=0.003:top=0.02", {0.2, 0.6, 1}},
              {"base=0.1:top=0.1:predictor=quest", {0.1, 0.5, 0.8}},
              {"base=0:top=0:delta=0.4", {0.9, 0.9, 1}},
              {"base=0.3:top=0:sink=0:window=1:delta=0.2:predictor=quest", {0.05, 0.3, 0.4}},
              {"base=0.05:top=0.02:predictor=int4", {0.1, 0.5, 0.9}},
              {"base=0.05:top=1", {0.1, 0.1, 0.1}}};
    static const int lengths_of[] = {1200, 300};
    static const char *const bounds[] = {"clt", "hoeffding", "bernstein"};
    int n_sampled[3] = {0};
    for (int i = 0; i < 2 * 7 * 9; i++) {
        int n = lengths_of[i / 63], bound = i % 3, verify = i / 3 % 3;
        char attn[200];
        sl_error err;
        sl_attn_spec spec;
        watched_method toy;
        snprintf(attn, sizeof attn, "vattention:sink=32:window=32:%s:epsilon=%g:verify=%s:bound=%s", of[i / 9 % 7].options,
                 of[i / 9 % 7].epsilon[bound], verify_names[verify], bounds[bound]);
        CHECK_OK(sl_attn_parse(attn, &spec, &err), err);
        watch_draw(&spec, &toy);
        ref_cache c = cache_for_second(n, 0.5, test_seed + i % 2);
        ref_decode_spec(&c, &spec, 0, 1, 5, 2);
        for (int head = 0; head < 4; head++) check_second(&c, &spec, head, &n_sampled[bound]);
        ref_cache_free(&c);
    }
    for (int bound = 0; bound < 3; bound++) CHECK(n_sampled[bound] >= 4);
}

static void normal_quantiles(void) { // Phi(x) = p; values of tables
    static const double table[][2] = {
        {0.5, 0}, {0.975, 1.959963984540054}, {0.95, 1.644853626951473}, {1e-9, -5.997807015007687}};
    for (int i = 0; i < 4; i++) CHECK_NEAR(sl_normal_quantile(table[i][0]), table[i][1], 1e-12);
    CHECK(sl_normal_quantile(0) == -INFINITY && sl_normal_quantile(1) == INFINITY && isnan(sl_normal_quantile(-0.1)));
    for (double p = 1e-12; p < 0.5; p *= 1.1) {
        double x = sl_normal_quantile(p);
        CHECK_NEAR(0.5 * erfc(-x / sqrt(2)) / p, 1, 1e-13);
        CHECK_NEAR(sl_normal_quantile(1 - p), -x, 1e-15 / p);
    }
}

// ---- how often the error exceeds epsilon ----

// The share of errors above epsilon for the verified quantity: many queries, flat to peaked, many draws each. epsilon is for
// 2,000 rows and falls as 1 / sqrt(n), so b / n_s is constant, and the budget decides, not the base sample.
static void coverage(int verify, const char *bound, double epsilon, double base) {
    static const double scales[] = {0.5, 1, 2};
    static const int lengths[] = {2000, 4000, 8000};
    const double delta = 0.1;
    int exceeded = 0, runs = 0, asked = 0, exceeded_asked = 0, seeds = 40 / SCALE;
    for (int i = 0; i < 3; i++) {
        fixture *l = fixture_open(lengths[i], test_seed + i);
        double limit = epsilon * sqrt(2000.0 / lengths[i]), error[3];
        char spec[200];
        snprintf(spec, sizeof spec, "vattention:sink=32:window=32:top=0.05:base=%g:epsilon=%.9g:delta=%g:verify=%s:bound=%s",
                 base, limit, delta, verify_names[verify], bound);
        fixture_spec(l, spec);
        for (int query = 0; query < 9; query++) {
            fixture_query(l, scales[query % 3], test_seed + 100 * i + query);
            for (int seed = 0; seed < seeds; seed++, runs++) {
                drawn d = draw(l, (uint32_t)(test_seed + seed));
                int by_budget = d.n_sample > (int)ceil(base * d.n_residual);
                CHECK(d.n_sample > 0); // not every row: such a run would hide errors
                CHECK(l->report.error_bound <= limit * (1 + 1e-6));
                true_errors(l, error);
                exceeded += error[verify] > limit;
                asked += by_budget, exceeded_asked += by_budget && error[verify] > limit;
            }
        }
        fixture_close(l);
    }
    printf(
        "      %s, %s, epsilon %g, delta %g: %d of %d exceed it (%.1f%% to %.1f%%, 95%% confidence); %d of %d where more than "
        "the base sample was drawn\n",
        verify_names[verify], bound, epsilon, delta, exceeded, runs, 100 * (1 - upper_share(runs - exceeded, runs)),
        100 * upper_share(exceeded, runs), exceeded_asked, asked);
    // The bound is 3 standard errors above delta. It finds gross faults: a sigma that is 10% too small, with a share of 14%,
    // passes once in 9 runs. It does not show that clt holds delta exactly, and for the denominator clt does not. 18,000 draws
    // over 900 such queries (2026-11-21) gave shares of 10.5% (95%: 10.0 to 10.9), 5.6% (5.3 to 5.9), 1.3% (1.1 to 1.4) for
    // delta 10%, 5%, 1%; with base 0.01, 7.1% for 5%. With the true sigma and D of the residual the formula gives 4.9% (4.7
    // to 5.1): the rest is the cost of their estimates.
    CHECK(exceeded <= delta * runs + 3 * sqrt(delta * (1 - delta) * runs));
    CHECK(asked > runs / 2);
}

static void coverage_denominator(void) {
    coverage(0, "clt", 0.05, 0.05);
    coverage(0, "hoeffding", 0.3, 0.05);
}
static void coverage_numerator(void) {
    coverage(1, "clt", 0.06, 0.05);
    coverage(1, "hoeffding", 1, 0.05);
}
static void coverage_output(void) {
    coverage(2, "clt", 0.2, 0.05); // Hoeffding would read every row here
}

// Without the floor of the base sample, and with b < n_s, the error is nearly linear in epsilon. The test fits the slope of log
// error on log epsilon. The root of the mean of R squares has a relative error of about 1 / sqrt(2 R), so the slope has sqrt(2
// / (2 R)) / log(4).
static void error_follows_epsilon(void) {
    static const double epsilons[] = {0.03, 0.06, 0.12};
    double x[3], y[3], sxx = 0, sxy = 0, mx = 0, my = 0;
    fixture *l = fixture_open(20000, test_seed);
    for (int i = 0; i < 3; i++) {
        char spec[160];
        double square = 0;
        int R = 400 / SCALE;
        snprintf(spec, sizeof spec, "vattention:sink=32:window=32:top=0.01:base=0.0025:epsilon=%g:verify=denominator",
                 epsilons[i]);
        fixture_spec(l, spec);
        for (int r = 0; r < R; r++) {
            double error[3];
            if (r % 50 == 0) fixture_query(l, 1, test_seed + r);
            drawn d = draw(l, (uint32_t)r);
            CHECK(d.n_sample > (int)ceil(0.0025 * d.n_residual)); // 0: every row
            true_errors(l, error);
            square += error[0] * error[0] / R;
        }
        x[i] = log(epsilons[i]), y[i] = 0.5 * log(square), mx += x[i] / 3, my += y[i] / 3;
    }
    fixture_close(l);
    for (int i = 0; i < 3; i++) sxx += pow(x[i] - mx, 2), sxy += (x[i] - mx) * (y[i] - my);
    printf("      slope of log error on log epsilon: %.3f\n", sxy / sxx);
    CHECK(sxy / sxx > 0.8 && sxy / sxx < 1.2);
}

static const test_case cases[] = {
    {"small-contexts-are-dense", 0, small_contexts_are_dense},
    {"uniform-sample", 0, uniform_sample},
    {"residual-of-few-rows", 0, residual_of_few_rows},
    {"no-spread", 0, no_spread},
    {"every-number", 0, every_number},
    {"normal-quantiles", 0, normal_quantiles},
    {"coverage-denominator", 0, coverage_denominator},
    {"coverage-numerator", 0, coverage_numerator},
    {"coverage-output", 0, coverage_output},
    {"error-follows-epsilon", 0, error_follows_epsilon},
    {0},
};
const test_suite suite_vattention = {"vattention", cases};
