// attention/cuda/santa/pps.cu - santa-pps on CUDA, in two kernels. The first stores exact scores of all keys. The second always
// takes rows with a large p |v|, and draws other rows in proportion to p |v|. A head has S draws, or as many as a stated error
// needs. The naive versions are in tests/cuda/naive.h: naive_score, naive_mass, naive_take_all and naive_sum_of_rows.
//
// | kernel           | role           | warps | does                                                                  |
// |------------------|----------------|-------|-----------------------------------------------------------------------|
// | pps_score_kernel | consumer       | 8     | stores masses p, block masses of p and of sizes p |v| (score_keys.cuh) |
// |                  | norms          | 3     | norms of the newest page, for the session's state                     |
// |                  | producer       | 1     | copies K, norms and q into ring stages                                |
// | pps_draw_kernel  | all            | 8     | one query head: heavy rows and light draws (take_all.cuh), rows of V  |
//
// | shared memory of pps_draw_kernel | bytes                | contents                                        |
// |----------------------------------|----------------------|-------------------------------------------------|
// | block_shared                     | SHARED_BYTES         | sized_space, head, columns, page table, row, coef |
// | layer_shared                     | LAYER_BYTES          | CARRIED, BY_LAYER: known_rows, step, pairs      |
// | block masses of sizes            | take_all_memory      | [n_blocks], padded (place_of)                   |
//
// The draw kernel computes sizes from masses and norms when it needs them. It has four modes:
// - EVEN: S draws.
// - BY_HEAD: a stated error of each head. The kernel draws again until the head is certified. After MOST_TRIES tries it sums
//   over every row. The bounds, tries and uniform numbers are those of draw_pps.c.
// - CARRIED, BY_LAYER: the layer carries a threshold (carried.cuh), which gives a budget or a stated error. The kernel draws at
//   this threshold (take_known.cuh). It searches where carried.c searches.
//
// With SL_BYTE_ROWS the kernels are compiled for a cache of fp8 or int8 (stored_rows.cuh).
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/norms.cuh"
#include "attention/cuda/santa/stated.cuh"

extern "C" {
#include "base/quantile.h"
}

