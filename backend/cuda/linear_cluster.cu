// backend/cuda/linear_cluster.cu - y = W x for 17 to SL_LINEAR_ROWS rows of x, on GPUs with clusters of thread blocks (compute
// capability 9.0 and later): see linear.h. linear.cu has the kernel for fewer rows, and for other GPUs.
//
// In linear.cu every thread block reads all of x from the L2 cache for each three tiles, and with many rows its warps wait for
// these reads. In this file the two thread blocks of a cluster share the columns, and the four warps of a thread block share
// every chunk of x, which lies in shared memory. So a thread block reads half of x for each four or eight tiles.
//
// The rules about shared memory and registers at the head of linear.cu hold here too. The bits are those of linear.cu.
#include "backend/cuda/barrier.cuh"
#include "backend/cuda/linear_endings.cuh"

namespace {

enum {
    BLOCKS = 2,                     // thread blocks of a cluster; each has a half of the columns
    LEAVES = 8,                     // of a row of W, as in linear.cu
    BLOCK_LEAVES = LEAVES / BLOCKS, // of a thread block
    WARPS = 4,                      // of a thread block; each has other tiles
    THREADS = 32 * WARPS,
    ROW = CHUNK * (int)sizeof(bf16), // bytes of a row of a chunk in shared memory
    STAGE = TILE * ROW,              // bytes of a ring stage, which holds one chunk of one tile
    STAGES = 4,                      // of the ring of a warp
    X_SLOTS = 4,                     // chunks of x in shared memory
    SUM = 32 * (int)sizeof(float4),  // bytes of the sums of a tile for 8 rows of x
};

// Tiles of a warp in one pass over the columns. o and down have one tile for each warp of a cluster on 132 multiprocessors.
template <sl_linear_end END> constexpr int TILES = END == SL_LINEAR_ADD ? 1 : 2;

// Registers of a thread, so that two thread blocks fit on a multiprocessor, and a block of RMSNorm or attention with them (see
// linear.cu). For two tiles and 32 rows the compiler wants 203: with 192, gate and up takes 81 us, and 70 us with 203. The
// kernels before and after gate and up take at most 168, so 208 fit beside them. q, k and v would gain 2 us of 28, but
// attention runs beside it.
template <sl_linear_end END> constexpr int MOST_REGISTERS = END == SL_LINEAR_SWIGLU ? 208 : 192;

template <int NT> constexpr int X_CHUNK = NT * 8 * ROW; // bytes of a chunk of x

#if __CUDA_ARCH__ >= 900 // the kernel is empty in code for other GPUs

// The place of 16 bytes of a row. The halves of each 128 bytes change places in odd rows. Then the eight lanes of a 16-byte
// read, which need 64 bytes of two neighbouring rows, read all 32 banks once.
__device__ __forceinline__ uint32_t place_of(int row, int piece) {
    return row * ROW + (piece ^ row % 2 * 4) * 16;
}

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

// The weights of one warp in flight. The order of fetches is the order of use: for each pass, for each chunk of the thread
// block, for each tile of the warp. Only one warp fills and reads a ring.
template <sl_linear_end END> struct ring {
    const sl_cuda_linear &p;
    const int lane, first_chunk, end_chunk, end; // `end`: the tile after the last one of the cluster
    const uint32_t stages;                       // address in shared memory
    int tile, n, chunk, i;                       // the next fetch: chunk `chunk` of tile + WARPS i, where i < n
    int fill_stage, read_stage;                  // the next stage to fill, and to read
    uint64_t policy;

    // tile: the first tile of the warp
    __device__ ring(const sl_cuda_linear &p, uint32_t stages, int lane, int first_chunk, int end_chunk, int tile, int end)
        : p(p), lane(lane), first_chunk(first_chunk), end_chunk(end_chunk), end(first_chunk < end_chunk ? end : 0),
          stages(stages), tile(tile), n(tiles_at(tile, end)), chunk(first_chunk), i(0), fill_stage(0), read_stage(0),
          policy(sl_l2_policy(SL_L2_FIRST_OUT)) {}

    // How many tiles the warp takes in one pass. first: the first of them
    static __device__ int tiles_at(int first, int end) {
        return first >= end ? 0 : TILES<END> == 2 && first + WARPS < end ? 2 : 1;
    }

    // Fetches the next chunk of a tile, if there is one. Closes a group of copies in both cases, because next() counts the
    // groups. One instruction copies two rows of 256 bytes. Elements after n_in and rows after n_out are zeros.
    __device__ __forceinline__ void fetch() {
        if (tile < end) {
            const tile_rows rows = ending<END>::rows(p, tile + WARPS * i);
            const int piece = lane % 16, k = chunk * CHUNK + piece * 8, second = lane / 16;
            const uint32_t to = stages + fill_stage * STAGE + place_of(second, piece);
            const bf16 *lo = (const bf16 *)p.w + ((size_t)(rows.lo + second) * p.n_in + k);
            const bf16 *hi = (const bf16 *)p.w + ((size_t)(rows.hi + second) * p.n_in + k);
#pragma unroll
            for (int s = 0; s < 8; s++) { // rows 2 s and 2 s + 1 of the stage
                const int r = s % 4 * 2;
                const bool exists = k < p.n_in && r + second < (s < 4 ? rows.n_lo : rows.n_hi);
                const bf16 *from = (s < 4 ? lo : hi) + (size_t)r * p.n_in;
                asm volatile(
                    "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to + 2 * s * ROW),
                    "l"(from), "r"(exists ? 16 : 0), "l"(policy)
                    : "memory");
            }
            fill_stage = fill_stage + 1 == STAGES ? 0 : fill_stage + 1;
            if (++i == n) {
                i = 0;
                if (++chunk == end_chunk) {
                    chunk = first_chunk;
                    tile += WARPS * TILES<END>;
                    n = tiles_at(tile, end);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest stage and returns its address. After the warp has read the stage, it calls fetch().
    __device__ __forceinline__ uint32_t next() {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        __syncwarp(); // the copies of the other lanes have also landed
        const uint32_t stage = stages + read_stage * STAGE;
        read_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;
        return stage;
    }
};

// The chunks of x that a thread block reads, in order; all warps fill the slots together. With no more chunks than slots, they
// stay for all passes.
template <int NT> struct x_slots {
    const sl_cuda_linear &p;
    const int first_chunk, n; // of the thread block
    const uint32_t slots;     // address in shared memory
    uint64_t *full, *empty;   // [X_SLOTS] barriers

    __device__ bool is_resident() const { return n <= X_SLOTS; }

    // Copies the chunk of read `at`. Rows after n_rows are zeros, and their memory is not read.
    __device__ void fill(int at) {
        const int slot = at % X_SLOTS, chunk = first_chunk + at % n;
        const int piece = threadIdx.x % 16, k = chunk * CHUNK + piece * 8, first = threadIdx.x / 16;
        const uint32_t to = slots + slot * X_CHUNK<NT> + place_of(first, piece);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const int row = first + 8 * i;
            const bool exists = row < p.n_rows && k < p.n_in;
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to + i * 8 * ROW),
                         "l"(p.x + (exists ? (size_t)row * p.n_in + k : 0)), "r"(exists ? 16 : 0)
                         : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full + slot)) : "memory");
    }
};

// sum += a chunk of a tile of W times a chunk of x. The same instructions in the same order as in linear.cu. w, x: addresses in
// shared memory. even, odd: what this lane adds to them in even and in odd steps
template <int NT>
__device__ __forceinline__ void multiply(uint32_t w, uint32_t x, uint32_t even, uint32_t odd, float4 (&sum)[NT]) {
    float4 second[NT] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint32_t at = (s % 2 ? odd : even) + s / 2 * 128;
        const uint4 lo = load_shared(w + at), hi = load_shared(w + at + 8 * ROW);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const uint4 b = load_shared(x + at + nt * 8 * ROW);
            sl_mma_bf16(&sum[nt].x, lo.x, hi.x, lo.y, hi.y, b.x, b.y);
            sl_mma_bf16(&second[nt].x, lo.z, hi.z, lo.w, hi.w, b.z, b.w);
        }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) sum[nt] = add(sum[nt], second[nt]);
}

