// tests/cuda/test_cuda_naive_layers.c - the naive kernels of the layers around attention (naive.h), compared as in
// test_cuda_naive.c.
#include "backend/cpu/cpu_ops.h"
#include "tests/cuda/naive.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void fill_bf16(bf16 *x, int n, double scale, uint64_t *seed) {
    for (int i = 0; i < n; i++) x[i] = sl_f32_to_bf16((float)(scale * test_normal(seed)));
}

// The inputs of all tests of layers. Weights and activations are bf16, as on a GPU.
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
    sl_weight norm = {.data = in.norm, .format = SL_BF16, .n_rows = 1, .n_cols = HIDDEN},
              w = {.data = in.w, .format = SL_BF16, .n_rows = OUTS, .n_cols = HIDDEN};
    float x[ROWS * HIDDEN], y[ROWS * OUTS], out[HIDDEN];
    widen(in.x16, ROWS * HIDDEN, x);
    sl_cpu_ops_portable.linear(&w, x, ROWS, 0, OUTS, 1, 0, y);
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

// A rotated number is a sum of two products with fp32 cosines and sines: an error of 3 2^-24 of the two sizes. The rounding to
// bf16 in the cache adds at most 2^-8 of the number.
static void rope_and_swiglu(void) {
    layer_inputs in = make_layer_inputs(test_seed + 1);
    enum { Q = HEADS * DIM, KV = KV_HEADS * DIM, CACHE = PAGES * KV_HEADS * 256 * DIM };
    sl_rope rope = {.head_dim = DIM, .inv_freq = in.inv_freq, .scale = 1};
    bf16 *k_cache = calloc(CACHE, sizeof *k_cache), *v_cache = calloc(CACHE, sizeof *v_cache);
    for (int r = 0; r < ROWS; r++) {
        const bf16 *x = in.qkv + r * HEADS_IN_ROW * DIM;
        sl_row row = {.position = positions[r], .pages = pages};
        float q[Q], k[KV], v[KV];
        widen(x, Q, q), widen(x + Q, KV, k), widen(x + Q + KV, KV, v);
        sl_cpu_rope_append(&rope, &row, 1, HEADS, KV_HEADS, q, k, v, (sl_kv_rows){.k = k_cache, .v = v_cache});
        for (int i = 0; i < Q + KV; i++) {
            int head = i / DIM, d = i % DIM;
            double want = naive_rope(x + head * DIM, (naive_head){0}, in.inv_freq, DIM, positions[r], d),
                   size = fabs(sl_bf16_to_f32(x[i]));
            size += fabs(sl_bf16_to_f32(x[head * DIM + (d + DIM / 2) % DIM]));
            if (head < HEADS) {
                CHECK_NEAR(q[i], want, 3 * 0x1p-24 * size);
                continue;
            }
            size_t at = naive_place(pages, KV_HEADS, DIM, positions[r], head - HEADS) + d;
            CHECK_NEAR(sl_bf16_to_f32(k_cache[at]), want, 3 * 0x1p-24 * size + 0x1.01p-8 * fabs(want));
            CHECK_INT(v_cache[at], x[i + KV]);
        }
        // Checks the norm of a head against RMSNorm. Without bias and at position 0, the head is only normalised.
        for (int d = 0; d < DIM; d += 5) {
            float wide[DIM];
            widen(x, DIM, wide);
            naive_head h = {NULL, in.w, 1e-5f};
            CHECK_NEAR(naive_rope(x, h, in.inv_freq, DIM, 0, d), naive_rmsnorm(wide, in.w, DIM, 1e-5f, d), 1e-12);
        }
        float gate[HIDDEN], up[HIDDEN];
        const bf16 *both = in.gate_up + r * 2 * HIDDEN;
        widen(both, HIDDEN, gate), widen(both + HIDDEN, HIDDEN, up);
        sl_cpu_ops_portable.swiglu(gate, up, HIDDEN);
        for (int i = 0; i < HIDDEN; i++) { // the exponent of 2^x is at most 20, with a relative error of 2^-24
            double want = naive_swiglu(both[i], both[HIDDEN + i]);
            CHECK_NEAR(gate[i], want, 32 * 0x1p-24 * fabs(want));
        }
    }
    free(k_cache), free(v_cache);
}

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/linear.h"

