// attention/cuda/hot_rows.cu - takes the rows that a step has fetched into the cache of hot rows (hot_rows.cuh).
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/hot_rows.cuh"

namespace {

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BLOCKS = 32,            // thread blocks of a KV head; block b owns the sets b, b + BLOCKS, ..
    EACH = 4,               // entries of the lists that a thread reads together
    ROUND = THREADS * EACH, // entries that a thread block reads together
    GROUPS = ROUND / 32,    // groups of 32 entries; a warp has EACH of them
    AHEAD = 8,              // rows of a warp in flight
};
static_assert(GROUPS == 32, "a lane counts a group");

// The rows of a round whose sets belong to the thread block, in the order of the lists.
struct own_rows {
    int n_of[GROUPS];             // own rows of each group
    int row[ROUND], entry[ROUND]; // pool row; its entry in the lists
};

// The ways of a set.
struct hot_set {
    uint64_t tag[SL_HOT_WAYS];
    uint32_t order;
};

__device__ hot_set load_set(const sl_kv_hot_rows &hot, size_t set) {
    const ulonglong2 *tags = (const ulonglong2 *)(hot.tags + set * SL_HOT_WAYS);
    hot_set x;
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS; i += 2) {
        ulonglong2 both = __ldcg(tags + i / 2);
        x.tag[i] = both.x, x.tag[i + 1] = both.y;
    }
    x.order = __ldcg(hot.order + set);
    return x;
}

__device__ void store_set(const sl_kv_hot_rows &hot, size_t set, const hot_set &x) {
    ulonglong2 *tags = (ulonglong2 *)(hot.tags + set * SL_HOT_WAYS);
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS; i += 2) __stcg(tags + i / 2, make_ulonglong2(x.tag[i], x.tag[i + 1]));
    __stcg(hot.order + set, x.order);
}

// The set of lane `from`.
__device__ hot_set set_of_lane(const hot_set &x, int from) {
    hot_set y;
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS; i++) y.tag[i] = __shfl_sync(~0u, x.tag[i], from);
    y.order = __shfl_sync(~0u, x.order, from);
    return y;
}

// Uses a row: it becomes the most recent one of the set. If the set does not have it, it replaces the least recent one. Returns
// its way. *is_new: the set did not have the row.
__device__ int use_row(hot_set *x, uint64_t tag, bool *is_new) {
    int way = -1;
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS; i++) way = x->tag[i] == tag ? i : way;
    *is_new = way < 0;
    if (way < 0) way = sl_hot_oldest(x->order);
#pragma unroll
    for (int i = 0; i < SL_HOT_WAYS; i++) x->tag[i] = i == way ? tag : x->tag[i];
    x->order = sl_hot_used(x->order, way);
    return way;
}

