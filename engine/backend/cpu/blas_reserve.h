// engine/backend/cpu/blas_reserve.h - the memory that OpenBLAS and OpenMP take on their own, taken before it is needed.
//
// Neither can refuse: OpenBLAS tries for ever to map a buffer for each thread that multiplies, OpenMP ends the process when a
// thread's stack cannot be mapped, and a stack that is too small ends it with a signal.
#ifndef SLEIGH_CPU_RESERVE_H
#define SLEIGH_CPU_RESERVE_H

#include "engine/base/error.h"

#include <stddef.h>

enum { SL_CPU_STACK = 1 << 20 }; // bytes of a stack that are enough: the largest frames have a quarter of it

size_t sl_cpu_thread_stack(void); // bytes that OpenMP gives a thread: OMP_STACKSIZE, else the system's default
// Starts n threads, and makes OpenBLAS map their buffers, which it keeps. SL_ERR_MEMORY when they do not fit, SL_ERR_ARG when
// threads' stacks are too small. Nothing to do when it was done for as many threads before. The caller holds a lock.
int sl_cpu_reserve(int n_threads, sl_error *err);

#endif
