// attention/cuda/buckets/attend_buckets.cuh - attention of a group of query heads over the rows that bucket_visit.cu lists, on
// CUDA.
//
// The rows of a KV head are two sets. The first set is read in every step: sink and window. The second set follows from the
// choice: the listed rows of each section, and then the drawn rows of each query head (bucket_draws.cu). Both sets are cut
// into chunks of equal length, so a large bucket is cut too. A thread block has one chunk. Thread blocks of the first set
// attend to their rows before they wait for the choice. The thread block that ends last merges the chunks of a head in order.
// Chunks depend only on the numbers of rows, so results do not depend on the batch.
//
// A warp has 16 rows at a time. It copies them to its tile in shared memory, K and then V of a row side by side, so the memory
// gets requests of whole rows. Requests for pieces of a row reach the memory at different times, and then it opens the same row
// of DRAM several times. While the copies travel, the warp finds its next 16 rows. ldmatrix then loads the operands:
//   S [16 rows][8 heads] += K [16 rows][16 channels] Q^T [16 channels][8 heads]          once for 16 channels
//   O^T [16 channels][8 heads] += V^T [16 channels][16 rows] P [16 rows][8 heads]        once for 16 channels
// With g = lane / 4 and t = lane % 4, a lane holds the scores of rows g and g + 8 for heads 2 t and 2 t + 1. It rounds
// P = 2^(S - m) to bf16, and movmatrix transposes P for the second product. Heads above the group have q = 0, and nothing of
// them is stored.
#ifndef SLEIGH_ATTEND_BUCKETS_CUH
#define SLEIGH_ATTEND_BUCKETS_CUH

#include "attention/cuda/buckets/bucket_step.cuh"
#include "attention/cuda/offloaded_rows.cuh"
#include "attention/cuda/mma_tiles.cuh"
#include "attention/cuda/partial_softmax.cuh"

#include <cuda_bf16.h>

