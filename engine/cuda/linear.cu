// engine/cuda/linear.cu - the linear layers of a decode step and RMSNorm: see linear.h.
//
// A decode step reads every weight once and does next to nothing with it, so the only thing that counts is that the memory bus
// never rests: within a kernel, and between kernels. Hence one block per multiprocessor that lives as long as its matrix,
// weights that flow through rings in shared memory, and rings that fill before the kernel in front has ended.
//
// Refuses: more than SL_LINEAR_ROWS rows (prefill's matrix products are cuBLASLt's), n_in that is no multiple of 8.
#include "engine/cuda/linear.h"

#include "engine/cuda/device.h"
#include "engine/kv.h"

#include <cuda_bf16.h>

namespace {

enum {
    WARPS = 4, // of a block; they split n_in among themselves
    THREADS = 32 * WARPS,
    TILE = 16,              // rows of W in a tile: M of the matrix instruction
    GROUP = 4,              // tiles that share what was read of x
    CHUNK = 128,            // elements of a row that a warp fetches at once
    STEP = 32,              // elements of a row that a quad of lanes reads at once, 8 each
    PITCH = CHUNK * 2 + 16, // bytes from row to row in shared memory: see ring::fetch
    UNIT = TILE * PITCH,    // a ring slot: one tile's chunk
    SLOTS = 5,
};

__device__ __forceinline__ bf16 to_bf16(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float from_bf16(bf16 x) {
    return __uint_as_float((uint32_t)x << 16);
}

// What an ending is: which rows of W make a tile, what to read before the sums are there, and where they go. A tile holds two
// times 8 rows, so that one lane gets the sums of row g of both halves: `lo` and `hi` of row `col` of x.

struct plain_rows {
    static __device__ int n_tiles(const sl_cuda_linear &p) { return (p.n_out + TILE - 1) / TILE; }
    static __device__ int row(const sl_cuda_linear &p, int tile, int r) { return min(tile * TILE + r, p.n_out - 1); }
};

template <sl_linear_end END> struct ending;

template <> struct ending<SL_LINEAR_STORE> : plain_rows {
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { return float2{0, 0}; }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2, size_t) {
        float *out = p.out32 + (size_t)col * p.n_out; // [n_out]
        int o = tile * TILE + g;
        if (o < p.n_out) out[o] = lo;
        if (o + 8 < p.n_out) out[o + 8] = hi;
    }
};

template <> struct ending<SL_LINEAR_ADD> : plain_rows {
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // the residual
        const float *x = p.out32 + (size_t)col * p.n_out;                                // [n_out]
        int o = tile * TILE + g;
        return float2{o < p.n_out ? __ldcg(x + o) : 0, o + 8 < p.n_out ? __ldcg(x + o + 8) : 0};
    }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2 x, size_t) {
        ending<SL_LINEAR_STORE>::store(p, tile, g, col, x.x + lo, x.y + hi, x, 0);
    }
};

template <> struct ending<SL_LINEAR_SWIGLU> { // gate rows in the lower half, their up rows in the upper
    static __device__ int n_tiles(const sl_cuda_linear &p) { return (p.n_out / 2 + 7) / 8; }
    static __device__ int row(const sl_cuda_linear &p, int tile, int r) {
        return min(tile * 8 + (r & 7), p.n_out / 2 - 1) + (r >> 3) * (p.n_out / 2);
    }
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { return float2{0, 0}; }
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float gate, float up, float2, size_t) {
        int o = tile * 8 + g;
        if (o < p.n_out / 2) p.out16[(size_t)col * (p.n_out / 2) + o] = to_bf16(gate / (1 + __expf(-gate)) * up);
    }
};

