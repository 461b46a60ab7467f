// tests/cuda/test_cuda_norm.c - the kernel of RMSNorm against double precision, and chains of linear layers and norms whose
// kernels run at the same time.
#include "tests/support/gpu.h"
#include "tests/test.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/linear.h"
#include "kv/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256 };

static void check_untouched(const void *data, size_t size, const char *what) {
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)data)[i] != 0xFF) FAIL("byte %zu of %s was written", i, what);
}

// out = x / sqrt(mean(x^2) + eps) * w. Tolerance: the rounding to bf16, and 2^-18 for the fp32 sums.
static void accuracy(void) {
    static const int sizes[] = {64, 72, 512, 2048, 2052, 4096, 5120, 8192, 14336};
    const float eps = 1e-5f;
    for (int s = 0; s < 9; s++)
        for (int n_rows = 1; n_rows <= 33; n_rows += 16) {
            gpu_free_all();
            const int n = sizes[s];
            uint64_t seed = test_seed + n;
            float *x = malloc(sizeof(float) * n_rows * n);
            bf16 *w = malloc(2 * n), *out = malloc(2 * n_rows * n + 2 * GUARD);
            for (int i = 0; i < n; i++) w[i] = sl_f32_to_bf16((float)(1 + 0.3 * test_normal(&seed)));
            for (int i = 0; i < n_rows * n; i++) x[i] = (float)(pow(10, i / n % 5 - 3) * test_normal(&seed));
            bf16 *gpu_out = gpu_new(2 * n_rows * n + 2 * GUARD);
            sl_cuda_rmsnorm(gpu_copy(x, sizeof(float) * n_rows * n), gpu_copy(w, 2 * n), n_rows, n, eps, gpu_out + GUARD / 2,
                            0);
            gpu_read(out, gpu_out, 2 * n_rows * n + 2 * GUARD);
            check_untouched(out, GUARD, "the space before the output");
            check_untouched(out + GUARD / 2 + n_rows * n, GUARD, "the space after the output");
            for (int r = 0; r < n_rows; r++) {
                double sum = 0;
                for (int i = 0; i < n; i++) sum += (double)x[r * n + i] * x[r * n + i];
                for (int i = 0; i < n; i++) {
                    double want = x[r * n + i] / sqrt(sum / n + eps) * sl_bf16_to_f32(w[i]);
                    CHECK_NEAR(sl_bf16_to_f32(out[GUARD / 2 + r * n + i]), want, (0x1p-8 + 0x1p-18) * fabs(want));
                }
            }
            free(x), free(w), free(out);
        }
}

// A few layers of a small model. Their kernels may start before the previous kernel has ended. 40 runs, of which 20 are replays
// of a graph, give the same bits as a run that waits after every kernel. The norms have their own kernel in one chain, and are
// parts of the linear layers in another one.
enum { LAYERS = 6, HIDDEN = 512, FFN = 1032, HEADS = 4, KV_HEADS = 2, DIM = 128, CHAIN_ROWS = 11 };

typedef struct chain {
    const bf16 *qkv[LAYERS], *o[LAYERS], *gate_up[LAYERS], *down[LAYERS], *norm[LAYERS];
    float *residual;    // [rows][HIDDEN]
    float *sums;        // [rows][HIDDEN / SL_NORM_TILE]
    bf16 *x, *q, *ffn;  // [rows][HIDDEN], [rows][HEADS * DIM], [rows][FFN]
    bf16 *k, *v;        // [rows pages][KV_HEADS][256][DIM]
    const float2 *rope; // [rows][DIM / 2]
    const sl_row *rows; // [rows]
    cudaStream_t stream;
    int is_apart; // 1: each norm is a kernel
    int waits;    // 1: wait after every kernel
} chain;

static void chain_norm(chain *c, const bf16 *w) {
    sl_cuda_rmsnorm(c->residual, w, CHAIN_ROWS, HIDDEN, 1e-5f, c->x, c->stream);
    if (c->waits) gpu_sync("rmsnorm");
}

// next_norm: of SL_LINEAR_ADD. has_sums: x was stored by such a launch
static void chain_linear(chain *c, const bf16 *w, int n_out, int n_in, const bf16 *x, int has_sums, sl_linear_end end,
                         bf16 *out16, const bf16 *next_norm) {
    sl_cuda_linear args = {.w = w,
                           .n_out = n_out,
                           .n_in = n_in,
                           .x = x,
                           .n_rows = CHAIN_ROWS,
                           .end = end,
                           .out32 = c->residual,
                           .out16 = out16,
                           .n_heads = HEADS,
                           .n_kv_heads = KV_HEADS,
                           .head_dim = DIM,
                           .rope = c->rope,
                           .rows = c->rows,
                           .k = c->k,
                           .v = c->v};
    if (has_sums && !c->is_apart) args.sums = c->sums, args.eps = 1e-5f;
    if (next_norm && !c->is_apart) args.next_w = next_norm, args.next_sums = c->sums, args.out16 = c->x;
    sl_cuda_linear_decode(&args, c->stream);
    if (c->waits) gpu_sync("linear");
    if (next_norm && c->is_apart) chain_norm(c, next_norm);
}

