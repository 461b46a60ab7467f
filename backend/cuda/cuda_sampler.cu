// backend/cuda/cuda_sampler.cu - see cuda_sampler.h. Samples a token with a search over sorted runs, in two kernels.
//
// The vocabulary is cut into runs of 1,024 logits.
// 1. sample_sort_kernel, one thread block per run, sorts the candidates of a run, best first. It also stores the
//    running sums of their masses within the run (mass: e^((logit - best) / temp), an unnormalised probability).
// 2. sample_search_kernel, one thread block per row and one thread per run, applies top-k, top-p, min-p and samples the token.
//    Each of these steps is a search for the place where a running count, or a running sum of masses, over the sorted row
//    reaches a target. The kernel does not sort the row. Each round chooses a pivot, and each thread finds the pivot's rank in
//    the thread's run by binary search. The sums of the runs before these ranks add up to the running sum of the row at the
//    pivot. From this sum follows on which side of the pivot the search continues.
//
// The cost hardly depends on the logits. Equal logits need no special case: candidates are ordered by (logit, id), so no two
// candidates are equal. When at most 1,024 candidates are left, they are sorted and treated exactly as in
// backend/sampler.c. A top-k of at most the number of runs needs no search: the kernel takes the best candidate of each
// run, and then the k-th best of these candidates. Few other candidates are better than this k-th candidate.
//
// Example: one row of 128,256 logits, with top-p only, has 126 runs. The search for top-p starts with 128,256 candidates in
// brackets [lo, hi) of 126 runs. A round leaves half of the candidates or fewer, so about 8 rounds leave at most 512. These
// candidates are copied into one list and sorted. A scan of their masses finds the first candidate whose running sum reaches
// top_p times the sum of all masses.
//
// Both kernels together, H100 80GB HBM3, November 2026, 128,256 logits in L2, in a graph of ten, 1 row / 16 rows:
//   greedy                                 2.8 / 5.7 us
//   top-k 40, top-p 0.95, min-p 0.05      13.5 / 40 us
//   top-p 0.95, logits of a model           28 / 82 us
//   top-p 0.95, flat logits                 77 / 165 us
#include "backend/cuda/device.cuh"
#include "backend/cuda/cuda_sampler.h"
#include "base/philox.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <math.h>

enum {
    RUN = 1024,      // logits of a run
    RUN_BLOCK = 128, // threads of sample_sort_kernel
    ITEMS = 8,       // candidates of one thread of sample_sort_kernel
    LIST = 1024,     // candidates that are sorted as one list
    BLOCK = 512,     // threads of sample_search_kernel
};
static_assert(RUN == RUN_BLOCK * ITEMS, "sample_sort_kernel: each thread sorts ITEMS candidates");
static_assert(LIST == 2 * BLOCK && SL_CUDA_SAMPLER_VOCAB == RUN * BLOCK,
              "sample_search_kernel: each thread sorts two candidates of the list and has one run");

// What a running sum adds for each candidate: 1, its mass at temperature 1 (for top-p), its mass at the row's temperature.
typedef enum { COUNT, MASS_1, MASS_TEMP } measure;