template <> struct ending<SL_LINEAR_ROPE_APPEND> { // dimensions i to i + 7 of a head, and those they turn with
    static __device__ int n_tiles(const sl_cuda_linear &p) { return p.n_out / TILE; }
    static __device__ int row(const sl_cuda_linear &p, int tile, int r) {
        int half = p.head_dim / 2, head = tile * 8 / half, i = tile * 8 % half;
        return head * p.head_dim + i + (r & 7) + (r >> 3) * half;
    }
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // cosine and sine
        int half = p.head_dim / 2;
        return __ldcg(p.rope + (size_t)col * half + tile * 8 % half + g);
    }
    // kv_row: the token's row of KV head 0, counted over all pages
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2 turn,
                                 size_t kv_row) {
        int half = p.head_dim / 2, head = tile * 8 / half, i = tile * 8 % half + g;
        bf16 *out; // [head_dim]
        if (head < p.n_heads) {
            out = p.out16 + ((size_t)col * p.n_heads + head) * p.head_dim;
        } else {
            int is_v = head >= p.n_heads + p.n_kv_heads, h = head - p.n_heads - is_v * p.n_kv_heads;
            out = (is_v ? p.v : p.k) + (kv_row + (size_t)h * SL_PAGE) * p.head_dim;
            if (is_v) turn = float2{1, 0};
        }
        out[i] = to_bf16(lo * turn.x - hi * turn.y);
        out[i + half] = to_bf16(hi * turn.x + lo * turn.y);
    }
};

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// A warp's weights on their way: SLOTS units in shared memory, fetched in the order in which they are used: groups of tiles, in
// a group the warp's chunks, in a chunk the group's tiles.
template <sl_linear_end END> struct ring {
    const sl_cuda_linear &p;
    const int lane, n_chunks, first_chunk, end; // tiles end before `end`
    const uint32_t slots;
    int tile, n, chunk, i; // of the next unit to fetch: first tile of its group, tiles in it, chunk, tile in the group
    int fill, take;        // slots
    uint64_t policy;

    __device__ ring(const sl_cuda_linear &p, uint32_t slots, int warp, int lane, int begin, int end)
        : p(p), lane(lane), n_chunks((p.n_in + CHUNK - 1) / CHUNK), first_chunk(warp), end(warp < n_chunks ? end : begin),
          slots(slots), tile(begin), n(min(GROUP, end - begin)), chunk(warp), i(0), fill(0), take(0) {
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    }

    __device__ void fetch() {
        if (tile < end) {
            uint32_t to = slots + fill * UNIT;
            constexpr int PIECES = CHUNK / 8, AT_ONCE = 32 / PIECES; // of a row; rows
            int piece = lane % PIECES, k = chunk * CHUNK + piece * 8;
#pragma unroll
            for (int s = 0; s < TILE / AT_ONCE; s++) {
                int at = s * AT_ONCE + lane / PIECES;
                int r = (at & 8) | (at & 3) << 1 | (at >> 2 & 1);
                const bf16 *from = p.w + (size_t)ending<END>::row(p, tile + i, r) * p.n_in + k;
                int n_bytes = k < p.n_in ? 16 : 0;
                if (n_bytes == 0) from = p.w;
                asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to + at * PITCH +
                                                                                                               piece * 16),
                             "l"(from), "r"(n_bytes), "l"(policy)
                             : "memory");
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

    __device__ uint32_t wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        __syncwarp();
        return slots + take * UNIT;
    }

    __device__ void release() {
        __syncwarp();
        take = take + 1 == SLOTS ? 0 : take + 1;
        fetch();
    }
};

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

// c[16][8] += a[16][16] b[16][8]
__device__ __forceinline__ void mma(float4 &c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
                 "%2, %3};"
                 : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <int NT> using x_chunk = uint4[NT][CHUNK / STEP]; // a lane's part of x: rows g and g + 8, elements 8 t of each step

template <int NT> __device__ __forceinline__ void load_x(const sl_cuda_linear &p, int lane, int chunk, x_chunk<NT> &x) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int s = 0; s < CHUNK / STEP; s++) {
            int row = nt * 8 + lane / 4, k = chunk * CHUNK + s * STEP + lane % 4 * 8;
            x[nt][s] = uint4{0, 0, 0, 0};
            if (row < p.n_rows && k < p.n_in) x[nt][s] = __ldcg((const uint4 *)(p.x + (size_t)row * p.n_in + k));
        }
}

