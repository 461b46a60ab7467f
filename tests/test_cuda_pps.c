// tests/test_cuda_pps.c - santa-pps on a GPU: stored weights and sizes against double precision; from the very ones that the
// kernel stored, the CPU's draws; means and errors against dense attention; stated errors.
#include "tests/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/cuda.h"
#include "attention/stages.h"
#include "tests/reference.h"
#include "tests/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER_BYTES = 65536 * 4, MAX_SEQS = 16 };
static sl_error err;

// ---- a cache on the GPU, and a method that decodes from it ----

typedef struct run {
    ref_cache c;
    sl_attn_spec spec;
    int n_slots, group, max_blocks;
    uint32_t seed;
    sl_row rows[MAX_SEQS];
    sl_row *device_rows;
    sl_attn_cuda_decode_args args;
    size_t state_size; // of a sequence
    bf16 *out;         // [n_seqs][n_heads][head_dim], read back
    uint64_t *mass[2]; // of weights and sizes: [n_slots][group][max_blocks]
    bf16 *w[2];        // [n_slots][max_blocks][group][32]
} run;

// Norms of all pages but each sequence's newest; NaN elsewhere.
static const void *build_norms(const ref_cache *c, const bf16 *v) {
    size_t size = SL_PAGE * sizeof(float);
    int32_t *pages = malloc(c->pool.n_pages * sizeof *pages + 1);
    sl_kv_device_build b = {.head_dim = c->geom.head_dim, .n_kv_heads = c->geom.n_kv_heads, .size = size, .v = v};
    for (int s = 0; s < c->n_seqs; s++)
        for (int i = 0; i < (c->seqs[s].n_tokens - 1) / SL_PAGE; i++) pages[b.n++] = c->seqs[s].pages[i];
    b.data = gpu_new(c->pool.n_pages * c->geom.n_kv_heads * size);
    b.pages = gpu_copy(pages, b.n * sizeof *pages + 1);
    if (b.n) sl_cuda_build_norms(&b);
    free(pages);
    return b.data;
}

static void set_rows(run *r, uint32_t seed) { // and what else of r->rows has changed
    for (int s = 0; s < r->c.n_seqs; s++) r->rows[s].seed = seed;
    cudaMemcpy(r->device_rows, r->rows, sizeof r->rows, cudaMemcpyHostToDevice);
}

static run run_new(ref_cache c, const char *attn, uint32_t seed) {
    const sl_attn_geom *g = &c.geom;
    run r = {.c = c, .seed = seed, .group = g->n_heads / g->n_kv_heads, .n_slots = c.n_seqs * g->n_kv_heads};
    int max_kv = 0;
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    const sl_attn_cuda_ops *ops = r.spec.method->cuda;
    for (int s = 0; s < c.n_seqs; s++) max_kv = c.seqs[s].n_tokens > max_kv ? c.seqs[s].n_tokens : max_kv;
    r.max_blocks = (max_kv + 2 * SL_BLOCK - 1) / (2 * SL_BLOCK) * 2; // as the kernel's
    size_t row = (size_t)g->n_heads * g->head_dim, bytes = (size_t)c.pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim * 2;
    size_t n_blocks = (size_t)r.n_slots * r.group * r.max_blocks;
    r.state_size = ops->state ? ops->state(g, &r.spec) : 0;
    char *state = gpu_zero(c.n_seqs * r.state_size + 1);
    bf16 *q = malloc(c.n_seqs * row * sizeof *q);
    for (int s = 0; s < c.n_seqs; s++)
        r.rows[s] = (sl_row){.position = c.seqs[s].n_tokens - 1,
                             .sequence = 7u * s,
                             .seed = seed,
                             .state = state + s * r.state_size,
                             .pages = gpu_copy(c.seqs[s].pages, c.seqs[s].n_pages * sizeof(int32_t))};
    for (size_t i = 0; i < c.n_seqs * row; i++) {
        q[i] = sl_f32_to_bf16(c.q[i]);
        c.q[i] = sl_bf16_to_f32(q[i]);
    }
    r.device_rows = gpu_copy(r.rows, sizeof r.rows);
    r.args = (sl_attn_cuda_decode_args){.layer = 3,
                                        .n_seqs = c.n_seqs,
                                        .max_kv = max_kv,
                                        .rows = r.device_rows,
                                        .q = gpu_copy(q, c.n_seqs * row * sizeof *q),
                                        .out = gpu_new(c.n_seqs * row * sizeof(bf16)),
                                        .k = gpu_copy(c.pool.k, bytes),
                                        .v = gpu_copy(c.pool.v, bytes),
                                        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
                                        .ws = gpu_zero(ops->workspace(g, &r.spec, c.n_seqs, 1, max_kv))};
    if (ops->needs) r.args.extra[0] = build_norms(&c, r.args.v), r.args.extra_size[0] = SL_PAGE * sizeof(float);
    r.out = malloc(c.n_seqs * row * sizeof *r.out);
    for (int i = 0; i < 2; i++) {
        r.mass[i] = malloc(n_blocks * sizeof **r.mass);
        r.w[i] = malloc(n_blocks * SL_BLOCK * sizeof **r.w);
    }
    free(q);
    return r;
}

