// backend/cuda/packed_linear_plain.cu - kernels for packed weights without zero points, most of them with large groups. See
// packed_linear.cuh.
#include "backend/cuda/packed_linear.cuh"

PACKED_LINEAR(SL_INT4, 1, 1)
PACKED_LINEAR(SL_INT4, 4, 1)
PACKED_LINEAR(SL_INT8, 1, 1)
PACKED_LINEAR(SL_FP8, 1, 1)
