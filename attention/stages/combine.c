// attention/stages/combine.c - refinement and combination: from drawn rows to the output. It reads only the drawn rows of K and
// V.
#include "attention/stages/stages.h"

#include <math.h>

double sl_norm(const float *x, int n) {
    double square = 0;
    for (int d = 0; d < n; d++) square += (double)x[d] * x[d];
    return sqrt(square);
}

double sl_relative_bound(double b, double norm) {
    if (!sl_is_norm(norm) || !(b >= 0)) return INFINITY;
    return b > 0 ? b / norm : 0; // infinity for norm = 0
}

// x->rows[i]: row draws.row[i] of K, or of V. page_of: sl_k_page or sl_v_page
static void point_at(sl_head *x, sl_kv_run (*page_of)(const sl_group *g, int page)) {
    const sl_group *g = x->group;
    for (int i = 0; i < x->draws.n; i++) {
        int j = x->draws.row[i];
        x->rows[i] = sl_kv_row_at(page_of(g, j / SL_PAGE), g->head_dim, j % SL_PAGE);
    }
}

void sl_refine(sl_head *x) {
    const sl_group *g = x->group;
    point_at(x, sl_k_page);
    g->kernels->score_rows(x->q, g->kv->formats.k, x->rows, x->draws.n, g->head_dim, g->scale, x->score);
}

int sl_adds_values(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "value") && sl_attn_chooses(spec, "value", "adds");
}

void sl_combine(sl_head *x, sl_normaliser normaliser, int refined) {
    const sl_draws *d = &x->draws;
    double sum = 0, squares = 0;
    float top = -INFINITY;
    for (int i = 0; refined && i < d->n; i++) top = fmaxf(top, x->score[i]);
    for (int i = 0; i < d->n; i++) {
        double p = refined ? exp2(x->score[i] - top) : sl_masses_probability(&x->masses, d->row[i]);
        double share = d->count[i] * p * d->inv_pi[i];
        x->coef[i] = (float)share;
        sum += share, squares += share * share;
    }
    if (normaliser == SL_BY_SAMPLE)
        for (int i = 0; i < d->n; i++) x->coef[i] = (float)(x->coef[i] / sum);
    x->log2_total = log2(sum) + top;
    x->report->ess = squares > 0 ? (float)(sum * sum / squares) : 0;
    point_at(x, sl_v_page);
    const sl_group *g = x->group;
    if (sl_adds_values(g->args->spec)) { // the coefficients are c_j / S
        g->kernels->gather_adds(g->kv->formats.v, x->rows, d->count, d->n, g->head_dim, x->out);
        g->kernels->scale_row(x->out, g->head_dim, d->n_draws ? 1.0f / (float)d->n_draws : 0);
    } else
        g->kernels->gather(g->kv->formats.v, x->rows, x->coef, d->n, g->head_dim, x->out);
}

void sl_reports_state_zero(const sl_attn_geom *g, const float *out, sl_attn_report *reports) {
    double squares = 0;
    for (int h = 0; h < g->n_heads; h++) squares += pow(sl_norm(out + (size_t)h * g->head_dim, g->head_dim), 2);
    for (int h = 0; h < g->n_heads; h++) {
        reports[h].error_bound = (float)sl_relative_bound(0, sqrt(squares));
        reports[h].stated_error = (float)sl_stated_error(0, sqrt(squares));
    }
}