// The tolerance of sums of the same numbers in double precision, in another order. Their error, n 2^-53 of the sum of sizes, is
// far smaller.
static const double DOUBLES = 1e-10;

// The tolerance of one rounding to bf16, relative to the number. fp32 arithmetic adds the bounds of the CPU cases.
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

enum { STRIDE = HEADS_IN_ROW * DIM, CACHE = PAGES * KV_HEADS * 256 * DIM };

// Arguments of the naive kernel without biases and norms. All pointers are device memory.
static naive_qkv naive_args(const bf16 *qkv, const float *inv_freq, const int32_t *pages_device) {
    return (naive_qkv){.qkv = qkv,
                       .stride = STRIDE,
                       .inv_freq = inv_freq,
                       .position = gpu_copy(positions, sizeof positions),
                       .pages = pages_device,
                       .n_rows = ROWS,
                       .n_heads = HEADS,
                       .n_kv_heads = KV_HEADS,
                       .head_dim = DIM,
                       .q = gpu_new(ROWS * HEADS * DIM * sizeof(double)),
                       .k = gpu_new(CACHE * sizeof(double)),
                       .v = gpu_new(CACHE * sizeof(double))};
}

// The rows of the step, in device memory.
static sl_row *copy_rows(const int32_t *pages_device) {
    sl_row rows[ROWS];
    for (int r = 0; r < ROWS; r++) rows[r] = (sl_row){.position = positions[r], .pages = pages_device};
    return gpu_copy(rows, sizeof rows);
}

static void gpu_rope_append(void) {
    layer_inputs in = make_layer_inputs(test_seed + 4);
    float *inv_freq = gpu_copy(in.inv_freq, sizeof in.inv_freq);
    int32_t *pages_device = gpu_copy(pages, sizeof pages);
    bf16 *qkv = gpu_copy(in.qkv, sizeof in.qkv), fast[ROWS * STRIDE], *fast_k = malloc(CACHE * sizeof *fast_k),
         *fast_v = malloc(CACHE * sizeof *fast_v), *fast_k_device = gpu_new(CACHE * sizeof *fast_k),
         *fast_v_device = gpu_new(CACHE * sizeof *fast_v);
    double q[ROWS * HEADS * DIM], *k = malloc(CACHE * sizeof *k), *v = malloc(CACHE * sizeof *v);
    naive_qkv a = naive_args(qkv, inv_freq, pages_device);
    naive_cuda_rope_append(a); // before the fast kernel, which rotates q in place
    gpu_read(q, a.q, sizeof q), gpu_read(k, a.k, CACHE * sizeof *k), gpu_read(v, a.v, CACHE * sizeof *v);
    sl_row *rows_device = copy_rows(pages_device);
    float2 *table = gpu_new(ROWS * DIM / 2 * sizeof *table);
    sl_cuda_rope_table(inv_freq, 1, rows_device, ROWS, DIM, table, 0);
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
        CHECK_NEAR(got, naive_rope(x, (naive_head){0}, in.inv_freq, DIM, positions[r], d), DOUBLES);
        CHECK_NEAR(sl_bf16_to_f32(by_fast), got, ROUNDED * fabs(got) + 4 * 0x1p-24 * size);
        if (head < HEADS) continue;
        CHECK_INT(fast_v[at], x[KV_HEADS * DIM + d]);
        CHECK(v[at] == sl_bf16_to_f32(fast_v[at]));
    }
    free(fast_k), free(fast_v), free(k), free(v);
}

