// engine/backend/cuda/linear.cu - the linear layers of a decode step and RMSNorm: see linear.h.
//
// A decode step reads every weight once and does next to nothing with it, so all that counts is that device memory never rests:
// within a kernel, and between kernels. Hence one block per multiprocessor that lives as long as its matrix, weights that flow
// through rings in shared memory, and rings that fill before the kernel in front has ended. For the latter, two kernels must
// lie side by side on every multiprocessor, which asks for some things:
//   - a block takes less than half of a multiprocessor's shared memory and registers, and more than a third, so that two fit
//     and not three;
//   - as many blocks as multiprocessors, no fewer: else two blocks of one kernel meet on a multiprocessor, get half of its
//     bandwidth each, and the others wait for them (128 blocks on 132 multiprocessors: 6.6 us more a kernel);
//   - for the same reason two blocks of one kernel must not fit where its neighbours leave room. Every other matrix (those
//     that end in SL_LINEAR_ADD) asks for a little over half of the shared memory: two of its blocks exclude each other, and
//     while one lies there, so do two of the next kernel's. Without this a step at 4k took 5.7 or 6.7 ms, as it happened;
//   - every kernel of the step asks for the same split of L1 and shared memory (sl_launch).
//
// Refuses: more than SL_LINEAR_ROWS rows (prefill's matrix products are cuBLASLt's), n_in that is no multiple of 8.
#include "engine/backend/cuda/linear.h"

#include "engine/backend/cuda/device.cuh"
#include "engine/kv/kv.h"

#include <cuda_bf16.h>

namespace {

enum {
    WARPS = 4, // of a block; they split n_in among themselves
    THREADS = 32 * WARPS,
    TILE = 16,   // rows of W in a tile: M of the matrix instruction
    GROUP = 3,   // tiles that share what was read of x; at most WARPS. 6144 rows are 3 tiles a block on 132
    CHUNK = 128, // elements of a row that a warp fetches at once
    STEP = 32,   // elements of a row that four lanes read at once, 8 each
    STEPS = CHUNK / STEP,
    PITCH = CHUNK * 2 + 16, // bytes from row to row of a unit: an odd number of 16-byte pieces, see ring::fetch
    UNIT = TILE * PITCH,    // a slot of the ring: one tile's chunk
    SLOTS = 5,              // 64 KB of weights on their way in a multiprocessor while 16 KB are read
};

__device__ __forceinline__ bf16 to_bf16(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ float from_bf16(bf16 x) {
    return __uint_as_float((uint32_t)x << 16);
}

// What an ending is: which rows of W make a tile, what to read before the sums are there, and where they go. A tile is two
// times 8 rows, so that one lane gets the sums of row g of both halves: `lo` and `hi`, of row `col` of x.

struct tile_rows {
    int lo, hi;     // first row of each half
    int n_lo, n_hi; // rows of it that exist; 8 or more: all
};

struct plain_tiles { // 16 rows in order
    static __device__ tile_rows rows(const sl_cuda_linear &p, int tile) {
        const int first = tile * TILE;
        return {first, first + 8, p.n_out - first, p.n_out - first - 8};
    }
};

template <sl_linear_end END> struct ending;

template <> struct ending<SL_LINEAR_STORE> : plain_tiles {
    static __device__ float2 before(const sl_cuda_linear &, int, int, int) { return {0, 0}; }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2, size_t) {
        float *out = p.out32 + (size_t)col * p.n_out; // [n_out]
        const int o = tile * TILE + g;
        if (o < p.n_out) out[o] = lo;
        if (o + 8 < p.n_out) out[o + 8] = hi;
    }
};

template <> struct ending<SL_LINEAR_ADD> : plain_tiles {
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // the residual
        const float *x = p.out32 + (size_t)col * p.n_out;                                // [n_out]
        const int o = tile * TILE + g;
        return {o < p.n_out ? __ldcg(x + o) : 0, o + 8 < p.n_out ? __ldcg(x + o + 8) : 0};
    }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2 x, size_t) {
        ending<SL_LINEAR_STORE>::store(p, tile, g, col, x.x + lo, x.y + hi, x, 0);
    }
};