struct max_key {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct add_pair {
    __device__ double2 operator()(double2 a, double2 b) const { return make_double2(a.x + b.x, a.y + b.y); }
};

// ---- candidates ----

// A candidate as one number, which is larger for a better candidate. The upper half holds the bits of the logit, mapped so that
// their order is the order of the logits (NaN counts as -inf, -0 as 0). The lower half holds the inverted id: of equal logits
// the lowest id is best. 0 is no candidate.
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

// The mass e^((logit - best) / temp) in double, by the same expression as on the CPU. The mass is 1 for logits that equal the
// best logit, also when both are infinite (inf - inf would be NaN).
static __device__ __forceinline__ double mass_of(float logit, float best, double temp) {
    return logit == best ? 1 : exp(((double)logit - best) / temp);
}

// The logit after the logit biases of the row; -inf for a token that is not allowed.
static __device__ __forceinline__ float biased(const sl_cuda_sampling &p, float logit, int id) {
    if (p.allowed && !(p.allowed[id / 32] >> id % 32 & 1)) logit = -INFINITY;
    for (int i = 0; i < p.n_bias; i++) // inf - inf is NaN, which counts as -inf: a bias of -inf bans the token
        if (p.bias[i].id == id) logit = (isnan(logit) ? -INFINITY : logit) + p.bias[i].bias;
    return logit;
}

// ---- sorting the candidates of a thread block ----

// One step of a bitonic sorting network over items * threads candidates; thread t has the candidates [items * t, items * t +
// items). Each pair that is `stride` apart is ordered: descending or ascending, by the bit `size` of its index. The partner of
// a candidate is in the same thread, in another lane of the warp (shuffle), or in another warp (shared memory `space`,
// [items][threads]).
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

// Sorts the first n of `size` candidates, largest first. The others must be 0. Steps for more than n candidates are skipped.
template <int items, int threads, int size>
static __device__ __forceinline__ void sort_candidates(uint64_t (&x)[items], uint64_t *space, int n) {
    if constexpr (size > 2) sort_candidates<items, threads, size / 2>(x, space, n);
    if (n > size / 2) sort_steps<items, threads, size, size / 2>(x, space);
}

// ---- the first kernel: sorted runs ----

// The part of the workspace that belongs to one row.
struct row_space {
    uint64_t *keys;       // [n_runs][RUN] candidates, best first; of a greedy row only the best one of each run
    double *mass_sums[2]; // [n_runs][RUN] running sums of MASS_1 and of MASS_TEMP, relative to the best logit of the run
};

static __host__ __device__ int count_runs(int n_vocab) {
    return (n_vocab + RUN - 1) / RUN;
}

static __device__ row_space row_space_of(void *ws, int row, int n_runs) {
    size_t n = (size_t)n_runs * RUN;
    row_space s;
    s.keys = (uint64_t *)ws + 3 * n * row;
    s.mass_sums[0] = (double *)(s.keys + n);
    s.mass_sums[1] = s.mass_sums[0] + n;
    return s;
}

// The number of candidates that top-k leaves.
static __device__ int top_k_of(const sl_cuda_sampling *p, int n_vocab) {
    return p->top_k > 0 && p->top_k < n_vocab ? p->top_k : n_vocab;
}

// Sorts the runs of all rows, and sums the masses within each run.
//
// Grid: (n_runs, n_rows), one thread block per run. All four warps have the same role.
// Shared memory: one union of 8 KB, the candidates that warps exchange (sort_space), later the storage of cub's sums.
// Bytes: reads 4 per logit. Writes 8 for each candidate that top-k can leave, and 8 to 16 more when top-k leaves more than
// LIST. A greedy row writes one key per run. The sort's instructions bound the time: about 2 us per row with many rows. The
// bytes of the logits would take 0.2 us.
// Reduction order: the eight masses of a thread in order, then cub::BlockScan.
static __global__ void __launch_bounds__(RUN_BLOCK)
    sample_sort_kernel(const float *logits, sl_cuda_sampling *sampling, int n_vocab, void *ws) {
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
    if (!is_finite) sampling[blockIdx.y].not_finite = 1; // several threads may store 1; this race is harmless
    if (p.temp == 0) {
        uint64_t most = reduce(s.reduce_space).Reduce(x, max_key());
        if (t == 0) keys[0] = most;
        return;
    }
    sort_candidates<ITEMS, RUN_BLOCK, RUN>(x, s.sort_space, RUN);
    const int n_left = top_k_of(&p, n_vocab), at = t * ITEMS;
#pragma unroll
    for (int i = 0; i < ITEMS; i += 2)
        if (at + i < n_left) *(ulonglong2 *)(keys + at + i) = make_ulonglong2(x[i], x[i + 1]);
    if (n_left <= LIST) return;
    if (t == 0) best = key_logit(x[0]);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (m == 0 && p.top_p >= 1) continue;
        double w[ITEMS], before;
        __syncthreads(); // best has been written, and the storage of the previous scan is free
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            w[i] = x[i] ? mass_of(key_logit(x[i]), best, m ? p.temp : 1) : 0;
            if (i > 0) w[i] += w[i - 1];
        }
        scan(s.scan_space).ExclusiveSum(w[ITEMS - 1], before);
        double2 *to = (double2 *)(space.mass_sums[m] + first + at);
#pragma unroll
        for (int i = 0; i < ITEMS; i += 2) to[i / 2] = make_double2(before + w[i], before + w[i + 1]);
    }
}