static void launch(run *r) {
    r->args.geom = &r->c.geom, r->args.spec = &r->spec; // r may have moved
    r->spec.method->cuda->decode(&r->args);
    gpu_read(r->out, r->args.out, (size_t)r->c.n_seqs * r->c.geom.n_heads * r->c.geom.head_dim * sizeof *r->out);
}

static void read_stored(run *r) {
    size_t n_blocks = (size_t)r->n_slots * r->group * r->max_blocks;
    char *at = (char *)r->args.ws + COUNTER_BYTES;
    for (int i = 0; i < 2; i++) {
        gpu_read(r->mass[i], at, n_blocks * sizeof **r->mass);
        at += n_blocks * sizeof **r->mass;
        gpu_read(r->w[i], at, n_blocks * SL_BLOCK * sizeof **r->w);
        at += n_blocks * SL_BLOCK * sizeof **r->w;
    }
    int *counters = malloc(COUNTER_BYTES);
    gpu_read(counters, r->args.ws, COUNTER_BYTES);
    for (int i = 0; i < COUNTER_BYTES / 4; i++) CHECK_INT(counters[i], 0);
    free(counters);
}

static sl_attn_cuda_stats take_stats(run *r) {
    sl_attn_cuda_stats st;
    gpu_read(&st, r->args.stats, sizeof st);
    cudaMemset(r->args.stats, 0, sizeof st);
    return st;
}

static void run_free(run *r) {
    ref_cache_free(&r->c);
    free(r->out);
    for (int i = 0; i < 2; i++) free(r->mass[i]), free(r->w[i]);
    gpu_free_all();
}

static double dense(const run *r, int s, int head, double mu[128]) { // |out - mu| / |mu|
    int dim = r->c.geom.head_dim, n = r->c.seqs[s].n_tokens;
    size_t at = ((size_t)s * r->c.geom.n_heads + head) * dim;
    double *p = malloc(n * sizeof *p);
    float got[128];
    ref_attention(&r->c, s, head, r->c.q + at, n, p, mu);
    for (int d = 0; d < dim; d++) got[d] = sl_bf16_to_f32(r->out[at + d]);
    free(p);
    return ref_relative(got, mu, dim);
}

// ---- S draws: the CPU's ----