namespace {

enum {
    SCORE_WARPS = score_config<true, false>::WARPS,
    NORM_THREADS = 96,
    SCORE_THREADS = 32 * (1 + SCORE_WARPS) + NORM_THREADS,
    MOST_TRIES = 3, // after so many tries the head reads all rows
    STEP_THREAD = TAKE_THREADS - 1,
};

enum pps_mode { EVEN, BY_HEAD, CARRIED, BY_LAYER };

// The state of a head from step to step.
struct head_state {
    uint32_t next; // position of the next step; the state is valid only at this position. 0: empty
    float norm;    // norm of the head's output
};

struct pps_params {
    score_params score;
    draw_params draw;
    bool shared; // one uniform number for all light draws
    // Query heads in [late, late_end) wait for the end of the scores before they read V. These heads run on multiprocessors
    // that still score keys. The heads of the last sequence must read V before them, while memory is idle (6 x 30k: 1.1 us
    // less).
    int late, late_end;
    size_t head_state_at;              // BY_HEAD: of this layer in a session's state, after newest_norms: head_state [n_heads]
    double share;                      // epsilon / (1 + epsilon); 0: S draws
    draw_bound bound[MOST_TRIES] = {}; // of try i + 1
    carried_params carried = {};
    uint16_t *listed = NULL; // IS_LONG: place_listed
    all_marks marks = {};
};

// The query head of a thread block.
struct head {
    sl_row row;
    head_view masses;          // without running masses
    int top[TAKE_WARPS];       // largest reference of each warp's blocks
    uint64_t mass[TAKE_WARPS]; // sum of the warp's block masses, relative to `top`
    sl_rng_id id;
    int n;
};

// A take_space whose sizes are computed from masses and norms.
struct sized_space : take_space {
    const bf16 *norms, *newest; // norms: of the KV head, page i of the pool at i * stride. newest: of the newest page
    const int32_t *page;        // of the sequence, in shared memory
    int stride, n_built;        // n_built: rows of built pages
};

struct block_shared {
    sized_space take;
    head at;
    float columns[TAKE_WARPS][DIM_MAX];
    float square[TAKE_WARPS];
    context_array<int32_t, TILES_MAX> page;
    int row[TAKE_THREADS]; // pool rows; a warp writes only 32 places: its lanes'
    float coef[TAKE_THREADS];
};

// The draw of a head at the threshold of its layer.
struct layer_shared {
    known_rows rows;
    double kappa;           // of the layer; 0: the head searches
    sl_threshold_step step; // of the head, set by thread 0 or STEP_THREAD; STEP_THREAD completes and stores it
    pair_space pairs;
};
enum {
    SCORE_SHARED_BYTES = (sizeof(score_shared) + 127) / 128 * 128,
    SHARED_BYTES = (sizeof(block_shared) + 15) / 16 * 16,
    LAYER_BYTES = (sizeof(layer_shared) + 15) / 16 * 16, // block masses follow
};

// ---- norms of the newest page ----

// |v| of a row of a block.
template <int DIM> __device__ __forceinline__ bf16 norm_of_stored(const bf16 *v, size_t block, int row, bool is_fp8) {
    if constexpr (IS_BYTES)
        return sl_norm_of_bytes(row_of_block<DIM>(v, block, row), *scale_of_block<DIM>(v, block, row), is_fp8, DIM);
    else
        return sl_norm_of_row((const bf16 *)row_of_block<DIM>(v, block, row), DIM);
}

// Stores the norms of rows that are new since the last step. In most steps there is one new row. Each seq_head has one warp. In
// a new page, the norms after the last row become 0.
template <int DIM> __device__ void store_newest_norms(const score_params &p, const bf16 *v, int thread) {
    sl_wait_previous(); // the newest row
    sl_start_next();    // from now on the draw kernel may read `done`, which the previous launch must have set to 0
    int lane = thread % 32, n_seq_heads = p.n_seqs * p.n_kv_heads;
    for (int seq_head = thread / 32 * gridDim.x + blockIdx.x; seq_head < n_seq_heads;
         seq_head += NORM_THREADS / 32 * gridDim.x) {
        const sl_row row = p.rows[seq_head / p.n_kv_heads];
        newest_norms *norms = newest_norms_of(p, seq_head);
        int page = row.position / SL_PAGE, first = page * SL_PAGE, from = min(max(norms->n, first), row.position);
        int end = from == first ? first + SL_PAGE : row.position + 1;
        size_t block = (size_t)row.pages[page] * p.n_kv_heads + seq_head % p.n_kv_heads;
        for (int j = from + lane; j < end; j += 32)
            __stcg(norms->norm + j - first, j <= row.position ? norm_of_stored<DIM>(v, block, j - first, p.is_fp8) : (bf16)0);
        __syncwarp();
        if (lane > 0) continue;
        norms->n = row.position + 1;
        add_released(p.newest_done + seq_head, 1);
    }
}

// ---- sizes, computed from masses and norms ----

// The stored data from which 8 sizes follow.
struct sized_piece {
    uint4 w, norms;
};

// Norms of the rows from `row` on, in the page extra or in the session's state.
__device__ const bf16 *norms_of(const sized_space *s, int row) {
    return row < s->n_built ? s->norms + (size_t)s->page[row / SL_PAGE] * s->stride + row % SL_PAGE
                            : s->newest + row - s->n_built;
}

__device__ sized_piece stored_piece(const sized_space *s, int b, int i) {
    return {stored_piece((const take_space *)s, b, i), __ldcg((const uint4 *)norms_of(s, b * BLOCK) + i)};
}

__device__ uint4 sizes_of(const sized_piece &x, uint64_t packed) {
    int unit = size_unit_of(packed);
    return {size_of_product(product_of(x.w.x, x.norms.x), unit), size_of_product(product_of(x.w.y, x.norms.y), unit),
            size_of_product(product_of(x.w.z, x.norms.z), unit), size_of_product(product_of(x.w.w, x.norms.w), unit)};
}

// Whether one of the thread's blocks has a size that is infinite or NaN (masses.h, sl_sizes_out_of_range).
__device__ bool sees_size_out_of_range(const sized_space *s, int thread) {
    bool sees = false;
    for (int b = thread; b < s->sizes.n_blocks; b += TAKE_THREADS) sees |= size_unit_of(mass_of(s, b)) >= SIZE_UNIT_MOST;
    return sees;
}

// ---- one query head ----

// Sums all block masses. Each warp sums a part of them.
__device__ void sum_masses(head *x, int thread) {
    uint64_t packed[8], sum = 0;
    int top = REF_EMPTY;
    for (int first = thread * 8; first - thread * 8 < x->masses.n_blocks; first += 8 * TAKE_THREADS) {
        int before = top;
        load_masses<8>(x->masses, first, packed);
#pragma unroll
        for (int j = 0; j < 8; j++) top = max(top, ref_of(packed[j]));
        top = __reduce_max_sync(~0u, top);
        sum = top - before < 64 ? sum >> (top - before) : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) sum += global_mass(packed[j], top);
    }
    sum = sum_lanes(sum);
    if (thread % 32 == 0) x->top[thread / 32] = top, x->mass[thread / 32] = sum;
}

struct normaliser {
    int top; // 2^top is the unit of masses
    double inverse;
};

