// backend/cpu/blas_reserve.h - reserves the memory that OpenBLAS allocates itself.
//
// OpenBLAS does not report a failure: it retries without end when it cannot map a buffer for a thread.
#ifndef SLEIGH_CPU_RESERVE_H
#define SLEIGH_CPU_RESERVE_H

#include "base/error.h"

// Begins a call with n_threads threads: makes OpenBLAS map a buffer for each thread of all calls that run at this moment.
// OpenBLAS keeps the buffers, so most calls find what they need. SL_ERR_MEMORY: not enough memory. SL_ERR_ARG: too many
// threads.
int sl_cpu_reserve(int n_threads, sl_error *err);
void sl_cpu_unreserve(int n_threads); // ends the call

#endif
