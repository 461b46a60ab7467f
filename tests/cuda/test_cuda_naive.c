// tests/cuda/test_cuda_naive.c - the naive kernels (naive.h) between the CPU and the fast kernels. A case without "gpu"
// compares the functions of naive.h with the CPU's code, and needs no GPU. A case with "gpu" compares the naive kernel with the
// same function on the CPU, and the fast kernel with the naive kernel.
#include "tests/cuda/naive.h"
#include "attention/stages/stages.h"
#include "tests/support/draw_inputs.h"
#include "tests/support/gpu.h"
#include "tests/support/mask_reference.h"
#include "tests/support/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static naive_cache cache_of(const ref_cache *c, int s) {
    return (naive_cache){c->pool.k, c->pool.v, c->seqs[s].pages, c->geom.n_heads, c->geom.n_kv_heads, c->geom.head_dim};
}

// Rounds the queries to bf16 in place; a copy of them as bf16 [n_seqs][n_heads][head_dim], from malloc.
static bf16 *round_queries(ref_cache *c) {
    size_t n = (size_t)c->n_seqs * c->geom.n_heads * c->geom.head_dim;
    bf16 *q = malloc(n * sizeof *q);
    for (size_t i = 0; i < n; i++) c->q[i] = sl_bf16_to_f32(q[i] = sl_f32_to_bf16(c->q[i]));
    return q;
}

static void fill_bf16(bf16 *x, int n, double scale, uint64_t *seed) {
    for (int i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)(scale * test_normal(seed)));
}

// Sums of the same numbers in double precision, in another order: n 2^-53 of the sum of sizes is far below this.
static const double DOUBLES = 1e-10;

// ---- dense attention ----

static void dense(void) {
    enum { HEADS = 6, DIM = 80, MOST = 4 };
    static const int lengths[] = {1, 255, 257, 600};
    ref_cache c = ref_cache_new(HEADS, 2, DIM, 4, lengths, 1, test_seed);
    bf16 *q = round_queries(&c);
    double *p = malloc(600 * sizeof *p), mu[DIM];
    for (int s = 0; s < 4; s++)
        for (int head = 0; head < HEADS; head++) {
            const bf16 *own = q + (size_t)s * HEADS * DIM;
            int first = lengths[s] > MOST ? lengths[s] - MOST : 0;
            for (int i = 0; first + i < lengths[s]; i++) { // each token of a prefill has the same query
                ref_attention(&c, s, head, c.q + (s * HEADS + head) * DIM, first + i + 1, p, mu);
                for (int d = i % 7; d < DIM; d += 7)
                    CHECK_NEAR(naive_dense_prefill(cache_of(&c, s), own, 0, first, i, head, d), mu[d], DOUBLES);
            }
            for (int d = head; d < DIM; d += 5) // now mu is the output over all rows
                CHECK_NEAR(naive_dense_decode(cache_of(&c, s), own, lengths[s], head, d), mu[d], DOUBLES);
        }
    free(q), free(p);
    ref_cache_free(&c);
}

// The CPU's attention with a mask is fp32, as in test_sparse_prefill.c.
static void masked(void) {
    enum { HEADS = 4, DIM = 64, N = 300, BASE = 200 };
    segment s = segment_new(HEADS, 2, DIM, BASE, N, test_seed);
    bf16 *q = malloc((size_t)N * HEADS * DIM * sizeof *q);
    for (int i = 0; i < N * HEADS * DIM; i++) q[i] = sl_f32_to_bf16(s.q[i]); // exact
    segment_mask(&s, "streaming:sink=1:window=100");
    segment_attend(&s, &s.mask, NULL, N, NULL, NULL);
    for (int i = 0; i < N; i += 13)
        for (int head = 0; head < HEADS; head++) {
            double mu[DIM];
            const uint64_t *blocks = sl_mask_row(&s.mask, head, (BASE + i) / SL_MASK_BLOCK);
            for (int d = 0; d < DIM; d++)
                mu[d] = naive_masked_prefill(cache_of(&s.c, 0), q, HEADS * DIM, BASE, i, head, blocks, d);
            CHECK(ref_relative(s.out + ((size_t)i * HEADS + head) * DIM, mu, DIM) < 1e-5);
        }
    free(q);
    segment_free(&s);
}

// ---- masses ----

static int bf16_steps(bf16 a, bf16 b) { // numbers that are not below 0
    return a > b ? a - b : b - a;
}

// Some blocks are masked, hold NaN, or a score beyond the largest reference.
static void fill_scores(float *score, int n, uint64_t seed) {
    for (int j = 0; j < n; j++) score[j] = 20 * (float)test_normal(&seed);
    for (int j = 32; j < n && j < 64; j++) score[j] = -INFINITY;
    if (n > 100) score[100] = NAN;
    if (n > 140) score[140] = 40000;
    if (n > 170) score[170] = 31999.5f;
}

