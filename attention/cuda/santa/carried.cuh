// attention/cuda/santa/carried.cuh - the threshold kappa that a layer carries from step to step, on CUDA (carried.c,
// threshold.h).
//
// The heads of a step do not wait for each other. Each head stores what its draw says about the next step: a sl_threshold_step.
// After the last layer, one kernel adds these steps in a fixed order, computes each layer's next kappa from the sum, and counts
// the certificate of a stated error, which follows from the same sum (end_step.cu). So the heads only read their kappa.
//
// layer_state.cuh has the places of thresholds and steps in the session's state.
//
// Equal to the CPU's: all fields of a head's step, except `trace_squares` and `squares`, have the CPU's bits if the stored
// masses and kappa are equal. The next kappa agrees up to roundings, because nvcc contracts products and sums.
#ifndef SLEIGH_CARRIED_CUH
#define SLEIGH_CARRIED_CUH

#include "attention/cuda/layer_state.cuh"
#include "attention/cuda/santa/take_known.cuh"

extern "C" {
#include "attention/stages/stages.h"
}

namespace {

enum {
    STEP_FIELDS = sizeof(sl_threshold_step) / sizeof(double),
    STEP_PARTS = 32 / STEP_FIELDS, // parts of a warp that add the steps of different heads
    STEPS_AHEAD = 11,              // loads of a lane in flight: with 32 heads, all loads are
    STATE_WARP = TAKE_WARPS - 1,   // reads the state of the layer; warp 0 waits for the scores meanwhile
};

struct carried_params {
    size_t state_at; // of this layer in a session's state: two places
    int n_heads;
    double rows;      // expected rows of a layer; 0: a stated error
    int most;         // a budget: rows of a head
    int short_rows;   // a sequence of at most so many rows searches
    sl_stated stated; // a stated error: the bound, epsilon / (1 + epsilon), the share of certified layers
    double share, aim;
};

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
                        .aim = 0};
    if (!sl_attn_certifies_layer(a->spec)) return c;
    double epsilon = sl_attn_get(a->spec, "epsilon");
    c.stated = sl_stated_of(sl_attn_get(a->spec, "delta"), (sl_stated_bound)sl_attn_get(a->spec, "bound"));
    c.share = epsilon / (1 + epsilon), c.aim = sl_attn_get(a->spec, "aim");
    return c;
}

__device__ sl_threshold *threshold_at(const carried_params &c, const sl_row &row, int position) {
    return threshold_at(row, c.state_at, c.n_heads, position);
}

// The threshold of the layer in this step. `next` and kappa are 0 if the step before has not planned a threshold.
__device__ sl_threshold threshold_of(const carried_params &c, const sl_row &row) {
    const sl_threshold *now = threshold_at(c, row, row.position);
    sl_threshold t = {.next = __ldcg(&now->next),
                      .kappa = __ldcg(&now->kappa),
                      .margin = __ldcg(&now->margin),
                      .spread = __ldcg(&now->spread)};
    return is_planned(t, row.position) ? t : sl_threshold{.next = 0, .kappa = 0, .margin = 0.8, .spread = 1};
}

// ---- steps of heads ----

// Stores the step of query head `head` of the sequence. One thread calls the function.
__device__ void store_step(const carried_params &c, const sl_row &row, int head, const sl_threshold_step &step) {
    sl_threshold_step *to = (sl_threshold_step *)(threshold_at(c, row, row.position) + 1) + head;
    const double *from = (const double *)&step;
#pragma unroll
    for (int i = 0; i < STEP_FIELDS; i++) __stcg((double *)to + i, from[i]);
}

// Adds the steps that the heads stored at `position`. One warp calls the function. Lane f + STEP_FIELDS i adds field f of heads
// i, i + STEP_PARTS, ... to: in shared memory; after the call the warp may read it.
__device__ void sum_steps(const carried_params &c, const sl_row &row, int position, sl_threshold_step *to, int lane) {
    const double *from = (const double *)(threshold_at(c, row, position) + 1);
    int field = lane % STEP_FIELDS, part = lane / STEP_FIELDS;
    bool is_kappa = field == offsetof(sl_threshold_step, kappa) / sizeof(double);
    double sum = 0;
    for (int first = part; first < c.n_heads; first += STEP_PARTS * STEPS_AHEAD) {
        double x[STEPS_AHEAD];
#pragma unroll
        for (int i = 0; i < STEPS_AHEAD; i++) {
            int h = first + STEP_PARTS * i;
            x[i] = h < c.n_heads && part < STEP_PARTS ? __ldcg(from + h * STEP_FIELDS + field) : 0;
        }
#pragma unroll
        for (int i = 0; i < STEPS_AHEAD; i++) sum = !is_kappa ? sum + x[i] : x[i] > sum ? x[i] : sum;
    }
    double second = __shfl_sync(~0u, sum, lane + STEP_FIELDS), third = __shfl_sync(~0u, sum, lane + 2 * STEP_FIELDS);
    static_assert(STEP_PARTS == 3, "the sum of the parts");
    sum = is_kappa ? fmax(sum, fmax(second, third)) : sum + second + third;
    if (part == 0) ((double *)to)[field] = sum;
    __syncwarp();
}

// The step of a head that draws at kappa. most: rows of a head.
__device__ sl_threshold_step step_of_known(const size_view &z, const known_rows *r, const known_split &x, double most) {
    double unit = unit_of(r), kappa = (double)r->kappa * unit, light = (double)x.light * unit;
    double k = (double)x.light / (double)r->kappa;
    return {.total = (double)z.total * unit,
            .rows = fmin(x.n_heavy + k, most),
            .light = light,
            .k = k,
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

// Moves *t from the step `sum` to the next step. Returns the error bound of the step; 0 for a budget.
__device__ double move_threshold(const carried_params &c, sl_threshold *t, const sl_threshold_step &sum) {
    if (c.rows > 0) {
        sl_threshold_budget(t, &sum, c.rows);
        return 0;
    }
    return sl_threshold_error(t, &sum, &c.stated, c.share, c.aim);
}

} // namespace

#endif
