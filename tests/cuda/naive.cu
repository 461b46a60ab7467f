// tests/cuda/naive.cu - starts the functions of naive.h on a GPU, one thread per output element. The functions explain what is
// computed; the kernels here only find the element of a thread.
#include "tests/cuda/naive.h"

namespace {

enum { THREADS = 128 };

// Thread blocks for n elements.
int blocks_for(size_t n) {
    return (int)((n + THREADS - 1) / THREADS);
}

__device__ size_t element() {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

// ---- dense attention ----

__global__ void dense_decode_kernel(naive_cache c, const bf16 *q, int n_kv, double *out) {
    size_t i = element();
    int head = (int)(i / c.head_dim), d = (int)(i % c.head_dim);
    if (head < c.n_heads) out[i] = naive_dense_decode(c, q, n_kv, head, d);
}

__global__ void dense_prefill_kernel(naive_cache c, const bf16 *q, size_t q_stride, int first, int n_tokens, double *out) {
    size_t i = element(), row = (size_t)c.n_heads * c.head_dim;
    int token = (int)(i / row), head = (int)(i % row / c.head_dim), d = (int)(i % c.head_dim);
    if (token < n_tokens) out[i] = naive_dense_prefill(c, q, q_stride, first, token, head, d);
}

// ---- scores, masses and draws ----

__global__ void scores_kernel(naive_cache c, const bf16 *q, int n_kv, int head, float *score) {
    int j = (int)element();
    if (j < n_kv) score[j] = (float)naive_score(c, q, head, j);
}

__global__ void references_kernel(const float *score, int n, int16_t *ref) {
    int b = (int)element();
    if (b * SL_BLOCK < n) ref[b] = (int16_t)naive_reference(score, n, b);
}

__global__ void masses_kernel(const float *score, const int16_t *ref, int n, bf16 *w) {
    int j = (int)element();
    if (j < n) w[j] = naive_mass(score[j], ref[j / SL_BLOCK]);
}

__global__ void block_masses_kernel(const bf16 *w, int n, uint64_t *sum) {
    int b = (int)element();
    if (b * SL_BLOCK < n) sum[b] = naive_block_mass(w, n, b);
}

__global__ void draw_independent_kernel(naive_masses m, int S, sl_rng_id id, int32_t *rows) {
    int i = (int)element();
    if (i < S) rows[i] = naive_draw_independent(m, id, i);
}

__global__ void draw_systematic_kernel(naive_masses m, int S, sl_rng_id id, int32_t *rows) {
    int i = (int)element();
    if (i < S) rows[i] = naive_draw_systematic(m, S, id, i);
}

__global__ void sum_of_rows_kernel(naive_cache c, const int32_t *rows, const double *coef, int n, int head, double *out) {
    int d = (int)element();
    if (d < c.head_dim) out[d] = naive_sum_of_rows(c, rows, coef, n, head, d);
}

__global__ void row_masses_kernel(naive_masses m, uint64_t *size) {
    int j = (int)element();
    if (j < m.n) size[j] = naive_row_mass(m, j);
}

__global__ void take_all_kernel(const uint64_t *size, int n, int S, int shared, sl_rng_id id, uint8_t *is_heavy, int32_t *rows,
                                float *inv_pi) {
    naive_take_all(size, n, S, shared, id, is_heavy, rows, inv_pi);
}

__global__ void largest_kernel(naive_masses m, int k, uint8_t *taken) {
    int j = (int)element();
    if (j < m.n) taken[j] = (uint8_t)naive_is_among_largest(m, k, j);
}

__global__ void quantised_scores_kernel(sl_quant_query q, const uint8_t *planes, int bits, int head_dim, double *score) {
    int row = (int)element();
    if (row < 256) score[row] = naive_quantised_score(q, planes, bits, head_dim, row);
}

__global__ void bernoulli_features_kernel(const bf16 *q, int head_dim, int B, sl_rng_id id, double *feature) {
    int d = (int)element();
    if (d < head_dim) feature[d] = naive_bernoulli_feature(q, head_dim, B, id, d);
}

__global__ void bernoulli_scores_kernel(naive_cache c, const double *feature, int n_kv, int head, double *score) {
    int j = (int)element();
    if (j < n_kv) score[j] = naive_bernoulli_score(c, feature, head, j);
}

// ---- the layers around attention ----

__global__ void rmsnorm_kernel(const float *x, const bf16 *w, int n_rows, int n, double eps, double *out) {
    size_t i = element(), row = i / n;
    if (row < (size_t)n_rows) out[i] = naive_rmsnorm(x + row * n, w, n, eps, (int)(i % n));
}

__global__ void linear_kernel(const bf16 *w, const bf16 *x, int n_rows, int n_in, int n_out, double *out) {
    size_t i = element(), row = i / n_out;
    if (row < (size_t)n_rows) out[i] = naive_linear(w, x + row * n_in, n_in, (int)(i % n_out));
}

__global__ void swiglu_kernel(const bf16 *gate_up, int n_rows, int n, double *out) {
    size_t i = element(), row = i / n;
    const bf16 *gate = gate_up + row * 2 * n;
    if (row < (size_t)n_rows) out[i] = naive_swiglu(gate[i % n], gate[n + i % n]);
}

__global__ void rope_append_kernel(naive_qkv a) {
    size_t i = element();
    int heads = a.n_heads + 2 * a.n_kv_heads, d = (int)(i % a.head_dim), head = (int)(i / a.head_dim % heads);
    int row = (int)(i / a.head_dim / heads);
    if (row >= a.n_rows) return;
    const bf16 *x = a.qkv + row * a.stride + (size_t)head * a.head_dim;
    int position = a.position[row], is_v = head >= a.n_heads + a.n_kv_heads;
    naive_head h = {a.bias ? a.bias + (size_t)head * a.head_dim : NULL,
                    is_v               ? NULL
                    : head < a.n_heads ? a.q_norm
                                       : a.k_norm,
                    a.eps};
    double y = is_v ? naive_norm_head(x, h, a.head_dim, d) : naive_rope(x, h, a.inv_freq, a.head_dim, position, d);
    if (head < a.n_heads) {
        a.q[((size_t)row * a.n_heads + head) * a.head_dim + d] = y;
    } else {
        int kv_head = (head - a.n_heads) % a.n_kv_heads;
        (is_v ? a.v : a.k)[naive_place(a.pages, a.n_kv_heads, a.head_dim, position, kv_head) + d] = y;
    }
}

} // namespace

void naive_cuda_dense_decode(naive_cache c, const bf16 *q, int n_kv, double *out) {
    dense_decode_kernel<<<blocks_for((size_t)c.n_heads * c.head_dim), THREADS>>>(c, q, n_kv, out);
}

void naive_cuda_dense_prefill(naive_cache c, const bf16 *q, size_t q_stride, int first, int n_tokens, double *out) {
    size_t n = (size_t)n_tokens * c.n_heads * c.head_dim;
    dense_prefill_kernel<<<blocks_for(n), THREADS>>>(c, q, q_stride, first, n_tokens, out);
}

void naive_cuda_scores(naive_cache c, const bf16 *q, int n_kv, int head, float *score) {
    scores_kernel<<<blocks_for(n_kv), THREADS>>>(c, q, n_kv, head, score);
}

void naive_cuda_masses(const float *score, int n, bf16 *w, int16_t *ref, uint64_t *sum) {
    references_kernel<<<blocks_for(n), THREADS>>>(score, n, ref);
    masses_kernel<<<blocks_for(n), THREADS>>>(score, ref, n, w);
    block_masses_kernel<<<blocks_for(n), THREADS>>>(w, n, sum);
}

void naive_cuda_draw_independent(naive_masses m, int S, sl_rng_id id, int32_t *rows) {
    draw_independent_kernel<<<blocks_for(S), THREADS>>>(m, S, id, rows);
}

void naive_cuda_draw_systematic(naive_masses m, int S, sl_rng_id id, int32_t *rows) {
    draw_systematic_kernel<<<blocks_for(S), THREADS>>>(m, S, id, rows);
}

void naive_cuda_sum_of_rows(naive_cache c, const int32_t *rows, const double *coef, int n, int head, double *out) {
    sum_of_rows_kernel<<<blocks_for(c.head_dim), THREADS>>>(c, rows, coef, n, head, out);
}

void naive_cuda_row_masses(naive_masses m, uint64_t *size) {
    row_masses_kernel<<<blocks_for(m.n), THREADS>>>(m, size);
}

void naive_cuda_take_all(const uint64_t *size, int n, int S, int shared, sl_rng_id id, uint8_t *is_heavy, int32_t *rows,
                         float *inv_pi) {
    take_all_kernel<<<1, 1>>>(size, n, S, shared, id, is_heavy, rows, inv_pi);
}

void naive_cuda_largest(naive_masses m, int k, uint8_t *taken) {
    largest_kernel<<<blocks_for(m.n), THREADS>>>(m, k, taken);
}

void naive_cuda_quantised_scores(sl_quant_query q, const uint8_t *planes, int bits, int head_dim, double *score) {
    quantised_scores_kernel<<<blocks_for(256), THREADS>>>(q, planes, bits, head_dim, score);
}

void naive_cuda_bernoulli_scores(naive_cache c, const bf16 *q, int n_kv, int head, int B, sl_rng_id id, double *feature,
                                 double *score) {
    bernoulli_features_kernel<<<blocks_for(c.head_dim), THREADS>>>(q, c.head_dim, B, id, feature);
    bernoulli_scores_kernel<<<blocks_for(n_kv), THREADS>>>(c, feature, n_kv, head, score);
}

void naive_cuda_rmsnorm(const float *x, const bf16 *w, int n_rows, int n, double eps, double *out) {
    rmsnorm_kernel<<<blocks_for((size_t)n_rows * n), THREADS>>>(x, w, n_rows, n, eps, out);
}

void naive_cuda_linear(const bf16 *w, const bf16 *x, int n_rows, int n_in, int n_out, double *out) {
    linear_kernel<<<blocks_for((size_t)n_rows * n_out), THREADS>>>(w, x, n_rows, n_in, n_out, out);
}

void naive_cuda_swiglu(const bf16 *gate_up, int n_rows, int n, double *out) {
    swiglu_kernel<<<blocks_for((size_t)n_rows * n), THREADS>>>(gate_up, n_rows, n, out);
}

void naive_cuda_rope_append(naive_qkv a) {
    size_t n = (size_t)a.n_rows * (a.n_heads + 2 * a.n_kv_heads) * a.head_dim;
    rope_append_kernel<<<blocks_for(n), THREADS>>>(a);
}
