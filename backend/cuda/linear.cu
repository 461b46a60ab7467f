// backend/cuda/linear.cu - the linear layers of a decode step, and RMSNorm: see linear.h.
// The naive versions are in tests/cuda/naive.h: naive_linear and naive_rmsnorm.
//
// A decode step reads every weight once and computes little with it, so the step takes as long as reading the weights. Device
// memory must stay busy within a kernel and between kernels. Therefore each multiprocessor runs one thread block, which
// computes a share of the matrix. Weights are copied to rings in shared memory. A kernel starts to fill its rings before the
// previous kernel has ended. For this early start, thread blocks of two kernels must run on one multiprocessor at the same
// time:
//   - A thread block takes less than a half and more than a third of a multiprocessor's shared memory and registers: two fit,
//     three do not.
//   - There are as many thread blocks as multiprocessors. With fewer, two blocks of one kernel may share a multiprocessor. Each
//     of the two gets half of the bandwidth, and the other blocks wait for these two (128 blocks on 132 multiprocessors: 6.6 us
//     more per kernel).
//   - For the same reason two blocks of one kernel must not run on one multiprocessor when blocks of the neighbouring kernels
//     have ended there. Therefore every other kernel (SL_LINEAR_ADD) requests a little more than half of the shared memory. Two
//     blocks of such a kernel do not fit on one multiprocessor, and only one block of the next kernel fits there with one of
//     them. Without this rule a step at 4k took 5.7 or 6.7 ms at random.
//   - Every kernel of the step requests the same split of L1 cache and shared memory (sl_launch).
//
// Where GPUs have clusters of thread blocks, linear_cluster.cu computes more than 16 rows.
//
// Refuses: more than SL_LINEAR_ROWS rows (cuBLASLt computes the matrix products of prefill), n_in that is not a multiple of 8.
#include "backend/cuda/linear_endings.cuh"