namespace {

enum {
    BUCKET_WARPS = 4,
    BUCKET_THREADS = 32 * BUCKET_WARPS,
    TILE_ROWS = 16, // rows that a warp loads together
    PASS_ROWS = TILE_ROWS * BUCKET_WARPS,
    BUCKET_CHUNKS = 48,   // of a KV head at most: one wave of thread blocks for 8 KV heads
    MERGED_TOGETHER = 24, // chunks whose sums a thread loads together
    CHUNK_ROWS_LEAST = 2 * PASS_ROWS,
    STARTS = SECTIONS_MOST + GROUP_MAX + 1,
    COUNTS_EACH = (SECTIONS_MOST + BUCKET_THREADS - 1) / BUCKET_THREADS, // sections whose counts a thread adds up
    ALL_HEADS = -1,
};

struct attend_buckets_params {
    bucket_step visit;
    const bf16 *k, *v; // [n_pages][n_kv_heads][256][head_dim]
    bf16 *out;         // [n_seqs][n_heads][head_dim]
    float scale;       // log2(e) / sqrt(head_dim)
    int max_chunks;
    float2 *ml; // [n_seqs * n_kv_heads][max_chunks][group] maximum (log2) and sum of a chunk's masses
    float *o;   // [n_seqs * n_kv_heads][max_chunks][group][head_dim] sum of mass * v
    int *done;  // [n_seqs * n_kv_heads] counter: finished chunks
    // Drawn rows (saap-is).
    int n_drawn;         // of a query head; 0: none
    const int *drawable; // [n_seqs * n_kv_heads] rows that may be drawn; 0: nothing was drawn
    const int32_t *draw; // [n_seqs * n_heads][n_drawn] pool rows
    const float *weight; // [n_seqs * n_heads][n_drawn] log2 of 1 / pi
    const bf16 *host;    // IS_OFFLOADED: offloaded_rows.rows
};

// ---- the rows of a KV head ----

// Length of chunks of n rows, for at most `most` chunks.
__host__ __device__ int bucket_chunk_rows(int n, int most) {
    return max(ceil_div(ceil_div(n, most), PASS_ROWS) * PASS_ROWS, (int)CHUNK_ROWS_LEAST);
}

// The chunks of the rows that every step reads.
struct fixed_chunks {
    int n_rows, each, n;
};

// Both sets of rows get chunks in proportion to their rows. The second set counts with the rows that equal buckets would have.
__device__ fixed_chunks fixed_chunks_of(const attend_buckets_params &p, const visit_range &r) {
    fixed_chunks c = {r.sink + (r.n_kv - r.window), 0, 0};
    long long others = (long long)(r.window - r.sink) * p.visit.l / p.visit.C + (long long)p.n_drawn * p.visit.group;
    if (r.n_sections == 0) others = 0;
    int most = (int)(BUCKET_CHUNKS * (long long)c.n_rows / (c.n_rows + others));
    c.each = bucket_chunk_rows(c.n_rows, min(max(most, 1), BUCKET_CHUNKS - 1));
    c.n = ceil_div(c.n_rows, c.each);
    return c;
}

// start[i]: number of the first row of part i of the second set. Parts: sections, query heads. start[n_parts] is the number of
// rows.
struct row_parts {
    int start[STARTS];
    int n_parts;
    int sums[BUCKET_WARPS];
};

// By the thread block. A thread adds up the counts of consecutive sections.
__device__ void find_parts(const attend_buckets_params &p, const visit_range &r, int seq_head, row_parts *parts) {
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, each = ceil_div(r.n_sections, BUCKET_THREADS), own = 0, at,
        all = 0;
    int n_heads = p.n_drawn && r.n_sections && __ldcg(p.drawable + seq_head) ? p.visit.group : 0, n[COUNTS_EACH];
#pragma unroll
    for (int i = 0; i < COUNTS_EACH; i++) {
        int section = tid * each + i;
        n[i] =
            i < each && section < r.n_sections ? __ldcg(p.visit.count + (size_t)seq_head * p.visit.max_sections + section) : 0;
        own += n[i];
    }
    at = sl_scan_lanes(own, lane);
    if (lane == 31) parts->sums[warp] = at;
    __syncthreads();
    at -= own;
    for (int w = 0; w < BUCKET_WARPS; w++) {
        if (w < warp) at += parts->sums[w];
        all += parts->sums[w];
    }
#pragma unroll
    for (int i = 0; i < COUNTS_EACH; i++) {
        int section = tid * each + i;
        if (i < each && section < r.n_sections) parts->start[section] = at;
        at += n[i];
    }
    if (tid <= n_heads) parts->start[r.n_sections + tid] = all + tid * p.n_drawn;
    if (tid == 0) parts->n_parts = r.n_sections + n_heads;
    __syncthreads();
}

// A row that a lane attends to.
struct bucket_row {
    int at;       // marked pool row (offloaded_rows.cuh); -1: none
    int head;     // the query head that reads it, or ALL_HEADS
    float weight; // log2 of its weight
};

// Row i of the first set.
__device__ bucket_row fixed_row(const attend_buckets_params &p, const visit_range &r, const sl_row &row, int seq_head, int i) {
    int j = i < r.sink ? i : r.window + i - r.sink;
    int at = pool_page(p.visit, row, seq_head, j / SL_PAGE) + j % SL_PAGE;
    return {mark_row(at, j / SL_PAGE, row.position / SL_PAGE), ALL_HEADS, 0};
}

// Row i of the second set. No such row is in the newest page, so none has a mark.
__device__ bucket_row chosen_row(const attend_buckets_params &p, const visit_range &r, const row_parts *parts, int seq_head,
                                 int i) {
    int part = 0, end = parts->n_parts; // the last part that begins at i or before
    while (end - part > 1) {
        int middle = (part + end) / 2;
        if (parts->start[middle] <= i)
            part = middle;
        else
            end = middle;
    }
    int own = i - parts->start[part], head = part - r.n_sections;
    if (head < 0) {
        size_t section = (size_t)seq_head * p.visit.max_sections + part;
        return {__ldcg(p.visit.list + section * SL_BUCKET_SPAN_ROWS + own), ALL_HEADS, 0};
    }
    size_t at = ((size_t)seq_head * p.visit.group + head) * p.n_drawn + own;
    return {__ldcg(p.draw + at), head, __ldcg(p.weight + at)};
}

// Row i, or none from `end` on.
__device__ bucket_row row_of(const attend_buckets_params &p, const visit_range &r, const sl_row &row, int seq_head,
                             bool is_fixed, const row_parts *parts, int i, int end) {
    if (i >= end) return {-1, ALL_HEADS, 0};
    return is_fixed ? fixed_row(p, r, row, seq_head, i) : chosen_row(p, r, parts, seq_head, i);
}

// Waits for the choice. The thread block's chunk of the second set is [*begin, *end); *n_chunks: of both sets.
__device__ void chunk_of_chosen(const attend_buckets_params &p, const visit_range &r, int seq_head, const fixed_chunks &fixed,
                                row_parts *parts, int *begin, int *end, int *n_chunks) {
    sl_wait_previous();
    find_parts(p, r, seq_head, parts);
    int n = parts->start[parts->n_parts], each = bucket_chunk_rows(n, BUCKET_CHUNKS - fixed.n);
    *begin = ((int)blockIdx.y - fixed.n) * each, *end = min(*begin + each, n);
    *n_chunks = fixed.n + ceil_div(n, each);
}

// ---- one warp ----

// Starts the copy of 16 bytes of a row to shared memory, or writes zeros.
__device__ __forceinline__ void copy_part(bf16 *to, const bf16 *from, bool present, uint64_t policy) {
    if (IS_OFFLOADED)
        copy_async(to, from, present);
    else
        copy_async(to, from, present, policy);
}

// 16 rows that a warp attends to: K and then V of a row.
template <int DIM> struct bucket_tile {
    bf16 rows[TILE_ROWS][tile_stride<2 * DIM>];

    // Starts the copies, by the warp. Lanes 0 to 15 hold one marked row each; -1: zeros. Consecutive lanes copy consecutive
    // pieces of K and then of V of a row. On the host both are side by side, so they are one request.
    __device__ __forceinline__ void fetch(const attend_buckets_params &p, int at) {
        enum { PIECES = DIM / 8 };                       // of 16 bytes in a row of K
        uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT); // draw_rows.cuh, gather: why these rows leave the L2 cache first
#pragma unroll
        for (int j = 0; j < TILE_ROWS * 2 * PIECES / 32; j++) {
            int i = 32 * j + threadIdx.x % 32, row = i / (2 * PIECES), piece = i % (2 * PIECES);
            int own = __shfl_sync(~0u, at, row), pool = max(own, 0);
            const bf16 *from = piece < PIECES ? k_of_row<DIM>(p.k, p.host, pool) : v_of_row<DIM>(p.v, p.host, pool) - DIM;
            copy_part(rows[row] + 8 * piece, from + 8 * piece, own >= 0, policy);
        }
        count_fetched(p.visit.stats, at, 32 / TILE_ROWS);
    }
};

