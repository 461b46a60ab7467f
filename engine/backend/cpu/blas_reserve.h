// engine/backend/cpu/blas_reserve.h - reserves the memory that OpenBLAS and OpenMP allocate themselves.
//
// These libraries do not report a failure. OpenBLAS retries without end when it cannot map a buffer for a thread. OpenMP ends
// the process when it cannot map the stack of a thread. A stack that is too small ends the process with a signal.
#ifndef SLEIGH_CPU_RESERVE_H
#define SLEIGH_CPU_RESERVE_H

#include "engine/base/error.h"

#include <stddef.h>

enum { SL_CPU_STACK = 1 << 20 }; // bytes of stack that a thread needs; the largest frames take a quarter

// Starts n_threads threads, and makes OpenBLAS map a buffer for each of them; OpenBLAS keeps the buffers. Does nothing when an
// earlier call had at least as many threads. The caller holds a lock. SL_ERR_MEMORY: not enough memory. SL_ERR_ARG: the stacks
// of threads are too small.
int sl_cpu_reserve(int n_threads, sl_error *err);

#endif