// Copies K and V of the lanes with `copies`. All lanes copy each row together.
template <int DIM> __device__ void copy_rows(bool copies, const bf16 *from, bf16 *to, int lane) {
    uint32_t left = __ballot_sync(~0u, copies);
    while (left) {
        uint4 x[AHEAD];
        uint4 *place[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++, left &= left - 1) {
            int i = left ? __ffs(left) - 1 : 0;
            const uint4 *row = (const uint4 *)__shfl_sync(~0u, (unsigned long long)from, i) + lane;
            place[j] = (uint4 *)__shfl_sync(~0u, (unsigned long long)to, i) + lane;
            if (!left || lane >= DIM / 4) place[j] = NULL;
            x[j] = place[j] ? __ldcg(row) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (place[j]) __stcg(place[j], x[j]);
    }
}

// Takes the rows of all lanes, in the order of the lanes. row: a pool row; -1: the lane has none. from: K and V of the row. The
// sets are loaded together. Lanes with the same set use their rows in turn, each with the set as the lane before has left it.
// The last one stores the set. Of rows that replace each other, only the last one is copied.
template <int DIM> __device__ void take_rows(const sl_cuda_hot_lists &p, int row, const bf16 *from, int lane) {
    const sl_kv_hot_rows &hot = p.hot;
    bool has = row >= 0, is_new = false;
    size_t set = has ? hot_set_of(hot, p.n_kv_heads, row) : 0;
    uint64_t tag = has ? hot_tag_of(hot, p.n_kv_heads, row) : 0;
    hot_set x = {};
    if (has) x = load_set(hot, set);
    uint32_t same = __match_any_sync(~0u, has ? (unsigned long long)set : ~(unsigned long long)lane); // lanes of the set
    uint32_t before = same & ((1u << lane) - 1);
    int turn = __popc(before), way = 0, n_turns = __reduce_max_sync(~0u, has ? turn + 1 : 0);
    if (has && turn == 0) way = use_row(&x, tag, &is_new);
    for (int i = 1; i < n_turns; i++) {
        hot_set left = set_of_lane(x, before ? 31 - __clz(before) : lane);
        if (turn == i) x = left, way = use_row(&x, tag, &is_new);
    }
    if (has && same >> lane == 1) store_set(hot, set, x);
    unsigned long long place = set * SL_HOT_WAYS + way;
    uint32_t rivals = __match_any_sync(~0u, is_new ? place : ~(unsigned long long)lane);
    copy_rows<DIM>(is_new && rivals >> lane == 1, from, hot_row<DIM>(hot, set, way), lane);
    __syncwarp(); // the next rows can belong to the same sets
}

// Finds the own rows of ROUND entries from `first` on, of which n exist. Returns their number.
__device__ int find_own(const sl_cuda_hot_lists &p, own_rows *s, int first, int n, int thread) {
    int lane = thread % 32, group = thread / 32 * EACH, row[EACH];
    uint32_t owned[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = (group + j) * 32 + lane;
        row[j] = i < n ? __ldcg(p.listed + first + i) - 1 : -1;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        bool owns = row[j] >= 0 && hot_set_of(p.hot, p.n_kv_heads, row[j]) % BLOCKS == blockIdx.x;
        owned[j] = __ballot_sync(~0u, owns);
        if (lane == 0) s->n_of[group + j] = __popc(owned[j]);
    }
    __syncthreads();
    int up_to = sl_scan_lanes(s->n_of[lane], lane); // own rows of the groups up to number `lane`
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int at = __shfl_sync(~0u, up_to, group + j) - __popc(owned[j]) + __popc(owned[j] & ((1u << lane) - 1));
        if (owned[j] >> lane & 1) s->row[at] = row[j], s->entry[at] = first + (group + j) * 32 + lane;
    }
    __syncthreads();
    return __shfl_sync(~0u, up_to, 31);
}

// Grid: (BLOCKS, KV heads). A thread block reads the lists of all query heads of its KV head, ROUND entries at a time, and
// finds the rows of its sets. Each of its warps owns a part of these sets and takes their rows in the order of the lists. The
// next launch of the draws clears the lists.
// Bytes: 4 per entry of a list for each thread block that reads it (from the L2 cache); 136 per set that is used; 8 head_dim
// per row that is not in the cache.
template <int DIM> __global__ void __launch_bounds__(THREADS) keep_hot_kernel(const __grid_constant__ sl_cuda_hot_lists p) {
    __shared__ own_rows s;
    sl_start_next();
    sl_wait_previous();
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, kv_head = blockIdx.y;
    int n_entries = p.group * p.n_lists * p.places; // of the KV head in one sequence
    for (int seq = 0; seq < p.n_seqs; seq++) {
        int first = (seq * p.n_kv_heads + kv_head) * n_entries;
        for (int at = 0; at < n_entries; at += ROUND) {
            int n = find_own(p, &s, first + at, n_entries - at, thread);
            for (int i = lane; i - lane < n; i += 32) {
                int row = i < n ? s.row[i] : -1;
                if (row >= 0 && (int)(hot_set_of(p.hot, p.n_kv_heads, row) / BLOCKS % WARPS) != warp) row = -1;
                take_rows<DIM>(p, row, row < 0 ? NULL : p.fetched + (size_t)s.entry[i] * 2 * DIM, lane);
            }
            __syncthreads(); // the warps have read s
        }
    }
}

template <int DIM> void launch(const sl_cuda_hot_lists *p, cudaStream_t stream) {
    sl_launch(keep_hot_kernel<DIM>, dim3(BLOCKS, p->n_kv_heads), dim3(THREADS), 0, stream, *p);
}

} // namespace

void sl_cuda_keep_hot_rows(const sl_cuda_hot_lists *lists, int head_dim, cudaStream_t stream) {
    SL_CHECK(lists->hot.n_sets > 0 && lists->places % 32 == 0);
    SL_WITH_HEAD_DIM(head_dim, launch, lists, stream);
}
