// attention/cuda/santa/pps_long.cu - santa-pps for contexts of more than 131,072 rows: the kernels of pps.cu with their arrays
// in global memory (long_context.cuh).
#define SL_LONG_CONTEXT
#include "attention/cuda/santa/pps.cu"
