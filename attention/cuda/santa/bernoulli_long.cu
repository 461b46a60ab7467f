// attention/cuda/santa/bernoulli_long.cu - Bernoulli qK^T with a sampler for contexts of more than 131,072 rows: the kernels of
// bernoulli.cu with their arrays in global memory (long_context.cuh).
#define SL_LONG_CONTEXT
#include "attention/cuda/santa/bernoulli.cu"
