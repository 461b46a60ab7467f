// tests/cuda/test_cuda_bernoulli.c - Bernoulli qK^T on a GPU. Counts and scores must equal the CPU's. The CPU draws from the
// masses that the kernel stored, and these draws must give the kernel's output. Errors must agree with the closed forms. The
// kernel must not read features with count 0.
#include "tests/support/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

// Score of row j in log2 units, from its stored mass, which is rounded to bf16.
static double score_of(const sl_masses *wt, int j) {
    return wt->ref[j / SL_BLOCK] + log2(sl_bf16_to_f32(wt->stored[j]));
}

// Compares the kernel's counters and the method's account with the CPU's statistics. With a sampler the rows of V are counted
// differently, so they are not compared.
static void check_stats(const decode_fixture *r, const sl_attn_stats *cpu) {
    CHECK_NEAR(r->stats.features, cpu->features, 1e-3 * cpu->steps);
    CHECK_INT(r->stats.samples, cpu->samples);
    CHECK_INT(r->stats.k_rows, cpu->k_rows);
    if (r->spec.plus) return;
    CHECK_INT(r->stats.bytes, cpu->bytes);
    CHECK_INT(r->stats.v_rows, cpu->v_rows);
    CHECK_INT(r->stats.v_distinct, cpu->v_distinct);
}

static void check(ref_cache *c, const char *attn, uint32_t seed) {
    decode_fixture r = fixture_new(c, attn, seed);
    sl_attn_stats cpu = ref_decode(c, attn, 0, c->n_seqs, seed, FIXTURE_LAYER);
    fixture_launch(&r);
    fixture_check_masses(&r);
    fixture_check(&r);
    check_stats(&r, &cpu);
    fixture_free(&r);
}

// ---- cases ----

static const char *const all[] = {"bernoulli:B=8",
                                  "bernoulli-group:B=8",
                                  "bernoulli:B=3:bernoulli-sampling=iid",
                                  "bernoulli-group:B=5:bernoulli-sampling=iid",
                                  "bernoulli-group:B=1000",
                                  "bernoulli-group:B=8+santa-sys:S=128",
                                  "bernoulli:B=4+santa-sys:S=64",
                                  "bernoulli-group:B=8+santa:S=100",
                                  "bernoulli-group:B=2+santa-strat:S=128",
                                  "bernoulli-group:B=8+santa-prop:S=128",
                                  "bernoulli:B=8+santa-flash:S=600"};
enum { N_ALL = sizeof all / sizeof *all };

static void lengths(void) {
    static const int n[] = {1, 31, 255, 256, 257, 1000, 4097, 32769};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        ref_cache c = ref_cache_new(8, 2, 128, 1, &n[i], i % 3 == 0 ? 0.3 : i % 3 == 1 ? 1 : 3, test_seed + i);
        for (int m = 0; m < N_ALL; m++)
            if (n[i] < 30000 || m == 1 || m == 5) check(&c, all[m], 11 + m);
        ref_cache_free(&c);
    }
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8}, n[] = {700, 1, 2049};
    static const char *const attn[] = {"bernoulli:B=4", "bernoulli-group:B=4", "bernoulli:B=4+santa-sys:S=32",
                                       "bernoulli-group:B=4+santa-prop:S=32"};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 8; g++) {
            ref_cache c = ref_cache_new(2 * groups[g], 2, dims[d], 3, n, 2, test_seed + d);
            for (int m = 0; m < 4; m++) check(&c, attn[m], 5);
            ref_cache_free(&c);
        }
}

