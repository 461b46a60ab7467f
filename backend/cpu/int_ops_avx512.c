// backend/cpu/int_ops_avx512.c - int_ops.inc.h compiled for avx512.
#define SL_ISA avx512
#include "backend/cpu/int_ops.inc.h"