// DRAWS: some rows are drawn rows of one query head.
template <int DIM, bool DRAWS> struct bucket_attender {
    enum { STEPS = DIM / 16 };
    uint32_t q[STEPS][2]; // of head g: channels 16 i + 8 j + 2 t and the next one
    float o[STEPS][4];    // of channels 16 i + g and, from 2 on, 16 i + g + 8: heads 2 t and 2 t + 1
    float m[2], l[2];     // of heads 2 t and 2 t + 1. m: the largest score; l: the sum of the masses of the lane's rows

    // queries: [group][DIM]; zeros from head `group` on. Past the L1 cache: bucket_scores.cu, order of the kernels.
    __device__ void begin(const bf16 *queries, int group) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++)
                q[i][j] = g < group ? __ldcg((const uint32_t *)(queries + g * DIM + 16 * i + 8 * j + 2 * t)) : 0;
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        }
        m[0] = m[1] = -INFINITY, l[0] = l[1] = 0;
    }

    // s[i]: of row g + 8 (i / 2) of the tile and head 2 t + i % 2.
    __device__ __forceinline__ void find_scores(const bucket_tile<DIM> &tile, float scale, float s[4]) const {
        int lane = threadIdx.x % 32;
        const bf16 *k = tile.rows[lane % 16] + lane / 16 * 8;
        s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            load_matrices(a, k + 16 * i);
            mma(s, a, q[i][0], q[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] *= scale;
    }

    // o += masses v. low, high: the lane's masses of rows g and g + 8.
    __device__ __forceinline__ void add_values(const bucket_tile<DIM> &tile, uint32_t low, uint32_t high) {
        int lane = threadIdx.x % 32;
        const bf16 *v = tile.rows[lane % 8 + lane / 16 * 8] + DIM + lane / 8 % 2 * 8;
        low = sl_transpose_b16(low), high = sl_transpose_b16(high);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            load_matrices_transposed(a, v + 16 * i);
            mma(o[i], a, low, high);
        }
    }

    // Adds the rows of the tile, which row16 describes: lanes 0 to 15 (and 16 to 31 again) hold one row each.
    __device__ __forceinline__ void add(const bucket_tile<DIM> &tile, float scale, const bucket_row &row16) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        float s[4], most[2] = {m[0], m[1]}, base[2], factor[2];
        find_scores(tile, scale, s);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = g + 8 * i, of = ALL_HEADS;
            bool is_row = __shfl_sync(~0u, row16.at, row) >= 0;
            float weight = 0;
            if (DRAWS) of = __shfl_sync(~0u, row16.head, row), weight = __shfl_sync(~0u, row16.weight, row);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *x = &s[2 * i + h];
                bool reads = is_row && (of == ALL_HEADS || of == 2 * t + h);
                *x = reads ? *x + weight : -INFINITY;
                most[h] = fmaxf(most[h], *x);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int step = 4; step < 32; step *= 2) most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], step));
            base[h] = most[h] == -INFINITY ? 0 : most[h], factor[h] = exp2f(m[h] - base[h]), m[h] = most[h];
        }
        uint32_t low = sl_pack_bf16(exp2f(s[0] - base[0]), exp2f(s[1] - base[1]));
        uint32_t high = sl_pack_bf16(exp2f(s[2] - base[0]), exp2f(s[3] - base[1]));
        l[0] = l[0] * factor[0] + sl_widen((bf16)low) + sl_widen((bf16)high);
        l[1] = l[1] * factor[1] + sl_widen((bf16)(low >> 16)) + sl_widen((bf16)(high >> 16));
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[i][j] *= factor[j % 2];
        add_values(tile, low, high);
    }
};

