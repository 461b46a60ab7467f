// engine/backend/cuda/cuda_sampler.cu - see sampler.h. A selection over sorted runs, in two kernels.
//
// The vocabulary is cut into runs of 1,024 logits. The first kernel, a block a run, sorts each run of a sampled row, best
// first, and leaves beside it the running sums of the weights within the run. The second, a block a row with a thread a run,
// finds where a running count or a running weight over the whole sorted row passes a target without ever sorting the row: a
// pivot splits every run by binary search, the runs' sums on its better side add up to the running sum at the pivot, and that
// says on which side to go on. Top-k, top-p and the draw are each one such search. Its cost hardly depends on the logits; equal
// logits are no special case, since candidates are ordered by (logit, id) and no two are equal.
//
// As soon as at most 1,024 candidates are left they are sorted and treated exactly as engine/backend/sampler.c does. A top-k up
// to the number of runs gets there without a search: few more candidates are as good as the k-th best of the runs' best.
//
// Both kernels together, H100 80GB HBM3, November 2026, 128,256 logits in the L2, in a graph of ten, 1 row / 16 rows:
// greedy 2.8 / 5.7 us; top-k 40, top-p 0.95, min-p 0.05: 13.5 / 40 us; top-p 0.95 alone 28 / 82 us (logits as a model's), 77 /
// 165 us (flat).
#include "engine/backend/cuda/device.cuh"
#include "engine/backend/cuda/cuda_sampler.h"
#include "engine/base/philox.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <math.h>

enum {
    RUN = 1024,      // logits of a run
    RUN_BLOCK = 128, // threads that sort it,
    ITEMS = 8,       // each with so many candidates
    LIST = 1024,     // candidates that are sorted as one list
    BLOCK = 512,     // threads of the second kernel
};
static_assert(RUN == RUN_BLOCK * ITEMS, "the sort is laid out for this");
static_assert(LIST == 2 * BLOCK && SL_CUDA_SAMPLER_VOCAB == RUN * BLOCK, "a thread compares two, owns one run");

// What a running sum is a sum of.
typedef enum { COUNT, WEIGHT_1, WEIGHT_TEMP } measure; // 1, e^(logit - best), e^((logit - best) / temp)

