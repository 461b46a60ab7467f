// attention/cuda/santa/end_step.cu - ends a step of layers that carry a threshold, on CUDA: from the steps of a layer's heads
// it plans the threshold of the next step, and counts the error that the layer has stated (threshold.h). The draws of the step
// need neither result, so the kernel runs after the last layer.
#include "attention/cuda/santa/carried.cuh"

namespace {

// Adds the stated error of a layer's step to the statistics, as sl_attn_stats_add_stated does. b: the error bound of the step.
__device__ void count_certificate(const carried_params &c, double b, const sl_threshold_step &sum, sl_attn_cuda_stats *stats) {
    double size = sqrt(sum.squares); // infinite where a square exceeds fp32
    float stated = (float)sl_stated_error(b, size);
    atomicAdd(&stats->stated, 1ull);
    if (sl_is_certified(b, size, c.share)) atomicAdd(&stats->certified, 1ull);
    if (!(stated <= SL_STATED_MOST)) {
        atomicAdd(&stats->unbounded, 1ull);
        return;
    }
    atomicAdd(&stats->stated_units, (unsigned long long)((double)stated * SL_STATED_UNIT + 0.5));
    atomicMax(&stats->stated_most, (unsigned long long)__float_as_uint(stated));
}

// Grid: [sequences][layers], one warp for each.
// Bytes: for each layer and sequence 96 bytes of thresholds, and 80 for each head.
__global__ void end_step_kernel(carried_params c, const sl_row *rows, size_t layer_bytes, sl_attn_cuda_stats *stats) {
    __shared__ sl_threshold_step sum;
    sl_start_next();
    sl_wait_previous();
    const sl_row row = rows[blockIdx.x];
    c.state_at += blockIdx.y * layer_bytes;
    sl_threshold t = threshold_of(c, row);
    sum_steps(c, row, row.position, &sum, threadIdx.x);
    if (threadIdx.x > 0) return;
    *threshold_at(c, row, row.position) = t; // for tests, which read it: a step that has searched has kappa 0
    double b = move_threshold(c, &t, sum);
    t.next = (uint32_t)row.position + 1;
    if (row.position + 1 < c.short_rows) t.kappa = 0;
    *threshold_at(c, row, row.position + 1) = t;
    if (c.rows == 0 && stats) count_certificate(c, b, sum, stats);
}

} // namespace

void sl_cuda_end_step(const sl_attn_cuda_decode_args *a, int n_layers, size_t layer_bytes) {
    if (!sl_carries_threshold(a->spec)) return;
    size_t before = a->spec->method->cuda->state(a->geom, a->spec) - carried_state(a->geom, a->spec); // the places come last
    sl_launch(end_step_kernel, dim3(a->n_seqs, n_layers), dim3(32), 0, a->stream, carried_params_of(a, a->state_at + before),
              a->rows, layer_bytes, a->stats);
}
