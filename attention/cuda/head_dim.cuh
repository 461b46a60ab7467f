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

// ---- units of two head dimensions ----
//
// santa_is.cu and pps.cu compile for more than 40 s with all head dimensions. So the Makefile compiles these files twice: a
// unit with SL_WIDE_HEADS has the kernels for heads of 96 and 128 numbers, and a unit without it the others. Each unit has a
// table of functions. `decode` of the other table calls the wide one where a model needs it.
#ifdef SL_WIDE_HEADS
#define SL_UNIT_HEADS _wide
enum { IS_WIDE = 1, UNIT_DIM_A = 96, UNIT_DIM_B = 128 };
#else
#define SL_UNIT_HEADS
enum { IS_WIDE = 0, UNIT_DIM_A = 64, UNIT_DIM_B = 80 };
#endif
static inline int is_head_of_unit(int head_dim) {
    return head_dim == UNIT_DIM_A || head_dim == UNIT_DIM_B;
}
// SL_WITH_HEAD_DIM for a head_dim of the unit.
#define SL_WITH_HEAD_DIM_OF_UNIT(HEAD_DIM, FUNCTION, ...)                                                                      \
    switch (HEAD_DIM) {                                                                                                        \
    case UNIT_DIM_A:                                                                                                           \
        FUNCTION<UNIT_DIM_A>(__VA_ARGS__);                                                                                     \
        break;                                                                                                                 \
    case UNIT_DIM_B:                                                                                                           \
        FUNCTION<UNIT_DIM_B>(__VA_ARGS__);                                                                                     \
        break;                                                                                                                 \
    default:                                                                                                                   \
        SL_CHECK(!"head_dim of this unit");                                                                                    \
    }
#if defined SL_OFFLOADED_ROWS
#define SL_UNIT_PLACE _offloaded
#elif defined SL_BYTE_ROWS
#define SL_UNIT_PLACE _bytes
#else
#define SL_UNIT_PLACE
#endif
#ifdef SL_LONG_CONTEXT
#define SL_UNIT_CONTEXT _long
#else
#define SL_UNIT_CONTEXT
#endif

#define SL_JOIN(NAME, PLACE, CONTEXT, HEADS) NAME##PLACE##CONTEXT##HEADS##_cuda_ops
#define SL_JOIN_EXPANDED(...) SL_JOIN(__VA_ARGS__)
// The name of the unit's table, as sl_santa_is_offloaded_long_wide_cuda_ops, of the wide table of the same place and context,
// and of the table for long contexts of the same place.
#define SL_TABLE_OF_UNIT(NAME) SL_JOIN_EXPANDED(NAME, SL_UNIT_PLACE, SL_UNIT_CONTEXT, SL_UNIT_HEADS)
#define SL_WIDE_TABLE(NAME) SL_JOIN_EXPANDED(NAME, SL_UNIT_PLACE, SL_UNIT_CONTEXT, _wide)
#define SL_LONG_TABLE(NAME) SL_JOIN_EXPANDED(NAME, SL_UNIT_PLACE, _long, )

#endif
