// base/comm.h - a communicator: the ranks that share one model (tensor parallel), and what they exchange in a pass.
//
// A table of functions, so that ranks on CPUs (base/shared_comm.h) and ranks on GPUs can exchange their data in different ways.
// All ranks make the same calls in the same order. A call does not fail: when a rank is lost, the process ends (base/ranks.h).
#ifndef SLEIGH_COMM_H
#define SLEIGH_COMM_H

#include <stddef.h>

enum { SL_MOST_RANKS = 8 }; // of one model

typedef struct sl_comm sl_comm;
struct sl_comm {
    int rank, n; // this rank, below n; n is 2, 4 or 8
    // all: [n][n_floats], the parts of all ranks in their order. part: [n_floats], not a part of `all`
    void (*all_gather)(sl_comm *c, const float *part, size_t n_floats, float *all);
    void (*broadcast)(sl_comm *c, void *data, size_t n_bytes); // rank 0's data replace those of the others
};

// Without a communicator there is one rank.
static inline int sl_comm_n(const sl_comm *c) {
    return c ? c->n : 1;
}
static inline int sl_comm_rank(const sl_comm *c) {
    return c ? c->rank : 0;
}

// Which of n equal parts of a model a rank has. n 0: as 1
typedef struct sl_shard {
    int rank, n;
} sl_shard;

#endif