// The CPU's 2^x has a relative error of about 2e-7, and steps of bf16 are 2^-8 apart: a mass in 10^4 is rounded to the other
// neighbour. References and sums of masses are equal.
static void masses(void) {
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    static const int lengths[] = {1, 31, 32, 33, 200, 255, 256};
    int n_rows = 0, n_off = 0;
    for (int i = 0; i < 21; i++) {
        const sl_attn_kernels *kernels = sl_attn_kernels_named(isas[i / 7]);
        int n = lengths[i % 7];
        float score[256];
        bf16 w[256];
        int16_t ref[8];
        uint64_t sum[8];
        if (!kernels) continue; // not on this processor
        fill_scores(score, n, test_seed + i);
        kernels->masses(score, n, w, ref, sum);
        for (int b = 0; b * SL_BLOCK < n; b++) {
            CHECK_INT(naive_reference(score, n, b), ref[b]);
            CHECK_INT(naive_block_mass(w, n, b), sum[b]);
        }
        for (int j = 0; j < n; j++, n_rows++) {
            int steps = bf16_steps(naive_mass(score[j], ref[j / SL_BLOCK]), w[j]);
            CHECK(steps <= 1);
            n_off += steps;
        }
    }
    CHECK(n_rows > 800 && n_off <= n_rows / 200);
}

// ---- draws ----

// The rows of a draw, each as often as it was drawn, ascending.
static int expand(const sl_draws *d, int32_t *rows) {
    int n = 0;
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < d->count[i]; k++) rows[n++] = d->row[i];
    return n;
}

static int compare_rows(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void check_rows(const char *what, const sl_draws *want, int32_t *got, int n) {
    int32_t *rows = malloc((want->n_draws + 1) * sizeof *rows);
    CHECK_INT(expand(want, rows), n);
    qsort(got, n, sizeof *got, compare_rows);
    for (int i = 0; i < n; i++)
        if (got[i] != rows[i]) FAIL("%s, draw %d of %d: row %d, expected %d", what, i, n, got[i], rows[i]);
    free(rows);
}

static void draws(void) {
    static const int budgets[] = {1, 3, 128}, some[] = {1, 31, 257, 2500};
    for (int k = 0; k < N_SHAPES; k++)
        for (int i = 0; i < 12; i++) {
            int S = budgets[i / 4];
            int32_t rows[128];
            sample s = sample_new(some[i % 4], shapes[k], test_seed + 12 * k + i);
            naive_masses m = {s.masses.stored, s.masses.ref, s.masses.n, s.masses.top};
            sl_rng_id id = {.seed = 7, .sequence = 3, .position = 99, .layer = 2, .head = (uint32_t)i};
            CHECK_INT(naive_running_mass(m, m.n - 1), sl_masses_total(&s.masses));
            CHECK_INT(naive_running_mass(m, m.n / 2), sl_masses_running(&s.masses, m.n / 2));
            sl_draw_systematic(&s.masses, S, sl_uniform_philox(&id), &s.draws);
            for (int x = 0; x < S; x++) rows[x] = naive_draw_systematic(m, S, id, x);
            check_rows("systematic", &s.draws, rows, S);
            sl_draw_independent(&s.masses, S, sl_uniform_philox(&id), &s.draws);
            for (int x = 0; x < S; x++) rows[x] = naive_draw_independent(m, id, x);
            check_rows("independent", &s.draws, rows, S);
            sample_free(&s);
        }
}

// ---- take-all and ranks ----

// From the naive lists and from the CPU's draws: rows with the bits of 1 / pi, ascending.
static int sort_draws(const int32_t *rows, const float *inv_pi, int n, uint64_t *out) {
    int n_drawn = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &inv_pi[i], sizeof bits);
        if (rows[i] >= 0) out[n_drawn++] = (uint64_t)rows[i] << 32 | bits;
    }
    sl_sort(out, n_drawn);
    return n_drawn;
}

// The CPU finds heavy rows by rank, the naive loop by mass. In a block far below the top, masses of equal rank may differ by
// one unit. So the two may choose different rows when a draw stands for less than 64 units (test_cuda_take_all.c).
static void check_take_all(const sl_masses *sizes, int S, int shared, sl_rng_id id, const int32_t *rows, const float *inv_pi) {
    int n = sizes->n;
    sl_draws d = {.row = malloc(n * sizeof *d.row),
                  .count = malloc(n * sizeof *d.count),
                  .inv_pi = malloc(n * sizeof *d.inv_pi),
                  .scratch = malloc(2 * S * sizeof *d.scratch)};
    uint64_t *got = malloc(S * sizeof *got);
    sl_take_all want = sl_draw_take_all(sizes, S, shared, sl_uniform_philox(&id), &d);
    int n_drawn = sort_draws(rows, inv_pi, S, got), at = 0;
    if (want.k == 0 || want.light / (unsigned)want.k >= 64) {
        CHECK_INT(n_drawn, d.n_draws);
        for (int i = 0; i < d.n; i++)
            for (int k = 0; k < d.count[i]; k++, at++) {
                uint32_t bits;
                memcpy(&bits, &d.inv_pi[i], sizeof bits);
                if (got[at] != ((uint64_t)d.row[i] << 32 | bits))
                    FAIL("n %d, S %d: draw %d is of row %d, expected row %d, or 1 / pi is not %.9g", n, S, at,
                         (int)(got[at] >> 32), d.row[i], d.inv_pi[i]);
            }
    }
    free(d.row), free(d.count), free(d.inv_pi), free(d.scratch), free(got);
}