// ---- the second kernel: search ----

typedef cub::BlockScan<int, BLOCK, cub::BLOCK_SCAN_WARP_SCANS> scan_int;
typedef cub::BlockScan<double, BLOCK, cub::BLOCK_SCAN_WARP_SCANS> scan_double;
typedef cub::BlockReduce<double2, BLOCK> reduce_pair;
typedef cub::BlockReduce<uint64_t, BLOCK> reduce_key;

struct search_space {
    union {
        typename scan_int::TempStorage for_scan_int;
        typename scan_double::TempStorage for_scan_double;
        typename reduce_pair::TempStorage for_reduce_pair;
        typename reduce_key::TempStorage for_reduce_key;
    };
    uint64_t list[LIST];
    double running[LIST];
    uint64_t key; // one thread passes these to all threads
    double2 pair;
};

// One thread's data: a run of the row, and the state of the row's search.
struct run_view {
    const uint64_t *keys;       // [RUN]
    const double *mass_sums[2]; // [RUN]
    double scale[2];            // multiplies mass_sums: from "relative to the run's best logit" to "relative to the row's"
    int end;                    // candidates [0, end) of the run remain; 0 in a thread without a run
    uint64_t least;             // every candidate that remains is >= least
    float best;                 // the best logit of the row
    double temp;
};

// Sorts list[0..n), largest first. The caller synchronises before the call; afterwards all threads see the sorted list.
static __device__ void sort_list(uint64_t *list, int n) {
    const int at = 2 * threadIdx.x;
    uint64_t x[2] = {at < n ? list[at] : 0, at + 1 < n ? list[at + 1] : 0};
    sort_candidates<2, BLOCK, LIST>(x, list, n);
    __syncthreads();
    list[at] = x[0], list[at + 1] = x[1];
    __syncthreads();
}

// The sums over all threads, in the fixed order of cub::BlockReduce. All threads get them.
static __device__ double2 block_sum(search_space *s, double2 pair) {
    pair = reduce_pair(s->for_reduce_pair).Reduce(pair, add_pair());
    if (threadIdx.x == 0) s->pair = pair;
    __syncthreads();
    pair = s->pair;
    __syncthreads(); // all threads have read the sum before the next call writes
    return pair;
}

// The sum of n over the threads before this one. *total: the sum over all threads.
static __device__ int block_scan(search_space *s, int n, int *total) {
    int before;
    scan_int(s->for_scan_int).ExclusiveSum(n, before, *total);
    __syncthreads();
    return before;
}

// The index in [lo, hi] of the first of keys[lo..hi) that is not larger than key. keys are sorted, largest first.
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

// The count, or the sum of masses, of the first n candidates of the run.
static __device__ double run_sum(const run_view *v, measure of, int n) {
    if (of == COUNT || n == 0) return n;
    return of == MASS_1 ? v->mass_sums[0][n - 1] * v->scale[0] : v->mass_sums[1][n - 1] * v->scale[1];
}

// Copies the candidates [lo, hi) of all runs into one sorted list. Returns their number, which must be at most LIST.
static __device__ int gather_list(search_space *s, const run_view *v, int lo, int hi) {
    int n, at = block_scan(s, hi - lo, &n);
    for (int i = lo; i < hi; i++) s->list[at + i - lo] = v->keys[i];
    __syncthreads();
    sort_list(s->list, n);
    return n;
}

// Removes all candidates that are worse than `key`.
static __device__ void cut_below(run_view *v, uint64_t key) {
    v->end = rank_of(v->keys, 0, v->end, key - 1);
    v->least = key;
}

