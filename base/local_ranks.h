// base/local_ranks.h - ranks without a launcher: the first rank starts the others on its host, and Unix sockets connect them.
//
// The functions of sl_mpi stand in for those of Open MPI, so base/ranks.c works in the same way with both.
#ifndef SLEIGH_LOCAL_RANKS_H
#define SLEIGH_LOCAL_RANKS_H

#include "base/mpi.h"

// Makes a socket for each pair of n ranks, and n - 1 copies of this process. Returns in all n processes. comm_rank tells which
// one this is. When the first process ends, the system ends the others. SL_ERR_IO: no socket, or no process
int sl_local_ranks_start(int n, sl_mpi *out, sl_error *err);

// Closes this rank's sockets, and frees what sl_local_ranks_start made. No thread uses the functions any more. The first rank
// waits up to 2 s in all for the ends of the other processes, which free their GPUs.
void sl_local_ranks_end(sl_mpi *mpi);

#endif
