// engine/cpu/ops_avx2.c - ops.inc.h compiled for avx2.
#define SL_ISA avx2
#include "engine/cpu/ops.inc.h"
