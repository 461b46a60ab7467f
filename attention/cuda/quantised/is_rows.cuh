// attention/cuda/quantised/is_rows.cuh - santa-is on CUDA: what a thread block has in shared memory, how it reads drawn rows,
// and how thread blocks share the lists of a head. santa_is.cu draws.
//
// Owns: the sums. They differ from combine.c in one point: rows of the newest page keep their stored masses, which are exact
// scores rounded to bf16, as in dense attention.
#ifndef SLEIGH_IS_ROWS_CUH
#define SLEIGH_IS_ROWS_CUH

#include "attention/cuda/partial_softmax.cuh"
#include "attention/cuda/quantised/score_quantised.cuh"
#include "attention/cuda/santa/stated.cuh"

namespace {

enum {
    LISTS_MAX = 32,     // of a head's draws
    EVEN_LISTS_MAX = 8, // of S draws
    MOST_PARTS = 8,     // thread blocks that are assigned to a head
    LATE_PARTS = 4,     // thread blocks that are assigned to a late head
    ALONE_LISTS = 2,    // a thread block that is alone with so few lists does not share them
};
enum is_mode { EVEN, BY_LAYER };

struct is_params {
    score_params score;
    draw_params draw; // parts: thread blocks that are assigned to a head from `late` on
    // Query heads below `late` have one assigned thread block. In a batch the draws of early heads overlap the scores of later
    // ones, but the draws of the last heads add to the time. A multiple of the group.
    int late;
    list_queue queue;
    cleared_ints cleared;
    int n_heads;    // query heads of all sequences
    int page_tiles; // tiles of a quantised page
    int n_lists;    // most lists of a head; list i has every n_lists-th group of TAKE_THREADS drawn rows
    float *newest;  // quantised_params.newest
    carried_params carried = {};
    uint16_t *listed = NULL; // IS_LONG: place_listed
    int *paired = NULL; // BY_LAYER: [n_seqs * n_heads][MOST_PAIRED] pool rows that chi2 compares, of heads with shared lists
    all_marks marks = {};
    offloaded_rows host = {}; // IS_OFFLOADED
};

// The query head of a thread block.
struct query_head {
    sl_row row;
    int seq_head, index; // index: number among all query heads
    int part, parts;     // number of an assigned thread block, and how many are assigned to the head
    int list;            // the list that a roaming thread block has taken; -1: the thread block is assigned to the head
    int n_kv, n_built;   // rows; rows of built pages
    sl_rng_id id;
};

struct block_shared {
    take_space take;
    query_head at;
    float2 sums[TAKE_WARPS]; // largest score and sum of masses of each warp
    float columns[TAKE_WARPS][DIM_MAX];
    uint4 q[DIM_MAX / 8]; // of the head
    context_array<int32_t, TILES_MAX> page;
    int row[TAKE_THREADS]; // pool rows; IS_OFFLOADED: places in host.fetched. A warp writes only the places of its lanes
    float coef[TAKE_THREADS];
    int other_top, is_last;
    open_list taken; // of the thread block
};

// ---- sums of mass * v relative to a power of two ----

struct mass_sum {
    float top, total, x; // masses are relative to 2^top; total: their sum; x: one column of the sum of mass * v
};

// Every caller runs the same instructions. So equal lists give equal bits in every thread block.
__device__ void add_list(mass_sum *to, const mass_sum &list) {
    if (list.top == -INFINITY) return;
    float top = fmaxf(to->top, list.top), a = exp2f(to->top - top), b = exp2f(list.top - top);
    to->total = fmaf(to->total, a, __fmul_rn(list.total, b));
    to->x = fmaf(to->x, a, __fmul_rn(list.x, b));
    to->top = top;
}

// The sum of a warp's part of a list.
struct warp_sum {
    float top, total;
    row_sum sum;
};

// Adds the sums of all warps of a list. Returns column `thread`. After the next __syncthreads s->sums and s->columns may be
// written again.
template <int DIM> __device__ mass_sum join_warps(block_shared *s, const warp_sum &own, int thread) {
    put_columns<DIM>(s->columns[thread / 32], own.sum, thread % 32);
    if (thread % 32 == 0) s->sums[thread / 32] = make_float2(own.top, own.total);
    __syncthreads();
    mass_sum list = {.top = -INFINITY, .total = 0, .x = 0};
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) list.top = fmaxf(list.top, s->sums[i].x);
#pragma unroll
    for (int i = 0; i < TAKE_WARPS; i++) {
        float factor = s->sums[i].x == -INFINITY ? 0 : exp2f(s->sums[i].x - list.top);
        list.total = fmaf(s->sums[i].y, factor, list.total);
        list.x = fmaf(s->columns[i][thread % DIM], factor, list.x);
    }
    return list;
}

