// attention/cuda/buckets/saap.cu - saap, saap-kmeans and saap-is on CUDA: attention over the rows of visited buckets, and over
// rows that are drawn from the other buckets.
//
// bucket_scores.cu scores the buckets; bucket_visit.cu chooses and lists the rows; bucket_draws.cu draws; attend_buckets.cuh
// reads the rows. Only the last one is compiled again for rows in host memory. bucket_step.cuh has what they share.
// Layers below dense-layers run dense decode. bucket_index.cu builds the index.
#include "attention/cuda/buckets/attend_buckets.cuh"
#include "attention/cuda/head_dim.cuh"

namespace {

bool has_rope(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "rope") && sl_attn_get(spec, "rope") > 0;
}

int draws_of(const sl_attn_spec *spec) { // of a query head
    return sl_attn_has(spec, "S") ? (int)sl_attn_get(spec, "S") : 0;
}

bool is_by_centroid(const sl_attn_spec *spec) {
    return sl_attn_has(spec, "rope");
}

// The index, in this order: bucket rows, bucket lists, bucket cells.
int needs(const sl_attn_spec *spec, sl_kv_need *out) {
    out[0] = {&sl_bucket_rows_kind, has_rope(spec)};
    out[1] = {&sl_bucket_lists_kind, has_rope(spec)};
    out[2] = {&sl_bucket_cells_kind, 0};
    return draws_of(spec) > 0 ? 3 : 2;
}

// Everything that depends only on the model and the specification.
attend_buckets_params params_of(const sl_attn_geom *geom, const sl_attn_spec *spec) {
    const sl_buckets *b = geom->buckets;
    attend_buckets_params p = {};
    bucket_step &v = p.visit;
    SL_CHECK(b != NULL);
    v.n_kv_heads = geom->n_kv_heads, v.group = geom->n_heads / geom->n_kv_heads, v.head_dim = geom->head_dim;
    v.l = min((int)sl_attn_get(spec, "l"), b->n_buckets);
    v.sink = (int)sl_attn_get(spec, "sink"), v.window = (int)sl_attn_get(spec, "window");
    v.scores = v.l > 0;
    v.roped = has_rope(spec), v.C = b->n_buckets, v.W = is_by_centroid(spec) ? 0 : b->width;
    p.scale = sl_score_scale(geom->head_dim);
    return p;
}

// The arrays of the workspace, which `d` shares with `p`.
size_t lay_out(const sl_attn_spec *spec, int n_seqs, int n_kv, void *ws, attend_buckets_params *p, bucket_draws *d) {
    arena a = after_counters(ws);
    take_visit(&a, &p->visit, n_seqs, n_kv);
    p->n_drawn = d->S = draws_of(spec);
    take_bucket_partials(&a, p, n_seqs, n_kv + (size_t)d->S * p->visit.group);
    d->visit = p->visit;
    if (d->S) take_draws(&a, d, n_seqs);
    p->draw = d->draw, p->weight = d->weight, p->drawable = d->drawable;
    return bytes_taken(a, ws);
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int n_tokens, int n_kv) {
    attend_buckets_params p = params_of(geom, spec);
    bucket_draws d = {};
    size_t dense = sl_cuda_dense_workspace(geom, spec, n_seqs, n_tokens, n_kv);
    return n_tokens > 1 ? dense : max(lay_out(spec, n_seqs, n_kv, NULL, &p, &d), dense);
}

// Sets the arrays of the model that belong to the layer, and the arguments of the step.
void open_step(const sl_attn_cuda_decode_args *a, attend_buckets_params *p) {
    const sl_buckets *b = a->geom->buckets;
    bucket_step &v = p->visit;
    size_t head = (size_t)a->layer * b->n_kv_heads, C = b->n_buckets, W = b->width, d = b->head_dim;
    v.rows = a->rows, v.q = a->q, v.n_seqs = a->n_seqs, v.inv_freq = b->inv_freq;
    v.centroids = (v.roped ? b->roped : b->centroids) + head * C * d;
    if (v.W) v.w1 = b->w1 + head * W * d, v.b1 = b->b1 + head * W, v.w2 = b->w2 + head * C * W, v.b2 = b->b2 + head * C;
    v.page_rows = (const char *)a->extra[0], v.page_rows_size = a->extra_size[0];
    v.lists = (const char *)a->extra[1], v.lists_size = a->extra_size[1], v.slots = a->extra_slots[1];
    v.stats = a->stats;
    p->k = a->k, p->v = a->v, p->out = a->out, p->host = a->offloaded_rows;
    p->done = counters_of(a, 0).done;
}

