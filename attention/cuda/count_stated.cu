// attention/cuda/count_stated.cu - counts the errors that layers state in a step, on CUDA (threshold.h). The steps of a layer's
// heads give the error. No draw needs it, so the kernel runs after the last layer of a step.
#include "attention/cuda/carried.cuh"

namespace {

// Adds the stated error of a layer's step to the statistics, as sl_attn_stats_add_stated does. t: the threshold of the step.
__device__ void count_certificate(const carried_params &c, sl_threshold t, const sl_threshold_step &sum,
                                  sl_attn_cuda_stats *stats) {
    double b = move_threshold(c, &t, sum), size = sqrt(sum.squares);
    float stated = (float)(b < size ? b / (size - b) : b > 0 ? INFINITY : 0);
    atomicAdd(&stats->stated, 1ull);
    if (b <= c.share * size) atomicAdd(&stats->certified, 1ull);
    if (!(stated <= SL_STATED_MOST)) {
        atomicAdd(&stats->unbounded, 1ull);
        return;
    }
    atomicAdd(&stats->stated_units, (unsigned long long)((double)stated * SL_STATED_UNIT + 0.5));
    atomicMax(&stats->stated_most, (unsigned long long)__float_as_uint(stated));
}

// Grid: [sequences][layers], one warp for each.
// Bytes: the state of the step, 32 bytes for each layer and sequence, and 80 for each head of them.
__global__ void count_stated_kernel(carried_params c, const sl_row *rows, size_t layer_bytes, sl_attn_cuda_stats *stats) {
    __shared__ sl_threshold_step sum;
    sl_start_next();
    sl_wait_previous();
    const sl_row row = rows[blockIdx.x];
    c.state_at += blockIdx.y * layer_bytes;
    const sl_threshold *now = threshold_at(c, row, row.position);
    sl_threshold t = {.next = 0, .kappa = __ldcg(&now->kappa), .margin = __ldcg(&now->margin), .spread = __ldcg(&now->spread)};
    sum_steps(c, row, row.position, &sum, threadIdx.x);
    if (threadIdx.x == 0) count_certificate(c, t, sum, stats);
}

} // namespace

void sl_cuda_count_stated(const sl_attn_cuda_decode_args *a, int n_layers, size_t layer_bytes) {
    if (!a->stats || !sl_attn_certifies_layer(a->spec)) return;
    size_t before = a->spec->method->cuda->state(a->geom, a->spec) - carried_state(a->geom, a->spec); // the places come last
    sl_launch(count_stated_kernel, dim3(a->n_seqs, n_layers), dim3(32), 0, a->stream,
              carried_params_of(a, a->state_at + before), a->rows, layer_bytes, a->stats);
}
