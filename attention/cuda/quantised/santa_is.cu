// attention/cuda/quantised/santa_is.cu - santa-is on CUDA, in two kernels. The first scores quantised keys
// (score_quantised.cuh). The second draws S rows by take-all + PPS and corrects the scores with the exact keys of these rows.
//
// is_draw_kernel: 8 warps, all with the same role. A thread block takes a query head, or a part of one. It draws rows
// (take_all.cuh; the CPU draws the same rows if the stored masses are equal), reads the drawn rows of K and V, and sums.
//
// | shared memory of is_draw_kernel | bytes           | contents                                                          |
// |---------------------------------|-----------------|-------------------------------------------------------------------|
// | block_shared                    | SHARED_BYTES    | take_space, query_head, sums, columns, q, page table, row, coef   |
// | layer_shared                    | LAYER_BYTES     | BY_LAYER: known_rows, kappa, step, pairs                          |
// | block masses                    | take_all_memory | [n_blocks], padded (place_of)                                     |
//
// The kernel has two modes:
// - EVEN: S draws.
// - BY_LAYER: a stated error of the layer. The kernel draws at the layer's threshold (carried.cuh, take_known.cuh), or searches
//   where carried.c searches. The scores are stored as sizes. The unit of kappa is the total of the masses. The thread block
//   that writes a head's output also measures the head (draw_importance.c, measure).
//
// Worked list: S = 128, head_dim 128, one list. Lanes 0 .. 15 of each warp have one row. The warp prefetches their rows of V.
// Then score_rows loads 16 rows of K: lane (g, q) loads pieces q, q + 4, q + 8, q + 12 of rows g and g + 8. 8 mma with the
// query in column 0 give 16 scores. The warp computes e^s / pi relative to its maximum and gathers V. join_warps adds the sums
// of the 8 warps in order. 128 threads have one column each.
//
// With SL_OFFLOADED_ROWS the kernels are compiled for rows in host memory. There add_rows first fetches the rows
// of the warp (offloaded_rows.cuh). With SL_BYTE_ROWS they are compiled for a cache of fp8 or int8 (stored_rows.cuh).
//
// Owns: the draws, the threshold of a layer, and the launch. is_rows.cuh owns the sums.
#include "attention/cuda/quantised/is_rows.cuh"
#include "attention/cuda/santa/stated.cuh"

