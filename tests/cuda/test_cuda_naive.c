// tests/cuda/test_cuda_naive.c - the naive kernels (naive.h) between the CPU and the fast kernels. A case without "gpu"
// compares the functions of naive.h with the CPU's code, and needs no GPU. A case with "gpu" compares the naive kernel with the
// same function on the CPU, and the fast kernel with the naive kernel.
#include "tests/cuda/naive.h"
#include "attention/stages.h"
#include "engine/backend/cpu/cpu_ops.h"
#include "tests/support/draw_inputs.h"
#include "tests/support/gpu.h"
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
            for (int d = head; d < DIM; d += 5) // mu is now that of every row
                CHECK_NEAR(naive_dense_decode(cache_of(&c, s), own, lengths[s], head, d), mu[d], DOUBLES);
        }
    free(q), free(p);
    ref_cache_free(&c);
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

// ---- the layers around attention ----

// What the tests of the layers read. Weights are bf16; activations too, as they are on a GPU.
enum { ROWS = 5, HIDDEN = 72, OUTS = 40, HEADS = 4, KV_HEADS = 2, DIM = 64, HEADS_IN_ROW = HEADS + 2 * KV_HEADS, PAGES = 3 };
static const int32_t pages[PAGES] = {2, 0, 1}, positions[ROWS] = {0, 255, 256, 600, 767};

typedef struct layer_inputs {
    float x[ROWS * HIDDEN];                // RMSNorm's
    bf16 x16[ROWS * HIDDEN], norm[HIDDEN]; // the linear layer's; RMSNorm's weights
    bf16 w[OUTS * HIDDEN];
    bf16 gate_up[ROWS * 2 * HIDDEN];
    bf16 qkv[ROWS * HEADS_IN_ROW * DIM];
    float inv_freq[DIM / 2];
} layer_inputs;

static void fill_bf16(bf16 *x, int n, double scale, uint64_t *seed) {
    for (int i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)(scale * test_normal(seed)));
}

static layer_inputs make_layer_inputs(uint64_t seed) {
    layer_inputs in;
    for (int i = 0; i < ROWS * HIDDEN; i++) in.x[i] = (float)(3 * test_normal(&seed));
    fill_bf16(in.x16, ROWS * HIDDEN, 1, &seed);
    fill_bf16(in.norm, HIDDEN, 1, &seed);
    fill_bf16(in.w, OUTS * HIDDEN, 1, &seed);
    fill_bf16(in.gate_up, ROWS * 2 * HIDDEN, 3, &seed);
    fill_bf16(in.qkv, ROWS * HEADS_IN_ROW * DIM, 2, &seed);
    for (int i = 0; i < DIM / 2; i++) in.inv_freq[i] = (float)pow(5e5, -2.0 * i / DIM);
    return in;
}

static void widen(const bf16 *x, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] = sl_bf16_to_f32(x[i]);
}

// Sums of 72 products in fp32: off by less than 72 2^-24 of the sum of sizes.
static void norm_and_linear(void) {
    layer_inputs in = make_layer_inputs(test_seed);
    sl_weight norm = {.data = in.norm, .dtype = SL_BF16, .n_rows = 1, .n_cols = HIDDEN},
              w = {.data = in.w, .dtype = SL_BF16, .n_rows = OUTS, .n_cols = HIDDEN};
    float x[ROWS * HIDDEN], y[ROWS * OUTS], out[HIDDEN];
    widen(in.x16, ROWS * HIDDEN, x);
    sl_cpu_ops_portable.linear(&w, x, ROWS, 0, OUTS, 0, y);
    for (int r = 0; r < ROWS; r++) {
        sl_cpu_ops_portable.rmsnorm(in.x + r * HIDDEN, &norm, 1e-5f, out);
        for (int i = 0; i < HIDDEN; i++) {
            double want = naive_rmsnorm(in.x + r * HIDDEN, in.norm, HIDDEN, 1e-5f, i);
            CHECK_NEAR(out[i], want, fabs(want) * 80 * 0x1p-24);
        }
        for (int o = 0; o < OUTS; o++) {
            double size = 0;
            for (int i = 0; i < HIDDEN; i++) size += fabs((double)x[r * HIDDEN + i] * sl_bf16_to_f32(in.w[o * HIDDEN + i]));
            CHECK_NEAR(y[r * OUTS + o], naive_linear(in.w, in.x16 + r * HIDDEN, HIDDEN, o), HIDDEN * 0x1p-24 * size);
        }
    }
}

