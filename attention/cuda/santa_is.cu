// attention/cuda/santa_is.cu - santa-is on CUDA, in two kernels. The first scores quantised keys (score_quantised.cuh). The
// second draws S rows by take-all + PPS and corrects the scores with the exact keys of these rows.
//
// is_draw_kernel: 8 warps, all with the same role. A thread block takes a query head, or a part of one. It draws rows
// (take_all.cuh; the CPU draws the same rows if the stored masses are equal), reads the drawn rows of K and V, and sums.
//
// | shared memory of is_draw_kernel | bytes           | contents                                                          |
// |---------------------------------|-----------------|-------------------------------------------------------------------|
// | block_shared                    | SHARED_BYTES    | take_space, query_head, sums, columns, q, page table, row, coef   |
// | layer_shared                    | LAYER_BYTES     | CARRIED, BY_LAYER: known_rows, kappa, step, pairs                 |
// | block masses                    | take_all_memory | [n_blocks], padded (place_of)                                     |
//
// The kernel has three modes:
// - EVEN: S draws.
// - CARRIED: a budget that the layer carries. The kernel draws at the layer's threshold (carried.cuh, take_known.cuh), or
//   searches where carried.c searches. The unit of kappa is the total of the sizes.
// - BY_LAYER: a stated error of the layer. The scores are stored as sizes. The unit of kappa is the total of the masses. The
//   thread block that writes a head's output also measures the head (draw_importance.c, measure).
//
// Worked list: S = 128, head_dim 128, one list. Lanes 0 .. 15 of each warp have one row. The warp prefetches their rows of V.
// Then score_rows loads 16 rows of K: lane (g, q) loads pieces q, q + 4, q + 8, q + 12 of rows g and g + 8. 8 mma with the
// query in column 0 give 16 scores. The warp computes e^s / pi relative to its maximum and gathers V. join_warps adds the sums
// of the 8 warps in order. 128 threads have one column each.
//
// santa_is_host.cu and santa_is_host_long.cu compile the kernels for rows in host memory. There add_rows first fetches the rows
// of the warp (host_rows.cuh).
//
// Owns: the sums. They differ from combine.c in one point: rows of the newest page keep their stored masses, which are exact
// scores rounded to bf16, as in dense attention.
#include "attention/cuda/score_quantised.cuh"
#include "attention/cuda/stated.cuh"

namespace {

enum {
    LISTS_MAX = 8,  // of a head's draws
    LATE_PARTS = 4, // thread blocks that share a late head
};
enum is_mode { EVEN, CARRIED, BY_LAYER };

struct is_params {
    score_params score;
    draw_params draw; // parts: thread blocks that share a head from `late` on
    // Query heads below `late` have one thread block. In a batch the draws of early heads overlap the scores of later ones, but
    // the last heads' draws add to the time, and the head with the most rows decides. A multiple of the group.
    int late;
    int page_tiles; // tiles of a quantised page
    int n_lists;    // list i has every n_lists-th group of TAKE_THREADS drawn rows
    float *newest;  // quantised_params.newest
    carried_params carried = {};
    uint16_t *listed = NULL; // IS_LONG: place_listed
    host_rows host = {};     // IS_HOST
};

// The query head of a thread block.
struct query_head {
    sl_row row;
    int seq_head, index; // index: number among all query heads
    int parts;           // thread blocks that share the head
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
    int row[TAKE_THREADS]; // pool rows; a warp writes only 32 places: its lanes'
    float coef[TAKE_THREADS];
    int other_top, is_last;
};

// The draw of a head at the threshold of its layer.
struct layer_shared {
    known_rows rows;
    double kappa;           // of the layer; 0: the head searches
    sl_threshold_step step; // of the head, set by thread 0
    // BY_LAYER:
    uint64_t mass[TAKE_WARPS]; // total_masses
    int top[TAKE_WARPS];
    float m; // size_of_mean
    known_split split;
    bool searched, took_all;       // the draws of a search; every row. Neither: draws at kappa, as `split` says
    bool is_unbounded[TAKE_WARPS]; // a page's bound is too large, among the pages that a warp tests
    float square[TAKE_WARPS];
    pair_space pairs;
};
enum {
    SHARED_BYTES = (sizeof(block_shared) + 15) / 16 * 16,
    LAYER_BYTES = (sizeof(layer_shared) + 15) / 16 * 16, // block masses follow
};

// The thread blocks that share a head's lists. A thread block of a higher number has no list.
struct sharing {
    int parts, lists;
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
__device__ void prefetch(const bf16 *row, int bytes) {
    for (int at = 0; at < bytes; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)row + at));
}