// What is stored for one head as the CPU keeps it, checked on the way; which: 0 weights, 1 sizes. score: in log2 units.
static sl_weights stored(const run *r, int which, int s, int head, const double *score, int n) {
    int slot = s * r->c.geom.n_kv_heads + head / r->group, h = head % r->group, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
    sl_weights wt = {.n = n, .n_blocks = n_blocks};
    wt.w = calloc((size_t)n_blocks * SL_BLOCK, sizeof *wt.w);
    wt.ref = malloc(n_blocks * sizeof *wt.ref);
    wt.cum = malloc((n_blocks + 1) * sizeof *wt.cum);
    for (int b = 0; b < n_blocks; b++) {
        uint64_t packed = r->mass[which][((size_t)slot * r->group + h) * r->max_blocks + b], mass = 0;
        const bf16 *w = r->w[which] + (((size_t)slot * r->max_blocks + b) * r->group + h) * SL_BLOCK;
        double top = -INFINITY;
        wt.ref[b] = (int16_t)(packed >> 48);
        for (int i = 0; i < SL_BLOCK; i++) {
            int j = b * SL_BLOCK + i;
            if (j >= n) {
                CHECK_INT(w[i], 0);
                continue;
            }
            double want = exp2(score[j] - wt.ref[b]), got = sl_bf16_to_f32(w[i]);
            if (!(fabs(got - want) <= want * 0x1p-7 + 1e-30))
                FAIL("sequence %d of %d, head %d, row %d: %s %g, expected %g", s, n, head, j, which ? "size" : "weight", got,
                     want);
            top = fmax(top, score[j]);
            mass += (uint32_t)(sl_bf16_to_f32(w[i]) * 0x1p30f);
            wt.w[j] = w[i];
        }
        if (fabs(wt.ref[b] - ceil(top)) > 0 && fabs(top - rint(top)) > 1e-3)
            FAIL("sequence %d, head %d, block %d: reference %d, expected %g", s, head, b, wt.ref[b], ceil(top));
        CHECK_INT(packed & 0xffffffffffff, mass);
        wt.cum[b + 1] = mass;
    }
    sl_weights_finish(&wt);
    return wt;
}

static void check_head(const run *r, int s, int head) {
    const sl_attn_geom *g = &r->c.geom;
    int n = r->c.seqs[s].n_tokens, dim = g->head_dim, kv = head / r->group, S = (int)sl_attn_get(&r->spec, "S");
    double *score = malloc(n * sizeof *score), *size = malloc(n * sizeof *size), want[128] = {0}, sum[128] = {0};
    const float *q = r->c.q + ((size_t)s * g->n_heads + head) * dim;
    for (int j = 0; j < n; j++) {
        const bf16 *k = ref_k_row(&r->c, s, kv, j), *v = ref_v_row(&r->c, s, kv, j);
        double square = 0;
        score[j] = 0;
        for (int d = 0; d < dim; d++) score[j] += (double)q[d] * sl_bf16_to_f32(k[d]), square += pow(sl_bf16_to_f32(v[d]), 2);
        score[j] *= 1.4426950408889634 / sqrt(dim);
        size[j] = score[j] + 0.5 * log2(square);
    }
    sl_weights wt = stored(r, 0, s, head, score, n), sz = stored(r, 1, s, head, size, n);
    sl_draws d = {.row = malloc(n * sizeof *d.row),
                  .count = malloc(n * sizeof *d.count),
                  .inv_pi = malloc(n * sizeof *d.inv_pi),
                  .scratch = malloc(2 * (size_t)S * sizeof *d.scratch)};
    const sl_rng_id id = {
        .seed = r->rows[s].seed, .sequence = 7u * s, .position = (uint32_t)n - 1, .layer = 3, .head = (uint32_t)head};
    sl_draw_take_all(&sz, S, sl_attn_get(&r->spec, "pps") == 1, sl_uniform_philox(&id), &d);
    for (int i = 0; i < d.n; i++) {
        int j = d.row[i];
        double p = ldexp(sl_bf16_to_f32(wt.w[j]), 38 + wt.ref[j / SL_BLOCK] - wt.top) / (double)sl_weights_total(&wt);
        double share = d.count[i] * p * d.inv_pi[i];
        const bf16 *v = ref_v_row(&r->c, s, kv, j);
        for (int x = 0; x < dim; x++) want[x] += share * sl_bf16_to_f32(v[x]), sum[x] += fabs(share * sl_bf16_to_f32(v[x]));
    }
    const bf16 *out = r->out + ((size_t)s * g->n_heads + head) * dim;
    for (int x = 0; x < dim; x++) {
        double got = sl_bf16_to_f32(out[x]);
        if (!(fabs(got - want[x]) <= fabs(want[x]) * 0x1p-8 + sum[x] * (S + 8) * 0x1p-24 + 1e-7))
            FAIL("S %d, %d rows, sequence %d, head %d: output %d is %g, the drawn rows give %g", S, n, s, head, x, got,
                 want[x]);
    }
    free(score), free(size), free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
    free(wt.w), free(wt.ref), free(wt.cum), free(sz.w), free(sz.ref), free(sz.cum);
}

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int S) {
    for (int k = 0; k < 2; k++) {
        char attn[64];
        snprintf(attn, sizeof attn, "santa-pps:S=%d:pps=%s", S, k ? "sys" : "strat");
        run r = run_new(ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed + k), attn, 11 + k);
        launch(&r);
        read_stored(&r);
        for (int s = 0; s < n_seqs; s++)
            for (int h = 0; h < n_heads; h++) check_head(&r, s, h);
        run_free(&r);
    }
}

