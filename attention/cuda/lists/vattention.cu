// attention/cuda/lists/vattention.cu - vAttention on CUDA: it always takes some rows (sink, sliding window, predicted top
// rows). From the other rows ("residual") it draws uniformly without replacement, as many rows as a stated error needs
// (draw_verified.c).
//
// | kernel                                  | does                                                                     |
// |-----------------------------------------|--------------------------------------------------------------------------|
// | oracle: score_keys_kernel               | masses of all rows                                                       |
// | quest: score_bounds_kernel              | masses of units of 16 rows                                               |
// | int4: quantised_scores_kernel           | masses of all rows, from 4-bit keys (quantised_scores.cu)                |
// | pick_rows_kernel                        | list 0: the fixed rows; list 1: the base sample                          |
// | attend_rows_kernel, attend_tiles_kernel | attention over lists 0 and 1, with moments                               |
// | plan_rows_kernel                        | how many rows are needed; list 2: the rest of the sample, or the output  |
// | attend_rows_kernel, attend_tiles_kernel | heads with rows in list 2: attention over them, and the output           |
//
// oracle has the exact masses of listed rows (attend_rows.cuh). The other predictors score listed rows again
// (attend_tiles.cuh).
//
// The sample is a prefix of a random permutation. The CPU has the same permutation if the stored masses are equal. The length
// of the prefix depends on sums, and their order differs from the CPU's. So in one of many thousand heads the prefix is one row
// longer or shorter.
//
// Measured in us (H200, 1 December 2026, a stand-alone program with these kernels and attn_timing.cu; peaked queries, epsilon
// 0.2, 32 query heads, 8 KV heads, head_dim 128). results/cliffs.md has more.
// | predictor          | 1 x 32k | 1 x 128k | 6 x 32k |
// |--------------------|---------|----------|---------|
// | dense              | 46      | 147      | 208     |
// | oracle             | 82      | 210      | 258     |
// | int4               | 71      | 180      | 208     |
// | int4, --base 0.025 | 67      | 155      | 185     |
// With 5% of top rows and a base sample of 5%, int4 reads 47% of dense attention's bytes: a quarter of K, and a third of the
// rows of K and V, because the four heads of a group share few rows.
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/lists/verified_sample.cuh"
#include "attention/cuda/lists/attend_tiles.cuh"
#include "attention/cuda/quantised/quantised_scores.h"
#include "base/quantile.h"

extern "C" {
#include "attention/stages/stages.h"
}