// ---- rows of a warp ----

// Brings a row to the L2 cache.
__device__ void prefetch(const void *row, int bytes) {
    for (int at = 0; at < bytes; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)row + at));
}

// The score of row i of a warp, in lane i, from the two mma of its rows.
__device__ __forceinline__ float score_of_lane(const float c[2][4]) {
    int lane = threadIdx.x % 32;
    float score = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) { // row 8 i + g is in lane 4 g
        float x = __shfl_sync(~0u, c[i / 2][i % 2 * 2], lane % 8 * 4);
        if (lane / 8 == i) score = x;
    }
    __syncwarp(); // after this, s->row may be written again
    return score;
}

// Computes the exact scores of the warp's n rows of K in s->row. Lane i gets the score of row i. The query is column 0 of the
// mma. *factor: inverse_pi of the lane's row, computed while the first rows are in flight. IS_OFFLOADED: rows of V lie between
// those of K.
template <int DIM>
__device__ float score_rows(const score_params &p, const bf16 *rows, const block_shared *s, int n, int thread,
                            const drawn_row &drawn, float *factor) {
    enum {
        LOADS = group_queries<DIM>::K_LOADS,
        ODD = group_queries<DIM>::K_STEPS % 2,
        STRIDE = (IS_OFFLOADED ? 2 : 1) * layout<DIM>::ROW
    };
    int lane = thread % 32, warp = thread / 32 * 32, lane_q = lane % 4, n_halves = n > 16 ? 2 : 1;
    float c[2][4] = {};
    uint4 a[2][LOADS], b[2][LOADS];
    uint2 a_rest[2], b_rest[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == n_halves) break;
        int place = half * 16 + lane / 4;
        const char *k = (const char *)rows + lane_q * 16;
        const char *upper = k + (size_t)s->row[warp + min(place, n - 1)] * STRIDE;
        const char *lower = k + (size_t)s->row[warp + min(place + 8, n - 1)] * STRIDE;
#pragma unroll
        for (int j = 0; j < LOADS; j++)
            a[half][j] = load_written((const uint4 *)(upper + j * 64)),
            b[half][j] = load_written((const uint4 *)(lower + j * 64));
        if (ODD)
            a_rest[half] = load_written((const uint2 *)(upper + LOADS * 64 - lane_q * 8)),
            b_rest[half] = load_written((const uint2 *)(lower + LOADS * 64 - lane_q * 8));
    }
    *factor = inverse_pi(&s->take, drawn);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == n_halves) break;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            uint4 y = lane < 4 ? s->q[j * 4 + lane] : make_uint4(0, 0, 0, 0), upper = a[half][j], lower = b[half][j];
            sl_mma_bf16(c[half], upper.x, lower.x, upper.y, lower.y, y.x, y.y);
            sl_mma_bf16(c[half], upper.z, lower.z, upper.w, lower.w, y.z, y.w);
        }
        if (ODD) {
            uint2 y = lane < 4 ? ((const uint2 *)s->q)[LOADS * 8 + lane] : make_uint2(0, 0);
            sl_mma_bf16(c[half], a_rest[half].x, b_rest[half].x, a_rest[half].y, b_rest[half].y, y.x, y.y);
        }
    }
    return score_of_lane(c) * p.scale;
}