static void lengths_of_context(void) {
    static const int all[] = {1, 31, 32, 33, 255, 256, 257, 1000, 4097, 8192, 32768, 32769};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, 128);
}

static void samples(void) {
    static const int n = 3000, S[] = {1, 3, 127, 128, 129, 1000, 4096};
    for (size_t i = 0; i < sizeof S / sizeof *S; i++) check(4, 1, 128, 1, &n, i % 2 ? 1 : 4, S[i]);
}

static void shapes_of_model(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 8}, n[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 5; g++) check(2 * groups[g], 2, dims[d], 3, n, 2, 64);
}

static const int ragged[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};

static void ragged_batch(void) {
    check(8, 2, 128, 16, ragged, 3, 128);
}

// ---- bits ----

// Runs again, and each sequence alone: equal bits.
static void equal_bits(void) {
    static const char *const specs[] = {"santa-pps", "santa-pps:epsilon=0.3"};
    size_t row = 8 * 128 * sizeof(bf16);
    for (int k = 0; k < 2; k++) {
        ref_cache c = ref_cache_new(8, 2, 128, 16, ragged, 2, test_seed);
        ref_add_to_values(&c, 1);
        run r = run_new(c, specs[k], 5);
        char *first = malloc(16 * row);
        launch(&r);
        memcpy(first, r.out, 16 * row);
        for (int i = 0; i < 20; i++) {
            if (r.state_size) cudaMemset(r.rows[0].state, 0, 16 * r.state_size);
            launch(&r);
            CHECK(!memcmp(first, r.out, 16 * row));
        }
        if (r.state_size) cudaMemset(r.rows[0].state, 0, 16 * r.state_size);
        r.args.n_seqs = 1;
        for (int s = 0; s < 16; s++) {
            r.args.rows = r.device_rows + s;
            r.args.q += s ? 8 * 128 : 0;
            launch(&r);
            CHECK(!memcmp(first + s * row, r.out, row));
        }
        free(first);
        run_free(&r);
    }
}

// ---- against dense attention ----

static void enough_rows_is_dense(void) { // stored weights are bf16: each is off by 2^-9 at most, on its own
    static const int n[] = {1, 31, 255, 256, 257, 1500};
    run r = run_new(ref_cache_new(8, 2, 128, 6, n, 2, test_seed), "santa-pps:S=1500", 5);
    launch(&r);
    for (int s = 0; s < 6; s++)
        for (int head = 0; head < 8; head++) {
            double mu[128];
            CHECK(dense(&r, s, head, mu) < 0x1p-7); // and the output too
        }
    sl_attn_cuda_stats st = take_stats(&r);
    CHECK_INT(st.samples, 8 * (1 + 31 + 255 + 256 + 257 + 1500));
    CHECK_INT(st.v_rows, st.samples);
    run_free(&r);
}

static void one_hot_is_exact(void) {
    static const int n = 3000;
    run r = run_new(ref_cache_new(4, 4, 128, 1, &n, 400, test_seed), "santa-pps", 5);
    launch(&r);
    for (int head = 0; head < 4; head++) {
        double mu[128];
        dense(&r, 0, head, mu);
        int best = 0;
        double *p = malloc(n * sizeof *p);
        ref_attention(&r.c, 0, head, r.c.q + head * 128, n, p, mu);
        for (int j = 0; j < n; j++)
            if (p[j] > p[best]) best = j;
        if (p[best] > 1 - 1e-9) CHECK(!memcmp(r.out + head * 128, ref_v_row(&r.c, 0, head, best), 128 * sizeof(bf16)));
        free(p);
    }
    run_free(&r);
}