// The address of the same place in the shared memory of another thread block of the cluster.
__device__ __forceinline__ uint32_t address_at(uint32_t at, int block) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}

// Stores v in the shared memory of another thread block. When it has landed, the barrier there counts 16 bytes.
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, const float4 &v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
                 "r"(bar)
                 : "memory");
}
#endif

// y = W x, then the ending.
//
// Grid: clusters of two thread blocks, as many as there are pairs of multiprocessors. Cluster c computes the tiles
// [n_tiles c / clusters, n_tiles (c + 1) / clusters), 4 TILES in a pass. Block 0 of a cluster has the first four leaves of the
// columns, block 1 the others. NT: 3 for up to 24 rows of x, 4 for up to 32.
//
// One pass. Warp i has the tiles i and i + 4 of the pass. For each chunk of its thread block's columns it waits until all warps
// have copied the chunk of x to its slot. Then it multiplies a stage of its ring, for each tile. After the last leaf each of
// the two blocks has half of the sum. With two tiles, block b ends tile i + 4 b; with one tile, each block ends a half of the
// rows of x. So a block sends the other half of its sums to the other block, whose same warp waits for them, adds and stores y.
//
// The two buffers of received sums take turns. A block sends the sums of pass p + 2 after it has got those of pass p + 1. The
// other block has sent these after it had read what it got in pass p.
//
// Shared memory (bytes, NT = 3 and 4):
//   rings    [WARPS][STAGES][STAGE]            65,536
//   x        [X_SLOTS][8 NT][CHUNK] bf16       24,576   32,768
//   received [2][WARPS][NT][32] float4         12,288   16,384
//   kv_row, factor, barriers                      512   static
//
// Needs: as linear_ring_kernel in linear.cu, and clusters.
// Bytes: W once (2 n_out n_in) from device memory, and x once per 4 TILES tiles (2 n_rows n_in) from L2.
// Rate: the matrices of the layers of Llama-3.1-8B in a chain (a stand-alone program) take 1.44, 1.45 and 1.76 times as long
// as a kernel that only reads them for 17, 24 and 30 rows, and 1.67, 1.78 and 1.88 times with linear.cu (H200, 1 December
// 2026; for 30 rows with 192 registers for gate and up). With 16 rows both kernels take the same time. One row takes 1.33 in
// place of 1.14: the thread blocks of a cluster exchange sums, and all warps wait for the slowest one at each chunk of x.
// Reduction order: that of linear_ring_kernel. A thread block adds its four leaves as the tree (0 + 1) + (2 + 3).
template <sl_linear_end END, int NT>
__global__ void __maxnreg__(MOST_REGISTERS<END>) linear_cluster_kernel(const __grid_constant__ sl_cuda_linear p, int n_tiles) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    __shared__ size_t kv_row[SL_LINEAR_ROWS];
    __shared__ float factor[SL_LINEAR_ROWS];
    __shared__ uint64_t full[X_SLOTS], empty[X_SLOTS], received[2][WARPS];
    constexpr int N = TILES<END>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int block = blockIdx.x % BLOCKS, cluster = blockIdx.x / BLOCKS, n_clusters = gridDim.x / BLOCKS;
    const int n_chunks = (p.n_in + CHUNK - 1) / CHUNK;
    const int first_chunk = n_chunks * block / BLOCKS, end_chunk = n_chunks * (block + 1) / BLOCKS;
    const int begin = n_tiles * cluster / n_clusters, end = n_tiles * (cluster + 1) / n_clusters;

    const uint32_t memory = shared_address(shared);
    ring<END> weights(p, memory + warp * STAGES * STAGE, lane, first_chunk, end_chunk, begin + warp, end);
    x_slots<NT> x = {p, first_chunk, end_chunk - first_chunk, memory + WARPS * STAGES * STAGE, full, empty};
    const int sums_at = WARPS * STAGES * STAGE + X_SLOTS * X_CHUNK<NT> + warp * NT * SUM + lane * (int)sizeof(float4);
    if (threadIdx.x < X_SLOTS) barrier_init(full + threadIdx.x, THREADS), barrier_init(empty + threadIdx.x, WARPS);
    if (threadIdx.x >= 32 && threadIdx.x < 32 + 2 * WARPS) barrier_init(received[0] + threadIdx.x - 32, 1);
    barriers_made();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    for (int s = 0; s < STAGES; s++) weights.fetch();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); // both thread blocks have made their barriers
    sl_start_next();
    sl_wait_previous();

    const bool has_row = END == SL_LINEAR_ROPE_APPEND && threadIdx.x < p.n_rows;
    const int32_t position = has_row ? __ldcg(&p.rows[threadIdx.x].position) : 0;
    const int32_t *pages = has_row ? (const int32_t *)__ldcg((const uintptr_t *)&p.rows[threadIdx.x].pages) : nullptr;
    const int n_passes = (end - begin + WARPS * N - 1) / (WARPS * N);
    const int n_reads = x.is_resident() ? x.n : x.n * n_passes;
    for (int at = 0; at < min(n_reads, X_SLOTS); at++) x.fill(at);
    if (END != SL_LINEAR_ADD) find_factors<WARPS>(p, warp, lane, factor);
    const int32_t page = has_row ? __ldcg(pages + position / SL_PAGE) : 0;
    if (has_row) kv_row[threadIdx.x] = kv_row_of(p, threadIdx.x, page, position);

    const uint32_t even = place_of(g, t), odd = place_of(g, t + 4);
    int read = 0; // the next chunk of x
    for (int tile = begin + warp, pass = 0; pass < n_passes; pass++, tile += WARPS * N) {
        const int n = ring<END>::tiles_at(tile, end);
        // This block ends tile own_tile, for the 8 rows of x that is_own says.
        const int own = n == 2 ? block : 0, own_tile = tile + own * WARPS;
        auto is_own = [&](int i, int nt) { return (n == 2 ? i : nt * BLOCKS / NT) == block; };
        ushort2 next_w = {0, 0};
        float2 before[NT][2] = {};
        auto load_before = [&] {
            next_w = next_weights<END>(p, own_tile, g);
#pragma unroll
            for (int c = 0; c < 2 * NT; c++) {
                const int col = c / 2 * 8 + 2 * t + c % 2;
                if (col < p.n_rows && is_own(own, c / 2)) before[c / 2][c % 2] = ending<END>::before(p, own_tile, g, col);
            }
        };
        if (N == 1 && n > 0) load_before(); // with two tiles, no registers are left for it
        if (x.is_resident()) read = 0;

        float4 half[N][NT], pair[N][NT]; // the sums of the leaves so far, and of the last leaf of even number
#pragma unroll 1
        for (int leaf = 0, chunk = first_chunk; leaf < BLOCK_LEAVES; leaf++) {
            float4 sum[N][NT] = {};
            const int end_leaf = n_chunks * (BLOCK_LEAVES * block + leaf + 1) / LEAVES;
            for (; chunk < end_leaf; chunk++, read++) {
                const int slot = read % X_SLOTS, old = read - 1;
                if (!x.is_resident() && read > 0 && old + X_SLOTS < n_reads) { // refill the slot of the chunk before
                    barrier_wait(empty + old % X_SLOTS, old / X_SLOTS & 1);
                    x.fill(old + X_SLOTS);
                }
                barrier_wait(full + slot, read / X_SLOTS & 1);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (i >= n) continue;
                    multiply<NT>(weights.next(), x.slots + slot * X_CHUNK<NT>, even, odd, sum[i]);
                    __syncwarp(); // all lanes have read the stage
                    if (i == n - 1 && !x.is_resident() && lane == 0) barrier_arrive(empty + slot);
                    weights.fetch();
                }
                if (n == 0 && !x.is_resident() && lane == 0) barrier_arrive(empty + slot);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    const float4 v = sum[i][nt];
                    if (leaf % 2 == 0)
                        pair[i][nt] = v;
                    else if (leaf == 1)
                        half[i][nt] = add(pair[i][nt], v);
                    else
                        half[i][nt] = add(half[i][nt], add(pair[i][nt], v));
                }
        }
        if (pass == 0) __syncthreads(); // all warps have written factor and kv_row
        if (n == 0) continue;

        uint64_t *bar = &received[pass % 2][warp];
        const int at = sums_at + pass % 2 * WARPS * NT * SUM;
        const uint32_t to = address_at(memory + at, 1 - block), to_bar = address_at(shared_address(bar), 1 - block);
        int n_own = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                if (i >= n) continue;
                if (is_own(i, nt))
                    n_own++;
                else
                    send(to + nt * SUM, to_bar, half[i][nt]);
            }
        if (lane == 0) barrier_expect(bar, n_own * SUM);
        if (N > 1) load_before();
        barrier_wait(bar, pass / 2 & 1);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                if (i != own || !is_own(i, nt)) continue;
                const float4 other = *(const float4 *)(shared + at + nt * SUM);
                end_tile<END>(p, own_tile, lane, nt * 8, add(half[i][nt], other), before[nt], next_w, factor, kv_row);
            }
    }