// Computes the exact scores of the warp's n rows of K in s->row. Lane i gets the score of row i. The query is column 0 of the
// mma. *factor: inverse_pi of the lane's row, computed while the first rows are in flight. IS_HOST: rows of V lie between those
// of K.
template <int DIM>
__device__ float score_rows(const score_params &p, const bf16 *rows, const block_shared *s, int n, int thread,
                            const drawn_row &drawn, float *factor) {
    enum { LOADS = scorer<DIM>::K_LOADS, ODD = scorer<DIM>::K_STEPS % 2, STRIDE = (IS_HOST ? 2 : 1) * layout<DIM>::ROW };
    int lane = thread % 32, warp = thread / 32 * 32, lane_q = lane % 4, n_halves = n > 16 ? 2 : 1;
    float c[2][4] = {}, score = 0;
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
#pragma unroll
    for (int i = 0; i < 4; i++) { // row 8 i + g is in lane 4 g
        float x = __shfl_sync(~0u, c[i / 2][i % 2 * 2], lane % 8 * 4);
        if (lane / 8 == i) score = x;
    }
    __syncwarp(); // after this, s->row may be written again
    return score * p.scale;
}

// Row j of the head as a pool row.
__device__ int pool_row(const is_params &p, const block_shared *s, int j) {
    return (s->page[j / SL_PAGE] * p.score.n_kv_heads + s->at.seq_head % p.score.n_kv_heads) * SL_PAGE + j % SL_PAGE;
}

// Adds a warp's rows, times e^{s_j} / pi_j. Lanes without a row come last. Returns how many rows were read.
template <int DIM> __device__ int add_rows(const is_params &p, block_shared *s, const drawn_row &x, int thread, warp_sum *to) {
    int n = __popc(__ballot_sync(~0u, x.row >= 0)), row = x.row < 0 ? -1 : pool_row(p, s, x.row);
    if (n == 0) return 0;
    float factor;
    const bf16 *k = p.score.k;
    if (IS_HOST) {
        size_t places = places_of_block(TAKE_THREADS);
        row = fetch_rows<DIM>(p.host, s, places, thread, row);
        k = p.host.fetched + places * 2 * DIM;
    } else if (row >= 0) {
        prefetch(p.draw.v + (size_t)row * DIM, layout<DIM>::ROW);
    }
    s->row[thread] = row;
    __syncwarp();
    float score = score_rows<DIM>(p.score, k, s, n, thread, x, &factor);
    float top = fmaxf(sl_max_lanes(row < 0 ? -INFINITY : score), to->top);
    float fall = exp2f(to->top - top), mass = row < 0 ? 0 : factor * exp2f(score - top);
    to->top = top;
    to->total = fmaf(to->total, fall, sl_sum_lanes(mass));
#pragma unroll
    for (int k = 0; k < 8; k++) to->sum.x[k] *= fall;
    if (IS_HOST) return gather<DIM>(paired_rows{k + DIM}, s, thread, row, known_factor{mass}, &to->sum);
    return gather<DIM>(p.draw.v, s, thread, row, known_factor{mass}, &to->sum);
}

// ---- a query head ----

// Adds a list to the head's sum. If several thread blocks share the head, stores the list instead.
template <int DIM>
__device__ void finish_list(const is_params &p, const sharing &of, int index, int list, const mass_sum &sum, int thread,
                            mass_sum *all) {
    if (of.parts == 1) {
        add_list(all, sum);
        return;
    }
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
};

// Sums lists part, part + parts, ... row(turn): the thread's row in a turn of n_turns.
template <int DIM, typename Row>
__device__ counts sum_lists(const is_params &p, block_shared *s, const sharing &of, int part, int n_turns, int thread,
                            mass_sum *all, const Row &row) {
    counts n = {};
    for (int list = part; list < of.lists; list += of.parts) {
        warp_sum own = {.top = -INFINITY, .total = 0, .sum = {}};
        if (list > part) __syncthreads();
        for (int turn = list; turn < n_turns; turn += of.lists) {
            drawn_row x = row(turn);
            n.n_drawn += __popc(__ballot_sync(~0u, x.row >= 0));
            n.n_read += add_rows<DIM>(p, s, x, thread, &own);
        }
        finish_list<DIM>(p, of, s->at.index, list, join_warps<DIM>(s, own, thread), thread, all);
    }
    return n;
}

// The thread block that finishes a shared head last adds all lists in order. Returns whether this thread block is the last one.
template <int DIM>
__device__ bool gather_lists(const is_params &p, block_shared *s, const sharing &of, int index, int thread, mass_sum *all) {
    __syncthreads(); // all threads have stored their part
    if (thread == 0) {
        s->is_last = sl_add_ordered(p.draw.merged + index, 1) == of.parts - 1;
        if (s->is_last) p.draw.merged[index] = 0;
    }
    __syncthreads();
    if (!s->is_last) return false;
    const float *lists = p.draw.partial + (size_t)index * p.n_lists * (DIM + 2);
    for (int i = 0; i < of.lists; i++) add_list(all, load_list<DIM>(lists + i * (DIM + 2), thread));
    return true;
}

