// attention/cuda/layer_state.cuh - what a layer keeps in a session's state from step to step, on CUDA: its threshold and the
// steps of its heads (threshold.h).
//
// A layer has two places for a step. Steps at even and odd positions alternate. So a head never overwrites a value that another
// head of the step still reads. A place holds an sl_threshold, which head 0 writes, and [n_heads] sl_threshold_step. The
// threshold of position i is valid for a step at position i + 1. Between two clears of the state, positions only grow. A
// repeated step gives equal bits.
#ifndef SLEIGH_LAYER_STATE_CUH
#define SLEIGH_LAYER_STATE_CUH

#include "attention/attention_cuda.h"
#include "attention/threshold.h"

namespace {

// Multiples of 16 bytes, as all parts of a layer's state: the places end where the state ends (count_stated.cu).
static_assert(sizeof(sl_threshold) % 16 == 0 && sizeof(sl_threshold_step) % 16 == 0, "places");

// Bytes of one place.
__host__ __device__ size_t place_bytes(int n_heads) {
    return sizeof(sl_threshold) + n_heads * sizeof(sl_threshold_step);
}

// The place of a position. state_at: the first place of the layer, in a session's state.
__device__ sl_threshold *threshold_at(const sl_row &row, size_t state_at, int n_heads, int position) {
    return (sl_threshold *)(row.state + state_at + (unsigned)position % 2 * place_bytes(n_heads));
}

// |output|^2 of a query head in the step before; 0: no such step.
__device__ double square_before(const sl_row &row, size_t state_at, int n_heads, int head) {
    const sl_threshold *before = threshold_at(row, state_at, n_heads, row.position - 1);
    const sl_threshold_step *step = (const sl_threshold_step *)(before + 1) + head;
    uint32_t next = __ldcg(&before->next);
    double square = __ldcg(&step->squares);
    return row.position > 0 && next == (uint32_t)row.position ? square : 0;
}

} // namespace

#endif