static void take_all(void) {
    static const int budgets[] = {1, 2, 7, 128}, some[] = {1, 31, 257, 2500};
    for (int k = 0; k < N_SHAPES; k++)
        for (int i = 0; i < 16; i++) {
            int S = budgets[i / 4], n = some[i % 4];
            int32_t rows[128];
            float inv_pi[128];
            sample s = sample_new(n, shapes[k], test_seed + 16 * k + i);
            naive_masses m = {s.sizes.stored, s.sizes.ref, n, s.sizes.top};
            sl_rng_id id = {.seed = 7, .sequence = 3, .position = 99, .layer = 2, .head = (uint32_t)i};
            uint64_t *size = malloc(n * sizeof *size);
            uint8_t *is_heavy = malloc(n);
            for (int j = 0; j < n; j++) CHECK((size[j] = naive_row_mass(m, j)) == sl_masses_of_row(&s.sizes, j));
            for (int shared = 0; shared < 2; shared++) {
                naive_take_all(size, n, S, shared, id, is_heavy, rows, inv_pi);
                check_take_all(&s.sizes, S, shared, id, rows, inv_pi);
            }
            free(size), free(is_heavy);
            sample_free(&s);
        }
}

static void check_largest(const sl_masses *masses, int k, const uint8_t *taken) {
    int32_t *rows = malloc(masses->n * sizeof *rows);
    int n = sl_masses_largest(masses, k, rows), at = 0;
    for (int j = 0; j < masses->n; j++) {
        int want = at < n && rows[at] == j;
        if (taken[j] != want) FAIL("k %d of %d, row %d: taken %d, expected %d", k, masses->n, j, taken[j], want);
        at += want;
    }
    free(rows);
}

static void largest(void) {
    static const int counts[] = {1, 2, 100, 3000}, some[] = {1, 33, 257, 1500};
    for (int k = 0; k < N_SHAPES; k++)
        for (int i = 0; i < 16; i++) {
            int n = some[i % 4];
            sample s = sample_new(n, shapes[k], test_seed + 16 * k + i);
            naive_masses m = {s.masses.stored, s.masses.ref, n, s.masses.top};
            uint8_t *taken = malloc(n);
            for (int j = 0; j < n; j++) taken[j] = (uint8_t)naive_is_among_largest(m, counts[i / 4], j);
            check_largest(&s.masses, counts[i / 4], taken);
            free(taken);
            sample_free(&s);
        }
}

// ---- proposed scores ----

// One page's keys, quantised: a block of sl_quantised_keys.
typedef struct quantised_page {
    const f16 *step, *zero; // [head_dim]
    const uint8_t *planes;
} quantised_page;

static quantised_page page_of(const void *block, int dim) {
    const f16 *step = block;
    return (quantised_page){step, step + dim, (const uint8_t *)(step + 2 * dim)};
}

static float score_scale(int dim) { // to log2 units
    return (float)(1.4426950408889634 / sqrt(dim));
}

// Every key lies within half a step of its code. The CPU's score differs from the naive score only by fp32 roundings of the
// integer sum, the subtracted term, the difference and the result. It lies within the stated bound of the exact score.
static void check_quantised(int bits, int dim, uint64_t seed) {
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    bf16 *k = malloc(SL_PAGE * dim * sizeof *k);
    void *block = malloc(sl_quantised_keys.size(bits, dim));
    float q[128], score[SL_PAGE];
    fill_bf16(k, SL_PAGE * dim, 2, &seed);
    for (int d = 0; d < dim; d++) q[d] = sl_bf16_to_f32(sl_f32_to_bf16((float)test_normal(&seed)));
    sl_quantised_keys.build(&(sl_kv_page){.arg = bits, .head_dim = dim, .k = sl_kv_bf16_run(k)}, block);
    quantised_page page = page_of(block, dim);
    for (int i = 0; i < 3; i++) {
        const sl_attn_kernels *kernels = sl_attn_kernels_named(isas[i]);
        sl_quant_query quantised;
        if (!kernels) continue; // not on this processor
        kernels->quantise_query(q, page.step, page.zero, dim, bits, score_scale(dim), &quantised);
        kernels->score_quantised(&quantised, 1, page.planes, dim, bits, score, SL_PAGE);
        for (int j = 0; j < SL_PAGE; j++) {
            double exact = 0, size = fabs(quantised.bias), got = naive_quantised_score(quantised, page.planes, bits, dim, j);
            for (int d = 0; d < dim; d++) {
                double key = sl_bf16_to_f32(k[j * dim + d]), step = sl_f16_to_f32(page.step[d]);
                int code = naive_code(page.planes, bits, dim, j, d);
                CHECK_NEAR(sl_f16_to_f32(page.zero[d]) + step * code, key, step * 0.5001);
                exact += q[d] * key * score_scale(dim);
                size += quantised.scale * (128 * abs(quantised.high[d]) + abs(quantised.low[d])) * ((1 << bits) - 1);
            }
            CHECK_NEAR(score[j], got, 4 * 0x1p-24 * size);
            CHECK_NEAR(got, exact, quantised.bound * 1.0001 + 1e-5);
        }
    }
    free(k), free(block);
}