// Column `thread` of exact attention.
template <int DIM> __device__ mass_sum exact_column(const is_params &p, block_shared *s, int thread) {
    const query_head &h = s->at;
    if (thread < 32)
        attend_exactly<DIM>(
            exact_head_of(p.score, p.draw.v, p.draw.stats, h.row, h.seq_head, h.index % p.score.group, DIM, p.host.rows),
            s->columns[0]);
    __syncthreads();
    return {.top = 0, .total = 1, .x = thread < DIM ? s->columns[0][thread] : 0};
}

// Issues the loads of the head's query, and of its block masses if the head searches.
template <int DIM, int MODE> __device__ void begin(const is_params &p, block_shared *s, const uint64_t *mass, int thread) {
    const query_head &h = s->at;
    if (MODE == EVEN) take_all_begin(&s->take, thread);
    if (thread < DIM / 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(s->q + thread)),
                     "l"(p.score.q + (size_t)h.index * DIM + 8 * thread)
                     : "memory");
    if (thread / 32 == TAKE_WARPS - 1) { // the unit of sizes also depends on the newest page's largest reference
        int b = h.n_built / BLOCK + thread % 32;
        int top = b <= h.row.position / BLOCK ? ref_of(__ldcg(mass + b)) : REF_EMPTY;
        top = __reduce_max_sync(~0u, top);
        if (thread % 32 == 0) s->other_top = top;
    }
}

// ---- a threshold of the layer ----

// Most rows of a head that draws at kappa.
template <bool STATED> __device__ double most_rows(const is_params &p, const block_shared *s) {
    return STATED ? s->at.n_built / 2.0 : p.carried.most;
}

// Every how many light draws of a head at kappa one is compared; 0: none.
__device__ uint32_t pair_step(const is_params &p, const known_split &split) {
    return p.carried.stated.bound == SL_STATED_CHI2 ? pair_step_of((int)split.k + 2) : 0;
}

// Keeps the row of point m for pairs_of.
__device__ void keep_pair(const is_params &p, const block_shared *s, layer_shared *l, uint32_t step, const drawn_row &x,
                          uint32_t m) {
    if (step > 0 && x.size > 0 && m % step == 0) l->pairs.row[m / step] = pool_row(p, s, x.row);
}

// Sums the rows of a head whose heavy rows are too many for the lists, as one list.
template <int DIM, bool STATED>
__device__ counts sum_parts(const is_params &p, block_shared *s, layer_shared *l, known_split split, int thread,
                            mass_sum *all) {
    counts n = {};
    warp_sum own = {.top = -INFINITY, .total = 0, .sum = {}};
    uint32_t step = STATED ? pair_step(p, split) : 0;
    take_parts(&s->take, &l->rows, split, false, s->at.id, thread, [&](const drawn_row &x, uint32_t m) {
        n.n_drawn += __popc(__ballot_sync(~0u, x.row >= 0));
        if (STATED) keep_pair(p, s, l, step, x, m);
        n.n_read += add_rows<DIM>(p, s, x, thread, &own);
    });
    add_list(all, join_warps<DIM>(s, own, thread));
    return n;
}

// Shares n_turns turns of TAKE_THREADS rows out.
__device__ sharing share_turns(const is_params &p, const query_head &h, int n_turns) {
    int lists = max(min(n_turns, p.n_lists), 1);
    return {.parts = min(h.parts, lists), .lists = lists};
}

// Sums every row with quantised keys once.
template <int DIM>
__device__ counts sum_every_row(const is_params &p, block_shared *s, layer_shared *l, const sharing &of, int part, int thread,
                                mass_sum *all) {
    if (thread == 0) {
        l->step = step_of_search(s->take.sizes, unit_of(&l->rows), {.n_heavy = s->at.n_built, .k = 0, .light = 0});
        l->took_all = true;
    }
    if (part >= of.parts) return {};
    return sum_lists<DIM>(p, s, of, part, ceil_div(s->at.n_built, (int)TAKE_THREADS), thread, all, [&](int turn) {
        int row = turn * TAKE_THREADS + thread;
        return drawn_row{row < s->at.n_built ? row : -1, 0};
    });
}

// Sums S draws of a search, with the uniform numbers of a try.
template <int DIM>
__device__ counts sum_try(const is_params &p, block_shared *s, layer_shared *l, int S, int number, int thread, mass_sum *all) {
    take_all_solve(&s->take, S, NULL, thread);
    if (thread == 0) l->step = step_of_search(s->take.sizes, unit_of(&l->rows), s->take.drawn);
    return sum_lists<DIM>(p, s, {.parts = 1, .lists = 1}, 0, turns_of(&s->take), thread, all,
                          [&](int turn) { return row_of_turn(&s->take, false, s->at.id, number, turn, thread); });
}

