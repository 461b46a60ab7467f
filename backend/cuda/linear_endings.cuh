// backend/cuda/linear_endings.cuh - what the kernels of linear layers share: what happens to y = W x (sl_linear_end of
// linear.h), with the RMSNorm before the matrix and after it.
#ifndef SLEIGH_CUDA_LINEAR_ENDINGS_CUH
#define SLEIGH_CUDA_LINEAR_ENDINGS_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/linear.h"
#include "kv/kv.h"

#include <cuda_bf16.h>
#include <type_traits>

namespace {

enum {
    TILE = 16,   // rows of W in a tile: M of the matrix instruction
    CHUNK = 128, // columns that a warp multiplies at once
    STEP = 32,   // columns that four lanes read at once, 8 each
    STEPS = CHUNK / STEP
};

__device__ __forceinline__ bf16 to_bf16(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// An ending defines what happens to y = W x: which rows of W form a tile, which values are read before the sums are complete
// (`before`), and where the results go (`store`). A tile is two halves of 8 rows. One lane gets the sums of row g of both
// halves, `lo` and `hi`, for row `col` of x.

struct tile_rows {
    int lo, hi;     // row of W that is the first of each half
    int n_lo, n_hi; // number of existing rows of each half; 8 or more: all
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
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // reads the residual
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

// The row of token `col` in KV head 0 of k and v. page: the page that holds the position; not used if is_staged
__device__ __forceinline__ size_t kv_row_of(const sl_cuda_linear &p, int col, int32_t page, int32_t position) {
    return p.is_staged ? (size_t)col * p.n_kv_heads : (size_t)page * p.n_kv_heads * SL_PAGE + position % SL_PAGE;
}

template <> struct ending<SL_LINEAR_ROPE_APPEND> { // dimensions i to i + 7 of a head, and i + half to i + half + 7
    static __device__ tile_rows rows(const sl_cuda_linear &p, int tile) {
        const int half = p.head_dim / 2, first = tile * 8 / half * p.head_dim + tile * 8 % half;
        return {first, first + half, 8, 8};
    }
    static __device__ float2 before(const sl_cuda_linear &p, int tile, int g, int col) { // reads cosine and sine
        const int half = p.head_dim / 2;
        return __ldcg(p.rope + (size_t)col * half + tile * 8 % half + g);
    }
    // kv_row: of kv_row_of
    static __device__ void store(const sl_cuda_linear &p, int tile, int g, int col, float lo, float hi, float2 rotation,
                                 size_t kv_row) {
        const int half = p.head_dim / 2, head = tile * 8 / half, i = tile * 8 % half + g;
        bf16 *out; // [head_dim]
        if (head < p.n_heads) {
            out = p.out16 + ((size_t)col * p.n_heads + head) * p.head_dim;
        } else {
            const int is_v = head >= p.n_heads + p.n_kv_heads, h = head - p.n_heads - is_v * p.n_kv_heads;
            out = (is_v ? p.v : p.k) + (kv_row + (size_t)h * (p.is_staged ? 1 : SL_PAGE)) * p.head_dim;
            if (is_v) rotation = {1, 0};
        }
        out[i] = to_bf16(lo * rotation.x - hi * rotation.y);
        out[i + half] = to_bf16(hi * rotation.x + lo * rotation.y);
    }
};

// factor[r] = 1 / sqrt(mean(x[r]^2) + eps) from the partial sums of row r, for all rows; 1 without sums. Half a warp adds the
// sums of a row: lane i of 16 adds groups of 4 sums, 16 groups apart, then the 4 sums; then the lanes are added as a tree. The
// order depends on n_in only.
template <int N_WARPS>
__device__ __forceinline__ void find_factors(const sl_cuda_linear &p, int warp, int lane, float *factor) {
    const int n = p.n_in / SL_NORM_MULTIPLE; // groups of a row
    for (int first = 2 * warp; first < p.n_rows; first += 2 * N_WARPS) {
        const int row = first + lane / 16;
        float4 sum = {0, 0, 0, 0};
        if (p.sums && row < p.n_rows) {
            const float4 *sums = (const float4 *)p.sums + (size_t)row * n;
#pragma unroll 4
            for (int i = lane % 16; i < n; i += 16) {
                const float4 v = __ldcg(sums + i);
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
        }
        float all = (sum.x + sum.y) + (sum.z + sum.w);
        for (int step = 8; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
        if (lane % 16 == 0 && row < p.n_rows) factor[row] = p.sums ? 1 / sqrtf(all / p.n_in + p.eps) : 1;
    }
}

// The weights of the next RMSNorm for rows g and g + 8 of a tile. The ending widens them, so that nothing waits for them
// before.
template <sl_linear_end END> __device__ __forceinline__ ushort2 next_weights(const sl_cuda_linear &p, int tile, int g) {
    if (END != SL_LINEAR_ADD || !p.next_w) return {0, 0};
    const bf16 *w = p.next_w + tile * TILE + g;
    return {w[0], w[8]};
}

// Ends a tile for rows col and col + 1 of x, where col = first + 2 (lane % 4). All lanes of a warp call it.
// y: the sums of W x, in the order of the matrix c of sl_mma_bf16. before: what ending::before has returned for the two rows.
// kv_row, factor: [n_rows]
template <sl_linear_end END>
__device__ __forceinline__ void end_tile(const sl_cuda_linear &p, int tile, int lane, int first, const float4 &y,
                                         const float2 (&before)[2], ushort2 next_w, const float *factor, const size_t *kv_row) {
    const int g = lane / 4;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int col = first + 2 * (lane % 4) + c;
        const bool exists = col < p.n_rows;
        float lo = c ? y.y : y.x, hi = c ? y.w : y.z;
        if (END != SL_LINEAR_ADD && exists) lo *= factor[col], hi *= factor[col];
        if (exists) ending<END>::store(p, tile, g, col, lo, hi, before[c], kv_row[col]);
        if (END != SL_LINEAR_ADD || !p.next_w) continue;
        lo += before[c].x, hi += before[c].y;
        // The roundings are explicit, so that every row gets the same ones.
        float squares = __fmaf_rn(lo, lo, __fmul_rn(hi, hi));
        for (int step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
        if (!exists) continue;
        bf16 *out = p.out16 + (size_t)col * p.n_out + tile * TILE + g;
        out[0] = to_bf16(lo * sl_widen(next_w.x)), out[8] = to_bf16(hi * sl_widen(next_w.y));
        if (g == 0) p.next_sums[(size_t)col * (p.n_out / SL_NORM_TILE) + tile] = squares;
    }
}

// The tiles [begin, end) of this thread block.
struct tile_range {
    int begin, end;
    __device__ tile_range(int n_tiles) : begin(n_tiles * blockIdx.x / gridDim.x), end(n_tiles * (blockIdx.x + 1) / gridDim.x) {}
};

// Checks the matrix, and calls with_ending(its ending as a constant).
template <typename Fn> void by_ending(const sl_cuda_linear &p, Fn with_ending) {
    static_assert((int)TILE == (int)SL_NORM_TILE, "a tile of the matrix has one partial sum of the norm");
    SL_CHECK(p.n_rows >= 1 && p.n_out >= 1 && p.n_in >= 8 && p.n_in % 8 == 0);
    SL_CHECK(!p.sums || (p.end != SL_LINEAR_ADD && p.n_in % SL_NORM_MULTIPLE == 0));
    SL_CHECK(!p.next_w || (p.end == SL_LINEAR_ADD && p.n_out % SL_NORM_MULTIPLE == 0));
    SL_CHECK(!p.n_part || ((p.end == SL_LINEAR_STORE || p.end == SL_LINEAR_ROPE_APPEND) && p.n_part % TILE == 0));
    SL_CHECK(p.n_ranks <= 1 || (p.end == SL_LINEAR_STORE && p.n_in % CHUNK == 0 && !p.n_part && !p.sums));
    switch (p.end) {
    case SL_LINEAR_STORE:
        with_ending(std::integral_constant<sl_linear_end, SL_LINEAR_STORE>());
        break;
    case SL_LINEAR_ADD:
        with_ending(std::integral_constant<sl_linear_end, SL_LINEAR_ADD>());
        break;
    case SL_LINEAR_SWIGLU:
        SL_CHECK(p.n_out % 2 == 0);
        with_ending(std::integral_constant<sl_linear_end, SL_LINEAR_SWIGLU>());
        break;
    case SL_LINEAR_ROPE_APPEND:
        SL_CHECK(p.head_dim % 16 == 0 && p.n_part % p.head_dim == 0);
        SL_CHECK(p.n_part ? p.n_part <= (p.n_heads + 2 * p.n_kv_heads) * p.head_dim
                          : p.n_out == (p.n_heads + 2 * p.n_kv_heads) * p.head_dim);
        with_ending(std::integral_constant<sl_linear_end, SL_LINEAR_ROPE_APPEND>());
        break;
    }
}

// The number of tiles of a matrix.
template <sl_linear_end END> int n_tiles_of(const sl_cuda_linear &p) {
    const int n_rows = p.n_part ? p.n_part : p.n_out;
    return END == SL_LINEAR_SWIGLU ? (n_rows / 2 + 7) / 8 : (n_rows + TILE - 1) / TILE;
}

// Bytes of shared memory per thread block with which two thread blocks no longer fit on a multiprocessor.
inline int over_half() {
    return sl_device_get(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 -
           sl_device_get(cudaDevAttrReservedSharedMemoryPerBlock) + 128;
}

} // namespace

#endif