template <> struct ending<SL_LINEAR_SWIGLU> { // 8 rows of gate and the same 8 of up
    static __device__ tile_rows rows(const sl_cuda_linear &p, int tile) {
        const int first = tile * 8, n_ffn = p.n_out / 2;
        return {first, first + n_ffn, n_ffn - first, n_ffn - first};
    }
    static __device__ float2 before(const sl_cuda_linear &, int, int, int) { return {0, 0}; }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float gate, float up, float2, size_t) {
        const int o = tile * 8 + g, n_ffn = p.n_out / 2;
        if (o < n_ffn) p.out16[(size_t)col * n_ffn + o] = to_bf16(gate / (1 + __expf(-gate)) * up);
    }
};

template <> struct ending<SL_LINEAR_ROPE_APPEND> { // dimensions i to i + 7 of a head, and those that they turn with
    static __device__ tile_rows rows(const sl_cuda_linear &p, int tile) {
        const int half = p.head_dim / 2, first = tile * 8 / half * p.head_dim + tile * 8 % half;
        return {first, first + half, 8, 8};
    }
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // cosine and sine
        const int half = p.head_dim / 2;
        return __ldcg(p.rope + (size_t)col * half + tile * 8 % half + g);
    }
    // kv_row: the token's row of KV head 0, counted over all pages
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2 turn,
                                 size_t kv_row) {
        const int half = p.head_dim / 2, head = tile * 8 / half, i = tile * 8 % half + g;
        bf16 *out; // [head_dim]
        if (head < p.n_heads) {
            out = p.out16 + ((size_t)col * p.n_heads + head) * p.head_dim;
        } else {
            const int is_v = head >= p.n_heads + p.n_kv_heads, h = head - p.n_heads - is_v * p.n_kv_heads;
            out = (is_v ? p.v : p.k) + (kv_row + (size_t)h * SL_PAGE) * p.head_dim;
            if (is_v) turn = {1, 0};
        }
        out[i] = to_bf16(lo * turn.x - hi * turn.y);
        out[i + half] = to_bf16(hi * turn.x + lo * turn.y);
    }
};

// 16 bytes to shared memory without a register, zeros if they do not exist. The weights leave L2 first: nothing reads them
// again in this step.
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