// A rotated number is a sum of two products with cosines and sines of fp32: 3 2^-24 of the two sizes. A bf16 in the cache is
// off by 2^-9 of the number more.
static void rope_and_swiglu(void) {
    layer_inputs in = make_layer_inputs(test_seed + 1);
    enum { Q = HEADS * DIM, KV = KV_HEADS * DIM, CACHE = PAGES * KV_HEADS * 256 * DIM };
    sl_rope rope = {.head_dim = DIM, .inv_freq = in.inv_freq};
    bf16 *k_cache = calloc(CACHE, sizeof *k_cache), *v_cache = calloc(CACHE, sizeof *v_cache);
    for (int r = 0; r < ROWS; r++) {
        const bf16 *x = in.qkv + r * HEADS_IN_ROW * DIM;
        sl_row row = {.position = positions[r], .pages = pages};
        float q[Q], k[KV], v[KV];
        widen(x, Q, q), widen(x + Q, KV, k), widen(x + Q + KV, KV, v);
        sl_cpu_rope_append(&rope, &row, 1, HEADS, KV_HEADS, q, k, v, k_cache, v_cache);
        for (int i = 0; i < Q + KV; i++) {
            int head = i / DIM, d = i % DIM;
            double want = naive_rope(x + head * DIM, in.inv_freq, DIM, positions[r], d), size = fabs(sl_bf16_to_f32(x[i]));
            size += fabs(sl_bf16_to_f32(x[head * DIM + (d + DIM / 2) % DIM]));
            if (head < HEADS) {
                CHECK_NEAR(q[i], want, 3 * 0x1p-24 * size);
                continue;
            }
            size_t at = naive_place(pages, KV_HEADS, DIM, positions[r], head - HEADS) + d;
            CHECK_NEAR(sl_bf16_to_f32(k_cache[at]), want, 3 * 0x1p-24 * size + 0x1.01p-8 * fabs(want));
            CHECK_INT(v_cache[at], x[i + KV]);
        }
        float gate[HIDDEN], up[HIDDEN];
        const bf16 *both = in.gate_up + r * 2 * HIDDEN;
        widen(both, HIDDEN, gate), widen(both + HIDDEN, HIDDEN, up);
        sl_cpu_ops_portable.swiglu(gate, up, HIDDEN);
        for (int i = 0; i < HIDDEN; i++) { // 2^x of an exponent that is off by 2^-24 of itself, at most 20
            double want = naive_swiglu(both[i], both[HIDDEN + i]);
            CHECK_NEAR(gate[i], want, 32 * 0x1p-24 * fabs(want));
        }
    }
    free(k_cache), free(v_cache);
}

// ---- on a GPU ----

#ifdef SLEIGH_CUDA
#include "engine/backend/cuda/cuda_ops.h"
#include "engine/backend/cuda/linear.h"
#include "tests/support/decode_check.h"

// Sequence s of the device's copy of the cache.
static naive_cache device_cache_of(const rig *r, int s) {
    const sl_attn_geom *g = &r->c->geom;
    return (naive_cache){r->args.k, r->args.v, r->rows[s].pages, g->n_heads, g->n_kv_heads, g->head_dim};
}

static size_t row_of(const rig *r) { // numbers of one sequence's queries, and of its outputs
    return (size_t)r->c->geom.n_heads * r->c->geom.head_dim;
}

// The device's copy of V with the sizes |v| of its numbers: attention over it gives sum_j p_j |v_j|, the scale of rounding
// errors.
static const bf16 *sizes_of_v(const rig *r) {
    const sl_kv_pool *pool = &r->c->pool;
    size_t n = (size_t)pool->n_pages * pool->n_kv_heads * SL_PAGE * pool->head_dim;
    bf16 *v = malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = pool->v[i] & 0x7fff;
    const bf16 *out = gpu_copy(v, n * sizeof *v);
    free(v);
    return out;
}

