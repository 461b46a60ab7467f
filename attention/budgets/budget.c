// attention/budgets/budget.c - --budget=variance: splits the draws of a layer over its heads so that the mean relative squared
// error is smallest (docs/methods-theory.md, budgets over heads). The split uses the norm |m_h| of each head's previous output,
// because this output does not depend on the draws of this step. The first step of a session has no previous output, so every
// head gets S draws.
//
// The demand S_h of a head falls with a number t. Bisection finds the t of the layer where the demands add up to n_heads S:
//   draws from p        S_h = (1/t) sqrt(sum_j p_j |v_j|^2 - |m_h|^2) / |m_h|
//   take-all + PPS      S_h = #{x_j >= t} + sum_{x_j < t} x_j / t, x_j = p_j |v_j| / |m_h|: one threshold for the layer
#include "attention/stages/stages.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_HEADS = 1024 };

int sl_tile_of(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "tile") ? SL_LEAST_TILE << (int)sl_attn_get(spec, "tile") : SL_TILE;
}

int sl_budget_is_by_variance(const sl_attn_spec *spec) {
    if (sl_attn_states_error(spec)) return 0; // the stated error sets the draws of each head
    return sl_attn_has(spec, "budget") && sl_attn_chooses(spec, "budget", "variance");
}

// The profile of a head: doubles in draws.scratch. Draws from p: [0] is the relative standard deviation of one draw. PPS:
// [0, n) are the n = n_profile <= 4 S largest sizes x_j, descending; [n + i] is the sum of all sizes below number i.
static double *profile_of(const sl_head *x) {
    return (double *)x->draws.scratch;
}

static int is_pps(const sl_head *x) {
    return x->draw->size_power(x->group->args->spec) == 1;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

void sl_budget_profile(sl_head *x) {
    if (x->norm_before < 0 || !sl_budget_is_by_variance(x->group->args->spec)) return;
    double *profile = profile_of(x), norm = fmax(x->norm_before, 1e-30);
    if (!is_pps(x)) {
        double all = sl_masses_share(&x->sizes, sl_masses_total(&x->sizes), &x->masses);
        profile[0] = sqrt(fmax(all - norm * norm, 0)) / norm;
        return;
    }
    int n = x->n_profile = sl_masses_largest(&x->sizes, SL_BUDGET_MOST * x->S, x->draws.row);
    uint64_t others = sl_masses_total(&x->sizes);
    for (int i = 0; i < n; i++) {
        uint64_t size = sl_masses_of_row(&x->sizes, x->draws.row[i]);
        profile[i] = sl_masses_share(&x->sizes, size, &x->masses) / norm;
        others -= size;
    }
    qsort(profile, n, sizeof *profile, by_size);
    // Add from the smallest size up. A difference of large sums keeps a rounding error, and division by a small t makes it
    // large.
    double rest = sl_masses_share(&x->sizes, others, &x->masses) / norm;
    for (int i = n - 1; i >= 0; rest += profile[i--]) profile[n + i] = rest;
}

// The draws that a head needs at t, within its limits.
static double demand(const sl_head *x, double t) {
    if (x->needs_exact) return x->S; // the head draws no rows, and other heads do not get its draws
    const double *profile = profile_of(x);
    double want, least = fmax(1, x->S / (double)SL_BUDGET_MOST), most = (double)SL_BUDGET_MOST * x->S;
    if (!is_pps(x)) {
        want = profile[0] / t;
    } else {
        int low = 0, high = x->n_profile; // finds the first size below t
        while (low < high) {
            int mid = (low + high) / 2;
            if (profile[mid] >= t)
                low = mid + 1;
            else
                high = mid;
        }
        double light = low ? profile[x->n_profile + low - 1] : x->n_profile ? profile[x->n_profile] + profile[0] : 0;
        want = low + fmax(light, 0) / t;
    }
    return fmin(fmax(want, least), most);
}

void sl_budget_by_variance(sl_layer *l) {
    sl_head *heads = l->heads;
    int n_heads = l->args->geom->n_heads;
    double low = -200, high = 200, want[MAX_HEADS]; // log2 t
    int left = n_heads * heads[0].S;
    if (!l->follows || !sl_budget_is_by_variance(l->args->spec)) return;
    SL_CHECK(n_heads <= MAX_HEADS);
    for (int step = 0; step < 60; step++) {
        double mid = (low + high) / 2, sum = 0;
        for (int i = 0; i < n_heads; i++) sum += demand(&heads[i], exp2(mid));
        if (sum > left)
            low = mid;
        else
            high = mid;
    }
    for (int i = 0; i < n_heads; i++) want[i] = demand(&heads[i], exp2(high)); // demand() reads S, so no S is set yet
    for (int i = 0; i < n_heads; i++) left -= heads[i].S = (int)want[i];
    for (; left > 0; left--) { // the remaining draws go to the heads with the largest remainders
        int best = 0;
        for (int i = 1; i < n_heads; i++)
            if (want[i] - heads[i].S > want[best] - heads[best].S) best = i;
        if (want[best] <= heads[best].S) return; // every head is at its limit, the capacity of its arrays
        heads[best].S++;
    }
}
