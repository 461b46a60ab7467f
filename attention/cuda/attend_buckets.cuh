// attention/cuda/attend_buckets.cuh - attention of a group of query heads over the rows that bucket_visit.cuh lists, on CUDA.
//
// The rows of a KV head are numbered without a gap: sink, window, the listed rows of each section, and then the drawn rows of
// each query head (bucket_draws.cuh). They are cut into chunks of equal length, so a large bucket is cut too. A thread block
// has one chunk. The thread block that ends last merges the chunks of a head in order. Chunks depend only on the number of
// rows, so results do not depend on the batch.
//
// A warp has 16 rows at a time. With g = lane / 4 and t = lane % 4, a lane loads parts of K and V of rows g and g + 8: DIM / 4
// channels each. Register r of a row holds the channels channel_of(r) and the next one. The inner product over channels has any
// order, so registers 2 i and 2 i + 1 are the operand of the i-th mma:
//   S [8 heads][8 rows] += Q [8 heads][16 channels] K^T [16 channels][8 rows]      twice, for rows 0 .. 7 and 8 .. 15
// A lane then holds the scores of head g for rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9. It rounds 2^(s - m) to bf16. This is the
// operand of
//   O [8 heads][8 channels] += P [8 heads][16 rows] V [16 rows][8 channels]        once for each register r
// where V is transposed by movmatrix. Heads above the group have q = 0, and nothing of them is stored.
#ifndef SLEIGH_ATTEND_BUCKETS_CUH
#define SLEIGH_ATTEND_BUCKETS_CUH

#include "attention/cuda/bucket_visit.cuh"
#include "attention/cuda/host_rows.cuh"

#include <cuda_bf16.h>

namespace {

enum {
    BUCKET_WARPS = 4,
    BUCKET_THREADS = 32 * BUCKET_WARPS,
    TILE_ROWS = 16, // rows that a warp loads together
    PASS_ROWS = TILE_ROWS * BUCKET_WARPS,
    BUCKET_CHUNKS = 48, // of a KV head at most: one wave of thread blocks for 8 KV heads
    CHUNK_ROWS_LEAST = 2 * PASS_ROWS,
    SECTIONS_MOST = SL_CUDA_LONG_ROWS / SL_BUCKET_SPAN_ROWS + 1,
    STARTS = 2 + SECTIONS_MOST + GROUP_MAX + 1,
    ALL_HEADS = -1,
};

struct attend_buckets_params {
    visit_params visit;
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
    const int32_t *draw; // [n_seqs * n_heads][n_drawn] positions, -1: no row
    const float *weight; // [n_seqs * n_heads][n_drawn] log2 of 1 / pi
    const bf16 *host;    // IS_HOST: host_rows.rows
};

__host__ __device__ int bucket_chunk_rows(int n_rows) {
    return max(ceil_div(ceil_div(n_rows, BUCKET_CHUNKS), PASS_ROWS) * PASS_ROWS, (int)CHUNK_ROWS_LEAST);
}

// ---- the rows of a KV head ----

// start[i]: number of the first row of part i. Parts: sink, window, sections, query heads. start[n_parts] is the number of
// rows.
struct row_parts {
    int start[STARTS];
    int n_parts;
};

// By one warp.
__device__ void find_parts(const attend_buckets_params &p, const visit_range &r, int seq_head, row_parts *parts) {
    int lane = threadIdx.x, at = r.sink + (r.n_kv - r.window);
    int n_heads = p.n_drawn && r.n_sections && __ldcg(p.drawable + seq_head) ? p.visit.group : 0;
    if (lane == 0) parts->start[0] = 0, parts->start[1] = r.sink, parts->n_parts = 2 + r.n_sections + n_heads;
    for (int first = 0; first < r.n_sections; first += 32) {
        int i = first + lane, n = i < r.n_sections ? __ldcg(p.visit.count + (size_t)seq_head * p.visit.max_sections + i) : 0;
        int end = at + sl_scan_lanes(n, lane);
        if (i < r.n_sections) parts->start[2 + i] = end - n;
        at = __shfl_sync(~0u, end, 31);
    }
    if (lane <= n_heads) parts->start[2 + r.n_sections + lane] = at + lane * p.n_drawn;
}

// The position of row i; -1: no row. *head: the query head that reads it, or ALL_HEADS. *weight: log2 of its weight.
__device__ int row_at(const attend_buckets_params &p, const visit_range &r, int seq_head, const row_parts *parts, int i,
                      int *head, float *weight) {
    int part = 0, end = parts->n_parts; // the last part that begins at i or before
    while (end - part > 1) {
        int middle = (part + end) / 2;
        if (parts->start[middle] <= i)
            part = middle;
        else
            end = middle;
    }
    int own = i - parts->start[part], section = part - 2;
    *head = ALL_HEADS, *weight = 0;
    if (part == 0) return own;
    if (part == 1) return r.window + own;
    if (section < r.n_sections)
        return __ldcg(p.visit.list + ((size_t)seq_head * p.visit.max_sections + section) * SL_BUCKET_SPAN_ROWS + own);
    *head = section - r.n_sections;
    size_t at = ((size_t)seq_head * p.visit.group + *head) * p.n_drawn + own;
    *weight = __ldcg(p.weight + at);
    return __ldcg(p.draw + at);
}

// ---- one warp ----

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&x;
}