namespace {

enum {
    WARPS = 4,  // of a thread block; each computes a part of n_in
    LEAVES = 8, // of a row of the whole matrix
    THREADS = 32 * WARPS,
    TILES = 3,              // tiles that use one load of x; at most WARPS. 6144 rows are 3 tiles per thread block on 132
    PITCH = CHUNK * 2 + 32, // bytes between rows of a stage, see ring::fetch
    STAGE = TILE * PITCH,   // bytes of a ring stage, which holds one chunk of one tile
    // Of a thread. Two thread blocks must fit on a multiprocessor, and a block of RMSNorm with them (128 threads of 64
    // registers). Without the bound, blocks for 17 rows and more take 216, and a step 0.6 to 0.9 ms more.
    MOST_REGISTERS = 192,
};

// Stages of a ring: as many as two thread blocks have room for. With 5, 64 KB of weights are in flight on a multiprocessor
// while it reads 16 KB.
template <int NT> constexpr int STAGES = NT <= 2 ? 5 : 4;

// Copies 16 bytes from device memory to shared memory asynchronously; writes zeros when they do not exist. policy: the L2 cache
// evicts weights first, because no other kernel of the step reads them.
__device__ __forceinline__ void copy_16(uint32_t to, const bf16 *from, bool exists, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(exists ? 16 : 0), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

// What a warp computes: the chunks of its leaves, of some tiles. The columns of a rank (n_ranks) are LEAVES / n_ranks leaves,
// so with 4 ranks two warps have them, and with 8 ranks one. The other warps compute other tiles beside them.
struct share {
    int first, second, end; // chunks: the first leaf, and the second one, which may be empty
    int n_beside, beside;   // tiles that the warps of a thread block compute at a time; the one of this warp
    __device__ int tile(int i) const { return i * n_beside + beside; }
};

template <sl_linear_end END> __device__ __forceinline__ share share_of(const sl_cuda_linear &p, int warp) {
    const int n_ranks = END == SL_LINEAR_STORE ? max(p.n_ranks, 1) : 1, n_beside = max(n_ranks / 2, 1);
    const int leaves = LEAVES / n_ranks, warps = WARPS / n_beside; // of a tile
    const int beside = n_beside == 1 ? 0 : warp / warps, w = warp - beside * warps;
    const int first = leaves * w / warps, end = leaves * (w + 1) / warps, n = (p.n_in + CHUNK - 1) / CHUNK;
    return {n * first / leaves, n * min(first + 1, end) / leaves, n * end / leaves, n_beside, beside};
}

// The weights of one warp in flight: STAGES of its chunks. The order of fetches is the order of use: for each TILES tiles, for
// each chunk of the warp, for each of these tiles. Only one warp fills and reads a ring, so no warp waits for another warp.
template <sl_linear_end END, int N_STAGES> struct ring {
    const sl_cuda_linear &p;
    const int lane, end;        // `end`: the tile after the last one
    const share own;            // of this warp
    const uint32_t stages;      // address in shared memory
    int tile, n, chunk, i;      // the next fetch: chunk `chunk` of tile + i, where i < n <= TILES
    int fill_stage, read_stage; // the next stage to fill, and to read
    uint64_t policy;

    __device__ ring(const sl_cuda_linear &p, const void *stages, int lane, const share &own, int begin, int end)
        : p(p), lane(lane), end(own.first < own.end ? end : begin), own(own),
          stages((uint32_t)__cvta_generic_to_shared(stages)), tile(begin), n(min(TILES, end - begin)), chunk(own.first), i(0),
          fill_stage(0), read_stage(0), policy(sl_l2_policy(SL_L2_FIRST_OUT)) {}

    // Fetches the next chunk of a tile, if there is one. Closes a group of copies in both cases, because next() counts the
    // groups.
    //
    // One instruction copies two rows of 256 bytes. Rows 0 to 7 of a stage hold rows 0, 2, 1, 3, 4, 6, 5, 7 of the first half
    // of the tile, rows 8 to 15 those of the second half. The eight lanes of a 16-byte read need rows g and g + 1 of W. These
    // two rows lie 2 rows apart in the stage, and 2 PITCH is an odd number of 64 bytes. So they lie in opposite halves of the
    // 32 banks, and there is no bank conflict. PITCH is a multiple of 32 bytes, because the L2 cache delivers 32 bytes at a
    // time: if their two places of 16 bytes lie in different 32 bytes of shared memory, they are delivered twice.
    // Elements after n_in and rows after n_out are zeros.
    __device__ __forceinline__ void fetch() {
        if (tile < end) {
            const tile_rows rows = ending<END>::rows(p, own.tile(tile + i));
            const int piece = lane % 16, k = chunk * CHUNK + piece * 8, second = lane / 16;
            const uint32_t to = stages + fill_stage * STAGE + second * PITCH + piece * 16;
            const bf16 *lo = (const bf16 *)p.w + ((size_t)(rows.lo + 2 * second) * p.n_in + k);
            const bf16 *hi = (const bf16 *)p.w + ((size_t)(rows.hi + 2 * second) * p.n_in + k);
#pragma unroll
            for (int s = 0; s < 8; s++) { // rows 2 s and 2 s + 1 of the stage
                const int r = s / 2 % 2 * 4 + s % 2;
                const bool exists = k < p.n_in && r + 2 * second < (s < 4 ? rows.n_lo : rows.n_hi);
                copy_16(to + 2 * s * PITCH, (s < 4 ? lo : hi) + (size_t)r * p.n_in, exists, policy);
            }
            fill_stage = fill_stage + 1 == N_STAGES ? 0 : fill_stage + 1;
            if (++i == n) {
                i = 0;
                if (++chunk == own.end) {
                    chunk = own.first;
                    tile += n;
                    n = min(TILES, end - tile);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest stage and reads it. w[0], w[1]: rows g and g + 8 of the tile; 8 elements per lane and step.
    __device__ __forceinline__ void next(uint4 (&w)[2][STEPS]) {
        asm volatile("cp.async.wait_group %0;" ::"n"(N_STAGES - 1) : "memory");
        __syncwarp(); // the copies of the other lanes have also landed
        const int g = lane / 4, t = lane % 4;
        const uint32_t row = stages + read_stage * STAGE + (g / 4 * 4 + g % 2 * 2 + g / 2 % 2) * PITCH + t * 16;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            w[0][s] = load_shared(row + s * STEP * 2);
            w[1][s] = load_shared(row + s * STEP * 2 + 8 * PITCH);
        }
        read_stage = read_stage + 1 == N_STAGES ? 0 : read_stage + 1;
    }

    // Fetches a chunk into the stage that next() has just read.
    __device__ __forceinline__ void refill() {
        __syncwarp(); // all lanes have read the stage
        fetch();
    }
};

// A chunk of x [8 NT][128], spread over the warp: rows g and, for NT = 2, g + 8; the 8 elements of this lane in each step.
template <int NT> using x_chunk = uint4[NT][STEPS];

// Reads past L1, which may hold x of an earlier step. Rows after n_rows are zeros, and their memory is not read.
template <int NT> __device__ __forceinline__ void load_x(const sl_cuda_linear &p, int lane, int chunk, x_chunk<NT> &x) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int row = nt * 8 + lane / 4, k = chunk * CHUNK + s * STEP + lane % 4 * 8;
            const bool exists = row < p.n_rows && k < p.n_in;
            x[nt][s] = exists ? __ldcg((const uint4 *)(p.x + (size_t)row * p.n_in + k)) : uint4{0, 0, 0, 0};
        }
}

// sum += a chunk of a tile of W times a chunk of x. The 8 consecutive elements of a lane serve as k = 2 t, 2 t + 1, 2 t + 8,
// 2 t + 9 of two instructions. Any assignment of elements to k is correct if W and x use the same assignment. The two sums are
// independent, so an instruction need not wait for the previous instruction.
template <int NT>
__device__ __forceinline__ void multiply(const uint4 (&w)[2][STEPS], const x_chunk<NT> &x, float4 (&sum)[NT]) {
    float4 odd[NT] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            sl_mma_bf16(&sum[nt].x, w[0][s].x, w[1][s].x, w[0][s].y, w[1][s].y, x[nt][s].x, x[nt][s].y);
            sl_mma_bf16(&odd[nt].x, w[0][s].z, w[1][s].z, w[0][s].w, w[1][s].w, x[nt][s].z, x[nt][s].w);
        }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
        sum[nt].x += odd[nt].x, sum[nt].y += odd[nt].y, sum[nt].z += odd[nt].z, sum[nt].w += odd[nt].w;
}

// Stores the sums of this warp's first leaf to its parts, or adds those of the second leaf to them, and clears the sums.
// parts: of this lane, [TILES][NT] with a distance of 32
template <int NT> __device__ __forceinline__ void end_leaf(bool is_second, int n, float4 *parts, float4 (&sum)[TILES][NT]) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (i >= n) continue;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float4 *part = parts + (i * NT + nt) * 32;
            *part = is_second ? add(*part, sum[i][nt]) : sum[i][nt];
            sum[i][nt] = {0, 0, 0, 0};
        }
    }
}

