// tests/support/take_known_probe_long.cu - take_known_on_gpu_long: the code for contexts of more than 131,072 rows
// (attention/cuda/long_context.cuh).
#define SL_LONG_CONTEXT
#define take_known_on_gpu take_known_on_gpu_long
#include "tests/support/take_known_probe.cu"