// Counts the rows of a step that reads every row. Grid: sequences.
__global__ void count_dense_kernel(const sl_row *rows, int n_kv_heads, int group, int head_dim, sl_attn_cuda_stats *stats) {
    sl_start_next();
    sl_wait_previous();
    uint64_t n = (uint64_t)(rows[blockIdx.x].position + 1) * n_kv_heads;
    if (threadIdx.x > 0) return;
    atomicAdd(&stats->k_rows, (unsigned long long)n);
    atomicAdd(&stats->v_distinct, (unsigned long long)n);
    atomicAdd(&stats->v_rows, (unsigned long long)n * group);
    atomicAdd(&stats->samples, (unsigned long long)n * group);
    atomicAdd(&stats->bytes, (unsigned long long)(2 * n * head_dim * sizeof(bf16)));
}

template <int DIM> void launch(const sl_attn_cuda_decode_args *a) {
    attend_buckets_params p = params_of(a->geom, a->spec);
    bucket_draws d = {};
    lay_out(a->spec, a->n_seqs, a->max_kv, a->ws, &p, &d);
    open_step(a, &p);
    if (p.visit.scores) sl_cuda_score_buckets(p.visit, a->stream);
    if (d.S) {
        p.visit.cell_count = d.visit.cell_count, p.visit.cell_slots = a->extra_slots[2];
        d.visit = p.visit, d.scale = p.scale, d.layer = a->layer, d.first_head = a->geom->first_head;
        d.cells = (const char *)a->extra[2], d.cells_size = a->extra_size[2];
        sl_cuda_score_cells(d, a->stream);
        sl_cuda_visit_buckets(p.visit, true, a->stream);
        sl_cuda_draw_cells(d, a->stream);
    } else {
        sl_cuda_visit_buckets(p.visit, false, a->stream);
    }
    launch_attend_buckets<DIM>(p, a->stream);
}

void decode(const sl_attn_cuda_decode_args *a) {
    const sl_attn_geom *g = a->geom;
    SL_CHECK(g->n_heads / g->n_kv_heads <= GROUP_MAX);
    if (a->layer < (int)sl_attn_get(a->spec, "dense-layers")) {
        sl_cuda_dense_decode(a);
        if (a->stats)
            sl_launch(count_dense_kernel, dim3(a->n_seqs), dim3(32), 0, a->stream, a->rows, g->n_kv_heads,
                      g->n_heads / g->n_kv_heads, g->head_dim, a->stats);
        return;
    }
    SL_WITH_HEAD_DIM(g->head_dim, launch, a);
}

void account(const sl_attn_geom *geom, const sl_attn_spec *, int, sl_attn_stats *stats) { // the kernels count the rows
    stats->features += geom->n_heads;
}

// The host plans the launches before the visited rows are counted, so no head can turn to dense attention.
int supports_visits(const sl_attn_spec *spec, sl_error *err) {
    if (sl_attn_get(spec, "dense-above") >= 1) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} %s: found {dense-above} %g, expected 1: a smaller share is not offered on a GPU; or {device} cpu",
                   spec->method->name, sl_attn_get(spec, "dense-above"));
}

int supports_draws(const sl_attn_spec *spec, sl_error *err) {
    if (draws_of(spec) == 0 || sl_attn_chooses(spec, "proposal", "cells")) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "{attn} %s: {proposal} classifier: not offered on a GPU; use {proposal} cells, or {device} cpu",
                   spec->method->name);
}

} // namespace

#ifdef SL_OFFLOADED_ROWS
#define OPS sl_saap_offloaded_cuda_ops
#define IS_OPS sl_saap_is_offloaded_cuda_ops
#define OFFLOADED_OPS NULL
#define OFFLOADED_IS_OPS NULL
#else
#define OPS sl_saap_cuda_ops
#define IS_OPS sl_saap_is_cuda_ops
#define OFFLOADED_OPS &sl_saap_offloaded_cuda_ops
#define OFFLOADED_IS_OPS &sl_saap_is_offloaded_cuda_ops
#endif
const sl_attn_cuda_ops OPS = {.workspace = workspace,
                              .decode = decode,
                              .needs = needs,
                              .state = NULL,
                              .max_rows = SL_CUDA_LONG_ROWS,
                              .account = account,
                              .prefill = NULL,
                              .supports = supports_visits,
                              .mask = NULL,
                              .mask_workspace = NULL,
                              .offloaded = OFFLOADED_OPS,
                              .bytes = NULL};
const sl_attn_cuda_ops IS_OPS = {.workspace = workspace,
                                 .decode = decode,
                                 .needs = needs,
                                 .state = NULL,
                                 .max_rows = SL_CUDA_LONG_ROWS,
                                 .account = account,
                                 .prefill = NULL,
                                 .supports = supports_draws,
                                 .mask = NULL,
                                 .mask_workspace = NULL,
                                 .offloaded = OFFLOADED_IS_OPS,
                                 .bytes = NULL};