// y = W x, then the ending.
//
// Grid: one thread block per multiprocessor. Thread block b computes the tiles (16 rows of W each) [n_tiles b / grid,
// n_tiles (b + 1) / grid), TILES at a time. NT: 1 for up to 8 rows of x, 2 for up to 16, 4 for up to 32.
//
//   warp      loads                                           computes                           ends
//   0 .. 3    a quarter of the chunks, two leaves, of all     its part of the sums of all tiles  tile `warp` of each TILES:
//             tiles: W by cp.async to its ring, x to          (matrix instructions)              adds 4 parts, stores y
//             registers
//
// Shared memory (bytes):
//   rings  [WARPS][STAGES][STAGE]              73,728 or 92,160   STAGE: 16 rows of 256 + 32
//   parts  [WARPS][TILES][NT][32] float4        6,144 to 24,576   the sums of the warps
//   kv_row [SL_LINEAR_ROWS] size_t                          256   static
//   factor [SL_LINEAR_ROWS] float                           128   static
//
// One tile, n_in = 4096: it has 32 chunks of 128 elements, and warp 1 gets the chunks 8 to 15. For each chunk it reads
// one stage: lane (g, t) reads elements 8 t .. 8 t + 7 of each 32 of the rows g and g + 8, 64 elements in all. It multiplies
// them with the same elements of the rows g (and g + 8, ...) of x by 8 NT instructions (m16n8k16). After 8 chunks each lane has
// 4 NT sums: rows g, g + 8 of the tile by rows 2 t, 2 t + 1 (+ 8, ...) of x. Warp i then adds the four warps' parts of tile i.
//
// Needs: w and x 16-byte aligned, n_in a multiple of 8; with RoPE head_dim a multiple of 16.
// Bytes: W once (2 n_out n_in) from device memory, x once per TILES tiles (2 n_rows n_in) from L2.
// Rate: `sleigh bench linear --load-format dummy` of Llama-3.1-8B: the matrices of the layers (13.96 GB) take 1.06, 1.11 and
// 1.26 times as long as a kernel that only reads them, for 1, 8 and 16 rows (H200, 1 December 2026). 16 rows take longer by the
// reads of x: the L2 cache delivers weights and x together at no more than 4.7 TB/s. Four or more tiles for each load of x, two
// groups of warps that share the rings, or the next x in registers with 32 rows do not help.
// Reduction order: the n chunks of a row form eight leaves: leaf l has the chunks [n l / 8, n (l + 1) / 8). A leaf adds its
// chunks in order. Within a chunk an instruction adds 16 products; four instructions add to the running sum, and four to a
// second sum, which is then added. Leaves are added as a binary tree: 0 + 1, 2 + 3, ... The columns of one of 2, 4 or 8 ranks
// are whole leaves (n_ranks), and their sum is a part of this tree. (With 16 leaves a warp ends four leaves for each tile: 16
// rows took 5% longer.)
// The order depends on n_in only. Columns of a matrix instruction do not mix. So other rows of x, and the place of a row in x,
// do not change the bits of the row.
template <sl_linear_end END, int NT>
__global__ void __maxnreg__(MOST_REGISTERS) linear_ring_kernel(const __grid_constant__ sl_cuda_linear p, int n_tiles) {
    extern __shared__ __align__(128) char shared[];
    __shared__ size_t kv_row[SL_LINEAR_ROWS];
    __shared__ float factor[SL_LINEAR_ROWS];
    float4 *parts = (float4 *)(shared + WARPS * STAGES<NT> * STAGE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float4 *own_parts = parts + warp * TILES * NT * 32 + lane;
    const share own = share_of<END>(p, warp);
    const tile_range tiles(n_tiles);

    ring<END, STAGES<NT>> weights(p, shared + warp * STAGES<NT> * STAGE, lane, own, tiles.begin, tiles.end);
    for (int s = 0; s < STAGES<NT>; s++) weights.fetch();
    sl_start_next(); // the rings of the next kernel fill while this kernel computes
    sl_wait_previous();

    // The address of a token's row in the pages takes two dependent loads. Issue the load of x between them, to hide latency.
    const bool has_row = END == SL_LINEAR_ROPE_APPEND && threadIdx.x < p.n_rows;
    const int32_t position = has_row ? __ldcg(&p.rows[threadIdx.x].position) : 0;
    const int32_t *pages = has_row ? (const int32_t *)__ldcg((const uintptr_t *)&p.rows[threadIdx.x].pages) : nullptr;
    constexpr bool AHEAD = NT <= 2; // registers hold the next chunk of x beside the one in use
    x_chunk<NT> x, x_next;
    if (own.first < own.end) load_x<NT>(p, lane, own.first, x);
    if (END != SL_LINEAR_ADD) find_factors<WARPS>(p, warp, lane, factor);
    const int32_t page = has_row ? __ldcg(pages + position / SL_PAGE) : 0;

    for (int tile = tiles.begin; tile < tiles.end; tile += TILES) {
        const int n = min(TILES, tiles.end - tile);
        float2 before[NT][2] = {};
#pragma unroll
        for (int c = 0; c < 2 * NT; c++) {
            const int col = c / 2 * 8 + 2 * t + c % 2;
            if (warp < n && col < p.n_rows) before[c / 2][c % 2] = ending<END>::before(p, tile + warp, g, col);
        }

        const ushort2 next_w = warp < n ? next_weights<END>(p, tile + warp, g) : ushort2{0, 0};

        if (has_row) kv_row[threadIdx.x] = kv_row_of(p, threadIdx.x, page, position);
        float4 sum[TILES][NT] = {};
        bool is_second = false;
        for (int chunk = own.first; chunk < own.end; chunk++) {
            const int next_chunk = chunk + 1 < own.end ? chunk + 1 : own.first; // after the last one: for the next tiles
            if (AHEAD) load_x<NT>(p, lane, next_chunk, x_next);
            if (!is_second && chunk >= own.second) {
                // The parts of the previous tiles have been read. For a group of tiles, each warp ends its first leaf once,
                // here or behind the loop, so all warps meet once in one of the two __syncthreads.
                __syncthreads();
                end_leaf<NT>(false, n, own_parts, sum);
                is_second = true;
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                if (i >= n) continue;
                uint4 w[2][STEPS];
                weights.next(w);
                multiply<NT>(w, x, sum[i]);
                if (!AHEAD && i == n - 1) load_x<NT>(p, lane, next_chunk, x);
                weights.refill();
            }
#pragma unroll
            for (int nt = 0; AHEAD && nt < NT; nt++)
#pragma unroll
                for (int s = 0; s < STEPS; s++) x[nt][s] = x_next[nt][s];
        }
        if (!is_second) {
            __syncthreads();
            end_leaf<NT>(false, n, own_parts, sum);
        }
        end_leaf<NT>(true, n, own_parts, sum);
        __syncthreads();

        // Warp i ends tile i.
        if (warp >= n) continue;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float4 y[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) y[w] = parts[((w * TILES + warp) * NT + nt) * 32 + lane];
            const auto end = [&](int place, const float4 &sum) { // the tile at this place of those beside each other
                end_tile<END>(p, (tile + warp) * own.n_beside + place, lane, nt * 8, sum, before[nt], next_w, factor, kv_row);
            };
            const float4 low = add(y[0], y[1]), high = add(y[2], y[3]);
            if (own.n_beside == 1)
                end(0, add(low, high));
            else if (own.n_beside == 2)
                end(0, low), end(1, high);
            else
                for (int w = 0; w < WARPS; w++) end(w, y[w]);
        }
    }
}