namespace {

// The draw of a head at the threshold of its layer.
struct layer_shared {
    known_rows rows;
    double kappa;              // of the layer; 0: the head searches
    sl_threshold_step step;    // of the head, set by thread 0
    uint64_t mass[TAKE_WARPS]; // total_masses
    int top[TAKE_WARPS];
    float m; // size_of_mean
    known_split split;
    bool searched, took_all;       // the draws of a search; every row. Neither: draws at kappa, as `split` says
    bool is_unbounded[TAKE_WARPS]; // the sizes of a block bound nothing, among the blocks that a warp tests
    float square[TAKE_WARPS];
    pair_space pairs;
};
enum {
    SHARED_BYTES = (sizeof(block_shared) + 15) / 16 * 16,
    LAYER_BYTES = (sizeof(layer_shared) + 15) / 16 * 16, // block masses follow
    MULTIPROCESSOR_SHARED = 228 << 10,                   // bytes (H100, H200), with 1 KB that CUDA takes for each thread block
};
static_assert(!IS_LONG || SHARED_BYTES + LAYER_BYTES + QUANTISED_SHARED + (2 << 10) <= MULTIPROCESSOR_SHARED,
              "a thread block draws next to one that scores");
static_assert(QUANTISED_THREADS * SCORE_REGISTERS + TAKE_THREADS * 136 <= 65536, "the registers of both");

// ---- a query head ----

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
__device__ double most_rows(const block_shared *s) {
    return s->at.n_built / 2.0;
}

// Every how many light draws of a head at kappa one is compared; 0: none.
__device__ uint32_t pair_step(const is_params &p, const known_split &split) {
    return p.carried.stated.bound == SL_STATED_CHI2 ? pair_step_of((int)split.k + 2) : 0;
}

// Keeps the row of point m for pairs_of. to: [MOST_PAIRED]
__device__ void keep_pair(const is_params &p, const block_shared *s, int *to, uint32_t step, const drawn_row &x, uint32_t m) {
    if (step > 0 && x.size > 0 && m % step == 0) to[m / step] = pool_row(p, s, x.row);
}

// Where thread blocks that share the lists of a head keep its rows for pairs_of.
__device__ int *shared_pairs(const is_params &p, const block_shared *s) {
    return p.paired + (size_t)s->at.index * MOST_PAIRED;
}

// Number of lists for n_turns turns of TAKE_THREADS rows.
__device__ int lists_of_turns(const is_params &p, int n_turns) {
    return max(min(n_turns, p.n_lists), 1);
}

// Sums every row with quantised keys once.
template <int DIM>
__device__ counts sum_every_row(const is_params &p, block_shared *s, layer_shared *l, int n_lists, int thread, mass_sum *all) {
    if (thread == 0) {
        l->step = step_of_search(s->take.sizes, unit_of(&l->rows), {.n_heavy = s->at.n_built, .k = 0, .light = 0});
        l->took_all = true;
    }
    return sum_lists<DIM>(p, s, n_lists, ceil_div(s->at.n_built, (int)TAKE_THREADS), thread, all, [&](int turn) {
        int row = turn * TAKE_THREADS + thread;
        return drawn_row{row < s->at.n_built ? row : -1, 0};
    });
}

// Sums S draws of a search, with the uniform numbers of a try.
template <int DIM>
__device__ counts sum_try(const is_params &p, block_shared *s, layer_shared *l, int S, int number, int thread, mass_sum *all) {
    counts n = {};
    take_all_solve(&s->take, S, NULL, thread);
    if (thread == 0) l->step = step_of_search(s->take.sizes, unit_of(&l->rows), s->take.drawn);
    add_list(all, sum_turns<DIM>(p, s, 0, 1, turns_of(&s->take), thread, &n,
                                 [&](int turn) { return row_of_turn(&s->take, false, s->at.id, number, turn, thread); }));
    return n;
}

// The first step of a layer with a stated error (carried.c, search_error). Part 0 sums the head.
template <int DIM>
__device__ counts search_error(const is_params &p, block_shared *s, layer_shared *l, int thread, mass_sum *all) {
    mass_sum pilot = *all;
    if (s->at.part > 0) return {};
    sum_try<DIM>(p, s, l, SL_PILOT, 0, thread, &pilot);
    float norm = norm_of(l->square, thread < DIM ? pilot.x / pilot.total : 0, thread);
    draw_bound bound = {false, p.carried.stated.z, p.carried.stated.log_term};
    int S = plan(&s->take, bound, 0.95 * p.carried.share * norm / unit_of(&l->rows), thread);
    if (S == 0) return sum_every_row<DIM>(p, s, l, 1, thread, all);
    if (thread == 0) settle_head(p.queue, s->at.index, 1), l->searched = true;
    return sum_try<DIM>(p, s, l, S, 1, thread, all);
}

// Sums the lists that the thread block takes of a head that draws at kappa.
template <int DIM, bool MARKED>
__device__ __forceinline__ counts sum_known(const is_params &p, block_shared *s, layer_shared *l, const known_split &split,
                                            int thread, int *n_lists, mass_sum *all) {
    int n_turns = turns_of(split);
    *n_lists = lists_of_turns(p, n_turns);
    uint32_t step = pair_step(p, split);
    int *pairs = is_alone(s, *n_lists) ? l->pairs.row : shared_pairs(p, s);
    // Warp 0 usually has only heavy rows, so it has time while other warps search for light rows.
    if (thread == 0) l->step = step_of_known(s->take.sizes, &l->rows, split, most_rows(s));
    return sum_lists<DIM>(p, s, *n_lists, n_turns, thread, all, [&](int turn) {
        uint32_t m;
        drawn_row x = row_of_known<MARKED>(&s->take, &l->rows, split, false, s->at.id, n_turns, turn, thread, &m);
        keep_pair(p, s, pairs, step, x, m);
        return x;
    });
}

// Sums a head whose heavy rows are too many for the lists. Its first thread block marks the rows.
template <int DIM>
__device__ counts draw_marked(const is_params &p, block_shared *s, layer_shared *l, const known_split &split, int thread,
                              int *n_lists, mass_sum *all) {
    __syncthreads(); // all threads have read the lists
    if (s->take.marks.role == MARKS) {
        mark_known(&s->take, &l->rows, thread);
        publish_marks(&s->take, thread);
    } else {
        wait_marks(&s->take, thread);
    }
    return sum_known<DIM, true>(p, s, l, split, thread, n_lists, all);
}

// draw_of_layer for a head that does not draw at kappa, or whose heavy rows are too many for the lists. fits: the head draws at
// kappa. The function is not inlined, because it rarely runs.
template <int DIM>
__device__ __noinline__ counts draw_rarely(const is_params &p, block_shared *s, layer_shared *l, known_split split, bool fits,
                                           int thread, int *n_lists, mass_sum *all) {
    *n_lists = 1;
    if (fits) return draw_marked<DIM>(p, s, l, split, thread, n_lists, all);
    if (l->kappa > 0) {
        *n_lists = lists_of_turns(p, ceil_div(s->at.n_built, (int)TAKE_THREADS));
        counts n = sum_every_row<DIM>(p, s, l, *n_lists, thread, all);
        if (thread == 0) { // of the draws that the head does not make
            sl_threshold_step planned = step_of_known(s->take.sizes, &l->rows, split, 0);
            l->step.spared_k = planned.k, l->step.spared_B = planned.B, l->step.kappa = planned.kappa;
        }
        return n;
    }
    return search_error<DIM>(p, s, l, thread, all);
}

// Sums the lists that the thread block takes (carried.c, sl_draw_of_layer). *n_lists: of the head. Thread 0 sets l->step.
template <int DIM>
__device__ counts draw_of_layer(const is_params &p, block_shared *s, layer_shared *l, int thread, int *n_lists, mass_sum *all) {
    known_split split = {};
    bool fits = false;
    if (l->kappa > 0) {
        list_heavy(&s->take, &l->rows, 0, listed_blocks(&l->rows), thread);
        __syncthreads();
        split = split_known(&s->take, &l->rows);
        fits = fits_in(split, l->rows.kappa, most_rows(s));
    }
    if (thread == 0) l->split = split;
    if (!fits || !split.is_listed) {
        int lists;
        mass_sum sum = *all;
        counts n = draw_rarely<DIM>(p, s, l, split, fits, thread, &lists, &sum);
        *n_lists = lists, *all = sum;
        return n;
    }
    return sum_known<DIM, false>(p, s, l, split, thread, n_lists, all);
}

// ---- a stated error of the layer ----

// The head's light draws that are compared. Returns their number. Draws at kappa have already kept their rows. has_rows: the
// thread block has drawn all rows of the head. Call __syncthreads after it.
__device__ int find_pairs(const is_params &p, block_shared *s, layer_shared *l, bool has_rows, int thread) {
    const take_all &r = s->take.drawn;
    bool known = !l->searched;
    uint32_t last = known ? (uint32_t)l->step.k : 0;
    int n_light = l->searched ? r.k : (int)last + (point_of(&s->take, &l->rows, false, s->at.id, last) < l->split.light);
    uint32_t step = known ? pair_step(p, l->split) : pair_step_of(r.k), m = thread * step;
    if (l->took_all) n_light = 0;
    if (thread == 0) l->pairs.n_light = n_light;
    if (thread < MOST_PAIRED && m < (uint32_t)n_light && !(known && has_rows))
        l->pairs.row[thread] =
            known ? __ldcg(shared_pairs(p, s) + thread) : pool_row(p, s, light_row(&s->take, false, s->at.id, 1, m).row);
    return n_light > 0 ? ceil_div(n_light, (int)step) : 0;
}

// The rows of V where they lie, for pairs_of.
template <int DIM> __device__ __forceinline__ auto drawn_values(const is_params &p) {
    if constexpr (IS_OFFLOADED)
        return paired_rows{p.host.rows + DIM};
    else
        return value_rows(p.score, p.draw.v);
}

// Stores the step of a head with the sum `all`: l->step, completed (draw_importance.c, measure). draws: the head has rows with
// quantised keys, and its scores are in range.
template <int DIM>
__device__ void measure(const is_params &p, block_shared *s, layer_shared *l, int head, const mass_sum &all, bool draws,
                        bool has_rows, int thread) {
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
    if (compares) {
        const auto v = drawn_values<DIM>(p);
        pairs = pairs_of<DIM, true>(v, &s->take.lists, &l->pairs, s->columns[0], l->pairs.n_light, n, thread);
        if (IS_OFFLOADED && p.draw.stats && thread == 0) atomicAdd(&p.draw.stats->fetched, (unsigned long long)n);
    }
    if (thread != 32 * STATE_WARP) return;
    sl_threshold_step x = draws ? l->step : sl_threshold_step{};
    x.squares = 0;
    for (int i = 0; i < TAKE_WARPS; i++) x.squares += l->square[i];
    if (draws) {
        double masses = 0;
        for (int i = 0; i < TAKE_WARPS; i++) masses += (double)l->mass[i], unbounded |= l->is_unbounded[i];
        double ratio = masses / all.total * exp2((double)(l->top[0] - 38) - all.top); // Z~ / Z^
        double widen = ratio * fmax(1.0, (double)(norm / l->m));
        x.B *= widen * widen, x.kappa *= widen;
        if (!l->took_all && unbounded) x.B = INFINITY;
        x.trace_squares = trace_of(x.kappa, pairs);
    }
    store_step(p.carried, s->at.row, head, x);
}

// Sets what `measure` needs besides the draws, while keys are still scored.
__device__ void prepare_measure(const is_params &p, layer_shared *l, int seq_head, int h, bool draws, int thread) {
    if (thread == 0) l->searched = l->took_all = false;
    if (thread / 32 != STATE_WARP || !draws) return;
    float m = known_mean(p.score, seq_head, h);
    if (!(m > 0)) m = first_mean(p.score, seq_head, thread % 32); // all lanes have one head
    if (thread % 32 == 0) l->m = m;
}

// ---- the kernel ----

// The memory for the marks of a head, for thread 0. at: number of its first block. A roaming thread block takes lists of open
// heads only. The first thread block opens a head after it has published the marks, if the head needs marks.
template <int MODE> __device__ head_marks marks_of(const is_params &p, const query_head &h, size_t at, int thread) {
    bool roams = h.list >= 0, first = h.part == 0 && !roams;
    head_marks m = p.marks.of_head(h.index, at, first ? MARKS : WAITS);
    if (MODE == EVEN && roams && thread == 0 && load_acquired(m.ready)) m.role = READY;
    return m;
}

// Prepares the thread block for query head `index`. Waits for the head's masses, unless a roaming thread block has taken `list`
// of the head: an open head has its masses.
template <int DIM, int MODE>
__device__ void prepare_head(const is_params &p, char *memory, int index, int part, int list, int thread) {
    block_shared *s = (block_shared *)memory;
    layer_shared *l = (layer_shared *)(memory + SHARED_BYTES);
    int seq_head = index / p.score.group, h = index % p.score.group;
    int head = seq_head % p.score.n_kv_heads * p.score.group + h;
    const sl_row row = p.score.rows[seq_head / p.score.n_kv_heads];
    query_head at = {.row = row,
                     .seq_head = seq_head,
                     .index = index,
                     .part = part,
                     .parts = index < p.late ? 1 : p.draw.parts,
                     .list = list,
                     .n_kv = row.position + 1,
                     .n_built = row.position / SL_PAGE * SL_PAGE,
                     .id = rng_of(p.draw, row, head)};
    if (MODE == BY_LAYER && thread == 32 * STATE_WARP) l->kappa = threshold_of(p.carried, row).kappa;
    if (MODE == BY_LAYER) prepare_measure(p, l, seq_head, h, at.n_built > 0, thread);
    head_view x = view_of(p.score, row, seq_head, h);
    const uint64_t *sizes = MODE == BY_LAYER ? p.score.size_mass + (x.mass - p.score.mass) : x.mass;
    copy_pages(s->page, row, thread);
    if (thread == 0) s->at = at;
    if (MODE == BY_LAYER && thread == 0) place_listed(&l->rows, p.listed, p.score.max_blocks);
    // 0.01: every row has a positive probability, even if the proposal is wrong.
    take_all_prepare(&s->take, memory + SHARED_BYTES + (MODE == BY_LAYER ? LAYER_BYTES : 0), sizes, x.w, x.stride, at.n_built,
                     MODE == BY_LAYER ? 0 : 0.01, marks_of<MODE>(p, at, x.mass - p.score.mass, thread), at.id, thread);
    if (list < 0)
        wait_done(p.score.done + seq_head, quantised_done_target(p.page_tiles, row.position + 1), thread);
    else
        __syncthreads();
    begin<DIM, MODE>(p, s, x.mass, thread);
}

// Finds the units and the total of the head's sizes, and, unless the layer draws at kappa, the heavy rows.
template <int DIM, int MODE> __device__ void find_sizes(const is_params &p, block_shared *s, layer_shared *l, int thread) {
    if (s->at.n_built == 0) {
        take_all_nothing(&s->take, thread);
    } else if (MODE == EVEN) {
        take_all_solve(&s->take, p.draw.S, &s->other_top, thread);
    } else {
        asm volatile("cp.async.wait_all;" ::: "memory"); // of the query and of copy_pages
        head_view x = view_of(p.score, s->at.row, s->at.seq_head, s->at.index % p.score.group);
        known_blocks(&s->take, &l->rows, l->kappa, {x.mass, x.n_blocks, l->mass, l->top}, thread);
    }
}

// Counts that an assigned thread block no longer reads the masses of the seq_head. The last one sets the counters to 0.
__device__ void reset_counters(const is_params &p, const query_head &at, int before) {
    if (before != at.parts * p.score.group - 1) return;
    p.draw.released[at.seq_head] = p.score.done[at.seq_head] = 0;
    if (at.seq_head == p.score.n_seqs * p.score.n_kv_heads - 1) *p.score.next_item = 0;
}

__device__ void count(sl_attn_cuda_stats *stats, const counts &n, int row_bytes, bool fallback, int thread) {
    if (!stats || thread % 32 > 0) return;
    atomicAdd(&stats->k_rows, (unsigned long long)n.n_read);
    atomicAdd(&stats->v_rows, (unsigned long long)n.n_read);
    atomicAdd(&stats->bytes, (unsigned long long)n.n_read * 2 * row_bytes);
    atomicAdd(&stats->samples, (unsigned long long)n.n_drawn);
    if (thread == 0 && fallback) atomicAdd(&stats->fallbacks, 1ull);
}

// Draws the rows of query head `index`, or of the lists that this thread block takes. The thread block that finishes the head
// writes its output.
template <int DIM, int MODE>
__device__ void draw_head(const is_params &p, char *memory, int index, int part, int list, int thread) {
    block_shared *s = (block_shared *)memory;
    layer_shared *l = (layer_shared *)(memory + SHARED_BYTES);
    prepare_head<DIM, MODE>(p, memory, index, part, list, thread);
    newest_sums newest = load_newest<DIM>(p, s->at, thread); // in flight together with the block masses
    find_sizes<DIM, MODE>(p, s, l, thread);
    const query_head &at = s->at;
    int top = at.n_built > 0 ? max(MODE == BY_LAYER ? l->top[0] : s->take.sizes.top, s->other_top) : s->other_top;
    bool exact = is_beyond(top), draws = !exact && at.n_built > 0;
    mass_sum all = sum_newest(newest);
    counts n = {};
    int n_lists = 1, before = 0;
    if (!draws) {
        if (thread == 0 && part == 0) settle_head(p.queue, index, 1);
    } else if (MODE == BY_LAYER) {
        n = draw_of_layer<DIM>(p, s, l, thread, &n_lists, &all);
    } else {
        n = sum_lists<DIM>(p, s, n_lists = p.n_lists, turns_of(&s->take), thread, &all,
                           [&](int turn) { return row_of_turn(&s->take, false, s->at.id, 0, turn, thread); });
    }
    if (list < 0) {
        bool is_last_seq_head = at.seq_head == p.score.n_seqs * p.score.n_kv_heads - 1;
        before = release_seq_head(p.draw.released + at.seq_head, is_last_seq_head, thread);
    }
    if (exact && part == 0) all = exact_column<DIM>(p, s, thread);
    bool whole = n_lists == 1 ? part == 0 : n.summed; // the thread block has drawn all rows of the head
    bool writes = whole || gather_lists<DIM>(p, s, n_lists, n.n_lists, thread, &all);
    if (writes && thread < DIM)
        p.draw.out[(size_t)index * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(all.x / all.total));
    int head = at.seq_head % p.score.n_kv_heads * p.score.group + index % p.score.group;
    if (MODE == BY_LAYER && writes) measure<DIM>(p, s, l, head, all, draws, whole, thread);
    if (list < 0 && thread == 0) reset_counters(p, at, before);
    count(p.draw.stats, n, counted_row(DIM), MODE == BY_LAYER && writes && l->took_all, thread);
}

// out = sum_j c_j e^{s_j} / pi_j v_j / sum_j c_j e^{s_j} / pi_j over S rows drawn in proportion to a mixture of 0.99 e^{s~_j}
// and 0.01 / n, and all rows of the newest page. s~: scores of quantised keys.
//
// Grid: the thread blocks of query heads below `late`, `parts` thread blocks for each of the other heads, roaming thread blocks
// (list_queue.cuh). Preconditions: `merged` and `released` are 0. `merged`, `released`, `done` and next_item are 0 at the end.
// The counters of `queue` and marks.ready are 0. Before the previous kernel has ended, the kernel reads only lengths, page
// tables, the state of the layer, the queue, and the masses that `done` announces.
// Bytes: block masses; row masses (from the L2 cache) of blocks with candidates or draws; K and V of drawn rows.
// Order of reduction: masses are integers. The tiles of the newest page come first, then the lists. In a list, a warp adds its
// rows in order, then the sums of the warps are added in order.
// BY_LAYER: also 80 bytes of state for each head, and block masses of sizes.
// REGISTERS: with 128, two thread blocks share a multiprocessor when the scores have ended. With 136, one still fits next to a
// thread block of the scores (384 threads of 80 registers). With more, the draws would start after the scores.
template <int DIM, int REGISTERS, int MODE>
__global__ void __maxnreg__(REGISTERS) is_draw_kernel(const __grid_constant__ is_params p) {
    extern __shared__ __align__(128) char memory[];
    block_shared *s = (block_shared *)memory;
    int thread = threadIdx.x, late = (int)blockIdx.x - p.late, part = max(late, 0) % p.draw.parts;
    open_list work = {min((int)blockIdx.x, p.late) + max(late, 0) / p.draw.parts, -1};
    sl_start_next();
    if (work.index >= p.n_heads) { // the thread block roams
        if (thread < 32) {
            work = find_open_list(p.queue);
            if (thread == 0) s->taken = work;
        }
        __syncthreads();
        work = s->taken, part = 1;
        if (work.index < 0) return;
    }
    draw_head<DIM, MODE>(p, memory, work.index, part, work.list, thread);
}

// ---- launch ----

const sl_attn_cuda_ops &long_ops = SL_LONG_TABLE(sl_santa_is);

is_mode mode_of(const sl_attn_spec *spec) {
    return sl_attn_certifies_layer(spec) ? BY_LAYER : EVEN;
}

// Draws that a head searches for; with a stated error, more than most heads need.
int searched_draws(const sl_attn_spec *spec) {
    enum { STATED_DRAWS = 2048 };
    return mode_of(spec) == BY_LAYER ? (int)STATED_DRAWS : (int)sl_attn_get(spec, "S");
}

// Most lists of a head's draws.
int lists_of(const sl_attn_spec *spec) {
    if (mode_of(spec) == BY_LAYER) return LISTS_MAX;
    int n = ceil_div((int)sl_attn_get(spec, "S"), (int)TAKE_THREADS);
    return n < EVEN_LISTS_MAX ? n : EVEN_LISTS_MAX;
}

// Thread blocks of a head that are likely to have a list, at most. With a stated error of the layer, most heads have the rows
// of one list, and a few have more. A thread block without a list delays the others (1 x 32k with a stated error, one H100: 56
// us with 8 thread blocks for each head, 52 us with 3).
int useful_parts(const sl_attn_spec *spec) {
    return mode_of(spec) == EVEN ? lists_of(spec) : 3;
}

// Sets how many thread blocks share a head, and how many roam.
void share_heads(is_params *p, const sl_attn_spec *spec) {
    // EVEN: the kernel of few heads has one thread block on a multiprocessor (launch_draw). A second wave would wait for the
    // first one: with eight thread blocks a head in place of four, S = 2048 takes 110 us at 1 x 32k in place of 74 (one H200).
    int per_multiprocessor = mode_of(spec) == EVEN ? 1 : 2, most = useful_parts(spec),
        parts = per_multiprocessor * sl_multiprocessors() / p->n_heads;
    if (most > p->n_lists) most = p->n_lists;
    if (most > MOST_PARTS) most = MOST_PARTS;
    p->draw.parts = parts < 1 ? 1 : parts < most ? parts : most;
    if (p->draw.parts > 1) return;
    if (p->n_lists > ALONE_LISTS) p->queue.n_roaming = 2 * sl_multiprocessors();
    if (mode_of(spec) == EVEN) return;
    p->draw.parts = p->n_lists < LATE_PARTS ? p->n_lists : (int)LATE_PARTS;
    p->late = ceil_div(p->n_heads - sl_multiprocessors() / p->draw.parts, p->score.group) * p->score.group;
}

int thread_blocks(const is_params &p) {
    return p.late + (p.n_heads - p.late) * p.draw.parts + p.queue.n_roaming;
}

// At least thread_blocks of up to n_heads heads: those of late heads, or of few heads, and roaming ones.
size_t most_thread_blocks(int n_heads) {
    return (size_t)n_heads + 4 * sl_multiprocessors() + LATE_PARTS * GROUP_MAX;
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
    // Every list has places of its own for fetched rows.
    size_t n_heads = (size_t)n_seqs * geom->n_heads, n_blocks = most_thread_blocks((int)n_heads),
           n_places = n_heads * lists_of(spec) * TAKE_THREADS;
    if (mode_of(spec) == BY_LAYER) p->listed = take_listed(&a, n_blocks, n_kv);
    if (mode_of(spec) == BY_LAYER) p->paired = a.take<int>((size_t)n_seqs * geom->n_heads * MOST_PAIRED);
    if (IS_OFFLOADED) p->host.fetched = a.take<bf16>(n_places * 2 * geom->head_dim);
    p->marks = take_marks(&a, searched_draws(spec), n_heads, n_block_masses(geom, n_seqs, n_kv));
    if (lists_of(spec) > 1) p->marks.results = a.take<mark_result>(n_heads);
    char *from = a.at; // the next arrays are cleared in every launch, `listed` only for a cache of hot rows
    p->queue = lists_of(spec) > 1 ? take_queue(&a, n_seqs * geom->n_heads) : list_queue{};
    if (lists_of(spec) > 1) p->marks.ready = a.take<int>(n_heads);
    char *end = a.at;
    if (IS_OFFLOADED) p->host.listed = a.take<int>(n_places);
    if (IS_OFFLOADED && p->host.hot.n_sets > 0) end = a.at;
    p->cleared = {(int *)from, (int)((end - from) / sizeof(int))};
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (!IS_LONG && n_kv > ROWS_MAX) return long_ops.workspace(geom, spec, n_seqs, n_tokens, n_kv);
    is_params p;
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &p);
}