static void chain_step(chain *c) {
    chain_norm(c, c->norm[0]);
    for (int l = 0; l < LAYERS; l++) {
        chain_linear(c, c->qkv[l], (HEADS + 2 * KV_HEADS) * DIM, HIDDEN, c->x, l > 0, SL_LINEAR_ROPE_APPEND, c->q, NULL);
        chain_linear(c, c->o[l], HIDDEN, HEADS * DIM, c->q, 0, SL_LINEAR_ADD, NULL, c->norm[l]);
        chain_linear(c, c->gate_up[l], 2 * FFN, HIDDEN, c->x, 1, SL_LINEAR_SWIGLU, c->ffn, NULL);
        chain_linear(c, c->down[l], HIDDEN, FFN, c->ffn, 0, SL_LINEAR_ADD, NULL, l + 1 < LAYERS ? c->norm[l + 1] : NULL);
    }
}

static const bf16 *random_weights(int n_out, int n_in, uint64_t *seed) {
    bf16 *w = malloc((size_t)n_out * n_in * 2);
    for (size_t i = 0; i < (size_t)n_out * n_in; i++) w[i] = sl_f32_to_bf16((float)((2 * test_uniform(seed) - 1) / sqrt(n_in)));
    const bf16 *copy = gpu_copy(w, (size_t)n_out * n_in * 2);
    free(w);
    return copy;
}

static void run_chain(int is_apart) {
    uint64_t seed = test_seed;
    chain c = {.is_apart = is_apart};
    for (int l = 0; l < LAYERS; l++) {
        c.qkv[l] = random_weights((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, &seed);
        c.o[l] = random_weights(HIDDEN, HEADS * DIM, &seed);
        c.gate_up[l] = random_weights(2 * FFN, HIDDEN, &seed);
        c.down[l] = random_weights(HIDDEN, FFN, &seed);
        c.norm[l] = random_weights(1, HIDDEN, &seed);
    }
    float start[CHAIN_ROWS * HIDDEN], want[CHAIN_ROWS * HIDDEN], got[CHAIN_ROWS * HIDDEN];
    for (int i = 0; i < CHAIN_ROWS * HIDDEN; i++) start[i] = (float)test_normal(&seed);
    int32_t pages[CHAIN_ROWS];
    for (int i = 0; i < CHAIN_ROWS; i++) pages[i] = CHAIN_ROWS - 1 - i;
    const int32_t *gpu_pages = gpu_copy(pages, sizeof pages);
    sl_row rows[CHAIN_ROWS];
    float2 rope[CHAIN_ROWS * DIM / 2];
    for (int i = 0; i < CHAIN_ROWS; i++) rows[i] = (sl_row){.position = 7 * i, .pages = gpu_pages + i};
    for (int i = 0; i < CHAIN_ROWS * DIM / 2; i++) rope[i] = (float2){(float)cos(i), (float)sin(i)};
    c.sums = gpu_new(4 * CHAIN_ROWS * HIDDEN / SL_NORM_TILE);
    c.residual = gpu_copy(start, sizeof start), c.x = gpu_new(CHAIN_ROWS * HIDDEN * 2);
    c.q = gpu_new(CHAIN_ROWS * HEADS * DIM * 2), c.ffn = gpu_new(CHAIN_ROWS * FFN * 2);
    c.k = gpu_new(CHAIN_ROWS * KV_HEADS * SL_PAGE * DIM * 2), c.v = gpu_new(CHAIN_ROWS * KV_HEADS * SL_PAGE * DIM * 2);
    c.rows = gpu_copy(rows, sizeof rows), c.rope = gpu_copy(rope, sizeof rope);

    c.waits = 1;
    chain_step(&c);
    gpu_read(want, c.residual, sizeof want);
    c.waits = 0;
    CHECK(cudaStreamCreate(&c.stream) == cudaSuccess);
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    for (int repeat = 0; repeat < 40; repeat++) {
        CHECK(cudaMemcpy(c.residual, start, sizeof start, cudaMemcpyHostToDevice) == cudaSuccess);
        if (repeat == 20) {
            CHECK(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            chain_step(&c);
            CHECK(cudaStreamEndCapture(c.stream, &graph) == cudaSuccess);
            CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        }
        if (exec)
            CHECK(cudaGraphLaunch(exec, c.stream) == cudaSuccess);
        else
            chain_step(&c);
        gpu_read(got, c.residual, sizeof got);
        for (int i = 0; i < CHAIN_ROWS * HIDDEN; i++) CHECK(isfinite(got[i]));
        if (memcmp(got, want, sizeof got)) FAIL("repeat %d differs", repeat);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(c.stream);
}

static void chains(void) {
    run_chain(0);
    run_chain(1);
}
#endif

static const test_case cases[] = {
    GPU_CASE("accuracy", accuracy),
    GPU_CASE("overlapping-kernels", chains),
    {0},
};
const test_suite suite_cuda_norm = {"cuda_norm", cases};