// The first step of a layer with a stated error (carried.c, search_error). One thread block sums the head.
template <int DIM>
__device__ counts search_error(const is_params &p, block_shared *s, layer_shared *l, int part, int thread, mass_sum *all) {
    mass_sum pilot = *all;
    if (part > 0) return {};
    sum_try<DIM>(p, s, l, SL_PILOT, 0, thread, &pilot);
    float norm = norm_of(l->square, thread < DIM ? pilot.x / pilot.total : 0, thread);
    draw_bound bound = {false, p.carried.stated.z, p.carried.stated.log_term};
    int S = plan(&s->take, bound, 0.95 * p.carried.share * norm / unit_of(&l->rows), thread);
    if (S == 0) return sum_every_row<DIM>(p, s, l, {.parts = 1, .lists = 1}, 0, thread, all);
    if (thread == 0) l->searched = true;
    return sum_try<DIM>(p, s, l, S, 1, thread, all);
}

// draw_of_layer for a head that does not draw at kappa, or whose heavy rows are too many for the lists. fits: the head draws at
// kappa. The function is not inlined, because it rarely runs.
template <int DIM, bool STATED>
__device__ __noinline__ counts draw_rarely(const is_params &p, block_shared *s, layer_shared *l, known_split split, bool fits,
                                           int part, int thread, sharing *of, mass_sum *all) {
    if (fits) {
        *of = {.parts = 1, .lists = 1};
        if (thread == 0) l->step = step_of_known(s->take.sizes, &l->rows, split, most_rows<STATED>(p, s));
        return part == 0 ? sum_parts<DIM, STATED>(p, s, l, split, thread, all) : counts{};
    }
    if (STATED && l->kappa > 0) {
        *of = share_turns(p, s->at, ceil_div(s->at.n_built, (int)TAKE_THREADS));
        counts n = sum_every_row<DIM>(p, s, l, *of, part, thread, all);
        if (thread == 0) { // of the draws that the head does not make
            sl_threshold_step planned = step_of_known(s->take.sizes, &l->rows, split, 0);
            l->step.spared_k = planned.k, l->step.spared_B = planned.B, l->step.kappa = planned.kappa;
        }
        return n;
    }
    if (STATED) {
        *of = {.parts = 1, .lists = 1};
        return search_error<DIM>(p, s, l, part, thread, all);
    }
    take_all_solve(&s->take, l->kappa > 0 ? p.carried.most : p.draw.S, &s->other_top, thread);
    if (thread == 0) {
        l->step = step_of_search(s->take.sizes, unit_of(&l->rows), s->take.drawn);
        if (l->kappa > 0) l->step = at_ceiling(l->step);
    }
    int n_turns = turns_of(&s->take);
    *of = share_turns(p, s->at, n_turns);
    if (part >= of->parts) return {};
    return sum_lists<DIM>(p, s, *of, part, n_turns, thread, all,
                          [&](int turn) { return row_of_turn(&s->take, false, s->at.id, 0, turn, thread); });
}

// Sums the lists of the part (carried.c, sl_draw_of_layer). *of: how the thread blocks share the head. Thread 0 sets l->step:
// with STATED in every thread block, else in part 0.
template <int DIM, bool STATED>
__device__ counts draw_of_layer(const is_params &p, block_shared *s, layer_shared *l, int part, int thread, sharing *of,
                                mass_sum *all) {
    known_split split = {};
    bool fits = false;
    if (l->kappa > 0) {
        list_heavy(&s->take, &l->rows, 0, listed_blocks(&l->rows), thread);
        __syncthreads();
        split = split_known(&s->take, &l->rows);
        fits = fits_in(split, l->rows.kappa, most_rows<STATED>(p, s));
    }
    if (STATED && thread == 0) l->split = split;
    if (!fits || !split.is_listed) {
        sharing rare = {};
        mass_sum sum = *all;
        counts n = draw_rarely<DIM, STATED>(p, s, l, split, fits, part, thread, &rare, &sum);
        *of = rare, *all = sum;
        return n;
    }
    known_part whole = whole_head(split);
    int n_turns = turns_of_part(whole);
    *of = share_turns(p, s->at, n_turns);
    counts n = {};
    uint32_t step = STATED ? pair_step(p, split) : 0;
    if (part < of->parts)
        n = sum_lists<DIM>(p, s, *of, part, n_turns, thread, all, [&](int turn) {
            uint32_t m;
            drawn_row x = row_of_part(&s->take, &l->rows, whole, false, s->at.id, turn, thread, &m);
            if (STATED) keep_pair(p, s, l, step, x, m);
            return x;
        });
    if ((STATED || part == 0) && thread == 0) // after the sum, because the rows should not wait for it
        l->step = step_of_known(s->take.sizes, &l->rows, split_known(&s->take, &l->rows), most_rows<STATED>(p, s));
    return n;
}