// The first candidate in sorted order at which the running sum reaches the target (with `over`: exceeds the target). If no sum
// does: the last candidate that remains. guess: the first pivot, if this candidate remains.
static __device__ uint64_t find_crossing(search_space *s, const run_view *v, measure of, double target, int over,
                                         uint64_t guess) {
    int lo = 0, hi = v->end; // the result lies in [lo, hi) of one of the runs
    uint64_t pivot = guess;
    for (int round = 0;; round++) {
        int n, before = block_scan(s, hi - lo, &n);
        if (n == 0) return pivot; // the last candidate; the sum up to it does not reach the target
        if (n <= BLOCK) break;
        if (round > 0 || guess < v->least) {
            // Number the candidates of all brackets, run by run. The middle number lies in one bracket, and the pivot is the
            // middle candidate of this bracket. This pivot halves the brackets when all runs have similar values, and also when
            // each run has worse values than the run before.
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
            lo = above, hi = with; // the pivot is the result
    }
    double base = block_sum(s, make_double2(run_sum(v, of, lo), 0)).x, sum = 0;
    int n = gather_list(s, v, lo, hi), i = threadIdx.x;
    if (i < n) sum = of == COUNT ? 1 : mass_of(key_logit(s->list[i]), v->best, of == MASS_1 ? 1 : v->temp);
    scan_double(s->for_scan_double).InclusiveSum(sum, sum);
    sum += base;
    int at = __syncthreads_count(i < n && (over ? sum <= target : sum < target));
    return s->list[at < n ? at : n - 1];
}

// Running sums of the masses of the first n candidates of the list. One thread adds them from the front, as the CPU does, so
// that the sums have the same bits. Returns the sum of all n.
static __device__ double sum_list(search_space *s, int n, float best, double temp) {
    enum { AHEAD = 8 }; // masses that are loaded before they are added
    for (int i = threadIdx.x; i < n; i += BLOCK) s->running[i] = mass_of(key_logit(s->list[i]), best, temp);
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

// The number of the first n running sums that are below the target (with `over`: that do not exceed the target).
static __device__ int count_below(const search_space *s, int n, double target, int over) {
    int count = 0;
    for (int from = 0; from < n; from += BLOCK) {
        int i = from + threadIdx.x;
        count += __syncthreads_count(i < n && (over ? s->running[i] <= target : s->running[i] < target));
    }
    return count;
}

// The random number of the row, uniform in [0, 1), 53 bits.
static __device__ double uniform(const sl_cuda_sampling *p, const sl_row *row) {
    sl_rng_id id = {};
    id.seed = p->seed, id.sequence = row->sequence, id.position = (uint32_t)row->position;
    return (double)(sl_rng_u64(&id, 0, SL_STREAM_TOKEN) >> 11) * 0x1p-53;
}

// Filters and samples as backend/sampler.c does, from the sorted list of n candidates. sum_1: the sum of masses that
// top_p is a fraction of; negative: the sum over this list.
static __device__ int sample_from_list(search_space *s, int n, const sl_cuda_sampling *p, double sum_1, double u) {
    float best = key_logit(s->list[0]), least = best + p->log_min_p;
    if (p->top_p < 1) {
        double sum = sum_list(s, n, best, 1);
        int below = count_below(s, n, p->top_p * (sum_1 < 0 ? sum : sum_1), 0);
        if (below < n) n = below + 1;
    }
    int n_left = 0;
    for (int from = 0; from < n; from += BLOCK) {
        int i = from + threadIdx.x;
        n_left += __syncthreads_count(i < n && (i == 0 || key_logit(s->list[i]) >= least));
    }
    double sum = sum_list(s, n_left, best, p->temp);
    int below = count_below(s, n_left, u * sum, 1);
    return key_id(s->list[below < n_left ? below : n_left - 1]);
}

// Filters a row of which top-k leaves more than LIST candidates. Returns the sampled token, or -1 when at most LIST candidates
// are left; then *sum_1 is the argument of sample_from_list.
static __device__ int sample_from_runs(search_space *s, run_view *v, uint64_t guess, const sl_cuda_sampling *p, double u,
                                       double *sum_1) {
    int n;
    if (p->top_p < 1) *sum_1 = block_sum(s, make_double2(run_sum(v, MASS_1, v->end), 0)).x;
    // Apply min-p before top-p, because min-p needs no search. Both orders leave the same candidates.
    if (!isinf(p->log_min_p)) cut_below(v, candidate_key(v->best + p->log_min_p, SL_CUDA_SAMPLER_VOCAB - 1));
    block_scan(s, v->end, &n);
    if (n <= LIST) return -1;
    if (p->top_p < 1) {
        cut_below(v, find_crossing(s, v, MASS_1, p->top_p * *sum_1, 0, guess));
        block_scan(s, v->end, &n);
        if (n <= LIST) return -1;
    }
    double sum = block_sum(s, make_double2(run_sum(v, MASS_TEMP, v->end), 0)).x;
    return key_id(find_crossing(s, v, MASS_TEMP, u * sum, 1, guess));
}

// Samples the token of each row from its sorted runs.
//
// Grid: one thread block per row. Thread r has run r; there are at most BLOCK runs. All warps have the same role; thread 0 adds
// the running sums of a list.
// Shared memory: list and running, 8 KB each; the storage of cub's sums, one at a time.
// Bytes: some tens of keys and sums of each run, from L2 (the first kernel has just written them). Most of these loads depend
// on each other, so latency bounds the time.
// Reduction order: over runs, cub::BlockReduce and BlockScan, which have a fixed order; over a list, from the front.
static __global__ void __launch_bounds__(BLOCK, 1)
    sample_search_kernel(const sl_row *rows, const sl_cuda_sampling *sampling, int n_vocab, int32_t *ids, int32_t *host_ids,
                         void *ws) {
    __shared__ search_space s;
    sl_start_next();
    sl_wait_previous();
    const sl_cuda_sampling &p = sampling[blockIdx.x];
    const int n_runs = count_runs(n_vocab), r = threadIdx.x, n_left = top_k_of(&p, n_vocab);
    const row_space space = row_space_of(ws, blockIdx.x, n_runs);
    run_view v = {};
    uint64_t head = 0;
    if (r < n_runs) {
        size_t first = (size_t)r * RUN;
        v.keys = space.keys + first, v.mass_sums[0] = space.mass_sums[0] + first, v.mass_sums[1] = space.mass_sums[1] + first;
        v.end = min(min(RUN, n_vocab - r * RUN), n_left);
        head = v.keys[0];
    }
    if (p.temp == 0) {
        head = reduce_key(s.for_reduce_key).Reduce(head, max_key());
        if (r == 0) ids[blockIdx.x] = key_id(head), host_ids[blockIdx.x] = p.not_finite ? -1 : key_id(head);
        return;
    }
    s.list[r] = head;
    __syncthreads();
    sort_list(s.list, n_runs);
    int id = key_id(s.list[0]);
    v.best = key_logit(s.list[0]), v.temp = p.temp;
    if (!isinf(v.best)) {
        const double u = uniform(&p, &rows[blockIdx.x]);
        const uint64_t kth = s.list[min(n_left, n_runs) - 1],
                       guess = s.list[n_runs / 4 * 3]; // about 1.4 n_runs candidates are better
        double sum_1 = -1;
        int n = n_vocab;
        id = -1;
        if (n_left < n_vocab) {
            if (n_left <= n_runs)
                cut_below(&v, kth); // n_left runs have a best candidate >= kth; few other candidates are better
            block_scan(&s, v.end, &n);
            if (n > LIST) cut_below(&v, find_crossing(&s, &v, COUNT, n_left, 0, kth));
        }
        if (n_left > LIST) {
            v.scale[0] = mass_of(key_logit(head), v.best, 1), v.scale[1] = mass_of(key_logit(head), v.best, p.temp);
            id = sample_from_runs(&s, &v, guess, &p, u, &sum_1);
        }
        if (id < 0) id = sample_from_list(&s, min(gather_list(&s, &v, 0, v.end), n_left), &p, sum_1, u);
    }
    if (r == 0) ids[blockIdx.x] = id, host_ids[blockIdx.x] = p.not_finite ? -1 : id;
}

// ---- launch ----

int sl_cuda_can_sample(const sl_sampling *p, int n_vocab) {
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
                    int32_t *host_ids, void *ws, cudaStream_t stream) {
    SL_CHECK(n_vocab > 0 && n_vocab <= SL_CUDA_SAMPLER_VOCAB);
    sl_launch(sample_sort_kernel, dim3(count_runs(n_vocab), n_rows), dim3(RUN_BLOCK), 0, stream, logits, sampling, n_vocab, ws);
    sl_launch(sample_search_kernel, dim3(n_rows), dim3(BLOCK), 0, stream, rows, sampling, n_vocab, ids, host_ids, ws);
}
