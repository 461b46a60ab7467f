// backend/cuda/packed_linear_groups.cu - kernels for packed weights with groups of 16 or 32 columns: the formats of GGUF files,
// NVFP4 and MXFP4. See packed_linear.cuh.
#include "backend/cuda/packed_linear.cuh"

PACKED_LINEAR(SL_INT8, 4, 1)
PACKED_LINEAR(SL_INT8, 8, 1)
PACKED_LINEAR(SL_UINT4, 4, 2)
PACKED_LINEAR(SL_UINT8, 4, 2)
PACKED_LINEAR(SL_IQ4, 4, 1)
PACKED_LINEAR(SL_FP4, 4, 1)
PACKED_LINEAR(SL_FP4, 8, 1)
