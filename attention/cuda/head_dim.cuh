// attention/cuda/head_dim.cuh - calls the instance of a function template that is compiled for a head dimension.
#ifndef SLEIGH_HEAD_DIM_CUH
#define SLEIGH_HEAD_DIM_CUH

#include "base/error.h"

// Calls FUNCTION<head_dim>(arguments). The backend has refused every other head_dim before the upload of weights.
#define SL_WITH_HEAD_DIM(HEAD_DIM, FUNCTION, ...)                                                                              \
    switch (HEAD_DIM) {                                                                                                        \
    case 64:                                                                                                                   \
        FUNCTION<64>(__VA_ARGS__);                                                                                             \
        break;                                                                                                                 \
    case 80:                                                                                                                   \
        FUNCTION<80>(__VA_ARGS__);                                                                                             \
        break;                                                                                                                 \
    case 96:                                                                                                                   \
        FUNCTION<96>(__VA_ARGS__);                                                                                             \
        break;                                                                                                                 \
    case 128:                                                                                                                  \
        FUNCTION<128>(__VA_ARGS__);                                                                                            \
        break;                                                                                                                 \
    default:                                                                                                                   \
        SL_CHECK(!"head_dim 64, 80, 96 or 128");                                                                               \
    }

#endif