static void quantised(void) {
    static const int dims[] = {64, 80, 96, 128}, bits[] = {8, 4, 3};
    for (int i = 0; i < 12; i++) check_quantised(bits[i % 3], dims[i / 3], test_seed + i);
}

static uint64_t feature_uniform(const void *id, uint32_t index) {
    return sl_rng_u64(id, index, SL_STREAM_FEATURES);
}

static void features(void) {
    enum { MOST = 128 };
    static const int dims[] = {64, 80, 128}, trials[] = {1, 8, 1000};
    uint64_t seed = test_seed;
    for (int i = 0; i < 9; i++) {
        int dim = dims[i / 3], B = trials[i % 3];
        sl_rng_id id = {.seed = 5, .sequence = 1, .position = 17, .layer = 3, .head = (uint32_t)i};
        bf16 q[MOST];
        double norm = 0;
        fill_bf16(q, dim, 1, &seed);
        q[3] = 0;
        for (int d = 0; d < dim; d++) norm = fmax(norm, fabs(sl_bf16_to_f32(q[d])));
        for (int d = 0; d < dim; d++) {
            double own = sl_bf16_to_f32(q[d]);
            int count = sl_bernoulli_count((sl_uniform){feature_uniform, &id}, d, dim, B, fabs(own) / norm, 0);
            CHECK_NEAR(naive_bernoulli_feature(q, dim, B, id, d), copysign(norm * count / B, own), DOUBLES);
        }
    }
}

// ---- on a GPU ----

#ifdef SLEIGH_CUDA
#include "tests/support/decode_check.h"

// Sequence s of the device's copy of the cache.
static naive_cache device_cache_of(const decode_fixture *r, int s) {
    const sl_attn_geom *g = &r->c->geom;
    return (naive_cache){r->args.k, r->args.v, r->rows[s].pages, g->n_heads, g->n_kv_heads, g->head_dim};
}

static size_t row_of(const decode_fixture *r) { // number of elements of one sequence's queries; the same for outputs
    return (size_t)r->c->geom.n_heads * r->c->geom.head_dim;
}

// The device's copy of V with the sizes |v| of its numbers: attention over it gives sum_j p_j |v_j|, the scale of rounding
// errors.
static const bf16 *sizes_of_v(const decode_fixture *r) {
    const sl_kv_pool *pool = &r->c->pool;
    size_t n = (size_t)pool->n_pages * pool->n_kv_heads * SL_PAGE * pool->head_dim;
    bf16 *v = malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = pool->v[i] & 0x7fff;
    const bf16 *out = gpu_copy(v, n * sizeof *v);
    free(v);
    return out;
}

// For some elements, the naive kernel must give the value that the same function gives on the CPU. The fast kernel's output may
// differ by 2^-7 of the rows' sizes (test_cuda_decode.c derives this bound).
static void check_decode(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    decode_fixture r = fixture_new(&c, "dense", 1);
    size_t row = row_of(&r);
    bf16 *q = round_queries(&c);
    double *out_device = gpu_new(row * sizeof(double)), *out = malloc(row * sizeof *out), *size = malloc(row * sizeof *size);
    const bf16 *v_sizes = sizes_of_v(&r);
    fixture_decode(&r);
    for (int s = 0; s < n_seqs; s++) {
        naive_cache cache = device_cache_of(&r, s);
        naive_cuda_dense_decode(cache, r.args.q + s * row, lengths[s], out_device);
        gpu_read(out, out_device, row * sizeof *out);
        cache.v = v_sizes;
        naive_cuda_dense_decode(cache, r.args.q + s * row, lengths[s], out_device);
        gpu_read(size, out_device, row * sizeof *size);
        for (size_t i = 0; i < row; i += 37)
            CHECK_NEAR(out[i], naive_dense_decode(cache_of(&c, s), q + s * row, lengths[s], (int)i / dim, (int)i % dim),
                       DOUBLES);
        for (size_t i = 0; i < row; i++) CHECK_NEAR(sl_bf16_to_f32(r.out[s * row + i]), out[i], size[i] / 128);
    }
    free(q), free(out), free(size);
    fixture_free(&r);
    ref_cache_free(&c);
}

static void gpu_dense_decode(void) {
    static const int lengths[] = {1, 31, 63, 64, 65, 255, 256, 257, 1025, 2075};
    check_decode(8, 2, 128, 10, lengths, 1);
    check_decode(6, 2, 80, 4, lengths + 6, 4);
    check_decode(3, 3, 64, 4, lengths + 6, 0);
    check_decode(16, 2, 96, 3, lengths + 7, 100);
}

