// backend/cpu/cpu_ops_avx512.c - cpu_ops.inc.h compiled for avx512.
#define SL_ISA avx512
#include "backend/cpu/cpu_ops.inc.h"