// Each row of K has one feature that is not 0. It is so large that the row's score is the feature's signed count, exactly.
static void counts(void) {
    static const struct {
        int heads, kv_heads, dim, B, iid;
    } x[] = {{8, 2, 128, 8, 0}, {3, 1, 80, 5, 0}, {4, 4, 64, 3, 1}, {8, 1, 96, 30, 0}, {8, 2, 128, 16, 1}};
    int n = 600; // two full pages, stored by feature, and the newest page, which the kernel reads by row
    for (int i = 0; i < 5; i++)
        for (int shared = 0; shared < 2; shared++) {
            int dim = x[i].dim, group = x[i].heads / x[i].kv_heads;
            ref_cache c = ref_cache_new(x[i].heads, x[i].kv_heads, dim, 1, &n, 1, test_seed + i);
            float step = (float)(x[i].B * sqrt(dim) * log(2));
            for (int h = 0; h < x[i].kv_heads; h++)
                for (int j = 0; j < n; j++)
                    for (int d = 0; d < dim; d++) ((bf16 *)ref_k_row(&c, 0, h, j))[d] = sl_f32_to_bf16(d == j % dim ? step : 0);
            // The largest magnitude is 1. Heads that share counts get equal magnitudes.
            for (int head = 0; head < x[i].heads; head++)
                for (int d = 0; d < dim; d++) {
                    float *q = c.q + head * dim + d, size = fminf(fabsf(*q) / 2, 1);
                    if (shared && head % group) size = fabsf(c.q[head / group * group * dim + d]);
                    if (d == 7) size = 1;
                    *q = copysignf(size, *q);
                }
            char attn[80];
            snprintf(attn, sizeof attn, "bernoulli%s:B=%d:bernoulli-sampling=%s+santa:S=1", shared ? "-group" : "", x[i].B,
                     x[i].iid ? "iid" : "stratified");
            decode_fixture r = fixture_new(&c, attn, 77);
            fixture_launch(&r);
            for (int head = 0; head < x[i].heads; head++) {
                sl_masses wt = fixture_masses(&r, 0, 0, head);
                for (int j = 0; j < n; j++) {
                    int d = j % dim;
                    const sl_rng_id id = {.seed = 77,
                                          .sequence = c.queries[0].sequence,
                                          .position = (uint32_t)n - 1,
                                          .layer = FIXTURE_LAYER,
                                          .head = (uint32_t)(shared ? head / group * group : head)};
                    float q = c.q[head * dim + d];
                    uint64_t u = 0;
                    int want = 0;
                    for (int t = 0; x[i].iid && t < x[i].B; t++)
                        want += fabsf(q) >= 1 ||
                                (long double)sl_rng_u64(&id, t * dim + d, SL_STREAM_FEATURES) * 0x1p-64L < fabsf(q);
                    u = sl_rng_u64(&id, d, SL_STREAM_FEATURES);
                    if (!x[i].iid)
                        want = fabsf(q) >= 1 ? x[i].B : (int)floorl((long double)x[i].B * fabsf(q) + (long double)u * 0x1p-64L);
                    double got = score_of(&wt, j);
                    if (lrint(got) != (q < 0 ? -want : want))
                        FAIL("%s, head %d, feature %d: count %g, expected %d", attn, head, d, got, q < 0 ? -want : want);
                }
                fixture_masses_free(&wt);
            }
            fixture_free(&r);
            ref_cache_free(&c);
        }
}

// Figure 6 of the SANTA paper: the squared error of the scores agrees with the closed forms (docs/methods.md). Every head of a
// group has its own counts.
static double closed_form(const float *q, int dim, int B, int iid) {
    double norm = 0, sum = 0, square = 0, f_sum = 0;
    for (int d = 0; d < dim; d++) norm = fmax(norm, fabsf(q[d])), sum += fabsf(q[d]), square += (double)q[d] * q[d];
    for (int d = 0; d < dim; d++) {
        double x = B * (fabsf(q[d]) / norm), f = x - floor(x);
        f_sum += f * (1 - f);
    }
    return iid ? norm * sum / (B * square) - 1.0 / B : norm * norm * f_sum / ((double)B * B * square);
}

static void closed_forms(void) {
    enum { N = 1024, HEADS = 32, KV_HEADS = 8, DIM = 128, STEPS = 24 };
    static const char *const attn[] = {"bernoulli:B=4+santa:S=1", "bernoulli:B=4:bernoulli-sampling=iid+santa:S=1"};
    int n = N;
    double ratio[2] = {0};
    for (int step = 0; step < STEPS; step++) {
        // Relative errors do not depend on the scale of queries
        ref_cache c = ref_cache_new(HEADS, KV_HEADS, DIM, 1, &n, 4, test_seed + step);
        for (int iid = 0; iid < 2; iid++) {
            decode_fixture r = fixture_new(&c, attn[iid], 100 + step);
            fixture_launch(&r);
            for (int head = 0; head < HEADS; head++) {
                const float *q = c.q + head * DIM;
                double error = 0, square = 0;
                sl_masses wt = fixture_masses(&r, 0, 0, head);
                for (int j = 0; j < n; j++) {
                    const bf16 *k = ref_k_row(&c, 0, head / r.group, j);
                    double want = 0;
                    for (int d = 0; d < DIM; d++) want += (double)q[d] * sl_bf16_to_f32(k[d]);
                    want *= 1.4426950408889634 / sqrt(DIM);
                    error += pow(score_of(&wt, j) - want, 2), square += want * want;
                }
                fixture_masses_free(&wt);
                ratio[iid] += error / square / closed_form(q, DIM, 4, iid) / (STEPS * HEADS);
            }
            fixture_free(&r);
        }
        ref_cache_free(&c);
    }
    printf("      squared error over the closed form: stratified %.3f, iid %.3f\n", ratio[0], ratio[1]);
    CHECK_NEAR(ratio[0], 1, 0.05);
    CHECK_NEAR(ratio[1], 1, 0.05);
}

