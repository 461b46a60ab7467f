// attention/cpu/cpu_kernels_avx512.c - cpu_kernels.inc.h compiled for avx512.
#define SL_ISA avx512
#include "attention/cpu/cpu_kernels.inc.h"
