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

// ---- units of one head dimension ----
//
// santa_is.cu and pps.cu compile for more than 40 s with all head dimensions. So the Makefile compiles these files once for
// each head dimension: a unit with SL_HEAD_128 has the kernels for heads of 128 numbers, and a unit without it the kernels for
// heads of 64. Each unit has a table of functions. `decode` of the table for 64 calls the table for 128 where a model needs it.
#ifdef SL_HEAD_128
#define SL_UNIT_DIM _128
enum { UNIT_DIM = 128 };
#else
#define SL_UNIT_DIM
enum { UNIT_DIM = 64 };
#endif
#ifdef SL_HOST_ROWS
#define SL_UNIT_PLACE _host
#else
#define SL_UNIT_PLACE
#endif
#ifdef SL_LONG_CONTEXT
#define SL_UNIT_CONTEXT _long
#else
#define SL_UNIT_CONTEXT
#endif

#define SL_JOIN(NAME, PLACE, CONTEXT, DIM) NAME##PLACE##CONTEXT##DIM##_cuda_ops
#define SL_JOIN_EXPANDED(...) SL_JOIN(__VA_ARGS__)
// The name of the unit's table, as sl_santa_is_host_long_128_cuda_ops, and of the table for 128 of the same place and context.
#define SL_TABLE_OF_UNIT(NAME) SL_JOIN_EXPANDED(NAME, SL_UNIT_PLACE, SL_UNIT_CONTEXT, SL_UNIT_DIM)
#define SL_TABLE_OF_128(NAME) SL_JOIN_EXPANDED(NAME, SL_UNIT_PLACE, SL_UNIT_CONTEXT, _128)

#endif