template <int NT> constexpr int SHARED_BYTES = WARPS *STAGES<NT> *STAGE + (int)sizeof(float4) * WARPS *TILES *NT * 32;

template <sl_linear_end END, int NT> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    const int n_beside = max(p.n_ranks / 2, 1);
    int shared = SHARED_BYTES<NT>, n_tiles = (n_tiles_of<END>(p) + n_beside - 1) / n_beside;
    if (END == SL_LINEAR_ADD || p.n_ranks > 1) shared = max(shared, over_half());
    sl_launch(linear_ring_kernel<END, NT>, dim3(min(n_tiles, sl_multiprocessors())), dim3(THREADS), shared, stream, p, n_tiles);
}

template <sl_linear_end END> void launch(const sl_cuda_linear &p, cudaStream_t stream) {
    if (p.n_rows <= 8)
        launch<END, 1>(p, stream);
    else if (p.n_rows <= 16)
        launch<END, 2>(p, stream);
    else
        launch<END, 4>(p, stream);
}

enum { NORM_LANES = 512 }; // parts of a row whose sums are added

// out = bf16(x / sqrt(mean(x^2) + eps) * w)
//
// Grid: one thread block per row, NORM_LANES / SHARE threads. The row stays in registers: lane i of the NORM_LANES holds
// PER_LANE groups of 4 elements, and the groups lie 4 NORM_LANES apart. Thread i has the lanes i, i + NORM_LANES / SHARE, ...
// A block for up to 4096 elements takes 8,192 registers, and fits beside two blocks of this file's linear layers, but not of
// packed_linear.cu.
// Needs: n a multiple of 4, at most 4 PER_LANE NORM_LANES; x 16-byte, w and out 8-byte aligned.
// Bytes: reads 6 n and writes 2 n per row.
// Reduction order: the elements of a lane in order, then a tree over 32 lanes, then a tree over their sums.
template <int PER_LANE, int SHARE>
__global__ void __launch_bounds__(NORM_LANES / SHARE, 1024 / (NORM_LANES / SHARE))
    rmsnorm_row_kernel(const float *x, const bf16 *w, int n, float eps, bf16 *out) {
    enum { THREADS = NORM_LANES / SHARE, SUMS = NORM_LANES / 32, PARTS = PER_LANE * SHARE };
    __shared__ float sums[SUMS];
    x += (size_t)blockIdx.x * n, out += (size_t)blockIdx.x * n;
    uint2 weights[PARTS];
    float4 v[PARTS]; // part s * SHARE + k: group s of the thread's lane k
    sl_start_next();
    auto first_of = [&](int part) { return (part / SHARE * NORM_LANES + part % SHARE * THREADS + (int)threadIdx.x) * 4; };
#pragma unroll
    for (int s = 0; s < PARTS; s++) {
        const int i = first_of(s);
        weights[s] = i < n ? *(const uint2 *)(w + i) : uint2{0, 0};
    }
    sl_wait_previous();
#pragma unroll
    for (int s = 0; s < PARTS; s++) {
        const int i = first_of(s);
        v[s] = i < n ? __ldcg((const float4 *)(x + i)) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int k = 0; k < SHARE; k++) {
        float sum = 0;
#pragma unroll
        for (int s = k; s < PARTS; s += SHARE) sum += v[s].x * v[s].x + v[s].y * v[s].y + v[s].z * v[s].z + v[s].w * v[s].w;
        sum = sl_sum_lanes(sum);
        if (threadIdx.x % 32 == 0) sums[(k * THREADS + threadIdx.x) / 32] = sum;
    }
    __syncthreads();
    float sum = sums[threadIdx.x % SUMS];
    for (int d = SUMS / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float scale = 1 / sqrtf(sum / n + eps);
#pragma unroll
    for (int s = 0; s < PARTS; s++) {
        const int i = first_of(s);
        if (i >= n) continue;
        const bf16 y[4] = {to_bf16(v[s].x * scale * sl_widen((bf16)weights[s].x)),
                           to_bf16(v[s].y * scale * sl_widen((bf16)(weights[s].x >> 16))),
                           to_bf16(v[s].z * scale * sl_widen((bf16)weights[s].y)),
                           to_bf16(v[s].w * scale * sl_widen((bf16)(weights[s].y >> 16)))};
        *(uint2 *)(out + i) = uint2{y[0] | (uint32_t)y[1] << 16, y[2] | (uint32_t)y[3] << 16};
    }
}

template <int PER_LANE, int SHARE>
void launch_norm(const float *x, const bf16 *w, int n_rows, int n, float eps, bf16 *out, cudaStream_t stream) {
    sl_launch(rmsnorm_row_kernel<PER_LANE, SHARE>, dim3(n_rows), dim3(NORM_LANES / SHARE), 0, stream, x, w, n, eps, out);
}

} // namespace

