// attention/cuda/host_rows.cuh - rows of K and V in host memory (engine/kv/kv_host.h), which the threads of a kernel fetch
// themselves. The files *_host.cu compile decode kernels a second time, with SL_HOST_ROWS. There the rows of full pages lie on the
// host, K and V of a row side by side, and those of the newest page in k and v.
//
// fetch_rows copies the drawn rows of a warp to memory of the GPU, and the kernel then reads the copies as it reads rows on the
// GPU. A row of head_dim 128 is 512 bytes: the 32 lanes of a warp request it with one load, so K and V of a row are fetched
// together. A cold row costs 33 to 38 ns of the bus at any size up to 512 bytes (H200, November 2026), so the number of rows sets
// the time, and not their bytes. A warp has FETCH_AHEAD loads in flight.
#ifndef SLEIGH_HOST_ROWS_CUH
#define SLEIGH_HOST_ROWS_CUH

#include "attention/attention_cuda.h"
#include "engine/backend/cuda/device.cuh"

namespace {

#ifdef SL_HOST_ROWS
enum { IS_HOST = 1 };
#else
enum { IS_HOST = 0 };
#endif

enum { FETCH_AHEAD = 8 };

// K and V of row i begin at rows + 2 i head_dim.
struct host_rows {
    const bf16 *rows = NULL; // of this layer: [n_pages][n_kv_heads][256][2][head_dim], host memory
    bf16 *fetched = NULL;    // [thread blocks][threads][2][head_dim], memory of the GPU
};

// Rows of V with rows of K between them: row i begins at v + 2 i head_dim. Another thread of the warp may have written them.
struct paired_rows {
    const bf16 *v;
};

// 16 bytes of a row of V, without a policy of the L2 cache and with one.
template <int DIM> __device__ uint4 load_piece(const bf16 *v, int row, int piece) {
    return __ldg((const uint4 *)(v + (size_t)row * DIM) + piece);
}
template <int DIM> __device__ uint4 load_piece(const paired_rows &rows, int row, int piece) {
    return __ldcg((const uint4 *)(rows.v + (size_t)row * 2 * DIM) + piece);
}
template <int DIM> __device__ uint4 load_piece(const bf16 *v, int row, int piece, uint64_t policy) {
    return sl_load_l2((const uint4 *)(v + (size_t)row * DIM) + piece, policy);
}
template <int DIM> __device__ uint4 load_piece(const paired_rows &rows, int row, int piece, uint64_t) {
    return load_piece<DIM>(rows, row, piece);
}

// The memory of the thread block for n_threads fetched rows.
template <int DIM> __device__ bf16 *fetched_of_block(const host_rows &p, int n_threads) {
    return p.fetched + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * n_threads * 2 * DIM;
}

// Copies the warp's rows to `to`, which has a place for each thread of the thread block. row: the lane's pool row; -1: none. Lanes
// without a row come last. Equal neighbours are fetched once and share a place. Returns the lane's place; -1: none. s->row: as in
// `gather`.
template <int DIM, typename Space>
__device__ int fetch_rows(const host_rows &p, Space *s, bf16 *to, int thread, int row) {
    enum { PIECES = DIM / 4, AT_ONCE = 32 / PIECES }; // pieces of 16 bytes in a row; rows of one load of the warp
    int lane = thread % 32, warp = thread / 32 * 32, own = lane / PIECES, piece = lane % PIECES;
    int before = __shfl_up_sync(~0u, row, 1);
    bool leads = row >= 0 && (lane == 0 || row != before);
    uint32_t leaders = __ballot_sync(~0u, leads);
    int n = __popc(leaders), rank = __popc(leaders & (~0u >> (31 - lane))) - 1;
    if (n == 0) return -1;
    if (leads) s->row[warp + rank] = row;
    __syncwarp();
    uint4 *places = (uint4 *)(to + (size_t)warp * 2 * DIM) + piece;
#pragma unroll 1
    for (int first = 0; first < n; first += FETCH_AHEAD * AT_ONCE) {
        uint4 x[FETCH_AHEAD];
#pragma unroll
        for (int j = 0; j < FETCH_AHEAD; j++) {
            int i = first + j * AT_ONCE + own;
            x[j] = make_uint4(0, 0, 0, 0);
            if (own < AT_ONCE && i < n) x[j] = __ldcg((const uint4 *)(p.rows + (size_t)s->row[warp + i] * 2 * DIM) + piece);
        }
#pragma unroll
        for (int j = 0; j < FETCH_AHEAD; j++) {
            int i = first + j * AT_ONCE + own;
            if (own < AT_ONCE && i < n) __stcg(places + i * PIECES, x[j]);
        }
    }
    __syncwarp(); // the other lanes read the places, and s->row may be written again
    return row < 0 ? -1 : warp + rank;
}

} // namespace

#endif
