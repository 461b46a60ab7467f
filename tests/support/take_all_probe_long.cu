// tests/support/take_all_probe_long.cu - take_all_on_gpu_long: the code for contexts of more than 131,072 rows
// (attention/cuda/long_context.cuh).
#define SL_LONG_CONTEXT
#define take_all_on_gpu take_all_on_gpu_long
#include "tests/support/take_all_probe.cu"