// ---- a stated error of the layer ----

// The head's light draws that are compared. Returns their number. has_rows: the thread block has drawn all rows of the head, so
// draws at kappa have already stored their rows. Call __syncthreads after it.
__device__ int find_pairs(const is_params &p, block_shared *s, layer_shared *l, bool has_rows, int thread) {
    const take_all &r = s->take.drawn;
    bool known = !l->searched;
    uint32_t last = known ? (uint32_t)l->step.k : 0;
    int n_light = l->searched ? r.k : (int)last + (point_of(&s->take, &l->rows, false, s->at.id, last) < l->split.light);
    uint32_t step = known ? pair_step(p, l->split) : pair_step_of(r.k), m = thread * step;
    if (l->took_all) n_light = 0;
    if (thread == 0) l->pairs.n_light = n_light;
    if (thread < MOST_PAIRED && m < (uint32_t)n_light && !(known && has_rows)) {
        drawn_row x = known ? find_known(&s->take, &l->rows, 0, point_of(&s->take, &l->rows, false, s->at.id, m))
                            : light_row(&s->take, false, s->at.id, 1, m);
        l->pairs.row[thread] = pool_row(p, s, x.row);
    }
    return n_light > 0 ? ceil_div(n_light, (int)step) : 0;
}

// Completes l->step of a head with the sum `all` (draw_importance.c, measure), and stores it. draws: the head has rows with
// quantised keys, and its scores are in range.
template <int DIM>
__device__ void measure(const is_params &p, block_shared *s, layer_shared *l, int seq, int head, const mass_sum &all,
                        bool draws, bool has_rows, int thread) {
    float out = thread < DIM ? all.x / all.total : 0;
    int n = 0;
    double pairs = 0;
    bool compares = draws && p.carried.stated.bound == SL_STATED_CHI2, unbounded = false;
    __syncthreads(); // the columns may be written again
    if (thread < DIM) s->columns[0][thread] = out;
    if (compares) n = find_pairs(p, s, l, has_rows, thread);
    for (int b = thread; draws && b < s->take.sizes.n_blocks; b += TAKE_THREADS)
        unbounded |= mass_of(&s->take, b) >> SIZE_UNBOUNDED_AT & 1;
    unbounded = __any_sync(~0u, unbounded);
    if (thread % 32 == 0) l->is_unbounded[thread / 32] = unbounded;
    float norm = norm_of(l->square, out, thread); // has two barriers
    if (compares && IS_HOST) {
        const paired_rows v = {p.host.rows + DIM};
        pairs = pairs_of<DIM, true>(v, &s->take.lists, &l->pairs, s->columns[0], l->pairs.n_light, n, thread);
        if (p.draw.stats && thread == 0) atomicAdd(&p.draw.stats->fetched, (unsigned long long)n);
    } else if (compares) {
        pairs = pairs_of<DIM, true>(p.draw.v, &s->take.lists, &l->pairs, s->columns[0], l->pairs.n_light, n, thread);
    }
    if (thread / 32 != PLAN_WARP) return;
    if (thread % 32 == 0) {
        sl_threshold_step x = draws ? l->step : sl_threshold_step{};
        x.squares = 0;
        for (int i = 0; i < TAKE_WARPS; i++) x.squares += l->square[i];
        if (draws) {
            double masses = 0;
            for (int i = 0; i < TAKE_WARPS; i++) masses += (double)l->mass[i], unbounded |= l->is_unbounded[i];
            double ratio = masses / all.total * exp2((double)(l->top[0] - 38) - all.top); // Z~ / Z^
            double widen = ratio * fmax(1.0, (double)(norm / l->m));
            x.B *= widen * widen, x.kappa *= widen;
            if (x.light > 0 && unbounded) x.B = INFINITY;
            x.trace_squares = trace_of(x.kappa, pairs);
        }
        l->step = x;
    }
    finish_step(p.carried, s->at.row, seq, head, &l->step, p.draw.stats, thread % 32);
}

// Sets what `measure` needs besides the draws, while keys are still scored.
__device__ void prepare_measure(const is_params &p, layer_shared *l, int seq_head, bool draws, int thread) {
    if (thread == 0) l->searched = l->took_all = false;
    if (thread / 32 != PLAN_WARP || !draws) return;
    double square = square_of_head(p.score, seq_head, blockIdx.y % p.score.group);
    float m = size_of_mean(p.score, seq_head, square, thread % 32);
    if (thread % 32 == 0) l->m = m;
}