// What a lane loads of two rows of bytes, in the order of group_byte_queries.
template <int DIM> struct byte_operands {
    typedef group_byte_queries<DIM> order;
    enum { LOADS = order::K_LOADS, REST = order::REST, PLACES = REST > 0 ? (int)REST : 1 };
    uint4 a[LOADS], b[LOADS];
    uint32_t a_rest[PLACES], b_rest[PLACES];

    __device__ void load(const char *upper, const char *lower, int lane_q) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            a[j] = __ldg((const uint4 *)(upper + j * 64 + lane_q * 16));
            b[j] = __ldg((const uint4 *)(lower + j * 64 + lane_q * 16));
        }
#pragma unroll
        for (int j = 0; j < REST; j++) {
            int at = LOADS * 64 + (lane_q * REST + j) * 4;
            a_rest[j] = __ldg((const uint32_t *)(upper + at)), b_rest[j] = __ldg((const uint32_t *)(lower + at));
        }
    }

    // Adds the products with the query q, column 0 of the mma.
    template <bool FP8> __device__ void multiply(const uint4 *q, int lane, float c[4]) const {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const uint32_t upper[4] = {a[j].x, a[j].y, a[j].z, a[j].w}, lower[4] = {b[j].x, b[j].y, b[j].z, b[j].w};
#pragma unroll
            for (int i = 0; i < 4; i++) multiply_word<FP8>(upper[i], lower[i], 4 * j + i, q, lane, c);
        }
#pragma unroll
        for (int j = 0; j < REST; j++) multiply_word<FP8>(a_rest[j], b_rest[j], 4 * LOADS + j, q, lane, c);
    }

    template <bool FP8>
    static __device__ __forceinline__ void multiply_word(uint32_t upper, uint32_t lower, int step, const uint4 *q, int lane,
                                                         float c[4]) {
        uint32_t x[2], y[2];
        uint2 z = lane < 4 ? ((const uint2 *)q)[order::dim_of(step, lane) / 4] : make_uint2(0, 0);
        widen_bytes<FP8>(upper, x);
        widen_bytes<FP8>(lower, y);
        sl_mma_bf16(c, x[0], y[0], x[1], y[1], __byte_perm(z.x, z.y, 0x5410), __byte_perm(z.x, z.y, 0x7632));
    }
};

// score_rows for rows of bytes. row: of the lane.
template <int DIM>
__device__ float score_byte_rows(const score_params &p, const block_shared *s, int n, int thread, int row,
                                 const drawn_row &drawn, float *factor) {
    int lane = thread % 32, warp = thread / 32 * 32, n_halves = n > 16 ? 2 : 1;
    float c[2][4] = {}, scale = row < 0 ? 0 : __ldg(scale_of_pool<DIM>(p.k, row));
    byte_operands<DIM> x[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == n_halves) break;
        int place = half * 16 + lane / 4;
        x[half].load(row_of_pool<DIM>(p.k, s->row[warp + min(place, n - 1)]),
                     row_of_pool<DIM>(p.k, s->row[warp + min(place + 8, n - 1)]), lane % 4);
    }
    *factor = inverse_pi(&s->take, drawn);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == n_halves) break;
        if (p.is_fp8)
            x[half].template multiply<true>(s->q, lane, c[half]);
        else
            x[half].template multiply<false>(s->q, lane, c[half]);
    }
    return score_of_lane(c) * scale * p.scale;
}

// Row j of the head as a pool row.
__device__ int pool_row(const is_params &p, const block_shared *s, int j) {
    return (s->page[j / SL_PAGE] * p.score.n_kv_heads + s->at.seq_head % p.score.n_kv_heads) * SL_PAGE + j % SL_PAGE;
}