namespace {

// ---- fixed rows, base sample ----

// Sets `last` of a head to 0.
__device__ void clear_last(const verified_params &p) {
    int *last = p.permutation + (size_t)blockIdx.x * 2 * p.stride, n_kv = p.score.rows[blockIdx.x / p.n_heads].position + 1;
    for (int i = threadIdx.x * 4; i < n_kv; i += SELECT_THREADS * 4) *(int4 *)(last + i) = make_int4(0, 0, 0, 0);
}

// Writes lists 0 and 1, their masks and the permutation so far.
//
// Grid: a thread block per query head.
// Bytes: the stored masses twice, from the L2 cache; 8 bytes of permutation per row.
// Order of reduction: the kernel has no floating-point sums.
// GLOBAL: as in select_rows_kernel.
template <int DIM, bool GLOBAL> __global__ void __launch_bounds__(SELECT_THREADS, 1) pick_rows_kernel(const verified_params p) {
    extern __shared__ __align__(16) int shared[];
    __shared__ select_space s;
    // [select_words], fixed [mask_words], references
    int *memory = GLOBAL ? p.lists.memory + blockIdx.x * head_memory(p.lists.mask_words) : shared;
    sl_start_next();
    // The kernel that scores 4-bit keys lets this kernel start when all earlier kernels have ended. So `last` is free.
    if (p.codes) clear_last(p);
    sl_wait_previous();
    if (!p.codes) clear_last(p);
    if (p.codes && blockIdx.x == 0 && threadIdx.x == 0) *p.score.next_item = 0; // quantised_scores.h
    int head = blockIdx.x, seq_head = head / p.score.group, n_kv = p.score.rows[head / p.n_heads].position + 1;
    int n_words = ceil_div(n_kv, 32);
    uint32_t *above = (uint32_t *)memory, *fixed = above + select_words(p.lists.mask_words);
    stored_masses h = open_masses(&s, p.score, seq_head, head % p.score.group, ceil_div(n_kv, p.unit),
                                  (int16_t *)(fixed + p.lists.mask_words));
    if (is_beyond(h.top)) {
        plan_beyond(p.lists, head, h.top, n_kv, n_kv, p.stats);
        return;
    }
    head_plan plan = {};
    plan.top = h.top;
    int k = (int)ceil(p.top * h.n);
    for (int b = threadIdx.x; k == 0 && b < h.n_blocks; b += SELECT_THREADS) above[b] = 0;
    if (k > 0) {
        cut_rule c = select_largest(&s, h, shared, above, false, k, 0);
        take_equal(&s, c, h.n_blocks, above, above + h.n_blocks);
    }
    __syncthreads();
    if (p.bound != SL_BOUND_CLT)
        plan.hi = p.codes ? largest_left_of_codes<DIM>(&s, p, h, head, above) : largest_left(&s, h, above);
    for (int b = threadIdx.x; b < n_words; b += SELECT_THREADS) {
        uint32_t x = p.unit == 1 ? above[b] : above[b / 16] >> 2 * (b % 16);
        if (p.unit == UNIT) x = (x & 1 ? 0xffff : 0) | (x & 2 ? 0xffff0000 : 0);
        x |= range_bits(b, 0, p.sink) | range_bits(b, n_kv - p.window, n_kv);
        fixed[b] = x & range_bits(b, 0, n_kv);
    }
    __syncthreads();
    int32_t *list = p.lists.list + (size_t)head * p.lists.capacity;
    plan.at[1] = list_entries(&s, n_words, list, fixed, NULL);
    int n_residual = n_kv - plan.at[1], m = max((int)ceil(p.base * n_residual), 2);
    m = min(m, n_residual);
    uint32_t *drawn = above, *words = above + n_words + 2;
    sample_words<GLOBAL>(&s, p, head, fixed, n_kv, n_residual, 0, m, drawn, words);
    list_entries(&s, n_words, list + plan.at[1], words, NULL);
    for (int b = threadIdx.x; b < n_words; b += SELECT_THREADS) {
        size_t at = (size_t)head * p.lists.mask_words + b;
        p.fixed[at] = fixed[b], p.lists.mask[at] = fixed[b] | words[b];
    }
    if (threadIdx.x > 0) return;
    plan.at[2] = plan.at[3] = plan.at[1] + m;
    plan.factor = 1;
    p.lists.plan[head] = plan;
}

// ---- how many rows ----

struct estimates {
    double n, D, N, sigma, trace; // as in draw_verified.c, all in the same unit of e^s
    double kurtosis;
    sl_bernstein base; // base.norm is set only for bounds that need it; Hoeffding's bound also uses `base`
};

__device__ double square(double x) {
    return x * x;
}

// Number of rows for a relative error of 1.
__device__ double clt_budget(const verified_params &p, const estimates &f) {
    double z = p.z[SPLITS], best = INFINITY; // best: over the splits of a lane, two at most
    if (p.verify == SL_VERIFY_DENOMINATOR) return square(z * f.n * f.sigma / f.D);
    if (p.verify == SL_VERIFY_NUMERATOR) return square(z * f.n * sqrt(f.trace) / f.N);
    for (int i = 1 + threadIdx.x % 32; i < SPLITS; i += 32)
        best = fmin(best, square(2 * f.n * (p.z[i] * f.sigma / f.D + p.z[SPLITS - i] * sqrt(f.trace) / f.N)));
    for (int step = 16; step >= 1; step /= 2) best = fmin(best, __shfl_xor_sync(~0u, best, step));
    return best;
}

// Number of rows for a relative error of 1 by Hoeffding's bound.
__device__ double hoeffding_budget(const estimates &f, int verify, double delta) {
    double log_term = log(2 / delta);
    double denominator = square(f.n * f.base.most / f.D) * log_term / 2;
    double numerator = 2 * square(f.n * f.base.most * f.base.norm / f.N) * log_term;
    return verify == SL_VERIFY_DENOMINATOR ? denominator
           : verify == SL_VERIFY_NUMERATOR ? numerator
                                           : fmax(denominator, numerator);
}

// Number of rows of the final sample: at least `base`; n_residual if the bound needs all rows.
__device__ int rows_needed(const verified_params &p, const estimates &f, int base, int n_residual) {
    double achieved;
    if (p.bound == SL_BOUND_BERNSTEIN) return sl_bernstein_rows(&f.base, p.verify, p.epsilon, p.delta, &achieved);
    double unit = p.bound == SL_BOUND_CLT        ? clt_budget(p, f)
                  : p.verify == SL_VERIFY_OUTPUT ? 16 * hoeffding_budget(f, SL_VERIFY_OUTPUT, p.delta / 2)
                                                 : hoeffding_budget(f, p.verify, p.delta);
    double b = unit / square(p.epsilon);
    if (p.bound == SL_BOUND_CLT) b /= 1 + b / f.n;
    return b < f.n ? max((int)ceil(b), base) : n_residual;
}

// The largest |v| of a seq_head.
__device__ float largest_norm(const verified_params &p, select_space *s, int seq_head, int n_kv, int dim) {
    const int32_t *pages = p.score.rows[seq_head / p.score.n_kv_heads].pages;
    int newest = (n_kv - 1) / SL_PAGE * SL_PAGE;
    int most = 0; // norms are not negative, so their bits have the same order
    for (int j = threadIdx.x; j < n_kv; j += SELECT_THREADS) {
        size_t block = (size_t)pages[j / SL_PAGE] * p.score.n_kv_heads + seq_head % p.score.n_kv_heads;
        most = max(most, (int)(j < newest ? ((const bf16 *)(p.norms + block * p.norms_size))[j % SL_PAGE]
                                          : sl_norm_of_row(p.attend.v + (block * SL_PAGE + j % SL_PAGE) * dim, dim)));
    }
    return __uint_as_float((uint32_t)max_block(s, most) << 16);
}

__device__ double at_least_0(double x) { // NaN stays NaN, and then every row is taken
    return x < 0 ? 0 : x;
}

template <int DIM> struct plan_space {
    double sums[2][DIM];     // sum of e^s v of lists 0 and 1
    double D;                // as in estimates
    float factor[2][CHUNKS]; // factor of each chunk's sums
    int n_wanted;
};

// Estimates from lists 0 and 1, by the first warp: a lane takes one chunk of each list. The other warps only help to add the
// chunks, and get no estimates.
template <int DIM>
__device__ estimates estimate(const verified_params &p, int head, const head_plan &plan, int n_kv, plan_space<DIM> *s) {
    const attend_params &a = p.attend;
    int n_base = plan.at[2] - plan.at[1], lane = threadIdx.x % 32;
    int least = p.lists.least_rows;
    bool has_fixed = lane < list_chunks(plan.at[1], least), has_base = lane < list_chunks(n_base, least);
    bool estimates_here = threadIdx.x < 32;
    has_fixed &= estimates_here, has_base &= estimates_here;
    size_t fixed = (size_t)head * LISTS * a.max_chunks + lane, base = fixed + a.max_chunks;
    float fixed_m = has_fixed ? __ldcg(a.ml + fixed).x : -INFINITY, base_m = has_base ? __ldcg(a.ml + base).x : -INFINITY;
    double n = n_kv - plan.at[1], each = n_base > 0 ? n / n_base : 0, all = 0, D = 0, moments[MOMENT_SUMS] = {}, sampled = 0;
    if (has_fixed) D = __ldcg(a.moments + fixed * MOMENT_SUMS);
    for (int i = 0; has_base && i < MOMENT_SUMS; i++) moments[i] = __ldcg(a.moments + base * MOMENT_SUMS + i);
    float most = sl_max_lanes(fmaxf(fixed_m, base_m)), factor = rescale(base_m, most);
    if (estimates_here) s->factor[0][lane] = rescale(fixed_m, most), s->factor[1][lane] = factor;
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * DIM; i += SELECT_THREADS) {
        int list = i / DIM, n_chunks = list_chunks(list ? n_base : plan.at[1], least);
        const float *o = a.o + (((size_t)head * LISTS + list) * a.max_chunks) * DIM + i % DIM;
        double sum = 0;
#pragma unroll 8
        for (int c = 0; c < n_chunks; c++) sum += (double)s->factor[list][c] * __ldcg(o + c * DIM);
        s->sums[list][i % DIM] = sum;
    }
    __syncthreads();
    if (!estimates_here) return {};
    for (int d = lane; d < DIM; d += 32) {
        sampled += square(s->sums[1][d]);
        all += square(s->sums[0][d] + s->sums[1][d] * each);
    }
    sampled = sum_lanes(sampled), all = sum_lanes(all), D = sum_lanes(rescale(fixed_m, most) * D);
    scale_moments(moments, factor);
    for (int i = 0; i < MOMENT_SUMS; i++) moments[i] = sum_lanes(moments[i]);
    double e = moments[0], squares = moments[1], ev_squares = moments[2];
    estimates f = {.n = n, .D = D + e * each, .N = sqrt(all)};
    if (lane == 0) s->D = f.D;
    f.sigma = sqrt(at_least_0((squares - e * e / n_base) / (n_base - 1)));
    f.trace = at_least_0((ev_squares - sampled / n_base) / (n_base - 1));
    f.kurtosis = sl_tail_kurtosis(p.verify, sl_kurtosis(e, squares, moments[3], moments[4], n_base),
                                  sl_vector_kurtosis(ev_squares, moments[5], n_base));
    f.base = {.n = (int)n, .m = n_base, .e = e, .squares = squares, .ev_squares = ev_squares, .ev = sqrt(sampled)};
    f.base.fixed = D, f.base.numerator = f.N;
    f.base.most = exp2(plan.hi + (p.refines ? (double)plan.top - most : 0)); // the sums of this kernel are relative to 2^most
    return f;
}