// out = sum_j c_j e^{s_j} / pi_j v_j / sum_j c_j e^{s_j} / pi_j over S rows drawn in proportion to a mixture of 0.99 e^{s~_j}
// and 0.01 / n, and all rows of the newest page. s~: scores of quantised keys.
//
// Grid: (parts, query heads of all sequences). The parts take the lists of drawn rows in turn.
// Preconditions: `merged` and `released` are 0. `merged`, `released`, `done` and next_item are 0 at the end. Before the
// previous kernel has ended, the kernel reads only lengths, page tables and the masses that `done` announces.
// Bytes: block masses; row masses (from the L2 cache) of blocks with candidates or draws; K and V of drawn rows.
// Order of reduction: masses are integers. The tiles of the newest page come first, then the lists. In a list, a warp adds its
// rows in order, then the sums of the warps are added in order.
// CARRIED, BY_LAYER: also 80 bytes of state for each head. A head of few rows leaves thread blocks without a list. BY_LAYER:
// block masses and block masses of sizes; `finished` is 0 at the end.
// REGISTERS: with 128, two thread blocks share a multiprocessor when the scores have ended. 136 is the largest number that a
// thread block of the scores leaves free.
template <int DIM, int REGISTERS, int MODE>
__global__ void __maxnreg__(IS_LONG ? 168 : REGISTERS) is_draw_kernel(const __grid_constant__ is_params p) {
    extern __shared__ __align__(128) char memory[];
    enum { HAS_LAYER = MODE != EVEN };
    block_shared *s = (block_shared *)memory;
    layer_shared *l = (layer_shared *)(memory + SHARED_BYTES);
    int thread = threadIdx.x, part = blockIdx.x, index = blockIdx.y, seq_head = index / p.score.group;
    int head = seq_head % p.score.n_kv_heads * p.score.group + index % p.score.group;
    int parts = index < p.late ? 1 : p.draw.parts;
    if (part >= parts) return;
    sl_start_next();
    const sl_row row = p.score.rows[seq_head / p.score.n_kv_heads];
    query_head at = {.row = row,
                     .seq_head = seq_head,
                     .index = index,
                     .parts = parts,
                     .n_kv = row.position + 1,
                     .n_built = row.position / SL_PAGE * SL_PAGE,
                     .id = rng_of(p.draw, row, head)};
    if (HAS_LAYER) plan_threshold(p.carried, row, head == 0 && part == 0, &l->step, &l->kappa, thread);
    if (MODE == BY_LAYER) prepare_measure(p, l, seq_head, at.n_built > 0, thread);
    head_view x = view_of(p.score, row, seq_head, index % p.score.group);
    const uint64_t *sizes = MODE == BY_LAYER ? p.score.size_mass + (x.mass - p.score.mass) : x.mass;
    copy_pages(s->page, row, thread);
    if (thread == 0) s->at = at;
    if (HAS_LAYER && thread == 0) place_listed(&l->rows, p.listed, p.score.max_blocks);
    // 0.01: every row has a positive probability, even if the proposal is wrong.
    take_all_prepare(&s->take, memory + SHARED_BYTES + (HAS_LAYER ? LAYER_BYTES : 0), sizes, x.w, x.stride, at.n_built,
                     MODE == BY_LAYER ? 0 : 0.01, at.id, thread);
    wait_done(p.score.done + seq_head, quantised_done_target(p.page_tiles, row.position + 1), thread);
    begin<DIM, MODE>(p, s, x.mass, thread);
    newest_sums newest = load_newest<DIM>(p, s->at, thread); // in flight together with the block masses
    if (s->at.n_built == 0) {
        take_all_nothing(&s->take, thread);
    } else if (HAS_LAYER) {
        asm volatile("cp.async.wait_all;" ::: "memory"); // of the query and of copy_pages
        if (MODE == CARRIED)
            known_blocks<false>(&s->take, &l->rows, l->kappa, {NULL, 0, NULL, NULL}, &s->other_top, thread);
        else
            known_blocks<true>(&s->take, &l->rows, l->kappa, {x.mass, x.n_blocks, l->mass, l->top}, NULL, thread);
    } else {
        take_all_solve(&s->take, p.draw.S, &s->other_top, thread);
    }
    int top = s->at.n_built > 0 ? max(MODE == BY_LAYER ? l->top[0] : s->take.sizes.top, s->other_top) : s->other_top;
    bool exact = is_beyond(top);
    mass_sum all = sum_newest(newest);
    counts n = {};
    sharing of = {.parts = parts, .lists = p.n_lists};
    if (HAS_LAYER && !exact && s->at.n_built > 0)
        n = draw_of_layer<DIM, MODE == BY_LAYER>(p, s, l, part, thread, &of, &all);
    else if (HAS_LAYER)
        of.parts = 1;
    else if (!exact)
        n = sum_lists<DIM>(p, s, of, part, turns_of(&s->take), thread, &all,
                           [&](int turn) { return row_of_turn(&s->take, false, s->at.id, 0, turn, thread); });
    bool is_last_seq_head = seq_head == p.score.n_seqs * p.score.n_kv_heads - 1;
    int before = release_seq_head(p.draw.released + seq_head, is_last_seq_head, thread);
    if (exact && part == 0) all = exact_column<DIM>(p, s, thread);
    bool writes = exact || of.parts == 1 ? part == 0 : part < of.parts && gather_lists<DIM>(p, s, of, index, thread, &all);
    if (writes && thread < DIM)
        p.draw.out[(size_t)index * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(all.x / all.total));
    if (MODE == CARRIED && part == 0 && thread == 0) {
        if (exact || s->at.n_built == 0) l->step = {};
        store_step(p.carried, row, head, l->step);
    }
    if (MODE == BY_LAYER && writes)
        measure<DIM>(p, s, l, seq_head / p.score.n_kv_heads, head, all, !exact && s->at.n_built > 0, of.parts == 1, thread);
    if (thread == 0 && before == parts * p.score.group - 1) { // the last part of the seq_head
        p.draw.released[seq_head] = p.score.done[seq_head] = 0;
        if (is_last_seq_head) *p.score.next_item = 0;
    }
    if (p.draw.stats && thread % 32 == 0) {
        atomicAdd(&p.draw.stats->k_rows, (unsigned long long)n.n_read);
        atomicAdd(&p.draw.stats->v_rows, (unsigned long long)n.n_read);
        atomicAdd(&p.draw.stats->bytes, (unsigned long long)n.n_read * 2 * DIM * sizeof(bf16));
        atomicAdd(&p.draw.stats->samples, (unsigned long long)n.n_drawn);
        if (MODE == BY_LAYER && writes && thread == 0 && l->took_all) atomicAdd(&p.draw.stats->fallbacks, 1ull);
    }
}

