// backend/cpu/cpu_ranks.h - the CPU backend of a rank of a tensor-parallel run.
#ifndef SLEIGH_CPU_RANKS_H
#define SLEIGH_CPU_RANKS_H

#include "backend/backend.h"
#include "base/comm.h"

// The ranks that share the model. From then on, linear with `accumulate`, and linear_norm, take this rank's columns of the
// weight and of x, and add the sum over all ranks to out. Call it before `prepare`, which refuses weights whose leaves
// (backend/cpu/leaves.h) would lie on two ranks. comm outlives the backend.
void sl_cpu_use_comm(const sl_backend *be, sl_comm *comm);

#endif