struct max_key {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct add_pair {
    __device__ double2 operator()(double2 a, double2 b) const { return make_double2(a.x + b.x, a.y + b.y); }
};

// ---- candidates ----

// A candidate as one number that is larger the better it is: the logit's bits in order (NaN as -inf, -0 as 0), then the id
// inverted. No candidate is 0.
static __device__ __forceinline__ uint64_t candidate_key(float logit, int id) {
    if (isnan(logit)) logit = -INFINITY;
    uint32_t bits = logit == 0 ? 0 : __float_as_uint(logit);
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ float key_logit(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits ^ (bits >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

static __device__ __forceinline__ int key_id(uint64_t key) {
    return (int)~(uint32_t)key;
}

// e^((logit - best) / temp) in double, the CPU's expression. Equal logits have weight 1, infinite ones too.
static __device__ __forceinline__ double weight_of(float logit, float best, double temp) {
    return logit == best ? 1 : exp(((double)logit - best) / temp);
}

static __device__ __forceinline__ float biased(const sl_cuda_sampling &p, float logit, int id) {
    for (int i = 0; i < p.n_bias; i++) // inf - inf is NaN, which counts as -inf: the ban wins
        if (p.bias[i].id == id) logit = (isnan(logit) ? -INFINITY : logit) + p.bias[i].bias;
    return logit;
}

// ---- sorting a block's candidates ----

// One step of a bitonic network over the candidates of a block of `threads` threads, `items` in each, thread t's being [items *
// t, items * t + items): of each two that are `stride` apart, the larger goes to the front where the block of `size` is to
// descend. Partners are in the same thread, in the same warp, or beyond, which takes `space`, [items][threads].
template <int items, int threads, int size, int stride>
static __device__ __forceinline__ void sort_step(uint64_t (&x)[items], uint64_t *space) {
    const int first = threadIdx.x * items;
    if (stride >= 32 * items) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < items; i++) space[i * threads + threadIdx.x] = x[i];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < items; i++) {
        if (stride < items) {
            if (i & stride) continue;
            uint64_t a = x[i], b = x[i | stride];
            bool swap = (a < b) == (((first + i) & size) == 0);
            x[i] = swap ? b : a, x[i | stride] = swap ? a : b;
        } else {
            uint64_t other = stride < 32 * items ? __shfl_xor_sync(~0u, x[i], stride / items)
                                                 : space[i * threads + (threadIdx.x ^ (stride / items))];
            bool larger = ((first & stride) == 0) == ((first & size) == 0);
            x[i] = (x[i] > other) == larger ? x[i] : other;
        }
    }
}

template <int items, int threads, int size, int stride>
static __device__ __forceinline__ void sort_steps(uint64_t (&x)[items], uint64_t *space) {
    sort_step<items, threads, size, stride>(x, space);
    if constexpr (stride > 1) sort_steps<items, threads, size, stride / 2>(x, space);
}

// Sorts the first n of `size` candidates, largest first; those behind them must be 0.
template <int items, int threads, int size>
static __device__ __forceinline__ void sort_candidates(uint64_t (&x)[items], uint64_t *space, int n) {
    if constexpr (size > 2) sort_candidates<items, threads, size / 2>(x, space, n);
    if (n > size / 2) sort_steps<items, threads, size, size / 2>(x, space);
}

// ---- the first kernel: runs ----

// One row's part of the workspace.
struct row_space {
    uint64_t *keys;  // [n_runs][RUN] sorted, best first; of a greedy row only each run's best
    double *mass[2]; // [n_runs][RUN] running sums of WEIGHT_1 and WEIGHT_TEMP, relative to the run's own best
};

static __host__ __device__ int count_runs(int n_vocab) {
    return (n_vocab + RUN - 1) / RUN;
}

static __device__ row_space row_space_of(void *ws, int row, int n_runs) {
    size_t n = (size_t)n_runs * RUN;
    row_space s;
    s.keys = (uint64_t *)ws + 3 * n * row;
    s.mass[0] = (double *)(s.keys + n);
    s.mass[1] = s.mass[0] + n;
    return s;
}

// How many candidates top-k leaves.
static __device__ int top_k_of(const sl_cuda_sampling *p, int n_vocab) {
    return p->top_k > 0 && p->top_k < n_vocab ? p->top_k : n_vocab;
}

// Sorted runs of one row's candidates and the running sums of their weights.
//
// Grid (n_runs, n_rows), a block a run. Reads 4 bytes a logit; writes 8 for each candidate that top-k can keep, and 8 to 16
// more in rows that keep over LIST. Greedy rows write one key a run. Sums: a thread's eight in order, then cub::BlockScan.
// Bound by the instructions of the sort: about 2 us a row with many rows, where the logits' bytes would take 0.2 us from
// memory.
static __global__ void __launch_bounds__(RUN_BLOCK)
    sample_runs_kernel(const float *logits, sl_cuda_sampling *sampling, int n_vocab, void *ws) {
    typedef cub::BlockReduce<uint64_t, RUN_BLOCK> reduce;
    typedef cub::BlockScan<double, RUN_BLOCK, cub::BLOCK_SCAN_WARP_SCANS> scan;
    __shared__ union {
        uint64_t sort_space[RUN];
        typename reduce::TempStorage reduce_space;
        typename scan::TempStorage scan_space;
    } s;
    __shared__ float best;
    sl_start_next();
    sl_wait_previous();
    const int first = blockIdx.x * RUN, t = threadIdx.x;
    const sl_cuda_sampling &p = sampling[blockIdx.y];
    const row_space space = row_space_of(ws, blockIdx.y, gridDim.x);
    uint64_t *keys = space.keys + first, x[ITEMS];
    bool is_finite = true;
    logits += (size_t)blockIdx.y * n_vocab;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int id = first + t + i * RUN_BLOCK;
        float logit = id < n_vocab ? logits[id] : 0;
        is_finite &= isfinite(logit);
        x[i] = id < n_vocab ? candidate_key(biased(p, logit, id), id) : 0;
    }
    if (!is_finite) sampling[blockIdx.y].not_finite = 1; // all who store it store the same
    if (p.temp == 0) {
        uint64_t most = reduce(s.reduce_space).Reduce(x, max_key());
        if (t == 0) keys[0] = most;
        return;
    }
    sort_candidates<ITEMS, RUN_BLOCK, RUN>(x, s.sort_space, RUN);
    const int n_kept = top_k_of(&p, n_vocab), at = t * ITEMS;
#pragma unroll
    for (int i = 0; i < ITEMS; i += 2)
        if (at + i < n_kept) *(ulonglong2 *)(keys + at + i) = make_ulonglong2(x[i], x[i + 1]);
    if (n_kept <= LIST) return;
    if (t == 0) best = key_logit(x[0]);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (m == 0 && p.top_p >= 1) continue;
        double w[ITEMS], before;
        __syncthreads(); // best is there; the last scan's storage is free
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            w[i] = x[i] ? weight_of(key_logit(x[i]), best, m ? p.temp : 1) : 0;
            if (i > 0) w[i] += w[i - 1];
        }
        scan(s.scan_space).ExclusiveSum(w[ITEMS - 1], before);
        double2 *to = (double2 *)(space.mass[m] + first + at);
#pragma unroll
        for (int i = 0; i < ITEMS; i += 2) to[i / 2] = make_double2(before + w[i], before + w[i + 1]);
    }
}

