// attention/cuda/buckets/bucket_scores.cu - scores of buckets on CUDA: the classifier's logits of every query head, or the
// inner products with centroids. The CPU's propose_buckets.c states what is computed.
//
// | kernel              | grid                                | writes                              |
// |---------------------|-------------------------------------|-------------------------------------|
// | classifier_kernel<1>| (W / 64, KV heads, query heads / 8) | relu(w1 x + b1) of every query head |
// | classifier_kernel<2>| (C / 64, KV heads, ..)              | w2 hidden + b2 of every query head  |
// | centroids_kernel    | (C / 32, KV heads, sequences)       | scores of buckets (saap-kmeans)     |
//
// No kernel writes the classifier. So a thread block copies its rows of the matrix to shared memory before it waits for the
// previous kernel. With C = W = 1024 and 8 KV heads, 128 thread blocks hold 128 KB of w2 each. Layer 1 also loads w2 into the
// L2 cache, because it starts while the linear layer before attention still runs. Layer 2 starts on a multiprocessor when the
// thread blocks of classifier_kernel<1> there have ended.
//
// **Order of the kernels.** A step of a saap method in one layer has several kernels. The first of them that is not a
// classifier_kernel<1> calls sl_start_next after sl_wait_previous. So every kernel before it has ended when the next kernel
// starts. Therefore the later kernels read queries, rows, page tables, K, V and page extras before they wait. They wait only
// for what kernels of the same layer write. classifier_kernel<1> calls sl_start_next at once, because classifier_kernel<2>
// reads only weights before it waits. Queries and the newest rows of K and V change from layer to layer, so all kernels load
// them past the L1 cache, which keeps no old copy.
//
// Products use tensor cores. A bf16 has 8 bits, so an fp32 number of x is the sum of three bf16 (split), and w x is the sum of
// three products. The sums are fp32, as the CPU's are, in another order.
#include "attention/cuda/buckets/bucket_step.cuh"
#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/cuda/stored_rows.cuh"

#include <cuda_bf16.h>
#include <math.h>