// The naive kernel gives the function's value on the CPU, for some elements; the fast kernel's output lies within 2^-7 of the
// rows' sizes (test_cuda_decode.c derives the bound: rounded masses, a rounded output).
static void check_decode(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    rig r = rig_new(&c, "dense", 1);
    size_t row = row_of(&r);
    bf16 *q = round_queries(&c);
    double *out_device = gpu_new(row * sizeof(double)), *out = malloc(row * sizeof *out), *size = malloc(row * sizeof *size);
    const bf16 *v_sizes = sizes_of_v(&r);
    rig_decode(&r);
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
    rig_free(&r);
    ref_cache_free(&c);
}

static void gpu_dense_decode(void) {
    static const int lengths[] = {1, 31, 63, 64, 65, 255, 256, 257, 1025, 2075};
    check_decode(8, 2, 128, 10, lengths, 1);
    check_decode(6, 2, 80, 4, lengths + 6, 4);
    check_decode(3, 3, 64, 4, lengths + 6, 0);
    check_decode(16, 2, 96, 3, lengths + 7, 100);
}

// One run of n_tokens tokens that begins at position `first`. The bound is the one of decode.
static void check_prefill(int n_heads, int dim, int first, int n_tokens) {
    int n_kv = first + n_tokens;
    ref_cache c = ref_cache_new(n_heads, 2, dim, 1, &n_kv, 1, test_seed + first);
    rig r = rig_new(&c, "dense", 1);
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
    rig_free(&r);
    ref_cache_free(&c);
}

static void gpu_dense_prefill(void) {
    check_prefill(8, 128, 0, 257);
    check_prefill(6, 80, 255, 65);
    check_prefill(4, 64, 300, 129);
    check_prefill(2, 96, 1, 1);
}

// ---- masses and draws on a GPU ----

// Room on the device for one head's masses and draws.
typedef struct head_memory {
    float *score;
    bf16 *w;
    int16_t *ref;
    uint64_t *sum;
    int32_t *rows;
    double *coef, *out;
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
                         .out = gpu_new(128 * sizeof(double))};
}

static void put(void *to, const void *from, size_t size) {
    CHECK(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice) == cudaSuccess);
}

// The naive kernels' scores and masses of one head, compared with the functions on the CPU and with what the fast kernel
// stored. The GPU's 2^x in double precision may differ from the CPU's in the last bit, so nearly all bf16 masses are equal. The
// fast kernel's mass and the naive mass are both rounded to bf16, 2^-8 each. The fast kernel's scores are fp32 sums, which add
// far less than this: 2^-6 in all.
static void check_head_masses(const rig *r, const head_memory *m, int s, int head) {
    int n = r->c->seqs[s].n_tokens, dim = r->c->geom.head_dim, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK, n_off = 0;
    float *score = malloc(n * sizeof *score);
    bf16 *w = malloc(n * sizeof *w);
    int16_t *ref = malloc(n_blocks * sizeof *ref);
    uint64_t *sum = malloc(n_blocks * sizeof *sum);
    naive_cuda_scores(device_cache_of(r, s), r->args.q + s * row_of(r) + (size_t)head * dim, n, head, m->score);
    naive_cuda_masses(m->score, n, m->w, m->ref, m->sum);
    gpu_read(score, m->score, n * sizeof *score), gpu_read(w, m->w, n * sizeof *w);
    gpu_read(ref, m->ref, n_blocks * sizeof *ref), gpu_read(sum, m->sum, n_blocks * sizeof *sum);
    sl_masses masses = rig_weights(r, 0, s, head);
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
    rig_weights_free(&masses);
    free(score), free(w), free(ref), free(sum);
}

static void gpu_masses(void) {
    static const int lengths[] = {1, 31, 33, 257, 2075};
    static const double scales[] = {0, 1, 4, 30};
    for (int i = 0; i < 4; i++) {
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 128 : 80, 5, lengths, scales[i], test_seed + i);
        rig r = rig_new(&c, "santa-sys:S=128", 17);
        head_memory m = head_memory_new(2075);
        rig_launch(&r);
        for (int s = 0; s < 5; s++)
            for (int head = 0; head < 6; head++) check_head_masses(&r, &m, s, head);
        rig_free(&r);
        ref_cache_free(&c);
    }
}