// Mean over seeds: within 4 standard errors of dense attention with the stored weights, whose rounding (2^-9 a row, each on its
// own) and the output's are in the slack.
static void unbiased(void) {
    enum { SEEDS = 200, N = 4000 };
    static const double scales[] = {1, 4};
    for (int k = 0; k < 4; k++) {
        int n = N;
        run r = run_new(ref_cache_new(4, 1, 128, 1, &n, scales[k % 2], test_seed + k),
                        k / 2 ? "santa-pps:S=64:pps=sys" : "santa-pps:S=64", 5);
        double mean[4][128] = {{0}}, square[4] = {0}, mu[128];
        for (int seed = 0; seed < SEEDS; seed++) {
            set_rows(&r, (uint32_t)seed);
            launch(&r);
            for (int h = 0; h < 4; h++)
                for (int d = 0; d < 128; d++) {
                    double x = sl_bf16_to_f32(r.out[h * 128 + d]);
                    mean[h][d] += x / SEEDS, square[h] += x * x / SEEDS;
                }
        }
        for (int h = 0; h < 4; h++) {
            double variance = square[h], off = 0, norm = 0;
            dense(&r, 0, h, mu);
            for (int d = 0; d < 128; d++) {
                variance -= mean[h][d] * mean[h][d];
                off += pow(mean[h][d] - mu[d], 2), norm += mu[d] * mu[d];
            }
            double most = 4 * sqrt(variance / SEEDS) + 0x1p-9 * sqrt(norm);
            if (!(sqrt(off) <= most))
                FAIL("%s, head %d: the mean is off by %g, at most %g", r.spec.method->name, h, sqrt(off), most);
        }
        run_free(&r);
    }
}

static double mean_error(const char *attn, double scale, int n) {
    double sum = 0, mu[8][128];
    run r = run_new(ref_cache_new(8, 2, 128, 1, &n, scale, test_seed), attn, 5);
    for (uint32_t seed = 0; seed < 50; seed++) {
        set_rows(&r, seed);
        launch(&r);
        for (int h = 0; h < 8; h++) {
            float got[128];
            if (seed == 0) dense(&r, 0, h, mu[h]);
            for (int d = 0; d < 128; d++) got[d] = sl_bf16_to_f32(r.out[h * 128 + d]);
            sum += ref_relative(got, mu[h], 128) / 400;
        }
    }
    run_free(&r);
    return sum;
}

static void better_than_prop(void) {
    static const double scales[] = {0.5, 1, 2, 4};
    static const int n[] = {8192, 32768};
    for (int i = 0; i < 8; i++) {
        double pps = mean_error("santa-pps", scales[i % 4], n[i / 4]), prop = mean_error("santa-prop", scales[i % 4], n[i / 4]);
        printf("      %d rows, query deviation %g: error %.3f, santa-prop %.3f\n", n[i / 4], scales[i % 4], pps, prop);
        CHECK(pps < prop * (scales[i % 4] < 2 ? 1.01 : 1));
    }
}

// ---- a stated error ----