// The largest reference of the head's masses.
__device__ int largest_reference(const head &x) {
    int top = REF_EMPTY;
    for (int i = 0; i < TAKE_WARPS; i++) top = max(top, x.top[i]);
    return top;
}

// All lanes of a warp call the function together. Each lane reads the sum of one warp.
__device__ normaliser normaliser_of(const head &x) {
    int own = threadIdx.x % TAKE_WARPS, top = __reduce_max_sync(~0u, x.top[own]);
    double sum = (double)x.mass[own] * power_of_two(x.top[own] - top - 38);
#pragma unroll
    for (int step = 1; step < TAKE_WARPS; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return {top, inverse_of(sum)};
}

// p_j of row j. All lanes of a warp call it together. The normaliser is the same for all rows. It is computed here, because the
// row mass is in flight at this place.
__device__ double probability_of(const head &x, int j) {
    int ref = ref_of(__ldcg(x.masses.mass + j / BLOCK));
    bf16 w = __ldcg(x.masses.w + (size_t)(j / BLOCK) * x.masses.stride + j % BLOCK);
    normaliser z = normaliser_of(x);
    return (double)__uint_as_float((uint32_t)w << 16) * power_of_two(ref - z.top) * z.inverse;
}

// p_j / pi_j of a row, computed while rows of V are in flight (gather).
struct pps_factor {
    enum { IS_LATE = 1 };
    const block_shared *s;
    const drawn_row &x;
    __device__ float find() const {
        double p = probability_of(s->at, max(x.row, 0));
        return x.row < 0 ? 0 : (float)(p * inverse_pi(&s->take, x));
    }
};

// Row `row` of the sequence as a pool row; -1: none.
__device__ int pool_row(const pps_params &p, const block_shared *s, int row) {
    return row < 0 ? -1 : (s->page[row / SL_PAGE] * p.score.n_kv_heads + s->at.masses.kv_head) * SL_PAGE + row % SL_PAGE;
}

// Adds this thread's row of the sequence, times p_j / pi_j, to the sum. Returns how many rows its warp read.
// AHEAD: loads of a lane in flight.
template <int DIM, int AHEAD = 8>
__device__ int add_row(const pps_params &p, block_shared *s, const drawn_row &x, row_sum *sum, int thread) {
    return gather<DIM, AHEAD>(value_rows(p.score, p.draw.v), s, thread, pool_row(p, s, x.row), pps_factor{s, x}, sum);
}

// What a warp counts.
struct outcome {
    int n_read;    // rows of V for the head's output
    int n_samples; // draws. The warp that has the count of the head counts it, and the other warps count 0
    int tries;
    bool dense;
};

// Column `thread` of the sum over the rows of s->take.drawn.
template <int DIM> __device__ float sum_draws(const pps_params &p, block_shared *s, int in_try, outcome *o, int thread) {
    row_sum sum = {};
    o->n_read = 0;
    for (int turn = 0; turn < turns_of(&s->take); turn++) {
        drawn_row x = row_of_turn(&s->take, p.shared, s->at.id, in_try, turn, thread);
        o->n_read += add_row<DIM>(p, s, x, &sum, thread);
    }
    o->n_samples = thread < 32 ? s->take.drawn.n_heavy + s->take.drawn.k : 0;
    return join_columns<DIM>(s->columns, sum, thread);
}

// Column `thread` of the sum over all rows.
template <int DIM> __device__ float sum_all(const pps_params &p, block_shared *s, outcome *o, int thread) {
    row_sum sum = {};
    o->n_read = 0, o->dense = true;
    for (int j = thread; j - thread < s->at.n; j += TAKE_THREADS)
        o->n_read += add_row<DIM>(p, s, {j < s->at.n ? j : -1, 0}, &sum, thread);
    o->n_samples = thread < 32 ? s->at.n : 0;
    return join_columns<DIM>(s->columns, sum, thread);
}

// Column `thread` of exact attention.
template <int DIM> __device__ float exact_column(const pps_params &p, block_shared *s, int seq_head, int h, int thread) {
    if (thread < 32)
        attend_exactly<DIM>(exact_head_of(p.score, p.draw.v, p.draw.stats, s->at.row, seq_head, h, DIM), s->columns[0]);
    __syncthreads();
    return thread < DIM ? s->columns[0][thread] : 0;
}

// ---- a stated error of each head ----

// Column `thread` of the head's output. Try 0 is the pilot.
template <int DIM> __device__ float certify(const pps_params &p, block_shared *s, head_state *before, outcome *o, int thread) {
    const take_all &r = s->take.drawn;
    bool planned = before->next && before->next == (uint32_t)s->at.row.position;
    float norm = planned ? before->norm : 0, out = 0;
    for (int i = 0, S = SL_PILOT;; i++) {          // ends by break
        take_all_solve(&s->take, S, NULL, thread); // the pilot's call also finds the total size
        if (i == 0 && __syncthreads_or(sees_size_out_of_range(&s->take, thread))) { // draws bound nothing
            out = sum_all<DIM>(p, s, o, thread);
            break;
        }
        normaliser z = normaliser_of(s->at);
        double unit = exp2((double)(s->take.sizes.top - z.top - 38)) * z.inverse; // of sizes, relative to the output
        if (i > 0 || !planned) {
            out = sum_draws<DIM>(p, s, i, o, thread);
            norm = norm_of(s->square, out, thread);
            o->tries = i;
        }
        if (i > 0 && unit * error_bound(p.bound[i - 1], (double)r.light, r.k) <= p.share * norm) break;
        if (i < MOST_TRIES) S = plan(&s->take, p.bound[i], (i ? 0.8 : 0.95) * p.share * norm / unit, thread);
        if (i < MOST_TRIES && S > 0) continue;
        out = sum_all<DIM>(p, s, o, thread);
        break;
    }
    norm = norm_of(s->square, out, thread);
    if (thread == 0) *before = {(uint32_t)s->at.row.position + 1, norm};
    return out;
}

// ---- a threshold of the layer ----

// Column `thread` of the output from S draws of a search, with the uniform numbers of a try.
template <int DIM>
__device__ float search(const pps_params &p, block_shared *s, layer_shared *l, int S, int in_try, outcome *o, int thread) {
    take_all_solve(&s->take, S, NULL, thread);
    if (thread == STEP_THREAD) l->step = step_of_search(s->take.sizes, unit_of(&l->rows), s->take.drawn);
    return sum_draws<DIM>(p, s, in_try, o, thread);
}

// Column `thread` of the output in a layer's first step with a stated error. A head draws as many rows as its own stated error
// needs (carried.c, search_error).
template <int DIM>
__device__ float search_error(const pps_params &p, block_shared *s, layer_shared *l, outcome *o, int thread) {
    float out = search<DIM>(p, s, l, SL_PILOT, 0, o, thread), norm = norm_of(s->square, out, thread);
    int S = plan(&s->take, p.bound[0], 0.95 * p.share * norm / unit_of(&l->rows), thread);
    if (S == 0) return sum_all<DIM>(p, s, o, thread);
    out = search<DIM>(p, s, l, S, 1, o, thread);
    const take_all &r = s->take.drawn;
    uint32_t step = p.carried.stated.bound == SL_STATED_CHI2 ? pair_step_of(r.k) : 0, number = thread * step;
    if (step > 0 && number < (uint32_t)r.k)
        l->pairs.row[thread] = pool_row(p, s, light_row(&s->take, false, s->at.id, 1, number).row);
    if (step > 0) {
        __syncthreads();
        double pairs = pairs_of<DIM, false>(value_rows(p.score, p.draw.v), &s->take.lists, &l->pairs, NULL, r.k,
                                            ceil_div(r.k, (int)step), thread);
        if (thread == STEP_THREAD) l->step.trace_squares = trace_of(l->step.kappa, pairs);
    }
    return out;
}

// Waits for the end of the scores, if the head's thread block runs next to late scores (pps_params.late).
__device__ void wait_if_late(const pps_params &p, int index) {
    if (index >= p.late && index < p.late_end) sl_wait_previous();
}

// Most rows of a head that draws at kappa.
template <bool STATED> __device__ double most_rows(const pps_params &p, const block_shared *s) {
    return STATED ? s->at.n / 2.0 : p.carried.most;
}

template <bool STATED>
__device__ sl_threshold_step known_step(const pps_params &p, const block_shared *s, const layer_shared *l,
                                        const known_split &split) {
    return step_of_known(s->take.sizes, &l->rows, split, most_rows<STATED>(p, s));
}

// How a head that draws at kappa takes its rows: in one turn, in several turns, or in turns of marked rows, if the lists are
// too short for its heavy rows.
enum known_draws { ONE_TURN, TURNS, MARKED_TURNS };

// Column `thread` of the output of a head that draws at kappa. ONE_TURN, TURNS: thread 0 also sets l->step. Its warp usually
// has only heavy rows, so the warp has time while other warps search for light rows.
template <int DIM, bool STATED, known_draws KIND>
__device__ float draw_known(const pps_params &p, block_shared *s, layer_shared *l, const known_split &split, outcome *o,
                            int thread) {
    enum { AHEAD = 12 }; // a head with S = 128 draws takes 17 to 20 rows in each warp
    row_sum sum = {};
    uint32_t step = STATED && p.carried.stated.bound == SL_STATED_CHI2 ? pair_step_of((int)split.k + 2) : 0;
    int n_light = 0;
    if (KIND == MARKED_TURNS) mark_known(&s->take, &l->rows, thread);
    if (KIND != MARKED_TURNS && thread == 0) l->step = known_step<STATED>(p, s, l, split);
    auto add = [&](const drawn_row &x, uint32_t m) {
        o->n_samples += __popc(__ballot_sync(~0u, x.row >= 0));
        if (STATED && step > 0) {
            n_light += __popc(__ballot_sync(~0u, x.size > 0));
            uint32_t i = m / step;
            if (x.size > 0 && i * step == m) l->pairs.row[i] = pool_row(p, s, x.row);
        }
        o->n_read += add_row<DIM, AHEAD>(p, s, x, &sum, thread);
    };
    if (KIND == ONE_TURN)
        take_turn(&s->take, &l->rows, split, p.shared, s->at.id, thread, add);
    else
        take_rows<KIND == MARKED_TURNS>(&s->take, &l->rows, split, p.shared, s->at.id, thread, add);
    if (STATED && step > 0 && thread % 32 == 0) atomicAdd(&l->pairs.n_light, n_light);
    float out = join_columns<DIM>(s->columns, sum, thread);
    if (STATED && step > 0) {
        int n = l->pairs.n_light;
        double pairs = pairs_of<DIM, false>(value_rows(p.score, p.draw.v), &s->take.lists, &l->pairs, NULL, n,
                                            ceil_div(n, (int)step), thread);
        if (thread == STEP_THREAD) l->step.trace_squares = trace_of(l->step.kappa, pairs);
    }
    return out;
}

struct rare_result {
    float out; // column `thread`
    outcome o;
};

// The output of a head that does not draw at kappa, or whose heavy rows are too many for the lists, and l->step. fits: the head
// draws at kappa. The function is not inlined, because it rarely runs.
template <int DIM, bool STATED>
__device__ __noinline__ rare_result draw_rarely(const pps_params &p, block_shared *s, layer_shared *l, known_split split,
                                                bool fits, int thread) {
    rare_result x = {};
    if (thread == STEP_THREAD && l->kappa > 0) l->step = known_step<STATED>(p, s, l, split);
    if (fits) {
        x.out = draw_known<DIM, STATED, MARKED_TURNS>(p, s, l, split, &x.o, thread);
    } else if (!STATED) {
        x.out = search<DIM>(p, s, l, l->kappa > 0 ? p.carried.most : p.draw.S, 0, &x.o, thread);
        if (thread == STEP_THREAD && l->kappa > 0) l->step = at_ceiling(l->step);
    } else {
        x.out = l->kappa > 0 ? sum_all<DIM>(p, s, &x.o, thread) : search_error<DIM>(p, s, l, &x.o, thread);
        if (thread == STEP_THREAD && x.o.dense) {
            const sl_threshold_step planned = l->step; // of the draws that the head does not make, if the layer has a kappa
            l->step = step_of_search(s->take.sizes, unit_of(&l->rows), {.n_heavy = s->at.n, .k = 0, .light = 0});
            if (l->kappa > 0) l->step.spared_k = planned.k, l->step.spared_B = planned.B, l->step.kappa = planned.kappa;
        }
    }
    return x;
}

// Column `thread` of the head's output, and l->step (carried.c, sl_draw_of_layer).
template <int DIM, bool STATED>
__device__ float draw_of_layer(const pps_params &p, block_shared *s, layer_shared *l, outcome *o, int thread) {
    known_split split = {};
    bool fits = false;
    if (l->kappa > 0) {
        list_heavy(&s->take, &l->rows, 0, listed_blocks(&l->rows), thread);
        __syncthreads();
        split = split_known(&s->take, &l->rows);
        fits = fits_in(split, l->rows.kappa, most_rows<STATED>(p, s));
    }
    if (!STATED) wait_if_late(p, blockIdx.x);
    if (fits && split.is_listed) {
        bool one = turns_of(split) == 1;
        return one ? draw_known<DIM, STATED, ONE_TURN>(p, s, l, split, o, thread)
                   : draw_known<DIM, STATED, TURNS>(p, s, l, split, o, thread);
    }
    rare_result x = draw_rarely<DIM, STATED>(p, s, l, split, fits, thread);
    *o = x.o;
    return x.out;
}

// ---- the kernels ----

// Adds a head's counts to the statistics.
__device__ void count(sl_attn_cuda_stats *stats, const outcome &o, int row_bytes, int thread) {
    if (!stats || thread % 32 > 0) return;
    atomicAdd(&stats->v_rows, (unsigned long long)o.n_read);
    atomicAdd(&stats->bytes, (unsigned long long)o.n_read * row_bytes);
    if (o.n_samples) atomicAdd(&stats->samples, (unsigned long long)o.n_samples);
    if (thread > 0) return;
    if (o.tries) atomicAdd(&stats->tries, (unsigned long long)o.tries);
    if (o.dense) atomicAdd(&stats->fallbacks, 1ull);
}

// Stores masses and block masses of sizes for all rows of all heads.
//
// Grid: one thread block per multiprocessor, for any lengths.
// Preconditions: as in santa_ring_kernel (santa.cu). Before the previous kernel has ended, the kernel also reads page extras.
// Bytes: reads K and the norms (2 bytes for each row and KV head) once, and the newest row's V. Writes 2 + 1/2 bytes of masses
// for each row and query head.
template <int DIM, typename Config> __global__ void __maxnreg__(144) pps_score_kernel(const score_params p, const bf16 *v) {
    extern __shared__ __align__(128) char memory[];
    score_shared *shared = (score_shared *)memory;
    ring r = {shared, memory + SCORE_SHARED_BYTES, p.n_stages, layout<DIM, Config>::stage(p.group), 0, 0};
    int warp = threadIdx.x / 32;
    producer to;
    if (warp == SCORE_WARPS + NORM_THREADS / 32) to = produce_begin(p, r);
    score_begin<Config>(shared, 32 * Config::SIZE);
    __syncthreads();
    if (warp < SCORE_WARPS)
        consume<DIM, Config>(p, r);
    else if (warp < SCORE_WARPS + NORM_THREADS / 32)
        store_newest_norms<DIM>(p, v, threadIdx.x - 32 * SCORE_WARPS);
    else
        produce<DIM, Config>(p, to);
}

// out = sum_j c_j (p_j / pi_j) v_j, c_j from take-all + PPS draws with size p_j |v_j|.
//
// Grid: one thread block per query head of all sequences.
// Preconditions: `released` is 0. `released`, `done` and newest_done are 0 at the end. Before the previous kernel has ended,
// the kernel reads only lengths, page tables, the state of the layer and the masses that `done` announces.
//
// Bytes: block masses; row masses (from the L2 cache) and norms of blocks with candidates or draws; drawn rows of V. BY_HEAD:
// the same again for each try. CARRIED, BY_LAYER: 80 bytes of state for each head.
//
// Order of reduction: masses are integers. A warp adds the rows of its lanes in order, turn by turn, heavy rows before light
// rows. Then the sums of the warps are added in order.
//
// A thread has 96 registers, so a thread block fits on a multiprocessor that also runs a thread block of the scores.
template <int DIM, int MODE>
__global__ void __maxnreg__(IS_LONG ? 160 : 96) pps_draw_kernel(const __grid_constant__ pps_params p) {
    extern __shared__ __align__(128) char memory[];
    enum { HAS_LAYER = MODE == CARRIED || MODE == BY_LAYER };
    bool unbounded = false; // the thread has seen a size that is infinite or NaN
    block_shared *s = (block_shared *)memory;
    layer_shared *l = (layer_shared *)(memory + SHARED_BYTES);
    const score_params &scores = p.score;
    int thread = threadIdx.x, index = blockIdx.x, seq_head = index / scores.group, h = index % scores.group;
    int seq = seq_head / scores.n_kv_heads, head = seq_head % scores.n_kv_heads * scores.group + h;
    outcome o = {};
    float out;
    sl_start_next();
    const sl_row row = scores.rows[seq];
    if (HAS_LAYER && thread == 32 * STATE_WARP) l->kappa = threshold_of(p.carried, row).kappa;
    head_view masses = view_of(scores, row, seq_head, h);
    sl_rng_id id = rng_of(p.draw, row, head);
    copy_pages(s->page, row, thread);
    if (thread == 0) {
        s->at.row = row, s->at.n = row.position + 1, s->at.masses = masses, s->at.id = id;
        s->take.norms = scores.norms + masses.kv_head * SL_PAGE, s->take.stride = scores.n_kv_heads * SL_PAGE;
        s->take.newest = newest_norms_of(scores, seq_head)->norm, s->take.n_built = row.position / SL_PAGE * SL_PAGE;
        s->take.page = s->page;
    }
    if (MODE == BY_LAYER && thread == 0) l->pairs.n_light = 0;
    if (HAS_LAYER && thread == 0) place_listed(&l->rows, p.listed, scores.max_blocks);
    take_all_prepare(&s->take, memory + SHARED_BYTES + (HAS_LAYER ? LAYER_BYTES : 0),
                     scores.size_mass + (masses.mass - scores.mass), masses.w, masses.stride, row.position + 1, 0,
                     p.marks.of_head(index, masses.mass - scores.mass, MARKS), id, thread);
    wait_done(scores.done + seq_head, done_target(SCORE_WARPS, row.position + 1), thread);
    if (HAS_LAYER) {
        asm volatile("cp.async.wait_all;" ::: "memory"); // of copy_pages
        known_blocks(&s->take, &l->rows, l->kappa, {masses.mass, masses.n_blocks, s->at.mass, s->at.top}, thread);
    } else {
        take_all_begin(&s->take, thread);
        sum_masses(&s->at, thread);
    }
    if (MODE == EVEN) take_all_solve(&s->take, p.draw.S, NULL, thread);
    if (MODE == BY_HEAD) __syncthreads(); // all warps have stored their largest references
    if (is_beyond(largest_reference(s->at))) {
        out = exact_column<DIM>(p, s, seq_head, h, thread);
        if (HAS_LAYER && thread == STEP_THREAD) l->step = {};
    } else if (MODE == EVEN) {
        wait_if_late(p, index);
        out = sum_draws<DIM>(p, s, 0, &o, thread);
    } else if (MODE == BY_HEAD) {
        out = certify<DIM>(p, s, (head_state *)(row.state + p.head_state_at) + head, &o, thread);
    } else {
        out = draw_of_layer<DIM, MODE == BY_LAYER>(p, s, l, &o, thread);
        if (MODE == BY_LAYER) unbounded = sees_size_out_of_range(&s->take, thread);
    }
    int before = release_seq_head(p.draw.released + seq_head, seq_head == scores.n_seqs * scores.n_kv_heads - 1, thread);
    if (thread < DIM) p.draw.out[(size_t)index * DIM + thread] = __bfloat16_as_ushort(__float2bfloat16_rn(out));
    if (MODE == BY_LAYER) {
        float square = sl_sum_lanes(out * out);
        if (thread % 32 == 0) s->square[thread / 32] = square;
        unbounded = __syncthreads_or(unbounded);
        if (thread == STEP_THREAD) {
            double sum = 0;
            for (int i = 0; i < TAKE_WARPS; i++) sum += s->square[i];
            l->step.squares = sum;
            if (unbounded) l->step.B = INFINITY;
        }
    }
    // The first warp releases the masses, so a thread of another warp stores the step.
    if (HAS_LAYER && thread == STEP_THREAD) store_step(p.carried, row, head, l->step);
    count(p.draw.stats, o, counted_row(DIM), thread); // after the stores of the step, which must not wait for it
    before = thread < 32 ? __shfl_sync(~0u, before, 0) : 0;
    if (thread < 32 && before == scores.group - 1) { // the last head of the seq_head
        if (thread == 0) p.draw.released[seq_head] = scores.done[seq_head] = scores.newest_done[seq_head] = 0;
        discard_stored(scores, seq_head, row.position + 1, thread, 32);
    }
}

// ---- launch ----

pps_mode mode_of(const sl_attn_spec *spec) {
    if (sl_attn_certifies_layer(spec)) return BY_LAYER;
    return sl_attn_states_error(spec) ? BY_HEAD : sl_attn_carries_budget(spec) ? CARRIED : EVEN;
}

// Draws that a head searches for; with a stated error, more than most heads need.
int searched_draws(const sl_attn_spec *spec) {
    enum { STATED_DRAWS = 2048 };
    return sl_attn_states_error(spec) ? (int)STATED_DRAWS : (int)sl_attn_get(spec, "S");
}

size_t lay_out(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, pps_params *p) {
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_kv);
    p->score.size_mass = a.take<uint64_t>(n_block_masses(geom, n_seqs, n_kv));
    p->marks = take_marks(&a, searched_draws(spec), (size_t)n_seqs * geom->n_heads, n_block_masses(geom, n_seqs, n_kv));
    if (sl_carries_threshold(spec)) p->listed = take_listed(&a, (size_t)n_seqs * geom->n_heads, n_kv);
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    if (!IS_LONG && n_kv > ROWS_MAX) return SL_LONG_TABLE(sl_santa_pps).workspace(geom, spec, n_seqs, n_tokens, n_kv);
    pps_params p;
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &p);
}

