// attention/cpu/cpu_kernels_avx2.c - cpu_kernels.inc.h compiled for avx2.
#define SL_ISA avx2
#include "attention/cpu/cpu_kernels.inc.h"