template <sl_linear_end END, int NT>
__global__ void __launch_bounds__(THREADS, 384 / THREADS) linear_ring_kernel(const __grid_constant__ sl_cuda_linear p) {
    extern __shared__ __align__(128) char shared[]; // WARPS rings, then part [GROUP][WARPS - 1][NT][32]
    __shared__ size_t kv_row[SL_LINEAR_ROWS];
    float4 *part = (float4 *)(shared + WARPS * SLOTS * UNIT);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_tiles = ending<END>::n_tiles(p), n_chunks = (p.n_in + CHUNK - 1) / CHUNK;
    const int begin = (int)((int64_t)n_tiles * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)n_tiles * (blockIdx.x + 1) / gridDim.x);

    ring<END> weights(p, shared_address(shared + warp * SLOTS * UNIT), warp, lane, begin, end);
    for (int s = 0; s < SLOTS; s++) weights.fetch();
    sl_start_next();
    sl_wait_previous();

    // Two loads, one behind the other, that shall cost nothing: the values go to shared memory when the first sums do.
    const bool has_row = END == SL_LINEAR_ROPE_APPEND && threadIdx.x < p.n_rows;
    const int32_t position = has_row ? __ldcg(&p.rows[threadIdx.x].position) : 0;
    const int32_t *pages = has_row ? (const int32_t *)__ldcg((const unsigned long long *)&p.rows[threadIdx.x].pages) : nullptr;
    x_chunk<NT> x, x_next;
    if (warp < n_chunks) load_x<NT>(p, lane, warp, x);
    const int32_t page = has_row ? __ldcg(pages + position / SL_PAGE) : 0;
    for (int tile = begin; tile < end; tile += GROUP) {
        const int n = min(GROUP, end - tile);
        float4 sum[GROUP][NT] = {};
        float2 before[NT][2] = {};
        if (warp < n)
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int col = nt * 8 + 2 * t + e;
                    if (col < p.n_rows) before[nt][e] = ending<END>::before(p, tile + warp, g, col);
                }
        for (int chunk = warp; chunk < n_chunks; chunk += WARPS) {
            load_x<NT>(p, lane, chunk + WARPS < n_chunks ? chunk + WARPS : warp, x_next);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i >= n) continue;
                uint32_t row = weights.wait() + (g / 2 + g % 2 * 4) * PITCH + t * 16;
#pragma unroll
                for (int s = 0; s < CHUNK / STEP; s++) {
                    uint4 lo = load_shared(row + s * STEP * 2), hi = load_shared(row + 8 * PITCH + s * STEP * 2);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++) {
                        mma(sum[i][nt], lo.x, hi.x, lo.y, hi.y, x[nt][s].x, x[nt][s].y);
                        mma(sum[i][nt], lo.z, hi.z, lo.w, hi.w, x[nt][s].z, x[nt][s].w);
                    }
                }
                weights.release();
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int s = 0; s < CHUNK / STEP; s++) x[nt][s] = x_next[nt][s];
        }

        // Warp i adds up tile i: its own part stays in registers, the others' come through shared memory.
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
                    part[((i * (WARPS - 1) + warp - (warp > i)) * NT + nt) * 32 + lane] = sum[i][nt];
        __syncthreads();
        if (warp < n)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float4 y = {0, 0, 0, 0};
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    float4 v = own[nt];
                    if (w != warp) v = part[((warp * (WARPS - 1) + w - (w > warp)) * NT + nt) * 32 + lane];
                    y.x += v.x, y.y += v.y, y.z += v.z, y.w += v.w;
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int col = nt * 8 + 2 * t + e;
                    if (col < p.n_rows)
                        ending<END>::store(p, tile + warp, g, col, e ? y.y : y.x, e ? y.w : y.z, before[nt][e], kv_row[col]);
                }
            }
    }
}

