// base/comm.h - a communicator: the ranks that share one model (tensor parallel), and what they exchange in a pass.
//
// A table of functions, so that ranks on CPUs (base/shared_comm.h) and ranks on GPUs can exchange their data in different ways.
// All ranks make the same calls in the same order. A call does not fail: when a rank is lost, the process ends (base/ranks.h).
#ifndef SLEIGH_COMM_H
#define SLEIGH_COMM_H

#include <stddef.h>

enum {
    SL_MOST_RANKS = 8,    // of one model
    SL_COMM_BOARD = 4096, // bytes of a rank's board: a page
};

typedef struct sl_comm sl_comm;
struct sl_comm {
    int rank, n; // this rank, below n; n is 2, 4 or 8
    // all: [n][n_floats], the parts of all ranks in their order. part: [n_floats], not a part of `all`
    void (*all_gather)(sl_comm *c, const float *part, size_t n_floats, float *all);
    void (*broadcast)(sl_comm *c, void *data, size_t n_bytes); // rank 0's data replace those of the others
    // Ends all ranks; one of them prints the text. Any thread may call it. It does not return.
    void (*fail)(sl_comm *c, const char *text);
    void *board; // [n][SL_COMM_BOARD] memory that all ranks map, which begins with a page. Zeros at the start
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

// What a rank has of a weight.
typedef enum {
    SL_CUT_NOT,  // all of it
    SL_CUT_ROWS, // a part of the rows; of a vector: of the elements
    SL_CUT_COLS,
} sl_cut;

#endif