// ---- merging ----

// A warp's rows, and later its sums. The pad lets lanes of different heads store to different banks.
template <int DIM> union bucket_warp {
    bucket_tile<DIM> tile;
    float o[GROUP_MAX][DIM + 4];
};

template <int DIM> struct bucket_space {
    alignas(16) bucket_warp<DIM> warps[BUCKET_WARPS];
    row_parts parts;
    float2 ml[BUCKET_WARPS][GROUP_MAX];
    float factor[BUCKET_CHUNKS][GROUP_MAX]; // of a chunk's sums; 0 from n_chunks on
    float sum[GROUP_MAX];                   // the masses of all chunks, relative to the head's largest score
    int is_last;
};

template <int DIM, bool DRAWS> __device__ void store_warp(const bucket_attender<DIM, DRAWS> &a, bucket_space<DIM> *s) {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = a.l[h];
        for (int step = 4; step < 32; step *= 2) l += __shfl_xor_sync(~0u, l, step);
        if (g == 0) s->ml[warp][2 * t + h] = make_float2(a.m[h], l);
#pragma unroll
        for (int i = 0; i < a.STEPS; i++) {
            s->warps[warp].o[2 * t + h][16 * i + g] = a.o[i][h];
            s->warps[warp].o[2 * t + h][16 * i + g + 8] = a.o[i][2 + h];
        }
    }
}