// DRAWS: some rows are drawn rows of one query head.
template <int DIM, bool DRAWS> struct bucket_attender {
    enum {
        REGS = DIM / 8,           // of a row
        PIECE = DIM % 32 ? 4 : 8, // channels of a load
        PIECE_REGS = PIECE / 2,
    };
    uint32_t q[REGS];
    float o[REGS][2]; // head g, channels channel_of(r) and the next one
    float m, l;       // of head g; l: of the lane's rows

    static __device__ int channel_of(int r) {
        return r / PIECE_REGS * 4 * PIECE + threadIdx.x % 4 * PIECE + r % PIECE_REGS * 2;
    }

    // row: NULL: zeros.
    static __device__ void load(const bf16 *row, uint64_t policy, uint32_t to[REGS]) {
        int t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < REGS / PIECE_REGS; i++) {
            const bf16 *from = row + i * 4 * PIECE + t * PIECE;
            if constexpr (PIECE == 8) {
                uint4 x = row ? load_part((const uint4 *)from, policy) : make_uint4(0, 0, 0, 0);
                to[4 * i] = x.x, to[4 * i + 1] = x.y, to[4 * i + 2] = x.z, to[4 * i + 3] = x.w;
            } else {
                uint2 x = row ? load_part((const uint2 *)from, policy) : make_uint2(0, 0);
                to[2 * i] = x.x, to[2 * i + 1] = x.y;
            }
        }
    }

    // queries: [group][DIM]
    __device__ void begin(const bf16 *queries, int group) {
        int g = threadIdx.x % 32 / 4;
        load(g < group ? queries + g * DIM : NULL, sl_l2_policy(SL_L2_ANY), q);
#pragma unroll
        for (int r = 0; r < REGS; r++) o[r][0] = o[r][1] = 0;
        m = -INFINITY, l = 0;
    }

    static __device__ void scores_of(const uint32_t q[REGS], const uint32_t k[REGS], float scale, float s[2]) {
        float c[4] = {};
#pragma unroll
        for (int i = 0; i < REGS; i += 2) sl_mma_bf16(c, q[i], 0, q[i + 1], 0, k[i], k[i + 1]);
        s[0] = c[0] * scale, s[1] = c[1] * scale;
    }

    // Adds 16 rows. Lanes 0 to 15 (and 16 to 31 again) hold one row each: `at`, its number in the pool, or -1; head, weight.
    __device__ void add(const attend_buckets_params &p, int at, int head, float weight) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        uint32_t k[2][REGS], v[2][REGS];
        uint64_t policy = sl_l2_policy(SL_L2_FIRST_OUT); // draw_rows.cuh, gather: why these rows leave the L2 cache first
        int own[2] = {__shfl_sync(~0u, at, g), __shfl_sync(~0u, at, g + 8)};
