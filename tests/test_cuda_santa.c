// tests/test_cuda_santa.c - the SANTA family on a GPU: stored weights against double precision, and, from the very weights that
// the kernel stored, the CPU's draws: the output must be the mean of these rows.
#include "tests/gpu.h"

#ifdef SLEIGH_CUDA
#include "attention/cuda.h"
#include "attention/stages.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER_BYTES = 65536 * 4, MAX_SEQS = 16 };
static sl_error err;

static const struct {
    const char *name;
    sl_sampler_fn draw;
} kinds[] = {{"santa", sl_draw_independent},
             {"santa-strat", sl_draw_stratified},
             {"santa-sys", sl_draw_systematic},
             {"santa-prop", sl_draw_tiles_proportional},
             {"santa-flash", sl_draw_tiles_uniform}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

typedef struct run {
    ref_cache c;
    sl_attn_spec spec;
    int max_kv, max_blocks, n_slots, group, S, layer;
    uint32_t seed;
    void *ws;
    sl_attn_cuda_decode_args args;
    bf16 *out;      // [n_seqs][n_heads][head_dim], read back
    uint64_t *mass; // [n_slots][group][max_blocks]
    bf16 *w;        // [n_slots][max_blocks][group][32]
} run;

static run run_new(ref_cache c, const char *attn, int S, uint32_t seed) {
    const sl_attn_geom *g = &c.geom;
    run r = {
        .c = c, .S = S, .seed = seed, .layer = 3, .group = g->n_heads / g->n_kv_heads, .n_slots = c.n_seqs * g->n_kv_heads};
    char text[8];
    CHECK_OK(sl_attn_parse(attn, &r.spec, &err), err);
    snprintf(text, sizeof text, "%d", S);
    CHECK_OK(sl_attn_set(&r.spec, "S", text, &err), err);
    for (int s = 0; s < c.n_seqs; s++) r.max_kv = c.seqs[s].n_tokens > r.max_kv ? c.seqs[s].n_tokens : r.max_kv;
    r.max_blocks = (r.max_kv + 2 * SL_BLOCK - 1) / (2 * SL_BLOCK) * 2; // as the kernel's
    size_t row = (size_t)g->n_heads * g->head_dim, bytes = (size_t)c.pool.n_pages * g->n_kv_heads * SL_PAGE * g->head_dim * 2;
    sl_row rows[MAX_SEQS];
    bf16 *q = malloc(c.n_seqs * row * sizeof *q);
    memset(rows, 0, sizeof rows);
    for (int s = 0; s < c.n_seqs; s++) {
        rows[s].position = c.seqs[s].n_tokens - 1, rows[s].sequence = 7u * s, rows[s].seed = seed;
        rows[s].pages = gpu_copy(c.seqs[s].pages, c.seqs[s].n_pages * sizeof(int32_t));
    }
    for (size_t i = 0; i < c.n_seqs * row; i++) {
        q[i] = sl_f32_to_bf16(c.q[i]);
        c.q[i] = sl_bf16_to_f32(q[i]);
    }
    size_t size = r.spec.method->cuda->workspace(g, &r.spec, c.n_seqs, 1, r.max_kv);
    r.ws = gpu_zero(size);
    r.args = (sl_attn_cuda_decode_args){.geom = &r.c.geom,
                                        .spec = &r.spec,
                                        .layer = r.layer,
                                        .n_seqs = c.n_seqs,
                                        .max_kv = r.max_kv,
                                        .rows = gpu_copy(rows, sizeof rows),
                                        .q = gpu_copy(q, c.n_seqs * row * sizeof *q),
                                        .out = gpu_new(c.n_seqs * row * sizeof(bf16)),
                                        .k = gpu_copy(c.pool.k, bytes),
                                        .v = gpu_copy(c.pool.v, bytes),
                                        .stats = gpu_zero(sizeof(sl_attn_cuda_stats)),
                                        .ws = r.ws};
    r.out = malloc(c.n_seqs * row * sizeof *r.out);
    r.mass = malloc((size_t)r.n_slots * r.group * r.max_blocks * sizeof *r.mass);
    r.w = malloc((size_t)r.n_slots * r.group * r.max_blocks * SL_BLOCK * sizeof *r.w);
    free(q);
    return r;
}

static void launch(run *r) {
    r->args.geom = &r->c.geom, r->args.spec = &r->spec; // r may have moved
    r->spec.method->cuda->decode(&r->args);
    size_t n_mass = (size_t)r->n_slots * r->group * r->max_blocks;
    gpu_read(r->out, r->args.out, (size_t)r->c.n_seqs * r->c.geom.n_heads * r->c.geom.head_dim * sizeof *r->out);
    gpu_read(r->mass, (char *)r->ws + COUNTER_BYTES, n_mass * sizeof *r->mass);
    gpu_read(r->w, (char *)r->ws + COUNTER_BYTES + n_mass * sizeof *r->mass, n_mass * SL_BLOCK * sizeof *r->w);
    int *counters = malloc(COUNTER_BYTES);
    gpu_read(counters, r->ws, COUNTER_BYTES);
    for (int i = 0; i < COUNTER_BYTES / 4; i++) CHECK_INT(counters[i], 0);
    free(counters);
}

static void run_free(run *r) {
    ref_cache_free(&r->c);
    free(r->out), free(r->mass), free(r->w);
    gpu_free_all();
}

// One head's stored weights as the CPU keeps them, checked on the way: masses are those of the weights, and weights and
// references those of the scores.
static sl_weights weights_of(const run *r, int s, int head, const double *score, int n) {
    int slot = s * r->c.geom.n_kv_heads + head / r->group, h = head % r->group, n_blocks = (n + SL_BLOCK - 1) / SL_BLOCK;
    sl_weights wt = {.n = n, .n_blocks = n_blocks};
    wt.w = calloc((size_t)n_blocks * SL_BLOCK, sizeof *wt.w);
    wt.ref = malloc(n_blocks * sizeof *wt.ref);
    wt.cum = malloc((n_blocks + 1) * sizeof *wt.cum);
    for (int b = 0; b < n_blocks; b++) {
        uint64_t packed = r->mass[((size_t)slot * r->group + h) * r->max_blocks + b], mass = 0;
        const bf16 *w = r->w + (((size_t)slot * r->max_blocks + b) * r->group + h) * SL_BLOCK;
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
                FAIL("sequence %d, head %d, row %d: weight %g, expected %g", s, head, j, got, want);
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

static void check_head(const run *r, int s, int head, sl_sampler_fn sampler) {
    const sl_attn_geom *g = &r->c.geom;
    int n = r->c.seqs[s].n_tokens, dim = g->head_dim, kv = head / r->group;
    double *score = malloc(n * sizeof *score), want[128] = {0}, size[128] = {0};
    const float *q = r->c.q + ((size_t)s * g->n_heads + head) * dim;
    for (int j = 0; j < n; j++) {
        const bf16 *k = ref_k_row(&r->c, s, kv, j);
        score[j] = 0;
        for (int d = 0; d < dim; d++) score[j] += (double)q[d] * sl_bf16_to_f32(k[d]);
        score[j] *= 1.4426950408889634 / sqrt(dim);
    }
    sl_weights wt = weights_of(r, s, head, score, n);
    size_t most = sl_sampler_capacity(r->S, n);
    sl_draws d = {.row = malloc(most * sizeof *d.row),
                  .count = malloc(most * sizeof *d.count),
                  .inv_pi = malloc(most * sizeof *d.inv_pi),
                  .scratch = malloc(sl_sampler_scratch(r->S, n) * sizeof *d.scratch)};
    const sl_rng_id id = {
        .seed = r->seed, .sequence = 7u * s, .position = (uint32_t)n - 1, .layer = (uint32_t)r->layer, .head = (uint32_t)head};
    sampler(&wt, r->S, sl_uniform_philox(&id), &d);
    double total = (double)sl_weights_total(&wt);
    for (int i = 0; i < d.n; i++) {
        double share = d.count[i] * (double)sl_weights_mass(&wt, d.row[i]) / total * d.inv_pi[i];
        const bf16 *v = ref_v_row(&r->c, s, kv, d.row[i]);
        for (int x = 0; x < dim; x++) want[x] += share * sl_bf16_to_f32(v[x]), size[x] += fabs(share * sl_bf16_to_f32(v[x]));
    }
    const bf16 *out = r->out + ((size_t)s * g->n_heads + head) * dim;
    for (int x = 0; x < dim; x++) {
        double got = sl_bf16_to_f32(out[x]);
        if (!(fabs(got - want[x]) <= fabs(want[x]) * 0x1p-8 + size[x] * (r->S + 8) * 0x1p-24 + 1e-7))
            FAIL("%s, S %d, %d rows, sequence %d, head %d: output %d is %g, the drawn rows give %g", r->spec.method->name, r->S,
                 n, s, head, x, got, want[x]);
    }
    free(score), free(wt.w), free(wt.ref), free(wt.cum), free(d.row), free(d.count), free(d.inv_pi), free(d.scratch);
}

static void check(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, int S) {
    for (int k = 0; k < N_KINDS; k++) {
        run r =
            run_new(ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed + k), kinds[k].name, S, 11 + k);
        launch(&r);
        for (int s = 0; s < n_seqs; s++)
            for (int h = 0; h < n_heads; h++) check_head(&r, s, h, kinds[k].draw);
        run_free(&r);
    }
}

static void lengths(void) {
    // Tiles of 64 rows, pages of 256, and as many pages as a GPU has multiprocessors, twice as many, and more
    static const int all[] = {1,   31,  32,  33,  63,  64,   65,   127,  128,   129,   191,   192,
                              193, 255, 256, 257, 320, 1000, 4097, 8192, 32768, 32769, 40000, 65536};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(8, 2, 128, 1, &all[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 4, 128);
}

static void samples(void) {
    static const int n = 3000, S[] = {1, 3, 127, 128, 129, 1000, 4096};
    for (size_t i = 0; i < sizeof S / sizeof *S; i++) check(4, 1, 128, 1, &n, 2, S[i]);
}

static void shapes(void) {
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 8}, lengths[] = {700, 1, 2049};
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 5; g++) check(2 * groups[g], 2, dims[d], 3, lengths, 2, 64);
}

static void ragged_batch(void) {
    static const int lengths[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};
    check(8, 2, 128, 16, lengths, 3, 128);
}

// A race between copies and those that read them shows in few of many runs: stored weights and output, to the bit.
static void stored_again(void) {
    static const int lengths[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};
    run r = run_new(ref_cache_new(8, 2, 128, 16, lengths, 3, test_seed), "santa-sys", 128, 5);
    size_t n_mass = (size_t)r.n_slots * r.group * r.max_blocks, out_bytes = (size_t)16 * 8 * 128 * sizeof(bf16);
    launch(&r);
    uint64_t *mass = malloc(n_mass * sizeof *mass);
    bf16 *w = malloc(n_mass * SL_BLOCK * sizeof *w), *out = malloc(out_bytes);
    memcpy(mass, r.mass, n_mass * sizeof *mass), memcpy(w, r.w, n_mass * SL_BLOCK * sizeof *w);
    memcpy(out, r.out, out_bytes);
    for (int i = 0; i < 200; i++) {
        launch(&r);
        CHECK(!memcmp(mass, r.mass, n_mass * sizeof *mass));
        CHECK(!memcmp(w, r.w, n_mass * SL_BLOCK * sizeof *w));
        CHECK(!memcmp(out, r.out, out_bytes));
    }
    free(mass), free(w), free(out);
    run_free(&r);
}

// Two runs, and the same after other shapes have used the kernel: equal bits.
static void equal_bits(void) {
    static const int lengths[3] = {5000, 70, 9000};
    for (int k = 0; k < N_KINDS; k++) {
        run r = run_new(ref_cache_new(8, 2, 128, 3, lengths, 2, test_seed), kinds[k].name, 128, 5);
        size_t size = (size_t)3 * 8 * 128 * sizeof(bf16);
        bf16 *first = malloc(size);
        launch(&r);
        memcpy(first, r.out, size);
        for (int i = 0; i < 20; i++) {
            launch(&r);
            CHECK(!memcmp(first, r.out, size));
        }
        free(first);
        run_free(&r);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths", lengths),
    GPU_CASE("samples", samples),
    GPU_CASE("shapes", shapes),
    GPU_CASE("ragged-batch", ragged_batch),
    GPU_CASE("stored-again", stored_again),
    GPU_CASE("equal-bits", equal_bits),
    {0},
};
const test_suite suite_cuda_santa = {"cuda_santa", cases};
