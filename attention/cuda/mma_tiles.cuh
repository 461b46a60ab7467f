// attention/cuda/mma_tiles.cuh - tiles of queries and keys in shared memory, and their scores with mma.sync: what the portable
// kernel of prefill and the kernels of masks share.
#ifndef SLEIGH_MMA_TILES_CUH
#define SLEIGH_MMA_TILES_CUH

#include "backend/cuda/barrier.cuh"
#include "backend/cuda/device.cuh"

// Elements of a tile row in shared memory: with a pad of 16 bytes. The row is an odd number of 16-byte units, so the eight rows
// of an ldmatrix lie in different banks.
template <int D> static constexpr int tile_stride = D + 8;

// Copies 16 bytes from `from`, or zeros.
static __device__ __forceinline__ void copy_async(bf16 *to, const bf16 *from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
}
// policy: from sl_l2_policy
static __device__ __forceinline__ void copy_async(bf16 *to, const bf16 *from, bool present, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)), "l"(from),
                 "r"(present ? 16 : 0), "l"(policy)
                 : "memory");
}
// Waits for this thread's copies. A __syncthreads then makes them visible to all threads.
static __device__ __forceinline__ void copies_landed() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Copies from [n_rows][stride_from] to [n_rows][D + 8] in shared memory: rows [begin, end), and zeros for the others. A
// thread copies the same column of each of its rows, so all addresses are one address plus constants. This saves registers.
template <int D, int n_rows, int n_threads>
static __device__ __forceinline__ void load_tile(bf16 *to, const bf16 *from, size_t stride_from, int begin, int end) {
    constexpr int lanes =
        (D / 8) & -(D / 8); // threads that copy one row: the largest power of 2 that divides the row's number of 16-byte pieces
    int row = threadIdx.x / lanes, column = threadIdx.x % lanes * 8;
    if (n_rows < n_threads / lanes && row >= n_rows) return;
    from += row * stride_from + column, to += row * tile_stride<D> + column;
#pragma unroll
    for (int r = 0; r < n_rows; r += n_threads / lanes)
#pragma unroll
        for (int c = 0; c < D; c += lanes * 8)
            copy_async(to + r * tile_stride<D> + c, from + r * stride_from + c, row + r >= begin && row + r < end);
}

// Loads four 8 x 8 matrices. Lane l gives the address of row l % 8 of matrix l / 8.
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

// Two matrices. Lanes 0 to 15 give the addresses.
static __device__ __forceinline__ void load_two_transposed(uint32_t r[2], const bf16 *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(p))
                 : "memory");
}

static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    sl_mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
}

// A warp's part of the tile is two blocks of 16 rows. In a block, elements 0 and 1 of a lane belong to row lane / 4, elements 2
// and 3 to row lane / 4 + 8. Their columns are 8 n + lane % 4 * 2 and the next one.
enum { WARP_ROWS = 32, BLOCKS = WARP_ROWS / 16, TILE_KEYS = 64 };

static __device__ __forceinline__ void clear(float s[BLOCKS][TILE_KEYS / 8][4]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) s[b][n][0] = s[b][n][1] = s[b][n][2] = s[b][n][3] = 0;
}

// s[block][n] += q k^T. q: [32][D] of this warp, k: [64][D], both in shared memory.
template <int D>
static __device__ __forceinline__ void add_scores(float s[BLOCKS][TILE_KEYS / 8][4], const bf16 *q, const bf16 *k, int lane) {
    constexpr int stride = tile_stride<D>;
    const bf16 *qp = q + (lane % 16) * stride + lane / 16 * 8;
    const bf16 *kp = k + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[BLOCKS][4], b[4];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) load_matrices(a[i], qp + i * 16 * stride + d);
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n += 2) {
            load_matrices(b, kp + n * 8 * stride + d);
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                mma(s[i][n], a[i], b[0], b[1]);
                mma(s[i][n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

#endif