// Stores o / l to four channels of the output.
__device__ __forceinline__ void store_output(bf16 *out, const float4 &o, float l) {
    *(uint2 *)out = make_uint2(sl_pack_bf16(o.x / l, o.y / l), sl_pack_bf16(o.z / l, o.w / l));
}

// Adds the warps' results in order. Stores the output if this is the only chunk, otherwise a partial result. A thread has four
// channels of a head.
template <int DIM>
__device__ void merge_warps(const attend_buckets_params &p, const bucket_space<DIM> *s, size_t seq_head, int chunk,
                            bool is_all) {
    int group = p.visit.group;
#pragma unroll 1
    for (int i = threadIdx.x; i < group * (DIM / 4); i += BUCKET_THREADS) {
        int g = i / (DIM / 4), d = i % (DIM / 4) * 4;
        float4 o = make_float4(0, 0, 0, 0);
        float2 ml = add_parts<BUCKET_WARPS>([&](int w) { return s->ml[w][g]; },
                                            [&](int w) { return *(const float4 *)&s->warps[w].o[g][d]; }, &o);
        if (is_all) {
            store_output(p.out + (seq_head * group + g) * DIM + d, o, ml.y);
            continue;
        }
        size_t at = (seq_head * p.max_chunks + chunk) * group + g;
        __stcg((float4 *)(p.o + at * DIM + d), o);
        if (d == 0) __stcg(p.ml + at, ml);
    }
}

// The factors of the chunks, and the sum of all masses. A warp has a head, a lane has two chunks.
template <int DIM>
__device__ void find_factors(const attend_buckets_params &p, bucket_space<DIM> *s, size_t seq_head, int n_chunks) {
    static_assert(BUCKET_CHUNKS <= 64, "a lane has two chunks");
    int group = p.visit.group, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int g = threadIdx.x / 32; g < group; g += BUCKET_WARPS) {
        float2 own[2];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int c = lane + 32 * i;
            own[i] = c < n_chunks ? __ldcg(p.ml + (seq_head * p.max_chunks + c) * group + g) : make_float2(-INFINITY, 0);
        }
        float most = sl_max_lanes(fmaxf(own[0].x, own[1].x));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float factor = rescale(own[i].x, most);
            if (lane + 32 * i < BUCKET_CHUNKS) s->factor[lane + 32 * i][g] = factor;
            sum += factor * own[i].y;
        }
        sum = sl_sum_lanes(sum);
        if (lane == 0) s->sum[g] = sum;
    }
    __syncthreads();
}

// out = sum_c 2^(m_c - m) o_c / sum_c 2^(m_c - m) l_c over the chunks c of the head; o_c in order.
template <int DIM>
__device__ void merge_bucket_chunks(const attend_buckets_params &p, bucket_space<DIM> *s, size_t seq_head, int n_chunks) {
    static_assert(BUCKET_CHUNKS % MERGED_TOGETHER == 0, "every chunk that is merged has a factor");
    int group = p.visit.group;
    find_factors(p, s, seq_head, n_chunks);
#pragma unroll 1
    for (int i = threadIdx.x; i < group * (DIM / 4); i += BUCKET_THREADS) {
        int g = i / (DIM / 4);
        const float4 *from = (const float4 *)(p.o + seq_head * p.max_chunks * group * DIM) + i;
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int first = 0; first < n_chunks; first += MERGED_TOGETHER) {
            float4 x[MERGED_TOGETHER];
#pragma unroll
            for (int j = 0; j < MERGED_TOGETHER; j++)
                x[j] = first + j < n_chunks ? __ldcg(from + (size_t)(first + j) * group * (DIM / 4)) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < MERGED_TOGETHER; j++) add_scaled(&o, s->factor[first + j][g], x[j]);
        }
        store_output(p.out + (seq_head * group) * DIM + i * 4, o, s->sum[g]);
    }
}