// The fast output against the naive sum of rows: fp32 sums of n coefficients, 2^-24 each, and a result rounded to bf16.
static void check_sum(const rig *r, const head_memory *m, const int32_t *rows, const double *coef, int n, int s, int head) {
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
        CHECK_NEAR(got, out[d], fabs(out[d]) * 0x1p-8 + size * (n + 8) * 0x1p-24 + 1e-7);
    }
}

static sl_rng_id rng_of(const rig *r, int s, int head) {
    return (sl_rng_id){r->rows[s].seed, r->rows[s].sequence, (uint32_t)r->rows[s].position, RIG_LAYER, (uint32_t)head};
}

// From the masses that the fast kernel stored: the naive kernel's rows are those of the naive functions on the CPU and those of
// the CPU's sampler, and the fast kernel's output is the mean of these rows.
static void check_head_draws(const rig *r, const head_memory *m, int is_systematic, int S, int s, int head) {
    sl_masses wt = rig_weights(r, 0, s, head);
    sl_rng_id id = rng_of(r, s, head);
    int32_t *rows = malloc(S * sizeof *rows);
    double *coef = malloc(S * sizeof *coef);
    size_t most = sl_sampler_capacity(S, wt.n) + 1;
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi),
                  .scratch = malloc((sl_sampler_scratch(S, wt.n) + 1) * sizeof *d.scratch)};
    put(m->w, wt.stored, wt.n * sizeof *wt.stored), put(m->ref, wt.ref, wt.n_blocks * sizeof *wt.ref);
    naive_masses on_device = {m->w, m->ref, wt.n, wt.top}, on_host = {wt.stored, wt.ref, wt.n, wt.top};
    (is_systematic ? naive_cuda_draw_systematic : naive_cuda_draw_independent)(on_device, S, id, m->rows);
    gpu_read(rows, m->rows, S * sizeof *rows);
    for (int i = 0; i < S; i += 1 + S / 16)
        CHECK_INT(rows[i], is_systematic ? naive_draw_systematic(on_host, S, id, i) : naive_draw_independent(on_host, id, i));
    (is_systematic ? sl_draw_systematic : sl_draw_independent)(&wt, S, sl_uniform_philox(&id), &d);
    check_rows("on the GPU", &d, rows, S);
    for (int i = 0; i < S; i++) coef[i] = 1.0 / S;
    check_sum(r, m, rows, coef, S, s, head);
    free(d.row), free(d.count), free(d.inv_pi), free(d.scratch), free(rows), free(coef);
    rig_weights_free(&wt);
}

static void gpu_draws(void) {
    static const int lengths[] = {1, 31, 257, 2075}, budgets[] = {1, 127, 128, 1000};
    for (int i = 0; i < 8; i++) {
        char attn[32];
        ref_cache c = ref_cache_new(6, 2, i % 2 ? 64 : 96, 4, lengths, i % 3, test_seed + i);
        snprintf(attn, sizeof attn, "%s:S=%d", i / 4 ? "santa-sys" : "santa", budgets[i % 4]);
        rig r = rig_new(&c, attn, 17);
        head_memory m = head_memory_new(2075);
        rig_launch(&r);
        for (int s = 0; s < 4; s++)
            for (int head = 0; head < 6; head++) check_head_draws(&r, &m, i / 4, budgets[i % 4], s, head);
        rig_free(&r);
        ref_cache_free(&c);
    }
}

// ---- the layers on a GPU ----

// One rounding to bf16 is off by at most 2^-8 of the number. fp32 arithmetic before it adds the bounds of the cases on the CPU.
static const double ROUNDED = 0x1.01p-8;