// One run of n_tokens tokens that begins at position `first`. The bound is the same as for decode.
static void check_prefill(int n_heads, int dim, int first, int n_tokens) {
    int n_kv = first + n_tokens;
    ref_cache c = ref_cache_new(n_heads, 2, dim, 1, &n_kv, 1, test_seed + first);
    decode_fixture r = fixture_new(&c, "dense", 1);
    size_t row = row_of(&r), n = n_tokens * row, stride = row + 2 * 2 * dim; // as in the output of a merged QKV layer
    bf16 *q = malloc(n_tokens * stride * sizeof *q), *fast = malloc(n * sizeof *fast);
    double *out_device = gpu_new(n * sizeof(double)), *out = malloc(n * sizeof *out), *size = malloc(n * sizeof *size);
    uint64_t seed = test_seed;
    fill_bf16(q, (int)(n_tokens * stride), 1, &seed);
    const bf16 *q_device = gpu_copy(q, n_tokens * stride * sizeof *q);
    sl_attn_cuda_prefill_args args = {.geom = &c.geom,
                                      .n_tokens = n_tokens,
                                      .first = first,
                                      .n_pages = c.pool.n_pages,
                                      .q = q_device,
                                      .q_stride = stride,
                                      .out = gpu_new(n * sizeof(bf16)),
                                      .k = r.args.k,
                                      .v = r.args.v,
                                      .pages = r.rows[0].pages};
    sl_cuda_dense_prefill(&args);
    gpu_read(fast, args.out, n * sizeof *fast);
    naive_cache cache = device_cache_of(&r, 0);
    naive_cuda_dense_prefill(cache, q_device, stride, first, n_tokens, out_device);
    gpu_read(out, out_device, n * sizeof *out);
    cache.v = sizes_of_v(&r);
    naive_cuda_dense_prefill(cache, q_device, stride, first, n_tokens, out_device);
    gpu_read(size, out_device, n * sizeof *size);
    for (size_t i = 0; i < n; i += 1009)
        CHECK_NEAR(out[i],
                   naive_dense_prefill(cache_of(&c, 0), q, stride, first, (int)(i / row), (int)(i % row) / dim, (int)i % dim),
                   DOUBLES);
    for (size_t i = 0; i < n; i++) CHECK_NEAR(sl_bf16_to_f32(fast[i]), out[i], size[i] / 128);
    free(q), free(fast), free(out), free(size);
    fixture_free(&r);
    ref_cache_free(&c);
}

static void gpu_dense_prefill(void) {
    check_prefill(8, 128, 0, 257);
    check_prefill(6, 80, 255, 65);
    check_prefill(4, 64, 300, 129);
    check_prefill(2, 96, 1, 1);
}

// ---- masses and draws on a GPU ----

// Device memory for one head's masses and draws.
typedef struct head_memory {
    float *score;
    bf16 *w;
    int16_t *ref;
    uint64_t *sum;
    int32_t *rows;
    double *coef, *out, *scores;
    uint64_t *size;    // [n]
    uint8_t *is_heavy; // [n]
    float *inv_pi;
} head_memory;

enum { MOST_DRAWS = 4096 };

static head_memory head_memory_new(int n) {
    int n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
    return (head_memory){.score = gpu_new(n * sizeof(float)),
                         .w = gpu_new(n * sizeof(bf16)),
                         .ref = gpu_new(n_blocks * sizeof(int16_t)),
                         .sum = gpu_new(n_blocks * sizeof(uint64_t)),
                         .rows = gpu_new(MOST_DRAWS * sizeof(int32_t)),
                         .coef = gpu_new(MOST_DRAWS * sizeof(double)),
                         .out = gpu_new(128 * sizeof(double)),
                         .scores = gpu_new((n > SL_PAGE ? n : SL_PAGE) * sizeof(double)),
                         .size = gpu_new(n * sizeof(uint64_t)),
                         .is_heavy = gpu_new(n),
                         .inv_pi = gpu_new(MOST_DRAWS * sizeof(float))};
}

static void put(void *to, const void *from, size_t size) {
    CHECK(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice) == cudaSuccess);
}

// Compares the naive kernels' scores and masses of one head with the functions on the CPU and with the masses that the fast
// kernel stored. The GPU's 2^x in double precision may differ from the CPU's in the last bit, so nearly all bf16 masses are
// equal. The fast kernel's mass and the naive mass are both rounded to bf16, 2^-8 each. The error of the fast kernel's fp32
// scores is far smaller. The test allows 2^-6 in all.
static void check_head_masses(const decode_fixture *r, const head_memory *m, int s, int head) {
    int n = r->c->seqs[s].n_tokens, dim = r->c->geom.head_dim, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK, n_off = 0;
    float *score = malloc(n * sizeof *score);
    bf16 *w = malloc(n * sizeof *w);
    int16_t *ref = malloc(n_blocks * sizeof *ref);
    uint64_t *sum = malloc(n_blocks * sizeof *sum);
    naive_cuda_scores(device_cache_of(r, s), r->args.q + s * row_of(r) + (size_t)head * dim, n, head, m->score);
    naive_cuda_masses(m->score, n, m->w, m->ref, m->sum);
    gpu_read(score, m->score, n * sizeof *score), gpu_read(w, m->w, n * sizeof *w);
    gpu_read(ref, m->ref, n_blocks * sizeof *ref), gpu_read(sum, m->sum, n_blocks * sizeof *sum);
    sl_masses masses = fixture_masses(r, 0, s, head);
    for (int b = 0; b < n_blocks; b++) {
        CHECK_INT(ref[b], naive_reference(score, n, b));
        CHECK_INT(sum[b], naive_block_mass(w, n, b));
    }
    for (int j = 0; j < n; j++) {
        int b = j / SL_BLOCK, steps = bf16_steps(w[j], naive_mass(score[j], ref[b]));
        double want =
            ldexp(sl_bf16_to_f32(w[j]), ref[b] - masses.ref[b]); // the references differ where a score is near an integer
        CHECK(steps <= 1);
        n_off += steps;
        CHECK_NEAR(sl_bf16_to_f32(masses.stored[j]), want, want * 0x1p-6 + 1e-30);
    }
    CHECK(n_off <= 2 + n / 1000);
    fixture_masses_free(&masses);
    free(score), free(w), free(ref), free(sum);
}