namespace {

enum {
    VISIT_DIM_MOST = 128,
    SCORE_WARPS = 8,
    SCORE_THREADS = 32 * SCORE_WARPS,
};

// ---- queries ----

// Query head `i` of the heads that share KV head h, counted over the sequences. Returns its index; -1: there is no such head.
__device__ int query_of(const bucket_step &p, int h, int i, int *sequence) {
    *sequence = min(i / p.group, p.n_seqs - 1);
    return i < p.n_seqs * p.group ? (*sequence * p.n_kv_heads + h) * p.group + i % p.group : -1;
}

// Rotates the pair (a, b) of a query back by position * inv_freq. The angle is rounded to fp32, as on the CPU. Whole turns are
// dropped in double precision, and sine and cosine are fp32: they err by less than 2^-21. A chain of double-precision
// instructions as in rotate_pair_back would delay every step.
__device__ void rotate_query_back(float inv_freq, int position, float *a, float *b) {
    double turns = (double)__fmul_rn((float)position, inv_freq) * 0.15915494309189535; // 1 / (2 pi)
    float c, s, x = *a, y = *b;
    sincospif((float)(2 * (turns - rint(turns))), &s, &c);
    *a = x * c + y * s, *b = y * c - x * s;
}

// Loads channels d and d + head_dim / 2 of a query into x [head_dim], rotated back unless keys after RoPE are compared.
__device__ void load_query_pair(const bucket_step &p, int query, int position, int d, float *x) {
    const bf16 *q = p.q + (size_t)query * p.head_dim;
    int half = p.head_dim / 2;
    float a = sl_widen(__ldcg(q + d)), b = sl_widen(__ldcg(q + d + half));
    if (!p.roped) rotate_query_back(p.inv_freq[d], position, &a, &b);
    x[d] = a, x[d + half] = b;
}

// ---- products by tensor cores ----

enum {
    TILE_OUTPUTS = 64, // rows of the matrix of a thread block
    M_TILES = TILE_OUTPUTS / 16,
    COLUMNS = 8,                                    // query heads that are multiplied together
    K_STEP = 16,                                    // columns of the matrix that an mma multiplies
    PIECE_MOST = 1024,                              // columns of the matrix in shared memory at a time
    STEPS_EACH = PIECE_MOST / K_STEP / SCORE_WARPS, // of a warp
    SUM_PITCH = TILE_OUTPUTS + 4, // of warp_sums: the four columns that lanes store together lie in different banks
    QUERY_PITCH = VISIT_DIM_MOST + 8,
};

struct classifier_params {
    bucket_step visit;
    int piece; // columns of the matrix in shared memory at a time: a multiple of 16
};

// One layer of the classifier: out = w x + b of the query heads.
struct classifier_layer {
    const bf16 *w;  // of the KV head: [n_out][n_in]
    const float *b; // [n_out]
    int n_out, n_in;
    float *out; // [n_seqs * n_heads][n_out]
};

template <int LAYER> __device__ classifier_layer layer_of(const bucket_step &p, int h) {
    if (LAYER == 1) return {p.w1 + (size_t)h * p.W * p.head_dim, p.b1 + (size_t)h * p.W, p.W, p.head_dim, p.hidden};
    return {p.w2 + (size_t)h * p.C * p.W, p.b2 + (size_t)h * p.C, p.C, p.W, p.logits};
}

// Starts the copy of columns [from, from + piece) of rows [0, 64) of w to shared memory: rows of piece + 8 elements. Zeros
// where w has no row or no column. n_in is a multiple of 8.
__device__ void fetch_rows(const bf16 *w, int n_rows, int n_in, int from, int piece, bf16 *to) {
    for (int r = threadIdx.x / 32; r < TILE_OUTPUTS; r += SCORE_WARPS)
        for (int c = threadIdx.x % 32 * 8; c < piece; c += 32 * 8) {
            bool exists = r < n_rows && from + c < n_in;
            copy_async(to + r * (piece + 8) + c, exists ? w + (size_t)r * n_in + from + c : w, exists);
        }
}

// A lane's numbers of its column g = lane / 4 of x: x[i] has the columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of the matrix in the
// warp's i-th step, t = lane % 4. x: of the lane's query, counted from the first column of the piece; NULL: zeros.
template <bool SHARED> __device__ __forceinline__ void load_columns(const float *x, int n, float2 out[STEPS_EACH][2]) {
#pragma unroll
    for (int i = 0; i < STEPS_EACH; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int k = (i * SCORE_WARPS + threadIdx.x / 32) * K_STEP + threadIdx.x % 4 * 2 + j * 8;
            out[i][j] = make_float2(0, 0);
            if (x && k < n) out[i][j] = SHARED ? *(const float2 *)(x + k) : __ldcg((const float2 *)(x + k));
        }
}

// sum += w x over the warp's steps of a piece: step i of warp w is step 8 i + w.
__device__ __forceinline__ void add_products(const bf16 *w, int piece, const float2 x[STEPS_EACH][2], float sum[M_TILES][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < STEPS_EACH; i++) {
        int k = (i * SCORE_WARPS + threadIdx.x / 32) * K_STEP;
        if (k >= piece) break;
        uint32_t low[3], high[3];
        split(x[i][0], low), split(x[i][1], high);
        uint32_t a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) load_matrices(a[m], w + (m * 16 + lane % 16) * (piece + 8) + k + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < 3; j++)
#pragma unroll
            for (int m = 0; m < M_TILES; m++) mma(sum[m], a[m], low[j], high[j]);
    }
}

// Loads the thread blocks' parts of w2 of a KV head into the L2 cache, by one warp.
__device__ void prefetch_second_layer(const bucket_step &p, int h) {
#if __CUDA_ARCH__ >= 900
    size_t size = (size_t)p.C * p.W * sizeof(bf16), n = size / 16, parts = (size_t)gridDim.x * 32; // n: a part is 16 n bytes
    size_t i = (size_t)blockIdx.x * 32 + threadIdx.x, begin = n * i / parts, end = n * (i + 1) / parts;
    const char *from = (const char *)(p.w2 + (size_t)h * p.C * p.W) + begin * 16;
    if (end > begin)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"((int)((end - begin) * 16)) : "memory");
#endif
}