// Two positions, the second planned with the first's output: no certified head may exceed epsilon more often than delta. The
// hardest values are all along one channel, a quarter of them negative (test_pps.c).
static void stated(const char *bound, double epsilon, double delta, int hardest) {
    enum { SEEDS = 30, HEADS = 8, SEQS = 2 };
    static const double scales[] = {0.3, 1, 3};
    static const int n[SEQS] = {2001, 8000};
    int certified[2] = {0}, exceeded[2] = {0}, dense_heads = 0, tries = 0;
    char attn[96];
    snprintf(attn, sizeof attn, "santa-pps:epsilon=%g:delta=%g:bound=%s", epsilon, delta, bound);
    for (int k = 0; k < 3; k++) {
        ref_cache c = ref_cache_new(HEADS, HEADS, 64, SEQS, n, scales[k], test_seed + k);
        uint64_t seed = test_seed + k;
        if (!hardest) ref_add_to_values(&c, 1);
        for (int i = 0; hardest && i < SEQS * HEADS * 8000; i++) {
            int s = i % SEQS, h = i / SEQS % HEADS, j = i / SEQS / HEADS;
            double size = 0.5 + test_uniform(&seed), sign = test_uniform(&seed) < 0.25 ? -1 : 1;
            for (int d = 0; j < n[s] && d < 64; d++)
                ((bf16 *)ref_v_row(&c, s, h, j))[d] = sl_f32_to_bf16(d ? 0 : (float)(sign * size));
        }
        run r = run_new(c, attn, 5);
        double mu[SEQS * HEADS][128];
        for (int i = 0; i < SEQS * HEADS; i++) dense(&r, i / HEADS, i % HEADS, mu[i]);
        for (uint32_t i = 0; i < SEEDS; i++) {
            cudaMemset(r.rows[0].state, 0, SEQS * r.state_size);
            for (int step = 0; step < 2; step++) { // the newest row is taken away, then given back
                for (int s = 0; s < SEQS; s++) r.rows[s].position = n[s] - 2 + step;
                set_rows(&r, i);
                launch(&r);
                sl_attn_cuda_stats st = take_stats(&r);
                tries += (int)st.tries, dense_heads += (int)st.fallbacks;
                certified[step] += SEQS * HEADS - (int)st.fallbacks;
                for (int x = 0; x < SEQS * HEADS; x++) {
                    float got[64];
                    double want[128], *p = malloc(8000 * sizeof *p);
                    for (int d = 0; d < 64; d++) got[d] = sl_bf16_to_f32(r.out[x * 64 + d]);
                    if (step)
                        memcpy(want, mu[x], sizeof want);
                    else
                        ref_attention(&r.c, x / HEADS, x % HEADS, r.c.q + x * 64, n[x / HEADS] - 1, p, want);
                    exceeded[step] += ref_relative(got, want, 64) > epsilon + 0x1p-8;
                    free(p);
                }
            }
        }
        run_free(&r);
    }
    for (int step = 0; step < 2; step++) {
        double most = upper_share(exceeded[step], certified[step]);
        printf("      epsilon %g, delta %g, %s, %s step before: %d of %d certified heads exceed it (at most %.2f%%, 95%% "
               "confidence)\n",
               epsilon, delta, bound, step ? "with a" : "no", exceeded[step], certified[step], 100 * most);
        CHECK(certified[step] >= 500);
        CHECK(most <= delta);
    }
    printf("      %d went dense, %.2f tries a head\n", dense_heads,
           tries / (double)(certified[0] + certified[1] + dense_heads));
}
static void stated_clt(void) {
    stated("clt", 0.3, 0.1, 0);
}
static void hardest_clt(void) {
    stated("clt", 0.2, 0.2, 1);
}
static void hardest_bernstein(void) {
    stated("bernstein", 0.25, 0.2, 1);
}

// Rows rise as epsilon falls; at an epsilon that none can state, every head goes dense, and is.
static void rows_rise_as_epsilon_falls(void) {
    static const int n = 8000;
    static const char *const specs[] = {"santa-pps:epsilon=0.4", "santa-pps:epsilon=0.2", "santa-pps:epsilon=0.1",
                                        "santa-pps:epsilon=0.05", "santa-pps:epsilon=0.001"};
    uint64_t before = 0;
    for (int i = 0; i < 5; i++) {
        ref_cache c = ref_cache_new(8, 2, 64, 1, &n, 1.5, test_seed);
        ref_add_to_values(&c, 1);
        run r = run_new(c, specs[i], 3);
        launch(&r);
        sl_attn_cuda_stats st = take_stats(&r);
        printf("      %s: %llu rows, %llu tries, %llu dense\n", specs[i], st.v_rows, st.tries, st.fallbacks);
        CHECK(st.v_rows > before);
        before = st.v_rows;
        if (i == 4) CHECK_INT(st.fallbacks, 8);
        for (int h = 0; i == 4 && h < 8; h++) {
            double mu[128];
            CHECK(dense(&r, 0, h, mu) < 0x1p-7);
        }
        run_free(&r);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths_of_context),
    GPU_CASE("samples", samples),
    GPU_CASE("shapes", shapes_of_model),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("equal-bits", equal_bits),
    GPU_CASE("enough-rows-is-dense", enough_rows_is_dense),
    GPU_CASE("one-hot-is-exact", one_hot_is_exact),
    GPU_CASE("unbiased", unbiased),
    GPU_CASE("better-than-prop", better_than_prop),
    GPU_CASE("stated-clt", stated_clt),
    GPU_CASE("hardest-clt", hardest_clt),
    GPU_CASE("hardest-bernstein", hardest_bernstein),
    GPU_CASE("rows-rise-as-epsilon-falls", rows_rise_as_epsilon_falls),
    {0},
};
const test_suite suite_cuda_pps = {"cuda_pps", cases};
