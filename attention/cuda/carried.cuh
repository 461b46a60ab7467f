// attention/cuda/carried.cuh - the threshold kappa that a layer carries from step to step, on CUDA (carried.c, threshold.h).
//
// The heads of a step do not wait for each other. Each head stores what its draw says about the next step: a sl_threshold_step.
// In the next step every head's thread block adds these steps in the order of heads, and computes the layer's kappa from the
// sum. It does so while keys are still scored, so the plan adds no time. All thread blocks run the same instructions on the
// same values (move_threshold is not inlined), so they have the same kappa.
//
// A layer has two places for a step in the session's state. Steps at even and odd positions alternate. So a head never
// overwrites a value that another head of the step still reads. A place holds an sl_threshold, which head 0 writes, and
// [n_heads] sl_threshold_step. The threshold of position i is valid for a step at position i + 1. Between two clears of the
// state, positions only grow. A repeated step gives equal bits.
//
// With a stated error, the head that finishes last also computes the layer's certificate, for the statistics only.
//
// Equal to the CPU's: all fields of a head's step, except `trace_squares` and `squares`, have the CPU's bits if the stored masses and
// kappa are equal. The next kappa agrees up to roundings, because nvcc contracts products and sums.
#ifndef SLEIGH_CARRIED_CUH
#define SLEIGH_CARRIED_CUH

#include "attention/cuda/take_known.cuh"
#include "attention/threshold.h"

extern "C" {
#include "attention/stages.h"
}

