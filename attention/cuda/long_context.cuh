// attention/cuda/long_context.cuh - contexts of more than 131,072 rows in kernels that draw.
//
// These kernels keep arrays of one head that grow with the context: block masses, running sums, page tables. Up to
// SL_CUDA_SHORT_ROWS rows the arrays lie in shared memory, and loops over them are unrolled. The Makefile compiles the
// same kernels a second time, with SL_LONG_CONTEXT. There the arrays lie in global memory (the workspace,
// or where another kernel has written them), and loops have a variable number of turns. The launcher of a short kernel calls
// the long one when max_kv is above SL_CUDA_SHORT_ROWS. Both draw the same rows. In santa_is.cu both fit on a multiprocessor
// next to the scores.
//
// Sums of masses: a row has at most 2^38 units, so a head of 2^21 rows has at most 2^59, and a thread's share of a head (at
// least 128 threads share it) at most 2^52. `threshold`, `divide` and sum_lanes rely on these bounds.
#ifndef SLEIGH_LONG_CONTEXT_CUH
#define SLEIGH_LONG_CONTEXT_CUH

#include "attention/attention_cuda.h"

namespace {

#ifdef SL_LONG_CONTEXT
enum { IS_LONG = 1, ROWS_MAX = SL_CUDA_LONG_ROWS };
// An array that grows with the context: a member of a struct in shared memory, or with SL_LONG_CONTEXT a pointer.
template <typename T, int N> using context_array = T *;
#else
enum { IS_LONG = 0, ROWS_MAX = SL_CUDA_SHORT_ROWS };
template <typename T, int N> using context_array = T[N];
#endif

} // namespace

#endif
