// engine/cuda/dummy.cu - dummy weights made where they are used: engine/dummy.h's numbers, bit for bit.
#include "engine/cuda/device.h"
#include "engine/cuda/ops.h"
#include "engine/philox.h"

// out[i] = quantiles[16 bits of Philox block i / 8], one block of 8 elements a thread and turn: 16 bytes written, 8 reads of a
// table of 128 KB that stays in the caches. The last block may be partial.
static __global__ void dummy_fill_kernel(uint64_t key, const bf16 *quantiles, size_t n, bf16 *out) {
    sl_wait_previous();
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; b < (n + 7) / 8; b += stride) {
        sl_philox4 r = sl_philox((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)b, (uint32_t)(b >> 32), 0, SL_STREAM_WEIGHTS);
        for (size_t j = 0; j < 8 && 8 * b + j < n; j++) out[8 * b + j] = quantiles[r.v[j / 2] >> 16 * (j % 2) & 0xffff];
    }
    sl_start_next();
}

void sl_cuda_dummy_fill(uint64_t key, const bf16 *quantiles, size_t n, bf16 *out, cudaStream_t stream) {
    enum { THREADS = 256, BLOCKS = 132 * 8 };
    sl_launch(dummy_fill_kernel, dim3(BLOCKS), dim3(THREADS), 0, stream, key, quantiles, n, out);
}