#endif
}

// Returns 0 if the GPU has no clusters, or too little shared memory.
template <sl_linear_end END, int NT> int launch(const sl_cuda_linear &p, cudaStream_t stream) {
    void (*kernel)(sl_cuda_linear, int) = linear_cluster_kernel<END, NT>;
    int shared = WARPS * STAGES * STAGE + X_SLOTS * X_CHUNK<NT> + 2 * WARPS * NT * SUM, n_tiles = n_tiles_of<END>(p);
    if (END == SL_LINEAR_ADD) shared = max(shared, over_half());
    const int n_clusters = min(n_tiles, sl_multiprocessors() / BLOCKS);
    if (!sl_starts_early(kernel) || n_clusters == 0 || shared + 1024 > sl_device_get(cudaDevAttrMaxSharedMemoryPerBlockOptin))
        return 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = BLOCKS, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_clusters * BLOCKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    cudaLaunchKernelEx(&config, kernel, p, n_tiles); // a failure stays CUDA's last error
    return 1;
}

} // namespace

extern "C" int sl_cuda_linear_cluster(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_linear &p = *args;
    int is_launched = 0;
    SL_CHECK(p.n_rows <= SL_LINEAR_ROWS);
    if (p.n_rows <= 16 || p.n_ranks > 1) return 0; // linear.cu: few rows are faster there, and it knows the leaves of a rank
    by_ending(p, [&](auto end) { is_launched = p.n_rows <= 24 ? launch<end(), 3>(p, stream) : launch<end(), 4>(p, stream); });
    return is_launched;
}
