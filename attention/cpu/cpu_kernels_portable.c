// attention/cpu/cpu_kernels_portable.c - cpu_kernels.inc.h compiled for portable.
#define SL_ISA portable
#include "attention/cpu/cpu_kernels.inc.h"