// RoPE with the biases and norms of heads. The norm adds an fp32 sum of 64 squares, a root and two products to the arithmetic.
static void gpu_norm_rope_append(void) {
    layer_inputs in = make_layer_inputs(test_seed + 5);
    uint64_t seed = test_seed + 6;
    bf16 bias[STRIDE], norms[2][DIM], fast_q[ROWS * HEADS * DIM];
    fill_bf16(bias, STRIDE, 1, &seed), fill_bf16(norms[0], 2 * DIM, 1, &seed);
    float *inv_freq = gpu_copy(in.inv_freq, sizeof in.inv_freq);
    int32_t *pages_device = gpu_copy(pages, sizeof pages);
    bf16 *qkv = gpu_copy(in.qkv, sizeof in.qkv), *bias_device = gpu_copy(bias, sizeof bias),
         *norms_device = gpu_copy(norms, sizeof norms), *fast_k = malloc(CACHE * sizeof *fast_k),
         *fast_v = malloc(CACHE * sizeof *fast_v);
    double q[ROWS * HEADS * DIM], *k = malloc(CACHE * sizeof *k), *v = malloc(CACHE * sizeof *v);
    naive_qkv a = naive_args(qkv, inv_freq, pages_device);
    a.bias = bias_device, a.q_norm = norms_device, a.k_norm = norms_device + DIM, a.eps = 1e-5f;
    naive_cuda_rope_append(a);
    gpu_read(q, a.q, sizeof q), gpu_read(k, a.k, CACHE * sizeof *k), gpu_read(v, a.v, CACHE * sizeof *v);
    sl_row *rows_device = copy_rows(pages_device);
    float2 *table = gpu_new(ROWS * DIM / 2 * sizeof *table);
    sl_cuda_heads fast = {.qkv = qkv,
                          .stride = STRIDE,
                          .q = gpu_new(sizeof fast_q),
                          .q_stride = HEADS * DIM,
                          .n_rows = ROWS,
                          .n_heads = HEADS,
                          .n_kv_heads = KV_HEADS,
                          .head_dim = DIM,
                          .bias = bias_device,
                          .q_norm = norms_device,
                          .k_norm = norms_device + DIM,
                          .eps = 1e-5f,
                          .table = table,
                          .rows = rows_device,
                          .k = gpu_new(CACHE * sizeof *fast_k),
                          .v = gpu_new(CACHE * sizeof *fast_v)};
    sl_cuda_rope_table(inv_freq, 1, rows_device, ROWS, DIM, table, 0);
    sl_cuda_norm_rope_append(&fast, 0);
    gpu_read(fast_q, fast.q, sizeof fast_q);
    gpu_read(fast_k, fast.k, CACHE * sizeof *fast_k), gpu_read(fast_v, fast.v, CACHE * sizeof *fast_v);
    for (int i = 0; i < ROWS * STRIDE; i++) {
        int r = i / STRIDE, head = i / DIM % HEADS_IN_ROW, d = i % DIM, is_q = head < HEADS, is_v = head >= HEADS + KV_HEADS;
        const bf16 *x = in.qkv + r * STRIDE + head * DIM;
        naive_head h = {bias + head * DIM, is_v ? NULL : norms[!is_q], 1e-5f};
        double y = naive_norm_head(x, h, DIM, d), other = naive_norm_head(x, h, DIM, (d + DIM / 2) % DIM),
               want = is_v ? y : naive_rope(x, h, in.inv_freq, DIM, positions[r], d);
        size_t at = is_q ? 0 : naive_place(pages, KV_HEADS, DIM, positions[r], (head - HEADS) % KV_HEADS) + d;
        double got = is_q ? q[(r * HEADS + head) * DIM + d] : is_v ? v[at] : k[at];
        bf16 by_fast = is_q ? fast_q[(r * HEADS + head) * DIM + d] : is_v ? fast_v[at] : fast_k[at];
        CHECK_NEAR(got, want, DOUBLES);
        CHECK_NEAR(sl_bf16_to_f32(by_fast), got, ROUNDED * fabs(got) + 80 * 0x1p-24 * (fabs(y) + fabs(other)));
    }
    free(fast_k), free(fast_v), free(k), free(v);
}
#endif

static const test_case cases[] = {
    {"norm-and-linear", 0, norm_and_linear},
    {"rope-and-swiglu", 0, rope_and_swiglu},
    GPU_CASE("gpu-norm-and-linear", gpu_norm_and_linear),
    GPU_CASE("gpu-swiglu", gpu_swiglu),
    GPU_CASE("gpu-rope-append", gpu_rope_append),
    GPU_CASE("gpu-norm-rope-append", gpu_norm_rope_append),
    {0},
};
const test_suite suite_cuda_naive_layers = {"cuda_naive_layers", cases};