// The output of a head whose sample is its base sample. factor: rows of the residual for each row of the sample.
template <int DIM> __device__ void store_output(bf16 *out, const plan_space<DIM> &s, double factor) {
    for (int d = threadIdx.x; d < DIM; d += SELECT_THREADS)
        store_bf16(out + d, s.D == 0 ? 0 : (float)((s.sums[0][d] + factor * s.sums[1][d]) / s.D));
}

// Kurtoses are stored as the bits of floats. They are not negative, so their bits have the same order.
__device__ void count_tail(sl_attn_cuda_stats *stats, double kurtosis, int n_base) {
    atomicMax(&stats->kurtosis, (unsigned long long)__float_as_uint(fmaxf((float)kurtosis, 0)));
    if (sl_is_heavy_tail(kurtosis, n_base)) atomicAdd(&stats->heavy_tails, 1ull);
}

// Writes list 2 (the rows of the final sample that are not in the base sample) and the factor of the sample. If list 2 is
// empty, writes the output of the head.
//
// Grid: a thread block per query head.
// Bytes: the partial results of lists 0 and 1.
// Order of reduction: the chunks in order, then the lanes.
template <int DIM, bool GLOBAL> __global__ void __launch_bounds__(SELECT_THREADS, 1) plan_rows_kernel(const verified_params p) {
    extern __shared__ __align__(16) int shared[];
    int *memory = GLOBAL ? p.lists.memory + blockIdx.x * head_memory(p.lists.mask_words) : shared; // fixed, drawn, words
    __shared__ select_space s;
    __shared__ plan_space<DIM> space;
    sl_start_next();
    sl_wait_previous();
    int head = blockIdx.x, n_kv = p.score.rows[head / p.n_heads].position + 1, n_words = ceil_div(n_kv, 32);
    head_plan plan = p.lists.plan[head];
    if (is_beyond(plan.top)) return;
    int n_residual = n_kv - plan.at[1], n_base = plan.at[2] - plan.at[1], b = n_base;
    estimates f = estimate<DIM>(p, head, plan, n_kv, &space);
    __syncthreads();
    if (n_base < n_residual) {
        if (p.norms) f.base.norm = largest_norm(p, &s, head / p.score.group, n_kv, DIM);
        if (threadIdx.x < 32) space.n_wanted = rows_needed(p, f, n_base, n_residual);
        __syncthreads();
        b = space.n_wanted;
        if (p.stats && threadIdx.x == 0) count_tail(p.stats, f.kurtosis, n_base);
    }
    if (b == n_base) {
        store_output(p.attend.out + (size_t)head * DIM, space, n_base > 0 ? (double)n_residual / n_base : 0);
    } else {
        uint32_t *fixed = (uint32_t *)memory, *drawn = fixed + n_words, *words = drawn + n_words + 2;
        uint32_t *mask = p.lists.mask + (size_t)head * p.lists.mask_words;
        for (int i = threadIdx.x; i < n_words; i += SELECT_THREADS) fixed[i] = p.fixed[(size_t)head * p.lists.mask_words + i];
        __syncthreads();
        sample_words<GLOBAL>(&s, p, head, fixed, n_kv, n_residual, n_base, b, drawn, words);
        list_entries(&s, n_words, p.lists.list + (size_t)head * p.lists.capacity + plan.at[2], words, mask);
        for (int i = threadIdx.x; i < n_words; i += SELECT_THREADS) mask[i] |= words[i];
    }
    if (threadIdx.x > 0) return;
    plan.at[3] = plan.at[1] + b;
    plan.factor = b > 0 ? (float)n_residual / (float)b : 1;
    p.lists.plan[head] = plan;
    if (!p.stats) return;
    atomicAdd(&p.stats->v_rows, (unsigned long long)plan.at[3]);
    atomicAdd(&p.stats->samples, (unsigned long long)plan.at[3]);
}