static void ragged_batch(void) {
    ref_cache c = ref_cache_new(8, 2, 128, FIXTURE_SEQS, fixture_ragged, 3, test_seed);
    check(&c, "bernoulli-group:B=4", 9);
    check(&c, "bernoulli-group:B=4+santa-sys:S=128", 9);
    ref_cache_free(&c);
}

// Features with count 0 in the whole group are not read: NaN in these features changes no output.
static void unread_features(void) {
    static const char *const attn[] = {"bernoulli:B=2", "bernoulli-group:B=2", "bernoulli-group:B=2+santa-sys:S=64"};
    enum { DIM = 64, HEADS = 2 };
    int n = 900;
    ref_cache c = ref_cache_new(4, HEADS, DIM, 1, &n, 1, test_seed);
    for (int i = 0; i < 4 * DIM; i++) c.q[i] *= i % DIM == 3 || i % DIM == 40 ? 8 : i % DIM == 9 ? 0 : 0.3f;
    for (int m = 0; m < 3; m++) {
        decode_fixture r = fixture_new(&c, attn[m], 3);
        size_t size = (size_t)c.pool.n_pages * HEADS * DIM * SL_PAGE * sizeof(bf16), out = 4 * DIM * sizeof(bf16);
        bf16 *columns = malloc(size), *before = malloc(out);
        int n_poisoned = 0;
        fixture_launch(&r);
        memcpy(before, r.out, out);
        gpu_read(columns, r.args.extra[0], size);
        sl_attn_decode_args args = {
            .geom = &c.geom, .spec = &r.spec, .layer = FIXTURE_LAYER, .seed = 3, .n_seqs = 1, .seqs = c.queries};
        for (int h = 0; h < HEADS; h++) {
            const sl_proposal *propose = sl_composition_of(&r.spec).propose;
            sl_group g = sl_group_of(&args, 0, h);
            g.state = malloc(propose->state(&c.geom, &r.spec, n));
            propose->begin(&g);
            const int32_t *features = g.state; // [0]: the number of features; then the features
            int used[DIM] = {0};
            for (int i = 1; i <= features[0]; i++) used[features[i]] = 1;
            for (int page = 0; page < c.pool.n_pages; page++)
                for (int d = 0; d < DIM; d++)
                    for (int j = 0; j < SL_PAGE && !used[d]; j++)
                        columns[((size_t)(page * HEADS + h) * DIM + d) * SL_PAGE + j] = 0x7fc0;
            n_poisoned += DIM - features[0];
            free(g.state);
        }
        CHECK(n_poisoned > 0);
        r.args.extra[0] = gpu_copy(columns, size);
        fixture_launch(&r);
        CHECK(!memcmp(before, r.out, out));
        free(columns), free(before);
        fixture_free(&r);
    }
    ref_cache_free(&c);
}

static void zero_query(void) { // no feature is read, so all scores are 0
    int n = 700;
    ref_cache c = ref_cache_new(4, 2, 64, 1, &n, 0, test_seed);
    for (int m = 0; m < N_ALL; m++) check(&c, all[m], 1);
    ref_cache_free(&c);
}

static void refused(void) { // combinations that no kernel offers
    static const char *const attn[] = {"bernoulli+santa-pps:S=64", "bernoulli-group+santa-sys:budget=variance"};
    for (int m = 0; m < 2; m++) {
        sl_attn_spec spec;
        CHECK_OK(sl_attn_parse(attn[m], &spec, &err), err);
        CHECK(!sl_attn_on_gpu(&spec));
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("shapes", shapes),
    GPU_CASE("counts", counts),
    GPU_CASE("closed-forms", closed_forms),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("unread-features", unread_features),
    GPU_CASE("zero-query", zero_query),
    GPU_CASE("refused", refused),
    {0},
};
const test_suite suite_cuda_bernoulli = {"cuda_bernoulli", cases};