// A warp's weights on their way: SLOTS units, fetched in the order in which they are used: groups of tiles, in a group the
// warp's chunks, in a chunk the group's tiles. Only the warp itself fills and empties its ring, so it waits for no other.
template <sl_linear_end END> struct ring {
    const sl_cuda_linear &p;
    const int lane, first_chunk, n_chunks, end; // tiles end before `end`
    const uint32_t slots;                       // shared memory
    int tile, n, chunk, i;                      // of the next unit to fetch: its group's first tile and size, chunk, tile in it
    int fill, take;                             // slots to fetch to and to read next
    uint64_t policy;

    __device__ ring(const sl_cuda_linear &p, const void *slots, int warp, int lane, int n_chunks, int begin, int end)
        : p(p), lane(lane), first_chunk(warp), n_chunks(n_chunks), end(warp < n_chunks ? end : begin),
          slots((uint32_t)__cvta_generic_to_shared(slots)), tile(begin), n(min(GROUP, end - begin)), chunk(warp), i(0), fill(0),
          take(0), policy(sl_l2_policy(SL_L2_FIRST_OUT)) {}

    // Fetches the next unit, if there is one, and closes a copy group in any case, so that next() can count them.
    //
    // Two rows of 256 bytes an instruction. A unit's row at 0 to 7 holds W's row 0, 2, 4, 6, 1, 3, 5, 7 of the half: eight
    // lanes of a 16-byte read hold rows g and g + 1 of W, thus rows 4 apart of the unit, which at an odd pitch are in opposite
    // halves of the banks. Elements past n_in and rows past n_out are zeros.
    __device__ __forceinline__ void fetch() {
        if (tile < end) {
            const tile_rows rows = ending<END>::rows(p, tile + i);
            const int piece = lane % 16, k = chunk * CHUNK + piece * 8, second = lane / 16;
            const uint32_t to = slots + fill * UNIT + second * PITCH + piece * 16;
            const bf16 *lo = p.w + ((size_t)(rows.lo + 2 * second) * p.n_in + k);
            const bf16 *hi = p.w + ((size_t)(rows.hi + 2 * second) * p.n_in + k);
#pragma unroll
            for (int s = 0; s < 8; s++) { // rows of the unit 2 s and 2 s + 1
                const int r = s % 2 * 4 + s / 2 % 2;
                const bool exists = k < p.n_in && r + 2 * second < (s < 4 ? rows.n_lo : rows.n_hi);
                copy_16(to + 2 * s * PITCH, (s < 4 ? lo : hi) + (size_t)r * p.n_in, exists, policy);
            }
            fill = fill + 1 == SLOTS ? 0 : fill + 1;
            if (++i == n) {
                i = 0;
                chunk += WARPS;
                if (chunk >= n_chunks) {
                    chunk = first_chunk;
                    tile += n;
                    n = min(GROUP, end - tile);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits for the oldest unit and reads it. w[0], w[1]: of rows g and g + 8 of the tile the lane's 8 elements of each step.
    __device__ __forceinline__ void next(uint4 (&w)[2][STEPS]) {
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        __syncwarp(); // the other lanes' copies have come too
        const int g = lane / 4, t = lane % 4;
        const uint32_t row = slots + take * UNIT + (g / 2 + g % 2 * 4) * PITCH + t * 16;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            w[0][s] = load_shared(row + s * STEP * 2);
            w[1][s] = load_shared(row + s * STEP * 2 + 8 * PITCH);
        }
        take = take + 1 == SLOTS ? 0 : take + 1;
    }

    // Fetches another unit into the slot that next() has read.
    __device__ __forceinline__ void refill() {
        __syncwarp(); // all lanes have read it
        fetch();
    }
};

// A chunk of x [8 NT][128]: of rows g and, with NT 2, g + 8 the lane's 8 elements of each step.
template <int NT> using x_chunk = uint4[NT][STEPS];

// Past L1, which may hold an older step's x. Rows past n_rows are zeros and never read.
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

// sum += a unit of W times a chunk of x. A lane's 8 consecutive elements serve as k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of two
// instructions: which k an element is called does not matter, as long as W and x agree. Two sums,
// so that an instruction need not wait for the one in front.
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

// y = W x, then the ending.
//
// Grid: a block per multiprocessor, which takes a contiguous share of the tiles of 16 rows of W, GROUP at a time. Warp w takes
// the chunks c with c % WARPS == w of every row. NT: 1 for up to 8 rows of x, 2 for up to 16.
// Needs: w and x 16-byte aligned, n_in a multiple of 8; with RoPE head_dim a multiple of 16.
// Reads W once (2 n_out n_in bytes) from device memory and x once a group (2 n_rows n_in) from L2.
// Llama-3.1-8B's 129 matrices (15.01 GB) as one graph: 5.19, 5.29, 5.52 ms for 1, 8, 16 rows, 94, 92, 88% of the rate of a
// kernel that only reads them; the 65 RMSNorms in between add 0.09 to 0.12 ms (H100 80GB HBM3, 21 November 2026).
// Sums: a warp adds its chunks in order; in a chunk 16 products an instruction, four instructions on top of the sum and four
// apart; then the warps' sums are added in order. That depends on n_in alone; columns of the matrix instruction do not mix, so
// a row's company and place do not matter either.
template <sl_linear_end END, int NT>
__global__ void __launch_bounds__(THREADS, 2) linear_ring_kernel(const __grid_constant__ sl_cuda_linear p, int n_tiles) {
    extern __shared__ __align__(16) char shared[]; // rings [WARPS][SLOTS][UNIT], parts [GROUP][WARPS - 1][NT][32] float4
    __shared__ size_t kv_row[SL_LINEAR_ROWS];
    float4 *parts = (float4 *)(shared + WARPS * SLOTS * UNIT);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_chunks = (p.n_in + CHUNK - 1) / CHUNK;
    const int begin = n_tiles * blockIdx.x / gridDim.x, end = n_tiles * (blockIdx.x + 1) / gridDim.x;

    ring<END> weights(p, shared + warp * SLOTS * UNIT, warp, lane, n_chunks, begin, end);
    for (int s = 0; s < SLOTS; s++) weights.fetch();
    sl_start_next(); // its rings fill while this kernel computes, and the ones behind as blocks of this one end
    sl_wait_previous();

    // The way to a token's row in the pages is two loads, one behind the other. x is asked for in between.
    const bool has_row = END == SL_LINEAR_ROPE_APPEND && threadIdx.x < p.n_rows;
    const int32_t position = has_row ? __ldcg(&p.rows[threadIdx.x].position) : 0;
    const int32_t *pages = has_row ? (const int32_t *)__ldcg((const uintptr_t *)&p.rows[threadIdx.x].pages) : nullptr;
    x_chunk<NT> x, x_next;
    if (warp < n_chunks) load_x<NT>(p, lane, warp, x);
    const int32_t page = has_row ? __ldcg(pages + position / SL_PAGE) : 0;

    for (int tile = begin; tile < end; tile += GROUP) {
        const int n = min(GROUP, end - tile);
        float2 before[NT][2] = {};
#pragma unroll
        for (int c = 0; c < 2 * NT; c++) {
            const int col = c / 2 * 8 + 2 * t + c % 2;
            if (warp < n && col < p.n_rows) before[c / 2][c % 2] = ending<END>::before(p, tile + warp, g, col);
        }

        float4 sum[GROUP][NT] = {};
        for (int chunk = warp; chunk < n_chunks; chunk += WARPS) {
            load_x<NT>(p, lane, chunk + WARPS < n_chunks ? chunk + WARPS : warp, x_next); // of the next group, in the end
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i >= n) continue;
                uint4 w[2][STEPS];
                weights.next(w);
                multiply<NT>(w, x, sum[i]);
                weights.refill();
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int s = 0; s < STEPS; s++) x[nt][s] = x_next[nt][s];
        }

        // Warp i adds up and ends tile i: its own part stays in registers, the others' come through shared memory.
        float4 own[NT] = {};
        if (has_row) kv_row[threadIdx.x] = (size_t)page * p.n_kv_heads * SL_PAGE + position % SL_PAGE;
        __syncthreads(); // the last group's parts have been read
#pragma unroll
        for (int i = 0; i < GROUP; i++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
                if (i == warp)
                    own[nt] = sum[i][nt];
                else if (i < n)
                    parts[((i * (WARPS - 1) + warp - (warp > i)) * NT + nt) * 32 + lane] = sum[i][nt];
        __syncthreads();
        if (warp >= n) continue;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float4 y = {0, 0, 0, 0};
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float4 v = own[nt];
                if (w != warp) v = parts[((warp * (WARPS - 1) + w - (w > warp)) * NT + nt) * 32 + lane];
                y.x += v.x, y.y += v.y, y.z += v.z, y.w += v.w;
            }
            const int col = nt * 8 + 2 * t;
            if (col < p.n_rows) ending<END>::store(p, tile + warp, g, col, y.x, y.z, before[nt][0], kv_row[col]);
            if (col + 1 < p.n_rows) ending<END>::store(p, tile + warp, g, col + 1, y.y, y.w, before[nt][1], kv_row[col + 1]);
        }
    }
}

