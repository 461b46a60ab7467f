// attention/cuda/quantised/santa_is_long.cu - santa-is for contexts of more than 131,072 rows: the kernels of santa_is.cu with
// their arrays in global memory (long_context.cuh).
#define SL_LONG_CONTEXT
#include "attention/cuda/quantised/santa_is.cu"