template <int DIM> pps_params params_of(const sl_attn_cuda_decode_args *a) {
    double epsilon = sl_attn_get(a->spec, "epsilon"), delta = sl_attn_get(a->spec, "delta");
    int n_heads = a->n_seqs * a->geom->n_heads, mode = mode_of(a->spec);
    size_t head_state_at = a->state_at + a->geom->n_kv_heads * sizeof(newest_norms);
    pps_params p = {.score = score_params_of<DIM>(a),
                    .draw = draw_params_of(a, (int)sl_attn_get(a->spec, "S")),
                    .shared = epsilon == 0 && sl_attn_chooses(a->spec, "pps", "sys"),
                    .late = n_heads - sl_multiprocessors(),
                    .late_end = n_heads - a->geom->n_heads,
                    .head_state_at = head_state_at,
                    .share = epsilon / (1 + epsilon)};
    SL_CHECK(a->max_kv <= ROWS_MAX && a->extra[0] && a->extra_size[0] == SL_PAGE * sizeof(bf16));
    p.draw.parts = 1;
    p.score.top = NULL;
    p.score.norms = (const bf16 *)a->extra[0];
    p.score.state_at = a->state_at;
    p.score.newest_done = p.draw.merged; // no head is drawn in parts, so `merged` is free
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    if (mode == CARRIED || mode == BY_LAYER) p.carried = carried_params_of(a, head_state_at);
    for (int i = 0; i < MOST_TRIES; i++) {
        double of_try = mode == BY_LAYER ? delta : delta / exp2(i + 1); // the search of a layer has one try
        p.bound[i] = {mode == BY_HEAD && sl_attn_chooses(a->spec, "bound", "bernstein"), sl_normal_quantile(1 - of_try / 2),
                      log(2 / of_try)};
    }
    return p;
}

