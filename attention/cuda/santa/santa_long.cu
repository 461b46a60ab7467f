// attention/cuda/santa/santa_long.cu - the SANTA family for contexts of more than 131,072 rows: the kernels of santa.cu with
// their arrays in global memory (long_context.cuh).
#define SL_LONG_CONTEXT
#include "attention/cuda/santa/santa.cu"
