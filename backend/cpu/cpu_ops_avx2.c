// backend/cpu/cpu_ops_avx2.c - cpu_ops.inc.h compiled for avx2.
#define SL_ISA avx2
#include "backend/cpu/cpu_ops.inc.h"
