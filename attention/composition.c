// attention/composition.c - what the two drivers of a composition (decode.c, online_softmax.c) share: reading a specification,
// the view of one KV head, the workspace, the statistics at the end of a call.
#include "attention/stages.h"
#ifdef SLEIGH_CUDA
#include "attention/attention_cuda.h"
#endif

#include <math.h>
#include <string.h>

sl_composition sl_composition_of(const sl_attn_spec *spec) {
    sl_composition c = *spec->method->stages;
    if (c.choose) c.propose = c.choose(spec);
    if (spec->plus) c.draw = spec->plus->stages->draw, c.normaliser = spec->plus->stages->normaliser;
    return c;
}

static int check_method(const sl_attn_spec *spec, const sl_attn_method *m, sl_error *err) {
    if (m->mean == SL_MEAN_UNSTATED)
        return sl_fail(err, SL_ERR_ARG, "--attn %s: the method does not state the mean of its output (sl_attn_method.mean)",
                       m->name);
    return m->check ? m->check(spec, err) : 0;
}

int sl_attn_check(const sl_attn_spec *spec, sl_error *err) {
    int rc = check_method(spec, spec->method, err);
    return rc || !spec->plus ? rc : check_method(spec, spec->plus, err);
}

sl_attn_mean sl_attn_mean_of(const sl_attn_spec *spec) {
    const sl_attn_method *m = spec->method;
    return m->mean_of ? m->mean_of(spec) : m->mean; // `score+value` has the bias of its scores
}

const char *sl_attn_mean_name(sl_attn_mean mean) {
    static const char *const names[] = {"unstated", "unbiased", "biased", "exact"};
    return names[mean];
}

int sl_attn_states_error(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "epsilon") && sl_attn_get(spec, "epsilon") > 0;
}

int sl_attn_on_gpu(const sl_attn_spec *spec) {
#ifdef SLEIGH_CUDA
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    if (!ops || !ops->decode || sl_budget_wanted(spec)) return 0; // on a GPU no head waits for the others' budgets
    return !spec->plus || (spec->plus->cuda && spec->plus->stages->draw->sampler); // what bernoulli.cu draws with
#else
    (void)spec;
    return 0;
#endif
}

int sl_longest(const sl_attn_decode_args *a) {
    int longest = 0;
    for (int s = 0; s < a->n_seqs; s++) longest = a->seqs[s].kv.n_kv > longest ? a->seqs[s].kv.n_kv : longest;
    return longest;
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
        .scale = (float)(1.4426950408889634 / sqrt(g->head_dim)),
    };
}

void sl_reports_close(const sl_attn_decode_args *a, const sl_attn_report *reports) {
    const sl_attn_geom *g = a->geom;
    sl_attn_stats st = {0};
    int group = g->n_heads / g->n_kv_heads;
    for (int slot = 0; slot < a->n_seqs * g->n_heads; slot++) {
        const sl_attn_report *r = &reports[slot];
        st.steps++;
        st.v_rows += r->v_rows;
        st.dense_v_rows += (uint64_t)a->seqs[slot / g->n_heads].kv.n_kv;
        st.samples += r->samples;
        st.tries += r->tries;
        st.fallbacks += r->fallback;
        st.heavy_tails += r->heavy_tail;
        if (r->kurtosis > st.kurtosis) st.kurtosis = r->kurtosis;
        st.features += r->features;
        if (slot % group) continue;
        st.k_rows += r->k_rows;
        st.v_distinct += r->v_distinct;
        st.bytes += r->bytes;
        st.dense_bytes += r->dense_bytes;
        st.dense_k_rows += (uint64_t)a->seqs[slot / g->n_heads].kv.n_kv;
    }
    sl_attn_stats_add(a->stats, &st);
    if (a->reports) memcpy(a->reports, reports, (size_t)a->n_seqs * g->n_heads * sizeof *reports);
}