template <sl_linear_end END, int NT> void launch(const sl_cuda_linear &p, int n_tiles, cudaStream_t stream) {
    const size_t shared = WARPS * SLOTS * UNIT + sizeof(float4) * GROUP * (WARPS - 1) * NT * 32;
    int device = 0, n_sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(linear_ring_kernel<END, NT>, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    cudaFuncSetAttribute(linear_ring_kernel<END, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    sl_launch(linear_ring_kernel<END, NT>, dim3(n_tiles < n_sms ? n_tiles : n_sms), dim3(THREADS), shared, stream, p);
}

template <sl_linear_end END> void launch(const sl_cuda_linear &p, int n_tiles, cudaStream_t stream) {
    if (p.n_rows <= 8)
        launch<END, 1>(p, n_tiles, stream);
    else
        launch<END, 2>(p, n_tiles, stream);
}

// out = bf16(x / sqrt(mean(x^2) + eps) * w). One block per row, whose values stay in registers: KEEP times 4 a thread.
// Reads 4 n + 2 n, writes 2 n bytes a row. Sums: a thread's own values in order, then a tree over lanes, then over warps.
enum { NORM_THREADS = 512 };

template <int KEEP>
__global__ void __launch_bounds__(NORM_THREADS) rmsnorm_row_kernel(const float *x, const bf16 *w, int n, float eps, bf16 *out) {
    __shared__ float warp_sum[NORM_THREADS / 32];
    x += (size_t)blockIdx.x * n, out += (size_t)blockIdx.x * n;
    uint2 weight[KEEP];
    float4 v[KEEP];
    sl_start_next();
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        int i = (s * NORM_THREADS + threadIdx.x) * 4;
        weight[s] = i < n ? *(const uint2 *)(w + i) : uint2{0, 0};
    }
    sl_wait_previous();
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        int i = (s * NORM_THREADS + threadIdx.x) * 4;
        v[s] = i < n ? __ldcg((const float4 *)(x + i)) : float4{0, 0, 0, 0};
    }
    float sum = 0;
#pragma unroll
    for (int s = 0; s < KEEP; s++) sum += v[s].x * v[s].x + v[s].y * v[s].y + v[s].z * v[s].z + v[s].w * v[s].w;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_sum[threadIdx.x % (NORM_THREADS / 32)];
    for (int d = NORM_THREADS / 64; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float scale = 1 / sqrtf(sum / n + eps);
#pragma unroll
    for (int s = 0; s < KEEP; s++) {
        int i = (s * NORM_THREADS + threadIdx.x) * 4;
        if (i >= n) continue;
        const bf16 *ws = (const bf16 *)&weight[s];
        uint2 y;
        bf16 *ys = (bf16 *)&y;
        ys[0] = to_bf16(v[s].x * scale * from_bf16(ws[0]));
        ys[1] = to_bf16(v[s].y * scale * from_bf16(ws[1]));
        ys[2] = to_bf16(v[s].z * scale * from_bf16(ws[2]));
        ys[3] = to_bf16(v[s].w * scale * from_bf16(ws[3]));
        *(uint2 *)(out + i) = y;
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
    SL_CHECK(n % 4 == 0 && n <= 8 * 4 * NORM_THREADS);
    void (*kernel)(const float *, const bf16 *, int, float, bf16 *) = n <= 4 * NORM_THREADS    ? rmsnorm_row_kernel<1>
                                                                      : n <= 8 * NORM_THREADS  ? rmsnorm_row_kernel<2>
                                                                      : n <= 16 * NORM_THREADS ? rmsnorm_row_kernel<4>
                                                                                               : rmsnorm_row_kernel<8>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    sl_launch(kernel, dim3(n_rows), dim3(NORM_THREADS), 0, stream, x, w, n, eps, out);
}
