// backend/cpu/cpu_ops_portable.c - cpu_ops.inc.h compiled for portable.
#define SL_ISA portable
#include "backend/cpu/cpu_ops.inc.h"