// Bytes: the matrices of all KV heads, once. Order of reduction: a warp's steps, the warps. Shared memory: 64 rows of
// piece + 8 bf16, sums of the warps, and with LAYER 1 the queries before RoPE.
template <int LAYER> static __global__ void __launch_bounds__(SCORE_THREADS) classifier_kernel(const classifier_params c) {
    extern __shared__ __align__(16) bf16 rows[]; // [64][piece + 8]
    const bucket_step &p = c.visit;
    int h = blockIdx.y, first = blockIdx.x * TILE_OUTPUTS, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    int piece = c.piece, n_batches = ceil_div(p.n_seqs * p.group, COLUMNS), own = threadIdx.x % TILE_OUTPUTS, s;
    float *warp_sums = (float *)(rows + TILE_OUTPUTS * (piece + 8)); // [8][8 columns][SUM_PITCH]
    float *queries = warp_sums + SCORE_WARPS * COLUMNS * SUM_PITCH;  // [8][QUERY_PITCH]
    const classifier_layer y = layer_of<LAYER>(p, h);
    const bf16 *w = y.w + (size_t)first * y.n_in;
    int n_rows = min(y.n_out - first, (int)TILE_OUTPUTS);
    if (LAYER == 1) sl_start_next();
    fetch_rows(w, n_rows, y.n_in, 0, piece, rows);
    float bias = own < n_rows ? y.b[first + own] : 0;
    if (LAYER == 1 && blockIdx.z == 0 && warp == 0) prefetch_second_layer(p, h);
    sl_wait_previous();
    if (LAYER == 2) sl_start_next(); // after the wait: order of the kernels
    for (int batch = blockIdx.z, loaded = 0; batch < n_batches; batch += gridDim.z) {
        int query = query_of(p, h, batch * COLUMNS + g, &s);
        float sum[M_TILES][4] = {};
        if (LAYER == 1) {
            int half = p.head_dim / 2;
            for (int i = threadIdx.x; i < COLUMNS * half; i += SCORE_THREADS) {
                int column = i / half, of = query_of(p, h, batch * COLUMNS + column, &s);
                if (of >= 0) load_query_pair(p, of, p.rows[s].position, i % half, queries + column * QUERY_PITCH);
            }
            __syncthreads();
        }
        for (int from = 0; from < y.n_in; from += piece) {
            const float *x = LAYER == 1 ? queries + g * QUERY_PITCH : p.hidden + (size_t)query * p.W + from;
            float2 columns[STEPS_EACH][2];
            load_columns<LAYER == 1>(query >= 0 ? x : NULL, min(y.n_in - from, piece), columns);
            if (loaded != from) {
                __syncthreads();
                fetch_rows(w, n_rows, y.n_in, from, piece, rows);
                loaded = from;
            }
            copies_landed();
            __syncthreads();
            add_products(rows, piece, columns, sum);
        }
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) // sum i: row g + 8 (i / 2) of the tile, column 2 t + i % 2
                warp_sums[(warp * COLUMNS + lane % 4 * 2 + i % 2) * SUM_PITCH + m * 16 + g + i / 2 * 8] = sum[m][i];
        __syncthreads();
        for (int column = threadIdx.x / TILE_OUTPUTS; column < COLUMNS; column += SCORE_THREADS / TILE_OUTPUTS) {
            int of = query_of(p, h, batch * COLUMNS + column, &s);
            if (of < 0 || own >= n_rows) continue;
            float all = 0;
            for (int i = 0; i < SCORE_WARPS; i++) all += warp_sums[(i * COLUMNS + column) * SUM_PITCH + own];
            all += bias;
            if (LAYER == 1 && all < 0) all = 0; // NaN stays NaN
            y.out[(size_t)of * y.n_out + first + own] = all;
        }
        __syncthreads(); // the next batch overwrites queries and sums
    }
}

template <int LAYER> static size_t classifier_shared(int piece) {
    size_t rows = (size_t)TILE_OUTPUTS * (piece + 8) * sizeof(bf16), sums = SCORE_WARPS * COLUMNS * SUM_PITCH * sizeof(float);
    return rows + sums + (LAYER == 1 ? COLUMNS * QUERY_PITCH * sizeof(float) : 0);
}

