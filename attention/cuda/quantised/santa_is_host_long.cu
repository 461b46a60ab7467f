// attention/cuda/quantised/santa_is_host_long.cu - the kernels of santa_is_host.cu for contexts of more than 131,072 rows
// (long_context.cuh).
#define SL_LONG_CONTEXT
#define SL_HOST_ROWS
#include "attention/cuda/quantised/santa_is.cu"
