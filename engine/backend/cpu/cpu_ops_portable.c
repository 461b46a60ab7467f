// engine/backend/cpu/cpu_ops_portable.c - cpu_ops.inc.h compiled for portable.
#define SL_ISA portable
#include "engine/backend/cpu/cpu_ops.inc.h"