// Adds a warp's rows of a list, times e^{s_j} / pi_j. Lanes without a row come last. Returns how many rows were read.
template <int DIM>
__device__ int add_rows(const is_params &p, block_shared *s, int list, const drawn_row &x, int thread, warp_sum *to) {
    int n = __popc(__ballot_sync(~0u, x.row >= 0)), row = x.row < 0 ? -1 : pool_row(p, s, x.row);
    if (n == 0) return 0;
    float factor;
    const bf16 *k = p.score.k;
    if (IS_OFFLOADED) {
        size_t places = ((size_t)s->at.index * p.n_lists + list) * TAKE_THREADS; // the same for every thread block
        row = fetch_rows<DIM>(p.host, s, places, thread, row);
        k = p.host.fetched + places * 2 * DIM;
    } else if (row >= 0) {
        prefetch(row_of_pool<DIM>(p.draw.v, row), layout<DIM>::ROW);
        if (IS_BYTES) prefetch(scale_of_pool<DIM>(p.draw.v, row), STORED_SCALE);
    }
    s->row[thread] = row;
    __syncwarp();
    float score;
    if constexpr (IS_BYTES)
        score = score_byte_rows<DIM>(p.score, s, n, thread, row, x, &factor);
    else
        score = score_rows<DIM>(p.score, k, s, n, thread, x, &factor);
    float top = fmaxf(sl_max_lanes(row < 0 ? -INFINITY : score), to->top);
    float fall = exp2f(to->top - top), mass = row < 0 ? 0 : factor * exp2f(score - top);
    to->top = top;
    to->total = fmaf(to->total, fall, sl_sum_lanes(mass));
#pragma unroll
    for (int k = 0; k < 8; k++) to->sum.x[k] *= fall;
    if constexpr (IS_OFFLOADED)
        return gather<DIM>(paired_rows{k + DIM}, s, thread, row, known_factor{mass}, &to->sum);
    else
        return gather<DIM>(value_rows(p.score, p.draw.v), s, thread, row, known_factor{mass}, &to->sum);
}

// ---- a query head ----

// Stores a list for the thread block that finishes the head.
template <int DIM> __device__ void store_list(const is_params &p, int index, int list, const mass_sum &sum, int thread) {
    float *to = p.draw.partial + ((size_t)index * p.n_lists + list) * (DIM + 2);
    if (thread < DIM) __stcg(to + thread, sum.x);
    if (thread == 0) __stcg(to + DIM, sum.top), __stcg(to + DIM + 1, sum.total);
}

// A list in memory: the sum of mass * v, its reference, the sum of masses.
template <int DIM> __device__ mass_sum load_list(const float *from, int thread) {
    return {__ldcg(from + DIM), __ldcg(from + DIM + 1), thread < DIM ? __ldcg(from + thread) : 0};
}

// The sums of the newest page's tiles after the loads. A lane has the reference and the total of one tile. A thread has one
// column of each tile.
struct newest_sums {
    float2 own;
    float x[NEWEST_TILES];
};

template <int DIM> __device__ newest_sums load_newest(const is_params &p, const query_head &h, int thread) {
    const float *from = p.newest + (size_t)h.index * NEWEST_TILES * (DIM + 2);
    int n = newest_tiles(h.n_kv), lane = thread % 32;
    newest_sums s = {.own = lane < n ? __ldcg((const float2 *)(from + lane * (DIM + 2) + DIM)) : make_float2(-INFINITY, 0)};
#pragma unroll
    for (int i = 0; i < NEWEST_TILES; i++) s.x[i] = thread < DIM && i < n ? __ldcg(from + i * (DIM + 2) + thread) : 0;
    return s;
}

// The sum of the newest page's tiles.
__device__ mass_sum sum_newest(const newest_sums &s) {
    mass_sum list = {.top = sl_max_lanes(s.own.x), .total = 0, .x = 0};
    float factor = list.top == -INFINITY ? 0 : exp2f(s.own.x - list.top);
    list.total = sl_sum_lanes(s.own.y * factor);
#pragma unroll
    for (int i = 0; i < NEWEST_TILES; i++) list.x = fmaf(s.x[i], __shfl_sync(~0u, factor, i), list.x);
    return list;
}