static void gpu_norm_and_linear(void) {
    layer_inputs in = make_layer_inputs(test_seed + 2);
    double norm[ROWS * HIDDEN], y[ROWS * OUTS];
    bf16 fast_norm[ROWS * HIDDEN];
    float fast_y[ROWS * OUTS];
    float *x = gpu_copy(in.x, sizeof in.x);
    bf16 *x16 = gpu_copy(in.x16, sizeof in.x16), *w_norm = gpu_copy(in.norm, sizeof in.norm), *w = gpu_copy(in.w, sizeof in.w);
    double *norm_device = gpu_new(sizeof norm), *y_device = gpu_new(sizeof y);
    naive_cuda_rmsnorm(x, w_norm, ROWS, HIDDEN, 1e-5f, norm_device);
    naive_cuda_linear(w, x16, ROWS, HIDDEN, OUTS, y_device);
    gpu_read(norm, norm_device, sizeof norm), gpu_read(y, y_device, sizeof y);
    bf16 *fast_norm_device = gpu_new(sizeof fast_norm);
    float *fast_y_device = gpu_new(sizeof fast_y);
    sl_cuda_rmsnorm(x, w_norm, ROWS, HIDDEN, 1e-5f, fast_norm_device, 0);
    sl_cuda_linear args = {
        .w = w, .n_out = OUTS, .n_in = HIDDEN, .x = x16, .n_rows = ROWS, .end = SL_LINEAR_STORE, .out32 = fast_y_device};
    sl_cuda_linear_decode(&args, 0);
    gpu_read(fast_norm, fast_norm_device, sizeof fast_norm), gpu_read(fast_y, fast_y_device, sizeof fast_y);
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        CHECK_NEAR(norm[i], naive_rmsnorm(in.x + i / HIDDEN * HIDDEN, in.norm, HIDDEN, 1e-5f, i % HIDDEN), DOUBLES);
        CHECK_NEAR(sl_bf16_to_f32(fast_norm[i]), norm[i], fabs(norm[i]) * (ROUNDED + 80 * 0x1p-24));
    }
    for (int i = 0; i < ROWS * OUTS; i++) { // the bound of test_cuda_linear.c
        const bf16 *row = in.x16 + i / OUTS * HIDDEN;
        double size = 0;
        for (int j = 0; j < HIDDEN; j++) size += fabs(naive_from_bf16(row[j]) * naive_from_bf16(in.w[i % OUTS * HIDDEN + j]));
        CHECK_NEAR(y[i], naive_linear(in.w, row, HIDDEN, i % OUTS), DOUBLES);
        CHECK_NEAR(fast_y[i], y[i], (HIDDEN / 64 + 8) * 0x1p-22 * size);
    }
}

static void gpu_swiglu(void) {
    layer_inputs in = make_layer_inputs(test_seed + 3);
    double out[ROWS * HIDDEN];
    bf16 fast[ROWS * HIDDEN], *gate_up = gpu_copy(in.gate_up, sizeof in.gate_up), *fast_device = gpu_new(sizeof fast);
    double *out_device = gpu_new(sizeof out);
    naive_cuda_swiglu(gate_up, ROWS, HIDDEN, out_device);
    sl_cuda_swiglu(gate_up, ROWS, HIDDEN, fast_device, 0);
    gpu_read(out, out_device, sizeof out), gpu_read(fast, fast_device, sizeof fast);
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        const bf16 *both = in.gate_up + i / HIDDEN * 2 * HIDDEN + i % HIDDEN;
        CHECK_NEAR(out[i], naive_swiglu(both[0], both[HIDDEN]), DOUBLES);
        CHECK_NEAR(sl_bf16_to_f32(fast[i]), out[i], fabs(out[i]) * (ROUNDED + 32 * 0x1p-24) + 1e-30);
    }
}