// The least shared memory of which a multiprocessor has no room for two blocks.
int over_half() {
    return sl_device_get(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 -
           sl_device_get(cudaDevAttrReservedSharedMemoryPerBlock) + 128;
}

template <sl_linear_end END, int NT> void launch(const sl_cuda_linear &p, int n_tiles, cudaStream_t stream) {
    int shared = WARPS * SLOTS * UNIT + (int)sizeof(float4) * GROUP * (WARPS - 1) * NT * 32;
    if (END == SL_LINEAR_ADD) shared = max(shared, over_half());
    sl_launch(linear_ring_kernel<END, NT>, dim3(min(n_tiles, sl_multiprocessors())), dim3(THREADS), shared, stream, p, n_tiles);
}

template <sl_linear_end END> void launch(const sl_cuda_linear &p, int n_tiles, cudaStream_t stream) {
    if (p.n_rows <= 8)
        launch<END, 1>(p, n_tiles, stream);
    else
        launch<END, 2>(p, n_tiles, stream);
}

enum { NORM_THREADS = 512 };

// out = bf16(x / sqrt(mean(x^2) + eps) * w)
//
// Grid: a block per row, whose values stay in registers: thread i has KEEP times 4 of them, 4 NORM_THREADS apart.
// Needs: n a multiple of 4, at most 4 KEEP NORM_THREADS; x 16-byte, w and out 8-byte aligned.
// Reads 6 n and writes 2 n bytes a row. Sums: a thread's values in order, then a tree over lanes, then one over warps.
template <int KEEP>
__global__ void __launch_bounds__(NORM_THREADS) rmsnorm_row_kernel(const float *x, const bf16 *w, int n, float eps, bf16 *out) {
    __shared__ float warp_sums[NORM_THREADS / 32];
    x += (size_t)blockIdx.x * n, out += (size_t)blockIdx.x * n;
    uint2 weights[KEEP];
    float4 v[KEEP];
    sl_start_next();
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        const int i = (s * NORM_THREADS + threadIdx.x) * 4;
        weights[s] = i < n ? *(const uint2 *)(w + i) : uint2{0, 0};
    }
    sl_wait_previous();
    float sum = 0;
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        const int i = (s * NORM_THREADS + threadIdx.x) * 4;
        v[s] = i < n ? __ldcg((const float4 *)(x + i)) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int s = 0; s < KEEP; s++) sum += v[s].x * v[s].x + v[s].y * v[s].y + v[s].z * v[s].z + v[s].w * v[s].w;
    sum = sl_sum_lanes(sum);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_sums[threadIdx.x % (NORM_THREADS / 32)];
    for (int d = NORM_THREADS / 64; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float scale = 1 / sqrtf(sum / n + eps);
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        const int i = (s * NORM_THREADS + threadIdx.x) * 4;
        if (i >= n) continue;
        const bf16 y[4] = {to_bf16(v[s].x * scale * from_bf16((bf16)weights[s].x)),
                           to_bf16(v[s].y * scale * from_bf16((bf16)(weights[s].x >> 16))),
                           to_bf16(v[s].z * scale * from_bf16((bf16)weights[s].y)),
                           to_bf16(v[s].w * scale * from_bf16((bf16)(weights[s].y >> 16)))};
        *(uint2 *)(out + i) = uint2{y[0] | (uint32_t)y[1] << 16, y[2] | (uint32_t)y[3] << 16};
    }
}

} // namespace

