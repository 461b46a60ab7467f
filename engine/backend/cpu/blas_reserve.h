// engine/backend/cpu/blas_reserve.h - reserves the memory that OpenBLAS and OpenMP allocate themselves.
//
// These libraries do not report a failure. OpenBLAS retries without end when it cannot map a buffer for a thread. OpenMP ends
// the process when it cannot map the stack of a thread. A stack that is too small ends the process with a signal.
#ifndef SLEIGH_CPU_RESERVE_H
#define SLEIGH_CPU_RESERVE_H

#include "engine/base/error.h"

#include <stddef.h>

enum { SL_CPU_STACK = 1 << 20 }; // bytes of stack that a thread needs; the largest frames take a quarter

// Begins a call with n_threads threads on the calling thread: starts the threads, and makes OpenBLAS map a buffer for each
// thread of all calls that run at this moment. OpenBLAS keeps the buffers, so most calls find what they need. SL_ERR_MEMORY:
// not enough memory. SL_ERR_ARG: the stacks of threads are too small, or too many threads.
int sl_cpu_reserve(int n_threads, sl_error *err);
void sl_cpu_unreserve(int n_threads); // ends the call

#endif
