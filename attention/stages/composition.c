// attention/stages/composition.c - parts that the two drivers of a composition (decode.c, online_softmax.c) and the stages
// share: the composition of a specification, the view of one KV head, the workspace, the statistics at the end of a call.
#include "attention/stages/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

sl_composition sl_composition_of(const sl_attn_spec *spec) {
    sl_composition c = *spec->method->stages;
    if (c.choose) c.propose = c.choose(spec);
    if (!spec->plus) return c;
    c.select = c.draw;
    c.draw = spec->plus->stages->draw, c.normaliser = spec->plus->stages->normaliser;
    return c;
}

int sl_attn_makes_mask(const sl_attn_spec *spec) {
    return spec->method->cpu && spec->method->cpu->mask;
}

int sl_page_rows(const sl_kv_view *kv, int page) {
    int left = kv->n_kv - page * SL_PAGE;
    return left < SL_PAGE ? left : SL_PAGE;
}

sl_kv_run sl_k_page(const sl_group *g, int page) {
    return sl_kv_k_run(g->kv, g->args->geom->n_kv_heads, g->head_dim, page, g->h);
}
sl_kv_run sl_v_page(const sl_group *g, int page) {
    return sl_kv_v_run(g->kv, g->args->geom->n_kv_heads, g->head_dim, page, g->h);
}

size_t sl_k_row_bytes(const sl_group *g) {
    return sl_kv_row_bytes(g->kv->formats.k, g->head_dim);
}
size_t sl_v_row_bytes(const sl_group *g) {
    return sl_kv_row_bytes(g->kv->formats.v, g->head_dim);
}
uint64_t sl_newest_bytes(const sl_group *g) {
    return (uint64_t)sl_page_rows(g->kv, sl_kv_n_built(g->kv)) * sl_k_row_bytes(g);
}

int sl_longest(const sl_attn_decode_args *a) {
    int longest = 0;
    for (int s = 0; s < a->n_seqs; s++) longest = a->seqs[s].kv.n_kv > longest ? a->seqs[s].kv.n_kv : longest;
    return longest;
}

int sl_workspace_reserve(sl_workspace *ws, size_t size, sl_error *err) {
    if (size <= ws->size) return 0;
    size = (size + 63) / 64 * 64;
    void *data = aligned_alloc(64, size);
    if (!data) return sl_fail(err, SL_ERR_MEMORY, "attention scratch memory of %zu MiB cannot be allocated", size >> 20);
    free(ws->data);
    *ws = (sl_workspace){data, size};
    return 0;
}

void sl_workspace_free(sl_workspace *ws) {
    free(ws->data);
    *ws = (sl_workspace){0};
}

size_t sl_workspace_take(size_t *at, size_t bytes) {
    size_t offset = *at;
    *at += (bytes + 63) / 64 * 64;
    return offset;
}

sl_group sl_group_of(const sl_attn_decode_args *a, int s, int h) {
    const sl_attn_geom *g = a->geom;
    int group = g->n_heads / g->n_kv_heads;
    return (sl_group){
        .args = a,
        .query = &a->seqs[s],
        .kv = &a->seqs[s].kv,
        .kernels = sl_attn_kernels_best(),
        .q = a->seqs[s].q + (size_t)h * group * g->head_dim,
        .h = h,
        .n = group,
        .head_dim = g->head_dim,
        .scale = sl_score_scale(g->head_dim),
        .rows = {{0, a->seqs[s].kv.n_kv}, {a->seqs[s].kv.n_kv, a->seqs[s].kv.n_kv}},
    };
}

// Adds the reports of one sequence. n_kv: its rows
static void add_reports(sl_attn_stats *to, const sl_attn_report *reports, const sl_attn_geom *g, int n_kv) {
    int group = g->n_heads / g->n_kv_heads;
    for (int i = 0; i < g->n_heads; i++) {
        const sl_attn_report *r = &reports[i];
#define ADD_SUM(NAME, FIELD) to->NAME += r->FIELD;
#define ADD_SHARE(NAME, FIELD) to->NAME += r->FIELD;
#define ADD_MOST(NAME, FIELD)                                                                                                  \
    if (r->FIELD > to->NAME) to->NAME = r->FIELD;
#define ADD_HEAD(NAME, KIND, FIELD) ADD_##KIND(NAME, FIELD)
#define ADD_GROUP(NAME, KIND, FIELD)                                                                                           \
    if (i % group == 0) ADD_##KIND(NAME, FIELD)
#define ADD_OTHER(NAME, KIND, FIELD)
#define ADD(NAME, KIND, REPORT, FIELD, GPU) ADD_##REPORT(NAME, KIND, FIELD)
        SL_ATTN_COUNTERS(ADD)
    }
    if (!isnan(reports->stated_error)) sl_attn_stats_add_stated(to, reports->stated_error, (int)reports->certified);
    to->steps += (uint64_t)g->n_heads;
    to->dense_k_rows += (uint64_t)n_kv * (uint64_t)g->n_kv_heads;
    to->dense_v_rows += (uint64_t)n_kv * (uint64_t)g->n_heads;
}

void sl_reports_close(const sl_attn_decode_args *a, const sl_attn_report *reports) {
    const sl_attn_geom *g = a->geom;
    for (int i = 0; i < a->n_seqs; i++) {
        const sl_attn_query *q = &a->seqs[i];
        sl_attn_stats own = {0};
        add_reports(&own, reports + (size_t)i * g->n_heads, g, q->kv.n_kv);
        sl_attn_stats_add(a->stats, &own);
        if (q->stats) sl_attn_stats_add(q->stats, &own);
    }
    if (a->reports) memcpy(a->reports, reports, (size_t)a->n_seqs * g->n_heads * sizeof *reports);
}