static void gpu_rope_append(void) {
    enum { STRIDE = HEADS_IN_ROW * DIM, CACHE = PAGES * KV_HEADS * 256 * DIM };
    layer_inputs in = make_layer_inputs(test_seed + 4);
    float *inv_freq = gpu_copy(in.inv_freq, sizeof in.inv_freq);
    int32_t *pages_device = gpu_copy(pages, sizeof pages);
    bf16 *qkv = gpu_copy(in.qkv, sizeof in.qkv), fast[ROWS * STRIDE], *fast_k = malloc(CACHE * sizeof *fast_k),
         *fast_v = malloc(CACHE * sizeof *fast_v), *fast_k_device = gpu_new(CACHE * sizeof *fast_k),
         *fast_v_device = gpu_new(CACHE * sizeof *fast_v);
    double q[ROWS * HEADS * DIM], *k = malloc(CACHE * sizeof *k), *v = malloc(CACHE * sizeof *v);
    naive_qkv a = {.qkv = qkv,
                   .stride = STRIDE,
                   .inv_freq = inv_freq,
                   .position = gpu_copy(positions, sizeof positions),
                   .pages = pages_device,
                   .n_rows = ROWS,
                   .n_heads = HEADS,
                   .n_kv_heads = KV_HEADS,
                   .head_dim = DIM,
                   .q = gpu_new(sizeof q),
                   .k = gpu_new(CACHE * sizeof *k),
                   .v = gpu_new(CACHE * sizeof *v)};
    naive_cuda_rope_append(a); // before the fast kernel, which rotates q in place
    gpu_read(q, a.q, sizeof q), gpu_read(k, a.k, CACHE * sizeof *k), gpu_read(v, a.v, CACHE * sizeof *v);
    sl_row rows[ROWS];
    for (int r = 0; r < ROWS; r++) rows[r] = (sl_row){.position = positions[r], .pages = pages_device};
    sl_row *rows_device = gpu_copy(rows, sizeof rows);
    float2 *table = gpu_new(ROWS * DIM / 2 * sizeof *table);
    sl_cuda_rope_table(inv_freq, rows_device, ROWS, DIM, table, 0);
    sl_cuda_rope_append(qkv, STRIDE, table, rows_device, ROWS, HEADS, KV_HEADS, DIM, fast_k_device, fast_v_device, 0);
    gpu_read(fast, qkv, sizeof fast);
    gpu_read(fast_k, fast_k_device, CACHE * sizeof *fast_k), gpu_read(fast_v, fast_v_device, CACHE * sizeof *fast_v);
    for (int i = 0; i < ROWS * (HEADS + KV_HEADS) * DIM; i++) {
        int r = i / ((HEADS + KV_HEADS) * DIM), head = i / DIM % (HEADS + KV_HEADS), d = i % DIM;
        const bf16 *x = in.qkv + r * STRIDE + head * DIM;
        double size = fabs(sl_bf16_to_f32(x[d])) + fabs(sl_bf16_to_f32(x[(d + DIM / 2) % DIM]));
        size_t at = head < HEADS ? 0 : naive_place(pages, KV_HEADS, DIM, positions[r], head - HEADS) + d;
        double got = head < HEADS ? q[(r * HEADS + head) * DIM + d] : k[at];
        bf16 by_fast = head < HEADS ? fast[r * STRIDE + head * DIM + d] : fast_k[at];
        CHECK_NEAR(got, naive_rope(x, in.inv_freq, DIM, positions[r], d), DOUBLES);
        CHECK_NEAR(sl_bf16_to_f32(by_fast), got, ROUNDED * fabs(got) + 4 * 0x1p-24 * size);
        if (head < HEADS) continue;
        CHECK_INT(fast_v[at], x[KV_HEADS * DIM + d]);
        CHECK(v[at] == sl_bf16_to_f32(fast_v[at]));
    }
    free(fast_k), free(fast_v), free(k), free(v);
}
#endif

static const test_case cases[] = {
    {"dense", 0, dense},
    {"masses", 0, masses},
    {"draws", 0, draws},
    {"norm-and-linear", 0, norm_and_linear},
    {"rope-and-swiglu", 0, rope_and_swiglu},
    GPU_CASE("gpu-dense-decode", gpu_dense_decode),
    GPU_CASE("gpu-dense-prefill", gpu_dense_prefill),
    GPU_CASE("gpu-masses", gpu_masses),
    GPU_CASE("gpu-draws", gpu_draws),
    GPU_CASE("gpu-norm-and-linear", gpu_norm_and_linear),
    GPU_CASE("gpu-swiglu", gpu_swiglu),
    GPU_CASE("gpu-rope-append", gpu_rope_append),
    {0},
};
const test_suite suite_cuda_naive = {"cuda_naive", cases};