// ---- launch ----

const sl_attn_cuda_ops &long_ops = IS_HOST ? sl_santa_is_host_long_cuda_ops : sl_santa_is_long_cuda_ops;

is_mode mode_of(const sl_attn_spec *spec) {
    return sl_attn_certifies_layer(spec) ? BY_LAYER : sl_attn_carries_budget(spec) ? CARRIED : EVEN;
}

// Lists of a head's draws.
int lists_of(const sl_attn_spec *spec) {
    if (mode_of(spec) == BY_LAYER) return LISTS_MAX;
    int most = (int)sl_attn_get(spec, "S") * (mode_of(spec) == CARRIED ? SL_BUDGET_MOST : 1);
    int n = ceil_div(most, (int)TAKE_THREADS);
    return n < LISTS_MAX ? n : (int)LISTS_MAX;
}

// Number of floats of n sums for each query head: [n_seqs * n_heads][n][head_dim + 2].
size_t n_sum_floats(const sl_attn_geom *geom, int n, int n_seqs) {
    return (size_t)n_seqs * geom->n_heads * n * (geom->head_dim + 2);
}

size_t lay_out(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, is_params *p) {
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_kv);
    if (mode_of(spec) == BY_LAYER) p->score.size_mass = a.take<uint64_t>(n_block_masses(geom, n_seqs, n_kv));
    p->draw.partial = a.take<float>(n_sum_floats(geom, lists_of(spec), n_seqs));
    p->newest = a.take<float>(n_sum_floats(geom, NEWEST_TILES, n_seqs));
    if (mode_of(spec) != EVEN) p->listed = take_listed(&a, (size_t)n_seqs * geom->n_heads * lists_of(spec), n_kv);
    if (IS_HOST) { // a head has at most as many thread blocks as lists
        size_t places = (size_t)n_seqs * geom->n_heads * lists_of(spec) * TAKE_THREADS;
        p->host.fetched = a.take<bf16>(places * 2 * geom->head_dim);
        p->host.listed = a.take<int>(places);
        p->host.ended = a.take<int>(geom->n_kv_heads);
    }
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (!IS_LONG && n_kv > ROWS_MAX) return long_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    is_params p;
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &p);
}

// Thread blocks that share a head. It is more than 1 if there are few heads.
int parts_of(int n_heads, int n_lists) {
    int parts = 2 * sl_multiprocessors() / n_heads;
    return parts < 1 ? 1 : parts < n_lists ? parts : n_lists;
}

