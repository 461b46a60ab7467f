// backend/cuda/linear_queue.c - the packed matrices of a decode step that are not launched yet. Consecutive ones become one
// launch (sl_cuda_packed_linear). Everything else that is queued on the stream comes after them: sl_cuda_use launches them.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/packed_linear.h"

static int fits(const sl_cuda_linear *a, const sl_cuda_linear *b) {
    return a->packing.format == b->packing.format && a->packing.per_piece == b->packing.per_piece && a->n_rows == b->n_rows;
}

void sl_cuda_queue_linear(sl_cuda *c, const sl_cuda_linear *l) {
    if (c->n_queued == SL_PACKED_CHAIN || (c->n_queued && !fits(c->queued, l))) sl_cuda_launch_queue(c);
    c->queued[c->n_queued++] = *l;
}

void sl_cuda_launch_queue(sl_cuda *c) {
    int n = c->n_queued;
    c->n_queued = 0;
    if (n) sl_cuda_packed_linear(c->queued, n, c->arrived, c->stream);
}