extern "C" void sl_cuda_linear_decode(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_linear &p = *args;
    SL_CHECK(p.n_rows <= SL_LINEAR_ROWS);
    if (sl_cuda_linear_cluster(args, stream)) return;
    by_ending(p, [&](auto end) { launch<end()>(p, stream); });
}

// GPUs of compute capability 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a thread block.
extern "C" int sl_cuda_linear_rows(void) {
    const int fixed = SL_LINEAR_ROWS * (int)(sizeof(size_t) + sizeof(float)); // kv_row, factor
    return SHARED_BYTES<4> + fixed <= sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin) ? SL_LINEAR_ROWS : 16;
}

extern "C" void sl_cuda_rmsnorm(const float *x, const bf16 *w, int n_rows, int n, float eps, bf16 *out, cudaStream_t stream) {
    SL_CHECK(n % 4 == 0 && n <= 4 * 8 * NORM_LANES);
    if (n <= 4 * NORM_LANES)
        launch_norm<1, 4>(x, w, n_rows, n, eps, out, stream);
    else if (n <= 8 * NORM_LANES)
        launch_norm<2, 4>(x, w, n_rows, n, eps, out, stream);
    else if (n <= 16 * NORM_LANES)
        launch_norm<4, 2>(x, w, n_rows, n, eps, out, stream);
    else
        launch_norm<8, 1>(x, w, n_rows, n, eps, out, stream);
}