template <int DIM, int MODE> void launch_draw(const sl_attn_cuda_decode_args *a, const is_params &p) {
    int n_heads = a->n_seqs * a->geom->n_heads;
    bool few = n_heads <= 4 * sl_multiprocessors(); // 1 thread block per multiprocessor: 8 x 32k 2% less; 32 x 8k 17% more
    sl_launch(few ? is_draw_kernel<DIM, 136, MODE> : is_draw_kernel<DIM, 128, MODE>, dim3(p.draw.parts, n_heads),
              dim3(TAKE_THREADS), SHARED_BYTES + (MODE == EVEN ? 0 : LAYER_BYTES) + take_all_memory(ceil_div(a->max_kv, BLOCK)),
              a->stream, p);
}

template <int DIM, int BITS> void launch(const sl_attn_cuda_decode_args *a) {
    int n_lists = lists_of(a->spec), mode = mode_of(a->spec);
    is_params p = {.score = score_params_of<DIM>(a),
                   .draw = draw_params_of(a, (int)sl_attn_get(a->spec, "S")),
                   .late = 0,
                   .page_tiles = tile<DIM, BITS>::TILES,
                   .n_lists = n_lists,
                   .newest = NULL};
    SL_CHECK(a->max_kv <= ROWS_MAX);
    int n_heads = a->n_seqs * a->geom->n_heads;
    p.draw.parts = parts_of(n_heads, n_lists);
    if (mode != EVEN && p.draw.parts == 1) {
        p.draw.parts = n_lists < LATE_PARTS ? n_lists : (int)LATE_PARTS;
        p.late = ceil_div(n_heads - sl_multiprocessors() / p.draw.parts, p.score.group) * p.score.group;
    }
    if (mode != EVEN) p.carried = carried_params_of(a, a->state_at);
    SL_CHECK((a->host_rows != NULL) == IS_HOST);
    p.host.rows = a->host_rows, p.host.hot = a->hot, p.host.n_kv_heads = a->geom->n_kv_heads, p.host.stats = a->stats;
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    if (mode == BY_LAYER) {
        SL_CHECK(BITS == 8 && a->extra[1] && a->extra_size[1] == SL_PAGE * sizeof(bf16));
        p.score.norms = (const bf16 *)a->extra[1];
        p.score.state_at = a->state_at;
        p.score = launch_quantised_scores<DIM, 8, true>(a, p.score, p.newest);
        launch_draw<DIM, BY_LAYER>(a, p);
        keep_hot_rows(p.host, a, p.draw.parts, TAKE_THREADS);
        return;
    }
    p.score = launch_quantised_scores<DIM, BITS>(a, p.score, p.newest);
    if (mode == CARRIED)
        launch_draw<DIM, CARRIED>(a, p);
    else
        launch_draw<DIM, EVEN>(a, p);
    keep_hot_rows(p.host, a, p.draw.parts, TAKE_THREADS);
}

template <int DIM> void launch_bits(const sl_attn_cuda_decode_args *a) {
    SL_WITH_BITS((int)sl_attn_get(a->spec, "proposal"), launch, DIM, a);
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (!IS_LONG && args->max_kv > ROWS_MAX) return long_ops.decode(args);
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch_bits, args);
}

size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    return carried_state(geom, spec);
}

int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    int n = needs_quantised(spec, out);
    if (mode_of(spec) == BY_LAYER) out[n++] = {&sl_page_norms, 0};
    return n;
}

// Counts the reads of the scores, and V of the newest page. The kernel counts the drawn rows.
void account_proposal_and_newest(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    uint64_t newest = account_quantised(geom, spec, n_kv, stats);
    stats->v_rows += newest * geom->n_heads;
    stats->samples += newest * geom->n_heads;
    stats->bytes += newest * geom->head_dim * sizeof(bf16) * geom->n_kv_heads;
    if (mode_of(spec) == BY_LAYER) stats->bytes += (n_kv - newest) * geom->n_kv_heads * sizeof(bf16);
}

} // namespace

#if defined SL_HOST_ROWS && defined SL_LONG_CONTEXT
const sl_attn_cuda_ops sl_santa_is_host_long_cuda_ops
#elif defined SL_HOST_ROWS
const sl_attn_cuda_ops sl_santa_is_host_cuda_ops
#elif defined SL_LONG_CONTEXT
const sl_attn_cuda_ops sl_santa_is_long_cuda_ops
#else
const sl_attn_cuda_ops sl_santa_is_cuda_ops
#endif
    = {.workspace = workspace,
       .decode = decode,
       .needs = needs,
       .state = state,
       .max_rows = SL_CUDA_LONG_ROWS,
       .account = account_proposal_and_newest,
       .prefill = NULL,
       .supports = supports_on_miss,
       .mask = NULL,
       .mask_workspace = NULL,
#if defined SL_HOST_ROWS || defined SL_LONG_CONTEXT
       .host = NULL};
#else
       .host = &sl_santa_is_host_cuda_ops};
#endif
