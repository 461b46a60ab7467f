// attention/cuda/bucket_visit.cuh - which buckets of keys a KV head visits, and the list of their rows, on CUDA. The CPU's
// propose_buckets.c states what is computed.
//
// | kernel                  | grid                                        | writes                                        |
// |-------------------------|---------------------------------------------|-----------------------------------------------|
// | hidden_kernel           | (W / 32, KV heads, query heads / 4)         | relu(w1 x + b1) of every query head           |
// | logits_kernel           | (C / 32, KV heads, query heads / 4)         | w2 hidden + b2 of every query head            |
// | centroids_kernel        | (C / 32, KV heads, sequences)               | scores of buckets (saap-kmeans)               |
// | choose_buckets_kernel   | sequences * KV heads                        | scores (saap); the visited buckets            |
// | list_rows_kernel        | (sections, sequences * KV heads)            | the rows of visited buckets                   |
//
// Rows are listed by section: a section is a full span of 4,096 positions, and the last section has the pages after the last
// full span. A section has its own memory, so the thread blocks of a head do not wait for each other. Rows of the sink and of
// the window are not listed.
//
// Scores are fp32 sums over the lanes of a warp, the CPU's are fp32 sums over the lanes of a vector. So a bucket can be visited
// on one device only, where its score differs from the last visited score by less than the rounding of both.
#ifndef SLEIGH_BUCKET_VISIT_CUH
#define SLEIGH_BUCKET_VISIT_CUH

#include "attention/bucket_index.h"
#include "attention/cuda/decode_ring.cuh"
#include "attention/cuda/rotate_back.cuh"
#include "attention/cuda/workspace.cuh"

#include <math.h>

namespace {

enum {
    VISIT_WORDS = SL_BUCKETS_MOST / 32,
    QUERIES = 4,      // query heads that share a read of the classifier
    WARP_OUTPUTS = 4, // rows of a matrix that a warp multiplies together
    SCORE_WARPS = 8,
    SCORE_THREADS = 32 * SCORE_WARPS,
    BLOCK_OUTPUTS = WARP_OUTPUTS * SCORE_WARPS,
    CHOOSE_THREADS = 512,
    CHOOSE_WARPS = CHOOSE_THREADS / 32,
    LIST_THREADS = 256,
    LIST_WARPS = LIST_THREADS / 32,
    LIST_BLOCKS_MOST = 64, // thread blocks that share the sections of a head
    VISIT_DIM_MOST = 128,
};

struct visit_params {
    const sl_row *rows; // [n_seqs]
    const bf16 *q;      // [n_seqs][n_kv_heads][group][head_dim]
    int n_seqs, n_kv_heads, group, head_dim;
    int l, sink, window; // of the specification; l at most C
    int scores;          // 1: buckets are scored
    int roped, C, W;
    // of the layer: sl_buckets from KV head 0 on; w1 NULL: buckets are scored by their centroids
    const bf16 *centroids, *w1, *w2;
    const float *b1, *b2, *inv_freq;
    const char *page_rows, *lists; // page extras: sl_bucket_rows, sl_bucket_lists
    size_t page_rows_size, lists_size;
    const int32_t *slots; // of lists
    float *hidden;        // [n_seqs * n_heads][W]
    float *logits;        // [n_seqs * n_heads][C]
    float *score;         // [n_seqs * n_kv_heads][C]
    uint32_t *visited;    // [n_seqs * n_kv_heads][VISIT_WORDS] bit c: bucket c is visited
    uint16_t *ids;        // [n_seqs * n_kv_heads][C] the l visited buckets, ascending
    int *count;           // [n_seqs * n_kv_heads][max_sections] listed rows
    int32_t *list;        // [n_seqs * n_kv_heads][max_sections][4096] positions
    int max_sections;
    sl_attn_cuda_stats *stats;
};

// ---- the rows of a step ----

// Rows [0, sink) and [window, n_kv) are always read. Rows between them are read if their bucket is visited. window <= sink: no
// row is between them.
struct visit_range {
    int n_kv, sink, window;
    int n_built;    // pages with a bucket index
    int n_sections; // 0: no row is between sink and window
    __device__ int n_spans() const { return n_sections - 1; }
};

__device__ visit_range range_of(const visit_params &p, const sl_row &row) {
    visit_range r;
    r.n_kv = row.position + 1, r.n_built = row.position / SL_PAGE;
    r.sink = min(p.sink, r.n_kv);
    r.window = min(p.window < r.n_kv ? r.n_kv - p.window : 0, r.n_built * SL_PAGE);
    r.n_sections = 0;
    if (r.sink >= r.window)
        r.sink = r.window = r.n_kv; // every row is read
    else
        r.n_sections = min(ceil_div(r.window, SL_BUCKET_SPAN_ROWS), r.n_built / SL_BUCKET_SPAN) + 1;
    return r;
}

// ---- products with the rows of a matrix ----

__device__ __forceinline__ void widen8(const uint4 &x, float y[8]) {
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = sl_widen((bf16)(pairs[i / 2] >> i % 2 * 16));
}

// out[r][i] = w[r] . x[i] for n_rows <= 4 rows of w, in all lanes of a warp. w: [n_rows][n], n a multiple of 8; x: [N][n], in
// shared memory.
template <int N> __device__ void multiply(const bf16 *w, int n_rows, int n, const float *x, float out[WARP_OUTPUTS][N]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < WARP_OUTPUTS; r++)
#pragma unroll
        for (int i = 0; i < N; i++) out[r][i] = 0;
    for (int j = 8 * lane; j < n; j += 8 * 32) {
        uint4 raw[WARP_OUTPUTS];
#pragma unroll
        for (int r = 0; r < WARP_OUTPUTS; r++)
            raw[r] = r < n_rows ? *(const uint4 *)(w + (size_t)r * n + j) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 low = *(const float4 *)(x + i * n + j), high = *(const float4 *)(x + i * n + j + 4);
            const float own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int r = 0; r < WARP_OUTPUTS; r++) {
                float y[8];
                widen8(raw[r], y);
#pragma unroll
                for (int k = 0; k < 8; k++) out[r][i] += own[k] * y[k];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < WARP_OUTPUTS; r++)
#pragma unroll
        for (int i = 0; i < N; i++) out[r][i] = sl_sum_lanes(out[r][i]);
}