// ---- centroids ----

enum { WARP_CENTROIDS = 4, BLOCK_CENTROIDS = WARP_CENTROIDS * SCORE_WARPS };

// score[c] = centroid c . sum over the group's queries of x / |x|. A warp computes the norm of a query. A lane has 8 channels
// of two of its warp's four centroids.
static __global__ void __launch_bounds__(SCORE_THREADS) centroids_kernel(const bucket_step p) {
    __shared__ __align__(16) float x[SCORE_WARPS][VISIT_DIM_MOST], sum[VISIT_DIM_MOST], norm[SCORE_WARPS];
    int h = blockIdx.y, seq_head = blockIdx.z * p.n_kv_heads + h, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = blockIdx.x * BLOCK_CENTROIDS + warp * WARP_CENTROIDS, channel = lane % 16 * 8;
    uint4 raw[WARP_CENTROIDS / 2];
#pragma unroll
    for (int r = 0; r < WARP_CENTROIDS / 2; r++) {
        int c = first + 2 * r + lane / 16;
        raw[r] = c < p.C && channel < p.head_dim ? *(const uint4 *)(p.centroids + ((size_t)h * p.C + c) * p.head_dim + channel)
                                                 : make_uint4(0, 0, 0, 0);
    }
    sl_wait_previous();
    sl_start_next(); // after the wait: bucket_scores.cu, order of the kernels
    if (warp < p.group) {
        for (int d = lane; d < p.head_dim / 2; d += 32)
            load_query_pair(p, seq_head * p.group + warp, p.rows[blockIdx.z].position, d, x[warp]);
        __syncwarp();
        double square = 0;
        for (int d = lane; d < p.head_dim; d += 32) square += (double)x[warp][d] * x[warp][d];
        for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
        if (lane == 0) norm[warp] = (float)sqrt(square);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < VISIT_DIM_MOST; d += SCORE_THREADS) {
        float own = 0;
        for (int g = 0; g < p.group && d < p.head_dim; g++)
            if (!(norm[g] <= 0)) own += isnan(norm[g]) ? norm[g] : __fdiv_rn(x[g][d], norm[g]);
        sum[d] = own;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < WARP_CENTROIDS / 2; r++) {
        float y[8], dot = 0;
        widen8(raw[r], y);
#pragma unroll
        for (int k = 0; k < 8; k++) dot += sum[channel + k] * y[k];
        for (int step = 8; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
        int c = first + 2 * r + lane / 16;
        if (lane % 16 == 0 && c < p.C) p.score[(size_t)seq_head * p.C + c] = dot;
    }
}

// ---- launch ----

template <int LAYER> static void launch_classifier(const bucket_step &p, cudaStream_t stream) {
    int n_out = LAYER == 1 ? p.W : p.C, n_in = LAYER == 1 ? p.head_dim : p.W, n_batches = ceil_div(p.n_seqs * p.group, COLUMNS);
    int piece = min(ceil_div(n_in, K_STEP) * K_STEP, (int)PIECE_MOST);
    if (classifier_shared<LAYER>(piece) > (size_t)sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin))
        piece = PIECE_MOST / 2;
    int blocks = ceil_div(n_out, TILE_OUTPUTS) * p.n_kv_heads,
        spare = max(sl_multiprocessors() * (LAYER == 1 ? 4 : 1) / blocks, 1);
    sl_launch(classifier_kernel<LAYER>, dim3(ceil_div(n_out, TILE_OUTPUTS), p.n_kv_heads, min(n_batches, spare)),
              dim3(SCORE_THREADS), classifier_shared<LAYER>(piece), stream, classifier_params{p, piece});
}

} // namespace

void sl_cuda_score_buckets(const bucket_step &p, cudaStream_t stream) {
    if (!p.w1) {
        sl_launch(centroids_kernel, dim3(ceil_div(p.C, BLOCK_CENTROIDS), p.n_kv_heads, p.n_seqs), dim3(SCORE_THREADS), 0,
                  stream, p);
        return;
    }
    launch_classifier<1>(p, stream);
    launch_classifier<2>(p, stream);
}
