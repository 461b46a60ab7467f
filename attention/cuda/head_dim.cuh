// attention/cuda/head_dim.cuh - from a head dimension at run time to kernels that are compiled for it.
#ifndef SLEIGH_HEAD_DIM_CUH
#define SLEIGH_HEAD_DIM_CUH

#include "engine/base/error.h"

#include <type_traits>

// Calls f(std::integral_constant<int, head_dim>()). The backend has refused every other one before weights were uploaded.
template <typename F> static void sl_with_head_dim(int head_dim, F f) {
    switch (head_dim) {
    case 64:
        return f(std::integral_constant<int, 64>());
    case 80:
        return f(std::integral_constant<int, 80>());
    case 96:
        return f(std::integral_constant<int, 96>());
    case 128:
        return f(std::integral_constant<int, 128>());
    default:
        SL_CHECK(!"head_dim 64, 80, 96 or 128");
    }
}

#endif
