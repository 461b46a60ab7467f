// backend/cuda/packed_linear_zeros.cu - kernels for packed integers with zero points, or with columns in another order. See
// packed_linear.cuh.
#include "backend/cuda/packed_linear.cuh"

PACKED_LINEAR(SL_INT4, 1, 2)
PACKED_LINEAR(SL_INT4, 4, 2)
PACKED_LINEAR(SL_INT8, 1, 2)
PACKED_LINEAR(SL_INT8, 4, 2)
