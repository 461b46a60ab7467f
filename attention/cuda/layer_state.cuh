// attention/cuda/layer_state.cuh - what a layer keeps in a session's state from step to step, on CUDA: its threshold and the
// steps of its heads (threshold.h).
//
// A layer has two places for a step. Steps at even and odd positions alternate. So a head never overwrites a value that another
// head of the step still reads. A place holds the sl_threshold of its step, and [n_heads] sl_threshold_step, one from each
// head. The step before has planned the threshold (end_step.cu). Between two clears of the state, positions only grow. A
// repeated step gives equal bits.
#ifndef SLEIGH_LAYER_STATE_CUH
#define SLEIGH_LAYER_STATE_CUH

#include "attention/attention_cuda.h"
#include "attention/budgets/threshold.h"

namespace {

// The sizes are multiples of 16 bytes, like those of all parts of a layer's state. So the places end where the state ends
// (end_step.cu).
static_assert(sizeof(sl_threshold) % 16 == 0 && sizeof(sl_threshold_step) % 16 == 0, "places");

// Bytes of one place.
__host__ __device__ size_t place_bytes(int n_heads) {
    return sizeof(sl_threshold) + n_heads * sizeof(sl_threshold_step);
}

// The place of a position. state_at: the first place of the layer, in a session's state.
__device__ sl_threshold *threshold_at(const sl_row &row, size_t state_at, int n_heads, int position) {
    return (sl_threshold *)(row.state + state_at + (unsigned)position % 2 * place_bytes(n_heads));
}

// Whether the step before has planned the threshold of the step at `position`.
__device__ bool is_planned(const sl_threshold &t, int position) {
    return position > 0 && t.next == (uint32_t)position;
}

// |output|^2 of a query head in the step before; 0: no such step.
__device__ double square_before(const sl_row &row, size_t state_at, int n_heads, int head) {
    const sl_threshold *now = threshold_at(row, state_at, n_heads, row.position);
    const sl_threshold *before = threshold_at(row, state_at, n_heads, row.position - 1);
    sl_threshold t = {.next = __ldcg(&now->next), .kappa = 0, .margin = 0, .spread = 0};
    double square = __ldcg(&((const sl_threshold_step *)(before + 1) + head)->squares);
    return is_planned(t, row.position) ? square : 0;
}

} // namespace

#endif