// Loads rows of a matrix of the model into the L2 cache: the thread block's rows [first, first + 32) of n, each of `bytes`
// bytes. A kernel may call this before the previous kernel has ended, because no kernel writes the model's numbers.
__device__ void prefetch_rows(const void *matrix, int first, int n, size_t bytes) {
    const char *from = (const char *)matrix + first * bytes, *end = from + min(n - first, (int)BLOCK_OUTPUTS) * bytes;
    for (const char *at = from + threadIdx.x * 128; at < end; at += SCORE_THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Loads a query into x [head_dim], rotated back unless keys after RoPE are compared. The threads from, from + step, .. share
// it.
__device__ void load_query(const visit_params &p, int query, int position, float *x, int from, int step) {
    int half = p.head_dim / 2;
    const bf16 *q = p.q + (size_t)query * p.head_dim;
    for (int d = from; d < half; d += step) {
        float a = sl_widen(q[d]), b = sl_widen(q[d + half]);
        if (!p.roped) rotate_pair_back(p.inv_freq[d], position, &a, &b);
        x[d] = a, x[d + half] = b;
    }
}

// Query head `i` of the heads that share KV head h, counted over the sequences. Returns its index; -1: there is no such head.
__device__ int query_of(const visit_params &p, int h, int i, int *sequence) {
    *sequence = min(i / p.group, p.n_seqs - 1);
    return i < p.n_seqs * p.group ? (*sequence * p.n_kv_heads + h) * p.group + i % p.group : -1;
}

// ---- the classifier ----

// Bytes: w1 of all KV heads, once for every 4 query heads of a KV head; from the L2 cache after the first time.
static __global__ void __launch_bounds__(SCORE_THREADS) hidden_kernel(const visit_params p) {
    __shared__ __align__(16) float x[QUERIES * VISIT_DIM_MOST];
    sl_start_next();
    if (blockIdx.z == 0)
        prefetch_rows(p.w1 + (size_t)blockIdx.y * p.W * p.head_dim, blockIdx.x * BLOCK_OUTPUTS, p.W, p.head_dim * sizeof(bf16));
    sl_wait_previous();
    int h = blockIdx.y, first = blockIdx.x * BLOCK_OUTPUTS + threadIdx.x / 32 * WARP_OUTPUTS, lane = threadIdx.x % 32, s;
    for (int i = 0; i < QUERIES; i++) {
        int query = query_of(p, h, blockIdx.z * QUERIES + i, &s);
        if (query >= 0)
            load_query(p, query, p.rows[s].position, x + i * p.head_dim, threadIdx.x, SCORE_THREADS);
        else
            for (int d = threadIdx.x; d < p.head_dim; d += SCORE_THREADS) x[i * p.head_dim + d] = 0;
    }
    __syncthreads();
    if (first >= p.W) return;
    float out[WARP_OUTPUTS][QUERIES];
    int n = min(p.W - first, (int)WARP_OUTPUTS);
    multiply<QUERIES>(p.w1 + ((size_t)h * p.W + first) * p.head_dim, n, p.head_dim, x, out);
#pragma unroll
    for (int r = 0; r < WARP_OUTPUTS; r++)
#pragma unroll
        for (int i = 0; i < QUERIES; i++) {
            int query = query_of(p, h, blockIdx.z * QUERIES + i, &s);
            if (lane != r * QUERIES + i || r >= n || query < 0) continue;
            float y = out[r][i] + p.b1[(size_t)h * p.W + first + r];
            p.hidden[(size_t)query * p.W + first + r] = y < 0 ? 0 : y; // NaN stays NaN
        }
}

// Bytes: w2 of all KV heads, once for every 4 query heads of a KV head; from the L2 cache after the first time. Shared memory:
// [4][W] floats.
static __global__ void __launch_bounds__(SCORE_THREADS) logits_kernel(const visit_params p) {
    extern __shared__ __align__(16) float hidden[];
    sl_start_next();
    if (blockIdx.z == 0)
        prefetch_rows(p.w2 + (size_t)blockIdx.y * p.C * p.W, blockIdx.x * BLOCK_OUTPUTS, p.C, p.W * sizeof(bf16));
    sl_wait_previous();
    int h = blockIdx.y, first = blockIdx.x * BLOCK_OUTPUTS + threadIdx.x / 32 * WARP_OUTPUTS, lane = threadIdx.x % 32, s;
    for (int i = 0; i < QUERIES; i++) {
        int query = query_of(p, h, blockIdx.z * QUERIES + i, &s);
        for (int w = threadIdx.x; w < p.W; w += SCORE_THREADS)
            hidden[i * p.W + w] = query >= 0 ? __ldcg(p.hidden + (size_t)query * p.W + w) : 0;
    }
    __syncthreads();
    if (first >= p.C) return;
    float out[WARP_OUTPUTS][QUERIES];
    int n = min(p.C - first, (int)WARP_OUTPUTS);
    multiply<QUERIES>(p.w2 + ((size_t)h * p.C + first) * p.W, n, p.W, hidden, out);
#pragma unroll
    for (int r = 0; r < WARP_OUTPUTS; r++)
#pragma unroll
        for (int i = 0; i < QUERIES; i++) {
            int query = query_of(p, h, blockIdx.z * QUERIES + i, &s);
            if (lane == r * QUERIES + i && r < n && query >= 0)
                p.logits[(size_t)query * p.C + first + r] = out[r][i] + p.b2[(size_t)h * p.C + first + r];
        }
}

// ---- centroids ----

// score[c] = centroid c . sum over the group's queries of x / |x|. A warp computes the norm of a query.
static __global__ void __launch_bounds__(SCORE_THREADS) centroids_kernel(const visit_params p) {
    __shared__ __align__(16) float x[SCORE_WARPS][VISIT_DIM_MOST], sum[VISIT_DIM_MOST], norm[SCORE_WARPS];
    sl_start_next();
    sl_wait_previous();
    int h = blockIdx.y, seq_head = blockIdx.z * p.n_kv_heads + h, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < p.group) {
        load_query(p, seq_head * p.group + warp, p.rows[blockIdx.z].position, x[warp], lane, 32);
        __syncwarp();
        double square = 0;
        for (int d = lane; d < p.head_dim; d += 32) square += (double)x[warp][d] * x[warp][d];
        for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
        if (lane == 0) norm[warp] = (float)sqrt(square);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < p.head_dim; d += SCORE_THREADS) {
        float own = 0;
        for (int g = 0; g < p.group; g++)
            if (!(norm[g] <= 0)) own += isnan(norm[g]) ? norm[g] : __fdiv_rn(x[g][d], norm[g]);
        sum[d] = own;
    }
    __syncthreads();
    int first = blockIdx.x * BLOCK_OUTPUTS + warp * WARP_OUTPUTS, n = min(p.C - first, (int)WARP_OUTPUTS);
    if (n <= 0) return;
    float out[WARP_OUTPUTS][1];
    multiply<1>(p.centroids + ((size_t)h * p.C + first) * p.head_dim, n, p.head_dim, sum, out);
#pragma unroll
    for (int r = 0; r < WARP_OUTPUTS; r++)
        if (lane == r && r < n) p.score[(size_t)seq_head * p.C + first + r] = out[r][0];
}

// ---- the choice ----

struct choose_space {
    float score[SL_BUCKETS_MOST];
    double sums[CHOOSE_WARPS];
    int counts[256];
    uint32_t below[VISIT_WORDS], equal[VISIT_WORDS];
    uint32_t prefix;
    int wanted;
};

// Sums over the thread block, in a fixed order. Every thread gets the result.
__device__ double sum_block(choose_space *s, double x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->sums[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < CHOOSE_WARPS; w++) sum += s->sums[w];
    return sum;
}
__device__ float max_block_float(choose_space *s, float x) {
    x = sl_max_lanes(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->sums[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < CHOOSE_WARPS; w++) x = fmaxf(x, (float)s->sums[w]);
    return x;
}

// Adds the probabilities of one query to s->score.
__device__ void add_softmax(choose_space *s, const float *logits, int C) {
    float most = -INFINITY;
    double total = 0;
    for (int c = threadIdx.x; c < C; c += CHOOSE_THREADS) most = fmaxf(most, __ldcg(logits + c));
    most = max_block_float(s, most);
    for (int c = threadIdx.x; c < C; c += CHOOSE_THREADS) total += exp((double)__ldcg(logits + c) - most);
    total = sum_block(s, total);
    for (int c = threadIdx.x; c < C; c += CHOOSE_THREADS)
        s->score[c] += (float)(exp((double)__ldcg(logits + c) - most) / total);
}

// Smaller keys are visited first: the order of propose_buckets.c.
__device__ uint32_t key_of(float score) {
    uint32_t bits = __float_as_uint(score);
    return isnan(score) ? ~0u : ~(bits >> 31 ? ~bits : bits | 0x80000000u);
}

// Finds the l-th smallest key, 8 bits at a time: s->prefix, and s->wanted, the number of keys equal to it that belong to the l
// smallest.
__device__ void find_key(choose_space *s, int C, int l) {
    if (threadIdx.x == 0) s->prefix = 0, s->wanted = l;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += CHOOSE_THREADS) s->counts[i] = 0;
        __syncthreads();
        uint32_t prefix = s->prefix, mask = shift == 24 ? 0 : ~0u << (shift + 8);
        for (int c = threadIdx.x; c < C; c += CHOOSE_THREADS) {
            uint32_t key = key_of(s->score[c]);
            if ((key & mask) == prefix) atomicAdd(&s->counts[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) { // a lane has 8 counts
            int n = 0, wanted = s->wanted;
            for (int i = 0; i < 8; i++) n += s->counts[8 * threadIdx.x + i];
            int before = sl_scan_lanes(n, threadIdx.x) - n;
            __syncwarp();
            if (before < wanted && before + n >= wanted) {
                int digit = 8 * threadIdx.x;
                while (before + s->counts[digit] < wanted) before += s->counts[digit++];
                s->prefix = prefix | (uint32_t)digit << shift, s->wanted = wanted - before;
            }
        }
        __syncthreads();
    }
}

// Marks the l buckets of largest score, the lower bucket among equals, and lists them.
static __global__ void __launch_bounds__(CHOOSE_THREADS) choose_buckets_kernel(const visit_params p) {
    __shared__ choose_space s;
    sl_start_next();
    sl_wait_previous();
    size_t seq_head = blockIdx.x;
    int C = p.C, n_words = ceil_div(C, 32), lane = threadIdx.x % 32;
    if (range_of(p, p.rows[seq_head / p.n_kv_heads]).n_sections == 0) return;
    for (int c = threadIdx.x; c < C; c += CHOOSE_THREADS) s.score[c] = p.w1 ? 0 : __ldcg(p.score + seq_head * C + c);
    for (int g = 0; g < p.group && p.w1; g++) add_softmax(&s, p.logits + (seq_head * p.group + g) * C, C);
    for (int c = threadIdx.x; c < C && p.w1; c += CHOOSE_THREADS) p.score[seq_head * C + c] = s.score[c];
    if (p.l == 0) return;
    __syncthreads();
    find_key(&s, C, p.l);
    for (int first = threadIdx.x / 32 * 32; first < C; first += CHOOSE_THREADS) {
        uint32_t key = first + lane < C ? key_of(s.score[first + lane]) : ~0u;
        uint32_t below = __ballot_sync(~0u, first + lane < C && key < s.prefix);
        uint32_t equal = __ballot_sync(~0u, first + lane < C && key == s.prefix);
        if (lane == 0) s.below[first / 32] = below, s.equal[first / 32] = equal;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    int n_equal = 0, n_listed = 0;
    for (int first = 0; first < n_words; first += 32) {
        int w = first + lane;
        uint32_t below = w < n_words ? s.below[w] : 0, equal = w < n_words ? s.equal[w] : 0;
        int own = __popc(equal), before = n_equal + sl_scan_lanes(own, lane) - own;
        n_equal = __shfl_sync(~0u, before + own, 31);
        for (; equal && before < s.wanted; before++, equal &= equal - 1) below |= equal & -equal;
        if (w < n_words) p.visited[seq_head * VISIT_WORDS + w] = below;
        own = __popc(below);
        int at = n_listed + sl_scan_lanes(own, lane) - own;
        n_listed = __shfl_sync(~0u, at + own, 31);
        for (; below; below &= below - 1) p.ids[seq_head * C + at++] = (uint16_t)(32 * w + __ffs(below) - 1);
    }
}

// ---- the list of rows ----

struct list_space {
    int sums[LIST_WARPS];
    int at[LIST_THREADS]; // of a run, its first row in the list
    const uint16_t *from[LIST_THREADS];
    uint32_t visited[VISIT_WORDS];
};

// Exclusive scan over the thread block, and the sum of all.
__device__ int scan_list(list_space *s, int x, int *all) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = x, sum = 0;
    x = sl_scan_lanes(x, lane);
    __syncthreads();
    if (lane == 31) s->sums[warp] = x;
    __syncthreads();
    for (int w = 0; w < LIST_WARPS; w++) {
        if (w == warp) x += sum;
        sum += s->sums[w];
    }
    *all = sum;
    return x - own;
}

// The first of the ascending rows [0, n) that is at least `row`.
__device__ int first_from(const uint16_t *rows, int n, int row) {
    int from = 0;
    while (from < n) {
        int middle = (from + n) / 2;
        if (rows[middle] < row)
            from = middle + 1;
        else
            n = middle;
    }
    return from;
}

// Rows of a run that lie in [sink, window). *rows moves to the first of them. base: position of row 0 of the span.
__device__ int trim_run(const visit_range &r, int base, const uint16_t **rows, int n) {
    if (base < r.sink) {
        int first = first_from(*rows, n, r.sink - base);
        *rows += first, n -= first;
    }
    return base + SL_BUCKET_SPAN_ROWS > r.window ? first_from(*rows, n, r.window - base) : n;
}

// The lists of a span; NULL: it has no block.
__device__ const sl_bucket_lists *lists_of(const visit_params &p, const sl_row &row, int seq_head, int span) {
    int slot = __ldcg(p.slots + row.pages[(span + 1) * SL_BUCKET_SPAN - 1]);
    size_t block = (size_t)slot * p.n_kv_heads + seq_head % p.n_kv_heads;
    return slot < 0 ? NULL : (const sl_bucket_lists *)(p.lists + block * p.lists_size);
}

__device__ const sl_bucket_rows *bucket_rows_of(const visit_params &p, const sl_row &row, int seq_head, int page) {
    size_t block = (size_t)row.pages[page] * p.n_kv_heads + seq_head % p.n_kv_heads;
    return (const sl_bucket_rows *)(p.page_rows + block * p.page_rows_size);
}

// Lists the rows of visited buckets of a span. Every thread finds the run of a bucket, and then the threads share the rows.
__device__ int list_span(const visit_params &p, list_space *s, const visit_range &r, const sl_bucket_lists *lists, int seq_head,
                         int base, int32_t *to, int *n_read) {
    int n = 0, tid = threadIdx.x;
    for (int first = 0; first < p.l; first += LIST_THREADS) {
        int own = 0, all;
        if (first + tid < p.l) {
            int c = __ldcg(p.ids + (size_t)seq_head * p.C + first + tid), from = lists->first[c];
            const uint16_t *rows = lists->row + from;
            *n_read += own = lists->first[c + 1] - from;
            own = trim_run(r, base, &rows, own);
            s->from[tid] = rows;
        }
        int at = scan_list(s, own, &all);
        s->at[tid] = at;
        __syncthreads();
        for (int i = tid; i < all; i += LIST_THREADS) {
            int run = 0; // the last run that begins at i or before
            for (int step = LIST_THREADS / 2; step > 0; step /= 2)
                if (s->at[run + step] <= i) run += step;
            to[n + i] = base + s->from[run][i - s->at[run]];
        }
        n += all;
        __syncthreads();
    }
    return n;
}

// Lists the rows of visited buckets of pages [first, end).
__device__ int list_pages(const visit_params &p, list_space *s, const visit_range &r, const sl_row &row, int seq_head,
                          int first, int end, int32_t *to) {
    int n = 0;
    for (int page = first; page < end; page++) {
        const sl_bucket_rows *rows = bucket_rows_of(p, row, seq_head, page);
        int bucket = rows->bucket[threadIdx.x], position = page * SL_PAGE + rows->row[threadIdx.x], all;
        bool taken = s->visited[bucket / 32] >> bucket % 32 & 1 && position >= r.sink && position < r.window;
        int at = scan_list(s, taken, &all);
        if (taken) to[n + at] = position;
        n += all;
    }
    return n;
}
static_assert((int)LIST_THREADS == (int)SL_PAGE, "one thread for each row of a page");

// Counts what thread 0 of a thread block read. rows: rows of K and V.
__device__ void count_read(const visit_params &p, uint64_t rows, uint64_t bytes) {
    atomicAdd(&p.stats->k_rows, (unsigned long long)rows);
    atomicAdd(&p.stats->v_distinct, (unsigned long long)rows);
    atomicAdd(&p.stats->v_rows, (unsigned long long)rows * p.group);
    atomicAdd(&p.stats->samples, (unsigned long long)rows * p.group);
    atomicAdd(&p.stats->bytes, (unsigned long long)(bytes + 2 * rows * p.head_dim * sizeof(bf16)));
}

// Bytes of the numbers that score the buckets of a KV head.
__device__ uint64_t score_bytes(const visit_params &p) {
    uint64_t C = p.C, W = p.W, d = p.head_dim;
    return p.w1 ? (W * d + C * W) * sizeof(bf16) + (W + C) * sizeof(float) : C * d * sizeof(bf16);
}

// Order of rows in a section: buckets, then positions; in the last section pages, buckets, positions.
static __global__ void __launch_bounds__(LIST_THREADS) list_rows_kernel(const visit_params p) {
    __shared__ list_space s;
    sl_start_next();
    sl_wait_previous();
    int seq_head = blockIdx.y;
    const sl_row row = p.rows[seq_head / p.n_kv_heads];
    visit_range r = range_of(p, row);
    bool scores = r.n_sections > 0 && p.scores;
    if (blockIdx.x == 0 && threadIdx.x == 0 && p.stats)
        count_read(p, r.sink + (r.n_kv - r.window), scores ? score_bytes(p) : 0);
    for (int i = threadIdx.x; i < VISIT_WORDS && p.l > 0; i += LIST_THREADS)
        s.visited[i] = i < ceil_div(p.C, 32) ? __ldcg(p.visited + (size_t)seq_head * VISIT_WORDS + i) : 0;
    __syncthreads();
    for (int section = blockIdx.x; section < r.n_sections; section += gridDim.x) {
        size_t at = (size_t)seq_head * p.max_sections + section;
        int32_t *to = p.list + at * SL_BUCKET_SPAN_ROWS;
        int n = 0, n_read = 0, first = section * SL_BUCKET_SPAN, base = section * SL_BUCKET_SPAN_ROWS;
        bool is_span = section < r.n_spans();
        const sl_bucket_lists *lists = is_span && p.l > 0 ? lists_of(p, row, seq_head, section) : NULL;
        int end = is_span ? first + SL_BUCKET_SPAN : ceil_div(r.window, SL_PAGE);
        if (lists)
            n = list_span(p, &s, r, lists, seq_head, base, to, &n_read);
        else if (p.l > 0)
            n = list_pages(p, &s, r, row, seq_head, first, end, to);
        if (threadIdx.x == 0) p.count[at] = n;
        if (!p.stats || p.l == 0) continue;
        uint64_t bytes = threadIdx.x == 0 && !lists ? max(end - first, 0) * sizeof(sl_bucket_rows) : 0;
        n_read = __reduce_add_sync(~0u, n_read);
        if (lists && threadIdx.x % 32 == 0) bytes = n_read * sizeof(uint16_t);
        if (lists && threadIdx.x == 0) bytes += 2 * (uint64_t)p.l * sizeof(uint16_t);
        if (threadIdx.x == 0)
            count_read(p, n, bytes);
        else if (bytes)
            atomicAdd(&p.stats->bytes, (unsigned long long)bytes);
    }
}

// ---- launch ----

// The arrays of the workspace.
static void take_visit(arena *a, visit_params *p, int n_seqs, int max_kv) {
    size_t seq_heads = (size_t)n_seqs * p->n_kv_heads, heads = seq_heads * p->group;
    p->max_sections = (max_kv - 1) / SL_BUCKET_SPAN_ROWS + 1;
    p->count = a->take<int>(seq_heads * p->max_sections);
    p->list = a->take<int32_t>(seq_heads * p->max_sections * SL_BUCKET_SPAN_ROWS);
    p->visited = a->take<uint32_t>(seq_heads * VISIT_WORDS);
    p->ids = a->take<uint16_t>(seq_heads * p->C);
    p->score = a->take<float>(seq_heads * p->C);
    p->hidden = p->logits = NULL;
    if (!p->W) return;
    p->hidden = a->take<float>(heads * p->W);
    p->logits = a->take<float>(heads * p->C);
}

static void launch_visit(const visit_params &p, cudaStream_t stream) {
    if (p.scores) {
        unsigned by_head = ceil_div(p.n_seqs * p.group, QUERIES);
        if (p.w1) {
            sl_launch(hidden_kernel, dim3(ceil_div(p.W, BLOCK_OUTPUTS), p.n_kv_heads, by_head), dim3(SCORE_THREADS), 0, stream,
                      p);
            sl_launch(logits_kernel, dim3(ceil_div(p.C, BLOCK_OUTPUTS), p.n_kv_heads, by_head), dim3(SCORE_THREADS),
                      QUERIES * (size_t)p.W * sizeof(float), stream, p);
        } else {
            sl_launch(centroids_kernel, dim3(ceil_div(p.C, BLOCK_OUTPUTS), p.n_kv_heads, p.n_seqs), dim3(SCORE_THREADS), 0,
                      stream, p);
        }
        sl_launch(choose_buckets_kernel, dim3(p.n_seqs * p.n_kv_heads), dim3(CHOOSE_THREADS), 0, stream, p);
    }
    sl_launch(list_rows_kernel, dim3(min(p.max_sections, (int)LIST_BLOCKS_MOST), p.n_seqs * p.n_kv_heads), dim3(LIST_THREADS),
              0, stream, p);
}

} // namespace

#endif