// ---- the kernel ----

// out = sum_j w_j e_j v_j / sum_j w_j e_j over the rows of a query head, e_j = 2^(q.k_j scale), w_j = 1 or the weight of a
// draw.
//
// Grid: (sequences * KV heads, chunks). The chunks of the first set come first, so their thread blocks start first.
// Bytes: the rows of K and V once for all query heads of the group; 4 (DIM + 2) bytes of partial results for each query head
// and chunk, in the L2 cache.
// Order of reduction: a warp's rows, the lanes of a head, the warps, the chunks, each in order.
// Error: as dense_decode_ring_kernel.
template <int DIM, bool DRAWS>
__global__ void __launch_bounds__(BUCKET_THREADS, 4) attend_buckets_kernel(const attend_buckets_params p) {
    __shared__ __align__(16) bucket_space<DIM> s;
    sl_start_next();
    int seq_head = blockIdx.x, chunk = blockIdx.y, warp = threadIdx.x / 32, lane_row = threadIdx.x % TILE_ROWS;
    const sl_row row = p.visit.rows[seq_head / p.visit.n_kv_heads];
    const visit_range r = range_of(p.visit, row);
    const fixed_chunks fixed = fixed_chunks_of(p, r);
    bucket_attender<DIM, DRAWS> a;
    a.begin(p.visit.q + (size_t)seq_head * p.visit.group * DIM, p.visit.group);
    const bool is_fixed = chunk < fixed.n;
    int begin = chunk * fixed.each, end = min(begin + fixed.each, fixed.n_rows), n_chunks;
    if (!is_fixed) {
        chunk_of_chosen(p, r, seq_head, fixed, &s.parts, &begin, &end, &n_chunks);
        if (begin >= end) return;
    }
    bucket_tile<DIM> &tile = s.warps[warp].tile;
    bucket_row now = row_of(p, r, row, seq_head, is_fixed, &s.parts, begin + warp * TILE_ROWS + lane_row, end);
    for (int first = begin + warp * TILE_ROWS; first < end; first += PASS_ROWS) {
        tile.fetch(p, now.at);
        bucket_row next = row_of(p, r, row, seq_head, is_fixed, &s.parts, first + PASS_ROWS + lane_row, end);
        copies_landed();
        __syncwarp();
        a.add(tile, p.scale, now);
        __syncwarp(); // before the next rows overwrite the tile
        now = next;
    }
    if (is_fixed) chunk_of_chosen(p, r, seq_head, fixed, &s.parts, &begin, &end, &n_chunks);
    store_warp(a, &s);
    __syncthreads();
    merge_warps<DIM>(p, &s, seq_head, chunk, n_chunks == 1);
    if (n_chunks == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) s.is_last = counts_last_part(p.done + seq_head, 1, n_chunks);
    __syncthreads();
    if (s.is_last) merge_bucket_chunks<DIM>(p, &s, seq_head, n_chunks);
}

// max_rows: most rows of a KV head.
static void take_bucket_partials(arena *a, attend_buckets_params *p, int n_seqs, size_t max_rows) {
    size_t seq_heads = (size_t)n_seqs * p->visit.n_kv_heads;
    p->max_chunks = (int)min((max_rows + CHUNK_ROWS_LEAST - 1) / CHUNK_ROWS_LEAST + 1, (size_t)BUCKET_CHUNKS);
    p->ml = a->take<float2>(seq_heads * p->max_chunks * p->visit.group);
    p->o = a->take<float>(seq_heads * p->max_chunks * p->visit.group * p->visit.head_dim);
}

template <int DIM> static void launch_attend_buckets(const attend_buckets_params &p, cudaStream_t stream) {
    sl_launch(p.n_drawn ? attend_buckets_kernel<DIM, true> : attend_buckets_kernel<DIM, false>,
              dim3(p.visit.n_seqs * p.visit.n_kv_heads, p.max_chunks), dim3(BUCKET_THREADS), 0, stream, p);
}

} // namespace

#endif