// ---- the second kernel: search and draw ----

typedef cub::BlockScan<int, BLOCK, cub::BLOCK_SCAN_WARP_SCANS> scan_int;
typedef cub::BlockScan<double, BLOCK, cub::BLOCK_SCAN_WARP_SCANS> scan_double;
typedef cub::BlockReduce<double2, BLOCK> reduce_pair;
typedef cub::BlockReduce<uint64_t, BLOCK> reduce_key;

struct draw_space {
    union {
        typename scan_int::TempStorage for_scan_int;
        typename scan_double::TempStorage for_scan_double;
        typename reduce_pair::TempStorage for_reduce_pair;
        typename reduce_key::TempStorage for_reduce_key;
    };
    uint64_t list[LIST];
    double running[LIST];
    uint64_t key; // from one thread to all
    double2 pair;
};

// A thread's view of the row: its run, and what the row's search needs.
struct run_view {
    const uint64_t *keys;  // [RUN]
    const double *mass[2]; // [RUN]
    double scale[2];       // the run's best against the row's: what mass is to be multiplied with
    int end;               // the run's candidates that are still kept; 0 in threads without a run
    uint64_t least;        // none below this key is kept
    float best;            // the row's best logit
    double temp;
};

// Sorts list[0..n), largest first. The caller synchronizes before; the list is sorted for all threads afterwards.
static __device__ void sort_list(uint64_t *list, int n) {
    const int at = 2 * threadIdx.x;
    uint64_t x[2] = {at < n ? list[at] : 0, at + 1 < n ? list[at + 1] : 0};
    sort_candidates<2, BLOCK, LIST>(x, list, n);
    __syncthreads();
    list[at] = x[0], list[at + 1] = x[1];
    __syncthreads();
}

static __device__ double2 block_sum(draw_space *s, double2 pair) {
    pair = reduce_pair(s->for_reduce_pair).Reduce(pair, add_pair());
    if (threadIdx.x == 0) s->pair = pair;
    __syncthreads();
    pair = s->pair;
    __syncthreads(); // read by all before the next call writes
    return pair;
}