extern "C" void sl_cuda_linear_decode(const sl_cuda_linear *args, cudaStream_t stream) {
    const sl_cuda_linear &p = *args;
    SL_CHECK(p.n_rows >= 1 && p.n_rows <= SL_LINEAR_ROWS && p.n_out >= 1 && p.n_in >= 8 && p.n_in % 8 == 0);
    switch (p.end) {
    case SL_LINEAR_STORE:
        launch<SL_LINEAR_STORE>(p, (p.n_out + TILE - 1) / TILE, stream);
        break;
    case SL_LINEAR_ADD:
        launch<SL_LINEAR_ADD>(p, (p.n_out + TILE - 1) / TILE, stream);
        break;
    case SL_LINEAR_SWIGLU:
        SL_CHECK(p.n_out % 2 == 0);
        launch<SL_LINEAR_SWIGLU>(p, (p.n_out / 2 + 7) / 8, stream);
        break;
    case SL_LINEAR_ROPE_APPEND:
        SL_CHECK(p.head_dim % 16 == 0 && p.n_out == (p.n_heads + 2 * p.n_kv_heads) * p.head_dim);
        launch<SL_LINEAR_ROPE_APPEND>(p, p.n_out / TILE, stream);
        break;
    }
}

extern "C" void sl_cuda_rmsnorm(const float *x, const bf16 *w, int n_rows, int n, float eps, bf16 *out, cudaStream_t stream) {
    SL_CHECK(n % 4 == 0 && n <= 4 * 8 * NORM_THREADS);
    void (*kernel)(const float *, const bf16 *, int, float, bf16 *) = n <= 4 * NORM_THREADS    ? rmsnorm_row_kernel<1>
                                                                      : n <= 8 * NORM_THREADS  ? rmsnorm_row_kernel<2>
                                                                      : n <= 16 * NORM_THREADS ? rmsnorm_row_kernel<4>
                                                                                               : rmsnorm_row_kernel<8>;
    sl_launch(kernel, dim3(n_rows), dim3(NORM_THREADS), 0, stream, x, w, n, eps, out);
}
