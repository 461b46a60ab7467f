// backend/cpu/int_ops_portable.c - int_ops.inc.h compiled for portable.
#define SL_ISA portable
#include "backend/cpu/int_ops.inc.h"