// ---- launch ----

bool by_bounds(const sl_attn_spec *spec) {
    return sl_attn_chooses(spec, "predictor", "quest");
}
bool by_codes(const sl_attn_spec *spec) {
    return sl_attn_chooses(spec, "predictor", "int4");
}
bool needs_norms(const sl_attn_spec *spec) {
    return sl_attn_get(spec, "bound") != SL_BOUND_CLT && sl_attn_get(spec, "verify") != SL_VERIFY_DENOMINATOR;
}

int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    int n = 0;
    if (by_bounds(spec)) out[n++] = {&sl_key_bounds, 0};
    if (by_codes(spec)) n += sl_propose_quantised.needs(spec, out);
    if (needs_norms(spec)) out[n++] = {&sl_page_norms, 0};
    return n;
}

size_t lay_out(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, verified_params *p) {
    int n_heads = n_seqs * geom->n_heads, n_entries = by_bounds(spec) ? ceil_div(n_kv, UNIT) : n_kv;
    arena a = after_counters(ws);
    take_masses(&a, &p->score, geom, n_seqs, n_entries);
    p->lists = p->attend.lists = take_lists(&a, n_heads, n_kv, n_kv, 1, LEAST_ROWS);
    p->fixed = a.take<uint32_t>((size_t)n_heads * p->lists.mask_words);
    p->stride = ceil_div(n_kv, 4) * 4;
    p->permutation = a.take<int>((size_t)n_heads * 2 * p->stride);
    take_partials(&a, &p->attend, n_heads, geom->head_dim, n_kv, 1);
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int, int n_kv) {
    verified_params p;
    return lay_out(geom, spec, n_seqs, n_kv, NULL, &p);
}

