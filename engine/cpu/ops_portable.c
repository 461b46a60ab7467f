// engine/cpu/ops_portable.c - ops.inc.h compiled for portable.
#define SL_ISA portable
#include "engine/cpu/ops.inc.h"