template <int DIM, bool LONG> void launch_score(const sl_attn_cuda_decode_args *a, score_params p) {
    typedef score_config<true, LONG> config;
    size_t bytes = set_tiles<DIM, config>(&p, SCORE_SHARED_BYTES);
    sl_launch(pps_score_kernel<DIM, config>, dim3(sl_multiprocessors()), dim3(SCORE_THREADS), bytes, a->stream, p, a->v);
}

template <int DIM, int MODE> void launch_draw(const sl_attn_cuda_decode_args *a, const pps_params &p) {
    size_t bytes = SHARED_BYTES + take_all_memory(ceil_div(a->max_kv, BLOCK));
    if (MODE == CARRIED || MODE == BY_LAYER) bytes += LAYER_BYTES;
    sl_launch(pps_draw_kernel<DIM, MODE>, dim3(a->n_seqs * a->geom->n_heads), dim3(TAKE_THREADS), bytes, a->stream, p);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    pps_params p = params_of<DIM>(a);
    if (IS_BYTES || uses_long_tiles(p.score, true))
        launch_score<DIM, true>(a, p.score);
    else if constexpr (!IS_BYTES)
        launch_score<DIM, false>(a, p.score);
    switch (mode_of(a->spec)) {
    case EVEN:
        launch_draw<DIM, EVEN>(a, p);
        break;
    case BY_HEAD:
        launch_draw<DIM, BY_HEAD>(a, p);
        break;
    case CARRIED:
        launch_draw<DIM, CARRIED>(a, p);
        break;
    case BY_LAYER:
        launch_draw<DIM, BY_LAYER>(a, p);
    }
}