void read_spec(const sl_attn_cuda_decode_args *a, verified_params *p) {
    const sl_attn_spec *spec = a->spec;
    p->unit = by_bounds(spec) ? UNIT : 1, p->layer = a->layer, p->n_heads = a->geom->n_heads;
    p->first_head = a->geom->first_head;
    p->top = sl_attn_get(spec, "top"), p->base = sl_attn_get(spec, "base");
    p->sink = (int)sl_attn_get(spec, "sink"), p->window = (int)sl_attn_get(spec, "window");
    p->verify = (int)sl_attn_get(spec, "verify"), p->bound = (int)sl_attn_get(spec, "bound");
    p->epsilon = sl_attn_get(spec, "epsilon"), p->delta = sl_attn_get(spec, "delta");
    for (int i = 1; i <= SPLITS; i++) p->z[i] = sl_normal_quantile(1 - p->delta * i / SPLITS / 2);
    p->refines = by_bounds(spec) || by_codes(spec);
    if (by_codes(spec)) p->codes = (const char *)a->extra[0], p->codes_size = a->extra_size[0];
    int norms = p->refines; // the extra of the scores comes first
    if (needs_norms(spec)) p->norms = (const char *)a->extra[norms], p->norms_size = a->extra_size[norms];
    p->stats = a->stats;
}

