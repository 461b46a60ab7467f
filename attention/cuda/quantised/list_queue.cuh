// attention/cuda/quantised/list_queue.cuh - shares the lists of a query head among thread blocks, on CUDA (santa_is.cu).
//
// The rows that a head draws lie in one or more lists. A head with many rows would set the time of a step if one thread block
// read all of them. So thread blocks take the lists one by one. Two kinds of thread blocks take lists:
// - An assigned thread block belongs to one head. It takes lists of this head until none is left.
// - A roaming thread block belongs to no head. It waits for an open head with a list left, and takes lists of this head.
//   It ends when this head has no list left, or when all heads are settled and no open head has a list left.
//
// A head with at most as many lists as assigned thread blocks is an exception: thread block i takes list i, and the head is
// never open.
//
// The first assigned thread block of a head settles the head when it knows the number of lists. Before that, it opens the head
// if the head has more than one list.
//
// A list is taken once, and the sum of a list does not depend on the thread block that reads it. The lists are added in order.
// So the result does not depend on who takes what.
//
// GPUs start thread blocks in the order of their numbers, although CUDA does not promise it. We rely on this order: roaming
// thread blocks have the largest numbers, so none of them waits for a thread block that is not resident.
//
// Owns: the counters of a launch. The scoring kernel sets them to 0 before the drawing kernel may start (clear).
#ifndef SLEIGH_LIST_QUEUE_CUH
#define SLEIGH_LIST_QUEUE_CUH

#include "attention/cuda/score_keys.cuh"

namespace {

enum { LISTS_BITS = 8, QUEUE_HEAD = 3 }; // an entry of `open` is index << LISTS_BITS | number of lists

// [QUEUE_HEAD + 2 * n_heads]: n_open, n_settled, first_left, taken [n_heads], open [n_heads]. n_heads: query heads of all
// sequences. No entry of `open` before first_left has a list left.
struct list_queue {
    int *counters;          // NULL: every head has one list
    int n_heads, n_roaming; // n_roaming: roaming thread blocks
    __host__ __device__ int *n_open() const { return counters; }
    __host__ __device__ int *n_settled() const { return counters + 1; }
    __host__ __device__ int *first_left() const { return counters + 2; }
    __host__ __device__ int *taken() const { return counters + QUEUE_HEAD; }
    __host__ __device__ int *open() const { return counters + QUEUE_HEAD + n_heads; }
};

static inline list_queue take_queue(arena *from, int n_heads) {
    return {from->take<int>(QUEUE_HEAD + 2 * (size_t)n_heads), n_heads, 0};
}

// Memory that the scoring kernel clears for the kernel that draws: the counters of a queue, marks.ready of all heads
// (all_marks), and lists of fetched rows.
struct cleared_ints {
    int *at; // NULL: none
    int n;
};

// Clears the thread block's share. One warp of each thread block of the scoring kernel calls it, after sl_wait_previous and
// before sl_start_next. No other warp of the thread block calls sl_start_next.
__device__ void clear(const cleared_ints &x) {
    if (x.n == 0) return;
    for (int i = blockIdx.x * 32 + threadIdx.x % 32; i < x.n; i += gridDim.x * 32) __stcg(x.at + i, 0);
    __threadfence();
    __syncwarp(); // one lane that calls sl_start_next signals for the thread block, so all lanes must have stored before
}

// Makes the number of lists of head `index` known to roaming thread blocks. The first assigned thread block calls it once, with
// one thread.
__device__ void settle_head(const list_queue &q, int index, int n_lists) {
    if (q.n_roaming == 0) return;
    if (n_lists == 1) {
        atomicAdd(q.n_settled(), 1);
        return;
    }
    int *place = q.open() + atomicAdd(q.n_open(), 1);
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(place), "r"(index << LISTS_BITS | n_lists) : "memory");
    add_released(q.n_settled(), 1);
}

// Takes a list of head `index`. Returns its number; n_lists or more: no list is left. One thread calls it.
__device__ int take_list(const list_queue &q, int index) {
    return atomicAdd(q.taken() + index, 1);
}

// The work of a roaming thread block.
struct open_list {
    int index, list; // index -1: there is no more work
};

// Takes a list of the first open head that has one left, or waits for one. One warp calls it. A lane looks at one entry.
__device__ open_list find_open_list(const list_queue &q) {
    int lane = threadIdx.x % 32, first = load_acquired(q.first_left());
    for (;;) {
        bool all_settled = load_acquired(q.n_settled()) == q.n_heads; // before n_open: then no entry is missed
        int n_open = load_acquired(q.n_open()), entry = 0, index = 0, n_lists = 0;
        if (first + lane < n_open) entry = load_acquired(q.open() + first + lane); // 0: the entry is not written yet
        index = entry >> LISTS_BITS, n_lists = entry & ((1 << LISTS_BITS) - 1);
        bool has_left = entry && load_acquired(q.taken() + index) < n_lists;
        uint32_t left = __ballot_sync(~0u, has_left), written = __ballot_sync(~0u, entry != 0);
        if (left) {
            int from = __ffs(left) - 1, list = 0;
            if (lane == from) list = take_list(q, index);
            list = __shfl_sync(~0u, list, from), index = __shfl_sync(~0u, index, from);
            if (list < __shfl_sync(~0u, n_lists, from)) return {index, list};
        } else if (written == ~0u) {
            first += 32;
            if (lane == 0) atomicMax(q.first_left(), first);
        } else if (all_settled && __popc(written) == max(n_open - first, 0)) {
            return {-1, 0};
        } else {
            __nanosleep(100);
        }
    }
}

} // namespace

#endif