static void gpu_masses(void) {
    static const int lengths[] = {1, 31, 33, 257, 2075};
    static const double scales[] = {0, 1, 4, 30};
    for (int i = 0; i < 4; i++) {
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 128 : 80, 5, lengths, scales[i], test_seed + i);
        decode_fixture r = fixture_new(&c, "santa-sys:S=128", 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 5; s++)
            for (int head = 0; head < 6; head++) check_head_masses(&r, &m, s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// Compares the fast output with the naive sum of rows. The output is rounded to bf16. tolerance: of the fp32 sums, as a share
// of the sum of the rows' sizes.
static void check_sum(const decode_fixture *r, const head_memory *m, const int32_t *rows, const double *coef, int n, int s,
                      int head, double tolerance) {
    int dim = r->c->geom.head_dim;
    double out[128];
    naive_cache cache = cache_of(r->c, s);
    put(m->rows, rows, n * sizeof *rows), put(m->coef, coef, n * sizeof *coef);
    naive_cuda_sum_of_rows(device_cache_of(r, s), m->rows, m->coef, n, head, m->out);
    gpu_read(out, m->out, dim * sizeof *out);
    for (int d = 0; d < dim; d++) {
        double size = 0, got = sl_bf16_to_f32(r->out[s * row_of(r) + (size_t)head * dim + d]);
        for (int i = 0; i < n; i++)
            if (rows[i] >= 0) size += coef[i] * fabs(naive_from_bf16(naive_row(cache, cache.v, head, rows[i])[d]));
        CHECK_NEAR(out[d], naive_sum_of_rows(cache, rows, coef, n, head, d), DOUBLES * (1 + size));
        CHECK_NEAR(got, out[d], fabs(out[d]) * 0x1p-8 + size * tolerance + 1e-7);
    }
}

static sl_rng_id rng_of(const decode_fixture *r, int s, int head) {
    return (sl_rng_id){r->rows[s].seed, r->rows[s].sequence, (uint32_t)r->rows[s].position, FIXTURE_LAYER, (uint32_t)head};
}

// Draws from the masses that the fast kernel stored. The naive kernel, the naive functions on the CPU and the CPU's sampler
// must draw the same rows. The fast kernel's output must be the mean of these rows.
static void check_head_draws(const decode_fixture *r, const head_memory *m, int is_systematic, int S, int s, int head) {
    sl_masses masses = fixture_masses(r, 0, s, head);
    sl_rng_id id = rng_of(r, s, head);
    int32_t *rows = malloc(S * sizeof *rows);
    double *coef = malloc(S * sizeof *coef);
    size_t most = sl_sampler_capacity(S, masses.n) + 1;
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi),
                  .scratch = malloc((sl_sampler_scratch(S, masses.n) + 1) * sizeof *d.scratch)};
    put(m->w, masses.stored, masses.n * sizeof *masses.stored), put(m->ref, masses.ref, masses.n_blocks * sizeof *masses.ref);
    naive_masses on_device = {m->w, m->ref, masses.n, masses.top},
                 offloaded = {masses.stored, masses.ref, masses.n, masses.top};
    (is_systematic ? naive_cuda_draw_systematic : naive_cuda_draw_independent)(on_device, S, id, m->rows);
    gpu_read(rows, m->rows, S * sizeof *rows);
    for (int i = 0; i < S; i += 1 + S / 16)
        CHECK_INT(rows[i],
                  is_systematic ? naive_draw_systematic(offloaded, S, id, i) : naive_draw_independent(offloaded, id, i));
    (is_systematic ? sl_draw_systematic : sl_draw_independent)(&masses, S, sl_uniform_philox(&id), &d);
    check_rows("on the GPU", &d, rows, S);
    for (int i = 0; i < S; i++) coef[i] = 1.0 / S;
    check_sum(r, m, rows, coef, S, s, head, (S + 8) * 0x1p-24); // 2^-24 for each of S terms
    free(d.row), free(d.count), free(d.inv_pi), free(d.scratch), free(rows), free(coef);
    fixture_masses_free(&masses);
}