void decode(const sl_attn_cuda_decode_args *args) {
    if (!IS_LONG && args->max_kv > ROWS_MAX) return SL_LONG_TABLE(sl_santa_pps).decode(args);
    if (!IS_WIDE && !is_head_of_unit(args->geom->head_dim)) return SL_WIDE_TABLE(sl_santa_pps).decode(args);
    SL_WITH_HEAD_DIM_OF_UNIT(args->geom->head_dim, launch, args);
}

int needs(const sl_attn_spec *, sl_kv_need *out) {
    out[0] = {&sl_page_norms, 0};
    return 1;
}

static_assert(sizeof(newest_norms) % 16 == 0, "the places of a threshold end where the state ends");

size_t state(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    size_t bytes = geom->n_kv_heads * sizeof(newest_norms) + carried_state(geom, spec);
    if (mode_of(spec) == BY_HEAD) bytes += geom->n_heads * sizeof(head_state);
    return (bytes + 15) / 16 * 16;
}

// Counts all keys and norms. The kernel counts the rows of V.
void account_keys_and_norms(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    account_all_keys(geom, spec, n_kv, stats);
    stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * sizeof(bf16);
}

} // namespace

const sl_attn_cuda_ops SL_TABLE_OF_UNIT(sl_santa_pps) = {.workspace = workspace,
                                                         .decode = decode,
                                                         .needs = needs,
                                                         .state = state,
                                                         .max_rows = SL_CUDA_LONG_ROWS,
                                                         .account = account_keys_and_norms,
                                                         .prefill = NULL,
                                                         .supports = supports_on_miss,
                                                         .mask = NULL,
                                                         .mask_workspace = NULL,
                                                         .offloaded = NULL,
#if defined SL_BYTE_ROWS || defined SL_LONG_CONTEXT
                                                         .bytes = NULL};
#else
                                                         .bytes = &sl_santa_pps_bytes_cuda_ops};
#endif
