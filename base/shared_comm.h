// base/shared_comm.h - a communicator of ranks on one host, through shared memory.
#ifndef SLEIGH_SHARED_COMM_H
#define SLEIGH_SHARED_COMM_H

#include "base/comm.h"
#include "base/ranks.h"

// Connects the n ranks from rank `first` on, of which this process is one. All n ranks call it. SL_ERR_UNSUPPORTED: they are
// on different hosts. r outlives the communicator.
int sl_shared_comm_open(sl_ranks *r, int first, int n, sl_comm **out, sl_error *err);
void sl_shared_comm_close(sl_comm *c); // NULL: nothing

#endif
