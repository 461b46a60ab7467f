// attention/cuda/head_dim.cuh - calls the instance of a function template that is compiled for a head dimension.
//
// All models of docs/loading.md have heads of 64 or 128 numbers. Each further dimension adds half of the time to compile the
// kernels, and half of their size.
#ifndef SLEIGH_HEAD_DIM_CUH
#define SLEIGH_HEAD_DIM_CUH

#include "base/error.h"

// Calls FUNCTION<head_dim>(arguments). The backend has refused every other head_dim before the upload of weights.
#define SL_WITH_HEAD_DIM(HEAD_DIM, FUNCTION, ...)                                                                              \
    switch (HEAD_DIM) {                                                                                                        \
    case 64:                                                                                                                   \
        FUNCTION<64>(__VA_ARGS__);                                                                                             \
        break;                                                                                                                 \
    case 128:                                                                                                                  \
        FUNCTION<128>(__VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    default:                                                                                                                   \
        SL_CHECK(!"head_dim 64 or 128");                                                                                       \
    }

#endif
