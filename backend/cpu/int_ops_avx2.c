// backend/cpu/int_ops_avx2.c - int_ops.inc.h compiled for avx2.
#define SL_ISA avx2
#include "backend/cpu/int_ops.inc.h"