template <int DIM, bool SCORES> void launch_kernels(const verified_params &p, int n_seq_heads, cudaStream_t stream) {
    int n_words = p.lists.mask_words, n_heads = n_seq_heads * p.score.group;
    attend_params base = p.attend, rest = p.attend;
    base.out = NULL;
    rest.first_list = 2, rest.n_lists = LISTS, rest.skips_empty = true;
    bool global = p.lists.memory != NULL;
    size_t pick_bytes = (select_words(n_words) + n_words) * sizeof(int) + p.score.max_blocks * sizeof(int16_t);
    size_t plan_bytes = global ? 0 : (3 * n_words + 8) * sizeof(int);
    if (global) pick_bytes = COUNT_INTS * sizeof(int);
    sl_launch(global ? pick_rows_kernel<DIM, true> : pick_rows_kernel<DIM, false>, dim3(n_heads), dim3(SELECT_THREADS),
              pick_bytes, stream, p);
    if constexpr (SCORES)
        launch_attend_tiles<DIM, true>(base, n_heads, 2, ATTEND_PER_SM, stream);
    else
        launch_attend<DIM, false, true>(base, n_heads, 2, stream);
    sl_launch(global ? plan_rows_kernel<DIM, true> : plan_rows_kernel<DIM, false>, dim3(n_heads), dim3(SELECT_THREADS),
              plan_bytes, stream, p);
    if constexpr (SCORES)
        launch_attend_tiles<DIM, false>(rest, n_heads, 1, ATTEND_PER_SM, stream);
    else
        launch_attend<DIM, false, false>(rest, n_heads, 1, stream);
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    bool has_bounds = by_bounds(a->spec);
    verified_params p = {};
    bounds_params bounds = {};
    if (has_bounds) bounds = bounds_params_of<DIM>(a);
    p.score = has_bounds ? bounds.score : score_params_of<DIM>(a);
    p.attend = attend_params_of(a);
    lay_out(a->geom, a->spec, a->n_seqs, a->max_kv, a->ws, &p);
    read_spec(a, &p);
    int n_seq_heads = a->n_seqs * a->geom->n_kv_heads;
    if (p.refines) {
        bounds.score = p.score;
        p.attend.reads_k = p.attend.reads_newest = 1;
        if (has_bounds)
            launch_bounds<DIM>(bounds, a->stream);
        else
            sl_cuda_store_quantised_masses(a, p.score.mass, p.score.w);
        launch_kernels<DIM, true>(p, n_seq_heads, a->stream);
    } else {
        p.attend.mass = p.score.mass, p.attend.w = p.score.w, p.attend.max_blocks = p.score.max_blocks;
        launch_score<DIM>(p.score, a->stream);
        launch_kernels<DIM, false>(p, n_seq_heads, a->stream);
    }
}

void decode(const sl_attn_cuda_decode_args *args) {
    SL_WITH_HEAD_DIM(args->geom->head_dim, launch, args);
}

// Counts the reads of the scores. The kernels count the other reads.
void account_index(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_kv, sl_attn_stats *stats) {
    stats->tries += geom->n_heads;
    if (needs_norms(spec)) stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * sizeof(bf16);
    if (by_bounds(spec))
        sl_cuda_account_bounds(geom, counted_row(geom->head_dim), n_kv, stats);
    else if (by_codes(spec))
        sl_cuda_account_quantised(geom, spec, n_kv, stats);
    else
        account_all_keys(geom, spec, n_kv, stats);
}

// With rows on the host, exact scores would read every key over the bus. The kernels have no scores from trained bits or
// buckets.
int supports(const sl_attn_spec *spec, sl_error *err) {
    static const char *const host_only[] = {"hash", "buckets"};
    for (const char *word : host_only)
        if (sl_attn_chooses(spec, "predictor", word))
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{attn} vattention: {predictor} %s: not offered on a GPU; expected {predictor} oracle, quest or int4, or "
                "{device} cpu",
                word);
    if (!IS_OFFLOADED || by_bounds(spec)) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} vattention: {predictor} %s: not offered with {kv_cache} host%s; expected {predictor} quest",
                   by_codes(spec) ? "int4" : "oracle", by_codes(spec) ? "" : ", because it reads every key");
}

} // namespace

#ifdef SL_OFFLOADED_ROWS
const sl_attn_cuda_ops sl_vattention_offloaded_cuda_ops = {
#define OFFLOADED_OPS NULL
#else
const sl_attn_cuda_ops sl_vattention_cuda_ops = {
#define OFFLOADED_OPS &sl_vattention_offloaded_cuda_ops
#endif
    .workspace = workspace,
    .decode = decode,
    .needs = needs,
    .state = NULL,
    .max_rows = 0,
    .account = account_index,
    .prefill = NULL,
    .supports = supports,
    .mask = NULL,
    .mask_workspace = NULL,
    .offloaded = OFFLOADED_OPS,
    .bytes = NULL};