template <int DIM, int MODE> void launch_draw(const sl_attn_cuda_decode_args *a, const is_params &p) {
    // With one list, 1 thread block per multiprocessor: 8 x 32k 2% less; 32 x 8k 17% more. With several lists of more heads
    // than multiprocessors, 2 are better: S = 2048, 6 x 32k: 179 us, 225 with 1; 6 x 128k: 317, 329 (one H200). With a
    // threshold of the layer, heads differ in their rows, and 2 thread blocks are better.
    enum { FEW_REGISTERS = MODE == EVEN ? 136 : 128 };
    bool few = MODE == EVEN && p.n_heads <= (p.n_lists > 1 ? 1 : 4) * sl_multiprocessors();
    sl_launch(few ? is_draw_kernel<DIM, FEW_REGISTERS, MODE> : is_draw_kernel<DIM, 128, MODE>, dim3(thread_blocks(p)),
              dim3(TAKE_THREADS), SHARED_BYTES + (MODE == EVEN ? 0 : LAYER_BYTES) + take_all_memory(ceil_div(a->max_kv, BLOCK)),
              a->stream, p);
}

template <int DIM, int BITS> void launch(const sl_attn_cuda_decode_args *a) {
    int n_lists = lists_of(a->spec), mode = mode_of(a->spec);
    is_params p = {.score = score_params_of<DIM>(a),
                   .draw = draw_params_of(a, (int)sl_attn_get(a->spec, "S")),
                   .late = 0,
                   .queue = {},
                   .cleared = {},
                   .n_heads = a->n_seqs * a->geom->n_heads,
                   .page_tiles = tile<DIM, BITS>::TILES,
                   .n_lists = n_lists,
                   .newest = NULL};
    SL_CHECK(a->max_kv <= ROWS_MAX);
    if (mode == BY_LAYER) p.carried = carried_params_of(a, a->state_at);
    SL_CHECK((a->offloaded_rows != NULL) == IS_OFFLOADED);
    p.host.rows = a->offloaded_rows, p.host.hot = a->hot, p.host.n_kv_heads = a->geom->n_kv_heads, p.host.stats = a->stats;
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    share_heads(&p, a->spec);
    if (mode == BY_LAYER) {
        SL_CHECK(BITS == 8 && a->extra[1] && a->extra_size[1] == SL_PAGE * sizeof(bf16));
        p.score.norms = (const bf16 *)a->extra[1];
        p.score.state_at = a->state_at;
        p.score = launch_quantised_scores<DIM, 8, true>(a, p.score, p.newest, p.cleared);
        launch_draw<DIM, BY_LAYER>(a, p);
        keep_hot_rows(p.host, a, n_lists, TAKE_THREADS);
        return;
    }
    p.score = launch_quantised_scores<DIM, BITS>(a, p.score, p.newest, p.cleared);
    launch_draw<DIM, EVEN>(a, p);
    keep_hot_rows(p.host, a, n_lists, TAKE_THREADS);
}

