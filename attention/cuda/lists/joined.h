// attention/cuda/lists/joined.h - the kernels of `first+value` with topk, topp, streaming, quest or dense-q as the first
// method. The functions of the first method's table call these for a specification with a second method.
#ifndef SLEIGH_JOINED_H
#define SLEIGH_JOINED_H

#include "attention/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

// `workspace` and `decode`. The second table: the same for engines whose sequences may have more than SL_CUDA_SHORT_ROWS rows;
// only the first table calls it.
extern const sl_attn_cuda_ops sl_joined_cuda_ops, sl_joined_long_cuda_ops;

#ifdef __cplusplus
}
#endif

#endif
