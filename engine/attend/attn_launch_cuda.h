// engine/attend/attn_launch_cuda.h - checks a method, and fills the arguments of its launch on a GPU. attn_runner_cuda.c
// launches the plan's methods, observe_cuda.c also shadows.
#ifndef SLEIGH_ATTN_LAUNCH_CUDA_H
#define SLEIGH_ATTN_LAUNCH_CUDA_H

#include "attention/attention_cuda.h"
#include "engine/engine_internal.h"

// The kernels of a method for this engine: those for rows in host memory, if K and V lie there, or for a cache of fp8 or int8.
const sl_attn_cuda_ops *sl_cuda_ops_of(const sl_engine *e, const sl_attn_spec *spec);
int sl_cuda_needs(const sl_attn_spec *spec, sl_kv_need *out); // page extras of a method
// SL_ERR_UNSUPPORTED when decode with spec is not offered here. Makes the pool keep its page extras. where: for the message,
// "layer 3".
int sl_cuda_check_method(sl_engine *e, const sl_attn_spec *spec, const char *where, sl_error *err);
// The arguments of a launch of spec on a layer's queries. The caller fills in n_seqs, rows, out, stats, ws and state_at. Makes
// the engine's GPU the current device.
sl_attn_cuda_decode_args sl_cuda_decode_args_of(sl_engine *e, const sl_attn_spec *spec, int layer, const bf16 *q);
// The first rows of a step that attend exactly in a layer, because their sequences have few rows.
int sl_cuda_exact_rows(const sl_batch *b, int layer);
// The arguments of dense attention in place of the layer's method, of rows of args that attend exactly.
sl_attn_cuda_decode_args sl_cuda_exact_args_of(sl_engine *e, const sl_plan *plan, const sl_attn_cuda_decode_args *args);

#endif