// The number of candidates before this thread's n in the order of runs; *total is that of all.
static __device__ int block_scan(draw_space *s, int n, int *total) {
    int before;
    scan_int(s->for_scan_int).ExclusiveSum(n, before, *total);
    __syncthreads();
    return before;
}

// How many of keys[lo..hi), largest first, are larger than key, plus lo.
static __device__ int rank_of(const uint64_t *keys, int lo, int hi, uint64_t key) {
    while (lo < hi) {
        int middle = (lo + hi) / 2;
        if (keys[middle] > key)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

// The sum over the run's first n candidates.
static __device__ double run_sum(const run_view *v, measure of, int n) {
    if (of == COUNT || n == 0) return n;
    return of == WEIGHT_1 ? v->mass[0][n - 1] * v->scale[0] : v->mass[1][n - 1] * v->scale[1];
}

// Brings the candidates [lo, hi) of all runs into one sorted list; returns their number, at most LIST.
static __device__ int gather_list(draw_space *s, const run_view *v, int lo, int hi) {
    int n, at = block_scan(s, hi - lo, &n);
    for (int i = lo; i < hi; i++) s->list[at + i - lo] = v->keys[i];
    __syncthreads();
    sort_list(s->list, n);
    return n;
}

// Drops all candidates that are worse than this one.
static __device__ void keep_from(run_view *v, uint64_t key) {
    v->end = rank_of(v->keys, 0, v->end, key - 1);
    v->least = key;
}

// The first candidate, best first, at which the running sum over the kept ones reaches the target (`over`: exceeds it); the
// last kept one if none does. guess: the first pivot, if it is kept.
static __device__ uint64_t find_crossing(draw_space *s, const run_view *v, measure of, double target, int over,
                                         uint64_t guess) {
    int lo = 0, hi = v->end; // it lies in [lo, hi) of some run
    uint64_t pivot = guess;
    for (int round = 0;; round++) {
        int n, before = block_scan(s, hi - lo, &n);
        if (n == 0) return pivot; // it is the last kept one, and the sum up to it does not suffice
        if (n <= BLOCK) break;
        if (round > 0 || guess < v->least) {
            // The middle of the run in which the middle of the brackets laid end to end lies. Halves the brackets when runs
            // are alike, and when they follow each other in value.
            if (before <= n / 2 && n / 2 < before + hi - lo) s->key = v->keys[(lo + hi) / 2];
            __syncthreads();
            pivot = s->key;
        }
        int above = rank_of(v->keys, lo, hi, pivot), with = above + (above < hi && v->keys[above] == pivot);
        double2 sum = block_sum(s, make_double2(run_sum(v, of, above), run_sum(v, of, with)));
        if (over ? sum.x > target : sum.x >= target)
            hi = above;
        else if (over ? sum.y <= target : sum.y < target)
            lo = with;
        else
            lo = above, hi = with; // the pivot is it
    }
    double base = block_sum(s, make_double2(run_sum(v, of, lo), 0)).x, weight = 0;
    int n = gather_list(s, v, lo, hi), i = threadIdx.x;
    if (i < n) weight = of == COUNT ? 1 : weight_of(key_logit(s->list[i]), v->best, of == WEIGHT_1 ? 1 : v->temp);
    scan_double(s->for_scan_double).InclusiveSum(weight, weight);
    weight += base;
    int at = __syncthreads_count(i < n && (over ? weight <= target : weight < target));
    return s->list[at < n ? at : n - 1];
}

// Running sums of the list's first n weights, added from the front by one thread, as the CPU adds them. Returns the sum.
static __device__ double run_weights(draw_space *s, int n, float best, double temp) {
    enum { AHEAD = 8 }; // loads that do not wait for the sum
    for (int i = threadIdx.x; i < n; i += BLOCK) s->running[i] = weight_of(key_logit(s->list[i]), best, temp);
    for (int i = n + threadIdx.x; i < n + AHEAD && i < LIST; i += BLOCK) s->running[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < n; i += AHEAD) {
            double w[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) w[j] = s->running[i + j];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) s->running[i + j] = sum += w[j];
        }
    }
    __syncthreads();
    return s->running[n - 1];
}