struct counts {
    int n_read, n_drawn; // of the warp
    int n_lists;         // lists that the thread block has stored
    bool summed;         // it has added all lists itself
};

// The sum of list `first`: turns first, first + step, ... of n_turns. row(turn): the thread's row in a turn.
template <int DIM, typename Row>
__device__ mass_sum sum_turns(const is_params &p, block_shared *s, int first, int step, int n_turns, int thread, counts *n,
                              const Row &row) {
    warp_sum own = {.top = -INFINITY, .total = 0, .sum = {}};
    for (int turn = first; turn < n_turns; turn += step) {
        drawn_row x = row(turn);
        n->n_drawn += __popc(__ballot_sync(~0u, x.row >= 0));
        n->n_read += add_rows<DIM>(p, s, first, x, thread, &own);
    }
    return join_warps<DIM>(s, own, thread);
}

// Takes the next list of the head for the thread block.
__device__ int next_list(const is_params &p, block_shared *s, int thread) {
    __syncthreads(); // the list before is stored, and its number has been read
    if (thread == 0) s->taken.list = take_list(p.queue, s->at.index);
    __syncthreads();
    return s->taken.list;
}

// Whether part 0 of the head sums all its lists.
__device__ bool is_alone(const block_shared *s, int n_lists) {
    return n_lists == 1 || (n_lists <= ALONE_LISTS && s->at.parts == 1);
}

// Whether every list of the head has an assigned thread block of its own. Such lists are not taken from the queue, because a
// number from a counter takes as long as a load.
__device__ bool has_own_lists(const block_shared *s, int n_lists) {
    return n_lists <= s->at.parts;
}

// Sums the turns of the lists that the thread block takes. Part 0 adds the lists to *all if the head is not shared. Lists of a
// shared head are stored.
template <int DIM, typename Row>
__device__ counts sum_lists(const is_params &p, block_shared *s, int n_lists, int n_turns, int thread, mass_sum *all,
                            const Row &row) {
    counts n = {};
    bool alone = is_alone(s, n_lists), own = has_own_lists(s, n_lists);
    if (thread == 0 && s->at.part == 0) settle_head(p.queue, s->at.index, alone || own ? 1 : n_lists);
    if (alone && s->at.part > 0) return n;
    int list = alone ? 0 : own ? s->at.part : s->at.list >= 0 ? s->at.list : next_list(p, s, thread);
#pragma unroll 1
    while (list < n_lists) {
        mass_sum sum = sum_turns<DIM>(p, s, list, n_lists, n_turns, thread, &n, row);
        if (alone) {
            add_list(all, sum);
            if (++list < n_lists) __syncthreads(); // all threads have read the sums of the warps
        } else {
            store_list<DIM>(p, s->at.index, list, sum, thread);
            n.n_lists++, list = own ? n_lists : next_list(p, s, thread);
        }
    }
    n.summed = alone;
    return n;
}

// Adds all n_lists lists of the head in order, if the thread block has stored the last one. Returns whether it has.
template <int DIM>
__device__ bool gather_lists(const is_params &p, block_shared *s, int n_lists, int n_stored, int thread, mass_sum *all) {
    int index = s->at.index;
    if (n_stored == 0) return false;
    __syncthreads(); // all threads have stored their part
    if (thread == 0) s->is_last = counts_last_part(p.draw.merged + index, n_stored, n_lists);
    __syncthreads();
    if (!s->is_last) return false;
    const float *lists = p.draw.partial + (size_t)index * p.n_lists * (DIM + 2);
#pragma unroll 2
    for (int i = 0; i < n_lists; i++) add_list(all, load_list<DIM>(lists + i * (DIM + 2), thread));
    return true;
}

} // namespace

#endif
