// backend/cuda/kv_pages.cu - copies pages between K and V on the GPU and rows in host memory (kv/kv_offload.h).
// move_pages of backend/cpu/cpu_backend.c is the specification.
//
// | kernel            | bytes for each page and KV head                       | order of reduction |
// |-------------------|-------------------------------------------------------|--------------------|
// | move_pages_kernel | 1,024 head_dim on each side; the bus limits the rate  | no sums            |
#include "backend/cuda/device.cuh"
#include "backend/cuda/kv_pages.h"

// MOST_ASIDE: thread blocks of a copy beside other kernels. They have 512 KB in flight, which is more than the bus needs, and
// leave the multiprocessors to the other kernels.
enum { THREADS = 256, AHEAD = 4, MOST_ASIDE = 32 };

// rows[j] = (k[j], v[j]) or back, for the rows j of a page. A piece has 16 bytes. A row of the host has head_dim / 4 pieces:
// those of K, then those of V. So the pieces of a page of the host are consecutive, and a warp moves 512 bytes of the bus at a
// time.
//
// Grid: (thread blocks that take the pages and KV heads in turn, layers). Needs: page_rows == THREADS; head_dim a multiple of
// 16, so that a thread has head_dim / 4 pieces, a multiple of AHEAD; all pointers 16-byte aligned.
template <bool TO_HOST>
static __global__ void __launch_bounds__(THREADS) move_pages_kernel(const __grid_constant__ sl_page_move m) {
    sl_start_next();
    sl_wait_previous();
    const int pieces = m.head_dim / 4, half = m.head_dim / 8;
    const size_t page_elems = (size_t)THREADS * m.head_dim;
    for (int item = blockIdx.x; item < m.n * m.n_kv_heads; item += gridDim.x) {
        const int i = item / m.n_kv_heads, head = item % m.n_kv_heads;
        const size_t at = blockIdx.y * m.k_layer + ((size_t)m.at[i] * m.n_kv_heads + head) * page_elems;
        uint4 *k = (uint4 *)(m.k + at), *v = (uint4 *)(m.v + at);
        uint4 *rows =
            (uint4 *)(m.rows + blockIdx.y * m.rows_layer + ((size_t)m.page[i] * m.n_kv_heads + head) * 2 * page_elems);
        for (int first = 0; first < pieces; first += AHEAD) {
            uint4 x[AHEAD], *ordinary[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int number = (first + j) * THREADS + threadIdx.x, row = number / pieces, piece = number % pieces;
                ordinary[j] = (piece < half ? k + piece : v + piece - half) + row * half;
                x[j] = __ldcg(TO_HOST ? ordinary[j] : rows + number);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++) *(TO_HOST ? rows + (first + j) * THREADS + threadIdx.x : ordinary[j]) = x[j];
        }
    }
}

void sl_cuda_move_pages(const sl_page_move *move, cudaStream_t stream) {
    if (move->n == 0) return;
    SL_CHECK(move->n <= SL_MOVE_MOST && move->page_rows == THREADS && move->head_dim % (4 * AHEAD) == 0);
    int n_items = move->n * move->n_kv_heads, n_blocks = move->aside && n_items > MOST_ASIDE ? (int)MOST_ASIDE : n_items;
    sl_launch(move->to_host ? move_pages_kernel<true> : move_pages_kernel<false>, dim3(n_blocks, move->n_layers), dim3(THREADS),
              0, stream, *move);
}
