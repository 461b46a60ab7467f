// engine/cpu/ops_avx512.c - ops.inc.h compiled for avx512.
#define SL_ISA avx512
#include "engine/cpu/ops.inc.h"