// How many of the first n running sums stay below the target, or, with `over`, do not exceed it.
static __device__ int count_below(const draw_space *s, int n, double target, int over) {
    int count = 0;
    for (int from = 0; from < n; from += BLOCK) {
        int i = from + threadIdx.x;
        count += __syncthreads_count(i < n && (over ? s->running[i] <= target : s->running[i] < target));
    }
    return count;
}

// Uniform in [0, 1), 53 bits.
static __device__ double uniform(const sl_cuda_sampling *p, const sl_row *row) {
    sl_rng_id id = {};
    id.seed = p->seed, id.sequence = row->sequence, id.position = (uint32_t)row->position;
    return (double)(sl_rng_u64(&id, 0, SL_STREAM_TOKEN) >> 11) * 0x1p-53;
}

// engine/backend/sampler.c's filter and draw on the sorted list of n candidates. sum_1: the sum that top-p is a part of,
// negative: of this list.
static __device__ int draw_from_list(draw_space *s, int n, const sl_cuda_sampling *p, double sum_1, double u) {
    float best = key_logit(s->list[0]), least = best + p->log_min_p;
    if (p->top_p < 1) {
        double sum = run_weights(s, n, best, 1);
        int below = count_below(s, n, p->top_p * (sum_1 < 0 ? sum : sum_1), 0);
        if (below < n) n = below + 1;
    }
    int kept = 0;
    for (int from = 0; from < n; from += BLOCK) {
        int i = from + threadIdx.x;
        kept += __syncthreads_count(i < n && (i == 0 || key_logit(s->list[i]) >= least));
    }
    double sum = run_weights(s, kept, best, p->temp);
    int below = count_below(s, kept, u * sum, 1);
    return key_id(s->list[below < kept ? below : kept - 1]);
}

// Filters a row that keeps over LIST candidates after top-k, run by run. Returns the drawn token, or -1 when at most LIST are
// left; *sum_1 is then what draw_from_list needs.
static __device__ int draw_from_runs(draw_space *s, run_view *v, uint64_t guess, const sl_cuda_sampling *p, double u,
                                     double *sum_1) {
    int n;
    if (p->top_p < 1) *sum_1 = block_sum(s, make_double2(run_sum(v, WEIGHT_1, v->end), 0)).x;
    // Min-p first: it is the cheaper one, and the candidates kept by both are the same in either order.
    if (!isinf(p->log_min_p)) keep_from(v, candidate_key(v->best + p->log_min_p, SL_CUDA_SAMPLER_VOCAB - 1));
    block_scan(s, v->end, &n);
    if (n <= LIST) return -1;
    if (p->top_p < 1) {
        keep_from(v, find_crossing(s, v, WEIGHT_1, p->top_p * *sum_1, 0, guess));
        block_scan(s, v->end, &n);
        if (n <= LIST) return -1;
    }
    double sum = block_sum(s, make_double2(run_sum(v, WEIGHT_TEMP, v->end), 0)).x;
    return key_id(find_crossing(s, v, WEIGHT_TEMP, u * sum, 1, guess));
}

