// tests/test_cuda_vattention.c - vAttention on a GPU: from equal stored weights the CPU's fixed rows, sample and budget; and
// how often a stated error is exceeded.
#include "tests/gpu.h"

#ifdef SLEIGH_CUDA
#include "tests/decode_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Values get a mean: without one a flat head's output is so near zero that a relative error needs every row.
static rig new_rig(int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale, const char *attn,
                   uint32_t seed) {
    ref_cache c = ref_cache_new(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, test_seed);
    ref_add_to_values(&c, 1);
    return rig_new(c, attn, seed);
}

static void check(const char *attn, int n_heads, int n_kv_heads, int dim, int n_seqs, const int *lengths, double scale) {
    rig r = new_rig(n_heads, n_kv_heads, dim, n_seqs, lengths, scale, attn, 23);
    rig_launch(&r);
    rig_check(&r);
    CHECK_INT(r.stats.tries, (uint64_t)n_heads * n_seqs);
    rig_free(&r);
}

static void lengths_and_shapes(void) {
    static const int all[] = {1, 31, 255, 256, 257, 258, 400, 8192, 32769}, some[] = {700, 1, 2049};
    static const int dims[] = {64, 80, 96, 128}, groups[] = {1, 2, 3, 4, 8};
    static const char *const specs[] = {"vattention", "vattention:predictor=quest",
                                        "vattention:epsilon=1:verify=denominator:sink=3:window=2"};
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 3; k++) check(specs[k], 4, 1, 128, 1, &all[i], (i + k) % 3);
    for (int d = 0; d < 4; d++)
        for (int g = 0; g < 5; g++)
            for (int k = 1; k < 3; k++) check(specs[k], 2 * groups[g], 2, dims[d], 3, some, 1);
}

// Samples from the least base sample to every row.
static void budgets(void) {
    static const char *const verify[] = {"denominator", "numerator", "output"}, *const predictor[] = {"oracle", "quest"};
    static const double epsilons[] = {1, 0.3, 0.1, 0.03};
    static const int n = 3000;
    char attn[200];
    for (int i = 0; i < 48; i++) {
        snprintf(attn, sizeof attn,
                 "vattention:sink=32:window=32:top=%g:base=%g:epsilon=%g:delta=0.1:verify=%s:bound=%s:predictor=%s",
                 i % 5 ? 0.02 : 0, i % 7 ? 0.05 : 0, epsilons[i % 4], verify[i % 3], i / 24 ? "hoeffding" : "clt",
                 predictor[i / 12 % 2]);
        check(attn, 4, 2, 64, 1, &n, 0.3 + i % 2);
    }
}

// The share of outputs further than epsilon from those of all rows, over queries and draws; 3 standard errors above delta
// (test_vattention.c says what this can show). The bf16 output adds 2^-9.
static void coverage(void) {
    enum { SEQS = 8, HEADS = 8, DIM = 64, SEEDS = 10 };
    static const int lengths[SEQS] = {2000, 2500, 3000, 3500, 4000, 5000, 6000, 8000};
    const double epsilon = 0.15, delta = 0.1;
    int exceeded = 0, sampled = 0, runs = 0;
    double *p = malloc(8000 * sizeof *p), mu[DIM];
    for (int scale = 0; scale < 2; scale++) {
        char attn[120];
        snprintf(attn, sizeof attn, "vattention:sink=32:window=32:epsilon=%g:delta=%g", epsilon, delta);
        rig r = new_rig(HEADS, 2, DIM, SEQS, lengths, 0.5 + scale, attn, 1);
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sl_row rows[SEQS];
            gpu_read(rows, r.args.rows, sizeof rows);
            for (int s = 0; s < SEQS; s++) rows[s].seed = test_seed + seed;
            r.args.rows = gpu_copy(rows, sizeof rows);
            rig_launch(&r);
            sampled += r.stats.v_rows < (uint64_t)HEADS * 34000;
            for (int s = 0; s < SEQS; s++)
                for (int head = 0; head < HEADS; head++, runs++) {
                    const size_t at = ((size_t)s * HEADS + head) * DIM;
                    float out[DIM];
                    for (int d = 0; d < DIM; d++) out[d] = sl_bf16_to_f32(r.out[at + d]);
                    ref_attention(&r.c, s, head, r.c.q + at, lengths[s], p, mu);
                    exceeded += ref_relative(out, mu, DIM) > epsilon * (1 + 0x1p-7);
                }
        }
        rig_free(&r);
    }
    free(p);
    printf("      epsilon %g, delta %g: %d of %d exceed it\n", epsilon, delta, exceeded, runs);
    CHECK_INT(sampled, 2 * SEEDS); // not every row
    CHECK(exceeded <= delta * runs + 3 * sqrt(delta * (1 - delta) * runs));
}

static const int ragged[16] = {1, 5000, 256, 257, 31, 9000, 1024, 77, 4096, 300, 2, 20000, 512, 513, 100, 3333};

static void alone_and_in_batch(void) {
    enum { ROW = 8 * 128 };
    static const char *const specs[] = {"vattention:epsilon=0.2", "vattention:epsilon=0.2:predictor=quest"};
    for (int k = 0; k < 2; k++) {
        rig r = new_rig(8, 2, 128, 16, ragged, 1, specs[k], 5);
        rig_launch(&r);
        bf16 *batch = malloc(16 * ROW * sizeof *batch), own[ROW];
        memcpy(batch, r.out, 16 * ROW * sizeof *batch);
        sl_attn_cuda_decode_args args = r.args;
        for (int s = 0; s < 16; s++) {
            args.n_seqs = 1, args.rows = r.args.rows + s, args.q = r.args.q + s * ROW;
            r.spec.method->cuda->decode(&args);
            gpu_read(own, args.out, sizeof own);
            CHECK(!memcmp(own, batch + s * ROW, sizeof own));
        }
        for (int i = 0; i < 20; i++) {
            rig_launch(&r);
            CHECK(!memcmp(r.out, batch, 16 * ROW * sizeof *batch));
        }
        free(batch);
        rig_free(&r);
    }
}
#endif

static const test_case cases[] = {
    GPU_CASE("lengths-and-shapes", lengths_and_shapes),
    GPU_CASE("budgets", budgets),
    GPU_CASE("coverage", coverage),
    GPU_CASE("alone-and-in-batch", alone_and_in_batch),
    {0},
};
const test_suite suite_cuda_vattention = {"cuda_vattention", cases};