namespace {

enum {
    STEP_FIELDS = sizeof(sl_threshold_step) / sizeof(double),
    STEPS_STAGED = 64,                               // heads whose steps lie in shared memory together
    STAGE_DOUBLES = (STEPS_STAGED + 1) * STEP_FIELDS // and the sum
};
static_assert(STAGE_DOUBLES * sizeof(double) <= sizeof(known_lists), "stage_of");

// [STAGE_DOUBLES] of shared memory, over the lists of rows.
__device__ double *stage_of(take_space *s) {
    return (double *)&s->lists;
}

struct carried_params {
    size_t state_at; // of this layer in a session's state: two places
    int n_heads;
    double rows;      // expected rows of a layer; 0: a stated error
    int most;         // a budget: rows of a head
    int short_rows;   // a sequence of at most so many rows searches
    sl_stated stated; // a stated error: the bound, epsilon / (1 + epsilon), the share of certified layers
    double share, aim;
    int *finished; // a stated error: [n_seqs] counter of finished heads. It is 0 at the end
};

// Bytes of one place.
__host__ __device__ size_t place_bytes(int n_heads) {
    return sizeof(sl_threshold) + n_heads * sizeof(sl_threshold_step);
}

// Bytes of a layer's state.
static size_t carried_state(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    return sl_carries_threshold(spec) ? 2 * place_bytes(geom->n_heads) : 0;
}

static carried_params carried_params_of(const sl_attn_cuda_decode_args *a, size_t state_at) {
    int S = (int)sl_attn_get(a->spec, "S"), is_budget = sl_attn_carries_budget(a->spec);
    carried_params c = {.state_at = state_at,
                        .n_heads = a->geom->n_heads,
                        .rows = is_budget ? (double)S * a->geom->n_heads : 0,
                        .most = SL_BUDGET_MOST * S,
                        .short_rows = is_budget ? SL_BUDGET_MOST * S : 0,
                        .stated = {},
                        .share = 0,
                        .aim = 0,
                        .finished = counters_of(a, 0).top}; // santa-pps does not use `top` otherwise
    if (!sl_attn_certifies_layer(a->spec)) return c;
    double epsilon = sl_attn_get(a->spec, "epsilon");
    c.stated = sl_stated_of(sl_attn_get(a->spec, "delta"), (sl_stated_bound)sl_attn_get(a->spec, "bound"));
    c.share = epsilon / (1 + epsilon), c.aim = sl_attn_get(a->spec, "aim");
    return c;
}

__device__ sl_threshold *threshold_at(const carried_params &c, const sl_row &row, int position) {
    return (sl_threshold *)(row.state + c.state_at + (unsigned)position % 2 * place_bytes(c.n_heads));
}

// ---- steps of heads ----

// Stores the step of query head `head` of the sequence. One thread calls the function.
__device__ void store_step(const carried_params &c, const sl_row &row, int head, const sl_threshold_step &step) {
    sl_threshold_step *to = (sl_threshold_step *)(threshold_at(c, row, row.position) + 1) + head;
    const double *from = (const double *)&step;
#pragma unroll
    for (int i = 0; i < STEP_FIELDS; i++) __stcg((double *)to + i, from[i]);
}

// Adds the steps that the heads stored at `position`, in the order of heads. Returns the sum in shared memory. Only the first
// warp may read it, because no barrier follows. All threads of the thread block call the function. stage: [STAGE_DOUBLES] of
// shared memory.
__device__ const sl_threshold_step *sum_steps(const carried_params &c, const sl_row &row, int position, double *stage, int thread) {
    const double *from = (const double *)(threshold_at(c, row, position) + 1);
    double sum = 0, *sums = stage + STEPS_STAGED * STEP_FIELDS;
    for (int first = 0; first < c.n_heads; first += STEPS_STAGED) {
        int n = min(c.n_heads - first, (int)STEPS_STAGED);
        __syncthreads();
#pragma unroll 1
        for (int i = thread; i < n * STEP_FIELDS; i += TAKE_THREADS) stage[i] = __ldcg(from + first * STEP_FIELDS + i);
        __syncthreads();
#pragma unroll 4
        for (int h = 0; thread < STEP_FIELDS && h < n; h++) {
            double x = stage[h * STEP_FIELDS + thread];
            sum = thread == offsetof(sl_threshold_step, kappa) / sizeof(double) ? fmax(sum, x) : sum + x;
        }
    }
    if (thread < STEP_FIELDS) sums[thread] = sum;
    if (thread < 32) __syncwarp();
    return (const sl_threshold_step *)sums;
}

// The step of a head that draws at kappa. most: rows of a head.
__device__ sl_threshold_step step_of_known(const size_view &z, const known_rows *r, const known_split &x, double most) {
    double kappa = (double)r->kappa * r->unit, light = (double)x.light * r->unit;
    return {.total = (double)z.total * r->unit,
            .rows = fmin(x.n_heavy + x.k, most),
            .light = light,
            .k = x.k,
            .kappa = kappa,
            .B = kappa * light,
            .spared_k = 0,
            .spared_B = 0,
            .trace_squares = 0,
            .squares = 0};
}

// The step of a head after a search with the result x.
__device__ sl_threshold_step step_of_search(const size_view &z, double unit, const take_all &x) {
    double light = (double)x.light * unit, kappa = x.k > 0 ? light / x.k : 0;
    return {.total = (double)z.total * unit,
            .rows = (double)(x.n_heavy + x.k),
            .light = light,
            .k = (double)x.k,
            .kappa = kappa,
            .B = kappa * light,
            .spared_k = 0,
            .spared_B = 0,
            .trace_squares = 0,
            .squares = 0};
}

// The step of a head that searched because it would have taken too many rows: a smaller kappa gives it no more rows.
__device__ sl_threshold_step at_ceiling(sl_threshold_step step) {
    step.light = step.k = 0;
    return step;
}

// tr C^2 of a head with this sum over pairs of draws.
__device__ double trace_of(double kappa, double pairs) {
    return kappa * kappa * kappa * kappa * pairs;
}

// ---- the plan ----

// Moves *t to the step after `sum`. Returns the error bound of that step; 0 for a budget. The function is not inlined, because
// all kernels must contract its products and sums alike.
__device__ __noinline__ double move_threshold(const carried_params &c, sl_threshold *t, const sl_threshold_step &sum) {
    if (c.rows > 0) {
        sl_threshold_budget(t, &sum, c.rows);
        return 0;
    }
    return sl_threshold_error(t, &sum, &c.stated, c.share, c.aim);
}

// Computes the threshold of this step. *kappa: in shared memory; 0: the head searches. stores: this thread block stores the
// threshold. Call __syncthreads before *kappa is read.
__device__ void plan_threshold(const carried_params &c, const sl_row &row, bool stores, double *stage, double *kappa,
                               int thread) {
    const sl_threshold *before = threshold_at(c, row, row.position - 1);
    const sl_threshold_step *sum = sum_steps(c, row, row.position - 1, stage, thread);
    if (thread > 0) return;
    sl_threshold t = {.next = 0, .kappa = 0, .margin = 0.8, .spread = 1};
    if (row.position > 0 && __ldcg(&before->next) == (uint32_t)row.position) {
        t = {.next = 0, .kappa = __ldcg(&before->kappa), .margin = __ldcg(&before->margin), .spread = __ldcg(&before->spread)};
        move_threshold(c, &t, *sum);
    }
    if (row.position < c.short_rows) t.kappa = 0;
    t.next = (uint32_t)row.position + 1;
    *kappa = t.kappa;
    if (!stores) return;
    sl_threshold *to = threshold_at(c, row, row.position);
    __stcg(&to->next, t.next), __stcg(&to->kappa, t.kappa), __stcg(&to->margin, t.margin), __stcg(&to->spread, t.spread);
}

// ---- the certificate of a layer ----

// Adds the stated error of a layer's step to the statistics, as sl_attn_stats_add_stated does.
__device__ void count_certificate(const carried_params &c, const sl_row &row, const sl_threshold_step &sum,
                                  sl_attn_cuda_stats *stats) {
    const sl_threshold *now = threshold_at(c, row, row.position);
    sl_threshold t = {.next = 0, .kappa = __ldcg(&now->kappa), .margin = __ldcg(&now->margin), .spread = __ldcg(&now->spread)};
    double b = move_threshold(c, &t, sum), size = sqrt(sum.squares);
    float stated = (float)(b < size ? b / (size - b) : b > 0 ? INFINITY : 0);
    atomicAdd(&stats->stated, 1ull);
    if (b <= c.share * size) atomicAdd(&stats->certified, 1ull);
    if (!(stated <= SL_STATED_MOST)) {
        atomicAdd(&stats->unbounded, 1ull);
        return;
    }
    atomicAdd(&stats->stated_units, (unsigned long long)((double)stated * SL_STATED_UNIT + 0.5));
    atomicMax(&stats->stated_most, (unsigned long long)__float_as_uint(stated));
}

// Stores the step of a head. The thread block that finishes the sequence's layer last computes the certificate. step: of
// thread 0. is_last: in shared memory. All threads of the thread block call the function.
__device__ void finish_step(const carried_params &c, const sl_row &row, int seq, int head, const sl_threshold_step &step,
                            double *stage, int *is_last, sl_attn_cuda_stats *stats, int thread) {
    if (thread == 0) {
        store_step(c, row, head, step);
        *is_last = sl_add_ordered(c.finished + seq, 1) == c.n_heads - 1;
        if (*is_last) c.finished[seq] = 0;
    }
    __syncthreads();
    if (!*is_last || !stats) return;
    const sl_threshold_step *sum = sum_steps(c, row, row.position, stage, thread);
    if (thread == 0) count_certificate(c, row, *sum, stats);
}

} // namespace

#endif