template <int DIM> void launch_bits(const sl_attn_cuda_decode_args *a) {
    SL_WITH_BITS((int)sl_attn_get(a->spec, "proposal"), launch, DIM, a);
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (!IS_LONG && args->max_kv > ROWS_MAX) return long_ops.decode(args);
    if (!IS_WIDE && !is_head_of_unit(args->geom->head_dim)) return SL_WIDE_TABLE(sl_santa_is).decode(args);
    SL_WITH_HEAD_DIM_OF_UNIT(args->geom->head_dim, launch_bits, args);
}

size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    return carried_state(geom, spec);
}

int supports(const sl_attn_spec *spec, sl_error *err) {
    if (!sl_attn_carries_budget(spec)) return supports_on_miss(spec, err);
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} santa-is: {budget} carried is not offered on a GPU, where it gains nothing; use {budget} even, or "
                   "{device} cpu");
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
    stats->bytes += newest * counted_row(geom->head_dim) * geom->n_kv_heads;
    if (mode_of(spec) == BY_LAYER) stats->bytes += (n_kv - newest) * geom->n_kv_heads * sizeof(bf16);
}

} // namespace

const sl_attn_cuda_ops SL_TABLE_OF_UNIT(sl_santa_is) = {.workspace = workspace,
                                                        .decode = decode,
                                                        .needs = needs,
                                                        .state = state,
                                                        .max_rows = SL_CUDA_LONG_ROWS,
                                                        .account = account_proposal_and_newest,
                                                        .prefill = NULL,
                                                        .supports = supports,
                                                        .mask = NULL,
                                                        .mask_workspace = NULL,
#if defined SL_OFFLOADED_ROWS || defined SL_BYTE_ROWS || defined SL_LONG_CONTEXT
                                                        .offloaded = NULL,
                                                        .bytes = NULL};
#else
                                                        .offloaded = &sl_santa_is_offloaded_cuda_ops,
                                                        .bytes = &sl_santa_is_bytes_cuda_ops};
#endif