// The token of each row from its runs. Grid: a block a row, thread r of it has run r; at most BLOCK runs. Reads some tens of
// keys and sums of each run (from the L2: the kernel before has just written them), dependent loads for the most part: bound by
// latency. Sums over runs: cub::BlockReduce and BlockScan over the threads, whose order is fixed; over a list: from the front.
static __global__ void __launch_bounds__(BLOCK, 1) sample_draw_kernel(const sl_row *rows, const sl_cuda_sampling *sampling,
                                                                      int n_vocab, int32_t *ids, int32_t *told, void *ws) {
    __shared__ draw_space s;
    sl_start_next();
    sl_wait_previous();
    const sl_cuda_sampling &p = sampling[blockIdx.x];
    const int n_runs = count_runs(n_vocab), r = threadIdx.x, n_kept = top_k_of(&p, n_vocab);
    const row_space space = row_space_of(ws, blockIdx.x, n_runs);
    run_view v = {};
    uint64_t head = 0;
    if (r < n_runs) {
        size_t first = (size_t)r * RUN;
        v.keys = space.keys + first, v.mass[0] = space.mass[0] + first, v.mass[1] = space.mass[1] + first;
        v.end = min(min(RUN, n_vocab - r * RUN), n_kept);
        head = v.keys[0];
    }
    if (p.temp == 0) {
        head = reduce_key(s.for_reduce_key).Reduce(head, max_key());
        if (r == 0) ids[blockIdx.x] = key_id(head), told[blockIdx.x] = p.not_finite ? -1 : key_id(head);
        return;
    }
    s.list[r] = head;
    __syncthreads();
    sort_list(s.list, n_runs);
    int id = key_id(s.list[0]);
    v.best = key_logit(s.list[0]), v.temp = p.temp;
    if (!isinf(v.best)) {
        const double u = uniform(&p, &rows[blockIdx.x]);
        const uint64_t kth = s.list[min(n_kept, n_runs) - 1], guess = s.list[n_runs / 4 * 3]; // worse than about 1.4 n_runs
        double sum_1 = -1;
        int n = n_vocab;
        id = -1;
        if (n_kept < n_vocab) {
            if (n_kept <= n_runs) keep_from(&v, kth); // there are n_kept heads as good: mostly few more candidates
            block_scan(&s, v.end, &n);
            if (n > LIST) keep_from(&v, find_crossing(&s, &v, COUNT, n_kept, 0, kth));
        }
        if (n_kept > LIST) {
            v.scale[0] = weight_of(key_logit(head), v.best, 1), v.scale[1] = weight_of(key_logit(head), v.best, p.temp);
            id = draw_from_runs(&s, &v, guess, &p, u, &sum_1);
        }
        if (id < 0) id = draw_from_list(&s, min(gather_list(&s, &v, 0, v.end), n_kept), &p, sum_1, u);
    }
    if (r == 0) ids[blockIdx.x] = id, told[blockIdx.x] = p.not_finite ? -1 : id;
}

// ---- launch ----

int sl_cuda_sampler_offers(const sl_sampling *p, int n_vocab) {
    int penalties = p->repeat_last_n != 0 && (p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
    return !penalties && p->n_bias <= SL_CUDA_SAMPLER_BIASES && n_vocab <= SL_CUDA_SAMPLER_VOCAB;
}

sl_cuda_sampling sl_cuda_sampling_of(const sl_sampling *p) {
    sl_cuda_sampling s = {};
    s.temp = p->temp, s.top_k = p->top_k, s.top_p = p->top_p, s.seed = p->seed;
    s.n_bias = p->n_bias;
    for (int i = 0; i < p->n_bias; i++) s.bias[i] = p->bias[i];
    s.log_min_p = p->min_p > 0 ? logf(p->min_p) : -INFINITY;
    return s;
}

size_t sl_cuda_sampler_workspace(int n_rows, int n_vocab) {
    return (size_t)n_rows * count_runs(n_vocab) * RUN * 3 * sizeof(uint64_t);
}

void sl_cuda_sample(const float *logits, const sl_row *rows, sl_cuda_sampling *sampling, int n_rows, int n_vocab, int32_t *ids,
                    int32_t *told, void *ws, cudaStream_t stream) {
    SL_CHECK(n_vocab > 0 && n_vocab <= SL_CUDA_SAMPLER_VOCAB);
    sl_launch(sample_runs_kernel, dim3(count_runs(n_vocab), n_rows), dim3(RUN_BLOCK), 0, stream, logits, sampling, n_vocab, ws);
    sl_launch(sample_draw_kernel, dim3(n_rows), dim3(BLOCK), 0, stream, rows, sampling, n_vocab, ids, told, ws);
}