static void gpu_draws(void) {
    static const int lengths[] = {1, 31, 257, 2075}, budgets[] = {1, 127, 128, 1000};
    for (int i = 0; i < 8; i++) {
        char attn[32];
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 64 : 96, 4, lengths, i % 3, test_seed + i);
        snprintf(attn, sizeof attn, "%s:S=%d", i / 4 ? "santa-sys" : "santa", budgets[i % 4]);
        decode_fixture r = fixture_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 4; s++)
            for (int head = 0; head < 6; head++) check_head_draws(&r, &m, i / 4, budgets[i % 4], s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// The same comparison for take-all + PPS, from stored sizes. The coefficients are p_j / pi_j.
static void check_head_take_all(const decode_fixture *r, const head_memory *m, int shared, int S, int s, int head) {
    sl_masses masses = fixture_masses(r, 0, s, head), sizes = fixture_masses(r, 1, s, head);
    sl_rng_id id = rng_of(r, s, head);
    int32_t *rows = malloc(S * sizeof *rows);
    float *inv_pi = malloc(S * sizeof *inv_pi);
    double *coef = malloc(S * sizeof *coef);
    naive_masses naive = {masses.stored, masses.ref, masses.n, masses.top};
    put(m->w, sizes.stored, sizes.n * sizeof *sizes.stored), put(m->ref, sizes.ref, sizes.n_blocks * sizeof *sizes.ref);
    naive_cuda_row_masses((naive_masses){m->w, m->ref, sizes.n, sizes.top}, m->size);
    naive_cuda_take_all(m->size, sizes.n, S, shared, id, m->is_heavy, m->rows, m->inv_pi);
    gpu_read(rows, m->rows, S * sizeof *rows), gpu_read(inv_pi, m->inv_pi, S * sizeof *inv_pi);
    check_take_all(&sizes, S, shared, id, rows, inv_pi);
    uint64_t total = naive_running_mass(naive, masses.n - 1);
    for (int i = 0; i < S; i++) coef[i] = rows[i] < 0 ? 0 : naive_probability(naive, total, rows[i]) * inv_pi[i];
    check_sum(r, m, rows, coef, S, s, head, (S + 8) * 0x1p-24);
    free(rows), free(inv_pi), free(coef);
    fixture_masses_free(&masses), fixture_masses_free(&sizes);
}

static void gpu_take_all(void) {
    static const int lengths[] = {1, 31, 257, 2075}, budgets[] = {1, 7, 128};
    for (int i = 0; i < 6; i++) {
        char attn[48];
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 64 : 128, 4, lengths, 1 + i % 2, test_seed + i);
        snprintf(attn, sizeof attn, "santa-pps:S=%d:pps=%s:budget=even", budgets[i % 3], i / 3 ? "sys" : "strat");
        decode_fixture r = fixture_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 4; s++)
            for (int head = 0; head < 6; head++) check_head_take_all(&r, &m, i / 3, budgets[i % 3], s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// topk: the rows of largest stored mass, each with its share of their masses.
static void check_head_largest(const decode_fixture *r, const head_memory *m, int k, int s, int head) {
    sl_masses masses = fixture_masses(r, 0, s, head);
    uint8_t *taken = malloc(masses.n);
    int32_t *rows = malloc(k * sizeof *rows);
    double *coef = malloc(k * sizeof *coef), sum = 0;
    int n = 0;
    naive_masses naive = {masses.stored, masses.ref, masses.n, masses.top};
    put(m->w, masses.stored, masses.n * sizeof *masses.stored), put(m->ref, masses.ref, masses.n_blocks * sizeof *masses.ref);
    naive_cuda_largest((naive_masses){m->w, m->ref, masses.n, masses.top}, k, m->is_heavy);
    gpu_read(taken, m->is_heavy, masses.n);
    check_largest(&masses, k, taken);
    for (int j = 0; j < masses.n; j++)
        if (taken[j]) sum += coef[n] = naive_probability(naive, 1, j), rows[n++] = j;
    for (int i = 0; i < n; i++) coef[i] /= sum;
    check_sum(r, m, rows, coef, n, s, head, 4e-5); // scores as fp32 sums: decode_check.c's tolerance
    free(taken), free(rows), free(coef);
    fixture_masses_free(&masses);
}

static void gpu_largest(void) {
    static const int lengths[] = {1, 33, 257, 2075}, counts[] = {1, 2, 128, 3000};
    for (int i = 0; i < 4; i++) {
        char attn[32];
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 64 : 128, 4, lengths, i, test_seed + i);
        snprintf(attn, sizeof attn, "topk:k=%d", counts[i]);
        decode_fixture r = fixture_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 4; s++)
            for (int head = 0; head < 6; head++) check_head_largest(&r, &m, counts[i], s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

// ---- proposed scores on a GPU ----

// Compares a mass that the fast kernel stored with a proposed score. The bound is 2^-8 for the rounding to bf16, and another
// 2^-8 because the score is an fp32 sum.
static void check_stored(const sl_masses *masses, int j, double score) {
    double want = exp2(score - masses->ref[j / SL_BLOCK]);
    CHECK_NEAR(sl_bf16_to_f32(masses->stored[j]), want, want * 0x1p-7 + 1e-30);
}

// All pages with quantised keys. The query is quantised on the CPU.
static void check_head_quantised(const decode_fixture *r, const head_memory *m, int bits, int s, int head) {
    int dim = r->c->geom.head_dim, n_pages = (r->c->seqs[s].n_tokens - 1) / SL_PAGE;
    size_t size = r->args.extra_size[0];
    char *block = malloc(size);
    double score[SL_PAGE];
    sl_masses masses = fixture_masses(r, 0, s, head);
    for (int i = 0; i < n_pages; i++) {
        size_t at = (size_t)r->c->seqs[s].pages[i] * r->c->geom.n_kv_heads + head / r->group;
        const char *on_device = (const char *)r->args.extra[0] + at * size;
        sl_quant_query q;
        gpu_read(block, on_device, size);
        quantised_page page = page_of(block, dim);
        sl_attn_kernels_best()->quantise_query(r->c->q + s * row_of(r) + (size_t)head * dim, page.step, page.zero, dim, bits,
                                               score_scale(dim), &q);
        naive_cuda_quantised_scores(q, page_of(on_device, dim).planes, bits, dim, m->scores);
        gpu_read(score, m->scores, sizeof score);
        for (int j = 0; j < SL_PAGE; j++) {
            double want = naive_quantised_score(q, page.planes, bits, dim, j);
            CHECK_NEAR(score[j], want, DOUBLES * (1 + fabs(want)));
            check_stored(&masses, i * SL_PAGE + j, score[j]);
        }
    }
    free(block);
    fixture_masses_free(&masses);
}

static void gpu_quantised(void) {
    static const int lengths[] = {257, 1000, 2075}, bits[] = {8, 4, 3}, dims[] = {64, 80, 128};
    for (int i = 0; i < 9; i++) {
        char attn[32];
        ref_cache c = ref_cache_new(6, 2, dims[i / 3], 3, lengths, 1 + i % 2, test_seed + i);
        snprintf(attn, sizeof attn, "dense-q:bits=%d", bits[i % 3]);
        decode_fixture r = fixture_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 3; s++)
            for (int head = 0; head < 6; head++) check_head_quantised(&r, &m, bits[i % 3], s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}

static void check_head_features(const decode_fixture *r, const head_memory *m, int B, int s, int head) {
    int n = r->c->seqs[s].n_tokens, dim = r->c->geom.head_dim;
    size_t at = s * row_of(r) + (size_t)head * dim;
    double *score = malloc(n * sizeof *score), feature[128], want[128];
    bf16 q[128];
    sl_rng_id id = rng_of(r, s, head);
    sl_masses masses = fixture_masses(r, 0, s, head);
    naive_cuda_bernoulli_scores(device_cache_of(r, s), r->args.q + at, n, head, B, id, m->out, m->scores);
    gpu_read(feature, m->out, dim * sizeof *feature), gpu_read(score, m->scores, n * sizeof *score);
    for (int d = 0; d < dim; d++) q[d] = sl_f32_to_bf16(r->c->q[at + d]);
    for (int d = 0; d < dim; d++)
        CHECK_NEAR(feature[d], want[d] = naive_bernoulli_feature(q, dim, B, id, d), DOUBLES * (1 + fabs(want[d])));
    for (int j = 0; j < n; j++) {
        if (j % 37 == 0)
            CHECK_NEAR(score[j], naive_bernoulli_score(cache_of(r->c, s), want, head, j), DOUBLES * (1 + fabs(score[j])));
        check_stored(&masses, j, score[j]);
    }
    free(score);
    fixture_masses_free(&masses);
}

static void gpu_features(void) {
    static const int lengths[] = {1, 31, 257, 2075}, trials[] = {2, 8, 1000};
    for (int i = 0; i < 6; i++) {
        char attn[48];
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 80 : 128, 4, lengths, 1 + i % 2, test_seed + i);
        snprintf(attn, sizeof attn, "bernoulli:B=%d+santa-sys:S=64", trials[i % 3]);
        decode_fixture r = fixture_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        fixture_launch(&r);
        for (int s = 0; s < 4; s++)
            for (int head = 0; head < 6; head++) check_head_features(&r, &m, trials[i % 3], s, head);
        fixture_free(&r);
        ref_cache_free(&c);
    }
}
#endif

static const test_case cases[] = {
    {"dense", 0, dense},
    {"masked", 0, masked},
    {"masses", 0, masses},
    {"draws", 0, draws},
    {"take-all", 0, take_all},
    {"largest", 0, largest},
    {"quantised", 0, quantised},
    {"features", 0, features},
    GPU_CASE("gpu-dense-decode", gpu_dense_decode),
    GPU_CASE("gpu-dense-prefill", gpu_dense_prefill),
    GPU_CASE("gpu-masses", gpu_masses),
    GPU_CASE("gpu-draws", gpu_draws),
    GPU_CASE("gpu-take-all", gpu_take_all),
    GPU_CASE("gpu-largest", gpu_largest),
    GPU_CASE("gpu-quantised", gpu_quantised),
    GPU_CASE("gpu-features", gpu_features),
    {0},
};
const test_suite suite_cuda_naive = {"cuda_naive", cases};