#pragma unroll
        for (int i = 0; i < 2; i++) load(own[i] >= 0 ? k_of_row<DIM>(p.k, p.host, own[i]) : NULL, policy, k[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) load(own[i] >= 0 ? v_of_row<DIM>(p.v, p.host, own[i]) : NULL, policy, v[i]);
        count_fetched(p.visit.stats, at, 32 / TILE_ROWS);
        float s[4];
        scores_of(q, k[0], p.scale, s);
        scores_of(q, k[1], p.scale, s + 2);
        float most = m;
#pragma unroll
        for (int i = 0; i < 4; i++) { // score i is that of row 2 t + i % 2 + 8 (i / 2)
            int row = 2 * t + i % 2 + i / 2 * 8, is_row = __shfl_sync(~0u, at, row) >= 0;
            if (DRAWS) {
                int of = __shfl_sync(~0u, head, row);
                s[i] += __shfl_sync(~0u, weight, row);
                is_row &= of == ALL_HEADS || of == g;
            }
            s[i] = is_row ? s[i] : -INFINITY;
            most = fmaxf(most, s[i]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        float base = most == -INFINITY ? 0 : most, factor = exp2f(m - base), mass[4];
        m = most;
#pragma unroll
        for (int i = 0; i < 4; i++) mass[i] = exp2f(s[i] - base);
        uint32_t low = pack_bf16(mass[0], mass[1]), high = pack_bf16(mass[2], mass[3]);
        l = l * factor + sl_widen((bf16)low) + sl_widen((bf16)(low >> 16)) + sl_widen((bf16)high) +
            sl_widen((bf16)(high >> 16));
#pragma unroll
        for (int r = 0; r < REGS; r++) {
            float c[4] = {o[r][0] * factor, o[r][1] * factor, 0, 0};
            sl_mma_bf16(c, low, 0, high, 0, sl_transpose_b16(v[0][r]), sl_transpose_b16(v[1][r]));
            o[r][0] = c[0], o[r][1] = c[1];
        }
    }
};

// ---- merging ----

template <int DIM> struct bucket_space {
    row_parts parts;
    alignas(float2) float o[BUCKET_WARPS][GROUP_MAX][DIM]; // stored in pairs; row_parts is an odd number of ints
    float2 ml[BUCKET_WARPS][GROUP_MAX];
    float2 chunks[BUCKET_CHUNKS][GROUP_MAX]; // (maximum, sum); later x is the factor of the chunk
    float sum[GROUP_MAX];
    int is_last;
};

// Factor from masses relative to 2^m to masses relative to 2^most.
__device__ float rescale(float m, float most) {
    return m == -INFINITY ? 0 : exp2f(m - most);
}

template <int DIM, bool DRAWS> __device__ void store_warp(const bucket_attender<DIM, DRAWS> &a, bucket_space<DIM> *s) {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float l = a.l + __shfl_xor_sync(~0u, a.l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    if (t == 0) s->ml[warp][g] = make_float2(a.m, l);
#pragma unroll
    for (int r = 0; r < a.REGS; r++) *(float2 *)&s->o[warp][g][a.channel_of(r)] = make_float2(a.o[r][0], a.o[r][1]);
}

// Adds the warps' results in order. Stores the output if this is the only chunk, otherwise a partial result.
template <int DIM>
__device__ void merge_warps(const attend_buckets_params &p, const bucket_space<DIM> *s, size_t seq_head, int chunk,
                            bool is_all) {
    int group = p.visit.group;
    for (int i = threadIdx.x; i < group * DIM; i += BUCKET_THREADS) {
        int g = i / DIM, d = i % DIM;
        float most = -INFINITY, l = 0, o = 0;
        for (int w = 0; w < BUCKET_WARPS; w++) most = fmaxf(most, s->ml[w][g].x);
        for (int w = 0; w < BUCKET_WARPS; w++) {
            float factor = rescale(s->ml[w][g].x, most);
            // A warp whose scores are all NaN has no maximum; its sums are NaN.
            if (isnan(s->ml[w][g].y)) factor = s->ml[w][g].y;
            l += factor * s->ml[w][g].y, o += factor * s->o[w][g][d];
        }
        if (is_all) {
            p.out[(seq_head * group + g) * DIM + d] = __bfloat16_as_ushort(__float2bfloat16_rn(o / l));
            continue;
        }
        size_t at = (seq_head * p.max_chunks + chunk) * group + g;
        __stcg(p.o + at * DIM + d, o);
        if (d == 0) __stcg(p.ml + at, make_float2(most, l));
    }
}

// out = sum_c 2^(m_c - m) o_c / sum_c 2^(m_c - m) l_c over the chunks c of the head, in order.
template <int DIM>
__device__ void merge_bucket_chunks(const attend_buckets_params &p, bucket_space<DIM> *s, size_t seq_head, int n_chunks) {
    int group = p.visit.group, tid = threadIdx.x;
    for (int i = tid; i < n_chunks * group; i += BUCKET_THREADS)
        s->chunks[i / group][i % group] = __ldcg(p.ml + seq_head * p.max_chunks * group + i);
    __syncthreads();
    if (tid < group) {
        float most = -INFINITY, sum = 0;
        for (int c = 0; c < n_chunks; c++) most = fmaxf(most, s->chunks[c][tid].x);
        for (int c = 0; c < n_chunks; c++) {
            float2 own = s->chunks[c][tid];
            float factor = isnan(own.y) ? own.y : rescale(own.x, most);
            s->chunks[c][tid].x = factor;
            sum += factor * own.y;
        }
        s->sum[tid] = sum;
    }
    __syncthreads();
    for (int i = tid; i < group * DIM / 4; i += BUCKET_THREADS) {
        int g = i / (DIM / 4);
        const float4 *from = (const float4 *)(p.o + seq_head * p.max_chunks * group * DIM) + i;
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int c = 0; c < n_chunks; c++) {
            float4 x = __ldcg(from + (size_t)c * group * (DIM / 4));
            float factor = s->chunks[c][g].x;
            o.x += factor * x.x, o.y += factor * x.y, o.z += factor * x.z, o.w += factor * x.w;
        }
        float l = s->sum[g];
        uint2 packed = make_uint2(pack_bf16(o.x / l, o.y / l), pack_bf16(o.z / l, o.w / l));
        *((uint2 *)(p.out + seq_head * group * DIM) + i) = packed;
    }
}

// ---- the kernel ----

// out = sum_j w_j e_j v_j / sum_j w_j e_j over the rows of a query head, e_j = 2^(q.k_j scale), w_j = 1 or the weight of a
// draw.
//
// Grid: (chunks, sequences * KV heads).
// Bytes: the rows of K and V once for all query heads of the group; 4 (DIM + 2) bytes of partial results for each query head
// and chunk, in the L2 cache.
// Order of reduction: a warp's rows, the lanes of a head, the warps, the chunks, each in order.
// Error: as dense_decode_ring_kernel.
template <int DIM, bool DRAWS>
__global__ void __launch_bounds__(BUCKET_THREADS, 3) attend_buckets_kernel(const attend_buckets_params p) {
    __shared__ __align__(16) bucket_space<DIM> s;
    sl_start_next();
    sl_wait_previous();
    size_t seq_head = blockIdx.y;
    const sl_row row = p.visit.rows[seq_head / p.visit.n_kv_heads];
    visit_range r = range_of(p.visit, row);
    if (threadIdx.x < 32) find_parts(p, r, (int)seq_head, &s.parts);
    __syncthreads();
    int n = s.parts.start[s.parts.n_parts], each = bucket_chunk_rows(n), n_chunks = ceil_div(n, each), chunk = blockIdx.x;
    if (chunk >= n_chunks) return;
    int warp = threadIdx.x / 32, lane_row = threadIdx.x % TILE_ROWS, end = min((chunk + 1) * each, n);
    bucket_attender<DIM, DRAWS> a;
    a.begin(p.visit.q + seq_head * p.visit.group * DIM, p.visit.group);
    for (int first = chunk * each + warp * TILE_ROWS; first < end; first += PASS_ROWS) {
        int head = ALL_HEADS, i = first + lane_row;
        float weight = 0;
        int j = i < end ? row_at(p, r, (int)seq_head, &s.parts, i, &head, &weight) : -1;
        if (j >= 0)
            j = mark_row((row.pages[j / SL_PAGE] * p.visit.n_kv_heads + (int)seq_head % p.visit.n_kv_heads) * SL_PAGE +
                             j % SL_PAGE,
                         j / SL_PAGE, row.position / SL_PAGE);
        a.add(p, j, head, weight);
    }
    store_warp(a, &s);
    __syncthreads();
    merge_warps<DIM>(p, &s, seq_head, chunk, n_chunks == 1);
    if (n_chunks == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        s.is_last = sl_add_ordered(p.done + seq_head, 1) == n_chunks - 1;
        if (s.is_last) p.done[seq_head] = 0;
    }
    __syncthreads();
    if (s.is_last) merge_bucket_chunks<DIM>(p, &s, seq_head, n_chunks);
}

// max_rows: most rows of a KV head.
static void take_bucket_partials(arena *a, attend_buckets_params *p, int n_seqs, size_t max_rows) {
    size_t seq_heads = (size_t)n_seqs * p->visit.n_kv_heads;
    p->max_chunks = (int)min((max_rows + CHUNK_ROWS_LEAST - 1) / CHUNK_ROWS_LEAST, (size_t)BUCKET_CHUNKS);
    p->ml = a->take<float2>(seq_heads * p->max_chunks * p->visit.group);
    p->o = a->take<float>(seq_heads * p->max_chunks * p->visit.group * p->visit.head_dim);
}

template <int DIM> static void launch_attend_buckets(const attend_buckets_params &p, cudaStream_t stream) {
    sl_launch(p.n_drawn ? attend_buckets_kernel<DIM, true> : attend_buckets_kernel<DIM, false>,
              dim3(p.max_chunks, p.visit.n_seqs * p.visit.n_kv_heads), dim3(BUCKET_THREADS), 0, stream, p);
}

} // namespace

#endif
